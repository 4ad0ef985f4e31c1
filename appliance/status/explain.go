package status

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"sallyport/appliance/config"
	"sallyport/appliance/group"
	"sallyport/bgp"
	"sallyport/haproxy"
	"sallyport/ingress"
)

// ExplainStatus is the answer of GET /explain for an Ingress, a Service of type LoadBalancer or a
// request: the rules or addresses, and the servers of their backends.
type ExplainStatus struct {
	Request string `json:"request,omitempty"` // host and path that were asked for
	Why     string `json:"why,omitempty"`     // how HAProxy answers the request, if no rule matches it
	ingress.Explanation
	Service   *ServiceStatus         `json:"service,omitempty"`   // of that name and type LoadBalancer
	Gateway   *ingress.GatewayReport `json:"gateway,omitempty"`   // if the object is a Gateway
	Addresses []AddressStatus        `json:"addresses,omitempty"` // of the Service or Gateway
	Servers   []BackendStatus        `json:"servers"`             // of the Explanation's Backends
	Now       time.Time              `json:"now"`
	Waits     []haproxy.Wait         `json:"waits,omitempty"` // for a reload that changes some of the Backends
}

// AddressStatus is the answer of GET /explain for an address: a Fact for each part on the way to
// it, from the cluster's records to HAProxy.
type AddressStatus struct {
	Address netip.Addr `json:"address"`
	Facts   []Fact     `json:"facts"`
}

// A Fact is the state of one part on the way to an address.
type Fact struct {
	// pool, block, pod, node, peer, offer, route, kernel, server; of a service address: pool,
	// Service, network, machine, BGP, VRRP, port
	Part string `json:"part"`
	OK   bool   `json:"ok"` // traffic passes here
	Saw  string `json:"saw"`
}

// Explain answers GET /explain. It takes one of
//
//	ingress=NAMESPACE/NAME   how the Ingress or Service is served; with cluster=NAME in that cluster
//	object=KIND/NAMESPACE/NAME
//	                         how the object of Gateway API is served; with cluster=NAME in that cluster
//	request=HOST/PATH        which rule takes the request; no host: "/PATH"; with to=ADDRESS:PORT at
//	                         the listener of a Gateway, with method=METHOD and header=LINE
//	address=ADDRESS          what there is of the address of a pod or node, or a service address
//	complete=TEXT            how the NAMESPACE/NAME of an Ingress or Service, or the KIND/NAMESPACE/NAME
//	                         of an object of Gateway API, may go on after TEXT; with cluster=NAME in
//	                         that cluster
func (x *Index) Explain(what url.Values) (any, error) {
	switch {
	case what.Has("complete"):
		return x.View.complete(what.Get("complete"), what.Get("cluster")), nil
	case what.Get("address") != "":
		addr, err := netip.ParseAddr(what.Get("address"))
		if err != nil {
			return nil, fmt.Errorf("%q is not an IP address", what.Get("address"))
		}
		if s, ours := x.explainServed(addr.Unmap()); ours {
			return s, nil
		}
		return x.explainAddress(addr.Unmap()), nil
	case what.Get("object") != "":
		return x.explainObject(what.Get("object"), what.Get("cluster"))
	case what.Get("request") != "" && what.Get("to") != "":
		return x.explainAt(what.Get("request"), what.Get("to"), what.Get("method"), what["header"])
	case what.Get("request") != "":
		host, path, _ := strings.Cut(what.Get("request"), "/")
		e, why := x.View.Compiled.ExplainRequest(host, "/"+path)
		if why != "" && len(x.View.Compiled.Config.Listeners) > 0 {
			why += "; a Gateway has an address of its own: for one of its requests, add --to ADDRESS"
		}
		s := x.explained(e)
		s.Request, s.Why = host+"/"+path, why
		return s, nil
	}
	namespace, name, _ := strings.Cut(what.Get("ingress"), "/")
	for _, c := range x.View.Clusters {
		if cluster := what.Get("cluster"); cluster != "" && cluster != c.Name {
			continue
		}
		e, is := x.View.Compiled.Explain(c.Name, namespace, name)
		b, of, too := x.View.Compiled.ExplainBalancer(c.Name, namespace, name)
		if !is && !too {
			continue
		}
		s := ExplainStatus{Explanation: e}
		if too {
			if s.Service = &ServiceStatuses([]ingress.Balancer{b})[0]; !is {
				s.Ingress = of.Ingress
			}
			s.Backends, s.Problems = append(s.Backends, of.Backends...), append(s.Problems, of.Problems...)
			for _, a := range b.Addresses {
				one, _ := x.explainServed(a)
				s.Addresses = append(s.Addresses, one)
			}
		}
		s.Servers, s.Now, s.Waits = x.serversOf(s.Explanation), x.View.At, x.waitsOf(s.Explanation)
		return s, nil
	}
	return nil,
		errors.New("no Ingress of that name is served here, and no Service of type LoadBalancer: does it exist, and " +
			"does its class name this controller?")
}

