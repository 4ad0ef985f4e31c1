package ingress

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"sallyport/haproxy"
	"sallyport/ingress/input"
	"sallyport/ingress/listen"
)

// TestAFewIngressesAreRoutedAlone walks random histories in which Ingresses, Services and
// endpoints change, and compares a Compiler with Compile at every step.
func TestAFewIngressesAreRoutedAlone(t *testing.T) {
	crt, key := certificate{names: []string{"a.test"}}.make(t)
	alone, all := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		var c Compiler
		verdicts := haproxy.Verdicts{haproxy.LuaSupport().Part(): haproxy.Good}
		for _, port := range []uint16{80, 81, 443} {
			at := netip.AddrPortFrom(netip.MustParseAddr("203.0.113.1"), port)
			verdicts[haproxy.FreeListener(at).Part()] = haproxy.Good
		}
		c.Judge(verdicts)
		c.Shared = sharedPorts
		pick := func(label string, from ...string) string { return rapid.SampledFrom(from).Draw(t, label) }
		name := func(label string) string { return pick(label, "a", "b", "c", "d", "e", "f") }
		snaps := []Snapshot{{Cluster: "east"}, {Cluster: "west"}}
		keep, at := rapid.Bool().Draw(t, "keep"), time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
		for i := range snaps {
			s := &snaps[i]
			if keep {
				s.Options.ReleaseAfter = time.Hour
			}
			s.Options.Gateway = GatewayOptions{
				Enabled: rapid.Bool().Draw(t, "enabled"), Controller: "sallyport.dev/gateway", Shared: drawShared(t),
			}
			s.Options.Pools.Ranges = []AddressRange{poolOf("203.0.113.1-203.0.113.1")}
			s.Options.WatchWithoutClass, s.Options.OneTenant = true, rapid.Bool().Draw(t, "trust")
			s.Options.InSet.Name = pick("set", "", "s", "s", "s")
			s.Options.CustomResources = rapid.IntRange(0, 3).Draw(t, "custom resources") > 0
			s.Options.InSet.ExportsAll = rapid.IntRange(0, 3).Draw(t, "exports all") == 0
			few := func(label string) int { return rapid.SampledFrom([]int{0, 0, 5, 20}).Draw(t, label) }
			s.Options.Limits = Limits{
				Hosts: few("hosts"), Paths: few("paths"), Backends: few("backends"),
				Certificates: few("certificates"), Conditions: few("conditions"), ConfigBytes: 20 * few("bytes"),
			}
			if rapid.IntRange(0, 3).Draw(t, "defaults") == 0 {
				s.Options.ConfigMap, s.Options.TCPServices = "n/a", "n/t"
				s.ConfigMaps = []*corev1.ConfigMap{
					{
						ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "a"},
						Data:       drawAnnotations(pick, "ssl-redirect", "default-backend-service"),
					},
					{
						ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "t"},
						Data:       map[string]string{"5432": "n/a:80"},
					},
				}
				s.ConfigMaps[0].Data["cr-frontend-http"] = "b"
				s.ConfigMaps[0].Data["cr-global"], s.ConfigMaps[0].Data["cr-defaults"] = "a", "m/a"
			}
			for _, secret := range []string{"a", "b"} {
				s.Secrets = append(s.Secrets,
					&corev1.Secret{
						ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: secret},
						Data:       map[string][]byte{corev1.TLSCertKey: crt, corev1.TLSPrivateKeyKey: key},
					})
			}
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			s := &snaps[rapid.IntRange(0, 1).Draw(t, "cluster")]
			for range rapid.IntRange(0, 2).Draw(t, "changes") {
				meta := metav1.ObjectMeta{
					Namespace: pick("namespace", "n", "n", "m"), Name: name("name"),
					UID: types.UID(name("uid")),
				}
				switch gone := rapid.IntRange(0, 3).Draw(t, "gone") == 0; rapid.IntRange(0, 9).Draw(t, "kind") {
				case 9:
					if rapid.IntRange(0, 1).Draw(t, "backend") == 0 { // each makes the whole routing anew
						meta.Name = pick("backend", "a", "b")
						s.Backends = change(t, s.Backends, drawBackend(t, meta, pick), gone)
						s.Globals = change(t, s.Globals, &input.Global{ObjectMeta: meta, Spec: []byte(pick("global",
							`{"nbthread": 1}`, `{"nbthread": 2, "user": "a"}`, `[]`))}, gone)
						s.Defaults = change(t, s.Defaults, &input.Defaults{ObjectMeta: meta, Spec: []byte(pick("defaults",
							`{"server_timeout": 1}`, `{"server_timeout": 2, "x": 1}`, `[]`))}, gone)
						s.Rules = change(t, s.Rules, &input.ValidationRules{ObjectMeta: meta, Spec: []byte(pick("rules",
							`{"prefix": "a", "validation_rules": {"b": {}}}`, `[]`))}, gone)
						s.Frontends = change(t, s.Frontends, &input.Frontend{ObjectMeta: meta, Spec: []byte(pick("frontend",
							`{"maxconn": 1}`, `{"http_request_rule_list": [{"type": "deny"}]}`, `{"x": 1}`))}, gone)
					}
				case 8:
					if rapid.IntRange(0, 2).Draw(t, "exports") == 0 { // each makes the whole routing anew
						s.Exports = change(t, s.Exports, &input.ServiceExport{ObjectMeta: meta}, gone)
					}
				case 7:
					changeAPI(t, s, "203.0.113.1", gone, "m")
				case 0, 1, 2, 5, 6:
					s.Ingresses = change(t, s.Ingresses, drawPlainIngress(t, meta, pick), gone)
				case 3:
					meta.Annotations = drawAnnotations(pick, "timeout-server", "ssl-passthrough", "route-acl", "cr-backend")
					speaks := pick("protocol", "", "kubernetes.io/h2c")
					s.Services = change(t, s.Services,
						&corev1.Service{
							ObjectMeta: meta,
							Spec: corev1.ServiceSpec{
								Ports: []corev1.ServicePort{{Name: pick("port", "http", ""), Port: 80, AppProtocol: &speaks}},
							},
						}, gone)
				case 4:
					meta.Labels = map[string]string{discoveryv1.LabelServiceName: meta.Name}
					port, none := int32(8080), ""
					s.Slices = change(t, s.Slices, &discoveryv1.EndpointSlice{
						ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4,
						Ports: []discoveryv1.EndpointPort{{Name: &none, Port: &port}},
						Endpoints: []discoveryv1.Endpoint{
							{Addresses: []string{pick("address", "10.0.0.1", "10.0.0.2", "?")}},
						},
					}, gone)
				}
			}
			at = at.Add(time.Duration(rapid.IntRange(0, 20).Draw(t, "minutes")) * time.Minute)
			for i := range snaps {
				snaps[i].At = at
			}
			var got Result
			var cheap bool
			if rapid.Bool().Draw(t, "only if it is cheap") {
				if got, cheap = c.Amend(snaps); !cheap && rapid.Bool().Draw(t, "else it waits") {
					continue
				}
			}
			if !cheap {
				got = c.Compile(snaps)
			}
			var fresh Compiler
			fresh.Judge(verdicts)
			fresh.Shared = sharedPorts
			want := fresh.Compile(snaps)
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(),
				cmpopts.EquateComparable(netip.AddrPort{}, haproxy.Directive{}, haproxy.Line{}, haproxy.Text{},
					haproxy.Question{}, haproxy.Part{}), comparesRoutes, cmpopts.IgnoreUnexported(Result{})); diff != "" {
				t.Fatalf("from nothing (-), remembered (+):\n%s", diff)
			}
			for _, i := range got.Served {
				is, _ := got.Explain(i.Cluster, i.Namespace, i.Name)
				should, _ := want.Explain(i.Cluster, i.Namespace, i.Name)
				if diff := cmp.Diff(should, is, cmpopts.EquateEmpty(),
					cmpopts.EquateComparable(haproxy.Directive{})); diff != "" {
					t.Fatalf("%s explained, from nothing (-), remembered (+):\n%s", i.Name, diff)
				}
			}
			if c.made.routed > 0 {
				all++
			}
			if c.made.amended {
				alone++
			}
			for i := range snaps {
				if keep || rapid.Bool().Draw(t, "owners come back") {
					snaps[i].Owners = got.Owners[snaps[i].Cluster]
				}
			}
		}
	})
	// Half of them usually. A short run, or one whose time ends, has too few to judge by.
	if t.Logf("%d of %d routings were made of the one before", alone, all); all >= 100 && alone < all/10 {
		t.Errorf("%d of %d routings were made of the one before: the test hardly tests it", alone, all)
	}
}

