package nginx

import (
	"bytes"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/test/manual"
)

var update = flag.Bool("update", false, "write the table in ../NGINX.md anew")

// tell returns a Reading as lines.
func tell(r Reading) string {
	var lines []string
	for _, s := range r.Said {
		if s.As != byDefault {
			lines = append(lines, s.Key+" = "+strings.ReplaceAll(s.Text, "\n", " | "))
		}
	}
	slices.Sort(lines)
	for _, p := range r.Problems {
		lines = append(lines, "! "+p.Reason+" "+strings.TrimPrefix(p.Why, "annotation "+Prefix))
	}
	if r.Closed {
		lines = append(lines, "CLOSED")
	}
	return strings.Join(lines, "\n")
}

// shown has the headers with which servers see the certificates of clients.
const shown = "request-set-header = ssl-client-verify %[ssl_c_used,iif(SUCCESS,NONE)] | " +
	"ssl-client-subject-dn %[ssl_c_s_dn(,0,rfc2253)] | ssl-client-issuer-dn %[ssl_c_i_dn(,0,rfc2253)]"

// reads lists values of annotations, and the keys that they stand for.
var reads = []struct {
	set   []string // "name: value"
	paths []string
	want  string
}{
	{
		set: []string{"rewrite-target: /$2"}, paths: []string{"/app(/|$)(.*)"},
		want: "path-rewrite = (?i:/app(/|$)(.*)) /\\2\nsallyport.dev/path-type = regex",
	},
	{
		set: []string{"rewrite-target: /x"}, paths: []string{"/a", "/b/c", "/a"},
		want: "path-rewrite = (?i:/b/c) /x | (?i:/a) /x\nsallyport.dev/path-rewrite-first = true\n" +
			"sallyport.dev/path-type = regex",
	},
	{set: []string{"rewrite-target: /"}, paths: []string{"/"}, want: ""},
	{
		set: []string{"rewrite-target: /50%/$3"}, paths: []string{"/a(.*)"},
		want: "path-rewrite = (?i:/a(.*)) /50%%/\nsallyport.dev/path-type = regex",
	},
	{
		set: []string{"rewrite-target: /%[src]\\1"}, paths: []string{"/a(.*)"},
		want: `! InvalidAnnotation rewrite-target: "/%[src]\\1" has a quote, a backslash, a space, a ? or a #` +
			"; it is ignored",
	},
	{
		set: []string{"rewrite-target: /$host"}, paths: []string{"/a"},
		want: `! InvalidAnnotation rewrite-target: "/$host" has a $ that no number of a group follows; it is ignored`,
	},
	{
		set: []string{"rewrite-target: https://x.test/"}, paths: []string{"/a"},
		want: `! InvalidAnnotation rewrite-target: "https://x.test/" begins neither with "/" nor with a group` +
			"; it is ignored",
	},
	{set: []string{"use-regex: true"}, want: "sallyport.dev/path-type = regex"},
	{
		set:  []string{"use-regex: maybe"},
		want: `! InvalidAnnotation use-regex: "maybe" is neither "true" nor "false"; it is ignored`,
	},
	{set: []string{"app-root: /start"}, want: "sallyport.dev/app-root = /start"},
	{set: []string{"ssl-redirect: true"}, want: ""},
	{set: []string{"ssl-redirect: false"}, want: "ssl-redirect = false"},
	{set: []string{"ssl-redirect: false", "force-ssl-redirect: true"}, want: "ssl-redirect = true"},
	{
		set:  []string{"permanent-redirect: https://new.test/x"},
		want: "request-redirect-code = 301\nsallyport.dev/redirect-to = https://new.test/x",
	},
	{
		set:  []string{"permanent-redirect: https://new.test/x", "permanent-redirect-code: 308"},
		want: "request-redirect-code = 308\nsallyport.dev/redirect-to = https://new.test/x",
	},
	{
		set: []string{
			"permanent-redirect: https://a.test/", "temporal-redirect: https://b.test/",
			"temporal-redirect-code: 307",
		},
		want: "request-redirect-code = 307\nsallyport.dev/redirect-to = https://b.test/",
	},
	{
		set:  []string{"permanent-redirect: https://new.test/x", "permanent-redirect-code: 309"},
		want: "request-redirect-code = 301\nsallyport.dev/redirect-to = https://new.test/x",
	},
	{
		set: []string{"permanent-redirect: https://new.test/x", "permanent-redirect-code: 304"},
		want: "request-redirect-code = 301\nsallyport.dev/redirect-to = https://new.test/x\n" +
			"! InvalidAnnotation permanent-redirect-code: 304 is not served: allowed are 301, 302, 303, 307 and 308; " +
			"it is ignored",
	},
	{
		set:  []string{"temporal-redirect: https://new.test/x", "temporal-redirect-code: 308"},
		want: "request-redirect-code = 302\nsallyport.dev/redirect-to = https://new.test/x",
	},
	{
		set: []string{"temporal-redirect: https://new.test/x", "temporal-redirect-code: soon"},
		want: "request-redirect-code = 302\nsallyport.dev/redirect-to = https://new.test/x\n" +
			`! InvalidAnnotation temporal-redirect-code: "soon" is not a number; it is ignored`,
	},
	{
		set:  []string{"permanent-redirect: https://$host/"},
		want: "! InvalidAnnotation permanent-redirect: variables of nginx are not allowed; it is ignored",
	},
	{set: []string{"x-forwarded-prefix: /app"}, want: ""},
	{
		set: []string{"x-forwarded-prefix: /app", "rewrite-target: /"}, paths: []string{"/app"},
		want: "path-rewrite = (?i:/app) /\nrequest-set-header = X-Forwarded-Prefix /app\nsallyport.dev/path-type = regex",
	},
	{set: []string{"upstream-vhost: inner.test"}, want: "set-host = inner.test"},
	{set: []string{"upstream-vhost: $host.100%"}, want: "set-host = %[req.hdr(host),host_only,lower].100%%"},
	{set: []string{"upstream-vhost: ${http_x_tenant}.test"}, want: "set-host = %[req.hdr(x-tenant)].test"},
	{
		set:  []string{"upstream-vhost: $proxy_host"},
		want: "! InvalidAnnotation upstream-vhost: the variable $proxy_host of nginx has no equal here; it is ignored",
	},
	{set: []string{"canary: true", "canary-weight: 30"}, want: "sallyport.dev/canary-weight = 30"},
	{set: []string{"canary: true"}, want: "sallyport.dev/canary-weight = 0"},
	{
		set: []string{"canary: true", "canary-weight: 30", "affinity: cookie"},
		want: "sallyport.dev/canary-affinity = true\nsallyport.dev/canary-weight = 30\n" +
			"sallyport.dev/session-cookie-keywords = httponly\nsallyport.dev/session-cookie-name = INGRESSCOOKIE",
	},
	{
		set: []string{"canary: true", "affinity: cookie", "affinity-canary-behavior: legacy"},
		want: "sallyport.dev/canary-weight = 0\n" +
			"sallyport.dev/session-cookie-keywords = httponly\nsallyport.dev/session-cookie-name = INGRESSCOOKIE",
	},
	{
		set: []string{"affinity: cookie", "affinity-canary-behavior: always"},
		want: "sallyport.dev/session-cookie-keywords = httponly\nsallyport.dev/session-cookie-name = INGRESSCOOKIE\n" +
			`! InvalidAnnotation affinity-canary-behavior: "always": allowed are sticky and legacy; it is ignored`,
	},
	{set: []string{"canary: false", "canary-weight: 30"}, want: ""},
	{
		set:  []string{"canary: true", "canary-weight: 100", "canary-weight-total: 200"},
		want: "sallyport.dev/canary-weight = 50",
	},
	{
		set: []string{"canary: true", "canary-by-header: X-New", "canary-by-cookie: new"},
		want: "sallyport.dev/canary-by-cookie = new\nsallyport.dev/canary-by-header = X-New\n" +
			"sallyport.dev/canary-weight = 0",
	},
	{
		set: []string{
			"canary: true", "canary-by-header: X-New", "canary-by-header-value: yes", "canary-by-header-pattern: y.*",
		},
		want: "sallyport.dev/canary-by-header = X-New\nsallyport.dev/canary-by-header-value = yes\n" +
			"sallyport.dev/canary-weight = 0",
	},
	{
		set: []string{"canary: true", "canary-by-header: X-New", "canary-by-header-pattern: y.*"},
		want: "sallyport.dev/canary-by-header = X-New\nsallyport.dev/canary-by-header-pattern = y.*\n" +
			"sallyport.dev/canary-weight = 0",
	},
	{set: []string{"whitelist-source-range: 10.0.0.0/8,172.16.0.0/12"}, want: "allow-list = 10.0.0.0/8,172.16.0.0/12"},
	{
		set:  []string{"whitelist-source-range: 10.0.0.0/8", "allowlist-source-range: 10.1.0.0/16"},
		want: "allow-list = 10.1.0.0/16",
	},
	{set: []string{"denylist-source-range: 10.0.0.1"}, want: "deny-list = 10.0.0.1"},
	{set: []string{"denylist-source-range: 10.0.0.1\n10.0.0.2"}, want: "! InvalidAnnotation denylist-source-range: " +
		`"10.0.0.1\n10.0.0.2" has a character that is not printable ASCII; all clients are rejected until it is ` +
		"corrected\nCLOSED"},
	{
		set:  []string{"auth-type: basic", "auth-secret: users", "auth-realm: Us"},
		want: "auth-realm = Us\nauth-secret = users\nauth-type = basic-auth",
	},
	{set: []string{"auth-type: basic"}, want: "auth-type = basic-auth"},
	{set: []string{"auth-type: digest", "auth-secret: users"}, want: `! InvalidAnnotation auth-type: "digest": HAProxy ` +
		"can check only basic; all clients are rejected until it is corrected\nCLOSED"},
	{
		set:  []string{"auth-url: http://door.ops.svc.cluster.local:8080/check?a=b"},
		want: "sallyport.dev/auth-url = svc://ops/door:8080/check?a=b",
	},
	{set: []string{"auth-url: http://door"}, want: "sallyport.dev/auth-url = svc://door:80/"},
	{
		set: []string{
			"auth-url: https://$host/oauth2/auth", "auth-signin: https://$host/oauth2/start?rd=$escaped_request_uri",
		},
		want: "sallyport.dev/auth-signin = https://%[req.hdr(host),host_only,lower]/oauth2/start?rd=%[pathq,url_enc]\n" +
			"sallyport.dev/auth-url = /oauth2/auth",
	},
	{
		set:  []string{"auth-url: https://${http_host}:8443/oauth2/auth?allowed_groups=a,b"},
		want: "sallyport.dev/auth-url = /oauth2/auth?allowed_groups=a,b",
	},
	{
		set:  []string{"auth-url: https://login.shop.test:443/oauth2/auth"},
		want: "sallyport.dev/auth-url = https://login.shop.test/oauth2/auth",
	},
	{
		set: []string{"auth-url: https://$host/oauth2/auth?rd=$request_uri"},
		want: `! InvalidAnnotation auth-url: "https://$host/oauth2/auth?rd=$request_uri": variables of nginx are not ` +
			"allowed: set sallyport.dev/auth-url: svc://NAMESPACE/NAME:PORT/PATH" +
			"; all clients are rejected until it is corrected\nCLOSED",
	},
	{
		set: []string{"auth-url: https://10.0.0.1:4180"},
		want: `! InvalidAnnotation auth-url: "https://10.0.0.1:4180": it names neither a Service of the cluster nor a ` +
			"path of a host: set sallyport.dev/auth-url: svc://NAMESPACE/NAME:PORT/PATH" +
			"; all clients are rejected until it is corrected\nCLOSED",
	},
	{
		set: []string{
			"auth-url: http://door.ops.svc/", "auth-method: POST", "auth-response-headers: X-User, X-Mail",
			"auth-signin: https://$host/oauth2/start",
		},
		want: "sallyport.dev/auth-headers-succeed = X-User, X-Mail\nsallyport.dev/auth-method = POST\n" +
			"sallyport.dev/auth-signin = https://%[req.hdr(host),host_only,lower]/oauth2/start?rd=" +
			"%[req.hdr(x-forwarded-proto)]://%[req.hdr(host)]%[pathq,url_enc]\n" +
			"sallyport.dev/auth-url = svc://ops/door:80/",
	},
	{
		set: []string{
			"auth-url: http://door.ops.svc/", "auth-signin: https://in.test/?to=$escaped_request_uri",
			"auth-signin-redirect-param: to",
		},
		want: "sallyport.dev/auth-signin = https://in.test/?to=%[pathq,url_enc]\n" +
			"sallyport.dev/auth-url = svc://ops/door:80/",
	},
	{
		set: []string{
			"auth-url: http://door.ops.svc/", "auth-request-redirect: https://$host/back?to=$request_uri",
			"auth-proxy-set-headers: shop/headers",
		},
		want: "sallyport.dev/auth-set-headers = X-Auth-Request-Redirect " +
			"https://%[req.hdr(host),host_only,lower]/back?to=%[pathq]\n" +
			"sallyport.dev/auth-set-headers-from = shop/headers\nsallyport.dev/auth-url = svc://ops/door:80/",
	},
	{
		set: []string{"auth-url: http://door.ops.svc/", "auth-request-redirect: https://$upstream_addr/"},
		want: "sallyport.dev/auth-url = svc://ops/door:80/\n! InvalidAnnotation auth-request-redirect: the variable " +
			"$upstream_addr of nginx has no equal here; it is ignored",
	},
	{
		set: []string{"auth-url: http://door.ops.svc/", "auth-method: LOOK"},
		want: "sallyport.dev/auth-url = svc://ops/door:80/\n" +
			`! InvalidAnnotation auth-method: "LOOK": allowed are GET, HEAD and POST; ` +
			"all clients are rejected until it is corrected\nCLOSED",
	},
	{set: []string{"enable-global-auth: false"}, want: "auth-type = none"},
	{
		set:  []string{"enable-global-auth: false", "auth-type: basic", "auth-secret: u"},
		want: "auth-secret = u\nauth-type = basic-auth",
	},
	{
		set:  []string{"satisfy: any", "whitelist-source-range: 10.0.0.0/8", "auth-type: basic", "auth-secret: u"},
		want: "allow-list = 10.0.0.0/8\nauth-secret = u\nauth-type = basic-auth\nsallyport.dev/satisfy = any",
	},
	{set: []string{"satisfy: all", "auth-type: basic", "auth-secret: u"}, want: "auth-secret = u\nauth-type = basic-auth"},
	{
		set:  []string{"satisfy: one", "denylist-source-range: 10.0.0.0/8"},
		want: `deny-list = 10.0.0.0/8` + "\n" + `! InvalidAnnotation satisfy: "one": allowed are all and any; it is ignored`,
	},
	{set: []string{"ssl-ciphers: HIGH:!aNULL"}, want: "sallyport.dev/ssl-ciphers = HIGH:!aNULL"},
	{set: []string{"auth-tls-secret: shop/ca"}, want: "client-ca = shop/ca\n" + shown},
	{
		set:  []string{"auth-tls-secret: ca", "auth-tls-verify-client: optional"},
		want: "client-ca = ca\nclient-crt-optional = true\n" + shown,
	},
	{set: []string{"auth-tls-secret: ca", "auth-tls-verify-client: off"}, want: ""},
	{
		set:  []string{"auth-tls-secret: ca", "auth-tls-error-page: https://page.test/x"},
		want: "client-ca = ca\n" + shown + "\nsallyport.dev/client-crt-error-page = https://page.test/x",
	},
	{
		set: []string{"auth-tls-secret: ca", "auth-tls-verify-client: optional", "auth-tls-error-page: https://page.test/"},
		want: "client-ca = ca\nclient-crt-optional = true\n" + shown + "\n! InvalidAnnotation auth-tls-error-page: " +
			"clients need no certificate, since auth-tls-verify-client is optional; it is ignored",
	},
	{
		set: []string{"auth-tls-secret: ca", "auth-tls-verify-client: optional_no_ca"},
		want: `! InvalidAnnotation auth-tls-verify-client: "optional_no_ca": allowed are on, off and optional; all ` +
			"clients are rejected until it is corrected\nCLOSED",
	},
	{
		set: []string{
			"auth-tls-secret: ca", "auth-tls-match-cn: ^CN=(ann|bob),O=x$", "auth-tls-pass-certificate-to-upstream: true",
		},
		want: "client-ca = ca\n" + shown + "\nsallyport.dev/client-crt-header = ssl-client-cert\n" +
			"sallyport.dev/client-crt-match = ^CN=(ann|bob),O=x$",
	},
	{
		set: []string{"auth-tls-secret: ca", "auth-tls-match-cn: ann", "auth-tls-pass-certificate-to-upstream: false"},
		want: "client-ca = ca\n" + shown + "\n" + `! InvalidAnnotation auth-tls-match-cn: "ann" has no "CN="; all ` +
			"clients are rejected until it is corrected\nCLOSED",
	},
	{
		set: []string{"auth-tls-secret: ca", "auth-tls-match-cn: CN=ann", "auth-tls-verify-client: off"},
		want: "! InvalidAnnotation auth-tls-match-cn: no client has a certificate, since auth-tls-verify-client is off; " +
			"all clients are rejected until it is corrected\nCLOSED",
	},
	{set: []string{"ssl-passthrough: true"}, want: "ssl-passthrough = true"},
	{set: []string{"limit-connections: 3"}, want: "sallyport.dev/limit-connections = 3"},
	{
		set:  []string{"limit-rps: 10"},
		want: "rate-limit-period = 6s\nrate-limit-requests = 60\nrate-limit-status-code = 503",
	},
	{
		set:  []string{"limit-rpm: 10", "limit-burst-multiplier: 1"},
		want: "rate-limit-period = 120s\nrate-limit-requests = 20\nrate-limit-status-code = 503",
	},
	{set: []string{"limit-rps: 0"}, want: ""},
	{set: []string{"limit-rps: -1"}, want: `! InvalidAnnotation limit-rps: "-1" is not a number from 1 to 1048576` +
		"; it is ignored"},
	{set: []string{"limit-whitelist: 10.0.0.0/8"}, want: "rate-limit-whitelist = 10.0.0.0/8"},
	{set: []string{"custom-headers: shop/headers"}, want: "sallyport.dev/response-headers-from = shop/headers"},
	{set: []string{"enable-cors: true"}, want: "cors-allow-credentials = false\n" +
		"cors-allow-headers = DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type," +
		"Range,Authorization\ncors-allow-methods = GET, PUT, POST, DELETE, PATCH, OPTIONS\ncors-allow-origin = *\n" +
		"cors-enable = true\ncors-max-age = 1728000s\ncors-respond-to-options = true"},
	{
		set: []string{
			"enable-cors: true", "cors-allow-origin: https://*.a.test:8443, null", "cors-allow-methods: GET",
			"cors-allow-headers: X-A", "cors-allow-credentials: true", "cors-max-age: 60", "cors-expose-headers: X-B",
		},
		want: "cors-allow-credentials = true\ncors-allow-headers = X-A\ncors-allow-methods = GET\n" +
			`cors-allow-origin = (?i:https://[A-Za-z0-9-]+\.a\.test:8443|null)` + "\n" +
			"cors-enable = true\ncors-max-age = 60s\ncors-respond-to-options = true\n" +
			"sallyport.dev/cors-expose-headers = X-B",
	},
	{
		set: []string{"enable-cors: true", "cors-allow-origin: .*"},
		want: `! InvalidAnnotation cors-allow-origin: ".*" is not an origin, as https://page.example; pages of this ` +
			"origin are not allowed; it is ignored",
	},
	{
		set: []string{
			"enable-cors: true", "cors-allow-origin: a.test:1, https://b.test", "cors-allow-methods: GET; PUT",
			"cors-allow-headers: X$A", "cors-allow-credentials: maybe", "cors-max-age: soon", "cors-expose-headers: a b",
		},
		want: "cors-allow-credentials = true\n" +
			"cors-allow-headers = DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control," +
			"Content-Type,Range,Authorization\ncors-allow-methods = GET, PUT, POST, DELETE, PATCH, OPTIONS\n" +
			`cors-allow-origin = (?i:https://b\.test)` + "\n" +
			"cors-enable = true\ncors-max-age = 1728000s\ncors-respond-to-options = true\n" +
			`! InvalidAnnotation cors-allow-origin: "a.test:1" is not an origin, as https://page.example; pages of this ` +
			"origin are not allowed; it is ignored\n" +
			`! InvalidAnnotation cors-allow-methods: "GET; PUT" is not a list of names with commas; it is ignored` + "\n" +
			`! InvalidAnnotation cors-allow-headers: "X$A" is not a list of names with commas; it is ignored` + "\n" +
			`! InvalidAnnotation cors-expose-headers: "a b" is not a list of names with commas; it is ignored` + "\n" +
			`! InvalidAnnotation cors-max-age: "soon" is not a number from 0 to 1073741824; it is ignored` + "\n" +
			`! InvalidAnnotation cors-allow-credentials: "maybe" is neither "true" nor "false"; it is ignored`,
	},
	{set: []string{"backend-protocol: https"}, want: "server-ssl = true"},
	{set: []string{"backend-protocol: GRPCS"}, want: "server-proto = h2\nserver-ssl = true"},
	{
		set:  []string{"backend-protocol: AUTO_HTTP", "fastcgi-index: a"},
		want: `! InvalidAnnotation backend-protocol: "AUTO_HTTP": allowed are HTTP, HTTPS, GRPC, GRPCS and FCGI; it is ignored`,
	},
	{
		set: []string{"backend-protocol: fcgi", "fastcgi-index: index.php", "fastcgi-params-configmap: team/params"},
		want: "sallyport.dev/fcgi-docroot = /usr/local/nginx/html\nsallyport.dev/fcgi-index = index.php\n" +
			"sallyport.dev/fcgi-params-from = team/params\nserver-proto = fcgi",
	},
	{set: []string{"backend-protocol: HTTP", "fastcgi-index: index.php", "fastcgi-params-configmap: params"}, want: ""},
	{
		set: []string{
			"backend-protocol: HTTPS", "proxy-ssl-secret: pair", "proxy-ssl-verify: on", "proxy-ssl-name: in.test",
			"proxy-ssl-server-name: on",
		},
		want: "sallyport.dev/secure-sni = in.test\nsallyport.dev/secure-verify-hostname = in.test\n" +
			"server-ca = pair\nserver-crt = pair\nserver-ssl = true",
	},
	{set: []string{"backend-protocol: HTTPS", "proxy-ssl-secret: pair"}, want: "server-crt = pair\nserver-ssl = true"},
	{set: []string{"proxy-connect-timeout: 7"}, want: "timeout-connect = 7s"},
	{
		set:  []string{"proxy-connect-timeout: 7s"},
		want: `! InvalidAnnotation proxy-connect-timeout: "7s" is not a number from 1 to 1048576; it is ignored`,
	},
	{set: []string{"proxy-read-timeout: 30", "proxy-send-timeout: 90"}, want: "timeout-server = 90s"},
	{set: []string{"proxy-read-timeout: 7200"}, want: "timeout-server = 7200s\ntimeout-tunnel = 7200s"},
	{set: []string{"proxy-body-size: 8M"}, want: "sallyport.dev/proxy-body-size = 8m"},
	{set: []string{"proxy-body-size: 0"}, want: ""},
	{set: []string{"proxy-cookie-path: /in/ /out/"}, want: "sallyport.dev/response-cookie-path = /in/ /out/"},
	{set: []string{"proxy-cookie-path: off"}, want: "sallyport.dev/response-cookie-path = off"},
	{set: []string{`proxy-cookie-path: / "/; Secure"`}, want: `! InvalidAnnotation proxy-cookie-path: ` +
		`"/ \"/; Secure\"" is neither off nor two words; it is ignored`},
	{
		set:  []string{"proxy-cookie-path: /$uri /"},
		want: "! InvalidAnnotation proxy-cookie-path: variables of nginx are not allowed; it is ignored",
	},
	{
		set:  []string{"proxy-cookie-path: ~/in /"},
		want: `! InvalidAnnotation proxy-cookie-path: "~/in" is a regular expression; it is ignored`,
	},
	{
		set:  []string{"proxy-redirect-from: http://in.test/", "proxy-redirect-to: /out/"},
		want: "sallyport.dev/response-location = http://in.test/ /out/",
	},
	{set: []string{"proxy-redirect-from: off"}, want: "sallyport.dev/response-location = off"},
	{set: []string{"proxy-redirect-from: http://in.test/"}, want: ""},
	{set: []string{"proxy-redirect-to: http://out.test/"}, want: ""},
	{
		set:  []string{"proxy-redirect-from: http://in.test/", "proxy-redirect-to: http://$host/"},
		want: "! InvalidAnnotation proxy-redirect-from: variables of nginx are not served; it is ignored",
	},
	{
		set:  []string{"proxy-redirect-from: ~^http://(.*)$", "proxy-redirect-to: https://out.test/"},
		want: "! InvalidAnnotation proxy-redirect-from: variables of nginx are not served; it is ignored",
	},
	{
		set:  []string{"proxy-redirect-from: ~http://.", "proxy-redirect-to: https://out.test/"},
		want: `! InvalidAnnotation proxy-redirect-from: "~http://." is a regular expression; it is ignored`,
	},
	{
		set:  []string{"proxy-redirect-from: a b", "proxy-redirect-to: c"},
		want: `! InvalidAnnotation proxy-redirect-from: "a b c" has a space; it is ignored`,
	},
	{set: []string{"enable-access-log: false"}, want: "sallyport.dev/access-log = false"},
	{set: []string{"enable-access-log: true"}, want: "sallyport.dev/access-log = true"},
	{
		set:  []string{"enable-access-log: off"},
		want: `! InvalidAnnotation enable-access-log: "off" is neither "true" nor "false"; it is ignored`,
	},
	{
		set:  []string{"proxy-next-upstream: error timeout http_503"},
		want: "sallyport.dev/retries = 2\nsallyport.dev/retry-on = conn-failure, empty-response, response-timeout, 503",
	},
	{
		set:  []string{"proxy-next-upstream: invalid_header http_404", "proxy-next-upstream-tries: 5"},
		want: "sallyport.dev/retries = 4\nsallyport.dev/retry-on = conn-failure, empty-response, junk-response, 404",
	},
	{set: []string{"proxy-next-upstream: off", "proxy-next-upstream-tries: 5"}, want: "sallyport.dev/retries = 0"},
	{
		set: []string{"proxy-next-upstream: error http_429 non_idempotent"},
		want: "sallyport.dev/retries = 2\nsallyport.dev/retry-on = conn-failure, empty-response\n" +
			"! InvalidAnnotation proxy-next-upstream: non_idempotent is not served; it is ignored",
	},
	{
		set:  []string{"proxy-next-upstream: error;"},
		want: `! InvalidAnnotation proxy-next-upstream: "error;" is no reason to ask another server; it is ignored`,
	},
	{set: []string{"proxy-next-upstream-tries: 1"}, want: "sallyport.dev/retries = 0"},
	{set: []string{"proxy-next-upstream-tries: 0"}, want: "sallyport.dev/retries = 10"},
	{
		set:  []string{"proxy-next-upstream-tries: -1"},
		want: `! InvalidAnnotation proxy-next-upstream-tries: "-1" is not a number from 0 to 1073741824; it is ignored`,
	},
	{
		set: []string{
			"backend-protocol: HTTPS", "proxy-ssl-secret: pair", "proxy-ssl-ciphers: HIGH:!aNULL",
			"proxy-ssl-protocols: TLSv1.2 TLSv1",
		},
		want: "sallyport.dev/server-ssl-ciphers = HIGH:!aNULL\nsallyport.dev/server-ssl-max-ver = TLSv1.2\n" +
			"sallyport.dev/server-ssl-min-ver = TLSv1.0\nserver-crt = pair\nserver-ssl = true",
	},
	{
		set: []string{"backend-protocol: HTTPS", "proxy-ssl-secret: pair", "proxy-ssl-protocols: SSLv3 TLSv1.3"},
		want: "sallyport.dev/server-ssl-max-ver = TLSv1.3\nsallyport.dev/server-ssl-min-ver = TLSv1.3\n" +
			"server-crt = pair\nserver-ssl = true\n" +
			"! InvalidAnnotation proxy-ssl-protocols: SSLv3 is not served; it is ignored",
	},
	{
		set: []string{"backend-protocol: HTTPS", "proxy-ssl-secret: pair", "proxy-ssl-protocols: TLSv1.2;"},
		want: "server-crt = pair\nserver-ssl = true\n" +
			`! InvalidAnnotation proxy-ssl-protocols: "TLSv1.2;" is not a version of TLS; it is ignored`,
	},
	{
		set:  []string{"backend-protocol: HTTPS", "proxy-ssl-ciphers: HIGH", "proxy-ssl-protocols: TLSv1.2"},
		want: "server-ssl = true",
	},
	{set: []string{"proxy-cookie-domain: a.test b.test"}, want: "sallyport.dev/response-cookie-domain = a.test b.test"},
	{
		set: []string{"mirror-target: http://app.ops.svc.cluster.local:8080$request_uri"},
		want: "sallyport.dev/mirror-host = app.ops.svc.cluster.local\nsallyport.dev/mirror-path = %[pathq]\n" +
			"sallyport.dev/mirror-to = svc://ops/app:8080",
	},
	{
		set: []string{"mirror-target: http://app/x?a=$http_x_a", "mirror-host: a.test", "mirror-request-body: off"},
		want: "sallyport.dev/mirror-body = false\nsallyport.dev/mirror-host = a.test\n" +
			"sallyport.dev/mirror-path = /x?a=%[req.hdr(x-a)]\nsallyport.dev/mirror-to = svc://app:80",
	},
	{
		set: []string{"mirror-target: https://mirror.test/$request_uri", "mirror-request-body: off"},
		want: `! InvalidAnnotation mirror-target: "https://mirror.test/$request_uri" is not a Service of the cluster, as ` +
			"http://NAME.NAMESPACE.svc.cluster.local:PORT$request_uri; it is ignored",
	},
	{
		set:  []string{"mirror-target: http://app$pid"},
		want: "! InvalidAnnotation mirror-target: the variable $pid of nginx has no equal here; it is ignored",
	},
	{set: []string{"mirror-host: a.test"}, want: ""},
	{set: []string{"limit-rate: 100"}, want: "sallyport.dev/limit-rate = 100k"},
	{set: []string{"limit-rate: 0", "limit-rate-after: 1"}, want: ""},
	{
		set:  []string{"limit-rate: 1k"},
		want: `! InvalidAnnotation limit-rate: "1k" is not a number from 0 to 1048576; it is ignored`,
	},
	{set: []string{"default-backend: errors"}, want: "sallyport.dev/default-backend = errors"},
	{set: []string{"custom-http-errors: 404,503"}, want: "sallyport.dev/error-pages = 404,503"},
	{set: []string{"disable-proxy-intercept-errors: true"}, want: "sallyport.dev/error-pages = off"},
	{
		set:  []string{"custom-http-errors: 404", "disable-proxy-intercept-errors: true"},
		want: "sallyport.dev/error-pages = off",
	},
	{
		set:  []string{"custom-http-errors: 404", "disable-proxy-intercept-errors: false"},
		want: "sallyport.dev/error-pages = 404",
	},
	{set: []string{"load-balance: ewma"}, want: "load-balance = leastconn"},
	{set: []string{"load-balance: ewma", "upstream-hash-by: $request_uri"}, want: "load-balance = uri whole"},
	{set: []string{"upstream-hash-by: ${http_x_user}"}, want: "load-balance = hdr(x-user)"},
	{set: []string{"upstream-hash-by: $host$uri"}, want: `! InvalidAnnotation upstream-hash-by: "$host$uri" is not one ` +
		"variable of $request_uri, $uri, $remote_addr, $host, $http_NAME and $arg_NAME; it is ignored"},
	{
		set:  []string{"affinity: cookie"},
		want: "sallyport.dev/session-cookie-keywords = httponly\nsallyport.dev/session-cookie-name = INGRESSCOOKIE",
	},
	{
		set: []string{
			"affinity: cookie", "session-cookie-name: at", "session-cookie-secure: true",
			"session-cookie-samesite: lax", "session-cookie-domain: a.test", "session-cookie-path: /in",
			"session-cookie-max-age: 600", "session-cookie-expires: 700",
		},
		want: "sallyport.dev/session-cookie-domain = a.test\nsallyport.dev/session-cookie-keywords = httponly secure\n" +
			"sallyport.dev/session-cookie-max-age = 600\nsallyport.dev/session-cookie-name = at\n" +
			"sallyport.dev/session-cookie-path = /in\nsallyport.dev/session-cookie-same-site = Lax",
	},
	{
		set: []string{"affinity: cookie", "session-cookie-expires: 700", "session-cookie-max-age: soon"},
		want: "sallyport.dev/session-cookie-keywords = httponly\nsallyport.dev/session-cookie-max-age = 700\n" +
			"sallyport.dev/session-cookie-name = INGRESSCOOKIE\n" +
			`! InvalidAnnotation session-cookie-max-age: "soon" is not a number from 0 to 315360000; it is ignored`,
	},
	{set: []string{"enable-modsecurity: true"}, want: "! GuardNotKept enable-modsecurity may keep clients out, and has " +
		"no effect here: HAProxy has no web application firewall. All clients are rejected until it is removed, or given " +
		"up in the configuration file (clusters[].ingress.nginx.without: [enable-modsecurity])\nCLOSED"},
	{set: []string{"enable-modsecurity: false"}, want: ""},
	{set: []string{"proxy-buffering: on", "service-upstream: true"}, want: ""},
	{set: []string{"from-to-www-redirect: true"}, want: "sallyport.dev/from-to-www-redirect = true"},
	{set: []string{"from-to-www-redirect: false"}, want: ""},
	{
		set:  []string{"server-alias: b.test, c.test"},
		want: "sallyport.dev/server-alias = b.test,c.test",
	},
	{
		set: []string{"server-alias: b.test,~^www[0-9]+"},
		want: "sallyport.dev/server-alias = b.test\n! InvalidAnnotation server-alias: \"~^www[0-9]+\" is a regular " +
			"expression; only names of hosts are served; it is ignored",
	},
	{set: []string{"enable-websockets: true"}, want: `! UnknownAnnotation annotation ` +
		`"nginx.ingress.kubernetes.io/enable-websockets" is unknown, and ingress-nginx 1.15 does not read it either`},
}

