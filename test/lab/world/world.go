// Package world builds the lab: a Kubernetes cluster with Calico's BGP, hosts for
// one appliance or several, a client's host and, between them, a router if asked
// for, of real parts on one machine.
//
// It owns a lab's network namespaces (sp-NAME-…), its processes and its directory below
// /run/sallyport-lab. It alone knows the plan of addresses, how to start the parts of
// the control plane, and how calico-node and its restarts look from outside. It
// promises that labs of different names never meet, and that a lab changes nothing
// of the machine itself, except for one interface if HostAccess is set. It also
// promises that Down removes everything, and so does the next Up after a crash.
// Its limit: the addresses of Services do not work (there is no kube-proxy), there is
// no cluster DNS, no NetworkPolicy without real Calico, and pods are processes, not
// containers.
//
// A Lab lives in the process that called Up: kubelets and the watcher that
// configures BIRD are its goroutines.
package world

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Root holds a directory for each lab.
const Root = "/run/sallyport-lab"

// DefaultAS is the AS number of the cluster in our documents' examples.
const DefaultAS = 65000

// Options describe a lab. The zero value with a Name is the cluster in our documents' examples,
// without workers.
type Options struct {
	Name    string `json:"name"`
	Workers int    `json:"workers"`
	IPv6    bool   `json:"ipv6,omitempty"` // both families
	// pods, Services and BGP have IPv6 alone, with real Calico; hosts keep their IPv4 addresses
	IPv6Only bool `json:"ipv6Only,omitempty"`
	// 0 to 9: lan 192.168.(50+Site).0/24, pods 172.(16+Site).0.0/16
	Site int `json:"site,omitempty"`
	// the pods of a site have the addresses of those of site 0
	SamePods   bool `json:"samePods,omitempty"`
	Appliances int  `json:"appliances,omitempty"` // hosts for appliances, 1 to 8; zero means 1
	// between the client and the appliances; empty: none, and the client is on the lan
	Router     RouterKind `json:"router,omitempty"`
	HostAccess bool       `json:"hostAccess,omitempty"` // put this machine on the lan, as 192.168.50.1
	Mesh       bool       `json:"mesh,omitempty"`       // nodes peer with each other
	AS         uint32     `json:"as,omitempty"`         // of the cluster; zero means DefaultAS
	// pods get addresses of their node's podCIDRs, not of Calico's blocks
	HostLocal bool              `json:"hostLocal,omitempty"`
	NoCalico  bool              `json:"noCalico,omitempty"` // until InstallCalico
	Calico    Calico            `json:"calico,omitempty"`   // empty means StandIn
	Bird      int               `json:"bird,omitempty"`     // 1 or 2; zero means 1
	Images    map[string]string `json:"images,omitempty"`   // image reference to the program that stands for it
	// the CRDs of Gateway API in the cluster; see DefineGatewayAPI
	GatewayAPI Channel `json:"gatewayAPI,omitempty"`

	// Bare leaves out the control plane: no API, no pods. Each node announces its block from the start
	// to the appliances, whose AS is PeerAS.
	Bare   bool   `json:"bare,omitempty"`
	PeerAS uint32 `json:"peerAS,omitempty"` // zero means AS

	Progress io.Writer    `json:"-"` // one line for each step; nil means none
	Log      *slog.Logger `json:"-"` // what the kubelets and the BIRD watcher have to say; nil means nothing
}

// Lab is a running lab. Its methods are safe for several goroutines. Those that change nodes wait
// for each other.
type Lab struct {
	opts     Options
	dir      string
	lock     *os.File // held while the lab lives
	progress io.Writer
	log      *slog.Logger

	program    string // the control plane
	ca         *authority
	admin      pair
	clients               // the administrator's, from the master
	epoch      epoch      // of etcd
	parts      []*process // of the control plane, etcd and the API server first
	calico     calico
	installed  bool            // Calico is
	mirror     *mirror         // of the stand-in; nil while it is not installed
	hostAccess string          // why HostAccess was not given; empty if it was, or was not asked for
	life       context.Context // ends when the lab goes down
	end        context.CancelFunc
	background sync.WaitGroup

	changing sync.Mutex // held while nodes are added, removed, restarted
	mu       sync.Mutex // guards the two below
	hosts    []Host
	nodes    map[string]*node
	router   *node // nil if the lab has none; written before Up returns

	parting    sync.Mutex // guards the one below, and the rules made of it
	partitions []partition
}

