package move

import (
	"net/netip"
	"slices"
	"strings"
)

// A network is a prefix that a filter names. It is exact if the filter accepts that prefix alone, and no
// prefix within it.
type network struct {
	netip.Prefix
	exact bool
}

// nets are the routes that a filter accepts, or more: a filter is never read as narrower than it is.
type nets struct {
	all     bool // the filter does not bound them
	list    []network
	remarks []Remark
}

func (n nets) any() bool { return n.all || len(n.list) > 0 }

// or returns the routes of both.
func (n nets) or(o nets) nets {
	return nets{
		all: n.all || o.all, list: slices.Concat(n.list, o.list), remarks: slices.Concat(n.remarks, o.remarks),
	}
}

// and returns at least the routes that are in both.
func (n nets) and(o nets) nets {
	list := n.list
	if n.all {
		list = o.list
	}
	return nets{all: n.all && o.all, list: list, remarks: slices.Concat(n.remarks, o.remarks)}
}

// other returns the nets of a condition or statement that is about more than prefixes.
func other(at Place, what, why string) nets {
	return nets{all: true, remarks: []Remark{{
		Kind: Left, At: at, What: what, Why: why,
		Do: "Check that the IPPools and the BGPPeers of the cluster bound the routes as you need it",
	}}}
}

// maxWork bounds the conditions of all filters. A function may call itself.
const maxWork = 10000

const notPrefix = "a filter is read only as far as it compares net with prefixes"

// accepted returns the routes that a block of a filter accepts.
func (b *bird) accepted(all []*stmt, depth int) (n nets) {
	rejects := false
	for _, s := range all {
		one, end := b.filterLine(s, depth)
		if one.any() && rejects {
			one.remarks = append(one.remarks, Remark{
				Kind: Widened, At: s.at, What: s.head(), Why: "prefixes that were rejected before are not subtracted",
			})
		}
		rejects = rejects || !one.any() && s.word(0) == "if"
		n = n.or(one)
		if end {
			break
		}
	}
	return n
}

// filterLine returns the routes that a statement of a filter accepts, and whether it is the last one that
// counts.
func (b *bird) filterLine(s *stmt, depth int) (nets, bool) {
	words := s.words
	if len(words) > 0 && words[0].is("else") {
		words = words[1:]
	}
	if len(words) == 0 {
		return b.accepted(s.block, depth), false
	}
	one := len(words) == len(s.words) // without else
	switch words[0].text {
	case "accept":
		return nets{all: true}, one
	case "reject":
		return nets{}, one
	case "return":
		if len(words) == 2 && words[1].is("true") {
			return nets{all: true}, one
		}
		return b.condition(words[1:], s.at, depth), one
	case "print", "printn":
		return nets{}, false
	case "if":
		then := slices.IndexFunc(words, func(t token) bool { return t.is("then") })
		if then < 0 || depth > maxIncludes {
			return other(s.at, s.head(), notPrefix), false
		}
		inner, _ := b.filterLine(&stmt{words: words[then+1:], block: s.block, braced: s.braced, at: s.at}, depth+1)
		if !inner.any() {
			return nets{remarks: inner.remarks}, false
		}
		return inner.and(b.condition(words[1:then], s.at, depth)), false
	}
	if len(words) > 1 && words[1].is("=") {
		return nets{remarks: []Remark{{
			Kind: Left, At: s.at, What: s.head(), Why: "attributes of routes are not set",
		}}}, false
	}
	return other(s.at, s.head(), notPrefix), false
}

