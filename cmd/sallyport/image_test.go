package main

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/appliance"
	"sallyport/appliance/group"
	"sallyport/appliance/status"
	"sallyport/image/update"
)

// A groupGate is the control socket of a member of a group.
type groupGate struct {
	control
	group  status.GroupStatus
	states []appliance.DrainStatus // after each request to drain or undrain, and the last one again
	refuse string                  // the drain, for this reason
	asked  []string
}

func newGroupGate(t *testing.T) *groupGate {
	t.Helper()
	dir, err := os.MkdirTemp("", "gate") // short: the path of a socket has 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	g := &groupGate{control: control(filepath.Join(dir, "control.sock"))}
	g.group.Members = []status.MemberStatus{
		{Name: "gate-1", Alive: true, Class: group.Full, Version: "1.3", For: time.Hour},
		{Name: "gate-2", Alive: true, Class: group.Full, Version: "1.2", For: time.Minute, Self: true},
		{Name: "gate-3", Alive: true, Class: group.Spare, Version: "1.2", For: time.Minute},
		{Name: "gate-4", Alive: true, Class: group.Full, Version: "1.2", Draining: true},
		{Name: "gate-5", Problem: "The secret of gate-5 differs."},
	}
	listener, err := net.Listen("unix", string(g.control))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.asked = append(g.asked, r.Method+" "+r.URL.String())
		switch {
		case r.URL.Path == "/group":
			_ = json.NewEncoder(w).Encode(g.group)
			return
		case g.refuse != "":
			http.Error(w, g.refuse, http.StatusConflict)
			return
		}
		_ = json.NewEncoder(w).Encode(g.states[0])
		if len(g.states) > 1 {
			g.states = g.states[1:]
		}
	}))
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
	return g
}

func TestAnUpdateKnowsTheOtherMembers(t *testing.T) {
	g := newGroupGate(t)
	self, got, err := g.members(t.Context())
	want := []update.Member{
		{Name: "gate-1", Version: "1.3", For: time.Hour},
		{Name: "gate-3", Version: "1.2", For: time.Minute, Lacks: "is spare"},
		{Name: "gate-4", Version: "1.2", Lacks: "drains"},
		{Name: "gate-5", Lacks: "has a problem: The secret of gate-5 differs."},
	}
	if diff := cmp.Diff(want, got); err != nil || self != "gate-2" || diff != "" {
		t.Errorf("got %q, %v; want gate-2, and -, got +:\n%s", self, err, diff)
	}
	g.group.Draining = true
	if _, _, err := g.members(t.Context()); err == nil || !strings.Contains(err.Error(), "this machine drains") {
		t.Errorf("while it drains: got %v", err)
	}
}

func TestAnUpdateLeavesTheGroupBeforeItReboots(t *testing.T) {
	const drain, force, look, undrain = "POST /drain?force=false", "POST /drain?force=true", "GET /drain",
		"POST /undrain"
	on, off := appliance.DrainStatus{Draining: true, Timeout: time.Minute},
		appliance.DrainStatus{Draining: true, Left: true, Timeout: time.Minute}
	stays := appliance.DrainStatus{Draining: true}
	for name, row := range map[string]struct {
		members int
		refuse  string
		states  []appliance.DrainStatus
		force   bool
		asked   []string // after the first
		want    string   // of the error
	}{
		"it leaves": {
			members: 2, states: []appliance.DrainStatus{on, on, off},
			asked: []string{drain, look, look},
		},
		"by force":            {members: 2, states: []appliance.DrainStatus{off}, force: true, asked: []string{force}},
		"alone":               {members: 1},
		"nobody else is full": {members: 2, refuse: "gate-1 is spare", asked: []string{drain}, want: "gate-1 is spare"},
		"it does not leave": {
			members: 2, states: []appliance.DrainStatus{stays}, asked: []string{drain, undrain},
			want: "it still announces its addresses after 0s (group.drain.timeout)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGroupGate(t)
			g.group.Members, g.refuse, g.states = g.group.Members[:row.members], row.refuse, row.states
			comeBack, err := g.leave(t.Context(), row.force)
			if err != nil {
				if err := comeBack(); err != nil {
					t.Error(err)
				}
			}
			if (err == nil) != (row.want == "") || err != nil && err.Error() != row.want {
				t.Errorf("got %v, want %q", err, row.want)
			}
			if want := append([]string{"GET /group"}, row.asked...); !slices.Equal(g.asked, want) {
				t.Errorf("asked %q, want %q", g.asked, want)
			}
		})
	}
	if _, err := control(filepath.Join(t.TempDir(), "none.sock")).leave(t.Context(), false); err != nil {
		t.Errorf("without a group: got %v", err)
	}
}
