package bgp

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/osrg/gobgp/v4/api"

	"sallyport/routes"
)

// A Peer is a session to keep up. The peer's address identifies it.
type Peer struct {
	Cluster     string     `json:"cluster"`
	Node        string     `json:"node"`
	Addr        netip.Addr `json:"address"`           // of the peer; its family is the address family of the session
	Local       netip.Addr `json:"local,omitzero"`    // our end; the zero Addr is any
	ASN         uint32     `json:"asn"`               // AS the peer has to open with, 1 to 4294967295
	LocalASN    uint32     `json:"localASN,omitzero"` // our AS in this session; 0 is Config.ASN
	Password    Secret     `json:"-"`                 // TCP MD5 key (RFC 2385), at most 80 bytes; empty is none
	TTLSecurity bool       `json:"ttlSecurity"`       // GTSM (RFC 5082): only packets with TTL 255 count
	// Active peers cannot connect to us: we dial. If Active is false, the peer dials.
	Active bool   `json:"active"`
	Port   uint16 `json:"port,omitzero"` // to dial; 0 is 179
	// more prefixes than this end the session; 0 is no limit, for an upstream router 1,000
	PrefixLimit uint32 `json:"prefixLimit,omitzero"`
	Upstream    bool   `json:"upstream,omitempty"` // a router to announce to, and never to learn from; we dial it
	BFD         BFD    `json:"-"`                  // for an upstream router; the zero BFD is none
}

// BFD are the settings of Bidirectional Forwarding Detection (RFC 5880, single hop). A peer that is
// silent for Multiplier intervals is lost.
type BFD struct {
	Interval   time.Duration // between two packets, 10 ms to 10 s
	Multiplier int           // 1 to 255
}

// PeerState is a peer and the state of its session.
type PeerState struct {
	Peer

	// Idle, Connect, Active, OpenSent, OpenConfirm or Established (RFC 4271, 8.2.2)
	State string    `json:"state"`
	Since time.Time `json:"since"` // when it entered State
	// the session is established, and all of its paths have come; never of an upstream router
	EndOfRIB   bool        `json:"endOfRIB"`
	Received   int         `json:"received"` // prefixes held, those of a lost session included
	LastLoss   routes.Loss `json:"lastLoss,omitzero"`
	LossCode   LossCode    `json:"lossCode,omitempty"`   // how the last session ended, for programs
	LossReason string      `json:"lossReason,omitempty"` // the same in words
	Flaps      int         `json:"flaps"`                // sessions lost since the peer was added

	// the shorter of the two that the ends offered (RFC 4271, 4.2); zero without a session
	HoldTime time.Duration `json:"holdTimeNanoseconds,omitempty"`

	BFD       string         `json:"bfd,omitempty"`       // up or down; empty without BFD
	Announced []netip.Prefix `json:"announced,omitempty"` // to this peer, while the session is established
}

// Up reports whether the session is established.
func (p PeerState) Up() bool { return p.State == established }

// A Secret is a string that is never printed: every verb of fmt, every slog
// handler and every marshaller get its presence at most.
type Secret string

func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "(set)"
}

// Format covers the verbs that do not call String, such as %#v and %x.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// LogValue keeps the secret out of logs.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText keeps the secret out of JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue returns what identifies the peer.
func (p Peer) LogValue() slog.Value {
	if p.Upstream {
		return slog.GroupValue(slog.String("upstream", p.Addr.String()), slog.Uint64("asn", uint64(p.ASN)))
	}
	return slog.GroupValue(
		slog.String("cluster", p.Cluster),
		slog.String("node", p.Node),
		slog.String("address", p.Addr.String()),
		slog.Uint64("asn", uint64(p.ASN)),
	)
}

func (p Peer) withDefaults() Peer {
	p.Addr, p.Local = p.Addr.Unmap(), p.Local.Unmap()
	if p.Port == 0 {
		p.Port = 179
	}
	if p.Upstream {
		p.Active, p.PrefixLimit = true, cmp.Or(p.PrefixLimit, upstreamLimit)
	}
	return p
}

// upstreamLimit is the number of prefixes that an upstream router may send. GoBGP keeps them all,
// although we do not use them.
const upstreamLimit = 1000

// owner names the kind of the peer, in errors about its address.
func (p Peer) owner() string {
	if p.Upstream {
		return "upstream router"
	}
	return fmt.Sprintf("node %q of cluster %q", p.Node, p.Cluster)
}

