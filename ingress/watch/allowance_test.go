package watch

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/ingress/calico"
	"sallyport/ingress/input"
)

// A sliceWorld is the EndpointSlices of a cluster, with a watch that lags behind.
type sliceWorld struct {
	is   map[types.NamespacedName]*discoveryv1.EndpointSlice
	late []func(*shelf[*discoveryv1.EndpointSlice]) // reports of the watch that are under way
}

// List returns a page of a namespace's slices, two at a time.
func (w *sliceWorld) List(_ context.Context, namespace string,
	o metav1.ListOptions,
) (*discoveryv1.EndpointSliceList, error) {
	page := &discoveryv1.EndpointSliceList{}
	for _, key := range slices.SortedFunc(maps.Keys(w.is), input.CompareKeys) {
		switch {
		case key.String() < o.Continue || namespace != "" && namespace != key.Namespace:
		case len(page.Items) == 2:
			page.Continue = key.String()
			return page, nil
		default:
			page.Items = append(page.Items, *w.is[key].DeepCopy())
		}
	}
	return page, nil
}

func (w *sliceWorld) write(o *discoveryv1.EndpointSlice) {
	w.is[input.KeyOf(o)] = o
	w.late = append(w.late, func(s *shelf[*discoveryv1.EndpointSlice]) { _ = s.Update(o.DeepCopy()) })
}

func (w *sliceWorld) remove(key types.NamespacedName) {
	if o := w.is[key]; o != nil {
		delete(w.is, key)
		w.late = append(w.late, func(s *shelf[*discoveryv1.EndpointSlice]) { _ = s.Delete(o.DeepCopy()) })
	}
}

// deliver hands out some reports of the watch, in their order.
func (w *sliceWorld) deliver(s *shelf[*discoveryv1.EndpointSlice], count int) {
	for _, report := range w.late[:count] {
		report(s)
	}
	w.late = w.late[count:]
}

func sliceOf(namespace, name, service string, endpoints int, version int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, ResourceVersion: fmt.Sprintf("%06d", version),
		Labels: map[string]string{discoveryv1.LabelServiceName: service},
	}}
	for i := range endpoints {
		s.Endpoints = append(s.Endpoints,
			discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.%d.%d", version%256, i)}})
	}
	return s
}

