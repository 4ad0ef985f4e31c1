package parity

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"sallyport/appliance/accesslog"
)

// UsualHeaders are the headers of answers that are compared unless others are chosen.
var UsualHeaders = []string{"Content-Type", "Strict-Transport-Security", "WWW-Authenticate"}

// A Sending says how the safe requests of a log are sent to two places.
type Sending struct {
	Before, Now *url.URL           // both http, or both https; without a path
	Host        string             // of lines without one
	Headers     []string           // of answers that are compared, beside Location
	Most        int                // different requests that are sent
	Timeout     time.Duration      // of an answer
	Tick        <-chan time.Time   // each tick allows one request to each place
	Progress    func(sent, of int) // is called before each request; may be nil
}

// A Sent compares the answers of two places to the requests of a log.
type Sent struct {
	Lines      int64 `json:"lines"`
	Unreadable int64 `json:"unreadable"` // no form of a log fits, or the line is too long
	Hostless   int64 `json:"hostless"`   // the log does not have the host
	Gone       int64 `json:"gone"`       // the request was no HTTP, or the client left
	Unsafe     int64 `json:"unsafe"`     // methods other than GET and HEAD
	OtherPort  int64 `json:"otherPort"`  // plain HTTP where HTTPS is asked, or the reverse
	Unsendable int64 `json:"unsendable"` // a path or a host that no request can have
	Beyond     int64 `json:"beyond"`     // lines of different requests beyond Most

	// Each of these different requests was sent once to each place.
	Requests   int64        `json:"requests"`
	Same       int64        `json:"same"`
	Different  int64        `json:"different"`
	Unanswered int64        `json:"unanswered"` // by both places
	Groups     []Difference `json:"groups"`

	index map[difference]int // of Groups
}

// A difference is the key of a Difference.
type difference struct{ host, what, before, now string }

// A Difference counts requests of one host. Their answers differ in one thing.
type Difference struct {
	Host     string `json:"host"`
	What     string `json:"what"`   // status, certificate, Location, or another header
	Before   string `json:"before"` // of the first request
	Now      string `json:"now"`
	Requests int64  `json:"requests"`
	Lines    int64  `json:"lines"`   // of the log
	Example  string `json:"example"` // method and path of the first request
}

// ParsePlace reads the URL of a place that requests are sent to: http or https, a name or an address, and
// perhaps a port.
func ParsePlace(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil ||
		strings.Trim(u.Path, "/")+u.RawQuery+u.Fragment != "" {
		return nil, errors.New("want http://ADDRESS or https://ADDRESS, perhaps with :PORT; paths and hosts are " +
			"those of the log")
	}
	return u, nil
}

// A request is one that many lines of a log may have.
type request struct{ method, host, path string }

// Send sends the requests of a log with GET and HEAD to two places, each once, and compares the answers. A request
// has no query, cookie, credential or other header of the log.
func Send(ctx context.Context, log io.Reader, s Sending) (Sent, error) {
	out := Sent{Groups: []Difference{}, index: map[difference]int{}}
	lines := map[request]int64{}
	var order []request
	err := read(log, func(text []byte, long bool) {
		r, ok := out.request(text, long, &s)
		switch {
		case !ok:
		case lines[r] > 0:
			lines[r]++
		case len(order) == s.Most:
			out.Beyond++
		default:
			r = request{strings.Clone(r.method), strings.Clone(r.host), strings.Clone(r.path)}
			order, lines[r] = append(order, r), 1
		}
	})
	if err != nil {
		return out, err
	}
	before, now := s.client(s.Before), s.client(s.Now)
	defer before.CloseIdleConnections()
	defer now.CloseIdleConnections()
	for i, r := range order {
		if s.Progress != nil {
			s.Progress(i, len(order))
		}
		select {
		case <-s.Tick:
		case <-ctx.Done():
			return out, context.Cause(ctx)
		}
		first := make(chan reply, 1)
		go func() { first <- s.ask(ctx, before, r) }()
		b := s.ask(ctx, now, r)
		out.compare(r, lines[r], <-first, b)
	}
	slices.SortStableFunc(out.Groups, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(b.Lines, a.Lines), cmp.Compare(a.Host, b.Host), cmp.Compare(a.What, b.What))
	})
	return out, nil
}

