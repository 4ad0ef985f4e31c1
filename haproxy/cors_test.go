package haproxy

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestAnAnswerThatDependsOnItsOriginSaysSo(t *testing.T) {
	const page, other = "https://page.test", "https://other.test"
	preflight := map[string]string{
		"Origin": page, "Access-Control-Request-Method": "PATCH",
		"Access-Control-Request-Headers": "X-A, authorization",
	}
	type answer struct{ origin, methods, headers, credentials, vary string }
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		kinds := map[string]CORS{
			"all":     {Origin: "*", Methods: "*", Headers: "*"},
			"any":     {Origin: "*", Methods: "*", Headers: "*", Credentials: true},
			"local":   {Origin: "*", Methods: "*", Headers: "*", Credentials: true, Respond: true},
			"some":    {Origin: `https://page\.test`, Methods: "GET, PUT", Headers: "*", Credentials: true},
			"without": {Origin: `https://page\.test`, Methods: "*", Headers: "X-B"},
		}
		var backends []*Backend
		for _, name := range slices.Sorted(maps.Keys(kinds)) {
			c := kinds[name]
			c.MaxAge = time.Minute
			b := backend(name, origin(t, name))
			b.Directives = must[[]Directive](t)(c.Directives())
			SortDirectives(b.Directives)
			backends = append(backends, b)
		}
		cfg := r.config(backends...)
		r.apply(cfg, states(cfg, Open))
		const asked = "Origin, Access-Control-Request-Method, Access-Control-Request-Headers"
		for _, c := range []struct {
			kind, method string
			headers      map[string]string
			want         answer
		}{
			{"all", "GET", nil, answer{vary: "Origin"}},
			{"all", "GET", map[string]string{"Origin": page}, answer{"*", "*", "*", "", "Origin"}},
			{"all", "OPTIONS", preflight, answer{"*", "*", "*", "", "Origin"}},
			{"any", "GET", nil, answer{vary: "Origin"}},
			{"any", "GET", map[string]string{"Origin": other}, answer{other, "", "", "true", "Origin"}},
			{"any", "GET", map[string]string{"Origin": "null"}, answer{"null", "", "", "true", "Origin"}},
			{"any", "OPTIONS", preflight, answer{page, "PATCH", "X-A, authorization", "true", asked}},
			{"any", "OPTIONS", map[string]string{"Origin": page}, answer{page, "", "", "true", asked}},
			{"local", "OPTIONS", preflight, answer{page, "PATCH", "X-A, authorization", "true", asked}},
			{"local", "OPTIONS", map[string]string{"Origin": page}, answer{page, "", "", "true", asked}},
			{"some", "GET", map[string]string{"Origin": page}, answer{page, "GET, PUT", "", "true", "Origin"}},
			{"some", "GET", map[string]string{"Origin": other}, answer{vary: "Origin"}},
			{"some", "GET", nil, answer{vary: "Origin"}},
			{
				"some", "OPTIONS", preflight,
				answer{page, "GET, PUT", "X-A, authorization", "true", "Origin, Access-Control-Request-Headers"},
			},
			{"without", "OPTIONS", preflight, answer{page, "*", "X-B", "", "Origin"}},
		} {
			request, err := http.NewRequestWithContext(t.Context(), c.method, "http://"+c.kind+".test/", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			for name, value := range c.headers {
				request.Header.Set(name, value)
			}
			response, err := r.client("").Do(request)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			if c.kind == "local" && response.StatusCode != http.StatusNoContent {
				t.Errorf("%s with %v: want HAProxy's own answer, got %s", c.method, c.headers, response.Status)
			}
			h := response.Header
			got := answer{
				h.Get("Access-Control-Allow-Origin"), h.Get("Access-Control-Allow-Methods"),
				h.Get("Access-Control-Allow-Headers"), h.Get("Access-Control-Allow-Credentials"),
				strings.Join(h.Values("Vary"), ", "),
			}
			if got != c.want {
				t.Errorf("%s: %s with %v: got %+v, want %+v", c.kind, c.method, c.headers, got, c.want)
			}
		}
	})
}
