package e2e

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/test/lab/world"
	"sallyport/test/load"
)

// newRealTestbed brings up a lab whose nodes run Calico itself, with an application of some pods
// that answers for test.local. The appliance runs, and is ready.
func newRealTestbed(t *testing.T, pods int, opts world.Options, s settings) *testbed {
	t.Helper()
	opts.Calico = world.Real
	r := newTestbed(t, opts, s)
	if pods > 0 {
		r.apply(application("app", pods) + ingress("app", "", "test.local / Prefix app"))
	}
	r.start()
	r.ready()
	return r
}

// claimed returns the routes that the confirmed blocks of the cluster ask for, of one family, sorted.
func (r *testbed) claimed(family string) (routes []string, err error) {
	out, err := r.Kubectl(r.t.Context(), "get", "blockaffinities.crd.projectcalico.org",
		"-o", `jsonpath={range .items[?(@.spec.state=="confirmed")]}{.spec.cidr} {.spec.node}{"\n"}{end}`)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		host, there := r.Host(f[1])
		if six := strings.Contains(f[0], ":"); !there || six != (family == "-6") {
			continue
		}
		hop := host.Addr
		if family == "-6" {
			hop = host.Addr6
		}
		routes = append(routes, f[0]+" via "+hop.Addr().String())
	}
	slices.Sort(routes)
	return routes, nil
}

// routedAsClaimed waits until the appliance's kernel has exactly the routes to the blocks that
// Calico has given to the nodes, and some at all.
func (r *testbed) routedAsClaimed(family string) {
	r.t.Helper()
	r.eventually("each block is routed to its node", func() error {
		want, err := r.claimed(family)
		if err != nil {
			return err
		}
		got := slices.Sorted(slices.Values(r.routes(family)))
		if len(want) == 0 || !slices.Equal(got, want) {
			return fmt.Errorf("routes %q, want %q", got, want)
		}
		return nil
	})
}

// sessionsWith waits until exactly these nodes have a session, and all routes of each have come.
func (r *testbed) sessionsWith(want ...string) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("sessions with %q", want), func() error {
		s, err := r.status()
		var got []string
		for _, p := range s.Peers {
			if p.State == "Established" && p.EndOfRIB {
				got = append(got, p.Node)
			}
		}
		slices.Sort(got)
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("with %q: %+v", got, s.Peers)
		}
		return err
	})
}

// underLoad calls do while the client sends requests. None may fail.
func (r *testbed) underLoad(what string, do func()) {
	r.t.Helper()
	r.survives(what, r.load(what, do), time.Time{})
}

// survives checks that no request failed that was sent after a time.
func (r *testbed) survives(what string, failed []load.Outcome, since time.Time) {
	r.t.Helper()
	failed = slices.DeleteFunc(slices.Clone(failed), func(o load.Outcome) bool { return o.Began.Before(since) })
	if len(failed) > 0 {
		r.t.Errorf("%s: %d requests failed, want none; the first: %s", what, len(failed), failed[0])
	}
}

// load calls do while the client sends 50 requests a second to test.local, each on a new connection.
// It logs how many failed, and returns those.
func (r *testbed) load(what string, do func()) (failed []load.Outcome) {
	r.t.Helper()
	began := time.Now()
	w := load.Watch(r.t.Context(), load.Clients{
		Targets: []string{"192.168.50.21:80"}, Host: "test.local", New: time.Second / 50, Dial: r.fromClient,
	})
	defer w.Stop()
	count, err := w.During(r.t.Context(), 1, 0, func() error { do(); return nil })
	r.must(err)
	r.t.Logf("%s: %d of %d requests failed in %s, the slowest took %s", what, len(count.Failed), count.Sent,
		time.Since(began).Round(time.Second), count.Slowest.Round(time.Millisecond))
	return count.Failed
}

