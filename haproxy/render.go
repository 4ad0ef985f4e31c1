package haproxy

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io/fs"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// Names of files, relative to the configuration directory.
const (
	configFile       = "haproxy.cfg"
	failedFile       = "haproxy.cfg.failed" // the last haproxy.cfg that HAProxy rejected
	formerFile       = "haproxy.cfg.former" // the haproxy.cfg that was there before ours
	mapDir           = "maps/"
	routeMap         = "maps/route.map"
	wildMap          = "maps/wild.map"
	sniMap           = "maps/sni.map"
	regexpMap        = "maps/regexp-" // begins the names of several files
	gatewayMap       = "maps/gateway.map"
	pickMap          = "maps/pick.map"
	hostnameMap      = "maps/hostname.map"
	streamMap        = "maps/stream.map"
	gatewayRegexpMap = "maps/gateway-regexp-" // begins the names of several files
	pickRegexpMap    = "maps/pick-regexp-"    // begins the names of several files
	crtList          = "certs/crt-list"
	certDir          = "certs/"
	extraDir         = "extra/"
	defaultCert      = "_default.pem" // no namespace begins with "_", so no Secret's certificate has this name
	namedCert        = "_named.pem"   // the certificate in Config.DefaultCert
)

// RenderOptions holds the paths and names that appear in a configuration.
type RenderOptions struct {
	Dir         string // directory of the files, absolute
	StatsSocket string // socket where the worker takes commands, absolute
	// NoticeSocket is the socket to which the worker reports the results of its checks, absolute.
	// If it is empty, the worker reports nothing.
	NoticeSocket string
	Secret       string // letters and digits; HAProxy recognises connections from itself by them
	MaxConn      int    // most connections if neither Tune nor Process sets it; 0 lets HAProxy choose
	// User and Group are those of the worker. If they are empty, the worker keeps the user and
	// group that started it.
	User, Group string
	// Jail is the directory that the worker is locked into, absolute, or empty. The path of the
	// NoticeSocket begins with it.
	Jail string
}

// File holds the content and the permission bits of one file.
type File struct {
	Content []byte
	Mode    fs.FileMode
}

// Files holds all files that HAProxy reads except the self-signed default certificate. Their paths
// are relative to the configuration directory.
type Files struct {
	Content map[string]File

	// Gen identifies the content of all files. haproxy.cfg sets the process variable proc.gen to
	// it, so proc.gen names the files that a worker has loaded.
	Gen string
	// Shape identifies the parts that only a reload can change, such as haproxy.cfg without its
	// servers. haproxy.cfg sets the process variable proc.shape to it.
	Shape string

	sums map[string][sha256.Size]byte // hashes of the contents, as generation takes them
}

// outline holds the files of a configuration. In place of the text of haproxy.cfg it holds the
// parts of that text. An outline shares all parts that have not changed with the outline before it,
// so a small change costs little.
type outline struct {
	cfg      *Config
	head     []byte
	defaults []byte      // lines of its section defaults
	backends []*fragment // in the order of the configuration
	given    States      // states of the servers of the backends
	by       *renderer
	made     *tableFiles // nil until tables makes it
	extras   *fileSet
	certs    *certFiles
	tickets  []string // keys of TLS tickets; without keys HAProxy makes no tickets
	// names is for a worker that has other names for some backends. For a worker that reads the
	// files, it is empty.
	names workerNames
	shape string // as in Files
}

// fileSet holds the files that HAProxy reads only when it starts.
type fileSet struct {
	of    []*Extra
	peer  *Group // the Group that added the files of its peer to these; nil if no Group did
	files map[string]rendered
	shape []byte // names and hashes of the files
}

// certFiles holds the files of the certificates, and the crt-list.
type certFiles struct {
	of      []*Cert
	first   []byte     // Config.DefaultCert
	scopes  []Listener // the Listeners where TLS ends
	files   map[string]rendered
	entries map[string]certEntry // certificates that commands change, by file name
	shape   []byte               // the parts that only a reload changes
}

