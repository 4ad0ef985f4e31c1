package haproxy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Directive is one line, or a few that belong together, of the section of a backend. Only the
// functions below make a Directive. They write each value as one word, so that no value reaches
// into the next directive. Directives are compared with ==.
type Directive struct {
	phase  phase
	tcp    bool   // a TCP backend may have it
	sticky bool   // it gives clients a cookie that leads them back to their server
	hashes bool   // a hash of the request chooses the server
	names  string // of the Userlist, the Table or the files that it refers to, with spaces between, or empty
	length int    // of a capture, in bytes
	app    string // the section of an FCGI that the text names, or empty
	text   string // one line, or several with "\n" in between
}

// ForTCP reports whether a TCP backend can have the Directive.
func (d Directive) ForTCP() bool { return d.tcp }

// String returns the text.
func (d Directive) String() string { return d.text }

// SortDirectives sorts directives by phase, because HAProxy runs rules of one kind in the order of
// their lines. Directives of one phase keep their order.
func SortDirectives(list []Directive) {
	slices.SortStableFunc(list, func(a, b Directive) int { return cmp.Compare(a.phase, b.phase) })
}

// A phase is a step in the processing of a request. Access rules come early, so that a
// rejected client learns nothing more and costs nothing more.
type phase int

const (
	phaseSection   phase = iota // options, balance, timeouts: no rules
	phaseClosed                 // every client is rejected
	phaseLog                    // requests have no log line
	phaseSource                 // the address of the client
	phaseOrigin                 // the origin of the page (CORS)
	phaseShown                  // clients without a certificate are rejected
	phaseDeny                   // clients are rejected by their address
	phaseLimit                  // clients over a limit are rejected
	phasePreflight              // CORS preflights carry no credentials
	phaseAuth
	phaseToken  // clients need a signed token
	phaseAnswer // parts of the answer of a server are replaced, before others add to the answer
	phaseAsk    // an authentication service decides
	phaseCapture
	phaseRedirect
	phaseHeader
	phasePage // another service answers for servers that fail
	phaseHost
	phasePath
	phaseScript // scripts of FastCGI are found
	phaseMirror // requests are copied as servers see them
	phaseRate   // answers are slowed down
	phaseResponse
	phaseText // lines that a user wrote
)

