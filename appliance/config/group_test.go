package config_test

import (
	"encoding/base64"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/appliance/config"
)

// key is a secret of 32 bytes.
var key = base64.StdEncoding.EncodeToString([]byte("tops3cret-tops3cret-tops3cret-32"))

// pair is a valid file of the member gate-1. Line 5 begins the part group.
var pair = `identity: gate-1
clusters:
- kubeconfig: /a
  pools: [172.16.0.0/16]
group:
  name: edge
  secret: ` + key + `
  addresses: [203.0.113.10, "2001:db8::10"]
  members: [{name: gate-1, address: 192.168.50.21}, {name: gate-2, address: 192.168.50.22}]
  upstream: {asn: 64512, peers: [{address: 192.168.50.1}, {address: "fd00::1"}]}
`

func TestGroupKeysSetTheirFields(t *testing.T) {
	c, err := config.Parse("f.yaml",
		[]byte(strings.Replace(pair, `upstream: {asn: 64512, peers: [{address: 192.168.50.1}, {address: "fd00::1"}]}`,
			`port: 7000
  share: false
  secondChance: false
  secondChanceLimit: 5000
  pools: [203.0.113.64/28, 203.0.113.20-203.0.113.29, "2001:db8::1:0/112", 203.0.113.30]
  defaultLoadBalancer: true
  drain: {timeout: 5s}
  upstream:
    asn: 64512
    peers: [{address: 192.168.50.1, password: tops3cret, ttlSecurity: true, port: 1790}, {address: "fd00::1", asn: 64513}]
    bfd: {interval: 100ms, multiplier: 5}
    afterCrash: 5m
  vrrp: {interface: nodes, id: 7, interval: 1s}`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	want := config.Group{
		Name: "edge", Secret: config.NewSecret(key), Addresses: addrs("203.0.113.10", "2001:db8::10"),
		Members: []config.Member{
			{Name: "gate-1", Address: netip.MustParseAddr("192.168.50.21")},
			{Name: "gate-2", Address: netip.MustParseAddr("192.168.50.22")},
		},
		Pools: []config.Pool{
			{First: netip.MustParseAddr("203.0.113.64"), Last: netip.MustParseAddr("203.0.113.79")},
			{First: netip.MustParseAddr("203.0.113.20"), Last: netip.MustParseAddr("203.0.113.29")},
			{First: netip.MustParseAddr("2001:db8::1:0"), Last: netip.MustParseAddr("2001:db8::1:ffff")},
			{First: netip.MustParseAddr("203.0.113.30"), Last: netip.MustParseAddr("203.0.113.30")},
		},
		DefaultLoadBalancer: true,
		Port:                7000, SecondChanceLimit: 5000, Drain: config.Drain{Timeout: 5 * time.Second},
		Upstream: config.Upstream{
			ASN: 64512, BFD: config.BFD{Interval: 100 * time.Millisecond, Multiplier: 5}, AfterCrash: 5 * time.Minute,
			Peers: []config.Router{
				{
					Address: netip.MustParseAddr("192.168.50.1"), ASN: 64512, Password: config.NewSecret("tops3cret"),
					TTLSecurity: true, Port: 1790,
				},
				{Address: netip.MustParseAddr("fd00::1"), ASN: 64513, Port: 179},
			},
		},
		VRRP: config.VRRP{Interface: "nodes", ID: 7, Interval: time.Second},
	}
	if diff := cmp.Diff(want, c.Group, values); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
	if got, want := string(c.Group.Key()), "tops3cret-tops3cret-tops3cret-32"; got != want {
		t.Errorf("key: got %q, want %q", got, want)
	}
}

func TestIngressesReportTheAddressesOfTheGroup(t *testing.T) {
	for name, row := range map[string]struct {
		publish string
		want    []netip.Addr
	}{
		"nothing is set":       {"", addrs("203.0.113.10", "2001:db8::10")},
		"an address is set":    {"  ingress: {publish: [192.0.2.1]}\n", addrs("192.0.2.1")},
		"an empty list is set": {"  ingress: {publish: []}\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := config.Parse("f.yaml", []byte(strings.Replace(pair, "group:\n", row.publish+"group:\n", 1)))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(row.want, c.Clusters[0].Ingress.Publish, values); diff != "" {
				t.Errorf("want -, got +:\n%s", diff)
			}
		})
	}
}

func TestBFDCanBeTurnedOff(t *testing.T) {
	c, err := config.Parse("f.yaml", []byte(strings.Replace(pair, "asn: 64512,", "asn: 64512, bfd: false,", 1)))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Group.Upstream.BFD; got != (config.BFD{}) {
		t.Errorf("got %+v, want none", got)
	}
}

func TestAMistakeInAGroupNamesLineKeyAndWhatIsAllowed(t *testing.T) {
	for name, row := range map[string]struct{ from, to, want string }{
		"VRRP without an interface": {
			"group:\n", "group:\n  vrrp: {id: 7}\n",
			`f.yaml:6: group.vrrp: interface is missing; give the one in the network of the members`,
		},
		"VRRP on a strange interface": {
			"group:\n", "group:\n  vrrp: {interface: \"no}des\"}\n",
			`f.yaml:6: group.vrrp.interface: "no}des" is not allowed; allowed: up to 15 letters, digits and - _ .`,
		},
		"VRRP each millisecond": {
			"group:\n", "group:\n  vrrp: {interface: nodes, interval: 1ms}\n",
			`f.yaml:6: group.vrrp.interval: 1ms is not allowed; allowed: hundredths of a second from 100ms to 10s`,
		},
		"VRRP without an address": {
			"addresses: [203.0.113.10, \"2001:db8::10\"]",
			"addresses: [\"2001:db8::10\", \"2001:db8::11\"]\n  vrrp: {interface: nodes}",
			`f.yaml:9: group.vrrp: no service address is of the family of 192.168.50.21, the address of gate-1; VRRP needs one, or members with addresses of the other family`,
		},
		"VRRP beyond its IDs": {
			"addresses: [203.0.113.10, \"2001:db8::10\"]",
			"addresses: [203.0.113.10, 203.0.113.11, \"2001:db8::10\"]\n  vrrp: {interface: nodes, id: 255}",
			`f.yaml:9: group.vrrp.id: 255 is not allowed; the group uses the IDs 255 to 256, and 255 is the greatest`,
		},
		"a pool from back to front": {
			"group:\n", "group:\n  pools: [203.0.113.29-203.0.113.20]\n",
			`f.yaml:6: group.pools[0]: "203.0.113.29-203.0.113.20" is not allowed; allowed: a network, or its first and last address with a dash between, such as 203.0.113.64/27`,
		},
		"a pool of two families": {
			"group:\n", "group:\n  pools: [\"203.0.113.29-fd00::1\"]\n",
			`f.yaml:6: group.pools[0]: "203.0.113.29-fd00::1" is not allowed; allowed: a network, or its first and last address with a dash between, such as 203.0.113.64/27`,
		},
		"a pool with bits after its length": {
			"group:\n", "group:\n  pools: [203.0.113.65/28]\n",
			`f.yaml:6: group.pools[0]: "203.0.113.65/28" is not allowed; allowed: a network, or its first and last address with a dash between, such as 203.0.113.64/27`,
		},
		"a pool of pods": {
			"group:\n", "group:\n  pools: [172.16.3.0/24]\n",
			`f.yaml:6: group.pools[0]: 172.16.3.0-172.16.3.255 overlaps 172.16.0.0/16, a network of pods (clusters[0].pools[0])`,
		},
		"a pool of multicast": {
			"group:\n", "group:\n  pools: [224.0.0.0/4]\n",
			`f.yaml:6: group.pools[0]: 224.0.0.0-239.255.255.255 overlaps 224.0.0.0/3, whose addresses clients cannot connect to`,
		},
		"a pool with a service address": {
			"group:\n", "group:\n  pools: [203.0.113.0/28]\n",
			`f.yaml:6: group.pools[0]: 203.0.113.0-203.0.113.15 contains 203.0.113.10, which is a service address of the group (group.addresses[0]); the pools are for Services and Gateways alone`,
		},
		"a pool with a router": {
			"group:\n", "group:\n  pools: [192.168.50.0/30]\n",
			`f.yaml:6: group.pools[0]: 192.168.50.0-192.168.50.3 contains 192.168.50.1, which is the address of a router (group.upstream.peers[0]); the pools are for Services and Gateways alone`,
		},
		"a pool with a member": {
			"group:\n", "group:\n  pools: [192.168.50.22]\n",
			`f.yaml:6: group.pools[0]: 192.168.50.22-192.168.50.22 contains 192.168.50.22, which is the address of the member gate-2; the pools are for Services and Gateways alone`,
		},
		"two pools that overlap": {
			"group:\n", "group:\n  pools: [203.0.113.64/28, 203.0.113.70-203.0.113.90]\n",
			`f.yaml:6: group.pools[1]: 203.0.113.70-203.0.113.90 overlaps 203.0.113.64-203.0.113.79 (group.pools[0])`,
		},
		"addresses of one machine": {
			"group:\n", "haproxy: {addresses: [203.0.113.64/28]}\ngroup:\n",
			`f.yaml:5: haproxy.addresses: is for a single appliance; a machine that fails would take its addresses with it: give group.pools addresses that belong to no machine`,
		},
		"the default without a pool": {
			"group:\n", "group:\n  defaultLoadBalancer: true\n",
			`f.yaml:6: group.defaultLoadBalancer: is set without group.pools; give the addresses for Services`,
		},
		"a pool without routers": {
			"  upstream: {asn: 64512, peers: [{address: 192.168.50.1}, {address: \"fd00::1\"}]}\n",
			"  pools: [203.0.113.64/28]\n",
			`f.yaml:10: group.pools: is announced to nobody: give group.upstream the routers, or group.vrrp the interface in the network of the members`,
		},
		"no name": {"  name: edge\n", "", `f.yaml:5: group: name is missing`},
		"a name with capitals": {
			"edge", "Edge",
			`f.yaml:6: group.name: "Edge" is not allowed; allowed: up to 63 lower-case letters, digits and dashes`,
		},
		"no secret": {
			"  secret: " + key + "\n", "",
			`f.yaml:5: group: secret is missing; openssl rand -base64 32 makes one, the same for all members (secretFile names a file that holds it)`,
		},
		"a short secret": {
			key, base64.StdEncoding.EncodeToString([]byte("tops3cret")),
			`f.yaml:7: group.secret: is not base64 of at least 32 bytes; openssl rand -base64 32 makes one`,
		},
		"a secret that is not base64": {
			key, strings.Repeat("tops3cret-", 9),
			`f.yaml:7: group.secret: is not base64 of at least 32 bytes; openssl rand -base64 32 makes one`,
		},
		"a secret and a file": {
			"group:\n", "group:\n  secretFile: /b\n",
			`f.yaml:6: group.secretFile: secret is given too; keep one of the two`,
		},
		"no address": {
			"  addresses: [203.0.113.10, \"2001:db8::10\"]\n", "",
			`f.yaml:5: group: addresses is missing; give the addresses that clients connect to`,
		},
		"an empty list of addresses": {
			"[203.0.113.10, \"2001:db8::10\"]", "[]",
			`f.yaml:5: group: addresses is missing; give the addresses that clients connect to`,
		},
		"a multicast address": {
			"203.0.113.10", "224.0.0.1",
			`f.yaml:8: group.addresses[0]: 224.0.0.1 is not an address that clients can connect to`,
		},
		"an address in two spellings": {
			"203.0.113.10", "\"2001:DB8::10\"",
			`f.yaml:8: group.addresses[1]: 2001:db8::10 is listed twice`,
		},
		"a member's address": {
			"203.0.113.10", "192.168.50.22",
			`f.yaml:8: group.addresses[0]: 192.168.50.22 is the address of the member gate-2; a service address belongs to no machine`,
		},
		"an address of BGP": {
			"group:\n", "bgp: {listen: [203.0.113.10]}\ngroup:\n",
			`f.yaml:9: group.addresses[0]: 203.0.113.10 is in bgp.listen; a service address belongs to no machine`,
		},
		"the source of a cluster": {
			"pools: [172.16.0.0/16]", "pools: [172.16.0.0/16]\n  source: 203.0.113.10",
			`f.yaml:9: group.addresses[0]: 203.0.113.10 is clusters[0].source; a service address belongs to no machine`,
		},
		"an address of pods": {
			"203.0.113.10", "172.16.0.1",
			`f.yaml:8: group.addresses[0]: 172.16.0.1 is in 172.16.0.0/16, a network of pods (clusters[0].pools[0])`,
		},
		"no members": {
			"  members: [{name: gate-1, address: 192.168.50.21}, {name: gate-2, address: 192.168.50.22}]\n", "",
			`f.yaml:5: group: members is missing; list every appliance of the group, this one too`,
		},
		"another identity": {
			"identity: gate-1", "identity: gate-3",
			`f.yaml:9: group.members: none has the name "gate-3", which is the identity of this appliance; add it, or set identity to one of gate-1, gate-2`,
		},
		"two members of one name": {
			"name: gate-2", "name: gate-1",
			`f.yaml:9: group.members[1].name: "gate-1" is already the name of group.members[0]`,
		},
		"two members of one address": {
			"192.168.50.22", "192.168.50.21",
			`f.yaml:9: group.members[1].address: 192.168.50.21 is already the address of gate-1`,
		},
		"a member without an address": {
			"{name: gate-2, address: 192.168.50.22}", "{name: gate-2}",
			`f.yaml:9: group.members[1]: address is missing`,
		},
		"a member in a pool": {
			"192.168.50.22", "172.16.0.9",
			`f.yaml:9: group.members[1].address: 172.16.0.9 is in 172.16.0.0/16, a network of pods (clusters[0].pools[0])`,
		},
		"a member with a blank": {
			"name: gate-2", "name: gate 2",
			`f.yaml:9: group.members[1].name: "gate 2" is not allowed; allowed: up to 63 letters, digits and - _ .`,
		},
		"a member as text": {
			"{name: gate-2, address: 192.168.50.22}", "gate-2",
			`f.yaml:9: group.members[1]: a single value is given where keys are expected; allowed: name, address`,
		},
		"a drain without end": {
			"group:\n", "group:\n  drain: {timeout: 2h}\n",
			`f.yaml:6: group.drain.timeout: 2h0m0s is not allowed; allowed: 1s to 1h`,
		},
		"no AS number upstream": {
			"asn: 64512, ", "",
			`f.yaml:10: group.upstream: asn is missing; give the AS number of the routers`,
		},
		"no router": {
			", peers: [{address: 192.168.50.1}, {address: \"fd00::1\"}]", "",
			`f.yaml:10: group.upstream: peers is missing; give the routers, such as [{address: 192.168.50.1}]`,
		},
		"a router without an address": {
			"{address: 192.168.50.1}", "{port: 179}, {address: 192.168.50.1}",
			`f.yaml:10: group.upstream.peers[0]: address is missing`,
		},
		"a router twice": {
			"{address: 192.168.50.1}",
			"{address: 192.168.50.1}, {address: 192.168.50.1, port: 180}",
			`f.yaml:10: group.upstream.peers[1].address: 192.168.50.1 is already the address of group.upstream.peers[0]`,
		},
		"a router that is a member": {
			"address: 192.168.50.1}", "address: 192.168.50.22}",
			`f.yaml:10: group.upstream.peers[0].address: 192.168.50.22 is the address of the member gate-2, and not of a router`,
		},
		"a router that is the service": {
			"address: 192.168.50.1}", "address: 203.0.113.10}",
			`f.yaml:10: group.upstream.peers[0].address: 203.0.113.10 is a service address of the group, and not a router`,
		},
		"a router that is a reflector": {
			"group:\n", "  bgp: {routeReflectors: [192.168.50.1]}\ngroup:\n",
			`f.yaml:11: group.upstream.peers[0].address: 192.168.50.1 is a route reflector (clusters[0].bgp.routeReflectors), to which nothing is announced`,
		},
		"a router's key and its file": {
			"{address: 192.168.50.1}",
			"{address: 192.168.50.1, password: tops3cret, passwordFile: /b}",
			`f.yaml:10: group.upstream.peers[0].passwordFile: password is given too; keep one of the two`,
		},
		"a router's key too long": {
			"{address: 192.168.50.1}",
			"{address: 192.168.50.1, password: " + strings.Repeat("tops3cret", 9) + "}",
			`f.yaml:10: group.upstream.peers[0].password: the key has 81 bytes; allowed: 1 to 80`,
		},
		"our own AS number": {
			"asn: 64512", "asn: 65000",
			`f.yaml:10: group.upstream.asn: 65000 is bgp.asn, that of the appliance; addresses are announced to other ASes alone: give the appliance or the routers another one`,
		},
		"a router of our AS number": {
			"address: 192.168.50.1}", "address: 192.168.50.1, asn: 65000}",
			`f.yaml:10: group.upstream.peers[0].asn: 65000 is bgp.asn, that of the appliance; addresses are announced to other ASes alone`,
		},
		"no router for IPv6": {
			", {address: \"fd00::1\"}", "",
			`f.yaml:8: group.addresses[1]: 2001:db8::10 is announced to nobody: no router in group.upstream.peers has an address of its family`,
		},
		"members of two families": {
			"192.168.50.22", "\"fd00::22\"",
			`f.yaml:9: group.members[1].address: fd00::22 is not of the family of 192.168.50.21, the address of gate-1; members need addresses of one family, IPv4 or IPv6`,
		},
		"a BFD interval too short": {
			"asn: 64512", "asn: 64512, bfd: {interval: 1ms}",
			`f.yaml:10: group.upstream.bfd.interval: 1ms is not allowed; allowed: whole milliseconds from 50ms to 10s`,
		},
		"a BFD multiplier of one": {
			"asn: 64512", "asn: 64512, bfd: {multiplier: 1}",
			`f.yaml:10: group.upstream.bfd.multiplier: "1" is not allowed; allowed: a whole number from 2 to 50`,
		},
		"too long after a crash": {
			"asn: 64512", "asn: 64512, afterCrash: 2h",
			`f.yaml:10: group.upstream.afterCrash: 2h0m0s is not allowed; allowed: 0s to 1h`,
		},
		"BFD as a word": {
			"asn: 64512", "asn: 64512, bfd: true",
			`f.yaml:10: group.upstream.bfd: a single value is given where keys are expected; allowed: interval, multiplier, or false`,
		},
		"HAProxy on one address": {
			"group:\n", "haproxy: {http: [\"203.0.113.10:80\", \":81\"]}\ngroup:\n",
			`f.yaml:5: haproxy.http: 203.0.113.10:80 is a single address; in a group HAProxy listens on every address: ":80"`,
		},
		"HAProxy on IPv4 alone": {
			"group:\n", "haproxy: {https: [\"0.0.0.0:443\"]}\ngroup:\n",
			`f.yaml:5: haproxy.https: HAProxy does not listen on the family of 2001:db8::10, a service address of the group; ":443" is every address`,
		},
		"the port of HTTP": {
			"group:\n", "group:\n  port: 80\n",
			`f.yaml:6: group.port: 192.168.50.21:80 is in use by haproxy.http`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(pair, row.from, row.to, 1)
			if text == pair {
				t.Fatal("the row changes nothing")
			}
			_, err := config.Parse("f.yaml", []byte(text))
			if err == nil {
				t.Fatalf("no error; want %s", row.want)
			}
			if got := err.Error(); got != row.want {
				t.Errorf("\ngot  %s\nwant %s", got, row.want)
			}
			if strings.Contains(err.Error(), "tops3cret") {
				t.Errorf("the error shows a secret: %v", err)
			}
		})
	}
}

