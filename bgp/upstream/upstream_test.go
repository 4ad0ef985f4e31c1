package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"

	"sallyport/bgp"
	"sallyport/test/wait"
)

// A farEnd is a GoBGP in AS 64512 that counts the sessions that it had with AS 65000.
type farEnd struct {
	*server.BgpServer

	port     uint16
	sessions atomic.Int32
}

func newRouter(t *testing.T) *farEnd {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is closed at once
	if err != nil {
		t.Fatal(err)
	}
	port := netip.MustParseAddrPort(free.Addr().String()).Port()
	_ = free.Close()
	r := &farEnd{
		BgpServer: server.NewBgpServer(server.LoggerOption(slog.New(slog.DiscardHandler), new(slog.LevelVar))),
		port:      port,
	}
	go r.Serve()
	ctx := context.Background()
	err = r.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{
		Asn: 64512, RouterId: "192.0.2.2",
		ListenPort: int32(port), ListenAddresses: []string{"127.0.0.1"},
	}})
	if err == nil {
		err = r.WatchEvent(ctx, server.WatchEventMessageCallbacks{
			OnPeerUpdate: func(e *apiutil.WatchEventMessage_PeerEvent, _ time.Time) {
				if e.Type == apiutil.PEER_EVENT_STATE && e.Peer.State.SessionState.String() == "BGP_FSM_ESTABLISHED" {
					r.sessions.Add(1)
				}
			},
		}, server.WatchPeer())
	}
	if err == nil {
		err = r.AddPeer(ctx, &api.AddPeerRequest{Peer: &api.Peer{
			Conf:         &api.PeerConf{NeighborAddress: "127.0.0.1", PeerAsn: 65000},
			Transport:    &api.Transport{PassiveMode: true},
			EbgpMultihop: &api.EbgpMultihop{Enabled: true, MultihopTtl: 64},
			Timers: &api.Timers{Config: &api.TimersConfig{
				HoldTime: 9, KeepaliveInterval: 3,
				IdleHoldTimeAfterReset: 1,
			}},
		}})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	return r
}

// learned returns the prefixes that the router has from us.
func (r *farEnd) learned() (all []string) {
	err := r.ListPath(apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: packet.RF_IPv4_UC},
		func(prefix packet.NLRI, _ []*apiutil.Path) {
			all = append(all, prefix.String())
		})
	if err != nil {
		return []string{err.Error()}
	}
	slices.Sort(all)
	return all
}

func (r *farEnd) waitLearned(t *testing.T, want ...string) {
	t.Helper()
	wait.For(t, fmt.Sprintf("%q at the router", want), func() (bool, string) {
		got := r.learned()
		return slices.Equal(got, want), fmt.Sprintf("%q", got)
	})
}

func (r *farEnd) peer() bgp.Peer {
	return bgp.Peer{Upstream: true, Active: true, Addr: netip.MustParseAddr("127.0.0.1"), Port: r.port, ASN: 64512}
}

// A scene is a process, or several one after the other, that owners start.
type scene struct {
	t       *testing.T
	socket  string
	log     wait.Log
	outlive time.Duration
	silent  atomic.Bool // HAProxy does not answer
	starts  atomic.Int32
	running sync.WaitGroup
	stop    context.CancelFunc
	ctx     context.Context //nolint:containedctx // of the processes
}

func newScene(t *testing.T) *scene {
	t.Helper()
	dir, err := os.MkdirTemp("", "sp") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	s := &scene{t: t, socket: filepath.Join(dir, "upstream.sock"), outlive: time.Hour}
	s.ctx, s.stop = context.WithCancel(context.Background())
	t.Cleanup(func() {
		s.stop()
		s.running.Wait()
		_ = os.RemoveAll(dir)
		if t.Failed() {
			t.Logf("log:\n%s", s.log.String())
		}
	})
	return s
}

func (s *scene) logger() *slog.Logger { return slog.New(slog.NewTextHandler(&s.log, nil)) }

// start runs a process, as the hook of an owner does.
func (s *scene) start() error {
	s.starts.Add(1)
	p := Process{Socket: s.socket, Log: s.logger(), Answers: func(context.Context, string) error {
		if s.silent.Load() {
			return errors.New("connection refused")
		}
		return nil
	}}
	s.running.Go(func() {
		if err := p.Run(s.ctx); err != nil {
			s.t.Errorf("the process failed: %v", err)
		}
	})
	return nil
}

// owner returns a new owner, as a sallyport that starts.
func (s *scene) owner() *Speaker {
	s.t.Helper()
	c := bgp.Config{ASN: 65000, RouterID: netip.MustParseAddr("192.0.2.1"), HoldTime: 9 * time.Second, Log: s.logger()}
	nodes, err := bgp.Start(s.t.Context(), c)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(nodes.Stop)
	return New(s.t.Context(), nodes,
		Options{Config: c, Socket: s.socket, Start: s.start, Outlive: func() time.Duration { return s.outlive }})
}

