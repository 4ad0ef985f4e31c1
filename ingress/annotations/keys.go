package annotations

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"sallyport/haproxy"
)

// The scopes of most keys.
const (
	everywhere      = ConfigMap | Ingress | Service
	notOnTheService = ConfigMap | Ingress
)

// The traffic of keys that do not look into requests.
const (
	anyTraffic = Requests | Ended | Passed
	notPassed  = Requests | Ended // keys about TLS that ends here, or about TLS to the servers
)

var (
	allowList = defineClients(Doc{
		Name: "allow-list", Aliases: []Alias{{Name: "whitelist"}}, Scopes: notOnTheService, Guard: true,
		Traffic: anyTraffic,
		Effect: "Clients with other addresses are answered 403; with ssl-passthrough or a TCP service their " +
			"connections are closed. `0.0.0.0/0,::/0` allows every client, also where the ConfigMap has a list.",
	})
	denyList = defineClients(Doc{
		Name: "deny-list", Aliases: []Alias{{Name: "blacklist"}}, Scopes: notOnTheService, Guard: true,
		Traffic: anyTraffic,
		Effect: "Clients with these addresses are answered 403; with ssl-passthrough or a TCP service their " +
			"connections are closed.",
	})
	sourceHeader = define(haproxy.Source, Doc{
		Name: "src-ip-header", Scopes: notOnTheService, Format: "name of a header",
		Effect: "The client's address is read from this header, also for lists and limits. Use it only behind a " +
			"proxy that sets the header.",
	})
	check = define(boolean, Doc{
		Name: "check", Scopes: everywhere, Format: "true or false", Default: "true", Traffic: anyTraffic,
		Effect: "Servers are checked: by a TCP connection, or by the request in check-http. Without checks a request " +
			"that no server answers is tried four times; with them, until they have found the servers that are down.",
	})
	checkHTTP = define(httpCheck, Doc{
		Name: "check-http", Scopes: everywhere, Format: "`/uri`, `HEAD /uri` or `HEAD /uri HTTP/1.1`",
		Effect: "Servers are checked by this HTTP request. A server whose answer is not 2xx or 3xx is down.",
	})
	checkInterval = defineIn(atLeast(500*time.Millisecond), Doc{
		Name: "check-interval", Scopes: everywhere, Format: "time, from 500ms; in the ConfigMap from 1ms",
		Default: "2s", Traffic: anyTraffic,
		Effect: "Time between two checks of a server that is up. One that is down is checked twice as often, but at " +
			"most once a second. Many servers in one namespace are checked less often " +
			"(`clusters[].ingress.limits.checks`).",
	})
	corsEnable = define(boolean, Doc{
		Name: "cors-enable", Scopes: notOnTheService, Format: "true or false", Default: "false",
		Effect: "Answers get the CORS headers that the other `cors-` keys set.",
	})
	corsOrigin = define(origin, Doc{
		Name: "cors-allow-origin", Scopes: notOnTheService, Format: "`*` or a regular expression for the whole origin",
		Default: "*",
		Effect: "Value of Access-Control-Allow-Origin: `*`, or the origin of the request if it matches. Every " +
			"answer has `Vary: Origin`.",
	})
	corsMethods = define(methods, Doc{
		Name: "cors-allow-methods", Scopes: notOnTheService, Format: "`*` or methods, with commas", Default: "*",
		Effect: "Value of Access-Control-Allow-Methods.",
	})
	corsHeaders = define(headerNames, Doc{
		Name: "cors-allow-headers", Scopes: notOnTheService, Format: "`*` or names of headers, with commas",
		Default: "*",
		Effect:  "Value of Access-Control-Allow-Headers.",
	})
	corsExpose = define(headerNames, Doc{
		Name: own + "cors-expose-headers", Scopes: notOnTheService, Format: "`*` or names of headers, with commas",
		Effect: "Value of Access-Control-Expose-Headers: the headers of the answer that a page may read.",
	})
	corsCredentials = define(boolean, Doc{
		Name: "cors-allow-credentials", Scopes: notOnTheService, Format: "true or false", Default: "false",
		Effect: "Sets Access-Control-Allow-Credentials. Browsers then accept no `*`, so answers name the origin of " +
			"the request, and the method and headers that a preflight asks for.",
	})
	corsMaxAge = define(duration, Doc{
		Name: "cors-max-age", Scopes: notOnTheService, Format: "time", Default: "5s",
		Effect: "Value of Access-Control-Max-Age, in seconds.",
	})
	corsRespond = define(boolean, Doc{
		Name: "cors-respond-to-options", Scopes: notOnTheService, Format: "true or false", Default: "false",
		Effect: "HAProxy answers every OPTIONS request itself, with 204, before any authentication.",
	})
	cookieName = define(cookie, Doc{
		Name: own + "session-cookie-name", Scopes: everywhere, Format: "name of a cookie",
		Effect: "Requests of one client go to the same server, by a cookie of this name, while that server is up.",
	})
	cookiePersistence = define(cookie, Doc{
		Name: "cookie-persistence", Scopes: everywhere, Format: "name of a cookie",
		Effect: "Another name for session-cookie-name, which overrides it. The value of the cookie is always a hash " +
			"of the server's address, with a key of the appliance's or the group's own, and survives reloads " +
			"and restarts.",
	})
	cookieNoDynamic = define(cookie, Doc{
		Name: "cookie-persistence-no-dynamic", Scopes: everywhere, Format: "name of a cookie",
		Effect: "Another name for session-cookie-name; session-cookie-name and cookie-persistence override it. The " +
			"value of the cookie is dynamic all the same: a hash of the server's address, which survives reloads " +
			"and restarts.",
	})
	cookieDomain = define(cookieDomainName, Doc{
		Name: own + "session-cookie-domain", Scopes: everywhere, Format: "domain",
		Effect: "Domain of the session cookie. Without it the cookie is for the host alone.",
	})
	cookiePreserve = define(boolean, Doc{
		Name: own + "session-cookie-preserve", Scopes: everywhere, Format: "true or false", Default: "false",
		Effect: "A session cookie that a server sets itself is left as it is.",
	})
	cookieSameSite = define(sameSite, Doc{
		Name: own + "session-cookie-same-site", Scopes: everywhere, Format: "Strict, Lax or None; true is None",
		Effect: "SameSite of the session cookie. None also makes the cookie Secure.",
	})
	cookiePathKey = define(cookiePath, Doc{
		Name: own + "session-cookie-path", Scopes: everywhere, Format: "path",
		Effect: "Path of the session cookie. Without it the cookie is for all paths of the host.",
	})
	cookieMaxAge = define(number(1, 315360000), Doc{
		Name: own + "session-cookie-max-age", Scopes: everywhere, Format: "seconds",
		Effect: "How long browsers keep the session cookie. Without it they drop the cookie at the end of their " +
			"session.",
	})
	cookieKeywords = define(cookieWords, Doc{
		Name: own + "session-cookie-keywords", Scopes: everywhere,
		Format: "of httponly, secure, maxidle TIME, maxlife TIME",
		Effect: "Attributes of the session cookie: HttpOnly, Secure, and how long it is valid without a request " +
			"(maxidle) or at all (maxlife).",
	})
	forwardedFor = define(boolean, Doc{
		Name: "forwarded-for", Scopes: everywhere, Format: "true or false", Default: "true",
		Effect: "HAProxy adds the client's address to X-Forwarded-For.",
	})
	forwardedHeaders = define(boolean, Doc{
		Name: own + "forwarded-headers", Scopes: notOnTheService, Format: "true or false", Default: "false",
		Effect: "Servers see X-Real-IP, X-Request-ID, X-Scheme, X-Forwarded-Host, X-Forwarded-Port and " +
			"X-Forwarded-Scheme. An X-Request-ID of the client stays, and its X-Forwarded-For becomes " +
			"X-Original-Forwarded-For. The header Proxy is deleted.",
	})
	abortOnClose = define(boolean, Doc{
		Name: "abortonclose", Scopes: everywhere, Format: "true or false", Traffic: anyTraffic,
		Effect: "A request is dropped if its client disconnects while the request waits for a server. HAProxy before " +
			"3.0 notices this only if the ConfigMap sets the key.",
	})
	loadBalance = define(haproxy.Balance, Doc{
		Name: "load-balance", Scopes: everywhere, Default: "roundrobin",
		Format: "roundrobin, leastconn, first, random[(draws, up to 99)], source, uri [path-only] [whole] [len N] " +
			"[depth N], url_param NAME [check_post], hdr(NAME) [use_domain_only]; static-rr is taken as roundrobin",
		Traffic: anyTraffic,
		Effect: "How requests are spread over the servers. Algorithms that hash do so consistently, and from " +
			"HAProxy 3.0 on in the same way on all members of a group.",
	})
	pathRewrite = defineLines(lines(rewrite), Doc{
		Name: "path-rewrite", Scopes: notOnTheService,
		Format: "a path; or a regular expression and a path with `\\1`; one a line",
		Effect: "The path of the request is rewritten before it is sent to a server.",
	})
	rewriteFirst = define(boolean, Doc{
		Name: own + "path-rewrite-first", Scopes: notOnTheService, Format: "true or false", Default: "false",
		Effect: "Of several lines of path-rewrite, only the first with an expression that matches the path of the " +
			"request applies. Without it, each line applies to the result of the lines before.",
	})
	podMaxconn = define(number(1, 1<<20), Doc{
		Name: "pod-maxconn", Scopes: everywhere, Format: "number from 1", Traffic: anyTraffic,
		Effect: "Most connections to one pod; further requests wait for timeout-queue.",
	})
	accessLog = define(boolean, Doc{
		Name: own + "access-log", Scopes: notOnTheService, Format: "true or false", Default: "true",
		Effect: "With `false` requests that reach the Ingress have no log line (syslog-server).",
	})
	captures = defineLines(captureList, Doc{
		Name: "request-capture", Scopes: notOnTheService,
		Format: "a sample of the request, as `req.hdr(X-Request-Id)` or `cookie(id)`, one a line",
		Effect: "Samples of the request that are added to its log line (syslog-server).",
	})
	captureLen = define(number(1, 65535), Doc{
		Name: "request-capture-len", Scopes: notOnTheService, Format: "1 to 65535", Default: "128",
		Effect: "Most bytes of each sample of request-capture; all samples of an Ingress together have at most " +
			"`clusters[].ingress.limits.captureBytes`, 4,096 by default.",
	})
	requestHeaders = defineLines(headers(haproxy.SetRequestHeader), Doc{
		Name: "request-set-header", Scopes: notOnTheService,
		Format: "`Name value`, one a line; a value may hold `%[...]`, see below",
		Effect: "Sets headers of the request, as servers see it.",
	})
	responseHeaders = defineLines(headers(haproxy.SetResponseHeader), Doc{
		Name: "response-set-header", Scopes: notOnTheService,
		Format: "`Name value`, one a line; a value may hold `%[...]`, see below",
		Effect: "Sets headers of the answer, as clients see it.",
	})
	cookiePaths = define(replaces(haproxy.ReplaceCookiePath), Doc{
		Name: own + "response-cookie-path", Scopes: notOnTheService, Format: "`FROM TO`, two paths; or off",
		Effect: "Where the Path of a cookie that a server sets begins with FROM, it begins with TO instead.",
	})
	cookieDomains = define(replaces(haproxy.ReplaceCookieDomain), Doc{
		Name: own + "response-cookie-domain", Scopes: notOnTheService, Format: "`FROM TO`, two domains; or off",
		Effect: "Where the Domain of a cookie that a server sets is FROM, it is TO instead.",
	})
	locations = define(replaces(haproxy.ReplaceLocation), Doc{
		Name: own + "response-location", Scopes: notOnTheService,
		Format: "`FROM TO`, the beginnings of two URLs; or off",
		Effect: "Where the URL that an answer of a server leads to (Location, Refresh) begins with FROM, it begins " +
			"with TO instead.",
	})
	rateRequests = define(number(1, 1<<31-1), Doc{
		Name: "rate-limit-requests", Scopes: notOnTheService, Format: "number from 1",
		Effect: "Most requests of one client address within rate-limit-period; further ones are answered " +
			"rate-limit-status-code. Each Ingress is counted by itself. The counts survive a reload of HAProxy; " +
			"HAProxy 2.6 keeps none at a reload within 5 s of its start. The members of a group do not add up what " +
			"they count: of two that count one client at once, the last update holds for both, so the client may " +
			"send as many times the limit as there are members.",
	})
	ratePeriod = defineIn(atMost(24*time.Hour, period), Doc{
		Name: "rate-limit-period", Scopes: notOnTheService, Format: "time, from 1ms to 1d; in the ConfigMap to 24d",
		Default: "1s",
		Effect:  "Period of rate-limit-requests.",
	})
	rateStatus = define(status(haproxy.DenyCodes), Doc{
		Name: "rate-limit-status-code", Scopes: notOnTheService,
		Format: "400, 401, 403, 404, 405, 407, 408, 410, 413, 425, 429, 500, 501, 502, 503 or 504", Default: "403",
		Effect: "Status of the answer to requests over rate-limit-requests.",
	})
	rateSize = define(size, Doc{
		Name: "rate-limit-size", Scopes: notOnTheService, Format: "number, with k or m", Default: "100k",
		Effect: "Most client addresses that rate-limit-requests counts; beyond that the oldest are forgotten. All " +
			"Ingresses of a namespace together count at most `clusters[].ingress.limits.clients`, and share these if " +
			"they ask for more. A client for which there is no place, since all have a request under way, is " +
			"answered as one over the limit.",
	})
	rateExcept = defineClients(Doc{
		Name: "rate-limit-whitelist", Scopes: notOnTheService,
		Effect: "Clients with these addresses are not subject to rate-limit-requests.",
	})
	redirect = define(location, Doc{
		Name: "request-redirect", Scopes: notOnTheService,
		Format: "host or host:port, with http:// or https:// in front if it is to change",
		Effect: "Requests are redirected to this host, with their path and query, and with their scheme if the " +
			"value has none.",
	})
	redirectCode = define(status(haproxy.RedirectCodes), Doc{
		Name: "request-redirect-code", Scopes: notOnTheService, Format: "301, 302, 303, 307 or 308", Default: "302",
		Effect: "Status of the answer that request-redirect and redirect-to give.",
	})
	redirectTo = define(url, Doc{
		Name: own + "redirect-to", Scopes: notOnTheService, Format: "URL, with http:// or https://",
		Effect: "Every request is redirected to exactly this URL, with the status of request-redirect-code. It " +
			"overrides request-redirect.",
	})
	retries = define(number(0, 10), Doc{
		Name: own + "retries", Scopes: everywhere, Format: "0 to 10",
		Effect: "How often a request is sent again, at once, and to another server if the Service has several. The " +
			"default is 3 with retry-on. A request without retry-on is sent again until the checks find the servers " +
			"that are down (see check).",
	})
	retryOn = define(retryWords, Doc{
		Name: own + "retry-on", Scopes: everywhere,
		Format: "of conn-failure, empty-response, junk-response, response-timeout, 401, 403, 404, 408, 425, 500, " +
			"501, 502, 503 and 504, with commas",
		Default: "conn-failure, empty-response",
		Effect: "After which failures and statuses of a server a request is sent again. A request that a server has " +
			"got is sent again only if it is GET or HEAD, and has less than 16 kB.",
	})
	setHost = define(filled(hostFormat), Doc{
		Name: "set-host", Scopes: notOnTheService, Format: "host; it may hold `%[...]`, see below",
		Effect: "Sets the Host header of the request, as servers see it.",
	})
	sendProxy = define(oneOf("proxy", "proxy-v1", "proxy-v2", "proxy-v2-ssl", "proxy-v2-ssl-cn"), Doc{
		Name: "send-proxy-protocol", Scopes: everywhere,
		Format: "proxy, proxy-v1, proxy-v2, proxy-v2-ssl or proxy-v2-ssl-cn", Traffic: anyTraffic,
		Effect: "Connections to servers begin with a PROXY protocol header.",
	})
	serverSSL = define(boolean, Doc{
		Name: "server-ssl", Scopes: everywhere, Traffic: notPassed, Format: "true or false", Default: "false",
		Effect: "Connections to servers use TLS. Their certificates are verified only if there is a server-ca.",
	})
	serverProto = define(oneOf("h1", "h2", speaksFCGI), Doc{
		Name: "server-proto", Scopes: everywhere, Format: "h2, h1 or fcgi",
		Effect: "HTTP/2 to servers, without TLS unless server-ssl is set; or HTTP/1.1 only; or FastCGI, which needs " +
			"HAProxy 3.0. It overrides appProtocol of the Service's port.",
	})
	timeoutCheck = define(duration, Doc{
		Name: "timeout-check", Scopes: everywhere, Format: "time", Traffic: anyTraffic,
		Effect: "How long a check may take after the connection is established.",
	})
	timeoutConnect = define(duration, Doc{
		Name: "timeout-connect", Scopes: everywhere, Format: "time", Default: "500ms", Traffic: anyTraffic,
		Effect: "How long the connection to a server may take before the next server is tried.",
	})
	timeoutQueue = define(duration, Doc{
		Name: "timeout-queue", Scopes: everywhere, Format: "time", Default: "5s", Traffic: anyTraffic,
		Effect: "How long a request waits while all servers have pod-maxconn connections.",
	})
	timeoutTunnel = define(duration, Doc{
		Name: "timeout-tunnel", Scopes: everywhere, Format: "time", Default: "1h", Traffic: anyTraffic,
		Effect: "How long a WebSocket, a connection of a TCP service or one of ssl-passthrough may be idle.",
	})
	hsts = define(boolean, Doc{
		Name: own + "hsts", Scopes: notOnTheService, Format: "true or false", Default: "false",
		Effect: "Answers over HTTPS have Strict-Transport-Security: browsers then use HTTPS only.",
	})
	hstsMaxAge = define(number(0, 1<<31-1), Doc{
		Name: own + "hsts-max-age", Scopes: notOnTheService, Format: "seconds", Default: "15768000",
		Effect: "The max-age of Strict-Transport-Security, see hsts.",
	})
	hstsSubdomains = define(boolean, Doc{
		Name: own + "hsts-include-subdomains", Scopes: notOnTheService, Format: "true or false", Default: "false",
		Effect: "Adds includeSubDomains to Strict-Transport-Security, see hsts.",
	})
	hstsPreload = define(boolean, Doc{
		Name: own + "hsts-preload", Scopes: notOnTheService, Format: "true or false", Default: "false",
		Effect: "Adds preload to Strict-Transport-Security, see hsts: browser vendors may put the host on their lists.",
	})
	bodySize = define(volume, Doc{
		Name: own + "proxy-body-size", Scopes: everywhere, Format: "bytes, or with k, m or g",
		Effect: "A request with a larger Content-Length is answered 413. A body without Content-Length has no limit.",
	})
	limitRate = define(rate, Doc{
		Name: own + "limit-rate", Scopes: notOnTheService, Format: "bytes, or with k, m or g; at most 1g",
		Effect: "Most bytes a second of the body of an answer. Each request has this rate of its own. It needs " +
			"HAProxy 2.7.",
	})
	connections = define(number(1, 1<<31-1), Doc{
		Name: own + "limit-connections", Scopes: notOnTheService, Format: "number from 1",
		Effect: "Most requests of one client address to the Ingress at the same time; further ones are answered 429.",
	})
	requestAdd = defineLines(headers(haproxy.AddRequestHeader), Doc{
		Name: own + "request-add-headers", Scopes: notOnTheService, Format: "`Name value`, one a line",
		Effect: "Adds headers to the request, as servers see it; headers of the same name stay.",
	})
	requestDelete = defineLines(lines(haproxy.DeleteRequestHeader), Doc{
		Name: own + "request-del-headers", Scopes: notOnTheService, Format: "names, one a line",
		Effect: "Deletes headers of the request before servers see it.",
	})
	responseAdd = defineLines(headers(haproxy.AddResponseHeader), Doc{
		Name: own + "response-add-headers", Scopes: notOnTheService, Format: "`Name value`, one a line",
		Effect: "Adds headers to the answer, as clients see it; headers of the same name stay.",
	})
	responseFrom = defineConfigMap(Doc{
		Name: own + "response-headers-from", Scopes: notOnTheService,
		Effect: "Sets headers of the answer, as clients see it: each entry of this ConfigMap is the name and the " +
			"value of a header. An Ingress can name a ConfigMap of its own namespace.",
	})
	responseDelete = defineLines(lines(haproxy.DeleteResponseHeader), Doc{
		Name: own + "response-del-headers", Scopes: notOnTheService, Format: "names, one a line",
		Effect: "Deletes headers of the answer before clients see it.",
	})
	appRoot = define(haproxy.Root, Doc{
		Name: own + "app-root", Scopes: notOnTheService, Format: "a path",
		Effect: "A request for `/` is redirected to this path.",
	})
	timeoutServer = define(duration, Doc{
		Name: "timeout-server", Scopes: everywhere, Format: "time", Default: "50s", Traffic: anyTraffic,
		Effect: "How long a server may be silent.",
	})
	_ = define(boolean, Doc{
		Name: "standalone-backend", Scopes: Ingress | Service, Format: "true or false", Traffic: anyTraffic,
		Effect: "No effect, and none is needed: an Ingress that sets a key of its own has a backend of its own.",
	})
	_ = define(boolean, Doc{
		Name: "clean-certs", Scopes: ConfigMap, Format: "true or false",
		Effect: "No effect, and none is needed: certificates that no Ingress names are always removed.",
	})
	_ = define(number(0, 1<<20), Doc{
		Name:    "scale-server-slots",
		Aliases: []Alias{{Name: "servers-increment"}, {Name: "server-increment"}, {Name: "server-slots"}},
		Scopes:  everywhere, Format: "number", Traffic: anyTraffic,
		Effect: "No effect, and none is needed: servers are added and deleted at run time, without slots.",
	})
	sslRedirect = define(boolean, Doc{
		Name: "ssl-redirect", Scopes: notOnTheService, Format: "true or false", Traffic: anyTraffic,
		Effect: "Plain HTTP is redirected to HTTPS. Without it: only where the Ingress has a certificate.",
	})
	sslRedirectCode = define(status(haproxy.RedirectCodes), Doc{
		Name: "ssl-redirect-code", Scopes: notOnTheService, Format: "301, 302, 303, 307 or 308", Default: "302",
		Traffic: anyTraffic,
		Effect:  "Status of the answer that ssl-redirect gives.",
	})
	sslRedirectPort = define(number(1, 65535), Doc{
		Name: "ssl-redirect-port", Scopes: notOnTheService, Format: "number", Traffic: anyTraffic,
		Effect: "Port in the URL of ssl-redirect, left out if it is 443. Without it: the port of HTTPS.",
	})
)

