package routes

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	green    = "192.168.51.21" // the source of a cluster
	greenVia = "192.168.51.23"
	pods     = "172.16.0.0/16"
)

// fromGreen returns the selector of the packets from green to a prefix.
func fromGreen(prefix string) Selector { return Selector{From: addr(green), To: pfx(prefix)} }

// sites connects the machine to the networks of two clusters.
func sites(t *testing.T) { wire(t, "192.168.50.21/24", green+"/24") }

// way returns the next hop that the kernel has for a packet from a source to an address, or "" if it refuses the
// packet.
func way(t *testing.T, source, to string) string {
	t.Helper()
	found, err := netlink.RouteGetWithOptions(net.ParseIP(to), &netlink.RouteGetOptions{SrcAddr: net.ParseIP(source)})
	if err != nil {
		return ""
	}
	if len(found) != 1 {
		t.Fatalf("got %d routes to %s", len(found), to)
	}
	return found[0].Gw.String()
}

func wantWay(t *testing.T, source, to, want string) {
	t.Helper()
	if got := way(t, source, to); got != want {
		t.Errorf("packets from %s to %s go to %q, want %q", source, to, got, want)
	}
}

func wantRules(t *testing.T, k *Kernel, want map[Selector]Rule) {
	t.Helper()
	l, err := k.List()
	must(t, err)
	if !maps.Equal(l.Rules, want) {
		t.Errorf("got rules %v, want %v", l.Rules, want)
	}
}

// wantNoTable fails unless the tables of all sources are empty.
func wantNoTable(t *testing.T, k *Kernel) {
	t.Helper()
	all, err := k.read()
	must(t, err)
	for _, e := range all {
		if e.From.IsValid() {
			t.Errorf("%s is left", e)
		}
	}
}

func TestTwoClustersHaveTheSameBlock(t *testing.T) {
	sites(t)
	k := open(t, KernelConfig{})
	must(t, k.AddRule(fromGreen(pods)))
	must(t, k.AddRule(fromGreen(pods))) // a second time changes nothing
	must(t, k.Add(to(block), addr(node1)))
	must(t, k.Add(fromGreen(block), addr(greenVia)))
	wantList(t, k, Table{to(block): addr(node1), fromGreen(block): addr(greenVia)})
	wantRules(t, k, map[Selector]Rule{fromGreen(pods): {}})
	wantWay(t, "192.168.50.21", "172.16.171.70", node1)
	wantWay(t, green, "172.16.171.70", greenVia)
	wantWay(t, green, "172.16.3.3", "") // it does not go on to the main table
	foreign(t, "10.0.0.0/8", node1, unix.RTPROT_STATIC, 0)
	wantWay(t, green, "10.1.1.1", node1) // what else has this source goes as before

	// each has its own
	must(t, k.Drop(to(block)))
	wantWay(t, green, "172.16.171.70", greenVia)
	must(t, k.Add(to(block), addr(node2)))
	must(t, k.Drop(fromGreen(block)))
	wantWay(t, green, "172.16.171.70", "")
	wantWay(t, "192.168.50.21", "172.16.171.70", node2)

	must(t, k.DropRule(fromGreen(pods)))
	must(t, k.DropRule(fromGreen(pods)))
	wantRules(t, k, map[Selector]Rule{})
	wantWay(t, green, "172.16.171.70", node2)
	wantNoTable(t, k)
}

func TestTheTableOfASourceStaysUntilItsLastRuleGoes(t *testing.T) {
	sites(t)
	k := open(t, KernelConfig{})
	must(t, k.AddRule(fromGreen(pods)))
	must(t, k.AddRule(fromGreen("10.244.0.0/16")))
	must(t, k.DropRule(fromGreen(pods)))
	wantRules(t, k, map[Selector]Rule{fromGreen("10.244.0.0/16"): {}})
	must(t, k.DropRule(fromGreen("10.244.0.0/16")))
	wantRules(t, k, map[Selector]Rule{})
}

