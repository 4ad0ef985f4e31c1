package haproxy

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"maps"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/haproxytech/client-native/v6/config-parser/params"
	"github.com/haproxytech/client-native/v6/configuration"
	"github.com/haproxytech/client-native/v6/configuration/options"
	"github.com/haproxytech/client-native/v6/models"
)

// Names of files, relative to the configuration directory.
const (
	configFile  = "haproxy.cfg"
	failedFile  = "haproxy.cfg.failed" // what HAProxy refused last
	formerFile  = "haproxy.cfg.former" // what was there before us
	mapDir      = "maps/"
	routeMap    = "maps/route.map"
	wildMap     = "maps/wild.map"
	sniMap      = "maps/sni.map"
	regexpMap   = "maps/regexp-" // as these begin: there are some
	crtList     = "certs/crt-list"
	certDir     = "certs/"
	extraDir    = "extra/"
	defaultCert = "_default.pem" // no namespace begins with "_", so no Secret's certificate has this name
	namedCert   = "_named.pem"   // Config.DefaultCert
)

// limitedQUIC lets HAProxy 3.0 have QUIC with a library that has none for it.
const limitedQUIC = "limited-quic"

// RenderOptions are the places a configuration speaks of.
type RenderOptions struct {
	Dir          string // where the files will be, absolute
	StatsSocket  string // where the worker takes commands, absolute
	NoticeSocket string // where the worker says what its checks find, absolute; empty: nowhere
	Secret       string // letters and digits by which HAProxy knows connections that it passed to itself
	MaxConn      int    // most connections, where neither Tune nor Process says; 0 lets HAProxy choose
	User, Group  string // whom the worker becomes; empty: it stays who started it
	Jail         string // directory that the worker is locked into, absolute; it begins the path of the NoticeSocket; empty: none
}

// File is one file's content and permission bits.
type File struct {
	Content []byte
	Mode    fs.FileMode
}

// Files is everything HAProxy reads, by path relative to the configuration
// directory, except the self-signed default certificate.
type Files struct {
	Content map[string]File

	// Gen identifies all of it. haproxy.cfg carries it in the process
	// variable proc.gen, where it says which state a worker runs.
	Gen string
	// Shape identifies what only a reload can change: haproxy.cfg without
	// its servers. It is in proc.shape.
	Shape string

	refusable string // identifies what HAProxy may refuse: the shape, with the certificates and the patterns

	rows  map[string][]row             // of maps and lists, by path
	certs map[string]certEntry         // what the crt-list says, by file name
	sums  map[string][sha256.Size]byte // of the contents, as generation takes them
}

// certEntry is a certificate as HAProxy is told it: the file, and its line in
// the crt-list.
type certEntry struct {
	pem  []byte
	line string
}

// row is a line of a map.
type row struct{ key, value string }

// isMap reports whether the path is that of a map or a list.
func isMap(path string) bool {
	return strings.HasPrefix(path, mapDir) || strings.HasPrefix(path, listDir)
}

// tables are the rows of mapFiles, each sorted by key, but those of a regexpMap:
// they stand in the order in which they are tried.
type tables [len(mapFiles)][]row

// patternMaps is how many regexpMaps there are. HAProxy tries the rows of one after
// the other, half a microsecond each, whose host they are or not. Which of the maps
// a host has depends on a secret, so that nobody can choose to share another's.
const patternMaps = 16

// mapFiles are the files of the maps. That of sniTable is there only with
// Config.Inspect.
var mapFiles = func() (files [regexpTable + patternMaps]string) {
	files[exactTable], files[wildTable], files[sniTable] = routeMap, wildMap, sniMap
	for i := range patternMaps {
		files[regexpTable+i] = regexpMap + strconv.Itoa(i) + ".map"
	}
	return files
}()

// patternMap returns the number of the regexpMap that has the rows of a host.
func patternMap(host, secret string) int {
	sum := sha256.Sum256([]byte(secret + "\n" + host))
	return int(sum[0]) % patternMaps
}

// The tables.
const (
	exactTable = iota
	wildTable
	sniTable
	regexpTable // the first of patternMaps
)

// Render writes cfg for HAProxy with its servers in the given states: an Open
// server takes traffic from the first moment; a Closed one is there, disabled,
// and so is one in Drain, which after a reload has nothing left to finish in
// the new worker; an Absent one, or one that states does not name, is left
// out. Servers are written in the order of cfg. The result depends on nothing
// else. cfg must be valid.
func Render(cfg *Config, states States, opt RenderOptions) Files {
	r := renderer{opt: opt}
	return r.render(cfg, states)
}

// renderer is Render with a memory: of the text of each backend, by pointer
// and states, of the maps, of the lists and of the certificates. It changes how
// long rendering takes and nothing else. Owned by whoever holds the Proxy's lock.
type renderer struct {
	opt       RenderOptions
	fragments map[*Backend]*fragment

	head     []byte // all sections before the backends
	headOf   Shape  // head was made for it,
	headAsks bool   // and for certificates that ask clients for theirs, or not
	maps     renderedMaps
	mapsOf   Config // maps were made for it
	certs    map[*Cert]rendered
	lists    map[*List]renderedList
}

