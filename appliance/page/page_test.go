package page

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const hostile = `"><script>alert(1)</script>`

func TestEveryTextIsEscaped(t *testing.T) {
	box := Box{Title: hostile, Lines: []string{hostile}, Href: "/" + hostile, Mark: Bad}
	p := Page{
		Title: hostile, Identity: hostile, Query: hostile, Version: hostile, AsOf: hostile,
		Crumbs: []Link{{hostile, "/" + hostile}}, Sections: []Section{{
			ID: "one", Title: hostile, Note: hostile, More: &Link{hostile, "/" + hostile},
			Lines: []Line{{Bad, hostile}}, Facts: []Fact{{hostile, Cell{Text: hostile}}},
			Diagram: &Diagram{
				Summary: hostile, Clients: box, Entrance: Door{Bad, hostile}, Appliance: box,
				Rows: []Row{{Door{Bad, hostile}, Door{Warn, hostile}, box, box, []string{hostile}}},
			},
			Plots: []Plot{{Title: hostile, Unit: hostile, Points: []float64{1, 2}, Span: hostile}},
			Table: &Table{
				Columns: []Column{{Name: hostile}},
				Rows:    [][]Cell{{{Text: hostile, Href: "javascript:" + hostile, Note: hostile}}}, Total: 1, From: 1,
				Next: hostile,
			},
			Filter: &Filter{
				hostile, hostile, hostile,
				[]Choice{{hostile, hostile, true}},
				[]Choice{{hostile, hostile, true}},
			},
		}},
	}
	text, err := p.render("/" + hostile)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "<script>") || strings.Contains(string(text), `"javascript:`) {
		t.Errorf("a text is not escaped:\n%s", text)
	}
	if n := strings.Count(string(text), "alert(1)"); n < 20 {
		t.Errorf("the texts are in the page %d times", n)
	}
}

func TestLinesAreWrappedAndLoseNothing(t *testing.T) {
	for _, text := range []string{
		"", "one", "no route to 172.16.171.64: the offer was refused",
		strings.Repeat("x", 100) + " end", "ü ö ä ß",
	} {
		for _, letters := range []int{1, 7, 20, 200} {
			lines := wrap(text, letters)
			if slices.ContainsFunc(lines, func(l string) bool { return len([]rune(l)) > letters }) {
				t.Errorf("%q in lines of %d: %q", text, letters, lines)
			}
			if got, want := strings.ReplaceAll(strings.Join(lines, ""), " ", ""),
				strings.ReplaceAll(text, " ", ""); got != want {
				t.Errorf("%q in lines of %d: %q", text, letters, lines)
			}
		}
	}
}

// site serves one page with two sections, of which the second shows a number.
func site(t *testing.T) (s *Site, url string, number *atomic.Int64) {
	number = new(atomic.Int64)
	s = &Site{Page: func(r *http.Request) (Page, bool) {
		return Page{
			Title: "t", AsOf: fmt.Sprint("noon and ", number.Load()),
			Sections: []Section{
				{ID: "still", Title: "Still"},
				{ID: "moving", Title: fmt.Sprint("Number ", number.Load())},
			},
		}, r.URL.Path == "/"
	}}
	server := httptest.NewServer(http.HandlerFunc(s.Live))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return s, server.URL, number
}

// watch opens a stream, and returns a function that waits for its next event.
func watch(t *testing.T, ctx context.Context, url string) (status int, next func() change) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r) //nolint:bodyclose // the context ends it
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(answer.Body)
	return answer.StatusCode, func() (c change) {
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				if err := json.Unmarshal([]byte(data), &c); err != nil {
					t.Fatal(err)
				}
				return c
			}
		}
		t.Fatal("the stream ended")
		return c
	}
}

func TestAStreamHasOnlyWhatChanged(t *testing.T) {
	_, url, number := site(t)
	_, next := watch(t, t.Context(), url+"?page=/")
	if first := next(); len(first.Sections) != 3 || first.Main != nil {
		t.Errorf("the first event has %v, want the header and two sections", first)
	}
	number.Store(7)
	if second := next(); len(second.Sections) != 1 || !strings.Contains(second.Sections["moving"], "Number 7") ||
		second.AsOf != "noon and 7" {
		t.Errorf("the second event has %v, want the moving section alone", second)
	}
}

func TestViewersAreBounded(t *testing.T) {
	s, url, _ := site(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range viewersEach {
		_, next := watch(t, ctx, url+"?page=/")
		next()
	}
	if status, _ := watch(t, t.Context(), url+"?page=/"); status != http.StatusNoContent {
		t.Errorf("one viewer more: got %d, want 204", status)
	}
	cancel()
	streams := func() int { s.mu.Lock(); defer s.mu.Unlock(); return s.open + len(s.viewers) }
	for deadline := time.Now().Add(time.Minute); streams() > 0; {
		if time.Now().After(deadline) {
			t.Fatalf("%d viewers never left", streams())
		}
	}
}

func TestOneAddressDoesNotHaveThePlacesOfAllViewers(t *testing.T) {
	var s Site
	count := func(addresses ...string) (in int) {
		for _, a := range addresses {
			if _, may := s.enter(a); may {
				in++
			}
		}
		return in
	}
	if got := count(slices.Repeat([]string{"192.0.2.1:1"}, 20)...); got != viewersEach {
		t.Errorf("one address has %d, want %d", got, viewersEach)
	}
	if got := count("[2001:db8::1]:1", "[2001:db8::2]:1", "[2001:db8::3]:1", "[2001:db8::4]:1",
		"[2001:db8::5]:1"); got != viewersEach {
		t.Errorf("one /64 has %d, want %d", got, viewersEach)
	}
	for i := range 20 {
		count(fmt.Sprintf("198.51.100.%d:1", i))
	}
	if s.open != viewers {
		t.Errorf("all have %d, want %d", s.open, viewers)
	}
}

func TestStreamsAreDrawnOneAtATime(t *testing.T) {
	var drawing, together atomic.Int64
	s := &Site{Page: func(*http.Request) (Page, bool) {
		together.Store(max(together.Load(), drawing.Add(1)))
		defer drawing.Add(-1)
		for range 1000 {
			runtime.Gosched()
		}
		return Page{Title: "t"}, true
	}}
	server := httptest.NewServer(http.HandlerFunc(s.Live))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	begun := make(chan struct{})
	for range viewersEach {
		go func() {
			defer func() { begun <- struct{}{} }()
			_, next := watch(t, ctx, server.URL+"?page=/")
			next()
		}()
	}
	for range viewersEach {
		<-begun
	}
	if n := together.Load(); n != 1 {
		t.Errorf("%d streams were drawn at once, want 1", n)
	}
}

func TestAStreamOfNoPageEnds(t *testing.T) {
	_, url, _ := site(t)
	for page, want := range map[string]int{
		"/nothing": http.StatusNoContent, "": http.StatusBadRequest,
		"nothing": http.StatusBadRequest, "http://evil.test/": http.StatusBadRequest,
	} {
		if status, _ := watch(t, t.Context(), url+"?page="+page); status != want {
			t.Errorf("page %q: got %d, want %d", page, status, want)
		}
	}
}

func TestNumbersAreWrittenForPeople(t *testing.T) {
	for n, want := range map[int]string{
		0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000",
		-100: "-100",
	} {
		if got := Comma(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
}
