package ingress_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/ingress/input"
)

// backendText returns the manifest of a Backend.
func backendText(group, namespace, name, spec string) string {
	return "apiVersion: " + group + "\nkind: Backend\nmetadata: {namespace: " + namespace + ", name: " + name +
		"}\nspec: " + spec + "\n---\n"
}

// application returns a cluster with one Ingress of namespace default, whose Service names a Backend.
func application(t *testing.T, named string, backends ...string) input.Snapshot {
	t.Helper()
	s := ingress.SnapshotOf(t, "c", ingress.AppText("web")+
		ingress.IngressText("app", 2020, "rules: ["+ingress.RuleText("a.test", ingress.PathText("/", "Prefix", "web"))+"]")+
		strings.Join(backends, ""))
	slices.SortFunc(s.Backends, input.ByName)
	s.Services[0].Annotations = map[string]string{"haproxy.org/cr-backend": named}
	s.Options.CustomResources = true
	return s
}

// directives returns the lines of the only backend, and every problem.
func directives(t *testing.T, c *ingress.Compiler, s input.Snapshot) string {
	t.Helper()
	r := c.Compile([]input.Snapshot{s})
	if len(r.Config.Backends) != 1 {
		t.Fatalf("got %d backends", len(r.Config.Backends))
	}
	var lines []string
	for _, d := range r.Config.Backends[0].Directives {
		if text := d.String(); !strings.HasPrefix(text, "option forwardfor") {
			lines = append(lines, text)
		}
	}
	for _, p := range r.Problems {
		lines = append(lines, p.Kind+" "+p.Name+" "+p.Reason+": "+p.Why)
	}
	return strings.Join(lines, "\n")
}

func TestABackendSetsTheBackendsOfTheObjectsThatNameIt(t *testing.T) {
	const slow, v1, v3 = `{server_timeout: 9000}`, input.CustomV1, input.CustomV3
	const closed = `http-request return status 503 content-type text/plain string "the access rules of this path are invalid\n"`
	accepts := func(lines string) haproxy.Verdicts {
		text, err := haproxy.ParseText(haproxy.BackendSection, lines)
		if err != nil {
			t.Fatal(err)
		}
		return haproxy.Verdicts{text.Part(): haproxy.Good}
	}
	for name, row := range map[string]struct {
		named    string
		backend  string
		edit     func(*input.Snapshot)
		verdicts haproxy.Verdicts
		want     string
	}{
		"of the newer group": {named: "slow", backend: backendText(v3, "default", "slow", slow), want: "timeout server 9000ms"},
		"of the older group": {
			named: "slow", backend: backendText(v1, "default", "slow", `{config: `+slow+`}`), want: "timeout server 9000ms",
		},
		"over all annotations": {
			named: "slow", backend: backendText(v3, "default", "slow", slow),
			edit: func(s *input.Snapshot) {
				s.Ingresses[0].Annotations = map[string]string{"haproxy.org/timeout-server": "1s", "haproxy.org/load-balance": "first"}
				s.Services[0].Annotations["haproxy.org/timeout-server"] = "2s"
			},
			want: "balance first\ntimeout server 9000ms",
		},
		"not read": {
			named: "slow", backend: backendText(v3, "default", "slow", slow),
			edit: func(s *input.Snapshot) { s.Options.CustomResources = false },
			want: "Service web NotServed: annotation haproxy.org/cr-backend: custom resources are not read " +
				"(clusters[].ingress.customResources)",
		},
		"that is not there": {
			named: "none", want: closed + "\nService web InvalidAnnotation: annotation haproxy.org/cr-backend: there is no " +
				"Backend default/none, or it cannot be read; all clients are rejected until it is corrected",
		},
		"of a stranger": {
			named: "other/slow", backend: backendText(v3, "other", "slow", slow),
			want: closed + "\nService web InvalidAnnotation: annotation haproxy.org/cr-backend: Backend other/slow is in " +
				"another namespace, which the configuration file does not allow (clusters[].ingress.trust); " +
				"all clients are rejected until it is corrected",
		},
		"of another namespace of one team": {
			named: "other/slow", backend: backendText(v3, "other", "slow", slow),
			edit: func(s *input.Snapshot) { s.Options.OneTenant = true }, want: "timeout server 9000ms",
		},
		"with a field that nobody knows": {
			named: "slow", backend: backendText(v3, "default", "slow", `{shield: true}`),
			want: closed + "\nService web InvalidAnnotation: annotation haproxy.org/cr-backend: Backend default/slow: shield: " +
				"the field is not known here, and may keep clients out: remove it; all clients are rejected until it is corrected",
		},
		"with lines of a stranger": {
			named: "slow", backend: backendText(v3, "default", "slow", `{server_timeout: 9000, retries: 2}`),
			want: "timeout server 9000ms\nService web InvalidAnnotation: annotation haproxy.org/cr-backend: retries cannot " +
				"be used: the configuration file allows no snippets of Ingresses and Services, which can read every " +
				"tenant's traffic (clusters[].ingress.trust); it is ignored",
		},
		"with lines": {
			named: "slow", backend: backendText(v3, "default", "slow", `{server_timeout: 9000, retries: 2}`),
			edit: func(s *input.Snapshot) { s.Options.OneTenant = true }, verdicts: accepts("retries 2"),
			want: "timeout server 9000ms\nretries 2",
		},
		"with rules of a stranger": {
			named: "slow", backend: backendText(v3, "default", "slow", `{http_request_rule_list: [{type: deny}]}`),
			want: closed + "\nService web InvalidAnnotation: annotation haproxy.org/cr-backend: http_request_rule_list cannot " +
				"be used: the configuration file allows no snippets of Ingresses and Services, which can read every " +
				"tenant's traffic (clusters[].ingress.trust); all clients are rejected until it is corrected",
		},
		"with rules that HAProxy has not read": {
			named: "slow", backend: backendText(v3, "default", "slow", `{http_request_rule_list: [{type: deny}]}`),
			edit: func(s *input.Snapshot) { s.Options.OneTenant = true }, want: closed,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := application(t, row.named, row.backend)
			if row.edit != nil {
				row.edit(&s)
			}
			c := new(ingress.Compiler)
			c.Judge(row.verdicts)
			if got := directives(t, c, s); got != row.want {
				t.Errorf("got\n%s\nwant\n%s", got, row.want)
			}
		})
	}
}

