package group

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"hash"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// These bound the work that a hostile neighbour can cause. The kernel drops all packets beyond
	// most in an Interval, including packets of members, which may then look silent.
	most      = 4096 // packets read in an Interval
	replies   = 4    // packets sent to one appliance in an Interval, besides the heartbeat
	strangers = 8    // appliances known that are not in the list
)

// Options says who is in the group.
type Options struct {
	Self    string   // the name of this appliance, which is in Members
	Members []Member // all of the group, of one address family
	Secret  []byte   // of the group; at least 32 bytes
	Port    uint16   // UDP, the same on all members; 0 stands for Port
}

// A Pulse sends the heartbeat of this appliance, and receives the heartbeats of the others.
//
// A process that starts has a random session. Another process counts its packets only
// after one of them has returned the challenge that this other process made for it, so
// packets of an earlier session prove nothing. Within a session the counter has to grow.
//
// Its methods are safe for concurrent use.
type Pulse struct {
	self    Member
	port    uint16
	conn    conn
	session id
	changed chan struct{}

	mu        sync.Mutex // guards what follows
	mac       hash.Hash
	sum       [sha256.Size]byte
	buffer    [longest]byte
	counter   uint64
	word      Word
	said      time.Time
	asks      bool   // this appliance asks the others for their texts
	tells     string // the text that members that ask get now
	next      string // the text that replaces tells
	pages     []page // of tells
	turned    time.Time
	orders    string  // of this appliance; empty if it has none
	beats     int     // Intervals since they were sent to all, below orderEvery
	members   []*peer // without this one
	strangers map[Member]*peer
	counts    Counts
	now       func() time.Time // the wall clock for comparing clocks, which may be wrong; everything else uses time.Now
}

// Counts says how many packets arrived since the start.
type Counts struct {
	Accepted uint64
	Forged   uint64 // not of this group, or for another receiver
	Replayed uint64 // signed, but older than the last of its session
	Unproven uint64 // signed, of a process that has not answered yet: it starts, or the packet is a replay
}

// A conn is a UDP socket.
type conn interface {
	ReadFromUDPAddrPort([]byte) (int, netip.AddrPort, error)
	WriteToUDPAddrPort([]byte, netip.AddrPort) (int, error)
	Close() error
}

// A peer is another appliance.
type peer struct {
	Member
	listed  bool
	met     time.Time   // when the process first knew it
	silence *time.Timer // knocks when the peer has become silent

	challenge *id // for the next session at its address
	session   id  // the one that has answered
	former    id  // the session before
	counter   uint64
	theirs    id // its challenge
	word      Word
	heard     time.Time     // zero if it never was
	verdict   verdict       // about us
	ahead     time.Duration // its clock, of ours
	namesake  time.Time     // when another appliance last spoke with its name
	twice     time.Time     // when a former session of it last answered: two processes run
	foreign   time.Time     // when a packet last came from its address that is not of this group
	otherKind bool          // that packet was of another version
	replied   int           // in the Interval of tick
	failed    error         // of the last packet to it
	asked     time.Time     // when it last asked
	page      int           // number of the page that was last sent to it
	told      collection
	orders    string // its last; empty if it has sent none
}

// Listen opens the socket of this appliance. Run does the rest.
func Listen(o Options) (*Pulse, error) {
	p, err := prepare(o)
	if err != nil {
		return nil, err
	}
	at := netip.AddrPortFrom(p.self.Address, p.port)
	socket, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return nil,
			fmt.Errorf("listening for heartbeats as %s: does this machine have the address that group.members "+
				"gives %s? %w", p.self.Name, p.self.Name, err)
	}
	p.conn = socket
	return p, nil
}

// prepare does the work of Listen except opening the socket.
func prepare(o Options) (*Pulse, error) {
	if len(o.Secret) < 32 {
		return nil, fmt.Errorf("the secret of the group has %d bytes: it must have at least 32", len(o.Secret))
	}
	p := &Pulse{
		port:      cmp.Or(o.Port, Port),
		session:   random(),
		changed:   make(chan struct{}, 1),
		mac:       hmac.New(sha256.New, Key(o.Secret, "heartbeat")),
		strangers: map[Member]*peer{},
		now:       time.Now,
	}
	i := slices.IndexFunc(o.Members, func(m Member) bool { return m.Name == o.Self })
	if i < 0 {
		return nil, fmt.Errorf("this appliance, %q, is not in the list of members", o.Self)
	}
	p.self = o.Members[i]
	names, addresses := map[string]bool{}, map[netip.Addr]bool{}
	for _, m := range o.Members {
		switch {
		case m.Name == "" || m.Name != plain(m.Name, maxText):
			return nil, fmt.Errorf("the name %q of a member: it must have 1 to %d printable ASCII characters", m.Name,
				maxText)
		case !m.Address.IsValid() || m.Address.Is4() != p.self.Address.Is4():
			return nil,
				fmt.Errorf("member %s has the address %s, and %s has %s: all members need addresses of one family",
					m.Name, m.Address, p.self.Name, p.self.Address)
		case names[m.Name] || addresses[m.Address]:
			return nil, fmt.Errorf("member %s, %s: its name or its address is in the list twice", m.Name, m.Address)
		}
		names[m.Name], addresses[m.Address] = true, true
		if m != p.self {
			p.members = append(p.members, p.newPeer(m, true))
		}
	}
	return p, nil
}

