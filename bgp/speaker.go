// Package bgp is the BGP speaker. It owns the sessions to the nodes of every cluster, and to the
// upstream routers. It alone knows what each node announces, and how each lost session ended.
//
// It promises that Offers returns all that the peers announced, one entry for each peer and prefix,
// and nothing else: it chooses no best path, settles no conflict and believes no announcement. It
// offers neither graceful restart nor ADD-PATH, and each session has one address family, that of
// the peer's address. The paths of a lost session stay among the offers, marked with the cause and
// the time of the loss.
//
// It announces nothing to a node. What Announce announces, the upstream routers hear. They have a
// GoBGP of their own, so the GoBGPs that have nodes as peers never hold a prefix to announce.
// Nothing that an upstream router sends becomes an offer.
//
// Its limit: it does not know who may announce what, nor how long an offer counts after its
// session. routes.Verify decides both. This package only removes lost offers at some time.
//
// The speaker is GoBGP 4, and nothing outside this package knows so. The last release of GoBGP 3
// panics on a message header of an unknown type: one packet of 19 bytes before any OPEN ends the
// process, and any pod behind a node's address may send it (osrg/gobgp#3325). We cannot recover,
// since the panic is in a goroutine of the library. Version 4.8.0 survives that packet, and all
// that the tests here send.
package bgp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/server"

	"sallyport/routes"
)

// ErrStopped is the error of every call after Stop.
var ErrStopped = errors.New("the BGP speaker has stopped")

// Config holds the settings that all sessions share.
type Config struct {
	ASN uint32 // our AS, 1 to 4294967295
	// our BGP identifier, an IPv4 address that no peer has: a same-AS peer with the same identifier
	// refuses us
	RouterID netip.Addr
	Listen   []netip.Addr // addresses where peers that are not Active may connect; they cannot connect if empty
	Port     uint16       // port to listen on; 0 is 179
	// that we propose, as RFC 4271 (4.2) bounds it, and not 0: the lower of the two ends' proposals counts
	HoldTime time.Duration
	Log      *slog.Logger // nil discards
}

// pace holds the speaker's own intervals. Tests use shorter intervals.
type pace struct {
	renew     time.Duration // least time between two renewals of one peer
	handshake time.Duration // longest time a connection may take from TCP to Established
	dial      time.Duration // longest time for a peer that we dial to stay in Active
	// after this long in Established the End-of-RIB counts as received, and the paths of other nodes as announced
	endOfRIB  time.Duration
	keep      time.Duration // longest time an offer outlives its session
	penalty   time.Duration // first pause after too many prefixes, doubled each time
	penaltyTo time.Duration // longest such pause
	relisten  time.Duration // pause between two attempts to listen
	tick      time.Duration // interval between two checks of the times above
}

var usualPace = pace{
	renew:     2 * time.Second,
	handshake: 10 * time.Second,
	dial:      30 * time.Second,
	endOfRIB:  time.Minute,
	keep:      15 * time.Minute,
	penalty:   30 * time.Second,
	penaltyTo: 5 * time.Minute,
	relisten:  5 * time.Second,
	tick:      time.Second,
}

// A Speaker is a running BGP speaker. Its methods may be called from any
// goroutine.
type Speaker struct {
	ctx     context.Context // ends with the speaker
	config  Config          // ops guards Listen and Port, the wanted values
	pace    pace
	log     *slog.Logger
	tap     *tap
	stop    context.CancelFunc
	stopped sync.Once

	// A GoBGP that listens accepts connections of every peer it has, even of those that
	// it dials. So the peers that we dial have a GoBGP that does not listen.
	dialer   *server.BgpServer
	listener *server.BgpServer  // nil if nobody may connect; written with ops and mu held, read with ops or mu held
	unwatch  context.CancelFunc // ends the listener's watcher; guarded by ops
	deaf     error              // why it does not listen; guarded by ops
	relisten time.Time          // when it tries again; guarded by ops

	// A node must never hear a prefix of ours, so the upstream routers have a GoBGP without nodes.
	// It does not listen: a router may be passive. It is nil if no peer is an upstream router;
	// written with ops and mu held, read with ops or mu held.
	announcer  *server.BgpServer
	unannounce context.CancelFunc            // ends the announcer's watcher; guarded by ops
	wish       map[netip.Prefix]Announcement // of the last Announce; guarded by ops
	announced  map[netip.Prefix]Announcement // in the announcer; written with ops and mu held, read with one of them

	worker  sync.WaitGroup
	changed chan struct{}
	wake    chan struct{} // to the worker: a session has changed its state

	// ops serializes adding, deleting and listing GoBGP's peers, and replacing a GoBGP.
	// Lock it before mu. The watcher never locks it.
	ops sync.Mutex

	// mu guards the fields below. Never call GoBGP while holding it: the watcher locks
	// it, and must not wait.
	mu       sync.Mutex
	done     bool
	sessions map[netip.Addr]*session
	unsaid   []slog.Record // for the worker to log: a log may be slow to take a line, and the watcher must not wait
}

