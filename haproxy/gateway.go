package haproxy

import (
	"slices"
	"strconv"
	"strings"
)

// wideLabels is the largest number of labels that a request's host may have in front of the name of
// a wildcard of a Listener. HAProxy takes one look-up for each.
const wideLabels = 8

// writeGateways writes a frontend for each kind of Listener, with a bind for each Listener. The
// name of the bind is the Scope, so rules find it in so_name.
func (h *head) writeGateways() {
	h.writeGateway(ListenHTTP)
	h.writeGateway(ListenHTTPS)
	h.writeGateway(ListenMixed)
	h.writeConnections()
}

// writeConnections writes the frontends for connections at Listeners, and the backends that they
// need. Where TLS ends in HAProxy, a connection takes a second hop, as in writePassage.
func (h *head) writeConnections() {
	if h.listens(ListenTCP.is) {
		h.writeBinds(ListenTCP, ListenTCP.is)
		h.line("tcp-request content set-var(txn.to) so_name,concat(/*)" + h.streamFile())
		h.writeShares("tcp-request content", "tcp-request content accept")
		h.leadConnections()
	}
	if h.listens(ListenerKind.inspects) {
		h.writeBinds(ListenTLS, ListenerKind.inspects)
		h.line("unique-id-format", h.opt.Secret)
		h.line("tcp-request inspect-delay 5s")
		h.line("tcp-request content reject if { req.ssl_sni -m sub / }") // a slash ends the Scope in a key
		h.line("tcp-request content set-var(txn.host) req.ssl_sni,lower")
		h.widen("tcp-request content", "txn.to", "txn.host", h.streamFile(), "")
		h.line("tcp-request content set-log-level silent if { var(txn.to) -m beg " + terminated + " }")
		h.line("tcp-request content accept if { var(txn.to) -m beg " + terminated + " }")
		if h.listens(ListenMixed.is) { // the frontend for requests logs them
			h.line("tcp-request content set-log-level silent if { var(txn.to) -m beg " + terminators + " }")
		}
		h.writeShares("tcp-request content", "tcp-request content accept")
		for _, l := range h.Listeners {
			if l.Kind.inspects() {
				h.line("use_backend", l.terminator(), "if { var(txn.to) -m beg", terminated, "} { so_name -m str",
					l.scope(), "}")
			}
		}
		h.leadConnections()
		h.writeTerminated()
	}
	if h.listens(ListenerKind.Connections) {
		h.section("backend", refused)
		h.line("mode tcp")
		h.line(reject)
	}
}

// writeTerminated writes the frontend where the TLS of Terminate Routes ends, and the backends in
// front of that frontend.
func (h *head) writeTerminated() {
	h.stream(ListenTLS.frontend() + "-end")
	h.line("option socket-stats")
	for _, l := range h.Listeners {
		if l.Kind == ListenMixed { // only the frontend for requests asks clients for certificates
			l.Kind, l.ClientCA, l.Insecure = ListenTLS, "", false
		}
		if l.Kind == ListenTLS {
			h.line("bind", h.hop(l.terminator()), "name", l.scope(), "accept-proxy"+h.bindTLS(l))
		}
	}
	h.expectHop()
	h.line("tcp-request content set-var(txn.host) ssl_fc_sni,lower")
	h.widen("tcp-request content", "txn.row", "txn.host", h.streamFile(), "")
	h.line("tcp-request content set-var(txn.to) var(txn.row),field(2," + terminated + ")")
	h.writeShares("tcp-request content", "tcp-request content accept")
	h.leadConnections()
	for _, l := range h.Listeners {
		if l.Kind.inspects() {
			h.writeHop(l.terminator(), "tls", h.hop(l.terminator()))
		}
		if l.Kind == ListenMixed {
			h.writeHop(l.requests(), "https", h.hop(l.requests()))
		}
	}
}

// writeHop writes a backend that leads to the frontend where the TLS of its connections ends, at an address.
func (h *head) writeHop(backend, server, at string) {
	h.section("backend", backend)
	h.line("mode tcp")
	h.line("server", server, at, "send-proxy-v2 proxy-v2-options unique-id")
}

