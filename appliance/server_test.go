package appliance

import (
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sallyport/appliance/config"
	"sallyport/appliance/metrics"
	"sallyport/appliance/page"
	"sallyport/haproxy"
	"sallyport/ingress"

	"sallyport/appliance/status"

	"sallyport/appliance/pages"
)

// endpoint returns the status endpoint of a scene.
func endpoint(s *scene) (http.Handler, metrics.Source) {
	described := func(by func() func(haproxy.Info) status.Status) func() status.Status {
		return func() status.Status {
			answer := by()(haproxy.Info{
				Version: "3.2.4", Mode: haproxy.Managed, Running: true, Worker: 4711,
				Reloads: 1,
			})
			answer.Identity, answer.Version, answer.Now, answer.Started = "gate-1", "v0", s.view.Load().At, s.started
			return answer
		}
	}
	index := status.Indexed(s.view.Load)
	whole, head := described(func() func(haproxy.Info) status.Status { return index().Status }),
		described(func() func(haproxy.Info) status.Status { return s.view.Load().Head })
	s.counts.Measure()
	m := metrics.Source{
		Head: head, Tally: func() status.Tally { return s.view.Load().Tally() },
		Parts: func() map[string]status.Part { return s.view.Load().Parts() }, Loop: &s.counts, Samples: s.samples,
	}
	site := &page.Site{Page: (&pages.Pages{Index: index, Head: head, Changes: &s.changes, Samples: s.samples}).Page}
	return handler(site, whole, head, func(what url.Values) (any, error) {
		return index().Explain(what)
	}, &s.changes, s.samples, metrics.Registry(m), s.proxy.Metrics), m
}

// drainedTown returns a set of two clusters. One of them is drained by the configuration, and its API server is
// lost.
func drainedTown(t *testing.T) *scene {
	t.Helper()
	w := newWorld(t, newTown(0, 2, 4, 4), newTown(1, 2, 4, 4))
	w.cfg.Identity, w.cfg.Clusters[1].State = "gate-1", config.Drained
	w.towns[1].err = errors.New("the API server (172.16.32.1) cannot be reached: no route to host; look whether it runs, " +
		"and whether a firewall drops port 6443; the last known objects stay")
	w.rest(t)
	return w.scene
}

func TestThePageHasThePartOfEachCluster(t *testing.T) {
	h, _ := endpoint(drainedTown(t))
	for path, wants := range map[string][]string{
		"/":              {"town0: 100 %", "town1: 0 %, drained", "by clusters[].state"},
		"/ingresses":     {"town1</a></td><td role=\"cell\" data-label=\"hosts\" class=\"w\">svc-00000.local"},
		"/clusters":      {"active, 100 %", "drained, 0 %", "2/2", "20/20", "0/20", "by clusters[].state; the API server"},
		"/cluster/town0": {"active, 100 %", "2/2", "20/20"},
		"/cluster/town1": {"drained, 0 %", "2/2", "0/20", "by clusters[].state; the API server"},
	} {
		_, text := ask(t, h, path)
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%s does not have %q", path, want)
			}
		}
	}
}

