package haproxy

import (
	"bufio"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// meter returns a Meter that reads answers that a test makes up.
func meter(own map[string]string) (m *Meter, read func(pid int, rows string) (Load, error)) {
	p := &Proxy{}
	p.legend.Store(&legend{own: own})
	m = p.Meter()
	m.legend = p.reading()
	now := time.Unix(0, 0)
	return m, func(pid int, rows string) (Load, error) {
		now = now.Add(10 * time.Second)
		m.in.Reset(strings.NewReader(rows + fmt.Sprintf("\n\nName: HAProxy\nPid: %d\n\n", pid)))
		pid, err := m.read(now)
		if err != nil {
			return Load{}, err
		}
		return m.compare(now, pid), nil
	}
}

const statsHeading = "# pxname,svname,scur,stot,econ,eresp,act,bck,mode,req_tot,hrsp_5xx,rtime,status,\n"

func TestTheWorkerCountsItsTraffic(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		hold, held := make(chan struct{}), make(chan struct{})
		app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			switch q.URL.Path {
			case "/broken":
				w.WriteHeader(http.StatusInternalServerError)
			case "/slow":
				close(held)
				<-hold
			}
		}))
		defer app.Close()
		cfg := r.config(backend("app", serverAt(app.Listener.Addr())))
		r.settle(cfg, states(cfg, Open))
		m := r.p.Meter()
		before, err := m.Read(t.Context())
		if err != nil || before.During != 0 {
			t.Fatalf("got %+v, %v, want a reading without one before", before, err)
		}
		for _, path := range []string{"/", "/", "/broken"} {
			if _, err := r.try("app.test", path); err != nil {
				t.Fatal(err)
			}
		}
		go r.try("app.test", "/slow") //nolint:errcheck // the counters tell
		<-held
		// HAProxy counts a request of a frontend at once, but one of a backend, and an answer,
		// once its last byte is sent.
		var sum Load
		got := BackendLoad{}
		for deadline := time.Now().Add(time.Minute); sum.Requests < 4 || sum.Failed < 1 || got.Failed < 1 ||
			got.Requests < 3 || got.Connections > 1; {
			after, err := m.Read(t.Context())
			if err != nil || time.Now().After(deadline) {
				t.Fatalf("got %+v, %+v, want 4 requests, 3 of the backend, and 1 failed; %v", sum, got, err)
			}
			sum.Requests, sum.Failed = sum.Requests+after.Requests, sum.Failed+after.Failed
			i := slices.IndexFunc(after.Backends, func(b BackendLoad) bool { return b.Backend == "app" })
			if i < 0 || len(after.Backends) != 1 {
				t.Fatalf("got the backends %v, want app alone", after.Backends)
			}
			b := after.Backends[i]
			got = BackendLoad{
				Backend: "app", Requests: got.Requests + b.Requests, Failed: got.Failed + b.Failed,
				Connections: b.Connections, Open: b.Open,
			}
		}
		close(hold)
		if want := (BackendLoad{Backend: "app", Requests: 3, Failed: 1, Connections: 1, Open: 1}); sum.Requests != 4 ||
			sum.Failed != 1 || got != want {
			t.Errorf("got %+v and %+v, want 4 requests, 1 failed, and %+v", sum, got, want)
		}
		r.settle(cfg, states(cfg, Closed))
		if after, err := m.Read(t.Context()); err != nil || after.Backends[0].Open != 0 {
			t.Errorf("got %+v, %v, want no open server", after, err)
		}
	})
}

func TestASparePlaceCountsForItsBackend(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		a, b := backend("default_a_80", origin(t, "a")), backend("default_b_80", origin(t, "b"))
		r.settle(r.config(a), states(r.config(a), Open))
		m := r.p.Meter()
		if _, err := m.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
		cfg := r.config(a, b)
		if res := r.apply(cfg, states(cfg, Open)); res.Reloaded {
			t.Fatalf("got %+v, want no reload", res)
		}
		requests := func(n uint64) {
			t.Helper()
			for range n {
				r.get("default_b_80.test", "/")
			}
			got := BackendLoad{}
			for deadline := time.Now().Add(time.Minute); got.Requests < n; {
				load, err := m.Read(t.Context())
				if err != nil || len(load.Backends) != 2 || time.Now().After(deadline) {
					t.Fatalf("got %+v, %v", load, err)
				}
				sum := got.Requests + load.Backends[1].Requests
				got = load.Backends[1]
				got.Requests = sum
			}
			if got.Backend != "default_b_80" || got.Requests != n || got.Open != 1 {
				t.Errorf("got %+v, want %d requests of default_b_80", got, n)
			}
		}
		requests(3)
		r.later()
		r.apply(cfg, states(cfg, Open))
		requests(5)
	})
}

