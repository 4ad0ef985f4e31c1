package test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// daytime are targets that make nightly does not run, with the reason.
var daytime = map[string]string{
	"packages": "make check runs them under the race detector",
	"bench":    "it measures, and make fresh tries it", "profile": "it measures",
	"soak": "it measures memory for an hour or more", "soak-tests": "it repeats the tests of make test",
	"golden": "it writes files, and make fresh tries it",
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
