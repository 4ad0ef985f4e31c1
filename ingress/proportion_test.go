package ingress

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// TestWhatANamespaceAsksForTakesWorkInProportion compiles objects of one namespace in shapes that meet each
// other at every step: four times as many objects take about four times the memory. A step that looks at
// every object for every other one would delay each change of everybody.
func TestWhatANamespaceAsksForTakesWorkInProportion(t *testing.T) {
	const few, most = 60, 6 // the memory of four times as many, in that of few
	one := func(i int, host, at, kind string) string {
		return ingress(fmt.Sprintf("i%d", i), 2020, "rules: ["+rule(host, path(at, kind, "web"))+"]")
	}
	annotated := func(i int, text, key, value string) string {
		name := fmt.Sprintf("{name: i%d,", i)
		return strings.Replace(text, name, name+" annotations: {"+key+": '"+value+"'},", 1)
	}
	for name, shape := range map[string]func(i int) string{
		"paths of one host": func(i int) string { return one(i, "a.test", fmt.Sprintf("/%d", i), "Prefix") },
		"one path":          func(i int) string { return one(i, "a.test", "/", "Prefix") },
		"nested paths":      func(i int) string { return one(i, "a.test", strings.Repeat("/a", i%100+1), "Prefix") },
		"exact paths":       func(i int) string { return one(i, "a.test", fmt.Sprintf("/%d", i), "Exact") },
		"hosts":             func(i int) string { return one(i, fmt.Sprintf("h%d.test", i), "/", "Prefix") },
		"wildcard hosts":    func(i int) string { return one(i, fmt.Sprintf("'*.h%d.test'", i), "/", "Prefix") },
		"challenges": func(i int) string {
			return one(i, "a.test", fmt.Sprintf("/.well-known/acme-challenge/t%d", i), "Exact")
		},
		"defaults": func(i int) string {
			return ingress(fmt.Sprintf("i%d", i), 2020, "defaultBackend: {service: {name: web, port: {number: 80}}}")
		},
		"hosts of a certificate": func(i int) string {
			return ingress(fmt.Sprintf("i%d", i), 2020, fmt.Sprintf("tls: [{hosts: [t%d.test, u%d.test], secretName: "+
				"none}], rules: [", i, i)+rule("a.test", path(fmt.Sprintf("/%d", i), "Prefix", "web"))+"]")
		},
		"guards": func(i int) string {
			return annotated(i, one(i, "a.test", fmt.Sprintf("/%d", i), "Prefix"), "haproxy.org/allow-list",
				fmt.Sprintf("10.0.%d.0/24", i%200))
		},
		"further names": func(i int) string {
			return annotated(i, one(i, "a.test", fmt.Sprintf("/%d", i), "Prefix"), "sallyport.dev/server-alias",
				fmt.Sprintf("n%d.test m%d.test", i, i))
		},
		"redirected names": func(i int) string {
			return annotated(i, one(i, fmt.Sprintf("h%d.test", i), "/", "Prefix"), "sallyport.dev/from-to-www-redirect", "true")
		},
		"canaries": func(i int) string {
			return annotated(i, one(i, "a.test", "/", "Prefix"), "sallyport.dev/canary-weight", fmt.Sprint(i%100))
		},
		"routes that redirect to https": func(i int) string {
			return "---" + sharedRoute("default", fmt.Sprintf("r%d", i), 2020, "", fmt.Sprintf("hostnames: [a.test], rules: ["+
				"{matches: [{path: {value: /%d/a}}], backendRefs: [{name: web, port: 80}]}, "+
				"{matches: [{path: {value: /%[1]d/b}}, {path: {value: /%[1]d/c}}], "+
				"filters: [{type: RequestRedirect, requestRedirect: {scheme: https}}]}]", i)) + "---\n"
		},
		"listeners of ListenerSets, and routes to many of them": func(i int) string {
			return "---" + listenerSet(i, 16) + parentsOf("default", i, 32) + "---\n"
		},
		"routes with conditions": func(i int) string {
			return "---" + sharedRoute("default", fmt.Sprintf("r%d", i), 2020, "", fmt.Sprintf("hostnames: [a.test], rules: ["+
				"{matches: [{path: {value: /}, headers: [{name: x, value: v%d}]}], backendRefs: [{name: web, port: 80}]}]",
				i)) + "---\n"
		},
	} {
		t.Run(name, func(t *testing.T) {
			takes := func(n int) uint64 {
				var all strings.Builder
				all.WriteString(app("web") + openToSets(sharing(plainOnes)))
				for i := range n {
					all.WriteString(shape(i))
				}
				s := snapshot(t, "c", strings.ReplaceAll(all.String(), "---\n---", "---"))
				share(&s)
				s.Options.Limits = Limits{Paths: 10 * few}
				c := Compiler{Shared: sharedPorts}
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				c.Compile([]Snapshot{s})
				runtime.ReadMemStats(&after)
				return after.TotalAlloc - before.TotalAlloc
			}
			takes(few) // what is made once
			once, more := takes(few), takes(4*few)
			if more > most*once {
				t.Errorf("%d objects take %d kB, and %d take %d kB", few, once>>10, 4*few, more>>10)
			}
			t.Logf("%s: %d kB, %d kB, ratio %.1f", name, once>>10, more>>10, float64(more)/float64(once))
		})
	}
}

