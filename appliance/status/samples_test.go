package status

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"sallyport/haproxy"
)

func TestSamplesAreRatesOverTheTimeSinceTheReadingBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var s Samples
		loads := []haproxy.Load{
			{Response: -1},
			{During: 10 * time.Second, Requests: 200, Response: 5 * time.Millisecond},
			{During: 10 * time.Second, Requests: 50, Failed: 10, Response: -1},
			{},
			{During: 20 * time.Second, Requests: 20, Response: -1},
		}
		reads := 0
		go s.Run(ctx, func(context.Context) (haproxy.Load, error) {
			reads++
			if reads == 4 {
				return haproxy.Load{}, errors.New("no answer")
			}
			return loads[reads-1], nil
		}, func() int { return 7 })
		time.Sleep(4*SampleEvery + time.Second) //nolint:forbidigo // synctest's clock
		cancel()
		synctest.Wait()
		want := []Sample{
			{20, 0, 5, 7},
			{5, 1, math.NaN(), 7},
			{math.NaN(), math.NaN(), math.NaN(), 7},
			{1, 0, math.NaN(), 7},
		}
		if s.n != len(want) {
			t.Fatalf("%d samples, want %d", s.n, len(want))
		}
		if requests, failed := s.Requests.Load(), s.Failed.Load(); requests != 270 || failed != 10 {
			t.Errorf("%d requests in all, %d failed; want 270 and 10", requests, failed)
		}
		same := func(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) }
		for i, w := range want {
			if g := s.ring[i]; !same(g.Requests, w.Requests) || !same(g.Failed, w.Failed) ||
				!same(g.Response, w.Response) || g.Open != w.Open {
				t.Errorf("sample %d: got %v, want %v", i, g, w)
			}
		}
	})
}

func TestPlotsShowTheLastHour(t *testing.T) {
	var s Samples
	for i := range 2 * SamplesKept {
		s.Add(Sample{Requests: float64(i), Response: math.NaN()})
	}
	all := s.Curves()
	if len(all) != 4 || len(all[0].Points) != pointsShown {
		t.Fatalf("%d plots", len(all))
	}
	if first, last := all[0].Points[0], all[0].Points[pointsShown-1]; first != SamplesKept+1 ||
		last != 2*SamplesKept-2 {
		t.Errorf("from %v to %v", first, last)
	}
	if !math.IsNaN(all[2].Points[0]) {
		t.Error("a response time without requests is known")
	}
}

func TestATimeIsWrittenByItsLargestUnit(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-1: "0 s", 3 * time.Second: "a few seconds", 59 * time.Second: "50 s",
		61 * time.Second: "1 min", 3 * time.Hour: "3 h", 50 * time.Hour: "2 days",
	} {
		if got := Lasting(d); got != want {
			t.Errorf("%d: got %s, want %s", d, got, want)
		}
	}
}
