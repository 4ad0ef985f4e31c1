package main

func nginxClients() []conformity {
	denied := func(name, from string, ingress ...string) conformity {
		return conformity{name: name, ingress: ingress, facts: []fact{see("a request", from, "GET /", "403")}}
	}
	closed := func(name, from string, ingress ...string) conformity {
		return conformity{name: name, ingress: ingress, facts: []fact{see("a request", from, "GET /", "503")}}
	}
	return []conformity{
		denied("allowlist-source-range without the client", "e2e/ipallowlist.go", "allowlist-source-range: 10.0.0.0/8"),
		denied("whitelist-source-range", "parse/ipallowlist", "whitelist-source-range: 10.0.0.0/8"),
		denied("denylist-source-range", "e2e/ipdenylist.go", "denylist-source-range: 192.168.50.0/24"),
		denied("both lists with the client", "template/nginx.tmpl", "allowlist-source-range: 192.168.50.10",
			"denylist-source-range: 192.168.50.0/24"),
		{name: "allowlist-source-range with the client", ingress: []string{
			"allowlist-source-range: 10.0.0.0/8, 2001:db8::/32, 192.168.50.10", "denylist-source-range: 11.0.0.0/8",
		}, facts: []fact{
			see("a request", "docs/annotations.md", "GET /", "200"),
			see("a client that says it is another", "template/nginx.tmpl", "GET /", "200").with("X-Forwarded-For: 11.0.0.1"),
		}},
		{name: "whitelist-source-range beside its newer name", ingress: []string{
			"allowlist-source-range: 192.168.50.0/24", "whitelist-source-range: 10.0.0.0/8",
		}, facts: []fact{see("the newer name", "parse/ipallowlist", "GET /", "200")}},
		{name: "a list before other answers", secure: true, ingress: []string{
			"denylist-source-range: 192.168.50.0/24", "enable-cors: true",
		}, facts: []fact{
			see("a redirect to HTTPS", "nginx/ngx_http_rewrite_module", "GET /", "308"),
			see("a preflight", "nginx/ngx_http_rewrite_module", "https OPTIONS /", "403").with("Origin: https://page.test").
				differs("204", "Lists of addresses come before the answer to a preflight"),
		}},
		{name: "a list before a redirect", ingress: []string{
			"denylist-source-range: 192.168.50.0/24", "permanent-redirect: https://new.test/",
		}, facts: []fact{
			see("a request", "nginx/ngx_http_rewrite_module", "GET /", "403").
				differs("301", "Lists of addresses come before the answer to a preflight"),
		}},
		{name: "a password before a redirect", ingress: []string{
			"auth-type: basic", "auth-secret: users", "permanent-redirect: https://new.test/",
		}, facts: []fact{
			see("a request", "nginx/ngx_http_rewrite_module", "GET /", "401").
				differs("301", "Passwords come before the two redirects"),
		}},
		closed("allowlist-source-range of no network", "parse/ipallowlist", "allowlist-source-range: office"),
		closed("denylist-source-range of no network", "parse/ipdenylist", "denylist-source-range: 10.0.0.0/33"),
	}
}

