package haproxy

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"
)

// A connection from before and one from afterwards both end after an answer, and none is
// reset.
func TestWhoLeavesClosesKeptConnectionsAfterAnAnswer(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg := r.config(backend("app", origin(t, "app")))
		r.settle(cfg, states(cfg, Open))
		open := func() func() (closes bool) {
			conn, err := net.Dial("tcp", r.http.String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			from := bufio.NewReader(conn)
			return func() bool {
				if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: app.test\r\n\r\n"); err != nil {
					t.Fatal(err)
				}
				answer, err := http.ReadResponse(from, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = answer.Body.Close() }()
				if body, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode != http.StatusOK {
					t.Fatalf("got %d %q, %v", answer.StatusCode, body, err)
				}
				return answer.Close
			}
		}
		before := open()
		if before() {
			t.Fatal("a connection is not kept at all")
		}
		next := *cfg
		next.Leaving = true
		if res := r.apply(&next, states(&next, Open)); !res.Reloaded ||
			res.Reason != "the appliance leaves its group, or returns" {
			t.Errorf("reloaded: %t, for %q", res.Reloaded, res.Reason)
		}
		if !before() {
			t.Error("a connection from before is kept")
		}
		if !open()() {
			t.Error("a connection from afterwards is kept")
		}
		r.settle(cfg, states(cfg, Open))
		if open()() {
			t.Error("a connection is not kept after the return")
		}
	})
}
