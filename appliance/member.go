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
	"sync/atomic"
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
		Class: ms.fit.Class, Draining: facts.Draining, Version: ms.version, Config: v.settings.sum, Since: v.at.Sub(ms.fitSince),
		Why: reported(ms.fit, err, problems), Shape: shape,
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
					add(u.at, "%s %s is also the address of node %s in cluster %s, so no route is learned from that node: give %s", u.of, u.at, n.Name, c.name, u.remedy)
				}
			}
			for _, p := range c.topology.Pools {
				if p.CIDR.Contains(u.at) {
					add(u.at, "%s %s is in IP pool %s (%s) of cluster %s, and the pod that gets it is not reached: give %s", u.of, u.at, p.Name, p.CIDR, c.name, u.remedy)
				}
			}
		}
		for _, p := range c.topology.Pools {
			for i, q := range g.Pools {
				if q.Contains(p.CIDR.Addr()) || p.CIDR.Contains(q.First) {
					add(netip.Addr{}, "%s (group.pools[%d]) has addresses of IP pool %s (%s) of cluster %s, and a pod with the address of a Service is not reached: give Services other addresses", q, i, p.Name, p.CIDR, c.name)
				}
			}
		}
	}
	for _, p := range v.peers {
		if p.Upstream && p.State == established && p.BFD == "down" && v.at.Sub(p.Since) > patience {
			add(p.Addr, "BFD with the router %s is down though its BGP session is established, so the loss of this machine shows only after the hold time: switch BFD on for this appliance on the router, and let UDP %d pass, or set group.upstream.bfd: false", p.Addr, bfdPort)
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
			Upstream: true, Active: true, Addr: r.Address, Port: r.Port, ASN: r.ASN, Password: bgp.Secret(r.Password.Reveal()), TTLSecurity: r.TTLSecurity,
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

// latePulse is a heartbeat whose socket may not open at first: the address of the member
// may come later. Until then nobody is heard.
type latePulse struct {
	members []config.Member // without this one
	opened  time.Time
	value   atomic.Pointer[group.Pulse]
	why     atomic.Pointer[error]
	changed chan struct{}
}

// run tries until the socket opens, and then beats. It gives up when ctx ends.
func (p *latePulse) run(ctx context.Context, open func() (*group.Pulse, error), failed func(error)) {
	for ctx.Err() == nil {
		pulse, err := open()
		if err == nil {
			p.value.Store(pulse)
			p.why.Store(nil)
			go relay(ctx, pulse.Changed(), p.changed)
			knock(p.changed)
			err = pulse.Run(ctx)
			p.value.Store(nil)
		}
		if ctx.Err() != nil {
			return
		}
		p.why.Store(&err)
		failed(err)
		knock(p.changed)
		select {
		case <-ctx.Done():
		case <-time.After(reopen):
		}
	}
}

func (p *latePulse) Say(w group.Word) {
	if pulse := p.value.Load(); pulse != nil {
		pulse.Say(w)
	}
}

func (p *latePulse) Ask(asks bool) {
	if pulse := p.value.Load(); pulse != nil {
		pulse.Ask(asks)
	}
}

func (p *latePulse) Tell(text string) {
	if pulse := p.value.Load(); pulse != nil {
		pulse.Tell(text)
	}
}

func (p *latePulse) Heard() (all []group.Heard) {
	if pulse := p.value.Load(); pulse != nil {
		return pulse.Heard()
	}
	problem := ""
	if why := p.why.Load(); why != nil && *why != nil {
		problem = fmt.Sprintf("This appliance hears nobody: %s.", *why)
	}
	for _, m := range p.members {
		all = append(all, group.Heard{Member: group.Member(m), Age: time.Since(p.opened), Problem: problem})
	}
	return all
}

func (p *latePulse) Changed() <-chan struct{} { return p.changed }

// newPulse returns the heartbeat of a member, and a function that waits for its end after
// that of ctx. A group of one needs none.
func newPulse(ctx context.Context, cfg *config.Config, failed func(error)) (p *latePulse, wait func()) {
	p = &latePulse{opened: time.Now(), changed: make(chan struct{}, 1)}
	o := group.Options{Self: cfg.Identity, Secret: cfg.Group.Key(), Port: cfg.Group.Port}
	for _, m := range cfg.Group.Members {
		o.Members = append(o.Members, group.Member(m))
		if m.Name != cfg.Identity {
			p.members = append(p.members, m)
		}
	}
	if len(p.members) == 0 {
		return p, func() {}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.run(ctx, func() (*group.Pulse, error) { return group.Listen(o) }, failed)
	}()
	return p, func() { <-ended }
}

// GroupStatus is this appliance and its group.
type GroupStatus struct {
	Name      string           `json:"name"`
	Class     group.Class      `json:"class"`
	Why       string           `json:"why,omitempty"` // why it is not full
	Since     time.Time        `json:"since"`         // of the class
	Draining  bool             `json:"draining,omitempty"`
	Addresses []AddressOfGroup `json:"addresses"` // of the group, then those of Services
	Services  []ServiceStatus  `json:"services,omitempty"`
	Ring      RingStatus       `json:"ring"`
	Problems  []string         `json:"problems,omitempty"` // what is wrong with addresses and routers, one sentence each
	Members   []MemberStatus   `json:"members"`            // as the file lists them, then others that speak with the group's secret
}

// AddressOfGroup is a service address.
type AddressOfGroup struct {
	Address   netip.Addr   `json:"address"`
	Held      bool         `json:"held"`                // this machine has it on lo
	Announced []netip.Addr `json:"announced,omitempty"` // the routers that have it from this appliance
	VRRP      bool         `json:"vrrp,omitempty"`      // this appliance has it by VRRP
	Services  []string     `json:"services,omitempty"`  // Services of type LoadBalancer that have it, as NAMESPACE/NAME
}

// Unheard reports whether no router knows a service address, although one should.
func (s *Status) Unheard(a AddressOfGroup) bool {
	return len(a.Announced) == 0 && !s.Group.Draining && slices.ContainsFunc(s.Peers, func(p bgp.PeerState) bool { return p.Upstream })
}

// MemberStatus is a member of the group, as it was last heard.
type MemberStatus struct {
	Name     string        `json:"name"`
	Address  netip.Addr    `json:"address"`
	Self     bool          `json:"self,omitempty"`
	Alive    bool          `json:"alive"`
	Class    group.Class   `json:"class,omitempty"`
	Draining bool          `json:"draining,omitempty"`
	Version  string        `json:"version,omitempty"`
	Age      time.Duration `json:"ageNanoseconds"`            // since its last word
	For      time.Duration `json:"forNanoseconds,omitempty"`  // how long it has had this class
	Differs  bool          `json:"differs,omitempty"`         // its configuration is another one
	Lags     time.Duration `json:"lagsNanoseconds,omitempty"` // how long HAProxy has served something else there than here, though the configuration is the same
	Reports  string        `json:"reports,omitempty"`         // the beginning of what it says is wrong with it
	Problem  string        `json:"problem,omitempty"`         // what is wrong between the two
}

// Trouble returns in sentences what is wrong with a member; empty: nothing is.
func (m MemberStatus) Trouble() string { return strings.Join(m.troubles("It"), " ") }

// troubles returns what is wrong with a member, one sentence each.
func (m MemberStatus) troubles(who string) (all []string) {
	if m.Problem != "" {
		all = append(all, m.Problem)
	}
	if m.Differs {
		all = append(all, who+" has another configuration: compare the files, except identity and secrets.")
	}
	if m.Lags > 0 {
		all = append(all, fmt.Sprintf("%s has not served the same Ingresses as this appliance for %s: see which of the two does not hear its API server, or has an error.", who, m.Lags.Round(time.Second)))
	}
	if m.Reports != "" && !m.Draining {
		all = append(all, fmt.Sprintf("%s is %s, and reports: %s.", who, m.Class, m.Reports))
	}
	return all
}

// State returns in words what is known of a member.
func (m MemberStatus) State() string {
	switch {
	case !m.Alive && m.Class == "":
		return "has not been heard"
	case !m.Alive:
		return fmt.Sprintf("has been silent for %s", max(m.Age.Round(time.Second), time.Second))
	case m.Draining:
		return "drains"
	}
	return "is " + string(m.Class)
}

// Serves reports whether a member is full, and does not drain.
func (m MemberStatus) Serves() bool { return m.Alive && m.Class == group.Full && !m.Draining }

// others reports whether another member is full and does not drain.
func (s *GroupStatus) others() bool {
	return slices.ContainsFunc(s.Members, func(m MemberStatus) bool { return !m.Self && m.Serves() })
}

// status describes the group after a round.
func (ms *membership) status(v *view, heard []group.Heard, serving, held, taken []netip.Addr) *GroupStatus {
	g := &ms.member.of
	s := &GroupStatus{
		Name: g.Name, Class: ms.fit.Class, Why: ms.fit.Why, Since: ms.fitSince,
		Draining: ms.drains.get() != nil, Ring: ms.ring.status(),
	}
	s.Services = serviceStatuses(v.compiled.Balancers)
	for _, a := range serving {
		of := AddressOfGroup{Address: a, Held: slices.Contains(held, a), VRRP: slices.Contains(taken, a)}
		for _, b := range v.compiled.Balancers {
			if slices.Contains(b.Recorded, a) {
				of.Services = append(of.Services, b.Namespace+"/"+b.Name)
			}
		}
		for _, p := range v.peers {
			if slices.ContainsFunc(p.Announced, func(p netip.Prefix) bool { return p.Addr() == a }) {
				of.Announced = append(of.Announced, p.Addr)
			}
		}
		s.Addresses = append(s.Addresses, of)
	}
	add := func(h group.Heard) {
		m := MemberStatus{
			Name: h.Member.Name, Address: h.Member.Address, Alive: h.Alive, Class: h.Word.Class, Draining: h.Word.Draining, Version: h.Word.Version,
			Age: h.Age, For: h.Word.Since, Problem: h.Problem,
		}
		if h.Alive {
			m.Reports, m.Differs = h.Word.Why, h.Word.Config != "" && h.Word.Config != v.settings.sum
		}
		if !m.Differs {
			m.Lags = ms.member.lags(m.Name, v.at)
		}
		s.Members = append(s.Members, m)
	}
	for _, m := range g.Members {
		if m.Name == ms.member.self {
			s.Members = append(s.Members, MemberStatus{
				Name: m.Name, Address: m.Address, Self: true, Alive: true, Class: s.Class, Draining: s.Draining, Version: ms.version, For: v.at.Sub(ms.fitSince),
			})
			continue
		}
		if i := slices.IndexFunc(heard, func(h group.Heard) bool { return h.Member == group.Member(m) }); i >= 0 {
			add(heard[i])
			heard = slices.Delete(slices.Clone(heard), i, i+1)
		}
	}
	for _, h := range heard {
		add(h)
	}
	return s
}

// warnings returns what in the group needs attention, one sentence each.
func (s *GroupStatus) warnings(v *view) (all []string) {
	warn := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	for _, sentence := range s.own() {
		warn("group %s: %s", s.Name, sentence)
	}
	for _, sentence := range s.Problems {
		warn("group %s: %s", s.Name, sentence)
	}
	for _, m := range s.Members {
		if m.Self {
			continue
		}
		troubles := m.troubles(m.Name)
		for _, sentence := range troubles {
			warn("group %s: %s", s.Name, sentence)
		}
		if len(troubles) == 0 && !m.Alive {
			warn("group %s: %s (%s) %s: is it running, and may UDP port %d pass between the members?", s.Name, m.Name, m.Address, m.State(), v.settings.cfg.Group.Port)
		}
	}
	return all
}

// own returns what of this appliance's part in the group needs attention, a sentence each.
func (s *GroupStatus) own() (all []string) {
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if s.Class != group.Full {
		add("this appliance is %s: %s", s.Class, s.Why)
	}
	for _, a := range s.Addresses {
		if !a.Held {
			add("this machine does not have the address %s on lo, so it is not announced", a.Address)
		}
	}
	if s.Ring.Problem != "" {
		add("%s", s.Ring.Problem)
	}
	return all
}
