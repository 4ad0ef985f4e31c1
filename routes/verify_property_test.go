package routes

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A draw returns a number below n: from rapid, which shrinks, or from a plain generator.
type draw func(n int, label string) int

func (d draw) one(n int, label string) bool { return d(n, label) == 0 }

// worldOf draws a small world with many collisions: a few nodes, blocks and pools of two
// clusters in one /16, most of them valid.
func worldOf(d draw) ([]Offer, Facts) {
	names := []string{"n0", "n1", "n2", "n3"}
	node := func(c, i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 168, byte(50 + c), byte(22 + i)}) }
	block := func(i, bits int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(i / 4), byte(i % 4 * 64)}), bits)
	}
	f := Facts{
		Now:        noon,
		Local:      Local{Addrs: []netip.Addr{addr("192.168.50.21")}, Networks: []netip.Prefix{pfx("192.168.50.0/24")}},
		Retain:     time.Minute,
		FailStatic: time.Duration(d(2, "static")) * 5 * time.Minute,
	}
	if !d.one(4, "second network") {
		f.Local.Networks = append(f.Local.Networks, pfx("192.168.51.0/24"))
		f.Local.Addrs = append(f.Local.Addrs, addr("192.168.51.21"))
	}
	f.Local.Primary = f.Local.Addrs
	if d.one(12, "network among the pods") {
		f.Local.Networks = append(f.Local.Networks, pfx("172.16.1.0/24"))
	}
	for c := range 1 + d(2, "clusters") {
		t := Topology{Cluster: fmt.Sprint("c", c), ASN: 65000, HostLocal: d.one(6, "host-local")}
		for i, name := range names {
			if d.one(8, "node gone") {
				continue
			}
			a := node(c, i)
			if d.one(10, "namesake") {
				a = node(c, 0)
			}
			n := Node{
				Name: name, ASN: 65000 + uint32(d(8, "AS")/7), Reflector: d.one(5, "reflector"),
				Down: d.one(5, "down"),
			}
			if !d.one(10, "no address") {
				n.BGP = []netip.Prefix{netip.PrefixFrom(a, 24)}
			}
			if t.HostLocal {
				n.PodCIDRs = []netip.Prefix{block(d(12, "podCIDR")/4*4, 24)}
			}
			t.Nodes = append(t.Nodes, n)
		}
		for i := range 12 {
			if !d.one(8, "sound block") {
				t.Affinities = append(t.Affinities,
					Affinity{Node: names[i%4], Prefix: block(i, 26), State: "confirmed"})
			}
		}
		for range d(4, "affinities") {
			t.Affinities = append(t.Affinities, Affinity{
				Node:    names[d(4, "owner")],
				Prefix:  block(d(12, "block"), 26),
				State:   []string{"confirmed", "confirmed", "", "pending", "pendingDeletion"}[d(5, "state")],
				Deleted: d.one(8, "deleted"),
				Type:    []string{"host", "", "virtual"}[d(3, "type")],
			})
		}
		for range d(6, "blocks") {
			b := &IPAMBlock{Prefix: block(d(12, "ipam block"), 26)}
			switch d(3, "arbiter") {
			case 0:
				b.Affinity = "host:" + names[d(4, "which arbiter")]
			case 1:
				b.Affinity = "host:" + names[int(b.Prefix.Addr().As4()[3]/64)]
			}
			if d.one(2, "lends") {
				b.Borrowed = map[netip.Addr]string{b.Prefix.Addr().Next(): names[d(4, "borrower")]}
			}
			t.Blocks = append(t.Blocks, b)
		}
		for _, p := range []string{"172.16.0.0/22", "172.16.0.0/23", "172.16.2.0/24"} {
			if d.one(2, "pool") {
				t.Pools = append(t.Pools,
					Pool{Name: p, CIDR: pfx(p), BlockSize: 26 - d(6, "size")/5, NoExport: d.one(6, "no export")})
			}
		}
		if d.one(4, "bounds") {
			t.Bounds = []netip.Prefix{
				pfx([]string{"172.16.0.0/16", "172.16.0.0/24", "172.16.1.0/24"}[d(3, "which bounds")]),
			}
		}
		if d.one(3, "source") {
			t.Source = pfx([]string{"192.168.50.0/24", "192.168.51.0/24", "192.168.50.21/32"}[d(3, "which source")])
		}
		if d.one(4, "protected") {
			t.Protected = []netip.AddrPort{netip.AddrPortFrom(block(d(12, "protected"), 26).Addr().Next(), 6443)}
		}
		if d.one(4, "endpoints") {
			t.Endpoints = []netip.AddrPort{netip.AddrPortFrom(block(d(12, "endpoint"), 26).Addr().Next(), 6443)}
		}
		if d.one(4, "external reflector") {
			t.Reflectors = []netip.Addr{addr("192.168.50.99")}
		}
		f.Topologies = append(f.Topologies, t)
	}
	var offers []Offer
	for range d(30, "offers") {
		c, i := d(2, "cluster of offer"), d(4, "peer")
		o := Offer{
			Cluster: fmt.Sprint("c", c), Peer: node(c, i), PeerAS: 65000, NextHop: node(c, i),
			Prefix: block(d(3, "prefix")*4+i, 26),
		}
		switch d(12, "twist") {
		case 0:
			o.Prefix = netip.PrefixFrom(o.Prefix.Addr(), d(33, "length"))
		case 6:
			o.Prefix = block(d(12, "any prefix"), 26)
		case 1:
			o.Prefix = netip.PrefixFrom(o.Prefix.Addr(), d(33, "length")).Masked()
		case 2, 3:
			o.Prefix = single(o.Prefix.Addr().Next())
		case 4:
			o.Prefix = netip.PrefixFrom(o.Prefix.Addr(), 24).Masked()
		case 5:
			o.Prefix = pfx([]string{
				"0.0.0.0/0", "::/0", "192.168.50.0/24", "10.96.0.0/12", "127.0.0.1/32",
				"fd00::/122",
			}[d(6, "junk")])
		}
		if d.one(4, "other next hop") {
			o.NextHop = node(c, d(4, "next hop"))
		}
		if d.one(12, "external") {
			o.Peer = addr("192.168.50.99")
		}
		if d.one(10, "other AS") {
			o.PeerAS = 65001
		}
		for range d(20, "path") / 16 {
			o.ASPath = append(o.ASPath, 65000+uint32(d(2, "path AS")))
		}
		if d.one(3, "lost") {
			o.Lost = Loss{
				Cause: []Cause{Closed, Reconfigured, HoldExpired, Notified, Refused}[d(5, "cause")],
				At:    noon.Add(-time.Duration(d(400, "ago")) * time.Second),
			}
		}
		if o.Lost.Cause == "" && d.one(4, "silent") {
			o.Silent = true
		}
		if d.one(2, "established lately") {
			o.Since = noon.Add(-time.Duration(d(400, "since")) * time.Second)
		}
		offers = append(offers, o)
	}
	return offers, f
}

