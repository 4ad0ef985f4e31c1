package ingress

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"sallyport/haproxy"
	"sallyport/ingress/input"
)

// A certificate describes a certificate to make.
type certificate struct {
	names    []string
	until    time.Time // zero: for long
	otherKey bool
	rsa      int // bits; 0 is ECDSA
}

func (c certificate) make(t testing.TB) (crt, key []byte) {
	t.Helper()
	newKey := func() crypto.Signer {
		if c.rsa > 0 {
			t.Setenv("GODEBUG", "rsa1024min=0")
			k, err := rsa.GenerateKey(rand.Reader, c.rsa)
			if err != nil {
				t.Fatal(err)
			}
			return k
		}
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	k := newKey()
	if c.until.IsZero() {
		c.until = time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: c.names,
		NotBefore: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: c.until,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	if c.otherKey {
		k = newKey()
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

func secretText(t testing.TB, name string, c certificate) string {
	crt, key := c.make(t)
	// Text around a PEM, which people paste along, must not reach HAProxy.
	crt = bytes.Join([][]byte{[]byte("subject=CN = test\n\n"), crt, []byte("\n\n")}, nil)
	return fmt.Sprintf("kind: Secret\nmetadata: {name: %s, namespace: default}\ntype: kubernetes.io/tls\n"+
		"data: {tls.crt: %s, tls.key: %s}\n---\n",
		name, base64.StdEncoding.EncodeToString(crt), base64.StdEncoding.EncodeToString(key))
}

// TestRememberingIsOnlyAnOptimisation walks random histories of two clusters, and
// compares a Compiler with Compile at every step.
func TestRememberingIsOnlyAnOptimisation(t *testing.T) {
	end := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	var data []map[string][]byte
	for _, c := range []certificate{
		{names: []string{"a.test"}},
		{names: []string{"*.a.test", "b.test"}, until: end},
		{names: []string{"a.test"}, otherKey: true},
	} {
		crt, key := c.make(t)
		data = append(data, map[string][]byte{corev1.TLSCertKey: crt, corev1.TLSPrivateKeyKey: key})
	}
	data = append(data, map[string][]byte{"ann": []byte("$5$salt$" + strings.Repeat("a", 43))})
	var texts []haproxy.Text
	for _, line := range []string{"1", "a", "retries 2", "http-request deny"} {
		text, err := haproxy.ParseText(haproxy.BackendSection, line)
		if err != nil {
			t.Fatal(err)
		}
		when, err := haproxy.Condition(line, nil)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, text, when)
	}
	rapid.Check(t, func(t *rapid.T) {
		var c Compiler
		snaps := []Snapshot{{Cluster: "east"}, {Cluster: "west"}}
		served, streams := 0, 0
		var last haproxy.Config
		pick := func(label string, from ...string) string { return rapid.SampledFrom(from).Draw(t, label) }
		verdicts := haproxy.Verdicts{}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			// One step has up to three changes of one cluster, so that lists change together.
			s := &snaps[rapid.IntRange(0, 1).Draw(t, "cluster")]
			for range rapid.IntRange(0, 3).Draw(t, "changes") {
				meta := metav1.ObjectMeta{
					Namespace: pick("namespace", "n", "n", "n", "m"),
					Name:      pick("name", "a", "b"),
				}
				switch gone := rapid.IntRange(0, 3).Draw(t, "gone") == 0; rapid.IntRange(0, 11).Draw(t, "kind") {
				case 11:
					port, to := pick("tcp port", "5432", "5433", "0"), pick("service", "a", "b")
					s.TCPs = change(t, s.TCPs, &input.TCP{ObjectMeta: meta, Spec: []byte(`[{"name": "e", "frontend": ` +
						`{"binds": {"b": {"port": ` + port + `}}}, "service": {"name": "` + to + `", "port": 80}}]`)}, gone)
				case 10:
					s.Backends = change(t, s.Backends, drawBackend(t, meta, pick), gone)
				case 9:
					s.Exports = change(t, s.Exports, &input.ServiceExport{ObjectMeta: meta}, gone)
				case 0, 1:
					s.Ingresses = change(t, s.Ingresses, drawIngress(t, meta, pick), gone)
				case 2:
					s.Classes = change(t, s.Classes, &networkingv1.IngressClass{
						ObjectMeta: metav1.ObjectMeta{
							Name: meta.Name,
							Annotations: map[string]string{networkingv1.AnnotationIsDefaultIngressClass: pick("default",
								"true", "false")},
						},
						Spec: networkingv1.IngressClassSpec{
							Controller: pick("controller", "haproxy.org/ingress-controller", "other"),
						},
					}, gone)
				case 3:
					meta.UID = "u"
					meta.Annotations = drawAnnotations(pick, "timeout-server", "allow-list", "server-ca", "server-crt",
						"ssl-passthrough", "route-acl", "sallyport.dev/share-address", "cr-backend")
					meta.CreationTimestamp = metav1.Unix(int64(rapid.IntRange(1, 3).Draw(t, "age")), 0)
					one := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
						Type: corev1.ServiceType(pick("type", "ClusterIP", "ClusterIP", "ExternalName",
							"LoadBalancer", "LoadBalancer")),
						Ports: []corev1.ServicePort{
							{Name: pick("port", "http", "", "80"), Port: 80},
							{Name: "x", Port: 81},
						},
						LoadBalancerIP: pick("load balancer IP", "", "", "203.0.113.1", "203.0.113.2", "192.0.2.1",
							"?"),
					}}
					if class := pick("load balancer class", "", input.LoadBalancerClass, input.LoadBalancerClass,
						"other"); class != "" {
						one.Spec.LoadBalancerClass = &class
					}
					if networks := pick("sources", "", "", "192.0.2.0/24", "?"); networks != "" {
						one.Spec.LoadBalancerSourceRanges = []string{networks}
					}
					if ip := pick("record", "", "203.0.113.1", "203.0.113.2", "203.0.113.3", "192.0.2.1",
						"?"); ip != "" {
						one.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: ip}}
					}
					s.Services = change(t, s.Services, one, gone)
				case 4, 5:
					meta.Labels = map[string]string{discoveryv1.LabelServiceName: pick("service", "a", "b")}
					port, name := int32(rapid.IntRange(8080, 8081).Draw(t, "number")),
						pick("port", "http", "", "80", "x")
					s.Slices = change(t, s.Slices, &discoveryv1.EndpointSlice{
						ObjectMeta: meta, AddressType: discoveryv1.AddressType(pick("family", "IPv4", "IPv4", "FQDN")),
						Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
						Endpoints: []discoveryv1.Endpoint{
							{Addresses: []string{pick("address", "10.0.0.1", "10.0.0.2", "127.0.0.1", "?")}},
							{
								Addresses: []string{pick("address", "10.0.0.1", "10.0.0.3")},
								Conditions: discoveryv1.EndpointConditions{
									Ready: new(bool), Terminating: truth(t),
									Serving: truth(t),
								},
							},
						},
					}, gone)
				case 7, 8:
					changeAPI(t, s, pick("record", "203.0.113.1", "203.0.113.2", "203.0.113.3"), gone, "n", "m")
				case 6:
					s.Secrets = change(t, s.Secrets,
						&corev1.Secret{ObjectMeta: meta, Data: data[rapid.IntRange(0, len(data)-1).Draw(t, "data")]},
						gone)
				}
			}
			s.At = end.Add(time.Duration(rapid.IntRange(-1, 1).Draw(t, "hours")) * time.Hour)
			// The memory of settings is empty after other options or verdicts, so they stay for some steps.
			if rapid.IntRange(0, 3).Draw(t, "other options") == 0 {
				drawOptions(t, s, pick)
				snaps[0].Options.Pools, snaps[1].Options.Pools = s.Options.Pools, s.Options.Pools
			}
			given := snaps[:rapid.IntRange(1, 2).Draw(t, "clusters")]
			if rapid.IntRange(0, 9).Draw(t, "swap") == 0 {
				snaps[0], snaps[1] = snaps[1], snaps[0]
			}

			var fresh Compiler
			if rapid.IntRange(0, 3).Draw(t, "other verdicts") == 0 {
				verdicts = drawVerdicts(t, texts, &last, pick)
			}
			if rapid.IntRange(0, 4).Draw(t, "closed") == 0 {
				c.Used = map[netip.Addr]input.Use{netip.MustParseAddr("203.0.113.2"): {By: "the address of node a"}}
			} else {
				c.Used = nil
			}
			fresh.Used = c.Used
			c.Shared, fresh.Shared = sharedPorts, sharedPorts
			c.Judge(verdicts)
			fresh.Judge(verdicts)
			got, want := c.Compile(given), fresh.Compile(given)
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(),
				cmpopts.EquateComparable(netip.AddrPort{}, haproxy.Directive{}, haproxy.Line{},
					haproxy.Text{}, haproxy.Question{}, haproxy.Part{}), comparesRoutes,
				cmpopts.IgnoreUnexported(Result{})); diff != "" {
				t.Fatalf("from nothing (-), remembered (+):\n%s", diff)
			}
			if err := got.Config.Validate(); err != nil {
				t.Fatalf("haproxy refuses it: %v", err)
			}
			for _, part := range got.Refused {
				if verdicts[part].Why == "" {
					t.Fatalf("%s is left out, and nobody refused it", part)
				}
			}
			at := map[netip.Addr]bool{}
			for _, one := range got.Balancers {
				for _, a := range one.Recorded {
					at[a] = true
				}
			}
			for _, s := range got.Config.Streams {
				if s.Addr.IsValid() {
					if streams++; !at[s.Addr] {
						t.Fatalf("port %d is open at %s, which nothing records", s.Port, s.Addr)
					}
				}
			}
			last = got.Config
			for i := range snaps {
				snaps[i].Owners = got.Owners[snaps[i].Cluster]
			}
			served += len(got.Served)
		}
		t.Logf("%d served, %d ports at addresses of Services", served, streams)
	})
}

