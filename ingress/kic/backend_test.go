package kic

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/haproxytech/client-native/v6/models"

	"sallyport/ingress/annotations"
)

// tell returns what a Backend says, a line for each value, line and field that is left out.
func tell(r *annotations.Resource, err error) string {
	var b strings.Builder
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	for _, s := range r.Said {
		b.WriteString(s.Key + ": " + s.Text + "\n")
	}
	if len(r.Lines) > 0 {
		text, err := r.Text()
		if err != nil {
			b.WriteString("error of lines: " + err.Error() + "\n")
		}
		for line := range strings.SplitSeq(text.String(), "\n") {
			if line != "" {
				b.WriteString("  " + line + "\n")
			}
		}
	}
	for _, why := range r.Left {
		b.WriteString("! " + why + "\n")
	}
	if r.Rules {
		b.WriteString("rules\n")
	}
	return b.String()
}

func TestEachFieldOfABackendIsAValueOrALineOrIsTold(t *testing.T) {
	for _, row := range []struct{ spec, want string }{
		{`{}`, ""},
		{`{"name": "mine", "mode": "http", "from": "haproxytech"}`, ""},
		{`{"abortonclose": "enabled"}`, "abortonclose: true\n"},
		{`{"abortonclose": "disabled"}`, "abortonclose: false\n"},
		{`{"balance": {"algorithm": "leastconn"}}`, "load-balance: leastconn\n"},
		{
			`{"balance": {"algorithm": "uri", "uri_depth": 2, "uri_len": 9, "uri_whole": true}}`,
			"load-balance: uri whole len 9 depth 2\n",
		},
		{`{"balance": {"algorithm": "uri", "uri_path_only": true}}`, "load-balance: uri path-only\n"},
		{
			`{"balance": {"algorithm": "url_param", "url_param": "id", "url_param_check_post": 4, "url_param_max_wait": 8}}`,
			"load-balance: url_param id check_post 8\n",
		},
		{
			`{"balance": {"algorithm": "hdr", "hdr_name": "X-Id", "hdr_use_domain_only": true}}`,
			"load-balance: hdr(X-Id) use_domain_only\n",
		},
		{`{"balance": {"algorithm": "random", "random_draws": 3}}`, "load-balance: random(3)\n"},
		{
			`{"check_timeout": 1, "connect_timeout": 2, "queue_timeout": 3, "server_timeout": 50000, "tunnel_timeout": 5}`,
			"timeout-check: 1ms\ntimeout-connect: 2ms\ntimeout-queue: 3ms\ntimeout-server: 50000ms\ntimeout-tunnel: 5ms\n",
		},
		{
			`{"cookie": {"name": "SRV", "dynamic": true, "indirect": true, "nocache": true, "type": "insert"}}`,
			"cookie-persistence: SRV\n",
		},
		{
			`{"cookie": {"name": "SRV", "domain": [{"value": "a.test"}, {"value": "b.test"}], "preserve": true,
				"httponly": true, "secure": true, "maxidle": 60, "maxlife": 90, "type": "rewrite", "postonly": true,
				"attr": [{"value": "SameSite=Lax"}, {"value": "Path=/x"}, {"value": "Max-Age=9"}, {"value": "Priority=Low"}]}}`,
			"cookie-persistence: SRV\nsallyport.dev/session-cookie-domain: a.test\n" +
				"sallyport.dev/session-cookie-preserve: true\n" +
				"sallyport.dev/session-cookie-keywords: httponly secure maxidle 60s maxlife 90s\n" +
				"sallyport.dev/session-cookie-same-site: Lax\nsallyport.dev/session-cookie-path: /x\n" +
				"sallyport.dev/session-cookie-max-age: 9\n" +
				"! cookie.domain has no effect: only the first domain is set\n" +
				"! cookie.attr has no effect: the attributes SameSite, Path and Max-Age can be set\n" +
				"! cookie.type has no effect: the cookie is always inserted\n" +
				"! cookie.postonly has no effect: the cookie is set in answers to all requests without it\n",
		},
		{
			`{"default_server": {"check": "enabled", "inter": 4000, "maxconn": 30, "ssl": "enabled", "verify": "none",
				"sni": "str(a.test)", "alpn": "h2", "send-proxy-v2": "enabled", "rise": 3}}`,
			"check: true\ncheck-interval: 4000ms\npod-maxconn: 30\nserver-ssl: true\nsallyport.dev/secure-sni: a.test\n" +
				"server-proto: h2\nsend-proxy-protocol: proxy-v2\n! default_server.rise has no effect: no key says it\n",
		},
		{
			`{"default_server": {"check": "disabled", "sni": "req.hdr(host)", "alpn": "h2,http/1.1"}}`,
			"check: false\nsallyport.dev/secure-sni: host\n",
		},
		{
			`{"default_server": {"sni": "var(txn.x)", "alpn": "spdy", "proto": "fcgi"}}`,
			"! default_server.sni has no effect: it can be str(NAME), ssl_fc_sni or req.hdr(host)\n" +
				"! default_server.proto has no effect: it can be h1 or h2\n",
		},
		{
			`{"default_server": {"ssl": "enabled", "verify": "required", "ssl_cafile": "/etc/ca.pem"}}`,
			"error: default_server: the authority of the servers' certificates is a file there: name a Secret by " +
				"haproxy.org/server-ca, and remove verify and ssl_cafile\n",
		},
		{
			`{"default_server": {"ssl_certificate": "/etc/me.pem"}}`,
			"error: default_server: the client certificate is a file there: name a Secret by haproxy.org/server-crt, " +
				"and remove ssl_certificate\n",
		},
		{`{"forwardfor": {"enabled": "enabled"}}`, "forwarded-for: true\n"},
		{
			`{"forwardfor": {"enabled": "enabled", "header": "X-Client", "except": "10.0.0.0/8"}}`,
			"forwarded-for: false\n  option forwardfor except 10.0.0.0/8 header X-Client\n",
		},
		{
			`{"adv_check": "httpchk", "httpchk_params": {"method": "GET", "uri": "/up", "version": "HTTP/1.1"}}`,
			"check-http: GET /up HTTP/1.1\n",
		},
		{
			`{"adv_check": "httpchk", "httpchk_params": {"method": "GET", "uri": "/up", "version": "HTTP/1.1", "host": "a.test"},
				"http_check_list": [{"type": "expect", "match": "status", "pattern": "200-299"}]}`,
			"  option httpchk\n  http-check send meth GET uri /up ver HTTP/1.1 hdr Host a.test\n" +
				"  http-check expect status 200-299\n",
		},
		{
			`{"adv_check": "tcp-check", "httpchk_params": {"uri": "/up"}}`,
			"  option tcp-check\n! httpchk_params has no effect: adv_check is not httpchk\n",
		},
		{
			`{"retries": 3, "retry_on": "conn-failure", "redispatch": {"enabled": "enabled"}, "http_reuse": "safe"}`,
			"  option redispatch\n  http-reuse safe\n  retries 3\n  retry-on conn-failure\n",
		},
		{
			`{"acl_list": [{"acl_name": "api", "criterion": "path_beg", "value": "/api"}], "http_request_rule_list": [
				{"type": "deny", "deny_status": 403, "cond": "unless", "cond_test": "api"},
				{"type": "set-header", "hdr_name": "X-A", "hdr_format": "b"}]}`,
			"  acl api path_beg /api\n  http-request deny deny_status 403 unless api\n  http-request set-header X-A b\n" +
				"rules\n",
		},
		{
			`{"servers": {"one": {"address": "10.0.0.1"}}, "source": {"address": "10.0.0.9"}, "external_check": "enabled"}`,
			"! external_check has no effect: HAProxy starts no program here\n" +
				"! servers has no effect: the servers are the ready pods of the Service\n" +
				"! source has no effect: HAProxy connects from an address of the appliance\n",
		},
		{`{"hash_type": {"method": "map-based"}, "dynamic_cookie_key": "k"}`, ""},
		{`{"shield": true}`, "error: shield: the field is not known here, and may keep clients out: remove it\n"},
		{
			`{"retries": 3, "originalto": {"enabled": "enabled", "xyz": 1}, "balance": {"algorithm": "first", "abc": 2}}`,
			"load-balance: first\n  option originalto\n  retries 3\n! balance.abc has no effect: it is not known here\n" +
				"! originalto.xyz has no effect: it is not known here\n",
		},
		{
			`{"http_request_rule_list": [{"type": "deny", "shield": true}, {"type": "deny", "sword": true}]}`,
			"error: http_request_rule_list: parts that are not known here may keep clients out: remove " +
				"http_request_rule_list.shield, http_request_rule_list.sword\n",
		},
		{
			`{"balance": {"algorithm": "rdp-cookie", "rdp_cookie_name": "a"}}`, "load-balance: rdp-cookie(a)\n",
		},
		{`{"server_timeout": "5s"}`, `error: server_timeout: "\"5s\"" is no number of milliseconds` + "\n"},
		{`{"http_reuse": "sometimes"}`, "error of lines: http_reuse should be one of [aggressive always never safe]\n"},
		{`{"acl_list": [null]}`, "error of lines: a list has an entry without a value that it needs\nrules\n"},
		{
			`{"http_request_rule_list": [{"type": "set-header", "hdr_name": "X-A", "hdr_format": "b\nserver x 192.0.2.1"}]}`,
			`error of lines: line 2, "server x 192.0.2.1": the keyword "server" is reserved in the section backend: ` +
				"ingress/README.md lists the keys to use instead\nrules\n",
		},
		{
			`{"description": "` + strings.Repeat("x", 256<<10) + `"}`,
			"error: its spec has 262163 bytes; at most 262144 are read\n",
		},
		{`[]`, "error: its spec cannot be read: json: cannot unmarshal array into Go value of type map[string]json.RawMessage\n"},
	} {
		if diff := cmp.Diff(row.want, tell(Backend([]byte(row.spec), false))); diff != "" {
			t.Errorf("%s: want -, got +\n%s", row.spec, diff)
		}
	}
}

