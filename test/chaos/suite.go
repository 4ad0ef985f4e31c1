package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"sallyport/appliance/status"
	"sallyport/bgp"
	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// A suite is a lab with an appliance, and the scenarios to run in it.
type suite struct {
	name      string        // for -lab
	suffix    string        // of the scenarios' names
	options   world.Options // with several appliances these are a group, whose service address is the target
	manifests []string      // flags of `sallyport manifests`
	config    string        // added to the appliance's config file

	set        []rig.Cluster // clusters that form a set, if there are several: that of the lab first
	asn        int           // of the appliance, as config says
	unfiltered bool          // nodes tell the appliance all they know

	target    string   // address that the load asks, or several with commas between
	load      []string // further flags of the load
	scenarios []scenario
}

// A scenario is a fault, and the bounds on what clients may notice of it.
type scenario struct {
	number int
	name   string
	bounds bounds
	fault  func(context.Context, *testbed) error
}

// bounds of a scenario. A zero field sets no bound. Every scenario, unless inflicted is set, also
// demands that no server is ever open without its route.
type bounds struct {
	gets, posts, lasting bool          // none of these may fail
	others               bool          // no lasting connection may break that a member has which the fault spares
	lost                 int           // POSTs that fail, at most
	slowest, gap         time.Duration // of a GET, at most
	window               time.Duration // between the first GET that fails or loses its SYN and the last, at most
	settled              time.Duration // at most
	inflicted            bool          // the fault itself takes routes away: time exposed is told, not bounded
}

// A testbed is a suite's lab while scenarios run.
type testbed struct {
	*rig.Rig
	others   []*rig.Rig // the further members of its group
	far      []*rig.Rig // the labs of the further clusters of its set
	load     *rig.Child
	observer *observer
	asn      int             // of the appliance
	pods     int             // that should serve
	backends int             // that there should be
	theirs   map[string]bool // connections that the members have which the fault spares, as load.Ends has them
	notes    []string        // of the scenario
	broken   []string
}

// note adds a line below the table.
func (s *testbed) note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

// fail records that the scenario broke a bound of its own.
func (s *testbed) fail(format string, args ...any) {
	s.broken = append(s.broken, fmt.Sprintf(format, args...))
}

// ingressOf returns an Ingress for a host and a Service.
func ingressOf(name, host, service string) string { return rig.Ingress(name, "haproxy", host, service) }

const replicas = 6

// run brings up the suite's lab and runs its scenarios, one after the other.
func (h suite) run(ctx context.Context, dir string, list []scenario, keep string) (results []result, err error) {
	progress("a cluster%s", h.suffix)
	h.options.Progress = io.Discard
	if err := clean(dir); err != nil {
		return nil, err
	}
	if err := h.configure(dir, ""); err != nil {
		return nil, err
	}
	// The configuration directory is a file system of its own, so that it can
	// be full, or read-only.
	files := filepath.Join(dir, "haproxy")
	if err := errors.Join(os.Mkdir(files, 0o750), syscall.Mount("tmpfs", files, "tmpfs", 0, "size=4m")); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, syscall.Unmount(files, syscall.MNT_DETACH)) }()
	r, err := rig.New(ctx, dir, h.options, h.manifests...)
	if err != nil {
		return nil, err
	}
	s := &testbed{Rig: r, asn: h.asn, pods: replicas, backends: 1}
	if err := errors.Join(s.form(h), s.join(ctx, h)); err != nil {
		return nil, errors.Join(err, s.leave(), r.Close())
	}
	ctx, stop := context.WithCancel(ctx)
	defer func() {
		stop()
		if s.load != nil {
			_ = s.load.Close()
		}
		for i, member := range s.members() {
			if i > 0 {
				err = errors.Join(err, member.Stop(syscall.SIGKILL))
			}
			if text, rerr := os.ReadFile(member.LogFile()); rerr == nil && keep != "" {
				err = errors.Join(err, os.WriteFile(strings.TrimSuffix(fmt.Sprintf("%s.%d", keep, i+1), ".1"), text,
					0o600))
			}
		}
		err = errors.Join(err, s.leave(), r.Close())
	}()
	if err := s.ClaimBlocks(ctx, world.Master); err != nil { // each node has a route, also one without pods
		return nil, err
	}
	if err := s.furnish(ctx, h); err != nil {
		return nil, err
	}
	if s.observer, err = observe(ctx, r.Netns(world.Appliance), dir+"/run/worker.sock"); err != nil {
		return nil, err
	}
	// A port that a client uses again soon meets what is left of its last connection.
	if _, err := r.Exec(ctx, world.Client, "sysctl", "-qw", "net.ipv4.ip_local_port_range=1024 65535"); err != nil {
		return nil, err
	}
	if s.load, err = r.Child(ctx, world.Client, append([]string{loadArg, "-target", h.target}, h.load...)...); err !=
		nil {
		return nil, err
	}
	if err := s.load.Say("warming up"); err != nil {
		return nil, err
	}
	for _, sc := range list {
		sc.name += h.suffix
		one, err := s.run(ctx, sc)
		if err != nil {
			return results, fmt.Errorf("%d, %s: %w", sc.number, sc.name, err)
		}
		results = append(results, one)
		table(os.Stderr, results[len(results)-1:])
		for _, line := range one.Report.First {
			progress("  %s", line)
		}
	}
	return results, nil
}

