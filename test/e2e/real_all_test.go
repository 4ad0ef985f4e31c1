package e2e

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// The tests of this file run on real Calico, and only with -calico, which make test-calico gives:
// they take minutes.
var allCalico = flag.Bool("calico", false,
	"also run the tests on real Calico that make test leaves to make test-calico")

func onlyWithCalico(t *testing.T) {
	t.Helper()
	if !*allCalico {
		t.Skip("a part of make test-calico")
	}
}

// reconfigure restarts the appliance with other settings of its cluster, and applies the manifests
// for them, without the BGPPeer if that is replaced.
func (r *testbed) reconfigure(bgp []string, flags ...string) {
	r.t.Helper()
	r.must(rig.Configure(r.Dir, "identity: e2e\nlog: {level: debug}\n", rig.Cluster{Pools: "172.16.0.0/16", BGP: bgp}))
	manifests, err := r.Manifests(r.t.Context(), append([]string{"--calico-namespace", "kube-system"}, flags...)...)
	r.must(err)
	r.apply(manifests)
	r.end(syscall.SIGTERM)
	r.start()
}

// peer returns a BGPPeer for the appliance, with more lines of its spec.
func peer(name string, lines ...string) string {
	return "---\napiVersion: crd.projectcalico.org/v1\nkind: BGPPeer\nmetadata: {name: " + name +
		"}\nspec:\n  peerIP: 192.168.50.21\n  asNumber: 65000\n" +
		"  filters: [sallyport, sallyport-own]\n  " + strings.Join(lines, "\n  ") + "\n"
}

func (r *testbed) mesh(on bool) {
	r.t.Helper()
	r.kubectl("patch", "bgpconfiguration", "default", "--type=merge", "-p",
		fmt.Sprintf(`{"spec":{"nodeToNodeMeshEnabled":%t}}`, on))
}

// neighbours waits until a node's BIRD has this many sessions with other nodes.
func (r *testbed) neighbours(node, prefix string, want int) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("%s has %d sessions %s", node, want, prefix), func() error {
		out, err := r.BIRD(r.t.Context(), node, 4, "show", "protocols")
		got := 0
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, prefix) && strings.Contains(line, "Established") {
				got++
			}
		}
		if err == nil && got != want {
			err = fmt.Errorf("it has %d: %s", got, out)
		}
		return err
	})
}

