package haproxy

import (
	"context"
	"encoding/csv"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// keptLoad sends requests for a host, on several connections at once that each serve
// all requests of one client.
func (r *rig) keptLoad(host string, clients, requests int) {
	r.t.Helper()
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "tcp", r.http.String())
			}}
			defer transport.CloseIdleConnections()
			for range requests {
				req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, "http://"+host+"/", nil)
				if err != nil {
					r.t.Error(err)
					return
				}
				res, err := transport.RoundTrip(req)
				if err != nil {
					r.t.Error(err)
					return
				}
				_, err = io.Copy(io.Discard, res.Body)
				if _ = res.Body.Close(); err != nil || res.StatusCode != http.StatusOK {
					r.t.Errorf("got %s, %v", res.Status, err)
				}
			}
		})
	}
	all.Wait()
}

// connections returns how many connections a backend has opened to its servers, and
// how many requests went over a connection that was there before.
func (r *rig) connections(backend string) (opened, reused int) {
	r.t.Helper()
	answer, err := r.p.worker.read("show stat " + backend + " 2 -1")
	if err != nil {
		r.t.Fatal(err)
	}
	_, answer, _ = strings.Cut(answer, "# ")
	answer, _, _ = strings.Cut(answer, "\n\n")
	table, err := csv.NewReader(strings.NewReader(answer)).ReadAll()
	if err != nil || len(table) != 2 {
		r.t.Fatalf("show stat: %v, %q", err, answer)
	}
	for i, column := range table[0] {
		switch n, _ := strconv.Atoi(table[1][i]); column {
		case "connect":
			opened = n
		case "reuse":
			reused = n
		}
	}
	return opened, reused
}

func TestConnectionsToServersAreReusedHoweverTheServersCame(t *testing.T) {
	for name, encrypted := range map[string]bool{"in the clear": false, "over TLS": true} {
		t.Run(name, func(t *testing.T) {
			withEach(t, func(t *testing.T, binary string) { reuseConnections(t, binary, encrypted) })
		})
	}
}

func reuseConnections(t *testing.T, binary string, encrypted bool) {
	t.Helper()
	r := newRig(t, binary)
	app := backend("app")
	app.Options.TLS = encrypted
	pods := func() (all []Server) {
		for _, name := range []string{"a", "b", "c"} {
			one := origin(t, name)
			if encrypted {
				one = originOfBoth(t)
			}
			all = append(all, one)
		}
		return backend("", all...).Servers // sorted
	}
	cfg := r.config(app)
	r.settle(cfg, nil) // so that all servers come by command
	reloads := r.p.Info().Reloads
	const clients, requests, rounds = 4, 300, 3
	for range rounds { // each replaces all servers
		next := *app
		next.Servers = pods()
		cfg = r.config(&next)
		r.settle(cfg, states(cfg, Open)) // it ends when the former servers are gone
		r.keptLoad("app.test", clients, requests)
	}
	opened, reused := r.connections("app")
	if total := clients * requests * rounds; opened+reused != total || reused*100 < total*99 {
		t.Errorf("got %d connections opened and %d reused, want 99 of 100 of %d requests on connections "+
			"that were there", opened, reused, total)
	}
	if got := r.p.Info().Reloads; got != reloads {
		t.Errorf("the servers changed with %d reloads", got-reloads)
	}
	r.settle(r.config(app), nil) // nothing that is kept for reuse keeps a server
	if live, err := r.p.Servers(); err != nil || len(live.Get("app").Servers) != 0 {
		t.Errorf("the worker has %v, %v, want no servers", live.Get("app"), err)
	}
}

// originOfBoth starts a server with TLS that speaks HTTP/1.1 and HTTP/2.
func originOfBoth(t *testing.T) Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "secure")
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	return serverAt(s.Listener.Addr())
}