// announcing returns a new owner that has a session with a router, which has learned a route.
func (s *scene) announcing(r *farEnd) *Speaker {
	s.t.Helper()
	o := s.owner()
	s.must(o.SetPeers([]bgp.Peer{r.peer()}), o.Announce(announcements("203.0.113.10/32")))
	r.waitLearned(s.t, "203.0.113.10/32")
	return o
}

// crash ends an owner as the end of its process does: the kernel closes its connection.
func (s *scene) crash(o *Speaker) {
	s.t.Helper()
	_ = o.current().conn.Close()
	wait.For(s.t, "the process knows", func() (bool, string) {
		return strings.Contains(s.log.String(), "gone without a word"), s.log.String()
	})
}

func (s *scene) must(errs ...error) {
	s.t.Helper()
	if err := errors.Join(errs...); err != nil {
		s.t.Fatal(err)
	}
}

func announcements(prefixes ...string) (all []bgp.Announcement) {
	for _, p := range prefixes {
		all = append(all, bgp.Announcement{Prefix: netip.MustParsePrefix(p)})
	}
	return all
}

// established returns the router's session as an owner sees it, once it is established.
func (s *scene) established(o *Speaker) (state bgp.PeerState) {
	s.t.Helper()
	wait.For(s.t, "an established session", func() (bool, string) {
		all := o.Peers()
		if len(all) != 1 {
			return false, fmt.Sprintf("%+v", all)
		}
		state = all[0]
		return state.State == "Established", fmt.Sprintf("%+v", state)
	})
	return state
}

func TestACrashOfTheOwnerChangesNoSession(t *testing.T) {
	t.Parallel()
	s, r := newScene(t), newRouter(t)
	first := s.announcing(r)
	before := s.established(first)
	s.crash(first)

	// The next owner does not know yet what to announce.
	next := s.owner()
	s.must(next.SetPeers([]bgp.Peer{r.peer()}))
	if got := s.established(next); !got.Since.Equal(before.Since) || got.Flaps != 0 ||
		!slices.Equal(got.Announced, before.Announced) || len(got.Announced) != 1 {
		t.Errorf("the session is %+v, want %+v", got, before)
	}
	if got := r.learned(); !slices.Equal(got, []string{"203.0.113.10/32"}) {
		t.Errorf("the router has %q", got)
	}
	s.must(next.Announce(announcements("203.0.113.10/32", "203.0.113.11/32")))
	r.waitLearned(t, "203.0.113.10/32", "203.0.113.11/32")
	s.must(next.Announce(nil))
	r.waitLearned(t)
	if starts, sessions := s.starts.Load(), r.sessions.Load(); starts != 1 || sessions != 1 {
		t.Errorf("there were %d processes and %d sessions, want one of each", starts, sessions)
	}
	s.must(next.Leave())
	s.running.Wait()
}

func TestWithoutAnOwnerEverythingIsWithdrawnInTheEnd(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		outlive time.Duration
		then    func(*scene)
		why     string
	}{
		"HAProxy does not answer": {time.Hour, func(s *scene) {
			s.silent.Store(true)
		}, "HAProxy does not answer: connection refused"},
		"the time has passed":    {time.Second, func(*scene) {}, "no sallyport has come back in time"},
		"it may not outlive it":  {0, func(*scene) {}, "no sallyport has come back in time"},
		"the machine shuts down": {time.Hour, func(s *scene) { s.stop() }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, r := newScene(t), newRouter(t)
			s.outlive = row.outlive
			o := s.announcing(r)
			s.crash(o)
			row.then(s)
			r.waitLearned(t)
			s.running.Wait() // the process has ended
			if !strings.Contains(s.log.String(), row.why) {
				t.Errorf("the log does not say %q", row.why)
			}
			if _, err := os.Stat(s.socket); err == nil {
				t.Error("the socket is still there")
			}
		})
	}
}

func TestWhileThereIsAnOwnerHAProxyIsTheOwnersConcern(t *testing.T) {
	t.Parallel()
	s, r := newScene(t), newRouter(t)
	s.silent.Store(true)
	s.outlive = 0
	o := s.announcing(r)
	s.established(o)
	if strings.Contains(s.log.String(), "withdrawn") {
		t.Error("the process withdrew")
	}
	s.must(o.Leave())
}

func TestLeavingWithdrawsBeforeItReturns(t *testing.T) {
	t.Parallel()
	s, r := newScene(t), newRouter(t)
	o := s.announcing(r)
	s.must(o.Leave())
	s.running.Wait()
	r.waitLearned(t)
	if got := o.Peers(); len(got) != 0 {
		t.Errorf("it has the peers %+v", got)
	}

	// A configuration without routers ends what an earlier sallyport has left.
	s.must(o.SetPeers([]bgp.Peer{r.peer()}), o.Announce(announcements("203.0.113.10/32")))
	r.waitLearned(t, "203.0.113.10/32")
	s.crash(o)
	next := s.owner()
	s.must(next.SetPeers(nil))
	s.running.Wait()
	r.waitLearned(t)
	s.must(next.SetPeers(nil), next.Announce(nil))
	if got := s.starts.Load(); got != 2 {
		t.Errorf("%d processes were started, want 2", got)
	}
}

