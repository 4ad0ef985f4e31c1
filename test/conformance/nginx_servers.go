package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

func nginxOrigins() []conformity {
	const (
		origin  = "response Access-Control-Allow-Origin: "
		methods = "response Access-Control-Allow-Methods: "
		headers = "response Access-Control-Allow-Headers: "
		cookies = "response Access-Control-Allow-Credentials: "
		age     = "response Access-Control-Max-Age: "
		usual   = "DNT, Keep-Alive, User-Agent, X-Requested-With, If-Modified-Since, Cache-Control, Content-Type, Range, " +
			"Authorization"
	)
	page := func(f fact, of string) fact { return f.with("Origin: " + of) }
	return []conformity{
		{name: "enable-cors", ingress: []string{"enable-cors: true"}, facts: []fact{
			page(see("a page", "e2e/cors.go", "GET /", "200", origin+"*", age+"1728000",
				methods+"GET, PUT, POST, DELETE, PATCH, OPTIONS", headers+usual), "https://page.test"),
			page(see("cookies", "e2e/cors.go", "GET /", "200", cookies+"(none)"), "https://page.test").
				differs("true, which browsers reject beside *", "If any origin is allowed, credentials are not"),
			see("no page", "e2e/cors.go", "GET /", "200", origin+"(none)").
				differs("*", "an answer to a request without Origin has no headers of CORS"),
			page(see("a preflight", "template/nginx.tmpl", "OPTIONS /", "204", origin+"*"), "https://page.test").
				with("Access-Control-Request-Method: PUT"),
			see("OPTIONS of no page", "template/nginx.tmpl", "OPTIONS /", "204"),
		}},
		{name: "cors-allow-origin", ingress: []string{
			"enable-cors: true", "cors-allow-origin: https://a.test:8080, https://b.test",
		}, facts: []fact{
			page(see("the first", "e2e/cors.go", "GET /", "200", origin+"https://a.test:8080", cookies+"true"),
				"https://a.test:8080"),
			page(see("the second", "e2e/cors.go", "GET /", "200", origin+"https://b.test"), "https://b.test"),
			page(see("another case", "template/template.go", "GET /", "200", origin+"https://B.test"), "https://B.test"),
			page(see("another port", "e2e/cors.go", "GET /", "200", origin+"(none)"), "https://a.test"),
			page(see("another scheme", "e2e/cors.go", "GET /", "200", origin+"(none)"), "http://b.test"),
			page(see("a longer name", "e2e/cors.go", "GET /", "200", origin+"(none)", cookies+"(none)"),
				"https://b.test.evil"),
			page(see("a preflight", "template/nginx.tmpl", "OPTIONS /", "204", origin+"https://b.test",
				methods+"GET, PUT, POST, DELETE, PATCH, OPTIONS", age+"1728000"), "https://b.test"),
			page(see("OPTIONS of another page", "template/nginx.tmpl", "OPTIONS /", "204", origin+"(none)"), "https://c.test").
				differs("what the server says", "OPTIONS is always answered 204"),
		}},
		{name: "cors-allow-origin with *.", ingress: []string{
			"enable-cors: true", "cors-allow-origin: https://*.page.test, http://*.page.test:8080",
		}, facts: []fact{
			page(see("a label", "e2e/cors.go", "GET /", "200", origin+"https://a-b.page.test"), "https://a-b.page.test"),
			page(see("two labels", "e2e/cors.go", "GET /", "200", origin+"(none)"), "https://a.b.page.test"),
			page(see("none", "e2e/cors.go", "GET /", "200", origin+"(none)"), "https://page.test"),
			page(see("a port", "e2e/cors.go", "GET /", "200", origin+"http://a.page.test:8080"), "http://a.page.test:8080"),
			page(see("another port", "e2e/cors.go", "GET /", "200", origin+"(none)"), "http://a.page.test:8081"),
		}},
		{name: "cors-allow-origin with * among others", ingress: []string{
			"enable-cors: true", "cors-allow-origin: foo.test, *", "cors-allow-credentials: true",
		}, facts: []fact{
			page(see("any page", "e2e/cors.go", "GET /", "200", origin+"*", cookies+"(none)"), "https://page.test").
				differs("credentials, too, which browsers reject beside *", "If any origin is allowed, credentials are not"),
		}},
		{name: "cors-allow-origin, one of which is none", ingress: []string{
			"enable-cors: true", "cors-allow-origin: bad.test:8080, https://good.test",
		}, facts: []fact{
			page(see("the good one", "e2e/cors.go", "GET /", "200", origin+"https://good.test"), "https://good.test"),
			page(see("the bad one", "e2e/cors.go", "GET /", "200", origin+"(none)"), "bad.test:8080"),
		}},
		{
			name: "cors-allow-origin, all of which is none", ingress: []string{"enable-cors: true", "cors-allow-origin: .*"},
			facts: []fact{
				page(see("a page", "parse/cors", "GET /", "200", origin+"(none)"), "https://page.test").
					differs("*", "If none is left, no page is allowed"),
			},
		},
		{name: "cors- of one's own", ingress: []string{
			"enable-cors: true", "cors-allow-methods: POST, GET", "cors-allow-headers: X-A, X-B", "cors-max-age: 200",
			"cors-allow-credentials: false", "cors-expose-headers: X-C, X-D", "cors-allow-origin: https://page.test",
		}, facts: []fact{
			page(see("a page", "e2e/cors.go", "GET /", "200", methods+"POST, GET", headers+"X-A, X-B", age+"200",
				cookies+"(none)", "response Access-Control-Expose-Headers: X-C, X-D"), "https://page.test"),
		}},
		{name: "cors- with values that are none", ingress: []string{
			"enable-cors: true", "cors-allow-methods: GET; PUT", "cors-allow-headers: X-A$", "cors-max-age: soon",
			"cors-allow-credentials: maybe", "cors-expose-headers: a b;", "cors-allow-origin: https://page.test",
		}, facts: []fact{
			page(see("the defaults", "parse/cors", "GET /", "200", methods+"GET, PUT, POST, DELETE, PATCH, OPTIONS",
				headers+usual, age+"1728000", "response Access-Control-Expose-Headers: (none)"), "https://page.test"),
			page(see("cookies", "parse/cors", "GET /", "200", cookies+"true"), "https://page.test"),
		}},
		{name: "enable-cors behind a password", ingress: []string{
			"enable-cors: true", "auth-type: basic", "auth-secret: users",
		}, facts: []fact{
			page(see("a preflight", "template/nginx.tmpl", "OPTIONS /", "204", origin+"*"), "https://page.test"),
			page(see("a request", "template/nginx.tmpl", "GET /", "401", origin+"*"), "https://page.test"),
		}},
		{name: "enable-cors off", ingress: []string{"enable-cors: false", "cors-allow-origin: *"}, facts: []fact{
			page(see("a page", "parse/cors", "GET /", "200", origin+"(none)"), "https://page.test"),
			page(see("OPTIONS", "parse/cors", "OPTIONS /", "200"), "https://page.test"),
		}},
	}
}

