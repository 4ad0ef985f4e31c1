package doctor

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"sallyport/appliance/config"
	"sallyport/appliance/status"
	"sallyport/bgp"
	"sallyport/routes"
)

// nodes checks the way to each node of a cluster, and its BGP speaker.
func (d *doctor) nodes(ctx context.Context, c config.Cluster, t routes.Topology) {
	local := localNetworks()
	if i := slices.IndexFunc(t.Nodes, func(n routes.Node) bool {
		return len(n.BGP) > 0 && n.BGP[0].Addr().Is4()
	}); i >= 0 {
		d.returnPath(t.Nodes[i].BGP[0].Addr())
	}
	sessions := map[netip.Addr]bgp.PeerState{}
	if d.status != nil {
		for _, p := range d.status.Peers {
			sessions[p.Addr] = p
		}
	}
	var unheard []neighbour
	for _, n := range t.Nodes {
		r := d.about(n.Name)
		if len(n.BGP) == 0 {
			r.failed("node", "it has no BGP address: its annotation projectcalico.org/IPv4Address "+
				"(IPv6Address) is missing", "calico-node sets it when it starts: look whether it runs there",
				calicoNode(n.Name))
		}
		if n.Down {
			r.doubt("node", "the cluster reports the node as unreachable",
				"look whether the machine and its kubelet run", "kubectl describe node "+n.Name)
		}
		for _, at := range n.BGP {
			if n.Behind {
				continue
			}
			a := at.Addr()
			if !slices.ContainsFunc(local, func(p netip.Prefix) bool { return p.Contains(a) }) {
				r.failed("node", fmt.Sprintf("%s is in no network that this machine is connected to (%s): routers in "+
					"between do not know the addresses of pods", a, status.Listed(local)),
					"put the appliance into the network of the nodes", "ip route get "+a.String())
				continue
			}
			if p, known := sessions[a]; known && p.Up() {
				r.ok("node", "BGP with %s is established for %s, with %d prefixes", a,
					time.Since(p.Since).Round(time.Second), p.Received)
				continue
			} else if known && p.LossReason != "" {
				remedy, manifests := status.RemedyOf(p.LossCode)
				command := calicoNode(n.Name)
				if manifests {
					command = d.manifests()
				}
				r.failed("node", fmt.Sprintf("BGP with %s is %s; its last session was lost: %s", a, p.State,
					p.LossReason), remedy, command)
			}
			unheard = append(unheard, d.neighbour(c, n, a))
		}
	}
	if c.BGP.Mode == config.Passive {
		unheard = slices.DeleteFunc(unheard, func(s neighbour) bool { return d.dialled(ctx, s) })
	}
	const atOnce = 50
	var wg sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i := range unheard {
		slots <- struct{}{}
		wg.Go(func() {
			unheard[i].ask(ctx)
			<-slots
		})
	}
	wg.Wait()
	for _, s := range unheard {
		d.answer(ctx, c, s)
	}
}

// A neighbour is the BGP speaker of a node at one address, with which there is no session.
type neighbour struct {
	bgp.Peer
	reporter // about the node

	node   routes.Node
	at     netip.AddrPort // where it listens
	from   string         // this end, in words
	probed bgp.Probed

	anyTTL, unsigned bool // it sends an OPEN without TTL security, or without a password, which the configuration has
}

// neighbour returns the speaker of a node as the appliance would connect to it.
func (d *doctor) neighbour(c config.Cluster, n routes.Node, a netip.Addr) neighbour {
	s := neighbour{
		Peer: bgp.Peer{
			Addr: a, Port: c.BGP.Port, Password: bgp.Secret(c.BGP.Password.Reveal()),
			TTLSecurity: c.BGP.TTLSecurity,
		},
		reporter: d.about(n.Name), node: n, at: netip.AddrPortFrom(a, c.BGP.Port), from: "this machine",
	}
	for _, l := range d.cfg.BGP.Listen {
		if !l.IsUnspecified() && l.Is4() == a.Is4() {
			s.Local, s.from = l, l.String()
			break
		}
	}
	return s
}

