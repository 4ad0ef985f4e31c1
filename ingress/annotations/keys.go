package annotations

import (
	"fmt"
	"strings"

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
	notPassed  = Requests | Ended // what ends TLS here, or begins it to the servers
)

var (
	allowList = defineClients(Doc{
		Name: "allow-list", Aliases: []Alias{{Name: "whitelist"}}, Scopes: notOnTheService, Guard: true, Traffic: anyTraffic,
		Effect: "Clients from elsewhere are answered 403.",
	})
	denyList = defineClients(Doc{
		Name: "deny-list", Aliases: []Alias{{Name: "blacklist"}}, Scopes: notOnTheService, Guard: true, Traffic: anyTraffic,
		Effect: "Clients from there are answered 403.",
	})
	sourceHeader = define(haproxy.Source, Doc{
		Name: "src-ip-header", Scopes: notOnTheService, Format: "name of a header",
		Effect: "The client's address is what the header says, for lists and limits too. Only for an appliance behind a proxy that sets it.",
	})
	check = define(boolean, Doc{
		Name: "check", Scopes: everywhere, Format: "true or false", Default: "true", Traffic: anyTraffic,
		Effect: "Servers are checked, by a connection if check-http says nothing else.",
	})
	checkHTTP = define(httpCheck, Doc{
		Name: "check-http", Scopes: everywhere, Format: "`/uri`, `HEAD /uri` or `HEAD /uri HTTP/1.1`",
		Effect: "Servers are checked by this request; 2xx and 3xx are good.",
	})
	checkInterval = define(duration, Doc{
		Name: "check-interval", Scopes: everywhere, Format: "time", Default: "2s", Traffic: anyTraffic,
		Effect: "Time between checks of a server that is well.",
	})
	corsEnable = define(boolean, Doc{
		Name: "cors-enable", Scopes: notOnTheService, Format: "true or false", Default: "false",
		Effect: "Browsers are told which pages of other origins may ask. The other `cors-` keys say which.",
	})
	corsOrigin = define(origin, Doc{
		Name: "cors-allow-origin", Scopes: notOnTheService, Format: "`*` or a regular expression for the whole origin", Default: "*",
		Effect: "Access-Control-Allow-Origin: for origins that match, the origin itself. Answers have `Vary: Origin` in any case.",
	})
	corsMethods = define(methods, Doc{
		Name: "cors-allow-methods", Scopes: notOnTheService, Format: "`*` or methods, with commas", Default: "*",
		Effect: "Access-Control-Allow-Methods.",
	})
	corsHeaders = define(headerNames, Doc{
		Name: "cors-allow-headers", Scopes: notOnTheService, Format: "`*` or names of headers, with commas", Default: "*",
		Effect: "Access-Control-Allow-Headers.",
	})
	corsCredentials = define(boolean, Doc{
		Name: "cors-allow-credentials", Scopes: notOnTheService, Format: "true or false", Default: "false",
		Effect: "Access-Control-Allow-Credentials. Since browsers take no `*` with it, the origin that asks is named instead, and the method and headers that a preflight asks for.",
	})
	corsMaxAge = define(duration, Doc{
		Name: "cors-max-age", Scopes: notOnTheService, Format: "time", Default: "5s",
		Effect: "Access-Control-Max-Age, in seconds.",
	})
	corsRespond = define(boolean, Doc{
		Name: "cors-respond-to-options", Scopes: notOnTheService, Format: "true or false", Default: "false",
		Effect: "Preflights are answered by HAProxy, with 204, before any authentication.",
	})
	cookieName = define(cookie, Doc{
		Name: own + "session-cookie-name", Scopes: everywhere, Format: "name of a cookie",
		Effect: "Clients come back to the server they came to first, by a cookie of this name.",
	})
	cookiePersistence = define(cookie, Doc{
		Name: "cookie-persistence", Scopes: everywhere, Format: "name of a cookie",
		Effect: "The same.",
	})
	cookieNoDynamic = define(cookie, Doc{
		Name: "cookie-persistence-no-dynamic", Scopes: everywhere, Format: "name of a cookie",
		Effect: "The same: the value is made of the server's address in any case, with a key of the appliance's own, and so is the same after a reload and a restart.",
	})
	cookieDomain = define(cookieDomainName, Doc{
		Name: own + "session-cookie-domain", Scopes: everywhere, Format: "domain",
		Effect: "Domain of that cookie. If nothing is said: the host alone.",
	})
	cookiePreserve = define(boolean, Doc{
		Name: own + "session-cookie-preserve", Scopes: everywhere, Format: "true or false", Default: "false",
		Effect: "A cookie of that name that a server sets itself is left as it is.",
	})
	cookieSameSite = define(sameSite, Doc{
		Name: own + "session-cookie-same-site", Scopes: everywhere, Format: "Strict, Lax or None; true is None",
		Effect: "SameSite of that cookie. None makes it Secure.",
	})
	cookieKeywords = define(cookieWords, Doc{
		Name: own + "session-cookie-keywords", Scopes: everywhere, Format: "of httponly, secure, maxidle TIME, maxlife TIME",
		Effect: "Whether that cookie is kept from scripts and from plain HTTP, and for how long it leads to its server.",
	})
	forwardedFor = define(boolean, Doc{
		Name: "forwarded-for", Scopes: everywhere, Format: "true or false", Default: "true",
		Effect: "The client's address is added to X-Forwarded-For.",
	})
	abortOnClose = define(boolean, Doc{
		Name: "abortonclose", Scopes: everywhere, Format: "true or false", Traffic: anyTraffic,
		Effect: "A request whose client has gone while it waited is dropped. HAProxy before 3.0 notices that only if the ConfigMap says so.",
	})
	loadBalance = define(haproxy.Balance, Doc{
		Name: "load-balance", Scopes: everywhere, Default: "roundrobin",
		Format: "roundrobin, leastconn, first, random[(draws)], source, uri [path-only] [whole] [len N] [depth N], url_param NAME [check_post], hdr(NAME) [use_domain_only]; static-rr is taken as roundrobin", Traffic: anyTraffic,
		Effect: "How requests are spread over the servers. Those that hash do so consistently.",
	})
	pathRewrite = defineLines(lines(rewrite), Doc{
		Name: "path-rewrite", Scopes: notOnTheService, Format: "a path; or a regular expression and a path with `\\1`; one a line",
		Effect: "The servers see another path.",
	})
	podMaxconn = define(number(1, 1<<20), Doc{
		Name: "pod-maxconn", Scopes: everywhere, Format: "number from 1", Traffic: anyTraffic,
		Effect: "Connections to one pod, at most; further requests wait.",
	})
	captures = defineLines(captureList, Doc{
		Name: "request-capture", Scopes: notOnTheService, Format: "a sample of the request, as `req.hdr(X-Request-Id)` or `cookie(id)`, one a line",
		Effect: "What it is stands in the log of the request (syslog-server).",
	})
	captureLen = define(number(1, 65535), Doc{
		Name: "request-capture-len", Scopes: notOnTheService, Format: "1 to 65535", Default: "128",
		Effect: "How many bytes of it.",
	})
	requestHeaders = defineLines(headers(haproxy.SetRequestHeader), Doc{
		Name: "request-set-header", Scopes: notOnTheService, Format: "`Name value`, one a line; a value may hold `%[...]`, see below",
		Effect: "Headers that the servers see.",
	})
	responseHeaders = defineLines(headers(haproxy.SetResponseHeader), Doc{
		Name: "response-set-header", Scopes: notOnTheService, Format: "`Name value`, one a line; a value may hold `%[...]`, see below",
		Effect: "Headers that the clients see.",
	})
	rateRequests = define(number(1, 1<<31-1), Doc{
		Name: "rate-limit-requests", Scopes: notOnTheService, Format: "number from 1",
		Effect: "Requests of one client to the Ingress within the period, at most. Each Ingress counts for itself.",
	})
	ratePeriod = define(period, Doc{
		Name: "rate-limit-period", Scopes: notOnTheService, Format: "time, from 1ms", Default: "1s",
		Effect: "The period.",
	})
	rateStatus = define(status(haproxy.DenyCodes), Doc{
		Name: "rate-limit-status-code", Scopes: notOnTheService, Format: "400, 401, 403, 404, 405, 407, 408, 410, 413, 425, 429, 500, 501, 502, 503 or 504", Default: "403",
		Effect: "What clients beyond the limit are answered.",
	})
	rateSize = define(size, Doc{
		Name: "rate-limit-size", Scopes: notOnTheService, Format: "number, with k or m", Default: "100k",
		Effect: "Clients that are counted; beyond that the oldest are forgotten.",
	})
	rateExcept = defineClients(Doc{
		Name: "rate-limit-whitelist", Scopes: notOnTheService,
		Effect: "Clients from there are not limited.",
	})
	redirect = define(location, Doc{
		Name: "request-redirect", Scopes: notOnTheService, Format: "host or host:port, with http:// or https:// in front if it is to change",
		Effect: "Requests are sent elsewhere, with their path and query, and their scheme if none is given.",
	})
	redirectCode = define(status(haproxy.RedirectCodes), Doc{
		Name: "request-redirect-code", Scopes: notOnTheService, Format: "301, 302, 303, 307 or 308", Default: "302",
		Effect: "Status of that redirect.",
	})
	setHost = define(filled(hostFormat), Doc{
		Name: "set-host", Scopes: notOnTheService, Format: "host; it may hold `%[...]`, see below",
		Effect: "The Host that the servers see.",
	})
	sendProxy = define(oneOf("proxy", "proxy-v1", "proxy-v2", "proxy-v2-ssl", "proxy-v2-ssl-cn"), Doc{
		Name: "send-proxy-protocol", Scopes: everywhere, Format: "proxy, proxy-v1, proxy-v2, proxy-v2-ssl or proxy-v2-ssl-cn", Traffic: anyTraffic,
		Effect: "Connections to servers begin with the PROXY protocol.",
	})
	serverSSL = define(boolean, Doc{
		Name: "server-ssl", Scopes: everywhere, Traffic: notPassed, Format: "true or false", Default: "false",
		Effect: "TLS to the servers; their certificate is not verified.",
	})
	serverProto = define(oneOf("h1", "h2"), Doc{
		Name: "server-proto", Scopes: everywhere, Format: "h2 or h1",
		Effect: "HTTP/2 to the servers, in the clear without server-ssl; or HTTP/1.1 alone.",
	})
	timeoutCheck = define(duration, Doc{
		Name: "timeout-check", Scopes: everywhere, Format: "time", Traffic: anyTraffic,
		Effect: "How long a check may take once it is connected.",
	})
	timeoutConnect = define(duration, Doc{
		Name: "timeout-connect", Scopes: everywhere, Format: "time", Default: "500ms", Traffic: anyTraffic,
		Effect: "How long a connection to a server may take. The next one is tried then.",
	})
	timeoutQueue = define(duration, Doc{
		Name: "timeout-queue", Scopes: everywhere, Format: "time", Default: "5s", Traffic: anyTraffic,
		Effect: "How long a request waits for a server below its pod-maxconn.",
	})
	timeoutTunnel = define(duration, Doc{
		Name: "timeout-tunnel", Scopes: everywhere, Format: "time", Default: "1h", Traffic: anyTraffic,
		Effect: "How long a WebSocket may be silent, or a connection that nobody looks into: of a TCP service, of ssl-passthrough.",
	})
	hsts = define(boolean, Doc{
		Name: own + "hsts", Scopes: notOnTheService, Format: "true or false", Default: "false",
		Effect: "Browsers are told, over HTTPS, to come by HTTPS alone.",
	})
	hstsMaxAge = define(number(0, 1<<31-1), Doc{
		Name: own + "hsts-max-age", Scopes: notOnTheService, Format: "seconds", Default: "15768000",
		Effect: "For how long they are told so.",
	})
	hstsSubdomains = define(boolean, Doc{
		Name: own + "hsts-include-subdomains", Scopes: notOnTheService, Format: "true or false", Default: "false",
		Effect: "For the names below, too.",
	})
	hstsPreload = define(boolean, Doc{
		Name: own + "hsts-preload", Scopes: notOnTheService, Format: "true or false", Default: "false",
		Effect: "Makers of browsers may put the name on their lists.",
	})
	bodySize = define(volume, Doc{
		Name: own + "proxy-body-size", Scopes: everywhere, Format: "bytes, or with k, m or g",
		Effect: "A request with a longer Content-Length is answered 413. A body without a Content-Length is not bounded.",
	})
	connections = define(number(1, 1<<31-1), Doc{
		Name: own + "limit-connections", Scopes: notOnTheService, Format: "number from 1",
		Effect: "Requests of one client to the Ingress that are under way at once, at most. Those beyond are answered 429.",
	})
	requestAdd = defineLines(headers(haproxy.AddRequestHeader), Doc{
		Name: own + "request-add-headers", Scopes: notOnTheService, Format: "`Name value`, one a line",
		Effect: "Headers that the servers see beside those of that name.",
	})
	requestDelete = defineLines(lines(haproxy.DeleteRequestHeader), Doc{
		Name: own + "request-del-headers", Scopes: notOnTheService, Format: "names, one a line",
		Effect: "Headers that the servers do not see.",
	})
	responseAdd = defineLines(headers(haproxy.AddResponseHeader), Doc{
		Name: own + "response-add-headers", Scopes: notOnTheService, Format: "`Name value`, one a line",
		Effect: "Headers that the clients see beside those of that name.",
	})
	responseDelete = defineLines(lines(haproxy.DeleteResponseHeader), Doc{
		Name: own + "response-del-headers", Scopes: notOnTheService, Format: "names, one a line",
		Effect: "Headers that the clients do not see.",
	})
	appRoot = define(haproxy.Root, Doc{
		Name: own + "app-root", Scopes: notOnTheService, Format: "a path",
		Effect: "A request for `/` is redirected there.",
	})
	timeoutServer = define(duration, Doc{
		Name: "timeout-server", Scopes: everywhere, Format: "time", Default: "50s", Traffic: anyTraffic,
		Effect: "How long a server may be silent.",
	})
	_ = define(boolean, Doc{
		Name: "standalone-backend", Scopes: Ingress | Service, Format: "true or false", Traffic: anyTraffic,
		Effect: "None is needed: an Ingress that sets something for itself has a backend of its own.",
	})
	_ = define(boolean, Doc{
		Name: "clean-certs", Scopes: ConfigMap, Format: "true or false",
		Effect: "None is needed: certificates that nobody names are always taken away.",
	})
	_ = define(number(0, 1<<20), Doc{
		Name: "scale-server-slots", Aliases: []Alias{{Name: "servers-increment"}, {Name: "server-increment"}, {Name: "server-slots"}}, Scopes: everywhere, Format: "number", Traffic: anyTraffic,
		Effect: "None is needed: servers come and go by command, without slots.",
	})
	sslRedirect = define(boolean, Doc{
		Name: "ssl-redirect", Scopes: notOnTheService, Format: "true or false", Traffic: anyTraffic,
		Effect: "Plain HTTP is redirected to HTTPS. If nothing is said: where the Ingress brings a certificate.",
	})
	sslRedirectCode = define(status(haproxy.RedirectCodes), Doc{
		Name: "ssl-redirect-code", Scopes: notOnTheService, Format: "301, 302, 303, 307 or 308", Default: "302", Traffic: anyTraffic,
		Effect: "Status of that redirect.",
	})
	sslRedirectPort = define(number(1, 65535), Doc{
		Name: "ssl-redirect-port", Scopes: notOnTheService, Format: "number", Traffic: anyTraffic,
		Effect: "Port of that redirect, left out of the URL if it is 443. If nothing is said: where HAProxy listens.",
	})
)

