package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"sallyport/test/manual"
)

var anew = flag.Bool("update", false, "write the golden files anew")

// golden compares got with a file in testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *anew {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s: want -, got +:\n%s", path, diff)
	}
}

// sallyport runs a command line.
func sallyport(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = execute(args, &out, &err)
	return code, out.String(), err.String()
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestExitCodesTellAMistakeFromAFailure(t *testing.T) {
	bad := write(t, "bad.yaml", "bgp: {asm: 1}\n")
	for name, row := range map[string]struct {
		args   []string
		code   int
		stderr string // part of it
	}{
		"help":               {[]string{"--help"}, 0, ""},
		"version":            {[]string{"version"}, 0, ""},
		"no command":         {[]string{}, 0, ""},
		"unknown command":    {[]string{"fly"}, 2, `unknown command "fly" for "sallyport"`},
		"unknown flag":       {[]string{"run", "--conf"}, 2, "unknown flag: --conf\nSee 'sallyport run --help'.\n"},
		"too many arguments": {[]string{"version", "please"}, 2, "See 'sallyport version --help'."},
		"argument missing":   {[]string{"config", "check"}, 2, "accepts 1 arg(s), received 0"},
		"unknown form":       {[]string{"status", "-o", "xml"}, 2, "allowed: text|wide|json|yaml"},
		"config missing": {
			[]string{"run", "--config", "/nonexistent.yaml"},
			78,
			"/nonexistent.yaml: no such file",
		},
		"config wrong":         {[]string{"run", "--config", bad}, 78, `did you mean "asn"?`},
		"checked config wrong": {[]string{"config", "check", bad}, 2, `did you mean "asn"?`},
		"no appliance answers": {
			[]string{"status", "--address", "127.0.0.1:1"},
			1,
			"no appliance answers at 127.0.0.1:1",
		},
		"address missing": {[]string{"manifests"}, 2, "--address is missing"},
		"address wrong": {
			[]string{"manifests", "--address", "here"},
			2,
			`--address "here" is not the address of a machine`,
		},
		"namespace wrong": {
			[]string{"manifests", "--address", "10.0.0.1", "-n", "a: b"},
			2,
			`"a: b" is not the name of a namespace`,
		},
		"cluster wrong": {
			[]string{"manifests", "--address", "10.0.0.1", "--cluster", "x"},
			2,
			"allowed: default",
		},
		"manifests config gone": {[]string{"manifests", "--config", "/nonexistent.yaml"}, 2, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := sallyport(row.args...)
			if code != row.code || !strings.Contains(stderr, row.stderr) {
				t.Errorf("got exit code %d and %q, want %d and %q", code, stderr, row.code, row.stderr)
			}
		})
	}
}

// A Go program that crashes exits with 2, like one that refuses its command line.
func TestTheUnitStartsAgainAfterACrash(t *testing.T) {
	text, err := os.ReadFile("../../image/units/usr/lib/systemd/system/sallyport.service")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"Restart=always", "StartLimitIntervalSec=0",
		fmt.Sprintf("RestartPreventExitStatus=%d", exitConfig),
	}
	for _, line := range want {
		if !slices.Contains(strings.Split(string(text), "\n"), line) {
			t.Errorf("the unit lacks %s", line)
		}
	}
}

func TestEveryCommandHasAnExample(t *testing.T) {
	root := command()
	for _, name := range []string{
		"run", "status", "top", "manifests", "config check", "config schema", "config example", "version",
		"image prepare", "image watch", "image wait", "image screen", "image ready", "image update",
	} {
		cmd, _, err := root.Find(strings.Fields(name))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(cmd.Example, "sallyport "+name) {
			t.Errorf("%s: the example is %q, want one that begins with sallyport %s", name, cmd.Example, name)
		}
	}
}