// record is a lab's file about itself, for commands from other processes and for the sweep after a
// crash.
type record struct {
	Options
	Program    string `json:"program,omitempty"`
	HostAccess string `json:"noHostAccess,omitempty"`
	Hosts      []Host `json:"hosts"`
}

// Up builds a lab and returns when its nodes are Ready. It first removes the remains of an earlier
// lab of that name. After an error it removes everything.
func Up(ctx context.Context, opts Options) (*Lab, error) {
	opts.AS = cmp.Or(opts.AS, DefaultAS)
	opts.PeerAS = cmp.Or(opts.PeerAS, opts.AS)
	opts.Bird = cmp.Or(opts.Bird, 1)
	opts.Appliances = cmp.Or(opts.Appliances, 1)
	opts.Calico = cmp.Or(opts.Calico, StandIn)
	opts.IPv6 = opts.IPv6 || opts.IPv6Only
	if err := opts.check(); err != nil {
		return nil, err
	}
	l := &Lab{
		opts:     opts,
		dir:      filepath.Join(Root, opts.Name),
		progress: opts.Progress,
		log:      opts.Log,
		hosts:    opts.plan(),
		nodes:    map[string]*node{},
	}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	l.calico = standIn{l}
	if opts.Calico == Real {
		l.calico = &real{Lab: l}
	}
	l.life, l.end = context.WithCancel(context.Background())
	if err := l.takeLock(); err != nil {
		return nil, err
	}
	if err := l.build(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("lab %s: %w", opts.Name, err), l.Down())
	}
	return l, nil
}

func (o Options) check() error {
	if err := checkLab(o.Name); err != nil {
		return err
	}
	if o.Workers < 0 || o.Workers >= maxNodes {
		return fmt.Errorf("%d workers: want 0 to %d", o.Workers, maxNodes-1)
	}
	if o.Site < 0 || o.Site > maxSite {
		return fmt.Errorf("site %d: want 0 to %d", o.Site, maxSite)
	}
	if o.Appliances < 1 || o.Appliances > maxAppliances {
		return fmt.Errorf("%d appliances: want 1 to %d", o.Appliances, maxAppliances)
	}
	if o.Bird != 1 && o.Bird != 2 {
		return fmt.Errorf("BIRD %d: want 1 or 2", o.Bird)
	}
	if o.Router != "" && o.Router != RouterBIRD && o.Router != RouterPlain {
		return fmt.Errorf("router %q: want %s, %s or none", o.Router, RouterBIRD, RouterPlain)
	}
	if o.Calico != StandIn && o.Calico != Real {
		return fmt.Errorf("Calico %q: want %s or %s", o.Calico, StandIn, Real)
	}
	if o.Calico == Real && (o.Bare || o.HostLocal || o.Bird != 1) {
		return errors.New("a lab without a control plane, with host-local IPAM, or with BIRD 2 needs the " +
			"stand-in for Calico")
	}
	if o.Calico == StandIn && o.IPv6Only {
		return errors.New("a lab with IPv6 alone needs real Calico")
	}
	if os.Geteuid() != 0 {
		return errors.New("the lab makes network namespaces: run it as root")
	}
	if missing := missingPrograms(); len(missing) > 0 {
		return fmt.Errorf("%v not found: run `go run ./test/lab setup`", missing)
	}
	return nil
}

