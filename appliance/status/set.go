package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"sallyport/appliance/config"
	"sallyport/haproxy"
)

// ServedOnlyBy returns the Services that a cluster serves and that no other cluster has a ready server
// for, each with its hosts. They are sorted. A cluster that is drained is no substitute, nor one that has
// lost every BGP session.
func (v *View) ServedOnlyBy(cluster string) (all []string) {
	if v.Config == nil {
		return nil
	}
	alone := map[string]string{} // backend to Service
	for _, b := range v.Config.Backends {
		if v.onlyBy(b, cluster) {
			alone[b.Name] = b.Service
		}
	}
	hosts := map[string]map[string]bool{} // of each Service
	for _, service := range alone {
		hosts[service] = map[string]bool{}
	}
	for _, r := range v.Config.Routes {
		if service, is := alone[r.Backend]; is && r.Host != "" {
			hosts[service][r.Host] = true
		}
	}
	for _, service := range slices.Sorted(maps.Keys(hosts)) {
		all = append(all, service+hostsInWords(hosts[service]))
	}
	return all
}

// onlyBy reports whether a cluster has servers of a backend, and no other cluster has a ready server for it.
func (v *View) onlyBy(b *haproxy.Backend, cluster string) bool {
	own, other := false, false
	for i, live := range v.Have.Backends.Get(b.Name).Match(b.Servers) {
		if i < 0 || b.Servers[i].Drain {
			continue
		}
		of := b.ClusterOf(&b.Servers[i])
		ready := live != nil && live.State == haproxy.Open && live.Check != haproxy.Down &&
			!v.Want.Drained[of] && !v.Want.Silent[of]
		own, other = own || of == cluster, other || of != cluster && ready
	}
	return own && !other
}

// Replaced reports whether other clusters of its set have a ready server for every Service that a cluster serves. A
// cluster without a set is never replaced.
func (v *View) Replaced(cluster string) bool {
	inSet := slices.ContainsFunc(v.Settings.Config.Clusters, func(c config.Cluster) bool {
		return c.Name == cluster && c.Set != ""
	})
	return inSet && !slices.ContainsFunc(v.Compiled.Config.Backends, func(b *haproxy.Backend) bool {
		return v.onlyBy(b, cluster)
	})
}

// hostsInWords returns one host in brackets, and how many more there are.
func hostsInWords(of map[string]bool) string {
	hosts := slices.Sorted(maps.Keys(of))
	switch len(hosts) {
	case 0:
		return ""
	case 1:
		return " (host " + hosts[0] + ")"
	}
	return fmt.Sprintf(" (host %s and %s)", hosts[0], Counted(len(hosts)-1, "more host"))
}

// DrainInWords returns how long a cluster has been drained by command, or "" if it is not drained so.
func (c *Cluster) DrainInWords(now time.Time) string {
	if c.Drained.IsZero() {
		return ""
	}
	return fmt.Sprintf("cluster %s: it has been drained by sallyport drain for %s", c.Name, Ago(now, c.Drained))
}

// A Part is what a cluster has of the requests for exported Services in its set. Its numbers are from 0 to 1.
type Part struct {
	Asked    float64 // that it should have; -1 if each pod is equal
	Share    float64 // that HAProxy sends to it by the weights of its servers, on average over the Services
	Services int     // exported Services that it has servers for
	Scarce   int     // of those, the ones for which it has too few ready servers
	Failing  int     // servers for them that are open and fail their checks
}

// falls reports whether the cluster has less than it should have, or nothing where every pod is equal.
func (p Part) falls() bool { return p.Share < max(p.Asked, 2*near)-near }

// Parts returns the Part of each cluster that is in a set.
func (v *View) Parts() map[string]Part {
	all, sets := make(map[string]Part), make(map[string]float64) // sets: the weights of those that are asked for some
	for i := range v.Settings.Config.Clusters {
		if c := &v.Settings.Config.Clusters[i]; c.Set != "" {
			all[c.Name] = Part{Asked: -1}
			sets[c.Set] += v.weightOf(c)
		}
	}
	for i := range v.Settings.Config.Clusters {
		if c := &v.Settings.Config.Clusters[i]; c.Weight > 0 && sets[c.Set] > 0 {
			part := all[c.Name]
			part.Asked = v.weightOf(c) / sets[c.Set]
			all[c.Name] = part
		}
	}
	for _, b := range v.Want.Backends {
		if b.Set == "" {
			continue
		}
		shares, failing := v.sharesIn(b)
		for cluster, share := range shares {
			part := all[cluster]
			part.Services, part.Share = part.Services+1, part.Share+share
			part.Failing += failing[cluster]
			if v.Want.Scarce[b.Name][cluster] {
				part.Scarce++
			}
			all[cluster] = part
		}
	}
	for cluster, part := range all {
		part.Share /= float64(max(part.Services, 1))
		all[cluster] = part
	}
	return all
}

