package world_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/test/lab/debian"
	"sallyport/test/lab/world"
)

// Each appliance is a BIRD here, which announces the service address.
func TestTheRouterSpreadsConnectionsOverTheAppliancesThatAnnounce(t *testing.T) {
	t.Parallel()
	l := labNamed(t, "rt", world.Options{Appliances: 2, Router: world.RouterBIRD, IPv6: true, Bare: true})
	folder, err := debian.BIRD(t.Context(), 2, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	announce := func(n int) (stop func()) {
		t.Helper()
		host, _ := l.Host(world.ApplianceHost(n))
		router, _ := l.Host(world.Router)
		text := fmt.Sprintf("router id %s;\nprotocol device { }\n"+
			"protocol bfd { interface \"eth0\" { interval 300 ms; }; }\n", host.Addr.Addr())
		for channel, row := range map[string][]any{
			"ipv4": {"203.0.113.10/32", host.Addr.Addr(), router.Addr.Addr()},
			"ipv6": {"2001:db8::10/128", host.Addr6.Addr(), router.Addr6.Addr()},
		} {
			text += fmt.Sprintf("protocol static s%[1]s { %[1]s; route %[2]s blackhole; }\n"+
				"protocol bgp u%[1]s { local %[3]s as 65000; neighbor %[4]s as %[5]d; bfd on; connect delay time 1; "+
				"%[1]s { import none; export all; }; }\n",
				append(append([]any{channel}, row...), world.RouterAS)...)
		}
		config := filepath.Join(dir, host.Name)
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := l.Command(t.Context(), host.Name, filepath.Join(folder, "bird"), "-f", "-c", config, "-s", config+".ctl",
			"-P", config+".pid")
		cmd.Stderr = t.Output()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	// used returns the appliances that connections from 40 ports reach, for each family.
	used := func() (hosts [2]map[string]bool, err error) {
		for i, address := range []string{"203.0.113.10", "2001:db8::10"} {
			hosts[i] = map[string]bool{}
			for port := range 40 {
				out, err := l.Exec(t.Context(), world.Router, "ip", "route", "get", address, "ipproto", "tcp", "sport",
					fmt.Sprint(40000+port), "dport", "80")
				if err != nil {
					return hosts, err
				}
				_, via, _ := strings.Cut(out, " via ")
				hosts[i][strings.Fields(via + " -")[0]] = true
			}
		}
		return hosts, nil
	}
	reach := func(n int) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d appliances are reached", n), func() error {
			hosts, err := used()
			if err == nil && (len(hosts[0]) != n || len(hosts[1]) != n) {
				err = fmt.Errorf("reached are %v", hosts)
			}
			return err
		})
	}
	stop := announce(1)
	defer announce(2)()
	reach(2)
	stop()
	reach(1)
	stop = announce(1)
	reach(2)
	if err := l.KillNode(t.Context(), world.Appliance); err != nil { // BFD finds out
		t.Fatal(err)
	}
	reach(1)
	stop()
	if out, err := l.Exec(t.Context(), world.Client, "ping", "-c1", "-W5", "192.168.50.12"); err != nil {
		t.Errorf("the client does not reach an appliance's own address: %v\n%s", err, out)
	}
	if err := l.Partition(t.Context(), world.Client, world.Appliance, world.AllTraffic); err == nil {
		t.Error("a client behind the router is kept from an appliance on the lan, want an error")
	}
}