func ingressOf(set, paths []string) Ingress {
	of := Ingress{Annotations: map[string]string{"example.com/other": "x"}, Paths: paths}
	for _, s := range set {
		name, value, _ := strings.Cut(s, ": ")
		of.Annotations[Prefix+name] = value
	}
	return of
}

func TestAnAnnotationOfNginxStandsForKeys(t *testing.T) {
	for _, tt := range reads {
		if diff := cmp.Diff(tt.want, tell(new(Options).Read(ingressOf(tt.set, tt.paths)))); diff != "" {
			t.Errorf("%q: want (-), got (+):\n%s", tt.set, diff)
		}
	}
}

// TestEachAnnotationHasAVerdictOnItsValue checks the verdicts that depend on values and on other
// annotations.
func TestEachAnnotationHasAVerdictOnItsValue(t *testing.T) {
	for _, tt := range []struct {
		set  []string
		want string // by name
	}{
		{[]string{"rewrite-target: /", "x-forwarded-prefix: /a"}, "a difference, the same"},
		{[]string{"x-forwarded-prefix: /a"}, "had no effect"},
		{[]string{"proxy-body-size: 8m"}, "a difference"},
		{[]string{"proxy-body-size: 0"}, "the same"},
		{[]string{"proxy-body-size: 8mb"}, "refused there too"},
		{[]string{"proxy-cookie-path: /a /b"}, "the same"},
		{[]string{"proxy-cookie-path: off", "proxy-cookie-domain: ~a b"}, "not served, the same"},
		{[]string{"proxy-cookie-path: /a"}, "refused there too"},
		{[]string{"proxy-redirect-from: http://a/", "proxy-redirect-to: http://b/"}, "the same, the same"},
		{[]string{"proxy-redirect-from: http://a/", "proxy-redirect-to: /"}, "a difference, a difference"},
		{[]string{"proxy-redirect-from: default", "proxy-redirect-to: /"}, "the same, had no effect"},
		{[]string{"proxy-redirect-from: http://a/", "proxy-redirect-to: off"}, "had no effect, a difference"},
		{[]string{"proxy-redirect-to: /"}, "had no effect"},
		{[]string{"enable-access-log: false"}, "a difference"},
		{
			[]string{"mirror-target: http://app$request_uri", "mirror-host: a.test", "mirror-request-body: off"},
			"the same, the same, a difference",
		},
		{[]string{"mirror-target: https://a.test/"}, "not served"},
		{[]string{"limit-rate: 1", "limit-rate-after: 1"}, "a difference, not served"},
		{[]string{"limit-rate: 0", "limit-rate-after: 1"}, "the same, had no effect"},
		{[]string{"enable-access-log: 1"}, "the same"},
		{[]string{"proxy-next-upstream: error", "proxy-next-upstream-tries: 3"}, "a difference, the same"},
		{[]string{"proxy-next-upstream: off", "proxy-next-upstream-tries: 0"}, "the same, had no effect"},
		{[]string{"proxy-next-upstream: http_429", "proxy-next-upstream-tries: 0"}, "not served, a difference"},
		{
			[]string{"backend-protocol: HTTPS", "proxy-ssl-protocols: TLSv1 TLSv1.2", "proxy-ssl-secret: a"},
			"the same, a difference, the same",
		},
		{[]string{"backend-protocol: HTTPS", "proxy-ssl-protocols: TLSv1.2"}, "the same, had no effect"},
		{[]string{"auth-tls-match-cn: CN=a", "auth-tls-secret: a"}, "a difference, a difference"},
		{[]string{"auth-tls-match-cn: a", "auth-tls-secret: a"}, "refused there too, a difference"},
		{[]string{"auth-tls-match-cn: CN=a"}, "had no effect"},
		{[]string{"proxy-read-timeout: 60s"}, "refused there too"},
		{[]string{"ssl-redirect: false"}, "the same"},
		{[]string{"ssl-redirect: yes"}, "refused there too"},
		{[]string{"backend-protocol: https", "proxy-ssl-verify: on", "proxy-ssl-secret: a"}, "the same, the same, the same"},
		{[]string{"backend-protocol: HTTP", "proxy-ssl-secret: a"}, "the same, had no effect"},
		{[]string{"backend-protocol: AUTO_HTTP"}, "not served"},
		{[]string{"backend-protocol: FCGI", "fastcgi-index: a", "fastcgi-params-configmap: b"}, "a difference, the same, a difference"},
		{[]string{"backend-protocol: HTTP", "fastcgi-index: a", "fastcgi-params-configmap: b"}, "the same, had no effect, had no effect"},
		{[]string{"fastcgi-index: a"}, "had no effect"},
		{[]string{"backend-protocol: WS"}, "refused there too"},
		{[]string{"enable-cors: false", "cors-allow-methods: GET"}, "had no effect, the same"},
		{[]string{"cors-allow-methods: GET"}, "had no effect"},
		{[]string{"canary: false", "canary-by-header: X-New"}, "the same, had no effect"},
		{[]string{"affinity: cookie", "session-cookie-path: /"}, "the same, a difference"},
		{[]string{"session-cookie-path: /"}, "had no effect"},
		{[]string{"whitelist-source-range: 10.0.0.0/8"}, "the same"},
		{[]string{"whitelist-source-range: 10.0.0.0/8", "allowlist-source-range: 10.1.0.0/16"}, "the same, had no effect"},
		{[]string{"auth-type: digest"}, "not served"},
		{[]string{"auth-method: PUT", "auth-url: http://a.b.svc/"}, "not served, a difference"},
		{[]string{"auth-type: none"}, "refused there too"},
		{[]string{"auth-secret: a"}, "had no effect"},
		{[]string{"limit-rps: 0"}, "the same"},
		{[]string{"limit-rps: 5", "limit-rpm: 9"}, "not served, a difference"},
		{[]string{"enable-modsecurity: false"}, "the same"},
		{[]string{"enable-modsecurity: true"}, "not served"},
		{[]string{"configuration-snippet: return 200;"}, "not served"},
		{[]string{"hsts: true"}, "had no effect"},
		{[]string{"proxy-buffering: on"}, "needs nothing"},
		{[]string{"proxy-buffer-size: 8k"}, "needs nothing"},
		{[]string{"proxy-buffer-size: 128k"}, "a difference"},
		{[]string{"proxy-buffer-size: 99999999999999999999"}, "a difference"},
		{[]string{"proxy-http-version: 1.0"}, "a difference"},
	} {
		var got []string
		for _, n := range new(Options).Read(ingressOf(tt.set, []string{"/a"})).Notes {
			if got = append(got, string(n.Verdict)); n.Verdict != Same && n.Verdict != Nothing && n.Why == "" {
				t.Errorf("%q: %s is %q without a reason", tt.set, n.Name, n.Verdict)
			}
			if strings.Contains(n.Name, "snippet") && n.Value != "" {
				t.Errorf("%q: the snippet is told: %q", tt.set, n.Value)
			}
		}
		if got := strings.Join(got, ", "); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.set, got, tt.want)
		}
	}
}

