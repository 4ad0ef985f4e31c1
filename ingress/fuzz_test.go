package ingress

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/input"
	"sallyport/test/lab/debian"
)

// writeFor bounds the time of TestWhateverIsWritten; 0 is a few rounds.
var writeFor = flag.Duration("write-annotations", 0,
	"for how long annotations are written at random, and shown to HAProxy")

// TestWhateverIsWrittenIsAcceptedAndOnesOwn lets one tenant write annotations, and
// checks two things: HAProxy accepts the result, and nothing that is rendered for
// another tenant changes.
//
//	go test ./ingress -run WhateverIsWritten -write-annotations 1h -timeout 0
func TestWhateverIsWrittenIsAcceptedAndOnesOwn(t *testing.T) {
	w := newWriter(t)
	began, rounds := time.Now(), 0
	seed := uint64(1)
	if *writeFor > 0 {
		seed = uint64(began.UnixNano()) //nolint:gosec // any number will do
		t.Logf("the first seed is %d", seed)
	}
	for ; rounds < 2*len(w.programs) || time.Since(began) < *writeFor; rounds++ {
		w.round(t, seed+uint64(rounds), "") //nolint:gosec // not negative
		if rounds%100 == 99 {
			t.Logf("%d rounds in %v: %d annotations written, %d of them used; HAProxy asked %d times; %d findings",
				rounds+1, time.Since(began).Round(time.Second), w.written, w.used, w.asked, len(w.found))
		}
	}
	t.Logf("%d rounds in %v: %d annotations written, %d of them used; HAProxy asked %d times; %d findings", rounds,
		time.Since(began).Round(time.Second), w.written, w.used, w.asked, len(w.found))
}

// FuzzAnnotations runs TestWhateverIsWritten with a value of the fuzzer, once for each
// key.
func FuzzAnnotations(f *testing.F) {
	for i, value := range []string{
		"true", "5s", "10.0.0.0/8", "X-A 'b'\nX-B \"c\"", `^/a/(.*) /\1`, "https://a.test:1",
		"%[src,lower]", "tls", "", "''", "/x if TRUE", "hdr(X-A) use_domain_only",
	} {
		f.Add(uint64(i), value) //nolint:gosec // a few
	}
	w := newWriter(f)
	f.Fuzz(func(t *testing.T, seed uint64, value string) {
		w.found = map[string]bool{}
		w.round(t, seed, value)
	})
}

// TestEveryKeyIsWritten checks that samples has each key of the registry.
func TestEveryKeyIsWritten(t *testing.T) {
	for _, d := range annotations.Docs() {
		if onObjects := d.Scopes&(annotations.Ingress|annotations.Service) != 0; onObjects != (len(samples[d.Name]) > 0) {
			t.Errorf("%s: samples %q", d.Name, samples[d.Name])
		}
	}
}

