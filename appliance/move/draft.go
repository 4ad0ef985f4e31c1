package move

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"sallyport/appliance/config"
)

// A Kind is the fate of a statement.
type Kind string

// The Kinds of Remarks.
const (
	Widened Kind = "widened"     // the setting allows more than the statement
	Changed Kind = "changed"     // the setting works in another way
	Left    Kind = "not carried" // nothing here does what the statement does
	ToDo    Kind = "to do"       // the reader has to decide or to write something
)

// A Place is a line of a file.
type Place struct {
	File string
	Line int // if it is 0, the Place is the whole file
}

func (p Place) String() string {
	if p.Line == 0 {
		return p.File
	}
	return p.File + ":" + strconv.Itoa(p.Line)
}

// A Remark is about one statement: its fate, with the reason. No field has a secret.
type Remark struct {
	Kind Kind
	At   Place  // if it is zero, the Remark is about no line of a file
	What string // the statement, shortened
	Why  string // a sentence
	Do   string // a sentence; if it is empty, nothing has to be done
}

// maxText bounds the bytes that a Remark repeats of a file.
const maxText = 160

// plain returns text for a comment: a single line of visible characters, of bounded length.
func plain(text string) string {
	text = strings.ToValidUTF8(text, "?")
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return '?'
		}
		return r
	}, text)
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "..."
	}
	return text
}

func (r Remark) String() string {
	var b strings.Builder
	b.WriteString(string(r.Kind))
	for _, part := range []string{plain(r.At.String()), plain(r.What)} {
		if part != "" {
			b.WriteString(": " + part)
		}
	}
	b.WriteString(": " + r.Why + ".")
	if r.Do != "" {
		b.WriteString(" " + r.Do + ".")
	}
	return b.String()
}

// A setting is the value of a key.
type setting struct {
	values  []string // in YAML
	list    bool
	remarks []Remark
}

// A draft is a configuration file in the making.
type draft struct {
	settings map[string]*setting // by key
	rest     []Remark            // about no key
	idle     []Place             // statements that need nothing here
	data     []string            // lines for the ConfigMap
	noted    map[Remark]bool     // a template is read for each of its sessions, and reported once
}

func newDraft() *draft { return &draft{settings: map[string]*setting{}, noted: map[Remark]bool{}} }

func (d *draft) at(key string) *setting {
	s := d.settings[key]
	if s == nil {
		s = &setting{}
		d.settings[key] = s
	}
	return s
}

// set sets a key to a value. A key that is set already keeps its value: the statement is reported.
func (d *draft) set(key, value string, at Place, what string) {
	s := d.at(key)
	switch {
	case len(s.values) == 0:
		s.values = []string{value}
	case s.values[0] != value:
		d.note(key, Remark{
			Kind: Left, At: at, What: what, Why: "one configuration file has a single " + key,
			Do: "Keep one of the two values, or run a second appliance",
		})
	}
}

// replace sets a key to a value, also if the key has another one.
func (d *draft) replace(key, value string) { d.at(key).values = []string{value} }

// add adds values to the list of a key.
func (d *draft) add(key string, values ...string) {
	s := d.at(key)
	s.list = true
	for _, v := range values {
		if !slices.Contains(s.values, v) {
			s.values = append(s.values, v)
		}
	}
}

func (d *draft) has(key string) bool { s := d.settings[key]; return s != nil && len(s.values) > 0 }

// first returns the first value of a key, or nothing.
func (d *draft) first(key string) string {
	if d.has(key) {
		return d.settings[key].values[0]
	}
	return ""
}

// note adds a Remark at a key; without a key, at the end.
func (d *draft) note(key string, r Remark) {
	if d.noted[r] {
		return
	}
	d.noted[r] = true
	if key == "" {
		d.rest = append(d.rest, r)
		return
	}
	s := d.at(key)
	s.remarks = append(s.remarks, r)
}

// none notes a statement that needs nothing here.
func (d *draft) none(at Place) { d.idle = append(d.idle, at) }

