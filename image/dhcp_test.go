package image

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/appliance/config"
)

// rogue starts a DHCP server (RFC 2131) in the neighbour. It offers a pod as DNS and NTP
// server, and a route to a part of the pod's block.
func (s street) rogue() {
	s.t.Helper()
	inside(s.t, s.neighbour, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		s.t.Cleanup(func() { _ = unix.Shutdown(fd, unix.SHUT_RDWR); _ = unix.Close(fd) })
		if err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1),
			unix.BindToDevice(fd, "eth0"), unix.Bind(fd, &unix.SockaddrInet4{Port: 67})); err != nil {
			return err
		}
		go func() {
			const header, cookie = 236, 0x63825363
			ask := make([]byte, 1500)
			for {
				n, _, err := unix.Recvfrom(fd, ask, 0)
				if err != nil || n == 0 {
					return
				}
				if n < header+4 || ask[0] != 1 {
					continue
				}
				kind := byte(2) // OFFER, to DISCOVER
				for at := header + 4; at+1 < n && ask[at] != 255; at += 2 + int(ask[at+1]) {
					if ask[at] == 53 && ask[at+2] == 3 {
						kind = 5 // ACK, to REQUEST
					}
				}
				answer := make([]byte, header, 600)
				copy(answer, ask[:header])
				answer[0] = 2
				copy(answer[16:], []byte{192, 168, 50, 77})
				answer = binary.BigEndian.AppendUint32(answer, cookie)
				for _, option := range [][]byte{
					{53, kind},
					{54, 192, 168, 50, 99},
					{51, 0, 0, 14, 16},
					{1, 255, 255, 255, 0},
					{3, 192, 168, 50, 99},
					{6, 172, 16, 171, 66},
					{42, 172, 16, 171, 67},
					append([]byte{12}, "mallory"...),
					{
						121, 27, 172, 16, 171, 64, 192, 168, 50, 99, 32, 172, 16, 171, 90, 192, 168, 50, 99, 0, 192, 168,
						50, 99,
					},
				} {
					answer = append(append(answer, option[0], byte(len(option)-1)), option[1:]...) //nolint:gosec // short
				}
				_ = unix.Sendto(fd, append(answer, 255), 0,
					&unix.SockaddrInet4{Addr: [4]byte{255, 255, 255, 255}, Port: 68})
			}
		}()
		return nil
	})
}

// networkd runs the real systemd-networkd with a machine's files until the test
// ends. It returns its run directory once the interface has a lease.
func (s street) networkd(of config.System) string {
	s.t.Helper()
	run := s.t.TempDir()
	for name, f := range networkFiles(of) {
		path := filepath.Join(run, strings.TrimPrefix(name, "/run/"))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.WriteFile(path, []byte(f.content), 0o644)); err != nil {
			s.t.Fatal(err)
		}
	}
	// A system that cannot be written to has no udev to wait for.
	cmd := exec.CommandContext(s.t.Context(), "ip", "netns", "exec", s.machine, "unshare", "--mount", "bash", "-ec",
		"mount --bind "+run+" /run; mount -o remount,bind,ro /sys; exec /lib/systemd/systemd-networkd")
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if s.t.Failed() {
			s.t.Log(said.String())
		}
	})
	s.until("a lease", func() bool {
		text := s.link(run)
		return strings.Contains(text, "ADMIN_STATE=configured") && strings.Contains(text, "NETWORK_FILE=/run/")
	})
	return run
}

// link returns the state of the interface that systemd-networkd wrote to this run
// directory.
func (s street) link(run string) string {
	s.t.Helper()
	links, err := filepath.Glob(run + "/systemd/netif/links/*")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, path := range links {
		if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), "NETWORK_FILE=") {
			return string(text)
		}
	}
	return ""
}

// until waits until a condition holds.
func (s street) until(what string, there func() bool) {
	s.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(patience); !there(); {
		select {
		case <-deadline:
			s.t.Fatal("not there: " + what)
		case <-tick.C:
		}
	}
}

