package bgp

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sallyport/test/lab/debian"
	"sallyport/test/namespace"
	"sallyport/test/wait"
)

// roleEnv is the variable with the role of a process of the test binary. Empty: the
// launcher, which starts the tests in a network namespace of their own.
const roleEnv = "SALLYPORT_BGP_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "":
		os.Exit(namespace.Divided(processes, roleEnv+"=test"))
	case "hold": // a process keeps the namespace alive
		_, _ = io.Copy(io.Discard, os.Stdin)
	case "impostor":
		impostor(os.Args[1], os.Args[2])
	case "start":
		_, err := Start(context.Background(),
			Config{
				ASN: 65000, RouterID: netip.MustParseAddr("192.0.2.1"), HoldTime: 9 * time.Second,
				Listen: []netip.Addr{netip.MustParseAddr("127.0.0.1")},
			})
		fmt.Println(err)
	default:
		flag.Parse()
		if err := flag.Set("test.parallel", parallel); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
}

// variant leaves out a case of another that goes through the same code, with -short: under the race
// detector the tests run one at a time.
func variant(t *testing.T, is bool) {
	t.Helper()
	if is && testing.Short() {
		t.Skip("a variant, which -short leaves out")
	}
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// A site is one bridge with its own subnets. Our speaker has the first address.
type site struct {
	number int
	us     [2]netip.Addr // IPv4, IPv6
	nodes  int
}

var (
	sites    atomic.Int32
	setupMu  sync.Mutex // iproute2 and StartBgp's package variables are happier one at a time
	loopback sync.Once
)

// bfdMu is held by the test whose speaker has BFD.
var bfdMu sync.Mutex

// aloneWithBFD waits until no other test has BFD. All speakers are in one network namespace, and
// each receives on any address, port 3784: of several, one gets all packets.
func aloneWithBFD(t *testing.T) {
	t.Helper()
	bfdMu.Lock()
	t.Cleanup(bfdMu.Unlock)
}

func newSite(t *testing.T) *site {
	t.Helper()
	setupMu.Lock()
	defer setupMu.Unlock()
	loopback.Do(func() { run(t, "ip", "link", "set", "lo", "up") })
	s := &site{number: int(sites.Add(1))}
	s.us = s.addrs(1)
	bridge := s.bridge()
	run(t, "ip", "link", "add", bridge, "type", "bridge")
	t.Cleanup(func() { run(t, "ip", "link", "del", bridge) })
	run(t, "ip", "link", "set", bridge, "up")
	s.local(t, s.us)
	return s
}

func (s *site) bridge() string { return fmt.Sprintf("br%d", s.number) }

func (s *site) addrs(host int) [2]netip.Addr {
	return [2]netip.Addr{
		netip.MustParseAddr(fmt.Sprintf("10.77.%d.%d", s.number, host)),
		netip.MustParseAddr(fmt.Sprintf("fd00:77:%x::%x", s.number, host)),
	}
}

// local gives this end of the site more addresses.
func (s *site) local(t *testing.T, a [2]netip.Addr) {
	t.Helper()
	run(t, "ip", "addr", "add", a[0].String()+"/24", "dev", s.bridge())
	run(t, "ip", "addr", "add", a[1].String()+"/64", "dev", s.bridge(), "nodad")
}

type speaker struct {
	*Speaker
	log *wait.Log
}

func (s *site) speaker(t *testing.T, asn uint32, hold time.Duration, p pace) speaker {
	t.Helper()
	return s.speakerAt(t, asn, hold, p, s.us[:]...)
}

// speakerAt returns a speaker that lets peers connect at these addresses. Without a
// hold time it has 9 seconds.
func (s *site) speakerAt(t *testing.T, asn uint32, hold time.Duration, p pace, listen ...netip.Addr) speaker {
	t.Helper()
	setupMu.Lock()
	defer setupMu.Unlock()
	j := new(wait.Log)
	sp, err := start(t.Context(), Config{
		ASN:      asn,
		RouterID: s.us[0],
		Listen:   listen,
		HoldTime: cmp.Or(hold, 9*time.Second),
		Log:      slog.New(slog.NewTextHandler(j, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		sp.Stop()
		if t.Failed() {
			t.Logf("log of the speaker:\n%s", j)
		}
	})
	return speaker{sp, j}
}

func (s speaker) set(t *testing.T, peers ...Peer) {
	t.Helper()
	if err := s.SetPeers(peers); err != nil {
		t.Fatal(err)
	}
}

func (s speaker) peer(t *testing.T, a netip.Addr) PeerState {
	t.Helper()
	for _, p := range s.Peers() {
		if p.Addr == a {
			return p
		}
	}
	t.Fatalf("no peer %s", a)
	return PeerState{}
}

func (s speaker) waitPeer(t *testing.T, a netip.Addr, what string, ok func(PeerState) bool) PeerState {
	t.Helper()
	var p PeerState
	wait.For(t, fmt.Sprintf("peer %s: %s", a, what), func() (bool, string) {
		p = s.peer(t, a)
		return ok(p), fmt.Sprintf("%+v", p)
	})
	return p
}

func (s speaker) waitUp(t *testing.T, a netip.Addr) {
	t.Helper()
	s.waitPeer(t, a, "established, End-of-RIB", func(p PeerState) bool { return p.State == established && p.EndOfRIB })
}

// offers prints the offers of one peer as lines "PREFIX via NEXTHOP path [AS ...] CAUSE".
func (s speaker) offers(t *testing.T, peer netip.Addr) []string {
	t.Helper()
	all, err := s.Offers()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, o := range all {
		if o.Peer == peer {
			lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s via %s path %d %s", o.Prefix, o.NextHop, o.ASPath,
				o.Lost.Cause)))
		}
	}
	return lines
}

