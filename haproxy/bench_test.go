package haproxy

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkApply changes the state of one server among those of n backends, with a real
// HAProxy: what did not change is remembered, so what it costs is one command. "Placed" is the
// same while a spare backend stands for another one.
func BenchmarkApply(b *testing.B) {
	for _, n := range []int{1, 1000, 10_000, -1000, -10_000} {
		what, placed := fmt.Sprintf("%d backends", n), n < 0
		if placed {
			n = -n
			what = fmt.Sprintf("%d backends, one placed", n)
		}
		b.Run(what, func(b *testing.B) {
			r := newRig(b, binaries(b)[0])
			var backends []*Backend
			for i := range n {
				var servers []Server
				for j := range 5 {
					servers = append(servers, nowhereServer(i*5+j))
				}
				backends = append(backends, backend(fmt.Sprintf("ns_svc_app%04d_80", i), servers...))
			}
			cfg := r.config(backends...)
			r.settle(cfg, states(cfg, Open))
			if placed {
				next := *cfg
				next.Backends = append(slices.Clone(backends), backend("ns_svc_new_80", nowhereServer(0)))
				cfg = &next
				if res, err := r.p.Apply(b.Context(), cfg, inOrder(cfg, states(cfg, Open))); err != nil ||
					res.Reloaded {
					b.Fatalf("got %+v, %v", res, err)
				}
			}
			wish := inOrder(cfg, states(cfg, Open))
			b.ResetTimer()
			for i := range b.N {
				wish = slices.Clone(wish) // the one before was handed over
				wish[n/2] = slices.Clone(wish[n/2])
				wish[n/2][2] = []State{Closed, Open}[i%2]
				if res, err := r.p.Apply(b.Context(), cfg, wish); err != nil || res.Reloaded || res.Commands != 1 {
					b.Fatalf("got %+v, %v", res, err)
				}
			}
		})
	}
}

// BenchmarkRoutes adds and removes the route of one host, and for "new" its backend, too,
// which takes a spare place.
func BenchmarkRoutes(b *testing.B) {
	for _, kind := range []string{"known", "new"} {
		for _, n := range []int{1, 1000, 10_000} {
			b.Run(fmt.Sprintf("%s backend of %d", kind, n), func(b *testing.B) {
				r := newRig(b, binaries(b)[0])
				var backends []*Backend
				for i := range n {
					backends = append(backends, backend(fmt.Sprintf("ns_svc_app%05d_80", i), nowhereServer(i)))
				}
				cfg := r.config(backends...)
				next := *cfg
				if kind == "new" {
					next.Backends = append(slices.Clone(backends), backend("ns_svc_new_80", nowhereServer(0)))
				}
				next.Routes = append(slices.Clone(cfg.Routes),
					&Route{
						Host: "new.test", Path: "/", Match: Prefix,
						Backend: next.Backends[len(next.Backends)-1].Name,
					})
				r.settle(cfg, states(cfg, Open))
				worlds := []*Config{&next, cfg}
				wishes := []States{inOrder(&next, states(&next, Open)), inOrder(cfg, states(cfg, Open))}
				i := 0
				for b.Loop() {
					if res, err := r.p.Apply(b.Context(), worlds[i%2], wishes[i%2]); err != nil || res.Reloaded {
						b.Fatalf("got %+v, %v", res, err)
					}
					i++
				}
			})
		}
	}
}

// BenchmarkRows makes the rows of all maps after one of n routes at a Listener has changed.
func BenchmarkRows(b *testing.B) {
	for _, n := range []int{10, 1000, 10_000} {
		b.Run(fmt.Sprintf("%d routes", n), func(b *testing.B) {
			cfg := &Config{Backends: []*Backend{backend("app"), backend("other")}}
			for i := range n {
				cfg.Routes = append(cfg.Routes, &Route{
					Scope: "192.0.2.1:80", Host: fmt.Sprintf("h%05d.test", i), Path: "/", Match: Prefix, To: To("app"),
				})
			}
			next := *cfg
			next.Routes = slices.Clone(cfg.Routes)
			next.Routes[n/2] = new(*cfg.Routes[n/2])
			next.Routes[n/2].To = To("other")
			worlds, r := []*Config{&next, cfg}, &renderer{}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				r.renderTables(worlds[i%2], nil)
			}
		})
	}
}

// BenchmarkRewritesOfOthers asks one application for a page while more and more
// others each have a rewrite of their own. Their rewrites cost it nothing.
func BenchmarkRewritesOfOthers(b *testing.B) {
	for _, others := range []int{0, 1000} {
		b.Run(strconv.Itoa(others), func(b *testing.B) {
			r := newRig(b, binaries(b)[0])
			list := []*Backend{backend("app", origin(b, "ok"))}
			for i := range others {
				d, err := ReplacePath(fmt.Sprintf("^/from%d(.*)", i), fmt.Sprintf(`/%d\1`, i))
				if err != nil {
					b.Fatal(err)
				}
				other := backend(fmt.Sprintf("other%d", i))
				other.Directives = []Directive{d}
				list = append(list, other)
			}
			cfg := r.config(list...)
			if _, err := r.p.Apply(b.Context(), cfg, inOrder(cfg, states(cfg, Open))); err != nil {
				b.Fatal(err)
			}
			answers(b, r, "app.test", "/page")
		})
	}
}