// ask connects to the speaker as the appliance would. If it gets no answer, it tries without TTL
// security or without a password, because the other side may lack them.
func (s *neighbour) ask(ctx context.Context) {
	s.probed = bgp.Probe(ctx, s.Peer)
	if s.probed.Answer != bgp.NoAnswer {
		return
	}
	if other := s.Peer; s.TTLSecurity {
		other.TTLSecurity = false
		s.anyTTL = bgp.Probe(ctx, other).Answer == bgp.Open
	}
	if other := s.Peer; s.Password != "" {
		other.Password = ""
		s.unsigned = bgp.Probe(ctx, other).Answer == bgp.Open
	}
}

// manifests returns the command that applies the manifests.
func (d *doctor) manifests() string { return status.Manifests(d.path) }

// calicoObjects returns the command that shows the objects of Calico that concern BGP.
func calicoObjects(apiGroup string) string {
	all := []string{"bgpconfigurations", "bgppeers", "bgpfilters", "ippools"}
	for i := range all {
		all[i] += "." + status.GroupName(apiGroup)
	}
	return "kubectl get " + strings.Join(all, ",") + " -o yaml"
}

func calicoNode(node string) string {
	return "kubectl get pods -A -l k8s-app=calico-node --field-selector spec.nodeName=" + node
}

// answer reports the result of ask.
func (d *doctor) answer(ctx context.Context, c config.Cluster, s neighbour) {
	at, from, p := s.at, s.from, s.probed
	switch {
	case s.TTLSecurity && p.Answer == bgp.Silent, s.anyTTL:
		s.failed("node", fmt.Sprintf("%s answers without the TTL of 255 that clusters[].bgp.ttlSecurity demands", at),
			"let the BGPPeer have ttlSecurity: 1, or remove the key here", d.manifests())
		return
	case s.unsigned:
		s.failed("node", fmt.Sprintf("its BGP speaker at %s answers without a password, and "+
			"clusters[].bgp.password is set", at),
			"give the BGPPeer the same password, and let calico-node read its Secret; or remove the key here",
			d.manifests())
		return
	}
	passed, watched := d.passed(s.Addr)
	rejected := watched && passed.Sent && !passed.Answered // by ICMP, which does not come from its TCP
	switch p.Answer {
	case bgp.Open:
		switch {
		case p.Deaf:
			s.failed("node", fmt.Sprintf("its BGP speaker at %s takes the connection of %s and drops all that "+
				"follows: its BGPPeer has ttlSecurity (TTL security), and clusters[].bgp.ttlSecurity is not set", at,
				from),
				"set clusters[].bgp.ttlSecurity: true, or remove ttlSecurity from the BGPPeer",
				"kubectl get bgppeers -o yaml")
		case p.ASN != s.node.ASN:
			s.failed("node", fmt.Sprintf("its BGP speaker at %s is in AS %d, and the cluster's objects say AS %d", at,
				p.ASN, s.node.ASN), "wait until Calico has applied its objects, or look at the annotation "+
				"projectcalico.org/ASNumber of the node", "kubectl get node "+s.node.Name+" -o yaml")
		case p.ID == d.cfg.BGP.RouterID && p.ID.IsValid():
			s.failed("node", fmt.Sprintf("its BGP speaker has the router id %s, which is bgp.routerID of the appliance",
				p.ID), "choose another bgp.routerID, then restart the appliance", "systemctl restart sallyport")
		case c.BGP.Mode == config.Passive && watched:
			s.failed("node", fmt.Sprintf("its BGP speaker at %s answers, and no connection from there arrives at port "+
				"%d of this machine, where bgp.mode: passive waits for it: a firewall drops packets from the node to "+
				"this machine", at, d.cfg.BGP.Port),
				"let the node send to that port, on the node and on the way; or leave bgp.mode out, so that the "+
					"appliance connects", "nft list ruleset    # on "+s.node.Name)
		default:
			s.ok("node", "its BGP speaker at %s knows %s, and is in AS %d", at, from, p.ASN)
		}
	case bgp.Closes:
		s.failed("node", fmt.Sprintf("its BGP speaker at %s takes the connection of %s and closes it: it has no "+
			"BGPPeer for that address", at, from),
			"apply the manifests; a BGPPeer with a nodeSelector has to select the node", d.manifests())
	case bgp.Silent:
		s.failed("node", fmt.Sprintf("its BGP speaker at %s takes the connection of %s and sends nothing: it may "+
			"still hold an earlier connection", at, from),
			"ask again in four minutes; then look at the log of calico-node there", calicoNode(s.node.Name))
	case bgp.NotThere:
		if rejected {
			s.failed("node", fmt.Sprintf("a firewall rejects the packets from %s to %s by ICMP: no reset of TCP "+
				"comes from there", from, at), "let this machine connect to that port, on the node and on the way",
				"nft list ruleset    # on "+s.node.Name)
			return
		}
		// BIRD listens only while it has a peer.
		s.failed("node", fmt.Sprintf("nothing listens at %s", at),
			"the node has no BGPPeer at all: apply the manifests; or calico-node does not run there, has no BGP "+
				"(CALICO_NETWORKING_BACKEND), or listens on another port (clusters[].bgp.port): "+
				calicoNode(s.node.Name), d.manifests())
	case bgp.NoAnswer:
		d.silent(ctx, s)
	case bgp.NotOurs:
		s.failed("node", fmt.Sprintf("bgp.listen has %s, which is no address of this machine", s.Local),
			"give the machine the address, or change bgp.listen", "ip address")
	case bgp.Unrouted:
		if rejected {
			s.failed("node", fmt.Sprintf("a firewall rejects the packets from %s to %s by ICMP: %v", from, at, p.Err),
				"let this machine connect to that port, on the node and on the way",
				"nft list ruleset    # on "+s.node.Name)
			return
		}
		s.failed("node", fmt.Sprintf("there is no route to %s: %v", at, p.Err),
			"look whether the node is up and in the same network", "ip route get "+s.Addr.String())
	default:
		s.failed("node", fmt.Sprintf("%s: %v", at, p.Err), "look at the way to the node",
			"ip route get "+s.Addr.String())
	}
}

