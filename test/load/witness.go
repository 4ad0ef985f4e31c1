package load

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Count is the sum of the outcomes of Clients in some time.
type Count struct {
	Sent, Asked int           // requests that have an outcome: on connections of their own, on kept ones
	Failed      []Outcome     // requests without a good answer, on connections of their own
	Broken      []Outcome     // kept connections that ended before an answer
	Slowest     time.Duration // of all
}

// Losses returns an error that tells how many requests failed and how many kept connections broke:
// for each target when the first and the last of them began, and how the first ended.
func (c Count) Losses() error {
	if len(c.Failed)+len(c.Broken) == 0 {
		return nil
	}
	texts := []string{
		fmt.Sprintf("%d of %d requests failed, %d kept connections broke", len(c.Failed), c.Sent, len(c.Broken)),
	}
	for _, list := range [][]Outcome{c.Failed, c.Broken} {
		at := map[string][]Outcome{}
		for _, o := range list {
			at[o.Target] = append(at[o.Target], o)
		}
		for _, target := range slices.Sorted(maps.Keys(at)) {
			of := slices.SortedFunc(slices.Values(at[target]), func(a, b Outcome) int { return a.Began.Compare(b.Began) })
			texts = append(texts, fmt.Sprintf("%d to %s from %s to %s, first %s", len(of), target,
				of[0].Began.Format(clock), of[len(of)-1].Began.Format(clock), of[0]))
		}
	}
	return Bad(strings.Join(texts, "; "))
}

const clock = "15:04:05.000"

func (o Outcome) String() string {
	return strings.TrimSpace(o.Ends + " after " + o.Took.Round(time.Millisecond).String() + ": " + o.Err.Error())
}

// A Witness counts the outcomes of Clients. Each request counts for the period in which it began.
type Witness struct {
	end   func()
	ended chan struct{}
	noted chan struct{} // has room for one

	mu  sync.Mutex
	now *period
}

// A period is a time between two calls of During.
type period struct {
	count   Count
	pending sync.WaitGroup // requests without an outcome
}

// Watch starts clients. They ask until Stop, or until ctx ends.
func Watch(ctx context.Context, c Clients) *Witness {
	w := &Witness{ended: make(chan struct{}), noted: make(chan struct{}, 1), now: new(period)}
	ctx, w.end = context.WithCancel(ctx)
	go func() {
		defer close(w.ended)
		c.Run(ctx, w.begin)
	}()
	return w
}

// Stop ends the clients, and returns when the last has ended. It may be called again.
func (w *Witness) Stop() {
	w.end()
	<-w.ended
}

func (w *Witness) begin() (end func(Outcome)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.now
	p.pending.Add(1)
	return func(o Outcome) {
		w.note(p, o)
		p.pending.Done()
	}
}

func (w *Witness) note(p *period, o Outcome) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, bad := &p.count.Sent, &p.count.Failed
	if o.Kept {
		n, bad = &p.count.Asked, &p.count.Broken
	}
	if *n++; o.Err != nil {
		*bad = append(*bad, o)
	}
	p.count.Slowest = max(p.count.Slowest, o.Took)
	select {
	case w.noted <- struct{}{}:
	default:
	}
}

// answered returns how many requests of the present period have an outcome.
func (w *Witness) answered() (sent, asked int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now.count.Sent, w.now.count.Asked
}

// During calls do, and waits for more outcomes then: sent of them on connections of their own, asked
// of them on kept connections. It returns the count of all requests that began since the call before
// returned its count, when each of them has an outcome. A request that begins later counts for the
// next call. During waits for two minutes at most.
func (w *Witness) During(ctx context.Context, sent, asked int, do func() error) (Count, error) {
	if err := do(); err != nil {
		return Count{}, err
	}
	late := time.NewTimer(2 * time.Minute)
	defer late.Stop()
	beforeSent, beforeAsked := w.answered()
	var over chan struct{} // is closed when the period that ends has all outcomes
	var ends *period
	for {
		nowSent, nowAsked := w.answered()
		if ends == nil && nowSent >= beforeSent+sent && nowAsked >= beforeAsked+asked {
			w.mu.Lock()
			ends, w.now = w.now, new(period)
			w.mu.Unlock()
			over = make(chan struct{})
			go func() {
				ends.pending.Wait()
				close(over)
			}()
		}
		select {
		case <-ctx.Done():
			return Count{}, context.Cause(ctx)
		case <-late.C:
			return Count{}, fmt.Errorf("the clients have %d and %d outcomes more, want %d and %d",
				nowSent-beforeSent, nowAsked-beforeAsked, sent, asked)
		case <-over:
			return ends.count, nil
		case <-w.noted:
		}
	}
}
