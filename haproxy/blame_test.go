package haproxy

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestATextThatBreaksTheWholeIsFound(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		// Without a TLS listener HAProxy does not check ciphers.
		bad := parsed(t, GlobalSection, "ssl-default-bind-ciphers NOSUCH")
		worse := parsed(t, GlobalSection, "ssl-default-bind-ciphersuites NOSUCH")
		cfg := r.config(backend("app", origin(t, "app")))
		cfg.Process.Texts = []Text{parsed(t, GlobalSection, "tune.http.maxhdr 200")}
		for i := range 20 {
			b := backend(fmt.Sprintf("b%d", i))
			b.Directives = []Directive{parsed(t, BackendSection, fmt.Sprintf("http-request set-header X-A %d", i)).Directive()}
			cfg.Backends = append(cfg.Backends, b)
		}
		cfg = r.config(cfg.Backends...)
		choice := NewChoice([]Case{{condition(t, "url_param(a) -m found"), "app"}})
		cfg.Choices = []*Choice{choice}
		cfg.Process.Texts = []Text{parsed(t, GlobalSection, "tune.http.maxhdr 200")}
		r.apply(cfg, states(cfg, Open))

		next := *cfg
		next.Process.Texts = []Text{bad, worse, cfg.Process.Texts[0]}
		verdicts, err := r.p.Vet(t.Context(), questions(bad, worse))
		if err != nil || verdicts[bad.Part()] != Good || verdicts[worse.Part()] != Good {
			t.Fatalf("alone it is: %v, %v", verdicts, err)
		}
		if _, err := r.p.Apply(t.Context(), &next, inOrder(&next, states(&next, Open))); !errors.Is(err, ErrUnfit) {
			t.Fatalf("together: %v", err)
		}
		guilty, err := r.p.Blame(t.Context(), &next)
		if err != nil || len(guilty) != 2 || !strings.Contains(guilty[bad.Part()].Why, "NOSUCH") || strings.Contains(guilty[bad.Part()].Why, "haproxy.cfg") || guilty[worse.Part()].Why == "" {
			t.Errorf("guilty are %v, %v", guilty, err)
		}
		if guilty, err := r.p.Blame(t.Context(), cfg); err != nil || len(guilty) > 0 {
			t.Errorf("of a good one: %v, %v", guilty, err)
		}
		lost := *cfg
		lost.Tune.Base = "global\n  ssl-default-bind-ciphers NOSUCH\n"
		if guilty, err := r.p.Blame(t.Context(), &lost); err != nil || len(guilty) > 0 {
			t.Errorf("of one that is bad without texts: %v, %v", guilty, err)
		}
	})
}

func TestWhoComesLastIsToBlame(t *testing.T) {
	a, b := Text{GlobalSection, "a"}, Text{GlobalSection, "b"}
	p := &Proxy{told: &outline{cfg: &Config{Shape: Shape{Process: Process{Texts: []Text{b}}}}}}
	if got := p.runningFirst(&Config{Shape: Shape{Process: Process{Texts: []Text{a, b}}}}); got[0] != b.Part() || got[1] != a.Part() {
		t.Errorf("got %v", got)
	}
}
