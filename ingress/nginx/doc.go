// Package nginx owns the annotations of ingress-nginx (nginx.ingress.kubernetes.io/) as a dialect: it
// reads them as values of our own keys.
//
// It alone knows their names, how ingress-nginx 1.15 reads their values, and which key has the same
// effect ([Rows]). It promises that no guard is lost silently. An annotation that keeps clients out,
// and that has no equal here, closes the Ingress, unless the operator gives it up by name
// ([Options].Without). It never reads a snippet: any snippet may be such a guard.
//
// Its limit: it translates values, and package annotations checks the result. It knows nothing of
// Kubernetes.
package nginx
