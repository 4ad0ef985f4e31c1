package appliance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"sallyport/appliance/config"
	"sallyport/bgp"
	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/routes"
)

// Hooks is what the program around the appliance gives it and wants to hear.
type Hooks struct {
	Log     *slog.Logger
	Version string
	Ready   func(status string) // called once, when the appliance is ready for the first time
	Alive   func()              // called at least every other second while the loop turns

	// Notices are what wants a look beside what the appliance sees, a sentence
	// each, for its status. Nil: nothing.
	Notices func() []string
	// Admit tells the machine's firewall what to let in and out beside what the
	// configuration file says. Nil: there is none to tell.
	Admit func(Admission) error
}

// Admission is what the clusters have the machine's firewall let in, and let HAProxy
// out to, at this moment. Each list is sorted, without doubles.
type Admission struct {
	Peers    []netip.Addr     // who may connect to speak BGP
	TCP, UDP []uint16         // ports of TCP services and of QUIC
	Pods     []netip.Prefix   // what the verified routes lead to
	Servers  []netip.AddrPort // servers that need no route: pods with the network of a node
	Logs     []netip.AddrPort // where HAProxy sends its log by UDP
}

func (a Admission) same(o Admission) bool {
	return slices.Equal(a.Peers, o.Peers) && slices.Equal(a.TCP, o.TCP) && slices.Equal(a.UDP, o.UDP) &&
		slices.Equal(a.Pods, o.Pods) && slices.Equal(a.Servers, o.Servers) && slices.Equal(a.Logs, o.Logs)
}

// Run is the appliance, until ctx ends. It leaves HAProxy serving and the routes
// in the kernel, for the next start to adopt.
//
// It returns an error only for what no waiting mends: no right to change routes,
// no usable HAProxy, a state directory that cannot be written. Everything else
// (a taken BGP port, an API server that does not answer, bad credentials) is
// said on the status endpoint and in the log, and tried again.
func Run(ctx context.Context, cfg *config.Config, hooks Hooks) error {
	log := hooks.Log
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return fmt.Errorf("the state directory cannot be made (key stateDir): %w", err)
	}
	base := ""
	if cfg.HAProxy.Base != "" {
		text, err := os.ReadFile(cfg.HAProxy.Base)
		if err != nil {
			return fmt.Errorf("the operator's base configuration cannot be read (key haproxy.base): %w", err)
		}
		base = string(text)
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
	proxy, err := haproxy.New(haproxy.Options{
		Mode: haproxy.Mode(cfg.HAProxy.Mode), Binary: cfg.HAProxy.Binary,
		Dir: cfg.HAProxy.Dir, RunDir: cfg.HAProxy.RunDir, MasterSocket: cfg.HAProxy.MasterSocket,
		User: cfg.HAProxy.User, Group: cfg.HAProxy.Group, MinReload: cfg.HAProxy.MinReloadInterval, Log: log,
	})
	if err != nil {
		return err
	}

	l := &loop{
		settings: settings{
			asn: cfg.BGP.ASN, retain: cfg.BGP.Retain, failStatic: cfg.BGP.FailStatic,
			bind: haproxy.Bind{HTTP: cfg.HAProxy.HTTP, HTTPS: cfg.HAProxy.HTTPS},
			tune: haproxy.Tune{Threads: cfg.HAProxy.Threads, MaxConn: cfg.HAProxy.MaxConnections, Base: base},
			peer: peerMaker(cfg),
		},
		log: log, now: time.Now, kernel: kernel, proxy: proxy, alive: hooks.Alive, admit: hooks.Admit,
		compiler: &ingress.Compiler{Taken: taken(cfg), TakenUDP: reserved(cfg)}, pictures: newPictures(cfg.StateDir, log),
	}
	l.counts.duration = newHistogram()

	l.begin()
	speaker := lateSpeaker{newLate[*bgp.Speaker]("the BGP speaker")}
	l.speaker = speaker
	wg.Go(func() {
		speaker.open(ctx, log, func() (*bgp.Speaker, error) {
			return bgp.Start(ctx, bgp.Config{
				ASN: cfg.BGP.ASN, RouterID: cfg.BGP.RouterID, Listen: listens(cfg), Port: cfg.BGP.Port,
				HoldTime: cfg.BGP.HoldTime, Log: log,
			})
		}, func(s *bgp.Speaker) {
			<-ctx.Done()
			s.Stop()
		})
	})
	for _, c := range cfg.Clusters {
		l.clusters = append(l.clusters, openCluster(ctx, &wg, c, cfg.StateDir, kernel, l.pictures, log))
	}

	status := func() Status {
		v := l.view.Load()
		if v == nil {
			v = &view{notReady: []string{"starting"}, config: &haproxy.Config{}}
		}
		s := v.status(proxy.Info())
		s.Identity, s.Version, s.Now, s.Started = cfg.Identity, hooks.Version, time.Now(), l.started
		s.Round.Count = l.counts.rounds.Load()
		if hooks.Notices != nil {
			s.Warnings = slices.Concat(s.Warnings, hooks.Notices())
		}
		return s
	}
	explain := func(cluster, namespace, name string) (ExplainStatus, bool) {
		v := l.view.Load()
		if v == nil {
			return ExplainStatus{}, false
		}
		return v.explain(cluster, namespace, name)
	}
	registry := registry(&metrics{status, &l.counts})
	wg.Go(func() {
		serveStatus(ctx, cfg.Status.Listen, answering(ownNames(cfg), handler(status, explain, registry)), log)
	})
	// It ends after the loop: the last round may hand over a picture, too.
	saving, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	wg.Go(func() { l.pictures.run(saving) })
	wg.Go(func() {
		if err := proxy.Run(ctx); err != nil && ctx.Err() == nil {
			log.Error("HAProxy is not supervised any more", "err", err)
		}
	})

	alive, said := l.alive, false
	l.alive = func() {
		alive()
		if v := l.view.Load(); !said && v != nil && len(v.notReady) == 0 {
			said = true
			log.Info("ready", "routes", len(v.want.Routes), "backends", len(v.config.Backends))
			hooks.Ready(fmt.Sprintf("%d routes, %d backends", len(v.want.Routes), len(v.config.Backends)))
		}
	}
	l.run(ctx)
	return nil
}

