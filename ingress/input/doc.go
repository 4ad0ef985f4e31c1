// Package input owns the input of a round: a [Snapshot] of a cluster's objects, the [Options] that say
// which of them are ours, and the [Owners] that an earlier round has left.
//
// It alone knows the kinds of these objects (Objects), and the Secrets and ConfigMaps that they name
// (AllNamed). It also knows the fields that nobody reads: a watcher need not keep them (Strip). Members
// of a group tell each other of owners, in the form that Memory has.
//
// It promises that an object is never changed, and that a namespace names no more Secrets than its
// limit. What another process sent is checked before it counts.
//
// Its limit: it decides nothing. Package ingress finds the meaning of a Snapshot, package watch
// fills it, and appliance/picture keeps it.
package input
