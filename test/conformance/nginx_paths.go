package main

func nginxPlain() []conformity {
	return []conformity{
		{name: "nothing set", facts: []fact{
			see("path, query and host stay", "template/nginx.tmpl", "GET /a?b=c", "200", "url /a?b=c", "host HOST"),
			see("servers see the path as it came", "nginx/ngx_http_proxy_module", "GET /%61//b/../c", "200",
				"url /%61//b/../c").by("--path-as-is"),
			see("the scheme", "template/nginx.tmpl", "GET /", "200", "request X-Forwarded-Proto: http"),
			see("the client", "template/nginx.tmpl", "GET /", "200", "request X-Forwarded-For: 192.168.50.10"),
			see("a client that says whom it stands for", "template/nginx.tmpl", "GET /", "200",
				"request X-Forwarded-For: 192.168.50.10", "request X-Original-Forwarded-For: 10.0.0.1").
				with("X-Forwarded-For: 10.0.0.1", "X-Original-Forwarded-For: 10.0.0.2"),
			see("a client that stands for nobody", "template/nginx.tmpl", "GET /", "200",
				"request X-Original-Forwarded-For: (none)").with("X-Original-Forwarded-For: 10.0.0.2"),
			see("X-Real-IP", "template/nginx.tmpl", "GET /", "200", "request X-Real-Ip: 192.168.50.10",
				"request X_real_ip: (none)").with("X-Real-IP: 10.0.0.1", "X_Real_IP: 10.0.0.1"),
			see("X-Request-ID", "docs/configmap.md", "GET /", "200").then(numbered),
			see("X-Request-ID of the client", "docs/configmap.md", "GET /", "200", "request X-Request-Id: mine").
				with("X-Request-ID: mine"),
			see("X-Forwarded-Host and its kind", "template/nginx.tmpl", "GET /", "200", "request X-Forwarded-Host: HOST",
				"request X-Forwarded-Port: 80", "request X-Forwarded-Scheme: http", "request X-Scheme: http").
				with("X-Forwarded-Host: other.test", "X-Forwarded-Port: 1", "X-Scheme: https"),
			see("the header Proxy", "template/nginx.tmpl", "GET /", "200", "request Proxy: (none)").with("Proxy: x"),
			see("a header with _", "docs/configmap.md", "GET /", "200", "request X_a: b").with("X_A: b").
				differs("no such header", "Headers with `_` in their names"),
			see("a body of 1 MiB and a byte", "docs/annotations.md", "POST /", "413").
				by("-d", "x", "-H", "Content-Length: 1048577"),
			see("a WebSocket", "template/nginx.tmpl", "GET /", "200").then(echoes),
			see("OPTIONS", "template/nginx.tmpl", "OPTIONS /a", "200", "url /a"),
			see("TLS without a certificate of the host", "template/nginx.tmpl", "https GET /", "200",
				"request X-Forwarded-Proto: https", "request X-Forwarded-Port: 443", "request X-Forwarded-Scheme: https",
				"request X-Scheme: https"),
		}},
		{name: "a host with a certificate", secure: true, beside: "/other", ingress: []string{"ssl-redirect: true"}, facts: []fact{
			see("a path of another Ingress of the host", "template/nginx.tmpl", "GET /other", "200").
				differs("308", "the redirect is for hosts that this Ingress has a certificate for"),
			see("plain HTTP", "docs/annotations.md", "GET /x?y=z", "308", "location https://HOST/x?y=z"),
			see("HTTPS", "template/nginx.tmpl", "https GET /x", "200", "request X-Forwarded-Proto: https"),
			see("Strict-Transport-Security", "docs/configmap.md", "https GET /", "200",
				"response Strict-Transport-Security: (none)").
				differs("max-age=31536000; includeSubDomains", "Strict-Transport-Security is not sent"),
			see("a slash at the end", "docs/annotations.md", "GET /x/", "308", "location https://HOST/x/").
				differs("https://HOST/x", "A redirect to HTTPS keeps the whole path"),
			see("a challenge of ACME that no path is for", "template/template.go", "GET /.well-known/acme-challenge/x", "308"),
		}},
		{name: "a challenge of ACME", secure: true, path: "/.well-known/acme-challenge/x", facts: []fact{
			see("plain HTTP", "docs/configmap.md", "GET /.well-known/acme-challenge/x", "308").
				differs("200", "below `/.well-known/acme-challenge` is redirected to HTTPS"),
		}},
		{name: "a path is a string", path: "/a", facts: []fact{
			see("longer", "template/template.go", "GET /abc", "200", "url /abc"),
			see("below", "template/template.go", "GET /a/b", "200", "url /a/b"),
			see("in another case", "template/template.go", "GET /A", "404"),
			see("with an escape", "nginx/ngx_http_core_module", "GET /%61bc", "404").
				differs("200", "The path of a request is compared as the client sent it"),
			see("with two slashes", "nginx/ngx_http_core_module", "GET //abc", "404").by("--path-as-is").
				differs("200", "The path of a request is compared as the client sent it"),
			see("with /../", "nginx/ngx_http_core_module", "GET /x/../abc", "404").by("--path-as-is").
				differs("200", "The path of a request is compared as the client sent it"),
		}},
		{name: "a path of type Exact", path: "/a", exact: true, facts: []fact{
			see("itself", "template/template.go", "GET /a?b=c", "200", "url /a?b=c"),
			see("with a slash", "template/template.go", "GET /a/", "404"),
			see("longer", "template/template.go", "GET /ab", "404"),
		}},
		{name: "a path of type Prefix", path: "/x", beside: "/other", facts: []fact{
			see("itself", "template/template.go", "GET /other", "200", "url /other"),
			see("below", "template/template.go", "GET /other/a", "200", "url /other/a"),
			see("longer", "template/template.go", "GET /others", "404"),
		}},
		{name: "a path with a slash at its end", path: "/a/", facts: []fact{
			see("below", "template/template.go", "GET /a/b", "200", "url /a/b"),
			see("without the slash", "nginx/ngx_http_core_module", "GET /a", "200", "url /a").
				differs("301 to /a/", "A path `/a/` also matches `/a`"),
		}},
	}
}

