// Package annotations owns the keys with which users say how an Ingress is
// served: on the Ingress, on its Service, or in a ConfigMap for all.
//
// It alone knows their names, scopes, formats and defaults ([Docs]), and what
// they come to for a backend ([Compile]). It promises that every value is
// checked before it becomes a haproxy.Directive, that one which is not good is
// told and left out, and that then the next scope counts.
//
// Its limit: it knows keys and values, not objects.
package annotations
