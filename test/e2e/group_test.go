package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sallyport/appliance"
	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// The service address of the group, and the kept connections of its clients.
const (
	service = "203.0.113.10"
	kept    = 60
)

// A crowd are clients behind the router: each 5 ms one sends a request on a connection of its own,
// and some ask again and again on a connection that they keep.
type crowd struct {
	r    *testbed
	stop func()

	mu     sync.Mutex
	sent   int
	failed []loss // requests without a good answer, on connections of their own
	asked  int
	broken []loss // kept connections that ended before an answer
}

type loss struct {
	at  time.Time
	why error
}

// ask sends a request, and reports whether the server closes the connection afterwards.
func ask(c net.Conn, in *bufio.Reader, keep bool) (closes bool, err error) {
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return false, err
	}
	request := "GET / HTTP/1.1\r\nHost: test.local\r\n\r\n"
	if !keep {
		request = "GET / HTTP/1.1\r\nHost: test.local\r\nConnection: close\r\n\r\n"
	}
	if _, err := io.WriteString(c, request); err != nil {
		return false, err
	}
	answer, err := http.ReadResponse(in, nil)
	if err != nil {
		return false, err
	}
	defer answer.Body.Close()
	if _, err = io.Copy(io.Discard, answer.Body); err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(answer.Status)
	}
	return answer.Close, err
}

func (l loss) String() string { return l.at.Format(time.TimeOnly) + " " + l.why.Error() }

func (r *testbed) crowd() *crowd {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	c := &crowd{r: r}
	var all sync.WaitGroup
	dial := func() (net.Conn, error) {
		limit, end := context.WithTimeout(ctx, 5*time.Second)
		defer end()
		return r.Dial(limit, world.Client, service+":80")
	}
	note := func(list *[]loss, count *int, began time.Time, err error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if ctx.Err() != nil {
			return
		}
		if *count++; err != nil {
			*list = append(*list, loss{began, err})
		}
	}
	all.Go(func() {
		for tick := time.Tick(5 * time.Millisecond); ctx.Err() == nil; <-tick {
			all.Go(func() {
				began := time.Now()
				conn, err := dial()
				if err == nil {
					_, err = ask(conn, bufio.NewReader(conn), false)
					_ = conn.Close()
				}
				note(&c.failed, &c.sent, began, err)
			})
		}
	})
	for range kept {
		all.Go(func() {
			var conn net.Conn
			var in *bufio.Reader
			for tick := time.Tick(300 * time.Millisecond); ctx.Err() == nil; <-tick {
				if conn == nil {
					var err error
					if conn, err = dial(); err != nil { // counted by the others
						conn = nil
						continue
					}
					in = bufio.NewReader(conn)
				}
				began := time.Now()
				closes, err := ask(conn, in, true)
				note(&c.broken, &c.asked, began, err)
				if closes || err != nil {
					_ = conn.Close()
					conn = nil
				}
			}
			if conn != nil {
				_ = conn.Close()
			}
		})
	}
	c.stop = func() {
		cancel()
		all.Wait()
	}
	return c
}

