// Package calico reads Calico's objects in the Kubernetes API: which node speaks BGP from which
// address and AS, and which node owns which block.
//
// It alone knows the form of Calico's objects, in both API groups that serve them
// (crd.projectcalico.org/v1 and projectcalico.org/v3), and turns them into a routes.Topology. All
// of its functions are pure: they read objects that package watch has fetched.
//
// It promises that nothing unreadable gets through: an object that cannot be understood is left out
// and reported as an [Oddity], and so grants nothing.
//
// Its limit: it believes the objects. A node's credentials can change them, so routes.Verify bounds
// again which routes they allow.
package calico

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sallyport/routes"
)

// The API groups that Calico's objects are served in.
const (
	V1 = "crd.projectcalico.org/v1" // CRDs, in every installation that has no native v3
	V3 = "projectcalico.org/v3"     // an aggregated API server, or native CRDs since Calico 3.32
)

// defaultASN is the AS of a cluster if its BGPConfiguration has no asNumber.
const defaultASN = 64512

// Annotations of a Node that calico-node writes or reads
// (libcalico-go/lib/backend/k8s/resources/node.go).
const (
	ipv4Annotation      = "projectcalico.org/IPv4Address"
	ipv6Annotation      = "projectcalico.org/IPv6Address"
	asnAnnotation       = "projectcalico.org/ASNumber"
	reflectorAnnotation = "projectcalico.org/RouteReflectorClusterID"
)

// families are the families of addresses, each with the annotation of a node's BGP
// address.
var families = []struct {
	name, annotation string
	is4              bool
}{{"IPv4", ipv4Annotation, true}, {"IPv6", ipv6Annotation, false}}

// Objects are a cluster's Nodes and Calico objects at one moment.
type Objects struct {
	Cluster    string
	Nodes      []*corev1.Node
	Affinities []*unstructured.Unstructured // BlockAffinity
	Blocks     []*unstructured.Unstructured // IPAMBlock
	Pools      []*unstructured.Unstructured // IPPool
	Configs    []*unstructured.Unstructured // BGPConfiguration
	Peers      []*unstructured.Unstructured // BGPPeer
	Filters    []*unstructured.Unstructured // BGPFilter

	NoAffinities bool         // the cluster has no such resource as BlockAffinity
	NoBlocks     bool         // IPAMBlocks could not be read
	NoConfigs    bool         // BGPConfigurations could not be read: ASN stands in
	NoFilters    bool         // BGPFilters could not be read
	Group        string       // API group of Calico's objects, V1 or V3
	ASN          uint32       // AS of the cluster that is expected; 0 is Calico's default
	Own          []netip.Addr // addresses of the appliance, to find the BGPPeers that name it
	OwnASN       uint32       // AS of the appliance; 0 if it is not known
	Memory       *Memory      // from the reading before, or nil; changed by this reading
}

// A Memory carries facts from one reading to the next. The zero value is for a first
// reading.
type Memory struct {
	// keepers holds, by BGP address, the node that had it.
	keepers map[netip.Addr]string
	// blocks holds the IPAMBlocks by their objects. A new pod changes one of them;
	// the others stay the same pointers.
	blocks map[*unstructured.Unstructured]remembered
}

// Remember makes a Memory from the result of a reading.
func Remember(t routes.Topology) *Memory {
	m := &Memory{keepers: make(map[netip.Addr]string)}
	for _, n := range t.Nodes {
		for _, p := range n.BGP {
			m.keepers[p.Addr()] = n.Name
		}
	}
	return m
}

// remembered holds the result of reading an IPAMBlock. block is nil if the object cannot be read.
type remembered struct {
	block *routes.IPAMBlock
	odd   []Oddity
}

// An Oddity reports an object that could not be read in full, or that prevents the nodes and the
// appliance from working together.
type Oddity struct {
	Kind, Name string
	Why        string
}

func (o Oddity) String() string { return o.Kind + " " + quote(o.Name) + ": " + o.Why }

