package appliance

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/appliance/config"
	"sallyport/haproxy"
	"sallyport/routes"
)

func TestMembersShareByTheirAddressesAndOneSecret(t *testing.T) {
	addr, port := netip.MustParseAddr, netip.MustParseAddrPort
	cfg := &config.Config{Identity: "gate-2"}
	if got := sharing(cfg, routes.Local{}); got != nil {
		t.Errorf("without a group: got %+v, want nothing", got)
	}
	cfg.Group = config.Group{
		Name: "edge", Port: 9179, Share: true,
		Secret: config.NewSecret("c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA=="),
		Members: []config.Member{
			{Name: "gate-3", Address: addr("2001:db8::23")},
			{Name: "gate-2", Address: addr("192.0.2.22")},
			{Name: "gate-1", Address: addr("192.0.2.21")},
		},
	}
	here := routes.Local{Addrs: []netip.Addr{addr("192.0.2.22")}}
	want := &haproxy.Group{
		Self: "gate-2", At: port("192.0.2.22:9179"),
		Others: []haproxy.Peer{
			{Name: "gate-1", At: port("192.0.2.21:9179")},
			{Name: "gate-3", At: port("[2001:db8::23]:9179")},
		},
	}
	got := sharing(cfg, here)
	if want.Secret = got.Secret; string(got.Secret) == string(cfg.Group.Key()) || len(got.Secret) == 0 {
		t.Error("HAProxy has the secret of the group, want a key derived from it")
	}
	values := cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
	if diff := cmp.Diff(want, got, values); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if err := (&haproxy.Config{Shape: haproxy.Shape{Group: got}}).Validate(); err != nil {
		t.Error(err)
	}
	if got := sharing(cfg, routes.Local{}).At; got.IsValid() {
		t.Errorf("without its address this machine listens at %s, want nowhere", got)
	}
	other := *cfg
	other.Identity = "gate-1"
	if string(sharing(&other, here).Secret) != string(got.Secret) {
		t.Error("two members have two secrets")
	}
	cfg.Group.Share = false
	if got := sharing(cfg, here); got != nil {
		t.Errorf("with share: false: got %+v, want nothing", got)
	}
}