// listens returns the addresses where nodes may connect; none where all are
// dialled.
func listens(cfg *config.Config) []netip.Addr {
	if slices.ContainsFunc(cfg.Clusters, func(c config.Cluster) bool { return c.BGP.Mode == config.Passive }) {
		return cfg.BGP.Listen
	}
	return nil
}

// reserved returns the ports of TCP and UDP that the operator keeps for other
// programs of the machine. Whether one of them listens now says nothing: at a
// boot HAProxy may be there before sshd.
func reserved(cfg *config.Config) map[uint16]string {
	ports := map[uint16]string{}
	for _, port := range cfg.HAProxy.ReservedPorts {
		ports[port] = "another program of this machine (haproxy.reservedPorts of the configuration file)"
	}
	return ports
}

// taken returns the ports of TCP that no cluster can have, and whose they are.
func taken(cfg *config.Config) map[uint16]string {
	ports := reserved(cfg)
	ports[cfg.BGP.Port], ports[cfg.Status.Listen.Port()] = "BGP", "the status page"
	for _, a := range cfg.HAProxy.HTTP {
		ports[a.Port()] = "HTTP"
	}
	for _, a := range cfg.HAProxy.HTTPS {
		ports[a.Port()] = "HTTPS"
	}
	return ports
}

// openCluster starts watching a cluster, with its last good picture in hand
// until the API answers.
func openCluster(ctx context.Context, wg *sync.WaitGroup, c config.Cluster, stateDir string, kernel *routes.Kernel, pictures *pictures, log *slog.Logger) *cluster {
	log = log.With("cluster", c.Name)
	snapshot, taken, err := pictures.load(c.Name)
	before := snapshot.Topology
	w := lateWatcher{newLate[*ingress.Watcher]("the watcher of cluster " + c.Name)}
	wg.Go(func() {
		w.open(ctx, log, func() (*ingress.Watcher, error) {
			kubeconfig, err := c.Kubeconfig.Read()
			if err != nil {
				return nil, err
			}
			local, err := kernel.Local()
			if err != nil {
				return nil, err
			}
			of := watcherConfig(c, kubeconfig, local.Addrs, log)
			of.Before, of.TokenFile = before, filepath.Join(stateDir, "token-"+c.Name)
			return ingress.NewWatcher(of)
		}, func(w *ingress.Watcher) { w.Run(ctx) })
	})
	opened := &cluster{name: c.Name, watcher: w}
	// How the objects are read is the configuration file's to say, not the picture's.
	snapshot.Options, snapshot.Topology.HostNetwork = watcherConfig(c, nil, nil, log).Options, c.Ingress.HostNetwork
	opened.snapshot.Options = snapshot.Options
	switch {
	case err == nil:
		opened.snapshot, opened.known, opened.pictured = snapshot, true, taken
		log.Info("last good picture loaded, used until the API answers", "taken", taken)
	case !errors.Is(err, fs.ErrNotExist):
		log.Warn("no last good picture", "err", err)
	}
	return opened
}

