package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	view "sallyport/appliance/status"
	"sallyport/bgp"
)

// status returns the status page of a process with this many nodes.
func status(t *testing.T, nodes int) []byte {
	t.Helper()
	s := view.Status{
		Identity: "gate-1", Version: "1.2.3", Ready: nodes > 0,
		Backends: []view.BackendStatus{{Name: "web", Open: 2, Servers: make([]view.ServerStatus, 3)}},
	}
	if nodes == 0 {
		s.NotReady = []string{
			"no cluster answers",
			"nothing is known of demo, and it has never been, so that there is nothing to serve but answers of 404",
		}
		s.Warnings = []string{"an \x1b[31mugly\x07 name"}
	}
	for i := range nodes {
		addr := netip.AddrFrom4([4]byte{192, 168, 50, byte(22 + i)})
		name := fmt.Sprintf("worker%d", i)
		s.Peers = append(s.Peers, bgp.PeerState{Peer: bgp.Peer{Node: name, Addr: addr}, State: "Established"})
		s.Routes = append(s.Routes, view.RouteStatus{
			Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(i), 64}), 26), Via: addr, Node: name,
			Installed: i != 1, Servers: i,
		})
	}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestTheScreenShowsTheStateOfTheMachine(t *testing.T) {
	config := volume{device: "/dev/vda2", label: configLabel, boot: true}.String()
	usual := State{Source: config, Hostname: "gate-1", Status: "http://10.0.0.21:9090"}
	bad := usual
	bad.Source = lastGood + ", from " + config
	bad.Refused = &Refusal{
		config,
		[]string{
			`sallyport.yaml:12: unknown key "asm" in bgp; did you mean "asn"? allowed: asn, routerID, listen, port, holdTime, retain, failStatic`,
		},
	}
	bad.Notices = []string{"no time server has answered"}
	stick := usual
	stick.Source = volume{device: "/dev/sdb1", label: "CIDATA"}.String()
	for name, row := range map[string]struct {
		state  State
		nodes  int // -1: no answer
		before error
	}{
		"stick":   {state: stick, nodes: 2},
		"none":    {state: State{Hostname: defaultName, Notices: []string{"no interface has an address"}}},
		"ready":   {state: usual, nodes: 2},
		"full":    {state: usual, nodes: 30},
		"starts":  {state: usual},
		"refused": {state: bad, nodes: -1},
		"early":   {before: errors.New("the machine has not looked for its file yet")},
	} {
		t.Run(name, func(t *testing.T) {
			s := scene{
				version: "1.2.3", now: time.Date(2026, 11, 21, 16, 0, 7, 0, time.UTC), state: row.state,
				stateErr: row.before,
				addresses: []string{
					"eth0       52:54:00:12:34:56  192.168.50.21/24",
					"eth1       52:54:00:12:34:57  no link",
				},
			}
			switch {
			case row.nodes < 0:
				s.askErr = errors.New("the process does not answer: connection refused")
			case row.state.Source != "":
				if err := json.Unmarshal(status(t, row.nodes), &s.process); err != nil {
					t.Fatal(err)
				}
			}
			got := draw(s)
			golden(t, name+".screen", got)
			all := strings.Split(strings.TrimSuffix(got, "\n"), "\n")
			for i, line := range all {
				if len(line) > columns || i >= lines {
					t.Errorf("line %d does not fit: %q", i+1, line)
				}
			}
		})
	}
}

// TestReadyIsWhatTheProcessSays asks real HTTP servers.
func TestReadyIsWhatTheProcessSays(t *testing.T) {
	ready := make(chan bool, 1)
	ready <- false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now := <-ready
		ready <- true // the second question is answered with yes
		if r.URL.Path != "/readyz" || !now {
			http.Error(w, "no cluster answers", http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(server.Close)
	h := newHouse(t)
	at := server.URL
	if err := h.tell(State{Source: "x", Status: at}); err != nil {
		t.Fatal(err)
	}
	var said []string
	if err := h.Ready(t.Context(), func(s string) { said = append(said, s) }); err != nil {
		t.Fatal(err)
	}
	if len(said) != 1 || !strings.Contains(said[0], "no cluster answers") {
		t.Errorf("said %q", said)
	}

	server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	err := h.Ready(ctx, func(string) { cancel() })
	if err == nil || !strings.Contains(err.Error(), "the process does not answer") {
		t.Errorf("a process that is gone: got %v", err)
	}
}

func TestAMachineWithoutAFileSaysHowToGiveOne(t *testing.T) {
	h := newHouse(t)
	h.put(credential, "bgp: {asm: 1}")
	s := h.prepare()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.Wait(ctx, listener) }()
	for path, code := range map[string]int{
		"/": http.StatusOK, "/status": http.StatusServiceUnavailable,
		"/readyz": http.StatusServiceUnavailable,
	} {
		resp, err := http.Get("http://" + listener.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		body := new(strings.Builder)
		_ = resp.Write(body)
		_ = resp.Body.Close()
		if resp.StatusCode != code || !strings.Contains(body.String(), "partition labelled CONFIG") ||
			!strings.Contains(body.String(), `did you mean "asn"?`) {
			t.Errorf("%s: got %s", path, body)
		}
	}
	// It is ready then: nothing more can be asked of the version that runs.
	s.Status = "http://" + listener.Addr().String()
	if err := h.tell(s); err != nil {
		t.Fatal(err)
	}
	if err := h.isReady(t.Context()); err != nil {
		t.Errorf("got %v, want ready", err)
	}
	s.Refused.Source = lastGood + ", from elsewhere"
	if err := h.tell(s); err != nil {
		t.Fatal(err)
	}
	if err := h.isReady(t.Context()); !errors.Is(err, errNotTaken) {
		t.Errorf("a version that does not take the last good file: got %v", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("got %v", err)
	}
}
