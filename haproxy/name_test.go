package haproxy

import (
	"net/netip"
	"testing"
)

func TestAServersNameIsItsAddress(t *testing.T) {
	for addr, want := range map[string]string{
		"10.0.0.1:8080":            "s_10-0-0-1_8080",
		"[fd00::1]:8080":           "s_fd00--1_8080",
		"[::ffff:10.0.0.1]:80":     "s_10-0-0-1_80",
		"[2001:db8:1:2:3:4:5:6]:1": "s_2001-db8-1-2-3-4-5-6_1",
		"[fe80::1%eth0]:80":        "s_fe80--1_eth0_80",
	} {
		if got := ServerName(netip.MustParseAddrPort(addr)); got != want {
			t.Errorf("ServerName(%s): got %s, want %s", addr, got, want)
		}
	}
}

func TestAStateIsShownAsAWord(t *testing.T) {
	if got, want := Drain.String(), "drain"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := State(9).String(), "State(9)"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
