package routes

import (
	"encoding/json"
	"math/rand/v2"
	"net/netip"
	"testing"
)

// randomTable returns routes of a few lengths in both families, many of them nested.
func randomTable(rng *rand.Rand) Table {
	t := Table{}
	for range rng.IntN(60) {
		p := netip.PrefixFrom(randomAddr(rng), 0)
		bits := []int{8, 22, 26, 32, 64, 122, 128}[rng.IntN(7)]
		p = netip.PrefixFrom(p.Addr(), min(bits, p.Addr().BitLen())).Masked()
		s := To(p)
		if p.Addr().Is4() && rng.IntN(2) == 0 {
			s.From = sources[rng.IntN(len(sources))]
		}
		t[s] = randomAddr(rng)
	}
	return t
}

var sources = []netip.Addr{{}, addr("192.0.2.1"), addr("192.0.2.2")}

// randomAddr returns one of so few addresses that prefixes nest and match.
func randomAddr(rng *rand.Rand) netip.Addr {
	if rng.IntN(2) == 0 {
		return netip.AddrFrom4([4]byte{10, byte(rng.IntN(2)), byte(rng.IntN(8)), byte(rng.IntN(256))})
	}
	return netip.AddrFrom16([16]byte{0: 0xfd, 13: byte(rng.IntN(2)), 14: byte(rng.IntN(2)), 15: byte(rng.IntN(256))})
}

func TestFinderAgreesWithALinearSearch(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for range 300 {
		table := randomTable(rng)
		find := table.Finder()
		for range 100 {
			source, a := sources[rng.IntN(len(sources))], randomAddr(rng)
			var want Selector
			for s := range table {
				if s.From == source && s.To.Contains(a) && (!want.To.IsValid() || s.To.Bits() > want.To.Bits()) {
					want = s
				}
			}
			got, via, ok := find(source, a)
			if got != want || via != table[want] || ok != want.To.IsValid() {
				t.Fatalf("%s in\n%sgot %v via %v (%v), want %v", a, table, got, via, ok, want)
			}
		}
	}
}

func TestIndexAgreesWithALinearSearch(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	for range 300 {
		table := map[netip.Prefix]netip.Addr{}
		for s, via := range randomTable(rng) {
			table[s.To] = via
		}
		x := newIndex(table)
		for range 100 {
			p := netip.PrefixFrom(randomAddr(rng), rng.IntN(33)).Masked()
			var covering netip.Prefix
			var within, overlapping bool
			for q := range table {
				if q.Contains(p.Addr()) && q.Bits() <= p.Bits() && (!covering.IsValid() || q.Bits() > covering.Bits()) {
					covering = q
				}
				within = within || p.Contains(q.Addr()) && q.Bits() >= p.Bits()
				overlapping = overlapping || p.Overlaps(q)
			}
			if got, _, ok := x.covering(p); got != covering || ok != covering.IsValid() {
				t.Fatalf("covering %s in\n%vgot %v, want %v", p, table, got, covering)
			}
			if q, via, ok := x.within(p); ok != within || ok && (!p.Contains(q.Addr()) || table[q] != via) {
				t.Fatalf("within %s in\n%vgot %v (%v), want %v", p, table, q, ok, within)
			}
			if q, _, ok := x.overlapping(p); ok != overlapping || ok && !p.Overlaps(q) {
				t.Fatalf("overlapping %s in\n%vgot %v (%v), want %v", p, table, q, ok, overlapping)
			}
		}
	}
}

func TestATableIsPrintedSorted(t *testing.T) {
	table := Table{
		to("fd00::40/122"): addr("fd00::1"),
		to("10.0.1.0/26"):  addr("192.0.2.2"),
		to("9.0.0.0/8"):    addr("192.0.2.3"),
		to("10.0.1.0/24"):  addr("192.0.2.1"),

		{From: addr("192.0.2.9"), To: pfx("10.0.1.0/24")}: addr("192.0.2.4"),
	}
	want := "9.0.0.0/8 via 192.0.2.3\n10.0.1.0/24 via 192.0.2.1\n10.0.1.0/26 via 192.0.2.2\nfd00::40/122 via fd00::1\n" +
		"10.0.1.0/24 from 192.0.2.9 via 192.0.2.4\n"
	if got := table.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestATableSurvivesJSON(t *testing.T) {
	want := randomTable(rand.New(rand.NewPCG(3, 3)))
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Table
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if !got.Equal(want) {
		t.Errorf("got\n%vwant\n%v", got, want)
	}
}
