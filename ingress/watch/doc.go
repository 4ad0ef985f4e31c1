// Package watch owns the exchange with the API server of one cluster. A [Watcher] reads the
// objects that package ingress compiles, and writes status and Events back.
//
// It alone knows the lists, watches and patches of client-go. Package apiserver has the kubeconfig and
// the credentials. [Rules] lists all that it has to be allowed in its cluster.
//
// It promises that an API server that is away, refuses or serves nothing any more never looks
// like an empty cluster: the last known objects stay, and [Health] says what is wrong. A
// [Watcher] hands out an object together with the Secrets and ConfigMaps that the object names. The
// memory and the requests that one namespace causes are bounded, and namespaces take turns: no
// namespace delays another.
//
// Its limit: it does not know the meaning of objects. Package ingress tells it which Secrets and
// ConfigMaps are named and which fields are read, and package calico reads Calico's objects.
//
// # Inside
//
// A shelf holds the objects of one resource:
//
//	shelf.go                   lists and watches a resource, and keeps its objects in order
//	allowance.go               bounds the objects of each namespace in a shelf
//	watcher.go                 fills the shelves, and hands out all of them as a Snapshot
//	endpoints.go               prefers Services, and their EndpointSlices, that something leads to
//	follow.go, reader.go       find the Secrets and ConfigMaps that are named, and read them within a budget
//	survey.go                  finds the API group of Calico's objects
//	gateways.go                finds the kinds of Gateway API, and reads their objects
//	publish.go, conditions.go  write status and Events
//	clients.go                 has a client for each resource
//	look.go                    looks at a cluster once, for the command line and the doctor
//	rules.go                   lists the rights
package watch
