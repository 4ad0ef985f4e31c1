package appliance

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sallyport/appliance/config"
	"sallyport/haproxy"
	"sallyport/ingress/calico"
	"sallyport/ingress/input"
	"sallyport/routes"
)

// A world is a scene of simulated size. Its clock follows the rounds: a round takes as much of its
// time as it takes of the processor, and the time between two rounds takes none.
type world struct {
	*scene
	towns []*town
}

// A town is a cluster of a world. It stands in for a Watcher, and makes its Topology from Calico's
// objects as a Watcher does: a new one only if an object has changed.
type town struct {
	fakeWatcher
	objects calico.Objects
	last    calico.Objects
	offers  []routes.Offer
	away    map[int]bool // Services whose last endpoint is gone
}

// Snapshot returns the objects of the cluster.
func (c *town) Snapshot() (input.Snapshot, error) {
	if !reflect.DeepEqual(c.last, c.objects) {
		c.snapshot.Topology, _ = calico.Topology(c.objects)
		c.last = c.objects
	}
	return c.snapshot, nil
}

// A plainKernel copies the routes of a fakeKernel for each change, and not for each reading. A
// reading without a change costs nothing with Kernel either.
type plainKernel struct{ *fakeKernel }

func (k plainKernel) List() (routes.Listing, error) { return routes.Listing{Routes: k.routes}, nil }

func (k plainKernel) Add(to routes.Selector, via netip.Addr) error {
	k.routes = maps.Clone(k.routes)
	return k.fakeKernel.Add(to, via)
}

func (k plainKernel) Drop(to routes.Selector) error {
	k.routes = maps.Clone(k.routes)
	return k.fakeKernel.Drop(to)
}

// A quickProxy is a fakeProxy that compares an order with the one before, as Proxy does, and looks only
// at the backends that differ.
type quickProxy struct {
	*fakeProxy
	backends []*haproxy.Backend
	states   haproxy.States
}

// Apply brings the servers to these states.
func (f *quickProxy) Apply(
	ctx context.Context, cfg *haproxy.Config, states haproxy.States,
) (result haproxy.Result, err error) {
	namesake := func(a, b *haproxy.Backend) bool { return a.Name == b.Name }
	if slices.EqualFunc(f.backends, cfg.Backends, namesake) {
		next := map[string]*haproxy.LiveBackend{}
		for at, b := range cfg.Backends {
			if b != f.backends[at] || !slices.Equal(states[at], f.states[at]) {
				next[b.Name] = liveOf(b, states[at])
			}
		}
		f.fakeProxy.backends = f.fakeProxy.backends.With(next)
	} else {
		result, err = f.fakeProxy.Apply(ctx, cfg, states)
	}
	f.backends, f.states = cfg.Backends, slices.Clone(states)
	return result, err
}

const podsEach = 64 // addresses of a block

// newTown returns the cluster with this number, which has n Services. Their endpoints are spread over
// the blocks, and the blocks over the nodes. Services of the same number have the same name in every
// town.
func newTown(number, nodes, blocks, n int) *town {
	name := fmt.Sprintf("town%d", number)
	c := &town{away: map[int]bool{}}
	c.snapshot = demoSnapshot(name)
	c.snapshot.Options.InSet.Name = "all"
	room := bits.Len(uint(blocks*podsEach - 1)) // bits of an address in the pool
	first := 10<<24 + number<<room
	block := func(i int) netip.Prefix { return netip.PrefixFrom(addrOf(first+i*podsEach), 26) }
	host := func(i int) netip.Addr { return addrOf(172<<24 + 16<<16 + number<<13 + i) }

	c.objects = calico.Objects{Cluster: name, Memory: &calico.Memory{}}
	c.objects.Pools = append(c.objects.Pools, object("all", map[string]any{
		"cidr": netip.PrefixFrom(addrOf(first), 32-room).String(),
	}))
	c.objects.Configs = append(c.objects.Configs, object("default", map[string]any{"asNumber": int64(65000)}))
	for i := range nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("node-%05d", i), Annotations: map[string]string{
				"projectcalico.org/IPv4Address": host(i).String() + "/12",
			},
		}}
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: host(i).String()}}
		c.objects.Nodes = append(c.objects.Nodes, node)
	}
	for i := range blocks {
		owner := i % nodes
		c.objects.Affinities = append(c.objects.Affinities, object(block(i).String(), map[string]any{
			"cidr": block(i).String(), "node": c.objects.Nodes[owner].Name, "state": "confirmed", "deleted": "false",
		}))
		c.objects.Blocks = append(c.objects.Blocks, pods(block(i), c.objects.Nodes[owner].Name,
			n*endpointsEach/blocks+1))
		c.offers = append(c.offers, routes.Offer{
			Cluster: name, Peer: host(owner), PeerAS: 65000, Prefix: block(i), NextHop: host(owner),
		})
	}
	one := c.snapshot
	c.snapshot.Ingresses, c.snapshot.Services, c.snapshot.Slices = nil, nil, nil
	addServices(&c.snapshot.Objects, one.Objects, n, func(i int) netip.Addr {
		return addrOf(first + i%blocks*podsEach + i/blocks)
	})
	for _, svc := range c.snapshot.Services {
		c.snapshot.Exports = append(c.snapshot.Exports, &input.ServiceExport{ObjectMeta: svc.ObjectMeta})
	}
	return c
}