// silent reports why packets from this machine to the BGP speaker of a node get no answer: the
// passwords differ, or a firewall drops them, in one direction or in both.
func (d *doctor) silent(ctx context.Context, s neighbour) {
	at, from := s.at, s.from
	if d.wire == nil {
		s.failed("node", fmt.Sprintf("packets from %s to %s get no answer", from, at),
			"the password of the BGPPeer is another one than clusters[].bgp.password; or a firewall or a "+
				"HostEndpoint drops the packets, on the node or on the way: run the doctor as root, so that "+
				"it sees which", "kubectl get bgppeers -o yaml")
		return
	}
	passed := d.wire.Wait(ctx, s.Addr)
	switch {
	case d.signedOtherwise(s, passed):
	case !passed.Sent:
		s.failed("node", fmt.Sprintf("packets from %s to %s do not leave this machine: its own firewall drops them",
			from, at), "let this machine send to that port", "nft list ruleset")
	case passed.Answered:
		s.failed("node", fmt.Sprintf("the answer of %s arrives at this machine, which drops it: by its own firewall, "+
			"or by rp_filter", at), "let answers from that port in", "nft list ruleset")
	case passed.Dialled:
		s.failed("node", fmt.Sprintf("packets from %s to %s get no answer, and those from there to this machine "+
			"arrive: a firewall or a HostEndpoint drops the former, on the node or on the way", from, at),
			fmt.Sprintf("let the node take packets from %s to TCP port %d", from, at.Port()),
			"nft list ruleset    # on "+s.node.Name)
	default:
		s.failed("node", fmt.Sprintf("packets from %s to %s get no answer, and none arrive from there: the node is "+
			"down, or a firewall or a HostEndpoint drops them in both directions, on the node or on the way", from, at),
			fmt.Sprintf("look whether the node is up; let TCP port %d pass between this machine and the node, in "+
				"both directions; and look whether calico-node runs there: %s", at.Port(), calicoNode(s.node.Name)),
			"nft list ruleset    # on "+s.node.Name)
	}
}

// dialled waits for a connection of a node that has to connect to us. It reports whether packets of
// the node arrive. It also returns true if the doctor may not see packets.
func (d *doctor) dialled(ctx context.Context, s neighbour) bool {
	if d.wire == nil {
		return true
	}
	switch passed := d.wire.Wait(ctx, s.Addr); {
	case !passed.Dialled:
		return false
	case d.signedOtherwise(s, passed):
	case !passed.Replied:
		s.failed("node", fmt.Sprintf("connections of its BGP speaker from %s arrive at this machine, which drops "+
			"them: by its own firewall, or by rp_filter", s.Addr),
			fmt.Sprintf("let the nodes connect to port %d of this machine", d.cfg.BGP.Port), "nft list ruleset")
	default:
		s.ok("node", "connections of its BGP speaker from %s arrive at this machine", s.Addr)
	}
	return true
}

