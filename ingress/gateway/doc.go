// Package gateway decides what the objects of Gateway API ask for: which listeners a Gateway has,
// which routes attach to them, and which conditions the statuses report.
//
// It alone knows the rules of the API for hostnames, allowed routes, kinds, grants and precedence.
// It is pure: it sees only the objects that it is given. It knows nothing of HAProxy, and reads no
// content of a Secret.
package gateway
