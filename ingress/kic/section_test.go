package kic

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/haproxytech/client-native/v6/models"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
)

// tellSection returns what a Defaults or a Global says, a line for each value, line and field that is left out.
func tellSection(s *annotations.Section, err error) string {
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	var b strings.Builder
	for _, said := range s.Said {
		b.WriteString(said.Key + ": " + said.Text + "\n")
	}
	for _, f := range s.Fields {
		if f.Err != nil {
			b.WriteString("wrong " + f.Name + ": " + f.Err.Error() + "\n")
		} else {
			b.WriteString("  " + strings.ReplaceAll(f.Text.String(), "\n", "\n  ") + "\n")
		}
		if f.Guard {
			b.WriteString("guard " + f.Name + "\n")
		}
	}
	for _, why := range s.Left {
		b.WriteString("! " + why + "\n")
	}
	return b.String()
}

func TestEachFieldOfADefaultsIsAValueOrALineOrIsTold(t *testing.T) {
	for _, row := range []struct{ spec, want string }{
		{`{}`, ""},
		{`null`, ""},
		{`{"name": "mine", "mode": "http", "httplog": true, "disabled": false, "external_check": ""}`, ""},
		{
			`{"client_timeout": 1, "client_fin_timeout": 2, "connect_timeout": 3, "http_request_timeout": 4,
				"http_keep_alive_timeout": 5, "queue_timeout": 6, "server_timeout": 7, "server_fin_timeout": 8,
				"tunnel_timeout": 9, "check_timeout": 10}`,
			"timeout-check: 10ms\ntimeout-client-fin: 2ms\ntimeout-client: 1ms\ntimeout-connect: 3ms\n" +
				"timeout-http-keep-alive: 5ms\ntimeout-http-request: 4ms\ntimeout-queue: 6ms\ntimeout-server-fin: 8ms\n" +
				"timeout-server: 7ms\ntimeout-tunnel: 9ms\n",
		},
		{
			`{"abortonclose": "enabled", "dontlognull": "disabled", "http_connection_mode": "httpclose",
				"logasap": "enabled", "log_format": "%ci", "balance": {"algorithm": "leastconn"}}`,
			"abortonclose: true\nload-balance: leastconn\ndontlognull: false\nhttp-connection-mode: httpclose\n" +
				"log-format: %ci\nlogasap: true\n",
		},
		{
			`{"retries": 3, "redispatch": {"enabled": "enabled", "interval": 0}, "retry_on": "conn-failure",
				"http_reuse": "safe", "maxconn": 2000, "compression": {"algorithms": ["gzip"], "types": ["text/html"]}}`,
			"  compression algo gzip\n  compression type text/html\n  http-reuse safe\n  maxconn 2000\n" +
				"  option redispatch 0\n  retries 3\n  retry-on conn-failure\n",
		},
		{`{"splice_auto": "disabled", "contstats": "enabled", "clitcpka": "enabled"}`, "  option clitcpka\n  option contstats\n  no option splice-auto\n"},
		{
			`{"adv_check": "httpchk", "httpchk_params": {"method": "GET", "uri": "/up", "version": "HTTP/1.1", "host": "a"}}`,
			"check-http: GET /up HTTP/1.1\n! httpchk_params.host has no effect: a Backend says which host is checked " +
				"(cr-backend)\n",
		},
		{
			`{"adv_check": "tcp-check", "httpchk_params": {"uri": "/up"}}`,
			"! adv_check has no effect: a Backend says how servers are checked (cr-backend)\n" +
				"! httpchk_params has no effect: adv_check is not httpchk\n",
		},
		{
			`{"forwardfor": {"enabled": "enabled", "header": "X-Client"}, "default_server": {"maxconn": 9, "rise": 2}}`,
			"pod-maxconn: 9\nforwarded-for: false\n  option forwardfor header X-Client\n" +
				"! default_server.rise has no effect: no key says it\n",
		},
		{
			`{"monitor_uri": "/up", "http_request_rule_list": [{"type": "deny"}], "error_files": [{"code": 503}],
				"default_backend": "x", "external_check": "enabled", "disabled": true, "shield": 1}`,
			"! default_backend has no effect: default-backend-service in the ConfigMap names it\n" +
				"! disabled has no effect: the appliance opens and closes what it serves\n" +
				"! error_files has no effect: " + pages + "\n" +
				"! external_check has no effect: HAProxy starts no program here\n" +
				"! http_request_rule_list has no effect: " + rules + "\n" +
				"! monitor_uri has no effect: " + monitoring + "\n" +
				"! shield has no effect: it is not known here\n",
		},
		{
			`{"client_timeout": "5s", "dontlognull": "maybe", "http_reuse": "sometimes", "log_format": 1, "retries": 2,
				"default_server": {"ssl_certificate": "/x"}}`,
			"wrong client_timeout: \"\\\"5s\\\"\" is no number of milliseconds\n" +
				"wrong default_server: the client certificate is a file there: name a Secret by haproxy.org/server-crt, and " +
				"remove ssl_certificate\n" +
				"wrong dontlognull: \"\\\"maybe\\\"\" is not enabled or disabled\n" +
				"wrong http_reuse: http_reuse should be one of [aggressive always never safe]\n" +
				"wrong log_format: \"1\" is no text\n  retries 2\n",
		},
		{
			`{"unique_id_format": "%ci\nmode tcp"}`, "wrong unique_id_format: line 2, \"mode tcp\": the keyword \"mode\" " +
				"is reserved in the section defaults: ingress/README.md lists the keys to use instead\n",
		},
		{
			`{"compression": {"algorithms": ["gzip"], "speed": 9}, "originalto": {"enabled": "enabled", "x": 1}}`,
			"  compression algo gzip\n  option originalto\n! compression.speed has no effect: it is not known here\n" +
				"! originalto.x has no effect: it is not known here\n",
		},
		{`[]`, "error: its spec cannot be read: json: cannot unmarshal array into Go value of type map[string]json.RawMessage\n"},
		{
			`{"log_tag": "` + strings.Repeat("x", 256<<10) + `"}`,
			"error: its spec has 262159 bytes; at most 262144 are read\n",
		},
	} {
		if diff := cmp.Diff(row.want, tellSection(Defaults([]byte(row.spec), false))); diff != "" {
			t.Errorf("%s: want -, got +\n%s", row.spec, diff)
		}
	}
}

