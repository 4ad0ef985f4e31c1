package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"sallyport/test/faults"
	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// suites returns all suites. If the night is longer than 0, a group of two by BGP has it as a scenario.
func suites(soak, dark time.Duration) []suite {
	main := suite{
		name:    "one",
		options: world.Options{Name: "chaos", Workers: 2},
		asn:     65000,
		target:  "192.168.50.21",
		scenarios: []scenario{
			{1, "rolling restart of a Deployment", bounds{gets: true, posts: true}, rollingRestart},
			{2, "scale 6 to 60 and back", bounds{gets: true, posts: true}, scale},
			{3, "drain a node", bounds{gets: true, posts: true}, drain},
			{4, "20 reloads", bounds{gets: true, posts: true, lasting: true}, reloads},
			{5, "kill -9 of the appliance, back after 5 s", bounds{gets: true}, killAppliance},
			{6, "upgrade of the appliance", bounds{gets: true, posts: true, lasting: true}, upgrade},
			{7, "kill -9 of HAProxy's worker, then of its master", bounds{gap: time.Second}, killHAProxy},
			{8, "calico-node restarts, on one node, then on all", bounds{gets: true, posts: true}, restartCalico},
			{9, "a node loses power", bounds{gets: true, slowest: 3 * time.Second}, powerLoss},
			{10, "BGP with one node is filtered", bounds{gets: true}, cutBGP},
			{11, "BGP with every node is filtered", bounds{gets: true, posts: true, lasting: true}, cutAllBGP},
			{12, "the API server is gone for 60 s, restart meanwhile", bounds{gets: true, posts: true}, apiAway},
			// After several losses BIRD waits up to 30 s before it dials again.
			{12, "reboot with an empty /run, the API server gone", bounds{gap: 35 * time.Second}, reboot},
			{13, "etcd restored from a backup, then every watch expired", bounds{gets: true, posts: true}, rewind},
			{14, "routes flushed; link down and up; a foreign route", bounds{inflicted: true}, flush},
			{15, "a block moves to another node", bounds{gets: true, posts: true}, moveBlock},
			{16, "two nodes claim a block", bounds{gets: true, posts: true, lasting: true}, claimBlock},
			{17, "a hostile peer", bounds{gets: true, posts: true, lasting: true}, hostilePeer},
			{18, "Ingresses that cannot be served", bounds{gets: true, posts: true, lasting: true}, badIngresses},
			{19, "the configuration directory is read-only, then full", bounds{gets: true}, noDisk},
			{20, fmt.Sprintf("%s of mixed churn", soak), bounds{gets: true, posts: true}, churn(soak)},
		},
	}
	some := func() (list []scenario) {
		for _, s := range main.scenarios {
			if slices.Contains([]int{1, 3, 8, 9, 17}, s.number) {
				list = append(list, s)
			}
		}
		return list
	}
	six := suite{
		name:      "ipv6",
		suffix:    ", IPv6",
		options:   world.Options{Name: "chaos", Workers: 2, IPv6: true},
		manifests: []string{"--address", "fd00:50::21"},
		asn:       65000,
		target:    "fd00:50::21",
		scenarios: some(),
	}
	external := suite{
		name:       "as",
		suffix:     ", another AS",
		options:    world.Options{Name: "chaos", Workers: 2, Mesh: true},
		config:     "bgp: {asn: 65010}",
		asn:        65010,
		unfiltered: true,
		target:     "192.168.50.21",
		scenarios:  some(),
	}
	list := append([]suite{main, six, external, gateways()}, sets()...)
	for _, router := range []world.RouterKind{world.RouterBIRD, world.RouterPlain} {
		two := group(2, router)
		if dark > 0 && router == world.RouterBIRD {
			two.scenarios = append(two.scenarios,
				scenario{39, fmt.Sprintf("a production day, for %s", dark), bounds{}, night(dark)})
		}
		list = append(list, two, group(3, router))
	}
	return list
}

