package haproxy

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

func TestAListChangesWithoutAReload(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		a := origin(t, "a")
		listed := func(networks ...string) *Config {
			b := backend("app", a)
			b.Directives = []Directive{Deny(Networks{List: "c_bad"}, false)}
			cfg := r.config(b)
			l := &List{Name: "c_bad"}
			for _, n := range networks {
				l.Of = append(l.Of, netip.MustParsePrefix(n))
			}
			slices.SortFunc(l.Of, netip.Prefix.Compare)
			cfg.Lists = []*List{l}
			return cfg
		}
		var many []string
		for i := range 3 * fewRows {
			many = append(many, fmt.Sprintf("10.%d.0.0/16", i))
		}
		cfg := listed("192.0.2.0/24")
		r.apply(cfg, states(cfg, Open))
		for _, step := range []struct {
			name     string
			networks []string
			want     string
		}{
			{"others", []string{"192.0.2.0/24"}, "a"},
			{"the client's network is added", []string{"127.0.0.0/8", "192.0.2.0/24"}, "403"},
			{"another process looks", nil, ""},
			{"it is another one", []string{"127.0.0.0/16", "fd00::/8"}, "403"},
			{"many are added", append([]string{"127.0.0.1/32"}, many...), "403"},
			{"another process looks", nil, ""},
			{"the client is taken off", many, "a"},
			{"all are", []string{}, "a"},
			{"the client is the only one", []string{"127.0.0.1/32"}, "403"},
		} {
			if step.networks == nil {
				r.p = r.fresh()
				continue
			}
			cfg := listed(step.networks...)
			if res := r.apply(cfg, states(cfg, Open)); res.Reloaded {
				t.Errorf("%s: it was reloaded: %s", step.name, res.Reason)
			}
			if got := r.get("app.test", "/"); got != step.want {
				t.Errorf("%s: got %q, want %q", step.name, got, step.want)
			}
		}

		// A new worker has read the same networks from the file.
		r.reload(listed("127.0.0.1/32"))
		if got := r.get("app.test", "/"); got != "403" {
			t.Errorf("after a reload: got %q", got)
		}
	})
}
