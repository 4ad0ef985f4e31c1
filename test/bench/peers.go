package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"sallyport/test/lab/debian"
	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

var peerRows = []row{
	{14, "block announced → route in the kernel, beside BIRD 1.6 and 2", alone, peers},
}

// The nodes of row 14 speak BGP and do nothing else. Each has blocks of its own by the records
// of the cluster, as the appliance demands: the first stays announced, the second comes and
// goes, the others are announced at once.
const (
	mostPeers  = 200
	someBlocks = 2  // blocks of each node at first
	atOnce     = 50 // blocks of each node that are announced at once
	allBlocks  = someBlocks + atOnce
	pause      = 10 * time.Millisecond
	repeats    = 3
)

// block returns a block of a node.
func peerBlock(node, i int) netip.Prefix {
	n := uint32(node*allBlocks+i) * 64 // 10.0.0.0/12 has room for 16,384
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), 26)
}

func peerAddr(node int) netip.Addr {
	return netip.AddrFrom4([4]byte{192, 168, 50, byte(30 + node)})
}

// peers measures how fast a block that a node announces becomes a route, with 1, 50 and 200
// nodes, and how fast 10,000 blocks do that 200 nodes announce at once. The appliance and two
// BIRDs have the same sessions with the same nodes, each in a kernel of its own. They take
// turns: an announcement goes to one of them alone.
func peers(ctx context.Context, b *bench) (err error) {
	f, err := newFabric(ctx, b.dir)
	if err != nil {
		return err
	}
	b.testbed = &testbed{Rig: f.Rig}
	defer func() {
		b.testbed = nil
		err = errors.Join(err, f.close())
	}()
	for _, n := range []int{1, 50, mostPeers} {
		if err := f.grow(ctx, n); err != nil {
			return err
		}
		took, err := f.one(ctx, b.samples/2)
		if err != nil {
			return err
		}
		for _, p := range []float64{0.5, 0.99} {
			bound := 0.0
			if n == mostPeers && p == 0.5 {
				bound = 3
			}
			b.besideBIRD(fmt.Sprintf("block → route, %d peers, p%g", n, p*100), took, p, bound)
		}
	}
	if err := f.enrich(ctx); err != nil {
		return err
	}
	b.profile(ctx, mostPeers)
	took, err := f.many(ctx)
	if err := errors.Join(err, b.profiled()); err != nil {
		return err
	}
	b.besideBIRD(fmt.Sprintf("%d blocks of %d peers at once → all routes", mostPeers*atOnce, mostPeers), took, 0.5, 600)
	return nil
}

// besideBIRD adds a percentile of the appliance's times beside that of each BIRD. The target is bound, in milliseconds.
// A bound of 0 means no target.
func (b *bench) besideBIRD(what string, took map[string][]time.Duration, p, bound float64) {
	for _, bird := range []string{bird1, bird2} {
		f := value(what, percentile(took[world.Appliance], p), "ms").beside(bird, percentile(took[bird], p))
		if bound > 0 {
			f = f.atMost(bound)
		}
		b.add(f)
	}
}

// The receivers' hosts, beside the appliance's.
const (
	bird1 = "bird1"
	bird2 = "bird2"
)

// A fabric is a lab with an appliance, two BIRDs, and nodes that speak BGP.
type fabric struct {
	*rig.Rig
	kube      kubernetes.Interface
	dynamic   dynamic.Interface
	receivers []*receiver
	speakers  []*peerSpeaker
	peers     int // of each receiver
	owned     int // blocks, by the records of the cluster
	life      context.Context
	end       context.CancelFunc
	stops     []func()
}

// A receiver learns routes by BGP and gives them to its kernel.
type receiver struct {
	host    string
	addr    netip.Addr
	config  func(peers int) string // of a BIRD
	control string                 // socket of a BIRD
	changes chan routeChange
}

// A routeChange is a route of a block that a kernel added or removed, and the time.
type routeChange struct {
	prefix netip.Prefix
	added  bool
	at     time.Time
}