// samples are valid values, by key.
var samples = map[string][]string{
	"abortonclose": booleans, "check": booleans, "cors-allow-credentials": booleans, "cors-enable": {"true", "true", "false"}, "cors-respond-to-options": booleans,
	"client-crt-optional": booleans, "forwarded-for": booleans, "sallyport.dev/forwarded-headers": booleans, "server-ssl": {"true", "true", "false"}, "ssl-passthrough": {"false", "false", "false", "true"}, "ssl-redirect": booleans, "standalone-backend": booleans,
	"sallyport.dev/hsts": {"true"}, "sallyport.dev/hsts-include-subdomains": booleans, "sallyport.dev/hsts-preload": booleans, "sallyport.dev/session-cookie-preserve": booleans,

	"cr-backend": {"own", "own", "evil/own", "victim/own", "none"},

	"check-interval": times, "cors-max-age": times, "timeout-check": times, "timeout-connect": times, "timeout-queue": times, "timeout-server": times, "timeout-tunnel": times, "rate-limit-period": times,

	"pod-maxconn": numbers, "rate-limit-requests": numbers, "rate-limit-size": {"100k", "5", "1m", "1g"}, "request-capture-len": numbers, "scale-server-slots": numbers, "ssl-redirect-port": numbers,
	"sallyport.dev/from-to-www-redirect": booleans,
	"sallyport.dev/server-alias":         {"b.test", "b.test, c.test", "a.test"},
	"sallyport.dev/canary-by-header":     {"X-A", "X-New"}, "sallyport.dev/canary-by-header-value": {"v2", "it's \"x\"", "-f", "}"},
	"sallyport.dev/canary-by-header-pattern": {"^a", "(b|c)+$", "-i"}, "sallyport.dev/canary-by-cookie": cookies,
	"sallyport.dev/canary-affinity": booleans,
	"sallyport.dev/canary-weight":   numbers, "sallyport.dev/hsts-max-age": numbers, "sallyport.dev/limit-connections": numbers, "sallyport.dev/proxy-body-size": {"8m", "1", "1023g", "65536"},

	"allow-list": networks, "deny-list": networks, "rate-limit-whitelist": networks,

	"request-set-header": headerLines, "response-set-header": headerLines, "sallyport.dev/request-add-headers": headerLines, "sallyport.dev/response-add-headers": headerLines,
	"sallyport.dev/request-del-headers": {"X-A", "X-A\nX-B", "Cookie"}, "sallyport.dev/response-del-headers": {"Server", "X-A\nSet-Cookie"},
	"sallyport.dev/auth-headers-request": headerNames, "sallyport.dev/auth-headers-succeed": headerNames[1:], "sallyport.dev/auth-headers-fail": headerNames, "cors-allow-headers": headerNames,
	"set-host": {"other.test", "%[req.hdr(host),lower]", "a.test:8080", "x%%y"}, "src-ip-header": {"X-Real-IP", "X-Forwarded-For"},

	"path-rewrite":           {"/", "/x", `^/a/(.*) /\1`, "^/a$ /b\n^/(c|d)/([0-9]+) /\\2/\\1", `(.*) /%[path]`, `/a\.b /c%[query]`, `[^/]+/(x*?) \1`, `'^/a b' /c`},
	"cors-allow-origin":      {"*", `https://a\.test`, `https?://(a|b)\.test(:[0-9]+)?`, ".*", `https://[a-z]*\.test`},
	"cors-allow-methods":     {"*", "GET", "get, POST,Put"},
	"request-redirect":       {"other.test", "https://other.test:8443", "http://a.test", "other.test:80"},
	"request-redirect-code":  {"301", "302", "303", "307", "308"},
	"ssl-redirect-code":      {"301", "302", "303", "307", "308"},
	"rate-limit-status-code": {"400", "403", "429", "503"},
	"request-capture":        {"req.hdr(X-A)", "cookie(id)\nsrc", "ssl_fc_sni", "path,lower", "req.fhdr(User-Agent)", "url_param(a)"},
	"sallyport.dev/address":  {"203.0.113.5", "203.0.113.5, 2001:db8::5", "2001:db8::5"}, "sallyport.dev/share-address": {"k", "Key_1.x"},
	"sallyport.dev/app-root":  {"/start", "/a/b?c=d", "/%20"},
	"sallyport.dev/path-type": {"regex", "begin", "exact", "prefix"},

	"sallyport.dev/cors-expose-headers": headerNames, "sallyport.dev/path-rewrite-first": booleans,
	"sallyport.dev/redirect-to": {"https://other.test/x", "http://other.test", "https://other.test:8443/a%20b?c=d"},

	"sallyport.dev/client-crt-error-page":  {"https://page.test/x?y=%z", "http://page.test"},
	"sallyport.dev/satisfy":                {"any", "any", "all"},
	"sallyport.dev/ssl-ciphers":            {"HIGH:!aNULL", "ECDHE-RSA-AES128-GCM-SHA256"},
	"sallyport.dev/auth-set-headers-from":  {"own", "none", "evil/own", "victim/own"},
	"sallyport.dev/auth-set-headers":       {"X-Auth-Request-Redirect https://%[req.hdr(host)]%[pathq]", "X-A b\nx_c '%[src] #'"},
	"sallyport.dev/response-cookie-path":   {"/in/ /out/", "/ /50%", "off"},
	"sallyport.dev/response-cookie-domain": {"in.test out.test", ".in.test 1.test", "off"},
	"sallyport.dev/response-location":      {"http://in.test/ https://out.test/", "/a?b=%&c /%", "off", "http://a/ /1"},
	"sallyport.dev/limit-rate":             {"100k", "1", "1g"},
	"sallyport.dev/fcgi-docroot":           {"/srv", "/"}, "sallyport.dev/fcgi-index": {"index.php", "a"},
	"sallyport.dev/fcgi-params-from": {"headers", "victim/headers", "params"},
	"sallyport.dev/default-backend":  {"web", "app", "gone"},
	"sallyport.dev/mirror-to":        {"svc://app:http", "svc://victim/app:80"}, "sallyport.dev/mirror-body": {"false"},
	"sallyport.dev/error-pages": {"404, 500-504", "300, 302,304,306-310,599", "off"},
	"sallyport.dev/mirror-host": {"copy.test", "copy.test:81"}, "sallyport.dev/mirror-path": {"%[pathq]", "/x?a=%[src]"},
	"sallyport.dev/access-log": booleans, "sallyport.dev/retries": {"0", "3", "10"},
	"sallyport.dev/retry-on":           {"conn-failure", "empty-response, 503", "404,junk-response"},
	"sallyport.dev/client-crt-match":   {"CN=ann", "^CN=(a|b)'$", "(?i)cn=.* }"},
	"sallyport.dev/client-crt-header":  {"X-Crt", "ssl-client-cert"},
	"sallyport.dev/server-ssl-ciphers": {"HIGH:!aNULL", "ECDHE-RSA-AES128-GCM-SHA256", "DEFAULT"},
	"sallyport.dev/server-ssl-min-ver": {"TLSv1.0", "TLSv1.2", "TLSv1.3"}, "sallyport.dev/server-ssl-max-ver": {"TLSv1.1", "TLSv1.3"},

	"check-http":          {"/health", "GET /health", "HEAD /health HTTP/1.1", "OPTIONS *", "GET /a?b=c HTTP/1.0"},
	"load-balance":        {"roundrobin", "leastconn", "first", "source", "static-rr", "random", "random(2)", "uri", "uri path-only whole len 5 depth 3", "url_param id", "url_param id check_post", "hdr(X-User)", "hdr(Host) use_domain_only"},
	"send-proxy-protocol": {"proxy", "proxy-v1", "proxy-v2", "proxy-v2-ssl", "proxy-v2-ssl-cn"},
	"server-proto":        {"h2", "h1", "fcgi"},

	"auth-type": {"basic-auth"}, "auth-secret": {"users", "htpasswd", "tls"}, "auth-realm": {"Members only", "a b", `it's "ours"`, "x"},
	"sallyport.dev/jwt-public-keys": {"public", "victim/public"}, "sallyport.dev/response-headers-from": {"headers", "victim/headers"},
	"sallyport.dev/jwt-keys": {"tokens", "tls", "victim/tokens"}, "sallyport.dev/jwt-issuer": {"https://login.test/", "a"},
	"sallyport.dev/jwt-audience": {"web", "web, https://app.test/?a=b&c"}, "sallyport.dev/jwt-claims": {"role admin root\nscope a:b", "sub"},
	"sallyport.dev/jwt-headers": {"X-User sub", "X_User realm_access.roles\nX-Team team"},
	"client-ca":                 {"tls", "ca"}, "server-ca": {"tls", "ca"}, "server-crt": {"tls"},
	"sallyport.dev/secure-sni": {"a.test", "host", "sni"}, "sallyport.dev/secure-verify-hostname": {"a.test", "b.example.org"},
	"sallyport.dev/auth-url":    {"svc://app:http/check", "svc://evil/app:80/check?a=b", "service://app:80", "svc://app:80/%20", "/check", "https://evil.test/", "https://victim.test/a"},
	"sallyport.dev/auth-method": {"GET", "HEAD", "POST", "*"},
	"sallyport.dev/auth-signin": {"https://login.test/?rd=%[url,url_enc]", "/login", "http://a.test/%[path]"},

	"cookie-persistence": cookies, "cookie-persistence-no-dynamic": cookies, "sallyport.dev/session-cookie-name": cookies,
	"sallyport.dev/session-cookie-path": {"/", "/in/%20"}, "sallyport.dev/session-cookie-max-age": numbers,
	"sallyport.dev/session-cookie-domain": {"a.test", ".a.test"}, "sallyport.dev/session-cookie-same-site": {"Strict", "Lax", "None", "true"},
	"sallyport.dev/session-cookie-keywords": {"httponly", "secure httponly", "maxidle 30m maxlife 8h", "indirect nocache"},

	"backend-config-snippet": {"http-request deny if { path /x }"}, // not allowed here
	"route-acl":              {"cookie(beta) -m found", "path_beg /b"},
	"ingress.class":          {"haproxy"},
}