// Topology makes a routes.Topology of the objects. The caller adds Bounds, Protected,
// Reflectors and HostNetwork.
func Topology(o Objects) (routes.Topology, []Oddity) {
	if o.Memory == nil {
		o.Memory = new(Memory)
	}
	r := reader{}
	t := routes.Topology{Cluster: o.Cluster}
	t.ASN = r.clusterASN(o)
	peers := r.peers(o)
	for _, n := range o.Nodes {
		t.Nodes = append(t.Nodes, r.node(n, t.ASN, peers, o.Own))
	}
	r.settle(o, t.Nodes)
	r.examine(o, t, peers)
	for _, u := range o.Affinities {
		if a, ok := r.affinity(u); ok {
			t.Affinities = append(t.Affinities, a)
		}
	}
	t.Blocks, t.NoBlocks = r.blocks(o), o.NoBlocks
	for _, u := range o.Pools {
		if p, ok := r.pool(u); ok {
			t.Pools = append(t.Pools, p)
		}
	}
	// host-local IPAM writes no BlockAffinity, and BIRD announces the node's podCIDRs.
	// A Calico IPAM without any block looks the same, but announces nothing: it may
	// be taken for host-local.
	t.HostLocal = (o.NoAffinities || len(o.Affinities) == 0) &&
		slices.ContainsFunc(t.Nodes, func(n routes.Node) bool { return len(n.PodCIDRs) > 0 })

	r.mute(t)
	slices.SortFunc(t.Nodes, func(a, b routes.Node) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(t.Affinities, func(a, b routes.Affinity) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortStableFunc(t.Blocks, func(a, b *routes.IPAMBlock) int { return comparePrefixes(a.Prefix, b.Prefix) })
	slices.SortFunc(t.Pools, func(a, b routes.Pool) int { return cmp.Compare(a.Name, b.Name) })
	return t, r.odd
}

// mute reports nodes that own blocks and have no address to announce them from. The
// pods of such a node get no route.
func (r *reader) mute(t routes.Topology) {
	type owner struct {
		node string
		is4  bool
	}
	owns := map[owner]bool{}
	for _, a := range t.Affinities {
		if !a.Deleted {
			owns[owner{a.Node, a.Prefix.Addr().Is4()}] = true
		}
	}
	for _, n := range t.Nodes {
		for _, family := range families {
			speaks := slices.ContainsFunc(n.BGP, func(p netip.Prefix) bool { return p.Addr().Is4() == family.is4 })
			if owns[owner{n.Name, family.is4}] && !speaks {
				r.complain("Node", n.Name,
					"it owns %s blocks and has no annotation %s with its BGP address, so their pods get no route: is "+
						"calico-node running there, and does it find the address (IP_AUTODETECTION_METHOD)?",
					family.name, family.annotation)
			}
		}
	}
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// reader reads objects, and collects oddities.
type reader struct{ odd []Oddity }

func (r *reader) complain(kind, name, format string, args ...any) {
	r.odd = append(r.odd, Oddity{kind, name, fmt.Sprintf(format, args...)})
}

func (r *reader) node(n *corev1.Node, asn uint32, peers []peer, own []netip.Addr) routes.Node {
	node := routes.Node{Name: n.Name, ASN: asn, Reflector: n.Annotations[reflectorAnnotation] != ""}
	for _, family := range families {
		text := n.Annotations[family.annotation]
		if text == "" {
			continue // calico-node has not started there, or found no address: it does not speak BGP
		}
		p, ok := address(text)
		if !ok || p.Addr().Is4() != family.is4 || !speaks(p.Addr()) {
			r.complain("Node", n.Name,
				"annotation %s is %s, which is not a usable BGP address; the appliance does not peer with the node "+
					"in that family", family.annotation, quote(text))
			continue
		}
		if slices.Contains(own, p.Addr()) {
			r.complain("Node", n.Name,
				"annotation %s is %s, an address of the appliance; the appliance does not peer with the node "+
					"in that family", family.annotation, quote(text))
			continue
		}
		node.BGP = append(node.BGP, p)
	}
	if text := n.Annotations[asnAnnotation]; text != "" {
		if own, ok := parseASN(text); ok {
			node.ASN = own
		} else {
			r.complain("Node", n.Name, "annotation %s is %s, which is not an AS number; it is ignored, as by Calico",
				asnAnnotation, quote(text))
		}
	}
	// If no BGPPeer names us, the sessions are configured in some other way.
	node.Behind = len(peers) > 0 && !slices.ContainsFunc(peers, func(p peer) bool { return p.selects(n) })
	for _, p := range peers {
		if p.local != 0 && p.selects(n) {
			node.ASN = p.local
			break
		}
	}
	for _, p := range node.BGP {
		if confirmed(n, p.Addr()) {
			node.Addresses = append(node.Addresses, p.Addr())
		}
	}
	cidrs := n.Spec.PodCIDRs
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs = []string{n.Spec.PodCIDR}
	}
	for _, text := range cidrs {
		if p, ok := network(text); ok {
			node.PodCIDRs = append(node.PodCIDRs, p)
		} else {
			r.complain("Node", n.Name, "podCIDR %s is not a network; it is left out", quote(text))
		}
	}
	for _, c := range n.Status.Conditions {
		// The cluster writes Unknown when the kubelet was silent for its grace
		// period. False comes from the kubelet itself, which therefore runs.
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown {
			node.Down = true
		}
	}
	return node
}

// confirmed reports whether the status of a node has an address as InternalIP.
// calico-node writes the address of BGP, the kubelet writes the status.
func confirmed(n *corev1.Node, addr netip.Addr) bool {
	return slices.ContainsFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool {
		ip, err := netip.ParseAddr(a.Address)
		return err == nil && a.Type == corev1.NodeInternalIP && ip == addr
	})
}

// settle leaves each BGP address to one node, and reports all nodes that claim it. A node can write
// anything into its own Node. Therefore the address goes to the node that had it before. If no
// claimant had it, the address goes to a node with this address in its status, or else to the
// oldest node. nodes has the nodes of the objects, in the same order.
func (r *reader) settle(o Objects, nodes []routes.Node) {
	claims := map[netip.Addr][]int{}
	for i, n := range nodes {
		for _, p := range n.BGP {
			claims[p.Addr()] = append(claims[p.Addr()], i)
		}
	}
	keepers := make(map[netip.Addr]string, len(claims))
	for _, addr := range slices.SortedFunc(maps.Keys(claims), netip.Addr.Compare) {
		claimants := claims[addr]
		slices.SortFunc(claimants, func(i, j int) int {
			a, b := o.Nodes[i], o.Nodes[j]
			return cmp.Or(
				trueFirst(o.Memory.keepers[addr] == a.Name, o.Memory.keepers[addr] == b.Name),
				trueFirst(confirmed(a, addr), confirmed(b, addr)),
				a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
				cmp.Compare(a.Name, b.Name),
			)
		})
		keeper := nodes[claimants[0]].Name
		keepers[addr] = keeper
		family := families[0]
		if addr.Is6() {
			family = families[1]
		}
		for _, i := range claimants[1:] {
			n := &nodes[i]
			r.complain("Node", keeper, "its BGP address %s is claimed by node %s, too; node %s keeps it", addr, n.Name,
				keeper)
			r.complain("Node", n.Name,
				"it claims the BGP address %s of node %s and does not get it: an address stays with the node that "+
					"had it, else goes to the node whose status has it as InternalIP, else to the older node. If the "+
					"machine of node %s is gone, delete its Node; if not, correct annotation %s", addr, keeper, keeper,
				family.annotation)
			n.BGP = slices.DeleteFunc(n.BGP, func(p netip.Prefix) bool { return p.Addr() == addr })
			n.Addresses = slices.DeleteFunc(n.Addresses, func(a netip.Addr) bool { return a == addr })
		}
	}
	o.Memory.keepers = keepers
}

func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// affinity reads a BlockAffinity. "deleted" is a string in v1 and a boolean in v3; any
// other value counts as deleted.
func (r *reader) affinity(u *unstructured.Unstructured) (a routes.Affinity, ok bool) {
	spec := specOf(u)
	a = routes.Affinity{
		Name: u.GetName(), Node: text(spec["node"]), State: text(spec["state"]),
		Type: text(spec["type"]),
	}
	if a.Prefix, ok = network(text(spec["cidr"])); !ok {
		r.complain("BlockAffinity", a.Name, "spec.cidr is %s, which is not a network; it is left out",
			quote(text(spec["cidr"])))
		return a, false
	}
	if a.Node == "" {
		r.complain("BlockAffinity", a.Name, "spec.node is empty; it is left out")
		return a, false
	}
	switch d := spec["deleted"].(type) {
	case nil:
	case bool:
		a.Deleted = d
	case string:
		gone, err := strconv.ParseBool(cmp.Or(d, "false"))
		a.Deleted = gone || err != nil
	default:
		a.Deleted = true
	}
	return a, true
}

// blocks returns the IPAMBlocks. It takes a block from memory if its object is the
// same pointer as in the last reading.
func (r *reader) blocks(o Objects) (all []*routes.IPAMBlock) {
	known := map[*unstructured.Unstructured]remembered{}
	for _, u := range o.Blocks {
		m, ok := o.Memory.blocks[u]
		if !ok {
			alone := reader{}
			m.block = alone.block(u)
			m.odd = alone.odd
		}
		known[u] = m
		r.odd = append(r.odd, m.odd...)
		if m.block != nil {
			all = append(all, m.block)
		}
	}
	o.Memory.blocks = known
	return all
}

// block reads an IPAMBlock. It returns nil if the block is deleted or cannot be read.
// An address is borrowed if the node of its allocation is not the host of the block's
// affinity (libcalico-go/lib/backend/model/block.go).
func (r *reader) block(u *unstructured.Unstructured) *routes.IPAMBlock {
	spec := specOf(u)
	if gone, _ := spec["deleted"].(bool); gone {
		return nil
	}
	prefix, ok := network(text(spec["cidr"]))
	if !ok {
		r.complain("IPAMBlock", u.GetName(), "spec.cidr is %s, which is not a network; it is left out",
			quote(text(spec["cidr"])))
		return nil
	}
	b := &routes.IPAMBlock{Prefix: prefix, Affinity: text(spec["affinity"])}
	host, hosted := strings.CutPrefix(b.Affinity, "host:")
	allocations, _ := spec["allocations"].([]any)
	attributes, _ := spec["attributes"].([]any)
	ip := b.Prefix.Addr()
	unclear := 0
	for _, allocation := range allocations {
		if !b.Prefix.Contains(ip) {
			r.complain("IPAMBlock", u.GetName(), "it has more allocations than addresses; the rest is left out")
			break
		}
		at := ip
		ip = ip.Next()
		if allocation == nil {
			continue // a free address
		}
		var secondary map[string]any
		if i, ok := integer(allocation); ok && i >= 0 && i < int64(len(attributes)) {
			attribute, _ := attributes[i].(map[string]any)
			secondary, _ = attribute["secondary"].(map[string]any)
		}
		if namespace, pods := holder(secondary); pods {
			if namespace == "" {
				unclear++
			}
			put(&b.Pods, at, namespace)
		}
		if node := text(secondary["node"]); node != "" && (!hosted || node != host) {
			put(&b.Borrowed, at, node)
		}
	}
	if unclear > 0 {
		r.complain("IPAMBlock", u.GetName(),
			"%d of its addresses are in use and name no namespace: a Service of any namespace may have them as servers",
			unclear)
	}
	return b
}

// holder returns the namespace of the pod that has an allocation, or "" if the allocation names no
// namespace. pods is false if no pod can have the address: addresses of tunnels and load balancers
// have a type, and addresses that Windows reserves have a note instead of an owner.
func holder(secondary map[string]any) (namespace string, pods bool) {
	if text(secondary["type"]) != "" || text(secondary["note"]) != "" {
		return "", false
	}
	return text(secondary["namespace"]), true
}

func put(m *map[netip.Addr]string, at netip.Addr, value string) {
	if *m == nil {
		*m = make(map[netip.Addr]string)
	}
	(*m)[at] = value
}

func (r *reader) pool(u *unstructured.Unstructured) (p routes.Pool, ok bool) {
	spec := specOf(u)
	p.Name = u.GetName()
	if p.CIDR, ok = network(text(spec["cidr"])); !ok {
		r.complain("IPPool", p.Name, "spec.cidr is %s, which is not a network; it is left out",
			quote(text(spec["cidr"])))
		return p, false
	}
	// Defaults and bounds: IPPool, blockSize.
	smallest, largest, size := 20, 32, int64(26)
	if p.CIDR.Addr().Is6() {
		smallest, largest, size = 116, 128, 122
	}
	if given, there := spec["blockSize"]; there {
		if n, ok := integer(given); ok && n != 0 {
			size = n
		}
	}
	if size < int64(smallest) || size > int64(largest) {
		r.complain("IPPool", p.Name, "spec.blockSize is %d; allowed are %d to %d; the pool is left out", size, smallest,
			largest)
		return p, false
	}
	p.BlockSize = int(size)
	p.NoExport, _ = spec["disableBGPExport"].(bool)
	return p, true
}

// clusterASN returns the AS of nodes without an AS of their own.
func (r *reader) clusterASN(o Objects) uint32 {
	if o.NoConfigs {
		return cmp.Or(o.ASN, defaultASN)
	}
	asn, ok := ASN(o.Configs)
	if !ok {
		r.complain("BGPConfiguration", "default", "spec.asNumber is not an AS number; %d is assumed", asn)
	}
	return asn
}

// ASN returns the AS number that the BGPConfigurations of a cluster give to its nodes: the asNumber
// of "default", or Calico's default. ok is false if "default" has an asNumber that is no AS number.
func ASN(configs []*unstructured.Unstructured) (asn uint32, ok bool) {
	spec, _ := defaultConfig(configs) // Calico does not read the AS of node.NAME objects
	if given, there := spec["asNumber"]; there {
		if asn, ok = asnOf(given); ok {
			return asn, true
		}
		return defaultASN, false
	}
	return defaultASN, true
}

// defaultConfig returns the spec of the BGPConfiguration that applies to all nodes.
func defaultConfig(configs []*unstructured.Unstructured) (spec map[string]any, exists bool) {
	for _, u := range configs {
		if u.GetName() == "default" {
			return specOf(u), true
		}
	}
	return nil, false
}

// A peer is a BGPPeer that names the appliance.
type peer struct {
	name     string
	addr     netip.Addr
	asn      uint32   // asNumber: the AS that nodes expect of us; 0 if it is not set
	filters  []string // names of its BGPFilters
	local    uint32   // localASNumber: the AS the node speaks from on this peering
	node     string   // only this node; "" if selector decides
	selector selector
}

func (p peer) selects(n *corev1.Node) bool {
	if p.node != "" {
		return p.node == n.Name
	}
	return p.selector.match(n.Labels)
}

// peers finds the BGPPeers that name one of our addresses. A BGPPeer for all nodes
// overrides one for some nodes, as in Calico.
func (r *reader) peers(o Objects) []peer {
	var found []peer
	for _, u := range o.Peers {
		spec := specOf(u)
		ip, ok := peerAddr(text(spec["peerIP"]))
		if !ok || !slices.Contains(o.Own, ip) {
			continue
		}
		p := peer{name: u.GetName(), addr: ip, node: text(spec["node"])}
		if p.asn, ok = asnOf(spec["asNumber"]); !ok && spec["asNumber"] != nil {
			r.complain("BGPPeer", p.name,
				"spec.asNumber is not an AS number, so its nodes have no session with the appliance; %s",
				show(o.Group, "bgppeers"))
		}
		names, _ := spec["filters"].([]any)
		for _, name := range names {
			p.filters = append(p.filters, text(name))
		}
		if given, there := spec["localASNumber"]; there {
			if p.local, ok = asnOf(given); !ok {
				r.complain("BGPPeer", p.name, "spec.localASNumber is not an AS number; it is ignored")
			}
		}
		var err error
		if p.selector, err = parseSelector(text(spec["nodeSelector"])); err != nil {
			r.complain("BGPPeer", p.name,
				"spec.nodeSelector %s cannot be read: %v; it is taken as a selector of all nodes",
				quote(text(spec["nodeSelector"])), err)
			p.selector, _ = parseSelector("")
		}
		found = append(found, p)
	}
	slices.SortFunc(found, func(a, b peer) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.name, b.name))
	})
	return found
}

