package main

import (
	"context"
	"fmt"
	"strings"

	"sallyport/test/rig"
)

// kicSources are the folders of HAProxy's own controller 3.2 that hold the examples whose constructs these cases have,
// by how the sources of facts begin.
var kicSources = map[string]string{
	"kic-docs/": "documentation",
	"kic-e2e/":  "deploy/tests/e2e",
}

// kicObjects have the constructs of the examples of HAProxy's own controller: TCPs whose binds share a port, name
// further Services, and choose one by the name in a TLS handshake, and resources with fields that are rarely set.
const kicObjects = `
---
apiVersion: ingress.v3.haproxy.org/v3
kind: TCP
metadata: {name: families, annotations: {ingress.class: haproxy}}
spec:
- name: both
  frontend:
    name: fe-both
    tcplog: true
    log_format: "%{+Q}o %ci %t"
    binds: {four: {name: four, port: 15451}, six: {name: six, address: "::", port: 15451, v4v6: true}}
  service: {name: scaled, port: 80}
  services: [{name: app, port: 80}, {name: secure, port: 80}]
- name: mixed
  frontend:
    name: fe-mixed
    binds:
      four: {name: four, port: 15452, ssl: true, ssl_certificate: certificate}
      six: {name: six, address: "::", port: 15452, v4v6: true}
  service: {name: scaled, port: 80}
- name: halves
  frontend:
    name: fe-halves
    binds: {four: {name: four, port: 15453}, proxied: {name: proxied, address: "::", port: 15453, accept_proxy: true}}
  service: {name: scaled, port: 80}
---
apiVersion: ingress.v1.haproxy.org/v1
kind: TCP
metadata: {name: switching}
spec:
- name: by-name
  frontend:
    name: fe-by-name
    binds: [{name: four, address: 0.0.0.0, port: 15454}]
    acl_list: [{acl_name: first, criterion: req_ssl_sni, value: -i one.test, index: 0}]
    backend_switching_rule_list: [{cond: if, cond_test: first, index: 0, name: default_svc_app_http}]
    tcp_request_rule_list:
    - {type: inspect-delay, timeout: 3000, index: 0}
    - {type: content, action: accept, cond: if, cond_test: "{ req_ssl_hello_type 1 }", index: 1}
    capture_list: [{type: request, length: 64}]
    filter_list: [{type: compression}]
  service: {name: scaled, port: 80}
  services: [{name: app, port: 80}]
---
apiVersion: ingress.v1.haproxy.org/v1
kind: TCP
metadata: {name: strange, annotations: {ingress.class: elsewhere}}
spec:
- name: strange
  frontend: {name: fe-strange, binds: [{name: four, port: 15455}]}
  service: {name: scaled, port: 80}
---
apiVersion: ingress.v1.haproxy.org/v1
kind: TCP
metadata: {name: taken}
spec:
- name: second
  frontend: {name: fe-second, binds: [{name: four, port: 15451, accept_proxy: true}]}
  service: {name: app, port: 80}
---
apiVersion: ingress.v3.haproxy.org/v3
kind: ValidationRules
metadata: {name: house}
spec:
  prefix: house.test
  validation_rules:
    wait: {section: all, type: duration, rule: value < duration('1m'), template: "timeout server {{.}}"}
---
apiVersion: ingress.v3.haproxy.org/v3
kind: Frontend
metadata: {name: examined}
spec:
  name: other
  accept_invalid_http_request: enabled
  binds: {own: {name: own, address: 127.0.0.1, port: 15456}}
  compression: {algo-req: identity}
  acl_list: [{acl_name: pictures, criterion: path, value: -i -m beg /pictures/}]
---
apiVersion: ingress.v3.haproxy.org/v3
kind: Global
metadata: {name: whole}
spec:
  daemon: true
  cpu_maps: [{process: "1", cpu_set: 1/1}]
  debug_options: {anonkey: 0}
  description: every group of fields
  device_atlas_options: {}
  environment_options: {presetenv: [{name: A, value: b}], setenv: [{name: C, value: d}]}
  grace: 0
  group: root
  user: root
  h1_case_adjust: [{from: x-one, to: X-ONE}]
  hard_stop_after: 0
  http_client_options: {resolvers_disabled: enabled, ssl_verify: none, timeout_connect: 0}
  log_send_hostname: {enabled: enabled, param: edge}
  log_target_list: [{address: 192.0.2.7, facility: mail, format: rfc3164, level: emerg, minlevel: debug}]
  lua_options: {prepend_path: [{path: there, type: cpath}]}
  mworker_max_reloads: 0
  numa_cpu_mapping: enabled
  ocsp_update_options: {maxdelay: 10, mindelay: 5}
  performance_options: {max_spread_checks: 0, maxconn: 1500, profiling_tasks: auto, server_state_base: there}
  runtime_apis: [{address: "0.0.0.0:15457", level: admin, thread: all}]
  set_var: [{name: proc.one, expr: int(1)}]
  set_var_fmt: [{name: proc.two, format: two}]
  setcap: cap_net_bind_service
  ssl_options: {mode_async: enabled, server_verify: none}
  stats_maxconn: 100
  stats_timeout: 6000
  tune_buffer_options: {buffers_limit: 0, buffers_reserve: 3, rcvbuf_client: 0, sndbuf_server: 0}
  tune_lua_options: {burst_timeout: 0, log_loggers: disabled, task_timeout: 0}
  tune_options: {http_maxhdr: 100, idle_pool_shared: disabled, listener_default_shards: by-process, memory_hot_size: 7}
  tune_quic_options: {frontend_max_streams_bidi: 8, max_frame_loss: 10, retry_threshold: 10, socket_owner: connection}
  tune_ssl_options: {cachesize: 0, keylog: disabled, lifetime: 0, maxrecord: 0}
  tune_vars_options: {global_max_size: 0, txn_max_size: 0}
  wurfl_options: {}
`