// Start listens and returns a speaker without peers. The speaker ends with ctx, or by
// Stop. If the port is in use, an address is not on this machine, or the permission is
// missing, the error says what to do. Listen changes where peers may connect.
func Start(ctx context.Context, c Config) (*Speaker, error) {
	return start(ctx, c, usualPace)
}

func start(ctx context.Context, c Config, p pace) (*Speaker, error) {
	c, err := c.check()
	if err != nil {
		return nil, err
	}
	tap := newTap(c.Log.Handler())
	ctx, stop := context.WithCancel(ctx)
	s := &Speaker{
		ctx:      ctx,
		config:   Config{ASN: c.ASN, RouterID: c.RouterID, HoldTime: c.HoldTime},
		pace:     p,
		log:      c.Log,
		tap:      tap,
		stop:     stop,
		changed:  make(chan struct{}, 1),
		wake:     make(chan struct{}, 1),
		sessions: make(map[netip.Addr]*session),
	}
	s.dialer = s.server()
	if err = s.open(ctx, s.dialer, nodes, -1, nil); err == nil {
		err = s.Listen(c.Listen, c.Port)
	}
	if err != nil {
		stop()
		for _, b := range s.servers() {
			b.Stop()
		}
		return nil, err
	}
	s.worker.Go(func() { s.work(ctx) })
	context.AfterFunc(ctx, s.Stop)
	return s, nil
}

// server starts a GoBGP without configuration.
func (s *Speaker) server() *server.BgpServer {
	b := server.NewBgpServer(server.LoggerOption(slog.New(s.tap), new(slog.LevelVar)))
	go b.Serve()
	return b
}

// servers returns the GoBGPs in use: the dialer, the listener if the speaker listens, and the
// announcer if it has upstream routers.
func (s *Speaker) servers() []*server.BgpServer {
	all := []*server.BgpServer{s.dialer}
	for _, b := range []*server.BgpServer{s.listener, s.announcer} {
		if b != nil {
			all = append(all, b)
		}
	}
	return all
}

// of returns the GoBGP for a peer; nil if it does not run now. Called with ops held.
func (s *Speaker) of(p Peer) *server.BgpServer {
	switch {
	case p.Upstream:
		return s.announcer
	case p.Active:
		return s.dialer
	}
	return s.listener
}

func (c Config) check() (Config, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case c.ASN == 0:
		return c, errors.New("bgp: no AS number is given for this speaker")
	case !c.RouterID.Unmap().Is4() || c.RouterID.Unmap().IsUnspecified():
		return c, fmt.Errorf("bgp: the router ID has to be an IPv4 address, not %q", c.RouterID)
	case c.HoldTime <= 0:
		return c, errors.New("bgp: no hold time is given, without which no loss of a peer would be noticed")
	}
	c.RouterID = c.RouterID.Unmap()
	return c, nil
}

