package main

import (
	"bufio"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sallyport/test/lab/world"
)

// pass is the expectation of a test that passes. Any other is the reason why the test does not.
const pass = "pass"

//go:embed expected.txt
var expectedText string

// elsewhere is the reason of tests that need the CRDs of the experimental channel, and pass with them.
const elsewhere = "in the experimental channel alone"

// readExpected returns the expectation of each test with the CRDs of a channel.
func readExpected(channel world.Channel) (map[string]string, error) {
	all := map[string]string{}
	for line := range strings.Lines(expectedText) {
		name, want, _ := strings.Cut(strings.TrimSpace(line), " ")
		if want = strings.TrimSpace(want); want == "" || all[name] != "" {
			return nil, fmt.Errorf("expected.txt: %q: want a test that no other line has, then pass or a reason", line)
		}
		if want == elsewhere && channel == world.Experimental {
			want = pass
		}
		all[name] = want
	}
	return all, nil
}

// An event is a line of `go tool test2json`.
type event struct {
	Action  string
	Test    string
	Output  string
	Elapsed float64
}

// A judge reads the events of a run, writes a line on each test, and compares the tests with the
// expectations.
type judge struct {
	to       io.Writer
	dir      string // for the output of each test
	whole    bool   // the run has every test, so a missing one is a surprise
	single   bool   // the run has one test, and the suite skips all others
	expected map[string]string

	output    map[string]*strings.Builder
	results   map[string]string // pass, fail or skip
	order     []string          // of the results
	surprises []string
}

// suiteTest is the test of Go that runs the suite's tests as subtests.
const suiteTest = "TestConformance"

// write reads the events of a run, to their end.
func (j *judge) write(from io.Reader) error {
	j.output, j.results = map[string]*strings.Builder{}, map[string]string{}
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("the suite printed %q: %w", lines.Text(), err)
		}
		if err := j.see(e); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (j *judge) see(e event) error {
	_, below, _ := strings.Cut(e.Test, "/")
	test, rest, _ := strings.Cut(below, "/")
	switch e.Action {
	case "output":
		if j.output[test] == nil {
			j.output[test] = &strings.Builder{}
		}
		j.output[test].WriteString(e.Output)
		return nil
	case "pass", "fail", "skip":
	default:
		return nil
	}
	if rest != "" || e.Action == "skip" && j.single {
		return nil // a part of a test, or a test that is not in the run
	}
	text := ""
	if b := j.output[test]; b != nil {
		text = b.String()
	}
	if test == "" {
		test = suiteTest
	}
	if j.results[test] != "" {
		return nil // the package, after its only test
	}
	j.results[test] = e.Action
	j.tell(test, e, text)
	return os.WriteFile(filepath.Join(j.dir, test+".log"), []byte(text), 0o600)
}

// tell writes a line on a test. It tells why the test failed unless the failure is expected.
func (j *judge) tell(test string, e event, text string) {
	if test == suiteTest {
		if e.Action == "fail" && len(j.order) == 0 {
			_, _ = fmt.Fprintf(j.to, "FAIL  the suite could not begin:\n%s", indent(reasons(text)))
		}
		return
	}
	j.order = append(j.order, test)
	want := j.expected[test]
	switch {
	case e.Action == "pass":
		_, _ = fmt.Fprintf(j.to, "ok    %-55s %5.1f s\n", test, e.Elapsed)
	case e.Action == "skip" && want != pass:
		return
	case e.Action == "skip":
		_, _ = fmt.Fprintf(j.to, "FAIL  %s was skipped: the GatewayClass does not claim it\n", test)
	case want != "" && want != pass:
		_, _ = fmt.Fprintf(j.to, "known %-55s %5.1f s: %s\n", test, e.Elapsed, want)
	default:
		_, _ = fmt.Fprintf(j.to, "FAIL  %-55s %5.1f s, see %s\n%s", test, e.Elapsed,
			filepath.Join(j.dir, test+".log"), indent(reasons(text)))
	}
}

// verdict compares the results with expected.txt.
func (j *judge) verdict() error {
	count := map[string]int{}
	for _, test := range j.order {
		got, want := j.results[test], j.expected[test]
		count[got]++
		switch {
		case want == "" && j.whole:
			j.surprises = append(j.surprises, fmt.Sprintf("%s is missing in expected.txt: %s", test, got))
		case want == pass && got != pass:
			j.surprises = append(j.surprises, fmt.Sprintf("%s: want pass, got %s", test, got))
		case want != "" && want != pass && got == pass:
			j.surprises = append(j.surprises, fmt.Sprintf("%s passes: write so into expected.txt", test))
		}
	}
	if j.whole {
		for _, test := range slices.Sorted(maps.Keys(j.expected)) {
			if j.results[test] == "" {
				j.surprises = append(j.surprises, test+" is in expected.txt, and did not run")
			}
		}
	}
	_, _ = fmt.Fprintf(j.to, "%d passed, %d failed, %d skipped\n", count["pass"], count["fail"], count["skip"])
	if len(j.order) == 0 {
		return errors.New("no test ran")
	}
	if len(j.surprises) > 0 {
		return fmt.Errorf("not as expected:\n%s", indent(strings.Join(j.surprises, "\n")+"\n"))
	}
	return nil
}

// reasons returns the part of a test's output that says why it failed: the blocks of failed
// assertions, and the last lines before the first of them.
func reasons(text string) string {
	lines := strings.SplitAfter(text, "\n")
	at := slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, "Error Trace:") })
	if at < 0 {
		return last(text, 15)
	}
	kept := brief(lines[:at], 8)
	for _, line := range lines[at:] {
		if strings.HasPrefix(line, "            ") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept[:min(len(kept), 40)], "")
}

var (
	// clock matches the time in a line of the suite.
	clock = regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z: `)
	// answer matches a line on a wrong answer to a request, which has all settings of the client.
	answer = regexp.MustCompile(`Response expectation failed for request: .* Path:(\S*) .*, Host: ([^,]*), ` +
		`.*not ready yet: (.*?)( \(after .*)?$`)
	// noise matches lines that do not tell why a test failed.
	noise = regexp.MustCompile(`apply\.go:|http\.go:\d+: timeout|^\s*--- PASS|^\s*=== |Request passed|^\s*$`)
)

// brief returns the last n lines that matter, each once, without their times.
func brief(lines []string, n int) []string {
	var kept []string
	for _, line := range slices.Backward(lines) {
		text := answer.ReplaceAllString(clock.ReplaceAllString(strings.TrimRight(line, "\n"), ""), "$2$1: $3") + "\n"
		if len(kept) < n && !noise.MatchString(text) && !slices.Contains(kept, text) {
			kept = append(kept, text)
		}
	}
	slices.Reverse(kept)
	return kept
}

// last returns the last lines of a text.
func last(text string, n int) string {
	return strings.Join(brief(strings.SplitAfter(text, "\n"), n), "")
}

func indent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString("      " + line)
	}
	return b.String()
}
