// Package haproxy owns one HAProxy: its files, its process, and what the
// running worker believes.
//
// It alone knows how a wish becomes HAProxy's text, what can be changed by
// command and what only by a reload, and how the versions differ.
//
// The files on disk are the state; the running worker is a cache of them. Every
// change is written first and then told. Two process variables in the file say
// which files a worker runs: proc.gen for all of them, proc.shape for the part
// that only a reload changes. So a fresh process finds out by reading, not by
// reloading, how far a running HAProxy is from what it should be, and a crash
// on any line leaves nothing that the next Apply does not see.
//
// It promises that a server is Open in the worker only if a call of Apply said
// so, that endpoints, routes and certificates change without a reload, that a
// reload drops no request, and that what was not confirmed by the worker does
// not count as done.
//
// Its limits: one HAProxy per configuration directory; a worker that an
// outsider starts from the files (mode external) opens what they say is open.
package haproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// lingerRetry is the time until a server that could not be removed, for
	// its connections, is tried again. HAProxy 2.6 counts idle connections
	// it keeps for reuse, and lets half of them go every 5 s.
	lingerRetry = 2 * time.Second
	// idleReload is how long a reload may wait that only takes backends away:
	// nothing leads to them any more.
	idleReload = 30 * time.Second
	// First and longest wait after a failed reload before the same is tried
	// again.
	minBackoff, maxBackoff = 5 * time.Second, 5 * time.Minute

	aliveEvery   = 200 * time.Millisecond // how often the master is looked for
	lookEvery    = 10 * time.Second       // how often the worker is read although nothing happened
	maxStderrLog = 4 << 20                // bytes of HAProxy's own output that are kept
)

// Mode says who runs HAProxy.
type Mode string

// The two ways to run HAProxy.
const (
	Managed  Mode = "managed"  // we start it, watch it and start it again; it outlives us
	External Mode = "external" // someone else runs it, with -W -S and our haproxy.cfg
)

// Options say how a Proxy finds or runs its HAProxy.
type Options struct {
	Mode         Mode          // empty is Managed
	Binary       string        // HAProxy's program; empty looks for "haproxy" in PATH. External: used to check files if it is there
	Dir          string        // configuration directory, absolute; the same path for HAProxy
	RunDir       string        // sockets and pid, absolute, at most 80 bytes long; the same path for HAProxy
	MasterSocket string        // External: the socket of HAProxy's -S
	User, Group  string        // whom the worker becomes when started by root
	MinReload    time.Duration // least time between two reloads; 0 is one second
	Log          *slog.Logger  // nil discards
}

// Live is a server as the worker has it.
type Live struct {
	Addr     netip.AddrPort `json:"addr"`
	State    State          `json:"state"`
	Check    string         `json:"check"`    // "UP", "DOWN" or "no check"
	Sessions int            `json:"sessions"` // connections in use, when last looked at
}

// Result is what an Apply has done.
type Result struct {
	Reloaded bool
	Reason   string    // why a reload was or is due, in words; empty if none
	RetryAt  time.Time // when Apply has more to do, a reload or a removal; zero if it is complete
	Commands int       // commands sent to the worker
}

// Info is HAProxy and our dealings with it, for the status page.
type Info struct {
	Mode        Mode      `json:"mode"`
	Version     string    `json:"version"`
	Running     bool      `json:"running"`
	Pid         int       `json:"pid,omitempty"` // of the master
	Worker      int       `json:"worker,omitempty"`
	OldWorkers  int       `json:"oldWorkers"` // finishing their connections after reloads, as of the last look
	Started     time.Time `json:"started,omitzero"`
	Generation  string    `json:"generation,omitempty"`
	Reloads     int       `json:"reloads"` // by us, since we started
	Starts      int       `json:"starts"`  // by us, since we started
	LastReload  time.Time `json:"lastReload,omitzero"`
	LastReason  string    `json:"lastReason,omitempty"`
	LastError   string    `json:"lastError,omitempty"`
	LastErrorAt time.Time `json:"lastErrorAt,omitzero"`
}

