package group

import (
	"crypto/sha256"
	"slices"
	"strings"
	"time"
)

// What a member tells a member that asks
//
// A heartbeat has no room for all that a member remembers, and nobody but a member that starts needs
// it. So such a member asks (Ask), by packets of its own beside its heartbeats, and the others answer
// with the pages of a text (Tell), some in each Interval and all of them in turns. Heard has the text
// once all its pages have come. Other members get no such packets, so that nothing costs them anything.

const (
	pageSize  = 700 // bytes of a page: a packet fits into 1,500 bytes with IPv6
	mostPages = 100
	burst     = 8 // pages sent to a member in an Interval
	// MostTold is how many bytes a text for members that ask has at most.
	MostTold = mostPages * pageSize
)

// A page is a part of what a member tells, or asks for it.
type page struct {
	asks       bool
	number, of uint16 // of none: the packet has no page
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
	pages []string // empty ones are missing; none: text is the one of sum
	text  string   // the last one of which all pages have come
}

// add adds a page, and reports whether the text is another one now. A page of another text begins
// anew, and so do pages that do not make the text of their sum.
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

// Ask says whether this appliance asks the others for what they tell. It hears that only while it asks.
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

// Tell sets what this appliance tells the members that ask, of at most MostTold bytes; empty: nothing.
// A text takes the place of another one after each page of that has gone out twice, so that
// a text that changes all the time is complete somewhere, too.
func (p *Pulse) Tell(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = text
	if text == "" {
		p.tells, p.pages = "", nil
	}
}

// turn takes the next text, if it is time.
func (p *Pulse) turn(now time.Time) {
	held := 2 * Interval * time.Duration((len(p.pages)+burst-1)/burst)
	if p.next != p.tells && now.Sub(p.turned) >= held {
		p.tells, p.pages, p.turned = p.next, pagesOf(p.next), now
	}
}

// learn asks a member, and tells it what it asks for.
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

// hears takes the page of a packet of a member. It reports whether Heard has changed.
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
