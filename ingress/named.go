package ingress

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/ingress/annotations"
)

// NamedSecrets returns the Secrets that the objects of a Snapshot name, in order, and a Problem
// for each object that names more than the limit of its namespace. The names of older objects
// count first. The operator's ConfigMap has no limit.
func (s Snapshot) NamedSecrets() (keys []types.NamespacedName, beyond []Problem) {
	w := worldOf(s)
	most := w.Options.Limits.Secrets
	by := make(map[string][]serviceKey) // by the namespace of the namer
	for one := range w.namers() {
		namespace := one.object.GetNamespace()
		switch {
		case one.kind == "ConfigMap":
			keys = append(keys, w.namedBy(one)...)
		case most == 0 || len(by[namespace]) <= most: // more show that the limit may be exceeded
			by[namespace] = append(by[namespace], w.namedBy(one)...)
		}
	}
	over := make(map[string]bool)
	for namespace, named := range by {
		if most > 0 && len(named) > most {
			over[namespace] = true
		} else {
			keys = append(keys, named...)
		}
	}
	if len(over) > 0 {
		var more []serviceKey
		more, beyond = w.firstNamed(over, most)
		keys = append(keys, more...)
	}
	slices.SortFunc(keys, CompareKeys)
	return slices.Compact(keys), beyond
}

// Naming returns the objects of a Snapshot that name any of some Secrets.
func (s Snapshot) Naming(secrets map[types.NamespacedName]bool) map[metav1.Object]bool {
	all := make(map[metav1.Object]bool)
	if len(secrets) == 0 {
		return all
	}
	w := worldOf(s)
	for by := range w.namers() {
		if slices.ContainsFunc(w.namedBy(by), func(key serviceKey) bool { return secrets[key] }) {
			all[by.object] = true
		}
	}
	return all
}

// worldOf returns the world of a Snapshot, without the content of its ConfigMaps.
func worldOf(s Snapshot) *world {
	s.Options = s.Options.withDefaults()
	return &world{Snapshot: s}
}

// A namer is an object that names Secrets.
type namer struct {
	kind   string // Ingress, Service, Gateway, ListenerSet or ConfigMap
	object metav1.Object
}

// namers returns the objects of a cluster that may name Secrets.
func (w *world) namers() iter.Seq[namer] {
	return func(yield func(namer) bool) {
		ours := classesOf(w)
		for _, ing := range w.Ingresses {
			if ours.has(ing) && !yield(namer{"Ingress", ing}) {
				return
			}
		}
		for _, s := range w.Services {
			if len(s.Annotations) > 0 && !yield(namer{"Service", s}) {
				return
			}
		}
		for _, g := range w.API.Gateways {
			if w.classOf(g) && ours.admits(g.Namespace) && !yield(namer{"Gateway", g}) {
				return
			}
		}
		for _, s := range w.API.ListenerSets {
			if ours.admits(s.Namespace) && !yield(namer{"ListenerSet", s}) {
				return
			}
		}
		if m := w.configMap(w.Options.ConfigMap); m.Name != "" {
			yield(namer{"ConfigMap", m})
		}
	}
}

// classOf reports whether the class of a Gateway is ours.
func (w *world) classOf(g *gatewayv1.Gateway) bool {
	class, known := Find(w.API.Classes, serviceKey{Name: string(g.Spec.GatewayClassName)})
	return known && string(class.Spec.ControllerName) == w.Options.Gateway.Controller
}

// namedBy returns the Secrets that an object names.
func (w *world) namedBy(by namer) (keys []serviceKey) {
	scope, values := annotations.Service, by.object.GetAnnotations()
	switch o := by.object.(type) {
	case *networkingv1.Ingress:
		scope = annotations.Ingress
		for _, t := range o.Spec.TLS {
			if t.SecretName != "" {
				keys = append(keys, serviceKey{Namespace: o.Namespace, Name: t.SecretName})
			}
		}
	case *gatewayv1.Gateway:
		return w.namedByGateway(o)
	case *gatewayv1.ListenerSet:
		for _, l := range o.Spec.Listeners {
			keys = w.namedByTLS("ListenerSet", o.Namespace, l.TLS, keys)
		}
		return keys
	case *corev1.ConfigMap:
		scope, values = annotations.ConfigMap, o.Data
	}
	for _, ref := range annotations.Refers(scope, values) {
		if key, err := w.secretNamedBy(scope, by.object.GetNamespace(), ref); err == nil {
			keys = append(keys, key)
		}
	}
	return keys
}