// drawPlainIngress draws an Ingress that mostly can be routed alone.
func drawPlainIngress(t *rapid.T, meta metav1.ObjectMeta, pick func(string, ...string) string) *networkingv1.Ingress {
	meta.CreationTimestamp = metav1.Unix(int64(rapid.IntRange(1, 3).Draw(t, "age")), 0)
	meta.Annotations = drawAnnotations(pick, "sallyport.dev/canary-weight", "timeout-server", "rate-limit-requests",
		"auth-secret")
	if rapid.IntRange(0, 2).Draw(t, "annotated") > 0 {
		meta.Annotations = nil
	} else if asked := pick("asked", "", "", "", "/a", "https://b.test/a", "https://x.d.test/"); asked != "" {
		meta.Annotations["sallyport.dev/auth-url"] = asked
	}
	ing := &networkingv1.Ingress{ObjectMeta: meta}
	backend := func() networkingv1.IngressBackend {
		return networkingv1.IngressBackend{
			Service: &networkingv1.IngressServiceBackend{
				Name: pick("service", "a", "b", "c", "d", "e", "f"),
				Port: networkingv1.ServiceBackendPort{Number: 80},
			},
		}
	}
	hosts := []string{
		"a.test", "b.test", "c.test", "d.test", "x.d.test", "y.d.test", "*.d.test", "e.test", "f.test",
		"g.test",
	}
	if rapid.IntRange(0, 40).Draw(t, "special host") == 0 {
		hosts = []string{"", "?"}
	}
	for range rapid.IntRange(0, 2).Draw(t, "rules") {
		kind := networkingv1.PathType(pick("path type", "Exact", "Prefix"))
		ing.Spec.Rules = append(ing.Spec.Rules,
			networkingv1.IngressRule{
				Host: pick("host", hosts...),
				IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{
					Paths: []networkingv1.HTTPIngressPath{{
						Path: pick("path", "/", "/a", "/a/b"), PathType: &kind,
						Backend: backend(),
					}},
				}},
			})
	}
	if len(ing.Spec.Rules) > 0 && rapid.IntRange(0, 3).Draw(t, "default") == 0 {
		b := backend()
		ing.Spec.DefaultBackend = &b
	}
	if rapid.Bool().Draw(t, "tls") {
		ing.Spec.TLS = []networkingv1.IngressTLS{{
			Hosts:      []string{pick("tls host", hosts...)},
			SecretName: pick("secret", "a", "b", "c", ""),
		}}
	}
	return ing
}