// ruleOf returns the rule that another program makes.
func ruleOf(change func(*netlink.Rule)) *netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Priority, r.Table = netlink.FAMILY_V4, 90, unix.RT_TABLE_MAIN
	change(r)
	return r
}

func TestARouteOfASourceCountsOnlyBehindItsRule(t *testing.T) {
	network := func(p string) *net.IPNet { return ipNet(pfx(p)) }
	for name, tt := range map[string]struct {
		harm     func(t *testing.T, k *Kernel) error
		why      string // empty if it does no harm
		shadowed bool
	}{
		"the rule is gone": {harm: func(_ *testing.T, k *Kernel) error {
			return netlink.RuleDel(k.rule(fromGreen(pods)))
		}, why: "no rule leads packets from " + green},
		"the default route is gone": {harm: func(_ *testing.T, k *Kernel) error {
			return netlink.RouteDel(k.refusal(addr(green)))
		}, why: "no default route that refuses packets"},
		"another default route goes before it": {harm: func(t *testing.T, k *Kernel) error {
			r := route("0.0.0.0/0", node1)
			r.Table, r.Priority = k.tableOf(addr(green)), 10
			return netlink.RouteAdd(r)
		}, why: "no default route that refuses packets"},
		"a rule for all goes before it": {harm: func(*testing.T, *Kernel) error {
			return netlink.RuleAdd(ruleOf(func(*netlink.Rule) {}))
		}, why: "another rule goes before ours", shadowed: true},
		"a rule for the pods goes before it": {harm: func(*testing.T, *Kernel) error {
			return netlink.RuleAdd(ruleOf(func(r *netlink.Rule) { r.Dst = network("172.16.171.0/24") }))
		}, why: "another rule goes before ours", shadowed: true},
		"a rule for other sources goes before it": {harm: func(*testing.T, *Kernel) error {
			return netlink.RuleAdd(ruleOf(func(r *netlink.Rule) {
				r.Invert, r.Src = true, network("10.0.0.0/8")
			}))
		}, why: "another rule goes before ours", shadowed: true},
		"a rule for other pods": {harm: func(*testing.T, *Kernel) error {
			return netlink.RuleAdd(ruleOf(func(r *netlink.Rule) { r.Dst = network("172.17.0.0/16") }))
		}},
		"a rule for another source": {harm: func(*testing.T, *Kernel) error {
			return netlink.RuleAdd(ruleOf(func(r *netlink.Rule) { r.Src = network("192.168.50.21/32") }))
		}},
		"a rule for a mark": {harm: func(*testing.T, *Kernel) error {
			return netlink.RuleAdd(ruleOf(func(r *netlink.Rule) { r.Mark = 7 }))
		}},
		"a rule for what comes in": {harm: func(*testing.T, *Kernel) error {
			return netlink.RuleAdd(ruleOf(func(r *netlink.Rule) { r.IifName = "near" }))
		}},
		"a rule behind it": {harm: func(*testing.T, *Kernel) error {
			return netlink.RuleAdd(ruleOf(func(r *netlink.Rule) { r.Priority = 110 }))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			sites(t)
			k := open(t, KernelConfig{})
			must(t, k.AddRule(fromGreen(pods)))
			must(t, k.Add(fromGreen(block), addr(greenVia)))
			before, err := netlink.RuleList(netlink.FAMILY_V4)
			must(t, err)
			t.Cleanup(func() {
				now, err := netlink.RuleList(netlink.FAMILY_V4)
				must(t, err)
				for i := range now {
					if !slices.ContainsFunc(before, func(r netlink.Rule) bool { return r.String() == now[i].String() }) ||
						now[i].Priority == rulePriority {
						must(t, netlink.RuleDel(&now[i]))
					}
				}
				_ = k.dropRefusal(addr(green)) // with the table
			})
			must(t, tt.harm(t, k))
			if tt.why == "" {
				wantList(t, k, Table{fromGreen(block): addr(greenVia)})
				wantWay(t, green, "172.16.171.70", greenVia)
				return
			}
			wantList(t, k, Table{}, tt.why)
			l, err := k.List()
			must(t, err)
			if state := l.Rules[fromGreen(pods)]; state.Shadowed != tt.shadowed {
				t.Errorf("got %+v, want shadowed %v", state, tt.shadowed)
			}
			if !tt.shadowed && !strings.Contains(name, "another") {
				must(t, k.AddRule(fromGreen(pods)))
				wantList(t, k, Table{fromGreen(block): addr(greenVia)})
			}
		})
	}
}