func nginxServers() []conformity {
	protocol := func(value, to string, want ...string) conformity {
		return conformity{name: "backend-protocol " + value, to: to, ingress: []string{"backend-protocol: " + value}, facts: []fact{
			see("the server", "e2e/backendprotocol.go", "GET /", append([]string{"200"}, want...)...),
		}}
	}
	large := []string{"--data-binary", "@DIR/app", "-H", "Expect:"}
	silent := func(want string) check { // a server that is silent for 1.2 s
		return hears(httpAddress, "GET /slow?d=1300ms&every=1200ms HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n", want)
	}
	kilobyte := strings.Repeat("x", 1<<10)
	hashed := func(value, request string, headers ...string) conformity {
		return conformity{name: "upstream-hash-by " + value, to: "pair", ingress: []string{"upstream-hash-by: " + value}, facts: []fact{
			see("the same server", "e2e/upstreamhashby.go", request, "200").with(headers...).then(stays(request, headers...)),
		}}
	}
	tls := func(name string, want []string, said ...string) conformity {
		return conformity{name: name, to: "secure", ingress: append([]string{"backend-protocol: HTTPS"}, said...), facts: []fact{
			see("the server", "e2e/proxyssl.go", "GET /", want...),
		}}
	}
	return []conformity{
		protocol("HTTP", "", "tls false", "proto HTTP/1.1"),
		protocol("HTTPS", "secure", "tls true", "sni ", "shown "),
		protocol("grpc", "", "tls false", "proto HTTP/2.0"),
		protocol("GRPCS", "secure", "tls true", "proto HTTP/2.0"),
		protocol("AJP", "", "tls false"),
		{name: "backend-protocol AUTO_HTTP", secure: true, ingress: []string{"backend-protocol: AUTO_HTTP"}, facts: []fact{
			see("HTTPS", "e2e/backendprotocol.go", "https GET /", "200", "tls false").
				differs("TLS to the server", "AUTO_HTTP is not served"),
		}},
		{name: "backend-protocol FCGI", ingress: []string{
			"backend-protocol: FCGI", "fastcgi-index: index.php", "fastcgi-params-configmap: default/scripts",
		}, facts: []fact{
			see("a request", "e2e/fastcgi.go", "GET /a/", "200", "url /a/", "proto HTTP/1.1").
				then(script("GET /a/", "/srv/a/index.php")),
		}},
		{name: "fastcgi-params-configmap that is not there", ingress: []string{
			"backend-protocol: FCGI", "fastcgi-params-configmap: gone",
		}, facts: []fact{
			see("a request", "parse/fastcgi", "GET /a", "200").
				differs("503", "Without the ConfigMap, requests are served without its parameters"),
		}},
		{name: "backend-protocol FCGI without parameters", ingress: []string{"backend-protocol: FCGI"}, facts: []fact{
			see("a request", "e2e/fastcgi.go", "GET /a/", "200", "url /a/").
				then(script("GET /a/", "/usr/local/nginx/html/a/")).
				differs("the same, but for SCRIPT_FILENAME", "sends SCRIPT_FILENAME in any case"),
		}},
		tls("proxy-ssl-secret", []string{"200", "tls true", "shown ann", "sni "}, "proxy-ssl-secret: default/certificate"),
		tls("proxy-ssl-verify", []string{"200", "tls true"}, "proxy-ssl-secret: default/certificate", "proxy-ssl-verify: on"),
		{name: "proxy-ssl-verify of another authority", to: "secure", ingress: []string{
			"backend-protocol: HTTPS", "proxy-ssl-secret: default/stranger", "proxy-ssl-verify: on",
		}, facts: []fact{
			see("the server", "e2e/proxyssl.go", "GET /", "503").differs("502", "is answered for by 503"),
		}},
		tls("proxy-ssl-verify off, of another authority", []string{"200", "tls true"},
			"proxy-ssl-secret: default/stranger", "proxy-ssl-verify: off"),
		tls("proxy-ssl-name", []string{"200", "sni "}, "proxy-ssl-name: inner.test"),
		tls("proxy-ssl-server-name", []string{"200", "sni inner.test"}, "proxy-ssl-name: inner.test", "proxy-ssl-server-name: on"),
		{name: "proxy-ssl-name of another", to: "secure", ingress: []string{
			"backend-protocol: HTTPS", "proxy-ssl-secret: default/certificate", "proxy-ssl-verify: on",
			"proxy-ssl-name: other.example",
		}, facts: []fact{
			see("the server", "e2e/proxyssl.go", "GET /", "503").differs("502", "is answered for by 503"),
		}},
		tls("proxy-ssl-protocols", []string{"200", "version TLS 1.2", "cipher TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"},
			"proxy-ssl-secret: default/certificate", "proxy-ssl-protocols: TLSv1.1 TLSv1.2",
			"proxy-ssl-ciphers: ECDHE-ECDSA-AES128-GCM-SHA256:!aNULL"),
		tls("proxy-ssl-protocols without a Secret", []string{"200", "version TLS 1.3"}, "proxy-ssl-protocols: TLSv1.2",
			"proxy-ssl-ciphers: HIGH", "proxy-ssl-verify-depth: 2"),
		{name: "proxy-ssl-ciphers of a property", to: "secure", ingress: []string{
			"backend-protocol: HTTPS", "proxy-ssl-secret: default/certificate", "proxy-ssl-ciphers: CHACHA20",
			"proxy-ssl-protocols: TLSv1.2", "proxy-ssl-verify-depth: 2",
		}, facts: []fact{
			see("the server", "e2e/proxyssl.go", "GET /", "200", "version TLS 1.2").
				differs("a cipher with ChaCha20", "Other words are not served"),
		}},
		{name: "proxy-body-size", ingress: []string{"proxy-body-size: 1k"}, facts: []fact{
			see("as much", "e2e/proxy.go", "POST /", "200").by("-d", kilobyte),
			see("a byte more", "e2e/proxy.go", "POST /", "413").by("-d", kilobyte+"x"),
			see("without Content-Length", "nginx/ngx_http_core_module", "POST /", "200").
				by("-d", kilobyte+"x", "-H", "Transfer-Encoding: chunked").
				differs("413", "A body without Content-Length has no limit"),
		}},
		{name: "proxy-body-size of 0", ingress: []string{"proxy-body-size: 0"}, facts: []fact{
			see("some MB", "e2e/proxy.go", "POST /", "200").by(large...),
		}},
		{name: "proxy-body-size of 64M", ingress: []string{"proxy-body-size: 64M"}, facts: []fact{
			see("some MB", "e2e/proxy.go", "POST /", "200").by(large...),
		}},
		{name: "proxy-body-size of 5 apples", ingress: []string{"proxy-body-size: 5 apples"}, facts: []fact{
			see("the default", "e2e/proxy.go", "POST /", "413").by(large...),
		}},
		{
			name: "proxy-read-timeout", ingress: []string{"proxy-read-timeout: 1", "proxy-send-timeout: 1", "proxy-connect-timeout: 1"},
			facts: []fact{
				see("a server that is silent", "e2e/proxy.go", "GET /", "200").
					then(hears(httpAddress, "GET /slow?d=1m&every=1m HTTP/1.1\r\nHost: HOST\r\n\r\n", "HTTP/1.1 200 ")),
			},
		},
		{
			name: "proxy-read-timeout beside a longer one", ingress: []string{"proxy-read-timeout: 1", "proxy-send-timeout: 120"},
			facts: []fact{
				see("a server that is silent", "e2e/proxy.go", "GET /", "200").then(silent("done")).
					differs("the end after 1 s", "The larger of `proxy-read-timeout` and `proxy-send-timeout`"),
			},
		},
		{name: "proxy-read-timeout with a unit", ingress: []string{"proxy-read-timeout: 1s", "proxy-connect-timeout: soon"}, facts: []fact{
			see("the default", "e2e/proxy.go", "GET /", "200").then(silent("done")),
		}},
		{name: "load-balance round_robin", to: "pair", ingress: []string{"load-balance: round_robin"}, facts: []fact{
			see("a request", "docs/annotations.md", "GET /", "200"),
		}},
		{name: "load-balance ewma", to: "pair", ingress: []string{"load-balance: ewma"}, facts: []fact{
			see("a request", "docs/annotations.md", "GET /", "200"),
		}},
		{name: "load-balance that is none", to: "pair", ingress: []string{"load-balance: fastest"}, facts: []fact{
			see("a request", "lua/balancer.lua", "GET /", "200"),
		}},
		hashed("$request_uri", "GET /a?b=c"),
		hashed("$arg_user", "GET /?user=ann"),
		hashed("$http_x_user", "GET /", "X-User: ann"),
		hashed("$remote_addr", "GET /"),
		hashed("$host", "GET /"),
		{name: "upstream-hash-by two variables", to: "pair", ingress: []string{
			"upstream-hash-by: $request_uri$host", "upstream-hash-by-subset: true", "upstream-hash-by-subset-size: 2",
		}, facts: []fact{
			see("a request", "docs/annotations.md", "GET /", "200").
				differs("the same server for the two together", "One variable"),
		}},
	}
}