func TestRealCalicoPeersInEachWayThatABGPPeerCanSay(t *testing.T) {
	onlyWithCalico(t)
	r := newRealTestbed(t, 4, world.Options{Name: "calpeers", Workers: 2, Mesh: true}, settings{})
	nodes := []string{"master", "worker1", "worker2"}
	const ours = "sallyport-192-168-50-21"
	serves := func(r *testbed, sessions ...string) {
		r.sessionsWith(sessions...)
		r.routedAsClaimed("-4")
		r.answeredBy("http://test.local/", 4)
	}
	r.sub("all nodes, with the mesh", func(_ *testing.T, r *testbed) {
		r.neighbours("worker1", "Mesh_", 2)
		serves(r, nodes...)
	})
	r.sub("all nodes, and the mesh is switched off under load", func(_ *testing.T, r *testbed) {
		said := len(r.log())
		r.underLoad("the mesh is switched off", func() {
			r.mesh(false)
			r.neighbours("worker1", "Mesh_", 0)
		})
		r.stands(said)
		serves(r, nodes...)
	})
	r.sub("nodes that a selector names", func(_ *testing.T, r *testbed) {
		r.apply(peer(ours, "nodeSelector: kubernetes.io/hostname != 'master'"))
		serves(r, "worker1", "worker2")
	})
	r.sub("each node by its name", func(_ *testing.T, r *testbed) {
		for _, node := range nodes {
			r.apply(peer("sallyport-"+node, "node: "+node))
		}
		r.kubectl("delete", "bgppeer", ours)
		serves(r, nodes...)
		r.neighbours("worker1", "Node_192_168_50_21", 1)
		for _, node := range nodes {
			r.kubectl("delete", "bgppeer", "sallyport-"+node)
		}
		r.sessionsWith()
	})
	r.sub("a password, in the Secret and by the Role that the manifests print", func(_ *testing.T, r *testbed) {
		r.kubectl("-n", "kube-system", "create", "secret", "generic", "sallyport-bgp",
			"--from-literal=password=correct-horse")
		r.reconfigure([]string{"password: correct-horse"})
		serves(r, nodes...)
	})
	r.sub("another password than the appliance's ends the sessions", func(_ *testing.T, r *testbed) {
		r.kubectl("-n", "kube-system", "patch", "secret", "sallyport-bgp", "--type=merge", "-p",
			`{"stringData":{"password":"wrong"}}`)
		r.sessionsWith()
		r.says("no BGP session")
		r.kubectl("-n", "kube-system", "patch", "secret", "sallyport-bgp", "--type=merge", "-p",
			`{"stringData":{"password":"correct-horse"}}`)
		serves(r, nodes...)
	})
	r.sub("neighbours at one hop alone", func(t *testing.T, r *testbed) {
		r.reconfigure([]string{"ttlSecurity: true"})
		serves(r, nodes...)
		if got := r.kubectl("get", "bgppeer", ours, "-o", "jsonpath={.spec.ttlSecurity} {.spec.password}"); got != "1" {
			t.Errorf("ttlSecurity and password of the BGPPeer: %q, want 1 and none", got)
		}
	})
	r.sub("a route reflector in place of all nodes", func(_ *testing.T, r *testbed) {
		r.reflect()
		r.reconfigure(nil, "--reflectors", "route-reflector == 'true'")
		serves(r, "worker1")
		// BIRD says that it has sent all routes (End-of-RIB) before it has learned those of the other
		// nodes again.
		before, said := r.flaps(), len(r.log())
		r.underLoad("restart on the only route reflector", func() {
			r.must(r.RestartCalico(r.t.Context(), "worker1", time.Second))
			r.flapped(before, 1, "worker1")
			r.eventually("it has learned all blocks again", func() error {
				want, err := r.claimed("-4")
				if err != nil {
					return err
				}
				out, err := r.BIRD(r.t.Context(), "worker1", 4, "show", "route")
				for _, route := range want {
					if block, _, _ := strings.Cut(route, " "); err == nil && !strings.Contains(out, block) {
						err = fmt.Errorf("not %s: %s", block, out)
					}
				}
				return err
			})
		})
		r.stands(said)
		serves(r, "worker1")
	})
}

// pool adds an IP pool, and a namespace with an application of some pods that takes its addresses from
// it alone and answers for the namespace's name under local.
func (r *testbed) pool(name, cidr string, pods int, spec ...string) {
	r.t.Helper()
	r.apply(fmt.Sprintf("apiVersion: crd.projectcalico.org/v1\nkind: IPPool\nmetadata: {name: %s}\n"+
		"spec: {cidr: %s, ipipMode: Never, vxlanMode: Never, nodeSelector: all(), %s}\n", name, cidr,
		strings.Join(spec, ", ")) +
		fmt.Sprintf("---\napiVersion: v1\nkind: Namespace\n"+
			"metadata: {name: %[1]s, annotations: {cni.projectcalico.org/ipv4pools: '[\"%[1]s\"]'}}\n", name))
	r.eventually("the namespace has its ServiceAccount", func() error {
		_, err := r.Kubectl(r.t.Context(), "-n", name, "get", "serviceaccount", "default")
		return err
	})
	r.apply(rig.App{Namespace: name, Name: "app", Replicas: pods, Grace: 5}.Manifest() +
		rig.Service(name, "app", "app") +
		strings.Replace(ingress("app", "", name+".local / Prefix app"), "{name: app}",
			"{namespace: "+name+", name: app}", 1))
}

// onlyTo makes these the only workers that new pods go to.
func (r *testbed) onlyTo(nodes ...string) {
	r.t.Helper()
	for _, worker := range []string{"worker1", "worker2"} {
		verb := "cordon"
		if slices.Contains(nodes, worker) {
			verb = "uncordon"
		}
		r.kubectl(verb, worker)
	}
}

