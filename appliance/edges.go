package appliance

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"time"

	"sallyport/appliance/config"
	"sallyport/appliance/picture"
	"sallyport/bgp"
	"sallyport/haproxy"
	"sallyport/ingress/watch"
	"sallyport/routes"
	"sallyport/routes/address"
)

// edges are what the loop reads and changes outside this process.
type edges struct {
	kernel   *routes.Kernel
	proxy    *haproxy.Proxy
	nodes    *bgp.Speaker
	sessions bgp.Config // of nodes
}

// openEdges opens the kernel, HAProxy and the BGP speaker.
func openEdges(ctx context.Context, cfg *config.Config, log *slog.Logger) (*edges, error) {
	kernel, err := routes.OpenKernel(ctx, routes.KernelConfig{
		Protocol: int(cfg.Routes.Protocol), Table: int(cfg.Routes.Table), Metric: int(cfg.Routes.Metric), Log: log,
	})
	if err != nil {
		return nil, err
	}
	var stdout *os.File
	if cfg.HAProxy.AccessLog.Stdout {
		stdout = os.Stdout
	}
	proxy, err := haproxy.New(haproxy.Options{
		Stdout: stdout, Mode: haproxy.Mode(cfg.HAProxy.Mode), Binary: cfg.HAProxy.Binary,
		Dir: cfg.HAProxy.Dir, RunDir: cfg.HAProxy.RunDir, MasterSocket: cfg.HAProxy.MasterSocket,
		User: cfg.HAProxy.User, Group: cfg.HAProxy.Group, MinReload: cfg.HAProxy.MinReloadInterval, Log: log,
	})
	if err != nil {
		kernel.Close()
		return nil, err
	}
	sessions := bgp.Config{ASN: cfg.BGP.ASN, RouterID: cfg.BGP.RouterID, HoldTime: cfg.BGP.HoldTime, Log: log}
	nodes, err := bgp.Start(ctx, sessions)
	if err != nil {
		kernel.Close()
		return nil, err
	}
	return &edges{kernel: kernel, proxy: proxy, nodes: nodes, sessions: sessions}, nil
}

// close ends the BGP sessions and closes the kernel's sockets. HAProxy goes on serving.
func (e *edges) close() {
	e.nodes.Stop()
	e.kernel.Close()
}

// supervise looks after HAProxy until ctx ends.
func (e *edges) supervise(ctx context.Context, log *slog.Logger) {
	if err := e.proxy.Run(ctx); err != nil && ctx.Err() == nil {
		log.Error("the supervision of HAProxy ended", "err", err)
	}
}

// newLoop returns a loop with its edges, and a function to be called after the loop has ended. wg
// counts the goroutines that run beside the loop.
func newLoop(
	ctx context.Context, cfg *config.Config, hooks Hooks, e *edges, wg *sync.WaitGroup,
) (l *loop, leave func()) {
	log := hooks.Log
	if hooks.VRRPUnit != "" && !cfg.Group.VRRP.Exists() {
		if err := address.StopUnit(ctx, hooks.VRRPUnit); err != nil {
			log.Error("a keepalived of an earlier configuration may still run", "err", err)
		}
	}
	drains := openDrains(cfg.StateDir, bootID())
	drains.leaving = hooks.Leaving
	retired, err := openRetired(cfg.StateDir)
	if err != nil {
		log.Error("clusters that were drained serve again; repeat sallyport drain --cluster", "err", err)
	}
	l = &loop{
		log: log, now: time.Now, speaker: e.nodes, kernel: e.kernel, proxy: e.proxy,
		firewall: firewall{admit: hooks.Admit},
		membership: membership{
			version: hooks.Version, loopback: loopback{hold: address.Set}, probe: address.Probe, chance: kernelRing{},
			byVRRP: keepalived(hooks, wg), join: joinOf(log), drains: drains,
		},
		follower: follower{
			atStart: cfg, load: hooks.Load, again: hooks.Reload, reloaded: hooks.Reloaded, level: hooks.Level,
			open: opener(cfg, e.kernel, log, wg), pictures: picture.New(cfg.StateDir, log),
			retired: retired,
		},
	}
	l.counts.Measure()
	if hooks.Upstream == nil {
		return l, func() {}
	}
	routers := l.outlived(ctx, cfg, e.nodes, hooks, e.sessions)
	l.speaker = routers
	return l, func() {
		if err := routers.Leave(); err != nil {
			log.Error("the routers may send clients here for a while", "err", err)
		}
	}
}

// opener returns a function that opens a watcher until its context ends.
func opener(
	cfg *config.Config, kernel *routes.Kernel, log *slog.Logger, wg *sync.WaitGroup,
) func(context.Context, source, routes.Topology) watcher {
	return func(ctx context.Context, s source, before routes.Topology) watcher {
		w := newLateWatcher(s.Name)
		log := log.With("cluster", s.Name)
		wg.Go(func() {
			w.run(ctx, log, func() (*watch.Watcher, error) {
				kubeconfig, err := s.Cluster.Kubeconfig.Read()
				if err != nil {
					return nil, err
				}
				local, err := kernel.Local()
				if err != nil {
					return nil, err
				}
				of := WatcherConfig(cfg, &s.Cluster, s.pools, kubeconfig, local.Addrs, log)
				of.Before = before
				return watch.New(of)
			})
		})
		return w
	}
}

// keepalived returns a function that runs VRRP until its context ends. Only one VRRP runs at a
// time: the previous one gives up its addresses first.
func keepalived(
	hooks Hooks, wg *sync.WaitGroup,
) func(ctx context.Context, cfg *config.Config, not, services []netip.Addr) (vrrp, error) {
	var one sync.Mutex
	return func(ctx context.Context, cfg *config.Config, not, services []netip.Addr) (vrrp, error) {
		o := vrrpOptions(cfg, not)
		o.Services = services
		o.Log, o.Unit = hooks.Log, hooks.VRRPUnit
		v, err := address.NewVRRP(o)
		if err != nil {
			return nil, err
		}
		wg.Go(func() {
			one.Lock()
			defer one.Unlock()
			v.Run(ctx)
		})
		return v, nil
	}
}

// joinOf returns a function that opens the heartbeat until its context ends.
func joinOf(log *slog.Logger) func(context.Context, *config.Config) (pulse, func()) {
	return func(ctx context.Context, cfg *config.Config) (pulse, func()) {
		return newPulse(ctx, cfg, func(err error) {
			log.Error("this appliance hears no other member of its group; sallyport tries again", "err", err, "in",
				reopen)
		})
	}
}
