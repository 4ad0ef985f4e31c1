package routes

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
)

// A Selector chooses packets by where they come from and where they go, as the selector of an ip rule does
// (ip-rule(8)).
type Selector struct {
	// From is the source address of the packets. If it is zero, they may have any, and the main table leads them.
	// Otherwise the table of this address leads them, by a rule that contains them.
	From netip.Addr
	To   netip.Prefix
}

// To returns the selector of all packets to a prefix.
func To(p netip.Prefix) Selector { return Selector{To: p} }

// Compare sorts selectors of any source before those of one source, and then by prefix.
func (s Selector) Compare(other Selector) int {
	return cmp.Or(s.From.Compare(other.From), s.To.Compare(other.To))
}

// Contains reports whether the selector chooses all packets that the other one does, which has the same source.
func (s Selector) Contains(other Selector) bool {
	return s.From == other.From && s.To.Bits() <= other.To.Bits() && s.To.Contains(other.To.Addr())
}

// routable reports whether a table of the kernel can have a route for the selector.
func (s Selector) routable() bool {
	return canonical(s.To) && (!s.From.IsValid() || s.From.Is4() && s.To.Addr().Is4())
}

// String returns "172.16.171.64/26", or "172.16.171.64/26 from 192.168.51.21".
func (s Selector) String() string {
	if !s.From.IsValid() {
		return s.To.String()
	}
	return s.To.String() + from + s.From.String()
}

const from = " from "

// MarshalText returns what String returns.
func (s Selector) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText returns.
func (s *Selector) UnmarshalText(text []byte) (err error) {
	to, source, sourced := strings.Cut(string(text), from)
	var read Selector
	if read.To, err = netip.ParsePrefix(to); err == nil && sourced {
		read.From, err = netip.ParseAddr(source)
	}
	if err != nil {
		return fmt.Errorf("reading the selector %q: %w", text, err)
	}
	*s = read
	return nil
}
