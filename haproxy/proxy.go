package haproxy

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/time/rate"
)

const (
	// lingerRetry is the time until the next attempt to remove a server that still has connections.
	lingerRetry = 2 * time.Second

	aliveEvery   = 200 * time.Millisecond // interval between checks that the master lives
	lookEvery    = 10 * time.Second       // interval between readings of the worker; lookShare may lengthen it
	lookShare    = 200                    // readings of the worker take at most one part in so many of the time
	maxStderrLog = 4 << 20                // bytes of HAProxy's own output that are kept
)

// Mode is a way to run HAProxy.
type Mode string

// The two ways to run HAProxy.
const (
	Managed  Mode = "managed"  // we start it, watch it and start it again; it outlives us
	External Mode = "external" // someone else runs it, with -W -S and our haproxy.cfg
)

// Options hold the settings with which a Proxy finds or runs its HAProxy.
type Options struct {
	Mode Mode // empty stands for Managed
	// Binary is HAProxy's program. If it is empty, New looks for "haproxy" in PATH. In mode
	// External the program only checks files, and may be missing.
	Binary       string
	Dir          string        // configuration directory, absolute; the same path for HAProxy
	RunDir       string        // sockets and pid, absolute, at most 80 bytes long; the same path for HAProxy
	MasterSocket string        // External: the socket of HAProxy's -S
	User, Group  string        // those of the worker, if HAProxy is started by root
	MinReload    time.Duration // least time between two reloads; 0 stands for one second
	// Stdout is where the standard output of a Managed HAProxy goes, even after this process has
	// ended. If it is nil, the output goes to a file below RunDir, together with the standard
	// error.
	Stdout *os.File
	Log    *slog.Logger // nil discards the log
}

// Result describes the effects of an Apply.
type Result struct {
	Reloaded bool
	Reason   string    // why a reload happened or is due, in words; empty if no reload was needed
	RetryAt  time.Time // when Apply has more to do, such as a reload or a removal; zero if it has done everything
	Commands int       // commands sent to the worker
	Waits    []Wait    // tenants that wait for their budget of reloads, or for old workers

	// made holds the changes without a reload, except for removals of servers: commands, maps,
	// certificates and keys.
	made []string
	more bool // servers are left to the next round: see serversAtOnce
}

// Info describes HAProxy and our actions on it, for the status page.
type Info struct {
	Mode        Mode      `json:"mode"`
	Version     string    `json:"version"`
	Running     bool      `json:"running"`
	Pid         int       `json:"pid,omitempty"` // of the master
	Worker      int       `json:"worker,omitempty"`
	OldWorkers  int       `json:"oldWorkers"` // workers that finish connections after reloads, as of the last look
	Room        Room      `json:"room"`
	Started     time.Time `json:"started,omitzero"`
	Generation  string    `json:"generation,omitempty"`
	Reloads     int       `json:"reloads"` // by us, since we started
	Starts      int       `json:"starts"`  // by us, since we started
	Checks      int       `json:"checks"`  // runs that only read a configuration, since we started
	LastReload  time.Time `json:"lastReload,omitzero"`
	LastReason  string    `json:"lastReason,omitempty"`
	Waits       []Wait    `json:"waits,omitempty"` // tenants that wait for a reload, as of the last Apply
	LastError   string    `json:"lastError,omitempty"`
	LastErrorAt time.Time `json:"lastErrorAt,omitzero"`

	MaxConn  int        `json:"-"` // client connections that the worker accepts; 0 if not known
	Capacity []Capacity `json:"-"` // capacity of the worker and the machine, as of the last look
	// Reread reports that the worker was read anew since the last Apply, so the same order may have
	// something to do.
	Reread   bool `json:"-"`
	Missed   int  `json:"-"` // orders with missing parts that only a repetition brought
	Restored int  `json:"-"` // repeated orders that corrected a change by somebody else
}

// A Proxy drives one HAProxy. Any goroutine may call its methods, which take turns.
type Proxy struct {
	opt     Options
	files   RenderOptions
	log     *slog.Logger
	version string
	worker  worker
	master  master
	changed chan struct{}
	info    atomic.Pointer[Info]
	checks  atomic.Int64           // runs that only read a configuration
	revives atomic.Bool            // HAProxy has died and is being started again, while mu is locked
	legend  atomic.Pointer[legend] // see publish

	mu     sync.Mutex // protects everything below
	text   renderer
	disk   *disk
	procs  procs         // as of the last look
	exit   chan struct{} // closed when HAProxy, our child, has ended; nil if we started no HAProxy
	starts *rate.Limiter // bounds the starts of a HAProxy that ends again and again
	last   order
	alarm  *time.Timer

	belief   belief
	schedule schedule
}

var plainPath = regexp.MustCompile(`^/[A-Za-z0-9_./-]*$`)