func TestTrafficIsWhatCameSinceTheReadingBefore(t *testing.T) {
	_, read := meter(map[string]string{"_spare-x-1": "new", "_spare-x-2": "moving"})
	first := statsHeading +
		"http,FRONTEND,,,,,,,http,100,2,,\na,BACKEND,3,90,,,2,1,http,90,2,5,\nb,BACKEND,0,10,,,0,0,http,10,0,50,\n" +
		"t,BACKEND,1,40,2,3,1,0,tcp,,,,\n"
	load, err := read(7, first)
	if err != nil || load.During != 0 || load.Requests != 0 || len(load.Backends) != 3 ||
		load.Backends[0] != (BackendLoad{"a", 0, 0, -1, 3, 3}) {
		t.Fatalf("the first: got %+v, %v", load, err)
	}
	for _, step := range []struct {
		name string
		pid  int
		rows string
		want string
	}{
		{
			"since then", 7,
			"http,FRONTEND,,,,,,,http,120,3,,\nsallyport-auth,FRONTEND,,,,,,,http,9,9,,\n" +
				"a,BACKEND,4,99,,,2,0,http,96,3,20,\nb,BACKEND,0,12,,,0,0,http,12,0,40,\n" +
				"t,BACKEND,2,45,3,3,1,0,tcp,,,,\n",
			"{10s 20 1 25ms [{a 6 1 20ms 4 2} {b 2 0 40ms 0 0} {t 5 1 -1ns 2 1}] []}",
		},
		{
			"nothing", 7,
			"http,FRONTEND,,,,,,,http,120,3,,\na,BACKEND,4,99,,,2,0,http,96,3,20,\nt,BACKEND,2,45,3,3,1,0,tcp,,,,\n",
			"{10s 0 0 -1ns [{a 0 0 -1ns 4 2} {t 0 0 -1ns 2 1}] []}",
		},
		{
			"another worker, and spare places", 8,
			"http,FRONTEND,,,,,,,http,130,4,,\na,BACKEND,4,99,,,2,0,http,97,3,20,\n" +
				"moving,BACKEND,1,2,,,1,0,http,2,0,1,\n" +
				"_spare-x-1,BACKEND,1,1,,,1,0,http,1,0,1,\n_spare-x-2,BACKEND,1,3,,,0,0,http,3,0,2,\n" +
				"_spare-x-3,BACKEND,0,9,,,0,0,http,9,0,1,\n" + nowhere + ",BACKEND,0,9,,,0,0,http,0,9,1,\n",
			"{10s 130 4 17.482142ms [{a 97 3 20ms 4 2} {moving 5 0 2ms 2 1} {new 1 0 1ms 1 1}] []}",
		},
		{
			"counters that a command cleared", 8, "http,FRONTEND,,,,,,,http,1,1,,\na,BACKEND,4,99,,,2,0,http,1,1,20,\n",
			"{10s 1 1 20ms [{a 1 1 20ms 4 2}] []}",
		},
	} {
		load, err := read(step.pid, statsHeading+step.rows)
		if got := fmt.Sprint(load); err != nil || got != step.want {
			t.Errorf("%s: got %s, %v, want %s", step.name, got, err, step.want)
		}
	}
	for name, text := range map[string]string{
		"no statistics":       "Permission denied\n",
		"a missing column":    "# pxname,svname,\n",
		"an answer cut short": statsHeading + "a,BACKEND,4,99,,,2,0,http,500,1,20,\n",
	} {
		pid := 0
		if name == "no statistics" {
			pid = 8
		}
		if load, err := read(pid, text); err == nil {
			t.Errorf("%s: got %+v, want an error", name, load)
		}
	}
	if load, err := read(8, statsHeading+"http,FRONTEND,,,,,,,http,4,1,,\na,BACKEND,4,99,,,2,0,http,3,1,20,\n"); err !=
		nil || load.Requests != 3 || load.Backends[0].Requests != 2 {
		t.Errorf("after readings that failed: got %+v, %v, want what came since the last whole one", load, err)
	}
}

