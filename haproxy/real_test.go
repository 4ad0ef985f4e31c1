package haproxy

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sallyport/test/lab/debian"
)

// binaries returns the HAProxy programs to test with; with -short, the first and the last.
func binaries(t testing.TB) []string {
	t.Helper()
	list, err := debian.HAProxies()
	if err != nil {
		t.Fatal(err)
	}
	if last := len(list) - 1; testing.Short() && last > 1 {
		list = []string{list[0], list[last]}
	}
	return list
}

// withEach runs a test with every HAProxy there is, side by side, and returns when all have ended.
func withEach(t *testing.T, test func(t *testing.T, binary string)) {
	t.Helper()
	t.Run("with", func(t *testing.T) {
		for _, b := range binaries(t) {
			p := Proxy{opt: Options{Binary: b}}
			if err := p.findBinary(); err != nil {
				t.Fatal(err)
			}
			t.Run("HAProxy "+p.version, func(t *testing.T) {
				t.Parallel()
				test(t, b)
			})
		}
	})
}

// withThose runs a test with every HAProxy of some versions.
func withThose(t *testing.T, some func(picture) bool, test func(t *testing.T, binary string)) {
	t.Helper()
	withEach(t, func(t *testing.T, binary string) {
		p := Proxy{opt: Options{Binary: binary}}
		if err := p.findBinary(); err != nil {
			t.Fatal(err)
		}
		if some(picture{version: p.version}) {
			test(t, binary)
		}
	})
}

// rig is a real HAProxy on loopback with a Proxy that drives it.
type rig struct {
	t      testing.TB
	opt    Options
	p      *Proxy
	cancel context.CancelFunc
	http   netip.AddrPort
	https  netip.AddrPort
}

// writeProgram writes a program that a test starts at once. No other process may start while the file
// is open for writing: until its exec it has the file open, too, and the kernel would refuse to
// execute the program (ETXTBSY).
func writeProgram(t testing.TB, path, text string) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
}

// newRig makes directories and a Proxy; HAProxy starts with the first Apply
// or with run.
func newRig(t testing.TB, binary string) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "sp")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, opt: Options{
		Binary: binary, Dir: filepath.Join(dir, "etc"), RunDir: filepath.Join(dir, "run"),
		MinReload: time.Millisecond,
	}}
	r.opt.Log = slog.New(slog.NewTextHandler(testLog{t}, nil))
	r.http, r.https = freePort(t), freePort(t)
	r.p = r.fresh()
	t.Cleanup(func() {
		if r.cancel != nil {
			r.cancel()
		}
		r.end()
		if t.Failed() {
			text, _ := os.ReadFile(r.p.logPath())
			t.Logf("HAProxy wrote:\n%s", text)
		}
		_ = os.RemoveAll(dir)
	})
	return r
}

// testLog passes log lines to the test.
type testLog struct{ t testing.TB }

func (l testLog) Write(b []byte) (int, error) {
	if l.t.Context().Err() == nil {
		l.t.Log(strings.TrimSpace(string(b)))
	}
	return len(b), nil
}

// fresh makes a Proxy as a new process would.
func (r *rig) fresh() *Proxy {
	r.t.Helper()
	p, err := New(r.opt)
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

func (r *rig) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = r.p.Run(ctx)
	}()
	r.cancel = func() { cancel(); <-done }
}

// end ends HAProxy, and waits until every process of it is gone. Run would start it
// again, so Run must have ended.
func (r *rig) end() {
	r.t.Helper()
	found, err := r.p.master.show()
	if err != nil {
		found = r.p.procs
	}
	pids := append(append([]int{found.master}, found.workers...), found.old...)
	if pic, err := r.p.worker.look(); err == nil {
		pids = append(pids, pic.pid)
	}
	for _, pid := range pids {
		if alive(pid) {
			_ = syscall.Kill(pid, syscall.SIGTERM)
		}
		r.eventually(fmt.Sprintf("process %d of HAProxy ends", pid), func() bool { return !alive(pid) })
	}
}