var acme = define(boolean, Doc{
	Name: own + "acme", Scopes: ConfigMap, Format: "true or false", Default: "false",
	Effect: "The ConfigMap's ssl-redirect, allow-list, auth-secret, auth-url and client-ca do not apply to paths of " +
		"Ingresses below `/.well-known/acme-challenge/`, so that a CA can check who has a host (cert-manager). Keys of " +
		"an Ingress itself apply.",
})

// ACME reports whether challenges of ACME servers pass the guards of the ConfigMap (see Layer.Open).
func ACME(l Layer) (bool, []Problem) {
	yes, _, problems := getFrom(l, acme)
	return yes, problems
}

var clusterWeight = define(number(0, 100), Doc{
	Name: own + "cluster-weight", Scopes: ConfigMap, Format: "0 to 100", Default: "100",
	Effect: "Per cent of its share of the requests that this cluster takes in its set of clusters. 0 drains it, " +
		"where another cluster serves. The key lowers a share alone: `clusters[].weight` of the configuration file " +
		"sets the shares, and without it each pod is equal.",
})

// ClusterWeight returns the per cent of its share that a cluster takes in its set.
func ClusterWeight(l Layer) (percent int, odd []Problem) {
	percent, said, odd := getFrom(l, clusterWeight)
	if !said {
		percent = 100
	}
	return percent, odd
}

