package kubelet

import (
	"errors"
	"net/netip"
	"testing"
)

func TestAHostLocalRangeIsHandedOutWithoutItsEdges(t *testing.T) {
	m := newHostLocal("a", []netip.Prefix{
		netip.MustParsePrefix("172.16.171.0/29"),
		netip.MustParsePrefix("fd00::/125"),
	})
	take := func(family int, handle, want string) {
		t.Helper()
		if got, err := m.take(t.Context(), family, owner(handle)); err != nil || got.String() != want {
			t.Errorf("%s got %v, %v; want %s", handle, got, err, want)
		}
	}
	take(32, "one", "172.16.171.2")
	take(128, "one", "fd00::2")
	take(32, "two", "172.16.171.3")
	take(32, "one", "172.16.171.2") // the same when it asks again
	for _, handle := range []string{"three", "four", "five"} {
		if _, err := m.take(t.Context(), 32, owner(handle)); err != nil {
			t.Error(err)
		}
	}
	if got, err := m.take(t.Context(), 32, owner("six")); !errors.Is(err, errNoAddress) {
		t.Errorf("a sixth got %v, %v; want %v", got, err, errNoAddress)
	}
	if err := m.release(t.Context(), func(o attribute) bool { return o.Handle == "two" }); err != nil {
		t.Fatal(err)
	}
	take(32, "six", "172.16.171.3")
}