// unjustified checks one route against the facts rule by rule, by scans, and returns what
// is wrong with it. It is a simple second implementation of Verify.
func unjustified(s Selector, via netip.Addr, offers []Offer, f Facts) string {
	p := s.To
	for _, n := range f.Local.Networks {
		if n.Overlaps(p) {
			return "overlaps our network " + n.String()
		}
	}
	for _, a := range f.Local.Addrs {
		if p.Contains(a) {
			return "covers our address " + a.String()
		}
	}
	if p.Bits() < 8 || p != p.Masked() || p.Addr().IsLoopback() || p.Addr().IsMulticast() ||
		p.Addr().IsLinkLocalUnicast() {
		return "is no unicast prefix of a pod"
	}
	onLink := false
	for _, n := range f.Local.Networks {
		onLink = onLink || n.Contains(via)
	}
	if !onLink {
		return "next hop is not on a connected network"
	}
	var why []string
	for _, t := range f.Topologies {
		for _, a := range t.Protected {
			if p.Contains(a.Addr()) {
				return "covers protected " + a.String()
			}
		}
		for _, n := range t.Nodes {
			if len(n.BGP) == 0 || n.BGP[0].Addr() != via {
				continue
			}
			wrong := wrongOwner(p, n, t)
			if slices.ContainsFunc(t.Endpoints, func(a netip.AddrPort) bool { return p.Contains(a.Addr()) }) {
				wrong = "covers an API server of its own cluster"
			}
			if wrong == "" {
				wrong = unbounded(p, t)
			}
			if wrong == "" && s.From != sourceIn(t, f.Local) {
				wrong = "the source is not the cluster's"
			}
			if wrong == "" {
				wrong = unoffered(p, n, t, offers, f)
			}
			if wrong == "" {
				return ""
			}
			why = append(why, n.Name+" of "+t.Cluster+": "+wrong)
		}
	}
	return "no node justifies it: " + strings.Join(why, "; ")
}

