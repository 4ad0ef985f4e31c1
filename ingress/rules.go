package ingress

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/ingress/calico"
)

// A Rule is one rule of an RBAC ClusterRole, or of a Role in each of some
// namespaces.
type Rule struct {
	Namespaces []string // of the Roles; none means the ClusterRole
	Groups     []string // API groups without version; "" is the core group
	Resources  []string
	Names      []string // only the objects of these names; none means all
	Verbs      []string
}

// Rules are everything a [Watcher] needs to be allowed in its cluster, and
// nothing else:
//
//   - list and watch what is compiled: Ingresses, IngressClasses, Services,
//     EndpointSlices and Secrets. RBAC cannot tell Secrets by type; the watcher
//     asks for those of type kubernetes.io/tls, keeps those that something
//     names, and asks for others by their names.
//   - list and watch Nodes and Calico's objects, in both API groups they can be
//     in, and get the two objects that tell which group counts.
//   - patch the status of Ingresses, and create Events.
//
// To renew its own token it needs [Renewal]. Discovery needs nothing more than every account has (system:discovery).
// Without one of the reads the watcher says so and goes on as far as it can
// ([Health]).
var Rules = []Rule{
	{Groups: []string{"networking.k8s.io"}, Resources: []string{"ingresses", "ingressclasses"}, Verbs: watched},
	{Groups: []string{""}, Resources: []string{"services", "nodes"}, Verbs: watched},
	{Groups: []string{""}, Resources: []string{"secrets"}, Verbs: watched},
	{Groups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: watched},
	{Groups: calicoGroups, Resources: []string{"blockaffinities", "ipamblocks", "ippools", "bgpconfigurations", "bgppeers"}, Verbs: watched},
	{Groups: calicoGroups, Resources: []string{"clusterinformations"}, Names: []string{"default"}, Verbs: []string{"get"}},
	{Groups: []string{"apiregistration.k8s.io"}, Resources: []string{"apiservices"}, Names: []string{v3APIService}, Verbs: []string{"get"}},
	{Groups: []string{"networking.k8s.io"}, Resources: []string{"ingresses/status"}, Verbs: []string{"patch"}},
	{Groups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create"}},
}

// RulesFor returns [Rules], with what the ConfigMaps that Options name and their
// selector of namespaces need. Where Options say that Secrets of certain
// namespaces are enough, Secrets are read and everything is written there alone.
func RulesFor(o Options) []Rule {
	rules := slices.Clone(Rules)
	if in := o.secretNamespaces(); in[0] != metav1.NamespaceAll {
		for i := range rules {
			switch r := &rules[i]; {
			case slices.Contains(r.Resources, "secrets"):
				r.Namespaces = in
			case slices.Contains(r.Resources, "ingresses/status"):
				r.Namespaces = o.Namespaces
			case slices.Contains(r.Resources, "events"):
				r.Namespaces = slices.Clone(o.Namespaces)
				for _, full := range o.configMaps() {
					namespace, _, _ := strings.Cut(full, "/")
					r.Namespaces = append(r.Namespaces, namespace)
				}
				slices.Sort(r.Namespaces)
				r.Namespaces = slices.Compact(r.Namespaces)
			}
		}
	}
	if o.NamespaceSelector != "" {
		rules = append(rules, Rule{Groups: []string{""}, Resources: []string{"namespaces"}, Verbs: watched})
	}
	for _, full := range o.configMaps() {
		namespace, name, _ := strings.Cut(full, "/")
		rules = append(rules, Rule{Namespaces: []string{namespace}, Groups: []string{""}, Resources: []string{"configmaps"}, Names: []string{name}, Verbs: watched})
	}
	return rules
}

// Renewal lets a ServiceAccount create tokens of its own, and of no other.
func Renewal(namespace, name string) Rule {
	return Rule{Namespaces: []string{namespace}, Groups: []string{""}, Resources: []string{"serviceaccounts/token"}, Names: []string{name}, Verbs: []string{"create"}}
}

var (
	watched      = []string{"list", "watch"}
	calicoGroups = []string{groupOf(calico.V1), groupOf(calico.V3)}
)

// v3APIService says by a label whether projectcalico.org/v3 is CRDs.
const v3APIService = "v3.projectcalico.org"
