package status

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/haproxy"
)

const (
	SampleEvery = 10 * time.Second
	SamplesKept = 360 // an hour
	pointsShown = 120 // of a plot: each is the mean of three samples
)

// A Sample is the load of the appliance during ten seconds.
type Sample struct {
	Requests, Failed float64 // per second; NaN: not known
	Response         float64 // milliseconds; NaN: there was no request
	Open             float64 // servers
}

// Samples holds in memory the samples of the last hour, and the last sample of each backend. The
// zero value is ready to use.
type Samples struct {
	mu   sync.Mutex
	ring [SamplesKept]Sample
	n    int // samples taken since the start

	Rates Rates // of the backends

	Requests, Failed atomic.Uint64 // since the start, over all reloads of HAProxy
}

func (s *Samples) Add(x Sample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ring[s.n%SamplesKept] = x
	s.n++
}

// Run takes samples until ctx ends. It reads HAProxy's statistics beside the loop, which
// does not wait for it.
func (s *Samples) Run(ctx context.Context, read func(context.Context) (haproxy.Load, error), open func() int) {
	tick := time.NewTicker(SampleEvery)
	defer tick.Stop()
	for {
		load, err := read(ctx)
		switch {
		case err != nil: // the loop reports an HAProxy that does not answer
			s.Add(Sample{Requests: math.NaN(), Failed: math.NaN(), Response: math.NaN(), Open: float64(open())})
			s.Rates.Forget()
		case load.During > 0:
			s.Requests.Add(load.Requests)
			s.Failed.Add(load.Failed)
			s.Add(sampleOf(load, open()))
			s.Rates.Set(load, time.Now())
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func sampleOf(load haproxy.Load, open int) Sample {
	x := Sample{
		Requests: float64(load.Requests) / load.During.Seconds(), Failed: float64(load.Failed) / load.During.Seconds(),
		Response: math.NaN(), Open: float64(open),
	}
	if load.Response >= 0 {
		x.Response = milliseconds(load.Response)
	}
	return x
}

// A curve is the course of one value over the last hour.
type curve struct {
	Title  string
	Unit   string
	Points []float64 // the oldest first; NaN where the value is not known
	Span   string    // the time from the first point to the last, in words
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Curves returns the samples as curves, or nothing while they are too few for a curve.
func (s *Samples) Curves() []curve {
	s.mu.Lock()
	defer s.mu.Unlock()
	const mean = SamplesKept / pointsShown
	if s.n <= mean { // a curve has two points
		return nil
	}
	draw := func(title, unit string, of func(Sample) float64) curve {
		p := curve{Title: title, Unit: unit}
		// Groups of three begin at the start of the process, so that a point that is
		// drawn stays as it is.
		for from := max(0, s.n-SamplesKept) / mean * mean; from < s.n; from += mean {
			sum, known := 0.0, 0
			for i := max(from, s.n-SamplesKept); i < min(from+mean, s.n); i++ {
				if v := of(s.ring[i%SamplesKept]); !math.IsNaN(v) {
					sum += v
					known++
				}
			}
			p.Points = append(p.Points, sum/float64(known)) // NaN if none is known
		}
		p.Span = Lasting(time.Duration(len(p.Points)) * mean * SampleEvery)
		return p
	}
	all := []curve{
		draw("requests", "/s", func(x Sample) float64 { return x.Requests }),
		draw("failed (5xx)", "/s", func(x Sample) float64 { return x.Failed }),
		draw("response time", "ms", func(x Sample) float64 { return x.Response }),
		draw("open servers", "", func(x Sample) float64 { return x.Open }),
	}
	for i, v := range all[3].Points {
		all[3].Points[i] = math.Round(v)
	}
	return all
}
