package bgp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/test/lab/debian"
	"sallyport/test/wait"
)

// A frr is a namespace with Debian's FRR, which is upstream of us in AS 64512: zebra writes
// its routes into the kernel, bgpd speaks BGP, and bfdd BFD.
type frr struct {
	t      *testing.T
	folder string
	node   *node
	dir    string
	log    *wait.Log
}

// frr starts FRR with sessions to these addresses of ours, and with BFD if asked.
func (s *site) frr(t *testing.T, ours uint32, bfd bool, us ...netip.Addr) *frr {
	t.Helper()
	folder, err := debian.FRR(t.Context(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "sp") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	f := &frr{t: t, folder: folder, node: s.node(t), dir: dir, log: new(wait.Log)}
	f.node.run(t, "sysctl", "-q", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of FRR at %s:\n%s", f.node.addr[0], f.log)
		}
		_ = os.RemoveAll(dir)
	})
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("log stdout debugging\nrouter bgp %d\n bgp router-id %s\n no bgp ebgp-requires-policy\n"+
		" no bgp default ipv4-unicast", routerAS, f.node.addr[0])
	for _, a := range us {
		line(" neighbor %s remote-as %d\n neighbor %[1]s timers connect 1\n neighbor %[1]s advertisement-interval 0", a,
			ours)
		if bfd {
			line(" neighbor %s bfd profile fast", a)
		}
		family := "ipv4"
		if a.Is6() {
			family = "ipv6"
		}
		line(" address-family %s unicast\n  neighbor %s activate\n  maximum-paths 8\n exit-address-family", family, a)
	}
	f.start("zebra", "log stdout\n", "-z", f.at("zserv"))
	f.start("bfdd", "log stdout\nbfd\n profile fast\n  detect-multiplier 3\n  receive-interval 300\n"+
		"  transmit-interval 300\n", "-z", f.at("zserv"), "--bfdctl", f.at("bfdd.sock"))
	f.start("bgpd", b.String(), "-z", f.at("zserv"), "-p", "179")
	return f
}

func (f *frr) at(name string) string { return filepath.Join(f.dir, name) }