// quote writes a value as one word that HAProxy takes literally: between single quotes
// only a single quote has a meaning (HAProxy Configuration Manual, 2.2). It rejects a
// value with a line break or another control character.
func quote(s string) (string, error) {
	if i := strings.IndexFunc(s, func(c rune) bool { return c < ' ' || c == 0x7f }); i >= 0 {
		return "", fmt.Errorf("%s has the control character %q, which is not allowed", shown(s), s[i])
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'", nil
}

// shown quotes a user's text for an error message. It shows at most 80 bytes, in ASCII.
func shown(s string) string {
	if len(s) > 80 {
		s = s[:80] + "..."
	}
	return strconv.QuoteToASCII(s)
}

// milliseconds writes a duration for HAProxy. The timers of HAProxy have 31 bits.
func milliseconds(d time.Duration) string {
	return strconv.FormatInt(min(max(d, 0), longest).Milliseconds(), 10) + "ms"
}

// Timeout returns "timeout NAME". A backend may have the names check, connect, queue, server and
// tunnel.
func Timeout(name string, d time.Duration) Directive {
	return Directive{phase: phaseSection, tcp: true, text: "timeout " + name + " " + milliseconds(d)}
}

// Option returns "option NAME", or "no option NAME".
func Option(name string, on bool) Directive {
	text := "option " + name
	if !on {
		text = "no " + text
	}
	return Directive{phase: phaseSection, tcp: name == "abortonclose", text: text}
}

// HTTPCheck makes health checks request a URI, instead of only connecting to the
// servers. Method and version may be empty.
func HTTPCheck(method, uri, version string) (Directive, error) {
	if method != "" && !token(method) {
		return Directive{}, fmt.Errorf("%s is not an HTTP method: allowed are letters, digits and - _ .", shown(method))
	}
	if version != "" && version != "HTTP/1.0" && version != "HTTP/1.1" {
		return Directive{}, fmt.Errorf("%s is not a version: allowed are HTTP/1.0 and HTTP/1.1", shown(version))
	}
	if !strings.HasPrefix(uri, "/") {
		return Directive{}, fmt.Errorf(`the URI %s does not begin with "/"`, shown(uri))
	}
	word, err := quote(uri)
	if err != nil {
		return Directive{}, err
	}
	return Directive{
		phase: phaseSection,
		text:  strings.TrimSpace("option httpchk " + cmp.Or(method, "OPTIONS") + " " + word + " " + version),
	}, nil
}

// token reports whether a text can be the name of a method or a header. It allows the
// characters of RFC 9110 (5.6.2) that have no meaning to HAProxy.
var token = matcher(`^[A-Za-z0-9_.-]{1,256}$`)

// algorithms are the balancing algorithms with their arguments. Algorithms that hash get a
// consistent hash. Commands add and remove servers, which HAProxy allows with no other kind of
// hash.
var algorithms = []struct {
	form func(string) bool
	hash bool
	tcp  bool
}{
	{matcher(`^(roundrobin|leastconn|first|random(\([1-9][0-9]?\))?)$`), false, true},
	{matcher(`^source$`), true, true},
	{matcher(`^uri( (path-only|whole|(len|depth) [1-9][0-9]{0,4}))*$`), true, false},
	{matcher(`^url_param [A-Za-z0-9_.~-]{1,128}( check_post( [0-9]{1,6})?)?$`), true, false},
	{matcher(`^hdr\([A-Za-z0-9_-]{1,128}\)( use_domain_only)?$`), true, false},
}

// hashKey is the option that derives a server's position in a hash from its address. Every HAProxy
// then chooses the same server for a request, also after a reload. HAProxy 2.6 does not have the
// option. It uses the number of the server, which depends on the servers before it.
const hashKey = "hash-key addr-port"

// Balance returns "balance" with an algorithm as HAProxy's manual writes it. static-rr becomes
// roundrobin, which does the same while weights stay as they are. Balance rejects rdp-cookie, which
// is for TCP. It bounds the draws of random, because each request makes all of them in a thread
// that also serves other clients.
func Balance(algorithm string) (Directive, error) {
	algorithm = strings.Join(strings.Fields(algorithm), " ")
	if algorithm == "static-rr" {
		algorithm = "roundrobin"
	}
	for _, a := range algorithms {
		if !a.form(algorithm) {
			continue
		}
		text := "balance " + algorithm
		if a.hash {
			text += "\nhash-type consistent\n.if version_atleast(3.0)\ndefault-server " + hashKey + "\n.endif"
		}
		return Directive{phase: phaseSection, tcp: a.tcp, hashes: a.hash, text: text}, nil
	}
	return Directive{}, fmt.Errorf(
		"%s is not a balancing algorithm: allowed are roundrobin, leastconn, first, random[(draws, up to 99)], "+
			"source, uri [path-only|whole|len N|depth N], url_param NAME [check_post], hdr(NAME) [use_domain_only]",
		shown(algorithm))
}

// Source sets the client's address for all later rules from a header. A request without the header
// keeps the address of its connection.
func Source(header string) (Directive, error) {
	if !token(header) {
		return Directive{}, notAHeader(header)
	}
	return Directive{phase: phaseSource, text: "http-request set-src hdr(" + header + ")"}, nil
}

func notAHeader(name string) error {
	return fmt.Errorf("%s is not the name of a header: allowed are letters, digits, \"-\", \"_\" and \".\"",
		shown(name))
}

// Silent keeps a request out of the log.
func Silent() Directive { return Directive{phase: phaseLog, text: "http-request set-log-level silent"} }

// Deny answers 403 to clients within the networks. If others is set, it answers 403 to all other
// clients instead.
func Deny(networks Networks, others bool) Directive {
	return Directive{phase: phaseDeny, text: networks.turnAway(others, "http-request deny deny_status 403")}
}

// satisfied is a variable of a request that has passed one of several guards. Each of the other guards lets it pass, if
// its field Any is set.
const satisfied = "txn.sallyport_satisfied"

// unsatisfied is the condition of a request that has passed none of the guards.
const unsatisfied = " !{ var(" + satisfied + ") -m found }"

// Admit lets clients within the networks pass the guards with the field Any.
func Admit(networks Networks) Directive {
	return Directive{
		phase: phaseDeny,
		text:  networks.when("src", "sp_admitted", "http-request set-var("+satisfied+") bool(true)"),
	}
}

// admits reports whether a Directive lets some requests pass other guards.
func (d Directive) admits() bool { return strings.Contains(d.text, "set-var("+satisfied+")") }

// Reject closes connections of clients within the networks. If others is set, it closes those of
// all other clients instead. It is for a TCP backend.
func Reject(networks Networks, others bool) Directive {
	return Directive{phase: phaseDeny, tcp: true, text: networks.turnAway(others, reject)}
}

// RejectOthers closes connections of clients outside these networks. It is for a TCP backend. The
// backend may also have a Reject; clients then have to pass both.
func RejectOthers(networks []netip.Prefix) Directive {
	return Directive{phase: phaseDeny, tcp: true, text: Networks{Of: networks}.acl("src", "sp_source") + reject +
		" if !sp_source"}
}

// CloseTCP closes every connection to a TCP backend. Close does the same for an HTTP backend.
func CloseTCP() Directive { return Directive{phase: phaseClosed, tcp: true, text: reject} }

const reject = "tcp-request content reject"

// Close answers 503 to every request. A backend gets it if its access rules are invalid.
func Close() Directive {
	return Directive{phase: phaseClosed, text: answer(503, invalidRules, "")}
}

const invalidRules = "the access rules of this path are invalid"

// Fail answers 500 to every request. A backend that stands for an invalid one gets it.
func Fail() Directive {
	return Directive{phase: phaseRedirect, text: answer(500, invalidText, "")}
}

const invalidText = "the backend of this route is invalid"

// answer returns a rule that answers a request with this status and a line of text.
func answer(status int, text, condition string) string {
	return "http-request return status " + strconv.Itoa(status) + ` content-type text/plain string "` + text + `\n"` +
		condition
}

// OnlyOwnTLS guards a backend for hosts that have certificates with a ClientCA. The server name of
// the handshake decides which authority a client certificate is checked against. A request for
// another host gets 421, and has to use a connection of its own (RFC 9110, 15.5.20). A request
// without TLS gets 403. A request without a client certificate also gets 403, unless optional is
// set.
func OnlyOwnTLS(optional bool) Directive {
	lines := []string{
		answer(403, "only over TLS", " if !{ ssl_fc }"),
		"http-request set-var(txn.host) req.hdr(host),host_only,lower",
		answer(421, "not on this connection", " if !{ ssl_fc_sni,lower,strcmp(txn.host) eq 0 }"),
	}
	if !optional {
		lines = append(lines, answer(403, "only with a certificate", " if !{ ssl_c_used }"))
	}
	return Directive{phase: phaseShown, text: strings.Join(lines, "\n")}
}

// RedirectUnshown redirects a client without a certificate to a URL. The backend also needs an OnlyOwnTLS(true): a
// certificate is missing only on a connection for the same host.
func RedirectUnshown(url string) (Directive, error) {
	d, err := RedirectTo(url, 302)
	return Directive{phase: phaseShown, text: d.text + " if !{ ssl_c_used }"}, err
}

// MatchSubject answers 403 to a client unless a regular expression matches the subject of its certificate, in the form
// of RFC 2253. The backend also needs an OnlyOwnTLS. Without it, another host may have verified the certificate.
func MatchSubject(expression string) (Directive, error) {
	condition, err := otherSubject(expression)
	return Directive{phase: phaseShown, text: "http-request deny deny_status 403 if " + condition}, err
}

// NoSubject is an expression that matches no subject. It stands for an invalid one in a Cert, and closes the hosts of
// that Cert as Close closes a backend.
const NoSubject = "a^"

// otherSubject returns the condition of a client without a certificate, or with one of another subject.
func otherSubject(expression string) (string, error) {
	if err := checkRegexp(expression); err != nil {
		return "", err
	}
	pattern, err := quote(matchLimit + expression)
	return "!{ ssl_c_s_dn(,0,rfc2253) -m reg " + pattern + " }", err
}

// PassCertificate sets a header of the request to the certificate of the client: PEM with escapes as in a URL, and
// without line breaks in the base64. Without a certificate servers see no such header.
func PassCertificate(header string) (Directive, error) {
	d, err := DeleteRequestHeader(header)
	d.text += "\nhttp-request set-header " + header +
		" '-----BEGIN%%20CERTIFICATE-----%%0A%[ssl_c_der,base64,url_enc]%%0A-----END%%20CERTIFICATE-----%%0A'" +
		" if { ssl_c_used }"
	return d, err
}

// forwardedHeaders are the headers that ForwardedHeaders sets, in every spelling that some servers treat as the same
// name, and the header Proxy. Some servers make an environment variable of that header, which then has the name of a
// setting (HTTP_PROXY).
const forwardedHeaders = `(?i)^(?:proxy|x[-_.](?:real[-_.]ip|scheme|original[-_.]forwarded[-_.]for|` +
	`forwarded[-_.](?:for|host|port|scheme)|request[_.]id))$`

// ForwardedHeaders tells servers about the request that the client sent, as ingress-nginx does: X-Real-IP,
// X-Request-ID, X-Scheme, X-Forwarded-Host, X-Forwarded-Port and X-Forwarded-Scheme. The X-Forwarded-For that the
// client sent becomes X-Original-Forwarded-For, and an X-Request-ID of the client stays. Other headers of these names
// are deleted, and so is the header Proxy.
func ForwardedHeaders() Directive {
	return Directive{phase: phaseHeader, text: strings.Join([]string{
		"http-request set-var(txn.forwarded_for) req.fhdr(X-Forwarded-For)",
		"http-request del-header '" + forwardedHeaders + "' -m reg",
		"http-request set-header X-Original-Forwarded-For %[var(txn.forwarded_for)]" +
			" if { var(txn.forwarded_for) -m found }",
		"http-request set-header X-Real-IP %[src]",
		"http-request set-header X-Request-ID %[uuid,regsub(-,,g)] if !{ req.fhdr(X-Request-ID) -m found }",
		"http-request set-header X-Forwarded-Host %[req.fhdr(Host)]",
		"http-request set-header X-Forwarded-Port %[dst_port]",
		"http-request set-header X-Forwarded-Scheme %[req.fhdr(X-Forwarded-Proto)]",
		"http-request set-header X-Scheme %[req.fhdr(X-Forwarded-Proto)]",
	}, "\n")}
}

// A Cookie sends a client back to the server that took its first request.
type Cookie struct {
	Name     string
	Domain   string        // if it is empty, the browser takes the host
	SameSite string        // Strict, Lax or None; if it is empty, the cookie has no such attribute
	Path     string        // if it is empty, the cookie is for all paths
	MaxAge   int           // seconds until the browser drops it; 0 is the end of the browser's session
	HTTPOnly bool          // scripts of the page cannot read it
	Secure   bool          // the browser sends it only over HTTPS
	Preserve bool          // HAProxy leaves a cookie of that name that the server sets as it is
	MaxIdle  time.Duration // since the last request; 0 if there is no limit
	MaxLife  time.Duration // since the first request; 0 if there is no limit
}

// Directive returns "cookie". The value of the cookie is a hash of the server's address. It stays
// the same over every reload and restart, and is the same in all members of a Group. Any other
// appliance has another value.
func (c Cookie) Directive() (Directive, error) {
	if !token(c.Name) {
		return Directive{}, fmt.Errorf("%s is not the name of a cookie: allowed are letters, digits and - _ .",
			shown(c.Name))
	}
	words := []string{"cookie", c.Name, "insert indirect nocache dynamic"}
	if c.Domain != "" {
		if err := checkCookieDomain(c.Domain); err != nil {
			return Directive{}, err
		}
		words = append(words, "domain", c.Domain)
	}
	switch c.SameSite {
	case "":
	case "Strict", "Lax", "None":
		words = append(words, "attr SameSite="+c.SameSite)
	default:
		return Directive{}, fmt.Errorf("%s is not a value of SameSite: allowed are Strict, Lax and None",
			shown(c.SameSite))
	}
	if c.Path != "" {
		if err := checkCookiePath(c.Path); err != nil {
			return Directive{}, err
		}
		words = append(words, "attr 'Path="+c.Path+"'") // after HAProxy's own; the last one counts (RFC 6265, 5.3)
	}
	if c.MaxAge > 0 {
		words = append(words, "attr Max-Age="+strconv.Itoa(c.MaxAge))
	}
	for _, flag := range []struct {
		word string
		on   bool
	}{{"httponly", c.HTTPOnly}, {"secure", c.Secure}, {"preserve", c.Preserve}} {
		if flag.on {
			words = append(words, flag.word)
		}
	}
	for _, limit := range []struct {
		word string
		time time.Duration
	}{{"maxidle", c.MaxIdle}, {"maxlife", c.MaxLife}} {
		if limit.time > 0 {
			words = append(words, limit.word, strconv.FormatInt(int64(max(limit.time, time.Second)/time.Second), 10)+
				"s")
		}
	}
	return Directive{phase: phaseSection, sticky: true, text: strings.Join(words, " ") + "\ndynamic-cookie-key " +
		cookieKey}, nil
}

func checkCookieDomain(domain string) error {
	if strings.Contains(domain, "*") || !isHost(strings.TrimPrefix(strings.ToLower(domain), ".")) {
		return fmt.Errorf("%s is not a domain: allowed is a DNS name without *", shown(domain))
	}
	return nil
}

func checkCookiePath(path string) error {
	if !cookiePath(path) {
		return fmt.Errorf("%s is not the path of a cookie: allowed are a / and up to 250 letters, "+
			"digits and / . _ ~ %% + @ : -", shown(path))
	}
	return nil
}

var cookiePath = matcher(`^/[A-Za-z0-9/._~%+@:-]{0,250}$`)

// cookieKey is the placeholder for the key of the hash. Each installation, or Group, has a
// key of its own: with a common key anybody could find out a server's address from its cookie.
const cookieKey = "\x03"

// keyOfCookies derives the key of the hash from the secret, without revealing the
// secret.
func keyOfCookies(secret string) string {
	sum := sha256.Sum256([]byte("cookie\n" + secret))
	return hex.EncodeToString(sum[:16])
}

// A Table counts the requests of each client over a period, or its concurrent requests. Several
// backends may share a Table.
type Table struct {
	Name   string        // unique, also among the names of backends
	Size   int           // most clients that it holds; a full table forgets the oldest client
	Period time.Duration // from 1 ms to 24 days; 0 if the Table counts concurrent requests
}

func (t Table) validate() error {
	switch {
	case t.Size < 1 || t.Size > 1<<30:
		return fmt.Errorf("table %s: size %d; allowed are 1 to %d", t.Name, t.Size, 1<<30)
	case t.Period != 0 && t.Period < time.Millisecond || t.Period > longest:
		return fmt.Errorf("table %s: period %s; allowed are 1ms to 24 days", t.Name, t.Period)
	}
	return nil
}

// longest is the longest time that HAProxy's timers can hold.
const longest = (1<<31 - 1) * time.Millisecond

// text returns the section of the table. A key holds an address of either family, IPv4 or IPv6.
func (t Table) text() string {
	period, counter := "10s", "conn_cur"
	if t.Period != 0 {
		period = milliseconds(t.Period)
		counter = "http_req_rate(" + period + ") peers " + peersSection
	}
	return "\nbackend " + t.Name + "\n  stick-table type ipv6 size " + strconv.Itoa(t.Size) + " expire " + period +
		" store " + counter + "\n"
}

// DenyCodes are the statuses for which HAProxy has a page. It can deny a request only with one of
// these.
var DenyCodes = []int{400, 401, 403, 404, 405, 407, 408, 410, 413, 425, 429, 500, 501, 502, 503, 504}

// Limit answers with a status, one of DenyCodes, to a client that has more requests than that
// number within the period of the table. It does not count the clients in except. A table is full
// while each client in it has a request in progress; a further client then gets the same answer.
func Limit(t Table, requests, status int, except Networks) Directive {
	text, unless := "", ""
	if except.List != "" || len(except.Of) > 0 {
		text, unless = except.acl("src", "sp_unlimited"), " !sp_unlimited"
	}
	text += "http-request track-sc0 src table " + t.Name
	if unless != "" {
		text += " if" + unless
	}
	return Directive{phase: phaseLimit, names: t.Name, text: text + "\nhttp-request deny deny_status " +
		strconv.Itoa(status) +
		" if { sc_http_req_rate(0," + t.Name + ") gt " + strconv.Itoa(requests) + " }" + unless +
		" or !{ sc_tracked(0) }" + unless}
}

// LimitConcurrent answers 429 to a client with more than that number of concurrent requests. It
// does the same to a client for which the table has no place. The table must have no period.
func LimitConcurrent(t Table, most int) Directive {
	return Directive{phase: phaseLimit, names: t.Name, text: "http-request track-sc1 src table " + t.Name +
		"\nhttp-request deny deny_status 429" +
		" if { sc_conn_cur(1," + t.Name + ") gt " + strconv.Itoa(most) + " } or !{ sc_tracked(1) }"}
}

// Capture writes a sample of the request into a capture slot for the log. slot is an index of
// Config.Captures.
func Capture(expression string, slot int) (Directive, error) {
	if err := checkSample(inRequest, expression); err != nil {
		return Directive{}, err
	}
	return Directive{phase: phaseCapture, text: "http-request capture " + expression + " id " + strconv.Itoa(slot)}, nil
}

// Sized returns a Capture that needs a slot of that many bytes. HAProxy reads the length of the
// slot from Config.Captures, since all Ingresses share the slot. The length in the Directive shows
// which backend has changed it.
func (d Directive) Sized(length int) Directive {
	d.length = length
	return d
}

// headerRule returns a rule that sets or adds a header.
func headerRule(p phase, in direction, rule, name, value string) (Directive, error) {
	if !token(name) {
		return Directive{}, notAHeader(name)
	}
	word, err := format(in, value)
	return Directive{phase: p, text: rule + " " + name + " " + word}, err
}

// SetRequestHeader sets a header of the request. The value may have parts that HAProxy fills in, as
// every value that these functions take.
//
// SetRequestHeader also deletes headers with names that differ only in "-", "_" and ".", because
// some servers treat these as the same name.
func SetRequestHeader(name, value string) (Directive, error) {
	d, err := headerRule(phaseHeader, inRequest, "http-request set-header", name, value)
	d.text = otherSpellings(name) + d.text
	return d, err
}

var separator = regexp.MustCompile(`[-_.]`)

// otherSpellings returns a rule that deletes the request headers that some servers treat as the
// header of that name. The rule ends with a line break. It is empty if the name has no other
// spelling.
func otherSpellings(name string) string {
	if !separator.MatchString(name) {
		return ""
	}
	name = strings.ToLower(name)
	return "http-request del-header '(?i)^(?!" + regexp.QuoteMeta(name) + "$)" +
		separator.ReplaceAllString(name, "[-_.]") + "$' -m reg\n"
}

// SetResponseHeader sets a header of the response.
func SetResponseHeader(name, value string) (Directive, error) {
	return headerRule(phaseResponse, inResponse, "http-response set-header", name, value)
}

// AddRequestHeader adds a header to the request, and keeps existing headers of the same name.
func AddRequestHeader(name, value string) (Directive, error) {
	return headerRule(phaseHeader, inRequest, "http-request add-header", name, value)
}

// AddResponseHeader adds a header to the response, and keeps existing headers of the same name.
func AddResponseHeader(name, value string) (Directive, error) {
	return headerRule(phaseResponse, inResponse, "http-response add-header", name, value)
}

// DeleteRequestHeader deletes a header of the request, in every spelling that some servers treat as
// this header.
func DeleteRequestHeader(name string) (Directive, error) {
	if !token(name) {
		return Directive{}, notAHeader(name)
	}
	return Directive{phase: phaseHeader, text: otherSpellings(name) + "http-request del-header " + name}, nil
}

// DeleteResponseHeader deletes a header of the response.
func DeleteResponseHeader(name string) (Directive, error) {
	if !token(name) {
		return Directive{}, notAHeader(name)
	}
	return Directive{phase: phaseResponse, text: "http-response del-header " + name}, nil
}

// HSTS tells browsers to use only HTTPS for maxAge seconds (RFC 6797). Every response over HTTPS
// has the header, including an error of HAProxy.
func HSTS(maxAge int, subdomains, preload bool) Directive {
	value := "max-age=" + strconv.Itoa(maxAge)
	if subdomains {
		value += "; includeSubDomains"
	}
	if preload {
		value += "; preload"
	}
	return Directive{phase: phaseResponse, text: "http-after-response set-header Strict-Transport-Security '" + value +
		"' if { ssl_fc }"}
}

// LimitBody answers 413 to a request with a Content-Length of more bytes than that. It does not
// bound a body without a Content-Length.
func LimitBody(bytes int) Directive {
	return Directive{phase: phaseLimit, text: "http-request deny deny_status 413 if { req.hdr_val(content-length) gt " +
		strconv.Itoa(bytes) + " }"}
}

// LimitRate sends the body of each answer with that many bytes a second at most. It needs a HAProxy with
// RateSupport. It bounds no connection that changes to another protocol.
func LimitRate(bytes int) Directive {
	return Directive{phase: phaseRate, text: rateFilter + strconv.Itoa(bytes) + " default-period 1s\n" +
		"http-response set-bandwidth-limit sallyport_rate if !{ status 101 }"}
}

const rateFilter = "filter bwlim-out sallyport_rate default-limit "

// RateSupport asks whether HAProxy can bound the rate of answers, which a LimitRate needs. HAProxy can since 2.7.
func RateSupport() Question {
	return Question{text: Text{BackendSection, rateFilter + "1 default-period 1s"}}
}

// Root redirects a request for "/" to another path.
func Root(path string) (Directive, error) {
	if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") {
		return Directive{}, fmt.Errorf(`%s must begin with exactly one "/"`, shown(path))
	}
	word, err := quote(strings.ReplaceAll(path, "%", "%%"))
	return Directive{phase: phaseRedirect, text: "http-request redirect location " + word + " code 302 if { path / }"},
		err
}

