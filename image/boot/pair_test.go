package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/appliance"
	"sallyport/test/crowd"
	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// members lists the addresses of both, in the order of their names.
var members = []string{"192.168.50.21", "192.168.50.12"}

// A pair is two machines that form a group behind a router.
type pair struct {
	*place
	addresses []string // of the service
	machines  []Machine
	vms       []*VM
}

// TestTwoImagesAreAGroup runs all cases of a pair in one lab.
func TestTwoImagesAreAGroup(t *testing.T) {
	if !*all {
		return
	}
	p := newPair(t, world.RouterBIRD)
	t.Run("they share what they count", p.theyShareWhatTheyCount)
	t.Run("an update waits for its turn", p.anUpdateWaitsForItsTurn)
	t.Run("one is updated, and nobody notices", p.oneIsUpdated)
	t.Run("one is shut down, and its downloads go on", p.oneIsShutDown)
}

func newPair(t *testing.T, router world.RouterKind) *pair {
	t.Helper()
	p := &pair{place: newPlace(t, world.Options{Name: "imagepair", Workers: 2, Appliances: 2, Router: router}, "--address", members[1])}
	p.addresses = rig.ServiceAddresses(p.Options())
	for n, address := range members {
		file := strings.ReplaceAll(p.file, members[0], address)
		file = strings.Replace(file, "identity: edge\n", p.Group(n+1), 1)
		file = strings.Replace(file, "hostname: edge\n", "hostname: "+world.ApplianceHost(n+1)+"\n", 1)
		// An emulated machine does not run each 0.3 s.
		file = strings.Replace(file, "  upstream: {", "  drain: {timeout: 3m}\n  upstream: {bfd: {interval: 1s, multiplier: 5}, ", 1)
		file = strings.Replace(file, "  ingress: {publish: ["+address+"]}\n", "", 1) // those of the group
		file = strings.Replace(file, address+"/24]", address+"/24], gateway: 192.168.50.2", 1)
		file = strings.Replace(file, "  interfaces:", "  update: {url: 'http://198.51.100.10:8000/'}\n  interfaces:", 1)
		m := p.machine(t)
		m.Host, m.Memory, m.Args = world.ApplianceHost(n+1), 1024, []string{"-no-reboot"}
		p.write(t, m, file)
		p.machines, p.vms = append(p.machines, m), append(p.vms, p.on(t, m))
	}
	p.bothServe(t)
	figure(t, "power on → both of a pair serve", time.Since(p.vms[1].Began).Round(100*time.Millisecond))
	return p
}

// statusOf returns a machine's status page. Their certificate names only one address.
func (p *pair) statusOf(t *testing.T, n int) (string, error) {
	t.Helper()
	return p.ask(t.Context(), "https://"+members[n]+":9090/status", "--max-time", "30", "--insecure")
}

// group returns the part group of a machine's status.
func (p *pair) group(t *testing.T, n int) (*appliance.GroupStatus, error) {
	t.Helper()
	out, err := p.statusOf(t, n)
	if err != nil {
		return nil, err
	}
	var s appliance.Status
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		return nil, err
	}
	if s.Group == nil {
		return nil, errors.New("it has no group")
	}
	return s.Group, nil
}

var via = regexp.MustCompile(`via (192\.168\.50\.\d+)`)