// signedOtherwise reports a node and an appliance with different passwords (TCP MD5), or with a
// password on only one side. The kernel drops such packets, so on both sides it looks as if none
// arrived.
func (d *doctor) signedOtherwise(s neighbour, passed bgp.Segments) bool {
	password := string(s.Password)
	switch {
	case !passed.Dialled:
		return false
	case passed.Signed() && password == "":
		s.failed("node", "its BGP speaker signs its packets: its BGPPeer has a password, and "+
			"clusters[].bgp.password is not set",
			"set clusters[].bgp.password to that of the Secret that the BGPPeer names, or remove spec.password "+
				"from the BGPPeer", "kubectl get bgppeers -o yaml")
	case passed.Signed() && !passed.SignedBy(password):
		s.failed("node", "its BGP speaker has another password than clusters[].bgp.password: each side drops what the "+
			"other one sends", "give the Secret that the BGPPeer names (spec.password.secretKeyRef) and "+
			"clusters[].bgp.password the same password; a newline at the end counts", "kubectl get bgppeers -o yaml")
	case !passed.Signed() && password != "":
		s.failed("node", "its BGP speaker does not sign its packets: clusters[].bgp.password is set, and its BGPPeer "+
			"has no password, or calico-node cannot read the Secret",
			"give the BGPPeer the same password, and let calico-node read its Secret; or remove the key here",
			d.manifests())
	default:
		return false
	}
	return true
}

// passed returns the BGP packets between this machine and a node, and whether the doctor may see
// them.
func (d *doctor) passed(a netip.Addr) (s bgp.Segments, watched bool) {
	if d.wire == nil {
		return s, false
	}
	return d.wire.Of(a), true
}

// leftBehind checks that each BGPPeer for an appliance has the address of a machine that answers.
func (d *doctor) leftBehind(ctx context.Context, c config.Cluster, peers map[string]netip.Addr, group string) {
	ours := ownAddresses()
	for _, name := range slices.Sorted(maps.Keys(peers)) {
		at := peers[name]
		if slices.Contains(ours, at) {
			continue
		}
		switch p := bgp.Probe(ctx, bgp.Peer{Addr: at, Port: c.BGP.Port}); p.Answer {
		case bgp.NoAnswer, bgp.Unrouted:
			d.doubt("BGPPeer", fmt.Sprintf("cluster %s: BGPPeer %s names %s, where nothing answers: a node that "+
				"starts waits for it up to 240 s before it passes routes to the other nodes", c.Name, name, at),
				"if that appliance is gone for good, delete its BGPPeer", "kubectl delete bgppeers."+group+" "+name)
		default:
			d.ok("BGPPeer", "%s of cluster %s names %s, which answers", name, c.Name, at)
		}
	}
}

// returnPath checks that the kernel takes packets of nodes on each interface on which they
// may come.
func (d *doctor) returnPath(node netip.Addr) {
	interfaces, _ := net.Interfaces()
	var strict, all []string
	for _, i := range interfaces {
		addrs, _ := i.Addrs()
		if !slices.ContainsFunc(networksOf(addrs), func(p netip.Prefix) bool { return p.Contains(node) }) {
			continue
		}
		all = append(all, i.Name)
		if max(reversePath("all"), reversePath(i.Name)) == 1 {
			strict = append(strict, i.Name)
		}
	}
	if len(all) > 1 && len(strict) > 0 {
		d.doubt("return path", fmt.Sprintf("%s can be reached by several interfaces (%s), and the kernel drops what "+
			"comes by another one than it would answer by: rp_filter is 1 on %s", node, strings.Join(all, ", "),
			strings.Join(strict, ", ")),
			"give the network of the nodes to one interface, or loosen the check",
			fmt.Sprintf("sysctl -w net.ipv4.conf.all.rp_filter=2 net.ipv4.conf.%s.rp_filter=2", strict[0]))
	}
}

// reversePath returns the kernel's setting rp_filter of an interface.
func reversePath(name string) (mode int) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + name + "/rp_filter")
	if err == nil {
		_, _ = fmt.Sscan(string(text), &mode)
	}
	return mode
}