// Appliances returns the addresses of the BGPPeers that have a name as those of `sallyport
// manifests`, by that name.
func Appliances(peers []*unstructured.Unstructured) map[string]netip.Addr {
	all := map[string]netip.Addr{}
	for _, u := range peers {
		if ip, ok := peerAddr(text(specOf(u)["peerIP"])); ok && strings.HasPrefix(u.GetName(), "sallyport-") {
			all[u.GetName()] = ip
		}
	}
	return all
}

func (p peer) rank() int {
	if p.node == "" && p.selector.all {
		return 0
	}
	return 1
}

// peerAddr returns the address in "ip", "ip:port" or "[ip]:port" (BGPPeer, peerIP).
func peerAddr(s string) (netip.Addr, bool) {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr(), true
	}
	ip, err := netip.ParseAddr(s)
	return ip, err == nil
}

// asnOf reads an AS number, which is an integer or a string in these objects.
func asnOf(v any) (uint32, bool) {
	if s, ok := v.(string); ok {
		return parseASN(s)
	}
	n, ok := integer(v)
	if !ok || n < 1 || n > 1<<32-1 {
		return 0, false
	}
	return uint32(n), true
}

// parseASN reads an AS number in decimal or as HIGH.LOW (RFC 5396, asdot).
func parseASN(s string) (uint32, bool) {
	high, low, dotted := strings.Cut(s, ".")
	if !dotted {
		n, err := strconv.ParseUint(s, 10, 32)
		return uint32(n), err == nil && n > 0
	}
	h, errHigh := strconv.ParseUint(high, 10, 16)
	l, errLow := strconv.ParseUint(low, 10, 16)
	n := uint32(h)<<16 | uint32(l)
	return n, errHigh == nil && errLow == nil && n > 0
}