// expectHop rejects connections that do not come from another frontend of this HAProxy. Any process on
// this machine can connect to the address of a hop. If it need not know the secret, it can claim to be
// any client.
func (h *head) expectHop() {
	h.line("tcp-request session reject if { fc_rcvd_proxy } !{ fc_pp_unique_id -m str", h.opt.Secret, "}")
}

// terminators begins the names of the backends that lead to the frontend where the TLS of a
// Listener ends.
const terminators = "_" + terminator + "-"

// terminator returns the name of that backend.
func (l Listener) terminator() string { return terminators + l.file() }

// requests returns the name of the backend that leads to the frontend for requests of a ListenMixed.
func (l Listener) requests() string { return l.terminator() + "-https" }

// hop returns the address where the frontend behind a terminator listens.
func (h *head) hop(backend string) string {
	return h.passage() + "-" + strings.TrimPrefix(backend, terminators)
}

// streamFile returns the converter that looks up a key in stream.map.
func (h *head) streamFile() string { return ",map_str(" + h.opt.Dir + "/" + streamMap + ")" }

// writeBinds begins the frontend for connections of a kind, with a bind for each Listener of some kinds.
func (h *head) writeBinds(kind ListenerKind, kinds func(ListenerKind) bool) {
	h.stream(kind.frontend())
	h.line("option socket-stats")
	if kind == ListenTLS { // a route may end its TLS here
		h.halveConnections()
	}
	for _, l := range h.Listeners {
		if kinds(l.Kind) {
			h.line(bindText(l.At), "name", l.scope())
		}
	}
	h.expectProxy()
}

// leadConnections writes the rules that send a connection to its backend.
func (h *head) leadConnections() {
	h.line("use_backend %[var(txn.share)] if { var(txn.share) -m found }")
	h.line("use_backend %[var(txn.to)] if { var(txn.to) -m found }")
	h.line("default_backend", refused)
}

// writeGateway writes the frontend for requests at the Listeners of one kind. Connections to a
// ListenMixed come to it by a second hop, as in writePassage.
func (h *head) writeGateway(kind ListenerKind) {
	if !h.listens(kind.is) {
		return
	}
	h.section("frontend", kind.frontend())
	h.line("option socket-stats")
	for _, l := range h.Listeners {
		switch {
		case l.Kind != kind:
		case kind == ListenMixed:
			h.line("bind", h.hop(l.requests()), "name", l.scope(), "accept-proxy"+h.bindTLS(l))
		default:
			h.line(bindText(l.At) + " name " + l.scope() + h.bindTLS(l))
		}
	}
	proto := kind
	if kind == ListenMixed {
		h.expectHop()
		proto = ListenHTTPS
	} else {
		h.expectProxy()
	}
	h.writeRequest(string(proto))
	h.writeScopes()
	if kind != ListenHTTP {
		h.writeMisdirected()
	}
	// A route has a "/" for each of its needs, and a "@" for each share.
	h.passPlain(FrontendSection, "!{ var(txn.route) -m sub / @ }")
	h.writePatterns(gatewayRegexpTable)
	h.writeGuards(FrontendSection)
	if kind == ListenHTTP {
		h.writeRedirects()
	}
	h.line("http-request set-var(txn.to) var(txn.route),field(1,/)")
	h.writePicks()
	h.writeShares("http-request", "http-request allow")
	h.line("use_backend %[var(txn.share)] if { var(txn.share) -m found }")
	h.line("use_backend %[var(txn.to)] if { var(txn.to) -m found }")
	h.line("use_backend %[var(txn.route),field(1,/)] if { var(txn.route) -m found }")
	h.line("default_backend", nowhere)
}

// bindTLS returns the bind options of a Listener where TLS ends, after a space.
func (h *head) bindTLS(l Listener) string {
	if !l.Kind.secure() {
		return ""
	}
	words := " ssl crt-list " + h.opt.Dir + "/" + l.crtList()
	if l.Kind != ListenTLS {
		words += " alpn h2,http/1.1"
	}
	switch {
	case h.asksClients():
		words += " no-tls-tickets"
	case h.Group != nil:
		words += " tls-ticket-keys " + h.opt.Dir + "/" + ticketFile
	}
	ca := l.ClientCA
	if ca == Nobody {
		ca = h.opt.Dir + "/" + certDir + defaultCert
	}
	if ca != "" {
		words += verifyText(ca, l.Insecure)
	}
	if l.Insecure {
		words += " crt-ignore-err all ca-ignore-err all"
	}
	return words
}

