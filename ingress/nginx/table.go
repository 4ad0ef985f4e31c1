package nginx

// aliases are older names of annotations.
var aliases = map[string]string{
	"whitelist-source-range": "allowlist-source-range",
	"limit-whitelist":        "limit-allowlist",
}

// snippets are the annotations with text for nginx.
var snippets = []string{
	"auth-snippet", "configuration-snippet", "modsecurity-snippet", "server-snippet", "stream-snippet",
}

// Everywhere lists the differences that each Ingress has, with or without annotations.
var Everywhere = []string{
	"The ConfigMap of ingress-nginx is not read: its keys are to be written in the ConfigMap of " +
		"`clusters[].ingress.configMap`. `sallyport migrate` says what to write for each.",
	"Strict-Transport-Security is not sent unless that ConfigMap has `hsts`. ingress-nginx sends it with each answer " +
		"over HTTPS.",
	"Headers with `_` in their names reach the servers, unless some servers would take them for one of the headers " +
		"that are set here. ingress-nginx removes them all.",
	"A path of an Ingress below `/.well-known/acme-challenge` is redirected to HTTPS as any other. ingress-nginx does " +
		"not redirect it.",
	"A host belongs to one namespace. With ingress-nginx every namespace can add paths to a host: " +
		"`clusters[].ingress.hosts` and `trust` allow that.",
	"The path of a request is compared as the client sent it. ingress-nginx decodes `%61`, and resolves `//` and " +
		"`/../`.",
}

const (
	neverRead = "snippets are never read, and may have been a guard. Write what it does as keys: " +
		"request-set-header, response-set-header, allow-list, deny-list, request-redirect"
	noWAF        = "HAProxy has no web application firewall"
	noCache      = "each request is asked about"
	streams      = "HAProxy does not keep whole requests and answers"
	noExpression = "Regular expressions (`~`) are not served."
	noTracing    = "HAProxy sends no traces; trace headers of clients pass"
)

