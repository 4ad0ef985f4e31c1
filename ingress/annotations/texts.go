package annotations

import (
	"errors"
	"fmt"
	"strings"

	"sallyport/haproxy"
)

// Env is what the meaning of keys depends on beside their values.
type Env struct {
	Secrets Secrets
	// Demanded is what ConfigMaps ask of the clients of all hosts.
	Demanded Clients

	// Allowed says why text for a section may not come from there; nil: it may.
	Allowed func(Scope, haproxy.Section) error
	// Pattern is the list of that name, with an entry a line.
	Pattern func(name string) (lines string, has bool)
	// Cluster is the cluster's name: lists of two clusters may have the same one.
	Cluster string
	// Lines and Entries are how many lines, and how many networks, an annotation
	// may have; 0 is no bound. Those of a ConfigMap have none.
	Lines, Entries int
	// Service is the backend through which a Service is asked that an object
	// names. An error is what follows "auth-url: ".
	Service func(Scope, ServicePort) (backend string, err error)
	// Verdict returns HAProxy's answer to a question. Nil: it was not asked any.
	Verdict func(haproxy.Question) haproxy.Verdict
	// Refusal is what HAProxy was found to have against a part; empty: nothing.
	// Nil: it was not asked about any.
	Refusal func(haproxy.Part) string
	// TakenUDP are the ports that QUIC cannot have, and whose they are.
	TakenUDP map[uint16]string
}

var (
	backendText = defineSnippet(haproxy.BackendSection, Doc{
		Name: "backend-config-snippet", Scopes: everywhere,
		Effect: "Lines added at the end of the backend. On an Ingress or a Service only if `ingress.trust` allows it.",
	})
	frontendText = defineSnippet(haproxy.FrontendSection, Doc{
		Name: "frontend-config-snippet", Scopes: ConfigMap,
		Effect: "Lines added to the frontends for HTTP and HTTPS, after the backend is found (`var(txn.route)`) and before it is used.",
	})
	globalText = defineSnippet(haproxy.GlobalSection, Doc{
		Name: "global-config-snippet", Scopes: ConfigMap,
		Effect: "Lines added at the end of section global. Keywords that load code, as `lua-load`, are for `haproxy.base` of the configuration file alone.",
	})
	_ = define(func(s string) (string, error) { return s, nil }, Doc{
		Name: "stats-config-snippet", Scopes: ConfigMap, Format: "lines of HAProxy's configuration",
		Effect: "No effect: there is no frontend for statistics; see the status endpoint.",
	})
	logFormat = define(logFormatText, Doc{
		Name: "log-format", Scopes: ConfigMap, Format: "log-format string of HAProxy",
		Effect: "Format of the log line of a request (syslog-server).",
	})
)

var logFormatTCP = define(func(s string) (haproxy.Text, error) { return haproxy.StreamLogFormat(unquote(s)) }, Doc{
	Name: "log-format-tcp", Scopes: ConfigMap, Format: "log-format string of HAProxy",
	Effect: "Format of the log line of a connection of ssl-passthrough or of a TCP service. The ConfigMap of TCP services may hold it, too.",
})

// defineSnippet makes a key whose value is lines for a section, which may refer to
// lists.
func defineSnippet(section haproxy.Section, d Doc) key[haproxy.Text] {
	d.Refers, d.Format = ListKind, "lines of HAProxy's configuration"
	d.Effect += " A line must not begin with `" + strings.Join(haproxy.Reserved(section), "`, `") + "`."
	return defineIn(func(e Env, _ Scope, s string) (haproxy.Text, error) {
		s, err := haproxy.FillIn(s, e.entries)
		if err != nil {
			return haproxy.Text{}, err
		}
		return haproxy.ParseText(section, s)
	}, d)
}

func logFormatText(s string) (haproxy.Text, error) { return haproxy.LogFormat(unquote(s)) }

// listed returns the name in "patterns/NAME". HAProxy's own controller also documents
// "pattern/NAME".
func listed(text string) (name string, is bool) {
	if name, is = strings.CutPrefix(text, "patterns/"); !is {
		name, is = strings.CutPrefix(text, "pattern/")
	}
	return name, is
}

// entries returns the entries of a list.
func (e Env) entries(name string) (entries []string, err error) {
	lines, has := "", false
	if e.Pattern != nil {
		lines, has = e.Pattern(name)
	}
	if !has {
		return nil, fmt.Errorf("there is no list %s (clusters[].ingress.patternFiles)", quote(name))
	}
	for line := range strings.Lines(lines) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line != "" {
			entries = append(entries, line)
		}
	}
	return entries, nil
}

// refusal returns what HAProxy was found to have against a part.
func (e Env) refusal(p haproxy.Part) error {
	if e.Refusal != nil {
		if why := e.Refusal(p); why != "" {
			return errors.New(why)
		}
	}
	return nil
}

// vetted returns the text of a key; ok reports whether it may be used. Asked gets the
// question about it: without an answer the text is left out for now.
func vetted(v *values, k key[haproxy.Text], section haproxy.Section, asked *[]haproxy.Question) (t haproxy.Text, ok bool) {
	t, said := get(v, k)
	if !said {
		return t, false
	}
	return t, judged(v, k.Doc, t, v.scopeOf(k.Name), section, asked)
}

// judged reports whether a text may be used.
func judged(v *values, d Doc, t haproxy.Text, scope Scope, section haproxy.Section, asked *[]haproxy.Question) bool {
	if v.env.Allowed != nil {
		if err := v.env.Allowed(scope, section); err != nil {
			v.fault(d, scope, err)
			return false
		}
	}
	verdict := v.ask(t.Question(), asked)
	if verdict.Why != "" {
		v.fault(d, scope, errors.New(verdict.Why))
	}
	return verdict == haproxy.Good
}

// ask returns the answer to a question, which it notes in asked.
func (v *values) ask(q haproxy.Question, asked *[]haproxy.Question) haproxy.Verdict {
	*asked = append(*asked, q)
	if v.env.Verdict == nil {
		return haproxy.Verdict{}
	}
	return v.env.Verdict(q)
}

var routeACL = defineIn(func(e Env, _ Scope, s string) (haproxy.Text, error) { return haproxy.Condition(s, e.entries) }, Doc{
	Name: "route-acl", Scopes: Service, Refers: ListKind, Format: "a condition as HAProxy's `acl` has it: `cookie(beta) -m found`, `src -f patterns/NAME`", Guard: true,
	Effect: "Requests that match a path to the Service go there only if the condition holds. Otherwise they are routed as if the path were not there: to another path of the namespace for the same, or to a shorter one. Allowed only by `ingress.trust`, and not with regular expressions as paths.",
})

// A Condition says when requests that lead to a Service go there.
type Condition struct {
	Text   haproxy.Text
	Usable bool               // it may be used; else they never go there
	Asked  []haproxy.Question // that HAProxy has to answer
}

// Conditional reports whether a Service takes only some of the requests that lead
// to it.
func Conditional(l Layer) bool {
	_, said := l.Values[routeACL.Name]
	return said
}

// RouteACL is what a Service says of the requests that lead to it; said is false
// if it takes them all.
func RouteACL(env Env, l Layer) (c Condition, said bool, problems []Problem) {
	if said = Conditional(l); !said {
		return c, false, nil
	}
	v := &values{layers: []Layer{l}, env: env}
	var ok bool
	if c.Text, ok = get(v, routeACL); ok {
		c.Usable = judged(v, routeACL.Doc, c.Text, l.Scope, haproxy.FrontendSection, &c.Asked)
	}
	return c, true, v.problems
}
