package e2e

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/appliance/status"
	"sallyport/test/lab/world"
	"sallyport/test/load"
	"sallyport/test/rig"
)

// holdTime is the default of bgp.holdTime.
const holdTime = 9 * time.Second

// stateOf matches the state of a cluster in the configuration file.
var stateOf = regexp.MustCompile(`\bstate: \w+`)

// inState gives cluster green another state, and waits until the appliance has read it.
func (r *testbed) inState(state string) {
	r.t.Helper()
	r.write("sallyport.yaml", stateOf.ReplaceAllString(r.read("sallyport.yaml"), "state: "+state))
	r.must(syscall.Kill(r.Pid(), syscall.SIGHUP))
}

// weightOf matches the weight of a cluster in the configuration file.
var weightOf = regexp.MustCompile(`\bweight: \d+`)

// weigh gives clusters blue and green these weights, and waits until the appliance has read them.
func (r *testbed) weigh(blue, green int) {
	r.t.Helper()
	weights := []int{blue, green}
	r.write("sallyport.yaml", weightOf.ReplaceAllStringFunc(r.read("sallyport.yaml"), func(string) string {
		weight := weights[0]
		weights = weights[1:]
		return fmt.Sprint("weight: ", weight)
	}))
	r.must(syscall.Kill(r.Pid(), syscall.SIGHUP))
}

// leastOf matches the fewest ready servers of a cluster in the configuration file.
var leastOf = regexp.MustCompile(`\bminReady: [0-9%]+`)

// leastReady gives the fewest ready servers of the cluster that has some.
func (r *testbed) leastReady(least string) {
	r.t.Helper()
	r.write("sallyport.yaml", leastOf.ReplaceAllString(r.read("sallyport.yaml"), "minReady: "+least))
	r.must(syscall.Kill(r.Pid(), syscall.SIGHUP))
}

// exportSays waits until the appliance's condition in the status of a ServiceExport begins with these words.
func (r *testbed) exportSays(name, want string) {
	r.t.Helper()
	r.eventually("ServiceExport "+name+" says "+want, func() error {
		got, err := r.Kubectl(r.t.Context(), "-n", "default", "get", "serviceexport", name, "-o",
			`jsonpath={.status.conditions[?(@.type=="sallyport.dev/Shared")]['status','reason','message']}`)
		if err == nil && !strings.HasPrefix(got, want) {
			err = fmt.Errorf("it says %q", got)
		}
		return err
	})
}

// balanced returns the export of a Service of type LoadBalancer for pods of application web, and the Service.
// With the export first, the Service never has an address of its own.
func balanced(port int) string {
	return rig.Export("default", "lb") + fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {name: lb}\nspec:\n  type: LoadBalancer\n"+
		"  loadBalancerClass: sallyport.dev/appliance\n  selector: {app: web}\n"+
		"  ports: [{name: web, port: %d, targetPort: http}]\n", port)
}

// oneAddress exports a Service of type LoadBalancer in both clusters, and checks that the pods of both serve at one
// address. The address stays when the cluster that decides about it goes.
func (r *testbed) oneAddress(green *testbed) {
	r.t.Helper()
	green.apply(balanced(80))
	address := green.recordedAt("lb", "")
	const url = "http://lb.test/"
	at80, at81 := address+":80", address+":81"
	r.answeredBy(url, 2, at80)
	r.apply(balanced(80))
	r.recordedAt("lb", address)
	r.answeredBy(url, 4, at80)
	r.inState("drained")
	r.answeredBy(url, 2, at80)
	r.inState("active")
	r.answeredBy(url, 4, at80)
	green.apply(balanced(81))
	r.eventually("green hears that blue decides about ports", func() error {
		return green.event("TwinDiffers", "its address is served as the Service of cluster blue says")
	})
	r.answeredBy(url, 4, at80)
	r.kubectl("delete", "service/lb", "serviceexport/lb")
	r.answeredBy(url, 2, at81)
	if got := green.recordedAt("lb", ""); got != address {
		r.t.Errorf("green's Service has the address %s, and had %s", got, address)
	}
	green.kubectl("delete", "service/lb", "serviceexport/lb")
	r.eventually("the address is closed", func() error {
		if _, err := r.get(url, at81); err == nil {
			return errors.New("it is open")
		}
		return nil
	})
}

// measured is how many requests a share is measured with.
const measured = 2000

