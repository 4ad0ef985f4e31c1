package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"sallyport/appliance"
	"sallyport/appliance/config"
	"sallyport/ingress/watch"
)

//go:embed manifests.yaml.tmpl
var manifestsText string

var manifests = template.Must(template.New("manifests").Funcs(template.FuncMap{
	"json": func(v any) (string, error) {
		text, err := json.Marshal(v)
		return string(text), err
	},
}).Parse(manifestsText))

// A wish holds the values of the manifests' template.
type wish struct {
	rulesFor                   func(gateways bool) []watch.Rule // with or without the rights to serve Gateways
	Namespace, CalicoNamespace string
	Rules                      []watch.Rule // of the ClusterRole
	Roles                      []role
	TokenSecret                bool   // a token that never expires
	Class, Controller          string // of the IngressClass; no Class: it is left out
	Gateway                    string // controller of the GatewayClass; "": it is left out
	Named                      bool   // Gateways get a Service each
	CalicoAPI                  config.APIGroup
	Seen                       bool // the cluster was looked at, and ClusterASN is its own
	ASN, ClusterASN            uint32
	Filters, ByOrigin          bool // the rules that a BGPFilter of the cluster can have, see watch.Sight
	TTLSecurity, Password      bool
	Passive                    bool // the nodes connect to the appliance
	Peers                      []peer
	Reflectors                 string // Calico's selector of the only nodes that peer with the appliance; "" means all
}

// permit sets the rights of the appliance, with or without those to serve Gateways. With these there is
// also a GatewayClass, which only a cluster with the CRDs of Gateway API accepts.
func (w *wish) permit(cluster *config.Cluster, gateways bool) {
	w.Gateway, w.Named = "", gateways && cluster.Gateway.Named
	if gateways {
		w.Gateway = cluster.Gateway.Controller
	}
	w.Rules, w.Roles = roles(w.rulesFor(gateways), w.Namespace)
}

// CalicoGroup returns the API group of Calico's objects without its version.
func (w wish) CalicoGroup() string {
	group, _, _ := strings.Cut(string(w.CalicoAPI), "/")
	return group
}

// NameSuffix ends the names of the Services of Gateways.
func (w wish) NameSuffix() string { return watch.NameSuffix }

// OwnOnly reports whether the nodes announce only their own blocks. A reflector announces the
// blocks of all nodes.
func (w wish) OwnOnly() bool { return w.ByOrigin && w.Reflectors == "" }

// A role is a Role in one namespace.
type role struct {
	Name, Namespace string
	Rules           []watch.Rule
}

// account is the name of the ServiceAccount, its roles and their bindings.
const account = "sallyport"

// roles splits the rules into rules for the whole cluster, and a role for each namespace. The right
// to renew the token is a role of its own, in the namespace of the account, which may have no
// Ingresses.
func roles(rules []watch.Rule, namespace string) (everywhere []watch.Rule, each []role) {
	for _, rule := range rules {
		if len(rule.Namespaces) == 0 {
			everywhere = append(everywhere, rule)
		}
		for _, in := range rule.Namespaces {
			i := slices.IndexFunc(each, func(r role) bool { return r.Namespace == in })
			if i < 0 {
				i, each = len(each), append(each, role{Name: account, Namespace: in})
			}
			each[i].Rules = append(each[i].Rules, rule)
		}
	}
	slices.SortFunc(each, func(a, b role) int { return strings.Compare(a.Namespace, b.Namespace) })
	return everywhere, append(each,
		role{account + "-token", namespace, []watch.Rule{watch.Renewal(namespace, account)}})
}

// A peer is a BGPPeer: one address of an appliance.
type peer struct{ Name, Address string }

// manifestsFlags holds the flags of the command.
type manifestsFlags struct {
	config, cluster            string
	addresses                  []string
	asn                        uint32
	namespace, calicoNamespace string
	reflectors                 string
	tokenSecret                bool
	kubeconfig                 string
	offline                    bool
}

