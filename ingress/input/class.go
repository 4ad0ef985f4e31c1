package input

import (
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"sallyport/ingress/annotations"
)

// Classes decide which Ingresses of a cluster are ours.
type Classes struct {
	*Snapshot
	ours     map[string]bool // by name, of the classes that exist
	unnamed  bool            // an Ingress without a class is ours
	selector labels.Selector // for the labels of the namespace; nil if every namespace matches
}

// ClassesOf returns the Classes of a Snapshot. Its Options have their defaults.
func ClassesOf(s *Snapshot) Classes {
	c := Classes{Snapshot: s, ours: make(map[string]bool), unnamed: s.Options.WatchWithoutClass}
	if s.Options.NamespaceSelector != "" {
		var err error
		if c.selector, err = labels.Parse(s.Options.NamespaceSelector); err != nil {
			c.selector = labels.Nothing() // watch.New has refused it
		}
	}
	// first is the default class that was created last, as the API server's admission chooses it.
	var first *networkingv1.IngressClass
	for _, class := range s.Classes {
		controller := class.Spec.Controller
		c.ours[class.Name] = controller == s.Options.Controller ||
			controller == s.Options.Controller+"/"+s.Options.Class
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

// Admits reports whether objects are taken from a namespace.
func (c Classes) Admits(namespace string) bool {
	if n := c.Options.Namespaces; len(n) > 0 && !slices.Contains(n, namespace) {
		return false
	}
	if slices.Contains(c.Options.NotNamespaces, namespace) {
		return false
	}
	if c.selector == nil {
		return true
	}
	of, known := Find(c.Namespaces, types.NamespacedName{Name: namespace})
	return known && c.selector.Matches(labels.Set(of.Labels))
}

// Has reports whether an Ingress is ours. The annotation overrides the field, as the
// API demands (Ingress v1, IngressSpec.IngressClassName). The annotation may name our
// class even if no such IngressClass exists. The field may do so only while
// IngressClasses cannot be read: an Ingress of a class that was deleted, or has
// another controller, is not ours.
func (c Classes) Has(ing *networkingv1.Ingress) bool {
	if !c.Admits(ing.Namespace) {
		return false
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
	return name == c.Options.Class && (noted || c.NoClasses)
}
