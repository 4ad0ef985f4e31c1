package upstream

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/bgp"
)

const (
	// lookEvery is how often a process without an owner checks whether HAProxy answers.
	lookEvery = 200 * time.Millisecond
	// lookFor bounds how long HAProxy may take to answer.
	lookFor = time.Second
	// unowned is how long a new process waits for its first order.
	unowned = 10 * time.Second
	// patience bounds how long the process waits for its owner to read a report, and for an earlier
	// process to end.
	patience = 5 * time.Second
)

// A Process keeps the sessions with the routers for an owner, and outlives its crash.
type Process struct {
	Socket  string // path at which the owner connects
	Log     *slog.Logger
	Level   *slog.LevelVar                                 // of Log; nil if it does not change
	Answers func(ctx context.Context, socket string) error // returns why HAProxy does not answer, or nil if it does
}

// running is a Process that runs. Owned by the goroutine of Run.
type running struct {
	Process
	speaker *bgp.Speaker // nil until the first order
	order   order        // the last one
	owner   *owner       // nil while there is no owner
	silent  bool         // HAProxy did not answer when it was asked last
	until   time.Time    // when the process ends without an owner
}

// An owner is the connection of a sallyport.
type owner struct{ conn net.Conn }

// An event is an order of an owner, or its end.
type event struct {
	from  *owner
	order order
	err   error // why the owner is gone; nil if it is still connected
}

// Run keeps the sessions until its owner tells it to leave, until it has been without an owner for
// too long, or until ctx ends. In each case it withdraws all announcements.
//
// Three things happen here: an owner comes, orders or goes; a session changes; and while there is
// no owner, HAProxy is asked whether it answers.
func (p Process) Run(ctx context.Context) error {
	lock, err := p.lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // it was only locked
	listener, err := p.listen(ctx)
	if err != nil {
		return err
	}
	defer os.Remove(p.Socket) //nolint:errcheck // nobody answers there, whether it is removed or not
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	owners, events := make(chan *owner), make(chan event)
	go p.accept(ctx, listener, owners)

	r := &running{Process: p, until: time.Now().Add(unowned)}
	defer func() {
		r.end()
		if r.owner != nil {
			_ = r.owner.conn.Close() // the owner then knows that all is withdrawn
		}
	}()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		var changed <-chan struct{}
		if r.speaker != nil {
			changed = r.speaker.Changed()
		}
		select {
		case <-ctx.Done():
			return nil
		case o := <-owners:
			r.meet(o)
			go o.listen(ctx, events)
		case e := <-events:
			switch {
			case e.from != r.owner:
			case e.err != nil:
				r.lose(e.err)
			case e.order.Leave:
				p.Log.Info("the service addresses are withdrawn from the routers: sallyport ends or announces nothing")
				return nil
			default:
				r.obey(ctx, e.order)
			}
		case <-changed:
			r.report(report{})
		case <-tick.C:
			if why := r.over(ctx, time.Now()); why != "" {
				p.Log.Warn("the service addresses are withdrawn from the routers", "why", why)
				return nil
			}
		}
	}
}

// lock waits until no other process keeps the sessions: a router accepts one of two.
func (p Process) lock(ctx context.Context) (*os.File, error) {
	f, err := os.OpenFile(p.Socket+".lock", os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	limit, tick := time.After(patience), time.NewTicker(20*time.Millisecond)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		select {
		case <-tick.C:
			continue
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-limit:
			err = fmt.Errorf("another process keeps the sessions with the routers (%s): %w", f.Name(), err)
		}
		return nil, errors.Join(err, f.Close())
	}
}

// listen opens the socket. The socket takes its place in one step, when only this user may connect,
// so no other user ever connects.
func (p Process) listen(ctx context.Context) (net.Listener, error) {
	scratch := filepath.Join(filepath.Dir(p.Socket), "."+filepath.Base(p.Socket))
	if err := os.Remove(scratch); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", scratch)
	if err != nil {
		return nil, err
	}
	// It has another name by then.
	if l, ok := listener.(*net.UnixListener); ok {
		l.SetUnlinkOnClose(false)
	}
	if err := errors.Join(os.Chmod(scratch, 0o600), os.Rename(scratch, p.Socket)); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// accept hands on the connections of this user until ctx ends.
func (p Process) accept(ctx context.Context, listener net.Listener, owners chan<- *owner) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			if ctx.Err() == nil {
				p.Log.Error("the socket for sallyport broke: its next start cannot take this process over", "err", err)
			}
			return
		}
		if uid, err := user(conn); err != nil || uid != os.Geteuid() {
			p.Log.Error("a connection of another user was rejected", "uid", uid, "err", err)
			_ = conn.Close()
			continue
		}
		select {
		case owners <- &owner{conn}:
		case <-ctx.Done():
			_ = conn.Close()
			return
		}
	}
}

