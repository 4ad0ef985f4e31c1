package accesslog

import (
	"encoding/json"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A Line is a request in a log, with its answer.
type Line struct {
	Host   string // lower case, without a port; empty if the log does not have it
	Path   string // as the client sent it, without the query
	Method string
	Client netip.Addr // invalid if the log does not have it
	User   string     // of HTTP Basic; empty if there is none
	Scheme Scheme
	Status int
	Own    bool // the proxy of before answered by itself, and not a server

	// backend is NAMESPACE-SERVICE-PORT of ingress-nginx, or NAMESPACE_svc_SERVICE_PORT of HAProxy's controller.
	backend string
}

// Backend returns the name that the log has for the Service of the request. It is empty if the log has none, or a
// name that no controller gives.
func (l *Line) Backend() string { return l.backend }

// MayReach reports whether the request may have gone to a Service of Kubernetes. It is true if the log does not name
// the Service.
func (l *Line) MayReach(namespace, service string) bool {
	if l.backend == "" {
		return true
	}
	before, after, is := strings.Cut(l.backend, "_svc_")
	if !is {
		return strings.HasPrefix(l.backend, namespace+"-"+service+"-")
	}
	if _, rest, named := strings.Cut(before, "__"); named { // this appliance puts the cluster there
		before = rest
	}
	of, _, _ := strings.Cut(before, "_")
	return of == namespace && strings.HasPrefix(after, service+"_")
}

// reached sets the backend of a line of ingress-nginx, if the line has one.
func (l *Line) reached(upstream string) {
	if upstream != "-" && upstream != "upstream-default-backend" { // which is no Service of a rule
		l.backend = upstream
	}
}

// A Scheme says whether a request came over TLS.
type Scheme int

// The Schemes.
const (
	AnyScheme Scheme = iota // the log does not have it
	HTTP
	HTTPS
)

// Read reads a line of an access log: nginx' combined form and that of ingress-nginx, Apache's combined
// form with or without the virtual host, HAProxy's httplog, or an object of JSON.
func Read(text string) (l Line, ok bool) {
	text = strings.TrimSpace(text)
	switch {
	case !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		return l, false
	case strings.HasPrefix(text, "{"):
		return readJSON(text)
	}
	if l, ok := readHAProxy(text); ok {
		return l, true
	}
	return readCombined(text)
}

// target sets the host and the path of a request from a request target: /path, http://host/path, or
// host/path, as HAProxy's controller logs it.
func (l *Line) target(text string) bool {
	if text == "*" {
		l.Path = text
		return true
	}
	text, _, _ = strings.Cut(text, "?")
	text, _, _ = strings.Cut(text, "#")
	scheme, rest, absolute := strings.Cut(text, "://")
	switch {
	case strings.HasPrefix(text, "/"):
		l.Path = text
		return true
	case absolute && (scheme == "http" || scheme == "https"):
		if scheme == "https" {
			l.Scheme = HTTPS
		} else {
			l.Scheme = HTTP
		}
		text = rest
	}
	host, path, _ := strings.Cut(text, "/")
	if !l.host(host) {
		return false
	}
	l.Path = "/" + path
	return true
}

// host sets the host of a request.
func (l *Line) host(text string) bool {
	text = strings.ToLower(text)
	if strings.HasPrefix(text, "[") {
		text, _, _ = strings.Cut(text[1:], "]")
	} else if strings.Count(text, ":") == 1 {
		text, _, _ = strings.Cut(text, ":")
	}
	if text == "" || text == "-" || text == "_" || len(text) > 253 || strings.ContainsFunc(text, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.:*", r)
	}) {
		return false
	}
	l.Host = text
	return true
}

// request sets the method, the host and the path from a request line.
func (l *Line) request(text string) bool {
	words := strings.Fields(text)
	if len(words) < 2 || len(words) > 3 || len(words) == 3 && !strings.HasPrefix(words[2], "HTTP/") {
		return false
	}
	l.Method = words[0]
	return l.target(words[1])
}

func (l *Line) status(text string) bool {
	n, err := strconv.Atoi(text)
	l.Status = n
	return err == nil && (n >= 100 && n <= 599 || n == -1)
}

func (l *Line) client(text string) {
	if at, err := netip.ParseAddrPort(text); err == nil {
		l.Client = at.Addr().Unmap()
	} else if addr, err := netip.ParseAddr(text); err == nil {
		l.Client = addr.Unmap()
	}
}

// readCombined reads the combined form, with what ingress-nginx has after it. Apache's
// vhost_combined begins with the host.
func readCombined(text string) (l Line, ok bool) {
	before, rest, ok := strings.Cut(text, " [")
	words := strings.Fields(before)
	if !ok || len(words) < 3 || len(words) > 4 {
		return l, false
	}
	if len(words) == 4 {
		l.host(words[0])
		words = words[1:]
	}
	l.client(words[0])
	if words[2] != "-" {
		l.User = words[2]
	}
	_, rest, ok = strings.Cut(rest, `] "`)
	if !ok {
		return l, false
	}
	request, rest, ok := quoted(rest)
	if !ok || !l.request(request) {
		return l, false
	}
	words = strings.Fields(rest)
	if len(words) < 2 || !l.status(words[0]) {
		return l, false
	}
	l.ofNginx(rest)
	return l, true
}