// config returns a configuration of r's addresses with these backends, each routed
// by its name with ".test" as host.
func (r *rig) config(backends ...*Backend) *Config {
	slices.SortFunc(backends, func(a, b *Backend) int { return strings.Compare(a.Name, b.Name) })
	cfg := &Config{
		Shape:    Shape{Bind: Bind{HTTP: []netip.AddrPort{r.http}, HTTPS: []netip.AddrPort{r.https}}},
		Backends: backends,
	}
	for _, b := range backends {
		cfg.Routes = append(cfg.Routes, &Route{Host: b.Name + ".test", Path: "/", Match: Prefix, Backend: b.Name})
	}
	return cfg
}

// apply must succeed, and a repetition before the time that it names must find nothing to do.
func (r *rig) apply(cfg *Config, states map[ServerID]State) Result {
	r.t.Helper()
	res, err := r.p.Apply(r.t.Context(), cfg, inOrder(cfg, states))
	if err != nil {
		r.t.Fatalf("Apply: %v", err)
	}
	if res.RetryAt.IsZero() || time.Until(res.RetryAt) > lingerRetry {
		if _, err := r.p.Apply(r.t.Context(), cfg, inOrder(cfg, states)); err != nil {
			r.t.Fatalf("Apply, once more: %v", err)
		}
	}
	if missed := r.p.Info().Missed; missed > 0 {
		r.t.Fatalf("a repetition made up for what %d orders had left out", missed)
	}
	return res
}

// later lets the time pass for which a reload waits.
func (r *rig) later() {
	s := &r.p.schedule
	s.least, s.idleSince, r.p.last.retryAt = time.Millisecond, s.idleSince.Add(-idleReload), time.Now()
}

// settle applies until nothing is left to do.
func (r *rig) settle(cfg *Config, states map[ServerID]State) {
	r.t.Helper()
	r.eventually("Apply has nothing left to do", func() bool { return r.apply(cfg, states).RetryAt.IsZero() })
}

// eventually waits for a fact.
func (r *rig) eventually(what string, fact func() bool) {
	r.t.Helper()
	eventually(r.t, what, fact)
}

// patience bounds each wait for something that has to come. Two reloads of HAProxy have taken a
// minute on a busy machine.
const patience = 5 * time.Minute

// patient is a base configuration with which HAProxy, too, keeps a connection for so long that is silent
// through reloads. The usual timeouts are shorter.
const patient = "defaults\n  timeout http-request 5m\n  timeout client 5m\n  timeout server 5m\n"

func eventually(t testing.TB, what string, fact func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !fact() {
		select {
		case <-deadline.C:
			t.Fatalf("waited in vain: %s", what)
		case <-tick.C:
		}
	}
}

// get returns the body of a request for host and path, or its status if it is not
// 200. Without a host the request has none.
func (r *rig) get(host, path string) string {
	r.t.Helper()
	res, err := r.try(host, path)
	if err != nil {
		r.t.Fatal(err)
	}
	return res
}

func (r *rig) try(host, path string) (string, error) { return request(r.http, "GET", host, path) }

// request sends a request with header lines to an address, and returns as get does.
func request(at netip.AddrPort, method, host, path string, lines ...string) (string, error) {
	conn, err := net.DialTimeout("tcp", at.String(), patience)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if host != "" {
		host = "Host: " + host + "\r\n"
	}
	for _, line := range lines {
		host += line + "\r\n"
	}
	if _, err := fmt.Fprintf(conn, "%s %s HTTP/1.0\r\n%s\r\n", method, path, host); err != nil {
		return "", err
	}
	text, err := io.ReadAll(conn)
	if err != nil {
		return "", err
	}
	head, body, _ := strings.Cut(string(text), "\r\n\r\n")
	words := strings.Fields(head)
	if len(words) < 2 {
		return "", fmt.Errorf("answer %q", text)
	}
	if words[1] == "200" {
		return body, nil
	}
	for line := range strings.Lines(head) {
		if name, value, _ := strings.Cut(line, ":"); strings.EqualFold(name, "location") {
			return words[1] + " " + strings.TrimSpace(value), nil
		}
	}
	return words[1], nil
}