// sourceIn returns the address of the machine in the source of a cluster. It is zero if the cluster has no source,
// and the unspecified address if the machine has none there.
func sourceIn(t Topology, local Local) netip.Addr {
	if !t.Source.IsValid() {
		return netip.Addr{}
	}
	for _, a := range local.Addrs {
		if t.Source.Contains(a) {
			return a
		}
	}
	return netip.IPv4Unspecified()
}

func wrongOwner(p netip.Prefix, n Node, t Topology) string {
	for _, m := range t.Nodes {
		if m.Name != n.Name && len(m.BGP) > 0 && m.BGP[0].Addr() == n.BGP[0].Addr() {
			return "shares its address with " + m.Name
		}
	}
	mine, others := 0, 0
	if t.HostLocal {
		for _, m := range t.Nodes {
			for _, c := range m.PodCIDRs {
				if c == p && m.Name == n.Name {
					mine++
				} else if c == p {
					others++
				}
			}
		}
		if mine == 0 || others > 0 {
			return "podCIDR is not its own"
		}
		return ""
	}
	for _, b := range t.Blocks {
		if who, ok := b.Borrowed[p.Addr()]; ok && p.IsSingleIP() {
			if who == n.Name {
				mine++
			} else {
				others++
			}
		}
	}
	if mine > 0 && others == 0 {
		return ""
	}
	claims := map[string]bool{}
	for _, a := range t.Affinities {
		if a.Prefix == p && (a.State == "confirmed" || a.State == "") && !a.Deleted && a.Type != "virtual" {
			claims[a.Node] = true
		}
	}
	arbiter := 0
	for _, b := range t.Blocks {
		switch {
		case b.Prefix != p || b.Affinity == "":
		case b.Affinity == "host:"+n.Name:
			arbiter++
		default:
			return "IPAMBlock says " + b.Affinity
		}
	}
	if !claims[n.Name] || len(claims) > 1 && arbiter == 0 {
		return fmt.Sprintf("claims are %v", claims)
	}
	return ""
}

func unbounded(p netip.Prefix, t Topology) string {
	inside := func(q netip.Prefix) bool { return q.Bits() <= p.Bits() && q.Contains(p.Addr()) }
	bounded := false
	for _, b := range t.Bounds {
		bounded = bounded || inside(b)
	}
	if len(t.Bounds) > 0 && !bounded {
		return "outside the bounds"
	}
	best := Pool{}
	for _, pool := range t.Pools {
		if inside(pool.CIDR) && (best.Name == "" || pool.CIDR.Bits() > best.CIDR.Bits()) {
			best = pool
		}
	}
	switch {
	case best.NoExport:
		return "pool is not exported"
	case best.Name == "" && !bounded && !t.HostLocal:
		return "nothing bounds it"
	case best.Name != "" && !t.HostLocal && !p.IsSingleIP() && p.Bits() != best.BlockSize:
		return "not of the pool's block size"
	}
	return ""
}

func unoffered(p netip.Prefix, owner Node, t Topology, offers []Offer, f Facts) string {
	var why []string
	for _, o := range offers {
		if o.Cluster != t.Cluster || o.Prefix != p || o.NextHop != owner.BGP[0].Addr() {
			continue
		}
		direct := o.Peer == owner.BGP[0].Addr()
		as, reflects := uint32(0), false
		for _, r := range t.Reflectors {
			if r == o.Peer {
				as, reflects = t.ASN, true
			}
		}
		for _, n := range t.Nodes {
			if len(n.BGP) > 0 && n.BGP[0].Addr() == o.Peer {
				as, reflects = n.ASN, reflects || n.Reflector
			}
		}
		switch {
		case as != o.PeerAS && o.Lost.Cause == "":
			why = append(why, "wrong AS")
		case !direct && !reflects:
			why = append(why, "peer is neither owner nor reflector")
		case len(o.ASPath) > 1, len(o.ASPath) == 1 && (!direct || o.ASPath[0] != o.PeerAS):
			why = append(why, "AS path")
		case !direct && as != owner.ASN:
			why = append(why, "reflected across an AS")
		case o.Lost.Cause == "", (o.Lost.Cause == Closed || o.Lost.Cause == Reconfigured) && !owner.Down &&
			f.Now.Sub(o.Lost.At) < f.Retain:
			return ""
		case allLost(t, o.Lost.At, offers) && f.Now.Sub(o.Lost.At) < f.FailStatic+atOnce:
			return ""
		default:
			why = append(why, "lost")
		}
	}
	return fmt.Sprintf("offers: %q", why)
}