// A Proxy drives one HAProxy. Its methods may be called from any goroutine;
// they take turns.
type Proxy struct {
	opt     Options
	files   RenderOptions
	log     *slog.Logger
	version string
	worker  worker
	master  master
	changed chan struct{}
	info    atomic.Pointer[Info]

	mu      sync.Mutex // holds for everything below
	text    renderer
	disk    *disk
	adopted bool          // a master was found or started by this Proxy
	stopped bool          // Shutdown was called
	procs   procs         // as of the last look
	exit    chan struct{} // closed when the child we started has been reaped; nil if we started none
	tried   time.Time     // when a start was last tried
	run     *running      // nil: not known
	shaped  *Config       // a configuration of the shape that is in shapeID
	shapeID string
	valid   map[any]bool // parts of configurations that were validated
	alarm   *time.Timer

	lastReload  time.Time
	idleSince   time.Time // since when a reload that is not urgent waits
	failedShape string
	failedErr   error
	failedUntil time.Time
	backoff     time.Duration
	unheard     int // failures in a row to tell the worker
}

// running is what the worker is believed to be. It is thrown away on any
// error.
type running struct {
	picture
	exact, wild []row
	certs       map[string]certEntry // nil: not known

	// What each backend's servers were told last: while it is the same
	// fragment, none of them needs to be looked at.
	told map[*Backend]*fragment
}

var (
	plainPath    = regexp.MustCompile(`^/[A-Za-z0-9_./-]*$`)
	versionWords = regexp.MustCompile(`(?i)HA-?Proxy version ((\d+)\.(\d+)[^ ]*)`)
)

// New prepares the files and checks what can be checked without touching a
// running HAProxy. Its errors are sentences for the operator.
func New(opt Options) (*Proxy, error) {
	if opt.Mode == "" {
		opt.Mode = Managed
	}
	if opt.MinReload == 0 {
		opt.MinReload = time.Second
	}
	p := &Proxy{opt: opt, log: opt.Log, changed: make(chan struct{}, 1), valid: make(map[any]bool)}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	for name, dir := range map[string]string{"configuration directory": opt.Dir, "run directory": opt.RunDir} {
		if !plainPath.MatchString(dir) || filepath.Clean(dir) != dir {
			return nil, fmt.Errorf("HAProxy's %s %q must be an absolute path of letters, digits, and . _ - / only", name, dir)
		}
	}
	if len(opt.RunDir) > 80 {
		return nil, fmt.Errorf("HAProxy's run directory %s is %d bytes long, but a unix socket's path allows for 80", opt.RunDir, len(opt.RunDir))
	}
	if err := p.findBinary(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(opt.RunDir, 0o750); err != nil {
		return nil, fmt.Errorf("HAProxy's run directory cannot be made: %w", err)
	}
	var err error
	if p.disk, err = openDisk(opt.Dir); err != nil {
		return nil, fmt.Errorf("HAProxy's configuration directory %s cannot be used: %w", opt.Dir, err)
	}
	if !p.disk.ours() {
		if opt.Mode == Managed {
			return nil, fmt.Errorf("%s was not written by sallyport: move it away, or choose another configuration directory", p.path(configFile))
		}
		// Who runs HAProxy needed a first file, and gave it to us.
		if err := writeFile(p.path(formerFile), p.disk.have[configFile]); err != nil {
			return nil, fmt.Errorf("keeping the former configuration: %w", err)
		}
	}
	p.files = RenderOptions{Dir: opt.Dir, StatsSocket: filepath.Join(opt.RunDir, "worker.sock"), User: opt.User, Group: opt.Group}
	p.text.opt = p.files
	empty := p.text.render(&Config{}, nil)
	p.shaped, p.shapeID = &Config{}, empty.Shape
	if _, ok := p.disk.have[configFile]; !ok {
		if err := p.disk.sync(empty.Content, empty.sums); err != nil {
			return nil, err
		}
	}
	masterPath := filepath.Join(opt.RunDir, "master.sock")
	if opt.Mode == External {
		masterPath = opt.MasterSocket
		if info, err := os.Stat(masterPath); err != nil || info.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf("HAProxy's master socket %q is not there: start HAProxy with \"haproxy -W -S %s -f %s\"; a first configuration has been written",
				masterPath, cmp.Or(masterPath, "/run/haproxy-master.sock"), filepath.Join(opt.Dir, configFile))
		}
	}
	if p.worker.sock, err = connect(p.files.StatsSocket); err != nil {
		return nil, err
	}
	if p.master.sock, err = connect(masterPath); err != nil {
		return nil, err
	}
	p.note(func(i *Info) { i.Mode, i.Version = opt.Mode, p.version })
	return p, nil
}

