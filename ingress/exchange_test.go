package ingress

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/haproxy"
)

// TestAFewRoutesAreRoutedAlone walks random histories. In most steps, routes of Gateway API change. It
// compares a Compiler with Compile at every step: the Result, and the reports about Gateways and routes.
func TestAFewRoutesAreRoutedAlone(t *testing.T) {
	alone, all, claims := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		verdicts := verdictsOfGates()
		c := Compiler{Shared: sharedPorts}
		c.Judge(verdicts)
		s := drawGates(t)
		before := ""
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			for range rapid.IntRange(1, 2).Draw(t, "changes") {
				changeOneRoute(t, &s)
			}
			fresh := Compiler{Shared: sharedPorts}
			fresh.Judge(verdicts)
			got, want := c.Compile([]Snapshot{s}), fresh.Compile([]Snapshot{s})
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(),
				cmpopts.EquateComparable(netip.AddrPort{}, haproxy.Directive{}, haproxy.Line{}, haproxy.Text{},
					haproxy.Question{}, haproxy.Part{}), comparesRoutes, cmpopts.IgnoreUnexported(Result{})); diff != "" {
				t.Fatalf("from nothing (-), remembered (+):\n%s", diff)
			}
			if diff := cmp.Diff(tellAll(want), tellAll(got), cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("reported, from nothing (-), remembered (+):\n%s", diff)
			}
			if diff := cmp.Diff(oldestOf(&fresh), oldestOf(&c)); diff != "" {
				t.Fatalf("who leads to backends, from nothing (-), remembered (+):\n%s", diff)
			}
			// A change that changes nothing that is served says little.
			if now := tellGates(got) + tellShared(got); now != before {
				before, all = now, all+1
				if c.made.amended {
					alone++
					if slices.ContainsFunc(c.routing.claims, func(c *claim) bool { return c.Route != nil && c.Effective }) {
						claims++
					}
				}
			}
		}
	})
	t.Logf("%d of %d routings were made of the one before, %d of them with claims of routes", alone, all, claims)
	if all >= 100 && (alone < all/5 || claims < all/50) {
		t.Errorf("%d of %d routings were made of the one before, %d of them with claims of routes: the test hardly tests it",
			alone, all, claims)
	}
}

// verdictsOfGates returns good verdicts on the ports of the Gateway of gated.
func verdictsOfGates() haproxy.Verdicts {
	verdicts := haproxy.Verdicts{haproxy.LuaSupport().Part(): haproxy.Good}
	for _, port := range []uint16{80, 81, 82, 443, 5432} {
		verdicts[haproxy.FreeListener(netip.AddrPortFrom(netip.MustParseAddr(gateAt), port)).Part()] = haproxy.Good
	}
	return verdicts
}

// The keys of a Service count for the routes that lead there, and one namespace has a limit for all
// routes. The Service alone changes here, so that one of the two routes is routed again.
func TestAServiceThatGrowsTakesARouteBeyondTheLimit(t *testing.T) {
	s := gated()
	s.Options.Limits.ConfigBytes = 400
	home, port := gatewayv1.Namespace("m"), int32(80)
	for i, name := range []gatewayv1.ObjectName{"a", "b"} {
		route := &gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "m", Name: string(name), UID: "x"}}
		route.Spec.ParentRefs = []gatewayv1.ParentReference{{Name: "g0", Namespace: &home}}
		route.Spec.Hostnames = []gatewayv1.Hostname{gatewayv1.Hostname(name) + ".example"}
		rule := gatewayv1.HTTPRouteRule{Filters: []gatewayv1.HTTPRouteFilter{{
			Type: gatewayv1.HTTPRouteFilterRequestHeaderModifier,
			RequestHeaderModifier: &gatewayv1.HTTPHeaderFilter{
				Set: []gatewayv1.HTTPHeader{{Name: "X-A", Value: fmt.Sprint(i)}},
			},
		}}}
		rule.BackendRefs = []gatewayv1.HTTPBackendRef{{BackendRef: gatewayv1.BackendRef{
			BackendObjectReference: gatewayv1.BackendObjectReference{Name: name, Port: &port},
		}}}
		route.Spec.Rules = []gatewayv1.HTTPRouteRule{rule}
		s.API.HTTPRoutes = append(s.API.HTTPRoutes, route)
	}
	grow := func(i, bytes int) {
		s.Services = slices.Clone(s.Services)
		s.Services[i] = s.Services[i].DeepCopy()
		s.Services[i].Annotations = map[string]string{"haproxy.org/check-http": "/" + strings.Repeat("x", bytes)}
	}
	var c Compiler
	c.Judge(verdictsOfGates())
	refused := func() (all []string) {
		for _, p := range c.Compile([]Snapshot{s}).Problems {
			all = append(all, p.Kind+" "+p.Name+" "+p.Reason)
		}
		return all
	}
	grow(0, 100)
	if got := refused(); len(got) > 0 {
		t.Fatalf("within the limit: %q", got)
	}
	grow(1, 200)
	if got, want := refused(), []string{"HTTPRoute b LimitReached"}; !slices.Equal(got, want) {
		t.Errorf("with a longer key of a Service: got %q, want %q", got, want)
	}
}

