package gateway

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// written returns rows as lines: "HOST TYPE PATH: ROUTE/RULE, …".
func written(rows []Row) (lines []string) {
	for _, r := range rows {
		var chain []string
		for _, e := range r.Chain {
			chain = append(chain, fmt.Sprintf("%s/%d", e.Route.Object.GetName(), e.Index))
		}
		lines = append(lines, fmt.Sprintf("%s %s %s: %s", []string{"exact", "regexp", "prefix"}[r.Type],
			r.Host, r.Path, strings.Join(chain, " ")))
	}
	return lines
}

func anyHost(string, string) bool { return true }

func anyCopies(*Route, string, int) bool { return true }

func TestOrderOfMatches(t *testing.T) {
	for name, c := range map[string]struct {
		objects string
		want    []string
	}{
		"exact before prefix, and the longer prefix first": {
			`kind: HTTPRoute
metadata: {name: r}
spec:
  parentRefs: [{name: gate}]
  rules:
  - matches: [{path: {value: /}}]
  - matches: [{path: {value: /a}}]
  - matches: [{path: {value: /a/b/}}]
  - matches: [{path: {type: Exact, value: /a/b}}]`,
			[]string{"prefix  /: r/1", "prefix  /a: r/2", "exact  /a/b: r/4", "prefix  /a/b: r/3"},
		},
		"a match that fails lets the next one try": {
			`kind: HTTPRoute
metadata: {name: r}
spec:
  parentRefs: [{name: gate}]
  rules:
  - matches: [{path: {value: /}}]
  - matches: [{headers: [{name: a, value: "1"}]}]
  - matches: [{headers: [{name: a, value: "1"}, {name: b, value: "1"}]}]
  - matches: [{method: POST}]
  - matches: [{queryParams: [{name: q, value: "1"}]}]
  - matches: [{path: {value: /a}, queryParams: [{name: q, value: "1"}]}]`,
			[]string{"prefix  /: r/4 r/3 r/2 r/5 r/1", "prefix  /a: r/6 r/4 r/3 r/2 r/5 r/1"},
		},
		"the older route, then its first rule": {
			`kind: HTTPRoute
metadata: {name: z}
spec:
  parentRefs: [{name: gate}]
  rules:
  - matches: [{headers: [{name: a, value: "1"}]}]
  - matches: [{headers: [{name: b, value: "1"}]}]
---
kind: HTTPRoute
metadata: {name: a}
spec: {parentRefs: [{name: gate}], rules: [{matches: [{headers: [{name: a, value: "1"}]}]}]}`,
			[]string{"prefix  /: z/1 z/2 a/1"},
		},
		"wider hostnames take what falls through": {
			`kind: HTTPRoute
metadata: {name: narrow}
spec: {parentRefs: [{name: gate}], hostnames: [a.example.com], rules: [{matches: [{path: {value: /a}}]}]}
---
kind: HTTPRoute
metadata: {name: whole}
spec: {parentRefs: [{name: gate}], hostnames: [b.example.com], rules: [{}]}
---
kind: HTTPRoute
metadata: {name: wide}
spec: {parentRefs: [{name: gate}], hostnames: ["*.example.com"], rules: [{matches: [{path: {value: /w}}]}]}`,
			[]string{
				"prefix  /: ", "prefix *.example.com /: ", "prefix *.example.com /w: wide/1",
				"prefix a.example.com /: ", "prefix a.example.com /a: narrow/1", "prefix a.example.com /w: wide/1",
				"prefix b.example.com /: whole/1",
			},
		},
		"a call by service and method, and by one of them": {
			`kind: GRPCRoute
metadata: {name: r}
spec:
  parentRefs: [{name: gate}]
  rules:
  - matches: [{method: {service: s.S, method: M}}]
  - matches: [{method: {service: s.S}}]
  - matches: [{method: {method: M}}]`,
			[]string{"prefix  /: ", "regexp  /[^/]+/M$: r/3", "prefix  /s.S: r/2", "exact  /s.S/M: r/1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := Attach(around(read(t, class+`
---
kind: Gateway
metadata: {name: gate}
spec: {gatewayClassName: ours, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
`+c.objects)))
			got := written(a.RowsOf(a.Gateways[0].Listeners, Hosts{May: anyHost, Takes: anyCopies}))
			if !slices.Equal(got, c.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

// TestARequestSeesTheRoutesOfOneListener has two listeners of one port. The narrower one has its
// hostname alone, even for what none of its routes match.
func TestARequestSeesTheRoutesOfOneListener(t *testing.T) {
	a := Attach(around(read(t, class+`
---
kind: Gateway
metadata: {name: gate}
spec:
  gatewayClassName: ours
  listeners:
  - {name: all, port: 80, protocol: HTTP}
  - {name: wild, port: 80, protocol: HTTP, hostname: "*.example.com"}
  - {name: one, port: 80, protocol: HTTP, hostname: a.example.com}
---
kind: HTTPRoute
metadata: {name: everywhere}
spec: {parentRefs: [{name: gate, sectionName: all}], hostnames: [a.example.com, b.example.com, c.org], rules: [{}]}
---
kind: HTTPRoute
metadata: {name: wilds}
spec: {parentRefs: [{name: gate, sectionName: wild}], rules: [{matches: [{path: {value: /w}}]}]}
---
kind: HTTPRoute
metadata: {name: ones}
spec: {parentRefs: [{name: gate, sectionName: one}], rules: [{matches: [{path: {value: /o}}]}]}`)))
	got := written(a.RowsOf(a.Gateways[0].Listeners, Hosts{May: anyHost, Takes: anyCopies}))
	want := []string{
		"prefix  /: ", "prefix *.example.com /: ", "prefix *.example.com /w: wilds/1", "prefix a.example.com /: ",
		"prefix a.example.com /o: ones/1", "prefix c.org /: everywhere/1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestAReservedHostIsCutOutOfWiderOnes checks that a route for every host has no request for a host
// that its namespace may not have.
func TestAReservedHostIsCutOutOfWiderOnes(t *testing.T) {
	a := Attach(around(read(t, class+`
---
kind: Gateway
metadata: {name: gate}
spec:
  gatewayClassName: ours
  listeners: [{name: all, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}]
---
kind: HTTPRoute
metadata: {name: any}
spec: {parentRefs: [{name: gate}], rules: [{}]}
---
kind: HTTPRoute
metadata: {name: theirs, namespace: bank}
spec: {parentRefs: [{name: gate, namespace: web}], rules: [{matches: [{path: {value: /bank}}]}]}`)))
	may := func(namespace, host string) bool { return a.world.Host(namespace, host) == nil }
	got := written(a.RowsOf(a.Gateways[0].Listeners,
		Hosts{More: []string{"reserved.example.com"}, May: may, Takes: anyCopies}))
	want := []string{
		"prefix  /: any/1", "prefix  /bank: theirs/1", "prefix reserved.example.com /: ",
		"prefix reserved.example.com /bank: theirs/1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestWiderHostnamesAreThoseThatContainAHost compares WiderThan with Contains.
func TestWiderHostnamesAreThoseThatContainAHost(t *testing.T) {
	hosts := []string{"", "*.a", "a", "b.a", "*.b.a", "c.b.a", "*.c.b.a", "d.c.b.a", "xb.a", "*.xb.a"}
	for _, host := range hosts {
		var want, got []string
		for _, wide := range slices.SortedFunc(slices.Values(hosts), compareHostnames) {
			if wide != host && Contains(wide, host) {
				want = append(want, wide)
			}
		}
		for wide := range WiderThan(host) {
			if slices.Contains(hosts, wide) {
				got = append(got, wide)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: got %q, want %q", host, got, want)
		}
	}
}

// TestAHostBelongsToTheMostSpecificHostname compares Owners with a search among all listeners.
func TestAHostBelongsToTheMostSpecificHostname(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		host := rapid.Custom(func(t *rapid.T) string {
			labels := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b"}), 0, 4).Draw(t, "labels")
			if len(labels) > 0 && rapid.Bool().Draw(t, "wild") {
				labels = append([]string{"*"}, labels...)
			}
			return strings.Join(labels, ".")
		})
		var listeners []*Listener
		for _, h := range rapid.SliceOfN(host, 0, 12).Draw(t, "hostnames") {
			listeners = append(listeners, &Listener{Hostname: h})
		}
		owners, asked := OwnersOf(listeners), host.Draw(t, "host")
		var want *Listener
		for _, l := range listeners {
			if Contains(l.Hostname, asked) && (want == nil || compareHostnames(l.Hostname, want.Hostname) < 0) {
				want = l
			}
		}
		if got := owners.Of(asked); got != want {
			t.Errorf("%q belongs to %v, want %v", asked, got, want)
		}
	})
}
