package haproxy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// An FCGI makes the servers of a backend speak FastCGI. It needs a HAProxy with FCGISupport. It
// overrides ServerOptions.Proto.
type FCGI struct {
	Root   string      // the directory of the scripts at the servers (DOCUMENT_ROOT)
	Index  string      // the script for a path that ends in "/"; empty if there is none
	Params []FCGIParam // sorted by Name, each once; they override HAProxy's own parameters
}

// An FCGIParam is a parameter of FastCGI. Servers do not see the request header that has the same name there: the
// header X-Name is HTTP_X_NAME. Without a value, HAProxy does not send the parameter, or sends its own one.
type FCGIParam struct {
	Name  string
	Value string // it may hold "%[...]", FCGIScript and FCGIURI
}

// These stand in the Value of an FCGIParam for the path of the script (SCRIPT_NAME), and for the URI that the client
// sent (REQUEST_URI).
const (
	FCGIScript = "%[fcgi.script]"
	FCGIURI    = "%[fcgi.uri]"
)

// HAProxy rejects a backend that speaks FastCGI and has no server. This server is there while no endpoint is. It
// never takes a request.
const (
	fcgiServer = "_fcgi"
	fcgiLine   = "server " + fcgiServer + " 127.0.0.1:1 proto fcgi disabled"
)

// Variables of a request.
const (
	fcgiScript = "txn.fcgi_script"
	fcgiURI    = "txn.fcgi_uri"
	fcgiParam  = "txn.fcgi_param_"
)

var (
	fcgiRoot  = matcher(`^/[A-Za-z0-9/._~+@:-]{0,250}$`)
	fcgiIndex = matcher(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,100}$`)
	fcgiName  = matcher(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`)
)

// CheckFCGIRoot returns an error if a directory cannot be the Root of an FCGI.
func CheckFCGIRoot(dir string) error {
	if !fcgiRoot(dir) {
		return fmt.Errorf("%s is not a directory: allowed are a / and up to 250 letters, digits and / . _ ~ + @ : -",
			shown(dir))
	}
	return nil
}

// CheckFCGIIndex returns an error if a name cannot be the Index of an FCGI.
func CheckFCGIIndex(name string) error {
	if !fcgiIndex(name) {
		return fmt.Errorf("%s is not the name of a file: allowed are letters, digits and - _ .", shown(name))
	}
	return nil
}

// Check returns an error if an FCGI cannot have the parameter.
func (p FCGIParam) Check() error {
	_, err := p.text()
	return err
}

// text returns the value as one word.
func (p FCGIParam) text() (string, error) {
	if !fcgiName(p.Name) {
		return "", fmt.Errorf("%s is not the name of a parameter: allowed are up to 64 letters, digits and _",
			shown(p.Name))
	}
	// A value goes through format without the two names, which it does not know.
	const longest = 1024
	if len(p.Value) > longest {
		return "", fmt.Errorf("it has %d bytes; allowed are %d", len(p.Value), longest)
	}
	parts := strings.Split(p.Value, FCGIScript)
	for i, part := range parts {
		for one := range strings.SplitSeq(part, FCGIURI) {
			if _, err := format(inRequest, one); err != nil {
				return "", err
			}
		}
		parts[i] = strings.ReplaceAll(part, FCGIURI, "%[var("+fcgiURI+")]")
	}
	return quote(strings.Join(parts, "%[var("+fcgiScript+")]"))
}

// Directives returns the directives of the backend. A request with a path that leads out of the Root, or with a
// control character in its path, is answered 400.
func (f FCGI) Directives() ([]Directive, error) {
	if err := CheckFCGIRoot(f.Root); err != nil {
		return nil, err
	}
	script := "path,url_dec"
	app := []string{"  docroot " + f.Root}
	if f.Index != "" {
		if err := CheckFCGIIndex(f.Index); err != nil {
			return nil, err
		}
		script += ",regsub(/$,/" + f.Index + ")"
		app = append(app, "  index "+f.Index)
	}
	rules := []string{
		`http-request deny deny_status 400 if { path -m sub %00 } or { path,url_dec -m reg ` +
			`'(^|/)\.\.?(/|$)|[[:cntrl:]]' }`,
		"http-request set-var(" + fcgiScript + ") '" + script + "'",
	}
	for _, p := range f.Params {
		word, err := p.text()
		if err != nil {
			return nil, fmt.Errorf("parameter %s: %w", shown(p.Name), err)
		}
		if header, is := strings.CutPrefix(strings.ToUpper(p.Name), "HTTP_"); is && header != "" {
			rules = append(rules, "http-request del-header '(?i)^"+strings.ReplaceAll(header, "_", "[-_.]")+"$' -m reg")
		}
		if p.Value == "" {
			continue
		}
		// HAProxy ends at the first request if a set-param has a converter with a regular expression. The rule
		// evaluates the value, and the section has a variable alone.
		rules = append(rules, "http-request set-var-fmt("+fcgiParam+p.Name+") "+word)
		app = append(app, "  set-param "+p.Name+" %[var("+fcgiParam+p.Name+")]")
	}
	section := strings.Join(app, "\n") + "\n"
	sum := sha256.Sum256([]byte(section))
	name := "fcgi-" + hex.EncodeToString(sum[:8])
	return []Directive{
		{
			phase: phaseSection, app: "\nfcgi-app " + name + "\n" + section,
			text: "use-fcgi-app " + name + "\n" + fcgiLine,
		},
		{phase: phaseSource, text: "http-request set-var(" + fcgiURI + ") pathq"},
		{phase: phaseScript, text: strings.Join(rules, "\n")},
	}, nil
}

// FCGISupport asks whether an FCGI is safe with HAProxy. Versions before 3.0 may end when a server sends the headers
// of its answer in parts (HAProxy's issue 2150). All tenants share one HAProxy.
func FCGISupport() Question {
	return Question{text: Text{GlobalSection, ".if !version_atleast(3.0)\n.alert 'it is before 3.0'\n.endif"}}
}

// fastCGI reports whether the servers of a backend speak FastCGI.
func (b *Backend) fastCGI() bool { return HasFCGI(b.Directives) }

// HasFCGI reports whether one of the directives is of an FCGI.
func HasFCGI(list []Directive) bool {
	return slices.ContainsFunc(list, func(d Directive) bool { return d.app != "" })
}

// Filters reports whether a Directive is a filter, as a Mirror and a LimitRate are. HAProxy before 3.4 rejects a
// backend that has one beside an FCGI.
func (d Directive) Filters() bool { return d.phase == phaseMirror || d.phase == phaseRate }

// appsText returns the sections that the FCGIs of backends name, each once.
func appsText(backends []*Backend) string {
	apps := make(map[string]bool)
	for _, b := range backends {
		for _, d := range b.Directives {
			if d.app != "" {
				apps[d.app] = true
			}
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(apps)), "")
}