// A route asks for paths at the addresses of Ingresses even if its hosts there belong to somebody else. They
// count for the limit of its namespace when another route comes.
func TestARouteWithoutItsHostsCountsForTheNextOne(t *testing.T) {
	s := gated()
	s.Options.Limits.Paths = 8
	s.Options.Gateway.Shared = []netip.Addr{netip.MustParseAddr("198.51.100.1")}
	s.API.Gateways[0].Spec.Addresses = []gatewayv1.GatewaySpecAddress{{Value: gateAt}}
	all, host := gatewayv1.NamespacesFromAll, gatewayv1.Hostname("")
	shared := &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "m", Name: "s0", UID: "s"}}
	shared.Spec.GatewayClassName = "ours"
	shared.Spec.Listeners = []gatewayv1.Listener{{
		Name: "l0", Port: 80, Protocol: "HTTP", Hostname: &host,
		AllowedRoutes: &gatewayv1.AllowedRoutes{Namespaces: &gatewayv1.RouteNamespaces{From: &all}},
	}}
	s.API.Gateways = append(s.API.Gateways, shared)
	s.Ingresses = append(s.Ingresses, ingressTo(metav1.ObjectMeta{
		Namespace: "m", Name: "i", UID: "i", CreationTimestamp: metav1.Unix(1, 0),
	}, "a.test", "a"))
	route := func(name, gateway string, age int64, matches int) *gatewayv1.HTTPRoute {
		home, port := gatewayv1.Namespace("m"), int32(80)
		r := &gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{
			Namespace: "n", Name: name, UID: "x", CreationTimestamp: metav1.Unix(age, 0),
		}}
		r.Spec.ParentRefs = []gatewayv1.ParentReference{{Name: gatewayv1.ObjectName(gateway), Namespace: &home}}
		r.Spec.Hostnames = []gatewayv1.Hostname{"a.test"}
		if gateway == "g0" {
			section := gatewayv1.SectionName("any")
			r.Spec.ParentRefs[0].SectionName, r.Spec.Hostnames = &section, []gatewayv1.Hostname{"q.example"}
		}
		rule := gatewayv1.HTTPRouteRule{BackendRefs: []gatewayv1.HTTPBackendRef{{BackendRef: gatewayv1.BackendRef{
			BackendObjectReference: gatewayv1.BackendObjectReference{Name: "a", Port: &port},
		}}}}
		for i := range matches {
			path := fmt.Sprint("/", i)
			rule.Matches = append(rule.Matches, gatewayv1.HTTPRouteMatch{Path: &gatewayv1.HTTPPathMatch{Value: &path}})
		}
		r.Spec.Rules = []gatewayv1.HTTPRouteRule{rule}
		return r
	}
	reasons := func(r Result) (all []string) {
		for _, p := range r.Problems {
			all = append(all, p.Kind+" "+p.Name+" "+p.Reason)
		}
		return all
	}
	for matches, want := range map[int][]string{
		3: {"HTTPRoute p HostOwned"}, 4: {"HTTPRoute p HostOwned", "HTTPRoute q LimitReached"},
	} {
		remembers := Compiler{Shared: sharedPorts}
		remembers.Judge(verdictsOfGates())
		s.API.HTTPRoutes = []*gatewayv1.HTTPRoute{route("p", "s0", 2, 5)}
		remembers.Compile([]Snapshot{s})
		s.API.HTTPRoutes = append(slices.Clone(s.API.HTTPRoutes), route("q", "g0", 3, matches))
		fresh := Compiler{Shared: sharedPorts}
		fresh.Judge(verdictsOfGates())
		for what, c := range map[string]*Compiler{"remembered": &remembers, "from nothing": &fresh} {
			if got := reasons(c.Compile([]Snapshot{s})); !slices.Equal(got, want) {
				t.Errorf("%d matches of the other route, %s: got %q, want %q", matches, what, got, want)
			}
		}
	}
}

