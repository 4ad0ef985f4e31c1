package move

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// bird has the statements of all files of BIRD.
type bird struct {
	seen      bool
	lost      []Remark
	top       []*stmt
	defines   map[string][]token
	filters   map[string]*stmt
	functions map[string]*stmt
	templates map[string]*stmt
	peers     []peer
	routes    []netip.Prefix // of protocol static
	statics   []Remark       // about routes that are no service addresses
	bfd       string         // for routers
	work      int            // conditions that were looked at
}

// A peer is a protocol bgp.
type peer struct {
	at             Place
	name           string
	local, remote  netip.Addr
	localAS        string
	remoteAS       string
	localPort      string
	remotePort     string
	password       string // never printed
	passwordAt     Place
	passive, close bool // close: TTL security
	bfd            bool
	imports        nets
	filtered       bool // it has an import statement
	exports        bool
	limit          string
}

// read reads a file.
func (b *bird) read(f File, read Reader) error {
	in := inclusion{read: read}
	tokens, err := in.all(f, 0)
	if err != nil {
		return err
	}
	all, err := parse(tokens)
	if err != nil {
		return err
	}
	b.seen, b.lost = true, append(b.lost, in.lost...)
	b.top = append(b.top, all...)
	return nil
}

// apply writes the keys of the files.
func (b *bird) apply(d *draft) {
	if !b.seen {
		return
	}
	for _, r := range b.lost {
		d.note("", r)
	}
	b.name()
	for _, s := range b.top {
		b.statement(d, s)
	}
	var nodes, routers []peer
	for _, p := range b.peers {
		if p.exports && len(b.routes) > 0 && p.remoteAS != "" && p.remoteAS != p.localAS && !p.imports.any() {
			routers = append(routers, p)
		} else {
			nodes = append(nodes, p)
		}
	}
	b.speaker(d)
	b.nodes(d, nodes)
	b.upstream(d, routers)
	if len(routers) == 0 {
		for _, r := range b.statics {
			d.note("", r)
		}
	}
}

// name finds what other statements name.
func (b *bird) name() {
	b.defines, b.filters = map[string][]token{}, map[string]*stmt{}
	b.functions, b.templates = map[string]*stmt{}, map[string]*stmt{}
	for _, s := range b.top {
		switch name := s.word(1); s.word(0) {
		case "define":
			if len(s.words) > 3 {
				b.defines[name] = s.words[3:]
			}
		case "filter":
			b.filters[name] = s
		case "function":
			b.functions[name] = s
		case "template":
			b.templates[s.word(2)] = s
		}
	}
}

// value returns a word, or the word that it stands for.
func (b *bird) value(t token) string {
	for range maxIncludes {
		meant, is := b.defines[t.text]
		if !is || len(meant) != 1 || t.quote {
			break
		}
		t = meant[0]
	}
	return t.text
}

func (b *bird) statement(d *draft, s *stmt) {
	switch s.word(0) {
	case "router":
		if len(s.words) > 2 {
			if id, err := netip.ParseAddr(b.value(s.words[2])); err == nil {
				d.set("bgp.routerID", address(id), s.at, s.head())
				return
			}
		}
		d.note("bgp.routerID", Remark{
			Kind: Changed, At: s.at, What: s.head(), Why: "the router id is chosen at the start",
		})
	case "protocol":
		b.protocol(d, s)
	case "listen": // listen bgp address A port N, of BIRD 1
		b.local(d, s)
	case "define", "filter", "function", "template":
		// looked at where something names it
	case "log", "debug", "timeformat", "watchdog", "mrtdump", "hostname", "cli", "threads", "graceful", "eval":
		d.none(s.at)
	default:
		d.note("", Remark{
			Kind: Left, At: s.at, What: s.head(),
			Why: "the appliance has one table of BGP routes, and no statement like it",
			Do:  "Check whether something on this machine needs it",
		})
	}
}

func (b *bird) local(d *draft, s *stmt) {
	for i := 1; i+1 < len(s.words); i++ {
		v := b.value(s.words[i+1])
		switch s.word(i) {
		case "address":
			if a, err := netip.ParseAddr(v); err == nil {
				d.add("bgp.listen", address(a))
			}
		case "port":
			if n, is := unsigned(v); is {
				d.set("bgp.port", n, s.at, s.head())
			}
		}
	}
}

