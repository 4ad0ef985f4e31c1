package ingress

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"sallyport/ingress/annotations"
	"sallyport/ingress/claims"
	"sallyport/ingress/input"
)

// leadAsked finds the Service of each auth-url that names it by a path of a host (annotations.LeadOf).
// ingress-nginx sends such a question through itself. Here the Service is asked directly, so that the
// path has to lead to one Service, through an Ingress that changes nothing in the request.
func (b *builder) leadAsked() {
	asking := slices.DeleteFunc(slices.Clone(b.claims), func(c *claim) bool {
		_, _, is := annotations.LeadOf(c.Layer)
		return !is
	})
	if len(asking) == 0 {
		return
	}
	at := make(map[string]*claims.HostPaths) // by host
	paths := func(host string) *claims.HostPaths {
		if at[host] == nil {
			at[host] = claims.PathsOf(host)
		}
		return at[host]
	}
	for _, c := range b.claims { // the older first
		if c.Canary || c.Route != nil {
			continue
		}
		for _, host := range c.Hosts {
			paths(host)
		}
		for _, p := range c.Paths {
			paths(p.Host).Add(c, p)
		}
	}
	for _, c := range asking {
		host, path, _ := annotations.LeadOf(c.Layer)
		hosts, own := []string{host}, host == "" || slices.Contains(c.Hosts, host)
		if host == "" {
			hosts = c.Hosts
		}
		var leads []annotations.Lead
		for _, host := range hosts {
			if lead := b.leadAt(at, c, host, path, own); !slices.Contains(leads, lead) {
				leads = append(leads, lead)
			}
		}
		switch {
		case len(leads) == 1:
			c.Lead = leads[0]
		case len(leads) > 1:
			c.Lead.Why = fmt.Sprintf("path %s leads to different Services on the hosts of the Ingress, or to none: "+
				"name the Service (svc://)", annotations.Quote(path))
		}
	}
}

// leadAt returns the Service that a path of a host leads to. own reports whether the host is one of the
// Ingress that asks. Then a path that matches everything does not count: it may lead to an application that
// answers 200 to everything, while the Ingress of the path is missing. For the same reason, and because another
// namespace may take a host that nobody names, a rule for any host does not count for another host.
func (b *builder) leadAt(
	at map[string]*claims.HostPaths, by *claim, host, path string, own bool,
) (lead annotations.Lead) {
	name := cmp.Or(host, "any host")
	if !own && at[host] == nil { // as a request for the host
		_, parent, _ := strings.Cut(host, ".")
		host = "*." + parent
	}
	found, to := at[host].Find(path)
	switch {
	case found == nil:
		lead.Why = fmt.Sprintf("no Ingress here serves path %s of %s: name the Service (svc://)",
			annotations.Quote(path), name)
		return lead
	case own && to.Matches("/any-other-path"):
		lead.Why = fmt.Sprintf("no Ingress here serves path %s of %s, but for %s, which serves every path: name the "+
			"Service (svc://)", annotations.Quote(path), name, b.spell(found))
		return lead
	}
	service, _ := input.Find(b.worlds[found.World].Services, to.To.Service)
	if as := annotations.Alters(found.Layer); as != "" {
		lead.Why = fmt.Sprintf("%s serves path %s of %s with %s, and the Service would be asked without it: name the "+
			"Service (svc://)", b.spell(found), annotations.Quote(path), name, as)
		return lead
	}
	if found.World != by.World || annotations.Conditional(b.memory.Layer(service)) {
		lead.Why = fmt.Sprintf("%s serves path %s of %s, in another cluster or with a condition: name a Service "+
			"(svc://)",
			b.spell(found), annotations.Quote(path), name)
		return lead
	}
	lead.To = annotations.ServicePort{
		Service: annotations.Ref{Namespace: to.To.Service.Namespace, Name: to.To.Service.Name}, Port: to.To.PortText(),
	}
	return lead
}