// scale gives the application of a namespace this many pods, and waits until so many have addresses.
func (r *testbed) scale(namespace string, pods, addresses int) {
	r.t.Helper()
	r.kubectl("-n", namespace, "scale", "deployment", "app", "--replicas", fmt.Sprint(pods))
	r.eventually(fmt.Sprintf("%d pods of %s have addresses", addresses, namespace), func() error {
		out, err := r.Kubectl(r.t.Context(), "-n", namespace, "get", "pods", "-o", "jsonpath={.items[*].status.podIP}")
		if n := len(strings.Fields(out)); err == nil && n != addresses {
			err = fmt.Errorf("%d have", n)
		}
		return err
	})
}

// within returns the routes of the appliance that lie in a range, by the text of its first octets.
func (r *testbed) within(octets string) (routes []string) {
	r.t.Helper()
	for _, route := range r.routes("-4") {
		if strings.HasPrefix(route, octets) {
			routes = append(routes, route)
		}
	}
	slices.Sort(routes)
	return routes
}

// calicoctl runs calicoctl as the administrator.
func (r *testbed) calicoctl(args ...string) string {
	r.t.Helper()
	record, err := world.Read(r.Name())
	r.must(err)
	cmd, err := record.Calicoctl(r.t.Context(), r.t.Output(), args...)
	r.must(err)
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("calicoctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestRealCalicoPoolsOfEachKindAreRoutedOrExplained(t *testing.T) {
	onlyWithCalico(t)
	r := newRealTestbed(t, 0, world.Options{Name: "calpools", Workers: 2, Mesh: true}, settings{
		clusters: []rig.Cluster{{Pools: "172.16.0.0/16, 172.20.0.0/24, 172.21.0.0/24, 172.22.0.0/24, 172.23.0.0/24"}},
	})
	r.kubectl("annotate", "namespace", "default", `cni.projectcalico.org/ipv4pools=["default-ipv4-ippool"]`)
	r.apply(application("app", 4) + ingress("app", "", "test.local / Prefix app"))

	r.sub("blocks of 64 and of 8 addresses stand side by side", func(t *testing.T, r *testbed) {
		r.pool("small", "172.20.0.0/24", 20, "blockSize: 29")
		r.answeredBy("http://small.local/", 20)
		r.answeredBy("http://test.local/", 4)
		r.routedAsClaimed("-4")
		if small := r.within("172.20."); len(small) < 3 || !strings.Contains(small[0], "/29 ") {
			t.Errorf("routes %q, want three blocks of 29 or more", small)
		}
	})
	r.sub("a pool is disabled, and its pods go on", func(_ *testing.T, r *testbed) {
		said := len(r.log())
		r.kubectl("patch", "ippool", "small", "--type=merge", "-p", `{"spec":{"disabled":true}}`)
		r.underLoad("the pool is disabled", func() { r.answeredBy("http://small.local/", 20) })
		r.stands(said)
		r.routedAsClaimed("-4")
	})
	r.sub("a pool is deleted, and its blocks and pods go on", func(_ *testing.T, r *testbed) {
		said := len(r.log())
		r.kubectl("delete", "ippool", "small")
		r.underLoad("the pool is deleted", func() {
			r.must(r.RestartCalico(r.t.Context(), "worker1", 0)) // BIRD has read the configuration without the pool
			r.sessionsWith("master", "worker1", "worker2")
			r.answeredBy("http://small.local/", 20)
		})
		r.stands(said)
		r.routedAsClaimed("-4")
		r.kubectl("delete", "namespace", "small", "--wait=false")
	})
	r.sub("a pool that BGP does not export: its server stays closed, and says why", func(_ *testing.T, r *testbed) {
		r.pool("quiet", "172.21.0.0/24", 1, "disableBGPExport: true")
		r.closed("quiet_svc_app_web", 1, "IP pool quiet (172.21.0.0/24) has disableBGPExport")
	})
	r.sub("addresses of another node's block are routed to the node that borrows them", func(t *testing.T, r *testbed) {
		r.onlyTo("worker1")
		r.pool("lent", "172.22.0.0/28", 1, "blockSize: 29")
		r.scale("lent", 1, 1)
		r.onlyTo("worker2")
		r.scale("lent", 2, 2)
		r.onlyTo("worker1")
		r.scale("lent", 12, 12)
		r.answeredBy("http://lent.local/", 12)
		var borrowed []string
		for _, route := range r.within("172.22.") {
			if !strings.Contains(route, "/29 ") {
				borrowed = append(borrowed, route)
			}
		}
		if len(borrowed) != 3 {
			t.Errorf("borrowed addresses are routed as %q of %q, want three", borrowed, r.within("172.22."))
		}
		for _, route := range borrowed {
			if !strings.HasSuffix(route, " via 192.168.50.23") {
				t.Errorf("route %q, want one via worker1, which has the pod", route)
			}
		}
		said := len(r.log())
		r.must(r.RestartCalico(r.t.Context(), "worker1", 0))
		r.sessionsWith("master", "worker1", "worker2")
		r.stands(said)
		r.answeredBy("http://lent.local/", 12)
		r.kubectl("delete", "namespace", "lent", "--wait=false")
	})
	r.sub("with strict affinity no address is borrowed, and the pods that have one answer",
		func(t *testing.T, r *testbed) {
			r.calicoctl("ipam", "configure", "--strictaffinity=true")
			r.onlyTo("worker1")
			r.pool("strict", "172.23.0.0/28", 1, "blockSize: 29")
			r.scale("strict", 1, 1)
			r.onlyTo("worker2")
			r.scale("strict", 2, 2)
			r.onlyTo("worker1")
			r.scale("strict", 12, 9)
			r.answeredBy("http://strict.local/", 9)
			if got := r.within("172.23."); len(got) != 2 {
				t.Errorf("routes %q, want two blocks", got)
			}
			r.onlyTo("worker1", "worker2")
		})
	if refused := r.mustStatus().Refused; refused.Total > 0 {
		t.Errorf("refused offers %+v, want none", refused)
	}
}

// closed waits until a backend has this many servers, all closed with a reason that contains a text.
func (r *testbed) closed(backend string, n int, why string) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("%d servers of %s are closed: %q", n, backend, why), func() error {
		s, err := r.status()
		if err != nil {
			return err
		}
		for _, b := range s.Backends {
			if b.Name != backend || len(b.Servers) != n {
				continue
			}
			for _, server := range b.Servers {
				if server.State != "closed" || !strings.Contains(server.Why, why) {
					return fmt.Errorf("%+v", server)
				}
			}
			r.t.Logf("closed: %s", b.Servers[0].Why)
			return nil
		}
		return fmt.Errorf("backends %+v", s.Backends)
	})
}

