package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/test/lab/world"
	"sallyport/test/load"
	"sallyport/test/rig"
)

// gateRows are the tests that people publish for implementations of Gateway API. Each has a lab of its own.
var gateRows = []row{
	{32, "a probe: 3 × -services HTTPRoutes one after another, each until its first 200", alone, atGate(probeRoutes)},
	{33, "5 × -services HTTPRoutes, some of which come, change and go beside requests to others", alone, atGate(churnRoutes)},
	{34, "failover: a pod dies, a Service loses its endpoints, the weights move its share", alone, atGate(failover)},
}

// Outcomes are those of the requests of some clients.
type outcomes []load.Outcome

// failed returns the outcomes of requests without a good answer.
func (o outcomes) failed() outcomes {
	return slices.DeleteFunc(slices.Clone(o), func(one load.Outcome) bool { return one.Err == nil })
}

// between returns the outcomes of requests that began at a time or later, and before another time.
func (o outcomes) between(from, to time.Time) outcomes {
	return slices.DeleteFunc(slices.Clone(o), func(one load.Outcome) bool {
		return one.Began.Before(from) || !one.Began.Before(to)
	})
}

// took returns how long each request took.
func (o outcomes) took() []time.Duration {
	all := make([]time.Duration, len(o))
	for i, one := range o {
		all[i] = one.Took
	}
	return all
}

// last returns the time from t to the beginning of the last request. It returns zero without a request.
func (o outcomes) last(t time.Time) time.Duration {
	var longest time.Duration
	for _, one := range o {
		longest = max(longest, one.Began.Sub(t))
	}
	return longest
}

// during calls do while clients ask for a host at the Gateway: 500 times a second, 100 of them on new
// connections. It returns the outcomes of all requests.
func (g *gateBed) during(ctx context.Context, host string, do func(context.Context) error) (outcomes, error) {
	var got outcomes
	var mu sync.Mutex
	note := func(o load.Outcome) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, o)
	}
	asking, stop := context.WithCancel(ctx)
	defer stop()
	var clients sync.WaitGroup
	clients.Go(func() {
		load.Clients{
			Targets: []string{gateAt + ":80"}, Host: host,
			New: 10 * time.Millisecond, Kept: 4, Every: 10 * time.Millisecond, Dial: g.fromClient,
		}.Run(asking, func() func(load.Outcome) { return note })
	})
	err := do(ctx)
	stop()
	clients.Wait()
	if err == nil && len(got) == 0 {
		err = errors.New("the clients sent no request")
	}
	if failed := got.failed(); len(failed) > 0 {
		progress("%d of %d requests for %s failed, the first %s", len(failed), len(got), host, failed[0])
	}
	return got, err
}

// fromClient dials from the client's host.
func (g *gateBed) fromClient(ctx context.Context, address string) (conn net.Conn, err error) {
	return g.Dial(ctx, world.Client, address)
}

// probeRoutes adds routes one after another, each once the one before has answered, while clients ask for
// another route. In the end all of them still have to answer.
func probeRoutes(ctx context.Context, g *gateBed) error {
	if err := g.grow(ctx, 1); err != nil {
		return err
	}
	n := 3 * g.services
	before, err := g.usage(ctx)
	if err != nil {
		return err
	}
	g.profile(ctx, n)
	var took []time.Duration
	hosts := make([]string, n)
	others, err := g.during(ctx, host(0), func(ctx context.Context) error {
		for i := range hosts {
			host := fmt.Sprintf("probe-%d.bench", i)
			hosts[i] = host + "@" + gateAt
			if err := g.post(ctx, g.route(host, host, gatewayv1.HTTPRouteRule{})); err != nil {
				return err
			}
			began := time.Now()
			at, err := g.served(hosts[i])
			if err != nil {
				return err
			}
			took = append(took, max(at.Sub(began), time.Microsecond))
		}
		return nil
	})
	if err := errors.Join(err, g.profiled()); err != nil {
		return err
	}
	after, err := g.usage(ctx)
	if err != nil {
		return err
	}
	if _, err := g.served(hosts...); err != nil {
		return err
	}
	what := fmt.Sprintf("probe with %d HTTPRoutes: ", n)
	for _, p := range []float64{0.5, 0.99, 1} {
		of := map[float64]string{1: "slowest"}[p]
		g.add(value(what+"→ first 200, "+cmp.Or(of, fmt.Sprintf("p%g", 100*p)), percentile(took, p), "ms"))
	}
	g.add(value(what+"the last tenth, p50", percentile(took[n*9/10:], 0.5), "ms").beside("the first tenth",
		percentile(took[:(n+9)/10], 0.5)))
	g.add(value(what+"processor of the appliance for each", perChange(before, after, n), "ms"))
	g.add(value(what+"reloads", float64(after.reloads-before.reloads), "").atMost(0))
	g.add(value(fmt.Sprintf("%sfailed of %d requests for another route", what, len(others)),
		float64(len(others.failed())), "").atMost(0))
	return nil
}

