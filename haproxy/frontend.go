package haproxy

import (
	"cmp"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
)

// oneHost matches a name or an address, with or without a port.
const oneHost = `'^([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+])(:[0-9]{0,5})?$'`

// toHTTP matches a value of the header Upgrade that names another version of HTTP.
const toHTTP = `'(^|[^a-z0-9])(h2c?|http)([^a-z0-9]|$)'`

// writeHTTP writes the frontend for requests without TLS.
func (h *head) writeHTTP() {
	if len(h.Bind.HTTP) == 0 {
		return
	}
	h.section("frontend http")
	for _, a := range h.Bind.HTTP {
		h.line(bindText(a))
	}
	h.closeOtherPorts(h.Bind.HTTP)
	h.expectProxy()
	h.writeRequest("http")
	h.writeRouting()
	if !h.demandsClients() {
		h.passPlain(HTTPSection, "!{ var(txn.route) -m sub / }")
	}
	h.writeRouteRules(HTTPSection)
	h.writeRedirects()
	if h.demandsClients() {
		h.line(answer(403, "only over TLS", " if !{ ssl_fc } !{ var(txn.route),field(2,/) -m str "+plainHTTP+" }"))
	}
	h.lead()
}

// writeRedirects writes the rules that redirect plain HTTP for some routes.
func (h *head) writeRedirects() {
	for _, code := range RedirectCodes {
		text := strconv.Itoa(code)
		h.line("http-request redirect location " +
			"https://%[req.hdr(host),host_only]%[var(txn.route),field(3,/)]%[pathq] code " + text +
			" if { var(txn.route),field(2,/) -m str " + text + " }")
	}
}

// writeHTTPS writes the frontend for requests over TLS and QUIC. With Inspect it also writes the
// frontend for TCP that passes connections to it.
func (h *head) writeHTTPS() {
	if len(h.Bind.HTTPS) == 0 {
		return
	}
	overTCP := h.tls(cmp.Or(h.Process.ALPN, "h2,http/1.1"))
	if h.Inspect {
		h.writePassage()
		h.section("frontend https")
		h.line("bind", h.passage(), "accept-proxy", overTCP)
		h.expectHop()
	} else {
		h.section("frontend https")
		for _, a := range h.Bind.HTTPS {
			h.line(bindText(a), overTCP)
		}
		h.closeOtherPorts(h.Bind.HTTPS)
		h.expectProxy()
	}
	if q := h.Process.QUIC; q.Port != 0 {
		for _, a := range addresses(h.Bind.HTTPS) {
			h.line(quicText(netip.AddrPortFrom(a, q.Port)), h.tls("h3"))
		}
		value := `'h3=":` + strconv.Itoa(int(cmp.Or(q.Announce, q.Port))) + `"; ma=` + strconv.Itoa(q.MaxAge) + "'"
		if h.Leaving {
			value = "clear" // RFC 7838, 3: the client forgets the alternative service
		}
		h.line("http-after-response set-header alt-svc", value)
	}
	h.writeRequest("https")
	h.writeRouting()
	if h.demandsClients() {
		h.line(answer(403, "only with a certificate", " if !{ ssl_c_used }"))
	}
	h.writeHandshakes()
	h.passPlain(HTTPSSection, "!{ var(txn.route),field(4,/,0) -m found }") // the redirect is for plain HTTP
	h.writeRouteRules(HTTPSSection)
	h.lead()
}

// writeHandshakes writes the rules about hosts that ask clients for certificates. It writes nothing without such a
// host. The name in the handshake decides which authority has to have signed the client's certificate. The certificate
// is valid only for requests to that name. A client that names another host in the handshake is not asked for this
// certificate. It reaches no backend of these hosts, whether or not the backend has a guard of its own.
func (h *head) writeHandshakes() {
	if len(h.asking) == 0 {
		return
	}
	h.line("http-request set-var(txn.host) req.hdr(host),host_only,lower")
	const other = "!{ ssl_fc_sni,lower,strcmp(txn.host) eq 0 }"
	of := h.writeAskers("", h.asking, other)
	h.line(answer(421, "not on this connection", " if { ssl_c_used } "+other+" or "+of))
	h.writeSubjects()
}

