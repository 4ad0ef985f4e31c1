package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// aside is the host of all these programs. It reaches the cluster, and the group as its clients do.
const aside = world.Router

// Ports of the DNS server and of the ACME server.
const (
	dnsPort  = 53
	acmePort = 14000
	rootPort = 15000 // Pebble's root certificate
)

// aside returns an address for a port of that host.
func (r *testbed) aside(port uint16) string {
	r.t.Helper()
	return netip.AddrPortFrom(r.host(aside).Addr.Addr(), port).String()
}

// beside runs a program on the host aside until the test ends. What it printed is shown if the test
// fails.
func (r *testbed) beside(env []string, args ...string) {
	r.t.Helper()
	cmd := r.Command(context.WithoutCancel(r.t.Context()), aside, args...)
	cmd.Env = append(os.Environ(), env...)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	r.must(cmd.Start())
	ended, err := make(chan struct{}), error(nil)
	go func() { defer close(ended); err = cmd.Wait() }()
	r.t.Cleanup(func() {
		select {
		case <-ended:
			r.t.Errorf("%s has ended: %v", args[0], err)
		default:
			r.must(cmd.Process.Signal(syscall.SIGKILL))
			<-ended
		}
		if r.t.Failed() {
			r.t.Logf("%s said:\n%s", args[0], tail(said.String(), 60))
		}
	})
}

// records returns the records of external-dns for a host, as "TYPE TARGET", sorted.
func (r *testbed) records(host string) (all []string) {
	text, err := os.ReadFile(r.file("records"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.t.Error(err)
	}
	for line := range strings.Lines(string(text)) {
		if record, is := strings.CutPrefix(strings.TrimSpace(line), host+" "); is {
			all = append(all, record)
		}
	}
	return all
}

// recorded waits until external-dns has exactly these addresses for a host.
func (r *testbed) recorded(host string, addresses ...string) {
	r.t.Helper()
	var want []string
	for _, a := range addresses {
		want = append(want, "A "+a)
	}
	slices.Sort(want)
	r.eventually(fmt.Sprintf("the records of %s are %q", host, want), func() error {
		if got := r.records(host); !slices.Equal(got, want) {
			return fmt.Errorf("they are %q", got)
		}
		return nil
	})
}

// serveDNS answers questions, by UDP and by TCP, with the records of external-dns until the test ends.
func (r *testbed) serveDNS() {
	r.t.Helper()
	at := r.aside(dnsPort)
	packets, err := r.ListenUDP(r.t.Context(), aside, netip.MustParseAddrPort(at), 64)
	r.must(err)
	socket, err := r.Listen(r.t.Context(), aside, at)
	r.must(err)
	var serving sync.WaitGroup
	r.t.Cleanup(func() { _, _ = packets.Close(), socket.Close(); serving.Wait() })
	serving.Go(func() {
		question := make([]byte, 4096)
		for {
			n, from, err := packets.ReadFrom(question)
			if err != nil {
				return
			}
			if answer, err := r.answerDNS(question[:n]); err == nil {
				_, _ = packets.WriteTo(answer, from)
			}
		}
	})
	serving.Go(func() {
		for {
			conn, err := socket.Accept()
			if err != nil {
				return
			}
			if err := r.answerStream(conn); err != nil {
				r.t.Log("DNS by TCP: ", err)
			}
		}
	})
}

// answerStream answers the one question that a connection is for (RFC 1035, 4.2.2), and closes it.
func (r *testbed) answerStream(conn net.Conn) error {
	defer conn.Close() //nolint:errcheck // its client has the answer
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return err
	}
	question := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(conn, question); err != nil {
		return err
	}
	answer, err := r.answerDNS(question)
	if err != nil {
		return err
	}
	_, err = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
	return err
}

// answerDNS returns the answer to a DNS question: the addresses that external-dns has for the name.
func (r *testbed) answerDNS(question []byte) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(question); err != nil || len(m.Questions) != 1 {
		return nil, errors.Join(err, errors.New("not one question"))
	}
	q := m.Questions[0]
	m.Header = dnsmessage.Header{ID: m.ID, Response: true, RecursionDesired: m.RecursionDesired, RecursionAvailable: true}
	m.Additionals = nil
	all := r.records(strings.ToLower(strings.TrimSuffix(q.Name.String(), ".")))
	if len(all) == 0 {
		m.RCode = dnsmessage.RCodeNameError
	}
	for _, record := range all {
		if address, is := strings.CutPrefix(record, "A "); is && q.Type == dnsmessage.TypeA {
			m.Answers = append(m.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class},
				Body:   &dnsmessage.AResource{A: netip.MustParseAddr(address).As4()},
			})
		}
	}
	return m.Pack()
}

