package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"sallyport/test/load"
)

// A drive sends requests at fixed times, whether or not earlier ones were answered in time.
type drive struct {
	clients []client
	stops   []func()
}

// A client sends the request of that number, and returns when it is answered.
type client func(number int) error

func (l *drive) close() {
	for _, stop := range l.stops {
		stop()
	}
}

// send sends requests at a rate a second until the span is over. It returns how long each
// answer took, from the moment when its request was due.
func (l *drive) send(ctx context.Context, rate int, span time.Duration) ([]time.Duration, error) {
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
func (l *drive) keep(ctx context.Context, n int, addr string, secure *tls.Config, requests [][]byte) error {
	for range n {
		c, err := load.Open(ctx, load.From, addr, secure, load.Patience)
		if err != nil {
			return err
		}
		l.stops = append(l.stops, func() { _ = c.Close() })
		l.clients = append(l.clients, func(k int) error { return c.Exchange(requests[k%len(requests)]) })
	}
	return nil
}

// renew adds clients that open a connection for each request.
func (l *drive) renew(ctx context.Context, n int, addr string, secure *tls.Config, request []byte) {
	for range n {
		l.clients = append(l.clients, func(int) error {
			c, err := load.Open(ctx, load.From, addr, secure, load.Patience)
			if err != nil {
				return err
			}
			return errors.Join(c.Exchange(request), c.Close())
		})
	}
}

// streams adds clients that share one connection by HTTP/2.
func (l *drive) streams(ctx context.Context, n int, addr string, secure *tls.Config, url string) {
	transport := &http.Transport{
		TLSClientConfig: secure, ForceAttemptHTTP2: true, MaxConnsPerHost: 1,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return load.From(ctx, addr)
		},
	}
	l.stops = append(l.stops, transport.CloseIdleConnections)
	for range n {
		l.clients = append(l.clients, func(int) error {
			ctx, cancel := context.WithTimeout(ctx, load.Patience)
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
