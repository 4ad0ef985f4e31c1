package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"sallyport/bgp"
	"sallyport/haproxy"
	"sallyport/test/rig"
)

// Each row of this group grows until a bound breaks. Its peers and pods are at addresses of loopback: a listener at
// 0.0.0.0 answers at all of them.
var wallRows = []row{
	{35, "where sessions of BGP end: 50 to 5,000 peers that come at once", alone, peerWall},
	{36, "where checks end: 1,000 to 100,000 servers in HAProxy", alone, checkWall},
}

// double doubles a size until a target is missed twice, and adds the figures of each size. Other programs may have had
// the processor.
func (b *bench) double(size, most int, measure func(size int) ([]figure, error)) error {
	for ; ; size = min(2*size, most) {
		broke := true
		for attempt := 0; broke && attempt < 2; attempt++ {
			all, err := measure(size)
			if err != nil {
				return fmt.Errorf("%d: %w", size, err)
			}
			broke = slices.ContainsFunc(all, func(f figure) bool { return f.Met != nil && !*f.Met })
			for _, f := range all {
				f.What = fmt.Sprintf("%d %s", size, f.What)
				b.add(f)
			}
		}
		if broke || size == most {
			return nil
		}
	}
}

// loopback returns an address of loopback.
func loopback(second byte, i int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, second + byte(i>>16), byte(i >> 8), byte(i)})
}

const (
	blocksEach  = 4 // of each peer of row 35
	mostToOffer = 30 * time.Second
)

// speakArg makes this program the appliance's speaker of BGP with so many peers at a port.
const speakArg = "speak"

// A spoken is what the speaker says: once all blocks are offered, after a time of rest, and once all sessions are lost.
type spoken struct {
	Took   time.Duration
	Rest   float64 // cores
	Lost   int     // sessions, until then
	Memory int     // resident, in bytes
	At     time.Time
}

// speakBGP runs the speaker for row 35.
func speakBGP() {
	if err := spokenBGP(os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// spokenBGP prints what there is to say about a speaker with so many peers at a port.
func spokenBGP(count, port string) error {
	n, err1 := strconv.Atoi(count)
	at, err2 := strconv.ParseUint(port, 10, 16)
	s, err3 := bgp.Start(context.Background(), bgp.Config{
		ASN: 65000, RouterID: netip.MustParseAddr("192.0.2.1"), HoldTime: 9 * time.Second, // the default
	})
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	var all []bgp.Peer
	for i := range n {
		all = append(all, bgp.Peer{
			Cluster: "wall", Node: nodeName(i), Addr: loopback(1, i), ASN: 65000, Active: true, Port: uint16(at),
		})
	}
	out := json.NewEncoder(os.Stdout)
	// read reads all after each change, as the loop does, and once a second.
	read := func(enough func(up, offers int) bool) error {
		for {
			up := 0
			for _, p := range s.Peers() {
				if p.Up() {
					up++
				}
			}
			offers, err := s.Offers()
			if err != nil || enough(up, len(offers)) {
				return err
			}
			select {
			case <-s.Changed():
			case <-time.After(time.Second):
			}
		}
	}
	began := time.Now()
	if err := s.SetPeers(all); err != nil {
		return err
	}
	if err := read(func(up, offers int) bool {
		return up == n && offers == n*blocksEach || time.Since(began) > mostToOffer
	}); err != nil {
		return err
	}
	said := spoken{Took: time.Since(began)}
	if err := out.Encode(said); err != nil || said.Took > mostToOffer {
		return err
	}
	const span = 6 * time.Second
	began = time.Now()
	if err := read(func(int, int) bool { return time.Since(began) >= span/2 }); err != nil {
		return err
	}
	before, err := rig.CPU(os.Getpid())
	if err != nil {
		return err
	}
	began = time.Now()
	if err := read(func(int, int) bool { return time.Since(began) >= span }); err != nil {
		return err
	}
	after, err := rig.CPU(os.Getpid())
	if err != nil {
		return err
	}
	said.Rest = (after - before).Seconds() / time.Since(began).Seconds()
	for _, p := range s.Peers() {
		said.Lost += p.Flaps
	}
	if said.Memory, err = rig.Resident(os.Getpid()); err != nil {
		return err
	}
	if err := out.Encode(said); err != nil {
		return err
	}
	if err := read(func(up, _ int) bool { return up == 0 }); err != nil {
		return err
	}
	said.At = time.Now()
	return out.Encode(said)
}

// peerWall measures the appliance's speaker with more and more peers, each a made-up node in this process.
func peerWall(ctx context.Context, b *bench) error {
	return b.double(50, 5000, func(n int) ([]figure, error) { return speakWith(ctx, n) })
}

// speakWith lets a speaker have so many sessions, and ends them all at once.
func speakWith(ctx context.Context, n int) (all []figure, err error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "0.0.0.0:0")
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var conns []net.Conn
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			node := netip.MustParseAddrPort(c.LocalAddr().String()).Addr()
			i := node.As4()
			number := int(i[2])<<8 | int(i[3])
			s := &peerSpeaker{addr: node, sessions: map[netip.Addr]net.Conn{}}
			for k := range blocksEach {
				s.first = append(s.first, peerBlock(number, k))
			}
			go func() { _ = s.speak(c) }()
		}
	}()
	lose := func() {
		_ = l.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			_ = c.Close()
		}
	}
	defer lose()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, speakArg, strconv.Itoa(n), port)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cmd.Wait()) }()
	in := json.NewDecoder(out)
	var said spoken
	if err := in.Decode(&said); err != nil {
		return nil, err
	}
	come := value("peers that come at once → all blocks offered", said.Took.Seconds(), "s").atMost(10)
	if said.Took > mostToOffer {
		return []figure{come}, nil
	}
	if err := in.Decode(&said); err != nil {
		return nil, err
	}
	began := time.Now()
	lose()
	if err := in.Decode(&said); err != nil {
		return nil, err
	}
	return []figure{
		come, value("peers: processor at rest", 100*said.Rest, "% of a core").atMost(10),
		value("peers: sessions lost until then", float64(said.Lost), "").atMost(0),
		value("peers: resident memory", float64(said.Memory)/(1<<20), "MB").atMost(2048),
		value("peers lost at once → all told", said.At.Sub(began).Seconds(), "s"),
	}, nil
}

