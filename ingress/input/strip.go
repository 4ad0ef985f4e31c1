package input

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Strip removes from an object the fields that Compile does not read. A watcher need not keep
// them in memory. Stripping an object twice changes nothing.
func (o Options) Strip(object any) {
	switch of := object.(type) {
	case *corev1.Service:
		o.stripService(of)
	case *corev1.Secret:
		o.stripSecret(of)
	case *corev1.ConfigMap:
		o.stripConfigMap(of)
	case *discoveryv1.EndpointSlice:
		stripSlice(of)
	case *corev1.Namespace:
		stripNamespace(of)
	}
}

// stripService removes the status of a Service, except for the addresses that the status
// records (see allot).
func (o Options) stripService(s *corev1.Service) {
	var records corev1.LoadBalancerStatus
	if len(o.Pools.Ranges) > 0 {
		records = s.Status.LoadBalancer
	}
	s.Status = corev1.ServiceStatus{LoadBalancer: records}
}

// maxSecret bounds the values of one Secret together, in bytes, if Limits do not. A
// bundle of all public authorities has 220,000.
const maxSecret = 256 << 10

// sizeOf is an annotation that replaces the data of a Secret, or of a ConfigMap of authorities, that
// is too large. It exists only in memory. Its value is the size of the data and the bound.
const sizeOf = "sallyport.dev/too-large"

// AuthoritiesKey is the key of the certificates in a ConfigMap of authorities.
const AuthoritiesKey = "ca.crt"

// stripSecret removes from a Secret all but its type and its data, and the data too if it is too
// large. It keeps and counts only those keys of a TLS Secret that Compile reads.
func (o Options) stripSecret(s *corev1.Secret) {
	if s.Type == corev1.SecretTypeTLS {
		maps.DeleteFunc(s.Data, func(key string, _ []byte) bool {
			return key != corev1.TLSCertKey && key != corev1.TLSPrivateKeyKey && key != "ca.crt"
		})
	}
	s.StringData = nil
	o.bound(s)
}

// stripConfigMap removes from a ConfigMap of authorities all but its certificates, and from any ConfigMap its data if
// that is too large. It keeps a ConfigMap that Options name as it is.
func (o Options) stripConfigMap(m *corev1.ConfigMap) {
	if slices.Contains(o.ConfigMaps(), KeyOf(m).String()) {
		return
	}
	if _, has := m.Data[AuthoritiesKey]; has {
		maps.DeleteFunc(m.Data, func(key, _ string) bool { return key != AuthoritiesKey })
	}
	m.BinaryData = nil
	o.bound(m)
}

// bound removes the labels and annotations of a Secret or a ConfigMap, and its data if that is too
// large.
func (o Options) bound(object metav1.Object) {
	size, most := Size(object), cmp.Or(o.Limits.SecretBytes, maxSecret)
	was := object.GetAnnotations()[sizeOf]
	object.SetAnnotations(nil)
	object.SetLabels(nil)
	switch {
	case size > most:
		empty(object)
		object.SetAnnotations(map[string]string{sizeOf: fmt.Sprintf("%d of %d", size, most)})
	case size == 0 && was != "": // its data was removed before
		object.SetAnnotations(map[string]string{sizeOf: was})
	}
}

// Size returns the bytes of the data of a Secret or a ConfigMap.
func Size(object metav1.Object) (size int) {
	switch of := object.(type) {
	case *corev1.Secret:
		for _, value := range of.Data {
			size += len(value)
		}
	case *corev1.ConfigMap:
		for _, value := range of.Data {
			size += len(value)
		}
	}
	return size
}

// empty removes the data of a Secret or a ConfigMap.
func empty(object metav1.Object) {
	switch of := object.(type) {
	case *corev1.Secret:
		of.Data = nil
	case *corev1.ConfigMap:
		of.Data = nil
	}
}

// TooLarge returns why the data of a Secret or a ConfigMap was removed, or "" if it was not.
func TooLarge(object metav1.Object) string {
	text, large := object.GetAnnotations()[sizeOf]
	if !large {
		return ""
	}
	kind := "Secrets"
	if _, is := object.(*corev1.ConfigMap); is {
		kind = "ConfigMaps"
	}
	size, most := 0, 0
	_, _ = fmt.Sscanf(text, "%d of %d", &size, &most) // if somebody else wrote the annotation, the message has zeros
	if strings.HasSuffix(text, inSum) {
		return fmt.Sprintf("holds %d bytes, for which there is no room: the %s in use of namespace %s may have %d "+
			"together (clusters[].ingress.limits.objectBytes)", size, kind, object.GetNamespace(), most)
	}
	return fmt.Sprintf("holds %d bytes; allowed: %d (clusters[].ingress.limits.secretBytes)", size, most)
}

// inSum ends the value of sizeOf if the bound is that of all Secrets, or ConfigMaps, of the namespace.
const inSum = " together"

// Withhold removes the data of a Secret or a ConfigMap of size bytes, because those of its namespace
// may have no more than most together. What needs the data is closed, as if the object were too large
// itself.
func Withhold(object metav1.Object, size, most int) {
	empty(object)
	object.SetAnnotations(map[string]string{sizeOf: fmt.Sprintf("%d of %d", size, most) + inSum})
}

// Withheld returns the bytes of the data that Withhold removed from a Secret or a ConfigMap. It returns 0
// if the object has its data.
func Withheld(object metav1.Object) (size int) {
	if text := object.GetAnnotations()[sizeOf]; strings.HasSuffix(text, inSum) {
		_, _ = fmt.Sscanf(text, "%d", &size) // Withhold wrote it
	}
	return size
}

// stripNamespace removes from a Namespace all but its labels.
func stripNamespace(n *corev1.Namespace) {
	*n = corev1.Namespace{TypeMeta: n.TypeMeta, ObjectMeta: metav1.ObjectMeta{
		Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, Labels: n.Labels,
	}}
}

// stripSlice removes the fields of an EndpointSlice that no code reads. It keeps only the first
// address of each endpoint, since all addresses of an endpoint lead to the same pod.
func stripSlice(s *discoveryv1.EndpointSlice) {
	s.Annotations, s.OwnerReferences, s.Finalizers = nil, nil, nil
	maps.DeleteFunc(s.Labels, func(key, _ string) bool { return key != discoveryv1.LabelServiceName })
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		kept := discoveryv1.Endpoint{Addresses: e.Addresses, Conditions: e.Conditions, NodeName: e.NodeName}
		if len(e.Addresses) > 1 {
			kept.Addresses = slices.Clone(e.Addresses[:1])
		}
		if to := e.TargetRef; to != nil {
			kept.TargetRef = &corev1.ObjectReference{Kind: to.Kind, Namespace: to.Namespace, Name: to.Name}
		}
		*e = kept
	}
}
