package appliance

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"sallyport/appliance/config"
	"sallyport/appliance/group"
	"sallyport/bgp"
	"sallyport/haproxy"
	"sallyport/routes"
)

// pulse is the heartbeat. The real one is group.Pulse; tests replace it with a fake.
type pulse interface {
	Say(group.Word)
	Ask(bool)
	Tell(string)
	Heard() []group.Heard
	Changed() <-chan struct{}
}

// membership is this appliance's part in its group, and all that it changes for it: addresses on
// lo, announcements, VRRP, the ring of second chance, and the rules for the ports of the group. The
// goroutine of the loop owns it.
type membership struct {
	log     *slog.Logger
	now     func() time.Time
	started time.Time // of the process
	speaker speaker
	knock   chan<- struct{}
	version string

	hold   func([]netip.Addr) ([]netip.Addr, error) // puts the addresses of the group on lo
	probe  probe
	chance secondChance
	// byVRRP runs VRRP, without some addresses and with those of Services, until the context ends.
	byVRRP func(ctx context.Context, cfg *config.Config, not, services []netip.Addr) (vrrp, error)
	// join opens the heartbeat until the context ends.
	join   func(context.Context, *config.Config) (pulse, func())
	drains *drains

	member   *member // nil: in no group
	claimed  string  // sum of what was published last
	ring     ring
	ports    ports
	alone    bool // what a group had is given back
	fit      group.Fitness
	fitSince time.Time // since when it has the class of fit
	attested time.Time // when a file last said that it is full; zero: none does
}

// member is this appliance as a member of its group. Owned by the goroutine of the loop.
type member struct {
	of     config.Group
	self   string
	pulse  pulse
	claims claims
	turns  turns
	agree  time.Time // since when no other full member serves anything else; zero: one does
	served served
	unlike map[string]unlike // members whose HAProxy serves something else, by their names
	leave  func()            // ends the heartbeat and VRRP

	learns  bool // it asks what the others remember
	crowded bool // what it remembers has no room in what it tells
}

// enter makes this appliance a member of the group of the settings, or of none. It keeps
// what is the same.
func (ms *membership) enter(ctx context.Context, cfg *config.Config) {
	if m := ms.member; m != nil {
		if m.self == cfg.Identity && reflect.DeepEqual(withoutPools(m.of), withoutPools(cfg.Group)) {
			m.of = cfg.Group
			return
		}
		m.turns.giveUp(ms.log)
		m.leave()
		ms.member = nil
	}
	if !cfg.Group.Exists() {
		return
	}
	ctx, end := context.WithCancel(ctx)
	pulse, wait := ms.join(ctx, cfg)
	go relay(ctx, pulse.Changed(), ms.knock)
	start := func(not, services []netip.Addr) (vrrp, func(), error) {
		ctx, end := context.WithCancel(ctx)
		v, err := ms.byVRRP(ctx, cfg, not, services)
		return v, end, err
	}
	ms.member = &member{
		of: cfg.Group, self: cfg.Identity, pulse: pulse, turns: turns{start: start}, leave: func() { end(); wait() },
	}
}

