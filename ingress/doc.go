// Package ingress owns what a cluster wants: it watches one API server per
// cluster and turns the objects it finds there into the nouns of the packages
// that act on them.
//
// It alone knows the Kubernetes API. [Watcher] is the edge: it keeps the
// objects and hands them out whole, as a [Snapshot]. [Compile] is the pure
// half: from snapshots to a haproxy.Config, the Ingresses that are served, and
// a [Problem] for whatever is not. What users say in annotations is read by
// package annotations.
//
// It promises that one broken object never stops another, that what the API
// says is checked before it is passed on (names, hosts, paths, addresses and
// certificates), and that an API server that is away, refuses or serves
// nothing any more never looks like an empty cluster: the last known objects
// stay. A namespace changes nothing for the hosts of another, unless the
// operator lets them share (hosts.go has the argument), and what one namespace
// may bring is bounded (Limits).
//
// Its limit: it decides nothing about routes or reachability. A server in its
// Config is an endpoint the cluster calls ready, no more.
//
// What a watcher has to be allowed in its cluster is [Rules].
package ingress
