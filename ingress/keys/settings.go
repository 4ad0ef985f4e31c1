package keys

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/claims"
	"sallyport/ingress/input"
	"sallyport/ingress/listen"
)

// Settings hold the result of all keys for one backend: those of an Ingress, a Service
// and a ConfigMap. Settings are never changed: a backend holds the pointer.
type Settings struct {
	annotations.Settings
	Found
	Used     []annotations.Effective
	Problems []annotations.Problem

	By   *claims.Claimant // its keys change the backend, which it alone uses; nil if the backend is shared
	Hash string           // of what a rule of a route adds; part of the backend's name
}

// Found is all that keys have named and asked for.
type Found struct {
	Asks    []Asked        // Services that check requests, get copies, or answer for servers
	Refused []haproxy.Part // left out because HAProxy refuses them

	// All that were looked up.
	secrets  []foundSecret
	backends []foundBackend // of HAProxy's own controller
	sections []foundSection
}

// An Asked is a Service that a key names for a purpose.
type Asked struct {
	Key     types.NamespacedName
	Port    string
	Backend string // its name
	annotations.Purpose
}

// A foundSecret is the outcome of a look-up. secret is nil if none was found.
type foundSecret struct {
	key    types.NamespacedName
	secret *corev1.Secret
}

// A foundBackend is the outcome of a look-up. backend is nil if none was found.
type foundBackend struct {
	key     types.NamespacedName
	backend *input.Backend
}

// A foundSection is the outcome of a look-up of a ConfigMap, or of a resource about a section. object is nil if none
// was found.
type foundSection struct {
	kind   annotations.Kind
	key    types.NamespacedName
	object metav1.Object
}

// Changed reports whether a look-up has another outcome in a world.
func (f *Found) Changed(w *World) bool {
	for _, one := range f.secrets {
		if now, _ := input.Find(w.Secrets, one.key); now != one.secret {
			return true
		}
	}
	for _, one := range f.backends {
		if now, _ := input.Find(w.Backends, one.key); now != one.backend {
			return true
		}
	}
	for _, one := range f.sections {
		if now, _ := w.section(one.kind, one.key); now != one.object {
			return true
		}
	}
	return false
}

// encrypt makes HAProxy connect to the servers over TLS, and verify their certificates.
func (s *Settings) encrypt(tls listen.ServerTLS) {
	s.Options.TLS, s.Options.CA, s.Options.SNI, s.Options.VerifyHost = true, tls.CA.Name, tls.Name, ""
	s.Extras = append(slices.Clone(s.Extras), tls.CA)
	if tls.Crt != nil {
		s.Options.Crt, s.Extras = tls.Crt.Name, append(s.Extras, tls.Crt)
	}
}
