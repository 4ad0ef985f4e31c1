package status

import (
	"cmp"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"sallyport/haproxy"
	"sallyport/ingress"
)

// Gateways returns how each Gateway is served. A listener is programmed only once HAProxy has it.
func (v *View) Gateways() []ingress.GatewayReport {
	all := v.Compiled.Gateways()
	has := make(map[netip.AddrPort]bool, len(v.Have.Listeners))
	for _, l := range v.Have.Listeners {
		has[l.At] = true
	}
	for i := range all {
		g := &all[i]
		for j := range g.Listeners {
			l := &g.Listeners[j]
			if l.Programmed && slices.ContainsFunc(g.Addresses, func(a netip.Addr) bool {
				return !has[netip.AddrPortFrom(a, l.Port)]
			}) {
				l.Programmed, l.Reason, l.Why = false, "Pending", "HAProxy does not have the listener yet: it is "+
					"reloaded soon"
			}
		}
	}
	return all
}

// tallyGateways counts Gateways, their listeners, and the routes. A Gateway counts as programmed if
// each of its listeners is.
func (v *View) tallyGateways(t *Tally) {
	all := v.Gateways()
	if len(all) == 0 {
		return
	}
	t.Gateways, t.Listeners = make(map[Programmed]int), make(map[Programmed]int)
	t.GatewayRoutes = make(map[ProblemKind]int)
	for _, g := range all {
		whole := g.Reason == ""
		for _, l := range g.Listeners {
			t.Listeners[Programmed{g.Cluster, l.Programmed}]++
			whole = whole && l.Programmed
		}
		t.Gateways[Programmed{g.Cluster, whole}]++
	}
	for _, r := range v.Compiled.Routes() {
		reason := r.Places[0].Reason
		if r.Attached() {
			reason = "Accepted"
		}
		t.GatewayRoutes[ProblemKind{r.Cluster, reason}]++
	}
}

// A ListenerRow is a listener in the table of Gateways. Of a Gateway without listeners the listener
// is zero.
type ListenerRow struct {
	Gateway  *ingress.GatewayReport
	Listener ingress.ListenerReport
}

// ListenerRows returns a row for each listener of some Gateways.
func ListenerRows(all []ingress.GatewayReport) (rows []ListenerRow) {
	for i := range all {
		g := &all[i]
		for _, l := range g.Listeners {
			rows = append(rows, ListenerRow{g, l})
		}
		if len(g.Listeners) == 0 {
			rows = append(rows, ListenerRow{g, ingress.ListenerReport{Reason: g.Reason, Why: g.Why}})
		}
	}
	return rows
}

// GatewayTable lists the listeners of Gateways.
var GatewayTable = &Table[ListenerRow]{
	Head: Head{
		Name: "gateways", Title: "Gateways", Brief: true, Empty: "none: no Gateway of a class of this appliance",
		Columns: []Column{
			{Name: "gateway"},
			{Name: "addresses", Kind: KindCode},
			{Name: "listener"},
			{Name: "protocol"},
			{Name: "port", Kind: KindNumber},
			{Name: "hostname"},
			{Name: "routes", Kind: KindNumber},
			{Name: "programmed"},
			{Name: "why", Kind: KindProse},
			{Name: "cluster", Kind: KindCluster, Wide: true},
			{Name: "reason", Wide: true},
			{Name: "listener set", Wide: true},
		},
	},
	Rows: func(s *Status) []ListenerRow { return ListenerRows(s.Gateways) },
	Row: func(_ *Status, r ListenerRow) []Cell {
		g, l := r.Gateway, r.Listener
		programmed := Cell{Text: "yes", Level: Healthy}
		switch {
		case !l.Programmed:
			programmed = Cell{Text: "no", Level: Failed}
		case l.Reason != "":
			programmed.Level = Doubt
		}
		port := ""
		if l.Port > 0 {
			port = strconv.Itoa(int(l.Port))
		}
		return []Cell{
			{Text: g.Namespace + "/" + g.Name, Link: []string{"gateway", g.Cluster, g.Namespace, g.Name}},
			text(cmp.Or(joined(g.Addresses), "none")), text(l.Name), text(l.Protocol), text(port),
			text(cmp.Or(l.Hostname, "any")), count(l.Routes), programmed, text(l.Why), text(g.Cluster), text(l.Reason),
			text(l.Set),
		}
	},
	JSON: func(s *Status) any { return s.Gateways },
}

// A PlaceRow is a route, and a place that it names.
type PlaceRow struct {
	Route *ingress.RouteReport
	Place ingress.PlaceReport
}

// PlaceRows returns a row for each place that some routes name.
func PlaceRows(all []ingress.RouteReport) (rows []PlaceRow) {
	for i := range all {
		for _, p := range all[i].Places {
			rows = append(rows, PlaceRow{&all[i], p})
		}
	}
	return rows
}

// faults returns the faults of a route at a place, in sentences.
func (r PlaceRow) faults() string {
	if r.Place.Why != "" {
		return r.Place.Why
	}
	var all []string
	for _, f := range r.Route.Faults {
		all = append(all, f.Why)
	}
	return strings.Join(all, "; ")
}

