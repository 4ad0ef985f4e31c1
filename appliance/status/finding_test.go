package status

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"sallyport/appliance/config"
	"sallyport/haproxy"
	"sallyport/ingress/watch"
)

func TestTheManualHasEveryCodeOnce(t *testing.T) {
	text, err := os.ReadFile("../TROUBLESHOOTING.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "| code | meaning |\n|---|---|\n")
	var want strings.Builder
	seen := map[Code]bool{}
	for _, c := range Codes {
		if seen[c.Code] {
			t.Errorf("%s stands in the table twice", c.Code)
		}
		seen[c.Code] = true
		fmt.Fprintf(&want, "| `%s` | %s |\n", c.Code, c.Means)
	}
	if table != want.String() {
		t.Errorf("the table of TROUBLESHOOTING.md is\n%s\nwant\n%s", table, want.String())
	}
}

func TestAWarningIsAFindingWithACodeAndASubject(t *testing.T) {
	v := &View{
		Settings: InUse{Config: &config.Config{}}, At: time.Now(),
		File: ConfigStatus{Errors: []string{"line 3"}},
		Clusters: []Cluster{{
			Name: "east", Known: true, Live: true,
			Health: watch.Health{Odd: []string{"an odd object"}, Missing: []string{"a right"}},
		}},
	}
	new(Judge).Assess(v, nil, Background{Settled: true, Age: time.Hour})
	var got []string
	for i, f := range v.Findings {
		got = append(got, string(f.Code)+" "+f.Subject)
		if f.Level != Doubt || f.Saw != v.Warnings[i] {
			t.Errorf("finding %+v, want a doubt with the words of warning %q", f, v.Warnings[i])
		}
	}
	if want := "bad-config , missing-rights east, calico-objects east"; strings.Join(got, ", ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
	s := v.Head(haproxy.Info{}).Noticed([]string{"the disk is full"})
	last := s.Findings[len(s.Findings)-1]
	if last.Code != Machine || len(s.Warnings) != len(v.Warnings)+1 || len(v.Findings) != len(got) {
		t.Errorf("with a notice the last finding is %+v of %d, and the view has %d", last, len(s.Findings), len(v.Findings))
	}
}