// start starts a daemon, which ends with the test, and waits until it answers.
func (f *frr) start(daemon, config string, args ...string) {
	f.t.Helper()
	if err := os.WriteFile(f.at(daemon+".conf"), []byte(config), 0o600); err != nil {
		f.t.Fatal(err)
	}
	// A daemon insists on a group that the package's installation makes.
	groups := f.at("group")
	if err := os.WriteFile(groups, []byte("root:x:0:\nfrrvty:x:1:root\n"), 0o600); err != nil {
		f.t.Fatal(err)
	}
	args = append([]string{
		"unshare", "--mount", "sh", "-c", "mount --bind " + groups + ` /etc/group && exec "$0" "$@"`,
		filepath.Join(f.folder, daemon), "-u", "root", "-g", "root", "-P", "0", "-f", f.at(daemon + ".conf"), "-i",
		f.at(daemon + ".pid"), "--vty_socket", f.dir,
	}, args...)
	cmd := f.node.enter(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = f.log, f.log
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	wait.For(f.t, daemon+" of FRR", func() (bool, string) {
		_, err := os.Stat(f.at(daemon + ".vty"))
		return err == nil, f.log.String()
	})
}

// hops returns the next hops of a route in the router's kernel.
func (f *frr) hops(prefix string) (all []string) {
	family := "-4"
	if strings.Contains(prefix, ":") {
		family = "-6"
	}
	out, _ := f.node.enter("ip", family, "route", "show", strings.TrimSuffix(strings.TrimSuffix(prefix, "/32"), "/128"),
		"proto", "bgp").Output()
	words := strings.Fields(string(out))
	for i, w := range words[:max(0, len(words)-1)] {
		if w == "via" {
			all = append(all, words[i+1])
		}
	}
	slices.Sort(all)
	return all
}

// bfdUp says whether FRR's end of the BFD session with this address of ours is up. It asks as
// vtysh does, which insists on PAM: a command ends with a zero byte, the answer with three and
// the command's result.
func (f *frr) bfdUp(ours netip.Addr) (up bool, answer string) {
	f.t.Helper()
	conn, err := net.Dial("unix", f.at("bfdd.vty"))
	if err != nil {
		f.t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // nothing is written any more
	var text []byte
	in := bufio.NewReader(conn)
	for _, command := range []string{"enable", "show bfd peers json"} {
		if _, err = io.WriteString(conn, command+"\x00"); err != nil {
			f.t.Fatal(err)
		}
		if text, err = in.ReadBytes(0); err != nil {
			f.t.Fatal(err)
		}
		if _, err = in.Discard(3); err != nil {
			f.t.Fatal(err)
		}
	}
	text = bytes.TrimSuffix(text, []byte{0})
	var peers []struct{ Peer, Status string }
	if err = json.Unmarshal(text, &peers); err != nil {
		f.t.Fatalf("BFD peers of FRR: %v: %s", err, text)
	}
	return slices.ContainsFunc(peers, func(p struct{ Peer, Status string }) bool {
		return p.Peer == ours.String() && p.Status == "up"
	}), string(text)
}

func (f *frr) waitHops(what, prefix string, want ...netip.Addr) {
	f.t.Helper()
	var texts []string
	for _, a := range want {
		texts = append(texts, a.String())
	}
	slices.Sort(texts)
	wait.For(f.t, fmt.Sprintf("%s: %s via %q", what, prefix, texts), func() (bool, string) {
		got := f.hops(prefix)
		return slices.Equal(got, texts), fmt.Sprintf("got %q", got)
	})
}

// Two appliances announce an address. FRR spreads clients over those of the best class:
// the last resort has no part, as long as there is another, with FRR as it comes.
func TestFRRSpreadsClientsOverTheAppliancesThatAreFit(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	two := s.addrs(2)
	s.local(t, two)
	a, b := s.speaker(t, 65000, 0, usualPace), s.speakerAt(t, 65000, 0, usualPace, two[:]...)
	r := s.frr(t, 65000, false, s.us[0], two[0])
	up := Peer{Addr: r.node.addr[0], ASN: routerAS, Upstream: true}
	const address = "203.0.113.10/32"
	plain := Announcement{Prefix: netip.MustParsePrefix(address)}
	last := Announcement{Prefix: plain.Prefix, LastResort: true}
	fromA, fromB := up, up
	fromA.Local, fromB.Local = s.us[0], two[0]
	a.set(t, fromA)
	b.set(t, fromB)
	for _, step := range []struct {
		what string
		a, b []Announcement
		want []netip.Addr
	}{
		{"both are full", []Announcement{plain}, []Announcement{plain}, []netip.Addr{s.us[0], two[0]}},
		{"one drains", nil, []Announcement{plain}, []netip.Addr{two[0]}},
		{"it returns", []Announcement{plain}, []Announcement{plain}, []netip.Addr{s.us[0], two[0]}},
		{"one is spare", []Announcement{last}, []Announcement{plain}, []netip.Addr{two[0]}},
		{"both are spare", []Announcement{last}, []Announcement{last}, []netip.Addr{s.us[0], two[0]}},
		{"the full one is gone", []Announcement{last}, nil, []netip.Addr{s.us[0]}},
		{"nobody is fit", nil, nil, nil},
	} {
		a.announces(t, step.a...)
		b.announces(t, step.b...)
		r.waitHops(step.what, address, step.want...)
	}
	for _, sp := range []speaker{a, b} {
		if p := sp.peer(t, up.Addr); p.Flaps != 0 || p.State != established {
			t.Errorf("the session: %+v, want one without a loss", p)
		}
	}
}

func TestFRRNoticesALossByBFD(t *testing.T) {
	t.Parallel()
	for family, address := range []string{"203.0.113.10/32", "2001:db8::10/128"} {
		t.Run([]string{"IPv4", "IPv6"}[family], func(t *testing.T) {
			variant(t, family == 1)
			t.Parallel()
			aloneWithBFD(t)
			s := newSite(t)
			// Only BFD finds the loss: the hold time is longer than the test waits.
			sp := s.speaker(t, 65000, 10*time.Minute, usualPace)
			r := s.frr(t, 65000, true, s.us[family])
			up := Peer{
				Addr: r.node.addr[family], ASN: routerAS, Upstream: true,
				BFD: BFD{Interval: 300 * time.Millisecond, Multiplier: 3},
			}
			sp.announces(t, prefixes(address)...)
			sp.set(t, up)
			both := func(when string) {
				t.Helper()
				// An end notices no loss of a BFD session that is not up there. FRR begins its BFD session again when
				// BGP comes up, so all of this has to be true at once.
				wait.For(t, when+": BGP and BFD up at both ends, and a route", func() (bool, string) {
					p := sp.peer(t, up.Addr)
					there, how := r.bfdUp(s.us[family])
					hops := r.hops(address)
					return p.State == established && p.BFD == "up" && there && len(hops) == 1,
						fmt.Sprintf("here %s, BFD %s; at FRR %s; routes %v", p.State, p.BFD, how, hops)
				})
			}
			both("at first")
			run(t, "bridge", "link", "set", "dev", r.node.leg, "state", "0") // both ends keep their carrier
			wait.For(t, "no route", func() (bool, string) { return len(r.hops(address)) == 0, "" })
			sp.waitPeer(t, up.Addr, "lost", func(p PeerState) bool {
				return p.Flaps > 0 && p.BFD == "down" && p.Announced == nil
			})
			run(t, "bridge", "link", "set", "dev", r.node.leg, "state", "3")
			both("again")
		})
	}
}