// drawGates draws limits for gated.
func drawGates(t *rapid.T) Snapshot {
	s := gated()
	few := func(label string) int { return rapid.SampledFrom([]int{0, 0, 0, 8}).Draw(t, label) }
	s.Options.Limits = Limits{
		Hosts: few("hosts"), Paths: few("paths"), Backends: few("backends"), RegularExpressions: few("patterns"),
		ConfigBytes: 50 * few("bytes"),
	}
	if rapid.IntRange(0, 2).Draw(t, "in a set") == 0 {
		s.Options.InSet.Name, s.Options.InSet.ExportsAll = "s", true
	}
	if rapid.IntRange(0, 4).Draw(t, "reserved") == 0 {
		s.Options.Hosts = []HostRule{{Host: "b.test", Namespaces: []string{"n"}}}
	}
	if rapid.Bool().Draw(t, "shared") {
		s.Options.Gateway.Shared = []netip.Addr{netip.MustParseAddr("198.51.100.1")}
		s.API.Gateways[0].Spec.Addresses = []gatewayv1.GatewaySpecAddress{{Value: gateAt}}
		s.API.Gateways = append(s.API.Gateways, drawSharing(t, metav1.ObjectMeta{Namespace: "m", Name: "s0", UID: "s"}))
		s.Secrets = []*corev1.Secret{{ObjectMeta: metav1.ObjectMeta{Namespace: "m", Name: "tls"}, Data: pairData()}}
		s.Options.OneTenant = rapid.Bool().Draw(t, "trust")
	}
	return s
}

// pairData returns the content of a Secret with a certificate for *.test.
var pairData = sync.OnceValue(func() map[string][]byte {
	crt, key := certificate{names: []string{"*.test"}}.make(&testing.B{})
	return map[string][]byte{corev1.TLSCertKey: crt, corev1.TLSPrivateKeyKey: key}
})

// gated returns a cluster with a Gateway, which takes routes of all namespaces.
func gated() Snapshot {
	s := Snapshot{Cluster: "c", NoClasses: true}
	s.Options.WatchWithoutClass = true
	s.Options.Gateway = GatewayOptions{Enabled: true, Controller: "sallyport.dev/gateway"}
	s.Options.Pools.Ranges = []AddressRange{poolOf(gateAt + "-" + gateAt)}
	s.API.Classes = []*gatewayv1.GatewayClass{{
		ObjectMeta: metav1.ObjectMeta{Name: "ours"},
		Spec:       gatewayv1.GatewayClassSpec{ControllerName: "sallyport.dev/gateway"},
	}}
	s.API.Gateways = []*gatewayv1.Gateway{manyListeners()}
	for _, namespace := range []string{"m", "n"} {
		for _, name := range []string{"a", "b", "c"} {
			s.Services = append(s.Services, plainService(namespace, name))
		}
		s.API.Grants = append(s.API.Grants, &gatewayv1.ReferenceGrant{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "g"},
			Spec: gatewayv1.ReferenceGrantSpec{
				From: []gatewayv1.ReferenceGrantFrom{{Group: gatewayv1.GroupName, Kind: "HTTPRoute", Namespace: "m"}},
				To:   []gatewayv1.ReferenceGrantTo{{Kind: "Service"}},
			},
		})
	}
	return s
}

// manyListeners returns a Gateway with listeners of most kinds.
func manyListeners() *gatewayv1.Gateway {
	g := &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "m", Name: "g0", UID: "g"}}
	g.Spec.GatewayClassName = "ours"
	from, through := gatewayv1.NamespacesFromAll, gatewayv1.TLSModePassthrough
	add := func(name gatewayv1.SectionName, port int32, protocol gatewayv1.ProtocolType, host gatewayv1.Hostname) {
		g.Spec.Listeners = append(g.Spec.Listeners, gatewayv1.Listener{
			Name: name, Port: port, Protocol: protocol, Hostname: &host,
			AllowedRoutes: &gatewayv1.AllowedRoutes{Namespaces: &gatewayv1.RouteNamespaces{From: &from}},
		})
	}
	add("any", 80, "HTTP", "")
	add("wild", 80, "HTTP", "*.test")
	add("other", 81, "HTTP", "")
	add("one", 82, "HTTP", "a.test")
	add("tls", 443, "TLS", "")
	add("tcp", 5432, "TCP", "")
	g.Spec.Listeners[4].TLS = &gatewayv1.ListenerTLSConfig{Mode: &through}
	g.Status.Addresses = []gatewayv1.GatewayStatusAddress{{Value: gateAt}}
	return g
}

