package main

import (
	"fmt"
	"testing"
	"time"

	view "sallyport/appliance/status"
)

// theClockJumps sets the machine's clock an hour ahead, back, an hour behind and back
// again. Meanwhile a client sends one request after another. None fails, no session ends,
// and HAProxy does not reload.
func (p *place) theClockJumps(t *testing.T) {
	vm := p.on(t, p.configured(t))
	p.serves(t, vm)
	before := p.ready(t, vm)
	asked := 0
	for _, jump := range []string{"1 hour", "1 hour ago", "1 hour ago", "1 hour"} {
		if out, err := vm.Run(t.Context(), "/usr/bin/date", "--set="+jump); err != nil {
			t.Fatalf("%s: %s %v", jump, out, err)
		}
		// Longer than the hold time of a session, and than the timeout of a silent watch
		// of the API server.
		for began := time.Now(); time.Since(began) < 20*time.Second; asked++ {
			if _, err := p.ask(t.Context(), "http://192.168.50.21/", "-H", "Host: test.local", "--max-time",
				"10"); err != nil {
				t.Errorf("request %d, after %q: %v", asked, jump, err)
			}
		}
	}
	after := p.ready(t, vm)
	if after.HAProxy.Pid != before.HAProxy.Pid || after.HAProxy.Worker != before.HAProxy.Worker {
		t.Errorf("HAProxy was %d with worker %d, and is %d with %d", before.HAProxy.Pid, before.HAProxy.Worker,
			after.HAProxy.Pid, after.HAProxy.Worker)
	}
	for i, peer := range after.Peers {
		if peer.State != "Established" || peer.Flaps != before.Peers[i].Flaps {
			t.Errorf("the session with %s is %s, after %d losses", peer.Addr, peer.State, peer.Flaps)
		}
	}
	figure(t, "requests while the clock jumps by an hour, none of them lost", asked)
}

// ready returns the status page once the machine is ready.
func (p *place) ready(t *testing.T, vm *VM) (s view.Status) {
	t.Helper()
	p.until(t, vm, "it is ready", func() error {
		var err error
		if s, err = p.status(t); err == nil && (!s.Ready || len(s.Peers) == 0) {
			err = fmt.Errorf("not ready: %q", s.NotReady)
		}
		return err
	})
	return s
}