func (p *Pulse) newPeer(m Member, listed bool) *peer {
	silence := time.AfterFunc(Silence, p.knock)
	silence.Stop()
	n := &peer{Member: m, listed: listed, met: time.Now(), silence: silence}
	for _, other := range p.members {
		if other.Address == m.Address {
			n.challenge = other.challenge
		}
	}
	for _, other := range p.strangers {
		if other.Address == m.Address {
			n.challenge = other.challenge
		}
	}
	if n.challenge == nil {
		challenge := random()
		n.challenge = &challenge
	}
	return n
}

func random() (n id) {
	_, _ = rand.Read(n[:]) // it never fails
	return n
}

// Say sets the Word that the heartbeats have from now on. Before the first call they have an empty
// Word. A change of the class and the begin and end of a drain are sent at once.
func (p *Pulse) Say(w Word) {
	for _, t := range w.texts() {
		*t.of = plain(*t.of, t.most)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	other := w.Class != p.word.Class || w.Draining != p.word.Draining
	p.word, p.said = w, time.Now()
	if other {
		for _, m := range p.members {
			p.send(m, m.theirs)
		}
	}
}

// Changed returns a channel that receives after Heard has changed in more than its times.
func (p *Pulse) Changed() <-chan struct{} { return p.changed }

func (p *Pulse) knock() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// Counts returns how many packets arrived.
func (p *Pulse) Counts() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts
}

// Heard returns the other members in the order of the list, and then the appliances that
// speak with the secret of the group and are not in the list.
func (p *Pulse) Heard() []Heard {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	var all []Heard
	for _, m := range p.members {
		all = append(all, p.report(m, now))
	}
	known := len(all)
	for _, s := range p.strangers {
		if now.Sub(s.heard) < memory {
			all = append(all, p.report(s, now))
		}
	}
	slices.SortFunc(all[known:], func(a, b Heard) int {
		return cmp.Or(cmp.Compare(a.Member.Name, b.Member.Name), a.Member.Address.Compare(b.Member.Address))
	})
	return all
}

func (p *Pulse) report(m *peer, now time.Time) Heard {
	h := Heard{Member: m.Member, Word: m.word, Age: now.Sub(m.met), Alive: m.alive(now), Problem: p.problem(m, now)}
	h.Asks, h.Told, h.Orders = m.wonders(now), m.told.text, m.orders
	if !m.heard.IsZero() {
		h.Age = now.Sub(m.heard)
	}
	return h
}

func (m *peer) alive(now time.Time) bool {
	return m.listed && now.Sub(m.heard) < Silence
}

