package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"sallyport/test/load"
)

// A request goes over one connection. Empty fields mean the address of Ingresses, GET, "/", and the
// host as name in the handshake.
type request struct {
	at     string
	https  bool
	method string
	host   string
	target string
	header string // more lines, each ended by "\r\n"
	sni    string
	cert   *tls.Certificate
	raw    string // in the place of all but https, sni and cert
}

func (r request) String() string {
	scheme := "http"
	if r.https {
		scheme = "https"
	}
	if r.raw != "" {
		return fmt.Sprintf("%s %.300q", scheme, r.raw)
	}
	to := ""
	if r.at != "" {
		to = " to " + r.at
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s://%s%s%s %s", or(r.method, "GET"), scheme, r.host, or(r.target, "/"), to,
		strings.ReplaceAll(r.header, "\r\n", " ")))
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func (r request) text() string {
	if r.raw != "" {
		return r.raw
	}
	return fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\nAccept: application/json\r\nConnection: close\r\n%s\r\n",
		or(r.method, "GET"), or(r.target, "/"), r.host, r.header)
}

// An answer is all that a client received. Its String leaves out what may differ between two equal
// requests.
type answer struct {
	status int // 0: there is none
	header http.Header
	body   []byte
	crt    string // of the server, by its hash
	pod    string // namespace of the pod that answered, or empty if no pod answered
	saw    sight
	err    error // why there is no answer
}

// A sight is a request as a pod saw it.
type sight struct {
	Namespace string
	URL       string
	Host      string
	Client    string
	Headers   http.Header
}

// passing matches what differs with each request: the port the proxy dialled from, and whether the
// connection stays open (a worker that a reload replaced closes it).
var passing = regexp.MustCompile(`"client":"[^"]*"|"Connection":\["close"\],?`)

func (a answer) String() string {
	if a.status == 0 {
		return "no answer"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s", a.status, or(a.pod, "no pod"))
	if a.crt != "" {
		b.WriteString(" " + a.crt)
	}
	for _, name := range slices.Sorted(maps.Keys(a.header)) {
		if name != "Date" && (name != "Content-Length" || a.saw.Namespace == "") {
			fmt.Fprintf(&b, "\n%s: %s", name, strings.Join(a.header[name], " | "))
		}
	}
	fmt.Fprintf(&b, "\n%s", passing.ReplaceAll(a.body, nil))
	return b.String()
}

// patience bounds one exchange. It measures nothing.
const patience = 2 * load.Patience

// connect opens the connection for a request, with TLS and a client certificate if it has them.
func (s *testbed) connect(ctx context.Context, r request, more ...func(*tls.Config)) (net.Conn, error) {
	port := "80"
	if r.https {
		port = "443"
	}
	conn, err := s.Dial(ctx, net.JoinHostPort(or(r.at, applianceAddr), port))
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	if !r.https {
		return conn, nil
	}
	config := &tls.Config{ServerName: or(r.sni, r.host), InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}} //nolint:gosec // its certificate is looked at
	if r.sni == noSNI {
		config.ServerName = ""
	}
	if r.cert != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return r.cert, nil }
	}
	for _, m := range more {
		m(config)
	}
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return secure, nil
}

// noSNI as sni of a request: the handshake names no host.
const noSNI = "-"

// ask sends a request once. A connection that ends without an answer counts as an answer.
func (s *testbed) ask(ctx context.Context, r request, more ...func(*tls.Config)) (answer, error) {
	conn, err := s.connect(ctx, r, more...)
	if err != nil {
		if !r.https || ctx.Err() != nil {
			return answer{}, err
		}
		return answer{err: err}, nil
	}
	defer conn.Close() //nolint:errcheck // nothing is lost with it
	a := answer{}
	if secure, is := conn.(*tls.Conn); is {
		if shown := secure.ConnectionState().PeerCertificates; len(shown) > 0 {
			a.crt = fmt.Sprintf("%.4x", sha256.Sum256(shown[0].Raw))
		}
	}
	if _, err := io.WriteString(conn, r.text()); err != nil {
		return answer{err: err}, nil
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: or(r.method, "GET")})
	if err != nil {
		return answer{err: err}, nil
	}
	defer response.Body.Close() //nolint:errcheck // only read from
	a.status, a.header = response.StatusCode, response.Header
	if a.body, err = io.ReadAll(response.Body); err != nil {
		return answer{err: err}, nil
	}
	if bytes.HasPrefix(a.body, []byte("{")) && json.Unmarshal(a.body, &a.saw) == nil {
		a.pod = a.saw.Namespace
	}
	if strings.HasPrefix(a.header.Get("X-Pod"), "victim") {
		a.pod = "victim"
	}
	return a, nil
}

// hear sends text on a new connection and returns everything that comes back, until the other side
// closes the connection or is silent.
func (s *testbed) hear(ctx context.Context, r request) (string, error) {
	conn, err := s.connect(ctx, r)
	if err != nil {
		return "", err
	}
	defer conn.Close() //nolint:errcheck // nothing is lost with it
	if _, err := io.WriteString(conn, r.text()); err != nil {
		return "", nil //nolint:nilerr // it was closed before, which is an answer
	}
	_ = conn.SetReadDeadline(time.Now().Add(silence))
	var heard []byte
	buffer := make([]byte, 16<<10)
	for {
		n, err := conn.Read(buffer)
		heard = append(heard, buffer[:n]...)
		if err != nil {
			return string(heard), nil //nolint:nilerr // closed, reset or silent: that was all
		}
		_ = conn.SetReadDeadline(time.Now().Add(silence))
	}
}

// hears sends each text on two connections of its own, plain and TLS, and reports the texts whose
// answers are wrong.
func (s *testbed) hears(ctx context.Context, texts []string, name string, wrong func(heard string) string) error {
	errs := make([]error, len(texts))
	var all sync.WaitGroup
	room := make(chan struct{}, 16)
	for i, text := range texts {
		all.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			for _, https := range []bool{false, true} {
				heard, err := s.hear(ctx, request{https: https, sni: name, raw: text})
				if why := wrong(heard); err == nil && why != "" {
					err = fmt.Errorf("%.300q: %s", text, why)
				}
				if err != nil {
					errs[i] = err
					return
				}
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// silence is the time without a byte after which an answer counts as complete.
const silence = 300 * time.Millisecond
