package world

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/test/lab/bird"
	"sallyport/test/lab/debian"
)

// A likeness is a BIRD that Calico configures, and that the stand-in configures.
type likeness struct {
	name    string
	calicos string // file
	config  bird.Config
}

// likenesses returns those of a node: one for each family. dir has Calico's files.
func (v view) likenesses(t *testing.T, name string, n nodeView, routerID netip.Addr, dir string) (all []likeness) {
	t.Helper()
	for _, addr := range n.addrs {
		c, err := v.compose(n.name, 1, routerID, addr)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		file := "bird6.cfg"
		if addr.Is4() {
			file = "bird.cfg"
		}
		all = append(all, likeness{name + "/" + file, filepath.Join(dir, file), c})
	}
	return all
}

// compare checks likenesses side by side, more of them than there are processors: mostly they wait.
func compare(t *testing.T, likenesses []likeness) {
	t.Helper()
	var all sync.WaitGroup
	free := make(chan struct{}, 10)
	for _, p := range likenesses {
		all.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			t.Run(p.name, func(t *testing.T) { alike(t, p.calicos, p.config) })
		})
	}
	all.Wait()
}

// alike checks that a real BIRD announces the same routes to each neighbour, has the same sessions
// and programs the same routes with each of two texts: Calico's, a file, and ours. Ours is made of
// c, which also says which neighbours and routes there are.
func alike(t *testing.T, calicos string, c bird.Config) {
	t.Helper()
	text, err := bird.Render(c)
	if err != nil {
		t.Fatal(err)
	}
	ours := filepath.Join(t.TempDir(), "bird.conf")
	if err := os.WriteFile(ours, text, 0o600); err != nil {
		t.Fatal(err)
	}
	want, got := sessionsOf(t, calicos), sessionsOf(t, ours)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sessions (-Calico +lab):\n%s", diff)
	}
	s := newScene(t, c)
	if diff := cmp.Diff(s.announced(t, calicos), s.announced(t, ours)); diff != "" {
		t.Errorf("announced (-Calico +lab):\n%s", diff)
	}
}

var (
	comment  = regexp.MustCompile(`#[^\n]*`)
	stanza   = regexp.MustCompile(`(?m)^(?:template|protocol) bgp (\S+)(?: from (\S+))? \{`)
	notTold  = regexp.MustCompile(`^(debug|description|import|export|gateway|add paths|connect|error wait)\b`)
	brackets = regexp.MustCompile(`\{[^{}]*\}`)
)

// sessionsOf maps the name of each protocol bgp in a configuration of BIRD 1.6 to its statements,
// sorted. What sets the filters, timers and logs is left out.
func sessionsOf(t *testing.T, file string) map[string][]string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := comment.ReplaceAllString(string(raw), "")
	all := map[string][]string{}
	for _, at := range stanza.FindAllStringSubmatchIndex(text, -1) {
		name, from := text[at[2]:at[3]], ""
		if at[4] >= 0 {
			from = text[at[4]:at[5]]
		}
		depth, end := 1, at[1]
		for ; depth > 0 && end < len(text); end++ {
			depth += strings.Count(text[end:end+1], "{") - strings.Count(text[end:end+1], "}")
		}
		body := text[at[1] : end-1]
		for shorter := ""; shorter != body; body = brackets.ReplaceAllString(body, "") {
			shorter = brackets.ReplaceAllString(body, "")
		}
		statements := slices.Clone(all[from])
		for s := range strings.SplitSeq(body, ";") {
			if s = strings.Join(strings.Fields(s), " "); s != "" && !notTold.MatchString(s) {
				statements = append(statements, s)
			}
		}
		slices.Sort(statements)
		all[name] = statements
	}
	delete(all, "bgp_template")
	return all
}

