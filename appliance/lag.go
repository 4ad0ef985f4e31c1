package appliance

import (
	"maps"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sallyport/appliance/plan"
	"sallyport/haproxy"
	"sallyport/routes"
)

// lags measure how long the cluster waits for the appliance. The zero value is ready to use. The
// loop owns it.
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

// servers observes each server that a round has opened. wanted are the planned steps, and done are
// the steps that took effect. The next call forgets servers that it does not find in wanted.
func (l *lags) servers(wanted, done []plan.SetServer, at, now time.Time, to prometheus.Histogram) {
	opening := make(map[haproxy.ServerID]time.Time, len(wanted))
	for _, s := range wanted {
		if s.State != haproxy.Open {
			continue
		}
		opening[s.ID] = at
		if began, waits := l.opening[s.ID]; waits {
			opening[s.ID] = began
		}
	}
	for _, s := range done {
		if began, waits := opening[s.ID]; waits && s.State == haproxy.Open {
			observe(to, now.Sub(began))
			delete(opening, s.ID)
		}
	}
	l.opening = opening
}

// read notes the offers of a round.
func (l *lags) read(offers []routes.Offer) { l.offers, l.announced = offers, nil }

// route observes a route that was added, once for each announcement. If another program deletes the
// route and it is added again, the announcement is an old one, and does not count.
func (l *lags) route(s plan.AddRoute, now time.Time, to prometheus.Histogram) {
	if l.announced == nil {
		l.announced = make(map[via]time.Time, len(l.offers))
		for _, o := range l.offers {
			if v := (via{o.Prefix, o.NextHop}); o.Announced.After(l.announced[v]) {
				l.announced[v] = o.Announced
			}
		}
		maps.DeleteFunc(l.routed, func(v via, _ time.Time) bool { return l.announced[v].IsZero() })
	}
	v := via{s.To, s.Via}
	at := l.announced[v]
	if at.IsZero() || at.Equal(l.routed[v]) {
		return
	}
	if l.routed == nil {
		l.routed = map[via]time.Time{}
	}
	l.routed[v] = at
	observe(to, now.Sub(at))
}
