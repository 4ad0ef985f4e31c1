package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A load sends requests at fixed times, whether or not earlier ones were answered in time.
type load struct {
	clients []client
	stops   []func()
}

// A client sends the request of that number, and returns when it is answered.
type client func(number int) error

// patience bounds the wait for one answer.
const patience = 5 * time.Second

func (l *load) close() {
	for _, stop := range l.stops {
		stop()
	}
}

// send sends requests at a rate a second until the span is over. It returns how long each
// answer took, from the moment when its request was due.
func (l *load) send(ctx context.Context, rate int, span time.Duration) ([]time.Duration, error) {
	n := int(float64(rate) * span.Seconds())
	took, errs := make([]time.Duration, n), make([]error, len(l.clients))
	began := time.Now()
	var all sync.WaitGroup
	for i, request := range l.clients {
		all.Go(func() {
			for k := i; k < n && ctx.Err() == nil; k += len(l.clients) {
				due := began.Add(time.Duration(k) * time.Second / time.Duration(rate))
				<-time.After(time.Until(due))
				if errs[i] = request(k); errs[i] != nil {
					return
				}
				took[k] = time.Since(due)
			}
		})
	}
	all.Wait()
	return took, errors.Join(append(errs, ctx.Err())...)
}

// keep adds clients that each keep one connection by HTTP/1.1, and send these requests in
// turn.
func (l *load) keep(ctx context.Context, n int, addr string, secure *tls.Config, requests [][]byte) error {
	for range n {
		c, err := connect(ctx, addr, secure)
		if err != nil {
			return err
		}
		l.stops = append(l.stops, func() { _ = c.Close() })
		l.clients = append(l.clients, func(k int) error { return c.exchange(requests[k%len(requests)]) })
	}
	return nil
}

// renew adds clients that open a connection for each request.
func (l *load) renew(ctx context.Context, n int, addr string, secure *tls.Config, request []byte) {
	for range n {
		l.clients = append(l.clients, func(int) error {
			c, err := connect(ctx, addr, secure)
			if err != nil {
				return err
			}
			return errors.Join(c.exchange(request), c.Close())
		})
	}
}

// streams adds clients that share one connection by HTTP/2.
func (l *load) streams(ctx context.Context, n int, addr string, secure *tls.Config, url string) {
	transport := &http.Transport{
		TLSClientConfig: secure, ForceAttemptHTTP2: true, MaxConnsPerHost: 1,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		},
	}
	l.stops = append(l.stops, transport.CloseIdleConnections)
	for range n {
		l.clients = append(l.clients, func(int) error {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err != nil {
				return err
			}
			answer, err := transport.RoundTrip(request)
			if err != nil {
				return err
			}
			defer answer.Body.Close() //nolint:errcheck // only read from
			if answer.StatusCode != http.StatusOK || answer.ProtoMajor != 2 {
				return fmt.Errorf("%s is answered with %s by %s", url, answer.Status, answer.Proto)
			}
			_, err = io.Copy(io.Discard, answer.Body)
			return err
		})
	}
}

// connection is a connection by HTTP/1.1.
type connection struct {
	net.Conn
	in *bufio.Reader
}

// connect opens a connection; secure is nil for one in the clear.
func connect(ctx context.Context, addr string, secure *tls.Config) (*connection, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if secure != nil {
		over := tls.Client(c, secure)
		if err := over.HandshakeContext(ctx); err != nil {
			return nil, errors.Join(err, c.Close())
		}
		c = over
	}
	return &connection{c, bufio.NewReader(c)}, nil
}

// exchange sends a request and reads the answer, which has to be 200 with a length.
func (c *connection) exchange(request []byte) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := c.Write(request); err != nil {
		return err
	}
	first, err := c.in.ReadString('\n')
	if err != nil {
		return err
	}
	if !strings.HasPrefix(first, "HTTP/1.1 200 ") {
		return fmt.Errorf("%q is answered with %q", request, first)
	}
	length := 0
	for {
		line, err := c.in.ReadString('\n')
		if err != nil {
			return err
		}
		name, value, more := strings.Cut(line, ":")
		if !more {
			break
		}
		if strings.EqualFold(name, "content-length") {
			if length, err = strconv.Atoi(strings.TrimSpace(value)); err != nil {
				return err
			}
		}
	}
	_, err = io.CopyN(io.Discard, c.in, int64(length))
	return err
}

// remembering is a cache that holds the first session and gives it to every connection, so
// that all later handshakes resume it.
type remembering struct {
	mu      sync.Mutex
	session *tls.ClientSessionState
}

func (r *remembering) Get(string) (*tls.ClientSessionState, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.session, r.session != nil
}

func (r *remembering) Put(_ string, s *tls.ClientSessionState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.session == nil {
		r.session = s
	}
}