// Open returns a Layer of the ConfigMap without the guards that the challenges of ACME servers pass.
// Networks in deny-list stay out. A Layer with a misspelled guard stays closed.
func (l Layer) Open() Layer {
	l.Values = maps.Clone(l.Values)
	for _, d := range []Doc{allowList.Doc, authType.Doc, authSecret.Doc, authURL.Doc} {
		delete(l.Values, d.Name)
	}
	return l
}

var sslPassthrough = define(boolean, Doc{
	Name: "ssl-passthrough", Scopes: everywhere, Format: "true or false", Default: "false", Traffic: anyTraffic,
	Effect: "TLS connections for the hosts are passed to the servers as they are, by the server name in the " +
		"handshake. Plain HTTP is redirected to HTTPS, unless ssl-redirect is false.",
})

// Passthrough reports whether TLS connections are passed to a backend as they are
// (ssl-passthrough).
func Passthrough(layers ...Layer) (bool, []Problem) {
	v := &values{layers: layers}
	yes, _ := get(v, sslPassthrough)
	return yes, v.problems
}

var class = define(func(s string) (string, error) { return s, nil }, Doc{
	Name: "ingress.class", Scopes: Ingress, Format: "name of an IngressClass", Older: "spec.ingressClassName",
	Effect: "An older way to set spec.ingressClassName. The annotation kubernetes.io/ingress.class overrides it.",
})