// Listen makes peers that are not Active connect at exactly these addresses. If addrs is empty,
// these peers cannot connect. If the speaker listens there already, Listen does nothing. A change
// resets the sessions of these peers, but no other session; their announcements stay among the
// offers. The error is an error as Start returns it. Every call returns it until the speaker
// listens; the speaker tries again after a pause.
func (s *Speaker) Listen(addrs []netip.Addr, port uint16) error {
	addrs = slices.Clone(addrs)
	for i, a := range addrs {
		if !a.IsValid() {
			return errors.New("bgp: one of the addresses to listen on is empty")
		}
		addrs[i] = a.Unmap()
	}
	port = cmp.Or(port, 179)
	s.ops.Lock()
	defer s.ops.Unlock()
	if s.isDone() {
		return ErrStopped
	}
	if slices.Equal(addrs, s.config.Listen) && port == s.config.Port &&
		(len(addrs) == 0 || s.listener != nil || time.Now().Before(s.relisten)) {
		return s.deaf
	}
	s.closeListener()
	was := s.deaf
	s.config.Listen, s.config.Port, s.deaf = addrs, port, nil
	if len(addrs) == 0 {
		return nil
	}
	s.deaf, s.relisten = s.openListener(), time.Now().Add(s.pace.relisten)
	if s.deaf != nil && (was == nil || was.Error() != s.deaf.Error()) {
		s.log.Error("BGP peers cannot connect", "err", s.deaf)
	}
	return s.deaf
}

// openListener starts the GoBGP that listens. Called with ops held.
func (s *Speaker) openListener() error {
	b := s.server()
	ctx, unwatch := context.WithCancel(s.ctx)
	if err := s.open(ctx, b, nodes, int32(s.config.Port), s.config.Listen); err != nil {
		unwatch()
		b.Stop()
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listener, s.unwatch = b, unwatch
	return nil
}

// closeListener ends the GoBGP that listens, and the sessions of its peers. Called
// with ops held.
func (s *Speaker) closeListener() {
	if s.listener == nil {
		return
	}
	b := s.listener
	s.mu.Lock()
	s.listener = nil
	for _, x := range s.sessions {
		if x.added && !x.peer.Active {
			x.added = false
			x.leave(time.Now(), ending{routes.Closed, SettingsChanged, "session reset to listen elsewhere"})
			x.forgive()
		}
	}
	s.mu.Unlock()
	s.knock()
	s.unwatch()
	b.Stop()
	s.tap.hears()
}

// A side is the kind of peers that a GoBGP has.
type side int

const (
	nodes     side = iota // they announce to us
	upstreams             // we announce to them
)

// open configures a GoBGP before its first peer: it sets the policies, listens at the port, and
// starts the watcher. If port is -1, the GoBGP does not listen.
func (s *Speaker) open(ctx context.Context, b *server.BgpServer, to side, port int32, addrs []netip.Addr) error {
	listen := make([]string, len(addrs))
	for i, a := range addrs {
		listen[i] = a.String()
	}
	err := b.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{
		Asn:             s.config.ASN,
		RouterId:        s.config.RouterID.String(),
		ListenPort:      port,
		ListenAddresses: listen,
		Families:        []uint32{0, 1}, // GoBGP's own numbers for IPv4 and IPv6 unicast
	}})
	if err != nil {
		return s.explain(err)
	}
	// REJECT on EXPORT announces nothing. REJECT on IMPORT keeps the RIB empty, too, so
	// that there is nothing to announce. We read the paths of nodes before any policy.
	var policies []*api.Policy
	if to == upstreams {
		policies = []*api.Policy{ours}
		if err := b.AddPolicy(ctx, &api.AddPolicyRequest{Policy: ours}); err != nil {
			return fmt.Errorf("bgp: define a policy: %w", err)
		}
	}
	for _, d := range []api.PolicyDirection{
		api.PolicyDirection_POLICY_DIRECTION_EXPORT,
		api.PolicyDirection_POLICY_DIRECTION_IMPORT,
	} {
		err := b.AddPolicyAssignment(ctx, &api.AddPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{
			Name:          "global",
			Direction:     d,
			Policies:      policies,
			DefaultAction: api.RouteAction_ROUTE_ACTION_REJECT,
		}})
		if err != nil {
			return fmt.Errorf("bgp: close the RIB (%s): %w", d, err)
		}
	}
	return s.watch(ctx, b, to)
}

