// Package parity replays an access log against the routing of the appliance, and sends no request.
//
// It owns the forms of access logs, and the comparison of an answer in the log with the answer that the
// routing gives. Package ingress compiles the objects as the appliance does, and decides each request.
//
// Its memory is bounded for each log. Lines, groups and remembered requests each have a limit, and a
// Report counts the requests beyond a limit.
//
// Its limit: it knows neither what a server answers, nor a header that the log does not have. A request
// that reaches a server here and reached one before counts as the same. Guards that need
// more than the address and the user of a client are not looked at: auth-url, limits, client certificates,
// lists of patterns. So are the keys of backends that only a part of the requests reach, and Gateway API.
package parity
