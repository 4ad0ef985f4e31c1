package listen

import (
	"fmt"
	"slices"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/claims"
	"sallyport/ingress/gateway"
	"sallyport/ingress/input"
)

// requests makes the routes for requests at the listeners of one port.
func (o *Opener) requests(at OpenPort) {
	g := at.Gate
	rows := o.worlds[g.World].Attached.RowsOf(at.listeners, gateway.Hosts{
		More: o.Reserved,
		May: func(namespace, host string) bool {
			err := o.May(g.World, namespace, host)
			if err != nil && o.Part { // whether the route is in effect for its own host is not known
				o.made.Limited[Everybody] = true
			}
			return err == nil
		},
		Takes: func(r *gateway.Route, host string, copies int) bool { return o.copies(g, r, host, copies) },
		Only:  o.About,
	})
	for _, row := range rows {
		route := &haproxy.Route{Scope: at.scope, Host: row.Host, Path: row.Path, Match: MatchOf(row.Type)}
		var cases []haproxy.PickCase
		var takers []gateway.Entry // of the cases, then of the rest
		for _, e := range row.Chain {
			to := o.target(g, e)
			if e.Bare() {
				route.To, takers = to, append(takers, e)
				break
			}
			when, err := o.condition(tenantOf(g.World, e.Route), e.Match)
			if err != nil {
				e.Drop(fmt.Sprintf("a match cannot be used: %v", err))
				continue
			}
			cases, takers = append(cases, haproxy.PickCase{If: when, To: to}), append(takers, e)
		}
		if len(cases) > 0 {
			pick := haproxy.NewPick(cases)
			o.picks[pick.Name], route.Pick = pick, pick.Name
		}
		if err := route.Validate(); err != nil {
			for _, e := range row.Chain {
				e.Drop(fmt.Sprintf("path %s cannot be used: %v", annotations.Quote(row.Path), err))
			}
			continue
		}
		o.made.Config.Routes = append(o.made.Config.Routes, route)
		o.made.Takers = append(o.made.Takers, &Taker{route.Scope, claims.KeyOf(route), takers})
	}
}

// copies counts the matches of wider hosts in the rows of a host. The limit of the paths of a
// namespace bounds them.
func (o *Opener) copies(g *claims.Gate, r *gateway.Route, host string, n int) bool {
	of := tenantOf(g.World, r)
	most := o.worlds[g.World].Options.Limits.Paths
	if most > 0 && o.made.Copied[of]+n > most {
		r.Note(fmt.Sprintf("hostname %s: requests that match no rule for it are answered with status 404, because "+
			"the hostnames of namespace %s would have more than %d matches of wider hostnames "+
			"(clusters[].ingress.limits.paths)",
			host, of.Namespace, most))
		o.made.Limited[of] = true
		return false
	}
	o.made.Copied[of] += n
	return true
}

// tenantOf returns the namespace of a route of a world.
func tenantOf(world int, r *gateway.Route) claims.Tenant {
	return claims.Tenant{World: world, Namespace: r.Object.GetNamespace()}
}

// MaxForms is the largest number of Forms that the routes of one namespace bring. Namespaces share
// haproxy.MaxForms.
const MaxForms = 8

// countForms counts the Forms of the routes for requests at some ports, those of the older routes first.
// Rows are made host by host. A younger route could otherwise take the room of an older one, if the host
// of the younger route comes first.
func (o *Opener) countForms(ports []OpenPort) {
	served := make(map[*gateway.Route]bool)
	for _, one := range ports {
		if !one.kind.Requests() {
			continue
		}
		for _, l := range one.listeners {
			for _, r := range o.worlds[one.Gate.World].Attached.At(l) {
				served[r.Route] = true
			}
		}
	}
	for world, w := range o.worlds {
		if w.Attached == nil {
			continue
		}
		for _, r := range w.Attached.Routes {
			if served[r] {
				o.countForm(tenantOf(world, r), r)
			}
		}
	}
}

// countForm counts the Forms of a route of a namespace.
func (o *Opener) countForm(of claims.Tenant, r *gateway.Route) {
	for _, rule := range r.Rules {
		for i := range rule.Matches {
			if m := &rule.Matches[i]; !m.Bare() {
				_, _ = o.condition(of, m) // the row of the match tells the error
			}
		}
	}
}

// condition returns the condition of a match of a namespace beside its path, and counts its Form. The
// error says why it cannot be used.
func (o *Opener) condition(of claims.Tenant, m *gateway.Match) (haproxy.When, error) {
	when := WhenOf(m)
	if err := when.Validate(); err != nil {
		return when, err
	}
	return when, o.look(of, when.Form())
}

