package annotations

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Scope is the kind of object on which a key may be written.
type Scope uint8

// The scopes, the most general first. A more special scope overrides a more general scope.
const (
	ConfigMap Scope = 1 << iota
	Ingress
	Service
)

func (s Scope) String() string { return spell(s, "ConfigMap", "Ingress", "Service") }

// noun returns the word for a key on an object of this scope.
func (s Scope) noun() string {
	if s == ConfigMap {
		return "key"
	}
	return "annotation"
}

// Traffic is the kind of traffic that a backend takes.
type Traffic uint8

// The kinds of traffic, the best known first.
const (
	Requests Traffic = 1 << iota // HTTP requests
	Ended                        // connections to the port of a TCP service; their TLS ends here
	Passed                       // TLS connections that are passed on as they are (ssl-passthrough)
)

func (t Traffic) String() string { return spell(t, "requests", "TCP services", "ssl-passthrough") }

// spell lists the words for the bits of a set.
func spell[T ~uint8](set T, words ...string) string {
	var all []string
	for i, word := range words {
		if set&(1<<i) != 0 {
			all = append(all, word)
		}
	}
	return strings.Join(all, ", ")
}

// Kind is the kind of object that a value names.
type Kind string

// The kinds of objects that values name.
const (
	SecretKind    Kind = "Secret"
	ConfigMapKind Kind = "ConfigMap"
	ServiceKind   Kind = "Service"
	ListKind      Kind = "list" // an entry of the ConfigMap of lists, as patterns/NAME

	BackendKind  Kind = "Backend"  // of HAProxy's own controller
	GlobalKind   Kind = "Global"   // of HAProxy's own controller
	DefaultsKind Kind = "Defaults" // of HAProxy's own controller
	FrontendKind Kind = "Frontend" // of HAProxy's own controller
)

// A Doc describes a key.
type Doc struct {
	Name    string
	Aliases []Alias
	Older   string // the field of an object that replaces the key, or ""
	Scopes  Scope
	Traffic Traffic // that the key can be used for; Requests if the definition sets none
	Refers  Kind    // of the object that a value can name, or ""
	Format  string  // of a value
	Default string  // the value if no layer sets one, or ""
	Effect  string
	Since   string // the version that brought the key; the first if the definition sets none

	// Guard marks a key that keeps clients out. While its value cannot be used, all clients are
	// rejected, since the user wants the access to be guarded.
	Guard bool
}

// annotation returns the name of a key on an Ingress or a Service.
func (d *Doc) annotation() string {
	if strings.Contains(d.Name, "/") {
		return d.Name
	}
	return prefixes[0] + d.Name
}

// in returns the name of a key in a scope. A key that the ConfigMap may not have keeps its prefix there.
func (d *Doc) in(scope Scope) string {
	if scope&d.Scopes&ConfigMap == 0 {
		return d.Name
	}
	return strings.TrimPrefix(d.Name, own)
}

// An Alias is another way to write a key. The key's own name overrides it.
type Alias struct {
	// Prefix is the prefix of another controller, as "example.com/". It is "" if the alias is an
	// older name with our own prefixes.
	Prefix string
	Name   string

	translate func(value string) (string, error) // into a value of the key; nil if the value needs no translation
}

// A key is a Doc together with the function that reads its values.
type key[T any] struct {
	Doc
	read func(Env, Scope, string) (T, error)
}

// A spelling is one way to write a key.
type spelling struct {
	*Doc
	by   Alias // or the key's own name
	rank int   // among the spellings of the key; the lowest overrides the others
}

// older returns the name that replaces a spelling, or "".
func (s spelling) older() string {
	if s.by.Prefix == "" && s.by.Name != s.Name {
		return s.Name
	}
	return s.Older
}

// A dictionary holds keys by each of their spellings.
type dictionary struct {
	docs        map[string]*Doc
	onObjects   map[string]spelling
	inConfigMap map[string]spelling
}

func newDictionary() dictionary {
	return dictionary{map[string]*Doc{}, map[string]spelling{}, map[string]spelling{}}
}

// known holds every key there is.
var known = newDictionary()

// Docs returns all keys, by name.
func Docs() []Doc {
	var all []Doc
	for _, name := range slices.Sorted(maps.Keys(known.docs)) {
		all = append(all, *known.docs[name])
	}
	return all
}