// Class returns the IngressClass that the annotations of an Ingress name. said is false if they
// name no class.
func Class(annotations map[string]string) (name string, said bool) {
	if name, said = annotations["kubernetes.io/ingress.class"]; said {
		return name, true
	}
	v, said := known.values(Ingress, annotations)[class.Name]
	return v.Text, said
}

var defaultBackend = define(servicePort, Doc{
	Name: "default-backend-service", Scopes: ConfigMap, Refers: ServiceKind,
	Format: "namespace/Service, or namespace/Service:port",
	Effect: "Service for requests that match no host and path. An Ingress without rules overrides it. " +
		"Without both: 404.",
})

var spareService = define(func(s string) (string, error) {
	if !dnsLabel.MatchString(s) {
		return "", fmt.Errorf("%s is not the name of a Service of the namespace", Quote(s))
	}
	return s, nil
}, Doc{
	Name: own + "default-backend", Scopes: Ingress, Format: "Service of the namespace",
	Effect: "While no server of the Service of a path takes requests, those of the first port of this Service do. " +
		"They get requests as the others do, with the same keys.",
})

// A ServicePort names a port of a Service, by name or number. Port is "" for the Service's first
// port.
type ServicePort struct {
	Service Ref
	Port    string
}

// servicePort reads NAMESPACE/NAME or NAMESPACE/NAME:PORT.
func servicePort(s string) (ServicePort, error) {
	name, port, has := strings.Cut(s, ":")
	ref, err := reference(name)
	if err != nil || ref.Namespace == "" || has && port == "" || !dnsLabel.MatchString(ref.Name) {
		return ServicePort{}, fmt.Errorf("%s: want namespace/Service, or namespace/Service:port", Quote(s))
	}
	return ServicePort{ref, port}, nil
}