// TestANamespaceHasItsShareAndLosesNothingWithinIt walks random histories of a cluster
// whose watch lags behind, and reads namespaces again at any moment. In the end each
// namespace within its share has all its slices, as they are, and another one has those
// that something refers to, unless they alone are too much.
func TestANamespaceHasItsShareAndLosesNothingWithinIt(t *testing.T) {
	const most = 200
	rapid.Check(t, func(t *rapid.T) {
		w, served, version := &sliceWorld{is: map[types.NamespacedName]*discoveryv1.EndpointSlice{}},
			map[types.NamespacedName]bool{}, 0
		s := &shelf[*discoveryv1.EndpointSlice]{order: input.ByService, knock: func() {}, full: true}
		s.strip = func(o *discoveryv1.EndpointSlice) { input.Options{}.Strip(o) }
		s.share = newAllowance("sliceBytes", "EndpointSlice", most, func(o *discoveryv1.EndpointSlice) bool {
			return served[input.ServiceOf(o)]
		})
		pick := func(label string, from ...string) string { return rapid.SampledFrom(from).Draw(t, label) }
		namespace := func() string { return pick("namespace", "evil", "victim") }
		check := func() {
			bytes := map[string]int{}
			for _, o := range s.list() {
				bytes[o.Namespace] += bytesOf(s.latest[input.KeyOf(o)])
			}
			if !maps.Equal(bytes, s.share.bytes) || bytes["evil"] > most || bytes["victim"] > most ||
				len(s.items) != len(s.latest) {
				t.Fatalf("it holds %v, counts %v, and the bound is %d", bytes, s.share.bytes, most)
			}
		}
		step := func() {
			switch version++; rapid.IntRange(0, 5).Draw(t, "step") {
			case 0, 1, 2:
				w.write(sliceOf(namespace(), pick("name", "a", "b", "c", "d"), pick("service", "x", "y"),
					rapid.IntRange(0, 9).Draw(t, "endpoints"), version))
			case 3:
				w.remove(types.NamespacedName{Namespace: namespace(), Name: pick("name", "a", "b", "c", "d")})
			case 4:
				w.deliver(s, rapid.IntRange(0, len(w.late)).Draw(t, "reports"))
			case 5:
				key := types.NamespacedName{Namespace: namespace(), Name: pick("service", "x", "y")}
				served[key] = !served[key]
				s.refer(func(n string) bool { return n == key.Namespace })
			}
			check()
		}
		list := func(ctx context.Context, namespace string, o metav1.ListOptions) (
			*discoveryv1.EndpointSliceList, error,
		) {
			page, err := w.List(ctx, namespace, o)
			for range rapid.IntRange(0, 2).Draw(t, "during the list") {
				step()
			}
			return page, err
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				if namespace, _ := s.nextShort(time.Now().Add(time.Hour)); namespace != "" {
					_ = refill(t.Context(), s, list, namespace)
				}
			case 1: // a new list: the watch goes on from its revision
				w.late = nil
				all, err := whole(t.Context(), s, w.List)
				if err != nil {
					t.Fatal(err)
				}
				var objects []any
				for _, raw := range all.(*metav1.List).Items {
					objects = append(objects, raw.Object)
				}
				_ = s.Replace(objects, "")
			default:
				step()
			}
			check()
		}
		w.deliver(s, len(w.late))
		for range 10 {
			if namespace, _ := s.nextShort(time.Now().Add(time.Hour)); namespace != "" {
				_ = refill(t.Context(), s, w.List, namespace)
			}
		}
		check()
		all, first := map[string]int{}, map[string]int{}
		for _, o := range w.is {
			clean, _ := s.clean(o.DeepCopy())
			all[o.Namespace] += bytesOf(clean)
			if served[input.ServiceOf(o)] {
				first[o.Namespace] += bytesOf(clean)
			}
		}
		for _, o := range s.list() {
			now := w.is[input.KeyOf(o)]
			if now == nil || len(now.Endpoints) != len(o.Endpoints) || input.ServiceOf(now) != input.ServiceOf(o) {
				t.Fatalf("it holds %v, which is %v", o, now)
			}
		}
		for key, o := range w.is {
			_, held := s.latest[key]
			short := s.share.short[key.Namespace] != nil
			switch {
			case !held && !short:
				t.Fatalf("%v is not held, and that is not told", key)
			case !held && all[key.Namespace] <= most:
				t.Fatalf("%v is not held, although namespace %s has %d bytes", key, key.Namespace, all[key.Namespace])
			case !held && served[input.ServiceOf(o)] && first[key.Namespace] <= most:
				t.Fatalf("%v is not held, although something refers to it", key)
			}
		}
		for namespace := range s.share.short {
			if all[namespace] <= most {
				t.Fatalf("namespace %s counts as short, with %d bytes", namespace, all[namespace])
			}
		}
	})
}

