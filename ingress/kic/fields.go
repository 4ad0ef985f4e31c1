package kic

import (
	"slices"
	"strings"
)

// Why fields are left out.
const (
	named     = "the name and the mode come from the Service"
	ofServers = "the servers are the ready pods of the Service"
	states    = "the appliance knows the states of its servers"
	programs  = "HAProxy starts no program here"
	outside   = "HAProxy connects from an address of the appliance"
	logs      = "syslog-server in the ConfigMap says where HAProxy logs to"
	statistic = "the status endpoint shows the statistics"
	noEffect  = "this HAProxy has no such option any more"
	oldMode   = "http_connection_mode replaces it"
)

// fields are the fields of a Backend.
var fields = slices.Concat([]Field{
	{Name: "abortonclose", Keys: "abortonclose", read: abort},
	{Name: "balance", Keys: "load-balance", read: balance},
	{Name: "check_timeout", Keys: "timeout-check", read: millis("timeout-check")},
	{Name: "connect_timeout", Keys: "timeout-connect", read: millis("timeout-connect")},
	{Name: "cookie", Keys: "cookie-persistence, session-cookie-*", read: cookie, Parts: true},
	{
		Name: "default_server", read: defaultServer, Parts: true,
		Keys: "check, check-interval, pod-maxconn, server-ssl, secure-sni, server-proto, send-proxy-protocol",
	},
	{Name: "forwardfor", Keys: "forwarded-for", read: forward},
	{Name: "queue_timeout", Keys: "timeout-queue", read: millis("timeout-queue")},
	{Name: "server_timeout", Keys: "timeout-server", read: millis("timeout-server")},
	{Name: "tunnel_timeout", Keys: "timeout-tunnel", read: millis("timeout-tunnel")},
	{Name: "httpchk_params", Keys: "check-http", Left: "check reads it", Plain: true},
},
	// The controller writes these itself, too, or nobody sees them.
	left(named, true, "name mode id guid metadata description enabled from dynamic_cookie_key"),
	left(ofServers, false, "servers server_templates server_switching_rule_list use_fcgi_app http_proxy transparent "+
		"disabled"),
	left("every hash is consistent here", true, "hash_type"),
	left(states, true, "load_server_state_from_file server_state_file_name"),
	left(programs, false, "external_check external_check_command external_check_path email_alert spop_check"),
	left(outside, false, "source"),
	left(logs, false, "log_target_list log_tag log_health_checks"),
	left(statistic, false, "stats_options"),
	left(noEffect, true, "http-use-htx bind_process http-check"),
	left(oldMode, false, "http-keep-alive http-server-close httpclose"),

	lines(true, "acl_list http_request_rule_list tcp_request_rule_list filter_list http_restrict_req_hdr_names"),
	lines(false, "http_response_rule_list http_after_response_rule_list http_error_rule_list http_check_list "+
		"tcp_check_rule_list tcp_response_rule_list stick_rule_list error_files errorfiles_from_http_errors "+
		"force_persist force_persist_list ignore_persist ignore_persist_list accept_invalid_http_response "+
		"accept_unsafe_violations_in_http_response adv_check allbackups checkcache compression errorloc302 "+
		"errorloc303 fullconn h1_case_adjust_bogus_server hash_balance_factor hash_preserve_affinity "+
		"http-buffer-request http-drop-request-trailers http-no-delay http_connection_mode http_keep_alive_timeout "+
		"http_pretend_keepalive http_request_timeout http_reuse http_send_name_header independent_streams "+
		"max_keep_alive_queue mysql_check_params nolinger originalto persist persist_rule pgsql_check_params "+
		"prefer_last_server redispatch retries retry_on server_fin_timeout smtpchk_params splice_auto splice_request "+
		"splice_response srvtcpka srvtcpka_cnt srvtcpka_idle srvtcpka_intvl stick_table tarpit_timeout "+
		"tcp_smart_connect tcpka"))

// left returns fields that are left out for one reason. If plain is true, nobody is told.
func left(why string, plain bool, names string) (all []Field) {
	for name := range strings.FieldsSeq(names) {
		all = append(all, Field{Name: name, Left: why, Plain: plain})
	}
	return all
}

// lines returns fields that become lines of the configuration. If rules is true, they may keep clients out.
func lines(rules bool, names string) (all []Field) {
	for name := range strings.FieldsSeq(names) {
		all = append(all, Field{Name: name, Rules: rules})
	}
	return all
}

// Fields returns the fields of a Backend, by name.
func Fields() []Field {
	return slices.SortedFunc(slices.Values(fields), func(a, b Field) int { return strings.Compare(a.Name, b.Name) })
}

// known has the fields by name.
var known = func() map[string]*Field {
	all := make(map[string]*Field, len(fields))
	for i := range fields {
		all[fields[i].Name] = &fields[i]
	}
	return all
}()
