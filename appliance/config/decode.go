package config

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// decode fills c with the defaults and then with the values of data. It walks the
// document and the type together, so that it finds every mistake and its line. The tags
// that make the JSON Schema are the bounds. It returns false if there is no document to
// walk.
func decode(data []byte, c *Config, p *problems) bool {
	body, line, err := document(data)
	switch {
	case err != nil:
		p.addAt(line, "", "%v", err)
		return false
	case body == nil:
		p.addAt(0, "", "is empty; give at least clusters, with a kubeconfig")
		return false
	}
	d := decoder{p}
	root := reflect.ValueOf(c).Elem()
	d.defaults(root)
	d.value(body, "", root, limits{})
	return true
}

// Default returns the Config of a file that sets nothing. It has no cluster.
func Default() *Config {
	c := new(Config)
	decoder{}.defaults(reflect.ValueOf(c).Elem())
	c.fillSystem(nil)
	return c
}

type decoder struct {
	*problems
}

// limits are the bounds of one key, from its jsonschema tag.
type limits struct {
	enum     []string
	defaults []string
	min, max uint64
}

func limitsOf(f reflect.StructField) limits {
	l := limits{max: math.MaxUint64}
	for term := range strings.SplitSeq(f.Tag.Get("jsonschema"), ",") {
		name, value, _ := strings.Cut(term, "=")
		switch name {
		case "enum":
			l.enum = append(l.enum, value)
		case "default":
			l.defaults = append(l.defaults, value)
		case "minimum":
			l.min, _ = strconv.ParseUint(value, 10, 64)
		case "maximum":
			l.max, _ = strconv.ParseUint(value, 10, 64)
		}
	}
	return l
}

// fields yields the keys of a struct type in order.
func fields(t reflect.Type) iter.Seq2[string, reflect.StructField] {
	return func(yield func(string, reflect.StructField) bool) {
		for f := range t.Fields() {
			key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if key != "-" && f.IsExported() && !yield(key, f) {
				return
			}
		}
	}
}

func keys(t reflect.Type) (all []string) {
	for key := range fields(t) {
		all = append(all, key)
	}
	return all
}

