package nginx

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"sallyport/ingress/annotations"
)

// Prefix begins the name of each annotation.
const Prefix = "nginx.ingress.kubernetes.io/"

// Options say which Ingresses are read with the annotations of ingress-nginx.
type Options struct {
	// Classes are the values of kubernetes.io/ingress.class for these Ingresses, and the names of their
	// IngressClasses while IngressClasses cannot be read. Without one, no Ingress is read.
	Classes []string
	// Controllers are the spec.controller of their IngressClasses.
	Controllers []string
	// Without lists the guards that the operator gives up: annotations without their prefix.
	Without []string
}

// An Ingress is the part of an Ingress that Read needs.
type Ingress struct {
	Annotations map[string]string
	Paths       []string
	Has         func(key string) bool // reports whether it sets a key of ours; nil if it sets none
}

// A Reading has the values that the annotations of an Ingress stand for.
type Reading struct {
	Notes    []Note             // one for each annotation, by name
	Said     []annotations.Said // of keys; at most one for each key
	Usual    []annotations.Said // the values of keys that nobody sets
	Problems []annotations.Problem
	Closed   bool // a guard cannot be kept
}

// A Verdict says how an annotation works here.
type Verdict string

// The verdicts. Only values have the last two.
const (
	Same    Verdict = "the same"
	Differs Verdict = "a difference"
	Nothing Verdict = "needs nothing"
	Lost    Verdict = "not served"
	Refused Verdict = "refused there too" // ingress-nginx does not accept the value either
	Void    Verdict = "had no effect"     // with ingress-nginx
)

// Expressions reports whether annotations make regular expressions of the paths.
func (r *Reading) Expressions() bool {
	return slices.ContainsFunc(r.Said, func(s annotations.Said) bool { return s.Key == pathType && s.Text == "regex" })
}

// plainPath matches the paths that ingress-nginx allows for the types Exact and Prefix.
var plainPath = regexp.MustCompile(`^/[[:alnum:]._\-/]*$`)

// Allows reports whether ingress-nginx accepts a path of a type, with its default strict-validate-path-type.
func Allows(pathType, path string) bool {
	return pathType != "Exact" && pathType != "Prefix" || path == "" || plainPath.MatchString(path)
}

// A Note says how one annotation of an Ingress works here.
type Note struct {
	Name  string // without the prefix
	Value string // empty for a snippet, which is never read
	Verdict
	Guard bool   // it may keep clients out
	Why   string // in a sentence; empty if there is nothing to say
}

// A Row describes an annotation.
type Row struct {
	Name string // without the prefix
	Verdict
	With  string // it has no effect without one of these annotations, which have commas between them; may be empty
	Keys  string // keys of ours that it stands for, with commas
	Note  string // the difference, or what to use instead
	Guard bool   // it may keep clients out

	// read translates the value. It is nil for an annotation that has no effect, and for one that the
	// reader of another annotation takes.
	read func(r *reading, value string)
}

// A reading is a Reading while it is made.
type reading struct {
	Reading
	Ingress
	without []string
	values  map[string]string // by the name of the annotation; those that can be read
	notes   map[string]Note   // by the name of the annotation; those that differ from their rows
	at      *Row              // the row of the value that is read now
	headers []string          // lines of request-set-header
	setsBy  string            // the annotation with the first of headers
}

