package group

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// long is as long as a text may be, and no part of it is like another.
func long() string {
	var b strings.Builder
	for i := 0; b.Len() < MostTold; i++ {
		b.WriteString(time.Duration(i).String())
	}
	return b.String()[:MostTold]
}

func TestAMemberThatAsksHearsWhatTheOthersTell(t *testing.T) {
	for name, text := range map[string]string{"one page": "what gate-2 remembers", "as many as there may be": long()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				// Every third packet would be the same page each time, in some orders of goroutines.
				n, random := &network{}, rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
				n.lose(func(from, _ netip.Addr) bool { return from == addr(two) && random.IntN(3) == 0 })
				g1, _ := n.start(t, "gate-1", gates, secret)
				g2, _ := n.start(t, "gate-2", gates, secret)
				g3, _ := n.start(t, "gate-3", gates, secret)
				g2.Tell(text)
				settle(time.Second)
				before := len(n.sent(two, one))
				settle(time.Second)
				if got := len(n.sent(two, one)) - before; got != 10 {
					t.Errorf("a member that does not ask got %d packets in a second, want 10 heartbeats", got)
				}
				knocked(g1)
				knocked(g2)
				g1.Ask(true)
				settle(3 * Interval)
				if !knocked(g2) || !g2.Heard()[0].Asks {
					t.Error("gate-2 does not hear that gate-1 asks")
				}
				settle(20 * time.Second) // each page is sent 16 times, and a third of them is lost
				if got := g1.Heard()[0].Told; got != text {
					t.Errorf("gate-1 hears %d bytes, want %d", len(got), len(text))
				}
				if !knocked(g1) {
					t.Error("the text of gate-2 is no change")
				}
				if got := g3.Heard()[1].Told + g1.Heard()[1].Told; got != "" {
					t.Errorf("gate-3, which neither asks nor tells, has to do with %d bytes", len(got))
				}

				g2.Tell(strings.Repeat("x", 2*MostTold)) // too long: the beginning counts
				settle(30 * time.Second)
				if got := g1.Heard()[0].Told; got != strings.Repeat("x", MostTold) {
					t.Errorf("of a text that is too long gate-1 hears %d bytes", len(got))
				}
				g1.Ask(false)
				settle(time.Second)
				if g1.Heard()[0].Told != "" || g2.Heard()[0].Asks {
					t.Error("gate-1 does not ask, and hears a text")
				}
			})
		})
	}
}

func TestATextThatChangesAllTheTimeIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		g1, _ := n.start(t, "gate-1", gates[:2], secret)
		g2, _ := n.start(t, "gate-2", gates[:2], secret)
		g1.Ask(true)
		text := long()
		for i := range 100 {
			g2.Tell(text[i:])
			settle(Interval / 2)
		}
		if got := g1.Heard()[0].Told; got == "" || !strings.HasSuffix(text, got) {
			t.Errorf("gate-1 hears %d bytes of none of the texts", len(got))
		}
		g2.Tell("")
		g2.Tell("the end")
		settle(10 * time.Second)
		if got := g1.Heard()[0].Told; got != "the end" {
			t.Errorf("gate-1 hears %q at last", got)
		}
	})
}

func TestABrokenOrPartialPageChangesNothing(t *testing.T) {
	pages := pagesOf(long())
	for name, change := range map[string]func(all []page){
		"a page is missing":         func(all []page) { all[7] = all[8] },
		"a page is another one":     func(all []page) { all[7].text = all[8].text },
		"a page is of another text": func(all []page) { all[99].sum = id{1} },
		"two pages are swapped":     func(all []page) { all[7].number, all[8].number = 8, 7 },
	} {
		c := collection{}
		c.add(pagesOf("before")[0])
		all := append([]page(nil), pages...)
		change(all)
		for _, p := range all {
			if c.add(p) {
				t.Errorf("%s: page %d makes another text", name, p.number)
			}
		}
		if c.text != "before" {
			t.Errorf("%s: the text has %d bytes", name, len(c.text))
		}
		for range 2 { // the next turn mends it
			for _, p := range pages {
				c.add(p)
			}
		}
		if c.text != long() {
			t.Errorf("%s: the right pages do not make the text", name)
		}
	}
	for name, p := range map[string]page{
		"a number beyond all":        {number: 2, of: 2, text: "x"},
		"more than there may be":     {number: 0, of: mostPages + 1, text: strings.Repeat("x", pageSize)},
		"too long":                   {number: 0, of: 1, text: strings.Repeat("x", pageSize+1)},
		"not full, and not the last": {number: 0, of: 2, text: "x"},
		"empty":                      {number: 0, of: 1},
		"of none, with a text":       {text: "x"},
		"of none, with a number":     {number: 1},
	} {
		b := message{name: "gate-1"}.packet(p)
		if m, ok := parse(b); ok {
			t.Errorf("%s is read as %+v", name, m.page)
		}
	}
}

// packet returns a packet with any page, and an empty signature.
func (m message) packet(p page) []byte {
	b := m.appendTo(nil)
	head := page{number: p.number, of: p.of, sum: p.sum, text: p.text, asks: true}
	return append(head.appendTo(b), make([]byte, signature)...)
}
