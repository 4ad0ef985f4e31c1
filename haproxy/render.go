package haproxy

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io/fs"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Names of files, relative to the configuration directory.
const (
	configFile  = "haproxy.cfg"
	failedFile  = "haproxy.cfg.failed" // the last one that HAProxy rejected
	formerFile  = "haproxy.cfg.former" // the one that was there before us
	mapDir      = "maps/"
	routeMap    = "maps/route.map"
	wildMap     = "maps/wild.map"
	sniMap      = "maps/sni.map"
	regexpMap   = "maps/regexp-" // the beginning of several names
	crtList     = "certs/crt-list"
	certDir     = "certs/"
	extraDir    = "extra/"
	defaultCert = "_default.pem" // no namespace begins with "_", so no Secret's certificate has this name
	namedCert   = "_named.pem"   // Config.DefaultCert
)

// RenderOptions holds the paths and names that appear in a configuration.
type RenderOptions struct {
	Dir          string // where the files will be, absolute
	StatsSocket  string // where the worker takes commands, absolute
	NoticeSocket string // where the worker says what its checks find, absolute; empty: nowhere
	Secret       string // letters and digits by which HAProxy knows connections that it passed to itself
	MaxConn      int    // most connections, where neither Tune nor Process says; 0 lets HAProxy choose
	User, Group  string // whom the worker becomes; empty: it stays who started it
	// directory that the worker is locked into, absolute; it begins the path of the NoticeSocket; empty: none
	Jail string
}

// File holds the content and the permission bits of one file.
type File struct {
	Content []byte
	Mode    fs.FileMode
}

// Files holds everything that HAProxy reads, by path relative to the configuration
// directory, except the self-signed default certificate.
type Files struct {
	Content map[string]File

	// Gen identifies all of it. haproxy.cfg carries it in the process variable
	// proc.gen, where it says which files a worker has loaded.
	Gen string
	// Shape identifies what only a reload can change: haproxy.cfg without
	// its servers. It is in proc.shape.
	Shape string

	sums map[string][sha256.Size]byte // of the contents, as generation takes them
}

// outline holds what a configuration comes to for HAProxy: its files, but for the
// text of haproxy.cfg, of which it holds the parts. So an outline costs little where
// little has changed: it shares all other parts with the one before.
type outline struct {
	cfg      *Config
	head     []byte
	defaults []byte      // the lines of its section defaults
	backends []*fragment // in the order of the configuration
	given    States      // of the servers of the backends
	by       *renderer
	made     *tableFiles // see tables; nil: not yet
	extras   *fileSet
	certs    *certFiles
	tickets  []string    // the keys of TLS tickets; none: HAProxy makes no tickets
	names    workerNames // for a worker that has other names for some backends; a worker that reads the files has none
	shape    string      // as Files.Shape
}

// fileSet holds files that HAProxy reads when it starts, and no more.
type fileSet struct {
	of    []*Extra
	peer  *Group // whose files are among them; nil: none
	files map[string]rendered
	shape []byte // their names and hashes
}

// certFiles holds the certificates, and the crt-list.
type certFiles struct {
	of      []*Cert
	first   []byte // Config.DefaultCert
	files   map[string]rendered
	entries map[string]certEntry // those that commands change, by file name
	shape   []byte               // what only a reload changes
}

// certEntry holds the file of a certificate, and its line in the crt-list.
type certEntry struct {
	pem  []byte
	line string
}

// Render writes cfg for HAProxy with its servers in the given states: an Open
// server takes traffic from the first moment; a Closed one is there, disabled,
// and so is one in Drain, which after a reload has nothing left to finish in
// the new worker; an Absent one, or one that states does not name, is left
// out. Servers are written in the order of cfg. The result depends on nothing
// else. cfg must be valid.
func Render(cfg *Config, states States, opt RenderOptions) Files {
	r := renderer{opt: opt}
	return r.outline(cfg, states).files(opt.Dir)
}

// renderer renders with a memory of the last outline, and of the fragments before it.
// The memory saves time and changes nothing else. It is owned by whoever holds the
// Proxy's lock.
type renderer struct {
	opt       RenderOptions
	last      *outline // nil: none yet
	fragments map[*Backend]*fragment
	tables    *tableFiles // the last ones; nil: none yet
	hosts     hostRows

	headOf   Shape  // the last head was made for it,
	headAsks bool   // and for certificates that ask clients for theirs, or not
	cookies  string // the key of cookies in the fragments
}

