// Package status describes a round of the appliance: the state that it saw, the faults in it, and
// the reason of each.
//
// It owns the View of a round and everything that is derived from a View. The judge finds faults. The
// index counts by node, block and server. The answers are those of GET /status, /explain, /events and
// /top. The timeline and the samples remember changes and load since the start of the process. The
// loop fills in the View; the endpoints, the pages and the doctor read it.
//
// It alone knows the meaning of a fault and its remedy. A View never changes after its round, so
// readers need no lock. The package does not read the kernel, HAProxy or a cluster, and its answers
// hold no secret.
//
// Its limit: it sees one appliance at one moment. Only the judge remembers since when a fault lasts.
package status
