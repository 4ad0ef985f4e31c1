package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"sallyport/test/rig"
)

// objects returns the manifest that all cases share. dir holds the certificate of the pods that
// speak TLS.
func objects(dir string) string {
	return rig.App{Name: "app", Args: []string{"-proxy"}}.Manifest() + rig.Service("default", "app", "app") +
		rig.App{Name: "secure", Args: []string{
			"-proxy", "-tls-cert", dir + "/ann.pem", "-tls-key",
			dir + "/ann.pem",
		}}.Manifest() +
		rig.App{Name: "pair", Replicas: 2}.Manifest() +
		rig.App{Name: "scaled", Grace: 5, Args: []string{"-drain", "2s"}}.Manifest() +
		rig.Service("default", "scaled", "scaled") +
		configMaps + publicKey() + gateway
}

const configMaps = `---
apiVersion: v1
kind: ConfigMap
metadata: {name: headers}
data:
  X-Share: 50% of it
  Server: none
---
apiVersion: v1
kind: ConfigMap
metadata: {name: team}
data: {X-Team: a b}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: scripts}
data: {SCRIPT_FILENAME: /srv$fastcgi_script_name, HTTP_PROXY: ""}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: variables}
data: {X-Team: $host}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: lists}
data:
  clients: "10.0.0.0/8 # and more"
  here: 192.168.50.0/24
---
apiVersion: v1
kind: ConfigMap
metadata: {name: tcp}
data:
  "15432": default/scaled:web
  "15433": default/scaled:web:ssl
  "443": default/scaled:web
---
apiVersion: v1
kind: ConfigMap
metadata: {name: defaults}
data:
  proxy-protocol: 192.168.50.99
  quic-bind-port: "443"
  quic-announce-port: "8443"
  quic-alt-svc-max-age: "99"
  response-set-header: X-Default yes
  rate-limit-status-code: "429"
  timeout-client: 30s
  frontend-config-snippet: http-request set-header X-Frontend yes
  global-config-snippet: tune.http.maxhdr 150
  log-format: "%ci:%cp [%tr] %ft %b/%s %ST %B %hr %HU"
  log-format-tcp: "streamed for %ci by %ft"
  syslog-server: "address:192.168.50.10, port:5514, facility:local1"
`

// gateway is a Gateway at the addresses of Ingresses.
const gateway = `---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: sallyport}
spec: {controllerName: sallyport.dev/gateway}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: front}
spec:
  gatewayClassName: sallyport
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: certificate}]}}
`

// secrets are the Secrets that cases name. The password is "secret".
const secrets = `---
apiVersion: v1
kind: Secret
metadata: {name: users}
stringData: {ann: "$6$salt$egUxKNxDs8kPfh8iPMNcosMhb2eWah6d3R44JDm5Rj/j/XWR5E33QPd0YmHXoDHOIDR6kL5D3JcQcz0O8FHE00"}
---
apiVersion: v1
kind: Secret
metadata: {name: mixed}
stringData: {ann: "$6$salt$egUxKNxDs8kPfh8iPMNcosMhb2eWah6d3R44JDm5Rj/j/XWR5E33QPd0YmHXoDHOIDR6kL5D3JcQcz0O8FHE00", old: rl.3StKT.4T8M}
---
apiVersion: v1
kind: Secret
metadata: {name: htpasswd}
stringData: {auth: "# members\nbob:$6$salt$egUxKNxDs8kPfh8iPMNcosMhb2eWah6d3R44JDm5Rj/j/XWR5E33QPd0YmHXoDHOIDR6kL5D3JcQcz0O8FHE00\n"}
---
apiVersion: v1
kind: Secret
metadata: {name: tokens}
stringData: {hs256: "a secret of more than 32 bytes, of the cases"}
`

// bearer returns a header with a token that is signed with the secret of Secret tokens.
func bearer(expires int, role string) string {
	encode := base64.RawURLEncoding.EncodeToString
	signed := encode([]byte(`{"alg":"HS256"}`)) + "." + encode(fmt.Appendf(nil,
		`{"iss":"https://login.test/","aud":["other","app"],"sub":"ann","exp":%d,"role":%q}`, expires, role))
	m := hmac.New(sha256.New, []byte("a secret of more than 32 bytes, of the cases"))
	m.Write([]byte(signed))
	return "Authorization: Bearer " + signed + "." + encode(m.Sum(nil))
}

// signer signs the tokens that the ConfigMap of publicKey is for.
var signer = sync.OnceValue(func() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return key
})

// publicKey returns a ConfigMap with the public key of signer.
func publicKey() string {
	der, err := x509.MarshalPKIXPublicKey(signer().Public())
	if err != nil {
		panic(err)
	}
	key := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	return fmt.Sprintf("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: public}\ndata: {login: %q}\n", key)
}

// publicBearer returns a header with a token that signer has signed (RFC 7518, section 3.4).
func publicBearer() string {
	encode := base64.RawURLEncoding.EncodeToString
	signed := encode([]byte(`{"alg":"ES256"}`)) + "." + encode(fmt.Appendf(nil, `{"sub":"ann","exp":%d}`, late))
	sum := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, signer(), sum[:])
	if err != nil {
		panic(err)
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return "Authorization: Bearer " + signed + "." + encode(signature)
}

// late is a time that no case reaches.
const late = 4102444800

// certificate adds two Secrets, each with a certificate for every case and its authority:
// certificate, which clients and cases use, and stranger, from another authority. It writes
// ann.pem and stranger.pem into dir, which clients present or trust.
func certificate(to io.Writer, dir string) error {
	_, _ = io.WriteString(to, secrets)
	encode := base64.StdEncoding.EncodeToString
	for _, s := range []struct{ secret, name string }{{"certificate", "ann"}, {"stranger", "stranger"}} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		template := &x509.Certificate{
			SerialNumber: big.NewInt(1), DNSNames: []string{"*.test", "nobody.test"},
			Subject: pkix.Name{CommonName: s.name},
			IsCA:    true, BasicConstraintsValid: true, NotBefore: time.Now().Add(-time.Hour),
			NotAfter: time.Now().Add(24 * time.Hour),
		}
		crt, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
		if err != nil {
			return err
		}
		private, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return err
		}
		chain, secret := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: crt}),
			pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
		if err := os.WriteFile(filepath.Join(dir, s.name+".pem"), slices.Concat(chain, secret), 0o600); err != nil {
			return err
		}
		if s.name == "ann" {
			_, _ = fmt.Fprintf(to, "---\napiVersion: v1\nkind: Secret\nmetadata: {name: opaque}\n"+
				"data: {tls.crt: %s, tls.key: %s}\n", encode(chain), encode(secret))
			_, _ = fmt.Fprintf(to, "---\napiVersion: v1\nkind: Secret\nmetadata: {name: authority}\n"+
				"data: {ca.crt: %s}\n", encode(chain))
		}
		_, _ = fmt.Fprintf(to, "---\napiVersion: v1\nkind: Secret\nmetadata: {name: %s}\ntype: kubernetes.io/tls\n"+
			"data: {tls.crt: %s, tls.key: %s}\n",
			s.secret, encode(chain), encode(secret))
	}
	return nil
}

// The client is 192.168.50.10.
func cases() []conformity {
	return slices.Concat(ownCases(), nginxCases(), routeCases(), resourceCases(), kicCases())
}

