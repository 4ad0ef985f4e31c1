package calico

import (
	"encoding/json"
	"errors"
	"fmt"
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
	o := Objects{
		Cluster: "c",
		Own:     []netip.Addr{netip.MustParseAddr("192.168.50.21"), netip.MustParseAddr("fd00:50::21")},
	}
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
		case "BGPFilter":
			o.Filters = append(o.Filters, u)
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
			routes.Node{Name: "w1", ASN: 65000, BGP: []netip.Prefix{p("192.168.50.23/24"), p("fd00:50::23/64")}},
			0,
		},
		"a bare address": {
			asn + `{kind: Node, metadata: {name: w1, annotations: {projectcalico.org/IPv4Address: 192.168.50.23}}}`,
			routes.Node{Name: "w1", ASN: 65000, BGP: []netip.Prefix{p("192.168.50.23/32")}},
			0,
		},
		"no annotation is no speaker": {
			asn + `{kind: Node, metadata: {name: w1}, status: {addresses: [{type: InternalIP, address: 10.0.0.1}]}}`,
			routes.Node{Name: "w1", ASN: 65000},
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
			asn + "{kind: BGPPeer, metadata: {name: us}, spec: {peerIP: \"192.168.50.21:179\", asNumber: 65000, " +
				"localASNumber: 65123, nodeSelector: rack == '1'}}\n---\n" +
				`{kind: Node, metadata: {name: w1, labels: {rack: "1"}, annotations: {projectcalico.org/ASNumber: "65001"}}}`,
			routes.Node{Name: "w1", ASN: 65123},
			0,
		},
		"a BGPPeer for other nodes, and one that is not us": {
			asn + "{kind: BGPPeer, metadata: {name: us}, spec: {peerIP: 192.168.50.21, localASNumber: 65123, " +
				"nodeSelector: rack == '2'}}\n---\n" +
				"{kind: BGPPeer, metadata: {name: them}, spec: {peerIP: 192.168.50.99, localASNumber: 65124}}\n---\n" +
				"{kind: BGPPeer, metadata: {name: other}, spec: {peerIP: 192.168.50.21, localASNumber: 65125, " +
				"node: m}}\n---\n" +
				`{kind: Node, metadata: {name: w1, labels: {rack: "1"}}}`,
			routes.Node{Name: "w1", ASN: 65000, Behind: true},
			0,
		},
		"a selector that cannot be read is every node": {
			asn + "{kind: BGPPeer, metadata: {name: us}, spec: {peerIP: \"[fd00:50::21]:1179\", localASNumber: " +
				"\"65123\", nodeSelector: \"rack ==\"}}\n---\n" +
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
			o := objects(t, tt.manifests)
			o.NoFilters = true // TestWhatTheClusterSaysOfOurSessionsIsExamined is about them
			got, odd := Topology(o)
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
	if len(odd) != 1 || !strings.Contains(odd[0].String(), "w1") ||
		!strings.Contains(odd[0].Why, "projectcalico.org/IPv6Address") {
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
	lent := []map[netip.Addr]string{
		{netip.MustParseAddr("172.16.0.0"): "n3"},
		{netip.MustParseAddr("172.16.171.66"): "n2"},
	}
	for i, b := range got.Blocks {
		if diff := cmp.Diff(lent[i], b.Borrowed, netipEqual); diff != "" {
			t.Errorf("block %s: want (-), got (+):\n%s", b.Prefix, diff)
		}
	}
	if len(got.Blocks) != 2 || got.Blocks[0].Prefix != netip.MustParsePrefix("172.16.0.0/31") ||
		got.Blocks[1].Affinity != "host:n1" {
		t.Errorf("got blocks %v", got.Blocks)
	}
	if len(odd) != 4 {
		t.Errorf("want 4 oddities, got %v", odd)
	}
}

func TestTheNamespacesOfPodsAreFound(t *testing.T) {
	o := objects(t, `
kind: IPAMBlock
metadata: {name: 172-16-171-64-29}
spec:
  cidr: 172.16.171.64/29
  affinity: host:n1
  allocations: [0, null, 1, 2, 3, 4, 77, 0]
  attributes:
  - {handle_id: k8s-pod-network.a, secondary: {node: n1, pod: a, namespace: shop, timestamp: "2026-01-01"}}
  - {handle_id: vxlan-tunnel-addr-n1, secondary: {node: n1, type: vxlanTunnelAddress}}
  - {handle_id: windows-reserved-ipam-handle, secondary: {note: windows host rsvd}}
  - {handle_id: lb, secondary: {namespace: shop, service: web, type: serviceLoadBalancer}}
  - {handle_id: old}
---
{kind: IPAMBlock, metadata: {name: six}, spec: {cidr: "fd00:172::40/122", allocations: [null, 0], attributes: [{secondary: {namespace: evil}}]}}
`)
	got, odd := Topology(o)
	a := netip.MustParseAddr
	want := []map[netip.Addr]string{
		{a("172.16.171.64"): "shop", a("172.16.171.69"): "", a("172.16.171.70"): "", a("172.16.171.71"): "shop"},
		{a("fd00:172::41"): "evil"},
	}
	for i, b := range got.Blocks {
		if diff := cmp.Diff(want[i], b.Pods, netipEqual); diff != "" {
			t.Errorf("block %s: want (-), got (+):\n%s", b.Prefix, diff)
		}
	}
	if len(odd) != 1 || odd[0].Name != "172-16-171-64-29" || !strings.Contains(odd[0].Why, "2 of its addresses") {
		t.Errorf("got %v, want one complaint about two addresses", odd)
	}
}

func TestABlockThatDidNotChangeIsTheSamePointerWithTheSameOddities(t *testing.T) {
	o := objects(t, `
{kind: IPAMBlock, metadata: {name: a}, spec: {cidr: 172.16.0.0/30, allocations: [0], attributes: [{}]}}
---
{kind: IPAMBlock, metadata: {name: b}, spec: {cidr: 172.16.1.0/30, allocations: [0], attributes: [{secondary: {namespace: shop}}]}}
`)
	o.Memory = new(Memory)
	first, odd := Topology(o)
	o.Blocks[1] = o.Blocks[1].DeepCopy()
	second, again := Topology(o)
	if first.Blocks[0] != second.Blocks[0] || first.Blocks[1] == second.Blocks[1] {
		t.Error("want the first block the same pointer, and the second another")
	}
	if diff := cmp.Diff(first.Blocks, second.Blocks, netipEqual); diff != "" || len(odd) != 1 ||
		!slices.Equal(odd, again) {
		t.Errorf("want the same twice, got %s, %v and %v", diff, odd, again)
	}
}

func TestAnAddressIsOneNodesAlone(t *testing.T) {
	const (
		old   = `{kind: Node, metadata: {name: a-old, creationTimestamp: "2024-01-01T00:00:00Z", annotations: {projectcalico.org/IPv4Address: 192.168.50.23/24}}}`
		young = `{kind: Node, metadata: {name: b-new, creationTimestamp: "2025-01-01T00:00:00Z", annotations: {projectcalico.org/IPv4Address: 192.168.50.23/24}}}`
		says  = `{kind: Node, metadata: {name: c-says, creationTimestamp: "2026-01-01T00:00:00Z", annotations: {projectcalico.org/IPv4Address: 192.168.50.23/24}}, status: {addresses: [{type: InternalIP, address: 192.168.50.23}]}}`
		alone = `{kind: Node, metadata: {name: d-alone, annotations: {projectcalico.org/IPv4Address: 192.168.50.24/24}}, status: {addresses: [{type: ExternalIP, address: 192.168.50.24}]}}`
		lan   = `{kind: Node, metadata: {name: e-lan, annotations: {projectcalico.org/IPv4Address: 192.168.50.25/24}}, status: {addresses: [{type: InternalIP, address: 192.168.50.25}, {type: InternalIP, address: 192.168.50.99}]}}`
		us    = `{kind: Node, metadata: {name: f-us, annotations: {projectcalico.org/IPv4Address: 192.168.50.21/24}}}`
		six   = `{kind: Node, metadata: {name: g-six, annotations: {projectcalico.org/IPv6Address: "fd00:50::9/64"}}, status: {addresses: [{type: InternalIP, address: "fd00:50::9"}]}}`
		six2  = `{kind: Node, metadata: {name: h-six, annotations: {projectcalico.org/IPv6Address: "fd00:50::9/64"}}}`
	)
	for name, row := range map[string]struct {
		nodes []string
		had   string // the node that had 192.168.50.23 before
		want  string // the nodes with their BGP addresses, and those where hostNetwork pods answer
		odd   int
	}{
		"nobody claims what is another's": {
			[]string{old, alone},
			"",
			"a-old [192.168.50.23] []; d-alone [192.168.50.24] []", 0,
		},
		"the older keeps it": {
			[]string{young, old},
			"", "a-old [192.168.50.23] []; b-new [] []",
			2,
		},
		"the one whose status confirms it keeps it": {
			[]string{old, says, young},
			"",
			"a-old [] []; b-new [] []; c-says [192.168.50.23] [192.168.50.23]", 4,
		},
		"the one that had it keeps it": {
			[]string{old, says, young},
			"b-new",
			"a-old [] []; b-new [192.168.50.23] []; c-says [] []", 4,
		},
		"unless it is gone": {
			[]string{young, old},
			"c-says",
			"a-old [192.168.50.23] []; b-new [] []", 2,
		},
		"a status alone claims nothing":          {[]string{lan}, "", "e-lan [192.168.50.25] [192.168.50.25]", 0},
		"an ExternalIP is not where pods answer": {[]string{alone}, "", "d-alone [192.168.50.24] []", 0},
		"the appliance's address is no node's":   {[]string{us}, "", "f-us [] []", 1},
		"IPv6": {
			[]string{six2, six},
			"",
			"g-six [fd00:50::9] [fd00:50::9]; h-six [] []", 2,
		},
	} {
		o := objects(t, strings.Join(row.nodes, "\n---\n"))
		o.Own = []netip.Addr{netip.MustParseAddr("192.168.50.21")}
		if row.had != "" {
			o.Memory = Remember(routes.Topology{
				Nodes: []routes.Node{{Name: row.had, BGP: []netip.Prefix{netip.MustParsePrefix("192.168.50.23/24")}}},
			})
		}
		for range 2 { // the second reading uses the memory of the first
			topology, odd := Topology(o)
			var lines []string
			for _, n := range topology.Nodes {
				speaks := []netip.Addr{}
				for _, p := range n.BGP {
					speaks = append(speaks, p.Addr())
				}
				lines = append(lines, fmt.Sprintf("%s %v %v", n.Name, speaks, n.Addresses))
			}
			if got := strings.Join(lines, "; "); got != row.want || len(odd) != row.odd {
				t.Errorf("%s: got %s with %d oddities, want %s with %d: %v", name, got, len(odd), row.want, row.odd,
					odd)
			}
		}
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
		"rack == '1' && zone == 'x'": false, "rack == '1' || zone == 'x' && none == ''": true,
		"(rack == '1' || rack == '2') && has(zone)": true,
		"!(rack == '1')": false, "!!has(rack)": true, "zone contains 'st'": true, "zone starts with 'east'": true,
		"zone ends with 'west'": false,
	} {
		s, err := parseSelector(expression)
		if err != nil {
			t.Errorf("%q: %v", expression, err)
		} else if got := s.match(labels); got != want {
			t.Errorf("%q: want %v, got %v", expression, want, got)
		}
	}
	for _, bad := range []string{
		"rack", "rack ==", "rack = '1'", "rack == 1", "'rack' == '1'", "(rack == '1'",
		"rack in {'1'", "has(", "has('x')", "&&", "rack == '1' zone", "rack == 'x", "$", "rack not x",
		strings.Repeat("(", 1000) + "all()",
	} {
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
		"none":                             {err: ErrNone},
		"only v1":                          {have: Presence{V1: true}, want: V1},
		"only v3":                          {have: Presence{V3: true, V3IsCRD: true}, want: V3},
		"v1 with an aggregated API server": {have: Presence{V1: true, V3: true, Ready3: true}, want: V1},
		"both are CRDs, before a migration": {
			have: Presence{V1: true, V3: true, V3IsCRD: true, Ready1: true},
			want: V1,
		},
		"both are CRDs, after a migration": {have: Presence{V1: true, V3: true, V3IsCRD: true, Ready3: true}, want: V3},
		"both are CRDs, in a migration":    {have: Presence{V1: true, V3: true, V3IsCRD: true}, err: ErrFrozen},
	} {
		got, err := Choose(tt.have)
		if got != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("%s: want %q, %v; got %q, %v", name, tt.want, tt.err, got, err)
		}
	}
}

