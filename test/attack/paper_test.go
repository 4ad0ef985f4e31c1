package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/ingress/gateway"
	"sallyport/ingress/input"
	"sallyport/routes"
	netns "sallyport/test/namespace"
	"sallyport/test/rig"
)

// pods maps each Deployment to the addresses of its pods, and names what else listens.
var pods = map[string][]string{
	"default/fallback": {"172.16.10.1:8080"},
	"victim/app":       {"172.16.20.1:8080"},
	"victim/secure":    {"172.16.20.2:8080"},
	"evil/app":         {"172.16.30.1:8080"},
	"node/apiserver":   {nodeAddr + ":6443", nodeAddr + ":10250", nodeAddr + ":179"},
	"appliance/status": {applianceAddr + ":9090", applianceAddr + ":8080"},
}

// A paper is a target without a cluster. It keeps objects, compiles them, and configures a real
// HAProxy whose servers are real pods; a server is open unless the records assign its address to
// another namespace. It is for one goroutine.
type paper struct {
	t        *testing.T
	proxy    *haproxy.Proxy
	compiler ingress.Compiler
	verdicts haproxy.Verdicts
	objects  map[string]metav1.Object // by kind, namespace and name
	created  int                      // objects so far: each is a second younger than the one before
	problems []ingress.Problem
	owners   *input.Owners
	statuses []*gateway.Status
}

// open starts a paper with one HAProxy. Both end with the test.
func open(t *testing.T, binary string) *paper {
	t.Helper()
	dir, err := os.MkdirTemp("", "spa")
	if err != nil {
		t.Fatal(err)
	}
	p := &paper{t: t, verdicts: haproxy.Verdicts{}, objects: map[string]metav1.Object{}}
	p.compiler.Local = gateAddrs()
	p.compiler.Shared = map[uint16]haproxy.ListenerKind{80: haproxy.ListenHTTP, 443: haproxy.ListenHTTPS}
	var log *slog.Logger
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	p.proxy, err = haproxy.New(haproxy.Options{
		Binary: binary, Dir: filepath.Join(dir, "etc"),
		RunDir: filepath.Join(dir, "run"), MinReload: time.Millisecond, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), rig.Limit)
		defer cancel()
		if err := errors.Join(end(ctx, p.proxy.Info().Pid), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	if err := p.keep(fmt.Sprintf(classManifest, "haproxy.org/ingress-controller")); err != nil {
		t.Fatal(err)
	}
	return p
}

// end ends a process that somebody waits for. It does nothing for process 0.
func end(ctx context.Context, pid int) error {
	if pid == 0 {
		return nil
	}
	_ = syscall.Kill(pid, syscall.SIGTERM)
	return rig.Eventually(ctx, "HAProxy ends", func() error {
		if syscall.Kill(pid, 0) == nil {
			return fmt.Errorf("process %d runs", pid)
		}
		return nil
	})
}

func (p *paper) Apply(ctx context.Context, manifest string) error {
	if err := p.keep(manifest); err != nil {
		return err
	}
	return p.serve(ctx)
}

func (p *paper) Try(ctx context.Context, manifest string) error { return p.Apply(ctx, manifest) }

func (p *paper) Delete(ctx context.Context, manifest string) error {
	docs, err := read(manifest)
	if err != nil {
		return err
	}
	for _, o := range docs {
		delete(p.objects, name(o))
	}
	return p.serve(ctx)
}

func (p *paper) Dial(ctx context.Context, address string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(clientAddr)}}
	return d.DialContext(ctx, "tcp", address)
}

func (p *paper) Pod(_ context.Context, namespace, deployment string) (string, error) {
	address, _, _ := strings.Cut(pods[namespace+"/"+deployment][0], ":")
	return address, nil
}

func (p *paper) Worker(context.Context) (int, error) { return p.proxy.Info().Worker, nil }

func (p *paper) Told(_ context.Context, kind, namespace, name string) (string, error) {
	var b strings.Builder
	for _, one := range p.problems {
		if one.Kind == kind && one.Namespace == namespace && one.Name == name {
			fmt.Fprintf(&b, "%s: %s\n", one.Reason, one.Why)
		}
	}
	return b.String(), nil
}

