package e2e

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"sallyport/appliance/status"
	"sallyport/haproxy"
	"sallyport/test/faults"
	"sallyport/test/lab/world"
)

// doctor runs `sallyport doctor` on the appliance's host with a configuration file.
func (r *testbed) doctor(file string) (all []status.Finding) {
	r.t.Helper()
	out, _ := r.Exec(r.t.Context(), world.Appliance, "sh", "-c",
		r.before+" "+r.file("sallyport")+" doctor --config "+file+" -o json; true")
	r.must(json.Unmarshal([]byte(out), &all))
	return all
}

// where returns a testbed whose doctor runs behind other words of a shell.
func (r *testbed) where(before string) *testbed { return &testbed{Rig: r.Rig, t: r.t, before: before} }

// finds waits until the doctor has a finding of that level, with these words.
func (r *testbed) finds(file string, level status.Level, check string, words ...string) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("the doctor finds %s of %s: %q", level, check, words), func() error {
		return r.found(file, level, check, words...)
	})
}

// found returns an error unless the doctor has a finding of that level, with these words.
func (r *testbed) found(file string, level status.Level, check string, words ...string) error {
	r.t.Helper()
	all := r.doctor(file)
	for _, f := range all {
		text := f.Saw + " " + f.Remedy + " " + f.Command
		if f.Level == level && f.Check == check && !slices.ContainsFunc(words, func(w string) bool {
			return !strings.Contains(text, w)
		}) {
			return nil
		}
	}
	return fmt.Errorf("it finds %s", spelled(all))
}

// lacks waits until the doctor has nothing bad to say of a check.
func (r *testbed) lacks(file, check string) {
	r.t.Helper()
	r.eventually("the doctor finds nothing wrong with "+check, func() error {
		all := r.doctor(file)
		if len(all) < 8 || slices.ContainsFunc(all, func(f status.Finding) bool {
			return f.Level != status.Healthy && f.Check == check
		}) {
			return fmt.Errorf("it finds %s", spelled(all))
		}
		return nil
	})
}

// proxied starts a proxy before the API server, whose clock is an hour late and whose certificate
// expires at some time, and returns a kubeconfig for it.
func (r *testbed) proxied(t *testing.T, kubeconfig string, end time.Time) string {
	t.Helper()
	api := regexp.MustCompile(`server: (https://\S+)`).FindStringSubmatch(kubeconfig)
	if api == nil {
		t.Fatal("the kubeconfig has no server")
	}
	to, err := url.Parse(api[1])
	r.must(err)
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.Transport = &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // a server of the lab
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return r.Dial(ctx, world.Appliance, address)
		},
	}
	proxy.ModifyResponse = func(answer *http.Response) error {
		answer.Header.Set("Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat))
		return nil
	}
	cert, key := certificate(t, "127.0.0.1", end)
	pair, err := tls.X509KeyPair(cert, key)
	r.must(err)
	server := httptest.NewUnstartedServer(proxy)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}} //nolint:gosec // a server of the lab
	r.must(server.Listener.Close())
	server.Listener, err = r.Listen(t.Context(), world.Appliance, "127.0.0.1:6444")
	r.must(err)
	server.StartTLS()
	t.Cleanup(server.Close)
	kubeconfig = strings.Replace(kubeconfig, api[1], server.URL, 1)
	return regexp.MustCompile(`certificate-authority-data: \S+`).ReplaceAllString(kubeconfig,
		"certificate-authority-data: "+base64.StdEncoding.EncodeToString(cert))
}

func spelled(all []status.Finding) string {
	var b strings.Builder
	for _, f := range all {
		if f.Level != status.Healthy {
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
		if len(all) < 8 || slices.ContainsFunc(all, func(f status.Finding) bool {
			return f.Level == status.Failed
		}) {
			return fmt.Errorf("it finds %s", spelled(all))
		}
		return nil
	})
}

// A patient is a testbed of one worker with an application. The doctor finds its faults. Without a
// fault no check fails.
type patient struct {
	*testbed
	file, text string // the configuration file
	manifests  string
}

// patientPeer is the BGPPeer of the nodes with the patient.
const patientPeer = "bgppeer/sallyport-192-168-50-21"

func newPatient(t *testing.T, lab string) patient {
	t.Helper()
	r := newTestbed(t, world.Options{Name: lab, Workers: 1}, settings{})
	r.must(r.ClaimBlocks(t.Context(), world.Master))
	r.apply(application("app", 2) + ingress("app", "", "test.local / Prefix app"))
	manifests, err := r.Manifests(t.Context())
	r.must(err)
	return patient{r, r.file("sallyport.yaml"), r.read("sallyport.yaml"), manifests}
}

