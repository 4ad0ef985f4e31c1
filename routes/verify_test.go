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
)

var (
	addr = netip.MustParseAddr
	pfx  = netip.MustParsePrefix
	noon = time.Date(2026, 8, 22, 12, 0, 0, 0, time.UTC)
)

// demo returns the cluster of the documents: three nodes in AS 65000, with a block each.
func demo() Topology {
	return Topology{
		Cluster: "demo",
		Nodes: []Node{
			{Name: "control", ASN: 65000, BGP: []netip.Prefix{pfx("192.168.50.22/24"), pfx("fd00:50::22/64")}},
			{Name: "worker1", ASN: 65000, BGP: []netip.Prefix{pfx("192.168.50.23/24"), pfx("fd00:50::23/64")}},
			{Name: "worker2", ASN: 65000, BGP: []netip.Prefix{pfx("192.168.50.24/24")}},
		},
		Affinities: []Affinity{
			{Name: "a1", Node: "control", Prefix: pfx("172.16.49.64/26"), State: "confirmed", Type: "host"},
			{Name: "a2", Node: "worker1", Prefix: pfx("172.16.171.64/26"), State: "confirmed"},
			{Name: "a3", Node: "worker2", Prefix: pfx("172.16.189.64/26")},
			{Name: "a4", Node: "worker1", Prefix: pfx("fd00:172::40/122"), State: "confirmed"},
		},
		Pools: []Pool{
			{Name: "default", CIDR: pfx("172.16.0.0/16"), BlockSize: 26},
			{Name: "six", CIDR: pfx("fd00:172::/48"), BlockSize: 122},
		},
		Protected: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.9:6443")},
		ASN:       65000,
	}
}

func facts(topologies ...Topology) Facts {
	return Facts{
		Now:        noon,
		Topologies: topologies,
		Local: Local{
			Addrs:    []netip.Addr{addr("192.168.50.21"), addr("203.0.113.5"), addr("fd00:50::21")},
			Networks: []netip.Prefix{pfx("192.168.50.0/24"), pfx("172.16.200.0/24"), pfx("fd00:50::/64")},
		},
		Retain:     2 * time.Minute,
		FailStatic: 10 * time.Minute,
	}
}

// own returns the offer of worker1 for its own block, as BIRD sends it within the AS.
func own() Offer {
	return Offer{
		Cluster: "demo", Peer: addr("192.168.50.23"), PeerAS: 65000,
		Prefix: pfx("172.16.171.64/26"), NextHop: addr("192.168.50.23"),
	}
}

func TestEachNodesOwnBlockIsRouted(t *testing.T) {
	o1, o2, o3, o6 := own(), own(), own(), own()
	o2.Peer, o2.NextHop, o2.Prefix = addr("192.168.50.22"), addr("192.168.50.22"), pfx("172.16.49.64/26")
	o3.Peer, o3.NextHop, o3.Prefix = addr("192.168.50.24"), addr("192.168.50.24"), pfx("172.16.189.64/26")
	o6.Peer, o6.NextHop, o6.Prefix = addr("fd00:50::23"), addr("fd00:50::23"), pfx("fd00:172::40/122")
	got, refusals := Verify([]Offer{o1, o2, o3, o6}, facts(demo()))
	want := Table{
		to("172.16.171.64/26"): addr("192.168.50.23"),
		to("172.16.49.64/26"):  addr("192.168.50.22"),
		to("172.16.189.64/26"): addr("192.168.50.24"),
		to("fd00:172::40/122"): addr("fd00:50::23"),
	}
	if !got.Equal(want) || len(refusals) != 0 {
		t.Errorf("got\n%vrefusals %v\nwant\n%v", got, refusals, want)
	}
}

