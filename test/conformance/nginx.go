package main

import (
	"slices"
	"strings"

	"sallyport/ingress/nginx"
)

// A fact is a request to an Ingress that was written for ingress-nginx, and what a client and a pod see
// of it here.
type fact struct {
	ask
	name  string
	from  string // the source of ingress-nginx 1.15.1 that its answer is taken from, see sources
	there string // what ingress-nginx does instead; empty if it does the same
	page  string // the words of ingress/NGINX.md that state the difference
	check check  // runs once the ask holds
}

// sources are the folders of ingress-nginx that hold the sources of facts, by how these begin.
var sources = map[string]string{
	"docs/":     "docs/user-guide/nginx-configuration",
	"e2e/":      "test/e2e/annotations",
	"parse/":    "internal/ingress/annotations",
	"template/": "rootfs/etc/nginx/template and internal/ingress/controller/template",
	"lua/":      "rootfs/etc/nginx/lua",
	"nginx/":    "the documentation of nginx itself, by module",
}

// see returns a fact by its name, source and request.
func see(name, from, request string, want ...string) fact {
	return fact{name: name, from: from, ask: ask{request: request, want: want}}
}

// with adds headers to the request of a fact.
func (f fact) with(headers ...string) fact {
	f.headers = slices.Concat(f.headers, headers)
	return f
}

// by adds arguments of curl.
func (f fact) by(curl ...string) fact {
	f.curl = slices.Concat(f.curl, curl)
	return f
}

// differs states what ingress-nginx does instead, and the words of ingress/NGINX.md that say so.
func (f fact) differs(there, page string) fact {
	f.there, f.page = there, page
	return f
}

// then adds a check.
func (f fact) then(check check) fact {
	f.check = check
	return f
}

// parts returns the case. A case with facts is one case for each of them, and these share its Ingress.
func (c conformity) parts() []conformity {
	if len(c.facts) == 0 {
		return []conformity{c}
	}
	var all []conformity
	for _, f := range c.facts {
		part := c
		part.name, part.asks, part.check = c.name+": "+f.name, []ask{f.ask}, f.check
		all = append(all, part)
	}
	return all
}

// nginxCases returns Ingresses with annotations of ingress-nginx, and facts about them.
func nginxCases() []conformity {
	all := slices.Concat(
		nginxPlain(), nginxPaths(), nginxRedirects(), nginxClients(), nginxPasswords(), nginxAsked(),
		nginxCertificates(), nginxOrigins(), nginxLimits(), nginxServers(), nginxCookies(), nginxCanaries(), nginxLost(),
	)
	full := func(annotations []string) []string {
		written := []string{"kubernetes.io/ingress.class: nginx"}
		for _, a := range annotations {
			if name, _, _ := strings.Cut(a, ": "); !strings.Contains(name, "/") {
				a = nginx.Prefix + a
			}
			written = append(written, a)
		}
		return written
	}
	for i := range all {
		c := &all[i]
		c.name, c.ingress = "nginx: "+c.name, full(c.ingress)
		if len(c.canary) > 0 {
			c.canary = full(c.canary)
		}
	}
	return all
}