// with writes another configuration file with the paths of the first.
func (p patient) with(r *testbed, old, instead string) string {
	r.t.Helper()
	changed := strings.Replace(p.text, old, instead, 1)
	if changed == p.text {
		r.t.Fatalf("the configuration file has no %q", old)
	}
	r.write("other.yaml", changed)
	return r.file("other.yaml")
}

// quic makes a ConfigMap ask for QUIC, which Debian's HAProxy is built without.
func (p patient) quic(r *testbed) (undo func()) {
	r.t.Helper()
	r.kubectl("create", "configmap", "haproxy", "--from-literal=quic-bind-port=443")
	r.write("sallyport.yaml", strings.Replace(p.text, "ingress: {", "ingress: {configMap: default/haproxy, ", 1))
	allowed, err := r.Manifests(r.t.Context())
	r.must(err)
	r.apply(allowed)
	return func() {
		r.write("sallyport.yaml", p.text)
		r.kubectl("delete", "configmap", "haproxy")
		r.apply(p.manifests)
	}
}

// TestTheDoctorFindsEachFaultBeforeTheFirstStart makes one fault after another.
func TestTheDoctorFindsEachFaultBeforeTheFirstStart(t *testing.T) {
	beside(t, long)
	p := newPatient(t, "doctor")
	r, file, text, manifests, with, peer := p.testbed, p.file, p.text, p.manifests, p.with, patientPeer

	r.healthy(file)
	r.finds(file, status.Healthy, "node worker1", "knows", "is in AS 65000")
	r.finds(file, status.Doubt, "appliance", "no appliance runs here")
	r.sub("a mistake in the configuration file", func(_ *testing.T, r *testbed) {
		r.finds(with(r, "stateDir:", "statedir:"), status.Failed, "config", `did you mean "stateDir"`,
			"config check")
	})
	r.sub("everybody can read the kubeconfig", func(_ *testing.T, r *testbed) {
		r.must(os.Chmod(r.file("kubeconfig"), 0o644))
		r.finds(file, status.Doubt, "config", "every user of this machine can read", "sallyport config check")
		r.must(os.Chmod(r.file("kubeconfig"), 0o600))
		r.lacks(file, "config")
	})
	binary := regexp.MustCompile(`binary: [^,]+`).FindString(text)
	r.sub("HAProxy is another program, too old, or built without what it needs", func(_ *testing.T, r *testbed) {
		for words, script := range map[string]string{
			"is not HAProxy":    "echo none of it",
			"is too old":        "echo HAProxy version 2.4.22-0ubuntu0.22.04.3 2023/12/04",
			"was built without": "haproxy -vv | sed s/+PCRE2/-PCRE2/",
		} {
			r.write("program", "#!/bin/sh\n"+script+"\n")
			r.must(os.Chmod(r.file("program"), 0o700))
			r.finds(with(r, binary, "binary: "+r.file("program")), status.Failed, "haproxy", words,
				"apt install haproxy")
		}
		r.lacks(file, "haproxy")
		for feature, words := range map[string]string{"PROMEX": "/metrics/haproxy", "LIBCRYPT": "auth-secret"} {
			r.write("program", "#!/bin/sh\nhaproxy -vv | sed s/+"+feature+"/-"+feature+"/\n")
			r.finds(with(r, binary, "binary: "+r.file("program")), status.Doubt, "haproxy",
				"was built without "+feature, words, "or name a HAProxy that has it")
		}
	})
	r.sub("keepalived is missing", func(_ *testing.T, r *testbed) {
		member := with(r, "stateDir:", "group: {name: lab, secret: "+strings.Repeat("c2FsbHlwb3J0", 4)+
			", addresses: [192.168.50.200], members: [{name: e2e, address: 192.168.50.21}, {name: two, address: "+
			"192.168.50.12}], vrrp: {interface: eth0}}\nstateDir:")
		r.where("PATH=/nowhere").finds(member, status.Failed, "keepalived", "not in PATH", "apt install keepalived")
		r.lacks(member, "keepalived")
	})
	r.sub("another program has the port of the status endpoint", func(_ *testing.T, r *testbed) {
		leave := r.squat("127.0.0.1:9090")
		r.finds(file, status.Failed, "appliance", "does not answer as an appliance", "ss -tlnp")
		leave()
	})
	r.sub("a port is in use", func(_ *testing.T, r *testbed) {
		l, err := r.Listen(t.Context(), world.Appliance, "0.0.0.0:80")
		r.must(err)
		r.finds(file, status.Failed, "port", "0.0.0.0:80", "in use by another program", "ss -tlnp")
		r.must(l.Close())
		r.healthy(file)
	})
	r.sub("a port's address is another machine's, or the port may not be had", func(_ *testing.T, r *testbed) {
		r.finds(with(r, "haproxy: {", "haproxy: {http: [\"192.168.50.99:80\"], "), status.Failed, "port",
			"192.168.50.99:80", "is no address of this machine", "ip address")
		r.where("setpriv --bounding-set=-net_bind_service").finds(file, status.Failed, "port", ":80",
			"CAP_NET_BIND_SERVICE")
	})
	r.sub("the table of connections is nearly full", func(_ *testing.T, r *testbed) {
		r.exec("nft", "add table inet tracked; add chain inet tracked in { type filter hook input priority 0; }; add "+
			"rule inet tracked in ct state established accept")
		r.write("few", "3\n") // the doctor's own connections are more; the kernel's bound is that of this whole machine
		r.where("mount --bind "+r.file("few")+" /proc/sys/net/netfilter/nf_conntrack_max && ").finds(file,
			status.Doubt, "conntrack", "of 3 entries of the connection table are in use",
			"sysctl -w net.netfilter.nf_conntrack_max")
		r.finds(file, status.Healthy, "conntrack", "entries of the connection table are in use")
		r.exec("nft", "delete table inet tracked")
	})
	r.sub("the kubeconfig is missing", func(_ *testing.T, r *testbed) {
		r.must(os.Rename(r.file("kubeconfig"), r.file("away")))
		r.finds(file, status.Failed, "cluster default", "kubeconfig cannot be read")
		r.must(os.Rename(r.file("away"), r.file("kubeconfig")))
	})
	r.sub("the kubeconfig is no kubeconfig", func(_ *testing.T, r *testbed) {
		good := r.read("kubeconfig")
		r.write("kubeconfig", "nonsense")
		r.finds(file, status.Failed, "cluster default", "correct the kubeconfig", "config view")
		r.write("kubeconfig", good)
		r.lacks(file, "cluster default")
	})
	r.sub("the API server does not answer", func(_ *testing.T, r *testbed) {
		mend := r.without(r.api())
		r.finds(file, status.Failed, "cluster default", "its API server cannot be reached", "get --raw /readyz")
		mend()
		r.lacks(file, "cluster default")
	})
	r.sub("credentials expire soon, and nobody renews them", func(t *testing.T, r *testbed) {
		r.finds(file, status.Doubt, "credentials", "the token or certificate in the kubeconfig of cluster default",
			"expires at", "sallyport manifests")
		lasting, err := r.ServiceAccountKubeconfig(t.Context(), "kube-system", "sallyport", 365*24*time.Hour)
		r.must(err)
		r.write("lasting", string(lasting))
		r.lacks(with(r, "kubeconfig: kubeconfig", "kubeconfig: lasting"), "credentials")
	})
	r.sub("the token of the kubeconfig is refused, and that which an appliance has saved is not",
		func(t *testing.T, r *testbed) {
			lasting, err := r.ServiceAccountKubeconfig(t.Context(), "kube-system", "sallyport", 365*24*time.Hour)
			r.must(err)
			saved := regexp.MustCompile("token: (.*)").FindStringSubmatch(string(lasting))
			// another signature
			r.write("refused", regexp.MustCompile("(token: .*)....").ReplaceAllString(r.read("kubeconfig"), "${1}AAAA"))
			other := with(r, "kubeconfig: kubeconfig", "kubeconfig: refused")
			r.finds(other, status.Failed, "cluster default", "check the address, the CA and the credentials",
				"auth can-i --list")
			r.must(os.MkdirAll(r.file("state"), 0o750))
			r.write("state/token-default", saved[1])
			r.lacks(other, "cluster default")
			r.must(os.Remove(r.file("state/token-default")))
		})
	r.sub("the clocks differ, and the API server's certificate expires soon", func(t *testing.T, r *testbed) {
		r.write("proxied", r.proxied(t, r.read("kubeconfig"), time.Now().AddDate(0, 0, 9)))
		other := with(r, "kubeconfig: kubeconfig", "kubeconfig: proxied")
		r.finds(other, status.Doubt, "clock", "1h0m", "apart", "timedatectl")
		r.lacks(file, "clock")
		r.finds(other, status.Doubt, "certificate", "a certificate of the API server of cluster default", "expires at",
			"kubeadm certs renew apiserver")
		r.lacks(file, "certificate")
	})
	r.sub("the certificate of an Ingress expires", func(t *testing.T, r *testbed) {
		r.apply(ingress("tls", "tls: [{hosts: [tls.local], secretName: web-tls}]", "tls.local / Prefix app"))
		valid := func(days int) { r.apply(secretUntil(t, "web-tls", "tls.local", time.Now().AddDate(0, 0, days))) }
		valid(90)
		r.finds(file, status.Healthy, "certificate", "Secret default/web-tls of cluster default (tls.local)",
			"is valid until")
		valid(9)
		r.finds(file, status.Doubt, "certificate", "the one in Secret ",
			"default/web-tls of cluster default (tls.local)", "expires at", "renew it",
			"kubectl -n default create secret tls web-tls")
		valid(-1)
		r.finds(file, status.Failed, "certificate", "Secret default/web-tls", "expired at",
			"kubectl -n default create secret tls web-tls")
		r.kubectl("delete", "ingress/tls", "secret/web-tls")
		r.lacks(file, "certificate")
	})
	r.sub("the certificate of the status endpoint expires soon", func(t *testing.T, r *testbed) {
		for days, find := range map[int]func(file string){
			9: func(file string) {
				r.finds(file, status.Doubt, "certificate", "the certificate of the status endpoint (status.tls)",
					"expires at", "systemctl reload sallyport")
			},
			90: func(file string) { r.lacks(file, "certificate") },
		} {
			cert, key := certificate(t, "127.0.0.1", time.Now().AddDate(0, 0, days))
			r.write("status.crt", string(cert))
			r.write("status.key", string(key))
			find(with(r, "stateDir:",
				fmt.Sprintf("status: {tls: {certificate: %s, key: %s}}\nstateDir:", r.file("status.crt"),
					r.file("status.key"))))
		}
	})
	r.sub("the mesh of the nodes is off, and there is no reflector", func(_ *testing.T, r *testbed) {
		mesh := func(on bool) {
			r.kubectl("patch", "bgpconfigurations.crd.projectcalico.org/default", "--type=merge", "-p",
				fmt.Sprintf(`{"spec":{"nodeToNodeMeshEnabled":%t}}`, on))
		}
		r.finds(file, status.Doubt, "mesh", "the node-to-node mesh is off", "2 nodes", "master, worker1",
			"kubectl patch bgpconfigurations.")
		mesh(true)
		r.lacks(file, "mesh")
		mesh(false)
	})
	r.sub("HAProxy is built without what a ConfigMap asks for", func(_ *testing.T, r *testbed) {
		undo := p.quic(r)
		r.finds(file, status.Doubt, "objects", "ConfigMap default/haproxy", "this HAProxy is not built with QUIC",
			"USE_QUIC=1", "kubectl get ingresses")
		undo()
		r.lacks(file, "objects")
	})
	r.sub("the appliance and the nodes expect other AS numbers", func(_ *testing.T, r *testbed) {
		r.finds(with(r, "asn: 65000", "asn: 65099"), status.Doubt, "Calico's objects", "the nodes are in AS 65000",
			"expects AS 65099")
		r.kubectl("patch", peer, "--type=merge", "-p", `{"spec":{"asNumber":65098}}`)
		r.finds(file, status.Doubt, "Calico's objects", "spec.asNumber is 65098", "the appliance is in AS 65000")
		r.apply(manifests)
		r.lacks(file, "Calico's objects")
	})
	r.sub("nodes would learn from the appliance", func(_ *testing.T, r *testbed) {
		r.kubectl("delete", "bgpfilters.crd.projectcalico.org/sallyport")
		r.finds(file, status.Doubt, "Calico's objects", "does not exist",
			"would learn whatever the address of the appliance announces")
		r.apply(manifests)
		r.lacks(file, "Calico's objects")
	})
	r.sub("a node has no BGP address, or one elsewhere", func(_ *testing.T, r *testbed) {
		const annotation = "projectcalico.org/IPv4Address"
		r.kubectl("annotate", "node", "worker1", annotation+"-")
		r.finds(file, status.Failed, "node worker1", "it has no BGP address", "calico-node")
		r.kubectl("annotate", "node", "worker1", annotation+"=10.77.0.5/24")
		r.finds(file, status.Failed, "node worker1", "10.77.0.5 is in no network that this machine is connected to",
			"ip route get")
		r.kubectl("annotate", "--overwrite", "node", "worker1", annotation+"=192.168.50.23/24")
		r.healthy(file)
	})
	r.sub("there is no route to a node", func(_ *testing.T, r *testbed) {
		r.exec("ip", "route", "add", "unreachable", "192.168.50.23/32")
		r.finds(file, status.Failed, "node worker1", "there is no route to", "ip route get")
		r.exec("ip", "route", "del", "unreachable", "192.168.50.23/32")
		r.healthy(file)
	})
	r.sub("something else answers at a node's BGP port", func(t *testing.T, r *testbed) {
		var answer atomic.Value // a function of a connection
		l, err := r.Listen(t.Context(), "worker1", "0.0.0.0:1790")
		r.must(err)
		defer l.Close() //nolint:errcheck // its loop ends
		go func() {
			var open []net.Conn // the garbage collector closes a connection that nothing holds
			for {
				conn, err := l.Accept()
				if err != nil {
					for _, conn := range open {
						_ = conn.Close()
					}
					return
				}
				open = append(open, conn)
				answer.Load().(func(net.Conn))(conn)
			}
		}()
		nft := func(script string) {
			_, err := r.Exec(t.Context(), "worker1", "nft", script)
			r.must(err)
		}
		nft("add table ip other; add chain ip other in { type nat hook prerouting priority -100; }; add rule ip " +
			"other in ip saddr 192.168.50.21 tcp dport 179 redirect to :1790")
		silent := func(net.Conn) {}
		answer.Store(silent)
		r.finds(file, status.Failed, "node worker1", "takes the connection", "and sends nothing",
			"ask again in four minutes")
		answer.Store(func(conn net.Conn) {
			open, err := bgp.NewBGPOpenMessage(65066, 90, netip.MustParseAddr("192.0.2.66"), nil)
			r.must(err)
			text, err := open.Serialize()
			r.must(err)
			_, _ = conn.Write(text)
		})
		r.finds(file, status.Failed, "node worker1", "is in AS 65066", ", and the cluster's objects say AS",
			"projectcalico.org/ASNumber")
		answer.Store(func(conn net.Conn) { _, _ = conn.Write([]byte("SSH-2.0-OpenSSH_9.2p1\r\n")) })
		r.finds(file, status.Failed, "node worker1", "192.168.50.23:179: no BGP message",
			"look at the way to the node")
		nft("add rule ip other in tcp dport 1 redirect to :2; flush chain ip other in; add rule ip other in ip saddr " +
			"192.168.50.21 tcp dport 179 redirect to :2")
		r.finds(file, status.Failed, "node worker1", "nothing listens at", "CALICO_NETWORKING_BACKEND")
		nft("delete table ip other")
		r.healthy(file)
	})
	r.sub("the appliance has a password and the node has none", func(_ *testing.T, r *testbed) {
		r.finds(with(r, "asn: 65000", "asn: 65000, password: not-the-same"), status.Failed, "node worker1",
			"answers without a password", "give the BGPPeer the same password")
	})
	r.sub("no BGPPeer", func(_ *testing.T, r *testbed) {
		r.kubectl("delete", peer)
		r.finds(file, status.Failed, "node worker1", "192.168.50.23:179", "BGPPeer", "sallyport manifests")
		r.apply(manifests)
		r.healthy(file)
	})
	// filtered runs the doctor behind a firewall on one host: hook and match of nftables.
	filtered := func(r *testbed, host string, rules []string, find func()) {
		r.t.Helper()
		mend := r.without(faults.Filter(r.Rig, host, rules...))
		find()
		mend()
	}
	const (
		toNode, fromUs = "output ip daddr 192.168.50.23 tcp dport 179", "input ip saddr 192.168.50.21 tcp dport 179"
		toUs, fromNode = "output ip daddr 192.168.50.21", "input ip saddr 192.168.50.23 tcp"
	)
	dropped := func(where, host string, rules []string, find func(r *testbed)) {
		r.sub("a firewall drops BGP: "+where, func(_ *testing.T, r *testbed) {
			filtered(r, host, rules, func() { find(r) })
			r.healthy(file)
		})
	}
	dropped("on the node, what arrives", "worker1", []string{fromUs + " drop"}, func(r *testbed) {
		r.finds(file, status.Failed, "node worker1", "get no answer, and those from there to this machine",
			"arrive: a firewall", "let the node take packets from this machine to TCP port 179", "nft list ruleset    # on worker1")
	})
	dropped("on the node, everything", "worker1", []string{fromUs + " drop", toUs + " tcp dport 179 drop"},
		func(r *testbed) {
			r.finds(file, status.Failed, "node worker1", "get no answer, and none arrive from there",
				"in both directions", "nft list ruleset    # on worker1")
		})
	dropped("here, what leaves", world.Appliance, []string{toNode + " drop"}, func(r *testbed) {
		r.finds(file, status.Failed, "node worker1", "do not leave this machine: its own firewall drops them",
			"nft list ruleset")
	})
	dropped("here, the answers", world.Appliance, []string{fromNode + " sport 179 drop"}, func(r *testbed) {
		r.finds(file, status.Failed, "node worker1", "the answer of 192.168.50.23:179",
			"arrives at this machine, which drops it: by its own firewall", "nft list ruleset")
	})
	dropped("on the node, with ICMP's port unreachable", "worker1", []string{fromUs + " reject"}, func(r *testbed) {
		r.finds(file, status.Failed, "node worker1", "a firewall rejects the packets",
			"no reset of TCP comes from there", "nft list ruleset    # on worker1")
	})
	dropped("on the node, with ICMP's prohibited", "worker1", []string{fromUs + " reject with icmp admin-prohibited"},
		func(r *testbed) {
			r.finds(file, status.Failed, "node worker1", "a firewall rejects the packets", " by ICMP: ",
				"nft list ruleset    # on worker1")
		})
	r.sub("a firewall drops BGP, and the doctor may not see packets", func(_ *testing.T, r *testbed) {
		filtered(r, "worker1", []string{fromUs + " drop"}, func() {
			r.where("setpriv --bounding-set=-net_raw").finds(file, status.Failed, "node worker1", "get no answer",
				"run the doctor as root")
		})
	})
	r.sub("the passwords differ, or one side alone has one", func(t *testing.T, r *testbed) {
		r.kubectl("-n", "kube-system", "create", "secret", "generic", "sallyport-bgp",
			"--from-literal=password=correct-horse")
		r.kubectl("patch", peer, "--type=merge", "-p",
			`{"spec":{"password":{"secretKeyRef":{"name":"sallyport-bgp","key":"password"}}}}`)
		r.finds(file, status.Failed, "node worker1", "signs its packets", "clusters[].bgp.password is not set",
			"kubectl get bgppeers")
		r.finds(with(r, "asn: 65000", "asn: 65000, password: battery-staple"), status.Failed, "node worker1",
			"has another password than clusters[].bgp.password", "the same password")
		r.finds(with(r, "asn: 65000", "asn: 65000, password: correct-horse"), status.Healthy, "node worker1",
			"knows")
		r.kubectl("patch", peer, "--type=json", "-p", `[{"op":"remove","path":"/spec/password"}]`)
		r.kubectl("-n", "kube-system", "delete", "secret", "sallyport-bgp")
		r.healthy(file)
		filtered(r, "worker1", []string{fromUs + " drop"}, func() {
			r.finds(with(r, "asn: 65000", "asn: 65000, password: correct-horse"), status.Failed, "node worker1",
				"does not sign its packets", "give the BGPPeer the same password")
		})
		r.healthy(file)
	})
	r.sub("nodes have to connect, and their packets are dropped", func(t *testing.T, r *testbed) {
		passive := with(r, "asn: 65000", "asn: 65000, mode: passive")
		r.finds(passive, status.Healthy, "node worker1", "connections of its BGP speaker from 192.168.50.23 arrive")
		filtered(r, world.Appliance, []string{fromNode + " dport 179 drop"}, func() {
			r.finds(passive, status.Failed, "node worker1", "connections of its BGP speaker",
				"arrive at this machine, which drops them", "nft list ruleset")
		})
		filtered(r, "worker1", []string{toUs + " tcp dport 179 drop"}, func() {
			r.finds(passive, status.Failed, "node worker1", "answers, and no connection from there arrives",
				"let the node send to that port", "nft list ruleset    # on worker1")
		})
	})
	r.sub("the router id is a node's", func(_ *testing.T, r *testbed) {
		r.finds(with(r, "stateDir:", "bgp: {routerID: 192.168.50.23}\nstateDir:"), status.Failed, "node worker1",
			"router id 192.168.50.23", "bgp.routerID")
	})
	r.sub("bgp.listen is an address of another machine", func(_ *testing.T, r *testbed) {
		r.finds(with(r, "stateDir:", "bgp: {listen: [192.168.50.99]}\nstateDir:"), status.Failed, "node worker1",
			"192.168.50.99", "no address of this machine")
	})
	r.sub("a right is missing", func(_ *testing.T, r *testbed) {
		r.apply(strings.ReplaceAll(manifests, `"ippools"`, `"nothing"`))
		r.finds(file, status.Doubt, "rights and objects", "ippools", "sallyport manifests")
		r.apply(manifests)
	})
	r.sub("a pool is not exported", func(_ *testing.T, r *testbed) {
		pool := strings.Fields(r.kubectl("get", "ippools.crd.projectcalico.org", "-o", "name"))[0]
		r.kubectl("patch", pool, "--type=merge", "-p", `{"spec":{"disableBGPExport":true}}`)
		r.finds(file, status.Doubt, "pool", "disableBGPExport", "kubectl patch")
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
		r.finds(file, status.Failed, "node worker1", "ttlSecurity is not set")
		fresh()
		r.finds(with(r, "asn: 65000", "asn: 65000, ttlSecurity: true"), status.Healthy, "node worker1", "knows")
		r.kubectl("patch", peer, "--type=json", "-p", `[{"op":"remove","path":"/spec/ttlSecurity"}]`)
		r.healthy(file)
	})
	r.sub("the appliance demands a TTL and the node does not", func(_ *testing.T, r *testbed) {
		fresh()
		r.finds(with(r, "asn: 65000", "asn: 65000, ttlSecurity: true"), status.Failed, "node worker1",
			"answers without the TTL of 255", "sallyport manifests")
		fresh()
	})
	r.sub("a BGPPeer of an appliance that is gone", func(_ *testing.T, r *testbed) {
		gone, err := r.Manifests(t.Context(), "--address", "192.168.50.99")
		r.must(err)
		r.apply(gone)
		r.finds(file, status.Doubt, "BGPPeer", "sallyport-192-168-50-99", "240 s",
			"kubectl delete bgppeers.crd.projectcalico.org sallyport-192-168-50-99")
		r.kubectl("delete", "bgppeer/sallyport-192-168-50-99")
		r.lacks(file, "BGPPeer")
	})
	r.sub("packets of nodes may come by another interface", func(_ *testing.T, r *testbed) {
		r.lacks(file, "return path")
		r.exec("sh", "-c", "ip link add twin type veth peer name niwt && ip addr add 192.168.50.98/24 dev twin "+
			"noprefixroute && ip link set twin up && echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter && echo 1 > "+
			"/proc/sys/net/ipv4/conf/twin/rp_filter")
		r.finds(file, status.Doubt, "return path", "rp_filter is 1 on", "twin", "sysctl -w")
		r.exec("sh", "-c", "for i in all default eth0 twin; do echo 2 > /proc/sys/net/ipv4/conf/$i/rp_filter; done")
		r.lacks(file, "return path")
		r.exec("ip", "link", "del", "twin")
	})
	r.sub("more connections than open files", func(_ *testing.T, r *testbed) {
		r.finds(with(r, "binary: ", "maxConnections: 90000000, binary: "), status.Doubt, "files",
			"haproxy.maxConnections is 90000000", "LimitNOFILE")
		r.finds(file, status.Healthy, "files", "HAProxy holds")
	})
	r.sub("few ports for connections to a pod", func(_ *testing.T, r *testbed) {
		was := strings.TrimSpace(r.exec("cat", "/proc/sys/net/ipv4/ip_local_port_range"))
		r.exec("sh", "-c", "echo 60000 60999 > /proc/sys/net/ipv4/ip_local_port_range")
		r.finds(file, status.Doubt, "ports-to-pods", "1000 ports", "sysctl -w net.ipv4.ip_local_port_range")
		r.exec("sh", "-c", "echo "+was+" > /proc/sys/net/ipv4/ip_local_port_range")
		r.finds(file, status.Healthy, "ports-to-pods")
	})
	r.sub("the machine has no address in the source of a cluster", func(_ *testing.T, r *testbed) {
		source := func(network string) string { return with(r, `, "fd00:172:16::/48"]`, "], source: "+network) }
		r.finds(source("192.168.99.0/24"), status.Failed, "source", "no address of its own in 192.168.99.0/24",
			"clusters[].source", "ip address")
		r.lacks(source("192.168.50.0/24"), "source")
	})
	r.sub("two clusters have a pool in common", func(_ *testing.T, r *testbed) {
		first := text[strings.Index(text, "- {name: default"):strings.Index(text, "\nhaproxy:")]
		twin := strings.NewReplacer("name: default", "name: twin", `172.16.0.0/16, "fd00:172:16::/48"`, "").Replace(first)
		r.finds(with(r, first, first+"\n"+twin), status.Failed, "pools", "of cluster default and",
			"of cluster twin have addresses in common")
		r.lacks(with(r, first, strings.Replace(first, "172.16.0.0/16", "172.16.0.0/17", 1)+"\n"+
			strings.NewReplacer("name: default", "name: twin", "172.16.0.0/16", "172.16.128.0/17",
				"fd00:172:16::/48", "fd00:172:17::/48").Replace(first)), "pools")
	})
}

