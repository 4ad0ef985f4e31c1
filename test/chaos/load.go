package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/test/load"
)

// loadArg makes this program the load, a process on the client's host. It sends requests at fixed
// times, whether or not earlier ones were answered, and counts. Each line of its standard input
// names a phase and begins it. When the last request of a phase is done, the process prints a
// report of that phase as a line of JSON. The process ends with its input.
const loadArg = "load"

// spreading is a phase. When it begins, a new connection replaces each kept connection.
const spreading = "spreading"

// slowAfter is the time after which a request counts as slow. The time runs from the moment the
// request was due, so that a request that waited in a queue counts with that wait.
const slowAfter = time.Second

// A tally counts the requests of one class by their outcome.
type tally struct {
	Sent    int            `json:"sent"`
	Failed  map[string]int `json:"failed,omitempty"` // by reason
	Slow    int            `json:"slow,omitempty"`
	Again   int            `json:"again,omitempty"` // sent once more by the client's library, on another connection
	Lost    int            `json:"lost,omitempty"`  // of those that were slow, by a SYN that was lost
	P50     float64        `json:"p50"`             // ms
	P99     float64        `json:"p99"`             // ms
	Max     float64        `json:"max"`             // ms
	latency []time.Duration
}

func (t *tally) failures() (n int) {
	if t == nil {
		return 0
	}
	for _, k := range t.Failed {
		n += k
	}
	return n
}

// A report is the count of one phase.
type report struct {
	Phase   string  `json:"phase"`
	Seconds float64 `json:"seconds"`
	Gap     float64 `json:"gap"` // ms, the longest time without a good answer to a GET
	// ms, from the first GET that failed or lost its SYN to the last, when they were due
	Window  float64           `json:"window,omitempty"`
	Classes map[string]*tally `json:"classes"`
	First   []string          `json:"first,omitempty"`  // the first failures
	Broken  []string          `json:"broken,omitempty"` // the ends of the lasting connections that broke
}

// disturbed returns how many requests and lasting connections failed, were slow, and ended at all.
func (r report) disturbed() (failed, slow, sent int) {
	for class, t := range r.Classes {
		failed, sent = failed+t.failures(), sent+t.Sent
		if class != "websocket" && class != "download" { // which take ten seconds
			slow += t.Slow
		}
	}
	return failed, slow, sent
}

// phase collects the outcomes of the requests that were due in it.
type phase struct {
	began   time.Time
	pending sync.WaitGroup

	mu     sync.Mutex
	report report
	last   time.Time    // good answer to a GET
	failed [2]time.Time // when the first GET that failed or lost its SYN was due, and the last
}

func newPhase(name string) *phase {
	now := time.Now()
	return &phase{began: now, last: now, report: report{Phase: name, Classes: map[string]*tally{}}}
}

// An outcome is the result of one request, or of one lasting connection.
type outcome struct {
	class string
	due   time.Time
	err   error
	again bool
	lost  bool   // a SYN: the kernel sent it again after a second
	first string // for the list of the first failures
	ends  string // of a lasting connection, or empty if it was never open
}

func (p *phase) add(o outcome) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.report.Classes[o.class]
	if t == nil {
		t = &tally{Failed: map[string]int{}}
		p.report.Classes[o.class] = t
	}
	t.Sent++
	took := now.Sub(o.due)
	if o.class == "GET" && (o.err != nil || o.lost) {
		p.failed[0], p.failed[1] = sooner(p.failed[0], o.due), later(p.failed[1], o.due)
	}
	if o.err != nil {
		why := load.Reason(o.err)
		t.Failed[why]++
		if o.ends != "" {
			p.report.Broken = append(p.report.Broken, o.ends)
		}
		if len(p.report.First) < 20 {
			p.report.First = append(p.report.First,
				fmt.Sprintf("+%s %s %s: %s %v", o.due.Sub(p.began).Round(time.Millisecond), o.class, o.first, why,
					o.err))
		}
		return
	}
	t.latency = append(t.latency, took)
	if took > slowAfter {
		t.Slow++
	}
	if o.again {
		t.Again++
	}
	if o.lost {
		t.Lost++
	}
	if o.class == "GET" {
		p.report.Gap = max(p.report.Gap, float64(now.Sub(p.last))/1e6)
		p.last = now
	}
}

