package haproxy

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestAReloadForgetsNoRateLimit(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		const most = 3
		cfg := r.rateLimited(most)
		r.settle(cfg, states(cfg, Open))
		r.mayPassOn()
		for n := range most {
			if got := r.get("app.test", "/"); got != "ok" {
				t.Fatalf("request %d: %s", n+1, got)
			}
		}
		for n := range 3 { // a worker that has learned must pass it on at once
			next := *cfg
			next.Process.MaxConn = 1000 + n
			if !r.apply(&next, states(&next, Open)).Reloaded {
				t.Fatal("there was no reload")
			}
			r.eventually("the new worker has counted what the old one has", func() bool { return r.counted("rate") >= most })
			if got := r.get("app.test", "/"); got != "429" {
				t.Errorf("after %d reloads a client that has used up its limit gets %s, want 429", n+1, got)
			}
			r.eventually("the old worker ends", func() bool {
				procs, err := r.p.master.show()
				return err == nil && len(procs.old) == 0
			})
		}
	})
}

func TestWithoutALimitNothingIsPassedOn(t *testing.T) {
	for name, tables := range map[string][]Table{"no table": nil, "concurrent requests": {{Name: "conns", Size: 10}}} {
		cfg := &Config{Shape: Shape{Tables: tables}}
		files := Render(cfg, nil, RenderOptions{Dir: "/etc/sallyport/haproxy", StatsSocket: "/run/sallyport/worker.sock"})
		for path, f := range files.Content {
			if strings.Contains(path, "peers") || strings.Contains(string(f.Content), "peer") {
				t.Errorf("%s: %s has peers", name, path)
			}
		}
	}
}

// rateLimited returns a configuration of one application whose clients may send that many
// requests in an hour.
func (r *rig) rateLimited(requests int) *Config {
	app := backend("app", origin(r.t, "ok"))
	table := Table{Name: "rate", Size: 1000, Period: time.Hour}
	app.Directives = []Directive{Limit(table, requests, 429, Networks{})}
	cfg := r.config(app)
	cfg.Tables = []Table{table}
	return cfg
}

// counted returns how many requests the worker has counted in a table with one client.
func (r *rig) counted(table string) (n int) {
	r.t.Helper()
	answer, err := r.p.worker.read("show table " + table)
	if err != nil {
		r.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(answer, "http_req_rate(3600000)=")
	_, _ = fmt.Sscan(rest, &n)
	return n
}

// mayPassOn waits until the worker would pass on its tables: HAProxy 2.6 has then learned
// from another worker, or has waited in vain. HAProxy's src/peers.c has the two flags.
func (r *rig) mayPassOn() {
	r.t.Helper()
	if r.p.version[0] != '2' {
		return
	}
	r.eventually("the worker may pass on its tables", func() bool {
		answer, err := r.p.worker.read("show peers")
		_, rest, _ := strings.Cut(answer, " flags=0x")
		word, _, _ := strings.Cut(rest, " ")
		flags, wrong := strconv.ParseUint(word, 16, 64)
		return err == nil && wrong == nil && flags&3 == 3
	})
}
