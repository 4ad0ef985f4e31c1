package bgp

import (
	"bytes"
	"fmt"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"sallyport/test/wait"
)

// goroutines counts the goroutines that are in a function.
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
	// Without settle GoBGP leaves about twenty.
	if after := goroutines(t, ").infiniteBuffer("); after > before+3 {
		t.Errorf("of 30 sessions %d goroutines are left", after-before)
	}
}

func TestAPeerThatIsDialledInVainLeavesNothingBehind(t *testing.T) {
	s := newSite(t)
	p := usualPace
	p.renew, p.dial, p.tick = 10*time.Millisecond, 20*time.Millisecond, 10*time.Millisecond
	sp := s.speakerAt(t, 65000, time.Minute, p)
	at := s.addrs(66)[0]
	before := runtime.NumGoroutine()
	sp.set(t, Peer{Addr: at, ASN: 65000, Active: true})
	wait.For(t, "fifty fresh peers", func() (bool, string) {
		n := strings.Count(sp.log.String(), "Delete a peer configuration")
		return n >= 50, fmt.Sprint(n)
	})
	sp.set(t)
	wait.For(t, "no more goroutines than before", func() (bool, string) {
		n := runtime.NumGoroutine()
		return n <= before+5, fmt.Sprintf("%d before, %d now", before, n)
	})
}
