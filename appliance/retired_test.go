package appliance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/appliance/config"
	"sallyport/appliance/group"
	"sallyport/appliance/plan"
	"sallyport/appliance/status"
	"sallyport/haproxy"
	"sallyport/routes"
)

func TestTheDrainOfAClusterOutlivesTheProcess(t *testing.T) {
	dir, now := t.TempDir(), time.Unix(1e9, 0).UTC()
	open := func() *retired {
		t.Helper()
		r, err := openRetired(dir)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first := open()
	for i, name := range []string{"blue", "green", "blue"} { // the second order for blue changes nothing
		if err := first.begin(name, now.Add(time.Duration(i)*time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	second := open()
	if got := second.get("blue"); !got.Equal(now) {
		t.Errorf("blue is drained since %s, want %s", got, now)
	}
	if err := second.only(func(name string) bool { return name != "green" }); err != nil {
		t.Fatal(err)
	}
	third := open()
	if !third.get("green").IsZero() || third.get("blue").IsZero() {
		t.Errorf("got %v, want that green has left the configuration", third.last)
	}
	if err := third.end("blue", now); err != nil {
		t.Fatal(err)
	}
	if fourth := open(); drainedBy(fourth) > 0 || fourth.orders() != third.orders() || fourth.orders() == "" {
		t.Errorf("got %v and %q after the end, want the order %q", fourth.last, fourth.orders(), third.orders())
	}
	if err := os.WriteFile(third.path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if broken, err := openRetired(dir); err == nil || len(broken.last) > 0 {
		t.Errorf("a broken file: got %v and %v", broken.last, err)
	}
}

// drainedBy returns how many clusters are drained by command.
func drainedBy(r *retired) (n int) {
	for cluster := range r.last {
		if !r.get(cluster).IsZero() {
			n++
		}
	}
	return n
}

func TestTheLastOrderAboutAClusterCounts(t *testing.T) {
	at := func(ms int64) time.Time { return time.UnixMilli(1_764_300_000_000 + ms) }
	fresh := func() *retired {
		r, err := openRetired(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	one, two := fresh(), fresh()
	all := func(string) bool { return true }
	pass := func(from, to *retired) int {
		t.Helper()
		taken, err := to.merge(from.orders(), all)
		if err != nil {
			t.Fatal(err)
		}
		return len(taken)
	}
	drained := func(r *retired) bool { return !r.get("blue").IsZero() }

	_ = one.begin("blue", at(5))
	if n := pass(one, two); n != 1 || !two.get("blue").Equal(at(5)) {
		t.Errorf("%d orders were taken, and blue is drained since %s; want 1 and %s", n, two.get("blue"), at(5))
	}
	if n := pass(one, two) + pass(two, one); n != 0 {
		t.Errorf("%d orders were taken again", n)
	}
	_ = two.end("blue", at(3)) // its clock is behind: an order after another one is newer
	if pass(one, two); drained(two) {
		t.Error("an older order undoes a newer one")
	}
	if pass(two, one); drained(one) || one.orders() != two.orders() {
		t.Errorf("one does not follow: %q and %q", one.orders(), two.orders())
	}
	_ = one.begin("blue", at(50))
	_ = two.end("blue", at(50))
	pass(one, two)
	if pass(two, one); drained(one) || drained(two) {
		t.Error("of two orders of the same time the end of a drain has to count")
	}
	_ = one.begin("green", at(60))
	if taken, _ := two.merge(one.orders(), func(name string) bool { return name != "green" }); len(taken) > 0 {
		t.Errorf("an order about a cluster that is in no set is taken: %v", taken)
	}
	before := two.orders()
	for _, text := range []string{"blue", "+5", "blue+", "blue+x", "blue+0", "blue+99999999999999999", "blue~9"} {
		if taken, err := two.merge(text, all); err != nil || len(taken) > 0 || two.orders() != before {
			t.Errorf("%q is read as %v (%v)", text, taken, err)
		}
	}
	var none *retired
	if taken, err := none.merge("blue+5", all); none.orders() != "" || len(taken) > 0 || err != nil {
		t.Error("a nil retired has an order")
	}

	full := fresh()
	for i := range 100 {
		_ = full.begin(fmt.Sprintf("a-cluster-with-a-long-name-%d", i), at(int64(i)))
	}
	text := full.orders()
	if len(text) > group.MostOrders || !strings.HasPrefix(text, "a-cluster-with-a-long-name-99+") ||
		len(text) < group.MostOrders-50 {
		t.Errorf("%d bytes: %s", len(text), text)
	}
}

func FuzzParseOrder(f *testing.F) {
	for _, text := range []string{"blue+1764312345678", "a-b-1", "+1", "a+01"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if o, ok := parseOrder(text); ok {
			again, ok := parseOrder(o.String())
			if !ok || again != o || o.cluster == "" {
				t.Errorf("%q is read as %v, and that as %v", text, o, again)
			}
		}
	})
}

func TestAMemberFollowsTheOrdersOfTheOthers(t *testing.T) {
	s, p := newPair(t)
	var err error
	if s.retired, err = openRetired(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	s.cfg.Clusters = []config.Cluster{{Name: "demo", Set: "both"}}
	p.hear(group.Full, false)
	s.pass(t, firstSteps)
	if p.order != "" {
		t.Errorf("without an order the others hear %q", p.order)
	}
	given := order{"demo", true, s.clock.Truncate(time.Millisecond)}
	p.heard[0].Orders = given.String() + " unknown+5"
	s.settle(t)
	if got := s.view.Load(); !got.Want.Drained["demo"] || p.order != given.String() {
		t.Errorf("drained are %v, and the others hear %q", got.Want.Drained, p.order)
	}
	if got := s.retired.get("unknown"); !got.IsZero() {
		t.Error("a cluster that the file does not have is drained")
	}
	ended := order{"demo", false, given.at.Add(time.Second)}
	p.heard[0].Orders, p.heard[0].Alive = ended.String(), false
	s.settle(t)
	if !s.view.Load().Want.Drained["demo"] {
		t.Error("a member that is not heard now gives an order")
	}
	p.heard[0].Alive = true
	s.settle(t)
	if s.view.Load().Want.Drained["demo"] || p.order != ended.String() {
		t.Errorf("the drain has not ended, or the others hear %q", p.order)
	}
}

// setOfTwo returns the view of a set of two clusters. Both serve web, and blue alone serves own.
func setOfTwo() *status.View {
	server := func(addr, cluster string) haproxy.Server {
		s := haproxy.Server{Addr: netip.MustParseAddrPort(addr), Cluster: cluster}
		s.Name = haproxy.NameOf(s)
		return s
	}
	backends := []*haproxy.Backend{
		{
			Name: "web", Cluster: "blue", Set: "both", Service: "shop/web:80",
			Servers: []haproxy.Server{server("172.16.0.1:80", ""), server("172.17.0.1:80", "green")},
		},
		{Name: "own", Cluster: "blue", Service: "shop/own:80", Servers: []haproxy.Server{server("172.16.0.2:80", "")}},
	}
	live := map[string]*haproxy.LiveBackend{}
	for _, b := range backends {
		there := &haproxy.LiveBackend{}
		for _, s := range b.Servers {
			there.Servers = append(there.Servers, haproxy.Live{
				Name: s.Name, Addr: s.Addr, State: haproxy.Open, Check: haproxy.Up, Weight: 1,
			})
		}
		live[b.Name] = there
	}
	v := &status.View{
		Config: &haproxy.Config{Backends: backends, Routes: []*haproxy.Route{
			{Host: "web.test", Backend: "web"}, {Host: "own.test", Backend: "own"}, {Host: "a.test", Backend: "own"},
		}},
		Want: plan.Want{Backends: backends}, Have: plan.Have{Backends: haproxy.NewLiveBackends(live)},
	}
	v.Settings.Config = &config.Config{Clusters: []config.Cluster{
		{Name: "blue", Set: "both", State: config.Serving},
		{Name: "green", Set: "both", State: config.Serving},
		{Name: "alone"},
	}}
	return v
}

func TestADrainIsRefusedWhereNoOtherClusterServes(t *testing.T) {
	change := func(v *status.View, backend, addr string, to func(*haproxy.Live)) {
		for i := range v.Have.Backends.Get(backend).Servers {
			if s := &v.Have.Backends.Get(backend).Servers[i]; s.Addr == netip.MustParseAddrPort(addr) {
				to(s)
			}
		}
	}
	for name, row := range map[string]struct {
		path   string
		before func(*status.View)
		code   int
		want   string // in the answer
	}{
		"a Service of its own": {"drain?cluster=blue", nil, 409, "no other cluster has a ready server for " +
			"shop/own:80 (host a.test and 1 more host); --partial drains the rest, and cluster blue goes on serving these"},
		"a part of it":                      {"drain?cluster=blue&partial=true", nil, 200, `"alone": 1`},
		"the other one has all that it has": {"drain?cluster=green", nil, 200, `"draining": true`},
		"the other one fails its checks": {"drain?cluster=green", func(v *status.View) {
			change(v, "web", "172.16.0.1:80", func(s *haproxy.Live) { s.Check = haproxy.Down })
		}, 409, "no other cluster has a ready server for shop/web:80 (host web.test)"},
		"the other one is closed": {"drain?cluster=green", func(v *status.View) {
			change(v, "web", "172.16.0.1:80", func(s *haproxy.Live) { s.State = haproxy.Closed })
		}, 409, "shop/web:80"},
		"the other one is drained": {"drain?cluster=green", func(v *status.View) {
			v.Want.Drained = map[string]bool{"blue": true}
		}, 409, "shop/web:80"},
		"the other one has lost every session": {"drain?cluster=green", func(v *status.View) {
			v.Want.Silent = map[string]bool{"blue": true}
		}, 409, "shop/web:80"},
		"a cluster in no set":  {"drain?cluster=alone", nil, 404, "cluster alone is in no set"},
		"a cluster of no file": {"drain?cluster=red", nil, 404, `no cluster "red"; it has blue, green, alone`},
		"no drain has begun":   {"undrain?cluster=blue", nil, 200, `"draining": false`},
		"the file drains it, too": {"undrain?cluster=green", func(v *status.View) {
			v.Settings.Config.Clusters[1].State = config.Drained
		}, 409, "the configuration file drains cluster green"},
	} {
		t.Run(name, func(t *testing.T) {
			v := setOfTwo()
			if row.before != nil {
				row.before(v)
			}
			drains, err := openRetired(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			knocks := 0
			none := func(map[routes.End]bool) (int, error) { return 0, nil }
			h := retirement(func() *status.View { return v }, drains, none, func() { knocks++ }, time.Now)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/cluster/"+row.path, http.NoBody))
			if w.Code != row.code || !strings.Contains(w.Body.String(), row.want) {
				t.Errorf("got %d: %s\nwant %d: %s", w.Code, w.Body, row.code, row.want)
			}
			if drains, knocked := drainedBy(drains), knocks; row.code != 200 && strings.HasPrefix(row.path, "drain") &&
				drains+knocked > 0 {
				t.Errorf("%d drains and %d knocks after a refusal", drains, knocked)
			}
		})
	}
}

func TestAClusterIsDrainedOnceItsServersAre(t *testing.T) {
	v := setOfTwo()
	drains, err := openRetired(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var asked map[routes.End]bool
	h := retirement(func() *status.View { return v }, drains, func(ends map[routes.End]bool) (int, error) {
		asked = ends
		return len(ends), nil
	}, func() {}, time.Now)
	ask := func(method, path string) (s ClusterDrainStatus) {
		t.Helper()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, http.NoBody))
		if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil {
			t.Fatalf("%d: %s", w.Code, w.Body)
		}
		return s
	}
	if s := ask("GET", "/cluster/drain?cluster=green&dry=true"); s.Cluster != "green" || s.Draining {
		t.Errorf("a dry run: %+v", s)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/cluster/drain?cluster=blue&dry=true", http.NoBody))
	if w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "shop/own:80") {
		t.Errorf("a dry run of a drain that would be refused: %d, %s", w.Code, w.Body)
	}
	if s := ask("POST", "/cluster/drain?cluster=green"); !s.Draining || s.Drained {
		t.Errorf("before a round: %+v", s)
	}
	v.Want.Drained = map[string]bool{"green": true}
	v.Steps = []plan.Step{plan.SetServer{State: haproxy.Drain, Why: plan.Drained}}
	if s := ask("GET", "/cluster/drain?cluster=green"); s.Drained {
		t.Errorf("while a round drains its servers: %+v", s)
	}
	v.Steps = nil
	v.Have.Backends.Get("web").Servers[1].State = haproxy.Drain
	if s := ask("GET", "/cluster/drain?cluster=green"); !s.Drained || s.Connections != 1 ||
		!asked[routes.End{To: netip.MustParseAddrPort("172.17.0.1:80")}] {
		t.Errorf("afterwards: %+v, asked for %v", s, asked)
	}
	if s := ask("POST", "/cluster/undrain?cluster=green"); s.Draining || s.Drained {
		t.Errorf("after undrain: %+v", s)
	}
}

func TestTheOtherMembersHearOfADrainedCluster(t *testing.T) {
	s, p := newPair(t)
	var err error
	if s.retired, err = openRetired(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	p.hear(group.Full, false)
	s.pass(t, firstSteps)
	s.settle(t)
	if err := s.retired.begin("demo", s.clock); err != nil {
		t.Fatal(err)
	}
	s.pass(t, time.Minute)
	s.settle(t)
	const words = "cluster demo: it has been drained by sallyport drain for 1 min"
	if !strings.Contains(p.said.Why, words) {
		t.Errorf("the others hear %q, want %q", p.said.Why, words)
	}
	if !slices.ContainsFunc(s.view.Load().Warnings, func(w string) bool { return strings.Contains(w, words) }) {
		t.Errorf("warnings %q", s.view.Load().Warnings)
	}
}

func TestAClusterHasItsShareAndTheReasonWhyItHasNone(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(v *status.View)
		blue   string // the cells of its state and reason
		green  string
	}{
		"each pod is equal": {func(*status.View) {}, "active, 50 %|", "active, 50 %|"},
		"weights": {
			func(v *status.View) {
				weigh(v, 95, 5)
				live(v, "web", 19, 1)
			},
			"active, 95 %|", "active, 5 %|",
		},
		"HAProxy does not follow yet": {
			func(v *status.View) { weigh(v, 95, 5) }, "active, 50 % in place of 95 %|", "active, 50 % in place of 5 %|",
		},
		"one is drained by itself": {
			func(v *status.View) {
				weigh(v, 50, 50)
				v.Want.Drained = map[string]bool{"green": true}
				live(v, "web", 1, 0)
			},
			"active, 100 %|", "drained, 0 %|by cluster-weight of its own ConfigMap",
		},
		"one has too few ready servers": {
			func(v *status.View) {
				v.Settings.Config.Clusters[1].MinReady = config.MinReady{Percent: 60}
				v.Want.Scarce = map[string]map[string]bool{"web": {"green": true}}
				live(v, "web", 1, 0)
			},
			"active, 100 %|", "active, 0 %|too few ready servers for 1 Service (minReady: 60%)",
		},
		"all servers of one fail their checks, and every pod is equal": {
			func(v *status.View) { fail(v, "web", 1) }, "active, 100 %|", "active, 0 %|1 server fails its checks",
		},
		"all servers of one fail their checks, and it should have a part": {
			func(v *status.View) {
				weigh(v, 95, 5)
				live(v, "web", 19, 1)
				fail(v, "web", 1)
			},
			"active, 100 % in place of 95 %|", "active, 0 % in place of 5 %|1 server fails its checks",
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := setOfTwo()
			for i := range v.Settings.Config.Clusters {
				v.Clusters = append(v.Clusters, status.Cluster{Name: v.Settings.Config.Clusters[i].Name, Known: true, Live: true})
			}
			tt.change(v)
			s := status.NewIndex(v).Status(haproxy.Info{})
			for i, want := range []string{tt.blue, tt.green} {
				var got []string
				for at, cell := range status.ClusterTable.Row(&s, s.Clusters[i]) {
					if name := status.ClusterTable.Columns[at].Name; name == "state" || name == "why" {
						got = append(got, cell.Text)
					}
				}
				if strings.Join(got, "|") != want {
					t.Errorf("%s: got %q, want %q", s.Clusters[i].Name, strings.Join(got, "|"), want)
				}
			}
		})
	}
}

// weigh gives the clusters of a set of two these weights.
func weigh(v *status.View, blue, green int) {
	v.Settings.Config.Clusters[0].Weight, v.Settings.Config.Clusters[1].Weight = blue, green
	v.Want.Shares = map[string]plan.Share{
		"blue": {Weight: blue, Percent: 100}, "green": {Weight: green, Percent: 100},
	}
}

// live gives the servers of a backend these weights in HAProxy, and drains those with 0.
func live(v *status.View, backend string, weights ...int) {
	changeLive(v, backend, func(servers []haproxy.Live) {
		for i, weight := range weights {
			servers[i].Weight = max(weight, 1)
			if weight == 0 {
				servers[i].State = haproxy.Drain
			}
		}
	})
}

// changeLive changes the servers that HAProxy has of a backend.
func changeLive(v *status.View, backend string, change func(servers []haproxy.Live)) {
	there := &haproxy.LiveBackend{Servers: slices.Clone(v.Have.Backends.Get(backend).Servers)}
	change(there.Servers)
	v.Have.Backends = v.Have.Backends.With(map[string]*haproxy.LiveBackend{backend: there})
}

// fail lets a server of a backend fail its checks.
func fail(v *status.View, backend string, server int) {
	changeLive(v, backend, func(servers []haproxy.Live) { servers[server].Check = haproxy.Down })
}

func TestAServerOfASetShowsItsClusterAndWeight(t *testing.T) {
	v := setOfTwo()
	live(v, "web", 19, 1)
	var got []string
	for _, b := range status.NewIndex(v).Status(haproxy.Info{}).Backends {
		for _, s := range b.Servers {
			got = append(got, b.Name+" "+s.Place())
		}
	}
	slices.Sort(got)
	if want := []string{"own open", "web open in blue, weight 19", "web open in green"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
