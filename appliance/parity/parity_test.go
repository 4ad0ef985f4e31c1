package parity

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

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

// TestRequestsThatMeetAnotherAnswerAreFound replays a line for each answer.
func TestRequestsThatMeetAnotherAnswerAreFound(t *testing.T) {
	r := world(t)
	for name, row := range map[string]struct {
		host, scheme, path, client, server, backend string
		status                                      int
		want                                        Code // empty: the same
	}{
		"served before and now": {host: "shop.example", path: "/a", status: 200},
		"by the same Service":   {host: "shop.example", path: "/a", status: 200, backend: "shop-web-80"},
		"by another Service":    {host: "shop.example", path: "/a", status: 200, backend: "shop-api-80", want: Another},
		"another Service, whose proxy answered": {
			host: "shop.example", path: "/a", status: 503, backend: "shop-api-80", server: "-",
		},
		"by the default of all": {
			host: "shop.example", path: "/a", status: 200, backend: "upstream-default-backend",
		},
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
		text := fmt.Sprintf(`{"host":%q,"uri":%q,"status":%d,"remote_addr":%q,"upstream_addr":%q,"method":"GET",`+
			`"proxy_upstream_name":%q`, row.host, row.path, row.status, row.client, row.server, row.backend)
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
