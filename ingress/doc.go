// Package ingress owns what a cluster wants: it watches one API server per
// cluster and turns the objects it finds there into the nouns of the packages
// that act on them.
//
// It alone knows the Kubernetes API. Package annotations reads the keys that users set
// in annotations, and package calico reads Calico's objects.
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
// # Inside
//
// [Watcher] is the half that touches the world. A shelf holds the objects of one
// resource (shelf.go), of some no more than a share for each namespace (allowance.go);
// the watcher fills the shelves and hands out all of them as a [Snapshot] (watcher.go),
// finds which Secrets are named (follow.go), reads them within a budget for each
// namespace (reader.go), finds the API
// group of Calico's objects (survey.go), writes status and Events (publish.go),
// and holds the credentials (kubeconfig.go, token.go). [Rules] lists all that it
// has to be allowed in its cluster.
//
// [Compile] is the pure half: from snapshots to a haproxy.Config, the Ingresses
// that are served, and a [Problem] for each thing that is not. No other file than
// those above touches anything but its arguments. A round walks them in this
// order, of which route (routing.go) is the middle:
//
//	compile.go                compares the objects with those of the round before
//	amend.go                  routes only the few Ingresses that a change concerns, if that is enough
//	ingresses.go, class.go    collect claims; the rest knows no Ingress (claims.go)
//	hosts.go                  assigns each host to an owner
//	limits.go                 bounds what each namespace claims
//	routing.go, cert.go       certifies hosts; grants paths, the older claim first
//	settings.go               reads the keys of each backend on the way
//	hosts.go                  isolates hosts from wildcard hosts of others
//	choice.go, streams.go     chain paths with conditions; add TCP ports
//	backend.go                adds the servers out of EndpointSlices
//
// A second source of claims is a file like ingresses.go, an entry in collect, and
// its Secrets in references (settings.go), which tells the Watcher what to watch.
package ingress