// renderedList is the file of a List, and what is in it.
type renderedList struct {
	rendered
	rows []row
}

// rendered is a file with the hash of its content.
type rendered struct {
	file  File
	sum   [sha256.Size]byte
	entry certEntry
}

// renderedMaps are tables and the files that hold them.
type renderedMaps struct {
	tables tables
	files  [len(mapFiles)]rendered
}

// fragment is the text of a backend whose servers are in these states.
type fragment struct {
	states  []State
	present int    // how many servers are not Absent
	shape   []byte // the section without its servers, and their options
	text    []byte
}

// marker is the width of the hashes in the first lines of haproxy.cfg.
const marker = 16

// ours is the first line of a haproxy.cfg we wrote.
const ours = "# Written by sallyport. What you change here is lost at the next change in the cluster."

// preamble are the first lines of haproxy.cfg. They have the same length
// whatever the hashes are, so that the hash of what follows can be filled in.
func preamble(gen, shape string) string {
	return ours + "\n" +
		"global\n  set-var proc.gen str(" + gen + ")\n  set-var proc.shape str(" + shape + ")\n"
}

var preambleLen = len(preamble(strings.Repeat("0", marker), strings.Repeat("0", marker)))

func (r *renderer) render(cfg *Config, states States) Files {
	head := append(r.renderHead(cfg), keysText(cfg.Backends)...)
	if len(r.fragments) > 2*len(cfg.Backends)+100 {
		wanted := make(map[*Backend]*fragment, len(cfg.Backends))
		for _, b := range cfg.Backends {
			wanted[b] = r.fragments[b]
		}
		r.fragments = wanted
	}
	if r.fragments == nil {
		r.fragments = make(map[*Backend]*fragment, len(cfg.Backends))
	}
	size := preambleLen + len(head)
	shape := slices.Clone(head)
	for _, b := range cfg.Backends {
		f := r.fragment(b, states[b.Name])
		size += len(f.text)
		shape = append(shape, f.shape...)
	}
	text := make([]byte, preambleLen, size)
	text = append(text, head...)
	for _, b := range cfg.Backends {
		text = append(text, r.fragments[b].text...)
	}

	sums := make(map[string][sha256.Size]byte, len(cfg.Certs)+4)
	out := Files{Content: make(map[string]File, len(cfg.Certs)+4), rows: make(map[string][]row), certs: make(map[string]certEntry, len(cfg.Certs)), sums: sums}
	sums[configFile] = sha256.Sum256(text[preambleLen:])

	m := r.renderMaps(cfg)
	for i, path := range mapFiles {
		if path != sniMap || cfg.Inspect {
			out.Content[path], sums[path], out.rows[path] = m.files[i].file, m.files[i].sum, m.tables[i]
		}
	}

	lists := make(map[*List]renderedList, len(cfg.Lists))
	for _, l := range cfg.Lists {
		k, ok := r.lists[l]
		if !ok {
			k.rows = l.rows()
			k.file = mapFile(k.rows)
			k.sum = sha256.Sum256(k.file.Content)
		}
		lists[l] = k
		path := listDir + l.Name
		out.Content[path], sums[path], out.rows[path] = k.file, k.sum, k.rows
	}
	r.lists = lists
	for _, e := range cfg.Extras {
		sum := sha256.Sum256(e.Content)
		out.Content[extraDir+e.Name], sums[extraDir+e.Name] = File{e.Content, 0o600}, sum
		shape = append(append(shape, e.Name...), sum[:]...)
	}
	first := certDir + defaultCert
	if len(cfg.DefaultCert) > 0 {
		first = certDir + namedCert
		k := r.renderCert(&Cert{Name: namedCert, PEM: cfg.DefaultCert})
		out.Content[first], sums[first] = k.file, k.sum
		shape = append(shape, k.sum[:]...)
	}
	list := []byte(r.opt.Dir + "/" + first + "\n")
	known := make(map[*Cert]rendered, len(cfg.Certs))
	for _, c := range cfg.Certs {
		k, ok := r.certs[c]
		if !ok {
			k = r.renderCert(c)
		}
		known[c] = k
		path := certDir + c.Name
		out.Content[path], sums[path] = k.file, k.sum
		list = append(append(list, k.entry.line...), '\n')
		if fixed(c.Name) {
			shape = append(append(shape, k.entry.line...), k.sum[:]...)
			continue
		}
		out.certs[c.Name] = k.entry
		if len(k.entry.pem) > maxPayload {
			shape = append(shape, k.sum[:]...)
		}
	}
	r.certs = known
	out.Content[crtList], sums[crtList] = File{list, 0o600}, sha256.Sum256(list)

	out.Gen = generation(sums)
	sum := sha256.Sum256(shape)
	out.Shape = hex.EncodeToString(sum[:])[:marker]
	weighed := sha256.New()
	weighed.Write(shape)
	for _, path := range append(slices.Sorted(maps.Keys(out.certs)), mapFiles[regexpTable:]...) {
		sum := sums[path]
		if c, is := out.certs[path]; is {
			sum = sums[certDir+path]
			weighed.Write([]byte(c.line))
		}
		weighed.Write(sum[:])
	}
	out.refusable = hex.EncodeToString(weighed.Sum(nil))[:marker]
	copy(text, preamble(out.Gen, out.Shape))
	out.Content[configFile] = File{text, 0o600}
	return out
}