// servePebble runs an ACME server, and returns its root certificate.
func (r *testbed) servePebble(program string) *x509.CertPool {
	r.t.Helper()
	cert, key := certificate(r.t, "pebble.test", time.Now().Add(24*time.Hour))
	r.write("pebble.crt", string(cert))
	r.write("pebble.key", string(key))
	r.write("pebble.json", fmt.Sprintf(`{"pebble": {"listenAddress": %q, "managementListenAddress": %q,
		"certificate": %q, "privateKey": %q, "httpPort": 80, "tlsPort": 443, "retryAfter": {"authz": 1, "order": 1},
		"keyAlgorithm": "ecdsa", "profiles": {"default": {"description": "one day", "validityPeriod": 86400}}}}`,
		r.aside(acmePort), r.aside(rootPort), r.file("pebble.crt"), r.file("pebble.key")))
	// Each certificate takes a challenge of its own.
	r.beside([]string{"PEBBLE_VA_NOSLEEP=1", "PEBBLE_AUTHZREUSE=0"}, program, "-config", r.file("pebble.json"), "-dnsserver", r.aside(dnsPort))
	roots := x509.NewCertPool()
	r.eventually("Pebble shows its root", func() error {
		text, err := r.Exec(r.t.Context(), aside, "curl", "-sfk", "https://"+r.aside(rootPort)+"/roots/0")
		if err == nil && !roots.AppendCertsFromPEM([]byte(text)) {
			err = fmt.Errorf("no certificate: %q", text)
		}
		return err
	})
	return roots
}

// shown returns the certificate that the appliance at an address shows for a host. It is an error if the
// roots do not vouch for it, or if a request over it is not answered 200.
func (r *testbed) shown(roots *x509.CertPool, address, host string) (*x509.Certificate, error) {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return r.fromClient(ctx, address+":443")
		},
		TLSClientConfig: &tls.Config{RootCAs: roots},
	}}
	request, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, "https://"+host+"/", http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	if err := response.Body.Close(); err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("https://%s/ at %s is answered %s", host, address, response.Status)
	}
	return response.TLS.PeerCertificates[0], nil
}