// echoes checks that a WebSocket is open.
var echoes = asking(func(_ context.Context, s *testbed, tell func(order) (outcome, error)) error {
	got, err := tell(order{Address: httpAddress, Host: s.host, Send: "hello"})
	if err == nil && got.Heard != "hello" {
		err = fmt.Errorf("%+v", got)
	}
	return err
})

// noted checks that the pods get a copy of a request, as a line of /noted shows it.
func noted(want string, request ...string) check {
	return func(ctx context.Context, s *testbed) error {
		ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
		defer cancel()
		curl := func(args ...string) (string, error) {
			for i, word := range args {
				args[i] = s.named(word)
			}
			to := []string{"curl", "-s", "--max-time", "5", "--connect-to", "::192.168.50.21:"}
			return s.Exec(ctx, world.Client, slices.Concat(to, args)...)
		}
		return rig.Eventually(ctx, want, func() error {
			if _, err := curl(slices.Clone(request)...); err != nil {
				return err
			}
			got, err := curl("http://HOST/noted")
			if err == nil && !strings.Contains(got+"\n", s.named(want)+"\n") {
				err = fmt.Errorf("the pods saw %q, want %q", got, s.named(want))
			}
			return err
		})
	}
}

// stays checks that six requests go to the same of several pods.
func stays(request string, headers ...string) check {
	return func(ctx context.Context, s *testbed) error {
		pod := ""
		for range 6 {
			got, err := s.pod(ctx, request, headers...)
			if err != nil || pod != "" && got != pod {
				return errors.Join(err, fmt.Errorf("pod %q, after %q", got, pod))
			}
			pod = got
		}
		return nil
	}
}

