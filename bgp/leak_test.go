package bgp

import (
	"bytes"
	"runtime/pprof"
	"testing"
	"time"
)

// goroutines counts those that stand in a function.
func goroutines(t *testing.T, in string) int {
	t.Helper()
	var all bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&all, 2); err != nil {
		t.Fatal(err)
	}
	return bytes.Count(all.Bytes(), []byte(in))
}

func TestALostSessionLeavesNothingBehind(t *testing.T) {
	s := newSite(t)
	sp := s.speaker(t, 65000, time.Minute, quick)
	r := s.raw(t, sp, 66)
	sp.set(t, Peer{Addr: r.addr, ASN: 65000})
	before := goroutines(t, ").infiniteBuffer(")
	for range 30 {
		hangUp(t, r.session(t))
	}
	// GoBGP alone leaves about twenty.
	if after := goroutines(t, ").infiniteBuffer("); after > before+3 {
		t.Errorf("of 30 sessions %d goroutines are left", after-before)
	}
}
