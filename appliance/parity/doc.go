// Package parity compares what the requests of an access log met before with what they meet here.
//
// [Replay] asks the routing of the appliance, and sends no request. Package accesslog reads the lines of the
// log. Package ingress compiles the objects as the appliance does, and decides each request. [Send] sends the
// safe requests of the log to two places, and compares their answers. It sends nothing of the log but
// method, host and path, and shows no value of a query or a cookie.
//
// Its memory is bounded for each log. Lines, groups and remembered requests each have a limit, and a
// Report counts the requests beyond a limit.
//
// Its limit: Replay knows neither the answer of a server, nor a header that the log does not have. A request
// that reaches a server here and reached one before counts as the same, unless the log names another Service. Logs
// of ingress-nginx and of HAProxy's controller have the name. Of the guards, Replay looks at those by the address
// and the user of a client. It does not look at tokens, auth-url, limits, client certificates and lists of patterns.
// It looks neither at keys of a rule with a canary or a condition, nor at Gateway API.
package parity