// DefaultBackend returns the Service for requests that no rule of an Ingress matches
// (default-backend-service). said is false if the ConfigMap names no such Service.
func DefaultBackend(l Layer) (to ServicePort, said bool, problems []Problem) {
	return getFrom(l, defaultBackend)
}

var pathType = define(oneOf(string(haproxy.Prefix), string(haproxy.Exact), string(haproxy.Begin),
	string(haproxy.Regexp)), Doc{
	Name: own + "path-type", Scopes: Ingress, Format: "prefix, exact, begin or regex", Default: "prefix",
	Effect: "How paths of type ImplementationSpecific match: by element (prefix), whole (exact), as a string (begin: " +
		"`/a` matches `/abc`), or as a regular expression from the beginning of the path (regex). Of the paths of a " +
		"host, exact ones are tried first, then regular expressions, the longest first, then the longest path.",
})

// PathType returns how paths of type ImplementationSpecific match.
func PathType(l Layer) (haproxy.PathMatch, []Problem) {
	match, _, problems := getFrom(l, pathType)
	return haproxy.PathMatch(match), problems
}

var canaryWeight = define(number(0, 100), Doc{
	Name: own + "canary-weight", Scopes: Ingress, Format: "0 to 100",
	Effect: "Out of 100 requests for the hosts and paths of an older Ingress of the namespace, this many, chosen at " +
		"random, go to the Services of this Ingress. A change takes no reload.",
})

