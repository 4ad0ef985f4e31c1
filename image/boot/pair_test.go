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
	"testing"
	"time"

	view "sallyport/appliance/status"
	"sallyport/test/lab/world"
	"sallyport/test/load"
	"sallyport/test/rig"
)

// hosts lists the names of both, and members their addresses.
var (
	hosts   = []string{world.ApplianceHost(1), world.ApplianceHost(2)}
	members = []string{"192.168.50.21", "192.168.50.12"}
)

// A pair is two machines that form a group, with a router between them and the clients.
type pair struct {
	*place
	by        string   // how the addresses move: BGP or VRRP
	addresses []string // of the service
	files     []string
	machines  []Machine
	vms       []*VM
}

// TestTwoImagesAreAGroup runs all cases of a pair in one lab: first the router learns by BGP who
// serves, then the machines move the addresses by VRRP.
func TestTwoImagesAreAGroup(t *testing.T) {
	if !*all {
		return
	}
	p := newPair(t)
	t.Run("they share what they count", p.theyShareWhatTheyCount)
	t.Run("an update waits for its turn", p.anUpdateWaitsForItsTurn)
	for _, by := range []string{"BGP", "VRRP"} {
		if by == "VRRP" && !t.Run("their files change to VRRP", p.theirFilesChange) {
			return
		}
		t.Run("the process of one restarts, and nobody notices, by "+by, p.oneProcessRestarts)
		t.Run("one is updated, and nobody notices, by "+by, p.oneIsUpdated)
	}
	t.Run("one returns to its old version, and nobody follows it", p.oneFallsBack)
	t.Run("one is shut down, and its downloads go on", p.oneIsShutDown)
}

// upstream matches the way of the addresses in a file of the pair, and what belongs to it.
var upstream = regexp.MustCompile(`(?m)^  addresses: .*$|^  upstream: .*$`)

func newPair(t *testing.T) *pair {
	t.Helper()
	lab := world.Options{Name: "imagepair", Workers: 2, Appliances: 2, Router: world.RouterBIRD}
	p := &pair{place: newPlace(t, lab, "--address", members[1]), by: "BGP", addresses: rig.ServiceAddresses(lab)}
	for n, address := range members {
		file := strings.ReplaceAll(p.file, members[0], address)
		for _, of := range [][2]string{
			{"identity: edge\n", p.Group(n + 1)},
			{"hostname: edge\n", "hostname: " + hosts[n] + "\n"},
			{"  members: [", "  drain: {timeout: 3m}\n  members: ["},
			// An emulated machine does not run each 0.3 s.
			{"  upstream: {", "  upstream: {bfd: {interval: 2s, multiplier: 5}, "},
			{"  ingress: {publish: [" + address + "]}\n", ""}, // those of the group
			{address + "/24]", address + "/24], gateway: 192.168.50.2"},
			{"  interfaces:", "  update: {url: 'http://198.51.100.10:8000/'}\n  interfaces:"},
		} {
			file = strings.Replace(file, of[0], of[1], 1)
		}
		m := p.machine(t)
		m.Host, m.Memory, m.Args = hosts[n], 1024, []string{"-no-reboot"}
		p.write(t, m, file)
		// The hosts stand for the machines where the router's neighbours are compared with them.
		if _, err := p.Exec(t.Context(), hosts[n], "ip", "link", "set", "eth0", "address", m.hardware()); err != nil {
			t.Fatal(err)
		}
		p.files, p.machines, p.vms = append(p.files, file), append(p.machines, m), append(p.vms, p.on(t, m))
	}
	p.bothServe(t)
	figure(t, "power on → both of a pair serve", time.Since(p.vms[1].Began).Round(100*time.Millisecond))
	return p
}

// theirFilesChange replaces BGP by VRRP in the files of machines that run.
func (p *pair) theirFilesChange(t *testing.T) {
	plain := p.Options()
	plain.Router = world.RouterPlain
	p.by, p.addresses = "VRRP", rig.ServiceAddresses(plain)
	for n, file := range p.files {
		p.write(t, p.machines[n], upstream.ReplaceAllStringFunc(file, func(line string) string {
			if strings.HasPrefix(line, "  addresses: ") {
				return "  addresses: [" + strings.Join(p.addresses, ", ") + "]"
			}
			return "  vrrp: {interface: " + card + ", interval: 3s}"
		}))
	}
	began := time.Now()
	p.bothServe(t)
	figure(t, "one file after the other on two machines that run → both serve by VRRP",
		time.Since(began).Round(100*time.Millisecond))
}

// named returns the name of a figure, with how the addresses move.
func (p *pair) named(what string) string { return what + ", by " + p.by }

