package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"sallyport/test/rig"
)

var changeRows = []row{
	{
		6, "endpoint committed in the API → server open, beside a bare informer and one add server", small | large,
		endpointChanges,
	},
	{11, "churn of 100 endpoint changes a second", large, churn},
	{10, "5,000 endpoints of one Service replaced, beside the same commands on a socket", large, replaceAll},
}

// spares are addresses that belong to pods of namespace default, and that no Service has.
const (
	spares     = 20
	firstSpare = "172.16.171.100"
)

func spare(i int) string {
	a := netip.MustParseAddr(firstSpare).As4()
	a[3] += byte(i % spares)
	return netip.AddrFrom4(a).String()
}

// serverAt returns the name of the server at port 8080 of an address.
func serverAt(address string) string { return "s_" + strings.ReplaceAll(address, ".", "-") + "_8080" }

func backendOf(service string) string { return "default_svc_" + service + "_80" }

// put commits the EndpointSlice of a Service, with further addresses.
func (s *testbed) put(ctx context.Context, service string, more ...string) (committed time.Time, err error) {
	_, err = s.kube.DiscoveryV1().EndpointSlices("default").Update(ctx, s.slice(service, more...),
		metav1.UpdateOptions{})
	return time.Now(), err
}

// endpointChanges adds an endpoint to a Service and removes it again, each time to another
// Service. In between it does the same for the floor: an informer of all EndpointSlices,
// and one add server to a HAProxy of its own. Both times count from the API's answer, and
// both HAProxies are watched by the same means, which takes about 0.2 ms of each time.
func endpointChanges(ctx context.Context, b *bench) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	floor, err := b.bareInformer(ctx)
	if err != nil {
		return err
	}
	defer floor.close()
	const look = 200 * time.Microsecond
	atOurs, atTheirs := spot(ctx, look, b.exchange), spot(ctx, look, floor.ask)
	b.profile(ctx, b.size)
	var ours, theirs []time.Duration
	for i := range b.samples {
		service, address := name(i*7919%b.size), spare(i)
		for _, open := range []bool{true, false} {
			var more []string
			if open {
				more = []string{address}
			}
			for _, side := range []struct {
				watch            *spotter
				service, backend string
				took             *[]time.Duration
			}{{atOurs, service, backendOf(service), &ours}, {atTheirs, floorService, floorService, &theirs}} {
				want := sight{side.backend, serverAt(address), open}
				seen := side.watch.expect(want)
				committed, err := b.put(ctx, side.service, more...)
				if err != nil {
					return err
				}
				at, err := side.watch.wait(ctx, want, seen)
				if err != nil {
					return err
				}
				if open {
					*side.took = append(*side.took, max(at.Sub(committed), time.Microsecond))
				}
			}
		}
	}
	if err := b.profiled(); err != nil {
		return err
	}
	for _, p := range []float64{0.5, 0.9, 0.99} {
		f := value(fmt.Sprintf("endpoint committed → server open, p%g", p*100), percentile(ours, p),
			"ms").beside("informer + add server", percentile(theirs, p))
		if p == 0.5 {
			f = f.atMost(1.5)
		}
		if p == 0.99 {
			if b.size == 1 {
				b.p99 = f.Value
			} else if b.p99 > 0 {
				f.What += fmt.Sprintf(", %.1f × that of 1 Service", f.Value/b.p99)
				f = f.aim("≤ 2 × of 1 Service", f.Value <= 2*b.p99)
			}
		}
		b.add(f)
	}
	return nil
}

// floorService has no Ingress: the appliance has nothing to do for it. The floor's backend has
// the same name.
const floorService = "floor"

