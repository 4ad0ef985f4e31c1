package parity

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"sallyport/appliance/accesslog"
	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/ingress/annotations"
)

// A Code says how a request is answered here.
type Code string

// The Codes.
const (
	Served   Code = "served"          // by a server, which decides about the status
	NotFound Code = "not-found"       // no rule takes it
	ToHTTPS  Code = "to-https"        // plain HTTP is redirected
	Redirect Code = "redirect"        // a key redirects it
	Closed   Code = "closed"          // all clients of the path are rejected
	Denied   Code = "denied"          // the address of the client is in a deny list, or in no allow list
	Password Code = "needs-password"  // a password is asked for
	Another  Code = "another-service" // by a server of another Service than before
)

// An answer is the answer of the routing to the requests that one Route takes.
type answer struct {
	rule        string // HOST PATH, for people
	ingress     string // NAMESPACE/NAME
	backend     string
	services    [][2]string // namespaces and names of the Services that the requests may go to
	tls         int         // the status of the redirect of plain HTTP; 0 if plain HTTP is served
	closed      bool        // all clients are rejected
	password    bool        // HTTP Basic
	redirect    int         // the status of a redirect for each path; 0 if there is none
	root        bool        // "/" is redirected
	allow, deny []netip.Prefix
	status      int // of a Route without a backend
}

// Bounds of a judge. A request beyond one is decided anew, and not remembered.
const (
	maxRemembered = 1 << 15
	maxKey        = 512 // bytes of the host and the path of a request that is remembered
)

// A judge decides requests.
type judge struct {
	result  ingress.Result
	service map[string]string // by the name of the backend
	finder  *haproxy.Finder
	routes  map[haproxy.Route]*answer
	request map[string]*answer // by host and path
	nowhere *answer
}

func newJudge(r ingress.Result) *judge {
	j := &judge{
		result: r, finder: r.Config.Finder(), routes: map[haproxy.Route]*answer{}, request: map[string]*answer{},
		nowhere: &answer{rule: "-", status: 404}, service: make(map[string]string, len(r.Config.Backends)),
	}
	for _, b := range r.Config.Backends {
		j.service[b.Name] = b.Service
	}
	if r.Config.DefaultBackend != "" {
		j.nowhere.status, j.nowhere.backend = 0, r.Config.DefaultBackend
	}
	return j
}

// find returns the answer to the requests for a host and a path.
func (j *judge) find(host, path string) *answer {
	key := host + path
	if a := j.request[key]; a != nil {
		return a
	}
	a := j.look(host, path)
	if len(key) <= maxKey {
		if len(j.request) == maxRemembered {
			clear(j.request)
		}
		j.request[strings.Clone(key)] = a
	}
	return a
}

func (j *judge) look(host, path string) *answer {
	route, _ := j.finder.Find(host, path)
	if route.Path == "" {
		return j.nowhere
	}
	a := j.routes[route]
	if a == nil {
		a = j.explained(route, host, path)
		j.routes[route] = a
	}
	return a
}

// explained returns the answer to the requests that a Route takes.
func (j *judge) explained(route haproxy.Route, host, path string) *answer {
	e, _ := j.result.ExplainRequest(host, path)
	a := &answer{rule: cmp.Or(route.Host, "any host") + " " + route.Path, backend: route.Backend}
	if e.Ingress.Name != "" {
		a.ingress = e.Ingress.Namespace + "/" + e.Ingress.Name
	}
	if route.TLSOnly {
		a.tls = cmp.Or(route.TLSCode, 302)
	}
	switch route.Backend {
	case "":
		a.status = 404
	case haproxy.WWW:
		a.redirect = 308
	}
	closed := haproxy.Close().String()
	for _, b := range e.Backends {
		if namespace, service, is := strings.Cut(j.service[b.Name], "/"); is {
			service, _, _ = strings.Cut(service, ":")
			a.services = append(a.services, [2]string{namespace, service})
		}
		if b.Name != route.Backend || route.Choice != "" || route.Canary != "" {
			continue // other requests may go elsewhere
		}
		a.closed = slices.Contains(b.Directives, closed)
		a.keys(b)
	}
	return a
}

// keys reads the keys in effect that decide without a server. A list that a pattern file has counts as none.
func (a *answer) keys(b ingress.ExplainedBackend) {
	code := 302
	for _, k := range b.Keys {
		if k.Key == "request-redirect-code" {
			code, _ = strconv.Atoi(k.Value)
		}
	}
	for _, k := range b.Keys {
		switch strings.TrimPrefix(k.Key, "sallyport.dev/") {
		case "allow-list":
			a.allow, _ = annotations.Networks(k.Value)
		case "deny-list":
			a.deny, _ = annotations.Networks(k.Value)
		case "auth-type":
			a.password = k.Value != "none"
		case "redirect-to", "request-redirect":
			a.redirect = code
		case "app-root":
			a.root = true
		}
	}
}

// to returns the Code and the status of the answer to a request. The status is 0 if a server decides.
func (a *answer) to(l *accesslog.Line) (Code, int) {
	has := func(p netip.Prefix) bool { return p.Contains(l.Client) }
	out := slices.ContainsFunc(a.deny, has) || len(a.allow) > 0 && !slices.ContainsFunc(a.allow, has)
	plain := l.Scheme == accesslog.HTTP || l.Scheme == accesslog.AnyScheme && redirected(l.Status)
	switch {
	case a.status != 0:
		return NotFound, a.status
	case a.tls != 0 && plain:
		return ToHTTPS, a.tls
	case a.closed:
		return Closed, 503
	case l.Client.IsValid() && out:
		return Denied, 403
	case a.password && l.User == "":
		return Password, 401
	case a.redirect != 0:
		return Redirect, a.redirect
	case a.root && l.Path == "/":
		return Redirect, 302
	case !l.Own && len(a.services) > 0 && !slices.ContainsFunc(a.services, func(s [2]string) bool {
		return l.MayReach(s[0], s[1])
	}):
		return Another, 0
	}
	return Served, 0
}

func redirected(status int) bool {
	return status == 301 || status == 302 || status == 303 || status == 307 || status == 308
}

// gone reports whether the client left before an answer, or its request was no HTTP. Such a line says
// nothing about the routing.
func gone(status int) bool {
	return status == -1 || status == 400 || status == 408 || status == 414 || status == 431 || status == 499
}

// same reports whether an answer is of the kind that the log has.
func same(code Code, status int, l *accesslog.Line) bool {
	switch code {
	case Served:
		return !l.Own || !redirected(l.Status) && (l.Status < 401 || l.Status == 405 || l.Status == 413) ||
			l.Status >= 500
	case ToHTTPS, Redirect:
		return redirected(l.Status)
	case Closed:
		return l.Status == 503
	case Another:
		return false
	}
	return l.Status == status
}