// session returns p with only the settings that the session depends on.
func (p Peer) session() Peer {
	p.Cluster, p.Node = "", ""
	return p
}

func (p Peer) check(c Config) error {
	fail := func(why string) error {
		return fmt.Errorf("bgp: peer %s (%s) %s", p.Addr, p.owner(), why)
	}
	sameFamily := func(a netip.Addr) bool { return a.Is4() == p.Addr.Is4() }
	switch {
	case !p.Addr.IsValid() || p.Addr.IsUnspecified() || p.Addr.IsMulticast():
		return fail("has no usable address")
	case p.ASN == 0:
		return fail("has no AS number")
	case p.Local.IsValid() && !sameFamily(p.Local):
		return fail("is asked for from " + p.Local.String() + ", which is of the other address family")
	case !p.Active && !slices.ContainsFunc(c.Listen, sameFamily):
		return fail("can never connect: we listen on no address of its family, and are not asked to dial it")
	case len(p.Password) > 80:
		return fail("has a TCP MD5 password of more than the 80 bytes the kernel takes")
	case p.Upstream && p.ASN == c.ASN:
		return fail(fmt.Sprintf("has our own AS number %d, and addresses are announced to other ASes alone: give "+
			"this appliance (bgp.asn) or the router another one", c.ASN))
	case p.BFD == BFD{}:
	case !p.Upstream:
		return fail("has BFD, which only upstream routers can have")
	case p.BFD.Interval < 10*time.Millisecond || p.BFD.Interval > 10*time.Second || p.BFD.Multiplier < 1 ||
		p.BFD.Multiplier > 255:
		return fail(fmt.Sprintf("has a BFD interval of %s and a multiplier of %d: want 10ms to 10s, and 1 to 255",
			p.BFD.Interval, p.BFD.Multiplier))
	}
	return nil
}

// connectRetry is the pause between two attempts to dial, in seconds: the least that
// GoBGP accepts. GoBGP shortens it by up to a quarter, at random. A restart of calico-node
// takes seconds.
const connectRetry = 2

// config converts p to GoBGP's type.
func (p Peer) config(c Config) *api.Peer {
	hold := uint64(c.HoldTime / time.Second)
	family := &api.Family{Afi: api.Family_AFI_IP, Safi: api.Family_SAFI_UNICAST}
	if p.Addr.Is6() {
		family.Afi = api.Family_AFI_IP6
	}
	a := &api.Peer{
		Conf: &api.PeerConf{
			NeighborAddress: p.Addr.String(),
			PeerAsn:         p.ASN,
			LocalAsn:        p.LocalASN,
			AuthPassword:    string(p.Password),
			// By default GoBGP silently drops a path that has our own AS in it, even
			// if it replaces a path we hold. We pass no path on, so there is no loop
			// to prevent, and we want all paths.
			AllowOwnAsn: 255,
		},
		Timers: &api.Timers{Config: &api.TimersConfig{
			HoldTime:          hold,
			KeepaliveInterval: hold / 3,
			ConnectRetry:      connectRetry,
		}},
		Transport: &api.Transport{
			PassiveMode: !p.Active,
			RemotePort:  uint32(p.Port),
		},
		AfiSafis: []*api.AfiSafi{{
			Config:       &api.AfiSafiConfig{Family: family, Enabled: true},
			PrefixLimits: &api.PrefixLimit{Family: family, MaxPrefixes: p.PrefixLimit},
		}},
	}
	if p.BFD != (BFD{}) {
		every := uint32(p.BFD.Interval.Microseconds())
		a.Bfd = &api.BfdPeerConfig{
			Enabled: true, DesiredMinimumTxInterval: every, RequiredMinimumReceive: every,
			DetectionMultiplier: uint32(p.BFD.Multiplier),
		}
	}
	if p.Local.IsValid() {
		a.Transport.LocalAddress = p.Local.String()
	}
	switch {
	case p.TTLSecurity:
		a.TtlSecurity = &api.TtlSecurity{Enabled: true, TtlMin: 255}
	case p.ASN != cmp.Or(p.LocalASN, c.ASN):
		// Without this GoBGP sends to another AS with TTL 1. Calico's sessions are
		// multihop, and there may be a router between us and a node.
		a.EbgpMultihop = &api.EbgpMultihop{Enabled: true, MultihopTtl: 64}
	}
	return a
}