// represent brings the group's addresses to what this appliance is fit for: on lo, and
// announced. It tells the other members. Without a group it gives back, once, what an
// earlier configuration or process has left.
//
// It comes before the steps, so that HAProxy is reloaded after the withdrawal. It does not
// depend on what the round can read: an appliance that cannot read has to leave.
//
// facts lacks what only the group knows. applied is the configuration that HAProxy was last given;
// nil: Apply has failed.
func (ms *membership) represent(
	ctx context.Context, v *view, local routes.Local, facts group.Facts, applied *haproxy.Config,
) error {
	if ms.member == nil {
		ms.passOn(ctx, v, nil, nil)
		if ms.alone {
			return nil
		}
		_, err := ms.hold(nil)
		err = errors.Join(err, ms.speaker.Announce(nil), ms.chance.Unguard(ctx))
		ms.alone, ms.ports = err == nil, ports{}
		return err
	}
	ms.alone = false
	g, heard := &ms.member.of, ms.member.pulse.Heard()
	wish := ms.drains.get()
	facts.Isolated = isolated(heard, v.peers) || ms.member.turns.cut()
	facts.Draining, facts.Forced, facts.Others = wish != nil, wish != nil && wish.Forced, someoneIsFull(heard)

	was := ms.fit
	ms.fit = group.Fit(v.at, facts, was)
	if ms.fit.Class != was.Class {
		ms.fitSince = v.at
		ms.log.Info("class of this appliance changed",
			"group", g.Name, "class", ms.fit.Class, "was", cmp.Or(was.Class, group.None), "why", ms.fit.Why)
	}
	inherited := ms.inherited(v, local)
	with := func(services []netip.Addr) []netip.Addr {
		return slices.Concat(g.Addresses, once(slices.Concat(services, inherited), netip.Addr.Compare))
	}
	serving, wanted := with(recorded(v.compiled.Balancers)), with(allotted(v.compiled.Balancers))
	mine := slices.DeleteFunc(ms.claim(ctx, v.at, wanted, local), func(a netip.Addr) bool {
		return !slices.Contains(serving, a)
	})
	have, err := ms.hold(mine)
	// HAProxy cannot listen at an address that the machine does not have.
	v.config.Streams = slices.DeleteFunc(slices.Clone(v.config.Streams), func(s haproxy.Stream) bool {
		return s.Addr.IsValid() && !slices.Contains(have, s.Addr)
	})
	var announcements []bgp.Announcement
	if ms.fit.Class != group.None {
		for _, a := range have {
			announcements = append(announcements, bgp.Announcement{
				Prefix: netip.PrefixFrom(a, a.BitLen()), LastResort: ms.fit.Class == group.Spare,
			})
		}
	}
	withdrawn := ms.speaker.Announce(announcements)
	taken, failed := ms.takeTurns(v.at, mine, facts.Draining, facts.HAProxy == "")
	err = errors.Join(err, failed)
	v.config.Leaving = facts.Draining && ms.fit.Class == group.None && withdrawn == nil
	err = errors.Join(err, withdrawn)
	claims := ms.member.claims.troubles(wanted, v.compiled.Balancers, g.VRRP.Exists())
	v.troubles = slices.Concat(claims, conflicts(g, v), ms.guardPorts(ctx, v.at))
	problems := sentences(v.troubles)
	shape := ms.claimed + ms.member.served.update(applied)
	ms.member.pulse.Say(group.Word{
		Class: ms.fit.Class, Draining: facts.Draining, Version: ms.version, Config: v.settings.sum,
		Since: v.at.Sub(ms.fitSince),
		Why:   reported(ms.fit, err, problems), Shape: shape,
	})
	ms.member.compare(v.at, heard, v.settings.sum, shape)
	ms.passOn(ctx, v, heard, serving)
	ms.forget(v, heard, serving, taken)
	v.fit = ms.fit
	v.group = ms.status(v, heard, serving, have, taken)
	v.group.Problems = problems
	return err
}

// inherited returns the addresses of Services that this machine has from the process before, as
// long as this one may be behind it.
func (ms *membership) inherited(v *view, local routes.Local) []netip.Addr {
	if !v.behind {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(local.Addrs), func(a netip.Addr) bool {
		return !slices.ContainsFunc(ms.member.of.Pools, func(p config.Pool) bool { return p.Contains(a) })
	})
}

// A trouble is a sentence about what is wrong with an address or a router.
type trouble struct {
	at  netip.Addr // that it is about; zero: no single one
	why string
}

func sentences(troubles []trouble) (all []string) {
	for _, t := range troubles {
		all = append(all, t.why)
	}
	return all
}

// served is the configuration that HAProxy was last given, and its sum.
type served struct {
	config *haproxy.Config
	sum    string
}

// update returns the sum of a configuration; nil: Apply has failed, and the one before
// counts.
func (s *served) update(now *haproxy.Config) string {
	if now != nil && now != s.config {
		if s.config == nil || !now.Serves(s.config) {
			s.sum = now.Sum()
		}
		s.config = now
	}
	return s.sum
}

// unlike is a sum that differs from ours, and since when.
type unlike struct {
	sum   string
	since time.Time
}

// compare notes which members serve something else, and since when no other full member does
// or has another configuration. While Ingresses change, each member follows in its own
// rounds: only a sum that stays makes a member one that lags.
func (m *member) compare(now time.Time, heard []group.Heard, config, shape string) {
	before, differs := m.unlike, false
	m.unlike = map[string]unlike{}
	for _, h := range heard {
		if !h.Alive {
			continue
		}
		name, sum := h.Member.Name, h.Word.Shape
		differs = differs || h.Word.Class == group.Full && (h.Word.Config != config || sum != shape)
		if sum == "" || shape == "" || sum == shape {
			continue
		}
		if u := before[name]; u.sum == sum {
			m.unlike[name] = u
		} else {
			m.unlike[name] = unlike{sum, now}
		}
	}
	switch {
	case differs:
		m.agree = time.Time{}
	case m.agree.IsZero():
		m.agree = now
	}
}

// lags returns for how long a member has served something else; 0: not for long.
func (m *member) lags(name string, now time.Time) time.Duration {
	if u, is := m.unlike[name]; is && now.Sub(u.since) >= patience {
		return now.Sub(u.since)
	}
	return 0
}

// reported returns what the other members show of this one: why it is not full, and what
// is wrong with it. They show the beginning.
func reported(fit group.Fitness, err error, problems []string) string {
	var all []string
	if fit.Why != "" {
		all = append(all, fit.Why)
	}
	if err != nil {
		all = append(all, strings.Split(err.Error(), "\n")...)
	}
	return strings.Join(slices.Concat(all, problems), "; ")
}