func truth(t *rapid.T) *bool {
	b := rapid.Bool().Draw(t, "truth")
	return &b
}

// change returns list without the object of o's name, in any order. It adds o unless the
// object is to be gone.
func change[T metav1.Object](t *rapid.T, list []T, o T, gone bool) []T {
	list = slices.DeleteFunc(slices.Clone(list), func(x T) bool { return input.KeyOf(x) == input.KeyOf(o) })
	if !gone {
		list = slices.Insert(list, rapid.IntRange(0, len(list)).Draw(t, "at"), o)
	}
	return list
}

// drawAnnotations draws a value for each key, or none.
func drawAnnotations(pick func(string, ...string) string, keys ...string) map[string]string {
	said := map[string]string{}
	for _, key := range keys {
		from := []string{"", "", "true", "1", "2", "?", "a", "b", "n/a"}
		if key == "cr-backend" {
			from = []string{"", "", "a", "a", "b", "n/a"}
		}
		if value := pick(key, from...); value != "" {
			if !strings.Contains(key, "/") {
				key = "haproxy.org/" + key
			}
			said[key] = value
		}
	}
	return said
}

// drawOptions draws the Options of a cluster, and its ConfigMaps and Namespaces.
func drawOptions(t *rapid.T, s *Snapshot, pick func(string, ...string) string) {
	s.Options.ReleaseAfter = time.Duration(rapid.IntRange(0, 1).Draw(t, "release")) * time.Hour
	s.Options.ConfigMap, s.ConfigMaps = pick("config map", "", "n/a"), nil
	if said := drawAnnotations(pick, "ssl-redirect", "timeout-server", "rate-limit-requests", "maxconn",
		"client-ca", "ssl-certificate", "auth-secret", "default-backend-service",
		"ssl-passthrough"); s.Options.ConfigMap != "" && len(said) > 0 {
		s.ConfigMaps = []*corev1.ConfigMap{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "a"},
			Data:       said,
		}}
	}
	if s.Options.TCPServices = pick("TCP services", "", "n/t"); s.Options.TCPServices != "" {
		line := pick("line", "n/a:80", "n/a:80:ssl", "m/b:http:PROXY-V2", "n/c:1", "?")
		s.ConfigMaps = append(s.ConfigMaps,
			&corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "t"},
				Data:       map[string]string{pick("tcp port", "5432", "5433", "?"): line},
			})
	}
	s.Options.NamespaceSelector = pick("selector", "", "", "team")
	if s.Namespaces = nil; rapid.Bool().Draw(t, "labelled") {
		s.Namespaces = []*corev1.Namespace{
			{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"team": "web"}}},
		}
	}
	few := func(label string) int { return rapid.IntRange(0, 3).Draw(t, label) }
	s.Options.Limits = Limits{
		Hosts: few("hosts"), Paths: few("paths"), Conditions: few("conditions"),
		Backends: few("backends"), Certificates: few("certificates"), Addresses: few("addresses"),
		Ports: few("ports"), Clients: few("clients") * 80_000, Checks: few("checks"), Servers: few("servers"),
	}
	s.Options.InSet.Name, s.Options.InSet.Standby = pick("set", "", "s", "s", "s"), rapid.Bool().Draw(t, "standby")
	s.Options.InSet.ExportsAll = rapid.IntRange(0, 3).Draw(t, "exports all") == 0
	s.Options.InSet.CountUnready = rapid.Bool().Draw(t, "count unready")
	s.Options.Gateway = GatewayOptions{
		Enabled: rapid.IntRange(0, 4).Draw(t, "enabled") > 0, Controller: "sallyport.dev/gateway",
		Shared: drawShared(t),
	}
	s.Options.OneTenant = rapid.Bool().Draw(t, "trust")
	s.Options.CustomResources = rapid.IntRange(0, 4).Draw(t, "custom resources") > 0
	s.Options.WatchWithoutClass = rapid.Bool().Draw(t, "without class")
	pools := Pools{Unclassed: rapid.Bool().Draw(t, "unclassed")}
	if last := pick("pool", "", "203.0.113.1", "203.0.113.2", "203.0.113.3"); last != "" {
		pools.Ranges = []AddressRange{poolOf("203.0.113.1-" + last)}
	}
	s.Options.Pools = pools
}