// findBinary finds HAProxy's program and asks its version.
func (p *Proxy) findBinary() error {
	name := cmp.Or(p.opt.Binary, "haproxy")
	path, err := exec.LookPath(name)
	if err != nil {
		if p.opt.Mode == External && p.opt.Binary == "" {
			return nil
		}
		return fmt.Errorf("HAProxy is not there (%w): install the package haproxy, version 2.6 or newer, or name its program", err)
	}
	out, err := exec.Command(path, "-v").CombinedOutput() //nolint:gosec // the operator's own program
	m := versionWords.FindStringSubmatch(string(out))
	if err != nil || m == nil {
		return fmt.Errorf("%s does not say that it is HAProxy: %q (%v)", path, firstLine(out), err)
	}
	major, _ := strconv.Atoi(m[2])
	minor, _ := strconv.Atoi(m[3])
	if major < 2 || major == 2 && minor < 6 {
		return fmt.Errorf("%s is HAProxy %s, which is too old: 2.6 is the least", path, m[1])
	}
	p.opt.Binary, p.version = path, m[1]
	return nil
}

func firstLine(b []byte) string {
	line, _, _ := strings.Cut(string(b), "\n")
	return line
}

// Changed knocks when something happened that the caller should look at: the
// HAProxy died or came back, the worker is not what it was, or the time
// Result.RetryAt has come.
func (p *Proxy) Changed() <-chan struct{} { return p.changed }

func (p *Proxy) knock() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// Info is the last known state of things. It never waits.
func (p *Proxy) Info() Info { return *p.info.Load() }

func (p *Proxy) note(change func(*Info)) {
	var next Info
	if old := p.info.Load(); old != nil {
		next = *old
	}
	change(&next)
	p.info.Store(&next)
}

func (p *Proxy) noteError(err error) {
	p.note(func(i *Info) { i.LastError, i.LastErrorAt = err.Error(), time.Now() })
}

// Servers is what the worker has, by server. It costs nothing while nothing
// happened. The map belongs to everyone: do not change it.
func (p *Proxy) Servers() (map[ServerID]Live, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.know(); err != nil {
		return nil, err
	}
	return p.run.servers, nil
}

// know reads the worker if it is not known. An external HAProxy that has not
// yet loaded our configuration has no servers of ours.
func (p *Proxy) know() error {
	if p.run != nil {
		return nil
	}
	procs, err := p.master.show()
	if err != nil {
		return err
	}
	p.procs = procs
	pic, err := p.worker.look()
	if err != nil {
		if p.opt.Mode == External && errors.Is(err, syscall.ENOENT) {
			p.run = &running{picture: picture{servers: map[ServerID]Live{}}}
			return nil
		}
		return err
	}
	run := &running{picture: pic}
	if pic.gen == p.disk.gen() && p.unheard == 0 {
		run.exact, run.wild = parseMap(p.disk.have[routeMap].Content), parseMap(p.disk.have[wildMap].Content)
		run.certs = p.diskCerts()
	} else if p.loadsMaps() {
		for path, rows := range map[string]*[]row{routeMap: &run.exact, wildMap: &run.wild} {
			if *rows, err = p.worker.table(p.path(path)); err != nil {
				run.shape = "" // its maps are not ours
			}
		}
	}
	p.run = run
	p.note(func(i *Info) {
		i.Running, i.Pid, i.Worker, i.OldWorkers = true, procs.master, pic.pid, len(procs.old)
		i.Generation, i.Version = pic.gen, pic.version
		i.Started = time.Now().Add(-time.Duration(pic.uptime) * time.Second).Truncate(time.Second)
	})
	return nil
}

