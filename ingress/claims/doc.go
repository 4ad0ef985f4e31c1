// Package claims owns the wishes of single objects: for hosts, paths, certificates and the Services
// behind them. It reads the [Claim] of an Ingress, and counts claims and routes against the limits of a
// namespace ([Account]). It finds paths of a host among those of all claims ([HostPaths], [PathsBelow]). A
// [Period] is the time in which an answer about claims holds.
//
// It alone knows which hosts, paths and references of an Ingress are valid, and which of two claims
// counts as older. It reads a Claim only from its object. It checks names, hosts and paths from the API
// before it puts them into a Claim. An invalid rule is left out, and the others stay.
//
// Its limit: it grants nothing. Package ingress decides which claims take effect.
package claims
