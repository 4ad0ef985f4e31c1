package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sallyport/test/lab/world"
)

// Calico 3.32 announces the address of a new pod for a moment. The lab is as Calico 3.28, which does
// not, so BIRD gets a configuration that does.
func TestTheAddressOfAStartingPodIsNoWarning(t *testing.T) {
	t.Parallel()
	const block, address, warning = "172.16.171.64/26", "172.16.171.99/32", "offer refused"
	r := newTestbed(t, world.Options{Name: "passing", Workers: 1}, settings{})
	r.must(r.ClaimBlocks(t.Context(), "worker1"))
	r.start()
	r.ready()
	announces := func(prefixes ...string) {
		t.Helper()
		r.announce(r.host("worker1"), prefixes...)
		r.eventually(fmt.Sprintf("worker1 announces %d prefixes", len(prefixes)), func() error {
			s, err := r.status()
			if err != nil {
				return err
			}
			for _, p := range s.Peers {
				if p.Node == "worker1" && p.Received == len(prefixes) && p.EndOfRIB {
					return nil
				}
			}
			return fmt.Errorf("peers %+v", s.Peers)
		})
	}
	announces(block)
	passed := true // each offer ended before it counts as one that stays, which a busy machine may miss
	for range 2 {
		began := time.Now()
		announces(block, address)
		s := r.mustStatus()
		announces(block)
		if passed = passed && time.Since(began) < 9*time.Second; passed && s.Refused.Total > 0 {
			t.Errorf("refused offers %+v, want none", s.Refused)
		}
	}
	r.eventually("the log notes the offer", func() error { return missing("the log", r.log(), "offer not routed") })
	if passed && strings.Contains(r.log(), warning) {
		t.Error("the log warns of an offer that has passed")
	}
	announces(block, address)
	r.refuses(map[string]string{address: "wrong-length"}, "worker1")
	r.eventually("the log warns of an offer that stays", func() error { return missing("the log", r.log(), warning) })
	r.routed([]string{block + " via 192.168.50.23"})
}
