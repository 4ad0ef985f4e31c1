package calico

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"sallyport/routes"
)

// objects reads manifests into Objects.
func objects(t testing.TB, manifests string) Objects {
	t.Helper()
	o := Objects{Cluster: "c", Own: []netip.Addr{netip.MustParseAddr("192.168.50.21"), netip.MustParseAddr("fd00:50::21")}}
	for doc := range strings.SplitSeq(manifests, "\n---\n") {
		if strings.TrimSpace(doc) == "" {
			continue
		}
		data, err := yaml.YAMLToJSON([]byte(doc))
		if err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		u := &unstructured.Unstructured{}
		if err := json.Unmarshal(data, &u.Object); err != nil {
			t.Fatal(err)
		}
		switch kind := u.Object["kind"]; kind {
		case "Node":
			n := &corev1.Node{}
			if err := json.Unmarshal(data, n); err != nil {
				t.Fatal(err)
			}
			o.Nodes = append(o.Nodes, n)
		case "BlockAffinity":
			o.Affinities = append(o.Affinities, u)
		case "IPAMBlock":
			o.Blocks = append(o.Blocks, u)
		case "IPPool":
			o.Pools = append(o.Pools, u)
		case "BGPConfiguration":
			o.Configs = append(o.Configs, u)
		case "BGPPeer":
			o.Peers = append(o.Peers, u)
		default:
			t.Fatalf("kind %v is not known here", kind)
		}
	}
	return o
}

var netipEqual = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

