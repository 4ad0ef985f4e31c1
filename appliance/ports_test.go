package appliance

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"sallyport/appliance/config"
	"sallyport/routes/address"
)

func TestThePortsOfAGroupAreForItsMembersAndRouters(t *testing.T) {
	s, _ := newPair(t)
	kernel := s.chance.(*fakeRing)
	s.settle(t)
	if kernel.guard == nil || !reflect.DeepEqual(*kernel.guard, address.Guard{}) {
		t.Fatalf("got %+v, want rules for no port", kernel.guard)
	}
	s.member.of.Share = true
	s.member.of.Upstream.BFD = config.BFD{Interval: time.Second, Multiplier: 3}
	s.settle(t)
	want := address.Guard{
		Port: 7477, Members: addrs("192.168.50.21", "192.168.50.22"),
		BFD: config.BFDPort, Routers: addrs("192.168.50.1"),
	}
	if !reflect.DeepEqual(*kernel.guard, want) {
		t.Errorf("got %+v, want %+v", *kernel.guard, want)
	}
	before := kernel.guards
	s.pass(t, guardEvery/2)
	if kernel.guards != before {
		t.Error("the same rules were set again at once")
	}
	s.pass(t, guardEvery)
	if kernel.guards == before {
		t.Error("rules that somebody has removed do not come back")
	}

	kernel.unsafe = errors.New("the ports of the group are open: no nft")
	s.pass(t, guardEvery+time.Second)
	if v := s.view.Load(); v.Err != nil ||
		!strings.Contains(strings.Join(v.Warnings, "\n"), "the ports of the group are open: no nft") {
		t.Errorf("error %v, warnings %q; want a warning", v.Err, v.Warnings)
	}
	kernel.unsafe = nil
	s.cfg.Group, s.member = config.Group{}, nil
	s.settle(t)
	if kernel.guard != nil {
		t.Error("without a group there are rules")
	}
}
