package world

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sallyport/test/lab/bird"
)

func off() *bool { return new(bool) }

// small returns a cluster of two nodes with the appliance as global peer.
func small() view {
	return view{
		nodes: []nodeView{
			{name: "worker1", addrs: []netip.Addr{
				netip.MustParseAddr("192.168.50.23"),
				netip.MustParseAddr("fd00:50::23"),
			}, labels: map[string]string{"rack": "a"}},
			{
				name: "worker2", addrs: []netip.Addr{netip.MustParseAddr("192.168.50.24")},
				labels: map[string]string{"rack": "b"},
			},
		},
		affinities: []affinitySpec{
			{CIDR: "172.16.171.64/26", Node: "worker1", State: "confirmed", Deleted: "false", Type: "host"},
			{CIDR: "172.16.189.64/26", Node: "worker2", State: "confirmed", Deleted: "false", Type: "host"},
			{CIDR: "fd00:172:16:171::40/122", Node: "worker1", State: "confirmed", Deleted: "false"},
		},
		pools:  []poolSpec{{CIDR: "172.16.0.0/16"}},
		peers:  []peerSpec{{PeerIP: "192.168.50.21", ASNumber: 65000}},
		config: configSpec{ASNumber: 65000, NodeToNodeMeshEnabled: off()},
	}
}

// reflect makes a node a route reflector: all nodes peer with it, and it is the only one that
// peers with the appliance.
func (v *view) reflect(node int) {
	v.nodes[node].cluster = netip.MustParseAddr("244.0.0.1")
	v.nodes[node].labels["reflector"] = ""
	v.peers[0].NodeSelector = "has(reflector)"
	v.peers = append(v.peers, peerSpec{NodeSelector: "all()", PeerSelector: "has(reflector)"})
}

