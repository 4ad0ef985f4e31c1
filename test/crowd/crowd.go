// Package crowd plays clients, and reports what a person at a browser would notice: requests on
// new connections that fail, and kept connections that break.
//
// It sends no request a second time. Its limit: it speaks HTTP/1.1 without TLS.
package crowd

import (
	"bufio"
	"cmp"
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Patience is the longest that a client waits for a connection, and for an answer, unless it has
// more.
const Patience = 5 * time.Second

// Clients ask the targets, each in turn.
type Clients struct {
	Targets []string                                              // HOST:PORT
	Host    string                                                // of the requests
	New     time.Duration                                         // from one new connection to the next; 0: none
	Kept    int                                                   // connections that are kept
	Every   time.Duration                                         // from one request on a kept connection to the next
	Waits   time.Duration                                         // for a connection, and for an answer; 0: Patience
	Dial    func(context.Context, string) (c net.Conn, err error) // nil: from here
}

// An Outcome is that of one request.
type Outcome struct {
	Kept  bool      // on a connection that is kept
	Began time.Time // of a new connection before it was opened
	Err   error     // nil: a good answer
	Ends  string    // of the connection, as CLIENT > SERVER; empty: there is none
}

// A Status is an answer with another status than 200.
type Status int

func (s Status) Error() string { return strconv.Itoa(int(s)) }

// Run asks until ctx ends. It calls begin before each request, from several goroutines, and what
// begin returns with the outcome. A request on a new connection that the end of ctx cuts has none.
// One on a kept connection is not cut.
func (c Clients) Run(ctx context.Context, begin func() (end func(Outcome))) {
	c.Waits = cmp.Or(c.Waits, Patience)
	if c.Dial == nil {
		c.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
	}
	ask := func(request func() Outcome) {
		end := begin()
		if o := request(); o.Kept || ctx.Err() == nil {
			end(o)
		}
	}
	var all sync.WaitGroup
	defer all.Wait()
	for n := range c.Kept {
		all.Go(func() { c.keep(ctx, c.Targets[n%len(c.Targets)], ask) })
	}
	if c.New == 0 {
		return
	}
	tick := time.NewTicker(c.New)
	defer tick.Stop()
	for n := 0; wait(ctx, tick); n++ {
		all.Go(func() { ask(func() Outcome { return c.one(ctx, c.Targets[n%len(c.Targets)]) }) })
	}
}

// wait reports whether the next tick came before the end.
func wait(ctx context.Context, tick *time.Ticker) bool {
	select {
	case <-ctx.Done():
		return false
	case <-tick.C:
		return true
	}
}

// one sends a request on a connection of its own.
func (c Clients) one(ctx context.Context, target string) Outcome {
	o := Outcome{Began: time.Now()}
	conn, err := c.open(ctx, target)
	if err != nil {
		o.Err = err
		return o
	}
	defer conn.Close() //nolint:errcheck // nothing is lost with it
	o.Ends = Ends(conn)
	_, o.Err = conn.ask(c.Host, "Connection: close\r\n")
	return o
}

// keep asks on one connection as long as it lasts, then on the next. A connection that cannot be
// opened is none that breaks.
func (c Clients) keep(ctx context.Context, target string, ask func(func() Outcome)) {
	var conn *kept
	tick := time.NewTicker(c.Every)
	defer tick.Stop()
	for wait(ctx, tick) {
		if conn == nil {
			var err error
			if conn, err = c.open(ctx, target); err != nil {
				conn = nil
				continue
			}
		}
		var closes bool
		ask(func() Outcome {
			o := Outcome{Kept: true, Began: time.Now(), Ends: Ends(conn)}
			closes, o.Err = conn.ask(c.Host, "")
			closes = closes || o.Err != nil
			return o
		})
		if closes {
			_ = conn.Close()
			conn = nil
		}
	}
	if conn != nil {
		_ = conn.Close()
	}
}

// A kept is a connection, and what came in on it and was not read yet.
type kept struct {
	net.Conn
	in    *bufio.Reader
	waits time.Duration
}

// Ends returns both ends of a client's connection: it may use a port towards several addresses.
func Ends(c net.Conn) string { return c.LocalAddr().String() + " > " + c.RemoteAddr().String() }

func (c Clients) open(ctx context.Context, target string) (*kept, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Waits)
	defer cancel()
	conn, err := c.Dial(ctx, target)
	if err != nil {
		return nil, err
	}
	return &kept{conn, bufio.NewReader(conn), c.Waits}, nil
}

// ask sends a request, and reports whether the server closes the connection after its answer.
func (k *kept) ask(host, header string) (closes bool, err error) {
	if err := k.SetDeadline(time.Now().Add(k.waits)); err != nil {
		return false, err
	}
	if _, err := io.WriteString(k, "GET / HTTP/1.1\r\nHost: "+host+"\r\n"+header+"\r\n"); err != nil {
		return false, err
	}
	answer, err := http.ReadResponse(k.in, nil)
	if err != nil {
		return false, err
	}
	defer answer.Body.Close() //nolint:errcheck // only read from
	if _, err = io.Copy(io.Discard, answer.Body); err == nil && answer.StatusCode != http.StatusOK {
		err = Status(answer.StatusCode)
	}
	return answer.Close, err
}