func nginxPasswords() []conformity {
	const realm = `response Www-Authenticate: Basic realm="`
	right := []string{"-u", "ann:secret"}
	return []conformity{
		{name: "auth-type basic", ingress: []string{
			"auth-type: basic", "auth-secret: users", "auth-secret-type: auth-map", "auth-realm: Us",
		}, facts: []fact{
			see("no password", "e2e/auth.go", "GET /", "401", realm+`Us"`),
			see("the password", "e2e/auth.go", "GET /", "200").by(right...),
			see("another password", "e2e/auth.go", "GET /", "401").by("-u", "ann:Secret"),
			see("another user", "e2e/auth.go", "GET /", "401").by("-u", "bob:secret"),
			see("the header Authorization", "template/nginx.tmpl", "GET /", "200",
				"request Authorization: Basic YW5uOnNlY3JldA==").by(right...).
				differs("no such header", "Servers see the header Authorization"),
		}},
		{name: "auth-type basic with a file, of a namespace", ingress: []string{
			"auth-type: basic", "auth-secret: default/htpasswd", "auth-secret-type: auth-file",
		}, facts: []fact{
			see("the password", "docs/annotations.md", "GET /", "200").by("-u", "bob:secret"),
			see("no password", "parse/auth", "GET /", "401", realm+`Protected Content"`).
				differs(`Basic realm=""`, "The default of `auth-realm` is"),
		}},
		{
			name: "auth-type basic with a Secret that is not there", ingress: []string{"auth-type: basic", "auth-secret: gone"},
			facts: []fact{see("a request", "e2e/auth.go", "GET /", "503").by(right...)},
		},
		{
			name: "auth-type basic without a Secret", ingress: []string{"auth-type: basic"},
			facts: []fact{see("a request", "parse/auth", "GET /", "503").by(right...)},
		},
		{name: "auth-type digest", ingress: []string{"auth-type: digest", "auth-secret: users"}, facts: []fact{
			see("a request", "docs/annotations.md", "GET /", "503").
				differs("401 with a challenge of Digest", "digest closes the Ingress"),
		}},
		{name: "auth-type that is none", ingress: []string{"auth-type: none", "auth-secret: users"}, facts: []fact{
			see("a request", "parse/auth", "GET /", "503"),
		}},
		{name: "auth-secret alone", ingress: []string{"auth-secret: users"}, facts: []fact{
			see("a request", "parse/auth", "GET /", "200"),
		}},
		{name: "satisfy any within the list", ingress: []string{
			"satisfy: any", "allowlist-source-range: 192.168.50.0/24", "auth-type: basic", "auth-secret: users",
		}, facts: []fact{
			see("no password", "e2e/satisfy.go", "GET /", "200"),
			see("both", "e2e/satisfy.go", "GET /", "200").by(right...),
		}},
		{name: "satisfy any outside the list", ingress: []string{
			"satisfy: any", "allowlist-source-range: 10.0.0.0/8", "auth-type: basic", "auth-secret: users",
		}, facts: []fact{
			see("no password", "e2e/satisfy.go", "GET /", "401"),
			see("the password", "e2e/satisfy.go", "GET /", "200").by(right...),
		}},
		{name: "satisfy any with a denied client", ingress: []string{
			"satisfy: any", "denylist-source-range: 192.168.50.0/24", "allowlist-source-range: 10.0.0.0/8",
			"auth-type: basic", "auth-secret: users",
		}, facts: []fact{
			see("the password", "nginx/ngx_http_core_module", "GET /", "403").by(right...).
				differs("200", "`denylist-source-range`, and lists of the ConfigMap, reject clients in any case"),
		}},
		{name: "satisfy any with auth-url", ingress: []string{
			"satisfy: any", "allowlist-source-range: 192.168.50.0/24",
			"auth-url: http://app.default.svc.cluster.local/status/403",
		}, facts: []fact{see("a client within the list", "e2e/satisfy.go", "GET /", "200")}},
		{name: "satisfy all", ingress: []string{
			"satisfy: all", "allowlist-source-range: 192.168.50.0/24", "auth-type: basic", "auth-secret: users",
		}, facts: []fact{see("one of two guards", "docs/annotations.md", "GET /", "401")}},
		{
			name: "enable-global-auth off", config: []string{"auth-secret: default/users", "auth-opt-out: true"},
			ingress: []string{"enable-global-auth: false"}, facts: []fact{
				see("a request", "e2e/auth.go", "GET /", "200"),
			},
		},
	}
}

