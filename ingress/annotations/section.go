package annotations

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sallyport/haproxy"
)

// A Section has the settings of a Global, a Defaults or a Frontend, a custom resource of HAProxy's own controller.
// They are about one section of HAProxy's configuration.
type Section struct {
	Said   []Said      // values of keys, which override those of the ConfigMap
	Fields []FieldText // the fields that no key says: they become lines of the configuration
	Left   []string    // a sentence for each field without an effect
}

// A FieldText has the lines of one field, or the reason why the field cannot be used.
type FieldText struct {
	Name  string // or the names of several fields, if their lines need each other
	Text  haproxy.Text
	Err   error
	Guard bool // the lines may keep clients out: without them, all clients are rejected
}

// sectionKeys are the keys that name a resource about a section.
var sectionKeys = []sectionKey{
	defineSection(haproxy.GlobalSection, Doc{
		Name: "cr-global", Refers: GlobalKind,
		Effect: "The settings of the whole process: a Global of ingress.v3.haproxy.org or ingress.v1.haproxy.org, " +
			"with `clusters[].ingress.customResources`. They override the keys of the ConfigMap, and become lines of " +
			"section global where there is no key ([KIC.md](KIC.md)).",
	}),
	defineSection(haproxy.DefaultsSection, Doc{
		Name: "cr-defaults", Refers: DefaultsKind,
		Effect: "The settings of all frontends and backends: a Defaults of ingress.v3.haproxy.org or " +
			"ingress.v1.haproxy.org, with `clusters[].ingress.customResources`. They override the keys of the " +
			"ConfigMap, and become lines of section defaults where there is no key ([KIC.md](KIC.md)).",
	}),
	defineSection(haproxy.HTTPSection, Doc{
		Name: "cr-frontend-http", Refers: FrontendKind, Guard: true,
		Effect: "Lines of the frontend for HTTP: a Frontend of ingress.v3.haproxy.org, with " +
			"`clusters[].ingress.customResources` ([KIC.md](KIC.md)). While the Frontend does not exist, or its rules " +
			"cannot be used, all clients of HTTP are rejected.",
	}),
	defineSection(haproxy.HTTPSSection, Doc{
		Name: "cr-frontend-https", Refers: FrontendKind, Guard: true,
		Effect: "Lines of the frontend for HTTPS: a Frontend of ingress.v3.haproxy.org, with " +
			"`clusters[].ingress.customResources` ([KIC.md](KIC.md)). While the Frontend does not exist, or its rules " +
			"cannot be used, all clients of HTTPS are rejected.",
	}),
}

var statsFrontend = define(reference, Doc{
	Name: "cr-frontend-stats", Scopes: ConfigMap, Format: "Frontend, or namespace/Frontend",
	Effect: "No effect: there is no frontend for statistics; see the status endpoint.",
})

// sslFrontend is a guard: all connections for HTTPS pass the frontend of this name in HAProxy's own controller while a
// host has TLS passthrough.
var sslFrontend = define(func(s string) (string, error) { return s, nil }, Doc{
	Name: "cr-frontend-ssl", Scopes: ConfigMap, Format: "Frontend, or namespace/Frontend", Guard: true,
	Effect: "Not served: no Frontend has an effect on TLS connections that HAProxy passes on. All clients are " +
		"rejected while the key is set, since the Frontend may keep some of them out.",
})

// A sectionKey names a resource about a section.
type sectionKey struct {
	key[*Section]
	into haproxy.Section
}

// defineSection makes a key that names a resource about a section.
func defineSection(into haproxy.Section, d Doc) sectionKey {
	d.Scopes, d.Format = ConfigMap, string(d.Refers)+", or namespace/"+string(d.Refers)
	return sectionKey{defineIn(func(e Env, _ Scope, s string) (*Section, error) {
		ref, err := reference(s)
		if err != nil {
			return nil, err
		}
		return e.Section(d.Refers, into, ref)
	}, d), into}
}