// writeSubjects writes the rules about hosts that admit only some of the certificates of their authority. The name in
// the handshake is that of the host by now.
func (h *head) writeSubjects() {
	byMatch := make(map[string][]asking)
	for _, a := range h.asking {
		if a.match != "" {
			byMatch[a.match] = append(byMatch[a.match], a)
		}
	}
	for i, match := range slices.Sorted(maps.Keys(byMatch)) {
		other, err := otherSubject(match)
		if err != nil {
			other = "TRUE" // it is valid
		}
		condition := h.writeAskers(strconv.Itoa(i), byMatch[match], other)
		if match == NoSubject {
			h.line(answer(503, invalidRules, " if "+condition))
		} else {
			h.line("http-request deny deny_status 403 if", condition)
		}
	}
}

// writeAskers writes ACLs for the names in filters, and returns the condition of a request for one of these names
// that also meets another condition.
func (h *head) writeAskers(suffix string, filters []asking, also string) string {
	var exact, below, spared, all []string
	for _, a := range filters {
		if other, is := strings.CutPrefix(a.filter, "!"); is {
			spared = append(spared, other)
		} else if domain, wild := strings.CutPrefix(a.filter, "*"); wild {
			below = append(below, domain)
		} else {
			exact = append(exact, a.filter)
		}
	}
	h.writeNames("sp_asks"+suffix, "var(txn.host)", exact)
	h.writeNames("sp_asks_below"+suffix, "var(txn.host),regsub(^[^.]*,,)", below)
	h.writeNames("sp_spared"+suffix, "var(txn.host)", spared)
	if len(exact) > 0 {
		all = append(all, "sp_asks"+suffix+" "+also)
	}
	if len(below) > 0 {
		condition := "sp_asks_below" + suffix + " " + also
		if len(spared) > 0 {
			condition += " !sp_spared" + suffix
		}
		all = append(all, condition)
	}
	return strings.Join(all, " or ")
}

// writeNames writes an ACL for samples that are one of the names, in lines that are short enough for HAProxy: at most
// 64 words, and 2048 bytes.
func (h *head) writeNames(acl, sample string, names []string) {
	for some := range slices.Chunk(names, 6) {
		h.line("acl", acl, sample, "-m str", strings.Join(some, " "))
	}
}

// writePassage writes the frontend that reads the name in a TLS handshake, and the
// backend that leads to the frontend for HTTPS.
func (h *head) writePassage() {
	h.stream("tls")
	for _, a := range h.Bind.HTTPS {
		h.line(bindText(a))
	}
	h.halveConnections()
	h.closeOtherPorts(h.Bind.HTTPS)
	h.expectProxy()
	h.writeInspection()
	h.writeHop(terminator, "https", h.passage())
}

// halveConnections lets a frontend accept half of all connections. A connection counts again in the
// frontend where its TLS ends, if that is this HAProxy.
func (h *head) halveConnections() {
	if n := h.maxConn(); n > 1 {
		h.line("maxconn", strconv.Itoa(n/2))
	}
}

// writeStreams writes a frontend for each Stream.
func (h *head) writeStreams() {
	for _, s := range h.Streams {
		h.stream(s.name())
		options := ""
		if s.Proxy && len(h.Process.ProxyFrom) == 0 {
			options += " accept-proxy"
		}
		if s.TLS {
			options += " ssl crt-list " + h.opt.Dir + "/" + crtList + h.handshake()
		}
		for _, a := range s.listeners(h.Bind) {
			h.line(bindText(a) + options)
		}
		if s.Proxy {
			h.expectProxy()
		}
		h.line("default_backend", s.Backend)
	}
}

// stream begins a frontend for TCP.
func (h *head) stream(name string) {
	h.section("frontend", name)
	h.line("mode tcp")
	h.line("no option http-ignore-probes")
	h.line("no option idle-close-on-response")
	h.lines(h.Process.streamLog(h.base.defaults))
}

