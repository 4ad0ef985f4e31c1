package gateway

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"
)

const controller = "sallyport.dev/gateway"

// read returns the objects of documents in YAML. Each is a second younger than the one before.
func read(t *testing.T, text string) (all Objects) {
	t.Helper()
	for i, doc := range strings.Split(text, "\n---\n") {
		var meta metav1.TypeMeta
		decode := func(o metav1.Object) {
			if err := yaml.UnmarshalStrict([]byte(doc), o); err != nil {
				t.Fatalf("%v in\n%s", err, doc)
			}
			if o.GetNamespace() == "" && meta.Kind != "GatewayClass" {
				o.SetNamespace("web")
			}
			o.SetGeneration(7)
			o.SetCreationTimestamp(metav1.NewTime(time.Unix(int64(i), 0)))
		}
		if err := yaml.Unmarshal([]byte(doc), &meta); err != nil {
			t.Fatal(err)
		}
		switch meta.Kind {
		case "GatewayClass":
			all.Classes = append(all.Classes, new(gatewayv1.GatewayClass))
			decode(all.Classes[len(all.Classes)-1])
		case "Gateway":
			all.Gateways = append(all.Gateways, new(gatewayv1.Gateway))
			decode(all.Gateways[len(all.Gateways)-1])
		case "ListenerSet":
			all.ListenerSets = append(all.ListenerSets, new(gatewayv1.ListenerSet))
			decode(all.ListenerSets[len(all.ListenerSets)-1])
		case "HTTPRoute":
			all.HTTPRoutes = append(all.HTTPRoutes, new(gatewayv1.HTTPRoute))
			decode(all.HTTPRoutes[len(all.HTTPRoutes)-1])
		case "GRPCRoute":
			all.GRPCRoutes = append(all.GRPCRoutes, new(gatewayv1.GRPCRoute))
			decode(all.GRPCRoutes[len(all.GRPCRoutes)-1])
		case "TLSRoute":
			all.TLSRoutes = append(all.TLSRoutes, new(gatewayv1.TLSRoute))
			decode(all.TLSRoutes[len(all.TLSRoutes)-1])
		case "TCPRoute":
			all.TCPRoutes = append(all.TCPRoutes, new(gatewayv1.TCPRoute))
			decode(all.TCPRoutes[len(all.TCPRoutes)-1])
		case "ReferenceGrant":
			all.Grants = append(all.Grants, new(gatewayv1.ReferenceGrant))
			decode(all.Grants[len(all.Grants)-1])
		case "BackendTLSPolicy":
			all.TLSPolicies = append(all.TLSPolicies, new(gatewayv1.BackendTLSPolicy))
			decode(all.TLSPolicies[len(all.TLSPolicies)-1])
		default:
			t.Fatalf("unknown kind %q", meta.Kind)
		}
	}
	return all
}

// around returns a World of objects. Services, Secrets and ConfigMaps with "missing" in their name
// do not exist.
func around(o Objects) World {
	missing := func(reason string, key types.NamespacedName) *Refusal {
		if strings.Contains(key.Name, "missing") {
			return &Refusal{reason, "there is no " + key.String()}
		}
		return nil
	}
	return World{
		Objects: o, Controller: controller,
		Admits: func(namespace string) bool { return namespace != "foreign" },
		Labels: func(namespace string) labels.Set { return labels.Set{"team": namespace} },
		Shares: func(*gatewayv1.Gateway) bool { return false },
		Port: func(port uint16, _ gatewayv1.ProtocolType, _ bool) *Refusal {
			if port == 6443 {
				return &Refusal{"PortUnavailable", "port 6443 is in use"}
			}
			return nil
		},
		Service: func(key types.NamespacedName, _ int32, _ string) *Refusal { return missing("BackendNotFound", key) },
		Exported: func(key types.NamespacedName) *Refusal {
			if key.Name != "shared" {
				return &Refusal{"BackendNotFound", "it is not exported"}
			}
			return nil
		},
		Certificate: func(key types.NamespacedName) *Refusal { return missing("InvalidCertificateRef", key) },
		Authorities: func(key types.NamespacedName) *Refusal { return missing("InvalidCACertificateRef", key) },
		Host: func(namespace, host string) *Refusal {
			if host == "reserved.example.com" && namespace != "bank" {
				return &Refusal{"HostOwned", "it is reserved for namespace bank"}
			}
			return nil
		},
	}
}

