package world

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"sallyport/test/lab/bird"
)

// passwordNamespace is calico-node's own, the only one in which it reads passwords of BGP
// sessions.
const passwordNamespace = "kube-system"

// A mirror configures the BIRDs by the API's objects, as confd does. It watches all of them, and
// after each change it reads all of them.
type mirror struct {
	stores  map[string]cache.Store // by resource
	knocked chan struct{}
}

func (m *mirror) knock() {
	if m == nil {
		return
	}
	select {
	case m.knocked <- struct{}{}:
	default:
	}
}

// startMirror starts to watch, and to configure the nodes' BIRDs.
func (l *Lab) startMirror(ctx context.Context) error {
	m := &mirror{stores: map[string]cache.Store{}, knocked: make(chan struct{}, 1)}
	l.mirror = m
	all := dynamicinformer.NewDynamicSharedInformerFactory(l.dynamic, 0)
	secrets := dynamicinformer.NewFilteredDynamicSharedInformerFactory(l.dynamic, 0, passwordNamespace, nil)
	var synced []cache.InformerSynced
	watch := func(from dynamicinformer.DynamicSharedInformerFactory, what schema.GroupVersionResource) error {
		informer := from.ForResource(what).Informer()
		m.stores[what.Resource] = informer.GetStore()
		synced = append(synced, informer.HasSynced)
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { m.knock() },
			UpdateFunc: func(_, _ any) { m.knock() },
			DeleteFunc: func(any) { m.knock() },
		})
		return err
	}
	for _, plural := range []string{"blockaffinities", "bgppeers", "bgpconfigurations", "bgpfilters", "ippools"} {
		if err := watch(all, calicoResource(plural)); err != nil {
			return err
		}
	}
	if err := watch(all, corev1.SchemeGroupVersion.WithResource("nodes")); err != nil {
		return err
	}
	if err := watch(secrets, corev1.SchemeGroupVersion.WithResource("secrets")); err != nil {
		return err
	}
	all.Start(l.life.Done())
	secrets.Start(l.life.Done())
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return fmt.Errorf("watch Calico's objects: %w", ctx.Err())
	}
	l.background.Go(func() {
		var last string // the last error, which is logged only once
		for {
			select {
			case <-l.life.Done():
				return
			case <-m.knocked:
			}
			said := ""
			if err := l.configureNodes(m); err != nil {
				said = err.Error()
			}
			if said != "" && said != last {
				l.log.Error("BIRD not configured", "err", said)
			}
			last = said
		}
	})
	return nil
}

func (l *Lab) configureNodes(m *mirror) error {
	view, err := m.view()
	if err != nil {
		return err
	}
	view.hostLocal = l.opts.HostLocal
	l.mu.Lock()
	nodes := slices.Collect(maps.Values(l.nodes))
	l.mu.Unlock()
	var failed []error
	for _, n := range nodes {
		if !slices.ContainsFunc(view.nodes, func(o nodeView) bool { return o.name == n.Name }) {
			continue // not seen yet: its BIRD would start with a configuration that is wrong
		}
		failed = append(failed, n.configure(l, func(source netip.Addr) (bird.Config, error) {
			return view.compose(n.Name, l.opts.Bird, n.Addr.Addr(), source)
		}))
	}
	return errors.Join(failed...)
}