// bareText configures a HAProxy that commands alone give servers.
const bareText = `
global
  stats socket {{.Dir}}/sock level admin
defaults
  mode http
  timeout connect 5s
  timeout client 5s
  timeout server 5s
{{range .Backends}}backend {{.Name}}
  balance random
{{end}}`

// serversOfBackend is how many servers each backend of row 36 has: more make "add server" of HAProxy before 3.4 slow.
const serversOfBackend = 50

// checkWall measures one HAProxy with more and more servers that it checks.
func checkWall(ctx context.Context, b *bench) error {
	return b.double(1000, 100_000, func(n int) ([]figure, error) {
		dir, err := os.MkdirTemp(b.dir, "checks-")
		if err != nil {
			return nil, err
		}
		return checkedServers(ctx, dir, n)
	})
}

// checkedServers measures the checks of so many servers, and a replacement of every tenth.
func checkedServers(ctx context.Context, dir string, n int) (all []figure, err error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "0.0.0.0:0")
	if err != nil {
		return nil, err
	}
	defer l.Close() //nolint:errcheck // the pods are over
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	port := netip.MustParseAddrPort(l.Addr().String()).Port()
	cfg, err := compiled(crowd{})
	if err != nil {
		return nil, err
	}
	free, err := freeAddresses(2)
	if err != nil {
		return nil, err
	}
	own := *cfg
	own.Bind = haproxy.Bind{HTTP: free[:1], HTTPS: free[1:]}
	own.Routes, own.Backends = nil, filledBackends(cfg.Backends[0], n, port)
	next := own
	next.Backends = slices.Clone(own.Backends)
	for i := range next.Backends {
		if i%10 == 0 {
			one := *next.Backends[i]
			one.Servers = serversFrom(101, i*serversOfBackend, len(one.Servers), port)
			next.Backends[i] = &one
		}
	}
	soon, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	late := time.AfterFunc(mostToStart, func() { giveUp(errLate) })
	began := time.Now()
	p, driver, err := startDriven(soon, haproxyProgram(), dir, "driven", &own)
	if err == nil {
		err = allPassed(soon, p, n)
	}
	late.Stop()
	come := value("servers with checks come → all have passed one", time.Since(began).Seconds(), "s").
		atMost(mostToStart.Seconds())
	if err != nil && p != nil {
		err = errors.Join(err, p.stop())
	}
	if errors.Is(err, errLate) {
		return []figure{come}, nil
	}
	if err != nil {
		return nil, err
	}
	rest, err := restOf(ctx, p)
	began = time.Now()
	if err == nil {
		err = settle(ctx, driver, &next)
	}
	ours := time.Since(began)
	version := driver.Info().Version
	if err := errors.Join(err, p.stop()); err != nil {
		return nil, err
	}
	theirs, err := replacedBare(ctx, dir, own.Backends, next.Backends)
	if err != nil {
		return nil, err
	}
	replaced := value("servers, every tenth replaced", ours.Seconds(), "s").beside("the same commands", theirs.Seconds())
	return []figure{
		come, value("servers with checks, HAProxy "+version+": processor at rest", rest, "cores").atMost(1),
		replaced.aim("≤ 1.5 × or 50 ms, the commands ≤ 5 s",
			(replaced.Ratio <= 1.5 || ours <= 50*time.Millisecond) && theirs <= 5*time.Second),
	}, nil
}