// namedByGateway returns the Secrets that a Gateway names, and may name.
func (w *world) namedByGateway(g *gatewayv1.Gateway) (keys []serviceKey) {
	for _, l := range g.Spec.Listeners {
		keys = w.namedByTLS("Gateway", g.Namespace, l.TLS, keys)
	}
	if tls := g.Spec.TLS; tls != nil && tls.Backend != nil && tls.Backend.ClientCertificateRef != nil {
		refs := []gatewayv1.SecretObjectReference{*tls.Backend.ClientCertificateRef}
		keys = w.namedByTLS("Gateway", g.Namespace, &gatewayv1.ListenerTLSConfig{CertificateRefs: refs}, keys)
	}
	return keys
}

// namedByTLS adds the Secrets that a listener names, if a ReferenceGrant allows those of other
// namespaces. kind and home are those of the object with the listener.
func (w *world) namedByTLS(kind, home string, tls *gatewayv1.ListenerTLSConfig, keys []serviceKey) []serviceKey {
	if tls == nil {
		return keys
	}
	for _, ref := range tls.CertificateRefs {
		key := serviceKey{Namespace: home, Name: string(ref.Name)}
		if ref.Namespace != nil {
			key.Namespace = string(*ref.Namespace)
		}
		isSecret := (ref.Group == nil || *ref.Group == "") && (ref.Kind == nil || *ref.Kind == "Secret")
		if isSecret && w.Options.readsSecretsOf(key.Namespace) && (key.Namespace == home || w.grants(kind, home, key)) {
			keys = append(keys, key)
		}
	}
	return keys
}

// grants reports whether a ReferenceGrant lets objects of a kind of Gateway API in a namespace name a
// Secret.
func (w *world) grants(kind, home string, secret serviceKey) bool {
	return slices.ContainsFunc(w.API.Grants, func(g *gatewayv1.ReferenceGrant) bool {
		return g.Namespace == secret.Namespace &&
			slices.ContainsFunc(g.Spec.From, func(from gatewayv1.ReferenceGrantFrom) bool {
				return from.Group == gatewayv1.GroupName && string(from.Kind) == kind && string(from.Namespace) == home
			}) &&
			slices.ContainsFunc(g.Spec.To, func(to gatewayv1.ReferenceGrantTo) bool {
				return to.Group == "" && to.Kind == "Secret" && (to.Name == nil || string(*to.Name) == secret.Name)
			})
	})
}

// firstNamed returns the Secrets that the oldest objects of each of some namespaces name,
// at most so many for each namespace, and a problem for each object that names more.
func (w *world) firstNamed(namespaces map[string]bool, most int) (keys []serviceKey, beyond []Problem) {
	var all []namer
	for by := range w.namers() {
		if by.kind != "ConfigMap" && namespaces[by.object.GetNamespace()] {
			all = append(all, by)
		}
	}
	slices.SortFunc(all, olderNamer)
	counted := make(map[string]map[serviceKey]bool)
	for _, by := range all {
		namespace := by.object.GetNamespace()
		if counted[namespace] == nil {
			counted[namespace] = make(map[serviceKey]bool)
		}
		refused := 0
		var first serviceKey
		for _, key := range w.namedBy(by) {
			switch {
			case counted[namespace][key]:
			case len(counted[namespace]) < most:
				counted[namespace][key] = true
				keys = append(keys, key)
			default:
				if refused++; refused == 1 {
					first = key
				}
			}
		}
		if refused > 0 {
			beyond = append(beyond, Problem{Reason: "LimitReached", ObjectRef: ObjectRef{
				Cluster: w.Cluster, Kind: by.kind, Namespace: namespace,
				Name: by.object.GetName(), UID: string(by.object.GetUID()),
			}, Why: fmt.Sprintf(
				"the objects of namespace %s name more than %d Secrets (clusters[].ingress.limits.secrets): "+
					"%d of this %s are not read, the first is %s", namespace, most, refused, by.kind, first)})
		}
	}
	return keys, beyond
}

// olderNamer orders objects by their age.
func olderNamer(a, b namer) int {
	return cmp.Or(
		a.object.GetCreationTimestamp().Compare(b.object.GetCreationTimestamp().Time),
		CompareKeys(KeyOf(a.object), KeyOf(b.object)), cmp.Compare(a.kind, b.kind),
	)
}
