package plan

import (
	"math"
	"slices"

	"sallyport/haproxy"
)

// A Share is the part of the requests that a cluster of a set is asked to take.
type Share struct {
	// Weight is the part of the cluster beside those of the other clusters, however many pods it has. If it is
	// 0, each pod of the cluster has a part of 1.
	Weight int
	// Percent says how much of that part the cluster takes, from 0 to 100. Drained has a cluster with 0, too.
	Percent int
}

// of returns the part of one server among those of its cluster.
func (s Share) of(servers int) float64 {
	if s.Weight == 0 {
		return float64(s.Percent) / 100
	}
	return float64(s.Weight) * float64(s.Percent) / 100 / float64(max(servers, 1))
}

// exact is the relative error of a weight that needs no greater weights to be less.
const exact = 0.01

// Weights returns a weight for the servers with each of these parts, so that the ratios of the weights are
// those of the parts. Of all weights with an error of at most 1 % in each ratio it returns the smallest, and
// else those with the smallest error. HAProxy has weights from 1 to 256, so a ratio above 256 becomes 256. A
// part of 0 has the weight 1.
func Weights(parts []float64) []int {
	least := math.Inf(1)
	for _, part := range parts {
		if part > 0 {
			least = min(least, part)
		}
	}
	best, off := make([]int, len(parts)), math.Inf(1)
	for unit := 1; unit <= haproxy.MaxWeight && off > exact; unit++ {
		weights, worst := make([]int, len(parts)), 0.0
		for i, part := range parts {
			if part <= 0 {
				weights[i] = 1
				continue
			}
			ideal := part / least * float64(unit)
			weights[i] = int(min(max(math.Round(ideal), 1), haproxy.MaxWeight))
			worst = max(worst, math.Abs(float64(weights[i])/ideal-1))
		}
		if worst < off {
			best, off = weights, worst
		}
	}
	return best
}

// A tally counts the servers of a cluster in a backend.
type tally struct {
	cluster      string
	serving, all int
}

// weigh returns the weights of the wanted servers of a backend, in their order, after these turns. It returns
// nil if all servers have the same weight. Servers that fail their checks, or that do not serve, are not
// counted: the others of their cluster take their part. A cluster of which no server serves is counted whole.
// Its weights then stay as they are, and HAProxy divides its part among the other clusters.
func (t turns) weigh(shares map[string]Share) []int {
	if len(shares) == 0 || t.of.Set == "" {
		return nil
	}
	var clusters []tally
	at := func(cluster string) int {
		return slices.IndexFunc(clusters, func(n tally) bool { return n.cluster == cluster })
	}
	for i := range t.all {
		one := &t.all[i]
		if one.at < 0 || one.to <= haproxy.Closed {
			continue
		}
		cluster := t.of.ClusterOf(&t.of.Servers[one.at])
		n := at(cluster)
		if n < 0 {
			n, clusters = len(clusters), append(clusters, tally{cluster: cluster})
		}
		clusters[n].all++
		if one.to == haproxy.Open && one.live.Check != haproxy.Down {
			clusters[n].serving++
		}
	}
	parts := make([]float64, len(clusters))
	for i, n := range clusters {
		servers := n.serving
		if servers == 0 {
			servers = n.all
		}
		parts[i] = shares[n.cluster].of(servers)
	}
	weights := Weights(parts)
	if len(weights) == 0 || slices.Max(weights) == slices.Min(weights) {
		return nil
	}
	all := make([]int, len(t.of.Servers))
	for i := range t.of.Servers {
		if n := at(t.of.ClusterOf(&t.of.Servers[i])); n >= 0 {
			all[i] = weights[n]
		}
	}
	return all
}

// A weighed backend has the weights of its servers. It is nil before the first.
type weighed struct {
	of, as *haproxy.Backend // without and with the weights
}

// with returns a backend with these weights of its servers. If w is that backend already, with returns w, so that
// equal pointers mean equal weights.
func (w weighed) with(b *haproxy.Backend, weights []int) weighed {
	has := func(o *haproxy.Backend) bool {
		for i := range o.Servers {
			if weights == nil && o.Servers[i].Weight > 0 || weights != nil && o.Servers[i].Weight != weights[i] {
				return false
			}
		}
		return true
	}
	switch {
	case has(b):
		return weighed{of: b, as: b}
	case w.of == b && has(w.as):
		return w
	}
	out := *b
	out.Servers = slices.Clone(b.Servers)
	for i := range out.Servers {
		out.Servers[i].Weight = 0
		if weights != nil {
			out.Servers[i].Weight = weights[i]
		}
	}
	return weighed{of: b, as: &out}
}