func TestAReadingOfTheSameBackendsMakesNoGarbage(t *testing.T) {
	m, _ := meter(nil)
	var b strings.Builder
	b.WriteString(statsHeading)
	for i := range 10_000 {
		fmt.Fprintf(&b, "default_svc_app-%05d_80,BACKEND,3,90,,,2,1,http,90,2,5,\n", i)
	}
	b.WriteString("\nPid: 7\n")
	in := strings.NewReader(b.String())
	now := time.Unix(0, 0)
	read := func() {
		in.Reset(b.String())
		m.in.Reset(in)
		now = now.Add(time.Second)
		if pid, err := m.read(now); err != nil || len(m.compare(now, pid).Backends) != 10_000 {
			t.Fatal(err)
		}
	}
	read()
	if n := testing.AllocsPerRun(3, read); n > 0 {
		t.Errorf("a reading makes %.0f pieces of garbage", n)
	}
}

func FuzzMeter(f *testing.F) {
	f.Add([]byte(statsHeading + "a,BACKEND,3,90,,,2,1,http,90,2,5,\n\nPid: 7\n"))
	f.Add([]byte("# pxname,\"\n,,,\n"))
	f.Fuzz(func(t *testing.T, answer []byte) {
		m, _ := meter(nil)
		for i := range 2 {
			m.in = bufio.NewReaderSize(strings.NewReader(string(answer)), 4096)
			now := time.Unix(int64(i+1), 0)
			if pid, err := m.read(now); err == nil {
				for _, b := range m.compare(now, pid).Backends {
					if b.Backend == "" {
						t.Error("a backend has no name")
					}
				}
			}
		}
	})
}

func TestIdleConnectionsAreCountedByTheirServer(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		a, b := backend("default_a_80", origin(t, "a")), backend("default_b_80", origin(t, "b"))
		cfg := r.config(a, b)
		r.settle(cfg, states(cfg, Open))
		if got := r.get("default_a_80.test", "/"); got != "a" {
			t.Fatalf("got %q, want a", got)
		}
		idle := func(backends ...*Backend) int {
			t.Helper()
			ends := map[netip.AddrPort]bool{}
			for _, b := range backends {
				ends[b.Servers[0].Addr] = true
			}
			n, err := r.p.Idle(func(at netip.AddrPort, source netip.Addr) bool { return ends[at] && !source.IsValid() })
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		r.eventually("the connection to a is idle", func() bool { return idle(a, b) == 1 && idle(a) == 1 })
		if n := idle(b); n != 0 {
			t.Errorf("%d idle connections to b, want none", n)
		}
	})
}

