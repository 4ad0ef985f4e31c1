package address

import (
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A client behind NAT uses a port again that another appliance has not forgotten yet.
func TestAPortThatIsUsedAgainFindsItsNewConnection(t *testing.T) {
	w := newWorld(t, 2)
	w.ring(1, 2)
	w.route(1)
	again := func(_, _ string, raw syscall.RawConn) (err error) {
		return errors.Join(raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		}), err)
	}
	open := func() (all []net.Conn) {
		for _, to := range []string{service4, service6} {
			w.client.do(func() {
				d := net.Dialer{LocalAddr: &net.TCPAddr{Port: 40000}, Control: again}
				c, err := d.DialContext(t.Context(), "tcp", net.JoinHostPort(to, "80"))
				must(t, err)
				t.Cleanup(func() { _ = c.Close() })
				all = append(all, c)
			})
		}
		return all
	}
	g := w.gates[0]
	old := open()
	wantUnbroken(t, "before", old)
	g.mu.Lock()
	for _, c := range g.conns { // the server closes first
		must(t, c.Close())
	}
	g.mu.Unlock()
	for _, c := range old {
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the old connection: got %v, want its end", err)
		}
		must(t, c.Close())
	}
	g.run("until [ $(ss -Htan state time-wait | wc -l) = 2 ]; do :; done")

	w.route(2)
	conns := open()
	wantUnbroken(t, "after the move", conns)
	w.route(1)
	g.do(func() {
		n, err := Forget(addrs(service4, service6, "192.0.2.1"))
		must(t, err)
		if n != 2 {
			t.Errorf("Forget: got %d connections, want 2", n)
		}
	})
	if got := strings.TrimSpace(g.run("ss -Htan state time-wait")); got != "" {
		t.Errorf("after Forget the kernel still has\n%s", got)
	}
	wantUnbroken(t, "after it moved back", conns)
}

func TestAConnectionToAnotherAddressIsNotForgotten(t *testing.T) {
	w := newWorld(t, 2)
	w.route(1)
	conns := w.connect(4, 0)
	g := w.gates[0]
	g.mu.Lock()
	for _, c := range g.conns {
		must(t, c.Close())
	}
	g.mu.Unlock()
	for _, c := range conns {
		_, _ = c.Read(make([]byte, 1))
		must(t, c.Close())
	}
	g.run("until [ $(ss -Htan state time-wait | wc -l) = 4 ]; do :; done")
	open := w.connect(2, 0)
	g.do(func() {
		n, err := Forget(addrs(service4))
		must(t, err)
		if n != 2 {
			t.Errorf("Forget: got %d connections, want the 2 of IPv4", n)
		}
	})
	wantUnbroken(t, "afterwards", open)
}
