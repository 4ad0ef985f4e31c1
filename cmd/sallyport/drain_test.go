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

	"sallyport/appliance"
	"sallyport/appliance/config"
	"sallyport/appliance/group"
)

// gate serves the control socket of an appliance, which answers with one state after
// another and repeats the last. It returns the path of a configuration file, and what was
// asked.
func gate[S any](t *testing.T, states ...S) (path string, asked func() []string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "gate") // short: the path of a socket has 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path = filepath.Join(dir, "sallyport.yaml")
	if err := os.WriteFile(path, []byte("clusters: [{kubeconfig: none}]\nhaproxy: {runDir: "+dir+"}\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	if len(states) == 0 {
		return path, nil
	}
	var requests []string
	listener, err := net.Listen("unix", filepath.Join(dir, "control.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests = append(requests, r.Method+" "+r.URL.String())
		if s, is := any(states[0]).(appliance.DrainStatus); is && s.Why == "refused" {
			http.Error(w, "no other member of the group is full: gate-2 \x1b[31m", http.StatusConflict)
			return
		}
		_ = json.NewEncoder(w).Encode(states[0])
		if len(states) > 1 {
			states = states[1:]
		}
	}))
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
	return path, func() []string { server.Close(); return requests }
}

func TestDrainWaitsUntilNoConnectionIsLeft(t *testing.T) {
	state := func(left bool, connections int, timeout time.Duration) appliance.DrainStatus {
		return appliance.DrainStatus{
			Group: "edge", Draining: true, Class: group.None, Why: "it drains", Left: left,
			Connections: connections, Timeout: timeout,
		}
	}
	spare := state(false, 3, 0)
	spare.Class, spare.Why = group.Spare, "no other member is full"
	ended := state(false, 3, time.Minute)
	ended.Draining = false
	for name, row := range map[string]struct {
		args   string
		states []appliance.DrainStatus
		code   int
		want   string // of stdout
		stderr string
		asked  int
	}{
		"without waiting": {"", []appliance.DrainStatus{state(false, 9, time.Minute)}, 0, "", "", 1},
		"nothing is left": {
			"--wait",
			[]appliance.DrainStatus{
				state(false, 9, time.Minute), state(true, 9, time.Minute),
				state(true, 1, time.Minute), state(true, 0, time.Minute),
			},
			0,
			"withdrawn: 9 connections are left\ndrained: no connections are left\n", "", 4,
		},
		"one does not end": {
			"--wait",
			[]appliance.DrainStatus{state(true, 1, 0)},
			0,
			"drained, but after 0s (group.drain.timeout) 1 connection is left\n", "", 1,
		},
		"it does not leave": {
			"--wait",
			[]appliance.DrainStatus{spare},
			1, "",
			"the appliance has not left after 0s: it is spare: no other member is full\n", 1,
		},
		"somebody undrains it": {
			"--wait",
			[]appliance.DrainStatus{state(false, 3, time.Minute), ended},
			1, "",
			"the drain was ended meanwhile, by sallyport undrain\n", 2,
		},
		"it is refused": {
			"--wait",
			[]appliance.DrainStatus{{Why: "refused"}},
			1, "",
			"no other member of the group is full: gate-2 ?[31m\n", 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			path, asked := gate(t, row.states...)
			code, stdout, stderr := sallyport(append([]string{"drain", "--config", path},
				strings.Fields(row.args)...)...)
			if code != row.code || stdout != row.want || stderr != row.stderr {
				t.Errorf("got %d, %q, %q; want %d, %q, %q", code, stdout, stderr, row.code, row.want, row.stderr)
			}
			if got := asked(); len(got) != row.asked || got[0] != "POST /drain?force=false&stopping=false" {
				t.Errorf("asked %q, want %d requests, the first to drain", got, row.asked)
			}
		})
	}
}

func TestDrainOfAClusterWaitsUntilNoConnectionToItIsLeft(t *testing.T) {
	state := func(drained bool, connections, alone int) appliance.ClusterDrainStatus {
		return appliance.ClusterDrainStatus{
			Cluster: "blue", Draining: true, Drained: drained, Connections: connections, Alone: alone,
		}
	}
	grouped := state(true, 0, 0)
	grouped.Group = "edge"
	away := grouped
	away.Silent = []string{"gate-2", "gate-3"}
	const nothing = "drained: no connections to drained pods of cluster blue are left"
	for name, row := range map[string]struct {
		args   string
		states []appliance.ClusterDrainStatus
		code   int
		want   string // of stdout
		stderr string
		asked  int
	}{
		"without waiting": {"", []appliance.ClusterDrainStatus{state(false, 9, 0)}, 0, "", "", 1},
		"nothing is left": {
			"--wait",
			[]appliance.ClusterDrainStatus{state(false, 0, 0), state(true, 9, 0), state(true, 0, 0)},
			0,
			nothing + "\n", "", 3,
		},
		"a part of it": {
			"--wait --partial",
			[]appliance.ClusterDrainStatus{state(true, 0, 2)},
			0, nothing + "; it still serves 2 Services that no other cluster serves\n", "", 1,
		},
		"one does not end": {
			"--wait --timeout 0s",
			[]appliance.ClusterDrainStatus{state(true, 1, 0)},
			0, "drained, but after 0s (--timeout) 1 connection is left\n", "", 1,
		},
		"somebody undrains it": {
			"--wait",
			[]appliance.ClusterDrainStatus{state(false, 3, 0), {Cluster: "blue"}},
			1, "", "the drain was ended meanwhile, by sallyport undrain\n", 2,
		},
		"in a group": {
			"",
			[]appliance.ClusterDrainStatus{grouped},
			0,
			"the members of group edge follow\n", "", 1,
		},
		"in a group with members that are away": {
			"",
			[]appliance.ClusterDrainStatus{away},
			0,
			"the members of group edge follow, and once they are heard again: gate-2, gate-3\n", "", 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			path, asked := gate(t, row.states...)
			code, stdout, stderr := sallyport(append([]string{"drain", "--cluster", "blue", "--config", path},
				strings.Fields(row.args)...)...)
			if code != row.code || stdout != row.want || stderr != row.stderr {
				t.Errorf("got %d, %q, %q; want %d, %q, %q", code, stdout, stderr, row.code, row.want, row.stderr)
			}
			if got := asked(); len(got) != row.asked || !strings.HasPrefix(got[0], "POST /cluster/drain?cluster=blue") {
				t.Errorf("asked %q, want %d requests, the first to drain", got, row.asked)
			}
		})
	}
	path, _ := gate[appliance.DrainStatus](t)
	if code, _, stderr := sallyport("drain", "--partial", "--config", path); code == 0 ||
		!strings.Contains(stderr, "--partial, --dry-run and --timeout need --cluster") {
		t.Errorf("without a cluster: got %d, %q", code, stderr)
	}
	if code, _, stderr := sallyport("drain", "--cluster", "blue", "--force", "--config", path); code == 0 ||
		!strings.Contains(stderr, "--partial drains the rest") {
		t.Errorf("with --force: got %d, %q", code, stderr)
	}
}

