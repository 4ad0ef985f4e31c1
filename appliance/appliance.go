package appliance

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"time"

	"sallyport/appliance/config"
	"sallyport/appliance/status"
	"sallyport/haproxy"
)

// Hooks connects the appliance with the program that runs it.
type Hooks struct {
	Log     *slog.Logger
	Version string
	Ready   func(status string) // called once, when the appliance is ready for the first time
	Alive   func()              // called at least every other second while the loop turns
	// called when a stop begins to drain, with the longest time that the drain takes; may be nil
	Leaving func(time.Duration)

	// A knock of Reload asks for the configuration file to be read again, by Load. If it is nil,
	// the file is never read again.
	Reload <-chan os.Signal
	Load   func() (*config.Config, error)
	// Reloaded is called after the first round with the new configuration, and after a
	// file with a mistake.
	Reloaded func()
	// Level is the level of Log. It follows log.level of the file. If it is nil, the level does not
	// change.
	Level *slog.LevelVar

	// Notices returns further warnings for the status, one sentence each. It may be nil.
	Notices func() []string
	// Admit tells the machine's firewall which traffic to let in and out, in addition to the
	// traffic that the configuration file implies. It is nil if there is no firewall to configure.
	Admit func(Admission) error
	// VRRPUnit is the unit of systemd that runs keepalived. If it is empty, keepalived is a child
	// of this process.
	VRRPUnit string
	// Upstream returns a command that runs Upstream with a socket. The sessions with the upstream
	// routers are in that process. If it is nil, they are in this process, and end with it.
	Upstream func(socket string) *exec.Cmd
}

// Admission lists the connections that the machine's firewall has to let through for the clusters
// at this moment: those to the appliance, and those that HAProxy opens. Each list is sorted and has
// no duplicates.
type Admission struct {
	Peers    []netip.Addr   // who may connect to speak BGP
	TCP, UDP []uint16       // ports of TCP services and of QUIC
	Pods     []netip.Prefix // the destinations of the verified routes in the main table
	// Sourced are those of the routes in the tables of sources, by the source.
	Sourced  map[netip.Addr][]netip.Prefix
	Servers  []netip.AddrPort // servers that need no route: pods with the network of a node
	Logs     []netip.AddrPort // where HAProxy sends its log by UDP
	Services []netip.AddrPort // TCP ports of Services at addresses of their own
}

// Run runs the appliance until ctx ends. HAProxy then goes on serving, and the routes
// stay in the kernel for the next start to adopt.
//
// Run returns an error only if waiting cannot help: no right to change routes, no
// usable HAProxy, a state directory that cannot be written. Every other failure (a BGP
// port in use, an API server that does not answer, bad credentials) is reported on the
// status endpoint and in the log, and retried.
func Run(ctx context.Context, cfg *config.Config, hooks Hooks) error {
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return fmt.Errorf("the state directory cannot be created (key stateDir): %w", err)
	}
	first, err := settingsOf(cfg)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e, err := openEdges(ctx, cfg, hooks.Log)
	if err != nil {
		return err
	}
	defer e.close()

	l, leave := newLoop(ctx, cfg, hooks, e, &wg)
	l.begin()
	l.view.Store(&status.View{Settings: first.shown(), NotReady: []string{"starting"}, Config: &haproxy.Config{}})
	answers := newEndpoints(l, e, hooks)
	l.serve = func(at config.Status) (end func()) { return answers.serve(ctx, at, &wg) }
	local := answers.local()
	wg.Go(func() { serveControl(ctx, cfg.ControlSocket(), local, hooks.Log) })
	l.crashed = openQuarantine(cfg.StateDir, hooks.Version, bootID(), time.Now(), hooks.Log)
	l.use(ctx, first)
	l.membership.inherit(cfg.HAProxy.RunDir)
	// Saving ends after the loop, because the last round may still hand over a picture.
	saving, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	wg.Go(func() { l.pictures.Run(saving) })
	wg.Go(func() { e.supervise(ctx, hooks.Log) })
	wg.Go(func() { answers.sample(ctx) })
	l.alive = l.readiness(cfg, hooks)
	// A panic of the loop ends the process at once. In this goroutine it would first run the
	// deferred functions, and they stop processes that have to outlive a crash.
	ended := make(chan struct{})
	go func() {
		l.run(ctx)
		close(ended)
	}()
	<-ended
	l.membership.bequeath(cfg.HAProxy.RunDir)
	l.crashed.end()
	leave()
	return nil
}

// readiness returns the function that the loop calls after each knock or tick. It calls Hooks.Ready
// once.
func (l *loop) readiness(cfg *config.Config, hooks Hooks) func() {
	said := false
	return func() {
		hooks.Alive()
		l.membership.attest(cfg.HAProxy.RunDir)
		if v := l.view.Load(); !said && len(v.NotReady) == 0 {
			said = true
			l.log.Info("ready", "routes", len(v.Want.Routes), "backends", len(v.Config.Backends))
			hooks.Ready(fmt.Sprintf("%d routes, %d backends", len(v.Want.Routes), len(v.Config.Backends)))
		}
	}
}

// Holds returns in words how many connections and servers HAProxy can hold if this process starts
// it. It returns "" if the configuration leaves the start of HAProxy to another program.
func Holds(cfg *config.Config) string {
	if cfg.HAProxy.Mode != config.Managed {
		return ""
	}
	return haproxy.Machine().Describe(cfg.HAProxy.MaxConnections)
}
