package config_test

import (
	"maps"
	"slices"
	"testing"

	"sallyport/appliance/config"
)

func TestThePortsOfTheMachineAreTakenFromTheStart(t *testing.T) {
	const cluster = "clusters: [{kubeconfig: /k}]\n"
	for name, row := range map[string]struct {
		text             string
		tcp, beside, udp []uint16
	}{
		"by default": {
			"",
			[]uint16{22, 53, 68, 80, 179, 443, 546, 9090},
			[]uint16{22, 53, 68, 179, 546, 9090},
			[]uint16{22, 53, 68, 546},
		},
		"what the file names": {
			"haproxy: {http: [\":8080\"], https: [\":8443\"], reservedPorts: [2222, 9100]}\nbgp: {port: 1179}\n" +
				"status: {listen: \"127.0.0.1:99\"}\n",
			[]uint16{99, 1179, 2222, 8080, 8443, 9100},
			[]uint16{99, 1179, 2222, 9100},
			[]uint16{2222, 9100},
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := config.Parse("f.yaml", []byte(cluster+row.text))
			if err != nil {
				t.Fatal(err)
			}
			ports := cfg.Ports()
			for what, of := range map[string]struct {
				owners map[uint16]string
				want   []uint16
			}{
				"TCP":                {ports.Owners(config.TCP), row.tcp},
				"TCP beside HAProxy": {ports.OwnersBesideHAProxy(), row.beside},
				"UDP":                {ports.Owners(config.UDP), row.udp},
			} {
				if got := slices.Sorted(maps.Keys(of.owners)); !slices.Equal(got, of.want) {
					t.Errorf("%s: got %d, want %d", what, got, of.want)
				}
			}
		})
	}
}

func TestAGroupOwnsItsPortsAndBFD(t *testing.T) {
	cfg := config.Default()
	if owners := cfg.Ports().Owners(config.UDP); owners[config.BFDPort] != "" {
		t.Errorf("without a group UDP port %d belongs to %s, want nobody", config.BFDPort, owners[config.BFDPort])
	}
	cfg.Group = config.Group{Name: "edge", Port: 7477}
	cfg.Group.Upstream.Peers = []config.Router{{}}
	udp, tcp := cfg.Ports().Owners(config.UDP), cfg.Ports().OwnersBesideHAProxy()
	if udp[config.BFDPort] != "BFD" || tcp[config.BFDPort] != "" {
		t.Errorf("port %d belongs to %q (UDP) and %q (TCP), want BFD and nobody", config.BFDPort, udp[config.BFDPort],
			tcp[config.BFDPort])
	}
	if want := "the group of appliances"; udp[7477] != want || tcp[7477] != want {
		t.Errorf("port 7477 belongs to %q and %q, want %s", udp[7477], tcp[7477], want)
	}
	cfg.HAProxy.ReservedPorts = append(cfg.HAProxy.ReservedPorts, 443)
	if owners := cfg.Ports().Owners(config.TCP); owners[443] != "HTTPS" {
		t.Errorf("port 443 belongs to %s, want HTTPS, which listens there", owners[443])
	}
}