// define makes a key with values that mean the same in every object.
func define[T any](parse func(string) (T, error), d Doc) key[T] {
	return defineIn(func(_ Env, _ Scope, s string) (T, error) { return parse(s) }, d)
}

// defineIn makes a key with values that depend on an Env.
func defineIn[T any](read func(Env, Scope, string) (T, error), d Doc) key[T] {
	d.Since, d.Traffic = cmp.Or(d.Since, "0.1"), cmp.Or(d.Traffic, Requests)
	known.add(&d)
	return key[T]{d, read}
}

// prefixes lists the prefixes that a key may have on an object. Keys that only we have
// use the prefix own instead: no other controller reads them.
var prefixes = []string{"haproxy.org/", "haproxy.com/", "ingress.kubernetes.io/"}

const own = "sallyport.dev/"

// add enters a key by all its spellings, in the order of precedence. A name with a
// prefix overrides a name without one, as in HAProxy's own controller, and the key's
// name overrides its aliases.
func (in dictionary) add(d *Doc) {
	in.docs[d.Name] = d
	enter := func(spellings map[string]spelling, full string, by Alias) {
		if _, has := spellings[full]; has {
			panic("annotations: " + full + " is defined twice")
		}
		spellings[full] = spelling{d, by, len(spellings)}
	}
	names := append([]Alias{{Name: d.Name}}, d.Aliases...)
	for _, by := range names {
		under := prefixes
		if by.Prefix != "" {
			under = []string{by.Prefix}
		} else if strings.HasPrefix(by.Name, own) {
			under = nil
		}
		for _, p := range under {
			enter(in.onObjects, p+by.Name, by)
		}
	}
	for _, by := range names {
		if by.Prefix == "" {
			enter(in.onObjects, by.Name, by)
			enter(in.inConfigMap, strings.TrimPrefix(by.Name, own), by)
		}
	}
}

// spellings returns the ways to write keys in a scope.
func (in dictionary) spellings(scope Scope) map[string]spelling {
	if scope == ConfigMap {
		return in.inConfigMap
	}
	return in.onObjects
}

// values returns the value of each key that an object sets. If an object has several
// spellings of one key, the one with the lowest rank is used.
func (in dictionary) values(scope Scope, written map[string]string) map[string]Value {
	var values map[string]Value
	spellings := in.spellings(scope)
	for full, text := range written {
		s, is := spellings[full]
		if !is || s.Scopes&scope == 0 {
			continue
		}
		if used, has := values[s.Name]; has && spellings[used.As].rank < s.rank {
			continue
		}
		if values == nil {
			values = make(map[string]Value)
		}
		v := Value{As: full, Text: strings.TrimSpace(text)}
		if s.by.translate != nil {
			v.Text, v.fault = s.by.translate(v.Text)
		}
		values[s.Name] = v
	}
	return values
}

// A Layer holds the keys that one object sets, by name.
type Layer struct {
	Scope  Scope
	Values map[string]Value
	Odd    []Problem // of names that are no key, or no key for the object

	closed   bool           // one of these names was meant to be a guard
	sections []namedSection // the resources that a ConfigMap names, see WithSections
}

// Empty reports whether a Layer changes nothing.
func (l Layer) Empty() bool { return len(l.Values) == 0 && !l.closed }

// Guards reports whether one of the keys keeps clients out.
func (l Layer) Guards() bool {
	for name := range l.Values {
		if known.docs[name].Guard {
			return true
		}
	}
	return l.closed
}

// Bytes returns how many bytes the keys of a Layer have, with their values. The text that
// HAProxy gets for one backend is about as long.
func (l Layer) Bytes() (n int) {
	for _, v := range l.Values {
		n += len(v.As) + len(v.Text)
	}
	return n
}

// A Value is the value of a key, and the name under which the object has it.
type Value struct {
	As, Text string

	fault error  // from its translation
	field string // of the custom resource that the key names; empty if it names none
}

// name returns the name of a value for people.
func (v Value) name() string {
	if v.field == "" {
		return v.As
	}
	return v.As + " (" + v.field + ")"
}

// Read returns the keys among an object's annotations, or in a ConfigMap's data, where keys need no
// prefix.
//
// It reports an annotation that has one of our prefixes and is no key. If the nearest key is a
// guard, all clients are rejected: the user wants to keep some clients out, and we cannot tell
// which clients these are. Read also reports a key that has no effect on that kind of object, but
// ignores the key: charts write the same annotations on an Ingress and on its Service. A name
// without a prefix may belong to another program. Such a name is used if it is a key, and reported
// if it is almost the name of a guard.
func Read(scope Scope, written map[string]string) Layer { return known.read(scope, written) }