func TestAnOfferIsRoutedOrRefusedForTheRightReason(t *testing.T) {
	const routed = Reason("")
	lost := func(cause Cause, ago time.Duration) func(*Offer, *Facts) {
		return func(o *Offer, _ *Facts) { o.Lost = Loss{Cause: cause, At: noon.Add(-ago)} }
	}
	demo0 := func(f *Facts) *Topology { return &f.Topologies[0] }
	other := func() Topology {
		return Topology{Cluster: "other", Pools: []Pool{{Name: "p", CIDR: pfx("172.16.128.0/17"), BlockSize: 26}}}
	}
	for name, test := range map[string]struct {
		change func(*Offer, *Facts)
		want   Reason
		says   string // a part of the sentence
	}{
		"own block": {func(*Offer, *Facts) {}, routed, ""},

		// speakers
		"cluster not known": {func(o *Offer, _ *Facts) { o.Cluster = "x" }, UnknownCluster, `"x"`},
		"peer is no node": {func(o *Offer, _ *Facts) {
			o.Peer = addr("192.168.50.99")
		}, UnknownPeer, "192.168.50.99"},
		"node without BGP address": {func(_ *Offer, f *Facts) {
			demo0(f).Nodes[1].BGP = nil
		}, UnknownPeer, "192.168.50.23"},
		"peer in another AS": {func(o *Offer, _ *Facts) { o.PeerAS = 65001 }, WrongAS, "expected AS 65000"},
		"two nodes with an address": {func(_ *Offer, f *Facts) {
			demo0(f).Nodes[2].BGP = demo0(f).Nodes[1].BGP
		}, Ambiguous, "worker1, worker2"},
		"the other of the two": {func(o *Offer, f *Facts) {
			demo0(f).Nodes[2].BGP = demo0(f).Nodes[1].BGP
			o.Prefix = pfx("172.16.189.64/26")
		}, Ambiguous, "worker1, worker2"},
		"a namesake's block through a reflector": {func(o *Offer, f *Facts) {
			demo0(f).Nodes[2].BGP = demo0(f).Nodes[1].BGP
			demo0(f).Nodes[0].Reflector = true
			o.Peer = addr("192.168.50.22")
		}, Ambiguous, "worker1, worker2"},

		// hostile prefixes
		"default route": {func(o *Offer, _ *Facts) {
			o.Prefix = pfx("0.0.0.0/0")
		}, DefaultRoute, "default route"},
		"IPv6 default route":    {func(o *Offer, _ *Facts) { o.Prefix = pfx("::/0") }, DefaultRoute, ""},
		"half of the Internet":  {func(o *Offer, _ *Facts) { o.Prefix = pfx("128.0.0.0/1") }, SpecialRange, ""},
		"bits after the length": {func(o *Offer, _ *Facts) { o.Prefix = pfx("172.16.171.65/26") }, Malformed, ""},
		"no prefix":             {func(o *Offer, _ *Facts) { o.Prefix = netip.Prefix{} }, Malformed, ""},
		"IPv4 in IPv6": {func(o *Offer, _ *Facts) {
			o.Prefix = netip.PrefixFrom(addr("::ffff:172.16.171.64"), 122)
		}, Malformed, ""},
		"loopback":         {func(o *Offer, _ *Facts) { o.Prefix = pfx("127.0.0.0/26") }, SpecialRange, "loopback"},
		"loopback of IPv6": {func(o *Offer, _ *Facts) { o.Prefix = pfx("::1/128") }, SpecialRange, ""},
		"link-local": {
			func(o *Offer, _ *Facts) { o.Prefix = pfx("169.254.169.254/32") }, SpecialRange,
			"link-local",
		},
		"link-local of IPv6": {func(o *Offer, _ *Facts) { o.Prefix = pfx("fe80::/64") }, SpecialRange, "link-local"},
		"multicast": {
			func(o *Offer, _ *Facts) { o.Prefix = pfx("224.0.0.0/24") }, SpecialRange,
			"multicast",
		},
		"another node's block": {
			func(o *Offer, _ *Facts) { o.Prefix = pfx("172.16.189.64/26") }, NotOwner,
			"belongs to node worker2, but node worker1 (192.168.50.23) offers it",
		},
		"another node's block with that node as next hop": {func(o *Offer, _ *Facts) {
			o.Prefix, o.NextHop = pfx("172.16.189.64/26"), addr("192.168.50.24")
		}, NotOwner, ""},
		"more specific of its own block": {func(o *Offer, _ *Facts) {
			o.Prefix = pfx("172.16.171.64/27")
		}, WrongLength, "part of block 172.16.171.64/26 of node worker1"},
		"an address of its own block": {func(o *Offer, _ *Facts) {
			o.Prefix = pfx("172.16.171.70/32")
		}, WrongLength, ""},
		"less specific of its own block": {func(o *Offer, _ *Facts) {
			o.Prefix = pfx("172.16.171.0/25")
		}, WrongLength, "more than block"},
		"our own network": {func(o *Offer, _ *Facts) {
			o.Prefix = pfx("192.168.50.0/24")
		}, OwnNetwork, "192.168.50.0/24"},
		"half of our own network": {func(o *Offer, _ *Facts) {
			o.Prefix = pfx("192.168.50.128/25")
		}, OwnNetwork, ""},
		"more than our own network": {func(o *Offer, _ *Facts) {
			o.Prefix = pfx("192.168.0.0/16")
		}, OwnNetwork, ""},
		"our own address": {func(o *Offer, _ *Facts) {
			o.Prefix = pfx("203.0.113.5/32")
		}, OwnNetwork, "203.0.113.5"},
		"a confirmed block in our own network": {func(o *Offer, f *Facts) {
			o.Prefix = pfx("172.16.200.64/26")
			demo0(f).Affinities[1].Prefix = o.Prefix
		}, OwnNetwork, ""},
		"API server": {func(o *Offer, _ *Facts) {
			o.Prefix = pfx("10.0.0.9/32")
		}, Protected, "API server of cluster demo"},
		"network of the API server": {func(o *Offer, _ *Facts) {
			o.Prefix = pfx("10.0.0.0/24")
		}, Protected, "10.0.0.9"},
		"a confirmed block over the API server": {func(_ *Offer, f *Facts) {
			demo0(f).Protected = []netip.AddrPort{netip.MustParseAddrPort("172.16.171.100:6443")}
		}, Protected, ""},
		"another cluster's API server": {func(_ *Offer, f *Facts) {
			f.Topologies = append(f.Topologies,
				Topology{Cluster: "other", Protected: []netip.AddrPort{netip.MustParseAddrPort("172.16.171.100:6443")}})
		}, Protected, "cluster other"},
		"a confirmed block over the API server, by its own records": {func(_ *Offer, f *Facts) {
			demo0(f).Endpoints = []netip.AddrPort{netip.MustParseAddrPort("172.16.171.100:6443")}
		}, Protected, "API server of cluster demo"},
		"another cluster calls a pod its API server": {func(_ *Offer, f *Facts) {
			f.Topologies = append(f.Topologies,
				Topology{Cluster: "other", Endpoints: []netip.AddrPort{netip.MustParseAddrPort("172.16.171.100:6443")}})
		}, routed, ""},
		"service network": {func(o *Offer, _ *Facts) { o.Prefix = pfx("10.96.0.0/12") }, NotPods, "in no IP pool"},
		"service address": {func(o *Offer, _ *Facts) { o.Prefix = pfx("10.96.0.10/32") }, NotPods, ""},
		"free part of pool": {
			func(o *Offer, _ *Facts) { o.Prefix = pfx("172.16.5.64/26") }, NoAffinity,
			"no block of any node",
		},

		// owners
		"pending": {
			func(_ *Offer, f *Facts) { demo0(f).Affinities[1].State = "pending" }, NoAffinity,
			"pending",
		},
		"pending deletion": {
			func(_ *Offer, f *Facts) { demo0(f).Affinities[1].State = "pendingDeletion" }, NoAffinity,
			"pendingDeletion",
		},
		"deleted":     {func(_ *Offer, f *Facts) { demo0(f).Affinities[1].Deleted = true }, NoAffinity, "giving up"},
		"virtual":     {func(_ *Offer, f *Facts) { demo0(f).Affinities[1].Type = "virtual" }, NoAffinity, "no node"},
		"no affinity": {func(_ *Offer, f *Facts) { demo0(f).Affinities = nil }, NoAffinity, ""},
		"affinity of a node that is gone": {func(_ *Offer, f *Facts) {
			demo0(f).Affinities[1].Node = "worker9"
		}, UnknownNode, `"worker9"`},
		"two affinities and no arbiter": {func(o *Offer, f *Facts) {
			demo0(f).Affinities = append(demo0(f).Affinities,
				Affinity{Node: "worker2", Prefix: o.Prefix, State: "confirmed"})
		}, Ambiguous, "worker1, worker2"},
		"two affinities, ours by the arbiter": {func(o *Offer, f *Facts) {
			demo0(f).Affinities = append(demo0(f).Affinities,
				Affinity{Node: "worker2", Prefix: o.Prefix, State: "confirmed"})
			demo0(f).Blocks = []*IPAMBlock{{Prefix: o.Prefix, Affinity: "host:worker1"}}
		}, routed, ""},
		"two affinities, the other's by the arbiter": {func(o *Offer, f *Facts) {
			demo0(f).Affinities = append(demo0(f).Affinities,
				Affinity{Node: "worker2", Prefix: o.Prefix, State: "confirmed"})
			demo0(f).Blocks = []*IPAMBlock{{Prefix: o.Prefix, Affinity: "host:worker2"}}
		}, NotOwner, "worker2"},
		"two affinities, one pending": {func(o *Offer, f *Facts) {
			demo0(f).Affinities = append(demo0(f).Affinities,
				Affinity{Node: "worker2", Prefix: o.Prefix, State: "pending"})
		}, routed, ""},
		"two arbiters that disagree": {func(o *Offer, f *Facts) {
			demo0(f).Blocks = []*IPAMBlock{
				{Prefix: o.Prefix, Affinity: "host:worker1"},
				{Prefix: o.Prefix, Affinity: "host:worker2"},
			}
		}, Ambiguous, ""},
		"the arbiter contradicts": {func(o *Offer, f *Facts) {
			demo0(f).Blocks = []*IPAMBlock{{Prefix: o.Prefix, Affinity: "host:worker2"}}
		}, Ambiguous, "host:worker2"},
		"the arbiter is silent": {func(o *Offer, f *Facts) {
			demo0(f).Blocks = []*IPAMBlock{{Prefix: o.Prefix}}
		}, routed, ""},

		// lent addresses
		"lent to the peer": {func(o *Offer, f *Facts) {
			o.Prefix = pfx("172.16.189.70/32")
			demo0(f).Blocks = []*IPAMBlock{{
				Prefix: pfx("172.16.189.64/26"), Affinity: "host:worker2",
				Borrowed: map[netip.Addr]string{addr("172.16.189.70"): "worker1"},
			}}
		}, routed, ""},
		"lent to another": {func(o *Offer, f *Facts) {
			o.Prefix = pfx("172.16.189.70/32")
			demo0(f).Blocks = []*IPAMBlock{{
				Prefix:   pfx("172.16.189.64/26"),
				Borrowed: map[netip.Addr]string{addr("172.16.189.70"): "control"},
			}}
		}, NotOwner, "control"},
		"lent by a block it is not in": {func(o *Offer, f *Facts) {
			o.Prefix = pfx("172.16.189.70/32")
			demo0(f).Blocks = []*IPAMBlock{{
				Prefix:   pfx("172.16.49.64/26"),
				Borrowed: map[netip.Addr]string{addr("172.16.189.70"): "worker1"},
			}}
		}, WrongLength, ""},
		"lent to two": {func(o *Offer, f *Facts) {
			o.Prefix = pfx("172.16.189.70/32")
			demo0(f).Blocks = []*IPAMBlock{
				{Prefix: pfx("172.16.189.64/26"), Borrowed: map[netip.Addr]string{addr("172.16.189.70"): "worker1"}},
				{Prefix: pfx("172.16.189.64/27"), Borrowed: map[netip.Addr]string{addr("172.16.189.70"): "worker2"}},
			}
		}, Ambiguous, "worker1, worker2"},
		"lent outside the bounds": {func(o *Offer, f *Facts) {
			o.Prefix = pfx("172.16.189.70/32")
			demo0(f).Bounds = []netip.Prefix{pfx("172.16.171.0/24")}
			demo0(f).Blocks = []*IPAMBlock{{
				Prefix:   pfx("172.16.189.64/26"),
				Borrowed: map[netip.Addr]string{addr("172.16.189.70"): "worker1"},
			}}
		}, OutOfBounds, ""},

		// next hops and paths
		"next hop of another node": {func(o *Offer, _ *Facts) {
			o.NextHop = addr("192.168.50.24")
		}, BadNextHop, "expected node worker1's address 192.168.50.23"},
		"next hop we are": {
			func(_ *Offer, f *Facts) { f.Local.Addrs = append(f.Local.Addrs, addr("192.168.50.23")) },
			BadNextHop, "own",
		},
		"next hop of no family": {func(o *Offer, f *Facts) {
			demo0(f).Nodes[1].BGP = demo0(f).Nodes[1].BGP[:1]
			o.Prefix = pfx("fd00:172::40/122")
		}, BadNextHop, "no BGP address of the family"},
		"next hop of the wrong family": {func(o *Offer, _ *Facts) {
			o.Prefix = pfx("fd00:172::40/122")
		}, BadNextHop, "fd00:50::23"},
		"from another AS": {func(o *Offer, f *Facts) {
			o.ASPath, o.PeerAS, demo0(f).Nodes[1].ASN = []uint32{64512}, 64512, 64512
		}, routed, ""},
		"from another AS, prepended": {func(o *Offer, _ *Facts) {
			o.ASPath = []uint32{65000, 65000}
		}, BadASPath, "[65000 65000]"},
		"from further away": {func(o *Offer, _ *Facts) { o.ASPath = []uint32{65000, 64999} }, BadASPath, ""},
		"from a strange AS": {func(o *Offer, _ *Facts) { o.ASPath = []uint32{64999} }, BadASPath, ""},
		"reflected by a node": {func(o *Offer, f *Facts) {
			o.Peer, demo0(f).Nodes[0].Reflector = addr("192.168.50.22"), true
		}, routed, ""},
		"reflected by no node": {func(o *Offer, f *Facts) {
			o.Peer, demo0(f).Reflectors = addr("192.168.50.99"), []netip.Addr{addr("192.168.50.99")}
		}, routed, ""},
		"reflected with itself as next hop": {func(o *Offer, f *Facts) {
			o.Peer, o.NextHop, demo0(f).Nodes[0].Reflector = addr("192.168.50.22"), addr("192.168.50.22"), true
		}, BadNextHop, ""},
		"reflected across the AS": {func(o *Offer, f *Facts) {
			o.Peer, o.ASPath, demo0(f).Nodes[0].Reflector = addr("192.168.50.22"), []uint32{65000}, true
		}, BadASPath, "within"},
		"reflected from another AS": {func(o *Offer, f *Facts) {
			o.Peer, o.PeerAS, demo0(f).ASN, demo0(f).Reflectors = addr("192.168.50.99"), 65010, 65010,
				[]netip.Addr{addr("192.168.50.99")}
		}, BadASPath, ""},
		"reflector in another AS than configured": {func(o *Offer, f *Facts) {
			o.Peer, o.PeerAS, demo0(f).Reflectors = addr("192.168.50.99"), 65010, []netip.Addr{addr("192.168.50.99")}
		}, WrongAS, "a route reflector"},
		"node in another network": {func(_ *Offer, f *Facts) {
			f.Local.Networks = f.Local.Networks[1:]
		}, NotOnLink, "give the machine an address"},

		// bounds and pools
		"inside the bounds": {func(_ *Offer, f *Facts) {
			demo0(f).Bounds = []netip.Prefix{pfx("172.16.0.0/12")}
		}, routed, ""},
		"outside the bounds": {func(_ *Offer, f *Facts) {
			demo0(f).Bounds = []netip.Prefix{pfx("172.16.0.0/17")}
		}, OutOfBounds, "configured"},
		"bounds inside the block": {func(_ *Offer, f *Facts) {
			demo0(f).Bounds = []netip.Prefix{pfx("172.16.171.64/27")}
		}, OutOfBounds, ""},
		"two pools of one network, one not exported": {func(_ *Offer, f *Facts) {
			again := demo0(f).Pools[0]
			demo0(f).Pools[0].NoExport = true
			demo0(f).Pools = append(demo0(f).Pools, again)
		}, NoExport, ""},
		"pool not exported": {func(_ *Offer, f *Facts) {
			demo0(f).Pools[0].NoExport = true
		}, NoExport, "default"},
		"pool of another block size": {func(_ *Offer, f *Facts) {
			demo0(f).Pools[0].BlockSize = 28
		}, WrongLength, "/28"},
		"pool of the default size": {func(_ *Offer, f *Facts) { demo0(f).Pools[0].BlockSize = 0 }, routed, ""},
		"pool deleted": {func(_ *Offer, f *Facts) {
			demo0(f).Pools = demo0(f).Pools[1:]
		}, OutOfBounds, "in no IP pool"},
		"pool deleted, in bounds": {func(_ *Offer, f *Facts) {
			demo0(f).Pools, demo0(f).Bounds = demo0(f).Pools[1:], []netip.Prefix{pfx("172.16.0.0/16")}
		}, routed, ""},
		"no pools known": {func(_ *Offer, f *Facts) { demo0(f).Pools = nil }, OutOfBounds, "nothing bounds"},
		"no pools known, in bounds": {func(_ *Offer, f *Facts) {
			demo0(f).Pools, demo0(f).Bounds = nil, []netip.Prefix{pfx("172.16.0.0/16")}
		}, routed, ""},

		// several clusters
		"in the pool of a later cluster": {func(_ *Offer, f *Facts) {
			f.Topologies = append(f.Topologies, other())
		}, routed, ""},
		"in the pool of an earlier cluster": {func(_ *Offer, f *Facts) {
			f.Topologies = []Topology{other(), f.Topologies[0]}
		}, OtherCluster, "cluster other"},
		"in the bounds of a later cluster": {func(_ *Offer, f *Facts) {
			f.Topologies = append(f.Topologies,
				Topology{Cluster: "other", Bounds: []netip.Prefix{pfx("172.16.171.0/24")}})
		}, OtherCluster, "cluster other"},
		"around the pool of an earlier cluster": {func(_ *Offer, f *Facts) {
			small := other()
			small.Pools[0].CIDR = pfx("172.16.171.96/27")
			f.Topologies = []Topology{small, f.Topologies[0]}
		}, OtherCluster, "172.16.171.96/27"},
		"in a podCIDR of an earlier cluster": {func(_ *Offer, f *Facts) {
			f.Topologies = []Topology{{
				Cluster: "other", HostLocal: true,
				Nodes: []Node{{Name: "x", PodCIDRs: []netip.Prefix{pfx("172.16.171.0/24")}}},
			}, f.Topologies[0]}
		}, OtherCluster, "172.16.171.0/24"},
		"in its own bounds and the pool of an earlier cluster": {func(_ *Offer, f *Facts) {
			demo0(f).Bounds = []netip.Prefix{pfx("172.16.0.0/16")}
			f.Topologies = []Topology{other(), f.Topologies[0]}
		}, routed, ""},

		// host-local IPAM
		"podCIDR": {func(o *Offer, f *Facts) {
			o.Prefix, demo0(f).HostLocal, demo0(f).Nodes[1].PodCIDRs = pfx("172.16.3.0/24"), true,
				[]netip.Prefix{pfx("172.16.3.0/24")}
		}, routed, ""},
		"podCIDR without any pool": {func(o *Offer, f *Facts) {
			o.Prefix, demo0(f).HostLocal, demo0(f).Nodes[1].PodCIDRs = pfx("172.16.3.0/24"), true,
				[]netip.Prefix{pfx("172.16.3.0/24")}
			demo0(f).Pools = nil
		}, routed, ""},
		"podCIDR outside the bounds": {func(o *Offer, f *Facts) {
			o.Prefix, demo0(f).HostLocal, demo0(f).Nodes[1].PodCIDRs = pfx("172.16.3.0/24"), true,
				[]netip.Prefix{pfx("172.16.3.0/24")}
			demo0(f).Bounds = []netip.Prefix{pfx("172.17.0.0/16")}
		}, OutOfBounds, ""},
		"podCIDR of another": {func(o *Offer, f *Facts) {
			o.Prefix, demo0(f).HostLocal, demo0(f).Nodes[2].PodCIDRs = pfx("172.16.3.0/24"), true,
				[]netip.Prefix{pfx("172.16.3.0/24")}
		}, NotOwner, "worker2"},
		"podCIDR of two": {func(o *Offer, f *Facts) {
			o.Prefix, demo0(f).HostLocal = pfx("172.16.3.0/24"), true
			demo0(f).Nodes[1].PodCIDRs, demo0(f).Nodes[2].PodCIDRs = []netip.Prefix{o.Prefix}, []netip.Prefix{o.Prefix}
		}, Ambiguous, ""},
		"affinity where podCIDRs count": {func(_ *Offer, f *Facts) { demo0(f).HostLocal = true }, NoAffinity, ""},

		// lost sessions; worker2's live session shows that not all are lost
		"closed a moment ago":                {lost(Closed, time.Second), routed, ""},
		"closed two minutes ago":             {lost(Closed, 2*time.Minute), Stale, "did not come back within 2m0s"},
		"hold timer expired":                 {lost(HoldExpired, time.Second), Stale, "hold timer expired"},
		"ended by the peer for new settings": {lost(Reconfigured, time.Second), routed, ""},
		"of new settings, for too long":      {lost(Reconfigured, time.Hour), Stale, "did not come back within"},
		"in the AS before": {func(o *Offer, f *Facts) {
			lost(Reconfigured, time.Second)(o, f)
			o.PeerAS, o.ASPath = 65001, []uint32{65001}
		}, routed, ""},
		"ended by the peer":  {lost(Notified, time.Second), Stale, "notification received"},
		"ended by us":        {lost(Refused, time.Second), Stale, "notification sent"},
		"lost in the future": {lost(Closed, -time.Minute), routed, ""},
		"closed, and the node is unreachable": {func(o *Offer, f *Facts) {
			lost(Closed, time.Second)(o, f)
			demo0(f).Nodes[1].Down = true
		}, Stale, "unreachable"},
		"open, though the node is unreachable": {func(_ *Offer, f *Facts) {
			demo0(f).Nodes[1].Down = true
		}, routed, ""},
		"closed, and the node is gone": {func(o *Offer, f *Facts) {
			lost(Closed, time.Second)(o, f)
			demo0(f).Nodes = slices.Delete(demo0(f).Nodes, 1, 2)
		}, UnknownPeer, ""},
		"closed, and the block is another's now": {func(o *Offer, f *Facts) {
			lost(Closed, time.Second)(o, f)
			demo0(f).Affinities[1].Node = "worker2"
		}, NotOwner, "worker2"},
	} {
		t.Run(name, func(t *testing.T) {
			f, o := facts(demo()), own()
			test.change(&o, &f)
			alive := own()
			alive.Peer, alive.NextHop, alive.Prefix = addr("192.168.50.22"), addr("192.168.50.22"),
				pfx("172.16.49.64/26")
			table, refusals := Verify([]Offer{alive, o}, f)
			i := slices.IndexFunc(refusals, func(r Refusal) bool { return reflect.DeepEqual(r.Offer, o) })
			if test.want == routed {
				if i >= 0 {
					t.Fatalf("got refused as %s: %s", refusals[i].Reason, refusals[i].Why)
				}
				if via := table[To(o.Prefix)]; via != o.NextHop {
					t.Errorf("got next hop %v, want %v", via, o.NextHop)
				}
				return
			}
			if via, ok := table[To(o.Prefix)]; ok {
				t.Fatalf("got routed via %s, want refused as %s", via, test.want)
			}
			if i < 0 {
				t.Fatalf("got no refusal in %v", refusals)
			}
			if got := refusals[i]; got.Reason != test.want || !strings.Contains(got.Why, test.says) {
				t.Errorf("got %s: %s\nwant %s: …%s…", got.Reason, got.Why, test.want, test.says)
			}
			if !slices.Contains(Reasons(), refusals[i].Reason) {
				t.Errorf("reason %s is not among Reasons()", refusals[i].Reason)
			}
		})
	}
}