// Read returns the values that the annotations of an Ingress stand for.
func (o *Options) Read(of Ingress) Reading {
	r := &reading{
		Ingress: of, without: o.Without, values: make(map[string]string), notes: make(map[string]Note),
	}
	names := make([]string, 0, len(of.Annotations))
	for full := range of.Annotations {
		if name, is := strings.CutPrefix(full, Prefix); is {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		r.take(name, strings.TrimSpace(of.Annotations[Prefix+name]))
	}
	for _, name := range slices.Sorted(maps.Keys(r.values)) {
		row, value := known[name], r.values[name]
		switch {
		case row.Verdict == Lost && (row.Guard || r.applies(row)):
			r.lose(row, value)
		case row.read != nil:
			r.at = row
			row.read(r, value)
		}
	}
	r.usual()
	if !slices.ContainsFunc(r.Said, func(s annotations.Said) bool { return s.Key == pathType }) {
		r.Said = append(r.Said, annotations.Said{Key: pathType, As: byDefault, Text: "begin"})
	}
	if len(r.headers) > 0 {
		r.say("request-set-header", r.setsBy, strings.Join(r.headers, "\n"))
	}
	for _, name := range names {
		r.Notes = append(r.Notes, r.note(name))
	}
	return r.Reading
}

// note returns how an annotation works here.
func (r *reading) note(name string) Note {
	row, note := known[name], r.notes[name]
	switch {
	case row == nil:
		note.Verdict, note.Why = Void, "ingress-nginx 1.15 does not read it"
	case note.Verdict != "":
	case !r.applies(row) && (!row.Guard || row.Verdict != Lost):
		note.Verdict, note.Why = Void, row.needs()
	default:
		note.Verdict, note.Why = row.Verdict, row.Note
		if canonical := aliases[name]; canonical != "" {
			note.Why = known[canonical].Note
		}
		if note.Verdict == Same {
			note.Why = "" // the row says what it is
		}
	}
	note.Name, note.Guard = name, row != nil && row.Guard
	if !slices.Contains(snippets, name) {
		note.Value = strings.TrimSpace(r.Annotations[Prefix+name])
	}
	return note
}

// mark makes the verdict on the value of an annotation another one than that of its row.
func (r *reading) mark(name string, verdict Verdict, why string) {
	r.notes[name] = Note{Verdict: verdict, Why: why}
}

// applies reports whether the Ingress has the annotations without which another one has no effect.
func (r *reading) applies(row *Row) bool {
	if row.With == "" {
		return true
	}
	for name := range strings.SplitSeq(row.With, ", ") {
		value, has := r.values[name]
		if off, err := boolean(value); has && (err != nil || off) {
			return true
		}
	}
	return false
}

// Needed returns the annotations without all of which another one has no effect, or nil.
func Needed(name string) []string {
	if row := known[name]; row != nil && row.With != "" {
		return strings.Split(row.With, ", ")
	}
	return nil
}

// needs returns a sentence with the annotations without which this one has no effect, or "".
func (row *Row) needs() string {
	if row.With == "" {
		return ""
	}
	return "It has no effect without " + either(row.With) + "."
}

// either returns names with commas as a choice in a sentence.
func either(names string) string {
	all := strings.Split(names, ", ")
	last := "`" + all[len(all)-1] + "`"
	if len(all) == 1 {
		return last
	}
	return "`" + strings.Join(all[:len(all)-1], "`, `") + "` or " + last
}

// Remark returns the Note, and the annotations without which this one has no effect.
func (row *Row) Remark() string {
	with := ""
	if row.With != "" {
		with = "With " + either(row.With) + ". "
	}
	return strings.TrimSpace(with + sentence(row.Note))
}

// sentence returns a note as a sentence of its own.
func sentence(note string) string {
	if note = strings.TrimSuffix(note, "."); note == "" {
		return ""
	}
	return strings.ToUpper(note[:1]) + note[1:] + "."
}

// longest is the number of bytes from which no value is read.
const longest = 4096

// take adds a value that can be read, and reports one that cannot, or a name that ingress-nginx has not.
func (r *reading) take(name, value string) {
	row := known[name]
	printable := !strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c > '~' })
	switch {
	case row == nil:
		r.report(name, "UnknownAnnotation", "annotation %s is unknown, and ingress-nginx 1.15 does not read it either",
			annotations.Quote(Prefix+name))
	case slices.Contains(snippets, name): // its text is not looked at
		r.values[name] = ""
	case len(value) > longest:
		r.fail(row, "it has %d bytes; at most %d are read", len(value), longest)
	case !printable:
		r.fail(row, "%s has a character that is not printable ASCII", annotations.Quote(value))
	default:
		r.values[name] = value
		if canonical := aliases[name]; canonical != "" {
			if _, both := r.Annotations[Prefix+canonical]; !both {
				r.values[canonical] = value
			} else {
				r.mark(name, Void, "The Ingress has `"+canonical+"`, which overrides it.")
			}
		}
	}
}

// report adds a problem of an annotation.
func (r *reading) report(name, reason, format string, args ...any) {
	r.Problems = append(r.Problems, annotations.Problem{
		Scope: annotations.Ingress, Reason: reason, Why: fmt.Sprintf(format, args...), As: Prefix + name,
	})
}

// say adds the value of a key. The first value of a key counts.
func (r *reading) say(key, name, value string) {
	if slices.ContainsFunc(r.Said, func(s annotations.Said) bool { return s.Key == key }) {
		return
	}
	if _, written := r.Annotations[Prefix+name]; !written {
		for older, canonical := range aliases {
			if canonical == name {
				name = older
			}
		}
	}
	r.Said = append(r.Said, annotations.Said{Key: key, As: Prefix + name, Text: value})
}

// set adds a header of the request, as servers see it.
func (r *reading) set(name, header, value string) {
	if r.setsBy == "" {
		r.setsBy = name
	}
	r.headers = append(r.headers, header+" "+value)
}

