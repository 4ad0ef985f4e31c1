package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

func TestNodesThatSpeakWithBIRD2AreServedAsAnyOther(t *testing.T) {
	beside(t, short)
	r := newTestbed(t, world.Options{Name: "bird2", Workers: 2, Bird: 2}, settings{})
	if out, err := r.BIRD(t.Context(), "worker1", 4, "show", "status"); err != nil ||
		!strings.Contains(out, "BIRD 2.") {
		t.Fatalf("worker1 speaks with %q (%v), want BIRD 2", out, err)
	}
	r.apply(application("app", 4) + ingress("app", "", "test.local / Prefix app"))
	r.start()
	r.ready()
	r.peered("master", "worker1", "worker2")
	r.routed(bothRoutes)
	r.answeredBy("http://test.local/", 4)
	r.outlives("worker1")
	r.answeredBy("http://test.local/", 4)
}

// reflect makes worker1 a route reflector as Calico's documents describe it: every node peers with
// it. The manifests make it the only node that peers with the appliance.
//
// worker1 waits for the nodes to dial. Calico 3.28 has both ends dial, and two BIRDs that dial at the
// same moment close each other's connection: on a busy machine for minutes.
func (r *testbed) reflect() {
	r.t.Helper()
	_, err := r.Exec(r.t.Context(), "worker1", "nft",
		"add table inet waits; add chain inet waits out { type filter hook output priority 0; }; "+
			"add rule inet waits out ip daddr { 192.168.50.22, 192.168.50.24 } tcp dport 179 reject with tcp reset")
	r.must(err)
	r.kubectl("annotate", "node", "worker1", "projectcalico.org/RouteReflectorClusterID=244.0.0.1")
	r.kubectl("label", "node", "worker1", "route-reflector=true")
	r.apply(`
apiVersion: crd.projectcalico.org/v1
kind: BGPPeer
metadata: {name: reflectors}
spec: {nodeSelector: all(), peerSelector: route-reflector == 'true'}
`)
}

// patchPeer changes the BGPPeer in the manifests, which names the appliance.
func (r *testbed) patchPeer(patch string) {
	r.t.Helper()
	r.kubectl("patch", "bgppeer", "sallyport-192-168-50-21", "--type=merge", "-p", patch)
}

func TestAReflectorBringsAllBlocksButNotTheWayToThem(t *testing.T) {
	beside(t, short)
	r := newTestbed(t, world.Options{Name: "reflect", Workers: 2},
		settings{manifests: []string{"--reflectors", "route-reflector == 'true'"}})
	r.reflect()
	r.apply(application("app", 4) + ingress("app", "", "test.local / Prefix app"))
	r.start()

	r.sub("one session brings all blocks, each with its owner's next hop", func(_ *testing.T, r *testbed) {
		r.routed(bothRoutes)
		r.peered("worker1")
		r.answeredBy("http://test.local/", 4)
	})
	r.sub("a restart of the appliance changes nothing", func(t *testing.T, r *testbed) {
		r.end(syscall.SIGTERM)
		said := len(r.log())
		r.start()
		r.peered("worker1")
		r.ready()
		r.answeredBy("http://test.local/", 4)
		if log := r.log()[said:]; strings.Contains(log, "state=closed") || strings.Contains(log, "route dropped") ||
			strings.Contains(log, "route added") {
			t.Errorf("the log tells of servers closed or routes changed:\n%s", log)
		}
	})
	r.sub("then, with itself as the next hop, it is refused what is not its own", func(t *testing.T, r *testbed) {
		r.patchPeer(`{"spec":{"nextHopMode":"Self"}}`)
		r.routed([]string{"172.16.171.64/26 via 192.168.50.23"})
		r.refuses(map[string]string{"172.16.189.64/26": "bad-next-hop"}, "worker1")
		for range 8 {
			if answer, err := r.get("http://test.local/"); err != nil || answer.Node != "worker1" {
				t.Errorf("answer %d by %q (%v), want one from worker1", answer.Code, answer.Node, err)
			}
		}
		r.patchPeer(`{"spec":{"nextHopMode":null}}`)
		r.routed(bothRoutes)
		r.answeredBy("http://test.local/", 4)
	})
}