func (l *Lab) build(ctx context.Context) error {
	if err := sweep(ctx, l.opts.Name); err != nil {
		return fmt.Errorf("remove what an earlier lab left: %w", err)
	}
	if !l.opts.Bare {
		var err error
		if l.program, err = ControlPlane(ctx, l.progress); err != nil {
			return err
		}
		if err := l.calico.fetch(ctx); err != nil {
			return err
		}
	}
	for _, sub := range []string{"log", "proc", "pki", "nodes"} {
		if err := os.MkdirAll(l.path(sub), 0o700); err != nil {
			return err
		}
	}
	l.say("lab %s: %d hosts on %s", l.opts.Name, len(l.hosts), l.opts.lan4())
	if err := l.save(); err != nil {
		return err
	}
	if err := l.SetImages(l.opts.Images); err != nil {
		return err
	}
	if err := l.buildNetwork(ctx); err != nil {
		return err
	}
	if l.opts.Bare {
		return l.startBare()
	}
	if err := l.startControlPlane(ctx); err != nil {
		return err
	}
	if err := l.save(); err != nil {
		return err
	}
	if !l.opts.NoCalico {
		if err := l.installCalico(ctx); err != nil {
			return err
		}
	}
	if l.opts.GatewayAPI != "" {
		if err := l.DefineGatewayAPI(ctx, l.opts.GatewayAPI); err != nil {
			return err
		}
	}
	for _, h := range l.nodeHosts() {
		if err := l.joinNode(ctx, h); err != nil {
			return err
		}
	}
	l.say("waiting for the nodes to be Ready")
	for _, h := range l.nodeHosts() {
		if err := l.awaitReady(ctx, h.Name); err != nil {
			return err
		}
	}
	return l.awaitServiceAccount(ctx)
}

func (l *Lab) buildNetwork(ctx context.Context) error {
	lan := netnsName(l.opts.Name, lanHost)
	if err := makeLan(ctx, lan); err != nil {
		return err
	}
	for _, h := range l.Hosts() {
		if h.Name == Client && l.opts.Router != "" {
			continue // startRouter connects it
		}
		if err := makeHost(ctx, lan, h); err != nil {
			return err
		}
	}
	if l.opts.Router != "" {
		if err := l.startRouter(ctx); err != nil {
			return fmt.Errorf("router: %w", err)
		}
	}
	if !l.opts.HostAccess {
		return nil
	}
	var err error
	if l.hostAccess, err = l.opts.giveHostAccess(ctx, lan); err != nil {
		return err
	}
	if l.hostAccess != "" {
		l.say("this machine is not put on the lan: %s; use `lab exec client -- curl ...`", l.hostAccess)
	}
	return l.save()
}

// Down ends the lab and removes all of it. It may be called again.
func (l *Lab) Down() error {
	if l.lock == nil {
		return nil
	}
	l.end()
	l.background.Wait()
	// No data is kept, so only pods must end gracefully, and their kubelets have ended them.
	var failed []error
	l.mu.Lock()
	nodes := l.nodes
	l.nodes = nil
	l.mu.Unlock()
	for _, n := range nodes {
		failed = append(failed, l.calico.stop(n))
	}
	if l.router != nil {
		failed = append(failed, l.router.stopBird())
	}
	for _, p := range l.parts {
		failed = append(failed, p.end(0))
	}
	failed = append(failed, sweep(context.Background(), l.opts.Name))
	failed = append(failed, dropLock(l.lock, l.dir))
	l.lock = nil
	return errors.Join(failed...)
}

// Sweep removes the remains of a lab whose process has ended. It returns an error if the process
// still runs.
func Sweep(ctx context.Context, name string) error {
	if err := checkLab(name); err != nil {
		return err
	}
	lock, err := lockLab(filepath.Join(Root, name))
	if err != nil {
		return err
	}
	return errors.Join(sweep(ctx, name), dropLock(lock, filepath.Join(Root, name)))
}