// condition returns the routes that meet a condition.
func (b *bird) condition(words []token, at Place, depth int) nets {
	if b.work++; b.work > maxWork || depth > maxIncludes {
		return other(at, "", "the filter has too many conditions")
	}
	words = unwrapped(words)
	if parts := split(words, "|"); len(parts) > 1 {
		n := nets{}
		for _, part := range parts {
			n = n.or(b.condition(part, at, depth+1))
		}
		return n
	}
	if parts := split(words, "&"); len(parts) > 1 {
		n := nets{all: true}
		for _, part := range parts {
			n = n.and(b.condition(part, at, depth+1))
		}
		for i := range n.remarks {
			if r := &n.remarks[i]; !n.all && r.Kind == Left { // prefixes bound the routes in its place
				r.Kind, r.Why = Widened, "the other conditions are kept, and this one is left out"
			}
		}
		return n
	}
	switch {
	case len(words) == 1 && words[0].is("true"):
		return nets{all: true}
	case len(words) == 1 && words[0].is("false"):
		return nets{}
	case len(words) > 2 && b.isNet(words[0]) && words[1].is("="):
		return b.set(words[2:], at, true)
	case len(words) > 2 && b.isNet(words[0]) && words[1].is("~"):
		return b.set(words[2:], at, false)
	case len(words) > 2 && words[1].is("(") && b.functions[words[0].text] != nil:
		return b.accepted(b.functions[words[0].text].block, depth+1)
	}
	text := make([]string, 0, 6)
	for _, t := range words[:min(6, len(words))] {
		if !t.quote {
			text = append(text, t.text)
		}
	}
	return other(at, strings.Join(text, " "), notPrefix)
}

// isNet reports whether a word is the prefix of the route, or may be: the name of an argument of a
// function.
func (b *bird) isNet(t token) bool {
	return t.is("net") || t.is("net.ip") || !t.quote && len(t.text) == 1 && 'a' <= t.text[0] && t.text[0] <= 'z'
}

// unwrapped returns words without parentheses around all of them.
func unwrapped(words []token) []token {
	for len(words) > 1 && words[0].is("(") {
		depth, end := 0, -1
		for i, t := range words {
			if t.is("(") {
				depth++
			} else if t.is(")") {
				if depth--; depth == 0 {
					end = i
					break
				}
			}
		}
		if end != len(words)-1 {
			break
		}
		words = words[1:end]
	}
	return words
}

// split returns the parts between operators of two signs, || or &&, outside of parentheses.
func split(words []token, sign string) (parts [][]token) {
	depth, first := 0, 0
	for i := 0; i < len(words); i++ {
		switch t := words[i]; {
		case t.is("(") || t.is("[") || t.is("{"):
			depth++
		case t.is(")") || t.is("]") || t.is("}"):
			depth--
		case depth == 0 && t.is(sign) && i+1 < len(words) && words[i+1].is(sign):
			parts = append(parts, words[first:i])
			i++
			first = i + 1
		}
	}
	return append(parts, words[first:])
}

// set returns the prefixes of a set, or of a single prefix.
func (b *bird) set(words []token, at Place, exact bool) nets {
	for range maxIncludes {
		meant, is := b.defines[words[0].text]
		if len(words) != 1 || !is || len(meant) == 0 {
			break
		}
		words = meant
	}
	if words[0].is("[") {
		exact = true
		words = slices.DeleteFunc(slices.Clone(words), func(t token) bool { return t.is("[") || t.is("]") })
	}
	n := nets{}
	for len(words) > 0 {
		text := b.value(words[0])
		p, err := netip.ParsePrefix(strings.TrimSuffix(text, "-"))
		if err != nil {
			return other(at, text, notPrefix)
		}
		one := network{p.Masked(), exact && !strings.HasSuffix(text, "-")}
		words = words[1:]
		switch {
		case len(words) > 0 && words[0].is("+"):
			one.exact = false
			words = words[1:]
		case len(words) > 0 && words[0].is("{"):
			one.exact = false
			end := slices.IndexFunc(words, func(t token) bool { return t.is("}") })
			if end < 0 {
				return other(at, text, notPrefix)
			}
			words = words[end+1:]
		}
		if p.Bits() == 0 {
			n.all = true
		} else {
			n.list = append(n.list, one)
		}
		if len(words) > 0 && words[0].is(",") {
			words = words[1:]
		}
	}
	return n
}