func (s *Speaker) explain(err error) error {
	at := fmt.Sprintf("port %d", s.config.Port)
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Addr != nil {
		at = op.Addr.String()
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("bgp: cannot listen on %s because another program already does: stop it (a BIRD, another "+
			"speaker) or choose another port: %w", at, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("bgp: cannot listen on %s because no interface of this machine has that address (a new "+
			"IPv6 address needs a moment): %w", at, err)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return fmt.Errorf("bgp: no permission to listen on %s: run as root or with CAP_NET_BIND_SERVICE: %w", at, err)
	}
	return fmt.Errorf("bgp: listen on %s: %w", at, err)
}

// Stop closes every session and the listeners, and returns when all are closed. It does
// not change routes in the kernel. Calling it again does nothing.
func (s *Speaker) Stop() {
	s.stopped.Do(func() {
		s.mu.Lock()
		s.done = true
		s.mu.Unlock()
		s.stop()
		s.worker.Wait()
		s.ops.Lock()
		defer s.ops.Unlock()
		for _, b := range s.servers() {
			b.Stop()
		}
		s.knock()
	})
}

// Changed returns a channel that receives after offers or sessions have changed. One
// receive may stand for several changes: read all of Offers and Peers.
func (s *Speaker) Changed() <-chan struct{} { return s.changed }

func (s *Speaker) knock() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Offers returns all paths of the peers, those of lost sessions included, sorted by
// cluster, peer and prefix.
func (s *Speaker) Offers() ([]routes.Offer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		return nil, ErrStopped
	}
	var all []routes.Offer
	now := time.Now()
	for _, x := range s.sorted() {
		from := len(all)
		all = slices.AppendSeq(all, x.all(now))
		slices.SortFunc(all[from:], func(a, b routes.Offer) int { return a.Prefix.Compare(b.Prefix) })
	}
	return all, nil
}

// sorted returns the sessions by cluster and address. Called with mu held.
func (s *Speaker) sorted() []*session {
	return slices.SortedFunc(maps.Values(s.sessions), func(a, b *session) int {
		return cmp.Or(strings.Compare(a.peer.Cluster, b.peer.Cluster), a.peer.Addr.Compare(b.peer.Addr))
	})
}

// Peers returns the state of every valid peer of the last SetPeers, sorted by cluster and
// address. It leaves passwords out.
func (s *Speaker) Peers() []PeerState {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]PeerState, 0, len(s.sessions))
	for _, x := range s.sorted() {
		p := x.report()
		if x.peer.Upstream && x.state == established {
			p.Announced = s.announcedTo(x.peer)
		}
		all = append(all, p)
	}
	return all
}

// SetPeers makes the speaker's peers be exactly these. It adds and removes peers, and resets the
// session of a peer with changed settings. Other sessions go on. If SetPeers is called again with
// the same peers, it only tries again to set up peers that failed. The error joins one sentence for
// each peer that is not set up; every call returns it until the peer is set up. Such a peer does
// not stop the other peers. A peer that cannot connect because Listen has failed is kept without a
// sentence. If a node has the address of an upstream router, the router is the peer.
func (s *Speaker) SetPeers(peers []Peer) error {
	s.ops.Lock()
	defer s.ops.Unlock()
	if s.isDone() {
		return ErrStopped
	}
	var errs []error
	want := make(map[netip.Addr]Peer, len(peers))
	for _, p := range peers {
		p = p.withDefaults()
		if err := p.check(s.config); err != nil {
			errs = append(errs, err)
			continue
		}
		if other, twice := want[p.Addr]; twice {
			if p.Upstream && !other.Upstream {
				// The operator names the upstream routers, and a cluster its nodes.
				p, other = other, p
				want[other.Addr] = other
			}
			errs = append(errs, fmt.Errorf("bgp: peer %s is asked for twice, as %s and as %s: the first is kept",
				p.Addr, other.owner(), p.owner()))
			continue
		}
		want[p.Addr] = p
	}
	have := s.settings()
	for _, a := range slices.SortedFunc(maps.Keys(have), netip.Addr.Compare) {
		if _, wanted := want[a]; wanted {
			continue
		}
		if err := s.remove(a); err != nil {
			errs = append(errs, err)
		}
	}
	upstream := slices.ContainsFunc(slices.Collect(maps.Values(want)), func(p Peer) bool { return p.Upstream })
	if upstream {
		errs = append(errs, s.openAnnouncer())
	}
	for _, a := range slices.SortedFunc(maps.Keys(want), netip.Addr.Compare) {
		if err := s.ensure(want[a]); err != nil {
			errs = append(errs, err)
		}
	}
	if !upstream {
		s.closeAnnouncer()
	}
	if listener := s.tap.deaf(); listener != nil {
		errs = append(errs, listener)
	}
	return errors.Join(errs...)
}