func TestRealCalicoChangesUnderLoadCostNoRequest(t *testing.T) {
	onlyWithCalico(t)
	r := newRealTestbed(t, 4, world.Options{Name: "calchange", Workers: 3, Mesh: true}, settings{})
	r.answeredBy("http://test.local/", 4)

	r.sub("a pod moves to another node", func(t *testing.T, r *testbed) {
		on := func() []string {
			return strings.Fields(r.kubectl("get", "pods", "-l", "app=app", "-o",
				`jsonpath={range .items[*]}{.metadata.name}/{.spec.nodeName} {end}`))
		}
		before := on()
		pod, node, _ := strings.Cut(before[0], "/")
		r.underLoad("a pod moves", func() {
			r.kubectl("cordon", node)
			r.kubectl("delete", "pod", pod)
			r.eventually("four servers are open", func() error { return r.serves(4) })
			r.answeredBy("http://test.local/", 4)
		})
		r.kubectl("uncordon", node)
		if after := on(); slices.ContainsFunc(after, func(p string) bool {
			return !slices.Contains(before, p) && strings.HasSuffix(p, "/"+node)
		}) {
			t.Errorf("pods %q, before %q: want the new one on another node than %s", after, before, node)
		}
	})
	r.sub("ranges of Services beside the pods' blocks are refused, and change no route",
		func(_ *testing.T, r *testbed) {
			said := len(r.log())
			r.underLoad("ranges of Services are announced", func() {
				r.apply("apiVersion: v1\nkind: Service\nmetadata: {name: outside}\nspec:\n  type: LoadBalancer\n" +
					"  externalTrafficPolicy: Local\n  externalIPs: [198.51.100.7]\n  selector: {app: app}\n" +
					"  ports: [{name: web, port: 80, targetPort: http}]\n")
				r.kubectl("patch", "bgpconfiguration", "default", "--type=merge", "-p",
					`{"spec":{"serviceClusterIPs":[{"cidr":"10.96.0.0/16"}],"serviceExternalIPs":[{"cidr":"198.51.100.0/24"}]}}`)
				r.eventually("the ranges and the address are refused", func() error {
					s, err := r.status()
					seen := map[string]bool{}
					for _, refusal := range s.Refused.Shown {
						if refusal.Reason == "not-pods" {
							seen[refusal.Prefix.String()] = true
						}
					}
					if err == nil && (!seen["10.96.0.0/16"] || !seen["198.51.100.0/24"] || !seen["198.51.100.7/32"]) {
						err = fmt.Errorf("refused are %+v", s.Refused)
					}
					return err
				})
				r.routedAsClaimed("-4")
				r.kubectl("patch", "bgpconfiguration", "default", "--type=merge", "-p",
					`{"spec":{"serviceClusterIPs":null,"serviceExternalIPs":null}}`)
				r.eventually("nothing is refused", func() error {
					s, err := r.status()
					if err == nil && s.Refused.Total > 0 {
						err = fmt.Errorf("refused are %+v", s.Refused)
					}
					return err
				})
			})
			r.stands(said)
		})
	r.sub("a node joins and gets pods", func(_ *testing.T, r *testbed) {
		r.underLoad("a node joins", func() {
			_, err := r.AddNode(r.t.Context(), "worker4")
			r.must(err)
			r.sessionsWith(r.nodes()...)
			r.kubectl("scale", "deployment", "app", "--replicas", "12")
			r.answeredBy("http://test.local/", 12)
			r.routedAsClaimed("-4")
		})
	})
	r.sub("a policy of host endpoints that denies BGP ends one session, and the status says so",
		func(t *testing.T, r *testbed) {
			pods := len(strings.Fields(r.kubectl("get", "pods", "-l", "app=app", "-o", "name")))
			r.apply(deniesBGP)
			r.eventually("the session is lost", func() error { return r.silent("worker3") })
			for range 10 {
				if answer, err := r.get("http://test.local/"); err != nil || answer.Code != 200 ||
					answer.Node == "worker3" {
					t.Errorf("answer %d by %q (%v), want 200 by another node than worker3", answer.Code, answer.Node,
						err)
				}
			}
			r.says("no BGP session with node worker3", "whether a firewall drops port 179")
			r.kubectl("delete", "globalnetworkpolicies.crd.projectcalico.org", "no-bgp", "allow")
			r.kubectl("delete", "hostendpoints.crd.projectcalico.org", "worker3")
			r.sessionsWith(r.nodes()...)
			r.eventually("all servers are open", func() error { return r.serves(pods) })
		})
	r.sub("a node dies, and is deleted: the others answer", func(_ *testing.T, r *testbed) {
		r.must(r.KillNode(r.t.Context(), "worker4"))
		host := r.host("worker4").Addr.Addr().String()
		r.eventually("its routes are gone", func() error {
			for _, route := range r.routes("-4") {
				if strings.HasSuffix(route, " via "+host) {
					return errors.New(route)
				}
			}
			return nil
		})
		r.underLoad("the dead node is deleted", func() {
			r.kubectl("delete", "node", "worker4")
			r.eventually("the appliance has forgotten it", func() error {
				s, err := r.status()
				for _, p := range s.Peers {
					if p.Node == "worker4" {
						err = cmp.Or(err, fmt.Errorf("%+v", p))
					}
				}
				return err
			})
			r.answeredBy("http://test.local/", 12)
		})
	})
	r.sub("the dead node is started again, and is back under its name", func(t *testing.T, r *testbed) {
		r.underLoad("the dead node returns", func() {
			r.must(r.LoseNode(t.Context(), "worker4")) // until now it had lost its cable alone
			_, err := r.AddNode(t.Context(), "worker4")
			r.must(err)
			r.sessionsWith(r.nodes()...)
			r.kubectl("scale", "deployment", "app", "--replicas", "16")
			r.answeredBy("http://test.local/", 16)
			r.routedAsClaimed("-4")
		})
	})
	r.sub("a node loses its power, is deleted, and is back before its pods are replaced",
		func(t *testing.T, r *testbed) {
			before := r.host("worker4").Addr
			r.losesForAWhile("worker4", 16, func() {})
			if after := r.host("worker4").Addr; after != before {
				t.Errorf("worker4 is back at %s, want its address of before, %s", after, before)
			}
		})
	r.sub("a node loses its power, is deleted, and is back at another address", func(t *testing.T, r *testbed) {
		before := r.host("worker4").Addr
		r.losesForAWhile("worker4", 16, func() {
			_, err := r.AddNode(t.Context(), "worker5") // at the address that is free now
			r.must(err)
			r.eventually("all pods run on other nodes", func() error { return r.serves(16) })
		})
		if after := r.host("worker4").Addr; after == before {
			t.Errorf("worker4 is back at %s, want another address", after)
		}
	})
}