func TestAnOlderBackendHasItsSettingsInAFieldOfTheirOwn(t *testing.T) {
	spec := `{"config": {"server_timeout": 7, "http-keep-alive": "enabled"},
		"acls": [{"acl_name": "api", "criterion": "path_beg", "value": "/api"}],
		"http-requests": [{"index": 0, "type": "deny", "cond": "if", "cond_test": "api"}]}`
	want := "timeout-server: 7ms\n  acl api path_beg /api\n  http-request deny if api\n" +
		"! http-keep-alive has no effect: http_connection_mode replaces it\nrules\n"
	if diff := cmp.Diff(want, tell(Backend([]byte(spec), true))); diff != "" {
		t.Errorf("want -, got +\n%s", diff)
	}
}

// Each field of client-native's model is in the table, once, and the table has the keys of fields alone that
// exist.
func TestTheTableHasEveryFieldOfABackend(t *testing.T) {
	var names []string
	var collect func(of reflect.Type)
	collect = func(of reflect.Type) {
		for f := range of.Fields() {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
				names = append(names, name)
			} else if f.Anonymous {
				collect(f.Type)
			}
		}
	}
	collect(reflect.TypeFor[models.Backend]())
	if len(names) < 90 {
		t.Fatalf("the model has %d fields", len(names))
	}
	for _, name := range names {
		if known[name] == nil {
			t.Errorf("%s is not in the table", name)
		}
	}
	if len(known) != len(fields) {
		t.Error("a field is in the table twice")
	}
	older := []string{"bind_process", "http-check", "http-keep-alive", "http-server-close", "httpclose"}
	for _, f := range Fields() {
		if !slices.Contains(names, f.Name) && !slices.Contains(older, f.Name) {
			t.Errorf("%s is a field of no Backend", f.Name)
		}
	}
}

