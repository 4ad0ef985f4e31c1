// Package rig brings up a lab with an appliance, as the README describes. The
// benchmarks and the fault suite begin with it.
//
// The appliance is the real program, and runs on its host in the lab. HAProxy
// outlives the appliance, until the lab goes down.
package rig

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"sallyport/appliance/status"
	"sallyport/haproxy"
	"sallyport/test/lab/world"
)

// Limit bounds every wait. It measures nothing.
const Limit = 2 * time.Minute

// Build compiles the appliance and the sample application into dir, as sallyport and app, with flags
// of go build.
func Build(ctx context.Context, dir string, flags ...string) error {
	return compile(ctx, dir, flags, "cmd/sallyport", "test/app")
}

// Compile compiles programs of ours into dir.
func Compile(ctx context.Context, dir string, names ...string) error {
	return compile(ctx, dir, nil, names...)
}

func compile(ctx context.Context, dir string, flags []string, names ...string) error {
	for _, name := range names {
		args := append([]string{"build", "-o", filepath.Join(dir, filepath.Base(name))}, flags...)
		if out, err := exec.CommandContext(ctx, "go", append(args, "sallyport/"+name)...).CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	return nil
}

// A Rig is a lab with an appliance in it. Only Status and Dial may be called by several
// goroutines.
type Rig struct {
	*world.Lab
	Dir     string // programs, and the appliance's config, state and log
	machine string // the appliance's host
	process *exec.Cmd
	ended   chan struct{} // closed when process has ended
	others  []*Rig        // for the other appliances of the lab
}

// In builds the programs, brings up a lab with an appliance that is configured (see Configure) but
// not started, and calls do. Afterwards it removes everything. If the API has the kinds of Gateway API,
// the appliance serves Gateways at GatewayPool. The cluster may have more pairs of ingress and gateway.
func In(ctx context.Context, opts world.Options, lines string, cluster Cluster, do func(*Rig) error) (err error) {
	dir, err := os.MkdirTemp("", "sallyport-"+opts.Name+"-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	progress("building")
	var pairs []string
	if opts.GatewayAPI != "" {
		cluster.Gateway = append([]string{"enabled: true"}, cluster.Gateway...)
		pairs = []string{"addresses: [" + GatewayPool + "]"}
	}
	if err := errors.Join(Build(ctx, dir), ConfigureHAProxy(dir, pairs, lines, cluster)); err != nil {
		return err
	}
	progress("a cluster")
	r, err := New(ctx, dir, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if opts.GatewayAPI != "" {
		if err := r.AddGatewayAddresses(ctx); err != nil {
			return err
		}
	}
	return do(r)
}

func progress(what string) {
	fmt.Fprintln(os.Stderr, time.Now().Format(time.TimeOnly), what)
}

// Main runs a command until it is done, or interrupted, and exits with 1 if it fails.
func Main(name string, run func(context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
}

// WriteFigures writes figures into a file, as JSON, and makes its folder. An empty name writes nothing.
func WriteFigures(file string, figures any) error {
	if file == "" {
		return nil
	}
	text, err := json.MarshalIndent(figures, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(filepath.Dir(file), 0o750), os.WriteFile(file, append(text, '\n'), 0o600))
}

// A Case is a named check.
type Case struct {
	Name string
	Run  func(context.Context) error
}

// Report runs cases one after another and writes a line on each: ok, or why not. With asJSON a
// line is an object.
func Report(ctx context.Context, out io.Writer, asJSON bool, cases []Case) error {
	type line struct {
		Name  string  `json:"name"`
		OK    bool    `json:"ok"`
		Why   string  `json:"why,omitempty"`
		Takes float64 `json:"seconds"`
	}
	failed := 0
	for _, c := range cases {
		began := time.Now()
		err := c.Run(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		l := line{Name: c.Name, OK: err == nil, Takes: time.Since(began).Seconds()}
		if err != nil {
			failed++
			l.Why = err.Error()
		}
		switch {
		case asJSON:
			text, err := json.Marshal(l)
			if err != nil {
				return err
			}
			_, _ = fmt.Fprintf(out, "%s\n", text)
		case l.OK:
			_, _ = fmt.Fprintf(out, "ok    %s\n", l.Name)
		default:
			_, _ = fmt.Fprintf(out, "FAIL  %s: %s\n", l.Name, l.Why)
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d cases failed", failed, len(cases))
	}
	if !asJSON {
		_, _ = fmt.Fprintf(out, "%d cases\n", len(cases))
	}
	return nil
}

// New brings up a lab whose pods may run the image "sample-app", and applies the output
// of `sallyport manifests` for the config file. dir holds the files of Build and
// Configure. A cluster without Calico gets the manifests that do not need it.
func New(ctx context.Context, dir string, opts world.Options, manifests ...string) (*Rig, error) {
	r, err := Up(ctx, dir, opts)
	if err != nil {
		return nil, err
	}
	if err := r.Install(ctx, manifests...); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Up does as New, and leaves the manifests to Install.
func Up(ctx context.Context, dir string, opts world.Options) (*Rig, error) {
	images := map[string]string{"sample-app": dir + "/app"}
	maps.Copy(images, opts.Images)
	opts.Images = images
	lab, err := world.Up(ctx, opts)
	if err != nil {
		return nil, err
	}
	return &Rig{Lab: lab, Dir: dir, machine: world.Appliance}, nil
}

// Install applies what `sallyport manifests` prints, with more flags, and writes the kubeconfig of
// the appliance.
func (r *Rig) Install(ctx context.Context, more ...string) error {
	text, err := r.Manifests(ctx, more...)
	if err != nil {
		return err
	}
	if r.Options().NoCalico {
		documents := strings.Split(text, "\n---\n")
		text = strings.Join(slices.DeleteFunc(documents, func(d string) bool {
			return strings.Contains(d, "apiVersion: crd.projectcalico.org")
		}), "\n---\n")
	}
	if err := r.Apply(ctx, text); err != nil {
		return err
	}
	credentials, err := r.ServiceAccountKubeconfig(ctx, "kube-system", "sallyport", 24*time.Hour)
	if err != nil {
		return err
	}
	return os.WriteFile(r.Dir+"/kubeconfig", credentials, 0o600)
}

// Manifests returns what `sallyport manifests` prints, with more flags, for a cluster that it
// does not look at.
func (r *Rig) Manifests(ctx context.Context, flags ...string) (string, error) {
	host, _ := r.Host(world.Appliance)
	cmd := exec.CommandContext(ctx, r.Dir+"/sallyport",
		append([]string{
			"manifests", "--offline", "--config", r.Dir + "/sallyport.yaml", "--address",
			host.Addr.Addr().String(),
		}, flags...)...)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	text, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("sallyport manifests: %w: %s", err, complaint.String())
	}
	return string(text), nil
}

// A Cluster is an entry of clusters in the config file. Pairs are "key: value", added to
// those that every rig has.
type Cluster struct {
	Name       string   // default: default, so that names in HAProxy have no prefix
	Kubeconfig string   // default: the one that New writes into dir
	Pools      string   // a YAML list without brackets
	BGP        []string // pairs of bgp
	Ingress    []string // pairs of ingress
	Gateway    []string // pairs of gateway; if it is empty, the key is left out
	Keys       []string // further pairs of the cluster
}

// NoReloadLimit is the limit of reloads of a namespace (limits.reloads) where Configure is given
// no limits.
const NoReloadLimit = 1_000_000

// Configure writes the appliance's config file into dir: the clusters (one, unless some are
// given), and lines of further keys. HAProxy is the program that SALLYPORT_TEST_HAPROXY
// names, if that is set.
func Configure(dir, lines string, clusters ...Cluster) error {
	return ConfigureHAProxy(dir, nil, lines, clusters...)
}

// ConfigureHAProxy does as Configure, and adds pairs of haproxy, "key: value".
func ConfigureHAProxy(dir string, pairs []string, lines string, clusters ...Cluster) error {
	if len(clusters) == 0 {
		clusters = []Cluster{{}}
	}
	var file strings.Builder
	file.WriteString("clusters:\n")
	for _, c := range clusters {
		if !slices.ContainsFunc(c.Ingress, func(pair string) bool { return strings.HasPrefix(pair, "limits:") }) {
			// a test changes more in a minute than a team
			c.Ingress = append(slices.Clip(c.Ingress), fmt.Sprintf("limits: {reloads: %d}", NoReloadLimit))
		}
		more := ""
		if c.Pools != "" {
			more = ", pools: [" + c.Pools + "]"
		}
		if len(c.Gateway) > 0 {
			more += ", gateway: {" + strings.Join(c.Gateway, ", ") + "}"
		}
		for _, pair := range c.Keys {
			more += ", " + pair
		}
		fmt.Fprintf(&file, "- {name: %s, kubeconfig: %s, bgp: {%s}, ingress: {%s}%s}\n",
			cmp.Or(c.Name, "default"), cmp.Or(c.Kubeconfig, "kubeconfig"),
			strings.Join(append([]string{"asn: 65000"}, c.BGP...), ", "),
			strings.Join(append([]string{"publish: [192.168.50.21]"}, c.Ingress...), ", "), more)
	}
	binary := cmp.Or(os.Getenv("SALLYPORT_TEST_HAPROXY"), "/usr/sbin/haproxy")
	pairs = append([]string{"binary: " + binary, "dir: " + dir + "/haproxy", "runDir: " + dir + "/run"}, pairs...)
	fmt.Fprintf(&file, "haproxy: {%s}\nstateDir: %s/state\n%s\n", strings.Join(pairs, ", "), dir, lines)
	return os.WriteFile(dir+"/sallyport.yaml", []byte(file.String()), 0o600)
}

// Start runs the appliance on its host.
func (r *Rig) Start(ctx context.Context) error { return r.StartUnder(ctx) }

// StartUnder does as Start, by a program that becomes the appliance, with arguments before those of the appliance.
func (r *Rig) StartUnder(ctx context.Context, program ...string) error {
	log, err := os.OpenFile(r.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // the process has its own
	cmd := r.Command(context.WithoutCancel(ctx), r.machine,
		append(program, r.Dir+"/sallyport", "run", "--config", r.Dir+"/sallyport.yaml")...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	r.process, r.ended = cmd, ended
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	return nil
}

// LogFile returns the path of the appliance's log.
func (r *Rig) LogFile() string { return r.Dir + "/log" }

// Pid returns the appliance's process id, 0 while it does not run.
func (r *Rig) Pid() int {
	if r.process == nil {
		return 0
	}
	return r.process.Process.Pid
}

// Stop ends the appliance with a signal. HAProxy and the routes stay.
func (r *Rig) Stop(signal syscall.Signal) error {
	if r.process == nil {
		return nil
	}
	_ = r.process.Process.Signal(signal) // ip netns exec has become the program: same process
	defer func() { r.process = nil }()
	select {
	case <-r.ended:
		return nil
	case <-time.After(Limit):
		_ = r.process.Process.Kill()
		<-r.ended
		return fmt.Errorf("the appliance did not end on %s within %s", signal, Limit)
	}
}

// Ended returns a channel that is closed once the appliance that was started last has
// ended.
func (r *Rig) Ended() <-chan struct{} { return r.ended }

// Alive returns an error with the last line of the log if the appliance was started,
// and ended by itself.
func (r *Rig) Alive() error {
	if r.process == nil {
		return nil
	}
	select {
	case <-r.ended:
		log, err := os.ReadFile(r.LogFile())
		return fmt.Errorf("%w: %s", errEnded, cmp.Or(lastLine(log), fmt.Sprint(err)))
	default:
		return nil
	}
}

// Close ends the appliance and the lab. It returns an error if a repetition of an order to HAProxy
// had to bring what an order before had left out, in any appliance of the lab.
func (r *Rig) Close() error {
	err := r.missed()
	for _, other := range r.others {
		err = errors.Join(err, other.missed())
	}
	return errors.Join(err, r.Stop(syscall.SIGKILL), r.Down())
}

// missed returns an error with the first line of the log about such a repetition.
func (r *Rig) missed() error {
	log, err := os.ReadFile(r.LogFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil // it was never started
	}
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, haproxy.MissedLine) {
			return fmt.Errorf("the log of %s: %s", r.machine, strings.TrimSpace(line))
		}
	}
	return err
}

// Status returns the appliance's /status.
func (r *Rig) Status(ctx context.Context) (s status.Status, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:9090/status", nil)
	if err != nil {
		return s, err
	}
	client := r.HTTP(r.machine, "127.0.0.1:9090")
	client.Timeout = 5 * time.Second
	answer, err := client.Do(request)
	if err != nil {
		return s, err
	}
	defer answer.Body.Close() //nolint:errcheck // only read
	if answer.StatusCode != http.StatusOK {
		return s, fmt.Errorf("/status is answered %s", answer.Status)
	}
	return s, json.NewDecoder(answer.Body).Decode(&s)
}

// Ready waits until the appliance reports that it is ready.
func (r *Rig) Ready(ctx context.Context) error {
	return Eventually(ctx, "the appliance is ready", func() error {
		if err := r.Alive(); err != nil {
			return err
		}
		s, err := r.Status(ctx)
		if err == nil && !s.Ready {
			err = errors.New(strings.Join(s.NotReady, "; "))
		}
		return err
	})
}

// Apply applies a manifest to the cluster.
func (r *Rig) Apply(ctx context.Context, manifest string) error {
	cmd := r.Lab.Kubectl(ctx, "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(manifest)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl apply: %w\n%s", err, out)
	}
	return nil
}

// Kubectl runs kubectl and returns its output.
func (r *Rig) Kubectl(ctx context.Context, args ...string) (string, error) {
	out, err := r.Lab.Kubectl(ctx, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// Rollout waits until all pods of a Deployment of the namespace default are current and available.
func (r *Rig) Rollout(ctx context.Context, deployment string) error {
	_, err := r.Kubectl(ctx, "rollout", "status", "deployment/"+deployment, "--timeout", Limit.String())
	return err
}

// CPU returns the processor time that a process has used.
func CPU(pid int) (time.Duration, error) {
	spent, err := SpentBy(pid)
	return spent.Own, err
}

// Spent is the processor time of a process.
type Spent struct {
	Own    time.Duration // that it used itself
	Waited time.Duration // of its children that have ended, and of theirs
	Parent int           // the process that started it
}

// SpentBy returns the processor time of a process (proc_pid_stat(5), fields 4 and 14 to 17, times in
// hundredths of a second).
func SpentBy(pid int) (s Spent, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return s, err
	}
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(f) < 15 {
		return s, fmt.Errorf("/proc/%d/stat: %q", pid, text)
	}
	var numbers [5]int
	for i, at := range []int{1, 11, 12, 13, 14} {
		var wrong error
		numbers[i], wrong = strconv.Atoi(f[at])
		err = errors.Join(err, wrong)
	}
	const tick = 10 * time.Millisecond
	s.Parent = numbers[0]
	s.Own = time.Duration(numbers[1]+numbers[2]) * tick
	s.Waited = time.Duration(numbers[3]+numbers[4]) * tick
	return s, err
}

// Resident returns the bytes of a process that are in memory (proc_pid_statm(5)).
func Resident(pid int) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	f := strings.Fields(string(text))
	if len(f) < 2 {
		return 0, fmt.Errorf("/proc/%d/statm: %q", pid, text)
	}
	pages, err := strconv.Atoi(f[1])
	return pages * os.Getpagesize(), err
}

// A Child is this program on a host of the lab, started with other arguments. It reads lines, and
// answers each with one.
type Child struct {
	cmd *exec.Cmd
	mu  sync.Mutex
	in  io.WriteCloser
	out *json.Decoder
}

// Child starts this program on a host, with other arguments.
func (r *Rig) Child(ctx context.Context, host string, args ...string) (*Child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &Child{cmd: r.Command(context.WithoutCancel(ctx), host, append([]string{self}, args...)...)}
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	c.out = json.NewDecoder(out)
	return c, c.cmd.Start()
}

// Say writes a line.
func (c *Child) Say(line string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := fmt.Fprintln(c.in, line)
	return err
}

// Hear reads the next answer, as JSON.
func (c *Child) Hear(answer any) error { return c.out.Decode(answer) }

// Close ends the child's input, and so the child.
func (c *Child) Close() error {
	_ = c.in.Close()
	_, _ = io.Copy(io.Discard, c.out.Buffered())
	return c.cmd.Wait()
}

// Beside runs a program on a host until stop is called. If the program ends by
// itself, the returned context ends, and its cause has the program's last line.
func (r *Rig) Beside(ctx context.Context, host string, args ...string) (
	beside context.Context, stop func(), err error,
) {
	var log bytes.Buffer
	cmd := r.Command(context.WithoutCancel(ctx), host, args...)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		return ctx, nil, err
	}
	beside, end := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		err := cmd.Wait()
		end(fmt.Errorf("%s ended on %s (%w): %s", args[0], host, cmp.Or(err, errors.New("exit status 0")),
			lastLine(log.Bytes())))
		close(ended)
	}()
	return beside, func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
	}, nil
}

// lastLine returns the last line of a program's output.
func lastLine(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}

// errEnded is the error of a process that has to run, and does not.
var errEnded = errors.New("the appliance has ended")

// Eventually repeats a check until it succeeds, for as long as Limit. It does not
// wait for an appliance that has ended. Between two checks it waits twice as long as the check took. Many
// checks start a program, which takes the processor from the programs under test.
func Eventually(ctx context.Context, what string, ask func() error) error {
	return repeat(ctx, Limit, what, ask, func(took time.Duration) time.Duration {
		return min(max(20*time.Millisecond, 2*took), 500*time.Millisecond)
	})
}

// Within does as Eventually, with another limit. A check begins whenever the given time has passed since the one
// before it began, or as soon as that one has ended.
func Within(ctx context.Context, limit, every time.Duration, what string, ask func() error) error {
	return repeat(ctx, limit, what, ask, func(took time.Duration) time.Duration { return every - took })
}

// repeat repeats a check until it succeeds, or a limit is over. pause tells how long it waits after a check that took
// so long.
func repeat(
	ctx context.Context, limit time.Duration, what string, ask func() error, pause func(took time.Duration) time.Duration,
) error {
	deadline := time.After(limit)
	for {
		began := time.Now()
		err := ask()
		if err == nil || errors.Is(err, errEnded) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-deadline:
			return fmt.Errorf("not within %s: %s: %w", limit, what, err)
		case <-time.After(pause(time.Since(began))):
		}
	}
}

// Pause lets time pass as a part of a test's plot, or until ctx ends. It waits for nothing.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// Dial connects from a host of the lab to an address.
func (r *Rig) Dial(ctx context.Context, host, address string) (net.Conn, error) {
	return r.DialFrom(ctx, host, netip.Addr{}, address)
}

// DialFrom connects from an address of a host of the lab to another address.
func (r *Rig) DialFrom(ctx context.Context, host string, from netip.Addr, address string) (conn net.Conn, err error) {
	dialer := new(net.Dialer)
	if from.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	}
	err = r.on(host, func() error {
		conn, err = dialer.DialContext(ctx, "tcp", address)
		return err
	})
	return conn, err
}

