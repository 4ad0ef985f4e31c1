package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	clientrest "k8s.io/client-go/rest"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/appliance/status"
	"sallyport/ingress"
	"sallyport/test/lab/world"
	"sallyport/test/load"
	"sallyport/test/rig"
)

// gatewayGroup is the group and version of the routes.
var gatewayGroup = schema.GroupVersion{Group: gatewayv1.GroupName, Version: "v1"}

var routeRows = []row{
	{31, "HTTPRoute → first 200, a request past 20,000 conditions, weights that change under load", alone, atGate(routesOfGateways)},
}

// A gateBed is a lab with a Gateway.
type gateBed struct {
	*bench
	api  clientrest.Interface // of Gateway API
	made int                  // routes there are
}

// gateAt is the address of the Gateway.
var gateAt = rig.GatewayAddress(2)

// atGate returns the function of a row that is measured in a lab of its own with a Gateway.
func atGate(measure func(context.Context, *gateBed) error) func(context.Context, *bench) error {
	return func(ctx context.Context, b *bench) (err error) {
		if b.testbed, err = newTestbed(ctx, b.dir, b.endpoints, world.Standard); err != nil {
			return err
		}
		defer func() {
			err = errors.Join(err, b.close())
			b.testbed = nil
		}()
		g := &gateBed{bench: b}
		if err := g.furnish(ctx); err != nil {
			return err
		}
		return measure(ctx, g)
	}
}

// routesOfGateways measures HTTPRoutes.
func routesOfGateways(ctx context.Context, g *gateBed) error {
	if err := errors.Join(g.grow(ctx, 1), g.generations(ctx)); err != nil {
		return err
	}
	for _, n := range []int{1, g.services, 10 * g.services} {
		if err := errors.Join(g.grow(ctx, n), g.newRoutes(ctx, n)); err != nil {
			return err
		}
	}
	return errors.Join(g.weights(ctx), g.conditions(ctx))
}

// furnish adds the Gateway and a Service.
func (g *gateBed) furnish(ctx context.Context) error {
	config := g.RESTConfig()
	config.QPS, config.APIPath, config.GroupVersion = -1, "/apis", &gatewayGroup
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	metav1.AddToGroupVersion(scheme.Scheme, gatewayGroup)
	if err := gatewayv1.Install(scheme.Scheme); err != nil {
		return err
	}
	var err error
	if g.api, err = clientrest.RESTClientFor(config); err != nil {
		return err
	}
	if err := g.addService(ctx, name(0)); err != nil {
		return err
	}
	gate := &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gate"}}
	gate.Spec.GatewayClassName = "sallyport"
	gate.Spec.Addresses = []gatewayv1.GatewaySpecAddress{{Value: gateAt}}
	gate.Spec.Listeners = []gatewayv1.Listener{{Name: "http", Port: 80, Protocol: gatewayv1.HTTPProtocolType}}
	return g.api.Post().Namespace("default").Resource("gateways").Body(gate).Do(ctx).Error()
}

// route returns a route of a host to Service svc-0, by rules without backends.
func (g *gateBed) route(name, host string, rules ...gatewayv1.HTTPRouteRule) *gatewayv1.HTTPRoute {
	r := &gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	r.Spec.ParentRefs = []gatewayv1.ParentReference{{Name: "gate"}}
	r.Spec.Hostnames = []gatewayv1.Hostname{gatewayv1.Hostname(host)}
	for _, rule := range rules {
		if rule.BackendRefs == nil {
			rule.BackendRefs = []gatewayv1.HTTPBackendRef{toService(0, 1)}
		}
		r.Spec.Rules = append(r.Spec.Rules, rule)
	}
	return r
}

// toService returns a reference to a Service.
func toService(i int, weight int32) gatewayv1.HTTPBackendRef {
	port := int32(80)
	return gatewayv1.HTTPBackendRef{BackendRef: gatewayv1.BackendRef{
		BackendObjectReference: gatewayv1.BackendObjectReference{Name: gatewayv1.ObjectName(name(i)), Port: &port},
		Weight:                 &weight,
	}}
}

