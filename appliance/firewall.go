package appliance

import (
	"net/netip"
	"reflect"

	"sallyport/appliance/plan"
	"sallyport/bgp"
	"sallyport/haproxy"
)

// A firewall tells the machine's firewall what to let through.
type firewall struct {
	admit    func(Admission) error // nil if there is no firewall to configure
	admitted *Admission            // the last admission; nil before the first
}

// letIn gives the machine's firewall the Admission of this round, if it has changed.
func (f *firewall) letIn(peers []bgp.Peer, want plan.Want, have plan.Have, cfg *haproxy.Config) error {
	if f.admit == nil {
		return nil
	}
	a := Admission{Logs: logs(cfg)}
	for to := range want.Routes.All() {
		if to.From.IsValid() {
			if a.Sourced == nil {
				a.Sourced = map[netip.Addr][]netip.Prefix{}
			}
			a.Sourced[to.From] = append(a.Sourced[to.From], to.To)
		} else {
			a.Pods = append(a.Pods, to.To)
		}
	}
	for _, p := range peers {
		if !p.Active {
			a.Peers = append(a.Peers, p.Addr)
		}
	}
	a.Peers = once(a.Peers, netip.Addr.Compare)
	for _, s := range cfg.Streams {
		if s.Addr.IsValid() {
			a.Services = append(a.Services, netip.AddrPortFrom(s.Addr, s.Port))
		} else {
			a.TCP = append(a.TCP, s.Port)
		}
	}
	for _, l := range cfg.Listeners {
		a.Services = append(a.Services, l.At)
	}
	if port := cfg.Process.QUIC.Port; port != 0 {
		a.UDP = []uint16{port}
	}
	if len(have.Direct) > 0 {
		for _, b := range cfg.Backends {
			for i := range b.Servers {
				s := &b.Servers[i]
				if have.Direct[s.Addr.Addr()] &&
					want.Allocations.Refuse(b.ClusterOf(s), b.Namespace, s.Addr).None() {
					a.Servers = append(a.Servers, s.Addr)
				}
			}
		}
		a.Servers = once(a.Servers, netip.AddrPort.Compare)
	}
	if f.admitted != nil && reflect.DeepEqual(*f.admitted, a) {
		return nil
	}
	if err := f.admit(a); err != nil {
		return err
	}
	f.admitted = &a
	return nil
}

// logs returns the syslog servers that a cluster names for HAProxy.
func logs(cfg *haproxy.Config) (to []netip.AddrPort) {
	for _, line := range cfg.Process.Lines {
		if target := line.Target(); target.IsValid() {
			to = append(to, target)
		}
	}
	return once(to, netip.AddrPort.Compare)
}