// kicCases returns the cases with the constructs of the examples of HAProxy's own controller. Each is a fact with the
// folder or page of the example as its source.
func kicCases() []conformity {
	const hello = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
	at := func(port string) order { return order{Address: "192.168.50.21:" + port, Raw: hello} }
	over := at("15452")
	over.TLS = true
	here := func(name, from string) fact { return see(name, from, "GET /", "200") }
	of := func(name string, c conformity, facts ...fact) conformity {
		c.name, c.facts = "kic: "+name, facts
		return c
	}
	return []conformity{
		of("TCP", conformity{},
			here("one port by two binds, and further Services without rules", "kic-e2e/crd-tcp").then(at("15451").hears("HTTP/1.1 200 ")),
			here("a port of two TCPs is that of the older one", "kic-docs/custom-resource-tcp.md").then(at("15451").hears("HTTP/1.1 200 ")),
			here("a port with TLS in one of its binds has TLS", "kic-docs/custom-resource-tcp.md").then(over.hears("HTTP/1.1 200 ")),
			here("a port whose binds differ in PROXY is closed", "kic-e2e/crd-tcp").then(at("15453").refused()),
			here("a Service by the name in the handshake is not chosen", "kic-e2e/crd-tcp").then(at("15454").refused()),
			here("a TCP of another class opens nothing", "kic-e2e/crd-tcp").then(at("15455").refused())),
		of("Backend", conformity{backend: "{name: mine, abortonclose: enabled, accept_invalid_http_response: enabled, " +
			"acl_list: [{acl_name: first, criterion: req_ssl_sni, value: -i one.test}], default_server: {check: enabled}}"},
			here("a condition that no rule has", "kic-e2e/https-runtime")),
		of("Backend of the older group", conformity{
			older: true, backend: "{config: {mode: http, name: mine, balance: {algorithm: leastconn}, abortonclose: disabled, " +
				"default_server: {verify: none, resolve-prefer: ipv4, check-sni: one.test, sni: str(one.test)}}}",
		}, here("names for TLS that is not spoken", "kic-docs/custom-resources.md")),
		of("Backend with an annotation without a prefix", conformity{service: []string{"bare cr-backend: none"}},
			see("a Backend that is not there", "kic-e2e/crd-backend", "GET /", "503")),
		of("Frontend", conformity{config: []string{"cr-frontend-http: default/examined"}},
			see("conditions alone, and compression of requests", "kic-e2e/crd-frontend", "GET /pictures/a", "200",
				"url /pictures/a")),
		of("Frontend before TLS passthrough", conformity{config: []string{"cr-frontend-ssl: default/examined:prepend"}},
			see("no client is served without it", "kic-e2e/crd-frontend", "GET /", "503")),
		of("ValidationRules", conformity{service: []string{"backend.house.test/wait: 1s"}},
			here("they are told", "kic-docs/annotations-custom.md").then(told("ValidationRules", "house", "not served")),
			here("an annotation that they define is told", "kic-docs/annotations-custom.md").then(
				func(ctx context.Context, s *testbed) error {
					return told("Service", s.name, "backend.house.test/wait")(ctx, s)
				})),
		of("Global", conformity{config: []string{"cr-global: whole"}, live: true},
			here("every group of fields", "kic-e2e/crd")),
	}
}

// told checks that an Event of an object has the words.
func told(kind, name, words string) check {
	return func(ctx context.Context, s *testbed) error {
		return rig.Eventually(ctx, words, func() error {
			got, err := s.Kubectl(ctx, "get", "events", "-o", "jsonpath={.items[*].message}", "--field-selector",
				"involvedObject.kind="+kind+",involvedObject.name="+name)
			if err == nil && !strings.Contains(got, words) {
				err = fmt.Errorf("want %q told of %s %s, got %q", words, kind, name, got)
			}
			return err
		})
	}
}
