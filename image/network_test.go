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

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares got with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
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

// cluster is what every file has.
const cluster = `
clusters:
- kubeconfig: {apiVersion: v1, kind: Config}
`

// machines are files of machines, by the name of their goldens.
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

// TestNftTakesTheFirewalls also shows that nft does refuse what is no ruleset. The
// image has no names of protocols and services.
func TestNftTakesTheFirewalls(t *testing.T) {
	check := func(ruleset string) error {
		cmd := exec.Command("unshare", "--net", "--mount", "sh", "-c",
			"for f in /etc/protocols /etc/services; do [ ! -e $f ] || mount --bind /dev/null $f; done; exec nft -c -f -")
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