// remembered checks that a canary takes a client by a header, and then without it, by the cookies of the first answer.
func remembered(header string) check {
	return func(ctx context.Context, s *testbed) error {
		url := "http://" + s.host + "/"
		to := []string{"-s", "--max-time", "5", "-b", "", "--connect-to", "::192.168.50.21:"}
		args := slices.Concat([]string{"curl"}, to, []string{"-o", "/dev/null", "-H", header, url, "--next"}, to, []string{url})
		got, err := s.Exec(ctx, world.Client, args...)
		if err == nil && !strings.Contains(got, "new.test") {
			err = fmt.Errorf("the client is not at the canary: %q", got)
		}
		return err
	}
}

// pod returns the header X-Pod and the cookies of an answer.
func (s *testbed) pod(ctx context.Context, request string, headers ...string) (string, error) {
	_, path, _ := strings.Cut(request, " ")
	args := []string{"curl", "-s", "-o", "/dev/null", "--max-time", "5", "-w", "%header{x-pod}"}
	for _, h := range headers {
		args = append(args, "-H", h)
	}
	args = append(args, "--connect-to", "::192.168.50.21:", "http://"+s.host+path)
	pod, err := s.Exec(ctx, world.Client, args...)
	if err == nil && pod == "" {
		err = errors.New("the answer has no header X-Pod")
	}
	return pod, err
}