// problem returns one sentence about a peer.
func (p *Pulse) problem(m *peer, now time.Time) string {
	recent := func(t time.Time) bool { return now.Sub(t) < memory } // the zero time is not
	switch {
	case !m.listed && p.judge(m) == namesake:
		return fmt.Sprintf("The appliance at %s has the name %s like this one: give each an identity of its own.",
			m.Address, m.Name)
	case !m.listed && p.judge(m) == misplaced:
		return fmt.Sprintf("%s speaks from %s, but group.members has it at another address: there are two of this "+
			"name, or one list is wrong.", m.Name, m.Address)
	case !m.listed:
		return fmt.Sprintf("%s at %s has the secret of this group, but is not in group.members: add it on every "+
			"member, or give it another group.", m.Name, m.Address)
	case recent(m.twice):
		return fmt.Sprintf("Two processes speak in turn as %s from %s: give each appliance an identity and an "+
			"address of its own.", m.Name, m.Address)
	case recent(m.namesake):
		return fmt.Sprintf("Another appliance has the name %s, too: give each an identity of its own.", m.Name)
	}
	if recent(m.heard) {
		switch m.verdict {
		case unlisted:
			return fmt.Sprintf("%s does not have %s in its group.members: add it there.", m.Name, p.self.Name)
		case misplaced:
			return fmt.Sprintf("%s has another address for %s in its group.members than %s: there are two of this "+
				"name, or one list is wrong.", m.Name, p.self.Name, p.self.Address)
		case namesake:
			return fmt.Sprintf("The appliance at %s takes the name %s for its own: give each an identity of its own.",
				m.Address, p.self.Name)
		case doubled:
			return fmt.Sprintf("%s hears another appliance with the name %s, too: give each an identity of its own.",
				m.Name, p.self.Name)
		}
	}
	switch {
	case m.alive(now) && m.ahead.Abs() >= skew:
		than := "behind"
		if m.ahead > 0 {
			than = "ahead of"
		}
		return fmt.Sprintf("The clock of %s is %s %s that of %s: synchronise both by NTP, since tokens, certificates "+
			"and TLS tickets are valid by the clock.", m.Name, m.ahead.Abs().Round(time.Second), than, p.self.Name)
	case m.alive(now):
	case recent(m.foreign) && m.otherKind:
		return fmt.Sprintf("%s at %s speaks another version of the heartbeat: install one version of Sallyport on "+
			"all members.", m.Name, m.Address)
	case recent(m.foreign):
		return fmt.Sprintf("Packets of %s at %s are not signed with the secret of this group: compare "+
			"group.secret on both.", m.Name, m.Address)
	case m.failed != nil:
		return fmt.Sprintf("No heartbeat can be sent to %s: %v.", m.Name, m.failed)
	}
	return ""
}

// judge returns the verdict that this appliance sends to a peer about its place in the group.
func (p *Pulse) judge(m *peer) verdict {
	if m.listed {
		for _, s := range p.strangers {
			if s.Address == m.Address && time.Since(s.heard) < memory {
				return p.judge(s) // the appliance at this address has another name
			}
		}
	}
	switch {
	case m.listed && time.Since(m.namesake) < memory:
		return doubled
	case m.listed:
		return welcome
	case m.Name == p.self.Name:
		return namesake
	case p.named(m.Name) != nil:
		return misplaced
	}
	return unlisted
}

// named returns the member of a name, or nil.
func (p *Pulse) named(name string) *peer {
	if i := slices.IndexFunc(p.members, func(m *peer) bool { return m.Name == name }); i >= 0 {
		return p.members[i]
	}
	return nil
}

// Run speaks and listens until ctx ends, then closes the socket. It returns an error if the socket
// fails.
func (p *Pulse) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = p.conn.Close() })
	defer stop()
	var speaking sync.WaitGroup
	speaking.Go(func() { p.speak(ctx) })
	err := p.listen(ctx)
	done := ctx.Err() != nil
	cancel()
	speaking.Wait()
	for _, m := range p.members {
		m.silence.Stop()
	}
	if done {
		return nil
	}
	return fmt.Errorf("listening for heartbeats: %w", err)
}