var sslPassthrough = define(boolean, Doc{
	Name: "ssl-passthrough", Scopes: everywhere, Format: "true or false", Default: "false", Traffic: anyTraffic,
	Effect: "TLS connections for the hosts go to the servers as they are, by the name in the handshake. Plain HTTP is redirected to them, if ssl-redirect is not false.",
})

// Passthrough says whether TLS connections go to a backend as they are.
func Passthrough(layers ...Layer) (bool, []Problem) {
	v := &values{layers: layers}
	yes, _ := get(v, sslPassthrough)
	return yes, v.problems
}

var class = define(func(s string) (string, error) { return s, nil }, Doc{
	Name: "ingress.class", Scopes: Ingress, Format: "name of an IngressClass", Older: "spec.ingressClassName",
	Effect: "An older way to say spec.ingressClassName, as is kubernetes.io/ingress.class, which goes before it.",
})

// Class is the name of the IngressClass that an Ingress names in its
// annotations, if it does.
func Class(annotations map[string]string) (name string, said bool) {
	if name, said = annotations["kubernetes.io/ingress.class"]; said {
		return name, true
	}
	v, said := known.values(Ingress, annotations)[class.Name]
	return v.Text, said
}

var defaultBackend = define(servicePort, Doc{
	Name: "default-backend-service", Scopes: ConfigMap, Refers: ServiceKind, Format: "namespace/Service, or namespace/Service:port",
	Effect: "What nobody has a host and a path for goes there, unless an Ingress without rules is the default of all. If nothing is said: 404.",
})

