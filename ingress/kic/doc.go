// Package kic knows the custom resources of HAProxy's own ingress controller, of the groups
// ingress.v1.haproxy.org and ingress.v3.haproxy.org. It reads a Backend as values of the keys of package
// annotations, and as lines where there is no key. It reads a TCP as ports, and a Defaults, a Global and a
// Frontend as a Backend.
//
// It promises that no part of a resource is lost without a word: a field is a value, a line, or in
// [annotations.Resource.Left] with the reason. An unknown field of a Backend is an error, because the field may
// keep clients out.
//
// Its limit: it sees one resource at a time, and knows neither who names it nor whether its lines are
// allowed.
package kic
