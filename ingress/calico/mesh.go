package calico

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Apart returns the names of the nodes that have BGP sessions only with appliances, although their
// pods need BGP to reach the pods of other nodes. The reason is that the node-to-node mesh is off,
// and no BGPPeer connects such a node with another node, a reflector or a router. If a selector
// cannot be read, Apart assumes that it selects all nodes.
func Apart(o Objects) (apart []string) {
	var speaking []*corev1.Node
	for _, n := range o.Nodes {
		if n.Annotations[ipv4Annotation] != "" || n.Annotations[ipv6Annotation] != "" {
			speaking = append(speaking, n)
		}
	}
	if len(speaking) < 2 || meshed(o.Configs) || tunnelled(o.Pools) {
		return nil
	}
	ours := Appliances(o.Peers)
	for _, n := range speaking {
		connected := func(u *unstructured.Unstructured) bool {
			spec, other := specOf(u), text(specOf(u)["peerSelector"])
			if ip, ok := peerAddr(text(spec["peerIP"])); ok {
				_, named := ours[u.GetName()]
				return !named && !slices.Contains(o.Own, ip) && chooses(spec, n)
			}
			// Both ends of a peerSelector get a session (confd/pkg/backends/calico/client.go).
			return other != "" && slices.ContainsFunc(speaking, func(m *corev1.Node) bool {
				return m != n && (chooses(spec, n) && matches(other, m) || chooses(spec, m) && matches(other, n))
			})
		}
		if !slices.ContainsFunc(o.Peers, connected) {
			apart = append(apart, n.Name)
		}
	}
	slices.Sort(apart)
	return apart
}

// meshed reports whether every node has a session with every other node.
func meshed(configs []*unstructured.Unstructured) bool {
	spec, _ := defaultConfig(configs)
	on, set := spec["nodeToNodeMeshEnabled"].(bool)
	return on || !set // Calico's default
}

// tunnelled reports whether Felix makes the routes between nodes, without BGP: all pools
// are of VXLAN.
func tunnelled(pools []*unstructured.Unstructured) bool {
	return len(pools) > 0 && !slices.ContainsFunc(pools, func(u *unstructured.Unstructured) bool {
		mode := text(specOf(u)["vxlanMode"])
		return mode == "" || mode == "Never"
	})
}

// chooses reports whether a BGPPeer applies to a node.
func chooses(spec map[string]any, n *corev1.Node) bool {
	if node := text(spec["node"]); node != "" {
		return node == n.Name
	}
	return matches(text(spec["nodeSelector"]), n)
}

func matches(expression string, n *corev1.Node) bool {
	s, err := parseSelector(expression)
	return err != nil || s.match(n.Labels)
}
