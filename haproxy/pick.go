package haproxy

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Pick sends requests of a Route to other Targets, by conditions. The first PickCase with a
// condition that holds applies. If no condition holds, the Route's own Target takes the request.
// Commands change Picks. Only the Forms of their conditions are in the Shape.
type Pick struct {
	Name  string // derived from the cases
	Cases []PickCase
	forms []*Form // of the cases, in their order
}

// A PickCase is a condition, and the Target of the requests for which it holds.
type PickCase struct {
	If When
	To Target
}

// When is a condition on a request. It holds if the method, all headers and all parameters of the
// query have these values.
type When struct {
	Method  string  // empty for all methods
	Headers []Field // each name once
	Params  []Field // each name once
}

// A Field is a header or a parameter, and the value that it has to have. The name of a header
// stands for all its spellings in upper and lower case.
type Field struct {
	Name    string
	Value   string
	Pattern bool // Value is a regular expression that has to match the whole value
}

// A Form says which parts of a request some conditions look at. HAProxy needs one look-up for each
// Form, and not for each condition.
type Form struct {
	Name     string   // derived from the rest
	Method   bool     // it looks at the method
	Headers  []string // names in lower case, sorted
	Params   []string // names, sorted
	Patterns bool     // its conditions have regular expressions
}

// Bounds of conditions.
const (
	MaxForms = 62 // each Form is a bit of a number in the map of routes
	// maxFields is the largest number of headers and parameters of one condition.
	maxFields = 32
	// maxKey is the largest key of a row, in bytes. The command that adds it fits into one line.
	maxKey = 8000
)

// NewPick makes a Pick, and derives its name from the cases.
func NewPick(cases []PickCase) *Pick {
	h := sha256.New()
	p := &Pick{Cases: cases}
	for _, c := range cases {
		form := c.If.Form()
		p.forms = append(p.forms, form)
		fmt.Fprintf(h, "%s %q %s\n", form.Name, c.If.values(), c.To)
	}
	p.Name = "p" + short(h)
	return p
}

// patterns reports whether a condition has regular expressions.
func (p *Pick) patterns() bool {
	return slices.ContainsFunc(p.forms, func(f *Form) bool { return f.Patterns })
}

// FormsOf returns the Forms that Picks need, sorted by Name, for Shape.Forms.
func FormsOf(picks []*Pick) []*Form {
	all := make(map[string]*Form)
	for _, p := range picks {
		for _, f := range p.forms {
			all[f.Name] = f
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b *Form) int { return strings.Compare(a.Name, b.Name) })
}

// Form returns the Form of a condition.
func (w When) Form() *Form {
	f := &Form{Method: w.Method != ""}
	for _, h := range w.sorted(w.Headers, strings.ToLower) {
		f.Headers, f.Patterns = append(f.Headers, h.Name), f.Patterns || h.Pattern
	}
	for _, p := range w.sorted(w.Params, strings.Clone) {
		f.Params, f.Patterns = append(f.Params, p.Name), f.Patterns || p.Pattern
	}
	f.Name = f.derived()
	return f
}

// derived returns the name that belongs to the content of a Form.
func (f *Form) derived() string {
	h := sha256.New()
	fmt.Fprintf(h, "%t %q %q %t", f.Method, f.Headers, f.Params, f.Patterns)
	return "f" + short(h)
}

// sorted returns fields by name, as a Form has them.
func (When) sorted(fields []Field, spelling func(string) string) []Field {
	all := slices.Clone(fields)
	for i := range all {
		all[i].Name = spelling(all[i].Name)
	}
	slices.SortFunc(all, func(a, b Field) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// fields returns the values of a condition, in the order of its Form: method, headers, parameters.
func (w When) fields() (all []Field) {
	if w.Method != "" {
		all = append(all, Field{Value: w.Method})
	}
	return slices.Concat(all, w.sorted(w.Headers, strings.ToLower), w.sorted(w.Params, strings.Clone))
}

// values returns the values of the fields.
func (w When) values() (all []string) {
	for _, f := range w.fields() {
		value := f.Value
		if f.Pattern {
			value = "~" + value
		} else {
			value = "=" + value
		}
		all = append(all, value)
	}
	return all
}

// Validate returns why HAProxy cannot look at the condition.
func (w When) Validate() error {
	if w.Method != "" && !token(w.Method) {
		return fmt.Errorf("%s is not a method: allowed are letters, digits, \"-\", \"_\" and \".\"", shown(w.Method))
	}
	if len(w.Headers)+len(w.Params) > maxFields {
		return fmt.Errorf("a condition looks at %d headers and parameters; at most %d are allowed",
			len(w.Headers)+len(w.Params), maxFields)
	}
	if w.Method == "" && len(w.Headers)+len(w.Params) == 0 {
		return errors.New("the condition looks at nothing: it needs a method, a header or a parameter")
	}
	size := len(w.Method)
	seen := make(map[string]bool)
	for i, f := range slices.Concat(w.sorted(w.Headers, strings.ToLower), w.sorted(w.Params, strings.Clone)) {
		key := fmt.Sprint(i < len(w.Headers), f.Name)
		switch {
		case !token(f.Name):
			return notAHeader(f.Name)
		case seen[key]:
			return fmt.Errorf("the condition has %s twice", shown(f.Name))
		case f.Value == "":
			return fmt.Errorf("the condition has no value for %s", shown(f.Name))
		case f.Pattern && checkRegexp(f.Value) != nil:
			return checkRegexp(f.Value)
		}
		seen[key] = true
		size += len(f.Value)
	}
	if f := w.Form(); 2*size > maxKey || f.Patterns && size > maxRegexp {
		return fmt.Errorf("the values of the condition have %d bytes; at most %d are allowed, and %d with a regular "+
			"expression", size, maxKey/2, maxRegexp)
	}
	return nil
}

// String returns the condition for people: "method GET, header a = \"1\"".
func (w When) String() string {
	var all []string
	if w.Method != "" {
		all = append(all, "method "+w.Method)
	}
	add := func(what string, fields []Field) {
		for _, f := range fields {
			is := " = "
			if f.Pattern {
				is = " ~ "
			}
			all = append(all, what+f.Name+is+shown(f.Value))
		}
	}
	add("header ", w.Headers)
	add("parameter ", w.Params)
	return strings.Join(all, ", ")
}

func pickName(p *Pick) string { return p.Name }
func formName(f *Form) string { return f.Name }

// validate returns why Render cannot write the Form.
func (f *Form) validate() error {
	for _, name := range slices.Concat(f.Headers, f.Params) {
		if !token(name) {
			return notAHeader(name)
		}
	}
	if f.Name != f.derived() || len(f.Headers)+len(f.Params) > maxFields {
		return fmt.Errorf("form %q is not from FormsOf, or has more than %d names", f.Name, maxFields)
	}
	return nil
}

// validate returns why Render cannot write the Pick, with these Forms.
func (p *Pick) validate(forms []*Form) error {
	var errs []error
	if len(p.forms) != len(p.Cases) {
		errs = append(errs, errors.New("it is not from NewPick"))
	}
	for i, c := range p.Cases {
		errs = append(errs, c.If.Validate(), c.To.validate())
		if i < len(p.forms) && byName(forms, p.forms[i].Name, formName) == nil {
			errs = append(errs, fmt.Errorf("case %d: the form of its condition is missing", i))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("pick %s: %w", p.Name, err)
	}
	return nil
}
