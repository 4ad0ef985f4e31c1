package allot

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sallyport/ingress/input"
)

// poolOf returns a range written as "FIRST-LAST".
func poolOf(text string) input.AddressRange {
	first, last, _ := strings.Cut(text, "-")
	return input.AddressRange{First: netip.MustParseAddr(first), Last: netip.MustParseAddr(last)}
}

// wanting returns the demand of a Service NAMESPACE/NAME for an IPv4 address, with words as
// "had=ADDR", "ask=ADDR", "key=KEY", "port=80", "six", "both", "either".
func wanting(name string, words ...string) Demand {
	namespace, short, _ := strings.Cut(name, "/")
	d := Demand{
		Ref: input.ObjectRef{Cluster: "default", Kind: "Service", Namespace: namespace, Name: short},
		Of:  Tenant{0, namespace}, Owner: namespace, Holder: name, Four: true,
	}
	for _, word := range words {
		what, value, _ := strings.Cut(word, "=")
		switch what {
		case "had":
			d.Had = append(d.Had, netip.MustParseAddr(value))
		case "ask":
			d.Asked = append(d.Asked, netip.MustParseAddr(value))
		case "key":
			d.Holder = namespace + " " + value
		case "port":
			var port uint16
			_, _ = fmt.Sscan(value, &port)
			d.Ports = append(d.Ports, port)
		case "six":
			d.Four, d.Six = false, true
		case "both":
			d.Six = true
		case "either":
			d.Six, d.Spare = true, true
		default:
			panic(word)
		}
	}
	return d
}