// request returns the request of a line, if it can be sent.
func (s *Sent) request(text []byte, long bool, how *Sending) (r request, ok bool) {
	s.Lines++
	l := accesslog.Line{}
	if !long {
		l, ok = accesslog.Read(string(text))
	}
	host := cmp.Or(l.Host, how.Host)
	switch other := l.Scheme == accesslog.HTTP && how.Now.Scheme == "https" ||
		l.Scheme == accesslog.HTTPS && how.Now.Scheme == "http"; {
	case !ok:
		s.Unreadable++
	case gone(l.Status):
		s.Gone++
	case host == "":
		s.Hostless++
	case l.Method != http.MethodGet && l.Method != http.MethodHead:
		s.Unsafe++
	case other:
		s.OtherPort++
	case sendable(host, l.Path) == nil:
		s.Unsendable++
	default:
		return request{l.Method, host, l.Path}, true
	}
	return request{}, false
}

// sendable returns the URL of a request without its scheme, or nil if a request cannot have exactly this path.
func sendable(host, path string) *url.URL {
	plain, err := url.PathUnescape(path)
	u := &url.URL{Host: host, Path: plain, RawPath: path}
	if strings.Contains(host, ":") {
		u.Host = "[" + host + "]"
	}
	if err != nil || strings.Contains(host, "*") || !strings.HasPrefix(path, "/") || u.EscapedPath() != path {
		return nil
	}
	return u
}

// client returns a client with all connections to one place. The name in TLS is the host of a request.
func (s *Sending) client(to *url.URL) *http.Client {
	address := to.Host
	if to.Port() == "" {
		address = net.JoinHostPort(to.Hostname(), map[string]string{"http": "80", "https": "443"}[to.Scheme])
	}
	dialer := net.Dialer{Timeout: s.Timeout}
	return &http.Client{
		Timeout:       s.Timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, network, address)
			},
			// Nothing secret is sent. Certificates are compared below.
			TLSClientConfig:        &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}, //nolint:gosec // see above
			DisableCompression:     true,
			MaxIdleConns:           16,
			MaxResponseHeaderBytes: 64 << 10,
		},
	}
}

// A reply is the part of an answer that is compared.
type reply struct {
	err     string // there is no answer
	status  int
	trusted bool // the certificate is one for the host; also without TLS
	headers map[string]string
}

// maxBody is the number of bytes of an answer that are read, so that the connection may be used again.
const maxBody = 64 << 10

func (s *Sending) ask(ctx context.Context, client *http.Client, r request) reply {
	u := sendable(r.host, r.path)
	u.Scheme = s.Now.Scheme
	q := (&http.Request{
		Method: r.method, URL: u, Host: u.Host, Header: http.Header{"User-Agent": {"sallyport-parity"}},
	}).WithContext(ctx)
	answer, err := client.Do(q)
	if err != nil {
		if of, is := errors.AsType[*url.Error](err); is {
			err = of.Err // without the URL
		}
		return reply{err: short(err.Error())}
	}
	defer answer.Body.Close()                                        //nolint:errcheck // it was only read
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, maxBody)) // a body that breaks off changes nothing
	out := reply{status: answer.StatusCode, trusted: true, headers: map[string]string{"Location": ""}}
	if to, err := answer.Location(); err == nil {
		out.headers["Location"] = place(to)
	}
	for _, name := range s.Headers {
		name = http.CanonicalHeaderKey(name)
		out.headers[name] = short(strings.Join(answer.Header.Values(name), ", "))
		if name == "Set-Cookie" {
			out.headers[name] = cookies(answer)
		}
	}
	if answer.TLS != nil {
		out.trusted = answer.TLS.PeerCertificates[0].VerifyHostname(u.Hostname()) == nil
	}
	return out
}

