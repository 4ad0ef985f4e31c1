package appliance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"sallyport/appliance/status"
	"sallyport/haproxy"
)

// traffic returns a sample of ten seconds.
func traffic(backends ...haproxy.BackendLoad) haproxy.Load {
	return haproxy.Load{During: 10 * time.Second, Response: 8 * time.Millisecond, Backends: backends}
}

// loaded returns a sample of three backends.
func loaded() haproxy.Load {
	return traffic(
		haproxy.BackendLoad{
			Backend: "a", Requests: 50, Failed: 5, Connections: 2, Open: 2,
			Response: 10 * time.Millisecond,
		},
		haproxy.BackendLoad{Backend: "b", Requests: 990, Connections: 7, Open: 3, Response: 2 * time.Millisecond},
		haproxy.BackendLoad{Backend: "c", Failed: 20, Response: -1},
	)
}

func TestBackendsComeInTheOrderOfAKey(t *testing.T) {
	var r status.Rates
	if got := r.Top("name", -1); !got.At.IsZero() || len(got.Backends) > 0 {
		t.Errorf("before the first sample: got %+v", got)
	}
	r.Set(loaded(), time.Unix(0, 0))
	for key, want := range map[string]string{
		"requests": "b a c", "errors": "c a b", "connections": "b a c",
		"response": "a b c", "open": "c a b", "name": "a b c",
	} {
		for _, limit := range []int{2, -1, 4} {
			var got []string
			for _, b := range r.Top(key, limit).Backends {
				got = append(got, b.Name)
			}
			want := strings.Fields(want)
			if limit == 2 {
				want = want[:2]
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s, %d: got %v, want %v", key, limit, got, want)
			}
		}
	}
	load := loaded()
	load.Clusters = []haproxy.BackendLoad{
		{Backend: "blue", Requests: 5, Failed: 2, Response: -1},
		{Backend: "green", Requests: 20, Open: 3, Response: 4e6},
		{Backend: "red", Requests: 20, Open: 9, Response: -1},
	}
	r.Set(load, time.Unix(5, 0))
	for key, want := range map[string]string{
		"requests": "green red blue", "errors": "blue green red", "open": "blue green red",
	} {
		var got []string
		for _, c := range r.Top(key, 1).Clusters {
			got = append(got, c.Name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("clusters by %s: got %v, want %s", key, got, want)
		}
	}
	r.Set(traffic(haproxy.BackendLoad{Backend: "a", Requests: 10, Response: -1},
		haproxy.BackendLoad{Backend: "d", Requests: 30, Response: -1}), time.Unix(10, 0))
	if got := r.Top("requests", 1); got.Total != 2 || got.Backends[0].Name != "d" || got.Whole.Requests != 4 {
		t.Errorf("the next sample: got %+v", got)
	}
	if _, known := r.Of("b"); known {
		t.Error("a backend that is gone has a rate")
	}
	r.Forget()
	if _, known := r.Of("a"); known {
		t.Error("a backend has a rate while HAProxy does not answer")
	}
}

func TestASampleOfTheSameBackendsMakesNoGarbage(t *testing.T) {
	load := traffic()
	for i := range 10_000 {
		load.Backends = append(load.Backends,
			haproxy.BackendLoad{Backend: fmt.Sprintf("b%05d", i), Requests: uint64(i)})
	}
	var r status.Rates
	r.Set(load, time.Unix(0, 0))
	r.Top("requests", 1)
	var page float64
	sample := testing.AllocsPerRun(3, func() {
		r.Set(load, time.Unix(10, 0))
		r.Top("requests", 0)
	})
	if page = testing.AllocsPerRun(3, func() { r.Top("requests", 20) }); sample > 3 || page > 60 {
		t.Errorf("a sample makes %.0f pieces of garbage, a look at 20 backends %.0f", sample, page)
	}
}

func TestTopAnswersInOrder(t *testing.T) {
	s := half(t)
	s.samples.Rates.Set(loaded(), time.Now())
	h, _ := endpoint(s)
	code, body := ask(t, h, "/top?sort=errors&n=2")
	var got status.TopStatus
	if err := json.Unmarshal([]byte(body), &got); err != nil || code != http.StatusOK {
		t.Fatalf("%d, %v: %s", code, err, body)
	}
	if got.Identity != "gate-1" || got.Total != 3 || len(got.Backends) != 2 || got.Backends[0].Name != "c" ||
		got.Backends[0].Errors != 2 || got.Backends[0].Response != nil || *got.Backends[1].Response != 10 ||
		got.Whole.Requests != 104 || got.Whole.Errors != 2.5 || got.Whole.Connections != 9 || got.Whole.Open != 5 {
		t.Errorf("got %s", body)
	}
	for _, query := range []string{"sort=colour", "n=x", "n=-1"} {
		if code, body := ask(t, h, "/top?"+query); code != http.StatusBadRequest ||
			!strings.Contains(body, " has to be ") {
			t.Errorf("%s: got %d, %s", query, code, body)
		}
	}
}

func TestThePageHasTheRatesOfBackends(t *testing.T) {
	s := half(t)
	h, _ := endpoint(s)
	if _, text := ask(t, h, "/"); strings.Contains(text, "requests/s") {
		t.Error("the page has rates before the first sample")
	}
	s.samples.Rates.Set(traffic(haproxy.BackendLoad{
		Backend: "demo__default_svc_web_80", Requests: 12_340, Failed: 17,
		Connections: 3, Open: 1, Response: 4 * time.Millisecond,
	}), time.Now())
	for path, words := range map[string][]string{
		"/": {
			">requests/s<", ">1,234<", `▲</span>1.7</span>`,
			`data-label="connections" class="n">3<`,
		},
		"/backends?sort=errors":             {">errors/s<", `<option value="errors" selected>most errors first`},
		"/backend/demo__default_svc_web_80": {"<dt>requests</dt><dd>1,234/s", "1.7/s", "<dt>response time</dt><dd>4 ms"},
	} {
		_, text := ask(t, h, path)
		for _, w := range words {
			if !strings.Contains(text, w) {
				t.Errorf("%s does not have %q", path, w)
			}
		}
	}
}

func TestThePageListsTheBusiestBackendsFirst(t *testing.T) {
	s := wide(t, 3)
	s.samples.Rates.Set(traffic(haproxy.BackendLoad{Backend: "demo__default_svc_docs_80", Requests: 9},
		haproxy.BackendLoad{Backend: "demo__default_svc_web_80", Requests: 500}), time.Now())
	h, _ := endpoint(s)
	for _, path := range []string{"/", "/backends?sort=requests", "/backends?sort=requests&q=_80"} {
		_, text := ask(t, h, path)
		if path == "/" {
			_, text, _ = strings.Cut(text, `id="backends"`)
		}
		_, text, _ = strings.Cut(text, "<tbody")
		web, docs, api := strings.Index(text, "demo__default_svc_web_80"), strings.Index(text, "demo__default_svc_docs_80"),
			strings.Index(text, "demo__default_svc_api_80")
		if web < 0 || docs < web || api < docs {
			t.Errorf("%s: web at %d, docs at %d, api at %d", path, web, docs, api)
		}
	}
}