// statusOf returns a machine's status page. Their certificate names only one address.
func (p *pair) statusOf(t *testing.T, n int) (string, error) {
	t.Helper()
	return p.ask(t.Context(), "https://"+members[n]+":9090/status", "--max-time", "30", "--insecure")
}

// group returns the part group of a machine's status.
func (p *pair) group(t *testing.T, n int) (*view.GroupStatus, error) {
	t.Helper()
	out, err := p.statusOf(t, n)
	if err != nil {
		return nil, err
	}
	var s view.Status
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		return nil, err
	}
	if s.Group == nil {
		return nil, errors.New("it has no group")
	}
	return s.Group, nil
}

// sends returns an error unless the router sends clients to these hosts, and to no others.
func (p *pair) sends(t *testing.T, want []string) error {
	t.Helper()
	got, err := p.Holders(t.Context(), p.addresses, p.by == "BGP")
	if err == nil && !slices.Equal(got, want) {
		err = fmt.Errorf("the router sends clients to %q, want %q", got, want)
	}
	return err
}

// bothServe waits until each is full and knows that the other is, and the router uses both.
func (p *pair) bothServe(t *testing.T) {
	t.Helper()
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
			return p.sends(t, hosts)
		})
	}
}

// watched returns what clients behind the router notice while do runs.
func (p *pair) watched(t *testing.T, do func()) load.Count {
	t.Helper()
	// An emulated machine answers late. A lost request is never answered.
	clients := load.Clients{
		Host: "test.local", New: 100 * time.Millisecond, Kept: 30, Every: time.Second,
		Waits: 30 * time.Second,
	}
	for _, address := range p.addresses {
		clients.Targets = append(clients.Targets, address+":80")
	}
	clients.Dial = func(ctx context.Context, target string) (net.Conn, error) {
		return p.Dial(ctx, world.Client, target)
	}
	w := load.Watch(context.WithoutCancel(t.Context()), clients)
	defer w.Stop()
	count, err := w.During(t.Context(), 1, 1, func() error { do(); return nil })
	if err != nil {
		t.Error(err)
	}
	if err := count.Losses(); err != nil {
		t.Log(err)
	}
	return count
}