// isLeaf reports whether t is written as one value, though it may be a struct.
func isLeaf(t reflect.Type) bool {
	return t.Kind() != reflect.Struct || reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// defaults sets the fields of a struct to the defaults in their tags.
func (d decoder) defaults(v reflect.Value) {
	for _, f := range fields(v.Type()) {
		field, defaults := v.FieldByIndex(f.Index), limitsOf(f).defaults
		switch {
		case !isLeaf(field.Type()):
			d.defaults(field)
		case field.Kind() == reflect.Slice:
			for _, text := range defaults {
				item := reflect.New(field.Type().Elem()).Elem()
				mustSet(item, text)
				field.Set(reflect.Append(field, everyAddress(item, text)...))
			}
		case len(defaults) > 0:
			mustSet(field, defaults[0])
		}
	}
}

// mustSet sets a default. It panics if the default does not parse, so any test of this
// package finds such a mistake.
func mustSet(v reflect.Value, text string) {
	if v.Kind() == reflect.Bool {
		v.SetBool(text == "true")
		return
	}
	if err := setText(v, text, limits{max: math.MaxUint64}); err != nil {
		panic(fmt.Sprintf("config: default %q: %v", text, err))
	}
}

// value fills v from node. A null leaves the default.
func (d decoder) value(node *yaml.Node, path string, v reflect.Value, l limits) {
	switch {
	case node.Style&yaml.TaggedStyle != 0:
		d.at(node, path, "a YAML tag (%s) is not supported here; write the value itself", node.Tag)
	case isNull(node):
	case v.Type() == reflect.TypeFor[Kubeconfig]():
		d.kubeconfig(node, path, v.Addr().Interface().(*Kubeconfig))
	case v.Type() == reflect.TypeFor[BFD]() && node.ShortTag() == "!!bool" && node.Value == "false":
		v.SetZero()
	case !isLeaf(v.Type()):
		d.object(node, path, v)
	case v.Kind() == reflect.Slice:
		d.list(node, path, v, l)
	case v.Kind() == reflect.Pointer: // nil means that the file gives no value
		v.Set(reflect.New(v.Type().Elem()))
		d.scalar(node, path, v.Elem(), l)
	default:
		d.scalar(node, path, v, l)
	}
}

func isNull(node *yaml.Node) bool { return node.Kind == yaml.ScalarNode && node.ShortTag() == "!!null" }

// at adds a mistake in the value at node.
func (d decoder) at(node *yaml.Node, path, format string, args ...any) {
	d.addAt(node.Line, path, format, args...)
}

func (d decoder) object(node *yaml.Node, path string, v reflect.Value) {
	if node.Kind != yaml.MappingNode {
		or := ""
		if v.Type() == reflect.TypeFor[BFD]() {
			or = ", or false"
		}
		d.at(node, path, "%s is given where keys are expected; allowed: %s%s", sort(node),
			strings.Join(keys(v.Type()), ", "), or)
		return
	}
	first := map[string]int{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key := node.Content[i]
		name, _ := text(key)
		if line, twice := first[name]; twice {
			d.at(key, path, "key %q is given twice, first in line %d; keep one of the two", name, line)
			continue
		}
		first[name] = key.Line
		d.entry(key, node.Content[i+1], path, v)
	}
}

func (d decoder) entry(key, value *yaml.Node, path string, v reflect.Value) {
	name, _ := text(key)
	for known, f := range fields(v.Type()) {
		if known == name {
			child := join(path, name)
			if !isNull(value) {
				d.lines[child] = key.Line
			}
			d.value(value, child, v.FieldByIndex(f.Index), limitsOf(f))
			return
		}
	}
	place, hint := "", ""
	if path != "" {
		place = " in " + path
	}
	all := keys(v.Type())
	if near := nearest(name, all); near != "" {
		hint = fmt.Sprintf("did you mean %q? ", near)
	}
	d.addAt(key.Line, "", "unknown key %q%s; %sallowed: %s", name, place, hint, strings.Join(all, ", "))
}

func (d decoder) list(node *yaml.Node, path string, v reflect.Value, l limits) {
	if node.Kind != yaml.SequenceNode {
		d.at(node, path, "%s is given where a list is expected, such as [%s]", sort(node),
			forms[v.Type().Elem()].example)
		return
	}
	v.Set(reflect.Zero(v.Type()))
	var seen []string
	for i, node := range node.Content {
		child := fmt.Sprintf("%s[%d]", path, i)
		item := reflect.New(v.Type().Elem()).Elem()
		if !isLeaf(item.Type()) {
			d.defaults(item)
		}
		if isNull(node) {
			d.at(node, child, "an entry of the list is empty")
			continue
		}
		d.lines[child] = node.Line
		before := len(d.problems.list)
		d.value(node, child, item, l)
		if len(d.problems.list) > before {
			continue
		}
		written, ok := text(node)
		if ok && slices.Contains(seen, written) {
			d.at(node, child, "%s is listed twice", written)
			continue
		}
		seen = append(seen, written)
		v.Set(reflect.Append(v, everyAddress(item, written)...))
	}
}

// everyAddress replaces a listen address without a host by the wildcards of IPv6 and
// IPv4. It returns any other list item unchanged.
func everyAddress(item reflect.Value, written string) []reflect.Value {
	six, ok := reflect.TypeAssert[netip.AddrPort](item)
	if !ok || !strings.HasPrefix(written, ":") {
		return []reflect.Value{item}
	}
	return []reflect.Value{reflect.ValueOf(netip.AddrPortFrom(netip.IPv4Unspecified(), six.Port())), item}
}

func (d decoder) scalar(node *yaml.Node, path string, v reflect.Value, l limits) {
	written, ok := text(node)
	if !ok {
		d.at(node, path, "%s is given where one value is expected; allowed: %s", sort(node), allowed(v.Type(), l))
		return
	}
	if v.Kind() == reflect.Bool {
		b, err := strconv.ParseBool(written)
		if err != nil || node.ShortTag() != "!!bool" {
			d.at(node, path, "%q is not allowed; allowed: true, false", written)
			return
		}
		v.SetBool(b)
		return
	}
	was := reflect.ValueOf(v.Interface())
	err := setText(v, written, l)
	if err == nil {
		return
	}
	v.Set(was) // the default is fit for the checks that follow
	switch {
	case v.Type() == reflect.TypeFor[Secret]():
		d.at(node, path, "%v", err)
	case v.Type() == reflect.TypeFor[PEM](): // may hold a key
		d.at(node, path, "the value is not allowed; allowed: the path of a PEM file, or the PEM itself")
	case errors.Is(err, errNotAllowed):
		hint := ""
		if near := nearest(written, l.enum); near != "" {
			hint = fmt.Sprintf("did you mean %q? ", near)
		}
		d.at(node, path, "%q is not allowed; %sallowed: %s", written, hint, allowed(v.Type(), l))
	default:
		d.at(node, path, "%v", err)
	}
}

// kubeconfig reads a path, or the document as text or as keys.
func (d decoder) kubeconfig(node *yaml.Node, path string, k *Kubeconfig) {
	if written, ok := text(node); ok {
		if !strings.Contains(strings.TrimSpace(written), "\n") {
			k.Path = strings.TrimSpace(written)
			return
		}
		if _, line, err := document([]byte(written)); err != nil {
			d.at(node, path, "line %d of the kubeconfig given here: %v", line, err)
			return
		}
		k.Inline = NewSecret(written)
		return
	}
	if node.Kind != yaml.MappingNode {
		d.at(node, path, "%s is given; allowed: the path of a kubeconfig file, or the kubeconfig itself", sort(node))
		return
	}
	var keys map[string]any
	err := node.Decode(&keys)
	if err == nil {
		var data []byte
		if data, err = json.Marshal(keys); err == nil {
			k.Inline = NewSecret(string(data))
		}
	}
	if err != nil {
		// The error itself would quote the credentials.
		d.at(node, path, "the kubeconfig given here is not a plain YAML document")
	}
}

var errNotAllowed = errors.New("not allowed")

// setText sets a value from its text. The error is errNotAllowed or a sentence.
func setText(v reflect.Value, s string, l limits) error {
	if len(l.enum) > 0 && !slices.Contains(l.enum, s) {
		return errNotAllowed
	}
	var addr netip.Addr // the address in the value; zero: there is none
	var err error
	switch x := v.Addr().Interface().(type) {
	case *time.Duration:
		if *x, err = time.ParseDuration(s); *x < 0 {
			err = errNotAllowed
		}
	case *netip.Addr:
		*x, err = netip.ParseAddr(s)
		addr = *x
	case *netip.Prefix:
		if *x, err = netip.ParsePrefix(s); *x != x.Masked() {
			return fmt.Errorf("%q has bits set after its length; did you mean %q?", s, x.Masked())
		}
		addr = x.Addr()
	case *Address:
		x.Prefix, err = netip.ParsePrefix(s)
		addr = x.Addr()
	case *netip.AddrPort:
		if strings.HasPrefix(s, ":") {
			s = "[::]" + s
		}
		if *x, err = netip.ParseAddrPort(s); x.Port() == 0 {
			err = errNotAllowed
		}
		addr = x.Addr()
	case encoding.TextUnmarshaler:
		err = x.UnmarshalText([]byte(s))
	default:
		return setBasic(v, s, l)
	}
	switch {
	case err != nil:
		return errNotAllowed
	case addr.Zone() != "" || addr.Is4In6():
		return fmt.Errorf("%q has a zone, or is an IPv4 address in the form of IPv6; allowed: the address alone", s)
	}
	return nil
}

// setBasic sets a string or a number from its text, as setText does.
func setBasic(v reflect.Value, s string, l limits) error {
	switch {
	case v.Kind() == reflect.String:
		if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return errors.New("control characters are not allowed")
		}
		v.SetString(s)
	case v.CanUint():
		n, err := strconv.ParseUint(s, 10, v.Type().Bits())
		if err != nil || n < l.min || n > l.max {
			return errNotAllowed
		}
		v.SetUint(n)
	case v.CanInt():
		n, err := strconv.ParseInt(s, 10, v.Type().Bits())
		if err != nil || n < 0 || uint64(n) < l.min || uint64(n) > l.max {
			return errNotAllowed
		}
		v.SetInt(n)
	default:
		return fmt.Errorf("a value of type %s cannot be given", v.Type())
	}
	return nil
}