// generation names a set of files by the hashes of their contents.
func generation(sums map[string][sha256.Size]byte) string {
	h := sha256.New()
	for _, path := range slices.Sorted(maps.Keys(sums)) {
		sum := sums[path]
		h.Write([]byte(path))
		h.Write(sum[:])
	}
	return hex.EncodeToString(h.Sum(nil))[:marker]
}

func (r *renderer) renderHead(cfg *Config) []byte {
	asks := slices.ContainsFunc(cfg.Certs, func(c *Cert) bool { return c.ClientCA != "" })
	if r.head != nil && r.headAsks == asks && r.headOf.equal(&cfg.Shape) {
		return r.head
	}
	own, _ := parseBase(cfg.Tune.Base)
	var b bytes.Buffer
	line := func(words ...string) {
		b.WriteString("  ")
		for i, w := range words {
			if i > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(w)
		}
		b.WriteByte('\n')
	}
	line("stats socket", r.opt.StatsSocket, "mode 600 level admin expose-fd listeners")
	extras := strings.TrimSuffix(r.opt.Dir+"/"+extraDir, "/")
	global := []string{
		"log 127.0.0.1:514 local0 notice",
		"hard-stop-after 30m",
		// Each old worker keeps its memory until its last connection ends;
		// before 3.3 HAProxy sets no limit to their number.
		"mworker-max-reloads 20",
		"ca-base " + extras,
		"crt-base " + extras,
	}
	if r.opt.Jail != "" {
		global = append(global, "chroot "+r.opt.Jail)
	}
	if r.opt.User != "" {
		global = append(global, "user "+r.opt.User)
	}
	if r.opt.Group != "" {
		global = append(global, "group "+r.opt.Group)
	}
	if cfg.asks() {
		global = append(global,
			".if version_atleast(3.1)", "tune.lua.bool-sample-conversion normal", ".endif", // else it warns
			"lua-load-per-thread "+extras+"/"+authScript, "set-var proc.asksocket str("+r.askSocket()+")", "set-var proc.asksecret str("+r.opt.Secret+")")
	}
	if n := cmp.Or(cfg.Tune.Threads, cfg.Process.Threads); n > 0 {
		global = append(global, "nbthread "+strconv.Itoa(n))
	}
	if n := cmp.Or(cfg.Tune.MaxConn, cfg.Process.MaxConn, r.opt.MaxConn); n > 0 {
		global = append(global, "maxconn "+strconv.Itoa(n))
	}
	if cfg.Process.QUIC.Port != 0 {
		global = append(global, limitedQUIC)
	}
	global = append(global,
		"tune.ssl.default-dh-param 2048",
		"ssl-default-bind-options ssl-min-ver TLSv1.2 no-tls-tickets",
		"ssl-default-bind-ciphers ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384:"+
			"ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305",
		"ssl-default-bind-ciphersuites TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256",
	)
	others := slices.Concat(cfg.Process.text(GlobalSection), own.global)
	if len(others) == 0 {
		// Nobody here asks anything by HAProxy's own client, for which it would read
		// every authority of the system: half of the time that a start takes.
		global = append(global, "httpclient.ssl.verify none")
	}
	if cfg.asksClients() {
		others = append(slices.DeleteFunc(others, func(l string) bool { return strings.HasPrefix(l, cacheSize) }), cacheSize+" 0")
	}
	for _, l := range slices.Concat(cfg.Process.instead(true, global), others) {
		line(l)
	}

	b.WriteString("\ndefaults\n")
	for _, l := range slices.Concat(cfg.Process.instead(false, []string{
		"mode http",
		"balance roundrobin",
		"option dontlognull",
		// Browsers and HTTP libraries open connections ahead of need. An answer
		// of 408 to one that was never used would be taken for that of the
		// request which is sent on it at last.
		"option http-ignore-probes",
		// Without it a reload cuts idle keep-alive connections, and the
		// request that is just under way on one of them.
		"option idle-close-on-response",
		// A pod's kernel answers within milliseconds, or the node is gone. Then
		// the request goes to another server, which costs half a second, and may
		// meet the same node again.
		"option redispatch 1",
		"retries 5",
		// A connection that ends without a byte of an answer is one that was
		// closed just then, or to a node that is gone (see routes.Kernel.Abort).
		"retry-on conn-failure empty-response",
		"timeout connect 500ms",
		"timeout http-request 5s",
		// A handshake that is begun and left takes 50 kB. HAProxy 2.6 waits for it as
		// long as for anything a client does.
		".if version_atleast(3.0)", "timeout client-hs 5s", ".endif",
		"timeout client 50s",
		"timeout queue 5s",
		"timeout server 50s",
		"timeout tunnel 1h",
		"timeout http-keep-alive 1m",
	}), cfg.Process.text(DefaultsSection), own.defaults) {
		line(l)
	}

	for _, status := range cfg.Process.ErrorFiles {
		line("errorfile", strconv.Itoa(status), r.opt.Dir+"/"+extraDir+errorFile(status))
	}

	proxied := func() {
		if len(cfg.Process.ProxyFrom) > 0 {
			for l := range strings.SplitSeq(Networks{Of: cfg.Process.ProxyFrom}.acl("sp_proxy")+"tcp-request connection expect-proxy layer4 if sp_proxy", "\n") {
				line(l)
			}
		}
	}
	captures := func() {
		for _, n := range cfg.Captures {
			line("declare capture request len", strconv.Itoa(n))
		}
		line("http-request del-header '(?i)^(?!x-forwarded-)x[-_.]forwarded[-_.]' -m reg") // what servers may take for what is set here
		// What may have been done is not done again (RFC 9110, section 9.2.2).
		line("http-request disable-l7-retry if !{ method GET HEAD }")
	}
	texts := func() {
		for _, l := range cfg.Process.text(FrontendSection) {
			line(l)
		}
	}
	demanded := cfg.Process.ClientCA != "" && (!cfg.Process.ClientOptional || cfg.Process.ClientCA == Nobody)
	if len(cfg.Bind.HTTP) > 0 {
		b.WriteString("\nfrontend http\n")
		for _, a := range cfg.Bind.HTTP {
			line(bindText(a))
		}
		proxied()
		captures()
		line("http-request set-header X-Forwarded-Proto http")
		r.writeRouting(line)
		texts()
		for _, code := range RedirectCodes {
			text := strconv.Itoa(code)
			line("http-request redirect location https://%[req.hdr(host),host_only]%[var(txn.route),field(3,/)]%[pathq] code " + text + " if { var(txn.route),field(2,/) -m str " + text + " }")
		}
		if demanded {
			line(answer(403, "only over TLS", " if !{ ssl_fc }"))
		}
		lead(line, cfg.Choices)
	}
	stream := func(name string) {
		b.WriteString("\nfrontend " + name + "\n")
		line("mode tcp")
		line("no option http-ignore-probes")
		line("no option idle-close-on-response")
		for _, l := range cfg.Process.streamLog(own.defaults) {
			line(l)
		}
	}
	if len(cfg.Bind.HTTPS) > 0 {
		secure := func(alpn string) string {
			return "ssl crt-list " + r.opt.Dir + "/" + crtList + " alpn " + alpn + r.handshake(cfg)
		}
		overTCP := secure(cmp.Or(cfg.Process.ALPN, "h2,http/1.1"))
		if cfg.Inspect {
			stream("tls")
			for _, a := range cfg.Bind.HTTPS {
				line(bindText(a))
			}
			if n := cmp.Or(cfg.Tune.MaxConn, cfg.Process.MaxConn, r.opt.MaxConn); n > 1 {
				line("maxconn", strconv.Itoa(n/2)) // the other half is for what of them is ended here
			}
			proxied()
			r.writeInspection(line)
			b.WriteString("\nbackend " + terminator + "\n")
			line("mode tcp")
			line("server https", r.passage(), "send-proxy-v2 proxy-v2-options unique-id")
			b.WriteString("\nfrontend https\n")
			line("bind", r.passage(), "accept-proxy", overTCP)
			// Whoever else finds the way here could speak for any client.
			line("tcp-request session reject if { fc_rcvd_proxy } !{ fc_pp_unique_id -m str", r.opt.Secret, "}")
		} else {
			b.WriteString("\nfrontend https\n")
			for _, a := range cfg.Bind.HTTPS {
				line(bindText(a), overTCP)
			}
			proxied()
		}
		if q := cfg.Process.QUIC; q.Port != 0 {
			for _, a := range addresses(cfg.Bind.HTTPS) {
				line(quicText(netip.AddrPortFrom(a, q.Port)), secure("h3"))
			}
			line(`http-after-response set-header alt-svc 'h3=":` + strconv.Itoa(int(cmp.Or(q.Announce, q.Port))) + `"; ma=` + strconv.Itoa(q.MaxAge) + "'")
		}
		captures()
		line("http-request set-header X-Forwarded-Proto https")
		r.writeRouting(line)
		if demanded {
			line(answer(403, "only with a certificate", " if !{ ssl_c_used }"))
		}
		if asks {
			// A certificate is good for the name in the handshake, which said by whom it
			// had to be signed: another name's servers are not shown it.
			line("http-request set-var(txn.host) req.hdr(host),host_only,lower")
			line(answer(421, "not on this connection", " if { ssl_c_used } !{ ssl_fc_sni,lower,strcmp(txn.host) eq 0 }"))
		}
		texts()
		lead(line, cfg.Choices)
	}

	for _, s := range cfg.Streams {
		stream("tcp-" + strconv.Itoa(int(s.Port)))
		options := ""
		if s.Proxy && len(cfg.Process.ProxyFrom) == 0 {
			options += " accept-proxy"
		}
		if s.TLS {
			options += " ssl crt-list " + r.opt.Dir + "/" + crtList + r.handshake(cfg)
		}
		for _, a := range addresses(cfg.Bind.HTTP, cfg.Bind.HTTPS) {
			line(bindText(netip.AddrPortFrom(a, s.Port)) + options)
		}
		if s.Proxy {
			proxied()
		}
		line("default_backend", s.Backend)
	}

	if cfg.Inspect {
		b.WriteString("\nbackend " + elsewhere + "\n")
		line(answer(421, "not on this connection", " if { ssl_fc }"))
		line(answer(404, "only over TLS", ""))
	}
	if cfg.asks() {
		b.WriteString("\nfrontend sallyport-auth\n")
		r.writeAsking(line)
	}
	b.WriteString("\nbackend " + nowhere + "\n")
	if slices.Contains(cfg.Process.ErrorFiles, 404) {
		line("http-request return status 404 default-errorfiles")
	} else {
		line(answer(404, "no such host or path here", ""))
	}
	for _, t := range cfg.Tables {
		b.WriteString(t.text())
	}
	for _, u := range cfg.Userlists {
		b.WriteString(u.text())
	}
	r.head, r.headOf, r.headAsks = slices.Clip(b.Bytes()), cfg.Shape, asks
	return r.head
}

