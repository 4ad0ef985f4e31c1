package routes

import (
	"net/netip"
	"slices"
	"testing"
)

func TestClustersOverlapIfTheirTerritoriesDo(t *testing.T) {
	cluster := func(name string, pool string, bounds ...string) Topology {
		t := Topology{Cluster: name, Pools: []Pool{{Name: "default", CIDR: pfx(pool)}}}
		for _, b := range bounds {
			t.Bounds = append(t.Bounds, pfx(b))
		}
		return t
	}
	overlap := func(first, of, second, network string) []Overlap {
		return []Overlap{{First: first, Second: second, Of: pfx(of), Network: pfx(network)}}
	}
	const all, lower, upper = "172.16.0.0/16", "172.16.0.0/17", "172.16.128.0/17"
	from := func(name, source string) Topology {
		t := cluster(name, all, all)
		if t.Source, _ = netip.ParsePrefix(source); !t.Source.IsValid() {
			t.Source = single(addr(source))
		}
		return t
	}
	addrs := []netip.Addr{addr("192.168.50.21"), addr("192.168.51.21")}
	local := Local{Addrs: addrs, Primary: addrs}
	for name, tt := range map[string]struct {
		clusters []Topology
		want     []Overlap
	}{
		"pools apart":          {[]Topology{cluster("one", all), cluster("two", "172.17.0.0/16")}, nil},
		"a pool in common":     {[]Topology{cluster("one", all), cluster("two", all)}, overlap("one", all, "two", all)},
		"a part of a pool":     {[]Topology{cluster("one", lower), cluster("two", all)}, overlap("one", lower, "two", all)},
		"bounds apart":         {[]Topology{cluster("one", all, lower), cluster("two", all, upper)}, nil},
		"bounds in common":     {[]Topology{cluster("one", all, lower), cluster("two", all, all)}, overlap("one", lower, "two", all)},
		"bounds of the first":  {[]Topology{cluster("one", all, lower), cluster("two", all)}, overlap("one", lower, "two", all)},
		"bounds of the second": {[]Topology{cluster("one", all), cluster("two", all, upper)}, overlap("two", upper, "one", all)},
		"sources apart":        {[]Topology{from("one", "192.168.50.0/24"), from("two", "192.168.51.21")}, nil},
		"one source": {
			[]Topology{from("one", "192.168.50.0/24"), from("two", "192.168.50.21")}, overlap("one", all, "two", all),
		},
		"a source of one of them": {
			[]Topology{cluster("one", all), from("two", "192.168.50.21")}, overlap("two", all, "one", all),
		},
		"two sources, and a cluster without one": {
			[]Topology{from("one", "192.168.50.0/24"), from("two", "192.168.51.0/24"), cluster("three", all)},
			overlap("one", all, "three", all),
		},
		"a source that the machine lacks": {
			[]Topology{from("one", "192.168.50.0/24"), from("two", "192.168.52.0/24")}, nil,
		},
		"one cluster":              {[]Topology{cluster("one", all)}, nil},
		"clusters without records": {[]Topology{{Cluster: "one"}, {Cluster: "two", Pools: []Pool{{CIDR: netip.Prefix{}}}}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Overlaps(tt.clusters, local); !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