func nginxPaths() []conformity {
	return []conformity{
		{name: "rewrite-target with a group", path: "/app(/|$)(.*)", ingress: []string{"rewrite-target: /$2"}, facts: []fact{
			see("below", "docs/annotations.md", "GET /app/x/y?z=1", "200", "url /x/y?z=1"),
			see("nothing in the group, in another case", "template/template.go", "GET /APP", "200", "url /"),
			see("not quite", "template/template.go", "GET /ap", "404"),
			see("longer", "template/template.go", "GET /apple", "404"),
		}},
		{name: "rewrite-target with a prefix", path: "/app", ingress: []string{
			"rewrite-target: /in", "x-forwarded-prefix: /app",
		}, facts: []fact{
			see("below", "e2e/rewrite.go", "GET /app/x", "200", "url /in"),
			see("longer", "template/template.go", "GET /apple?a=b", "200", "url /in?a=b"),
			see("the prefix", "e2e/xforwardedprefix.go", "GET /app", "200", "request X-Forwarded-Prefix: /app"),
			see("a prefix that the client sends", "e2e/xforwardedprefix.go", "GET /app", "200",
				"request X-Forwarded-Prefix: /app").with("X-Forwarded-Prefix: /forged"),
		}},
		{name: "rewrite-target that the path is", path: "/app", ingress: []string{"rewrite-target: /app"}, facts: []fact{
			see("below", "template/template.go", "GET /app/x", "200", "url /app/x"),
			see("in another case", "template/template.go", "GET /APP", "404"),
		}},
		{
			name: "rewrite-target with a group that is not there", path: "/a/(.*)", ingress: []string{"rewrite-target: /x/$2$1"},
			facts: []fact{see("the rest", "nginx/ngx_http_rewrite_module", "GET /a/b", "200", "url /x/b")},
		},
		{name: "rewrite-target of one more segment", path: "/foo/bar/(.+)", ingress: []string{
			"use-regex: true", "rewrite-target: /new/backend/$1",
		}, facts: []fact{
			see("it", "e2e/rewrite.go", "GET /foo/bar/bar", "200", "url /new/backend/bar"),
			see("none", "e2e/rewrite.go", "GET /foo/bar/", "404"),
		}},
		{
			name: "rewrite-target to another site", path: "/a", ingress: []string{"rewrite-target: https://new.test/b"},
			facts: []fact{see("a request", "nginx/ngx_http_rewrite_module", "GET /a/x", "200", "url /a/x").
				differs("302 to https://new.test/b", "A target with a scheme")},
		},
		{
			name: "rewrite-target with a query", path: "/a", ingress: []string{"rewrite-target: /b?c=d"},
			facts: []fact{see("a request", "parse/rewrite", "GET /a/x", "200", "url /a/x")},
		},
		{
			name: "rewrite-target of a path of type Exact", path: "/old", exact: true, ingress: []string{"rewrite-target: /new"},
			facts: []fact{
				see("itself", "template/template.go", "GET /old", "200", "url /new"),
				see("longer, in another case", "template/template.go", "GET /OLDER", "200", "url /new"),
			},
		},
		{name: "x-forwarded-prefix alone", ingress: []string{"x-forwarded-prefix: /app"}, facts: []fact{
			see("no prefix", "template/template.go", "GET /", "200", "request X-Forwarded-Prefix: (none)"),
		}},
		{name: "use-regex", path: "/i/[0-9]+", beside: "/other", ingress: []string{"use-regex: true"}, facts: []fact{
			see("a match, in another case", "docs/annotations.md", "GET /I/7", "200", "url /I/7"),
			see("a match of the beginning", "template/template.go", "GET /i/7x", "200", "url /i/7x"),
			see("no match", "docs/annotations.md", "GET /i/x", "404"),
			see("a path of another Ingress of the host", "docs/ingress-path-matching.md", "GET /other", "200", "url /other"),
			see("that path is an expression, too", "docs/ingress-path-matching.md", "GET /Otherwise", "200",
				"url /Otherwise"),
		}},
		{name: "use-regex with a look-ahead", path: "/(?!x)[a-z]+", ingress: []string{"use-regex: true"}, facts: []fact{
			see("a match", "nginx/ngx_http_core_module", "GET /a", "404").
				differs("200", "Look-ahead, back-references and groups that are repeated by a number are not allowed"),
		}},
		{
			name: "use-regex that is shorter than its rival", path: "/foo/bar/[a-z]{3}", beside: "/foo/bar/bar",
			ingress: []string{"use-regex: true", "rewrite-target: /new/backend"}, facts: []fact{
				see("the longer text is tried first", "e2e/rewrite.go", "GET /foo/bar/bar", "200", "url /new/backend"),
			},
		},
		{
			name: "use-regex beside a path that it begins with", path: "/foo.+", beside: "/foo",
			ingress: []string{"use-regex: true", "rewrite-target: /new/backend"}, facts: []fact{
				see("the path", "e2e/rewrite.go", "GET /foo", "200", "url /foo"),
				see("below", "e2e/rewrite.go", "GET /foo/bar", "200", "url /new/backend"),
			},
		},
		{name: "use-regex with a value that is none", path: "/a.c", ingress: []string{"use-regex: maybe"}, facts: []fact{
			see("the path is a string", "parse/rewrite", "GET /a.c", "200"),
			see("and no expression", "parse/rewrite", "GET /abc", "404"),
		}},
		{name: "server-alias", ingress: []string{"server-alias: alias-of-nginx.test, ~^x"}, facts: []fact{
			see("an alias", "e2e/alias.go", "GET /a", "200", "url /a", "host alias-of-nginx.test").
				with("Host: alias-of-nginx.test"),
			see("the host", "e2e/alias.go", "GET /a", "200", "host HOST"),
			see("an expression", "docs/annotations.md", "GET /a", "404").with("Host: xyz.nginx.test").
				differs("200", "Regular expressions (`~`) are not served"),
		}},
		{name: "upstream-vhost", ingress: []string{"upstream-vhost: inner.test"}, facts: []fact{
			see("the name", "e2e/upstreamvhost.go", "GET /", "200", "host inner.test"),
		}},
		{name: "upstream-vhost with a variable", ingress: []string{"upstream-vhost: in.$host"}, facts: []fact{
			see("the name", "docs/annotations.md", "GET /", "200", "host in.HOST"),
		}},
	}
}