// issued waits until every address shows the certificate of a Secret for a host, and returns its serial
// number. The number is not that of before.
func (r *testbed) issued(roots *x509.CertPool, secret, host, before string, addresses ...string) (serial string) {
	r.t.Helper()
	r.eventually("the certificate of "+host+" is served", func() error {
		text, err := r.Kubectl(r.t.Context(), "get", "secret", secret, "-o", `go-template={{index .data "tls.crt" | base64decode}}`)
		if err != nil {
			return err
		}
		block, _ := pem.Decode([]byte(text))
		if block == nil {
			return fmt.Errorf("the Secret has no certificate: %q", text)
		}
		want, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return err
		}
		if serial = want.SerialNumber.String(); serial == before {
			return errors.New("the Secret has the certificate from before")
		}
		for _, address := range addresses {
			got, err := r.shown(roots, address, host)
			if err == nil && got.SerialNumber.String() != serial {
				err = fmt.Errorf("%s shows the certificate %s, and the Secret has %s", address, got.SerialNumber, serial)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	return serial
}

// renew makes cert-manager renew a certificate now, as its command cmctl does.
func (r *testbed) renew(name string) {
	r.t.Helper()
	r.kubectl("patch", "certificate", name, "--subresource=status", "--type=json", "-p",
		`[{"op": "add", "path": "/status/conditions/-", "value": {"type": "Issuing", "status": "True", `+
			`"reason": "ManuallyTriggered", "lastTransitionTime": "`+time.Now().UTC().Format(time.RFC3339)+`"}}]`)
}

// certified applies an Ingress for NAME.example.com. It waits until every address shows the certificate that the
// issuer acme gives it, and then the renewed certificate.
func (r *testbed) certified(roots *x509.CertPool, name string, addresses ...string) {
	r.t.Helper()
	host, secret := name+".example.com", name+"-tls"
	r.apply(strings.Replace(ingress(name, "tls: [{hosts: ["+host+"], secretName: "+secret+"}]", host+" / Prefix app"),
		"{name: "+name+"}", "{name: "+name+", annotations: {cert-manager.io/cluster-issuer: acme}}", 1))
	first := r.issued(roots, secret, host, "", addresses...)
	r.renew(secret)
	r.issued(roots, secret, host, first, addresses...)
}

const clusterIssuer = `---
apiVersion: cert-manager.io/v1
kind: ClusterIssuer
metadata: {name: %[1]s}
spec:
  acme:
    server: https://%[2]s/dir
    skipTLSVerify: true
    privateKeySecretRef: {name: %[1]s}
    solvers: [{http01: %[3]s}]
`

// TestRecordsAndCertificatesFollowWhatIsServed runs external-dns, and cert-manager with an ACME server,
// beside a group. DNS has the records that external-dns makes of our statuses. The ACME server believes
// them, and asks for the challenge at the addresses that it finds.
func TestRecordsAndCertificatesFollowWhatIsServed(t *testing.T) {
	beside(t, long)
	dns, err := world.ExternalDNS(t.Context(), testWriter{t})
	if err != nil {
		t.Fatal(err)
	}
	pebble, err := world.Pebble(t.Context(), testWriter{t})
	if err != nil {
		t.Fatal(err)
	}
	manager, kinds, err := world.CertManager(t.Context(), testWriter{t})
	if err != nil {
		t.Fatal(err)
	}
	opts := world.Options{
		Name: "beside", Workers: 2, Router: world.RouterBIRD, GatewayAPI: world.Standard,
		Images: map[string]string{"cert-manager/acmesolver": manager},
	}
	pool := netip.MustParsePrefix(rig.ServicePool(opts))
	a, b := newMembers(t, opts, "  pools: ["+pool.String()+"]\n")
	r := a.testbed
	for _, m := range []member{a, b} { // the group's own addresses are the default
		m.write("sallyport.yaml", r.swapped(m.read("sallyport.yaml"), "publish: [192.168.50.21], ", ""))
	}
	r.permitGroup()
	front := pool.Addr().Next().String()
	r.kubectl("apply", "--server-side", "-f", kinds)
	r.apply(application("app", 4) + ingress("app", "", "test.local / Prefix app", "app.example.com / Prefix app") +
		strings.Replace(gateway("front", "{name: http, port: 80, protocol: HTTP}, {name: https, port: 443, protocol: HTTPS, "+
			"hostname: gate.example.com, tls: {certificateRefs: [{name: gate-tls}]}}"), "spec:\n",
			"spec:\n  addresses: [{value: "+front+"}]\n", 1) +
		"---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: gate}\nspec:\n" +
		"  parentRefs: [{name: front}]\n  hostnames: [gate.example.com]\n  rules: [{backendRefs: [{name: app, port: 80}]}]\n")
	a.start()
	b.start()
	a.ready()
	b.ready()
	r.spread(a, b)
	addresses := rig.ServiceAddresses(opts)
	r.serveDNS()
	roots := r.servePebble(pebble)
	r.beside([]string{"RECORDS=" + r.file("records")}, dns, "--kubeconfig", r.KubeconfigFile(), "--provider=inmemory",
		"--inmemory-zone=example.com", "--domain-filter=example.com", "--registry=noop", "--policy=sync",
		"--source=ingress", "--source=service", "--source=gateway-httproute")
	r.beside(nil, manager, "controller", r.KubeconfigFile(), r.aside(dnsPort))
	clients := r.witnesses([]member{a, b})
	t.Cleanup(clients.Stop)
	clients.during(func() {})

	r.sub("a host has the records of its addresses", func(_ *testing.T, r *testbed) {
		r.recorded("app.example.com", addresses...)
		r.recorded("gate.example.com", front)
		at := pool.Addr().Next().Next().String()
		r.apply(strings.Replace(balancer, "name: web\n", "name: lb\n  annotations:\n    sallyport.dev/address: "+at+
			"\n    external-dns.kubernetes.io/hostname: lb.example.com\n", 1))
		r.recorded("lb.example.com", at)
		r.kubectl("delete", "service", "lb")
		r.recorded("lb.example.com")
	})
	r.sub("an Ingress gets a certificate, and a new one, while clients lose nothing", func(_ *testing.T, r *testbed) {
		r.apply(fmt.Sprintf(clusterIssuer, "acme", r.aside(acmePort), "{ingress: {ingressClassName: haproxy}}"))
		clients.undisturbed(func() {
			r.certified(roots, "shop", addresses...)
		})
	})
	r.sub("a Gateway gets a certificate by a route, while clients lose nothing", func(_ *testing.T, r *testbed) {
		r.apply(fmt.Sprintf(clusterIssuer, "acme-gate", r.aside(acmePort), "{gatewayHTTPRoute: {parentRefs: [{name: front, "+
			"namespace: default, kind: Gateway, group: gateway.networking.k8s.io, sectionName: http}]}}"))
		clients.undisturbed(func() {
			r.kubectl("annotate", "gateway", "front", "cert-manager.io/cluster-issuer=acme-gate")
			r.issued(roots, "gate-tls", "gate.example.com", "", front)
		})
	})
	r.sub("nothing is left of challenges, and a host that goes takes its records along", func(_ *testing.T, r *testbed) {
		r.eventually("no challenge has a pod, a route or an Ingress", func() error {
			left, err := r.Kubectl(r.t.Context(), "get", "pod,httproute,ingress", "-l", "acme.cert-manager.io/http01-solver=true",
				"-o", "name")
			if err == nil && left != "" {
				err = errors.New(left)
			}
			return err
		})
		r.recorded("shop.example.com", addresses...)
		r.kubectl("delete", "ingress", "shop")
		r.recorded("shop.example.com")
		r.recorded("app.example.com", addresses...)
	})
	clients.Stop()
	r.sub("an appliance that is in no group gets a certificate, and a new one, too", func(_ *testing.T, r *testbed) {
		b.end(syscall.SIGTERM)
		a.end(syscall.SIGTERM)
		r.must(rig.Configure(a.Dir, "log: {level: debug}\n", rig.Cluster{Pools: "172.16.0.0/16"}))
		a.start()
		a.ready()
		const address = "192.168.50.21" // of the appliance's machine
		r.recorded("app.example.com", address)
		defer r.asking("http://test.local/", "app")()
		r.certified(roots, "own", address)
	})
}