// New prepares the files, and checks everything that it can check without a change to a running
// HAProxy. Its errors are sentences for the operator.
func New(opt Options) (*Proxy, error) {
	if opt.Mode == "" {
		opt.Mode = Managed
	}
	if opt.MinReload == 0 {
		opt.MinReload = time.Second
	}
	p := &Proxy{
		opt: opt, log: opt.Log, changed: make(chan struct{}, 1),
		starts: rate.NewLimiter(rate.Every(time.Second), 3),
	}
	p.schedule.least = opt.MinReload
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	steps := []func() error{p.opt.checkDirs, p.findBinary, p.openRunDir, p.openFiles, p.firstFiles, p.openSockets}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
	}
	p.note(func(i *Info) { i.Mode, i.Version, i.Room = opt.Mode, p.version, p.room() })
	return p, nil
}

// checkDirs checks the names of the directories.
func (o *Options) checkDirs() error {
	for name, dir := range map[string]string{"configuration directory": o.Dir, "run directory": o.RunDir} {
		if !plainPath.MatchString(dir) || filepath.Clean(dir) != dir {
			return fmt.Errorf("HAProxy's %s %q must be an absolute path of letters, digits, and . _ - / only", name,
				dir)
		}
	}
	if len(o.RunDir) > 80 {
		return fmt.Errorf("HAProxy's run directory %s is %d bytes long, but a unix socket's path allows for 80",
			o.RunDir, len(o.RunDir))
	}
	return nil
}

// openRunDir makes the run directory. It removes directories of checks that an earlier process left
// there when it ended during a check.
func (p *Proxy) openRunDir() error {
	if err := os.MkdirAll(p.opt.RunDir, 0o750); err != nil {
		return fmt.Errorf("HAProxy's run directory cannot be created: %w", err)
	}
	left, err := filepath.Glob(filepath.Join(p.opt.RunDir, vetDir+"*"))
	if err != nil {
		return err
	}
	for _, dir := range left {
		_ = os.RemoveAll(dir)
	}
	return nil
}

// openFiles reads the configuration directory. In mode Managed its haproxy.cfg has to be ours, or
// missing.
func (p *Proxy) openFiles() (err error) {
	var odd []string
	if p.disk, odd, err = openDisk(p.opt.Dir); err != nil {
		return fmt.Errorf("HAProxy's configuration directory %s cannot be used: %w", p.opt.Dir, err)
	}
	for _, what := range odd {
		p.log.Warn("HAProxy's configuration directory held something unexpected", "what", what)
	}
	if p.disk.ours() {
		return nil
	}
	if p.opt.Mode == Managed {
		return fmt.Errorf("%s was not written by sallyport: move it away, or choose another configuration directory",
			p.path(configFile))
	}
	// HAProxy needed a first file before we could write it.
	if err := writeFile(p.path(formerFile), p.disk.have[configFile]); err != nil {
		return fmt.Errorf("keeping the former configuration: %w", err)
	}
	return nil
}

// firstFiles sets the paths and names that appear in all configurations. If there is no haproxy.cfg
// yet, it writes the files of an empty Config.
func (p *Proxy) firstFiles() error {
	jail, locked, err := p.jail()
	if err != nil {
		return fmt.Errorf("HAProxy's run directory cannot be used: %w", err)
	}
	p.files = RenderOptions{
		Dir: p.opt.Dir, StatsSocket: WorkerSocket(p.opt.RunDir), NoticeSocket: jail + "/notices.sock",
		Secret: p.disk.secret,
		User:   p.opt.User, Group: p.opt.Group,
	}
	if locked {
		p.files.Jail = jail
	}
	if p.opt.Mode == Managed {
		p.files.MaxConn = p.room().Connections(0, 0)
	}
	p.text.opt = p.files
	empty := p.text.outline(&Config{}, nil)
	p.belief.shapedLike(empty)
	if _, ok := p.disk.have[configFile]; ok {
		return nil
	}
	return p.file(empty)
}

// openSockets prepares exchanges with HAProxy. The master socket of an External HAProxy has to
// exist.
func (p *Proxy) openSockets() (err error) {
	masterPath := filepath.Join(p.opt.RunDir, "master.sock")
	if p.opt.Mode == External {
		masterPath = p.opt.MasterSocket
		if info, err := os.Stat(masterPath); err != nil || info.Mode().Type() != os.ModeSocket {
			return fmt.Errorf("HAProxy's master socket %q does not exist: "+
				"start HAProxy with \"haproxy -W -S %s -f %s\", which has its first configuration",
				masterPath, cmp.Or(masterPath, "/run/haproxy-master.sock"), filepath.Join(p.opt.Dir, configFile))
		}
	}
	p.worker.path = p.files.StatsSocket
	if p.worker.sock, err = connect(p.worker.path); err != nil {
		return err
	}
	p.master.sock, err = connect(masterPath)
	return err
}

