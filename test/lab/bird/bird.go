// Package bird writes the configuration of the BIRD on one node, so that a
// neighbour receives the same routes as from calico-node.
//
// It owns the text and nothing else: it starts no process and reads no API. It alone
// knows which routes Calico's BIRD announces to which neighbour, and the syntax of
// BIRD 1.6 and 2 for that. It promises that the same value always gives the same
// text, and that BIRD accepts the text. Its limit: it knows no IPIP, and no
// routes of single Services.
package bird

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"text/template"
	"time"
)

// Config is the whole configuration of one BIRD. One daemon speaks one family, as with Calico: a
// node with both has two.
type Config struct {
	Node     string
	Version  int        // 1 (the 1.6 series; zero means 1 too) or 2
	RouterID netip.Addr // IPv4, in the daemon of IPv6 too
	Source   netip.Addr // address of the node, and of every session; its family is the daemon's
	AS       uint32
	Port     uint16 // where it listens; zero means 179
	Blocks   []Block
	Pools    []Pool
	Services []netip.Prefix // ranges of addresses of Services that it announces
	Foreign  []netip.Prefix // those that others announce; like its own, they stay out of the kernel
	Reflects []netip.Prefix // those from which a reflector passes on every route
	Ignored  []string       // patterns of interfaces whose networks it does not learn
	Tags     []Tag
	Peers    []Peer
}

// Tag is a set of communities that a node adds to the routes in a prefix.
type Tag struct {
	Prefix      netip.Prefix
	Communities []Community
}

// Community is a community of two numbers (RFC 1997) or three (RFC 8092).
type Community []uint32

// Block is one block of the node.
type Block struct {
	Prefix    netip.Prefix
	Confirmed bool // false: the block is about to go; it has its route but no rule of its own
}

// Pool is an IPPool.
type Pool struct {
	Prefix   netip.Prefix
	NoExport bool
	VXLAN    bool // Felix makes the routes to the pool's blocks
}

// Peer is one neighbour.
type Peer struct {
	Name      string // of the protocol: Global_…, Node_… or Mesh_… and the address
	Addr      netip.Addr
	Port      uint16 // zero means 179
	AS        uint32
	LocalAS   uint32 // zero means the node's
	Mesh      bool   // a node of the mesh; its AS counts as the node's
	Passive   bool
	NoSource  bool          // let the kernel choose the source address
	Password  string        // TCP MD5 (RFC 2385); empty means none
	TTLHops   uint8         // TTL security (RFC 5082): neighbours further away are not heard; zero means off
	Restart   time.Duration // graceful restart time (RFC 4724); zero means BIRD's 120 s
	Keepalive time.Duration // zero means a third of the hold time
	NextHop   NextHop
	// routes are reflected to it and from it, by the cluster of this id (RFC 4456); zero means they are not
	Client     netip.Addr
	AllowOwnAS int        // how often the node's AS may be in a path it accepts
	Gateway    netip.Addr // on the way to it; the zero value needs none
	Export     []Rule
	Import     []Rule
}

// NextHop is the change of the next hop in routes learned by BGP.
type NextHop string

// The values of NextHop. The empty one leaves BIRD its default.
const (
	NextHopAuto NextHop = ""
	NextHopSelf NextHop = "self"
	NextHopKeep NextHop = "keep"
)

// Rule is one rule of a BGPFilter. A condition that is zero always matches.
type Rule struct {
	Prefix    netip.Prefix
	Match     Match
	Min, Max  int  // prefix lengths, with In and NotIn; zero means no bound
	FromPeers bool // only routes that came by BGP
	Interface string
	Accept    bool
}

// Match relates a route to the prefix of a rule.
type Match string

// The relations of a BGPFilter.
const (
	Equal    Match = "Equal"
	NotEqual Match = "NotEqual"
	In       Match = "In"
	NotIn    Match = "NotIn"
)

