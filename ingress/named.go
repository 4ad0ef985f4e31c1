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
	"sallyport/ingress/gateway"
)

// NamedSecrets returns the Secrets that the objects of a Snapshot name, in order, and a Problem
// for each object that names more than the limit of its namespace. The names of older objects
// count first. The operator's ConfigMap has no limit.
func (s Snapshot) NamedSecrets() (keys []types.NamespacedName, beyond []Problem) {
	return worldOf(s).allNamed(secrets)
}

// NamedConfigMaps returns the ConfigMaps of authorities that Gateways and policies name, as
// NamedSecrets returns Secrets. The limit is that of Secrets, counted apart from them.
func (s Snapshot) NamedConfigMaps() (keys []types.NamespacedName, beyond []Problem) {
	return worldOf(s).allNamed(configMaps)
}

// A naming finds the objects of one kind that an object names.
type naming struct {
	kind  string // plural, for people
	names func(*world, namer) []serviceKey
}

var (
	secrets    = naming{"Secrets", (*world).secretsNamedBy}
	configMaps = naming{"ConfigMaps", (*world).configMapsNamedBy}
)

// allNamed returns the objects of one kind that objects name, and a Problem for each object that names
// too many.
func (w *world) allNamed(of naming) (keys []serviceKey, beyond []Problem) {
	most := w.Options.Limits.Secrets
	by := make(map[string][]serviceKey) // by the namespace of the namer
	for one := range w.namers() {
		namespace := one.object.GetNamespace()
		switch {
		case one.kind == "ConfigMap":
			keys = append(keys, of.names(w, one)...)
		case most == 0 || len(by[namespace]) <= most: // more show that the limit may be exceeded
			by[namespace] = append(by[namespace], of.names(w, one)...)
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
		more, beyond = w.firstNamed(of, over, most)
		keys = append(keys, more...)
	}
	slices.SortFunc(keys, CompareKeys)
	return slices.Compact(keys), beyond
}

// Naming returns the objects of a Snapshot that name any of some Secrets, or any of some ConfigMaps.
func (s Snapshot) Naming(someSecrets, someConfigMaps map[types.NamespacedName]bool) map[metav1.Object]bool {
	all := make(map[metav1.Object]bool)
	if len(someSecrets)+len(someConfigMaps) == 0 {
		return all
	}
	w := worldOf(s)
	for by := range w.namers() {
		if slices.ContainsFunc(w.secretsNamedBy(by), func(key serviceKey) bool { return someSecrets[key] }) ||
			slices.ContainsFunc(w.configMapsNamedBy(by), func(key serviceKey) bool { return someConfigMaps[key] }) {
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

// A namer is an object that names Secrets or ConfigMaps.
type namer struct {
	kind   string // Ingress, Service, Gateway, ListenerSet, BackendTLSPolicy or ConfigMap
	object metav1.Object
}

// namers returns the objects of a cluster that may name Secrets or ConfigMaps.
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
		for _, p := range w.API.TLSPolicies {
			if ours.admits(p.Namespace) && !yield(namer{"BackendTLSPolicy", p}) {
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

// secretsNamedBy returns the Secrets that an object names.
func (w *world) secretsNamedBy(by namer) (keys []serviceKey) {
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
		return w.secretsNamedByGateway(o)
	case *gatewayv1.BackendTLSPolicy:
		return nil
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

// secretsNamedByGateway returns the Secrets that a Gateway names, and may name.
func (w *world) secretsNamedByGateway(g *gatewayv1.Gateway) (keys []serviceKey) {
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
		key := keyAt(ref.Namespace, home, ref.Name)
		isSecret := (ref.Group == nil || *ref.Group == "") && (ref.Kind == nil || *ref.Kind == "Secret")
		if isSecret && w.mayName(kind, home, "Secret", key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// keyAt returns the key of a name in a namespace, which is home if it is nil.
func keyAt(namespace *gatewayv1.Namespace, home string, name gatewayv1.ObjectName) serviceKey {
	if namespace != nil {
		home = string(*namespace)
	}
	return serviceKey{Namespace: home, Name: string(name)}
}

// configMapsNamedBy returns the ConfigMaps of authorities that an object names, and may name.
func (w *world) configMapsNamedBy(by namer) (keys []serviceKey) {
	switch o := by.object.(type) {
	case *gatewayv1.Gateway:
		for _, ref := range gateway.ClientAuthorities(o) {
			key := keyAt(ref.Namespace, o.Namespace, ref.Name)
			if ref.Group == "" && ref.Kind == "ConfigMap" && w.mayName("Gateway", o.Namespace, "ConfigMap", key) {
				keys = append(keys, key)
			}
		}
	case *gatewayv1.BackendTLSPolicy:
		for _, ref := range o.Spec.Validation.CACertificateRefs {
			key := keyAt(nil, o.Namespace, ref.Name)
			if ref.Group == "" && ref.Kind == "ConfigMap" && w.Options.ReadsSecretsOf(key.Namespace) {
				keys = append(keys, key)
			}
		}
	}
	return keys
}

// mayName reports whether an object of Gateway API in namespace home may name a target. The target is
// a Secret or a ConfigMap in a namespace that is read. In a namespace other than home, a ReferenceGrant
// has to allow it.
func (w *world) mayName(kind, home, targetKind string, target serviceKey) bool {
	return w.Options.ReadsSecretsOf(target.Namespace) &&
		(target.Namespace == home || w.grants(kind, home, targetKind, target))
}

// grants reports whether a ReferenceGrant lets objects of a kind of Gateway API in a namespace name a
// Secret or a ConfigMap.
func (w *world) grants(kind, home, targetKind string, target serviceKey) bool {
	return slices.ContainsFunc(w.API.Grants, func(g *gatewayv1.ReferenceGrant) bool {
		return g.Namespace == target.Namespace &&
			slices.ContainsFunc(g.Spec.From, func(from gatewayv1.ReferenceGrantFrom) bool {
				return from.Group == gatewayv1.GroupName && string(from.Kind) == kind && string(from.Namespace) == home
			}) &&
			slices.ContainsFunc(g.Spec.To, func(to gatewayv1.ReferenceGrantTo) bool {
				return to.Group == "" && string(to.Kind) == targetKind &&
					(to.Name == nil || string(*to.Name) == target.Name)
			})
	})
}

// firstNamed returns the objects of one kind that the oldest objects of each of some namespaces
// name, at most so many for each namespace. It returns a problem for each object that names more.
func (w *world) firstNamed(of naming, namespaces map[string]bool, most int) (keys []serviceKey, beyond []Problem) {
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
		for _, key := range of.names(w, by) {
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
				"the objects of namespace %s name more than %d %s (clusters[].ingress.limits.secrets): "+
					"%d of this %s are not read, the first is %s", namespace, most, of.kind, refused, by.kind, first)})
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
