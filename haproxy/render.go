package haproxy

import (
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io/fs"
	"maps"
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
	Jail         string // directory that the worker is locked into, absolute; it begins the path of the NoticeSocket; empty: none
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
	return r.render(cfg, states)
}

// renderer renders with a memory: of the head, of the text of each backend, by
// pointer and states, of the maps, the lists and the certificates. The memory saves
// time and changes nothing else. It is owned by whoever holds the Proxy's lock.
type renderer struct {
	opt       RenderOptions
	fragments map[*Backend]*fragment

	head     []byte     // all sections before the backends
	headOf   Shape      // head was made for it,
	headAsks bool       // and for certificates that ask clients for theirs, or not
	maps     []rendered // by mapFiles; nil: there are none yet
	mapsOf   Config     // maps were made for it
	certs    map[*Cert]rendered
	lists    map[*List]rendered
}

// rendered is a file with the hash of its content.
type rendered struct {
	file  File
	sum   [sha256.Size]byte
	rows  []row     // of a map or a list
	entry certEntry // of a certificate
}

// marker is the width of the hashes in the first lines of haproxy.cfg.
const marker = 16

// ours is the first line of every haproxy.cfg that we write.
const ours = "# Written by sallyport. What you change here is lost at the next change in the cluster."

// preamble returns the first lines of haproxy.cfg. Their length is the same for all
// hashes, so that the hash of the lines below can be filled in.
func preamble(gen, shape string) string {
	return ours + "\n" +
		"global\n  set-var proc.gen str(" + gen + ")\n  set-var proc.shape str(" + shape + ")\n"
}

var preambleLen = len(preamble(strings.Repeat("0", marker), strings.Repeat("0", marker)))

func (r *renderer) render(cfg *Config, states States) Files {
	out := Files{Content: make(map[string]File, len(cfg.Certs)+4), rows: make(map[string][]row), certs: make(map[string]certEntry, len(cfg.Certs)), sums: make(map[string][sha256.Size]byte, len(cfg.Certs)+4)}
	shape := sha256.New()
	text := r.renderText(cfg, states, shape)
	out.sums[configFile] = sha256.Sum256(text[preambleLen:])
	r.addMaps(&out, cfg)
	r.addExtras(&out, cfg, shape)
	r.addCerts(&out, cfg, shape)
	out.Gen, out.Shape = generation(out.sums), short(shape)
	for _, name := range slices.Sorted(maps.Keys(out.certs)) {
		sum := out.sums[certDir+name]
		shape.Write([]byte(out.certs[name].line))
		shape.Write(sum[:])
	}
	for _, path := range mapFiles[regexpTable:] {
		sum := out.sums[path]
		shape.Write(sum[:])
	}
	out.refusable = short(shape)
	copy(text, preamble(out.Gen, out.Shape))
	out.Content[configFile] = File{text, 0o600}
	return out
}

// renderText returns haproxy.cfg with room for its preamble, and adds to shape what
// only a reload changes of it.
func (r *renderer) renderText(cfg *Config, states States, shape hash.Hash) []byte {
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
	head := append(r.renderHead(cfg), keysText(cfg.Backends)...)
	shape.Write(head)
	size := preambleLen + len(head)
	for _, b := range cfg.Backends {
		f := r.fragment(b, states[b.Name])
		shape.Write(f.shape)
		size += len(f.text)
	}
	text := append(make([]byte, preambleLen, size), head...)
	for _, b := range cfg.Backends {
		text = append(text, r.fragments[b].text...)
	}
	return text
}

// addExtras adds the files that HAProxy reads when it starts, and no more.
func (r *renderer) addExtras(out *Files, cfg *Config, shape hash.Hash) {
	for _, e := range cfg.Extras {
		sum := sha256.Sum256(e.Content)
		out.add(extraDir+e.Name, rendered{file: File{e.Content, 0o600}, sum: sum})
		shape.Write([]byte(e.Name))
		shape.Write(sum[:])
	}
}

// addCerts adds the certificates and the crt-list, which begins with the default
// certificate.
func (r *renderer) addCerts(out *Files, cfg *Config, shape hash.Hash) {
	first := certDir + defaultCert
	if len(cfg.DefaultCert) > 0 {
		first = certDir + namedCert
		k := r.renderCert(&Cert{Name: namedCert, PEM: cfg.DefaultCert})
		out.add(first, k)
		shape.Write(k.sum[:])
	}
	list := []byte(r.opt.Dir + "/" + first + "\n")
	known := make(map[*Cert]rendered, len(cfg.Certs))
	for _, c := range cfg.Certs {
		k, ok := r.certs[c]
		if !ok {
			k = r.renderCert(c)
		}
		known[c] = k
		out.add(certDir+c.Name, k)
		list = append(append(list, k.entry.line...), '\n')
		if fixed(c.Name) {
			shape.Write([]byte(k.entry.line))
			shape.Write(k.sum[:])
			continue
		}
		out.certs[c.Name] = k.entry
		if len(k.entry.pem) > maxPayload {
			shape.Write(k.sum[:])
		}
	}
	r.certs = known
	out.add(crtList, rendered{file: File{list, 0o600}, sum: sha256.Sum256(list)})
}

func (f *Files) add(path string, k rendered) {
	f.Content[path], f.sums[path] = k.file, k.sum
	if isMap(path) {
		f.rows[path] = k.rows
	}
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
