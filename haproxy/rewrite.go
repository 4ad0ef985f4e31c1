package haproxy

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Literal escapes a value so that HAProxy fills in no part of it.
func Literal(value string) string { return strings.ReplaceAll(value, "%", "%%") }

// A PathChange changes the path of a request, and keeps its query.
type PathChange struct {
	Prefix string // the elements at the beginning that To replaces; if it is empty, To replaces all
	To     string // begins with "/"
}

// Directive returns the rule that changes the path before a server sees it.
func (c PathChange) Directive() (Directive, error) {
	text, err := c.text()
	return Directive{phase: phasePath, text: text}, err
}

// text returns the rule. A request that does not begin with the Prefix keeps its path.
func (c PathChange) text() (string, error) {
	for _, path := range []string{c.Prefix, c.To} {
		if path != "" && !strings.HasPrefix(path, "/") || len(path) > MaxPath {
			return "", fmt.Errorf(`the path %s does not begin with "/", or is longer than %d bytes`, shown(path), MaxPath)
		}
		if strings.ContainsFunc(path, func(c rune) bool { return c <= ' ' || c == 0x7f }) ||
			strings.ContainsAny(path, "?#") {
			return "", fmt.Errorf(`the path %s has a space, a control character, "?" or "#"`, shown(path))
		}
	}
	if c.Prefix == "" {
		if c.To == "" {
			return "", errors.New("the change of a path replaces nothing")
		}
		word, err := quote(Literal(c.To))
		return "http-request set-path " + word, err
	}
	from, to := regexp.QuoteMeta(strings.TrimRight(c.Prefix, "/")), strings.TrimRight(c.To, "/")
	match, rest := "^(?:"+from+")(/.*)?$", `\1`
	if to == "" {
		match, rest = "^(?:"+from+")/?(.*)$", `/\1`
		if from != "" {
			match = "^(?:" + from + ")(?:/(.*))?$" // and not a longer element
		}
	}
	pattern, err1 := quote(match)
	word, err2 := quote(strings.ReplaceAll(Literal(to), `\`, `\\`) + rest)
	return "http-request replace-path " + pattern + " " + word, errors.Join(err1, err2)
}

// A Redirection answers requests with the address of another page. Empty parts, and the query, stay
// as they are in the request.
type Redirection struct {
	Scheme string // http or https
	Host   string
	Port   uint16 // 0 stands for the port of the Scheme, or of the request if Scheme is empty
	Path   PathChange
	Code   int // one of RedirectCodes
}

// Directive returns the rules of a Redirection. The location has no port if it is the usual port of
// its scheme.
func (r Redirection) Directive() (Directive, error) {
	switch {
	case !slices.Contains(RedirectCodes, r.Code):
		return Directive{}, fmt.Errorf("%d is not the status of a redirect: allowed are 301, 302, 303, 307 and 308",
			r.Code)
	case r.Scheme != "" && r.Scheme != "http" && r.Scheme != "https":
		return Directive{}, fmt.Errorf("%s is not a scheme: allowed are http and https", shown(r.Scheme))
	case r.Host != "" && (strings.HasPrefix(r.Host, "*") || !isHost(strings.ToLower(r.Host))):
		return Directive{}, fmt.Errorf("%s is not the name of a host", shown(r.Host))
	}
	var lines []string
	if r.Path != (PathChange{}) {
		text, err := r.Path.text()
		if err != nil {
			return Directive{}, err
		}
		lines = append(lines, text)
	}
	host := r.Host
	if host == "" {
		host = "%[req.hdr(host),host_only]"
	}
	to := func(scheme, port, condition string) {
		lines = append(lines, "http-request redirect location "+scheme+"://"+host+port+"%[pathq] code "+
			strconv.Itoa(r.Code)+condition)
	}
	both := func(condition string, port func(scheme string) string) {
		if r.Scheme != "" {
			to(r.Scheme, port(r.Scheme), ifThat(condition))
			return
		}
		to("https", port("https"), " if { ssl_fc }"+condition)
		to("http", port("http"), " if !{ ssl_fc }"+condition)
	}
	none := func(string) string { return "" }
	switch {
	case r.Port != 0:
		both("", func(scheme string) string {
			if usualPort[scheme] == r.Port {
				return ""
			}
			return ":" + strconv.Itoa(int(r.Port))
		})
	case r.Scheme != "":
		both("", none)
	default:
		to("https", "", " if { ssl_fc } { dst_port 443 }")
		to("http", "", " if !{ ssl_fc } { dst_port 80 }")
		both("", func(string) string { return ":%[dst_port]" })
	}
	return Directive{phase: phaseRedirect, text: strings.Join(lines, "\n")}, nil
}

var usualPort = map[string]uint16{"http": 80, "https": 443}

// failures and retried are the failures and the statuses after which HAProxy can send a request again.
var (
	failures = []string{"conn-failure", "empty-response", "junk-response", "response-timeout"}
	retried  = []string{"401", "403", "404", "408", "425", "500", "501", "502", "503", "504"}
)

// Retry sends GET and HEAD again, up to that many times, if the server sends no answer or an answer
// with one of these statuses. With late, it also does so after "timeout server".
func Retry(attempts int, late bool, statuses []int) (Directive, error) {
	on := failures[:2:2]
	if late {
		on = append(on, "response-timeout")
	}
	for _, status := range statuses {
		if on = append(on, strconv.Itoa(status)); !slices.Contains(retried, on[len(on)-1]) {
			return Directive{}, fmt.Errorf("HAProxy cannot retry after status %d: allowed are %s", status,
				strings.Join(retried, " "))
		}
	}
	return RetryOn(attempts, on)
}

// RetryOn sends a request again, up to that many times, after one of these failures and statuses. A request that a
// server has got is sent again only if it is GET or HEAD. HAProxy keeps the whole request for that, so it sends a
// request that is larger than its buffer (16 kB) only once.
func RetryOn(attempts int, on []string) (Directive, error) {
	for _, word := range on {
		if !slices.Contains(failures, word) && !slices.Contains(retried, word) {
			return Directive{}, fmt.Errorf("HAProxy cannot retry after %s: allowed are %s", shown(word),
				strings.Join(slices.Concat(failures, retried), ", "))
		}
	}
	if attempts < 0 || attempts > 40 || len(on) == 0 {
		return Directive{}, fmt.Errorf("%d retries after %d reasons: allowed are 0 to 40, and at least one reason",
			attempts, len(on))
	}
	return Directive{
		phase: phaseSection,
		text:  "retries " + strconv.Itoa(attempts) + "\nretry-on " + strings.Join(on, " "),
	}, nil
}

// ReplaceCookiePath replaces from, at the beginning of the path of a cookie that a server sets.
func ReplaceCookiePath(from, to string) (Directive, error) {
	for _, path := range []string{from, to} {
		if err := checkCookiePath(path); err != nil {
			return Directive{}, err
		}
	}
	return answerRules(replaceAnswer("Set-Cookie", attribute("path=")+regexp.QuoteMeta(from)+"(.*)$", to)), nil
}

// ReplaceCookieDomain replaces the domain of a cookie that a server sets, if it is from. A dot at its beginning
// stays.
func ReplaceCookieDomain(from, to string) (Directive, error) {
	for _, domain := range []string{from, to} {
		if err := checkCookieDomain(domain); err != nil {
			return Directive{}, err
		}
	}
	from, to = strings.TrimPrefix(from, "."), strings.TrimPrefix(to, ".")
	match := attribute(`domain=\.?`) + "(?i:" + regexp.QuoteMeta(from) + ")(;.*)?$"
	return answerRules(replaceAnswer("Set-Cookie", match, to)), nil
}

// attribute returns an expression for a cookie up to the end of what begins its first attribute like that. Its
// repetition is possessive, because PCRE2 has too little memory for the steps back in a cookie of many attributes.
func attribute(begin string) string {
	return "^((?i:[^;]*(?:;(?! *" + begin + ")[^;]*)*+; *" + begin + "))"
}

// ReplaceLocation replaces from, at the beginning of the URL that an answer of a server leads to (Location, Refresh).
func ReplaceLocation(from, to string) (Directive, error) {
	for _, url := range []string{from, to} {
		if !beginsURL(url) {
			return Directive{}, fmt.Errorf("%s is not the beginning of a URL: allowed are up to 1000 letters, digits "+
				"and / . _ ~ %% + @ : ? & = , -", shown(url))
		}
	}
	match := regexp.QuoteMeta(from) + "(.*)$"
	return answerRules(
		replaceAnswer("Location", "^()"+match, to),
		replaceAnswer("Refresh", "^((?i:(?:(?!url=).)*+url=))"+match, to),
	), nil
}

var beginsURL = matcher(`^[A-Za-z0-9/._~%+@:?&=,-]{1,1000}$`)

// replaceAnswer returns the rule that writes a text between the two groups of an expression that matches a header of
// an answer. Neither text has a quote, and to has no backslash.
func replaceAnswer(header, match, to string) string {
	return "http-response replace-header " + header + " '" + match + `' '\1` + Literal(to) + `\2'`
}

func answerRules(lines ...string) Directive {
	return Directive{phase: phaseAnswer, text: strings.Join(lines, "\n")}
}