// TestNoGuardIsLostSilently sets each guard to a value that nobody can read, and each guard that has no
// equal here.
func TestNoGuardIsLostSilently(t *testing.T) {
	for _, row := range Rows() {
		value := "\x01"
		if slices.Contains(snippets, row.Name) {
			value = "deny all;"
		}
		for _, without := range [][]string{nil, {row.Name}} {
			o := Options{Without: without}
			r := o.Read(ingressOf([]string{row.Name + ": " + value}, nil))
			if len(r.Problems) != 1 {
				t.Errorf("%s: want one problem, got %v", row.Name, r.Problems)
			}
			if want := row.Guard && without == nil; r.Closed != want {
				t.Errorf("%s without %q: closed %t, want %t", row.Name, without, r.Closed, want)
			}
			for _, p := range r.Problems {
				if strings.Contains(p.Why, "deny all") {
					t.Errorf("the snippet is told: %s", p.Why)
				}
			}
		}
	}
}

// TestEachKeyOfARowIsOne checks the table against the keys, and each row with an effect against the
// cases above.
func TestEachKeyOfARowIsOne(t *testing.T) {
	docs := map[string]bool{}
	for _, d := range annotations.Docs() {
		docs[d.Name] = true
	}
	for _, row := range Rows() {
		has := slices.ContainsFunc(reads, func(r struct {
			set   []string
			paths []string
			want  string
		},
		) bool {
			return slices.ContainsFunc(r.set, func(s string) bool { return strings.HasPrefix(s, row.Name+": ") })
		})
		switch {
		case row.Keys == "":
			if row.Verdict == Same || row.Verdict == Differs || row.Note == "" || row.Verdict == Lost && row.read != nil {
				t.Errorf("%s: verdict %q without keys, note %q", row.Name, row.Verdict, row.Note)
			}
			continue
		case row.Verdict == Lost || row.Verdict == Nothing:
			t.Errorf("%s: verdict %q with keys", row.Name, row.Verdict)
		case !has && row.Name != "limit-allowlist":
			t.Errorf("%s has no case", row.Name)
		}
		for key := range strings.SplitSeq(row.Keys, ", ") {
			if !docs[key] {
				t.Errorf("%s: there is no key %s", row.Name, key)
			}
		}
	}
	if n := len(Rows()); n != 138 {
		t.Errorf("%d rows, want the 136 annotations of ingress-nginx and 2 older names", n)
	}
}

