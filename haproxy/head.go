package haproxy

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// limitedQUIC is the option that turns on QUIC if the TLS library of HAProxy 3.0 has no QUIC of its
// own.
const limitedQUIC = "limited-quic"

// cacheSize limits the number of TLS sessions that clients can resume.
const cacheSize = "tune.ssl.cachesize"

// oldWorkers is the largest number of workers that finish their connections after reloads.
const oldWorkers = 20

// head writes the sections of haproxy.cfg before the backends. They depend on the Shape, and on
// the names for which certificates of the Config ask clients for certificates.
type head struct {
	*Shape
	opt    RenderOptions
	base   base      // the operator's own lines
	asking []asking  // see namesThatAsk
	read   Variables // by Texts
	text   bytes.Buffer
}

// renderHead returns the text of all sections before the backends. defaults are the lines of the
// section defaults in that text.
func (r *renderer) renderHead(cfg *Config) (text, defaults []byte) {
	asking := cfg.namesThatAsk()
	if r.last != nil && slices.Equal(r.headAsking, asking) && r.headOf.equal(&cfg.Shape) {
		return r.last.head, r.last.defaults
	}
	h := head{Shape: &cfg.Shape, opt: r.opt, asking: asking, read: cfg.Reads}
	for _, t := range cfg.Process.Texts {
		h.read |= readBy(t.lines)
	}
	h.base, _ = parseBase(cfg.Tune.Base) // it is valid
	h.writeGlobal()
	h.writePeers()
	begin := h.text.Len() + len("\ndefaults\n")
	h.writeDefaults()
	end := h.text.Len()
	h.writeHTTP()
	h.writeHTTPS()
	h.writeStreams()
	h.writeGateways()
	h.writeExporter()
	h.writeAnswers()
	h.writeTables()
	r.headOf, r.headAsking = cfg.Shape, asking
	text = slices.Clip(h.text.Bytes())
	return text, text[begin:end:end]
}

// section begins a section.
func (h *head) section(words ...string) {
	h.text.WriteString("\n" + strings.Join(words, " ") + "\n")
}

// line adds a line to the section.
func (h *head) line(words ...string) {
	h.text.WriteString("  " + strings.Join(words, " ") + "\n")
}

func (h *head) lines(all []string) {
	for _, l := range all {
		h.line(l)
	}
}

// maxConn returns how many connections HAProxy accepts. 0 lets HAProxy choose.
func (h *head) maxConn() int { return cmp.Or(h.Tune.MaxConn, h.Process.MaxConn, h.opt.MaxConn) }

// asksClients reports whether any name asks clients for certificates. If so, HAProxy resumes no TLS
// session, neither from the cache nor from a ticket. HAProxy before 3.2 resumes a session of TLS
// 1.3 under any name. It then accepts the client's certificate without a check, although another
// name and another authority accepted it.
func (h *head) asksClients() bool {
	return h.Process.ClientCA != "" || len(h.asking) > 0 ||
		slices.ContainsFunc(h.Listeners, func(l Listener) bool { return l.ClientCA != "" })
}

// writeGlobal writes the section global after its first lines, which the preamble contains.
func (h *head) writeGlobal() {
	h.line("stats socket", h.opt.StatsSocket, "mode 600 level admin expose-fd listeners")
	extras := strings.TrimSuffix(h.opt.Dir+"/"+extraDir, "/")
	global := []string{
		"log 127.0.0.1:514 local0 notice",
		"hard-stop-after " + strconv.Itoa(int(hardStop/time.Minute)) + "m",
		// Each old worker keeps its memory until its last connection ends;
		// before 3.3 HAProxy sets no limit to their number.
		"mworker-max-reloads " + strconv.Itoa(oldWorkers),
		// With few open files HAProxy would otherwise refuse a reload for everybody (see
		// serversOfFile).
		"no strict-limits",
		"ca-base " + extras,
		"crt-base " + extras,
	}
	for _, one := range []struct {
		key, value string
	}{{"chroot", h.opt.Jail}, {"user", h.opt.User}, {"group", h.opt.Group}} {
		if one.value != "" {
			global = append(global, one.key+" "+one.value)
		}
	}
	if h.asks() || h.mirrors() { // else it warns
		global = append(global, ".if version_atleast(3.1)", "tune.lua.bool-sample-conversion normal", ".endif")
	}
	if h.asks() {
		// The headers and cookies of a service's answer need this room beside a body that fills the
		// buffer. By default it is 1 kB, and HAProxy leaves out what does not fit, without a word.
		global = append(global, "tune.bufsize 32768", "tune.maxrewrite 16384")
	}
	for _, script := range []struct {
		name, knows string
		used        bool
	}{{authScript, "ask", h.asks()}, {mirrorScript, "mirror", h.mirrors()}} {
		if script.used {
			global = append(global,
				"lua-load-per-thread "+extras+"/"+script.name,
				"set-var proc."+script.knows+"socket str("+h.scriptSocket(script.knows)+")",
				"set-var proc."+script.knows+"secret str("+h.opt.Secret+")")
		}
	}
	if n := cmp.Or(h.Tune.Threads, h.Process.Threads); n > 0 {
		global = append(global, "nbthread "+strconv.Itoa(n))
	}
	if n := h.maxConn(); n > 0 {
		global = append(global, "maxconn "+strconv.Itoa(n))
	}
	if h.Process.QUIC.Port != 0 {
		global = append(global, limitedQUIC)
	}
	tickets := " no-tls-tickets"
	if h.Group != nil {
		tickets = ""
	}
	global = append(global,
		"tune.ssl.default-dh-param 2048",
		"ssl-default-bind-options ssl-min-ver TLSv1.2"+tickets,
		"ssl-default-bind-ciphers "+
			"ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:"+
			"ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384:"+
			"ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305",
		"ssl-default-bind-ciphersuites TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256",
	)
	others := slices.Concat(h.Process.text(GlobalSection), h.base.global)
	if len(others) == 0 {
		// HAProxy would read every authority of the system for its own HTTP client, which takes
		// half of the time of a start. Nothing here uses that client.
		global = append(global, "httpclient.ssl.verify none")
	}
	if h.asksClients() {
		others = append(slices.DeleteFunc(others, func(l string) bool { return strings.HasPrefix(l, cacheSize) }),
			cacheSize+" 0")
	}
	h.lines(slices.Concat(h.Process.instead(true, global), others))
}

