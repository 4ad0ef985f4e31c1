package parity

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/appliance/migrate"
	"sallyport/ingress"
)

const objects = `
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: web
  namespace: shop
spec:
  ingressClassName: nginx
  rules:
  - host: shop.example
    http:
      paths:
      - {path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}
  - host: api.shop.example
    http:
      paths:
      - {path: /v1, pathType: Prefix, backend: {service: {name: api, port: {number: 80}}}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: secure
  namespace: shop
  annotations: {nginx.ingress.kubernetes.io/force-ssl-redirect: "true"}
spec:
  ingressClassName: nginx
  rules:
  - host: secure.example
    http:
      paths:
      - {path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: admin
  namespace: shop
  annotations: {nginx.ingress.kubernetes.io/whitelist-source-range: "10.0.0.0/8"}
spec:
  ingressClassName: nginx
  rules:
  - host: shop.example
    http:
      paths:
      - {path: /admin, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: snippet
  namespace: shop
  annotations: {nginx.ingress.kubernetes.io/configuration-snippet: "deny all;"}
spec:
  ingressClassName: nginx
  rules:
  - host: shop.example
    http:
      paths:
      - {path: /closed, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: old
  namespace: shop
  annotations: {nginx.ingress.kubernetes.io/permanent-redirect: "https://new.example/"}
spec:
  ingressClassName: nginx
  rules:
  - host: old.example
    http:
      paths:
      - {path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}
`

// world returns the Result of the objects.
func world(t testing.TB) ingress.Result {
	t.Helper()
	file := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(file, []byte(objects), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := migrate.Together(t.Context(), migrate.Question{From: "nginx", Files: []string{file}, Namespace: "default"})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

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
			Line{Path: "/", Method: "GET", Client: client, Status: 308, Own: true},
		},
		"ingress-nginx, answered by a pod": {
			`198.51.100.7 - - [24/Nov/2026:10:00:00 +0000] "GET / HTTP/2.0" 200 164 "-" "curl" 35 0.002 [shop-web-80] [] 10.2.0.4:80 12 0.001 200 8f2a`,
			Line{Path: "/", Method: "GET", Client: client, Status: 200},
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
		if diff := cmp.Diff(row.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" || !ok {
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

// TestRequestsThatMeetAnotherAnswerAreFound replays a line for each answer.
func TestRequestsThatMeetAnotherAnswerAreFound(t *testing.T) {
	r := world(t)
	for name, row := range map[string]struct {
		host, scheme, path, client, server string
		status                             int
		want                               Code // empty: the same
	}{
		"served before and now":           {host: "shop.example", path: "/a", status: 200},
		"404 of a server":                 {host: "shop.example", path: "/a", status: 404},
		"404 of the proxy, served now":    {host: "shop.example", path: "/a", status: 404, server: "-", want: Served},
		"503 without servers":             {host: "shop.example", path: "/a", status: 503, server: "-"},
		"a password that nobody asks for": {host: "shop.example", path: "/a", status: 401, server: "-", want: Served},
		"a host that nobody has":          {host: "gone.example", path: "/", status: 200, want: NotFound},
		"404 of a host that nobody has":   {host: "gone.example", path: "/", status: 404},
		"a path that no rule has":         {host: "api.shop.example", path: "/v2", status: 200, want: NotFound},
		"a path below a rule":             {host: "api.shop.example", path: "/v1/x", status: 200},
		"a path beside a rule":            {host: "api.shop.example", path: "/v10", status: 200, want: NotFound},
		"plain HTTP, served before":       {host: "secure.example", scheme: "http", path: "/", status: 200, want: ToHTTPS},
		"plain HTTP, redirected before":   {host: "secure.example", scheme: "http", path: "/", status: 301},
		"HTTPS":                           {host: "secure.example", scheme: "https", path: "/", status: 200},
		"no scheme, redirected before":    {host: "secure.example", path: "/", status: 308, server: "-"},
		"no scheme, served before":        {host: "secure.example", path: "/", status: 200},
		"an address that is allowed":      {host: "shop.example", path: "/admin", client: "10.1.2.3", status: 200},
		"an address that is not":          {host: "shop.example", path: "/admin", client: "192.0.2.1", status: 200, want: Denied},
		"an address that was not, either": {host: "shop.example", path: "/admin", client: "192.0.2.1", status: 403, server: "-"},
		"a guard that cannot be kept":     {host: "shop.example", path: "/closed/x", status: 200, want: Closed},
		"a redirect":                      {host: "old.example", scheme: "https", path: "/", status: 301, server: "-"},
		"a redirect that was none":        {host: "old.example", scheme: "https", path: "/", status: 200, want: Redirect},
		"a client that left":              {host: "gone.example", path: "/", status: 499},
	} {
		text := fmt.Sprintf(`{"host":%q,"uri":%q,"status":%d,"remote_addr":%q,"upstream_addr":%q,"method":"GET"`,
			row.host, row.path, row.status, row.client, row.server)
		if row.scheme != "" {
			text += fmt.Sprintf(`,"scheme":%q`, row.scheme)
		}
		got, err := Replay(r, strings.NewReader(text+"}\n"), "")
		if err != nil {
			t.Fatal(err)
		}
		var code Code
		if len(got.Groups) > 0 {
			code = got.Groups[0].Code
		}
		if code != row.want || got.Lines != 1 || got.Same+got.Different+got.Gone != 1 {
			t.Errorf("%s: got %q, want %q: %+v", name, code, row.want, got)
		}
	}
}

// endless is a log of many bytes, made as it is read: binary lines, long lines, and a host of its own in
// each other line.
type endless struct {
	left, line int
	rest       []byte
}

func (e *endless) Read(p []byte) (n int, err error) {
	if e.left <= 0 {
		return 0, io.EOF
	}
	for len(e.rest) == 0 {
		switch e.line++; e.line % 4 {
		case 0:
			e.rest = []byte("\x00\xff\x16\x03\x01 binary \n")
		case 1:
			e.rest = append(bytes.Repeat([]byte("x"), MaxLine+100), '\n')
		default:
			e.rest = fmt.Appendf(nil, "{\"host\":\"h%d.example\",\"uri\":\"/%d%s\",\"status\":200}\n", e.line, e.line,
				strings.Repeat("y", 400))
		}
	}
	n = copy(p, e.rest)
	e.rest, e.left = e.rest[n:], e.left-n
	return n, nil
}

// TestALargeLogTakesBoundedMemory replays 400 MB with more hosts than there are groups.
func TestALargeLogTakesBoundedMemory(t *testing.T) {
	r := world(t)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	got, err := Replay(r, &endless{left: 400 << 20}, "")
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if len(got.Groups) != MaxGroups || got.Others == 0 || got.Others+MaxGroups != got.Different ||
		got.Unreadable < got.Lines/2-2 || got.Lines != got.Different+got.Unreadable {
		t.Errorf("%d groups, %d others, %d lines, %d different, %d not read", len(got.Groups), got.Others, got.Lines,
			got.Different, got.Unreadable)
	}
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 64<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	runtime.KeepAlive(got)
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
