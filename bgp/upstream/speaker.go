// Package upstream keeps the sessions with the upstream routers, and BFD, in a process of their
// own. That process outlives a crash of sallyport: the routers send clients to this machine as long
// as HAProxy serves them. The next sallyport takes the process over without a change of any
// session.
//
// A Speaker is the owner's end: a bgp.Speaker that has its routers in the process. A Process is the
// other end. They talk by lines of JSON over a Unix socket of mode 0600. An order is whole, and
// each order is answered by a report.
//
// It promises that nothing stays announced without a reason. The process withdraws all
// announcements when its owner tells it to leave; and without an owner, when the time for that has
// passed or HAProxy does not answer. A machine that dies takes the process and BFD with it.
//
// How does a fresh sallyport know that a process is ours? It answers at the socket in our run
// directory, which only our user may use. If we crash on any line, the process has either all of an
// order or nothing of it, and the next owner sends its own.
//
// Its limit: while there is no owner nobody follows the cluster. Then only HAProxy's own checks
// take servers out.
package upstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"sallyport/bgp"
)

// Options say how a Speaker reaches its process.
type Options struct {
	Config  bgp.Config           // AS, router ID, hold time and log of the sessions with the routers
	Socket  string               // of the process
	Start   func() error         // starts the process; it does not wait for it
	Proxy   string               // the socket where the process asks HAProxy whether it answers
	Outlive func() time.Duration // how long the process goes on after a crash of this one
	Level   slog.Leveler         // of the process's log; nil means Info
}

// A Speaker is a bgp.Speaker for the nodes, and a process for the routers. Its methods may be called
// from any goroutine.
type Speaker struct {
	*bgp.Speaker // of the nodes

	o       Options
	changed chan struct{}

	// tell serializes orders. Lock it before mu.
	tell    sync.Mutex
	want    order
	told    order     // the last order that the process answered
	answer  report    // to it
	id      int       // of the last order
	started time.Time // when we started the process last; zero if we never did
	alone   bool      // there are no routers, and no process

	mu    sync.Mutex
	link  *link // nil while there is no connection to the process
	peers []bgp.PeerState
}

// A link is a connection to the process.
type link struct {
	conn    net.Conn
	answers chan report // to orders; room for one
	ended   chan struct{}
}

// startEvery is the least time between two starts of the process.
const startEvery = time.Second

// New returns a Speaker. nodes stays the caller's to stop.
func New(ctx context.Context, nodes *bgp.Speaker, o Options) *Speaker {
	s := &Speaker{Speaker: nodes, o: o, changed: make(chan struct{}, 1)}
	sessions := settings{o.Config.ASN, o.Config.RouterID, o.Config.HoldTime}
	s.want = order{Protocol: protocol, Settings: sessions, Proxy: o.Proxy}
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-nodes.Changed():
				s.knock()
			}
		}
	}()
	return s
}

// Changed returns a channel as bgp.Speaker has it. It receives after a change of a node or a
// router.
func (s *Speaker) Changed() <-chan struct{} { return s.changed }

func (s *Speaker) knock() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// SetPeers gives the nodes to the Speaker for nodes, and the routers to the process.
func (s *Speaker) SetPeers(peers []bgp.Peer) error {
	isRouter := func(p bgp.Peer) bool { return p.Upstream }
	err := s.Speaker.SetPeers(slices.DeleteFunc(slices.Clone(peers), isRouter))
	s.tell.Lock()
	defer s.tell.Unlock()
	s.want.Routers = nil
	for _, p := range peers {
		if p.Upstream {
			s.want.Routers = append(s.want.Routers, routerOf(p))
		}
	}
	s.want.Outlive, s.want.Level = s.o.Outlive(), slog.LevelInfo
	if s.o.Level != nil {
		s.want.Level = s.o.Level.Level()
	}
	answer, failed := s.order()
	return errors.Join(err, failed, sentence(answer.Peering))
}

// Announce has the process announce exactly these prefixes, as bgp.Speaker does.
func (s *Speaker) Announce(all []bgp.Announcement) error {
	s.tell.Lock()
	defer s.tell.Unlock()
	s.want.Announce = append([]bgp.Announcement{}, all...)
	answer, failed := s.order()
	return errors.Join(failed, sentence(answer.Failed))
}

func sentence(text string) error {
	if text == "" {
		return nil
	}
	return errors.New(text)
}

// Peers returns the state of the routers and of the nodes.
func (s *Speaker) Peers() []bgp.PeerState {
	s.tell.Lock()
	routers := s.want.Routers
	s.tell.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []bgp.PeerState
	for _, r := range routers {
		state := bgp.PeerState{State: "Idle"} // as long as there is no process
		if i := slices.IndexFunc(s.peers, func(p bgp.PeerState) bool { return p.Addr == r.Addr }); i >= 0 {
			state = s.peers[i]
		}
		state.Peer, state.Password = r.peer(), ""
		all = append(all, state)
	}
	slices.SortFunc(all, func(a, b bgp.PeerState) int { return a.Addr.Compare(b.Addr) })
	return append(all, s.Speaker.Peers()...)
}

// Leave has the process withdraw all announcements and end, and returns when it has ended. A process
// that is not told to leave goes on, as after a crash.
func (s *Speaker) Leave() error {
	s.tell.Lock()
	defer s.tell.Unlock()
	s.want.Routers = nil
	_, err := s.order()
	return err
}