const class = `kind: GatewayClass
metadata: {name: ours}
spec: {controllerName: sallyport.dev/gateway}`

// said returns the conditions of an object as lines: "Kind name: Type=Status Reason". Those of
// listeners and parents have the name of the listener, or of the parent, as well.
func said(a *Attachment) (lines []string) {
	add := func(who string, all []metav1.Condition) {
		for _, c := range all {
			lines = append(lines, fmt.Sprintf("%s: %s=%s %s", who, c.Type, c.Status, c.Reason))
		}
	}
	for _, s := range a.Statuses() {
		who := s.Kind + " " + s.Name
		switch {
		case s.Class != nil:
			add(who, s.Class.Conditions)
		case s.Gateway != nil:
			add(who, s.Gateway.Conditions)
			for _, l := range s.Gateway.Listeners {
				add(who+"/"+string(l.Name), l.Conditions)
				lines = append(lines, fmt.Sprintf("%s/%s: %d routes", who, l.Name, l.AttachedRoutes))
			}
		case s.Listeners != nil:
			add(who, s.Listeners.Conditions)
			for _, l := range s.Listeners.Listeners {
				add(who+"/"+string(l.Name), l.Conditions)
				lines = append(lines, fmt.Sprintf("%s/%s: %d routes", who, l.Name, l.AttachedRoutes))
			}
		}
		for _, p := range s.Parents {
			add(who+" at "+string(p.ParentRef.Name), p.Conditions)
		}
		for _, p := range s.Ancestors {
			add(who+" at "+string(p.AncestorRef.Name), p.Conditions)
		}
	}
	return lines
}