var (
	booleans    = []string{"true", "false"}
	times       = []string{"5s", "1ms", "100", "24d", "0", "1h", "500us", "2m"}
	numbers     = []string{"1", "5", "100", "8443", "65535", "2147483647", "0"}
	networks    = []string{"10.0.0.0/8", "10.0.0.0/8, 192.0.2.1,fd00::1", "0.0.0.0/0", "::/0", "::ffff:10.0.0.1", "patterns/clients", "1.2.3.4/31 ::1/127"}
	headerLines = []string{"X-A b", "X-A \"b c\"\nX-B %[src]", "X-A 'it'", "Cache-Control \"no-store,no-cache\"", `X-A b\ c`, "X-Host %[req.hdr(host),field(1,:),lower]", "X-A %ci:%cp", "X-A {b} #c", "X-A 100%%"}
	headerNames = []string{"*", "X-A", "X-A, X-B", "Cookie,Authorization"}
	cookies     = []string{"SRV", "JSESSIONID", "a.b-c_d"}
)

// Formats and regular expressions are made of these pieces.
var (
	fetchArgs  = []string{"", "", "(X-A)", "(host)", "(a,b)", "(1)", "(0)", "(-1)", "(cn)", "(cn,1)", "(cn,1,rfc2253)", "(,)", "()", "(1,2,3)", "(hex)", "(txn.host)", "(a b)", "(16)", "(:)", "(.,1,0)"}
	converters = []string{
		"lower", "upper", "base64", "hex", "field", "word", "url_enc", "url_dec", "json", "length", "sha1", "sha2", "xxh32", "mod", "substr", "ltrim", "rtrim", "utime", "http_date", "host_only", "concat", "bytes",
		"regsub", "map", "table_http_req_rate", "strcmp", "debug", "jwt_verify", "aes_gcm_dec", "lua.x", "in_table", "crc32", "ipmask", "add", "even", "bool", "iif", "secure_memcmp", "param", "protobuf",
	}
	fetches = []string{
		"base", "capture.req.hdr", "capture.req.uri", "cookie", "date", "dst", "dst_port", "fc_http_major", "hdr", "host_only", "http_date", "method", "path", "pathq", "query",
		"rand", "req.cook", "req.fhdr", "req.hdr", "req.hdr_ip", "req.ver", "res.cook", "res.fhdr", "res.hdr", "src", "src_port", "ssl_c_s_dn", "ssl_c_i_dn",
		"ssl_c_sha1", "ssl_c_serial", "ssl_c_used", "ssl_c_verify", "ssl_c_der", "ssl_fc", "ssl_fc_alpn", "ssl_fc_cipher", "ssl_fc_has_crt", "ssl_fc_protocol", "ssl_fc_sni",
		"status", "str", "unique-id", "url", "url_param", "uuid",
		"env", "srv_conn", "table_size", "nbsrv", "sc_http_req_rate", "proc", "req.body", "res.body", "ssl_f_der", "stopping", "var", "lua.x", "http_auth", "be_conn", "hostname", "fe_name",
		"req.hdrs", "req.payload", "res.comp", "ssl_s_s_dn", "bs.id", "fs.aborted", "be_name", "srv_id", "queue", "txn.timer.all", "wait_end", "bin", "capture.res.hdr", "internal.htx.size",
	}
	expressions = []string{
		"^", "$", ".*", ".", "(a|b)", "(", ")", "[a-z]", "[", "]", "[^/]", "[[:alpha:]]", "a{2,3}", "a{2000}", "(?i)", "(?:a)", "(?=a)", "(?P<n>a)", "(?<n>a)", `\1`, `\d`, `\w`, `\Q`, `\E`, `\x41`, `\x{41}`, `\pL`, `\b`, `\z`, `\A`, `\K`, `\`,
		"/", "+", "*", "?", "*?", "++", "|", "{", "}", "{,3}", "#", " ", "'", `"`, "%", "%[path]", "%%", "$1", "${x}", "é", "\t", "-", "&", "~", "(*LIMIT_MATCH=1)", "(*ACCEPT)", "(?#x)", "(?x)", "[]a]", "[a-]", "[\\]]", "(a*)*", "(.+)+",
	}
	oddities = []string{
		"'", `"`, `\`, "\\\n", "\n", "\r", "\r\n", "\t", "\x00", "\x7f", "\x1b[0m", "#", " #", "%", "%[", "]", "%[src", "%%", "${HOME}", "$HOME", `"${HOME}"`, "{", "}", "(", ")", ",", ";", "|", "`", "  ", " if TRUE", " unless { always_true }",
		"\\'", `\"`, "''", "é", "\u2028", "\xff", "/..", "//", "?", "*", "<", "=", ":", "@", "-", "--", ".", "..", "0x10", "+1", "1e3", "00", "_", "~", "^", strings.Repeat("a", 300), strings.Repeat("x,", 70), strings.Repeat("b ", 70), strings.Repeat("c", 17000),
	}
)

// theirs are the annotations of the victim's Ingresses.
var theirs = []map[string]string{
	nil,
	{"haproxy.org/allow-list": "10.0.0.0/8", "haproxy.org/path-rewrite": `^/a/(.*) /\1`, "haproxy.org/rate-limit-requests": "5", "haproxy.org/rate-limit-period": "7s", "haproxy.org/request-capture": "req.hdr(X-A)"},
	{"haproxy.org/auth-secret": "users", "haproxy.org/cors-enable": "true", "haproxy.org/client-ca": "ca", "haproxy.org/cookie-persistence": "SRV"},
	{"sallyport.dev/auth-url": "svc://app:80/check", "haproxy.org/deny-list": "patterns/clients", "haproxy.org/server-ca": "ca"},
	{"sallyport.dev/path-type": "regex"},
}

// A writer is a tenant that writes annotations. Another tenant is the victim.
type writer struct {
	programs []string // of HAProxy
	dir      string
	world    Snapshot // without the writer
	alone    string   // what is rendered for others without the writer

	written, used, asked int
	found                map[string]bool
}

// newWriter makes a world whose victim uses every kind of key.
func newWriter(t testing.TB) *writer {
	t.Helper()
	w := &writer{dir: t.TempDir(), found: map[string]bool{}}
	var err error
	if w.programs, err = debian.HAProxies(); err != nil {
		t.Fatal(err)
	}
	crt, key := certificate{names: []string{"default.test"}}.make(t)
	if err := os.MkdirAll(filepath.Join(w.dir, "certs"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, "certs/_default.pem"), slices.Concat(crt, key), 0o600); err != nil {
		t.Fatal(err)
	}
	w.world = Snapshot{Cluster: Unnamed, Options: Options{WatchWithoutClass: true, PatternFiles: "ops/lists", ConfigMap: "ops/defaults", CustomResources: true}}
	w.world.ConfigMaps = []*corev1.ConfigMap{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "defaults"}, Data: map[string]string{"response-set-header": "X-Default yes", "syslog-server": "address:127.0.0.1"}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "lists"}, Data: map[string]string{"clients": "10.0.0.0/8\n"}},
	}
	for _, namespace := range []string{"victim", "evil"} {
		secret := func(name string, data map[string][]byte) {
			w.world.Secrets = append(w.world.Secrets, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: data})
		}
		crt, key := certificate{names: []string{"*." + namespace + ".test"}}.make(t)
		hash := "$5$salt$" + strings.Repeat(namespace[:1], 43)
		secret("tls", map[string][]byte{"tls.crt": crt, "tls.key": key})
		secret("ca", map[string][]byte{"ca.crt": crt})
		secret("users", map[string][]byte{"ann": []byte(hash)})
		secret("htpasswd", map[string][]byte{"auth": []byte("ann:" + hash + "\nbob:" + hash)})
		secret("tokens", map[string][]byte{"hs256": []byte(strings.Repeat(namespace, 20))})
		for name, data := range map[string]map[string]string{"public": {"login": string(crt)}, "headers": {"X-From": "50% of it"}} {
			w.world.ConfigMaps = append(w.world.ConfigMaps, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: data})
		}
		w.world.Backends = append(w.world.Backends, &input.Backend{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "own"}, Spec: []byte(`{"server_timeout": 7000, "forwardfor": {"enabled": "enabled"}}`),
		})
		w.world.Services = append(w.world.Services, application(namespace, "app", nil))
	}
	for i, said := range theirs {
		ing := asking("victim", fmt.Sprintf("v%d", i), 2020, said, "/", "/a[0-9]+")
		ing.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{ing.Spec.Rules[0].Host}, SecretName: "tls"}}
		w.world.Ingresses = append(w.world.Ingresses, ing)
	}
	_, files := w.render(t, w.world)
	w.alone = othersOf(files)
	if why := w.refusal(t, 0, files); why != "" || strings.Count(w.alone, "backend victim_") < 5 {
		t.Fatalf("HAProxy refuses the world before anything is written: %s\n%s", why, w.alone)
	}
	return w
}

