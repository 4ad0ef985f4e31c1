package haproxy

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

func TestAServiceAnswersForServersThatFail(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		var asked atomic.Pointer[http.Request]
		var times atomic.Int64
		pages := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked.Store(r)
			times.Add(1)
			w.Header().Add("X-Page", "a")
			w.Header().Add("X-Page", "b")
			w.Header().Set("Content-Type", "text/x-page")
			size := 10
			switch code := r.Header.Get("X-Code"); code {
			case "404":
				w.WriteHeader(http.StatusNotFound)
			case "405": // in chunks
				w.WriteHeader(http.StatusMethodNotAllowed)
				w.(http.Flusher).Flush()
			case "500": // as much as there is room for
				for i := range 85 {
					w.Header().Set("X-Small-"+strconv.Itoa(i), "0123456789")
				}
				size = 24576
			case "501":
				size = 24577
			case "502":
				hold, _, _ := w.(http.Hijacker).Hijack()
				_ = hold.Close()
				return
			case "503": // head and body are larger than a buffer
				w.Header().Set("X-Large", strings.Repeat("h", 14<<10))
				size = 24576
			case "504": // it breaks off
				w.Header().Set("Content-Length", "100")
			}
			_, _ = io.WriteString(w, strings.Repeat("p", size))
		}))
		t.Cleanup(pages.Close)
		pod := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			status, _ := strconv.Atoi(r.Header.Get("X-Status"))
			w.Header().Set("X-Of-Server", "yes")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, strings.Repeat("of the server ", 10_000))
		}))
		t.Cleanup(pod.Close)
		page := Page{Backend: "pages", Namespace: "shop", Statuses: []int{504, 503, 404, 405, 500, 501, 502, 404}}
		app, lost, bare := backend("app", serverAt(pod.Listener.Addr())), backend("lost", serverAt(pod.Listener.Addr())),
			backend("bare")
		app.Directives = []Directive{must[Directive](t)(page.Directive()), must[Directive](t)(ReplacePath("^/a", "/changed"))}
		bare.Directives = []Directive{must[Directive](t)(page.Directive())}
		page.Backend = "gone"
		page.Statuses = nil
		for status := 300; status < 600; status += 2 {
			page.Statuses = append(page.Statuses, status)
		}
		lost.Directives = []Directive{must[Directive](t)(page.Directive())}
		cfg := r.config(app, lost, bare, backend("pages", serverAt(pages.Listener.Addr())), backend("gone"))
		cfg.Extras = []*Extra{AskScript()}
		r.apply(cfg, states(cfg, Open))
		client := r.client("")
		type reply struct {
			status, size int
			page         bool
		}
		get := func(host string, status int, method string) (reply, http.Header) {
			t.Helper()
			request, err := http.NewRequestWithContext(context.Background(), method, "http://"+host+"/a?b='c'", nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("X-Status", strconv.Itoa(status))
			request.Header.Set("Accept", "text/html,a/b;q=0.1")
			request.Header.Set("X-Request-ID", "id-7")
			response, err := client.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			return reply{response.StatusCode, len(body), response.Header.Get("X-Of-Server") == ""}, response.Header
		}
		own := len("of the server ") * 10_000
		for _, c := range []struct {
			host, method string
			status       int
			want         reply
		}{
			{"app.test", "GET", 404, reply{404, 10, true}},
			{"app.test", "POST", 404, reply{404, 10, true}},
			{"app.test", "HEAD", 404, reply{404, 0, true}},
			{"app.test", "GET", 405, reply{405, 10, true}},
			{"app.test", "GET", 500, reply{200, 24576, true}}, // the status is that of the service
			{"app.test", "GET", 501, reply{501, own, false}},
			{"app.test", "GET", 502, reply{502, own, false}},
			{"app.test", "GET", 503, reply{503, own, false}},
			{"app.test", "GET", 504, reply{504, own, false}},
			{"app.test", "GET", 403, reply{403, own, false}},
			{"app.test", "GET", 200, reply{200, own, false}},
			{"lost.test", "GET", 404, reply{404, own, false}},
		} {
			got, header := get(c.host, c.status, c.method)
			if got != c.want {
				t.Errorf("%s %s with %d: got %+v, want %+v", c.method, c.host, c.status, got, c.want)
			}
			if got.page && (strings.Join(header["X-Page"], " ") != "a b" ||
				header.Get("Content-Type") != "text/x-page" || header.Get("X-Sallyport-Answer") != "") {
				t.Errorf("%d: headers %v", c.status, header)
			}
		}
		if got, _ := get("bare.test", 200, "GET"); got.status != 503 {
			t.Errorf("without servers: %+v", got)
		}
		before := times.Load()
		get("app.test", 404, "GET")
		if n := times.Load() - before; n != 1 {
			t.Errorf("%d requests for a page", n)
		}
		saw := asked.Load()
		for name, want := range map[string]string{
			"X-Code": "404", "X-Format": "text/html,a/b;q=0.1", "X-Original-Uri": "/a?b='c'", "X-Namespace": "shop",
			"X-Request-Id": "id-7", "X-Forwarded-For": "127.0.0.1", "X-Sallyport-Secret": "", "X-Sallyport-Backend": "",
		} {
			if got := saw.Header.Get(name); got != want {
				t.Errorf("the service saw %s: %q, want %q", name, got, want)
			}
		}
		if saw.URL.String() != "/" || saw.Method != "GET" || saw.Host != "app.test" {
			t.Errorf("the service saw %s %s of %s", saw.Method, saw.URL, saw.Host)
		}
	})
}