func addrOf(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// object returns an object of Calico.
func object(name string, spec map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	u.SetName(name)
	return u
}

// pods returns an IPAMBlock whose first n addresses belong to pods of namespace default.
func pods(block netip.Prefix, node string, n int) *unstructured.Unstructured {
	allocations := make([]any, podsEach)
	for i := range min(n, podsEach) {
		allocations[i] = int64(0)
	}
	return object(block.String(), map[string]any{
		"cidr": block.String(), "affinity": "host:" + node, "allocations": allocations,
		"attributes": []any{map[string]any{"secondary": map[string]any{"namespace": "default", "node": node}}},
	})
}

// newWorld returns a world of these clusters that has settled.
func newWorld(t testing.TB, towns ...*town) *world {
	w := &world{scene: newScene(t)}
	w.clusters = nil
	w.kernel.networks = prefixes("172.16.0.0/12")
	w.loop.kernel, w.loop.proxy = plainKernel{w.kernel}, &quickProxy{fakeProxy: w.proxy}
	w.retired = &retired{last: map[string]order{}, path: t.TempDir() + "/drained"}
	for _, c := range towns {
		w.add(c)
	}
	w.rest(t)
	if got, want := w.open(0), endpointsEach*len(towns); got != want {
		t.Fatalf("%d servers of the first Service are open, want %d", got, want)
	}
	return w
}

// add adds a cluster. Its routes are in the kernel already, as after a restart.
func (w *world) add(c *town) {
	name := c.objects.Cluster
	cfg := *w.cfg
	cfg.Clusters = append(slices.Clone(cfg.Clusters), config.Cluster{Name: name, Set: "all", State: config.Serving})
	w.cfg = &cfg
	w.towns = append(w.towns, c)
	w.clusters = append(w.clusters, &cluster{name: name, opened: opened{watcher: c, close: func() {}}})
	for _, o := range c.offers {
		w.speaker.offers = append(w.speaker.offers, o)
		w.speaker.spoken[o.Peer] = true
		w.kernel.routes[routes.To(o.Prefix)] = o.NextHop
	}
	w.speaker.state = established
}

// next runs a round, lets the clock follow it, and reports whether it changed something.
func (w *world) next(t testing.TB) (progress bool) {
	w.clock = w.clock.Add(computed(t, func() { progress = w.round(t.Context()) }))
	if err := w.view.Load().Err; err != nil {
		t.Fatal(err)
	}
	return progress
}

// rest runs rounds until nothing is left to do, and returns the time they took.
func (w *world) rest(t testing.TB) time.Duration {
	began := w.clock
	for w.next(t) {
	}
	return w.clock.Sub(began)
}

// change removes the last endpoint of a Service with its address, or brings them back.
func (c *town) change(service int) {
	at := service % len(c.snapshot.Services)
	slice := c.snapshot.Slices[at].DeepCopy()
	c.away[at] = !c.away[at]
	if c.away[at] {
		slice.Endpoints = slice.Endpoints[:endpointsEach-1]
	} else {
		last := *slice.Endpoints[0].DeepCopy()
		last.Addresses = []string{c.addressOf(at).String()}
		slice.Endpoints = append(slice.Endpoints, last)
	}
	c.snapshot.Slices = replaced(c.snapshot.Slices, at, slice)

	i := (at*endpointsEach + endpointsEach - 1) % len(c.offers)
	block := c.objects.Blocks[i].DeepCopy()
	spec := block.Object["spec"].(map[string]any)
	place := (at*endpointsEach + endpointsEach - 1) / len(c.offers)
	spec["allocations"].([]any)[place] = any(int64(0))
	if c.away[at] {
		spec["allocations"].([]any)[place] = nil
	}
	c.objects.Blocks = replaced(c.objects.Blocks, i, block)
}

// addressOf returns the address of the last endpoint of a Service.
func (c *town) addressOf(service int) netip.Addr {
	i := service*endpointsEach + endpointsEach - 1
	first := c.offers[i%len(c.offers)].Prefix.Addr().As4()
	return addrOf(int(first[0])<<24 + int(first[1])<<16 + int(first[2])<<8 + int(first[3]) + i/len(c.offers))
}

// replaced returns a copy of a list with another element at one place.
func replaced[T any](list []T, at int, one T) []T {
	list = slices.Clone(list)
	list[at] = one
	return list
}

// open returns how many servers of a Service HAProxy has open. The first cluster has the hosts, and so the
// backends.
func (w *world) open(service int) (n int) {
	c := w.towns[0]
	name := c.snapshot.Services[service%len(c.snapshot.Services)].Name
	backend := w.proxy.backends.Get(c.objects.Cluster + "__default_svc_" + name + "_80")
	if backend == nil {
		return 0
	}
	for _, s := range backend.Servers {
		if s.State == haproxy.Open {
			n++
		}
	}
	return n
}

// processor returns the processor time that this process has used.
func processor(t testing.TB) time.Duration { return usedBy(t, unix.CLOCK_PROCESS_CPUTIME_ID) }

// computed returns the processor time that do takes in its own goroutine. Other programs on the machine
// lengthen it less than the time by the clock on the wall.
func computed(t testing.TB, do func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := usedBy(t, unix.CLOCK_THREAD_CPUTIME_ID)
	do()
	return usedBy(t, unix.CLOCK_THREAD_CPUTIME_ID) - began
}

func usedBy(t testing.TB, clock int32) time.Duration {
	var at unix.Timespec
	if err := unix.ClockGettime(clock, &at); err != nil {
		t.Fatal(err)
	}
	return time.Duration(at.Nano())
}

// churn makes n pods come or go, at a rate a second. It returns the 99th percentile of the times from
// a change until HAProxy has it, and the processor time of a second.
func (w *world) churn(t testing.TB, rate float64, n int) (p99, cores float64) {
	c, began, used := w.towns[0], w.clock, processor(t)
	due := func(i int) time.Time { return began.Add(time.Duration(float64(i) / rate * float64(time.Second))) }
	var lags []time.Duration
	made := 0
	arrive := func() (came bool) {
		for made < n && !due(made).After(w.clock) {
			c.change(made)
			made++
			came = true
		}
		return came
	}
	for len(lags) < n {
		if made == len(lags) { // at rest: until the next change, or the next tick
			if wake := due(made); wake.Sub(w.clock) < tick {
				w.clock = later(w.clock, wake)
			} else {
				w.clock = w.clock.Add(tick)
			}
		}
		arrive()
		for range roundsAtOnce {
			seen := made
			progress := w.next(t)
			for len(lags) < seen && w.has(len(lags)) {
				lags = append(lags, w.clock.Sub(due(len(lags))))
			}
			if came := arrive(); !progress && !came {
				break
			}
		}
	}
	slices.Sort(lags)
	whole := w.clock.Sub(began)
	return lags[(n*99-1)/100].Seconds(), (processor(t) - used).Seconds() / whole.Seconds()
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// has reports whether HAProxy has the change of a Service.
func (w *world) has(service int) bool {
	c, want := w.towns[0], endpointsEach
	if c.away[service%len(c.snapshot.Services)] {
		want--
	}
	return w.open(service) == want
}

// remove removes a cluster from the configuration. Its BGP sessions end, too.
func (w *world) remove(number int) {
	name := w.towns[number].objects.Cluster
	cfg := *w.cfg
	cfg.Clusters = slices.DeleteFunc(slices.Clone(cfg.Clusters), func(c config.Cluster) bool { return c.Name == name })
	w.cfg = &cfg
	w.towns = slices.Delete(w.towns, number, number+1)
	w.clusters[number].gone = true
	w.speaker.offers = slices.DeleteFunc(w.speaker.offers, func(o routes.Offer) bool { return o.Cluster == name })
}

// readWorld returns a world with so many servers, these servers as read from the sockets of a HAProxy, and
// the time that the reading took.
func readWorld(t *testing.T, servers int) (w *world, live haproxy.LiveBackends, took time.Duration) {
	n := max(1, servers/endpointsEach)
	w = newWorld(t, newTown(0, 1, n*endpointsEach/podsEach+1, n))
	dir := t.TempDir()
	opt := haproxy.Options{
		Mode: haproxy.External, Dir: filepath.Join(dir, "etc"), RunDir: filepath.Join(dir, "run"),
		MasterSocket: filepath.Join(dir, "master.sock"),
	}
	if err := os.MkdirAll(opt.RunDir, 0o700); err != nil {
		t.Fatal(err)
	}
	answers := answersOf(w.proxy.backends)
	answer(t, opt.MasterSocket, answers)
	answer(t, haproxy.WorkerSocket(opt.RunDir), answers)
	p, err := haproxy.New(opt)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	live, err = p.Servers()
	took = time.Since(began)
	if err != nil || live.Len() != w.proxy.backends.Len() {
		t.Fatalf("%d backends were read, want %d: %v", live.Len(), w.proxy.backends.Len(), err)
	}
	return w, live, took
}

// answersOf returns the answers of HAProxy 2.6 to commands, if it has these servers.
func answersOf(all haproxy.LiveBackends) map[string]string {
	var backends, states, conns strings.Builder
	backends.WriteString("# name\n")
	states.WriteString("1\n# be_id be_name srv_id srv_name srv_addr\n")
	conns.WriteString("# bkname/svname bkid/svid addr port - purge_delay used_cur used_max need_est unsafe_nb safe_nb " +
		"idle_lim idle_cur idle_per_thr[1]\n")
	for name, b := range all.All() {
		fmt.Fprintln(&backends, name)
		for _, s := range b.Servers {
			fmt.Fprintf(&states, "3 %s 1 %s %s 2 0 1 1 100 6 3 4 6 0 0 0 - %d - 0 0 - - 0\n", name, s.Name, s.Addr.Addr(),
				s.Addr.Port())
			fmt.Fprintf(&conns, "%s/%s 3/1 %s %d - 5000 0 0 0 0 0 -1 0 0\n", name, s.Name, s.Addr.Addr(), s.Addr.Port())
		}
	}
	return map[string]string{
		"show proc":    "1 master 0 0d00h00m00s 2.6.12\n2 worker 0 0d00h00m00s 2.6.12\n",
		"show info":    "Version: 2.6.12\nPid: 2\nUptime_sec: 1\nCurrConns: 0\nMaxconn: 1000\n",
		"show backend": backends.String(), "show servers state": states.String(), "show servers conn": conns.String(),
		"get var proc.gen": "proc.gen: type=str value=<1>\n",
	}
}

// answer answers the commands that come to a socket, until the test ends.
func answer(t *testing.T, socket string, answers map[string]string) {
	listener, err := net.Listen("unix", socket) //nolint:noctx // it ends with the test
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			line, _ := bufio.NewReader(conn).ReadString('\n')
			for command := range strings.SplitSeq(strings.TrimSpace(line), ";") {
				_, _ = io.WriteString(conn, answers[command]+"\n")
			}
			_ = conn.Close()
		}
	}()
}