// patch replaces the hosts and rules of a route.
func (g *gateBed) patch(ctx context.Context, r *gatewayv1.HTTPRoute) error {
	text, err := runtime.Encode(scheme.Codecs.LegacyCodec(gatewayGroup), r)
	if err != nil {
		return err
	}
	return g.api.Patch(types.MergePatchType).Namespace("default").Resource("httproutes").Name(r.Name).Body(text).
		Do(ctx).Error()
}

func (g *gateBed) post(ctx context.Context, r *gatewayv1.HTTPRoute) error {
	return g.api.Post().Namespace("default").Resource("httproutes").Body(r).Do(ctx).Error()
}

// grow adds routes until there are n, and waits until all are served.
func (g *gateBed) grow(ctx context.Context, n int) error {
	progress("%d HTTPRoutes", n)
	hosts := make([]string, max(n-g.made, 0))
	err := parallel(len(hosts), func(i int) error {
		host := host(g.made + i)
		hosts[i] = host + "@" + gateAt
		return g.post(ctx, g.route("route-"+host, host, gatewayv1.HTTPRouteRule{}))
	})
	if err != nil || len(hosts) == 0 {
		return err
	}
	g.made = n
	_, err = g.served(hosts...)
	return err
}

// told waits until the routes have a status. The appliance writes 50 in a second. told asks for a few of
// them, since a list of all keeps the API server busy.
func (g *gateBed) told(ctx context.Context) error {
	var names []string
	for i := range g.made {
		names = append(names, "route-"+host(i))
	}
	slices.Sort(names) // as the appliance has them
	return rig.Within(ctx, 20*time.Minute, time.Second, "the HTTPRoutes have a status", func() error {
		for len(names) > 0 {
			var r gatewayv1.HTTPRoute
			last := names[len(names)-1]
			err := g.api.Get().Namespace("default").Resource("httproutes").Name(last).Do(ctx).Into(&r)
			if err == nil && len(r.Status.Parents) == 0 {
				err = fmt.Errorf("%s has none", last)
			}
			if err != nil {
				return err
			}
			names = names[:len(names)-(len(names)+19)/20]
		}
		return nil
	})
}

// newRoutes adds routes one by one, and waits for the first 200 of each.
func (g *gateBed) newRoutes(ctx context.Context, n int) error {
	if err := g.told(ctx); err != nil {
		return err
	}
	count := max(g.samples/10, 3)
	before, err := g.usage(ctx)
	if err != nil {
		return err
	}
	g.profile(ctx, n)
	var took []time.Duration
	for i := range count {
		host := fmt.Sprintf("new-%d-%d.bench", n, i)
		if err := g.post(ctx, g.route("new-"+host, host, gatewayv1.HTTPRouteRule{})); err != nil {
			return err
		}
		began := time.Now()
		at, err := g.served(host + "@" + gateAt)
		if err != nil {
			return err
		}
		took = append(took, max(at.Sub(began), time.Microsecond))
	}
	after, err := g.usage(ctx)
	if err := errors.Join(err, g.profiled()); err != nil {
		return err
	}
	g.add(value(fmt.Sprintf("HTTPRoute beside %d others: processor of the appliance for each", n),
		float64((after.cpu-before.cpu).Milliseconds())/float64(count), "ms"))
	g.add(value(fmt.Sprintf("HTTPRoute → first 200 beside %d others, p50", n), percentile(took, 0.5), "ms").atMost(20))
	g.add(value(fmt.Sprintf("HTTPRoute beside %d others: reloads for %d of them", n, count),
		float64(after.reloads-before.reloads), "").atMost(0))
	return nil
}

