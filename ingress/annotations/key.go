package annotations

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sallyport/haproxy"
)

// Scope is where a key may be written.
type Scope uint8

// The scopes, the most general first. What a more special one says goes before
// it.
const (
	ConfigMap Scope = 1 << iota
	Ingress
	Service
)

func (s Scope) String() string {
	var words []string
	for _, one := range []struct {
		scope Scope
		word  string
	}{{ConfigMap, "ConfigMap"}, {Ingress, "Ingress"}, {Service, "Service"}} {
		if s&one.scope != 0 {
			words = append(words, one.word)
		}
	}
	return strings.Join(words, ", ")
}

// noun is what a key is called where it is written.
func (s Scope) noun() string {
	if s == ConfigMap {
		return "key"
	}
	return "annotation"
}

// A Doc is what there is to know about a key.
type Doc struct {
	Name    string
	Aliases []string // older names; the name goes before them
	Older   string   // what says the same today, of a key that is not an alias; empty: nothing does
	Scopes  Scope
	Format  string // what a value looks like
	Default string // what counts when nothing is said; empty: nothing
	Effect  string
	Since   string // the version that it came with; empty in a definition: the first

	// Guard marks a key that keeps somebody out. While its value cannot be used
	// nobody gets in: what was to be guarded is not left open.
	Guard bool
	// TCP marks a key that holds for connections that nobody looks into, too.
	TCP bool

	spellings   []string // on an object, see spell
	inConfigMap []string
}

// A key is a Doc with what reads its values.
type key[T any] struct {
	Doc
	parse func(string) (T, error)
}

// registry is every key there is, by each of its names.
var registry = map[string]*Doc{}

