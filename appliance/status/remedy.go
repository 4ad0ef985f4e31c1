package status

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sallyport/bgp"
)

// NewCertificate and Reload are the remedy for a certificate of the status endpoint that expires soon,
// and its command.
const (
	NewCertificate = "put a new one into the file of status.tls.certificate, and its key into that of " +
		"status.tls.key, then reload sallyport"
	Reload = "systemctl reload sallyport"
)

// GiveSource is the remedy for a machine without an address in the source of a cluster.
const GiveSource = "give the machine an address there, or correct clusters[].source"

// MoreRights is the remedy for a hint that the appliance could serve more.
const MoreRights = "apply the manifests if Gateways are to be served; clusters[].gateway.enabled: false ends this hint"

// Manifests returns the command that gives the appliance its rights in the cluster.
func Manifests(path string) string {
	return "sallyport manifests --config " + path + " | kubectl apply -f -"
}

// remedies holds the remedy for the loss of a session with a node.
var remedies = map[bgp.LossCode]string{
	bgp.BadPeerAS: "the node or the appliance is in another AS than the other side expects: compare bgp.asn, the " +
		"BGPConfiguration, and the BGPPeer's asNumber",
	bgp.BadIdentifier:      "two speakers have the same router id: choose another bgp.routerID",
	bgp.PeerDeconfigured:   "the node has no BGPPeer for this appliance any more",
	bgp.ConnectionRejected: "the node has no BGPPeer for this address",
	bgp.Shutdown:           "BIRD was stopped there: look at calico-node on that node",
	bgp.PrefixLimit:        "raise clusters[].bgp.prefixLimit, if the node announces what it should",
	bgp.NoHoldTime:         "look for a hold time of 0 in the configuration of BIRD on that node",
	bgp.HoldTimeExpired: "look whether the node is up, and whether a firewall drops port 179: `sallyport doctor` " +
		"says in which direction",
	bgp.ConnectionEnded: "calico-node was restarted or ended: look at its pod",
}

// byManifests holds the losses that the manifests of the appliance mend.
var byManifests = []bgp.LossCode{bgp.PeerDeconfigured, bgp.ConnectionRejected}

// RemedyOf returns the remedy for the loss of a session with a node, and whether it is to apply the
// manifests.
func RemedyOf(loss bgp.LossCode) (remedy string, manifests bool) {
	if slices.Contains(byManifests, loss) {
		return remedies[loss] + ": apply what `sallyport manifests` prints", true
	}
	return cmp.Or(remedies[loss], "look at calico-node on that node"), false
}

// ended returns how the last session with a peer ended, and the remedy for a session with a node. how is
// "" if the peer has not had a session.
func ended(p bgp.PeerState) (how, remedy string) {
	reason := cmp.Or(p.LossReason, string(p.LastLoss.Cause))
	if reason == "" {
		return "", ""
	}
	if p.LossReason != "" && !p.Upstream {
		remedy, _ = RemedyOf(p.LossCode)
	}
	return "the last session ended: " + reason, remedy
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
	Reason  Code
	Why     string // of the first server
	Servers []netip.AddrPort
}

// Idle returns the reasons for which servers take no traffic. Reasons with the same code and the
// same detail count as the same reason.
func (s *Status) Idle() (all []Idle) {
	type kind struct {
		reason Code
		detail string
	}
	of := map[kind]int{}
	for _, b := range s.Backends {
		for _, x := range b.Servers {
			if x.Serves() || x.Why == "" {
				continue
			}
			k := kind{x.Reason, x.Detail}
			if k.reason == "" { // an appliance of an earlier version has only sentences
				k.detail = x.Why
			}
			i, known := of[k]
			if !known {
				i = len(all)
				of[k], all = i, append(all, Idle{Reason: x.Reason, Why: x.Why})
			}
			if !slices.Contains(all[i].Servers, x.Addr) {
				all[i].Servers = append(all[i].Servers, x.Addr)
			}
		}
	}
	return all
}