// generations changes a route again and again, and waits until its status is about the new generation.
func (g *gateBed) generations(ctx context.Context) error {
	if err := g.told(ctx); err != nil {
		return err
	}
	const name = "generations"
	route := func(i int) *gatewayv1.HTTPRoute {
		return g.route(name, fmt.Sprintf("generation-%d.bench", i), gatewayv1.HTTPRouteRule{})
	}
	answered := func() error {
		var r gatewayv1.HTTPRoute
		if err := g.api.Get().Namespace("default").Resource("httproutes").Name(name).Do(ctx).Into(&r); err != nil {
			return err
		}
		if len(r.Status.Parents) == 0 {
			return errors.New("the route has no status")
		}
		for _, c := range r.Status.Parents[0].Conditions {
			if c.ObservedGeneration != r.Generation || c.Status != metav1.ConditionTrue {
				return fmt.Errorf("generation %d of the route has the condition %+v", r.Generation, c)
			}
		}
		return nil
	}
	if err := g.post(ctx, route(0)); err != nil {
		return err
	}
	var took []time.Duration
	for i := range max(g.samples/10, 3) + 1 {
		began := time.Now()
		if i > 0 {
			if err := g.patch(ctx, route(i)); err != nil {
				return err
			}
		}
		if err := rig.Within(ctx, rig.Limit, 10*time.Millisecond, "the status is about the route as it is", answered); err != nil {
			return err
		}
		if i > 0 {
			took = append(took, time.Since(began))
		}
	}
	g.add(value("HTTPRoute → status with its generation, p50", percentile(took, 0.5), "ms").atMost(2000))
	return g.api.Delete().Namespace("default").Resource("httproutes").Name(name).Do(ctx).Error()
}

// client returns a client on the client's host, which keeps its connections.
func (g *gateBed) client() *http.Client {
	return &http.Client{Timeout: limit, Transport: &http.Transport{
		MaxIdleConnsPerHost: 64,
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return g.Dial(ctx, world.Client, address)
		},
	}}
}

// ask sends a request to the Gateway, and returns the answer's header.
func ask(ctx context.Context, client *http.Client, host string, header ...string) (http.Header, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+gateAt+"/bytes?n=1", nil)
	if err != nil {
		return nil, err
	}
	r.Host = host
	if len(header) == 2 {
		r.Header.Set(header[0], header[1])
	}
	answer, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close() //nolint:errcheck // only read from
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", host, answer.Status)
	}
	return answer.Header, nil
}

// conditions has 20,000 matches on a header for one host, and compares requests that the last of them
// takes with requests for a host without conditions.
func (g *gateBed) conditions(ctx context.Context) error {
	const each, count = 64, 20_000
	err := parallel((count+each-1)/each, func(i int) error {
		var rule gatewayv1.HTTPRouteRule
		for j := i * each; j < min((i+1)*each, count); j++ {
			rule.Matches = append(rule.Matches, gatewayv1.HTTPRouteMatch{Headers: []gatewayv1.HTTPHeaderMatch{{
				Name: "X-Tenant", Value: strconv.Itoa(j),
			}}})
		}
		return g.post(ctx, g.route(fmt.Sprintf("conditions-%d", i), "conditions.bench", rule))
	})
	if err != nil {
		return err
	}
	client := g.client()
	last := []string{"X-Tenant", strconv.Itoa(count - 1)}
	if err := rig.Eventually(ctx, "all conditions are served", func() error {
		_, first := ask(ctx, client, "conditions.bench", "X-Tenant", "0")
		_, err := ask(ctx, client, "conditions.bench", last...)
		return errors.Join(first, err)
	}); err != nil {
		return err
	}
	worker, err := g.worker()
	if err != nil {
		return err
	}
	const turns, requests = 20, 1000
	var with, without time.Duration
	for range turns { // in turn, since others share the machine
		for _, side := range []struct {
			host   string
			header []string
			took   *time.Duration
		}{{host(0), last, &without}, {"conditions.bench", last, &with}} {
			before, err := rig.CPU(worker)
			if err != nil {
				return err
			}
			for range requests {
				if _, err := ask(ctx, client, side.host, side.header...); err != nil {
					return err
				}
			}
			after, err := rig.CPU(worker)
			if err != nil {
				return err
			}
			*side.took += after - before
		}
	}
	per := func(all time.Duration) float64 { return float64(all.Microseconds()) / (turns * requests) }
	g.add(value("processor of HAProxy for a request past 20,000 conditions", per(with), "µs").beside("without conditions",
		per(without)).timesAtMost(1.2))
	return nil
}