func (p *paper) Status(_ context.Context, kind, namespace, name string) (said conditions, err error) {
	for _, one := range p.statuses {
		if one.Kind != kind || one.Namespace != namespace || one.Name != name {
			continue
		}
		var status any = one.Gateway
		if one.Gateway == nil {
			status = gatewayv1.RouteStatus{Parents: one.Parents}
		}
		text, err := json.Marshal(status)
		return said, errors.Join(err, json.Unmarshal(text, &said))
	}
	return said, fmt.Errorf("%s %s/%s has no status", kind, namespace, name)
}

// keep stores objects as an API server would: an object that exists keeps its age and its status.
func (p *paper) keep(manifest string) error {
	docs, err := read(manifest)
	if err != nil {
		return err
	}
	for _, o := range docs {
		n := name(o)
		p.created++
		o.SetCreationTimestamp(metav1.Unix(1_600_000_000+int64(p.created), 0))
		if old, is := p.objects[n]; is {
			o.SetCreationTimestamp(old.GetCreationTimestamp())
			if old, is := old.(*gatewayv1.Gateway); is {
				o.(*gatewayv1.Gateway).Status = old.Status //nolint:errcheck // the name has the type
			}
		}
		p.objects[n] = o
	}
	return nil
}

func name(o metav1.Object) string {
	return fmt.Sprintf("%T %s/%s", o, o.GetNamespace(), o.GetName())
}

// read parses manifests, and leaves out kinds that the compiler does not read.
func read(manifest string) (all []metav1.Object, err error) {
	for doc := range strings.SplitSeq(manifest, "---\n") {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
			return nil, fmt.Errorf("%w in\n%s", err, doc)
		}
		var o metav1.Object
		switch kind.Kind {
		case "Ingress":
			o = new(networkingv1.Ingress)
		case "IngressClass":
			o = new(networkingv1.IngressClass)
		case "Service":
			o = new(corev1.Service)
		case "EndpointSlice":
			o = new(discoveryv1.EndpointSlice)
		case "Secret":
			o = new(corev1.Secret)
		case "ConfigMap":
			o = new(corev1.ConfigMap)
		case "GatewayClass":
			o = new(gatewayv1.GatewayClass)
		case "Gateway":
			o = new(gatewayv1.Gateway)
		case "ListenerSet":
			o = new(gatewayv1.ListenerSet)
		case "HTTPRoute":
			o = new(gatewayv1.HTTPRoute)
		case "Backend":
			o = new(input.Backend)
		case "TCP":
			o = new(input.TCP)
		case "ReferenceGrant":
			o = new(gatewayv1.ReferenceGrant)
		case "", "Namespace", "Deployment":
			continue
		default:
			return nil, fmt.Errorf("kind %q is not known here", kind.Kind)
		}
		if err := yaml.UnmarshalStrict([]byte(doc), o); err != nil {
			return nil, fmt.Errorf("%w in\n%s", err, doc)
		}
		if s, is := o.(*corev1.Secret); is {
			for key, value := range s.StringData {
				if s.Data == nil {
					s.Data = map[string][]byte{}
				}
				s.Data[key] = []byte(value)
			}
			s.StringData = nil
		}
		all = append(all, o)
	}
	return all, nil
}

