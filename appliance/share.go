package appliance

import (
	"net/netip"
	"slices"
	"strings"

	"sallyport/appliance/config"
	"sallyport/appliance/group"
	"sallyport/haproxy"
	"sallyport/routes"
)

// sharing returns the peers with which HAProxy shares its tables, or nil if the group does not
// share. HAProxy does not start with an address that this machine does not have. While this machine
// lacks the member's address, HAProxy therefore only connects to the other members.
func sharing(cfg *config.Config, local routes.Local) *haproxy.Group {
	if !cfg.Group.Exists() || !cfg.Group.Share {
		return nil
	}
	g := &haproxy.Group{Self: cfg.Identity, Secret: group.Key(cfg.Group.Key(), "HAProxy")}
	for _, m := range cfg.Group.Members {
		at := netip.AddrPortFrom(m.Address, cfg.Group.Port)
		switch {
		case m.Name != cfg.Identity:
			g.Others = append(g.Others, haproxy.Peer{Name: m.Name, At: at})
		case slices.Contains(local.Addrs, m.Address):
			g.At = at
		}
	}
	slices.SortFunc(g.Others, func(a, b haproxy.Peer) int { return strings.Compare(a.Name, b.Name) })
	return g
}