// openToSets lets the Gateway of manifests take ListenerSets of all namespaces.
func openToSets(manifests string) string {
	return strings.Replace(manifests, "listeners:", "allowedListeners: {namespaces: {from: All}}, listeners:", 1)
}

// listenerSet returns the manifest of ListenerSet i with so many listeners for HTTP.
func listenerSet(i, listeners int) string {
	var all []string
	for n := range listeners {
		all = append(all, fmt.Sprintf("{name: l%d, port: 80, protocol: HTTP, hostname: l%[1]d.s%d.test}", n, i))
	}
	return fmt.Sprintf(`
kind: ListenerSet
metadata: {name: s%d, namespace: default, uid: s%[1]d}
spec: {parentRef: {name: gate}, listeners: [%s]}
---
`, i, strings.Join(all, ", "))
}

// parentsOf returns the manifest of a route for all hosts of the first ListenerSets.
func parentsOf(namespace string, i, sets int) string {
	var all []string
	for n := range sets {
		all = append(all, fmt.Sprintf("{name: s%d, namespace: default, kind: ListenerSet}", n))
	}
	return fmt.Sprintf(`
kind: HTTPRoute
metadata: {name: r%d, namespace: %s, uid: r%[1]d, creationTimestamp: "%04[4]d-01-01T00:00:00Z"}
spec: {parentRefs: [%[3]s], rules: [{matches: [{path: {value: /p%[1]d}}], backendRefs: [{name: web, port: 80}]}]}
---
`, i, namespace, strings.Join(all, ", "), 2000+i)
}

// TestRoutesToManyListenersAreCountedBeforeTheyAreMade asks for four places by each of three routes, where
// a namespace may have ten paths: the third one has none.
func TestRoutesToManyListenersAreCountedBeforeTheyAreMade(t *testing.T) {
	sets := listenerSet(0, 2) + listenerSet(1, 2)
	for name, of := range map[string]string{
		"at the addresses of Ingresses":      openToSets(sharing(plainOnes)),
		"at an address of the Gateway's own": openToSets(gateOf("{name: http, port: 80, protocol: HTTP}")),
	} {
		t.Run(name, func(t *testing.T) {
			manifests := of + sets + app("web")
			for i := range 3 {
				manifests += parentsOf("default", i, 2)
			}
			limited := func(s *Snapshot) { s.Options.Limits.Paths = 10 }
			c := &Compiler{}
			var r Result
			if strings.Contains(name, "Ingresses") {
				r = compileShared(t, c, manifests, limited)
			} else {
				r = compileGates(t, c, manifests, limited)
			}
			served := make(map[string]int)
			for _, route := range r.Config.Routes {
				if strings.HasPrefix(route.Path, "/p") {
					served[route.Path]++
				}
			}
			if want := map[string]int{"/p0": 4, "/p1": 4}; !maps.Equal(served, want) {
				t.Errorf("paths with routes: %v, want %v", served, want)
			}
			var told []string
			for _, p := range r.Problems {
				if p.Reason == "LimitReached" {
					told = append(told, p.Name)
				}
			}
			if !slices.Equal(told, []string{"r2"}) {
				t.Errorf("LimitReached is told of %q, want r2", told)
			}
		})
	}
}