// place returns a URL without the usual port, and without the values in its query, which may be secret or made
// anew for each answer.
func place(u *url.URL) string {
	host := u.Host
	if u.Port() == map[string]string{"http": "80", "https": "443"}[u.Scheme] {
		host = strings.TrimSuffix(host, ":"+u.Port())
	}
	text := u.Scheme + "://" + host + u.EscapedPath()
	var names []string
	for name := range u.Query() {
		names = append(names, name)
	}
	if slices.Sort(names); len(names) > 0 {
		text += "?" + strings.Join(names, "&")
	}
	return short(text)
}

// cookies returns the names of the cookies that an answer sets.
func cookies(answer *http.Response) string {
	var names []string
	for _, c := range answer.Cookies() {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	return short(strings.Join(names, ", "))
}

// compare counts a request with the answers of both places.
func (s *Sent) compare(r request, lines int64, before, now reply) {
	s.Requests++
	if before.err != "" && now.err != "" {
		s.Unanswered++
		return
	}
	found := 0
	differ := func(what, a, b string) {
		if a == b {
			return
		}
		found++
		of := difference{host: r.host, what: what}
		if what == "status" {
			of.before, of.now = a, b
		}
		i, known := s.index[of]
		if !known {
			i, s.index[of] = len(s.Groups), len(s.Groups)
			s.Groups = append(s.Groups, Difference{
				Host: short(r.host), What: what, Before: a, Now: b, Example: short(r.method + " " + r.path),
			})
		}
		s.Groups[i].Requests++
		s.Groups[i].Lines += lines
	}
	differ("status", before.words(), now.words())
	if before.err == "" && now.err == "" {
		differ("certificate", before.certificate(), now.certificate())
		for name := range before.headers {
			if name == "Content-Type" && before.headers["Location"] != "" && now.headers["Location"] != "" {
				continue // of a page that nobody sees
			}
			if before.status == now.status || name == "Location" {
				differ(name, before.headers[name], now.headers[name])
			}
		}
	}
	if found == 0 {
		s.Same++
	} else {
		s.Different++
	}
}

// words returns the status, or the error of a request without an answer.
func (r *reply) words() string {
	if r.err != "" {
		return "none: " + r.err
	}
	return strconv.Itoa(r.status)
}

func (r *reply) certificate() string {
	if r.trusted {
		return "for the host"
	}
	return "not for the host"
}

// Words returns the Sent as sentences about its totals.
func (s *Sent) Words() []string {
	return sentences(
		many(s.Same, "request", "had the same answer from both"),
		many(s.Different, "request", "had another answer"),
		many(s.Unanswered, "request", "had no answer from either"),
		many(s.Unsafe, "line", "not sent: a method other than GET and HEAD may change something"),
		many(s.OtherPort, "line", "not sent: plain HTTP where the URLs are https, or the reverse"),
		many(s.Beyond, "line", "not sent: --most bounds the number of different requests"),
		many(s.Unsendable, "line", "not sent: no request can have exactly this host and path"),
		many(s.Gone, "line", "not sent: the client left, or sent no valid request (400, 408, 414, 431, 499)"),
		many(s.Hostless, "line", "not sent: no host; --host names it, or the form of the log can have it"),
		many(s.Unreadable, "line", "not read: no known form fits, or the line is too long"),
	)
}

// many returns a total of things with a noun.
func many(n int64, noun, text string) total {
	if n != 1 {
		noun += "s"
	}
	return total{n, noun + " " + text}
}

// A total is a number, and the rest of a sentence.
type total struct {
	n    int64
	text string
}

// sentences returns the totals that are not 0.
func sentences(of ...total) (all []string) {
	for _, t := range of {
		if t.n > 0 {
			all = append(all, fmt.Sprintf("%d %s", t.n, t.text))
		}
	}
	return all
}

// read calls a function with each line of a log that is not empty. Of a line that is too long it has the
// beginning.
func read(log io.Reader, line func(text []byte, long bool)) error {
	in := bufio.NewReaderSize(log, MaxLine)
	for {
		text, err := in.ReadSlice('\n')
		long := errors.Is(err, bufio.ErrBufferFull)
		if long || len(bytes.TrimSpace(text)) > 0 {
			line(text, long)
		}
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = in.ReadSlice('\n')
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}