// shares waits until so many per cent of the requests are answered by pods of cluster green, give or take one
// per cent of all: other clients ask meanwhile, and take turns that this one does not count.
func (r *testbed) shares(url string, green *testbed, percent float64) {
	r.t.Helper()
	client := r.client(plain)
	r.eventually(fmt.Sprintf("green has %.1f %% of the requests", percent), func() error {
		pods := green.kubectl("get", "pods", "-o", "name") + "\n"
		n := 0
		for range measured {
			answer, err := client.Get(url)
			if err != nil {
				return err
			}
			_ = answer.Body.Close()
			if pod := answer.Header.Get("X-Pod"); pod == "" {
				r.t.Fatalf("%s is answered %s", url, answer.Status)
			} else if strings.Contains(pods, "/"+pod+"\n") {
				n++
			}
		}
		got := 100 * float64(n) / measured
		r.t.Logf("%d of %d requests (%.2f %%) are answered by green; asked are %.1f %%", n, measured, got, percent)
		if math.Abs(got-percent) > 1 {
			return fmt.Errorf("green has %.2f %% of the requests", got)
		}
		return nil
	})
}

// alone puts the objects of a manifest into the namespace alone.
func alone(manifest string) string {
	return strings.ReplaceAll(manifest, "metadata: {name: ", "metadata: {namespace: alone, name: ")
}

// podsOf returns a field of each pod in the namespace alone.
func (r *testbed) podsOf(field string) []string {
	r.t.Helper()
	return strings.Fields(r.kubectl("get", "pods", "-n", "alone", "-o", "jsonpath={range .items[*]}"+field+" {end}"))
}

// ownWeight returns the ConfigMap by which a cluster lowers its own share.
func ownWeight(percent string) string {
	return "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: own}\ndata: {cluster-weight: \"" + percent + "\"}\n"
}

// claims returns an EndpointSlice that claims addresses for a Service.
func claims(service string, addresses []string) string {
	text := fmt.Sprintf("---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %s-claimed, labels: "+
		"{kubernetes.io/service-name: %s}}\naddressType: IPv4\nports: [{name: web, port: 8080}]\nendpoints:\n",
		service, service)
	for _, address := range addresses {
		text += fmt.Sprintf("- {addresses: [%s], conditions: {ready: true}}\n", address)
	}
	return text
}

// order gives the appliance an order, by a command on its machine. It returns the output.
func (r *testbed) order(command string, args ...string) (string, error) {
	all := append([]string{r.file("sallyport"), command, "--config", r.file("sallyport.yaml")}, args...)
	return r.Exec(r.t.Context(), world.Appliance, all...)
}

// roleOf waits until a cluster is in a state, by the appliance's word.
func (r *testbed) roleOf(cluster, want string) {
	r.t.Helper()
	r.eventually("cluster "+cluster+" is "+want, func() error {
		s, err := r.status()
		for _, c := range s.Clusters {
			if err == nil && c.Name == cluster && c.State != want {
				return fmt.Errorf("it is %q (%s), with %d of %d servers open", c.State, c.Why, c.Open, c.Servers)
			}
		}
		return err
	})
}

