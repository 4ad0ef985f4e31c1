package kubelet

import (
	"fmt"
	"net/netip"
	"strconv"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
)

// calico returns a small API server for Calico's objects. Unlike the fake client alone it refuses
// an update of an old version, as the real one does.
func calico(objects ...runtime.Object) *dynamicfake.FakeDynamicClient {
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{
			affinities: "BlockAffinityList", ipamBlocks: "IPAMBlockList", ipPools: "IPPoolList",
			ipamHandles: "IPAMHandleList", ipamConfigs: "IPAMConfigList",
		}, objects...)
	var mu sync.Mutex
	client.PrependReactor("update", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		object := action.(clienttesting.UpdateAction).GetObject().(*unstructured.Unstructured).DeepCopy()
		gvr := action.GetResource()
		have, err := client.Tracker().Get(gvr, "", object.GetName())
		if err != nil {
			return true, nil, err
		}
		version := have.(*unstructured.Unstructured).GetResourceVersion()
		if object.GetResourceVersion() != version {
			return true, nil, apierrors.NewConflict(gvr.GroupResource(), object.GetName(), fmt.Errorf("it has changed"))
		}
		n, _ := strconv.Atoi(version)
		object.SetResourceVersion(strconv.Itoa(n + 1))
		return true, object, client.Tracker().Update(gvr, object, "")
	})
	return client
}

func testPool(cidr string, size int64) runtime.Object {
	return object("IPPool", "pool-"+strconv.Itoa(int(size)),
		map[string]any{"cidr": cidr, "blockSize": size, "nodeSelector": "all()"})
}

func TestKubeletsSideBySideNeverGiveOneAddressTwice(t *testing.T) {
	client := calico(testPool("172.16.0.0/25", 28)) // 8 blocks of 16
	var all sync.WaitGroup
	var mu sync.Mutex
	got := map[netip.Addr]string{}
	for kubelet := range 8 { // two for each node, as after a restart that went wrong
		m := &ipam{node: fmt.Sprintf("n%d", kubelet/2), dynamic: client}
		for i := range 15 {
			all.Go(func() {
				handle := fmt.Sprintf("%d/%d", kubelet, i)
				addr, err := m.take(t.Context(), 32, owner(handle))
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Errorf("%s: %v", handle, err)
				} else if other, taken := got[addr]; taken {
					t.Errorf("%s and %s both got %v", handle, other, addr)
				}
				got[addr] = handle
			})
		}
	}
	all.Wait()

	again, err := (&ipam{node: "n1", dynamic: client}).take(t.Context(), 32, owner("2/7"))
	if err != nil || got[again] != "2/7" {
		t.Errorf("asking again gave %v, which is %q's, %v", again, got[again], err)
	}
	list, err := client.Tracker().List(affinities, affinities.GroupVersion().WithKind("BlockAffinity"), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list.(*unstructured.UnstructuredList).Items {
		spec := a.Object["spec"].(map[string]any)
		b, err := client.Tracker().Get(ipamBlocks, "", blockName(netip.MustParsePrefix(spec["cidr"].(string))))
		if err != nil {
			t.Fatal(err)
		}
		affinity, _, _ := unstructured.NestedString(b.(*unstructured.Unstructured).Object, "spec", "affinity")
		if spec["state"] != "confirmed" || affinity != "host:"+spec["node"].(string) {
			t.Errorf("affinity %v of a block with %q", spec, affinity)
		}
	}
}

