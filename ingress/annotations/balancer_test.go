package annotations

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestAServiceAsksForAnAddress(t *testing.T) {
	for name, row := range map[string]struct {
		written map[string]string
		field   string
		want    Balancer
		problem string
	}{
		"nothing": {nil, "", Balancer{}, ""},
		"the field": {
			nil, "203.0.113.5",
			Balancer{Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.5")}},
			"",
		},
		"a wrong field": {
			nil, "gate.test",
			Balancer{},
			`spec.loadBalancerIP: "gate.test" is not an address; it is ignored`,
		},
		"the annotation overrides the field": {
			map[string]string{"sallyport.dev/address": "2001:db8::5, 203.0.113.6"},
			"203.0.113.5",
			Balancer{Addresses: []netip.Addr{netip.MustParseAddr("2001:db8::5"), netip.MustParseAddr("203.0.113.6")}},
			"",
		},
		"two of one family": {
			map[string]string{"sallyport.dev/address": "203.0.113.5,203.0.113.6"},
			"",
			Balancer{},
			"annotation sallyport.dev/address: it has more than one address of a family; allowed are one IPv4 and " +
				"one IPv6 address; it is ignored",
		},
		"an address in the form of IPv6": {
			map[string]string{"sallyport.dev/address": "::ffff:203.0.113.5"},
			"",
			Balancer{},
			`annotation sallyport.dev/address: "::ffff:203.0.113.5" is not an address; it is ignored`,
		},
		"a key": {map[string]string{"sallyport.dev/share-address": "web-1"}, "", Balancer{Share: "web-1"}, ""},
		"a key with a NUL": {
			map[string]string{"sallyport.dev/share-address": "a\x00b"},
			"",
			Balancer{},
			`annotation sallyport.dev/share-address: "a\x00b" is not of up to 63 letters, digits and - _ .; it is ignored`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, problems := ReadBalancer(Read(Service, row.written), row.field)
			if diff := cmp.Diff(row.want, got, cmpopts.EquateComparable(netip.Addr{}),
				cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			why := ""
			for _, p := range problems {
				why += p.Why
			}
			if why != row.problem {
				t.Errorf("got %q, want %q", why, row.problem)
			}
		})
	}
}
