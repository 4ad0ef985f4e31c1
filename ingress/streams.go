package ingress

import (
	"cmp"
	"fmt"
	"slices"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/claims"
	"sallyport/ingress/input"
	"sallyport/ingress/kic"
)

// A port is a port that an object opens for a TCP service.
type port struct {
	annotations.Stream
	of *claimant
	at string // where the object says so
}

// ports returns the ports that the ConfigMap of TCP services opens in a world, and then those of TCPs of
// HAProxy's own controller, the older first.
func (b *builder) ports(w *world) (all []port) {
	of := &claimant{Ref: w.refer(w.Options.TCPServices)}
	for _, s := range w.streams {
		all = append(all, port{s, of, fmt.Sprintf("key %d", s.Port)})
	}
	admitted := input.ClassesOf(&w.Snapshot)
	olderFirst := func(x, y *input.TCP) int {
		return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), input.ByName(x, y))
	}
	for _, c := range slices.SortedFunc(slices.Values(w.TCPs), olderFirst) {
		if admitted.Admits(c.Namespace) && w.ofClass(c) {
			all = append(all, b.portsOf(w, c)...)
		}
	}
	return all
}

// ofClass reports whether a TCP has no class, or ours.
func (w *world) ofClass(c *input.TCP) bool {
	class := c.Annotations[input.CustomClass]
	return class == "" || class == w.Options.Class
}

// portsOf returns the ports that a TCP opens. Namespaces share the ports of the appliance, so a TCP opens
// some only if all namespaces are one tenant.
func (b *builder) portsOf(w *world, c *input.TCP) (all []port) {
	of := &claimant{
		Ref: ObjectRef{
			Cluster: w.Cluster, Kind: "TCP", Namespace: c.Namespace, Name: c.Name, UID: string(c.UID),
		},
		Created: c.CreationTimestamp.Time,
	}
	if !w.Options.CustomResources { // of a file, or of a picture from before
		b.reportOn(of.Ref, "NotServed", "custom resources are not read (clusters[].ingress.customResources)")
		return nil
	}
	if !w.Options.OneTenant {
		b.reportOn(of.Ref, "NotServed", "the configuration file lets no namespace open ports, which all of them share "+
			"(clusters[].ingress.trust): use a Service of type LoadBalancer, or the ConfigMap of TCP services "+
			"(clusters[].ingress.tcpServices)")
		return nil
	}
	ports, err := kic.TCP(c.Spec)
	if err != nil {
		b.reportOn(of.Ref, "InvalidTCPService", "%v; no port of it is open", err)
	}
	for _, p := range ports {
		at := "entry " + annotations.Quote(p.Entry)
		for _, why := range p.Left {
			b.reportOn(of.Ref, "FieldLeftOut", "%s: %s", at, why)
		}
		if p.Err != nil {
			b.reportOn(of.Ref, "InvalidTCPService", "%s: %v; the port is closed", at, p.Err)
			continue
		}
		p.To.Service.Namespace = c.Namespace
		all = append(all, port{p.Stream, of, fmt.Sprintf("%s: port %d", at, p.Port)})
	}
	return all
}

// stream gives each port of a TCP service a backend of its own. If several clusters claim a port,
// the cluster that is configured first gets it.
func (b *builder) stream() {
	owner := make(map[uint16]string)
	for i, w := range b.worlds {
		for _, s := range b.ports(w) {
			c := petitioner{Claimant: s.of, World: i}
			if whose := cmp.Or(b.Taken[s.Port], owner[s.Port]); whose != "" {
				b.reportOn(c.Ref, "PortConflict", "%s: the port is in use by %s; the TCP service is not served",
					s.at, whose)
				continue
			}
			free := haproxy.FreePort(s.Port)
			b.Questions = append(b.Questions, free)
			switch verdict := b.verdicts[free.Part()]; {
			case verdict.Why != "":
				b.reportOn(c.Ref, "PortConflict", "%s: on the appliance the port is %s; the TCP service is not "+
					"served until that program is stopped", s.at, verdict.Why)
				continue
			case !verdict.Known:
				continue
			}
			to := serviceKey{Namespace: s.To.Service.Namespace, Name: s.To.Service.Name}
			n, why := b.backend(c, claims.ReferTo(to, s.To.Port, annotations.Ended))
			if why.Reason != "" {
				b.reportOn(c.Ref, why.Reason, "%s: %s; until that is corrected, the port is closed",
					s.at, why.Why)
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
