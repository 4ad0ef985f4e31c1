package main

// tcps are TCPs of HAProxy's own controller, of both API groups.
const tcps = `
---
apiVersion: ingress.v3.haproxy.org/v3
kind: TCP
metadata: {name: newer}
spec:
- name: plain
  frontend: {name: fe-plain, mode: tcp, tcplog: true, binds: {v4: {name: v4, address: "0.0.0.0", port: 15443}}}
  service: {name: scaled, port: 80}
- name: guarded
  frontend:
    name: fe-guarded
    binds: {v4: {name: v4, port: 15445}}
    tcp_request_rule_list: [{type: connection, action: reject}]
  service: {name: scaled, port: 80}
---
apiVersion: ingress.v1.haproxy.org/v1
kind: TCP
metadata: {name: older, annotations: {ingress.class: haproxy}}
spec:
- name: secure
  frontend: {name: fe-secure, binds: [{name: v4, port: 15444, ssl: true}]}
  service: {name: scaled, port: 80}
`

// sections are Globals and Defaults of HAProxy's own controller, of both API groups. The older ones are the
// examples of its manual (documentation/custom-resources.md), in ingress.v1.haproxy.org.
const sections = `
---
apiVersion: ingress.v3.haproxy.org/v3
kind: Defaults
metadata: {name: slow}
spec: {server_timeout: 500}
---
apiVersion: ingress.v3.haproxy.org/v3
kind: Defaults
metadata: {name: lines}
spec:
  compression: {algorithms: [gzip], types: [application/json]}
  forwardfor: {enabled: enabled, header: X-Client}
  log_format: "%ci lines %HU"
  http_reuse: sometimes
---
apiVersion: ingress.v3.haproxy.org/v3
kind: Defaults
metadata: {name: ours}
spec:
  mode: tcp
  monitor_uri: /up
  default_backend: none
  http_request_rule_list: [{type: deny}]
  external_check: enabled
  log_target_list: [{address: 192.0.2.1, facility: local0}]
---
apiVersion: ingress.v1.haproxy.org/v1
kind: Defaults
metadata: {name: older}
spec:
  config:
    log_format: "'%ci:%cp [%tr] %ft %b/%s %TR/%Tw/%Tc/%Tr/%Ta %ST %B %CC %CS %tsc %ac/%fc/%bc/%sc/%rc %sq/%bq %hr %hs \"%HM %[var(txn.base)] older %HV\"'"
    redispatch: {enabled: enabled, interval: 0}
    dontlognull: enabled
    http_connection_mode: http-keep-alive
    http_request_timeout: 5000
    connect_timeout: 5000
    client_timeout: 50000
    queue_timeout: 5000
    server_timeout: 50000
    tunnel_timeout: 3600000
    http_keep_alive_timeout: 60000
---
apiVersion: ingress.v3.haproxy.org/v3
kind: Frontend
metadata: {name: rules}
spec:
  acl_list: [{acl_name: own, criterion: path_beg, value: /own}]
  http_request_rule_list:
  - {type: deny, deny_status: 403, cond: if, cond_test: own}
  - {type: set-header, hdr_name: X-Scheme, hdr_format: "%[ssl_fc]"}
  http_response_rule_list: [{type: set-header, hdr_name: X-Answer, hdr_format: frontend}]
  log_format: "'%ci frontend %b %HU'"
  compression: {algorithms: [gzip], types: [application/json]}
  binds: {v4: {name: v4, port: 31080}}
  monitor_uri: /up
  maxconn: 1000
---
apiVersion: ingress.v3.haproxy.org/v3
kind: Frontend
metadata: {name: refused}
spec:
  http_request_rule_list: [{type: lua, lua_action: none}]
---
apiVersion: ingress.v3.haproxy.org/v3
kind: Global
metadata: {name: modern}
spec:
  ssl_options: {default_bind_options: ssl-min-ver TLSv1.3}
  tune_options: {maxaccept: 50, fd_edge_triggered: sometimes, xyz: 1}
  performance_options: {maxconn: 2000}
  nbthread: 1000
---
apiVersion: ingress.v3.haproxy.org/v3
kind: Global
metadata: {name: ours}
spec:
  user: nobody
  chroot: /none
  pidfile: /none
  insecure_fork_wanted: true
  environment_options: {setenv: [{name: A, value: b}]}
  lua_options: {loads: [{file: /none.lua}]}
  set_var: [{name: proc.gen, expr: int(1)}]
  runtime_apis: [{address: "0.0.0.0:31024"}]
---
apiVersion: ingress.v1.haproxy.org/v1
kind: Global
metadata: {name: older}
spec:
  config:
    maxconn: 1000
    stats_timeout: 36000
    tune_ssl_default_dh_param: 2048
    ssl_default_bind_options: "no-sslv3 no-tls-tickets no-tlsv10"
    ssl_default_bind_ciphers: ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384
    hard_stop_after: 30000
    server_state_base: /tmp/haproxy-ingress/state
    runtime_apis: [{address: "0.0.0.0:31024"}]
`