func TestThePageHasTheTable(t *testing.T) {
	var table bytes.Buffer
	fmt.Fprintln(&table, "| annotation | here | keys | remarks |\n|---|---|---|---|")
	for _, row := range Rows() {
		name, keys := "`"+row.Name+"`", row.Keys
		if row.Guard {
			name += " (guard)"
		}
		if keys != "" {
			keys = "`" + strings.ReplaceAll(keys, ", ", "`, `") + "`"
		}
		fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", name, row.Verdict, keys, row.Remark())
	}
	manual.Hold(t, "../NGINX.md", "everywhere", "- "+strings.Join(Everywhere, "\n- ")+"\n", *update)
	manual.Hold(t, "../NGINX.md", "annotations", table.String(), *update)
}

// FuzzRead checks that every problem has one line, and that the Layer of every value can be compiled.
func FuzzRead(f *testing.F) {
	for i, tt := range reads {
		_, value, _ := strings.Cut(tt.set[0], ": ")
		f.Add(uint16(i), value, "/a(/|$)(.*)")
	}
	f.Add(uint16(0), "%[src]'\"\n$1", "/a'b")
	all := Rows()
	f.Fuzz(func(t *testing.T, which uint16, value, path string) {
		row := all[int(which)%len(all)]
		of := ingressOf([]string{
			"auth-type: basic", "enable-cors: true", "affinity: cookie", "canary: true",
			"backend-protocol: HTTPS", "auth-url: http://a.b.svc/",
		}, []string{path, "/b"})
		of.Annotations[Prefix+row.Name] = value
		r := new(Options).Read(of)
		for _, p := range r.Problems {
			if strings.ContainsAny(p.Why, "\n\x1b") {
				t.Errorf("a problem in several lines: %q", p.Why)
			}
		}
		l := annotations.Read(annotations.Ingress, of.Annotations).With(r.Said...)
		s, _, problems := annotations.Compile("n_i", annotations.Env{
			ConfigMaps: func(annotations.Scope, annotations.Ref) (annotations.Object, error) {
				return annotations.Object{}, nil
			},
			Secrets: func(annotations.Scope, annotations.Ref) (annotations.Object, error) {
				return annotations.Object{}, fmt.Errorf("there is none")
			},
			Service: func(annotations.Scope, annotations.ServicePort, annotations.Purpose) (string, error) {
				return "b", nil
			},
			Namespace: "n",
			Allowed:   func(annotations.Scope, haproxy.Section) error { return nil },
			Verdict:   func(haproxy.Question) haproxy.Verdict { return haproxy.Good },
			Refusal:   func(haproxy.Part) string { return "" },
			Pattern:   func(string) (string, bool) { return "10.0.0.0/8", true },
		}, l, annotations.Layer{}.With(r.Usual...))
		for _, d := range s.Directives {
			if strings.Contains(d.String(), "\x01") {
				t.Errorf("%s: %q is written as %q", row.Name, value, d)
			}
		}
		for _, p := range problems {
			if strings.ContainsAny(p.Why, "\n\x1b") {
				t.Errorf("a problem in several lines: %q", p.Why)
			}
		}
	})
}