// explainServed describes an address that clients connect to: one of the group, or of its pools. It
// returns false for any other address.
func (x *Index) explainServed(a netip.Addr) (s AddressStatus, ours bool) {
	s.Address = a
	fact := func(part string, ok bool, format string, args ...any) {
		s.Facts = append(s.Facts, Fact{part, ok, fmt.Sprintf(format, args...)})
	}
	g := &x.View.Settings.Config.Group
	pools, key := x.View.Settings.Config.Pools(), "haproxy.addresses"
	if g.Exists() {
		key = "group.pools"
	}
	pool := slices.IndexFunc(pools, func(p config.Pool) bool { return p.Contains(a) })
	switch {
	case slices.Contains(g.Addresses, a):
		fact("pool", true, "none: it is a service address of group %s (group.addresses)", g.Name)
	case pool >= 0:
		fact("pool", true, "%s (%s[%d])", pools[pool], key, pool)
	default:
		return s, false
	}
	var of []ingress.Balancer
	for _, b := range x.View.Compiled.Balancers {
		if i := slices.Index(b.Addresses, a); i >= 0 {
			of = append(of, b)
			fact(b.Kind, slices.Contains(b.Recorded, a), "%s/%s of cluster %s: %s", b.Namespace, b.Name, b.Cluster,
				b.Reasons[i])
		}
	}
	for _, t := range x.View.Troubles {
		if t.Subject == a.String() {
			fact("network", false, "%s", t.Sentence())
		}
	}
	switch use, used := x.View.Used[a]; {
	case use.Bars(0):
		fact("network", false, "it is %s, and no Service gets it", use.By)
	case used:
		fact("network", len(of) > 0, "it is %s, and only Services of earlier clusters get it", use.By)
	case pool >= 0 && len(of) == 0:
		fact("Service", false, "no Service has it, nor is to get it")
	}
	if x.View.Group == nil || pool >= 0 && len(of) == 0 {
		return s, true
	}
	x.View.announcedAs(a, fact)
	for _, b := range of {
		_, e, _ := x.View.Compiled.ExplainBalancer(b.Cluster, b.Namespace, b.Name)
		to := map[string]BackendStatus{}
		for _, backend := range x.serversOf(e) {
			to[backend.Name] = backend
		}
		for _, stream := range b.Streams(x.View.Config) {
			if backend := to[stream.Backend]; stream.Addr == a {
				fact("port", backend.Open > 0, "%d leads to backend %s: %d of %d servers open", stream.Port,
					stream.Backend, backend.Open, len(backend.Servers))
			}
		}
		if b.Why != "" {
			fact(b.Kind, false, "%s/%s: %s", b.Namespace, b.Name, b.Why)
		}
	}
	return s, true
}

// announcedAs reports who sends clients of a service address to this appliance.
func (v *View) announcedAs(a netip.Addr, fact func(part string, ok bool, format string, args ...any)) {
	g := v.Group
	i := slices.IndexFunc(g.Addresses, func(of AddressOfGroup) bool { return of.Address == a })
	if i < 0 || !g.Addresses[i].Held {
		fact("machine", false, "this machine does not have it on lo, so it is served by other members at most")
		return
	}
	of := g.Addresses[i]
	fact("machine", g.Class == group.Full, "it is on lo, and this appliance is %s%s", g.Class, prefixed(": ", g.Why))
	for _, way := range Ways(&v.Settings.Config.Group) {
		f := way.Fact(g, of)
		fact(f.Part, f.OK, "%s", f.Saw)
	}
}

// completed bounds the names that one completion offers.
const completed = 1000

// complete returns the names of Ingresses, of Services of type LoadBalancer, and of objects of Gateway
// API, that begin with a text. A name that has another slash after the text ends there.
func (v *View) complete(text, cluster string) []string {
	names := map[string]bool{}
	addName := func(of, name string) {
		if cluster != "" && of != cluster || !strings.HasPrefix(name, text) {
			return
		}
		if end := strings.Index(name[len(text):], "/"); end >= 0 {
			name = name[:len(text)+end+1]
		}
		names[name] = true
	}
	add := func(o ingress.ObjectRef) { addName(o.Cluster, o.Namespace+"/"+o.Name) }
	for _, o := range v.Compiled.Served {
		if o.Kind == "Ingress" {
			add(o)
		}
	}
	for _, p := range v.Problems {
		if p.Kind == "Ingress" {
			add(p.ObjectRef)
		}
	}
	for _, b := range v.Compiled.Balancers {
		if b.Kind == "Service" {
			add(b.ObjectRef)
		}
	}
	v.apiNames(addName)
	all := slices.Sorted(maps.Keys(names))
	if len(all) == 0 {
		return []string{}
	}
	return all[:min(len(all), completed)]
}

