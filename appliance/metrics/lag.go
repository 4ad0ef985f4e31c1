package metrics

import (
	"maps"
	"net/netip"
	"time"

	"sallyport/appliance/plan"
	"sallyport/haproxy"
	"sallyport/routes"
)

// lags measure how long the cluster waits for the appliance. The zero value is ready to use.
type lags struct {
	opening map[haproxy.ServerID]time.Time // servers that may be opened and are not open yet, since when

	offers    []routes.Offer    // of this round
	announced map[via]time.Time // when each was announced; route makes it from offers
	routed    map[via]time.Time // the announcement for which each route was added last
}

// via is a route.
type via struct {
	prefix netip.Prefix
	hop    netip.Addr
}

// Offers notes the offers of a round, for Routed.
func (l *Loop) Offers(offers []routes.Offer) { l.lags.offers, l.lags.announced = offers, nil }

// Routed observes a route that was added, once for each announcement. If another program deletes the
// route and it is added again, the announcement is an old one, and does not count.
func (l *Loop) Routed(s plan.AddRoute, now time.Time) {
	if at := l.lags.route(via{s.To, s.Via}); !at.IsZero() {
		observe(l.routed, now.Sub(at))
	}
}

// Servers observes each server that a round has opened. wanted are the planned steps, and done are
// the steps that took effect. The next call forgets servers that it does not find in wanted.
func (l *Loop) Servers(wanted, done []plan.SetServer, at, now time.Time) {
	opening := make(map[haproxy.ServerID]time.Time, len(wanted))
	for _, s := range wanted {
		if s.State != haproxy.Open {
			continue
		}
		opening[s.ID] = at
		if began, waits := l.lags.opening[s.ID]; waits {
			opening[s.ID] = began
		}
	}
	for _, s := range done {
		if began, waits := opening[s.ID]; waits && s.State == haproxy.Open {
			observe(l.opened, now.Sub(began))
			delete(opening, s.ID)
		}
	}
	l.lags.opening = opening
}

// route returns when a route that was added was announced, or zero if it was added for this announcement before.
func (l *lags) route(v via) time.Time {
	if l.announced == nil {
		l.announced = make(map[via]time.Time, len(l.offers))
		for _, o := range l.offers {
			if v := (via{o.Prefix, o.NextHop}); o.Announced.After(l.announced[v]) {
				l.announced[v] = o.Announced
			}
		}
		maps.DeleteFunc(l.routed, func(v via, _ time.Time) bool { return l.announced[v].IsZero() })
	}
	at := l.announced[v]
	if at.IsZero() || at.Equal(l.routed[v]) {
		return time.Time{}
	}
	if l.routed == nil {
		l.routed = map[via]time.Time{}
	}
	l.routed[v] = at
	return at
}
