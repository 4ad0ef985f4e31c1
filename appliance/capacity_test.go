package appliance

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"sallyport/haproxy"
)

// TestServersWaitForRoom has more pods than HAProxy can hold. What is served stays
// served, the status says what waits, and more open files end the wait.
func TestServersWaitForRoom(t *testing.T) {
	s := newScene(t)
	s.speaker.announce(block1, node1)
	s.speaker.announce(block2, node2)
	s.proxy.info.Room.Files = 508 // for 24 servers
	s.settle(t)
	if got := s.proxy.String(); got != "open 172.16.171.66:80, open 172.16.189.66:80" {
		t.Fatalf("got %s", got)
	}
	few := s.watcher.snapshot.Slices[0]
	more := few.DeepCopy()
	ready := true
	for i := range 30 {
		more.Endpoints = append(more.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("172.16.171.%d", 70+i)},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	scale := func(to *discoveryv1.EndpointSlice) (open int) {
		s.watcher.snapshot.Slices = []*discoveryv1.EndpointSlice{to}
		s.settle(t)
		return strings.Count(s.proxy.String(), "open")
	}
	if got := scale(more); got != 24 {
		t.Errorf("%d servers are open, want 24", got)
	}
	_, page := endpointStatus(t, s)
	for _, want := range []string{
		"NoRoom", "8 of 32 servers of cluster demo, Service default/web port 80 wait",
		"servers: 32 of 24 (133 %) in use: ",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the status does not have %q", want)
		}
	}
	s.proxy.info.Room.Files = 20_000
	if got := scale(more); got != 32 {
		t.Errorf("with more open files, %d servers are open, want 32", got)
	}
	if problems := s.view.Load().Problems; len(problems) > 0 || s.warns("in use") {
		t.Errorf("with more open files there are problems %v and warnings %v", problems, s.view.Load().Warnings)
	}
}

// warns reports whether a warning of the last round has these words.
func (s *scene) warns(words string) bool {
	return slices.ContainsFunc(s.view.Load().Warnings, func(w string) bool { return strings.Contains(w, words) })
}

func endpointStatus(t *testing.T, s *scene) (code int, text string) {
	t.Helper()
	h, _ := endpoint(s)
	return ask(t, h, "/status")
}

func TestConnectionsLeaveRoomForServers(t *testing.T) {
	s := newScene(t)
	s.proxy.info.Room = haproxy.Room{Memory: 1 << 40, Files: 516} // 16 to share
	s.settle(t)
	if got := s.view.Load().Config.Tune.MaxConn; got != 6 {
		t.Errorf("HAProxy accepts %d connections, want 6", got)
	}
	s.proxy.info.MaxConn = 4 // as after a time with more servers: fewer servers take no reload
	s.settle(t)
	if got := s.view.Load().Config.Tune.MaxConn; got != 4 {
		t.Errorf("HAProxy accepts %d connections after a time with more servers, want 4", got)
	}
	s.proxy.info.MaxConn = 0 // it was started anew
	s.cfg.HAProxy.MaxConnections = 5
	s.settle(t)
	if v := s.view.Load(); v.Config.Tune.MaxConn != 5 || s.warns("HAProxy accepts") {
		t.Errorf("HAProxy accepts %d connections, want 5; warnings %v", v.Config.Tune.MaxConn, v.Warnings)
	}
	s.cfg.HAProxy.MaxConnections = 7
	s.settle(t)
	if v := s.view.Load(); v.Config.Tune.MaxConn != 6 ||
		!s.warns("HAProxy accepts 6 connections instead of the 7 that are configured") {
		t.Errorf("HAProxy accepts %d connections, want 6; warnings %v", v.Config.Tune.MaxConn, v.Warnings)
	}
}

func TestALimitThatIsNearIsLoggedOnce(t *testing.T) {
	s := newScene(t)
	var log bytes.Buffer
	s.judge.Log = slog.New(slog.NewTextHandler(&log, nil))
	for _, step := range []struct {
		used  uint64
		warns bool
		lines int // of the log, so far
	}{
		{79, false, 0}, {80, true, 1}, {99, true, 1}, {79, false, 1}, {80, true, 1}, {74, false, 1}, {120, true, 2},
	} {
		s.proxy.info.Capacity = []haproxy.Capacity{{
			Resource: "connections", Used: step.used, Limit: 100,
			Remedy: "add memory",
		}}
		s.settle(t)
		warns := slices.Contains(s.view.Load().Warnings,
			fmt.Sprintf("connections: %d of 100 (%d %%) in use: add memory", step.used, step.used))
		if lines := strings.Count(log.String(), "a limit is near"); warns != step.warns || lines != step.lines {
			t.Errorf("%d in use: warning %v, want %v; %d lines in the log, want %d", step.used, warns, step.warns,
				lines, step.lines)
		}
	}
	h, _ := endpoint(s)
	if code, text := ask(t, h, "/metrics"); code != http.StatusOK ||
		!strings.Contains(text, `sallyport_capacity_used{resource="connections"} 120`) ||
		!strings.Contains(text, `sallyport_capacity_limit{resource="connections"} 100`) {
		t.Errorf("the metrics do not have the capacity")
	}
	if code, text := ask(t, h, "/"); code != http.StatusOK || !strings.Contains(text, "120 of 100 (120 %)") {
		t.Errorf("the page does not have the capacity")
	}
}