// A scene is what a node's BIRD sees: two namespaces joined by a cable, the node's with routes of
// every kind in its kernel, and the rest of the world's with all neighbours, which announce routes.
type scene struct {
	config     bird.Config
	node, rest string         // namespaces
	kernel     []netip.Prefix // routes that BIRD learns from the kernel
	heard      map[string]int // how many routes each neighbour announces, by the protocol's name
}

var scenes atomic.Int32

func newScene(t *testing.T, c bird.Config) *scene {
	t.Helper()
	n := scenes.Add(1)
	s := &scene{
		config: c, node: fmt.Sprintf("splike%d-%dn", os.Getpid(), n),
		rest: fmt.Sprintf("splike%d-%dr", os.Getpid(), n), heard: map[string]int{},
	}
	ctx := t.Context()
	for _, ns := range []string{s.node, s.rest} {
		if err := ip(ctx, "netns", "add", ns); err != nil {
			t.Fatal(err)
		}
		if err := sysctl(ctx, ns, "net.ipv6.conf.all.accept_dad=0", "net.ipv6.conf.default.accept_dad=0"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := ip(context.Background(), "netns", "delete", ns); err != nil {
				t.Error(err)
			}
		})
	}
	bits := c.Source.BitLen()
	// Sessions of the mesh between two AS numbers are only within a network.
	net := netip.PrefixFrom(c.Source, bits)
	for _, p := range c.Peers {
		for p.Mesh && p.AS != c.AS && !net.Masked().Contains(p.Addr) {
			net = netip.PrefixFrom(c.Source, net.Bits()-1)
		}
	}
	// The devices of a node: its cable, a pod's, Felix's tunnel, that of its BPF programs, and those
	// that filters name.
	devices := map[string]bool{"cali1": true, "vxlan.calico": true, "bpfout.cali": true}
	rules := []bird.Rule{}
	for _, p := range c.Peers {
		rules = slices.Concat(rules, p.Export, p.Import)
	}
	for _, r := range rules {
		if name := strings.ReplaceAll(r.Interface, "*", "x"); name != "" && name != "eth0" {
			devices[name[:min(len(name), 15)]] = true
		}
	}
	lines := []string{
		"link set lo up",
		fmt.Sprintf("link add eth0 type veth peer name eth0 netns %s", s.rest),
		fmt.Sprintf("address add %s dev eth0%s", net, noDAD(c.Source)),
		"link set eth0 up",
		fmt.Sprintf("route add %s dev eth0", anywhere(c.Source)),
	}
	for i, name := range slices.Sorted(maps.Keys(devices)) {
		lines = append(lines, fmt.Sprintf("link add %s type veth peer name far%d", name, i),
			fmt.Sprintf("link set far%d up", i), fmt.Sprintf("link set %s up", name))
	}
	route := func(p netip.Prefix, device string) {
		if !p.IsValid() || slices.Contains(s.kernel, p) {
			return
		}
		s.kernel = append(s.kernel, p)
		lines = append(lines, fmt.Sprintf("route add %s dev %s", p, device))
	}
	for _, b := range c.Blocks {
		route(part(b.Prefix, 3, bits), "cali1") // a pod
	}
	for _, p := range c.Pools {
		block := min(bits, max(p.Prefix.Bits()+2, bits-6))
		route(part(p.Prefix, 1001, bits), "cali1")        // a pod with a borrowed address
		route(part(p.Prefix, 1002, bits), "bpfout.cali")  // what a BPF program needs
		route(part(p.Prefix, 21, block), "vxlan.calico")  // another node's block, by a tunnel
		route(part(p.Prefix, 22, block), "eth0")          // another node's block, without one
		route(part(p.Prefix, 1003, bits), "vxlan.calico") // the node's own end of the tunnel
	}
	for i, range_ := range slices.Concat(c.Services, c.Foreign, c.Reflects) {
		route(part(range_, uint64(7+i), bits), "eth0")
	}
	names := append(slices.Sorted(maps.Keys(devices)), "eth0")
	for i, r := range rules {
		if !r.Prefix.IsValid() || r.Prefix.Bits() == 0 {
			continue
		}
		route(r.Prefix, names[i%len(names)])
		for j, name := range names {
			route(part(r.Prefix, uint64(2+j), min(r.Prefix.Bits()+8, bits)), name)
		}
	}
	if err := ipBatch(ctx, s.node, lines...); err != nil {
		t.Fatal(err)
	}
	s.startRest(t)
	return s
}