// application returns a Service with one port.
func application(namespace, name string, said map[string]string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "u", Annotations: said},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}
}

// asking returns an Ingress for a host that has its name.
func asking(namespace, name string, year int, said map[string]string, paths ...string) *networkingv1.Ingress {
	kind := networkingv1.PathTypeImplementationSpecific
	rule := networkingv1.IngressRule{Host: name + "." + namespace + ".test", IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{}}}
	for _, p := range paths {
		rule.HTTP.Paths = append(rule.HTTP.Paths, networkingv1.HTTPIngressPath{
			Path: p, PathType: &kind,
			Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: "app", Port: networkingv1.ServiceBackendPort{Number: 80}}},
		})
	}
	return &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "u", CreationTimestamp: metav1.Date(year, 1, 1, 0, 0, 0, 0, time.UTC), Annotations: said},
		Spec:       networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{rule}},
	}
}

// An attempt is one Ingress of the writer, with a Service and a Secret of its own.
type attempt struct {
	ingress *networkingv1.Ingress
	service *corev1.Service
	secret  *corev1.Secret // of users
}

func (a attempt) String() string {
	var b strings.Builder
	for _, said := range []map[string]string{a.ingress.Annotations, a.service.Annotations} {
		for _, key := range slices.Sorted(maps.Keys(said)) {
			fmt.Fprintf(&b, "  %s: %.300q\n", key, said[key])
		}
		b.WriteString("  --\n")
	}
	if _, own := a.ingress.Annotations["haproxy.org/auth-secret"]; own {
		fmt.Fprintf(&b, "  users %.300q\n", a.secret.Data)
	}
	for _, p := range a.ingress.Spec.Rules[0].HTTP.Paths {
		fmt.Fprintf(&b, "  path %.300q\n", p.Path)
	}
	return b.String()
}

