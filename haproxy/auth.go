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

// authScript is the name of the Extra that a configuration with an Ask needs.
const authScript = "auth.lua"

// AskScript makes the Extra that a configuration with an Ask needs.
func AskScript() *Extra { return &Extra{authScript, authLua} }

// LuaSupport asks whether HAProxy is built with Lua, which an Ask needs.
func LuaSupport() Question { return Question{text: Text{GlobalSection, "tune.lua.maxmem 0"}} }

// An Ask lets a service say of each request whether it may go on: with a status
// of 2xx it may. 401, 403 and redirects are what the client is answered, and
// anything else is 503: the service is not well, or not there.
//
// HAProxy reaches the service through a backend like any other, whose servers open
// and close like any others. It reads the head of the answer, and not its body.
type Ask struct {
	Backend string   // where the service is
	Host    string   // in the request to it
	Method  string   // empty: that of the request
	Path    string   // of the request to it, with a query if there is one
	Pass    []string // headers of the request that it sees; nil: all
	Succeed []string // headers of its answer that the servers see; those of the client never do
	Fail    []string // headers of its answer that the client sees; nil: all
	SignIn  string   // URL to redirect to instead of answering 401; empty: none
}

// Directive returns the rules of an Ask. If the script fails, the request goes no
// further.
func (a Ask) Directive() (Directive, error) {
	switch {
	case !isName(a.Backend) || !isHost(a.Host):
		return Directive{}, fmt.Errorf("%q as %q cannot be asked", clip(a.Backend), clip(a.Host))
	case a.Method != "" && !token(a.Method):
		return Directive{}, fmt.Errorf("%s is not an HTTP method", strconv.QuoteToASCII(clip(a.Method)))
	case !askPath(a.Path):
		return Directive{}, fmt.Errorf("%s is not a path", strconv.QuoteToASCII(clip(a.Path)))
	}
	target, err := quote(a.Path)
	if err != nil {
		return Directive{}, err
	}
	lines := []string{strings.Join([]string{"http-request lua.sallyport_ask", a.Backend, a.Host, cmp.Or(a.Method, "*"), target}, " ")}
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
	if a.SignIn == "" {
		lines[0] += " -"
	} else {
		to, err := format(inRequest, a.SignIn)
		if err != nil {
			return Directive{}, err
		}
		lines[0] += " signin"
		lines = append(lines, "http-request redirect location "+to+" code 302 if { var(txn.sallyport_auth) -m str signin }")
	}
	lines = append(lines, answer(503, "who may come in cannot be asked", " if !{ var(txn.sallyport_auth) -m str yes }"))
	return Directive{phase: phaseAsk, text: strings.Join(lines, "\n")}, nil
}

var askPath = matcher(`^/[!"$-~]{0,1000}$`)

// asks reports whether a configuration has an Ask.
func (s *Shape) asks() bool {
	return slices.ContainsFunc(s.Extras, func(e *Extra) bool { return e.Name == authScript })
}

// askSocket returns the address at which HAProxy hears from its script. It is like
// that of passage.
func (h *head) askSocket() string { return "abns@" + path.Dir(h.opt.StatsSocket) + "/ask" }

// writeAsking writes the frontend that leads the script's requests to their backends.
// The secret keeps everybody else out, who could reach any backend from here.
func (h *head) writeAsking() {
	h.section("frontend sallyport-auth")
	h.line("bind", h.askSocket())
	h.line("no log")
	h.line("http-request deny if !{ req.hdr(x-sallyport-secret) -m str", h.opt.Secret, "}")
	h.line("http-request del-header x-sallyport-secret")
	h.line("http-request set-var(txn.backend) req.hdr(x-sallyport-backend)")
	h.line("http-request del-header x-sallyport-backend")
	h.line("use_backend %[var(txn.backend)]")
	h.line("default_backend", nowhere)
}