func TestFlagsWithFewValuesComplete(t *testing.T) {
	_, got, _ := sallyport("__complete", "status", "--output", "")
	if want := "text\nwide\njson\nyaml\n:4\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestExplainCompletesTheNamesOfIngresses(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answers := map[string]string{
			"cluster=&complete=de":     `["default/","dev/"]`,
			"cluster=&complete=dev%2F": `["dev/api","dev/web"]`, "cluster=east&complete=x": `[]`,
		}
		if r.URL.Path == "/explain" {
			_, _ = io.WriteString(w, answers[r.URL.RawQuery])
		}
	}))
	defer server.Close()
	address := strings.TrimPrefix(server.URL, "http://")
	for _, row := range []struct {
		args []string
		want string
	}{
		{[]string{"de"}, "default/\ndev/\n:6\n"}, // neither files nor a space follow
		{[]string{"dev/"}, "dev/api\ndev/web\n:4\n"},
		{[]string{"--cluster", "east", "x"}, ":4\n"},
		{[]string{"dev/web", ""}, ":4\n"},
	} {
		_, got, _ := sallyport(append([]string{"__complete", "explain", "--address", address}, row.args...)...)
		if got != row.want {
			t.Errorf("%v: got %q, want %q", row.args, got, row.want)
		}
	}
	if _, got, stderr := sallyport("__complete", "explain", "--address", "127.0.0.1:1", "de"); got != ":1\n" {
		t.Errorf("no appliance answers: got %q, %q", got, stderr)
	}
}

func TestStatusCompletesItsParts(t *testing.T) {
	_, got, _ := sallyport("__complete", "status", "re")
	if want := "refusals\tRefused offers\n:4\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestConfigCheckAcceptsWhatConfigExamplePrints(t *testing.T) {
	_, example, _ := sallyport("config", "example")
	kubeconfig := write(t, "kubeconfig", "apiVersion: v1\n")
	path := write(t, "sallyport.yaml", strings.ReplaceAll(example, "/etc/sallyport/kubeconfig", kubeconfig))
	code, stdout, stderr := sallyport("config", "check", path)
	if want := regexp.MustCompile(`^` + regexp.QuoteMeta(path) +
		`: ok\nHAProxy on this machine: \d+ connections with up to \d+ servers, `); code != 0 ||
		!want.MatchString(stdout) || stderr != "" {
		t.Errorf("got exit code %d, %q and %q, want 0 and %s", code, stdout, stderr, want)
	}
}

func TestManifestsAreWhatTheGoldensSay(t *testing.T) {
	signed := write(t, "signed.yaml", `
clusters:
- name: demo
  kubeconfig: /not/there/yet
  bgp: {asn: 64512, password: tops3cret, ttlSecurity: true}
  ingress: {class: outside, controller: example.org/outside}
  calico: {apiGroup: projectcalico.org/v3}
bgp: {asn: 65010, listen: [192.168.50.21, "fd00::21"], port: 1790}
`)
	spaces := write(t, "namespaces.yaml", `
clusters:
- kubeconfig: /not/there/yet
  ingress: {namespaces: [web, shop], configMap: ops/keys}
`)
	gateway := write(t, "gateway.yaml", `
clusters:
- kubeconfig: /not/there/yet
  ingress: {namespaces: [web, shop]}
  gateway: {enabled: true}
haproxy: {addresses: [192.168.50.64/28]}
`)
	named := write(t, "named.yaml", `
clusters:
- kubeconfig: /not/there/yet
  ingress: {namespaces: [web, shop]}
  gateway: {enabled: true, named: true}
haproxy: {addresses: [192.168.50.64/28]}
`)
	set := write(t, "set.yaml", `
clusters:
- {name: blue, kubeconfig: /not/there/yet, set: both, ingress: {namespaces: [web, shop]}}
`)
	custom := write(t, "custom.yaml", `
clusters:
- kubeconfig: /not/there/yet
  ingress: {customResources: true, configMap: ops/keys}
`)
	for name, args := range map[string][]string{
		"custom.yaml":     {"--config", custom, "--address", "192.168.50.21"},
		"set.yaml":        {"--config", set, "--address", "192.168.50.21"},
		"named.yaml":      {"--config", named, "--address", "192.168.50.21"},
		"gateway.yaml":    {"--config", gateway, "--address", "192.168.50.21"},
		"plain.yaml":      {"--address", "192.168.50.21"},
		"signed.yaml":     {"--config", signed},
		"two.yaml":        {"--address", "192.168.50.20,192.168.50.21", "--asn", "64999", "--namespace", "edge"},
		"namespaces.yaml": {"--config", spaces, "--address", "192.168.50.21"},
		"secret.yaml":     {"--address", "192.168.50.21", "--token-secret"},
		"reflectors.yaml": {"--address", "192.168.50.21", "--reflectors", "route-reflector == 'true'"},
	} {
		t.Run(name, func(t *testing.T) {
			code, got, stderr := sallyport(append([]string{"manifests"}, args...)...)
			if code != 0 {
				t.Fatal(stderr)
			}
			golden(t, "manifests-"+name, []byte(got))
			if strings.Contains(got, "tops3cret") {
				t.Error("the manifests show the key of the sessions")
			}
			for doc := range strings.SplitSeq(got, "\n---\n") {
				var object struct{ Kind, APIVersion string }
				if err := yaml.UnmarshalStrict([]byte(doc), &map[string]any{}); err != nil {
					t.Errorf("not YAML: %v\n%s", err, doc)
				}
				if err := yaml.Unmarshal([]byte(doc), &object); err != nil ||
					(object.Kind == "") != strings.HasPrefix(doc, "# What") {
					t.Errorf("not an object: %v\n%s", err, doc)
				}
			}
		})
	}
}

