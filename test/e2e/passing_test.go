package e2e

import (
	"fmt"
	"strings"
	"testing"

	"sallyport/test/lab/world"
)

func TestTheAddressOfAStartingPodIsNoWarning(t *testing.T) {
	r := newTestbed(t, world.Options{Name: "passing", Workers: 1}, settings{})
	r.start()
	r.ready()
	const address = "172.16.171.99/32"
	route := func(act string) {
		t.Helper()
		out, err := r.Exec(t.Context(), "worker1", "ip", "route", act, address, "dev", "eth0", "metric", "100")
		if err != nil {
			t.Fatalf("ip route %s: %v\n%s", act, err, out)
		}
	}
	receives := func(want int) {
		t.Helper()
		r.eventually(fmt.Sprintf("worker1 announces %d prefixes", want), func() error {
			s, err := r.status()
			if err != nil {
				return err
			}
			for _, p := range s.Peers {
				if p.Node == "worker1" && p.Received == want {
					return nil
				}
			}
			return fmt.Errorf("peers %+v", s.Peers)
		})
	}
	const warning = "offer refused"
	for range 2 {
		route("add")
		receives(2)
		if s := r.mustStatus(); s.Refused.Total > 0 {
			t.Errorf("refused offers %+v, want none", s.Refused)
		}
		route("del")
		receives(1)
	}
	if log := r.log(); strings.Contains(log, warning) || !strings.Contains(log, "offer not routed") {
		t.Error("the log warns of an offer that has passed, or does not note it")
	}
	route("add")
	r.refuses(map[string]string{address: "wrong-length"}, "worker1")
	if log := r.log(); !strings.Contains(log, warning) {
		t.Error("the log does not warn of an offer that stays")
	}
	r.routed([]string{"172.16.49.64/26 via 192.168.50.22", "172.16.171.64/26 via 192.168.50.23"})
}