// keys are the keys of the file that are written, in the order of the file.
var keys = []string{
	"identity",
	"clusters.kubeconfig", "clusters.pools",
	"clusters.bgp.asn", "clusters.bgp.mode", "clusters.bgp.passwordFile", "clusters.bgp.ttlSecurity",
	"clusters.bgp.prefixLimit", "clusters.bgp.port",
	"clusters.ingress.class", "clusters.ingress.controller", "clusters.ingress.watchWithoutClass",
	"clusters.ingress.publish", "clusters.ingress.configMap", "clusters.ingress.errorFiles",
	"clusters.ingress.patternFiles", "clusters.ingress.tcpServices", "clusters.ingress.namespaces",
	"clusters.ingress.notNamespaces", "clusters.ingress.customResources",
	"clusters.ingress.trust", "clusters.ingress.noSnippets",
	"bgp.asn", "bgp.routerID", "bgp.listen", "bgp.port", "bgp.holdTime", "bgp.retain",
	"routes.table", "routes.metric",
	"haproxy.binary", "haproxy.http", "haproxy.https",
	"status.listen", "log.level",
	"group.name", "group.secretFile", "group.addresses", "group.members",
	"group.upstream.asn", "group.upstream.peers", "group.upstream.bfd",
	"group.vrrp.interface", "group.vrrp.id", "group.vrrp.interval",
}

// admit returns the settings that package config accepts. Those that it rejects become Remarks. The
// keys of a group are accepted or rejected together, because one alone is not valid.
func (d *draft) admit() map[string]*setting {
	accepted := map[string]*setting{"clusters.kubeconfig": d.at("clusters.kubeconfig")}
	try := func(key string, s *setting) error {
		accepted[key] = s
		_, err := config.Parse("this file", []byte(body(accepted)))
		if err != nil {
			delete(accepted, key)
		}
		return err
	}
	for _, key := range keys {
		s := d.settings[key]
		if s == nil || len(s.values) == 0 || key == "clusters.kubeconfig" || strings.HasPrefix(key, "group.") {
			continue
		}
		if try(key, s) == nil {
			continue
		}
		kept := &setting{list: s.list, remarks: s.remarks}
		for _, value := range s.values {
			more := *kept
			more.values = append(slices.Clip(kept.values), value)
			if err := try(key, &more); err != nil {
				d.reject(key, value, err)
				continue
			}
			*kept = more
		}
		if delete(accepted, key); len(kept.values) > 0 {
			accepted[key] = kept
		}
	}
	d.admitGroup(accepted)
	return accepted
}

func (d *draft) admitGroup(accepted map[string]*setting) {
	var names []string
	for _, key := range keys {
		if strings.HasPrefix(key, "group.") && d.has(key) {
			accepted[key] = d.settings[key]
			names = append(names, key)
		}
	}
	if _, err := config.Parse("this file", []byte(body(accepted))); err != nil {
		for _, key := range names {
			delete(accepted, key)
		}
		d.reject("group", "", err)
	}
}

// reject notes that package config rejects a value.
func (d *draft) reject(key, value string, err error) {
	what := key
	if value != "" {
		what += ": " + value
	}
	d.note("", Remark{
		Kind: Left, What: what, Why: "the loader rejects it: " + plain(err.Error()),
		Do: "Write the key by hand; sallyport config schema lists what is allowed",
	})
}

// body returns the YAML of settings without Remarks.
func body(settings map[string]*setting) string {
	return write(settings, func(string, string) string { return "" })
}

// write returns the YAML of settings. above returns the text above a key, for an indentation.
func write(settings map[string]*setting, above func(key, indent string) string) string {
	var b strings.Builder
	var open []string // the groups around the last key
	for _, key := range keys {
		parts := strings.Split(key, ".")
		groups, name := parts[:len(parts)-1], parts[len(parts)-1]
		s := settings[key]
		if s == nil || len(s.values) == 0 {
			b.WriteString(above(key, strings.Repeat("  ", shared(open, groups))))
			continue
		}
		for i := shared(open, groups); i < len(groups); i++ {
			b.WriteString(strings.Repeat("  ", i) + groups[i] + ":\n")
		}
		open = groups
		indent, dash := strings.Repeat("  ", len(groups)), ""
		b.WriteString(above(key, indent))
		if key == "clusters.kubeconfig" { // the first key of the only item of a list
			indent, dash = "", "- "
		}
		value := s.values[0]
		if s.list {
			value = "[" + strings.Join(s.values, ", ") + "]"
		}
		b.WriteString(indent + dash + name + ": " + value + "\n")
	}
	return b.String()
}