// HTTP returns a client on a host of the lab. Each request goes to the given address, on a connection of its own. The
// host of the URL only gives the names that the request has. The client follows no redirect, and takes any certificate.
func (r *Rig) HTTP(host, address string) *http.Client {
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return r.Dial(ctx, host, address) },
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // who serves is not in question
			ForceAttemptHTTP2: true, DisableKeepAlives: true,
		},
	}
}

// Listen listens at an address of a host of the lab.
func (r *Rig) Listen(ctx context.Context, host, address string) (l net.Listener, err error) {
	err = r.on(host, func() error {
		l, err = new(net.ListenConfig).Listen(ctx, "tcp", address)
		return err
	})
	return l, err
}

// ListenUDP returns a UDP socket at an address of a host of the lab, which sends with a TTL.
func (r *Rig) ListenUDP(ctx context.Context, host string, at netip.AddrPort, ttl int) (conn net.PacketConn, err error) {
	err = r.on(host, func() error {
		l := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
			var failed error
			err := c.Control(func(fd uintptr) {
				failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, ttl)
			})
			return errors.Join(err, failed)
		}}
		conn, err = l.ListenPacket(ctx, "udp", at.String())
		return err
	})
	return conn, err
}

// ListenIP returns a raw socket of an IP protocol, such as "ip4:tcp", at an address of a host of the lab.
func (r *Rig) ListenIP(ctx context.Context, host, protocol string, at netip.Addr) (conn net.PacketConn, err error) {
	err = r.on(host, func() error {
		conn, err = new(net.ListenConfig).ListenPacket(ctx, protocol, at.String())
		return err
	})
	return conn, err
}

// on calls a function in the network namespace of a host. Sockets that the function opens stay in
// that namespace.
func (r *Rig) on(host string, do func() error) error {
	there, err := netns.GetFromName(r.Netns(host))
	if err != nil {
		return err
	}
	defer there.Close() //nolint:errcheck // only read
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer home.Close() //nolint:errcheck // only read
	if err := netns.Set(there); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	err = do()
	if netns.Set(home) == nil {
		runtime.UnlockOSThread() // else the thread ends with this goroutine
	}
	return err
}

// Run runs a command of sallyport beside the appliance, with its config file, and returns the output.
func (r *Rig) Run(ctx context.Context, args ...string) (string, error) {
	out, err := r.Command(ctx, r.machine,
		append([]string{r.Dir + "/sallyport"},
			append(args, "--config", r.Dir+"/sallyport.yaml")...)...).CombinedOutput()
	return string(out), err
}
