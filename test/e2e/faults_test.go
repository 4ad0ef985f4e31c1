package e2e

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/test/lab/world"
)

// reboot removes what a reboot removes: processes, routes, /run.
func (r *testbed) reboot() {
	r.t.Helper()
	r.end(syscall.SIGKILL)
	script := "for p in $(ip netns pids " + r.Netns(world.Appliance) +
		"); do [ $p = $$ ] || kill -9 $p; done; ip -4 route flush proto 78; ip -6 route flush proto 78"
	// the shell is in the namespace too, and its own kill may end it
	_, _ = r.Exec(r.t.Context(), world.Appliance, "sh", "-c", script)
	r.exec("ip", "-4", "route", "flush", "proto", "78")
	r.must(os.RemoveAll(r.file("run")))
}

// pictured waits until the last good picture, a file of the appliance, has every pod of the lab's
// cluster. The appliance writes it a few seconds after a change.
func (r *testbed) pictured(file string) {
	r.t.Helper()
	pods := strings.Fields(r.kubectl("get", "pods", "-o", "jsonpath={.items[*].status.podIP}"))
	r.eventually("the picture holds all pods", func() error {
		picture, err := os.ReadFile(file)
		if updates, err := os.ReadFile(file + ".updates"); err == nil { // what changed since the picture
			picture = append(picture, updates...)
		}
		for _, pod := range pods {
			if err == nil && !strings.Contains(string(picture), `"`+pod+`"`) {
				err = fmt.Errorf("%s is not in it", pod)
			}
		}
		return err
	})
}

// outlives restarts calico-node on a node and checks that its session is lost once and returns,
// that no server is closed and that no route changes.
func (r *testbed) outlives(node string) {
	r.t.Helper()
	said, routes := len(r.log()), r.routes("-4")
	r.must(r.RestartCalico(r.t.Context(), node, 3*time.Second))
	r.eventually("the session is back", func() error {
		s, err := r.status()
		for _, p := range s.Peers {
			if p.Node == node && (p.Flaps != 1 || p.State != "Established") {
				return fmt.Errorf("%s after %d losses", p.State, p.Flaps)
			}
		}
		return err
	})
	if log := r.log()[said:]; strings.Contains(log, "state=closed") || strings.Contains(log, "route dropped") {
		r.t.Errorf("the log tells of servers closed or routes dropped:\n%s", log)
	}
	if got := r.routes("-4"); !slices.Equal(got, routes) {
		r.t.Errorf("routes %q, want %q", got, routes)
	}
}

func TestFaultsOfTheClusterCloseNoMoreThanTheyMust(t *testing.T) {
	beside(t, short)
	r := newTestbed(t, world.Options{Name: "faults", Workers: 2}, settings{})
	r.apply(application("app", 4) + ingress("app", "", "test.local / Prefix app"))
	r.start()
	r.ready()
	r.answeredBy("http://test.local/", 4)
	all := r.routes("-4")

	r.sub("calico-node restarts: nothing is closed", func(_ *testing.T, r *testbed) { r.outlives("worker1") })
	lost := r.api()
	r.sub("the API server is gone: traffic flows, and a restart changes nothing", func(_ *testing.T, r *testbed) {
		r.pictured(r.file("state/picture-default.json"))
		r.must(lost.Make(r.t.Context()))
		r.answeredBy("http://test.local/", 4)
		r.end(syscall.SIGKILL)
		r.start()
		r.eventually("it says that it serves from the picture", func() error {
			s, err := r.status()
			if err == nil && !strings.Contains(strings.Join(s.NotReady, ";"), "picture") {
				err = fmt.Errorf("not ready because %q", s.NotReady)
			}
			return err
		})
		r.answeredBy("http://test.local/", 4)
	})
	r.sub("a reboot without the API server serves from the last good picture", func(t *testing.T, r *testbed) {
		r.reboot()
		if got := r.routes("-4"); len(got) > 0 {
			t.Fatalf("routes %q after the reboot, want none", got)
		}
		r.start()
		r.answeredBy("http://test.local/", 4)
		r.must(lost.Mend(r.t.Context()))
		r.ready()
		r.answeredBy("http://test.local/", 4)
	})
	r.sub("a node dies: its servers are closed, then its route goes, the others serve", func(t *testing.T, r *testbed) {
		r.must(r.KillNode(t.Context(), "worker2"))
		r.eventually("its route is gone", func() error {
			for _, route := range r.routes("-4") {
				if strings.HasSuffix(route, "192.168.50.24") {
					return errors.New(route)
				}
			}
			return nil
		})
		for range 10 {
			if answer, err := r.get("http://test.local/"); err != nil || answer.Code != 200 {
				t.Errorf("answer %d (%v), want 200", answer.Code, err)
			}
		}
		r.must(r.ReviveNode(t.Context(), "worker2"))
		r.routed(all)
		r.answeredBy("http://test.local/", 4)
	})
	r.sub("HAProxy is killed: it serves again", func(t *testing.T, r *testbed) {
		r.must(syscall.Kill(r.mustStatus().HAProxy.Pid, syscall.SIGKILL))
		r.answeredBy("http://test.local/", 4)
	})
}

func TestBothFamiliesAreRouted(t *testing.T) {
	beside(t, short)
	r := newTestbed(t, world.Options{Name: "six", Workers: 2, IPv6: true},
		settings{manifests: []string{"--address", "fd00:50::21"}})
	r.apply(application("app", 4) + "  ipFamilyPolicy: PreferDualStack\n  ipFamilies: [IPv6, IPv4]\n" +
		ingress("app", "", "test.local / Prefix app"))
	r.start()
	r.ready()
	r.eventually("every pod has a server of each family, all open", func() error {
		s, err := r.status()
		if n := open(s, "default_svc_app_web"); err == nil && n != 8 {
			err = fmt.Errorf("%d are open", n)
		}
		return err
	})
	for _, family := range []string{"-4", "-6"} { // no server opens before its route
		if got := r.routes(family); len(got) != 2 {
			t.Errorf("ip %s shows routes %q, want two", family, got)
		}
	}
	r.answeredBy("http://test.local/", 4)
}

// With another AS and the mesh on, every node announces the blocks of all nodes with itself as the
// next hop, once the BGPFilter that prevents it is removed.
func TestOfABlockAnnouncedByAllOnlyTheOwnersRouteCounts(t *testing.T) {
	beside(t, short)
	r := newTestbed(t, world.Options{Name: "ebgp", Workers: 2, Mesh: true}, settings{lines: "bgp: {asn: 65010}"})
	r.kubectl("patch", "bgppeer", "sallyport-192-168-50-21", "--type=json", "-p",
		`[{"op":"remove","path":"/spec/filters"}]`)
	r.apply(application("app", 4) + ingress("app", "", "test.local / Prefix app"))
	r.start()
	r.ready()
	r.eventually("the blocks of others are refused", func() error {
		s, err := r.status()
		if err == nil && s.Refused.Total != 4 {
			err = fmt.Errorf("%d are refused: %v", s.Refused.Total, s.Refused.Counts)
		}
		return err
	})
	r.routed(bothRoutes)
	r.answeredBy("http://test.local/", 4)
}
