package haproxy

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// causes holds the tenants that ask for a reload, and their reasons. The Tenant without a namespace
// is the operator.
type causes map[Tenant]*cause

// A cause holds the changes of one tenant that need a reload.
type cause struct {
	urgent bool            // somebody waits for the reload
	guard  bool            // a guard is among the changes
	of     map[string]bool // by the name of a backend that changes: whether its guards change
	stale  map[string]bool // backends with other guards in the worker than the wanted guards
}

func (c *cause) backends() []string { return slices.Sorted(maps.Keys(c.of)) }

// by returns the cause of a tenant, and adds it if it is missing.
func (c causes) by(t Tenant) *cause {
	if t.Namespace == "" {
		t = Tenant{}
	}
	if c[t] == nil {
		c[t] = &cause{of: map[string]bool{}, stale: map[string]bool{}}
	}
	return c[t]
}

// change notes that a backend is added or changes its settings. guards says whether its guards
// change.
func (c causes) change(b *Backend, guards bool) *cause {
	one := c.by(b.tenant())
	one.urgent, one.of[b.Name], one.guard = true, one.of[b.Name] || guards, one.guard || guards
	return one
}

// stale notes that the guards of a backend in the worker differ from the wanted guards.
func (c causes) stale(b *Backend) { c.change(b, true).stale[b.Name] = true }

// hurry notes that somebody waits for the changes of every tenant.
func (c causes) hurry() {
	for _, one := range c {
		one.urgent = true
	}
}

// tenant returns the tenant that may change the backend.
func (b *Backend) tenant() Tenant {
	if b.By != "" {
		return Tenant{b.Cluster, b.By}
	}
	return Tenant{b.Cluster, b.Namespace}
}

// tenant returns the tenant that may change the certificate.
func (c *Cert) tenant() Tenant {
	cluster, namespace, _ := strings.Cut(c.Owner, "/")
	return Tenant{cluster, namespace}
}

// A difference is a backend with other settings in the worker. If was is nil, the worker lacks the
// backend. If is is nil, nobody wants the backend any more.
type difference struct{ was, is *Backend }

// differences holds the backends that differ between a worker and a configuration. A placed backend
// has another name in the worker, and the right settings.
type differences struct{ added, placed, changed, removed []difference }

// backendsDiffer compares the backends of a worker with the wanted backends. Both lists are sorted
// by name. It leaves out a removed backend that has another name in the worker, because the next
// worker does not load it anyway.
func backendsDiffer(old, want []*Backend, in workerNames) (d differences) {
	remove := func(b *Backend) {
		if !in.has(b.Name) {
			d.removed = append(d.removed, difference{was: b})
		}
	}
	for _, b := range want {
		for len(old) > 0 && old[0].Name < b.Name {
			remove(old[0])
			old = old[1:]
		}
		was := (*Backend)(nil)
		if len(old) > 0 && old[0].Name == b.Name {
			was, old = old[0], old[1:]
		}
		switch {
		case was == nil:
			d.added = append(d.added, difference{is: b})
		case !was.sameShape(b):
			d.changed = append(d.changed, difference{was, b})
		case in.has(b.Name):
			d.placed = append(d.placed, difference{was, b})
		}
	}
	for _, b := range old {
		remove(b)
	}
	return d
}

func namesOf(list []difference) (names []string) {
	for _, d := range list {
		if d.is != nil {
			names = append(names, d.is.Name)
		} else {
			names = append(names, d.was.Name)
		}
	}
	return names
}

// causesOf returns the causes of a reload that brings the shape and the backends of want to a
// worker with those of have. The names of backends in that worker are in the parameter in.
func causesOf(have, want *Config, in workerNames) causes {
	c := causes{}
	d := backendsDiffer(have.Backends, want.Backends, in)
	for _, one := range d.added {
		c.change(one.is, one.is.rejects())
	}
	for _, one := range d.changed {
		if one.was.covers(one.is) {
			c.change(one.is, false)
		} else {
			c.stale(one.is)
		}
	}
	for _, one := range slices.Concat(d.placed, d.removed) {
		b := one.was
		if one.is != nil {
			b = one.is
		}
		c.by(b.tenant()).of[b.Name] = false
	}
	c.addShape(have, want)
	if !slices.EqualFunc(have.reloadedCerts(), want.reloadedCerts(), (*Cert).same) {
		c.addCerts(have.reloadedCerts(), want.reloadedCerts(), want)
	}
	if len(c) == 0 { // no tenant brings what changes
		c.by(Tenant{}).urgent = true
	}
	return c
}

// addShape adds the causes of the differences between two shapes.
func (c causes) addShape(have, want *Config) {
	was, is := &have.Shape, &want.Shape
	if !reflect.DeepEqual([]any{was.Bind, was.Group, was.Leaving, was.Process.ClientCA, was.Process.ClientOptional},
		[]any{is.Bind, is.Group, is.Leaving, is.Process.ClientCA, is.Process.ClientOptional}) {
		operator := c.by(Tenant{})
		operator.urgent, operator.guard = true, true
	}
	if !reflect.DeepEqual([]any{was.Tune, was.Process, was.DefaultCert}, []any{is.Tune, is.Process, is.DefaultCert}) {
		c.by(Tenant{}).urgent = true
	}
	names := slices.Concat(
		differing(was.Tables, is.Tables, func(t Table) string { return t.Name }),
		differing(was.Userlists, is.Userlists, func(u *Userlist) string { return u.Name }),
		differing(was.Extras, is.Extras, func(e *Extra) string { return e.Name }))
	if len(names) > 0 {
		c.addUsers(names, have, want)
	}
	of := func(name string) {
		b := find(want.Backends, name)
		if b == nil {
			b = find(have.Backends, name)
		}
		if b == nil {
			b = &Backend{} // the owner is unknown, so the cause is the operator's
		}
		c.by(b.tenant()).urgent = true
		c.by(b.tenant()).guard = true
	}
	for _, choice := range either(was.Choices, is.Choices, func(c *Choice) string { return c.Name }) {
		of(choice.Cases[0].Backend)
	}
	for _, s := range either(was.Streams, is.Streams, Stream.name) {
		of(s.Backend)
	}
	c.addListeners(have, want)
	if was.Inspect != is.Inspect {
		for _, b := range passing(have, want) {
			of(b.Name)
		}
	}
}