func TestNodes(t *testing.T) {
	const asn = "kind: BGPConfiguration\nmetadata: {name: default}\nspec: {asNumber: 65000}\n---\n"
	p := netip.MustParsePrefix
	for name, tt := range map[string]struct {
		manifests string
		want      routes.Node
		odd       int
	}{
		"annotations, and not the InternalIP": {
			asn + `{kind: Node, metadata: {name: w1, annotations: {projectcalico.org/IPv4Address: 192.168.50.23/24, projectcalico.org/IPv6Address: "fd00:50::23/64"}}, status: {addresses: [{type: InternalIP, address: 10.0.0.1}, {type: Hostname, address: w1}]}}`,
			routes.Node{Name: "w1", ASN: 65000, BGP: []netip.Prefix{p("192.168.50.23/24"), p("fd00:50::23/64")}, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
			0,
		},
		"a bare address": {
			asn + `{kind: Node, metadata: {name: w1, annotations: {projectcalico.org/IPv4Address: 192.168.50.23}}}`,
			routes.Node{Name: "w1", ASN: 65000, BGP: []netip.Prefix{p("192.168.50.23/32")}},
			0,
		},
		"no annotation is no speaker": {
			asn + `{kind: Node, metadata: {name: w1}, status: {addresses: [{type: InternalIP, address: 10.0.0.1}]}}`,
			routes.Node{Name: "w1", ASN: 65000, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
			0,
		},
		"addresses that cannot be": {
			asn + `{kind: Node, metadata: {name: w1, annotations: {projectcalico.org/IPv4Address: 127.0.0.1/8, projectcalico.org/IPv6Address: 10.0.0.1}}}`,
			routes.Node{Name: "w1", ASN: 65000},
			2,
		},
		"without any AS it is Calico's default": {
			`{kind: Node, metadata: {name: w1}}`, routes.Node{Name: "w1", ASN: 64512}, 0,
		},
		"the node's own AS, dotted": {
			asn + `{kind: Node, metadata: {name: w1, annotations: {projectcalico.org/ASNumber: "1.10"}}}`,
			routes.Node{Name: "w1", ASN: 65546},
			0,
		},
		"an AS that is none": {
			asn + `{kind: Node, metadata: {name: w1, annotations: {projectcalico.org/ASNumber: "x"}}}`,
			routes.Node{Name: "w1", ASN: 65000},
			1,
		},
		"the BGPPeer's local AS goes before all": {
			asn + "{kind: BGPPeer, metadata: {name: us}, spec: {peerIP: \"192.168.50.21:179\", asNumber: 65000, localASNumber: 65123, nodeSelector: rack == '1'}}\n---\n" +
				`{kind: Node, metadata: {name: w1, labels: {rack: "1"}, annotations: {projectcalico.org/ASNumber: "65001"}}}`,
			routes.Node{Name: "w1", ASN: 65123},
			0,
		},
		"a BGPPeer for other nodes, and one that is not us": {
			asn + "{kind: BGPPeer, metadata: {name: us}, spec: {peerIP: 192.168.50.21, localASNumber: 65123, nodeSelector: rack == '2'}}\n---\n" +
				"{kind: BGPPeer, metadata: {name: them}, spec: {peerIP: 192.168.50.99, localASNumber: 65124}}\n---\n" +
				"{kind: BGPPeer, metadata: {name: other}, spec: {peerIP: 192.168.50.21, localASNumber: 65125, node: m}}\n---\n" +
				`{kind: Node, metadata: {name: w1, labels: {rack: "1"}}}`,
			routes.Node{Name: "w1", ASN: 65000, Behind: true},
			0,
		},
		"a selector that cannot be read is every node": {
			asn + "{kind: BGPPeer, metadata: {name: us}, spec: {peerIP: \"[fd00:50::21]:1179\", localASNumber: \"65123\", nodeSelector: \"rack ==\"}}\n---\n" +
				`{kind: Node, metadata: {name: w1}}`,
			routes.Node{Name: "w1", ASN: 65123},
			1,
		},
		"a reflector that is down": {
			asn + `{kind: Node, metadata: {name: w1, annotations: {projectcalico.org/RouteReflectorClusterID: 244.0.0.1}}, status: {conditions: [{type: Ready, status: Unknown}]}}`,
			routes.Node{Name: "w1", ASN: 65000, Reflector: true, Down: true},
			0,
		},
		"not ready is not down; podCIDRs": {
			asn + `{kind: Node, metadata: {name: w1}, spec: {podCIDRs: [10.244.1.0/24, "fd00:1::/80", rubbish]}, status: {conditions: [{type: Ready, status: "False"}]}}`,
			routes.Node{Name: "w1", ASN: 65000, PodCIDRs: []netip.Prefix{p("10.244.1.0/24"), p("fd00:1::/80")}},
			1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, odd := Topology(objects(t, tt.manifests))
			if diff := cmp.Diff([]routes.Node{tt.want}, got.Nodes, netipEqual); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
			if len(odd) != tt.odd {
				t.Errorf("want %d oddities, got %v", tt.odd, odd)
			}
		})
	}
}

func TestAffinitiesOfBothGroups(t *testing.T) {
	got, odd := Topology(objects(t, `
{kind: BlockAffinity, apiVersion: crd.projectcalico.org/v1, metadata: {name: a}, spec: {cidr: 172.16.171.64/26, node: n1, state: confirmed, deleted: "false"}}
---
{kind: BlockAffinity, apiVersion: crd.projectcalico.org/v1, metadata: {name: b}, spec: {cidr: 172.16.171.128/26, node: n1, state: pendingDeletion, deleted: "true"}}
---
{kind: BlockAffinity, apiVersion: projectcalico.org/v3, metadata: {name: c}, spec: {cidr: "fd00::40/122", node: n1, state: confirmed, deleted: true, type: host}}
---
{kind: BlockAffinity, apiVersion: projectcalico.org/v3, metadata: {name: d}, spec: {cidr: 10.0.0.0/32, node: load-balancer, state: "", deleted: false, type: virtual}}
---
{kind: BlockAffinity, metadata: {name: e}, spec: {cidr: 10.0.1.0/26, node: n1, state: confirmed, deleted: rubbish}}
---
{kind: BlockAffinity, metadata: {name: host bits}, spec: {cidr: 172.16.171.65/26, node: n1, state: confirmed}}
---
{kind: BlockAffinity, metadata: {name: nobody's}, spec: {cidr: 172.16.171.64/26, state: confirmed}}
---
{kind: BlockAffinity, metadata: {name: no spec}}
`))
	p := netip.MustParsePrefix
	want := []routes.Affinity{
		{Name: "a", Node: "n1", Prefix: p("172.16.171.64/26"), State: "confirmed"},
		{Name: "b", Node: "n1", Prefix: p("172.16.171.128/26"), State: "pendingDeletion", Deleted: true},
		{Name: "c", Node: "n1", Prefix: p("fd00::40/122"), State: "confirmed", Deleted: true, Type: "host"},
		{Name: "d", Node: "load-balancer", Prefix: p("10.0.0.0/32"), Type: "virtual"},
		{Name: "e", Node: "n1", Prefix: p("10.0.1.0/26"), State: "confirmed", Deleted: true},
	}
	if diff := cmp.Diff(want, got.Affinities, netipEqual); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	if len(odd) != 3 {
		t.Errorf("want 3 oddities, got %v", odd)
	}
	if got.HostLocal {
		t.Error("there are affinities, and yet it is called host-local")
	}
}

func TestANodeThatOwnsBlocksAndHasNoBGPAddressIsTold(t *testing.T) {
	_, odd := Topology(objects(t, `
{kind: Node, metadata: {name: w1, annotations: {projectcalico.org/IPv4Address: 192.168.50.23/24}}}
---
{kind: Node, metadata: {name: idle}}
---
{kind: BlockAffinity, metadata: {name: a}, spec: {node: w1, cidr: 172.16.171.64/26, state: confirmed, deleted: "false"}}
---
{kind: BlockAffinity, metadata: {name: b}, spec: {node: w1, cidr: "fd00:172::40/122", state: confirmed, deleted: "false"}}
`))
	if len(odd) != 1 || !strings.Contains(odd[0].String(), "w1") || !strings.Contains(odd[0].Why, "projectcalico.org/IPv6Address") {
		t.Errorf("got %v, want one complaint about the IPv6 address of w1", odd)
	}
}

func TestLentAddressesAreFound(t *testing.T) {
	got, odd := Topology(objects(t, `
kind: IPAMBlock
metadata: {name: 172-16-171-64-26}
spec:
  cidr: 172.16.171.64/30
  affinity: host:n1
  allocations: [0, null, 1, 2]
  attributes:
  - {handle_id: x, secondary: {node: n1, pod: a}}
  - {handle_id: y, secondary: {node: n2, pod: b}}
  - {handle_id: z}
---
kind: IPAMBlock
metadata: {name: orphan}
spec: {cidr: 172.16.0.0/31, allocations: [0, 9, 0, 0], attributes: [{secondary: {node: n3}}]}
---
{kind: IPAMBlock, metadata: {name: gone}, spec: {cidr: 172.16.0.0/26, deleted: true}}
---
{kind: IPAMBlock, metadata: {name: odd}, spec: {cidr: 5}}
`))
	want := []routes.IPAMBlock{
		{Prefix: netip.MustParsePrefix("172.16.0.0/31"), Borrowed: map[netip.Addr]string{netip.MustParseAddr("172.16.0.0"): "n3"}},
		{Prefix: netip.MustParsePrefix("172.16.171.64/30"), Affinity: "host:n1", Borrowed: map[netip.Addr]string{netip.MustParseAddr("172.16.171.66"): "n2"}},
	}
	if diff := cmp.Diff(want, got.Blocks, netipEqual); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	if len(odd) != 2 {
		t.Errorf("want 2 oddities, got %v", odd)
	}
}

func TestPools(t *testing.T) {
	got, odd := Topology(objects(t, `
{kind: IPPool, metadata: {name: a}, spec: {cidr: 172.16.0.0/16}}
---
{kind: IPPool, metadata: {name: b}, spec: {cidr: "fd00::/48", blockSize: 120, disableBGPExport: true}}
---
{kind: IPPool, metadata: {name: c}, spec: {cidr: 10.0.0.0/8, blockSize: 8}}
---
{kind: IPPool, metadata: {name: d}, spec: {cidr: x}}
`))
	p := netip.MustParsePrefix
	want := []routes.Pool{
		{Name: "a", CIDR: p("172.16.0.0/16"), BlockSize: 26},
		{Name: "b", CIDR: p("fd00::/48"), BlockSize: 120, NoExport: true},
	}
	if diff := cmp.Diff(want, got.Pools, netipEqual); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	if len(odd) != 2 {
		t.Errorf("want 2 oddities, got %v", odd)
	}
}

func TestWithoutAffinitiesPodCIDRsStandIn(t *testing.T) {
	o := objects(t, `{kind: Node, metadata: {name: w1}, spec: {podCIDR: 10.244.1.0/24}}`)
	if got, _ := Topology(o); !got.HostLocal {
		t.Error("want host-local")
	}
	o.NoConfigs, o.ASN = true, 65000
	if got, _ := Topology(o); got.ASN != 65000 || got.Nodes[0].ASN != 65000 {
		t.Errorf("want the AS of the configuration where the cluster's cannot be read, got %d", got.ASN)
	}
}

func TestSelectors(t *testing.T) {
	labels := map[string]string{"rack": "1", "node-role.kubernetes.io/worker": "", "zone": "east-1"}
	for expression, want := range map[string]bool{
		"": true, "all()": true, " all() ": true, "!all()": false, "global()": true,
		"rack == '1'": true, `rack == "2"`: false, "rack != '2'": true, "none != '2'": true, "none == ''": false,
		"has(rack)": true, "has(none)": false, "!has(none)": true, "has(node-role.kubernetes.io/worker)": true,
		"rack in {'1', '2'}": true, "rack in {}": false, "rack not in {'1'}": false, "none not in {'1'}": true,
		"rack == '1' && zone == 'x'": false, "rack == '1' || zone == 'x' && none == ''": true, "(rack == '1' || rack == '2') && has(zone)": true,
		"!(rack == '1')": false, "!!has(rack)": true, "zone contains 'st'": true, "zone starts with 'east'": true, "zone ends with 'west'": false,
	} {
		s, err := parseSelector(expression)
		if err != nil {
			t.Errorf("%q: %v", expression, err)
		} else if got := s.match(labels); got != want {
			t.Errorf("%q: want %v, got %v", expression, want, got)
		}
	}
	for _, bad := range []string{"rack", "rack ==", "rack = '1'", "rack == 1", "'rack' == '1'", "(rack == '1'", "rack in {'1'", "has(", "has('x')", "&&", "rack == '1' zone", "rack == 'x", "$", "rack not x", strings.Repeat("(", 1000) + "all()"} {
		if _, err := parseSelector(bad); err == nil {
			t.Errorf("%q: want an error", bad)
		}
	}
}

func TestTheGroupThatCountsIsChosen(t *testing.T) {
	for name, tt := range map[string]struct {
		have Presence
		want string
		err  error
	}{
		"none":                              {err: ErrNone},
		"only v1":                           {have: Presence{V1: true}, want: V1},
		"only v3":                           {have: Presence{V3: true, V3IsCRD: true}, want: V3},
		"v1 with an aggregated API server":  {have: Presence{V1: true, V3: true, Ready3: true}, want: V1},
		"both are CRDs, before a migration": {have: Presence{V1: true, V3: true, V3IsCRD: true, Ready1: true}, want: V1},
		"both are CRDs, after a migration":  {have: Presence{V1: true, V3: true, V3IsCRD: true, Ready3: true}, want: V3},
		"both are CRDs, in a migration":     {have: Presence{V1: true, V3: true, V3IsCRD: true}, err: ErrFrozen},
	} {
		got, err := Choose(tt.have)
		if got != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("%s: want %q, %v; got %q, %v", name, tt.want, tt.err, got, err)
		}
	}
}