// look counts a Form of the conditions of a namespace. It returns an error if the namespace, or all
// of them, would have too many.
func (o *Opener) look(of claims.Tenant, f *haproxy.Form) error {
	all := o.made.Forms[of]
	switch {
	case all[f.Name]:
		return nil
	case len(all) >= MaxForms:
		o.made.Limited[of] = true
		return fmt.Errorf("the namespace has matches on more than %d different sets of methods, headers and query "+
			"parameters; use the same names in more of them", MaxForms)
	case !o.looks[f.Name] && len(o.looks) >= haproxy.MaxForms:
		o.made.Limited[Everybody] = true
		return fmt.Errorf("matches of all namespaces are on more than %d different sets of methods, headers and query "+
			"parameters", haproxy.MaxForms)
	case all == nil:
		all = make(map[string]bool)
		o.made.Forms[of] = all
	}
	all[f.Name], o.looks[f.Name] = true, true
	return nil
}

// MatchOf returns the match of a route for the type of a path.
func MatchOf(t gateway.PathType) haproxy.PathMatch {
	switch t {
	case gateway.Exact:
		return haproxy.Exact
	case gateway.Regexp:
		return haproxy.Regexp
	default:
		return haproxy.Prefix
	}
}

// WhenOf returns the condition of a match beside its path.
func WhenOf(m *gateway.Match) haproxy.When {
	fields := func(list []gateway.Field) (all []haproxy.Field) {
		for _, f := range list {
			all = append(all, haproxy.Field{Name: f.Name, Value: f.Value, Pattern: f.Pattern})
		}
		return all
	}
	return haproxy.When{Method: m.Method, Headers: fields(m.Headers), Params: fields(m.Params)}
}

// connections makes the routes for connections at the listeners of one port.
func (o *Opener) connections(at OpenPort) {
	taken, owners := make(map[string]bool), gateway.OwnersOf(at.listeners)
	for _, l := range at.listeners {
		if l.HTTP() {
			continue
		}
		match := haproxy.Passthrough
		if l.Protocol == gatewayv1.TLSProtocolType && !l.Passthrough {
			match = haproxy.Terminate
		}
		for _, r := range o.worlds[at.World].Attached.At(l) { // the oldest has the host
			for _, host := range r.At {
				if taken[host] || len(r.Rules) == 0 || !o.About(l, host) ||
					owners.Of(host) != l {
					continue
				}
				taken[host] = true
				to := o.targetOf(targetFor{rule: r.Rules[0], gate: at.Gate, sealed: match == haproxy.Passthrough})
				o.made.Config.Routes = append(o.made.Config.Routes, &haproxy.Route{
					Scope: at.scope, Host: host, Path: "/", Match: match, To: to,
				})
			}
		}
	}
}

// A targetFor holds all that the target of a rule depends on.
type targetFor struct {
	rule *gateway.Rule
	path string // of the match, if a filter replaces this part of the path
	gate *claims.Gate
	by   *claims.Petitioner // that has the rule at the addresses of Ingresses; nil at an address of the Gateway
	open bool               // no guard of the ConfigMap keeps clients out

	// sealed says that connections reach the servers as clients begin them, so the servers' TLS is
	// that of the clients.
	sealed bool
}

// target returns where requests that an entry takes go.
func (o *Opener) target(g *claims.Gate, e gateway.Entry) haproxy.Target {
	key := targetFor{rule: e.Rule, gate: g}
	if e.Match != nil && ReplacesPrefix(e.Filters) {
		key.path = e.Match.Path
	}
	return o.targetOf(key)
}

func (o *Opener) targetOf(key targetFor) haproxy.Target {
	to, known := o.targets[key]
	if !known {
		o.added = nil
		to = o.makeTarget(key)
		if key.by != nil {
			to = o.failing(*key.by, to)
		}
		o.targets[key] = to
		o.made.Leads = append(o.made.Leads,
			&Lead{World: key.gate.World, Rule: key.rule, To: to, Backends: o.added})
	}
	return to
}

func (o *Opener) makeTarget(key targetFor) haproxy.Target {
	g, rule, path := key.gate, key.rule, key.path
	invalid := haproxy.To(haproxy.Invalid)
	if rule.Invalid() {
		return invalid
	}
	p := claims.PetitionerFor(g.World,
		claims.ReferenceTo(o.worlds[g.World].Cluster, rule.Route.Kind, rule.Route.Object), rule.Route.Created())
	if key.by != nil {
		p = *key.by
	}
	own, err := effectsOf(rule, path)
	if err != nil {
		rule.Refuse(err.Error())
		return invalid
	}
	if own.redirects {
		return haproxy.To(o.answer(p, "redirect", "redirects", own))
	}
	var shares []haproxy.Share
	for _, ref := range rule.Refs {
		share := haproxy.Share{Backend: haproxy.Invalid, Weight: int(max(ref.Weight, 0))}
		// A backend with weight 0 is there as well, so that another weight needs no reload.
		if ref.Refused == nil {
			more, err := refEffects(own, ref)
			if err != nil {
				rule.Refuse(err.Error())
				return invalid
			}
			o.mirror(g, p, rule, ref, &more)
			if key.sealed || o.secure(g, ref, &more) {
				more.Open = key.open
				share.Backend = o.backend(p, rule.Route.Kind, ref, more)
			}
		}
		shares = append(shares, share)
	}
	to, err := haproxy.Split(shares)
	if err != nil {
		rule.Refuse(err.Error())
		return invalid
	}
	return to
}