// A ServicePort names a port of a Service, by name or number, or its first one.
type ServicePort struct {
	Service Ref
	Port    string
}

// servicePort reads NAMESPACE/NAME or NAMESPACE/NAME:PORT.
func servicePort(s string) (ServicePort, error) {
	name, port, has := strings.Cut(s, ":")
	ref, err := reference(name)
	if err != nil || ref.Namespace == "" || has && port == "" || !dnsLabel.MatchString(ref.Name) {
		return ServicePort{}, fmt.Errorf("%s: want namespace/Service, or namespace/Service:port", quote(s))
	}
	return ServicePort{ref, port}, nil
}

// DefaultBackend is where requests go that no Ingress has a rule for.
func DefaultBackend(l Layer) (to ServicePort, said bool, problems []Problem) {
	v := &values{layers: []Layer{l}}
	to, said = get(v, defaultBackend)
	return to, said, v.problems
}

var pathType = define(oneOf(string(haproxy.Prefix), string(haproxy.Exact), string(haproxy.Begin), string(haproxy.Regexp)), Doc{
	Name: own + "path-type", Scopes: Ingress, Format: "prefix, exact, begin or regex", Default: "prefix",
	Effect: "How the paths of type ImplementationSpecific are compared: by element, whole, as a string (`/a` takes `/abc`), or as a regular expression from the beginning of the path. " +
		"Of a host exact paths go first, then regular expressions, the longest text first, then the longest path.",
})