// crtList returns the path of the list of certificates of a Listener.
func (l Listener) crtList() string { return crtList + "-" + l.file() }

// writeScopes writes the rules that find the route of a request at a Listener, in the same way as
// writeRouting. They take one look-up, or one for each label in front of the name of a wildcard.
func (h *head) writeScopes() {
	file := "map_beg(" + h.opt.Dir + "/" + gatewayMap + ")"
	h.line("http-request set-var(txn.path) path")
	h.line("http-request set-var(txn.host) req.hdr(host),host_only,lower")
	h.widen("http-request", "txn.route", "txn.host", `,concat(,txn.path,/\x01),`+file, "")
}

// widen writes the rules that look up a host at a Listener in a map, then each wildcard that covers
// the host, from the longest to the shortest, and then "*". The result goes into a variable.
func (h *head) widen(rule, into, host, file, condition string) {
	none := "!{ var(" + into + ") -m found }" + condition
	h.line(rule + " set-var(" + into + ") so_name,concat(/," + host + ")" + file + ifThat(condition))
	for n := range wideLabels {
		rest := "var(" + host + "),field(" + strconv.Itoa(n+2) + ",.,0)"
		h.line(rule + " set-var(txn.rest) " + rest + " if " + none + " { " + rest + " -m found }")
		h.line(rule + " set-var(" + into + ") so_name,concat(/*.,txn.rest)" + file + " if " + none + " { " + rest +
			" -m found }")
	}
	h.line(rule + " set-var(" + into + ") so_name,concat(/*)" + file + " if " + none)
}

// ifThat turns a condition with a leading space into the end of a rule.
func ifThat(condition string) string {
	if condition == "" {
		return ""
	}
	return " if" + condition
}

// writeMisdirected writes the rules that answer 421 if the host of a request belongs to another
// part of the Listener than the name in the TLS handshake. Nearly every request has the same name
// in both, and takes no look-up.
func (h *head) writeMisdirected() {
	h.line("http-request set-var(txn.sni) ssl_fc_sni,lower")
	h.line("http-request set-var(txn.other) bool(true) if { var(txn.sni) -m found } " +
		"!{ var(txn.sni),strcmp(txn.host) eq 0 }")
	file, crossed := ",map_str("+h.opt.Dir+"/"+hostnameMap+")", " { var(txn.other) -m found }"
	h.widen("http-request", "txn.part", "txn.host", file, crossed)
	h.widen("http-request", "txn.snipart", "txn.sni", file, crossed)
	h.line(answer(421, "not on this connection", " if { var(txn.part) -m found } "+
		"!{ var(txn.part),strcmp(txn.snipart) eq 0 }"))
}

// samples returns the distinct samples that Forms look at, with the bits of these Forms. It returns
// them in the order of their first Form.
func (h *head) samples() (all []sample) {
	at := make(map[string]int)
	add := func(bit int, fetch, raw string, patterns bool) {
		s := sample{name: "txn.v", fetch: raw, bits: 1 << bit}
		if !patterns {
			s.name, s.fetch = "txn.x", fetch+",hex"
		}
		if i, known := at[s.fetch]; known {
			all[i].bits |= s.bits
			return
		}
		s.name += strconv.Itoa(len(all))
		at[s.fetch] = len(all)
		all = append(all, s)
	}
	for bit, f := range h.Forms {
		for _, fetch := range f.fetches() {
			add(bit, fetch, fetch, f.Patterns)
		}
	}
	return all
}

// A sample is a part of a request, and the variable that holds it.
type sample struct {
	name, fetch string
	bits        uint64
}

// fetches returns the samples of a Form, in the order of the values of a condition.
func (f *Form) fetches() (all []string) {
	if f.Method {
		// "method" alone is "OPTIONS" for methods without a number, in HAProxy before 3.2
		all = append(all, "method,concat()")
	}
	for _, name := range f.Headers {
		all = append(all, "req.fhdr("+name+")")
	}
	for _, name := range f.Params {
		all = append(all, "url_param("+name+"),url_dec(1)")
	}
	return all
}