// FuzzTopology holds what comes out to be well-formed, whatever goes in.
func FuzzTopology(f *testing.F) {
	for _, seed := range []string{
		`{"metadata":{"name":"a"},"spec":{"cidr":"172.16.171.64/26","node":"n1","state":"confirmed","deleted":"false","affinity":"host:n1","allocations":[0,null],"attributes":[{"secondary":{"node":"n2"}}],"blockSize":26,"asNumber":65000,"peerIP":"192.168.50.21","nodeSelector":"has(x)","localASNumber":"1.1"}}`,
		`{"metadata":{"name":"default","annotations":{"projectcalico.org/IPv4Address":"1.2.3.4/24","projectcalico.org/ASNumber":"1.2"}},"spec":{"podCIDRs":["10.0.0.0/24"],"cidr":"fd00::/122","deleted":3,"allocations":[1e300,"x",-1],"attributes":[null]}}`,
		`{"spec":[]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		u := &unstructured.Unstructured{}
		if json.Unmarshal(data, &u.Object) != nil {
			return
		}
		all := []*unstructured.Unstructured{u}
		o := Objects{Affinities: all, Blocks: all, Pools: all, Configs: all, Peers: all, Own: []netip.Addr{netip.MustParseAddr("192.168.50.21")}}
		n := &corev1.Node{}
		if json.Unmarshal(data, n) == nil {
			o.Nodes = []*corev1.Node{n}
		}
		got, _ := Topology(o)
		var prefixes []netip.Prefix
		for _, a := range got.Affinities {
			prefixes = append(prefixes, a.Prefix)
		}
		for _, p := range got.Pools {
			prefixes = append(prefixes, p.CIDR)
			if p.BlockSize < 1 || p.BlockSize > p.CIDR.Addr().BitLen() {
				t.Errorf("block size %d", p.BlockSize)
			}
		}
		for _, b := range got.Blocks {
			prefixes = append(prefixes, b.Prefix)
			for ip := range b.Borrowed {
				if !b.Prefix.Contains(ip) {
					t.Errorf("%v is lent out of %v", ip, b.Prefix)
				}
			}
		}
		for _, n := range got.Nodes {
			prefixes = append(prefixes, n.PodCIDRs...)
			if n.ASN == 0 || slices.ContainsFunc(n.BGP, func(p netip.Prefix) bool { return !p.IsValid() || p.Addr().IsLoopback() }) {
				t.Errorf("node %+v", n)
			}
		}
		for _, p := range prefixes {
			if !p.IsValid() || p != p.Masked() {
				t.Errorf("prefix %v", p)
			}
		}
	})
}

// FuzzSelector holds the parser to end, and what it makes to be usable.
func FuzzSelector(f *testing.F) {
	f.Add("has(a) && (b == 'c' || !d in {'e'})")
	f.Fuzz(func(_ *testing.T, s string) {
		if sel, err := parseSelector(s); err == nil {
			sel.match(map[string]string{"a": "b"})
		}
	})
}
