package ingress

import (
	"fmt"
	"slices"
	"strings"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/gateway"
	"sallyport/ingress/input"
)

// Sets of clusters
//
// The operator says which clusters form a set (Options.InSet), and a namespace says which of its Services
// are exported (a ServiceExport). Both have to agree, unless the operator says so for all namespaces of a
// cluster (Options.InSet.ExportsAll):
//
//   - A Service that two clusters of a set export is one Service. Whatever leads to it in one of them
//     leads to the pods of both. Its keys, ports and guards are those of the cluster that has the
//     Ingress or route.
//   - Namespaces of one name in a set are one party for a host, if each exports a Service (package owners). A
//     host then stays in use when one of them stops naming it.
//
// A namespace that exports nothing is not changed by another cluster, and a cluster without a set by
// none.

// percents returns how much of its share each cluster of a set takes, if that is less than the whole.
func percents(worlds []*world) map[string]int {
	all := make(map[string]int)
	for _, w := range worlds {
		if w.Options.InSet.Name != "" && w.percent < 100 {
			all[w.Cluster] = w.percent
		}
	}
	return all
}

// sharers returns the worlds whose pods serve a need, the own world first.
func sharers(worlds []*world, n *need) []int {
	all := []int{n.world}
	if n.set == "" {
		return all
	}
	for i, w := range worlds {
		if i != n.world && w.Options.InSet.Name == n.set && w.Exported(n.Service) {
			all = append(all, i)
		}
	}
	return all
}

// touches reports whether something of a need's Service has changed in a world that may share it.
func (c *Compiler) touches(touched []map[serviceKey]bool, n *need) bool {
	for i, services := range touched {
		shares := i == n.world || n.set != "" && c.worlds[i].Options.InSet.Name == n.set
		if shares && (services == nil ||
			slices.ContainsFunc(n.services(), func(key serviceKey) bool { return services[key] })) {
			return true
		}
	}
	return false
}

// reexported adds to the touched Services of a world those with a changed export, and those that have
// changed and are, or were, exported. It adds them to the news, too.
func (n *newsOfExports) reexported(touched map[serviceKey]bool, was, is *world) {
	if is.Options.InSet.Name == "" {
		return
	}
	touch := func(key serviceKey) { touched[key], n.services[key] = true, true }
	exports := slices.Concat(gateway.Missing(was.Exports, is.Exports), gateway.Missing(is.Exports, was.Exports))
	for _, e := range exports {
		touch(input.KeyOf(e))
	}
	services := slices.Concat(gateway.Missing(was.Services, is.Services), gateway.Missing(is.Services, was.Services))
	for _, s := range services {
		if key := input.KeyOf(s); is.Exported(key) || was.Exported(key) {
			touch(key)
		}
	}
}

// addGuests adds the servers of the other clusters of a set to a part.
func (c *Compiler) addGuests(p *part, n *need) {
	for _, i := range sharers(c.worlds, n)[1:] {
		w := c.worlds[i]
		service, has := input.Find(w.Services, n.Service)
		if !has {
			continue // the export is older than its Service
		}
		guest := need{world: i, reference: n.reference}
		if why := guest.find(service, true); why.Reason != "" {
			x := clash{service: n.Service, of: w.Cluster, host: c.worlds[n.world].Cluster, why: why.Why}
			p.clashes = append(p.clashes, x)
			p.problems = append(p.problems, Problem{
				ObjectRef: guest.ref(w.Cluster), Reason: "ExportConflict", Why: x.String(),
			})
			continue
		}
		p.addServers(w, &guest, haproxy.Server{
			Cluster: w.Cluster, Source: w.Options.Source, Backup: w.Options.InSet.Standby,
		})
	}
}

// joinTwin lets the path of a key, which a claim of another cluster of the set has, serve a second claim, if both
// lead to the same exported Service. It reports whether the path does so. The keys of the path's backend count. If
// the keys of the second claim differ, joinTwin tells that for its path, which is named in what.
func (b *builder) joinTwin(c *claim, to reference, key routeKey, what fmt.Stringer) bool {
	has, known := b.needed[b.routed[key].Backend]
	if !known || has.set == "" || has.world == c.World {
		return false
	}
	n, _ := b.backend(c.Petitioner, to)
	if n.set != has.set || n.Service != has.Service || n.Port != has.Port || n.Number != has.Number {
		return false
	}
	if differ := keysThatDiffer(n.settings.Used, has.settings.Used); len(differ) > 0 {
		first := b.worlds[has.world].Cluster
		b.report(c, "TwinDiffers", "%s is served with the keys of cluster %s, which comes first in the configuration "+
			"file and has it, too; these differ here: %s", what, first, strings.Join(differ, ", "))
	}
	c.Twins, c.Effective = append(c.Twins, key), true
	return true
}

// keysThatDiffer returns the keys of Ingresses and Services that have another value in a than in b.
func keysThatDiffer(a, b []annotations.Effective) (keys []string) {
	if slices.Equal(a, b) {
		return nil
	}
	values := func(of []annotations.Effective) map[string]string {
		out := make(map[string]string)
		for _, e := range of {
			if e.Scope != annotations.ConfigMap.String() {
				out[e.Key] = e.Value
			}
		}
		return out
	}
	of, other := values(a), values(b)
	for key, value := range of {
		if has, known := other[key]; !known || has != value {
			keys = append(keys, key)
		}
	}
	for key := range other {
		if _, known := of[key]; !known {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// count adds the servers and checks of a backend to those of their namespaces, times 1 or -1.
func (c *Compiler) count(n *need, b *haproxy.Backend, times int) {
	if n.set == "" {
		c.counted.add(n.tenant(), times*len(b.Servers), times*checksOf(b))
		return
	}
	for i := range b.Servers {
		c.counted.add(c.tenantOf(n, &b.Servers[i]), times, times*checksOf(b)/len(b.Servers))
	}
}

// add adds servers and checks to those of a namespace. A namespace without any has no entry.
func (c *counted) add(of tenant, servers, checks int) {
	if c.servers[of] += servers; c.servers[of] == 0 {
		delete(c.servers, of)
	}
	if c.checks[of] += checks; c.checks[of] == 0 {
		delete(c.checks, of)
	}
}

// tenantOf returns the namespace that a server of a need counts against.
func (c *Compiler) tenantOf(n *need, s *haproxy.Server) tenant {
	if s.Cluster != "" {
		for i, w := range c.worlds {
			if w.Cluster == s.Cluster {
				return tenant{World: i, Namespace: n.Service.Namespace}
			}
		}
	}
	return n.tenant()
}