func TestAProcessThatDiesIsReplaced(t *testing.T) {
	t.Parallel()
	s, r := newScene(t), newRouter(t)
	o := s.announcing(r)
	s.stop()
	s.running.Wait()
	wait.For(t, "the router is idle", func() (bool, string) {
		all := o.Peers()
		return len(all) == 1 && all[0].State == "Idle" && all[0].Addr == r.peer().Addr, fmt.Sprintf("%+v", all)
	})
	s.ctx, s.stop = context.WithCancel(context.Background())
	wait.For(t, "the next process has all", func() (bool, string) {
		err := o.SetPeers([]bgp.Peer{r.peer()})
		return err == nil, fmt.Sprint(err)
	})
	r.waitLearned(t, "203.0.113.10/32")
	s.must(o.Leave())
}

// A process of another version reports that, and understands that it shall leave.
func TestAProcessOfAnotherVersionIsReplaced(t *testing.T) {
	t.Parallel()
	s, r := newScene(t), newRouter(t)
	listener, err := net.Listen("unix", s.socket) //nolint:noctx // it ends with the test
	s.must(err)
	left := make(chan string, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			left <- err.Error()
			return
		}
		_, _ = fmt.Fprintln(conn, `{"Protocol": 99, "Peers": [{"state": "Established"}], "New": {}}`)
		buffer := make([]byte, 4096)
		n, _ := conn.Read(buffer)
		_ = errors.Join(listener.Close(), conn.Close())
		left <- string(buffer[:n])
	}()
	o := s.owner()
	s.must(o.SetPeers([]bgp.Peer{r.peer()}), o.Announce(announcements("203.0.113.10/32")))
	if got := <-left; !strings.Contains(got, `"Leave":true`) {
		t.Errorf("the other process heard %q", got)
	}
	r.waitLearned(t, "203.0.113.10/32")
	s.must(o.Leave())
}

func TestWhatIsNoOrderIsTheEndOfAnOwnerAndOfNothingElse(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"no JSON":         "announce 0.0.0.0/0\n",
		"a wrong type":    `{"Routers": "all"}` + "\n",
		"an endless line": strings.Repeat(" ", longest+1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, r := newScene(t), newRouter(t)
			s.announcing(r)
			conn, err := net.Dial("unix", s.socket) //nolint:noctx // of this machine
			s.must(err)
			defer conn.Close() //nolint:errcheck // the other end has closed it
			go func() { _, _ = conn.Write([]byte(text)) }()
			wait.For(t, "it is gone", func() (bool, string) {
				return strings.Contains(s.log.String(), "gone without a word"), s.log.String()
			})
			next := s.owner()
			s.must(next.SetPeers([]bgp.Peer{r.peer()}))
			if got := s.established(next); got.Flaps != 0 || len(got.Announced) != 1 {
				t.Errorf("the session is %+v", got)
			}
			if got := r.sessions.Load(); got != 1 {
				t.Errorf("the router had %d sessions, want 1", got)
			}
			s.must(next.Leave())
		})
	}
}

func TestOnlyThisUserReachesTheSocket(t *testing.T) {
	t.Parallel()
	s, r := newScene(t), newRouter(t)
	o := s.owner()
	s.must(o.SetPeers([]bgp.Peer{r.peer()}))
	info, err := os.Stat(s.socket)
	s.must(err)
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf("the socket has mode %o", got)
	}
	s.must(o.Leave())
}

func TestAnOrderCarriesAllOfARouter(t *testing.T) {
	p := bgp.Peer{
		Upstream: true, Active: true, Addr: netip.MustParseAddr("192.0.2.9"), Port: 1179, ASN: 64512,
		Password: "correct horse", TTLSecurity: true,
		BFD: bgp.BFD{Interval: 250 * time.Millisecond, Multiplier: 3}, Local: netip.MustParseAddr("192.0.2.1"),
		PrefixLimit: 7,
	}
	var text bytes.Buffer
	want := order{
		Protocol: protocol, ID: 3, Routers: []router{routerOf(p)}, Announce: announcements("203.0.113.10/32"),
		Outlive: time.Minute, Proxy: "/run/x", Level: slog.LevelDebug,
	}
	if err := write(&text, want); err != nil {
		t.Fatal(err)
	}
	var got order
	if err := read(lines(&text), &got); err != nil {
		t.Fatal(err)
	}
	if !got.same(want) || got.ID != 3 || got.Routers[0].peer() != p {
		t.Errorf("got %+v, want %+v", got, want)
	}
	// No announcement is another wish than no wish.
	for _, announce := range [][]bgp.Announcement{nil, {}} {
		text.Reset()
		got = order{}
		if err := errors.Join(write(&text, order{Announce: announce}), read(lines(&text), &got)); err != nil ||
			(got.Announce == nil) != (announce == nil) {
			t.Errorf("%#v became %#v (%v)", announce, got.Announce, err)
		}
	}
}
