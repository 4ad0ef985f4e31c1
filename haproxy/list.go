package haproxy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Networks are a set of networks of clients.
type Networks struct {
	List string // name of the List with the networks; if it is empty, Of has them
	Of   []netip.Prefix
}

// A List is a file of networks. Directives look up clients in it, and several directives may share
// it. Its networks change by command, without a reload.
type List struct {
	Name string         // unique: "default_partners"
	Of   []netip.Prefix // sorted
}

const listDir = "lists/"

// here is the placeholder for the configuration directory in the text of a directive.
const here = "\x02"

// acl returns the lines of an ACL. It matches connections with an address within the networks. The
// sample, src or dst, is that address.
func (n Networks) acl(sample, name string) string {
	switch {
	case n.List != "":
		return "acl " + name + " " + sample + ",map_ip(" + here + listDir + n.List + ") -m found\n"
	case len(n.Of) == 0:
		return "acl " + name + " always_false\n"
	}
	var b strings.Builder
	const many = 30 // HAProxy takes 64 words a line
	for part := range slices.Chunk(n.Of, many) {
		b.WriteString("acl " + name + " " + sample)
		for _, p := range part {
			b.WriteString(" " + p.String())
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// when returns a rule for connections that acl matches.
func (n Networks) when(sample, name, rule string) string {
	return n.acl(sample, name) + rule + " if " + name
}

// turnAway returns a rule for clients within the networks. If others is set, the rule is for all
// other clients instead.
func (n Networks) turnAway(others bool, rule string) string {
	if others {
		return n.acl("src", "sp_allowed") + rule + " if !sp_allowed"
	}
	return n.when("src", "sp_denied", rule)
}

// rows returns the networks as rows of a map, which commands change row by row.
func (l *List) rows() []row {
	rows := make([]row, len(l.Of))
	for i, p := range l.Of {
		rows[i] = row{p.String(), "1"}
	}
	slices.SortFunc(rows, func(a, b row) int { return strings.Compare(a.key, b.key) })
	return rows
}

func (l *List) same(o *List) bool { return l.Name == o.Name && slices.Equal(l.Of, o.Of) }

func (l *List) validate() error {
	for i, p := range l.Of {
		if !p.IsValid() || p != p.Masked() || i > 0 && l.Of[i-1].Compare(p) >= 0 {
			return fmt.Errorf("list %s: %s is out of order, listed twice, or has bits set after its length: networks "+
				"must be sorted, each once", l.Name, p)
		}
	}
	return nil
}
