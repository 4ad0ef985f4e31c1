package manual

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

func commands(t *testing.T) []Command {
	t.Helper()
	all, err := All(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 200 {
		t.Fatalf("the pages have %d commands; are they read?", len(all))
	}
	return all
}

func TestAPageIsReadAsATypist(t *testing.T) {
	const page = "Type `make it` in `~`, or:\n\n   ```sh\n   one \\\n     two   # why\n   a=$(three)\n   cat <<EOF\n" +
		"   $a\n   EOF\n   ```\n\n" +
		"```console\n$ four\n4\n\n$ five\n```\n\n```text\n$ six\n```\n"
	got, err := Commands("page.md", page)
	if err != nil {
		t.Fatal(err)
	}
	want := []Command{
		{"page.md", 1, "make it", ""},
		{"page.md", 4, "one \\\n  two   # why", ""},
		{"page.md", 6, "a=$(three)\ncat <<EOF\n$a\nEOF", ""},
		{"page.md", 13, "four", "4"},
		{"page.md", 16, "five", ""},
	}
	if len(got) != len(want) {
		t.Fatalf("got %q, want %q", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("got %q, want %q", got[i], want[i])
		}
	}
	if _, err := Commands("page.md", "```\nmake\n```\n"); err == nil {
		t.Error("a fence that says nothing of its kind is accepted")
	}
}

// tests returns the names of all tests and benchmarks.
func tests(t *testing.T) map[string]bool {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "grep", "-rhoE", "--include=*_test.go",
		"^func (Test|Benchmark)[A-Za-z0-9]+", root).Output()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		all[strings.TrimPrefix(strings.TrimSpace(line), "func ")] = true
	}
	return all
}

func TestWhatTheMachineDoesNotRunSomethingElseDoes(t *testing.T) {
	all, known := commands(t), tests(t)
	for _, o := range others {
		used := false
		for _, c := range all {
			used = used || o.Commands.MatchString(c.Text)
		}
		if !used {
			t.Errorf("no page has a command that matches %s", o.Commands)
		}
		isTest := known[o.By]
		_, err := os.Stat(filepath.Join(root, o.By))
		if o.By != "" && !isTest && err != nil {
			t.Errorf("%s: there is no test and no script %s", o.Commands, o.By)
		}
		if (o.By == "") == (o.Because == "") {
			t.Errorf("%s: want either what runs it or why nothing does", o.Commands)
		}
	}
}

// TestATargetRunsOnTheMachineOnlyIfItIsNamedHere keeps a new target of make, which may take an hour, from
// the test that types the manual: it would end for its own limit, without a word of the target.
func TestATargetRunsOnTheMachineOnlyIfItIsNamedHere(t *testing.T) {
	named := []string{"make deb && apt install ./.build/sallyport_*.deb"} // as a newcomer installs
	for _, c := range commands(t) {
		_, elsewhere := Elsewhere(c)
		if !elsewhere && strings.HasPrefix(c.Text, "make ") && !slices.Contains(named, c.Text) {
			t.Errorf("%s: say in others what runs it, or why nothing does", c)
		}
	}
}

func TestTheTestsOfThePagesExist(t *testing.T) {
	known := tests(t)
	named := regexp.MustCompile(`^go test .*?-(?:run|bench) (\S+)`)
	count := 0
	for _, c := range commands(t) {
		m := named.FindStringSubmatch(c.Text)
		if m == nil || m[1] == "TestName" {
			continue
		}
		count++
		found := false
		for name := range known {
			found = found || strings.Contains(name, m[1])
		}
		if !found {
			t.Errorf("%s: there is no test %s", c, m[1])
		}
	}
	if count == 0 {
		t.Error("no page names a test; are they read?")
	}
}
