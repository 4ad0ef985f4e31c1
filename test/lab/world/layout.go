package world

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// The networks of Services, in every lab.
var (
	service4 = netip.MustParsePrefix("10.96.0.0/16")
	service6 = netip.MustParsePrefix("fd00:10:96::/112")
)

// maxSite keeps the digits of both families equal, and the pools private.
const maxSite = 9

// lan4, lan6, pool4 and pool6 return the networks of a lab's hosts and of its pods.
func (o Options) lan4() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, byte(50 + o.Site), 0}), 24)
}

func (o Options) lan6() netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf("fd00:%d::/64", 50+o.Site))
}

func (o Options) pool4() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{172, byte(o.podSite())}), 16)
}

func (o Options) pool6() netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf("fd00:172:%d::/48", o.podSite()))
}

// podSite returns the number in the networks of pods that tells the site.
func (o Options) podSite() int {
	if o.SamePods {
		return 16
	}
	return 16 + o.Site
}

// The hosts of every lab beside its workers.
const (
	Appliance = "appliance" // where the operator starts sallyport; ApplianceHost names the further ones
	Client    = "client"    // where requests come from
	Master    = "master"    // the control plane's node
	Router    = "router"    // between client and appliances, if the lab has one
)

// ApplianceHost returns the name of the nth host for an appliance, from 1: appliance, appliance2...
func ApplianceHost(n int) string {
	if n == 1 {
		return Appliance
	}
	return fmt.Sprint(Appliance, n)
}

// maxAppliances bounds the plan of addresses: octets .21, then .12 to .18.
const maxAppliances = 8

// firstWorker is the last octet of worker1's address; the others follow.
const firstWorker = 23

// maxNodes bounds the plan of addresses: octets .22 to .121.
const maxNodes = 100

// docBlocks are the third octets of the blocks in the documents. All are odd. The blocks of
// further nodes have even octets, so they never overlap.
var docBlocks = map[int]int{22: 49, 23: 171, 24: 189}

// Host is one machine of the lab: a network namespace with one interface,
// eth0, on the lan. With a router the client is behind it, on a network of its own.
type Host struct {
	Name  string       `json:"name"`
	Netns string       `json:"netns"`          // as in /run/netns
	Addr  netip.Prefix `json:"addr"`           // IPv4 address with the lan's length
	Addr6 netip.Prefix `json:"addr6,omitzero"` // IPv6 address with the lan's length, in a lab with IPv6
	Node  bool         `json:"node,omitempty"` // a node of the cluster
	// of a node, for each family: the block that it claims first, with real Calico by ClaimBlocks alone; or its
	// podCIDR
	Blocks []netip.Prefix `json:"blocks,omitempty"`
}

var (
	// "sp-" + name must fit an interface's 15 bytes; a dash ends it.
	labName  = regexp.MustCompile(`^[a-z][a-z0-9]{0,11}$`)
	hostName = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,12}[a-z0-9])?$`) // the name of a port on the lan
)

// checkLab returns an error if a lab cannot have this name.
func checkLab(name string) error {
	if !labName.MatchString(name) {
		return fmt.Errorf("lab name %q: want a lower-case letter, then up to 11 letters or digits", name)
	}
	return nil
}

// checkNode returns an error if a new node cannot have this name.
func checkNode(name string) error {
	if !hostName.MatchString(name) {
		return fmt.Errorf("node name %q: want a lower-case letter, then up to 13 letters, digits or dashes", name)
	}
	if strings.HasPrefix(name, Appliance) || slices.Contains([]string{Client, Router, lanHost, uplink}, name) {
		return fmt.Errorf("node name %q: taken by another host of the lab", name)
	}
	return nil
}

// plan returns the hosts of a new lab.
func (o Options) plan() []Host {
	hosts := []Host{o.host(Client, 10), o.host(Appliance, 21), o.node(Master, 22)}
	for n := 2; n <= o.Appliances; n++ {
		hosts = append(hosts, o.host(ApplianceHost(n), 10+n))
	}
	if o.Router != "" {
		hosts[0] = o.outside(Client, 10)
		hosts = append(hosts, o.host(Router, routerOctet))
	}
	for i := range o.Workers {
		hosts = append(hosts, o.node(fmt.Sprintf("worker%d", i+1), firstWorker+i))
	}
	return hosts
}

// routerOctet ends the router's address on the lan. The .1 is that of this machine.
const routerOctet = 2

// outside returns a host with an address in the network behind the router.
func (o Options) outside(name string, octet int) Host {
	h := Host{
		Name: name, Netns: netnsName(o.Name, name),
		Addr: netip.MustParsePrefix(fmt.Sprintf("198.51.100.%d/24", octet)),
	}
	if o.IPv6 {
		h.Addr6 = netip.MustParsePrefix(fmt.Sprintf("2001:db8:100::%d/64", octet))
	}
	return h
}

// next returns a node that joins, with the lowest free address.
func (o Options) next(name string, hosts []Host) (Host, error) {
	for octet := firstWorker; octet < firstWorker+maxNodes-1; octet++ {
		h := o.node(name, octet)
		if !slices.ContainsFunc(hosts, func(other Host) bool { return other.Addr == h.Addr }) {
			return h, nil
		}
	}
	return Host{}, fmt.Errorf("no address is left for node %s: a lab has at most %d nodes", name, maxNodes)
}

func netnsName(lab, host string) string { return "sp-" + lab + "-" + host }

// host returns a host with the octet that ends its address. The digits read the same in
// both families: 192.168.50.23, fd00:50::23.
func (o Options) host(name string, octet int) Host {
	h := Host{
		Name:  name,
		Netns: netnsName(o.Name, name),
		Addr:  netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, byte(50 + o.Site), byte(octet)}), o.lan4().Bits()),
	}
	if o.IPv6 {
		h.Addr6 = netip.MustParsePrefix(fmt.Sprintf("fd00:%d::%d/%d", 50+o.Site, octet, o.lan6().Bits()))
	}
	return h
}

// node returns a host with the blocks that it claims first: with HostLocal, with its podCIDRs.
func (o Options) node(name string, octet int) Host {
	h := o.host(name, octet)
	h.Node = true
	third, ok := docBlocks[octet]
	if !ok {
		third = 2 * (octet - firstWorker)
	}
	h.Blocks = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{172, byte(o.podSite()), byte(third), 64}), 26)}
	if o.IPv6 {
		h.Blocks = append(h.Blocks, netip.MustParsePrefix(fmt.Sprintf("fd00:172:%d:%d::40/122", o.podSite(), third)))
	}
	for i, b := range h.Blocks {
		if o.HostLocal {
			h.Blocks[i] = netip.PrefixFrom(b.Addr(), b.Addr().BitLen()-8).Masked()
		}
	}
	return h
}
