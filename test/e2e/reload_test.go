package e2e

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// reload writes the configuration file and sends the appliance SIGHUP.
func (r *testbed) reload(lines string, clusters ...rig.Cluster) {
	r.t.Helper()
	r.must(rig.Configure(r.Dir, "identity: e2e\nlog: {level: debug}\n"+lines, clusters...))
	text := r.read("sallyport.yaml")
	r.write("sallyport.yaml", strings.Replace(text, "haproxy: {", "haproxy: {maxConnections: 1234, ", 1))
	r.must(syscall.Kill(r.Pid(), syscall.SIGHUP))
}

func TestTheConfigurationIsReadAgainUnderTraffic(t *testing.T) {
	beside(t, short)
	one := rig.Cluster{Name: "one", Pools: "172.16.0.0/16"}
	r := newTestbed(t, world.Options{Name: "reload", Workers: 1},
		settings{clusters: []rig.Cluster{one}, manifests: []string{"--cluster", "one"}})
	r.apply(application("one", 2) + ingress("app", "", "app.one.test / Prefix one"))
	r.start()
	r.ready()
	r.answeredBy("http://app.one.test/", 2)
	beside := newTestbed(t, world.Options{Name: "another", Site: 1, Workers: 1}, settings{})
	beside.apply(application("two", 2) + ingress("app", "", "app.two.test / Prefix two"))
	r.must(beside.Lend(r.t.Context(), r.Lab))
	two := rig.Cluster{Name: "two", Pools: "172.17.0.0/16", Kubeconfig: beside.file("kubeconfig")}
	before, stop := r.mustStatus(), r.asking("http://app.one.test/", "one")

	r.sub("another cluster is served, a reflector is dialled, and HAProxy has another setting",
		func(t *testing.T, r *testbed) {
			more := one
			more.BGP = []string{"routeReflectors: [192.168.50.99]"}
			r.reload("", more, two)
			r.established("two", 2)
			r.answeredBy("http://app.two.test/", 2)
			r.answeredBy("http://app.one.test/", 2)
			r.eventually("the reflector is a peer", func() error {
				s, err := r.status()
				for _, p := range s.Peers {
					if p.Addr.String() == "192.168.50.99" {
						return nil
					}
				}
				return errors.Join(err, fmt.Errorf("peers %+v", s.Peers))
			})
			r.eventually("HAProxy has the other setting", func() error {
				return missing("its configuration", r.read("haproxy/haproxy.cfg"), "maxconn 1234")
			})
		})
	r.sub("a file with a mistake changes nothing, and its line is reported", func(t *testing.T, r *testbed) {
		r.reload("bgp: {retain: long}\n", one)
		line := strings.Count(strings.SplitAfter(r.read("sallyport.yaml"), "retain")[0], "\n") + 1
		r.says(fmt.Sprintf("sallyport.yaml:%d: bgp.retain", line))
		if out := r.exec(r.file("sallyport"), "status"); !strings.Contains(out,
			fmt.Sprintf("sallyport.yaml:%d: bgp.retain", line)) {
			t.Errorf("sallyport status does not name line %d:\n%s", line, out)
		}
		r.eventually("a metric reports it", func() error {
			return missing("/metrics", r.exec("curl", "-s", "http://127.0.0.1:9090/metrics"),
				"sallyport_config_last_reload_successful 0")
		})
		if s := r.mustStatus(); len(s.Clusters) != 2 {
			t.Errorf("clusters %+v, want both", s.Clusters)
		}
		r.answeredBy("http://app.two.test/", 2)
	})
	r.sub("a key that needs a restart waits, and what was removed is gone", func(t *testing.T, r *testbed) {
		r.reload("routes: {metric: 51}\n", one)
		r.says("routes.metric: takes effect at the next start")
		r.eventually("one cluster is left, with its two nodes", func() error {
			s, err := r.status()
			if err == nil && (len(s.Clusters) != 1 || len(s.Peers) != 2 || len(s.Config.Errors) > 0) {
				err = fmt.Errorf("clusters %+v, peers %+v, mistakes %q", s.Clusters, s.Peers, s.Config.Errors)
			}
			return err
		})
		r.routed([]string{"172.16.171.64/26 via 192.168.50.23"})
		r.expect("http://app.two.test/", 404, "")
		r.answeredBy("http://app.one.test/", 2)
		r.reload("", one)
		r.eventually("nothing waits any more", func() error {
			s, err := r.status()
			if err == nil && len(s.Config.Waiting) > 0 {
				err = fmt.Errorf("waiting %q", s.Config.Waiting)
			}
			return err
		})
	})

	stop()
	after := r.mustStatus()
	if !after.Started.Equal(before.Started) || after.HAProxy.Pid != before.HAProxy.Pid {
		t.Errorf("the appliance started at %s and HAProxy is process %d, want %s and %d", after.Started,
			after.HAProxy.Pid, before.Started, before.HAProxy.Pid)
	}
	for _, p := range after.Peers {
		if p.Flaps > 0 || p.State != "Established" {
			t.Errorf("the session with %s is %s and was lost %d times, want it undisturbed", p.Node, p.State, p.Flaps)
		}
	}
	r.peered("master", "worker1")
}