func TestAFreshProcessFindsTablesAndRules(t *testing.T) {
	sites(t)
	k := open(t, KernelConfig{})
	must(t, k.AddRule(fromGreen(pods)))
	must(t, k.Add(fromGreen(block), addr(greenVia)))
	k = open(t, KernelConfig{Metric: 60})
	wantList(t, k, Table{fromGreen(block): addr(greenVia)})
	wantRules(t, k, map[Selector]Rule{fromGreen(pods): {}})
	must(t, k.Drop(fromGreen(block)))
	must(t, k.DropRule(fromGreen(pods)))
	wantNoTable(t, k)
}

// TestACrashBetweenTwoCallsLeadsNoPacketAstray stops before each call to the kernel, as a crash does. Another
// cluster has the same block in the main table.
func TestACrashBetweenTwoCallsLeadsNoPacketAstray(t *testing.T) {
	sites(t)
	k := open(t, KernelConfig{})
	must(t, k.Add(to(block), addr(node1)))
	rule, refusal := k.rule(fromGreen(pods)), k.refusal(addr(green))
	one := k.route(fromGreen(block))
	one.Gw, one.Type, one.Scope = net.ParseIP(greenVia), unix.RTN_UNICAST, netlink.SCOPE_UNIVERSE
	drop := func() { must(t, k.Drop(fromGreen(block))) }
	for name, tt := range map[string]struct {
		done []func() error
		held bool
	}{
		"before the default route": {},
		"before the rule":          {done: []func() error{func() error { return netlink.RouteAdd(refusal) }}},
		"before the route": {done: []func() error{
			func() error { return netlink.RouteAdd(refusal) }, func() error { return netlink.RuleAdd(rule) },
		}},
		"the end": {done: []func() error{
			func() error { return netlink.RouteAdd(refusal) }, func() error { return netlink.RuleAdd(rule) },
			func() error { return netlink.RouteAdd(one) },
		}, held: true},
	} {
		for _, step := range tt.done {
			must(t, step())
		}
		l, err := open(t, KernelConfig{}).List()
		must(t, err)
		if _, held := l.Routes[fromGreen(block)]; held != tt.held {
			t.Errorf("%s: got held %v, want %v", name, held, tt.held)
		}
		if got := way(t, green, "172.16.171.70"); tt.held && got != greenVia || len(tt.done) == 2 && got != "" {
			t.Errorf("%s: packets go to %q", name, got)
		}
		drop()
		must(t, k.DropRule(fromGreen(pods)))
	}
	must(t, k.Drop(to(block)))
}

func TestADefaultRouteWithoutARuleIsRemovedAtAStart(t *testing.T) {
	sites(t)
	k := open(t, KernelConfig{})
	must(t, netlink.RouteAdd(k.refusal(addr(green))))
	k = open(t, KernelConfig{})
	wantNoTable(t, k)
}

func TestASourceIsIPv4(t *testing.T) {
	sites(t)
	k := open(t, KernelConfig{})
	for _, s := range []Selector{
		{From: addr("fd00:51::21"), To: pfx("fd00:172::/64")},
		{From: addr(green), To: pfx("fd00:172::/64")},
		to(pods),
		{From: addr(green), To: netip.MustParsePrefix("172.16.0.1/16")},
	} {
		if err := k.AddRule(s); err == nil {
			t.Errorf("%s: got no error", s)
		}
	}
}