func (s speaker) waitOffers(t *testing.T, peer netip.Addr, want ...string) {
	t.Helper()
	wait.For(t, fmt.Sprintf("offers of %s: %q", peer, want), func() (bool, string) {
		got := s.offers(t, peer)
		return slices.Equal(got, want), fmt.Sprintf("got %q", got)
	})
}

// A node is a namespace with a link to the site. Its BIRDs have Calico's configuration.
type node struct {
	addr [2]netip.Addr
	pid  int
	leg  string // our end of its cable
}

func (s *site) node(t *testing.T) *node {
	t.Helper()
	setupMu.Lock()
	defer setupMu.Unlock()
	s.nodes++
	n := &node{addr: s.addrs(10 + s.nodes), leg: fmt.Sprintf("n%dx%d", s.number, s.nodes)}
	hold := exec.Command("/proc/self/exe")
	hold.Env = append(os.Environ(), roleEnv+"=hold")
	hold.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	stdin, err := hold.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := hold.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = hold.Wait()
	})
	n.pid = hold.Process.Pid
	run(t, "ip", "link", "add", n.leg, "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(n.pid))
	run(t, "ip", "link", "set", n.leg, "master", s.bridge(), "up")
	n.run(t, "ip", "link", "set", "lo", "up")
	n.run(t, "ip", "addr", "add", n.addr[0].String()+"/24", "dev", "eth0")
	n.run(t, "ip", "addr", "add", n.addr[1].String()+"/64", "dev", "eth0", "nodad")
	n.run(t, "ip", "link", "set", "eth0", "up")
	return n
}

func (n *node) enter(name string, args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--net=/proc/" + strconv.Itoa(n.pid) + "/ns/net", name}, args...)...)
}

