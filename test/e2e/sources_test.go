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
	"sallyport/test/load"
	"sallyport/test/rig"
)

// TestTwoClustersHaveTheSamePods serves two clusters with the same network of pods, the same blocks and pods with
// the same addresses. No request may ever be answered by the other cluster.
func TestTwoClustersHaveTheSamePods(t *testing.T) {
	beside(t, short)
	later := t.TempDir() + "/kubeconfig"
	const greenAS = "localASN: 65010" // in which the appliance is towards green, as green's nodes are
	const blueSource, greenSource, pools = "source: 192.168.50.0/24", "source: 192.168.51.0/24", "172.16.0.0/16"
	r := newTestbed(t, world.Options{Name: "twin", Workers: 1}, settings{
		clusters: []rig.Cluster{
			{Name: "blue", Pools: pools, Keys: []string{blueSource, "set: both"}},
			{
				Name: "green", Pools: pools, Kubeconfig: later, Keys: []string{greenSource, "set: both"},
				BGP: []string{greenAS},
			},
		},
		manifests: []string{"--cluster", "blue"},
	})
	green := newTestbed(t, world.Options{Name: "twin2", Site: 1, SamePods: true, AS: 65010, Workers: 1}, settings{
		clusters: []rig.Cluster{{Pools: pools, Keys: []string{"set: both"}, BGP: []string{greenAS}}},
	})
	r.must(green.Lend(t.Context(), r.Lab))
	r.must(os.Link(green.file("kubeconfig"), later))
	r.must(errors.Join(r.AddExports(t.Context()), green.AddExports(t.Context())))
	for name, cluster := range map[string]*testbed{"blue": r, "green": green} {
		cluster.apply(application(name, 4) + ingress(name, "", name+".test / Prefix "+name))
		cluster.apply(application("web", 2) + ingress("web", "", "web.test / Prefix web"))
		cluster.apply(rig.Export("default", "web"))
	}
	r.exec("sysctl", "-q", "-w", "net.ipv4.conf.all.rp_filter=1") // strict: answers have to come by the way back
	r.start()
	r.established("blue", 2)
	r.established("green", 2)

	r.sub("each host is answered by the pods of its cluster, although their addresses are the same",
		func(t *testing.T, r *testbed) {
			r.answeredBy("http://blue.test/", 4)
			r.answeredBy("http://green.test/", 4)
			if both := r.shared("blue", green, "green"); both == 0 {
				t.Fatal("no pod of blue has the address of a pod of green: this shows nothing")
			}
		})
	r.sub("a Service of both has the pods of both", func(_ *testing.T, r *testbed) {
		r.answeredBy("http://web.test/", 4)
	})
	r.sub("the status and the kernel have the routes of each source", func(_ *testing.T, r *testbed) {
		for _, source := range []string{"192.168.50.21", "192.168.51.21"} {
			r.eventually("the rule of "+source, func() error {
				return r.ruled(source)
			})
		}
		if main := r.routes("-4"); len(main) > 0 {
			r.t.Errorf("the main table has %v, want no route to pods", main)
		}
		out, err := r.order("status", "routes")
		r.must(err)
		if want := " from 192.168.51.21"; !strings.Contains(out, want) {
			r.t.Errorf("status routes has no %q:\n%s", want, out)
		}
	})
	r.sub("somebody removes the rule of a cluster: no request goes astray, and it comes back",
		func(t *testing.T, r *testbed) {
			stop := r.own(t, "blue", "green")
			for range 20 {
				r.exec("ip", "rule", "del", "priority", "100", "from", "192.168.51.21")
				r.eventually("the rule is back", func() error { return r.ruled("192.168.51.21") })
				r.opened("green__default_svc_green_web", 4)
			}
			if failed := stop(); failed["blue"] > 0 {
				t.Errorf("%d requests for blue failed, want none: its rule stayed", failed["blue"])
			}
		})
	r.sub("somebody empties the table of a cluster", func(t *testing.T, r *testbed) {
		stop := r.own(t, "blue", "green")
		r.exec("ip", "route", "flush", "table", "3232248597") // 192.168.51.21
		r.opened("green__default_svc_green_web", 4)
		r.answeredBy("http://green.test/", 4)
		if failed := stop(); failed["blue"] > 0 {
			t.Errorf("%d requests for blue failed, want none", failed["blue"])
		}
	})
	r.sub("the process is killed, and starts again", func(t *testing.T, r *testbed) {
		stop := r.own(t, "blue", "green")
		r.end(syscall.SIGKILL)
		r.start()
		r.ready()
		r.opened("green__default_svc_green_web", 4)
		if failed := stop(); failed["blue"]+failed["green"] > 0 {
			t.Errorf("%v requests failed, want none", failed)
		}
	})
	r.sub("a pod moves in one cluster, and its address is free there", func(t *testing.T, r *testbed) {
		stop := r.own(t, "blue", "green")
		green.kubectl("rollout", "restart", "deployment", "green")
		green.kubectl("rollout", "status", "deployment", "green", "--timeout", "5m")
		r.answeredBy("http://green.test/", 4)
		if failed := stop(); failed["blue"]+failed["green"] > 0 {
			t.Errorf("%v requests failed, want none", failed)
		}
	})
	r.sub("the machine loses its address in the network of a cluster", func(t *testing.T, r *testbed) {
		stop := r.own(t, "blue", "green")
		r.exec("ip", "address", "del", "192.168.51.21/24", "dev", "twin2")
		r.opened("green__default_svc_green_web", 0)
		r.exec("ip", "address", "add", "192.168.51.21/24", "dev", "twin2")
		r.established("green", 2)
		r.opened("green__default_svc_green_web", 4)
		r.answeredBy("http://green.test/", 4)
		if failed := stop(); failed["blue"] > 0 {
			t.Errorf("%d requests for blue failed, want none", failed["blue"])
		}
	})
}