func manifestsCommand() *cobra.Command {
	var f manifestsFlags
	cmd := &cobra.Command{
		Use:   "manifests",
		Short: "Print what the cluster needs, for kubectl apply -f -",
		Long: `Print what the cluster needs: a ServiceAccount with only the rights that the appliance
uses, the IngressClass, a GatewayClass where Gateways can be served, and Calico's BGPFilters
and BGPPeer. Comments explain how to create the appliance's kubeconfig.

Calico's BGPConfiguration is not printed: to apply one removes the settings that it does
not name. The output follows the cluster where one can be looked at, by --kubeconfig or
the kubeconfig in the configuration file: the API group of Calico's objects, the rules
that a BGPFilter can have, the AS number, an IngressClass that has settings of its own,
and whether the CRDs of Gateway API are there: without them there is no GatewayClass and
there are no rights to serve Gateways. Looking changes nothing in the cluster. What is left
out is said on stderr. Otherwise the output is for Calico 3.27 or newer, and has what
Gateways need only if the file enables them.

If the configuration file lists the namespaces of the Ingresses (ingress.namespaces),
the appliance may read Secrets in these namespaces only, by a Role in each. Apply the
manifests again when that list changes.

Flags override the configuration file. The kubeconfig that the file names need not
exist yet.`,
		Example: `  sallyport manifests --address 192.168.50.21 | kubectl apply -f -
  sallyport manifests --config sallyport.yaml --kubeconfig ~/.kube/config > sallyport-manifests.yaml
  sallyport manifests --address 192.168.50.21 --address 192.168.50.20   # two appliances
  sallyport manifests --address 192.168.50.21 --reflectors "route-reflector == 'true'"`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.config, "config", "c", "", "take the values from this configuration file")
	flags.StringVar(&f.cluster, "cluster", "", "name of the cluster in that file, if it has several")
	flags.StringSliceVar(&f.addresses, "address", nil,
		"address of the appliance that the nodes peer with; may be repeated")
	flags.Uint32Var(&f.asn, "asn", 0, "AS number of the appliance (default 65000)")
	flags.StringVar(&f.reflectors, "reflectors", "",
		"`selector` of the nodes that are route reflectors: only they peer with the appliance, and announce the "+
			"blocks of all nodes")
	flags.StringVarP(&f.namespace, "namespace", "n", "kube-system", "namespace of the ServiceAccount and its token")
	flags.StringVar(&f.calicoNamespace, "calico-namespace", "calico-system",
		"namespace of calico-node, where the password of the BGP sessions belongs")
	flags.StringVar(&f.kubeconfig, "kubeconfig", "",
		"look at the cluster with this kubeconfig (default: the one in the configuration file, if it exists)")
	flags.BoolVar(&f.offline, "offline", false, "look at no cluster")
	flags.BoolVar(&f.tokenSecret, "token-secret", false,
		"create a Secret with a token that never expires, instead of one that the appliance renews")
	api := oneOfFlag(cmd, "calico-api", "",
		"API group of Calico's objects; auto: as in the configuration file, or else crd.projectcalico.org/v1",
		string(config.AutoGroup), string(config.CRDv1), string(config.APIv3))
	output := oneOfFlag(cmd, "output", "o", "form of the output", "yaml", "json")
	cmd.RunE = work(func(cmd *cobra.Command, _ []string) error {
		w, cluster, err := f.wish(config.APIGroup(api.value))
		if err != nil {
			return badConfig(err)
		}
		if err := f.look(cmd, &w, cluster); err != nil {
			return err
		}
		text, err := w.manifests()
		if err == nil && output.value == "json" {
			text, err = toJSON(text)
		}
		if err != nil {
			return err
		}
		_, err = cmd.OutOrStdout().Write(text)
		return err
	})
	return cmd
}

