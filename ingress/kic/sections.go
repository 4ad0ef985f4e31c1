package kic

import (
	"slices"
	"strings"

	"sallyport/haproxy"
)

// Why fields of a Defaults and a Global are left out.
const (
	pages      = "clusters[].ingress.errorFiles of the configuration file names a ConfigMap with the answers"
	rules      = "rules of a Defaults have no effect in HAProxy's own controller, either: write frontend-config-snippet"
	formats    = "log_format, or log-format in the ConfigMap, sets the format"
	checks     = "a Backend says how servers are checked (cr-backend)"
	always     = "the appliance opens and closes what it serves"
	monitoring = "clients of every host could ask for it: ask the status endpoint of the appliance"
	process    = "the appliance starts HAProxy, and says as which user and with which rights and files it runs"
	sockets    = "the appliance has a socket of its own: the command `sallyport status` shows what HAProxy does"
	processors = "the processors belong to the machine: haproxy.threads and haproxy.base of the configuration file " +
		"divide them"
	code         = "HAProxy loads no code that a cluster names: write it to haproxy.base of the configuration file"
	databases    = "this HAProxy is built without it"
	environment  = "the environment of HAProxy belongs to the appliance"
	protection   = "it switches off a protection of HAProxy"
	files        = "the appliance writes the files that HAProxy reads"
	messages     = "the appliance reads the messages of HAProxy"
	ownClient    = "nothing here uses the HTTP client of HAProxy"
	stapling     = "HAProxy fetches no answers of OCSP here"
	quicOption   = "quic-bind-port in the ConfigMap turns HTTP/3 on"
	variables    = "the appliance knows HAProxy by variables: write others to haproxy.base of the configuration file"
	reloads      = "the appliance decides how long old workers live: write hard_stop_after"
	secret       = "it is a secret, and everybody who may read a Global would know it"
	authorities  = "server-ca says by which authorities the servers are verified"
	scripts      = "the scripts of HAProxy belong to the appliance"
	keys         = "keys of connections stay in HAProxy"
	descriptions = "nobody sees it"
)

// fieldsOfDefaults are the fields of a Defaults.
var fieldsOfDefaults = slices.Concat([]Field{
	{Name: "abortonclose", Keys: "abortonclose", read: abort},
	{Name: "adv_check", Keys: "check-http", read: checkKind},
	{Name: "balance", Keys: "load-balance", read: balance},
	{Name: "check_timeout", Keys: "timeout-check", read: millis("timeout-check")},
	{Name: "client_fin_timeout", Keys: "timeout-client-fin", read: millis("timeout-client-fin")},
	{Name: "client_timeout", Keys: "timeout-client", read: millis("timeout-client")},
	{Name: "connect_timeout", Keys: "timeout-connect", read: millis("timeout-connect")},
	{Name: "cookie", Keys: "cookie-persistence, session-cookie-*", read: cookie, Parts: true},
	{
		Name: "default_server", read: defaultServer, Parts: true,
		Keys: "check, check-interval, pod-maxconn, server-ssl, secure-sni, server-proto, send-proxy-protocol",
	},
	{Name: "dontlognull", Keys: "dontlognull", read: onOff("dontlognull")},
	{Name: "forwardfor", Keys: "forwarded-for", read: forward},
	{Name: "http_connection_mode", Keys: "http-connection-mode", read: text("http-connection-mode")},
	{
		Name: "http_keep_alive_timeout", Keys: "timeout-http-keep-alive", read: millis("timeout-http-keep-alive"),
	},
	{Name: "http_request_timeout", Keys: "timeout-http-request", read: millis("timeout-http-request")},
	{Name: "httpchk_params", Keys: "check-http", read: checkRequest},
	{Name: "log_format", Keys: "log-format", read: text("log-format")},
	{Name: "logasap", Keys: "logasap", read: onOff("logasap")},
	{Name: "queue_timeout", Keys: "timeout-queue", read: millis("timeout-queue")},
	{Name: "server_fin_timeout", Keys: "timeout-server-fin", read: millis("timeout-server-fin")},
	{Name: "server_timeout", Keys: "timeout-server", read: millis("timeout-server")},
	{Name: "tunnel_timeout", Keys: "timeout-tunnel", read: millis("timeout-tunnel")},
},
	left("the mode of each section comes from what it serves", true, "name mode from metadata"),
	left("every hash is consistent here", true, "hash_type"),
	left("each cookie has a key of its own", true, "dynamic_cookie_key"),
	left(noEffect, true, "http-use-htx"),
	left(states, true, "load_server_state_from_file"),
	left(formats, true, "httplog tcplog"),
	left(formats, false, "clflog httpslog"),
	left("its lines cannot be written: write log-steps to haproxy.base of the configuration file", false, "log_steps"),
	left(always, false, "disabled"),
	left(always, true, "enabled"),
	left("default-backend-service in the ConfigMap names it", false, "default_backend"),
	left(pages, false, "error_files errorfiles_from_http_errors"),
	left(programs, false, "external_check external_check_command external_check_path email_alert"),
	left(checks, false, "mysql_check_params pgsql_check_params smtpchk_params http_check_list tcp_check_rule_list"),
	left(logs, false, "log_target_list"),
	left(monitoring, false, "monitor_uri"),
	left(outside, false, "source transparent"),
	left(statistic, false, "stats_options"),
	left(rules, false, "acl_list http_after_response_rule_list http_error_rule_list http_request_rule_list "+
		"http_response_rule_list quic_initial_rule_list tcp_request_rule_list tcp_response_rule_list"),

	lines(false, "accept_invalid_http_request accept_invalid_http_response accept_unsafe_violations_in_http_request "+
		"accept_unsafe_violations_in_http_response allbackups backlog checkcache clitcpka clitcpka_cnt clitcpka_idle "+
		"clitcpka_intvl compression contstats disable_h2_upgrade dontlog_normal error_log_format errorloc302 "+
		"errorloc303 fullconn h1_case_adjust_bogus_client h1_case_adjust_bogus_server hash_balance_factor "+
		"hash_preserve_affinity http-buffer-request http-drop-request-trailers http-drop-response-trailers "+
		"http_ignore_probes http_no_delay http_pretend_keepalive http_restrict_req_hdr_names http_reuse "+
		"http_send_name_header http_use_proxy_header idle_close_on_response independent_streams log_format_sd "+
		"log_health_checks log_separate_errors log_tag max_keep_alive_queue maxconn nolinger originalto "+
		"persist persist_rule prefer_last_server redispatch retries retry_on socket_stats splice_auto "+
		"splice_request splice_response srvtcpka srvtcpka_cnt srvtcpka_idle srvtcpka_intvl tarpit_timeout "+
		"tcp_smart_accept tcp_smart_connect tcpka unique_id_format unique_id_header"))

