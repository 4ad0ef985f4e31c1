package endpoint

import (
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// TestEachEndpointThatIsNotReadyCountsOnce writes the endpoints of one Service in several EndpointSlices.
func TestEachEndpointThatIsNotReadyCountsOnce(t *testing.T) {
	yes, no := new(true), new(false)
	at := func(address string, ready, serving, terminating *bool) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{
			Addresses:  []string{address},
			Conditions: discoveryv1.EndpointConditions{Ready: ready, Serving: serving, Terminating: terminating},
		}
	}
	slice := func(family discoveryv1.AddressType, port string, number int32, all ...discoveryv1.Endpoint,
	) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			AddressType: family, Endpoints: all,
			Ports: []discoveryv1.EndpointPort{{Name: &port, Port: &number}},
		}
	}
	web := func(all ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		return slice(discoveryv1.AddressTypeIPv4, "web", 8080, all...)
	}
	unready := func(address string) discoveryv1.Endpoint { return at(address, no, no, no) }
	for name, tt := range map[string]struct {
		slices []*discoveryv1.EndpointSlice
		want   int
	}{
		"no slice":                 {nil, 0},
		"ready ones do not count":  {list(web(at("10.0.0.1", yes, yes, no), at("10.0.0.2", nil, nil, nil))), 0},
		"one that is not ready":    {list(web(at("10.0.0.1", yes, yes, no), unready("10.0.0.2"))), 1},
		"two that are not ready":   {list(web(unready("10.0.0.1"), unready("10.0.0.2"))), 2},
		"one that terminates":      {list(web(at("10.0.0.1", no, no, yes), at("10.0.0.2", no, yes, yes))), 0},
		"the same in two slices":   {list(web(unready("10.0.0.1")), web(unready("10.0.0.1"))), 1},
		"ready in another slice":   {list(web(unready("10.0.0.1")), web(at("10.0.0.1", yes, yes, no))), 0},
		"ready in the first slice": {list(web(at("10.0.0.1", yes, yes, no)), web(unready("10.0.0.1"))), 0},
		"another port":             {list(slice(discoveryv1.AddressTypeIPv4, "admin", 81, unready("10.0.0.1"))), 0},
		"IPv6":                     {list(slice(discoveryv1.AddressTypeIPv6, "web", 8080, unready("fd00::1"))), 1},
		"names in place of addresses": {
			list(slice(discoveryv1.AddressTypeFQDN, "web", 8080, unready("a.test"))), 0,
		},
		"addresses that no pod has": {list(web(unready("127.0.0.1"), unready("0.0.0.0"), unready("?"))), 0},
		"no address":                {list(web(discoveryv1.Endpoint{Conditions: discoveryv1.EndpointConditions{Ready: no}})), 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Unready(tt.slices, "web"); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

func list(all ...*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice { return all }
