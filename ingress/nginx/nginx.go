package nginx

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"sallyport/ingress/annotations"
)

// Prefix begins the name of each annotation.
const Prefix = "nginx.ingress.kubernetes.io/"

// Options say which Ingresses are read with the annotations of ingress-nginx.
type Options struct {
	// Class is the value of kubernetes.io/ingress.class for these Ingresses, and the name of their
	// IngressClass while IngressClasses cannot be read. If it is empty, no Ingress is read.
	Class string
	// Controller is the spec.controller of their IngressClasses.
	Controller string
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
	Said     []annotations.Said // of keys; at most one for each key
	Usual    []annotations.Said // the values of keys that nobody sets
	Problems []annotations.Problem
	Closed   bool // a guard cannot be kept
}

// A Verdict says how an annotation works here.
type Verdict string

// The verdicts.
const (
	Same    Verdict = "the same"
	Differs Verdict = "a difference"
	Nothing Verdict = "needs nothing"
	Lost    Verdict = "not served"
)

// A Row describes an annotation.
type Row struct {
	Name string // without the prefix
	Verdict
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
	at      *Row              // the row of the value that is read now
	headers []string          // lines of request-set-header
	setsBy  string            // the annotation with the first of headers
}

// Read returns the values that the annotations of an Ingress stand for.
func (o *Options) Read(of Ingress) Reading {
	r := &reading{Ingress: of, without: o.Without, values: make(map[string]string)}
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
		case row.Verdict == Lost:
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
	return r.Reading
}

// longest is the number of bytes from which no value is read.
const longest = 4096

// take adds a value that can be read, and reports one that cannot, or a name that ingress-nginx has not.
func (r *reading) take(name, value string) {
	row := known[name]
	printable := !strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c > '~' })
	switch {
	case row == nil:
		r.report("UnknownAnnotation", "annotation %s is unknown, and ingress-nginx 1.15 does not read it either",
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
			}
		}
	}
}

func (r *reading) report(reason, format string, args ...any) {
	r.Problems = append(r.Problems, annotations.Problem{
		Scope: annotations.Ingress, Reason: reason, Why: fmt.Sprintf(format, args...),
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
	switch {
	case !row.Guard:
		r.report("InvalidAnnotation", "annotation %s: %s; it is ignored", Prefix+row.Name, why)
	case r.overrides(row):
		r.report("UnusedAnnotation", "annotation %s: %s; it is ignored, since the Ingress sets %s itself",
			Prefix+row.Name, why, row.Keys)
	case slices.Contains(r.without, row.Name):
		r.report("GuardGivenUp", "annotation %s: %s; it is ignored, since the configuration file gives it up "+
			"(clusters[].ingress.nginx.without)", Prefix+row.Name, why)
	default:
		r.Closed = true
		r.report("InvalidAnnotation", "annotation %s: %s; all clients are rejected until it is corrected",
			Prefix+row.Name, why)
	}
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
	if off, err := boolean(value); err == nil && !off {
		return
	}
	switch {
	case !row.Guard:
		r.report("NotServed", "annotation %s has no effect here: %s", Prefix+row.Name, row.Note)
	case slices.Contains(r.without, row.Name):
		r.report("GuardGivenUp", "annotation %s has no effect here, and the configuration file gives it up "+
			"(clusters[].ingress.nginx.without): %s", Prefix+row.Name, row.Note)
	default:
		r.Closed = true
		r.report("GuardNotKept", "annotation %s may keep clients out, and has no effect here: %s. All clients are "+
			"rejected until it is removed, or given up in the configuration file "+
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
	if err != nil {
		r.fail(known[name], "%v", err)
	}
	return yes
}

const (
	byDefault = "the default of ingress-nginx"
	pathType  = "sallyport.dev/path-type"
)

// usual adds the values that ingress-nginx uses where nobody sets an annotation. Keys of the
// ConfigMap override them.
func (r *reading) usual() {
	add := func(key, value string) {
		r.Usual = append(r.Usual, annotations.Said{Key: key, As: byDefault, Text: value})
	}
	add("ssl-redirect-code", "308")
	add("timeout-server", "60s")
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
