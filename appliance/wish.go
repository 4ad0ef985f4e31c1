package appliance

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sallyport/appliance/config"
	"sallyport/appliance/group"
	"sallyport/haproxy"
	"sallyport/ingress"
)

// A machine holds what HAProxy's configuration depends on at this machine.
type machine struct {
	now     time.Time
	addrs   []netip.Addr // of its interfaces
	haproxy haproxy.Info
}

// A standing holds what HAProxy's configuration depends on in the group. Its zero value stands for
// an appliance in no group.
type standing struct {
	grouped bool         // this appliance is in a group
	held    []netip.Addr // the addresses of the group and of Services that this machine has on lo
	leaving bool         // this appliance drains, and the routers have been told to send nothing here
}

// wish returns the configuration that HAProxy is to have. Everything in it comes from here, except
// Former. The clusters' objects decide the services: routes, backends, streams, certificates and
// lists. The configuration file, the machine and the group decide the rest.
func wish(of ingress.Result, s settings, m machine, in standing) haproxy.Config {
	c, file := of.Config, &s.cfg.HAProxy
	c.Bind = haproxy.Bind{HTTP: file.HTTP, HTTPS: file.HTTPS}
	if file.AccessLog.On() {
		c.Process = c.Process.Requests(file.AccessLog.Syslog)
	}
	c.Tune = haproxy.Tune{
		Threads: file.Threads, Base: s.base,
		MaxConn: m.haproxy.Room.Kept(m.haproxy.MaxConn, of.Servers, connections(s.cfg, of.Config.Process)),
	}
	c.Group, c.Period = sharing(s.cfg, m.addrs), haproxy.PeriodOf(m.now)
	c.Leaving = in.leaving
	if in.grouped {
		// HAProxy cannot listen at an address that the machine does not have.
		c.Streams = slices.DeleteFunc(slices.Clone(c.Streams), func(s haproxy.Stream) bool {
			return s.Addr.IsValid() && !slices.Contains(in.held, s.Addr)
		})
		c.Listeners = slices.DeleteFunc(slices.Clone(c.Listeners), func(l haproxy.Listener) bool {
			return !slices.Contains(in.held, l.At.Addr())
		})
	}
	return c
}

// connections returns the number of connections that HAProxy is configured to accept. It returns 0
// if neither the configuration file nor the clusters' objects limit them.
func connections(cfg *config.Config, of haproxy.Process) int {
	return cmp.Or(cfg.HAProxy.MaxConnections, of.MaxConn)
}

// sharing returns the peers with which HAProxy shares its tables, or nil if the group does not
// share. HAProxy does not start with an address that this machine does not have. While this machine
// lacks the member's address, HAProxy therefore only connects to the other members.
func sharing(cfg *config.Config, addrs []netip.Addr) *haproxy.Group {
	if !cfg.Group.Exists() || !cfg.Group.Share {
		return nil
	}
	g := &haproxy.Group{Self: cfg.Identity, Secret: group.Key(cfg.Group.Key(), "HAProxy")}
	for _, m := range cfg.Group.Members {
		at := netip.AddrPortFrom(m.Address, cfg.Group.Port)
		switch {
		case m.Name != cfg.Identity:
			g.Others = append(g.Others, haproxy.Peer{Name: m.Name, At: at})
		case slices.Contains(addrs, m.Address):
			g.At = at
		}
	}
	slices.SortFunc(g.Others, func(a, b haproxy.Peer) int { return strings.Compare(a.Name, b.Name) })
	return g
}
