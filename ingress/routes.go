package ingress

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/claims"
	"sallyport/ingress/gateway"
	"sallyport/ingress/input"
)

// requests makes the routes of the listeners of one port, which is for HTTP or HTTPS.
func (o *opener) requests(at openPort) {
	g := at.gate
	rows := o.attached[g.World].RowsOf(at.listeners, gateway.Hosts{
		More: o.reservedHosts(),
		May: func(namespace, host string) bool {
			_, err := o.partyOf(g.World, namespace, host)
			// A part does not know whether the route is in effect for its own host.
			o.limited = o.limited || err != nil && o.about != nil
			return err == nil
		},
		Takes: func(r *gateway.Route, host string, copies int) bool { return o.copies(g, r, host, copies) },
		Only:  o.about.has,
	})
	for _, row := range rows {
		route := haproxy.Route{Scope: at.scope, Host: row.Host, Path: row.Path, Match: matchOf(row.Type)}
		var cases []haproxy.PickCase
		var takers []gateway.Entry // of the cases, then of the rest
		for _, e := range row.Chain {
			to := o.target(g, e)
			if e.Bare() {
				route.To, takers = to, append(takers, e)
				break
			}
			when := whenOf(e.Match)
			if err := when.Validate(); err != nil {
				e.Drop(fmt.Sprintf("a match cannot be used: %v", err))
				continue
			}
			if err := o.look(o.worlds[g.World].Cluster+"/"+e.Route.Object.GetNamespace(), when.Form()); err != nil {
				e.Drop(fmt.Sprintf("a match cannot be used: %v", err))
				o.limited = true
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
		o.gateways.routes = append(o.gateways.routes, route)
		o.takers[scopedKeyOf(&route)] = takers
	}
}

// copies counts the matches of wider hosts in the rows of a host. The limit of the paths of a
// namespace bounds them.
func (o *opener) copies(g *gate, r *gateway.Route, host string, n int) bool {
	of := tenant{World: g.World, Namespace: r.Object.GetNamespace()}
	most := o.worlds[g.World].Options.Limits.Paths
	if most > 0 && o.copied[of]+n > most {
		r.Note(fmt.Sprintf("hostname %s: requests that match no rule for it are answered with status 404, because "+
			"the hostnames of namespace %s would have more than %d matches of wider hostnames "+
			"(clusters[].ingress.limits.paths)",
			host, of.Namespace, most))
		o.limited = true
		return false
	}
	o.copied[of] += n
	return true
}

// A scopedKey is the key of a route at a listener.
type scopedKey struct {
	scope string
	routeKey
}

func scopedKeyOf(r *haproxy.Route) scopedKey {
	return scopedKey{r.Scope, claims.KeyOf(r)}
}

// maxForms is the largest number of Forms that the routes of one namespace bring. Namespaces share
// haproxy.MaxForms.
const maxForms = 8

// look counts a Form of the conditions of a namespace. It returns an error if the namespace, or all
// of them, would have too many.
func (o *opener) look(namespace string, f *haproxy.Form) error {
	all := o.forms[namespace]
	switch {
	case all[f.Name]:
		return nil
	case len(all) >= maxForms:
		return fmt.Errorf("the namespace has matches on more than %d different sets of methods, headers and query "+
			"parameters; use the same names in more of them", maxForms)
	case !o.looks[f.Name] && len(o.looks) >= haproxy.MaxForms:
		return fmt.Errorf("matches of all namespaces are on more than %d different sets of methods, headers and query "+
			"parameters", haproxy.MaxForms)
	case all == nil:
		all = make(map[string]bool)
		o.forms[namespace] = all
	}
	all[f.Name], o.looks[f.Name] = true, true
	return nil
}

// reservedHosts returns the hosts that the configuration file reserves. Routes for wider hosts have
// none of their requests.
func (b *builder) reservedHosts() (all []string) {
	add := func(s *Snapshot) {
		for _, rule := range s.Options.Hosts {
			if rule.Host != "*" {
				all = append(all, rule.Host)
			}
		}
	}
	for _, w := range b.of {
		add(&w.Snapshot)
	}
	for i := range b.Unknown {
		add(&b.Unknown[i])
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func matchOf(t gateway.PathType) haproxy.PathMatch {
	switch t {
	case gateway.Exact:
		return haproxy.Exact
	case gateway.Regexp:
		return haproxy.Regexp
	default:
		return haproxy.Prefix
	}
}

func whenOf(m *gateway.Match) haproxy.When {
	fields := func(list []gateway.Field) (all []haproxy.Field) {
		for _, f := range list {
			all = append(all, haproxy.Field{Name: f.Name, Value: f.Value, Pattern: f.Pattern})
		}
		return all
	}
	return haproxy.When{Method: m.Method, Headers: fields(m.Headers), Params: fields(m.Params)}
}

// connections makes the routes of the listeners of one port, which is for TLS or TCP.
func (o *opener) connections(at openPort) {
	taken := make(map[string]bool)
	for _, l := range at.listeners {
		match := haproxy.Passthrough
		if l.Protocol == gatewayv1.TLSProtocolType && !l.Passthrough {
			match = haproxy.Terminate
		}
		for _, r := range o.attached[at.World].At(l) { // the oldest has the host
			for _, host := range r.At {
				if taken[host] || len(r.Rules) == 0 || !o.about.has(l, host) ||
					gateway.OwnerOf(at.listeners, host) != l {
					continue
				}
				taken[host] = true
				to := o.targetOf(targetFor{rule: r.Rules[0], gate: at.gate, sealed: match == haproxy.Passthrough})
				o.gateways.routes = append(o.gateways.routes, haproxy.Route{
					Scope: at.scope, Host: host, Path: "/", Match: match, To: to,
				})
			}
		}
	}
}

// A ledTo is a rule, and where its requests go.
type ledTo struct {
	world int
	rule  *gateway.Rule
	to    haproxy.Target
	needs []string // the names of the backends, with those of mirrors
}

// petitioner returns a need with nothing but the route, as the object that leads there.
func (l *ledTo) petitioner(of []*world) *need {
	r := l.rule.Route
	return &need{by: claims.ReferenceTo(of[l.world].Cluster, r.Kind, r.Object), asked: r.Created().Unix()}
}

// A targetFor holds all that the target of a rule depends on.
type targetFor struct {
	rule *gateway.Rule
	path string // of the match, if a filter replaces this part of the path
	gate *gate
	by   *claim // that has the rule at the addresses of Ingresses; nil at an address of the Gateway
	open bool   // no guard of the ConfigMap keeps clients out

	// sealed says that connections reach the servers as clients begin them, so the servers' TLS is
	// that of the clients.
	sealed bool
}

// target returns where requests that an entry takes go.
func (o *opener) target(g *gate, e gateway.Entry) haproxy.Target {
	key := targetFor{rule: e.Rule, gate: g}
	if e.Match != nil && replacesPrefix(e.Filters) {
		key.path = e.Match.Path
	}
	return o.targetOf(key)
}

func (o *opener) targetOf(key targetFor) haproxy.Target {
	to, known := o.targets[key]
	if !known {
		o.gateways.added = nil
		to = o.makeTarget(key)
		if key.by != nil {
			to = o.failing(key.by, to)
		}
		o.targets[key] = to
		o.led = append(o.led, ledTo{world: key.gate.World, rule: key.rule, to: to, needs: o.gateways.added})
	}
	return to
}

func (o *opener) makeTarget(key targetFor) haproxy.Target {
	g, rule, path := key.gate, key.rule, key.path
	invalid := haproxy.To(haproxy.Invalid)
	if rule.Invalid() {
		return invalid
	}
	p := o.petitionerOf(g.World, rule.Route.Kind, rule.Route.Object)
	if key.by != nil {
		p = key.by.Petitioner
	}
	own, err := effectsOf(rule, path)
	if err != nil {
		rule.Refuse(err.Error())
		return invalid
	}
	if own.redirects {
		return haproxy.To(o.answering(p, "redirect", "redirects", own))
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
				more.open = key.open
				share.Backend = o.backendOf(p, rule.Route.Kind, ref, more)
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
func (o *opener) mirror(g *gate, p petitioner, rule *gateway.Rule, ref gateway.Ref, own *effects) {
	mirrors := slices.Concat(rule.Mirrors, ref.Mirrors)
	if len(mirrors) == 0 {
		return
	}
	if !o.attached[g.World].Mirrors() {
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
		to := effects{directives: haproxy.CopyTarget()}
		if m.Refused != nil || m.Part == 0 || !o.secure(g, m.Ref, &to) {
			continue
		}
		copies = append(copies, haproxy.Copy{
			Backend: o.backendOf(p, rule.Route.Kind, m.Ref, to), Part: m.Part, Of: m.Of,
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
	own.extras = []*haproxy.Extra{haproxy.MirrorScript()}
}

// backendOf returns the backend of a port of a Service. Without effects all routes and Ingresses
// share it. Otherwise its name is made from the effects: all rules with the same ones share it.
func (o *opener) backendOf(p petitioner, kind string, ref gateway.Ref, own effects) string {
	to := reference{Service: ref.Service, Number: ref.Port, Traffic: annotations.Requests, Open: own.open}
	if kind == "TLSRoute" || kind == "TCPRoute" {
		to.Traffic = annotations.Ended
	}
	n, _ := o.backend(p, to) // Attach has found the Service and its port
	if to.Traffic == annotations.Ended {
		n.name = shorten(n.name+".tcp", ".")
	}
	if kind == "GRPCRoute" {
		own.proto = "h2"
	}
	if to.Traffic == annotations.Ended && own.tls.ca != nil {
		own.proto = "h1" // the client's protocol is not known, so TLS offers none
	}
	if !own.none() {
		n.settings = o.derive(n.settings, own)
		n.name = shorten(n.name+".r-"+n.settings.hash, ".")
		n.origin, n.named = ", ", true
	}
	o.add(n, p)
	for _, one := range n.settings.asks {
		o.ask(p, one, ruleOf(kind))
	}
	return n.name
}

// secure adds to the effects what the BackendTLSPolicy of a port of a Service asks for. It reports
// whether requests may go there: HAProxy never connects without TLS to servers that a policy is for.
func (o *opener) secure(g *gate, ref gateway.Ref, own *effects) bool {
	w := o.worlds[g.World]
	service, _ := input.Find(w.Services, ref.Service)
	name := ""
	for _, port := range service.Spec.Ports {
		if port.Port == ref.Port {
			name = port.Name
		}
	}
	policies := o.attached[g.World].PoliciesOf(ref.Service, name)
	if len(policies) == 0 {
		return true
	}
	if o.about != nil { // which Gateways lead to the policies is not known
		o.limited = true
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
	if why := o.refusal(ca); why != "" {
		policy.Refuse("its authorities cannot be used together: " + why)
		return false
	}
	own.tls = serverTLS{ca: ca, name: policy.Hostname, crt: o.shown(w, g.Gateway)}
	return true
}

// ruleOf names a rule in a sentence.
type ruleOf string

func (r ruleOf) String() string { return "a rule of this " + string(r) }

// answering returns a backend without servers, which answers requests itself. kind is in its name, and
// does in its origin.
func (o *opener) answering(p petitioner, kind, does string, own effects) string {
	n := need{
		world:     p.World,
		reference: reference{Service: serviceKey{Namespace: p.Ref.Namespace}, Traffic: annotations.Requests},
		settings:  o.derive(noSettings, own), origin: ", " + does, named: true,
	}
	n.name = shorten(o.worlds[p.World].prefix+p.Ref.Namespace+"_"+kind+".r-"+n.settings.hash, ".")
	o.add(n, p)
	return n.name
}

// failing returns a target at the addresses of Ingresses: a backend of the namespace takes the place of
// haproxy.Invalid.
func (o *opener) failing(c *claim, to haproxy.Target) haproxy.Target {
	shares := to.Shares()
	for i := range shares {
		if shares[i].Backend == haproxy.Invalid {
			fails := effects{directives: []haproxy.Directive{haproxy.Fail()}}
			shares[i].Backend = o.answering(c.Petitioner, "invalid", "answers 500", fails)
		}
	}
	to, _ = haproxy.Split(shares) // they are from Split
	return to
}

// noSettings are those of a backend of no Service.
var noSettings = new(settings)

// derive returns settings with the effects of a rule. It returns the same pointer for the same
// settings and effects, as long as some rule needs them.
func (b *builder) derive(base *settings, own effects) *settings {
	key := derivedFor{base, own.key(), own.tls}
	if known := b.api.derived[key]; known != nil {
		return known
	}
	s := b.apiBefore.derived[key]
	if s == nil {
		s = new(settings)
		*s = *base
		s.Directives = append(slices.Clone(base.Directives), own.directives...)
		haproxy.SortDirectives(s.Directives)
		s.Extras = slices.Concat(base.Extras, own.extras)
		s.Options.Proto = cmp.Or(own.proto, s.Options.Proto)
		if own.tls.ca != nil {
			s.encrypt(own.tls)
		}
		sum := sha256.Sum256([]byte(key.own))
		s.hash = hex.EncodeToString(sum[:8])
	}
	b.api.derived[key] = s
	return s
}

// encrypt makes HAProxy connect to the servers over TLS, and verify their certificates.
func (s *settings) encrypt(tls serverTLS) {
	s.Options.TLS, s.Options.CA, s.Options.SNI, s.Options.VerifyHost = true, tls.ca.Name, tls.name, ""
	s.Extras = append(slices.Clone(s.Extras), tls.ca)
	if tls.crt != nil {
		s.Options.Crt, s.Extras = tls.crt.Name, append(s.Extras, tls.crt)
	}
}

// A derivedFor says from what settings are derived.
type derivedFor struct {
	base *settings
	own  string // the key of the effects
	tls  serverTLS
}

// key returns a text that is the same for the same effects.
func (e effects) key() string {
	var all []string
	for _, d := range e.directives {
		all = append(all, strconv.Quote(d.String()))
	}
	if e.tls.ca != nil {
		all = append(all, "tls "+e.tls.name+" "+e.tls.ca.Name)
	}
	if e.tls.crt != nil {
		all = append(all, "as "+e.tls.crt.Name)
	}
	return strings.Join(append(all, e.proto), "\n")
}
