package main

import (
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// A realLab is a lab whose nodes run Calico itself, with an appliance that serves four pods as
// test.local.
type realLab struct {
	*rig.Rig
	t *testing.T
}

func newRealLab(t *testing.T, opts world.Options, manifests ...string) realLab {
	t.Helper()
	dir := t.TempDir()
	opts.Name, opts.Workers, opts.Calico, opts.Progress = fmt.Sprintf("real%d", os.Getpid()%10_000_000), 2, world.Real,
		t.Output()
	if err := rig.Build(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if err := rig.Configure(dir, "", rig.Cluster{Pools: `172.16.0.0/16, "fd00:172:16::/48"`}); err != nil {
		t.Fatal(err)
	}
	r, err := rig.New(t.Context(), dir, opts, manifests...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(r.LogFile())
			t.Logf("log of the appliance:\n%s", log)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if err := (lab{name: opts.Name}).gone(); err != nil {
			t.Error(err)
		}
		if mounts, err := os.ReadFile("/proc/mounts"); err != nil ||
			strings.Contains(string(mounts), filepath.Join(world.Root, opts.Name)) {
			t.Errorf("left behind: mounts (%v)", err)
		}
	})
	app := rig.App{Name: "app", Replicas: 4}.Manifest() + rig.Service("default", "app", "app") +
		"---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: app}\nspec:\n" +
		"  ingressClassName: haproxy\n  rules:\n" +
		"  - host: test.local\n" +
		"    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: app, port: {name: web}}}}]}\n"
	for _, do := range []func() error{
		func() error { return r.ClaimBlocks(t.Context(), "worker1") },
		func() error { return r.Apply(t.Context(), app) },
		func() error { return r.Start(t.Context()) },
		func() error { return r.Ready(t.Context()) },
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	return realLab{r, t}
}

func (l realLab) eventually(what string, ask func() error) {
	l.t.Helper()
	if err := rig.Eventually(l.t.Context(), what, ask); err != nil {
		l.t.Fatal(err)
	}
}

// established waits until each node has a session of the family, of this name in BIRD.
func (l realLab) established(family int, protocol string) {
	l.t.Helper()
	l.eventually(protocol+" is established on each node", func() error {
		for _, node := range []string{world.Master, "worker1", "worker2"} {
			out, err := l.BIRD(l.t.Context(), node, family, "show", "protocols", protocol)
			if err != nil {
				return fmt.Errorf("%s: %w", node, err)
			}
			if !strings.Contains(out, "Established") {
				return fmt.Errorf("%s: %q", node, out)
			}
		}
		return nil
	})
}

// answered waits until all four pods answer the client at this address of the appliance.
func (l realLab) answered(address string) {
	l.t.Helper()
	to := url.URL{Scheme: "http", Host: address, Path: "/"}
	l.eventually("four pods answer at "+to.String(), func() error {
		var pods []string
		for range 8 {
			pod, err := l.Exec(l.t.Context(), world.Client, "curl", "-sf", "--max-time", "5", "-o", "/dev/null", "-w",
				"%header{x-pod}", "-H", "Host: test.local", to.String())
			if err != nil {
				return err
			}
			pods = append(pods, pod)
		}
		slices.Sort(pods)
		if pods = slices.Compact(pods); len(pods) != 4 {
			return fmt.Errorf("%q answer", pods)
		}
		return nil
	})
}

// keeps checks that the node has the blocks that ClaimBlocks gave it, that its pods have addresses of
// them, and that Calico has claimed no other.
func (l realLab) keeps(node string) {
	l.t.Helper()
	s, err := l.Lab.Status(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	h, _ := l.Host(node)
	got := s.Hosts[slices.IndexFunc(s.Hosts, func(h world.HostStatus) bool { return h.Name == node })].Blocks
	want := slices.DeleteFunc(slices.Clone(h.Blocks), func(b netip.Prefix) bool { return b.Addr().Is4() && s.IPv6Only })
	if !slices.Equal(got, want) {
		l.t.Errorf("%s has blocks %v, want %v", node, got, want)
	}
	out, err := l.Kubectl(l.t.Context(), "get", "pods", "--field-selector", "spec.nodeName="+node, "-o",
		"jsonpath={.items[*].status.podIPs[*].ip}")
	if err != nil || out == "" {
		l.t.Fatalf("addresses of pods on %s: %q, %v", node, out, err)
	}
	for addr := range strings.FieldsSeq(out) {
		if !slices.ContainsFunc(want, func(b netip.Prefix) bool { return b.Contains(netip.MustParseAddr(addr)) }) {
			l.t.Errorf("a pod on %s has %s, want an address of %v", node, addr, want)
		}
	}
}

// released waits until Calico has released the blocks of a node.
func (l realLab) released(node string) {
	l.t.Helper()
	l.eventually("the blocks of "+node+" are released", func() error {
		out, err := l.Kubectl(l.t.Context(), "get", "blockaffinities.crd.projectcalico.org", "-o", "name")
		if err == nil && strings.Contains(out, "/"+node+"-") {
			err = fmt.Errorf("there are %q", out)
		}
		return err
	})
}

// comesBack kills a part of Calico, and waits until it runs again.
func (l realLab) comesBack(part string) {
	l.t.Helper()
	pid := func() (pid int, err error) {
		text, err := os.ReadFile(filepath.Join(l.Lab.Dir(), "proc", part))
		if err == nil {
			_, err = fmt.Sscan(string(text), &pid)
		}
		return pid, err
	}
	before, err := pid()
	if err == nil {
		err = syscall.Kill(before, syscall.SIGKILL)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	l.eventually(part+" runs again", func() error {
		now, err := pid()
		if err == nil && now == before {
			err = fmt.Errorf("the last one was process %d", before)
		}
		return err
	})
}

// calicoctl runs calicoctl.
func (l realLab) calicoctl(args ...string) string {
	l.t.Helper()
	record, err := world.Read(l.Name())
	if err != nil {
		l.t.Fatal(err)
	}
	cmd, err := record.Calicoctl(l.t.Context(), l.t.Output(), args...)
	if err != nil {
		l.t.Fatal(err)
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		l.t.Fatalf("calicoctl %q: %v: %s", args, err, out)
	}
	return string(out)
}

func TestPodsOfRealCalicoAnswerThroughTheAppliance(t *testing.T) {
	l := newRealLab(t, world.Options{IPv6: true}, "--address", "fd00:50::21")
	l.established(4, "Global_192_168_50_21")
	l.established(6, "Global_fd00_50__21")
	l.answered("192.168.50.21")
	l.answered("[fd00:50::21]")
	l.keeps("worker1")

	l.comesBack("bird-worker2")
	l.established(4, "Global_192_168_50_21")
	if err := l.RestartCalico(t.Context(), "worker2", 0); err != nil {
		t.Fatal(err)
	}
	l.established(4, "Global_192_168_50_21")
	if err := l.RemoveNode(t.Context(), "worker1"); err != nil {
		t.Fatal(err)
	}
	l.answered("192.168.50.21")
	l.released("worker1")
	l.eventually("Calico's records agree", func() error { // an address may be released after its node
		if out := l.calicoctl("ipam", "check"); !strings.Contains(out, "found 0 problems") {
			return fmt.Errorf("calicoctl ipam check:\n%s", out)
		}
		return nil
	})
}

func TestAClusterOfRealCalicoCanHaveIPv6Alone(t *testing.T) {
	l := newRealLab(t, world.Options{IPv6Only: true}, "--address", "fd00:50::21")
	l.established(6, "Global_fd00_50__21")
	l.answered("192.168.50.21")
	l.keeps("worker1")
}

func TestAnOptionThatOneCalicoLacksIsRefused(t *testing.T) {
	l := build(t)
	for _, flag := range []string{"--bare", "--host-local", "--bird=2"} {
		l.refuse(t, "needs the stand-in for Calico", "up", "--calico", "real", flag)
	}
	l.refuse(t, "needs real Calico", "up", "--ipv6-only")
	l.refuse(t, "want stand-in or real", "up", "--calico", "nonsense")
}
