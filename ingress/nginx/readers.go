package nginx

import (
	"cmp"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sallyport/ingress/annotations"
)

// as returns a reader for an annotation with the values of a key.
func as(key string) func(*reading, string) {
	return func(r *reading, value string) { r.say(key, r.at.Name, value) }
}

// also adds the value of an annotation, if it is set, for a key.
func (r *reading) also(name, key string) {
	if value, has := r.values[name]; has {
		r.say(key, name, value)
	}
}

// AnyCase returns a path that is a regular expression, as one that matches in any case.
func AnyCase(path string) string {
	if path == "/" || path == "" {
		return path
	}
	return path[:1] + "(?i:" + path[1:] + ")"
}

// Written returns the path that an Ingress has, out of the one that AnyCase returned.
func Written(path string) string {
	if inner, is := strings.CutPrefix(path, "/(?i:"); is {
		return "/" + strings.TrimSuffix(inner, ")")
	}
	return path
}

// whole returns an expression for the paths that a path of nginx matches.
func whole(path string) string { return "(?i:" + path + ")" }

// rewrite replaces the whole path of a request. Each path of the Ingress is an expression for it.
func rewrite(r *reading, value string) {
	paths := slices.Clone(r.Paths)
	slices.SortFunc(paths, func(a, b string) int { // the order of nginx
		return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(b, a))
	})
	paths = slices.Compact(paths)
	if len(paths) == 1 && paths[0] == value {
		r.mark(r.at.Name, Same, "")
		return // as nginx has it
	}
	var lines []string
	for _, path := range paths {
		to, err := target(value, groups(path))
		if err == nil && (strings.ContainsAny(path, " \t\"'") || path == "") {
			err = errors.New("a path of the Ingress is no expression that HAProxy can have")
		}
		if err != nil {
			r.fail(r.at, "%v", err)
			return
		}
		lines = append(lines, whole(path)+" "+to)
	}
	if len(lines) == 0 {
		return
	}
	r.say(pathType, r.at.Name, "regex")
	r.say("path-rewrite", r.at.Name, strings.Join(lines, "\n"))
	if len(lines) > 1 {
		r.say("sallyport.dev/path-rewrite-first", r.at.Name, "true")
	}
}

// groups returns how many groups an expression has that a target can name.
func groups(path string) int {
	e, err := regexp.Compile(path)
	if err != nil {
		return 0 // it is not served
	}
	return e.NumSubexp()
}

func useRegex(r *reading, _ string) {
	if r.is(r.at.Name) {
		r.say(pathType, r.at.Name, "regex")
	}
}

func sslRedirect(r *reading, value string) {
	if yes, err := boolean(value); err != nil {
		r.refuse(r.at, "%v", err)
	} else if !yes {
		r.say("ssl-redirect", r.at.Name, "false")
		r.mark(r.at.Name, Same, "")
	}
}

func forceRedirect(r *reading, _ string) {
	if r.is(r.at.Name) {
		r.say("ssl-redirect", r.at.Name, "true")
	}
}

func permanentRedirect(r *reading, value string) {
	if r.values["temporal-redirect"] == "" {
		redirect(r, value, "permanent-redirect-code", 301, 308)
	} else {
		r.mark(r.at.Name, Void, "The Ingress has `temporal-redirect`, which overrides it.")
	}
}

func temporalRedirect(r *reading, value string) {
	redirect(r, value, "temporal-redirect-code", 302, 307)
}

// redirect reads a redirect, and its status from another annotation. Like ingress-nginx, it takes the usual
// status for a number that is not from 300 to most.
func redirect(r *reading, value, codeName string, usual, most int) {
	if err := plain(value); err != nil {
		r.refuse(r.at, "%v", err)
		return
	}
	name, code := r.at.Name, usual
	if said, has := r.values[codeName]; has {
		switch n, err := strconv.Atoi(said); {
		case err != nil:
			r.refuse(known[codeName], "%s is not a number", annotations.Quote(said))
		case n < 300 || n > most:
			r.mark(codeName, Same, "")
		case !slices.Contains([]int{301, 302, 303, 307, 308}, n):
			r.fail(known[codeName], "%d is not served: allowed are 301, 302, 303, 307 and 308", n)
		default:
			name, code = codeName, n
			r.mark(codeName, Same, "")
		}
	}
	r.say("sallyport.dev/redirect-to", r.at.Name, value)
	r.say("request-redirect-code", name, strconv.Itoa(code))
}

