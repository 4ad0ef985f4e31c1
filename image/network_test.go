package image

import (
	"flag"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/appliance/config"
)

var anew = flag.Bool("update", false, "write the golden files anew")

// golden compares got with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *anew {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s: want -, got +:\n%s", path, diff)
	}
}

// cluster is the part that every file needs.
const cluster = `
clusters:
- kubeconfig: {apiVersion: v1, kind: Config}
`

// machines returns the configurations of machines, by the names of their goldens.
func machines(t *testing.T) map[string]*config.Config {
	t.Helper()
	all := map[string]*config.Config{"none": nil}
	paths, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatal("no machines in testdata", err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := accept(append([]byte(cluster), text...))
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all[strings.TrimSuffix(filepath.Base(path), ".yaml")] = cfg
	}
	return all
}

func TestAMachineIsMadeOfTheseFiles(t *testing.T) {
	for name, cfg := range machines(t) {
		t.Run(name, func(t *testing.T) {
			all := files(cfg, []byte("(the file)\n"))
			var text strings.Builder
			for _, path := range slices.Sorted(maps.Keys(all)) {
				if path != wallFile {
					text.WriteString("# " + path + " " + all[path].mode.String() + "\n" + all[path].content + "\n")
				}
			}
			golden(t, name+".files", text.String())
			golden(t, name+".nft", all[wallFile].content)
		})
	}
}

// TestNftTakesTheFirewalls also shows that nft rejects a bad ruleset. It hides the names
// of protocols and services, which the image does not have.
func TestNftTakesTheFirewalls(t *testing.T) {
	check := func(ruleset string) error {
		cmd := exec.Command("unshare", "--net", "--mount", "sh", "-c",
			"for f in /etc/protocols /etc/services; do [ ! -e $f ] || mount --bind /dev/null $f; done; "+
				"exec nft -c -f -")
		cmd.Stdin = strings.NewReader(ruleset)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Logf("%s", out)
		}
		return err
	}
	for name, cfg := range machines(t) {
		if err := check(firewall(cfg)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if check(firewall(nil)+"\nadd rule inet sallyport input tcp dport 99999 accept\n") == nil {
		t.Error("nft takes anything")
	}
}

// TestNoRouteFromDHCPCoversAPod adds routes as systemd-networkd does with
// RouteTable=default, the worst that a server can offer, and asks the kernel.
func TestNoRouteFromDHCPCoversAPod(t *testing.T) {
	s := newStreet(t)
	ip := func(args ...string) string { return s.run("ip", append([]string{"-n", s.machine}, args...)...) }
	ip("addr", "flush", "dev", "eth0", "scope", "global")
	ip("addr", "add", "192.168.50.21/24", "dev", "eth0", "noprefixroute")
	for _, learned := range []string{
		"192.168.50.0/24", "192.168.50.1", "default via 192.168.50.1", "172.16.171.66",
		"172.16.171.64/27 via 192.168.50.1", "172.16.0.0/16 via 192.168.50.1",
	} {
		ip(append([]string{"route", "add", "table", "default", "dev", "eth0", "metric", "1024"},
			strings.Fields(learned)...)...)
	}
	// As the process adds its own.
	ip("route", "add", "172.16.171.64/26", "via", "192.168.50.22", "proto", "79", "metric", "50")
	for to, want := range map[string]string{
		"172.16.171.66": "via 192.168.50.22", "172.16.171.90": "via 192.168.50.22", // pods
		"192.168.50.22": "dev eth0", "10.1.2.3": "via 192.168.50.1", "172.16.1.1": "via 192.168.50.1",
	} {
		got, _, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(ip("route", "get", to), to)), " src")
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s goes %q, want %q", to, got, want)
		}
	}
}
