// Package input owns what is read of a cluster: a [Snapshot] of its objects, the [Options] that say
// which of them are ours, and the [Owners] that an earlier round has left.
//
// It alone knows the kinds of these objects (Objects), and the Secrets and ConfigMaps that they name
// (AllNamed). It also knows the fields that nobody reads, which a watcher need
// not keep (Strip), and the form in which members of a group tell each other of owners (Memory).
//
// It promises that an object is never changed, and that a namespace names no more Secrets than its
// limit. What another process sent is checked before it counts.
//
// Its limit: it decides nothing. Package ingress finds the meaning of a Snapshot, package watch
// fills it, and appliance/picture keeps it.
package input