// weightOf returns the weight of a cluster among those that should take requests now.
func (v *View) weightOf(c *config.Cluster) float64 {
	if c.Set == "" || c.State == config.Standby || v.Want.Drained[c.Name] || v.Want.Silent[c.Name] {
		return 0
	}
	share := v.Want.Shares[c.Name]
	return float64(share.Weight*share.Percent) / 100
}

// sharesIn returns which part of the requests for a backend each of its clusters gets, and how many open servers
// of each fail their checks. Backups get requests only if no other server can.
func (v *View) sharesIn(b *haproxy.Backend) (shares map[string]float64, failing map[string]int) {
	shares, failing = make(map[string]float64), make(map[string]int)
	var sums [2]float64 // of servers, and of backups
	var weights [2]map[string]float64
	for i, live := range v.Have.Backends.Get(b.Name).Match(b.Servers) {
		if i < 0 {
			continue
		}
		s, tier := &b.Servers[i], 0
		if s.Backup {
			tier = 1
		}
		cluster := b.ClusterOf(s)
		if shares[cluster] = 0; live == nil || live.State != haproxy.Open {
			continue
		}
		if live.Check == haproxy.Down {
			failing[cluster]++
			continue
		}
		if weights[tier] == nil {
			weights[tier] = make(map[string]float64)
		}
		weights[tier][cluster] += float64(live.Weight)
		sums[tier] += float64(live.Weight)
	}
	tier := 0
	if sums[0] == 0 {
		tier = 1
	}
	for cluster, weight := range weights[tier] {
		shares[cluster] = weight / max(sums[tier], 1)
	}
	return shares, failing
}

// silentState is the state of a cluster that gives way because it has lost every BGP session.
const silentState = "silent"

// clusters describes each cluster, with its part in its set, its sessions, servers and hosts.
func (v *View) clusters() []ClusterStatus {
	clusters, tally, hosts, parts := v.known(), v.Tally(), v.hostsByCluster(), v.Parts()
	for i := range clusters {
		c := &clusters[i]
		c.State = string(config.Serving)
		least := ""
		for j := range v.Settings.Config.Clusters {
			if of := &v.Settings.Config.Clusters[j]; of.Name == c.Name && of.Set != "" {
				c.Set, c.State, least = of.Set, cmp.Or(string(of.State), c.State), of.MinReady.String()
			}
		}
		by := v.Clusters[i].Drained
		part, sharing := parts[c.Name]
		if sharing {
			c.Share, c.Scarce = &part.Share, part.Scarce
			if part.Asked >= 0 {
				c.Asked = &part.Asked
			}
		}
		switch {
		case !by.IsZero() && c.Set != "":
			c.State, c.Since, c.Why = string(config.Drained), by, "by sallyport drain"
		case c.State == string(config.Drained):
			c.Why = "by clusters[].state"
		case v.Want.Silent[c.Name]:
			c.State, c.Why = silentState, "every BGP session is lost; other clusters of the set take over"
		case v.Want.Drained[c.Name] && c.Set != "":
			c.State, c.Why = string(config.Drained), "by cluster-weight of its own ConfigMap"
		case part.Scarce > 0:
			c.Why = "too few ready servers for " + Counted(part.Scarce, "Service") + " (minReady: " + least + ")"
		case part.Failing == 1 && part.falls():
			c.Why = "1 server fails its checks"
		case part.Failing > 1 && part.falls():
			c.Why = Counted(part.Failing, "server") + " fail their checks"
		}
		for _, p := range v.BGP.Peers {
			if p.Cluster == c.Name && !p.Upstream {
				c.Peers++
				if p.Up() {
					c.Established++
				}
			}
		}
		for state, n := range tally.Clusters[c.Name].Servers {
			c.Servers += n
			if haproxy.State(state) == haproxy.Open {
				c.Open = n
			}
		}
		c.Hosts = hosts[c.Name]
	}
	return clusters
}

// hostsByCluster returns for how many hosts each cluster has servers.
func (v *View) hostsByCluster() map[string]int {
	if v.Config == nil {
		return nil
	}
	of := map[string]map[string]bool{} // backend to clusters
	for _, b := range v.Config.Backends {
		clusters := map[string]bool{}
		for i := range b.Servers {
			clusters[b.ClusterOf(&b.Servers[i])] = true
		}
		of[b.Name] = clusters
	}
	type served struct{ cluster, host string }
	seen := map[served]bool{}
	for _, r := range v.Config.Routes {
		for cluster := range of[r.Backend] {
			if r.Host != "" {
				seen[served{cluster, r.Host}] = true
			}
		}
	}
	counts := map[string]int{}
	for s := range maps.Keys(seen) {
		counts[s.cluster]++
	}
	return counts
}
