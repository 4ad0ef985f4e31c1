package annotations

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sallyport/haproxy"
)

// A Section has what a Global or a Defaults, a custom resource of HAProxy's own controller, says about the
// section of HAProxy's configuration with its name.
type Section struct {
	Said   []Said      // values of keys, which override those of the ConfigMap
	Fields []FieldText // the fields that no key says: they become lines of the configuration
	Left   []string    // a sentence for each field without an effect
}

// A FieldText has the lines of one field, or the reason why the field cannot be used.
type FieldText struct {
	Name string
	Text haproxy.Text
	Err  error
}

var (
	globalResource = defineSection(GlobalKind, "cr-global", "the whole process", "section global")
	defaultsOfAll  = defineSection(DefaultsKind, "cr-defaults", "all frontends and backends", "section defaults")
)

// defineSection makes a key that names a Global or a Defaults.
func defineSection(kind Kind, name, about, section string) key[*Section] {
	return defineIn(func(e Env, _ Scope, s string) (*Section, error) {
		ref, err := reference(s)
		if err != nil {
			return nil, err
		}
		return e.Section(kind, ref)
	}, Doc{
		Name: name, Scopes: ConfigMap, Refers: kind, Format: string(kind) + ", or namespace/" + string(kind),
		Effect: "The settings of " + about + ": a " + string(kind) + " of ingress.v3.haproxy.org or " +
			"ingress.v1.haproxy.org, with `clusters[].ingress.customResources`. They override the keys of the " +
			"ConfigMap, and become lines of " + section + " where there is no key ([KIC.md](KIC.md)).",
	})
}

// A namedSection is a Global or a Defaults that a ConfigMap names.
type namedSection struct {
	*Section
	of   Doc
	by   Effective
	into haproxy.Section
}

// WithSections returns a Layer of a ConfigMap with the values of the Global and the Defaults that it names.
// They override its own. Process also uses their lines.
func (l Layer) WithSections(env Env) Layer {
	v := &values{layers: []Layer{l}, env: env}
	var named []namedSection
	for _, k := range []struct {
		key[*Section]
		into haproxy.Section
	}{{globalResource, haproxy.GlobalSection}, {defaultsOfAll, haproxy.DefaultsSection}} {
		r, said := get(v, k.key)
		switch {
		case !said:
			continue
		case r == nil:
			v.report(k.Doc, ConfigMap, "NotServed",
				errors.New("custom resources are not read (clusters[].ingress.customResources)"))
			continue
		}
		named = append(named, namedSection{Section: r, of: k.Doc, by: v.used[len(v.used)-1], into: k.into})
		for _, why := range r.Left {
			v.report(k.Doc, ConfigMap, "FieldLeftOut", errors.New(why))
		}
	}
	l.Odd = slices.Concat(l.Odd, v.problems)
	for _, s := range named {
		l = l.overriddenBy(s.Said)
	}
	l.sections = named
	return l
}

// overriddenBy returns a Layer of a ConfigMap with other values in place of its own. It reports each key
// with another value.
func (l Layer) overriddenBy(said []Said) Layer {
	if len(said) == 0 {
		return l
	}
	l.Values, l.Odd = maps.Clone(l.Values), slices.Clone(l.Odd)
	if l.Values == nil {
		l.Values = make(map[string]Value, len(said))
	}
	for _, s := range said {
		next := Value{As: s.As, Text: s.Text, field: s.Field}
		if was, has := l.Values[s.Key]; has && was.Text != s.Text {
			l.Odd = append(l.Odd, Problem{
				Scope: l.Scope, Reason: "UnusedAnnotation", As: was.As,
				Why: fmt.Sprintf("key %s is ignored, since %s is set, too, and overrides it", was.name(), next.name()),
			})
		}
		l.Values[s.Key] = next
	}
	return l
}

// sectionTexts returns the lines of the Globals and Defaults that the layers name, and that may be used.
func (v *values) sectionTexts(asked *[]haproxy.Question) (texts []haproxy.Text) {
	for _, l := range v.layers {
		for _, s := range l.sections {
			v.used = append(v.used, s.by)
			texts = append(texts, v.textsOf(s, asked)...)
		}
	}
	return texts
}

// textsOf returns the lines of a Global or a Defaults that may be used. Each field is judged alone: HAProxy may
// be older than the resource.
func (v *values) textsOf(s namedSection, asked *[]haproxy.Question) (texts []haproxy.Text) {
	wrong := func(field string, err error) {
		v.faultOf(Value{As: s.by.As, field: field}, s.of, ConfigMap, err)
	}
	if err := v.env.Allowed(ConfigMap, s.into); err != nil && len(s.Fields) > 0 {
		var names []string
		for _, f := range s.Fields {
			names = append(names, f.Name)
		}
		wrong(strings.Join(names, ", "), err)
		return nil
	}
	for _, f := range s.Fields {
		if f.Err != nil {
			wrong(f.Name, f.Err)
			continue
		}
		verdict := v.ask(f.Text.Question(), asked)
		if verdict == haproxy.Good {
			texts = append(texts, f.Text)
		} else if verdict.Why != "" {
			wrong(f.Name, errors.New(verdict.Why))
		}
	}
	return texts
}
