package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sallyport/appliance/status"
	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// application returns a Deployment with a Service of the same name.
func application(name string, replicas int) string {
	return rig.App{Name: name, Replicas: replicas, Grace: 5}.Manifest() + rig.Service("default", name, name)
}

// onHostNetwork returns a Deployment of one pod on its node's network, with a Service of the same
// name.
func onHostNetwork(name string) string {
	return rig.App{Name: name, HostNetwork: true}.Manifest() + rig.Service("default", name, name)
}

// ingress returns an Ingress. Each rule is "host path pathType service".
func ingress(name, tls string, rules ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: %s}\nspec:\n"+
		"  ingressClassName: haproxy\n  %s\n  rules:\n", name, tls)
	for _, rule := range rules {
		f := strings.Fields(rule)
		host := fmt.Sprintf("host: %q, ", f[0])
		if f[0] == "any" {
			host = ""
		}
		fmt.Fprintf(&b, "  - {%shttp: {paths: [{path: %q, pathType: %s, backend: {service: {name: %s, port: {name: "+
			"web}}}}]}}\n", host, f[1], f[2], f[3])
	}
	return b.String()
}

// secret returns a TLS Secret with a new certificate for a name.
func secret(t *testing.T, name, host string) string {
	t.Helper()
	return secretUntil(t, name, host, time.Now().Add(24*time.Hour))
}

// secretUntil returns a TLS Secret with a new certificate that expires at some time.
func secretUntil(t *testing.T, name, host string, end time.Time) string {
	t.Helper()
	cert, key := certificate(t, host, end)
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("---\napiVersion: v1\nkind: Secret\nmetadata: {name: %s}\ntype: kubernetes.io/tls\ndata:\n"+
		"  tls.crt: %s\n  tls.key: %s\n", name, encode(cert), encode(key))
}

// certificate makes a certificate for a host that expires at some time, and its key, in PEM.
func certificate(t *testing.T, host string, end time.Time) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: end.AddDate(-1, 0, 0), NotAfter: end,
	}
	if ip := net.ParseIP(host); ip != nil {
		template.DNSNames, template.IPAddresses = nil, []net.IP{ip}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, &x509.Certificate{Subject: pkix.Name{CommonName: host}},
		&private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(kind string, der []byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", pkcs8)
}

// serial returns subject and serial number of the certificate that is served for a name.
func (r *testbed) serial(host string) (string, error) {
	out, err := r.Exec(r.t.Context(), world.Client, "sh", "-c",
		"openssl s_client -connect 192.168.50.21:443 -servername "+host+
			" </dev/null 2>/dev/null | openssl x509 -noout -subject -serial")
	return strings.Join(strings.Fields(out), " "), err
}

// expect waits until a URL answers with a status, from a pod whose name begins with by.
func (r *testbed) expect(url string, code int, by string) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("%s answers %d %s", url, code, by), func() error {
		answer, err := r.get(url)
		if err == nil && (answer.Code != code || !strings.HasPrefix(answer.Pod, by)) {
			err = fmt.Errorf("it answers %d %s", answer.Code, answer.Pod)
		}
		return err
	})
}

