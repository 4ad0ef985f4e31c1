package doctor

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"sallyport/appliance/status"
)

func TestTheManualHasEveryCheckOnce(t *testing.T) {
	text, err := os.ReadFile("../TROUBLESHOOTING.md")
	if err != nil {
		t.Fatal(err)
	}
	const head = "| check | code | what it looks at |\n|---|---|---|\n"
	_, table, _ := strings.Cut(string(text), head)
	table, _, _ = strings.Cut(table, "\n\n")
	var want strings.Builder
	seen := map[status.Code]bool{}
	for _, c := range Checks {
		if seen[c.Code] {
			t.Errorf("two checks have the code %s", c.Code)
		}
		seen[c.Code] = true
		fmt.Fprintf(&want, "| %s | `%s` | %s |\n", c.Name, c.Code, c.Means)
	}
	if strings.TrimSpace(table) != strings.TrimSpace(want.String()) {
		t.Errorf("the table of TROUBLESHOOTING.md is\n%s\nwant\n%s%s", table, head, want.String())
	}
}

func TestAFindingHasTheCodeOfItsCheckAndItsSubject(t *testing.T) {
	var got []status.Finding
	r := reporter{report: func(f status.Finding) { got = append(got, f) }}
	r.ok("return path", "it is %s", "open")
	r.about("worker1").failed("node", "silent", "look", "ping")
	want := []status.Finding{
		{Code: "return-path", Check: "return path", Level: status.Healthy, Saw: "it is open"},
		{
			Code: "node", Subject: "worker1", Check: "node worker1", Level: status.Failed, Saw: "silent",
			Remedy: "look", Command: "ping",
		},
	}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
