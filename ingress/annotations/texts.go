package annotations

import (
	"errors"
	"fmt"
	"strings"

	"sallyport/haproxy"
)

// Bounds limit the values that an Ingress or a Service sets; 0 is no bound. Values in a ConfigMap
// have no bounds.
type Bounds struct {
	Lines, Entries int // of one annotation
	CaptureBytes   int // of all samples of request-capture
	WrongPasswords int // that are compared in a second, of all Ingresses of a namespace
}

// Env holds everything but its value that the meaning of a key depends on. Each of its
// functions is set.
type Env struct {
	Secrets, ConfigMaps Finder
	// Demanded says which certificates ConfigMaps demand from the clients of all hosts.
	Demanded Clients

	// Allowed returns why objects of a scope may not bring text for a section, or nil if they may.
	Allowed func(Scope, haproxy.Section) error
	// Pattern returns the list of that name, one entry on each line.
	Pattern func(name string) (lines string, has bool)
	// Cluster is the cluster's name. Names of lists begin with it: two clusters may have
	// lists of one name.
	Cluster string
	// Tenant names the namespace of the object, in its cluster.
	Tenant string
	Bounds
	// Namespace is that of the object.
	Namespace string
	// Service returns the backend for requests to a Service that an object names for a purpose. Its error
	// continues a sentence that begins with "auth-url: ".
	Service func(Scope, ServicePort, Purpose) (backend string, err error)
	// Lead leads to the Service that an Ingress names in auth-url by a path of a host.
	Lead Lead
	// Verdict returns HAProxy's answer to a question.
	Verdict func(haproxy.Question) haproxy.Verdict
	// Refusal returns why HAProxy refuses a part, or "" if HAProxy accepts it.
	Refusal func(haproxy.Part) string
	// Backend returns the Backend of HAProxy's own controller that an object names. It returns nil if no
	// custom resource is read.
	Backend func(Scope, Ref) (*Resource, error)
	// Section returns the Global, the Defaults or the Frontend of HAProxy's own controller that the ConfigMap
	// names for a section. It returns nil if no custom resource is read.
	Section func(Kind, haproxy.Section, Ref) (*Section, error)
	// TakenUDP holds the ports that QUIC cannot have, each with its owner.
	TakenUDP map[uint16]string
}

// A Purpose says why HAProxy sends requests to a Service that a key names.
type Purpose int

// The Purposes.
const (
	Checks Purpose = iota // the Service decides about requests (auth-url)
	Copies                // the Service gets copies of requests (mirror-to)
	Pages                 // the Service answers for servers that fail (error-pages)
)

var (
	backendText = defineSnippet(haproxy.BackendSection, Doc{
		Name: "backend-config-snippet", Scopes: everywhere,
		Effect: "Lines added at the end of the backend. On an Ingress or a Service only if `ingress.trust` allows it.",
	})
	frontendText = defineSnippet(haproxy.FrontendSection, Doc{
		Name: "frontend-config-snippet", Scopes: ConfigMap,
		Effect: "Lines added to the frontends for HTTP and HTTPS, after the backend is found (`var(txn.route)`) and " +
			"before it is used.",
	})
	globalText = defineSnippet(haproxy.GlobalSection, Doc{
		Name: "global-config-snippet", Scopes: ConfigMap,
		Effect: "Lines added at the end of section global. Keywords that load code, as `lua-load`, are for " +
			"`haproxy.base` of the configuration file alone.",
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
	Effect: "Format of the log line of a connection of ssl-passthrough or of a TCP service. The ConfigMap of TCP " +
		"services may hold it, too.",
})

// defineSnippet makes a key for lines of a section. The lines may refer to lists.
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
	lines, has := e.Pattern(name)
	if !has {
		return nil, fmt.Errorf("there is no list %s (clusters[].ingress.patternFiles)", Quote(name))
	}
	for line := range strings.Lines(lines) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line != "" {
			entries = append(entries, line)
		}
	}
	return entries, nil
}

// refusal returns why HAProxy refuses a part, or nil if HAProxy accepts it.
func (e Env) refusal(p haproxy.Part) error {
	if why := e.Refusal(p); why != "" {
		return errors.New(why)
	}
	return nil
}

// vetted returns the text of a key; ok reports whether the text may be used. vetted
// adds the question about the text to asked: until HAProxy answers, the text is left
// out.
func vetted(v *values, k key[haproxy.Text], section haproxy.Section,
	asked *[]haproxy.Question,
) (t haproxy.Text, ok bool) {
	t, said := get(v, k)
	if !said {
		return t, false
	}
	return t, judged(v, k.Doc, t, section, asked)
}

// judged reports whether a text may be used: its scope allows it, and HAProxy accepts
// it.
func judged(v *values, d Doc, t haproxy.Text, section haproxy.Section, asked *[]haproxy.Question) bool {
	if err := v.env.Allowed(v.scopeOf(d.Name), section); err != nil {
		v.wrong(d, err)
		return false
	}
	return v.granted(d, t.Question(), asked, "")
}

// granted reports whether HAProxy has answered a question as a key needs it. It reports another answer, with words
// before those of HAProxy.
func (v *values) granted(d Doc, q haproxy.Question, asked *[]haproxy.Question, words string) bool {
	verdict := v.ask(q, asked)
	if verdict.Why != "" {
		v.wrong(d, errors.New(words+verdict.Why))
	}
	return verdict == haproxy.Good
}

// ask adds a question to asked, and returns HAProxy's answer.
func (v *values) ask(q haproxy.Question, asked *[]haproxy.Question) haproxy.Verdict {
	*asked = append(*asked, q)
	return v.env.Verdict(q)
}

var routeACL = defineIn(func(e Env, _ Scope, s string) (haproxy.Text, error) {
	return haproxy.Condition(s, e.entries)
}, Doc{
	Name: "route-acl", Scopes: Service, Refers: ListKind,
	Format: "a condition as HAProxy's `acl` has it: `cookie(beta) -m found`, `src -f patterns/NAME`", Guard: true,
	Effect: "Requests that match a path to the Service go there only if the condition holds. Otherwise they are " +
		"routed as if the path were not there: to another path of the namespace for the same, or to a shorter one. " +
		"Allowed only by `ingress.trust`, and not with regular expressions as paths.",
})

// A Condition decides which of the requests that match a path to a Service go to the
// Service.
type Condition struct {
	Text   haproxy.Text
	Usable bool               // the text may be used; if not, no request goes there
	Asked  []haproxy.Question // that HAProxy has to answer
}

// Conditional reports whether a Service takes only some of the requests that lead
// to it.
func Conditional(l Layer) bool {
	_, said := l.Values[routeACL.Name]
	return said
}

// RouteACL returns the condition that a Service sets for its requests (route-acl), which
// Conditional reports.
func RouteACL(env Env, l Layer) (c Condition, problems []Problem) {
	v := &values{layers: []Layer{l}, env: env}
	var ok bool
	if c.Text, ok = get(v, routeACL); ok {
		c.Usable = judged(v, routeACL.Doc, c.Text, haproxy.FrontendSection, &c.Asked)
	}
	return c, v.problems
}