func (b *bird) protocol(d *draft, s *stmt) {
	off := func(s *stmt) bool { return s.word(0) == "disabled" && s.word(1) != "no" && s.word(1) != "off" }
	if slices.ContainsFunc(s.block, off) {
		d.none(s.at)
		return
	}
	switch s.word(1) {
	case "bgp":
		b.peer(d, s)
	case "kernel":
		b.kernel(d, s)
	case "static":
		b.static(s)
	case "bfd":
		b.bfd = b.session(s)
	case "device", "direct":
		d.none(s.at)
	default:
		d.note("", Remark{
			Kind: Left, At: s.at, What: s.head(), Why: "the appliance speaks BGP alone",
			Do: "If the machine needs the protocol, leave a BIRD with it, and without protocol bgp",
		})
	}
}

// kernel reads a protocol kernel, with its channels.
func (b *bird) kernel(d *draft, p *stmt) {
	if !slices.ContainsFunc(d.rest, func(r Remark) bool { return r.What == leftover }) {
		d.note("", Remark{
			Kind: ToDo, At: p.at, What: leftover, Why: "the routes of BIRD stay in the kernel when it stops",
			Do: "After the appliance has taken over, remove them: ip route flush proto bird",
		})
	}
	for _, s := range p.block {
		if s.braced && (s.word(0) == "ipv4" || s.word(0) == "ipv6") {
			b.kernel(d, &stmt{block: s.block, at: s.at})
			continue
		}
		switch s.word(0) {
		case "kernel":
			if n, is := unsigned(b.last(s)); is && s.word(1) == "table" {
				d.set("routes.table", n, s.at, s.head())
			}
		case "metric":
			if n, is := unsigned(b.last(s)); is {
				d.set("routes.metric", n, s.at, s.head())
			}
		case "persist":
			d.note("bgp.retain", Remark{
				Kind: Changed, At: s.at, What: s.head(),
				Why: "routes stay in the kernel at a stop, and bgp.failStatic bounds how long they stay without " +
					"sessions",
			})
		case "export", "import":
			if one := s.word(1); one == "all" && s.word(0) == "export" || one == "none" && s.word(0) == "import" {
				d.none(s.at)
				continue
			}
			d.note("", Remark{
				Kind: Left, At: s.at, What: "protocol kernel: " + s.head(),
				Why: "the appliance writes each verified route to a pod, and nothing else, and reads no routes of " +
					"others",
				Do: "Check whether the filter set a source address (krt_prefsrc) or left routes out",
			})
		case "learn":
			d.note("", Remark{Kind: Left, At: s.at, What: s.head(), Why: "routes of other programs are not announced"})
		default:
			d.none(s.at)
		}
	}
}

const leftover = "protocol kernel"

// last returns the last word of a statement.
func (b *bird) last(s *stmt) string {
	if len(s.words) == 0 {
		return ""
	}
	return b.value(s.words[len(s.words)-1])
}

// static reads the routes of a protocol static. Those of single addresses may be service addresses.
func (b *bird) static(p *stmt) {
	for _, s := range p.block {
		if s.word(0) != "route" || len(s.words) < 2 {
			continue
		}
		to, err := netip.ParsePrefix(b.value(s.words[1]))
		r := Remark{
			Kind: Left, At: s.at, What: s.head(), Why: "the appliance makes no routes but those to pods",
			Do: "Write it in the network configuration of the machine; the bootable image has system.routes",
		}
		if err == nil && to.IsSingleIP() && s.word(2) != "via" {
			b.routes = append(b.routes, to)
		} else {
			b.lost = append(b.lost, r)
			continue
		}
		r.Why = "no router is found that the address is announced to"
		r.Do = "Write group.addresses and group.upstream by hand: appliance/group/README.md"
		b.statics = append(b.statics, r)
	}
}

// session returns the value of group.upstream.bfd of a protocol bfd.
func (b *bird) session(p *stmt) string {
	interval, multiplier := "", "3"
	var find func(all []*stmt)
	find = func(all []*stmt) {
		for _, s := range all {
			find(s.block)
			switch {
			case s.word(0) == "multiplier":
				multiplier = b.last(s)
			case slices.ContainsFunc(s.words, func(t token) bool { return t.is("interval") }) && interval == "":
				interval = b.interval(s)
			}
		}
	}
	find(p.block)
	if n, is := unsigned(multiplier); is && interval != "" {
		return "{interval: " + interval + ", multiplier: " + n + "}"
	}
	return "{interval: 250ms, multiplier: 3}"
}

// interval returns the duration after the word interval, or nothing.
func (b *bird) interval(s *stmt) string {
	i := slices.IndexFunc(s.words, func(t token) bool { return t.is("interval") })
	if i+1 >= len(s.words) {
		return ""
	}
	n, is := unsigned(b.value(s.words[i+1]))
	unit := s.word(i + 2)
	if !is || unit != "ms" && unit != "us" && unit != "s" {
		return ""
	}
	return n + unit
}

