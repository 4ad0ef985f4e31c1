// Package listen owns the part of HAProxy's configuration that belongs to Gateways at addresses of their
// own: listeners, certificates, hosts, conditions, and the targets of rules. An [Opener] makes it in one
// round, out of the routes that package gateway has attached. The package also reports how Gateways
// and routes are served.
//
// It alone knows what the filters, timeouts and retries of a rule become in HAProxy ([Effects]), and
// which backends share the requests of a rule.
//
// It promises that a rule with a part that cannot be served answers its requests with an error, and
// leaves the other rules as they are.
//
// Its limit: it makes no backends. Its caller is a [Builder], which makes them for routes and Ingresses
// alike. It decides neither about addresses nor about the limits of a namespace, except for the numbers
// of conditions and of copied matches.
package listen