func TestALiveOfferBeatsALostOneForTheSamePrefix(t *testing.T) {
	f := facts(demo())
	f.Topologies[0].Nodes[0].Reflector = true
	lost, live := own(), own()
	lost.Lost = Loss{Cause: HoldExpired, At: noon}
	live.Peer = addr("192.168.50.22")
	for _, offers := range [][]Offer{{lost, live}, {live, lost}} {
		got, refusals := Verify(offers, f)
		want := Table{To(lost.Prefix): lost.NextHop}
		if !got.Equal(want) || len(refusals) != 1 || refusals[0].Reason != Stale {
			t.Errorf("got %v and %v, want %v and the lost one stale", got, refusals, want)
		}
	}
}

func TestTheLossOfEverySessionAtOnceKeepsTheRoutesForATime(t *testing.T) {
	const w1, w2, cp = "172.16.171.64/26", "172.16.189.64/26", "172.16.49.64/26"
	all := map[string]string{cp: "192.168.50.22", w1: "192.168.50.23", w2: "192.168.50.24"}
	type losses map[string]Loss
	at := func(c Cause, ago time.Duration) Loss { return Loss{Cause: c, At: noon.Add(-ago)} }
	for name, test := range map[string]struct {
		losses losses
		silent []string                 // sessions that stand
		back   map[string]time.Duration // how long ago a session was established
		change func(*Facts)
		want   []string
		next   time.Duration // from now until time alone changes the table; 0: never
	}{
		"all at once": {
			losses: losses{
				cp: at(HoldExpired, 20*time.Second), w1: at(HoldExpired, 25*time.Second),
				w2: at(Notified, 40*time.Second),
			},
			want: []string{cp, w1, w2}, next: 10*time.Minute - 20*time.Second,
		},
		"all but one": {
			losses: losses{w1: at(HoldExpired, time.Second), w2: at(HoldExpired, time.Second)},
			want:   []string{cp},
		},
		"the first, and the others are silent": {
			losses: losses{w1: at(HoldExpired, 0)}, silent: []string{cp, w2},
			want: []string{cp, w1, w2}, next: 10 * time.Minute,
		},
		"the first, and one of the others is heard": {
			losses: losses{w1: at(HoldExpired, 0)}, silent: []string{cp},
			want: []string{cp, w2},
		},
		"one after another": {
			losses: losses{
				cp: at(HoldExpired, 0), w1: at(HoldExpired, 31*time.Second),
				w2: at(HoldExpired, time.Minute),
			},
		},
		"all that were left": {
			losses: losses{cp: at(HoldExpired, 0), w1: at(HoldExpired, time.Second), w2: at(HoldExpired, time.Hour)},
			want:   []string{cp, w1}, next: 10 * time.Minute,
		},
		"too long ago": {
			losses: losses{
				cp: at(HoldExpired, 10*time.Minute), w1: at(HoldExpired, 10*time.Minute),
				w2: at(HoldExpired, 10*time.Minute),
			},
		},
		"a moment less": {
			losses: losses{
				cp: at(HoldExpired, 10*time.Minute-1), w1: at(Closed, 10*time.Minute),
				w2: at(HoldExpired, 10*time.Minute),
			},
			want: []string{cp, w1, w2}, next: 1,
		},
		"switched off": {
			losses: losses{cp: at(HoldExpired, 0), w1: at(Closed, 0), w2: at(HoldExpired, 0)},
			change: func(f *Facts) { f.FailStatic = 0 },
			want:   []string{w1}, next: 2 * time.Minute,
		},
		"the first is back": {
			losses: losses{w1: at(HoldExpired, 20*time.Second), w2: at(HoldExpired, 25*time.Second)},
			back:   map[string]time.Duration{cp: 5 * time.Second},
			want:   []string{cp, w1, w2}, next: 2*time.Minute - 5*time.Second,
		},
		"one is not back long after the first": {
			losses: losses{w2: at(HoldExpired, 3*time.Minute)},
			back:   map[string]time.Duration{cp: 2 * time.Minute, w1: time.Minute},
			want:   []string{cp, w1},
		},
		"one that is back keeps the deadline": {
			losses: losses{w1: at(HoldExpired, 9*time.Minute+59*time.Second), w2: at(HoldExpired, 10*time.Minute)},
			back:   map[string]time.Duration{cp: time.Second},
			want:   []string{cp, w1, w2}, next: time.Second,
		},
		"one that was up all the time": {
			losses: losses{w1: at(HoldExpired, 20*time.Second), w2: at(HoldExpired, 25*time.Second)},
			back:   map[string]time.Duration{cp: 20 * time.Second},
			want:   []string{cp},
		},
		"a node is gone": {
			losses: losses{cp: at(HoldExpired, 0), w1: at(HoldExpired, 0), w2: at(HoldExpired, 0)},
			change: func(f *Facts) { f.Topologies[0].Nodes = f.Topologies[0].Nodes[:2] },
			want:   []string{cp, w1}, next: 10 * time.Minute,
		},
		"only another cluster lives": {
			losses: losses{cp: at(HoldExpired, 0), w1: at(HoldExpired, 0), w2: at(HoldExpired, 0)},
			change: func(f *Facts) { f.Topologies = append(f.Topologies, Topology{Cluster: "other"}) },
			want:   []string{cp, w1, w2}, next: 10 * time.Minute,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := facts(demo())
			if test.change != nil {
				test.change(&f)
			}
			offers := []Offer{{Cluster: "other", Peer: addr("10.1.1.1")}}
			for p, peer := range all {
				o := own()
				o.Prefix, o.Peer, o.NextHop, o.Lost = pfx(p), addr(peer), addr(peer), test.losses[p]
				o.Silent = slices.Contains(test.silent, p)
				if ago, ok := test.back[p]; ok {
					o.Since = noon.Add(-ago)
				}
				offers = append(offers, o)
			}
			want := Table{}
			for _, p := range test.want {
				want[to(p)] = addr(all[p])
			}
			got, refusals := Verify(offers, f)
			if !got.Equal(want) {
				t.Errorf("got\n%vwant\n%vrefusals %v", got, want, refusals)
			}
			slices.Reverse(offers)
			if again, _ := Verify(offers, f); !again.Equal(want) {
				t.Errorf("in reverse got\n%vwant\n%v", again, want)
			}
			if test.next == 0 {
				f.Now = noon.Add(24 * time.Hour)
				if again, _ := Verify(offers, f); !again.Equal(want) {
					t.Errorf("a day later got\n%v\nwant\n%v", again, want)
				}
				return
			}
			next := noon.Add(test.next)
			f.Now = next.Add(-1)
			if again, _ := Verify(offers, f); !again.Equal(want) {
				t.Errorf("just before %v got\n%vwant\n%v", next, again, want)
			}
			f.Now = next
			if after, _ := Verify(offers, f); after.Equal(want) {
				t.Errorf("at %v got the same table\n%v", next, after)
			}
		})
	}
}

