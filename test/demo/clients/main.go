// Command clients asks a web server all the time, and counts what a person at a browser would
// notice: requests on new connections that fail, and kept connections that break. It prints a
// line a second until it is interrupted. With -pods a line begins with the share of each pod in the
// answers of that second.
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"sallyport/test/load"
)

type counters struct {
	sent, failed, asked, broken atomic.Int64

	mu sync.Mutex
	by map[string]int // answers of each pod since the last line
}

func (c *counters) add(o load.Outcome) {
	n, bad := &c.sent, &c.failed
	if o.Kept {
		n, bad = &c.asked, &c.broken
	}
	if n.Add(1); o.Err != nil {
		bad.Add(1)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.by[o.Pod]++
}

// shares returns the share of each pod in the answers since the last call, and of each pod that answered
// before.
func (c *counters) shares() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := 0
	for _, n := range c.by {
		all += n
	}
	var line strings.Builder
	for _, pod := range slices.Sorted(maps.Keys(c.by)) {
		fmt.Fprintf(&line, "%s %3d %%  ", pod, (100*c.by[pod]+all/2)/max(all, 1))
		c.by[pod] = 0
	}
	return line.String()
}

func (c *counters) String() string {
	return fmt.Sprintf("new connections %5d, failed %d   requests on kept ones %5d, broken %d", c.sent.Load(),
		c.failed.Load(), c.asked.Load(), c.broken.Load())
}

func main() {
	addresses := flag.String("address", "203.0.113.10:80",
		"where to connect: `HOST:PORT`, or several with commas between, each in turn")
	host := flag.String("host", "test.local", "the host of the requests")
	kept := flag.Int("kept", 50, "connections that are kept, each with a request every 0.3 s")
	every := flag.Duration("every", 10*time.Millisecond, "time from one new connection to the next")
	pods := flag.Bool("pods", false, "print the share of each pod in the answers of each second")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c := &counters{by: map[string]int{}}
	go func() {
		for range time.Tick(time.Second) {
			shares := ""
			if *pods {
				shares = c.shares()
			}
			fmt.Printf("    clients: %s%s\n", shares, c)
		}
	}()
	load.Clients{
		Targets: strings.Split(*addresses, ","), Host: *host, New: *every, Kept: *kept,
		Every: 300 * time.Millisecond,
	}.Run(ctx, func() func(load.Outcome) { return c.add })
	fmt.Println("    clients, in the end:", c)
}