// The fields of the objects that decide a BIRD's configuration.
type (
	view struct {
		nodes      []nodeView
		affinities []affinitySpec
		pools      []poolSpec
		peers      []peerSpec
		filters    map[string]filterSpec
		config     configSpec
		own        map[string]configSpec        // by node: what overrides config there
		passwords  map[string]map[string][]byte // secret and key
		hostLocal  bool                         // podCIDRs stand in for block affinities
	}
	nodeView struct {
		name, asn string
		addrs     []netip.Addr
		podCIDRs  []string
		labels    map[string]string
		cluster   netip.Addr // that it reflects routes for; zero means it is no reflector
	}
	affinitySpec struct {
		CIDR    string `json:"cidr"`
		Node    string `json:"node"`
		State   string `json:"state"`
		Deleted string `json:"deleted"`
		Type    string `json:"type"`
	}
	poolSpec struct {
		CIDR             string `json:"cidr"`
		DisableBGPExport bool   `json:"disableBGPExport"`
		VXLANMode        string `json:"vxlanMode"`
	}
	secretRef struct {
		SecretKeyRef struct{ Name, Key string } `json:"secretKeyRef"`
	}
	configSpec struct {
		ASNumber               uint32                  `json:"asNumber"`
		NodeToNodeMeshEnabled  *bool                   `json:"nodeToNodeMeshEnabled"`
		ListenPort             uint16                  `json:"listenPort"`
		ServiceClusterIPs      []struct{ CIDR string } `json:"serviceClusterIPs"`
		ServiceExternalIPs     []struct{ CIDR string } `json:"serviceExternalIPs"`
		ServiceLoadBalancerIPs []struct{ CIDR string } `json:"serviceLoadBalancerIPs"`
		NodeMeshMaxRestartTime string                  `json:"nodeMeshMaxRestartTime"`
		NodeMeshPassword       secretRef               `json:"nodeMeshPassword"`
		IgnoredInterfaces      []string                `json:"ignoredInterfaces"`
		Communities            []struct {
			Name  string `json:"name"`
			Value string `json:"value"`
		} `json:"communities"`
		PrefixAdvertisements []struct {
			CIDR        string   `json:"cidr"`
			Communities []string `json:"communities"`
		} `json:"prefixAdvertisements"`
	}
	peerSpec struct {
		Node           string   `json:"node"`
		NodeSelector   string   `json:"nodeSelector"`
		PeerSelector   string   `json:"peerSelector"`
		PeerIP         string   `json:"peerIP"`
		ASNumber       uint32   `json:"asNumber"`
		LocalASNumber  uint32   `json:"localASNumber"`
		SourceAddress  string   `json:"sourceAddress"`
		MaxRestartTime string   `json:"maxRestartTime"`
		KeepaliveTime  string   `json:"keepaliveTime"`
		TTLSecurity    uint8    `json:"ttlSecurity"`
		NextHopMode    string   `json:"nextHopMode"`
		KeepNextHop    bool     `json:"keepOriginalNextHop"`
		AllowOwnAS     int      `json:"numAllowedLocalASNumbers"`
		ReachableBy    string   `json:"reachableBy"`
		Filters        []string `json:"filters"`

		Password secretRef `json:"password"`
	}
	filterSpec struct {
		ExportV4 []ruleSpec `json:"exportV4"`
		ImportV4 []ruleSpec `json:"importV4"`
		ExportV6 []ruleSpec `json:"exportV6"`
		ImportV6 []ruleSpec `json:"importV6"`
	}
	ruleSpec struct {
		CIDR          string                 `json:"cidr"`
		PrefixLength  struct{ Min, Max int } `json:"prefixLength"`
		Source        string                 `json:"source"`
		Interface     string                 `json:"interface"`
		MatchOperator string                 `json:"matchOperator"`
		Action        string                 `json:"action"`
	}
)

// view reads the stores.
func (m *mirror) view() (view, error) {
	var objects []*unstructured.Unstructured
	for _, store := range m.stores {
		for _, item := range store.List() {
			if o, ok := item.(*unstructured.Unstructured); ok {
				objects = append(objects, o)
			}
		}
	}
	return readView(objects)
}

// readView reads the objects that decide the BIRDs' configurations. Objects of other kinds are
// ignored.
func readView(objects []*unstructured.Unstructured) (view, error) {
	v := view{filters: map[string]filterSpec{}, own: map[string]configSpec{}, passwords: map[string]map[string][]byte{}}
	var failed []error
	for _, o := range objects {
		var err error
		switch o.GetKind() {
		case "Node":
			v.nodes = append(v.nodes, readNode(o))
		case "BlockAffinity":
			err = appendSpec(&v.affinities, o)
		case "IPPool":
			err = appendSpec(&v.pools, o)
		case "BGPPeer":
			err = appendSpec(&v.peers, o)
		case "BGPFilter":
			v.filters[o.GetName()], err = readSpec[filterSpec](o)
		case "BGPConfiguration":
			var spec configSpec
			spec, err = readSpec[configSpec](o)
			if node, of := strings.CutPrefix(o.GetName(), "node."); of {
				v.own[node] = spec
			} else if o.GetName() == "default" {
				v.config = spec
			}
		case "Secret":
			var s corev1.Secret
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &s)
			v.passwords[s.Name] = s.Data
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err))
		}
	}
	return v, errors.Join(failed...)
}

