package watch

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"sallyport/ingress/input"
)

// customVersions are the API groups of the custom resources of HAProxy's own controller, with their versions.
// A resource of the first group overrides one of the second group with its name.
var customVersions = func() (all []schema.GroupVersion) {
	for _, text := range []string{input.CustomV3, input.CustomV1} {
		version, _ := schema.ParseGroupVersion(text) // both are well formed
		all = append(all, version)
	}
	return all
}()

// The kinds of custom resources that are read, and their resources.
const (
	backends, backendKind = "backends", "Backend"
	tcps, tcpKind         = "tcps", "TCP"
	globals, globalKind   = "globals", "Global"
	defaults, defaultKind = "defaults", "Defaults"

	// Of ingress.v3.haproxy.org alone.
	frontends, frontendKind = "frontends", "Frontend"
	customRules, rulesKind  = "validationrules", input.RulesKind
)

// CustomGroups returns the API groups of custom resources of HAProxy's own controller that the cluster serves. It
// asks for no object, and needs no right.
func (w *Watcher) CustomGroups(ctx context.Context) (groups []string, err error) {
	for _, version := range customVersions {
		served, err := w.servedIn(ctx, version.String())
		if err != nil {
			return nil, err
		}
		if len(served) > 0 {
			groups = append(groups, version.Group)
		}
	}
	return groups, nil
}

// customResources returns the kinds of custom resources of one API group.
func (w *Watcher) customResources(version schema.GroupVersion) []anyOptional {
	of := " of " + version.Group
	versions := []schema.GroupVersion{version}
	all := []anyOptional{
		&optional[*input.Backend]{
			plural: "Backends" + of, resource: backends, versions: versions, open: w.shelfOfBackends,
		},
		&optional[*input.TCP]{plural: "TCPs" + of, resource: tcps, versions: versions, open: w.shelfOfTCPs},
		&optional[*input.Global]{
			plural: "Globals" + of, resource: globals, versions: versions, open: w.shelfOfGlobals,
		},
		&optional[*input.Defaults]{
			plural: "Defaults" + of, resource: defaults, versions: versions, open: w.shelfOfDefaults,
		},
	}
	if version.String() == input.CustomV3 {
		all = append(all, &optional[*input.Frontend]{
			plural: "Frontends" + of, resource: frontends, versions: versions, open: w.shelfOfFrontends,
		}, &optional[*input.ValidationRules]{
			plural: "ValidationRules" + of, resource: customRules, versions: versions, open: w.shelfOfRules,
		})
	}
	return all
}

func (w *Watcher) shelfOfBackends(version schema.GroupVersion) *shelf[*input.Backend] {
	return custom(shelfOf[*input.Backend](w, version, backends, backendKind,
		"all clients of the objects that name one of the others are rejected"), version, backendKind,
		"Backends of "+version.Group+" cannot be read: all clients of the objects that name one are rejected")
}

func (w *Watcher) shelfOfTCPs(version schema.GroupVersion) *shelf[*input.TCP] {
	return custom(shelfOf[*input.TCP](w, version, tcps, tcpKind,
		"the ports of the others are closed"), version, tcpKind,
		"TCPs of "+version.Group+" cannot be read: their ports are closed")
}

func (w *Watcher) shelfOfGlobals(version schema.GroupVersion) *shelf[*input.Global] {
	return custom(shelfOf[*input.Global](w, version, globals, globalKind,
		"cr-global cannot name one of the others"), version, globalKind,
		"Globals of "+version.Group+" cannot be read: cr-global has no effect if it names one")
}

func (w *Watcher) shelfOfDefaults(version schema.GroupVersion) *shelf[*input.Defaults] {
	return custom(shelfOf[*input.Defaults](w, version, defaults, defaultKind,
		"cr-defaults cannot name one of the others"), version, defaultKind,
		"Defaults of "+version.Group+" cannot be read: cr-defaults has no effect if it names one")
}

func (w *Watcher) shelfOfFrontends(version schema.GroupVersion) *shelf[*input.Frontend] {
	return custom(shelfOf[*input.Frontend](w, version, frontends, frontendKind,
		"all clients are rejected if the ConfigMap names one of the others"), version, frontendKind,
		"Frontends of "+version.Group+" cannot be read: all clients are rejected if the ConfigMap names one")
}

func (w *Watcher) shelfOfRules(version schema.GroupVersion) *shelf[*input.ValidationRules] {
	return custom(shelfOf[*input.ValidationRules](w, version, customRules, rulesKind,
		"the annotations that the others define have no effect"), version, rulesKind,
		"ValidationRules of "+version.Group+" cannot be read: the annotations that they define have no effect")
}

// custom prepares a shelf for a kind of custom resources, and returns it. without is a sentence about the
// consequence while they cannot be read.
func custom[Of any](
	s *shelf[*input.Custom[Of]], version schema.GroupVersion, kind, without string,
) *shelf[*input.Custom[Of]] {
	s.without = without
	s.strip = func(c *input.Custom[Of]) { stripCustom(&c.TypeMeta, &c.ObjectMeta, version, kind) }
	return s
}

// stripCustom removes what nobody reads, and sets the type, which the entries of a list need not have.
func stripCustom(of *metav1.TypeMeta, meta *metav1.ObjectMeta, version schema.GroupVersion, kind string) {
	class, has := meta.Annotations[input.CustomClass]
	if meta.Annotations = nil; has {
		meta.Annotations = map[string]string{input.CustomClass: class}
	}
	meta.Labels, meta.ManagedFields = nil, nil
	of.APIVersion, of.Kind = version.String(), kind
}