// closeOtherPorts writes a rule that closes connections to the addresses of Listeners, if a frontend accepts
// connections at every address. A Gateway has only the ports of its Listeners.
func (h *head) closeOtherPorts(bind []netip.AddrPort) {
	everywhere := func(a netip.AddrPort) bool { return a.Addr().IsUnspecified() }
	if len(h.Listeners) == 0 || !slices.ContainsFunc(bind, everywhere) {
		return
	}
	var own []netip.Prefix
	for _, l := range h.Listeners {
		own = append(own, netip.PrefixFrom(l.At.Addr(), l.At.Addr().BitLen()))
	}
	slices.SortFunc(own, netip.Prefix.Compare)
	rule := Networks{Of: slices.Compact(own)}.when("dst", "sp_gateway", "tcp-request connection reject")
	h.lines(strings.Split(rule, "\n"))
}

// expectProxy demands the PROXY protocol from clients in the networks of Process.ProxyFrom.
func (h *head) expectProxy() {
	if len(h.Process.ProxyFrom) > 0 {
		rule := Networks{Of: h.Process.ProxyFrom}.when("src", "sp_proxy", "tcp-request connection expect-proxy layer4")
		h.lines(strings.Split(rule, "\n"))
	}
}

// demandsClients reports whether every request over TLS needs the certificate of a client.
func (h *head) demandsClients() bool {
	return h.Process.ClientCA != "" && (!h.Process.ClientOptional || h.Process.ClientCA == Nobody)
}

// writeRequest writes the first rules for each request.
func (h *head) writeRequest(proto string) {
	if h.Leaving {
		h.line("option httpclose")
	}
	for _, n := range h.Captures {
		h.line("declare capture request len", strconv.Itoa(n))
	}
	h.writeVariables()
	// servers may treat these headers as X-Forwarded-Proto and the like
	h.line("http-request del-header '(?i)^x(?:[_.]forwarded[-_.]|-forwarded[_.])' -m reg")
	// HAProxy must not repeat a request that is not safe: a server may have acted on it (RFC 9110,
	// section 9.2.2).
	h.line("http-request disable-l7-retry if !{ method GET HEAD }")
	h.line("http-request set-header X-Forwarded-Proto", proto)
	// HAProxy, an authentication service and the servers have to read the same host in a request.
	// These rules therefore require one Host header. If the URI has a host, too, HAProxy itself
	// checks that the two are equal. A slash in the host would begin the path of the key.
	h.line("http-request deny deny_status 400 if !{ req.fhdr(host) -m reg " + oneHost +
		" } { req.fhdr(host) -m found }")
	h.line("http-request deny deny_status 400 if !{ url -m beg / } !{ req.fhdr(host) -m found } or { url -m sub @ } " +
		"{ url -m reg '^[^/?]*://[^/?]*@' }")
	// Once a server has agreed to another protocol, or to a tunnel, HAProxy only passes bytes on,
	// and applies no rules to later requests.
	h.line("http-request deny deny_status 405 if METH_CONNECT")
	h.line("http-request set-header Upgrade websocket if { req.fhdr(upgrade) -m reg -i " + toHTTP +
		" } { req.hdr(upgrade) -m str -i websocket }")
	h.line("http-request del-header Upgrade if { req.fhdr(upgrade) -m reg -i " + toHTTP + " }")
}