// snapshot returns the stored objects as a watcher would.
func (p *paper) snapshot() input.Snapshot {
	s := input.Snapshot{
		Cluster: "cluster", At: time.Now(), Owners: p.owners,
		Options: input.Options{
			ConfigMap: "default/defaults", ReleaseAfter: time.Hour, CustomResources: true,
			Hosts: []input.HostRule{{Host: reserved, Namespaces: []string{"victim"}}},
		},
	}
	// the defaults
	s.Options.Limits = input.Limits{
		Hosts: 5000, Paths: 20000, Clients: 1 << 20, Checks: 2500, WrongPasswords: 10, CaptureBytes: 4096,
		ConfigBytes: 4 << 20,
	}
	s.Options.Gateway = input.GatewayOptions{
		Enabled: true, Controller: controller, Shared: []netip.Addr{netip.MustParseAddr(applianceAddr)},
	}
	s.Options.Pools = input.Pools{Local: true, Ranges: []input.AddressRange{{
		First: netip.MustParseAddr(rig.GatewayAddress(0)), Last: netip.MustParseAddr(lackingAddr),
	}}}
	for _, n := range slices.Sorted(maps.Keys(p.objects)) {
		switch o := p.objects[n].(type) {
		case *networkingv1.Ingress:
			s.Ingresses = append(s.Ingresses, o)
		case *networkingv1.IngressClass:
			s.Classes = append(s.Classes, o)
		case *corev1.Service:
			s.Services = append(s.Services, o)
			if slice := sliceOf(o); slice != nil {
				s.Slices = append(s.Slices, slice)
			}
		case *discoveryv1.EndpointSlice:
			s.Slices = append(s.Slices, o)
		case *corev1.Secret:
			s.Secrets = append(s.Secrets, o)
		case *corev1.ConfigMap:
			s.ConfigMaps = append(s.ConfigMaps, o)
		case *gatewayv1.GatewayClass:
			s.API.Classes = append(s.API.Classes, o)
		case *gatewayv1.Gateway:
			s.API.Gateways = append(s.API.Gateways, o)
		case *gatewayv1.ListenerSet:
			s.API.ListenerSets = append(s.API.ListenerSets, o)
		case *gatewayv1.HTTPRoute:
			s.API.HTTPRoutes = append(s.API.HTTPRoutes, o)
		case *input.Backend:
			s.Backends = append(s.Backends, o)
		case *input.TCP:
			s.TCPs = append(s.TCPs, o)
		case *gatewayv1.ReferenceGrant:
			s.API.Grants = append(s.API.Grants, o)
		}
	}
	return s
}

// sliceOf returns the EndpointSlice that a cluster writes for a Service with a selector.
func sliceOf(s *corev1.Service) *discoveryv1.EndpointSlice {
	listens, is := pods[s.Namespace+"/"+s.Spec.Selector["app"]]
	if !is {
		return nil
	}
	address, _, _ := strings.Cut(listens[0], ":")
	port, ready, web := int32(8080), true, "web"
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: s.Name + "-slice",
			Labels: map[string]string{discoveryv1.LabelServiceName: s.Name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &web, Port: &port}},
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: s.Namespace, Name: s.Spec.Selector["app"]},
		}},
	}
}

// serve configures HAProxy by the objects, as the appliance does: it asks HAProxy each question,
// and looks for the part because of which HAProxy refuses a configuration.
func (p *paper) serve(ctx context.Context) error {
	for range 10 {
		p.compiler.Judge(maps.Clone(p.verdicts))
		r := p.compiler.Compile([]input.Snapshot{p.snapshot()})
		for p.record(r.Statuses["cluster"]) {
			r = p.compiler.Compile([]input.Snapshot{p.snapshot()})
		}
		p.problems, p.owners, p.statuses = r.Problems, r.Owners["cluster"], r.Statuses["cluster"]
		var unknown []haproxy.Question
		for _, q := range r.Questions {
			if !p.verdicts[q.Part()].Known {
				unknown = append(unknown, q)
			}
		}
		if len(unknown) > 0 {
			answers, err := p.proxy.Vet(ctx, unknown)
			if err != nil {
				return err
			}
			maps.Copy(p.verdicts, answers)
			continue
		}
		r.Config.Bind = haproxy.Bind{
			HTTP:  []netip.AddrPort{netip.MustParseAddrPort(applianceAddr + ":80")},
			HTTPS: []netip.AddrPort{netip.MustParseAddrPort(applianceAddr + ":443")},
		}
		err := p.apply(ctx, &r.Config)
		if !errors.Is(err, haproxy.ErrUnfit) {
			return err
		}
		guilty, blamed := p.proxy.Blame(ctx, &r.Config)
		if blamed != nil || len(guilty) == 0 {
			return errors.Join(err, blamed)
		}
		maps.Copy(p.verdicts, guilty)
	}
	return errors.New("HAProxy refuses more and more")
}

// record writes the addresses of Gateways into their statuses. It reports whether one has changed.
func (p *paper) record(statuses []*gateway.Status) (changed bool) {
	for _, one := range statuses {
		n := name(&gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: one.Namespace, Name: one.Name}})
		g, is := p.objects[n].(*gatewayv1.Gateway)
		if !is || one.Gateway == nil || reflect.DeepEqual(g.Status.Addresses, one.Gateway.Addresses) {
			continue
		}
		g, changed = g.DeepCopy(), true
		g.Status.Addresses = one.Gateway.Addresses
		p.objects[n] = g
	}
	return changed
}

