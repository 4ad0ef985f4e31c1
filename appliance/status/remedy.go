package status

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sallyport/bgp"
)

// remedies hold the remedy for the loss of a session, by words in the reason. The words are GoBGP's
// names of a NOTIFICATION (RFC 4271, 6; RFC 4486), or those of package bgp.
var remedies = []struct{ word, remedy string }{
	{"bad peer as", "the node or the appliance is in another AS than the other side expects: compare bgp.asn, the " +
		"BGPConfiguration, and the BGPPeer's asNumber"},
	{"bad bgp identifier", "two speakers have the same router id: choose another bgp.routerID"},
	{"peer deconfigured", "the node has no BGPPeer for this appliance any more: apply what `sallyport " +
		"manifests` prints"},
	{"connection rejected", "the node has no BGPPeer for this address: apply what `sallyport manifests` prints"},
	{"administrative shutdown", "BIRD was stopped there: look at calico-node on that node"},
	{"more prefixes", "raise clusters[].bgp.prefixLimit, if the node announces what it should"},
	{"hold", "look whether the node is up, and whether a firewall drops port 179: `sallyport doctor` says in " +
		"which direction"},
	{"tcp connection ended", "calico-node was restarted or ended: look at its pod"},
}

func RemedyOf(reason string) string {
	for _, r := range remedies {
		if strings.Contains(strings.ToLower(reason), r.word) {
			return r.remedy
		}
	}
	return "look at calico-node on that node"
}

// ended returns how the last session with a peer ended, and a remedy. It returns "" if the peer has
// not had a session.
func ended(p bgp.PeerState) string {
	switch reason := p.LossReason; {
	case reason == "" && p.LastLoss.Cause == "":
		return ""
	case reason == "":
		return fmt.Sprintf("the last session ended: %s", p.LastLoss.Cause)
	case p.Upstream:
		return "the last session ended: " + reason
	default:
		return fmt.Sprintf("the last session ended: %s; %s", reason, RemedyOf(reason))
	}
}

// ExportPool returns the command that lets nodes announce the blocks of an IP pool.
func ExportPool(apiGroup, pool string) string {
	return fmt.Sprintf("kubectl patch ippools.%s %s --type merge -p '{\"spec\":{\"disableBGPExport\":false}}'",
		GroupName(apiGroup), pool)
}

// GroupName returns the name of an API group without its version.
func GroupName(group string) string {
	name, _, _ := strings.Cut(group, "/")
	return name
}

// An Idle is a reason for which servers take no traffic.
type Idle struct {
	Why     string
	Servers []netip.AddrPort
}

// Idle returns the reasons for which servers take no traffic. Reasons that differ only in the
// server's address, or in its node, count as the same reason.
func (s *Status) Idle() (all []Idle) {
	of := map[string]int{}
	nodes := map[string][]string{} // pairs for a Replacer: each way to name the node, and "" instead
	for _, p := range s.Peers {
		if p.Node != "" {
			nodes[p.Node] = append(nodes[p.Node], "node "+p.Node+" ", "", "("+p.Addr.String()+")", "")
		}
	}
	for _, b := range s.Backends {
		for _, x := range b.Servers {
			if x.Serves() || x.Why == "" {
				continue
			}
			a := x.Addr.Addr().String()
			// not in the prefix of a block
			kind := strings.NewReplacer(append([]string{a + ":", "", a + " ", ""}, nodes[x.Node]...)...).Replace(x.Why)
			i, known := of[kind]
			if !known {
				i = len(all)
				of[kind], all = i, append(all, Idle{Why: x.Why})
			}
			if !slices.Contains(all[i].Servers, x.Addr) {
				all[i].Servers = append(all[i].Servers, x.Addr)
			}
		}
	}
	return all
}
