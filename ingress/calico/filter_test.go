package calico

import (
	"strings"
	"testing"
)

// schemaOf returns an OpenAPI document with the definition of a kind in
// crd.projectcalico.org/v1. rule is the schema of a rule.
func schemaOf(kind, rule string) string {
	return `{"openapi": "3.0.0", "components": {"schemas": {
  "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta": {"type": "object"},
  "org.projectcalico.crd.v1.` + kind + `": {
    "type": "object",
    "properties": {"spec": {"type": "object", "properties": {"exportV4": {"type": "array", "items": ` + rule + `}}}},
    "x-kubernetes-group-version-kind": [{"group": "crd.projectcalico.org", "version": "v1", "kind": "` + kind + `"}]
  }}}}`
}

func TestTheFormOfAFilterIsThatOfTheCRD(t *testing.T) {
	const (
		rule326 = `{"type": "object", "required": ["action", "cidr", "matchOperator"], "properties": {"action": {"type": "string"}, "cidr": {"type": "string"}, "matchOperator": {"type": "string"}}}`
		rule328 = `{"type": "object", "required": ["action"], "properties": {"action": {"type": "string"}, "cidr": {"type": "string"}, "interface": {"type": "string"}, "matchOperator": {"type": "string"}, "source": {"type": "string"}}}`
	)
	for name, row := range map[string]struct {
		group, document string
		want            FilterForm
	}{
		"Calico 3.25, without the CRD":    {V1, schemaOf("BGPPeer", rule328), NoFilter},
		"Calico 3.26":                     {V1, schemaOf("BGPFilter", rule326), ByPrefix},
		"Calico 3.28":                     {V1, schemaOf("BGPFilter", rule328), ByOrigin},
		"native v3":                       {V3, strings.ReplaceAll(strings.ReplaceAll(schemaOf("BGPFilter", rule328), "crd.projectcalico.org", "projectcalico.org"), `"v1"`, `"v3"`), ByOrigin},
		"a CRD that accepts any field":    {V1, schemaOf("BGPFilter", `{"type": "object", "x-kubernetes-preserve-unknown-fields": true}`), ByOrigin},
		"only another group has filters":  {V3, schemaOf("BGPFilter", rule328), NoFilter},
		"a document without any schema":   {V1, `{}`, NoFilter},
		"a definition of a strange shape": {V1, schemaOf("BGPFilter", `[1]`), ByOrigin},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := FilterFormOf(row.group, []byte(row.document))
			if err != nil || got != row.want {
				t.Errorf("got %d and %v, want %d", got, err, row.want)
			}
		})
	}
	if _, err := FilterFormOf(V1, []byte("<html>")); err == nil {
		t.Error("got no error for what is no JSON")
	}
}