// user returns the ID of the user at the other end of a Unix socket.
func user(conn net.Conn) (uid int, err error) {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return -1, errors.New("it is no Unix socket")
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	uid = -1
	var failed error
	err = raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); failed == nil {
			uid = int(cred.Uid)
		}
	})
	return uid, errors.Join(err, failed)
}

// listen hands on the orders of an owner until it is gone.
func (o *owner) listen(ctx context.Context, events chan<- event) {
	for from := lines(o.conn); ; {
		e := event{from: o}
		e.err = read(from, &e.order)
		select {
		case events <- e:
		case <-ctx.Done():
			return
		}
		if e.err != nil {
			return
		}
	}
}

// meet makes a connection the owner, in place of the owner before.
func (r *running) meet(o *owner) {
	if r.owner != nil {
		_ = r.owner.conn.Close()
	}
	r.owner = o
	r.report(report{})
}

// lose begins the time without an owner.
func (r *running) lose(why error) {
	_ = r.owner.conn.Close()
	r.owner, r.silent = nil, false
	r.until = time.Now().Add(r.order.Outlive)
	r.Log.Warn("sallyport is gone without a word; the service addresses stay announced while HAProxy answers",
		"for", r.order.Outlive, "err", why)
}

// over returns why nothing may be announced any more, or "" if announcements may go on. HAProxy is
// silent if it does not answer twice in a row: an HAProxy that reloads does not listen for a
// moment.
func (r *running) over(ctx context.Context, now time.Time) string {
	switch {
	case r.owner != nil:
		return ""
	case !now.Before(r.until):
		return "no sallyport has come back in time"
	case r.speaker == nil:
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	err := r.Answers(ctx, r.order.Proxy)
	again := err != nil && r.silent
	r.silent = err != nil
	if again {
		return "there is no sallyport, and HAProxy does not answer: " + err.Error()
	}
	return ""
}

// obey brings the sessions to an order, and reports how that went.
func (r *running) obey(ctx context.Context, o order) {
	if o.Announce == nil {
		o.Announce = r.order.Announce
	}
	if r.Level != nil {
		r.Level.Set(o.Level)
	}
	answer := report{ID: o.ID}
	if r.speaker == nil || o.Settings != r.order.Settings {
		r.end()
		var err error
		c := bgp.Config{ASN: o.Settings.ASN, RouterID: o.Settings.RouterID, HoldTime: o.Settings.HoldTime, Log: r.Log}
		r.speaker, err = bgp.Start(ctx, c)
		if err != nil {
			r.speaker, r.order = nil, order{}
			answer.Peering = err.Error()
			r.report(answer)
			return
		}
	}
	r.order = o
	var peers []bgp.Peer
	for _, p := range o.Routers {
		peers = append(peers, p.peer())
	}
	if err := r.speaker.SetPeers(peers); err != nil {
		answer.Peering = err.Error()
	}
	if err := r.speaker.Announce(o.Announce); err != nil {
		answer.Failed = err.Error()
	}
	r.report(answer)
}

// report sends the state of the sessions to the owner. One that does not read is gone.
func (r *running) report(to report) {
	if r.owner == nil {
		return
	}
	to.Protocol = protocol
	if r.speaker != nil {
		to.Peers = r.speaker.Peers()
	}
	err := r.owner.conn.SetWriteDeadline(time.Now().Add(patience))
	if err == nil {
		err = write(r.owner.conn, to)
	}
	if err != nil {
		r.lose(err)
	}
}

// end ends the sessions. The routers hear of it.
func (r *running) end() {
	if r.speaker != nil {
		r.speaker.Stop()
		r.speaker = nil
	}
}
