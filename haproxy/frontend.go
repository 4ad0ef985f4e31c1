package haproxy

import (
	"cmp"
	"net/netip"
	"path"
	"strconv"
	"strings"
)

// oneHost matches a name or an address, with or without a port.
const oneHost = `'^([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+])(:[0-9]{0,5})?$'`

// toHTTP matches the name of another version of HTTP in the header Upgrade.
const toHTTP = `'(^|[^a-z0-9])(h2c?|http)([^a-z0-9]|$)'`

// writeHTTP writes the frontend for requests in the clear.
func (h *head) writeHTTP() {
	if len(h.Bind.HTTP) == 0 {
		return
	}
	h.section("frontend http")
	for _, a := range h.Bind.HTTP {
		h.line(bindText(a))
	}
	h.expectProxy()
	h.writeRequest("http")
	if !h.demandsClients() {
		h.passPlain("!{ var(txn.route) -m sub / }")
	}
	h.writeRouteRules()
	for _, code := range RedirectCodes {
		text := strconv.Itoa(code)
		h.line("http-request redirect location " +
			"https://%[req.hdr(host),host_only]%[var(txn.route),field(3,/)]%[pathq] code " + text +
			" if { var(txn.route),field(2,/) -m str " + text + " }")
	}
	if h.demandsClients() {
		h.line(answer(403, "only over TLS", " if !{ ssl_fc }"))
	}
	h.lead()
}

// writeHTTPS writes the frontend for requests over TLS and QUIC, and with Inspect
// the frontend for TCP before it.
func (h *head) writeHTTPS() {
	if len(h.Bind.HTTPS) == 0 {
		return
	}
	overTCP := h.tls(cmp.Or(h.Process.ALPN, "h2,http/1.1"))
	if h.Inspect {
		h.writePassage()
		h.section("frontend https")
		h.line("bind", h.passage(), "accept-proxy", overTCP)
		// Anybody else on this machine who connects here could claim to be any client.
		h.line("tcp-request session reject if { fc_rcvd_proxy } !{ fc_pp_unique_id -m str", h.opt.Secret, "}")
	} else {
		h.section("frontend https")
		for _, a := range h.Bind.HTTPS {
			h.line(bindText(a), overTCP)
		}
		h.expectProxy()
	}
	if q := h.Process.QUIC; q.Port != 0 {
		for _, a := range addresses(h.Bind.HTTPS) {
			h.line(quicText(netip.AddrPortFrom(a, q.Port)), h.tls("h3"))
		}
		value := `'h3=":` + strconv.Itoa(int(cmp.Or(q.Announce, q.Port))) + `"; ma=` + strconv.Itoa(q.MaxAge) + "'"
		if h.Leaving {
			value = "clear" // RFC 7838, 3: the client forgets it
		}
		h.line("http-after-response set-header alt-svc", value)
	}
	h.writeRequest("https")
	if h.demandsClients() {
		h.line(answer(403, "only with a certificate", " if !{ ssl_c_used }"))
	}
	if h.certsAsk {
		// The name in the handshake decides which authority has to have signed the
		// client's certificate. It counts for the servers of that name alone.
		h.line("http-request set-var(txn.host) req.hdr(host),host_only,lower")
		h.line(answer(421, "not on this connection", " if { ssl_c_used } !{ ssl_fc_sni,lower,strcmp(txn.host) eq 0 }"))
	}
	h.passPlain("!{ var(txn.route),field(4,/,0) -m found }") // the redirect is for plain HTTP
	h.writeRouteRules()
	h.lead()
}