// stands checks that nothing in the log, from an offset on, says that a server was closed or a
// route dropped.
func (r *testbed) stands(said int) {
	r.t.Helper()
	for line := range strings.Lines(r.log()[said:]) {
		if strings.Contains(line, "state=closed") || strings.Contains(line, "route dropped") {
			r.t.Errorf("the log has %s", line)
		}
	}
}

// flapped waits until each of these nodes has lost as many sessions more than before, and has one.
func (r *testbed) flapped(before map[string]int, more int, nodes ...string) {
	r.t.Helper()
	r.eventually("the sessions were lost, and are back", func() error {
		s, err := r.status()
		for _, p := range s.Peers {
			if slices.Contains(nodes, p.Node) && (p.Flaps < before[p.Node]+more || p.State != "Established" ||
				!p.EndOfRIB) {
				return fmt.Errorf("%s: %s after %d losses", p.Node, p.State, p.Flaps)
			}
		}
		return err
	})
}

func (r *testbed) flaps() map[string]int {
	r.t.Helper()
	flaps := map[string]int{}
	for _, p := range r.mustStatus().Peers {
		flaps[p.Node] = p.Flaps
	}
	return flaps
}

// killBIRDs kills the BIRD of IPv4 on these nodes. Each is started again after a second, by what
// stands for runit.
func (r *testbed) killBIRDs(nodes ...string) {
	r.t.Helper()
	for _, node := range nodes {
		text, err := os.ReadFile(filepath.Join(r.Lab.Dir(), "nodes", node, "run", "bird.pid"))
		r.must(err)
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		r.must(err)
		r.must(syscall.Kill(pid, syscall.SIGKILL))
	}
}

// checks asks HAProxy for the results of its checks of the servers of a backend. The keys are states
// and results, such as "DOWN L4TOUT" (HAProxy's manual, management, 9.1), the values count servers.
func (r *testbed) checks(backend string) (map[string]int, error) {
	conn, err := new(net.Dialer).DialContext(r.t.Context(), "unix", r.file("run/worker.sock"))
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // one question
	if _, err := fmt.Fprintln(conn, "show stat"); err != nil {
		return nil, err
	}
	rows, err := csv.NewReader(conn).ReadAll()
	if err != nil || len(rows) == 0 {
		return nil, fmt.Errorf("show stat: %w", cmp.Or(err, io.ErrUnexpectedEOF))
	}
	state, check := slices.Index(rows[0], "status"), slices.Index(rows[0], "check_status")
	seen := map[string]int{}
	for _, row := range rows[1:] {
		if row[0] == backend && row[1] != "BACKEND" && row[state] != "MAINT" {
			seen[row[state]+" "+strings.TrimPrefix(row[check], "* ")]++
		}
	}
	return seen, nil
}

// checked waits until HAProxy says this, and nothing else, of all servers of the application.
func (r *testbed) checked(want map[string]int) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("HAProxy's checks say %v", want), func() error {
		got, err := r.checks(appBackend)
		if err == nil && !maps.Equal(got, want) {
			err = fmt.Errorf("they say %v", got)
		}
		return err
	})
}

// appBackend is HAProxy's name of the application of newRealTestbed.
const appBackend = "default_svc_app_web"

// shutOut is a NetworkPolicy that lets everybody to the application's pods except for the appliance.
const shutOut = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: shut-out}
spec:
  podSelector: {matchLabels: {app: app}}
  ingress:
  - from: [{ipBlock: {cidr: 0.0.0.0/0, except: [192.168.50.21/32]}}]
