package calico

import (
	"errors"
	"strings"
)

// GroupName returns the name of an API group without its version.
func GroupName(group string) string {
	name, _, _ := strings.Cut(group, "/")
	return name
}

// Presence describes Calico's two API groups in one cluster.
type Presence struct {
	V1, V3 bool // the group is served
	// v3 is native CRDs, not an aggregated API server (APIService label kube-aggregator.kubernetes.io/automanaged)
	V3IsCRD bool
	Ready1  bool // spec.datastoreReady of ClusterInformation "default" in v1
	Ready3  bool // the same in v3
}

// ErrNone is the error if the cluster serves neither group.
var ErrNone = errors.New(
	"the cluster serves none of Calico's objects: Calico is not installed, or its CRDs were deleted (kubectl " +
		"api-resources --api-group=" + GroupName(V1) + ")")

// ErrFrozen is the error while Calico moves between two datastores: neither may be
// read.
var ErrFrozen = errors.New("Calico is moving its objects from " + V1 + " to " + V3 +
	" and marks neither as ready: the last known objects stay in use until it does; see kubectl get " +
	"clusterinformations." + GroupName(V1) + " clusterinformations." + GroupName(V3) + " -o yaml")

// Choose returns the group to read.
//
// An aggregated API server serves the objects of v1, but without IPAMBlocks and only while its pod
// runs: v1 is read instead. If both groups are CRDs, the objects of v1 may be stale copies that a
// migration left behind. The field datastoreReady alone shows which group is in use
// (kube-controllers/pkg/controllers/migration).
func Choose(p Presence) (string, error) {
	switch {
	case !p.V1 && !p.V3:
		return "", ErrNone
	case !p.V3, p.V1 && !p.V3IsCRD:
		return V1, nil
	case !p.V1:
		return V3, nil
	case p.Ready1:
		return V1, nil
	case p.Ready3:
		return V3, nil
	}
	return "", ErrFrozen
}

// Doubt returns a sentence if both groups could be in use, or "".
func (p Presence) Doubt() string {
	if p.V1 && p.V3 && p.V3IsCRD && p.Ready1 && p.Ready3 {
		return "Calico has objects in " + V1 + " and in " + V3 + " and marks both as ready; those of " + V1 +
			" are read, which are stale copies if Calico has moved to the other: delete the CRDs that it does not " +
			"use; see kubectl get clusterinformations." + GroupName(V1) + " clusterinformations." + GroupName(V3) +
			" -o yaml"
	}
	return ""
}
