package group

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestOrdersReachEveryMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		lost := 0
		n.lose(func(from, _ netip.Addr) bool {
			if from == addr(two) {
				lost++
			}
			return from == addr(two) && lost%3 == 0
		})
		g1, _ := n.start(t, "gate-1", gates, secret)
		g2, _ := n.start(t, "gate-2", gates, secret)
		settle(time.Second)
		before := len(n.sent(two, one))
		settle(time.Second)
		if got := len(n.sent(two, one)) - before; got != 10 {
			t.Errorf("a member without orders sends %d packets in a second, want 10 heartbeats", got)
		}
		knocked(g1)
		g2.Order("blue+1")
		settle(5 * time.Second)
		if got := g1.Heard()[0].Orders; got != "blue+1" || !knocked(g1) {
			t.Errorf("gate-1 hears %q", got)
		}
		before = len(n.sent(two, one))
		settle(10 * time.Second)
		if got := len(n.sent(two, one)) - before; got != 110 {
			t.Errorf("a member with orders sends %d packets in ten seconds, want 100 heartbeats and 10 with orders", got)
		}
		if knocked(g1) {
			t.Error("orders that are the same are a change")
		}
		if !g1.Heard()[0].Alive || g1.Heard()[0].Problem != "" {
			t.Errorf("%+v", g1.Heard()[0])
		}
		g2.Order("blue-2")
		settle(5 * time.Second)
		if got := g1.Heard()[0].Orders; got != "blue-2" {
			t.Errorf("gate-1 hears %q after another order", got)
		}

		n.lose(func(netip.Addr, netip.Addr) bool { return false })
		g3, _ := n.start(t, "gate-3", gates, secret) // it starts later
		settle(3 * Interval)
		if got := g3.Heard()[1].Orders; got != "blue-2" {
			t.Errorf("gate-3 hears %q", got)
		}
		g2.Order(strings.Repeat("x", MostOrders) + "y")
		settle(5 * time.Second)
		if got := g3.Heard()[1].Orders; got != strings.Repeat("x", MostOrders) {
			t.Errorf("of orders that are too long gate-3 hears %d bytes", len(got))
		}
	})
}

// A member of a version without orders takes a packet with orders for one of another version, and says so
// only of a member that is silent.
func TestOrdersOfAnotherVersionAreLeftOut(t *testing.T) {
	m := message{counter: 1, name: "gate-2", orders: "blue+1"}
	b := m.appendTo(nil)
	if b[3] == edition {
		t.Error("a version without orders would read them as a page")
	}
	got, ok := parse(append(b, make([]byte, signature)...))
	if !ok || got != m {
		t.Errorf("got %+v, %v", got, ok)
	}
	for _, orders := range []string{"", "a\n", strings.Repeat("x", MostOrders+1)} {
		m.orders = "x"
		b := m.appendTo(nil)
		b = append(append(b[:len(b)-1], orders...), make([]byte, signature)...)
		if _, ok := parse(b); ok {
			t.Errorf("orders %q are read", orders)
		}
	}
}
