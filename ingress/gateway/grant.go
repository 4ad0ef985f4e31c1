package gateway

import (
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

const (
	// SetGroup is the API group of ServiceExports and ServiceImports (KEP-1645).
	SetGroup = "multicluster.x-k8s.io"
	// serviceImport stands for the Service of its namespace and name in all clusters that export it.
	serviceImport = "ServiceImport"
)

// A party is a kind of objects in a namespace.
type party struct{ group, kind, namespace string }

// grants hold what ReferenceGrants allow: by the target's party and the referring party, the names.
// The name "" stands for all.
type grants map[[2]party]map[string]bool

func grantsOf(list []*gatewayv1.ReferenceGrant) grants {
	all := make(grants)
	for _, g := range list {
		for _, from := range g.Spec.From {
			for _, to := range g.Spec.To {
				key := [2]party{
					{string(to.Group), string(to.Kind), g.Namespace},
					{string(from.Group), string(from.Kind), string(from.Namespace)},
				}
				if all[key] == nil {
					all[key] = make(map[string]bool)
				}
				all[key][string(value(to.Name, ""))] = true
			}
		}
	}
	return all
}

// allow reports whether an object of a kind of the API in namespace from may name a core object, or a
// ServiceImport.
func (g grants) allow(kind, from, targetKind string, target types.NamespacedName) bool {
	if from == target.Namespace {
		return true
	}
	group := ""
	if targetKind == serviceImport {
		group = SetGroup
	}
	names := g[[2]party{{group, targetKind, target.Namespace}, {gatewayv1.GroupName, kind, from}}]
	return names[""] || names[target.Name]
}