// address reads an address with the length of its subnet. If there is no length, it returns the
// prefix of the single address.
func address(s string) (netip.Prefix, bool) {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p, !p.Addr().Is4In6()
	}
	ip, err := netip.ParseAddr(s)
	if err != nil || ip.Zone() != "" || ip.Is4In6() {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(ip, ip.BitLen()), true
}

// speaks reports whether BGP can be spoken from ip over more than one link.
func speaks(ip netip.Addr) bool {
	return !ip.IsUnspecified() && !ip.IsLoopback() && !ip.IsMulticast() && !ip.IsLinkLocalUnicast()
}

// network reads a prefix, which must have no host bits set.
func network(s string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(s)
	return p, err == nil && p == p.Masked() && !p.Addr().Is4In6()
}

func specOf(u *unstructured.Unstructured) map[string]any {
	m, _ := u.Object["spec"].(map[string]any)
	return m
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

// integer returns a number that either JSON decoder made: one makes int64, the other
// float64.
func integer(v any) (int64, bool) {
	switch n := v.(type) {
	case int64:
		return n, true
	case float64:
		return int64(n), n == float64(int64(n))
	}
	return 0, false
}

// quote returns an unchecked value that is short and safe to print.
func quote(s string) string {
	const longest = 80
	if len(s) > longest {
		s = s[:longest] + "..."
	}
	return strconv.QuoteToASCII(s)
}
