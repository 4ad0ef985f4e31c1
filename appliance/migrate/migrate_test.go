package migrate

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/ingress/nginx"
	"sallyport/ingress/survey"
)

var update = flag.Bool("update", false, "write the golden files anew")

// ask returns the Report on files.
func ask(t *testing.T, q Question) Report {
	t.Helper()
	q.Namespace = "default"
	all, err := Ask(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return all[0]
}

// text returns the blocks of a Report, without the one that all Reports have.
func text(r *Report) string {
	var b strings.Builder
	for _, block := range r.Blocks(true) {
		if block.Title == "Every Ingress" {
			continue
		}
		fmt.Fprintf(&b, "# %s\n", block.Title)
		for _, row := range block.Rows {
			fmt.Fprintln(&b, strings.Join(row, "  "))
		}
	}
	return b.String()
}

// TestThePlatformsThatPeopleHaveAreJudged reads manifests in the forms that the charts of common
// platforms render. The names of those for HAProxy's controller begin with "haproxy-".
func TestThePlatformsThatPeopleHaveAreJudged(t *testing.T) {
	files, err := filepath.Glob("testdata/platforms/*.yaml")
	if err != nil || len(files) < 40 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			from := "nginx"
			if strings.HasPrefix(filepath.Base(file), "haproxy-") {
				from = "haproxy"
			}
			r := ask(t, Question{From: from, Files: []string{file}})
			golden, got := strings.TrimSuffix(file, ".yaml")+".txt", text(&r)
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
		})
	}
}

// TestAFolderIsJudgedAsOneCluster reads all platforms together: hosts that several have are judged as one.
func TestAFolderIsJudgedAsOneCluster(t *testing.T) {
	r := ask(t, Question{From: "nginx", Files: []string{"testdata/platforms"}})
	found := map[string]bool{}
	for _, h := range r.Hosts {
		found[h.Host] = true
	}
	if !found["www.shop.example"] || r.Safe() {
		t.Errorf("hosts %v, safe is %t", r.Hosts, r.Safe())
	}
	sum := 0
	for _, n := range r.Totals.Verdicts {
		sum += n
	}
	if sum != r.Totals.Ingresses || sum != len(r.Ingresses) || r.Totals.LostGuards == 0 {
		t.Errorf("totals %v", r.Totals)
	}
	if first := r.Blocks(false)[1]; !first.Alarm || !strings.HasPrefix(first.Title, "Guards") {
		t.Errorf("the losses do not come first, but %q", first.Title)
	}
	encoded, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var again Report
	if err := json.Unmarshal(encoded, &again); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, again); diff != "" {
		t.Errorf("as JSON: want (-), got (+):\n%s", diff)
	}
}

const web = `apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web, annotations: {%s}}
spec: {%s rules: [{host: a.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]}
`

