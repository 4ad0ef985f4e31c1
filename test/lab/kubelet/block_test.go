package kubelet

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

func owner(handle string) attribute { return attribute{Handle: handle} }

func TestABlockHandsOutEachAddressOnceAndQueuesWhatIsFreed(t *testing.T) {
	b := newBlock(netip.MustParsePrefix("172.16.171.64/30"), "worker1")
	for i, want := range []string{"172.16.171.64", "172.16.171.65", "172.16.171.66", "172.16.171.67"} {
		got, ok := b.take(owner(strconv.Itoa(i)))
		if !ok || got.String() != want {
			t.Fatalf("want %s, got %v %v", want, got, ok)
		}
	}
	if got, ok := b.take(owner("late")); ok {
		t.Fatalf("a full block gave %v", got)
	}
	if !b.release(func(a attribute) bool { return a.Handle == "1" }) ||
		b.release(func(a attribute) bool { return a.Handle == "1" }) {
		t.Fatal("a release must change something once")
	}
	b.release(func(a attribute) bool { return a.Handle == "0" })
	if got, _ := b.held("3"); got.String() != "172.16.171.67" {
		t.Errorf("a release moved another's address to %v", got)
	}
	for _, want := range []string{"172.16.171.65", "172.16.171.64"} {
		if got, _ := b.take(owner("again")); got.String() != want {
			t.Errorf("want %s, the one that rested longest, got %v", want, got)
		}
	}
}

func TestABlockNeverGivesAnAddressThatItsListsDisagreeAbout(t *testing.T) {
	b := newBlock(netip.MustParsePrefix("172.16.171.64/30"), "worker1")
	b.take(owner("a"))
	b.Unallocated = []int{0, 7, -1, 2}
	if got, ok := b.take(owner("b")); !ok || got.String() != "172.16.171.66" {
		t.Errorf("got %v %v", got, ok)
	}
	if got, ok := b.take(owner("c")); ok {
		t.Errorf("got %v", got)
	}
}

func TestNoHistoryOfABlockLosesOrDoublesAnAddress(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newBlock(netip.MustParsePrefix("fd00:172::40/124"), "n")
		have := map[string]netip.Addr{}
		for i := range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(have) > 0 && rapid.Bool().Draw(t, "release") {
				handle := rapid.SampledFrom(slices.Sorted(maps.Keys(have))).Draw(t, "who")
				b.release(func(a attribute) bool { return a.Handle == handle })
				delete(have, handle)
			} else if addr, ok := b.take(owner(strconv.Itoa(i))); ok {
				if slices.Contains(slices.Collect(maps.Values(have)), addr) {
					t.Fatalf("%v was given twice", addr)
				}
				have[strconv.Itoa(i)] = addr
			} else if len(have) < 16 {
				t.Fatalf("no address left with %d in use", len(have))
			}
			for handle, want := range have {
				if got, _ := b.held(handle); got != want {
					t.Fatalf("%s has %v, want %v", handle, got, want)
				}
			}
			if len(b.Attributes) != len(have) || len(b.Unallocated) != 16-len(have) || len(b.SequenceFor) != len(have) {
				t.Fatalf("%d in use, but %d attributes, %d free, %d numbered", len(have), len(b.Attributes),
					len(b.Unallocated), len(b.SequenceFor))
			}
		}
	})
}

func TestAPoolIsWalkedOnceAround(t *testing.T) {
	pool := netip.MustParsePrefix("172.16.0.0/16")
	seen := map[netip.Prefix]bool{}
	for cidr := range blocksOf(pool, 26, "worker1") {
		if seen[cidr] || !pool.Contains(cidr.Addr()) || cidr != cidr.Masked() {
			t.Fatalf("%v", cidr)
		}
		seen[cidr] = true
	}
	if len(seen) != 1024 {
		t.Errorf("want 1024 blocks, got %d", len(seen))
	}
	if got := slices.Collect(blocksOf(netip.MustParsePrefix("fd00:172::/122"), 122, "n")); !slices.Equal(got,
		[]netip.Prefix{netip.MustParsePrefix("fd00:172::/122")}) {
		t.Errorf("got %v", got)
	}
}

func TestBlocksAndAffinitiesAreNamedAsCalicoNamesThem(t *testing.T) {
	if want, got := "worker1-172-16-171-64-26",
		affinityName("worker1", netip.MustParsePrefix("172.16.171.64/26")); got != want {
		t.Errorf("want %s, got %s", want, got)
	}
	if want, got := "n1-fd00-172-0-49-40---122",
		affinityName("n1", netip.MustParsePrefix("fd00:172:0:49:40::/122")); got != want {
		t.Errorf("want %s, got %s", want, got)
	}
}