`

func TestRealCalicoIsServedThroughRestartsAndPolicies(t *testing.T) {
	beside(t, short)
	r := newRealTestbed(t, 4, world.Options{Name: "calico", Workers: 2}, settings{})
	nodes := []string{"master", "worker1", "worker2"}

	r.sub("every node has a session, each block is routed, each pod answers", func(_ *testing.T, r *testbed) {
		r.sessionsWith(nodes...)
		r.answeredBy("http://test.local/", 4)
		r.routedAsClaimed("-4")
	})
	r.sub("calico-node restarts on one node, and no request fails", func(_ *testing.T, r *testbed) {
		said, before := len(r.log()), r.flaps()
		r.underLoad("restart on one node", func() {
			r.must(r.RestartCalico(r.t.Context(), "worker1", time.Second))
			r.flapped(before, 1, "worker1")
		})
		r.stands(said)
	})
	r.sub("calico-node restarts on one node after the other, and no request fails", func(_ *testing.T, r *testbed) {
		said, before := len(r.log()), r.flaps()
		r.underLoad("restart on each node", func() {
			for _, node := range nodes {
				r.must(r.RestartCalico(r.t.Context(), node, 0))
			}
			r.flapped(before, 1, nodes...)
		})
		r.stands(said)
	})
	r.sub("BIRD is killed on all nodes at once, and no request fails", func(_ *testing.T, r *testbed) {
		said, before := len(r.log()), r.flaps()
		r.underLoad("BIRD killed on all nodes", func() {
			r.killBIRDs(nodes...)
			r.flapped(before, 1, nodes...)
		})
		r.stands(said)
		r.routedAsClaimed("-4")
	})
	r.sub("a NetworkPolicy that shuts the appliance out takes all servers down", func(t *testing.T, r *testbed) {
		r.apply(shutOut)
		r.checked(map[string]int{"DOWN L4TOUT": 4})
		r.eventually("the client gets 503", func() error {
			answer, err := r.get("http://test.local/")
			if err == nil && answer.Code != 503 {
				err = fmt.Errorf("it gets %d", answer.Code)
			}
			return err
		})
		r.eventually("the status says that all servers are down", func() error {
			s, err := r.status()
			if err != nil {
				return err
			}
			for _, b := range s.Backends {
				for _, server := range b.Servers {
					if b.Name == appBackend && (server.Check != "DOWN" || !strings.Contains(server.Why, "L4TOUT")) {
						return fmt.Errorf("%+v", server)
					}
				}
			}
			return nil
		})
		r.kubectl("delete", "networkpolicy", "shut-out")
		r.checked(map[string]int{"UP L4OK": 4})
		r.answeredBy("http://test.local/", 4)
	})
	r.sub("a node is drained and deleted, and comes back under its name, and no request fails",
		func(_ *testing.T, r *testbed) {
			r.underLoad("a node leaves and returns", func() {
				r.must(r.RemoveNode(r.t.Context(), "worker2"))
				r.sessionsWith("master", "worker1")
				r.eventually("its blocks are released", func() error {
					out, err := r.Kubectl(r.t.Context(), "get", "blockaffinities.crd.projectcalico.org", "-o", "name")
					if err == nil && strings.Contains(out, "worker2") {
						err = errors.New(out)
					}
					return err
				})
				r.routedAsClaimed("-4")
				_, err := r.AddNode(r.t.Context(), "worker2")
				r.must(err)
				r.sessionsWith(nodes...)
			})
			r.underLoad("pods come and go", func() {
				r.kubectl("scale", "deployment", "app", "--replicas", "10")
				r.answeredBy("http://test.local/", 10)
				r.routedAsClaimed("-4")
				r.kubectl("scale", "deployment", "app", "--replicas", "4")
				r.eventually("four servers are left", func() error { return r.serves(4) })
			})
			r.answeredBy("http://test.local/", 4)
		})
}

// serves returns an error unless the application has this many servers, all open.
func (r *testbed) serves(n int) error {
	s, err := r.status()
	if err != nil {
		return err
	}
	for _, b := range s.Backends {
		if b.Name == appBackend {
			if len(b.Servers) != n || b.Open != n {
				return fmt.Errorf("%d servers, %d open: %+v", len(b.Servers), b.Open, b.Servers)
			}
			return nil
		}
	}
	return errors.New("it has no backend")
}
