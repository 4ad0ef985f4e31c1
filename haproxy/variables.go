package haproxy

import "regexp"

// Variables is a set of the variables of a request that HAProxy sets only if a Text reads them. HAProxy's own ingress
// controller sets them for each request, and texts that were written for it name them. txn.path is none of them: it
// is always set.
type Variables uint8

// The members of Variables.
const (
	// readsBase is txn.base, the Host header and the path without the query.
	readsBase Variables = 1 << iota
	// readsHost is txn.host, the host in lower case and without the port.
	readsHost
	// readsHostMatch is txn.host_match, the host of the rule that takes the request: as txn.host, as ".example.com" for
	// a wildcard, or empty for any host.
	readsHostMatch
	// readsPathMatch is txn.path_match, the backend of the rule that takes the request, before canaries and choices.
	readsPathMatch
)

// variableNames matches the names of the Variables.
var variableNames = regexp.MustCompile(`\btxn\.(base|host|host_match|path_match)\b`)

// readBy returns the Variables that a text names.
func readBy(text string) (all Variables) {
	for _, name := range variableNames.FindAllStringSubmatch(text, -1) {
		switch name[1] {
		case "base":
			all |= readsBase
		case "host":
			all |= readsHost
		case "host_match":
			all |= readsHost | readsHostMatch
		case "path_match":
			all |= readsPathMatch
		}
	}
	return all
}

// Reads returns the Variables that a Text in a backend names. It returns none for any other Directive.
func (d Directive) Reads() Variables {
	if d.phase != phaseText {
		return 0
	}
	return readBy(d.text)
}

// reads reports whether a Text of the configuration names a variable.
func (h *head) reads(one Variables) bool { return h.read&one != 0 }

// writeVariables writes the rules that set the variables which are known before a request has a route.
func (h *head) writeVariables() {
	if h.reads(readsBase) {
		h.line("http-request set-var(txn.base) base")
	}
	if h.reads(readsHost) {
		h.line("http-request set-var(txn.host) req.hdr(host),host_only,lower")
	}
}

// writeMatched writes a rule that remembers the host of the rule that takes a request, after a look-up.
func (h *head) writeMatched(host, found string) {
	if h.reads(readsHostMatch) {
		h.line("http-request set-var(txn.host_match) " + host + " if !{ var(txn.host_match) -m found }" + found)
	}
}