// allLost reports whether no session with a node of the cluster was up then and is still
// heard. That is necessary for failing static, but not sufficient.
func allLost(t Topology, at time.Time, offers []Offer) bool {
	for _, o := range offers {
		for _, n := range t.Nodes {
			if o.Cluster == t.Cluster && o.Lost.Cause == "" && !o.Silent && !o.Since.After(at) && o.PeerAS == n.ASN &&
				len(n.BGP) > 0 && n.BGP[0].Addr() == o.Peer {
				shared := false
				for _, m := range t.Nodes {
					shared = shared || m.Name != n.Name && len(m.BGP) > 0 && m.BGP[0].Addr() == o.Peer
				}
				if !shared {
					return false
				}
			}
		}
	}
	return true
}

// check compares the result of Verify for one world with unjustified, and checks what holds
// in every world. It returns the number of routes.
func check(t interface{ Fatalf(string, ...any) }, offers []Offer, f Facts) int {
	table, refusals := Verify(offers, f)
	for p, via := range table {
		if why := unjustified(p, via, offers, f); why != "" {
			t.Fatalf("%s via %s: %s", p, via, why)
		}
	}
	refused := map[string]int{}
	for _, r := range refusals {
		refused[fmt.Sprint(r.Offer)]++
		if r.Reason == "" || r.Why == "" {
			t.Fatalf("refused without a reason: %+v", r)
		}
	}
	for _, o := range offers {
		if refused[fmt.Sprint(o)] > 0 {
			refused[fmt.Sprint(o)]--
		} else if table[Selector{From: sourceOf(o.Cluster, f), To: o.Prefix}] != o.NextHop {
			t.Fatalf("neither routed nor refused: %+v", o)
		}
	}
	for p := range table {
		for _, lower := range f.Topologies {
			for _, n := range lower.Nodes {
				if len(n.BGP) > 0 && n.BGP[0].Addr() == table[p] && overruled(p.To, lower, f) {
					t.Fatalf("%s of %s lies in what belongs to a cluster that outranks it", p, lower.Cluster)
				}
			}
		}
	}
	return len(table)
}

// sourceOf returns the source of a cluster of the facts.
func sourceOf(cluster string, f Facts) netip.Addr {
	for _, t := range f.Topologies {
		if t.Cluster == cluster {
			return sourceIn(t, f.Local)
		}
	}
	return netip.Addr{}
}

// overruled reports whether a cluster that outranks t claims addresses of p: an earlier
// one, or one with bounds while t has none. A cluster with another source claims none.
func overruled(p netip.Prefix, t Topology, f Facts) bool {
	earlier := true
	for _, other := range f.Topologies {
		if other.Cluster == t.Cluster {
			earlier = false
			continue
		}
		outranks := len(other.Bounds) > 0 && len(t.Bounds) == 0 ||
			(len(other.Bounds) > 0) == (len(t.Bounds) > 0) && earlier
		own, its := sourceIn(t, f.Local), sourceIn(other, f.Local)
		if !outranks || its == netip.IPv4Unspecified() || own.IsValid() && its.IsValid() && own != its {
			continue
		}
		for _, b := range other.Bounds {
			if b.Overlaps(p) {
				return true
			}
		}
		for _, pool := range other.Pools {
			if len(other.Bounds) == 0 && pool.CIDR.Overlaps(p) {
				return true
			}
		}
	}
	return false
}

func TestWhateverIsOfferedEveryRouteIsJustified(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		offers, f := worldOf(func(n int, label string) int { return rapid.IntRange(0, n-1).Draw(t, label) })
		check(t, offers, f)
	})
}

func TestManyRandomWorldsHaveOnlyJustifiedRoutes(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	routes := 0
	for range 10_000 {
		offers, f := worldOf(func(n int, _ string) int { return rng.IntN(n) })
		routes += check(t, offers, f)
	}
	t.Logf("%d routes", routes)
	if routes < 2_000 {
		t.Errorf("got %d routes: the worlds are too poor to say anything", routes)
	}
}

func TestWhatAPolicyRemembersChangesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := func(n int, label string) int { return rapid.IntRange(0, n-1).Draw(t, label) }
		var p Policy
		var last Facts
		for range 2 + d(4, "rounds") {
			offers, f := worldOf(d)
			switch later := last.Now.Add(time.Duration(d(120, "seconds")) * time.Second); {
			case last.Topologies == nil || d(3, "records") == 0:
			case d(2, "machine") == 0:
				f.Topologies, f.Now = last.Topologies, later
			default:
				f.Topologies, f.Local, f.Now = last.Topologies, last.Local, later
			}
			last = f
			agrees(t, &p, offers, f)
		}
	})
}