func appendSpec[T any](to *[]T, o *unstructured.Unstructured) error {
	spec, err := readSpec[T](o)
	if err == nil {
		*to = append(*to, spec)
	}
	return err
}

func readSpec[T any](o *unstructured.Unstructured) (spec T, err error) {
	text, err := json.Marshal(o.Object["spec"])
	if err != nil {
		return spec, err
	}
	return spec, json.Unmarshal(text, &spec)
}

func readNode(o *unstructured.Unstructured) nodeView {
	notes := o.GetAnnotations()
	n := nodeView{name: o.GetName(), labels: o.GetLabels(), asn: notes["projectcalico.org/ASNumber"]}
	n.podCIDRs, _, _ = unstructured.NestedStringSlice(o.Object, "spec", "podCIDRs")
	n.cluster, _ = netip.ParseAddr(notes["projectcalico.org/RouteReflectorClusterID"])
	for _, key := range []string{"projectcalico.org/IPv4Address", "projectcalico.org/IPv6Address"} {
		text, _, _ := strings.Cut(notes[key], "/")
		if a, err := netip.ParseAddr(text); err == nil {
			n.addrs = append(n.addrs, a)
		}
	}
	return n
}

// as returns the AS number of a node: its own, else the cluster's, else Calico's default.
func (v view) as(n nodeView) uint32 {
	if own, err := strconv.ParseUint(n.asn, 10, 32); err == nil {
		return uint32(own)
	}
	return cmp.Or(v.config.ASNumber, 64512)
}

// port returns the port where a node listens, and zero if that is BGP's own.
func (v view) port(n nodeView) uint16 { return cmp.Or(v.own[n.name].ListenPort, v.config.ListenPort) }

// password returns the password in a secret, and nothing if it is not there: Calico leaves a
// missing password out.
func (v view) password(ref secretRef) string {
	return string(v.passwords[ref.SecretKeyRef.Name][ref.SecretKeyRef.Key])
}

// tags returns the communities that a node adds to the routes of a family.
func (v view) tags(n nodeView, four bool) (tags []bird.Tag, err error) {
	of := v.config
	if own := v.own[n.name]; own.PrefixAdvertisements != nil {
		of = own
	}
	values := map[string]string{}
	for _, c := range of.Communities {
		values[c.Name] = c.Value
	}
	for _, a := range of.PrefixAdvertisements {
		p, err := netip.ParsePrefix(a.CIDR)
		if err != nil {
			return nil, fmt.Errorf("BGPConfiguration: prefixAdvertisements: %w", err)
		}
		if p.Addr().Is4() != four {
			continue
		}
		tag := bird.Tag{Prefix: p.Masked()}
		for _, name := range a.Communities {
			var c bird.Community
			for word := range strings.SplitSeq(cmp.Or(values[name], name), ":") {
				n, err := strconv.ParseUint(word, 10, 32)
				if err != nil {
					return nil, fmt.Errorf("BGPConfiguration: community %q: %w", name, err)
				}
				c = append(c, uint32(n))
			}
			tag.Communities = append(tag.Communities, c)
		}
		tags = append(tags, tag)
	}
	return tags, nil
}

// services returns the ranges of Services that a node announces, and those in which it passes on
// every route because it is a reflector. A load balancer's range of one address is announced only
// by nodes with a pod of the Service, so it is left out here.
func (v view) services(mine func(string) (netip.Prefix, bool), n nodeView) (announced, reflected []netip.Prefix) {
	for _, s := range slices.Concat(v.config.ServiceClusterIPs, v.config.ServiceExternalIPs) {
		if p, ok := mine(s.CIDR); ok {
			announced = append(announced, p)
		}
	}
	for _, s := range v.config.ServiceLoadBalancerIPs {
		p, ok := mine(s.CIDR)
		if ok && !p.IsSingleIP() {
			announced = append(announced, p)
		}
		if ok && n.cluster.IsValid() {
			reflected = append(reflected, p)
		}
	}
	return announced, reflected
}

