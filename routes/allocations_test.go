package routes

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func allocated() Topology {
	t := demo()
	t.Nodes[1].Addresses = []netip.Addr{addr("192.168.50.23"), addr("fd00:50::23")}
	t.Protected = []netip.AddrPort{netip.MustParseAddrPort("192.168.50.23:8443")}
	t.Blocks = []*IPAMBlock{
		{Prefix: pfx("172.16.171.64/26"), Affinity: "host:worker1", Pods: map[netip.Addr]string{
			addr("172.16.171.65"): "shop", addr("172.16.171.66"): "evil", addr("172.16.171.67"): "",
		}},
		{Prefix: pfx("172.16.189.64/26"), Affinity: "host:worker2"},
		{
			Prefix: pfx("fd00:172::40/122"), Affinity: "host:worker1",
			Pods: map[netip.Addr]string{addr("fd00:172::41"): "shop", addr("fd00:172::42"): "evil"},
		},
	}
	return t
}

// Every row asks for a Service of namespace evil.
func TestAServerIsAnAddressOfItsNamespace(t *testing.T) {
	onNodes := func(f *Facts) { f.Topologies[0].HostNetwork = true }
	for name, row := range map[string]struct {
		server string
		change func(*Facts)
		why    string // empty: it may
	}{
		"its own pod":       {"172.16.171.66:80", nil, ""},
		"its own pod, IPv6": {"[fd00:172::42]:80", nil, ""},
		"another namespace's": {
			"172.16.171.65:80", nil,
			"172.16.171.65 is assigned to a pod of namespace shop, and the Service is of namespace evil",
		},
		"another namespace's, IPv6":  {"[fd00:172::41]:80", nil, "namespace shop"},
		"a pod of nobody knows whom": {"172.16.171.67:80", nil, ""},
		"a free address":             {"172.16.171.68:80", nil, "assigned to no pod"},
		"a block without pods":       {"172.16.189.70:80", nil, "assigned to no pod"},
		"a block that is not known":  {"172.16.49.70:80", nil, "in no block of cluster demo"},
		"somewhere else":             {"203.0.113.9:80", nil, "in no block"},
		"the appliance":              {"192.168.50.21:9090", nil, "this machine's own address"},
		"the appliance, as a node": {"192.168.50.21:80", func(f *Facts) {
			onNodes(f)
			f.Topologies[0].Nodes[1].Addresses = []netip.Addr{addr("192.168.50.21")}
		}, "own address"},
		"a node":                       {"192.168.50.23:8080", nil, "ingress.hostNetwork: true"},
		"a node, IPv6":                 {"[fd00:50::23]:8080", nil, "ingress.hostNetwork: true"},
		"a node, by the setting":       {"192.168.50.23:8080", onNodes, ""},
		"a node, by the setting, IPv6": {"[fd00:50::23]:8080", onNodes, ""},
		"its kubelet":                  {"192.168.50.23:10250", onNodes, "the port of the kubelet on node worker1"},
		"its BGP":                      {"192.168.50.23:179", onNodes, "BGP"},
		"its API server":               {"192.168.50.23:6443", onNodes, "API server"},
		"the API server elsewhere": {
			"192.168.50.23:8443", onNodes,
			"192.168.50.23:8443 is the API server of cluster demo",
		},
		"the API server in a pod": {"172.16.171.66:80", func(f *Facts) {
			f.Topologies[0].Endpoints = []netip.AddrPort{netip.MustParseAddrPort("172.16.171.66:80")}
		}, "172.16.171.66:80 is the API server of cluster demo"},
		"a pod that another cluster calls its API server": {"172.16.171.66:80", func(f *Facts) {
			f.Topologies = append(f.Topologies, Topology{
				Cluster: "other", Endpoints: []netip.AddrPort{netip.MustParseAddrPort("172.16.171.66:80")},
			})
		}, ""},
		"a node its status denies": {"192.168.50.24:8080", onNodes, "no InternalIP"},
		"a neighbour of the nodes": {"192.168.50.99:8080", onNodes, "in no block"},
		"IPAMBlocks cannot be read": {"172.16.171.65:80", func(f *Facts) {
			f.Topologies[0].Blocks, f.Topologies[0].NoBlocks = nil, true
		}, ""},
		"nor is it of the cluster then": {"172.16.1.1:80", func(f *Facts) {
			f.Topologies[0].Blocks, f.Topologies[0].NoBlocks = nil, true
		}, "in no block"},
		"host-local IPAM": {"172.16.5.9:80", func(f *Facts) {
			f.Topologies[0].Blocks, f.Topologies[0].Affinities, f.Topologies[0].HostLocal, f.Topologies[0].Nodes[0].PodCIDRs = nil, nil, true, []netip.Prefix{pfx("172.16.5.0/24")}
		}, ""},
		"another cluster's pod": {"10.9.0.5:80", func(f *Facts) {
			f.Topologies = append(f.Topologies,
				Topology{
					Cluster: "other",
					Blocks: []*IPAMBlock{{
						Prefix: pfx("10.9.0.0/26"),
						Pods:   map[netip.Addr]string{addr("10.9.0.5"): "evil"},
					}},
				})
		}, "in no block of cluster demo"},
		"a pod that another cluster's bounds hold": {"172.16.171.66:80", func(f *Facts) {
			f.Topologies = append(f.Topologies,
				Topology{Cluster: "other", Bounds: []netip.Prefix{pfx("172.16.128.0/17")}})
		}, "belongs to cluster other"},
		"another cluster's node": {"192.168.51.7:80", func(f *Facts) {
			onNodes(f)
			f.Topologies = append(f.Topologies,
				Topology{
					Cluster: "other", HostNetwork: true,
					Nodes: []Node{{Name: "n", Addresses: []netip.Addr{addr("192.168.51.7")}}},
				})
		}, "in no block of cluster demo"},
		"nothing is known of the cluster": {"172.16.171.66:80", func(f *Facts) {
			f.Topologies = nil
		}, "nothing is known"},
	} {
		f := facts(allocated())
		if row.change != nil {
			row.change(&f)
		}
		got := Allocate(f).Refuse("demo", "evil", netip.MustParseAddrPort(row.server))
		if row.why == "" && !got.None() || !strings.Contains(got.Why, row.why) || got.None() != (got.Why == "") {
			t.Errorf("%s: got %+v, want %q", name, got, row.why)
		}
	}
	if (*Allocations)(nil).Refuse("demo", "evil", netip.MustParseAddrPort("172.16.171.66:80")).None() {
		t.Error("allowed without any records")
	}
}

