package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// daytime are targets that make nightly does not run, with the reason.
var daytime = map[string]string{
	"packages": "make check runs them under the race detector",
	"bench":    "it measures, and make fresh tries it", "profile": "it measures", "rivals": "it measures",
	"sim":  "it measures, and the tests of package appliance try it",
	"soak": "it measures memory for an hour or more", "night": "it lasts as long as one wants, and make chaos has its events",
	"soak-tests": "it repeats the tests of make test",
	"golden":     "it writes files, and make fresh tries it",
}

// TestEveryTargetWithTestsRunsAtNight reads the Makefile: each target that runs tests, or a program
// under test, is one that make nightly reaches.
func TestEveryTargetWithTestsRunsAtNight(t *testing.T) {
	text, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	recipes, leads := map[string]string{}, map[string]string{} // by target; leads has the names of other targets
	target := ""
	for line := range strings.Lines(string(text)) {
		name, rest, is := strings.Cut(line, ":")
		switch {
		case strings.HasPrefix(line, "\t"):
			recipes[target] += line
			if strings.Contains(line, "$(MAKE)") || strings.Contains(line, "if-changed") {
				leads[target] += line
			}
		case is && regexp.MustCompile(`^[a-z-]+$`).MatchString(name):
			before, _, _ := strings.Cut(rest, "#")
			target = name
			recipes[target], leads[target] = before, before
		}
	}
	reached := map[string]bool{}
	var reach func(name string)
	reach = func(name string) {
		if reached[name] {
			return
		}
		reached[name] = true
		for word := range strings.FieldsSeq(leads[name]) {
			if _, is := recipes[word]; is {
				reach(word)
			}
		}
	}
	reach("nightly")
	tests := regexp.MustCompile(`go test|go run \./test/|test/soak|test/fresh|deb/test|if-changed`)
	count := 0
	for name, recipe := range recipes {
		if !tests.MatchString(recipe) {
			continue
		}
		count++
		if reached[name] == (daytime[name] != "") {
			t.Errorf("make %s runs tests; make nightly reaches it: %v; the reason why it need not: %q", name, reached[name],
				daytime[name])
		}
	}
	if count < 10 {
		t.Errorf("%d targets run tests; is the Makefile read?", count)
	}
}

// TestPackagesThatRaceLeavesOutStartNoGoroutine reads the Makefile's list of them, and their code and
// tests. Two speakers of GoBGP race by themselves.
func TestPackagesThatRaceLeavesOutStartNoGoroutine(t *testing.T) {
	text, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`UNRACED = \^sallyport/\((.*)\)`).FindSubmatch(text)
	if list == nil {
		t.Fatal("the Makefile has no list UNRACED")
	}
	for name := range strings.SplitSeq(string(list[1]), "|") {
		if name == "bgp/upstream" {
			continue
		}
		files, err := filepath.Glob("../" + name + "/*.go")
		if err != nil || len(files) == 0 {
			t.Errorf("%s has no files (%v)", name, err)
		}
		for _, path := range files {
			for _, at := range goroutines(t, path) {
				t.Errorf("%s starts a goroutine: take %s off the list UNRACED of the Makefile", at, name)
			}
		}
	}
	if len(goroutines(t, "../haproxy/process.go")) == 0 {
		t.Error("no goroutine is found in a file that starts one")
	}
}

// goroutines returns the places in a file where a goroutine starts, or a test runs beside others.
func goroutines(t *testing.T, path string) (at []string) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			at = append(at, set.Position(n.Pos()).String())
		case *ast.SelectorExpr:
			if name := n.Sel.Name; name == "Go" || name == "Parallel" || name == "RunParallel" {
				at = append(at, set.Position(n.Pos()).String())
			}
		}
		return true
	})
	return at
}
