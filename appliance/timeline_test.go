package appliance

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sallyport/appliance/plan"
	"sallyport/appliance/status"
	"sallyport/haproxy"
)

func TestTheTimelineTellsWhatChangedAndWhy(t *testing.T) {
	s := half(t)
	s.speaker.announce(block2, node2)
	s.settle(t)
	s.speaker.down[netip.MustParseAddr(node2)] = true
	s.settle(t)
	h, _ := endpoint(s)
	code, body := ask(t, h, "/events")
	var all []status.Change
	if err := json.Unmarshal([]byte(body), &all); err != nil || code != http.StatusOK {
		t.Fatalf("%d, %v: %s", code, err, body)
	}
	slices.Reverse(all)
	var got strings.Builder
	for _, c := range all {
		got.WriteString(c.Kind + ": " + c.What + ": " + c.Why + "\n")
	}
	for _, want := range []string{
		"route: 172.16.171.64/26 via 192.168.50.23 added: a verified offer",
		"server: 172.16.171.66:80 of demo__default_svc_web_80 is open: routed",
		"offer: offer of 172.16.9.0/26 by 192.168.50.24 refused: ",
		"session: BGP session with node worker2 (192.168.50.24) is lost: hold timer expired",
	} {
		if !strings.Contains(got.String(), want) {
			t.Errorf("no %q in\n%s", want, &got)
		}
	}
	if _, page := ask(t, h, "/node/demo/worker2"); !strings.Contains(page,
		"BGP session with node worker2 (192.168.50.24) is lost") {
		t.Error("the page of the node does not have its change")
	}
	if code, _ := ask(t, h, "/events?since=yesterday"); code != http.StatusBadRequest {
		t.Errorf("since=yesterday: got %d", code)
	}
}

func TestTheTimelineKeepsTheNewest(t *testing.T) {
	var l status.Timeline
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 2*status.ChangesKept + 7 {
		l.Add(status.Change{At: begin.Add(time.Duration(i) * time.Second)})
	}
	all := l.Since(time.Time{})
	if len(all) != status.ChangesKept || !all[0].At.Equal(begin.Add((2*status.ChangesKept+6)*time.Second)) {
		t.Errorf("%d changes, the newest of %s", len(all), all[0].At)
	}
	if !slices.IsSortedFunc(all, func(a, b status.Change) int { return b.At.Compare(a.At) }) {
		t.Error("they are not in their order")
	}
	if got := l.Since(all[4].At); len(got) != 5 {
		t.Errorf("from the fifth on: got %d", len(got))
	}
}

func TestManyChangesOfARoundAreOneMore(t *testing.T) {
	s := wide(t, 60)
	routes, more := 0, false
	for _, c := range s.changes.Since(time.Time{}) {
		if c.Kind == status.RouteChange {
			routes++
			more = more || c.What == "38 more changed in the same round"
		}
	}
	if routes != status.Screenful+1 || !more {
		t.Errorf("%d changes of routes, the rest as one: %v", routes, more)
	}
}

// TestANamespaceDisplacesNoOtherFromTheTimeline plays a namespace whose servers change without end,
// in many backends at a time.
func TestANamespaceDisplacesNoOtherFromTheTimeline(t *testing.T) {
	var l status.Timeline
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	l.Add(status.Change{At: begin, Kind: status.SessionChange, What: "lost"})
	l.AddTo(status.TenantOf("victim_svc_web_http"), status.Change{At: begin, Kind: status.ServerChange, What: "victim's"})
	for i := range 3 * status.ChangesKept {
		backend := []string{"evil_svc_web_http", "evil_ing_i_svc_web_http", "evil_auth_svc_check_80"}[i%3]
		l.AddTo(status.TenantOf(backend),
			status.Change{At: begin.Add(time.Duration(i) * time.Second), Kind: status.ServerChange, What: "evil's"})
	}
	all := l.Since(time.Time{})
	if len(all) != status.ChangesKept || all[status.ChangesKept-1].What != "lost" || all[status.ChangesKept-2].What != "victim's" {
		t.Errorf("%d changes, the oldest are %v", len(all), all[len(all)-2:])
	}
	if len(l.Count) != 3 || l.Count["evil"] != status.ChangesKept-2 {
		t.Errorf("it counts %v", l.Count)
	}
}

func TestTheChangesOfARoundAreToldInTurns(t *testing.T) {
	var list []plan.SetServer
	for i := range 100 {
		list = append(list, plan.SetServer{ID: haproxy.ServerID{Backend: "evil_svc_web_http", Server: strconv.Itoa(i)}})
	}
	list = append(list, plan.SetServer{ID: haproxy.ServerID{Backend: "victim_svc_web_http", Server: "v"}},
		plan.SetServer{ID: haproxy.ServerID{Backend: "east__victim_svc_web_http", Server: "e"}})
	got := status.InTurns(list, func(s plan.SetServer) string { return status.TenantOf(s.ID.Backend) })
	var first []string
	for _, s := range got[:5] {
		first = append(first, s.ID.Server)
	}
	if strings.Join(first, " ") != "0 v e 1 2" || len(got) != len(list) {
		t.Errorf("got %d, the first of them %v", len(got), first)
	}
}
