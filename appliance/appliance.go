package appliance

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"sallyport/appliance/config"
	"sallyport/appliance/page"
	"sallyport/appliance/picture"
	"sallyport/bgp"
	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/ingress/watch"
	"sallyport/routes"
	"sallyport/routes/address"
)

// Hooks connects the appliance with the program that runs it.
type Hooks struct {
	Log     *slog.Logger
	Version string
	Ready   func(status string) // called once, when the appliance is ready for the first time
	Alive   func()              // called at least every other second while the loop turns
	Leaving func(time.Duration) // called when a stop begins to drain, with the longest time that the drain takes; may be nil

	// A knock of Reload asks for the configuration file to be read again, by Load. Nil:
	// it is never read again.
	Reload <-chan os.Signal
	Load   func() (*config.Config, error)
	// Reloaded is called after the first round with the new configuration, and after a
	// file with a mistake.
	Reloaded func()
	// Level is the level of Log. It follows log.level of the file. Nil: the level does
	// not change.
	Level *slog.LevelVar

	// Notices returns further warnings for the status, one sentence each. Nil: there
	// are none.
	Notices func() []string
	// Admit tells the machine's firewall which traffic to let in and out, in addition
	// to what the configuration file needs. Nil: there is no firewall to tell.
	Admit func(Admission) error
	// VRRPUnit is the unit of systemd that runs keepalived. Empty: it is a child of this
	// process.
	VRRPUnit string
	// Upstream returns a command that runs Upstream with a socket. The sessions with the upstream
	// routers are in that process. Nil: they are in this one, and end with it.
	Upstream func(socket string) *exec.Cmd
}

