package calico

import (
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// FilterForm says which rules a BGPFilter of a cluster can have.
type FilterForm int

// The forms. Each release of Calico accepts the forms of the releases before it.
const (
	NoFilter FilterForm = iota // before Calico 3.26 there is no BGPFilter
	ByPrefix                   // Calico 3.26: a rule matches a prefix
	ByOrigin                   // since Calico 3.27: a rule may match the routes that a node has learned by BGP
)

// FilterFormOf returns the form of the BGPFilters in a group of Calico's objects, from
// the document of OpenAPI v3 that the API server has for the group. A CRD that does not
// list the fields of a rule accepts any.
func FilterFormOf(group string, document []byte) (FilterForm, error) {
	var api struct {
		Components struct {
			Schemas map[string]map[string]any `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(document, &api); err != nil {
		return NoFilter, fmt.Errorf("the OpenAPI document of %s cannot be read: %w", group, err)
	}
	for _, schema := range api.Components.Schemas {
		if !defines(schema, group, "BGPFilter") {
			continue
		}
		rule, listed, err := unstructured.NestedMap(schema, "properties", "spec", "properties", "exportV4", "items",
			"properties")
		if _, origin := rule["source"]; err == nil && listed && !origin {
			return ByPrefix, nil
		}
		return ByOrigin, nil
	}
	return NoFilter, nil
}

// defines reports whether a schema is that of a kind.
func defines(schema map[string]any, group, kind string) bool {
	kinds, _ := schema["x-kubernetes-group-version-kind"].([]any)
	return slices.ContainsFunc(kinds, func(k any) bool {
		of, _ := k.(map[string]any)
		return text(of["kind"]) == kind && text(of["group"])+"/"+text(of["version"]) == group
	})
}
