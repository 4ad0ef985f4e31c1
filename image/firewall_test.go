package image

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// patience bounds every wait. It measures nothing.
const patience = 60 * time.Second

// A street is a machine with its firewall, and a neighbour. Each has a network
// namespace.
type street struct {
	t                  *testing.T
	machine, neighbour string
}

func newStreet(t *testing.T) street {
	s := street{t, fmt.Sprintf("spimg%dm", os.Getpid()), fmt.Sprintf("spimg%dn", os.Getpid())}
	for _, ns := range []string{s.machine, s.neighbour} {
		s.run("ip", "netns", "add", ns)
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", ns).Run() })
	}
	s.run("ip", "link", "add", "eth0", "netns", s.machine, "type", "veth", "peer", "name", "eth0", "netns", s.neighbour)
	for ns, addrs := range map[string][]string{
		s.machine:   {"192.168.50.21/24", "192.168.50.20/24", "10.0.0.21/24", "fd00:50::21/64"},
		s.neighbour: {"192.168.50.22/24", "192.168.50.99/24", "10.0.0.99/24", "fd00:50::22/64"},
	} {
		s.run("ip", "-n", ns, "link", "set", "lo", "up")
		s.run("ip", "-n", ns, "link", "set", "eth0", "up")
		for _, a := range addrs {
			args := []string{"-n", ns, "addr", "add", a, "dev", "eth0"}
			if strings.Contains(a, "::") {
				args = append(args, "nodad")
			}
			s.run("ip", args...)
		}
	}
	return s
}

func (s street) run(program string, args ...string) string {
	s.t.Helper()
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// house returns the machine.
func (s street) house() Machine {
	return Machine{Start: func(ctx context.Context, stdin, program string, args ...string) error {
		cmd := exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", s.machine, program}, args...)...)
		cmd.Stdin = strings.NewReader(stdin)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}}
}

// load loads a ruleset into the machine, with a counter of dropped packets.
func (s street) load(ruleset string) {
	s.t.Helper()
	ruleset += "add rule inet sallyport input meta l4proto { tcp, udp } counter\n" // hosts ask for routers, too
	if err := s.house().start(s.t.Context(), ruleset, "nft", "-f", "-"); err != nil {
		s.t.Fatal(err)
	}
}

var counted = regexp.MustCompile(`counter packets (\d+)`)

func (s street) dropped() string {
	s.t.Helper()
	return counted.FindString(s.run("ip", "netns", "exec", s.machine, "nft", "list", "chain", "inet", "sallyport",
		"input"))
}

// reaches reports whether a packet from a namespace gets an answer, if only a reset. If
// not, the firewall has dropped it.
func (s street) reaches(from, how string) bool {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	before := s.dropped()
	cmd := exec.CommandContext(ctx, "ip", "netns", "exec", from, "bash", "-c", how)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			if err != nil && !strings.Contains(out.String(), "refused") {
				s.t.Errorf("%s: %v: %s", how, err, out.String())
			}
			return true
		case <-tick.C:
		}
		if s.dropped() != before {
			cancel()
			s.t.Logf("%s: dropped, then %v", how, <-ended)
			return false
		}
	}
}

func tcp(from, to string) string {
	at := netip.MustParseAddrPort(to)
	if from == "" {
		return fmt.Sprintf("exec 3<>/dev/tcp/%s/%d", at.Addr(), at.Port())
	}
	// Bash cannot choose the address it comes from.
	return fmt.Sprintf("ip route replace %s dev eth0 src %s && exec 3<>/dev/tcp/%s/%d", at.Addr(), from, at.Addr(),
		at.Port())
}