// FuzzTopology checks that the result is well-formed for any input.
func FuzzTopology(f *testing.F) {
	for _, seed := range []string{
		`{"metadata":{"name":"a"},"spec":{"cidr":"172.16.171.64/26","node":"n1","state":"confirmed","deleted":"false","affinity":"host:n1","allocations":[0,null],"attributes":[{"secondary":{"node":"n2"}}],"blockSize":26,"asNumber":65000,"peerIP":"192.168.50.21","nodeSelector":"has(x)","localASNumber":"1.1","filters":["a",null],"importV4":[{"action":"Reject","cidr":"0.0.0.0/0","matchOperator":"In"},3]}}`,
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
		o := Objects{
			Affinities: all, Blocks: all, Pools: all, Configs: all, Peers: all, Filters: all, ASN: 65000,
			OwnASN: 65000, Own: []netip.Addr{netip.MustParseAddr("192.168.50.21")},
		}
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
			for ip := range b.Pods {
				if !b.Prefix.Contains(ip) {
					t.Errorf("%v is a pod of %v", ip, b.Prefix)
				}
			}
			for ip := range b.Borrowed {
				if !b.Prefix.Contains(ip) {
					t.Errorf("%v is lent out of %v", ip, b.Prefix)
				}
			}
		}
		for _, n := range got.Nodes {
			prefixes = append(prefixes, n.PodCIDRs...)
			if n.ASN == 0 || slices.ContainsFunc(n.BGP, func(p netip.Prefix) bool {
				return !p.IsValid() || p.Addr().IsLoopback()
			}) {
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

// FuzzSelector checks that the parser ends, and that its result can be used.
func FuzzSelector(f *testing.F) {
	f.Add("has(a) && (b == 'c' || !d in {'e'})")
	f.Fuzz(func(_ *testing.T, s string) {
		if sel, err := parseSelector(s); err == nil {
			sel.match(map[string]string{"a": "b"})
		}
	})
}