var (
	canaryHeader = define(headerName, Doc{
		Name: own + "canary-by-header", Scopes: Ingress, Format: "name of a header",
		Effect: "Requests for the hosts and paths of an older Ingress of the namespace go to the Services of this " +
			"Ingress if the header is `always`, and never if it is `never`. For other values canary-by-cookie " +
			"decides, then canary-weight.",
	})
	canaryHeaderValue = define(filled(canaryValue), Doc{
		Name: own + "canary-by-header-value", Scopes: Ingress, Format: "text",
		Effect: "With canary-by-header: requests whose header has exactly this value go to this Ingress. `always` " +
			"and `never` then have no meaning.",
	})
	canaryHeaderPattern = define(canaryExpression, Doc{
		Name: own + "canary-by-header-pattern", Scopes: Ingress, Format: "regular expression",
		Effect: "With canary-by-header, and without canary-by-header-value: requests go to this Ingress if the " +
			"expression matches in the header.",
	})
	canaryCookie = define(headerName, Doc{
		Name: own + "canary-by-cookie", Scopes: Ingress, Format: "name of a cookie",
		Effect: "Requests for the hosts and paths of an older Ingress of the namespace go to the Services of this " +
			"Ingress if the cookie is `always`, and never if it is `never`. For other values canary-weight decides.",
	})
)