// configure writes the config file of an appliance, with more lines.
func (h suite) configure(dir, more string) error {
	if h.options.GatewayAPI == "" {
		return rig.Configure(dir, h.config+more, h.set...)
	}
	return rig.ConfigureHAProxy(dir, []string{"addresses: [" + rig.GatewayPool + "]"}, h.config+more,
		rig.Cluster{Gateway: []string{"enabled: true"}})
}

// form makes the appliances of the lab a group, if there are several.
func (s *testbed) form(h suite) error {
	if h.options.Appliances < 2 {
		return nil
	}
	err := h.configure(s.Dir, s.Group(1))
	for n := 2; n <= h.options.Appliances; n++ {
		other, failed := s.Another(n)
		if err = errors.Join(err, failed); err != nil {
			return err
		}
		s.others = append(s.others, other)
		err = h.configure(other.Dir, s.Group(n))
	}
	return err
}

// clean removes the files of an earlier suite's appliance.
func clean(dir string) error {
	for _, name := range []string{
		"haproxy", "run", "state", "log", "sallyport.yaml", "appliance2", "appliance3", green, red,
	} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func (s *testbed) furnish(ctx context.Context, h suite) error {
	service := rig.Service("default", "app", "app")
	if h.options.IPv6 {
		service += "  ipFamilyPolicy: PreferDualStack\n  ipFamilies: [IPv6, IPv4]\n"
	}
	for _, cluster := range s.clusters() {
		if err := cluster.Apply(ctx, rig.App{
			Name: "app", Replicas: replicas, Grace: 5, Args: []string{"-drain=3s"},
		}.Manifest()+service+ingressOf("app", "test.local", "app")); err != nil {
			return err
		}
	}
	if h.options.GatewayAPI != "" {
		if err := s.attach(ctx, h); err != nil {
			return err
		}
	}
	if h.unfiltered {
		if _, err := s.Kubectl(ctx, "patch", "bgppeer", "sallyport-192-168-50-21", "--type=json", "-p",
			`[{"op":"remove","path":"/spec/filters"}]`); err != nil {
			return err
		}
	}
	for _, member := range s.members() {
		if err := member.Start(ctx); err != nil {
			return err
		}
	}
	if err := s.settle(ctx); err != nil || h.options.GatewayAPI == "" {
		return err
	}
	return s.programmed(ctx, "web", "True")
}

// run runs one scenario: the fault while requests come in, then the wait until everything has
// settled.
func (s *testbed) run(ctx context.Context, sc scenario) (result, error) {
	progress("%d. %s", sc.number, sc.name)
	res := result{Number: sc.number, Name: sc.name}
	s.notes, s.broken, s.theirs = nil, nil, map[string]bool{}
	if err := errors.Join(s.settle(ctx), s.alone(ctx), s.spread(ctx)); err != nil {
		return res, fmt.Errorf("before it: %w", err)
	}
	var before report
	if err := errors.Join(s.load.Say(sc.name), s.load.Hear(&before)); err != nil {
		return res, err
	}
	if failed, slow, sent := before.disturbed(); failed+slow > 0 {
		s.note("in the %.0f s before the fault, of %d requests and lasting connections %d failed, and %d took "+
			"more than %s", before.Seconds, sent, failed, slow, slowAfter)
	}
	s.observer.take()
	// A random wait, so that the fault comes at another moment between two keepalives and two checks.
	if err := rig.Pause(ctx, rand.N(time.Second)); err != nil { //nolint:gosec // nobody's secret
		return res, err
	}
	if err := sc.fault(ctx, s); err != nil {
		return res, err
	}
	began := time.Now()
	if err := s.settle(ctx); err != nil {
		return res, fmt.Errorf("after it: %w", err)
	}
	settled := time.Since(began)
	if err := errors.Join(s.load.Say("between"), s.load.Hear(&res.Report)); err != nil {
		return res, err
	}
	if sc.bounds.others {
		for _, ends := range res.Report.Broken {
			if s.theirs[ends] {
				s.fail("the connection %s broke, which a member has that the fault spares", ends)
			}
		}
	}
	exposed, first := s.observer.take()
	res.Settled, res.Exposed, res.Notes, res.Load = ms(settled), ms(exposed), s.notes, loadAverage()
	res.judge(sc.bounds, s.broken, first)
	return res, nil
}

// loadAverage returns the machine's load in the last minute, or 0 if it is unknown.
func loadAverage() (load float64) {
	text, err := os.ReadFile("/proc/loadavg")
	if err == nil {
		_, err = fmt.Sscan(string(text), &load)
	}
	if err != nil {
		return 0
	}
	return load
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// judge fills in the figures and compares them with the bounds.
func (r *result) judge(b bounds, broken []string, exposure string) {
	classes := r.Report.Classes
	gets, posts := classes["GET"], classes["POST"]
	for _, t := range []*tally{gets, posts} {
		if t != nil {
			r.Requests += t.Sent
			r.Slow += t.Slow
		}
	}
	r.Failed, r.Posts, r.Gap = gets.failures(), posts.failures(), r.Report.Gap
	r.Cut = classes["websocket"].failures() + classes["download"].failures() + classes["kept"].failures()
	if gets != nil {
		r.Max = gets.Max
	}
	r.Broken = broken
	breaks := func(is bool, format string, args ...any) {
		if is {
			r.Broken = append(r.Broken, fmt.Sprintf(format, args...))
		}
	}
	breaks(gets == nil || gets.Sent == 0, "nothing was asked")
	breaks(b.gets && r.Failed > 0, "%d GETs failed", r.Failed)
	breaks((b.posts || b.lost > 0) && r.Posts > b.lost, "%d POSTs failed, at most %d are allowed", r.Posts, b.lost)
	breaks(b.lasting && r.Cut > 0, "%d lasting connections were cut", r.Cut)
	breaks(b.slowest > 0 && r.Max > ms(b.slowest), "a GET took %.0f ms, at most %s is allowed", r.Max, b.slowest)
	breaks(b.gap > 0 && r.Gap > ms(b.gap), "no good answer for %.0f ms, at most %s is allowed", r.Gap, b.gap)
	breaks(b.window > 0 && r.Report.Window > ms(b.window), "GETs failed for %.0f ms, at most %s is allowed",
		r.Report.Window, b.window)
	breaks(b.settled > 0 && r.Settled > ms(b.settled), "settled after %.0f ms, at most %s is allowed", r.Settled,
		b.settled)
	breaks(!b.inflicted && r.Exposed > 0, "open without a route: %s", exposure)
	if b.inflicted && r.Exposed > 0 {
		r.Notes = append(r.Notes,
			fmt.Sprintf("a server was open without its route for %.0f ms: %s", r.Exposed, exposure))
	}
}

// settle waits until every session is established, every route is in the kernel and every pod is
// open.
func (s *testbed) settle(ctx context.Context) error {
	return rig.Eventually(ctx, "all is as it should be", func() error {
		for _, member := range s.members() {
			st, err := member.Status(ctx)
			if err == nil {
				err = s.settled(st)
			}
			if err != nil {
				return err
			}
		}
		if len(s.others) == 0 {
			return nil
		}
		serving, err := s.Serving(ctx)
		if err == nil && len(serving) != len(s.members()) {
			err = fmt.Errorf("the router sends clients to %q alone", serving)
		}
		return err
	})
}

// alone waits until the pods that an earlier scenario ended are gone.
func (s *testbed) alone(ctx context.Context) error {
	var errs []error
	for _, cluster := range s.clusters() {
		errs = append(errs, havePods(ctx, cluster, s.pods))
	}
	return errors.Join(errs...)
}

// havePods waits until a cluster has so many pods, those that end included.
func havePods(ctx context.Context, cluster *rig.Rig, want int) error {
	return rig.Eventually(ctx, "pods that end are gone", func() error {
		out, err := cluster.Kubectl(ctx, "get", "pods", "-o", "name")
		if n := len(strings.Fields(out)); err == nil && n != want {
			err = fmt.Errorf("%d pods, not %d", n, want)
		}
		return err
	})
}

func (s *testbed) settled(st status.Status) error {
	if !st.Ready {
		return errors.New("not ready: " + strings.Join(st.NotReady, "; "))
	}
	for _, p := range st.Peers {
		if p.State != "Established" {
			return fmt.Errorf("the session with %s is %s", p.Addr, p.State)
		}
	}
	for _, r := range st.Routes {
		if !r.Installed {
			return fmt.Errorf("route %s is not in the kernel", r.Prefix)
		}
	}
	if st.Group != nil && st.Group.Class != "full" {
		return fmt.Errorf("it is %s in its group: %s", st.Group.Class, st.Group.Why)
	}
	if st.Group != nil {
		for _, m := range st.Group.Members {
			if !m.Self && m.Class != "full" {
				return fmt.Errorf("it hears that %s is %s", m.Name, m.State())
			}
		}
	}
	nodes := slices.DeleteFunc(slices.Clone(st.Peers), func(p bgp.PeerState) bool { return p.Upstream })
	if want := len(nodes); len(st.Routes) != want {
		return fmt.Errorf("%d routes, not %d", len(st.Routes), want)
	}
	if len(st.Backends) != s.backends {
		return fmt.Errorf("%d backends, not %d", len(st.Backends), s.backends)
	}
	families := 1
	if slices.ContainsFunc(st.Peers, func(p bgp.PeerState) bool { return p.Addr.Is6() }) {
		families = 2
	}
	for _, b := range st.Backends {
		if want := s.pods * families * len(s.clusters()); b.Open != want || len(b.Servers) != want {
			return fmt.Errorf("backend %s has %d of %d servers open, not %d", b.Name, b.Open, len(b.Servers), want)
		}
	}
	return nil
}

// said reports whether the appliance has logged a line with all these words since mark was taken.
func (s *testbed) said(mark int, words ...string) bool {
	text, err := os.ReadFile(s.LogFile())
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text[min(mark, len(text)):])) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			return true
		}
	}
	return false
}

func (s *testbed) mark() int {
	info, err := os.Stat(s.LogFile())
	if err != nil {
		return 0
	}
	return int(info.Size())
}
