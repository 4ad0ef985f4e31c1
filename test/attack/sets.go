package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"sallyport/appliance/status"
	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/test/faults"
	"sallyport/test/lab/world"
	"sallyport/test/load"
	"sallyport/test/rig"
)

// sets returns the attacks between two clusters whose exported Services are served as one
// (clusters[].set). In the second cluster victim is another team, whose pods are called stranger.
func sets() []attack {
	const together, apart = "set: both, weight: 50, ", "set: another, weight: 50, "
	inSet := func(attack operatorsAttack) labAttack { return inSets(together, together, attack) }
	return []attack{
		{
			by:      "operator",
			tries:   "of a second cluster of a set exports victim's Service there alone, and names victim's hosts",
			promise: "an export in one cluster changes nothing in the other one",
			lab:     inSet(exports("")),
		},
		{
			by: "operator",
			tries: "of a second cluster in another set exports victim's Service as victim does, and names " +
				"victim's hosts",
			promise: "clusters share nothing unless the configuration file says so",
			lab:     inSets(together, apart, exports(rig.Export("victim", "app"))),
		},
		{
			by: "operator",
			tries: "of a second cluster of a set records victim's node, block and pod as its own, and the pod as its " +
				"API server, while the appliance is killed",
			promise: "nodes, blocks and pods stay with the first cluster that has them, and no request fails",
			lab:     inSet(recordsForeign),
		},
		{
			by: "operator",
			tries: "of a second cluster with the same network of pods, and a source, records and announces victim's " +
				"block as its own, and claims victim's pod, while rules of the kernel are removed and the appliance is killed",
			promise: "no request takes a route of another cluster",
			lab:     inSets(sourceOfOne, sourceOfTwo, recordsSame),
		},
		{
			by: "operator",
			tries: "of a second cluster with the same network of pods, and a source, has a pod with the address of " +
				"victim's, while the appliance is killed after each message to the kernel from its first change of rules and " +
				"routes to the last",
			promise: "no request is answered by a pod of another cluster, and each rule leads to a table that refuses " +
				"what no route of it leads",
			lab: inSets(sourceOfOne, sourceOfTwo, killedAtCalls),
		},
		{
			by: "operator",
			tries: "of a second cluster of a set exports and withdraws victim's Service, while the appliance and " +
				"HAProxy are killed",
			promise: "no request for a Service that one cluster does not export is answered by a pod of another one",
			lab:     inSet(exportsDuringStarts),
		},
		{
			by: "tenant",
			tries: "exports its Service in both clusters of a set, names a free path of victim's host in the second, " +
				"and claims victim's pods in both",
			promise: "a namespace shares its own Services, hosts and pods",
			lab:     inSet(exportsOwn),
		},
		{
			by:      "operator",
			tries:   "of a second cluster of a set gives it weights of 10⁹, -1, 1e9, Inf, NaN, 0x7f and text",
			promise: "a cluster lowers its own share, and changes no other one",
			lab:     inSet(weighsMore),
		},
		{
			by: "tenant",
			tries: "has 2,000 ServiceExports and 2,000 EndpointSlices in the second cluster of a set, and exports a " +
				"Service again and again",
			promise: "a change of victim in the first cluster is served meanwhile, without a reload for evil's exports",
			lab:     inSet(exportsMany),
		},
	}
}

// strangers returns a namespace victim of the second cluster, with the same Services as that of the first
// one. The answers of its pods begin with "stranger".
func strangers() string {
	return namespace("victim") + rig.App{Namespace: "victim", Name: "app", Pod: "stranger-app"}.Manifest() +
		rig.Service("victim", "app", "app")
}

// byStranger reports whether a pod of the second cluster's victim has given an answer.
func (a answer) byStranger() bool { return strings.HasPrefix(a.header.Get("X-Pod"), "stranger") }

// inSets gives the first and the second cluster further keys during an attack, and keeps the ConfigMap of the
// first one.
func inSets(first, second string, attack operatorsAttack) labAttack {
	with := func(keys string) side { return side{ingress: configMapOfOne, keys: keys} }
	return besides(with(first), with(second), func(ctx context.Context, s *testbed, two *lab) error {
		rights, err := s.rig.Manifests(ctx, "--cluster", "default")
		if err != nil {
			return err
		}
		if err := errors.Join(s.Apply(ctx, rights), s.rig.AddExports(ctx), two.AddExports(ctx)); err != nil {
			return err
		}
		return attack(ctx, s, two)
	})
}