// Every field that becomes lines does so: none is lost on the way to HAProxy.
func TestEachFieldWithoutAKeyBecomesALine(t *testing.T) {
	for _, f := range Fields() {
		if f.Keys != "" || f.Left != "" {
			continue
		}
		spec, lines := `"`+f.Name+`": `+example(f.Name), 1
		if kind := paramsOf[f.Name]; kind != "" {
			spec, lines = spec+`, "adv_check": "`+kind+`"`, 2
		}
		r, err := Backend([]byte("{"+spec+"}"), false)
		if err != nil {
			t.Errorf("%s: %v", f.Name, err)
			continue
		}
		text, err := r.Text()
		if err != nil || text.String() == "" || len(r.Lines) != lines || len(r.Left) > 0 {
			t.Errorf("%s: got %q (%v), and %q is left out", f.Name, text, err, r.Left)
		}
	}
}

// example returns a value of a field, as JSON.
func example(name string) string {
	if text := examples[name]; text != "" {
		return text
	}
	if f, is := fieldOf(name); is {
		switch f.Type.String() {
		case "string":
			return `"enabled"`
		case "*int64":
			return "1"
		}
	}
	return "null"
}

func fieldOf(name string) (reflect.StructField, bool) {
	of := reflect.TypeFor[models.BackendBase]()
	for f := range of.Fields() {
		if strings.HasPrefix(f.Tag.Get("json"), name+",") {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

var examples = map[string]string{
	"acl_list":                      `[{"acl_name": "a", "criterion": "src", "value": "10.0.0.1"}]`,
	"adv_check":                     `"tcp-check"`,
	"compression":                   `{"algorithms": ["gzip"]}`,
	"error_files":                   `[{"code": 503, "file": "/e"}]`,
	"errorfiles_from_http_errors":   `[{"name": "e", "codes": [503]}]`,
	"errorloc302":                   `{"code": 503, "url": "http://a.test"}`,
	"errorloc303":                   `{"code": 503, "url": "http://a.test"}`,
	"filter_list":                   `[{"type": "trace", "trace_name": "t"}]`,
	"force_persist":                 `{"cond": "if", "cond_test": "a"}`,
	"force_persist_list":            `[{"cond": "if", "cond_test": "a"}]`,
	"ignore_persist":                `{"cond": "if", "cond_test": "a"}`,
	"ignore_persist_list":           `[{"cond": "if", "cond_test": "a"}]`,
	"hash_preserve_affinity":        `"always"`,
	"http_after_response_rule_list": `[{"type": "set-header", "hdr_name": "A", "hdr_format": "b"}]`,
	"http_check_list":               `[{"type": "connect"}]`,
	"http_connection_mode":          `"http-server-close"`,
	"http_error_rule_list":          `[{"type": "status", "status": 503}]`,
	"http_request_rule_list":        `[{"type": "deny"}]`,
	"http_response_rule_list":       `[{"type": "deny"}]`,
	"http_restrict_req_hdr_names":   `"reject"`,
	"http_reuse":                    `"safe"`,
	"http_send_name_header":         `"X-Server"`,
	"mysql_check_params":            `{"username": "u"}`,
	"originalto":                    `{"enabled": "enabled"}`,
	"persist_rule":                  `{"type": "rdp-cookie"}`,
	"pgsql_check_params":            `{"username": "u"}`,
	"redispatch":                    `{"enabled": "enabled"}`,
	"retry_on":                      `"conn-failure"`,
	"smtpchk_params":                `{"hello": "HELO", "domain": "a.test"}`,
	"stick_rule_list":               `[{"type": "on", "pattern": "src"}]`,
	"stick_table":                   `{"type": "ip", "size": 10}`,
	"tcp_check_rule_list":           `[{"action": "connect"}]`,
	"tcp_request_rule_list":         `[{"type": "content", "action": "reject"}]`,
	"tcp_response_rule_list":        `[{"type": "content", "action": "reject"}]`,
}

func FuzzBackend(f *testing.F) {
	for _, name := range slices.Sorted(slices.Values([]string{"acl_list", "cookie", "filter_list", "stick_table"})) {
		f.Add([]byte(`{"`+name+`": `+example(name)+`}`), false)
	}
	f.Add([]byte(`{"config": {"server_timeout": 7}, "acls": []}`), true)
	if text, err := os.ReadFile("testdata/backend.json"); err == nil {
		f.Add(text, false)
	}
	f.Fuzz(func(t *testing.T, spec []byte, older bool) {
		r, err := Backend(spec, older)
		if err != nil {
			return
		}
		layer := annotations.Layer{}.With(r.Said...) // panics if a key does not exist
		if text, err := r.Text(); err == nil && (len(r.Lines) == 0) != (text.String() == "") {
			t.Errorf("%d fields, and the lines %q of %s", len(r.Lines), text, spec)
		}
		if !json.Valid(spec) {
			t.Errorf("%q is no JSON, and says %v", spec, layer)
		}
	})
}

func BenchmarkBackend(b *testing.B) {
	for name, spec := range map[string]string{
		"keys":  `{"server_timeout": 7, "balance": {"algorithm": "leastconn"}}`,
		"lines": `{"server_timeout": 7, "http_request_rule_list": [{"type": "set-header", "hdr_name": "A", "hdr_format": "b"}]}`,
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r, err := Backend([]byte(spec), false)
				if err != nil {
					b.Fatal(err)
				}
				if len(r.Lines) > 0 {
					_, _ = r.Text()
				}
			}
		})
	}
}
