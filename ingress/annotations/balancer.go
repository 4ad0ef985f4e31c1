package annotations

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

var (
	balancerAddress = define(ownAddresses, Doc{
		Name: own + "address", Scopes: Service, Traffic: anyTraffic,
		Format: "an address of `group.pools` or `haproxy.addresses`; or one IPv4 and one IPv6 address, with a comma",
		Effect: "Address of a Service of type LoadBalancer. It overrides `spec.loadBalancerIP`. Without both, the " +
			"appliance chooses an address.",
	})
	shareAddress = define(shareKey, Doc{
		Name: own + "share-address", Scopes: Service, Traffic: anyTraffic, Format: "up to 63 letters, digits and - _ .",
		Effect: "Services of type LoadBalancer of one namespace with the same value have one address, as far as they " +
			"have no port in common.",
	})
)

// A Balancer holds the keys of a Service of type LoadBalancer.
type Balancer struct {
	Addresses []netip.Addr // that it asks for, at most one of each family
	Share     string       // Services of one namespace with the same key share an address; "" if it shares none
}

// ReadBalancer reads the keys of a Service of type LoadBalancer. asked is its
// spec.loadBalancerIP.
func ReadBalancer(l Layer, asked string) (b Balancer, problems []Problem) {
	v := &values{layers: []Layer{l}}
	var said bool
	if b.Addresses, said = get(v, balancerAddress); !said && asked != "" {
		var err error
		if b.Addresses, err = ownAddresses(asked); err != nil {
			v.problems = append(v.problems, Problem{
				Scope: Service, Reason: "InvalidAddress",
				Why: fmt.Sprintf("spec.loadBalancerIP: %v; it is ignored", err),
			})
		}
	}
	b.Share, _ = get(v, shareAddress)
	return b, v.problems
}

// ownAddresses reads at most one address of each family.
func ownAddresses(s string) (all []netip.Addr, err error) {
	for word := range strings.SplitSeq(s, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(word))
		if err != nil || a.Zone() != "" || a.Is4In6() {
			return nil, fmt.Errorf("%s is not an address", Quote(strings.TrimSpace(word)))
		}
		if len(all) == 2 || len(all) == 1 && all[0].Is4() == a.Is4() {
			return nil,
				errors.New("it has more than one address of a family; allowed are one IPv4 and one IPv6 address")
		}
		all = append(all, a)
	}
	return all, nil
}

// shareKey reads the key of Services that share an address.
func shareKey(s string) (string, error) {
	if s == "" || len(s) > 63 || strings.ContainsFunc(s, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("-_.", c)
	}) {
		return "", fmt.Errorf("%s is not of up to 63 letters, digits and - _ .", Quote(s))
	}
	return s, nil
}

// SourceRanges reads the networks that may connect to a Service of type LoadBalancer
// (spec.loadBalancerSourceRanges). After an error, no client may connect.
func SourceRanges(env Env, ranges []string) ([]netip.Prefix, error) {
	if env.Entries > 0 && len(ranges) > env.Entries {
		return nil, fmt.Errorf("it has %d networks; allowed are %d (clusters[].ingress.limits.listEntries)",
			len(ranges), env.Entries)
	}
	return Networks(strings.Join(ranges, ","))
}