func TestABackendThatChangesIsReadAnew(t *testing.T) {
	c := new(ingress.Compiler)
	s := application(t, "slow")
	for _, row := range []struct{ spec, want string }{
		{`{server_timeout: 1}`, "timeout server 1ms"},
		{`{server_timeout: 2}`, "timeout server 2ms"},
		{`{balance: {algorithm: first}}`, "balance first"},
	} {
		s.Backends = application(t, "slow", backendText(input.CustomV3, "default", "slow", row.spec)).Backends
		if got := directives(t, c, s); got != row.want {
			t.Errorf("%s: got %q, want %q", row.spec, got, row.want)
		}
	}
}

// sectionText returns the manifest of a Global or a Defaults.
func sectionText(group, kind, namespace, name, spec string) string {
	return strings.Replace(backendText(group, namespace, name, spec), "kind: Backend", "kind: "+kind, 1)
}

func TestAGlobalAndADefaultsSetTheProcess(t *testing.T) {
	const v1, v3 = input.CustomV1, input.CustomV3
	accepts := func(section haproxy.Section, lines string) haproxy.Verdicts {
		text, err := haproxy.ParseText(section, lines)
		if err != nil {
			t.Fatal(err)
		}
		return haproxy.Verdicts{text.Part(): haproxy.Good}
	}
	tune := accepts(haproxy.GlobalSection, "tune.maxaccept 3")
	for name, row := range map[string]struct {
		keys      map[string]string
		resources string
		edit      func(*input.Snapshot)
		verdicts  haproxy.Verdicts
		want      string
	}{
		"a Global of the newer group": {
			keys:      map[string]string{"cr-global": "ops/mine"},
			resources: sectionText(v3, "Global", "ops", "mine", `{nbthread: 3, tune_options: {maxaccept: 3}}`),
			verdicts:  tune, want: "threads 3\ntune.maxaccept 3",
		},
		"a Global of the older group, beside the ConfigMap": {
			keys:      map[string]string{"cr-global": "mine"},
			resources: sectionText(v1, "Global", "ops", "mine", `{config: {nbthread: 3}}`), want: "threads 3",
		},
		"a Global of another namespace, which the operator may name": {
			keys:      map[string]string{"cr-global": "default/mine", "nbthread": "2"},
			resources: sectionText(v3, "Global", "default", "mine", `{nbthread: 3}`),
			want: "threads 3\nUnusedAnnotation: key nbthread is ignored, since cr-global (nbthread) is set, too, and " +
				"overrides it",
		},
		"a Global that HAProxy has not read": {
			keys:      map[string]string{"cr-global": "mine"},
			resources: sectionText(v3, "Global", "ops", "mine", `{nbthread: 3, tune_options: {maxaccept: 3}}`), want: "threads 3",
		},
		"a Global that is not there": {
			keys: map[string]string{"cr-global": "mine", "nbthread": "2"},
			want: "threads 2\nInvalidAnnotation: key cr-global: there is no Global ops/mine, or it cannot be read; it is ignored",
		},
		"a Global that is none": {
			keys: map[string]string{"cr-global": "mine"}, resources: sectionText(v3, "Global", "ops", "mine", `[]`),
			want: "InvalidAnnotation: key cr-global: Global ops/mine: its spec cannot be read: json: cannot unmarshal array " +
				"into Go value of type map[string]json.RawMessage; it is ignored",
		},
		"not read": {
			keys:      map[string]string{"cr-global": "mine"},
			resources: sectionText(v3, "Global", "ops", "mine", `{nbthread: 3}`),
			edit:      func(s *input.Snapshot) { s.Options.CustomResources = false },
			want:      "NotServed: key cr-global: custom resources are not read (clusters[].ingress.customResources)",
		},
		"no lines for the section": {
			keys: map[string]string{"cr-global": "mine"},
			resources: sectionText(v3, "Global", "ops", "mine",
				`{nbthread: 3, tune_options: {maxaccept: 3}, close_spread_time: 1}`),
			edit:     func(s *input.Snapshot) { s.Options.NoSnippets = []string{"global"} },
			verdicts: tune,
			want: "threads 3\nInvalidAnnotation: key cr-global (close_spread_time, tune_options.maxaccept): the configuration " +
				"file allows no snippets for section global (clusters[].ingress.noSnippets); it is ignored",
		},
		"a Defaults": {
			keys:      map[string]string{"cr-defaults": "mine"},
			resources: sectionText(v3, "Defaults", "ops", "mine", `{client_timeout: 7, server_timeout: 8, retries: 2}`),
			verdicts:  accepts(haproxy.DefaultsSection, "retries 2"),
			want:      "timeout client 7ms\nretries 2\ntimeout server 8ms",
		},
		"a Frontend": {
			keys: map[string]string{"cr-frontend-http": "mine"},
			resources: sectionText(v3, "Frontend", "ops", "mine",
				`{http_request_rule_list: [{type: deny}], binds: {a: {port: 1}}}`),
			verdicts: accepts(haproxy.HTTPSection, "http-request deny"),
			want: "http-request deny\nFieldLeftOut: key cr-frontend-http: binds has no effect: haproxy.http and " +
				"haproxy.https of the configuration file say where HAProxy listens",
		},
		"a Frontend that is not there": {
			keys: map[string]string{"cr-frontend-https": "mine"},
			want: haproxy.Shut(haproxy.HTTPSSection).String() + "\nInvalidAnnotation: key cr-frontend-https: there is no " +
				"Frontend ops/mine, or it cannot be read; all clients are rejected until it is corrected",
		},
		"a Frontend without snippets": {
			keys: map[string]string{"cr-frontend-http": "mine"},
			resources: sectionText(v3, "Frontend", "ops", "mine",
				`{http_request_rule_list: [{type: deny}], maxconn: 5}`),
			edit:     func(s *input.Snapshot) { s.Options.NoSnippets = []string{"frontend"} },
			verdicts: accepts(haproxy.HTTPSection, "http-request deny"),
			want: haproxy.Shut(haproxy.HTTPSection).String() + "\nInvalidAnnotation: key cr-frontend-http (maxconn, " +
				"http_request_rule_list): the configuration file allows no snippets for section frontend " +
				"(clusters[].ingress.noSnippets); all clients are rejected until it is corrected",
		},
		"a Defaults with what is left out": {
			keys:      map[string]string{"cr-defaults": "mine"},
			resources: sectionText(v3, "Defaults", "ops", "mine", `{source: {address: 192.0.2.1}, shield: 1}`),
			want: "FieldLeftOut: key cr-defaults: shield has no effect: it is not known here\n" +
				"FieldLeftOut: key cr-defaults: source has no effect: HAProxy connects from an address of the appliance",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := settled(t, row.keys, row.resources)
			if row.edit != nil {
				row.edit(&s)
			}
			c := new(ingress.Compiler)
			c.Judge(row.verdicts)
			if got := processOf(c.Compile([]input.Snapshot{s})); got != row.want {
				t.Errorf("got\n%s\nwant\n%s", got, row.want)
			}
		})
	}
}