// perChange returns the milliseconds of processor that the appliance used for each of n changes.
func perChange(before, after usage, n int) float64 {
	return float64((after.cpu - before.cpu).Microseconds()) / 1000 / float64(n)
}

// churnLanes are the writers of churnRoutes: each waits for the API server.
const churnLanes = 4

// A turmoil has the outcomes and figures of the rounds of churnRoutes.
type turmoil struct {
	still, churned outcomes // requests without changes, and beside them
	made           [churnLanes]int
	took, cpu      time.Duration
	reloads        int
}

// churnRoutes adds, changes and removes routes among many, 50 times a second, while clients ask for a
// route that nobody touches. The same clients ask without changes, in turn.
func churnRoutes(ctx context.Context, g *gateBed) error {
	n := 5 * g.services
	if err := errors.Join(g.grow(ctx, n), g.addService(ctx, name(1)), g.leadOne(ctx)); err != nil {
		return err
	}
	const rounds = 2
	var t turmoil
	for range rounds {
		if err := g.stir(ctx, &t, n, g.churn/rounds); err != nil {
			return err
		}
	}
	began := time.Now()
	if err := g.post(ctx, g.route("last", "last.bench", gatewayv1.HTTPRouteRule{})); err != nil {
		return err
	}
	at, err := g.served("last.bench@" + gateAt)
	if err != nil {
		return err
	}
	resident, err := rig.Resident(g.Pid())
	if err != nil {
		return err
	}
	made := 0
	for _, n := range t.made {
		made += n
	}
	what := fmt.Sprintf("churn among %d HTTPRoutes: ", n)
	g.add(value(what+"changes a second", float64(made)/t.took.Seconds(), ""))
	g.add(value(fmt.Sprintf("%sfailed of %d requests for a route that stays", what, len(t.churned)),
		float64(len(t.churned.failed())), "").atMost(0).beside("without changes", float64(len(t.still.failed()))))
	for _, p := range []float64{0.5, 0.99} {
		g.add(value(fmt.Sprintf("%sa request, p%g", what, 100*p), percentile(t.churned.took(), p), "ms").
			beside("without changes", percentile(t.still.took(), p)))
	}
	g.add(value(what+"reloads", float64(t.reloads), "").atMost(0))
	g.add(value(what+"processor of the appliance", t.cpu.Seconds()/t.took.Seconds(), "cores"))
	g.add(value(what+"a route after the last change → first 200", float64(at.Sub(began).Milliseconds()), "ms"))
	g.add(value(what+"resident memory of the appliance", float64(resident)/(1<<20), "MB"))
	return nil
}

// leadOne leads a route to the second Service, and waits until HAProxy calls that Service's backend by
// its name. Before 3.4 the backend begins as a spare one, and gets its name by a reload half a minute
// later, which no change waits for.
func (g *gateBed) leadOne(ctx context.Context) error {
	if err := g.leadToSecond(ctx, host(1)); err != nil {
		return err
	}
	return rig.Eventually(ctx, "the backend of the second Service has its name", func() error {
		answer, err := g.exchange("show backend")
		if err == nil && !strings.Contains(answer, "_svc_"+name(1)+"_") {
			err = fmt.Errorf("HAProxy has these backends: %s", answer)
		}
		return err
	})
}

// leadToSecond leads the route of a host to the second Service.
func (g *gateBed) leadToSecond(ctx context.Context, host string) error {
	refs := []gatewayv1.HTTPBackendRef{toService(1, 1)}
	return g.patch(ctx, g.route("route-"+host, host, gatewayv1.HTTPRouteRule{BackendRefs: refs}))
}

// stir has clients ask for some time without changes, and as long beside changes among n routes.
func (g *gateBed) stir(ctx context.Context, t *turmoil, n int, span time.Duration) error {
	const every = churnLanes * 20 * time.Millisecond // from one change of a lane to the next
	still, err := g.during(ctx, host(0), func(ctx context.Context) error { return rig.Pause(ctx, span) })
	if err != nil {
		return err
	}
	before, err := g.usage(ctx)
	if err != nil {
		return err
	}
	g.profile(ctx, n)
	began := time.Now()
	churned, err := g.during(ctx, host(0), func(ctx context.Context) error {
		return parallel(churnLanes, func(lane int) error {
			for over := began.Add(span); time.Now().Before(over); t.made[lane]++ {
				due := time.After(every)
				if err := g.change(ctx, lane, t.made[lane], n); err != nil {
					return err
				}
				<-due
			}
			return nil
		})
	})
	t.took += time.Since(began)
	after, failed := g.usage(ctx)
	if err := errors.Join(err, failed, g.profiled()); err != nil {
		return err
	}
	t.still, t.churned = append(t.still, still...), append(t.churned, churned...)
	t.cpu, t.reloads = t.cpu+after.cpu-before.cpu, t.reloads+after.reloads-before.reloads
	return nil
}