func newFabric(ctx context.Context, programs string) (f *fabric, err error) {
	dir := filepath.Join(programs, "peers")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	for _, program := range []string{"sallyport", "app"} {
		if err := os.Symlink(filepath.Join(programs, program), filepath.Join(dir, program)); err != nil {
			return nil, err
		}
	}
	if err := rig.Configure(dir, "log: {level: warn}"); err != nil {
		return nil, err
	}
	r, err := rig.New(ctx, dir, world.Options{Name: "benchpeers", Progress: os.Stderr})
	if err != nil {
		return nil, err
	}
	f = &fabric{Rig: r}
	f.life, f.end = context.WithCancel(ctx)
	if err := f.furnish(ctx); err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

func (f *fabric) close() error {
	f.end()
	for _, stop := range f.stops {
		stop()
	}
	return f.Close()
}

func (f *fabric) furnish(ctx context.Context) error {
	config := f.RESTConfig()
	config.QPS = -1
	var err1, err2 error
	f.kube, err1 = kubernetes.NewForConfig(config)
	f.dynamic, err2 = dynamic.NewForConfig(config)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if err := f.Apply(ctx, `
apiVersion: crd.projectcalico.org/v1
kind: IPPool
metadata: {name: peers}
spec: {cidr: 10.0.0.0/12, blockSize: 26, ipipMode: Never, vxlanMode: Never, nodeSelector: all()}
`); err != nil {
		return err
	}
	const nodes = "nodes"
	var all []netip.Addr
	for i := range mostPeers {
		all = append(all, peerAddr(i))
	}
	one, two := netip.MustParseAddr("192.168.50.11"), netip.MustParseAddr("192.168.50.12")
	err := errors.Join(addHost(ctx, f.Lab, nodes, all...), addHost(ctx, f.Lab, bird1, one),
		addHost(ctx, f.Lab, bird2, two))
	if err != nil {
		return err
	}
	for i := range mostPeers {
		l, err := f.Listen(ctx, nodes, netip.AddrPortFrom(peerAddr(i), 179).String())
		if err != nil {
			return err
		}
		f.stops = append(f.stops, func() { _ = l.Close() })
		s := &peerSpeaker{addr: peerAddr(i), sessions: map[netip.Addr]net.Conn{}}
		go s.serve(l)
		f.speakers = append(f.speakers, s)
	}
	f.receivers = []*receiver{
		{host: world.Appliance, addr: netip.MustParseAddr("192.168.50.21")},
		{
			host: bird1, addr: one,
			config: birdConfig(one, "listen bgp port 1790;", "local %s as 65000",
				"direct; gateway direct; import all; export none", "export all"),
		},
		{
			host: bird2, addr: two,
			config: birdConfig(two, "", "local %s port 1790 as 65000",
				"direct; ipv4 { gateway direct; import all; export none; }", "ipv4 { export all; }"),
		},
	}
	for i, r := range f.receivers {
		if err := f.watch(r); err != nil {
			return err
		}
		if i == 0 {
			continue
		}
		if err := f.startBIRD(ctx, r, i); err != nil {
			return err
		}
	}
	return f.Start(ctx)
}

// addHost connects a new host to the lab's network. The lab removes it with its own.
func addHost(ctx context.Context, lab *world.Lab, name string, addrs ...netip.Addr) error {
	var lines strings.Builder
	for _, a := range addrs {
		fmt.Fprintf(&lines, "address add %s/24 dev eth0\n", a)
	}
	lan := lab.Netns("lan")
	for _, args := range [][]string{
		{"netns", "add", lab.Netns(name)},
		{"-netns", lan, "link", "add", "name", name, "type", "veth", "peer", "name", "eth0", "netns", lab.Netns(name)},
		{"-netns", lan, "link", "set", "dev", name, "master", "lan", "up"},
		{"-netns", lab.Netns(name), "link", "set", "dev", "lo", "up"},
		{"-netns", lab.Netns(name), "link", "set", "dev", "eth0", "up"},
		{"-netns", lab.Netns(name), "-batch", "-"},
	} {
		cmd := exec.CommandContext(ctx, "ip", args...)
		cmd.Stdin = strings.NewReader(lines.String())
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("host %s: ip %s: %w: %s", name, strings.Join(args, " "), err, out)
		}
	}
	return nil
}

// birdConfig returns a function that makes the configuration of a BIRD with a number of peers.
func birdConfig(own netip.Addr, head, local, session, kernel string) func(int) string {
	return func(peers int) string {
		var b strings.Builder
		fmt.Fprintf(&b, "router id %s;\n%s\nprotocol device {}\nprotocol kernel { %s; }\n", own, head, kernel)
		for i := range peers {
			fmt.Fprintf(&b, "protocol bgp peer%d { "+local+
				"; neighbor %s as 65000; %s; connect delay time 1; connect retry time 1; error wait time 1, 2; }\n",
				i, own, peerAddr(i), session)
		}
		return b.String()
	}
}