// SetHost sets the Host header of the request to the servers.
func SetHost(value string) (Directive, error) {
	return headerRule(phaseHost, inRequest, "http-request set-header", "Host", value)
}

// ReplacePath replaces the path of a request by value if the path matches a regular expression.
func ReplacePath(match, value string) (Directive, error) {
	if err := checkRegexp(match); err != nil {
		return Directive{}, err
	}
	pattern, err := quote(matchLimit + match)
	if err != nil {
		return Directive{}, err
	}
	path, err := format(inRequest, value)
	return Directive{phase: phasePath, text: "http-request replace-path " + pattern + " " + path}, err
}

// A PathRewrite replaces a path that matches a regular expression, see ReplacePath.
type PathRewrite struct{ Match, Value string }

// ReplaceFirst returns a directive that replaces the path of a request by the first expression that
// matches it. The rest of the expressions have no effect then.
func ReplaceFirst(all []PathRewrite) (Directive, error) {
	var finds, replaces []string
	for i, one := range all {
		d, err := ReplacePath(one.Match, one.Value)
		if err != nil {
			return Directive{}, err
		}
		pattern, err := quote(matchLimit + one.Match)
		if err != nil {
			return Directive{}, err
		}
		n := strconv.Itoa(i + 1)
		finds = append(finds, "http-request set-var(txn.rewrite) int("+n+") if { path -m reg "+pattern+
			" } !{ var(txn.rewrite) -m found }")
		replaces = append(replaces, d.text+" if { var(txn.rewrite) -m int "+n+" }")
	}
	return Directive{phase: phasePath, text: strings.Join(slices.Concat(finds, replaces), "\n")}, nil
}

