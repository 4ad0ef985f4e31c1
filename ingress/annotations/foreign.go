package annotations

import (
	"maps"
	"slices"
	"strings"
)

// A Said is a value of a key that an annotation of another controller stands for.
type Said struct {
	Key  string // its name in Docs
	As   string // the annotation, with its prefix
	Text string

	Field string // of the custom resource that the key names; empty if it names none
}

// With returns a Layer with more values. A key that the Layer has already keeps its value, since our
// own spelling of a key overrides that of another controller. With reports each such key whose value
// differs.
func (l Layer) With(said ...Said) Layer {
	if len(said) == 0 {
		return l
	}
	values := maps.Clone(l.Values)
	if values == nil {
		values = make(map[string]Value, len(said))
	}
	for _, s := range said {
		if known.docs[s.Key] == nil {
			panic("annotations: " + s.As + " stands for " + s.Key + ", which is no key")
		}
		used, has := values[s.Key]
		switch {
		case !has:
			values[s.Key] = Value{As: s.As, Text: s.Text, field: s.Field}
		case used.Text != s.Text:
			l.Odd = append(slices.Clone(l.Odd), Problem{
				Scope: l.Scope, Reason: "UnusedAnnotation", As: s.As,
				Why: "annotation " + s.As + " is ignored, since " + used.As + " is set, too, and overrides it",
			})
		}
	}
	l.Values = values
	return l
}

// OfController reports whether an annotation has a prefix of HAProxy's own controller, and whether it
// keeps clients out. A snippet may do so.
func OfController(full string) (is, guard bool) {
	is = slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(full, p) })
	s, has := known.onObjects[full]
	return is, has && (s.Guard || strings.HasSuffix(full, "-config-snippet"))
}

// Close returns a Layer that rejects all clients.
func (l Layer) Close() Layer {
	l.closed = true
	return l
}

// Refers returns the objects of a kind that the keys of a Layer name, in no order.
func (l Layer) Refers(kind Kind) (refs []Ref) {
	for name, v := range l.Values {
		if known.docs[name].Refers != kind || v.fault != nil {
			continue
		}
		if r, err := reference(v.Text); err == nil {
			refs = append(refs, r)
		}
	}
	return refs
}