func TestAGroupOfMoreThanEightIsRejected(t *testing.T) {
	var more strings.Builder
	for _, n := range []string{"3", "4", "5", "6", "7", "8", "9"} {
		more.WriteString(", {name: gate-" + n + ", address: 192.168.50.3" + n + "}")
	}
	_, err := config.Parse("f.yaml", []byte(strings.Replace(pair, "50.22}]", "50.22}"+more.String()+"]", 1)))
	if want := "f.yaml:9: group.members: there are 9; allowed: at most 8"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestLoadReadsTheSecretOfTheGroup(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("kubeconfig", "apiVersion: v1\n", 0o600)
	path := write("sallyport.yaml",
		strings.NewReplacer("secret: "+key, "secretFile: group.key", "kubeconfig: /a", "kubeconfig: kubeconfig",
			"{address: 192.168.50.1}", "{address: 192.168.50.1, passwordFile: md5}").Replace(pair), 0o600)

	write("group.key", "short\n", 0o600)
	write("md5", "word\n", 0o600)
	_, err := config.Load(path)
	if want := path +
		":7: group.secretFile: is not base64 of at least 32 bytes; openssl rand -base64 32 makes one"; err == nil ||
		err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}

	write("group.key", key+"\n", 0o600)
	if err := os.Chmod(filepath.Join(dir, "group.key"), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(c.Group.Key()), "tops3cret-tops3cret-tops3cret-32"; got != want {
		t.Errorf("key: got %q, want %q", got, want)
	}
	if got, want := c.Group.Upstream.Peers[0].Password.Reveal(), "word"; got != want {
		t.Errorf("password of the router: got %q, want %q", got, want)
	}
	want := []string{path + ":7: group.secretFile: every user of this machine can read " + dir +
		"/group.key, which holds credentials; chmod 600 it"}
	if diff := cmp.Diff(want, c.Warnings); diff != "" {
		t.Errorf("warnings: want -, got +:\n%s", diff)
	}
}

func TestALimitBeyondTheShareOfThePoolsIsAWarning(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "sallyport.yaml")
	if err := os.WriteFile(filepath.Join(dir, "kubeconfig"), []byte("apiVersion: v1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for pools, row := range map[string]struct {
		limit int
		want  string
	}{
		"203.0.113.64/28": {
			5,
			"5 is more than a quarter of the IPv4 addresses of group.pools (16), which is the default: one namespace " +
				"can leave too few for the others",
		},
		"203.0.113.64/28, 203.0.113.99": {4, ""},
		"203.0.113.64-203.0.113.66":     {1, ""},
	} {
		text := strings.NewReplacer("kubeconfig: /a", "kubeconfig: "+dir+
			"/kubeconfig\n  ingress: {limits: {addresses: "+strconv.Itoa(row.limit)+"}}",
			"group:\n", "group:\n  pools: ["+pools+"]\n").Replace(pair)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := config.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		if row.want != "" {
			row.want = "clusters[0].ingress.limits.addresses: " + row.want
		}
		if got := strings.Join(c.Warnings, "\n"); !strings.HasSuffix(got, row.want) || row.want == "" && got != "" {
			t.Errorf("%s, at most %d: got %q, want %q", pools, row.limit, got, row.want)
		}
	}
}