func nginxAsked() []conformity {
	const here = "http://app.default.svc.cluster.local"
	return []conformity{
		{name: "auth-url of a Service", ingress: []string{
			"auth-url: " + here + "/status/200?cookie=session=new", "auth-method: POST",
			"auth-response-headers: Saw-Method, Saw-X-Original-Method, Saw-X-Original-Url, Saw-X-Auth-Request-Redirect",
			"auth-cache-key: $remote_user", "auth-cache-duration: 200 10m", "auth-keepalive: 10",
			"auth-keepalive-requests: 100", "auth-keepalive-timeout: 10", "auth-keepalive-share-vars: true",
		}, facts: []fact{
			see("the method", "docs/annotations.md", "GET /", "200", "request Saw-Method: POST"),
			see("the request's method", "template/nginx.tmpl", "PUT /", "200", "request Saw-X-Original-Method: PUT"),
			see("the request's URL", "template/nginx.tmpl", "GET /a?b=c", "200", "url /a?b=c",
				"request Saw-X-Original-Url: http://HOST/a?b=c"),
			see("where to come back to", "template/nginx.tmpl", "GET /a?b=c", "200",
				"request Saw-X-Auth-Request-Redirect: /a?b=c"),
			see("a header that the client forges", "template/nginx.tmpl", "GET /", "200", "request Saw-Method: POST").
				with("Saw-Method: forged"),
			see("a header that is not listed", "template/nginx.tmpl", "GET /", "200", "request Saw-Host: own").
				with("Saw-Host: own"),
			see("its cookie", "template/nginx.tmpl", "GET /", "200", "response Set-Cookie: session=new"),
		}},
		{name: "auth-url that answers 401", ingress: []string{"auth-url: " + here + ":80/status/401"}, facts: []fact{
			see("a request", "e2e/auth.go", "GET /", "401"),
		}},
		{name: "auth-url that answers 403", ingress: []string{
			"auth-url: http://app.default/status/403", "auth-signin: https://login.test/",
		}, facts: []fact{
			see("no way to the page of auth-signin", "template/nginx.tmpl", "GET /", "403"),
		}},
		{name: "auth-url that answers 500", ingress: []string{"auth-url: http://app/status/500"}, facts: []fact{
			see("a request", "nginx/ngx_http_auth_request_module", "GET /", "503").
				differs("500", "Failures are answered 503"),
		}},
		{name: "auth-url that answers 302", ingress: []string{"auth-url: http://app/status/302"}, facts: []fact{
			see("a request", "nginx/ngx_http_auth_request_module", "GET /", "302").
				differs("500", "A redirect of the Service reaches the client"),
		}},
		{name: "auth-method PUT", ingress: []string{"auth-url: " + here + "/status/200", "auth-method: PUT"}, facts: []fact{
			see("a request", "parse/authreq", "GET /", "503").differs("200", "GET, HEAD and POST; any other method"),
		}},
		{
			name: "auth-url of a Service that is not there", ingress: []string{"auth-url: http://gone.default.svc/x"},
			facts: []fact{see("a request", "e2e/auth.go", "GET /", "503").
				differs("500", "Failures are answered 503")},
		},
		{name: "auth-url of a stranger", ingress: []string{"auth-url: https://idp.test/check"}, facts: []fact{
			see("a request", "docs/annotations.md", "GET /", "503").
				differs("what idp.test says", "Other URLs close the Ingress"),
		}},
		{name: "auth-url that is no URL", ingress: []string{"auth-url: http://"}, facts: []fact{
			see("a request", "parse/authreq", "GET /", "503"),
		}},
		{
			name: "auth-method that is none", ingress: []string{"auth-url: " + here + "/status/200", "auth-method: LOOK"},
			facts: []fact{see("a request", "parse/authreq", "GET /", "503")},
		},
		{name: "auth-response-headers with no name", ingress: []string{
			"auth-url: " + here + "/status/200", "auth-response-headers: Saw-Host, a b",
		}, facts: []fact{see("a request", "parse/authreq", "GET /", "503")}},
		{name: "auth-signin", ingress: []string{
			"auth-url: " + here + "/status/401", "auth-signin: https://$host/oauth2/start",
		}, facts: []fact{
			see("the way back", "e2e/auth.go", "GET /a?b=c&d=e", "302",
				"location https://HOST/oauth2/start?rd=http://HOST%2Fa%3Fb%3Dc%26d%3De"),
		}},
		{name: "auth-signin with a query and another parameter", ingress: []string{
			"auth-url: " + here + "/status/401", "auth-signin: https://login.test/?from=x",
			"auth-signin-redirect-param: next",
		}, facts: []fact{
			see("the way back", "template/template.go", "GET /a", "302",
				"location https://login.test/?from=x&next=http://HOST%2Fa"),
		}},
		{name: "auth-signin with the parameter", ingress: []string{
			"auth-url: " + here + "/status/401", "auth-signin: https://login.test/?rd=$escaped_request_uri",
		}, facts: []fact{
			see("no second one", "template/template.go", "GET /a?b", "302", "location https://login.test/?rd=%2Fa%3Fb"),
		}},
		{name: "auth-url at the same host, as oauth2-proxy has it", beside: "/status", ingress: []string{
			"auth-url: https://$host/status/202?cookie=session=new", "auth-response-headers: Saw-Host, Saw-Method",
			"auth-signin: https://$host/oauth2/start?rd=$escaped_request_uri", "auth-always-set-cookie: true",
		}, facts: []fact{
			see("the host", "docs/annotations.md", "GET /a?b=c", "200", "url /a?b=c", "request Saw-Host: HOST").
				with("Saw-Host: forged"),
			see("the method", "nginx/ngx_http_auth_request_module", "PUT /", "200", "request Saw-Method: GET"),
			see("its cookie", "docs/annotations.md", "GET /", "200", "response Set-Cookie: session=new"),
			see("the path itself", "template/nginx.tmpl", "GET /status/204", "204"),
		}},
		{name: "auth-url at the same host that says no", beside: "/status", ingress: []string{
			"auth-url: https://$host/status/401", "auth-signin: https://$host/oauth2/start?rd=$escaped_request_uri",
		}, facts: []fact{
			see("the way back", "docs/annotations.md", "GET /a?b=c&d=e", "302",
				"location https://HOST/oauth2/start?rd=%2Fa%3Fb%3Dc%26d%3De"),
		}},
		{name: "auth-request-redirect", ingress: []string{
			"auth-url: " + here + "/status/200", "auth-request-redirect: https://$host/back?from=$request_uri",
			"auth-response-headers: Saw-X-Auth-Request-Redirect",
		}, facts: []fact{
			see("where to come back to", "e2e/auth.go", "GET /a?b", "200",
				"request Saw-X-Auth-Request-Redirect: https://HOST/back?from=/a?b").
				with("X-Auth-Request-Redirect: /forged"),
		}},
		{name: "auth-proxy-set-headers", ingress: []string{
			"auth-url: " + here + "/status/200", "auth-proxy-set-headers: default/team",
			"auth-response-headers: Saw-X-Team, Saw-X-Other",
		}, facts: []fact{
			see("a header of the ConfigMap", "template/template.go", "GET /", "200", "request Saw-X-Team: a b").
				with("X-Team: forged"),
			see("a header of the request", "template/nginx.tmpl", "GET /", "200", "request Saw-X-Other: own").
				with("X-Other: own"),
		}},
		{name: "auth-proxy-set-headers with a variable", ingress: []string{
			"auth-url: " + here + "/status/200", "auth-proxy-set-headers: variables",
		}, facts: []fact{
			see("a request", "template/template.go", "GET /", "503").
				differs("200, and the value of the variable for the Service", "An entry with a variable of nginx"),
		}},
		{name: "auth-proxy-set-headers of a ConfigMap that is not there", ingress: []string{
			"auth-url: " + here + "/status/200", "auth-proxy-set-headers: gone",
		}, facts: []fact{see("a request", "parse/authreq", "GET /", "503")}},
	}
}