// Since may name too many addresses, never too few.
func TestWhatChangedBetweenAllocationsIsNamed(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var asked []netip.AddrPort
	for _, text := range []string{
		"172.16.0.1", "172.16.0.2", "172.16.0.65", "172.16.1.1", "192.168.50.21",
		"192.168.50.23", "203.0.113.1",
	} {
		asked = append(asked, netip.AddrPortFrom(addr(text), 80))
	}
	draw := func() *IPAMBlock {
		b := &IPAMBlock{Prefix: pfx([]string{
			"172.16.0.0/26", "172.16.0.64/26", "172.16.0.0/24",
			"172.16.1.0/26",
		}[r.IntN(4)]), Pods: map[netip.Addr]string{}}
		for _, a := range asked {
			if r.IntN(2) == 0 {
				b.Pods[a.Addr()] = []string{"shop", "evil", ""}[r.IntN(3)]
			}
		}
		return b
	}
	silent := 0
	for range 50_000 {
		was := Topology{
			Cluster: "demo",
			Nodes: []Node{{
				Name: "w", BGP: []netip.Prefix{pfx("192.168.50.23/24")},
				Addresses: []netip.Addr{addr("192.168.50.23")}, PodCIDRs: []netip.Prefix{pfx("172.16.0.0/16")},
			}},
		}
		for range r.IntN(3) {
			was.Blocks = append(was.Blocks, draw())
		}
		is := was
		is.Blocks = slices.Clone(was.Blocks)
		local := Local{}
		switch r.IntN(8) {
		case 0, 1, 2:
			is.Blocks = append(is.Blocks, draw())
		case 3:
			is.Blocks = nil
		case 4:
			is.HostLocal = true
		case 5:
			is.HostNetwork = true
		case 7:
			is.Endpoints = []netip.AddrPort{asked[0]}
		case 6:
			local.Addrs = []netip.Addr{addr("172.16.0.1")}
		}
		old, fresh := Allocate(Facts{Topologies: []Topology{was}}),
			Allocate(Facts{Topologies: []Topology{is}, Local: local})
		touched := fresh.Since(old)
		if touched == nil {
			silent++
		}
		for _, a := range asked {
			if before, after := old.Refuse("demo", "evil", a).None(),
				fresh.Refuse("demo", "evil", a).None(); before != after && (touched == nil || !touched(a.Addr())) {
				t.Fatalf("%s: allowed %t, then %t, and is not named\nwas %+v\nis %+v", a, before, after, was, is)
			}
		}
	}
	if silent < 1000 {
		t.Errorf("said nothing %d times, want often: it is to save work", silent)
	}
}