// agrees fails unless a Policy, with what it remembers, finds what one finds that remembers nothing.
func agrees(t interface{ Fatalf(string, ...any) }, p *Policy, offers []Offer, f Facts) {
	got, gotRefused := p.Verify(offers, f)
	want, wantRefused := Verify(offers, f)
	if !got.Equal(want) || !reflect.DeepEqual(gotRefused, wantRefused) {
		t.Fatalf("table\n%s%v\nwant\n%s%v", got, gotRefused, want, wantRefused)
	}
	if got, want := p.Static(offers, f), Static(offers, f); !maps.Equal(got, want) {
		t.Fatalf("static clusters %v, want %v", got, want)
	}
	if got, want := p.Withheld(offers, f), Withheld(offers, f.Topologies); !maps.Equal(got, want) {
		t.Fatalf("withheld %v, want %v", got, want)
	}
	if got, want := p.Allocate(f), Allocate(f); !reflect.DeepEqual(got, want) {
		t.Fatalf("allocations %+v, want %+v", got, want)
	}
}

// In a cluster at work most rounds differ in the clock, the pods or one offer from the round before.
func TestAPolicyNoticesWhatLittleChanges(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	d := draw(func(n int, _ string) int { return rng.IntN(n) })
	for range 1000 {
		var p Policy
		offers, f := worldOf(d)
		for i := range offers {
			offers[i].Announced = f.Now.Add(-time.Duration(d(20, "announced")) * time.Second)
		}
		for range 6 {
			offers, f.Topologies = slices.Clone(offers), slices.Clone(f.Topologies)
			switch d(5, "change") {
			case 0, 1:
				f.Now = f.Now.Add(time.Duration(d(120, "seconds")) * time.Second)
			case 2:
				f.Retain = time.Duration(d(3, "retain")) * time.Minute
				f.FailStatic = time.Duration(d(3, "static")) * 4 * time.Minute
			case 3:
				changePods(d, f.Topologies)
			case 4:
				if len(offers) > 0 {
					o := &offers[d(len(offers), "offer")]
					o.Silent = o.Lost.Cause == "" && !o.Silent
				}
			}
			agrees(t, &p, offers, f)
		}
	}
}

// changePods gives a block of each cluster another pod, and perhaps lets it lend another address.
func changePods(d draw, all []Topology) {
	for i := range all {
		if len(all[i].Blocks) == 0 {
			continue
		}
		at := d(len(all[i].Blocks), "block with another pod")
		b := *all[i].Blocks[at]
		b.Pods = map[netip.Addr]string{b.Prefix.Addr(): fmt.Sprint("ns", d(3, "namespace"))}
		if d.one(3, "lends another") {
			b.Borrowed = map[netip.Addr]string{b.Prefix.Addr().Next(): fmt.Sprint("n", d(4, "borrower"))}
		}
		all[i].Blocks, all[i].Affinities = slices.Clone(all[i].Blocks), slices.Clone(all[i].Affinities)
		all[i].Blocks[at] = &b
	}
}

// A field of Offer that sameOffer forgets would make Policy answer with findings of other offers.
func TestAnOfferWithOneOtherFieldIsAnother(t *testing.T) {
	if o := (Offer{ASPath: []uint32{1}}); !sameOffer(o, Offer{ASPath: []uint32{1}}) {
		t.Error("equal offers differ")
	}
	others := map[string]Offer{
		"Cluster": {Cluster: "c"}, "Peer": {Peer: addr("10.0.0.1")}, "PeerAS": {PeerAS: 1},
		"Prefix": {Prefix: pfx("10.0.0.0/26")}, "NextHop": {NextHop: addr("10.0.0.1")}, "ASPath": {ASPath: []uint32{1}},
		"Since": {Since: noon}, "Announced": {Announced: noon}, "Lost": {Lost: Loss{Cause: Closed}}, "Silent": {Silent: true},
	}
	for field := range reflect.TypeFor[Offer]().Fields() {
		o, there := others[field.Name]
		if !there || sameOffer(o, Offer{}) || sameOffer(Offer{}, o) {
			t.Errorf("%s is not compared, or is not in this test", field.Name)
		}
	}
}