// certEntry holds the file of a certificate, and its line in a crt-list.
type certEntry struct {
	pem  []byte
	list string // path of the list
	line string
}

// Render returns the files of cfg. An Open server takes traffic as soon as HAProxy has started.
// Closed and Drain servers are in the files, but disabled: after a reload, a server in Drain has no
// connections to finish in the new worker. Absent servers, and servers without an entry in states,
// are left out. Servers are in the order of cfg. Equal arguments give equal files. cfg must be
// valid.
func Render(cfg *Config, states States, opt RenderOptions) Files {
	r := renderer{opt: opt}
	return r.outline(cfg, states).files(opt.Dir)
}

// renderer makes outlines, and remembers the last outline and its fragments. The memory saves time,
// and has no effect on the result. The lock of a Proxy protects its renderer.
type renderer struct {
	opt       RenderOptions
	last      *outline // nil before the first outline
	fragments map[*Backend]*fragment
	tables    *tableFiles // the last tables; nil before the first
	hosts     hostRows

	// headOf and headAsking belong to the last head: its Shape, and the names that ask clients for
	// certificates.
	headOf     Shape
	headAsking []asking
	cookies    string // the key of cookies in the fragments
}

// rendered holds a file with the hash of its content.
type rendered struct {
	file  File
	sum   [sha256.Size]byte
	entry certEntry // only for a certificate
}

// marker is the width of the hashes in the first lines of haproxy.cfg.
const marker = 16

// ours is the first line of every haproxy.cfg that we write.
const ours = "# Written by sallyport. What you change here is lost at the next change in the cluster."

// preamble returns the first lines of haproxy.cfg. Their length is the same for all
// hashes, so that the hash of the lines below can be filled in.
func preamble(gen, shape string) string {
	return ours +
		"\n# The servers are those of HAProxy's last start or reload; \"sallyport status\" tells those of now.\n" +
		"global\n  set-var proc.gen str(" + gen + ")\n  set-var proc.shape str(" + shape + ")\n"
}

var preambleLen = len(preamble(strings.Repeat("0", marker), strings.Repeat("0", marker)))

// in returns the outline for a worker with these names for some backends.
func (o *outline) in(n workerNames) *outline {
	if maps.Equal(o.names, n) {
		return o
	}
	out := *o
	out.names, out.made = n, nil
	return &out
}

// outline returns the outline of cfg with its servers in these states, for a worker that reads the
// files.
func (r *renderer) outline(cfg *Config, states States) *outline {
	if key := r.opt.cookieKey(&cfg.Shape); key != r.cookies {
		r.last, r.fragments, r.cookies = nil, nil, key
	}
	was := r.last
	if was == nil {
		was = &outline{cfg: &Config{}}
	}
	o := &outline{
		cfg: cfg, given: states, by: r,
		tickets: cfg.Group.tickets(cfg.Period), extras: r.renderExtras(cfg), certs: r.renderCerts(cfg),
	}
	o.head, o.defaults = r.renderHead(cfg)
	sameShapes := r.renderBackends(o, was, states)
	if r.last != nil && sameShapes && bytes.Equal(o.head, was.head) && bytes.Equal(o.extras.shape, was.extras.shape) &&
		bytes.Equal(o.certs.shape, was.certs.shape) {
		o.shape = was.shape
	} else {
		h := sha256.New()
		h.Write(o.head)
		h.Write([]byte(keysText(cfg.Backends)))
		for _, f := range o.backends {
			h.Write(f.sum[:])
		}
		h.Write(o.extras.shape)
		h.Write(o.certs.shape)
		o.shape = short(h)
	}
	r.last = o
	return o
}