// waitsOf returns the tenants that wait for a reload that changes some backends of an Explanation.
func (x *Index) waitsOf(e ingress.Explanation) (all []haproxy.Wait) {
	for _, w := range x.View.Waits {
		if slices.ContainsFunc(e.Backends, func(b ingress.ExplainedBackend) bool {
			return slices.Contains(w.Backends, b.Name)
		}) {
			all = append(all, w)
		}
	}
	return all
}

// serversOf describes the backends of an Explanation.
func (x *Index) serversOf(e ingress.Explanation) []BackendStatus {
	named := map[string]bool{}
	for _, b := range e.Backends {
		named[b.Name] = true
	}
	return x.backendsOf(func(name string) bool { return named[name] })
}

// explainAddress describes everything that is known about an address.
func (x *Index) explainAddress(a netip.Addr) AddressStatus {
	s := AddressStatus{Address: a}
	fact := func(part string, ok bool, format string, args ...any) {
		s.Facts = append(s.Facts, Fact{part, ok, fmt.Sprintf(format, args...)})
	}
	peers := make(map[netip.Addr]bgp.PeerState, len(x.View.BGP.Peers))
	for _, p := range x.View.BGP.Peers {
		peers[p.Addr] = p
	}
	for _, c := range x.View.Clusters {
		for _, p := range c.Topology.Pools {
			if p.CIDR.Contains(a) {
				fact("pool", !p.NoExport, "IP pool %s (%s) of cluster %s%s", p.Name, p.CIDR, c.Name,
					Either(p.NoExport, ": no node announces its blocks, because it has disableBGPExport", ""))
			}
		}
		for _, b := range c.Topology.Blocks {
			if !b.Prefix.Contains(a) {
				continue
			}
			switch namespace, held := b.Pods[a]; {
			case !held:
				fact("pod", false, "the IPAMBlock %s assigns the address to no pod", b.Prefix)
			case namespace != "":
				fact("pod", true, "of namespace %s", namespace)
			}
		}
		nodes := map[string]bool{}
		for _, f := range c.Topology.Affinities {
			if f.Prefix.Contains(a) {
				fact("block", f.State != "pendingDeletion" && !f.Deleted, "%s of node %s, BlockAffinity %s (%s)",
					f.Prefix, f.Node, f.Name, cmp.Or(f.State, "confirmed"))
				nodes[f.Node] = true
			}
		}
		for _, n := range c.Topology.Nodes {
			if slices.Contains(n.Addresses, a) {
				nodes[n.Name] = true
			}
			if !nodes[n.Name] {
				continue
			}
			fact("node", !n.Down, "%s%s", n.Name, Either(n.Down, ": the cluster reports it as unreachable", ""))
			for _, at := range n.BGP {
				if p, is := peers[at.Addr()]; is {
					loss := ""
					if p.LossReason != "" && !p.Up() {
						loss = "; last lost: " + p.LossReason
					}
					fact("peer", p.Up(), "%s is %s, with %d prefixes%s", p.Addr, p.State, p.Received,
						loss)
				}
			}
		}
	}
	for _, r := range x.View.BGP.Refusals {
		if r.Offer.Prefix.Contains(a) {
			fact("offer", false, "%s by %s was refused: %s", r.Offer.Prefix, r.Offer.Peer, r.Why)
		}
	}
	routed := false
	for _, source := range x.sources() {
		if to, via, ok := x.match(source, a); ok {
			routed = true
			held := x.View.Have.Routes[to] == via
			fact("route", true, "%s via %s", to, via)
			fact("kernel", held, "%s", Either(held, "the kernel holds it", "the kernel does not hold it"))
		}
	}
	switch {
	case x.View.Have.Direct[a]:
		fact("route", true, "a node on a network of this machine needs no route of ours")
	case !routed:
		fact("route", false, "no verified route leads to it")
	}
	served := false
	for _, at := range x.Servers {
		if at.Addr().Addr() == a {
			served = true
			one := x.serverStatus(at)
			fact("server", one.Serves(), "%s in backend %s is %s%s", one.Addr, x.Backends[at.Backend].Name, one.Place(),
				prefixed(": ", one.Why))
		}
	}
	if !served {
		fact("server", false, "no backend has a server at this address: is it a ready endpoint of a Service that an "+
			"Ingress names?")
	}
	return s
}

// sources returns the addresses from which HAProxy connects to pods. The zero address is the first, and stands for
// one that the kernel chooses.
func (x *Index) sources() []netip.Addr {
	all := []netip.Addr{{}}
	for _, c := range x.View.Clusters {
		if !slices.Contains(all, c.Source) {
			all = append(all, c.Source)
		}
	}
	return all
}

// prefixed returns text after a prefix, or nothing if there is no text.
func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}