// addListeners adds the causes of changed Listeners and Forms. If a Listener asks for other
// certificates of clients, the backends of its routes have other guards in the worker. A Form
// belongs to the tenants that Picks with this Form lead to; one that nobody needs is not urgent.
func (c causes) addListeners(have, want *Config) {
	scopes := make(map[string]bool)
	for _, l := range either(have.Listeners, want.Listeners, Listener.scope) {
		c.by(l.Owner).urgent = true
		i, j := listenerAt(have.Listeners, l.At), listenerAt(want.Listeners, l.At)
		if i != nil && j != nil && (i.ClientCA != j.ClientCA || i.Insecure && !j.Insecure) {
			c.by(l.Owner).guard, scopes[l.scope()] = true, true
		}
	}
	forms := make(map[string]bool)
	for _, f := range others(want.Forms, have.Forms, formName) {
		forms[f.Name] = byName(have.Forms, f.Name, formName) == nil
	}
	for _, r := range want.Routes {
		pick := want.pick(r.Pick)
		news := pick != nil && slices.ContainsFunc(pick.forms, func(f *Form) bool { return forms[f.Name] })
		if !news && !scopes[r.Scope] {
			continue
		}
		for name := range want.Targets(r) {
			b := find(want.Backends, name)
			switch {
			case b == nil:
			case scopes[r.Scope]:
				c.stale(b)
			default:
				c.by(b.tenant()).urgent = true
			}
		}
	}
	if !slices.EqualFunc(have.Forms, want.Forms, func(a, b *Form) bool { return a.Name == b.Name }) && len(c) == 0 {
		c.by(Tenant{})
	}
}

// listenerAt returns the Listener at an address, or nil.
func listenerAt(all []Listener, at netip.AddrPort) *Listener {
	for i := range all {
		if all[i].At == at {
			return &all[i]
		}
	}
	return nil
}

// addUsers adds the causes of changed tables, userlists and files. Each tenant that uses them gets
// a cause.
func (c causes) addUsers(names []string, have, want *Config) {
	changed, used := make(map[string]bool, len(names)), make(map[string]bool)
	for _, name := range names {
		changed[name] = true
	}
	for _, b := range slices.Concat(have.Backends, want.Backends) {
		for _, name := range b.needs() {
			if changed[name] {
				used[name] = true
				c.stale(b)
			}
		}
	}
	for _, l := range slices.Concat(have.Listeners, want.Listeners) {
		if changed[l.ClientCA] {
			used[l.ClientCA] = true
			c.by(l.Owner).urgent = true
		}
	}
	for _, cert := range slices.Concat(have.Certs, want.Certs) {
		if changed[cert.ClientCA] {
			used[cert.ClientCA] = true
			c.shown(cert, want)
		}
	}
	for name := range changed {
		if !used[name] {
			c.by(Tenant{}).urgent = true
		}
	}
}

// addCerts adds the causes of certificates that only a reload changes.
func (c causes) addCerts(was, is []*Cert, want *Config) {
	for _, cert := range either(was, is, certName) {
		c.by(cert.tenant()).urgent = true
		named := func(o *Cert) bool { return o.Name == cert.Name }
		i, j := slices.IndexFunc(was, named), slices.IndexFunc(is, named)
		if i < 0 || j < 0 || !was[i].asksAs(is[j]) {
			c.shown(cert, want)
		}
	}
}

// shown notes that cert changes the certificates that clients have to show.
func (c causes) shown(cert *Cert, want *Config) {
	if cert.ClientCA == "" {
		return
	}
	of := cert.tenant()
	one := c.by(of)
	one.urgent, one.guard = true, true
	for _, b := range want.Backends {
		if b.tenant() == of && slices.ContainsFunc(b.Directives, func(d Directive) bool {
			return d.phase == phaseShown
		}) {
			c.stale(b)
		}
	}
}

// passing returns the backends that get TLS connections as they are (Passthrough).
func passing(configs ...*Config) (all []*Backend) {
	for _, cfg := range configs {
		for _, b := range cfg.Backends {
			if b.TCP && !slices.ContainsFunc(cfg.Streams, func(s Stream) bool { return s.Backend == b.Name }) {
				all = append(all, b)
			}
		}
	}
	return all
}

// either returns the elements of each list that the other list lacks, or has with another content.
func either[T any](was, is []T, name func(T) string) (all []T) {
	one := func(list, other []T) {
		by := make(map[string]T, len(other))
		for _, e := range other {
			by[name(e)] = e
		}
		for _, e := range list {
			if o, known := by[name(e)]; !known || !reflect.DeepEqual(o, e) {
				all = append(all, e)
			}
		}
	}
	one(was, is)
	one(is, was)
	return all
}

// differing returns the names of the elements that either returns.
func differing[T any](was, is []T, name func(T) string) (names []string) {
	for _, e := range either(was, is, name) {
		names = append(names, name(e))
	}
	return names
}
