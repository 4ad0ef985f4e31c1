package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"sallyport/appliance"
	"sallyport/test/lab/world"
)

// doctor runs `sallyport doctor` on the appliance's host with a configuration file.
func (r *testbed) doctor(file string) (all []appliance.Finding) {
	r.t.Helper()
	out, _ := r.Exec(r.t.Context(), world.Appliance, "sh", "-c", r.file("sallyport")+" doctor --config "+file+" -o json; true")
	r.must(json.Unmarshal([]byte(out), &all))
	return all
}

// finds waits until the doctor has a finding of that level, with these words.
func (r *testbed) finds(file string, level appliance.Level, check string, words ...string) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("the doctor finds %s of %s: %q", level, check, words), func() error {
		all := r.doctor(file)
		for _, f := range all {
			text := f.Saw + " " + f.Remedy + " " + f.Command
			if f.Level == level && f.Check == check && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) }) {
				return nil
			}
		}
		return fmt.Errorf("it finds %s", spelled(all))
	})
}

// lacks waits until the doctor has nothing bad to say of a check.
func (r *testbed) lacks(file, check string) {
	r.t.Helper()
	r.eventually("the doctor finds nothing wrong with "+check, func() error {
		all := r.doctor(file)
		if len(all) < 8 || slices.ContainsFunc(all, func(f appliance.Finding) bool { return f.Level != appliance.Healthy && f.Check == check }) {
			return fmt.Errorf("it finds %s", spelled(all))
		}
		return nil
	})
}

func spelled(all []appliance.Finding) string {
	var b strings.Builder
	for _, f := range all {
		if f.Level != appliance.Healthy {
			fmt.Fprintf(&b, "\n%s %s: %s -> %s", f.Level, f.Check, f.Saw, f.Remedy)
		}
	}
	return b.String()
}

// healthy waits until no check fails.
func (r *testbed) healthy(file string) {
	r.t.Helper()
	r.eventually("the doctor finds nothing that fails", func() error {
		all := r.doctor(file)
		if len(all) < 8 || slices.ContainsFunc(all, func(f appliance.Finding) bool { return f.Level == appliance.Failed }) {
			return fmt.Errorf("it finds %s", spelled(all))
		}
		return nil
	})
}

