package appliance

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"sallyport/appliance/group"
	"sallyport/appliance/metrics"
	"sallyport/test/lab/debian"
)

var golden = flag.Bool("update", false, "write the golden files anew")

// promtool returns Prometheus' own checker, which make setup fetches.
func promtool(t *testing.T) string {
	t.Helper()
	folder, err := debian.Prometheus().Fetch(t.Context(), os.Stderr)
	if err != nil {
		t.Fatalf("%v: make setup fetches it", err)
	}
	return filepath.Join(folder, "promtool")
}

// labelsOf returns the labels of each metric, by its name and those of its series.
func labelsOf() map[string][]string {
	all := map[string][]string{}
	for _, m := range metrics.Documented() {
		all[m.Name] = m.Labels
		if m.Kind == "histogram" {
			all[m.Name+"_bucket"] = append(slices.Clone(m.Labels), "le")
			all[m.Name+"_sum"], all[m.Name+"_count"] = m.Labels, m.Labels
		}
	}
	return all
}

// alerts returns the rules of alerts.yaml.
func alerts(t *testing.T) (rules []alert) {
	t.Helper()
	text, err := os.ReadFile("alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string
			Rules []alert
		}
	}
	if err := yaml.UnmarshalStrict(text, &file); err != nil || len(file.Groups) != 1 {
		t.Fatalf("%v: %+v", err, file)
	}
	return file.Groups[0].Rules
}

type alert struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

var ourMetric = regexp.MustCompile(`sallyport_[a-z_]+`)

func TestEachAlertAsksForMetricsThatExist(t *testing.T) {
	labels := labelsOf()
	for _, r := range alerts(t) {
		names := ourMetric.FindAllString(r.Expr, -1)
		if len(names) == 0 || r.Labels["severity"] == "" || r.Annotations["summary"] == "" ||
			!strings.Contains(r.Annotations["description"], ": sallyport ") {
			t.Errorf("%s is not complete: %+v", r.Alert, r)
		}
		for _, name := range names {
			known, is := labels[name]
			if !is {
				t.Errorf("%s asks for %s, which does not exist", r.Alert, name)
			}
			for _, l := range regexp.MustCompile(`\$labels\.([a-z]+)`).FindAllStringSubmatch(r.Annotations["summary"],
				-1) {
				if l[1] != "instance" && !slices.Contains(known, l[1]) {
					t.Errorf("%s names the label %s, which %s does not have", r.Alert, l[1], name)
				}
			}
		}
	}
}