func (in dictionary) read(scope Scope, written map[string]string) Layer {
	l := Layer{Scope: scope, Values: in.values(scope, written)}
	for full, text := range written {
		odd := func(reason, format string, args ...any) {
			why := scope.noun() + " " + fmt.Sprintf(format, args...)
			l.Odd = append(l.Odd, Problem{Scope: scope, Reason: reason, Why: why, As: full})
		}
		s, is := in.spellings(scope)[full]
		if d := cmp.Or(s.Doc, in.onObjects[full].Doc); scope == ConfigMap && d != nil && d.Scopes&scope == 0 {
			then := "it is ignored"
			if d.Guard && !is { // as a misspelled one
				l.closed, then = true, "all clients are rejected until it is removed"
			}
			odd("UnknownAnnotation", "%s has no effect in the ConfigMap: write %s as an annotation of %s; %s", full,
				d.annotation(), strings.ReplaceAll(d.Scopes.String(), ", ", " or "), then)
			continue
		}
		if !is {
			l.closed = in.unknown(scope, full, odd) || l.closed
			continue
		}
		used, older := l.Values[s.Name], s.older()
		switch {
		case s.Scopes&scope == 0:
			odd("UnknownAnnotation", "%s is allowed on %s, not on %s; it is ignored", full, s.Scopes, scope)
		case used.As == full && older != "":
			odd("OlderAnnotation", "%s is deprecated and still used; write %s instead", full, older)
		case older == s.Name:
			odd("OlderAnnotation", "%s is deprecated and ignored, since %s is set, too", full, older)
		case used.As != full && used.Text != strings.TrimSpace(text):
			odd("UnusedAnnotation", "%s is ignored, since %s is set, too, and overrides it", full, used.As)
		}
	}
	slices.SortFunc(l.Odd, func(a, b Problem) int { return cmp.Compare(a.Why, b.Why) })
	return l
}

// unknown reports a name that is no key, and whether it was meant to be a guard.
func (in dictionary) unknown(scope Scope, full string, odd func(reason, format string, args ...any)) (closed bool) {
	name, ours := strings.CutPrefix(full, own)
	for _, p := range prefixes {
		if !ours {
			name, ours = strings.CutPrefix(full, p)
		}
	}
	if scope != ConfigMap && !ours && strings.Contains(full, "/") {
		return false // another program's
	}
	near := in.nearest(name)
	guard := near != nil && near.Guard
	switch {
	case scope != ConfigMap && !ours:
		if guard && len(name) >= leastLikely {
			odd("UnknownAnnotation",
				"%s is unknown and ignored; the nearest known one is %s (a name without a prefix may belong to "+
					"another program)", Quote(full), near.in(scope))
		}
		return false
	case guard:
		odd("UnknownAnnotation",
			"%s is unknown; the nearest known one, %s, restricts access: all clients are rejected until the name "+
				"is corrected", Quote(full), near.in(scope))
	case near != nil:
		odd("UnknownAnnotation", "%s is unknown and ignored; the nearest known one is %s", Quote(full), near.in(scope))
	default:
		odd("UnknownAnnotation", "%s is unknown and ignored", Quote(full))
	}
	return guard
}

// leastLikely is the length from which a name without a prefix may count as a mistyped
// guard.
const leastLikely = 6

// nearest finds the key that the user may have meant. At most two letters of its name
// differ; the prefix does not count. Among keys that are equally near it prefers a
// guard.
func (in dictionary) nearest(name string) (best *Doc) {
	least := 3
	for bare, s := range in.inConfigMap {
		n, d := distance(name, bare), s.Doc
		switch {
		case n > least || n == 3:
		case n < least, d.Guard && !best.Guard, d.Guard == best.Guard && d.Name < best.Name:
			best, least = d, n
		}
	}
	return best
}

// distance returns Levenshtein's distance between two names.
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

// A Problem is a value that is not used.
type Problem struct {
	Scope  Scope  // of the object that has it
	Reason string // CamelCase
	Why    string
	As     string // the annotation or key, as the object has it; empty for a problem of several
}