// Render returns the configuration as text, or an error if BIRD cannot express it.
func Render(c Config) ([]byte, error) {
	c.Version = max(c.Version, 1)
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("BIRD of node %s: %w", c.Node, err)
	}
	// The order of the API's lists must not change the text.
	c.Blocks = slices.SortedFunc(slices.Values(c.Blocks), func(a, b Block) int { return a.Prefix.Compare(b.Prefix) })
	c.Pools = slices.SortedFunc(slices.Values(c.Pools), func(a, b Pool) int { return a.Prefix.Compare(b.Prefix) })
	for _, list := range []*[]netip.Prefix{&c.Services, &c.Foreign, &c.Reflects} {
		*list = slices.Compact(slices.SortedFunc(slices.Values(*list), netip.Prefix.Compare))
	}
	c.Peers = slices.SortedFunc(slices.Values(c.Peers), func(a, b Peer) int { return cmp.Compare(a.Name, b.Name) })
	var b strings.Builder
	if err := text.ExecuteTemplate(&b, fmt.Sprintf("bird%d", c.Version), c); err != nil {
		return nil, fmt.Errorf("BIRD of node %s: %w", c.Node, err)
	}
	return []byte(b.String()), nil
}

// check rejects values that would break the configuration or change its meaning: many come from
// objects that anybody may write.
func (c Config) check() error {
	if c.Version > 2 {
		return fmt.Errorf("version %d: want 1 or 2", c.Version)
	}
	if !c.RouterID.Is4() || !c.Source.IsValid() || c.AS == 0 {
		return errors.New("want a router id, a source address and an AS")
	}
	var prefixes []netip.Prefix
	for _, b := range c.Blocks {
		prefixes = append(prefixes, b.Prefix)
	}
	for _, p := range c.Pools {
		prefixes = append(prefixes, p.Prefix)
	}
	prefixes = slices.Concat(prefixes, c.Services, c.Foreign, c.Reflects)
	for _, t := range c.Tags {
		prefixes = append(prefixes, t.Prefix)
		for _, numbers := range t.Communities {
			if len(numbers) != 2 && len(numbers) != 3 {
				return fmt.Errorf("community %v: want two numbers or three", numbers)
			}
		}
	}
	for _, name := range c.Ignored {
		if strings.ContainsAny(name, "\"\n\r\x00") {
			return fmt.Errorf("interface %q cannot be quoted", name)
		}
	}
	names := map[string]bool{}
	for _, p := range c.Peers {
		if p.Addr.Is4() != c.Source.Is4() || p.AS == 0 {
			return fmt.Errorf("peer %s: want an address of the daemon's family and an AS", p.Name)
		}
		if p.Gateway.IsValid() && p.Gateway.Is4() != c.Source.Is4() {
			return fmt.Errorf("peer %s: want a gateway of the daemon's family", p.Name)
		}
		if p.Client.IsValid() && (!p.Client.Is4() || !c.SameAS(p)) {
			return fmt.Errorf("peer %s: want a reflector's client in the same AS, and an id like an IPv4 address",
				p.Name)
		}
		if !symbol(p.Name) || names[p.Name] {
			return fmt.Errorf("peer %q: not a name, or there twice", p.Name)
		}
		names[p.Name] = true
		if strings.ContainsAny(p.Password, "\"\n\r\x00") {
			return fmt.Errorf("peer %s: its password cannot be quoted", p.Name)
		}
		for _, r := range slices.Concat(p.Export, p.Import) {
			if r.Prefix.IsValid() {
				prefixes = append(prefixes, r.Prefix)
			}
			if strings.ContainsAny(r.Interface, "\"\n\r\x00") {
				return fmt.Errorf("peer %s: interface %q cannot be quoted", p.Name, r.Interface)
			}
		}
	}
	for _, p := range prefixes {
		if !p.IsValid() || p.Addr().Is4() != c.Source.Is4() || p != p.Masked() {
			return fmt.Errorf("%s: want a whole prefix of the daemon's family", p)
		}
	}
	return nil
}