func watcherConfig(c config.Cluster, kubeconfig []byte, own []netip.Addr, log *slog.Logger) ingress.ClusterConfig {
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
	return ingress.ClusterConfig{
		Name: c.Name, Kubeconfig: kubeconfig, APIGroup: group, OwnAddrs: own, Publish: publish,
		Options: ingress.Options{
			Class: c.Ingress.Class, Controller: c.Ingress.Controller, WatchWithoutClass: c.Ingress.WatchWithoutClass,
			ConfigMap: c.Ingress.ConfigMap, ErrorFiles: c.Ingress.ErrorFiles, PatternFiles: c.Ingress.PatternFiles, TCPServices: c.Ingress.TCPServices,
			Namespaces: c.Ingress.Namespaces, NotNamespaces: c.Ingress.NotNamespaces, NamespaceSelector: c.Ingress.NamespaceSelector,
			AuthServices: c.Ingress.AuthServices, CrossNamespaceSecrets: c.Ingress.CrossNamespaceSecrets, OneTenant: c.Ingress.Trust == config.TrustCluster, NoSnippets: c.Ingress.NoSnippets, Hosts: hosts,
			Limits: ingress.Limits(c.Ingress.Limits),
		},
		HostNetwork: c.Ingress.HostNetwork, Bounds: c.Pools, ASN: c.BGP.ASN, Reflectors: c.BGP.RouteReflectors, Log: log,
	}
}

// peerMaker joins what the config file says of a cluster's sessions with what
// its API says of a node.
func peerMaker(cfg *config.Config) func(string, routes.Node, netip.Addr) bgp.Peer {
	peering := map[string]config.Peering{}
	for _, c := range cfg.Clusters {
		peering[c.Name] = c.BGP
	}
	return func(cluster string, n routes.Node, addr netip.Addr) bgp.Peer {
		p := peering[cluster]
		var local netip.Addr // as the BGPPeers name us; any, where the file does not say
		for _, a := range cfg.BGP.Listen {
			if !local.IsValid() && !a.IsUnspecified() && a.Is4() == addr.Is4() && p.Mode == config.Active {
				local = a
			}
		}
		return bgp.Peer{
			Cluster: cluster, Node: n.Name, Addr: addr, Local: local, ASN: n.ASN, Password: bgp.Secret(p.Password.Reveal()),
			TTLSecurity: p.TTLSecurity, Active: p.Mode == config.Active, Port: p.Port, PrefixLimit: p.PrefixLimit,
		}
	}
}
