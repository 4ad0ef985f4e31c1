package haproxy

import (
	"cmp"
	"maps"
	"slices"
)

// held keeps parts of the previous configuration until a reload. A route leads to its former
// backend as long as the worker lacks its new backend or Choice. A backend of one namespace never
// stands in for a backend of another namespace. If something is held, the reload is urgent (see
// reloadIfDue), so nothing is held for ever.
type held struct {
	routes map[int]Route // former routes, by the index of the new route in Routes
	told   *Config       // the configuration with the former routes
	picks  []*Pick       // those of the former routes
	rest   string        // the former DefaultBackend; empty if the worker can have the new one
	closed               // the parts that take no requests in the meantime
	keeper
}

// keeper holds the backends of the previous configuration that the new configuration lacks, and
// that are kept.
type keeper struct {
	was, next []*Backend               // backends of the previous and of the new configuration, sorted by name
	new       map[string]bool          // names of backends that the new configuration has, and the worker lacks
	heirs     map[servicePort]*Backend // backends of the new configuration by port; nil before the first use
	kept      map[string]*Backend
}

// servicePort identifies the port of a Service of a cluster.
type servicePort struct{ cluster, service string }

// any reports whether something is held.
func (h *held) any() bool { return len(h.routes) > 0 || h.rest != "" || len(h.kept) > 0 }

// Former returns the backends for Config.Former. Until a reload, the worker sends requests for
// routes of cfg to them. If Apply finds a place without a reload for a backend of cfg, fewer former
// backends are needed, and Result.RetryAt is now.
func (p *Proxy) Former(cfg *Config) []*Backend {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.SortedFunc(maps.Values(p.belief.held(cfg).kept), func(a, b *Backend) int {
		return cmp.Compare(a.Name, b.Name)
	})
}

// held returns the parts of the last configuration that cfg keeps until a reload.
func (b *belief) held(cfg *Config) held {
	if b.told == nil {
		return held{}
	}
	have, in := b.loaded(), workerNames(nil)
	if b.run != nil {
		in = b.run.names()
	}
	return hold(b.told.cfg, cfg, func(name string) bool { return !in.has(name) && find(have.Backends, name) == nil })
}

// hold returns the parts of told that want keeps until a reload. The worker runs told. The function
// lacks reports whether the worker has no backend of a name.
func hold(told, want *Config, lacks func(name string) bool) (h held) {
	if slices.EqualFunc(told.Backends, want.Backends, sameName) && SameList(told.Choices, want.Choices) &&
		slices.Equal(told.Streams, want.Streams) &&
		slices.EqualFunc(told.Forms, want.Forms, func(a, b *Form) bool { return a.Name == b.Name }) {
		return h
	}
	h.told = told
	h.keeper = keeper{
		was: told.Backends, next: want.Backends, new: make(map[string]bool), kept: make(map[string]*Backend),
	}
	for _, b := range others(want.Backends, told.Backends, backendName) {
		if lacks(b.Name) {
			h.new[b.Name] = true
		}
	}
	choices := make(map[string]*Choice, len(told.Choices))
	for _, c := range told.Choices {
		choices[c.Name] = c
	}
	var waiting []int // of the routes
	hosts := make(map[site]bool)
	for i, r := range want.Routes {
		if h.new[r.Backend] || r.Choice != "" && choices[r.Choice] == nil ||
			r.Scope != "" && want.lacks(r, told, func(name string) bool { return h.new[name] }) {
			waiting, hosts[r.site()] = append(waiting, i), true
		}
	}
	former := make(map[Route]Route) // former routes, by host and path, and by host, path and match
	if len(waiting) > 0 {
		h.routes = make(map[int]Route)
		for _, r := range slices.Backward(told.Routes) { // of two for the same requests the first one counts
			if hosts[r.site()] {
				former[Route{Scope: r.Scope, Host: r.Host, Path: r.Path}] = *r
				former[Route{Scope: r.Scope, Host: r.Host, Path: r.Path, Match: r.Match}] = *r
			}
		}
	}
	for _, i := range waiting {
		r := want.Routes[i]
		f, is := former[Route{Scope: r.Scope, Host: r.Host, Path: r.Path, Match: r.Match}]
		if !is {
			f, is = former[Route{Scope: r.Scope, Host: r.Host, Path: r.Path}]
		}
		if r.Scope != "" {
			if is && h.keepWhole(told, &f, want, r) {
				h.routes[i] = f
			}
			continue
		}
		if !h.keep(f.Backend, r.Backend) {
			continue
		}
		if !h.keep(f.Canary, r.Backend) {
			f.Canary, f.CanaryWeight = "", 0
		}
		if c := choices[f.Choice]; c != nil {
			for _, one := range c.Cases {
				h.keep(one.Backend, r.Backend)
			}
		}
		f.Plain = f.Plain && r.Plain
		h.routes[i] = f
	}
	for _, s := range told.Streams {
		if at, is := slices.BinarySearchFunc(want.Streams, s, compareStreams); is {
			h.keep(s.Backend, want.Streams[at].Backend)
		}
	}
	if h.new[want.DefaultBackend] && h.keep(told.DefaultBackend, want.DefaultBackend) {
		h.rest = told.DefaultBackend
	}
	return h
}