// TestEachAlertFiresAndRests lets promtool play alerts_test.yaml. For each alert that has a
// series in which it fires, and the same alert at a time when it does not.
func TestEachAlertFiresAndRests(t *testing.T) {
	tool := promtool(t)
	if out, err := exec.CommandContext(t.Context(), tool, "check", "rules",
		"alerts.yaml").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := exec.CommandContext(t.Context(), tool, "test", "rules",
		"testdata/alerts_test.yaml").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile("testdata/alerts_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Tests []struct {
			Series []struct{ Series string } `json:"input_series"`
			Rules  []struct {
				Name     string            `json:"alertname"`
				Expected []json.RawMessage `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	fires, rests, labels := map[string]bool{}, map[string]bool{}, labelsOf()
	for _, test := range file.Tests {
		for _, s := range test.Series {
			name, rest, _ := strings.Cut(s.Series, "{")
			known, is := labels[name]
			if !is && name != "up" {
				t.Errorf("the test has the metric %s, which does not exist", name)
			}
			for _, l := range regexp.MustCompile(`([a-z_]+)=`).FindAllStringSubmatch(rest, -1) {
				if l[1] != "instance" && l[1] != "job" && !slices.Contains(known, l[1]) {
					t.Errorf("the test gives %s the label %s, which it does not have", name, l[1])
				}
			}
		}
		for _, r := range test.Rules {
			if len(r.Expected) > 0 {
				fires[r.Name] = true
			} else {
				rests[r.Name] = true
			}
		}
	}
	for _, r := range alerts(t) {
		if !fires[r.Alert] || !rests[r.Alert] {
			t.Errorf("%s: fires in a test: %v, rests in one: %v", r.Alert, fires[r.Alert], rests[r.Alert])
		}
	}
}

func TestPromtoolAcceptsTheMetrics(t *testing.T) {
	tool := promtool(t)
	pair, pulse := newPair(t)
	pair.pass(t, firstSteps)
	pulse.hear(group.Full, false)
	pair.settle(t)
	for name, s := range map[string]*scene{"half": half(t), "a group": pair} {
		h, _ := endpoint(s)
		_, text := ask(t, h, "/metrics")
		check := exec.CommandContext(t.Context(), tool, "check", "metrics")
		check.Stdin = strings.NewReader(text)
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", name, err, out)
		}
		labels := labelsOf()
		for line := range strings.Lines(text) {
			if got := ourMetric.FindString(line); got != "" && !strings.HasPrefix(line, "#") && labels[got] == nil &&
				!slices.ContainsFunc(metrics.Documented(), func(m metrics.Metric) bool { return strings.HasPrefix(got, m.Name) }) {
				t.Errorf("%s has %s, which METRICS.md does not", name, got)
			}
		}
	}
}

// TestEveryMetricIsDescribed holds METRICS.md to the metrics of this package.
func TestEveryMetricIsDescribed(t *testing.T) {
	var b bytes.Buffer
	b.WriteString(`# Metrics

What ` + "`/metrics`" + ` of the status endpoint has for Prometheus, beside the usual ` + "`go_…`" + ` and ` + "`process_…`" + `.
A test writes this page (` + "`make golden`" + `); the descriptions are those of the metrics themselves. Names
and units keep Prometheus' conventions, which promtool checks. [alerts.yaml](alerts.yaml) has alerts
on these metrics, [dashboard.json](dashboard.json) is a dashboard for Grafana.

There are neither exemplars nor traces: an exemplar leads from a bucket to a trace, and the
appliance makes none. What a slow change waited for is in ` + "`sallyport events`" + `, with its reason and
how long it took; what a slow request waited for is in HAProxy's log.

| metric | type | labels | meaning |
|---|---|---|---|
`)
	for _, m := range metrics.Documented() {
		labels := strings.Join(m.Labels, "`, `")
		if labels != "" {
			labels = "`" + labels + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, m.Kind, labels, m.Help)
	}
	b.WriteString(`
## HAProxy's own metrics

` + "`/metrics/haproxy`" + ` passes on what HAProxy's own exporter has: ` + "`haproxy_process_…`, `haproxy_frontend_…`, `haproxy_backend_…`, `haproxy_server_…`" + `, with the labels that dashboards for HAProxy
know. The label ` + "`proxy`" + ` is the name of the backend, as everywhere else (` + "`default_svc_web_80`" + `), also while a spare backend serves a new Service; spare backends without a
Service are left out. The counters begin at zero at each reload of HAProxy. HAProxy has the exporter if it was built with USE_PROMEX=1, as Debian's packages are; else
the answer is 503. promtool reads all of it; a few names of HAProxy's have ` + "`_total`" + ` where Prometheus' conventions do not, or lack it.

The parameters of the exporter work: ` + "`scope`" + ` (global, frontend, backend, server) and ` + "`no-maint`" + `, which leaves out closed servers. A server has 55 lines and more, a backend
79: leave the servers out where there are thousands. 10,000 backends alone are 40 MB, for which HAProxy took a second.

` + "```yaml" + `
scrape_configs:
- job_name: haproxy
  metrics_path: /metrics/haproxy
  params: {scope: [global, frontend, backend]}
  static_configs:
  - targets: ["127.0.0.1:9090"]
` + "```" + `
`)
	if *golden {
		if err := os.WriteFile("METRICS.md", b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile("METRICS.md")
	if err != nil || !bytes.Equal(got, b.Bytes()) {
		t.Errorf("METRICS.md is old: make golden writes it; %v", err)
	}
}

// TestTheDashboardAsksForMetricsThatExist reads every expression of dashboard.json, and lets
// promtool parse it.
func TestTheDashboardAsksForMetricsThatExist(t *testing.T) {
	text, err := os.ReadFile("dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			ID      int
			Title   string
			Type    string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	var rules strings.Builder
	rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
	labels, used, ids := labelsOf(), map[string]bool{}, map[int]bool{}
	for _, p := range board.Panels {
		if ids[p.ID] || p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q has the number of another, or shows nothing", p.Title)
		}
		ids[p.ID] = true
		for i, target := range p.Targets {
			for _, name := range ourMetric.FindAllString(target.Expr, -1) {
				used[name] = true
				if _, is := labels[name]; !is {
					t.Errorf("%s asks for %s, which does not exist", p.Title, name)
				}
			}
			expr := strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*", "$job",
				"sallyport").Replace(target.Expr)
			fmt.Fprintf(&rules, "  - {record: 'panel:%d:%d', expr: %q}\n", p.ID, i, expr)
		}
	}
	if len(used) < 20 {
		t.Errorf("only %d metrics are used", len(used))
	}
	path := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(path, []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), promtool(t), "check", "rules", path).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestNoLabelOfAMetricIsChosenByATenant holds the labels to those whose values the operator, or
// this program, chooses. Whoever writes Ingresses makes no time series with them.
func TestNoLabelOfAMetricIsChosenByATenant(t *testing.T) {
	ours := []string{
		"address", "cause", "class", "cluster", "group", "installed", "member", "node", "peer", "programmed", "reason",
		"resource", "state", "step", "version",
	}
	for _, m := range metrics.Documented() {
		for _, label := range m.Labels {
			if !slices.Contains(ours, label) {
				t.Errorf("%s has label %s: if a tenant cannot choose its values, add it to this list", m.Name, label)
			}
		}
	}
}