// compose returns the configuration of one family's BIRD on a node.
func (v view) compose(name string, version int, routerID, source netip.Addr) (bird.Config, error) {
	i := slices.IndexFunc(v.nodes, func(n nodeView) bool { return n.name == name })
	if i < 0 {
		return bird.Config{}, fmt.Errorf("no node is called %q", name)
	}
	n := v.nodes[i]
	c := bird.Config{
		Node: name, Version: version, RouterID: routerID, Source: source, AS: v.as(n), Port: v.port(n),
		Ignored: v.config.IgnoredInterfaces,
	}
	mine := func(text string) (netip.Prefix, bool) {
		p, err := netip.ParsePrefix(text)
		return p.Masked(), err == nil && p.Addr().Is4() == source.Is4()
	}
	affinities := v.affinities
	if v.hostLocal {
		affinities = nil
		for _, cidr := range n.podCIDRs {
			affinities = append(affinities, affinitySpec{CIDR: cidr, Node: name, State: "confirmed"})
		}
	}
	for _, a := range affinities {
		p, ok := mine(a.CIDR)
		pending := a.State == "pending" // not the node's yet
		if !ok || a.Node != name || a.Deleted == "true" || pending || a.Type == "virtual" {
			continue
		}
		c.Blocks = append(c.Blocks, bird.Block{Prefix: p, Confirmed: a.State == "confirmed" || a.State == ""})
	}
	for _, pool := range v.pools {
		if p, ok := mine(pool.CIDR); ok {
			c.Pools = append(c.Pools, bird.Pool{
				Prefix: p, NoExport: pool.DisableBGPExport, VXLAN: pool.VXLANMode != "" && pool.VXLANMode != "Never",
			})
		}
	}
	c.Services, c.Reflects = v.services(mine, n)
	if n.labels[corev1.LabelNodeExcludeBalancers] == "true" {
		c.Foreign, c.Services = c.Services, nil
	}
	tags, err := v.tags(n, source.Is4())
	c.Tags = tags
	if !slices.Contains(n.addrs, source) {
		return c, err // no BGP on a node without the address
	}
	var global, own, reverse []bird.Peer
	failed := []error{err}
	for _, spec := range v.peers {
		forth, back, err := v.ends(spec, n, source)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		if spec.kind() == "Global" {
			global = append(global, forth...)
		} else {
			own = append(own, forth...)
		}
		reverse = append(reverse, back...)
	}
	// If several BGPPeers have one neighbour, a global one overrides one of the node, and both
	// override one that only another node asks for.
	for _, p := range slices.Concat(global, own, reverse) {
		if !slices.ContainsFunc(c.Peers, func(o bird.Peer) bool { return o.Addr == p.Addr && o.Port == p.Port }) {
			c.Peers = append(c.Peers, p)
		}
	}
	if (v.config.NodeToNodeMeshEnabled == nil || *v.config.NodeToNodeMeshEnabled) && !n.cluster.IsValid() {
		peers, err := v.meshPeers(n, source)
		failed = append(failed, err)
		c.Peers = append(c.Peers, peers...)
	}
	return c, errors.Join(failed...)
}

// meshPeers returns a peer for each other node that is no reflector.
func (v view) meshPeers(n nodeView, source netip.Addr) ([]bird.Peer, error) {
	restart, err := duration(v.config.NodeMeshMaxRestartTime)
	if err != nil {
		return nil, fmt.Errorf("BGPConfiguration: nodeMeshMaxRestartTime: %w", err)
	}
	peers := v.nodePeers("Mesh", n, source, func(o nodeView) (bool, error) { return !o.cluster.IsValid(), nil })
	for i := range peers {
		p := &peers[i]
		p.Mesh, p.Passive, p.Restart, p.Password = true, waits(p.Addr, source), restart,
			v.password(v.config.NodeMeshPassword)
	}
	return peers, nil
}

// duration parses a duration that may be missing.
func duration(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	return time.ParseDuration(text)
}

// waits reports whether a node leaves the opening of a session to another one. Calico compares
// the addresses as text, so .9 is higher than .10.
func waits(other, own netip.Addr) bool { return other.String() > own.String() }