// writeRouting finds the route of a request in one look-up, or two for a
// wildcard host, or three for a host nobody named. map_beg finds the longest
// key the request's host and path begin with; the path is followed by "/" and
// the byte 0x01, so a Prefix key, which ends in "/", ends at an element's end,
// and an Exact key, which ends in "/" and 0x01, is the whole path and longer
// than any Prefix. HAProxy answers 400 to a raw control byte in a path, so no
// client can write the mark himself.
//
// Only for a host that has regular expressions are these tried, one after the
// other, with those of the few hosts that are in the same map.
func (r *renderer) writeRouting(line func(...string)) {
	exact, wild := r.opt.Dir+"/"+routeMap, r.opt.Dir+"/"+wildMap
	// What a request is for has one meaning to HAProxy, to the service that is asked
	// who may come in, and to the servers: one name, the same in the URI if that has
	// one, which HAProxy sees to where there are both. A slash in it would be read as
	// the beginning of the path.
	line("http-request deny deny_status 400 if { req.fhdr(host) -m found } !{ req.fhdr(host) -m reg " + oneHost + " }")
	line("http-request deny deny_status 400 if !{ url -m beg / } !{ req.fhdr(host) -m found }")
	line("http-request deny deny_status 400 if !{ url -m beg / } { url -m reg '^[^/?]*://[^/?]*@' }")
	// A server that agrees to go on by another protocol, or as a tunnel, is spoken to
	// from then on without a look at what for.
	line("http-request deny deny_status 405 if METH_CONNECT")
	line("http-request set-header Upgrade websocket if { req.fhdr(upgrade) -m reg -i " + toHTTP + " } { req.hdr(upgrade) -m str -i websocket }")
	line("http-request del-header Upgrade if { req.fhdr(upgrade) -m reg -i " + toHTTP + " }")
	line("http-request set-var(txn.path) path")
	line(`http-request set-var(txn.route) req.hdr(host),host_only,lower,concat(,txn.path,/\x01),map_beg(` + exact + `)`)
	line(`http-request set-var(txn.route) req.hdr(host),host_only,lower,field(2,.,0),concat(,txn.path,/\x01),map_beg(` + wild + `) if !{ var(txn.route) -m found }`)
	line(`http-request set-var(txn.route) path,concat(/\x01),map_beg(` + wild + `) if !{ var(txn.route) -m found }`)
	line(`http-request set-var(txn.patterns) var(txn.route),field(6,/) if { var(txn.route),field(6,/) -m len gt 0 }`)
	for i, path := range mapFiles[regexpTable:] {
		line(`http-request set-var(txn.route) var(txn.patterns),field(2,:),concat(,txn.path),map_reg(` + r.opt.Dir + "/" + path + `) if { var(txn.patterns) -m beg ` + strconv.Itoa(i) + `: }`)
	}
	line(`http-request set-var(txn.weight) var(txn.route),field(5,/)`)
	line(answer(400, "this path can be read in two ways", " if { var(txn.route) -m end "+guarded+" } { path -m reg "+ambiguous+" }"))
	line(answer(400, "this path can be read in two ways", " if { var(txn.route) -m end "+guardedStrictly+" } { path -m reg "+escaped+" }"))
}