// rollout waits until all pods of the Deployment are current and available.
func (s *testbed) rollout(ctx context.Context) error {
	return s.Rollout(ctx, "app")
}

func rollingRestart(ctx context.Context, s *testbed) error {
	if _, err := s.Kubectl(ctx, "rollout", "restart", "deployment/app"); err != nil {
		return err
	}
	return s.rollout(ctx)
}

func (s *testbed) scaleTo(ctx context.Context, n int) error {
	if _, err := s.Kubectl(ctx, "scale", "deployment/app", fmt.Sprintf("--replicas=%d", n)); err != nil {
		return err
	}
	s.pods = n
	if err := s.rollout(ctx); err != nil {
		return err
	}
	return s.settle(ctx)
}

func scale(ctx context.Context, s *testbed) error {
	reloads, err := s.reloads(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(s.scaleTo(ctx, 60), s.scaleTo(ctx, replicas)); err != nil {
		return err
	}
	after, err := s.reloads(ctx)
	if after != reloads {
		s.fail("%d reloads", after-reloads)
	}
	return err
}

func (s *testbed) reloads(ctx context.Context) (int, error) { return reloadsOf(ctx, s.Rig) }

// reloadsOf returns how often a member has reloaded HAProxy since its process began.
func reloadsOf(ctx context.Context, m *rig.Rig) (int, error) {
	st, err := m.Status(ctx)
	return st.HAProxy.Reloads, err
}

func drain(ctx context.Context, s *testbed) error {
	if _, err := s.Kubectl(ctx, "drain", "worker2", "--ignore-daemonsets", "--delete-emptydir-data",
		"--force"); err != nil {
		return err
	}
	err := errors.Join(s.rollout(ctx), s.settle(ctx))
	_, uncordon := s.Kubectl(ctx, "uncordon", "worker2")
	// Later scenarios need pods on each worker.
	return errors.Join(err, uncordon, rollingRestart(ctx, s))
}

// reloads adds backends with settings of their own, each of which takes a reload.
func reloads(ctx context.Context, s *testbed) error {
	before, err := s.reloads(ctx)
	if err != nil {
		return err
	}
	for i := range 20 {
		name := fmt.Sprintf("more-%d", i)
		if err := s.Apply(ctx, rig.Service("default", name, "app")+ingressOf(name, name+".local", name)); err != nil {
			return err
		}
		if _, err := s.Kubectl(ctx, "annotate", "ingress", name,
			"haproxy.org/request-set-header=X-More "+name); err != nil {
			return err
		}
		err := rig.Eventually(ctx, "a reload", func() error {
			n, err := s.reloads(ctx)
			if err == nil && n < before+i+1 {
				err = fmt.Errorf("%d reloads, not %d", n-before, i+1)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	s.backends = 21
	if err := s.settle(ctx); err != nil {
		return err
	}
	if _, err := s.Kubectl(ctx, "delete", "ingress,service", "--selector", "!nothing", "--field-selector",
		"metadata.name!=app,metadata.name!=kubernetes"); err != nil {
		return err
	}
	s.backends = 1
	return nil
}

func killAppliance(ctx context.Context, s *testbed) error {
	st, err := s.Status(ctx)
	if err != nil {
		return err
	}
	routes, err := s.observer.routes()
	if err != nil {
		return err
	}
	if err := s.Stop(syscall.SIGKILL); err != nil {
		return err
	}
	pod, err := s.Kubectl(ctx, "get", "pods", "-o", "jsonpath={.items[0].metadata.name}")
	if err != nil {
		return err
	}
	if _, err := s.Kubectl(ctx, "delete", "pod", pod, "--wait=false"); err != nil {
		return err
	}
	if err := rig.Pause(ctx, 5*time.Second); err != nil {
		return err
	}
	if now, err := s.observer.routes(); err != nil || len(now) != len(routes) {
		s.fail("%d routes of %d while it is away (%v)", len(now), len(routes), err)
	}
	mark := s.mark()
	if err := s.Start(ctx); err != nil {
		return err
	}
	began := time.Now()
	if err := s.rollout(ctx); err != nil {
		return err
	}
	err = rig.Eventually(ctx, "what was missed is applied", func() error {
		open, err := s.observer.open()
		if err == nil && len(open) != replicas {
			err = fmt.Errorf("%d servers are open", len(open))
		}
		return err
	})
	if took := time.Since(began); took > time.Second {
		s.fail("what was missed was applied after %s", took.Round(time.Millisecond))
	} else {
		s.note("what was missed was applied %s after the start", took.Round(time.Millisecond))
	}
	served := rig.Eventually(ctx, "the status shows the process of HAProxy", func() error {
		after, err := s.Status(ctx)
		switch {
		case err == nil && after.HAProxy.Pid == 0:
			err = errors.New("it shows none")
		case err == nil && after.HAProxy.Pid != st.HAProxy.Pid:
			s.fail("HAProxy is another one")
		}
		return err
	})
	if served != nil {
		return served
	}
	if s.said(mark, "route dropped") {
		s.fail("a route was dropped")
	}
	return err
}

func upgrade(ctx context.Context, s *testbed) error {
	return errors.Join(s.replaceProgram(), s.Stop(syscall.SIGTERM), s.Start(ctx))
}

// replaceProgram puts another file in the place of the appliance's program.
func (s *testbed) replaceProgram() error {
	text, err := os.ReadFile(s.Dir + "/sallyport")
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.Dir+"/sallyport.new", text, 0o700); err != nil { //nolint:gosec // a program
		return err
	}
	return os.Rename(s.Dir+"/sallyport.new", s.Dir+"/sallyport")
}

func killHAProxy(ctx context.Context, s *testbed) error {
	for _, victim := range []string{"worker", "master"} {
		st, err := s.Status(ctx)
		if err != nil {
			return err
		}
		pid := map[string]int{"worker": st.HAProxy.Worker, "master": st.HAProxy.Pid}[victim]
		if err := faults.Kill(pid); err != nil {
			return err
		}
		began := time.Now()
		err = rig.Eventually(ctx, "HAProxy serves again", func() error {
			st, err := s.Status(ctx)
			if err == nil && (st.HAProxy.Pid == pid || st.HAProxy.Worker == pid || !st.HAProxy.Running) {
				err = errors.New("it is still the old one")
			}
			if err != nil {
				return err
			}
			_, err = s.Exec(ctx, world.Client, "curl", "-sf", "--max-time", "1", "-o", "/dev/null", "-H",
				"Host: test.local", "http://192.168.50.21/")
			return err
		})
		if err != nil {
			return err
		}
		s.note("without its %s HAProxy was back within %s", victim, time.Since(began).Round(time.Millisecond))
		if err := s.settle(ctx); err != nil {
			return err
		}
	}
	return nil
}

func restartCalico(ctx context.Context, s *testbed) error {
	mark := s.mark()
	if err := s.RestartCalico(ctx, "worker1", 10*time.Second); err != nil {
		return err
	}
	if err := s.settle(ctx); err != nil {
		return err
	}
	all := make(chan error, 3)
	for _, node := range []string{"master", "worker1", "worker2"} {
		go func() { all <- s.RestartCalico(ctx, node, 10*time.Second) }()
	}
	if err := errors.Join(<-all, <-all, <-all); err != nil {
		return err
	}
	if err := s.settle(ctx); err != nil {
		return err
	}
	if s.said(mark, "state=closed") || s.said(mark, "route dropped") {
		s.fail("a server was closed or a route dropped")
	}
	return nil
}

func powerLoss(ctx context.Context, s *testbed) error {
	st, err := s.Status(ctx)
	if err != nil {
		return err
	}
	var theirs []string
	for _, b := range st.Backends {
		for _, server := range b.Servers {
			if server.Node == "worker2" {
				theirs = append(theirs, b.Name+"/"+server.Name)
			}
		}
	}
	if len(theirs) == 0 {
		return errors.New("worker2 has no pod: nothing would be lost")
	}
	if err := s.KillNode(ctx, "worker2"); err != nil {
		return err
	}
	began := time.Now()
	err = rig.Eventually(ctx, "its servers are closed", func() error {
		open, err := s.observer.open()
		for _, name := range theirs {
			if _, is := open[name]; is && err == nil {
				err = errors.New(name + " is open")
			}
		}
		return err
	})
	s.note("the dead node's servers were closed after %s", time.Since(began).Round(100*time.Millisecond))
	if took := time.Since(began); took > 12*time.Second {
		s.fail("its servers were closed after %s, more than the hold time and a keepalive",
			took.Round(100*time.Millisecond))
	}
	return errors.Join(err, s.ReviveNode(ctx, "worker2"))
}

// lost waits until the sessions with these nodes have ended.
func (s *testbed) lost(ctx context.Context, nodes ...string) error {
	return rig.Eventually(ctx, "the sessions are over", func() error {
		st, err := s.Status(ctx)
		for _, p := range st.Peers {
			for _, node := range nodes {
				if err == nil && p.Node == node && p.State == "Established" {
					err = errors.New(node + " is Established")
				}
			}
		}
		return err
	})
}

func cutBGP(ctx context.Context, s *testbed) error {
	return faults.Cut(s.Rig, world.Appliance, world.OnlyBGP, "worker1").During(ctx, func() error {
		return errors.Join(s.lost(ctx, "worker1"), rig.Pause(ctx, 3*time.Second))
	})
}

func cutAllBGP(ctx context.Context, s *testbed) error {
	nodes := []string{"master", "worker1", "worker2"}
	mark, cut := s.mark(), faults.Cut(s.Rig, world.Appliance, world.OnlyBGP, nodes...)
	if err := errors.Join(cut.Make(ctx), s.lost(ctx, nodes...), rig.Pause(ctx, 3*time.Second)); err != nil {
		return err
	}
	st, err := s.Status(ctx)
	if err != nil {
		return err
	}
	if !strings.Contains(strings.Join(st.Warnings, ";"), "every BGP session was lost at once") {
		s.fail("the status does not say it: %q", st.Warnings)
	}
	if s.said(mark, "state=closed") || s.said(mark, "route dropped") {
		s.fail("a server was closed or a route dropped")
	}
	return cut.Mend(ctx)
}

func apiAway(ctx context.Context, s *testbed) error {
	lost := faults.API(s.Rig, world.Appliance)
	if err := lost.Make(ctx); err != nil {
		return err
	}
	began := time.Now()
	err := errors.Join(rig.Pause(ctx, 15*time.Second), s.Stop(syscall.SIGKILL), s.Start(ctx))
	if err != nil {
		return err
	}
	err = rig.Eventually(ctx, "it serves from the picture", func() error {
		st, err := s.Status(ctx)
		if err == nil && !strings.Contains(strings.Join(st.NotReady, ";"), "picture") {
			err = fmt.Errorf("not ready because %q", st.NotReady)
		}
		return err
	})
	return errors.Join(err, rig.Pause(ctx, time.Until(began.Add(time.Minute))), lost.Mend(ctx))
}

// reboot ends everything on the appliance's host, and keeps only its files on disk.
func reboot(ctx context.Context, s *testbed) error {
	st, err := s.Status(ctx)
	if err != nil {
		return err
	}
	lost := faults.API(s.Rig, world.Appliance)
	if err := lost.Make(ctx); err != nil {
		return err
	}
	if err := errors.Join(s.Stop(syscall.SIGKILL), faults.Kill(st.HAProxy.Pid, st.HAProxy.Worker),
		os.RemoveAll(s.Dir+"/run")); err != nil {
		return err
	}
	if _, err := s.Exec(ctx, world.Appliance, "ip", "route", "flush", "proto", "78"); err != nil {
		return err
	}
	began := time.Now()
	if err := s.Start(ctx); err != nil {
		return err
	}
	err = rig.Eventually(ctx, "every server is open again", func() error {
		open, err := s.observer.open()
		if err == nil && len(open) != replicas {
			err = fmt.Errorf("%d servers are open", len(open))
		}
		return err
	})
	s.note("all was served again %s after the start, the API server still away",
		time.Since(began).Round(10*time.Millisecond))
	return errors.Join(err, lost.Mend(ctx))
}

// rewind restores etcd to a moment before an Ingress was made. Then it makes changes that the
// appliance misses, because the API server has lost their history.
func rewind(ctx context.Context, s *testbed) error {
	return s.rewind(ctx, rig.Service("default", "later", "app")+ingressOf("later", "later.local", "later"))
}

// rewind does so. later has the Ingress and what else the backup lacks.
func (s *testbed) rewind(ctx context.Context, later string) error {
	mark := s.mark()
	backup := s.Dir + "/etcd"
	defer os.RemoveAll(backup) //nolint:errcheck // goes with the directory
	if err := s.Backup(ctx, backup); err != nil {
		return err
	}
	if err := s.Apply(ctx, later); err != nil {
		return err
	}
	s.backends = 2
	if err := s.settle(ctx); err != nil {
		return err
	}
	if err := s.Restore(ctx, backup); err != nil {
		return err
	}
	s.backends = 1
	began := time.Now()
	if err := s.settle(ctx); err != nil {
		return err
	}
	s.note("what the backup does not have was gone %s after the API server was back",
		time.Since(began).Round(100*time.Millisecond))
	if s.said(mark, "route dropped") || s.said(mark, "backend=default_app_", "state=closed") {
		s.fail("a server was closed or a route dropped that the backup has")
	}

	return faults.API(s.Rig, world.Appliance).During(ctx, func() error {
		// So few that the added pods are removed again: the appliance never hears of them.
		return errors.Join(s.scaleUnseen(ctx, replicas+2), s.scaleUnseen(ctx, replicas), s.RestartControlPlane(ctx))
	})
}

// scaleUnseen scales while the appliance cannot reach the API server.
func (s *testbed) scaleUnseen(ctx context.Context, n int) error {
	if _, err := s.Kubectl(ctx, "scale", "deployment/app", fmt.Sprintf("--replicas=%d", n)); err != nil {
		return err
	}
	return s.rollout(ctx)
}

func flush(ctx context.Context, s *testbed) error {
	on := func(script string) error {
		_, err := s.Exec(ctx, world.Appliance, "sh", "-c", script)
		return err
	}
	repaired := func(what string) error {
		began := time.Now()
		err := rig.Eventually(ctx, what+" is repaired", func() error {
			routes, err := s.observer.routes()
			if n := len(routes[netip.Addr{}]); err == nil && n != 3 {
				err = fmt.Errorf("%d routes", n)
			}
			return err
		})
		took := time.Since(began).Round(time.Millisecond)
		s.note("%s: the routes were back after %s", what, took)
		if took > time.Second {
			s.fail("%s: the routes were back after %s", what, took)
		}
		return errors.Join(err, s.settle(ctx))
	}
	if err := errors.Join(on("ip route flush proto 78"), repaired("flushed")); err != nil {
		return err
	}
	if err := errors.Join(on("ip link set eth0 down; ip link set eth0 up"), repaired("link down and up")); err != nil {
		return err
	}
	// The kernel prefers the route with the better metric to ours.
	if err := errors.Join(on("ip route add 172.16.171.64/26 via 192.168.50.22 metric 1"),
		rig.Pause(ctx, 2*time.Second)); err != nil {
		return err
	}
	open, err := s.observer.open()
	if err != nil {
		return err
	}
	for name, a := range open {
		if strings.HasPrefix(a.String(), "172.16.171.") {
			s.fail("%s is open while a foreign route takes its packets elsewhere", name)
		}
	}
	return on("ip route del 172.16.171.64/26 via 192.168.50.22 metric 1")
}