func TestManifestsAsJSONAreTheSameObjects(t *testing.T) {
	_, text, _ := sallyport("manifests", "--address", "192.168.50.21")
	_, list, _ := sallyport("manifests", "--address", "192.168.50.21", "--output", "json")
	var want []any
	for doc := range strings.SplitSeq(text, "\n---\n") {
		var object any
		if err := yaml.Unmarshal([]byte(doc), &object); err != nil {
			t.Fatal(err)
		}
		if object != nil {
			want = append(want, object)
		}
	}
	var got struct{ Items []any }
	if err := yaml.Unmarshal([]byte(list), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.Items); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
}

func TestTheRightsAreToReadAndToTell(t *testing.T) {
	_, list, _ := sallyport("manifests", "--address", "192.168.50.21", "-o", "json")
	var manifests struct {
		Items []struct {
			Kind  string
			Rules []struct{ APIGroups, Resources, Verbs []string }
		}
	}
	if err := yaml.Unmarshal([]byte(list), &manifests); err != nil {
		t.Fatal(err)
	}
	told := []string{ // the objects that the appliance writes
		"ingresses/status", "events", "serviceaccounts/token", "gatewayclasses/status", "gateways/status",
		"listenersets/status", "httproutes/status", "grpcroutes/status", "tlsroutes/status", "tcproutes/status",
		"backendtlspolicies/status",
	}
	count := 0
	for _, object := range manifests.Items {
		for _, rule := range object.Rules {
			count++
			for _, resource := range rule.Resources {
				reads := !slices.ContainsFunc(rule.Verbs, func(v string) bool {
					return !slices.Contains([]string{"get", "list", "watch"}, v)
				})
				if !reads && !slices.Contains(told, resource) || resource == "*" || slices.Contains(rule.Verbs, "*") {
					t.Errorf("%v on %s is more than the appliance needs", rule.Verbs, resource)
				}
			}
		}
	}
	if count == 0 {
		t.Error("no rules found")
	}
}