// PathType is how the paths of an Ingress are compared that say nothing else.
func PathType(l Layer) (haproxy.PathMatch, []Problem) {
	v := &values{layers: []Layer{l}}
	match, _ := get(v, pathType)
	return haproxy.PathMatch(match), v.problems
}

var canaryWeight = define(number(0, 100), Doc{
	Name: own + "canary-weight", Scopes: Ingress, Format: "0 to 100",
	Effect: "This many of 100 requests, by chance, for the hosts and paths of an older Ingress of the namespace, go to the Services of this one. It changes without a reload.",
})

// Canary is how many of 100 requests an Ingress takes over from others; said is
// false for one that does not.
func Canary(l Layer) (weight int, said bool, problems []Problem) {
	v := &values{layers: []Layer{l}}
	weight, said = get(v, canaryWeight)
	if !said && len(v.problems) > 0 {
		weight, said = 0, true // what was to be a few requests is not all of them
	}
	return weight, said, v.problems
}

// A Redirect is how plain HTTP is redirected to HTTPS.
type Redirect struct {
	Wanted *bool // nil if nothing is said
	Code   int
	Port   uint16 // 0 if nothing is said
}

// SSLRedirect reads the keys that are about routing, not about a backend.
func SSLRedirect(layers ...Layer) (Redirect, []Problem) {
	v := &values{layers: layers}
	r := Redirect{}
	if yes, said := get(v, sslRedirect); said {
		r.Wanted = &yes
	}
	r.Code, _ = get(v, sslRedirectCode)
	if port, said := get(v, sslRedirectPort); said {
		r.Port = uint16(port) //nolint:gosec // read as one
	}
	return r, v.problems
}