// TestARogueDHCPServerLeadsNoPodAway runs the real systemd-networkd beside one.
func TestARogueDHCPServerLeadsNoPodAway(t *testing.T) {
	all := config.DHCP{UseDNS: true, UseNTP: true, UseRoutes: true}
	for name, row := range map[string]struct {
		system                  config.System
		table                   string // that has the default route
		dns, ntp, routes, inWay bool
	}{
		"as it comes": {
			config.System{DHCP: config.DHCP{UseDNS: true, UseNTP: true}},
			"default", true, true,
			false, false,
		},
		"nothing is taken":    {config.System{}, "default", false, false, false, false},
		"everything is taken": {config.System{DHCP: all}, "default", true, true, true, false},
		"beside a static route": {config.System{
			DHCP: config.DHCP{UseDNS: true},
			Interfaces: []config.Interface{
				{Name: "eth0", DHCP: true},
				{Name: "eth9", Gateway: netip.MustParseAddr("10.0.0.1")},
			},
		}, "main", true, false, false, false},
		"beside a static route, and everything is taken": {config.System{
			DHCP: all, Interfaces: []config.Interface{
				{Name: "eth0", DHCP: true},
				{Name: "eth9", Gateway: netip.MustParseAddr("10.0.0.1")},
			},
		}, "main", true, true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			if len(row.system.Interfaces) == 0 {
				// one that is made, as here, is asked for by name alone
				row.system.Interfaces = []config.Interface{{Name: "eth0", DHCP: true}}
			}
			s := newStreet(t)
			s.run("ip", "-n", s.machine, "addr", "flush", "dev", "eth0", "scope", "global")
			s.rogue()
			link := s.link(s.networkd(row.system))
			routes := func(table string) string { return s.run("ip", "-n", s.machine, "route", "show", "table", table) }
			s.run("ip", "-n", s.machine, "route", "add", "172.16.171.64/26", "via", "192.168.50.22", "proto", "79",
				"metric", "50")
			main, learned := routes("main"), routes(row.table)
			if !strings.Contains(learned, "default via 192.168.50.99") {
				t.Errorf("no way to everywhere else in the table %s:\n%s", row.table, learned)
			}
			if row.table != "main" && strings.Contains(main, "proto dhcp") {
				t.Errorf("routes of DHCP in the table main:\n%s", main)
			}
			if got := strings.Contains(learned, "172.16.171.64/27") &&
				strings.Contains(learned, "172.16.171.90"); got != row.routes {
				t.Errorf("option 121 is taken: %v, want %v:\n%s", got, row.routes, learned)
			}
			if got := strings.Contains(learned, "172.16.171.66 ") || strings.Contains(learned, "172.16.171.67 "); got {
				t.Errorf("a server for names has a route of its own:\n%s", learned)
			}
			for what, want := range map[string]bool{"DNS=172.16.171.66": row.dns, "NTP=172.16.171.67": row.ntp} {
				if got := strings.Contains(link, what); got != want {
					t.Errorf("%s is there: %v, want %v:\n%s", what, got, want, link)
				}
			}
			for _, pod := range []string{"172.16.171.66", "172.16.171.90"} {
				if got := s.run("ip", "-n", s.machine, "route", "get", pod); strings.Contains(got,
					"via 192.168.50.22") == row.inWay {
					t.Errorf("a pod is reached %s", got)
				}
			}
		})
	}
}