func (s *Speaker) isDone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done
}

func (s *Speaker) settings() map[netip.Addr]Peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	have := make(map[netip.Addr]Peer, len(s.sessions))
	for a, x := range s.sessions {
		have[a] = x.peer
	}
	return have
}

// remove removes a peer and all its paths. Called with ops held.
func (s *Speaker) remove(a netip.Addr) error {
	s.mu.Lock()
	x := s.sessions[a]
	delete(s.sessions, a)
	s.mu.Unlock()
	s.knock()
	s.log.Info("BGP peer removed", "peer", x.peer)
	if !x.added {
		return nil
	}
	return s.dismiss(x.peer)
}

// ensure adds a peer, or applies its changed settings. Called with ops held.
func (s *Speaker) ensure(p Peer) error {
	s.mu.Lock()
	x, known := s.sessions[p.Addr]
	if !known {
		x = newSession(p, time.Now())
		s.sessions[p.Addr] = x
	}
	old := x.peer
	same := x.added && old.session() == p.session()
	relabelled := old.Cluster != p.Cluster || old.Node != p.Node
	x.peer = p
	if !same && x.added {
		// We end this session, not the peer: its paths count as after a restart of the
		// peer's BIRD.
		x.leave(time.Now(), ending{routes.Closed, SettingsChanged, "session reset to take over new settings"})
		x.forgive()
	}
	dismiss := !same && x.added
	s.mu.Unlock()
	if !known || dismiss || relabelled {
		s.knock()
	}
	if same {
		return nil
	}
	var err error
	if dismiss {
		s.log.Info("BGP peer changes", "peer", p)
		err = s.dismiss(old)
	} else if !known {
		s.log.Info("BGP peer added", "peer", p)
	}
	return errors.Join(err, s.add(x, p))
}

// add adds a peer to GoBGP. Called with ops held.
func (s *Speaker) add(x *session, p Peer) error {
	b := s.of(p)
	if b == nil {
		return nil // Listen, or openAnnouncer, returns why
	}
	s.mark(x, true)
	s.tap.forget(p.Addr)
	err := b.AddPeer(context.Background(), &api.AddPeerRequest{Peer: p.config(s.config)})
	if err != nil {
		s.mark(x, false)
		return fmt.Errorf("bgp: set up peer %s: %w", p.Addr, err)
	}
	// If the kernel rejects the key, GoBGP only logs a warning, and accepts the peer without a key.
	if refused := s.tap.refused(p.Addr); refused != "" {
		s.mark(x, false)
		err := fmt.Errorf("bgp: the TCP MD5 password of peer %s cannot be set, so there is no session with it: %s",
			p.Addr, refused)
		return errors.Join(err, s.dismiss(p))
	}
	return nil
}

func (s *Speaker) mark(x *session, added bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.added = added
	if !added {
		x.leave(time.Now(), ending{routes.Refused, NotSetUp, "the session could not be set up"})
	}
}

// dismiss removes a peer from GoBGP, and its key from the listening sockets. DeletePeer
// alone leaves the key on them, and a peer without a key could not connect from that
// address. So dismiss first sets an empty password.
func (s *Speaker) dismiss(p Peer) error {
	ctx := context.Background()
	var errs []error
	if p.Password != "" {
		bare := p
		bare.Password = ""
		if _, err := s.of(p).UpdatePeer(ctx, &api.UpdatePeerRequest{Peer: bare.config(s.config)}); err != nil {
			errs = append(errs, fmt.Errorf("bgp: take the password of peer %s from the listener: %w", p.Addr, err))
		}
	}
	if err := s.of(p).DeletePeer(ctx, &api.DeletePeerRequest{Address: p.Addr.String()}); err != nil {
		errs = append(errs, fmt.Errorf("bgp: remove peer %s: %w", p.Addr, err))
	}
	return errors.Join(errs...)
}

// work applies everything that is due on all sessions until ctx ends.
func (s *Speaker) work(ctx context.Context) {
	// Several sessions may be cut at once. The tick is short enough to find all of them
	// silent before the first is lost.
	tick := time.NewTicker(min(s.pace.tick, s.config.HoldTime/9))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-s.wake:
		}
		s.hear(ctx)
		s.expire(time.Now())
		s.renew(time.Now())
		s.say(ctx)
	}
}

