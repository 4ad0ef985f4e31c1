package ingress

import (
	"fmt"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/claims"
	"sallyport/ingress/endpoint"
	"sallyport/ingress/input"
)

// part builds the backend of a need out of the EndpointSlices of its Service.
func (c *Compiler) part(n need) part {
	c.made.parts++
	w := c.worlds[n.world]
	if n.named {
		n.origin = c.spellRef(n.by) + n.origin
	}
	backend := &haproxy.Backend{
		Name: n.name, Origin: n.origin + "Service " + n.Service.String() + " port " + n.PortText(),
		Cluster: w.Cluster, Namespace: n.Service.Namespace, Service: n.Service.String() + ":" + n.PortText(),
		TCP:        n.Traffic != annotations.Requests && n.Traffic != claims.Checks,
		Directives: n.settings.Directives, Options: n.settings.Options,
	}
	if n.Traffic == claims.Checks {
		backend.By = n.by.Namespace // the Service may be of another
	}
	if n.Service.Name == "" { // it redirects
		backend.Origin, backend.Service = n.origin, ""
	}
	if w.keys.Prefix != "" {
		backend.Origin = "cluster " + w.Cluster + ", " + backend.Origin
	}
	p := part{backend: backend}
	if len(c.verdicts) > 0 {
		c.close(&p, n)
	}
	if n.spare != (reference{}) {
		of := haproxy.Server{Source: w.Options.Source, Backup: true}
		p.addServers(w, &need{world: n.world, reference: n.spare}, of)
		backend.Servers = endpoint.Merge(backend.Servers)
	}
	if !n.exists {
		return p
	}
	backend.Set = n.set
	p.addServers(w, &n, haproxy.Server{
		Source: w.Options.Source, Backup: n.set != "" && w.Options.InSet.Standby,
	})
	if n.set != "" {
		c.addGuests(&p, &n)
	}
	backend.Servers = endpoint.Merge(backend.Servers)
	return p
}

// addServers adds a server for each endpoint that a world has for a need. The servers are like of.
func (p *part) addServers(w *world, n *need, of haproxy.Server) {
	list := input.SlicesOf(w.Slices, n.Service)
	servers, faults := endpoint.Servers(list, n.Port, of)
	if b := p.backend; b.Set != "" && w.Options.InSet.CountUnready {
		if b.Unready == nil {
			b.Unready = make(map[string]int)
		}
		b.Unready[w.Cluster] = endpoint.Unready(list, n.Port)
	}
	p.backend.Servers = append(p.backend.Servers, servers...)
	for _, f := range faults {
		p.problems = append(p.problems, Problem{ObjectRef: n.ref(w.Cluster), Reason: f.Reason, Why: f.Why})
	}
}

// close closes a backend that HAProxy refuses.
func (c *Compiler) close(p *part, n need) {
	part := p.backend.Part()
	why := c.verdicts[part].Why
	if why == "" {
		return
	}
	p.refused = &part
	p.backend.Directives, p.backend.Options = []haproxy.Directive{haproxy.Close()}, haproxy.ServerOptions{}
	if p.backend.TCP {
		p.backend.Directives[0] = haproxy.CloseTCP()
	}
	on := n.ref(c.worlds[n.world].Cluster)
	if by := n.settings.By; by != nil {
		on = by.Ref
	}
	p.problems = append(p.problems, Problem{
		ObjectRef: on, Reason: "RefusedByHAProxy",
		Why: fmt.Sprintf("HAProxy cannot start with the configuration of %s: %s; all clients are rejected until it "+
			"is changed", p.backend.Origin, why),
	})
}
