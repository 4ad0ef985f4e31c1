package haproxy

import (
	"cmp"
	"fmt"
	"time"
)

// After a reload the old worker finishes its connections. HAProxy ends the oldest worker when there
// are more than oldWorkers. The reloads of one tenant could therefore end the WebSockets and
// downloads of all other tenants. Two bounds prevent that:
//
//   - Each tenant has a budget of reloads: some at once, and then one in a while, which is
//     the longer the more old workers there are. What a tenant changes beyond its budget waits
//     for it, or goes along with the next reload for somebody else. The operator has no budget.
//   - The more old workers there are, the longer is the least time between two reloads.
//
// A guard within the budget of its tenant does not wait for old workers. A guard beyond the budget
// waits for the reload. Until then the path that it should guard takes no requests: see closed.

const (
	// refillEvery is the time after which a tenant may cause another reload, while there are few
	// old workers. A reload that nobody waits for waits as long (idleReload).
	refillEvery = 30 * time.Second
	// crowd is the number of old workers that doubles refillEvery. A tenant that changes a
	// setting without end keeps some twelve old workers busy that way.
	crowd = 3
	// freeWorkers is the number of old workers below which only Options.MinReload delays a reload.
	freeWorkers = 15
	// hardStop is the longest life of an old worker ("hard-stop-after").
	hardStop = 30 * time.Minute
)

// refill returns the time after which a tenant may cause another reload, with that many old
// workers.
func refill(old int) time.Duration { return refillEvery << (min(old, oldWorkers) / crowd) }

// pace returns the least time between two reloads, with that many old workers. At the slowest pace
// old workers end by themselves (hardStop) before there are too many.
func pace(old int) time.Duration {
	if old < freeWorkers {
		return 0
	}
	const slowest = hardStop / oldWorkers
	return min(10*time.Second<<min(old-freeWorkers, oldWorkers), slowest)
}

// A Tenant is a namespace of a cluster: its objects are changed by the same people. The
// operator is the Tenant without a namespace.
type Tenant struct {
	Cluster   string `json:"cluster"`
	Namespace string `json:"namespace"`
}

// String returns CLUSTER/NAMESPACE.
func (t Tenant) String() string { return t.Cluster + "/" + t.Namespace }

func compareTenants(a, b Tenant) int {
	return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Namespace, b.Namespace))
}

// A Wait says that changes of a tenant wait for a reload longer than Options.MinReload.
type Wait struct {
	Tenant
	Until time.Time `json:"until"` // a reload for somebody else brings the changes sooner
	// Most is the budget that is used up. It is 0 if the changes wait because of old workers.
	Most     int      `json:"most,omitempty"`
	Backends []string `json:"backends"`         // the backends with settings that wait, sorted
	Closed   []string `json:"closed,omitempty"` // the Backends that take no requests until then, because a guard waits
}

// Words describes a Wait in words, as of the time now.
func (w Wait) Words(now time.Time) string {
	who := "the operator"
	if w.Namespace != "" {
		who = "namespace " + w.Namespace
	}
	if w.Cluster != "" {
		who += " of cluster " + w.Cluster
	}
	why := "because too many old workers still finish their connections"
	if w.Most > 0 {
		why = fmt.Sprintf("because it may cause %d at once (clusters[].ingress.limits.reloads)", w.Most)
	}
	text := fmt.Sprintf("changes of %s wait for a reload, for %s at most, %s", who,
		max(w.Until.Sub(now), 0).Round(time.Second), why)
	if len(w.Closed) > 0 {
		text += fmt.Sprintf("; %d of %d backends take no requests until then, since their guards change", len(w.Closed),
			len(w.Backends))
	}
	return text
}

// budgets holds how much of its budget each tenant has used.
type budgets map[Tenant]spending

// A spending is how much of its budget a tenant has used, as of a moment. It shrinks with time.
type spending struct {
	reloads float64
	at      time.Time
}

// now returns the spending at another time. The tenant gets one reload back after every, a length
// of time.
func (s spending) now(at time.Time, every time.Duration) spending {
	return spending{reloads: max(s.reloads-float64(at.Sub(s.at))/float64(every), 0), at: at}
}

// within returns the spending, limited to a budget of most reloads. An operator may have lowered
// the budget. The next reload then waits until one reload is given back, and not until the
// difference is given back.
func (s spending) within(most int) spending {
	return spending{reloads: min(s.reloads, float64(most)), at: s.at}
}

// due returns when a tenant may cause a reload. most is its budget, and 0 means that it has no
// bound.
func (b budgets) due(t Tenant, most int, now time.Time, every time.Duration) time.Time {
	s, spends := b[t]
	if !spends || most <= 0 || t.Namespace == "" {
		return now
	}
	s = s.now(now, every).within(most)
	b[t] = s
	return now.Add(time.Duration(max(s.reloads+1-float64(most), 0) * float64(every)))
}

// spend takes a reload from the budget of a tenant, unless the budget is used up. most is not 0.
func (b *budgets) spend(t Tenant, most int, now time.Time, every time.Duration) {
	if *b == nil {
		*b = make(budgets)
	}
	s := (*b)[t].now(now, every)
	s.reloads++
	(*b)[t] = s.within(most)
}

// forget drops the tenants that have all of their budget again.
func (b budgets) forget(now time.Time, every time.Duration) {
	for t, s := range b {
		if s.now(now, every).reloads == 0 {
			delete(b, t)
		}
	}
}

// budgetOf returns how many reloads a tenant may cause at once. 0 means that there is no bound.
func (c *Config) budgetOf(t Tenant) int {
	if t.Namespace == "" {
		return 0
	}
	return c.Reloads[t.Cluster]
}

// noteWaits notes the waiting tenants for the status.
func (p *Proxy) noteWaits(all []Wait) {
	if len(all)+len(p.Info().Waits) > 0 {
		p.note(func(i *Info) { i.Waits = all })
	}
}
