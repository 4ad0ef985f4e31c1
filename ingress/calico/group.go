package calico

import "errors"

// Presence is what a cluster shows of Calico's two API groups.
type Presence struct {
	V1, V3  bool // the group is served
	V3IsCRD bool // v3 is native CRDs, not an aggregated API server (APIService label kube-aggregator.kubernetes.io/automanaged)
	Ready1  bool // spec.datastoreReady of ClusterInformation "default" in v1
	Ready3  bool // the same in v3
}

// ErrNone says that the cluster serves neither group.
var ErrNone = errors.New("the cluster serves none of Calico's objects: Calico is not installed, or its CRDs are gone")

// ErrFrozen says that Calico is between two datastores: neither is to be read.
var ErrFrozen = errors.New("Calico is moving its objects from " + V1 + " to " + V3 + " and calls neither ready: the last known objects stay until it does")

// Choose says which group holds the objects that count.
//
// An aggregated API server serves what v1 holds, but without IPAMBlocks and
// only while its pod runs: v1 is read. Where both are CRDs the objects of v1
// may be stale copies, left over from a migration, and only datastoreReady
// tells (kube-controllers/pkg/controllers/migration).
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