func TestADryRunOfADrainDrainsNothing(t *testing.T) {
	for name, row := range map[string]struct {
		state appliance.ClusterDrainStatus
		want  string
	}{
		"nothing stands in the way": {appliance.ClusterDrainStatus{}, "cluster blue can be drained\n"},
		"some Services stay": {
			appliance.ClusterDrainStatus{Alone: 2},
			"cluster blue can be drained; it still serves 2 Services that no other cluster serves\n",
		},
		"it is drained": {appliance.ClusterDrainStatus{Draining: true}, "cluster blue is drained already\n"},
	} {
		path, asked := gate(t, row.state)
		code, stdout, stderr := sallyport("drain", "--cluster", "blue", "--partial", "--dry-run", "--config", path)
		if code != 0 || stdout != row.want || stderr != "" {
			t.Errorf("%s: got %d, %q, %q; want %q", name, code, stdout, stderr, row.want)
		}
		if got := asked(); !slices.Equal(got, []string{"GET /cluster/drain?cluster=blue&dry=true&partial=true"}) {
			t.Errorf("%s: asked %q", name, got)
		}
	}
}

func TestDrainSaysWhereNoApplianceAnswers(t *testing.T) {
	path, _ := gate[appliance.DrainStatus](t)
	if code, _, stderr := sallyport("drain", "--config", path); code != 1 ||
		!strings.Contains(stderr, "no appliance of a group answers at "+filepath.Dir(path)+
			"/control.sock: does it run, and does its configuration have a group?") {
		t.Errorf("got %d, %q", code, stderr)
	}
	if code, stdout, stderr := sallyport("drain", "--wait", "--stopping", "--config", path); code != 0 ||
		stdout != "" || stderr != "" {
		t.Errorf("at a stop: got %d, %q, %q; want nothing", code, stdout, stderr)
	}
}

func TestUndrainAsksOnce(t *testing.T) {
	path, asked := gate(t, appliance.DrainStatus{})
	if code, _, stderr := sallyport("undrain", "--config", path); code != 0 {
		t.Fatal(stderr)
	}
	if got := asked(); len(got) != 1 || got[0] != "POST /undrain" {
		t.Errorf("asked %q, want POST /undrain", got)
	}
}

func TestStatusShowsTheGroup(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"group": {"name": "edge", "class": "full",
  "addresses": [{"address": "203.0.113.10", "held": true, "announced": ["192.168.50.1", "192.168.50.2"]}, {"address": "2001:db8::10", "held": false}],
  "members": [
    {"name": "gate-1", "address": "192.168.50.21", "self": true, "alive": true, "class": "full", "forNanoseconds": 60000000000, "version": "v1"},
    {"name": "gate-2", "address": "192.168.50.22", "alive": true, "class": "none", "draining": true, "ageNanoseconds": 40000000, "forNanoseconds": 2000000000, "version": "v2", "differs": true},
    {"name": "gate-3", "address": "192.168.50.23", "alive": false, "class": "full", "ageNanoseconds": 5000000000, "problem": "Packets of gate-3 are not signed."}]},
  "peers": [{"upstream": true, "address": "192.168.50.1", "asn": 64512, "state": "Established", "bfd": "up"}]}`))
	}))
	t.Cleanup(server.Close)
	var all strings.Builder
	for _, part := range []string{"members", "addresses", "peers"} {
		code, got, stderr := sallyport("status", part, "--address", strings.TrimPrefix(server.URL, "http://"))
		if code != 0 {
			t.Fatal(stderr)
		}
		all.WriteString(got + "\n")
	}
	golden(t, "status-group.txt", []byte(all.String()))
}

func TestTheManifestsPeerWithEveryMemberOfAGroup(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sallyport.yaml")
	text := strings.Replace(config.GroupExample, "secretFile: /etc/sallyport/group.key ",
		"secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY= ", 1)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	code, got, stderr := sallyport("manifests", "--offline", "--config", path)
	if code != 0 {
		t.Fatal(stderr)
	}
	for _, peer := range []string{"192.168.50.21", "192.168.50.22"} {
		if n := strings.Count(got, "peerIP: \""+peer+"\"\n"); n != 1 {
			t.Errorf("%d BGPPeers for %s, want one", n, peer)
		}
	}
}