func TestEachFieldOfAGlobalIsAValueOrALineOrIsTold(t *testing.T) {
	for _, row := range []struct{ spec, want string }{
		{`{}`, ""},
		{
			`{"nbthread": 4, "hard_stop_after": 30000, "performance_options": {"maxconn": 1000, "busy_polling": false}}`,
			"hard-stop-after: 30000ms\nnbthread: 4\nmaxconn: 1000\n",
		},
		{
			`{"tune_options": {"maxaccept": 9, "h2_max_concurrent_streams": 50}, "tune_ssl_options": {"lifetime": 60000},
				"ssl_options": {"default_bind_options": "ssl-min-ver TLSv1.3", "default_bind_ciphers": "A:B"},
				"log_send_hostname": {"enabled": "enabled"}, "close_spread_time": 500}`,
			"  close-spread-time 500\n  log-send-hostname\n  ssl-default-bind-ciphers A:B\n" +
				"  ssl-default-bind-options ssl-min-ver TLSv1.3\n  tune.h2.max-concurrent-streams 50\n" +
				"  tune.maxaccept 9\n  tune.ssl.lifetime 60000\n",
		},
		{
			`{"pidfile": "/x", "daemon": true, "master-worker": true, "user": "root", "uid": 0, "chroot": "",
				"insecure_fork_wanted": true, "insecure_setuid_wanted": false, "external_check": true,
				"runtime_apis": [{"address": "/x"}], "environment_options": {"setenv": [{"name": "A", "value": "b"}]},
				"lua_options": {"loads": [{"file": "/x.lua"}]}, "wurfl_options": {"cache_size": 3},
				"set_var": [{"name": "proc.gen", "expr": "int(1)"}]}`,
			"! environment_options.setenv has no effect: " + environment + "\n! external_check has no effect: " + programs +
				"\n! insecure_fork_wanted has no effect: " + protection + "\n! lua_options.loads has no effect: " + code +
				"\n! runtime_apis has no effect: " + sockets + "\n! set_var has no effect: " + variables +
				"\n! user has no effect: " + process + "\n! wurfl_options.cache_size has no effect: " + databases + "\n",
		},
		{
			`{"tune_options": {"xyz": 1, "maxaccept": 3}, "harden": {"x": 1}, "speed": 1, "older": false}`,
			"wrong harden: the text has no line\n  tune.maxaccept 3\n! harden.x has no effect: it is not known here\n" +
				"! speed has no effect: it is not known here\n! tune_options.xyz has no effect: it is not known here\n",
		},
		{
			`{"nbthread": "4", "hard_stop_after": "1s", "tune_options": {"maxaccept": "x"}, "h1_case_adjust": [null],
				"close_spread_time": 1}`,
			"  close-spread-time 1\nwrong h1_case_adjust: the text has no line\n" +
				"wrong hard_stop_after: \"\\\"1s\\\"\" is no number of milliseconds\nwrong nbthread: \"\\\"4\\\"\" is no number\n" +
				"wrong tune_options.maxaccept: it is no global: json: cannot unmarshal string into Go struct field " +
				"TuneOptions.tune_options.maxaccept of type int64\n",
		},
		{
			`{"ssl_options": {"default_bind_ciphers": "A\nuser root"}}`, "wrong ssl_options.default_bind_ciphers: line 2, " +
				"\"user root\": the keyword \"user\" is reserved in the section global: ingress/README.md lists the keys to " +
				"use instead\n",
		},
		{
			`{"tune_options": 7}`, "error: tune_options cannot be read: json: cannot unmarshal number into Go value of type " +
				"map[string]json.RawMessage\n",
		},
	} {
		if diff := cmp.Diff(row.want, tellSection(Global([]byte(row.spec), false))); diff != "" {
			t.Errorf("%s: want -, got +\n%s", row.spec, diff)
		}
	}
}

