package load

import (
	"cmp"
	"context"
	"sync"
	"time"
)

// Clients ask the targets, each in turn.
type Clients struct {
	Targets []string      // HOST:PORT
	Host    string        // of the requests
	Wants   string        // text that a good answer contains
	New     time.Duration // from one new connection to the next; zero means no new connections
	Kept    int           // connections that are kept
	Every   time.Duration // from one request on a kept connection to the next
	Waits   time.Duration // for a connection, and for an answer; zero means Patience
	Dial    Dial          // nil means From
}

// An Outcome is that of one request.
type Outcome struct {
	Target string
	Kept   bool      // on a connection that is kept
	Began  time.Time // of a new connection before it was opened
	Took   time.Duration
	Err    error  // nil means a good answer
	Ends   string // of the connection, as CLIENT > SERVER; empty if there is no connection
	Pod    string // that answered, by header X-Pod of the answer
}

// Run asks until ctx ends. It calls begin before each request, from several goroutines, and passes the
// outcome to the function that begin returns. A request on a new connection that the end of ctx cuts
// has no outcome. A request on a kept connection is not cut.
func (c Clients) Run(ctx context.Context, begin func() (end func(Outcome))) {
	c.Waits = cmp.Or(c.Waits, Patience)
	if c.Dial == nil {
		c.Dial = From
	}
	ask := func(request func() Outcome) {
		end := begin()
		began := time.Now()
		o := request()
		o.Took = time.Since(began)
		if o.Kept || ctx.Err() == nil {
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
	Pace(ctx, c.New, func(n int, _ time.Time) {
		all.Go(func() { ask(func() Outcome { return c.one(ctx, c.Targets[n%len(c.Targets)]) }) })
	})
}

// one sends a request on a connection of its own.
func (c Clients) one(ctx context.Context, target string) Outcome {
	o := Outcome{Target: target, Began: time.Now()}
	conn, err := Open(ctx, c.Dial, target, nil, c.Waits)
	if err != nil {
		o.Err = err
		return o
	}
	defer conn.Close() //nolint:errcheck // nothing is lost with it
	conn.wants = c.Wants
	o.Ends = Ends(conn)
	_, o.Err = conn.Ask(c.Host, "Connection: close\r\n")
	o.Pod = conn.pod
	return o
}

// keep asks on one connection as long as it lasts, then on the next. A connection that cannot be
// opened is none that breaks.
func (c Clients) keep(ctx context.Context, target string, ask func(func() Outcome)) {
	var conn *Conn
	tick := time.NewTicker(c.Every)
	defer tick.Stop()
	for wait(ctx, tick) {
		if conn == nil {
			var err error
			if conn, err = Open(ctx, c.Dial, target, nil, c.Waits); err != nil {
				conn = nil
				continue
			}
			conn.wants = c.Wants
		}
		var closes bool
		ask(func() Outcome {
			o := Outcome{Target: target, Kept: true, Began: time.Now(), Ends: Ends(conn)}
			closes, o.Err = conn.Ask(c.Host, "")
			o.Pod = conn.pod
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

// wait reports whether the next tick came before the end.
func wait(ctx context.Context, tick *time.Ticker) bool {
	select {
	case <-ctx.Done():
		return false
	case <-tick.C:
		return true
	}
}