// conflicts returns a sentence for each service address, member, router or pool whose addresses
// something in a cluster has, and for each router without BFD. The configuration overrides
// the cluster: otherwise a cluster could end the service.
func conflicts(g *config.Group, v *view) (all []trouble) {
	add := func(at netip.Addr, format string, args ...any) {
		all = append(all, trouble{at, fmt.Sprintf(format, args...)})
	}
	type use struct {
		of     string
		at     netip.Addr
		remedy string
	}
	var uses []use
	for _, a := range g.Addresses {
		uses = append(uses, use{"the service address", a, "the group another address"})
	}
	for _, m := range g.Members {
		uses = append(uses, use{"member " + m.Name + ",", m.Address, "the member another address"})
	}
	for _, r := range g.Upstream.Peers {
		uses = append(uses, use{"the router", r.Address, "the router's own address in group.upstream.peers"})
	}
	for _, c := range v.clusters {
		for _, u := range uses {
			for _, n := range c.topology.Nodes {
				if slices.Contains(n.All(), u.at) {
					add(u.at, "%s %s is also the address of node %s in cluster %s, so no route is learned from that "+
						"node: give %s", u.of, u.at, n.Name, c.name, u.remedy)
				}
			}
			for _, p := range c.topology.Pools {
				if p.CIDR.Contains(u.at) {
					add(u.at, "%s %s is in IP pool %s (%s) of cluster %s, and the pod that gets it is not "+
						"reached: give %s", u.of, u.at, p.Name, p.CIDR, c.name, u.remedy)
				}
			}
		}
		for _, p := range c.topology.Pools {
			for i, q := range g.Pools {
				if q.Contains(p.CIDR.Addr()) || p.CIDR.Contains(q.First) {
					add(netip.Addr{}, "%s (group.pools[%d]) has addresses of IP pool %s (%s) of cluster %s, and a "+
						"pod with the address of a Service is not reached: give Services other addresses", q, i, p.Name,
						p.CIDR, c.name)
				}
			}
		}
	}
	for _, p := range v.peers {
		if p.Upstream && p.State == established && p.BFD == "down" && v.at.Sub(p.Since) > patience {
			add(p.Addr, "BFD with the router %s is down though its BGP session is established, so the loss of this "+
				"machine shows only after the hold time: switch BFD on for this appliance on the router, and let UDP "+
				"%d pass, or set group.upstream.bfd: false", p.Addr, bfdPort)
		}
	}
	return all
}

// isolated reports whether nobody hears this appliance: no member of the group, and none of
// the routers. One that has no routers or is alone in its group cannot tell.
func isolated(heard []group.Heard, peers []bgp.PeerState) bool {
	routers := slices.DeleteFunc(slices.Clone(peers), func(p bgp.PeerState) bool { return !p.Upstream })
	return len(heard) > 0 && len(routers) > 0 &&
		!slices.ContainsFunc(heard, func(h group.Heard) bool { return h.Alive }) &&
		!slices.ContainsFunc(routers, func(p bgp.PeerState) bool { return p.State == established })
}

func someoneIsFull(heard []group.Heard) bool {
	return slices.ContainsFunc(heard, func(h group.Heard) bool {
		return h.Alive && h.Word.Class == group.Full && !h.Word.Draining
	})
}

// routers returns the routers that the group's addresses are announced to, as BGP peers.
func routers(cfg *config.Config) (peers []bgp.Peer) {
	u := &cfg.Group.Upstream
	for _, r := range u.Peers {
		peers = append(peers, bgp.Peer{
			Upstream: true, Active: true, Addr: r.Address, Port: r.Port, ASN: r.ASN,
			Password: bgp.Secret(r.Password.Reveal()), TTLSecurity: r.TTLSecurity,
			BFD: bgp.BFD{Interval: u.BFD.Interval, Multiplier: u.BFD.Multiplier},
		})
	}
	return peers
}

// sumOf returns a sum of what all members of a group have to have the same in their
// files. It depends on no secret, and on no path.
func sumOf(cfg *config.Config) string {
	type served struct {
		Name    string
		Pools   []netip.Prefix
		Ingress config.Ingress
	}
	all := struct {
		Group    config.Group
		Clusters []served
		HTTP     []netip.AddrPort
		HTTPS    []netip.AddrPort
	}{Group: cfg.Group, HTTP: cfg.HAProxy.HTTP, HTTPS: cfg.HAProxy.HTTPS}
	all.Group.SecretFile, all.Group.Upstream = "", config.Upstream{}
	for _, c := range cfg.Clusters {
		all.Clusters = append(all.Clusters, served{c.Name, c.Pools, c.Ingress})
	}
	return digest(all) // a Secret is a placeholder there
}

// digest returns a sum of a value as JSON.
func digest(v any) string {
	sum := sha256.New()
	_ = json.NewEncoder(sum).Encode(v) // a hash accepts everything
	return hex.EncodeToString(sum.Sum(nil)[:8])
}