func plainService(namespace, name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}
}

// changeOneRoute changes one object: a route in most cases.
func changeOneRoute(t *rapid.T, s *Snapshot) {
	pick := func(label string, from ...string) string { return rapid.SampledFrom(from).Draw(t, label) }
	gone := rapid.IntRange(0, 3).Draw(t, "gone") == 0
	meta := metav1.ObjectMeta{
		Namespace: pick("namespace", "m", "m", "n"), Name: pick("name", "p", "q", "r", "s", "t"), UID: "x",
		CreationTimestamp: metav1.Unix(int64(rapid.IntRange(1, 4).Draw(t, "age")), 0),
	}
	home := gatewayv1.Namespace("m")
	parents := gatewayv1.CommonRouteSpec{ParentRefs: []gatewayv1.ParentReference{{Name: "g0", Namespace: &home}}}
	section := gatewayv1.SectionName(pick("section", "any", "wild", "other", "one", "", "tls", "tcp", "none"))
	if section != "" {
		parents.ParentRefs[0].SectionName = &section
	}
	if len(s.API.Gateways) > 1 && rapid.IntRange(0, 3).Draw(t, "at an address of its own") > 0 {
		ref := gatewayv1.ParentReference{Name: "s0", Namespace: &home}
		if section := gatewayv1.SectionName(pick("listener", "", "", "l0", "l1")); section != "" {
			ref.SectionName = &section
		}
		if rapid.IntRange(0, 3).Draw(t, "both") > 0 {
			parents.ParentRefs = nil
		}
		parents.ParentRefs = append(parents.ParentRefs, ref)
	}
	hosts := rapid.SliceOfN(rapid.SampledFrom([]gatewayv1.Hostname{
		"a.test", "b.test", "c.test", "x.a.test", "y.a.test", "d.test", "*.a.test", "?",
	}), 1, 2).Draw(t, "hosts")
	if rapid.IntRange(0, 9).Draw(t, "any host") == 0 {
		hosts = nil
	}
	port := int32(80)
	of := gatewayv1.Namespace(pick("service of", "m", "n"))
	to := gatewayv1.BackendRef{BackendObjectReference: gatewayv1.BackendObjectReference{
		Name: gatewayv1.ObjectName(pick("service", "a", "b", "c", "d")), Port: &port, Namespace: &of,
	}}
	if rapid.IntRange(0, 5).Draw(t, "import") == 0 {
		group, kind := gatewayv1.Group("multicluster.x-k8s.io"), gatewayv1.Kind("ServiceImport")
		to.Group, to.Kind = &group, &kind
	}
	switch rapid.IntRange(0, 19).Draw(t, "kind") {
	case 0:
		s.API.GRPCRoutes = change(t, s.API.GRPCRoutes, &gatewayv1.GRPCRoute{ObjectMeta: meta, Spec: gatewayv1.GRPCRouteSpec{
			CommonRouteSpec: parents, Hostnames: hosts,
			Rules: []gatewayv1.GRPCRouteRule{{BackendRefs: []gatewayv1.GRPCBackendRef{{BackendRef: to}}}},
		}}, gone)
	case 1:
		s.API.TLSRoutes = change(t, s.API.TLSRoutes, &gatewayv1.TLSRoute{ObjectMeta: meta, Spec: gatewayv1.TLSRouteSpec{
			CommonRouteSpec: parents, Hostnames: hosts, Rules: []gatewayv1.TLSRouteRule{{BackendRefs: []gatewayv1.BackendRef{to}}},
		}}, gone)
	case 2:
		s.API.TCPRoutes = change(t, s.API.TCPRoutes, &gatewayv1.TCPRoute{ObjectMeta: meta, Spec: gatewayv1.TCPRouteSpec{
			CommonRouteSpec: parents, Rules: []gatewayv1.TCPRouteRule{{BackendRefs: []gatewayv1.BackendRef{to}}},
		}}, gone)
	case 3, 4:
		service := plainService(meta.Namespace, string(to.Name))
		service.Annotations = drawAnnotations(pick, "timeout-server")
		speaks := pick("protocol", "", "kubernetes.io/h2c")
		service.Spec.Ports[0].AppProtocol = &speaks
		s.Services = change(t, s.Services, service, gone)
	case 5, 6:
		s.Ingresses = change(t, s.Ingresses, ingressTo(meta, pick("host", "a.test", "i.test"), string(to.Name)), gone)
	case 7:
		if rapid.IntRange(0, 2).Draw(t, "policy") == 0 {
			policy := &gatewayv1.BackendTLSPolicy{ObjectMeta: meta}
			policy.Spec.TargetRefs = []gatewayv1.LocalPolicyTargetReferenceWithSectionName{{
				LocalPolicyTargetReference: gatewayv1.LocalPolicyTargetReference{Kind: "Service", Name: to.Name},
			}}
			s.API.TLSPolicies = change(t, s.API.TLSPolicies, policy, gone)
		}
	default:
		r := &gatewayv1.HTTPRoute{ObjectMeta: meta, Spec: gatewayv1.HTTPRouteSpec{CommonRouteSpec: parents, Hostnames: hosts}}
		for range rapid.IntRange(1, 2).Draw(t, "rules") {
			r.Spec.Rules = append(r.Spec.Rules, drawRule(t, to))
		}
		s.API.HTTPRoutes = change(t, s.API.HTTPRoutes, r, gone)
	}
}