func nginxCookies() []conformity {
	sent := func(name, from, cookie, want string) fact {
		return see(name, from, "GET /status/200?cookie="+url.QueryEscape(cookie), "200", "response Set-Cookie: "+want)
	}
	leads := func(name, from, location, want string) fact {
		return see(name, from, "GET /status/302?location="+location, "302", "location "+want)
	}
	const proxied = "nginx/ngx_http_proxy_module"
	cookie := func(name, from, want string, said ...string) conformity {
		return conformity{name: name, ingress: append([]string{"affinity: cookie"}, said...), facts: []fact{
			see("the cookie", from, "GET /", "200", "response Set-Cookie: "+want),
		}}
	}
	return []conformity{
		{name: "affinity", path: "/in", beside: "/other", ingress: []string{"affinity: cookie"}, facts: []fact{
			see("the cookie", "e2e/affinity.go", "GET /in", "200", "response Set-Cookie: INGRESSCOOKIE=~; path=/; HttpOnly").
				differs("Path=/in", "Without it the path is /, and not that of the Ingress"),
			see("a path of another Ingress of the host", "e2e/affinity.go", "GET /other", "200",
				"response Set-Cookie: (none)"),
		}},
		{name: "affinity of two servers", to: "pair", ingress: []string{
			"affinity: cookie", "session-cookie-name: at", "affinity-mode: persistent", "session-cookie-change-on-failure: true",
		}, facts: []fact{
			see("the cookie leads back", "docs/annotations.md", "GET /", "200", "response Set-Cookie: at=~").then(leadsBack),
		}},
		{name: "affinity, and all that a cookie may have", ingress: []string{
			"affinity: cookie", "session-cookie-name: at", "session-cookie-path: /in", "session-cookie-max-age: 600",
			"session-cookie-expires: 700", "session-cookie-domain: shop.test", "session-cookie-samesite: Strict",
			"session-cookie-secure: true",
		}, facts: []fact{
			see("the cookie", "e2e/affinity.go", "GET /", "200", "response Set-Cookie: at=~; path=/; domain=shop.test; "+
				"HttpOnly; Secure; SameSite=Strict; Path=/in; Max-Age=600").
				differs("Expires, too", "The cookie has Max-Age, and not Expires"),
		}},
		{name: "session-cookie-expires", ingress: []string{"affinity: cookie", "session-cookie-expires: 700"}, facts: []fact{
			see("the cookie", "e2e/affinity.go", "GET /", "200",
				"response Set-Cookie: INGRESSCOOKIE=~; path=/; HttpOnly; Max-Age=700").
				differs("Expires in 700 s", "The cookie has Max-Age, and not Expires"),
		}},
		{name: "affinity over HTTPS", secure: true, ingress: []string{"affinity: cookie"}, facts: []fact{
			see("the cookie", "e2e/affinity.go", "https GET /", "200", "response Set-Cookie: INGRESSCOOKIE=~; path=/; HttpOnly").
				differs("Secure, too", "The cookie is Secure only if this asks for it"),
		}},
		cookie("session-cookie-secure off", "e2e/affinity.go", "INGRESSCOOKIE=~; path=/; HttpOnly", "session-cookie-secure: false"),
		cookie("session-cookie-samesite Lax", "docs/annotations.md", "INGRESSCOOKIE=~; path=/; HttpOnly; SameSite=Lax",
			"session-cookie-samesite: Lax"),
		{name: "session-cookie-samesite none", ingress: []string{
			"affinity: cookie", "session-cookie-samesite: none", "session-cookie-conditional-samesite-none: true",
		}, facts: []fact{
			see("the cookie", "parse/sessionaffinity", "GET /", "200",
				"response Set-Cookie: INGRESSCOOKIE=~; path=/; HttpOnly; Secure; SameSite=None").
				differs("not Secure over plain HTTP", "With None the cookie is also Secure"),
			see("an old browser", "lua/util/same_site.lua", "GET /", "200",
				"response Set-Cookie: INGRESSCOOKIE=~; path=/; HttpOnly; Secure; SameSite=None").
				with("User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/55.0.2883.87 Safari/537.36").
				differs("no SameSite", "SameSite is the same for all browsers"),
		}},
		cookie("session-cookie-samesite that is none", "parse/sessionaffinity", "INGRESSCOOKIE=~; path=/; HttpOnly",
			"session-cookie-samesite: Often"),
		cookie("session-cookie-max-age that is none", "parse/sessionaffinity", "INGRESSCOOKIE=~; path=/; HttpOnly",
			"session-cookie-max-age: soon"),
		{name: "affinity that is none", ingress: []string{"affinity: ip", "session-cookie-name: at"}, facts: []fact{
			see("no cookie", "parse/sessionaffinity", "GET /", "200", "response Set-Cookie: (none)"),
		}},
		{name: "proxy-cookie-path", ingress: []string{"proxy-cookie-path: /one/ /"}, facts: []fact{
			sent("the path", "e2e/proxy.go", "a=b; Path=/one/two", "a=b; Path=/two"),
			sent("its name in another case", proxied, "a=b; Secure; path=/one/", "a=b; Secure; path=/"),
			sent("another path", proxied, "a=b; Path=/two/one/", "a=b; Path=/two/one/"),
			sent("no path", proxied, "path=/one/; Secure", "path=/one/; Secure"),
		}},
		{name: "proxy-cookie-domain", ingress: []string{"proxy-cookie-domain: localhost example.org"}, facts: []fact{
			sent("the domain", "e2e/proxy.go", "a=b; Domain=localhost; Path=/", "a=b; Domain=example.org; Path=/"),
			sent("with a dot", proxied, "a=b; Domain=.localhost", "a=b; Domain=.example.org"),
			sent("in another case", proxied, "a=b; domain=LocalHost", "a=b; domain=example.org"),
			sent("a domain in it", proxied, "a=b; Domain=a.localhost", "a=b; Domain=a.localhost"),
		}},
		{name: "proxy-cookie- off", ingress: []string{"proxy-cookie-path: off", "proxy-cookie-domain: off"}, facts: []fact{
			sent("a cookie", "e2e/proxy.go", "a=b; Domain=in.test; Path=/in", "a=b; Domain=in.test; Path=/in"),
		}},
		{name: "proxy-cookie- with expressions", ingress: []string{
			"proxy-cookie-path: ~/one /", "proxy-cookie-domain: ~local example.org",
		}, facts: []fact{
			sent("a path", proxied, "a=b; Path=/one", "a=b; Path=/one").
				differs("a=b; Path=/", "Regular expressions (`~`) are not served"),
			sent("a domain", proxied, "a=b; Domain=local", "a=b; Domain=local").
				differs("a=b; Domain=example.org", "Regular expressions (`~`) are not served"),
		}},
		{name: "proxy-redirect-", ingress: []string{
			"proxy-redirect-from: http://in.test/", "proxy-redirect-to: https://out.test/a/",
		}, facts: []fact{
			leads("a redirect", "e2e/proxy.go", "http://in.test/x", "https://out.test/a/x"),
			leads("another host", proxied, "http://in.test.x/", "http://in.test.x/"),
			leads("another case", proxied, "http://IN.test/", "http://IN.test/"),
			see("a refresh", proxied, "GET /status/200?refresh=5%3BURL=http://in.test/", "200",
				"response Refresh: 5;URL=https://out.test/a/"),
		}},
		{name: "proxy-redirect-to a path", ingress: []string{
			"proxy-redirect-from: http://in.test/", "proxy-redirect-to: /a/",
		}, facts: []fact{
			leads("a redirect", proxied, "http://in.test/x", "/a/x").
				differs("http://HOST/a/x", "A URL without a host stays so"),
		}},
		{name: "proxy-redirect-from off", ingress: []string{
			"proxy-redirect-from: off", "proxy-redirect-to: http://out.test/",
		}, facts: []fact{leads("a redirect", "e2e/proxy.go", "http://in.test/x", "http://in.test/x")}},
		{name: "proxy-redirect-from default", ingress: []string{
			"proxy-redirect-from: default", "proxy-redirect-to: http://out.test/",
		}, facts: []fact{leads("a redirect", "e2e/proxy.go", "http://in.test/x", "http://in.test/x")}},
		{name: "session-cookie-name alone", ingress: []string{"session-cookie-name: at"}, facts: []fact{
			see("no cookie", "parse/sessionaffinity", "GET /", "200", "response Set-Cookie: (none)"),
		}},
	}
}