func TestPodCIDRsStandInForTheBlocksOfHostLocalIPAM(t *testing.T) {
	beside(t, short)
	r := newTestbed(t, world.Options{Name: "podcidr", Workers: 2, HostLocal: true}, settings{})
	r.apply(application("app", 4) + ingress("app", "", "test.local / Prefix app"))
	r.start()
	r.ready()
	want := []string{
		"172.16.49.0/24 via 192.168.50.22", "172.16.171.0/24 via 192.168.50.23",
		"172.16.189.0/24 via 192.168.50.24",
	}
	r.routed(want)
	r.answeredBy("http://test.local/", 4)
	r.says("host-local IPAM", "EndpointSlice of any namespace")

	r.announce(r.host("worker2"), "172.16.189.0/24", "172.16.171.0/24", "172.16.189.0/25", "172.16.0.0/16",
		"172.16.7.0/24")
	r.refuses(map[string]string{
		"172.16.171.0/24": "not-owner",
		"172.16.189.0/25": "wrong-length",
		"172.16.0.0/16":   "wrong-length",
		"172.16.7.0/24":   "no-affinity",
	}, "worker2")
	if got := r.routes("-4"); !slices.Equal(got, want) {
		t.Errorf("routes %q, want %q", got, want)
	}
	r.answeredBy("http://test.local/", 4)
}

func TestCalicoMayComeAfterTheAppliance(t *testing.T) {
	beside(t, short)
	r := newTestbed(t, world.Options{Name: "late", Workers: 2, NoCalico: true}, settings{})
	r.apply(application("app", 4) + onHostNetwork("node") +
		ingress("app", "", "test.local / Prefix app", "node.local / Prefix node"))
	r.start()

	r.sub("a sentence says that it is missing, and nothing is served", func(_ *testing.T, r *testbed) {
		r.says("none of Calico's objects", "not installed")
		r.ready()
		r.says("none of Calico's objects", "not installed")
		r.expect("http://node.local/", 503, "")
		r.expect("http://test.local/", 503, "")
	})
	r.sub("once it is there, all is served without a restart", func(t *testing.T, r *testbed) {
		before := r.mustStatus()
		r.must(r.InstallCalico(t.Context()))
		manifests, err := r.Manifests(t.Context())
		r.must(err)
		r.apply(manifests)
		r.routed(bothRoutes)
		r.answeredBy("http://test.local/", 4)
		r.expect("http://node.local/", 503, "") // hostNetwork is not set
		after := r.mustStatus()
		if !after.Started.Equal(before.Started) || after.HAProxy.Pid != before.HAProxy.Pid {
			t.Errorf("the appliance started at %s and HAProxy is %d, want %s and %d", after.Started, after.HAProxy.Pid,
				before.Started, before.HAProxy.Pid)
		}
		r.unsays("Calico")
	})
}

// asking sends requests one after another, each on a connection of its own, until stop is called.
// stop fails the test unless a pod of the application answered each of them.
func (r *testbed) asking(url, application string) (stop func()) {
	client := r.client(plain)
	ctx, cancel := context.WithCancel(r.t.Context())
	sent, failed, done := 0, []string(nil), make(chan struct{})
	go func() {
		defer close(done)
		for tick := time.Tick(10 * time.Millisecond); ctx.Err() == nil; <-tick {
			answer, err := client.Get(url)
			if err == nil {
				err = answer.Body.Close()
				if pod := answer.Header.Get("X-Pod"); answer.StatusCode != 200 ||
					!strings.HasPrefix(pod, application+"-") {
					err = fmt.Errorf("it answers %s by %q", answer.Status, pod)
				}
			}
			if sent++; err != nil {
				failed = append(failed, fmt.Sprintf("%s: %v", time.Now().Format(time.TimeOnly), err))
			}
		}
	}()
	return func() {
		r.t.Helper()
		cancel()
		<-done
		if len(failed) > 0 || sent == 0 {
			r.t.Errorf("%d of %d requests for %s failed; the first: %q", len(failed), sent, url,
				failed[:min(len(failed), 3)])
		}
		r.t.Logf("%d requests for %s", sent, url)
	}
}

// undisturbed calls do while requests come in. None may fail, and HAProxy may neither end nor
// reload.
func (r *testbed) undisturbed(url, application string, do func()) {
	r.t.Helper()
	before, stop := r.mustStatus(), r.asking(url, application)
	do()
	stop()
	after := r.mustStatus()
	reloads := before.HAProxy.Reloads
	if !after.Started.Equal(before.Started) {
		reloads = 0
	}
	// A new backend has a spare place at first. Some minutes later one reload gives it its own.
	why := after.HAProxy.LastReason
	moved := strings.Contains(why, "spare place") && !strings.Contains(why, ", ")
	if moved && after.HAProxy.Reloads == reloads+1 {
		reloads++
	}
	if after.HAProxy.Pid != before.HAProxy.Pid || after.HAProxy.Reloads != reloads {
		r.t.Errorf("HAProxy was process %d and is %d, after %d reloads, want %d; the last because %q",
			before.HAProxy.Pid, after.HAProxy.Pid, after.HAProxy.Reloads, reloads, why)
	}
}

