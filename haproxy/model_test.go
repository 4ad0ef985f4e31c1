package haproxy

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestAModelBecomesTheLinesOfItsSection(t *testing.T) {
	for _, row := range []struct {
		section     Section
		model, want string
	}{
		{BackendSection, `{"retries": 3}`, "retries 3"},
		{DefaultsSection, `{"retries": 3, "redispatch": {"enabled": "enabled"}}`, "option redispatch\nretries 3"},
		{DefaultsSection, `{"http_reuse": "sometimes"}`, "! http_reuse should be one of [aggressive always never safe]"},
		{DefaultsSection, `{"unique_id_format": "x\nmode tcp"}`, `! line 2, "mode tcp": the keyword "mode" is reserved ` +
			"in the section defaults: ingress/README.md lists the keys to use instead"},
		{DefaultsSection, `{}`, "! the text has no line"},
		{DefaultsSection, `[]`, "! it is no defaults: json: cannot unmarshal array into Go value of type models.DefaultsBase"},
		{
			GlobalSection, `{"tune_options": {"maxaccept": 3}, "close_spread_time": 1500}`,
			"tune.maxaccept 3\nclose-spread-time 1500",
		},
		{GlobalSection, `{"log_send_hostname": {"enabled": "enabled", "param": "a"}}`, "log-send-hostname a"},
		{GlobalSection, `{"log_send_hostname": {}}`, "! log_send_hostname.log_send_hostname.enabled is required"},
		{GlobalSection, `{"set_var": [{"name": "proc.gen", "expr": "int(1)"}]}`, `! line 1, "set-var proc.gen int(1)": ` +
			`the keyword "set-var" is reserved in the section global: ingress/README.md lists the keys to use instead`},
		{GlobalSection, `{"set_var_fmt": [{"name": "proc.gen", "format": "1"}]}`, `! line 1, "set-var-fmt proc.gen 1": ` +
			`the keyword "set-var-fmt" is reserved in the section global: ingress/README.md lists the keys to use instead`},
		{GlobalSection, `{"h1_case_adjust": [null]}`, "! the text has no line"},
		{GlobalSection, `{"cpu_maps": [null]}`, "! a list has an entry without a value that it needs"},
		{
			HTTPSection, `{"acl_list": [{"acl_name": "a", "criterion": "src", "value": "10.0.0.1"}],
				"capture_list": [{"type": "request", "length": 9}], "client_timeout": 3, "log_format": "%ci",
				"http_request_rule_list": [{"type": "deny", "cond": "if", "cond_test": "a"}],
				"tcp_request_rule_list": [{"type": "connection", "action": "reject"}]}`,
			"acl a src 10.0.0.1\nlog-format %ci\ntimeout client 3\ntcp-request connection reject\n" +
				"http-request deny if a\ndeclare capture request len 9",
		},
		{
			HTTPSSection, `{"unique_id_format": "a\nbind :1"}`, `! line 2, "bind :1": the keyword "bind" is reserved in ` +
				"the section frontend https: ingress/README.md lists the keys to use instead",
		},
		{GlobalSection, `{}`, "! the text has no line"},
	} {
		text, err := ModelText(row.section, []byte(row.model))
		got := text.String()
		if err != nil {
			got = "! " + err.Error()
		}
		if got != row.want || err == nil && text.section != row.section {
			t.Errorf("%s %s: got %q for section %q, want %q", row.section, row.model, got, text.section, row.want)
		}
		if errors.Is(err, ErrNoLine) != strings.HasSuffix(row.want, "no line") {
			t.Errorf("%s %s: got %v", row.section, row.model, err)
		}
	}
}

func TestThePartsOfAModelThatNobodyKnowsAreFound(t *testing.T) {
	for _, row := range []struct {
		section     Section
		model, want string
	}{
		{
			BackendSection, `{"retries": 3, "Retry_On": "x", "shield": 1, "stick_table": {"type": "ip", "a.b": 1}}`,
			"shield stick_table.a.b",
		},
		{
			BackendSection, `{"http_request_rule_list": [{"type": "deny", "x": 1}, {"x": 2, "y": {"z": 1}}, null, 7]}`,
			"http_request_rule_list.x http_request_rule_list.y",
		},
		{
			BackendSection, `{"metadata": {"x": 1}, "errorfiles_from_http_errors": [{"codes": [503], "c": []}]}`,
			"errorfiles_from_http_errors.c",
		},
		{DefaultsSection, `{"compression": {"algorithms": ["gzip"], "speed": 3}}`, "compression.speed"},
		{
			GlobalSection, `{"tune_options": {"maxaccept": 1, "xyz": 1}, "performance_options": {"maxconn": 1}}`,
			"tune_options.xyz",
		},
		{GlobalSection, `[]`, ""},
		{GlobalSection, `no JSON`, ""},
	} {
		want := strings.Fields(row.want)
		if got := UnknownParts(row.section, []byte(row.model)); !slices.Equal(got, want) {
			t.Errorf("%s %s: got %q, want %q", row.section, row.model, got, want)
		}
	}
}

func FuzzModelText(f *testing.F) {
	f.Add([]byte(`{"retries": 3, "stick_table": {"type": "ip"}}`), 0)
	f.Add([]byte(`{"client_timeout": 3, "unique_id_format": "%ci\n"}`), 1)
	f.Add([]byte(`{"tune_options": {"maxaccept": 3}, "set_var": [{"name": "a", "expr": "int(1)"}]}`), 2)
	f.Fuzz(func(t *testing.T, model []byte, n int) {
		section := []Section{BackendSection, DefaultsSection, GlobalSection, HTTPSection}[uint(n)%4]
		UnknownParts(section, model)
		text, err := ModelText(section, model)
		if err != nil {
			return
		}
		again, err := ParseText(section, text.String())
		if err != nil || again != text {
			t.Errorf("%s: %q is no text for section %s: %v", model, text, section, err)
		}
	})
}
