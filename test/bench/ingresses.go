package main

import (
	"context"
	"fmt"
	"time"

	"sallyport/test/rig"
)

// The rows that may make HAProxy reload come last: each reload leaves a worker that goes on
// checking every server until its connections end.
var ingressRows = []row{
	{7, "Ingress for a known Service → first 200", small | large, func(ctx context.Context, b *bench) error {
		return newIngresses(ctx, b, "Ingress → first 200, known Service", false)
	}},
	{8, "Ingress and a new Service → first 200", small | large, func(ctx context.Context, b *bench) error {
		return newIngresses(ctx, b, "Ingress → first 200, new Service", true)
	}},
	{9, "500 new Services in a burst", large, burst},
}

// newIngresses adds Ingresses one by one and waits for the first 200 of each.
func newIngresses(ctx context.Context, b *bench, what string, backend bool) error {
	before, err := b.Status(ctx)
	if err != nil {
		return err
	}
	n := max(b.samples/10, 3)
	var took []time.Duration
	for i := range n {
		id := fmt.Sprintf("new-%d-%t-%d", b.size, backend, i)
		service := name(0)
		if backend {
			service = id
			if err := b.addService(ctx, id); err != nil {
				return err
			}
		}
		if err := b.addIngress(ctx, id, id+".bench", service); err != nil {
			return err
		}
		began := time.Now()
		at, err := b.served(id + ".bench")
		if err != nil {
			return err
		}
		took = append(took, at.Sub(began))
	}
	after, err := b.Status(ctx)
	if err != nil {
		return err
	}
	b.add(value(what+", p50", percentile(took, 0.5), "ms").atMost(20))
	b.add(value(fmt.Sprintf("%s: reloads for %d of them", what, n),
		float64(after.HAProxy.Reloads-before.HAProxy.Reloads), "").atMost(0))
	return nil
}

// burst adds 500 Services, each with an Ingress, as fast as the API takes them. Its time counts
// from the last commit: before that, it is the API's.
func burst(ctx context.Context, b *bench) error {
	before, err := b.Status(ctx)
	if err != nil {
		return err
	}
	const count = 500
	hosts := make([]string, count)
	began := time.Now()
	err = parallel(count, func(i int) error {
		id := fmt.Sprintf("burst-%d", i)
		hosts[i] = id + ".bench"
		if err := b.addService(ctx, id); err != nil {
			return err
		}
		return b.addIngress(ctx, id, hosts[i], id)
	})
	if err != nil {
		return err
	}
	committed := time.Now()
	at, err := b.served(hosts...)
	if err != nil {
		return err
	}
	// A reload that is due may follow the last answer.
	var after int
	err = rig.Eventually(ctx, "no more reloads", func() error {
		s, err := b.Status(ctx)
		if err != nil {
			return err
		}
		if after != s.HAProxy.Reloads || time.Since(s.HAProxy.LastReload) < 3*time.Second {
			after = s.HAProxy.Reloads
			return fmt.Errorf("%d reloads, the last at %s", after, s.HAProxy.LastReload)
		}
		return nil
	})
	if err != nil {
		return err
	}
	b.add(value("500 new Services: last commit → all served", at.Sub(committed).Seconds(), "s").atMost(3))
	b.add(value("500 new Services: first commit → last commit, the API's own time", committed.Sub(began).Seconds(),
		"s"))
	b.add(value("500 new Services: reloads", float64(after-before.HAProxy.Reloads), "").atMost(2))
	return nil
}
