package move

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/appliance/config"
)

var update = flag.Bool("update", false, "write the golden files anew")

// disk reads files of a folder, with names within the folder.
func disk(dir string) Reader {
	return func(pattern string) (all []File, err error) {
		if pattern == "/etc/default/kic" {
			pattern = "etc-default-kic"
		}
		paths, err := filepath.Glob(filepath.Join(dir, pattern))
		for _, path := range paths {
			if info, err := os.Stat(path); err != nil || info.IsDir() {
				continue
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			name, _ := filepath.Rel(dir, path)
			all = append(all, File{name, text})
		}
		return all, err
	}
}

// imported returns the result of the files of a folder.
func imported(t *testing.T, dir string) *Result {
	t.Helper()
	files, err := disk(dir)("*")
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(f File) bool { return f.Name == "want.yaml" || f.Name == "etc-default-kic" })
	r, err := Import(files, disk(dir))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestTheFilesThatPeopleHaveBecomeOurs imports the files of each folder of testdata.
func TestTheFilesThatPeopleHaveBecomeOurs(t *testing.T) {
	whole := map[string]bool{}
	dirs, err := filepath.Glob("testdata/[a-z]*")
	if err != nil || len(dirs) < 8 {
		t.Fatalf("%d folders, %v", len(dirs), err)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			r := imported(t, dir)
			whole[filepath.Base(dir)] = r.Whole()
			golden := filepath.Join(dir, "want.yaml")
			if *update {
				if err := os.WriteFile(golden, []byte(r.Text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), r.Text); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
			if _, err := config.Parse(golden, []byte(r.Text)); err != nil {
				t.Error(err)
			}
			for _, secret := range []string{"s3cret", "hunter2", "another-key"} {
				if strings.Contains(r.Text, secret) {
					t.Errorf("the result has the secret %q", secret)
				}
			}
		})
	}
	if !whole["published"] || whole["bird2"] || whole["keepalived"] {
		t.Errorf("whole: %v", whole)
	}
}

// TestWhatIsNoFileOfTheirsIsAnError imports files that no parser is for, or that are not whole.
func TestWhatIsNoFileOfTheirsIsAnError(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":                        "",
		"another program":                "server { listen 80; }",
		"an open block of BIRD":          "protocol bgp {",
		"a closed block of BIRD":         "protocol bgp { } }",
		"an open set":                    "define A = [ 10.0.0.0/8;",
		"an open string":                 "protocol bgp { password \"x; }",
		"an open comment":                "protocol bgp { } /* ",
		"too many blocks":                "protocol bgp " + strings.Repeat("{", 100) + strings.Repeat("}", 100),
		"an open block of keepalived":    "vrrp_instance x {",
		"a closed block of keepalived":   "global_defs { } }",
		"a unit without a command":       "[Service]\nType=simple\n",
		"a unit of another program":      "[Service]\nExecStart=/usr/sbin/nginx\n",
		"a unit with an open quote":      "[Service]\nExecStart=/haproxy-ingress-controller \"--external\n",
		"YAML of another program":        "kind: Deployment\nspec: {}\n",
		"YAML with aliases":              "controller: &a [*a]\n",
		"YAML that is none":              "controller: [\n",
		"a command line of another kind": "/bin/ls\x00--all\x00",
	} {
		if r, err := Import([]File{{"x", []byte(text)}}, nil); err == nil {
			t.Errorf("%s: no error, got\n%s", name, r.Text)
		} else if !strings.HasPrefix(err.Error(), "x") {
			t.Errorf("%s: the error does not name the file: %v", name, err)
		}
	}
}

