// Package gateway decides which listeners the Gateways of Gateway API have, which routes attach to
// these listeners, and which conditions the statuses report.
//
// It alone knows the rules of the API for hostnames, allowed routes, kinds, grants and precedence.
// It is pure: it sees only the objects that it is given. It knows nothing of HAProxy, and reads no
// content of a Secret.
package gateway
