package haproxy

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestTheWorkerCountsItsTraffic(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if q.URL.Path == "/broken" {
				w.WriteHeader(http.StatusInternalServerError)
			}
		}))
		defer app.Close()
		cfg := r.config(backend("app", serverAt(app.Listener.Addr())))
		r.settle(cfg, states(cfg, Open))
		before, err := r.p.Load(Load{})
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"/", "/", "/broken"} {
			if _, err := r.try("app.test", path); err != nil {
				t.Fatal(err)
			}
		}
		// HAProxy counts an answer once its last byte is sent.
		var requests, failed uint64
		for deadline := time.Now().Add(time.Minute); requests < 3 || failed < 1; {
			after, err := r.p.Load(before)
			if err != nil || time.Now().After(deadline) {
				t.Fatalf("got %d requests, %d failed, want 3 and 1; %v", requests, failed, err)
			}
			requests, failed = after.Requests-before.Requests, after.Failed-before.Failed
		}
		if requests != 3 || failed != 1 {
			t.Errorf("got %d requests, %d failed, want 3 and 1", requests, failed)
		}
	})
}

func TestResponseTimesCountByTheirRequests(t *testing.T) {
	const heading = "# pxname,svname,req_tot,hrsp_5xx,rtime,\n"
	before, err := readLoad(heading+"http,FRONTEND,100,2,,\na,BACKEND,90,,5,\nb,BACKEND,10,,50,\nidle,BACKEND,0,,900,\n", Load{})
	if err != nil || before.Requests != 100 || before.Failed != 2 {
		t.Fatalf("got %+v, %v", before, err)
	}
	for name, row := range map[string]struct {
		text string
		want time.Duration
	}{
		"by requests since":        {"a,BACKEND,93,,10,\nb,BACKEND,11,,50,\nidle,BACKEND,0,,900,\n", 20 * time.Millisecond},
		"nothing since":            {"a,BACKEND,90,,10,\nb,BACKEND,10,,50,\n", -1},
		"counters that start anew": {"a,BACKEND,1,,10,\nb,BACKEND,1,,50,\n", 30 * time.Millisecond},
	} {
		got, err := readLoad(heading+row.text, before)
		if err != nil || got.Response != row.want {
			t.Errorf("%s: got %s, %v, want %s", name, got.Response, err, row.want)
		}
	}
	if _, err := readLoad("Permission denied\n", before); err == nil {
		t.Error("an answer without statistics is accepted")
	}
}