// fieldsOfGlobal are the fields of a Global, and the parts of those that are groups.
var fieldsOfGlobal = slices.Concat([]Field{
	{Name: "hard_stop_after", Keys: "hard-stop-after", read: millis("hard-stop-after")},
	{Name: "nbthread", Keys: "nbthread", read: number("nbthread")},
	{Name: "performance_options.maxconn", Keys: "maxconn", read: number("maxconn")},
},
	left(process, true, "daemon default_path localpeer master-worker pidfile strict_limits"),
	left(process, false, "chroot gid group prealloc_fd set_dumpable setcap uid ulimit_n user"),
	left(sockets, false, "runtime_apis stats_file stats_maxconn stats_timeout"),
	left(logs, false, "log_target_list"),
	left(processors, false, "cpu_maps cpu_policy cpu_set numa_cpu_mapping thread_group_lines thread_groups"),
	left(states, false, "performance_options.server_state_base performance_options.server_state_file"),
	left(processors, false, "performance_options.thread_hard_limit tune_options.renice_runtime "+
		"tune_options.renice_startup"),
	left(code, false, part("lua_options", "load_per_thread loads prepend_path")),
	left(code, false, part("ssl_options", "engines propquery provider provider_path")),
	left(files, false, part("ssl_options", "ca_base crt_base dh_param_file issuers_chain_path load_extra_files")),
	left(files, false, "h1_case_adjust_file"),
	left(authorities, false, "ssl_options.server_verify"),
	left("HAProxy fetches no certificates here", false, "ssl_options.acme_scheduler"),
	left(programs, false, "external_check"),
	left(protection, false, "insecure_fork_wanted insecure_setuid_wanted"),
	left(environment, false, part("environment_options", "presetenv resetenv setenv unsetenv")),
	left(databases, false, part("device_atlas_options", "json_file log_level properties_cookie separator")),
	left(databases, false, part("fifty_one_degrees_options",
		"cache_size data_file property_name_list property_separator")),
	left(databases, false, part("wurfl_options",
		"cache_size data_file information_list information_list_separator patch_file")),
	left(messages, false, part("debug_options", "anonkey quiet stress_level zero_warning")),
	left(messages, false, "force_cfg_parser_pause tune_options.fail_alloc"),
	left(ownClient, false, part("http_client_options",
		"resolvers_disabled resolvers_id resolvers_prefer retries ssl_ca_file ssl_verify timeout_connect")),
	left(stapling, false, part("ocsp_update_options", "disable httpproxy maxdelay mindelay mode")),
	left(stapling, false, "tune_ssl_options.ocsp_update_max_delay tune_ssl_options.ocsp_update_min_delay"),
	left(keys, false, "tune_ssl_options.keylog"),
	left(quicOption, true, "limited_quic"),
	left(quicOption, false, "no_quic"),
	left(variables, false, "set_var set_var_fmt"),
	left(reloads, false, "grace mworker_max_reloads"),
	left(secret, false, "cluster_secret"),
	left(scripts, false, part("tune_lua_options", "bool_sample_conversion burst_timeout forced_yield log_loggers "+
		"log_stderr maxmem service_timeout session_timeout task_timeout")),
	left(descriptions, true, "description metadata node"),

	lines(false, "close_spread_time dns_accept_family expose_deprecated_directives expose_experimental_directives "+
		"h1_accept_payload_with_any_method h1_case_adjust h1_do_not_close_on_insecure_transfer_encoding "+
		"h2_workaround_bogus_websocket_clients harden http_err_codes http_fail_codes log_send_hostname "+
		"pp2_never_send_local warn_blocked_traffic_after"),
	lines(false, part("performance_options", "busy_polling max_spread_checks maxcompcpuusage maxcomprate maxconnrate "+
		"maxpipes maxsessrate maxzlibmem noepoll noevports nogetaddrinfo nokqueue nopoll noreuseport nosplice "+
		"profiling_memory profiling_tasks spread_checks")),
	lines(false, part("ssl_options", "default_bind_ciphers default_bind_ciphersuites default_bind_client_sigalgs "+
		"default_bind_curves default_bind_options default_bind_sigalgs default_server_ciphers "+
		"default_server_ciphersuites default_server_client_sigalgs default_server_curves default_server_options "+
		"default_server_sigalgs maxsslconn maxsslrate mode_async security_level skip_self_issued_ca")),
	lines(false, part("tune_buffer_options", "buffers_limit buffers_reserve bufsize bufsize_small pipesize "+
		"rcvbuf_backend rcvbuf_client rcvbuf_frontend rcvbuf_server recv_enough sndbuf_backend sndbuf_client "+
		"sndbuf_frontend sndbuf_server")),
	lines(false, part("tune_options", "applet_zero_copy_forwarding comp_maxlevel disable_fast_forward "+
		"disable_zero_copy_forwarding epoll_mask_events events_max_events_at_once fd_edge_triggered "+
		"glitches_kill_cpu_usage h1_zero_copy_fwd_recv h1_zero_copy_fwd_send h2_be_glitches_threshold "+
		"h2_be_initial_window_size h2_be_max_concurrent_streams h2_be_rxbuf h2_fe_glitches_threshold "+
		"h2_fe_initial_window_size h2_fe_max_concurrent_streams h2_fe_max_total_streams h2_fe_rxbuf "+
		"h2_header_table_size h2_initial_window_size h2_max_concurrent_streams h2_max_frame_size "+
		"h2_zero_copy_fwd_send http_cookielen http_logurilen http_maxhdr idle_pool_shared idletimer "+
		"listener_default_shards listener_multi_queue max_checks_per_thread max_rules_at_once maxaccept "+
		"maxpollevents maxrewrite memory_hot_size notsent_lowat_client notsent_lowat_server pattern_cache_size "+
		"peers_max_updates_at_once pool_high_fd_ratio pool_low_fd_ratio pt_zero_copy_forwarding ring_queues "+
		"runqueue_depth sched_low_latency stick_counters takeover_other_tg_connections")),
	lines(false, part("tune_quic_options", "frontend_conn_tx_buffers_limit frontend_max_idle_timeout "+
		"frontend_max_streams_bidi frontend_max_tx_memory max_frame_loss reorder_ratio retry_threshold socket_owner "+
		"zero_copy_fwd_send")),
	lines(false, part("tune_ssl_options", "cachesize capture_buffer_size ctx_cache_size default_dh_param "+
		"force_private_cache lifetime maxrecord")),
	lines(false, part("tune_vars_options", "global_max_size proc_max_size reqres_max_size sess_max_size txn_max_size")),
	lines(false, part("tune_zlib_options", "memlevel windowsize")))

