package ingress

import (
	"slices"
)

// rereads reports whether the claims of Ingresses have to be read anew, since the Ingresses of the
// dialect may be others, or the dialect itself.
func (w *world) rereads(was *world) bool {
	now, before := w.Options.Nginx, was.Options.Nginx
	if len(now.Classes) == 0 && len(before.Classes) == 0 {
		return false
	}
	return !slices.Equal(now.Classes, before.Classes) || !slices.Equal(now.Controllers, before.Controllers) ||
		!slices.Equal(now.Without, before.Without) ||
		w.NoClasses != was.NoClasses || !slices.Equal(w.Classes, was.Classes)
}
