package ingress

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"sallyport/ingress/claims"
	"sallyport/ingress/gateway"
	"sallyport/ingress/input"
)

// An Export is a ServiceExport that was read, and whether its Service is one Service of several clusters.
type Export struct {
	ObjectRef
	Shared bool   // the pods of its cluster serve together with those of others
	Reason string // a code
	Why    string // in words; also if it is Shared
}

// A clash says why the pods of a cluster do not serve an exported Service for another cluster of its set.
type clash struct {
	service serviceKey
	of      string // the cluster of the pods
	host    string // the cluster that they do not serve
	why     string
}

func (x clash) String() string {
	return fmt.Sprintf("its pods do not serve %s of cluster %s, which exports the same Service: %s",
		x.service, x.host, x.why)
}

// newsOfExports say which Exports may differ from those of the round before.
type newsOfExports struct {
	all      bool                // those of every ServiceExport
	services map[serviceKey]bool // else those of these Services, in every cluster
}

// tellExports returns the Exports by cluster. It keeps those of before that neither the news nor the clashes
// have changed. There is none for a ServiceExport of a namespace from which nothing is taken.
func (c *Compiler) tellExports(before map[string][]*Export, n newsOfExports, clashes []clash) map[string][]*Export {
	was := c.counted.clashes
	c.counted.clashes = clashes
	services := n.services
	if n.all {
		services = c.exportedServices(before)
	}
	for _, x := range slices.Concat(gateway.Missing(was, clashes), gateway.Missing(clashes, was)) {
		services[x.service] = true
	}
	if len(services) == 0 {
		return before
	}
	touched := slices.SortedFunc(maps.Keys(services), input.CompareKeys)
	by := make(map[serviceKey][]clash)
	for _, x := range clashes {
		by[x.service] = append(by[x.service], x)
	}
	all := make(map[string][]*Export)
	for _, w := range c.worlds {
		if w.Options.InSet.Name == "" || w.Options.InSet.ExportsAll {
			continue
		}
		list, admitted := before[w.Cluster], input.ClassesOf(&w.Snapshot)
		for _, key := range touched {
			var next *Export
			if e, is := input.Find(w.Exports, key); is && admitted.Admits(key.Namespace) {
				next = c.tellExport(w, e, by[key])
			}
			list = withExport(list, key, next)
		}
		if len(list) > 0 {
			all[w.Cluster] = list
		}
	}
	return all
}

// exportedServices returns the Services with a ServiceExport in any cluster, now or before.
func (c *Compiler) exportedServices(before map[string][]*Export) map[serviceKey]bool {
	all := make(map[serviceKey]bool)
	for _, w := range c.worlds {
		for _, e := range w.Exports {
			all[input.KeyOf(e)] = true
		}
	}
	for _, list := range before {
		for _, x := range list {
			all[serviceKey{Namespace: x.Namespace, Name: x.Name}] = true
		}
	}
	return all
}

// withExport returns a list with another Export of a name, or without it if next is nil. The list stays as it is
// if it has an equal one.
func withExport(list []*Export, key serviceKey, next *Export) []*Export {
	i, has := slices.BinarySearchFunc(list, key, func(x *Export, key serviceKey) int {
		return cmp.Or(cmp.Compare(x.Namespace, key.Namespace), cmp.Compare(x.Name, key.Name))
	})
	switch {
	case has && next == nil:
		return slices.Concat(list[:i], list[i+1:])
	case has && *list[i] != *next:
		return slices.Concat(list[:i], []*Export{next}, list[i+1:])
	case !has && next != nil && i == len(list): // as always when a list is made; nobody else appends to it
		return append(list, next)
	case !has && next != nil:
		return slices.Concat(list[:i], []*Export{next}, list[i:])
	}
	return list
}

// tellExport returns the Export of a ServiceExport. clashes are those of its Service. tellExport returns nil while
// nobody knows: a cluster of the set that is not known yet may share the Service.
func (c *Compiler) tellExport(w *world, e *input.ServiceExport, clashes []clash) *Export {
	x := &Export{ObjectRef: ObjectRef{
		Cluster: w.Cluster, Kind: "ServiceExport", Namespace: e.Namespace, Name: e.Name, UID: string(e.UID),
	}}
	own := serves(w, input.KeyOf(e))
	unknown := func(s Snapshot) bool { return s.Options.InSet.Name == w.Options.InSet.Name }
	at := slices.IndexFunc(clashes, func(one clash) bool { return one.of == w.Cluster })
	switch {
	case at >= 0:
		x.Reason, x.Why = "ExportConflict", clashes[at].String()
	case own.Reason == "ServiceNotFound":
		x.Reason, x.Why = "NoService", own.Why+" in this cluster: create it, or delete this ServiceExport"
	case own.Reason != "":
		x.Reason, x.Why = own.Reason, own.Why
	case slices.ContainsFunc(c.Unknown, unknown):
		return nil
	default:
		x.Shared, x.Why = c.together(w, input.KeyOf(e), clashes)
		if x.Reason = "Alone"; x.Shared {
			x.Reason = "Shared"
		}
	}
	return x
}

// together reports whether the pods of a world serve an exported Service together with those of other clusters,
// and names these clusters, or says why not.
func (c *Compiler) together(w *world, key serviceKey, clashes []clash) (is bool, why string) {
	var with []string
	why = "no other cluster of the set exports this Service: create a ServiceExport of the same name and namespace " +
		"there"
	for _, other := range c.worlds {
		if other == w || other.Options.InSet.Name != w.Options.InSet.Name || !other.Exported(key) {
			continue
		}
		not := serves(other, key).Why
		for _, one := range clashes {
			if one.of == other.Cluster && one.host == w.Cluster {
				not = one.why
			}
		}
		if not == "" {
			with = append(with, other.Cluster)
			continue
		}
		why = fmt.Sprintf("cluster %s exports this Service, too, but its pods do not serve: %s", other.Cluster, not)
	}
	switch len(with) {
	case 0:
		return false, why
	case 1:
		return true, "its pods serve together with those of cluster " + with[0]
	default:
		return true, "its pods serve together with those of clusters " + claims.List(with)
	}
}

// serves returns why no pod of a world serves a Service, whatever the port, or a Problem without a Reason.
func serves(w *world, key serviceKey) Problem {
	service, has := input.Find(w.Services, key)
	return unusable(service, has, key)
}

// unusable returns why a Service has no servers, or a Problem without a Reason. ok is false without a Service.
func unusable(service *corev1.Service, ok bool, key serviceKey) Problem {
	switch {
	case !ok:
		return Problem{Reason: "ServiceNotFound", Why: fmt.Sprintf("there is no Service %s", key)}
	case service.Spec.Type == corev1.ServiceTypeExternalName:
		return Problem{Reason: "ExternalName", Why: fmt.Sprintf("Service %s is of type ExternalName: "+
			"a server is an address with a verified route, not a name", key)}
	}
	return Problem{}
}