// routeCases returns the cases of routes at the addresses of Ingresses.
func routeCases() []conformity {
	to := func(by, matches string) string {
		return "{backendRefs: [{name: app, port: 80}], matches: [" + matches + "], filters: [{type: " +
			"ResponseHeaderModifier, responseHeaderModifier: {set: [{name: X-By, value: " + by + "}]}}]}"
	}
	get := func(request, by string, headers ...string) ask {
		return ask{request: request, headers: headers, want: []string{"200", "response X-By: " + by}}
	}
	return []conformity{
		{
			name: "an HTTPRoute and an Ingress at one host", path: "/old", ingress: []string{"response-set-header: X-By ingress"},
			routes: map[string][]string{"http": {
				to("route", "{path: {value: /}}"), to("header", `{headers: [{name: x-canary, value: "a b"}]}`),
				to("method", "{method: POST}"), to("parameter", "{path: {value: /old}, queryParams: [{name: q, value: x/y}]}"),
			}},
			asks: []ask{
				get("GET /a", "route"), get("GET /old", "ingress"), get("GET /old/a", "ingress"), get("GET /older", "route"),
				get("GET /a", "header", "X-Canary: a b"), get("GET /a", "route", "X-Canary: a"), get("POST /a", "method"),
				get("POST /a", "method", "X-Canary: a b"), get("GET /old?q=x%2Fy", "parameter"),
				get("GET /old", "ingress", "X-Canary: a b"), get("https GET /a", "route"),
			},
		},
		{
			name: "an HTTPRoute over TLS alone beside an Ingress, and one that redirects", path: "/old",
			ingress: []string{"response-set-header: X-By ingress", "ssl-redirect: false"},
			routes: map[string][]string{
				"https": {to("route", "{path: {value: /}}"), to("header", "{path: {value: /old}, headers: [{name: x-canary, value: a}]}")},
				"http":  {"{filters: [{type: RequestRedirect, requestRedirect: {scheme: https, statusCode: 301}}]}"},
			},
			asks: []ask{
				{request: "GET /a?b", want: []string{"301", "location https://HOST/a?b"}},
				get("https GET /a", "route"),
				get("GET /old", "ingress"), get("GET /old", "ingress", "X-Canary: a"), get("https GET /old", "ingress"),
				get("https GET /old", "header", "X-Canary: a"),
			},
		},
	}
}