// A namedSection is a resource about a section that a ConfigMap names. The Section is nil if all clients are
// rejected, because the resource cannot be read.
type namedSection struct {
	*Section
	by   Effective
	into haproxy.Section
}

// WithSections returns a Layer of a ConfigMap with the values of the resources about sections that it names.
// They override its own. Process also uses their lines.
func (l Layer) WithSections(env Env) Layer {
	v := &values{layers: []Layer{l}, env: env}
	var named []namedSection
	if _, said := get(v, statsFrontend); said {
		v.report(statsFrontend.Doc, ConfigMap, "NotServed",
			errors.New("there is no frontend for statistics: the status endpoint has them"))
	}
	if _, said := get(v, sslFrontend); said {
		l.closed = true
		v.report(sslFrontend.Doc, ConfigMap, "NotServed", errors.New("no Frontend has an effect on TLS connections "+
			"that HAProxy passes on: write its rules as keys of Ingresses; all clients are rejected until the key is "+
			"removed"))
	}
	for _, k := range sectionKeys {
		r, said := get(v, k.key)
		written, is := l.Values[k.Name]
		switch {
		case !said && is && k.Guard:
			by := Effective{Key: k.Name, As: written.name(), Value: written.Text, Scope: l.Scope.String()}
			named = append(named, namedSection{by: by, into: k.into})
			continue
		case !said:
			continue
		case r == nil:
			v.report(k.Doc, ConfigMap, "NotServed",
				errors.New("custom resources are not read (clusters[].ingress.customResources)"))
			continue
		}
		named = append(named, namedSection{Section: r, by: v.used[len(v.used)-1], into: k.into})
		for _, why := range r.Left {
			v.report(k.Doc, ConfigMap, "FieldLeftOut", errors.New(why))
		}
	}
	l.Odd = slices.Concat(l.Odd, v.problems)
	for _, s := range named {
		if s.Section != nil {
			l = l.overriddenBy(s.Said)
		}
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

// sectionTexts returns the lines of the resources that the layers name, and that may be used.
func (v *values) sectionTexts(asked *[]haproxy.Question) (texts []haproxy.Text) {
	for _, l := range v.layers {
		for _, s := range l.sections {
			v.used = append(v.used, s.by)
			texts = append(texts, v.textsOf(s, asked)...)
		}
	}
	return texts
}

// textsOf returns the lines of a resource about a section that may be used. Each field is judged alone: HAProxy
// may be older than the resource. A guard that cannot be used shuts the section, also until HAProxy has accepted
// its lines.
func (v *values) textsOf(s namedSection, asked *[]haproxy.Question) (texts []haproxy.Text) {
	if s.Section == nil {
		return []haproxy.Text{haproxy.Shut(s.into)}
	}
	shut := false
	wrong := func(field string, guard bool, err error) {
		shut = shut || guard // the section alone
		v.reportFault(Value{As: s.by.As, field: field}, guard, ConfigMap, err)
	}
	if err := v.env.Allowed(ConfigMap, snippetOf(s.into)); err != nil && len(s.Fields) > 0 {
		var names []string
		guard := false
		for _, f := range s.Fields {
			names, guard = append(names, f.Name), guard || f.Guard
		}
		wrong(strings.Join(names, ", "), guard, err)
	} else {
		for _, f := range s.Fields {
			if f.Err != nil {
				wrong(f.Name, f.Guard, f.Err)
				continue
			}
			verdict := v.ask(f.Text.Question(), asked)
			switch {
			case verdict == haproxy.Good:
				texts = append(texts, f.Text)
			case verdict.Why != "":
				wrong(f.Name, f.Guard, errors.New(verdict.Why))
			default:
				shut = shut || f.Guard
			}
		}
	}
	if shut {
		texts = append([]haproxy.Text{haproxy.Shut(s.into)}, texts...)
	}
	return texts
}

// snippetOf returns the name of a section in the configuration file, which allows or rejects snippets by section.
func snippetOf(section haproxy.Section) haproxy.Section {
	if section == haproxy.HTTPSection || section == haproxy.HTTPSSection {
		return haproxy.FrontendSection
	}
	return section
}