func forwardedPrefix(r *reading, value string) {
	if r.values["rewrite-target"] == "" {
		return
	}
	if to, err := text(value); err != nil {
		r.fail(r.at, "%v", err)
	} else if to != "" {
		r.set(r.at.Name, "X-Forwarded-Prefix", to)
	}
}

func upstreamHost(r *reading, value string) {
	to, err := text(value)
	if err != nil {
		r.fail(r.at, "%v", err)
		return
	}
	r.say("set-host", r.at.Name, to)
}

func wwwRedirect(r *reading, _ string) {
	if r.is(r.at.Name) {
		r.say("sallyport.dev/from-to-www-redirect", r.at.Name, "true")
	}
}

func serverAlias(r *reading, value string) {
	var names, expressions []string
	for _, name := range list(value) {
		if strings.HasPrefix(name, "~") {
			expressions = append(expressions, name)
		} else {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		r.say("sallyport.dev/server-alias", r.at.Name, strings.Join(names, ","))
	}
	if len(expressions) > 0 {
		r.fail(r.at, "%s is a regular expression; only names of hosts are served", annotations.Quote(expressions[0]))
	}
}

func canary(r *reading, _ string) {
	if !r.is(r.at.Name) {
		return
	}
	name, weight, total := r.at.Name, 0, 100
	if value, has := r.values["canary-weight-total"]; has {
		n, err := number(value, 1, 1<<30)
		if err != nil {
			r.refuse(known["canary-weight-total"], "%v", err)
		}
		total = max(n, 100)
	}
	if value, has := r.values["canary-weight"]; has {
		n, err := number(value, 0, 1<<30)
		if err != nil {
			r.refuse(known["canary-weight"], "%v", err)
		}
		name, weight = "canary-weight", min(n, total)
	}
	r.say("sallyport.dev/canary-weight", name, strconv.Itoa((weight*100+total/2)/total))
	r.also("canary-by-header", "sallyport.dev/canary-by-header")
	if r.values["canary-by-header-value"] != "" {
		r.also("canary-by-header-value", "sallyport.dev/canary-by-header-value")
		if _, has := r.values["canary-by-header-pattern"]; has {
			r.mark("canary-by-header-pattern", Void, "The Ingress has `canary-by-header-value`, which overrides it.")
		}
	} else {
		r.also("canary-by-header-pattern", "sallyport.dev/canary-by-header-pattern")
	}
	r.also("canary-by-cookie", "sallyport.dev/canary-by-cookie")
	if behavior := r.values["affinity-canary-behavior"]; r.values["affinity"] == "cookie" && behavior != "legacy" {
		r.say("sallyport.dev/canary-affinity", r.source("affinity-canary-behavior"), "true")
	}
}

// canaryBehavior checks the value that canary reads.
func canaryBehavior(r *reading, value string) {
	switch value {
	case "sticky":
	case "legacy":
		r.mark(r.at.Name, Same, "")
	default:
		r.refuse(r.at, "%s: allowed are sticky and legacy", annotations.Quote(value))
	}
}

func authType(r *reading, value string) {
	switch strings.ToLower(value) {
	case "basic":
	case "digest":
		r.fail(r.at, "%s: HAProxy can check only basic", annotations.Quote(value))
		return
	default:
		r.refuse(r.at, "%s: HAProxy can check only basic", annotations.Quote(value))
		return
	}
	r.say("auth-type", r.at.Name, "basic-auth")
	r.mark(r.at.Name, Differs, "Servers see the header Authorization.")
	r.also("auth-secret", "auth-secret")
	r.also("auth-realm", "auth-realm")
}

func satisfy(r *reading, value string) {
	switch value {
	case "all":
		r.mark(r.at.Name, Same, "")
	case "any":
		r.say("sallyport.dev/satisfy", r.at.Name, value)
	default:
		r.refuse(r.at, "%s: allowed are all and any", annotations.Quote(value))
	}
}

func globalAuth(r *reading, value string) {
	yes, err := boolean(value)
	_, password := r.values["auth-type"]
	_, asks := r.values["auth-url"]
	switch {
	case err != nil:
		r.refuse(r.at, "%v", err)
	case !yes && !password && !asks:
		r.say("auth-type", r.at.Name, "none")
	}
}

// service matches the URL of a Service: its name, its namespace, a port and a path.
var service = regexp.MustCompile(
	`^http://([a-z0-9-]+)(?:\.([a-z0-9-]+))?(?:\.svc(?:\.cluster\.local)?)?(?::([0-9]+))?(/.*)?$`)

// itself matches the URL of a path at the host of the request, and served one at a host that is named.
var (
	itself = regexp.MustCompile(`^https?://\$\{?(?:host|http_host|best_http_host)\}?(?::[0-9]+)?(/.*)$`)
	served = regexp.MustCompile(`^https?://[a-z0-9.-]+\.[a-z0-9-]+(?::(?:80|443))?/.*$`)
	atPort = regexp.MustCompile(`^(https?://[^/:]+):[0-9]+/`)
)

// asked returns the value of sallyport.dev/auth-url for a URL.
func asked(url string) (string, error) {
	if m := itself.FindStringSubmatch(url); m != nil {
		return m[1], plain(m[1])
	}
	if err := plain(url); err != nil {
		return "", err
	}
	m := service.FindStringSubmatch(url)
	if m == nil {
		if !served.MatchString(url) {
			return "", errors.New("it names neither a Service of the cluster nor a path of a host")
		}
		return atPort.ReplaceAllString(url, "$1/"), nil
	}
	to := "svc://"
	if m[2] != "" {
		to += m[2] + "/"
	}
	return to + m[1] + ":" + cmp.Or(m[3], "80") + cmp.Or(m[4], "/"), nil
}

func authURL(r *reading, value string) {
	to, err := asked(value)
	if err != nil {
		r.fail(r.at, "%s: %v: set sallyport.dev/auth-url: svc://NAMESPACE/NAME:PORT/PATH", annotations.Quote(value),
			err)
		return
	}
	r.say("sallyport.dev/auth-url", r.at.Name, to)
	if !strings.HasPrefix(to, "svc://") {
		r.mark(r.at.Name, Differs, "The Service of this path is asked directly. Its failures are answered 503.")
	}
	switch method := cmp.Or(r.values["auth-method"], "GET"); method {
	case "GET", "HEAD", "POST":
		r.also("auth-method", "sallyport.dev/auth-method")
	case "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE":
		r.fail(known["auth-method"], "%s: allowed are GET, HEAD and POST", annotations.Quote(method))
	default:
		r.refuse(known["auth-method"], "%s: allowed are GET, HEAD and POST", annotations.Quote(method))
	}
	r.also("auth-response-headers", "sallyport.dev/auth-headers-succeed")
	r.also("auth-proxy-set-headers", "sallyport.dev/auth-set-headers-from")
	if back, err := text(r.values["auth-request-redirect"]); err != nil {
		r.fail(known["auth-request-redirect"], "%v", err)
	} else if back != "" {
		r.say("sallyport.dev/auth-set-headers", "auth-request-redirect", "X-Auth-Request-Redirect "+back)
	}
	if page, has := r.values["auth-signin"]; has {
		to, err := text(page)
		if err != nil {
			r.fail(known["auth-signin"], "%v", err)
			return
		}
		param := cmp.Or(r.values["auth-signin-redirect-param"], "rd")
		if err := plain(param); err != nil || !word.MatchString(param) {
			r.fail(known["auth-signin-redirect-param"], "%s is not the name of a parameter", annotations.Quote(param))
			return
		}
		if !strings.Contains(to, "?"+param+"=") && !strings.Contains(to, "&"+param+"=") {
			between := "?"
			if strings.Contains(to, "?") {
				between = "&"
			}
			to += between + param + "=%[req.hdr(x-forwarded-proto)]://%[req.hdr(host)]%[pathq,url_enc]"
		}
		r.say("sallyport.dev/auth-signin", "auth-signin", to)
	}
}

// copied matches the URL of a Service, and the path after it, which may begin with a variable.
var copied = regexp.MustCompile(
	`^http://(([a-z0-9-]+)(?:\.([a-z0-9-]+))?(?:\.svc(?:\.cluster\.local)?)?)(?::([0-9]+))?([/$].*)$`)

func mirrorTarget(r *reading, value string) {
	m := copied.FindStringSubmatch(value)
	if m == nil {
		r.fail(r.at, "%s is not a Service of the cluster, as http://NAME.NAMESPACE.svc.cluster.local:PORT$request_uri",
			annotations.Quote(value))
		return
	}
	path, err := text(m[5])
	if err != nil {
		r.fail(r.at, "%v", err)
		return
	}
	to := "svc://"
	if m[3] != "" {
		to += m[3] + "/"
	}
	r.say("sallyport.dev/mirror-to", r.at.Name, to+m[2]+":"+cmp.Or(m[4], "80"))
	r.say("sallyport.dev/mirror-path", r.at.Name, path)
	r.say("sallyport.dev/mirror-host", r.source("mirror-host"), cmp.Or(r.values["mirror-host"], m[1]))
	if r.values["mirror-request-body"] == "off" {
		r.say("sallyport.dev/mirror-body", "mirror-request-body", "false")
	}
}

// customErrors replaces answers of servers, unless disable-proxy-intercept-errors keeps them.
func customErrors(r *reading, value string) {
	if keep, err := boolean(r.values["disable-proxy-intercept-errors"]); err == nil && keep {
		r.mark(r.at.Name, Void, "The Ingress has `disable-proxy-intercept-errors`.")
		return
	}
	r.say("sallyport.dev/error-pages", r.at.Name, value)
}

func keepErrors(r *reading, _ string) {
	if r.is(r.at.Name) {
		r.say("sallyport.dev/error-pages", r.at.Name, "off")
	}
}

var word = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

func clientCA(r *reading, value string) {
	switch verify := cmp.Or(r.values["auth-tls-verify-client"], "on"); verify {
	case "on":
		r.trust(value)
		r.also("auth-tls-error-page", "sallyport.dev/client-crt-error-page")
		r.mark("auth-tls-verify-client", Same, "")
	case "optional":
		r.trust(value)
		r.say("client-crt-optional", "auth-tls-verify-client", "true")
		if _, has := r.values["auth-tls-error-page"]; has {
			r.fail(known["auth-tls-error-page"], "clients need no certificate, since auth-tls-verify-client is "+
				"optional")
		}
		r.mark("auth-tls-verify-client", Same, "")
	case "off":
		r.mark("auth-tls-verify-client", Same, "")
		r.mark(r.at.Name, Void, "`auth-tls-verify-client` is off.")
		if _, has := r.values["auth-tls-match-cn"]; has {
			r.fail(known["auth-tls-match-cn"], "no client has a certificate, since auth-tls-verify-client is off")
		}
	default:
		r.fail(known["auth-tls-verify-client"], "%s: allowed are on, off and optional", annotations.Quote(verify))
	}
}

// trust names the authority of clients' certificates, and shows servers what was found out about them.
func (r *reading) trust(authority string) {
	r.say("client-ca", r.at.Name, authority)
	r.set(r.at.Name, "ssl-client-verify", "%[ssl_c_used,iif(SUCCESS,NONE)]")
	r.set(r.at.Name, "ssl-client-subject-dn", "%[ssl_c_s_dn(,0,rfc2253)]")
	r.set(r.at.Name, "ssl-client-issuer-dn", "%[ssl_c_i_dn(,0,rfc2253)]")
	if r.is("auth-tls-pass-certificate-to-upstream") {
		r.say("sallyport.dev/client-crt-header", "auth-tls-pass-certificate-to-upstream", "ssl-client-cert")
	}
	switch expression, has := r.values["auth-tls-match-cn"]; {
	case has && !strings.Contains(expression, "CN="):
		r.refuse(known["auth-tls-match-cn"], `%s has no "CN="`, annotations.Quote(expression))
	case has:
		r.say("sallyport.dev/client-crt-match", "auth-tls-match-cn", expression)
	}
}

// limitRate reads KiB a second. 0 is no limit.
func limitRate(r *reading, value string) {
	n, err := number(value, 0, 1<<20)
	switch {
	case err != nil:
		r.refuse(r.at, "%v", err)
	case n == 0:
		r.mark(r.at.Name, Same, "")
	default:
		r.say("sallyport.dev/limit-rate", r.at.Name, value+"k")
	}
}

func limitRPS(r *reading, value string) { limit(r, value, 1) }

// limitAllowlist reads limit-allowlist and limit-whitelist, which limit-connections does not heed here.
func limitAllowlist(r *reading, value string) {
	as("rate-limit-whitelist")(r, value)
	if r.values["limit-connections"] != "" && r.values["limit-rps"] == "" && r.values["limit-rpm"] == "" {
		for _, name := range []string{"limit-allowlist", "limit-whitelist"} {
			r.mark(name, Lost, "`limit-connections` counts the connections of all clients here")
		}
	}
}

func limitRPM(r *reading, value string) {
	if r.values["limit-rps"] == "" {
		limit(r, value, 60)
	} else {
		r.mark(r.at.Name, Lost, "`limit-rps` overrides it, and ingress-nginx has both limits")
	}
}

// limit counts the burst of nginx within the period: of r requests a second with a burst of m times r,
// a client may send r times (m+1) within m+1 seconds.
func limit(r *reading, value string, period int) {
	if value == "0" {
		r.mark(r.at.Name, Same, "")
		return // no limit
	}
	rate, err := number(value, 1, 1<<20)
	if err != nil {
		r.refuse(r.at, "%v", err)
		return
	}
	burst := 5
	if said, has := r.values["limit-burst-multiplier"]; has {
		if burst, err = number(said, 1, 1000); err != nil {
			r.refuse(known["limit-burst-multiplier"], "%v", err)
			burst = 5
		}
	}
	r.say("rate-limit-requests", r.at.Name, strconv.Itoa(rate*(burst+1)))
	r.say("rate-limit-period", r.at.Name, strconv.Itoa(period*(burst+1))+"s")
	r.say("rate-limit-status-code", r.at.Name, "503")
}

func cors(r *reading, _ string) {
	if !r.is(r.at.Name) {
		return
	}
	origin, anyone, odd := origins(cmp.Or(r.values["cors-allow-origin"], "*"))
	if odd != nil {
		r.refuse(known["cors-allow-origin"], "%v; pages of this origin are not allowed", odd)
	}
	if origin == "" {
		return
	}
	r.say("cors-enable", r.at.Name, "true")
	r.say("cors-respond-to-options", r.at.Name, "true")
	r.say("cors-allow-origin", r.source("cors-allow-origin"), origin)
	for _, list := range []struct {
		name, key string
		form      *regexp.Regexp
		usual     string
	}{
		{"cors-allow-methods", "cors-allow-methods", methodList, "GET, PUT, POST, DELETE, PATCH, OPTIONS"},
		{
			"cors-allow-headers", "cors-allow-headers", headerList, "DNT,Keep-Alive,User-Agent,X-Requested-With," +
				"If-Modified-Since,Cache-Control,Content-Type,Range,Authorization",
		},
		{"cors-expose-headers", "sallyport.dev/cors-expose-headers", exposeList, ""},
	} {
		value := cmp.Or(r.values[list.name], list.usual)
		if value != "" && !list.form.MatchString(value) {
			r.refuse(known[list.name], "%s is not a list of names with commas", annotations.Quote(value))
			value = list.usual
		}
		if value != "" {
			r.say(list.key, r.source(list.name), value)
		}
	}
	age := cmp.Or(r.values["cors-max-age"], "1728000")
	if _, err := number(age, 0, 1<<30); err != nil {
		r.refuse(known["cors-max-age"], "%v", err)
		age = "1728000"
	}
	r.say("cors-max-age", r.source("cors-max-age"), age+"s")
	if anyone {
		r.mark("cors-allow-origin", Same, "")
	} else if _, has := r.values["cors-allow-credentials"]; has {
		r.mark("cors-allow-credentials", Same, "")
	}
	credentials, err := boolean(cmp.Or(r.values["cors-allow-credentials"], "true"))
	if err != nil {
		r.refuse(known["cors-allow-credentials"], "%v", err)
		credentials = true
	}
	r.say("cors-allow-credentials", r.source("cors-allow-credentials"), strconv.FormatBool(credentials && !anyone))
}

// The lists that ingress-nginx accepts. For any other list it takes the default.
var (
	methodList = regexp.MustCompile(`^[A-Za-z]+(, ?[A-Za-z]+)*$`)
	headerList = regexp.MustCompile(`^[\w-]+(, ?[\w-]+)*$`)
	exposeList = regexp.MustCompile(`^([\w-]+|\*)(, ?([\w-]+|\*))*$`)
)

// source returns the annotation that a value comes from: name if the Ingress has it, or else the
// annotation that is read now.
func (r *reading) source(name string) string {
	if _, has := r.values[name]; has {
		return name
	}
	return r.at.Name
}

// originForm matches an origin, which may have one label "*".
var originForm = regexp.MustCompile(`^([a-z][a-z0-9+.-]*)://(\*\.)?([A-Za-z0-9.-]+)(?::([0-9]+))?$`)

// origins returns the expression for a list of origins. It is "*" if anyone is allowed, and empty if the list
// has no origin. odd names an entry that is no origin.
func origins(list string) (expression string, anyone bool, odd error) {
	var all []string
	for one := range strings.SplitSeq(list, ",") {
		one = strings.TrimSpace(one)
		m := originForm.FindStringSubmatch(one)
		switch {
		case one == "*":
			return "*", true, nil
		case one == "":
			continue
		case one == "null":
			all = append(all, "null")
			continue
		case m == nil:
			odd = errors.New(annotations.Quote(one) + " is not an origin, as https://page.example")
			continue
		}
		host := regexp.QuoteMeta(m[3])
		if m[2] != "" {
			host = `[A-Za-z0-9-]+\.` + host
		}
		if m[4] != "" {
			host += ":" + m[4]
		}
		all = append(all, regexp.QuoteMeta(m[1])+"://"+host)
	}
	if len(all) == 0 {
		return "", false, cmp.Or(odd, errors.New("it names no origin"))
	}
	return "(?i:" + strings.Join(all, "|") + ")", false, odd
}

func backendProtocol(r *reading, value string) {
	const allowed = "%s: allowed are HTTP, HTTPS, GRPC, GRPCS and FCGI"
	tls, h2, fcgi := false, false, false
	switch strings.ToUpper(value) {
	case "HTTP":
	case "FCGI":
		fcgi = true
	case "HTTPS":
		tls = true
	case "GRPC":
		h2 = true
	case "GRPCS":
		tls, h2 = true, true
	case "AUTO_HTTP":
		r.fail(r.at, allowed, annotations.Quote(value))
		return
	default:
		r.refuse(r.at, allowed, annotations.Quote(value))
		return
	}
	r.fastCGI(fcgi)
	if h2 {
		r.say("server-proto", r.at.Name, "h2")
	}
	if !tls {
		for _, row := range known {
			if _, failed := r.notes[row.Name]; strings.HasPrefix(row.Name, "proxy-ssl-") && !failed {
				r.mark(row.Name, Void, "It has no effect without TLS to the servers.")
			}
		}
		return
	}
	r.say("server-ssl", r.at.Name, "true")
	secret, has := r.values["proxy-ssl-secret"]
	verify := r.on("proxy-ssl-verify") && has
	if has {
		r.say("server-crt", "proxy-ssl-secret", secret)
	}
	if verify {
		r.say("server-ca", "proxy-ssl-secret", secret)
	}
	if has {
		r.also("proxy-ssl-ciphers", "sallyport.dev/server-ssl-ciphers")
		r.versions("proxy-ssl-protocols")
	}
	if name, has := r.values["proxy-ssl-name"]; has {
		if r.on("proxy-ssl-server-name") {
			r.say("sallyport.dev/secure-sni", "proxy-ssl-name", name)
		}
		if verify {
			r.say("sallyport.dev/secure-verify-hostname", "proxy-ssl-name", name)
		}
	}
}

// fastCGI reads the annotations about FastCGI, which have no effect with another protocol.
func (r *reading) fastCGI(is bool) {
	if !is {
		r.mark(r.at.Name, Same, "")
		for _, name := range []string{"fastcgi-index", "fastcgi-params-configmap"} {
			r.mark(name, Void, "It has no effect without `backend-protocol` FCGI.")
		}
		return
	}
	r.say("server-proto", r.at.Name, "fcgi")
	r.say("sallyport.dev/fcgi-docroot", r.at.Name, documentRoot)
	r.also("fastcgi-index", "sallyport.dev/fcgi-index")
	r.also("fastcgi-params-configmap", "sallyport.dev/fcgi-params-from")
}

// documentRoot is $document_root in ingress-nginx.
const documentRoot = "/usr/local/nginx/html"

// versions reads versions of TLS to the servers.
func (r *reading) versions(name string) {
	all := []string{"TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"}
	oldest, newest, n := len(all), -1, 0
	for i, version := range all {
		if slices.Contains(strings.Fields(r.values[name]), version) {
			oldest, newest, n = min(oldest, i), i, n+1
		}
	}
	for word := range strings.FieldsSeq(r.values[name]) {
		switch {
		case word == "SSLv2" || word == "SSLv3":
			r.fail(known[name], "%s is not served", word)
		case !slices.Contains(all, word):
			r.refuse(known[name], "%s is not a version of TLS", annotations.Quote(word))
			return
		}
	}
	if n == 0 {
		return
	}
	if n <= newest-oldest {
		r.mark(name, Differs, "The versions between these are allowed, too.")
	}
	haproxy := func(version string) string {
		if version == all[0] {
			return "TLSv1.0"
		}
		return version
	}
	r.say("sallyport.dev/server-ssl-min-ver", name, haproxy(all[oldest]))
	r.say("sallyport.dev/server-ssl-max-ver", name, haproxy(all[newest]))
}

// on reports whether the value of an annotation is "on", as directives of nginx have it.
func (r *reading) on(name string) bool {
	value, has := r.values[name]
	if has && value != "on" && value != "off" {
		r.refuse(known[name], `%s is neither "on" nor "off"`, annotations.Quote(value))
	}
	return value == "on"
}

func connectTimeout(r *reading, value string) {
	if n, err := seconds(value); err != nil {
		r.refuse(r.at, "%v", err)
	} else {
		r.say("timeout-connect", r.at.Name, strconv.Itoa(n)+"s")
	}
}

func serverTimeout(r *reading, value string) {
	if _, err := seconds(value); err != nil {
		r.refuse(r.at, "%v", err)
		return
	}
	most := 0
	for _, name := range []string{"proxy-read-timeout", "proxy-send-timeout"} {
		n, err := seconds(cmp.Or(r.values[name], "60"))
		if err == nil {
			most = max(most, n)
		}
	}
	r.say("timeout-server", r.at.Name, strconv.Itoa(most)+"s")
	if most > 3600 {
		r.say("timeout-tunnel", r.at.Name, strconv.Itoa(most)+"s")
	}
}

// size matches a size as nginx has it.
var size = regexp.MustCompile(`^[0-9]+[kKmMgG]?$`)

func bodySize(r *reading, value string) {
	switch {
	case !size.MatchString(value):
		r.refuse(r.at, "%s is not a number, with k, m or g at its end", annotations.Quote(value))
	case value == "0":
		r.mark(r.at.Name, Same, "")
	default:
		r.say("sallyport.dev/proxy-body-size", r.at.Name, strings.ToLower(value))
	}
}

// bufferSize marks a size beyond the one that headers of answers can have here.
func bufferSize(r *reading, value string) {
	if !size.MatchString(value) {
		r.refuse(r.at, "%s is not a number, with k, m or g at its end", annotations.Quote(value))
		return
	}
	digits := strings.TrimRight(strings.ToLower(value), "kmg")
	n, err := strconv.Atoi(digits)
	if unit := strings.ToLower(value)[len(digits):]; unit == "k" {
		n <<= 10
	} else if unit != "" {
		n = 1 << 20 // or more
	}
	if err != nil || n > 15<<10 {
		r.mark(r.at.Name, Differs, r.at.Note)
	}
}

func httpVersion(r *reading, value string) {
	if value != "1.1" {
		r.mark(r.at.Name, Differs, r.at.Note)
	}
}

func loadBalance(r *reading, value string) {
	if r.values["upstream-hash-by"] != "" {
		r.mark(r.at.Name, Void, "The Ingress has `upstream-hash-by`, which overrides it.")
		return
	}
	algorithm := map[string]string{"round_robin": "roundrobin", "ewma": "leastconn"}[value]
	if algorithm == "" {
		r.fail(r.at, "%s: allowed are round_robin and ewma", annotations.Quote(value))
		return
	}
	if value == "round_robin" {
		r.mark(r.at.Name, Same, "")
	}
	r.say("load-balance", r.at.Name, algorithm)
}

func hashBy(r *reading, value string) {
	name, rest, is := annotations.CutVariable(strings.TrimPrefix(value, "$"))
	if !is || rest != "" || !strings.HasPrefix(value, "$") {
		name = ""
	}
	var algorithm string
	switch header, isHeader := strings.CutPrefix(name, "http_"); {
	case name == "request_uri":
		algorithm = "uri whole"
	case name == "uri":
		algorithm = "uri"
	case name == "remote_addr" || name == "binary_remote_addr":
		algorithm = "source"
	case name == "host":
		algorithm = "hdr(host)"
	case isHeader && header != "":
		algorithm = "hdr(" + strings.ReplaceAll(header, "_", "-") + ")"
	case strings.HasPrefix(name, "arg_") && name != "arg_":
		algorithm = "url_param " + strings.TrimPrefix(name, "arg_")
	default:
		r.fail(r.at, "%s is not one variable of $request_uri, $uri, $remote_addr, $host, $http_NAME and $arg_NAME",
			annotations.Quote(value))
		return
	}
	r.say("load-balance", r.at.Name, algorithm)
}

func logged(r *reading, value string) {
	if yes, err := boolean(value); err != nil {
		r.refuse(r.at, "%v", err)
	} else {
		r.say("sallyport.dev/access-log", r.at.Name, strconv.FormatBool(yes))
		if yes {
			r.mark(r.at.Name, Same, "")
		}
	}
}

// reasons are the words of HAProxy for those of nginx after which a request is sent to another server.
var reasons = map[string]string{
	"error": "empty-response", "timeout": "response-timeout", "invalid_header": "empty-response, junk-response",
	"http_403": "403", "http_404": "404", "http_500": "500", "http_502": "502", "http_503": "503", "http_504": "504",
}

func nextUpstream(r *reading, value string) {
	const key = "sallyport.dev/retries"
	words, on, odd := strings.Fields(value), []string{"conn-failure"}, ""
	for _, word := range words {
		switch word {
		case "off", "http_429", "non_idempotent":
			odd = word
		default:
			if reasons[word] == "" {
				r.refuse(r.at, "%s is no reason to ask another server", annotations.Quote(word))
				return
			}
			on = append(on, reasons[word])
		}
	}
	if slices.Contains(words, "off") {
		r.say(key, r.at.Name, "0")
		r.mark(r.at.Name, Same, "")
		r.mark("proxy-next-upstream-tries", Void, "`proxy-next-upstream` is off.")
		return
	}
	r.say("sallyport.dev/retry-on", r.at.Name, strings.Join(on, ", "))
	if _, has := r.values["proxy-next-upstream-tries"]; !has {
		r.say(key, r.at.Name, "2")
	}
	if odd != "" {
		r.fail(r.at, "%s is not served", odd)
	}
}

// nextTries reads how many servers get a request. 0 is as many as there are.
func nextTries(r *reading, value string) {
	const most = 11
	n, err := number(value, 0, 1<<30)
	if err != nil {
		r.refuse(r.at, "%v", err)
		return
	}
	if n == 0 || n > most {
		if _, marked := r.notes[r.at.Name]; !marked {
			r.mark(r.at.Name, Differs, "A request is sent to 11 servers at most.")
		}
		n = most
	}
	r.say("sallyport.dev/retries", r.at.Name, strconv.Itoa(n-1))
}

// replaces returns a reader for off, or for a text and the one that replaces it.
func replaces(key string) func(*reading, string) {
	return func(r *reading, value string) {
		err := plain(value)
		switch words := strings.Fields(value); {
		case err != nil:
			r.refuse(r.at, "%v", err)
		case value != "off" && len(words) != 2:
			r.refuse(r.at, "%s is neither off nor two words", annotations.Quote(value))
		case strings.HasPrefix(value, "~"):
			r.fail(r.at, "%s is a regular expression", annotations.Quote(words[0]))
		default:
			r.say(key, r.at.Name, value)
			r.mark(r.at.Name, Same, "")
		}
	}
}

// proxyRedirect reads proxy-redirect-from and proxy-redirect-to. ingress-nginx has no redirect to replace by default.
func proxyRedirect(r *reading, from string) {
	const key, name = "sallyport.dev/response-location", "proxy-redirect-to"
	to := r.values[name]
	switch {
	case from == "off" || from == "default":
		r.say(key, r.at.Name, "off")
		r.mark(r.at.Name, Same, "")
		r.mark(name, Void, "`proxy-redirect-from` is "+from+".")
	case to == "" || to == "off":
		r.mark(r.at.Name, Void, r.at.needs())
	case strings.Contains(from+to, "$"):
		r.fail(r.at, "variables of nginx are not served")
	case strings.HasPrefix(from, "~"):
		r.fail(r.at, "%s is a regular expression", annotations.Quote(from))
	case strings.Contains(from+to, " "):
		r.refuse(r.at, "%s has a space", annotations.Quote(from+" "+to))
	default:
		r.say(key, r.at.Name, from+" "+to)
		if strings.Contains(to, "://") {
			r.mark(r.at.Name, Same, "")
			r.mark(name, Same, "")
		}
	}
}

var sameSite = []string{"Strict", "Lax", "None"}

func affinity(r *reading, value string) {
	if value != "cookie" {
		r.refuse(r.at, "%s: allowed is cookie", annotations.Quote(value))
		return
	}
	r.say("sallyport.dev/session-cookie-name", r.source("session-cookie-name"),
		cmp.Or(r.values["session-cookie-name"], "INGRESSCOOKIE"))
	r.also("session-cookie-domain", "sallyport.dev/session-cookie-domain")
	if value, has := r.values["session-cookie-samesite"]; has {
		i := slices.IndexFunc(sameSite, func(s string) bool { return strings.EqualFold(s, value) })
		if i < 0 {
			r.refuse(known["session-cookie-samesite"], "%s: allowed are Strict, Lax and None", annotations.Quote(value))
		} else {
			r.say("sallyport.dev/session-cookie-same-site", "session-cookie-samesite", sameSite[i])
		}
	}
	r.also("session-cookie-path", "sallyport.dev/session-cookie-path")
	for _, name := range []string{"session-cookie-max-age", "session-cookie-expires"} {
		value, has := r.values[name]
		if !has {
			continue
		}
		if n, err := number(value, 0, 315360000); err != nil {
			r.refuse(known[name], "%v", err)
		} else if n > 0 {
			r.say("sallyport.dev/session-cookie-max-age", name, value)
		}
	}
	keywords := "httponly"
	if r.is("session-cookie-secure") {
		keywords += " secure"
	}
	r.say("sallyport.dev/session-cookie-keywords", r.source("session-cookie-secure"), keywords)
}