var canaryAffinity = define(boolean, Doc{
	Name: own + "canary-affinity", Scopes: Ingress, Format: "true or false", Default: "false",
	Effect: "A cookie keeps a client at this Ingress or at the older one, by its first answer, while that one has a " +
		"server. The cookie is for one session of the browser, and overrides the other canary keys. It has no " +
		"effect with canary-weight 0 alone.",
})

func headerName(s string) (string, error) {
	_, err := haproxy.HeaderIs(s, "any")
	return s, err
}

func canaryValue(s string) (string, error) {
	_, err := haproxy.HeaderIs("any", s)
	return s, err
}

func canaryExpression(s string) (string, error) {
	_, err := haproxy.HeaderMatches("any", s)
	return s, err
}

// A Takeover says which requests an Ingress takes over from others.
type Takeover struct {
	Rules  []TakeoverRule // the first rule that a request meets decides
	Weight int            // how many of 100 requests that meet no rule
	Stays  bool           // a client stays where it was
}

// A TakeoverRule is a condition, and whether a request that meets it is taken over.
type TakeoverRule struct {
	If   haproxy.Text
	Take bool
}

// PicksRequests reports whether an Ingress takes over requests by their header or a cookie.
func PicksRequests(l Layer) bool {
	_, header := l.Values[canaryHeader.Name]
	_, cookie := l.Values[canaryCookie.Name]
	_, stays := l.Values[canaryAffinity.Name]
	return header || cookie || stays
}