func nginxRedirects() []conformity {
	return []conformity{
		{name: "ssl-redirect off", secure: true, ingress: []string{"ssl-redirect: false"}, facts: []fact{
			see("plain HTTP", "docs/annotations.md", "GET /x", "200", "url /x"),
		}},
		{name: "ssl-redirect without a certificate", ingress: []string{"ssl-redirect: true"}, facts: []fact{
			see("plain HTTP", "docs/annotations.md", "GET /x", "200", "url /x"),
		}},
		{name: "ssl-redirect with a value that is none", secure: true, ingress: []string{"ssl-redirect: maybe"}, facts: []fact{
			see("the default", "parse/rewrite", "GET /x", "308", "location https://HOST/x"),
		}},
		{name: "force-ssl-redirect", ingress: []string{"force-ssl-redirect: true"}, facts: []fact{
			see("plain HTTP", "e2e/forcesslredirect.go", "GET /x?y=z", "308", "location https://HOST/x?y=z"),
			see("HTTPS", "docs/annotations.md", "https GET /x", "200"),
		}},
		{name: "force-ssl-redirect off", secure: true, ingress: []string{
			"force-ssl-redirect: false", "preserve-trailing-slash: true", "use-port-in-redirects: true",
		}, facts: []fact{
			see("the default, with its slash", "e2e/preservetrailingslash.go", "GET /x/", "308", "location https://HOST/x/").
				differs("https://HOST:443/x/", "A redirect to HTTPS has the port of HTTPS"),
		}},
		{name: "app-root", ingress: []string{"app-root: /start"}, facts: []fact{
			see("the root", "e2e/approot.go", "GET /", "302", "response Location: /start").
				differs("Location: http://HOST/start", "The Location is a path alone"),
			see("the root with a query", "template/nginx.tmpl", "GET /?a=b", "302", "response Location: /start").
				differs("Location: http://HOST/start", "The Location is a path alone"),
			see("another path", "template/nginx.tmpl", "GET /x", "200", "url /x"),
		}},
		{name: "app-root of another path", path: "/x", ingress: []string{"app-root: /start"}, facts: []fact{
			see("the path", "template/nginx.tmpl", "GET /x", "200", "url /x"),
			see("the root", "template/nginx.tmpl", "GET /", "404").
				differs("302 to http://HOST/start", "Only if `/` of the host leads to this Ingress"),
		}},
		{name: "app-root that is a URL", ingress: []string{"app-root: https://new.test/"}, facts: []fact{
			see("no redirect", "parse/rewrite", "GET /", "200", "url /"),
		}},
		{
			name: "from-to-www-redirect", secure: true, ingress: []string{"from-to-www-redirect: true", "ssl-redirect: false"},
			facts: []fact{
				see("the other name", "e2e/fromtowwwredirect.go", "GET /foo?a=b", "308",
					"response Location: http://HOST/foo?a=b").with("Host: www.HOST"),
				see("the other name over TLS", "e2e/fromtowwwredirect.go", "https GET /foo", "308",
					"response Location: https://HOST/foo").with("Host: www.HOST"),
				see("the name", "e2e/fromtowwwredirect.go", "GET /foo", "200", "host HOST"),
			},
		},
		{name: "permanent-redirect", ingress: []string{"permanent-redirect: https://new.test/there"}, facts: []fact{
			see("any path", "e2e/redirect.go", "GET /x?y=z", "301", "response Location: https://new.test/there"),
			see("any method", "template/nginx.tmpl", "POST /", "301", "response Location: https://new.test/there"),
		}},
		redirectWith("permanent", "302", "302", "", ""),
		redirectWith("permanent", "308", "308", "", ""),
		redirectWith("permanent", "299", "301", "", ""),
		redirectWith("permanent", "309", "301", "", ""),
		redirectWith("permanent", "304", "301", "304", "Of 301, 302, 303, 307 and 308"),
		redirectWith("permanent", "soon", "301", "404", "drops the whole Ingress"),
		{name: "temporal-redirect", ingress: []string{"temporal-redirect: https://new.test/?a=b"}, facts: []fact{
			see("any path", "docs/annotations.md", "GET /x", "302", "response Location: https://new.test/?a=b"),
		}},
		redirectWith("temporal", "307", "307", "", ""),
		redirectWith("temporal", "308", "302", "", ""),
		redirectWith("temporal", "305", "302", "305", "Of 301, 302, 303 and 307"),
		{name: "both redirects", ingress: []string{
			"permanent-redirect: https://old.test/", "temporal-redirect: https://new.test/", "permanent-redirect-code: 308",
		}, facts: []fact{
			see("the temporal one", "parse/redirect", "GET /", "302", "response Location: https://new.test/"),
		}},
		{name: "permanent-redirect to no URL", ingress: []string{"permanent-redirect: ftp://new.test/"}, facts: []fact{
			see("a request", "parse/redirect", "GET /", "200").differs("404", "drops the whole Ingress"),
		}},
	}
}

// redirectWith returns a case of a redirect with a code. there is what ingress-nginx answers, if it is not
// want.
func redirectWith(kind, code, want, there, page string) conformity {
	return conformity{
		name: kind + "-redirect-code " + code,
		ingress: []string{
			kind + "-redirect: https://new.test/", kind + "-redirect-code: " + code,
		},
		facts: []fact{see("the status", "parse/redirect", "GET /", want, "location https://new.test/").
			differs(there, page)},
	}
}