// ofNginx reads the end of a line of ingress-nginx, which has no address if no server answered:
// "referer" "agent" LENGTH TIME [SERVICE] [OTHER] ADDRESS LENGTH TIME STATUS ID.
func (l *Line) ofNginx(rest string) {
	i := strings.LastIndex(rest, `" `)
	if i < 0 {
		return
	}
	words := strings.Fields(rest[i+2:])
	if len(words) >= 8 && strings.HasPrefix(words[2], "[") && strings.HasPrefix(words[3], "[") {
		l.Own = words[4] == "-"
		l.reached(strings.Trim(words[2], "[]"))
	}
}

// quoted returns the text before a quote, and the text after it. A backslash escapes a quote.
func quoted(text string) (inner, rest string, ok bool) {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return text[:i], text[i+1:], true
		}
	}
	return "", "", false
}

// readHAProxy reads httplog, with or without what syslog puts before it:
// CLIENT:PORT [TIME] FRONTEND BACKEND/SERVER TIMERS STATUS BYTES - - FLAGS CONNS QUEUE {HEADERS} "REQUEST".
func readHAProxy(text string) (l Line, ok bool) {
	open := strings.Index(text, ` "`)
	if open < 0 || !strings.HasSuffix(text, `"`) || len(text) < open+3 {
		return l, false
	}
	words := strings.Fields(text[:open])
	at := -1 // the index of the time
	for i, w := range words {
		if strings.HasPrefix(w, "[") && strings.HasSuffix(w, "]") && strings.Count(w, "/") == 2 && i > 0 {
			at = i
			break
		}
	}
	if at < 0 || len(words) < at+5 || strings.Count(words[at+3], "/") < 4 || !l.status(words[at+4]) {
		return l, false
	}
	if !l.request(text[open+2 : len(text)-1]) {
		return l, false
	}
	l.client(words[at-1])
	if l.Scheme = HTTP; strings.HasSuffix(words[at+1], "~") { // "~" marks TLS (HAProxy's manual, 8.2.3)
		l.Scheme = HTTPS
	}
	backend, server, _ := strings.Cut(words[at+2], "/")
	if strings.Contains(backend, "_svc_") {
		l.backend = backend
	}
	l.Own = server == "<NOSRV>" || server == "<STATS>"
	if l.Host == "" {
		for _, w := range words[at+5:] {
			if headers, is := strings.CutPrefix(w, "{"); is {
				first, _, _ := strings.Cut(strings.TrimSuffix(headers, "}"), "|")
				l.host(first)
				break
			}
		}
	}
	return l, true
}

// names are the names that logs in JSON give a field.
var names = map[string][]string{
	"host":    {"host", "http_host", "vhost", "authority", ":authority", "request_host", "server_name"},
	"target":  {"request_uri", "uri", "path", "url", "http_path", "request_path"},
	"request": {"request", "request_line"},
	"method":  {"request_method", "method", "http_method"},
	"status":  {"status", "response_code", "status_code", "http_status"},
	"client":  {"remote_addr", "remote_address", "client_ip", "client", "remote_ip", "src", "x_real_ip"},
	"user":    {"remote_user", "user"},
	"scheme":  {"scheme", "request_scheme", "protocol_scheme"},
	"server":  {"upstream_addr", "upstream_address", "server"},
	"backend": {"proxy_upstream_name"},
}

// readJSON reads an object with fields of these names.
func readJSON(text string) (l Line, ok bool) {
	var fields map[string]any
	if json.Unmarshal([]byte(text), &fields) != nil {
		return l, false
	}
	field := func(kind string) string {
		for _, name := range names[kind] {
			switch v := fields[name].(type) {
			case string:
				if v != "" {
					return v
				}
			case float64:
				return strconv.FormatFloat(v, 'f', -1, 64)
			}
		}
		return ""
	}
	l.host(field("host"))
	host := l.Host
	if !l.target(field("target")) && !l.request(field("request")) {
		return l, false
	}
	if host != "" {
		l.Host = host
	}
	if m := field("method"); m != "" {
		l.Method = m
	}
	switch u, err := url.Parse(field("scheme") + "://x"); {
	case err != nil:
	case u.Scheme == "https":
		l.Scheme = HTTPS
	case u.Scheme == "http":
		l.Scheme = HTTP
	}
	l.client(field("client"))
	if l.User = field("user"); l.User == "-" {
		l.User = ""
	}
	l.Own = field("server") == "-"
	l.reached(field("backend"))
	return l, l.status(field("status"))
}