// attemptsOf makes one attempt for each key. The key has the value, unless the value
// is empty.
func attemptsOf(random *rand.Rand, value string) (all []attempt) {
	docs := annotations.Docs()
	written := slices.DeleteFunc(slices.Clone(docs), func(d annotations.Doc) bool { return len(samples[d.Name]) == 0 })
	for i, d := range written {
		ingress, service := map[string]string{}, map[string]string{}
		say := func(d annotations.Doc, value string) {
			prefix := ""
			if !strings.Contains(d.Name, "/") {
				prefix = pick(random, "haproxy.org/", "haproxy.com/", "ingress.kubernetes.io/", "", "haproxy.org/")
			}
			if to := annotations.Service; d.Scopes&to != 0 && (d.Scopes == to || random.IntN(4) == 0) {
				service[prefix+d.Name] = value
			} else {
				ingress[prefix+d.Name] = value
			}
		}
		if i%9 == 0 || random.IntN(8) == 0 {
			said := theirs[i/9%len(theirs)]
			for _, full := range slices.Sorted(maps.Keys(said)) {
				ingress[full] = mutate(random, said[full])
			}
		}
		for range random.IntN(6) {
			if other := written[random.IntN(len(written))]; other.Name != "ingress.class" {
				say(other, pick(random, samples[other.Name]...))
			}
		}
		if companion := needs[d.Name]; companion != "" {
			say(docs[slices.IndexFunc(docs, func(o annotations.Doc) bool { return o.Name == companion })], samples[companion][0])
		}
		said := value
		if value == "" {
			said = valueOf(random, d)
		}
		say(d, said)
		paths := []string{"/"}
		if strings.HasPrefix(ingress["sallyport.dev/path-type"], "regex") {
			paths = append(paths, "/"+expression(random), "/a"+expression(random), pick(random, expressions...))
			if value != "" {
				paths = append(paths, value)
			}
		}
		name := fmt.Sprintf("e%03d", i)
		if i%9 == 0 {
			name = fmt.Sprintf("v%d", i/9) // a name that the victim has, too
		}
		if value == "" && strings.HasPrefix(d.Name, "auth-") && random.IntN(2) == 0 {
			ingress["haproxy.org/auth-secret"] = name
		}
		a := attempt{asking("evil", name, 2021, ingress, paths...), application("evil", name, service), usersOf(random, name)}
		for i := range a.ingress.Spec.Rules[0].HTTP.Paths {
			a.ingress.Spec.Rules[0].HTTP.Paths[i].Backend.Service.Name = name
		}
		if random.IntN(3) == 0 || d.Name == "client-ca" {
			a.ingress.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{a.ingress.Spec.Rules[0].Host}, SecretName: "tls"}}
		}
		all = append(all, a)
	}
	return all
}

