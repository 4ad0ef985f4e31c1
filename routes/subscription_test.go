package routes

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// remembered waits until both readings stand for the kernel's state: List and Local do not
// read again.
func remembered(t *testing.T, k *Kernel) {
	t.Helper()
	deadline, look := time.After(patience), time.NewTicker(time.Millisecond)
	defer look.Stop()
	for !remembers(t, k) {
		select {
		case <-look.C:
		case <-deadline:
			t.Fatal("the kernel is quiet, and every call reads it")
		}
	}
}

// remembers reports whether List and Local return what they returned before, as long as
// neither is old.
func remembers(t *testing.T, k *Kernel) bool {
	t.Helper()
	read := func() (began [2]time.Time) {
		_, err := k.List()
		must(t, err)
		_, err = k.Local()
		must(t, err)
		k.mu.Lock()
		defer k.mu.Unlock()
		return [2]time.Time{k.listed.began, k.local.began}
	}
	was := read()
	return read() == was
}

// becomes waits until a link has a state, which follows its carrier a moment later.
func becomes(link netlink.Link, want netlink.LinkOperState) error {
	for deadline := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		now, err := netlink.LinkByIndex(link.Attrs().Index)
		if err != nil || now.Attrs().OperState == want {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is %s, not %s", now.Attrs().Name, now.Attrs().OperState, want)
		}
	}
}

func TestAReadingIsRememberedUntilTheKernelAnnouncesAChange(t *testing.T) {
	near, far := wire(t, "192.168.50.21/24")
	for _, name := range []string{"near", "far"} { // messages about IPv6 would hide that there are none about IPv4
		must(t, os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0))
	}
	k := open(t, KernelConfig{})
	other := route("172.16.171.80/28", node2)
	a, err := netlink.ParseAddr("10.7.7.7/24")
	must(t, err)
	hop := &netlink.Route{
		Dst: route("10.99.0.0/24", node2).Dst, Table: unix.RT_TABLE_MAIN,
		LinkIndex: near.Attrs().Index, Scope: netlink.SCOPE_LINK,
	}
	for _, change := range []struct {
		what string
		do   func() error
	}{
		{"our route is added", func() error { return k.Add(to(block), addr(node1)) }},
		{"a part of it goes elsewhere", func() error { return netlink.RouteAdd(other) }},
		{"it is whole again", func() error { return netlink.RouteDel(other) }},
		{"somebody turns it", func() error {
			r := k.route(to(block))
			r.Gw, r.Scope = addr(node2).AsSlice(), netlink.SCOPE_UNIVERSE
			return netlink.RouteReplace(r)
		}},
		{"somebody removes it", func() error { return netlink.RouteDel(route(block, node2)) }},
		{"an address comes", func() error { return netlink.AddrAdd(near, a) }},
		{"an address goes", func() error { return netlink.AddrDel(near, a) }},
		{"our route is added again", func() error { return k.Add(to(block), addr(node1)) }},
		{"its link loses the carrier", func() error {
			return errors.Join(netlink.LinkSetDown(far), becomes(near, netlink.OperLowerLayerDown))
		}},
		{"its link has a carrier", func() error {
			return errors.Join(netlink.LinkSetUp(far), becomes(near, netlink.OperUp))
		}},
		{"its link goes down", func() error {
			return errors.Join(netlink.LinkSetDown(near), becomes(near, netlink.OperDown))
		}},
		{"its link is up", func() error { return errors.Join(netlink.LinkSetUp(near), becomes(near, netlink.OperUp)) }},
		{"our rule comes", func() error { return k.AddRule(Selector{From: addr("192.168.50.21"), To: pfx(block)}) }},
		{"our rule goes", func() error { return k.DropRule(Selector{From: addr("192.168.50.21"), To: pfx(block)}) }},
		{"a connected route comes", func() error { return netlink.RouteAdd(hop) }},
	} {
		remembered(t, k)
		must(t, change.do())
		got, err := k.List()
		must(t, err)
		gotLocal, err := k.Local()
		must(t, err)
		want, err := k.list()
		must(t, err)
		wantLocal, err := k.readLocal()
		must(t, err)
		if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(gotLocal, wantLocal) {
			t.Errorf("%s: got\n%v %v, want\n%v %v", change.what, got, gotLocal, want, wantLocal)
		}
	}
}

func TestAnOldReadingIsNotTrusted(t *testing.T) {
	wire(t)
	k := open(t, KernelConfig{})
	remembered(t, k)
	k.mu.Lock()
	k.listed = reading[Listing]{Listing{Routes: Table{to(block): netip.Addr{}}}, time.Now().Add(-trusted)}
	k.changedAt = k.listed.began.Add(-time.Hour)
	k.mu.Unlock()
	wantList(t, k, Table{})
}

func TestWithoutASubscriptionEveryCallReads(t *testing.T) {
	wire(t)
	k := open(t, KernelConfig{})
	remembered(t, k)
	k.mu.Lock()
	k.events = nil
	k.mu.Unlock()
	if remembers(t, k) {
		t.Error("a reading was remembered")
	}
}
