package calico

import (
	"strings"
	"testing"
)

func TestWhatTheClusterSaysOfOurSessionsIsExamined(t *testing.T) {
	const (
		node = "\n---\n" +
			`{kind: Node, metadata: {name: w1, annotations: {projectcalico.org/IPv4Address: 192.168.50.23/24}}}`
		asn  = "\n---\n" + `{kind: BGPConfiguration, metadata: {name: default}, spec: {asNumber: 65000}}`
		peer = "\n---\n" +
			`{kind: BGPPeer, metadata: {name: p}, spec: {peerIP: 192.168.50.21, asNumber: 65000, filters: [f, g]}}`
		filters = "\n---\n" +
			`{kind: BGPFilter, metadata: {name: f}, spec: {importV4: [{action: Reject, matchOperator: In, cidr: 0.0.0.0/0}], importV6: [{action: Reject, matchOperator: In, cidr: "::/0"}]}}` +
			"\n---\n" +
			`{kind: BGPFilter, metadata: {name: g}, spec: {exportV4: [{action: Reject, source: RemotePeers}]}}`
		asPrinted = node + asn + peer + filters
	)
	filter := func(spec string) string {
		return node + asn + peer + "\n---\n" + `{kind: BGPFilter, metadata: {name: f}, spec: {` + spec + `}}`
	}
	const learns, tells = "would learn whatever the address of the appliance announces",
		"reject all that the nodes announce"
	for name, row := range map[string]struct {
		manifests string
		change    func(*Objects)
		want      []string // parts of the sentences, one each
	}{
		"as printed": {asPrinted, nil, nil},
		"as printed before": {
			filter("importV4: [{action: Reject}], exportV4: [{action: Reject, source: RemotePeers}]"), nil, nil,
		},
		"IPv6, as printed": {
			strings.Replace(asPrinted, "192.168.50.21", `"[fd00:50::21]:1790"`, 1), nil,
			nil,
		},
		"no node": {peer + filters, nil, nil},
		"a peer of somebody else": {strings.Replace(asPrinted, "192.168.50.21, asNumber: 65000, filters: [f, g]",
			"192.168.50.1, asNumber: 64999", 1), nil, nil},
		"no BGPConfiguration": {
			node + peer + filters, nil,
			[]string{"it does not exist, and Calico takes its own AS number, so the nodes are in AS 64512, and the " +
				"configuration of the appliance expects AS 65000"},
		},
		"only that of a node": {
			strings.Replace(asPrinted, "name: default", "name: node.w1", 1), nil,
			[]string{"it does not exist"},
		},
		"no BGPConfiguration, and meant": {node + peer + filters, func(o *Objects) { o.ASN = 64512 }, nil},
		"without asNumber": {
			strings.Replace(asPrinted, "asNumber: 65000", "logSeverityScreen: Info", 1),
			nil,
			[]string{"it has no asNumber"},
		},
		"another AS": {
			strings.Replace(asPrinted, "asNumber: 65000", "asNumber: 64999", 1), nil,
			[]string{"the nodes are in AS 64999", "see kubectl get bgpconfigurations.crd.projectcalico.org -o yaml"},
		},
		"BGPConfiguration not readable": {node + peer + filters, func(o *Objects) { o.NoConfigs = true }, nil},
		"every node has an AS of its own": {
			strings.Replace(node+peer+filters, "IPv4Address: 192.168.50.23/24", `ASNumber: "65001"`, 1), nil, nil,
		},
		"a peer expects another AS": {
			strings.Replace(asPrinted, "21, asNumber: 65000", "21, asNumber: 65001", 1), nil,
			[]string{
				"spec.asNumber is 65001, and the appliance is in AS 65000 (bgp.asn): its nodes reject the sessions " +
					"of the appliance; see kubectl get bgppeers.crd.projectcalico.org -o yaml",
			},
		},
		"a peer expects no AS number at all": {strings.Replace(asPrinted, "21, asNumber: 65000", "21, asNumber: six",
			1), nil, []string{"spec.asNumber is not an AS number"}},
		"no filter is named": {
			strings.Replace(asPrinted, ", filters: [f, g]", "", 1), nil,
			[]string{"it has no BGPFilter (spec.filters), so the nodes " + learns},
		},
		"the filter is gone": {
			node + asn + peer, nil,
			[]string{`BGPFilter "f" of spec.filters does not exist, so the nodes ` + learns},
		},
		"only the other filter is gone": {filter("importV4: [{action: Reject}]"), nil, nil},
		"filters not readable":          {node + asn + peer, func(o *Objects) { o.NoFilters = true }, nil},
		"it rejects the other family":   {filter("importV6: [{action: Reject}]"), nil, []string{learns}},
		"it accepts something first": {
			filter("importV4: [{action: Accept, matchOperator: In, cidr: 10.0.0.0/8}, {action: Reject}]"), nil,
			[]string{learns},
		},
		"it rejects something first": {
			filter("importV4: [{action: Reject, matchOperator: In, cidr: 10.0.0.0/8}, {action: Reject}]"), nil, nil,
		},
		"it rejects some prefixes": {
			filter("importV4: [{action: Reject, matchOperator: In, cidr: 10.0.0.0/8}]"),
			nil,
			[]string{learns},
		},
		"it rejects the default route": {
			filter("importV4: [{action: Reject, matchOperator: Equal, cidr: 0.0.0.0/0}]"), nil, []string{learns},
		},
		"it rejects some lengths": {
			filter("importV4: [{action: Reject, matchOperator: In, cidr: 0.0.0.0/0, prefixLength: {min: 8}}]"), nil,
			[]string{learns},
		},
		"it rejects from one interface": {
			filter("importV4: [{action: Reject, interface: eth9}]"), nil,
			[]string{learns},
		},
		"it has an unknown condition": {filter("importV4: [{action: Reject, moon: full}]"), nil, []string{learns}},
		"it has a prefix and no operator": {
			filter("importV4: [{action: Reject, cidr: 0.0.0.0/0}]"), nil,
			[]string{learns},
		},
		"its rules are no rules": {filter("importV4: [reject]"), nil, []string{learns}},
		"it rejects all exports": {
			filter("importV4: [{action: Reject}], exportV4: [{action: Reject}]"), nil,
			[]string{tells},
		},
		"it rejects all exports but some": {
			filter("importV4: [{action: Reject}], exportV4: [{action: Accept, matchOperator: In, cidr: " +
				"172.16.0.0/16}, {action: Reject}]"), nil, nil,
		},
		"it does the reverse": {
			filter("importV4: [{action: Accept}], exportV4: [{action: Reject}]"), nil,
			[]string{learns, tells},
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := objects(t, row.manifests)
			o.ASN, o.OwnASN, o.Group = 65000, 65000, V1
			if row.change != nil {
				row.change(&o)
			}
			_, odd := Topology(o)
			var got []string
			for _, one := range odd {
				got = append(got, one.String())
			}
			all := strings.Join(got, "\n")
			for _, want := range row.want {
				if !strings.Contains(all, want) {
					t.Errorf("want %q in\n%s", want, all)
				}
			}
			if len(row.want) == 0 && len(got) > 0 {
				t.Errorf("got %q, want nothing", got)
			}
		})
	}
}

func TestTwoGroupsThatAreMarkedAsReadyAreInDoubt(t *testing.T) {
	both := Presence{V1: true, V3: true, V3IsCRD: true, Ready1: true, Ready3: true}
	if got := both.Doubt(); !strings.Contains(got, "kubectl get clusterinformations") {
		t.Errorf("got %q, want a sentence with the command", got)
	}
	for name, p := range map[string]Presence{
		"v1 alone":             {V1: true, Ready1: true},
		"an aggregated server": {V1: true, V3: true},
		"moved":                {V1: true, V3: true, V3IsCRD: true, Ready3: true},
		"not yet moved":        {V1: true, V3: true, V3IsCRD: true, Ready1: true},
	} {
		if got := p.Doubt(); got != "" {
			t.Errorf("%s: got %q, want no doubt", name, got)
		}
	}
}
