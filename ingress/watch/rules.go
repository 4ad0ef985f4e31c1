package watch

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/ingress/calico"
	"sallyport/ingress/input"
)

// A Rule is one rule of an RBAC ClusterRole, or of a Role in some namespaces.
type Rule struct {
	Namespaces []string // of the Roles; none means the ClusterRole
	Groups     []string // API groups without version; "" is the core group
	Resources  []string
	Names      []string // only the objects of these names; none means all
	Verbs      []string
}

// Rules list everything that a [Watcher] has to be allowed in its cluster, and
// nothing else:
//
//   - list and watch what is compiled: Ingresses, IngressClasses, Services,
//     EndpointSlices, Secrets and ConfigMaps. RBAC cannot tell Secrets by type: the watcher
//     asks for those of type kubernetes.io/tls, and keeps those that something
//     names. Where a namespace names others, or a ConfigMap, it watches which of them the
//     namespace has, by their names alone, and asks for the named ones.
//   - list and watch Nodes and Calico's objects, in both API groups they can be
//     in, and get the two objects that tell which group counts.
//   - patch the status of Ingresses, and create Events. With [Pools], also patch the status
//     of Services, and in a set of clusters that of ServiceExports ([RulesFor]).
//
// To renew its own token it needs [Renewal]. Every account has the rights for
// discovery (system:discovery). If a read is not allowed the watcher reports it and
// goes on as far as it can ([Health]).
var Rules = []Rule{
	{Groups: []string{"networking.k8s.io"}, Resources: []string{"ingresses", "ingressclasses"}, Verbs: watched},
	{Groups: []string{""}, Resources: []string{"services", "nodes"}, Verbs: watched},
	{Groups: []string{""}, Resources: []string{"secrets", "configmaps"}, Verbs: watched},
	{Groups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: watched},
	{Groups: calicoGroups, Resources: calicoResources, Verbs: watched},
	{
		Groups: calicoGroups, Resources: []string{"clusterinformations"}, Names: []string{"default"},
		Verbs: []string{"get"},
	},
	{
		Groups: []string{"apiregistration.k8s.io"}, Resources: []string{"apiservices"}, Names: []string{v3APIService},
		Verbs: []string{"get"},
	},
	{Groups: []string{"networking.k8s.io"}, Resources: []string{"ingresses/status"}, Verbs: []string{"patch"}},
	{Groups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create"}},
}

// RulesFor returns [Rules] and the rules for Gateway API, ServiceExports, custom resources, the ConfigMaps,
// the pools and the selector of namespaces in Options. If Options restrict Secrets to certain namespaces,
// the rules allow reading Secrets, and writing, only in these namespaces.
func RulesFor(o input.Options) []Rule {
	rules := slices.Clone(Rules)
	if in := o.SecretNamespaces(); in[0] != metav1.NamespaceAll {
		for i := range rules {
			switch r := &rules[i]; {
			case slices.Contains(r.Resources, "secrets"):
				r.Namespaces = in
			case slices.Contains(r.Resources, "ingresses/status"):
				r.Namespaces = o.Namespaces
			case slices.Contains(r.Resources, "events"):
				r.Namespaces = slices.Clone(o.Namespaces)
				for _, full := range o.ConfigMaps() {
					namespace, _, _ := strings.Cut(full, "/")
					r.Namespaces = append(r.Namespaces, namespace)
				}
				slices.Sort(r.Namespaces)
				r.Namespaces = slices.Compact(r.Namespaces)
			}
		}
	}
	if len(o.Pools.Ranges) > 0 {
		status := Rule{Groups: []string{""}, Resources: []string{"services/status"}, Verbs: []string{"patch"}}
		if o.SecretNamespaces()[0] != metav1.NamespaceAll {
			status.Namespaces = o.Namespaces
		}
		rules = append(rules, status)
	}
	if o.Gateway.Enabled {
		rules = append(rules, gatewayRules(o)...)
	}
	if o.NamespaceSelector != "" || o.Gateway.Enabled {
		rules = append(rules, Rule{Groups: []string{""}, Resources: []string{"namespaces"}, Verbs: watched})
	}
	if readsExports(&o) {
		group := []string{exportsGroup}
		status := Rule{Groups: group, Resources: []string{exports + "/status"}, Verbs: []string{"patch"}}
		if o.SecretNamespaces()[0] != metav1.NamespaceAll {
			status.Namespaces = o.Namespaces
		}
		rules = append(rules, Rule{Groups: group, Resources: []string{exports}, Verbs: watched}, status)
	}
	if o.CustomResources {
		rule := Rule{Resources: []string{backends, customRules, defaults, frontends, globals, tcps}, Verbs: watched}
		for _, version := range customVersions {
			rule.Groups = append(rule.Groups, version.Group)
		}
		rules = append(rules, rule)
	}
	for _, full := range o.ConfigMaps() {
		namespace, name, _ := strings.Cut(full, "/")
		if o.ReadsSecretsOf(namespace) {
			continue // the rule for all ConfigMaps has it
		}
		rules = append(rules, Rule{
			Namespaces: []string{namespace}, Groups: []string{""}, Resources: []string{"configmaps"},
			Names: []string{name}, Verbs: watched,
		})
	}
	return rules
}

// gatewayRules returns the rules for the objects of Gateway API. They allow listing and watching the
// objects, and patching the statuses. The CRD of GatewayClasses tells the version of all kinds.
func gatewayRules(o input.Options) []Rule {
	group := []string{gatewayv1.GroupName}
	var read, status []string
	for _, kind := range gatewayKinds {
		read = append(read, kind.resource)
		if kind.resource != grants && kind.resource != classes {
			status = append(status, kind.resource+"/status")
		}
	}
	rules := []Rule{
		{Groups: group, Resources: read, Verbs: watched},
		{Groups: group, Resources: []string{classes + "/status"}, Verbs: []string{"patch"}},
		{Groups: group, Resources: status, Verbs: []string{"patch"}},
		{
			Groups: []string{"apiextensions.k8s.io"}, Resources: []string{"customresourcedefinitions"},
			Names: []string{classes + "." + gatewayv1.GroupName}, Verbs: []string{"get"},
		},
	}
	if o.SecretNamespaces()[0] != metav1.NamespaceAll {
		rules[2].Namespaces = o.Namespaces
	}
	if o.Gateway.Named {
		write := []string{"create", "update", "delete"}
		rules = append(rules,
			Rule{Namespaces: rules[2].Namespaces, Groups: []string{""}, Resources: []string{"services"}, Verbs: write},
			Rule{
				Namespaces: rules[2].Namespaces, Groups: []string{"discovery.k8s.io"},
				Resources: []string{"endpointslices"}, Verbs: write,
			})
	}
	return rules
}

// Renewal returns the rule that lets a ServiceAccount create tokens, but only for itself.
func Renewal(namespace, name string) Rule {
	return Rule{
		Namespaces: []string{namespace}, Groups: []string{""}, Resources: []string{"serviceaccounts/token"},
		Names: []string{name}, Verbs: []string{"create"},
	}
}

var (
	watched      = []string{"list", "watch"}
	calicoGroups = []string{calico.GroupName(calico.V1), calico.GroupName(calico.V3)}
)

// v3APIService is the APIService of projectcalico.org/v3. Its label tells whether the group is
// made of CRDs.
const v3APIService = "v3.projectcalico.org"