func ingressTo(meta metav1.ObjectMeta, host, service string) *networkingv1.Ingress {
	kind := networkingv1.PathTypePrefix
	return &networkingv1.Ingress{ObjectMeta: meta, Spec: networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{{
		Host: host,
		IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{
			Paths: []networkingv1.HTTPIngressPath{{Path: "/", PathType: &kind, Backend: networkingv1.IngressBackend{
				Service: &networkingv1.IngressServiceBackend{Name: service, Port: networkingv1.ServiceBackendPort{Number: 80}},
			}}},
		}},
	}}}}
}

// drawRule draws a rule that leads to one or two Services.
func drawRule(t *rapid.T, to gatewayv1.BackendRef) (rule gatewayv1.HTTPRouteRule) {
	seldom := func(what string) bool { return rapid.IntRange(0, 5).Draw(t, what) == 0 }
	for range rapid.IntRange(0, 2).Draw(t, "matches") {
		path := rapid.SampledFrom([]string{"/", "/a", "/a/b", "/c", "/%zz"}).Draw(t, "path")
		m := gatewayv1.HTTPRouteMatch{Path: &gatewayv1.HTTPPathMatch{
			Value: &path,
			Type: some(t, "type", gatewayv1.PathMatchExact, gatewayv1.PathMatchPathPrefix, gatewayv1.PathMatchPathPrefix,
				gatewayv1.PathMatchRegularExpression),
		}}
		if seldom("condition") {
			m.Headers = []gatewayv1.HTTPHeaderMatch{{
				Name:  gatewayv1.HTTPHeaderName(rapid.SampledFrom([]string{"h", "i", "bad name"}).Draw(t, "header")),
				Value: rapid.SampledFrom([]string{"1", "2"}).Draw(t, "value"),
			}}
		}
		rule.Matches = append(rule.Matches, m)
	}
	weight := rapid.SampledFrom([]int32{1, 1, 0, 9}).Draw(t, "weight")
	to.Weight = &weight
	rule.BackendRefs = []gatewayv1.HTTPBackendRef{{BackendRef: to}}
	if seldom("shares") {
		other := to
		other.Name = "a"
		rule.BackendRefs = append(rule.BackendRefs, gatewayv1.HTTPBackendRef{BackendRef: other})
	}
	value := rapid.SampledFrom([]string{"1", "2"}).Draw(t, "sets")
	switch {
	case seldom("filter"):
		rule.Filters = []gatewayv1.HTTPRouteFilter{{
			Type:                  gatewayv1.HTTPRouteFilterRequestHeaderModifier,
			RequestHeaderModifier: &gatewayv1.HTTPHeaderFilter{Set: []gatewayv1.HTTPHeader{{Name: "X-A", Value: value}}},
		}}
	case seldom("prefix"):
		rule.Filters = []gatewayv1.HTTPRouteFilter{{
			Type: gatewayv1.HTTPRouteFilterURLRewrite,
			URLRewrite: &gatewayv1.HTTPURLRewriteFilter{Path: &gatewayv1.HTTPPathModifier{
				Type: gatewayv1.PrefixMatchHTTPPathModifier, ReplacePrefixMatch: &value,
			}},
		}}
	case seldom("redirect"):
		value := rapid.SampledFrom([]string{"1", "https", "https", "https"}).Draw(t, "scheme")
		rule.Filters = []gatewayv1.HTTPRouteFilter{{
			Type:            gatewayv1.HTTPRouteFilterRequestRedirect,
			RequestRedirect: &gatewayv1.HTTPRequestRedirectFilter{Scheme: &value},
		}}
	case seldom("mirror"):
		rule.Filters = []gatewayv1.HTTPRouteFilter{{
			Type:          gatewayv1.HTTPRouteFilterRequestMirror,
			RequestMirror: &gatewayv1.HTTPRequestMirrorFilter{BackendRef: to.BackendObjectReference},
		}}
	}
	return rule
}

