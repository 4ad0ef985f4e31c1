package main

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// An app answers requests. Its fields are set once, except for the two switches.
type app struct {
	pod, namespace, node string
	failing, draining    atomic.Bool
	noted                sync.Map // lines about the requests for paths below /noted
}

// An echo describes a request and the pod that answers it.
type echo struct {
	Pod       string      `json:"pod"`
	Namespace string      `json:"namespace,omitempty"`
	Node      string      `json:"node,omitempty"`
	Address   string      `json:"address"` // where the request arrived
	Client    string      `json:"client"`  // where it came from: the proxy
	Method    string      `json:"method"`
	URL       string      `json:"url"`
	Proto     string      `json:"proto"`
	Host      string      `json:"host"`
	TLS       bool        `json:"tls"`
	SNI       string      `json:"sni,omitempty"`   // what name the client's TLS asked for
	Shown     string      `json:"shown,omitempty"` // common name of the certificate that it showed
	Version   string      `json:"version,omitempty"`
	Cipher    string      `json:"cipher,omitempty"`
	Headers   http.Header `json:"headers"`
	BodyBytes int64       `json:"bodyBytes"`
}

// newApp reads the pod's name, namespace and node from the environment: POD_NAME or HOSTNAME,
// POD_NAMESPACE, NODE_NAME.
func newApp(getenv func(string) string) *app {
	pod := getenv("POD_NAME")
	if pod == "" {
		pod = getenv("HOSTNAME")
	}
	return &app{pod: pod, namespace: getenv("POD_NAMESPACE"), node: getenv("NODE_NAME")}
}

func (a *app) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", a.echo)
	mux.HandleFunc("/noted/", a.note)
	mux.HandleFunc("GET /noted", a.tell)
	mux.HandleFunc("GET /healthz", a.health)
	mux.HandleFunc("POST /fail", a.turn(true))
	mux.HandleFunc("POST /heal", a.turn(false))
	mux.HandleFunc("GET /slow", a.slow)
	mux.HandleFunc("GET /bytes", a.bytes)
	mux.HandleFunc("/status/{code}", a.status)
	mux.HandleFunc("GET /ws", a.socket)
	mux.HandleFunc("GET /upgrade", a.socket)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Pod", a.pod)
		if clean := path.Clean(r.URL.Path); clean != r.URL.Path && clean+"/" != r.URL.Path {
			a.echo(w, r) // a mux would send the client elsewhere
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// note remembers a request.
func (a *app) note(_ http.ResponseWriter, r *http.Request) {
	n, _ := io.Copy(io.Discard, r.Body)
	a.noted.Store(fmt.Sprintln(r.Method, r.RequestURI, r.Host, n), nil)
}

// tell answers with the requests that note has remembered.
func (a *app) tell(w http.ResponseWriter, _ *http.Request) {
	for line := range a.noted.Range {
		_, _ = io.WriteString(w, line.(string))
	}
}

func (a *app) echo(w http.ResponseWriter, r *http.Request) {
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		http.Error(w, "the body broke off: "+err.Error(), http.StatusBadRequest)
		return
	}
	e := echo{
		Pod: a.pod, Namespace: a.namespace, Node: a.node,
		Client: r.RemoteAddr, Method: r.Method, URL: r.RequestURI, Proto: r.Proto, Host: r.Host,
		TLS: r.TLS != nil, Headers: r.Header, BodyBytes: n,
	}
	if r.TLS != nil {
		e.SNI, e.Version = r.TLS.ServerName, tls.VersionName(r.TLS.Version)
		e.Cipher = tls.CipherSuiteName(r.TLS.CipherSuite)
		if shown := r.TLS.PeerCertificates; len(shown) > 0 {
			e.Shown = shown[0].Subject.CommonName
		}
	}
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		e.Address = local.String()
	}
	if r.URL.Query().Get("format") == "json" || strings.Contains(r.Header.Get("Accept"), "application/json") {
		w.Header().Set("Content-Type", "application/json")
		body, _ := json.Marshal(e)
		w.Header().Set("Content-Length", strconv.Itoa(len(body)+1)) // FastCGI would have chunks
		_, _ = w.Write(append(body, '\n'))                          // the client may be gone
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, e.text())
}