// nodePeers returns a peer for each other node that wanted accepts. A node whose error wanted
// returns is left out; that error was logged already.
func (v view) nodePeers(kind string, n nodeView, source netip.Addr, wanted func(nodeView) (bool, error)) []bird.Peer {
	var peers []bird.Peer
	for _, o := range v.nodes {
		if yes, err := wanted(o); err != nil || !yes || o.name == n.name {
			continue
		}
		for _, a := range o.addrs {
			if a.Is4() != source.Is4() {
				continue
			}
			p := bird.Peer{Name: protocolName(kind, a, v.port(o)), Addr: a, Port: v.port(o), AS: v.as(o)}
			if kind == "Mesh" {
				p.Name = protocolName(kind, a, 0)
			} else if o.cluster != n.cluster {
				p.Client = n.cluster
			}
			peers = append(peers, p)
		}
	}
	return peers
}

// kind returns the word in the names of protocols that shows whether a BGPPeer is global or of a
// node.
func (s peerSpec) kind() string {
	if s.Node != "" || s.NodeSelector != "" {
		return "Node"
	}
	return "Global"
}

// chooses reports whether a BGPPeer applies to a node.
func (s peerSpec) chooses(n nodeView) (bool, error) {
	switch {
	case s.Node != "":
		return s.Node == n.name, nil
	case s.NodeSelector != "":
		return selects(s.NodeSelector, n.labels)
	}
	return true, nil
}

// ends returns the neighbours that a BGPPeer gives to a node: those that the node is chosen to peer
// with, and those that are chosen to peer with the node. If both ends of a session are nodes, one
// BGPPeer configures both.
func (v view) ends(spec peerSpec, n nodeView, source netip.Addr) (forth, back []bird.Peer, err error) {
	chosen, err := spec.chooses(n)
	if err != nil {
		return nil, nil, err
	}
	far := func(o nodeView) (bool, error) { return selects(spec.PeerSelector, o.labels) }
	if spec.PeerSelector != "" {
		forth = v.nodePeers(spec.kind(), n, source, far)
	} else {
		addr, port, err := peerAddr(spec.PeerIP)
		if err != nil || addr.Is4() != source.Is4() {
			return nil, nil, err
		}
		there := func(o nodeView) bool { return slices.Contains(o.addrs, addr) }
		far = func(o nodeView) (bool, error) {
			listens := port == 0 || v.port(o) == 0 || port == v.port(o)
			return there(o) && listens && v.as(o) == cmp.Or(spec.ASNumber, v.as(nodeView{})), nil
		}
		if yes, _ := far(v.at(addr)); yes && port == 0 {
			port = v.port(v.at(addr))
		}
		if addr != source {
			forth = []bird.Peer{v.outside(spec, n, source, netip.AddrPortFrom(addr, port))}
		}
	}
	if !chosen {
		forth = nil
	}
	named, err := far(n)
	if err != nil {
		return nil, nil, err
	}
	if named {
		back = v.nodePeers("Node", n, source, spec.chooses)
	}
	for _, peers := range [][]bird.Peer{forth, back} {
		for i := range peers {
			if err := v.arrange(&peers[i], spec, n); err != nil {
				return nil, nil, err
			}
		}
	}
	return forth, back, nil
}

// at returns the node that has an address, and the zero nodeView if none has it.
func (v view) at(addr netip.Addr) nodeView {
	for _, n := range v.nodes {
		if slices.Contains(n.addrs, addr) {
			return n
		}
	}
	return nodeView{}
}

// outside returns the neighbour that a BGPPeer names by its address.
func (v view) outside(spec peerSpec, n nodeView, source netip.Addr, to netip.AddrPort) bird.Peer {
	p := bird.Peer{
		Name: protocolName(spec.kind(), to.Addr(), to.Port()), Addr: to.Addr(), Port: to.Port(), AS: spec.ASNumber,
		AllowOwnAS: spec.AllowOwnAS,
		Passive:    spec.kind() == "Global" && v.at(to.Addr()).name != "" && waits(to.Addr(), source),
		Client:     n.cluster,
	}
	if spec.KeepNextHop && p.AS != v.as(n) {
		p.NextHop = bird.NextHopKeep
	}
	return p
}

