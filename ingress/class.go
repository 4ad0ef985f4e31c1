package ingress

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"

	"sallyport/ingress/annotations"
)

// classes decide which Ingresses of a cluster are ours.
type classes struct {
	options Options
	ours    map[string]bool // by name, of the classes that exist
	unknown bool            // the IngressClasses cannot be read
	unnamed bool            // an Ingress without a class is ours

	selector   labels.Selector // for the labels of the namespace; nil: any
	namespaces []*corev1.Namespace
}

func classesOf(w *world) classes {
	c := classes{options: w.options, ours: make(map[string]bool), unknown: w.noClasses, unnamed: w.options.WatchWithoutClass, namespaces: w.Namespaces}
	if w.options.NamespaceSelector != "" {
		var err error
		if c.selector, err = labels.Parse(w.options.NamespaceSelector); err != nil {
			c.selector = labels.Nothing() // NewWatcher has refused it
		}
	}
	var first *networkingv1.IngressClass // the default class that was created last, as the API server's admission chooses it
	for _, class := range w.Classes {
		controller := class.Spec.Controller
		c.ours[class.Name] = controller == w.options.Controller || controller == w.options.Controller+"/"+w.options.Class
		if class.Annotations[networkingv1.AnnotationIsDefaultIngressClass] != "true" {
			continue
		}
		if first == nil || first.CreationTimestamp.Before(&class.CreationTimestamp) {
			first = class
		}
	}
	if first != nil {
		c.unnamed = c.ours[first.Name]
	}
	return c
}

// has reports whether an Ingress is ours. The annotation overrides the field, as the
// API demands (Ingress v1, IngressSpec.IngressClassName). The annotation may name our
// class even if no such IngressClass exists. The field may do so only while
// IngressClasses cannot be read: an Ingress of a class that was deleted, or has
// another controller, is not ours.
func (c classes) has(ing *networkingv1.Ingress) bool {
	if n := c.options.Namespaces; len(n) > 0 && !slices.Contains(n, ing.Namespace) {
		return false
	}
	if slices.Contains(c.options.NotNamespaces, ing.Namespace) {
		return false
	}
	if c.selector != nil {
		namespace, known := find(c.namespaces, serviceKey{name: ing.Namespace})
		if !known || !c.selector.Matches(labels.Set(namespace.Labels)) {
			return false
		}
	}
	name, noted := annotations.Class(ing.Annotations)
	if !noted && ing.Spec.IngressClassName != nil {
		name = *ing.Spec.IngressClassName
	}
	if name == "" {
		return c.unnamed
	}
	if ours, exists := c.ours[name]; exists {
		return ours
	}
	return name == c.options.Class && (noted || c.unknown)
}
