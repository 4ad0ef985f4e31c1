package haproxy

import (
	"cmp"
	_ "embed"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

//go:embed auth.lua
var authLua []byte

// authScript is the name of the Extra that a configuration with an Ask or a Page needs.
const authScript = "auth.lua"

// AskScript returns the Extra that a configuration with an Ask or a Page needs.
func AskScript() *Extra { return &Extra{authScript, authLua} }

// LuaSupport asks whether HAProxy is built with Lua, which an Ask needs.
func LuaSupport() Question { return Question{text: Text{GlobalSection, "tune.lua.maxmem 0"}} }

// An Ask lets a service decide about each request. If the service answers 2xx, the request goes on.
// If it answers 401, 403 or a redirect, the client gets that answer. With any other answer, or
// without an answer, the client gets 503.
//
// HAProxy reaches the service through an ordinary backend. It reads only the head of the answer.
type Ask struct {
	Backend string      // name of the service's backend
	Host    string      // Host header of the request to the service; it may be HostOfRequest
	Method  string      // if it is empty, the method of the client's request
	Path    string      // path of the request to the service, with a query if there is one
	Pass    []string    // headers of the client's request to pass to the service; nil stands for all
	Succeed []string    // headers of the service's answer that replace those of the request to the servers
	Fail    []string    // headers of the service's answer to pass to the client; nil stands for all
	Set     []AskHeader // headers of the request to the service
	SignIn  string      // URL to redirect to in place of an answer of 401; empty turns this off
	Any     bool        // a request that has passed another guard is not asked about, see Admit
}

// An AskHeader is a header of the request to the service, in place of those of the client's request that
// differ only in "-", "_" and ".". HAProxy fills in the parts of its value. The service sees no header without
// a value. A request for which the value has a control character is rejected.
type AskHeader struct{ Name, Value string }

// HostOfRequest stands for the host of the client's request, in lower case and without a port.
const HostOfRequest = "*"

// Directive returns the rules of an Ask. If the script fails, the request is rejected.
func (a Ask) Directive() (Directive, error) {
	switch {
	case !isName(a.Backend) || a.Host != HostOfRequest && !isHost(a.Host):
		return Directive{}, fmt.Errorf(
			"authentication service %s with the host %s: allowed are the name of a backend and a DNS name",
			shown(a.Backend), shown(a.Host))
	case a.Method != "" && !token(a.Method):
		return Directive{}, fmt.Errorf("%s is not an HTTP method: allowed are letters, digits and - _ .",
			shown(a.Method))
	case !askPath(a.Path):
		return Directive{}, fmt.Errorf("%s is not a path: allowed are a / and up to 1000 printable characters after it",
			shown(a.Path))
	}
	target, err := quote(a.Path)
	if err != nil {
		return Directive{}, err
	}
	set, variables, err := a.set()
	if err != nil {
		return Directive{}, err
	}
	lines := []string{strings.Join([]string{
		"http-request lua.sallyport_ask", a.Backend, a.Host, cmp.Or(a.Method, "*"),
		target,
	}, " ")}
	for _, list := range []struct {
		names []string
		none  string
	}{{a.Pass, "*"}, {a.Succeed, "-"}, {a.Fail, "*"}} {
		for _, name := range list.names {
			if !token(name) {
				return Directive{}, notAHeader(name)
			}
		}
		lines[0] += " " + cmp.Or(strings.ToLower(strings.Join(list.names, ",")), list.none)
	}
	unless, also := "", ""
	if a.Any {
		unless, also = " if"+unsatisfied, unsatisfied
	}
	if a.SignIn == "" {
		lines[0] += " - " + set + unless
	} else {
		to, err := format(inRequest, a.SignIn)
		if err != nil {
			return Directive{}, err
		}
		lines[0] += " signin " + set + unless
		lines = append(lines, "http-request redirect location "+to+
			" code 302 if { var(txn.sallyport_auth) -m str signin }")
	}
	lines = append(lines, "http-response lua.sallyport_cookies if { var(txn.sallyport_cookies) -m found }",
		answer(503, "the authentication service gives no answer",
			" if !{ var(txn.sallyport_auth) -m str yes }"+also))
	return Directive{phase: phaseAsk, text: strings.Join(append(variables, lines...), "\n")}, nil
}

// set returns the names of the headers in Set as the script reads them, and the lines that set the variables with
// their values.
func (a Ask) set() (list string, variables []string, err error) {
	var names []string
	for i, h := range a.Set {
		name := strings.ToLower(h.Name)
		if !token(name) {
			return "", nil, notAHeader(h.Name)
		}
		if folded := separator.ReplaceAllString(name, "-"); strings.HasPrefix(folded, "x-sallyport-") ||
			slices.Contains(ofConnections, folded) {
			return "", nil, fmt.Errorf("the header %s is set by HAProxy", shown(h.Name))
		}
		value, err := format(inRequest, h.Value)
		if err != nil {
			return "", nil, err
		}
		names = append(names, name)
		variables = append(variables, "http-request set-var-fmt(txn.sallyport_ask"+strconv.Itoa(i)+") "+value)
	}
	return cmp.Or(strings.Join(names, ","), "-"), variables, nil
}

// ofConnections are the headers that the script sends by itself, or that concern the connection.
var ofConnections = []string{
	"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "content-length",
	"expect", "host",
}

var askPath = matcher(`^/[!"$-~]{0,1000}$`)

// asks reports whether a configuration has an Ask or a Page.
func (s *Shape) asks() bool {
	return slices.ContainsFunc(s.Extras, func(e *Extra) bool { return e.Name == authScript })
}

// scriptSocket returns the address where HAProxy accepts the requests of a script. It is abstract, as
// that of passage.
func (h *head) scriptSocket(name string) string {
	return "abns@" + path.Dir(h.opt.StatsSocket) + "/" + name
}

// writeAsking writes the frontend that leads the script's requests to their backends. A client of
// this frontend can reach any backend, so it has to know the secret.
func (h *head) writeAsking() {
	h.section("frontend sallyport-auth")
	h.line("bind", h.scriptSocket("ask"))
	h.line("no log")
	h.line("http-request deny if !{ req.hdr(x-sallyport-secret) -m str", h.opt.Secret, "}")
	h.line("http-request del-header x-sallyport-secret")
	h.line("http-request set-var(txn.backend) req.hdr(x-sallyport-backend)")
	h.line("http-request del-header x-sallyport-backend")
	h.line("http-response set-header x-sallyport-answer yes") // it tells a server's answer from one of HAProxy
	h.line("use_backend %[var(txn.backend)]")
	h.line("default_backend", nowhere)
}
