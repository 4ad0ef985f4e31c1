package update

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"
)

func TestMembersAreUpdatedOneByOne(t *testing.T) {
	const old, young, day = 9 * 24 * time.Hour, 3 * time.Minute, 24 * time.Hour
	member := func(name, version string, since time.Duration) Member {
		return Member{Name: name, Version: version, For: since}
	}
	lacking := func(name, lacks string) Member { return Member{Name: name, Version: "1.2", Lacks: lacks, For: old} }
	for name, row := range map[string]struct {
		self   string
		others []Member
		want   string
	}{
		"alone in its group": {"gate-1", nil, ""},
		"the first of two":   {"gate-1", []Member{member("gate-2", "1.2", old)}, ""},
		"the second of two": {
			"gate-2",
			[]Member{member("gate-1", "1.2", old)},
			"gate-1 is updated first, and runs 1.2",
		},
		"the first runs an unknown version": {
			"gate-2",
			[]Member{member("gate-1", "", old)},
			"gate-1 is updated first, and runs an unknown version",
		},
		"the other drains": {
			"gate-1",
			[]Member{lacking("gate-2", "drains")},
			"gate-2 drains",
		},
		"the other is silent": {
			"gate-1",
			[]Member{lacking("gate-2", "has been silent for 5s")},
			"gate-2 has been silent for 5s",
		},
		"the other was away": {
			"gate-1",
			[]Member{member("gate-2", "1.2", young)},
			"gate-2 has served for 3m0s only; the next update follows after 10m0s",
		},
		"the first has only just been updated": {
			"gate-2",
			[]Member{member("gate-1", "1.3", young)},
			"gate-1 has served for 3m0s only; the next update follows after 10m0s",
		},
		"the first was updated today": {
			"gate-2",
			[]Member{member("gate-1", "1.3", time.Hour)},
			"gate-1 has served with version 1.3 for 1h0m0s; the next member follows after 12h0m0s " +
				"(system.update.stagger)",
		},
		"the first was updated yesterday": {"gate-2", []Member{member("gate-1", "1.3", day)}, ""},
		"the first runs a newer one":      {"gate-2", []Member{member("gate-1", "1.10", day)}, ""},
		"one of three is silent": {
			"gate-1",
			[]Member{member("gate-2", "1.2", old), lacking("gate-3", "has been silent for 1h")},
			"gate-3 has been silent for 1h",
		},
		"the third waits for the second": {
			"gate-3",
			[]Member{member("gate-2", "1.2", old), member("gate-1", "1.3", day)},
			"gate-2 is updated first, and runs 1.2",
		},
		"the second returned to its version": {
			"gate-3",
			[]Member{member("gate-1", "1.3", 2*day), member("gate-2", "1.2", day)},
			"gate-2 is updated first, and runs 1.2",
		},
		"an operator updated the last one": {
			"gate-1",
			[]Member{member("gate-2", "1.2", old), member("gate-3", "1.3", time.Hour)},
			"gate-3 has served with version 1.3 for 1h0m0s; the next member follows after 12h0m0s " +
				"(system.update.stagger)",
		},
		"an operator updated the last one, yesterday": {
			"gate-1",
			[]Member{member("gate-2", "1.2", old), member("gate-3", "1.3", day)},
			"",
		},
	} {
		if got := Turn(row.self, row.others, "1.3", 12*time.Hour); got != row.want {
			t.Errorf("%s:\ngot  %q\nwant %q", name, got, row.want)
		}
	}
}

// Whatever state a group is in, no two of its members may begin at the same time.
func TestNoTwoMembersHaveTheirTurn(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // any will do
	begun := 0
	for range 20_000 {
		all := make([]Member, 2+r.IntN(5))
		for i := range all {
			all[i] = Member{
				Name: fmt.Sprintf("gate-%d", i), Version: []string{"1.2", "1.3", "1.4"}[r.IntN(3)],
				For: time.Duration(r.IntN(20)) * time.Hour,
			}
			if r.IntN(10) == 0 {
				all[i].Lacks = "is spare"
			}
		}
		var turns []string
		for i, m := range all {
			others := slices.Delete(slices.Clone(all), i, i+1)
			if m.Version == "1.2" && Turn(m.Name, others, "1.3", 2*time.Hour) == "" {
				turns = append(turns, m.Name)
				if slices.ContainsFunc(others, func(o Member) bool { return o.Lacks != "" }) {
					t.Errorf("%s begins while another does not serve: %+v", m.Name, all)
				}
			}
		}
		begun += len(turns)
		if len(turns) > 1 {
			t.Fatalf("%q begin together: %+v", turns, all)
		}
	}
	if begun == 0 {
		t.Error("nobody ever begins")
	}
}

func TestTheTimerWaitsForItsTurn(t *testing.T) {
	p := newPublisher(t)
	from := p.publish("sallyport_1.10.efi", efi("sallyport", "1.10"))
	says := func(err error, others ...Member) func(context.Context) (string, []Member, error) {
		return func(context.Context) (string, []Member, error) { return "gate-2", others, err }
	}
	behind, done := Member{Name: "gate-1", Version: "1.9", For: time.Hour},
		Member{Name: "gate-1", Version: "1.10", For: time.Hour}
	const waits = "version 1.10 waits: gate-1 is updated first, and runs 1.9"
	for name, row := range map[string]struct {
		request Request
		stagger string // empty: no group
		want    string // empty: it is installed
		err     string
	}{
		"it is its turn":       {Request{Newer: true, Members: says(nil, done)}, "1h", "", ""},
		"another one is first": {Request{Newer: true, Members: says(nil, behind)}, "1h", waits, ""},
		"nobody answers": {
			Request{Newer: true, Members: says(errors.New("no appliance answers"))},
			"1h",
			"version 1.10 waits: no appliance answers", "",
		},
		"an operator asks":  {Request{Members: says(nil, behind)}, "1h", "", ""},
		"there is no group": {Request{Newer: true, Members: says(nil, behind)}, "", "", ""},
		"no number": {
			Request{Newer: true, Members: says(nil, behind)},
			"soon", "",
			StaggerFile + `: time: invalid duration "soon"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			h.runs(p, "1.9", "sallyport_1.9.efi")
			h.put(WaitFile, "version 1.9.1 waits: gate-1 drains\n")
			if row.stagger != "" {
				h.put(StaggerFile, row.stagger+"\n")
			}
			row.request.From = from
			got, err := h.install(row.request)
			if row.err != "" {
				if err == nil || err.Error() != row.err {
					t.Errorf("got %v, want %s", err, row.err)
				}
				return
			}
			if err != nil || got.Why != row.want || (got.Installed == "1.10") != (row.want == "") {
				t.Errorf("got %+v, %v, want %q", got, err, row.want)
			}
			told, err := os.ReadFile(h.path(WaitFile))
			if row.want == "" && !errors.Is(err, os.ErrNotExist) || row.want != "" && string(told) != row.want+"\n" {
				t.Errorf("the file says %q (%v), want %q", told, err, row.want)
			}
		})
	}
}
