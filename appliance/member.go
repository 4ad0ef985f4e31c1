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
	"sallyport/appliance/status"
	"sallyport/bgp"
	"sallyport/haproxy"
	"sallyport/routes"
)

// pulse is the heartbeat. group.Pulse implements it; tests use a fake.
type pulse interface {
	Say(group.Word)
	Ask(bool)
	Tell(string)
	Order(string)
	Heard() []group.Heard
	Changed() <-chan struct{}
}

// membership is this appliance's part in its group. It alone changes the state of the machine that
// belongs to the group: addresses on lo, announcements, VRRP, the ring of second chance, and the
// rules for the group's ports. The goroutine of the loop owns it.
type membership struct {
	log     *slog.Logger
	now     func() time.Time
	started time.Time // of the process
	knock   chan<- struct{}
	version string

	loopback  loopback
	announcer announcer
	probe     probe
	chance    secondChance
	// byVRRP runs VRRP until the context ends: for the addresses of the group except not, and for
	// services.
	byVRRP func(ctx context.Context, cfg *config.Config, not, services []netip.Addr) (vrrp, error)
	// join opens the heartbeat until the context ends.
	join   func(context.Context, *config.Config) (pulse, func())
	drains *drains

	member   *member // nil if this appliance is in no group
	claimed  string  // sum of the statuses that were published last
	ring     ring
	guarded  guarded
	alone    bool // there is no group, and the traces of an earlier group were removed
	fit      group.Fitness
	fitSince time.Time // since when the class of fit holds
	attested time.Time // when fullFile was last written; zero if there is none
}

// A member is this appliance as a member of its group. The goroutine of the loop owns it.
type member struct {
	of     config.Group
	self   string
	pulse  pulse
	claims claims
	turns  turns
	served served
	unlike map[string]unlike // members with an HAProxy that serves something else than ours, by name
	leave  func()            // ends the heartbeat and VRRP

	learns  bool // it asks the others for their memory of owners
	crowded bool // its own memory is larger than the text that it may tell
}

// enter makes this appliance a member of the group in the settings, or ends its membership if the
// settings have no group. A group that differs only in its pools keeps its heartbeat and VRRP.
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

// represent decides the class of this appliance. It puts the group's addresses on lo, announces
// them according to that class, and tells the other members. If there is no group, represent
// removes once the traces of an earlier configuration or process.
//
// It comes before the steps, so that HAProxy is reloaded after the withdrawal. It also runs when
// the round cannot read kernel or HAProxy: such an appliance has to withdraw its addresses.
//
// facts lacks those about the group, which represent adds. If Apply has failed, applied is nil;
// else it is the last configuration that HAProxy got. The standing is complete even with an error.
func (ms *membership) represent(
	ctx context.Context, v *status.View, local routes.Local, facts group.Facts, applied *haproxy.Config,
) (standing, error) {
	if ms.member == nil {
		ms.passOn(ctx, v, nil, nil)
		if ms.alone {
			return standing{}, nil
		}
		err := errors.Join(ms.move(&offer{now: v.At, class: group.None}), ms.chance.Unguard(ctx))
		ms.alone, ms.guarded = err == nil, guarded{}
		return standing{}, err
	}
	ms.alone = false
	g, heard := &ms.member.of, ms.member.pulse.Heard()
	wish := ms.drains.get()
	facts.Isolated = ms.isolated(v, heard)
	facts.Draining, facts.Forced, facts.Others = wish != nil, wish != nil && wish.Forced, someoneIsFull(heard)

	was := ms.fit
	ms.fit = group.Fit(v.At, facts, was)
	if ms.fit.Class != was.Class {
		ms.fitSince = v.At
		ms.log.Info("class of this appliance changed",
			"group", g.Name, "class", ms.fit.Class, "was", cmp.Or(was.Class, group.None), "why", ms.fit.Why)
	}
	inherited := ms.inherited(v, local)
	with := func(services []netip.Addr) []netip.Addr {
		return slices.Concat(g.Addresses, once(slices.Concat(services, inherited), netip.Addr.Compare))
	}
	serving, wanted := with(recorded(v.Compiled.Balancers)), with(allotted(v.Compiled.Balancers))
	mine := slices.DeleteFunc(ms.claim(ctx, v.At, wanted, local), func(a netip.Addr) bool {
		return !slices.Contains(serving, a)
	})
	err := ms.move(&offer{
		now: v.At, of: g, class: ms.fit.Class, draining: facts.Draining, answers: facts.HAProxy == "", mine: mine,
	})
	claims := ms.member.claims.troubles(wanted, v.Compiled.Balancers, g.VRRP.Exists())
	v.Troubles = slices.Concat(claims, conflicts(g, v), ms.troublesOfMovers(v), ms.guardPorts(ctx, v.At))
	problems := status.Sentences(v.Troubles, status.Doubt)
	for i := range v.Clusters {
		if words := v.Clusters[i].DrainInWords(v.At); words != "" {
			problems = append(problems, words) // another member may be of a version that does not follow
		}
	}
	serves := ms.claimed + ms.member.served.update(applied)
	ms.member.pulse.Say(group.Word{
		Class: ms.fit.Class, Draining: facts.Draining, Version: ms.version, Config: v.Settings.Sum,
		Since: v.At.Sub(ms.fitSince),
		Why:   reported(ms.fit, err, problems), Serves: serves,
	})
	ms.member.compare(v.At, heard, serves)
	ms.passOn(ctx, v, heard, serving)
	ms.forget(v, heard, serving)
	v.Fit = ms.fit
	v.Group = ms.status(v, heard, serving)
	v.Group.Problems = problems
	return standing{
		grouped: true, held: ms.loopback.held, leaving: facts.Draining && ms.announcer.left,
	}, err
}