// namespaceName matches a DNS label (RFC 1123 section 2.1), as Kubernetes requires.
var namespaceName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// wish returns the template's values from the flags and the configuration file, and the
// cluster in that file.
func (f manifestsFlags) wish(api config.APIGroup) (wish, *config.Cluster, error) {
	cfg, cluster, err := f.read()
	if err != nil {
		return wish{}, nil, err
	}
	for _, namespace := range []string{f.namespace, f.calicoNamespace} {
		if !namespaceName.MatchString(namespace) {
			return wish{}, nil, fmt.Errorf(
				"%q is not the name of a namespace; allowed: lower-case letters, digits and dashes, up to 63",
				namespace)
		}
	}
	w := wish{
		rulesFor: func(gateways bool) []watch.Rule {
			options := appliance.OptionsOf(cluster, appliance.PoolsOf(cfg))
			options.Gateway.Enabled = gateways
			return watch.RulesFor(options)
		},
		Namespace: f.namespace, CalicoNamespace: f.calicoNamespace,
		TokenSecret: f.tokenSecret,
		Class:       cluster.Ingress.Class, Controller: cluster.Ingress.Controller,
		Filters: true, ByOrigin: true,
		CalicoAPI: api, ASN: cfg.ASNTowards(cluster.Name), ClusterASN: cluster.BGP.ASN,
		TTLSecurity: cluster.BGP.TTLSecurity, Passive: cluster.BGP.Mode == config.Passive,
		Reflectors: f.reflectors,
		Password:   !cluster.BGP.Password.IsZero() || cluster.BGP.PasswordFile != "",
	}
	w.permit(cluster, cluster.Gateway.Asked())
	if f.asn != 0 {
		if w.ClusterASN == w.ASN {
			w.ClusterASN = f.asn
		}
		w.ASN = f.asn
	}
	if w.CalicoAPI == config.AutoGroup {
		w.CalicoAPI = cluster.Calico.APIGroup
	}
	w.Peers, err = f.peers(cfg)
	return w, cluster, err
}

// look makes the wish follow the cluster, if the cluster can be reached. It reports each
// object that is left out on stderr.
func (f manifestsFlags) look(cmd *cobra.Command, w *wish, cluster *config.Cluster) error {
	tell := func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), "# "+format+"\n", args...) }
	group := string(w.CalicoAPI)
	if w.CalicoAPI == config.AutoGroup {
		group, w.CalicoAPI = "", config.CRDv1
	}
	if f.offline {
		return nil
	}
	seen, err := f.see(cmd.Context(), group, cluster)
	switch {
	case err != nil && f.kubeconfig != "":
		return fmt.Errorf("%w; without --kubeconfig the manifests are for Calico 3.27 or newer", err)
	case err != nil:
		tell("Not looked at the cluster: %v. The manifests are for Calico 3.27 or newer.", err)
		if w.Gateway == "" && cluster.Gateway.Looks() {
			tell("No GatewayClass, and no rights to serve Gateways: the cluster may not have the CRDs of Gateway " +
				"API. Look at it (--kubeconfig), or set clusters[].gateway.enabled to true.")
		}
		return nil
	}
	if seen.Gateways && cluster.Gateway.Looks() {
		w.permit(cluster, true)
	}
	w.Seen, w.CalicoAPI, w.ClusterASN = true, config.APIGroup(seen.APIGroup), seen.ASN
	w.Filters, w.ByOrigin = seen.Filters, seen.ByOrigin
	tell("Looked at the cluster at %s: Calico's objects are in %s.", seen.Server, seen.APIGroup)
	if w.ASN == w.ClusterASN {
		tell("No BGPConfiguration: the cluster is in AS %d, as the appliance is.", w.ASN)
	} else {
		tell("No BGPConfiguration: the cluster is in AS %d and the appliance in AS %d. One for both is better: set "+
			"clusters[].bgp.localASN of the appliance to %d (here --asn %d); README says how to change the cluster's.",
			w.ClusterASN, w.ASN, w.ClusterASN, w.ClusterASN)
	}
	if seen.Class != "" {
		tell("No IngressClass: %s exists, and to apply one could remove what it has (%s).", w.Class, seen.Class)
		w.Class = ""
	}
	switch {
	case !seen.Filters:
		tell("No BGPFilter and no BGPPeer: this Calico is older than 3.26 and has no BGPFilter, so its nodes would " +
			"learn whatever the address of the appliance announces. Upgrade Calico to 3.27 or newer, and print the " +
			"manifests again.")
	case !seen.ByOrigin && w.Reflectors == "":
		tell("No BGPFilter sallyport-own: this Calico is older than 3.27, so nodes may also announce what they have " +
			"learned. The appliance refuses that, and shows it under Refused offers.")
	}
	return nil
}