// TestOneNamespaceDoesNotGetTheMemoryOfAll writes slices that no Service has, and then
// has something refer to one of those that had no room.
func TestOneNamespaceDoesNotGetTheMemoryOfAll(t *testing.T) {
	c := newCluster(calico.V1)
	slice := func(o *discoveryv1.EndpointSlice) {
		o.AddressType = discoveryv1.AddressTypeIPv4
		mustCreate(t, c.DiscoveryV1().EndpointSlices(o.Namespace).Create, o)
	}
	for i := range 20 {
		slice(sliceOf("evil", fmt.Sprintf("s%02d", i), fmt.Sprintf("n%02d", i), 300, i))
	}
	slice(sliceOf("victim", "web", "web", 3, 1))
	const most = 64 << 10
	w := c.watch(t, Config{Options: input.Options{Limits: input.Limits{SliceBytes: most}}})
	synced(t, w)
	for i := range 20 { // by the watch, as the others by the list
		slice(sliceOf("evil", fmt.Sprintf("t%02d", i), fmt.Sprintf("m%02d", i), 300, i))
	}
	slice(sliceOf("victim", "web2", "web", 3, 1))
	until(t, w, "victim's second slice", func() bool {
		return len(input.SlicesOf(synced(t, w).Slices, types.NamespacedName{Namespace: "victim", Name: "web"})) == 2
	})
	got, bytes := synced(t, w), map[string]int{}
	for _, s := range got.Slices {
		bytes[s.Namespace] += bytesOf(s)
	}
	if bytes["evil"] > most || bytes["evil"] < most/2 {
		t.Errorf("it keeps %v bytes, the bound is %d", bytes, most)
	}
	told := func(s input.Snapshot) []ingress.Problem {
		return slices.DeleteFunc(ingress.Compile([]input.Snapshot{s}).Problems, func(p ingress.Problem) bool {
			return p.Kind != "EndpointSlice" || p.Namespace != "evil" || p.Reason != "LimitReached" ||
				!strings.Contains(p.Why, "limits.sliceBytes")
		})
	}
	if len(told(got)) != 1 {
		t.Errorf("it is not told once, but in %v", told(got))
	}
	last := types.NamespacedName{Namespace: "evil", Name: "m19"}
	if len(input.SlicesOf(got.Slices, last)) > 0 {
		t.Fatal("the last slice had room")
	}
	w.Serve(leadingTo(t, last))
	until(t, w, "the slice that something refers to", func() bool {
		return len(input.SlicesOf(synced(t, w).Slices, last)) == 1
	})
	for i := range 20 {
		for _, letter := range []string{"s", "t"} {
			_ = c.DiscoveryV1().EndpointSlices("evil").Delete(t.Context(), fmt.Sprintf("%s%02d", letter, i),
				metav1.DeleteOptions{})
		}
	}
	until(t, w, "the end of the problem", func() bool { return len(told(synced(t, w))) == 0 })
}

// leadingTo compiles an Ingress that leads to a Service.
func leadingTo(t *testing.T, to types.NamespacedName) ingress.Result {
	t.Helper()
	of := metav1.ObjectMeta{
		Namespace: to.Namespace, Name: to.Name,
		Annotations: map[string]string{"kubernetes.io/ingress.class": "haproxy"},
	}
	r := ingress.Compile([]input.Snapshot{{Cluster: "c", Objects: input.Objects{
		Ingresses: []*networkingv1.Ingress{{ObjectMeta: of, Spec: networkingv1.IngressSpec{
			DefaultBackend: &networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
				Name: to.Name, Port: networkingv1.ServiceBackendPort{Number: 80},
			}},
		}}},
		Services: []*corev1.Service{{ObjectMeta: of, Spec: corev1.ServiceSpec{
			Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
		}}},
	}}})
	if len(r.Served) != 1 {
		t.Fatalf("the Ingress is not served: %v", r.Problems)
	}
	return r
}

// bulky returns an object's name and labels of a kilobyte.
func bulky(namespace, name string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), Annotations: map[string]string{}}
	for i := range 5 {
		m.Annotations[fmt.Sprint("note", i)] = strings.Repeat("n", 200)
	}
	return m
}

