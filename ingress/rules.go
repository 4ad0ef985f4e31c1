package ingress

import (
	"slices"
	"strings"

	"sallyport/ingress/calico"
)

// A Rule is one rule of an RBAC ClusterRole.
type Rule struct {
	Groups    []string // API groups without version; "" is the core group
	Resources []string
	Names     []string // only the objects of these names; none means all
	Verbs     []string
}

// Rules are everything a [Watcher] needs to be allowed in its cluster, and
// nothing else:
//
//   - list and watch what is compiled: Ingresses, IngressClasses, Services,
//     EndpointSlices and Secrets. RBAC cannot tell Secrets by type; the watcher
//     asks for those of type kubernetes.io/tls only.
//   - list and watch Nodes and Calico's objects, in both API groups they can be
//     in, and get the two objects that tell which group counts.
//   - patch the status of Ingresses, and create Events.
//
// Discovery needs nothing more than every account has (system:discovery).
// Without one of the reads the watcher says so and goes on as far as it can
// ([Health]).
var Rules = []Rule{
	{Groups: []string{"networking.k8s.io"}, Resources: []string{"ingresses", "ingressclasses"}, Verbs: watched},
	{Groups: []string{""}, Resources: []string{"services", "secrets", "nodes"}, Verbs: watched},
	{Groups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: watched},
	{Groups: calicoGroups, Resources: []string{"blockaffinities", "ipamblocks", "ippools", "bgpconfigurations", "bgppeers"}, Verbs: watched},
	{Groups: calicoGroups, Resources: []string{"clusterinformations"}, Names: []string{"default"}, Verbs: []string{"get"}},
	{Groups: []string{"apiregistration.k8s.io"}, Resources: []string{"apiservices"}, Names: []string{v3APIService}, Verbs: []string{"get"}},
	{Groups: []string{"networking.k8s.io"}, Resources: []string{"ingresses/status"}, Verbs: []string{"patch"}},
	{Groups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create"}},
}

// RulesFor are Rules, and what the ConfigMaps named in Options need, and their
// selector of namespaces.
func RulesFor(o Options) []Rule {
	rules := slices.Clone(Rules)
	if o.NamespaceSelector != "" {
		rules = append(rules, Rule{Groups: []string{""}, Resources: []string{"namespaces"}, Verbs: watched})
	}
	for _, full := range o.configMaps() {
		_, name, _ := strings.Cut(full, "/")
		rules = append(rules, Rule{Groups: []string{""}, Resources: []string{"configmaps"}, Names: []string{name}, Verbs: watched})
	}
	return rules
}

var (
	watched      = []string{"list", "watch"}
	calicoGroups = []string{groupOf(calico.V1), groupOf(calico.V3)}
)

// v3APIService says by a label whether projectcalico.org/v3 is CRDs.
const v3APIService = "v3.projectcalico.org"