func noDAD(a netip.Addr) string {
	if a.Is6() {
		return " nodad"
	}
	return ""
}

// anywhere returns the prefix of the default route of an address's family.
func anywhere(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// part returns the n-th prefix of a length inside another one, counted around, and the zero Prefix if
// there is none.
func part(p netip.Prefix, n uint64, bits int) netip.Prefix {
	room := bits - p.Bits()
	if room < 0 {
		return netip.Prefix{}
	}
	if room < 64 {
		n %= 1 << room
	}
	if p.Addr().Is4() {
		b := p.Masked().Addr().As4()
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n)<<(32-bits))
		return netip.PrefixFrom(netip.AddrFrom4(b), bits)
	}
	b := p.Masked().Addr().As16()
	half := b[8:]
	shift := 128 - bits
	if bits <= 64 {
		half, shift = b[:8], 64-bits
	}
	binary.BigEndian.PutUint64(half, binary.BigEndian.Uint64(half)+n<<shift)
	return netip.PrefixFrom(netip.AddrFrom16(b), bits)
}

// startRest starts a BIRD for each neighbour. Each announces another node's block of every pool,
// and a part of every prefix that a filter names.
func (s *scene) startRest(t *testing.T) {
	t.Helper()
	c, bits := s.config, s.config.Source.BitLen()
	lines := []string{"link set lo up", "link set eth0 up", fmt.Sprintf("route add %s dev eth0", anywhere(c.Source))}
	var texts []string
	for i, p := range c.Peers {
		// BIRD tells incoming sessions apart by the address alone. Some of Calico's examples have
		// addresses of multicast.
		again := slices.ContainsFunc(c.Peers, func(o bird.Peer) bool { return o.Addr == p.Addr && o.Name != p.Name })
		if again || p.Addr.IsMulticast() {
			continue
		}
		lines = append(lines, fmt.Sprintf("address add %s/%d dev eth0%s", p.Addr, bits, noDAD(p.Addr)))
		var own []netip.Prefix
		announce := func(prefix netip.Prefix) {
			if prefix.IsValid() && !slices.Contains(own, prefix) {
				own = append(own, prefix)
			}
		}
		for _, pool := range c.Pools {
			announce(part(pool.Prefix, uint64(30+i), bits-6))
			announce(part(pool.Prefix, uint64(2003+i), bits))
		}
		for _, r := range slices.Concat(p.Export, p.Import) {
			if r.Prefix.IsValid() {
				announce(part(r.Prefix, uint64(40+i), min(r.Prefix.Bits()+8, bits)))
			}
		}
		s.heard[p.Name] = len(own)
		var text strings.Builder
		fmt.Fprintf(&text, "router id 198.51.100.%d;\nlisten bgp address %s port 1;\nprotocol device {}\n"+
			"protocol static {\n", 3+i, p.Addr)
		for _, prefix := range own {
			fmt.Fprintf(&text, "  route %s blackhole;\n", prefix)
		}
		hops := ""
		if p.TTLHops > 0 {
			hops = fmt.Sprintf("%d; ttl security on", p.TTLHops)
		}
		fmt.Fprintf(&text, "}\nprotocol bgp {\n  local as %d; source address %s; neighbor %s", p.AS, p.Addr, c.Source)
		if c.Port != 0 {
			fmt.Fprintf(&text, " port %d", c.Port)
		}
		fmt.Fprintf(&text, " as %d; multihop %s; connect delay time 1; connect retry time 1; error wait time 1,1;\n",
			c.MyAS(p), hops)
		if p.Password != "" {
			fmt.Fprintf(&text, "  password \"%s\";\n", p.Password)
		}
		text.WriteString("  import all; export all;\n}\n")
		texts = append(texts, text.String())
	}
	if err := ipBatch(t.Context(), s.rest, lines...); err != nil {
		t.Fatal(err)
	}
	for _, text := range texts {
		file := filepath.Join(t.TempDir(), "rest.conf")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s.run(t, s.rest, file)
	}
}