func nginxCertificates() []conformity {
	const (
		strong = "ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384"
		others = "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256"
	)
	own := []string{"--cert", "DIR/ann.pem"}
	old := func(ciphers string) []string { return []string{"--tls-max", "1.2", "--ciphers", ciphers} }
	return []conformity{
		{name: "auth-tls-secret", secure: true, ingress: []string{
			"auth-tls-secret: default/authority", "auth-tls-verify-depth: 1",
			"auth-tls-pass-certificate-to-upstream: true",
		}, facts: []fact{
			see("the certificate", "e2e/authtls.go", "https GET /", "200", "request Ssl-Client-Verify: SUCCESS",
				"request Ssl-Client-Subject-Dn: CN=ann").by(own...).with("Ssl-Client-Subject-DN: CN=forged"),
			see("no certificate", "e2e/authtls.go", "https GET /", "000").
				differs("400", "The handshake fails"),
			see("another certificate", "docs/annotations.md", "https GET /", "000").by("--cert", "DIR/stranger.pem").
				differs("400", "The handshake fails"),
			see("plain HTTP", "template/nginx.tmpl", "GET /x", "308", "location https://HOST/x"),
			see("the certificate for the server", "e2e/authtls.go", "https GET /", "200",
				"request Ssl-Client-Cert: -----BEGIN%20CERTIFICATE-----%0A~%0A-----END%20CERTIFICATE-----%0A").
				by(own...).with("SSL-Client-Cert: forged").differs("with line breaks", "has no line breaks in its base64"),
		}},
		{name: "auth-tls-error-page", secure: true, ingress: []string{
			"auth-tls-secret: default/authority", "auth-tls-error-page: https://new.test/page",
		}, facts: []fact{
			see("the certificate", "e2e/authtls.go", "https GET /", "200", "request Ssl-Client-Verify: SUCCESS").by(own...),
			see("no certificate", "e2e/authtls.go", "https GET /a", "302", "location https://new.test/page"),
			see("another certificate", "docs/annotations.md", "https GET /", "000").by("--cert", "DIR/stranger.pem").
				differs("302 to the page", "The handshake fails for clients with a certificate of another"),
		}},
		{name: "auth-tls-error-page, and another Ingress of the host", secure: true, beside: "/other", ingress: []string{
			"auth-tls-secret: default/authority", "auth-tls-error-page: https://new.test/page",
		}, facts: []fact{
			see("no certificate", "docs/annotations.md", "https GET /", "000").
				differs("302 to the page", "and no other Ingress may have the host"),
			see("the path of another Ingress", "docs/annotations.md", "https GET /other", "000").
				differs("302 to the page", "and no other Ingress may have the host"),
		}},
		{name: "ssl-ciphers", secure: true, ingress: []string{"ssl-ciphers: " + strong}, facts: []fact{
			see("one of the ciphers", "docs/annotations.md", "https GET /", "200").by(old(strong)...),
			see("another cipher", "nginx/ngx_http_ssl_module", "https GET /", "000").by(old(others)...),
			see("TLS 1.3", "nginx/ngx_http_ssl_module", "https GET /", "200"),
		}},
		{name: "ssl-ciphers with an operator", secure: true, ingress: []string{"ssl-ciphers: HIGH:+SHA1"}, facts: []fact{
			see("another cipher", "docs/annotations.md", "https GET /", "200").by(old(others)...).
				differs("the same, with the list of the annotation", "Other words are not served"),
		}},
		{name: "auth-tls-secret, and another Ingress of the host", secure: true, beside: "/other", ingress: []string{
			"auth-tls-secret: default/authority",
		}, facts: []fact{
			see("the certificate", "docs/annotations.md", "https GET /other", "200").by(own...),
			see("no certificate", "docs/annotations.md", "https GET /other", "000").
				differs("400", "The handshake fails"),
		}},
		{name: "auth-tls-verify-client optional", secure: true, ingress: []string{
			"auth-tls-secret: default/authority", "auth-tls-verify-client: optional",
		}, facts: []fact{
			see("no certificate", "docs/annotations.md", "https GET /", "200"),
			see("the certificate", "docs/annotations.md", "https GET /", "200", "request Ssl-Client-Verify: SUCCESS",
				"request Ssl-Client-Subject-Dn: CN=ann", "request Ssl-Client-Issuer-Dn: CN=ann").by(own...).
				with("Ssl-Client-Subject-DN: CN=forged"),
			see("no certificate, and a word of one", "docs/annotations.md", "https GET /", "200",
				"request Ssl-Client-Verify: NONE", "request Ssl-Client-Subject-Dn: ").
				with("Ssl-Client-Verify: SUCCESS", "Ssl-Client-Subject-DN: CN=forged"),
			see("another certificate", "docs/annotations.md", "https GET /", "000").by("--cert", "DIR/stranger.pem").
				differs("400", "The handshake fails"),
		}},
		{name: "auth-tls-verify-client off", secure: true, ingress: []string{
			"auth-tls-secret: default/authority", "auth-tls-verify-client: off",
		}, facts: []fact{
			see("no certificate", "e2e/authtls.go", "https GET /", "200"),
		}},
		{name: "auth-tls-verify-client optional_no_ca", secure: true, ingress: []string{
			"auth-tls-secret: default/authority", "auth-tls-verify-client: optional_no_ca",
		}, facts: []fact{
			see("no certificate", "docs/annotations.md", "https GET /", "503").
				differs("200", "closes the Ingress"),
		}},
		{name: "auth-tls-match-cn", secure: true, beside: "/other", ingress: []string{
			"auth-tls-secret: default/authority", "auth-tls-match-cn: CN=an+",
		}, facts: []fact{
			see("the certificate", "e2e/authtls.go", "https GET /", "200").by(own...),
			see("the path of another Ingress", "template/nginx.tmpl", "https GET /other", "200").by(own...),
		}},
		{name: "auth-tls-match-cn of another name", secure: true, beside: "/other", ingress: []string{
			"auth-tls-secret: default/authority", "auth-tls-match-cn: CN=bob",
		}, facts: []fact{
			see("the certificate", "e2e/authtls.go", "https GET /", "403").by(own...),
			see("the path of another Ingress", "template/nginx.tmpl", "https GET /other", "403").by(own...),
			see("plain HTTP to the path of another Ingress", "template/nginx.tmpl", "GET /other", "200").
				differs("403", "Plain HTTP that is not redirected is served at the paths"),
		}},
		{name: "auth-tls-match-cn, and a certificate that is optional", secure: true, ingress: []string{
			"auth-tls-secret: default/authority", "auth-tls-match-cn: CN=ann", "auth-tls-verify-client: optional",
			"auth-tls-pass-certificate-to-upstream: true",
		}, facts: []fact{
			see("no certificate", "template/nginx.tmpl", "https GET /", "403"),
			see("the certificate", "template/nginx.tmpl", "https GET /", "200").by(own...),
		}},
		{name: "auth-tls-pass-certificate-to-upstream without one", secure: true, ingress: []string{
			"auth-tls-secret: default/authority", "auth-tls-verify-client: optional",
			"auth-tls-pass-certificate-to-upstream: true",
		}, facts: []fact{
			see("no certificate", "template/nginx.tmpl", "https GET /", "200", "request Ssl-Client-Cert: (none)").
				with("SSL-Client-Cert: forged"),
		}},
		{name: "auth-tls-match-cn that is none", secure: true, beside: "/other", ingress: []string{
			"auth-tls-secret: default/authority", "auth-tls-match-cn: CN=(?!bob)",
		}, facts: []fact{
			see("the certificate", "docs/annotations.md", "https GET /", "503").by(own...).
				differs("200", "closes the Ingress"),
			see("the path of another Ingress", "docs/annotations.md", "https GET /other", "503").by(own...).
				differs("200", "closes the Ingress and its hosts"),
		}},
		{
			name: "auth-tls-secret that is not there", secure: true, ingress: []string{"auth-tls-secret: default/gone"},
			facts: []fact{
				see("a request", "e2e/authtls.go", "https GET /", "503").by(own...).
					differs("403", "all clients of the Ingress get 503"),
			},
		},
		{name: "ssl-passthrough", to: "secure", ingress: []string{"ssl-passthrough: true"}, facts: []fact{
			see("TLS", "docs/annotations.md", "https GET /a", "200", "url /a", "tls true"),
			see("plain HTTP", "template/template.go", "GET /a", "308", "location https://HOST/a").
				differs("what the server says over TLS", "Plain HTTP is redirected to HTTPS"),
		}},
	}
}