func TestIngressesMeanWhatKubernetesSays(t *testing.T) {
	beside(t, short)
	r := newTestbed(t, world.Options{Name: "ingress", Workers: 2},
		settings{clusters: []rig.Cluster{{Ingress: []string{"hostNetwork: true"}}}})
	r.apply(application("one", 1) + application("two", 1) + onHostNetwork("node"))
	r.start()
	r.ready()

	r.sub("hosts and paths", func(t *testing.T, r *testbed) {
		r.apply(ingress("paths", "",
			"a.local / Prefix one", "a.local /two Prefix two", "a.local /two/exact Exact one",
			"*.wild.local / Prefix two", "any /anywhere Prefix one"))
		r.expect("http://a.local/", 200, "one-")
		for url, want := range map[string]string{
			"http://a.local/two": "two-", "http://a.local/two/": "two-", "http://a.local/two/x?y": "two-",
			"http://a.local/twofold":   "one-",
			"http://a.local/two/exact": "one-", "http://a.local/two/exact/": "two-", "http://A.LOCAL:80/two": "two-",
			"http://x.wild.local/": "two-", "http://elsewhere.local/anywhere": "one-",
		} {
			r.expect(url, 200, want)
		}
		for _, url := range []string{"http://wild.local/", "http://x.y.wild.local/", "http://elsewhere.local/"} {
			r.expect(url, 404, "")
		}
	})
	r.sub("a pod on the host's network is served", func(t *testing.T, r *testbed) {
		r.apply(ingress("node", "", "node.local / Prefix node"))
		r.expect("http://node.local/", 200, "node-")
	})
	r.sub("a pod that is not ready is out, and back when it is", func(t *testing.T, r *testbed) {
		pod := r.kubectl("get", "pods", "-l", "app=two", "-o", "jsonpath={.items[0].status.podIP}")
		tell := func(path string) {
			// The appliance has a route to every pod.
			r.exec("curl", "-sf", "-X", "POST", "http://"+pod+":8080/"+path)
		}
		tell("fail")
		r.expect("http://a.local/two", 503, "")
		tell("heal")
		r.expect("http://a.local/two", 200, "two-")
	})
	r.sub("TLS by name, with a redirect, and a certificate that changes without a reload",
		func(t *testing.T, r *testbed) {
			r.apply(secret(t, "web-tls", "tls.local") + ingress("tls",
				"tls: [{hosts: [tls.local], secretName: web-tls}]", "tls.local / Prefix one"))
			r.expect("https://tls.local/", 200, "one-")
			r.eventually("plain HTTP is redirected", func() error {
				answer, err := r.get("http://tls.local/path?q=1")
				if err == nil && (answer.Code/100 != 3 || answer.Location != "https://tls.local/path?q=1") {
					err = fmt.Errorf("it answers %d to %q", answer.Code, answer.Location)
				}
				return err
			})
			var before string
			r.eventually("HAProxy has found the certificate good, and it is served", func() (err error) {
				if before, err = r.serial("tls.local"); err == nil && !strings.Contains(before, "tls.local") {
					err = fmt.Errorf("certificate %q, want the one of tls.local", before)
				}
				return err
			})
			reloads := r.mustStatus().HAProxy.Reloads
			r.apply(secret(t, "web-tls", "tls.local"))
			r.eventually("the new certificate is served", func() error {
				now, err := r.serial("tls.local")
				if err == nil && now == before {
					err = errors.New("it is still the old one")
				}
				return err
			})
			if s := r.mustStatus(); s.HAProxy.Reloads != reloads {
				t.Errorf("%d reloads, %d before; last because %q", s.HAProxy.Reloads, reloads, s.HAProxy.LastReason)
			}
		})
	r.sub("of two claims to one path the older wins, and the other is told", func(t *testing.T, r *testbed) {
		r.apply(ingress("thief", "", "a.local /two Prefix one", "thief.local / Prefix one"))
		r.expect("http://thief.local/", 200, "one-")
		r.expect("http://a.local/two", 200, "two-")
		r.eventually("the later one has an Event that names the winner", func() error {
			if said := r.kubectl("get", "events", "--field-selector", "involvedObject.name=thief", "-o",
				"jsonpath={.items[*].message}"); !strings.Contains(said, "paths") {
				return fmt.Errorf("Events say %q", said)
			}
			return nil
		})
	})
	r.sub("a broken Ingress stops nobody", func(_ *testing.T, r *testbed) {
		r.apply("apiVersion: v1\nkind: Secret\nmetadata: {name: bad-tls}\ntype: kubernetes.io/tls\n" +
			"data: {tls.crt: bm8=, tls.key: bm8=}\n" +
			ingress("broken", "tls: [{hosts: [broken.local], secretName: bad-tls}]", "broken.local / Prefix nobody",
				"half.local / Prefix one") +
			ingress("after", "", "after.local / Prefix two"))
		r.expect("http://after.local/", 200, "two-")
		r.expect("http://half.local/", 200, "one-")
		r.expect("http://broken.local/", 503, "")
		r.eventually("the status has its problem", func() error {
			s, err := r.status()
			for _, p := range s.Problems {
				if strings.Contains(p.Object, "broken") {
					return nil
				}
			}
			return fmt.Errorf("%w; problems are %+v", err, s.Problems)
		})
	})
	r.sub("an Ingress of another class is not ours", func(t *testing.T, r *testbed) {
		r.apply(strings.Replace(ingress("other", "", "other-class.local / Prefix one"), "haproxy", "nginx", 1) +
			ingress("ours", "", "ours.local / Prefix one"))
		r.expect("http://ours.local/", 200, "one-")
		r.expect("http://other-class.local/", 404, "")
	})
	r.sub("a deleted Ingress is not served any more", func(t *testing.T, r *testbed) {
		r.kubectl("delete", "ingress", "after")
		r.expect("http://after.local/", 404, "")
	})
	r.sub("the load of a backend is shown by top, and by HAProxy's own metrics", func(t *testing.T, r *testbed) {
		const name = "default_svc_two_web"
		r.eventually("top shows the requests", func() error {
			if _, err := r.get("http://a.local/two"); err != nil {
				return err
			}
			var top status.TopStatus
			if err := json.Unmarshal(
				[]byte(r.exec(r.file("sallyport"), "top", "--config", r.file("sallyport.yaml"), "-o", "json")),
				&top); err != nil {
				return err
			}
			for _, b := range top.Backends {
				if b.Name == name && b.Requests > 0 && b.Open == 1 {
					return nil
				}
			}
			return fmt.Errorf("it shows %+v", top)
		})
		if out := r.exec("curl", "-sf", "http://127.0.0.1:9090/metrics/haproxy?scope=backend"); !strings.Contains(out,
			`haproxy_backend_http_requests_total{proxy="`+name+`"} `) || strings.Contains(out, "_spare-") {
			t.Errorf("HAProxy's metrics do not have %s, or have spare places:\n%s", name, out)
		}
		if out := r.exec(r.file("sallyport"), "__complete", "explain", "--config", r.file("sallyport.yaml"),
			"default/pa"); !strings.HasPrefix(out, "default/paths\n") {
			t.Errorf("a shell completes default/pa to %q", out)
		}
	})
	r.sub("what a slice names is served if it is its namespace's own", func(t *testing.T, r *testbed) {
		pod := r.kubectl("get", "pods", "-l", "app=one", "-o", "jsonpath={.items[0].status.podIP}")
		r.kubectl("create", "namespace", "evil")
		wants := map[string]string{ // socket, to a part of why there is no server
			pod + ":8080": pod +
				" is assigned to a pod of namespace default, and the Service is of namespace evil",
			"192.168.50.22:6443":   "192.168.50.22:6443 is the API server",
			"192.168.50.23:10250":  "the port of the kubelet",
			"192.168.50.24:179":    "the port of BGP",
			"192.168.50.21:9090":   "this machine's own address",
			"192.168.50.1:80":      "in no block of cluster default",
			"172.16.171.127:32000": "assigned to no pod",
		}
		i := 0
		for socket := range wants {
			at := netip.MustParseAddrPort(socket)
			r.apply(strings.NewReplacer("NAME", fmt.Sprintf("evil-%d", i), "ADDRESS", at.Addr().String(), "PORT",
				fmt.Sprint(at.Port())).Replace(`
apiVersion: v1
kind: Service
metadata: {name: NAME, namespace: evil}
spec: {ports: [{name: web, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: NAME, namespace: evil, labels: {kubernetes.io/service-name: NAME}}
addressType: IPv4
endpoints: [{addresses: [ADDRESS], conditions: {ready: true}, targetRef: {kind: Pod, namespace: evil, name: honest}}]
ports: [{name: web, port: PORT}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: NAME, namespace: evil}
spec:
  ingressClassName: haproxy
  rules: [{host: NAME.local, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: NAME, port: {number: 80}}}}]}}]
`))
			r.expect(fmt.Sprintf("http://evil-%d.local/", i), 503, "")
			i++
		}
		r.eventually("the status says of each why it is no server", func() error {
			s, err := r.status()
			told := 0
			for _, b := range s.Backends {
				for _, s := range b.Servers {
					want, ours := wants[s.Addr.String()]
					if !ours || !strings.Contains(b.Name, "evil") {
						continue
					}
					if told++; s.State == "open" || !strings.Contains(s.Why, want) {
						return fmt.Errorf("%s of %s is %s: %q, want %q", s.Addr, b.Name, s.State, s.Why, want)
					}
				}
			}
			if err == nil && told != len(wants) {
				err = fmt.Errorf("it tells of %d, want %d", told, len(wants))
			}
			return err
		})
		r.expect("http://a.local/", 200, "one-")
	})
}