func (s *Speaker) say(ctx context.Context) {
	s.mu.Lock()
	unsaid := s.unsaid
	s.unsaid = nil
	s.mu.Unlock()
	for _, r := range unsaid {
		if h := s.log.Handler(); h.Enabled(ctx, r.Level) {
			_ = h.Handle(ctx, r) // slog's Logger ignores this error, too
		}
	}
}

// hear asks GoBGP for the number of messages that each session has received, for its hold time, and
// for the state of its BFD.
func (s *Speaker) hear(ctx context.Context) {
	s.ops.Lock()
	defer s.ops.Unlock()
	type answer struct {
		messages         uint64
		hold             time.Duration
		established, bfd bool
	}
	asked, answers := time.Now(), map[netip.Addr]answer{}
	for _, b := range s.servers() {
		err := b.ListPeer(ctx, &api.ListPeerRequest{}, func(p *api.Peer) {
			state := p.GetState()
			if a, err := netip.ParseAddr(state.GetNeighborAddress()); err == nil {
				answers[a.Unmap()] = answer{
					messages:    state.GetMessages().GetReceived().GetTotal(),
					hold:        time.Duration(p.GetTimers().GetState().GetNegotiatedHoldTime()) * time.Second,
					established: state.GetSessionState() == api.PeerState_SESSION_STATE_ESTABLISHED,
					bfd:         state.GetBfdState().GetSessionState() == api.BfdSessionState_BFD_SESSION_STATE_UP,
				}
			}
		})
		if err != nil {
			return // without an answer no session counts as silent
		}
	}
	now := time.Now()
	var endless []Peer
	s.mu.Lock()
	for a, x := range s.sessions {
		c, ok := answers[a]
		if ok && x.state == established {
			x.hear(c.messages, c.hold, now)
		} else {
			x.heard = now
		}
		// GoBGP tells that a session is established before it says so when asked. So only an answer
		// that says so counts, and only about a session that was there before the question.
		if c.established && c.hold == 0 && x.state == established && x.since.Before(asked) && !x.refused {
			x.refused = true
			endless = append(endless, x.peer)
		}
		if was := x.bfd; x.forward(ok && c.bfd) && was != "" {
			r := slog.NewRecord(now, slog.LevelInfo, "BFD session "+x.bfd, 0)
			r.Add("peer", x.peer)
			s.unsaid = append(s.unsaid, r)
			s.knock()
		}
	}
	s.mu.Unlock()
	s.refuse(ctx, endless)
}

// refuse ends the sessions with peers that opened with a hold time of 0, which GoBGP accepts: such a
// session never expires (RFC 4271, 4.2). Called with ops held.
func (s *Speaker) refuse(ctx context.Context, peers []Peer) {
	for _, p := range peers {
		if err := s.of(p).DisablePeer(ctx, &api.DisablePeerRequest{Address: p.Addr.String()}); err != nil {
			s.log.Error("BGP session without a hold time could not be ended", "peer", p, "err", err)
			s.mu.Lock()
			s.sessions[p.Addr].refused = false // the next look tries again
			s.mu.Unlock()
		}
	}
}

func (s *Speaker) expire(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.sessions {
		if x.expire(now, s.pace) {
			s.knock()
		}
	}
}

// renew replaces the GoBGP peers that are due. After a session GoBGP keeps a peer in Idle
// for 5 seconds, and closes its connections; after too many prefixes it does so for ever.
// A new GoBGP peer accepts connections at once.
func (s *Speaker) renew(now time.Time) {
	s.ops.Lock()
	defer s.ops.Unlock()
	for _, x := range s.due(now) {
		err := s.of(x.peer).DeletePeer(context.Background(), &api.DeletePeerRequest{Address: x.peer.Addr.String()})
		if err := errors.Join(err, s.add(x, x.peer)); err != nil {
			// The next SetPeers tries again and returns the error.
			s.log.Error("BGP peer could not be renewed", "peer", x.peer, "err", err)
			s.knock()
		}
	}
}

func (s *Speaker) due(now time.Time) []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		return nil
	}
	var due []*session
	for _, x := range s.sessions {
		if x.added && x.renewNow(now) {
			due = append(due, x)
		}
	}
	return due
}