// loadsMaps says whether the worker has maps to ask for: without a frontend it
// has none.
func (p *Proxy) loadsMaps() bool {
	answer, _, err := p.worker.ask("show map")
	return err == nil && strings.Contains(answer, p.path(routeMap))
}

// diskCerts reads the certificates of the files on disk.
func (p *Proxy) diskCerts() map[string]certEntry {
	out := make(map[string]certEntry)
	for line := range strings.Lines(string(p.disk.have[crtList].Content)) {
		line = strings.TrimSpace(line)
		file, _, _ := strings.Cut(line, " ")
		if name := filepath.Base(file); name != defaultCert && line != "" {
			out[name] = certEntry{p.disk.have[certDir+name].Content, line}
		}
	}
	return out
}

func (p *Proxy) path(rel string) string { return p.opt.Dir + "/" + rel }

// forget throws away what is believed of the worker.
func (p *Proxy) forget() { p.run = nil }

// Apply makes the files and the running HAProxy equal to cfg with its servers
// in these states; a server that states does not name is Absent. It is safe to
// repeat. What needs a reload before one is allowed, or after the same one
// failed, stays as it was, and everything else is done: then RetryAt says when
// to come again, and Changed knocks at that time.
//
// An error means that something was not confirmed. What is believed of the
// worker is then read anew by the next call.
func (p *Proxy) Apply(ctx context.Context, cfg *Config, states map[ServerID]State) (Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.alarm != nil {
		p.alarm.Stop()
	}
	res, err := p.apply(ctx, cfg, states)
	if err != nil {
		p.forget()
		p.noteError(err)
	}
	if !res.RetryAt.IsZero() {
		p.alarm = time.AfterFunc(time.Until(res.RetryAt), p.knock)
	}
	return res, err
}

func (p *Proxy) apply(ctx context.Context, cfg *Config, states map[ServerID]State) (Result, error) {
	var res Result
	if err := ctx.Err(); err != nil {
		return res, err
	}
	if err := p.validate(cfg); err != nil {
		return res, err
	}
	if err := p.ensure(); err != nil {
		return res, err
	}
	blind := p.know()
	if blind != nil {
		if !errors.Is(blind, syscall.ECONNREFUSED) && !errors.Is(blind, syscall.ENOENT) {
			return res, blind
		}
		// A master without a worker: only a reload brings one.
		p.run = &running{}
	}
	var failure error
	want := p.text.render(cfg, states)
	if why, urgent := p.reasonToReload(cfg, want); why != "" {
		res.Reason = why
		due := p.reloadDue(want.Shape, urgent)
		if due.After(time.Now()) {
			res.RetryAt, failure = due, p.failureOf(want.Shape)
		} else if failure = p.reload(ctx, cfg, want, why); failure == nil {
			res.Reloaded = true
		} else {
			res.RetryAt = p.reloadDue(want.Shape, urgent)
			if err := p.know(); err != nil && blind == nil {
				return res, errors.Join(failure, err)
			}
		}
		if blind != nil && !res.Reloaded {
			p.forget()
			return res, errors.Join(blind, failure)
		}
		if !res.Reloaded {
			if p.shaped == nil || p.run.shape != p.shapeID {
				// What the worker runs is not known well enough to write
				// files for it. Its servers can be told all the same.
				return res, errors.Join(failure, p.tellServers(cfg, states, &res))
			}
			cfg = within(cfg, p.shaped)
			want = p.text.render(cfg, states)
		}
	} else {
		p.idleSince = time.Time{}
	}
	p.shaped, p.shapeID = cfg, want.Shape
	if err := p.disk.sync(want.Content, want.sums); err != nil {
		return res, errors.Join(failure, err)
	}
	if err := p.tellAll(cfg, states, want, &res); err != nil {
		p.unheard++
		return res, errors.Join(failure, err)
	}
	p.unheard = 0
	return res, failure
}