// RedirectTo redirects every request to one URL. The path and the query of the request do not count.
func RedirectTo(url string, code int) (Directive, error) {
	_, rest, _ := strings.Cut(url, "://")
	authority, _, _ := strings.Cut(rest, "/")
	authority, _, _ = strings.Cut(authority, "?")
	switch {
	case !slices.Contains(RedirectCodes, code):
		return Directive{}, fmt.Errorf("%d is not the status of a redirect: allowed are 301, 302, 303, 307 and 308",
			code)
	case !strings.HasPrefix(url, "http://") && !strings.HasPrefix(url, "https://") || !isAuthority(authority):
		return Directive{}, fmt.Errorf("%s is not a URL, as https://HOST/PATH", shown(url))
	case strings.ContainsFunc(url, func(c rune) bool { return c <= ' ' || c > '~' }):
		return Directive{}, fmt.Errorf("%s has a space, or a character that is not printable ASCII", shown(url))
	}
	word, err := quote(Literal(url))
	return Directive{
		phase: phaseRedirect, text: "http-request redirect location " + word + " code " + strconv.Itoa(code),
	}, err
}

// RedirectCodes are the statuses a redirect may have.
var RedirectCodes = []int{301, 302, 303, 307, 308}

// Redirect redirects to another scheme and authority ("host" or "host:port"), with the
// same path and query. An empty scheme keeps the one of the request.
func Redirect(scheme, authority string, code int) (Directive, error) {
	if !slices.Contains(RedirectCodes, code) {
		return Directive{}, fmt.Errorf("%d is not the status of a redirect: allowed are 301, 302, 303, 307 and 308",
			code)
	}
	if !isAuthority(authority) {
		return Directive{}, fmt.Errorf("%s is not HOST or HOST:PORT", shown(authority))
	}
	status := " code " + strconv.Itoa(code)
	to := func(scheme string) string {
		return "http-request redirect location " + scheme + "://" + authority + "%[pathq]" + status
	}
	switch scheme {
	case "http", "https":
		return Directive{phase: phaseRedirect, text: to(scheme)}, nil
	case "":
		return Directive{phase: phaseRedirect, text: to("https") + " if { ssl_fc }\n" + to("http")}, nil
	}
	return Directive{}, fmt.Errorf("%s is not a scheme: allowed are http and https", shown(scheme))
}

