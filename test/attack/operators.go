package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sallyport/test/faults"
	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// operators returns the attacks by the operator of a second cluster, who may write every object in
// it. The first cluster, that of all other attacks, is victim's.
func operators() []attack {
	return []attack{
		{
			by:    "operator",
			tries: "of a second cluster sets snippets, the PROXY protocol and a log target in its ConfigMap",
			promise: "what concerns the whole process comes from the first cluster of the file, also if that one " +
				"sets nothing",
			lab: beside("", "configMap: default/defaults", setsProcess),
		},
		{
			by:      "operator",
			tries:   "of a second cluster with `trust: cluster` names a free path of the first one's host",
			promise: "clusters that trust their namespaces do not trust each other",
			lab:     beside("trust: cluster", "trust: cluster", namesFreePath),
		},
		{
			by: "operator", tries: "of a second cluster names the first one's hosts while that one is not known",
			promise: "a cluster that comes late gets its hosts back",
			lab:     beside("", "", namesHostsOfUnknown),
		},
	}
}

// configMapOfOne gives the first cluster the ConfigMap of the operator.
const configMapOfOne = "configMap: default/defaults"

// secondCluster returns the lab of a second cluster. evil has a pod there. It brings the lab up
// at the first call.
func (s *testbed) secondCluster(ctx context.Context) (*rig.Rig, error) {
	if s.two != nil {
		return s.two, nil
	}
	dir := filepath.Join(s.rig.Dir, "two")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	for _, program := range []string{"sallyport", "app"} {
		if err := os.Symlink(filepath.Join(s.rig.Dir, program), filepath.Join(dir, program)); err != nil {
			return nil, err
		}
	}
	// The manifests give the right to read what a set needs.
	cluster := rig.Cluster{Name: "two", Ingress: []string{configMapOfOne}, Keys: []string{"set: both"}}
	if err := rig.Configure(dir, "", cluster); err != nil {
		return nil, err
	}
	two, err := rig.New(ctx, dir, world.Options{Name: "attacktwo", Site: 1, Workers: 1, Progress: io.Discard})
	if err != nil {
		return nil, err
	}
	s.two = two
	return two, errors.Join(two.Lend(ctx, s.rig.Lab), two.Apply(ctx, strings.Join([]string{
		namespace("evil"), deployment("evil", "app"), rig.Service("evil", "app", "app"),
	}, "")))
}

// leave takes down the lab of the second cluster. Without a second cluster it does nothing.
func (s *testbed) leave() error {
	if s.two == nil {
		return nil
	}
	return s.two.Close()
}

// An operatorsAttack is an attack in a lab that has a second cluster.
type operatorsAttack func(ctx context.Context, s *testbed, two *lab) error

// A side is what one of two clusters is configured with: pairs of clusters[].ingress, and further keys of the
// cluster, as pairs that each end with a comma.
type side struct{ ingress, keys string }

// beside configures the second cluster beside the first one during an attack. Both get pairs of
// clusters[].ingress. The first cluster has no ConfigMap meanwhile, which is the default.
func beside(first, second string, attack operatorsAttack) labAttack {
	return besides(side{ingress: first}, side{ingress: second}, attack)
}

// besides does as beside, with further keys.
func besides(first, second side, attack operatorsAttack) labAttack {
	return func(ctx context.Context, s *testbed, r *rig.Rig) error {
		two, err := s.secondCluster(ctx)
		if err != nil {
			return err
		}
		const publish, name = "publish: [" + applianceAddr + "], ", "- {name: default, "
		change := func(text string) string {
			entry := fmt.Sprintf("- {name: two, %skubeconfig: two/kubeconfig, ingress: {%slimits: {reloads: %d}}}\n",
				second.keys, strings.TrimPrefix(second.ingress+", ", ", "), rig.NoReloadLimit)
			text = strings.Replace(text, name, name+first.keys, 1)
			text = strings.Replace(text, configMapOfOne, first.ingress, 1)
			text = strings.Replace(text, publish+", ", publish, 1) // it may be empty
			return strings.Replace(text, "haproxy: {", entry+"haproxy: {", 1)
		}
		before := s.before
		err = configured(ctx, r, change, func() error {
			home := ingressOf("evil", "home", nil, rule("home.two.test", path("/", "app")))
			served := func() error { return s.gets(ctx, "200 evil", request{host: "home.two.test"}) }
			if err := errors.Join(two.Apply(ctx, home), s.eventually(ctx, served)); err != nil {
				return fmt.Errorf("the second cluster: %w", err)
			}
			answers := s.record
			if first.ingress == configMapOfOne { // which other attacks have, too
				answers = func(ctx context.Context) error {
					return s.eventually(ctx, func() error { return s.unharmed(ctx) })
				}
			}
			if err := answers(ctx); err != nil {
				return err
			}
			return errors.Join(attack(ctx, s, &lab{two}), s.unharmed(ctx))
		})
		s.before = before
		return errors.Join(err, s.eventually(ctx, func() error { return s.unsourced(ctx) }),
			s.eventually(ctx, func() error { return s.unharmed(ctx) }))
	}
}

// unsourced returns an error as long as a cluster has a source. A cluster that loses its source has no open server for a
// moment, which comes once its API has answered to the new settings.
func (s *testbed) unsourced(ctx context.Context) error {
	now, err := s.rig.Status(ctx)
	for _, c := range now.Clusters {
		if c.Source.IsValid() {
			err = errors.Join(err, fmt.Errorf("cluster %s still has the source %s", c.Name, c.Source))
		}
	}
	return err
}