// change makes the change of that number in a lane, among n routes. In turn it adds a route, leads a route
// that was there to the second Service, and removes a route that the lane has added.
func (g *gateBed) change(ctx context.Context, lane, number, n int) error {
	turn := number / 3
	switch added := fmt.Sprintf("churn-%d-%d.bench", lane, turn); {
	case number%3 == 0:
		return g.post(ctx, g.route(added, added, gatewayv1.HTTPRouteRule{}))
	case number%3 == 1:
		return g.leadToSecond(ctx, host(1+(1000*lane+turn)*7919%(n-1)))
	case turn < 10:
		return nil // routes live for ten turns
	}
	return g.api.Delete().Namespace("default").Resource("httproutes").Name(fmt.Sprintf("churn-%d-%d.bench", lane, turn-10)).
		Do(ctx).Error()
}

// failover has two Services with half of the requests of a route each, and pods of their own. A pod of the
// first dies, and its endpoint stays. Then the second loses its endpoints: the API wants its share of the
// requests answered with an error (HTTPBackendRef). Then the weights give all requests to the first.
func failover(ctx context.Context, g *gateBed) error {
	if len(g.pods) < 3 {
		return fmt.Errorf("-endpoints is %d: at least 3 are needed", len(g.pods))
	}
	half := len(g.pods) - len(g.pods)/2
	if err := errors.Join(g.addService(ctx, name(1)), g.lead(ctx, name(0), g.pods[:half]),
		g.lead(ctx, name(1), g.pods[half:])); err != nil {
		return err
	}
	const host = "failover.bench"
	rule := func(second int32) gatewayv1.HTTPRouteRule {
		return gatewayv1.HTTPRouteRule{BackendRefs: []gatewayv1.HTTPBackendRef{toService(0, 1), toService(1, second)}}
	}
	if err := g.post(ctx, g.route("failover", host, rule(1))); err != nil {
		return err
	}
	if _, err := g.served(host + "@" + gateAt); err != nil {
		return err
	}
	before, err := g.usage(ctx)
	if err != nil {
		return err
	}
	var at [4]time.Time // when each step began, and the end
	all, err := g.during(ctx, host, func(ctx context.Context) error {
		for i, step := range []func() error{
			func() error { return g.killPod(ctx, g.pods[0]) },
			func() error { return g.lead(ctx, name(1), nil) },
			func() error { return g.patch(ctx, g.route("failover", host, rule(0))) },
		} {
			at[i] = time.Now()
			if err := errors.Join(step(), rig.Pause(ctx, g.churn/4)); err != nil {
				return err
			}
		}
		at[3] = time.Now()
		return nil
	})
	if err != nil {
		return err
	}
	after, err := g.usage(ctx)
	if err != nil {
		return err
	}
	for i, what := range []string{"a pod dies", "a Service loses its endpoints", "its share is moved by weights"} {
		some := all.between(at[i], at[i+1])
		f := value(fmt.Sprintf("%s: failed of %d requests", what, len(some)), float64(len(some.failed())), "")
		if i == 1 {
			f = f.beside("its share", float64(len(some))/2)
		}
		g.add(f)
		if i != 1 {
			g.add(value(what+": beginning → last failed request", float64(some.failed().last(at[i]).Milliseconds()), "ms"))
		}
	}
	g.add(value("failover: reloads", float64(after.reloads-before.reloads), "").atMost(0))
	return nil
}

// lead makes addresses the only endpoints of a Service.
func (g *gateBed) lead(ctx context.Context, service string, addresses []string) error {
	slice := g.slice(service)
	slice.Endpoints = nil
	for _, a := range addresses {
		slice.Endpoints = append(slice.Endpoints, endpoint(a))
	}
	_, err := g.kube.DiscoveryV1().EndpointSlices("default").Update(ctx, slice, metav1.UpdateOptions{})
	return err
}

// killPod removes the pod with an address at once. Endpoints stay, since slices are written by hand.
func (g *gateBed) killPod(ctx context.Context, address string) error {
	pods, err := g.kube.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, p := range pods.Items {
		if p.Status.PodIP == address {
			now := int64(0)
			return g.kube.CoreV1().Pods("default").Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		}
	}
	return fmt.Errorf("no pod has address %s", address)
}
