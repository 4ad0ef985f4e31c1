package world

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
)

// The networks of every lab. Labs are apart from each other, so all use the
// same.
var (
	lan4     = netip.MustParsePrefix("192.168.50.0/24")
	lan6     = netip.MustParsePrefix("fd00:50::/64")
	pool4    = netip.MustParsePrefix("172.16.0.0/16")
	pool6    = netip.MustParsePrefix("fd00:172:16::/48")
	service4 = netip.MustParsePrefix("10.96.0.0/16")
	service6 = netip.MustParsePrefix("fd00:10:96::/112")
)

// The hosts every lab has beside its workers.
const (
	Appliance = "appliance" // where the operator starts sallyport
	Client    = "client"    // where requests come from
	Master    = "master"    // the control plane's node
)

// firstWorker is the last octet of worker1's address; the others follow.
const firstWorker = 23

// maxNodes bounds the plan of addresses: octets .22 to .121.
const maxNodes = 100

// docBlocks are the third octets of the blocks that the documents show. All are odd: the
// blocks of further nodes have even octets and so never meet them.
var docBlocks = map[int]int{22: 49, 23: 171, 24: 189}

// Host is one machine of the lab: a network namespace with one interface,
// eth0, on the lan.
type Host struct {
	Name   string         `json:"name"`
	Netns  string         `json:"netns"`            // as in /run/netns
	Addr   netip.Prefix   `json:"addr"`             // IPv4 address with the lan's length
	Addr6  netip.Prefix   `json:"addr6,omitzero"`   // IPv6 address with the lan's length, in a lab with IPv6
	Node   bool           `json:"node,omitempty"`   // a node of the cluster
	Blocks []netip.Prefix `json:"blocks,omitempty"` // the first block of each family, or the podCIDRs, for nodes
}

var (
	labName  = regexp.MustCompile(`^[a-z][a-z0-9]{0,11}$`)             // "sp-" + name must fit an interface's 15 bytes; a dash ends it
	hostName = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,12}[a-z0-9])?$`) // the name of a port on the lan
)

// checkLab says what is wrong with the name of a lab.
func checkLab(name string) error {
	if !labName.MatchString(name) {
		return fmt.Errorf("lab name %q: want a lower-case letter, then up to 11 letters or digits", name)
	}
	return nil
}

// checkNode says what is wrong with the name of a node to be.
func checkNode(name string) error {
	if !hostName.MatchString(name) {
		return fmt.Errorf("node name %q: want a lower-case letter, then up to 13 letters, digits or dashes", name)
	}
	if slices.Contains([]string{Appliance, Client, lanHost, uplink}, name) {
		return fmt.Errorf("node name %q: taken by another host of the lab", name)
	}
	return nil
}

// plan lays out the hosts of a new lab.
func plan(lab string, workers int, ipv6 bool) []Host {
	hosts := []Host{
		host(lab, Client, 10, ipv6),
		host(lab, Appliance, 21, ipv6),
		nodeHost(lab, Master, 22, ipv6),
	}
	for i := range workers {
		hosts = append(hosts, nodeHost(lab, fmt.Sprintf("worker%d", i+1), firstWorker+i, ipv6))
	}
	return hosts
}

// nextNode gives a node that joins the lowest free address.
func nextNode(lab, name string, hosts []Host, ipv6 bool) (Host, error) {
	for octet := firstWorker; octet < firstWorker+maxNodes-1; octet++ {
		h := nodeHost(lab, name, octet, ipv6)
		if !slices.ContainsFunc(hosts, func(o Host) bool { return o.Addr == h.Addr }) {
			return h, nil
		}
	}
	return Host{}, fmt.Errorf("no address is left for node %s: a lab has at most %d nodes", name, maxNodes)
}

// settle gives a node whole podCIDRs in the place of its first blocks, in a lab
// that wants them.
func (o Options) settle(h Host) Host {
	for i, b := range h.Blocks {
		if o.HostLocal {
			h.Blocks[i] = netip.PrefixFrom(b.Addr(), b.Addr().BitLen()-8).Masked()
		}
	}
	return h
}

func netnsName(lab, host string) string { return "sp-" + lab + "-" + host }

func host(lab, name string, octet int, ipv6 bool) Host {
	h := Host{
		Name:  name,
		Netns: netnsName(lab, name),
		Addr:  netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, 50, byte(octet)}), lan4.Bits()),
	}
	if ipv6 {
		// The digits read the same in both families: 192.168.50.23, fd00:50::23.
		h.Addr6 = netip.MustParsePrefix(fmt.Sprintf("fd00:50::%d/%d", octet, lan6.Bits()))
	}
	return h
}

func nodeHost(lab, name string, octet int, ipv6 bool) Host {
	h := host(lab, name, octet, ipv6)
	h.Node = true
	third, ok := docBlocks[octet]
	if !ok {
		third = 2 * (octet - firstWorker)
	}
	h.Blocks = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(third), 64}), 26)}
	if ipv6 {
		h.Blocks = append(h.Blocks, netip.MustParsePrefix(fmt.Sprintf("fd00:172:16:%d::40/122", third)))
	}
	return h
}