// validate is cfg.Validate, with a memory for the parts that are shared by
// pointer, and for the routes.
func (p *Proxy) validate(cfg *Config) error {
	var errs []error
	next := make(map[any]bool, len(cfg.Backends)+len(cfg.Certs)+1)
	once := func(part any, check func() error) {
		if !p.valid[part] {
			if err := check(); err != nil {
				errs = append(errs, err)
				return
			}
		}
		next[part] = true
	}
	names := make(map[string]bool, len(cfg.Backends))
	for _, b := range cfg.Backends {
		if names[b.Name] {
			errs = append(errs, fmt.Errorf("backend %q: listed twice", b.Name))
		}
		names[b.Name] = true
		once(b, b.Validate)
	}
	clear(names)
	for _, c := range cfg.Certs {
		if names[c.Name] {
			errs = append(errs, fmt.Errorf("certificate %q: listed twice", c.Name))
		}
		names[c.Name] = true
		once(c, c.Validate)
	}
	p.valid = next
	head := Config{Bind: cfg.Bind, Tune: cfg.Tune, DefaultBackend: cfg.DefaultBackend}
	if !slices.Equal(p.text.routesOf, cfg.Routes) {
		head.Routes = cfg.Routes
	}
	if p.text.headOf.Tune == cfg.Tune {
		head.Tune = Tune{}
	}
	errs = append(errs, head.Validate())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("HAProxy's configuration: %w", err)
	}
	return nil
}

// reasonToReload says in words what of want the worker can only take by a
// reload, or nothing. Not urgent is what nobody is waiting for.
func (p *Proxy) reasonToReload(cfg *Config, want Files) (why string, urgent bool) {
	if p.unheard >= 2 {
		return "commands to the worker failed", true
	}
	if p.run.shape == want.Shape {
		return "", false
	}
	if p.run.pid == 0 {
		return "HAProxy has no worker that knows us", true
	}
	if p.run.shape == "" {
		return "HAProxy runs a configuration that is not ours", true
	}
	if p.shaped == nil || p.shapeID != p.run.shape {
		return "HAProxy runs another configuration than the files say", true
	}
	var reasons []string
	if !slices.Equal(p.shaped.Bind.HTTP, cfg.Bind.HTTP) || !slices.Equal(p.shaped.Bind.HTTPS, cfg.Bind.HTTPS) {
		reasons = append(reasons, "listen addresses changed")
	}
	if p.shaped.Tune != cfg.Tune {
		reasons = append(reasons, "settings of the process changed")
	}
	old := make(map[string]*Backend, len(p.shaped.Backends))
	for _, b := range p.shaped.Backends {
		old[b.Name] = b
	}
	var added, changed, removed []string
	for _, b := range cfg.Backends {
		switch was := old[b.Name]; {
		case was == nil:
			added = append(added, b.Name)
		case was.Check != b.Check:
			changed = append(changed, b.Name)
		}
		delete(old, b.Name)
	}
	removed = slices.Sorted(maps.Keys(old))
	urgent = len(reasons)+len(added)+len(changed) > 0 || len(removed) == 0
	for _, r := range []struct {
		verb  string
		names []string
	}{{"added", added}, {"changed", changed}, {"removed", removed}} {
		switch len(r.names) {
		case 0:
		case 1:
			reasons = append(reasons, "backend "+r.names[0]+" "+r.verb)
		default:
			reasons = append(reasons, fmt.Sprintf("%d backends %s", len(r.names), r.verb))
		}
	}
	if len(reasons) == 0 {
		reasons = append(reasons, "a certificate too long for a command changed")
	}
	return strings.Join(reasons, ", "), urgent
}

