package haproxy

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// lists returns the entries of the list that conditions name.
func lists(name string) ([]string, error) {
	if name != "ours" {
		return nil, errors.New("there is no list " + name)
	}
	return []string{"10.0.0.0/8", "192.0.2.1"}, nil
}

func TestAConditionStaysOne(t *testing.T) {
	for s, want := range map[string]string{
		"cookie(staging) -m found":         "{ 'cookie(staging)' '-m' 'found' }",
		` req.hdr(X-A)  -m str "b c" d\ e`: "{ 'req.hdr(X-A)' '-m' 'str' 'b c' 'd e' }",
		"rand(100) lt 25":                  "{ 'rand(100)' 'lt' '25' }",
		"path_reg it's$ # b'":              "{ 'path_reg' 'its$ # b' }",
		"src -f patterns/ours":             "{ 'src' '10.0.0.0/8' '192.0.2.1' }",
		`path "'"`:                         `{ 'path' ''\''' }`,
		"path ''":                          "{ 'path' '' }",
		"src -f patterns/theirs":           "! there is no list theirs",
		"a } b":                            "! without braces",
		"{ a }":                            "! without braces",
		`a "}"`:                            "! without braces",
		"a # b":                            `! write a "#"`,
		`a "$HOME"`:                        `! write a "$"`,
		"a\nuse_backend b":                 "! control character",
		"a 'b":                             "! is not closed",
		`a \`:                              `! the "\" at the end`,
		"":                                 "! the condition is empty",
		strings.Repeat("a ", 41):           "! 41 words",
		strings.Repeat("a", 2049):          "! 2049 bytes",
	} {
		text, err := Condition(s, lists)
		got := text.lines
		if err != nil {
			got = "! " + err.Error()
		}
		if begin, is := strings.CutPrefix(want, "! "); got != want &&
			(!is || err == nil || !strings.Contains(got, begin)) {
			t.Errorf("%q: %s, want %s", s, got, want)
		}
	}
}

func TestAListIsFilledIntoALine(t *testing.T) {
	odd := func(name string) ([]string, error) {
		if name == "odd" {
			return []string{"it's", "a\rb"}, nil
		}
		return lists(name)
	}
	for lines, want := range map[string]string{
		"acl a src -f patterns/ours": `acl a src '10.0.0.0/8' '192.0.2.1'`,
		"a\n  b -i -f\tpatterns/ours -f patterns/ours }\nc": "a\n" +
			"  b -i '10.0.0.0/8' '192.0.2.1' '10.0.0.0/8' '192.0.2.1' }\nc",
		// the keyword of a line is not replaced
		"-f patterns/ours":                                  "-f patterns/ours",
		"a -f other/ours -fpatterns/ours":                   "a -f other/ours -fpatterns/ours",
		"# a -f patterns/none\nb":                           "# a -f patterns/none\nb",
		"a\nb -f patterns/none":                             "line 2: there is no list none",
		"a -f patterns/odd":                                 `line 1: "a\rb" has the control character '\r', which is not allowed`,
		"a -f patterns/ours\nb -f patterns/none patterns/x": "line 2: there is no list none",
	} {
		got, err := FillIn(lines, odd)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", lines, got, want)
		}
	}
}

// FuzzCondition checks that any accepted text is one condition.
func FuzzCondition(f *testing.F) {
	for _, s := range []string{
		"a b", "a ' } or { '", `a "}" || b`, "a\\\nb", "a \\} b", "src -f patterns/ours",
		"'\\''",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		text, err := Condition(s, lists)
		if err != nil {
			return
		}
		words, err := splitWords(text.lines)
		if err != nil || len(words) < 3 || words[0] != "{" || words[len(words)-1] != "}" {
			t.Fatalf("%q is written as %q: %q, %v", s, text.lines, words, err)
		}
		for _, w := range words[1 : len(words)-1] {
			if w == "{" || w == "}" {
				t.Errorf("%q has braces within: %q", s, text.lines)
			}
		}
		if strings.ContainsAny(text.lines, "\n\r\x00") {
			t.Errorf("%q is written as %q", s, text.lines)
		}
	})
}