// needs holds, by key, the key without which it has no effect.
var needs = map[string]string{
	"cors-allow-origin": "cors-enable", "cors-allow-methods": "cors-enable", "cors-allow-headers": "cors-enable", "cors-max-age": "cors-enable", "cors-allow-credentials": "cors-enable",
	"rate-limit-period": "rate-limit-requests", "rate-limit-size": "rate-limit-requests", "rate-limit-status-code": "rate-limit-requests", "rate-limit-whitelist": "rate-limit-requests",
	"sallyport.dev/jwt-issuer": "sallyport.dev/jwt-keys", "sallyport.dev/jwt-audience": "sallyport.dev/jwt-keys", "sallyport.dev/jwt-claims": "sallyport.dev/jwt-keys",
	"sallyport.dev/jwt-headers": "sallyport.dev/jwt-keys",
	"sallyport.dev/mirror-body": "sallyport.dev/mirror-to", "sallyport.dev/mirror-host": "sallyport.dev/mirror-to",
	"sallyport.dev/mirror-path": "sallyport.dev/mirror-to",
	"auth-realm":                "auth-secret", "request-redirect-code": "request-redirect", "request-capture-len": "request-capture", "sallyport.dev/hsts-max-age": "sallyport.dev/hsts",
	"sallyport.dev/auth-method": "sallyport.dev/auth-url", "sallyport.dev/auth-set-headers": "sallyport.dev/auth-url", "sallyport.dev/auth-headers-request": "sallyport.dev/auth-url", "sallyport.dev/auth-headers-succeed": "sallyport.dev/auth-url",
	"sallyport.dev/auth-headers-fail": "sallyport.dev/auth-url", "sallyport.dev/auth-signin": "sallyport.dev/auth-url", "sallyport.dev/secure-sni": "server-ssl", "sallyport.dev/client-crt-match": "client-ca", "sallyport.dev/client-crt-error-page": "client-ca",
	"sallyport.dev/server-ssl-ciphers": "server-ssl", "sallyport.dev/server-ssl-min-ver": "server-ssl", "sallyport.dev/server-ssl-max-ver": "server-ssl",
	"sallyport.dev/secure-verify-hostname": "server-ca",
	"sallyport.dev/session-cookie-path":    "cookie-persistence", "sallyport.dev/session-cookie-max-age": "cookie-persistence",
	"sallyport.dev/session-cookie-domain": "cookie-persistence", "sallyport.dev/session-cookie-keywords": "cookie-persistence", "sallyport.dev/session-cookie-same-site": "cookie-persistence",
	"server-proto": "server-ssl", "ssl-redirect-code": "ssl-redirect", "ssl-redirect-port": "ssl-redirect",
}

// usersOf returns a Secret of users whose names and hashes are valid or nearly so.
func usersOf(random *rand.Rand, name string) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "evil", Name: name}, Data: map[string][]byte{}}
	hashes := []string{
		"$5$salt$" + strings.Repeat("a", 43), "$6$salt$" + strings.Repeat("b", 86), "$1$salt$" + strings.Repeat("c", 22), "$2y$05$" + strings.Repeat("d", 53),
		"$apr1$salt$" + strings.Repeat("e", 22), "$6$rounds=999999999$salt$" + strings.Repeat("f", 86), "$5$$" + strings.Repeat("g", 43), "clear", "", "$y$j9T$salt$" + strings.Repeat("h", 43),
	}
	for range 1 + random.IntN(3) {
		user, hash := mutate(random, pick(random, "ann", "bob.x", "c_d-e@f", "key")), mutate(random, pick(random, hashes...))
		if random.IntN(3) == 0 {
			user, hash = "auth", user+":"+hash+"\n# more\nbob:"+pick(random, hashes...)
		}
		s.Data[user] = []byte(hash)
	}
	return s
}