// An Effective is a value that is used.
type Effective struct {
	Key string `json:"key"`
	// As is the name that the object has: haproxy.org/KEY, an alias, or the bare KEY. The field of a
	// custom resource follows in parentheses.
	As    string `json:"as"`
	Value string `json:"value"`
	Scope string `json:"scope"` // of the object
}

// heed makes values from the layers for one backend.
func heed(env Env, layers []Layer) *values {
	v := &values{
		layers: layers, env: env,
		closed: slices.ContainsFunc(layers, func(l Layer) bool { return l.closed }),
	}
	v.heedResource()
	return v
}

// values reads the layers for one backend, the most special first.
type values struct {
	layers   []Layer
	only     Scope // the only layer to read; 0 means all layers
	owner    string
	env      Env
	closed   bool            // a guard cannot be used
	optsOut  bool            // of the password and the auth-url of the ConfigMap
	either   map[string]bool // the guards, by name, if one of them is enough; nil if all are needed
	resource *Resource       // that an object names by cr-backend; nil if none does
	problems []Problem
	used     []Effective
}

// fault reports a value that cannot be used.
func (v *values) fault(d Doc, scope Scope, err error) { v.faultOf(v.valueIn(scope, d), d, scope, err) }

// faultOf reports a value that cannot be used, and that an object of a scope sets.
func (v *values) faultOf(said Value, d Doc, scope Scope, err error) {
	v.closed = v.closed || d.Guard
	v.reportFault(said, d.Guard, scope, err)
}

// reportFault adds a problem of a value that cannot be used. guard says that all clients are rejected without it.
func (v *values) reportFault(said Value, guard bool, scope Scope, err error) {
	then := "it is ignored"
	if guard {
		then = "all clients are rejected until it is corrected"
	}
	v.reportOf(said, scope, "InvalidAnnotation", fmt.Errorf("%w; %s", err, then))
}

// wrong reports the value of a key that was read, and cannot be used.
func (v *values) wrong(d Doc, err error) { v.fault(d, v.scopeOf(d.Name), err) }

// report adds a problem of the value that an object of a scope sets for a key.
func (v *values) report(d Doc, scope Scope, reason string, err error) {
	v.reportOf(v.valueIn(scope, d), scope, reason, err)
}

// reportOf adds a problem of a value that an object of a scope sets.
func (v *values) reportOf(said Value, scope Scope, reason string, err error) {
	v.problems = append(v.problems, Problem{
		Scope: scope, Reason: reason, Why: fmt.Sprintf("%s %s: %v", scope.noun(), said.name(), err), As: said.As,
	})
}

// valueIn returns the value that an object of a scope sets for a key, or one with nothing but the key's name.
func (v *values) valueIn(scope Scope, d Doc) Value {
	for _, l := range v.layers {
		if said, has := l.Values[d.Name]; has && l.Scope == scope {
			return said
		}
	}
	return Value{As: d.Name}
}

// scopeOf returns the scope that the value of a key comes from.
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

// get returns the value of a key from the most special layer with a usable value. ok is false if no
// layer has a usable value; value is then the default. get reports a value that cannot be used, and
// goes on to the next layer, unless the key is a guard.
func get[T any](v *values, k key[T]) (value T, ok bool) {
	var none T
	for _, l := range v.layers {
		said, has := l.Values[k.Name]
		if !has || v.only != 0 && v.only != l.Scope {
			continue
		}
		err := said.fault
		if err == nil {
			value, err = k.read(v.env, l.Scope, said.Text)
		}
		if less, is := errors.AsType[reduced](err); is {
			v.reportOf(said, l.Scope, "LimitReached", less)
			err = nil
		}
		if err == nil {
			v.used = append(v.used, Effective{Key: k.Name, As: said.name(), Value: said.Text, Scope: l.Scope.String()})
			return value, true
		}
		if v.faultOf(said, k.Doc, l.Scope, err); k.Guard {
			return none, false
		}
	}
	if k.Default == "" {
		return none, false
	}
	value, err := k.read(v.env, ConfigMap, k.Default)
	if err != nil {
		panic("annotations: the default of " + k.Name + ": " + err.Error())
	}
	return value, false
}

// getFrom returns the value that one layer has for a key, and the problems with it.
func getFrom[T any](l Layer, k key[T]) (value T, said bool, problems []Problem) {
	v := &values{layers: []Layer{l}}
	value, said = get(v, k)
	return value, said, v.problems
}