// exports exports victim's Service in the second cluster, with Ingresses and a certificate for victim's hosts,
// beside an export of the first one, if any.
func exports(first string) operatorsAttack {
	return func(ctx context.Context, s *testbed, two *lab) (err error) {
		objects := strangers() + rig.Export("victim", "app") +
			strings.ReplaceAll(s.evil.certificate("stolen", "shop.test"), "namespace: evil", "namespace: victim") +
			ingressOf("victim", "plain", nil, rule("plain.test", path("/", "app"))) +
			ingressOf("victim", "shop", nil, withTLS("stolen", "shop.test"),
				rule("shop.test", path("/login", "app"), path("/cart", "app")))
		if first != "" {
			if err := s.Apply(ctx, first); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, s.Delete(ctx, first)) }()
		}
		defer func() { err = errors.Join(err, two.Delete(ctx, objects), s.seen(ctx)) }()
		return errors.Join(two.Apply(ctx, objects), s.strange(ctx, two), s.seen(ctx), s.reported(ctx, "shop.test"),
			s.unharmed(ctx))
	}
}

// strange waits until a host of the second cluster's victim is served, so that everything before it is in
// effect.
func (s *testbed) strange(ctx context.Context, two *lab) error {
	host := ingressOf("victim", "strange", nil, rule("strange.two.test", path("/", "app")))
	served := func() error {
		got, err := s.ask(ctx, request{host: "strange.two.test"})
		if err == nil && !got.byStranger() {
			err = fmt.Errorf("the second cluster is not served: got %s", got)
		}
		return err
	}
	return errors.Join(two.Apply(ctx, host), s.eventually(ctx, served), two.Delete(ctx, host))
}

// sharedHost leads to a Service of victim that both clusters export.
const sharedHost = "shared.test"

// sharing returns the objects of victim in the first cluster for sharedHost, and those in the second one.
func sharing() (first, second string) {
	shared := rig.Service("victim", "shared", "app") + rig.Export("victim", "shared")
	return shared + ingressOf("victim", "shared", nil, rule(sharedHost, path("/", "shared"))), strangers() + shared
}

// isShared waits until pods of the second cluster, too, answer for sharedHost, or until they do not.
func (s *testbed) isShared(ctx context.Context, want bool) error {
	return s.eventually(ctx, func() error {
		got, err := s.answersOfShared(ctx, 40)
		if err == nil && (got > 0) != want {
			err = fmt.Errorf("%d of 40 requests for %s are answered by the second cluster", got, sharedHost)
		}
		return err
	})
}

// answersOfShared returns how many of n requests for sharedHost pods of the second cluster answer. Each
// other one is answered by victim.
func (s *testbed) answersOfShared(ctx context.Context, n int) (strange int, err error) {
	for range n {
		got, err := s.ask(ctx, request{host: sharedHost})
		if err == nil && got.status != http.StatusOK {
			err = fmt.Errorf("%s: got %s", sharedHost, got)
		}
		if err != nil {
			return 0, err
		}
		if got.byStranger() {
			strange++
		}
	}
	return strange, nil
}

