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
		if own && !other {
			alone[b.Name] = b.Service
		}
	}
	hosts := map[string]map[string]bool{} // of each Service
	for _, service := range alone {
		hosts[service] = map[string]bool{}
	}
	for i := range v.Config.Routes {
		r := &v.Config.Routes[i]
		if service, is := alone[r.Backend]; is && r.Host != "" {
			hosts[service][r.Host] = true
		}
	}
	for _, service := range slices.Sorted(maps.Keys(hosts)) {
		all = append(all, service+hostsInWords(hosts[service]))
	}
	return all
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

// silentState is the state of a cluster that gives way because it has lost every BGP session.
const silentState = "silent"

// roles adds to each cluster of the status its part in its set, its sessions, servers and hosts.
func (v *View) roles(clusters []ClusterStatus) {
	tally, hosts := v.Tally(), v.hostsByCluster()
	for i := range clusters {
		c := &clusters[i]
		c.State = string(config.Serving)
		for j := range v.Settings.Config.Clusters {
			if of := &v.Settings.Config.Clusters[j]; of.Name == c.Name && of.Set != "" {
				c.Set, c.State = of.Set, cmp.Or(string(of.State), c.State)
			}
		}
		by := v.Clusters[i].Drained
		switch {
		case !by.IsZero() && c.Set != "":
			c.State, c.Since, c.Why = string(config.Drained), by, "by sallyport drain"
		case c.State == string(config.Drained):
			c.Why = "by clusters[].state"
		case v.Want.Silent[c.Name]:
			c.State, c.Why = silentState, "every BGP session is lost; other clusters of the set take over"
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
	for i := range v.Config.Routes {
		r := &v.Config.Routes[i]
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