// lacks reports whether the worker, which runs told, lacks a Form or a backend of a route.
func (c *Config) lacks(r *Route, told *Config, backend func(name string) bool) bool {
	for name := range c.Targets(r) {
		if backend(name) {
			return true
		}
	}
	pick := c.pick(r.Pick)
	return pick != nil && slices.ContainsFunc(pick.forms, func(f *Form) bool {
		return byName(told.Forms, f.Name, formName) == nil
	})
}

// keepWhole keeps all backends of a former route with a Scope, and its Pick. It reports whether the
// former route may take the requests of the new route. Each backend of the former route then has
// the namespace of some backend of the new route.
func (h *held) keepWhole(told *Config, former *Route, want *Config, r *Route) bool {
	var pairs [][2]string
	for f := range told.Targets(former) {
		instead := ""
		for n := range want.Targets(r) {
			if h.kin(f, n) {
				instead = n
				break
			}
		}
		if instead == "" {
			return false
		}
		pairs = append(pairs, [2]string{f, instead})
	}
	for _, pair := range pairs {
		h.keep(pair[0], pair[1])
	}
	if pick := told.pick(former.Pick); pick != nil {
		h.picks = append(h.picks, pick)
	}
	return true
}

// kin reports whether a former backend and a new one are of the same namespace, or of the same Service
// of a set of clusters.
func (k *keeper) kin(former, instead string) bool {
	f, n := find(k.was, former), find(k.next, instead)
	if f == nil || n == nil || f.Namespace != n.Namespace {
		return false
	}
	return f.Cluster == n.Cluster || f.Set != "" && f.Set == n.Set && f.Service == n.Service
}

// keep keeps a former backend if the new configuration lacks it. It reports whether the former
// backend may take the requests of a new backend. A kept backend gets the present servers of its
// Service, if a new backend has them.
func (k *keeper) keep(former, instead string) bool {
	if !k.kin(former, instead) {
		return false
	}
	f := find(k.was, former)
	if find(k.next, former) == nil && k.kept[former] == nil {
		if k.heirs == nil {
			k.heirs = make(map[servicePort]*Backend, len(k.next))
			for _, b := range k.next {
				k.heirs[servicePort{b.Cluster, b.Service}] = b
			}
		}
		if heir := k.heirs[servicePort{f.Cluster, f.Service}]; heir != nil && f.Service != "" {
			f = f.serving(heir.Servers)
		}
		k.kept[former] = f
	}
	return true
}

func sameName(a, b *Backend) bool { return a == b || a.Name == b.Name }

// find returns the backend of a name in a list that is sorted by name. It returns nil if the list
// has no such backend.
func find(sorted []*Backend, name string) *Backend {
	if at, found := BackendAt(sorted, name); found {
		return sorted[at]
	}
	return nil
}