// TestAFilterIsNeverReadAsNarrowerThanItIs compares the pools with what filters accept.
func TestAFilterIsNeverReadAsNarrowerThanItIs(t *testing.T) {
	for filter, want := range map[string]string{
		`if net ~ [ 10.2.0.0/16+ ] then accept;`:                                       "10.2.0.0/16",
		`if net ~ [ 10.2.0.0/16{26,26}, 10.3.0.0/16- ] then accept;`:                   "10.2.0.0/16, 10.3.0.0/16",
		`if net ~ 10.2.0.0/16 || net ~ 10.3.0.0/16 then accept;`:                       "10.2.0.0/16, 10.3.0.0/16",
		`if (net ~ 10.2.0.0/16) && (net.len = 26) then accept;`:                        "10.2.0.0/16",
		`if net ~ 10.2.0.0/16 then { if bgp_path.len < 3 then accept; } reject;`:       "10.2.0.0/16",
		`if net ~ 10.2.0.0/16 then reject; accept;`:                                    "",
		`if ! (net ~ 10.2.0.0/16) then reject; accept;`:                                "",
		`if net ~ [ 0.0.0.0/0{8,26} ] then accept;`:                                    "",
		`if net ~ 10.2.0.0/16 then accept; else if source = RTS_BGP then accept;`:      "",
		`if net = 10.2.0.64/26 then accept; if net ~ 10.2.0.0/16 then accept;`:         "10.2.0.0/16",
		`if net = 10.2.0.64/26 then accept; if net ~ 10.3.0.0/16 then accept;`:         "",
		`case net.len { 26: accept; }`:                                                 "",
		`if net ~ 10.2.0.0/16 then accept; else { if net ~ 10.3.0.0/16 then accept; }`: "10.2.0.0/16, 10.3.0.0/16",
		`if net ~ [ 224.0.0.0/4+, 10.2.0.0/16+ ] then accept;`:                         "10.2.0.0/16",
		`if net ~ WHAT then accept;`:                                                   "",
		`reject;`:                                                                      "",
	} {
		text := "protocol bgp { local as 65000; neighbor 10.0.0.1 as 65001; import filter { " + filter + " }; export none; }"
		r, err := Import([]File{{"bird.conf", []byte(text)}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Parse("it", []byte(r.Text))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range cfg.Clusters[0].Pools {
			got = append(got, p.String())
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%s\ngot %s, want %s", filter, got, want)
		}
		if want == "" && len(r.Remarks) < 3 && filter != "reject;" {
			t.Errorf("%s\nnothing is said of it:\n%s", filter, r.Text)
		}
	}
}

// TestASessionWithoutAFilterBoundsNothing imports sessions of which one has no import statement, as
// BIRD 1 then imports all.
func TestASessionWithoutAFilterBoundsNothing(t *testing.T) {
	for text, want := range map[string]int{
		"import where net ~ 10.2.0.0/16;": 1,
		"import limit 10; ":               0,
		"":                                0,
		"import none;":                    1, // the other session bounds the routes
		"ipv4 { import where net ~ [ 10.3.0.0/16+, 10.4.0.0/16+ ]; }": 3,
	} {
		const first = "protocol bgp { local as 1; neighbor 10.0.0.1 as 2; import where net ~ 10.2.0.0/16; }\n"
		r, err := Import([]File{{"b", []byte(first + "protocol bgp { local as 1; neighbor 10.0.0.2 as 2; " + text + " }")}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Parse("it", []byte(r.Text))
		if err != nil {
			t.Fatal(err)
		}
		widened := slices.ContainsFunc(r.Remarks, func(r Remark) bool { return r.Kind == Widened })
		if got := len(cfg.Clusters[0].Pools); got != want || widened != (want == 0) {
			t.Errorf("%q: %d pools, want %d\n%s", text, got, want, r.Text)
		}
	}
}

// TestFiltersThatCallOneAnotherEnd reads a function with many calls of itself.
func TestFiltersThatCallOneAnotherEnd(t *testing.T) {
	call := strings.Repeat("f(net) || ", 200) + "f(net)"
	text := "function f(prefix p) { return " + call + "; }\nprotocol bgp { local as 1; neighbor 10.0.0.1 as 2; import where " +
		call + "; }"
	r, err := Import([]File{{"bird.conf", []byte(text)}}, nil)
	if err != nil || r.Whole() {
		t.Errorf("%v: %v", r, err)
	}
}

// fuzz holds that each text has a result that package config accepts, or an error about the file.
func fuzz(f *testing.F, seeds ...string) {
	for _, dir := range seeds {
		files, err := disk(filepath.Join("testdata", dir))("*")
		if err != nil {
			f.Fatal(err)
		}
		for _, one := range files {
			f.Add(one.Text)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		read := func(string) ([]File, error) { return []File{{"other", text}}, nil }
		r, err := Import([]File{{"a file", text}}, read)
		if err != nil {
			if strings.Contains(err.Error(), "the result is no configuration file") {
				t.Error(err)
			}
			return
		}
		for line := range strings.Lines(r.Text) {
			if len(line) > 1000+len(text) {
				t.Errorf("a line has %d bytes", len(line))
			}
		}
	})
}

func FuzzBIRD(f *testing.F)       { fuzz(f, "published", "bird2", "functions", "edge") }
func FuzzKeepalived(f *testing.F) { fuzz(f, "keepalived") }
func FuzzUnit(f *testing.F)       { fuzz(f, "unit", "argument") }
func FuzzHelm(f *testing.F)       { fuzz(f, "helm", "manifest") }