// TestTheDoctorFindsEachFaultBesideAnAppliance makes one fault after another while the appliance runs.
func TestTheDoctorFindsEachFaultBesideAnAppliance(t *testing.T) {
	beside(t, long)
	p := newPatient(t, "patient")
	r, file, text, manifests, peer := p.testbed, p.file, p.text, p.manifests, patientPeer
	r.start()
	r.ready()
	r.answeredBy("http://test.local/", 2)
	r.healthy(file)
	r.finds(file, status.Healthy, "node worker1", "BGP with 192.168.50.23 is established", "1 prefixes")
	r.finds(file, status.Healthy, "servers", "2 open")
	r.sub("a session is lost", func(_ *testing.T, r *testbed) {
		r.kubectl("delete", peer)
		r.finds(file, status.Failed, "node worker1", "its last session was lost")
		r.apply(manifests)
		r.healthy(file)
	})
	r.sub("pods do not admit the appliance", func(_ *testing.T, r *testbed) {
		mend := r.without(faults.Filter(r.Rig, "worker1", "forward ip saddr 192.168.50.21 tcp dport 8080 drop"))
		r.finds(file, status.Doubt, "servers", "(L4TOUT)", "pods see 192.168.50.21 as the source",
			"ipBlock of 192.168.50.21/32", "rp_filter", "kubectl get networkpolicies")
		mend()
		r.lacks(file, "servers")
	})
	r.sub("clients hold nearly all connections that HAProxy accepts", func(_ *testing.T, r *testbed) {
		free := func() {
			r.eventually("the doctor finds connections enough", func() error { // and memory, on any machine
				if all := r.doctor(file); slices.ContainsFunc(all, func(f status.Finding) bool {
					return f.Check == "capacity" && strings.HasPrefix(f.Saw, "connections:")
				}) {
					return fmt.Errorf("it finds %s", spelled(all))
				}
				return nil
			})
		}
		free()
		r.write("sallyport.yaml", strings.Replace(text, "binary: ", "maxConnections: 20, binary: ", 1))
		r.must(syscall.Kill(r.Pid(), syscall.SIGHUP))
		var held []net.Conn
		r.eventually("HAProxy accepts 20 connections", func() error {
			s, err := r.status()
			if err == nil && !slices.ContainsFunc(s.Capacity, func(c haproxy.Capacity) bool {
				return c.Resource == "connections" && c.Limit == 20
			}) {
				err = fmt.Errorf("the capacity is %v", s.Capacity)
			}
			return err
		})
		release := func() {
			for _, conn := range held {
				_ = conn.Close()
			}
			held = nil
		}
		// HAProxy closes an idle connection after a while, so each look has new ones.
		r.eventually("the doctor finds that connections run out", func() error {
			release()
			for range 17 {
				conn, err := r.Dial(t.Context(), world.Client, "192.168.50.21:80")
				if err != nil {
					return err
				}
				held = append(held, conn)
				_, err = conn.Write([]byte("GET / HTTP/1.1\r\nHost: test.local\r\n\r\n")) // then it is kept alive
				if err != nil {
					return err
				}
			}
			return r.found(file, status.Doubt, "capacity", "connections: ", "of 20", " in use",
				"sallyport status capacity")
		})
		release()
		free()
		r.write("sallyport.yaml", text)
		r.must(syscall.Kill(r.Pid(), syscall.SIGHUP))
	})
	r.sub("a node has lost its power", func(t *testing.T, r *testbed) {
		r.must(r.KillNode(t.Context(), "worker1"))
		r.finds(file, status.Doubt, "node worker1", "the cluster reports the node as unreachable",
			"kubectl describe node worker1")
		r.must(r.ReviveNode(t.Context(), "worker1"))
		r.healthy(file)
	})
	r.sub("a node has an AS number that is none", func(_ *testing.T, r *testbed) {
		r.kubectl("annotate", "node", "worker1", "projectcalico.org/ASNumber=many")
		r.finds(file, status.Doubt, "Calico's objects", "projectcalico.org/ASNumber")
		r.kubectl("annotate", "node", "worker1", "projectcalico.org/ASNumber-")
	})
	r.sub("the API server is lost before the appliance has seen it", func(_ *testing.T, r *testbed) {
		r.end(syscall.SIGTERM)
		r.finds(file, status.Healthy, "port", "is in use by the HAProxy of an appliance that was stopped")
		r.must(os.Rename(r.file("state"), r.file("kept")))
		mend := r.without(r.api())
		r.start()
		r.finds(file, status.Failed, "appliance", "it runs and is not ready: ", "sallyport status")
		mend()
		r.ready()
	})
	r.sub("another program's route leads the packets of a pod away", func(_ *testing.T, r *testbed) {
		block := r.host("worker1").Blocks[0].String()
		r.exec("ip", "route", "add", "blackhole", block, "metric", "1")
		r.finds(file, status.Failed, "route", block+" via 192.168.50.23", " is not in the kernel",
			"the program that made it", "ip route show")
		r.finds(file, status.Failed, "backend default_svc_app_web", "none of", "takes traffic",
			"look why each of its servers")
		r.exec("ip", "route", "del", "blackhole", block)
		r.healthy(file)
	})
	r.sub("a node offers what no cluster has", func(_ *testing.T, r *testbed) {
		r.write("sallyport.yaml", strings.Replace(text, "172.16.0.0/16", "172.30.0.0/16", 1))
		r.must(syscall.Kill(r.Pid(), syscall.SIGHUP))
		r.finds(file, status.Doubt, "offers", "refused as ", "sallyport status refusals")
		r.write("sallyport.yaml", text)
		r.must(syscall.Kill(r.Pid(), syscall.SIGHUP))
		r.lacks(file, "offers")
	})
	r.sub("HAProxy is built without what a ConfigMap asks for", func(_ *testing.T, r *testbed) {
		undo := p.quic(r)
		r.must(syscall.Kill(r.Pid(), syscall.SIGHUP))
		r.finds(file, status.Doubt, "objects", "ConfigMap default/haproxy", "this HAProxy is not built with QUIC",
			"sallyport status problems")
		undo()
		r.must(syscall.Kill(r.Pid(), syscall.SIGHUP))
		r.lacks(file, "objects")
	})
	r.sub("an Ingress leads to a Service that does not exist", func(_ *testing.T, r *testbed) {
		r.apply(ingress("lost", "", "lost.local / Prefix nowhere"))
		r.finds(file, status.Doubt, "objects", "Ingress default/lost", "nowhere")
		r.kubectl("delete", "ingress", "lost")
	})
	r.healthy(file)
}