func (p *paper) apply(ctx context.Context, cfg *haproxy.Config) error {
	states, records := make(haproxy.States, len(cfg.Backends)), routes.Allocate(p.facts())
	for i, b := range cfg.Backends {
		for _, server := range b.Servers {
			state := haproxy.Open
			if !records.Refuse(b.Cluster, b.Namespace, server.Addr).None() {
				state = haproxy.Closed
			}
			states[i] = append(states[i], state)
		}
	}
	for {
		result, err := p.proxy.Apply(ctx, cfg, states)
		if err != nil || result.RetryAt.IsZero() {
			return err
		}
		if strings.Contains(result.Reason, "backend") || !result.Reloaded && result.Reason == "" {
			return nil // servers with connections are removed later, and backends that nothing leads to
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Until(result.RetryAt)):
		}
	}
}

// facts returns Calico's records of the pods and the node, and the networks of the appliance.
func (p *paper) facts() routes.Facts {
	node := routes.Node{Name: "master", Addresses: []netip.Addr{netip.MustParseAddr(nodeAddr)}}
	block := &routes.IPAMBlock{Prefix: netip.MustParsePrefix("172.16.0.0/16"), Pods: map[netip.Addr]string{}}
	for name, listens := range pods {
		if at := netip.MustParseAddrPort(listens[0]).Addr(); block.Prefix.Contains(at) {
			block.Pods[at], _, _ = strings.Cut(name, "/")
		}
	}
	return routes.Facts{
		Local: routes.Local{Addrs: []netip.Addr{netip.MustParseAddr(applianceAddr)}},
		Topologies: []routes.Topology{{
			Cluster: "cluster", Nodes: []routes.Node{node},
			Blocks: []*routes.IPAMBlock{block},
		}},
	}
}

// TestMain runs the tests in a network namespace of their own, in which the appliance, clients and
// pods have the addresses of a lab.
func TestMain(m *testing.M) {
	const inside = "SALLYPORT_TEST_INSIDE"
	if os.Getenv(inside) == "" {
		os.Exit(netns.Again(inside + "=1"))
	}
	addresses := []string{clientAddr}
	for _, at := range gateAddrs() {
		addresses = append(addresses, at.String())
	}
	for _, listens := range pods {
		address, _, _ := strings.Cut(listens[0], ":")
		addresses = append(addresses, address)
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "ip link set lo up: %v: %s\n", err, out)
		os.Exit(1)
	}
	for _, a := range addresses {
		if out, err := exec.Command("ip", "address", "add", a+"/32", "dev", "lo").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "ip address add %s: %v: %s\n", a, err, out)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// gateAddrs returns the addresses that the appliance has for Gateways.
func gateAddrs() (all []netip.Addr) {
	for a := netip.MustParseAddr(rig.GatewayAddress(0)); a.String() != lackingAddr; a = a.Next() {
		all = append(all, a)
	}
	return all
}

// startPods runs the sample application once for each pod.
func startPods(t *testing.T, dir string) {
	t.Helper()
	if err := rig.Compile(t.Context(), dir, "test/app"); err != nil {
		t.Fatal(err)
	}
	for name, listens := range pods {
		namespace, app, _ := strings.Cut(name, "/")
		cmd := exec.Command(filepath.Join(dir, "app"))
		for _, l := range listens {
			cmd.Args = append(cmd.Args, "-listen", l)
		}
		if app == "secure" {
			cmd.Args = append(cmd.Args, "-tls-cert", dir+"/through.pem", "-tls-key", dir+"/through.pem")
		}
		cmd.Env = []string{"POD_NAME=" + namespace + "-" + app, "POD_NAMESPACE=" + namespace}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		if err := rig.Eventually(t.Context(), name+" listens", func() error {
			conn, err := net.Dial("tcp", listens[0])
			if err != nil {
				return err
			}
			return conn.Close()
		}); err != nil {
			t.Fatal(err)
		}
	}
}