// see looks at the cluster with the kubeconfig of the flags or of the configuration file.
func (f manifestsFlags) see(ctx context.Context, group string, cluster *config.Cluster) (seen watch.Sight, err error) {
	credentials := cluster.Kubeconfig
	switch {
	case f.kubeconfig != "":
		credentials = config.Kubeconfig{Path: f.kubeconfig}
	case f.config == "":
		return seen, errors.New("no kubeconfig is named (--kubeconfig, --config)")
	case credentials.Path != "" && !filepath.IsAbs(credentials.Path):
		credentials.Path = filepath.Join(filepath.Dir(f.config), credentials.Path)
	}
	text, err := credentials.Read()
	if err != nil {
		return seen, err
	}
	return watch.LookAt(ctx, cluster.Name, text, group, cluster.Ingress.Class)
}

// read returns the configuration file and the cluster that --cluster names. Without a
// file it returns the defaults.
func (f manifestsFlags) read() (*config.Config, *config.Cluster, error) {
	name, data := "defaults", []byte("clusters: [{kubeconfig: /etc/sallyport/kubeconfig}]")
	if f.config != "" {
		var err error
		if data, err = os.ReadFile(f.config); err != nil {
			return nil, nil, fmt.Errorf("read configuration: %w", err)
		}
		name = f.config
	}
	cfg, err := config.Parse(name, data)
	if err != nil {
		return nil, nil, err
	}
	var names []string
	for i := range cfg.Clusters {
		if c := &cfg.Clusters[i]; c.Name == f.cluster || f.cluster == "" && len(cfg.Clusters) == 1 {
			return cfg, c, nil
		}
		names = append(names, cfg.Clusters[i].Name)
	}
	return nil, nil, fmt.Errorf("--cluster %q is not in %s; allowed: %s", f.cluster, name, strings.Join(names, ", "))
}

// peers returns the addresses of --address. If there are none, it returns the addresses of
// bgp.listen and of all members of the group.
func (f manifestsFlags) peers(cfg *config.Config) ([]peer, error) {
	bgp := cfg.BGP
	var addrs []netip.Addr
	for _, text := range f.addresses {
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Zone() != "" || !addr.Unmap().IsGlobalUnicast() {
			return nil,
				fmt.Errorf("--address %q is not the address of a machine; give the address at which the nodes reach "+
					"the appliance, such as 192.168.50.21", text)
		}
		addrs = append(addrs, addr.Unmap())
	}
	if len(addrs) == 0 {
		addrs = slices.DeleteFunc(slices.Clone(bgp.Listen), func(a netip.Addr) bool { return a.IsUnspecified() })
		for _, m := range cfg.Group.Members {
			if !slices.Contains(addrs, m.Address) {
				addrs = append(addrs, m.Address)
			}
		}
	}
	if len(addrs) == 0 {
		return nil,
			errors.New("--address is missing: give the address at which the nodes reach the appliance, or a " +
				"configuration file whose bgp.listen has it")
	}
	var all []peer
	for _, addr := range addrs {
		at := addr.String()
		if bgp.Port != 179 {
			at = net.JoinHostPort(at, strconv.Itoa(int(bgp.Port)))
		}
		all = append(all, peer{
			"sallyport-" + strings.NewReplacer(".", "-", ":", "-").Replace(addr.StringExpanded()),
			at,
		})
	}
	return all, nil
}

// manifests returns the documents as YAML with comments.
func (w wish) manifests() ([]byte, error) {
	var b bytes.Buffer
	if err := manifests.Execute(&b, w); err != nil {
		return nil, fmt.Errorf("write manifests: %w", err)
	}
	return b.Bytes(), nil
}

// toJSON converts YAML documents to one List.
func toJSON(text []byte) ([]byte, error) {
	list := struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		Items      []json.RawMessage `json:"items"`
	}{"v1", "List", nil}
	_, docs, _ := bytes.Cut(text, []byte("\n---\n")) // the first is comments alone
	for doc := range bytes.SplitSeq(docs, []byte("\n---\n")) {
		item, err := yaml.YAMLToJSON(doc)
		if err != nil {
			return nil, fmt.Errorf("convert manifests: %w", err)
		}
		list.Items = append(list.Items, item)
	}
	out, err := json.MarshalIndent(list, "", "  ")
	return append(out, '\n'), err
}
