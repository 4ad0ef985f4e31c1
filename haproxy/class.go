package haproxy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
)

// A class is a set of backends that have the same settings; their names and servers may differ. A
// new backend needs no reload if HAProxy has loaded its class. HAProxy since 3.4 loads a section of
// defaults for each class, and "add backend" makes a backend of it (grow.go). HAProxy before 3.4
// loads spare backends (spare.go).
type class struct {
	name    string
	members int
	of      *fragment // one of the members
}

// maxClasses is the largest number of classes with a section of defaults. The classes with most
// members come first.
const maxClasses = 64

// className begins the name of a section of defaults.
const className = "_class-"

// class returns the name of the backend's class, or "" if it has no class.
func (f *fragment) class() string {
	if slices.ContainsFunc(f.of.Directives, func(d Directive) bool { return d.phase == phaseText }) {
		return "" // a user's lines may name the backend, or be invalid in defaults
	}
	sum := sha256.Sum256(f.shape[len("backend ")+len(f.of.Name):])
	return hex.EncodeToString(sum[:4])
}

// classes returns the classes of the backends. The classes with most members come first.
func (o *outline) classes() []*class {
	byName := make(map[string]*class)
	for _, f := range o.backends {
		name := f.class()
		if name == "" {
			continue
		}
		if byName[name] == nil {
			byName[name] = &class{name: name, of: f}
		}
		byName[name].members++
	}
	return slices.SortedFunc(maps.Values(byName), func(a, b *class) int {
		return cmp.Or(cmp.Compare(b.members, a.members), cmp.Compare(a.name, b.name))
	})
}

// classesText returns the sections of defaults and the spare backends for the classes. The variable
// proc.classes names the classes that have a section of defaults.
func (o *outline) classesText(dir string) []byte {
	var defaults, spares []byte
	var names []string
	http := o.cfg.loads(namesMap)
	kinds := 0
	for _, c := range o.classes() {
		if c.fits() && len(names) < maxClasses {
			names = append(names, c.name)
			// The section repeats the settings in defaults. It could name that section instead, but
			// HAProxy warns if a proxy also uses it without naming it.
			defaults = slices.Concat(defaults, []byte("\ndefaults "+className+c.name+"\n"), o.defaults, c.of.body)
		}
		if http && !c.of.of.TCP && kinds < spareClasses {
			kinds++
			spares = append(spares, c.sparesText(dir)...)
		}
	}
	if len(names) > 0 {
		defaults = append([]byte("\nglobal\n  set-var proc.classes str("+strings.Join(names, ".")+")\n"), defaults...)
	}
	if len(defaults)+len(spares) == 0 {
		return nil
	}
	return slices.Concat([]byte("\n.if version_atleast(3.4)\n"), defaults, []byte("\n.else\n"), spares,
		[]byte("\n.endif\n"))
}

// fits reports whether a section of defaults can have the settings.
func (c *class) fits() bool {
	// HAProxy: unable to find capture id; 'filter' cannot be used in 'defaults' sections; 'use-fcgi-app' only
	// available in backend or listen section
	return !slices.ContainsFunc(c.of.of.Directives, func(d Directive) bool {
		return d.phase == phaseCapture || d.Filters() || d.app != ""
	})
}