func symbol(s string) bool {
	letter := func(r rune) bool { return r == '_' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' }
	for i, r := range s {
		if !letter(r) && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}

// Channel returns BIRD 2's name of the daemon's family.
func (c Config) Channel() string {
	if c.Source.Is4() {
		return "ipv4"
	}
	return "ipv6"
}

// Confirmed lists the blocks that have a rule of their own.
func (c Config) Confirmed() []netip.Prefix {
	var prefixes []netip.Prefix
	for _, b := range c.Blocks {
		if b.Confirmed {
			prefixes = append(prefixes, b.Prefix)
		}
	}
	return prefixes
}

// Blackholes lists the prefixes with a static blackhole route: blocks of more than one address,
// and the ranges of Services.
func (c Config) Blackholes() []netip.Prefix {
	var prefixes []netip.Prefix
	for _, b := range c.Blocks {
		if !b.Prefix.IsSingleIP() {
			prefixes = append(prefixes, b.Prefix)
		}
	}
	return slices.Concat(prefixes, c.Services)
}

// Exported lists the pools that are announced, or those that are not.
func (c Config) Exported(yes bool) []netip.Prefix {
	var prefixes []netip.Prefix
	for _, p := range c.Pools {
		if p.NoExport != yes {
			prefixes = append(prefixes, p.Prefix)
		}
	}
	return prefixes
}

// OutsideKernel lists the prefixes whose routes a node does not put into its kernel.
func (c Config) OutsideKernel() []netip.Prefix {
	prefixes := slices.Concat(c.Services, c.Foreign)
	for _, p := range c.Pools {
		if p.VXLAN {
			prefixes = append(prefixes, p.Prefix)
		}
	}
	return prefixes
}

// Add returns the statement that adds the community to a route.
func (numbers Community) Add() string {
	list := "bgp_community"
	if len(numbers) == 3 {
		list = "bgp_large_community"
	}
	words := make([]string, len(numbers))
	for i, n := range numbers {
		words[i] = fmt.Sprint(n)
	}
	return fmt.Sprintf("%s.add((%s));", list, strings.Join(words, ", "))
}

// MyAS returns the node's AS number in its session with a peer.
func (c Config) MyAS(p Peer) uint32 {
	if p.LocalAS != 0 {
		return p.LocalAS
	}
	return c.AS
}

// SameAS reports whether a neighbour receives no routes of tunnels: one in the node's AS, and every
// node of the mesh.
func (c Config) SameAS(p Peer) bool { return p.Mesh || p.AS == c.MyAS(p) }

// Seconds formats a duration for BIRD.
func Seconds(d time.Duration) int { return int(d / time.Second) }

// within returns a condition: the route equals one of the prefixes or lies below one.
func within(prefixes []netip.Prefix) string {
	words := make([]string, len(prefixes))
	for i, p := range prefixes {
		words[i] = p.String() + "+"
	}
	return "net ~ [ " + strings.Join(words, ", ") + " ]"
}

// String returns the rule as a statement of BIRD.
func (r Rule) String() string {
	var when []string
	if r.Prefix.IsValid() {
		set := r.Prefix.String() + "+"
		if r.Min != 0 || r.Max != 0 {
			low, high := max(r.Min, r.Prefix.Bits()), r.Max
			if high == 0 {
				high = r.Prefix.Addr().BitLen()
			}
			set = fmt.Sprintf("%s{%d,%d}", r.Prefix, low, high)
		}
		when = append(when, map[Match]string{
			Equal:    "net = " + r.Prefix.String(),
			NotEqual: "net != " + r.Prefix.String(),
			In:       "net ~ [ " + set + " ]",
			NotIn:    "!(net ~ [ " + set + " ])",
		}[cmp.Or(r.Match, In)])
	}
	if r.FromPeers {
		when = append(when, "source = RTS_BGP")
	}
	if r.Interface != "" {
		when = append(when, fmt.Sprintf("defined(ifname) && ifname ~ \"%s\"", r.Interface))
	}
	verdict := "reject;"
	if r.Accept {
		verdict = "accept;"
	}
	if len(when) == 0 {
		return verdict
	}
	return "if " + strings.Join(when, " && ") + " then " + verdict
}

var text = template.Must(template.New("").Funcs(template.FuncMap{"within": within, "seconds": Seconds}).Parse(`
{{- define "head" -}}
# The {{.Channel}} BIRD of node {{.Node}}, as calico-node would set it up. Written by the lab.
log stderr { info, remote, warning, error, auth, fatal, bug };
router id {{.RouterID}};
{{- if and (eq .Version 1) .Port}}
listen bgp port {{.Port}};
{{- end}}
{{end}}

{{- define "filters"}}
function to_neighbour(bool same_as) {
{{- with .Exported false}}
  if {{within .}} then reject;
{{- end}}
  if same_as && defined(ifname) then {
    if ifname ~ "*.cali" || ifname ~ "*.calico" then reject;
  }
  if defined(ifname) then {
    if ifname ~ "bpf*.cali" then reject;
  }
{{- range .Tags}}
  if net ~ [ {{.Prefix}}+ ] then {
{{- range .Communities}}
    {{.Add}}
{{- end}}
  }
{{- end}}
{{- range .Confirmed}}
  if net = {{.}} then accept;
{{- end}}
{{- with .Confirmed}}
  if {{within .}} then reject;
{{- end}}
{{- with .Services}}
  if {{within .}} then accept;
{{- end}}
{{- with .Reflects}}
  if {{within .}} then accept;
{{- end}}
{{- with .Exported true}}
  if {{within .}} then accept;
{{- end}}
  reject;
}

filter to_kernel {
{{- with .OutsideKernel}}
  if {{within .}} then reject;
{{- end}}
  accept;
}
{{range .Peers}}
filter to_{{.Name}} {
{{- range .Export}}
  {{.}}
{{- end}}
  to_neighbour({{$.SameAS .}});
}
filter from_{{.Name}} {
{{- range .Import}}
  {{.}}
{{- end}}
  accept;
}
{{end}}
{{- end}}

{{- define "session"}}
{{- if not .Mesh}}
  multihop{{with .TTLHops}} {{.}}{{end}};
  ttl security {{if .TTLHops}}on{{else}}off{{end}};
{{- end}}
  connect delay time 2; connect retry time 5; error wait time 5,30;
{{- if .Passive}}
  passive on;
{{- end}}
{{- with .Password}}
  password "{{.}}";
{{- end}}
{{- if .Client.IsValid}}
  rr client; rr cluster id {{.Client}};
{{- end}}
{{- with .Restart}}
  graceful restart time {{seconds .}};
{{- end}}
{{- with .Keepalive}}
  keepalive time {{seconds .}};
{{- end}}
{{- with .AllowOwnAS}}
  allow local as {{.}};
{{- end}}
{{- end}}

{{- define "bird1"}}{{template "head" .}}{{template "filters" .}}
protocol kernel {
  learn; persist; scan time 2; graceful restart; merge paths on;
  import all;
  export filter to_kernel;
}
protocol device { scan time 2; }
protocol direct { interface {{range .Ignored}}-"{{.}}", {{end}}-"cali*", -"kube-ipvs*", "*"; }
protocol static {
{{- range .Blackholes}}
  route {{.}} blackhole;
{{- end}}
{{- range .Peers}}
{{- if .Gateway.IsValid}}
  route {{.Addr}}/{{.Addr.BitLen}} via {{.Gateway}};
{{- end}}
{{- end}}
}
{{range .Peers}}
protocol bgp {{.Name}} {
  local as {{$.MyAS .}};
{{- if not .NoSource}}
  source address {{$.Source}};
{{- end}}
  neighbor {{.Addr}}{{with .Port}} port {{.}}{{end}} as {{.AS}};
{{- template "session" .}}
  gateway recursive; add paths on; graceful restart;
{{- with .NextHop}}
  next hop {{.}};
{{- end}}
  import filter from_{{.Name}};
  export filter to_{{.Name}};
}
{{end}}{{end}}

{{- define "bird2"}}{{template "head" .}}
graceful restart wait 240;
{{- template "filters" .}}
protocol kernel {
  learn; persist; scan time 2; graceful restart; merge paths on;
  {{.Channel}} { import all; export filter to_kernel; };
}
protocol device { scan time 2; }
protocol direct { {{.Channel}}; interface {{range .Ignored}}-"{{.}}", {{end}}-"cali*", -"kube-ipvs*", "*"; }
protocol static {
  {{.Channel}};
{{- range .Blackholes}}
  route {{.}} blackhole;
{{- end}}
{{- range .Peers}}
{{- if .Gateway.IsValid}}
  route {{.Addr}}/{{.Addr.BitLen}} via {{.Gateway}};
{{- end}}
{{- end}}
}
{{range .Peers}}
protocol bgp {{.Name}} {
  local{{if not .NoSource}} {{$.Source}}{{end}}{{with $.Port}} port {{.}}{{end}} as {{$.MyAS .}};
  neighbor {{.Addr}}{{with .Port}} port {{.}}{{end}} as {{.AS}};
{{- template "session" .}}
  hold time 240; graceful restart on;
  {{$.Channel}} {
    gateway recursive; add paths on;
{{- with .NextHop}}
    next hop {{.}};
{{- end}}
    import filter from_{{.Name}};
    export filter to_{{.Name}};
  };
}
{{end}}{{end}}`))
