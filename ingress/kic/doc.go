// Package kic knows the custom resources of HAProxy's own ingress controller, of the groups
// ingress.v1.haproxy.org and ingress.v3.haproxy.org. It reads a Backend as values of the keys of package
// annotations, and as lines for what no key says. It reads a TCP as ports.
//
// It promises that nothing of a resource is lost without a word: a field is a value, a line, or in
// [annotations.Resource.Left] with the reason. A field that it does not know is an error, because it may
// keep clients out.
//
// Its limit: it sees one resource at a time, and knows neither who names it nor whether its lines are
// allowed.
package kic
