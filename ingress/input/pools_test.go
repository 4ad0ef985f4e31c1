package input

import (
	"net/netip"
	"strings"
	"testing"
)

func TestARangeCountsItsAddresses(t *testing.T) {
	for text, want := range map[string]uint64{
		"10.0.0.0-10.0.0.0":                      1,
		"10.0.0.250-10.0.1.3":                    10,
		"0.0.0.0-255.255.255.255":                1 << 32,
		"fd00::ffff-fd00::1:0":                   2,
		"fd00::-fd00:0:0:1::":                    1 << 32,
		"fd00::-fd00::fffe:ffff":                 1<<32 - 1<<16,
		"fd00::ffff:ffff:ffff:ffff-fd00:0:0:1::": 2,
	} {
		first, last, _ := strings.Cut(text, "-")
		r := AddressRange{netip.MustParseAddr(first), netip.MustParseAddr(last)}
		if got := r.Size(); got != want {
			t.Errorf("%s: got %d addresses, want %d", text, got, want)
		}
		if got := r.At(0); got != r.First {
			t.Errorf("%s: the first address is %s", text, got)
		}
		if got := r.At(want - 1); want < mostOfRange && got != r.Last {
			t.Errorf("%s: the last address is %s", text, got)
		}
	}
}