// setsProcess sets keys that concern the whole process in the ConfigMap of the second cluster, one
// after another.
func setsProcess(ctx context.Context, s *testbed, two *lab) (err error) {
	log, err := s.rig.ListenUDP(ctx, world.Client, netip.MustParseAddrPort(clientAddr+":5140"), 64)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // nothing is lost with it
	set := func(pair string) string {
		return "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {namespace: default, name: defaults}\ndata:\n  " +
			pair + "\n"
	}
	defer func() { err = errors.Join(err, two.Delete(ctx, set("a: b")), s.seen(ctx)) }()
	const target = "address:" + clientAddr + ", port:5140, facility:local0"
	for _, one := range []struct {
		key, value string
		holds      func() error
	}{
		{"frontend-config-snippet", "http-request return status 299", nil},
		{"global-config-snippet", "maxconn 1", nil},
		{"proxy-protocol", "0.0.0.0/0", func() error { return s.speaksForNobody(ctx) }},
		{"syslog-server", target, func() error { return s.logsNothing(ctx, log) }},
	} {
		changed := set(fmt.Sprintf("%s: %q", one.key, one.value))
		err := errors.Join(two.Apply(ctx, changed), s.reported(ctx, one.key), s.seen(ctx))
		if one.holds != nil {
			err = errors.Join(err, one.holds())
		}
		if err := errors.Join(err, s.unharmed(ctx)); err != nil {
			return fmt.Errorf("with %s: %w", one.key, err)
		}
	}
	return nil
}

// speaksForNobody checks that a client cannot claim the address that a guard of victim admits.
func (s *testbed) speaksForNobody(ctx context.Context) error {
	heard, err := s.hear(ctx, request{raw: "PROXY TCP4 10.99.0.1 " + applianceAddr + " 1234 80\r\n" +
		"GET /admin HTTP/1.1\r\nHost: guarded.test\r\nConnection: close\r\n\r\n"})
	if err == nil && strings.Contains(heard, " 200 ") {
		err = errors.New("a client passes a guard of the first cluster with an address that it claims")
	}
	return err
}

// logsNothing sends a request to victim, and checks that no log of it arrives.
func (s *testbed) logsNothing(ctx context.Context, log net.PacketConn) error {
	if err := s.gets(ctx, "200 victim", request{host: "plain.test", target: "/?token=of-victim"}); err != nil {
		return err
	}
	_ = log.SetReadDeadline(time.Now().Add(time.Second))
	line := make([]byte, 4096)
	if n, _, err := log.ReadFrom(line); err == nil {
		return fmt.Errorf("the log of a request goes to the second cluster: %.200s", line[:n])
	}
	return nil
}

// reported waits until the status reports a problem of the second cluster with this word.
func (s *testbed) reported(ctx context.Context, word string) error {
	return s.eventually(ctx, func() error {
		status, err := s.rig.Status(ctx)
		if err != nil {
			return err
		}
		for _, p := range status.Problems {
			if p.Cluster == "two" && strings.Contains(p.Why, word) {
				return nil
			}
		}
		return fmt.Errorf("nothing is reported about %s of the second cluster: %+v", word, status.Problems)
	})
}

// namesFreePath names a path of victim's host that victim has not, and a canary for one that it has.
func namesFreePath(ctx context.Context, s *testbed, two *lab) (err error) {
	objects := ingressOf("evil", "login", nil, rule("shop.test", path("/login", "app"))) +
		ingressOf("evil", "canary", []string{"sallyport.dev/canary-weight: 100"}, rule("plain.test", path("/", "app")))
	defer func() { err = errors.Join(err, two.Delete(ctx, objects), s.seen(ctx)) }()
	err = errors.Join(two.Apply(ctx, objects), s.seen(ctx), s.reported(ctx, "shop.test"))
	got, failed := s.ask(ctx, request{host: "shop.test", target: "/login"})
	if failed == nil && got.pod == "evil" {
		failed = errors.New("shop.test/login of the first cluster is served by the second one")
	}
	return errors.Join(err, failed)
}

// namesHostsOfUnknown starts an appliance that remembers nothing while the first cluster cannot be
// reached, and names its hosts in the second one meanwhile.
func namesHostsOfUnknown(ctx context.Context, s *testbed, two *lab) (err error) {
	r := s.rig
	objects := ingressOf("evil", "late", nil, rule("plain.test", path("/", "app")))
	defer func() { err = errors.Join(err, two.Delete(ctx, objects), s.seen(ctx)) }()
	away := faults.Cut(r, world.Appliance, world.AllTraffic, world.Master)
	if err := away.Make(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, away.Mend(ctx)) }()
	status, err := r.Status(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(two.Apply(ctx, objects), r.Stop(syscall.SIGKILL), os.RemoveAll(filepath.Join(r.Dir, "state")),
		faults.Kill(status.HAProxy.Worker, status.HAProxy.Pid), r.Start(ctx)); err != nil {
		return err
	}
	plain := request{host: "plain.test"}
	taken := func() error { return s.gets(ctx, "200 evil", plain) }
	if err := rig.Eventually(ctx, "the second cluster has the host that nobody has", taken); err != nil {
		return err
	}
	if err := errors.Join(away.Mend(ctx), r.Ready(ctx)); err != nil {
		return err
	}
	back := func() error { return s.gets(ctx, "200 victim", plain) }
	return rig.Eventually(ctx, "the first cluster has its host again", back)
}