// during calls do while the crowd asks, and returns what failed until enough requests more were
// answered.
func (c *crowd) during(do func()) (failed, broken []loss) {
	c.r.t.Helper()
	counts := func() (sent, asked int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.sent, c.asked
	}
	c.mu.Lock()
	c.failed, c.broken = nil, nil
	c.mu.Unlock()
	do()
	sent, asked := counts()
	c.r.eventually("enough requests after it", func() error {
		if s, a := counts(); s < sent+200 || a < asked+3*kept {
			return fmt.Errorf("%d, %d", s-sent, a-asked)
		}
		return nil
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed, c.broken
}

// undisturbed calls do while the crowd asks. Nothing may fail.
func (c *crowd) undisturbed(do func()) {
	c.r.t.Helper()
	failed, broken := c.during(do)
	if len(failed) > 0 {
		c.r.t.Errorf("%d requests failed; the first: %s", len(failed), failed[0])
	}
	if len(broken) > 0 {
		c.r.t.Errorf("%d kept connections of %d broke; the first: %s", len(broken), kept, broken[0])
	}
}

// A member is an appliance of the group.
type member struct {
	*testbed
	address string
}

// spread waits until exactly these members are full, by their own word, and the router sends
// connections for the service address to them alone.
func (r *testbed) spread(to ...member) {
	r.t.Helper()
	for _, m := range to {
		r.eventually(m.address+" is full", func() error {
			s, err := m.status()
			if err == nil && (s.Group == nil || s.Group.Class != appliance.Full) {
				err = fmt.Errorf("group %+v", s.Group)
			}
			return err
		})
	}
	r.eventually(fmt.Sprintf("%d members have the service address", len(to)), func() error {
		out, err := r.Exec(r.t.Context(), world.Router, "ip", "route", "show", service)
		if err != nil {
			return err
		}
		got := strings.Count(out, "via ")
		for _, m := range to {
			if !strings.Contains(out, "via "+m.address+" ") {
				err = fmt.Errorf("%s is missing", m.address)
			}
		}
		if err != nil || got != len(to) {
			return fmt.Errorf("the router has %q (%w)", out, err)
		}
		return nil
	})
}

func TestAGroupServesWhileItsMembersLeaveAndReturn(t *testing.T) {
	first := newTestbed(t, world.Options{Name: "group", Workers: 2, Appliances: 2, Router: true}, settings{manifests: []string{"--address", "192.168.50.12"}})
	other, err := first.Another(2)
	first.must(err)
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := os.ReadFile(other.LogFile())
			t.Logf("log of the second:\n%s", tail(string(text), 150))
		}
		if err := other.Stop(syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	})
	a, b := member{first, "192.168.50.21"}, member{&testbed{other, t}, "192.168.50.12"}
	sample, err := os.ReadFile("../demo/app.yaml")
	first.must(err)
	first.apply(string(sample))
	for n, m := range []member{a, b} {
		first.must(rig.Configure(m.Dir, "log: {level: debug}\n"+first.Group(n+1, service), rig.Cluster{Pools: "172.16.0.0/16"}))
		m.start()
	}
	a.ready()
	b.ready()
	first.spread(a, b)
	crowd := first.crowd()
	defer crowd.stop()
	crowd.undisturbed(func() {})

	first.sub("a member is drained, and returns", func(t *testing.T, r *testbed) {
		crowd.r = r
		crowd.undisturbed(func() {
			b.command(t, "drain", "--wait")
			r.spread(a)
		})
		crowd.undisturbed(func() {
			b.command(t, "undrain")
			r.spread(a, b)
		})
	})
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		first.sub("the process of a member ends by "+signal.String()+", and starts again", func(_ *testing.T, r *testbed) {
			crowd.r = r
			crowd.undisturbed(func() {
				b.end(signal)
				r.spread(a)
			})
			crowd.undisturbed(func() {
				b.start()
				b.ready()
				r.spread(a, b)
			})
		})
	}
	first.sub("a member loses its cable", func(t *testing.T, r *testbed) {
		crowd.r = r
		failed, broken := crowd.during(func() {
			r.must(r.KillNode(t.Context(), world.ApplianceHost(2)))
			r.spread(a)
		})
		if len(broken) >= kept {
			t.Errorf("all %d kept connections broke, want those of the lost member alone", len(broken))
		}
		if len(failed) > 0 {
			t.Logf("%d requests failed, begun within %s", len(failed), failed[len(failed)-1].at.Sub(failed[0].at).Round(time.Millisecond))
		}
		crowd.undisturbed(func() {}) // the other has all of it now
		r.must(r.ReviveNode(t.Context(), world.ApplianceHost(2)))
		r.spread(a, b)
		crowd.during(func() {})
		crowd.undisturbed(func() {})
	})
}

// command runs sallyport on the member's host.
func (m member) command(t *testing.T, args ...string) {
	t.Helper()
	out, err := m.Run(t.Context(), args...)
	if err != nil {
		t.Fatalf("sallyport %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