// filledBackends returns backends like another one, with so many servers altogether.
func filledBackends(like *haproxy.Backend, n int, port uint16) (all []*haproxy.Backend) {
	for from := 0; from < n; from += serversOfBackend {
		one := *like
		one.Name = fmt.Sprintf("default_svc_app%06d_80", from)
		one.Servers = serversFrom(1, from, min(serversOfBackend, n-from), port)
		all = append(all, &one)
	}
	return all
}

// serversFrom returns servers at addresses of loopback.
func serversFrom(second byte, from, n int, port uint16) (all []haproxy.Server) {
	for i := range n {
		at := netip.AddrPortFrom(loopback(second, from+i), port)
		all = append(all, haproxy.Server{Name: haproxy.ServerName(at), Addr: at})
	}
	slices.SortFunc(all, func(a, b haproxy.Server) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// All servers of row 36 have to come within mostToStart. errLate is the error of a row with servers that did not come.
const mostToStart = time.Minute

var errLate = errors.New("they did not come in time")

// allPassed waits until so many servers have passed a check.
func allPassed(ctx context.Context, p *side, n int) error {
	return rig.Within(ctx, limit, time.Second, fmt.Sprintf("%d servers have passed a check", n), func() error {
		answer, err := p.ask("show stat -1 4 -1")
		if passed := strings.Count(answer, "L4OK,"); err == nil && passed != n {
			err = fmt.Errorf("%d have", passed)
		}
		return err
	})
}

// restOf returns how many cores a HAProxy takes while nothing happens but checks.
func restOf(ctx context.Context, p *side) (float64, error) {
	const span = 6 * time.Second
	before, err := p.cpu()
	if err := errors.Join(err, rig.Pause(ctx, span)); err != nil {
		return 0, err
	}
	after, err := p.cpu()
	return (after - before).Seconds() / span.Seconds(), err
}

// replacedBare returns how long the commands take that replace the servers of some backends.
func replacedBare(ctx context.Context, dir string, was, next []*haproxy.Backend) (took time.Duration, err error) {
	p, err := startWritten(ctx, haproxyProgram(), dir, "bare", bareText, written{Backends: was}, nil)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	add := func(b *haproxy.Backend) (commands []string) {
		for _, s := range b.Servers {
			id := b.Name + "/" + s.Name
			commands = append(commands, "add server "+id+" "+s.Addr.String()+" "+checkedOptions, "enable health "+id,
				"enable server "+id)
		}
		return commands
	}
	var first, swaps []string
	for i, b := range was {
		first = append(first, add(b)...)
		if next[i] == b {
			continue
		}
		swaps = append(swaps, add(next[i])...)
		for _, state := range []string{"set server %s state maint", "del server %s"} {
			for _, s := range b.Servers {
				swaps = append(swaps, fmt.Sprintf(state, b.Name+"/"+s.Name))
			}
		}
	}
	bare := &proxy{socket: p.socket}
	if _, err := bare.tell(first); err != nil {
		return 0, err
	}
	return bare.tell(swaps)
}

// checkedOptions are the options that the appliance gives a server with checks.
const checkedOptions = "check error-limit 3 fastinter 500 downinter 1000 observe layer4 on-error sudden-death " +
	"pool-max-conn -1 pool-purge-delay 5000"