// oneHost is a name or an address, and maybe a port.
const oneHost = `'^([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+])(:[0-9]{0,5})?$'`

// toHTTP is another version of HTTP in the header Upgrade.
const toHTTP = `'(^|[^a-z0-9])(h2c?|http)([^a-z0-9]|$)'`

// writeInspection leads a TLS connection by the name in its handshake, in one
// look-up, or two for a wildcard host. What is not passed through is not logged
// here: it will be, request by request.
func (r *renderer) writeInspection(line func(...string)) {
	names := r.opt.Dir + "/" + sniMap
	line("unique-id-format", r.opt.Secret)
	line("tcp-request inspect-delay 5s")
	line("tcp-request content reject if { req.ssl_sni -m sub / }") // a wildcard's key ends in one
	line("tcp-request content set-var(txn.route) req.ssl_sni,lower,map_str(" + names + ")")
	line("tcp-request content set-var(txn.route) req.ssl_sni,lower,field(2,.,0),concat(/),map_str(" + names + ") if !{ var(txn.route) -m found }")
	line("tcp-request content set-log-level silent if !{ var(txn.route) -m found }")
	line("tcp-request content accept if { req.ssl_hello_type 1 }")
	line("use_backend %[var(txn.route)] if { var(txn.route) -m found }")
	line("default_backend", terminator)
}