func TestOnlyWhatTheFileSaysIsOpen(t *testing.T) {
	s := newStreet(t)
	s.load(firewall(machines(t)["static"]))
	for name, row := range map[string]struct {
		how  string
		open bool
	}{
		"http on any address":              {tcp("", "192.168.50.20:80"), true},
		"http by IPv6":                     {tcp("", "[fd00:50::21]:80"), true},
		"https on its address":             {tcp("", "192.168.50.21:443"), true},
		"https on another":                 {tcp("", "192.168.50.20:443"), false},
		"https by IPv6":                    {tcp("", "[fd00:50::21]:443"), true},
		"status on the management address": {tcp("", "10.0.0.21:9090"), true},
		"status on another":                {tcp("", "192.168.50.21:9090"), false},
		"SSH on the management address":    {tcp("", "10.0.0.21:22"), true},
		"SSH on another":                   {tcp("", "192.168.50.21:22"), false},
		"BGP from nobody that is known":    {tcp("192.168.50.22", "192.168.50.21:179"), false},
		"BGP by IPv6 from nobody":          {tcp("", "[fd00:50::21]:179"), false},
		"anything else":                    {tcp("", "192.168.50.21:8080"), false},
		"UDP that answers nothing":         {"echo >/dev/udp/192.168.50.21/5355; exec tail -f /dev/null", false},
		"a ping":                           {"ping -c 1 -W 60 192.168.50.21", true},
		"a ping by IPv6":                   {"ping -c 1 -W 60 fd00:50::21", true},
	} {
		if got := s.reaches(s.neighbour, row.how); got != row.open {
			t.Errorf("%s (%s): got open %v, want %v", name, row.how, got, row.open)
		}
	}
	for name, how := range map[string]string{
		"a ping":           "ping -c 1 -W 60 192.168.50.22",
		"a connection":     tcp("", "192.168.50.22:1234"),
		"another, by IPv6": tcp("", "[fd00:50::22]:1234"),
	} {
		if !s.reaches(s.machine, how) {
			t.Errorf("the answer to %s from the machine is dropped", name)
		}
	}
}

func TestWithoutAFileTheStatusPortAloneIsOpen(t *testing.T) {
	s := newStreet(t)
	s.load(firewall(nil))
	for port, want := range map[string]bool{"9090": true, "80": false, "443": false, "22": false, "179": false} {
		if got := s.reaches(s.neighbour, tcp("", "192.168.50.21:"+port)); got != want {
			t.Errorf("port %s: got open %v, want %v", port, got, want)
		}
	}
}

func TestBGPIsOpenForThePeersThatAreKnown(t *testing.T) {
	s := newStreet(t)
	ruleset := firewall(machines(t)["static"])
	s.load(ruleset)
	allow := func(peers ...string) {
		t.Helper()
		var addrs []netip.Addr
		for _, p := range peers {
			addrs = append(addrs, netip.MustParseAddr(p))
		}
		if err := s.house().Admit(t.Context(), Admission{Peers: addrs}); err != nil {
			t.Fatal(err)
		}
	}
	open := func(when string, four, other, six bool) {
		t.Helper()
		for how, want := range map[string]bool{
			tcp("192.168.50.22", "192.168.50.21:179"): four, tcp("192.168.50.99", "192.168.50.21:179"): other,
			tcp("", "[fd00:50::21]:179"): six,
		} {
			if got := s.reaches(s.neighbour, how); got != want {
				t.Errorf("%s: %s: got open %v, want %v", when, how, got, want)
			}
		}
	}
	open("before any is known", false, false, false)
	allow("192.168.50.22", "fd00:50::22", "192.168.50.23")
	open("two are known", true, false, true)
	s.load(ruleset)
	open("the firewall is loaded again", true, false, true)
	allow("192.168.50.99")
	open("others are known", false, true, false)
	allow()
	open("none is known", false, false, false)
}

func TestTheClustersOpenPortsButNoneOfTheMachine(t *testing.T) {
	s := newStreet(t)
	s.load(firewall(machines(t)["static"]))
	if err := s.house().Admit(t.Context(), Admission{
		TCP: []uint16{22, 179, 3306, 9090}, UDP: []uint16{443},
		Services: []netip.AddrPort{
			netip.MustParseAddrPort("192.168.50.21:5432"),
			netip.MustParseAddrPort("203.0.113.5:5433"), netip.MustParseAddrPort("[2001:db8::5]:5432"),
		},
	}); err != nil {
		t.Fatal(err)
	}
	for port, want := range map[string]bool{
		"3306": true, "3307": false, "5432": true, "5433": false, "22": false,
		"179": false, "9090": false,
	} {
		if got := s.reaches(s.neighbour, tcp("", "192.168.50.21:"+port)); got != want {
			t.Errorf("port %s: got open %v, want %v", port, got, want)
		}
	}
	for port, want := range map[string]bool{"443": true, "444": false} {
		// Where nobody listens, the second one hears of it.
		how := "exec 3<>/dev/udp/192.168.50.21/" + port +
			"; while echo >&3; do :; done 2>/dev/null; echo refused; exit 1"
		if got := s.reaches(s.neighbour, how); got != want {
			t.Errorf("port %s of UDP: got open %v, want %v", port, got, want)
		}
	}
}