// losesForAWhile takes a node's power away, deletes the Node as an administrator does, calls
// meanwhile, and brings the node back under its name, all under load. The application has this many
// pods, and in the end four more, some of them on the node.
//
// Requests may fail until the appliance has closed the servers of the dead node: HAProxy finds out
// by its checks, the appliance by the Node. No request that is sent later may fail.
func (r *testbed) losesForAWhile(node string, pods int, meanwhile func()) {
	r.t.Helper()
	if r.openOn(node) == 0 {
		r.t.Fatalf("%s has no open server: nothing would be lost", node)
	}
	var lost, closed time.Time
	failed := r.load(node+" dies, is deleted and returns", func() {
		lost = time.Now()
		r.must(r.LoseNode(r.t.Context(), node))
		r.kubectl("delete", "node", node)
		r.eventually("its servers are closed", func() error {
			if n := r.openOn(node); n > 0 {
				return fmt.Errorf("%d are open", n)
			}
			return nil
		})
		closed = time.Now()
		meanwhile()
		_, err := r.AddNode(r.t.Context(), node)
		r.must(err)
		r.sessionsWith(r.nodes()...)
		r.kubectl("scale", "deployment", "app", "--replicas", fmt.Sprint(pods+4))
		r.answeredBy("http://test.local/", pods+4)
		r.routedAsClaimed("-4")
		if r.openOn(node) == 0 {
			r.t.Errorf("no server on %s is open again", node)
		}
		r.kubectl("scale", "deployment", "app", "--replicas", fmt.Sprint(pods))
		r.eventually("the other servers are gone", func() error { return r.serves(pods) })
	})
	r.t.Logf("the servers of %s were closed after %s", node, closed.Sub(lost).Round(time.Millisecond))
	r.survives(node+" is gone, and returns", failed, closed)
}

