package haproxy

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
)

// Reading the sockets of the machine costs as much as it has connections, and changes of all namespaces
// wait for the answer about the ports of one.
func TestManyPortsAreJudgedByOneReading(t *testing.T) {
	dir := t.TempDir()
	p, err := New(Options{Binary: binaries(t)[0], Dir: dir + "/etc", RunDir: dir + "/run"})
	if err != nil {
		t.Fatal(err)
	}
	const sockets, ports = 300, 500
	var taken netip.AddrPort
	for range sockets {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		taken = netip.MustParseAddrPort(l.Addr().String())
	}
	judge := func(n int) (verdicts Verdicts) {
		verdicts = make(Verdicts)
		var questions []Question
		for i := range n {
			at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)}), taken.Port())
			questions = append(questions, FreeListener(at))
		}
		questions[n-1] = FreeListener(taken)
		if err := p.judgePorts(questions, verdicts); err != nil {
			t.Fatal(err)
		}
		return verdicts
	}
	one := testing.AllocsPerRun(1, func() { judge(1) })
	if many := testing.AllocsPerRun(1, func() { judge(ports) }); many > 2*one+20*ports {
		t.Errorf("%d ports take %.0f allocations, and one takes %.0f", ports, many, one)
	}
	verdicts := judge(ports)
	if got, want := verdicts[FreeListener(taken).Part()], fmt.Sprintf("in use by haproxy.test (pid %d)", os.Getpid()); got !=
		Refused(want) {
		t.Errorf("got %v, want %q", got, want)
	}
	for part, verdict := range verdicts {
		if part != FreeListener(taken).Part() && verdict != Good {
			t.Errorf("%v: got %v", part, verdict)
		}
	}
}