func isAuthority(s string) bool {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().Zone() == ""
	}
	host, port, has := strings.Cut(s, ":")
	if has {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return false
		}
	}
	return host != "" && !strings.HasPrefix(host, "*") && isHost(strings.ToLower(host))
}

// CORS configures the response headers for requests from pages of other origins (Fetch
// Standard, 3.2).
type CORS struct {
	Origin      string        // "*", or a regular expression that has to match the whole origin
	Methods     string        // for Access-Control-Allow-Methods
	Headers     string        // for Access-Control-Allow-Headers
	Credentials bool          // Access-Control-Allow-Credentials
	MaxAge      time.Duration // Access-Control-Max-Age, whole seconds
	Respond     bool          // HAProxy itself answers OPTIONS with 204, instead of the servers
	Expose      string        // Access-Control-Expose-Headers; empty leaves it out
	// Strict sends Methods, Headers and MaxAge only in answers to preflights, and leaves out the empty
	// ones. HAProxy itself answers only OPTIONS that ask for a method.
	Strict bool
}

// Directives returns the lines for CORS. Browsers take "*" literally in the answer to a request
// with credentials. With Credentials the response therefore has the origin, the method and the
// headers of the request in place of "*". Vary tells caches which request headers the response
// depends on (Fetch Standard, 3.2.5).
func (c CORS) Directives() ([]Directive, error) {
	var errs []error
	line := func(p phase, words ...string) Directive { return Directive{phase: p, text: strings.Join(words, " ")} }
	word := func(s string) string {
		w, err := quote(strings.ReplaceAll(s, "%", "%%"))
		errs = append(errs, err)
		return w
	}
	asked := "{ var(txn.cors_origin) -m found }"
	out := []Directive{
		line(phaseOrigin, "http-request set-var(txn.cors_origin) req.fhdr(origin)"),
		line(phaseResponse, "http-after-response add-header Vary Origin"),
	}
	origin := "%[var(txn.cors_origin)]"
	switch {
	case c.Origin == "*" && !c.Credentials:
		origin = "'*'"
	case c.Origin == "*":
	default:
		if err := checkRegexp(c.Origin); err != nil {
			return nil, err
		}
		pattern, err := quote(matchLimit + "^(?:" + c.Origin + ")$")
		errs = append(errs, err)
		asked = "{ var(txn.cors_origin) -m reg " + pattern + " }"
	}
	var preflight []string
	if c.Strict {
		out = append(out, line(phaseOrigin, "http-request set-var(txn.cors_asks) bool(true) if METH_OPTIONS "+
			"{ req.fhdr(access-control-request-method) -m found }"))
		preflight = []string{"{ var(txn.cors_asks) -m found }"}
	}
	set := func(name, value string, and ...string) {
		out = append(out, line(phaseResponse,
			append([]string{"http-after-response set-header", name, value, "if", asked}, and...)...))
	}
	set("Access-Control-Allow-Origin", origin)
	if c.Credentials && (c.Methods == "*" || c.Headers == "*") {
		out = append(out, line(phaseOrigin, "http-request set-var(txn.cors_preflight) bool(true) if METH_OPTIONS"))
	}
	for _, list := range []struct{ value, allow, request, variable string }{
		{c.Methods, "Access-Control-Allow-Methods", "Access-Control-Request-Method", "txn.cors_method"},
		{c.Headers, "Access-Control-Allow-Headers", "Access-Control-Request-Headers", "txn.cors_headers"},
	} {
		if list.value == "" && c.Strict {
			continue
		}
		if list.value != "*" || !c.Credentials {
			set(list.allow, word(list.value), preflight...)
			continue
		}
		out = append(out,
			line(phaseOrigin, "http-request set-var("+list.variable+") req.fhdr("+list.request+") if METH_OPTIONS"),
			line(phaseResponse, "http-after-response add-header Vary", list.request,
				"if { var(txn.cors_preflight) -m found }"))
		set(list.allow, "%[var("+list.variable+")]", "{ var("+list.variable+") -m found }")
	}
	if c.Credentials {
		set("Access-Control-Allow-Credentials", "true")
	}
	if c.MaxAge > 0 || !c.Strict {
		set("Access-Control-Max-Age", strconv.FormatInt(int64(c.MaxAge/time.Second), 10), preflight...)
	}
	if c.Expose != "" {
		set("Access-Control-Expose-Headers", word(c.Expose))
	}
	if c.Respond && c.Strict {
		out = append(out, line(phasePreflight, "http-request return status 204 if { var(txn.cors_asks) -m found }"))
	} else if c.Respond {
		out = append(out, line(phasePreflight, "http-request return status 204 if METH_OPTIONS"))
	}
	return out, errors.Join(errs...)
}
