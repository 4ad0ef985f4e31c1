package ingress

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// customRules are ValidationRules, and objects with the annotations that they define.
const customRules = `
apiVersion: ingress.v3.haproxy.org/v3
kind: ValidationRules
metadata: {namespace: ops, name: house}
spec: {prefix: house.test, validation_rules: {only: {type: string, rule: "true", template: "http-request deny if {{.}}"}}}
---
apiVersion: ingress.v3.haproxy.org/v3
kind: ValidationRules
metadata: {namespace: away, name: strange}
spec: {prefix: away.test, validation_rules: {only: {type: string, rule: "true"}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {namespace: ops, name: keys, annotations: {frontend.http.house.test/only: x, note: y}}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web, annotations: {backend.house.test/only: x, backend.away.test/only: x}}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {namespace: away, name: web, annotations: {backend.house.test/only: x}}
---
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: haproxy}
spec: {controller: haproxy.org/ingress-controller}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: shop, name: web, annotations: {backend.house.test/only: x, backend.house.test/other: x}}
spec:
  ingressClassName: haproxy
  rules: [{host: a.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: shop, name: strange, annotations: {backend.house.test/only: x}}
spec: {ingressClassName: other}
`

func TestAnnotationsThatValidationRulesDefineAreTold(t *testing.T) {
	tell := func(c *Compiler, s Snapshot) string {
		var lines []string
		for _, p := range c.Compile([]Snapshot{s}).Problems {
			if p.Reason == "NotServed" {
				lines = append(lines, p.Kind+" "+p.Namespace+"/"+p.Name+" "+p.As)
			}
		}
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	s := snapshot(t, Unnamed, customRules)
	s.Options.ConfigMap, s.Options.NotNamespaces = "ops/keys", []string{"away"}
	c := new(Compiler)
	want := "ConfigMap ops/keys frontend.http.house.test/only\nIngress shop/web backend.house.test/only\n" +
		"Service shop/web backend.house.test/only\nValidationRules ops/house "
	if diff := cmp.Diff(want, tell(c, s)); diff != "" {
		t.Errorf("want -, got +\n%s", diff)
	}
	s.Rules = nil
	if got := tell(c, s); got != "" {
		t.Errorf("without ValidationRules: %s", got)
	}
}
