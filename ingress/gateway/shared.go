package gateway

import (
	"fmt"
	"slices"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// A SharedHost is a hostname of a route at the addresses of Ingresses.
type SharedHost struct {
	Host    string // "*.name" stands for one label in front of the name there
	Gateway *Gateway
	Plain   bool        // requests without TLS are served
	TLS     []*Listener // that serve requests over TLS
}

// SharedHosts returns the hostnames of a route at Gateways that share the addresses of Ingresses, each
// hostname once. A hostname with neither Plain nor TLS has no listener that serves requests.
func (r *Route) SharedHosts() (all []SharedHost) {
	found := make(map[string]int) // the place of a host in all
	for _, l := range r.Listeners() {
		if !l.Gateway.Shared {
			continue
		}
		for _, host := range r.HostsAt(l) {
			if l.Gateway.owners[l.Port].Of(host) != l {
				continue
			}
			i, is := found[host]
			if !is {
				i, all = len(all), append(all, SharedHost{Host: host, Gateway: l.Gateway})
				found[host] = i
			}
			switch {
			case !l.Serves():
			case l.Protocol == gatewayv1.HTTPSProtocolType:
				all[i].TLS = append(all[i].TLS, l)
			default:
				all[i].Plain = true
			}
		}
	}
	return all
}

// Withdraw says why a route has no hosts at the addresses of Ingresses, and removes the route from the
// listeners there.
func (a *Attachment) Withdraw(r *Route, why Refusal) {
	for _, p := range r.parents {
		if !p.gateway.Shared || len(p.on) == 0 {
			continue
		}
		for _, l := range p.on {
			a.leave(r, l)
			delete(r.at, l)
		}
		p.on, p.refused = nil, &why
	}
}

// unshared returns why a route cannot be served at the addresses of Ingresses, in a sentence. A
// path of a host has at most two backends there, and one for the requests that meet a condition.
func (r *Route) unshared() string {
	var all []string
	for _, rule := range r.Rules {
		weighted := 0
		for _, ref := range rule.Refs {
			if ref.Weight > 0 {
				weighted++
			}
		}
		narrow := rule.Conditions() > 0
		switch {
		case weighted > 2:
			all = append(all, fmt.Sprintf("rule %d has more than two backendRefs with a weight", rule.Index))
		case narrow && weighted > 1:
			all = append(all, fmt.Sprintf("rule %d looks at more than the path, and has more than one backendRef with "+
				"a weight", rule.Index))
		case narrow && slices.ContainsFunc(rule.Filters, toTLS):
			all = append(all, fmt.Sprintf("rule %d looks at more than the path, and redirects to https", rule.Index))
		}
	}
	if len(all) == 0 {
		return ""
	}
	return "the Gateway shares the addresses of Ingresses, where this route cannot be served: " +
		strings.Join(all, "; ")
}

// toTLS reports whether a filter redirects to https.
func toTLS(f gatewayv1.HTTPRouteFilter) bool {
	return f.RequestRedirect != nil && value(f.RequestRedirect.Scheme, "") == "https"
}

// Conditions returns how many matches of a rule look at more than the path.
func (r *Rule) Conditions() (n int) {
	for i := range r.Matches {
		if !r.Matches[i].Bare() {
			n++
		}
	}
	return n
}

// noteWildcards says that wildcard hostnames stand for one label at the addresses of Ingresses.
func (r *Route) noteWildcards(hosts []string) {
	for _, host := range hosts {
		if strings.HasPrefix(host, "*") {
			r.Note(fmt.Sprintf("hostname %s: at the addresses of Ingresses, which the Gateway shares, it stands for "+
				"one label in front of %s, and not for several", host, strings.TrimPrefix(host, "*.")))
		}
	}
}