// openOn counts the open servers of the application whose pods a node has.
func (r *testbed) openOn(node string) (n int) {
	r.t.Helper()
	for _, b := range r.mustStatus().Backends {
		for _, server := range b.Servers {
			if b.Name == appBackend && server.Node == node && server.State == "open" {
				n++
			}
		}
	}
	return n
}

// nodes returns the names of the lab's nodes, sorted.
func (r *testbed) nodes() (names []string) {
	for _, h := range r.Hosts() {
		if h.Node {
			names = append(names, h.Name)
		}
	}
	slices.Sort(names)
	return names
}

// silent returns an error while a node has a session.
func (r *testbed) silent(node string) error {
	s, err := r.status()
	for _, p := range s.Peers {
		if p.Node == node && p.State == "Established" {
			err = fmt.Errorf("%+v", p)
		}
	}
	return err
}

// deniesBGP drops BGP between worker3 and the appliance, also in connections that are there. Calico
// lets BGP to hosts through before all policies, unless Felix is configured otherwise.
const deniesBGP = `
apiVersion: crd.projectcalico.org/v1
kind: FelixConfiguration
metadata: {name: default}
spec: {failsafeInboundHostPorts: [{protocol: tcp, port: 10250}], failsafeOutboundHostPorts: [{protocol: tcp, port: 6443}]}
---
apiVersion: crd.projectcalico.org/v1
kind: GlobalNetworkPolicy
metadata: {name: allow}
spec: {order: 20, selector: has(host-endpoint), types: [Ingress, Egress], ingress: [{action: Allow}], egress: [{action: Allow}]}
---
apiVersion: crd.projectcalico.org/v1
kind: GlobalNetworkPolicy
metadata: {name: no-bgp}
spec:
  order: 10
  selector: has(host-endpoint)
  doNotTrack: true
  applyOnForward: true
  types: [Ingress]
  ingress: [{action: Deny, protocol: TCP, source: {nets: [192.168.50.21/32]}, destination: {ports: [179]}}]
---
apiVersion: crd.projectcalico.org/v1
kind: HostEndpoint
metadata: {name: worker3, labels: {host-endpoint: "true"}}
spec: {node: worker3, interfaceName: eth0, expectedIPs: [192.168.50.25]}
`

