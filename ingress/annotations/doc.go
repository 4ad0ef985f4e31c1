// Package annotations owns the keys with which users say how an Ingress is
// served: on the Ingress, on its Service, or in a ConfigMap for all.
//
// It alone knows their names, scopes, formats and defaults ([Docs]), and compiles
// them to the settings of a backend ([Compile]). It promises that every value is
// checked before it becomes a haproxy.Directive. An invalid value is reported and
// left out, and the value of the next scope is used. An invalid guard closes the
// backend.
//
// Its limit: it knows keys and values, not objects.
package annotations