// TestTheLinesThatMakeTheKubeconfigWork runs the lines in the comments of the manifests,
// with a kubectl that answers like a cluster.
func TestTheLinesThatMakeTheKubeconfigWork(t *testing.T) {
	_, text, _ := sallyport("manifests", "--address", "192.168.50.21")
	var script strings.Builder
	for line := range strings.SplitSeq(text, "\n") {
		if code, ok := strings.CutPrefix(line, "#: "); ok {
			script.WriteString(code + "\n")
		}
	}
	dir := t.TempDir()
	kubectl := `#!/bin/sh
case "$*" in
*config*view*) printf https://192.168.50.22:6443 ;;
"-n kube-system get configmap kube-root-ca.crt -o jsonpath={.data.ca\.crt}") printf ca ;;
"-n kube-system create token sallyport --duration=720h") printf token ;;
*) echo "unexpected: $*" >&2; exit 1 ;;
esac
`
	if err := os.WriteFile(filepath.Join(dir, "kubectl"), []byte(kubectl), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", "-e", "-c", script.String())
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	data, err := os.ReadFile(filepath.Join(dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	var got, want any
	if err := yaml.UnmarshalStrict(data, &got); err != nil {
		t.Fatal(err)
	}
	err = yaml.Unmarshal([]byte(`{apiVersion: v1, kind: Config, current-context: sallyport,
clusters: [{name: cluster, cluster: {server: "https://192.168.50.22:6443", certificate-authority-data: Y2E=}}],
users: [{name: sallyport, user: {token: token}}], contexts: [{name: sallyport, context: {cluster: cluster, user: sallyport}}]}`), &want)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
	info, err := os.Stat(filepath.Join(dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := info.Mode().Perm(), os.FileMode(0o600); got != want {
		t.Errorf("mode of the kubeconfig: got %o, want %o", got, want)
	}
}

func TestStatusIsShownAsTextOrPassedOn(t *testing.T) {
	answer, err := os.ReadFile("testdata/status.json")
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/status" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(answer)
	}))
	t.Cleanup(server.Close)
	address := strings.TrimPrefix(server.URL, "http://")

	code, got, stderr := sallyport("status", "--address", address)
	if code != 0 {
		t.Fatal(stderr)
	}
	golden(t, "status.txt", []byte(got))
	if strings.Contains(got, "\x1b") {
		t.Error("the text holds an escape sequence")
	}
	if _, got, _ = sallyport("status", "--address", address, "-o", "json"); got != string(answer) {
		t.Errorf("JSON: got %q, want what the appliance answered", got)
	}
	for _, row := range []struct{ args, want string }{
		{"peers", "NODE     ADDRESS        AS     STATE        FOR   PREFIXES  LAST-LOSS\n" +
			"worker1  192.168.50.23  65000"},
		{"peers -o wide", "LAST-LOSS                   CLUSTER  LOSSES  END-OF-RIB  HOLD-TIME  REFUSED\nworker1"},
		{"routes -o json", "[\n  {\n    \"prefix\": \"172.16.171.64/26\",\n    \"via\""},
		{"routes -o yaml", "- cluster: demo\n  installed: false\n"},
		{"-o yaml", "identity: sallyport-1\n"},
	} {
		if code, got, stderr := sallyport(append([]string{"status", "--address", address},
			strings.Fields(row.args)...)...); code != 0 || !strings.Contains(got, row.want) {
			t.Errorf("status %s: got exit code %d, %q and %q, want %q in it", row.args, code, stderr, got, row.want)
		}
	}
	if code, _, stderr := sallyport("status", "pears"); code != 2 ||
		!strings.Contains(stderr, `invalid argument "pears"`) {
		t.Errorf("a part that does not exist: got exit code %d, %q", code, stderr)
	}
	path := write(t, "listen.yaml", "clusters: [{kubeconfig: "+write(t, "listen.kubeconfig", "apiVersion: v1\n")+
		"}]\nstatus: {listen: '"+address+"'}\n")
	if code, got, stderr := sallyport("status", "--config", path, "-o", "json"); code != 0 || got != string(answer) {
		t.Errorf("status.listen of the configuration file: got exit code %d, %q", code, stderr)
	}
	if code, _, _ := sallyport("status", "--config", write(t, "bad.yaml", "no: key\n")); code != 2 {
		t.Errorf("a configuration file that is wrong: got exit code %d, want 2", code)
	}
	if code, _, _ := sallyport("status", "--address", address+"/elsewhere"); code != 1 {
		t.Errorf("an answer that is not 200: got exit code %d, want 1", code)
	}
}

func TestEventsShowTheNewestLast(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/events" || r.URL.Query().Get("since") != "10m0s" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(
			[]byte(`[{"at": "2026-01-02T03:04:06Z", "kind": "server", "what": "a pod is closed", "why": "no verified\u001b route", "tookNanoseconds": 1200000, "bad": true},
			{"at": "2026-01-02T03:04:05Z", "kind": "session", "what": "worker1 is lost"}]`))
	}))
	t.Cleanup(server.Close)
	code, out, stderr := sallyport("events", "--since", "10m", "--address", strings.TrimPrefix(server.URL, "http://"))
	lines := strings.Split(out, "\n")
	if code != 0 || len(lines) != 4 || !strings.Contains(lines[1], "session  worker1 is lost") ||
		!strings.Contains(lines[2], "server   a pod is closed  1.2ms  no verified? route") {
		t.Errorf("got exit code %d, %q and %q", code, stderr, out)
	}
}