// run starts a BIRD 1.6 in a namespace. It returns a function that asks it, and one that ends it.
func (s *scene) run(t *testing.T, ns, file string) (ask func(...string) (string, error), end func()) {
	t.Helper()
	programs, err := debian.BIRD(t.Context(), 1, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	program, client := "bird", "birdc"
	if s.config.Source.Is6() {
		program, client = "bird6", "birdc6"
	}
	dir := t.TempDir()
	cmd := exec.Command("ip", "netns", "exec", ns, filepath.Join(programs, program), "-f", "-c", file, "-s",
		filepath.Join(dir, "ctl"), "-P", filepath.Join(dir, "pid"))
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end = func() {
		if !ended {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // killed, as it should be
		}
		ended = true
	}
	t.Cleanup(end)
	ask = func(args ...string) (string, error) {
		return output(exec.Command(filepath.Join(programs, client),
			append([]string{"-s", filepath.Join(dir, "ctl")}, args...)...))
	}
	return ask, end
}

var received = regexp.MustCompile(`Import updates:\s+(\d+)`)

// announced runs the node's BIRD with a configuration, and returns its routes to each neighbour with
// their attributes, and, as kernel1, those to the kernel.
func (s *scene) announced(t *testing.T, file string) map[string][]string {
	t.Helper()
	ask, end := s.run(t, s.node, file)
	defer func() {
		end()
		_, _ = output(exec.Command("ip", "-n", s.node, map[bool]string{true: "-4", false: "-6"}[s.config.Source.Is4()],
			"route", "flush", "proto", "bird"))
	}()
	settled := func() error {
		table, err := ask("show", "route")
		if err != nil {
			return err
		}
		for _, p := range s.kernel {
			if !strings.Contains(table, "\n"+p.String()+" ") {
				return fmt.Errorf("%s was not learned from the kernel:\n%s", p, table)
			}
		}
		for name, n := range s.heard {
			out, err := ask("show", "protocols", "all", name)
			if err != nil {
				return err
			}
			got := received.FindStringSubmatch(out)
			if !strings.Contains(out, "Established") || got == nil || got[1] != fmt.Sprint(n) {
				return fmt.Errorf("%d routes of %s are not there yet:\n%s", n, name, out)
			}
		}
		return nil
	}
	all := map[string][]string{}
	read := func() error {
		for name := range s.heard {
			out, err := ask("show", "route", "export", name, "all")
			if err != nil {
				return err
			}
			all[name] = exported(out)
		}
		// What BIRD gives to the kernel has no attributes.
		out, err := ask("show", "route", "export", "kernel1")
		all["kernel1"] = exported(out)
		return err
	}
	// A session that is lost while BIRD answers would look like a difference.
	if err := await(t.Context(), "BIRD to learn all routes", patience, func(context.Context) (bool, error) {
		for _, step := range []func() error{settled, read, settled} {
			if err := step(); err != nil {
				return false, err
			}
		}
		return true, nil
	}); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return all
}

// exported lists the routes in an answer of birdc, each with its attributes of BGP in one line.
func exported(out string) []string {
	var routes []string
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if _, err := netip.ParsePrefix(f[0]); err == nil {
			routes = append(routes, f[0])
		} else if strings.HasPrefix(f[0], "BGP.") && len(routes) > 0 {
			routes[len(routes)-1] += " " + strings.Join(f, " ")
		}
	}
	slices.Sort(routes)
	return routes
}