func ownCases() []conformity {
	const page = "Origin: https://page.test"
	get := func(want ...string) []ask {
		return []ask{{request: "GET /a?b=c", want: append([]string{"200"}, want...)}}
	}
	return []conformity{
		{name: "nothing said", asks: get("url /a?b=c", "host HOST", "request X-Forwarded-For: 192.168.50.10",
			"request X-Forwarded-Proto: http", "response X-Default: yes")},
		{
			name: "an Ingress goes before the ConfigMap", ingress: []string{"response-set-header: X-Default no"},
			asks: get("response X-Default: no"),
		},
		{
			name: "forwarded-for off", ingress: []string{"forwarded-for: false"},
			asks: get("request X-Forwarded-For: (none)"),
		},
		{
			name: "forwarded-headers", ingress: []string{"sallyport.dev/forwarded-headers: true"},
			asks: get("request X-Real-Ip: 192.168.50.10", "request X-Forwarded-Host: HOST", "request X-Scheme: http"),
		},
		{
			name: "response-headers-from", ingress: []string{"sallyport.dev/response-headers-from: headers"},
			asks: get("response X-Share: 50% of it", "response Server: none"),
		},
		{name: "allow-list with the client", ingress: []string{"allow-list: 10.0.0.0/8, 192.168.50.10"}, asks: get()},
		{
			name: "allow-list without it", ingress: []string{"allow-list: 10.0.0.0/8"},
			asks: []ask{{request: "GET /", want: []string{"403"}}},
		},
		{
			name: "allow-list by a list that grows", ingress: []string{"allow-list: patterns/clients"},
			asks: []ask{{request: "GET /", want: []string{"403"}}}, check: listed,
		},
		{
			name: "whitelist, the older name", ingress: []string{"ingress.kubernetes.io/whitelist: 10.0.0.0/8"},
			asks: []ask{{request: "GET /", want: []string{"403"}}},
		},
		{
			name: "deny-list without a prefix", ingress: []string{"bare deny-list: 192.168.50.0/24"},
			asks: []ask{{request: "GET /", want: []string{"403"}}},
		},
		{
			name:    "blacklist without a prefix, and deny-list with one",
			ingress: []string{"bare blacklist: 192.168.50.0/24", "deny-list: 10.0.0.0/8"}, asks: get(),
		},
		{
			name:    "auth-type and auth-secret without a prefix",
			ingress: []string{"bare auth-type: basic-auth", "bare auth-secret: users"}, asks: []ask{
				{request: "GET /", want: []string{"401"}},
				{request: "GET /", curl: []string{"-u", "ann:secret"}, want: []string{"200"}},
			},
		},
		{
			name: "a Service without a prefix", service: []string{"bare forwarded-for: false"},
			asks: get("request X-Forwarded-For: (none)"),
		},
		{
			name: "a guard without a prefix that is not good", ingress: []string{"bare deny-list: nobody"},
			asks: []ask{{request: "GET /", want: []string{"503"}}},
		},
		{
			name: "a guard mistyped", ingress: []string{"deny-lists: 10.0.0.0/8"},
			asks: []ask{{request: "GET /", want: []string{"503"}}},
		},
		{
			name:    "another's name without a prefix",
			ingress: []string{"bare deny-lists: 192.168.50.0/24", "bare owner: web"}, asks: get(),
		},
		{
			name: "deny-list with the client", ingress: []string{"deny-list: 192.168.50.0/24"},
			asks: []ask{{request: "GET /", want: []string{"403"}}},
		},
		{name: "deny-list without it", ingress: []string{"deny-list: 10.0.0.0/8"}, asks: get()},
		{
			name: "src-ip-header before a list", ingress: []string{"src-ip-header: X-Client", "allow-list: 10.0.0.0/8"},
			asks: []ask{
				{
					request: "GET /", headers: []string{"X-Client: 10.1.2.3"},
					want: []string{"200", "request X-Forwarded-For: 10.1.2.3"},
				},
				{request: "GET /", headers: []string{"X-Client: 11.1.2.3"}, want: []string{"403"}},
				{request: "GET /", want: []string{"403"}},
			},
		},
		{name: "rate-limit", ingress: []string{"rate-limit-requests: 2", "rate-limit-period: 10m"}, asks: []ask{
			{request: "GET /", want: []string{"429"}}, // asked again and again, until it is too often
		}},
		{
			name: "rate-limit of others",
			ingress: []string{
				"rate-limit-requests: 1", "rate-limit-period: 10m",
				"rate-limit-whitelist: 192.168.50.0/24",
			}, asks: append(get(), append(get(), get()...)...),
		},
		// HAProxy counts from the first moment, also what it answers 503 until the servers are
		// open. The second client must not have used up its requests by then.
		{
			name:    "rate-limit behind src-ip-header",
			ingress: []string{"src-ip-header: X-Client", "rate-limit-requests: 20", "rate-limit-period: 10m"},
			asks: []ask{
				{request: "GET /", headers: []string{"X-Client: 10.0.0.1"}, want: []string{"429"}},
				{request: "GET /", headers: []string{"X-Client: 10.0.0.2"}, want: []string{"200"}},
			},
		},
		{
			name:    "request-set-header",
			ingress: []string{"request-set-header: X-A \"b # c\"\nX-Host %[req.hdr(host),upper]\nX-Port %[dst_port]"},
			asks:    get("request X-A: b # c", "request X-Port: 80"),
		},
		{
			name: "response-set-header", ingress: []string{"response-set-header: Cache-Control \"no-store,no-cache\""},
			asks: get("response Cache-Control: no-store,no-cache"),
		},
		{name: "headers added and taken off", ingress: []string{
			"sallyport.dev/request-add-headers: X-A b", "sallyport.dev/request-del-headers: X-Secret",
			"sallyport.dev/response-add-headers: X-C d", "sallyport.dev/response-del-headers: Content-Type",
		}, asks: []ask{{
			request: "GET /", headers: []string{"X-A: a", "X-Secret: s"},
			want: []string{
				"200", "request X-A: a | b", "request X-Secret: (none)", "response X-C: d",
				"response Content-Type: (none)",
			},
		}}},
		{name: "hsts", ingress: []string{
			"sallyport.dev/hsts: true", "sallyport.dev/hsts-include-subdomains: true",
			"ssl-redirect: false",
		}, secure: true, asks: []ask{
			{
				request: "https GET /",
				want:    []string{"200", "response Strict-Transport-Security: max-age=15768000; includeSubDomains"},
			},
			{request: "GET /", want: []string{"200", "response Strict-Transport-Security: (none)"}},
		}},
		{
			name: "hsts for an hour, and for browsers' lists",
			ingress: []string{
				"sallyport.dev/hsts: true", "sallyport.dev/hsts-max-age: 3600",
				"sallyport.dev/hsts-preload: true",
			}, secure: true, asks: []ask{
				{
					request: "https GET /",
					want:    []string{"200", "response Strict-Transport-Security: max-age=3600; preload"},
				},
			},
		},
		{name: "proxy-body-size", ingress: []string{"sallyport.dev/proxy-body-size: 1k"}, asks: []ask{
			{request: "POST /", headers: []string{"Content-Length: 2000"}, want: []string{"413"}},
			{request: "GET /", want: []string{"200"}},
		}},
		{name: "app-root", ingress: []string{"sallyport.dev/app-root: /start"}, asks: []ask{
			{request: "GET /", want: []string{"302", "location /start"}},
			{request: "GET /a", want: []string{"200", "url /a"}},
		}},
		{
			name:    "request-capture",
			ingress: []string{"request-capture: req.hdr(X-A)\ncookie(id)", "request-capture-len: 3"},
			check: logs(httpAddress,
				"GET /logged-by-HOST HTTP/1.1\r\nHost: HOST\r\nX-A: abcd\r\nCookie: id=12\r\nConnection: close\r\n\r\n",
				"/logged-by-HOST", "abc|12}"),
		},
		{name: "set-host", ingress: []string{"set-host: other.test"}, asks: get("host other.test")},
		{name: "path-rewrite of everything", ingress: []string{"path-rewrite: /x"}, asks: get("url /x?b=c")},
		{name: "path-rewrite by a regular expression", ingress: []string{`path-rewrite: ^/a(/.*)? /z\1`}, asks: []ask{
			{request: "GET /a/b?c=d", want: []string{"200", "url /z/b?c=d"}},
			{request: "GET /b", want: []string{"200", "url /b"}},
		}},
		{name: "request-redirect", ingress: []string{"request-redirect: other.test"}, secure: true, asks: []ask{
			{request: "https GET /a?b=c", want: []string{"302", "location https://other.test/a?b=c"}},
		}},
		{
			name:    "request-redirect of plain HTTP",
			ingress: []string{"request-redirect: other.test:8080", "request-redirect-code: 308"}, asks: []ask{
				{request: "GET /a?b=c", want: []string{"308", "location http://other.test:8080/a?b=c"}},
			},
		},
		{name: "ssl-redirect by itself, where there is a certificate", secure: true, asks: []ask{
			{request: "GET /a?b=c", want: []string{"302", "location https://HOST/a?b=c"}},
			{request: "https GET /a?b=c", want: []string{"200", "request X-Forwarded-Proto: https"}},
		}},
		{name: "ssl-redirect off", ingress: []string{"ssl-redirect: false"}, secure: true, asks: get()},
		{
			name:    "ssl-redirect with a status and a port",
			ingress: []string{"ssl-redirect: true", "ssl-redirect-code: 301", "ssl-redirect-port: 8443"}, asks: []ask{
				{request: "GET /a", want: []string{"301", "location https://HOST:8443/a"}},
			},
		},
		{name: "cors for every origin", ingress: []string{"cors-enable: true"}, asks: []ask{
			{
				request: "GET /", headers: []string{page},
				want: []string{
					"200", "response Access-Control-Allow-Origin: *",
					"response Access-Control-Allow-Methods: *", "response Access-Control-Max-Age: 5",
				},
			},
			{request: "GET /", want: []string{"200", "response Access-Control-Allow-Origin: (none)"}},
		}},
		{
			name: "cors for some, with credentials",
			ingress: []string{
				`cors-enable: true`, `cors-allow-origin: https://(page|leaf)\.test`,
				"cors-allow-credentials: true", "cors-allow-methods: get, put",
			}, asks: []ask{
				{
					request: "GET /", headers: []string{page},
					want: []string{
						"200", "response Access-Control-Allow-Origin: https://page.test",
						"response Access-Control-Allow-Credentials: true",
						"response Access-Control-Allow-Methods: GET, PUT", "response Vary: Origin",
					},
				},
				{
					request: "GET /", headers: []string{"Origin: https://page.test.evil"},
					want: []string{
						"200", "response Access-Control-Allow-Origin: (none)",
						"response Access-Control-Allow-Credentials: (none)",
					},
				},
			},
		},
		{
			name: "cors preflight, answered here", ingress: []string{"cors-enable: true", "cors-respond-to-options: true"},
			asks: []ask{
				{
					request: "OPTIONS /", headers: []string{page, "Access-Control-Request-Method: PUT"},
					want: []string{"204", "response Access-Control-Allow-Origin: *"},
				},
				{
					request: "OPTIONS /", headers: []string{page},
					want: []string{"204", "response Access-Control-Allow-Origin: *"},
				},
			},
		},
		{
			name: "a Service goes before its Ingress", ingress: []string{"forwarded-for: true"},
			service: []string{"forwarded-for: false"}, asks: get("request X-Forwarded-For: (none)"),
		},
		{
			name: "a value that is not good", ingress: []string{"timeout-server: soon", "set-host: other.test"},
			asks: get("host other.test"),
		},
		{
			name: "a guard that is not good", ingress: []string{"allow-list: nobody"},
			asks: []ask{{request: "GET /", want: []string{"503"}}},
		},
		{name: "basic auth", ingress: []string{
			"auth-type: basic-auth", "auth-secret: users",
			"auth-realm: For members",
		}, asks: []ask{
			{request: "GET /", want: []string{"401", `response Www-Authenticate: Basic realm="For members"`}},
			{request: "GET /", curl: []string{"-u", "ann:secret"}, want: []string{"200"}},
			{request: "GET /", curl: []string{"-u", "ann:Secret"}, want: []string{"401"}},
		}},
		{name: "basic auth with the file of htpasswd", ingress: []string{"auth-secret: htpasswd"}, asks: []ask{
			{request: "GET /", want: []string{"401"}},
			{request: "GET /", curl: []string{"-u", "bob:secret"}, want: []string{"200"}},
		}},
		{name: "basic auth, where one hash cannot be used", ingress: []string{"auth-secret: mixed"}, asks: []ask{
			{request: "GET /", curl: []string{"-u", "ann:secret"}, want: []string{"200"}},
			{request: "GET /", curl: []string{"-u", "old:rasmuslerdorf"}, want: []string{"401"}},
		}},
		{
			name: "tokens", ingress: []string{
				"sallyport.dev/jwt-keys: tokens", "sallyport.dev/jwt-issuer: https://login.test/",
				"sallyport.dev/jwt-audience: web, app", "sallyport.dev/jwt-claims: role admin",
				"sallyport.dev/jwt-headers: X-User sub",
			}, asks: []ask{
				{request: "GET /", want: []string{"401", `response Www-Authenticate: Bearer realm="Protected Content"`}},
				{
					request: "GET /", headers: []string{bearer(late, "admin"), "X-User: eve", "X_User: eve"},
					want: []string{"200", "request X-User: ann", "request X_User: (none)"},
				},
				{request: "GET /", headers: []string{bearer(1, "admin")}, want: []string{"401"}},
				{
					request: "GET /", headers: []string{bearer(late, "user")},
					want: []string{"403"},
				},
				{
					request: "GET /", headers: []string{bearer(late, "admin") + "x"},
					want: []string{"401"},
				},
			},
		},
		{
			name: "tokens with a public key", ingress: []string{
				"sallyport.dev/jwt-public-keys: public", "sallyport.dev/jwt-headers: X-User sub",
			}, asks: []ask{
				{request: "GET /", want: []string{"401"}},
				{request: "GET /", headers: []string{bearer(late, "admin")}, want: []string{"401"}},
				{request: "GET /", headers: []string{publicBearer()}, want: []string{"200", "request X-User: ann"}},
				{request: "GET /", headers: []string{publicBearer() + "x"}, want: []string{"401"}},
			},
		},
		{
			name: "tokens with keys of nobody", ingress: []string{"sallyport.dev/jwt-keys: gone"},
			asks: []ask{{request: "GET /", want: []string{"503"}}},
		},
		{
			name:    "path-rewrite-first",
			ingress: []string{"path-rewrite: ^/a(.*) /b\\1\n^/b /c", "sallyport.dev/path-rewrite-first: true"},
			asks: []ask{
				{request: "GET /a/x?y=z", want: []string{"200", "url /b/x?y=z"}},
				{request: "GET /b/x", want: []string{"200", "url /c"}},
			},
		},
		{
			name: "response-cookie-path and -domain",
			ingress: []string{
				"sallyport.dev/response-cookie-path: /in/ /out/", "sallyport.dev/response-cookie-domain: in.test out.test",
			},
			asks: []ask{{
				request: "GET /status/200?cookie=a=b%3B%20Domain=in.test%3B%20Path=/in/x",
				want:    []string{"200", "response Set-Cookie: a=b; Domain=out.test; Path=/out/x"},
			}},
		},
		{
			name: "response-location", ingress: []string{"sallyport.dev/response-location: http://in.test/ https://out.test/"},
			asks: []ask{
				{request: "GET /status/302?location=http://in.test/x", want: []string{"302", "location https://out.test/x"}},
				{
					request: "GET /status/200?refresh=5%3Burl=http://in.test/x",
					want:    []string{"200", "response Refresh: 5;url=https://out.test/x"},
				},
			},
		},
		{
			name: "access-log", ingress: []string{"sallyport.dev/access-log: false"}, asks: get("200"),
			check: silent("GET /silent-HOST HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n"),
		},
		{
			name: "retries", ingress: []string{"sallyport.dev/retries: 1", "sallyport.dev/retry-on: conn-failure, 503"},
			asks: []ask{{request: "GET /", want: []string{"200"}}, {request: "GET /status/503", want: []string{"503"}}},
		},
		{
			name: "server-ssl-ciphers and -ver", to: "secure",
			ingress: []string{
				"server-ssl: true", "sallyport.dev/server-ssl-ciphers: ECDHE-ECDSA-AES256-GCM-SHA384",
				"sallyport.dev/server-ssl-min-ver: TLSv1.2", "sallyport.dev/server-ssl-max-ver: TLSv1.2",
			},
			asks: get("version TLS 1.2", "cipher TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"),
		},
		{
			name: "client-crt-error-page", secure: true,
			ingress: []string{"client-ca: authority", "sallyport.dev/client-crt-error-page: https://page.test/?a=%25b"},
			asks: []ask{
				{request: "https GET /", want: []string{"302", "location https://page.test/?a=%25b"}},
				{request: "https GET /", curl: []string{"--cert", "DIR/ann.pem"}, want: []string{"200"}},
				{request: "GET /", want: []string{"302"}},
			},
		},
		{
			name:    "satisfy, within the list",
			ingress: []string{"sallyport.dev/satisfy: any", "allow-list: 192.168.50.0/24", "auth-secret: users"},
			asks:    []ask{{request: "GET /", want: []string{"200"}}},
		},
		{
			name:    "satisfy, outside the list",
			ingress: []string{"sallyport.dev/satisfy: any", "allow-list: 10.0.0.0/8", "auth-secret: users"},
			asks: []ask{
				{request: "GET /", want: []string{"401"}},
				{request: "GET /", curl: []string{"-u", "ann:secret"}, want: []string{"200"}},
			},
		},
		{
			name: "ssl-ciphers", secure: true,
			ingress: []string{"sallyport.dev/ssl-ciphers: ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384"},
			asks: []ask{
				{
					request: "https GET /", want: []string{"200"},
					curl: []string{"--tls-max", "1.2", "--ciphers", "ECDHE-ECDSA-AES256-GCM-SHA384"},
				},
				{
					request: "https GET /", want: []string{"000"},
					curl: []string{"--tls-max", "1.2", "--ciphers", "ECDHE-ECDSA-AES128-GCM-SHA256"},
				},
				{request: "https GET /", want: []string{"200"}},
			},
		},
		{
			name:    "redirect-to",
			ingress: []string{"sallyport.dev/redirect-to: https://new.test/a%20b?c=d", "request-redirect-code: 301"},
			asks: []ask{
				{request: "GET /x?y=z", want: []string{"301", "response Location: https://new.test/a%20b?c=d"}},
			},
		},
		{
			name:    "cors-expose-headers",
			ingress: []string{"cors-enable: true", "sallyport.dev/cors-expose-headers: X-A, X-B"},
			asks: []ask{
				{
					request: "GET /", headers: []string{page},
					want: []string{"200", "response Access-Control-Expose-Headers: X-A, X-B"},
				},
			},
		},
		{
			name: "basic auth for all, without it", config: []string{"auth-secret: default/users", "auth-opt-out: true"},
			ingress: []string{"auth-type: none"}, asks: []ask{{request: "GET /", want: []string{"200"}}},
		},
		{
			name: "basic auth for all, without it unasked", config: []string{"auth-secret: default/users"},
			ingress: []string{"auth-type: none"}, asks: []ask{{request: "GET /", want: []string{"503"}}},
		},
		{
			name: "guards for all, and a challenge of ACME", path: "/.well-known/acme-challenge/token",
			config: []string{
				"auth-secret: default/users", "allow-list: 10.0.0.0/8", "ssl-redirect: true", "acme: true",
			},
			asks: []ask{{request: "GET /.well-known/acme-challenge/token", want: []string{"200"}}},
		},
		{
			name: "certificates of clients for all, and a challenge of ACME", path: "/.well-known/acme-challenge/token",
			config: []string{"client-ca: default/authority", "acme: true"}, asks: []ask{
				{request: "GET /.well-known/acme-challenge/token", want: []string{"200"}},
				{request: "GET /.well-known/acme-challenge/token/../x", curl: []string{"--path-as-is"}, want: []string{"400"}},
				{request: "GET /x", want: []string{"403"}},
			},
		},
		{
			name: "basic auth of nobody", ingress: []string{"auth-type: basic-auth", "auth-secret: gone"},
			asks: []ask{{request: "GET /", want: []string{"503"}}},
		},
		{
			name:    "basic auth and a preflight",
			ingress: []string{"auth-secret: users", "cors-enable: true", "cors-respond-to-options: true"}, asks: []ask{
				{
					request: "OPTIONS /", headers: []string{page, "Access-Control-Request-Method: PUT"},
					want: []string{"204", "response Access-Control-Allow-Origin: *"},
				},
				{
					request: "GET /", headers: []string{page},
					want: []string{"401", "response Access-Control-Allow-Origin: *"},
				},
			},
		},
		{
			name: "client-ca", ingress: []string{"client-ca: authority", "request-set-header: X-Client %[ssl_c_s_dn(cn)]"},
			secure: true, asks: []ask{
				{
					request: "https GET /", curl: []string{"--cert", "DIR/ann.pem"},
					want: []string{"200", "request X-Client: ann"},
				},
				{request: "https GET /", want: []string{"000"}},
				{request: "GET /", want: []string{"302", "location https://HOST/"}},
			},
		},
		{
			name: "client-crt-match and -header", secure: true,
			ingress: []string{
				"client-ca: authority", "sallyport.dev/client-crt-match: ^CN=a", "sallyport.dev/client-crt-header: X-Crt",
			},
			asks: []ask{{
				request: "https GET /", curl: []string{"--cert", "DIR/ann.pem"},
				want: []string{"200", "request X-Crt: -----BEGIN%20CERTIFICATE-----%0A~%0A-----END%20CERTIFICATE-----%0A"},
			}},
		},
		{
			name:    "client-ca, and a connection to another name",
			ingress: []string{"client-ca: authority", "ssl-redirect: false"}, secure: true, beside: "/other", asks: []ask{
				{request: "https GET /other", want: []string{"000"}},
				{request: "https GET /other", curl: []string{"--cert", "DIR/ann.pem"}, want: []string{"200"}},
				{request: "https GET /other", sni: "other.test", want: []string{"421"}},
				{
					request: "https GET /", sni: "other.test", curl: []string{"--cert", "DIR/ann.pem"},
					want: []string{"421"},
				},
				{request: "GET /", want: []string{"403"}},
			},
		},
		{
			name: "client-ca, optional",
			ingress: []string{
				"client-ca: authority", "client-crt-optional: true",
				"request-set-header: X-Client %[ssl_c_s_dn(cn)]",
			}, secure: true, asks: []ask{
				{
					request: "https GET /", curl: []string{"--cert", "DIR/ann.pem"},
					want: []string{"200", "request X-Client: ann"},
				},
				{request: "https GET /", want: []string{"200", "request X-Client: "}},
			},
		},
		{name: "a snippet", ingress: []string{"backend-config-snippet: acl private path -m beg /private\n" +
			"http-request deny deny_status 410 if private\nhttp-request set-header X-Snippet yes"}, asks: []ask{
			{request: "GET /", want: []string{"200", "request X-Snippet: yes"}},
			{request: "GET /private", want: []string{"410"}},
		}},
		{
			name: "a snippet with a list",
			ingress: []string{"backend-config-snippet: acl here src -f patterns/here\n" +
				"http-request deny deny_status 410 if here { path /private }"}, asks: []ask{
				{request: "GET /", want: []string{"200"}},
				{request: "GET /private", want: []string{"410"}},
			},
		},
		{
			name:    "a snippet that HAProxy does not take",
			ingress: []string{"backend-config-snippet: http-request set-headr X-Snippet yes", "set-host: other.test"},
			asks:    get("request X-Snippet: (none)", "host other.test"),
		},
		{
			name:    "a snippet that would be another section",
			ingress: []string{"backend-config-snippet: http-request deny\nbackend default_svc_case0_web"}, asks: get(),
		},
		{
			name: "variables of the controller in a snippet",
			ingress: []string{`backend-config-snippet: http-request set-header X-Read "%[var(txn.host_match)] %[var(txn.host)] ` +
				`%[var(txn.base)] %[var(txn.path)]" if { var(txn.path_match) -m beg default_ing_case }`},
			asks: get("request X-Read: HOST HOST HOST/a /a"),
		},
		{name: "snippets of the ConfigMap", asks: get("request X-Frontend: yes")},
		{
			name: "limit-rate", ingress: []string{"sallyport.dev/limit-rate: 1g"},
			asks: []ask{{request: "GET /bytes?n=20000", want: []string{"200"}}},
		},
		{
			name: "fcgi", ingress: []string{
				"server-proto: fcgi", "sallyport.dev/fcgi-docroot: /app", "sallyport.dev/fcgi-index: main",
			},
			asks: get("url /a?b=c"), check: script("GET /a/?b", "/app/a/main"),
		},
		{
			name: "fcgi-params-from", ingress: []string{
				"server-proto: fcgi", "sallyport.dev/fcgi-params-from: scripts",
			},
			asks: get("url /a?b=c"), check: script("GET /a.php", "/srv/a.php"),
		},
		{
			name: "default-backend", to: "nobody", ingress: []string{"sallyport.dev/default-backend: app"},
			asks: []ask{{request: "GET /a", want: []string{"200", "url /a"}}},
		},
		{
			name: "error-pages", ingress: []string{
				"sallyport.dev/error-pages: 404, 500-599", "sallyport.dev/default-backend: app",
			},
			asks: []ask{
				{request: "GET /status/404", want: []string{"200", "request X-Code: 404", "url /"}},
				{request: "GET /status/503", want: []string{"200", "request X-Original-URI: /status/503"}},
				{request: "HEAD /status/503", want: []string{"200"}},
				{request: "GET /status/403", want: []string{"403"}},
			},
		},
		{
			name: "error-pages of the ConfigMap", config: []string{
				"error-pages: 404", "default-backend-service: default/app",
			},
			asks: []ask{{request: "GET /status/404", want: []string{"200", "request X-Code: 404", "url /"}}},
		},
		{
			name: "mirror-to", ingress: []string{
				"sallyport.dev/mirror-to: svc://app:web", "sallyport.dev/mirror-host: copy.test:81",
				"sallyport.dev/mirror-path: /noted%[pathq]", "sallyport.dev/mirror-body: false",
			},
			asks:  []ask{{request: "GET /a", want: []string{"200", "url /a"}}},
			check: noted("POST /noted/of-HOST copy.test:81 0", "-d", "xy", "http://HOST/of-HOST"),
		},
		{
			name: "auth-url, of a service that lets all in",
			ingress: []string{
				"sallyport.dev/auth-url: svc://app:web/check",
				"sallyport.dev/auth-headers-succeed: Content-Type",
			}, asks: []ask{
				{
					request: "GET /a", headers: []string{"Content-Type: forged/x"},
					want: []string{"200", "url /a", "request Content-Type: application/json"},
				},
			},
		},
		{
			name:    "auth-url, of a service that is not well",
			ingress: []string{"sallyport.dev/auth-url: svc://gone:80/check"},
			asks:    []ask{{request: "GET /", want: []string{"503"}}},
		},
		{name: "auth-url, with a method and some headers", ingress: []string{
			"sallyport.dev/auth-url: svc://app:web/status/200", "sallyport.dev/auth-method: HEAD",
			"sallyport.dev/auth-headers-request: X-A",
			"sallyport.dev/auth-headers-succeed: Saw-Method, Saw-X-A, Saw-X-B",
		}, asks: []ask{{request: "GET /", headers: []string{"X-A: a", "X-B: b", "Saw-X-B: forged"}, want: []string{
			"200", "request Saw-Method: HEAD", "request Saw-X-A: a", "request Saw-X-B: (none)", "request X-B: b",
		}}}},
		{name: "auth-set-headers", ingress: []string{
			"sallyport.dev/auth-url: svc://app:web/status/200", "sallyport.dev/auth-set-headers: X-Team %[path]",
			"sallyport.dev/auth-headers-succeed: Saw-X-Team",
		}, asks: []ask{{request: "GET /a", headers: []string{"X-Team: b"}, want: []string{
			"200", "request Saw-X-Team: /a", "request X-Team: b",
		}}}},
		{name: "auth-set-headers-from", ingress: []string{
			"sallyport.dev/auth-url: svc://app:web/status/200", "sallyport.dev/auth-set-headers-from: team",
			"sallyport.dev/auth-headers-succeed: Saw-X-Team",
		}, asks: get("request Saw-X-Team: a b")},
		{
			name: "auth-url, by a path of the host", beside: "/status",
			ingress: []string{
				"sallyport.dev/auth-url: /status/204?cookie=a=b&cookie=c=d",
				"sallyport.dev/auth-headers-succeed: Saw-Host",
			}, asks: []ask{{request: "GET /a", want: []string{
				"200", "url /a", "request Saw-Host: HOST", "response Set-Cookie: a=b | c=d",
			}}},
		},
		{
			name: "auth-url, by a path that nobody serves", ingress: []string{"sallyport.dev/auth-url: /status/200"},
			asks: []ask{{request: "GET /a", want: []string{"503"}}},
		},
		{
			name: "auth-headers-fail",
			ingress: []string{
				"sallyport.dev/auth-url: svc://app:web/status/403",
				"sallyport.dev/auth-headers-fail: Saw-X-A",
			}, asks: []ask{
				{
					request: "GET /", headers: []string{"X-A: a"},
					want: []string{"403", "response Saw-X-A: a", "response Saw-Method: (none)"},
				},
			},
		},
		{name: "auth-signin", ingress: []string{
			"sallyport.dev/auth-url: svc://app:web/status/401",
			"sallyport.dev/auth-signin: https://login.test/?rd=%[path]",
		}, asks: []ask{
			{request: "GET /a", want: []string{"302", "location https://login.test/?rd=/a"}},
		}},
		{
			name: "paths by regular expression", ingress: []string{"sallyport.dev/path-type: regex"},
			path: "/v[0-9]+/(a|b)$", asks: []ask{
				{request: "GET /v12/b", want: []string{"200", "url /v12/b"}},
				{request: "GET /v12/c", want: []string{"404"}},
			},
		},
		{name: "a path as a string", ingress: []string{"sallyport.dev/path-type: begin"}, path: "/ap", asks: []ask{
			{request: "GET /api", want: []string{"200", "url /api"}},
			{request: "GET /other", want: []string{"404"}},
		}},
		{
			name: "path-rewrite of an exact path", ingress: []string{`path-rewrite: ^/old$ /new`}, path: "/old",
			exact: true, asks: []ask{
				{request: "GET /old?a=b", want: []string{"200", "url /new?a=b"}},
				{request: "GET /old/x", want: []string{"404"}},
				{request: "GET /new", want: []string{"404"}}, // the requested path decides, before it is rewritten
			},
		},
		{name: "route-acl", service: []string{"route-acl: url_param(beta) -m found"}, asks: []ask{
			{request: "GET /a?beta=1", want: []string{"200"}},
			{request: "GET /a", want: []string{"404"}},
		}},
		{name: "ingress.class", ingress: []string{"ingress.class: haproxy"}, asks: get()},
		{name: "ingress.class without a prefix", ingress: []string{"bare ingress.class: haproxy"}, asks: get()},
		{
			name: "ingress.class of others", ingress: []string{"ingress.class: other"},
			asks: []ask{{request: "GET /", want: []string{"404"}}},
		},
		{
			name:   "a canary of all requests",
			canary: []string{"sallyport.dev/canary-weight: 100", "request-set-header: X-Canary yes"},
			asks:   get("request X-Canary: yes"),
		},
		{
			name: "a canary whose clients stay",
			canary: []string{
				"sallyport.dev/canary-by-header: X-New", "sallyport.dev/canary-affinity: true",
				"request-set-header: X-Canary yes",
			},
			asks: []ask{
				{
					request: "GET /", headers: []string{"X-New: always"},
					want: []string{"200", "request X-Canary: yes", "response Set-Cookie: CANARY_~=always; Path=/; HttpOnly"},
				},
				{
					request: "GET /",
					want:    []string{"200", "request X-Canary: (none)", "response Set-Cookie: CANARY_~=never; Path=/; HttpOnly"},
				},
			},
		},
		{
			name: "a canary by a header and a cookie",
			canary: []string{
				"sallyport.dev/canary-by-header: X-New", "sallyport.dev/canary-by-cookie: new",
				"request-set-header: X-Canary yes",
			},
			asks: []ask{
				{request: "GET /", headers: []string{"X-New: always"}, want: []string{"200", "request X-Canary: yes"}},
				{
					request: "GET /", headers: []string{"X-New: never", "Cookie: new=always"},
					want: []string{"200", "request X-Canary: (none)"},
				},
				{request: "GET //a", headers: []string{"Cookie: new=always"}, want: []string{"200", "request X-Canary: yes"}},
				{request: "GET /", headers: []string{"X-New: other"}, want: []string{"200", "request X-Canary: (none)"}},
				{request: "GET /", want: []string{"200", "request X-Canary: (none)"}},
			},
		},
		{
			name: "a canary by the value of a header",
			canary: []string{
				"sallyport.dev/canary-by-header: X-New", "sallyport.dev/canary-by-header-value: v2",
				"request-set-header: X-Canary yes",
			},
			asks: []ask{
				{request: "GET /", headers: []string{"X-New: v2"}, want: []string{"200", "request X-Canary: yes"}},
				{request: "GET /", headers: []string{"X-New: v3"}, want: []string{"200", "request X-Canary: (none)"}},
			},
		},
		{
			name: "a canary by the pattern of a header",
			canary: []string{
				"sallyport.dev/canary-by-header: X-New", "sallyport.dev/canary-by-header-pattern: ^v[0-9]+$",
				"request-set-header: X-Canary yes",
			},
			asks: []ask{
				{request: "GET /", headers: []string{"X-New: v12"}, want: []string{"200", "request X-Canary: yes"}},
				{request: "GET /", headers: []string{"X-New: x12"}, want: []string{"200", "request X-Canary: (none)"}},
			},
		},
		{
			name: "a canary of all, but for a cookie",
			canary: []string{
				"sallyport.dev/canary-weight: 100", "sallyport.dev/canary-by-cookie: new", "request-set-header: X-Canary yes",
			},
			asks: []ask{
				{request: "GET /", headers: []string{"Cookie: new=never"}, want: []string{"200", "request X-Canary: (none)"}},
				{request: "GET /", want: []string{"200", "request X-Canary: yes"}},
			},
		},
		{
			name:   "a canary of none",
			canary: []string{"sallyport.dev/canary-weight: 0", "request-set-header: X-Canary yes"},
			asks:   get("request X-Canary: (none)"),
		},
		{
			name: "server-alias", ingress: []string{"sallyport.dev/server-alias: alias.test, other-alias.test"},
			asks: []ask{
				{request: "GET /a", headers: []string{"Host: other-alias.test"}, want: []string{"200", "host other-alias.test"}},
				{request: "GET /a", want: []string{"200", "host HOST"}},
			},
		},
		{
			name: "from-to-www-redirect", ingress: []string{"sallyport.dev/from-to-www-redirect: true"},
			asks: []ask{
				{request: "GET /a?b=c", headers: []string{"Host: www.HOST"}, want: []string{
					"308", "response Location: http://HOST/a?b=c",
				}},
				{request: "https GET /a", headers: []string{"Host: www.HOST"}, want: []string{
					"308", "response Location: https://HOST/a",
				}},
				{request: "GET /a", want: []string{"200", "host HOST"}},
			},
		},
		{name: "a cookie leads back", ingress: []string{"cookie-persistence: SRV"}, asks: []ask{
			{request: "GET /", want: []string{"200", "response Set-Cookie: SRV=~"}},
			{request: "GET /", headers: []string{"Cookie: SRV=none"}, want: []string{"200", "request Cookie: (none)"}},
		}},
		{name: "session-cookie-name, and what it may do", ingress: []string{
			"sallyport.dev/session-cookie-name: SRV", "sallyport.dev/session-cookie-domain: a.test",
			"sallyport.dev/session-cookie-same-site: Lax",
			"sallyport.dev/session-cookie-keywords: httponly", "sallyport.dev/session-cookie-path: /in",
			"sallyport.dev/session-cookie-max-age: 600",
		}, asks: []ask{{request: "GET /", want: []string{"200", "response Set-Cookie: SRV=~; path=/; domain=a.test; " +
			"HttpOnly; SameSite=Lax; Path=/in; Max-Age=600"}}}},
		{
			name: "session-cookie-preserve",
			ingress: []string{
				"sallyport.dev/session-cookie-name: SRV", "sallyport.dev/session-cookie-preserve: true",
				"response-set-header: Set-Cookie SRV=own",
			}, asks: get("response Set-Cookie: SRV=own"),
		},
		{
			name:    "a cookie that is not preserved",
			ingress: []string{"sallyport.dev/session-cookie-name: SRV", "response-set-header: Set-Cookie SRV=own"},
			asks:    get("response Set-Cookie: SRV=~; path=/"),
		},
		{name: "ssl-passthrough, and redirect", ingress: []string{"ssl-passthrough: true"}, to: "secure", asks: []ask{
			{
				request: "https GET /a?b=c",
				want:    []string{"200", "url /a?b=c", "tls true", "request X-Forwarded-Proto: (none)"},
			},
			{request: "GET /a?b=c", want: []string{"302", "location https://HOST/a?b=c"}},
		}},
		{
			name: "ssl-passthrough of a Service, and no redirect", ingress: []string{"ssl-redirect: false"},
			service: []string{"ssl-passthrough: true"}, to: "secure", asks: []ask{
				{request: "https GET /", want: []string{"200", "tls true"}},
				{request: "GET /", want: []string{"404"}},
			},
		},
		{
			name: "TLS that ends here, beside ssl-passthrough", ingress: []string{"allow-list: 192.168.50.10"},
			secure: true, asks: []ask{
				{request: "https GET /", want: []string{"200", "tls false", "request X-Forwarded-For: 192.168.50.10"}},
			},
		},
		{
			name:    "ssl-passthrough and allow-list with the client",
			ingress: []string{"ssl-passthrough: true", "allow-list: 192.168.50.10"}, to: "secure",
			asks: []ask{{request: "https GET /", want: []string{"200", "tls true"}}},
		},
		{
			name:    "ssl-passthrough and allow-list without it",
			ingress: []string{"ssl-passthrough: true", "allow-list: 10.0.0.0/8"}, to: "secure",
			asks: []ask{{request: "https GET /", want: []string{"000"}}},
		},
		{
			name:    "ssl-passthrough and a guard of requests",
			ingress: []string{"ssl-passthrough: true", "auth-secret: users"}, to: "secure",
			asks: []ask{{request: "https GET /", want: []string{"000"}}},
		},
		{
			name: "allow-list and PROXY", ingress: []string{"allow-list: 10.0.0.0/8"}, secure: true,
			check: speakFor("10.1.2.3", "11.1.2.3", false),
		},
		{
			name:    "ssl-passthrough, allow-list and PROXY",
			ingress: []string{"ssl-passthrough: true", "allow-list: 10.0.0.0/8"}, to: "secure",
			check: speakFor("10.1.2.3", "11.1.2.3", true),
		},
		{name: "a TCP service while pods come and go", check: asking(scale)},
		{name: "a WebSocket through a reload", check: reload(false)},
		{name: "a WebSocket over TLS through a reload", secure: true, check: reload(true)},
		{name: "HTTP/3, or word that HAProxy has none", secure: true, check: quic},
		{
			name:    "a check of a page that is there",
			service: []string{"check-http: GET /healthz", "check-interval: 200ms"}, asks: get(),
		},
		{name: "balancing by a header", service: []string{"load-balance: hdr(X-User)"}, asks: get()},
		{
			name: "limits and timeouts", service: []string{"pod-maxconn: 5", "timeout-server: 10s", "timeout-check: 1s"},
			asks: get(),
		},
		{
			name:    "cors with headers and a time",
			ingress: []string{"cors-enable: true", "cors-allow-headers: X-A, X-B", "cors-max-age: 1m"}, asks: []ask{
				{
					request: "GET /", headers: []string{page},
					want: []string{
						"200", "response Access-Control-Allow-Headers: X-A, X-B",
						"response Access-Control-Max-Age: 60",
					},
				},
			},
		},
		{
			name: "a cookie of the address leads back", ingress: []string{"cookie-persistence-no-dynamic: SRV"},
			asks: []ask{
				{request: "GET /", want: []string{"200", "response Set-Cookie: SRV=~"}},
			},
		},
		{
			name: "PROXY to the pods", ingress: []string{"send-proxy-protocol: proxy-v1"},
			asks: get("client 192.168.50.10"),
		},
		{
			name: "PROXY to the pods, version 2", service: []string{"send-proxy-protocol: proxy-v2"},
			asks: get("client 192.168.50.10"),
		},
		{
			name:    "PROXY to the pods, and ssl-passthrough",
			ingress: []string{"ssl-passthrough: true", "send-proxy-protocol: proxy-v2"}, to: "secure", asks: []ask{
				{request: "https GET /", want: []string{"200", "tls true", "client 192.168.50.10"}},
			},
		},
		{name: "HTTP/2 to the pods", ingress: []string{"server-proto: h2"}, asks: get("proto HTTP/2.0", "tls false")},
		{
			name: "HTTP/2 to the pods, over TLS", ingress: []string{"server-proto: h2", "server-ssl: true"}, to: "secure",
			asks: get("proto HTTP/2.0", "tls true"),
		},
		{name: "server-ssl", ingress: []string{"server-ssl: true"}, to: "secure", asks: get("tls true", "shown ")},
		{
			name: "HTTP/1.1 to the pods, over TLS", ingress: []string{"server-proto: h1", "server-ssl: true"},
			to: "secure", asks: get("proto HTTP/1.1", "tls true"),
		},
		{name: "server-ca", ingress: []string{"server-ca: authority"}, to: "secure", asks: get("tls true")},
		{
			name: "server-ca of others", ingress: []string{"server-ca: stranger"}, to: "secure",
			asks: []ask{{request: "GET /", want: []string{"503"}}},
		},
		{
			name: "server-ca that is gone", ingress: []string{"server-ca: gone"}, to: "secure",
			asks: []ask{{request: "GET /", want: []string{"503"}}},
		},
		{
			name: "server-crt", ingress: []string{"server-crt: certificate"}, to: "secure",
			asks: get("tls true", "shown ann"),
		},
		{
			name: "secure-sni", ingress: []string{"server-ca: authority", "sallyport.dev/secure-sni: host"}, to: "secure",
			asks: get("sni HOST"),
		},
		{
			name:    "secure-verify-hostname",
			ingress: []string{"server-ca: authority", "sallyport.dev/secure-verify-hostname: other.test"}, to: "secure",
			asks: get("tls true"),
		},
		{
			name:    "secure-verify-hostname of others",
			ingress: []string{"server-ca: authority", "sallyport.dev/secure-verify-hostname: other.example"},
			to:      "secure", asks: []ask{
				{request: "GET /", want: []string{"503"}},
			},
		},
		{
			name: "timeout-queue", service: []string{"pod-maxconn: 1", "timeout-queue: 200ms"}, asks: get(),
			check: beside(answered("503")),
		},
		{
			name: "limit-connections", ingress: []string{"sallyport.dev/limit-connections: 1"}, asks: get(),
			check: beside(answered("429")),
		},
		{
			name:    "rate-limit-size",
			ingress: []string{"rate-limit-requests: 1", "rate-limit-period: 10m", "rate-limit-size: 1"},
			check:   asking(forgotten),
		},
		{
			name: "timeout-server", service: []string{"timeout-server: 500ms"},
			check: hears(httpAddress, "GET /slow?d=1m&every=1m HTTP/1.1\r\nHost: HOST\r\n\r\n", "HTTP/1.1 200 "),
		},
		{
			name: "timeout-connect", service: []string{"timeout-connect: 100ms", "check: false"}, to: "nobody",
			check: unanswered("503"),
		},
		{
			name: "timeout-connect of a minute", service: []string{"timeout-connect: 1m", "check: false"}, to: "nobody",
			check: unanswered("000"),
		},
		{
			name: "timeout-tunnel", service: []string{"timeout-tunnel: 500ms"},
			check: hears(httpAddress, upgrade, "HTTP/1.1 101 "),
		},
		{name: "connections are kept on both sides", asks: get(), check: again(true)},
		{name: "log-format", check: logs(httpAddress,
			"GET /logged-by-HOST HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n", "/logged-by-HOST", "<142>",
			" http ", " 200 ")},
		{
			name: "log-format-tcp", asks: get(),
			check: logs("192.168.50.21:15432", "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "tcp-15432",
				"streamed for 192.168.50.10 by tcp-15432"),
		},

		// The ConfigMap has these keys for one case. Each takes a reload, and another one afterwards.
		{name: "http-server-close", config: []string{"http-server-close: true"}, asks: get(), check: again(false)},
		{
			name: "http-connection-mode", config: []string{"http-connection-mode: httpclose"},
			check: hears(httpAddress, "GET / HTTP/1.1\r\nHost: HOST\r\n\r\n", "HTTP/1.1 200 "),
		},
		{
			name: "abortonclose", config: []string{"abortonclose: true"},
			service: []string{"pod-maxconn: 1", "timeout-queue: 1m"}, asks: get(),
			check: beside(attempts(order{Address: httpAddress, Raw: "GET /given-up-by-HOST HTTP/1.1\r\nHost: HOST\r\n" +
				"\r\n", Leave: true}.logs("/given-up-by-HOST"))),
		},
		{name: "maxconn", config: []string{"maxconn: 1"}, check: beside(answered("000"))},
		{name: "logasap", config: []string{"logasap: true"}, check: slow.logs("/slow?d=1m&by=HOST")},
		{
			name: "dontlognull off", config: []string{"dontlognull: false"},
			check: order{Address: httpAddress, Leave: true}.logs("<BADREQ>"),
		},
		{
			name: "timeout-client", config: []string{"timeout-client: 500ms"},
			check: order{
				Address: httpAddress, Raw: "GET /bytes?n=1000000000&by=HOST HTTP/1.1\r\nHost: HOST\r\n\r\n",
				Until: "200 OK",
			}.logs("/bytes?n=1000000000&by=HOST"),
		},
		{
			name: "timeout-client-fin", config: []string{"timeout-client-fin: 500ms"},
			check: order{
				Address: "192.168.50.21:15432", Raw: "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
				Until: "200 OK",
			}.logs("by tcp-15432"),
		},
		{
			name: "timeout-server-fin", config: []string{"timeout-server-fin: 500ms"},
			check: order{
				Address: "192.168.50.21:15432",
				Raw:     "GET /slow?d=1m&every=1m&deaf HTTP/1.1\r\nHost: HOST\r\n\r\n", Half: true,
			}.hears("HTTP/1.1 200 "),
		},
		{
			name: "timeout-http-request", config: []string{"timeout-http-request: 500ms"},
			check: hears(httpAddress, "GET / HTTP/1.1\r\nHost: HOST\r\n", "HTTP/1.1 408 "),
		},
		{
			name: "timeout-http-keep-alive", config: []string{"timeout-http-keep-alive: 500ms"}, asks: get(),
			check: hears(httpAddress, "GET / HTTP/1.1\r\nHost: HOST\r\n\r\n", "HTTP/1.1 200 "),
		},
		{
			name: "default-backend-service", config: []string{"default-backend-service: default/app"}, live: true,
			asks: []ask{
				{
					request: "GET /a", headers: []string{"Host: nobody.test"},
					want: []string{"200", "url /a", "host nobody.test"},
				},
			},
		},
		{
			name: "no default-backend-service",
			asks: []ask{{request: "GET /a", headers: []string{"Host: nobody.test"}, want: []string{"404"}}},
		},
		{
			name: "HTTP/2 over TLS", secure: true,
			asks: []ask{{request: "https GET /", curl: []string{"--http2"}, want: []string{"200", "spoken HTTP/2.0"}}},
		},
		{name: "tls-alpn", config: []string{"tls-alpn: http/1.1"}, secure: true, asks: []ask{
			{request: "https GET /", curl: []string{"--http2"}, want: []string{"200", "spoken HTTP/1.1"}},
		}},
		{
			name: "a certificate in a Secret of type Opaque", config: []string{"client-strict-sni: true"}, secure: true,
			secret: "opaque", asks: []ask{{request: "https GET /", want: []string{"200"}}},
		},
		{name: "client-strict-sni", config: []string{"client-strict-sni: true"}, secure: true, asks: []ask{
			{request: "https GET /", want: []string{"200"}},
			{request: "https GET /", sni: "nobody.test", want: []string{"000"}},
		}},
		{name: "a name without a certificate", ingress: []string{"ssl-redirect: false"}, asks: []ask{
			{request: "https GET /", sni: "nobody.test", want: []string{"200"}},
			{
				request: "https GET /", sni: "nobody.test",
				curl: []string{"--no-insecure", "--cacert", "DIR/stranger.pem"}, want: []string{"000"},
			},
		}},
		{name: "ssl-certificate", config: []string{"ssl-certificate: default/stranger"}, asks: []ask{
			{
				request: "https GET /", sni: "nobody.test",
				curl: []string{"--no-insecure", "--cacert", "DIR/stranger.pem"}, want: []string{"200"},
			},
		}},
		{
			name: "generate-certificates-signer", config: []string{"generate-certificates-signer: default/stranger"},
			asks: []ask{
				{
					request: "https GET /", curl: []string{"--no-insecure", "--cacert", "DIR/stranger.pem"},
					want: []string{"200"},
				},
			},
		},
		{name: "hard-stop-after", config: []string{"hard-stop-after: 1s"}, asks: get(), check: asking(hardStop)},
	}
}