func TestStaticNamesTheClustersAndTheirDeadline(t *testing.T) {
	o := own()
	o.Lost = Loss{Cause: HoldExpired, At: noon.Add(-time.Minute)}
	f := facts(demo())
	want := map[string]time.Time{"demo": noon.Add(9 * time.Minute)}
	if got := Static([]Offer{o}, f); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	f.Now = want["demo"]
	if got := Static([]Offer{o}, f); len(got) != 0 {
		t.Errorf("after the deadline got %v, want none", got)
	}
}

// One node offers a hundred thousand prefixes. None is in the table, the good routes stay,
// and each refusal is counted. The time is only logged.
func TestAFloodOfPrefixesIsRefusedAndTheGoodRouteStays(t *testing.T) {
	f := facts(demo())
	for i := range 500 {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(i / 4), byte(i % 4 * 64)}), 26)
		if _, _, ok := newIndex(map[netip.Prefix]bool{pfx("172.16.171.64/26"): true}).overlapping(p); !ok {
			f.Topologies[0].Affinities = append(f.Topologies[0].Affinities,
				Affinity{Node: "worker2", Prefix: p, State: "confirmed"})
		}
	}
	offers := []Offer{own()}
	for i := range 100_000 {
		o := own()
		o.Prefix = netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(11 + i>>14), byte(i >> 6), byte(i << 2), 0}),
			24+i%9).Masked()
		if o.Prefix != own().Prefix {
			offers = append(offers, o)
		}
	}
	start := time.Now()
	got, refusals := Verify(offers, f)
	t.Logf("%d offers in %v", len(offers), time.Since(start))
	want := Table{To(own().Prefix): own().NextHop}
	if !got.Equal(want) {
		t.Errorf("got %d routes, want %v", len(got), want)
	}
	if len(refusals) != len(offers)-1 {
		t.Errorf("got %d refusals, want %d", len(refusals), len(offers)-1)
	}
}

