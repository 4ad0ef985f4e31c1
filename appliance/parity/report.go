package parity

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"

	"sallyport/appliance/accesslog"
	"sallyport/ingress"
)

// Bounds of a Report.
const (
	MaxLine   = 64 << 10 // bytes of a line; longer ones are not read
	MaxGroups = 10000    // groups of differences
	maxText   = 200      // bytes that a Group keeps of a host or a path
)

// A Group is the requests of one host and rule that met one answer, and meet another one here.
type Group struct {
	Host    string `json:"host"`
	Rule    string `json:"rule"` // HOST PATH of the rule that takes them; "-" if none does
	Ingress string `json:"ingress,omitempty"`
	Before  int    `json:"before"`            // the status in the log
	By      string `json:"by,omitempty"`      // "proxy" if the log says that no server answered
	Backend string `json:"backend,omitempty"` // that the log names, if the request reaches another Service here
	Code    Code   `json:"code"`              // the answer here
	Now     int    `json:"now,omitempty"`     // its status; 0 if a server decides
}

// Counted is a Group with its requests.
type Counted struct {
	Group
	Requests int64  `json:"requests"`
	Example  string `json:"example"` // method and path of the first one
	Why      string `json:"why"`
}

// A Report compares the answers of a log with those of the routing.
type Report struct {
	Lines      int64     `json:"lines"`
	Unreadable int64     `json:"unreadable"` // no form of a log fits, or the line is too long
	Hostless   int64     `json:"hostless"`   // the log does not have the host
	Gone       int64     `json:"gone"`       // the client left, or its request was no HTTP
	Same       int64     `json:"same"`
	Different  int64     `json:"different"`
	Groups     []Counted `json:"groups"`
	Others     int64     `json:"others"` // different requests beyond the limit of groups
}

// Replay compares each line of a log with the routing. Lines without a host are taken to be for host, if
// it is not empty.
func Replay(r ingress.Result, log io.Reader, host string) (Report, error) {
	var out Report
	j, groups := newJudge(r), map[Group]*Counted{}
	err := read(log, func(text []byte, long bool) {
		out.Lines++
		out.line(j, groups, text, long, host)
	})
	if err != nil {
		return out, err
	}
	for _, g := range groups {
		out.Groups = append(out.Groups, *g)
	}
	slices.SortFunc(out.Groups, func(a, b Counted) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Host, b.Host), cmp.Compare(a.Rule, b.Rule),
			cmp.Compare(a.Before, b.Before), cmp.Compare(a.Code, b.Code), cmp.Compare(a.By, b.By),
			cmp.Compare(a.Backend, b.Backend))
	})
	return out, nil
}

// line counts a line.
func (r *Report) line(j *judge, groups map[Group]*Counted, text []byte, long bool, host string) {
	l, ok := accesslog.Line{}, false
	if !long {
		l, ok = accesslog.Read(string(text))
	}
	if l.Host == "" {
		l.Host = host
	}
	switch {
	case !ok:
		r.Unreadable++
		return
	case gone(l.Status):
		r.Gone++
		return
	case l.Host == "":
		r.Hostless++
		return
	}
	a := j.find(l.Host, l.Path)
	code, status := a.to(&l)
	if same(code, status, &l) {
		r.Same++
		return
	}
	r.Different++
	g := Group{Host: short(l.Host), Rule: a.rule, Ingress: a.ingress, Before: l.Status, Code: code, Now: status}
	if l.Own {
		g.By = "proxy"
	}
	if code == Another {
		g.Backend = short(l.Backend())
	}
	c := groups[g]
	if c == nil {
		if len(groups) == MaxGroups {
			r.Others++
			return
		}
		c = &Counted{Group: g, Example: short(l.Method + " " + l.Path), Why: why(g, a)}
		groups[g] = c
	}
	c.Requests++
}

// short returns text of bounded length, in visible characters.
func short(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "..."
	}
	return strings.Clone(text)
}

// why returns a sentence about an answer.
func why(g Group, a *answer) string {
	switch g.Code {
	case NotFound:
		if a.rule == "-" {
			return "no rule takes the host and the path"
		}
		return "the rule has no backend"
	case ToHTTPS:
		return "plain HTTP is redirected to HTTPS"
	case Redirect:
		return "a key of the Ingress redirects the request"
	case Closed:
		return "all clients get 503, because a guard of the Ingress cannot be kept"
	case Denied:
		return "the address of the client is in deny-list, or in no allow-list"
	case Password:
		return "auth-type asks for a password"
	case Another:
		return "the request goes to a server of " + a.backend + "; before, it went to one of " + g.Backend
	}
	return "the request goes to a server of " + a.backend + "; before, the proxy itself answered"
}

// Words returns the Report as sentences about its totals.
func (r *Report) Words() []string {
	return sentences(
		total{r.Same, "meet the same kind of answer"},
		total{r.Different, "meet another one"},
		total{r.Gone, "say nothing of the routing: the client left, or sent no valid request (status 400, 408, 414, " +
			"431 or 499)"},
		total{r.Hostless, "have no host: --host names it, or the form of the log can have it"},
		total{r.Unreadable, "were not read: no known form fits, or the line is too long"},
		total{r.Others, fmt.Sprintf("differ, and are in no group, because there are %d groups already", MaxGroups)},
	)
}