func TestAnAddressIsBorrowedOnlyWhenNoBlockIsFree(t *testing.T) {
	client := calico(testPool("172.16.0.0/29", 30)) // 2 blocks of 4
	a, b := &ipam{node: "a", dynamic: client}, &ipam{node: "b", dynamic: client}
	take := func(m *ipam, handle string) (netip.Addr, error) {
		return m.take(t.Context(), 32, attribute{Handle: handle, Secondary: map[string]string{"node": m.node}})
	}
	if _, err := take(b, "b0"); err != nil {
		t.Fatal(err)
	}
	for i := range 7 {
		if _, err := take(a, fmt.Sprintf("a%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := take(a, "a7"); err == nil {
		t.Errorf("a full pool gave %v", got)
	}
	if err := client.Tracker().Add(object("IPAMConfig", "default", map[string]any{"strictAffinity": true})); err !=
		nil {
		t.Fatal(err)
	}
	if err := b.release(t.Context(), func(o attribute) bool { return o.Handle == "b0" }); err != nil {
		t.Fatal(err)
	}
	if got, err := take(a, "a7"); err == nil {
		t.Errorf("strict affinity, and node a has %v of another node's block", got)
	}
	if _, err := take(b, "b0"); err != nil {
		t.Fatal(err)
	}
	if err := a.release(t.Context(), func(o attribute) bool { return o.Handle == "a6" }); err != nil {
		t.Fatal(err)
	}
	if _, err := take(b, "b1"); err != nil {
		t.Errorf("what was lent and given back is not usable: %v", err)
	}
}

func TestABlockThatIsGoingIsNotUsed(t *testing.T) {
	cidr := netip.MustParsePrefix("172.16.0.0/30")
	for state, spec := range map[string]map[string]any{
		"pendingDeletion": {"state": "pendingDeletion", "deleted": "false"},
		"deleted":         {"state": "confirmed", "deleted": "true"},
		"another node's":  {"state": "confirmed", "deleted": "false", "node": "b"},
	} {
		t.Run(state, func(t *testing.T) {
			spec["cidr"] = cidr.String()
			if spec["node"] == nil {
				spec["node"] = "a"
			}
			client := calico(testPool("172.16.0.0/29", 30), object("BlockAffinity", affinityName("a", cidr), spec),
				newBlock(cidr, spec["node"].(string)).object())
			got, err := (&ipam{node: "a", dynamic: client}).take(t.Context(), 32, owner("x"))
			if err != nil || cidr.Contains(got) {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

func TestABlockThatVanishesWhileItIsUsedGivesNothing(t *testing.T) {
	cidr := netip.MustParsePrefix("172.16.0.0/30")
	b := newBlock(cidr, "a").object()
	client := calico(b)
	stale := b.DeepCopy()
	if err := client.Tracker().Delete(ipamBlocks, "", b.GetName()); err != nil {
		t.Fatal(err)
	}
	got, err := (&ipam{node: "a", dynamic: client}).takeFrom(t.Context(), stale, "host:a", owner("x"))
	if err != nil || got.IsValid() {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestFieldsOfABlockThatWeDoNotKnowStay(t *testing.T) {
	o := newBlock(netip.MustParsePrefix("172.16.0.0/30"), "a").object()
	if err := unstructured.SetNestedField(o.Object, "x", "spec", "fromTheFuture"); err != nil {
		t.Fatal(err)
	}
	client := calico(testPool("172.16.0.0/30", 30), o,
		object("BlockAffinity", "a-1",
			map[string]any{"cidr": "172.16.0.0/30", "node": "a", "state": "confirmed", "deleted": "false"}))
	if _, err := (&ipam{node: "a", dynamic: client}).take(t.Context(), 32, owner("x")); err != nil {
		t.Fatal(err)
	}
	got, err := client.Tracker().Get(ipamBlocks, "", o.GetName())
	if err != nil {
		t.Fatal(err)
	}
	if value, _, _ := unstructured.NestedString(got.(*unstructured.Unstructured).Object, "spec",
		"fromTheFuture"); value != "x" {
		t.Errorf("got %q", value)
	}
}

func TestABlockOfNoPoolKeepsItsPodsAndGetsNoNewOne(t *testing.T) {
	client := calico(testPool("172.16.0.0/25", 26))
	m := &ipam{node: "a", first: []netip.Prefix{netip.MustParsePrefix("172.16.0.64/26")}, dynamic: client}
	first, err := m.take(t.Context(), 32, owner("x"))
	if want := netip.MustParseAddr("172.16.0.64"); err != nil || first != want {
		t.Fatalf("want %s, got %s, %v", want, first, err)
	}
	if err := client.Tracker().Delete(ipPools, "", "pool-26"); err != nil {
		t.Fatal(err)
	}
	if again, err := m.take(t.Context(), 32, owner("x")); err != nil || again != first {
		t.Errorf("want %s still, got %s, %v", first, again, err)
	}
	if got, err := m.take(t.Context(), 32, owner("y")); err == nil {
		t.Errorf("a pod got %s of a pool that is gone", got)
	}
	if own, err := m.own(t.Context(), []pool{{cidr: netip.MustParsePrefix("172.16.0.0/25")}}); err != nil ||
		len(own) != 1 {
		t.Errorf("want the block still, got %q, %v", own, err)
	}
}

func TestTheBlockOfANodeThatLeftStaysUntilItsAddressesAreFree(t *testing.T) {
	client := calico(testPool("172.16.0.0/29", 30)) // 2 blocks of 4
	take := func(node, handle string) netip.Addr {
		t.Helper()
		addr, err := (&ipam{node: node, dynamic: client}).take(t.Context(), 32, attribute{
			Handle: handle, Secondary: map[string]string{"node": node, "namespace": "default", "pod": handle},
		})
		if err != nil {
			t.Fatal(err)
		}
		return addr
	}
	take("dead", "d0")
	for i := range 4 {
		take("a", fmt.Sprintf("a%d", i))
	}
	borrowed := take("a", "guest")

	gone := map[string]bool{}
	reclaim := func() (affinitiesOfDead int) {
		t.Helper()
		if err := Reclaim(t.Context(), client, "dead", func(_, pod string) bool { return gone[pod] }); err != nil {
			t.Fatal(err)
		}
		list, err := client.Resource(affinities).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list.Items {
			if node, _, _ := unstructured.NestedString(o.Object, "spec", "node"); node == "dead" {
				affinitiesOfDead++
			}
		}
		return affinitiesOfDead
	}
	if want, got := 1, reclaim(); got != want {
		t.Errorf("while its pod is there: want %d affinity, got %d", want, got)
	}
	gone["d0"] = true
	if want, got := 1, reclaim(); got != want {
		t.Errorf("while %s is lent: want %d affinity, got %d", borrowed, want, got)
	}
	if err := (&ipam{node: "a", dynamic: client}).release(t.Context(), func(o attribute) bool {
		return o.Handle == "guest"
	}); err != nil {
		t.Fatal(err)
	}
	if want, got := 0, reclaim(); got != want {
		t.Errorf("when all is free: want %d affinities, got %d", want, got)
	}
	take("a", "last") // from the block, claimed anew
}