func condition(t testing.TB, s string) Text {
	t.Helper()
	text, err := Condition(s, lists)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestTheFirstCaseThatHoldsCounts(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg := r.config(backend("beta", origin(t, "beta")), backend("canary", origin(t, "canary")),
			backend("main", origin(t, "main")), backend("staff", origin(t, "staff")))
		both := NewChoice([]Case{
			{If: condition(t, `url_param(as) -m str "st aff" staff`), Backend: "staff"},
			{If: condition(t, "url_param(beta) -m found"), Backend: "beta"},
		})
		one := NewChoice([]Case{{If: condition(t, "url_param(beta) -m found"), Backend: "beta"}})
		cfg.Choices = []*Choice{both, one}
		if one.Name < both.Name {
			cfg.Choices = []*Choice{one, both}
		}
		cfg.Routes = []*Route{
			{Host: "a.test", Path: "/", Match: Prefix, Backend: "main", Choice: both.Name},
			{Host: "a.test", Path: "/plain", Match: Prefix, Backend: "main"},
			{Host: "a.test", Path: "/[0-9]", Match: Regexp, Backend: "canary"},
			{Host: "b.test", Path: "/", Match: Prefix, Choice: one.Name},
			{
				Host: "c.test", Path: "/", Match: Prefix, Backend: "main", Canary: "canary", CanaryWeight: 100,
				Choice: one.Name,
			},
		}
		r.apply(cfg, states(cfg, Open))
		for _, c := range []struct{ host, path, want string }{
			{"a.test", "/", "main"},
			{"a.test", "/?as=staff", "staff"},
			{"a.test", "/?as=staff&beta", "staff"},
			{"a.test", "/?beta=1", "beta"},
			{"a.test", "/plain?beta=1", "main"},
			{"a.test", "/7?beta=1", "canary"},
			{"b.test", "/", "404"},
			{"b.test", "/?beta=1", "beta"},
			{"c.test", "/", "canary"},
			{"c.test", "/?beta=1", "beta"},
			{"main.test", "/?beta=1", "404"},
		} {
			if got := r.get(c.host, c.path); got != c.want {
				t.Errorf("%s%s: got %q, want %q", c.host, c.path, got, c.want)
			}
		}

		// The choice of a route changes without a reload.
		next := *cfg
		next.Routes = []*Route{{Host: "a.test", Path: "/", Match: Prefix, Backend: "main", Choice: one.Name}}
		if res := r.apply(&next, states(&next, Open)); res.Reloaded {
			t.Errorf("it reloaded: %+v", res)
		}
		if got := r.get("a.test", "/?as=staff"); got != "main" {
			t.Errorf("with another choice: got %q", got)
		}
		next.Choices = nil
		next.Routes = []*Route{{Host: "a.test", Path: "/", Match: Prefix, Backend: "main"}}
		if res := r.apply(&next, states(&next, Open)); !res.Reloaded {
			t.Errorf("it did not reload: %+v", res)
		}
		if got := r.get("a.test", "/?beta=1"); got != "main" {
			t.Errorf("without choices: got %q", got)
		}
	})
}

// TestACaseHoldsForTheSameRequestsAsAPickCase has the conditions of a Pick as those of a Choice. They differ
// only if a request has a parameter twice: then the condition of a Case holds if either has the value.
func TestACaseHoldsForTheSameRequestsAsAPickCase(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg, _ := r.gateway("both", "decoded", "header", "method", "param", "pattern", "rest", "strange", "two")
		cfg.Listeners = nil
		var open, sealed []Case
		for _, one := range conditionCases() {
			for tls, cases := range map[bool]*[]Case{false: &open, true: &sealed} {
				text, err := one.If.Text(tls)
				if err != nil {
					t.Fatal(err)
				}
				*cases = append(*cases, Case{If: text, Backend: one.To.String()})
			}
		}
		a, b := NewChoice(open), NewChoice(sealed)
		cfg.Choices = []*Choice{a, b}
		slices.SortFunc(cfg.Choices, func(a, b *Choice) int { return strings.Compare(a.Name, b.Name) })
		cfg.Routes = []*Route{
			{Host: "a.test", Path: "/", Match: Prefix, Backend: "rest", Choice: a.Name},
			{Host: "tls.test", Path: "/", Match: Prefix, Backend: "rest", Choice: b.Name},
		}
		r.settle(cfg, states(cfg, Open))
		for _, c := range conditionRequests {
			want := c.want
			if c.path == "/?q=2&q=1" {
				want = "param"
			}
			if got := r.ask(r.http, c.method, "a.test", c.path, c.lines...); got != want {
				t.Errorf("%s %s %.60q: got %q, want %q", c.method, c.path, c.lines, got, want)
			}
			if got := r.ask(r.http, c.method, "tls.test", c.path, c.lines...); got != "rest" {
				t.Errorf("without TLS: %s %s %.60q: got %q, want rest", c.method, c.path, c.lines, got)
			}
		}
	})
}