// established waits until this many nodes of a cluster have an established session.
func (r *testbed) established(cluster string, n int) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("%d sessions with cluster %s", n, cluster), func() error {
		s, err := r.status()
		stand := 0
		for _, p := range s.Peers {
			if p.Cluster == cluster && p.State == "Established" {
				stand++
			}
		}
		if err == nil && stand != n {
			err = fmt.Errorf("%d stand: %+v", stand, s.Peers)
		}
		return err
	})
}

func TestTwoClustersShareAnApplianceAndFailApart(t *testing.T) {
	beside(t, short)
	later := t.TempDir() + "/kubeconfig"
	r := newTestbed(t, world.Options{Name: "one", Workers: 1}, settings{
		clusters: []rig.Cluster{
			{
				Name: "one", Pools: "172.16.0.0/16",
				Ingress: []string{`hosts: [{host: "*.one.test", namespaces: ["*"]}]`},
			},
			{
				Name: "two", Pools: "172.17.0.0/16", Ingress: []string{`hosts: [{host: "*.two.test", namespaces: ["*"]}]`},
				Kubeconfig: later,
			},
		},
		manifests: []string{"--cluster", "one"},
	})
	r.apply(application("one", 2) + ingress("app", "", "app.one.test / Prefix one", "stolen.two.test / Prefix one"))
	r.start()
	// while the appliance waits for it
	two := newTestbed(t, world.Options{Name: "two", Site: 1, Workers: 1}, settings{})
	two.apply(application("two", 2))

	r.sub("one is served while two was never seen, and two's hosts are kept for it", func(_ *testing.T, r *testbed) {
		r.answeredBy("http://app.one.test/", 2)
		r.expect("http://stolen.two.test/", 404, "")
		r.says("cluster two")
	})
	r.sub("two comes, and nothing changes for one", func(_ *testing.T, r *testbed) {
		r.undisturbed("http://app.one.test/", "one", func() {
			r.must(two.Lend(r.t.Context(), r.Lab))
			r.must(os.Link(two.file("kubeconfig"), later))
			r.established("two", 2)
			r.ready()
		})
	})
	r.sub("both are served, each by its own pods", func(t *testing.T, r *testbed) {
		two.apply(ingress("app", "", "app.two.test / Prefix two", "app.one.test / Prefix two",
			"stolen.one.test / Prefix two"))
		r.answeredBy("http://app.two.test/", 2)
		r.expect("http://app.two.test/", 200, "two-")
		r.expect("http://app.one.test/", 200, "one-")
		r.expect("http://stolen.one.test/", 404, "")
		r.expect("http://stolen.two.test/", 404, "")
		r.routed([]string{"172.16.171.64/26 via 192.168.50.23", "172.17.171.64/26 via 192.168.51.23"})
	})
	two.pictured(r.file("state/picture-two.json"))
	r.sub("two loses its power: one is served, and follows its own cluster", func(_ *testing.T, r *testbed) {
		r.undisturbed("http://app.one.test/", "one", func() {
			r.must(errors.Join(two.KillNode(r.t.Context(), "worker1"), two.KillNode(r.t.Context(), "master")))
			r.established("two", 0)
			r.kubectl("scale", "deployment", "one", "--replicas", "3")
			r.answeredBy("http://app.one.test/", 3)
		})
	})
	r.sub("a restart without two changes nothing for one", func(_ *testing.T, r *testbed) {
		r.undisturbed("http://app.one.test/", "one", func() {
			r.end(syscall.SIGKILL)
			r.start()
			r.established("one", 2)
			r.says("cluster two", "picture")
			r.answeredBy("http://app.one.test/", 3)
		})
		r.opened("one__default_svc_one_web", 3)
	})
	r.sub("two is back, and served", func(_ *testing.T, r *testbed) {
		r.undisturbed("http://app.one.test/", "one", func() {
			r.must(errors.Join(two.ReviveNode(r.t.Context(), "master"), two.ReviveNode(r.t.Context(), "worker1")))
			r.answeredBy("http://app.two.test/", 2)
		})
	})
}