// part returns the names of parts of a group.
func part(group, names string) string {
	all := strings.Fields(names)
	for i := range all {
		all[i] = group + "." + all[i]
	}
	return strings.Join(all, " ")
}

// fieldsOfFrontend are the fields of a Frontend.
var fieldsOfFrontend = slices.Concat(
	left("the name and the mode belong to the appliance", true, "name mode from id guid metadata description enabled"),
	left("haproxy.http and haproxy.https of the configuration file say where HAProxy listens",
		false, "binds"),
	left("Ingresses and routes say which backend has a request", false, "backend_switching_rule_list default_backend"),
	left("Ingresses name the certificates", false, "ssl_front_use_list"),
	left(noEffect, true, "http-use-htx"),
	left(formats, true, "httplog tcplog"),
	left(formats, false, "clflog httpslog"),
	left("its lines cannot be written: write log-steps to haproxy.base of the configuration file", false, "log_steps"),
	left(always, false, "disabled"),
	left(pages, false, "error_files errorfiles_from_http_errors"),
	left(programs, false, "email_alert"),
	left(logs, false, "log_target_list"),
	left(monitoring, false, "monitor_fail monitor_uri"),
	left(statistic, false, "stats_options"),
	[]Field{{Name: "quic_initial_rule_list", Rules: true, read: noQUICRules}},

	lines(true, "acl_list capture_list filter_list http_after_response_rule_list http_error_rule_list "+
		"http_request_rule_list http_response_rule_list http_restrict_req_hdr_names stick_table tcp_request_rule_list"),
	lines(false, "accept_invalid_http_request accept_unsafe_violations_in_http_request backlog client_fin_timeout "+
		"client_timeout clitcpka clitcpka_cnt clitcpka_idle clitcpka_intvl compression contstats disable_h2_upgrade "+
		"dontlog_normal dontlognull error_log_format errorloc302 errorloc303 forwardfor h1_case_adjust_bogus_client "+
		"http-buffer-request http-drop-response-trailers http_connection_mode http_ignore_probes "+
		"http_keep_alive_timeout http_no_delay http_request_timeout http_use_proxy_header idle_close_on_response "+
		"independent_streams log_format log_format_sd log_separate_errors log_tag logasap maxconn nolinger originalto "+
		"socket_stats splice_auto splice_request splice_response tarpit_timeout tcp_smart_accept tcpka "+
		"unique_id_format unique_id_header"))