// TestAFieldOfTheRoutingIsExchangedOrMakesTheWholeAnew fails with each new field of a routing or a
// Result: whoever adds one decides here what amend does with it. A field that replace does not
// exchange, and that rest does not leave out, is safe: a change of it makes the whole routing anew.
func TestAFieldOfTheRoutingIsExchangedOrMakesTheWholeAnew(t *testing.T) {
	exchanged := map[string]bool{
		"Config.Routes": true, "Config.Certs": true, "Served": true, "Problems": true, "Owners": true,
		"Refused": true, "of": true, "claims": true, "owner": true, "canaries": true, "chosen": true, "needs": true,
		"users": true, "limited": true, "certain": true, "keeps": true,
		"attached": true, "weight": true, "Statuses": true, "Unmet": true, "listening.Leads": true, "listening.Takers": true,
		"listening.Forms": true, "listening.Copied": true, "listening.Limited": true,
		"Config.Picks": true, "Config.Forms": true,
		"Servers": false, "Percent": false, "Balancers": false, "Exports": false, "Questions": false, "routing": false,
		"listening.Ports": false, "Awaits": false,
	}
	seen := 0
	for name, set := range settersOf(reflect.TypeFor[routing](), "") {
		want, known := exchanged[name]
		if !known && !strings.Contains(name, "Config.") {
			t.Errorf("field %s of a routing is new: does replace exchange it, or does a change make the whole anew?",
				name)
		}
		if known {
			seen++
		}
		var then, now routing
		set(reflect.ValueOf(&now).Elem())
		if reflect.DeepEqual(then, now) {
			t.Fatalf("field %s: the test did not change it", name)
		}
		if got := reflect.DeepEqual(then.rest(), now.rest()); got != want {
			t.Errorf("field %s: exchanged is %t, want %t", name, got, want)
		}
		if !want && new(routing).replace(&then, &now, nil, nil) != nil {
			t.Errorf("field %s differs, and replace keeps the rest of the routing", name)
		}
	}
	if seen != len(exchanged) {
		t.Errorf("%d of %d fields are there", seen, len(exchanged))
	}
}

