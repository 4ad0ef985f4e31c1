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
