package accesslog

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestEachFormOfALogIsRead reads a line of each form.
func TestEachFormOfALogIsRead(t *testing.T) {
	client := netip.MustParseAddr("198.51.100.7")
	for name, row := range map[string]struct {
		text string
		want Line
	}{
		"nginx combined": {
			`198.51.100.7 - bob [24/Nov/2026:10:00:00 +0000] "GET /a?b=c HTTP/1.1" 200 612 "-" "curl/8.0"`,
			Line{Path: "/a", Method: "GET", Client: client, User: "bob", Status: 200},
		},
		"a quote in the request": {
			`198.51.100.7 - - [24/Nov/2026:10:00:00 +0000] "GET /a\"b HTTP/1.1" 404 612 "-" "x"`,
			Line{Path: `/a\"b`, Method: "GET", Client: client, Status: 404},
		},
		"ingress-nginx, answered by itself": {
			`198.51.100.7 - - [24/Nov/2026:10:00:00 +0000] "GET / HTTP/2.0" 308 164 "-" "curl" 35 0.000 [shop-web-80] [] - - - - 8f2a`,
			Line{Path: "/", Method: "GET", Client: client, Status: 308, Own: true, backend: "shop-web-80"},
		},
		"ingress-nginx, answered by a pod": {
			`198.51.100.7 - - [24/Nov/2026:10:00:00 +0000] "GET / HTTP/2.0" 200 164 "-" "curl" 35 0.002 [shop-web-80] [] 10.2.0.4:80 12 0.001 200 8f2a`,
			Line{Path: "/", Method: "GET", Client: client, Status: 200, backend: "shop-web-80"},
		},
		"ingress-nginx, no rule takes it": {
			`198.51.100.7 - - [24/Nov/2026:10:00:00 +0000] "GET / HTTP/2.0" 404 1 "-" "curl" 35 0.002 [upstream-default-backend] [] 10.2.0.4:80 12 0.001 404 8f2a`,
			Line{Path: "/", Method: "GET", Client: client, Status: 404},
		},
		"HAProxy's controller, answered by a pod": {
			`198.51.100.7:4711 [24/Nov/2026:10:00:00.123] https~ shop_svc_web_http/SRV_1 0/0/1/2/3 200 90 - - ---- 1/1/0/0/0 0/0 "GET shop.example/a HTTP/1.1"`,
			Line{
				Host: "shop.example", Path: "/a", Method: "GET", Client: client, Scheme: HTTPS, Status: 200,
				backend: "shop_svc_web_http",
			},
		},
		"JSON of ingress-nginx": {
			`{"remote_addr":"198.51.100.7","host":"a.test","uri":"/a","method":"GET","status":200,"proxy_upstream_name":"shop-web-80"}`,
			Line{Host: "a.test", Path: "/a", Method: "GET", Client: client, Status: 200, backend: "shop-web-80"},
		},
		"Apache vhost_combined": {
			`shop.example:443 198.51.100.7 - - [24/Nov/2026:10:00:00 +0000] "POST /x HTTP/1.1" 500 1 "-" "-"`,
			Line{Host: "shop.example", Path: "/x", Method: "POST", Client: client, Status: 500},
		},
		"HAProxy httplog": {
			`Nov 24 10:00:00 lb haproxy[7]: 198.51.100.7:4711 [24/Nov/2026:10:00:00.123] https~ shop_web/srv1 0/0/1/2/3 200 512 - - ---- 1/1/0/0/0 0/0 {shop.example|curl} "GET /a?q HTTP/1.1"`,
			Line{Host: "shop.example", Path: "/a", Method: "GET", Client: client, Scheme: HTTPS, Status: 200},
		},
		"HAProxy's controller": {
			`198.51.100.7:4711 [24/Nov/2026:10:00:00.123] http http/<NOSRV> 0/-1/-1/-1/0 302 90 - - LR-- 1/1/0/0/0 0/0 "GET Shop.example/a HTTP/1.1"`,
			Line{Host: "shop.example", Path: "/a", Method: "GET", Client: client, Scheme: HTTP, Status: 302, Own: true},
		},
		"JSON": {
			`{"time":"x","remote_addr":"198.51.100.7","host":"Shop.example:8443","request_uri":"/a?b","request_method":"PUT","scheme":"https","status":"201","upstream_addr":"10.2.0.4:80"}`,
			Line{Host: "shop.example", Path: "/a", Method: "PUT", Client: client, Scheme: HTTPS, Status: 201},
		},
		"JSON with a request line and a number": {
			`{"client_ip":"198.51.100.7","request":"GET https://shop.example/a HTTP/2.0","status":404,"upstream_addr":"-"}`,
			Line{Host: "shop.example", Path: "/a", Method: "GET", Client: client, Scheme: HTTPS, Status: 404, Own: true},
		},
	} {
		got, ok := Read(row.text)
		if diff := cmp.Diff(row.want, got, cmp.AllowUnexported(Line{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" || !ok {
			t.Errorf("%s: %v, want (-), got (+):\n%s", name, ok, diff)
		}
	}
	for _, text := range []string{
		"", "x", `{"status":200}`, `{`, `1.2.3.4 - - [x] "\x16\x03" 400 0 "-" "-"`, "\x00\xff", `a b c [x] "GET /`,
		`1.2.3.4 - - [x] "GET / HTTP/1.1" 999 0`, `{"host":"a","uri":"/","status":"ok"}`,
	} {
		if l, ok := Read(text); ok {
			t.Errorf("%q is read as %+v", text, l)
		}
	}
}

func TestABackendOfALogNamesItsService(t *testing.T) {
	for backend, row := range map[string]struct {
		namespace, service string
		want               bool
	}{
		"":                                 {"shop", "web", true},
		"shop-web-80":                      {"shop", "web", true},
		"shop-web-http-alt":                {"shop", "web", true},
		"shop-website-80":                  {"shop", "web", false},
		"other-web-80":                     {"shop", "web", false},
		"shop_svc_web_http":                {"shop", "web", true},
		"shop_svc_website_http":            {"shop", "web", false},
		"other_svc_web_http":               {"shop", "web", false},
		"blue__shop_ing_site_svc_web_http": {"shop", "web", true},
	} {
		if got := (&Line{backend: backend}).MayReach(row.namespace, row.service); got != row.want {
			t.Errorf("%q may be Service %s/%s: %t, want %t", backend, row.namespace, row.service, got, row.want)
		}
	}
}

// FuzzRead holds that a line that is read has a path, a status and a host of bounded length.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		`198.51.100.7 - bob [24/Nov/2026:10:00:00 +0000] "GET /a?b=c HTTP/1.1" 200 612 "-" "curl/8.0"`,
		`1.1.1.1:1 [24/Nov/2026:10:00:00.1] http~ b/s 0/0/0/0/0 200 1 - - ---- 1/1/1/1/0 0/0 {h|x} "GET / HTTP/1.1"`,
		`{"host":"a","request":"GET http://b/ HTTP/1.1","status":200}`, "\x00",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, ok := Read(text)
		if ok && (l.Path == "" || len(l.Host) > 253 || l.Status < 100 && l.Status != -1 || l.Status > 599 ||
			l.Path[0] != '/' && l.Path != "*") {
			t.Errorf("%q is read as %+v", text, l)
		}
	})
}