func (h *head) writeDefaults() {
	h.section("defaults")
	var more []string
	if h.Group != nil {
		// A member that loses its network keeps connections that its clients have given up. A
		// client may use the same port for a new connection to another member. If packets of the
		// new connection come to this member, they must not meet the old connection.
		more = []string{"option clitcpka", "clitcpka-idle 10s", "clitcpka-intvl 5s", "clitcpka-cnt 3"}
	}
	if h.Standby {
		more = append(more, "option allbackups")
	}
	h.lines(slices.Concat(withNames(h.Process.instead(false, slices.Concat([]string{
		"mode http",
		"balance roundrobin",
		"option dontlognull",
		// Browsers and HTTP libraries open connections ahead of need. If an idle connection gets an
		// answer of 408, they would treat it as the answer to their first request on that
		// connection.
		"option http-ignore-probes",
		// A reload would otherwise close idle keep-alive connections, and lose a request that is
		// just arriving on such a connection.
		"option idle-close-on-response",
		// A pod's kernel answers within milliseconds, unless the node is gone. If it is gone, the
		// request goes to another server after half a second, and may meet the same node again. A
		// pod that has ended refuses connections at once. A request may meet twenty such pods three
		// times each, while other requests meet the pod that lives. No pod refuses more often and
		// stays in service (see serverOptions). If all servers are down, the checks end the
		// retries. Backends without checks have uncheckedRetries.
		"option redispatch 1",
		"retries 60",
		// A connection can end without any byte of an answer. Either the server has closed it at
		// that moment, or its node is gone (see routes.Kernel.Abort).
		"retry-on conn-failure empty-response",
		// A server may close an idle connection just when a request takes it. HAProxy then repeats
		// only GET and HEAD (see writeRequest). With "safe" the first request on a client's
		// connection gets a new connection to the server. Only a later request can fail in this
		// way. Clients repeat a later request themselves (HAProxy Configuration Manual, http-reuse;
		// RFC 9112, section 9.3.1).
		"http-reuse safe",
		"timeout connect 500ms",
		"timeout http-request 5s",
		// A handshake that a client begins and does not finish takes 50 kB of memory. HAProxy 2.6
		// has no timeout of its own for it, and waits for "timeout client".
		".if version_atleast(3.0)", "timeout client-hs 5s", ".endif",
		"timeout client 50s",
		"timeout queue 5s",
		"timeout server 50s",
		"timeout tunnel 1h",
		"timeout http-keep-alive 1m",
		".if version_atleast(3.3)", "default-server " + onlyGivenNames, ".endif",
	}, more)), h.opt.Dir), withNames(h.Process.text(DefaultsSection), h.opt.Dir), h.base.defaults))
	for _, status := range h.Process.ErrorFiles {
		h.line("errorfile", strconv.Itoa(status), h.opt.Dir+"/"+extraDir+errorFile(status))
	}
}

// writeAnswers writes the backends that only answer, with an error or a redirect. If the configuration has an Ask or
// a Mirror, it also writes the frontend for the script.
func (h *head) writeAnswers() {
	if h.Inspect {
		h.section("backend", elsewhere)
		h.line(answer(421, "not on this connection", " if { ssl_fc }"))
		h.line(answer(404, "only over TLS", ""))
	}
	if h.asks() {
		h.writeAsking()
	}
	if h.mirrors() {
		h.writeMirrors()
	}
	h.writeInvalid()
	h.writeWWW()
	h.section("backend", waiting)
	h.line(answer(503, "a change of this path waits for a reload", ""))
	h.section("backend", nowhere)
	if slices.Contains(h.Process.ErrorFiles, 404) {
		h.line("http-request return status 404 default-errorfiles")
	} else {
		h.line(answer(404, "no such host or path here", ""))
	}
}

// writeTables writes the tables of limits, and the userlists with the tables of logins.
func (h *head) writeTables() {
	for _, t := range h.Tables {
		h.text.WriteString(t.text())
	}
	if len(h.Userlists) > 0 {
		h.text.WriteString(loginTables)
	}
	for _, u := range h.Userlists {
		h.text.WriteString(u.text())
	}
}