// rendered is a file with the hash of its content.
type rendered struct {
	file  File
	sum   [sha256.Size]byte
	entry certEntry // of a certificate
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

// in returns the same outline for a worker that has other names for some backends.
func (o *outline) in(n workerNames) *outline {
	if maps.Equal(o.names, n) {
		return o
	}
	out := *o
	out.names, out.made = n, nil
	return &out
}

// outline returns what cfg comes to, with its servers in these states, for a worker that reads the
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

// renderBackends adds the fragments of the backends. It reports whether their shapes
// are those of the outline before.
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
		// Of a large cluster, only what has changed is looked at: the rest is not in the
		// processor's caches.
		if i < len(was.backends) && was.cfg.Backends[i] == b && same(was.given.of(i), states.of(i)) {
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
	keys := keysText(o.cfg.Backends)
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

// refusable identifies what HAProxy may reject: the shape, the certificates, and the
// regular expressions.
func (o *outline) refusable() string {
	h := sha256.New()
	h.Write([]byte(o.shape))
	for _, name := range slices.Sorted(maps.Keys(o.certs.entries)) {
		sum := o.certs.files[certDir+name].sum
		h.Write([]byte(o.certs.entries[name].line))
		h.Write(sum[:])
	}
	for _, path := range mapFiles[regexpTable:] {
		for _, r := range o.tables().rows[path] {
			h.Write([]byte(r.key + " " + r.value + "\n"))
		}
	}
	return short(h)
}

// renderExtras returns the files that HAProxy reads when it starts, and no more.
func (r *renderer) renderExtras(cfg *Config) *fileSet {
	all, peer := cfg.Extras, (*Group)(nil)
	if cfg.sharesTables() {
		g := r.opt.group(&cfg.Shape)
		peer = &g
	}
	if r.last != nil && same(r.last.extras.of, cfg.Extras) && reflect.DeepEqual(r.last.extras.peer, peer) {
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

// renderCerts returns the certificates and the crt-list, which begins with the default
// certificate.
func (r *renderer) renderCerts(cfg *Config) *certFiles {
	known := make(map[*Cert]string)
	if r.last != nil {
		was := r.last.certs
		if same(was.of, cfg.Certs) && bytes.Equal(was.first, cfg.DefaultCert) {
			return was
		}
		for _, c := range was.of {
			known[c] = certDir + c.Name
		}
	}
	set := &certFiles{
		of: cfg.Certs, first: cfg.DefaultCert, files: make(map[string]rendered, len(cfg.Certs)+2),
		entries: make(map[string]certEntry, len(cfg.Certs)),
	}
	first := certDir + defaultCert
	if len(cfg.DefaultCert) > 0 {
		first = certDir + namedCert
		k := r.renderCert(&Cert{Name: namedCert, PEM: cfg.DefaultCert})
		set.files[first] = k
		set.shape = append(set.shape, k.sum[:]...)
	}
	list := []byte(r.opt.Dir + "/" + first + "\n")
	for _, c := range cfg.Certs {
		var k rendered
		if path, have := known[c]; have {
			k = r.last.certs.files[path]
		} else {
			k = r.renderCert(c)
		}
		set.files[certDir+c.Name] = k
		list = append(append(list, k.entry.line...), '\n')
		if fixed(c.Name) {
			set.shape = append(append(set.shape, k.entry.line...), k.sum[:]...)
			continue
		}
		set.entries[c.Name] = k.entry
		if len(k.entry.pem) > maxPayload {
			set.shape = append(set.shape, k.sum[:]...)
		}
	}
	set.files[crtList] = rendered{file: File{list, 0o600}, sum: sha256.Sum256(list)}
	return set
}

// generation names a set of files by the hashes of their contents.
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
	words := []string{r.opt.Dir + "/" + certDir + c.Name}
	if c.ClientCA != "" {
		words = append(words, "["+strings.TrimSpace(verifyText(c.ClientCA, c.ClientOptional))+"]")
	}
	k.entry.line = strings.Join(append(words, c.filters()...), " ")
	return k
}