// speaker writes the keys of the own side of all sessions.
func (b *bird) speaker(d *draft) {
	for _, p := range b.peers {
		if p.localAS != "" {
			d.set("bgp.asn", p.localAS, p.at, "local as "+p.localAS)
		}
		if p.local.IsValid() {
			d.add("bgp.listen", address(p.local))
		}
		if p.localPort != "" {
			d.set("bgp.port", p.localPort, p.at, "local port "+p.localPort)
		}
	}
}

// nodes writes the keys of the sessions with nodes.
func (b *bird) nodes(d *draft, all []peer) {
	if len(all) == 0 {
		return
	}
	var names []string
	for _, p := range all {
		if p.remote.IsValid() {
			names = append(names, p.remote.String())
		}
		if p.remoteAS != "" {
			d.set("clusters.bgp.asn", p.remoteAS, p.at, "neighbor as "+p.remoteAS)
		}
		if p.remotePort != "" {
			d.set("clusters.bgp.port", p.remotePort, p.at, "neighbor port "+p.remotePort)
		}
		if p.limit != "" {
			d.set("clusters.bgp.prefixLimit", p.limit, p.at, "import limit "+p.limit)
		}
		if p.exports {
			d.note("bgp.asn", Remark{
				Kind: Left, At: p.at, What: "export to " + p.name,
				Why: "nothing is announced to the nodes of a cluster",
				Do:  "If this is a router in front, write it in group.upstream",
			})
		}
		if p.bfd {
			d.note("bgp.holdTime", Remark{
				Kind: Left, At: p.at, What: "bfd",
				Why: "there is no BFD with nodes; bgp.holdTime finds a lost node, and the " +
					"checks of HAProxy find a lost pod",
			})
		}
	}
	if d.first("clusters.bgp.asn") == d.first("bgp.asn") {
		delete(d.settings, "clusters.bgp.asn") // the default
	}
	d.note("clusters.bgp.asn", Remark{
		Kind: ToDo, At: all[0].at, What: "neighbor " + few(names),
		Why: "the addresses of nodes are read from the cluster, and new nodes need no change here",
		Do:  "Write an address that is no node in clusters[].bgp.routeReflectors",
	})
	b.passwords(d, all)
	b.modes(d, all)
	b.pools(d, all)
}

// few returns the first names of a list.
func few(names []string) string {
	if more := len(names) - 8; more > 0 {
		return strings.Join(names[:8], ", ") + " and " + strconv.Itoa(more) + " more"
	}
	return strings.Join(names, ", ")
}

// passwords writes the file that holds the key of the sessions.
func (b *bird) passwords(d *draft, all []peer) {
	const key = "clusters.bgp.passwordFile"
	i := slices.IndexFunc(all, func(p peer) bool { return p.password != "" })
	if i < 0 {
		return
	}
	d.replace(key, "/etc/sallyport/bgp.key")
	d.note(key, Remark{
		Kind: ToDo, At: all[i].passwordAt, What: "password", Why: "a secret is never printed",
		Do: "Write the text between the quotes of that line into /etc/sallyport/bgp.key, which root alone may read " +
			"(install -m 600 /dev/null /etc/sallyport/bgp.key makes the file)",
	})
	for _, p := range all {
		if p.password != all[i].password {
			d.note(key, Remark{
				Kind: Left, At: p.at, What: "password of " + p.name,
				Why: "it differs from that of " + all[i].name + ", and all nodes of a cluster share one",
				Do:  "Give the BGPPeers of all nodes the same password",
			})
		}
	}
}

// modes writes who connects, and how near the nodes have to be.
func (b *bird) modes(d *draft, all []peer) {
	passive := func(p peer) bool { return p.passive }
	if i := slices.IndexFunc(all, passive); i >= 0 {
		if slices.ContainsFunc(all, func(p peer) bool { return !p.passive }) {
			d.note("clusters.bgp.mode", Remark{
				Kind: Changed, At: all[i].at, What: "passive",
				Why: "all nodes of a cluster are dialled, or none is; the " +
					"appliance dials them",
			})
		} else {
			d.replace("clusters.bgp.mode", "passive")
		}
	}
	near := func(p peer) bool { return p.close }
	if i := slices.IndexFunc(all, near); i >= 0 {
		d.replace("clusters.bgp.ttlSecurity", "true")
		for _, p := range all {
			if !p.close {
				d.note("clusters.bgp.ttlSecurity", Remark{
					Kind: Changed, At: p.at, What: p.name, Why: "all nodes of a cluster have TTL security, or none has",
					Do: "Set ttlSecurity: 1 in each BGPPeer",
				})
			}
		}
	}
}