func nginxLimits() []conformity {
	return []conformity{
		{name: "limit-rps", ingress: []string{"limit-rps: 1", "limit-burst-multiplier: 1"}, facts: []fact{
			see("a request", "docs/annotations.md", "GET /", "200"),
			see("many requests", "docs/annotations.md", "GET /", "503"), // asked again and again, until it is too often
		}},
		{name: "limit-rpm", ingress: []string{"limit-rpm: 2"}, facts: []fact{
			see("a request", "docs/annotations.md", "GET /", "200"),
			see("many requests", "docs/annotations.md", "GET /", "503"),
		}},
		{name: "limit-allowlist", ingress: []string{
			"limit-rpm: 1", "limit-burst-multiplier: 1", "limit-allowlist: 192.168.50.0/24",
		}, facts: []fact{
			see("a first request", "docs/annotations.md", "GET /", "200"),
			see("a second request", "docs/annotations.md", "GET /", "200"),
			see("a third request", "docs/annotations.md", "GET /", "200"),
		}},
		{name: "limit-whitelist, the older name", ingress: []string{
			"limit-rpm: 1", "limit-burst-multiplier: 1", "limit-whitelist: 192.168.50.10",
		}, facts: []fact{
			see("a first request", "parse/ratelimit", "GET /", "200"),
			see("a second request", "parse/ratelimit", "GET /", "200"),
			see("a third request", "parse/ratelimit", "GET /", "200"),
		}},
		{name: "limit-rps of 0", ingress: []string{"limit-rps: 0", "limit-rpm: 0"}, facts: []fact{
			see("a request", "parse/ratelimit", "GET /", "200"),
		}},
		{name: "limit-rps that is none", ingress: []string{"limit-rps: some"}, facts: []fact{
			see("a request", "parse/ratelimit", "GET /", "200").differs("404", "drops the whole Ingress"),
		}},
		{name: "limit-connections", ingress: []string{"limit-connections: 1"}, facts: []fact{
			see("a second request at once", "e2e/limitconnections.go", "GET /", "200").then(beside(answered("429"))).
				differs("503", "The answer is 429, and not 503"),
		}},
		{name: "limit-connections with limit-allowlist", ingress: []string{
			"limit-connections: 1", "limit-allowlist: 192.168.50.0/24", "limit-whitelist: 192.168.50.0/24",
		}, facts: []fact{
			see("a second request at once", "parse/ratelimit", "GET /", "200").then(beside(answered("429"))).
				differs("200", "and not for `limit-connections`"),
		}},
		{name: "limit-rate", ingress: []string{"limit-rate: 10", "limit-rate-after: 1"}, facts: []fact{
			see("20 kB", "e2e/limitrate.go", "GET /bytes?n=20000", "200").
				differs("200, as fast for the first KiB", "has the rate of `limit-rate` from its beginning"),
		}},
		{name: "limit-rate 0", ingress: []string{"limit-rate: 0"}, facts: []fact{
			see("20 kB", "e2e/limitrate.go", "GET /bytes?n=20000", "200"),
		}},
	}
}