// ways returns the members to which the router sends clients.
func (p *pair) ways(t *testing.T) (all []string) {
	t.Helper()
	out, err := p.Exec(t.Context(), world.Router, "ip", "route", "show", p.addresses[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range via.FindAllStringSubmatch(out, -1) {
		all = append(all, m[1])
	}
	slices.Sort(all)
	return all
}

// bothServe waits until each is full and knows that the other is, and the router uses both.
func (p *pair) bothServe(t *testing.T) {
	t.Helper()
	want := slices.Sorted(slices.Values(members))
	for n, vm := range p.vms {
		p.until(t, vm, members[n]+" sees two members that serve, as the router does", func() error {
			g, err := p.group(t, n)
			if err != nil {
				return err
			}
			for _, m := range g.Members {
				if !m.Serves() || m.Differs {
					return fmt.Errorf("%s %s: %s", m.Name, m.State(), g.Why)
				}
			}
			if got := p.ways(t); !slices.Equal(got, want) {
				return fmt.Errorf("the router has %q", got)
			}
			return nil
		})
	}
}

// A seen is what clients counted.
type seen struct{ sent, failed, asked, broken int }

// watched returns what clients behind the router notice while do runs.
func (p *pair) watched(t *testing.T, do func()) (s seen) {
	t.Helper()
	ctx, end := context.WithCancel(context.WithoutCancel(t.Context()))
	clients := crowd.Clients{Host: "test.local", New: 50 * time.Millisecond, Kept: 30, Every: 300 * time.Millisecond}
	for _, address := range p.addresses {
		clients.Targets = append(clients.Targets, address+":80")
	}
	clients.Dial = func(ctx context.Context, target string) (net.Conn, error) { return p.Dial(ctx, world.Client, target) }
	var mu sync.Mutex
	var losses []string
	note := func(o crowd.Outcome) {
		mu.Lock()
		defer mu.Unlock()
		n, bad := &s.sent, &s.failed
		if o.Kept {
			n, bad = &s.asked, &s.broken
		}
		if *n++; o.Err != nil {
			*bad++
			losses = append(losses, fmt.Sprintf("%s kept=%v: %v", o.Began.Format(time.TimeOnly), o.Kept, o.Err))
		}
	}
	var ran sync.WaitGroup
	ran.Go(func() { clients.Run(ctx, func() func(crowd.Outcome) { return note }) })
	stop := sync.OnceFunc(func() {
		end()
		ran.Wait()
		if len(losses) > 0 {
			t.Logf("what clients lost, the first 20:\n%s", strings.Join(losses[:min(20, len(losses))], "\n"))
		}
	})
	defer stop()
	do()
	stop()
	return s
}

// nobodyNoticed compares what clients counted with nothing.
func nobodyNoticed(t *testing.T, what string, s seen) {
	t.Helper()
	figure(t, what, fmt.Sprintf("%d of %d requests failed, %d of 30 kept connections broke over %d requests", s.failed, s.sent, s.broken, s.asked))
	if s.failed > 0 || s.broken > 0 || s.sent == 0 || s.asked == 0 {
		t.Errorf("%s: clients counted %+v, want neither failed nor broken", what, s)
	}
}

// theyShareWhatTheyCount sends as many requests to the first as one client may, and then
// asks the second.
func (p *pair) theyShareWhatTheyCount(t *testing.T) {
	const most = 40
	if err := p.Apply(t.Context(), fmt.Sprintf(`apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: limited
  annotations: {haproxy.org/rate-limit-requests: "%d", haproxy.org/rate-limit-period: 1h, haproxy.org/rate-limit-status-code: "429"}
spec:
  ingressClassName: haproxy
  rules:
  - host: limited.test
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: app, port: {number: 80}}}}]}
`, most)); err != nil {
		t.Fatal(err)
	}
	code := func(n int, host string) string {
		out, _ := p.Exec(t.Context(), world.Client, "curl", "-s", "--max-time", "10", "-o", "/dev/null", "-w", "%{http_code}", "-H", "Host: "+host, "http://"+members[n]+"/healthz")
		return strings.TrimSpace(out)
	}
	for n, vm := range p.vms {
		p.until(t, vm, members[n]+" has the Ingress", func() error {
			if s, err := p.statusOf(t, n); err != nil || !strings.Contains(s, "limited.test") {
				return fmt.Errorf("not yet (%w)", err)
			}
			if got := code(n, "limited.test"); got != "200" {
				return fmt.Errorf("it answers %s", got)
			}
			return nil
		})
	}
	for asked := 0; code(0, "limited.test") != "429"; asked++ {
		if asked > 2*most {
			t.Fatalf("the first member still answers after %d requests", asked)
		}
	}
	// The second alone would count up to the limit, too.
	for asked := range most / 2 {
		if code(1, "limited.test") == "429" {
			figure(t, "requests until a member of a pair refuses what the other has counted", asked+1)
			return
		}
		time.Sleep(500 * time.Millisecond) //nolint:forbidigo // HAProxy tells the other when it likes to
	}
	t.Errorf("the second member answered %d requests of a client whom the first refuses", most/2)
}

// anUpdateWaitsForItsTurn runs the timer's update on the second machine, while the first has
// the old version.
func (p *pair) anUpdateWaitsForItsTurn(t *testing.T) {
	dir := p.offers(t)
	variant(t, dir, "90.1", "", nil)
	out, err := p.vms[1].Run(t.Context(), "/usr/bin/sallyport", "image", "update", "--newer")
	const want = "nothing is installed: version 90.1 waits: appliance "
	if err != nil || !strings.HasPrefix(out, want) {
		t.Fatalf("got %q, %v, want %q", out, err, want)
	}
	t.Log(strings.TrimSpace(out))
	p.until(t, p.vms[1], "its status says why", func() error {
		s, err := p.statusOf(t, 1)
		if err == nil && !strings.Contains(s, "version 90.1 waits: appliance ") {
			err = errors.New("it does not")
		}
		return err
	})
}

// oneIsUpdated updates the second machine by hand, while clients ask.
func (p *pair) oneIsUpdated(t *testing.T) {
	dir := p.offers(t)
	name := variant(t, dir, "90.2", "", nil)
	nobodyNoticed(t, "clients of a pair, for 10 s", p.watched(t, func() { time.Sleep(10 * time.Second) })) //nolint:forbidigo // a measurement
	nobodyNoticed(t, "clients of a pair of which one is updated", p.watched(t, func() {
		if _, err := p.vms[1].Run(t.Context(), "/usr/bin/systemd-run", "--property=StandardError=journal+console", "--",
			"/usr/bin/sallyport", "image", "update", "http://198.51.100.10:8000/"+name); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		p.until(t, p.vms[0], "the router leaves the second out", func() error {
			if got := p.ways(t); !slices.Equal(got, members[:1]) {
				return fmt.Errorf("it has %q", got)
			}
			return nil
		})
		for {
			err := soon(p.vms[1], func() error {
				out, err := p.vms[1].Run(t.Context(), "/usr/bin/cat", "/usr/lib/os-release")
				if got := inside(out, "IMAGE_VERSION="); err == nil && strings.Trim(got, `"`) != "90.2" {
					err = fmt.Errorf("%s runs", got)
				}
				return err
			})
			if !errors.Is(err, errOff) {
				p.held(t, p.vms[1], "the new version runs", err)
				break
			}
			p.vms[1] = p.on(t, p.machines[1])
		}
		p.bothServe(t)
		figure(t, "one of a pair: update → both serve again", time.Since(began).Round(100*time.Millisecond))
	}))
	g, err := p.group(t, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := g.Members[1].Version; got != "90.2" {
		t.Errorf("the first hears that the second has version %q, want 90.2", got)
	}
}

// oneIsShutDown presses the power button of a machine that downloads go through. They take
// longer than systemd waits by default, and the machine waits for them.
func (p *pair) oneIsShutDown(t *testing.T) {
	const lasts = 110 * time.Second
	ends := make(chan error, 10)
	for range cap(ends) {
		go func() {
			out, err := p.Exec(t.Context(), world.Client, "curl", "-sSf", "-H", "Host: test.local", fmt.Sprintf("http://%s/slow?d=%s&every=1s", p.addresses[0], lasts))
			if err == nil && !strings.HasSuffix(out, "done\n") {
				err = fmt.Errorf("it ends with %q", tail(out, 3))
			}
			ends <- err
		}()
	}
	began := time.Now()
	nobodyNoticed(t, "clients of a pair of which one is shut down", p.watched(t, func() {
		time.Sleep(5 * time.Second) //nolint:forbidigo // the downloads have begun
		if err := p.vms[1].Button(); err != nil {
			t.Fatal(err)
		}
		p.until(t, p.vms[0], "the router leaves the second out", func() error {
			if got := p.ways(t); !slices.Equal(got, members[:1]) {
				return fmt.Errorf("it has %q", got)
			}
			return nil
		})
		if _, err := p.ask(t.Context(), "http://"+members[1]+"/", "-H", "Host: test.local"); err != nil {
			t.Errorf("its HAProxy ends before it has left: %v", err)
		}
		for range cap(ends) {
			if err := <-ends; err != nil {
				t.Errorf("a download of %s breaks: %v", lasts, err)
			}
		}
		goesOff(t, p.vms[1], "the power button")
	}))
	figure(t, "shutdown of one of a pair with downloads", time.Since(began).Round(100*time.Millisecond))
}