// reloadDue is the earliest time for a reload to this shape.
func (p *Proxy) reloadDue(shape string, urgent bool) time.Time {
	due := p.lastReload.Add(p.opt.MinReload)
	if !urgent {
		if p.idleSince.IsZero() {
			p.idleSince = time.Now()
		}
		due = later(due, p.idleSince.Add(idleReload))
	}
	if shape == p.failedShape {
		due = later(due, p.failedUntil)
	}
	return due
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// failureOf is the error of the last reload to this shape, if it failed.
func (p *Proxy) failureOf(shape string) error {
	if shape == p.failedShape {
		return p.failedErr
	}
	return nil
}

// within is the part of want that a worker with the shape of have can take by
// command: the same listen addresses, settings and backends, with the servers,
// routes and certificates that are wanted of them.
func within(want, have *Config) *Config {
	out := &Config{Bind: have.Bind, Tune: have.Tune, DefaultBackend: want.DefaultBackend}
	wanted := make(map[string]*Backend, len(want.Backends))
	for _, b := range want.Backends {
		wanted[b.Name] = b
	}
	known := make(map[string]bool, len(have.Backends))
	for _, b := range have.Backends {
		known[b.Name] = true
		switch next := wanted[b.Name]; {
		case next == nil && len(b.Servers) == 0:
			out.Backends = append(out.Backends, b)
		case next == nil:
			out.Backends = append(out.Backends, &Backend{Name: b.Name, Origin: b.Origin, Check: b.Check})
		case next.Check == b.Check:
			out.Backends = append(out.Backends, next)
		default:
			out.Backends = append(out.Backends, &Backend{Name: b.Name, Origin: next.Origin, Check: b.Check, Servers: next.Servers})
		}
	}
	for _, r := range want.Routes {
		if r.Backend == "" || known[r.Backend] || wanted[r.Backend] == nil {
			out.Routes = append(out.Routes, r)
		}
	}
	long := make(map[string]*Cert)
	for _, c := range have.Certs {
		if len(c.PEM) > maxPayload {
			long[c.Name] = c
		}
	}
	for _, c := range want.Certs {
		if len(c.PEM) <= maxPayload && long[c.Name] == nil {
			out.Certs = append(out.Certs, c)
		}
	}
	out.Certs = append(out.Certs, slices.Collect(maps.Values(long))...)
	slices.SortFunc(out.Certs, func(a, b *Cert) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// reload writes the files, has them checked, and makes HAProxy start a worker
// from them. If that fails the old worker serves on, and the files are as they
// were.
func (p *Proxy) reload(ctx context.Context, cfg *Config, want Files, why string) error {
	before := maps.Clone(p.disk.have)
	offset := p.logSize()
	err := p.disk.sync(want.Content, want.sums)
	if err == nil {
		err = p.check(ctx)
	}
	if err == nil {
		err = p.master.reload(ctx, func() bool {
			_, gen, err := p.worker.ask("show version")
			return err == nil && gen == want.Gen
		})
		if errors.Is(err, errRefused) {
			err = p.explain(err, cfg, offset)
		}
	}
	p.lastReload = time.Now()
	p.idleSince = time.Time{}
	p.forget()
	if err != nil {
		err = fmt.Errorf("reload (%s): %w", why, err)
		failed := writeFile(p.path(failedFile), want.Content[configFile])
		if len(before) > 0 {
			failed = errors.Join(failed, p.disk.sync(before, nil))
		}
		if want.Shape == p.failedShape {
			p.backoff = min(2*p.backoff, maxBackoff)
		} else {
			p.backoff = minBackoff
		}
		p.failedShape, p.failedErr, p.failedUntil = want.Shape, err, time.Now().Add(p.backoff)
		p.log.Error("HAProxy was not reloaded", "reason", why, "err", err, "retryIn", p.backoff)
		return errors.Join(err, failed)
	}
	p.failedShape, p.failedErr, p.unheard = "", nil, 0
	p.shaped, p.shapeID = cfg, want.Shape
	p.note(func(i *Info) { i.Reloads, i.LastReload, i.LastReason = i.Reloads+1, p.lastReload, why })
	p.log.Info("HAProxy reloaded", "reason", why)
	return p.know()
}

// check lets HAProxy read the files without acting on them.
func (p *Proxy) check(ctx context.Context) error {
	if p.opt.Binary == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, p.opt.Binary, "-c", "-f", p.path(configFile)).CombinedOutput() //nolint:gosec // the operator's own program
	if err != nil {
		return fmt.Errorf("HAProxy refuses the configuration (kept as %s): %s", p.path(failedFile), complaints(string(out)))
	}
	return nil
}

// tellServers changes servers, and nothing else, in the backends the worker
// has.
func (p *Proxy) tellServers(cfg *Config, states map[ServerID]State, res *Result) error {
	steps := p.serverSteps(cfg, states, nil)
	res.Commands += len(steps.cmds)
	if len(steps.cmds) == 0 {
		return nil
	}
	if err := p.worker.tell(steps.cmds); err != nil {
		return err
	}
	p.run.servers = steps.after
	return nil
}

// serverSteps are the commands that bring servers to their states.
type serverSteps struct {
	cmds   []string          // in order: close, drain, add, open
	remove []ServerID        // closed, and no longer wanted
	after  map[ServerID]Live // the servers once the commands are done; nil if there are none
}

var stateCommand = map[State]string{Closed: "maint", Drain: "drain", Open: "ready"}

func (p *Proxy) serverSteps(cfg *Config, states map[ServerID]State, fragments map[*Backend]*fragment) serverSteps {
	var s serverSteps
	var up []string
	have := p.run.servers
	set := func(id ServerID, live Live) {
		if s.after == nil {
			s.after = maps.Clone(have)
		}
		s.after[id] = live
	}
	found := 0
	for _, b := range cfg.Backends {
		if f := fragments[b]; f != nil && f == p.run.told[b] {
			found += f.present
			continue
		}
		for i := range b.Servers {
			srv := &b.Servers[i]
			id := ServerID{b.Name, srv.Name}
			state := states[id]
			live, there := have[id]
			if there {
				found++
			}
			switch {
			case state == Absent && there:
				found-- // the sweep below takes it
			case state == Absent || there && live.State == state:
			case there:
				cmd := "set server " + id.String() + " state " + stateCommand[state]
				if state < live.State {
					s.cmds = append(s.cmds, cmd)
				} else {
					up = append(up, cmd)
				}
				live.State = state
				set(id, live)
			case p.run.backends[b.Name]:
				live = Live{Addr: srv.Addr, State: state, Check: "no check"}
				up = append(up, "add server "+id.String()+" "+serverText(b, srv))
				if b.Check {
					live.Check = "UP"
					up = append(up, "enable health "+id.String())
				}
				if state != Closed {
					up = append(up, "set server "+id.String()+" state "+stateCommand[state])
				}
				set(id, live)
			}
		}
	}
	if found < len(have) {
		wanted := make(map[ServerID]bool, len(have))
		for _, b := range cfg.Backends {
			for i := range b.Servers {
				if id := (ServerID{b.Name, b.Servers[i].Name}); states[id] > Absent {
					wanted[id] = true
				}
			}
		}
		for id, live := range have {
			if wanted[id] {
				continue
			}
			s.remove = append(s.remove, id)
			if live.State != Closed {
				s.cmds = append(s.cmds, "set server "+id.String()+" state maint")
				live.State = Closed
				set(id, live)
			}
		}
		slices.SortFunc(s.remove, func(a, b ServerID) int { return strings.Compare(a.String(), b.String()) })
		slices.Sort(s.cmds)
	}
	s.cmds = append(s.cmds, up...)
	return s
}

// tellAll makes the worker equal to want by commands: doors close, then open,
// then certificates and routes change, then servers nobody wants are removed.
// The generation is set when all of it is confirmed.
func (p *Proxy) tellAll(cfg *Config, states map[ServerID]State, want Files, res *Result) error {
	steps := p.serverSteps(cfg, states, want.fragments)
	var mapCmds []string
	var replace []func() error
	if len(cfg.Bind.HTTP)+len(cfg.Bind.HTTPS) > 0 {
		for _, m := range []struct {
			path       string
			have, want []row
		}{{routeMap, p.run.exact, want.exact}, {wildMap, p.run.wild, want.wild}} {
			cmds, few := mapCommands(p.path(m.path), m.have, m.want)
			if few {
				mapCmds = append(mapCmds, cmds...)
			} else {
				replace = append(replace, func() error { return p.worker.replaceMap(p.path(m.path), m.want) })
				res.Commands += 2
			}
		}
	}
	sameCerts := len(cfg.Bind.HTTPS) == 0 || p.run.certs != nil && maps.EqualFunc(p.run.certs, want.certs, func(a, b certEntry) bool {
		return a.line == b.line && string(a.pem) == string(b.pem)
	})
	mark := []string{"experimental-mode on", "set var proc.gen str(" + want.Gen + ")"}
	cmds := slices.Concat(steps.cmds, mapCmds)
	res.Commands += len(cmds) + len(steps.remove)

	// In the usual case, servers only, one exchange does everything.
	if len(cmds) > 0 && len(mapCmds)+len(replace)+len(steps.remove) == 0 && sameCerts {
		cmds = append(cmds, mark...)
		mark = nil
	}
	if err := p.worker.tell(cmds); err != nil {
		return err
	}
	if steps.after != nil {
		p.run.servers = steps.after
	}
	if !sameCerts {
		if err := p.tellCerts(want.certs, res); err != nil {
			return err
		}
	}
	for _, f := range replace {
		if err := f(); err != nil {
			return err
		}
	}
	if err := p.remove(steps.remove, res); err != nil {
		return err
	}
	if mark != nil && p.run.gen != want.Gen {
		if err := p.worker.tell(mark); err != nil {
			return err
		}
	}
	p.run.gen, p.run.exact, p.run.wild, p.run.certs, p.run.told = want.Gen, want.exact, want.wild, want.certs, want.fragments
	if res.Commands > 0 {
		p.note(func(i *Info) { i.Generation = want.Gen })
	}
	return nil
}

// remove deletes closed servers. One that still has connections stays, and is
// tried again later: its requests may finish.
func (p *Proxy) remove(ids []ServerID, res *Result) error {
	if len(ids) == 0 {
		return nil
	}
	cmds := make([]string, len(ids))
	for i, id := range ids {
		cmds[i] = "del server " + id.String()
	}
	after := maps.Clone(p.run.servers)
	n := 0
	for batch := range batches(cmds) {
		answer, _, err := p.worker.ask(strings.Join(batch, ";"))
		if err != nil {
			return err
		}
		var verdicts []string
		for line := range strings.Lines(answer) {
			if len(line) > 4 && line[0] == '[' && line[2:4] == "]:" && !strings.Contains(line, "proc.gen") {
				verdicts = append(verdicts, strings.TrimSpace(line[4:]))
			}
		}
		if len(verdicts) != len(batch) {
			return fmt.Errorf("HAProxy's worker: %d answers to %d removals of servers", len(verdicts), len(batch))
		}
		for _, v := range verdicts {
			switch {
			case strings.HasPrefix(v, "Server deleted"), strings.HasPrefix(v, "No such server"):
				delete(after, ids[n])
			case strings.Contains(v, "still has connections"):
				res.RetryAt = earlier(res.RetryAt, time.Now().Add(lingerRetry))
			default:
				return fmt.Errorf("HAProxy's worker: %s: %s", cmds[n], v)
			}
			n++
		}
	}
	p.run.servers = after
	return nil
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// tellCerts makes the worker's certificates equal to want.
func (p *Proxy) tellCerts(want map[string]certEntry, res *Result) error {
	have := p.run.certs
	files, err := p.worker.certFiles()
	if err != nil {
		return err
	}
	lines := make(map[string]string, len(want))
	for _, name := range slices.Sorted(maps.Keys(want)) {
		c, path := want[name], p.path(certDir+name)
		lines[path] = c.line
		if old, ok := have[name]; files[path] && ok && string(old.pem) == string(c.pem) {
			continue
		}
		if len(c.pem) > maxPayload {
			continue // the worker has it from its start
		}
		if err := p.worker.setCert(path, c.pem, !files[path]); err != nil {
			return err
		}
		res.Commands += 2
	}
	if err := p.worker.listCerts(p.path(crtList), p.path(certDir+defaultCert), lines); err != nil {
		return err
	}
	var cmds []string
	for path := range files {
		if strings.HasPrefix(path, p.path(certDir)) && path != p.path(certDir+defaultCert) && lines[path] == "" {
			cmds = append(cmds, "del ssl cert "+path)
		}
	}
	res.Commands += len(cmds)
	return p.worker.tell(cmds)
}