// settled returns a cluster with one Ingress, and a ConfigMap with keys.
func settled(t *testing.T, keys map[string]string, resources string) input.Snapshot {
	t.Helper()
	s := application(t, "none", resources,
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {namespace: ops, name: keys}\n---\n")
	delete(s.Services[0].Annotations, "haproxy.org/cr-backend")
	s.ConfigMaps[0].Data = keys
	s.Options.ConfigMap = "ops/keys"
	return s
}

// processOf returns the settings of the process and of the only backend of a Result, and every problem.
func processOf(r ingress.Result) string {
	var lines []string
	p := r.Config.Process
	if p.Threads > 0 {
		lines = append(lines, fmt.Sprint("threads ", p.Threads))
	}
	for _, l := range p.Lines {
		lines = append(lines, l.String())
	}
	for _, text := range p.Texts {
		lines = append(lines, text.String())
	}
	for _, d := range r.Config.Backends[0].Directives {
		if text := d.String(); !strings.HasPrefix(text, "option forwardfor") {
			lines = append(lines, text)
		}
	}
	for _, p := range r.Problems {
		lines = append(lines, p.Reason+": "+p.Why)
	}
	return strings.Join(lines, "\n")
}

func TestAGlobalThatChangesIsReadAnew(t *testing.T) {
	c := new(ingress.Compiler)
	s := settled(t, map[string]string{"cr-global": "mine", "cr-defaults": "mine"}, "")
	for _, row := range []struct{ global, defaults, want string }{
		{`{nbthread: 1}`, `{server_timeout: 1}`, "threads 1\ntimeout server 1ms"},
		{`{nbthread: 2}`, `{server_timeout: 1}`, "threads 2\ntimeout server 1ms"},
		{`{nbthread: 2}`, `{server_timeout: 2}`, "threads 2\ntimeout server 2ms"},
		{`{}`, `{}`, ""},
	} {
		next := settled(t, nil, sectionText(input.CustomV3, "Global", "ops", "mine", row.global)+
			sectionText(input.CustomV3, "Defaults", "ops", "mine", row.defaults))
		s.Globals, s.Defaults = next.Globals, next.Defaults
		if got := processOf(c.Compile([]input.Snapshot{s})); got != row.want {
			t.Errorf("%s %s: got %q, want %q", row.global, row.defaults, got, row.want)
		}
	}
}

// The lines of a Backend count for the limit of bytes once for each backend that repeats them.
func TestTheLinesOfABackendCountForTheLimitOfBytes(t *testing.T) {
	s := application(t, "slow", backendText(input.CustomV3, "default", "slow",
		`{adv_check: httpchk, httpchk_params: {uri: /`+strings.Repeat("x", 500)+`, host: a.test}}`))
	for most, want := range map[int]bool{400: true, 700: false} {
		s.Options.Limits.ConfigBytes = most
		if got := strings.Contains(directives(t, new(ingress.Compiler), s), "LimitReached"); got != want {
			t.Errorf("with a limit of %d bytes the claim is closed: %v, want %v", most, got, want)
		}
	}
}

// ports returns the backend of each port, and every problem of a TCP.
func ports(r ingress.Result) string {
	var lines []string
	for _, s := range r.Config.Streams {
		lines = append(lines, fmt.Sprintf("%d %s TLS=%v PROXY=%v", s.Port, s.Backend, s.TLS, s.Proxy))
	}
	for _, p := range r.Problems {
		if p.Kind == "TCP" {
			lines = append(lines, p.Name+" "+p.Reason+": "+p.Why)
		}
	}
	return strings.Join(lines, "\n")
}

func TestATCPOpensPortsForServicesOfItsNamespace(t *testing.T) {
	tcp := func(name, more, spec string) string {
		return "apiVersion: " + input.CustomV3 + "\nkind: TCP\nmetadata: {namespace: default, name: " + name + more +
			"}\nspec: " + spec + "\n---\n"
	}
	entry := func(port int, more string) string {
		return fmt.Sprintf("[{name: db, frontend: {binds: {v4: {port: %d%s}}}, service: {name: web, port: 80}}]", port, more)
	}
	for name, row := range map[string]struct {
		tcps string
		edit func(*input.Snapshot)
		want string
	}{
		"a port": {tcps: tcp("db", "", entry(5432, "")), want: "5432 c__default_svc_web_http.tcp-5432 TLS=false PROXY=false"},
		"with TLS, and PROXY": {
			tcps: tcp("db", "", entry(5432, ", ssl: true, accept_proxy: true")),
			want: "5432 c__default_svc_web_http.tcp-5432 TLS=true PROXY=true",
		},
		"of another class": {tcps: tcp("db", ", annotations: {ingress.class: other}", entry(5432, ""))},
		"while custom resources are not read": {
			tcps: tcp("db", "", entry(5432, "")), edit: func(s *input.Snapshot) { s.Options.CustomResources = false },
			want: "db NotServed: custom resources are not read (clusters[].ingress.customResources)",
		},
		"of our class": {
			tcps: tcp("db", ", annotations: {ingress.class: haproxy}", entry(5432, "")),
			want: "5432 c__default_svc_web_http.tcp-5432 TLS=false PROXY=false",
		},
		"of a tenant": {
			tcps: tcp("db", "", entry(5432, "")), edit: func(s *input.Snapshot) { s.Options.OneTenant = false },
			want: "db NotServed: the configuration file lets no namespace open ports, which all of them share " +
				"(clusters[].ingress.trust): use a Service of type LoadBalancer, or the ConfigMap of TCP services " +
				"(clusters[].ingress.tcpServices)",
		},
		"a port of two": {
			tcps: tcp("a", ", creationTimestamp: 2021-01-01T00:00:00Z", entry(5432, "")) +
				tcp("b", ", creationTimestamp: 2020-01-01T00:00:00Z", entry(5432, ", ssl: true")),
			want: "5432 c__default_svc_web_http.tcp-5432 TLS=true PROXY=false\n" +
				`a PortConflict: entry "db": port 5432: the port is in use by a TCP service of cluster c; ` +
				"the TCP service is not served",
		},
		"a port of the machine": {
			tcps: tcp("ssh", "", entry(22, "")),
			want: `ssh PortConflict: entry "db": port 22: the port is in use by SSH; the TCP service is not served`,
		},
		"a Service that is not there": {
			tcps: tcp("db", "", "[{name: db, frontend: {binds: {v4: {port: 5432}}}, service: {name: none, port: 80}}]"),
			want: `db ServiceNotFound: entry "db": port 5432: there is no Service default/none; until that is corrected, ` +
				"the port is closed",
		},
		"a bind that is widened": {
			tcps: tcp("db", "", entry(5432, ", address: 127.0.0.1")),
			want: `db InvalidTCPService: entry "db": frontend.binds: a port is open at every address of the appliance, not ` +
				`at "127.0.0.1" alone: remove the address; the port is closed`,
		},
		"a spec that is none": {
			tcps: tcp("db", "", "{}"),
			want: "db InvalidTCPService: its spec is no list of entries, each with name, frontend and service; " +
				"no port of it is open",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := application(t, "none", row.tcps)
			delete(s.Services[0].Annotations, "haproxy.org/cr-backend")
			s.Options.OneTenant = true
			if row.edit != nil {
				row.edit(&s)
			}
			c := &ingress.Compiler{Taken: map[uint16]string{22: "SSH"}}
			c.Judge(haproxy.Verdicts{haproxy.FreePort(5432).Part(): haproxy.Good})
			if got := ports(c.Compile([]input.Snapshot{s})); got != row.want {
				t.Errorf("got\n%s\nwant\n%s", got, row.want)
			}
		})
	}
}