// fail reports a value that cannot be used. A guard closes the Ingress.
func (r *reading) fail(row *Row, format string, args ...any) {
	why := fmt.Sprintf(format, args...)
	r.mark(row.Name, Lost, why)
	switch {
	case !row.Guard:
		r.report(row.Name, "InvalidAnnotation", "annotation %s: %s; it is ignored", Prefix+row.Name, why)
	case r.overrides(row):
		r.report(row.Name, "UnusedAnnotation", "annotation %s: %s; it is ignored, since the Ingress sets %s itself",
			Prefix+row.Name, why, row.Keys)
		r.mark(row.Name, Differs, why+"; the Ingress sets "+row.Keys+" itself, which overrides it")
	case slices.Contains(r.without, row.Name):
		r.report(row.Name, "GuardGivenUp", "annotation %s: %s; it is ignored, since the configuration file gives it "+
			"up (clusters[].ingress.nginx.without)", Prefix+row.Name, why)
	default:
		r.Closed = true
		r.report(row.Name, "InvalidAnnotation", "annotation %s: %s; all clients are rejected until it is corrected",
			Prefix+row.Name, why)
	}
}

// refuse reports a value that ingress-nginx rejects, too.
func (r *reading) refuse(row *Row, format string, args ...any) {
	r.fail(row, format, args...)
	r.mark(row.Name, Refused, fmt.Sprintf(format, args...))
}

// overrides reports whether the Ingress sets all keys itself that an annotation stands for.
func (r *reading) overrides(row *Row) bool {
	if r.Has == nil || row.Keys == "" {
		return false
	}
	for key := range strings.SplitSeq(row.Keys, ", ") {
		if !r.Has(key) {
			return false
		}
	}
	return true
}

// lose reports an annotation that is not served. A guard closes the Ingress. A value that switches the
// annotation off loses nothing.
func (r *reading) lose(row *Row, value string) {
	if yes, err := boolean(value); err == nil && !yes {
		r.mark(row.Name, Same, "")
		return
	}
	switch {
	case !row.Guard:
		r.report(row.Name, "NotServed", "annotation %s has no effect here: %s", Prefix+row.Name, row.Note)
	case slices.Contains(r.without, row.Name):
		r.report(row.Name, "GuardGivenUp", "annotation %s has no effect here, and the configuration file gives it up "+
			"(clusters[].ingress.nginx.without): %s", Prefix+row.Name, row.Note)
	default:
		r.Closed = true
		r.report(row.Name, "GuardNotKept", "annotation %s may keep clients out, and has no effect here: %s. All "+
			"clients are rejected until it is removed, or given up in the configuration file "+
			"(clusters[].ingress.nginx.without: [%s])", Prefix+row.Name, row.Note, row.Name)
	}
}

// is reports whether the value of an annotation is true. An invalid value is reported and counts as
// not set.
func (r *reading) is(name string) bool {
	value, has := r.values[name]
	if !has {
		return false
	}
	yes, err := boolean(value)
	switch {
	case err != nil:
		r.refuse(known[name], "%v", err)
	case !yes:
		r.mark(name, Same, "")
	}
	return yes
}

const (
	byDefault = "the default of ingress-nginx"
	pathType  = "sallyport.dev/path-type"
)

// configMaps are the annotations that name a ConfigMap.
var configMaps = []string{"auth-proxy-set-headers", "custom-headers", "fastcgi-params-configmap"}

// Names reports whether annotations may name objects of a kind.
func Names(kind annotations.Kind, values map[string]string) bool {
	return kind != annotations.ConfigMapKind || slices.ContainsFunc(configMaps, func(name string) bool {
		_, has := values[Prefix+name]
		return has
	})
}

// usual adds the values that ingress-nginx uses where nobody sets an annotation. Keys of the
// ConfigMap override them.
func (r *reading) usual() {
	add := func(key, value string) {
		r.Usual = append(r.Usual, annotations.Said{Key: key, As: byDefault, Text: value})
	}
	add("ssl-redirect-code", "308")
	add("timeout-server", "60s")
	add("sallyport.dev/forwarded-headers", "true")
	if r.values["proxy-body-size"] != "0" {
		add("sallyport.dev/proxy-body-size", "1m")
	}
}

// Rows returns the annotations, by name.
func Rows() []Row {
	var all []Row
	for _, row := range rows {
		all = append(all, *row)
	}
	slices.SortFunc(all, func(a, b Row) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// known has the rows by name.
var known map[string]*Row

func init() { //nolint:gochecknoinits // the readers refer to the rows
	known = make(map[string]*Row, len(rows))
	for _, row := range rows {
		known[row.Name] = row
	}
}
