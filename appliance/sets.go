package appliance

import (
	"sallyport/appliance/config"
	"sallyport/appliance/plan"
	"sallyport/appliance/status"
)

// drained returns the clusters that give way to the others of their set: by their state, by command, or by
// their own ConfigMap.
func (l *loop) drained(v *status.View) map[string]bool {
	all := make(map[string]bool)
	for i := range l.cfg.Clusters {
		c := &l.cfg.Clusters[i]
		if c.Set == "" {
			continue
		}
		percent, lowered := v.Compiled.Percent[c.Name]
		if c.State == config.Drained || !l.retired.get(c.Name).IsZero() || lowered && percent == 0 {
			all[c.Name] = true
		}
	}
	return all
}

// shares returns the shares that clusters are asked to take in their sets. It returns nil if each pod is equal.
func (l *loop) shares(v *status.View) map[string]plan.Share {
	all, equal := make(map[string]plan.Share), true
	for i := range l.cfg.Clusters {
		c := &l.cfg.Clusters[i]
		if c.Set == "" {
			continue
		}
		share := plan.Share{Weight: c.Weight, Percent: 100}
		if percent, lowered := v.Compiled.Percent[c.Name]; lowered {
			share.Percent = percent
		}
		all[c.Name], equal = share, equal && share == plan.Share{Percent: 100}
	}
	if equal {
		return nil
	}
	return all
}

// silent returns the clusters with routes that stay (bgp.failStatic) and without a BGP session. A cluster
// without an earlier session of this process is silent once the patience of a start has passed.
func (l *loop) silent(v *status.View) map[string]bool {
	heard, up := make(map[string]bool), make(map[string]bool)
	for _, p := range v.BGP.Peers {
		if !p.Upstream {
			heard[p.Cluster], up[p.Cluster] = heard[p.Cluster] || l.heard[p.Addr], up[p.Cluster] || p.Up()
		}
	}
	all := make(map[string]bool)
	for cluster := range v.BGP.Static {
		if (heard[cluster] || v.At.Sub(l.started) > status.Patience) && !up[cluster] {
			all[cluster] = true
		}
	}
	return all
}

// least returns the fewest ready servers of the clusters that should have more than one.
func (l *loop) least() map[string]plan.Least {
	all := make(map[string]plan.Least)
	for i := range l.cfg.Clusters {
		if c := &l.cfg.Clusters[i]; c.Set != "" && c.MinReady.More() {
			all[c.Name] = plan.Least(c.MinReady)
		}
	}
	return all
}