// order sends the wanted order, unless it was answered already without an error. Called with tell
// held.
func (s *Speaker) order() (report, error) {
	if len(s.want.Routers) == 0 {
		return report{}, s.dismiss()
	}
	s.alone = false
	l := s.current()
	if l != nil && s.want.same(s.told) && s.answer.Peering == "" && s.answer.Failed == "" {
		return s.answer, nil
	}
	if l == nil {
		var err error
		if l, err = s.connect(); err != nil {
			return report{}, fmt.Errorf("the process for the routers: %w", err)
		}
	}
	answer, err := s.send(l)
	if err != nil {
		_ = l.conn.Close()
		return report{}, fmt.Errorf("the process for the routers: %w", err)
	}
	s.told, s.answer = s.want, answer
	return answer, nil
}

// current returns the link in use, or nil if the process is not connected.
func (s *Speaker) current() *link {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.link
}

// send sends the wanted order and waits for the report of it.
func (s *Speaker) send(l *link) (report, error) {
	s.id++
	o := s.want
	o.ID = s.id
	limit := time.After(patience)
	err := l.conn.SetWriteDeadline(time.Now().Add(patience))
	if err == nil {
		err = write(l.conn, o)
	}
	if err != nil {
		return report{}, err
	}
	for {
		select {
		case answer := <-l.answers:
			if answer.ID == o.ID {
				return answer, nil
			}
		case <-l.ended:
			return report{}, errors.New("it has ended")
		case <-limit:
			return report{}, fmt.Errorf("it has not answered for %s", patience)
		}
	}
}

// connect connects to the process, and starts it if it does not run. A process of another version
// is told to leave first.
func (s *Speaker) connect() (*link, error) {
	conn, from, err := s.dial()
	if err != nil {
		return nil, err
	}
	if conn == nil {
		if since := time.Since(s.started); since < startEvery {
			return nil, fmt.Errorf("it has ended soon after its start; the next start comes within %s", startEvery)
		}
		s.started = time.Now()
		if err := s.o.Start(); err != nil {
			return nil, fmt.Errorf("starting it: %w", err)
		}
		if conn, from, err = s.await(); err != nil {
			return nil, err
		}
	} else {
		s.o.Config.Log.Info("found the process for the routers running")
	}
	l := &link{conn: conn, answers: make(chan report, 1), ended: make(chan struct{})}
	s.mu.Lock()
	s.link = l
	s.mu.Unlock()
	go s.listen(l, from)
	return l, nil
}

// await dials until the process that was just started answers.
func (s *Speaker) await() (net.Conn, *bufio.Scanner, error) {
	limit, tick := time.After(2*patience), time.NewTicker(10*time.Millisecond)
	defer tick.Stop()
	for {
		conn, from, err := s.dial()
		if conn != nil || err != nil {
			return conn, from, err
		}
		select {
		case <-tick.C:
		case <-limit:
			return nil, nil, errors.New("it was started, and does not answer; its log has why")
		}
	}
}

// dial connects to a process that runs, and reads its first report. conn is nil if none runs, or one
// of another version, which dial has ended.
func (s *Speaker) dial() (conn net.Conn, from *bufio.Scanner, err error) {
	conn, err = net.DialTimeout("unix", s.o.Socket, patience)
	if err != nil {
		return nil, nil, nil //nolint:nilerr // it does not run
	}
	defer func() {
		if err != nil {
			_ = conn.Close()
			conn = nil
		}
	}()
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return conn, nil, err
	}
	var hello report
	from = lines(conn)
	if err := read(from, &hello); err != nil {
		return conn, nil, fmt.Errorf("it does not answer at %s: %w", s.o.Socket, err)
	}
	if hello.Protocol != protocol {
		s.o.Config.Log.Warn("the process for the routers has another version, and is replaced", "version",
			hello.Protocol)
		if err := goodbye(conn, from); err != nil {
			return conn, nil, err
		}
		return nil, nil, conn.Close()
	}
	s.mu.Lock()
	s.peers = hello.Peers
	s.mu.Unlock()
	return conn, from, conn.SetReadDeadline(time.Time{})
}

// goodbye tells a process to leave, and waits until it has.
func goodbye(conn net.Conn, from *bufio.Scanner) error {
	if err := conn.SetDeadline(time.Now().Add(2 * patience)); err != nil {
		return err
	}
	if err := write(conn, order{Protocol: protocol, Leave: true}); err != nil {
		return err
	}
	for from.Scan() { // it may still report
	}
	if err := from.Err(); errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("it does not end: %w", err)
	}
	return nil
}

// listen takes over reports until the link ends.
func (s *Speaker) listen(l *link, from *bufio.Scanner) {
	var err error
	for err == nil {
		var r report
		if err = read(from, &r); err != nil {
			break
		}
		s.mu.Lock()
		s.peers = r.Peers
		s.mu.Unlock()
		s.knock()
		if r.ID != 0 {
			select {
			case <-l.answers: // nobody waits for the earlier answer now
			default:
			}
			l.answers <- r
		}
	}
	s.mu.Lock()
	gone := s.link == l
	if gone {
		s.link, s.peers = nil, nil
	}
	s.mu.Unlock()
	close(l.ended)
	_ = l.conn.Close()
	s.knock()
	if gone {
		s.o.Config.Log.Warn("the process for the routers is gone; sallyport starts another one", "err", err)
	}
}

// dismiss ends the process if it runs. Called with tell held.
func (s *Speaker) dismiss() error {
	if s.alone {
		return nil
	}
	s.mu.Lock()
	l := s.link
	s.link, s.peers = nil, nil
	s.mu.Unlock()
	conn, from, err := s.dial() // which takes the place of the link
	if err == nil && conn != nil {
		err = errors.Join(goodbye(conn, from), conn.Close())
	}
	if l != nil {
		_ = l.conn.Close()
	}
	if err != nil {
		return fmt.Errorf("the process for the routers, which is to end: %w", err)
	}
	s.alone, s.told = true, order{}
	return nil
}
