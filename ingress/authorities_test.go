package ingress

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/haproxy"
)

// policyFor returns the manifest of a BackendTLSPolicy for a Service, or for a port of it. A policy with
// a higher age is younger.
func policyFor(name, service, port, hostname string, age int, more string) string {
	section := ""
	if port != "" {
		section = ", sectionName: " + port
	}
	return fmt.Sprintf(`
kind: BackendTLSPolicy
metadata: {name: %s, namespace: default, uid: %[1]s, creationTimestamp: "20%02d-01-01T00:00:00Z"}
spec:
  targetRefs: [{group: "", kind: Service, name: %s%s}]
  validation: {hostname: %s, caCertificateRefs: [{group: "", kind: ConfigMap, name: ca}]%s}
---
`, name, age, service, section, hostname, more)
}

// withAuthorities adds ConfigMap ca, and a certificate with its key as Secret client. It removes the
// key of the ConfigMap if that is empty.
func withAuthorities(t *testing.T, key string) func(*Snapshot) {
	crt, private := certificate{names: []string{"client.test"}}.make(t)
	return func(s *Snapshot) {
		s.ConfigMaps = []*corev1.ConfigMap{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "ca"}, Data: map[string]string{key: string(crt)},
		}}
		s.Secrets = []*corev1.Secret{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "client"}, Type: corev1.SecretTypeTLS,
			Data: map[string][]byte{corev1.TLSCertKey: crt, corev1.TLSPrivateKeyKey: private},
		}}
	}
}

// toldPolicies returns the conditions of the policies in a Result.
func toldPolicies(r Result) (all []string) {
	for _, s := range r.Statuses[Unnamed] {
		for _, a := range s.Ancestors {
			for _, c := range a.Conditions {
				all = append(all, fmt.Sprintf("%s at %s %s=%s %s", s.Name, a.AncestorRef.Name, c.Type, c.Status, c.Reason))
			}
		}
	}
	return all
}

// TestServersOfAPolicyAreReachedOverTLSAlone has a Service with policies. Without a policy that can be
// used, no request reaches its servers.
func TestServersOfAPolicyAreReachedOverTLSAlone(t *testing.T) {
	for name, row := range map[string]struct {
		key, policies string
		want          haproxy.ServerOptions // zero if the backend is closed
		told          []string
	}{
		"a policy": {
			"ca.crt", policyFor("one", "app", "", "app.test", 1, ""),
			haproxy.ServerOptions{TLS: true, CA: "default_cm_ca.ca.pem", SNI: "app.test"},
			[]string{"one at gate Accepted=True Accepted", "one at gate ResolvedRefs=True ResolvedRefs"},
		},
		"the same name as the only alternative": {
			"ca.crt", policyFor("one", "app", "", "app.test", 1, ", subjectAltNames: [{type: Hostname, hostname: app.test}]"),
			haproxy.ServerOptions{TLS: true, CA: "default_cm_ca.ca.pem", SNI: "app.test"},
			[]string{"one at gate Accepted=True Accepted"},
		},
		"another name as the alternative": {
			"ca.crt", policyFor("one", "app", "", "app.test", 1, ", subjectAltNames: [{type: Hostname, hostname: b.test}]"),
			haproxy.ServerOptions{},
			[]string{"one at gate Accepted=False Invalid"},
		},
		"the authorities of the system": {
			"ca.crt", strings.Replace(policyFor("one", "app", "", "app.test", 1, ", wellKnownCACertificates: System"),
				"name: ca}", "name: none}", 1),
			haproxy.ServerOptions{},
			[]string{"one at gate Accepted=False Invalid"},
		},
		"no certificate in the ConfigMap": {
			"other", policyFor("one", "app", "", "app.test", 1, ""),
			haproxy.ServerOptions{},
			[]string{
				"one at gate Accepted=False NoValidCACertificate", "one at gate ResolvedRefs=False InvalidCACertificateRef",
			},
		},
		"another kind": {
			"ca.crt", strings.Replace(policyFor("one", "app", "", "app.test", 1, ""), "kind: ConfigMap", "kind: Service", 1),
			haproxy.ServerOptions{},
			[]string{"one at gate Accepted=False NoValidCACertificate", "one at gate ResolvedRefs=False InvalidKind"},
		},
		"the older of two": {
			"ca.crt", policyFor("a", "app", "", "new.test", 2, "") + policyFor("b", "app", "", "old.test", 1, ""),
			haproxy.ServerOptions{TLS: true, CA: "default_cm_ca.ca.pem", SNI: "old.test"},
			[]string{"b at gate Accepted=True Accepted", "a at gate Accepted=False Conflicted"},
		},
		"the older of two, although it cannot be used": {
			"ca.crt", policyFor("a", "app", "", "new.test", 2, "") +
				policyFor("b", "app", "", "old.test", 1, ", subjectAltNames: [{type: URI, uri: \"spiffe://a/b\"}]"),
			haproxy.ServerOptions{},
			[]string{"b at gate Accepted=False Invalid", "a at gate Accepted=False Conflicted"},
		},
		"the one for the port": {
			"ca.crt", policyFor("port", "app", "http", "port.test", 2, "") + policyFor("all", "app", "", "all.test", 1, ""),
			haproxy.ServerOptions{TLS: true, CA: "default_cm_ca.ca.pem", SNI: "port.test"},
			[]string{"all at gate Accepted=True Accepted", "port at gate Accepted=True Accepted"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := new(Compiler)
			manifests := gateOf("{name: http, port: 80, protocol: HTTP}") + app("app") +
				httpRoute("r", "rules: [{backendRefs: [{name: app, port: 80}]}]") + row.policies
			r := compileGates(t, c, manifests, withAuthorities(t, row.key))
			told := toldPolicies(r)
			for _, want := range row.told {
				if !slices.Contains(told, want) {
					t.Errorf("no status says %q; they say\n%s", want, strings.Join(told, "\n"))
				}
			}
			if row.want == (haproxy.ServerOptions{}) {
				if len(r.Config.Backends) > 0 {
					t.Errorf("the Service has a backend: %v", r.Config.Backends[0].Options)
				}
				return
			}
			got := r.Config.Backends[0].Options
			got.Check = false
			if got != row.want || len(r.Config.Extras) != 1 || r.Config.Extras[0].Name != row.want.CA {
				t.Errorf("got %+v with %v, want %+v", got, r.Config.Extras, row.want)
			}
			verdicts := haproxy.Verdicts{r.Config.Extras[0].Part(): haproxy.Verdict{Known: true, Why: "no"}}
			maps.Copy(verdicts, c.verdicts)
			c.Judge(verdicts)
			if r := c.Compile([]Snapshot{c.worlds[0].Snapshot}); len(r.Config.Backends) > 0 || len(r.Refused) == 0 {
				t.Error("a backend is open although HAProxy refuses its authorities")
			}
		})
	}
}