func TestAConditionThatFitsNoLineIsRejected(t *testing.T) {
	header := func(n int, value string) (all []Field) {
		for i := range n {
			all = append(all, Field{Name: fmt.Sprint("x-", i), Value: value})
		}
		return all
	}
	for name, row := range map[string]struct {
		when When
		good bool
	}{
		"seven headers":             {When{Headers: header(maxTogether, "a")}, true},
		"eight headers":             {When{Headers: header(maxTogether+1, "a")}, false},
		"a long value":              {When{Headers: header(1, strings.Repeat("x", maxCondition))}, false},
		"a brace":                   {When{Headers: header(1, "}")}, false},
		"a NUL":                     {When{Headers: header(1, "\x00")}, false},
		"quotes":                    {When{Headers: header(1, `'" # $HOME`)}, true},
		"nothing":                   {When{}, false},
		"a method that is no token": {When{Method: "A B"}, false},
	} {
		if text, err := row.when.Text(true); (err == nil) != row.good {
			t.Errorf("%s: got %s, %v", name, text, err)
		}
	}
}

// TestAClientStaysAtItsSideOfACanary has the cookies of two canaries of one host, and a side without a server.
func TestAClientStaysAtItsSideOfACanary(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		a, canary, b := backend("a", origin(t, "a")), backend("canary", origin(t, "canary")), backend("b", origin(t, "b"))
		sides := func(cookie, canary, main string) *Choice {
			return NewChoice([]Case{
				must[Case](t)(NewStay(cookie, "always", canary)), must[Case](t)(NewStay(cookie, "never", main)),
				{If: must[Text](t)(HeaderIs("X-New", "yes")), Backend: canary},
			})
		}
		cfg := r.config(a, b, canary)
		one, two := sides("ONE", "canary", "a"), sides("TWO", "canary", "b")
		cfg.Choices = []*Choice{one, two}
		for _, c := range cfg.Choices {
			for name, directives := range c.Stays() {
				i := slices.IndexFunc(cfg.Backends, func(b *Backend) bool { return b.Name == name })
				cfg.Backends[i].Directives = append(cfg.Backends[i].Directives, directives...)
			}
		}
		slices.SortFunc(cfg.Choices, func(a, b *Choice) int { return strings.Compare(a.Name, b.Name) })
		cfg.Routes = []*Route{
			{Host: "a.test", Path: "/", Match: Prefix, Backend: "a", Choice: one.Name},
			{Host: "a.test", Path: "/b", Match: Prefix, Backend: "b", Choice: two.Name},
		}
		r.settle(cfg, states(cfg, Open))
		get := func(path, cookie, header, body, set string) {
			t.Helper()
			q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://a.test"+path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			q.Header = http.Header{"Cookie": {cookie}, "X-New": {header}}
			answer, err := r.client("").Do(q)
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			got, _ := io.ReadAll(answer.Body)
			if string(got) != body || answer.Header.Get("Set-Cookie") != set {
				t.Errorf("%s with %q and %q: got %q and %q, want %q and %q", path, cookie, header, got,
					answer.Header.Get("Set-Cookie"), body, set)
			}
		}
		const attributes = "; Path=/; HttpOnly"
		get("/", "", "", "a", "ONE=never"+attributes)
		get("/", "", "yes", "canary", "ONE=always"+attributes)
		get("/", "ONE=always", "", "canary", "")
		get("/", "ONE=never", "yes", "a", "")
		get("/", "ONE=other", "", "a", "ONE=never"+attributes)
		get("/b", "ONE=always", "", "b", "TWO=never"+attributes)
		get("/b", "ONE=never; TWO=always", "", "canary", "")

		// A canary without a server takes none of its clients. Without its choice, the cookie means nothing.
		canary = backend("canary")
		cfg = &Config{Shape: cfg.Shape, Routes: cfg.Routes, Backends: []*Backend{a, b, canary}}
		r.settle(cfg, states(cfg, Open))
		r.eventually("the server is gone", func() bool {
			r.apply(cfg, states(cfg, Open))
			servers, err := byID(r.p.Servers())
			return err == nil && len(servers) == 2
		})
		get("/", "ONE=always", "", "a", "ONE=never"+attributes)
		cfg = r.config(a, b)
		r.settle(cfg, states(cfg, Open))
		get("/", "ONE=always", "", "a", "")
	})
}
