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
	for _, name := range append([]string{d.Name}, d.Aliases...) {
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

// A Layer is what one object says: the values of keys, by bare name.
type Layer struct {
	Scope  Scope
	Values map[string]Value
	Odd    []Problem // what it says that is no key, or none that may be written there
}

// A Value is what an object says of a key, as it is written there.
type Value struct{ As, Text string }

// Read takes the keys out of an object's annotations, or out of a ConfigMap's
// data, where they need no prefix. Of one key written with
// several prefixes the first of haproxy.org, haproxy.com and
// ingress.kubernetes.io counts.
func Read(scope Scope, annotations map[string]string) Layer {
	l := Layer{Scope: scope}
	for full, value := range annotations {
		i := slices.IndexFunc(prefixes, func(p string) bool { return strings.HasPrefix(full, p) })
		name := full
		switch {
		case i >= 0:
			name = strings.TrimPrefix(full, prefixes[i])
		case scope == ConfigMap && registry[own+full] != nil:
			name = own + full // its keys can hold no "/"
		case scope != ConfigMap && !strings.HasPrefix(full, own):
			continue
		}
		if i > 0 && slices.ContainsFunc(prefixes[:i], func(p string) bool { _, has := annotations[p+name]; return has }) {
			continue
		}
		switch d := registry[name]; {
		case d == nil:
			l.Odd = append(l.Odd, Problem{scope, "UnknownAnnotation", fmt.Sprintf("%s %s is not known%s; it is ignored", scope.noun(), strconv.QuoteToASCII(clip(full)), nearest(name))})
		case d.Scopes&scope == 0:
			l.Odd = append(l.Odd, Problem{scope, "UnknownAnnotation", fmt.Sprintf("%s %s is for %s, not for %s; it is ignored", scope.noun(), full, d.Scopes, scope)})
		default:
			if l.Values == nil {
				l.Values = make(map[string]Value)
			}
			l.Values[name] = Value{full, strings.TrimSpace(value)}
		}
	}
	for name, said := range l.Values {
		if today := registry[name].today(name); today != "" {
			then := "it is used all the same"
			if _, has := l.Values[today]; has {
				then = "since that is here too, this is ignored"
			}
			l.Odd = append(l.Odd, Problem{scope, "OlderAnnotation", fmt.Sprintf("%s %s is an older way to say %s; %s", scope.noun(), said.As, today, then)})
		}
	}
	slices.SortFunc(l.Odd, func(a, b Problem) int { return cmp.Compare(a.Why, b.Why) })
	return l
}

// today is what says today what a key of that name says; empty: it says it itself.
func (d *Doc) today(name string) string {
	if name != d.Name {
		return d.Name
	}
	return d.Older
}

// nearest names the key somebody may have meant.
func nearest(name string) string {
	best, least := "", 3
	for known := range registry {
		if d := distance(name, known); d < least || d == least && known < best {
			best, least = known, d
		}
	}
	if best == "" {
		return ""
	}
	return "; the nearest that is: " + best
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
	Value string `json:"value"`
	Scope string `json:"scope"` // where it was said; "default" if nowhere
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
		for _, name := range append([]string{d.Name}, d.Aliases...) {
			if said, has := l.Values[name]; has && l.Scope == scope {
				as = said.As
			}
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

// get is the value of a key in the most special layer where it can be read. A
// value that cannot is told, and the next layer counts, unless it is that of a
// guard.
func get[T any](v *values, k key[T]) (value T, said bool) {
	for _, l := range v.layers {
		if k.Scopes&l.Scope == 0 || v.only != 0 && v.only != l.Scope {
			continue
		}
		for _, name := range append([]string{k.Name}, k.Aliases...) {
			said, has := l.Values[name]
			if !has {
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
			if err != nil {
				v.fault(k.Doc, l.Scope, err)
				if k.Guard {
					var none T
					return none, false
				}
				continue
			}
			if may {
				clients.List = file
			}
			v.used = append(v.used, Effective{k.Name, said.Text, l.Scope.String()})
			return value, true
		}
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