// Without a BGPConfiguration the nodes are in AS 64512 and have a mesh. confd of Calico 3.28 panics
// when it is deleted, and is started again.
func TestRealCalicoWithoutABGPConfigurationKeepsTheRoutes(t *testing.T) {
	onlyWithCalico(t)
	r := newRealTestbed(t, 4, world.Options{Name: "calnoconf", Workers: 2, AS: 64512},
		settings{lines: "bgp: {asn: 64512}"})
	r.answeredBy("http://test.local/", 4)
	r.routedAsClaimed("-4")
	said := len(r.log())
	r.underLoad("BGPConfiguration is deleted", func() {
		r.kubectl("delete", "bgpconfiguration", "default")
		r.neighbours("worker1", "Mesh_", 2) // once confd runs again
		r.sessionsWith("master", "worker1", "worker2")
	})
	r.stands(said)
	r.routedAsClaimed("-4")
}

// The nodes end every session, and come back in another AS.
func TestRealCalicoMovesToAnotherASAndNoRequestFails(t *testing.T) {
	onlyWithCalico(t)
	r := newRealTestbed(t, 4, world.Options{Name: "calas", Workers: 2}, settings{})
	r.answeredBy("http://test.local/", 4)
	r.underLoad("the nodes move to another AS", func() {
		r.kubectl("delete", "bgpconfiguration", "default")
		r.eventually("the nodes are in AS 64512", func() error {
			s, err := r.status()
			for _, p := range s.Peers {
				if p.ASN != 64512 || p.State != "Established" {
					err = cmp.Or(err, fmt.Errorf("%+v", p))
				}
			}
			return err
		})
		r.routedAsClaimed("-4")
	})
	r.answeredBy("http://test.local/", 4)
}

func TestRealCalicoAloneOnIPv6(t *testing.T) {
	onlyWithCalico(t)
	r := newTestbed(t, world.Options{Name: "calsix", Workers: 2, IPv6: true, Calico: world.Real},
		settings{manifests: []string{"--address", "fd00:50::21"}})
	r.kubectl("delete", "bgppeer", "sallyport-192-168-50-21")
	r.apply(application("app", 4) + "  ipFamilies: [IPv6]\n" + ingress("app", "", "test.local / Prefix app"))
	r.start()
	r.eventually("four servers are open", func() error { return r.serves(4) })
	r.routedAsClaimed("-6")
	if got := r.routes("-4"); len(got) > 0 {
		t.Errorf("routes of IPv4 %q, want none", got)
	}
	r.answeredBy("http://test.local/", 4)
}