// arrange applies the settings of a BGPPeer to a neighbour. Only a neighbour in a reflector's AS is
// the reflector's client.
func (v view) arrange(p *bird.Peer, spec peerSpec, n nodeView) (err error) {
	p.LocalAS, p.NoSource, p.TTLHops = spec.LocalASNumber, spec.SourceAddress == "None", spec.TTLSecurity
	if p.AS != cmp.Or(p.LocalAS, v.as(n)) {
		p.Client = netip.Addr{}
	}
	p.Password = v.password(spec.Password)
	for text, to := range map[string]*time.Duration{spec.MaxRestartTime: &p.Restart, spec.KeepaliveTime: &p.Keepalive} {
		if *to, err = duration(text); err != nil {
			return fmt.Errorf("BGPPeer %s: %w", p.Name, err)
		}
	}
	if spec.ReachableBy != "" {
		via, err := netip.ParseAddr(spec.ReachableBy)
		if err != nil {
			return fmt.Errorf("BGPPeer %s: reachableBy: %w", p.Name, err)
		}
		if via.Is4() == p.Addr.Is4() {
			p.Gateway = via
		}
	}
	switch spec.NextHopMode {
	case "Self":
		p.NextHop = bird.NextHopSelf
	case "Keep":
		p.NextHop = bird.NextHopKeep
	}
	for _, name := range spec.Filters {
		f := v.filters[name]
		exports, imports := f.ExportV4, f.ImportV4
		if p.Addr.Is6() {
			exports, imports = f.ExportV6, f.ImportV6
		}
		for from, to := range map[*[]ruleSpec]*[]bird.Rule{&exports: &p.Export, &imports: &p.Import} {
			for _, r := range *from {
				rule, err := r.rule()
				if err != nil {
					return fmt.Errorf("BGPFilter %s: %w", name, err)
				}
				*to = append(*to, rule)
			}
		}
	}
	return nil
}

func (r ruleSpec) rule() (bird.Rule, error) {
	rule := bird.Rule{
		Match: bird.Match(r.MatchOperator), Min: r.PrefixLength.Min, Max: r.PrefixLength.Max,
		FromPeers: r.Source == "RemotePeers", Interface: r.Interface, Accept: r.Action == "Accept",
	}
	if r.CIDR == "" {
		return rule, nil
	}
	p, err := netip.ParsePrefix(r.CIDR)
	rule.Prefix = p.Masked()
	return rule, err
}

// peerAddr parses "address", "address:port" and "[address]:port".
func peerAddr(text string) (netip.Addr, uint16, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return a, 0, nil
	}
	ap, err := netip.ParseAddrPort(text)
	if err != nil {
		return netip.Addr{}, 0, fmt.Errorf("BGPPeer: peerIP %q: want an address, or address:port", text)
	}
	return ap.Addr(), ap.Port(), nil
}

func protocolName(kind string, a netip.Addr, port uint16) string {
	name := kind + "_" + strings.NewReplacer(".", "_", ":", "_").Replace(a.String())
	if port != 0 {
		name += fmt.Sprintf("_port_%d", port)
	}
	return name
}

// selects reports whether a selector of Calico's matches the labels. It supports all(), has(key),
// key == 'value', key != 'value', ! before a term, and && between terms.
func selects(selector string, labels map[string]string) (bool, error) {
	for term := range strings.SplitSeq(selector, "&&") {
		term = strings.TrimSpace(term)
		bare := strings.TrimSpace(strings.TrimPrefix(term, "!"))
		yes, err := holds(bare, labels)
		if err != nil {
			return false, fmt.Errorf("selector %q: %w", selector, err)
		}
		if yes == (bare != term) {
			return false, nil
		}
	}
	return true, nil
}

func holds(term string, labels map[string]string) (bool, error) {
	if term == "all()" {
		return true, nil
	}
	if key, ok := strings.CutPrefix(term, "has("); ok && strings.HasSuffix(key, ")") {
		_, has := labels[strings.TrimSpace(strings.TrimSuffix(key, ")"))]
		return has, nil
	}
	for _, operator := range []string{"==", "!="} {
		if key, value, ok := strings.Cut(term, operator); ok {
			value = strings.Trim(strings.TrimSpace(value), `'"`)
			return (labels[strings.TrimSpace(key)] == value) == (operator == "=="), nil
		}
	}
	return false, fmt.Errorf("the lab does not know the term %q", term)
}