func TestConnectionsAreReadByTheNamesOfTheirColumns(t *testing.T) {
	for name, answer := range map[string][2]string{
		"HAProxy 3.2": {
			"# bkname/svname bkid/svid addr port - purge_delay used_cur used_max need_est unsafe_nb safe_nb idle_lim idle_cur",
			"b/s 3/1 192.0.2.1 80 - 5000 4 9 9 8 7 -1 6 3 3",
		},
		"HAProxy 3.4": {
			"# bkname/svname bkid/svid addr port - purge_delay served used_cur used_max need_est idle_sess unsafe_nb " +
				"safe_nb idle_lim idle_cur",
			"b/s 3/1 192.0.2.1 80 - 5000 2 4 9 9 1 8 7 -1 6 3 3",
		},
		"a row that is cut": {"# bkname/svname used_cur idle_cur", "b/s 4"},
		"no such columns":   {"# bkname/svname bkid/svid", "b/s 3/1"},
	} {
		live := &LiveBackend{Servers: []Live{{Name: "s"}}}
		r := reading{backends: map[string]*LiveBackend{"b": live}}
		for _, line := range answer {
			if err := r.line(line, strings.Fields(line)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		used, busiest := 4, 10
		if !strings.HasPrefix(name, "HAProxy") {
			used, busiest = 0, 0
		}
		if live.Servers[0].Sessions != used || r.picture.busiest != busiest {
			t.Errorf("%s: %d connections in use and %d together, want %d and %d", name, live.Servers[0].Sessions,
				r.picture.busiest, used, busiest)
		}
	}
}

// TestABackendThatJoinsASetHasNoEarlierRequests has counts of servers from before the backend was in a set.
func TestABackendThatJoinsASetHasNoEarlierRequests(t *testing.T) {
	m, read := meter(nil)
	b := backend("b", nowhereServer(1))
	b.Cluster = "blue"
	cfg := func(b *Backend) legend { return legend{cfg: &Config{Backends: []*Backend{b}}} }
	rows := func(server string, requests int) string {
		return fmt.Sprintf("%sb,%s,0,%[3]d,,,1,0,http,%[3]d,0,5,no check,\nb,BACKEND,0,%[3]d,,,1,0,http,%[3]d,0,5,UP,\n",
			statsHeading, server, requests)
	}
	joined := *b
	joined.Set = "all"
	next := joined
	next.Servers = []Server{nowhereServer(2)}
	for i, step := range []struct {
		legend legend
		server string
		total  int
		want   uint64
	}{
		{cfg(b), "", 100, 0},
		{cfg(b), "", 120, 20},
		{cfg(&joined), b.Servers[0].Name, 150, 0}, // the servers count from now on
		{cfg(&joined), b.Servers[0].Name, 157, 7},
		{cfg(&next), next.Servers[0].Name, 160, 160}, // a server that is new counts from its beginning
	} {
		m.legend = step.legend
		load, err := read(7, rows(step.server, step.total))
		if err != nil || len(load.Clusters) != 1 || load.Clusters[0].Requests != step.want {
			t.Errorf("reading %d: got %+v, %v, want %d requests of blue", i+1, load.Clusters, err, step.want)
		}
	}
}

func inNameOrder(servers ...Server) []Server {
	slices.SortFunc(servers, func(a, b Server) int { return strings.Compare(a.Name, b.Name) })
	return servers
}

// TestTheTrafficOfAClusterIsThatOfItsServers has a backend of a set and another backend. The servers of
// the set are of two clusters. One of them goes, and the counts stay right.
func TestTheTrafficOfAClusterIsThatOfItsServers(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
		}))
		defer broken.Close()
		blue, green := origin(t, "blue"), serverAt(broken.Listener.Addr())
		green.Cluster = "green"
		green.Name = NameOf(green)
		shared, alone := backend("shared", inNameOrder(blue, green)...), backend("alone", origin(t, "alone"))
		shared.Set, shared.Cluster, alone.Cluster = "all", "blue", "blue"
		cfg := r.config(shared, alone)
		r.settle(cfg, states(cfg, Open))
		m := r.p.Meter()
		if _, err := m.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
		met := map[string]uint64{}
		ask := func(host string, n int) {
			for range n {
				got, err := r.try(host, "/")
				if err != nil {
					t.Fatal(err)
				}
				met[got]++
			}
		}
		var got map[string]BackendLoad
		counted := func(want map[string]BackendLoad) {
			t.Helper()
			got = map[string]BackendLoad{}
			r.eventually("the meter has counted all", func() bool {
				load, err := m.Read(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, c := range load.Clusters {
					sum := got[c.Backend]
					c.Requests, c.Failed, c.Response, c.Connections = c.Requests+sum.Requests, c.Failed+sum.Failed, 0, 0
					got[c.Backend] = c
				}
				return maps.Equal(got, want)
			})
		}
		ask("shared.test", 6)
		ask("alone.test", 4)
		if met["500"] == 0 || met["blue"] == 0 || met["alone"] != 4 {
			t.Fatalf("got the answers %v", met)
		}
		counted(map[string]BackendLoad{
			"blue":  {Backend: "blue", Requests: met["blue"] + met["alone"], Open: 2},
			"green": {Backend: "green", Requests: met["500"], Failed: met["500"], Open: 1},
		})

		clear(met)
		next := *shared
		next.Servers = []Server{blue}
		cfg = r.config(&next, alone)
		r.settle(cfg, states(cfg, Open))
		ask("shared.test", 3)
		counted(map[string]BackendLoad{"blue": {Backend: "blue", Requests: 3, Open: 2}})
	})
}
