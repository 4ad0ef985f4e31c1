package haproxy

import "testing"

// TestCompressionWorksBesideAnotherFilter has backends with compression and a filter of ours, in each order, one
// whose lines name the filter themselves, and one of FastCGI.
func TestCompressionWorksBesideAnotherFilter(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		mirror := must[Directive](t)(Mirror([]Copy{{Backend: "b", Tenant: "c/d", Of: 1}}))
		lines := func(text string) Directive {
			return must[Text](t)(ParseText(BackendSection, text)).Directive()
		}
		server := origin(t, "the answer")
		a, b, c := backend("a", server), backend("b", server), backend("c", server)
		a.Directives = []Directive{mirror, lines("compression algo gzip\ncompression type text/plain")}
		b.Directives = []Directive{mirror}
		c.Directives = []Directive{mirror, lines("filter compression\ncompression algo gzip")}
		d := speaking(t, "d", FCGI{Root: "/"})
		d.Directives = append(d.Directives, lines("compression algo gzip"))
		cfg := r.config(a, b, c, d)
		cfg.Extras = []*Extra{MirrorScript()}
		r.settle(cfg, states(cfg, Open))
		for _, host := range []string{"a.test", "b.test", "c.test"} {
			if status, body := ask(t, r.client(""), "http://"+host+"/"); status != 200 || body != "the answer" {
				t.Errorf("%s: %d %q", host, status, body)
			}
		}
	})
}