// inherited returns the addresses of Services that an earlier process put on this machine. It
// returns none once this process knows everything that the earlier one may have served.
func (ms *membership) inherited(v *status.View, local routes.Local) []netip.Addr {
	if !v.Behind {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(local.Addrs), func(a netip.Addr) bool {
		return !slices.ContainsFunc(ms.member.of.Pools, func(p config.Pool) bool { return p.Contains(a) })
	})
}

// served is the last configuration that HAProxy got, and its sum.
type served struct {
	config *haproxy.Config
	sum    string
}

// update returns the sum of a configuration. If the configuration is nil, because Apply has failed,
// update returns the sum of the one before.
func (s *served) update(now *haproxy.Config) string {
	if now != nil && now != s.config {
		if s.config == nil || !now.Serves(s.config) {
			s.sum = now.Sum()
		}
		s.config = now
	}
	return s.sum
}

// unlike is the sum of a member that differs from ours, and since when.
type unlike struct {
	sum   string
	since time.Time
}

// compare notes which members serve something else than this appliance. While Ingresses change, each
// member follows in its own rounds, so only a sum that stays different makes a member lag.
func (m *member) compare(now time.Time, heard []group.Heard, serves string) {
	before := m.unlike
	m.unlike = map[string]unlike{}
	for _, h := range heard {
		if !h.Alive {
			continue
		}
		name, sum := h.Member.Name, h.Word.Serves
		if sum == "" || serves == "" || sum == serves {
			continue
		}
		if u := before[name]; u.sum == sum {
			m.unlike[name] = u
		} else {
			m.unlike[name] = unlike{sum, now}
		}
	}
}

// lags returns for how long a member has served something else, or 0 if that is less than patience.
func (m *member) lags(name string, now time.Time) time.Duration {
	if u, is := m.unlike[name]; is && now.Sub(u.since) >= status.Patience {
		return now.Sub(u.since)
	}
	return 0
}

// reported returns the text that the other members show about this appliance: why it is not full,
// and its problems. They show only the beginning of it.
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

// conflicts returns a finding for each service address, member, router or pool with an address
// that is also in use in a cluster. The configuration overrides
// the cluster: otherwise a cluster could end the service.
func conflicts(g *config.Group, v *status.View) (all []status.Finding) {
	add := func(subject fmt.Stringer, remedy, format string, args ...any) {
		all = append(all, status.Finding{
			Code: status.AddressConflict, Subject: subject.String(), Level: status.Doubt,
			Saw: fmt.Sprintf(format, args...), Remedy: remedy,
		})
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
	for _, c := range v.Clusters {
		for _, u := range uses {
			for _, n := range c.Topology.Nodes {
				if slices.Contains(n.All(), u.at) {
					add(u.at, "give "+u.remedy, "%s %s is also the address of node %s in cluster %s, so no route is "+
						"learned from that node", u.of, u.at, n.Name, c.Name)
				}
			}
			for _, p := range c.Topology.Pools {
				if p.CIDR.Contains(u.at) {
					add(u.at, "give "+u.remedy, "%s %s is in IP pool %s (%s) of cluster %s, and the pod that gets it "+
						"is not reached", u.of, u.at, p.Name, p.CIDR, c.Name)
				}
			}
		}
		for _, p := range c.Topology.Pools {
			for i, q := range g.Pools {
				if q.Contains(p.CIDR.Addr()) || p.CIDR.Contains(q.First) {
					add(q, "give Services other addresses", "%s (group.pools[%d]) has addresses of IP pool %s (%s) of "+
						"cluster %s, and a pod with the address of a Service is not reached", q, i, p.Name, p.CIDR,
						c.Name)
				}
			}
		}
	}
	return all
}

// silent reports whether no other member is heard. It reports false if the group has no other
// member.
func silent(heard []group.Heard) bool {
	return len(heard) > 0 && !slices.ContainsFunc(heard, func(h group.Heard) bool { return h.Alive })
}

func someoneIsFull(heard []group.Heard) bool {
	return slices.ContainsFunc(heard, func(h group.Heard) bool {
		return h.Alive && h.Word.Class == group.Full && !h.Word.Draining
	})
}

// routers returns the upstream routers of the group as BGP peers.
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

// sumOf returns a sum of the settings that have to be the same in the files of all members of a
// group. It depends on no secret, and on no path.
func sumOf(cfg *config.Config) string {
	type served struct {
		Name    string
		Pools   []netip.Prefix
		Ingress config.Ingress
		Gateway config.Gateway
		Set     string       `json:",omitempty"`
		State   config.State `json:",omitempty"`
	}
	all := struct {
		Group    config.Group
		Clusters []served
		HTTP     []netip.AddrPort
		HTTPS    []netip.AddrPort
	}{Group: cfg.Group, HTTP: cfg.HAProxy.HTTP, HTTPS: cfg.HAProxy.HTTPS}
	all.Group.SecretFile, all.Group.Upstream = "", config.Upstream{}
	for _, c := range cfg.Clusters {
		state := c.State
		if state == config.Serving { // the default, for members that know no state
			state = ""
		}
		all.Clusters = append(all.Clusters, served{
			Name: c.Name, Pools: c.Pools, Ingress: c.Ingress, Gateway: c.Gateway, Set: c.Set, State: state,
		})
	}
	return digest(all) // a Secret is a placeholder there
}

// digest returns a sum of a value as JSON.
func digest(v any) string {
	sum := sha256.New()
	_ = json.NewEncoder(sum).Encode(v) // a hash accepts everything
	return hex.EncodeToString(sum.Sum(nil)[:8])
}