// writePassage writes the frontend that reads the name in a TLS handshake, and the
// backend that leads to the frontend for HTTPS.
func (h *head) writePassage() {
	h.stream("tls")
	for _, a := range h.Bind.HTTPS {
		h.line(bindText(a))
	}
	if n := h.maxConn(); n > 1 {
		h.line("maxconn", strconv.Itoa(n/2)) // a connection whose TLS ends here counts again in the frontend for HTTPS
	}
	h.expectProxy()
	h.writeInspection()
	h.section("backend", terminator)
	h.line("mode tcp")
	h.line("server https", h.passage(), "send-proxy-v2 proxy-v2-options unique-id")
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

// expectProxy demands the PROXY protocol of the networks of Process.ProxyFrom.
func (h *head) expectProxy() {
	if len(h.Process.ProxyFrom) > 0 {
		h.lines(strings.Split(Networks{Of: h.Process.ProxyFrom}.acl("sp_proxy")+
			"tcp-request connection expect-proxy layer4 if sp_proxy", "\n"))
	}
}

// demandsClients reports whether a request needs the certificate of a client,
// whatever its host is.
func (h *head) demandsClients() bool {
	return h.Process.ClientCA != "" && (!h.Process.ClientOptional || h.Process.ClientCA == Nobody)
}

// writeRequest writes the rules that each request meets first, and those that find
// its route.
func (h *head) writeRequest(proto string) {
	if h.Leaving {
		h.line("option httpclose")
	}
	for _, n := range h.Captures {
		h.line("declare capture request len", strconv.Itoa(n))
	}
	// servers may take it for X-Forwarded-Proto
	h.line("http-request del-header '(?i)^x(?:[_.]forwarded[-_.]|-forwarded[_.])' -m reg")
	// HAProxy repeats no request that a server may have acted on (RFC 9110, section
	// 9.2.2).
	h.line("http-request disable-l7-retry if !{ method GET HEAD }")
	h.line("http-request set-header X-Forwarded-Proto", proto)
	h.writeRouting()
}

// writeRouting finds the route of a request in one look-up, or two for a
// wildcard host, or three for a host nobody named. map_beg finds the longest
// key the request's host and path begin with; the path is followed by "/" and
// the byte 0x01, so a Prefix key, which ends in "/", ends at an element's end,
// and an Exact key, which ends in "/" and 0x01, is the whole path and longer
// than any Prefix. HAProxy answers 400 to a raw control byte in a path, so no
// client can write the mark himself.
//
// Each request passes all of these rules. So a rule begins with the condition that
// nearly every request fails, and that costs the least.
func (h *head) writeRouting() {
	exact, wild := h.opt.Dir+"/"+routeMap, h.opt.Dir+"/"+wildMap
	// HAProxy, an authentication service and the servers have to read the same host in
	// a request. So there is one name, and a URI that has a name has the same one,
	// which HAProxy checks where there are both. A slash in the name would begin the
	// path of the key.
	h.line("http-request deny deny_status 400 if !{ req.fhdr(host) -m reg " + oneHost +
		" } { req.fhdr(host) -m found }")
	h.line("http-request deny deny_status 400 if !{ url -m beg / } !{ req.fhdr(host) -m found } or { url -m sub @ } " +
		"{ url -m reg '^[^/?]*://[^/?]*@' }")
	// Once a server has agreed to another protocol, or to a tunnel, HAProxy passes on
	// bytes and looks at no request any more.
	h.line("http-request deny deny_status 405 if METH_CONNECT")
	h.line("http-request set-header Upgrade websocket if { req.fhdr(upgrade) -m reg -i " + toHTTP +
		" } { req.hdr(upgrade) -m str -i websocket }")
	h.line("http-request del-header Upgrade if { req.fhdr(upgrade) -m reg -i " + toHTTP + " }")
	h.line("http-request set-var(txn.path) path")
	h.line(`http-request set-var(txn.route) req.hdr(host),host_only,lower,concat(,txn.path,/\x01),map_beg(` + exact +
		`)`)
	h.line(`http-request set-var(txn.route) req.hdr(host),host_only,lower,field(2,.,0),concat(,txn.path,/\x01),map_beg(` + wild + `) if !{ var(txn.route) -m found }`)
	h.line(`http-request set-var(txn.route) path,concat(/\x01),map_beg(` + wild + `) if !{ var(txn.route) -m found }`)
}

// passPlain ends the rules of the frontend for a request whose route asks for none of
// the rules that follow. So a route does not pay for what other routes use, and no
// reload is due when the first route begins to use it. The rules of the backend apply
// all the same (HAProxy Configuration Manual, http-request allow). Texts of the cluster
// have to see every request, so there is no such end where there are any.
func (h *head) passPlain(asksForNone string) {
	if len(h.Process.text(FrontendSection)) == 0 {
		h.line("http-request allow if { var(txn.route) -m found }", asksForNone)
	}
}

// writeRouteRules writes the rules that some routes ask for, and the texts of the
// cluster.
//
// For a host that has regular expressions, and no other, map_reg tries them one after
// the other, with those of the few hosts that share its map.
func (h *head) writeRouteRules() {
	h.line(`http-request set-var(txn.patterns) var(txn.route),field(6,/) if { var(txn.route),field(6,/) -m len gt 0 }`)
	for i, path := range mapFiles[regexpTable:] {
		h.line(`http-request set-var(txn.route) var(txn.patterns),field(2,:),concat(,txn.path),map_reg(` + h.opt.Dir +
			"/" + path + `) if { var(txn.patterns) -m beg ` + strconv.Itoa(i) + `: }`)
	}
	h.line(`http-request set-var(txn.weight) var(txn.route),field(5,/)`)
	h.line("http-request del-header " + otherPaths + " -m reg if { var(txn.route) -m end " + guarded + " }")
	h.line(answer(400, "this path can be read in two ways", " if { var(txn.route) -m end "+guarded+" } { path -m reg "+
		ambiguous+" }"))
	h.line(answer(400, "this path can be read in two ways", " if { var(txn.route) -m end "+guardedStrictly+
		" } { path -m reg "+escaped+" }"))
	h.lines(h.Process.text(FrontendSection))
}

// writeInspection finds the backend of a TLS connection by the name in its
// handshake, in one look-up, or two for a wildcard host. It logs only connections
// that pass through: the frontend for HTTPS logs the requests of all others.
func (h *head) writeInspection() {
	names := h.opt.Dir + "/" + sniMap
	h.line("unique-id-format", h.opt.Secret)
	h.line("tcp-request inspect-delay 5s")
	h.line("tcp-request content reject if { req.ssl_sni -m sub / }") // a wildcard's key ends in one
	h.line("tcp-request content set-var(txn.route) req.ssl_sni,lower,map_str(" + names + ")")
	h.line("tcp-request content set-var(txn.route) req.ssl_sni,lower,field(2,.,0),concat(/),map_str(" + names +
		") if !{ var(txn.route) -m found }")
	h.line("tcp-request content set-log-level silent if !{ var(txn.route) -m found }")
	h.line("tcp-request content accept if { req.ssl_hello_type 1 }")
	h.line("use_backend %[var(txn.route)] if { var(txn.route) -m found }")
	h.line("default_backend", terminator)
}

// passage returns the address at which the frontend for HTTPS takes connections
// that do not pass through. A name in the abstract namespace (unix(7)) needs no
// directory that a worker without rights can enter.
func (h *head) passage() string { return "abns@" + path.Dir(h.opt.StatsSocket) + "/https" }

// tls returns the options of an address where TLS for HTTP ends.
func (h *head) tls(alpn string) string {
	return "ssl crt-list " + h.opt.Dir + "/" + crtList + " alpn " + alpn + h.handshake()
}

// handshake returns the options of every address where TLS ends, each after a
// space.
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

// lead sends a request to the backend of its route, or to that of the canary.
// Requests whose route has a Choice try the cases of every Choice; all others have
// their backend before.
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
			h.line("use_backend", one.Backend, "if { var(txn.choice) -m str", c.Name, "}", one.If.lines)
		}
	}
	usual("")
	h.line("default_backend", nowhere)
}

// bindText returns the line for an address; [::] is IPv6 alone.
func bindText(a netip.AddrPort) string {
	if a.Addr().Is6() {
		return "bind " + a.String() + " v6only"
	}
	return "bind " + a.String()
}

// quicText returns the line for an address of QUIC.
func quicText(a netip.AddrPort) string {
	family := "bind quic4@"
	if a.Addr().Is6() {
		family = "bind quic6@"
	}
	return strings.Replace(bindText(a), "bind ", family, 1)
}
