package ingress

import (
	"slices"

	networkingv1 "k8s.io/api/networking/v1"

	"sallyport/ingress/annotations"
)

// readNginx adds the values to a claimant that the annotations of ingress-nginx stand for. Keys with
// our own prefixes override them.
func (w *world) readNginx(of *claimant, ing *networkingv1.Ingress) {
	read := w.ReadNginx(ing)
	of.layer = of.layer.With(read.Said...)
	of.layer.Odd = slices.Concat(of.layer.Odd, read.Problems)
	of.usual = annotations.Layer{}.With(read.Usual...)
	if read.Closed {
		of.layer = of.layer.Close()
	}
}

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