// writeRouting writes the rules that find the route of a request. They take one look-up, or two for
// a wildcard host, or three for a host that no route names. map_beg finds the longest key that the
// request's host and path begin with. In the look-up the path is followed by "/" and the byte 0x01.
// The key of a Prefix ends in "/", so it ends where an element of the path ends. The key of an
// Exact path ends in "/" and 0x01, so it matches only the whole path, and is longer than the key of
// any Prefix. No client can send the byte, because HAProxy answers 400 to a raw control byte in a
// path.
//
// Each request passes all of these rules. Each rule therefore begins with a condition that is
// cheap, and that nearly every request fails.
func (h *head) writeRouting() {
	exact, wild, found := h.opt.Dir+"/"+routeMap, h.opt.Dir+"/"+wildMap, " { var(txn.route) -m found }"
	h.line("http-request set-var(txn.path) path")
	h.line(`http-request set-var(txn.route) req.hdr(host),host_only,lower,concat(,txn.path,/\x01),map_beg(` + exact +
		`)`)
	h.writeMatched("var(txn.host)", found)
	h.line(`http-request set-var(txn.route) req.hdr(host),host_only,lower,field(2,.,0),concat(,txn.path,/\x01),map_beg(` + wild + `) if !{ var(txn.route) -m found }`)
	h.writeMatched("var(txn.host),regsub(^[^.]*,,)", found)
	h.line(`http-request set-var(txn.route) path,concat(/\x01),map_beg(` + wild + `) if !{ var(txn.route) -m found }`)
	h.writeMatched("str('')", "")
}

// passPlain ends the rules of the frontend for a request if its route needs none of the rules after
// it. A route then does not pay for rules that only other routes use. These rules are in the file
// even if no route uses them, so no reload is due when the first route begins to use them. The
// rules of the backend apply all the same (HAProxy Configuration Manual, http-request allow). Texts
// of the cluster have to see every request, so passPlain writes nothing if the cluster has Texts
// for the frontends.
func (h *head) passPlain(section Section, asksForNone string) {
	if len(h.textFor(section)) == 0 && !h.reads(readsPathMatch) {
		h.line("http-request allow if { var(txn.route) -m found }", asksForNone)
	}
}

// writeRouteRules writes the rules that only some routes need, and the Texts of the cluster.
//
// HAProxy tries the regular expressions of a host one after the other (map_reg), together with
// those of the few hosts that share its map. It does not do so for a host that has no regular
// expression.
func (h *head) writeRouteRules(section Section) {
	h.writePatterns(regexpTable)
	if h.reads(readsPathMatch) {
		h.line("http-request set-var(txn.path_match) var(txn.route),field(1,/)")
	}
	h.line(`http-request set-var(txn.weight) var(txn.route),field(5,/)`)
	h.writeGuards(section)
}

// textFor returns the Texts of the cluster for a frontend: those for all frontends and those for the section.
func (h *head) textFor(section Section) []string {
	lines := h.Process.text(FrontendSection)
	if section != FrontendSection {
		lines = append(lines, withNames(h.Process.text(section), h.opt.Dir)...)
	}
	return lines
}

// writePatterns writes the rules that try the regular expressions of a host, in the maps from a
// table on.
func (h *head) writePatterns(table int) {
	key := "field(2,:)"
	if table != regexpTable {
		key = "field(2,:,0)" // a Scope has a ":"
	}
	h.line(`http-request set-var(txn.patterns) var(txn.route),field(6,/) if { var(txn.route),field(6,/) -m len gt 0 }`)
	for i, path := range mapFiles[table : table+patternMaps] {
		h.line(`http-request set-var(txn.route) var(txn.patterns),` + key + `,concat(,txn.path),map_reg(` + h.opt.Dir +
			"/" + path + `) if { var(txn.patterns) -m beg ` + strconv.Itoa(i) + `: }`)
	}
}

// writeGuards writes the rules that reject paths which some servers read as other paths, and the
// Texts of the cluster.
func (h *head) writeGuards(section Section) {
	h.line("http-request del-header " + otherPaths + " -m reg if { var(txn.route) -m end " + guarded + " }")
	h.line(answer(400, "this path can be read in two ways", " if { var(txn.route) -m end "+guarded+" } { path -m reg "+
		ambiguous+" }"))
	h.line(answer(400, "this path can be read in two ways", " if { var(txn.route) -m end "+guardedStrictly+
		" } { path -m reg "+escaped+" }"))
	h.lines(h.textFor(section))
}

