package nginx

// Notes on several keys.
const (
	ofNginx    = "It concerns nginx itself."
	onlyAllows = "It decides what ingress-nginx accepts."
	ownLog     = "HAProxy logs to syslog-server, in the form of log-format."
	ownPaths   = "The key lets the challenges of ACME servers pass. Other paths do not pass."
	headerSize = "The headers of a request may have 15 kB together."
	noTraces   = "It has no effect without `enable-opentelemetry`, which is not served."
	noCountry  = "Addresses have no countries here."
	believes   = "The address of the client is read from this header. Any client can send it: set the key " +
		"only behind a " +
		"proxy that sets the header."
	hidden = "HAProxy passes the header Server of the servers on, which ingress-nginx removes."
	reject = "The line rejects requests with 403. The rules of an Ingress do not override it."
)

// settings are the keys of the ConfigMap of ingress-nginx 1.15.
var settings = []Setting{
	// Keys that mean the same as an annotation
	{Name: "client-body-buffer-size", as: "client-body-buffer-size"},
	{Name: "custom-http-errors", as: "custom-http-errors"},
	{Name: "denylist-source-range", as: "denylist-source-range"},
	{Name: "disable-proxy-intercept-errors", as: "disable-proxy-intercept-errors"},
	{Name: "enable-modsecurity", as: "enable-modsecurity"},
	{Name: "enable-opentelemetry", as: "enable-opentelemetry"},
	{Name: "enable-owasp-modsecurity-crs", as: "enable-owasp-core-rules"},
	{Name: "force-ssl-redirect", as: "force-ssl-redirect"},
	{Name: "limit-rate", as: "limit-rate", usual: "0"},
	{Name: "limit-rate-after", as: "limit-rate-after", usual: "0"},
	{Name: "load-balance", as: "load-balance"},
	{Name: "preserve-trailing-slash", as: "preserve-trailing-slash"},
	{Name: "proxy-body-size", as: "proxy-body-size"},
	{Name: "proxy-buffer-size", as: "proxy-buffer-size"},
	{Name: "proxy-buffering", as: "proxy-buffering"},
	{Name: "proxy-buffers-number", as: "proxy-buffers-number"},
	{Name: "proxy-busy-buffers-size", as: "proxy-busy-buffers-size"},
	{Name: "proxy-connect-timeout", as: "proxy-connect-timeout"},
	{Name: "proxy-cookie-domain", as: "proxy-cookie-domain", usual: "off"},
	{Name: "proxy-cookie-path", as: "proxy-cookie-path", usual: "off"},
	{Name: "proxy-http-version", as: "proxy-http-version"},
	{Name: "proxy-max-temp-file-size", as: "proxy-max-temp-file-size"},
	{Name: "proxy-next-upstream", as: "proxy-next-upstream", usual: "error timeout"},
	{Name: "proxy-next-upstream-timeout", as: "proxy-next-upstream-timeout", usual: "0"},
	{Name: "proxy-next-upstream-tries", as: "proxy-next-upstream-tries"},
	{Name: "proxy-read-timeout", as: "proxy-read-timeout"},
	{Name: "proxy-redirect-from", as: "proxy-redirect-from", usual: "off"},
	{Name: "proxy-redirect-to", as: "proxy-redirect-to", usual: "off"},
	{Name: "proxy-request-buffering", as: "proxy-request-buffering"},
	{Name: "proxy-send-timeout", as: "proxy-send-timeout"},
	{Name: "relative-redirects", as: "relative-redirects"},
	{Name: "service-upstream", as: "service-upstream"},
	{Name: "ssl-redirect", as: "ssl-redirect"},
	{Name: "use-port-in-redirects", as: "use-port-in-redirects"},
	{Name: "whitelist-source-range", as: "whitelist-source-range"},

	// Who may come in
	{
		Name: "block-cidrs", Verdict: Differs, Guard: true, Keys: "frontend-config-snippet", read: blockNetworks,
		Note: reject,
	},
	{
		Name: "block-referers", Verdict: Differs, Guard: true, Keys: "frontend-config-snippet", read: block("Referer"),
		Note: reject + " Regular expressions are those of HAProxy.",
	},
	{
		Name: "block-user-agents", Verdict: Differs, Guard: true, Keys: "frontend-config-snippet",
		read: block("User-Agent"), Note: reject + " Regular expressions are those of HAProxy.",
	},
	{
		Name: "global-auth-url", as: "auth-url", read: globalAuthURL,
		Note: "A Service of the cluster alone, as `http://NAME.NAMESPACE.svc.cluster.local:PORT/PATH`. Its failures " +
			"are answered 503. For `enable-global-auth: false` on an Ingress, auth-opt-out is needed.",
	},
	{Name: "global-auth-method", as: "auth-method", Note: "Of GET, HEAD and POST."},
	{Name: "global-auth-response-headers", as: "auth-response-headers"},
	{Name: "global-auth-signin", as: "auth-signin"},
	{Name: "global-auth-signin-redirect-param", as: "auth-signin-redirect-param"},
	{Name: "global-auth-request-redirect", as: "auth-request-redirect"},
	{Name: "global-auth-cache-key", as: "auth-cache-key"},
	{Name: "global-auth-cache-duration", as: "auth-cache-duration"},
	{Name: "global-auth-always-set-cookie", as: "auth-always-set-cookie"},
	{Name: "global-auth-snippet", Verdict: Lost, Guard: true, Note: neverRead},
	{Name: "no-auth-locations", Verdict: Differs, Keys: "acme", read: acmeAlone, Note: ownPaths},
	{Name: "no-tls-redirect-locations", Verdict: Differs, Keys: "acme", read: acmeAlone, Note: ownPaths},
	{
		Name: "main-snippet, http-snippet, server-snippet, location-snippet, stream-snippet", Verdict: Lost,
		Guard: true, Note: neverRead,
	},
	{Name: "modsecurity-snippet", Verdict: Lost, Guard: true, Note: noWAF + ", and snippets are never read"},
	{Name: "plugins", Verdict: Lost, Guard: true, Note: "plugins in Lua are not run, and may have been guards"},
	{Name: "use-geoip2", Verdict: Lost, form: truth, usual: "false", Note: noCountry},
	{Name: "geoip2-autoreload-in-minutes", Verdict: Nothing, Note: noCountry},
	{
		Name: "limit-conn-zone-variable", Verdict: Lost, Guard: true, usual: "$binary_remote_addr",
		Note: "clients are counted by their addresses",
	},
	{
		Name: "limit-req-status-code", Verdict: Lost, form: count, usual: "503",
		Note: "the answer of limit-rps and limit-rpm is 503, unless the Ingress has rate-limit-status-code",
	},
	{
		Name: "limit-conn-status-code", Verdict: Lost, form: count, usual: "429",
		Note: "the answer of limit-connections is 429",
	},

	// TLS
	{
		Name: "ssl-protocols", Verdict: Differs, Guard: true, Keys: "global-config-snippet", read: protocols,
		Note: "TLS 1.2 and 1.3 are the default here, too. Other versions are a line of global-config-snippet, " +
			"for all " +
			"clusters.",
	},
	{
		Name: "ssl-ciphers", Verdict: Differs, Guard: true, Keys: "global-config-snippet",
		read: bind("ssl-default-bind-ciphers"), Note: "For all clusters. Ciphers of TLS 1.3 are not among them.",
	},
	{
		Name: "ssl-ecdh-curve", Verdict: Differs, Keys: "global-config-snippet", usual: "auto",
		read: bind("ssl-default-bind-curves"), Note: "For all clusters.",
	},
	{
		Name: "ssl-dh-param", Verdict: Lost,
		Note: "the parameters of DHE are those of HAProxy; `ssl-dh-param-file` in haproxy.base names a file",
	},
	{Name: "ssl-reject-handshake", Verdict: Same, Keys: "client-strict-sni", form: truth, read: plainly("")},
	{Name: "ssl-early-data", Verdict: Lost, form: truth, usual: "false", Note: "early data is not accepted"},
	{Name: "ssl-prefer-server-ciphers", Verdict: Nothing, Note: "HAProxy prefers the order of the server."},
	{
		Name: "ssl-session-tickets", Verdict: Lost, form: truth, usual: "false",
		Note: "only the members of a group with `group.share` have tickets",
	},
	{Name: "ssl-session-ticket-key", Verdict: Nothing, Note: "A group makes the keys of its tickets itself."},
	{
		Name: "ssl-session-cache, ssl-session-cache-size, ssl-session-timeout, ssl-buffer-size", Verdict: Nothing,
		Note: "HAProxy keeps sessions in a cache of its own.",
	},
	{Name: "enable-ocsp", Verdict: Lost, form: truth, usual: "false", Note: "no answers of OCSP are stapled"},
	{Name: "hsts", Verdict: Same, Keys: "hsts", form: truth, read: plainly("")},
	{Name: "hsts-max-age", Verdict: Same, Keys: "hsts-max-age", form: count, read: ofHSTS},
	{Name: "hsts-include-subdomains", Verdict: Same, Keys: "hsts-include-subdomains", form: truth, read: ofHSTS},
	{Name: "hsts-preload", Verdict: Same, Keys: "hsts-preload", form: truth, read: ofHSTS},
	{
		Name: "http-redirect-code", Verdict: Same, Keys: "ssl-redirect-code", form: count, usual: "308",
		read: redirectCode,
	},
	{
		Name: "proxy-ssl-location-only", Verdict: Nothing,
		Note: "TLS to the servers is a matter of each Service or Ingress.",
	},

	// The address of the client
	{
		Name: "use-proxy-protocol", Verdict: Differs, Keys: "proxy-protocol", form: truth, usual: "false",
		read: proxyProtocol,
		Note: "The key lists the networks of the proxies. Connections from other addresses have no such header.",
	},
	{
		Name: "proxy-real-ip-cidr", Verdict: Differs, Guard: true, Keys: "proxy-protocol", read: realNetworks,
		Note: "With `use-proxy-protocol`, these are the networks of proxy-protocol. With " +
			"`use-forwarded-headers` it is " +
			"lost: src-ip-header reads the header of every client.",
	},
	{
		Name: "use-forwarded-headers", Verdict: Differs, Keys: "src-ip-header, forwarded-headers", form: truth,
		usual: "false", read: forwarded, Note: believes,
	},
	{
		Name: "enable-real-ip", Verdict: Differs, Keys: "src-ip-header", form: truth, usual: "false", read: realIP,
		Note: believes,
	},
	{
		Name: "forwarded-for-header", Verdict: Differs, Keys: "src-ip-header", usual: "X-Forwarded-For",
		Note: "It has an effect only with `use-forwarded-headers` or `enable-real-ip`.",
	},
	{
		Name: "compute-full-forwarded-for", Verdict: Nothing,
		Note: "With `use-forwarded-headers`, X-Forwarded-For keeps what the client sent.",
	},
	{
		Name: "forwarded-host-header", Verdict: Lost, usual: "X-Forwarded-Host",
		Note: "the host of a request is the one in its header Host",
	},
	{Name: "forwarded-for-proxy-protocol-header", Verdict: Nothing, Note: ofNginx},
	{
		Name: "proxy-protocol-header-timeout", Verdict: Nothing,
		Note: "The timeouts of HAProxy apply.",
	},

	// Headers
	{
		Name: "proxy-set-headers", Verdict: Differs, Keys: "request-set-header",
		Note: "The entries of that ConfigMap are lines of request-set-header. Variables of nginx are samples: " +
			"`%[...]`.",
	},
	{
		Name: "add-headers", Verdict: Differs, Keys: "response-set-header",
		Note: "The entries of that ConfigMap are lines of response-set-header.",
	},
	{Name: "hide-headers", Verdict: Differs, Keys: "response-del-headers", read: hide, Note: "A name on each line."},
	{
		Name: "server-tokens", Verdict: Differs, Keys: "response-del-headers", form: truth, read: hideServer,
		Note: hidden,
	},
	{
		Name: "allow-backend-server-header", Verdict: Differs, Keys: "response-del-headers", form: truth,
		usual: "true", read: hideServer, Note: hidden,
	},
	{
		Name: "proxy-add-original-uri-header", Verdict: Same, Keys: "request-set-header", form: truth, usual: "false",
		read: setHeader("X-Original-Uri %[pathq]"),
	},
	{
		Name: "generate-request-id", Verdict: Differs, form: truth, usual: "true",
		Note: "A request without X-Request-ID gets one, unless forwarded-headers is false.",
	},
	{
		Name: "enable-underscores-in-headers", Verdict: Nothing,
		Note: "Headers with `_` in their names reach the servers.",
	},
	{Name: "ignore-invalid-headers", Verdict: Nothing, Note: "HAProxy answers 400 to an invalid header."},
	{Name: "large-client-header-buffers, client-header-buffer-size", Verdict: Nothing, Note: headerSize},
	{Name: "http2-max-field-size, http2-max-header-size", Verdict: Nothing, Note: headerSize},
	{Name: "default-type", Verdict: Nothing, Note: "HAProxy adds no Content-Type."},
	{Name: "global-allowed-response-headers", Verdict: Nothing, Note: onlyAllows},

	// Connections
	{
		Name: "keep-alive", Verdict: Same, Keys: "timeout-http-keep-alive", form: count, read: plainly("s"),
	},
	{
		Name: "client-header-timeout", Verdict: Same, Keys: "timeout-http-request", form: count, read: plainly("s"),
	},
	{Name: "client-body-timeout", Verdict: Same, Keys: "timeout-client", form: count, read: plainly("s")},
	{
		Name: "use-http2", Verdict: Same, Keys: "tls-alpn", form: truth, usual: "true", read: withoutHTTP2,
	},
	{
		Name: "http2-max-concurrent-streams", Verdict: Differs, Keys: "global-config-snippet", form: count,
		read: bind("tune.h2.max-concurrent-streams"), Note: "For all clusters. The default is 100.",
	},
	{
		Name: "retry-non-idempotent", Verdict: Lost, form: truth, usual: "false",
		Note: "only a request that no server has seen is sent again",
	},
	{
		Name: "proxy-stream-timeout", Verdict: Differs, Keys: "timeout-tunnel",
		Note: "The key is also for WebSockets and ssl-passthrough.",
	},
	{
		Name:    "proxy-stream-next-upstream, proxy-stream-next-upstream-timeout, proxy-stream-next-upstream-tries",
		Verdict: Nothing, Note: "If a server does not take a connection, another server gets it.",
	},
	{Name: "proxy-stream-responses", Verdict: Nothing, Note: "UDP is not served."},
	{
		Name: "bind-address, disable-ipv6", Verdict: Differs,
		Note: "The configuration file lists the addresses that are served (haproxy.addresses).",
	},
	{Name: "grpc-buffer-size-kb", Verdict: Nothing, Note: streams + "."},

	// Compression
	{
		Name: "use-gzip", Verdict: Differs, Keys: "backend-config-snippet", form: truth, usual: "false", read: gzip,
		Note: "An Ingress with a backend-config-snippet of its own has to repeat the lines.",
	},
	{
		Name: "gzip-types", Verdict: Differs, Keys: "backend-config-snippet",
		Note: "With `use-gzip`, these are the types of the line `compression type`.",
	},
	{
		Name: "gzip-level, gzip-min-length, gzip-disable", Verdict: Nothing,
		Note: "HAProxy has one level for all answers (`tune.comp.maxlevel`).",
	},
	{
		Name: "enable-brotli", Verdict: Lost, form: truth, usual: "false",
		Note: "HAProxy has no Brotli; gzip is for all browsers",
	},
	{Name: "brotli-level, brotli-min-length, brotli-types", Verdict: Nothing, Note: "HAProxy has no Brotli."},

	// Logs and traces
	{Name: "log-format-upstream", Verdict: Lost, Keys: "log-format", Note: ownLog},
	{Name: "log-format-stream", Verdict: Lost, Keys: "log-format-tcp", Note: ownLog},
	{Name: "log-format-escape-none, log-format-escape-json", Verdict: Nothing, Note: ownLog},
	{
		Name:    "disable-access-log, disable-http-access-log, disable-stream-access-log",
		Verdict: Nothing, Keys: "syslog-server", Note: "Requests are logged only where syslog-server is set.",
	},
	{Name: "skip-access-log-urls", Verdict: Lost, Note: "each request is logged where syslog-server is set"},
	{
		Name: "access-log-path, access-log-params, http-access-log-path, stream-access-log-path, " +
			"enable-access-log-for-default-backend, enable-auth-access-log",
		Verdict: Nothing, Note: ownLog,
	},
	{
		Name: "enable-syslog", Verdict: Differs, Keys: "syslog-server", form: truth, usual: "false", read: syslog,
		Note: "syslog-server takes an IP address. Its format is rfc5424 unless `format` names another.",
	},
	{
		Name: "syslog-host, syslog-port", Verdict: Differs, Keys: "syslog-server",
		Note: "It has an effect only with `enable-syslog`.",
	},
	{Name: "error-log-path, error-log-level, debug-connections", Verdict: Nothing, Note: ofNginx},
	{
		Name: "opentelemetry-operation-name, opentelemetry-trust-incoming-span, opentelemetry-config, " +
			"otlp-collector-host, otlp-collector-port, otel-service-name, otel-sampler, otel-sampler-ratio, " +
			"otel-sampler-parent-based, otel-max-queuesize, otel-schedule-delay-millis, otel-max-export-batch-size",
		Verdict: Nothing, Note: noTraces,
	},

	// What ingress-nginx accepts, and how it runs
	{
		Name: "strict-validate-path-type, allow-snippet-annotations, annotations-risk-level, " +
			"annotation-value-word-blocklist, allow-cross-namespace-resources",
		Verdict: Nothing, Note: onlyAllows,
	},
	{
		Name: "nginx-status-ipv4-whitelist, nginx-status-ipv6-whitelist", Verdict: Nothing,
		Note: "There is no page /nginx_status.",
	},
	{
		Name: "worker-processes, worker-cpu-affinity, worker-shutdown-timeout, max-worker-connections, " +
			"max-worker-open-files, enable-multi-accept, enable-serial-reloads, enable-aio-write, reuse-port, " +
			"disable-ipv6-dns, keep-alive-requests, http2-max-requests, upstream-keepalive-connections, " +
			"upstream-keepalive-requests, upstream-keepalive-time, upstream-keepalive-timeout, " +
			"proxy-headers-hash-max-size, proxy-headers-hash-bucket-size, server-name-hash-max-size, " +
			"server-name-hash-bucket-size, map-hash-bucket-size, variables-hash-bucket-size, " +
			"variables-hash-max-size, lua-shared-dicts",
		Verdict: Nothing, Note: ofNginx,
	},
}