// Admission lists what the machine's firewall has to let through for the clusters at
// this moment: connections to the appliance, and connections of HAProxy to others. Each
// list is sorted and has no duplicates.
type Admission struct {
	Peers    []netip.Addr     // who may connect to speak BGP
	TCP, UDP []uint16         // ports of TCP services and of QUIC
	Pods     []netip.Prefix   // the destinations of the verified routes
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
	log := hooks.Log
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

	kernel, err := routes.OpenKernel(ctx, routes.KernelConfig{
		Protocol: int(cfg.Routes.Protocol), Table: int(cfg.Routes.Table), Metric: int(cfg.Routes.Metric), Log: log,
	})
	if err != nil {
		return err
	}
	defer kernel.Close()
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
		return err
	}

	speakerConfig := bgp.Config{ASN: cfg.BGP.ASN, RouterID: cfg.BGP.RouterID, HoldTime: cfg.BGP.HoldTime, Log: log}
	nodes, err := bgp.Start(ctx, speakerConfig)
	if err != nil {
		return err
	}
	defer nodes.Stop()

	l := &loop{
		log: log, now: time.Now, speaker: nodes, kernel: kernel, proxy: proxy, alive: hooks.Alive, admit: hooks.Admit,
		pictures: picture.New(cfg.StateDir, log),
		hold:     address.Set, probe: address.Probe, chance: kernelRing{}, drains: openDrains(cfg.StateDir, bootID()), version: hooks.Version,
		atStart: cfg, load: hooks.Load, again: hooks.Reload, reloaded: hooks.Reloaded, level: hooks.Level,
	}
	leave := func() {}
	if hooks.Upstream != nil {
		routers := l.outlived(ctx, cfg, nodes, hooks, speakerConfig)
		l.speaker = routers
		leave = func() {
			if err := routers.Leave(); err != nil {
				log.Error("the routers may send clients here for a while", "err", err)
			}
		}
	}
	l.counts.histograms = newHistograms()
	l.open = func(ctx context.Context, s source, before routes.Topology) watcher {
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
				of := watcherConfig(s, kubeconfig, local.Addrs, log)
				of.OwnASN, of.Before, of.TokenFile = cfg.BGP.ASN, before, tokenFile(cfg, s.Name)
				return watch.New(of)
			})
		})
		return w
	}

	if hooks.VRRPUnit != "" && !cfg.Group.VRRP.Exists() {
		if err := address.StopUnit(ctx, hooks.VRRPUnit); err != nil {
			log.Error("a keepalived of an earlier configuration may still run", "err", err)
		}
	}
	var keepalived sync.Mutex // one at a time: the former one gives its addresses back first
	l.byVRRP = func(ctx context.Context, cfg *config.Config, not, services []netip.Addr) (vrrp, error) {
		o := vrrpOptions(cfg, not)
		o.Services = services
		o.Log, o.Unit = log, hooks.VRRPUnit
		v, err := address.NewVRRP(o)
		if err != nil {
			return nil, err
		}
		wg.Go(func() {
			keepalived.Lock()
			defer keepalived.Unlock()
			v.Run(ctx)
		})
		return v, nil
	}

	l.join = func(ctx context.Context, cfg *config.Config) (pulse, func()) {
		return newPulse(ctx, cfg, func(err error) {
			log.Error("this appliance hears no other member of its group; sallyport tries again", "err", err, "in", reopen)
		})
	}

	described := func(by func(haproxy.Info) Status) Status {
		s := by(proxy.Info())
		s.Version, s.Now, s.Started = hooks.Version, time.Now(), l.started
		s.Round.Count = l.counts.rounds.Load()
		if hooks.Notices != nil {
			s.Warnings = slices.Concat(s.Warnings, hooks.Notices())
		}
		return s
	}
	index := indexed(l.view.Load)
	status := func() Status { return described(index().status) }
	head := func() Status { return described(l.view.Load().head) }
	explain := func(what url.Values) (any, error) { return index().explain(what) }
	var taken samples
	registry := registry(&metrics{head, func() tally { return l.view.Load().tally() }, &l.counts, &taken})
	site := &page.Site{Page: (&pages{index: index, head: head, changes: &l.changes, samples: &taken}).page}
	pages := handler(site, status, head, explain, &l.changes, &taken, registry, proxy.Metrics)
	fromNetwork := http.NewServeMux()
	fromNetwork.Handle("/", pages)
	fromNetwork.Handle("POST /group/", buttons(l.view.Load, l.drains, func() { knock(l.knock) }, time.Now))
	guarded := &guard{
		next: fromNetwork, log: log, now: time.Now, wrong: map[netip.Prefix]*guesses{},
		password: func() config.Secret { return l.view.Load().settings.cfg.Status.Password },
		ready:    func() bool { return len(l.view.Load().notReady) == 0 },
	}
	answers := answering(func() []string { return l.view.Load().settings.names }, page.Secured(guarded))
	certificate := func() *tls.Certificate { return l.view.Load().settings.certificate }
	l.serve = func(at config.Status) (end func()) {
		ctx, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		wg.Go(func() {
			defer close(ended)
			if at.TLS.Exists() {
				serveStatus(ctx, at.Listen, certificate, answers, log)
			} else {
				serveStatus(ctx, at.Listen, nil, answers, log)
			}
		})
		return func() { cancel(); <-ended }
	}
	l.begin()
	l.view.Store(&view{settings: first, notReady: []string{"starting"}, config: &haproxy.Config{}})
	local := http.NewServeMux()
	local.Handle("/", pages)
	orders := control(l.view.Load, l.drains, kernel.Held, func() { knock(l.knock) }, time.Now)
	for _, path := range []string{"/drain", "/undrain", "/group"} {
		local.Handle(path, orders)
	}
	wg.Go(func() { serveControl(ctx, cfg.ControlSocket(), local, log) })
	l.drains.leaving = hooks.Leaving
	l.crashed = openQuarantine(cfg.StateDir, hooks.Version, bootID(), time.Now(), log)
	l.use(ctx, first)
	l.inherit(cfg.HAProxy.RunDir)
	// Saving ends after the loop, because the last round may still hand over a picture.
	saving, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	wg.Go(func() { l.pictures.Run(saving) })
	wg.Go(func() {
		if err := proxy.Run(ctx); err != nil && ctx.Err() == nil {
			log.Error("the supervision of HAProxy ended", "err", err)
		}
	})

	wg.Go(func() {
		taken.run(ctx, proxy.Meter().Read, func() int { return l.view.Load().tally().servers[haproxy.Open] })
	})

	alive, said := l.alive, false
	l.alive = func() {
		alive()
		l.attest(cfg.HAProxy.RunDir)
		if v := l.view.Load(); !said && len(v.notReady) == 0 {
			said = true
			log.Info("ready", "routes", len(v.want.Routes), "backends", len(v.config.Backends))
			hooks.Ready(fmt.Sprintf("%d routes, %d backends", len(v.want.Routes), len(v.config.Backends)))
		}
	}
	// A panic of the loop ends the process at once. Here it would first run what is deferred,
	// and so take down in order what has to outlive a crash.
	ended := make(chan struct{})
	go func() {
		l.run(ctx)
		close(ended)
	}()
	<-ended
	l.bequeath(cfg.HAProxy.RunDir)
	l.crashed.end()
	leave()
	return nil
}

