package haproxy

import "slices"

// closed holds the backends that take no requests until a reload, because guards of a tenant beyond
// its budget wait for that reload. A tenant that changes its guards without end thus closes only
// its own paths.
type closed struct {
	stale map[string]bool // backends with other guards in the worker than the wanted guards

	// lax reports whether a former backend admits clients that its successor rejects. It does so
	// only if the tenant of the successor is beyond its budget. lax is nil if no tenant is beyond
	// its budget.
	lax func(former, instead string) bool
}

// close notes the backends and routes that take no requests while the changes of late tenants wait.
func (h *held) close(late map[Tenant]*cause, told *outline, want *Config) {
	if len(late) == 0 || told == nil {
		return
	}
	h.stale = make(map[string]bool)
	for _, c := range late {
		for name := range c.stale {
			h.stale[name] = true
		}
	}
	h.lax = func(former, instead string) bool {
		f, n := find(told.cfg.Backends, former), find(want.Backends, instead)
		return n != nil && late[n.tenant()] != nil && (f == nil || !f.covers(n))
	}
	if h.rest != "" && h.lax(h.rest, want.DefaultBackend) {
		h.rest = waiting
	}
	for _, s := range told.cfg.Streams {
		at, is := slices.BinarySearchFunc(want.Streams, s, compareStreams)
		if is && s.Backend != want.Streams[at].Backend && h.lax(s.Backend, want.Streams[at].Backend) {
			h.stale[s.Backend] = true
		}
	}
}

// shuts reports whether a route takes no requests. former is the backend to which it led, or
// empty if it leads where it should. If the worker lacks its Choice, nobody can tell whether the
// Choice is stricter than the one before.
func (c *closed) shuts(r *Route, former string, lacksChoice bool) bool {
	if c.lax == nil {
		return false
	}
	return c.stale[r.Backend] || former != "" && c.lax(former, r.Backend) || lacksChoice && c.lax("", r.Backend)
}

// shutsScoped reports whether a route with a Scope takes no requests. former is the route that it
// was, if held is set. unknown has the backends that the worker lacks.
func (h *held) shutsScoped(want *Config, r, former *Route, held bool, unknown map[string]*Backend) bool {
	for name := range want.Targets(r) {
		next := unknown[name]
		switch {
		case h.stale[name], next != nil && !held && next.rejects():
			return true
		case next == nil || h.lax == nil || !held:
			continue
		}
		for f := range h.told.Targets(former) {
			if h.lax(f, name) {
				return true
			}
		}
	}
	return false
}

// shutServers closes the servers of stale backends, because not only routes lead to them.
func (c *closed) shutServers(backends []*Backend, states States) {
	for i, b := range backends {
		if c.stale[b.Name] {
			states[i] = shut([]*Backend{b}, States{states.of(i)}).of(0)
		}
	}
}

// shut returns the route with a backend that answers 503.
func (r *Route) shut() *Route {
	r = new(*r)
	r.Canary, r.CanaryWeight, r.Choice, r.Pick = "", 0, "", ""
	switch {
	case r.Scope == "" && r.Match == Passthrough:
		r.Backend = "" // TLS ends here, and no request comes through
	case r.Scope == "":
		r.Backend = waiting
	case r.streams():
		r.To = Target{} // HAProxy closes the connection
	default:
		r.To = To(waiting)
	}
	return r
}