// passage is where the frontend for HTTPS takes what is not passed through. A
// name in the abstract namespace (unix(7)) needs no directory that a worker
// without rights can enter.
func (r *renderer) passage() string { return "abns@" + path.Dir(r.opt.StatsSocket) + "/https" }

// cacheSize is how many TLS sessions are kept that a client can resume.
const cacheSize = "tune.ssl.cachesize"

// asksClients reports whether any name asks for certificates of clients. Then no TLS
// session is resumed, from the cache or from a ticket: HAProxy before 3.2 resumes
// one of TLS 1.3 under any name, and with it the certificate that was shown under
// another one, to another authority, is taken for good.
func (c *Config) asksClients() bool {
	return c.Process.ClientCA != "" || slices.ContainsFunc(c.Certs, func(c *Cert) bool { return c.ClientCA != "" })
}

// handshake returns what else is asked for where TLS ends.
func (r *renderer) handshake(cfg *Config) (words string) {
	p := cfg.Process
	if cfg.asksClients() {
		words = " no-tls-tickets"
	}
	if p.StrictSNI {
		words += " strict-sni"
	}
	if p.Signer != "" {
		words += " generate-certificates ca-sign-file " + r.opt.Dir + "/" + extraDir + p.Signer
	}
	switch p.ClientCA {
	case "":
	case Nobody:
		words += verifyText(r.opt.Dir+"/"+certDir+defaultCert, false)
	default:
		words += verifyText(p.ClientCA, p.ClientOptional)
	}
	return words
}

// lead sends a request to the backend of its route, or to that of the canary.
// Those of routes with a choice walk through the cases of all; the others have
// gone by then.
func lead(line func(...string), choices []*Choice) {
	usual := func(unless string) {
		line("use_backend %[var(txn.route),field(4,/)] if { var(txn.weight) -m found } { rand(100),sub(txn.weight) lt 0 }" + unless)
		line("use_backend %[var(txn.route),field(1,/)] if { var(txn.route) -m found }" + unless)
	}
	if len(choices) > 0 {
		line("http-request set-var(txn.choice) var(txn.route),field(7,/) if { var(txn.route),field(7,/) -m len gt 0 }")
		usual(" !{ var(txn.choice) -m found }")
	}
	for _, c := range choices {
		for _, one := range c.Cases {
			line("use_backend", one.Backend, "if { var(txn.choice) -m str", c.Name, "}", one.If.lines)
		}
	}
	usual("")
	line("default_backend", nowhere)
}

func bindText(a netip.AddrPort) string {
	if a.Addr().Is6() {
		return "bind " + a.String() + " v6only"
	}
	return "bind " + a.String()
}

// quicText is bindText for QUIC.
func quicText(a netip.AddrPort) string {
	family := "bind quic4@"
	if a.Addr().Is6() {
		family = "bind quic6@"
	}
	return strings.Replace(bindText(a), "bind ", family, 1)
}

func (r *renderer) fragment(b *Backend, states []State) *fragment {
	if old := r.fragments[b]; old != nil && slices.Equal(old.states, states) {
		return old
	}
	f := &fragment{states: slices.Clone(states)}
	var text strings.Builder
	text.WriteByte('\n')
	if b.Origin != "" {
		text.WriteString("# " + strings.Map(printable, b.Origin) + "\n")
	}
	begin := text.Len()
	text.WriteString("backend " + b.Name + "\n")
	if r.opt.NoticeSocket != "" {
		text.WriteString("  log " + strings.TrimPrefix(r.opt.NoticeSocket, r.opt.Jail) + " format raw local0 notice\n")
	}
	if b.TCP {
		text.WriteString("  mode tcp\n")
	}
	told := strings.NewReplacer(here, r.opt.Dir+"/", cookieKey, keyOfCookies(r.opt.Secret))
	for _, d := range b.Directives {
		for line := range strings.SplitSeq(d.text, "\n") {
			text.WriteString("  " + told.Replace(line) + "\n")
		}
	}
	f.shape = []byte(text.String()[begin:] + serverOptions(b.Options) + "\n")
	for i := range b.Servers {
		if i >= len(states) || states[i] <= Absent {
			continue
		}
		s := &b.Servers[i]
		f.present++
		text.WriteString("  server " + s.Name + " " + serverText(b.Options, s))
		if states[i] != Open {
			text.WriteString(" disabled")
		}
		text.WriteByte('\n')
	}
	f.text = []byte(text.String())
	r.fragments[b] = f
	return f
}

// verifyText asks clients for a certificate of an authority.
func verifyText(ca string, optional bool) string {
	if optional {
		return " verify optional ca-file " + ca
	}
	return " verify required ca-file " + ca
}

