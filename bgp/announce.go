package bgp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// An Announcement is a prefix that upstream routers shall send to this appliance.
type Announcement struct {
	Prefix     netip.Prefix `json:"prefix"`
	LastResort bool         `json:"lastResort,omitempty"` // only if no other appliance announces the prefix without it
}

// ours is the import policy and the export policy of the announcer: only our own announcements
// pass. The import policy also applies to AddPath.
var ours = &api.Policy{Name: "ours", Statements: []*api.Statement{{
	Name:       "ours",
	Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL},
	Actions:    &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT},
}}}

// Announce makes the speaker announce exactly these prefixes. Each upstream router gets the
// prefixes of its address family, also if it becomes a peer later. If Announce is called again with
// the same prefixes, it only tries again to announce prefixes that failed. If a prefix is announced
// differently, the new announcement replaces the old without a withdrawal.
func (s *Speaker) Announce(all []Announcement) error {
	s.ops.Lock()
	defer s.ops.Unlock()
	if s.isDone() {
		return ErrStopped
	}
	want := map[netip.Prefix]Announcement{}
	var errs []error
	for _, a := range all {
		switch _, twice := want[a.Prefix]; {
		case !a.Prefix.IsValid() || a.Prefix != a.Prefix.Masked() || a.Prefix.Addr().Is4In6():
			errs = append(errs, fmt.Errorf(
				"bgp: %q cannot be announced: it is no prefix, or has bits set behind its length", a.Prefix))
		case twice:
			errs = append(errs, fmt.Errorf("bgp: %s is to be announced twice: the first is kept", a.Prefix))
		default:
			want[a.Prefix] = a
		}
	}
	s.wish = want
	return errors.Join(append(errs, s.applyWish())...)
}

// applyWish makes the announcer's paths equal to the last Announce. If there is no announcer,
// applyWish does nothing. Called with ops held.
func (s *Speaker) applyWish() error {
	if s.announcer == nil {
		return nil
	}
	var errs []error
	for _, prefix := range slices.SortedFunc(maps.Keys(s.announced), netip.Prefix.Compare) {
		if _, wanted := s.wish[prefix]; wanted {
			continue
		}
		// The attributes of a withdrawal do not matter.
		if err := s.announcer.DeletePath(apiutil.DeletePathRequest{
			Paths: []*apiutil.Path{s.path(s.announced[prefix])},
		}); err != nil {
			errs = append(errs, fmt.Errorf("bgp: withdraw %s: %w", prefix, err))
			continue
		}
		s.note(prefix, nil)
		s.log.Info("BGP announcement withdrawn", "prefix", prefix)
	}
	for _, prefix := range slices.SortedFunc(maps.Keys(s.wish), netip.Prefix.Compare) {
		a := s.wish[prefix]
		if had, same := s.announced[prefix]; same && had == a {
			continue
		}
		if _, err := s.announcer.AddPath(apiutil.AddPathRequest{Paths: []*apiutil.Path{s.path(a)}}); err != nil {
			errs = append(errs, fmt.Errorf("bgp: announce %s: %w", prefix, err))
			continue
		}
		s.note(prefix, &a)
		s.log.Info("BGP announcement", "prefix", prefix, "lastResort", a.LastResort)
	}
	return errors.Join(errs...)
}

// note remembers the present announcement of a prefix. a is nil if the announcer has withdrawn it.
func (s *Speaker) note(prefix netip.Prefix, a *Announcement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a == nil {
		delete(s.announced, prefix)
	} else {
		s.announced[prefix] = *a
	}
	s.knock()
}

// announcedTo returns the prefixes that an upstream router hears. Called with mu held.
func (s *Speaker) announcedTo(p Peer) []netip.Prefix {
	var all []netip.Prefix
	for prefix := range s.announced {
		if prefix.Addr().Is4() == p.Addr.Is4() {
			all = append(all, prefix)
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return all
}

const (
	gracefulShutdown = 0xffff0000 // the community of RFC 8326
	lastResortMED    = 100
)

// path converts an announcement to GoBGP's type. A last resort is marked in three ways: by a longer
// AS path, by a higher MED among appliances of one AS, and by GRACEFUL_SHUTDOWN. Each router heeds
// at least one of these marks.
func (s *Speaker) path(a Announcement) *apiutil.Path {
	family, self := bgp.RF_IPv4_UC, netip.IPv4Unspecified()
	if a.Prefix.Addr().Is6() {
		family, self = bgp.RF_IPv6_UC, netip.IPv6Unspecified()
	}
	nlri, _ := bgp.NewIPAddrPrefix(a.Prefix)        // fails if the prefix is invalid, and Announce has checked it
	nextHop, _ := bgp.NewPathAttributeNextHop(self) // each session's local address takes its place
	attrs := []bgp.PathAttributeInterface{bgp.NewPathAttributeOrigin(bgp.BGP_ORIGIN_ATTR_TYPE_IGP), nextHop}
	if !a.LastResort {
		attrs = append(attrs, bgp.NewPathAttributeMultiExitDisc(0))
	} else {
		prepended := bgp.NewAs4PathParam(bgp.BGP_ASPATH_ATTR_TYPE_SEQ, []uint32{s.config.ASN, s.config.ASN})
		attrs = append(attrs,
			bgp.NewPathAttributeAsPath([]bgp.AsPathParamInterface{prepended}),
			bgp.NewPathAttributeMultiExitDisc(lastResortMED),
			bgp.NewPathAttributeCommunities([]uint32{gracefulShutdown}))
	}
	return &apiutil.Path{Family: family, Nlri: nlri, Age: time.Now().Unix(), Attrs: attrs}
}

// openAnnouncer starts the GoBGP for the upstream routers, with all prefixes of the last Announce.
// If this GoBGP runs already, openAnnouncer does nothing. Called with ops held.
func (s *Speaker) openAnnouncer() error {
	if s.announcer != nil {
		return nil
	}
	b := s.server()
	ctx, unwatch := context.WithCancel(s.ctx)
	if err := s.open(ctx, b, upstreams, -1, nil); err != nil {
		unwatch()
		b.Stop()
		return fmt.Errorf("bgp: start the speaker for upstream routers: %w", err)
	}
	s.mu.Lock()
	s.announcer, s.unannounce, s.announced = b, unwatch, map[netip.Prefix]Announcement{}
	s.mu.Unlock()
	return s.applyWish()
}

// closeAnnouncer ends the GoBGP for the upstream routers, when it no longer has a peer. Called with
// ops held.
func (s *Speaker) closeAnnouncer() {
	if s.announcer == nil {
		return
	}
	b := s.announcer
	s.mu.Lock()
	s.announcer, s.announced = nil, nil
	s.mu.Unlock()
	s.unannounce()
	b.Stop()
}
