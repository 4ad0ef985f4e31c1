// Package load plays clients of a web server, for the tests of all kinds.
//
// It owns a connection by HTTP/1.1 (Conn), the times at which requests are due (Pace), clients that
// each open connections or keep one (Clients), and a Witness of what became of their requests while
// something happened. It sends no request a second time. Its limit: Clients speak without TLS.
package load

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Patience is the longest that a client waits for a connection, and for an answer, unless it has
// more.
const Patience = 5 * time.Second

// A Dial opens a connection to HOST:PORT.
type Dial func(ctx context.Context, address string) (net.Conn, error)

// From dials from where this process is.
func From(ctx context.Context, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}

// Bad is the error of a wrong answer: its status, or its fault in words.
type Bad string

func (b Bad) Error() string { return string(b) }

// Status returns an error for an answer with another status than 200, and nil for one with 200.
func Status(code int) error {
	if code == http.StatusOK {
		return nil
	}
	return Bad(strconv.Itoa(code))
}

// Reason returns the class of a failure, for counting.
func Reason(err error) string {
	var bad Bad
	switch {
	case errors.As(err, &bad):
		return bad.Error()
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "reset"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), strings.Contains(err.Error(), "EOF"):
		return "closed"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "timeout"
	}
	return "other"
}

// Pace calls do for each number from 0, at the moment when it is due, until ctx ends. What was due
// while do kept it waiting comes at once, and nothing is left out.
func Pace(ctx context.Context, every time.Duration, do func(number int, due time.Time)) {
	began := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for n := 0; ; n++ {
		due := began.Add(time.Duration(n) * every)
		if left := time.Until(due); left > 0 {
			timer.Reset(left)
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
		} else if ctx.Err() != nil {
			return
		}
		do(n, due)
	}
}

// A Conn is a connection by HTTP/1.1, with a buffer for bytes that nobody has read yet.
type Conn struct {
	net.Conn
	in    *bufio.Reader
	waits time.Duration
	wants string // Clients.Wants
	pod   string // that sent the last answer, by its header X-Pod
}

// ErrWrong is the error of an answer with status 200 that lacks Clients.Wants.
var ErrWrong = errors.New("the answer is of somebody else")

// Open opens a connection. The time within bounds the opening, and each answer. secure is nil for a
// connection in the clear.
func Open(ctx context.Context, dial Dial, address string, secure *tls.Config, within time.Duration) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	conn, err := dial(ctx, address)
	if err != nil {
		return nil, err
	}
	if secure != nil {
		over := tls.Client(conn, secure)
		if err := over.HandshakeContext(ctx); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		conn = over
	}
	return &Conn{Conn: conn, in: bufio.NewReader(conn), waits: within}, nil
}

// Ends returns both ends of a client's connection: it may use a port towards several addresses.
func Ends(c net.Conn) string { return c.LocalAddr().String() + " > " + c.RemoteAddr().String() }

// Ask sends a request and reads the answer, which has to be 200. It reports whether the server closes
// the connection afterwards.
func (c *Conn) Ask(host, header string) (closes bool, err error) {
	if err := c.SetDeadline(time.Now().Add(c.waits)); err != nil {
		return false, err
	}
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+host+"\r\n"+header+"\r\n"); err != nil {
		return false, err
	}
	c.pod = ""
	answer, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return false, err
	}
	defer answer.Body.Close() //nolint:errcheck // only read from
	c.pod = answer.Header.Get("X-Pod")
	var body strings.Builder
	if _, err = io.Copy(&body, answer.Body); err == nil {
		err = Status(answer.StatusCode)
	}
	if err == nil && !strings.Contains(body.String(), c.wants) {
		err = ErrWrong
	}
	return answer.Close, err
}

// Exchange sends the bytes of a request and reads the answer, which has to be 200 with a length. It
// costs a client that measures less than Ask.
func (c *Conn) Exchange(request []byte) error {
	_, err := c.Field(request, "")
	return err
}

// Field does as Exchange, and returns a field of the answer's header.
func (c *Conn) Field(request []byte, field string) (value string, err error) {
	if err := c.SetDeadline(time.Now().Add(c.waits)); err != nil {
		return "", err
	}
	if _, err := c.Write(request); err != nil {
		return "", err
	}
	first, err := c.in.ReadString('\n')
	if err != nil {
		return "", err
	}
	if !strings.HasPrefix(first, "HTTP/1.1 200 ") {
		line, _, _ := bytes.Cut(request, []byte("\r"))
		return "", fmt.Errorf("%q is answered with %q", line, first)
	}
	length := 0
	for {
		line, err := c.in.ReadString('\n')
		if err != nil {
			return "", err
		}
		name, text, more := strings.Cut(line, ":")
		if !more {
			break
		}
		if strings.EqualFold(name, "content-length") {
			if length, err = strconv.Atoi(strings.TrimSpace(text)); err != nil {
				return "", err
			}
		}
		if strings.EqualFold(name, field) {
			value = strings.TrimSpace(text)
		}
	}
	_, err = io.CopyN(io.Discard, c.in, int64(length))
	return value, err
}