// sooner returns the sooner of two times. A zero time does not count.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// end waits for the phase's requests and returns the report.
func (p *phase) end() report {
	took := time.Since(p.began)
	p.pending.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.report.Seconds = took.Seconds()
	p.report.Window = ms(p.failed[1].Sub(p.failed[0]))
	p.report.Gap = max(p.report.Gap, float64(p.began.Add(took).Sub(p.last))/1e6)
	for _, t := range p.report.Classes {
		if n := len(t.latency); n > 0 {
			slices.Sort(t.latency)
			at := func(q float64) float64 { return float64(t.latency[min(int(q*float64(n)), n-1)]) / 1e6 }
			t.P50, t.P99, t.Max = at(0.5), at(0.99), at(1)
		}
	}
	return p.report
}

// rate is the number of requests a second.
const rate = 200

// loaded runs the process that loadArg names.
func loaded(args []string) error {
	flags := flag.NewFlagSet(loadArg, flag.ContinueOnError)
	targets := flags.String("target", "192.168.50.21",
		"address of the appliance, or several with commas between: each in turn")
	host := flags.String("host", "test.local", "host to ask for")
	lasting := flags.Int("lasting", 3, "WebSockets, and as many slow downloads")
	kept := flags.Int("kept", 0,
		"connections that are kept, each with a request every second; with them each other request has a "+
			"connection of its own")
	if err := flags.Parse(args); err != nil {
		return err
	}
	dialer := &net.Dialer{Timeout: load.Patience}
	addresses := strings.Split(*targets, ",")
	var turn atomic.Uint64
	c := newClients(*host, func(ctx context.Context, port string) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", net.JoinHostPort(addresses[turn.Add(1)%uint64(len(addresses))], port))
	})
	if *kept > 0 {
		c.kept = c.fresh
	}
	names := make(chan string)
	go func() {
		defer close(names)
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			names <- in.Text()
		}
	}()
	name, ok := <-names
	if !ok {
		return nil
	}
	var mu sync.Mutex
	now := newPhase(name)
	current := func() *phase {
		mu.Lock()
		defer mu.Unlock()
		return now
	}
	// begin returns the phase, which waits for a request that begins in it.
	begin := func() *phase {
		mu.Lock()
		defer mu.Unlock()
		now.pending.Add(1)
		return now
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	for range *lasting {
		go c.keep(ctx, current, "websocket", c.websocket)
		go c.keep(ctx, current, "download", c.download)
	}
	many := load.Clients{Host: *host, Kept: *kept, Every: time.Second}
	for _, a := range addresses {
		many.Targets = append(many.Targets, net.JoinHostPort(a, "80"))
	}
	hold := func() (end func()) {
		ctx, end := context.WithCancel(ctx)
		go many.Run(ctx, func() func(load.Outcome) {
			p := begin()
			return func(o load.Outcome) {
				defer p.pending.Done()
				p.add(outcome{class: "kept", due: o.Began, err: o.Err, first: o.Ends, ends: o.Ends})
			}
		})
		return end
	}
	end := hold()
	defer func() { end() }()
	out := json.NewEncoder(os.Stdout)
	go load.Pace(ctx, time.Second/rate, func(n int, due time.Time) {
		p := begin()
		go func() {
			defer p.pending.Done()
			p.add(c.request(n, due))
		}()
	})
	for name := range names {
		last := current()
		mu.Lock()
		now = newPhase(name)
		mu.Unlock()
		if name == spreading {
			end()
			end = hold()
		}
		if err := out.Encode(last.end()); err != nil {
			return err
		}
	}
	return nil
}
