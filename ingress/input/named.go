package input

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/ingress/annotations"
	"sallyport/ingress/gateway"
	"sallyport/ingress/nginx"
)

// An objectKey names an object of a namespace.
type objectKey = types.NamespacedName

// AllNamed returns the Secrets and the ConfigMaps that the objects of a Snapshot name, each in order. It also returns a
// Problem for each object that names more than the limit of its namespace. Both kinds have the limit of Secrets, and
// are counted apart. The names of older objects count first. The operator's ConfigMap has no limit.
func (s Snapshot) AllNamed() (secretKeys, configMapKeys []objectKey, beyond []Problem) {
	of := withDefaults(s)
	both := [2]named{
		{naming: secrets, by: map[string][]objectKey{}},
		{naming: configMaps, by: map[string][]objectKey{}},
	}
	for by := range of.namers() {
		both[0].add(of, by)
		both[1].add(of, by)
	}
	secretKeys, beyond = both[0].within(of)
	configMapKeys, more := both[1].within(of)
	return secretKeys, configMapKeys, append(beyond, more...)
}

// A naming finds the objects of one kind that an object names.
type naming struct {
	kind  string // plural, for people
	names func(*Snapshot, namer) []objectKey
}

var (
	secrets    = naming{"Secrets", (*Snapshot).secretsNamedBy}
	configMaps = naming{"ConfigMaps", (*Snapshot).configMapsNamedBy}
)

// named has the objects of one kind that objects name.
type named struct {
	naming
	free []objectKey            // without a limit
	by   map[string][]objectKey // by the namespace of the namer
}

// add adds the objects that one object names.
func (n *named) add(s *Snapshot, by namer) {
	most, namespace := s.Options.Limits.Secrets, by.object.GetNamespace()
	switch {
	case by.kind == "ConfigMap":
		n.free = append(n.free, n.names(s, by)...)
	case most == 0 || len(n.by[namespace]) <= most: // more show that the limit may be exceeded
		n.by[namespace] = append(n.by[namespace], n.names(s, by)...)
	}
}

// within returns all objects within the limits of namespaces, and a Problem for each object that names
// too many.
func (n *named) within(s *Snapshot) (keys []objectKey, beyond []Problem) {
	most := s.Options.Limits.Secrets
	keys = n.free
	over := make(map[string]bool)
	for namespace, all := range n.by {
		if most > 0 && len(all) > most {
			over[namespace] = true
		} else {
			keys = append(keys, all...)
		}
	}
	if len(over) > 0 {
		var more []objectKey
		more, beyond = s.firstNamed(n.naming, over, most)
		keys = append(keys, more...)
	}
	slices.SortFunc(keys, CompareKeys)
	return slices.Compact(keys), beyond
}

// Naming returns the objects of a Snapshot that name any of some Secrets, or any of some ConfigMaps.
func (s Snapshot) Naming(someSecrets, someConfigMaps map[objectKey]bool) map[metav1.Object]bool {
	all := make(map[metav1.Object]bool)
	if len(someSecrets)+len(someConfigMaps) == 0 {
		return all
	}
	of := withDefaults(s)
	for by := range of.namers() {
		if slices.ContainsFunc(of.secretsNamedBy(by), func(key objectKey) bool { return someSecrets[key] }) ||
			slices.ContainsFunc(of.configMapsNamedBy(by), func(key objectKey) bool { return someConfigMaps[key] }) {
			all[by.object] = true
		}
	}
	return all
}

// withDefaults returns the Snapshot with the defaults of its Options.
func withDefaults(s Snapshot) *Snapshot {
	s.Options = s.Options.WithDefaults()
	return &s
}

// A namer is an object that names Secrets or ConfigMaps.
type namer struct {
	kind   string // Ingress, Service, Gateway, ListenerSet, BackendTLSPolicy or ConfigMap
	object metav1.Object
	nginx  bool // it has the annotations of ingress-nginx
}

// namers returns the objects of a cluster that may name Secrets or ConfigMaps.
func (s *Snapshot) namers() iter.Seq[namer] {
	mentions := func(scope annotations.Scope, o metav1.Object) bool {
		return annotations.Mentions(scope, o.GetAnnotations(), annotations.SecretKind, annotations.ConfigMapKind)
	}
	return func(yield func(namer) bool) {
		ours := ClassesOf(s)
		for _, ing := range s.Ingresses {
			if len(ing.Spec.TLS) == 0 && len(ing.Annotations) == 0 { // it names nothing
				continue
			}
			as := ours.Kind(ing)
			names := as == OfNginx || len(ing.Spec.TLS) > 0 || mentions(annotations.Ingress, ing)
			if as != Strange && names && !yield(namer{kind: "Ingress", object: ing, nginx: as == OfNginx}) {
				return
			}
		}
		for _, service := range s.Services {
			if mentions(annotations.Service, service) && !yield(namer{kind: "Service", object: service}) {
				return
			}
		}
		for _, g := range s.API.Gateways {
			if s.classOf(g) && ours.Admits(g.Namespace) && !yield(namer{kind: "Gateway", object: g}) {
				return
			}
		}
		for _, set := range s.API.ListenerSets {
			if ours.Admits(set.Namespace) && !yield(namer{kind: "ListenerSet", object: set}) {
				return
			}
		}
		for _, p := range s.API.TLSPolicies {
			if ours.Admits(p.Namespace) && !yield(namer{kind: "BackendTLSPolicy", object: p}) {
				return
			}
		}
		if m := s.ConfigMap(s.Options.ConfigMap); m.Name != "" {
			yield(namer{kind: "ConfigMap", object: m})
		}
	}
}