func TestTheConfigurationFileDecides(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sallyport.yaml")
	file := "clusters:\n- kubeconfig: /none\n  ingress: {nginx: {classes: [outer, inner], without: [configuration-snippet]}}\n"
	if err := os.WriteFile(path, []byte(file), 0o644); err != nil {
		t.Fatal(err)
	}
	manifests := fmt.Sprintf(web, nginx.Prefix+"configuration-snippet: x", "ingressClassName: inner,")
	read := func(q Question) Report {
		q.Files, q.Stdin = []string{"-"}, strings.NewReader(manifests)
		return ask(t, q)
	}
	r := read(Question{From: "nginx", Config: path})
	if len(r.Ingresses) != 1 || r.Ingresses[0].Closed || r.Totals.LostGuards != 1 || r.Safe() {
		t.Errorf("given up: %+v", r.Ingresses)
	}
	if r = read(Question{From: "nginx"}); len(r.Ingresses) != 0 || r.Others["inner"] != 1 {
		t.Errorf("another class: %+v, others %v", r.Ingresses, r.Others)
	}
	if r = read(Question{From: "nginx", Classes: []string{"nginx", "inner"}}); len(r.Ingresses) != 1 ||
		!r.Ingresses[0].Closed {
		t.Errorf("kept: %+v", r.Ingresses)
	}
	if err := os.WriteFile(path, []byte("clusters: 5\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Ask(t.Context(), Question{From: "nginx", Files: []string{"-"}, Config: path}); err == nil {
		t.Error("a wrong configuration file is no error")
	}
}

func TestIngressesOfHAProxysControllerAreJudged(t *testing.T) {
	manifests := fmt.Sprintf(web, "haproxy.org/allow-lst: 10.0.0.0/8, haproxy.org/timeout-server: 5s, "+
		"haproxy.org/check: maybe, haproxy.org/response-set-header: 'X-A b'", "ingressClassName: haproxy,")
	r := ask(t, Question{From: "haproxy", Files: []string{"-"}, Stdin: strings.NewReader(manifests)})
	got := map[string]survey.Verdict{}
	for _, a := range r.Ingresses[0].Annotations {
		got[strings.TrimPrefix(a.Name, "haproxy.org/")] = a.Verdict
	}
	want := map[string]survey.Verdict{
		"allow-lst": nginx.Lost, "timeout-server": nginx.Same, "check": nginx.Lost, "response-set-header": nginx.Same,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	if !r.Ingresses[0].Closed || r.Safe() {
		t.Errorf("a guard with a wrong name does not close the Ingress: %+v", r.Ingresses[0])
	}
}

// TestResourcesOfHAProxysControllerAreJudged reads a TCP, a Backend and a Service among the files.
func TestResourcesOfHAProxysControllerAreJudged(t *testing.T) {
	const tcp = "apiVersion: ingress.v3.haproxy.org/v3\nkind: TCP\nmetadata: {name: db}\nspec: [{name: a, frontend: " +
		"{binds: {v4: {port: 5432}}%s}, service: {name: db, port: 5432}}]\n---\n"
	const service = "apiVersion: v1\nkind: Service\nmetadata: {name: web, annotations: {haproxy.org/cr-backend: slow}}\n" +
		"spec: {ports: [{port: 80}]}\n---\n"
	const backend = "apiVersion: ingress.v1.haproxy.org/v1\nkind: Backend\nmetadata: {name: slow}\nspec: {config: %s}\n---\n"
	for name, tt := range map[string]struct {
		text string
		file string // the options of the cluster in a configuration file; without one, there is no file
		want []string
		safe bool
	}{
		"a port": {
			text: fmt.Sprintf(tcp, ""), file: "customResources: true, trust: cluster", safe: true,
		},
		"a port with a field that has no effect": {
			text: fmt.Sprintf(tcp, ", log_format: x"), file: "customResources: true, trust: cluster", safe: true,
			want: []string{`TCP default/db: entry "a": frontend.log_format has no effect: log-format-tcp in the ConfigMap ` +
				"sets the format"},
		},
		"a port that many clients cannot reach": {
			text: fmt.Sprintf(tcp, ", acl_list: [{acl_name: a}]"), file: "customResources: true, trust: cluster",
			want: []string{`TCP default/db: entry "a": frontend.acl_list: it may keep clients out or lead them elsewhere, ` +
				"and nothing here does that for a port: remove it; a Service of type LoadBalancer can restrict its clients " +
				"(spec.loadBalancerSourceRanges); the port is closed"},
		},
		"a port without a configuration file": {
			text: fmt.Sprintf(tcp, ""), want: []string{"TCP default/db: the configuration file lets no namespace open " +
				"ports, which all of them share (clusters[].ingress.trust): use a Service of type LoadBalancer, or the " +
				"ConfigMap of TCP services (clusters[].ingress.tcpServices)"},
		},
		"a port while the configuration reads no custom resources": {
			text: fmt.Sprintf(tcp, ""), file: "trust: cluster",
			want: []string{"TCP default/db: custom resources are not read (clusters[].ingress.customResources)"},
		},
		"a Backend in both groups": {
			text: service + fmt.Sprintf(backend, "{nonsense: 1}") + "apiVersion: ingress.v3.haproxy.org/v3\n" +
				"kind: Backend\nmetadata: {name: slow}\nspec: {server_timeout: 500}\n---\n",
			want: []string{"Backend default/slow: a Backend of ingress.v3.haproxy.org with this name overrides it"}, safe: true,
		},
		"a Backend that is not there": {
			text: service, want: []string{"Service default/web: annotation haproxy.org/cr-backend: there is no Backend " +
				"default/slow, or it cannot be read; all clients are rejected until it is corrected"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			q := Question{From: "haproxy", Files: []string{"-"}}
			if tt.file != "" {
				q.Config = filepath.Join(t.TempDir(), "sallyport.yaml")
				file := "clusters:\n- kubeconfig: /none\n  ingress: {" + tt.file + "}\n"
				if err := os.WriteFile(q.Config, []byte(file), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			q.Stdin = strings.NewReader(tt.text + fmt.Sprintf(web, "", "ingressClassName: haproxy,"))
			r := ask(t, q)
			var got []string
			for _, b := range r.Blocks(false) {
				if !strings.HasPrefix(b.Title, "Other objects") {
					continue
				}
				for _, row := range b.Rows {
					got = append(got, strings.Join(row, ": "))
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || r.Safe() != tt.safe {
				t.Errorf("safe is %t; want (-), got (+):\n%s", r.Safe(), diff)
			}
		})
	}
}

// TestTheConfigMapOfIngressNginxIsJudged reads it among the files.
func TestTheConfigMapOfIngressNginxIsJudged(t *testing.T) {
	var many strings.Builder
	many.WriteString("{block-cidrs: 10.1.0.0/16, http-snippet: deny all;")
	for i := range 60 {
		fmt.Fprintf(&many, ", worker-odd-%d: '%d'", i, i)
	}
	for name, tt := range map[string]struct {
		data, at, of string
		want         []string // rows about the ConfigMap
		safe, unread bool
	}{
		"what has an equal": {
			data: "{proxy-read-timeout: '120', enable-brotli: 'true', worker-processes: '4', hsts: 'true'}", safe: true,
			want: []string{
				"enable-brotli: true | not served | -", "proxy-read-timeout: 120 | a difference | timeout-server: 120s",
				"hsts: true | the same | hsts: true",
			},
		},
		"guards that are lost": {
			data: "{server-snippet: 'deny all;', plugins: waf, block-referers: bad}",
			want: []string{
				"plugins | waf | Plugins in Lua are not run, and may have been guards.",
				"server-snippet | - | Snippets are never read, and may have been a guard. Write what it does as keys: " +
					"request-set-header, response-set-header, allow-list, deny-list, request-redirect.",
				"block-referers: bad | a difference | frontend-config-snippet: http-request deny deny_status 403 " +
					"if { req.fhdr(Referer) -m str -i 'bad' }",
			},
		},
		"values that our keys do not accept": {
			data: "{whitelist-source-range: '10.0.0.0/8,here', hsts-max-age: '-1', keep-alive: '75'}",
			want: []string{
				`whitelist-source-range | 10.0.0.0/8,here | ` +
					`key allow-list: "here" is neither an address nor a network; ` +
					"all clients are rejected until it is corrected",
				"hsts-max-age: -1 | not served | hsts: true; hsts-max-age: -1",
				"keep-alive: 75 | the same | timeout-http-keep-alive: 75s",
			},
		},
		"many keys": {
			data: many.String() + "}",
			want: []string{
				"http-snippet | - | Snippets are never read, and may have been a guard. Write what it does as keys: " +
					"request-set-header, response-set-header, allow-list, deny-list, request-redirect.",
				"block-cidrs: 10.1.0.0/16 | a difference | frontend-config-snippet: http-request deny deny_status 403 " +
					"if { src 10.1.0.0/16 }",
			},
		},
		"a wrong type":      {data: "{hsts: true}", unread: true},
		"another ConfigMap": {data: "{http-snippet: 'deny all;'}", at: "ingress-nginx/other", safe: true},
		"the one that is named": {
			data: "{use-http2: 'false'}", at: "web/conf", of: "web/conf", safe: true,
			want: []string{"use-http2: false | the same | tls-alpn: http/1.1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.at == "" {
				tt.at = UsualConfigMap
			}
			namespace, object, _ := strings.Cut(tt.at, "/")
			manifests := fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {namespace: %s, name: %s}\ndata: %s\n---\n",
				namespace, object, tt.data) + fmt.Sprintf(web, "", "ingressClassName: nginx,")
			r := ask(t, Question{From: "nginx", Files: []string{"-"}, Stdin: strings.NewReader(manifests), ConfigMap: tt.of})
			var got []string
			for _, b := range r.Blocks(false) {
				if strings.Contains(b.Title, "of the ConfigMap") {
					for _, row := range b.Rows {
						got = append(got, strings.Join(row[:3], " | "))
					}
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || r.Safe() != tt.safe || len(r.Unread) > 0 != tt.unread {
				t.Errorf("safe is %t, %v; want (-), got (+):\n%s", r.Safe(), r.Unread, diff)
			}
		})
	}
}

// TestManyIngressesAreJudged reads 2,000 Ingresses as one List.
func TestManyIngressesAreJudged(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("apiVersion: v1\nkind: List\nitems:\n")
	for i := range 2000 {
		fmt.Fprintf(&b, `- apiVersion: networking.k8s.io/v1
  kind: Ingress
  metadata: {name: web-%d, namespace: team-%d, annotations: {nginx.ingress.kubernetes.io/ssl-redirect: "false"}}
  spec: {ingressClassName: nginx, tls: [{hosts: [h%[1]d.test], secretName: tls-%[1]d}], rules: [{host: h%[1]d.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]}
`, i, i%50)
	}
	r := ask(t, Question{From: "nginx", Files: []string{"-"}, Stdin: &b})
	if r.Totals.Verdicts[nginx.Same] != 2000 || !r.Safe() {
		t.Errorf("totals %v", r.Totals)
	}
}

// Whoever writes an Ingress puts nothing into the page but text.
func TestThePageHasEachBlockAndOnlyText(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hostile.yaml")
	if err := os.WriteFile(file, []byte(`apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: shop
  annotations: {nginx.ingress.kubernetes.io/auth-realm: "</td><script>alert(1)</script>"}
spec:
  ingressClassName: nginx
  rules: [{host: shop.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: shop, port: {number: 80}}}}]}}]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	r := ask(t, Question{From: "nginx", Files: []string{"testdata/platforms", file}})
	var page bytes.Buffer
	if err := WriteHTML(&page, []Report{r}); err != nil {
		t.Fatal(err)
	}
	for what, want := range map[string]int{
		"<script": 0, "&lt;script&gt;alert(1)": 1, "<section": len(r.Blocks(true)), "<h1>": 1,
	} {
		if got := strings.Count(page.String(), what); got != want {
			t.Errorf("%q is there %d times, want %d", what, got, want)
		}
	}
}
