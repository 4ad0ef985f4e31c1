package ingress

import (
	"slices"
)

// rereads reports whether the claims of Ingresses have to be read anew, since the Ingresses of the
// dialect may be others, or the dialect itself.
func (w *world) rereads(was *world) bool {
	now, before := w.Options.Nginx, was.Options.Nginx
	if now.Class == "" && before.Class == "" {
		return false
	}
	return now.Class != before.Class || now.Controller != before.Controller ||
		!slices.Equal(now.Without, before.Without) ||
		w.NoClasses != was.NoClasses || !slices.Equal(w.Classes, was.Classes)
}
