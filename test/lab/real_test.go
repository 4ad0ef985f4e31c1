package main

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// answered returns the pods that answer requests from the client, sorted.
func answered(t *testing.T, r *rig.Rig, requests int, address string) []string {
	t.Helper()
	var pods []string
	for range requests {
		to := url.URL{Scheme: "http", Host: address, Path: "/"}
		pod, err := r.Exec(t.Context(), world.Client, "curl", "-sf", "--max-time", "5", "-o", "/dev/null", "-w", "%header{x-pod}", "-H", "Host: test.local", to.String())
		if err != nil {
			t.Log(err)
			continue
		}
		pods = append(pods, pod)
	}
	slices.Sort(pods)
	return slices.Compact(pods)
}

// established returns an error unless the node has a session with the appliance in each
// family.
func established(t *testing.T, r *rig.Rig, node string) error {
	t.Helper()
	for family, protocol := range map[int]string{4: "Global_192_168_50_21", 6: "Global_fd00_50__21"} {
		out, err := r.BIRD(t.Context(), node, family, "show", "protocols", protocol)
		if err != nil || !strings.Contains(out, "Established") {
			return fmt.Errorf("%s: %q (%v)", node, out, err)
		}
	}
	return nil
}

func TestPodsOfRealCalicoAnswerThroughTheAppliance(t *testing.T) {
	dir := t.TempDir()
	if err := rig.Build(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if err := rig.Configure(dir, "", rig.Cluster{Pools: `172.16.0.0/16, "fd00:172:16::/48"`}); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("real%d", os.Getpid()%10_000_000)
	r, err := rig.New(t.Context(), dir, world.Options{Name: name, Workers: 2, IPv6: true, Calico: world.Real, Progress: t.Output()}, "--address", "fd00:50::21")
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
		if err := (lab{name: name}).gone(); err != nil {
			t.Error(err)
		}
		if mounts, err := os.ReadFile("/proc/mounts"); err != nil || strings.Contains(string(mounts), filepath.Join(world.Root, name)) {
			t.Errorf("left behind: mounts (%v)", err)
		}
	})
	app := rig.App{Name: "app", Replicas: 4}.Manifest() + rig.Service("default", "app", "app") +
		"---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: app}\nspec:\n  ingressClassName: haproxy\n  rules:\n" +
		"  - host: test.local\n    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: app, port: {name: web}}}}]}\n"
	for _, do := range []func() error{
		func() error { return r.Apply(t.Context(), app) },
		func() error { return r.Start(t.Context()) },
		func() error { return r.Ready(t.Context()) },
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	eventually := func(what string, ask func() error) {
		t.Helper()
		if err := rig.Eventually(t.Context(), what, ask); err != nil {
			t.Fatal(err)
		}
	}
	allEstablished := func() error {
		for _, node := range []string{"master", "worker1", "worker2"} {
			if err := established(t, r, node); err != nil {
				return err
			}
		}
		return nil
	}
	answers := func(n int, address string) func() error {
		return func() error {
			if pods := answered(t, r, 2*n, address); len(pods) != n {
				return fmt.Errorf("%q answer, want %d pods", pods, n)
			}
			return nil
		}
	}
	eventually("three sessions of each family are established", allEstablished)
	eventually("four pods answer", answers(4, "192.168.50.21"))
	eventually("four pods answer on IPv6", answers(4, "[fd00:50::21]"))

	if err := r.RestartCalico(t.Context(), "worker2", 0); err != nil {
		t.Fatal(err)
	}
	eventually("the restarted node's sessions are established again", allEstablished)
	if err := r.RemoveNode(t.Context(), "worker1"); err != nil {
		t.Fatal(err)
	}
	eventually("all pods answer from the other node", answers(4, "192.168.50.21"))
	eventually("the blocks of the node that left are released", func() error {
		s, err := r.Kubectl(t.Context(), "get", "blockaffinities.crd.projectcalico.org", "-o", "name")
		if err == nil && strings.Contains(s, "worker1") {
			err = fmt.Errorf("there are %q", s)
		}
		return err
	})
	calicoctl, err := calicoctl(t, r)
	if err != nil || !strings.Contains(calicoctl, "found 0 problems") {
		t.Errorf("calicoctl ipam check (%v):\n%s", err, calicoctl)
	}
}

// calicoctl lets Calico check its own allocations.
func calicoctl(t *testing.T, r *rig.Rig) (string, error) {
	t.Helper()
	record, err := world.Read(r.Name())
	if err != nil {
		return "", err
	}
	cmd, err := record.Calicoctl(t.Context(), t.Output(), "ipam", "check")
	if err != nil {
		return "", err
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestWhatOnlyTheStandInCanDoIsRefused(t *testing.T) {
	l := build(t)
	for _, flag := range []string{"--bare", "--host-local", "--bird=2"} {
		l.refuse(t, "needs the stand-in for Calico", "up", "--calico", "real", flag)
	}
	l.refuse(t, "want stand-in or real", "up", "--calico", "nonsense")
}