// forms holds an example of each type that is written as text or in a list, and a name
// of its form for error messages.
var forms = map[reflect.Type]struct{ name, example string }{
	reflect.TypeFor[time.Duration](): {"a time with its unit", "9s, 500ms or 2m"},
	reflect.TypeFor[netip.Addr]():    {"an IP address", "192.168.50.21"},
	reflect.TypeFor[netip.Prefix]():  {"a network with its length", "172.16.0.0/16"},
	reflect.TypeFor[Pool](): {
		"a network, or its first and last address with a dash between",
		"203.0.113.64/27",
	},
	reflect.TypeFor[Address](): {"an address with the length of its network", "192.168.50.21/24"},
	reflect.TypeFor[netip.AddrPort](): {
		"an address with its port, [fd00::21]:80 for IPv6, :80 for every address",
		"192.168.50.21:80",
	},
	reflect.TypeFor[Source]():    {"a network of IPv4, or an address in it", "192.168.51.0/24"},
	reflect.TypeFor[MinReady]():  {"a whole number from 1 to 1000, or a share from 1% to 100%", "50%"},
	reflect.TypeFor[AccessLog](): {"off, stdout, or the address of a syslog server with its port", "192.168.50.4:514"},
	reflect.TypeFor[Interface](): {"", "{name: eth0, dhcp: true}"},
	reflect.TypeFor[Static]():    {"", "{to: 10.0.0.0/8, via: 192.168.50.1}"},
	reflect.TypeFor[Cluster]():   {"", "{name: demo, kubeconfig: /etc/sallyport/kubeconfig}"},
	reflect.TypeFor[Host]():      {"", "{host: app.example.com, namespaces: [web]}"},
	reflect.TypeFor[Member]():    {"", "{name: gate-1, address: 192.168.50.21}"},
	reflect.TypeFor[Router]():    {"", "{address: 192.168.50.1}"},
	reflect.TypeFor[string]():    {"text", "text"},
}

