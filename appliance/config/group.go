package config

import (
	"encoding/base64"
	"fmt"
	"maps"
	"math/big"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Group is several appliances that serve the same addresses. Every member has the same
// part group in its file, and an identity of its own.
type Group struct {
	// Name of the group: lower-case letters, digits and dashes. There is no group without a name.
	Name string `json:"name" jsonschema:"required"`
	// Key that the members share: base64 of at least 32 bytes, as "openssl rand -base64 32" prints
	// it. The keys of the heartbeat, of HAProxy's peers and of TLS tickets are derived from it.
	Secret Secret `json:"secret"`
	// File that holds the key, instead of secret.
	SecretFile string `json:"secretFile"`
	// Service addresses: every member has them on its loopback interface, and those that serve
	// announce them. They belong to no machine. Only with vrrp they may be in the network of the
	// members.
	Addresses []netip.Addr `json:"addresses" jsonschema:"required"`
	// Addresses for Gateways, and for Services of type LoadBalancer with the class
	// sallyport.dev/appliance: networks, or ranges such as 203.0.113.10-203.0.113.20. Each Gateway or
	// Service gets one of its own, announced or moved by VRRP as the service addresses are. Nothing
	// else may have an address of the pools. It needs upstream or vrrp.
	Pools []Pool `json:"pools"`
	// Give addresses of the pools also to Services of type LoadBalancer that name no class.
	DefaultLoadBalancer bool `json:"defaultLoadBalancer" jsonschema:"default=false"`
	// All appliances of the group, at most 8, in the same order on each; identity names this one.
	Members []Member `json:"members" jsonschema:"required"`
	// Port on which the members talk to each other: UDP for the heartbeat, TCP for HAProxy's peers.
	Port uint16 `json:"port" jsonschema:"default=7477,minimum=1,maximum=65535"`
	// Share rate limits, session cookies and TLS session tickets among the members. The members do
	// not add up what they count: a client whose connections reach several of them at once may send
	// as many times rate-limit-requests as there are members. Who learns the secret of the group
	// can read recorded TLS 1.2 connections that began with a ticket; not those of TLS 1.3.
	Share bool `json:"share" jsonschema:"default=true"`
	// Pass packets of connections that another member holds on to that member, so that an
	// established TCP connection survives when routers move it. The members then need a network in
	// common.
	SecondChance bool `json:"secondChance" jsonschema:"default=true"`
	// How many packets a second one appliance passes on to the next member (secondChance), from
	// 1000 to 10000000. Anybody may send packets that belong to no connection, and each of them
	// reaches all members. Packets beyond the limit are dropped, and TCP sends those of a
	// connection again. 20,000 packets that clients send are the acknowledgements of some 500
	// Mbit/s of answers, all on connections that have just moved.
	SecondChanceLimit int `json:"secondChanceLimit" jsonschema:"default=20000,minimum=1000,maximum=10000000"`
	// How an appliance leaves on purpose.
	Drain Drain `json:"drain"`
	// The routers that the service addresses are announced to. Without them nothing is announced.
	Upstream Upstream `json:"upstream"`
	// VRRP (RFC 5798) between the members, for a network without routers that speak BGP. It needs
	// Debian's package keepalived.
	VRRP VRRP `json:"vrrp"`
}

// Exists reports whether the file has a group.
func (g *Group) Exists() bool { return g.Name != "" }

// Key returns the bytes of the secret.
func (g *Group) Key() []byte {
	key, _ := base64.StdEncoding.DecodeString(g.Secret.Reveal()) // checkSecret has accepted it
	return key
}

// Pool is the addresses from First to Last, both included, of one family.
type Pool struct{ First, Last netip.Addr }

// UnmarshalText reads a network, a range as FIRST-LAST, or one address.
func (p *Pool) UnmarshalText(text []byte) (err error) {
	first, last, ranged := strings.Cut(string(text), "-")
	switch network, bad := netip.ParsePrefix(string(text)); {
	case ranged:
		if p.First, err = netip.ParseAddr(first); err == nil {
			p.Last, err = netip.ParseAddr(last)
		}
	case bad == nil:
		if network != network.Masked() {
			return fmt.Errorf("%s has bits set after its length", network)
		}
		p.First, p.Last = network.Addr(), lastOf(network)
	default:
		p.First, err = netip.ParseAddr(string(text))
		p.Last = p.First
	}
	switch {
	case err != nil:
		return err
	case p.First.BitLen() != p.Last.BitLen() || p.Last.Less(p.First) || p.First.Is4In6() ||
		p.First.Zone()+p.Last.Zone() != "":
		return fmt.Errorf("%s is no range of addresses", text)
	}
	return nil
}

// MarshalText returns the range as FIRST-LAST.
func (p Pool) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

func (p Pool) String() string { return p.First.String() + "-" + p.Last.String() }

// Contains reports whether an address is in the pool.
func (p Pool) Contains(a netip.Addr) bool {
	return a.BitLen() == p.First.BitLen() && p.First.Compare(a) <= 0 && a.Compare(p.Last) <= 0
}

// size returns how many addresses the pool has; of more than 2^32, 2^32.
func (p Pool) size() uint64 {
	const most = 1 << 32
	count := new(big.Int).SetBytes(p.Last.AsSlice())
	count.Sub(count, new(big.Int).SetBytes(p.First.AsSlice())).Add(count, big.NewInt(1))
	if !count.IsUint64() {
		return most
	}
	return min(count.Uint64(), most)
}

// Pools returns the addresses that Gateways and Services of type LoadBalancer can have.
func (c *Config) Pools() []Pool {
	if c.Group.Exists() {
		return c.Group.Pools
	}
	return c.HAProxy.Addresses
}

// warnOfGateways warns of Gateways that have no address to be served at.
func (c *Config) warnOfGateways(p *problems) {
	for i, cluster := range c.Clusters {
		if cluster.Gateway.Asked() && !cluster.Gateway.Shared && len(c.Pools()) == 0 {
			key := "haproxy.addresses"
			if c.Group.Exists() {
				key = "group.pools"
			}
			c.warn(p, fmt.Sprintf("clusters[%d].gateway.enabled", i),
				"no Gateway gets an address, and none is served, without %s or gateway.shared", key)
		}
	}
}

// warnOfShares warns of limits that let one namespace have more than the share of the pools
// that it has by default.
func (c *Config) warnOfShares(p *problems) {
	var has [2]uint64 // addresses of the pools, IPv4 and IPv6
	key := "group.pools"
	if !c.Group.Exists() {
		key = "haproxy.addresses"
	}
	for _, pool := range c.Pools() {
		if pool.First.Is4() {
			has[0] += pool.size()
		} else {
			has[1] += pool.size()
		}
	}
	for i, cluster := range c.Clusters {
		for family, name := range []string{"IPv4", "IPv6"} {
			share := max(1, has[family]/4)
			if most := cluster.Ingress.Limits.Addresses; has[family] > 0 && uint64(most) > share { //nolint:gosec // from 1 to 1000000
				c.warn(p, fmt.Sprintf("clusters[%d].ingress.limits.addresses", i),
					"%d is more than a quarter of the %s addresses of %s (%d), which is the default: one namespace "+
						"can leave too few for the others", most, name, key, has[family])
			}
		}
	}
}

func (p Pool) overlaps(o Pool) bool { return p.Contains(o.First) || o.Contains(p.First) }

// lastOf returns the last address of a network.
func lastOf(network netip.Prefix) netip.Addr {
	text := network.Addr().AsSlice()
	for bit := network.Bits(); bit < 8*len(text); bit++ {
		text[bit/8] |= 1 << (7 - bit%8)
	}
	last, _ := netip.AddrFromSlice(text)
	return last
}

// Member is one appliance of a group.
type Member struct {
	// Identity of the appliance.
	Name string `json:"name" jsonschema:"required"`
	// Its own address in the nodes' network.
	Address netip.Addr `json:"address" jsonschema:"required"`
}

// Drain says how an appliance leaves on purpose.
type Drain struct {
	// How long established connections may go on after the addresses were withdrawn, from 1s to 1h.
	// A stop by systemd waits as long.
	Timeout time.Duration `json:"timeout" jsonschema:"default=60s"`
}

// Upstream is the routers that the service addresses are announced to by BGP.
type Upstream struct {
	// AS number of the routers, another one than bgp.asn.
	ASN uint32 `json:"asn" jsonschema:"minimum=1,maximum=4294967295"`
	// The routers. The appliance dials them.
	Peers []Router `json:"peers"`
	// Bidirectional Forwarding Detection (RFC 5881) with the routers, so that they notice a lost
	// appliance before bgp.holdTime has passed; false: none.
	BFD BFD `json:"bfd"`
	// How long the addresses stay announced after a crash of sallyport, while HAProxy answers, from
	// 0s to 1h. The sessions with the routers and BFD are in a process of their own, which outlives
	// the crash and which the next sallyport takes over. Meanwhile nobody follows the cluster, and
	// HAProxy's own checks alone take servers out. 0s: they are withdrawn at once, and the other
	// members serve.
	AfterCrash time.Duration `json:"afterCrash" jsonschema:"default=60s"`
}

// Exists reports whether the file names a router.
func (u *Upstream) Exists() bool { return len(u.Peers) > 0 }

// VRRP gives each service address to one member, and to another one when that member is
// not fit to serve.
type VRRP struct {
	// Interface that gets the addresses, in the network of the members. Without an interface there is no VRRP.
	Interface string `json:"interface" jsonschema:"required"`
	// First virtual router ID. The group uses as many in a row as it has members, or addresses if
	// these are fewer; nothing else in the network may use them.
	ID int `json:"id" jsonschema:"default=50,minimum=1,maximum=255"`
	// Time between two advertisements, from 100ms to 10s in hundredths of a second. A lost member
	// is noticed after three to four of them.
	Interval time.Duration `json:"interval" jsonschema:"default=300ms"`
}

// Exists reports whether the file asks for VRRP.
func (v *VRRP) Exists() bool { return v.Interface != "" }

// Router is a router that the service addresses are announced to.
type Router struct {
	// Address of the router. IPv4 service addresses are announced in a session between IPv4
	// addresses, IPv6 ones in a session between IPv6 addresses.
	Address netip.Addr `json:"address" jsonschema:"required"`
	// AS number of this router, if it is another one than upstream.asn.
	ASN uint32 `json:"asn" jsonschema:"minimum=1,maximum=4294967295"`
	// Key of TCP MD5 (RFC 2385), at most 80 bytes.
	Password Secret `json:"password"`
	// File that holds the key, instead of password.
	PasswordFile string `json:"passwordFile"`
	// Accept packets only from a directly connected router (RFC 5082). The router then needs the same setting.
	TTLSecurity bool `json:"ttlSecurity" jsonschema:"default=false"`
	// TCP port of the router.
	Port uint16 `json:"port" jsonschema:"default=179,minimum=1,maximum=65535"`
}

// BFD is Bidirectional Forwarding Detection (RFC 5881). The zero BFD is none.
type BFD struct {
	// Time between two packets, from 50ms to 10s in whole milliseconds. The slower of the two sides counts.
	Interval time.Duration `json:"interval" jsonschema:"default=250ms"`
	// How many packets in a row are missed before the other side is lost.
	Multiplier int `json:"multiplier" jsonschema:"default=3,minimum=2,maximum=50"`
}

// maxMembers is how many members the hop count of second chance has room for.
const maxMembers = 8

// minSecret is the length of the output of SHA-256, from which the keys are derived.
const minSecret = 32

// memberName matches a name that needs no quotes in HAProxy's configuration.
var memberName = regexp.MustCompile(`^[A-Za-z0-9][-A-Za-z0-9_.]{0,62}$`)

// fillGroup sets the defaults that depend on the group.
func (c *Config) fillGroup(p *problems) {
	if !c.Group.Exists() {
		return
	}
	for i := range c.Clusters {
		if !p.given(fmt.Sprintf("clusters[%d].ingress.publish", i)) {
			c.Clusters[i].Ingress.Publish = slices.Clone(c.Group.Addresses)
		}
	}
	for i := range c.Group.Upstream.Peers {
		if router := &c.Group.Upstream.Peers[i]; router.ASN == 0 {
			router.ASN = c.Group.Upstream.ASN
		}
	}
}

func (c *Config) checkGroup(p *problems) {
	g := &c.Group
	switch {
	case !p.given("group"):
		return
	case g.Name == "":
		p.add("group", "name is missing")
	case !name.MatchString(g.Name):
		p.add("group.name", "%q is not allowed; allowed: up to 63 lower-case letters, digits and dashes", g.Name)
	}
	switch {
	case !g.Secret.IsZero() && g.SecretFile != "":
		p.add("group.secretFile", "secret is given too; keep one of the two")
	case p.given("group.secret"):
		checkSecret(p, "group.secret", g.Secret)
	case g.SecretFile == "":
		p.add("group", "secret is missing; openssl rand -base64 32 makes one, the same for all members (secretFile "+
			"names a file that holds it)")
	}
	if g.Drain.Timeout < time.Second || g.Drain.Timeout > time.Hour {
		p.add("group.drain.timeout", "%s is not allowed; allowed: 1s to 1h", g.Drain.Timeout)
	}
	c.checkGroupMembers(p)
	if c.Identity != "" {
		c.checkIdentity(p)
	}
	c.checkServiceAddresses(p)
	c.checkUpstream(p)
	c.checkVRRP(p)
	c.checkServicePools(p)
}

// checkSecret rejects a key that is not base64, or too short. It quotes nothing of it.
func checkSecret(p *problems, at string, secret Secret) {
	if key, err := base64.StdEncoding.DecodeString(secret.Reveal()); err != nil || len(key) < minSecret {
		p.add(at, "is not base64 of at least %d bytes; openssl rand -base64 %d makes one", minSecret, minSecret)
	}
}

func (c *Config) checkGroupMembers(p *problems) {
	members := c.Group.Members
	if len(members) == 0 && (!p.given("group.members") || len(p.list) == 0) {
		p.add("group", "members is missing; list every appliance of the group, this one too")
	}
	if len(members) > maxMembers {
		p.add("group.members", "there are %d; allowed: at most %d", len(members), maxMembers)
	}
	for i, m := range members {
		at := fmt.Sprintf("group.members[%d]", i)
		switch j := slices.IndexFunc(members, func(o Member) bool { return o.Name == m.Name }); {
		case m.Name == "":
			p.add(at, "name is missing")
		case !memberName.MatchString(m.Name):
			p.add(at+".name", "%q is not allowed; allowed: up to 63 letters, digits and - _ .", m.Name)
		case j < i:
			p.add(at+".name", "%q is already the name of group.members[%d]", m.Name, j)
		}
		switch j := slices.IndexFunc(members, func(o Member) bool { return o.Address == m.Address }); {
		case !m.Address.IsValid():
			p.add(at, "address is missing")
		case !m.Address.IsGlobalUnicast():
			p.add(at+".address", notAMachine, m.Address)
		case j < i:
			p.add(at+".address", "%s is already the address of %s", m.Address, members[j].Name)
		case m.Address.Is4() != members[0].Address.Is4():
			p.add(at+".address", "%s is not of the family of %s, the address of %s; members need addresses of one "+
				"family, IPv4 or IPv6", m.Address, members[0].Address, members[0].Name)
		default:
			c.checkNotInPool(p, at+".address", m.Address)
		}
	}
}

// checkIdentity rejects a group that this appliance is not a member of.
func (c *Config) checkIdentity(p *problems) {
	members := c.Group.Members
	if len(members) == 0 || slices.ContainsFunc(members, func(m Member) bool { return m.Name == c.Identity }) {
		return
	}
	names := make([]string, 0, len(members))
	for _, m := range members {
		names = append(names, m.Name)
	}
	p.add("group.members", "none has the name %q, which is the identity of this appliance; add it, or set identity "+
		"to one of %s", c.Identity, strings.Join(names, ", "))
}

// checkNotInPool rejects an address that a pod could have.
func (c *Config) checkNotInPool(p *problems, at string, addr netip.Addr) {
	for i, cluster := range c.Clusters {
		for j, pool := range cluster.Pools {
			if pool.Contains(addr) {
				p.add(at, "%s is in %s, a network of pods (clusters[%d].pools[%d])", addr, pool, i, j)
			}
		}
	}
}

func (c *Config) checkServiceAddresses(p *problems) {
	g := &c.Group
	if len(g.Addresses) == 0 && (!p.given("group.addresses") || len(p.list) == 0) {
		p.add("group", "addresses is missing; give the addresses that clients connect to")
	}
	for i, addr := range g.Addresses {
		at := fmt.Sprintf("group.addresses[%d]", i)
		if !addr.IsGlobalUnicast() {
			p.add(at, "%s is not an address that clients can connect to", addr)
			continue
		}
		if slices.Contains(g.Addresses[:i], addr) {
			p.add(at, "%s is listed twice", addr)
		}
		for _, m := range g.Members {
			if m.Address == addr {
				p.add(at, "%s is the address of the member %s; a service address belongs to no machine", addr, m.Name)
			}
		}
		if slices.Contains(c.BGP.Listen, addr) {
			p.add(at, "%s is in bgp.listen; a service address belongs to no machine", addr)
		}
		for j, cluster := range c.Clusters {
			if cluster.Source.IsSingleIP() && cluster.Source.Addr() == addr {
				p.add(at, "%s is clusters[%d].source; a service address belongs to no machine", addr, j)
			}
		}
		c.checkNotInPool(p, at, addr)
	}
	// A listener on the address itself looks to the kernel like one of its connections,
	// and then second chance cannot tell whose a packet is.
	for key, list := range map[string][]netip.AddrPort{
		"haproxy.http":  c.HAProxy.HTTP,
		"haproxy.https": c.HAProxy.HTTPS,
	} {
		for _, at := range list {
			if !at.Addr().IsUnspecified() {
				p.add(key, "%s is a single address; in a group HAProxy listens on every address: \":%d\"", at,
					at.Port())
			}
		}
		for _, addr := range g.Addresses {
			if len(list) > 0 && !slices.ContainsFunc(list, func(at netip.AddrPort) bool {
				return at.Addr().Is4() == addr.Is4()
			}) {
				p.add(key, "HAProxy does not listen on the family of %s, a service address of the group; \":%d\" is "+
					"every address", addr, list[0].Port())
				break
			}
		}
	}
}

// checkServicePools rejects pools with addresses that something else has.
func (c *Config) checkServicePools(p *problems) {
	g := &c.Group
	if len(g.Pools) > 0 && !g.Upstream.Exists() && !g.VRRP.Exists() {
		p.add("group.pools", "is announced to nobody: give group.upstream the routers, or group.vrrp the interface "+
			"in the network of the members")
	}
	if g.DefaultLoadBalancer && len(g.Pools) == 0 && !p.given("group.pools") {
		p.add("group.defaultLoadBalancer", "is set without group.pools; give the addresses for Services")
	}
	taken := map[netip.Addr]string{}
	for i, a := range g.Addresses {
		taken[a] = fmt.Sprintf("a service address of the group (group.addresses[%d])", i)
	}
	for _, m := range g.Members {
		taken[m.Address] = "the address of the member " + m.Name
	}
	for i, r := range g.Upstream.Peers {
		taken[r.Address] = fmt.Sprintf("the address of a router (group.upstream.peers[%d])", i)
	}
	c.takenByBGP(taken)
	c.checkRanges(p, "group.pools", g.Pools, taken, "the pools are for Services and Gateways alone")
	for i, pool := range g.Pools {
		if u := &g.Upstream; u.Exists() && !slices.ContainsFunc(u.Peers, func(r Router) bool {
			return r.Address.Is4() == pool.First.Is4()
		}) {
			p.add(fmt.Sprintf("group.pools[%d]", i),
				"%s is announced to nobody: no router in group.upstream.peers has an address of its family", pool)
		}
	}
}

// checkOwnAddresses rejects addresses for Services and Gateways that something else has.
func (c *Config) checkOwnAddresses(p *problems) {
	const key = "haproxy.addresses"
	if len(c.HAProxy.Addresses) == 0 {
		return
	}
	if p.given("group") {
		p.add(key, "is for a single appliance; a machine that fails would take its addresses with it: give "+
			"group.pools addresses that belong to no machine")
		return
	}
	taken := map[netip.Addr]string{}
	for key, list := range map[string][]netip.AddrPort{
		"haproxy.http": c.HAProxy.HTTP, "haproxy.https": c.HAProxy.HTTPS, "status.listen": {c.Status.Listen},
	} {
		for _, at := range list {
			taken[at.Addr()] = "in " + key
		}
	}
	c.takenByBGP(taken)
	c.checkRanges(p, key, c.HAProxy.Addresses, taken, "these addresses are for Services and Gateways alone")
}

// takenByBGP adds the addresses of the BGP speaker and of route reflectors to the addresses in use.
func (c *Config) takenByBGP(taken map[netip.Addr]string) {
	for _, a := range c.BGP.Listen {
		taken[a] = "in bgp.listen"
	}
	for i, cluster := range c.Clusters {
		for _, a := range cluster.BGP.RouteReflectors {
			taken[a] = fmt.Sprintf("a route reflector (clusters[%d].bgp.routeReflectors)", i)
		}
	}
}

// checkRanges rejects ranges that clients cannot connect to, that overlap each other or a network of
// pods, or that contain an address in use. only is a sentence about the purpose of the ranges.
func (c *Config) checkRanges(p *problems, key string, ranges []Pool, taken map[netip.Addr]string, only string) {
	for i, pool := range ranges {
		at := fmt.Sprintf("%s[%d]", key, i)
		for _, never := range []string{
			"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "::/127",
			"fe80::/10", "ff00::/8",
		} {
			network := netip.MustParsePrefix(never)
			if pool.overlaps(Pool{network.Addr(), lastOf(network)}) {
				p.add(at, "%s overlaps %s, whose addresses clients cannot connect to", pool, network)
			}
		}
		for j, other := range ranges[:i] {
			if pool.overlaps(other) {
				p.add(at, "%s overlaps %s (%s[%d])", pool, other, key, j)
			}
		}
		for j, cluster := range c.Clusters {
			for k, pods := range cluster.Pools {
				if pool.overlaps(Pool{pods.Addr(), lastOf(pods)}) {
					p.add(at, "%s overlaps %s, a network of pods (clusters[%d].pools[%d])", pool, pods, j, k)
				}
			}
		}
		for _, a := range slices.SortedFunc(maps.Keys(taken), netip.Addr.Compare) {
			if pool.Contains(a) {
				p.add(at, "%s contains %s, which is %s; %s", pool, a, taken[a], only)
			}
		}
	}
}

func (c *Config) checkUpstream(p *problems) {
	const at = "group.upstream"
	u := &c.Group.Upstream
	if !p.given(at) {
		return
	}
	if u.ASN == 0 && !p.given(at+".asn") && slices.ContainsFunc(u.Peers, func(r Router) bool { return r.ASN == 0 }) {
		p.add(at, "asn is missing; give the AS number of the routers")
	}
	if len(u.Peers) == 0 && (!p.given(at+".peers") || len(p.list) == 0) {
		p.add(at, "peers is missing; give the routers, such as [{address: 192.168.50.1}]")
	}
	if u.ASN == c.BGP.ASN {
		p.add(at+".asn", "%d is bgp.asn, that of the appliance; addresses are announced to other ASes alone: give "+
			"the appliance or the routers another one", u.ASN)
	}
	for i, addr := range c.Group.Addresses {
		if len(u.Peers) > 0 && !slices.ContainsFunc(u.Peers, func(r Router) bool {
			return r.Address.Is4() == addr.Is4()
		}) {
			p.add(fmt.Sprintf("group.addresses[%d]", i),
				"%s is announced to nobody: no router in group.upstream.peers has an address of its family", addr)
		}
	}
	if b := u.BFD; b != (BFD{}) && (b.Interval < 50*time.Millisecond || b.Interval > 10*time.Second ||
		b.Interval%time.Millisecond != 0) {
		p.add(at+".bfd.interval", "%s is not allowed; allowed: whole milliseconds from 50ms to 10s", b.Interval)
	}
	if u.AfterCrash < 0 || u.AfterCrash > time.Hour {
		p.add(at+".afterCrash", "%s is not allowed; allowed: 0s to 1h", u.AfterCrash)
	}
	for i, r := range u.Peers {
		at := fmt.Sprintf("%s.peers[%d]", at, i)
		if !r.Password.IsZero() && r.PasswordFile != "" {
			p.add(at+".passwordFile", "password is given too; keep one of the two")
		}
		if p.given(at + ".password") {
			checkPassword(p, at+".password", r.Password)
		}
		if !r.Address.IsValid() {
			p.add(at, "address is missing")
			continue
		}
		if !r.Address.IsGlobalUnicast() {
			p.add(at+".address", notAMachine, r.Address)
		}
		if r.ASN == c.BGP.ASN && r.ASN != u.ASN {
			p.add(at+".asn", "%d is bgp.asn, that of the appliance; addresses are announced to other ASes alone", r.ASN)
		}
		if j := slices.IndexFunc(u.Peers, func(o Router) bool { return o.Address == r.Address }); j < i {
			p.add(at+".address", "%s is already the address of group.upstream.peers[%d]", r.Address, j)
		}
		c.checkRouter(p, at+".address", r.Address)
	}
}

// interfaceName matches a name that needs no quotes in keepalived's configuration.
var interfaceName = regexp.MustCompile(`^[A-Za-z0-9][-A-Za-z0-9_.]{0,14}$`)

func (c *Config) checkVRRP(p *problems) {
	const at = "group.vrrp"
	g := &c.Group
	v := &g.VRRP
	if !p.given(at) {
		return
	}
	switch {
	case v.Interface == "":
		p.add(at, "interface is missing; give the one in the network of the members")
	case !interfaceName.MatchString(v.Interface):
		p.add(at+".interface", "%q is not allowed; allowed: up to 15 letters, digits and - _ .", v.Interface)
	}
	if v.Interval < 100*time.Millisecond || v.Interval > 10*time.Second || v.Interval%(10*time.Millisecond) != 0 {
		p.add(at+".interval", "%s is not allowed; allowed: hundredths of a second from 100ms to 10s", v.Interval)
	}
	if len(g.Members) == 0 || len(g.Addresses) == 0 {
		return // reported already
	}
	same := 0
	for _, a := range g.Addresses {
		if a.Is4() == g.Members[0].Address.Is4() {
			same++
		}
	}
	if same == 0 {
		p.add(at, "no service address is of the family of %s, the address of %s; VRRP needs one, or members with "+
			"addresses of the other family", g.Members[0].Address, g.Members[0].Name)
	}
	if last := v.ID + min(same, len(g.Members)) - 1; last > 255 {
		p.add(at+".id", "%d is not allowed; the group uses the IDs %d to %d, and 255 is the greatest", v.ID, v.ID, last)
	}
}

// checkRouter rejects a router at an address that the file gives to something else.
func (c *Config) checkRouter(p *problems, at string, addr netip.Addr) {
	for _, m := range c.Group.Members {
		if m.Address == addr {
			p.add(at, "%s is the address of the member %s, and not of a router", addr, m.Name)
		}
	}
	if slices.Contains(c.Group.Addresses, addr) {
		p.add(at, "%s is a service address of the group, and not a router", addr)
	}
	for i, cluster := range c.Clusters {
		if slices.Contains(cluster.BGP.RouteReflectors, addr) {
			p.add(at, "%s is a route reflector (clusters[%d].bgp.routeReflectors), to which nothing is announced", addr,
				i)
		}
	}
	c.checkNotInPool(p, at, addr)
}
