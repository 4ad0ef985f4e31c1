package load

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A request that ends badly counts for the period in which it began. It may begin while During calls
// its function, or after that. It does not count for the next period.
func TestAWitnessCountsARequestForThePeriodInWhichItBegan(t *testing.T) {
	for name, waits := range map[string]bool{"while": true, "after": false} {
		t.Run(name, func(t *testing.T) {
			var bad atomic.Bool
			began, answered := make(chan struct{}), make(chan struct{})
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if bad.CompareAndSwap(true, false) {
					close(began)
					<-answered
					w.WriteHeader(503)
				}
			}))
			defer s.Close()
			w := Watch(t.Context(), Clients{
				Targets: []string{s.Listener.Addr().String()}, Host: "test.local", New: time.Millisecond, Kept: 2,
				Every: time.Millisecond,
			})
			defer w.Stop()
			good, err := w.During(t.Context(), 10, 10, func() error { return nil })
			if err != nil || good.Sent < 10 || good.Asked < 10 || good.Losses() != nil {
				t.Errorf("got %+v, %v, want ten of each and no loss", good, err)
			}
			count, err := w.During(t.Context(), 10, 10, func() error {
				// Others are answered long before this one.
				go func() {
					<-began
					time.AfterFunc(50*time.Millisecond, func() { close(answered) })
				}()
				bad.Store(true)
				if waits {
					<-began
				}
				return nil
			})
			if err != nil || len(count.Failed)+len(count.Broken) != 1 || count.Losses() == nil {
				t.Errorf("got %+v, %v, want one loss", count, err)
			}
			if next, err := w.During(t.Context(), 10, 10, func() error { return nil }); err != nil || next.Losses() != nil {
				t.Errorf("then got %v, %v, want no loss", next.Losses(), err)
			}
		})
	}
}

func TestNothingThatIsDueIsLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		var late []time.Duration
		Pace(ctx, 10*time.Millisecond, func(n int, due time.Time) {
			if want := began.Add(time.Duration(n) * 10 * time.Millisecond); !due.Equal(want) {
				t.Errorf("number %d is due at %s, want %s", n, due, want)
			}
			late = append(late, time.Since(due))
			if n == 1 {
				time.Sleep(35 * time.Millisecond) //nolint:forbidigo // the time of synctest
			}
			if n == 6 {
				cancel()
			}
		})
		want := []time.Duration{0, 0, 25, 15, 5, 0, 0}
		for n := range want {
			if late[n] != want[n]*time.Millisecond {
				t.Fatalf("they come late by %s, want ms %d", late, want)
			}
		}
	})
}