func TestRefusalsComeInOneOrder(t *testing.T) {
	var offers []Offer
	for i := range 200 {
		o := own()
		o.Prefix = netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(i), 0}), 26)
		if i%2 == 0 {
			o.Peer = addr("192.168.50.24")
		}
		if i%7 == 0 {
			o.Lost = Loss{Cause: HoldExpired, At: noon}
		}
		offers = append(offers, o)
	}
	_, want := Verify(offers, facts(demo()))
	rng := rand.New(rand.NewPCG(1, 2))
	rng.Shuffle(len(offers), func(i, j int) { offers[i], offers[j] = offers[j], offers[i] })
	if _, got := Verify(offers, facts(demo())); !reflect.DeepEqual(got, want) {
		t.Error("got another order of refusals for another order of offers")
	}
}

func TestVerifyLeavesItsFactsAlone(t *testing.T) {
	f, again := facts(demo()), facts(demo())
	Verify([]Offer{own()}, f)
	if !reflect.DeepEqual(f, again) {
		t.Errorf("got %v, want %v", f, again)
	}
}

func ExampleVerify() {
	good, bad := own(), own()
	bad.Prefix = pfx("0.0.0.0/0")
	table, refusals := Verify([]Offer{good, bad}, facts(demo()))
	fmt.Print(table)
	fmt.Println(refusals[0].Reason, "-", refusals[0].Why)
	// Output:
	// 172.16.171.64/26 via 192.168.50.23
	// default-route - 0.0.0.0/0 is the default route: a node answers for its own blocks only
}

