package calico

import (
	"slices"
	"strings"
	"testing"
)

func TestNodesWithoutSessionsOfTheirOwnAreApart(t *testing.T) {
	const (
		nodes = `{kind: Node, metadata: {name: b, labels: {rack: "1"}, annotations: {projectcalico.org/IPv4Address: 192.168.50.23/24}}}
---
{kind: Node, metadata: {name: a, labels: {reflects: "true"}, annotations: {projectcalico.org/IPv4Address: 192.168.50.22/24}}}
---
{kind: Node, metadata: {name: mute}}`
		off    = "\n---\n{kind: BGPConfiguration, metadata: {name: default}, spec: {nodeToNodeMeshEnabled: false}}"
		pool   = "\n---\n{kind: IPPool, metadata: {name: p}, spec: {cidr: 172.16.0.0/16, vxlanMode: Never}}"
		tunnel = "\n---\n{kind: IPPool, metadata: {name: q}, spec: {cidr: 172.17.0.0/16, vxlanMode: CrossSubnet}}"
		us     = "\n---\n{kind: BGPPeer, metadata: {name: any}, spec: {peerIP: 192.168.50.21, asNumber: 65000}}"
		member = "\n---\n" +
			"{kind: BGPPeer, metadata: {name: sallyport-192-168-50-12}, spec: {peerIP: 192.168.50.12, asNumber: 65000}}"
	)
	peer := func(spec string) string {
		return "\n---\n{kind: BGPPeer, metadata: {name: other}, spec: {" + spec + "}}"
	}
	for name, row := range map[string]struct {
		manifests string
		want      []string
	}{
		"the mesh is off, and appliances are all":  {nodes + off + pool + us + member, []string{"a", "b"}},
		"nobody says, so it is on":                 {nodes + pool, nil},
		"the configuration of one node is another": {nodes + strings.Replace(off, "default", "node.a", 1), nil},
		"only one node speaks BGP":                 {strings.Replace(nodes, "192.168.50.22/24", "", 1) + off, nil},
		"all pools are tunnels":                    {nodes + off + tunnel, nil},
		"some pools are tunnels":                   {nodes + off + tunnel + pool, []string{"a", "b"}},
		"each node has a router":                   {nodes + off + peer("peerIP: 192.168.50.1, asNumber: 64999"), nil},
		"one rack has a router": {nodes + off +
			peer("peerIP: '192.168.50.1:179', nodeSelector: rack == '1'"), []string{"a"}},
		"one node has a router":     {nodes + off + peer("peerIP: 192.168.50.1, node: a"), []string{"b"}},
		"a reflector of all":        {nodes + off + peer("nodeSelector: all(), peerSelector: has(reflects)"), nil},
		"the reflector's end alone": {nodes + off + peer("nodeSelector: has(reflects), peerSelector: all()"), nil},
		"a reflector that no node is": {
			nodes + off + peer("nodeSelector: all(), peerSelector: has(moon)"),
			[]string{"a", "b"},
		},
		"a reflector of itself": {
			nodes + off + peer("nodeSelector: has(reflects), peerSelector: has(reflects)"), []string{"a", "b"},
		},
		"a selector that cannot be read": {nodes + off + peer("peerSelector: 'has('"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Apart(objects(t, row.manifests)); !slices.Equal(got, row.want) {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}