// advertise makes the neighbour advertise itself as an IPv6 router (RFC 4861), many times
// a second. It offers a default route and a prefix for addresses, declares one pod
// on-link, and offers a route to a part of a block (RFC 4191).
func (s street) advertise() {
	s.t.Helper()
	advertisement := []byte{
		134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0, // RA; hop limit 64, no DHCPv6, 1800 s
		// prefix fd00:99::/64, on-link and for addresses
		3, 4, 64, 0xc0, 0, 0, 14, 16, 0, 0, 14, 16, 0, 0, 0, 0, 0xfd, 0, 0, 0x99, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
		// prefix fd00:10:244::5/128, on-link
		3, 4, 128, 0x80, 0, 0, 14, 16, 0, 0, 14, 16, 0, 0, 0, 0, 0xfd, 0, 0, 0x10, 2, 0x44, 0, 0, 0, 0, 0, 0, 0, 0, 0,
		5,
		// route to fd00:10:244::/123, high preference
		24, 3, 123, 0x08, 0, 0, 14, 16, 0xfd, 0, 0, 0x10, 2, 0x44, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
		25, 3, 0, 0, 0, 0, 14, 16, 0xfd, 0, 0, 0x10, 2, 0x44, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6, // DNS fd00:10:244::6
	}
	inside(s.t, s.neighbour, func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6)
		if err != nil {
			return err
		}
		s.t.Cleanup(func() { _ = unix.Close(fd) })
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255); err != nil {
			return err
		}
		go func() {
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-s.t.Context().Done():
					return
				case <-tick.C:
				}
				_ = unix.Sendto(fd, advertisement, 0, &unix.SockaddrInet6{Addr: [16]byte{0xff, 0x02, 15: 1}, ZoneId: uint32(link.Index)}) //nolint:gosec // of a link
			}
		}()
		return nil
	})
}

// TestARogueRouterLeadsNoPodAway runs the real systemd-networkd beside one.
func TestARogueRouterLeadsNoPodAway(t *testing.T) {
	static := []config.Interface{{Name: "eth9", Gateway: netip.MustParseAddr("fd00:9::1")}}
	for name, row := range map[string]struct {
		dhcp        config.DHCP
		besides     []config.Interface
		learns, dns bool
	}{
		"as it comes":           {config.DHCP{UseDNS: true, UseRA: true}, nil, true, true},
		"no server for names":   {config.DHCP{UseRA: true}, nil, true, false},
		"routers are not heard": {config.DHCP{UseDNS: true}, nil, false, false},
		"everything is taken":   {config.DHCP{UseDNS: true, UseRA: true, UseRoutes: true}, nil, true, true},
		"beside a static route": {config.DHCP{UseDNS: true, UseRA: true}, static, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStreet(t)
			s.rogue()
			s.advertise()
			eth0 := config.Interface{
				Name: "eth0", DHCP: true,
				Addresses: []config.Address{{Prefix: netip.MustParsePrefix("fd00:50::21/64")}},
			}
			run := s.networkd(config.System{
				DHCP:       row.dhcp,
				Interfaces: append([]config.Interface{eth0}, row.besides...),
			})
			if row.learns {
				s.until("an address from the router", func() bool {
					return strings.Contains(s.run("ip", "-n", s.machine, "-6", "addr"), "fd00:99:")
				})
			}
			s.run("ip", "-n", s.machine, "route", "add", "fd00:10:244::/122", "via", "fd00:50::22", "proto", "79",
				"metric", "50")
			if row.learns { // a node that has its address from the same router
				s.run("ip", "-n", s.machine, "route", "add", "fd00:10:244::40/122", "via", "fd00:99::22", "proto", "79",
					"metric", "50")
				if got := s.run("ip", "-n", s.machine, "route", "get", "fd00:10:244::41"); !strings.Contains(got,
					"via fd00:99::22") {
					t.Errorf("a pod of the router's network is reached %s", got)
				}
				if got := s.run("ip", "-n", s.machine, "route", "get", "2001:db8::1"); !strings.Contains(got,
					"via fe80:") {
					t.Errorf("everything else is reached %s", got)
				}
			}
			for _, pod := range []string{"fd00:10:244::5", "fd00:10:244::6", "fd00:10:244::7"} {
				if got := s.run("ip", "-n", s.machine, "route", "get", pod); !strings.Contains(got, "via fd00:50::22") {
					t.Errorf("a pod is reached %s", got)
				}
			}
			link, all := s.link(run), s.run("ip", "-n", s.machine, "-6", "route", "show", "table", "all")+
				s.run("ip", "-n", s.machine, "-6", "rule")+s.run("ip", "-n", s.machine, "-6", "addr")
			if got := strings.Contains(link, "fd00:10:244::6"); got != row.dns {
				t.Errorf("the server for names is taken: %v, want %v:\n%s", got, row.dns, link)
			}
			if got := strings.Contains(all, "fd00:99:"); got != row.learns {
				t.Errorf("an address from the router: %v, want %v:\n%s", got, row.learns, all)
			}
		})
	}
}