// renderBackends adds the fragments of the backends. It reports whether the outline before has the
// same shapes.
func (r *renderer) renderBackends(o, was *outline, states States) (sameShapes bool) {
	backends := o.cfg.Backends
	if len(r.fragments) > 2*len(backends)+100 {
		wanted := make(map[*Backend]*fragment, len(backends))
		for _, b := range backends {
			wanted[b] = r.fragments[b]
		}
		r.fragments = wanted
	}
	if r.fragments == nil {
		r.fragments = make(map[*Backend]*fragment, len(backends))
	}
	sameShapes = len(backends) == len(was.backends)
	o.backends = make([]*fragment, len(backends))
	for i, b := range backends {
		// In a large cluster, the loop reads only the backends that have changed. The others are
		// not in the processor's caches.
		if i < len(was.backends) && was.cfg.Backends[i] == b && SameList(was.given.of(i), states.of(i)) {
			o.backends[i] = was.backends[i]
			continue
		}
		o.backends[i] = r.fragment(b, states.of(i))
		sameShapes = sameShapes && was.backends[i].sum == o.backends[i].sum
	}
	return sameShapes
}

// files returns the files of an outline for a worker that reads them, for the directory dir.
func (o *outline) files(dir string) Files {
	out := Files{Shape: o.shape, Content: make(map[string]File), sums: make(map[string][sha256.Size]byte)}
	for _, set := range []map[string]rendered{o.extras.files, o.certs.files} {
		for path, k := range set {
			out.Content[path], out.sums[path] = k.file, k.sum
		}
	}
	for path, rows := range o.tables().rows {
		text := renderMap(rows)
		out.Content[path], out.sums[path] = File{text, 0o600}, sha256.Sum256(text)
	}
	if len(o.tickets) > 0 {
		text := []byte(strings.Join(o.tickets, "\n") + "\n")
		out.Content[ticketFile], out.sums[ticketFile] = File{text, 0o600}, sha256.Sum256(text)
	}
	keys := keysText(o.cfg.Backends) + appsText(o.cfg.Backends)
	classes := o.classesText(dir)
	size := preambleLen + len(o.head) + len(keys) + len(classes)
	for _, f := range o.backends {
		size += len(f.text)
	}
	text := append(make([]byte, preambleLen, size), o.head...)
	text = append(text, keys...)
	for _, f := range o.backends {
		text = append(text, f.text...)
	}
	text = append(text, classes...)
	out.sums[configFile] = sha256.Sum256(text[preambleLen:])
	out.Gen = generation(out.sums)
	copy(text, preamble(out.Gen, out.Shape))
	out.Content[configFile] = File{text, 0o600}
	return out
}

// states returns the states of the servers of an outline.
func (o *outline) states() States {
	states := make(States, len(o.backends))
	for i, f := range o.backends {
		states[i] = f.states
	}
	return states
}

// refusable identifies the parts that HAProxy may reject: the shape, the certificates, and the
// regular expressions.
func (o *outline) refusable() string {
	h := sha256.New()
	h.Write([]byte(o.shape))
	for _, name := range slices.Sorted(maps.Keys(o.certs.entries)) {
		sum := o.certs.files[certDir+name].sum
		h.Write([]byte(o.certs.entries[name].line))
		h.Write(sum[:])
	}
	for i, path := range mapFiles {
		if !patternTable(i) {
			continue
		}
		for _, r := range o.tables().rows[path] {
			h.Write([]byte(r.key + " " + r.value + "\n"))
		}
	}
	return short(h)
}

// renderExtras returns the files that HAProxy reads only when it starts.
func (r *renderer) renderExtras(cfg *Config) *fileSet {
	all, peer := cfg.Extras, (*Group)(nil)
	if cfg.sharesTables() {
		g := r.opt.group(&cfg.Shape)
		peer = &g
	}
	if r.last != nil && SameList(r.last.extras.of, cfg.Extras) && reflect.DeepEqual(r.last.extras.peer, peer) {
		return r.last.extras
	}
	if peer != nil {
		all = slices.Concat(all, peer.peerFiles())
	}
	set := &fileSet{of: cfg.Extras, peer: peer, files: make(map[string]rendered, len(all))}
	for _, e := range all {
		sum := sha256.Sum256(e.Content)
		set.files[extraDir+e.Name] = rendered{file: File{e.Content, 0o600}, sum: sum}
		set.shape = append(append(set.shape, e.Name...), sum[:]...)
	}
	return set
}

