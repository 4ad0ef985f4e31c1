package e2e

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sallyport/test/lab/world"
)

func TestNodesThatSpeakWithBIRD2AreServedAsAnyOther(t *testing.T) {
	r := newRig(t, world.Options{Name: "bird2", Workers: 2, Bird: 2})
	if out, err := r.BIRD(t.Context(), "worker1", 4, "show", "status"); err != nil || !strings.Contains(out, "BIRD 2.") {
		t.Fatalf("worker1 speaks with %q (%v), want BIRD 2", out, err)
	}
	r.install("")
	r.apply(application("app", 4, "") + ingress("app", "", "test.local / Prefix app"))
	r.start()
	r.ready()
	if got, want := r.sessions(), []string{"master", "worker1", "worker2"}; !slices.Equal(got, want) {
		t.Errorf("sessions with %q, want %q", got, want)
	}
	if got := r.routes("-4"); !slices.Equal(got, threeRoutes) {
		t.Errorf("routes %q, want %q", got, threeRoutes)
	}
	r.answeredBy("http://test.local/", 4)
	r.outlives("worker1")
	r.answeredBy("http://test.local/", 4)
}

// reflect makes worker1 a route reflector, as Calico's documents do it: every
// node peers with it. That it alone peers with the appliance is in the manifests.
func (r *rig) reflect() {
	r.t.Helper()
	r.kubectl("annotate", "node", "worker1", "projectcalico.org/RouteReflectorClusterID=244.0.0.1")
	r.kubectl("label", "node", "worker1", "route-reflector=true")
	r.apply(`
apiVersion: crd.projectcalico.org/v1
kind: BGPPeer
metadata: {name: reflectors}
spec: {nodeSelector: all(), peerSelector: route-reflector == 'true'}
`)
}

// patchPeer changes the BGPPeer that the manifests made of the appliance.
func (r *rig) patchPeer(patch string) {
	r.t.Helper()
	r.kubectl("patch", "bgppeer", "sallyport-192-168-50-21", "--type=merge", "-p", patch)
}

func TestAReflectorBringsAllBlocksButNotTheWayToThem(t *testing.T) {
	r := newRig(t, world.Options{Name: "reflect", Workers: 2})
	r.install("", "--reflectors", "route-reflector == 'true'")
	r.reflect()
	r.apply(application("app", 4, "") + ingress("app", "", "test.local / Prefix app"))
	r.start()

	r.sub("one session brings all blocks, each with its owner's next hop", func(t *testing.T, r *rig) {
		r.routed(threeRoutes)
		if got, want := r.sessions(), []string{"worker1"}; !slices.Equal(got, want) {
			t.Errorf("sessions with %q, want %q", got, want)
		}
		r.answeredBy("http://test.local/", 4)
	})
	r.sub("a restart of the appliance changes nothing", func(t *testing.T, r *rig) {
		r.end(syscall.SIGTERM)
		said := len(r.log())
		r.start()
		r.eventually("the session is back", func() error {
			s, err := r.status()
			if err == nil && !slices.Equal(r.sessions(), []string{"worker1"}) {
				err = fmt.Errorf("peers %+v", s.Peers)
			}
			return err
		})
		r.ready()
		r.answeredBy("http://test.local/", 4)
		if log := r.log()[said:]; strings.Contains(log, "state=closed") || strings.Contains(log, "route dropped") || strings.Contains(log, "route added") {
			t.Errorf("the log tells of servers closed or routes changed:\n%s", log)
		}
	})
	r.sub("then, with itself as the next hop, it is refused what is not its own", func(t *testing.T, r *rig) {
		r.patchPeer(`{"spec":{"nextHopMode":"Self"}}`)
		r.routed([]string{"172.16.171.64/26 via 192.168.50.23"})
		r.refuses(map[string]string{"172.16.49.64/26": "bad-next-hop", "172.16.189.64/26": "bad-next-hop"}, "worker1")
		for range 8 {
			if answer, err := r.get("http://test.local/"); err != nil || answer.Node != "worker1" {
				t.Errorf("answer %d by %q (%v), want one from worker1", answer.Code, answer.Node, err)
			}
		}
		r.patchPeer(`{"spec":{"nextHopMode":null}}`)
		r.routed(threeRoutes)
		r.answeredBy("http://test.local/", 4)
	})
}

func TestPodCIDRsStandInForTheBlocksOfHostLocalIPAM(t *testing.T) {
	r := newRig(t, world.Options{Name: "podcidr", Workers: 2, HostLocal: true})
	r.install("")
	r.apply(application("app", 4, "") + ingress("app", "", "test.local / Prefix app"))
	r.start()
	r.ready()
	want := []string{"172.16.49.0/24 via 192.168.50.22", "172.16.171.0/24 via 192.168.50.23", "172.16.189.0/24 via 192.168.50.24"}
	if got := r.routes("-4"); !slices.Equal(got, want) {
		t.Errorf("routes %q, want %q", got, want)
	}
	r.answeredBy("http://test.local/", 4)
	r.says("host-local IPAM", "EndpointSlice of any namespace")

	r.announce(r.host("worker2"), "172.16.189.0/24", "172.16.171.0/24", "172.16.189.0/25", "172.16.0.0/16", "172.16.7.0/24")
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
	r := newRig(t, world.Options{Name: "late", Workers: 2, NoCalico: true})
	r.configure("")
	known := slices.DeleteFunc(strings.Split(r.manifests(), "\n---\n"), func(document string) bool {
		return strings.Contains(document, "apiVersion: crd.projectcalico.org/v1")
	})
	r.apply(strings.Join(known, "\n---\n"))
	r.authorize()
	r.apply(application("app", 4, "") + application("node", 1, "hostNetwork: true") +
		ingress("app", "", "test.local / Prefix app", "node.local / Prefix node"))
	r.start()

	r.sub("a sentence says that it is missing, and nothing is served", func(_ *testing.T, r *rig) {
		r.says("none of Calico's objects", "not installed")
		r.ready()
		r.says("none of Calico's objects", "not installed")
		r.expect("http://node.local/", 503, "")
		r.expect("http://test.local/", 503, "")
	})
	r.sub("once it is there, all is served without a restart", func(t *testing.T, r *rig) {
		before := r.mustStatus()
		if err := r.InstallCalico(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.apply(r.manifests())
		r.routed(threeRoutes)
		r.answeredBy("http://test.local/", 4)
		r.expect("http://node.local/", 503, "") // hostNetwork is not set
		after := r.mustStatus()
		if !after.Started.Equal(before.Started) || after.HAProxy.Pid != before.HAProxy.Pid {
			t.Errorf("the appliance started at %s and HAProxy is %d, want %s and %d", after.Started, after.HAProxy.Pid, before.Started, before.HAProxy.Pid)
		}
		if said := strings.Join(slices.Concat(after.NotReady, after.Warnings), "; "); strings.Contains(said, "Calico") {
			t.Errorf("it still says %q", said)
		}
	})
}