// TestWhatStatusesSay has worlds with one Gateway each, and lines that their statuses have.
func TestWhatStatusesSay(t *testing.T) {
	for name, c := range map[string]struct {
		objects string
		want    []string
		never   []string
	}{
		"a plain Gateway and a route": {
			`kind: Gateway
metadata: {name: gate}
spec: {gatewayClassName: ours, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
kind: HTTPRoute
metadata: {name: app}
spec: {parentRefs: [{name: gate}], rules: [{backendRefs: [{name: app, port: 80}]}]}`,
			[]string{
				"GatewayClass ours: Accepted=True Accepted", "Gateway gate: Accepted=True Accepted",
				"Gateway gate: Programmed=False AddressNotAssigned", "Gateway gate/http: 1 routes",
				"Gateway gate/http: Conflicted=False NoConflicts", "HTTPRoute app at gate: Accepted=True Accepted",
				"HTTPRoute app at gate: ResolvedRefs=True ResolvedRefs",
			},
			nil,
		},
		"a class with parameters": {
			`kind: GatewayClass
metadata: {name: odd}
spec: {controllerName: sallyport.dev/gateway, parametersRef: {group: "", kind: ConfigMap, name: x}}
---
kind: Gateway
metadata: {name: gate}
spec: {gatewayClassName: odd, listeners: [{name: http, port: 80, protocol: HTTP}]}`,
			[]string{"GatewayClass odd: Accepted=False InvalidParameters"},
			[]string{"Gateway gate"},
		},
		"a class of another controller": {
			`kind: GatewayClass
metadata: {name: other}
spec: {controllerName: example.com/other}
---
kind: Gateway
metadata: {name: gate}
spec: {gatewayClassName: other, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
kind: HTTPRoute
metadata: {name: app}
spec: {parentRefs: [{name: gate}]}`,
			nil,
			[]string{"GatewayClass other", "Gateway gate", "HTTPRoute app"},
		},
		"a Gateway in a namespace that does not count": {
			`kind: Gateway
metadata: {name: gate, namespace: foreign}
spec: {gatewayClassName: ours, listeners: [{name: http, port: 80, protocol: HTTP}]}`,
			nil,
			[]string{"Gateway gate"},
		},
		"listeners that cannot be served": {
			`kind: Gateway
metadata: {name: gate}
spec:
  gatewayClassName: ours
  listeners:
  - {name: udp, port: 53, protocol: UDP}
  - {name: taken, port: 6443, protocol: HTTP}
  - {name: host, port: 80, protocol: HTTP, hostname: "a b"}
  - {name: kinds, port: 81, protocol: HTTP, allowedRoutes: {kinds: [{kind: TCPRoute}]}}
  - {name: secret, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: missing}]}}
  - {name: bare, port: 444, protocol: HTTPS}
  - {name: grant, port: 445, protocol: HTTPS, tls: {certificateRefs: [{name: x, namespace: bank}]}}
  - {name: kind, port: 446, protocol: HTTPS, tls: {certificateRefs: [{name: x, kind: Cat}]}}
  - {name: mode, port: 447, protocol: HTTPS, tls: {mode: Passthrough}}`,
			[]string{
				"Gateway gate: Accepted=True ListenersNotValid",
				"Gateway gate/udp: Accepted=False UnsupportedProtocol",
				"Gateway gate/taken: Accepted=False PortUnavailable",
				"Gateway gate/host: Accepted=False UnsupportedValue",
				"Gateway gate/kinds: ResolvedRefs=False InvalidRouteKinds",
				"Gateway gate/secret: ResolvedRefs=False InvalidCertificateRef",
				"Gateway gate/secret: Programmed=False Invalid",
				"Gateway gate/secret: Accepted=True Accepted",
				"Gateway gate/bare: ResolvedRefs=False InvalidCertificateRef",
				"Gateway gate/grant: ResolvedRefs=False RefNotPermitted",
				"Gateway gate/kind: ResolvedRefs=False InvalidCertificateRef",
				"Gateway gate/mode: Accepted=False UnsupportedValue",
			},
			nil,
		},
		"listeners in conflict, of which the first is served": {
			`kind: Gateway
metadata: {name: gate}
spec:
  gatewayClassName: ours
  allowedListeners: {namespaces: {from: Same}}
  listeners: [{name: http, port: 80, protocol: HTTP}]
---
kind: ListenerSet
metadata: {name: first}
spec:
  parentRef: {name: gate}
  listeners:
  - {name: same, port: 80, protocol: HTTP}
  - {name: tcp, port: 80, protocol: TCP}
  - {name: good, port: 81, protocol: HTTP}
---
kind: ListenerSet
metadata: {name: second}
spec: {parentRef: {name: gate}, listeners: [{name: late, port: 81, protocol: HTTP}]}`,
			[]string{
				"Gateway gate/http: Accepted=True Accepted", "ListenerSet first: Accepted=True Accepted",
				"ListenerSet first/same: Conflicted=True HostnameConflict",
				"ListenerSet first/same: Accepted=False HostnameConflict",
				"ListenerSet first/same: Programmed=False HostnameConflict",
				"ListenerSet first/tcp: Conflicted=True ProtocolConflict",
				"ListenerSet first/good: Accepted=True Accepted",
				"ListenerSet second: Accepted=False ListenersNotValid",
				"ListenerSet second: Programmed=False ListenersNotValid",
			},
			nil,
		},
		"HTTPS and TLS on one port": {
			`kind: Gateway
metadata: {name: gate}
spec:
  gatewayClassName: ours
  listeners:
  - {name: any, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: web}]}}
  - {name: whole, port: 443, protocol: TLS, hostname: whole.test, tls: {mode: Passthrough}}
  - {name: same, port: 443, protocol: TLS, tls: {mode: Passthrough}}
  - {name: plain, port: 443, protocol: HTTP, hostname: plain.test}
---
kind: TLSRoute
metadata: {name: sees}
spec: {parentRefs: [{name: gate}], hostnames: [whole.test]}
---
kind: TLSRoute
metadata: {name: blind}
spec: {parentRefs: [{name: gate}], hostnames: [other.test]}`,
			[]string{
				"Gateway gate/any: Accepted=True Accepted", "Gateway gate/any: Conflicted=False NoConflicts",
				"Gateway gate/whole: Accepted=True Accepted", "Gateway gate/whole: Conflicted=False NoConflicts",
				"Gateway gate/whole: 1 routes",
				"Gateway gate/same: Conflicted=True HostnameConflict",
				"Gateway gate/plain: Conflicted=True ProtocolConflict",
				"TLSRoute sees at gate: Accepted=True Accepted",
				"TLSRoute blind at gate: Accepted=False NoMatchingParent",
			},
			nil,
		},
		"a ListenerSet that the Gateway does not allow": {
			`kind: Gateway
metadata: {name: gate}
spec: {gatewayClassName: ours, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
kind: ListenerSet
metadata: {name: set}
spec: {parentRef: {name: gate}, listeners: [{name: x, port: 81, protocol: HTTP}]}`,
			[]string{"ListenerSet set: Accepted=False NotAllowed"},
			[]string{"ListenerSet set/x"},
		},
		"a ListenerSet without a usable certificate": {
			`kind: Gateway
metadata: {name: gate}
spec:
  gatewayClassName: ours
  allowedListeners: {namespaces: {from: All}}
  listeners: [{name: http, port: 80, protocol: HTTP}]
---
kind: ListenerSet
metadata: {name: set, namespace: shop}
spec:
  parentRef: {name: gate, namespace: web}
  listeners: [{name: x, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: c, namespace: bank}]}}]`,
			[]string{
				"ListenerSet set: Accepted=False ListenersNotValid", "ListenerSet set: Programmed=False ListenersNotValid",
				"ListenerSet set/x: ResolvedRefs=False RefNotPermitted",
			},
			nil,
		},
		"routes that do not attach": {
			`kind: Gateway
metadata: {name: gate}
spec:
  gatewayClassName: ours
  listeners:
  - {name: http, port: 80, protocol: HTTP, hostname: "*.example.com"}
---
kind: HTTPRoute
metadata: {name: section}
spec: {parentRefs: [{name: gate, sectionName: other}]}
---
kind: HTTPRoute
metadata: {name: port}
spec: {parentRefs: [{name: gate, port: 81}]}
---
kind: HTTPRoute
metadata: {name: namespace, namespace: shop}
spec: {parentRefs: [{name: gate, namespace: web}]}
---
kind: TCPRoute
metadata: {name: kind}
spec: {parentRefs: [{name: gate}], rules: [{backendRefs: [{name: x, port: 1}]}]}
---
kind: HTTPRoute
metadata: {name: host}
spec: {parentRefs: [{name: gate}], hostnames: [example.com]}
---
kind: HTTPRoute
metadata: {name: reserved}
spec: {parentRefs: [{name: gate}], hostnames: [reserved.example.com]}
---
kind: HTTPRoute
metadata: {name: two}
spec: {parentRefs: [{name: gate}], hostnames: [reserved.example.com, a.b.example.com]}`,
			[]string{
				"HTTPRoute section at gate: Accepted=False NoMatchingParent",
				"HTTPRoute port at gate: Accepted=False NoMatchingParent",
				"HTTPRoute namespace at gate: Accepted=False NotAllowedByListeners",
				"TCPRoute kind at gate: Accepted=False NotAllowedByListeners",
				"HTTPRoute host at gate: Accepted=False NoMatchingListenerHostname",
				"HTTPRoute reserved at gate: Accepted=False HostOwned",
				"HTTPRoute two at gate: Accepted=True Accepted",
				"HTTPRoute two at gate: PartiallyInvalid=True UnsupportedValue", "Gateway gate/http: 1 routes",
			},
			nil,
		},
		"references that lead nowhere": {
			`kind: Gateway
metadata: {name: gate}
spec: {gatewayClassName: ours, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
kind: HTTPRoute
metadata: {name: missing}
spec: {parentRefs: [{name: gate}], rules: [{backendRefs: [{name: missing, port: 80}]}]}
---
kind: HTTPRoute
metadata: {name: kind}
spec: {parentRefs: [{name: gate}], rules: [{backendRefs: [{name: x, kind: Cat, port: 80}]}]}
---
kind: HTTPRoute
metadata: {name: grant}
spec: {parentRefs: [{name: gate}], rules: [{backendRefs: [{name: x, namespace: bank, port: 80}]}]}
---
kind: HTTPRoute
metadata: {name: granted}
spec: {parentRefs: [{name: gate}], rules: [{backendRefs: [{name: x, namespace: shop, port: 80}]}]}
---
kind: HTTPRoute
metadata: {name: another}
spec: {parentRefs: [{name: gate}], rules: [{backendRefs: [{name: other, namespace: shop, port: 80}]}]}
---
kind: HTTPRoute
metadata: {name: import}
spec: {parentRefs: [{name: gate}], rules: [{backendRefs: [{group: multicluster.x-k8s.io, kind: ServiceImport, name: shared, port: 80}]}]}
---
kind: HTTPRoute
metadata: {name: unexported}
spec: {parentRefs: [{name: gate}], rules: [{backendRefs: [{group: multicluster.x-k8s.io, kind: ServiceImport, name: x, port: 80}]}]}
---
kind: HTTPRoute
metadata: {name: ungranted}
spec: {parentRefs: [{name: gate}], rules: [{backendRefs: [{group: multicluster.x-k8s.io, kind: ServiceImport, name: x, namespace: shop, port: 80}]}]}
---
kind: HTTPRoute
metadata: {name: importgranted}
spec: {parentRefs: [{name: gate}], rules: [{backendRefs: [{group: multicluster.x-k8s.io, kind: ServiceImport, name: shared, namespace: bank, port: 80}]}]}
---
kind: HTTPRoute
metadata: {name: group}
spec: {parentRefs: [{name: gate}], rules: [{backendRefs: [{kind: ServiceImport, name: shared, port: 80}]}]}
---
kind: ReferenceGrant
metadata: {name: imports, namespace: bank}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: web}]
  to: [{group: multicluster.x-k8s.io, kind: ServiceImport}]
---
kind: ReferenceGrant
metadata: {name: grant, namespace: shop}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: web}]
  to: [{group: "", kind: Service, name: x}]`,
			[]string{
				"HTTPRoute import at gate: ResolvedRefs=True ResolvedRefs",
				"HTTPRoute unexported at gate: ResolvedRefs=False BackendNotFound",
				"HTTPRoute ungranted at gate: ResolvedRefs=False RefNotPermitted",
				"HTTPRoute importgranted at gate: ResolvedRefs=True ResolvedRefs",
				"HTTPRoute group at gate: ResolvedRefs=False InvalidKind",
				"HTTPRoute missing at gate: Accepted=True Accepted",
				"HTTPRoute missing at gate: ResolvedRefs=False BackendNotFound",
				"HTTPRoute kind at gate: ResolvedRefs=False InvalidKind",
				"HTTPRoute grant at gate: ResolvedRefs=False RefNotPermitted",
				"HTTPRoute granted at gate: ResolvedRefs=True ResolvedRefs",
				"HTTPRoute another at gate: ResolvedRefs=False RefNotPermitted", "Gateway gate/http: 10 routes",
			},
			nil,
		},
		"a namespace by its labels": {
			`kind: Gateway
metadata: {name: gate}
spec:
  gatewayClassName: ours
  listeners:
  - name: http
    port: 80
    protocol: HTTP
    allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {team: shop}}}}
---
kind: HTTPRoute
metadata: {name: in, namespace: shop}
spec: {parentRefs: [{name: gate, namespace: web}]}
---
kind: HTTPRoute
metadata: {name: out, namespace: bank}
spec: {parentRefs: [{name: gate, namespace: web}]}`,
			[]string{
				"HTTPRoute in at gate: Accepted=True Accepted",
				"HTTPRoute out at gate: Accepted=False NotAllowedByListeners",
			},
			nil,
		},
		"certificates of clients and for servers": {
			`kind: Gateway
metadata: {name: gate}
spec:
  gatewayClassName: ours
  tls:
    backend: {clientCertificateRef: {name: mine}}
    frontend:
      default: {validation: {mode: AllowInsecureFallback, caCertificateRefs: [{group: "", kind: ConfigMap, name: ca}]}}
      perPort:
      - {port: 8443, tls: {}}
      - {port: 8444, tls: {validation: {caCertificateRefs: [{group: "", kind: ConfigMap, name: missing}]}}}
      - {port: 8445, tls: {validation: {caCertificateRefs: [{group: "", kind: Service, name: ca}]}}}
      - port: 8446
        tls: {validation: {caCertificateRefs: [{group: "", kind: ConfigMap, name: ca, namespace: bank}]}}
      - port: 8447
        tls:
          validation:
            caCertificateRefs:
            - {group: "", kind: ConfigMap, name: missing}
            - {group: "", kind: ConfigMap, name: ca}
  listeners:
  - {name: asks, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: web}]}}
  - {name: open, port: 8443, protocol: HTTPS, tls: {certificateRefs: [{name: web}]}}
  - {name: unknown, port: 8444, protocol: HTTPS, tls: {certificateRefs: [{name: web}]}}
  - {name: kind, port: 8445, protocol: HTTPS, tls: {certificateRefs: [{name: web}]}}
  - {name: foreign, port: 8446, protocol: HTTPS, tls: {certificateRefs: [{name: web}]}}
  - {name: half, port: 8447, protocol: HTTPS, tls: {certificateRefs: [{name: web}]}}
  - {name: plain, port: 80, protocol: HTTP}`,
			[]string{
				"Gateway gate: ResolvedRefs=True ResolvedRefs",
				"Gateway gate: InsecureFrontendValidationMode=True ConfigurationChanged",
				"Gateway gate/asks: Accepted=True Accepted", "Gateway gate/asks: Programmed=False Pending",
				"Gateway gate/open: Accepted=True Accepted",
				"Gateway gate/unknown: Accepted=False NoValidCACertificate", "Gateway gate/unknown: Programmed=False Invalid",
				"Gateway gate/unknown: ResolvedRefs=False InvalidCACertificateRef",
				"Gateway gate/kind: Accepted=False NoValidCACertificate",
				"Gateway gate/kind: ResolvedRefs=False InvalidCACertificateKind",
				"Gateway gate/foreign: Accepted=False NoValidCACertificate",
				"Gateway gate/foreign: ResolvedRefs=False RefNotPermitted",
				"Gateway gate/half: Accepted=True Accepted", "Gateway gate/half: ResolvedRefs=False InvalidCACertificateRef",
				"Gateway gate/plain: Accepted=True Accepted", "Gateway gate/plain: ResolvedRefs=True ResolvedRefs",
			},
			nil,
		},
		"a certificate for servers that is missing": {
			`kind: Gateway
metadata: {name: gate}
spec:
  gatewayClassName: ours
  tls: {backend: {clientCertificateRef: {name: missing}}}
  listeners: [{name: plain, port: 80, protocol: HTTP}]`,
			[]string{
				"Gateway gate: ResolvedRefs=False InvalidClientCertificateRef", "Gateway gate: Accepted=True Accepted",
			},
			[]string{"Gateway gate: InsecureFrontendValidationMode"},
		},
		"a certificate for servers of another namespace": {
			`kind: Gateway
metadata: {name: gate}
spec:
  gatewayClassName: ours
  tls: {backend: {clientCertificateRef: {name: mine, namespace: bank}}}
  listeners: [{name: plain, port: 80, protocol: HTTP}]`,
			[]string{"Gateway gate: ResolvedRefs=False RefNotPermitted"},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := said(Attach(around(read(t, class+"\n---\n"+c.objects))))
			for _, want := range c.want {
				if !slices.Contains(got, want) {
					t.Errorf("no status says %q; they say\n%s", want, strings.Join(got, "\n"))
				}
			}
			for _, never := range c.never {
				if i := slices.IndexFunc(got, func(s string) bool { return strings.HasPrefix(s, never) }); i >= 0 {
					t.Errorf("a status says %q", got[i])
				}
			}
		})
	}
}