func TestEachFieldOfAFrontendIsALineOrIsTold(t *testing.T) {
	for _, row := range []struct{ spec, want string }{
		{`{}`, ""},
		{`{"name": "http", "mode": "http", "httplog": true, "disabled": false}`, ""},
		{
			`{"client_timeout": 9, "maxconn": 5, "log_format": "%ci", "unique_id_format": "%rt", "compression":
				{"algorithms": ["gzip"]}, "acl_list": [{"acl_name": "a", "criterion": "src", "value": "10.0.0.1"}],
				"capture_list": [{"type": "request", "length": 9}],
				"http_request_rule_list": [{"type": "deny", "cond": "if", "cond_test": "a"}]}`,
			"  timeout client 9\n  compression algo gzip\n  log-format %ci\n  maxconn 5\n  unique-id-format %rt\n" +
				"  acl a src 10.0.0.1\n  http-request deny if a\n  declare capture request len 9\n" +
				"guard acl_list, capture_list, http_request_rule_list\n",
		},
		{
			`{"binds": {"v4": {"port": 1}}, "monitor_uri": "/up", "default_backend": "x", "stats_options": {"stats_enable": true},
				"backend_switching_rule_list": [{"name": "x"}], "ssl_front_use_list": [{"certificate": "x"}]}`,
			"! backend_switching_rule_list has no effect: Ingresses and routes say which backend has a request\n" +
				"! binds has no effect: haproxy.http and haproxy.https of the configuration file say where HAProxy " +
				"listens\n" +
				"! default_backend has no effect: Ingresses and routes say which backend has a request\n" +
				"! monitor_uri has no effect: " + monitoring + "\n" +
				"! ssl_front_use_list has no effect: Ingresses name the certificates\n" +
				"! stats_options has no effect: " + statistic + "\n",
		},
		{
			`{"shield": 1, "quic_initial_rule_list": [{"type": "reject"}], "client_timeout": "x"}`,
			"wrong client_timeout: it is no frontend http: json: cannot unmarshal string into Go struct field " +
				"FrontendBase.client_timeout of type int64\n" +
				"wrong quic_initial_rule_list: no frontend has rules for connections of QUIC, which may keep clients out: " +
				"remove them\nguard quic_initial_rule_list\n" +
				"wrong shield: the field is not known here, and may keep clients out: remove it\nguard shield\n",
		},
		{
			`{"http_request_rule_list": [{"type": "deny", "sword": 1}], "maxconn": 1}`,
			"wrong http_request_rule_list: parts that are not known here may keep clients out: remove " +
				"http_request_rule_list.sword\nguard http_request_rule_list\n  maxconn 1\n" +
				"! http_request_rule_list.sword has no effect: it is not known here\n",
		},
		{
			`{"acl_list": [null]}`, "wrong acl_list: a list has an entry without a value that it needs\nguard acl_list\n",
		},
		{`[]`, "error: its spec cannot be read: json: cannot unmarshal array into Go value of type map[string]json.RawMessage\n"},
	} {
		if diff := cmp.Diff(row.want, tellSection(Frontend([]byte(row.spec), haproxy.HTTPSection))); diff != "" {
			t.Errorf("%s: want -, got +\n%s", row.spec, diff)
		}
	}
}