// exportsDuringStarts kills and starts the appliance, and then HAProxy, too, while one Service is exported
// in both clusters, and another one in the second cluster is withdrawn and exported. Then victim withdraws
// the first export while the appliance is down.
func exportsDuringStarts(ctx context.Context, s *testbed, two *lab) (err error) {
	first, second := sharing()
	alone := rig.Export("victim", "app")
	second += ingressOf("victim", "plain", nil, rule("plain.test", path("/", "app")))
	defer func() {
		err = errors.Join(err, s.Delete(ctx, first), two.Delete(ctx, second+alone), s.seen(ctx))
	}()
	if err := errors.Join(s.Apply(ctx, first), two.Apply(ctx, second+alone), s.isShared(ctx, true)); err != nil {
		return err
	}
	count, err := s.asked(ctx, func() error {
		return errors.Join(s.killed(ctx, false, func() error { return two.Delete(ctx, alone) }), s.isShared(ctx, true),
			s.killed(ctx, true, func() error { return two.Apply(ctx, alone) }), s.isShared(ctx, true), s.seen(ctx))
	})
	if astray := slices.DeleteFunc(slices.Concat(count.Failed, count.Broken), func(o load.Outcome) bool {
		return !errors.Is(o.Err, load.ErrWrong)
	}); len(astray) > 0 {
		err = errors.Join(err, fmt.Errorf("%d of %d requests for a Service that the first cluster does not export are "+
			"answered by another pod than victim's, first %s", len(astray), count.Sent+count.Asked, astray[0]))
	}
	if err != nil {
		return err
	}
	withdraw := func() error { return s.Delete(ctx, rig.Export("victim", "shared")) }
	return errors.Join(s.killed(ctx, false, withdraw), s.seen(ctx), s.isShared(ctx, false))
}

// asked calls do while clients ask for victim's plain.test, and returns the count of their requests.
func (s *testbed) asked(ctx context.Context, do func() error) (load.Count, error) {
	clients := s.watch(ctx, "plain.test", "victim-app", 20*time.Millisecond)
	defer clients.Stop()
	return clients.During(ctx, 1, 1, do)
}

// watch lets clients ask for a host, again and again. A good answer has the name of a pod.
func (s *testbed) watch(ctx context.Context, host, pod string, every time.Duration) *load.Witness {
	return load.Watch(ctx, load.Clients{
		Targets: []string{applianceAddr + ":80"}, Host: host, Wants: pod, New: every, Kept: 4, Every: every,
		Waits: rig.Limit, Dial: s.Dial,
	})
}

// killed kills the appliance, and HAProxy if all is set, calls do, and starts the appliance.
func (s *testbed) killed(ctx context.Context, all bool, do func() error) error {
	status, err := s.rig.Status(ctx)
	if err != nil {
		return err
	}
	err = s.rig.Stop(syscall.SIGKILL)
	if all {
		err = errors.Join(err, faults.Kill(status.HAProxy.Worker, status.HAProxy.Pid))
	}
	return errors.Join(err, do(), s.start(ctx), s.rig.Ready(ctx))
}

// start starts the appliance as if it had not crashed before: after three crashes it would search for the object that
// causes them.
func (s *testbed) start(ctx context.Context) error { return s.startUnder(ctx) }

