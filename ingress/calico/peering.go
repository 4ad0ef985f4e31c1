package calico

import (
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sallyport/routes"
)

// examine reports mistakes in the cluster's objects about the sessions with the appliance: another
// AS, nodes that learn, nodes that announce nothing.
func (r *reader) examine(o Objects, t routes.Topology, peers []peer) {
	inIt := func(n routes.Node) bool { return n.ASN == t.ASN }
	if !o.NoConfigs && o.ASN != 0 && o.ASN != t.ASN && slices.ContainsFunc(t.Nodes, inIt) {
		r.complain("BGPConfiguration", "default",
			"%s, so the nodes are in AS %d, and the configuration of the appliance expects AS %d "+
				"(clusters[].bgp.asn, or else bgp.asn): correct the one that is wrong; %s",
			origin(o.Configs), t.ASN, o.ASN, show(o.Group, "bgpconfigurations"))
	}
	for _, p := range peers {
		if p.asn != 0 && o.OwnASN != 0 && p.asn != o.OwnASN {
			r.complain("BGPPeer", p.name,
				"spec.asNumber is %d, and the appliance is in AS %d (bgp.asn): its nodes reject the sessions of the "+
					"appliance; %s",
				p.asn, o.OwnASN, show(o.Group, "bgppeers"))
		}
		if o.NoFilters {
			continue
		}
		in, out := "importV4", "exportV4"
		if p.addr.Is6() {
			in, out = "importV6", "exportV6"
		}
		if !rejectsAll(o.Filters, p.filters, in) {
			r.complain("BGPPeer", p.name,
				"%s, so the nodes would learn whatever the address of the appliance announces: apply what `sallyport "+
					"manifests` prints; %s",
				unprotected(o.Filters, p.filters, in), show(o.Group, "bgpfilters"))
		}
		if rejectsAll(o.Filters, p.filters, out) {
			r.complain("BGPPeer", p.name,
				"its BGPFilters reject all that the nodes announce to the appliance (%s), so no pod gets a route: "+
					"apply what `sallyport manifests` prints; %s",
				out, show(o.Group, "bgpfilters"))
		}
	}
}

// origin says where the AS number of a cluster comes from.
func origin(configs []*unstructured.Unstructured) string {
	spec, exists := defaultConfig(configs)
	if !exists {
		return "it does not exist, and Calico takes its own AS number"
	}
	if _, there := spec["asNumber"]; !there {
		return "it has no asNumber, and Calico takes its own"
	}
	return "it gives the AS number"
}

// show returns the command that shows the objects of a kind. It has no name out of the
// cluster, which somebody might paste into a shell.
func show(group, plural string) string {
	return "see kubectl get " + strings.TrimSuffix(plural+"."+GroupName(group), ".") + " -o yaml"
}

// unprotected says why no filter rejects everything that nodes import.
func unprotected(filters []*unstructured.Unstructured, names []string, direction string) string {
	for _, name := range names {
		if filterOf(filters, name) == nil {
			return "BGPFilter " + quote(name) + " of spec.filters does not exist"
		}
	}
	if len(names) == 0 {
		return "it has no BGPFilter (spec.filters)"
	}
	return "its BGPFilters do not reject everything (" + direction + ")"
}

func filterOf(filters []*unstructured.Unstructured, name string) *unstructured.Unstructured {
	i := slices.IndexFunc(filters, func(u *unstructured.Unstructured) bool { return u.GetName() == name })
	if i < 0 {
		return nil
	}
	return filters[i]
}

// rejectsAll reports whether filters of these names accept no route. The first rule that matches a
// route decides; Calico ignores filters that do not exist, and accepts a route that no rule matches
// (confd/etc/calico/confd/templates/bird.cfg.template).
func rejectsAll(filters []*unstructured.Unstructured, names []string, direction string) bool {
	for _, name := range names {
		u := filterOf(filters, name)
		if u == nil {
			continue
		}
		rules, _ := specOf(u)[direction].([]any)
		for _, rule := range rules {
			fields, _ := rule.(map[string]any)
			if text(fields["action"]) != "Reject" {
				return false
			}
			if matchesAll(fields) {
				return true
			}
		}
	}
	return false
}

// matchesAll reports whether a rule of a BGPFilter matches every route of its family. A
// condition that is not known here may not.
func matchesAll(rule map[string]any) bool {
	for field := range rule {
		switch field {
		case "action", "cidr", "matchOperator":
		default:
			return false
		}
	}
	cidr := text(rule["cidr"])
	if cidr == "" {
		return rule["cidr"] == nil && rule["matchOperator"] == nil
	}
	p, err := netip.ParsePrefix(cidr)
	return err == nil && p.Bits() == 0 && text(rule["matchOperator"]) == "In"
}