// settersOf returns a function for each field of a routing, its Result and its Config, that gives
// the field another value than zero.
func settersOf(of reflect.Type, at string) map[string]func(reflect.Value) {
	all := make(map[string]func(reflect.Value))
	for i := range of.NumField() {
		f := of.Field(i)
		name := at + f.Name
		inside := at
		switch {
		case f.Type == reflect.TypeFor[haproxy.Config](), f.Type == reflect.TypeFor[listen.Listening]():
			inside = name + "."
		case !f.Anonymous:
			all[name] = func(v reflect.Value) { fill(v.Field(i)) }
			continue
		}
		for name, set := range settersOf(f.Type, inside) {
			all[name] = func(v reflect.Value) { set(v.Field(i)) }
		}
	}
	return all
}

// fill gives a value, exported or not, another value than zero.
func fill(v reflect.Value) {
	v = reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Elem()
	switch v.Kind() {
	case reflect.Struct:
		fill(v.Field(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString("x")
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	default:
		v.SetInt(1)
	}
}

// Some namespace is always at a limit. A change of another namespace must not cost a whole routing then.
func TestANamespaceBeyondALimitMakesNobodyElseSlow(t *testing.T) {
	s := snapshot(t, "one", of("victim", app("web")+app("own")+
		ingress("b", 2022, "rules: ["+rule("b.test", path("/", "Prefix", "own"))+"]"))+of("evil", app("web"))+
		claiming("victim/a", 2022, "a.test")+claiming("evil/a", 2023, "x.test")+claiming("evil/y", 2023, "y.test")+
		claiming("evil/b", 2023, "z.test")+claiming("evil/c", 2023, "a.test"))
	s.Options.Limits.Paths = 2
	var c Compiler
	compile := func() Result {
		t.Helper()
		got, want := c.Compile([]Snapshot{s}), Compile([]Snapshot{s})
		if diff := cmp.Diff(read(want), read(got)); diff != "" {
			t.Errorf("from nothing (-), remembered (+):\n%s", diff)
		}
		return got
	}
	if text := read(compile()); !strings.Contains(text, "LimitReached") {
		t.Fatalf("evil is not beyond its limit:\n%s", text)
	}
	for name, alone := range map[string]bool{"victim/b": true, "victim/a": false, "evil/a": false} {
		s.Ingresses = slices.Clone(s.Ingresses)
		for i, ing := range s.Ingresses {
			if ing.Namespace+"/"+ing.Name == name {
				s.Ingresses[i] = ing.DeepCopy()
				s.Ingresses[i].Spec.Rules[0].HTTP.Paths[0].Path = "/changed"
			}
		}
		compile()
		if c.made.amended != alone {
			t.Errorf("%s changes: it is routed alone: %t, want %t", name, c.made.amended, alone)
		}
	}
}

// A host that is beyond the limit of its last owner is not kept, and another namespace has it at once.
func TestAHostThatIsNotKeptBeyondALimitGoesWithItsIngress(t *testing.T) {
	s := snapshot(t, "one", of("shop", app("web"))+of("evil", app("web"))+claiming("shop/a", 2022, "a.test")+
		claiming("shop/b", 2022, "b.test")+claiming("evil/a", 2023, "a.test"))
	s.At, s.Options.ReleaseAfter, s.Options.Limits.Hosts = time.Unix(1_800_000_000, 0), time.Hour, 1
	all := slices.SortedFunc(slices.Values(s.Ingresses), input.ByName[*networkingv1.Ingress])
	evilA, shopA, shopB := all[0], all[1], all[2]
	var c Compiler
	for _, ingresses := range [][]*networkingv1.Ingress{{evilA, shopA}, {evilA, shopB}, {shopB}} {
		s.Ingresses = ingresses
		got, want := c.Compile([]Snapshot{s}), Compile([]Snapshot{s})
		if diff := cmp.Diff(read(want), read(got)); diff != "" {
			t.Errorf("from nothing (-), remembered (+):\n%s", diff)
		}
		s.Owners, s.At = got.Owners["one"], s.At.Add(time.Second)
	}
}