// rows are the annotations of ingress-nginx 1.15.
var rows = []*Row{
	// Paths, rewriting, redirects
	{
		Name: "rewrite-target", Verdict: Differs, Keys: "path-rewrite, sallyport.dev/path-rewrite-first", read: rewrite,
		Note: "All paths of the host are regular expressions, as with `use-regex`. A target with a scheme, or with a " +
			"query, is not served.",
	},
	{
		Name: "use-regex", Verdict: Differs, Keys: "sallyport.dev/path-type", read: useRegex,
		Note: "All paths that Ingresses of this class in the namespace have for the hosts of the Ingress are regular " +
			"expressions, in any case. Look-ahead, back-references and groups that are repeated by a number are not " +
			"allowed.",
	},
	{
		Name: "app-root", Verdict: Differs, Keys: "sallyport.dev/app-root", read: as("sallyport.dev/app-root"),
		Note: "Only if `/` of the host leads to this Ingress. The Location is a path alone, without scheme and host.",
	},
	{
		Name: "ssl-redirect", Verdict: Differs, Keys: "ssl-redirect", read: sslRedirect,
		Note: "`true` is the default: the redirect is for hosts that this Ingress has a certificate for.",
	},
	{Name: "force-ssl-redirect", Verdict: Same, Keys: "ssl-redirect", read: forceRedirect},
	{Name: "preserve-trailing-slash", Verdict: Nothing, Note: "A redirect to HTTPS keeps the whole path."},
	{
		Name: "use-port-in-redirects", Verdict: Nothing,
		Note: "A redirect to HTTPS has the port of HTTPS; ssl-redirect-port sets another one.",
	},
	{
		Name: "permanent-redirect", Verdict: Same, Keys: "sallyport.dev/redirect-to, request-redirect-code",
		read: permanentRedirect,
	},
	{
		Name: "permanent-redirect-code", With: "permanent-redirect", Verdict: Differs, Keys: "request-redirect-code",
		Note: "Of 301, 302, 303, 307 and 308. Others from 300 to 308 are read as 301.",
	},
	{
		Name: "temporal-redirect", Verdict: Same, Keys: "sallyport.dev/redirect-to, request-redirect-code",
		read: temporalRedirect,
	},
	{
		Name: "temporal-redirect-code", With: "temporal-redirect", Verdict: Differs, Keys: "request-redirect-code",
		Note: "Of 301, 302, 303 and 307. Others from 300 to 307 are read as 302.",
	},
	{
		Name: "from-to-www-redirect", Verdict: Same, Keys: "sallyport.dev/from-to-www-redirect", read: wwwRedirect,
		Note: "A name belongs to one namespace, as a host does.",
	},
	{Name: "relative-redirects", Verdict: Nothing, Note: "HAProxy sends none of the redirects that this concerns."},
	{
		Name: "server-alias", Verdict: Differs, Keys: "sallyport.dev/server-alias", read: serverAlias,
		Note: "More names of the first host of the Ingress alone. Regular expressions (`~`) are not served.",
	},
	{
		Name: "x-forwarded-prefix", With: "rewrite-target", Verdict: Same,
		Keys: "request-set-header", read: forwardedPrefix,
	},
	{Name: "upstream-vhost", Verdict: Same, Keys: "set-host", read: upstreamHost},
	{
		Name: "default-backend", Verdict: Differs, Keys: "sallyport.dev/default-backend",
		read: as("sallyport.dev/default-backend"),
		Note: "It also takes the requests while no server of the Service can be reached.",
	},
	{
		Name: "custom-http-errors", Verdict: Differs, Keys: "sallyport.dev/error-pages", read: customErrors,
		Note: "Answers of servers alone are replaced: answers that HAProxy makes itself are those of " +
			"`clusters[].ingress.errorFiles`. A page has at most 24 kB, and is asked for by GET or HEAD, without " +
			"X-Ingress-Name, X-Service-Name and X-Service-Port. The Service of default-backend gives it, or else " +
			"default-backend-service of the ConfigMap.",
	},
	{
		Name: "disable-proxy-intercept-errors", Verdict: Same, Keys: "sallyport.dev/error-pages",
		read: keepErrors,
	},
	{Name: "service-upstream", Verdict: Nothing, Note: "Requests go to pods, never to a ClusterIP."},
	{
		Name: "canary", Verdict: Differs, Keys: "sallyport.dev/canary-weight", read: canary,
		Note: "The canary has its own keys, and not those of the other Ingress. Both must be in one namespace.",
	},
	{Name: "canary-weight", With: "canary", Verdict: Same, Keys: "sallyport.dev/canary-weight"},
	{
		Name: "canary-weight-total", With: "canary", Verdict: Differs, Keys: "sallyport.dev/canary-weight",
		Note: "The share is rounded to a percentage.",
	},
	{Name: "canary-by-header", With: "canary", Verdict: Same, Keys: "sallyport.dev/canary-by-header"},
	{
		Name: "canary-by-header-value", With: "canary-by-header", Verdict: Same,
		Keys: "sallyport.dev/canary-by-header-value",
	},
	{
		Name: "canary-by-header-pattern", With: "canary-by-header", Verdict: Same,
		Keys: "sallyport.dev/canary-by-header-pattern",
	},
	{Name: "canary-by-cookie", With: "canary", Verdict: Same, Keys: "sallyport.dev/canary-by-cookie"},

	// Who may come in
	{
		Name: "allowlist-source-range", Verdict: Same, Guard: true, Keys: "allow-list", read: as("allow-list"),
		Note: "`whitelist-source-range` is its older name.",
	},
	{
		Name: "whitelist-source-range", Verdict: Same, Guard: true, Keys: "allow-list",
		Note: "An older name of `allowlist-source-range`.",
	},
	{Name: "denylist-source-range", Verdict: Same, Guard: true, Keys: "deny-list", read: as("deny-list")},
	{
		Name: "auth-type", Verdict: Differs, Guard: true, Keys: "auth-type, auth-secret", read: authType,
		Note: "basic alone; digest closes the Ingress. Servers see the header Authorization. The default " +
			"of `auth-realm` is `Protected Content`, and not empty.",
	},
	{
		Name: "auth-secret", With: "auth-type", Verdict: Differs, Guard: true, Keys: "auth-secret",
		Note: "Hashes of `$apr1$` and `{SHA}` cannot be checked: make them anew with `htpasswd -B`.",
	},
	{Name: "auth-secret-type", With: "auth-type", Verdict: Nothing, Note: "Both forms of a Secret are recognised."},
	{Name: "auth-realm", With: "auth-type", Verdict: Same, Keys: "auth-realm"},
	{
		Name: "auth-url", Verdict: Differs, Guard: true, Keys: "sallyport.dev/auth-url", read: authURL,
		Note: "A Service of the cluster, as `http://NAME.NAMESPACE.svc.cluster.local:PORT/PATH`; or a path that an " +
			"Ingress here serves, as `https://$host/oauth2/auth`: its Service is asked directly. Other URLs close " +
			"the Ingress, unless it has `sallyport.dev/auth-url`. Failures are answered 503. A redirect " +
			"of the Service reaches the client.",
	},
	{
		Name: "auth-method", With: "auth-url", Verdict: Same, Guard: true, Keys: "sallyport.dev/auth-method",
		Note: "GET, HEAD and POST; any other method closes the Ingress.",
	},
	{
		Name: "auth-response-headers", With: "auth-url", Verdict: Same, Guard: true,
		Keys: "sallyport.dev/auth-headers-succeed",
	},
	{Name: "auth-signin", With: "auth-url", Verdict: Same, Guard: true, Keys: "sallyport.dev/auth-signin"},
	{
		Name: "auth-signin-redirect-param", With: "auth-signin", Verdict: Same, Guard: true,
		Keys: "sallyport.dev/auth-signin",
	},
	{
		Name: "auth-request-redirect", With: "auth-url", Verdict: Same, Keys: "sallyport.dev/auth-set-headers",
	},
	{
		Name: "auth-proxy-set-headers", With: "auth-url", Verdict: Differs, Guard: true,
		Keys: "sallyport.dev/auth-set-headers-from",
		Note: "A ConfigMap of the namespace of the Ingress. An entry with a variable of nginx closes the Ingress, " +
			"and so does one for Host or for a header of the connection.",
	},
	{
		Name: "auth-always-set-cookie", With: "auth-url", Verdict: Nothing,
		Note: "A Set-Cookie of the Service always reaches the client.",
	},
	{Name: "auth-cache-key", With: "auth-url", Verdict: Nothing, Note: "Nothing is cached: " + noCache + "."},
	{Name: "auth-cache-duration", With: "auth-url", Verdict: Nothing, Note: "Nothing is cached: " + noCache + "."},
	{Name: "auth-keepalive", With: "auth-url", Verdict: Nothing, Note: "Connections are kept."},
	{Name: "auth-keepalive-requests", With: "auth-url", Verdict: Nothing, Note: "Connections are kept."},
	{Name: "auth-keepalive-timeout", With: "auth-url", Verdict: Nothing, Note: "Connections are kept."},
	{Name: "auth-keepalive-share-vars", With: "auth-url", Verdict: Nothing, Note: "HAProxy has no such variables."},
	{Name: "auth-snippet", With: "auth-url", Verdict: Lost, Guard: true, Note: neverRead},
	{
		Name: "enable-global-auth", Verdict: Same, Keys: "auth-type", read: globalAuth,
		Note: "`false` is `auth-type: none`, which needs `auth-opt-out` in the ConfigMap.",
	},
	{
		Name: "satisfy", With: "allowlist-source-range, auth-type, auth-url", Verdict: Differs,
		Keys: "sallyport.dev/satisfy", read: satisfy,
		Note: "`denylist-source-range`, and lists of the ConfigMap, reject clients in any case. A client that passes " +
			"neither `auth-type` nor `auth-url` gets the answer of the Service of `auth-url`.",
	},
	{
		Name: "auth-tls-secret", Verdict: Differs, Guard: true, Keys: "client-ca", read: clientCA,
		Note: "The handshake fails, or 403 is the answer, where ingress-nginx answers 400. The CRL in `ca.crl` is " +
			"not read. Servers see `ssl-client-verify`, `ssl-client-subject-dn` and `ssl-client-issuer-dn`, unless " +
			"the Ingress has `request-set-header`.",
	},
	{
		Name: "auth-tls-verify-client", With: "auth-tls-secret", Verdict: Differs, Guard: true,
		Keys: "client-ca, client-crt-optional",
		Note: "on, off and optional; optional_no_ca, or any other value, closes the Ingress.",
	},
	{
		Name: "auth-tls-verify-depth", With: "auth-tls-secret", Verdict: Lost,
		Note: "a chain of certificates may have any length",
	},
	{
		Name: "auth-tls-error-page", With: "auth-tls-secret", Verdict: Differs,
		Keys: "sallyport.dev/client-crt-error-page",
		Note: "For clients without a certificate. The handshake fails for clients with a certificate of another " +
			"authority. The URL needs a scheme. This Ingress must have `/` of each host that it has a certificate " +
			"for, and no other Ingress may have the host. Otherwise the handshake fails, too.",
	},
	{
		Name: "auth-tls-pass-certificate-to-upstream", With: "auth-tls-secret", Verdict: Differs,
		Keys: "sallyport.dev/client-crt-header",
		Note: "The certificate in `ssl-client-cert` has no line breaks in its base64.",
	},
	{
		Name: "auth-tls-match-cn", With: "auth-tls-secret", Verdict: Differs, Guard: true,
		Keys: "sallyport.dev/client-crt-match",
		Note: "Plain HTTP that is not redirected is served at the paths that other Ingresses have for the host. An " +
			"expression with look-ahead, back-references or groups that are repeated by a number closes the Ingress " +
			"and its hosts.",
	},
	{
		Name: "ssl-passthrough", Verdict: Same, Keys: "ssl-passthrough", read: as("ssl-passthrough"),
		Note: "ingress-nginx reads it only with `--enable-ssl-passthrough`. Plain HTTP is redirected to HTTPS.",
	},
	{
		Name: "ssl-ciphers", Verdict: Differs, Keys: "sallyport.dev/ssl-ciphers", read: as("sallyport.dev/ssl-ciphers"),
		Note: "For the hosts that this Ingress has a certificate for. The oldest Ingress with a certificate for a " +
			"host decides, with or without the annotation. Names of ciphers, `HIGH`, `DEFAULT`, and exclusions of " +
			"weak ciphers. Other words are not served.",
	},
	{Name: "ssl-prefer-server-ciphers", Verdict: Nothing, Note: "HAProxy prefers the order of the server."},
	{
		Name: "limit-connections", Verdict: Differs, Keys: "sallyport.dev/limit-connections",
		read: as("sallyport.dev/limit-connections"), Note: "The answer is 429, and not 503.",
	},
	{
		Name: "limit-rps", Verdict: Differs, Keys: "rate-limit-requests, rate-limit-period, rate-limit-status-code",
		read: limitRPS, Note: "A sliding window with the burst in it, and not a leaking bucket.",
	},
	{
		Name: "limit-rpm", Verdict: Differs, Keys: "rate-limit-requests, rate-limit-period, rate-limit-status-code",
		read: limitRPM, Note: "As `limit-rps`, which overrides it.",
	},
	{
		Name: "limit-burst-multiplier", With: "limit-rps, limit-rpm", Verdict: Differs,
		Keys: "rate-limit-requests, rate-limit-period",
	},
	{
		Name: "limit-allowlist", With: "limit-rps, limit-rpm, limit-connections", Verdict: Differs,
		Keys: "rate-limit-whitelist", read: limitAllowlist,
		Note: "For `limit-rps` and `limit-rpm`, and not for `limit-connections`. `limit-whitelist` is its older name.",
	},
	{
		Name: "limit-whitelist", With: "limit-rps, limit-rpm, limit-connections", Verdict: Differs,
		Keys: "rate-limit-whitelist",
		Note: "An older name of `limit-allowlist`.",
	},
	{
		Name: "limit-rate", Verdict: Differs, Keys: "sallyport.dev/limit-rate", read: limitRate,
		Note: "It needs HAProxy 2.7.",
	},
	{
		Name: "limit-rate-after", With: "limit-rate", Verdict: Lost,
		Note: "an answer has the rate of `limit-rate` from its beginning",
	},
	{Name: "enable-modsecurity", Verdict: Lost, Guard: true, Note: noWAF},
	{Name: "enable-owasp-core-rules", Verdict: Lost, Guard: true, Note: noWAF},
	{Name: "modsecurity-transaction-id", Verdict: Lost, Note: noWAF},
	{Name: "modsecurity-snippet", Verdict: Lost, Guard: true, Note: noWAF + ", and snippets are never read"},

	// CORS and headers
	{
		Name: "enable-cors", Verdict: Same, Keys: "cors-enable, cors-respond-to-options", read: cors,
		Note: "OPTIONS is always answered 204, and an answer to a request without Origin has no headers of CORS.",
	},
	{
		Name: "cors-allow-origin", With: "enable-cors", Verdict: Differs, Keys: "cors-allow-origin",
		Note: "An origin has to match as a whole. Names that are no origins are left out. If none is left, no page " +
			"is allowed, where ingress-nginx may allow all.",
	},
	{Name: "cors-allow-methods", With: "enable-cors", Verdict: Same, Keys: "cors-allow-methods"},
	{Name: "cors-allow-headers", With: "enable-cors", Verdict: Same, Keys: "cors-allow-headers"},
	{
		Name: "cors-allow-credentials", With: "enable-cors", Verdict: Differs, Keys: "cors-allow-credentials",
		Note: "If any origin is allowed, credentials are not: browsers reject them together.",
	},
	{Name: "cors-max-age", With: "enable-cors", Verdict: Same, Keys: "cors-max-age"},
	{Name: "cors-expose-headers", With: "enable-cors", Verdict: Same, Keys: "sallyport.dev/cors-expose-headers"},
	{
		Name: "custom-headers", Verdict: Differs, Keys: "sallyport.dev/response-headers-from",
		read: as("sallyport.dev/response-headers-from"),
		Note: "A ConfigMap of the namespace of the Ingress. Any header is allowed: `global-allowed-response-headers` " +
			"is not read. Variables are not served.",
	},
	{Name: "connection-proxy-header", Verdict: Nothing, Note: "HAProxy sets Connection."},
	{Name: "http2-push-preload", Verdict: Nothing, Note: "Browsers have dropped it."},

	// To the servers
	{
		Name: "backend-protocol", Verdict: Differs, Keys: "server-ssl, server-proto, sallyport.dev/fcgi-docroot",
		read: backendProtocol,
		Note: "HTTP, HTTPS, GRPC, GRPCS and FCGI. AUTO_HTTP is not served. FCGI needs HAProxy 3.0, sends " +
			"SCRIPT_FILENAME in any case, answers 400 to a path with `..` in it, and has neither `mirror-target` " +
			"nor `limit-rate`.",
	},
	{Name: "fastcgi-index", With: "backend-protocol", Verdict: Same, Keys: "sallyport.dev/fcgi-index"},
	{
		Name: "fastcgi-params-configmap", With: "backend-protocol", Verdict: Differs,
		Keys: "sallyport.dev/fcgi-params-from",
		Note: "A ConfigMap of the namespace of the Ingress. A parameter with a variable that has no equal here is " +
			"left out. Without the ConfigMap, requests are served without its parameters.",
	},
	{Name: "proxy-connect-timeout", Verdict: Same, Keys: "timeout-connect", read: connectTimeout},
	{
		Name: "proxy-read-timeout", Verdict: Differs, Keys: "timeout-server, timeout-tunnel", read: serverTimeout,
		Note: "The larger of `proxy-read-timeout` and `proxy-send-timeout`. A WebSocket may be idle for an hour at " +
			"least.",
	},
	{
		Name: "proxy-send-timeout", Verdict: Differs, Keys: "timeout-server, timeout-tunnel", read: serverTimeout,
		Note: "As `proxy-read-timeout`.",
	},
	{
		Name: "proxy-next-upstream", Verdict: Differs, Keys: "sallyport.dev/retry-on, sallyport.dev/retries",
		read: nextUpstream,
		Note: "A request that a server has got is sent to another one only if it is GET or HEAD. A failed connection " +
			"is always a reason, but for `off`. `http_429` and `non_idempotent` are not served.",
	},
	{
		Name: "proxy-next-upstream-tries", Verdict: Same, Keys: "sallyport.dev/retries", read: nextTries,
		Note: "11 tries at most.",
	},
	{Name: "proxy-next-upstream-timeout", Verdict: Lost, Note: "timeout-connect and timeout-queue bound the time"},
	{
		Name: "proxy-body-size", Verdict: Differs, Keys: "sallyport.dev/proxy-body-size", read: bodySize,
		Note: "A body without Content-Length has no limit.",
	},
	{Name: "client-body-buffer-size", Verdict: Nothing, Note: streams + "."},
	{Name: "proxy-buffering", Verdict: Nothing, Note: streams + "."},
	{Name: "proxy-request-buffering", Verdict: Nothing, Note: streams + "."},
	{Name: "proxy-buffers-number", Verdict: Nothing, Note: streams + "."},
	{Name: "proxy-busy-buffers-size", Verdict: Nothing, Note: streams + "."},
	{Name: "proxy-max-temp-file-size", Verdict: Nothing, Note: streams + "."},
	{
		Name: "proxy-buffer-size", Verdict: Nothing, read: bufferSize,
		Note: "The headers of an answer may have 15 kB together; with larger ones it is answered 502.",
	},
	{Name: "proxy-http-version", Verdict: Nothing, read: httpVersion, Note: "Servers are asked by HTTP/1.1."},
	{
		Name: "proxy-cookie-domain", Verdict: Differs, Keys: "sallyport.dev/response-cookie-domain",
		read: replaces("sallyport.dev/response-cookie-domain"), Note: noExpression,
	},
	{
		Name: "proxy-cookie-path", Verdict: Differs, Keys: "sallyport.dev/response-cookie-path",
		read: replaces("sallyport.dev/response-cookie-path"), Note: noExpression,
	},
	{
		Name: "proxy-redirect-from", With: "proxy-redirect-to", Verdict: Differs,
		Keys: "sallyport.dev/response-location", read: proxyRedirect,
		Note: "Regular expressions (`~`) and variables are not served. A URL without a host stays so: ingress-nginx " +
			"adds the host of the request.",
	},
	{
		Name: "proxy-redirect-to", With: "proxy-redirect-from", Verdict: Differs,
		Keys: "sallyport.dev/response-location",
		Note: "As `proxy-redirect-from`.",
	},
	{
		Name: "load-balance", Verdict: Differs, Keys: "load-balance", read: loadBalance,
		Note: "round_robin is roundrobin, and ewma is leastconn.",
	},
	{
		Name: "upstream-hash-by", Verdict: Differs, Keys: "load-balance", read: hashBy,
		Note: "One variable: $request_uri, $uri, $remote_addr, $host, $http_NAME or $arg_NAME.",
	},
	{Name: "upstream-hash-by-subset", With: "upstream-hash-by", Verdict: Lost, Note: "a hash chooses one server"},
	{Name: "upstream-hash-by-subset-size", With: "upstream-hash-by", Verdict: Lost, Note: "a hash chooses one server"},
	{
		Name: "affinity", Verdict: Same,
		Keys: "sallyport.dev/session-cookie-name, sallyport.dev/session-cookie-keywords",
		read: affinity,
	},
	{Name: "session-cookie-name", With: "affinity", Verdict: Same, Keys: "sallyport.dev/session-cookie-name"},
	{Name: "session-cookie-domain", With: "affinity", Verdict: Same, Keys: "sallyport.dev/session-cookie-domain"},
	{
		Name: "session-cookie-samesite", With: "affinity", Verdict: Same,
		Keys: "sallyport.dev/session-cookie-same-site",
		Note: "With None the cookie is also Secure: browsers reject it otherwise.",
	},
	{
		Name: "session-cookie-secure", With: "affinity", Verdict: Differs,
		Keys: "sallyport.dev/session-cookie-keywords",
		Note: "The cookie is Secure only if this asks for it.",
	},
	{
		Name: "session-cookie-expires", With: "affinity", Verdict: Differs,
		Keys: "sallyport.dev/session-cookie-max-age",
		Note: "The cookie has Max-Age, and not Expires. `session-cookie-max-age` overrides it.",
	},
	{Name: "session-cookie-max-age", With: "affinity", Verdict: Same, Keys: "sallyport.dev/session-cookie-max-age"},
	{
		Name: "session-cookie-path", With: "affinity", Verdict: Differs, Keys: "sallyport.dev/session-cookie-path",
		Note: "Without it the path is /, and not that of the Ingress.",
	},
	{
		Name: "session-cookie-change-on-failure", With: "affinity", Verdict: Nothing,
		Note: "A client whose server is down gets a new cookie.",
	},
	{
		Name: "session-cookie-conditional-samesite-none", With: "affinity", Verdict: Lost,
		Note: "SameSite is the same for all browsers",
	},
	{
		Name: "affinity-mode", With: "affinity", Verdict: Nothing,
		Note: "A client stays with its server while that is up, as in `persistent`.",
	},
	{
		Name: "affinity-canary-behavior", With: "affinity", Verdict: Differs, Keys: "sallyport.dev/canary-affinity",
		read: canaryBehavior,
		Note: "The canary needs it, with an `affinity` of its own. A second cookie keeps the client at one side, until " +
			"its browser ends.",
	},
	{
		Name: "proxy-ssl-secret", With: "backend-protocol", Verdict: Same, Guard: true, Keys: "server-crt, server-ca",
		Note: "Of HTTPS or GRPCS.",
	},
	{
		Name: "proxy-ssl-verify", With: "proxy-ssl-secret", Verdict: Same, Guard: true, Keys: "server-ca",
		Note: "A server with another certificate is answered for by 503, and not 502.",
	},
	{
		Name: "proxy-ssl-name", With: "backend-protocol", Verdict: Same, Guard: true,
		Keys: "sallyport.dev/secure-sni, sallyport.dev/secure-verify-hostname",
		Note: "Also with `proxy-ssl-server-name` or `proxy-ssl-verify`.",
	},
	{
		Name: "proxy-ssl-server-name", With: "backend-protocol", Verdict: Same, Guard: true,
		Keys: "sallyport.dev/secure-sni",
	},
	{
		Name: "proxy-ssl-ciphers", With: "proxy-ssl-secret", Verdict: Differs, Keys: "sallyport.dev/server-ssl-ciphers",
		Note: "Names of ciphers, `HIGH`, `DEFAULT`, and exclusions of weak ciphers. Other words are not served.",
	},
	{
		Name: "proxy-ssl-protocols", With: "proxy-ssl-secret", Verdict: Same,
		Keys: "sallyport.dev/server-ssl-min-ver, sallyport.dev/server-ssl-max-ver",
		Note: "From the oldest to the newest of these versions. SSL is not served.",
	},
	{
		Name: "proxy-ssl-verify-depth", With: "backend-protocol", Verdict: Lost,
		Note: "a chain of certificates may have any length",
	},
	{
		Name: "enable-access-log", Verdict: Differs, Keys: "sallyport.dev/access-log", read: logged,
		Note: "A redirect to HTTPS has a log line in any case.",
	},
	{Name: "enable-rewrite-log", Verdict: Nothing, Note: "HAProxy has no such log."},
	{
		Name: "mirror-target", Verdict: Differs, Keys: "sallyport.dev/mirror-to, sallyport.dev/mirror-path",
		read: mirrorTarget,
		Note: "A Service of the cluster, as `http://NAME.NAMESPACE.svc.cluster.local:PORT$request_uri`; other URLs " +
			"are not served. Requests with a body of more than 16 kB, and those that ask for another protocol, are " +
			"not copied. Too many copies at once are left out. Copies have the headers that servers see.",
	},
	{
		Name: "mirror-request-body", With: "mirror-target", Verdict: Same, Keys: "sallyport.dev/mirror-body",
		Note: "Without bodies, requests with a body of any size are copied.",
	},
	{Name: "mirror-host", With: "mirror-target", Verdict: Same, Keys: "sallyport.dev/mirror-host"},
	{Name: "enable-opentelemetry", Verdict: Lost, Note: noTracing},
	{Name: "opentelemetry-trust-incoming-span", Verdict: Lost, Note: noTracing},
	{Name: "opentelemetry-operation-name", Verdict: Lost, Note: noTracing},
	{Name: "configuration-snippet", Verdict: Lost, Guard: true, Note: neverRead},
	{Name: "server-snippet", Verdict: Lost, Guard: true, Note: neverRead},
	{Name: "stream-snippet", Verdict: Lost, Guard: true, Note: neverRead},
}