func pick(random *rand.Rand, from ...string) string { return from[random.IntN(len(from))] }

// valueOf returns a value for a key: a valid one, one of the key's grammar, or one that
// nearly follows the grammar.
func valueOf(random *rand.Rand, d annotations.Doc) string {
	value := pick(random, samples[d.Name]...)
	switch name := d.Name; {
	case random.IntN(3) == 0:
	case name == "path-rewrite":
		value = expression(random) + " /" + formatOf(random)
	case name == "cors-allow-origin", name == "sallyport.dev/client-crt-match", name == "sallyport.dev/path-type" && random.IntN(4) == 0:
		value = expression(random)
	case name == "request-capture":
		value = sampleOf(random)
	case strings.Contains(d.Format, "%[...]"):
		switch value = formatOf(random); {
		case strings.Contains(name, "header"):
			value = pick(random, "X-A ", "X-B ", "Host ", "Content-Length ", "Connection ") + value
		case strings.HasSuffix(name, "signin"):
			value = pick(random, "/", "https://a.test/") + value
		}
	case name == "check-http", name == "sallyport.dev/app-root", name == "sallyport.dev/auth-url":
		value += expression(random)
	case name == "load-balance":
		value += pick(random, "", " ") + pick(random, "len 5", "depth 0", "len 0", "check_post 0", "len 65536", "whole whole", "(X-A)", "whole", "check_post", "use_domain_only", "(0)", "(-1)", "len -1", "rdp-cookie", "rdp-cookie(x)", "hash src", "log-hash x", "hdr()", "hdr(a b)", "url_param", "uri len 99999999999")
	}
	return mutate(random, value)
}

// mutate returns a value that may be changed.
func mutate(random *rand.Rand, value string) string {
	for range max(0, random.IntN(5)-2) {
		at := random.IntN(len(value) + 1)
		switch random.IntN(8) {
		case 0, 1, 2:
			value = value[:at] + pick(random, oddities...) + value[at:]
		case 3:
			value = value[:at]
		case 6:
			quote := pick(random, "'", `"`)
			value = quote + value + quote
		case 7:
			value = pick(random, "", "''", `""`, " ", "X-A", "/ ", "\\", "%", "1", "-1", "X-A ''", "''\n''")
		case 4:
			value += pick(random, "\n", " ", ",", "") + value
		case 5:
			other := samples[annotations.Docs()[random.IntN(len(annotations.Docs()))].Name]
			if len(other) > 0 {
				value = value[:at] + pick(random, other...) + value[at:]
			}
		}
	}
	return value
}

func expression(random *rand.Rand) string {
	var b strings.Builder
	for range 1 + random.IntN(6) {
		b.WriteString(pick(random, expressions...))
	}
	return b.String()
}

func sampleOf(random *rand.Rand) string {
	s := pick(random, fetches...) + pick(random, fetchArgs...)
	for range max(0, random.IntN(4)-1) {
		s += "," + pick(random, converters...) + pick(random, fetchArgs...)
	}
	return s
}

func formatOf(random *rand.Rand) string {
	var b strings.Builder
	for range 1 + random.IntN(3) {
		b.WriteString(pick(random, "a", "b c", "%["+sampleOf(random)+"]", "%["+sampleOf(random)+"]", "%%", "%ci", "%HU", "%{+Q}r", "%[", "it's", `"x"`))
	}
	return b.String()
}

// render compiles a world for a HAProxy that has Lua.
func (w *writer) render(t testing.TB, s Snapshot) (Result, map[string]haproxy.File) {
	t.Helper()
	var c Compiler
	c.Judge(haproxy.Verdicts{
		haproxy.LuaSupport().Part(): haproxy.Good, haproxy.FCGISupport().Part(): haproxy.Good,
	})
	r := c.Compile([]Snapshot{s})
	r.Config.Bind = haproxy.Bind{HTTP: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:80")}, HTTPS: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:443")}}
	if err := r.Config.Validate(); err != nil {
		t.Errorf("what was compiled is not valid: %v", err)
	}
	return r, haproxy.Render(&r.Config, nil, haproxy.RenderOptions{Dir: w.dir, StatsSocket: w.dir + "/stats.sock", Secret: "secret"}).Content
}