func (e echo) text() string {
	var s strings.Builder
	fmt.Fprintf(&s, "pod: %s\nnamespace: %s\nnode: %s\naddress: %s\nclient: %s\n\n", e.Pod, e.Namespace, e.Node,
		e.Address, e.Client)
	fmt.Fprintf(&s, "%s %s %s\nHost: %s\n", e.Method, e.URL, e.Proto, e.Host)
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
		for _, value := range e.Headers[name] {
			fmt.Fprintf(&s, "%s: %s\n", name, value)
		}
	}
	if e.BodyBytes > 0 {
		fmt.Fprintf(&s, "\nbody: %d bytes\n", e.BodyBytes)
	}
	return s.String()
}

func (a *app) health(w http.ResponseWriter, _ *http.Request) {
	switch {
	case a.failing.Load():
		http.Error(w, "failing, as asked", http.StatusServiceUnavailable)
	case a.draining.Load():
		http.Error(w, "draining", http.StatusServiceUnavailable)
	default:
		_, _ = io.WriteString(w, "ok\n")
	}
}

func (a *app) turn(failing bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		a.failing.Store(failing)
		w.WriteHeader(http.StatusNoContent)
	}
}

// status answers with the requested status, the headers it saw, and the cookies, the Location and the Refresh of the
// query.
func (a *app) status(w http.ResponseWriter, r *http.Request) {
	code, err := strconv.Atoi(r.PathValue("code"))
	if err != nil || code < 200 || code > 599 {
		http.Error(w, "the status must be a number of 200 to 599", http.StatusBadRequest)
		return
	}
	query := r.URL.Query()
	w.Header()["Set-Cookie"], w.Header()["Location"], w.Header()["Refresh"] = query["cookie"], query["location"],
		query["refresh"]
	w.Header().Set("Saw-Host", r.Host)
	w.Header().Set("Saw-Method", r.Method)
	for name, values := range r.Header {
		if strings.HasPrefix(name, "X-") {
			w.Header()["Saw-"+name] = values
		}
	}
	w.WriteHeader(code)
}

// slow streams for the requested time, at most an hour.
func (a *app) slow(w http.ResponseWriter, r *http.Request) {
	query, d, every := r.URL.Query(), time.Second, 100*time.Millisecond
	for name, to := range map[string]*time.Duration{"d": &d, "every": &every} {
		if s := query.Get(name); s != "" {
			var err error
			if *to, err = time.ParseDuration(s); err != nil || *to <= 0 || *to > time.Hour {
				http.Error(w, name+" must be a duration of 1ns to 1h, like 5s", http.StatusBadRequest)
				return
			}
		}
	}
	gone := r.Context().Done()
	if query.Has("deaf") {
		gone = nil
	}
	end := time.NewTimer(d)
	defer end.Stop()
	tick := time.NewTicker(every)
	defer tick.Stop()
	out := http.NewResponseController(w)
	for i := 0; ; i++ {
		if _, err := fmt.Fprintf(w, "%s %d\n", a.pod, i); err != nil || out.Flush() != nil {
			return
		}
		select {
		case <-gone:
			return
		case <-end.C:
			_, _ = io.WriteString(w, "done\n")
			return
		case <-tick.C:
		}
	}
}

// bytes sends the requested number of bytes, at most 1 GiB.
func (a *app) bytes(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.ParseInt(r.URL.Query().Get("n"), 10, 64)
	if err != nil || n < 0 || n > 1<<30 {
		http.Error(w, "n must be a number of 0 to 1073741824", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	chunk := make([]byte, 32<<10)
	for i := range chunk {
		chunk[i] = 'x'
	}
	for n > 0 {
		sent, err := w.Write(chunk[:min(n, int64(len(chunk)))])
		if err != nil {
			return
		}
		n -= int64(sent)
	}
}