// TestARouteOfAGatewaySeesNoListenerOfASet checks that a parentRef means the listeners of the object
// that it names, and no others.
func TestARouteOfAGatewaySeesNoListenerOfASet(t *testing.T) {
	a := Attach(around(read(t, class+`
---
kind: Gateway
metadata: {name: gate}
spec:
  gatewayClassName: ours
  allowedListeners: {namespaces: {from: All}}
  listeners: [{name: http, port: 80, protocol: HTTP}]
---
kind: ListenerSet
metadata: {name: set}
spec: {parentRef: {name: gate}, listeners: [{name: more, port: 81, protocol: HTTP}]}
---
kind: HTTPRoute
metadata: {name: gates}
spec: {parentRefs: [{name: gate}]}
---
kind: HTTPRoute
metadata: {name: sets}
spec: {parentRefs: [{name: set, kind: ListenerSet, group: gateway.networking.k8s.io}]}`)))
	var got []string
	for _, l := range a.Gateways[0].Listeners {
		for _, r := range a.At(l) {
			got = append(got, l.Name+" "+r.Object.GetName())
		}
	}
	if want := []string{"http gates", "more sets"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestTheObjectsOfTheManualAreServed attaches the objects of the manual page as they stand there.
func TestTheObjectsOfTheManualAreServed(t *testing.T) {
	page, err := os.ReadFile("../GATEWAY.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```yaml\n")
	objects, _, _ := strings.Cut(rest, "```")
	a := Attach(around(read(t, strings.TrimSpace(objects))))
	if len(a.Gateways) != 1 || len(a.Routes) != 2 {
		t.Fatalf("the page has %d Gateways and %d routes that are ours, want 1 and 2", len(a.Gateways), len(a.Routes))
	}
	for _, line := range said(a) {
		waits := strings.Contains(line, "Programmed=False AddressNotAssigned") || strings.HasSuffix(line, "False Pending")
		if strings.Contains(line, "=False") && !waits && !strings.Contains(line, "Conflicted=False") {
			t.Error(line)
		}
	}
	for _, l := range a.Gateways[0].Listeners {
		if len(a.At(l)) != 1 {
			t.Errorf("%s has %d routes, want 1", l, len(a.At(l)))
		}
	}
}

func TestAClassSaysWhetherItsVersionIsSupported(t *testing.T) {
	for version, want := range map[string]string{
		"v1.6.0": "GatewayClass ours: SupportedVersion=True SupportedVersion",
		"v1.7.1": "GatewayClass ours: SupportedVersion=False UnsupportedVersion",
		"":       "GatewayClass ours: Accepted=True Accepted",
	} {
		w := around(read(t, class))
		w.Bundle = version
		got := said(Attach(w))
		if !slices.Contains(got, want) || len(got) != 2 && version != "" || len(got) != 1 && version == "" {
			t.Errorf("with the CRDs of %q the status says %q, want %q", version, got, want)
		}
	}
}

// TestAStatusHasNoFieldThatOlderCRDsLack has CRDs that drop two fields of the statuses.
func TestAStatusHasNoFieldThatOlderCRDsLack(t *testing.T) {
	for version, want := range map[string]bool{
		"": true, "v1.6.0": true, "v1.7.1": true, "v2.0.0-rc.1": true, "v1.5.9": false, "v1.1.1": false,
	} {
		w := around(read(t, class+`
---
kind: Gateway
metadata: {name: web}
spec: {gatewayClassName: ours, listeners: [{name: a, port: 80, protocol: HTTP}]}`))
		w.Bundle = version
		all := Attach(w).Statuses()
		if features, sets := len(all[0].Class.SupportedFeatures) > 0, all[1].Gateway.AttachedListenerSets != nil; features !=
			want || sets != want {
			t.Errorf("with the CRDs of %q: supportedFeatures %t, attachedListenerSets %t; want %t", version, features, sets, want)
		}
	}
}

func TestAClassClaimsRetriesWhereRoutesCanHaveThem(t *testing.T) {
	for channel, want := range map[string]bool{"experimental": true, "standard": false, "": false} {
		w := around(read(t, class))
		w.Channel = channel
		statuses := Attach(w).Statuses()
		claims := slices.ContainsFunc(statuses[0].Class.SupportedFeatures, func(f gatewayv1.SupportedFeature) bool {
			return f.Name == "HTTPRouteRetry"
		})
		if claims != want {
			t.Errorf("with the CRDs of channel %q the class claims retries: %t, want %t", channel, claims, want)
		}
	}
}

// TestOnlyARouteThatIsServedOtherwiseIsBeyondTheLimit has a namespace with room for four paths. The first
// route takes three of them at one listener, and the second asks for two.
func TestOnlyARouteThatIsServedOtherwiseIsBeyondTheLimit(t *testing.T) {
	w := around(read(t, class+`
---
kind: Gateway
metadata: {name: gate}
spec:
  gatewayClassName: ours
  listeners:
  - {name: http, port: 80, protocol: HTTP, hostname: "*.example.com"}
  - {name: db, port: 5432, protocol: TCP}
---
kind: HTTPRoute
metadata: {name: first}
spec:
  parentRefs: [{name: gate}]
  rules: [{matches: [{method: GET}, {method: PUT}]}, {}]
---
kind: HTTPRoute
metadata: {name: second}
spec: {parentRefs: [{name: gate}], hostnames: [a.example.com, b.example.com]}
---
kind: HTTPRoute
metadata: {name: port}
spec: {parentRefs: [{name: gate, port: 81}, {name: gate}]}
---
kind: HTTPRoute
metadata: {name: kind}
spec: {parentRefs: [{name: gate, sectionName: db}]}
---
kind: HTTPRoute
metadata: {name: host}
spec: {parentRefs: [{name: gate}], hostnames: [a.test]}
---
kind: HTTPRoute
metadata: {name: owned}
spec: {parentRefs: [{name: gate}], hostnames: [reserved.example.com]}`))
	w.Paths = 4
	var got []string
	for _, line := range said(Attach(w)) {
		if strings.HasPrefix(line, "HTTPRoute ") && strings.Contains(line, "Accepted=") {
			got = append(got, line)
		}
	}
	want := []string{
		"HTTPRoute first at gate: Accepted=True Accepted",
		"HTTPRoute second at gate: Accepted=False LimitReached",
		"HTTPRoute port at gate: Accepted=False NoMatchingParent",
		"HTTPRoute port at gate: Accepted=False LimitReached",
		"HTTPRoute kind at gate: Accepted=False NotAllowedByListeners",
		"HTTPRoute host at gate: Accepted=False NoMatchingListenerHostname",
		"HTTPRoute owned at gate: Accepted=False HostOwned",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if w.Paths = 5; slices.Contains(said(Attach(w)), want[1]) {
		t.Error("with room for five paths the second route is beyond the limit")
	}
}