func TestExplainShowsWhereEachRuleLeads(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"ingress": {"kind": "HTTPRoute", "namespace": "shop", "name": "app"}, "rules": [
			{"host": "a.test", "path": "/", "match": "prefix", "https": "301", "rule": 1, "filters": ["RequestRedirect: status 301"]},
			{"host": "a.test", "path": "/b", "match": "prefix", "backend": "app", "choices": ["next if { method POST }"]},
			{"host": "a.test", "path": "/c", "match": "prefix", "https": "302"}]}`))
	}))
	t.Cleanup(server.Close)
	_, out, _ := sallyport("explain", "--address", strings.TrimPrefix(server.URL, "http://"), "httproute/shop/app")
	for _, want := range []string{
		"rule 1, a.test / prefix plain HTTP is redirected, 301\n RequestRedirect: status 301\n",
		"a.test /b prefix app\n next if { method POST }\n",
		"a.test /c prefix status 404 plain HTTP is redirected, 302",
	} {
		if got := strings.Join(strings.FieldsFunc(out, func(r rune) bool { return r == ' ' }), " "); !strings.Contains(got, want) {
			t.Errorf("want %q in\n%s", want, got)
		}
	}
}

func TestExplainAsksForWhatItsArgumentIs(t *testing.T) {
	asked := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		asked = q.Get("ingress") + q.Get("object") + "|" + q.Get("request") + "|" + q.Get("address")
		if q.Get("to") != "" {
			asked += "|" + q.Get("to") + "|" + q.Get("method") + "|" + strings.Join(q["header"], ",")
		}
		_, _ = w.Write(
			[]byte(`{"why": "no rule names the host", "facts": [{"part": "route", "ok": false, "saw": "no verified route leads to it"}]}`))
	}))
	t.Cleanup(server.Close)
	address := strings.TrimPrefix(server.URL, "http://")
	for argument, want := range map[string]string{
		"default/web":            "default/web||",
		"http://a.test":          "|a.test/|",
		"https://a.test:8443/x?": "|a.test:8443/x|",
		"172.16.171.66":          "||172.16.171.66",
		"httproute/shop/app":     "httproute/shop/app||",
		"Gateway/shop/web":       "Gateway/shop/web||",
		"fd00::1":                "||fd00::1",
	} {
		code, out, stderr := sallyport("explain", "--address", address, argument)
		if asked != want || code != 0 {
			t.Errorf("%s: asked for %q, want %q: %d %s", argument, asked, want, code, stderr)
		}
		if strings.HasPrefix(want, "||") && !strings.Contains(out, "route  NOT ok  no verified route leads to it") {
			t.Errorf("%s: got %q", argument, out)
		}
	}
	for _, wrong := range []string{"web", "a/b/c", "ftp://a.test/", "http:/x"} {
		if code, _, stderr := sallyport("explain", "--address", address, wrong); code != 2 ||
			!strings.Contains(stderr, "want NAMESPACE/INGRESS, NAMESPACE/SERVICE, KIND/NAMESPACE/NAME (KIND is gateway, ") {
			t.Errorf("%s: got %d %q", wrong, code, stderr)
		}
	}
	for _, row := range []struct{ args, want string }{
		{"http://a.test/x?y=1 --to 203.0.113.5", "|a.test/x?y=1||203.0.113.5:80||"},
		{"https://a.test --to 203.0.113.5 -X POST -H a:b -H c:d", "|a.test/||203.0.113.5:443|POST|a:b,c:d"},
		{"http://a.test:81/ --to fd00::5", "|a.test:81/||[fd00::5]:81||"},
		{"http://a.test/ --to 203.0.113.5:8080", "|a.test/||203.0.113.5:8080||"},
	} {
		if code, _, stderr := sallyport(append([]string{"explain", "--address", address}, strings.Fields(row.args)...)...); code != 0 ||
			asked != row.want {
			t.Errorf("%s: asked for %q, want %q: %s", row.args, asked, row.want, stderr)
		}
	}
	for args, want := range map[string]string{
		"default/web --to 203.0.113.5":         "--to needs http://HOST/PATH",
		"http://a.test/ -X POST":               "--method and --header need --to",
		"http://a.test/ --to here":             `--to "here": want ADDRESS or ADDRESS:PORT`,
		"http://a.test/ --to 203.0.113.5 -H a": `--header "a": want 'NAME: VALUE'`,
	} {
		if code, _, stderr := sallyport(append([]string{"explain", "--address", address}, strings.Fields(args)...)...); code != 2 ||
			!strings.Contains(stderr, want) {
			t.Errorf("%s: got %d %q, want %q", args, code, stderr, want)
		}
	}
}

func TestAServiceIsExplainedByItsAddresses(t *testing.T) {
	answer := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(answer))
	}))
	t.Cleanup(server.Close)
	const of = `{"ingress": {"Cluster": "lab", "Kind": "Service", "Namespace": "db", "Name": "postgres"}, "servers": [], `
	for text, want := range map[string][]string{
		of + `"service": {"addresses": ["203.0.113.70"]}, "addresses": [{"address": "203.0.113.70", "facts": [{"part": "BGP", "ok": true, "saw": "announced to 192.168.50.1"}]}],
			"backends": [{"name": "db_svc_postgres_5432.lb", "origin": "Service db/postgres"}]}`: {"Service db/postgres of cluster lab\n", "Address 203.0.113.70\n  BGP  ok  announced to 192.168.50.1\n", "Backend db_svc_postgres_5432.lb\n"},
		of + `"service": {"why": "the Service gets no address: it has no TCP port that can be served"}}`: {"  no address: the Service gets no address: it has no TCP port that can be served\n"},
	} {
		answer = text
		code, out, stderr := sallyport("explain", "--address", strings.TrimPrefix(server.URL, "http://"), "db/postgres")
		for _, w := range want {
			if code != 0 || !strings.Contains(out, w) || strings.Contains(out, "Rules") {
				t.Errorf("got %d %q %s, want %q", code, out, stderr, w)
			}
		}
	}
}

func TestSystemdIsToldWhatItAskedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	if err := socket.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	next := func(want string) {
		t.Helper()
		buf := make([]byte, 1024)
		n, err := socket.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(buf[:n]); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "30000000")
	t.Setenv("WATCHDOG_PID", "")
	s := newSystemd(nil)
	for _, key := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		if _, ok := os.LookupEnv(key); ok {
			t.Errorf("%s is left for HAProxy to inherit", key)
		}
	}

	s.Alive()
	next("EXTEND_TIMEOUT_USEC=30000000\nSTATUS=starting")
	next("WATCHDOG=1")
	s.Alive()     // too soon for another keep-alive
	s.Reloading() // before it is ready there is nothing to say
	s.Reloaded()
	s.Ready("3 routes, 1 backends")
	next("READY=1\nSTATUS=3 routes, 1 backends")
	clock := func() (usec int64) {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			t.Fatal(err)
		}
		return now.Nano() / 1000
	}
	early := clock()
	s.Reloading()
	buf := make([]byte, 1024)
	n, err := socket.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	var at int64
	if _, err := fmt.Sscanf(string(buf[:n]), "RELOADING=1\nMONOTONIC_USEC=%d", &at); err != nil || at < early || at > clock() {
		t.Errorf("got %q, want RELOADING=1 with the time since %d", buf[:n], early)
	}
	s.Reloaded()
	next("READY=1")
	s.last = s.last.Add(-time.Minute)
	s.Alive()
	next("WATCHDOG=1") // it is ready, so that a stop that hangs ends
	s.Leaving(time.Minute)
	next("EXTEND_TIMEOUT_USEC=90000000")
	s.Stopping()
	next("STOPPING=1")
}

func TestWithoutSystemdNobodyIsTold(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	s := newSystemd(nil)
	s.Alive()
	s.Ready("")
	s.Reloading()
	s.Reloaded()
	s.Stopping()
}

func TestAnotherProcessesWatchdogIsNotOurs(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	t.Setenv("WATCHDOG_USEC", "30000000")
	t.Setenv("WATCHDOG_PID", "1")
	if s := newSystemd(nil); s.watchdog != 0 {
		t.Errorf("watchdog: got %s, want none", s.watchdog)
	}
}

// section returns the text between two marks of appliance/INSTALL.md, without indent.
func section(t *testing.T, name string) string {
	t.Helper()
	page, err := os.ReadFile("../../appliance/INSTALL.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _, ok := manual.Part(string(page), name)
	if !ok {
		t.Fatalf("the page has no section %q", name)
	}
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		if line = strings.TrimPrefix(line, "   "); !strings.HasPrefix(line, "```") {
			lines = append(lines, line)
		}
	}
	return strings.TrimSpace(strings.Join(lines, "\n")) + "\n"
}

