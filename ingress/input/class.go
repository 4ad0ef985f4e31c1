package input

import (
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"sallyport/ingress/annotations"
	"sallyport/ingress/nginx"
)

// A Kind says whether an Ingress is ours, and whose annotations it has.
type Kind int

// The kinds of Ingresses.
const (
	Strange   Kind = iota // it is not ours
	OfHAProxy             // it has the annotations of HAProxy's controller, and ours
	OfNginx               // it also has those of ingress-nginx
)

// Classes decide which Ingresses of a cluster are ours.
type Classes struct {
	*Snapshot
	kinds    map[string]Kind // by name, of the classes that exist
	unnamed  Kind            // of an Ingress without a class
	selector labels.Selector // for the labels of the namespace; nil if every namespace matches
}

// ClassesOf returns the Classes of a Snapshot. Its Options have their defaults.
func ClassesOf(s *Snapshot) Classes {
	c := Classes{Snapshot: s, kinds: make(map[string]Kind)}
	if s.Options.WatchWithoutClass {
		c.unnamed = OfHAProxy
	}
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
		switch {
		case controller == s.Options.Controller || controller == s.Options.Controller+"/"+s.Options.Class:
			c.kinds[class.Name] = OfHAProxy
		case len(s.Options.Nginx.Classes) > 0 && slices.Contains(s.Options.Nginx.Controllers, controller):
			c.kinds[class.Name] = OfNginx
		default:
			c.kinds[class.Name] = Strange
		}
		if class.Annotations[networkingv1.AnnotationIsDefaultIngressClass] != "true" {
			continue
		}
		if first == nil || first.CreationTimestamp.Before(&class.CreationTimestamp) {
			first = class
		}
	}
	if first != nil {
		c.unnamed = c.kinds[first.Name]
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

// ClassOf returns the class that an Ingress names, or "", and whether the annotation names it.
func ClassOf(ing *networkingv1.Ingress) (name string, noted bool) {
	name, noted = annotations.Class(ing.Annotations)
	if !noted && ing.Spec.IngressClassName != nil {
		name = *ing.Spec.IngressClassName
	}
	return name, noted
}

// Kind returns the kind of an Ingress. The annotation overrides the field, as the
// API demands (Ingress v1, IngressSpec.IngressClassName). The annotation may name our
// class even if no such IngressClass exists. The field may do so only while
// IngressClasses cannot be read: an Ingress of a class that was deleted, or has
// another controller, is not ours.
func (c Classes) Kind(ing *networkingv1.Ingress) Kind {
	if !c.Admits(ing.Namespace) {
		return Strange
	}
	name, noted := ClassOf(ing)
	if name == "" {
		return c.unnamed
	}
	if of, exists := c.kinds[name]; exists {
		return of
	}
	switch {
	case !noted && !c.NoClasses:
	case name == c.Options.Class:
		return OfHAProxy
	case slices.Contains(c.Options.Nginx.Classes, name):
		return OfNginx
	}
	return Strange
}

// NginxOptions are those of package nginx.
type NginxOptions = nginx.Options

// ReadNginx returns the values that the annotations of ingress-nginx on an Ingress stand for.
func (s *Snapshot) ReadNginx(ing *networkingv1.Ingress) nginx.Reading {
	own := annotations.Read(annotations.Ingress, ing.Annotations).Values
	of := nginx.Ingress{Annotations: ing.Annotations, Has: func(key string) bool {
		_, has := own[key]
		return has
	}}
	for _, rule := range ing.Spec.Rules {
		if rule.HTTP == nil {
			continue
		}
		for _, p := range rule.HTTP.Paths {
			of.Paths = append(of.Paths, p.Path)
		}
	}
	return s.Options.Nginx.Read(of)
}
