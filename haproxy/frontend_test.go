package haproxy

import (
	"strings"
	"testing"
)

// TestARouteWithoutRulesOfItsOwnSkipsNoneOfOthers looks at what ends the rules of the
// frontend early.
func TestARouteWithoutRulesOfItsOwnSkipsNoneOfOthers(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		app, closed := backend("app", heads(t)), backend("closed", heads(t))
		app.Directives = []Directive{must[Directive](t)(SetRequestHeader("X-Backend", "seen"))}
		closed.Directives = []Directive{Close()}
		cfg := r.config(app, closed)
		r.apply(cfg, states(cfg, Open))
		ask := func(host string) string {
			return strings.ToLower(r.send("GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n"))
		}
		if got := ask("app.test"); !strings.Contains(got, "x-backend: seen") {
			t.Errorf("the server saw %q, want the header that its backend sets", got)
		}
		if got := ask("closed.test"); !strings.HasPrefix(got, "http/1.1 503") {
			t.Errorf("a closed backend: got %q", got)
		}
		more := *cfg
		more.Process.Texts = []Text{
			must[Text](t)(ParseText(FrontendSection, "http-request set-header X-Frontend seen")),
		}
		r.eventually("the frontend has the text", func() bool {
			r.apply(&more, states(&more, Open))
			return strings.Contains(ask("app.test"), "x-frontend: seen")
		})
	})
}
