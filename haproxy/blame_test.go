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
			b.Directives = []Directive{parsed(t, BackendSection,
				fmt.Sprintf("http-request set-header X-A %d", i)).Directive()}
			cfg.Backends = append(cfg.Backends, b)
		}
		cfg = r.config(cfg.Backends...)
		choice := NewChoice([]Case{{If: condition(t, "url_param(a) -m found"), Backend: "app"}})
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
		if err != nil || len(guilty) != 2 || !strings.Contains(guilty[bad.Part()].Why, "NOSUCH") ||
			strings.Contains(guilty[bad.Part()].Why, "haproxy.cfg") || guilty[worse.Part()].Why == "" {
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
	p := &Proxy{belief: belief{told: &outline{cfg: &Config{Shape: Shape{Process: Process{Texts: []Text{b}}}}}}}
	if got, running := p.runningFirst(&Config{Shape: Shape{Process: Process{Texts: []Text{a, b}}}}); running != 1 ||
		got[0] != b.Part() || got[1] != a.Part() {
		t.Errorf("got %v", got)
	}
}

// ownedBy returns a backend with a directive of a namespace.
func ownedBy(namespace, name string, d ...Directive) *Backend {
	b := backend(name)
	b.Cluster, b.Namespace, b.Directives = "c", namespace, d
	return b
}

// TestASearchIsBoundedForEachOwner checks that many guilty parts of one owner cost the others
// few runs of HAProxy, whether its complaints name them or not, and that no part of others is
// left out.
func TestASearchIsBoundedForEachOwner(t *testing.T) {
	good := must[Directive](t)(SetRequestHeader("X-A", "b"))
	withEach(t, func(t *testing.T, binary string) {
		for name, spoil := range map[string]func(cfg *Config, i int) Part{
			"backends": func(cfg *Config, i int) Part {
				b := ownedBy("evil", fmt.Sprintf("evil%03d", i), nonsense)
				cfg.Backends = append(cfg.Backends, b)
				return b.Part()
			},
			"certificates": func(cfg *Config, i int) Part {
				c := &Cert{
					Name: fmt.Sprintf("evil%03d.pem", i), PEM: fmt.Appendf(nil, "nothing %d", i),
					Owner: "c/evil",
				}
				cfg.Certs = append(cfg.Certs, c)
				return Pair{PEM: c.PEM}.Part()
			},
			"authorities": func(cfg *Config, i int) Part {
				e := &Extra{fmt.Sprintf("evil%03d.ca.pem", i), fmt.Appendf(nil, "nothing %d", i)}
				b := ownedBy("evil", fmt.Sprintf("evil%03d", i))
				b.Options = ServerOptions{TLS: true, CA: e.Name}
				cfg.Extras, cfg.Backends = append(cfg.Extras, e), append(cfg.Backends, b)
				return e.Part()
			},
			"certificates for servers": func(cfg *Config, i int) Part {
				e := &Extra{fmt.Sprintf("evil%03d.crt.pem", i), fmt.Appendf(nil, "nothing %d", i)}
				b := ownedBy("evil", fmt.Sprintf("evil%03d", i))
				b.Options = ServerOptions{TLS: true, Crt: e.Name}
				cfg.Extras, cfg.Backends = append(cfg.Extras, e), append(cfg.Backends, b)
				return e.Part()
			},
		} {
			t.Run(name, func(t *testing.T) {
				r := newRig(t, binary)
				cfg := r.config(ownedBy("evil", "evilgood", good))
				const many = 300
				var bad []Part
				for i := range many {
					bad = append(bad, spoil(cfg, i))
				}
				victim := ownedBy("victim", "victim", good)
				cfg.Backends = append(cfg.Backends, victim)
				r.p.belief.told = &outline{cfg: r.config(ownedBy("evil", "evilgood", good))}
				before := r.p.Info().Checks
				guilty, err := r.p.Blame(t.Context(), cfg)
				if err != nil {
					t.Fatal(err)
				}
				if runs := r.p.Info().Checks - before; runs > 12 {
					t.Errorf("HAProxy ran %d times for %d guilty parts of one owner", runs, many)
				} else {
					t.Logf("HAProxy ran %d times", runs)
				}
				for _, part := range bad {
					if guilty[part].Why == "" {
						t.Errorf("%s is not found", part)
					}
				}
				if guilty[victim.Part()].Known || guilty[cfg.Backends[0].Part()].Known {
					t.Errorf("what is good is left out: %v", guilty)
				}
			})
		}
	})
}
