// Package status says what a round of the appliance saw, what is wrong with it, and why.
//
// It owns the View of a round, and everything that is derived from a View: the judge of faults, the
// index by node, block and server, the answers of GET /status, /explain, /events and /top, and the
// changes and samples that the process remembers. The loop fills in the View; the endpoints, the
// pages and the doctor read it.
//
// It alone knows which fault means what, and what to do about it. A View never changes after its
// round, so readers need no lock. Nothing here reads the kernel, HAProxy or a cluster, and nothing
// here holds a secret.
//
// Its limit: it sees one appliance at one moment. Only the judge remembers since when a fault lasts.
package status