func (f *fabric) startBIRD(ctx context.Context, r *receiver, series int) error {
	programs, err := debian.BIRD(ctx, series, os.Stderr)
	if err != nil {
		return err
	}
	file := filepath.Join(f.Dir, r.host)
	r.control = file + ".ctl"
	if err := os.WriteFile(file+".conf", []byte(r.config(0)), 0o600); err != nil {
		return err
	}
	_, stop, err := f.Beside(f.life, r.host, filepath.Join(programs, "bird"), "-f", "-c", file+".conf", "-s", r.control,
		"-P", file+".pid")
	if err != nil {
		return err
	}
	f.stops = append(f.stops, stop)
	return nil
}

// configure gives a BIRD this many peers.
func (f *fabric) configure(ctx context.Context, r *receiver, peers int) error {
	file := filepath.Join(f.Dir, r.host) + ".conf"
	if err := os.WriteFile(file, []byte(r.config(peers)), 0o600); err != nil {
		return err
	}
	programs, err := debian.BIRD(ctx, 1, os.Stderr) // its birdc talks to series 2, too
	if err != nil {
		return err
	}
	return rig.Eventually(ctx, r.host+" takes its configuration", func() error {
		out, err := exec.CommandContext(ctx, filepath.Join(programs, "birdc"), "-s", r.control,
			"configure").CombinedOutput()
		if err == nil && !strings.Contains(string(out), "Reconfig") {
			err = errors.New(string(out))
		}
		return err
	})
}

// grow makes the cluster have this many nodes, with their first blocks announced and routed.
func (f *fabric) grow(ctx context.Context, n int) error {
	had := f.peers
	progress("%d peers", n)
	err := parallel(n-had, func(i int) error {
		_, err := f.kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name:        nodeName(had + i),
			Annotations: map[string]string{"projectcalico.org/IPv4Address": peerAddr(had+i).String() + "/24"},
		}}, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	if err := f.own(ctx, had, n, 0, someBlocks); err != nil {
		return err
	}
	for _, r := range f.receivers[1:] {
		if err := f.configure(ctx, r, n); err != nil {
			return err
		}
	}
	for _, r := range f.receivers {
		if err := f.sessions(ctx, r, n); err != nil {
			return err
		}
		for i := had; i < n; i++ {
			if err := f.speakers[i].announce(r, peerBlock(i, 0)); err != nil {
				return err
			}
		}
		if _, err := f.await(ctx, r, n-had, true); err != nil {
			return err
		}
	}
	f.peers = n
	return f.known(ctx)
}

func nodeName(i int) string { return fmt.Sprintf("peer-%d", i) }

// own writes into the records of the cluster which blocks of nodes are theirs.
func (f *fabric) own(ctx context.Context, fromNode, toNode, from, to int) error {
	affinities := f.dynamic.Resource(schema.GroupVersionResource{
		Group: "crd.projectcalico.org", Version: "v1",
		Resource: "blockaffinities",
	})
	width := to - from
	f.owned += (toNode - fromNode) * width
	return parallel((toNode-fromNode)*width, func(i int) error {
		node, block := fromNode+i/width, peerBlock(fromNode+i/width, from+i%width)
		_, err := affinities.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "crd.projectcalico.org/v1", "kind": "BlockAffinity",
			"metadata": map[string]any{"name": nodeName(node) + "-" +
				strings.NewReplacer(".", "-", "/", "-").Replace(block.String())},
			"spec": map[string]any{
				"node": nodeName(node), "cidr": block.String(), "state": "confirmed",
				"deleted": "false",
			},
		}}, metav1.CreateOptions{})
		return err
	})
}

// known waits until the appliance has read which blocks there are.
func (f *fabric) known(ctx context.Context) error {
	return rig.Eventually(ctx, "the appliance knows the blocks", func() error {
		s, err := f.Status(ctx)
		if err == nil && (len(s.Clusters) == 0 || s.Clusters[0].Blocks < f.owned) {
			err = fmt.Errorf("it knows %+v, want %d", s.Clusters, f.owned)
		}
		return err
	})
}

// enrich gives each node the blocks that it announces at once. The appliance is away meanwhile.
func (f *fabric) enrich(ctx context.Context) error {
	progress("%d blocks", mostPeers*atOnce)
	if err := errors.Join(f.Stop(syscall.SIGTERM), f.own(ctx, 0, mostPeers, someBlocks, allBlocks),
		f.Start(ctx)); err != nil {
		return err
	}
	r := f.receivers[0]
	if err := f.sessions(ctx, r, mostPeers); err != nil {
		return err
	}
	for i, s := range f.speakers {
		if err := s.announce(r, peerBlock(i, 0)); err != nil {
			return err
		}
	}
	return f.known(ctx)
}

