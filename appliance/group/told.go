package group

import (
	"crypto/sha256"
	"slices"
	"strings"
	"time"
)

// What a member tells a member that asks
//
// A heartbeat has no room for everything that a member remembers, and only a member that starts
// needs it. Such a member asks (Ask), with packets besides its heartbeats. The others answer with
// the pages of a text (Tell). They send some pages in each Interval, and begin again after the last
// page. Heard has the text once all its pages have come. Members that do not ask get no such
// packets.

const (
	pageSize  = 700 // bytes of a page: a packet fits into 1,500 bytes with IPv6
	mostPages = 100
	burst     = 8 // pages sent to a member in an Interval
	// MostTold is the largest size of a text for members that ask, in bytes.
	MostTold = mostPages * pageSize
)

// A page is a part of the text that a member tells, or a request for such a text.
type page struct {
	asks       bool
	number, of uint16 // if of is 0, the packet has no page
	sum        id     // of the whole text
	text       string
}

// pagesOf cuts a text into pages.
func pagesOf(text string) (all []page) {
	text = text[:min(len(text), MostTold)]
	sum := sumOf(text)
	for rest := text; rest != ""; {
		n := min(len(rest), pageSize)
		number := uint16(len(all)) //nolint:gosec // at most mostPages
		all, rest = append(all, page{number: number, sum: sum, text: rest[:n]}), rest[n:]
	}
	for i := range all {
		all[i].of = uint16(len(all)) //nolint:gosec // at most mostPages
	}
	return all
}

func sumOf(text string) (sum id) {
	all := sha256.Sum256([]byte(text))
	copy(sum[:], all[:])
	return sum
}

// A collection holds the pages of one text that have come.
type collection struct {
	sum   id
	pages []string // a page that is missing is empty; nil once text has the sum
	text  string   // the last text that is complete
}

// add adds a page, and reports whether it completes a text. A page of another text discards the
// pages so far. So do pages that are complete and do not match their sum.
func (c *collection) add(p page) bool {
	switch {
	case c.sum != p.sum || len(c.pages) > 0 && len(c.pages) != int(p.of):
		c.sum, c.pages = p.sum, make([]string, p.of)
	case len(c.pages) == 0:
		return false
	}
	c.pages[p.number] = p.text
	if slices.Contains(c.pages, "") {
		return false
	}
	text := strings.Join(c.pages, "")
	c.pages = nil
	if sumOf(text) != c.sum {
		c.sum = id{}
		return false
	}
	c.text = text
	return true
}

// Ask sets whether this appliance asks the others for their texts. Heard has texts only while it
// asks.
func (p *Pulse) Ask(asks bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asks && !asks {
		for _, m := range p.members {
			m.told = collection{}
		}
	}
	p.asks = asks
}

// Tell sets the text for members that ask, of at most MostTold bytes. If it is empty, they get no
// answer. A text replaces the previous text only after each page of that has been sent twice. This
// way members receive a complete text even if it changes all the time.
func (p *Pulse) Tell(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = text
	if text == "" {
		p.tells, p.pages = "", nil
	}
}

// turn replaces the text by the next one, if each page was sent twice.
func (p *Pulse) turn(now time.Time) {
	held := 2 * Interval * time.Duration((len(p.pages)+burst-1)/burst)
	if p.next != p.tells && now.Sub(p.turned) >= held {
		p.tells, p.pages, p.turned = p.next, pagesOf(p.next), now
	}
}

// learn asks a member for its text while Ask says so. If the member asks, learn sends it the next
// pages of ours.
func (p *Pulse) learn(m *peer, now time.Time) {
	if p.asks {
		p.sendPage(m, page{asks: true})
	}
	if !m.wonders(now) || len(p.pages) == 0 {
		return
	}
	for range min(burst, len(p.pages)) {
		m.page = (m.page + 1) % len(p.pages)
		p.sendPage(m, p.pages[m.page])
	}
}

// wonders reports whether a member asks.
func (m *peer) wonders(now time.Time) bool { return now.Sub(m.asked) < Silence }

// hears takes the page in a packet of a member. It reports whether Heard has changed.
func (p *Pulse) hears(m *peer, of page, now time.Time) bool {
	switch {
	case !m.listed:
		return false
	case of.asks:
		before := m.wonders(now)
		m.asked = now
		return !before
	case of.of > 0 && p.asks:
		return m.told.add(of)
	}
	return false
}
