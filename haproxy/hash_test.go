package haproxy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestAHashChoosesTheSameServerOnEveryHAProxy(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		var servers []Server
		for n := range 6 {
			servers = append(servers, origin(t, fmt.Sprint("server ", n)))
		}
		balanced := func(some ...Server) *Backend {
			b := backend("app", slices.Clone(some)...)
			d, err := Balance("uri")
			if err != nil {
				t.Fatal(err)
			}
			b.Directives = []Directive{d}
			return b
		}
		choices := func(r *rig) string {
			var all []string
			for n := range 60 {
				all = append(all, strings.TrimPrefix(r.get("app.test", fmt.Sprint("/", n)), "server "))
			}
			return strings.Join(all, "")
		}
		one, two := newRig(t, binary), newRig(t, binary)
		if one.p.version[0] == '2' {
			cfg := one.config(balanced(servers...))
			one.settle(cfg, states(cfg, Open))
			choices(one) // HAProxy 2.6 serves all of them, and may choose otherwise elsewhere
			return
		}
		whole := one.config(balanced(servers...))
		one.settle(whole, states(whole, Open))
		want := choices(one)
		if !strings.ContainsAny(want, "0") || !strings.ContainsAny(want, "5") {
			t.Fatalf("the choices are %s, want every server among them", want)
		}
		for _, n := range [][]Server{
			{servers[4]},
			{servers[4], servers[1]},
			{servers[4], servers[1], servers[5], servers[0]},
			servers,
		} {
			cfg := two.config(balanced(n...))
			two.settle(cfg, states(cfg, Open))
		}
		if got := choices(two); got != want {
			t.Errorf("servers that were added in another order: got %s, want %s", got, want)
		}
		if got := two.p.Info().Reloads; got != 0 {
			t.Fatalf("there were %d reloads, want commands alone", got)
		}
		next := *two.config(balanced(servers...))
		next.Process.MaxConn = 1000
		two.settle(&next, states(&next, Open))
		if got := choices(two); got != want {
			t.Errorf("after a reload: got %s, want %s", got, want)
		}
		fewer := one.config(balanced(servers[:5]...))
		one.settle(fewer, states(fewer, Open))
		for i, got := range choices(one) {
			if was := rune(want[i]); was != '5' && got != was {
				t.Errorf("request %d went to server %c, and goes to %c when another server is gone", i, was, got)
			}
		}
	})
}
