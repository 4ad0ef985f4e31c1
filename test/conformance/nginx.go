package main

import (
	"strings"

	"sallyport/ingress/nginx"
)

// nginxCases are Ingresses with annotations of ingress-nginx, and its answers.
func nginxCases() (all []conformity) {
	add := func(name, path string, annotations []string, asks ...ask) {
		said := []string{"kubernetes.io/ingress.class: nginx"}
		for _, a := range annotations {
			said = append(said, nginx.Prefix+a)
		}
		all = append(all, conformity{name: "nginx: " + name, path: path, ingress: said, asks: asks})
	}
	get := func(request string, want ...string) ask { return ask{request: "GET " + request, want: want} }
	add("nothing set", "", nil, get("/a?b=c", "200", "url /a?b=c", "host HOST"),
		ask{request: "POST /", curl: []string{"-d", "x", "-H", "Content-Length: 1048577"}, want: []string{"413"}})
	add("a path is a string", "/a", nil, get("/abc", "200"), get("/A", "404"))
	add("rewrite-target with a group", "/app(/|$)(.*)", []string{"rewrite-target: /$2"},
		get("/app/x/y?z=1", "200", "url /x/y?z=1"), get("/APP", "200", "url /"), get("/ap", "404"))
	add("rewrite-target with a prefix", "/app", []string{"rewrite-target: /in", "x-forwarded-prefix: /app"},
		get("/app/x", "200", "url /in", "request X-Forwarded-Prefix: /app"))
	add("use-regex", "/i/[0-9]+", []string{"use-regex: true"}, get("/I/7", "200", "url /I/7"), get("/i/x", "404"))
	add("use-regex, and the paths of another Ingress of the host", "/i/[0-9]+", []string{"use-regex: true"},
		get("/I/7", "200"), get("/other", "200"), get("/Otherwise", "200", "url /Otherwise"), get("/i/x", "404"))
	all[len(all)-1].beside = "/other"
	add("server-alias", "", []string{"server-alias: alias-of-nginx.test, ~^x"},
		ask{request: "GET /a", headers: []string{"Host: alias-of-nginx.test"}, want: []string{"200", "url /a"}},
		get("/a", "200"))
	add("from-to-www-redirect", "", []string{"from-to-www-redirect: true"},
		ask{request: "GET /foo?a=b", headers: []string{"Host: www.HOST"}, want: []string{
			"308", "response Location: http://HOST/foo?a=b",
		}},
		get("/foo", "200"))
	add("app-root", "", []string{"app-root: /start"}, get("/", "302", "response Location: /start"),
		get("/x", "200"))
	add("force-ssl-redirect", "", []string{"force-ssl-redirect: true"}, get("/x?y=z", "308"))
	add("permanent-redirect", "", []string{"permanent-redirect: https://new.test/there"},
		get("/x?y=z", "301", "response Location: https://new.test/there"))
	add("temporal-redirect", "", []string{"temporal-redirect: https://new.test/", "temporal-redirect-code: 307"},
		get("/x", "307", "response Location: https://new.test/"))
	add("upstream-vhost", "", []string{"upstream-vhost: inner.test"}, get("/", "200", "host inner.test"))
	add("allowlist-source-range without the client", "", []string{"whitelist-source-range: 10.0.0.0/8"}, get("/", "403"))
	add("denylist-source-range", "", []string{"denylist-source-range: 192.168.50.0/24"}, get("/", "403"))
	add("auth-type basic", "", []string{"auth-type: basic", "auth-secret: users", "auth-realm: Us"},
		get("/", "401", `response Www-Authenticate: Basic realm="Us"`),
		ask{request: "GET /", curl: []string{"-u", "ann:secret"}, want: []string{"200"}})
	add("auth-type digest", "", []string{"auth-type: digest", "auth-secret: users"}, get("/", "503"))
	add("auth-url at the same host, as oauth2-proxy has it", "", []string{
		"auth-url: https://$host/status/401",
		"auth-signin: https://$host/oauth2/start?rd=$escaped_request_uri",
	}, get("/a?b=c&d=e", "302", "location https://HOST/oauth2/start?rd=%2Fa%3Fb%3Dc%26d%3De"))
	all[len(all)-1].beside = "/status"
	add("auth-url at the same host, which allows the request", "", []string{
		"auth-url: https://$host/status/202?cookie=session=new",
		"auth-response-headers: Saw-X-Original-Url, Saw-X-Auth-Request-Redirect, Saw-Host",
		"auth-signin: https://$host/oauth2/start",
	}, ask{request: "GET /a?b=c", headers: []string{"Saw-Host: forged"}, want: []string{
		"200", "url /a?b=c", "request Saw-X-Original-Url: http://HOST/a?b=c", "request Saw-Host: HOST",
		"request Saw-X-Auth-Request-Redirect: /a?b=c", "response Set-Cookie: session=new",
	}})
	all[len(all)-1].beside = "/status"
	add("auth-url of a stranger", "", []string{"auth-url: https://idp.test/check"}, get("/", "503"))
	add("a preflight", "", []string{"enable-cors: true", "cors-allow-origin: https://*.page.test"},
		ask{
			request: "OPTIONS /", headers: []string{"Origin: https://a.page.test", "Access-Control-Request-Method: PUT"},
			want: []string{
				"204", "response Access-Control-Allow-Origin: https://a.page.test",
				"response Access-Control-Allow-Methods: GET, PUT, POST, DELETE, PATCH, OPTIONS",
				"response Access-Control-Allow-Credentials: true", "response Access-Control-Max-Age: 1728000",
			},
		},
		ask{
			request: "GET /", headers: []string{"Origin: https://page.other"},
			want: []string{"200", "response Access-Control-Allow-Origin: (none)"},
		})
	add("proxy-body-size", "", []string{"proxy-body-size: 1k"},
		ask{request: "POST /", curl: []string{"-d", strings.Repeat("x", 1025)}, want: []string{"413"}})
	add("a canary by the value of a header", "/app(/|$)(.*)", []string{"rewrite-target: /$2"},
		ask{request: "GET /app/x", headers: []string{"X-New: v 2"}, want: []string{"200", "url /canary/x"}},
		ask{request: "GET /app/x", headers: []string{"X-New: always"}, want: []string{"200", "url /x"}},
		get("/app/x", "200", "url /x"))
	all[len(all)-1].canary = []string{
		"kubernetes.io/ingress.class: nginx", nginx.Prefix + "canary: true", nginx.Prefix + "canary-by-header: X-New",
		nginx.Prefix + "canary-by-header-value: v 2", nginx.Prefix + "rewrite-target: /canary/$2",
	}
	add("a canary by an expression for a header", "", nil,
		ask{request: "GET /", headers: []string{"X-New: user-17"}, want: []string{"200", "host new.test"}},
		ask{request: "GET /", headers: []string{"X-New: user-x"}, want: []string{"200", "host HOST"}})
	all[len(all)-1].canary = []string{
		"kubernetes.io/ingress.class: nginx", nginx.Prefix + "canary: true", nginx.Prefix + "canary-by-header: X-New",
		nginx.Prefix + "canary-by-header-pattern: -[0-9]+$", nginx.Prefix + "upstream-vhost: new.test",
	}
	add("affinity", "", []string{
		"affinity: cookie", "session-cookie-name: at", "session-cookie-path: /in", "session-cookie-max-age: 600",
	}, get("/", "200", "response Set-Cookie: at=~; path=/; HttpOnly; Path=/in; Max-Age=600"))
	add("a snippet", "", []string{"configuration-snippet: deny all;"}, get("/", "503"))
	add("a snippet that is given up", "", []string{"server-snippet: deny all;"}, get("/", "200"))
	add("a firewall", "", []string{"enable-modsecurity: true"}, get("/", "503"))
	return all
}