// TestTheDoctorFindsEachFault makes one fault after another, before the first start and beside
// a running appliance. Without them no check fails.
func TestTheDoctorFindsEachFault(t *testing.T) {
	t.Parallel()
	r := newTestbed(t, world.Options{Name: "doctor", Workers: 1}, settings{})
	r.must(r.ClaimBlocks(t.Context(), world.Master))
	r.apply(application("app", 2) + ingress("app", "", "test.local / Prefix app"))
	file := r.file("sallyport.yaml")
	text := r.read("sallyport.yaml")
	// with writes another configuration file, whose paths are those of the first.
	with := func(r *testbed, old, instead string) string {
		r.t.Helper()
		changed := strings.Replace(text, old, instead, 1)
		if changed == text {
			r.t.Fatalf("the configuration file has no %q", old)
		}
		r.write("other.yaml", changed)
		return r.file("other.yaml")
	}
	const peer = "bgppeer/sallyport-192-168-50-21"
	manifests, err := r.Manifests(t.Context())
	r.must(err)

	r.healthy(file)
	r.finds(file, appliance.Healthy, "node worker1", "knows", "is in AS 65000")
	r.finds(file, appliance.Doubt, "appliance", "no appliance runs here")
	r.sub("a mistake in the configuration file", func(_ *testing.T, r *testbed) {
		r.finds(with(r, "stateDir:", "statedir:"), appliance.Failed, "config", `did you mean "stateDir"`, "config check")
	})
	r.sub("HAProxy is another program", func(_ *testing.T, r *testbed) {
		r.finds(with(r, "binary: ", "binary: /bin/true # "), appliance.Failed, "config")
		r.finds(with(r, "dir: "+r.Dir, "binary: /bin/true, dir: "+r.Dir), appliance.Failed, "config")
	})
	r.sub("a port is in use", func(_ *testing.T, r *testbed) {
		l, err := r.Listen(t.Context(), world.Appliance, "0.0.0.0:80")
		r.must(err)
		r.finds(file, appliance.Failed, "port", "0.0.0.0:80", "in use by another program", "ss -tlnp")
		r.must(l.Close())
		r.healthy(file)
	})
	r.sub("the kubeconfig is missing", func(_ *testing.T, r *testbed) {
		r.must(os.Rename(r.file("kubeconfig"), r.file("away")))
		r.finds(file, appliance.Failed, "cluster lab", "kubeconfig cannot be read")
		r.must(os.Rename(r.file("away"), r.file("kubeconfig")))
	})
	r.sub("no BGPPeer", func(_ *testing.T, r *testbed) {
		r.kubectl("delete", peer)
		r.finds(file, appliance.Failed, "node worker1", "192.168.50.23:179", "BGPPeer", "sallyport manifests")
		r.apply(manifests)
		r.healthy(file)
	})
	r.sub("a firewall drops BGP", func(_ *testing.T, r *testbed) {
		_, err := r.Exec(t.Context(), "worker1", "nft", "add table inet filtered; add chain inet filtered in { type filter hook input priority 0; }; add rule inet filtered in ip saddr 192.168.50.21 tcp dport 179 drop")
		r.must(err)
		r.finds(file, appliance.Failed, "node worker1", "get no answer", "a firewall", "password")
		_, err = r.Exec(t.Context(), "worker1", "nft", "delete table inet filtered")
		r.must(err)
		r.healthy(file)
	})
	r.sub("the router id is a node's", func(_ *testing.T, r *testbed) {
		r.finds(with(r, "stateDir:", "bgp: {routerID: 192.168.50.23}\nstateDir:"), appliance.Failed, "node worker1", "router id 192.168.50.23", "bgp.routerID")
	})
	r.sub("bgp.listen is an address of another machine", func(_ *testing.T, r *testbed) {
		r.finds(with(r, "stateDir:", "bgp: {listen: [192.168.50.99]}\nstateDir:"), appliance.Failed, "node worker1", "192.168.50.99", "no address of this machine")
	})
	r.sub("a right is missing", func(_ *testing.T, r *testbed) {
		r.apply(strings.ReplaceAll(manifests, `"ippools"`, `"nothing"`))
		r.finds(file, appliance.Doubt, "rights and objects", "ippools", "sallyport manifests")
		r.apply(manifests)
	})
	r.sub("a pool is not exported", func(_ *testing.T, r *testbed) {
		pool := strings.Fields(r.kubectl("get", "ippools.crd.projectcalico.org", "-o", "name"))[0]
		r.kubectl("patch", pool, "--type=merge", "-p", `{"spec":{"disableBGPExport":true}}`)
		r.finds(file, appliance.Doubt, "pool", "disableBGPExport", "kubectl patch")
		r.kubectl("patch", pool, "--type=merge", "-p", `{"spec":{"disableBGPExport":false}}`)
	})
	// A node does not see the end of a connection whose packets it drops for their TTL. It takes no
	// other one for four minutes, or for as long as it waits after an error.
	fresh := func() {
		for _, node := range []string{"master", "worker1"} {
			r.must(r.RestartCalico(t.Context(), node, 0))
		}
	}
	r.sub("the node demands a TTL and the appliance does not", func(_ *testing.T, r *testbed) {
		r.kubectl("patch", peer, "--type=merge", "-p", `{"spec":{"ttlSecurity":1}}`)
		r.finds(file, appliance.Failed, "node worker1", "ttlSecurity is not set")
		fresh()
		r.finds(with(r, "asn: 65000", "asn: 65000, ttlSecurity: true"), appliance.Healthy, "node worker1", "knows")
		r.kubectl("patch", peer, "--type=json", "-p", `[{"op":"remove","path":"/spec/ttlSecurity"}]`)
		r.healthy(file)
	})
	r.sub("the appliance demands a TTL and the node does not", func(_ *testing.T, r *testbed) {
		fresh()
		r.finds(with(r, "asn: 65000", "asn: 65000, ttlSecurity: true"), appliance.Failed, "node worker1", "answers without the TTL of 255", "sallyport manifests")
		fresh()
	})
	r.sub("a BGPPeer of an appliance that is gone", func(_ *testing.T, r *testbed) {
		gone, err := r.Manifests(t.Context(), "--address", "192.168.50.99")
		r.must(err)
		r.apply(gone)
		r.finds(file, appliance.Doubt, "BGPPeer", "sallyport-192-168-50-99", "240 s", "kubectl delete bgppeers.crd.projectcalico.org sallyport-192-168-50-99")
		r.kubectl("delete", "bgppeer/sallyport-192-168-50-99")
		r.lacks(file, "BGPPeer")
	})
	r.sub("packets of nodes may come by another interface", func(_ *testing.T, r *testbed) {
		r.lacks(file, "return path")
		r.exec("sh", "-c", "ip link add twin type veth peer name niwt && ip addr add 192.168.50.98/24 dev twin noprefixroute && ip link set twin up && echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter && echo 1 > /proc/sys/net/ipv4/conf/twin/rp_filter")
		r.finds(file, appliance.Doubt, "return path", "rp_filter is 1 on", "twin", "sysctl -w")
		r.exec("sh", "-c", "for i in all default eth0 twin; do echo 2 > /proc/sys/net/ipv4/conf/$i/rp_filter; done")
		r.lacks(file, "return path")
		r.exec("ip", "link", "del", "twin")
	})
	r.sub("more connections than open files", func(_ *testing.T, r *testbed) {
		r.finds(with(r, "binary: ", "maxConnections: 90000000, binary: "), appliance.Doubt, "files", "haproxy.maxConnections is 90000000", "LimitNOFILE")
		r.finds(file, appliance.Healthy, "files", "HAProxy holds")
	})
	r.sub("few ports for connections to a pod", func(_ *testing.T, r *testbed) {
		was := strings.TrimSpace(r.exec("cat", "/proc/sys/net/ipv4/ip_local_port_range"))
		r.exec("sh", "-c", "echo 60000 60999 > /proc/sys/net/ipv4/ip_local_port_range")
		r.finds(file, appliance.Doubt, "ports-to-pods", "1000 ports", "sysctl -w net.ipv4.ip_local_port_range")
		r.exec("sh", "-c", "echo "+was+" > /proc/sys/net/ipv4/ip_local_port_range")
		r.finds(file, appliance.Healthy, "ports-to-pods")
	})
	r.sub("two clusters have a pool in common", func(_ *testing.T, r *testbed) {
		first := text[strings.Index(text, "- {name: lab"):strings.Index(text, "\nhaproxy:")]
		twin := strings.NewReplacer("name: lab", "name: twin", `172.16.0.0/16, "fd00:172:16::/48"`, "").Replace(first)
		r.finds(with(r, first, first+"\n"+twin), appliance.Failed, "pools", "of cluster lab and", "of cluster twin have addresses in common")
	})

	r.start()
	r.ready()
	r.answeredBy("http://test.local/", 2)
	r.healthy(file)
	r.finds(file, appliance.Healthy, "node worker1", "BGP with 192.168.50.23 is established", "1 prefixes")
	r.finds(file, appliance.Healthy, "servers", "2 open")
	r.sub("a session is lost", func(_ *testing.T, r *testbed) {
		r.kubectl("delete", peer)
		r.finds(file, appliance.Failed, "node worker1", "its last session was lost")
		r.apply(manifests)
		r.healthy(file)
	})
	r.sub("pods do not admit the appliance", func(_ *testing.T, r *testbed) {
		_, err := r.Exec(t.Context(), "worker1", "nft", "add table inet denied; add chain inet denied through { type filter hook forward priority 0; }; add rule inet denied through ip saddr 192.168.50.21 tcp dport 8080 drop")
		r.must(err)
		r.finds(file, appliance.Doubt, "servers", "(L4TOUT)", "pods see 192.168.50.21 as the source", "ipBlock of 192.168.50.21/32", "rp_filter", "kubectl get networkpolicies")
		_, err = r.Exec(t.Context(), "worker1", "nft", "delete table inet denied")
		r.must(err)
		r.lacks(file, "servers")
	})
	r.sub("a node has an AS number that is none", func(_ *testing.T, r *testbed) {
		r.kubectl("annotate", "node", "worker1", "projectcalico.org/ASNumber=many")
		r.finds(file, appliance.Doubt, "appliance", "projectcalico.org/ASNumber")
		r.kubectl("annotate", "node", "worker1", "projectcalico.org/ASNumber-")
	})
	r.sub("an Ingress leads to a Service that does not exist", func(_ *testing.T, r *testbed) {
		r.apply(ingress("lost", "", "lost.local / Prefix nowhere"))
		r.finds(file, appliance.Doubt, "objects", "Ingress default/lost", "nowhere")
		r.kubectl("delete", "ingress", "lost")
	})
	r.healthy(file)
}