// TestAnAddressOfItsOwnBlockPassesForAMoment is about Calico 3.32, which announces the
// address of each new pod until its route has a metric.
func TestAnAddressOfItsOwnBlockPassesForAMoment(t *testing.T) {
	ago := func(d time.Duration) func(*Offer, *Facts) {
		return func(o *Offer, _ *Facts) { o.Announced = noon.Add(-d) }
	}
	for name, row := range map[string]struct {
		change func(*Offer, *Facts)
		want   Reason
		passes bool
	}{
		"just announced":            {ago(0), WrongLength, true},
		"for less than ten seconds": {ago(settled - 1), WrongLength, true},
		"for ten seconds":           {ago(settled), WrongLength, false},
		"since nobody knows when":   {func(o *Offer, _ *Facts) { o.Announced = time.Time{} }, WrongLength, false},
		"by a clock that is ahead":  {ago(-time.Minute), WrongLength, true},
		"half of the block": {func(o *Offer, _ *Facts) {
			o.Prefix = pfx("172.16.171.64/27")
		}, WrongLength, false},
		"of another node's block": {func(o *Offer, _ *Facts) {
			o.Prefix = pfx("172.16.189.70/32")
		}, WrongLength, false},
		"of a block without a claim": {func(_ *Offer, f *Facts) {
			f.Topologies[0].Affinities[1].State = "pending"
		}, WrongLength, false},
		"of no block": {func(o *Offer, _ *Facts) { o.Prefix = pfx("172.16.7.7/32") }, NoAffinity, false},
		"by a reflector, for a node": {func(o *Offer, f *Facts) {
			f.Topologies[0].Nodes[0].Reflector = true
			o.Peer = addr("192.168.50.22")
		}, WrongLength, false},
		"in another AS": {func(o *Offer, _ *Facts) { o.PeerAS = 65001 }, WrongAS, false},
		"IPv6": {func(o *Offer, _ *Facts) {
			o.Peer, o.NextHop, o.Prefix = addr("fd00:50::23"), addr("fd00:50::23"), pfx("fd00:172::41/128")
		}, WrongLength, true},
	} {
		t.Run(name, func(t *testing.T) {
			f, o := facts(demo()), own()
			o.Prefix, o.Announced = pfx("172.16.171.70/32"), noon
			row.change(&o, &f)
			_, refusals := Verify([]Offer{o}, f)
			if len(refusals) != 1 || refusals[0].Reason != row.want || refusals[0].Passing != row.passes {
				t.Errorf("got %+v, want one for %s, passing %t", refusals, row.want, row.passes)
			}
		})
	}
}

