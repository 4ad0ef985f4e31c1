package haproxy

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

//go:embed mirror.lua
var mirrorLua []byte

// mirrorScript is the name of the Extra that a configuration with a Mirror needs.
const mirrorScript = "mirror.lua"

// MirrorScript returns the Extra that a configuration with a Mirror needs.
func MirrorScript() *Extra { return &Extra{mirrorScript, mirrorLua} }

// A Copy says where copies of requests go. A script of HAProxy sends them, and ignores the answers.
// The copies reach an ordinary backend, so its servers get them only while they are open.
type Copy struct {
	Backend string // the name of a backend, whose directives begin with those of CopyTarget
	Tenant  string // the namespace whose requests are copied, with its cluster; each has a bound
	Part    int    // how many of Of requests are copied, by chance
	Of      int
}

const (
	// MaxCopies is the largest number of copies of one request.
	MaxCopies = 4
	// mostCopies bounds the copies under way in a process. Each takes as much as a client's connection.
	mostCopies = 256
)

// Mirror sends copies of requests to other backends. The request itself never waits for a copy. The
// script copies no request with a body of more than 16 kB, and none that asks for another protocol.
func Mirror(copies []Copy) (Directive, error) {
	if len(copies) < 1 || len(copies) > MaxCopies {
		return Directive{}, fmt.Errorf("%d copies of a request; allowed are 1 to %d", len(copies), MaxCopies)
	}
	lines := []string{
		"filter lua.sallyport_mirror",
		"http-request set-var(txn.copy_path) pathq",
		"http-request set-var(txn.copy_from) src",
	}
	for i, c := range copies {
		switch {
		case !isName(c.Backend):
			return Directive{}, notAName("backend of a copy", c.Backend)
		case !tenantOfCopies(c.Tenant):
			return Directive{}, fmt.Errorf("%s is not CLUSTER/NAMESPACE", shown(c.Tenant))
		case c.Of < 1 || c.Part < 0 || c.Part > c.Of:
			return Directive{}, fmt.Errorf("copies of %d of %d requests; allowed are 0 of 1 to all", c.Part, c.Of)
		}
		rule := "http-request set-var(txn.copy" + strconv.Itoa(i) + ") str(" + c.Tenant + ":" + c.Backend + ")"
		if c.Part < c.Of {
			rule += " if { rand(" + strconv.Itoa(c.Of) + ") lt " + strconv.Itoa(c.Part) + " }"
		}
		lines = append(lines, rule)
	}
	return Directive{phase: phaseMirror, text: strings.Join(lines, "\n")}, nil
}

// CopyAs changes the copies of requests: to another host, to another path, and without their bodies. An empty host or
// path stays as servers see it. The path may have parts that HAProxy fills in, from the request of the client.
func CopyAs(host, path string, bare bool) (Directive, error) {
	var lines []string
	if host != "" {
		if !isAuthority(host) {
			return Directive{}, fmt.Errorf("%s is not HOST or HOST:PORT", shown(host))
		}
		lines = append(lines, "http-request set-var(txn.copy_host) str("+host+")")
	}
	if path != "" {
		word, err := format(inRequest, path)
		if err != nil {
			return Directive{}, err
		}
		lines = append(lines, "http-request set-var-fmt(txn.copy_to) "+word)
	}
	if bare {
		lines = append(lines, "http-request set-var(txn.copy_bare) bool(true)")
	}
	return Directive{phase: phaseCapture, text: strings.Join(lines, "\n")}, nil
}

var tenantOfCopies = matcher(`^[a-z0-9-]*/[a-z0-9-]{1,63}$`)

// CopyTarget returns the directives of a backend for copies. A server that does not answer holds
// them for a few seconds.
func CopyTarget() []Directive {
	return []Directive{
		Timeout("server", 5*time.Second), Option("abortonclose", true), {phase: phaseSection, text: "retries 1"},
	}
}

// mirrors reports whether a configuration has a Mirror.
func (s *Shape) mirrors() bool {
	return slices.ContainsFunc(s.Extras, func(e *Extra) bool { return e.Name == mirrorScript })
}

// writeMirrors writes the frontend that leads the copies to their backends. To the rules of such a
// backend, a copy comes from the client of the request. A client of this frontend can reach any
// backend, so it has to know the secret.
func (h *head) writeMirrors() {
	h.section("frontend sallyport-mirror")
	h.line("bind", h.scriptSocket("mirror"))
	h.line("maxconn", strconv.Itoa(mostCopies))
	h.line("no log")
	h.line("http-request deny if !{ req.hdr(x-sallyport-secret) -m str", h.opt.Secret, "}")
	h.line("http-request set-src req.hdr(x-sallyport-source)")
	h.line("http-request set-var(txn.backend) req.hdr(x-sallyport-backend)")
	for _, name := range []string{"secret", "source", "backend"} {
		h.line("http-request del-header x-sallyport-" + name)
	}
	h.line("use_backend %[var(txn.backend)]")
	h.line("default_backend", nowhere)
}
