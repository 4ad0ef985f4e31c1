package appliance

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/appliance/page"
	"sallyport/haproxy"
)

const (
	sampleEvery = 10 * time.Second
	samplesKept = 360 // an hour
	pointsShown = 120 // of a plot: each is the mean of three samples
)

// A sample is the load of the appliance during ten seconds.
type sample struct {
	requests, failed float64 // per second; NaN: not known
	response         float64 // milliseconds; NaN: there was no request
	open             float64 // servers
}

// samples holds in memory the samples of the last hour, and the last sample of each backend. The
// zero value is ready to use.
type samples struct {
	mu   sync.Mutex
	ring [samplesKept]sample
	n    int // samples taken since the start

	rates rates // of the backends

	requests, failed atomic.Uint64 // since the start, over all reloads of HAProxy
}

func (s *samples) add(x sample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ring[s.n%samplesKept] = x
	s.n++
}

// run takes samples until ctx ends. It reads HAProxy's statistics beside the loop, which
// does not wait for it.
func (s *samples) run(ctx context.Context, read func(context.Context) (haproxy.Load, error), open func() int) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		load, err := read(ctx)
		switch {
		case err != nil: // the loop reports an HAProxy that does not answer
			s.add(sample{math.NaN(), math.NaN(), math.NaN(), float64(open())})
			s.rates.forget()
		case load.During > 0:
			s.requests.Add(load.Requests)
			s.failed.Add(load.Failed)
			s.add(sampleOf(load, open()))
			s.rates.set(load, time.Now())
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func sampleOf(load haproxy.Load, open int) sample {
	x := sample{
		float64(load.Requests) / load.During.Seconds(), float64(load.Failed) / load.During.Seconds(),
		math.NaN(), float64(open),
	}
	if load.Response >= 0 {
		x.response = milliseconds(load.Response)
	}
	return x
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// plots draws the samples, or nothing while they are too few for a curve.
func (s *samples) plots() []page.Plot {
	s.mu.Lock()
	defer s.mu.Unlock()
	const mean = samplesKept / pointsShown
	if s.n <= mean { // a curve has two points
		return nil
	}
	plot := func(title, unit string, of func(sample) float64) page.Plot {
		p := page.Plot{Title: title, Unit: unit, Every: mean * sampleEvery}
		// Groups of three begin at the start of the process, so that a point that is
		// drawn stays as it is.
		for from := max(0, s.n-samplesKept) / mean * mean; from < s.n; from += mean {
			sum, known := 0.0, 0
			for i := max(from, s.n-samplesKept); i < min(from+mean, s.n); i++ {
				if v := of(s.ring[i%samplesKept]); !math.IsNaN(v) {
					sum += v
					known++
				}
			}
			p.Points = append(p.Points, sum/float64(known)) // NaN if none is known
		}
		return p
	}
	all := []page.Plot{
		plot("requests", "/s", func(x sample) float64 { return x.requests }),
		plot("failed (5xx)", "/s", func(x sample) float64 { return x.failed }),
		plot("response time", "ms", func(x sample) float64 { return x.response }),
		plot("open servers", "", func(x sample) float64 { return x.open }),
	}
	for i, v := range all[3].Points {
		all[3].Points[i] = math.Round(v)
	}
	return all
}