// The names of ingress.v1.haproxy.org are those of client-native 5, and of the example in the manual of HAProxy's
// own controller.
func TestAnOlderGlobalHasOtherNames(t *testing.T) {
	for _, row := range []struct{ spec, want string }{
		{`{}`, ""},
		{`{"config": null}`, ""},
		{
			`{"config": {"maxconn": 1000, "stats_timeout": 36000, "tune_ssl_default_dh_param": 2048,
				"ssl_default_bind_options": "no-sslv3", "ssl_default_bind_ciphers": "A:B", "hard_stop_after": 30000,
				"server_state_base": "/x", "runtime_apis": [{"address": "0.0.0.0:31024"}], "daemon": "enabled"}}`,
			"hard-stop-after: 30000ms\nmaxconn: 1000\n  ssl-default-bind-ciphers A:B\n" +
				"  ssl-default-bind-options no-sslv3\n  tune.ssl.default-dh-param 2048\n" +
				"! performance_options.server_state_base has no effect: " + states + "\n! runtime_apis has no effect: " +
				sockets + "\n! stats_timeout has no effect: " + sockets + "\n",
		},
		{
			`{"config": {"tune_options": {"ssl_lifetime": 60000, "bufsize": 32768, "maxaccept": 3, "vars_txn_max_size": 9,
				"zlib_memlevel": 8, "lua_maxmem": true, "quic_retry_threshold": 5}, "httpclient_retries": 3,
				"lua_loads": [{"file": "/x"}], "presetenv": [{"name": "A"}], "maxsslconn": 7, "zero_warning": true},
				"log_targets": [{"address": "127.0.0.1"}]}`,
			"  maxsslconn 7\n  tune.bufsize 32k\n  tune.maxaccept 3\n  tune.quic.retry-threshold 5\n" +
				"  tune.ssl.lifetime 60000\n  tune.vars.txn-max-size 9\n  tune.zlib.memlevel 8\n" +
				"! debug_options.zero_warning has no effect: " + messages +
				"\n! environment_options.presetenv has no effect: " + environment +
				"\n! http_client_options.retries has no effect: " + ownClient + "\n! log_target_list has no effect: " + logs +
				"\n! lua_options.loads has no effect: " + code + "\n! tune_lua_options.maxmem has no effect: " + scripts + "\n",
		},
		{
			`{"config": 7}`, "error: spec.config cannot be read: json: cannot unmarshal number into Go value of type " +
				"map[string]json.RawMessage\n",
		},
	} {
		if diff := cmp.Diff(row.want, tellSection(Global([]byte(row.spec), true))); diff != "" {
			t.Errorf("%s: want -, got +\n%s", row.spec, diff)
		}
	}
	want := "timeout-client: 7ms\n"
	if diff := cmp.Diff(want, tellSection(Defaults([]byte(`{"config": {"client_timeout": 7}}`), true))); diff != "" {
		t.Errorf("want -, got +\n%s", diff)
	}
}

// modelNames returns the names of the fields of a model. Those of a group are the names of its parts.
func modelNames(of reflect.Type, groups map[string]bool) (names []string) {
	for f := range of.Fields() {
		switch name, _, _ := strings.Cut(f.Tag.Get("json"), ","); {
		case groups[name]:
			for _, part := range modelNames(f.Type.Elem(), nil) {
				names = append(names, name+"."+part)
			}
		case name != "":
			names = append(names, name)
		case f.Anonymous:
			names = append(names, modelNames(f.Type, groups)...)
		}
	}
	return names
}

// Each field of client-native's models is in the tables, once, and the tables have the keys of fields alone that
// exist.
func TestTheTablesHaveEveryFieldOfADefaultsAndAGlobal(t *testing.T) {
	for _, row := range []struct {
		kind   *sectionKind
		fields []Field
		of     reflect.Type
		least  int
	}{
		{ofDefaults, fieldsOfDefaults, reflect.TypeFor[models.Defaults](), 110},
		{ofGlobal, fieldsOfGlobal, reflect.TypeFor[models.Global](), 200},
		{ofFrontends[haproxy.HTTPSection], fieldsOfFrontend, reflect.TypeFor[models.Frontend](), 80},
	} {
		names := modelNames(row.of, row.kind.groups)
		if len(names) < row.least {
			t.Errorf("%s: the model has %d fields", row.kind.key, len(names))
		}
		for _, name := range names {
			if row.kind.fields[name] == nil {
				t.Errorf("%s: %s is not in the table", row.kind.key, name)
			}
		}
		if len(row.kind.fields) != len(row.fields) {
			t.Errorf("%s: a field is in the table twice", row.kind.key)
		}
		for _, f := range row.fields {
			if !slices.Contains(names, f.Name) {
				t.Errorf("%s has no field %s", row.kind.key, f.Name)
			}
			for key := range strings.SplitSeq(f.Keys, ", ") {
				if f.Keys != "" && !strings.Contains(key, "*") && key != "secure-sni" &&
					!slices.ContainsFunc(annotations.Docs(), func(d annotations.Doc) bool { return d.Name == key }) {
					t.Errorf("%s: %s names %s, which is no key", row.kind.key, f.Name, key)
				}
			}
		}
	}
}