// ruled returns an error unless the kernel has our rule for a source.
func (r *testbed) ruled(source string) error {
	if out := r.exec("ip", "rule", "show"); !strings.Contains(out, "from "+source+" to 172.16.0.0/16") {
		return fmt.Errorf("the rules are\n%s", out)
	}
	return nil
}

// shared returns how many addresses the pods of an application have in common with those of an application of another
// cluster.
func (r *testbed) shared(app string, other *testbed, otherApp string) (n int) {
	r.t.Helper()
	addresses := func(r *testbed, app string) string {
		return r.kubectl("get", "pods", "-l", "app="+app, "-o", "jsonpath={range .items[*]}{.status.podIP} {end}")
	}
	there := strings.Fields(addresses(other, otherApp))
	for a := range strings.FieldsSeq(addresses(r, app)) {
		if slices.Contains(there, a) {
			n++
		}
	}
	return n
}

// own asks the hosts of some applications, NAME.test, until somebody calls stop. Then it returns how many requests of each
// application failed. An answer of another application's pod is an error of the test.
func (r *testbed) own(t *testing.T, names ...string) (stop func() map[string]int) {
	t.Helper()
	clients := map[string]*load.Witness{}
	for _, name := range names {
		clients[name] = load.Watch(t.Context(), load.Clients{
			Targets: []string{"192.168.50.21:80"}, Host: name + ".test", Wants: name + "-", New: 10 * time.Millisecond, Kept: 4,
			Every: 20 * time.Millisecond, Waits: rig.Limit, Dial: r.fromClient,
		})
	}
	return func() map[string]int {
		failed := map[string]int{}
		for name, of := range clients {
			count, err := of.During(t.Context(), 1, 1, func() error { return nil })
			of.Stop()
			r.must(err)
			for _, o := range slices.Concat(count.Failed, count.Broken) {
				if errors.Is(o.Err, load.ErrWrong) {
					t.Errorf("a request for %s.test was answered by pod %s", name, o.Pod)
				} else {
					failed[name]++
				}
			}
			t.Logf("%s: %d requests, %d failed", name, count.Sent+count.Asked, failed[name])
		}
		return failed
	}
}