// BenchmarkChoicesAndPatternsOfOthers asks applications for a page while a
// thousand others each have a choice and a regular expression of their own: one
// that has neither, one with the last choice, and one with the last expression,
// whose path is always the same or always another.
func BenchmarkChoicesAndPatternsOfOthers(b *testing.B) {
	for _, others := range []int{0, 1000} {
		r := newRig(b, binaries(b)[0])
		cfg := r.config(backend("app", origin(b, "ok")))
		cfg.Routes = append(cfg.Routes, &Route{Host: "chosen.test", Path: "/", Match: Prefix},
			&Route{Host: "pattern.test", Path: "/[a-z]+[0-9]*$", Match: Regexp, Backend: "app"})
		for i := range others + 1 {
			c := NewChoice(
				[]Case{{If: condition(b, fmt.Sprintf("path -m beg /page%s",
					strings.Repeat(" /"+strconv.Itoa(i), min(i, 1)))), Backend: "app"}})
			cfg.Choices = append(cfg.Choices, c)
			cfg.Routes = append(cfg.Routes,
				&Route{Host: fmt.Sprintf("c%d.test", i), Path: "/", Match: Prefix, Choice: c.Name},
				&Route{Host: fmt.Sprintf("p%d.test", i), Path: fmt.Sprintf("/x%d", i), Match: Regexp, Backend: "app"})
		}
		slices.SortFunc(cfg.Choices, func(a, b *Choice) int { return strings.Compare(a.Name, b.Name) })
		cfg.Routes[1].Choice = cfg.Choices[len(cfg.Choices)-1].Name
		r.apply(cfg, states(cfg, Open))
		for _, host := range []string{"app.test", "chosen.test", "pattern.test"} {
			b.Run(fmt.Sprintf("%d others/%s", others, host), func(b *testing.B) { answers(b, r, host, "/page") })
		}
		b.Run(fmt.Sprintf("%d others/%s, another path each time", others, "pattern.test"), func(b *testing.B) {
			answers(b, r, "pattern.test", "/page%d")
		})
	}
}

// BenchmarkPatternsOfOthers asks an application with a regular expression of its
// own for a page, on every HAProxy: alone, beside as many expressions as one
// namespace may have, all in the map that the host is looked up in, and beside
// 35,000 of many namespaces.
func BenchmarkPatternsOfOthers(b *testing.B) {
	for _, binary := range binaries(b) {
		for _, others := range []struct {
			name     string
			patterns int
			beside   bool // all in the map of the host
		}{
			{"alone", 0, false},
			{"200 of one namespace in the same map", 200, true},
			{"35000 of many namespaces", 35000, false},
		} {
			r := newRig(b, binary)
			cfg := r.config(backend("app", origin(b, "ok")))
			cfg.Routes = append(cfg.Routes,
				&Route{Host: "pattern.test", Path: "/[a-z]+[0-9]*$", Match: Regexp, Backend: "app"})
			for i, made := 0, 0; made < others.patterns; i++ {
				host := fmt.Sprintf("p%d.test", i)
				if others.beside && patternMap(host, r.p.files.Secret) != patternMap("pattern.test", r.p.files.Secret) {
					continue
				}
				for j := 0; j < 100 && made < others.patterns; j++ {
					cfg.Routes = append(cfg.Routes,
						&Route{
							Host: host, Path: fmt.Sprintf("/longer-than-that-of-the-other-and-so-tried-first-%d", j),
							Match: Regexp, Backend: "app",
						})
					made++
				}
			}
			r.apply(cfg, states(cfg, Open))
			for _, host := range []string{"app.test", "pattern.test"} {
				b.Run(fmt.Sprintf("%s/%s/%s", r.p.Info().Version, others.name, host), func(b *testing.B) {
					answers(b, r, host, "/page%d")
				})
			}
		}
	}
}

// answers asks for a page of a host, as often as b says. With %d in it the path
// is another one each time.
func answers(b *testing.B, r *rig, host, path string) {
	var asked atomic.Int64
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	b.SetParallelism(8)
	before := r.used()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			request, err := http.NewRequestWithContext(b.Context(), http.MethodGet,
				"http://"+r.http.String()+strings.Replace(path, "%d", strconv.FormatInt(asked.Add(1), 10), 1),
				http.NoBody)
			if err != nil {
				b.Error(err)
				return
			}
			request.Host = host
			response, err := client.Do(request)
			if err != nil {
				b.Error(err)
				return
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			if response.StatusCode != http.StatusOK {
				b.Errorf("status %d", response.StatusCode)
			}
		}
	})
	b.ReportMetric(float64((r.used()-before).Microseconds())/float64(b.N), "cpu-µs/op")
}

// used returns the processor time that the worker has used so far, which the load of
// the machine changes little.
func (r *rig) used() time.Duration {
	r.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.p.Info().Worker))
	if err != nil {
		r.t.Fatal(err)
	}
	// proc(5): utime and stime, in hundredths of a second
	words := strings.Fields(string(text[bytes.LastIndexByte(text, ')'):]))
	user, _ := strconv.Atoi(words[12])
	system, _ := strconv.Atoi(words[13])
	return time.Duration(user+system) * 10 * time.Millisecond
}