// sessions waits until a receiver has a session with each of the first nodes.
func (f *fabric) sessions(ctx context.Context, r *receiver, n int) error {
	return rig.Eventually(ctx, fmt.Sprintf("%s has %d sessions", r.host, n), func() error {
		for _, s := range f.speakers[:n] {
			if s.session(r) == nil {
				return fmt.Errorf("none with %s", s.addr)
			}
		}
		return nil
	})
}

// one measures, for each receiver by its host, how long the second block of a node takes.
func (f *fabric) one(ctx context.Context, samples int) (map[string][]time.Duration, error) {
	took := map[string][]time.Duration{}
	for i := range samples {
		node := i % f.peers
		block := peerBlock(node, 1)
		for _, r := range f.receivers {
			began := time.Now()
			if err := f.speakers[node].announce(r, block); err != nil {
				return nil, err
			}
			at, err := f.await(ctx, r, 1, true)
			if err != nil {
				return nil, err
			}
			took[r.host] = append(took[r.host], at.Sub(began))
			if err := f.speakers[node].withdraw(r, block); err != nil {
				return nil, err
			}
			if _, err := f.await(ctx, r, 1, false); err != nil {
				return nil, err
			}
			rest(ctx, pause)
		}
	}
	return took, nil
}

// many measures, for each receiver by its host, how long it takes until the last route of all
// blocks that are announced at once is in the kernel.
func (f *fabric) many(ctx context.Context) (map[string][]time.Duration, error) {
	took := map[string][]time.Duration{}
	blocks := make([][]netip.Prefix, mostPeers)
	for node := range blocks {
		for i := range atOnce {
			blocks[node] = append(blocks[node], peerBlock(node, someBlocks+i))
		}
	}
	all := func(r *receiver, do func(*peerSpeaker, *receiver, ...netip.Prefix) error) error {
		for node, s := range f.speakers {
			if err := do(s, r, blocks[node]...); err != nil {
				return err
			}
		}
		return nil
	}
	for range repeats {
		for _, r := range f.receivers {
			began := time.Now()
			if err := all(r, (*peerSpeaker).announce); err != nil {
				return nil, err
			}
			at, err := f.await(ctx, r, mostPeers*atOnce, true)
			if err != nil {
				return nil, err
			}
			took[r.host] = append(took[r.host], at.Sub(began))
			progress("%s: %d routes in %s", r.host, mostPeers*atOnce, at.Sub(began).Round(time.Millisecond))
			if err := all(r, (*peerSpeaker).withdraw); err != nil {
				return nil, err
			}
			if _, err := f.await(ctx, r, mostPeers*atOnce, false); err != nil {
				return nil, err
			}
			rest(ctx, 50*pause)
		}
	}
	return took, nil
}

// rest leaves time for what a receiver still does after its last route, so that it takes none from
// the next one's turn.
func rest(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// watch sends the changes of routes to blocks in a receiver's kernel.
func (f *fabric) watch(r *receiver) error {
	ns, err := netns.GetFromName(f.Netns(r.host))
	if err != nil {
		return err
	}
	updates := make(chan netlink.RouteUpdate, 1<<10)
	r.changes = make(chan routeChange, 1<<15)
	if err := netlink.RouteSubscribeWithOptions(updates, f.life.Done(), netlink.RouteSubscribeOptions{
		Namespace: &ns, ReceiveBufferSize: 64 << 20, ReceiveBufferForceSize: true,
	}); err != nil {
		return err
	}
	blocks := netip.MustParsePrefix("10.0.0.0/12")
	go func() {
		for u := range updates {
			if u.Dst == nil {
				continue
			}
			addr, _ := netip.AddrFromSlice(u.Dst.IP)
			bits, _ := u.Dst.Mask.Size()
			if prefix := netip.PrefixFrom(addr.Unmap(), bits); blocks.Contains(prefix.Addr()) && u.Gw != nil {
				r.changes <- routeChange{prefix, u.Type == unix.RTM_NEWROUTE, time.Now()}
			}
		}
	}()
	return nil
}

// await waits until this many routes were added, or removed, and returns the time of the last.
func (f *fabric) await(ctx context.Context, r *receiver, n int, added bool) (at time.Time, err error) {
	late := time.After(limit)
	seen := make(map[netip.Prefix]bool, n)
	for len(seen) < n {
		select {
		case c := <-r.changes:
			if c.added == added {
				seen[c.prefix], at = true, c.at
			}
		case <-ctx.Done():
			return at, context.Cause(ctx)
		case <-late:
			return at, fmt.Errorf("%s: %d of %d routes within %s", r.host, len(seen), n, limit)
		}
	}
	return at, f.Alive()
}

// A peerSpeaker is a node: a BGP speaker that announces what it is told, and learns nothing.
type peerSpeaker struct {
	addr  netip.Addr
	first []netip.Prefix // announced in each session as it begins

	mu       sync.Mutex
	sessions map[netip.Addr]net.Conn // established, by the address of the receiver
}

func (s *peerSpeaker) session(r *receiver) net.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[r.addr]
}