func TestABIRDIsToldWhatTheObjectsSay(t *testing.T) {
	block := bird.Block{Prefix: netip.MustParsePrefix("172.16.171.64/26"), Confirmed: true}
	appliance := bird.Peer{Name: "Global_192_168_50_21", Addr: netip.MustParseAddr("192.168.50.21"), AS: 65000}
	plain := bird.Config{
		Node: "worker1", Version: 1, AS: 65000,
		RouterID: netip.MustParseAddr("192.168.50.23"), Source: netip.MustParseAddr("192.168.50.23"),
		Blocks: []bird.Block{block},
		Pools:  []bird.Pool{{Prefix: netip.MustParsePrefix("172.16.0.0/16")}},
		Peers:  []bird.Peer{appliance},
	}
	for name, test := range map[string]struct {
		objects func(*view)
		want    func(*bird.Config)
	}{
		"a confirmed block and a global peer": {
			objects: func(*view) {}, want: func(*bird.Config) {},
		},
		"a block that is not the node's yet": {
			objects: func(v *view) { v.affinities[0].State = "pending" },
			want:    func(c *bird.Config) { c.Blocks = nil },
		},
		"a block that is about to go": {
			objects: func(v *view) { v.affinities[0].State = "pendingDeletion" },
			want:    func(c *bird.Config) { c.Blocks = []bird.Block{{Prefix: block.Prefix}} },
		},
		"a block that is gone": {
			objects: func(v *view) { v.affinities[0].Deleted = "true" },
			want:    func(c *bird.Config) { c.Blocks = nil },
		},
		"no AS but Calico's own": {
			objects: func(v *view) { v.config.ASNumber = 0 },
			want:    func(c *bird.Config) { c.AS = 64512 },
		},
		"an AS of the node's own": {
			objects: func(v *view) { v.nodes[0].asn = "65123" },
			want:    func(c *bird.Config) { c.AS = 65123 },
		},
		"a node without an address has no sessions": {
			objects: func(v *view) { v.nodes[0].addrs = nil },
			want:    func(c *bird.Config) { c.Peers = nil },
		},
		"a peer for another rack": {
			objects: func(v *view) { v.peers[0].NodeSelector = "rack == 'b'" },
			want:    func(c *bird.Config) { c.Peers = nil },
		},
		"a peer for this rack": {
			objects: func(v *view) { v.peers[0].NodeSelector = "has(rack) && rack != 'b'" },
			want:    func(c *bird.Config) { c.Peers[0].Name = "Node_192_168_50_21" },
		},
		"a global peer beats one of the node": {
			objects: func(v *view) {
				v.peers = append([]peerSpec{{Node: "worker1", PeerIP: "192.168.50.21", ASNumber: 65099}}, v.peers...)
			},
			want: func(*bird.Config) {},
		},
		"all that a peer may ask for": {
			objects: func(v *view) {
				p := &v.peers[0]
				p.PeerIP, p.LocalASNumber, p.SourceAddress, p.TTLSecurity = "192.168.50.21:1179", 65001, "None", 1
				p.MaxRestartTime, p.KeepaliveTime, p.NextHopMode, p.AllowOwnAS = "30s", "20s", "Self", 1
				p.Password.SecretKeyRef.Name, p.Password.SecretKeyRef.Key = "bgp", "password"
				v.passwords = map[string]map[string][]byte{"bgp": {"password": []byte("sesame")}}
				p.Filters = []string{"appliance"}
				v.filters = map[string]filterSpec{"appliance": {
					ImportV4: []ruleSpec{{Action: "Reject"}},
					ExportV4: []ruleSpec{
						{Action: "Reject", Source: "RemotePeers"},
						{Action: "Accept", CIDR: "172.16.0.0/16", MatchOperator: "In"},
					},
				}}
			},
			want: func(c *bird.Config) {
				c.Peers = []bird.Peer{{
					Name: "Global_192_168_50_21_port_1179", Addr: appliance.Addr, Port: 1179, AS: 65000, LocalAS: 65001,
					NoSource: true, TTLHops: 1,
					Restart: 30 * time.Second, Keepalive: 20 * time.Second, NextHop: bird.NextHopSelf, AllowOwnAS: 1,
					Password: "sesame",
					Import:   []bird.Rule{{}},
					Export: []bird.Rule{
						{FromPeers: true},
						{Prefix: netip.MustParsePrefix("172.16.0.0/16"), Match: bird.In, Accept: true},
					},
				}}
			},
		},
		"the mesh": {
			objects: func(v *view) { v.config.NodeToNodeMeshEnabled = nil },
			want: func(c *bird.Config) {
				c.Peers = append(c.Peers,
					bird.Peer{
						Name: "Mesh_192_168_50_24", Addr: netip.MustParseAddr("192.168.50.24"), AS: 65000,
						Mesh: true, Passive: true,
					})
			},
		},
		"in the mesh the higher address opens, compared as text": {
			objects: func(v *view) {
				v.config.NodeToNodeMeshEnabled = nil
				v.nodes[1].addrs[0] = netip.MustParseAddr("192.168.50.100")
			},
			want: func(c *bird.Config) {
				c.Peers = append(c.Peers,
					bird.Peer{
						Name: "Mesh_192_168_50_100", Addr: netip.MustParseAddr("192.168.50.100"), AS: 65000,
						Mesh: true,
					})
			},
		},
		"a global peer that is a node opens, if its address is higher": {
			objects: func(v *view) { v.peers[0].PeerIP = "192.168.50.24" },
			want: func(c *bird.Config) {
				c.Peers = []bird.Peer{{
					Name: "Global_192_168_50_24", Addr: netip.MustParseAddr("192.168.50.24"),
					AS: 65000, Passive: true,
				}}
			},
		},
		"a global peer that is this node": {
			objects: func(v *view) { v.peers[0].PeerIP = "192.168.50.23" },
			want: func(c *bird.Config) {
				c.Peers = []bird.Peer{{
					Name: "Node_192_168_50_24", Addr: netip.MustParseAddr("192.168.50.24"),
					AS: 65000,
				}}
			},
		},
		"a global peer chosen by its labels": {
			objects: func(v *view) { v.peers[0] = peerSpec{PeerSelector: "rack == 'b'"} },
			want: func(c *bird.Config) {
				c.Peers = []bird.Peer{{
					Name: "Global_192_168_50_24", Addr: netip.MustParseAddr("192.168.50.24"),
					AS: 65000,
				}}
			},
		},
		"a peer that is a reflector": {
			objects: func(v *view) { v.reflect(1) },
			want: func(c *bird.Config) {
				c.Peers[0] = bird.Peer{
					Name: "Node_192_168_50_24", Addr: netip.MustParseAddr("192.168.50.24"),
					AS: 65000,
				}
			},
		},
		"a reflector, whose neighbours are clients": {
			objects: func(v *view) { v.reflect(0) },
			want: func(c *bird.Config) {
				id := netip.MustParseAddr("244.0.0.1")
				c.Peers[0].Name, c.Peers[0].Client = "Node_192_168_50_21", id
				c.Peers = append(c.Peers,
					bird.Peer{
						Name: "Node_192_168_50_24", Addr: netip.MustParseAddr("192.168.50.24"), AS: 65000,
						Client: id,
					})
			},
		},
		"podCIDRs in the place of blocks": {
			objects: func(v *view) {
				v.hostLocal, v.nodes[0].podCIDRs, v.nodes[1].podCIDRs = true,
					[]string{"172.16.7.0/24", "fd00:172:16:7::/120"}, []string{"172.16.8.0/24"}
			},
			want: func(c *bird.Config) {
				c.Blocks = []bird.Block{{Prefix: netip.MustParsePrefix("172.16.7.0/24"), Confirmed: true}}
			},
		},
		"Services": {
			objects: func(v *view) { v.config.ServiceClusterIPs = []struct{ CIDR string }{{"10.96.0.0/16"}} },
			want:    func(c *bird.Config) { c.Services = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")} },
		},
	} {
		t.Run(name, func(t *testing.T) {
			v, want := small(), plain
			want.Peers = []bird.Peer{appliance}
			test.objects(&v)
			test.want(&want)
			got, err := v.compose("worker1", 1, plain.RouterID, plain.Source)
			if err != nil {
				t.Fatal(err)
			}
			same := cmp.Options{
				cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
				cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
				cmpopts.EquateEmpty(),
			}
			if diff := cmp.Diff(want, got, same); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if _, err := bird.Render(got); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestABrokenPeerDoesNotStopTheOthers(t *testing.T) {
	v := small()
	v.config.PrefixAdvertisements = append(v.config.PrefixAdvertisements, struct {
		CIDR        string   `json:"cidr"`
		Communities []string `json:"communities"`
	}{"172.16.0.0/16", []string{"no number"}})
	v.peers = append([]peerSpec{{PeerIP: "nobody"}, {PeerIP: "192.168.50.31", NodeSelector: "rack in {'a'}"}},
		v.peers...)
	addr := netip.MustParseAddr("192.168.50.23")
	c, err := v.compose("worker1", 1, addr, addr)
	if err == nil {
		t.Error("want an error that names the broken peers, got none")
	}
	if want, got := 1, len(c.Peers); want != got {
		t.Errorf("want %d peer, got %d", want, got)
	}
}

func TestPeerAddressesAreReadInEachForm(t *testing.T) {
	for text, want := range map[string]netip.AddrPort{
		"192.168.50.21":      netip.AddrPortFrom(netip.MustParseAddr("192.168.50.21"), 0),
		"192.168.50.21:1179": netip.MustParseAddrPort("192.168.50.21:1179"),
		"fd00:50::21":        netip.AddrPortFrom(netip.MustParseAddr("fd00:50::21"), 0),
		"[fd00:50::21]:1179": netip.MustParseAddrPort("[fd00:50::21]:1179"),
	} {
		addr, port, err := peerAddr(text)
		if got := netip.AddrPortFrom(addr, port); err != nil || got != want {
			t.Errorf("%s: want %s, got %s, %v", text, want, got, err)
		}
	}
}

func TestSessionsAreReadFromBIRD(t *testing.T) {
	out := `BIRD 1.6.8 ready.
name     proto    table    state  since       info
kernel1  Kernel   master   up     03:36:53
Global_192_168_50_21 BGP      master   up     03:36:53    Established
Mesh_192_168_50_22 BGP      master   start  03:36:53    Active        Socket: Connection refused
`
	want := []Session{{"Global_192_168_50_21", "Established"}, {"Mesh_192_168_50_22", "Active"}}
	if diff := cmp.Diff(want, parseSessions(out)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