// Holds returns in words how many connections and servers a HAProxy holds that this
// process would start; empty if the configuration leaves the start to others.
func Holds(cfg *config.Config) string {
	if cfg.HAProxy.Mode != config.Managed {
		return ""
	}
	return haproxy.Machine().Describe(cfg.HAProxy.MaxConnections)
}

// remember returns a cluster that was not watched before. Its last good picture is used
// until the API answers.
func (l *loop) remember(s source) *cluster {
	c := &cluster{name: s.Name}
	pic, err := l.pictures.Load(s.Name)
	switch {
	case err == nil:
		c.snapshot, c.known, c.pictured = pic.Snapshot, true, pic.Taken
		l.crashed.begin(s.Name, pic.Snapshot.Objects)
		l.log.Info("the last good picture is in use until the API answers", "cluster", s.Name, "taken", pic.Taken)
	case !errors.Is(err, fs.ErrNotExist):
		l.log.Warn("the last good picture cannot be loaded", "cluster", s.Name, "err", err)
	}
	// The options for reading objects come from the configuration file, not from the
	// picture.
	c.snapshot.Options, c.snapshot.Topology.HostNetwork = watcherConfig(s, nil, nil, nil).Options, s.Ingress.HostNetwork
	return c
}

// tokenFile returns where the newest token for a cluster is kept.
func tokenFile(cfg *config.Config, cluster string) string {
	return filepath.Join(cfg.StateDir, "token-"+cluster)
}

func watcherConfig(c source, kubeconfig []byte, own []netip.Addr, log *slog.Logger) watch.Config {
	publish := make([]string, len(c.Ingress.Publish))
	for i, a := range c.Ingress.Publish {
		publish[i] = a.String()
	}
	var hosts []ingress.HostRule
	for _, h := range c.Ingress.Hosts {
		hosts = append(hosts, ingress.HostRule(h))
	}
	group := string(c.Calico.APIGroup)
	if c.Calico.APIGroup == config.AutoGroup {
		group = ""
	}
	return watch.Config{
		Name: c.Name, Kubeconfig: kubeconfig, APIGroup: group, OwnAddrs: own, Publish: publish,
		Options: ingress.Options{
			Class: c.Ingress.Class, Controller: c.Ingress.Controller, WatchWithoutClass: c.Ingress.WatchWithoutClass,
			ConfigMap: c.Ingress.ConfigMap, ErrorFiles: c.Ingress.ErrorFiles, PatternFiles: c.Ingress.PatternFiles, TCPServices: c.Ingress.TCPServices,
			Namespaces: c.Ingress.Namespaces, NotNamespaces: c.Ingress.NotNamespaces, NamespaceSelector: c.Ingress.NamespaceSelector,
			AuthServices: c.Ingress.AuthServices, CrossNamespaceSecrets: c.Ingress.CrossNamespaceSecrets,
			OneTenant: c.Ingress.Trust == config.TrustCluster, Hosts: hosts, ReleaseAfter: c.Ingress.ReleaseAfter,
			NoSnippets: c.Ingress.NoSnippets, Snippets: c.Ingress.Snippets, Process: c.Ingress.Process,
			Limits: ingress.Limits(c.Ingress.Limits), Pools: c.pools,
		},
		HostNetwork: c.Ingress.HostNetwork, Bounds: c.Pools, ASN: c.BGP.ASN, Reflectors: c.BGP.RouteReflectors, Log: log,
	}
}