// writePicks writes the rules that try the conditions of a request's Pick. They take one look-up
// for each Form of the Pick, and keep the Target of the least rank.
func (h *head) writePicks() {
	if len(h.Forms) == 0 {
		return
	}
	h.line("http-request set-var(txn.mask) var(txn.route),field(4,/) if { var(txn.route),field(5,/) -m len gt 0 }")
	h.line("http-request set-var(txn.pick) var(txn.route),field(5,/),field(-1,:) if { var(txn.mask) -m found }")
	h.line("http-request set-var(txn.rank) str(1000000) if { var(txn.mask) -m found }")
	names := make(map[string]string)
	for _, s := range h.samples() {
		names[s.fetch] = s.name
		h.line("http-request set-var(" + s.name + ") " + s.fetch + ifMask(s.bits))
	}
	for bit, f := range h.Forms {
		if f.Patterns {
			h.tryPatterns(f, bit, names)
		} else {
			var key strings.Builder
			key.WriteString("var(txn.pick),concat(." + f.Name + ")")
			for _, fetch := range f.fetches() {
				key.WriteString(",concat(.," + names[fetch+",hex"] + ")")
			}
			h.line("http-request set-var(txn.hit) " + key.String() + ",map_str(" + h.opt.Dir + "/" + pickMap + ")" +
				ifMask(1<<bit))
		}
		better := " if { var(txn.hit),field(1,/),sub(txn.rank) lt 0 }"
		h.line("http-request set-var(txn.to) var(txn.hit),field(2,/)" + better)
		h.line("http-request set-var(txn.rank) var(txn.hit),field(1,/)" + better)
	}
}

// tryPatterns writes the rules that try the conditions of a Form with regular expressions. A
// request without one of the values matches none of them.
func (h *head) tryPatterns(f *Form, bit int, names map[string]string) {
	subject := "txn.s" + strconv.Itoa(bit)
	var key, found strings.Builder
	key.WriteString("var(txn.pick),concat(." + f.Name + ")")
	for _, fetch := range f.fetches() {
		key.WriteString(`,concat(\n,` + names[fetch] + ")")
		found.WriteString(" { var(" + names[fetch] + ") -m found }")
		if strings.HasPrefix(fetch, "url_param") {
			found.WriteString(` !{ var(` + names[fetch] + `) -m sub \n }`)
		}
	}
	h.line("http-request set-var(" + subject + ") " + key.String() + ifMask(1<<bit) + found.String())
	for i, path := range mapFiles[pickRegexpTable : pickRegexpTable+patternMaps] {
		h.line("http-request set-var(txn.hit) var(" + subject + "),map_reg(" + h.opt.Dir + "/" + path + ") if { var(" +
			subject + ") -m found } { var(txn.route),field(5,/) -m beg " + strconv.Itoa(i) + ": }")
	}
}

// ifMask returns the condition that the Pick of a request has one of these Forms.
func ifMask(bits uint64) string {
	return " if { var(txn.mask),and(" + strconv.FormatUint(bits, 10) + ") gt 0 }"
}

// writeShares writes the rules that choose one share of txn.to by chance.
func (h *head) writeShares(rule, end string) {
	h.line(rule + " set-var(txn.dice) rand(" + strconv.Itoa(chances) + ") if { var(txn.to) -m sub @ }")
	h.line(end + " if !{ var(txn.dice) -m found }")
	for i := range MaxShares {
		place := "var(txn.to),field(" + strconv.Itoa(i+1) + ",+)"
		h.line(rule + " set-var(txn.share) " + place + ",field(2,@) if { " + place + ",field(1,@),sub(txn.dice) gt 0 }")
		h.line(end + " if { var(txn.share) -m found }")
	}
}

// writeInvalid writes the backend that stands for those that cannot be served.
func (h *head) writeInvalid() {
	if len(h.Listeners) > 0 {
		h.section("backend", Invalid)
		h.line(answer(500, invalidText, ""))
	}
}

// scopesWithTLS returns the Listeners where TLS ends.
func (s *Shape) scopesWithTLS() (all []Listener) {
	return slices.DeleteFunc(slices.Clone(s.Listeners), func(l Listener) bool { return !l.Kind.secure() })
}