// ofFrontends has the kind of a Frontend for each section.
var ofFrontends = map[haproxy.Section]*sectionKind{
	haproxy.HTTPSection: newSectionKind(
		sectionKind{key: "cr-frontend-http", into: haproxy.HTTPSection, guards: true}, fieldsOfFrontend),
	haproxy.HTTPSSection: newSectionKind(
		sectionKind{key: "cr-frontend-https", into: haproxy.HTTPSSection, guards: true}, fieldsOfFrontend),
}

var (
	ofDefaults = newSectionKind(sectionKind{key: "cr-defaults", into: haproxy.DefaultsSection}, fieldsOfDefaults)
	ofGlobal   = newSectionKind(sectionKind{
		key: "cr-global", into: haproxy.GlobalSection,
		// The groups are newer than ingress.v1.haproxy.org, which has one for all that begins with "tune".
		older: []prefix{
			{"", "performance_options."},
			{"", "debug_options."},
			{"", "environment_options."},
			{"", "ssl_options."},
			{"ssl_", "ssl_options."},
			{"lua_", "lua_options."},
			{"httpclient_", "http_client_options."},
			{"tune_ssl_", "tune_ssl_options."},
			{"tune_options.quic_", "tune_quic_options."},
			{"tune_options.vars_", "tune_vars_options."},
			{"tune_options.zlib_", "tune_zlib_options."},
			{"tune_options.ssl_", "tune_ssl_options."},
			{"tune_options.lua_", "tune_lua_options."},
			{"tune_options.", "tune_buffer_options."},
		},
	}, fieldsOfGlobal)
)

// newSectionKind returns a kind with its fields.
func newSectionKind(k sectionKind, fields []Field) *sectionKind {
	k.fields, k.groups = make(map[string]*Field, len(fields)), make(map[string]bool)
	for i := range fields {
		k.fields[fields[i].Name] = &fields[i]
		if group, _, is := strings.Cut(fields[i].Name, "."); is {
			k.groups[group] = true
		}
	}
	return &k
}