// classOf reports whether the class of a Gateway is ours.
func (s *Snapshot) classOf(g *gatewayv1.Gateway) bool {
	class, known := Find(s.API.Classes, objectKey{Name: string(g.Spec.GatewayClassName)})
	return known && string(class.Spec.ControllerName) == s.Options.Gateway.Controller
}

// secretsNamedBy returns the Secrets that an object names.
func (s *Snapshot) secretsNamedBy(by namer) (keys []objectKey) {
	switch o := by.object.(type) {
	case *networkingv1.Ingress:
		for _, t := range o.Spec.TLS {
			if t.SecretName != "" {
				keys = append(keys, objectKey{Namespace: o.Namespace, Name: t.SecretName})
			}
		}
	case *gatewayv1.Gateway:
		return s.secretsNamedByGateway(o)
	case *gatewayv1.BackendTLSPolicy:
		return nil
	case *gatewayv1.ListenerSet:
		for _, l := range o.Spec.Listeners {
			keys = s.namedByTLS("ListenerSet", o.Namespace, l.TLS, keys)
		}
		return keys
	}
	scope, refs := s.refers(annotations.SecretKind, by)
	for _, ref := range refs {
		if key, err := s.SecretNamedBy(scope, by.object.GetNamespace(), ref); err == nil {
			keys = append(keys, key)
		}
	}
	return keys
}

// refers returns the objects of a kind that the keys on an object name, and the scope of these keys.
func (s *Snapshot) refers(kind annotations.Kind, by namer) (annotations.Scope, []annotations.Ref) {
	scope, values := annotations.Service, by.object.GetAnnotations()
	switch o := by.object.(type) {
	case *networkingv1.Ingress:
		scope = annotations.Ingress
		if by.nginx && nginx.Names(kind, values) {
			return scope, annotations.Read(scope, values).With(s.ReadNginx(o).Said...).Refers(kind)
		}
	case *corev1.ConfigMap:
		scope, values = annotations.ConfigMap, o.Data
	}
	return scope, annotations.Refers(kind, scope, values)
}

// secretsNamedByGateway returns the Secrets that a Gateway names, and may name.
func (s *Snapshot) secretsNamedByGateway(g *gatewayv1.Gateway) (keys []objectKey) {
	for _, l := range g.Spec.Listeners {
		keys = s.namedByTLS("Gateway", g.Namespace, l.TLS, keys)
	}
	if tls := g.Spec.TLS; tls != nil && tls.Backend != nil && tls.Backend.ClientCertificateRef != nil {
		refs := []gatewayv1.SecretObjectReference{*tls.Backend.ClientCertificateRef}
		keys = s.namedByTLS("Gateway", g.Namespace, &gatewayv1.ListenerTLSConfig{CertificateRefs: refs}, keys)
	}
	return keys
}