// writeInspection writes the rules that find the backend of a TLS connection by the name in its
// handshake. They take one look-up, or two for a wildcard host. The frontend logs only connections
// that pass through, because the frontend for HTTPS logs the requests of all other connections.
func (h *head) writeInspection() {
	names := h.opt.Dir + "/" + sniMap
	h.line("unique-id-format", h.opt.Secret)
	h.line("tcp-request inspect-delay 5s")
	h.line("tcp-request content reject if { req.ssl_sni -m sub / }") // the key of a wildcard ends in a slash
	h.line("tcp-request content set-var(txn.route) req.ssl_sni,lower,map_str(" + names + ")")
	h.line("tcp-request content set-var(txn.route) req.ssl_sni,lower,field(2,.,0),concat(/),map_str(" + names +
		") if !{ var(txn.route) -m found }")
	h.line("tcp-request content set-log-level silent if !{ var(txn.route) -m found }")
	h.line("tcp-request content accept if { req.ssl_hello_type 1 }")
	h.line("use_backend %[var(txn.route)] if { var(txn.route) -m found }")
	h.line("default_backend", terminator)
}

// passage returns the address where the frontend for HTTPS accepts the connections that do not pass
// through. It is in the abstract namespace (unix(7)), because a worker without rights may not be
// able to enter the directory of a socket.
func (h *head) passage() string { return "abns@" + path.Dir(h.opt.StatsSocket) + "/https" }

// tls returns the bind options of an address where TLS for HTTP ends.
func (h *head) tls(alpn string) string {
	return "ssl crt-list " + h.opt.Dir + "/" + crtList + " alpn " + alpn + h.handshake()
}

// handshake returns the bind options of every address where TLS ends, each after a space.
func (h *head) handshake() (words string) {
	p := h.Process
	switch {
	case h.asksClients():
		words = " no-tls-tickets"
	case h.Group != nil:
		words = " tls-ticket-keys " + h.opt.Dir + "/" + ticketFile
	}
	if p.StrictSNI {
		words += " strict-sni"
	}
	if p.Signer != "" {
		words += " generate-certificates ca-sign-file " + h.opt.Dir + "/" + extraDir + p.Signer
	}
	switch p.ClientCA {
	case "":
	case Nobody:
		words += verifyText(h.opt.Dir+"/"+certDir+defaultCert, false)
	default:
		words += verifyText(p.ClientCA, p.ClientOptional)
	}
	return words
}

// verifyText returns the option that asks clients for a certificate of an authority.
func verifyText(ca string, optional bool) string {
	if optional {
		return " verify optional ca-file " + ca
	}
	return " verify required ca-file " + ca
}

// lead writes the rules that send a request to the backend of its route, or to that of the canary.
// A request with a Choice tries the cases of every Choice. The rules for a request without a Choice
// come before these cases.
func (h *head) lead() {
	usual := func(unless string) {
		h.line("use_backend %[var(txn.route),field(4,/)] if { var(txn.weight) -m found } { " +
			"rand(100),sub(txn.weight) lt 0 }" + unless)
		h.line("use_backend %[var(txn.route),field(1,/)] if { var(txn.route) -m found }" + unless)
	}
	if len(h.Choices) > 0 {
		h.line("http-request set-var(txn.choice) var(txn.route),field(7,/) if { var(txn.route),field(7,/) " +
			"-m len gt 0 }")
		usual(" !{ var(txn.choice) -m found }")
	}
	for _, c := range h.Choices {
		for _, one := range c.Cases {
			h.line("use_backend", one.Backend, "if { var(txn.choice) -m str", c.Name, "}", one.condition())
		}
	}
	usual("")
	h.line("default_backend", nowhere)
}

// bindText returns the bind line for an address. At [::] HAProxy accepts only IPv6.
func bindText(a netip.AddrPort) string {
	if a.Addr().Is6() {
		return "bind " + a.String() + " v6only"
	}
	return "bind " + a.String()
}

// quicText returns the bind line for QUIC at an address.
func quicText(a netip.AddrPort) string {
	family := "bind quic4@"
	if a.Addr().Is6() {
		family = "bind quic6@"
	}
	return strings.Replace(bindText(a), "bind ", family, 1)
}
