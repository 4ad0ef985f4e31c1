package group

import (
	"encoding/binary"
	"slices"
	"strings"
	"time"
)

// A packet is a message and its signature:
//
//	0   magic, 3 bytes, and version; its first bit is set in a packet with orders
//	4   session, 8 bytes: random, of the process that sends
//	12  counter, 8 bytes: greater in each packet of the session
//	20  challenge, 8 bytes: what the receiver has to return as an answer
//	28  answer, 8 bytes: the receiver's last challenge
//	36  verdict, 1 byte
//	37  draining, 1 byte: 0 or 1
//	38  since, 8 bytes: milliseconds
//	46  clock, 8 bytes: milliseconds since 1970 by the sender's clock, which nothing depends on
//	54  name, class, version, config, shape, each at most 64 bytes, and why: 1 byte of length,
//	    and the text
//	    nothing more, or a page: its number and how many there are, 2 bytes each, the sum of the
//	    text, 8 bytes, and a part of the text; only zeros: the sender asks for pages;
//	    in a packet with orders their text in place of a page
//	    signature, 16 bytes: the first of the HMAC-SHA256 of the receiver's address in 16
//	    bytes and all that comes before
const (
	magic     = "SPG"
	edition   = 1
	ordering  = 0x80 // the first bit of the version; a program that knows no orders leaves such packets out
	fixed     = 54
	maxText   = 64
	maxWhy    = 255
	signature = 16
	shortest  = fixed + 6 + signature
	pageHead  = 12
	longest   = shortest + 5*maxText + maxWhy + pageHead + pageSize
)

// An id is a random number that nobody can guess.
type id [8]byte

// A verdict tells the receiver why the sender does not count it as a member. It is in the
// packet, since the receiver cannot know it otherwise.
type verdict byte

const (
	welcome   verdict = iota
	unlisted          // the sender's list has no such name
	misplaced         // the sender's list has the name with another address
	namesake          // the sender has this name itself
	doubled           // somebody else speaks with the receiver's name
	verdicts
)

type message struct {
	session, challenge, answer id
	counter                    uint64
	verdict                    verdict
	clock                      uint64
	name                       string
	word                       Word
	page                       page
	orders                     string // if it has some, it has no page
}

// text is a text of a message, and how long it may be.
type text struct {
	of   *string
	most int
}

// texts returns the texts of a message in the order of the packet.
func (m *message) texts() []text {
	return append([]text{{&m.name, maxText}}, m.word.texts()...)
}

func (w *Word) texts() []text {
	return []text{
		{(*string)(&w.Class), maxText},
		{&w.Version, maxText},
		{&w.Config, maxText},
		{&w.Serves, maxText},
		{&w.Why, maxWhy},
	}
}

// appendTo appends the message without a signature.
func (m *message) appendTo(b []byte) []byte {
	b = append(b, magic...)
	if b = append(b, edition); m.orders != "" {
		b[len(b)-1] |= ordering
	}
	b = append(b, m.session[:]...)
	b = binary.BigEndian.AppendUint64(b, m.counter)
	b = append(b, m.challenge[:]...)
	b = append(b, m.answer[:]...)
	b = append(b, byte(m.verdict), 0)
	if m.word.Draining {
		b[len(b)-1] = 1
	}
	b = binary.BigEndian.AppendUint64(b, uint64(max(0, m.word.Since.Milliseconds())))
	b = binary.BigEndian.AppendUint64(b, m.clock)
	for _, t := range m.texts() {
		b = append(b, byte(len(*t.of)))
		b = append(b, *t.of...)
	}
	if m.orders != "" {
		return append(b, m.orders...)
	}
	return m.page.appendTo(b)
}

func (p *page) appendTo(b []byte) []byte {
	if p.of == 0 && !p.asks {
		return b
	}
	b = binary.BigEndian.AppendUint16(b, p.number)
	b = binary.BigEndian.AppendUint16(b, p.of)
	b = append(b, p.sum[:]...)
	return append(b, p.text...)
}

// parse reads a page, which is the rest of a packet.
func (p *page) parse(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	if len(b) < pageHead {
		return false
	}
	p.number, p.of = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	copy(p.sum[:], b[4:])
	p.text = string(b[pageHead:])
	if p.of == 0 {
		p.asks = *p == page{}
		return p.asks
	}
	// All pages but the last are full.
	full := len(p.text) == pageSize || p.number+1 == p.of && p.text != ""
	return p.of <= mostPages && p.number < p.of && full && len(p.text) <= pageSize
}

// plain returns the first bytes of a text, with a question mark for each character that is
// not printable ASCII. parse accepts no others, since people read them.
func plain(text string, most int) string {
	text = strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, text)
	return text[:min(len(text), most)]
}

// parse reads a packet after its signature was checked. It reports false unless appendTo writes the
// same bytes.
func parse(b []byte) (m message, ok bool) {
	if len(b) < shortest || len(b) > longest || string(b[:3]) != magic || b[3]&^ordering != edition {
		return m, false
	}
	ordered := b[3]&ordering != 0
	b = b[:len(b)-signature]
	copy(m.session[:], b[4:])
	m.counter = binary.BigEndian.Uint64(b[12:])
	copy(m.challenge[:], b[20:])
	copy(m.answer[:], b[28:])
	m.verdict = verdict(b[36])
	since := binary.BigEndian.Uint64(b[38:])
	m.clock = binary.BigEndian.Uint64(b[46:])
	const century = 100 * 365 * 24 * time.Hour
	if m.verdict >= verdicts || b[37] > 1 || since > uint64(century.Milliseconds()) ||
		m.clock > 10*uint64(century.Milliseconds()) {
		return m, false
	}
	m.word.Draining, m.word.Since = b[37] == 1, time.Duration(since)*time.Millisecond
	b = b[fixed:]
	for _, t := range m.texts() {
		if len(b) == 0 || int(b[0]) > t.most || int(b[0]) >= len(b) {
			return m, false
		}
		n := 1 + int(b[0])
		if !isPlain(b[1:n]) {
			return m, false
		}
		*t.of, b = string(b[1:n]), b[n:]
	}
	if ordered {
		m.orders = string(b)
		return m, isPlain(b) && len(b) > 0 && len(b) <= MostOrders && m.name != ""
	}
	return m, m.page.parse(b) && m.name != ""
}

// isPlain reports whether a text is printable ASCII.
func isPlain(text []byte) bool {
	return !slices.ContainsFunc(text, func(c byte) bool { return c < ' ' || c > '~' })
}
