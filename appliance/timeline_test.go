package appliance

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestTheTimelineTellsWhatChangedAndWhy(t *testing.T) {
	s := half(t)
	s.speaker.announce(block2, node2)
	s.settle(t)
	s.speaker.down[netip.MustParseAddr(node2)] = true
	s.settle(t)
	h, _ := endpoint(s)
	code, body := ask(t, h, "/events")
	var all []Change
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
		"server: 172.16.171.66:80 of default_svc_web_80 is open: routed",
		"offer: offer of 172.16.9.0/26 by 192.168.50.24 refused: ",
		"session: BGP session with node worker2 (192.168.50.24) is lost: hold timer expired",
	} {
		if !strings.Contains(got.String(), want) {
			t.Errorf("no %q in\n%s", want, &got)
		}
	}
	if _, page := ask(t, h, "/node/demo/worker2"); !strings.Contains(page, "BGP session with node worker2 (192.168.50.24) is lost") {
		t.Error("the page of the node does not have its change")
	}
	if code, _ := ask(t, h, "/events?since=yesterday"); code != http.StatusBadRequest {
		t.Errorf("since=yesterday: got %d", code)
	}
}

func TestTheTimelineKeepsTheNewest(t *testing.T) {
	var l timeline
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 2*changesKept + 7 {
		l.add(Change{At: begin.Add(time.Duration(i) * time.Second)})
	}
	all := l.since(time.Time{})
	if len(all) != changesKept || !all[0].At.Equal(begin.Add((2*changesKept+6)*time.Second)) {
		t.Errorf("%d changes, the newest of %s", len(all), all[0].At)
	}
	if !slices.IsSortedFunc(all, func(a, b Change) int { return b.At.Compare(a.At) }) {
		t.Error("they are not in their order")
	}
	if got := l.since(all[4].At); len(got) != 5 {
		t.Errorf("from the fifth on: got %d", len(got))
	}
}

func TestManyChangesOfARoundAreOneMore(t *testing.T) {
	s := wide(t, 60)
	routes, more := 0, false
	for _, c := range s.changes.since(time.Time{}) {
		if c.Kind == routeChange {
			routes++
			more = more || c.What == "38 more changed in the same round"
		}
	}
	if routes != screenful+1 || !more {
		t.Errorf("%d changes of routes, the rest as one: %v", routes, more)
	}
}