// namedByTLS adds the Secrets that a listener names, if a ReferenceGrant allows those of other
// namespaces. kind and home are those of the object with the listener.
func (s *Snapshot) namedByTLS(kind, home string, tls *gatewayv1.ListenerTLSConfig, keys []objectKey) []objectKey {
	if tls == nil {
		return keys
	}
	for _, ref := range tls.CertificateRefs {
		key := keyAt(ref.Namespace, home, ref.Name)
		isSecret := (ref.Group == nil || *ref.Group == "") && (ref.Kind == nil || *ref.Kind == "Secret")
		if isSecret && s.mayName(kind, home, "Secret", key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// keyAt returns the key of a name in a namespace, which is home if it is nil.
func keyAt(namespace *gatewayv1.Namespace, home string, name gatewayv1.ObjectName) objectKey {
	if namespace != nil {
		home = string(*namespace)
	}
	return objectKey{Namespace: home, Name: string(name)}
}

// configMapsNamedBy returns the ConfigMaps that an object names, and may name.
func (s *Snapshot) configMapsNamedBy(by namer) (keys []objectKey) {
	switch o := by.object.(type) {
	case *networkingv1.Ingress, *corev1.Service, *corev1.ConfigMap:
		scope, refs := s.refers(annotations.ConfigMapKind, by)
		for _, ref := range refs {
			if key, err := s.ConfigMapNamedBy(scope, by.object.GetNamespace(), ref); err == nil {
				keys = append(keys, key)
			}
		}
	case *gatewayv1.Gateway:
		for _, ref := range gateway.ClientAuthorities(o) {
			key := keyAt(ref.Namespace, o.Namespace, ref.Name)
			if ref.Group == "" && ref.Kind == "ConfigMap" && s.mayName("Gateway", o.Namespace, "ConfigMap", key) {
				keys = append(keys, key)
			}
		}
	case *gatewayv1.BackendTLSPolicy:
		for _, ref := range o.Spec.Validation.CACertificateRefs {
			key := keyAt(nil, o.Namespace, ref.Name)
			if ref.Group == "" && ref.Kind == "ConfigMap" && s.Options.ReadsSecretsOf(key.Namespace) {
				keys = append(keys, key)
			}
		}
	}
	return keys
}

// mayName reports whether an object of Gateway API in namespace home may name a target. The target is
// a Secret or a ConfigMap in a namespace that is read. In a namespace other than home, a ReferenceGrant
// has to allow it.
func (s *Snapshot) mayName(kind, home, targetKind string, target objectKey) bool {
	return s.Options.ReadsSecretsOf(target.Namespace) &&
		(target.Namespace == home || s.grants(kind, home, targetKind, target))
}

// grants reports whether a ReferenceGrant lets objects of a kind of Gateway API in a namespace name a
// Secret or a ConfigMap.
func (s *Snapshot) grants(kind, home, targetKind string, target objectKey) bool {
	return slices.ContainsFunc(s.API.Grants, func(g *gatewayv1.ReferenceGrant) bool {
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
func (s *Snapshot) firstNamed(of naming, namespaces map[string]bool, most int) (keys []objectKey, beyond []Problem) {
	var all []namer
	for by := range s.namers() {
		if by.kind != "ConfigMap" && namespaces[by.object.GetNamespace()] {
			all = append(all, by)
		}
	}
	slices.SortFunc(all, olderNamer)
	counted := make(map[string]map[objectKey]bool)
	for _, by := range all {
		namespace := by.object.GetNamespace()
		if counted[namespace] == nil {
			counted[namespace] = make(map[objectKey]bool)
		}
		refused := 0
		var first objectKey
		for _, key := range of.names(s, by) {
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
				Cluster: s.Cluster, Kind: by.kind, Namespace: namespace,
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

// Named returns the object that a key names. own is false if that is of another
// namespace than home, the one of the key's own object. The operator's ConfigMap may
// name objects of every namespace as its own.
func (s *Snapshot) Named(scope annotations.Scope, home string, ref annotations.Ref) (key objectKey, own bool) {
	if scope == annotations.ConfigMap {
		home, _, _ = strings.Cut(s.Options.ConfigMap, "/")
	}
	key = objectKey{Namespace: cmp.Or(ref.Namespace, home), Name: ref.Name}
	return key, key.Namespace == home || scope == annotations.ConfigMap
}

// SecretNamedBy returns the Secret that a key names. An error says why the key may not
// name it.
func (s *Snapshot) SecretNamedBy(scope annotations.Scope, home string, ref annotations.Ref) (objectKey, error) {
	key, own := s.Named(scope, home, ref)
	switch {
	case !own && !s.Options.CrossNamespaceSecrets:
		return key, fmt.Errorf("Secret %s is in another namespace, which the configuration file does not allow "+
			"(clusters[].ingress.crossNamespaceSecrets)", key)
	case !s.Options.ReadsSecretsOf(key.Namespace):
		return key, fmt.Errorf("Secret %s is in a namespace whose Secrets are not read; allowed are those of "+
			"clusters[].ingress.namespaces and the one of the ConfigMap", key)
	}
	return key, nil
}

// ConfigMapNamedBy returns the ConfigMap that a key names. An error says why the key may not name it.
func (s *Snapshot) ConfigMapNamedBy(scope annotations.Scope, home string, ref annotations.Ref) (objectKey, error) {
	key, own := s.Named(scope, home, ref)
	switch {
	case !own:
		return key, fmt.Errorf("ConfigMap %s is in another namespace, which is not allowed", key)
	case !s.Options.ReadsSecretsOf(key.Namespace):
		return key, fmt.Errorf("ConfigMap %s is in a namespace whose ConfigMaps are not read; allowed are those of "+
			"clusters[].ingress.namespaces and the one of the ConfigMap", key)
	}
	return key, nil
}

// ConfigMap returns the ConfigMap NAMESPACE/NAME, or an empty one if it does not
// exist.
func (s *Snapshot) ConfigMap(name string) *corev1.ConfigMap {
	namespace, name, _ := strings.Cut(name, "/")
	if m, ok := Find(s.ConfigMaps, objectKey{Namespace: namespace, Name: name}); ok {
		return m
	}
	return &corev1.ConfigMap{}
}
