package ingress

import (
	"cmp"
	"fmt"
	"slices"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/claims"
)

// stream gives each port of a TCP service a backend of its own. If several clusters claim a port,
// the cluster that is configured first gets it.
func (b *builder) stream() {
	owner := make(map[uint16]string)
	for i, w := range b.worlds {
		c := petitioner{Claimant: &claimant{Ref: w.refer(w.Options.TCPServices)}, World: i}
		for _, s := range w.streams {
			if whose := cmp.Or(b.Taken[s.Port], owner[s.Port]); whose != "" {
				b.reportOn(c.Ref, "PortConflict", "key %d: the port is in use by %s; the TCP service is not served",
					s.Port, whose)
				continue
			}
			free := haproxy.FreePort(s.Port)
			b.Questions = append(b.Questions, free)
			switch verdict := b.verdicts[free.Part()]; {
			case verdict.Why != "":
				b.reportOn(c.Ref, "PortConflict", "key %d: on the appliance the port is %s; the TCP service is not "+
					"served until that program is stopped", s.Port, verdict.Why)
				continue
			case !verdict.Known:
				continue
			}
			to := serviceKey{Namespace: s.To.Service.Namespace, Name: s.To.Service.Name}
			n, why := b.backend(c, claims.ReferTo(to, s.To.Port, annotations.Ended))
			if why.Reason != "" {
				b.reportOn(c.Ref, why.Reason, "key %d: %s; until that is corrected, the port is closed",
					s.Port, why.Why)
				continue
			}
			n.name = claims.Shorten(fmt.Sprintf("%s.tcp-%d", n.name, s.Port), ".")
			if s.SendProxy != "" {
				own := *n.settings
				own.Options.SendProxy = s.SendProxy
				n.settings = &own
			}
			owner[s.Port] = "a TCP service of cluster " + w.Cluster
			b.add(n, c)
			b.Config.Streams = append(b.Config.Streams,
				haproxy.Stream{Port: s.Port, Backend: n.name, TLS: s.TLS, Proxy: s.Proxy})
		}
	}
	b.balance()
	slices.SortFunc(b.Config.Streams, func(x, y haproxy.Stream) int {
		return cmp.Or(x.Addr.Compare(y.Addr), cmp.Compare(x.Port, y.Port))
	})
}