func TestANodeWithholdsItsBlocksIfItOffersNone(t *testing.T) {
	control, worker1, worker2, six := addr("192.168.50.22"), addr("192.168.50.23"), addr("192.168.50.24"),
		addr("fd00:50::23")
	reflected := own()
	reflected.Peer = control
	service := own()
	service.Prefix = pfx("10.96.0.0/16")
	for name, row := range map[string]struct {
		offers []Offer
		change func(*Topology)
		want   map[netip.Addr]int
	}{
		"one of three offers its own": {[]Offer{own()}, nil, map[netip.Addr]int{control: 1, worker2: 1, six: 1}},
		"a reflector offers it":       {[]Offer{reflected}, nil, map[netip.Addr]int{control: 1, worker2: 1, six: 1}},
		"only something else is offered": {
			[]Offer{service},
			nil,
			map[netip.Addr]int{control: 1, worker1: 1, worker2: 1, six: 1},
		},
		"one of two blocks is enough": {[]Offer{own()}, func(t *Topology) {
			t.Affinities = append(t.Affinities,
				Affinity{Name: "a5", Node: "worker1", Prefix: pfx("172.16.171.128/26"), State: "confirmed"})
		}, map[netip.Addr]int{control: 1, worker2: 1, six: 1}},
		"a pool that is not exported": {nil, func(t *Topology) {
			t.Pools[0].NoExport = true
		}, map[netip.Addr]int{six: 1}},
		"blocks that are not theirs": {nil, func(t *Topology) {
			t.Affinities[1].State, t.Affinities[2].Deleted, t.Affinities[0].Type, t.Affinities[3].Node = "pending",
				true, "virtual", "gone"
		}, map[netip.Addr]int{}},
		"nodes without a BGP address": {nil, func(t *Topology) {
			t.Nodes[0].BGP, t.Nodes[1].BGP, t.Nodes[2].BGP = nil, nil, nil
		}, map[netip.Addr]int{}},
		"podCIDRs in place of blocks": {nil, func(t *Topology) {
			t.Affinities, t.HostLocal, t.Nodes[0].PodCIDRs = nil, true, []netip.Prefix{pfx("10.1.0.0/24")}
		}, map[netip.Addr]int{control: 1}},
		"podCIDRs that do not count": {nil, func(t *Topology) {
			t.Affinities, t.Nodes[0].PodCIDRs = nil, []netip.Prefix{pfx("10.1.0.0/24")}
		}, map[netip.Addr]int{}},
		"a lost session's last offers": {
			[]Offer{{Cluster: "demo", Peer: worker1, NextHop: worker1, Prefix: own().Prefix, Lost: Loss{Closed, noon}}},
			nil,
			map[netip.Addr]int{control: 1, worker2: 1, six: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			topology := demo()
			if row.change != nil {
				row.change(&topology)
			}
			if got := Withheld(row.offers, []Topology{topology}); !maps.Equal(got, row.want) {
				t.Errorf("got %v, want %v", got, row.want)
			}
		})
	}
}
