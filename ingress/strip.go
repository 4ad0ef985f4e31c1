package ingress

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

// sizeOf is an annotation that replaces the data of a Secret that is too large. It exists only in
// memory. Its value is the size of the data and the bound.
const sizeOf = "sallyport.dev/too-large"

// stripSecret removes from a Secret all but its type and its data, and the data too if it is too
// large. It keeps and counts only those keys of a TLS Secret that Compile reads.
func (o Options) stripSecret(s *corev1.Secret) {
	if s.Type == corev1.SecretTypeTLS {
		maps.DeleteFunc(s.Data, func(key string, _ []byte) bool {
			return key != corev1.TLSCertKey && key != corev1.TLSPrivateKeyKey && key != "ca.crt"
		})
	}
	size, most := 0, cmp.Or(o.Limits.SecretBytes, maxSecret)
	for _, value := range s.Data {
		size += len(value)
	}
	was := s.Annotations[sizeOf]
	s.Annotations, s.Labels, s.StringData = nil, nil, nil
	switch {
	case size > most:
		s.Data, s.Annotations = nil, map[string]string{sizeOf: fmt.Sprintf("%d of %d", size, most)}
	case size == 0 && was != "": // its data was removed before
		s.Annotations = map[string]string{sizeOf: was}
	}
}

// tooLarge returns why the data of a Secret was removed, or "" if it was not.
func tooLarge(s *corev1.Secret) string {
	text, large := s.Annotations[sizeOf]
	if !large {
		return ""
	}
	size, most := 0, 0
	_, _ = fmt.Sscanf(text, "%d of %d", &size, &most) // if somebody else wrote the annotation, the message has zeros
	if strings.HasSuffix(text, inSum) {
		return fmt.Sprintf("holds %d bytes, for which there is no room: the Secrets in use of namespace %s "+
			"may have %d "+
			"together (clusters[].ingress.limits.objectBytes)", size, s.Namespace, most)
	}
	return fmt.Sprintf("holds %d bytes; allowed: %d (clusters[].ingress.limits.secretBytes)", size, most)
}

// inSum ends the value of sizeOf if the bound is that of all Secrets of the namespace.
const inSum = " together"

// Withhold removes the data of a Secret of size bytes, because the Secrets of its namespace may have no
// more than most together. What needs the data is closed, as if the Secret were too large itself.
func Withhold(s *corev1.Secret, size, most int) {
	s.Data, s.Annotations = nil, map[string]string{sizeOf: fmt.Sprintf("%d of %d", size, most) + inSum}
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