// Docs are all keys, by name.
func Docs() []Doc {
	var all []Doc
	for name, d := range registry {
		if name == d.Name {
			all = append(all, *d)
		}
	}
	slices.SortFunc(all, func(a, b Doc) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

func define[T any](parse func(string) (T, error), d Doc) key[T] {
	d.Since = cmp.Or(d.Since, "0.1")
	d.spellings = d.spell()
	for _, name := range d.names() {
		d.inConfigMap = append(d.inConfigMap, strings.TrimPrefix(name, own))
		if registry[name] != nil {
			panic("annotations: " + name + " is defined twice")
		}
		registry[name] = &d
	}
	return key[T]{d, parse}
}

// prefixes are those under which a key may be written on an object. A key of our
// own has its own, and so cannot be taken for another controller's.
var prefixes = []string{"haproxy.org/", "haproxy.com/", "ingress.kubernetes.io/"}

const own = "sallyport.dev/"

// spell lists the ways in which a key may be written on an object. The first one
// that is there counts: under a prefix before without one, as HAProxy's own
// controller takes it, and the name before an alias.
func (d *Doc) spell() []string {
	if strings.HasPrefix(d.Name, own) {
		return d.names()
	}
	var all []string
	for _, name := range d.names() {
		for _, p := range prefixes {
			all = append(all, p+name)
		}
	}
	return append(all, d.names()...)
}

func (d *Doc) names() []string { return append([]string{d.Name}, d.Aliases...) }

// said returns the value of a key in an object's annotations, or in a ConfigMap's
// data.
func (d *Doc) said(scope Scope, annotations map[string]string) (v Value, has bool) {
	spellings := d.spellings
	if scope == ConfigMap {
		spellings = d.inConfigMap
	}
	for _, full := range spellings {
		if text, has := annotations[full]; has {
			return Value{full, strings.TrimSpace(text)}, true
		}
	}
	return v, false
}

// A Layer is what one object says: the values of keys, by name.
type Layer struct {
	Scope  Scope
	Values map[string]Value
	Odd    []Problem // what it says that is no key, or none that may be written there

	closed bool // among that is what was to be a guard
}

// Empty reports whether a Layer changes nothing.
func (l Layer) Empty() bool { return len(l.Values) == 0 && !l.closed }

// A Value is what an object says of a key, as it is written there.
type Value struct{ As, Text string }

// Read takes the keys out of an object's annotations, or out of a ConfigMap's
// data, where they need no prefix. Of one key written in several ways one counts,
// see spell.
//
// An annotation under a prefix of ours that is no key is told, and if the key
// that was probably meant is a guard, nobody is let in: somebody wants to keep
// others out, and it is not known whom. A key where it cannot be written is told,
// too: charts write the same on an Ingress and on its Service. A name without a
// prefix may be anybody's: it is ours if it is a key, and told if it is almost
// the name of a guard.
func Read(scope Scope, annotations map[string]string) Layer {
	l := Layer{Scope: scope}
	odd := func(reason, format string, args ...any) {
		l.Odd = append(l.Odd, Problem{scope, reason, scope.noun() + " " + fmt.Sprintf(format, args...)})
	}
	for full := range annotations {
		name, ours := full, true
		i := slices.IndexFunc(prefixes, func(p string) bool { return strings.HasPrefix(full, p) })
		switch {
		case i >= 0:
			name = strings.TrimPrefix(full, prefixes[i])
		case scope == ConfigMap && registry[own+full] != nil:
			name = own + full // its keys can hold no "/"
		case scope == ConfigMap, strings.HasPrefix(full, own):
		case strings.Contains(full, "/"):
			continue
		default:
			ours = registry[full] != nil
		}
		d := registry[name]
		switch {
		case !ours:
			if near := nearest(name); len(name) >= leastLikely && near != nil && near.Guard {
				odd("UnknownAnnotation", "%s is not known; the nearest that is: %s. Since it has no prefix it may be somebody else's, and is ignored", strconv.QuoteToASCII(clip(full)), near.Name)
			}
		case d == nil:
			meant, then := "", "it is ignored"
			if near := nearest(name); near != nil {
				meant = "; the nearest that is: " + near.Name
				if near.Guard {
					l.closed, then = true, "since that keeps clients out, nobody is let in until it is in order"
				}
			}
			odd("UnknownAnnotation", "%s is not known%s; %s", strconv.QuoteToASCII(clip(full)), meant, then)
		case d.Scopes&scope == 0:
			odd("UnknownAnnotation", "%s is for %s, not for %s; it is ignored", full, d.Scopes, scope)
		default:
			if l.Values == nil {
				l.Values = make(map[string]Value)
			}
			used, _ := d.said(scope, annotations)
			l.Values[d.Name] = used
			switch {
			case name != d.Name && used.As == full:
				odd("OlderAnnotation", "%s is an older way to say %s; it is used all the same", full, d.Name)
			case name != d.Name:
				odd("OlderAnnotation", "%s is an older way to say %s; since that is here too, this is ignored", full, d.Name)
			case used.As != full && used.Text != strings.TrimSpace(annotations[full]):
				odd("UnusedAnnotation", "%s is ignored, since %s is here too and goes before it", full, used.As)
			}
		}
	}
	for name, used := range l.Values {
		if today := registry[name].Older; today != "" {
			then := "it is used all the same"
			if _, has := l.Values[today]; has {
				then = "since that is here too, this is ignored"
			}
			odd("OlderAnnotation", "%s is an older way to say %s; %s", used.As, today, then)
		}
	}
	slices.SortFunc(l.Odd, func(a, b Problem) int { return cmp.Compare(a.Why, b.Why) })
	return l
}

// leastLikely is how long a name without a prefix is at least that is taken for a
// guard mistyped.
const leastLikely = 6

// nearest finds the key that somebody may have meant: at most two letters differ,
// under whatever prefix. Of several that are as near it takes a guard.
func nearest(name string) (best *Doc) {
	name = strings.TrimPrefix(name, own)
	least := 3
	for known, d := range registry {
		n := distance(name, strings.TrimPrefix(known, own))
		switch {
		case n > least || n == 3:
		case n < least, d.Guard && !best.Guard, d.Guard == best.Guard && d.Name < best.Name:
			best, least = d, n
		}
	}
	return best
}

// distance is Levenshtein's.
func distance(a, b string) int {
	if len(a) > 64 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := last
			if a[i] != b[j] {
				change++
			}
			last = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}

// A Problem is a value that is not used.
type Problem struct {
	Scope  Scope  // whose it is
	Reason string // CamelCase
	Why    string
}

// An Effective is a value that is used.
type Effective struct {
	Key   string `json:"key"`
	As    string `json:"as"` // how it is written there: haproxy.org/KEY, an older name, or the bare one
	Value string `json:"value"`
	Scope string `json:"scope"` // where it was said; "default" if nowhere
}

// heed makes values of the layers for one backend.
func heed(env Env, layers []Layer) *values {
	return &values{layers: layers, env: env, closed: slices.ContainsFunc(layers, func(l Layer) bool { return l.closed })}
}

// values are the layers for one backend, the most special first.
type values struct {
	layers   []Layer
	only     Scope // the one layer to be heard; 0: all
	owner    string
	env      Env
	closed   bool // a guard is not in order
	problems []Problem
	used     []Effective
}

// list is a value that may be the name of a list, "patterns/NAME", as the entries
// themselves, and the name of the list's file, if it is one.
func (v *values) list(text string) (entries, file string, err error) {
	name, is := strings.CutPrefix(text, "patterns/")
	if !is {
		if name, is = strings.CutPrefix(text, "pattern/"); !is { // as it is documented elsewhere
			return text, "", nil
		}
	}
	lines, err := v.entries(name)
	return strings.Join(lines, ","), v.env.Cluster + "_" + name, err
}

// entries are those of the list of that name.
func (v *values) entries(name string) (entries []string, err error) {
	lines, has := "", false
	if v.env.Pattern != nil {
		lines, has = v.env.Pattern(name)
	}
	if !has {
		return nil, fmt.Errorf("there is no list %s (clusters[].ingress.patternFiles)", quote(name))
	}
	for line := range strings.Lines(lines) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line != "" {
			entries = append(entries, line)
		}
	}
	return entries, nil
}

// fault tells that a value cannot be used.
func (v *values) fault(d Doc, scope Scope, err error) {
	then := "it is ignored"
	if d.Guard {
		v.closed, then = true, "nobody is let in until it is in order"
	}
	as := d.Name
	for _, l := range v.layers {
		if said, has := l.Values[d.Name]; has && l.Scope == scope {
			as = said.As
		}
	}
	v.problems = append(v.problems, Problem{scope, "InvalidAnnotation", fmt.Sprintf("%s %s: %v; %s", scope.noun(), as, err, then)})
}

// scopeOf is where the value of a key that is used was said.
func (v *values) scopeOf(name string) Scope {
	for _, u := range v.used {
		for _, l := range v.layers {
			if u.Key == name && u.Scope == l.Scope.String() {
				return l.Scope
			}
		}
	}
	return Ingress
}

// fits says why a value is longer than it may be. A list in a file is the
// operator's.
func (e Env) fits(value any, file string) error {
	switch of := value.(type) {
	case []haproxy.Directive:
		if e.Lines > 0 && len(of) > e.Lines {
			return fmt.Errorf("it has %d lines; allowed are %d (clusters[].ingress.limits.lines)", len(of), e.Lines)
		}
	case haproxy.Networks:
		if e.Entries > 0 && file == "" && len(of.Of) > e.Entries {
			return fmt.Errorf("it has %d addresses and networks; allowed are %d (clusters[].ingress.limits.listEntries), or a list of the operator, as patterns/NAME", len(of.Of), e.Entries)
		}
	}
	return nil
}

// get returns the value of a key in the most special layer where it can be read. A
// value that cannot is told, and the next layer counts, unless it is that of a
// guard.
func get[T any](v *values, k key[T]) (value T, ok bool) {
	for _, l := range v.layers {
		said, has := l.Values[k.Name]
		if !has || v.only != 0 && v.only != l.Scope {
			continue
		}
		text, file, err := said.Text, "", error(nil)
		clients, may := any(&value).(*haproxy.Networks) // be a list
		if may {
			text, file, err = v.list(text)
		}
		if err == nil {
			value, err = k.parse(text)
		}
		if err == nil && l.Scope != ConfigMap {
			err = v.env.fits(value, file)
		}
		if err != nil {
			v.fault(k.Doc, l.Scope, err)
			var none T
			if value = none; k.Guard {
				return none, false
			}
			continue
		}
		if may {
			clients.List = file
		}
		v.used = append(v.used, Effective{k.Name, said.As, said.Text, l.Scope.String()})
		return value, true
	}
	if k.Default == "" {
		return value, false
	}
	value, err := k.parse(k.Default)
	if err != nil {
		panic("annotations: the default of " + k.Name + ": " + err.Error())
	}
	return value, false
}