// pools writes the networks of the pods.
func (b *bird) pools(d *draft, all []peer) {
	const key = "clusters.pools"
	var within, exact []netip.Prefix
	var free *peer // its routes are not bounded
	for i, p := range all {
		for _, r := range p.imports.remarks {
			d.note(key, r)
		}
		if p.imports.all || !p.filtered { // BIRD 1 imports all by default, and BIRD 2 nothing
			free = &all[i]
		}
		for _, n := range p.imports.list {
			if n.exact {
				exact = append(exact, n.Prefix)
			} else {
				within = append(within, n.Prefix)
			}
		}
	}
	exact = slices.DeleteFunc(exact, func(p netip.Prefix) bool {
		return slices.ContainsFunc(within, func(w netip.Prefix) bool { return w.Overlaps(p) && w.Bits() <= p.Bits() })
	})
	const look = "To bound the routes in this file, too, write the networks of kubectl get ippools in pools"
	switch {
	case free != nil:
		d.note(key, Remark{
			Kind: Widened, At: free.at, What: "import of " + free.name,
			Why: "pools are left out: the IPPools of the cluster bound the routes", Do: look,
		})
	case len(exact) > 0:
		d.note(key, Remark{
			Kind: Widened, At: all[0].at, What: "import of " + few(texts(exact)),
			Why: "a list of single blocks would reject the next block that Calico gives to a node, so that pools are " +
				"left out: the IPPools of the cluster bound the routes, and each route is compared with the block " +
				"of its node",
			Do: look,
		})
	case len(within) == 0:
		d.note(key, Remark{
			Kind: Widened, At: all[0].at, What: "import", Why: "no session accepted a route; here the IPPools of the " +
				"cluster bound the routes",
		})
	default:
		slices.SortFunc(within, netip.Prefix.Compare)
		for _, p := range slices.Compact(within) {
			d.add(key, prefixOf(p.Masked()))
		}
	}
}

func texts(all []netip.Prefix) (texts []string) {
	for _, p := range all {
		texts = append(texts, p.String())
	}
	return texts
}

// upstream writes a group of one member, for the routers that service addresses are announced to.
func (b *bird) upstream(d *draft, routers []peer) {
	if len(routers) == 0 {
		return
	}
	for _, p := range b.routes {
		d.add("group.addresses", address(p.Addr()))
	}
	own := netip.Addr{}
	for _, p := range routers {
		if p.local.IsValid() {
			own = p.local
		}
		d.set("group.upstream.asn", p.remoteAS, p.at, "neighbor as "+p.remoteAS)
		if p.remote.IsValid() {
			words := "{address: " + address(p.remote)
			if p.password != "" {
				words += ", passwordFile: /etc/sallyport/router.key"
				d.note("group.upstream.peers", Remark{
					Kind: ToDo, At: p.passwordAt, What: "password", Why: "a secret is never printed",
					Do: "Write the text between the quotes of that line into /etc/sallyport/router.key, which " +
						"root alone may read",
				})
			}
			if p.close {
				words += ", ttlSecurity: true"
			}
			d.add("group.upstream.peers", words+"}")
		}
		if p.bfd && b.bfd != "" {
			d.replace("group.upstream.bfd", b.bfd)
		}
	}
	d.note("group.upstream.peers", Remark{
		Kind: Changed, At: routers[0].at, What: "export to " + routers[0].name,
		Why: "the service addresses of a group are announced while the appliance serves; export filters with MED or " +
			"communities are not read",
	})
	d.group(own, nil, routers[0].at)
}

// group writes the keys that each group needs.
func (d *draft) group(own netip.Addr, others []netip.Addr, at Place) {
	if !own.IsValid() {
		d.note("group.members", Remark{
			Kind: ToDo, At: at, Why: "the own address of this machine is not known",
			Do: "Correct the address of member-1",
		})
		own = netip.AddrFrom4([4]byte{192, 0, 2, 1}) // RFC 5737
	}
	name := "member-1"
	if d.has("identity") {
		name = d.first("identity")
	} else {
		d.replace("identity", name)
	}
	if !d.has("group.members") {
		d.replace("group.name", "edge")
		d.replace("group.secretFile", "/etc/sallyport/group.key")
		d.note("group.secretFile", Remark{
			Kind: ToDo, At: at, Why: "the members sign what they say to one another",
			Do: "Make the file with openssl rand -base64 32, the same on each member, which root alone may read",
		})
		d.add("group.members", "{name: "+name+", address: "+address(own)+"}")
	}
	for i, a := range others {
		d.add("group.members", "{name: member-"+strconv.Itoa(i+2)+", address: "+address(a)+"}")
	}
}