func ask(t *testing.T, h http.Handler, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// half returns a scene in which worker1 serves and worker2 offers a block that is not
// its own.
func half(t *testing.T) *scene {
	t.Helper()
	s := newScene(t)
	s.speaker.state = established
	s.speaker.announce(block1, node1)
	s.speaker.announce("172.16.9.0/26", node2)
	s.settle(t)
	return s
}

func TestThePageSaysWhyAServerIsNotOpen(t *testing.T) {
	h, _ := endpoint(half(t))
	code, page := ask(t, h, "/")
	if code != http.StatusOK {
		t.Fatalf("answers %d: %s", code, page)
	}
	for _, want := range []string{
		"172.16.171.64/26", `data-label="kernel"`, "test.local", "demo__default_svc_web_80",
		"no route to 172.16.189.66: node worker2 announces none of its blocks, although its BGP session is established",
		"172.16.9.0/26", "no-affinity", "reloads of HAProxy",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
}

func TestAPoolThatIsNotExportedIsTheReasonForAClosedServer(t *testing.T) {
	s := newScene(t)
	s.speaker.state = established
	s.watcher.snapshot.Topology.Pools[0].NoExport = true
	s.settle(t)
	h, _ := endpoint(s)
	const want = "no node announces its block, because IP pool default (172.16.0.0/16) has disableBGPExport"
	if _, page := ask(t, h, "/"); !strings.Contains(page, want) {
		t.Errorf("the page does not say %q", want)
	}
}

func TestStatusIsTheSameForPrograms(t *testing.T) {
	h, _ := endpoint(half(t))
	_, text := ask(t, h, "/status")
	var s status.Status
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	if len(s.Routes) != 1 || !s.Routes[0].Installed || s.Routes[0].Node != "worker1" || s.Routes[0].Servers != 1 {
		t.Errorf("routes %+v, want the installed one of worker1 with one open server", s.Routes)
	}
	if s.Refused.Total != 1 || s.Refused.Counts["no-affinity"] != 1 {
		t.Errorf("refused %+v, want one without affinity", s.Refused)
	}
	if len(s.Backends) != 1 || s.Backends[0].Open != 1 || len(s.Backends[0].Servers) != 2 {
		t.Errorf("backends %+v, want one with one of two servers open", s.Backends)
	}
	idle := s.Idle()
	if _, page := ask(t, h, "/servers"); len(idle) != 1 || !strings.Contains(page, html.EscapeString(idle[0].Why)) {
		t.Errorf("idle servers %+v, want the one that the page has, with its sentence", idle)
	}
}

func TestAnIngressIsExplainedWithItsServers(t *testing.T) {
	h, _ := endpoint(half(t))
	code, body := ask(t, h, "/explain?ingress=default/web")
	var got status.ExplainStatus
	if err := json.Unmarshal([]byte(body), &got); err != nil || code != http.StatusOK {
		t.Fatalf("%d, %v: %s", code, err, body)
	}
	if len(got.Rules) != 1 || len(got.Backends) != 1 || len(got.Servers) != 1 ||
		got.Servers[0].Name != got.Backends[0].Name || len(got.Servers[0].Servers) == 0 {
		t.Errorf("got %+v", got)
	}
	for _, query := range []string{
		"ingress=default/nobody", "ingress=default/web&cluster=elsewhere", "ingress=app",
		"",
	} {
		if code, _ := ask(t, h, "/explain?"+query); code != http.StatusNotFound {
			t.Errorf("%q: want 404, got %d", query, code)
		}
	}
}

func TestThePageShowsTheGroup(t *testing.T) {
	s, pulse := newPair(t)
	s.speaker.state = established
	s.pass(t, 4*time.Second)
	pulse.hear("", false)
	s.settle(t)
	h, _ := endpoint(s)
	_, page := ask(t, h, "/")
	for _, want := range []string{
		"Group edge", "this appliance is full", "gate-2", "silent", "203.0.113.10",
		">✕ silent: gate-2<", "BGP session with the router (192.168.50.1) is established",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	h, _ = endpoint(half(t))
	if _, page := ask(t, h, "/"); strings.Contains(page, "Group") || strings.Contains(page, "gate-2") {
		t.Error("the page of a single appliance tells of a group")
	}
}

func TestARequestIsExplainedByItsRule(t *testing.T) {
	h, _ := endpoint(half(t))
	for request, want := range map[string]string{
		"test.local/x":        "Ingress default/web",
		"TEST.local:80/":      "Ingress default/web",
		"elsewhere.test/":     "no rule names the host",
		"elsewhere.test/\x01": "no rule names the host",
	} {
		_, body := ask(t, h, "/explain?"+url.Values{"request": {request}}.Encode())
		var e status.ExplainStatus
		if err := json.Unmarshal([]byte(body), &e); err != nil {
			t.Fatalf("%s: %v: %s", request, err, body)
		}
		got := e.Why
		if e.Why == "" && len(e.Rules) == 1 && len(e.Servers) == 1 {
			got = e.Ingress.Kind + " " + e.Ingress.Namespace + "/" + e.Ingress.Name
		}
		if !strings.Contains(got, want) {
			t.Errorf("%q: got %q, want %q: %s", request, got, want, body)
		}
	}
}

func TestAnAddressIsExplainedPartByPart(t *testing.T) {
	s := half(t)
	s.speaker.state = established
	s.settle(t)
	h, _ := endpoint(s)
	for address, want := range map[string]string{
		pod1:          "block ok, node ok, peer ok, route ok, kernel ok, server ok",
		pod2:          "block ok, node ok, peer ok, route NOT, server NOT",
		"172.16.9.1":  "offer NOT, route NOT, server NOT",
		"203.0.113.1": "route NOT, server NOT",
		node1:         "node ok, peer ok, route NOT, server NOT",
	} {
		_, body := ask(t, h, "/explain?address="+address)
		var a status.AddressStatus
		if err := json.Unmarshal([]byte(body), &a); err != nil {
			t.Fatalf("%s: %v: %s", address, err, body)
		}
		var facts []string
		for _, f := range a.Facts {
			if f.Part != "pool" && f.Part != "pod" {
				facts = append(facts, f.Part+map[bool]string{true: " ok", false: " NOT"}[f.OK])
			}
		}
		if got := strings.Join(facts, ", "); got != want {
			t.Errorf("%s: got %q, want %q: %s", address, got, want, body)
		}
	}
	if code, why := ask(t, h, "/explain?address=here"); code != http.StatusNotFound ||
		!strings.Contains(why, "is not an IP address") {
		t.Errorf("got %d %q", code, why)
	}
}

func TestReadyzFollowsTheWorldAndHealthzOnlyTheProcess(t *testing.T) {
	s := newScene(t)
	s.settle(t)
	h, _ := endpoint(s)
	if code, why := ask(t, h, "/readyz"); code != http.StatusServiceUnavailable ||
		!strings.Contains(why, "BGP peers have not sent all their routes yet") {
		t.Errorf("before the peers have spoken: %d %q", code, why)
	}
	if code, _ := ask(t, h, "/healthz"); code != http.StatusOK {
		t.Errorf("healthz answers %d", code)
	}
	s.speaker.announce(block1, node1)
	s.speaker.announce(block2, node2)
	s.settle(t)
	if code, why := ask(t, h, "/readyz"); code != http.StatusOK {
		t.Errorf("with all in place: %d %q", code, why)
	}
}

func TestMetricsKeepPrometheusConventions(t *testing.T) {
	h, m := endpoint(half(t))
	problems, err := testutil.CollectAndLint(m)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	_, text := ask(t, h, "/metrics")
	for _, want := range []string{
		`sallyport_routes{installed="true"} 1`,
		`sallyport_offers_refused{reason="no-affinity"} 1`,
		`sallyport_servers{cluster="demo",state="open"} 1`,
		`sallyport_servers{cluster="demo",state="closed"} 1`,
		`sallyport_steps_total{step="add_route"} 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no line %s", want)
		}
	}
}

// The metrics count what the status lists.
func TestMetricsCountWhatTheStatusLists(t *testing.T) {
	s := half(t)
	s.proxy.backends = s.proxy.backends.With(map[string]*haproxy.LiveBackend{
		"of_nobody": {Servers: []haproxy.Live{{Name: "s", State: haproxy.Drain}}},
	})
	s.round(t.Context())
	all, got := status.NewIndex(s.view.Load()).Status(haproxy.Info{}), s.view.Load().Tally()
	want := status.Tally{
		Routes: len(all.Routes), Clusters: map[string]status.Count{"demo": {}, "": {}},
		Problems: map[status.ProblemKind]int{},
	}
	for _, r := range all.Routes {
		if r.Installed {
			want.Installed++
		}
	}
	for _, b := range all.Backends {
		cluster := "demo"
		if b.Name == "of_nobody" {
			cluster = ""
		}
		count := want.Clusters[cluster]
		count.Backends++
		for _, server := range b.Servers {
			count.Servers[slices.IndexFunc(
				[]haproxy.State{haproxy.Absent, haproxy.Closed, haproxy.Drain, haproxy.Open}, func(
					s haproxy.State,
				) bool {
					return s.String() == server.State
				})]++
		}
		if len(b.Servers) > 0 && b.Open == 0 {
			count.Unserved++
		}
		want.Clusters[cluster] = count
	}
	for _, p := range all.Problems {
		want.Problems[status.ProblemKind{Cluster: p.Cluster, Reason: p.Reason}]++
	}
	if !reflect.DeepEqual(got, want) || want.Installed == 0 || want.Clusters[""].Unserved == 0 {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A scrape allocates as much in a large cluster as in a small one.
func TestAScrapeAllocatesTheSameInAnyCluster(t *testing.T) {
	var allocated []float64
	for _, n := range []int{20, 2000} {
		s, _ := largeScene(t, n)
		_, m := endpoint(s)
		allocated = append(allocated, testing.AllocsPerRun(5, func() {
			metrics := make(chan prometheus.Metric, 1000)
			m.Collect(metrics)
		}))
	}
	if allocated[1] > allocated[0]+10 {
		t.Errorf("%v allocations of 2,000 Services, %v of 20", allocated[1], allocated[0])
	}
}

// BenchmarkScrape measures a scrape of the metrics in a cluster of n Services with five
// servers each.
func BenchmarkScrape(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			s, _ := largeScene(b, n)
			_, m := endpoint(s)
			metrics := make(chan prometheus.Metric, 1000)
			b.ReportAllocs()
			for b.Loop() {
				m.Collect(metrics)
				for len(metrics) > 0 {
					<-metrics
				}
			}
		})
	}
}

func TestNothingElseIsAnswered(t *testing.T) {
	h, _ := endpoint(half(t))
	for _, path := range []string{"/nothing", "/status/", "/debug/pprof/"} {
		if code, _ := ask(t, h, path); code != http.StatusNotFound {
			t.Errorf("%s answers %d, want 404", path, code)
		}
	}
}

func TestTheEndpointAnswersOnlyToItsOwnNames(t *testing.T) {
	machine, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	names := ownNames(&config.Config{Identity: "Gate-1", Status: config.Status{Names: []string{"gate.Example.com"}}})
	h := answering(func() []string { return names }, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for host, want := range map[string]int{
		"192.168.50.21:9090": http.StatusOK, "192.168.50.21": http.StatusOK, "[fd00::21]:9090": http.StatusOK,
		"[::1]":          http.StatusOK,
		"localhost:9090": http.StatusOK, "LocalHost": http.StatusOK, "gate-1:9090": http.StatusOK,
		machine:                 http.StatusOK,
		"gate.example.com:9090": http.StatusOK, "gate.example.com.": http.StatusOK, "": http.StatusOK,
		"evil.test": http.StatusMisdirectedRequest, "evil.test:9090": http.StatusMisdirectedRequest,
		"gate-1.evil.test":        http.StatusMisdirectedRequest,
		"192.168.50.21.evil.test": http.StatusMisdirectedRequest, "example.com": http.StatusMisdirectedRequest,
		"localhost.evil.test": http.StatusMisdirectedRequest,
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/status", nil)
		r.Host = host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("Host %q: got %d, want %d", host, w.Code, want)
		}
	}
}

func TestANameIsCompletedStepByStep(t *testing.T) {
	s := wide(t, 3)
	v := *s.view.Load()
	broken := ingress.Problem{ObjectRef: ingress.ObjectRef{
		Cluster: "demo", Kind: "Ingress", Namespace: "dev",
		Name: "broken",
	}}
	v.Problems = append(v.Problems, broken,
		ingress.Problem{ObjectRef: ingress.ObjectRef{
			Cluster: "demo", Kind: "Service", Namespace: "other",
			Name: "broken",
		}})
	v.Compiled.Balancers = []ingress.Balancer{
		{ObjectRef: ingress.ObjectRef{Cluster: "demo", Kind: "Service", Namespace: "default", Name: "mqtt"}},
		{ObjectRef: ingress.ObjectRef{Cluster: "demo", Kind: "Service", Namespace: "iot", Name: "mqtt"}},
	}
	s.view.Store(&v)
	h, _ := endpoint(s)
	for query, want := range map[string]string{
		"complete=":                                 `["default/","dev/","iot/"]`,
		"complete=de":                               `["default/","dev/"]`,
		"complete=dev":                              `["dev/"]`,
		"complete=default/m":                        `["default/mail","default/metrics","default/mqtt"]`,
		"complete=dev/&cluster=demo":                `["dev/broken"]`,
		"complete=iot/&cluster=demo":                `["iot/mqtt"]`,
		"complete=dev/&cluster=elsewhere":           `[]`,
		"complete=default/nobody":                   `[]`,
		"complete=" + url.QueryEscape("\x00/../de"): `[]`,
	} {
		_, text := ask(t, h, "/explain?"+query)
		if got := strings.Join(strings.Fields(text), ""); got != want {
			t.Errorf("%s: got %s, want %s", query, got, want)
		}
	}
}

func TestHAProxysOwnMetricsPassThrough(t *testing.T) {
	const sample = "haproxy_process_nbthread 4\n"
	get := func(metrics string, err error) (code int, text string, _ error) {
		s := half(t)
		s.proxy.metrics, s.proxy.metricsErr = metrics, err
		h, _ := endpoint(s)
		server := httptest.NewServer(h)
		defer server.Close()
		resp, err := http.Get(server.URL + "/metrics/haproxy?scope=backend&no-maint")
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body), err
	}
	missing := errors.New("HAProxy has no exporter")
	if code, text, err := get(sample, nil); code != http.StatusOK || text != "scope=backend&no-maint\n"+sample ||
		err != nil {
		t.Errorf("got %d, %q, %v", code, text, err)
	}
	if code, text, err := get(sample, missing); err == nil {
		t.Errorf("a scrape that ends early does not fail: %d, %q", code, text)
	}
	if code, text, err := get("", missing); code != http.StatusServiceUnavailable ||
		!strings.Contains(text, missing.Error()) || err != nil {
		t.Errorf("got %d, %q, %v", code, text, err)
	}
}