// Canary returns which requests an Ingress takes over from others (canary-weight, canary-by-header and
// canary-by-cookie). said is false for an Ingress that is no canary.
func Canary(l Layer) (t Takeover, said bool, problems []Problem) {
	v := &values{layers: []Layer{l}}
	t.Weight, said = get(v, canaryWeight)
	add := func(take bool, when haproxy.Text, err error) {
		if err == nil { // each value was checked when it was read
			t.Rules = append(t.Rules, TakeoverRule{when, take})
		}
	}
	both := func(is func(name, value string) (haproxy.Text, error), name string) {
		for _, value := range []string{"always", "never"} {
			when, err := is(name, value)
			add(value == "always", when, err)
		}
	}
	if name, has := get(v, canaryHeader); has {
		value, exact := get(v, canaryHeaderValue)
		pattern, matches := get(v, canaryHeaderPattern)
		switch {
		case exact:
			when, err := haproxy.HeaderIs(name, value)
			add(true, when, err)
		case matches:
			when, err := haproxy.HeaderMatches(name, pattern)
			add(true, when, err)
		case l.Values[canaryHeaderValue.Name].Text == "" && l.Values[canaryHeaderPattern.Name].Text == "":
			both(haproxy.HeaderIs, name)
		}
	}
	if name, has := get(v, canaryCookie); has {
		both(haproxy.CookieIs, name)
	}
	stays, _ := get(v, canaryAffinity)
	t.Stays = stays && (t.Weight > 0 || len(t.Rules) > 0)
	// A canary with an invalid value gets fewer requests, instead of all.
	said = said || len(v.problems) > 0 || PicksRequests(l)
	return t, said, v.problems
}

var serverAlias = define(hostNames, Doc{
	Name: own + "server-alias", Scopes: Ingress, Format: "names of hosts, with commas between them",
	Effect: "More names of the first host in the rules. They lead to all paths that the namespace has for that " +
		"host, and its certificate is theirs. What they add counts for `limits.paths`. A name that a rule has stays " +
		"with that rule. A name belongs to a namespace as a host does.",
})

// ServerAlias returns the further names of the first host of an Ingress (server-alias).
func ServerAlias(l Layer) ([]string, []Problem) {
	names, _, problems := getFrom(l, serverAlias)
	return names, problems
}

var wwwRedirect = define(boolean, Doc{
	Name: own + "from-to-www-redirect", Scopes: Ingress, Format: "true or false", Default: "false",
	Effect: "`www.HOST` is redirected to each HOST of the rules with 308, or HOST to `www.HOST` if the rule has that. " +
		"Scheme, path and query stay. The certificate of the host is used if it also has the other name. A name that " +
		"a rule or server-alias has is not redirected. A name belongs to a namespace as a host does.",
})

// WWWRedirect reports whether the other names of the hosts of an Ingress, with "www." in front or without
// it, are redirected to the hosts.
func WWWRedirect(l Layer) (bool, []Problem) {
	yes, _, problems := getFrom(l, wwwRedirect)
	return yes, problems
}

// hostNames reads names of hosts, at most 20.
func hostNames(s string) (all []string, err error) {
	const most = 20
	for name := range strings.FieldsFuncSeq(s, func(r rune) bool { return r == ',' || r == ' ' }) {
		name = strings.ToLower(name)
		if !dnsSubdomain.MatchString(name) || len(name) > 253 || net.ParseIP(name) != nil {
			return nil, fmt.Errorf("%s is not a name of a host", Quote(name))
		}
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	switch {
	case len(all) == 0:
		return nil, errors.New("it has no name of a host")
	case len(all) > most:
		return nil, fmt.Errorf("it has %d names of hosts; allowed are %d", len(all), most)
	}
	return all, nil
}

// A Redirect holds the settings of the redirect from plain HTTP to HTTPS.
type Redirect struct {
	Wanted *bool // nil if it is not set
	Code   int
	Port   uint16 // 0 if it is not set
}

// SSLRedirect reads the keys about the redirect to HTTPS. The redirect is part of a
// route, not of a backend.
func SSLRedirect(layers ...Layer) (Redirect, []Problem) {
	v := &values{layers: layers}
	r := Redirect{}
	if yes, said := get(v, sslRedirect); said {
		r.Wanted = &yes
	}
	r.Code, _ = get(v, sslRedirectCode)
	if port, said := get(v, sslRedirectPort); said {
		r.Port = uint16(port) //nolint:gosec // read as a port
	}
	return r, v.problems
}
