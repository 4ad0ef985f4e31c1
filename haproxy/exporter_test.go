package haproxy

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sallyport/test/lab/debian"
)

func TestTheExporterHasTheNamesOfServices(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		var none strings.Builder
		if err := r.p.Metrics(t.Context(), "", &none); err == nil ||
			!strings.Contains(err.Error(), "has not started yet") || none.Len() > 0 {
			t.Errorf("before the start: got %v, %q", err, none.String())
		}
		a, b := backend("default_a_80", origin(t, "a")), backend("default_b_80", origin(t, "b"))
		r.settle(r.config(a), states(r.config(a), Open))
		cfg := r.config(a, b)
		if res := r.apply(cfg, states(cfg, Open)); res.Reloaded {
			t.Fatalf("got %+v, want no reload", res)
		}
		r.get("default_b_80.test", "/")
		scrape := func(query string) string {
			t.Helper()
			var text strings.Builder
			if err := r.p.Metrics(t.Context(), query, &text); err != nil {
				t.Fatal(err)
			}
			return text.String()
		}
		r.eventually("the exporter counts the request", func() bool {
			return strings.Contains(scrape(""), `haproxy_backend_http_requests_total{proxy="default_b_80"} 1`)
		})
		text := scrape("")
		for _, want := range []string{
			`haproxy_server_status{proxy="default_b_80",server="` + b.Servers[0].Name + `",state="UP"} 1`,
			`haproxy_backend_status{proxy="default_a_80",state="UP"} 1`,
			`haproxy_frontend_http_requests_total{proxy="http"} `, "haproxy_process_uptime_seconds ",
			"# TYPE haproxy_server_status gauge",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("the metrics do not have %s", want)
			}
		}
		names := map[string]bool{}
		for _, m := range regexp.MustCompile(`proxy="([^"]*)"`).FindAllStringSubmatch(text, -1) {
			names[m[1]] = true
		}
		for name := range names {
			if strings.HasPrefix(name, spareName) || name == exporter {
				t.Errorf("the metrics have %s", name)
			}
		}
		tool, err := debian.Prometheus().Fetch(t.Context(), os.Stderr)
		if err != nil {
			t.Fatalf("%v: make setup fetches it", err)
		}
		check := exec.CommandContext(t.Context(), filepath.Join(tool, "promtool"), "check", "metrics")
		check.Stdin = strings.NewReader(text)
		out, err := check.CombinedOutput()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		for complaint := range strings.Lines(string(out)) {
			if !strings.HasSuffix(complaint, " \"_total\" suffix\n") { // HAProxy's own names, which its users know
				t.Errorf("promtool: %s", complaint)
			}
		}
		if scope := scrape("scope=backend"); strings.Contains(scope, "haproxy_server_") ||
			!strings.Contains(scope, "haproxy_backend_") {
			t.Error("the exporter does not get the scope of the request")
		}
		// HAProxy reloads with the exporter, and answers afterwards.
		r.later()
		r.apply(cfg, states(cfg, Open))
		r.get("default_b_80.test", "/")
		r.eventually("the exporter answers after a reload", func() bool {
			return strings.Contains(scrape(""), `haproxy_backend_http_requests_total{proxy="default_b_80"} `)
		})
		// A reload that fails gives the socket back.
		taken, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer taken.Close()
		bad := r.config(a, b)
		bad.Bind.HTTP = append(bad.Bind.HTTP, addrPort(taken))
		if _, err := r.p.Apply(t.Context(), bad, inOrder(bad, states(bad, Open))); err == nil {
			t.Fatal("an address that is taken is accepted")
		}
		if !strings.Contains(scrape("scope=backend"), `haproxy_backend_status{proxy="default_b_80",state="UP"} 1`) {
			t.Error("the exporter does not answer after a failed reload")
		}
		if load, err := r.p.Meter().Read(t.Context()); err != nil ||
			slices.ContainsFunc(load.Backends, func(b BackendLoad) bool { return b.Backend == exporter }) {
			t.Errorf("got %+v, %v", load, err)
		}
	})
}

func TestLinesOfMetricsGetTheirNames(t *testing.T) {
	own := map[string]string{"_spare-x-1": "shop_svc_web_80"}
	text := "# HELP haproxy_backend_status proxy=\"_spare-x-2\" is no label here\n" +
		"haproxy_backend_status{proxy=\"_spare-x-1\",state=\"UP\"} 1\n" +
		"haproxy_backend_status{proxy=\"_spare-x-2\",state=\"UP\"} 1\n" +
		"haproxy_frontend_status{proxy=\"sallyport-metrics\",state=\"UP\"} 1\nhaproxy_process_nbthread 4\n" +
		"haproxy_server_status{mod=\"x\",proxy=\"_spare-x-1\",server=\"s\"} 2\n" +
		"haproxy_backend_status{proxy=\"unfinished\nhaproxy_backend_status{proxy=\"\"} 1\n"
	want := "# HELP haproxy_backend_status proxy=\"_spare-x-2\" is no label here\n" +
		"haproxy_backend_status{proxy=\"shop_svc_web_80\",state=\"UP\"} 1\nhaproxy_process_nbthread 4\n" +
		"haproxy_server_status{mod=\"x\",proxy=\"shop_svc_web_80\",server=\"s\"} 2\n" +
		"haproxy_backend_status{proxy=\"unfinished\nhaproxy_backend_status{proxy=\"\"} 1\n"
	var got strings.Builder
	if err := rename(&got, strings.NewReader(text), own); err != nil || got.String() != want {
		t.Errorf("%v; got\n%s\nwant\n%s", err, got.String(), want)
	}
	if err := rename(&got, strings.NewReader("haproxy_process_nbthread 4"), own); err == nil {
		t.Error("a line without an end is accepted")
	}
	if err := rename(failing{}, strings.NewReader(strings.Repeat(text, 1000)), own); err == nil {
		t.Error("the text goes on although nobody takes it")
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("nobody reads") }