// drawVerdicts draws verdicts about texts, ports, and the parts of the last configuration.
func drawVerdicts(
	t *rapid.T, texts []haproxy.Text, last *haproxy.Config, pick func(string, ...string) string,
) haproxy.Verdicts {
	verdicts := haproxy.Verdicts{}
	for _, t := range texts {
		if why := pick("verdict", "unknown", "", "bad"); why != "unknown" {
			verdicts[t.Part()] = haproxy.Refused(why)
		}
	}
	for _, port := range []uint16{5432, 5433} {
		if why := pick("port", "unknown", "", "", "taken"); why != "unknown" {
			verdicts[haproxy.FreePort(port).Part()] = haproxy.Refused(why)
		}
	}
	for _, at := range []string{
		"203.0.113.1:80", "203.0.113.1:81", "203.0.113.2:80", "203.0.113.2:81",
		"203.0.113.3:80", "203.0.113.3:81",
	} {
		if why := pick("listener", "unknown", "", "", "", "taken"); why != "unknown" {
			verdicts[haproxy.FreeListener(netip.MustParseAddrPort(at)).Part()] = haproxy.Refused(why)
		}
	}
	for _, b := range last.Backends {
		if rapid.IntRange(0, 9).Draw(t, "refused") == 0 {
			verdicts[b.Part()] = haproxy.Refused("bad")
		}
	}
	for _, crt := range last.Certs {
		if rapid.IntRange(0, 9).Draw(t, "refused") == 0 {
			verdicts[haproxy.Pair{PEM: crt.PEM}.Part()] = haproxy.Refused("bad")
		}
	}
	for _, e := range last.Extras {
		if rapid.IntRange(0, 9).Draw(t, "refused") == 0 {
			verdicts[e.Part()] = haproxy.Refused("bad")
		}
	}
	return verdicts
}