// renderCerts returns the certificates, and a crt-list for each place where TLS ends: Bind, and each
// Listener. A list begins with the default certificate. A certificate for a missing Listener is left
// out.
func (r *renderer) renderCerts(cfg *Config) *certFiles {
	known, scopes := make(map[*Cert]string), cfg.scopesWithTLS()
	if r.last != nil {
		was := r.last.certs
		if SameList(was.of, cfg.Certs) && bytes.Equal(was.first, cfg.DefaultCert) && SameList(was.scopes, scopes) {
			return was
		}
		for _, c := range was.of {
			known[c] = certDir + c.Name
		}
	}
	set := &certFiles{
		of: cfg.Certs, first: cfg.DefaultCert, scopes: scopes, files: make(map[string]rendered, len(cfg.Certs)+2),
		entries: make(map[string]certEntry, len(cfg.Certs)),
	}
	first := certDir + defaultCert
	if len(cfg.DefaultCert) > 0 {
		first = certDir + namedCert
		k := r.renderCert(&Cert{Name: namedCert, PEM: cfg.DefaultCert})
		set.files[first] = k
		set.shape = append(set.shape, k.sum[:]...)
	}
	begin := []byte(r.opt.Dir + "/" + first + "\n")
	lists := map[string][]byte{crtList: begin}
	for _, l := range scopes {
		lists[l.crtList()] = slices.Clone(begin)
	}
	for _, c := range cfg.Certs {
		if lists[c.list()] == nil {
			continue
		}
		k := r.last.certOf(known[c])
		if k.entry.line == "" {
			k = r.renderCert(c)
		}
		set.files[certDir+c.Name] = k
		lists[c.list()] = append(append(lists[c.list()], k.entry.line...), '\n')
		if fixed(c.Name) {
			set.shape = append(append(set.shape, k.entry.line...), k.sum[:]...)
			continue
		}
		set.entries[c.Name] = k.entry
		if len(k.entry.pem) > maxPayload {
			set.shape = append(set.shape, k.sum[:]...)
		}
	}
	for path, list := range lists {
		set.files[path] = rendered{file: File{list, 0o600}, sum: sha256.Sum256(list)}
	}
	return set
}

// certOf returns a certificate of an outline. It is empty if the path is.
func (o *outline) certOf(path string) rendered {
	if path == "" {
		return rendered{}
	}
	return o.certs.files[path]
}

// list returns the path of the crt-list of a certificate.
func (c *Cert) list() string {
	if at, err := netip.ParseAddrPort(c.Scope); err == nil {
		return Listener{At: at}.crtList()
	}
	return crtList
}

// generation returns the name of a set of files, which depends on their paths and contents.
func generation(sums map[string][sha256.Size]byte) string {
	h := sha256.New()
	for _, path := range slices.Sorted(maps.Keys(sums)) {
		sum := sums[path]
		h.Write([]byte(path))
		h.Write(sum[:])
	}
	return short(h)
}

func short(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil))[:marker] }

func (r *renderer) renderCert(c *Cert) rendered {
	var k rendered
	if pair, err := ReadPair(c.PEM, c.PEM); err == nil { // it is valid
		k.entry.pem = pair.PEM
	}
	k.file, k.sum = File{k.entry.pem, 0o600}, sha256.Sum256(k.entry.pem)
	words, options := []string{r.opt.Dir + "/" + certDir + c.Name}, ""
	if c.ClientCA != "" {
		options = verifyText(c.ClientCA, c.ClientOptional)
	}
	if c.Ciphers != "" {
		options += " ciphers " + c.Ciphers
	}
	if options != "" {
		words = append(words, "["+strings.TrimSpace(options)+"]")
	}
	k.entry.list = c.list()
	k.entry.line = strings.Join(append(words, c.filters()...), " ")
	return k
}