func TestAddressesGoToServices(t *testing.T) {
	const outside = "AddressOutsidePools: 192.0.2.1 is in none of the pools of the appliance (group.pools)"
	inUse := func(addr, by string) string {
		return "AddressInUse: " + addr + " is in use by Service " + by +
			"; two Services of one namespace may share it if both have the annotation sallyport.dev/share-address " +
			"with the same value"
	}
	for name, row := range map[string]struct {
		pools   string
		demands []Demand
		stale   bool // no fresh addresses
		most    int
		want    []string
	}{
		"a record stays": {
			"10.0.0.0-10.0.0.9",
			[]Demand{wanting("n/a", "had=10.0.0.7")},
			false,
			0,
			[]string{"10.0.0.7"},
		},
		"a record outside the pools is replaced": {
			"10.0.0.4-10.0.0.4",
			[]Demand{wanting("n/a", "had=10.0.0.7")},
			false,
			0,
			[]string{"10.0.0.4"},
		},
		"the older of two records of one address stays": {
			"10.0.0.1-10.0.0.2",
			[]Demand{wanting("n/a", "had=10.0.0.1"), wanting("n/b", "had=10.0.0.1")},
			false, 0,
			[]string{"10.0.0.1", "10.0.0.2"},
		},
		"a record counts more than the wish of an older Service": {
			"10.0.0.1-10.0.0.2",
			[]Demand{wanting("n/a", "ask=10.0.0.1"), wanting("m/b", "had=10.0.0.1")},
			false, 0,
			[]string{inUse("10.0.0.1", "m/b"), "10.0.0.1"},
		},
		"a wish counts more than a derived address": {
			"10.0.0.1-10.0.0.1",
			[]Demand{wanting("n/a"), wanting("n/b", "ask=10.0.0.1")},
			false, 0,
			[]string{"NoAddressLeft: all 1 IPv4 addresses of the pools are in use (group.pools)", "10.0.0.1"},
		},
		"a wish replaces the record": {
			"10.0.0.1-10.0.0.9",
			[]Demand{wanting("n/a", "had=10.0.0.7", "ask=10.0.0.3")},
			false, 0,
			[]string{"10.0.0.3"},
		},
		"a wish outside the pools": {
			"10.0.0.1-10.0.0.9",
			[]Demand{wanting("n/a", "ask=192.0.2.1")},
			false, 0,
			[]string{outside},
		},
		"both families": {
			"10.0.0.1-10.0.0.1 fd00::1-fd00::1",
			[]Demand{wanting("n/a", "both")},
			false, 0,
			[]string{"10.0.0.1 fd00::1"},
		},
		"both families, and one pool": {
			"10.0.0.1-10.0.0.1",
			[]Demand{wanting("n/a", "both")},
			false, 0,
			[]string{"10.0.0.1 NoAddressLeft: the pools of the appliance have no IPv6 addresses (group.pools)"},
		},
		"one of the families is enough": {
			"10.0.0.1-10.0.0.1",
			[]Demand{wanting("n/a", "either")},
			false, 0,
			[]string{"10.0.0.1"},
		},
		"two Services share": {
			"10.0.0.1-10.0.0.9",
			[]Demand{wanting("n/a", "key=k", "port=80", "had=10.0.0.5"), wanting("n/b", "key=k", "port=443")},
			false, 0,
			[]string{"10.0.0.5", "10.0.0.5"},
		},
		"two Services with one port do not share": {
			"10.0.0.5-10.0.0.5",
			[]Demand{wanting("n/a", "key=k", "port=80", "had=10.0.0.5"), wanting("n/b", "key=k", "port=80")},
			false, 0,
			[]string{"10.0.0.5", "NoAddressLeft: all 1 IPv4 addresses of the pools are in use (group.pools)"},
		},
		"a port of a shared address is asked for twice": {
			"10.0.0.5-10.0.0.6",
			[]Demand{
				wanting("n/a", "key=k", "port=80", "had=10.0.0.5"),
				wanting("n/b", "key=k", "port=80", "ask=10.0.0.5"),
			},
			false, 0,
			[]string{"10.0.0.5", "PortConflict: port 80 of 10.0.0.5 is in use by Service n/a: Services that share an " +
				"address need ports of their own"},
		},
		"another namespace with the same key does not share": {
			"10.0.0.5-10.0.0.6",
			[]Demand{wanting("n/a", "key=k", "had=10.0.0.5"), wanting("m/b", "key=k", "ask=10.0.0.5")},
			false, 0,
			[]string{"10.0.0.5", inUse("10.0.0.5", "n/a")},
		},
		"while a cluster is unknown, only records count": {
			"10.0.0.1-10.0.0.9", []Demand{
				wanting("n/a", "had=10.0.0.7"), wanting("n/b"),
				wanting("n/c", "ask=10.0.0.3"),
			}, true, 0, []string{"10.0.0.7", "", ""},
		},
		"a namespace at its limit": {
			"10.0.0.1-10.0.0.9",
			[]Demand{wanting("n/a", "had=10.0.0.7"), wanting("n/b"), wanting("m/c", "had=10.0.0.8")},
			false, 1,
			[]string{"10.0.0.7", "LimitReached: the Services of namespace n have 1 addresses, as many as they may " +
				"have (clusters[].ingress.limits.addresses)", "10.0.0.8"},
		},
		"without a limit, a namespace has a quarter of each family": {
			"10.0.0.1-10.0.0.8 fd00::1-fd00::3",
			[]Demand{
				wanting("n/a", "had=10.0.0.7"), wanting("n/b", "had=10.0.0.8"), wanting("n/c"),
				wanting("n/d", "six"), wanting("n/e", "six"), wanting("m/f", "had=10.0.0.6"),
			},
			false, -1,
			[]string{
				"10.0.0.7", "10.0.0.8",
				"LimitReached: the Services of namespace n have 2 IPv4 addresses, a quarter of those of the pools; " +
					"the operator of the appliance can allow more (clusters[].ingress.limits.addresses)",
				"fd00::1",
				"LimitReached: the Services of namespace n have 1 IPv6 addresses, a quarter of those of the pools; " +
					"the operator of the appliance can allow more (clusters[].ingress.limits.addresses)",
				"10.0.0.6",
			},
		},
		"beyond the quarter, what is recorded stays": {
			"10.0.0.1-10.0.0.4",
			[]Demand{wanting("n/a", "had=10.0.0.1"), wanting("n/b", "had=10.0.0.2"), wanting("n/c", "had=10.0.0.3")},
			false, -1,
			[]string{"10.0.0.1", "10.0.0.2", "10.0.0.3"},
		},
		"the address of a node": {
			"10.0.0.1-10.0.0.2",
			[]Demand{wanting("n/a", "had=10.0.0.2"), wanting("n/b", "ask=10.0.0.2")},
			false, 0,
			[]string{"10.0.0.1", "AddressInUse: 10.0.0.2 is the address of node worker1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if row.most == 0 {
				row.most = 100
			}
			a := Allotter{Most: func(Tenant) int { return max(row.most, 0) }}
			for text := range strings.FieldsSeq(row.pools) {
				a.Ranges = append(a.Ranges, poolOf(text))
			}
			if name == "the address of a node" {
				a.Used = map[netip.Addr]input.Use{netip.MustParseAddr("10.0.0.2"): {By: "the address of node worker1"}}
			}
			var got []string
			for _, one := range a.Allot(row.demands, !row.stale) {
				var words []string
				for _, addr := range one.Addresses {
					words = append(words, addr.String())
				}
				for _, p := range one.Problems {
					words = append(words, p.Reason+": "+p.Why)
				}
				got = append(got, strings.Join(words, " "))
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestOnlyAddressesOfTheMachineAreGiven(t *testing.T) {
	a := Allotter{
		Pools:   input.Pools{Ranges: []input.AddressRange{poolOf("10.0.0.1-10.0.255.255")}, Local: true},
		Machine: []netip.Addr{netip.MustParseAddr("10.0.3.1"), netip.MustParseAddr("10.9.0.1")},
		Most:    func(Tenant) int { return 9 },
	}
	var got []string
	for _, one := range a.Allot([]Demand{
		wanting("n/a", "ask=10.0.0.7"), wanting("n/b", "ask=10.9.0.1"), wanting("n/c"), wanting("n/d"),
		wanting("n/e", "had=10.0.0.8"),
	}, true) {
		text := fmt.Sprint(one.Addresses)
		for _, p := range one.Problems {
			text += " " + p.Reason + ": " + p.Why
		}
		got = append(got, text)
	}
	want := []string{
		"[] AddressNotUsable: the appliance does not have 10.0.0.7: add it to an interface of that machine, or ask " +
			"for another address of haproxy.addresses",
		"[] AddressOutsidePools: 10.9.0.1 is in none of the pools of the appliance (haproxy.addresses)",
		"[10.0.3.1]",
		"[] NoAddressLeft: all 1 IPv4 addresses of the pools are in use (haproxy.addresses)",
		"[10.0.0.8]", // its record stays while the address is away from the machine
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// drawDemands returns Services of few names, addresses, keys and ports, the older first.
func drawDemands(t *rapid.T) []Demand {
	var all []Demand
	for i := range rapid.IntRange(0, 8).Draw(t, "services") {
		words := []string{fmt.Sprint("port=", rapid.IntRange(80, 82).Draw(t, "port"))}
		if rapid.IntRange(0, 2).Draw(t, "shares") == 0 {
			words = append(words, "key=k")
		}
		if rapid.IntRange(0, 3).Draw(t, "asks") == 0 {
			words = append(words, fmt.Sprint("ask=10.0.0.", rapid.IntRange(1, 7).Draw(t, "ask")))
		}
		if rapid.IntRange(0, 1).Draw(t, "has") == 0 {
			words = append(words, fmt.Sprint("had=10.0.0.", rapid.IntRange(0, 7).Draw(t, "had")))
		}
		if rapid.IntRange(0, 2).Draw(t, "family") == 0 {
			words = append(words, rapid.SampledFrom([]string{"six", "both", "either"}).Draw(t, "which"))
		}
		all = append(all, wanting(fmt.Sprintf("%s/s%d", rapid.SampledFrom([]string{"m", "n"}).Draw(t, "namespace"), i),
			words...))
	}
	return all
}

func drawAllotter(t *rapid.T) Allotter {
	most := rapid.IntRange(0, 3).Draw(t, "most")
	node := input.Use{By: "a node", Cluster: rapid.IntRange(0, 1).Draw(t, "cluster of the node")}
	a := Allotter{
		Most: func(Tenant) int { return most },
		Used: map[netip.Addr]input.Use{netip.MustParseAddr("10.0.0.4"): node},
	}
	a.Kept = map[netip.Addr]Kept{}
	for range rapid.IntRange(0, 3).Draw(t, "kept") {
		addr := netip.MustParseAddr(rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.2", "10.0.0.5", "fd00::1"}).Draw(t,
			"kept address"))
		namespace := rapid.SampledFrom([]string{"m", "n", "o"}).Draw(t, "kept for")
		a.Kept[addr] = Kept{input.AddressOwner{
			Namespace: namespace, Service: namespace + "/s1",
			Left: time.Unix(1, 0),
		}, Tenant{0, namespace}, time.Unix(2, 0), false}
	}
	a.Ranges = []input.AddressRange{
		poolOf(fmt.Sprintf("10.0.0.1-10.0.0.%d", rapid.IntRange(1, 3).Draw(t, "last"))),
		poolOf("fd00::1-fd00::2"), poolOf("10.0.0.4-10.0.0.5"),
	}
	return a
}

// TestALaterClusterTakesNoAddress checks that what a cluster says of its nodes takes no address from the
// Services of an earlier cluster. Those get such an address last, since it may be true.
func TestALaterClusterTakesNoAddress(t *testing.T) {
	node := netip.MustParseAddr("10.0.0.2")
	a := Allotter{
		Pools: input.Pools{Ranges: []input.AddressRange{poolOf("10.0.0.1-10.0.0.3")}},
		Most:  func(Tenant) int { return 100 },
		Used:  map[netip.Addr]input.Use{node: {By: "the address of node worker1", Cluster: 1}},
	}
	for cluster, want := range [][]bool{{false, false, true}, {false, false, false}} {
		demands := []Demand{wanting("n/a"), wanting("n/b"), wanting("n/c")}
		for i := range demands {
			demands[i].Of.Cluster = cluster
		}
		for i, got := range a.Allot(demands, true) {
			if slices.Contains(got.Addresses, node) != want[i] {
				t.Errorf("cluster %d: Service %d got %v; it has the address of the node: want %t",
					cluster, i, got.Addresses, want[i])
			}
		}
		demands = []Demand{wanting("n/a", "had=10.0.0.2")}
		demands[0].Of.Cluster = cluster
		if got := a.Allot(demands, true)[0]; slices.Contains(got.Addresses, node) != (cluster == 0) {
			t.Errorf("cluster %d: a recorded address: got %+v", cluster, got)
		}
	}
}

// TestNoAddressIsGivenTwice checks what one call promises, whatever the Services ask for
// and whatever their records say.
func TestNoAddressIsGivenTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		demands, a := drawDemands(t), drawAllotter(t)
		fresh := rapid.Bool().Draw(t, "fresh")
		type socket struct {
			addr netip.Addr
			port uint16
		}
		holder, opener, tenants := map[netip.Addr]string{}, map[socket]string{}, map[Tenant]map[netip.Addr]bool{}
		for i, got := range a.Allot(demands, fresh) {
			d := demands[i]
			for _, addr := range got.Addresses {
				if by, has := holder[addr]; has && by != d.Holder {
					t.Fatalf("%s is of %s and of %s", addr, by, d.Holder)
				}
				holder[addr] = d.Holder
				for _, port := range d.Ports {
					if by := opener[socket{addr, port}]; by != "" {
						t.Fatalf("%s:%d is of %s and of %s", addr, port, by, d.Ref.Name)
					}
					opener[socket{addr, port}] = d.Ref.Name
				}
				if k, kept := a.Kept[addr]; kept && k.Namespace != d.Owner && !slices.Contains(d.Had, addr) {
					t.Fatalf("%s is kept for %s, and given to %s", addr, k.Namespace, d.Ref.Namespace)
				}
				if a.Used[addr].Bars(d.Of.Cluster) || !slices.ContainsFunc(a.Ranges, func(r input.AddressRange) bool {
					return r.Contains(addr)
				}) {
					t.Fatalf("%s is not to be given", addr)
				}
				if asked := inFamily(d.Asked, addr.Is6()); asked.IsValid() && asked != addr {
					t.Fatalf("%s asks for %s and has %s", d.Ref.Name, asked, addr)
				}
				if !fresh && !slices.Contains(d.Had, addr) {
					t.Fatalf("%s is given, and recorded nowhere", addr)
				}
				if tenants[d.Of] == nil {
					tenants[d.Of] = map[netip.Addr]bool{}
				}
				tenants[d.Of][addr] = true
			}
			answers := len(got.Addresses) + len(got.Problems)
			if wanted := map[bool]int{true: 1}[d.Four] + map[bool]int{true: 1}[d.Six]; fresh && !d.Spare &&
				answers != wanted || answers > wanted {
				t.Fatalf("%s got %d answers: %+v", d.Ref.Name, answers, got)
			}
		}
		for of, has := range tenants {
			if most := a.Most(of); most > 0 && len(has) > most {
				t.Fatalf("%v has %d addresses, and may have %d", of, len(has), most)
			}
		}
	})
}

// TestMembersAgreeOnAddresses lets two members write records while each sees the Services
// late and in another order. As soon as both see everything, they agree, and nothing
// changes any more.
func TestMembersAgreeOnAddresses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		demands, a := drawDemands(t), drawAllotter(t)
		records := make([][]netip.Addr, len(demands)) // in the API server
		for i := range demands {
			records[i] = demands[i].Had
		}
		member := func(sees []bool, write bool) (changed bool) {
			var view []Demand
			var index []int
			for i, d := range demands {
				if sees[i] {
					d.Had = records[i]
					view, index = append(view, d), append(index, i)
				}
			}
			b := a
			for i, got := range b.Allot(view, true) {
				if at := index[i]; !slices.Equal(records[at], got.Addresses) {
					changed = true
					if write {
						records[at] = got.Addresses
					}
				}
			}
			return changed
		}
		for range rapid.IntRange(0, 6).Draw(t, "early writes") {
			sees := make([]bool, len(demands))
			for i := range sees {
				sees[i] = rapid.Bool().Draw(t, "sees")
			}
			member(sees, true)
		}
		all := slices.Repeat([]bool{true}, len(demands))
		member(all, true)
		if member(all, false) {
			t.Fatalf("a second look at the same Services changes their addresses: %v", records)
		}
		before := slices.Clone(records)
		if len(demands) == 0 {
			return
		}
		// Another Service goes, or comes last: the others keep what they have.
		gone := rapid.IntRange(0, len(demands)-1).Draw(t, "gone")
		for i := range demands {
			demands[i].Had = records[i]
		}
		left := slices.Delete(slices.Clone(demands), gone, gone+1)
		b := a
		for i, got := range b.Allot(left, true) {
			was := before[i]
			if i >= gone {
				was = before[i+1]
			}
			for _, addr := range was {
				if !slices.Contains(got.Addresses, addr) {
					t.Fatalf("%s loses %s because %s went", left[i].Ref.Name, addr, demands[gone].Ref.Name)
				}
			}
		}
	})
}