// startUnder does as start, by a program that becomes the appliance.
func (s *testbed) startUnder(ctx context.Context, program ...string) error {
	err := os.Remove(filepath.Join(s.rig.Dir, "state", "crashes.json"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return s.rig.StartUnder(ctx, program...)
}

// recordsForeign records in the second cluster that the node, the block and the address of victim's pod are its
// own, and that its API server is that pod. Its own node announces the block. Then the appliance is killed.
func recordsForeign(ctx context.Context, s *testbed, two *lab) (err error) {
	host, err := s.rig.Kubectl(ctx, "get", "pods", "-n", "victim", "-l", "app=app", "-o",
		"jsonpath={.items[0].spec.nodeName}")
	if err != nil {
		return err
	}
	before, err := kernelRoutes(ctx, s.rig)
	if err != nil {
		return err
	}
	own, pod := rig.Export("evil", "app"), netip.MustParseAddr(s.pod)
	block := netip.PrefixFrom(pod, 26).Masked()
	objects := own + records(node(s.rig, host), block, pod) +
		claimed("default", "kubernetes", s.pod) + claimed("evil", "app", s.pod)
	defer func() { err = errors.Join(err, two.Delete(ctx, objects), s.Delete(ctx, own), s.seen(ctx)) }()
	refused := func() error {
		now, err := s.rig.Status(ctx)
		if err == nil && !slices.ContainsFunc(now.Refused.Shown, func(r status.RefusalStatus) bool {
			return r.Cluster == "two" && r.Prefix == block
		}) {
			err = fmt.Errorf("the second cluster's offer of %s is not refused: %+v", block, now.Refused)
		}
		return errors.Join(err, s.refuses(ctx, "evil_svc_app_web", 1))
	}
	count, err := s.asked(ctx, func() error {
		return errors.Join(s.Apply(ctx, own), two.Apply(ctx, objects), s.eventually(ctx, refused), s.seen(ctx),
			s.killed(ctx, false, func() error { return nil }), s.eventually(ctx, refused), s.seen(ctx))
	})
	return errors.Join(err, count.Losses(), same(ctx, s.rig, before))
}

// twoSource is the address of the appliance in the network of the second cluster's nodes.
const twoSource = "192.168.51.21"

// recordsSame records in the second cluster that the block and the address of victim's pod are its own. Its own node
// announces the block. Then rules are removed, and the appliance is killed.
func recordsSame(ctx context.Context, s *testbed, two *lab) (err error) {
	pod := netip.MustParseAddr(s.pod)
	block := netip.PrefixFrom(pod, 26).Masked()
	objects := recordsOf(block, pod) + claimed("evil", "app", s.pod)
	defer func() { err = errors.Join(err, two.Delete(ctx, objects), s.seen(ctx)) }()
	routed := func() error {
		now, err := s.rig.Status(ctx)
		if err == nil && !slices.ContainsFunc(now.Routes, func(r status.RouteStatus) bool {
			return r.Prefix == block && r.Source.String() == twoSource && r.Installed
		}) {
			err = fmt.Errorf("the second cluster has no route to %s of its own: %+v", block, now.Routes)
		}
		return err
	}
	strange := func() error {
		for range 20 {
			got, err := s.ask(ctx, request{host: "home.two.test"})
			if err == nil && strings.HasPrefix(got.header.Get("X-Pod"), "victim") {
				err = fmt.Errorf("a host of the second cluster is answered by victim: %s", got)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	unruled := func() error {
		for _, source := range []string{applianceAddr, twoSource} {
			if _, err := s.rig.Exec(ctx, world.Appliance, "ip", "rule", "del", "priority", "100", "from", source); err != nil {
				return err
			}
		}
		return errors.Join(strange(), s.eventually(ctx, routed))
	}
	count, err := s.asked(ctx, func() error {
		err := errors.Join(two.Apply(ctx, objects), s.eventually(ctx, routed), strange())
		for range 5 {
			err = errors.Join(err, unruled())
		}
		return errors.Join(err, s.killed(ctx, false, func() error { return nil }), s.eventually(ctx, routed), strange(),
			// A check that failed while a rule was missing takes the server out of service for some seconds.
			s.eventually(ctx, func() error { return s.unharmed(ctx) }))
	})
	for _, o := range slices.Concat(count.Failed, count.Broken) {
		if errors.Is(o.Err, load.ErrWrong) {
			err = errors.Join(err, fmt.Errorf("a request for victim is answered by another pod: %s", o))
		}
	}
	return err
}

// records returns a node of the second cluster with the BGP address of a host, and the block of a pod there, with
// the pod in namespace evil. The block belongs to the second cluster's own worker1.
func records(host world.Host, block netip.Prefix, pod netip.Addr) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Node
metadata: {name: liar, annotations: {projectcalico.org/IPv4Address: %s}}
status: {addresses: [{type: InternalIP, address: %s}]}
`, host.Addr, host.Addr.Addr()) + recordsOf(block, pod)
}

// recordsOf returns a block of the second cluster's own worker1, with a pod in namespace evil.
func recordsOf(block netip.Prefix, pod netip.Addr) string {
	ordinal := 0
	for a := block.Addr(); a != pod; a = a.Next() {
		ordinal++
	}
	name := strings.NewReplacer(".", "-", "/", "-").Replace(block.String())
	free := strings.Repeat("null, ", ordinal)
	return fmt.Sprintf(`---
apiVersion: crd.projectcalico.org/v1
kind: IPPool
metadata: {name: stolen}
spec: {cidr: %[1]s, blockSize: 26, ipipMode: Never, vxlanMode: Never, nodeSelector: "!all()"}
---
apiVersion: crd.projectcalico.org/v1
kind: BlockAffinity
metadata: {name: worker1-%[2]s}
spec: {cidr: %[1]s, node: worker1, state: confirmed, deleted: "false"}
---
apiVersion: crd.projectcalico.org/v1
kind: IPAMBlock
metadata: {name: %[2]s}
spec:
  cidr: %[1]s
  affinity: host:worker1
  strictAffinity: false
  deleted: false
  allocations: [%[3]s0]
  unallocated: []
  attributes: [{handle_id: stolen, secondary: {namespace: evil, pod: app, node: worker1}}]
`, block, name, free)
}

// exportsOwn exports a Service of evil in both clusters, names victim's hosts in the second one, and claims
// victim's pods of both clusters in both.
func exportsOwn(ctx context.Context, s *testbed, two *lab) (err error) {
	if err := two.Apply(ctx, strangers()); err != nil {
		return err
	}
	strange, err := two.Pod(ctx, "victim", "app")
	if err != nil {
		return err
	}
	claimed := rig.Export("evil", "app") + claimed("evil", "app", s.pod, strange)
	objects := claimed + s.evil.certificate("anything", "plain.test", "shop.test") +
		ingressOf("evil", "login", nil, withTLS("anything", "plain.test", "shop.test"),
			rule("shop.test", path("/login", "app"))) +
		ingressOf("evil", "canary", []string{"sallyport.dev/canary-weight: 100"}, rule("plain.test", path("/", "app")))
	defer func() {
		err = errors.Join(err, two.Delete(ctx, strangers()+objects), s.Delete(ctx, claimed), s.seen(ctx))
	}()
	if err := errors.Join(two.Apply(ctx, objects), s.Apply(ctx, claimed), s.reported(ctx, "shop.test"),
		s.strange(ctx, two)); err != nil {
		return err
	}
	if err := s.eventually(ctx, func() error { return s.refuses(ctx, "evil_svc_app_web", 4) }); err != nil {
		return err
	}
	for range 40 {
		got, err := s.ask(ctx, request{host: evilHost})
		if err == nil && got.pod != "evil" {
			err = fmt.Errorf("%s: got %s", evilHost, got)
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(s.seen(ctx), s.unharmed(ctx))
}

// claimed returns an EndpointSlice that claims addresses for a Service.
func claimed(namespace, service string, addresses ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n"+
		"metadata: {namespace: %s, name: %s-claimed, labels: {kubernetes.io/service-name: %[2]s}}\n"+
		"addressType: IPv4\nports: [{name: web, port: 8080}]\nendpoints:\n", namespace, service)
	for _, address := range addresses {
		fmt.Fprintf(&b, "- {addresses: [%s], conditions: {ready: true}}\n", address)
	}
	return b.String()
}

// refuses checks that a backend has servers of both clusters open, and this many refused by the records.
func (s *testbed) refuses(ctx context.Context, backend string, want int) error {
	now, err := s.rig.Status(ctx)
	if err != nil {
		return err
	}
	open, refused := map[string]int{}, 0
	for _, b := range now.Backends {
		for _, server := range b.Servers {
			switch {
			case b.Name != backend:
			case server.Reason == status.AddressDenied:
				refused++
			case server.State == haproxy.Open.String():
				open[server.Cluster]++
			}
		}
	}
	if len(open) != 2 || refused != want {
		return fmt.Errorf("%s has open servers %v and %d refused ones, want some of both clusters and %d", backend, open,
			refused, want)
	}
	return nil
}

// weighsMore lets the second cluster set weights for itself: wrong ones, which are reported and change
// nothing, and then less than the whole.
func weighsMore(ctx context.Context, s *testbed, two *lab) (err error) {
	first, second := sharing()
	set := func(weight string) string {
		return fmt.Sprintf("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {namespace: default, name: defaults}\n"+
			"data: {cluster-weight: %q}\n", weight)
	}
	defer func() {
		err = errors.Join(err, s.Delete(ctx, first), two.Delete(ctx, second+set("")), s.seen(ctx))
	}()
	if err := errors.Join(s.Apply(ctx, first), two.Apply(ctx, second), s.isShared(ctx, true),
		s.has(ctx, 50)); err != nil {
		return err
	}
	for _, weight := range []string{"1000000000", "101", "-1", "1e9", "Inf", "NaN", "0x7f", "50%", "much", "100\n200"} {
		if err := errors.Join(two.Apply(ctx, set(weight)), s.reported(ctx, annotations.Quote(weight)),
			s.has(ctx, 50)); err != nil {
			return fmt.Errorf("with %q: %w", weight, err)
		}
	}
	return errors.Join(two.Apply(ctx, set("0")), s.has(ctx, 0), s.isShared(ctx, false), two.Apply(ctx, set("25")),
		s.has(ctx, 20), two.Apply(ctx, set("100")), s.has(ctx, 50), s.unharmed(ctx))
}

// has waits until pods of the second cluster answer so many per cent of the requests for sharedHost, give or
// take 5: HAProxy takes turns.
func (s *testbed) has(ctx context.Context, percent int) error {
	return s.eventually(ctx, func() error {
		got, err := s.answersOfShared(ctx, 100)
		if err == nil && (got < percent-5 || got > percent+5) {
			err = fmt.Errorf("pods of the second cluster answer %d %% of the requests, want %d %%", got, percent)
		}
		return err
	})
}

// exportsMany gives evil many exports, and many EndpointSlices of an exported Service, in the second cluster.
// Then it exports and withdraws that Service without end, while victim changes an Ingress.
func exportsMany(ctx context.Context, s *testbed, two *lab) (err error) {
	const many, parts, changes = 2000, 4, 3
	own := rig.Export("evil", "app")
	defer func() {
		for _, list := range []string{
			"multicluster.x-k8s.io/v1beta1/namespaces/evil/serviceexports",
			"discovery.k8s.io/v1/namespaces/evil/endpointslices?labelSelector=many%3Dyes",
		} {
			_, gone := two.Kubectl(ctx, "delete", "--raw", "/apis/"+list)
			err = errors.Join(err, gone)
		}
		err = errors.Join(err, s.Delete(ctx, own), s.seen(ctx))
	}()
	if err := errors.Join(s.Apply(ctx, own), two.Apply(ctx, own)); err != nil {
		return err
	}
	creates := make(chan error, parts)
	for part := range parts {
		go func() { creates <- create(ctx, two.Rig, manyExports(part*many/parts, many/parts)) }()
	}
	for range parts {
		err = errors.Join(err, <-creates)
	}
	if err != nil {
		return err
	}
	again, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		var err error
		for again.Err() == nil && err == nil {
			err = errors.Join(two.Delete(ctx, own), two.Apply(ctx, own))
		}
		ended <- err
	}()
	before, err := os.ReadFile(s.rig.LogFile())
	for range changes {
		err = errors.Join(err, s.seen(ctx))
	}
	stop()
	after, failed := os.ReadFile(s.rig.LogFile())
	if err = errors.Join(err, failed, <-ended); err != nil {
		return err
	}
	for line := range strings.Lines(string(after[len(before):])) {
		// victim adds and removes backends, and changes no backend.
		if strings.Contains(line, "HAProxy reloaded") &&
			(strings.Contains(line, "evil") || strings.Contains(line, "changed")) {
			err = errors.Join(err, fmt.Errorf("an export takes a reload: %s", strings.TrimSpace(line)))
		}
	}
	return err
}

// create makes objects, without the copy that kubectl apply keeps of each.
func create(ctx context.Context, r *rig.Rig, manifest string) error {
	cmd := r.Lab.Kubectl(ctx, "create", "-f", "-")
	cmd.Stdin = strings.NewReader(manifest)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl create: %w\n%.300s", err, out)
	}
	return nil
}

// manyExports returns exports of evil, and as many EndpointSlices of its Service app, numbered from first.
func manyExports(first, count int) string {
	var b strings.Builder
	for i := first; i < first+count; i++ {
		b.WriteString(rig.Export("evil", fmt.Sprintf("many%d", i)))
		fmt.Fprintf(&b, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {namespace: evil, "+
			"name: many%d, labels: {kubernetes.io/service-name: app, many: \"yes\"}}\naddressType: IPv4\n"+
			"ports: [{name: web, port: 8080}]\nendpoints: [{addresses: [10.77.%d.%d]}]\n", i, i/250, i%250+1)
	}
	return b.String()
}
