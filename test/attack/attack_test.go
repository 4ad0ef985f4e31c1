package main

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sallyport/test/lab/debian"
	"sallyport/test/manual"
	"sallyport/test/rig"
)

func TestNobodyTakesReadsWeakensOrStopsWhatBelongsToAnother(t *testing.T) {
	dir := t.TempDir()
	k, err := newKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	startPods(t, dir)
	binaries, err := debian.HAProxies()
	if err != nil {
		t.Fatal(err)
	}
	for _, binary := range debian.Ends(binaries) {
		t.Run(filepath.Base(filepath.Dir(filepath.Dir(binary)))+" "+filepath.Base(binary), func(t *testing.T) {
			s, err := enter(t.Context(), open(t, binary), k, rig.Limit/12)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range attacks() {
				if a.lab != nil {
					continue
				}
				t.Run(a.name(), func(t *testing.T) {
					if err := s.run(t.Context(), a); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
}

var update = flag.Bool("update", false, "write the table into test/README.md")

func TestTheTableOfTheREADMEIsThisOne(t *testing.T) {
	manual.Hold(t, "../README.md", "attacks", table(), *update)
}

func TestWhatSECURITYNamesIsThere(t *testing.T) {
	text, err := os.ReadFile("../../SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]bool{}
	err = filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		code, err := os.ReadFile(path)
		for _, found := range regexp.MustCompile(`(?m)^func (Test\w+)`).FindAllSubmatch(code, -1) {
			tests[string(found[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`(Test\\w+)`").FindAllSubmatch(text, -1)
	for _, name := range named {
		if !tests[string(name[1])] {
			t.Errorf("there is no %s", name[1])
		}
	}
	cases := regexp.MustCompile(`make attack`+"`"+`,? "([^"]+)"`).FindAllSubmatch(text, -1)
	for _, words := range cases {
		if !slices.ContainsFunc(attacks(), func(a attack) bool {
			return strings.Contains(a.name(), string(words[1]))
		}) {
			t.Errorf("no case's name contains %q", words[1])
		}
	}
	if len(named) == 0 || len(cases) == 0 {
		t.Error("it names nothing")
	}
}

// The address of a server and our code are not enough to compute the cookie that selects the
// server.
func TestACookieTellsNoServerOfAnotherInstallation(t *testing.T) {
	dir := t.TempDir()
	k, err := newKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	startPods(t, dir)
	binaries, err := debian.HAProxies()
	if err != nil {
		t.Fatal(err)
	}
	manifest := rig.Service("victim", "app", "app") + ingressOf("victim", "sticky", []string{"cookie-persistence: led"},
		rule("sticky.test", path("/", "app")))
	seen := map[string]bool{}
	for _, name := range []string{"one", "another"} {
		t.Run(name, func(t *testing.T) {
			s := &testbed{target: open(t, binaries[0]), keys: k, patience: rig.Limit}
			if err := s.Apply(t.Context(), manifest); err != nil {
				t.Fatal(err)
			}
			err := s.eventually(t.Context(), func() error {
				got, err := s.ask(t.Context(), request{host: "sticky.test"})
				cookie := got.header.Get("Set-Cookie")
				if err == nil && !strings.HasPrefix(cookie, "led=") {
					err = fmt.Errorf("got %s", got)
				}
				if err == nil && seen[cookie] {
					t.Errorf("%s again", cookie)
				}
				seen[cookie] = true
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}