// shareOf sends a request on a connection that is kept, and returns the name of the share that answers. It
// opens the connection if there is none, and closes it after a failure.
func (g *gateBed) shareOf(ctx context.Context, conn **load.Conn, host string) (share string, err error) {
	if *conn == nil {
		if *conn, err = load.Open(ctx, g.fromClient, gateAt+":80", nil, load.Patience); err != nil {
			*conn = nil
			return "", err
		}
	}
	if share, err = (*conn).Field(browser(host, "/bytes?n=1"), "X-Share"); err != nil {
		_ = (*conn).Close()
		*conn = nil
	}
	return share, err
}

// weights moves all requests of a host from one Service to another and back, under load. Once an answer
// of the new Service was seen, no later request gets an answer of the former Service.
func (g *gateBed) weights(ctx context.Context) error {
	if err := g.addService(ctx, name(1)); err != nil {
		return err
	}
	rule := func(weight int32) gatewayv1.HTTPRouteRule {
		refs := []gatewayv1.HTTPBackendRef{toService(0, 100-weight), toService(1, weight)}
		for i := range refs {
			refs[i].Filters = []gatewayv1.HTTPRouteFilter{{
				Type: gatewayv1.HTTPRouteFilterResponseHeaderModifier,
				ResponseHeaderModifier: &gatewayv1.HTTPHeaderFilter{
					Set: []gatewayv1.HTTPHeader{{Name: "X-Share", Value: strconv.Itoa(i)}},
				},
			}}
		}
		return gatewayv1.HTTPRouteRule{BackendRefs: refs}
	}
	if err := g.post(ctx, g.route("weights", "weights.bench", rule(0))); err != nil {
		return err
	}
	if _, err := g.served("weights.bench@" + gateAt); err != nil {
		return err
	}
	// The status tells of a round, and of its reload, only after the first answer.
	var before status.Status
	if err := rig.Eventually(ctx, "the status has the route", func() (err error) {
		before, err = g.Status(ctx)
		if err == nil && !slices.ContainsFunc(before.GatewayRoutes, func(r ingress.RouteReport) bool {
			return r.Name == "weights"
		}) {
			err = errors.New("it has not")
		}
		return err
	}); err != nil {
		return err
	}
	// made counts the changes. since counts the changes that an answer has shown.
	var sent, failed, late, made, since atomic.Int64
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	const lanes, rate = 16, 5000
	var clients sync.WaitGroup
	for range lanes {
		clients.Go(func() {
			var conn *load.Conn
			load.Pace(ctx, lanes*time.Second/rate, func(int, time.Time) {
				seen := since.Load()
				share, err := g.shareOf(ctx, &conn, "weights.bench")
				switch {
				case ctx.Err() != nil:
				case err != nil:
					failed.Add(1)
				case share == strconv.FormatInt(seen%2, 10):
				case seen == made.Load():
					late.Add(1) // an answer of the former share, though another has had one of the new share
				default:
					since.CompareAndSwap(seen, seen+1)
				}
				sent.Add(1)
			})
			if conn != nil {
				_ = conn.Close()
			}
		})
	}
	if err := rig.Eventually(ctx, "all clients ask", func() error {
		if n := sent.Load(); n < rate/10 {
			return fmt.Errorf("%d requests were answered", n)
		}
		return nil
	}); err != nil {
		return err
	}
	began, first := time.Now(), sent.Load()
	for i := range 20 {
		want := made.Add(1) % 2
		//nolint:gosec // 0 or 1
		if err := g.patch(ctx, g.route("weights", "weights.bench", rule(int32(100*want)))); err != nil {
			return err
		}
		if err := rig.Eventually(ctx, "the new weights count", func() error {
			if now := since.Load(); now != int64(i+1) {
				return fmt.Errorf("%d of %d changes were seen", now, i+1)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	reached := float64(sent.Load()-first) / time.Since(began).Seconds()
	stop()
	clients.Wait()
	after, err := g.Status(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	g.add(value("20 changes of weights: requests a second", reached, "").beside("due", rate))
	g.add(value(fmt.Sprintf("20 changes of weights: failed of %d requests", sent.Load()), float64(failed.Load()), "").atMost(0))
	g.add(value("20 changes of weights: requests with the former share after the new one was seen",
		float64(late.Load()), "").atMost(0))
	g.add(value("20 changes of weights: reloads", float64(after.HAProxy.Reloads-before.HAProxy.Reloads), "").atMost(0))
	return nil
}
