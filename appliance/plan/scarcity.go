package plan

import (
	"maps"
	"slices"
	"time"

	"sallyport/haproxy"
)

const (
	// wellFor is how long a cluster has enough ready servers before it takes requests again. It is doubled by
	// each further failure within calm, up to wellAtMost.
	wellFor    = 10 * time.Second
	wellAtMost = 5 * time.Minute
	calm       = 10 * time.Minute
)

// A Least is the fewest ready servers of a Service with which a cluster takes its requests. If Servers is 0, it is
// Percent of all endpoints that the Service has in the cluster, and at least one server.
type Least struct{ Servers, Percent int }

// of returns the fewest ready servers of a Service with so many endpoints.
func (l Least) of(endpoints int) int {
	if l.Percent == 0 {
		return l.Servers
	}
	return max((endpoints*l.Percent+99)/100, 1)
}

// A Scarcity knows which clusters have too few ready servers for a Service that another cluster serves, too. A
// cluster that has failed gives way at once, and takes requests again only after a while, so that pods that
// come and go do not move the traffic with them. The zero Scarcity is ready. It is not safe for concurrent use.
type Scarcity struct {
	want   []*haproxy.Backend
	live   haproxy.LiveBackends
	least  map[string]Least
	known  map[string]map[string]*stock // by backend and cluster
	scarce map[string]map[string]bool   // the last result
}

// A stock is what a Scarcity remembers of the servers that a cluster has in a backend.
type stock struct {
	scarce   bool
	failures int       // in a row, each within calm after the one before
	failed   time.Time // the last of them
	well     time.Time // since when there are enough servers; zero while there are too few
}

// Update returns, by backend and cluster, the clusters with fewer ready servers than least. The caller does not
// change the result. A ready server is in use or drained, and does not fail its checks. A cluster that is missing
// in least is never returned: HAProxy itself leaves out a cluster without any ready server.
func (s *Scarcity) Update(
	want []*haproxy.Backend, live haproxy.LiveBackends, least map[string]Least, now time.Time,
) map[string]map[string]bool {
	if len(least) == 0 {
		*s = Scarcity{}
		return nil
	}
	if len(s.scarce) == 0 && slices.Equal(s.want, want) && len(live.Differ(s.live)) == 0 && maps.Equal(s.least, least) {
		return nil
	}
	known, scarce := make(map[string]map[string]*stock), make(map[string]map[string]bool)
	for _, b := range want {
		if b.Set == "" {
			continue
		}
		ready, of := readyIn(b, live.Get(b.Name)), make(map[string]*stock)
		for cluster, least := range least {
			n, there := ready[cluster]
			has := s.known[b.Name][cluster]
			switch {
			case !there && (has == nil || has.scarce && now.Sub(has.failed) > calm):
				continue // its pods are not the Service's, or no longer
			case has == nil:
				has = new(stock)
			}
			of[cluster] = has
			need := least.of(n.all + b.Unready[cluster])
			enough := n.ready >= need || !has.scarce && n.ready+n.coming >= need
			if has.update(enough, now); has.scarce && there {
				if scarce[b.Name] == nil {
					scarce[b.Name] = make(map[string]bool)
				}
				scarce[b.Name][cluster] = true
			}
		}
		known[b.Name] = of
	}
	s.want, s.live, s.least, s.known, s.scarce = want, live, least, known, scarce
	return scarce
}

// servers count the servers of a cluster that do not terminate: all, the ready ones, and those that HAProxy is
// about to get.
type servers struct{ all, ready, coming int }

// readyIn returns the servers of each cluster in a backend. Servers on their way keep a cluster in use, so that
// it does not give way while its pods are replaced, or while they become backups.
func readyIn(b *haproxy.Backend, live *haproxy.LiveBackend) map[string]servers {
	all := make(map[string]servers)
	for i, one := range live.Match(b.Servers) {
		if i < 0 || b.Servers[i].Drain {
			continue
		}
		n := all[b.ClusterOf(&b.Servers[i])]
		n.all++
		switch {
		case one == nil:
			n.coming++
		case one.State >= haproxy.Drain && one.Check != haproxy.Down:
			n.ready++
		}
		all[b.ClusterOf(&b.Servers[i])] = n
	}
	return all
}

// update notes whether there are enough servers now. The first servers of a cluster are in use as soon as there
// are enough of them.
func (s *stock) update(enough bool, now time.Time) {
	switch {
	case !enough && !s.scarce:
		if !s.well.IsZero() {
			if now.Sub(s.failed) > calm {
				s.failures = 0
			}
			s.failures, s.failed = s.failures+1, now
		}
		s.scarce, s.well = true, time.Time{}
	case !enough:
		s.well = time.Time{}
	case s.well.IsZero():
		s.well = now
	}
	if s.scarce && !s.well.IsZero() && now.Sub(s.well) >= s.pause() {
		s.scarce = false
	}
}

// pause returns how long there have to be enough servers before they take requests again.
func (s *stock) pause() time.Duration {
	if s.failures == 0 {
		return 0
	}
	return min(wellFor<<min(s.failures-1, 10), wellAtMost)
}
