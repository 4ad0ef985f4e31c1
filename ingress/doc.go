// Package ingress owns the wishes of clusters: it turns their objects into the nouns of the
// packages that act on them. [Compile] makes a haproxy.Config of snapshots. It also returns which
// Ingresses are served, and a [Problem] for each part that is not.
//
// It alone knows the meaning of Kubernetes' objects. It is pure: it touches nothing but its
// arguments, and knows no API server. Its arguments are the Snapshots of package input. Package
// watch reads the objects there and writes the outcome back, package annotations reads the keys that
// users set in annotations, and package calico reads Calico's objects.
//
// It promises that one broken object never stops another object. It checks names, hosts, paths,
// addresses and certificates from the API before it passes them on. A namespace changes nothing for
// the hosts of another namespace, unless the operator lets them share (hosts.go and package owners have the argument).
// Each namespace is bounded (Limits).
//
// Its limit: it decides nothing about routes or reachability. A server in its Config is an endpoint
// that the cluster calls ready, and may be out of reach.
//
// # Inside
//
// A round walks the files in this order. The function route (routing.go) is the middle of it:
//
//	compile.go                compares the objects with those of the round before
//	amend.go, exchange.go     routes only the few Ingresses and routes that a change concerns, if that
//	                          is enough (package linked)
//	gateways.go               asks package gateway which routes attach to which listeners
//	routing.go, shared.go     collect claims (package claims); the rest knows no Ingress
//	hosts.go                  assigns each host to an owner (package owners)
//	expressions.go            makes regular expressions of paths as ingress-nginx does
//	hosts.go                  gives the paths of each host to its further names
//	limits.go                 bounds what each namespace claims
//	hosts.go                  redirects names with and without "www."
//	routing.go                certifies hosts (package cert); grants paths, the older claim first
//	settings.go               asks for the settings of each backend on the way (package keys)
//	hosts.go                  isolates hosts from wildcard hosts of others
//	choice.go                 chains paths with conditions
//	gateways.go               bounds the routes of each namespace
//	streams.go, services.go   add TCP ports; give addresses to Services and Gateways (package balance)
//	gateways.go               makes listeners and routes at the addresses of Gateways (package listen)
//	backends.go               makes the backends of these routes
//	backend.go                adds the servers out of EndpointSlices
//	sets.go                   adds the servers of other clusters of a set
//
// A second source of claims needs a file like ingresses.go of package claims, an entry in collect, and
// its Secrets in the namers of package input.
package ingress