// sweep ends the lab's processes, then removes its namespaces and its directory.
func sweep(ctx context.Context, name string) error {
	dir := filepath.Join(Root, name)
	if err := sweepProcesses(ctx, dir, name); err != nil {
		return err
	}
	// The kernel removes this end of the veth pair together with the namespace, but later.
	if _, err := os.Stat("/sys/class/net/sp-" + name); err == nil {
		if err := ip(ctx, "link", "delete", "sp-"+name); err != nil {
			return err
		}
	}
	spaces, err := namespaces(name)
	if err != nil {
		return err
	}
	for _, ns := range spaces {
		if err := ip(ctx, "netns", "delete", ns); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}

// ErrInUse is the error when a lab of this name is up already.
var ErrInUse = errors.New("the lab is up")

func (l *Lab) takeLock() (err error) {
	l.lock, err = lockLab(l.dir)
	return err
}

// lockLab locks the lab's name. The kernel releases the lock when its holder dies.
func lockLab(dir string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	for {
		lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			_ = lock.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, fmt.Errorf("%s: %w", filepath.Base(dir), ErrInUse)
			}
			return nil, fmt.Errorf("lock %s: %w", lock.Name(), err)
		}
		// The last holder may have removed the file between the two calls.
		ours, err := lock.Stat()
		if err != nil {
			return nil, errors.Join(err, lock.Close())
		}
		if now, err := os.Stat(lock.Name()); err == nil && os.SameFile(ours, now) {
			return lock, nil
		}
		_ = lock.Close()
	}
}

func dropLock(lock *os.File, dir string) error {
	return errors.Join(os.Remove(dir+".lock"), lock.Close())
}

// Names lists the labs that are up, and those that crashed.
func Names() ([]string, error) {
	entries, err := os.ReadDir(Root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && labName.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Name returns the lab's name.
func (l *Lab) Name() string { return l.opts.Name }

// Options returns the lab's options, with defaults filled in.
func (l *Lab) Options() Options { return l.opts }

// Dir returns the lab's directory. Down removes it.
func (l *Lab) Dir() string { return l.dir }

// Netns returns the name of a host's network namespace, as in /run/netns.
func (l *Lab) Netns(host string) string { return netnsName(l.opts.Name, host) }

// Hosts lists the present hosts.
func (l *Lab) Hosts() []Host {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.hosts)
}

func (l *Lab) nodeHosts() []Host {
	return slices.DeleteFunc(l.Hosts(), func(h Host) bool { return !h.Node })
}

// Host returns the host with this name, and false if there is none.
func (l *Lab) Host(name string) (Host, bool) {
	hosts := l.Hosts()
	i := slices.IndexFunc(hosts, func(h Host) bool { return h.Name == name })
	if i < 0 {
		return Host{}, false
	}
	return hosts[i], true
}

// SetImages maps images to programs. Running containers stay as they are.
func (l *Lab) SetImages(images map[string]string) error {
	text, err := json.Marshal(images)
	if err != nil {
		return err
	}
	return writeFile(l.path("images.json"), text)
}

// Command returns a command on a host. The end of ctx kills it.
func (l *Lab) Command(ctx context.Context, host string, args ...string) *exec.Cmd {
	return command(ctx, l.opts.Name, host, args...)
}

// Exec runs a command on a host and returns its standard output. The error has its standard error.
func (l *Lab) Exec(ctx context.Context, host string, args ...string) (string, error) {
	return output(l.Command(ctx, host, args...))
}

func command(ctx context.Context, lab, host string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", netnsName(lab, host)}, args...)...)
}

func (l *Lab) path(parts ...string) string {
	return filepath.Join(append([]string{l.dir}, parts...)...)
}

func (l *Lab) save() error {
	text, err := json.MarshalIndent(record{
		Options: l.opts, Program: l.program, HostAccess: l.hostAccess,
		Hosts: l.Hosts(),
	}, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(l.path("lab.json"), text)
}

// writeFile replaces a file atomically.
func writeFile(name string, text []byte) error {
	if err := os.WriteFile(name+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

func (l *Lab) say(format string, args ...any) { say(l.progress, format, args...) }

func say(w io.Writer, format string, args ...any) {
	if w != nil {
		_, _ = fmt.Fprintf(w, format+"\n", args...)
	}
}

// grace is the time between SIGTERM and SIGKILL.
const grace = 5 * time.Second
