package plan

import (
	"net/netip"
	"slices"
	"time"

	"sallyport/haproxy"
	"sallyport/routes"
)

const (
	// DoubtLasts bounds how long after a server's first failed check the kernel is
	// asked whether the server's node is gone. By then the kernel has retransmitted
	// unacknowledged data twice.
	DoubtLasts = 10 * time.Second
	// DoubtTick is the longest rest between two readings during a doubt. The kernel retransmits
	// after 0.2 s, and again 0.4 s later.
	DoubtTick = 100 * time.Millisecond
)

// A Doubt notices a node that is gone, long before BGP or the cluster report it.
// The zero Doubt is ready. It is not safe for concurrent use.
type Doubt struct {
	failing map[routes.End]bool     // servers that are not closed and fail their checks
	since   time.Time               // when a server last began to fail
	of      haproxy.LiveBackends    // at the last update
	by      map[string][]routes.End // failing, by backend
}

// Update notes which servers fail their checks.
func (d *Doubt) Update(have Have, now time.Time) {
	names := have.Backends.Differ(d.of)
	d.of = have.Backends
	if len(names) == 0 {
		return
	}
	if d.by == nil {
		d.by = map[string][]routes.End{}
	}
	for _, name := range names {
		delete(d.by, name)
		if b := have.Backends.Get(name); b != nil {
			for _, s := range b.Servers {
				if fails(s) {
					d.by[name] = append(d.by[name], EndOf(s))
				}
			}
		}
	}
	failing := map[routes.End]bool{}
	for _, servers := range d.by {
		for _, s := range servers {
			failing[s] = true
			if !d.failing[s] {
				d.since = now
			}
		}
	}
	d.failing = failing
}

// Fresh reports whether a server began to fail its checks a short time ago.
func (d *Doubt) Fresh(now time.Time) bool {
	return len(d.failing) > 0 && now.Sub(d.since) <= DoubtLasts
}

// Forsaken returns the failing servers behind a next hop that is gone. mute holds the remote ends
// of connections that acknowledge nothing.
//
// Neither sign alone is proof. A server that fails its check may be too busy for new
// connections and still serve the old ones well. All ends are mute while our own link
// is down, so another server of the backend has to pass its check. HAProxy can resend
// the ended requests to that server. A mute end that is not a failing server proves
// nothing about its node: a BGP session that a filter cut stays mute for minutes.
func (d *Doubt) Forsaken(have Have, mute map[routes.End]bool) map[routes.End]bool {
	match := have.Routes.Finder()
	hop := func(end routes.End) netip.Addr {
		a := end.To.Addr()
		if have.Direct[a] {
			return a
		}
		_, via, _ := match(end.From, a)
		return via
	}
	gone := make(map[netip.Addr]bool)
	for end := range mute {
		if d.failing[end] {
			gone[hop(end)] = true
		}
	}
	delete(gone, netip.Addr{})
	ends := make(map[routes.End]bool)
	for _, b := range have.Backends.All() {
		if !slices.ContainsFunc(b.Servers, passes) {
			continue
		}
		for _, s := range b.Servers {
			if end := EndOf(s); fails(s) && gone[hop(end)] {
				ends[end] = true
			}
		}
	}
	return ends
}

// EndOf returns the far end of the connections to a server.
func EndOf(s haproxy.Live) routes.End { return routes.End{From: s.Source, To: s.Addr} }

// passes reports whether an open server passes its check.
func passes(s haproxy.Live) bool { return s.State == haproxy.Open && s.Check == haproxy.Up }

// fails reports whether a server that is not closed fails its check.
func fails(s haproxy.Live) bool { return s.State >= haproxy.Drain && s.Check == haproxy.Down }

// Stranded returns the closed servers that lose their route: it changes or disappears in the kernel
// when the table after replaces our routes.
func Stranded(have Have, after routes.Table) map[routes.End]bool {
	ends := make(map[routes.End]bool)
	match, next := have.Routes.Finder(), after.Finder()
	for s := range have.Servers() {
		a := s.Addr.Addr()
		if s.State >= haproxy.Drain || have.Direct[a] {
			continue
		}
		p, via, ok := match(s.Source, a)
		np, nvia, _ := next(s.Source, a)
		if ok && (p != np || via != nvia) {
			ends[EndOf(s)] = true
		}
	}
	return ends
}
