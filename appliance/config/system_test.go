package config_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/appliance/config"
)

// publicKey is a valid OpenSSH key that nobody uses.
const publicKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"

func address(s string) config.Address { return config.Address{Prefix: netip.MustParsePrefix(s)} }

func TestAMachineWithoutAFileIsThatOfAFileThatSetsNothing(t *testing.T) {
	if diff := cmp.Diff(defaults().System, config.Default().System, values); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
}

func TestKeysOfTheMachineSetTheirFields(t *testing.T) {
	got, err := config.Parse("f.yaml", []byte(minimal+`
system:
  hostname: gate-1.example.org
  interfaces:
  - {name: eth0, addresses: [192.168.50.21/24, "fd00::21/64"], gateway: 192.168.50.1, dns: [192.168.50.2], mtu: 9000,
    routes: [{to: 10.0.0.0/8, via: 192.168.50.9, metric: 70}]}
  - {name: any, mac: "52:54:00:AB:CD:EF"}
  - {name: bond0, bond: {members: [eth1, eth2], mode: 802.3ad}, dhcp: false}
  - {name: eth1}
  - {name: v10, vlan: {id: 10, link: bond0}}
  dns: [192.168.50.3]
  ntp: [ntp.example.org, "fd00::3"]
  syslog: 192.168.50.4:514
  console: false
  maintenanceKey: [`+publicKey+` operator]
  dhcp: {useDNS: true, useRoutes: true, useRA: false} # and not useNTP, for ntp is there
  guestExec: true
  volumes: boot
  update: {url: "https://example.org/images", schedule: Sun 04:30, stagger: 72h}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := config.System{
		Hostname: "gate-1.example.org",
		Interfaces: []config.Interface{
			{
				Name: "eth0", Addresses: []config.Address{address("192.168.50.21/24"), address("fd00::21/64")},
				Gateway: netip.MustParseAddr("192.168.50.1"), DNS: addrs("192.168.50.2"), MTU: 9000,
				Routes: []config.Static{{
					To:  netip.MustParsePrefix("10.0.0.0/8"),
					Via: netip.MustParseAddr("192.168.50.9"), Metric: 70,
				}},
			},
			{Name: "any", MAC: "52:54:00:AB:CD:EF", DHCP: true},
			{Name: "bond0", Bond: config.Bond{Members: []string{"eth1", "eth2"}, Mode: "802.3ad"}},
			{Name: "eth1"}, // a member does not use DHCP
			{Name: "v10", DHCP: true, VLAN: config.VLAN{ID: 10, Link: "bond0"}},
		},
		DNS: addrs("192.168.50.3"), NTP: []string{"ntp.example.org", "fd00::3"},
		Syslog:         netip.MustParseAddrPort("192.168.50.4:514"),
		DHCP:           config.DHCP{UseDNS: true, UseRoutes: true},
		MaintenanceKey: []string{publicKey + " operator"}, GuestExec: true, Volumes: config.BootVolume,
		Update: config.Update{
			URL: "https://example.org/images", Schedule: "Sun 04:30", Stagger: 72 * time.Hour,
			Kexec: true,
		},
	}
	for i := range want.Interfaces {
		if want.Interfaces[i].Bond.Mode == "" {
			want.Interfaces[i].Bond.Mode = "active-backup"
		}
	}
	if diff := cmp.Diff(want, got.System, values); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
}

func TestAMistakeInTheMachineNamesWhatIsAllowed(t *testing.T) {
	for name, row := range map[string]struct{ yaml, want string }{
		"unknown key":             {"interface: []", `unknown key "interface" in system; did you mean "interfaces"?`},
		"host name":               {"hostname: my_host", `system.hostname: "my_host" is not allowed`},
		"host name too long":      {"hostname: " + strings.Repeat("a.", 40) + "a", `64 bytes in all`},
		"name server":             {"dns: [127.0.0.1]", `system.dns[0]: 127.0.0.1 is not the address of a machine`},
		"time server":             {`ntp: ["a b"]`, `system.ntp[0]: "a b" is not the name or address of a machine`},
		"a line in a time server": {`ntp: ["a\nb"]`, `system.ntp[0]: control characters are not allowed`},
		"syslog without address":  {`syslog: ":514"`, `system.syslog: :: is not the address of a machine`},
		"key with a command": {
			`maintenanceKey: ['command="sh" ` + publicKey + `']`,
			`system.maintenanceKey[0]: is not a public SSH key`,
		},
		"key of another type": {
			"maintenanceKey: [" + strings.Replace(publicKey, "ed25519", "rsa", 1) + "]",
			`is not a complete public SSH key of type ssh-rsa`,
		},
		"half a key": {"maintenanceKey: [ssh-ed25519 AAAA]", `is not a complete public SSH key`},
		"password in a URL": {
			"update: {url: 'https://u:tops3cret@example.org/'}",
			`system.update.url: is not allowed; allowed: https://HOST/FOLDER`,
		},
		"file URL": {"update: {url: 'file:///etc'}", `system.update.url: is not allowed`},
		"volumes":  {"volumes: none", `system.volumes: "none" is not allowed; allowed: any, boot`},
		"schedule": {
			"update: {schedule: hourly}",
			`system.update.schedule: "hourly" is not allowed; allowed: a time of day`,
		},
		"no stagger":      {"update: {stagger: 0s}", `system.update.stagger: 0s is not allowed; allowed: 10m to 720h`},
		"endless stagger": {"update: {stagger: 8760h}", `system.update.stagger: 8760h0m0s is not allowed`},

		"interface without name": {"interfaces: [{dhcp: true}]", `system.interfaces[0]: name is missing`},
		"loopback":               {"interfaces: [{name: lo}]", `system.interfaces[0].name: "lo" is not allowed`},
		"a name that is a path":  {"interfaces: [{name: a/b}]", `system.interfaces[0].name: "a/b" is not allowed`},
		"the name of a made one": {
			"interfaces: [{name: 'v*', vlan: {id: 1, link: eth0}}]",
			`system.interfaces[0].name: "v*" is not allowed`,
		},
		"one name twice": {
			"interfaces: [{name: eth0}, {name: eth0, mtu: 9000}]",
			`system.interfaces[1].name: "eth0" is listed twice`,
		},
		"hardware address": {
			"interfaces: [{name: a, mac: 1:2:3}]",
			`system.interfaces[0].mac: "1:2:3" is not a hardware address`,
		},
		"address without length": {
			"interfaces: [{name: a, addresses: [192.168.50.21]}]",
			`"192.168.50.21" is not allowed; allowed: an address with the length of its network, such as 192.168.50.21/24`,
		},
		"address of no machine": {
			"interfaces: [{name: a, addresses: [224.0.0.1/24]}]",
			`224.0.0.1/24 is not the address of a machine in a network`,
		},
		"gateway elsewhere": {
			"interfaces: [{name: a, addresses: [192.168.50.21/24], gateway: 192.168.51.1}]",
			`system.interfaces[0].gateway: 192.168.51.1 is in no network of the interface`,
		},
		"gateway is itself": {
			"interfaces: [{name: a, addresses: [192.168.50.21/24], gateway: 192.168.50.21}]",
			`192.168.50.21 is in no network of the interface`,
		},
		"route without router": {
			"interfaces: [{name: a, routes: [{to: 10.0.0.0/8}]}]",
			`system.interfaces[0].routes[0]: needs to, a network, and via, the address of a router`,
		},
		"route of two families": {
			"interfaces: [{name: a, routes: [{to: 10.0.0.0/8, via: 'fd00::1'}]}]",
			`10.0.0.0/8 and fd00::1 are of different families`,
		},
		"small packets": {
			"interfaces: [{name: a, mtu: 100}]",
			`system.interfaces[0].mtu: "100" is not allowed; allowed: a whole number from 576 to 65535`,
		},
		"VLAN without link": {
			"interfaces: [{name: a, vlan: {id: 5}}]",
			`system.interfaces[0].vlan: needs id, a number from 1 to 4094, and link`,
		},
		"VLAN on itself": {
			"interfaces: [{name: a, vlan: {id: 5, link: a}}]",
			`system.interfaces[0].vlan.link: is the VLAN itself`,
		},
		"VLAN with hardware": {
			"interfaces: [{name: a, mac: '52:54:00:00:00:01', vlan: {id: 5, link: b}}]",
			`system.interfaces[0].mac: identifies an existing interface`,
		},
		"VLAN and bond": {
			"interfaces: [{name: a, vlan: {id: 5, link: b}, bond: {members: [c]}}]",
			`system.interfaces[0]: is a VLAN and a bond`,
		},
		"bond of nothing": {
			"interfaces: [{name: a, bond: {mode: 802.3ad}}]",
			`system.interfaces[0].bond: members is missing`,
		},
		"bond mode": {
			"interfaces: [{name: a, bond: {members: [b], mode: lacp}}]",
			`"lacp" is not allowed; allowed: active-backup, 802.3ad`,
		},
		"member of itself": {
			"interfaces: [{name: a, bond: {members: [a]}}]",
			`"a" is not the name of another interface`,
		},
		"member of two": {
			"interfaces: [{name: a, bond: {members: [c]}}, {name: b, bond: {members: [c]}}]",
			`system.interfaces[1].bond.members[0]: "c" is already in the bond "a"`,
		},
		"member with an address": {
			"interfaces: [{name: a, bond: {members: [b]}}, {name: b, addresses: [192.168.50.21/24]}]",
			`system.interfaces[1]: "b" is in the bond "a", which has the addresses`,
		},
		"member that asks": {
			"interfaces: [{name: a, bond: {members: [b]}}, {name: b, dhcp: true}]",
			`system.interfaces[1]: "b" is in the bond "a"`,
		},
		"a word instead of a map": {
			"interfaces: [eth0]",
			`system.interfaces[0]: a single value is given where keys are expected`,
		},
		"a list's example": {"interfaces: eth0", `such as [{name: eth0, dhcp: true}]`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Parse("f.yaml", []byte(minimal+"system: {"+row.yaml+"}\n"))
			if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got  %v\nwant %s", err, row.want)
			}
			if err != nil && strings.Contains(err.Error(), "tops3cret") {
				t.Errorf("a password shows: %v", err)
			}
		})
	}
}

func TestTheProcessAloneWarnsThatItMakesNoMachine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.yaml")
	for text, want := range map[string]bool{"": false, "system: {hostname: gate-1}\n": true} {
		if err := os.WriteFile(path, []byte(minimal+"bgp: {routerID: 192.0.2.1}\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := config.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(strings.Join(c.Warnings, "\n"), "applies only to the bootable image"); got != want {
			t.Errorf("with %q: warned %v, want %v: %q", text, got, want, c.Warnings)
		}
	}
}