// GatewayRouteTable lists the routes of Gateways.
var GatewayRouteTable = &Table[PlaceRow]{
	Head: Head{
		Name: "gateway-routes", Title: "Routes of Gateways", Brief: true,
		Empty: "none: no route names a Gateway of this appliance",
		Columns: []Column{
			{Name: "route"},
			{Name: "hostnames"},
			{Name: "gateway"},
			{Name: "listeners"},
			{Name: "reason"},
			{Name: "why", Kind: KindProse},
			{Name: "cluster", Kind: KindCluster, Wide: true},
		},
	},
	Rows: func(s *Status) []PlaceRow { return PlaceRows(s.GatewayRoutes) },
	Row: func(_ *Status, r PlaceRow) []Cell {
		o := r.Route.ObjectRef
		reason := Cell{Text: "Accepted", Level: Healthy}
		switch {
		case r.Place.Reason != "":
			reason = Cell{Text: r.Place.Reason, Level: Failed}
		case len(r.Route.Faults) > 0:
			reason = Cell{Text: r.Route.Faults[0].Reason, Level: Doubt}
		}
		namespace, name, _ := strings.Cut(r.Place.Gateway, "/")
		return []Cell{
			{
				Text: strings.ToLower(o.Kind) + "/" + o.Namespace + "/" + o.Name,
				Link: []string{"route", o.Cluster, strings.ToLower(o.Kind), o.Namespace, o.Name},
			},
			text(cmp.Or(strings.Join(r.Route.Hostnames, ","), "any")),
			{Text: r.Place.Gateway, Link: []string{"gateway", o.Cluster, namespace, name}},
			text(strings.Join(r.Place.Listeners, ",")), reason, text(r.faults()), text(o.Cluster),
		}
	},
	JSON: func(s *Status) any { return s.GatewayRoutes },
}

// explainObject explains an object of Gateway API, as KIND/NAMESPACE/NAME.
func (x *Index) explainObject(object, cluster string) (any, error) {
	kind, key, _ := strings.Cut(strings.ToLower(object), "/")
	namespace, name, _ := strings.Cut(key, "/")
	for _, c := range x.View.Clusters {
		if cluster != "" && cluster != c.Name {
			continue
		}
		e, is := x.View.Compiled.ExplainAPI(c.Name, kind, namespace, name)
		if !is {
			continue
		}
		s := x.explained(e)
		for _, g := range x.Gateways() {
			if kind == "gateway" && g.Cluster == c.Name && g.Namespace == namespace && g.Name == name {
				s.Gateway = &g
				for _, a := range g.Addresses {
					if one, ours := x.explainServed(a); ours {
						s.Addresses = append(s.Addresses, one)
					}
				}
			}
		}
		return s, nil
	}
	return nil, fmt.Errorf("no %s %s is served here: does it exist, and does it belong to a GatewayClass of this "+
		"appliance (for a route: by its parentRefs)? `sallyport status gateways` lists all Gateways", kind, key)
}

// explained adds to an Explanation what the index knows.
func (x *Index) explained(e ingress.Explanation) ExplainStatus {
	return ExplainStatus{Explanation: e, Servers: x.serversOf(e), Now: x.View.At, Waits: x.waitsOf(e)}
}

// explainAt explains a request to an address and port. headers are lines as "name: value".
func (x *Index) explainAt(request, to, method string, headers []string) (any, error) {
	at, err := netip.ParseAddrPort(to)
	if err != nil {
		return nil, fmt.Errorf("%q is not an address with a port", to)
	}
	host, path, _ := strings.Cut(request, "/")
	q := haproxy.Request{
		Scope: haproxy.ScopeOf(netip.AddrPortFrom(at.Addr().Unmap(), at.Port())), Method: cmp.Or(method, "GET"),
		Host: host, Path: "/" + path, Header: make(http.Header),
	}
	for _, line := range headers {
		key, value, is := strings.Cut(line, ":")
		if !is {
			return nil, fmt.Errorf("%q is not a header: want 'NAME: VALUE'", line)
		}
		if q.Header.Add(key, strings.TrimSpace(value)); strings.EqualFold(key, "host") {
			q.Host = strings.TrimSpace(value)
		}
	}
	e, why := x.View.Compiled.ExplainAt(q)
	s := x.explained(e)
	s.Request, s.Why = fmt.Sprintf("%s %s%s at %s", q.Method, q.Host, q.Path, q.Scope), why
	return s, nil
}

// apiNames calls do with each object of Gateway API, as KIND/NAMESPACE/NAME.
func (v *View) apiNames(do func(cluster, name string)) {
	add := func(o ingress.ObjectRef) { do(o.Cluster, strings.ToLower(o.Kind)+"/"+o.Namespace+"/"+o.Name) }
	for _, g := range v.Compiled.Gateways() {
		add(g.ObjectRef)
	}
	for _, r := range v.Compiled.Routes() {
		add(r.ObjectRef)
	}
}