// shared returns how many groups two keys are both in.
func shared(a, b []string) (n int) {
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// A Result is a configuration file with Remarks.
type Result struct {
	Text    string // the file, with the Remarks as comments
	Remarks []Remark
}

// Whole reports whether each statement was carried, if in another way.
func (r *Result) Whole() bool {
	return !slices.ContainsFunc(r.Remarks, func(r Remark) bool { return r.Kind == Left })
}

// result returns the file.
func (d *draft) result(names []string) *Result {
	accepted := d.admit()
	r := &Result{}
	var b strings.Builder
	comment(&b, "", "Made of "+strings.Join(names, ", ")+". Read each comment, then try the file: sallyport config "+
		"check FILE.")
	b.WriteString(write(accepted, func(key, indent string) string {
		var above strings.Builder
		if s := d.settings[key]; s != nil {
			for _, remark := range s.remarks {
				comment(&above, indent, remark.String())
				r.Remarks = append(r.Remarks, remark)
			}
		}
		return above.String()
	}))
	slices.SortStableFunc(d.rest, func(a, b Remark) int { return cmp.Compare(weight(a.Kind), weight(b.Kind)) })
	for _, remark := range d.rest {
		comment(&b, "", remark.String())
		r.Remarks = append(r.Remarks, remark)
	}
	if len(d.data) > 0 {
		comment(&b, "", "to do: these settings belong in the ConfigMap of clusters[].ingress.configMap:")
		b.WriteString("#   data:\n")
		for _, line := range d.data {
			b.WriteString("#     " + line + "\n")
		}
	}
	if len(d.idle) > 0 {
		comment(&b, "", "Nothing is needed here for: "+places(d.idle)+".")
	}
	r.Text = b.String()
	return r
}

func weight(k Kind) int { return slices.Index([]Kind{Left, Widened, Changed, ToDo}, k) }

// maxPlaces bounds the lines of a file that one comment lists.
const maxPlaces = 40

// places returns the lines of each file.
func places(all []Place) string {
	lines := map[string][]int{}
	var files []string
	for _, p := range all {
		if lines[p.File] == nil {
			files = append(files, p.File)
		}
		lines[p.File] = append(lines[p.File], p.Line)
	}
	var words []string
	for _, file := range files {
		slices.Sort(lines[file])
		list := slices.Compact(lines[file])
		numbers := make([]string, 0, len(list))
		for _, n := range list[:min(len(list), maxPlaces)] {
			numbers = append(numbers, strconv.Itoa(n))
		}
		word := plain(file) + " in line " + strings.Join(numbers, ", ")
		if len(list) > maxPlaces {
			word += " and more"
		}
		words = append(words, word)
	}
	return strings.Join(words, "; ")
}

// width is the width of a comment.
const width = 100

// comment writes text as lines of a comment.
func comment(b *strings.Builder, indent, text string) {
	line := indent + "#"
	for word := range strings.FieldsSeq(text) {
		if len(line)+1+len(word) > width && strings.TrimLeft(line, " #") != "" {
			b.WriteString(line + "\n")
			line = indent + "#  "
		}
		line += " " + word
	}
	b.WriteString(line + "\n")
}

// simple matches text that is the same in YAML without quotes.
var simple = regexp.MustCompile(`^[A-Za-z/][-A-Za-z0-9_./]*$`)

// quoted returns text as a scalar of YAML.
func quoted(text string) string {
	words := []string{"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
	if simple.MatchString(text) && !slices.Contains(words, strings.ToLower(text)) {
		return text
	}
	return strconv.Quote(text)
}

// address returns an address as a scalar of YAML.
func address(a netip.Addr) string {
	if a.Is4() {
		return a.String()
	}
	return strconv.Quote(a.String())
}

// prefixOf returns a network as a scalar of YAML.
func prefixOf(p netip.Prefix) string {
	if p.Addr().Is4() {
		return p.String()
	}
	return strconv.Quote(p.String())
}

// unsigned returns a number of 32 bits as a scalar of YAML. It reports whether text is such a number.
func unsigned(text string) (string, bool) {
	n, err := strconv.ParseUint(text, 10, 32)
	return strconv.FormatUint(n, 10), err == nil
}

func errorAt(at Place, format string, args ...any) error {
	return fmt.Errorf("%s: %s", plain(at.String()), plain(fmt.Sprintf(format, args...)))
}