// tellAll returns all that a Result reports of Gateways, routes and requests.
func tellAll(r Result) (all []string) {
	add := func(x any) { all = append(all, fmt.Sprintf("%+v", x)) }
	for _, g := range r.Gateways() {
		add(g)
		e, _ := r.ExplainAPI(g.Cluster, "gateway", g.Namespace, g.Name)
		add(e)
	}
	for _, one := range r.Routes() {
		add(one)
		e, ok := r.ExplainAPI(one.Cluster, strings.ToLower(one.Kind), one.Namespace, one.Name)
		add(ok)
		add(e)
	}
	for _, host := range []string{"a.test", "b.test", "x.a.test", "z.a.test", "o.example"} {
		for _, path := range []string{"/", "/a", "/a/b/c"} {
			e, why := r.ExplainRequest(host, path)
			add(e)
			add(why)
			for _, port := range []string{"80", "81", "82"} {
				e, why := r.ExplainAt(haproxy.Request{Scope: gateAt + ":" + port, Host: host, Path: path, Method: "GET"})
				add(e)
				add(why)
			}
		}
	}
	return all
}

// oldestOf returns for each backend the object that brings it.
func oldestOf(c *Compiler) (all []string) {
	for _, n := range c.routing.needs {
		all = append(all, fmt.Sprint(n.name, n.by, n.asked, n.since()))
	}
	return all
}

// TestAStatusWithTheSameContentStays changes one object after another. The Statuses of the other objects
// stay the same pointers, also if all routes are routed anew.
func TestAStatusWithTheSameContentStays(t *testing.T) {
	s, c := manyRoutes(3), withGates()
	for i, o := range s.API.HTTPRoutes {
		o.UID = types.UID(fmt.Sprint("r", i))
	}
	from := gatewayv1.NamespacesFromAll
	s.API.Gateways[0].Spec.AllowedListeners = &gatewayv1.AllowedListeners{
		Namespaces: &gatewayv1.ListenerNamespaces{From: &from},
	}
	for _, name := range []string{"a", "b"} {
		host, set := gatewayv1.Hostname(name+".test"), &gatewayv1.ListenerSet{}
		set.Namespace, set.Name, set.Spec.ParentRef.Name = "default", name, "gate"
		set.Spec.Listeners = []gatewayv1.ListenerEntry{{Name: "l", Port: 80, Protocol: "HTTP", Hostname: &host}}
		s.API.ListenerSets = append(s.API.ListenerSets, set)
	}
	before := c.Compile([]Snapshot{s}).Statuses[Unnamed]
	for _, step := range []struct {
		what    string
		change  func(*Snapshot)
		amended bool
		want    []string
	}{
		{"a ListenerSet goes", func(s *Snapshot) { s.API.ListenerSets = s.API.ListenerSets[:1] }, false, []string{"Gateway gate"}},
		{
			"a route changes", func(s *Snapshot) { *s = withMatch(*s, 1, "/other"); s.API.HTTPRoutes[1].Generation++ }, true,
			[]string{"HTTPRoute svc-00001"},
		},
		{"a route goes", func(s *Snapshot) { s.API.HTTPRoutes = s.API.HTTPRoutes[:2] }, true, []string{"Gateway gate"}},
	} {
		step.change(&s)
		after := c.Compile([]Snapshot{s}).Statuses[Unnamed]
		var got []string
		for _, one := range after {
			if !slices.Contains(before, one) {
				got = append(got, one.Kind+" "+one.Name)
			}
		}
		if !slices.Equal(got, step.want) || c.made.amended != step.amended {
			t.Errorf("%s: new statuses of %q, amended %t; want %q, %t", step.what, got, c.made.amended, step.want, step.amended)
		}
		before = after
	}
}