// speak sends a heartbeat to each member in each Interval.
func (p *Pulse) speak(ctx context.Context) {
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	for {
		p.mu.Lock()
		p.turn(time.Now())
		p.beats = (p.beats + 1) % orderEvery
		for _, m := range p.members {
			m.replied = 0
			p.send(m, m.theirs)
			p.learn(m, time.Now())
			if p.beats == 0 {
				p.order(m)
			}
		}
		for key, s := range p.strangers {
			s.replied = 0
			if time.Since(s.met) > memory && time.Since(s.heard) > memory {
				delete(p.strangers, key)
				p.knock()
			}
		}
		p.mu.Unlock()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// listen handles packets until the socket fails.
func (p *Pulse) listen(ctx context.Context) error {
	var b [longest + 1]byte
	window, count := time.Now(), 0
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		n, from, err := p.conn.ReadFromUDPAddrPort(b[:])
		if err != nil {
			return err
		}
		now := time.Now()
		if now.Sub(window) >= Interval {
			window, count = now, 0
		}
		if count++; count > most {
			pause.Reset(Interval - now.Sub(window))
			select {
			case <-pause.C:
			case <-ctx.Done():
			}
		}
		p.handle(b[:n], from.Addr().Unmap())
	}
}

// handle takes one packet. A packet that is not of the group allocates nothing.
func (p *Pulse) handle(b []byte, from netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	signed := len(b) >= shortest && len(b) <= longest &&
		hmac.Equal(b[len(b)-signature:], p.sign(p.self.Address, b[:len(b)-signature]))
	if !signed {
		p.counts.Forged++
		p.suspect(b, from)
		return
	}
	m, ok := parse(b)
	if !ok {
		p.counts.Forged++
		p.suspect(b, from)
		return
	}
	who := p.find(Member{m.name, from})
	switch {
	case who == nil:
		p.counts.Unproven++
		return
	case m.session == who.session && m.counter <= who.counter:
		p.counts.Replayed++
		return
	case m.session != who.session && m.answer != *who.challenge:
		p.counts.Unproven++
		p.reply(who, m.challenge)
		return
	}
	p.counts.Accepted++
	p.accept(who, m)
	if !who.listed {
		p.reply(who, m.challenge)
	}
}

// suspect remembers that a packet from a member's address was not of this group. It is
// reported only as long as the member itself is silent.
func (p *Pulse) suspect(b []byte, from netip.Addr) {
	for _, m := range p.members {
		if m.Address != from {
			continue
		}
		now := time.Now()
		first := now.Sub(m.foreign) >= memory && !m.alive(now)
		m.foreign = now
		m.otherKind = len(b) > 3 && string(b[:3]) == magic && b[3]&^ordering != edition
		if first {
			p.knock()
		}
	}
}

// find returns the peer of this name and address: a member or a stranger, who may be new.
// It returns nil if there are too many strangers.
func (p *Pulse) find(who Member) *peer {
	if m := p.named(who.Name); m != nil && m.Address == who.Address {
		return m
	}
	s := p.strangers[who]
	if s == nil && len(p.strangers) < strangers {
		s = p.newPeer(who, false)
		p.strangers[who] = s
	}
	return s
}

// accept takes over the contents of a packet.
func (p *Pulse) accept(who *peer, m message) {
	now := time.Now()
	before := p.problem(who, now)
	news := who.listed && !who.alive(now) || who.heard.IsZero() || !who.word.same(m.word)
	starts := m.session != who.session
	if starts {
		if m.session == who.former {
			who.twice = now
		}
		who.former, who.session, who.told, who.orders = who.session, m.session, collection{}, ""
		*who.challenge = random() // an answer counts once
	}
	who.counter, who.theirs, who.word, who.verdict, who.heard = m.counter, m.challenge, m.word, m.verdict, now
	who.silence.Reset(Silence)
	if starts && who.listed {
		p.order(who) // before it serves
	}
	// The time on the way varies: the text of a problem does not follow it.
	if ahead := time.UnixMilli(int64(m.clock)).Sub(p.now()); (ahead - who.ahead).Abs() >= time.Second {
		who.ahead = ahead
	}
	if !who.listed {
		if member := p.named(who.Name); member != nil {
			member.namesake = now
		}
	}
	news = p.hears(who, m.page, now) || news
	if m.orders != "" && m.orders != who.orders {
		who.orders, news = m.orders, true
	}
	if news || before != p.problem(who, now) {
		p.knock()
	}
}

// reply answers a packet at once, a few times in an Interval.
func (p *Pulse) reply(who *peer, challenge id) {
	if who.replied++; who.replied <= replies {
		p.send(who, challenge)
	}
}

// send sends one packet, with the answer to the peer's challenge.
func (p *Pulse) send(who *peer, answer id) { p.sendWith(who, answer, page{}, "") }

// sendPage sends one packet with a page.
func (p *Pulse) sendPage(who *peer, one page) { p.sendWith(who, who.theirs, one, "") }

// sendWith sends one packet, with a page or with orders.
func (p *Pulse) sendWith(who *peer, answer id, one page, orders string) {
	p.counter++
	m := message{
		session: p.session, counter: p.counter, challenge: *who.challenge, answer: answer,
		verdict: p.judge(who), clock: uint64(max(0, p.now().UnixMilli())), name: p.self.Name, word: p.word, page: one,
		orders: orders,
	}
	if !p.said.IsZero() {
		m.word.Since += time.Since(p.said)
	}
	b := m.appendTo(p.buffer[:0])
	b = append(b, p.sign(who.Address, b)...)
	_, who.failed = p.conn.WriteToUDPAddrPort(b, netip.AddrPortFrom(who.Address, p.port))
}

// sign returns the signature of a packet to an address, until the next call.
func (p *Pulse) sign(to netip.Addr, b []byte) []byte {
	to16 := to.As16()
	copy(p.sum[:], to16[:])
	p.mac.Reset()
	p.mac.Write(p.sum[:len(to16)])
	p.mac.Write(b)
	return p.mac.Sum(p.sum[:0])[:signature]
}