// TestAnIngressThatIsNotKeptOpensNothing fills the memory for the Ingresses of a namespace. One
// that has no room may be the guard of a path below one that is served, so no path of the
// namespace is served until all Ingresses have room.
func TestAnIngressThatIsNotKeptOpensNothing(t *testing.T) {
	c := newCluster(calico.V1)
	create := func(meta metav1.ObjectMeta, host, path string) {
		kind := networkingv1.PathTypePrefix
		ing := &networkingv1.Ingress{ObjectMeta: meta}
		ing.Annotations["kubernetes.io/ingress.class"] = "haproxy"
		to := networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
			Name: "app",
			Port: networkingv1.ServiceBackendPort{Number: 80},
		}}
		ing.Spec.Rules = []networkingv1.IngressRule{{Host: host, IngressRuleValue: networkingv1.IngressRuleValue{
			HTTP: &networkingv1.HTTPIngressRuleValue{
				Paths: []networkingv1.HTTPIngressPath{{Path: path, PathType: &kind, Backend: to}},
			},
		}}}
		mustCreate(t, c.NetworkingV1().Ingresses(ing.Namespace).Create, ing)
	}
	w := c.watch(t, Config{Options: input.Options{Limits: input.Limits{ObjectBytes: 8 << 10}}})
	closed := func() map[string]bool {
		r, is := ingress.Compile([]input.Snapshot{synced(t, w)}), map[string]bool{}
		for _, route := range r.Config.Routes {
			is[route.Host+route.Path] = slices.ContainsFunc(r.Config.Backends, func(b *haproxy.Backend) bool {
				return b.Name == route.Backend && slices.Contains(b.Directives, haproxy.Close())
			})
		}
		return is
	}
	create(bulky("victim", "web"), "victim.test", "/")
	create(bulky("evil", "wide"), "evil.test", "/")
	want := map[string]bool{"victim.test/": false, "evil.test/": false}
	until(t, w, "both are served", func() bool { return cmp.Equal(closed(), want) })

	for i := range 8 {
		create(bulky("evil", fmt.Sprint("more", i)), "evil.test", fmt.Sprint("/", i))
	}
	until(t, w, "nothing of evil is served, and the last object has no room", func() bool {
		now := closed()
		return !now["victim.test/"] && now["evil.test/"] && len(now) < 10 &&
			slices.Equal(synced(t, w).Incomplete, []string{"evil"})
	})
	for at, is := range closed() {
		if is != strings.HasPrefix(at, "evil") {
			t.Errorf("%s: closed %v", at, is)
		}
	}
	if !slices.ContainsFunc(ingress.Compile([]input.Snapshot{synced(t, w)}).Problems, func(p ingress.Problem) bool {
		return p.Reason == "LimitReached" && p.Namespace == "evil" &&
			strings.Contains(p.Why, "(clusters[].ingress.limits.objectBytes)")
	}) {
		t.Error("that is not reported")
	}
	for i := range 4 {
		_ = c.NetworkingV1().Ingresses("evil").Delete(t.Context(), fmt.Sprint("more", i), metav1.DeleteOptions{})
	}
	until(t, w, "all Ingresses that are left are served", func() bool {
		now := closed()
		return len(now) == 6 && !slices.Contains(slices.Collect(maps.Values(now)), true)
	})
}

func TestServicesThatAreServedDisplaceOthersOfTheNamespace(t *testing.T) {
	c := newCluster(calico.V1)
	service := func(namespace, name string) {
		mustCreate(t, c.CoreV1().Services(namespace).Create, &corev1.Service{ObjectMeta: bulky(namespace, name)})
	}
	for i := range 20 {
		service("evil", fmt.Sprintf("s%02d", i))
	}
	service("victim", "web")
	const most = 8 << 10
	w := c.watch(t, Config{Options: input.Options{Limits: input.Limits{ObjectBytes: most}}})
	has := func(key types.NamespacedName) bool {
		_, has := input.Find(synced(t, w).Services, key)
		return has
	}
	bytes := 0
	for _, s := range synced(t, w).Services {
		if s.Namespace == "evil" {
			bytes += bytesOf(s)
		}
	}
	if bytes > most || bytes < most/2 || !has(types.NamespacedName{Namespace: "victim", Name: "web"}) {
		t.Errorf("it keeps %d bytes, the bound is %d", bytes, most)
	}
	last := types.NamespacedName{Namespace: "evil", Name: "s19"}
	if has(last) {
		t.Fatal("the last Service had room")
	}
	w.Serve(leadingTo(t, last))
	until(t, w, "the Service that something refers to", func() bool { return has(last) })
}