// bareInformer starts an informer of all EndpointSlices. It adds each new endpoint of
// floorService to the returned HAProxy as a server, and deletes the server when the endpoint
// is gone.
func (b *bench) bareInformer(ctx context.Context) (*proxy, error) {
	if _, err := b.kube.DiscoveryV1().EndpointSlices("default").Get(ctx, floorService,
		metav1.GetOptions{}); err != nil {
		if _, err := b.kube.DiscoveryV1().EndpointSlices("default").Create(ctx, b.slice(floorService),
			metav1.CreateOptions{}); err != nil {
			return nil, err
		}
	}
	proxy, err := ownProxy(ctx, b.dir)
	if err != nil {
		return nil, err
	}
	factory := informers.NewSharedInformerFactory(b.kube, 0)
	informer := factory.Discovery().V1().EndpointSlices().Informer()
	normal := len(b.pods)
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(was, is any) {
		before, ok1 := was.(*discoveryv1.EndpointSlice)
		now, ok2 := is.(*discoveryv1.EndpointSlice)
		if !ok1 || !ok2 || now.Name != floorService {
			return
		}
		var line []string
		for _, e := range now.Endpoints[normal:] {
			server := floorService + "/" + serverAt(e.Addresses[0])
			line = append(line, "add server "+server+" "+e.Addresses[0]+":8080", "enable server "+server)
		}
		for _, e := range before.Endpoints[normal:] {
			server := floorService + "/" + serverAt(e.Addresses[0])
			line = append(line, "set server "+server+" state maint", "del server "+server)
		}
		if _, err := proxy.tell(line); err != nil {
			progress("the floor: %v", err)
		}
	}})
	if err == nil {
		factory.Start(ctx.Done())
		factory.WaitForCacheSync(ctx.Done())
	}
	return proxy, err
}

// churn changes endpoints at a fixed rate, each time of another Service.
func churn(ctx context.Context, b *bench) error {
	const rate = 100 // changes a second: half of them add
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch := spot(ctx, time.Millisecond, b.exchange)
	before, err := b.usage(ctx)
	if err != nil {
		return err
	}
	b.profile(ctx, b.size)
	n := int(b.churn.Seconds() * rate)
	lags, errs, turns := make([]time.Duration, n), make(chan error, n/2), make([]sync.Mutex, b.size)
	tick := time.NewTicker(2 * time.Second / rate)
	defer tick.Stop()
	began := time.Now()
	for i := range n / 2 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		go func() {
			turn := &turns[i*7919%b.size] // a small cluster has fewer Services than changes at once
			turn.Lock()
			defer turn.Unlock()
			errs <- b.comeAndGo(ctx, watch, i, lags[2*i:])
		}()
	}
	for range n / 2 {
		if err := <-errs; err != nil {
			return err
		}
	}
	took := time.Since(began)
	after, err := b.usage(ctx)
	if err != nil {
		return err
	}
	if err := b.profiled(); err != nil {
		return err
	}
	b.add(value("churn: committed → as wanted, p50", percentile(lags, 0.5), "ms"))
	b.add(value("churn: committed → as wanted, p99", percentile(lags, 0.99), "ms").atMost(50))
	b.add(value(fmt.Sprintf("churn: processor of the appliance at %.0f changes/s", float64(n)/took.Seconds()),
		(after.cpu-before.cpu).Seconds()/took.Seconds(), "cores").atMost(0.5))
	b.add(value("churn: processor of HAProxy", (after.proxyCPU-before.proxyCPU).Seconds()/took.Seconds(), "cores"))
	b.add(value("churn: reloads", float64(after.reloads-before.reloads), "").atMost(0))
	b.add(value("churn: written to disk per change", float64(after.written-before.written)/float64(n)/1024, "KiB"))
	return nil
}

// comeAndGo adds an endpoint to a Service, and removes it once it is open and half a second has
// passed. It writes down how long each took.
func (b *bench) comeAndGo(ctx context.Context, watch *spotter, i int, lags []time.Duration) error {
	service, address := name(i*7919%b.size), spare(i)
	later := time.After(time.Second / 2)
	for k, more := range [][]string{{address}, nil} {
		want := sight{backendOf(service), serverAt(address), len(more) > 0}
		seen := watch.expect(want)
		committed, err := b.put(ctx, service, more...)
		if err != nil {
			return err
		}
		at, err := watch.wait(ctx, want, seen)
		if err != nil {
			return err
		}
		lags[k] = max(at.Sub(committed), time.Microsecond)
		<-later
		later = time.After(0)
	}
	return nil
}

