package haproxy

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
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
	// lingerRetry is the time until the next attempt to remove a server that had
	// connections.
	lingerRetry = 2 * time.Second

	aliveEvery   = 200 * time.Millisecond // how often the master is looked for
	lookEvery    = 10 * time.Second       // how often the worker is read although nothing happened, if that takes
	lookShare    = 200                    // at most one part in so many of the time
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
	Mode Mode // empty is Managed
	// HAProxy's program; empty looks for "haproxy" in PATH. External: used to check files if it is there
	Binary       string
	Dir          string        // configuration directory, absolute; the same path for HAProxy
	RunDir       string        // sockets and pid, absolute, at most 80 bytes long; the same path for HAProxy
	MasterSocket string        // External: the socket of HAProxy's -S
	User, Group  string        // whom the worker becomes when started by root
	MinReload    time.Duration // least time between two reloads; 0 is one second
	// Managed: where HAProxy's standard output goes, which it keeps when we end; nil: with its
	// standard error, to a file below RunDir
	Stdout *os.File
	Log    *slog.Logger // nil discards
}

// Result says what an Apply has done.
type Result struct {
	Reloaded bool
	Reason   string    // why a reload was or is due, in words; empty if none
	RetryAt  time.Time // when Apply has more to do, a reload or a removal; zero if it is complete
	Commands int       // commands sent to the worker
	Waits    []Wait    // whose changes wait for their budget of reloads, or for old workers

	made []string // what changed without a reload, but for removals of servers: commands, maps, and what else
}

// Info describes HAProxy and what we did with it, for the status page.
type Info struct {
	Mode        Mode      `json:"mode"`
	Version     string    `json:"version"`
	Running     bool      `json:"running"`
	Pid         int       `json:"pid,omitempty"` // of the master
	Worker      int       `json:"worker,omitempty"`
	OldWorkers  int       `json:"oldWorkers"` // finishing their connections after reloads, as of the last look
	Room        Room      `json:"room"`
	Started     time.Time `json:"started,omitzero"`
	Generation  string    `json:"generation,omitempty"`
	Reloads     int       `json:"reloads"` // by us, since we started
	Starts      int       `json:"starts"`  // by us, since we started
	Checks      int       `json:"checks"`  // runs that only read a configuration, since we started
	LastReload  time.Time `json:"lastReload,omitzero"`
	LastReason  string    `json:"lastReason,omitempty"`
	Waits       []Wait    `json:"waits,omitempty"` // for a reload, as of the last Apply
	LastError   string    `json:"lastError,omitempty"`
	LastErrorAt time.Time `json:"lastErrorAt,omitzero"`

	MaxConn  int        `json:"-"` // client connections that the worker accepts; 0: not known
	Capacity []Capacity `json:"-"` // of the worker and the machine, as of the last look
	// the worker was read anew since the last Apply: the same order may have something to do
	Reread   bool `json:"-"`
	Missed   int  `json:"-"` // orders that left out something, which a repetition brought
	Restored int  `json:"-"` // orders repeated that changed something after another hand
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
	checks  atomic.Int64                      // runs that only read a configuration
	revives atomic.Bool                       // HAProxy has died and is started again, with mu locked
	names   atomic.Pointer[map[string]string] // see publishNames; never changed

	mu     sync.Mutex // holds for everything below
	text   renderer
	disk   *disk
	procs  procs         // as of the last look
	exit   chan struct{} // closed when the child we started has been reaped; nil if we started none
	starts *rate.Limiter // for a HAProxy that ends again and again
	last   order
	alarm  *time.Timer

	belief   belief
	schedule schedule
}

var plainPath = regexp.MustCompile(`^/[A-Za-z0-9_./-]*$`)

// New prepares the files and checks what can be checked without touching a
// running HAProxy. Its errors are sentences for the operator.
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

// openRunDir makes the run directory, and removes what a life has left there that ended while it
// asked HAProxy's program.
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

// openFiles reads the configuration directory, which has to be ours or new.
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
	// Who runs HAProxy needed a first file, and gave it to us.
	if err := writeFile(p.path(formerFile), p.disk.have[configFile]); err != nil {
		return fmt.Errorf("keeping the former configuration: %w", err)
	}
	return nil
}

// firstFiles decides about the paths and names in all configurations. If there is no haproxy.cfg
// yet, it writes an empty one.
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

// openSockets prepares exchanges with HAProxy. An External one has to be there.
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

// Info returns the last known state of things. It never waits.
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

// Servers returns the servers that the worker has, by backend. It costs nothing while
// nothing happened. While Run starts HAProxy again, which takes seconds with a large
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

// know reads the worker if there is no belief about it. A worker that has not loaded
// our configuration yet, or that the next Apply starts, has no servers of ours.
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

// knowOrNothing reads the worker if there is no belief about it. If that fails, it is taken to have
// nothing, so that no command goes to a worker of which nothing is known.
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
	for line := range strings.Lines(string(p.disk.have[crtList].Content)) {
		line = strings.TrimSpace(line)
		file, _, _ := strings.Cut(line, " ")
		if name := filepath.Base(file); line != "" && !fixed(name) {
			out[name] = certEntry{p.disk.have[certDir+name].Content, line}
		}
	}
	return out
}

func (p *Proxy) path(rel string) string { return p.opt.Dir + "/" + rel }