// keysText is the section of keysBackend.
func keysText(backends []*Backend) string {
	options := make(map[string]string)
	for _, b := range backends {
		if !b.Options.TLS {
			continue
		}
		if crt := b.Options.Crt; crt != "" {
			options[crt] = "verify none crt " + crt
		}
		if ca := b.Options.CA; ca != "" {
			options[ca] = "verify required ca-file " + ca
		}
	}
	if len(options) == 0 {
		return ""
	}
	var text strings.Builder
	text.WriteString("\nbackend " + keysBackend + "\n")
	for _, name := range slices.Sorted(maps.Keys(options)) {
		text.WriteString("  server " + name + " 0.0.0.0:0 disabled ssl " + options[name] + "\n")
	}
	return text.String()
}

func printable(c rune) rune {
	if c < ' ' || c == 0x7f {
		return ' '
	}
	return c
}

// serverText is what follows a server's name, in haproxy.cfg and in the
// command "add server" alike: address and options. A server added by command
// inherits nothing from default-server, so every option is spelled out.
func serverText(o ServerOptions, s *Server) string {
	address := netip.AddrPortFrom(s.Addr.Addr().Unmap(), s.Addr.Port()).String()
	if options := serverOptions(o); options != "" {
		return address + " " + options
	}
	return address
}

// serverOptions is what follows a server's address.
func serverOptions(o ServerOptions) string {
	var p models.ServerParams
	if o.Check {
		p.Check = models.ServerParamsCheckEnabled
		// A node may die without a word, and BGP needs its hold time to see it.
		// Three connections that fail in a row are a doubt: the next check,
		// within half a second, settles it.
		p.Fastinter, p.Downinter = new(int64(500)), new(int64(1000))
		p.Observe, p.ErrorLimit, p.OnError = models.ServerParamsObserveLayer4, 3, models.ServerParamsOnErrorSuddenDashDeath
		if o.CheckInterval > 0 {
			p.Inter = new(max(o.CheckInterval.Milliseconds(), 1))
		}
	}
	if o.MaxConn > 0 {
		p.Maxconn = new(int64(o.MaxConn))
	}
	if o.TLS {
		p.Ssl, p.Verify = models.ServerParamsSslEnabled, models.ServerParamsVerifyNone
		if o.CA != "" {
			p.Verify, p.SslCafile = models.ServerParamsVerifyRequired, o.CA
		}
		p.SslCertificate, p.Verifyhost = o.Crt, o.VerifyHost
		switch o.SNI {
		case "":
		case SNIOfClient:
			p.Sni = "ssl_fc_sni"
		case SNIOfHost:
			p.Sni = "req.hdr(host),host_only,lower"
		default:
			p.Sni, p.CheckSni = "str("+o.SNI+")", o.SNI
		}
		if o.Proto == "" {
			p.Alpn = "h2,http/1.1"
		}
	}
	if o.Proto == "h2" {
		p.Proto = "h2"
		if o.TLS {
			p.Alpn = "h2"
		}
	}
	switch o.SendProxy {
	case "proxy", "proxy-v1":
		p.SendProxy = models.ServerParamsSendProxyEnabled
	case "proxy-v2":
		p.SendProxyV2 = models.ServerParamsSendProxyV2Enabled
	case "proxy-v2-ssl":
		p.SendProxyV2Ssl = models.ServerParamsSendProxyV2SslEnabled
	case "proxy-v2-ssl-cn":
		p.SendProxyV2SslCn = models.ServerParamsSendProxyV2SslCnEnabled
	}
	t := configuration.SerializeServer(models.Server{ServerParams: p}, &options.ConfigurationOptions{})
	return params.ServerOptionsString(t.Params)
}

func (r *renderer) renderCert(c *Cert) rendered {
	var k rendered
	if pair, err := ReadPair(c.PEM, c.PEM); err == nil { // it is valid
		k.entry.pem = pair.PEM
	}
	k.file, k.sum = File{k.entry.pem, 0o600}, sha256.Sum256(k.entry.pem)
	words := []string{r.opt.Dir + "/" + certDir + c.Name}
	if c.ClientCA != "" {
		words = append(words, "["+strings.TrimSpace(verifyText(c.ClientCA, c.ClientOptional))+"]")
	}
	k.entry.line = strings.Join(append(words, c.filters()...), " ")
	return k
}

func (r *renderer) renderMaps(cfg *Config) renderedMaps {
	if of := &r.mapsOf; r.maps.files[0].file.Content != nil && of.Shape.equal(&cfg.Shape) && of.DefaultBackend == cfg.DefaultBackend &&
		slices.Equal(of.Routes, cfg.Routes) && slices.EqualFunc(of.Backends, cfg.Backends, (*Backend).sameRules) {
		return r.maps
	}
	r.maps, r.mapsOf = renderedMaps{tables: rows(cfg, r.opt.Secret)}, *cfg
	for i, table := range r.maps.tables {
		file := mapFile(table)
		r.maps.files[i] = rendered{file: file, sum: sha256.Sum256(file.Content)}
	}
	return r.maps
}

func mapFile(rows []row) File {
	text := make([]byte, 0, 64+64*len(rows))
	text = append(text, "# what is looked up, then what it comes to\n"...)
	for _, r := range rows {
		text = append(append(append(append(text, r.key...), ' '), r.value...), '\n')
	}
	return File{text, 0o600}
}