// A usage is what the appliance and HAProxy's worker have used since their start.
type usage struct {
	cpu, proxyCPU time.Duration
	reloads       int
	written       int // bytes that the appliance wrote to disk
}

func (s *testbed) usage(ctx context.Context) (u usage, err error) {
	status, err := s.Status(ctx)
	if err != nil {
		return u, err
	}
	u.reloads = status.HAProxy.Reloads
	if u.cpu, err = rig.CPU(s.Pid()); err != nil {
		return u, err
	}
	worker, err := s.worker()
	if err != nil {
		return u, err
	}
	if u.proxyCPU, err = rig.CPU(worker); err != nil {
		return u, err
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", s.Pid()))
	if err != nil {
		return u, err
	}
	_, after, _ := strings.Cut(string(text), "\nwrite_bytes: ") // proc_pid_io(5)
	line, _, _ := strings.Cut(after, "\n")
	u.written, err = strconv.Atoi(line)
	return u, err
}

// replaceAll gives a Service 5,000 endpoints, and then 5,000 others in their place. The
// addresses belong to pods by the records of the cluster, and have a route. Nothing
// answers there, and HAProxy does not check them.
func replaceAll(ctx context.Context, b *bench) error {
	const (
		count  = 5000
		most   = 1000 // endpoints of a slice
		blocks = 3    // of 4,096 addresses
	)
	var pool []string
	for a := netip.MustParseAddr("172.20.0.0"); len(pool) < 2*count; a = a.Next() {
		pool = append(pool, a.String())
	}
	if err := b.Apply(ctx, `
apiVersion: crd.projectcalico.org/v1
kind: IPPool
metadata: {name: many}
spec: {cidr: 172.20.0.0/16, blockSize: 20, ipipMode: Never, vxlanMode: Never, nodeSelector: all()}
`); err != nil {
		return err
	}
	for i := range blocks {
		if err := b.block(ctx, netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 20, byte(16 * i), 0}), 20)); err != nil {
			return err
		}
	}
	const service = "many"
	if err := b.addBareService(ctx, service, true); err != nil {
		return err
	}
	slicesOf := func(from int) (all []*discoveryv1.EndpointSlice) {
		for part := range slices.Chunk(pool[from:from+count], most) {
			one := b.slice(service)
			one.Name = fmt.Sprintf("%s-%d", service, len(all))
			one.Endpoints = nil
			for _, a := range part {
				one.Endpoints = append(one.Endpoints, endpoint(a))
			}
			all = append(all, one)
		}
		return all
	}
	client := b.kube.DiscoveryV1().EndpointSlices("default")
	for _, s := range slicesOf(0) {
		if _, err := client.Create(ctx, s, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	if err := b.addIngress(ctx, service, service+".bench", service); err != nil {
		return err
	}
	if err := b.await(ctx, service, pool[:count]); err != nil {
		return err
	}
	b.profile(ctx, b.size)
	for _, s := range slicesOf(count) {
		if _, err := client.Update(ctx, s, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	committed := time.Now()
	if err := b.left(ctx, backendOf(service)+"/"+serverAt(pool[count-1])); err != nil {
		return err
	}
	if err := b.await(ctx, service, pool[count:2*count]); err != nil {
		return err
	}
	ours := time.Since(committed)
	if err := b.profiled(); err != nil {
		return err
	}

	floor, err := ownProxy(ctx, b.dir)
	if err != nil {
		return err
	}
	defer floor.close()
	var adds, swaps []string
	for i, a := range pool {
		server := "floor/" + serverAt(a)
		if i < count {
			adds = append(adds, "add server "+server+" "+a+":8080", "enable server "+server)
			swaps = append(swaps, "set server "+server+" state maint")
		} else {
			swaps = append(swaps, "add server "+server+" "+a+":8080", "enable server "+server)
		}
	}
	for _, a := range pool[:count] {
		swaps = append(swaps, "del server floor/"+serverAt(a))
	}
	if _, err := floor.tell(adds); err != nil {
		return err
	}
	theirs, err := floor.tell(swaps)
	if err != nil {
		return err
	}
	policy := metav1.DeletePropagationBackground
	for _, err := range []error{
		b.kube.NetworkingV1().Ingresses("default").Delete(ctx, service,
			metav1.DeleteOptions{PropagationPolicy: &policy}),
		b.kube.CoreV1().Services("default").Delete(ctx, service, metav1.DeleteOptions{PropagationPolicy: &policy}),
		client.DeleteCollection(ctx, metav1.DeleteOptions{},
			metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service}),
	} {
		if err != nil {
			return err
		}
	}
	// The Service is gone once a reload has removed its backend.
	if err := rig.Eventually(ctx, "the backend of 5,000 servers is gone", func() error {
		answer, err := b.exchange("show servers state " + backendOf(service))
		if err == nil && !strings.Contains(answer, "Can't find backend") {
			err = errors.New("HAProxy has the backend")
		}
		return err
	}); err != nil {
		return err
	}
	b.add(value("5,000 endpoints replaced: last slice committed → as wanted", ours.Seconds(),
		"s").beside("the same commands", theirs.Seconds()).timesAtMost(1.5))
	return nil
}

// await waits until the servers of a Service are those at the addresses, all open. It asks
// seldom: an answer about thousands of servers keeps HAProxy busy.
func (s *testbed) await(ctx context.Context, service string, addresses []string) error {
	return rig.Within(ctx, limit, 100*time.Millisecond,
		fmt.Sprintf("Service %s has %d open servers", service, len(addresses)), func() error {
			answer, err := s.exchange("show servers state " + backendOf(service))
			open := openServers(answer)
			there := strings.Count(answer, " "+serverAt(addresses[0])[:2])
			missing := slices.ContainsFunc(addresses, func(a string) bool {
				return !open[backendOf(service)+"/"+serverAt(a)]
			})
			if missing || there != len(addresses) {
				err = errors.Join(err, fmt.Errorf("it has %d servers, and %d of them are open", there, len(open)))
			}
			return err
		})
}

// left waits until HAProxy does not have a server, as BACKEND/SERVER. That is a short question,
// and one about thousands of servers would take HAProxy's time while it is measured.
func (s *testbed) left(ctx context.Context, server string) error {
	return rig.Within(ctx, limit, 10*time.Millisecond, "HAProxy does not have server "+server, func() error {
		answer, err := s.exchange("get weight " + server)
		if err == nil && !strings.Contains(answer, "No such server") {
			err = errors.New("it has")
		}
		return err
	})
}

// block makes worker1 announce a block all of whose addresses belong to pods of namespace
// default.
func (s *testbed) block(ctx context.Context, p netip.Prefix) error {
	id := strings.NewReplacer(".", "-", "/", "-").Replace(p.String())
	size := 1 << (32 - p.Bits())
	return s.Apply(ctx, fmt.Sprintf(`
apiVersion: crd.projectcalico.org/v1
kind: BlockAffinity
metadata: {name: worker1-%[1]s}
spec: {node: worker1, cidr: %[2]s, state: confirmed, deleted: "false"}
---
apiVersion: crd.projectcalico.org/v1
kind: IPAMBlock
metadata: {name: %[1]s}
spec:
  cidr: %[2]s
  affinity: host:worker1
  strictAffinity: false
  unallocated: []
  allocations: [%[3]s]
  attributes: [{handle_id: bench, secondary: {namespace: default, node: worker1, pod: bench}}]
`, id, p, strings.TrimSuffix(strings.Repeat("0,", size), ",")))
}
