package move

import (
	"cmp"
	"net/netip"
	"strings"
)

// peer reads a protocol bgp, after its templates.
func (b *bird) peer(d *draft, s *stmt) {
	p := peer{at: s.at, name: s.word(2)}
	if p.name == "from" {
		p.name = ""
	}
	all := s.block
	for one, depth := s, 0; depth < maxIncludes; depth++ {
		from := templateOf(one)
		if from == "" {
			break
		}
		if one = b.templates[from]; one == nil {
			d.note("", Remark{Kind: Left, At: s.at, What: s.head(), Why: "no file has the template " + from})
			break
		}
		all = append(append([]*stmt{}, one.block...), all...)
	}
	for _, s := range all {
		b.option(d, &p, s)
	}
	p.name = cmp.Or(p.name, p.remote.String())
	b.peers = append(b.peers, p)
}

// templateOf returns the name of the template of a protocol or template.
func templateOf(s *stmt) string {
	for i := range s.words {
		if s.word(i) == "from" {
			return s.word(i + 1)
		}
	}
	return ""
}

// option reads a statement of a protocol bgp.
func (b *bird) option(d *draft, p *peer, s *stmt) {
	off := s.word(len(s.words)-1) == "off" || s.word(len(s.words)-1) == "no"
	switch s.word(0) {
	case "local":
		p.local, p.localPort, p.localAS = b.end(s, p.local, p.localPort, p.localAS)
	case "source":
		p.local, _, _ = b.end(s, p.local, "", "")
	case "neighbor":
		b.neighbor(d, p, s)
	case "password":
		if len(s.words) > 1 {
			p.password, p.passwordAt = s.words[1].text, s.at
		} else {
			for _, one := range s.block { // of BIRD 2.14 on: password { "..." ; }
				if len(one.words) > 0 {
					p.password, p.passwordAt = one.words[len(one.words)-1].text, one.at
				}
			}
		}
	case "passive":
		p.passive = !off
	case "ttl":
		p.close = !off
	case "bfd":
		p.bfd = !off
	case "ipv4", "ipv6":
		for _, s := range s.block {
			b.option(d, p, s)
		}
	case "import", "receive":
		b.imports(d, p, s)
	case "export":
		p.exports = s.word(1) != "none" && s.word(1) != "limit"
	case "hold":
		d.note("bgp.holdTime", Remark{
			Kind: Changed, At: s.at, What: s.head(), Why: "the default of 9s is kept, which finds a lost node sooner",
		})
	case "graceful":
		if n, is := unsigned(b.last(s)); is {
			d.set("bgp.retain", n+"s", s.at, s.head())
		} else {
			d.none(s.at)
		}
	case "authentication", "rr", "confederation", "allow", "interpret", "vpn4", "vpn6", "flow4", "flow6", "mpls", "vrf",
		"interface", "onlink", "table":
		d.note("", Remark{
			Kind: Left, At: s.at, What: "protocol bgp " + p.name + ": " + s.word(0),
			Why: "sessions with nodes carry plain routes of IPv4 and IPv6, and no setting here does it",
		})
	default:
		d.none(s.at)
	}
}

// end reads one end of a session: an address, a port, an AS number.
func (b *bird) end(s *stmt, addr netip.Addr, port, asn string) (netip.Addr, string, string) {
	for i := 1; i < len(s.words); i++ {
		v := b.value(s.words[i])
		next := ""
		if i+1 < len(s.words) {
			next = b.value(s.words[i+1])
		}
		n, is := unsigned(next)
		switch {
		case v == "as" && is:
			asn = n
			i++
		case v == "port" && is:
			port = n
			i++
		default:
			v, _, _ = strings.Cut(v, "%")
			if a, err := netip.ParseAddr(v); err == nil {
				addr = a.Unmap()
			}
		}
	}
	return addr, port, asn
}

func (b *bird) neighbor(d *draft, p *peer, s *stmt) {
	p.remote, p.remotePort, p.remoteAS = b.end(s, p.remote, p.remotePort, p.remoteAS)
	for i := range s.words {
		switch s.word(i) {
		case "internal":
			p.remoteAS = p.localAS
		case "range":
			d.note("", Remark{
				Kind: Changed, At: s.at, What: s.head(),
				Why: "sessions are made with each node of the cluster, whatever the range",
			})
		case "external":
			d.note("", Remark{
				Kind: ToDo, At: s.at, What: s.head(), Why: "the AS number of the nodes is read from the cluster",
			})
		}
	}
}

// imports reads which routes of a session are accepted.
func (b *bird) imports(d *draft, p *peer, s *stmt) {
	if s.word(1) != "limit" && s.word(1) != "keep" && s.word(1) != "table" {
		p.filtered = true
	}
	switch s.word(1) {
	case "all":
		p.imports.all = true
	case "none":
		p.imports = nets{}
	case "limit":
		for i := range s.words {
			if n, is := unsigned(b.value(s.words[i])); is {
				p.limit = n
				break
			}
		}
	case "table", "keep":
		d.none(s.at)
	case "where":
		c := b.condition(s.words[2:], s.at, 0)
		p.imports = c
	case "filter":
		one := s
		if !s.braced {
			if one = b.filters[s.word(2)]; one == nil {
				p.imports = nets{all: true, remarks: []Remark{{
					Kind: Left, At: s.at, What: s.head(), Why: "no file has this filter",
					Do: "Import the file that has it, too",
				}}}
				return
			}
		}
		p.imports = b.accepted(one.block, 0)
	}
}