func TestOneHostIsServedByThePodsOfTwoClusters(t *testing.T) {
	beside(t, long)
	later := t.TempDir() + "/kubeconfig"
	r := newTestbed(t, world.Options{Name: "blue", Workers: 1}, settings{
		clusters: []rig.Cluster{
			{Name: "blue", Pools: "172.16.0.0/16", Keys: []string{"set: both", "weight: 50"}},
			{
				Name: "green", Pools: "172.17.0.0/16", Kubeconfig: later,
				Ingress: []string{"configMap: default/own"},
				Keys:    []string{"set: both", "state: active", "weight: 50", "minReady: 2"},
			},
		},
		manifests: []string{"--cluster", "blue"},
	})
	green := newTestbed(t, world.Options{Name: "green", Site: 1, Workers: 1}, settings{
		clusters: []rig.Cluster{{
			Pools: "172.17.0.0/16", Ingress: []string{"configMap: default/own"}, Keys: []string{"set: both"},
		}},
	})
	for _, cluster := range []*testbed{r, green} {
		cluster.givePool()
	}
	r.must(r.AddGatewayAddresses(t.Context()))
	r.must(green.Lend(t.Context(), r.Lab))
	r.must(os.Link(green.file("kubeconfig"), later))
	r.must(errors.Join(r.AddExports(t.Context()), green.AddExports(t.Context())))
	r.apply(application("web", 2) + ingress("web", "", "web.test / Prefix web"))
	green.apply(application("web", 2) + ingress("web", "", "web.test / Prefix web", "green.test / Prefix web"))
	r.start()
	r.established("blue", 2)
	r.established("green", 2)

	r.sub("without an export each cluster serves its own hosts", func(_ *testing.T, r *testbed) {
		r.answeredBy("http://web.test/", 2)
		r.answeredBy("http://green.test/", 2)
		r.opened("blue__default_svc_web_web", 2)
	})
	r.sub("one that exports alone shares nothing", func(_ *testing.T, r *testbed) {
		green.apply(rig.Export("default", "web"))
		r.answeredBy("http://web.test/", 2)
		r.opened("blue__default_svc_web_web", 2)
		green.exportSays("web", "False Alone no other cluster of the set exports this Service: ")
	})
	r.sub("once both export, the pods of both answer for the hosts of each", func(_ *testing.T, r *testbed) {
		r.undisturbed("http://web.test/", "web", func() {
			r.apply(rig.Export("default", "web"))
			r.answeredBy("http://web.test/", 4)
			r.answeredBy("http://green.test/", 4)
			r.eventually("both clusters have requests", func() error {
				out, err := r.order("top", "--by", "cluster")
				for _, name := range []string{"blue", "green"} {
					if err == nil && !regexp.MustCompile(`(?m)^`+name+` +[0-9]*[1-9][0-9.]* `).MatchString(out) {
						err = fmt.Errorf("%s has none:\n%s", name, out)
					}
				}
				return err
			})
		})
		r.opened("blue__default_svc_web_web", 4)
	})
	r.sub("a ServiceExport says whether its pods are shared, beside what others say", func(t *testing.T, r *testbed) {
		r.exportSays("web", "True Shared its pods serve together with those of cluster green")
		green.exportSays("web", "True Shared its pods serve together with those of cluster blue")
		if text := r.kubectl("-n", "default", "describe", "serviceexport", "web"); !strings.Contains(text, "cluster green") {
			t.Errorf("kubectl describe shows:\n%s", text)
		}
		r.apply(rig.Export("default", "none"))
		r.exportSays("none", "False NoService there is no Service default/none in this cluster: ")
		const strange = `{"type":"Valid","status":"True","message":"of another controller"}`
		r.kubectl("-n", "default", "patch", "serviceexport", "none", "--subresource=status", "--type=json", "--patch",
			`[{"op":"add","path":"/status/conditions/0","value":`+strange+`}]`)
		r.apply(rig.Service("default", "none", "web"))
		r.exportSays("none", "False Alone ")
		if got := r.kubectl("-n", "default", "get", "serviceexport", "none", "-o", "jsonpath={.status.conditions[0]}"); got !=
			`{"message":"of another controller","status":"True","type":"Valid"}` {
			t.Errorf("the condition of another controller is %s", got)
		}
		r.kubectl("-n", "default", "delete", "serviceexport,service", "none")
	})
	r.sub("a drained cluster gets no new requests, and comes back", func(_ *testing.T, r *testbed) {
		r.undisturbed("http://web.test/", "web", func() {
			r.inState("drained")
			r.opened("blue__default_svc_web_web", 2)
			r.answeredBy("http://web.test/", 2)
			r.inState("active")
			r.answeredBy("http://web.test/", 4)
		})
	})
	r.sub("clusters share the requests by their weights, whatever their pods, and no request fails",
		func(_ *testing.T, r *testbed) {
			r.undisturbed("http://web.test/", "web", func() {
				for _, share := range []int{5, 25} {
					r.weigh(100-share, share)
					r.shares("http://web.test/", green, float64(share))
				}
				green.kubectl("scale", "deployment", "web", "--replicas", "3")
				r.opened("blue__default_svc_web_web", 5)
				r.shares("http://web.test/", green, 25)
				green.kubectl("scale", "deployment", "web", "--replicas", "2")
				r.opened("blue__default_svc_web_web", 4)
				_, err := r.order("drain", "--cluster", "blue", "--wait")
				r.must(err)
				r.shares("http://web.test/", green, 100)
				_, err = r.order("undrain", "--cluster", "blue")
				r.must(err)
				r.weigh(50, 50)
				r.shares("http://web.test/", green, 50)
				green.kubectl("-n", "default", "create", "configmap", "own", "--from-literal=cluster-weight=50")
				r.shares("http://web.test/", green, 100./3)
				green.apply(ownWeight("0"))
				r.shares("http://web.test/", green, 0)
				green.kubectl("delete", "configmap", "own")
				r.shares("http://web.test/", green, 50)
			})
		})
	r.sub("a cluster with fewer ready pods than minReady gives way, and comes back", func(_ *testing.T, r *testbed) {
		r.undisturbed("http://web.test/", "web", func() {
			green.kubectl("scale", "deployment", "web", "--replicas", "1")
			r.opened("blue__default_svc_web_web", 2)
			r.answeredBy("http://web.test/", 2)
			green.kubectl("scale", "deployment", "web", "--replicas", "2")
			r.opened("blue__default_svc_web_web", 4)
			r.answeredBy("http://web.test/", 4)
		})
	})
	r.sub("a cluster gives way if too small a share of its endpoints is ready, and comes back",
		func(t *testing.T, r *testbed) {
			r.undisturbed("http://web.test/", "web", func() {
				r.leastReady("60%")
				green.apply(strings.ReplaceAll(claims("web", []string{"172.17.9.1", "172.17.9.2"}), "ready: true", "ready: false"))
				r.opened("blue__default_svc_web_web", 2)
				r.answeredBy("http://web.test/", 2)
				r.eventually("the status says why", func() error {
					s, err := r.status()
					for _, c := range s.Clusters {
						if err == nil && c.Name == "green" && !strings.Contains(c.Why, "(minReady: 60%)") {
							return fmt.Errorf("it says %q", c.Why)
						}
					}
					return err
				})
				green.kubectl("delete", "endpointslice", "web-claimed")
				r.opened("blue__default_svc_web_web", 4)
				r.answeredBy("http://web.test/", 4)
				r.leastReady("2")
			})
		})
	r.sub("all pods of a cluster end while the appliance's process is stopped", func(_ *testing.T, r *testbed) {
		r.undisturbed("http://web.test/", "web", func() {
			r.must(syscall.Kill(r.Pid(), syscall.SIGSTOP))
			defer func() { r.must(syscall.Kill(r.Pid(), syscall.SIGCONT)) }()
			r.kubectl("scale", "deployment", "web", "--replicas", "0")
			r.answeredBy("http://web.test/", 2)
		})
		r.undisturbed("http://web.test/", "web", func() {
			r.kubectl("scale", "deployment", "web", "--replicas", "2")
			r.opened("blue__default_svc_web_web", 4)
			r.answeredBy("http://web.test/", 4)
		})
	})
	r.sub("a standby serves once the other one has no pod", func(_ *testing.T, r *testbed) {
		r.undisturbed("http://web.test/", "web", func() {
			r.inState("standby")
			r.answeredBy("http://web.test/", 2)
			r.opened("blue__default_svc_web_web", 4)
			r.kubectl("scale", "deployment", "web", "--replicas", "0")
			r.opened("blue__default_svc_web_web", 2)
			r.answeredBy("http://web.test/", 2)
			const alone = "no other cluster has a ready server for default/web:web (host green.test and 1 more host)"
			if _, err := r.order("drain", "--cluster", "green", "--wait"); err == nil ||
				!strings.Contains(err.Error(), alone) {
				r.t.Errorf("the only cluster that serves is drained: %v", err)
			}
			r.kubectl("scale", "deployment", "web", "--replicas", "2")
			r.opened("blue__default_svc_web_web", 4)
			r.inState("active")
			r.answeredBy("http://web.test/", 4)
		})
	})
	r.sub("a cluster is drained by command, until another command, over a restart", func(_ *testing.T, r *testbed) {
		r.undisturbed("http://web.test/", "web", func() {
			out, err := r.order("drain", "--cluster", "green", "--wait")
			r.must(err)
			if want := "drained: no connections to drained pods of cluster green are left"; strings.TrimSpace(out) != want {
				r.t.Errorf("drain --wait ends with %q, want %q", out, want)
			}
			r.opened("blue__default_svc_web_web", 2)
			r.answeredBy("http://web.test/", 2)
			r.answeredBy("http://green.test/", 2)
			r.end(syscall.SIGTERM)
			r.start()
			r.ready()
			r.opened("blue__default_svc_web_web", 2)
			r.answeredBy("http://web.test/", 2)
		})
		r.says("cluster green: it has been drained by sallyport drain", "sallyport undrain --cluster green")
		r.roleOf("green", "drained")
		r.undisturbed("http://web.test/", "web", func() {
			_, err := r.order("undrain", "--cluster", "green")
			r.must(err)
			r.opened("blue__default_svc_web_web", 4)
			r.answeredBy("http://web.test/", 4)
		})
		r.roleOf("green", "active")
	})
	r.sub("a cluster loses all its nodes and its API, and no request waits for BGP", func(t *testing.T, r *testbed) {
		clients := load.Watch(t.Context(), load.Clients{
			Targets: []string{"192.168.50.21:80"}, Host: "web.test", Wants: "web-", New: 20 * time.Millisecond,
			Kept: 8, Every: 50 * time.Millisecond, Waits: rig.Limit,
			Dial: func(ctx context.Context, address string) (net.Conn, error) {
				return r.Dial(ctx, world.Client, address)
			},
		})
		defer clients.Stop()
		// HAProxy repeats a request elsewhere long before the hold time of BGP has passed.
		count, err := clients.During(t.Context(), 50, 50, func() error {
			return errors.Join(r.KillNode(t.Context(), "worker1"), r.KillNode(t.Context(), "master"))
		})
		r.must(errors.Join(err, count.Losses()))
		t.Logf("%d and %d requests, the slowest in %s", count.Sent, count.Asked, count.Slowest)
		if count.Slowest > holdTime {
			t.Errorf("a request took %s, want less than the hold time of %s", count.Slowest, holdTime)
		}
		// No session is left, so its servers give way, although its routes stay (bgp.failStatic).
		r.established("blue", 0)
		r.opened("blue__default_svc_web_web", 2)
		r.answeredBy("http://web.test/", 2)
		r.roleOf("blue", "silent")
		count, err = clients.During(t.Context(), 50, 50, func() error { return nil })
		r.must(errors.Join(err, count.Losses()))
	})
	r.sub("it comes back, and serves again", func(t *testing.T, r *testbed) {
		r.undisturbed("http://web.test/", "web", func() {
			r.must(errors.Join(r.ReviveNode(t.Context(), "worker1"), r.ReviveNode(t.Context(), "master")))
			r.opened("blue__default_svc_web_web", 4)
			r.answeredBy("http://web.test/", 4)
		})
	})
	// These are the last, since HAProxy removes their backends by a reload half a minute later.
	r.sub("a Service of type LoadBalancer has one address for the pods of both", func(_ *testing.T, r *testbed) {
		for cluster, flags := range map[*testbed][]string{r: {"--cluster", "blue"}, green: nil} {
			manifests, err := cluster.Manifests(cluster.t.Context(), flags...)
			r.must(err)
			cluster.apply(manifests)
		}
		r.oneAddress(green)
	})
	r.sub("nothing that green writes reaches what blue does not export", func(t *testing.T, r *testbed) {
		const created = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: alone}\n"
		own := func(rules ...string) string {
			return created + rig.App{Namespace: "alone", Name: "own", Replicas: 2}.Manifest() +
				rig.Service("alone", "own", "own") + alone(ingress("own", "", rules...))
		}
		r.apply(own("own.test / Prefix own"))
		r.opened("blue__alone_svc_own_web", 2)
		mine := r.podsOf("{.metadata.name}")
		// green has the same Service and exports it. It names the host and a free path of it, claims the pods of
		// blue for a Service that both clusters export, and asks for more than everything.
		green.apply(own("own.test / Prefix own", "own.test /login Exact own", "green-own.test / Prefix own") +
			rig.Export("alone", "own") + claims("web", r.podsOf("{.status.podIP}")) +
			ownWeight("1000000000"))
		r.answeredBy("http://green-own.test/", 2)
		r.eventually("what green claims is refused and reported", func() error {
			s, err := r.status()
			reported := slices.ContainsFunc(s.Problems, func(p status.ProblemStatus) bool {
				return p.Cluster == "green" && strings.Contains(p.Why, "1000000000")
			})
			refused := 0
			for _, b := range s.Backends {
				for _, one := range b.Servers {
					if one.Cluster == "green" && one.Reason == status.AddressDenied {
						refused++
					}
				}
			}
			if err == nil && (refused < len(mine) || !reported) {
				err = fmt.Errorf("%d servers are refused, and the problems are %+v", refused, s.Problems)
			}
			return err
		})
		for url, want := range map[string]bool{
			"http://own.test/": true, "http://own.test/login": true, "http://web.test/": false, "http://green-own.test/": false,
		} {
			seen, err := r.pods(url, 100)
			r.must(err)
			for pod := range seen {
				if slices.Contains(mine, pod) != want {
					t.Errorf("%s is answered by pod %s; the pods of blue's own are %q", url, pod, mine)
				}
			}
		}
		green.kubectl("delete", "configmap/own", "endpointslice/web-claimed", "namespace/alone", "--wait=false")
		r.kubectl("delete", "namespace/alone", "--wait=false")
		r.eventually("the namespace is not served any more", func() error {
			s, err := r.status()
			for _, b := range s.Backends {
				if err == nil && strings.Contains(b.Name, "__alone_") {
					return fmt.Errorf("%s is", b.Name)
				}
			}
			return err
		})
		r.answeredBy("http://web.test/", 4)
	})
}
