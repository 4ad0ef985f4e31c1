package annotations

import (
	"errors"

	"sallyport/haproxy"
)

var (
	mirrorTo = define(copied, Doc{
		Name: own + "mirror-to", Scopes: Ingress, Refers: ServiceKind,
		Format: "`svc://namespace/Service:port`, or `svc://Service:port`",
		Effect: "This Service gets a copy of each request, and its answers are ignored. Requests with a body of " +
			"more than 16 kB, and those that ask for another protocol, are not copied. Too many copies at once are " +
			"left out. A Service of another namespace has to be in `clusters[].ingress.authServices`.",
	})
	mirrorHost = define(func(s string) (string, error) {
		_, err := haproxy.CopyAs(s, "", false)
		return s, err
	}, Doc{
		Name: own + "mirror-host", Scopes: Ingress, Format: "HOST or HOST:PORT",
		Effect: "Host of the copies that mirror-to sends. Without it: the one that servers see.",
	})
	mirrorPath = define(func(s string) (string, error) {
		_, err := haproxy.CopyAs("", s, false)
		return s, err
	}, Doc{
		Name: own + "mirror-path", Scopes: Ingress, Format: "path; it may hold `%[...]`, see below",
		Effect: "Path and query of the copies that mirror-to sends, made from the request of the client. Without " +
			"it: those that servers see.",
	})
	mirrorBody = define(boolean, Doc{
		Name: own + "mirror-body", Scopes: Ingress, Format: "true or false", Default: "true",
		Effect: "Copies have the body of the request. Without it requests with a body of any size are copied.",
	})
)

// copied reads svc://[NAMESPACE/]SERVICE:PORT.
func copied(s string) (ServicePort, error) {
	to, err := askURL(Env{}, ConfigMap, s)
	if err == nil && to.path != "/" {
		err = errors.New("it has a path: write the path as mirror-path")
	}
	return to.to, err
}

// mirror adds the directives that send copies of requests to a Service (mirror-to).
func mirror(v *values, s *Settings) {
	to, said := get(v, mirrorTo)
	if !said {
		return
	}
	if haproxy.HasFCGI(s.Directives) {
		v.wrong(mirrorTo.Doc, errBesideFCGI)
		return
	}
	if !hasLua(v, s, mirrorTo.Doc) {
		copiesAs(v) // they take effect with the answer
		return
	}
	backend, err := v.env.Service(v.scopeOf(mirrorTo.Name), to, Copies)
	if err != nil {
		v.wrong(mirrorTo.Doc, err)
		return
	}
	d, err := haproxy.Mirror([]haproxy.Copy{{
		Backend: backend, Tenant: v.env.Cluster + "/" + v.env.Namespace, Part: 1, Of: 1,
	}})
	if err != nil {
		v.wrong(mirrorTo.Doc, err)
		return
	}
	s.Extras = append(s.Extras, haproxy.MirrorScript())
	s.add(d)
	host, path, body := copiesAs(v)
	if host == "" && path == "" && body {
		return
	}
	if as, err := haproxy.CopyAs(host, path, !body); err == nil { // each value was checked when it was read
		s.add(as)
	}
}

// copiesAs returns what the keys change in the copies that mirror-to sends.
func copiesAs(v *values) (host, path string, body bool) {
	host, _ = get(v, mirrorHost)
	path, _ = get(v, mirrorPath)
	body, _ = get(v, mirrorBody)
	return host, path, body
}
