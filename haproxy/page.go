package haproxy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A Page lets a service answer in place of servers that answer with one of some statuses. HAProxy asks it for GET /,
// or HEAD /, through an ordinary backend, with the Host and Accept of the client and the headers X-Code, X-Format
// (Accept again), X-Original-URI, X-Namespace and X-Request-ID. The client gets the status, the headers and the body
// of its answer. The answer of the server stays if the service gives none within 5 seconds, or one of more than 24 kB.
// Answers that HAProxy makes, as the 503 of a backend without servers, are not replaced.
type Page struct {
	Backend   string // name of the service's backend
	Namespace string // of the Ingress
	Statuses  []int  // from 300 to 599
}

// Directive returns the rules of a Page.
func (p Page) Directive() (Directive, error) {
	if !isName(p.Backend) {
		return Directive{}, notAName("backend of a page", p.Backend)
	}
	if !isNamespace(p.Namespace) {
		return Directive{}, fmt.Errorf("%s is not the name of a namespace", shown(p.Namespace))
	}
	if len(p.Statuses) == 0 {
		return Directive{}, fmt.Errorf("a page has no status")
	}
	statuses := slices.Compact(slices.Sorted(slices.Values(p.Statuses)))
	if first, last := statuses[0], statuses[len(statuses)-1]; first < 300 || last > 599 {
		return Directive{}, fmt.Errorf("a page replaces answers with %d to %d: allowed are 300 to 599", first, last)
	}
	lines := []string{
		"http-request set-var(txn.page_uri) pathq",
		"http-request set-var(txn.page_host) req.fhdr(host)",
		"http-request set-var(txn.page_format) req.fhdr(accept)",
		"http-request set-var(txn.page_id) req.fhdr(x-request-id)",
		"http-request set-var(txn.page_head) bool(true) if METH_HEAD",
	}
	const most = 40 // HAProxy takes 64 words in a line
	for words := range slices.Chunk(ranges(statuses), most) {
		lines = append(lines, "http-response lua.sallyport_page "+p.Backend+" "+p.Namespace+
			" if { status "+strings.Join(words, " ")+" }")
	}
	return Directive{phase: phasePage, text: strings.Join(lines, "\n")}, nil
}

// ranges writes sorted numbers as FIRST:LAST, or as one number.
func ranges(numbers []int) (words []string) {
	for i := 0; i < len(numbers); {
		first := numbers[i]
		for i++; i < len(numbers) && numbers[i] == numbers[i-1]+1; i++ {
		}
		if last := numbers[i-1]; last > first {
			words = append(words, fmt.Sprintf("%d:%d", first, last))
		} else {
			words = append(words, strconv.Itoa(first))
		}
	}
	return words
}

var isNamespace = matcher(`^[a-z0-9-]{1,63}$`)