// Every field that becomes lines does so: none is lost on the way to HAProxy.
func TestEachFieldOfADefaultsOrAGlobalWithoutAKeyBecomesALine(t *testing.T) {
	for _, row := range []struct {
		kind   *sectionKind
		fields []Field
		of     reflect.Type
	}{
		{ofDefaults, fieldsOfDefaults, reflect.TypeFor[models.DefaultsBase]()},
		{ofGlobal, fieldsOfGlobal, reflect.TypeFor[models.GlobalBase]()},
		{ofFrontends[haproxy.HTTPSSection], fieldsOfFrontend, reflect.TypeFor[models.FrontendBase]()},
	} {
		for _, f := range row.fields {
			if f.Keys != "" || f.Left != "" || f.Name == "quic_initial_rule_list" {
				continue
			}
			spec := modelOf(f.Name, []byte(exampleOf(row.of, f.Name)))
			s, err := row.kind.read(spec, false)
			if got := tellSection(s, err); !strings.HasPrefix(got, "  ") || len(s.Fields) != 1 || len(s.Left) > 0 {
				t.Errorf("%s %s: got %q", row.kind.key, spec, got)
			}
		}
	}
}

// exampleOf returns a value of a field of a type, as JSON.
func exampleOf(of reflect.Type, name string) string {
	if text := sectionExamples[name]; text != "" {
		return text
	}
	if text := examples[name]; text != "" {
		return text
	}
	group, part, grouped := strings.Cut(name, ".")
	for f := range of.Fields() {
		if !strings.HasPrefix(f.Tag.Get("json"), group+",") {
			continue
		}
		if grouped {
			return exampleOf(f.Type.Elem(), part)
		}
		switch f.Type.String() {
		case "string":
			return `"enabled"`
		case "*int64", "int64":
			return "9"
		case "bool":
			return "true"
		case "*string":
			return `"x"`
		}
	}
	return "null"
}

var sectionExamples = map[string]string{
	"capture_list":                  `[{"type": "request", "length": 9}]`,
	"epoll_mask_events":             `["err"]`,
	"forwardfor":                    `{"enabled": "enabled"}`,
	"h1_case_adjust":                `[{"from": "host", "to": "Host"}]`,
	"harden":                        `{"reject_privileged_ports": {"tcp": "enabled"}}`,
	"http_err_codes":                `[{"value": "400-499"}]`,
	"http_fail_codes":               `[{"value": "500-599"}]`,
	"listener_default_shards":       `"by-thread"`,
	"log_send_hostname":             `{"enabled": "enabled"}`,
	"security_level":                "2",
	"socket_owner":                  `"listener"`,
	"takeover_other_tg_connections": `"none"`,
}

func FuzzSection(f *testing.F) {
	f.Add([]byte(`{"config": {"maxconn": 7, "tune_options": {"ssl_lifetime": 1}}, "log_targets": []}`), true, true)
	f.Add([]byte(`{"performance_options": {"maxconn": 7}, "log_send_hostname": {"enabled": "enabled"}}`), false, true)
	f.Add([]byte(`{"client_timeout": 7, "forwardfor": {"enabled": "enabled", "header": "a"}}`), false, false)
	f.Add([]byte(`{"compression": {"algorithms": ["gzip"]}, "default_server": {"sni": "str(a)"}}`), false, false)
	f.Add([]byte(`{"acl_list": [{"acl_name": "a", "criterion": "src"}], "shield": 1}`), true, false)
	f.Fuzz(func(t *testing.T, spec []byte, older, global bool) {
		kind := ofDefaults
		switch {
		case global:
			kind = ofGlobal
		case older:
			kind, older = ofFrontends[haproxy.HTTPSection], false // there is no older Frontend
		}
		s, err := kind.read(spec, older)
		if err != nil {
			return
		}
		annotations.Layer{}.With(s.Said...) // panics if a key does not exist
		for _, field := range s.Fields {
			if (field.Err == nil) == (field.Text.String() == "") {
				t.Errorf("%s of %s: %q, %v", field.Name, spec, field.Text, field.Err)
			}
		}
	})
}