// leadsBack checks that a client with a cookie of affinity stays with its pod.
func leadsBack(ctx context.Context, s *testbed) error {
	out, err := s.Exec(ctx, world.Client, "curl", "-s", "-o", "/dev/null", "--max-time", "5", "-w",
		"%header{set-cookie}\t%header{x-pod}", "--connect-to", "::192.168.50.21:", "http://"+s.host+"/")
	if err != nil {
		return err
	}
	cookie, pod, _ := strings.Cut(out, "\t")
	value, _, _ := strings.Cut(cookie, ";")
	got, err := s.pod(ctx, "GET /", "Cookie: "+value)
	if err == nil && got != pod {
		err = fmt.Errorf("cookie %q of pod %q leads to pod %q", value, pod, got)
	}
	return errors.Join(err, stays("GET /", "Cookie: "+value)(ctx, s))
}

func nginxCanaries() []conformity {
	const mark = "upstream-vhost: new.test"
	canary := func(name string, said []string, facts ...fact) conformity {
		return conformity{name: name, canary: append([]string{"canary: true", mark}, said...), facts: facts}
	}
	to := func(host, name, from string, headers ...string) fact {
		return see(name, from, "GET /", "200", "host "+host).with(headers...)
	}
	main := func(name, from string, headers ...string) fact { return to("HOST", name, from, headers...) }
	fresh := func(name, from string, headers ...string) fact { return to("new.test", name, from, headers...) }
	const lua = "lua/balancer.lua"
	return []conformity{
		canary("canary-by-header", []string{"canary-by-header: X-New"},
			fresh("always", "e2e/canary.go", "X-New: always"), main("never", "e2e/canary.go", "X-New: never"),
			main("another value", "e2e/canary.go", "X-New: other"), main("no header", "e2e/canary.go"),
			fresh("the name in another case", lua, "x-new: always")),
		canary("canary-by-header-value", []string{"canary-by-header: X-New", "canary-by-header-value: v 2"},
			fresh("the value", "e2e/canary.go", "X-New: v 2"), main("always", "e2e/canary.go", "X-New: always"),
			main("another value", "e2e/canary.go", "X-New: v 3")),
		canary("canary-by-header-pattern", []string{"canary-by-header: X-New", "canary-by-header-pattern: -[0-9]+$"},
			fresh("a match", "docs/annotations.md", "X-New: user-17"), main("no match", "docs/annotations.md", "X-New: user-x"),
			main("always", lua, "X-New: always")),
		canary("canary-by-header-value and -pattern", []string{
			"canary-by-header: X-New", "canary-by-header-value: v2", "canary-by-header-pattern: ^v[0-9]$",
		}, fresh("the value", lua, "X-New: v2"), main("the pattern", lua, "X-New: v3")),
		canary("canary-by-header-value alone", []string{"canary-by-header-value: v2"},
			main("the value", "docs/annotations.md", "X-New: v2")),
		canary("canary-by-cookie", []string{"canary-by-cookie: new"},
			fresh("always", "e2e/canary.go", "Cookie: a=b; new=always"), main("never", "e2e/canary.go", "Cookie: new=never"),
			main("another value", "e2e/canary.go", "Cookie: new=yes"), main("no cookie", "e2e/canary.go")),
		canary("canary-weight 100", []string{"canary-by-header: X-New", "canary-by-cookie: new", "canary-weight: 100"},
			fresh("a request", "e2e/canary.go"), main("never by the header", lua, "X-New: never", "Cookie: new=always"),
			main("never by the cookie", lua, "Cookie: new=never"),
			main("another value, then never", lua, "X-New: other", "Cookie: new=never"),
			fresh("other values", lua, "X-New: other", "Cookie: new=other")),
		canary("canary-weight 0", []string{"canary-by-header: X-New", "canary-by-cookie: new", "canary-weight: 0"},
			main("a request", "e2e/canary.go"), fresh("always by the header", lua, "X-New: always", "Cookie: new=never"),
			fresh("always by the cookie", lua, "X-New: other", "Cookie: new=always")),
		canary("canary-weight-total", []string{"canary-weight: 1000", "canary-weight-total: 1000"},
			fresh("all", "docs/annotations.md")),
		canary("canary-weight-total of less than 100", []string{"canary-weight: 100", "canary-weight-total: 10"}, fresh("all", lua)),
		canary("canary-weight that is none", []string{"canary-weight: some"}, main("a request", "parse/canary")),
		canary("affinity-canary-behavior sticky", []string{
			"canary-by-header: X-New", "affinity: cookie", "affinity-canary-behavior: sticky",
		}, main("a request", lua), fresh("the header, and then none", lua, "X-New: always").then(remembered("X-New: always"))),
		canary("affinity-canary-behavior legacy", []string{
			"canary-by-header: X-New", "affinity: cookie", "affinity-canary-behavior: legacy",
		}, main("a request", lua), fresh("the header", lua, "X-New: always")),
		{name: "canary off", canary: []string{"canary: false", "canary-weight: 100", mark}, facts: []fact{
			main("a request", "parse/canary"),
		}},
		{
			name: "a canary and its own annotations", path: "/app(/|$)(.*)", ingress: []string{"rewrite-target: /$2"},
			canary: []string{"canary: true", "canary-by-header: X-New", "rewrite-target: /canary/$2"}, facts: []fact{
				see("the Ingress", "docs/annotations.md", "GET /app/x", "200", "url /x"),
				see("the canary", "docs/annotations.md", "GET /app/x", "200", "url /canary/x").with("X-New: always").
					differs("/x", "The canary has its own keys"),
			},
		},
	}
}