// findBinary finds HAProxy's program and asks its version.
func (p *Proxy) findBinary() error {
	program, err := FindProgram(p.opt.Binary)
	if err != nil && p.opt.Mode == External && p.opt.Binary == "" && errors.Is(err, exec.ErrNotFound) {
		return nil
	}
	p.opt.Binary, p.version = program.Path, program.Version
	return err
}

func firstLine(b []byte) string {
	line, _, _ := strings.Cut(string(b), "\n")
	return line
}

// Changed returns a channel that signals when the caller should call Apply again: HAProxy has died
// or come back, the worker has changed, or the time Result.RetryAt has come.
func (p *Proxy) Changed() <-chan struct{} { return p.changed }

func (p *Proxy) knock() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// Info returns the last known Info. It never waits.
func (p *Proxy) Info() Info {
	i := *p.info.Load()
	i.Checks = int(p.checks.Load())
	return i
}

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

// Servers returns the servers that the worker has, by backend. It costs nothing while the belief
// about the worker is valid. While Run starts HAProxy again, which takes seconds with a large
// configuration, Servers returns an error and does not wait.
func (p *Proxy) Servers() (LiveBackends, error) {
	if p.revives.Load() {
		return LiveBackends{}, errRevives
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.know(); err != nil {
		return LiveBackends{}, err
	}
	return p.belief.run.backends, nil
}

// Idle returns how many connections the worker keeps for later requests. It counts those to servers for which the
// function of returns true. HAProxy 3.2 keeps a connection to a drained server for more than five minutes.
func (p *Proxy) Idle(of func(at netip.AddrPort, source netip.Addr) bool) (int, error) {
	return p.worker.idle(of)
}

// know reads the worker if there is no belief about it. If the worker has not loaded our
// configuration yet, or the next Apply has to start it, the belief is that it has nothing of ours.
func (p *Proxy) know() error {
	if p.belief.run != nil {
		return nil
	}
	procs, err := p.master.show()
	if err != nil && p.opt.Mode == Managed && !p.belief.ready && p.recordedMaster() == 0 {
		p.belief.learned(nothing())
		return nil
	}
	if err != nil {
		return err
	}
	p.procs = procs
	pic, err := p.reinstated()
	if err != nil {
		if p.opt.Mode == External && errors.Is(err, syscall.ENOENT) {
			p.belief.learned(nothing())
			return nil
		}
		return err
	}
	run := &running{picture: pic, rows: make(map[string][]row)}
	if pic.gen == p.disk.gen() && p.belief.unheard == 0 {
		for path, file := range p.disk.have {
			if isMap(path) {
				run.rows[path] = parseMap(file.Content)
			}
		}
		run.entries = p.diskCerts()
	} else if loaded, err := p.worker.ask("show map"); err == nil { // without a frontend it has none
		for line := range strings.Lines(loaded) {
			_, rest, _ := strings.Cut(line, "("+p.path(""))
			path, _, is := strings.Cut(rest, ")")
			if !is || !isMap(path) {
				continue
			}
			if run.rows[path], err = p.worker.table(p.path(path)); err != nil {
				run.shape = "" // its maps are not ours
			}
		}
	}
	if _, shared := p.disk.have[ticketFile]; shared {
		if run.tickets, err = p.worker.tickets(p.path(ticketFile)); err != nil {
			return err
		}
	}
	run.places = placingOf(pic, run.rows)
	run.backends = run.names().given(run.backends)
	p.belief.learned(run)
	p.note(func(i *Info) {
		i.Running, i.Pid, i.Worker, i.OldWorkers, i.Reread = true, procs.master, pic.pid, len(procs.old), true
		i.Capacity, i.MaxConn = p.capacity(pic, procs), pic.maxConn
		i.Generation, i.Version = pic.gen, pic.version
		i.Started = time.Now().Add(-time.Duration(pic.uptime) * time.Second).Truncate(time.Second)
	})
	return nil
}

// knowOrNothing reads the worker if there is no belief about it. If that fails, the belief is that
// the worker has nothing of ours, so that no command goes to an unknown worker.
func (p *Proxy) knowOrNothing() error {
	err := p.know()
	if err != nil {
		p.belief.learned(nothing())
	}
	return err
}

// diskCerts reads the certificates of the files on disk.
func (p *Proxy) diskCerts() map[string]certEntry {
	out := make(map[string]certEntry)
	for path, list := range p.disk.have {
		if !strings.HasPrefix(path, crtList) {
			continue
		}
		for line := range strings.Lines(string(list.Content)) {
			line = strings.TrimSpace(line)
			file, _, _ := strings.Cut(line, " ")
			if name := filepath.Base(file); line != "" && !fixed(name) {
				out[name] = certEntry{p.disk.have[certDir+name].Content, path, line}
			}
		}
	}
	return out
}

func (p *Proxy) path(rel string) string { return p.opt.Dir + "/" + rel }