// othersOf returns the parts of the files that decide for the victim: the rows and
// lines of its hosts, its backends, and the sections and files that these name.
func othersOf(files map[string]haproxy.File) string {
	parts, wanted := map[string]string{}, []string{}
	for path, f := range files {
		text := string(f.Content)
		if !strings.HasPrefix(path, "maps/") && path != "haproxy.cfg" && path != "certs/crt-list" {
			parts[filepath.Base(path)] = text
			continue
		}
		name := ""
		for line := range strings.Lines(text) {
			switch word, of, _ := strings.Cut(strings.TrimSpace(line), " "); {
			case path != "haproxy.cfg":
				if strings.Contains(strings.ReplaceAll(line, `\.`, "."), ".victim.test") {
					parts[path+line] = line
					wanted = append(wanted, path+line)
				}
			case word == "#" || word == "":
			case line[0] == ' ':
				parts[name] += line
			case word == "backend" || word == "userlist":
				if name = of; strings.HasPrefix(name, "victim_") {
					wanted = append(wanted, name)
				}
				parts[name] = line
			default:
				name = word + " of all"
			}
		}
	}
	seen, b := map[string]bool{}, strings.Builder{}
	slices.Sort(wanted)
	for len(wanted) > 0 {
		name := wanted[0]
		wanted = wanted[1:]
		if text, is := parts[name]; is && !seen[name] {
			seen[name] = true
			fmt.Fprintf(&b, "== %s\n%s", strings.TrimSpace(name), text)
			if !strings.Contains(text, "PRIVATE KEY") {
				wanted = append(wanted, words.FindAllString(text, -1)...)
			}
		}
	}
	return b.String()
}

var words = regexp.MustCompile(`[A-Za-z0-9_.-]+`)

// refusal returns why a HAProxy refuses files; empty: it accepts them.
func (w *writer) refusal(t testing.TB, program int, files map[string]haproxy.File) string {
	t.Helper()
	for name, f := range files {
		path := filepath.Join(w.dir, name)
		if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, f.Content) {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, f.Content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.asked++
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, w.programs[program], "-c", "-f", filepath.Join(w.dir, "haproxy.cfg")).CombinedOutput() //nolint:gosec // the tester's own programs
	if err == nil {
		return ""
	}
	return cmp.Or(string(out), err.Error())
}

// round lets the writer write, and checks the result.
func (w *writer) round(t *testing.T, seed uint64, value string) {
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // to be had again
	attempts := attemptsOf(random, value)
	program := int(seed % uint64(len(w.programs))) //nolint:gosec // a few
	r, files := w.render(t, w.with(attempts))
	if got := othersOf(files); got != w.alone {
		guilty := w.narrow(attempts, func(some []attempt) bool { _, files := w.render(t, w.with(some)); return othersOf(files) != w.alone })
		w.tell(t, seed, "what is another's changed:\n"+gocmp.Diff(w.alone, got), guilty)
	}
	for _, a := range attempts {
		w.written += len(a.ingress.Annotations) + len(a.service.Annotations)
	}
	for _, n := range r.routing.needs {
		for _, u := range n.settings.Used {
			if n.Service.Namespace == "evil" && u.Scope != "ConfigMap" {
				w.used++
			}
		}
	}
	for range 20 {
		why := w.refusal(t, program, files)
		if why == "" {
			return
		}
		guilty := w.narrow(attempts, func(some []attempt) bool {
			_, files := w.render(t, w.with(some))
			return w.refusal(t, program, files) != ""
		})
		_, alone := w.render(t, w.with(guilty))
		w.tell(t, seed, w.programs[program]+" refuses it: "+w.refusal(t, program, alone), guilty)
		attempts = slices.DeleteFunc(attempts, func(a attempt) bool { return slices.Contains(guilty, a) })
		_, files = w.render(t, w.with(attempts))
	}
}

// with returns the world with the objects of attempts added.
func (w *writer) with(attempts []attempt) Snapshot {
	s := w.world
	s.Ingresses, s.Services, s.Secrets = slices.Clone(s.Ingresses), slices.Clone(s.Services), slices.Clone(s.Secrets)
	for _, a := range attempts {
		s.Ingresses, s.Services, s.Secrets = append(s.Ingresses, a.ingress), append(s.Services, a.service), append(s.Secrets, a.secret)
	}
	return s
}

// narrow returns a few of the attempts for which bad still holds. It holds for all.
func (w *writer) narrow(attempts []attempt, bad func([]attempt) bool) []attempt {
	for len(attempts) > 1 {
		half := len(attempts) / 2
		switch {
		case bad(attempts[:half]):
			attempts = attempts[:half]
		case bad(attempts[half:]):
			attempts = attempts[half:]
		default:
			return attempts
		}
	}
	return attempts
}

// names match the parts of HAProxy's messages that differ from case to case.
var names = regexp.MustCompile(`\([0-9]+\)|\[/[^]]*\]|'evil[^']*'|<[^>]*>|'[^']*'\.?$`)

// tell fails the test, once for each kind of message.
func (w *writer) tell(t *testing.T, seed uint64, why string, guilty []attempt) {
	t.Helper()
	kind := ""
	for line := range strings.Lines(why) {
		if strings.Contains(line, "ALERT") && kind == "" {
			kind = names.ReplaceAllString(line, "")
		}
	}
	if w.found[kind] {
		return
	}
	w.found[kind] = true
	var b strings.Builder
	for _, a := range guilty {
		b.WriteString(a.String())
	}
	t.Errorf("seed %d: %s\nwritten:\n%s", seed, why[:min(len(why), 2000)], b.String())
}