// parseMap is the reverse of mapFile.
func parseMap(text []byte) []row {
	var out []row
	for line := range bytes.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSuffix(string(line), "\n"), " ")
		if ok && key[0] != '#' {
			out = append(out, row{key, value})
		}
	}
	return out
}

// tlsPort is where plain HTTP is redirected to, if a route says nothing else.
func tlsPort(b Bind) uint16 {
	if len(b.HTTPS) == 0 {
		return 443
	}
	return b.HTTPS[0].Port()
}

// rows turns routes into the lines of the maps, each sorted by key. Keys
// of route.map begin with a host. Keys of wild.map begin with a wildcard host
// without its "*.", or, for every other host, with the path's "/". A host that
// is named has a row for "/" in any case, so that it never falls through to a
// wildcard.
//
// A value is BACKEND/STATUS/:PORT/CANARY/WEIGHT/PATTERNS/CHOICE/GUARD, without what is
// not there at its end. There is a STATUS where plain HTTP is redirected, and a PORT
// if it is not 443, which clients do not expect to see. PATTERNS are what the keys
// of a regexpMap begin with that are to be tried first, behind the number of the map
// and ":": the host, "_" for any. GUARD is that of the host, see guards.
//
// Keys of sni.map are hosts, or wildcard hosts without "*." and with "/" at the
// end, which no name has; values are backends. A host that has other routes, and
// that a wildcard would pass through, is named there too.
func rows(cfg *Config, secret string) (out tables) {
	routes, port := cfg.Routes, tlsPort(cfg.Bind)
	var known [len(mapFiles)]map[string]string
	for i := range known {
		known[i] = make(map[string]string)
	}
	add := func(table int, key, value string) {
		if _, taken := known[table][key]; !taken {
			known[table][key] = value
		}
	}
	guard := guards(cfg)
	patterns := make(map[string]bool) // hosts that have some
	for _, r := range routes {
		if r.Match == Regexp {
			patterns[r.Host] = true
			add(regexpTable+patternMap(r.Host, secret), pattern(r.Host, r.Path), r.value(port, "", guard[r.Host]))
		}
	}
	first := func(host string) string {
		if !patterns[host] {
			return ""
		}
		return strconv.Itoa(patternMap(host, secret)) + ":" + cmp.Or(host, "_")
	}
	place := func(host string) (int, string) {
		if rest, ok := strings.CutPrefix(host, "*."); ok {
			return wildTable, rest
		}
		if host == "" {
			return wildTable, ""
		}
		return exactTable, host
	}
	for _, r := range routes {
		table, key := place(r.Host)
		switch r.Match {
		case Exact:
			add(table, key+r.Path+"/\x01", r.value(port, "", guard[r.Host]))
		case Begin:
			add(table, key+r.Path, r.value(port, first(r.Host), guard[r.Host]))
		case Prefix:
			add(table, key+strings.TrimRight(r.Path, "/")+"/", r.value(port, first(r.Host), guard[r.Host]))
		case Passthrough:
			to := r.Backend
			r.Backend = nowhere
			if cfg.Inspect {
				name := r.Host
				if table == wildTable {
					name = key + "/" // as below: without "*.", with "/"
				}
				add(sniTable, name, cmp.Or(to, terminator))
				r.Backend = elsewhere
			}
			add(table, key+"/", r.value(port, "", ""))
		}
	}
	for _, r := range routes {
		table, host := place(r.Host)
		implied := Route{Backend: cfg.DefaultBackend}
		add(table, host+"/", implied.value(port, first(r.Host), guard[r.Host]))
		if _, parent, _ := strings.Cut(host, "."); table == exactTable && known[sniTable][parent+"/"] != "" {
			add(sniTable, host, terminator)
		}
	}
	add(wildTable, "/", cmp.Or(cfg.DefaultBackend, nowhere))
	for i := range known {
		out[i] = make([]row, 0, len(known[i]))
		for key, value := range known[i] {
			out[i] = append(out[i], row{key, value})
		}
		slices.SortFunc(out[i], func(a, b row) int { return cmp.Compare(a.key, b.key) })
	}
	for _, table := range out[regexpTable:] {
		slices.SortStableFunc(table, func(a, b row) int { return cmp.Compare(len(b.key), len(a.key)) })
	}
	return out
}

// value returns what a map says of a route. Its patterns are tried before it counts.
func (r *Route) value(port uint16, patterns, guard string) string {
	words := []string{cmp.Or(r.Backend, nowhere), "", "", "", "", patterns, r.Choice, guard}
	if r.TLSOnly {
		words[1] = strconv.Itoa(cmp.Or(r.TLSCode, 302))
		if port := cmp.Or(r.TLSPort, port); port != 443 {
			words[2] = ":" + strconv.Itoa(int(port))
		}
	}
	if r.Canary != "" {
		words[3], words[4] = r.Canary, strconv.Itoa(r.CanaryWeight)
	}
	return strings.TrimRight(strings.Join(words, "/"), "/")
}

// pattern returns a key of a regexpMap.
func pattern(host, path string) string {
	return matchLimit + "^" + regexp.QuoteMeta(cmp.Or(host, "_")) + "(?:" + path + ")"
}