// mirror adds the copies of the requests for a rule and one of its backendRefs. Whatever is wrong
// with a copy, the requests themselves are served.
func (o *Opener) mirror(g *claims.Gate, p claims.Petitioner, rule *gateway.Rule, ref gateway.Ref, own *Effects) {
	mirrors := slices.Concat(rule.Mirrors, ref.Mirrors)
	if len(mirrors) == 0 {
		return
	}
	if !o.worlds[g.World].Attached.Mirrors() {
		rule.Note("requests are not mirrored, because HAProxy is built without Lua")
		return
	}
	if len(mirrors) > haproxy.MaxCopies {
		rule.Note(fmt.Sprintf("a request has %d mirrors; only the first %d get copies", len(mirrors),
			haproxy.MaxCopies))
		mirrors = mirrors[:haproxy.MaxCopies]
	}
	var copies []haproxy.Copy
	for _, m := range mirrors {
		to := Effects{Directives: haproxy.CopyTarget()}
		if m.Refused != nil || m.Part == 0 || !o.secure(g, m.Ref, &to) {
			continue
		}
		copies = append(copies, haproxy.Copy{
			Backend: o.backend(p, rule.Route.Kind, m.Ref, to), Part: m.Part, Of: m.Of,
			Tenant: o.worlds[g.World].Cluster + "/" + p.Ref.Namespace,
		})
	}
	if len(copies) == 0 {
		return
	}
	if err := own.add(haproxy.Mirror(copies)); err != nil {
		rule.Note(fmt.Sprintf("requests are not mirrored: %v", err))
		return
	}
	own.Extras = []*haproxy.Extra{haproxy.MirrorScript()}
}

// secure adds to the effects what the BackendTLSPolicy of a port of a Service asks for. It reports
// whether requests may go there: HAProxy never connects without TLS to servers that a policy is for.
func (o *Opener) secure(g *claims.Gate, ref gateway.Ref, own *Effects) bool {
	w := &o.worlds[g.World]
	service, _ := input.Find(w.Services, ref.Service)
	name := ""
	for _, port := range service.Spec.Ports {
		if port.Port == ref.Port {
			name = port.Name
		}
	}
	policies := o.worlds[g.World].Attached.PoliciesOf(ref.Service, name)
	if len(policies) == 0 {
		return true
	}
	if o.Part { // which Gateways lead to the policies is not known
		o.made.Limited[Everybody] = true
		return true
	}
	for _, p := range policies {
		p.Serve(g.Gateway)
	}
	policy := policies[0]
	if policy.Closed() != "" {
		return false
	}
	ca := o.authorities(w, policy.Authorities...)
	if why := o.Refusal(ca.Part()); why != "" {
		policy.Refuse("its authorities cannot be used together: " + why)
		return false
	}
	own.TLS = ServerTLS{CA: ca, Name: policy.Hostname, Crt: o.shown(g.World, g.Gateway)}
	return true
}

// failing returns a target at the addresses of Ingresses: a backend of the namespace takes the place of
// haproxy.Invalid.
func (o *Opener) failing(p claims.Petitioner, to haproxy.Target) haproxy.Target {
	shares := to.Shares()
	for i := range shares {
		if shares[i].Backend == haproxy.Invalid {
			fails := Effects{Directives: []haproxy.Directive{haproxy.Fail()}}
			shares[i].Backend = o.answer(p, "invalid", "answers 500", fails)
		}
	}
	to, _ = haproxy.Split(shares) // they are from Split
	return to
}

// Shared returns the backends of a path of a route at the addresses of Ingresses. by has the route, and
// open says that no guard of the ConfigMap keeps clients out.
func (o *Opener) Shared(by *claims.Petitioner, at *claims.RuleAt, path string, open bool) []haproxy.Share {
	key := targetFor{rule: at.Rule, gate: at.Gate, by: by, open: open}
	if ReplacesPrefix(at.Filters) {
		key.path = path
	}
	return o.targetOf(key).Shares()
}

// backend returns the name of a backend of the present target.
func (o *Opener) backend(p claims.Petitioner, kind string, ref gateway.Ref, own Effects) string {
	name := o.Backend(p, kind, ref, own)
	o.added = append(o.added, name)
	return name
}

// answer returns the name of a backend of the present target that answers requests itself.
func (o *Opener) answer(p claims.Petitioner, kind, does string, own Effects) string {
	name := o.Answer(p, kind, does, own)
	o.added = append(o.added, name)
	return name
}
