package load

import (
	"context"
	"fmt"
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

// Losses returns an error that tells how many requests failed and how many kept connections broke,
// with the first of each.
func (c Count) Losses() error {
	if len(c.Failed)+len(c.Broken) == 0 {
		return nil
	}
	texts := []string{
		fmt.Sprintf("%d of %d requests failed, %d kept connections broke", len(c.Failed), c.Sent, len(c.Broken)),
	}
	for _, list := range [][]Outcome{c.Failed, c.Broken} {
		if len(list) > 0 {
			texts = append(texts, list[0].String())
		}
	}
	return Bad(strings.Join(texts, "; "))
}

func (o Outcome) String() string {
	return fmt.Sprint(o.Began.Format(time.TimeOnly), " ", o.Ends, ": ", o.Err)
}

// A Witness counts the outcomes of Clients.
type Witness struct {
	end   func()
	ended chan struct{}
	noted chan struct{} // has room for one

	mu      sync.Mutex
	count   Count
	pending *sync.WaitGroup // requests without an outcome that began in the present time
}

// Watch starts clients. They ask until Stop, or until ctx ends.
func Watch(ctx context.Context, c Clients) *Witness {
	w := &Witness{ended: make(chan struct{}), noted: make(chan struct{}, 1), pending: new(sync.WaitGroup)}
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
	pending := w.pending
	pending.Add(1)
	return func(o Outcome) {
		w.note(o)
		pending.Done()
	}
}

func (w *Witness) note(o Outcome) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, bad := &w.count.Sent, &w.count.Failed
	if o.Kept {
		n, bad = &w.count.Asked, &w.count.Broken
	}
	if *n++; o.Err != nil {
		*bad = append(*bad, o)
	}
	w.count.Slowest = max(w.count.Slowest, o.Took)
	select {
	case w.noted <- struct{}{}:
	default:
	}
}

// Now returns the count since the clients started, or since the last call of During began.
func (w *Witness) Now() Count {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count
}

// During counts anew, calls do, and waits until each request that began meanwhile has an outcome. It
// then waits for more outcomes: sent of them on connections of their own, asked of them on kept
// connections. It returns the count. It waits for two minutes at most.
func (w *Witness) During(ctx context.Context, sent, asked int, do func() error) (Count, error) {
	w.mu.Lock()
	w.count = Count{}
	w.mu.Unlock()
	if err := do(); err != nil {
		return w.Now(), err
	}
	w.mu.Lock()
	after, pending := w.count, w.pending
	w.pending = new(sync.WaitGroup)
	w.mu.Unlock()
	over := make(chan struct{})
	go func() {
		pending.Wait()
		close(over)
	}()
	late := time.NewTimer(2 * time.Minute)
	defer late.Stop()
	for waits := over; ; {
		now := w.Now()
		if waits == nil && now.Sent >= after.Sent+sent && now.Asked >= after.Asked+asked {
			return now, nil
		}
		select {
		case <-ctx.Done():
			return now, context.Cause(ctx)
		case <-late.C:
			return now, fmt.Errorf("the clients have %d and %d outcomes more, want %d and %d", now.Sent-after.Sent,
				now.Asked-after.Asked, sent, asked)
		case <-waits:
			waits = nil
		case <-w.noted:
		}
	}
}