// resourceCases returns the cases of custom resources of HAProxy's own controller. What they want was read in the
// sources of version 3.2.11 (pkg/service, pkg/annotations) and of client-native 6.2.
func resourceCases() []conformity {
	get := func(want ...string) []ask {
		return []ask{{request: "GET /", want: append([]string{"200"}, want...)}}
	}
	const own = "acl_name: own, criterion: path_beg, value: /own"
	return []conformity{
		{
			name: "cr-backend, rules with conditions",
			backend: "{acl_list: [{" + own + "}], http_request_rule_list: [{type: deny, deny_status: 403, cond: if, " +
				`cond_test: own}, {type: set-header, hdr_name: X-Own, hdr_format: "%[src]"}], ` +
				"http_response_rule_list: [{type: set-header, hdr_name: X-Answer, hdr_format: own}]}",
			asks: []ask{
				{request: "GET /own/a", want: []string{"403"}},
				{request: "GET /", want: []string{"200", "request X-Own: 192.168.50.10", "response X-Answer: own"}},
			},
		},
		{
			name: "cr-backend of the older group", older: true,
			backend: "{config: {name: mine, cookie: {name: SRV, dynamic: true, indirect: true, nocache: true, type: insert}}, " +
				"acls: [{" + own + "}], http-requests: [{type: deny, deny_status: 401, cond: if, cond_test: own}]}",
			asks: []ask{
				{request: "GET /own/a", want: []string{"401"}},
				{request: "GET /", want: []string{"200", "response Set-Cookie: SRV=~"}},
			},
		},
		{
			name: "cr-backend goes before every annotation", backend: "{server_timeout: 500}",
			service: []string{"timeout-server: 1m"}, ingress: []string{"timeout-server: 2m", "request-set-header: X-A b"},
			asks:  get("request X-A: b"),
			check: hears(httpAddress, "GET /slow?d=1m&every=1m HTTP/1.1\r\nHost: HOST\r\n\r\n", "HTTP/1.1 200 "),
		},
		{
			name:    "cr-backend, TLS and HTTP/2 to the servers",
			backend: "{default_server: {ssl: enabled, verify: none, alpn: h2}}", to: "secure",
			asks: get("tls true", "proto HTTP/2.0"),
		},
		{
			name:    "cr-backend, another header for the client's address",
			backend: "{forwardfor: {enabled: enabled, header: X-Client}}",
			asks:    get("request X-Client: 192.168.50.10", "request X-Forwarded-For: (none)"),
		},
		{
			name:    "cr-backend, compression",
			backend: "{compression: {algorithms: [gzip], types: [application/json]}}", asks: []ask{
				{
					request: "GET /", headers: []string{"Accept-Encoding: gzip"}, curl: []string{"--raw"},
					want: []string{"200", "response Content-Encoding: gzip"},
				},
				{request: "GET /", want: []string{"200", "response Content-Encoding: (none)"}},
			},
		},
		{
			name: "cr-backend, a check with a Host that the servers fail",
			backend: "{adv_check: httpchk, httpchk_params: {method: GET, uri: /, version: HTTP/1.1, host: a.test}, " +
				`http_check_list: [{type: expect, match: status, pattern: "418"}]}`,
			asks: []ask{{request: "GET /", want: []string{"503"}}},
		},
		{
			name: "cr-backend, a check with a Host that the servers pass",
			backend: "{adv_check: httpchk, httpchk_params: {method: GET, uri: /, version: HTTP/1.1, host: a.test}, " +
				`http_check_list: [{type: expect, match: status, pattern: "200"}]}`,
			asks: get(),
		},
		{
			name: "cr-backend with a field that nobody knows", backend: "{shield: true}",
			asks: []ask{{request: "GET /", want: []string{"503"}}},
		},
		{
			name: "cr-backend that HAProxy refuses", backend: "{http_request_rule_list: [{type: lua, lua_action: none}]}",
			asks: []ask{{request: "GET /", want: []string{"503"}}},
		},
		{
			name: "cr-backend that is not there", service: []string{"cr-backend: none"},
			asks: []ask{{request: "GET /", want: []string{"503"}}},
		},
		{
			name:    "cr-backend, what the appliance keeps",
			backend: "{name: mine, mode: tcp, source: {address: 192.0.2.1}, servers: {other: {address: 192.0.2.1, port: 80}}}",
			asks:    get(),
		},
		{
			name:   "cr-defaults, a timeout before the one of the ConfigMap",
			config: []string{"cr-defaults: slow", "timeout-server: 1m"}, asks: get(),
			check: hears(httpAddress, "GET /slow?d=1m&every=1m HTTP/1.1\r\nHost: HOST\r\n\r\n", "HTTP/1.1 200 "),
		},
		{
			name: "cr-defaults, an annotation before it", config: []string{"cr-defaults: default/slow"},
			service: []string{"timeout-server: 1m"},
			asks:    []ask{{request: "GET /slow?d=2s&every=1s", curl: []string{"--raw"}, want: []string{"200"}}},
		},
		{
			name: "cr-defaults, lines, and one that is wrong", config: []string{"cr-defaults: lines"}, asks: []ask{
				{
					request: "GET /", headers: []string{"Accept-Encoding: gzip"}, curl: []string{"--raw"},
					want: []string{"200", "response Content-Encoding: gzip"},
				},
				{request: "GET /", want: []string{"200", "request X-Client: 192.168.50.10"}},
			},
			check: logs(httpAddress, "GET /lines-HOST HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n", "/lines-HOST",
				"192.168.50.10 lines /lines-HOST"),
		},
		{
			name: "cr-defaults of the older group", config: []string{"cr-defaults: older"}, asks: get(),
			check: logs(httpAddress, "GET /older-HOST HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n", "older HTTP/1.1",
				"\"GET HOST/older-HOST older HTTP/1.1\"", " http "),
		},
		{
			name: "cr-defaults, what the appliance keeps", config: []string{"cr-defaults: ours"}, live: true,
			asks: []ask{{request: "GET /up", want: []string{"200", "url /up"}}},
		},
		{
			name: "cr-defaults that is not there", config: []string{"cr-defaults: none"}, live: true, asks: get(),
		},
		{
			name: "cr-frontend-http", secure: true, config: []string{"cr-frontend-http: rules", "ssl-redirect: false"},
			asks: []ask{
				{request: "GET /own/a", want: []string{"403"}},
				{request: "GET /up", want: []string{"200", "url /up", "request X-Scheme: 0", "response X-Answer: frontend"}},
				{request: "https GET /own/a", want: []string{"200", "request X-Scheme: (none)"}},
			},
			check: logs(httpAddress, "GET /front-HOST HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n", "/front-HOST",
				"192.168.50.10 frontend default_"),
		},
		{
			name: "cr-frontend-https", secure: true, config: []string{"cr-frontend-https: default/rules", "ssl-redirect: false"},
			asks: []ask{
				{request: "https GET /own/a", want: []string{"403"}},
				{request: "https GET /", want: []string{"200", "request X-Scheme: 1", "response X-Answer: frontend"}},
				{request: "GET /own/a", want: []string{"200", "request X-Scheme: (none)"}},
			},
		},
		{
			name: "cr-frontend-http that HAProxy refuses", secure: true,
			config: []string{"cr-frontend-http: refused", "ssl-redirect: false"},
			asks:   []ask{{request: "GET /", want: []string{"503"}}, {request: "https GET /", want: []string{"200"}}},
		},
		{
			name: "cr-frontend-https that is not there", secure: true,
			config: []string{"cr-frontend-https: none", "ssl-redirect: false"},
			asks:   []ask{{request: "https GET /", want: []string{"503"}}, {request: "GET /", want: []string{"200"}}},
		},
		{
			name: "cr-frontend-stats", config: []string{"cr-frontend-stats: none"}, live: true, asks: get(),
		},
		{
			name: "cr-global, versions of TLS, and fields that are wrong", secure: true,
			config: []string{"cr-global: default/modern"}, asks: []ask{
				{request: "https GET /", want: []string{"200"}},
				{request: "https GET /", curl: []string{"--tls-max", "1.2"}, want: []string{"000"}},
			},
		},
		{
			name: "cr-global of the older group", secure: true, config: []string{"cr-global: older"}, asks: []ask{
				{
					request: "https GET /", curl: []string{"--tls-max", "1.2", "--ciphers", "ECDHE-ECDSA-AES256-GCM-SHA384"},
					want: []string{"200"},
				},
				{
					request: "https GET /", curl: []string{"--tls-max", "1.2", "--ciphers", "ECDHE-ECDSA-AES128-GCM-SHA256"},
					want: []string{"000"},
				},
			},
		},
		{
			name: "cr-global, what the appliance keeps", config: []string{"cr-global: ours"}, live: true, asks: get(),
		},
		{
			name: "TCP, a port with a Service", asks: get(),
			check: hears("192.168.50.21:15443", "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 200 "),
		},
		{
			name: "TCP of the older group, with TLS", asks: get(),
			check: order{
				Address: "192.168.50.21:15444", TLS: true, Raw: "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
			}.hears("HTTP/1.1 200 "),
		},
		{
			name: "TCP with rules that nothing here does", asks: get(),
			check: order{Address: "192.168.50.21:15445", Raw: "GET / HTTP/1.1\r\nHost: x\r\n\r\n"}.refused(),
		},
	}
}