// served returns the common name and first DNS name of the certificate for name.
func (r *rig) served(name string) string {
	r.t.Helper()
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", r.https.String(), &tls.Config{ServerName: name, InsecureSkipVerify: true}) //nolint:gosec // the certificate is what is looked at
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].Subject.CommonName
}

// states returns the wish that all servers of cfg are in the same state.
func states(cfg *Config, s State) map[ServerID]State {
	out := make(map[ServerID]State)
	for _, b := range slices.Concat(cfg.Backends, cfg.Former) {
		for _, srv := range b.Servers {
			out[ServerID{b.Name, srv.Name}] = s
		}
	}
	return out
}

// inOrder returns the states as Apply takes them: in the order of cfg's servers.
func inOrder(cfg *Config, states map[ServerID]State) States {
	all := slices.Concat(cfg.Backends, cfg.Former)
	out := make(States, len(all))
	for i, b := range all {
		for _, srv := range b.Servers {
			out[i] = append(out[i], states[ServerID{b.Name, srv.Name}])
		}
	}
	return out
}

// byID returns the answer of Servers by ServerID.
func byID(backends LiveBackends, err error) (map[ServerID]Live, error) {
	out := make(map[ServerID]Live)
	for name, b := range backends.All() {
		for _, live := range b.Servers {
			out[ServerID{name, live.Name}] = live
		}
	}
	return out, err
}

// origin starts a web server on loopback that answers with its name.
func origin(t testing.TB, name string) Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, name)
	}))
	t.Cleanup(s.Close)
	return serverAt(s.Listener.Addr())
}

// echo starts a web server that answers with the path of the request.
func echo(t *testing.T) Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.URL.Path)
	}))
	t.Cleanup(s.Close)
	return serverAt(s.Listener.Addr())
}

func serverAt(a net.Addr) Server {
	addr := netip.MustParseAddrPort(a.String())
	return Server{Name: ServerName(addr), Addr: addr}
}

// nowhereServer returns a server that nobody needs to reach.
func nowhereServer(n int) Server {
	addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1, byte(n >> 8), byte(n)}), 9)
	return Server{Name: ServerName(addr), Addr: addr}
}

func backend(name string, servers ...Server) *Backend {
	slices.SortFunc(servers, func(a, b Server) int { return strings.Compare(a.Name, b.Name) })
	return &Backend{Name: name, Origin: "Service default/" + name, Servers: servers}
}

// distinct gives a backend settings that no other one has: no spare backend stands for
// it.
func distinct(b *Backend) *Backend {
	d, err := SetRequestHeader("X-Backend", b.Name)
	if err != nil {
		panic(err)
	}
	b.Directives = append(b.Directives, d)
	return b
}

// lastPort is the port after which freePort looks.
var lastPort atomic.Uint32

// freePort returns a port that nobody has, and that nobody gets by chance: it is
// below those that the kernel gives to connections and to who asks for any.
func freePort(t testing.TB) netip.AddrPort {
	t.Helper()
	const first, all = 12_000, 20_000
	for range all {
		port := first + (uint32(os.Getpid())+lastPort.Add(1))%all //nolint:gosec // a pid is small
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port))
		if l, err := net.Listen("tcp", addr.String()); err == nil {
			_ = l.Close()
			return addr
		}
	}
	t.Fatal("no port is free")
	return netip.AddrPort{}
}

func testCert(t *testing.T, name, subject string, hosts ...string) *Cert {
	t.Helper()
	text, err := selfSigned(subject, hosts, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return &Cert{Name: name, Hosts: hosts, PEM: text}
}

// check returns the error of the real HAProxy about files at their place.
func check(binary, dir string) error {
	out, err := exec.Command(binary, "-c", "-f", filepath.Join(dir, configFile)).CombinedOutput() //nolint:gosec // in a test
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		// HAProxy since 3.4 measures how long a user's hash takes. It is the user's choice.
		if strings.Contains(line, "[WARNING]") && !strings.Contains(line, "milliseconds to verify") {
			return fmt.Errorf("warnings: %s", out)
		}
	}
	return nil
}