func nginxLost() []conformity {
	closed := func(name, there, page string, said ...string) conformity {
		return conformity{name: name, ingress: said, facts: []fact{
			see("a request", "docs/annotations-risk.md", "GET /", "503").differs(there, page),
		}}
	}
	const snippet, firewall = "Snippets are never read", "HAProxy has no web application firewall"
	return []conformity{
		closed("configuration-snippet", "404, or what it says", snippet, "configuration-snippet: deny all;"),
		closed("auth-snippet", "404, or what it says", snippet, "auth-snippet: deny all;"),
		closed("stream-snippet", "404, or what it says", snippet, "stream-snippet: server {}"),
		closed("modsecurity-snippet", "404, or what it says", firewall, "modsecurity-snippet: SecRuleEngine On"),
		{name: "server-snippet that is given up", ingress: []string{"server-snippet: deny all;"}, facts: []fact{
			see("a request", "docs/annotations-risk.md", "GET /", "200").
				differs("404, or what it says", "`without` lists guards that you give up"),
		}},
		closed("enable-modsecurity", "200, or 403", firewall, "enable-modsecurity: true"),
		closed("enable-owasp-core-rules", "200, or 403", firewall, "enable-owasp-core-rules: true"),
		{name: "a firewall that is off", ingress: []string{
			"enable-modsecurity: false", "enable-owasp-core-rules: false",
		}, facts: []fact{see("a request", "e2e/modsecurity", "GET /", "200")}},
		{name: "enable-access-log", secure: true, ingress: []string{
			"enable-access-log: false", "ssl-redirect: false",
		}, facts: []fact{
			see("a request", "e2e/log.go", "GET /", "200").
				then(silent("GET /silent-HOST HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n")),
		}},
		{name: "enable-access-log true", ingress: []string{"enable-access-log: true"}, facts: []fact{
			see("a request", "e2e/log.go", "GET /", "200").
				then(logs(httpAddress, "GET /x-HOST HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n", "/x-HOST")),
		}},
		{name: "enable-access-log, and a redirect to HTTPS", secure: true, ingress: []string{
			"enable-access-log: false",
		}, facts: []fact{
			see("a request", "template/nginx.tmpl", "GET /", "308").
				then(logs(httpAddress, "GET /x-HOST HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n", "/x-HOST")).
				differs("no log line", "A redirect to HTTPS has a log line in any case"),
		}},
		{name: "proxy-next-upstream", to: "pair", ingress: []string{
			"proxy-next-upstream: error timeout http_503 http_429", "proxy-next-upstream-tries: 2",
		}, facts: []fact{
			see("an answer", "e2e/proxy.go", "GET /", "200"),
			see("an error of each server", "e2e/proxy.go", "GET /status/503", "503"),
			see("an error of each server to POST", "nginx/ngx_http_proxy_module", "POST /status/503", "503"),
			see("too many requests", "nginx/ngx_http_proxy_module", "GET /status/429", "429").
				differs("the same, after the other server was asked", "`http_429` and `non_idempotent` are not served"),
		}},
		{name: "proxy-next-upstream off", to: "pair", ingress: []string{"proxy-next-upstream: off"}, facts: []fact{
			see("an answer", "e2e/proxy.go", "GET /", "200"),
			see("an error", "e2e/proxy.go", "GET /status/502", "502"),
		}},
		{name: "default-backend", to: "nobody", ingress: []string{"default-backend: app"}, facts: []fact{
			see("no endpoints", "e2e/default_backend.go", "GET /a", "200", "url /a"),
		}},
		{name: "default-backend of a Service with endpoints", ingress: []string{"default-backend: pair"}, facts: []fact{
			see("a request", "e2e/default_backend.go", "GET /a", "200", "response X-Pod: app~"),
		}},
		{name: "default-backend that is not there", to: "nobody", ingress: []string{"default-backend: gone"}, facts: []fact{
			see("no endpoints", "parse/defaultbackend", "GET /", "503"),
		}},
		{name: "custom-http-errors", ingress: []string{"custom-http-errors: 404,503", "default-backend: app"}, facts: []fact{
			see("an error of a server", "e2e/customhttperrors.go", "GET /status/404", "200", "url /", "request X-Code: 404",
				"request X-Original-URI: /status/404", "request X-Namespace: default", "request X-Format: application/json"),
			see("another error", "e2e/customhttperrors.go", "GET /status/500", "500"),
			see("an error to POST", "template/nginx.tmpl", "POST /status/503", "200", "url /").
				differs("the same by POST", "asked for by GET or HEAD"),
			see("what ingress-nginx says of the Ingress", "template/nginx.tmpl", "GET /status/404", "200",
				"request X-Service-Name: (none)").differs("the name of the Service", "without X-Ingress-Name"),
		}},
		{name: "custom-http-errors of a Service without servers", to: "nobody", ingress: []string{
			"custom-http-errors: 503",
		}, facts: []fact{
			see("no endpoints", "template/nginx.tmpl", "GET /", "503").
				differs("the answer of its default backend", "answers that HAProxy makes itself"),
		}},
		{name: "disable-proxy-intercept-errors", ingress: []string{
			"custom-http-errors: 404", "default-backend: app", "disable-proxy-intercept-errors: true",
		}, facts: []fact{
			see("an error of a server", "e2e/disableproxyintercepterrors.go", "GET /status/404", "404"),
		}},
		{name: "custom-headers", ingress: []string{"custom-headers: default/headers"}, facts: []fact{
			see("a header", "e2e/customheaders.go", "GET /", "200", "response X-Share: 50% of it", "response Server: none").
				differs("the Ingress is not served, since `global-allowed-response-headers` does not list them",
					"Any header is allowed"),
		}},
		{name: "what needs nothing", ingress: []string{
			"client-body-buffer-size: 1k", "connection-proxy-header: keep-alive",
			"enable-rewrite-log: true", "http2-push-preload: true", "proxy-buffer-size: 8k", "proxy-buffering: on",
			"proxy-buffers-number: 8", "proxy-busy-buffers-size: 16k", "proxy-http-version: 1.1",
			"proxy-max-temp-file-size: 1m", "proxy-request-buffering: off", "relative-redirects: true",
			"service-upstream: true", "ssl-prefer-server-ciphers: true",
		}, facts: []fact{
			see("a request", "docs/annotations.md", "GET /a", "200", "url /a", "proto HTTP/1.1"),
		}},
		{name: "mirror-target", ingress: []string{
			"mirror-target: http://app.default.svc.cluster.local:80/noted$request_uri", "mirror-host: copy.test",
		}, facts: []fact{
			see("a request", "e2e/mirror.go", "GET /a", "200", "url /a").
				then(noted("POST /noted/to-HOST?b copy.test 2", "-d", "xy", "http://HOST/to-HOST?b")),
		}},
		{name: "mirror-request-body", ingress: []string{
			"mirror-target: http://app/noted$request_uri", "mirror-request-body: off",
		}, facts: []fact{
			see("a request", "e2e/mirror.go", "GET /a", "200", "url /a").
				then(noted("POST /noted/of-HOST app 0", "-d", "xy", "http://HOST/of-HOST")),
		}},
		{name: "what is not served", ingress: []string{
			"enable-opentelemetry: true", "mirror-target: https://mirror.test/$request_uri",
			"mirror-host: mirror.test", "mirror-request-body: off", "modsecurity-transaction-id: x", "opentelemetry-operation-name: x",
			"opentelemetry-trust-incoming-span: true", "proxy-next-upstream-timeout: 1",
			"affinity: cookie", "affinity-canary-behavior: sticky",
		}, facts: []fact{
			see("a request", "docs/annotations.md", "GET /a", "200", "url /a").
				differs("the same to the client, and a copy to mirror.test", "other URLs are not served"),
			see("a header of a trace", "e2e/opentelemetry", "GET /", "200", "request Traceparent: 00-1-2-01").
				with("Traceparent: 00-1-2-01"),
		}},
		{name: "an annotation that nobody knows", ingress: []string{"hsts: true", "proxy-max-body-size: 1k"}, facts: []fact{
			see("no effect", "docs/annotations.md", "GET /", "200", "response Strict-Transport-Security: (none)"),
		}},
	}
}