func TestThePagesShowTheExampleAndTheLinesOfTheManifests(t *testing.T) {
	_, want, _ := sallyport("config", "example")
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), "```yaml\n"+want+"```") {
		t.Error("the README's configuration is not what sallyport config example prints")
	}
	_, manifests, _ := sallyport("manifests", "--address", "192.168.50.21")
	var lines strings.Builder
	for line := range strings.SplitSeq(manifests, "\n") {
		if code, ok := strings.CutPrefix(line, "#: "); ok {
			lines.WriteString(code + "\n")
		}
	}
	if diff := cmp.Diff(lines.String(), section(t, "kubeconfig")); diff != "" {
		t.Errorf("lines that make the kubeconfig: manifests -, page +:\n%s", diff)
	}
}

// An apiServer answers like a cluster with Calico, as far as manifests look at one.
type apiServer struct {
	asn      string // of BGPConfiguration default; if it is empty, there is none
	rule     string // fields of a BGPFilter's rule; if it is empty, there is no BGPFilter
	class    string // metadata of IngressClass haproxy, as JSON; if it is empty, there is none
	gateways bool   // the server has the CRDs of Gateway API
	failed   string // a path that is forbidden
}

// start returns the path of a kubeconfig for the server.
func (a apiServer) start(t *testing.T) string {
	t.Helper()
	const calico = "/apis/crd.projectcalico.org/v1"
	configs, classes, schema := "", "", ""
	if a.asn != "" {
		configs = `{"metadata": {"name": "default"}, "spec": {"asNumber": ` + a.asn + `}}`
	}
	if a.class != "" {
		classes = `{"metadata": ` + a.class + `, "spec": {"controller": "haproxy.org/ingress-controller"}}`
	}
	if a.rule != "" {
		schema = `"f": {"properties": {"spec": {"properties": {"exportV4": {"items": {"properties": {` + a.rule + `}}}}}},
			"x-kubernetes-group-version-kind": [{"group": "crd.projectcalico.org", "version": "v1", "kind": "BGPFilter"}]}`
	}
	answers := map[string]string{
		calico:                        `{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "crd.projectcalico.org/v1", "resources": [{"name": "blockaffinities", "kind": "BlockAffinity"}]}`,
		calico + "/bgpconfigurations": `{"kind": "BGPConfigurationList", "apiVersion": "crd.projectcalico.org/v1", "items": [` + configs + `]}`,
		"/openapi/v3" + calico:        `{"components": {"schemas": {` + schema + `}}}`,
		"/apis/networking.k8s.io/v1/ingressclasses": `{"kind": "IngressClassList", "apiVersion": "networking.k8s.io/v1", "items": [` + classes + `]}`,
	}
	if a.gateways {
		answers["/apis/gateway.networking.k8s.io/v1"] = `{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "gateway.networking.k8s.io/v1", "resources": [{"name": "gatewayclasses", "kind": "GatewayClass"}, {"name": "gateways", "kind": "Gateway"}, {"name": "referencegrants", "kind": "ReferenceGrant"}]}`
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.Path]
		switch {
		case r.Method != http.MethodGet:
			t.Errorf("%s %s changes the cluster", r.Method, r.URL)
		case r.URL.Path == a.failed:
			w.WriteHeader(http.StatusForbidden)
		case !ok:
			http.NotFound(w, r)
		default:
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(answer))
		}
	}))
	t.Cleanup(server.Close)
	return write(t, "kubeconfig", `
clusters: [{name: c, cluster: {server: "`+server.URL+`"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
`)
}