// allowed describes the values that a key takes.
func allowed(t reflect.Type, l limits) string {
	form, known := forms[t]
	switch {
	case len(l.enum) > 0:
		return strings.Join(l.enum, ", ")
	case t.Kind() == reflect.Bool:
		return "true, false"
	case known && form.name != form.example:
		return form.name + ", such as " + form.example
	case t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64:
		return fmt.Sprintf("a whole number from %d to %d", l.min, l.max)
	default:
		return "text"
	}
}

// text returns the text of a scalar without quotes, and whether node is a scalar.
func text(node *yaml.Node) (string, bool) {
	return node.Value, node.Kind == yaml.ScalarNode
}

// sort names the kind of value that node is.
func sort(node *yaml.Node) string {
	switch node.Kind {
	case yaml.MappingNode:
		return "a group of keys"
	case yaml.SequenceNode:
		return "a list"
	}
	return "a single value"
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// nearest returns the word that written is most likely a misspelling of, or nothing.
func nearest(written string, words []string) string {
	best, least := "", 1+max(1, len(written)/3)
	for _, word := range words {
		if d := distance(strings.ToLower(written), strings.ToLower(word)); d < least {
			best, least = word, d
		}
	}
	return best
}

// distance counts the letters to insert, delete, replace or swap with their
// neighbour on the way from a to b.
func distance(a, b string) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
