package status

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/appliance/config"
	"sallyport/bgp"
	"sallyport/haproxy"
	"sallyport/ingress/watch"
)

func TestTheManualHasEveryCodeOnce(t *testing.T) {
	text, err := os.ReadFile("../TROUBLESHOOTING.md")
	if err != nil {
		t.Fatal(err)
	}
	type row struct{ code, means string }
	tables := map[string][]row{}
	for _, c := range Codes {
		tables["code"] = append(tables["code"], row{string(c.Code), c.Means})
	}
	for _, c := range Reasons {
		tables["reason"] = append(tables["reason"], row{string(c.Code), c.Means})
	}
	for _, c := range bgp.LossCodes {
		tables["lossCode"] = append(tables["lossCode"], row{string(c.Code), c.Means})
	}
	for name, rows := range tables {
		head := "| " + name + " | meaning |\n|---|---|\n"
		_, table, _ := strings.Cut(string(text), head)
		table, _, _ = strings.Cut(table, "\n\n")
		var want strings.Builder
		seen := map[string]bool{}
		for _, r := range rows {
			if seen[r.code] {
				t.Errorf("%s stands in the table twice", r.code)
			}
			seen[r.code] = true
			fmt.Fprintf(&want, "| `%s` | %s |\n", r.code, r.means)
		}
		if strings.TrimSpace(table) != strings.TrimSpace(want.String()) {
			t.Errorf("the table of TROUBLESHOOTING.md is\n%s\nwant\n%s%s", table, head, want.String())
		}
	}
}

func TestWhyNotReadyAndEachWarningIsAFindingWithACodeAndASubject(t *testing.T) {
	v := &View{
		Settings: InUse{Config: &config.Config{}}, At: time.Now(),
		File: ConfigStatus{Errors: []string{"line 3"}},
		Clusters: []Cluster{{Name: "west"}, {
			Name: "east", Known: true, Live: true,
			Health: watch.Health{Odd: []string{"an odd object"}, Missing: []string{"a right"}, Hints: []string{"more"}},
		}},
	}
	new(Judge).Assess(v, nil, Background{Settled: true, Age: time.Hour})
	var got []string
	words := map[Level][]string{}
	for _, f := range v.Findings {
		got = append(got, string(f.Level)+" "+string(f.Code)+" "+f.Subject)
		words[f.Level] = append(words[f.Level], f.Sentence())
	}
	if !slices.Equal(words[Doubt], v.Warnings) || !slices.Equal(words[Failed], v.NotReady) {
		t.Errorf("findings %+v, warnings %q, not ready %q; want each in the words of the others", v.Findings, v.Warnings,
			v.NotReady)
	}
	if want := "warning bad-config , failed cluster-unknown west, warning missing-rights east, info missing-rights east, " +
		"warning calico-objects east"; strings.Join(got, ", ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
	s := v.Head(haproxy.Info{}).Noticed([]string{"the disk is full"})
	last := s.Findings[len(s.Findings)-1]
	if last.Code != Machine || len(s.Warnings) != len(v.Warnings)+1 || len(v.Findings) != len(got) {
		t.Errorf("with a notice the last finding is %+v of %d, and the view has %d", last, len(s.Findings), len(v.Findings))
	}
}