func drawBackend(t *rapid.T, meta metav1.ObjectMeta, pick func(string, ...string) string) *input.Backend {
	one := &input.Backend{ObjectMeta: meta, Spec: []byte(pick("spec", `{"server_timeout": 1000}`,
		`{"balance": {"algorithm": "leastconn"}}`, `{"retries": 2}`, `{"http_request_rule_list": [{"type": "deny"}]}`,
		`{"none": 1}`))}
	if rapid.Bool().Draw(t, "older") {
		one.APIVersion = input.CustomV1
	}
	return one
}

func drawIngress(t *rapid.T, meta metav1.ObjectMeta, pick func(string, ...string) string) *networkingv1.Ingress {
	meta.CreationTimestamp = metav1.Unix(int64(rapid.IntRange(1, 3).Draw(t, "age")), 0)
	meta.Annotations = drawAnnotations(pick, "ssl-redirect", "timeout-server", "rate-limit-requests", "check-interval",
		"client-ca", "auth-secret", "backend-config-snippet", "sallyport.dev/canary-weight", "ssl-passthrough",
		"cr-backend")
	ing := &networkingv1.Ingress{ObjectMeta: meta}
	if class := pick("class", "haproxy", "haproxy", "haproxy", "a", ""); class != "" {
		ing.Spec.IngressClassName = &class
	}
	backend := func() networkingv1.IngressBackend {
		port := networkingv1.ServiceBackendPort{Number: 80}
		if name := pick("port", "", "http", "80", "x"); name != "" {
			port = networkingv1.ServiceBackendPort{Name: name}
		}
		return networkingv1.IngressBackend{
			Service: &networkingv1.IngressServiceBackend{Name: pick("service", "a", "a", "b", "c", "?"), Port: port},
		}
	}
	if rapid.Bool().Draw(t, "default") {
		b := backend()
		ing.Spec.DefaultBackend = &b
	}
	for range rapid.IntRange(0, 2).Draw(t, "rules") {
		rule := networkingv1.IngressRule{Host: pick("host", "a.test", "b.test", "*.a.test", "", "x.a.test", "?")}
		if n := rapid.IntRange(0, 2).Draw(t, "paths"); n > 0 {
			rule.HTTP = &networkingv1.HTTPIngressRuleValue{}
			for range n {
				kind := networkingv1.PathType(pick("path type", "Exact", "Prefix", "ImplementationSpecific"))
				rule.HTTP.Paths = append(rule.HTTP.Paths,
					networkingv1.HTTPIngressPath{
						Path: pick("path", "/", "/a", "/a/", "", "?"), PathType: &kind,
						Backend: backend(),
					})
			}
		}
		ing.Spec.Rules = append(ing.Spec.Rules, rule)
	}
	for range rapid.IntRange(0, 2).Draw(t, "tls") {
		ing.Spec.TLS = append(ing.Spec.TLS, networkingv1.IngressTLS{
			Hosts:      rapid.SliceOfN(rapid.SampledFrom([]string{"a.test", "b.test", "?"}), 0, 2).Draw(t, "hosts"),
			SecretName: pick("secret", "a", "b", "c", ""),
		})
	}
	return ing
}

// poolOf returns a range written as "FIRST-LAST".
func poolOf(text string) AddressRange {
	first, last, _ := strings.Cut(text, "-")
	return AddressRange{First: netip.MustParseAddr(first), Last: netip.MustParseAddr(last)}
}