// TestAPolicyLeavesTLSOfClientsAlone has a TLSRoute to a Service with a policy, at a listener that
// passes TLS on, and at one where it ends.
func TestAPolicyLeavesTLSOfClientsAlone(t *testing.T) {
	tlsRoute := `
kind: TLSRoute
metadata: {name: r, namespace: default, uid: r}
spec: {parentRefs: [{name: gate}], hostnames: [a.test], rules: [{backendRefs: [{name: app, port: 80}]}]}
---
`
	for mode, want := range map[string]haproxy.ServerOptions{
		"{mode: Passthrough}": {},
		"{mode: Terminate, certificateRefs: [{name: client}]}": {
			TLS: true, CA: "default_cm_ca.ca.pem", SNI: "app.test", Proto: "h1",
		},
	} {
		r := compileGates(t, new(Compiler), gateOf("{name: tls, port: 443, protocol: TLS, tls: "+mode+"}")+app("app")+
			tlsRoute+policyFor("one", "app", "", "app.test", 1, ""), withAuthorities(t, "ca.crt"))
		if len(r.Config.Backends) != 1 {
			t.Fatalf("%s: got the backends %v", mode, r.Config.Backends)
		}
		got := r.Config.Backends[0].Options
		if got.Check = false; got != want {
			t.Errorf("%s: got %+v, want %+v", mode, got, want)
		}
	}
}

// TestAGatewayShowsItsCertificateToServersOfPolicies compares the Gateways with and without a
// certificate for servers.
func TestAGatewayShowsItsCertificateToServersOfPolicies(t *testing.T) {
	gate := strings.Replace(gateOf("{name: http, port: 80, protocol: HTTP}"), "gatewayClassName: ours,",
		"gatewayClassName: ours, tls: {backend: {clientCertificateRef: {name: client}}},", 1)
	r := compileGates(t, new(Compiler), gate+app("app")+app("plain")+
		httpRoute("r", "rules: [{backendRefs: [{name: app, port: 80}, {name: plain, port: 80}]}]")+
		policyFor("one", "app", "", "app.test", 1, ""), withAuthorities(t, "ca.crt"))
	var got []string
	for _, b := range r.Config.Backends {
		got = append(got, b.Service+" "+b.Options.Crt)
	}
	if want := []string{"default/app:http default_client.crt.pem", "default/plain:http "}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestAListenerAsksItsClientsForACertificate compares the ports of a Gateway.
func TestAListenerAsksItsClientsForACertificate(t *testing.T) {
	gate := strings.Replace(gateOf(`{name: http, port: 80, protocol: HTTP},
		{name: a, port: 81, protocol: HTTPS, tls: {certificateRefs: [{name: client}]}},
		{name: b, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: client}]}},
		{name: c, port: 5432, protocol: HTTPS, tls: {certificateRefs: [{name: client}]}}`), "gatewayClassName: ours,",
		`gatewayClassName: ours, tls: {frontend: {
			default: {validation: {caCertificateRefs: [{group: "", kind: ConfigMap, name: ca}]}}, perPort: [
			{port: 443, tls: {validation: {mode: AllowInsecureFallback,
				caCertificateRefs: [{group: "", kind: ConfigMap, name: ca}]}}},
			{port: 5432, tls: {validation: {caCertificateRefs: [{group: "", kind: ConfigMap, name: missing}]}}}]}},`, 1)
	r := compileGates(t, new(Compiler), gate, withAuthorities(t, "ca.crt"))
	var got []string
	for _, l := range r.Config.Listeners {
		got = append(got, fmt.Sprintf("%d %s %t", l.At.Port(), l.ClientCA, l.Insecure))
	}
	want := []string{"80  false", "81 default_cm_ca.ca.pem false", "443 default_cm_ca.ca.pem true"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