// nobodyNoticed compares what clients counted with nothing.
func nobodyNoticed(t *testing.T, what string, c load.Count) {
	t.Helper()
	figure(t, what, fmt.Sprintf("%d of %d requests failed, %d of 30 kept connections broke over %d requests",
		len(c.Failed), c.Sent, len(c.Broken), c.Asked))
	if err := c.Losses(); err != nil || c.Sent == 0 || c.Asked == 0 {
		t.Errorf("%s: clients lost %v of %d and %d requests, want nothing lost", what, err, c.Sent, c.Asked)
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
		out, _ := p.Exec(t.Context(), world.Client, "curl", "-s", "--max-time", "10", "-o", "/dev/null", "-w",
			"%{http_code}", "-H", "Host: "+host, "http://"+members[n]+"/healthz")
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

// updates begins to update a machine by hand, and waits until the router leaves it out. The reboot
// ends the agent, so nothing waits for the command.
func (p *pair) updates(t *testing.T, n int, name string) {
	t.Helper()
	if _, err := p.vms[n].Run(t.Context(), "/usr/bin/systemd-run", "--property=StandardError=journal+console", "--",
		"/usr/bin/sallyport", "image", "update", "http://198.51.100.10:8000/"+name); err != nil {
		t.Fatal(err)
	}
	p.left(t, n)
}

// left waits until the router sends clients to the other machine alone.
func (p *pair) left(t *testing.T, n int) {
	t.Helper()
	other := 1 - n
	p.until(t, p.vms[other], "the router leaves "+hosts[n]+" out", func() error {
		return p.sends(t, hosts[other:other+1])
	})
}

// returns waits until the router sends clients to a machine again, over one start or several, and
// returns how many starts it took.
func (p *pair) returns(t *testing.T, n int) (starts int) {
	t.Helper()
	for {
		err := soon(p.vms[n], func() error { return p.sends(t, hosts) })
		if !errors.Is(err, errOff) {
			p.held(t, p.vms[n], "the router sends clients to "+hosts[n]+" again", err)
			p.bothServe(t)
			return starts
		}
		p.vms[n] = p.on(p.t, p.machines[n]) // until the end of all cases
		starts++
	}
}

// versionOf returns the version that a machine runs.
func (p *pair) versionOf(t *testing.T, n int) string {
	t.Helper()
	out, err := p.vms[n].Run(t.Context(), "/usr/bin/cat", "/usr/lib/os-release")
	if err != nil {
		t.Error(err)
	}
	return strings.Trim(inside(out, "IMAGE_VERSION="), `"`)
}

// oneProcessRestarts restarts the appliance of the second machine. Its HAProxy goes on.
func (p *pair) oneProcessRestarts(t *testing.T) {
	process := func() string {
		out, err := p.vms[1].Run(t.Context(), "/usr/bin/systemctl", "show", "--value", "--property=MainPID,ActiveState",
			"sallyport")
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	before := process()
	nobodyNoticed(t, p.named("clients of a pair of which one restarts its process"), p.watched(t, func() {
		began := time.Now()
		shell(t, p.vms[1], "systemctl restart sallyport")
		if after := process(); after == before {
			t.Errorf("the process is the same after the restart: %q", after)
		}
		p.bothServe(t)
		figure(t, p.named("one of a pair: restart of its process → both serve"),
			time.Since(began).Round(100*time.Millisecond))
	}))
}

// oneIsUpdated updates the second machine by hand, while clients ask.
func (p *pair) oneIsUpdated(t *testing.T) {
	want := map[string]string{"BGP": "90.2", "VRRP": "90.3"}[p.by]
	name := variant(t, p.offers(t), want, "", nil)
	nobodyNoticed(t, p.named("clients of a pair, for 10 s"), p.watched(t, func() { time.Sleep(10 * time.Second) })) //nolint:forbidigo // a measurement
	nobodyNoticed(t, p.named("clients of a pair of which one is updated"), p.watched(t, func() {
		began := time.Now()
		p.updates(t, 1, name)
		p.returns(t, 1)
		figure(t, p.named("one of a pair: update → both serve again"), time.Since(began).Round(100*time.Millisecond))
	}))
	if got := p.versionOf(t, 1); got != want {
		t.Errorf("the second has version %q, want %s", got, want)
	}
}

// oneFallsBack updates the first machine to a version that never gets ready. The second does not
// follow it, nor does the first try again.
func (p *pair) oneFallsBack(t *testing.T) {
	const bad = "95.0"
	before := p.versionOf(t, 0)
	name := variant(t, p.offers(t), bad, "systemd.mask=sallyport.service", map[string]string{
		"usr/lib/systemd/system/sallyport-ready.service.d/soon.conf": "[Service]\nExecStart=\n" +
			"ExecStart=/usr/bin/sallyport image ready --within 5s\n",
	})
	nobodyNoticed(t, p.named("clients of a pair of which one returns to its old version"), p.watched(t, func() {
		began := time.Now()
		p.updates(t, 0, name)
		starts := p.returns(t, 0)
		figure(t, p.named(fmt.Sprintf("one of a pair: update that never gets ready → %d starts → both serve again",
			starts+1)), time.Since(began).Round(100*time.Millisecond))
	}))
	if got := p.versionOf(t, 0); got != before {
		t.Errorf("the first has version %q, want %q", got, before)
	}
	for n, want := range []string{
		"nothing is installed: " + bad + " was tried, and did not get ready",
		"nothing is installed: version " + bad + " waits: appliance ",
	} {
		out, err := p.vms[n].Run(t.Context(), "/usr/bin/sallyport", "image", "update", "--newer")
		if err != nil || !strings.HasPrefix(out, want) {
			t.Errorf("%s: got %q, %v, want %q", hosts[n], out, err, want)
		}
		t.Log(hosts[n], strings.TrimSpace(out))
	}
}

// oneIsShutDown presses the power button of a machine that downloads go through. They take
// longer than systemd waits by default, and the machine waits for them.
func (p *pair) oneIsShutDown(t *testing.T) {
	const lasts = 110 * time.Second
	to := p.addresses[len(p.addresses)-1] // by VRRP, the second machine's
	ends := make(chan error, 10)
	for range cap(ends) {
		go func() {
			out, err := p.Exec(t.Context(), world.Client, "curl", "-sSf", "-H", "Host: test.local",
				fmt.Sprintf("http://%s/slow?d=%s&every=1s", to, lasts))
			if err == nil && !strings.HasSuffix(out, "done\n") {
				err = fmt.Errorf("it ends with %q", tail(out, 3))
			}
			ends <- err
		}()
	}
	began := time.Now()
	nobodyNoticed(t, p.named("clients of a pair of which one is shut down"), p.watched(t, func() {
		time.Sleep(5 * time.Second) //nolint:forbidigo // the downloads have begun
		if err := p.vms[1].Button(); err != nil {
			t.Fatal(err)
		}
		p.left(t, 1)
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
	figure(t, p.named("shutdown of one of a pair with downloads"), time.Since(began).Round(100*time.Millisecond))
}