func (n *node) run(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := n.enter(name, args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
}

// A birdConfig holds the settings that differ between the BIRDs of the tests.
type birdConfig struct {
	v6      bool
	us      netip.Addr
	asn     uint32 // of the node
	ours    uint32
	blocks  []string
	session string // further lines of the session
}

func (c birdConfig) render(n *node) string {
	family, bits, export := 0, 26, "to_same_as"
	pool := "[ 172.16.0.0/16+ ]"
	if c.v6 {
		family, bits, pool = 1, 122, "[ fd00:10::/32+ ]"
	}
	if c.asn != c.ours {
		export = "to_other_as"
	}
	var own, static strings.Builder
	for _, b := range c.blocks {
		fmt.Fprintf(&own, "  if net = %s then accept;\n  if net ~ [ %s{%d,%d} ] then reject;\n", b, b, bits,
			32+96*family)
		fmt.Fprintf(&static, "  route %s blackhole;\n", b)
	}
	// As Calico 3.32 renders it: only aggregates, LOCAL_PREF from the metric, and every
	// session multihop, offering graceful restart and ADD-PATH.
	return fmt.Sprintf(`log stderr all;
router id %[1]s;
function calico_like_export(bool same_as) {
  if !defined(krt_metric) then krt_metric = 1024;
  bgp_local_pref = 2147483647 - krt_metric;
  if same_as && defined(ifname) then if (ifname ~ "*.cali") || (ifname ~ "tunl0") then reject;
%[2]s  if net ~ %[3]s then accept;
  reject;
}
filter to_same_as { calico_like_export(true); }
filter to_other_as { calico_like_export(false); }
protocol kernel { learn; persist; scan time 2; import all; export all; graceful restart; merge paths on; }
protocol device { scan time 2; }
protocol direct { interface -"cali*", -"kube-ipvs*", "*"; }
protocol static {
%[4]s}
template bgp calico_peer {
  local as %[5]d; source address %[6]s; multihop; gateway recursive; add paths on; graceful restart;
  connect delay time 2; connect retry time 5; error wait time 5,30;
  import all;
}
protocol bgp appliance from calico_peer {
  neighbor %[7]s as %[8]d;
  export filter %[9]s;
  %[10]s
}
`, n.addr[0], own.String(), pool, static.String(), c.asn, n.addr[family], c.us, c.ours, export, c.session)
}

// A bird is a running BIRD: 1.6, which speaks one address family, or another.
type bird struct {
	t      *testing.T
	folder string // with the programs of another BIRD; empty: 1.6
	node   *node
	config birdConfig
	dir    string
	cmd    *exec.Cmd
	log    *wait.Log
}

func (n *node) bird(t *testing.T, c birdConfig) *bird {
	t.Helper()
	dir, err := os.MkdirTemp("", "sp") // a control socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	b := &bird{t: t, node: n, config: c, dir: dir, log: new(wait.Log)}
	t.Cleanup(func() {
		b.kill()
		if t.Failed() {
			t.Logf("log of the BIRD at %s:\n%s", n.addr[0], b.log)
		}
		_ = os.RemoveAll(dir)
	})
	b.write()
	b.start()
	return b
}

func (b *bird) write() {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, "bird.conf"), []byte(b.config.render(b.node)), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bird) program(name string) string {
	b.t.Helper()
	if b.folder != "" {
		return filepath.Join(b.folder, name)
	}
	folder, err := debian.BIRD(b.t.Context(), 1, b.t.Output())
	if err != nil {
		b.t.Fatal(err)
	}
	if b.config.v6 {
		name += "6"
	}
	return filepath.Join(folder, name)
}

func (b *bird) start() {
	b.t.Helper()
	b.cmd = b.node.enter(b.program("bird"), "-R", "-f", "-c", b.dir+"/bird.conf", "-s", b.dir+"/ctl", "-P",
		b.dir+"/pid")
	b.cmd.Stderr = b.log
	b.cmd.SysProcAttr = &syscall.SysProcAttr{}
	if err := b.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
}

// kill kills BIRD, as the end of its container does.
func (b *bird) kill() {
	if b.cmd.ProcessState == nil {
		_ = b.cmd.Process.Kill()
		_ = b.cmd.Wait()
	}
}

// setBlocks writes a new configuration and sends SIGHUP, as confd does.
func (b *bird) setBlocks(blocks ...string) {
	b.t.Helper()
	b.config.blocks = blocks
	b.write()
	if err := b.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bird) ctl(words ...string) string {
	b.t.Helper()
	var out []byte
	wait.For(b.t, "an answer of BIRD", func() (bool, string) {
		var err error
		out, err = exec.Command(b.program("birdc"),
			append([]string{"-s", b.dir + "/ctl"}, words...)...).CombinedOutput()
		return err == nil, string(out)
	})
	return string(out)
}