func TestTheManifestsFollowTheClusterThatTheyLookAt(t *testing.T) {
	const newest, old = `"action": {}, "cidr": {}, "source": {}`, `"action": {}, "cidr": {}, "matchOperator": {}`
	const configs = "/apis/crd.projectcalico.org/v1/bgpconfigurations"
	for name, row := range map[string]struct {
		server      apiServer
		args        []string
		want, never []string // parts of the manifests
		told        string   // on stderr
	}{
		"in our AS": {
			apiServer{asn: "65000", rule: newest},
			nil,
			[]string{"name: sallyport-own", "filters: [sallyport, sallyport-own]", "both in AS 65000"},
			nil, "the cluster is in AS 65000, as the appliance is",
		},
		"in Calico's own AS": {
			apiServer{rule: newest},
			nil,
			[]string{"(AS 65000) and the cluster (AS 64512) differ"},
			nil, "set clusters[].bgp.localASN of the appliance to 64512",
		},
		"Calico 3.26": {
			apiServer{asn: "65000", rule: old},
			nil,
			[]string{"name: sallyport\n", "filters: [sallyport]\n"},
			[]string{"sallyport-own", "source:"},
			"older than 3.27",
		},
		"Calico 3.26 with reflectors": {
			apiServer{asn: "65000", rule: old},
			[]string{"--reflectors", "has(reflector)"},
			[]string{"filters: [sallyport]\n"},
			[]string{"sallyport-own"},
			"as the appliance is",
		},
		"Calico without filters": {
			apiServer{asn: "65000"},
			nil,
			[]string{"kind: ClusterRole\n", "Upgrade Calico to 3.27"},
			[]string{"kind: BGPFilter", "kind: BGPPeer"},
			"No BGPFilter and no BGPPeer",
		},
		"an IngressClass that somebody has made the default": {
			apiServer{asn: "65000", rule: newest, class: `{"name": "haproxy", "annotations": {"ingressclass.kubernetes.io/is-default-class": "true"}}`},
			nil,
			[]string{"kind: BGPPeer"},
			[]string{"kind: IngressClass"},
			"annotation ingressclass.kubernetes.io/is-default-class",
		},
		"an IngressClass that these manifests made": {
			apiServer{asn: "65000", rule: newest, class: `{"name": "haproxy", "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}}`},
			nil,
			[]string{"kind: IngressClass"},
			nil, "Looked at the cluster",
		},
		"with the CRDs of Gateway API": {
			apiServer{asn: "65000", rule: newest, gateways: true},
			nil,
			[]string{"kind: GatewayClass", `"gateways/status"`},
			nil, "Looked at the cluster",
		},
		"without the CRDs of Gateway API": {
			apiServer{asn: "65000", rule: newest},
			nil,
			[]string{"kind: IngressClass"},
			[]string{"gateway"},
			"Looked at the cluster",
		},
		"with the CRDs of Gateway API, which the file does not want": {
			apiServer{asn: "65000", rule: newest, gateways: true},
			[]string{"--config", write(t, "without.yaml", "clusters: [{kubeconfig: /a, gateway: {enabled: false}}]\n")},
			[]string{"kind: IngressClass"},
			[]string{"gateway"},
			"Looked at the cluster",
		},
		"offline": {
			apiServer{asn: "64999", rule: old, gateways: true},
			[]string{"--offline"},
			[]string{"sallyport-own", "kubectl get bgpconfigurations"},
			[]string{"64999", "gateway"},
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			code, got, stderr := sallyport(append([]string{"manifests", "--address", "192.168.50.21", "--kubeconfig", row.server.start(t)}, row.args...)...)
			if code != 0 || !strings.Contains(stderr, row.told) || row.told == "" && stderr != "" {
				t.Errorf("got exit code %d and %q, want 0 and %q", code, stderr, row.told)
			}
			for _, part := range row.want {
				if !strings.Contains(got, part) {
					t.Errorf("want %q in\n%s", part, got)
				}
			}
			for _, part := range append(row.never, "kind: BGPConfiguration") {
				if strings.Contains(got, part) {
					t.Errorf("want no %q in\n%s", part, got)
				}
			}
		})
	}
	t.Run("a kubeconfig of the flag that cannot be used is an error", func(t *testing.T) {
		kubeconfig := apiServer{rule: newest, failed: configs}.start(t)
		code, got, stderr := sallyport("manifests", "--address", "192.168.50.21", "--kubeconfig", kubeconfig)
		if code != 1 || got != "" || !strings.Contains(stderr, "AS number of the cluster cannot be read") {
			t.Errorf("got exit code %d, %q and %q", code, got, stderr)
		}
	})
	t.Run("one of the file is told, and the manifests are printed without it", func(t *testing.T) {
		kubeconfig := apiServer{rule: newest, failed: configs}.start(t)
		file := filepath.Join(filepath.Dir(kubeconfig), "sallyport.yaml")
		if err := os.WriteFile(file, []byte("clusters: [{kubeconfig: kubeconfig}]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		code, got, stderr := sallyport("manifests", "--address", "192.168.50.21", "--config", file)
		if code != 0 || !strings.Contains(got, "kind: BGPPeer") || !strings.Contains(stderr, "Not looked at the cluster: the AS number of the cluster cannot be read") ||
			strings.Contains(got, "kind: GatewayClass") || !strings.Contains(stderr, "No GatewayClass, and no rights") {
			t.Errorf("got exit code %d, %q and %q", code, got, stderr)
		}
	})
}