func (s *peerSpeaker) serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close() //nolint:errcheck // it is over
			_ = s.speak(c)
		}()
	}
}

// Types of BGP messages (RFC 4271, 4.1).
const (
	bgpOpen      = 1
	bgpUpdate    = 2
	bgpKeepalive = 4
)

// bgpMessage returns a message with its header.
func bgpMessage(kind byte, body ...byte) []byte {
	text := slices.Repeat([]byte{0xff}, 16)
	text = binary.BigEndian.AppendUint16(text, uint16(19+len(body))) //nolint:gosec // at most 4096
	return append(append(text, kind), body...)
}

// speak opens a session, and answers each keepalive until it ends.
func (s *peerSpeaker) speak(c net.Conn) error {
	remote, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return err
	}
	id := s.addr.As4()
	const as, hold = 65000, 90
	capabilities := []byte{
		1, 4, 0, 1, 0, 1, // IPv4 unicast (RFC 4760, 8)
		65, 4, 0, 0, as >> 8, as & 0xff, // an AS number of four bytes (RFC 6793, 3)
	}
	open := append([]byte{4, as >> 8, as & 0xff, 0, hold}, id[:]...)
	open = append(open, byte(2+len(capabilities)), 2, byte(len(capabilities)))
	if _, err := c.Write(append(bgpMessage(bgpOpen, append(open, capabilities...)...),
		bgpMessage(bgpKeepalive)...)); err != nil {
		return err
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.sessions[remote.Addr()] == c {
			delete(s.sessions, remote.Addr())
		}
	}()
	header := make([]byte, 19)
	for established := false; ; {
		if _, err := io.ReadFull(c, header); err != nil {
			return err
		}
		if _, err := io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint16(header[16:]))-19); err != nil {
			return err
		}
		if header[18] != bgpKeepalive {
			continue
		}
		answer := bgpMessage(bgpKeepalive)
		if !established {
			answer = bgpMessage(bgpUpdate, 0, 0, 0, 0) // End-of-RIB (RFC 4724, 2)
			if len(s.first) > 0 {
				answer = append(bgpMessage(bgpUpdate, s.update(s.first)...), answer...)
			}
		}
		if _, err := c.Write(answer); err != nil {
			return err
		}
		if !established {
			established = true
			s.mu.Lock()
			s.sessions[remote.Addr()] = c
			s.mu.Unlock()
		}
	}
}

// announce sends one UPDATE with blocks of the node.
func (s *peerSpeaker) announce(r *receiver, blocks ...netip.Prefix) error {
	return s.send(r, s.update(blocks))
}

// update returns the body of an UPDATE with blocks of the node.
func (s *peerSpeaker) update(blocks []netip.Prefix) []byte {
	hop := s.addr.As4()
	attributes := slices.Concat(
		[]byte{0x40, 1, 1, 0},      // ORIGIN: IGP
		[]byte{0x40, 2, 0},         // AS_PATH: empty
		[]byte{0x40, 3, 4}, hop[:], // NEXT_HOP
		[]byte{0x40, 5, 4, 0, 0, 0, 0x64}, // LOCAL_PREF: 100
	)
	body := binary.BigEndian.AppendUint16([]byte{0, 0}, uint16(len(attributes))) //nolint:gosec // a few bytes
	return slices.Concat(body, attributes, encoded(blocks))
}

// withdraw sends one UPDATE that withdraws blocks.
func (s *peerSpeaker) withdraw(r *receiver, blocks ...netip.Prefix) error {
	text := encoded(blocks)
	body := binary.BigEndian.AppendUint16(nil, uint16(len(text))) //nolint:gosec // at most 4096
	return s.send(r, slices.Concat(body, text, []byte{0, 0}))
}

func (s *peerSpeaker) send(r *receiver, update []byte) error {
	c := s.session(r)
	if c == nil {
		return fmt.Errorf("%s has no session with %s", s.addr, r.host)
	}
	_, err := c.Write(bgpMessage(bgpUpdate, update...))
	return err
}

// encoded returns blocks as NLRI (RFC 4271, 4.3).
func encoded(blocks []netip.Prefix) (text []byte) {
	for _, p := range blocks {
		a := p.Addr().As4()
		text = append(append(text, byte(p.Bits())), a[:(p.Bits()+7)/8]...)
	}
	return text
}
