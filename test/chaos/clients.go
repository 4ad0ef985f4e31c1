package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"sallyport/test/load"
)

// inFlight bounds the requests that wait for an answer. A request beyond that counts as failed.
const inFlight = 4000

// clients are the HTTP clients that requests are sent with.
type clients struct {
	host        string
	dial        func(ctx context.Context, port string) (net.Conn, error) // to the appliance
	kept, fresh *http.Client
	slots       chan struct{}
}

func newClients(host string, dial func(ctx context.Context, port string) (net.Conn, error)) *clients {
	client := func(keep bool) *http.Client {
		return &http.Client{
			Timeout: load.Patience,
			Transport: &http.Transport{
				DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
					_, port, _ := strings.Cut(addr, ":")
					return dial(ctx, port)
				},
				TLSClientConfig:     &tls.Config{InsecureSkipVerify: true, ClientSessionCache: tls.NewLRUClientSessionCache(0)}, //nolint:gosec // the lab's certificate signs itself
				DisableKeepAlives:   !keep,
				MaxIdleConnsPerHost: 64,
				IdleConnTimeout:     10 * time.Second,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	return &clients{
		host: host, dial: dial, kept: client(true), fresh: client(false),
		slots: make(chan struct{}, inFlight),
	}
}

// request sends the nth request. One in five is a POST, one in three uses TLS, one in four has a
// connection of its own.
func (c *clients) request(n int, due time.Time) (o outcome) {
	scheme, client, method := "http", c.kept, http.MethodGet
	if n%3 == 0 {
		scheme = "https"
	}
	if n%4 == 0 {
		client = c.fresh
	}
	var body io.Reader
	if n%5 == 0 {
		method, body = http.MethodPost, strings.NewReader(strconv.Itoa(n))
	}
	url := fmt.Sprintf("%s://%s/?n=%d", scheme, c.host, n)
	o = outcome{class: method, due: due, first: url}
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	default:
		o.err = load.Bad("overload")
		return o
	}
	attempts := 0
	var dialled time.Time
	var lost atomic.Bool // a dial goes on after its request has given up
	ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{
		GotConn:      func(httptrace.GotConnInfo) { attempts++ },
		ConnectStart: func(string, string) { dialled = time.Now() },
		ConnectDone:  func(string, string, error) { lost.Store(time.Since(dialled) >= time.Second) },
	})
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		o.err = err
		return o
	}
	req.GetBody = nil // so that a POST is never sent again
	resp, err := client.Do(req)
	o.again, o.lost = attempts > 1, lost.Load()
	if err != nil {
		o.err = err
		return o
	}
	defer resp.Body.Close() //nolint:errcheck // only read from
	answer, err := io.ReadAll(resp.Body)
	status := load.Status(resp.StatusCode)
	switch {
	case err != nil:
		o.err = err
	case status != nil:
		o.err = status
	case !strings.Contains(string(answer), method+" /?n="+strconv.Itoa(n)+" "):
		o.err = load.Bad("wrong answer")
	}
	return o
}

// keep opens a lasting connection again whenever it ends. An early end is a failure of the phase
// in which it happens.
func (c *clients) keep(ctx context.Context, current func() *phase, class string,
	hold func(context.Context) (ends string, err error),
) {
	for ctx.Err() == nil {
		began := time.Now()
		ends, err := hold(ctx)
		if ctx.Err() != nil {
			return
		}
		current().add(outcome{
			class: class, due: began, err: err,
			first: ends + " open for " + time.Since(began).Round(time.Millisecond).String(), ends: ends,
		})
		if err != nil { // no faster than a person would
			select {
			case <-ctx.Done():
			case <-time.After(500 * time.Millisecond):
			}
		}
	}
}

// download reads for 10 s from a response that has a line each 100 ms.
func (c *clients) download(ctx context.Context) (ends string, err error) {
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) { ends = load.Ends(i.Conn) },
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.host+"/slow?d=10s", nil)
	if err != nil {
		return ends, err
	}
	client := &http.Client{Transport: c.fresh.Transport} // no limit to the whole
	resp, err := client.Do(req)
	if err != nil {
		return ends, err
	}
	defer resp.Body.Close() //nolint:errcheck // only read from
	if err := load.Status(resp.StatusCode); err != nil {
		return ends, err
	}
	text, err := io.ReadAll(resp.Body)
	if err == nil && strings.Count(string(text), "\n") < 50 {
		err = io.ErrUnexpectedEOF
	}
	return ends, err
}

// websocket sends a message each 200 ms for 10 s and expects its echo (RFC 6455).
func (c *clients) websocket(ctx context.Context) (ends string, err error) {
	conn, err := c.dial(ctx, "80")
	if err != nil {
		return "", err
	}
	ends = load.Ends(conn)
	defer conn.Close() //nolint:errcheck // nothing is lost with it
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := conn.SetDeadline(time.Now().Add(load.Patience)); err != nil {
		return ends, err
	}
	in := bufio.NewReader(conn)
	if _, err := fmt.Fprintf(conn,
		"GET /ws HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"+
			"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n", c.host); err != nil {
		return ends, err
	}
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		return ends, err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return ends, load.Bad(strconv.Itoa(resp.StatusCode))
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for i := range 50 {
		if err := conn.SetDeadline(time.Now().Add(load.Patience)); err != nil {
			return ends, err
		}
		// FIN and text, masked with zeros.
		frame := binary.BigEndian.AppendUint32([]byte{0x81, 0x84, 0, 0, 0, 0}, uint32(i)) //nolint:gosec // small
		if _, err := conn.Write(frame); err != nil {
			return ends, err
		}
		back := make([]byte, 6)
		if _, err := io.ReadFull(in, back); err != nil {
			return ends, err
		}
		if binary.BigEndian.Uint32(back[2:]) != uint32(i) { //nolint:gosec // small
			return ends, errors.New("another message came back")
		}
		<-tick.C
	}
	return ends, nil
}
