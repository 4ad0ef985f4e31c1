package haproxy

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A Choice sends requests of a Route to other backends, by conditions. The first Case with a
// condition that holds applies. If no condition holds, the Route's own Backend takes the request.
type Choice struct {
	Name  string // derived from the cases
	Cases []Case
}

// A Case is a backend, and the condition for it.
type Case struct {
	If      Text // a Condition
	Backend string
	Stay    Stay // makes the clients of Backend meet the condition; zero if nothing does
}

// A Stay is a cookie that clients get with the answers of the Backend of a Case, if the Backend has the directives of
// Choice.Stays. The condition of the Case is that they send it back. It holds only while the Backend has a server.
type Stay struct{ Cookie, Value string }

// line returns a line for the Stay, or "" if it is zero.
func (s Stay) line() string {
	if s == (Stay{}) {
		return ""
	}
	return s.Cookie + "=" + s.Value + "\n"
}

// NewStay returns a Case for the clients that a backend has answered before.
func NewStay(cookie, value, backend string) (Case, error) {
	when, err := CookieIs(cookie, value)
	if !token(value) {
		err = errors.Join(err, fmt.Errorf("%s is not the value of a cookie", shown(value)))
	}
	return Case{If: when, Backend: backend, Stay: Stay{cookie, value}}, err
}

// condition returns the condition of a Case for a rule of a frontend.
func (c Case) condition() string {
	if c.Stay == (Stay{}) {
		return c.If.lines
	}
	return c.If.lines + " { nbsrv(" + c.Backend + ") gt 0 }"
}

// Stays returns the directives that give the clients of the Choice their cookies, by the backend that needs them. The
// rules are in the backends and not in the frontends, so that no other request is compared with them.
func (c *Choice) Stays() map[string][]Directive {
	all := make(map[string][]Directive)
	for _, one := range c.Cases {
		if one.Stay == (Stay{}) {
			continue
		}
		chosen := " if { var(txn.choice) -m str " + c.Name + " }"
		other := chosen + " !{ var(txn.stay) -m str " + one.Stay.Value + " }"
		all[one.Backend] = append(all[one.Backend], Directive{phase: phaseResponse, text: strings.Join([]string{
			"http-request set-var(txn.stay) req.cook(" + one.Stay.Cookie + ")" + chosen,
			"http-response add-header Set-Cookie '" + one.Stay.Cookie + "=" + one.Stay.Value +
				"; Path=/; HttpOnly'" + other,
			"http-response add-header Cache-Control private" + other,
		}, "\n")})
	}
	return all
}

// NewChoice makes a choice, and derives its name from the cases.
func NewChoice(cases []Case) *Choice {
	h := sha256.New()
	for _, c := range cases {
		fmt.Fprintf(h, "%s\n%s\n%s", c.If.lines, c.Backend, c.Stay.line())
	}
	return &Choice{"c" + short(h), cases}
}

// HeaderIs returns a condition: a line of a header of the request has exactly this value.
func HeaderIs(name, value string) (Text, error) { return compare("req.fhdr", name, "str", value) }

// HeaderMatches returns a condition: a regular expression matches in a line of a header of the request.
func HeaderMatches(name, expression string) (Text, error) {
	if err := checkRegexp(expression); err != nil {
		return Text{}, err
	}
	return compare("req.fhdr", name, "reg", matchLimit+expression)
}

// CookieIs returns a condition: a cookie of the request has exactly this value.
func CookieIs(name, value string) (Text, error) { return compare("req.cook", name, "str", value) }

// compare returns a condition on a part of the request with a name.
func compare(sample, name, how, value string) (Text, error) {
	if !token(name) {
		return Text{}, fmt.Errorf("%s is not a name: allowed are letters, digits and - _ .", shown(name))
	}
	if value == "" || len(value) > maxCondition || value == "{" || value == "}" {
		return Text{}, fmt.Errorf("%s is not a value: allowed are 1 to %d bytes, and no single brace", shown(value),
			maxCondition)
	}
	value, err := quote(value)
	if err != nil {
		return Text{}, err
	}
	return Text{fieldSection, fmt.Sprintf("{ %s(%s) -m %s -- %s }", sample, name, how, value)}, nil
}

// maxTogether is the largest number of parts of a request that one Case looks at: HAProxy takes 64 words a
// line, and each part takes seven.
const maxTogether = 7

// Text returns the condition for a Case. It holds only for requests over TLS if tls is true.
func (w When) Text(tls bool) (Text, error) {
	if err := w.Validate(); err != nil {
		return Text{}, err
	}
	var parts []string
	size := 0
	add := func(sample string, f Field) error {
		how, value := "str", f.Value
		if f.Pattern {
			how, value = "reg", matchLimit+"^(?:"+f.Value+")$"
		}
		if value == "{" || value == "}" {
			return fmt.Errorf("%s is not a value here: HAProxy takes no single brace", shown(value))
		}
		size += len(sample) + len(value)
		value, err := quote(value)
		parts = append(parts, fmt.Sprintf("{ %s -m %s -- %s }", sample, how, value))
		return err
	}
	var errs []error
	if w.Method != "" {
		errs = append(errs, add("method,concat()", Field{Value: w.Method}))
	}
	for _, f := range w.Headers {
		errs = append(errs, add("req.fhdr("+f.Name+",-1)", f))
	}
	for _, f := range w.Params {
		errs = append(errs, add("url_param("+f.Name+"),url_dec(1)", f))
	}
	if len(parts) > maxTogether || size > maxCondition {
		errs = append(errs, fmt.Errorf("the condition looks at %d parts of a request, and has %d bytes; at most %d "+
			"and %d are allowed", len(parts), size, maxTogether, maxCondition))
	}
	if tls {
		parts = append(parts, "{ ssl_fc }")
	}
	return Text{fieldSection, strings.Join(parts, " ")}, errors.Join(errs...)
}

// comparing returns the names of the choices with a condition that may compare the path.
func (s *Shape) comparing() map[string]bool {
	names := make(map[string]bool)
	for _, c := range s.Choices {
		names[c.Name] = slices.ContainsFunc(c.Cases, func(one Case) bool { return one.If.section == routeSection })
	}
	return names
}

// choices validates the choices. HAProxy does not start with one that leads to a
// missing backend.
func (c *Config) choices() error {
	var errs []error
	for _, choice := range c.Choices {
		for _, one := range choice.Cases {
			_, found := BackendAt(c.Backends, one.Backend)
			if !found || one.If.section != routeSection && one.If.section != fieldSection {
				errs = append(errs, fmt.Errorf("choice %s: the backend %q does not exist, or has no condition",
					choice.Name, one.Backend))
			}
		}
	}
	return errors.Join(errs...)
}

// routeSection is the section of a Condition, which becomes part of a rule in a
// frontend.
const routeSection Section = "route"

// fieldSection is the section of a condition that looks at no path.
const fieldSection Section = "field"

// Bounds of a condition: HAProxy takes 64 words a line.
const (
	maxWords     = 40
	maxCondition = 2048 // bytes
)

// Condition parses a condition on a request: a sample, flags and patterns, as in "acl
// NAME ..." (HAProxy Configuration Manual, 7.1). It replaces "-f patterns/NAME" by the
// entries of that list. Vet tells whether HAProxy takes the condition.
func Condition(text string, list func(name string) ([]string, error)) (Text, error) {
	if len(text) > maxCondition {
		return Text{}, fmt.Errorf("the condition has %d bytes; at most %d are allowed", len(text), maxCondition)
	}
	words, err := splitWords(text)
	if err != nil {
		return Text{}, fmt.Errorf("%s: %w", shown(text), err)
	}
	for i := 0; i+1 < len(words); i++ {
		name, is := strings.CutPrefix(words[i+1], "patterns/")
		if words[i] != "-f" || !is {
			continue
		}
		entries, err := list(name)
		if err != nil {
			return Text{}, err
		}
		words = append(slices.Delete(words, i, i+2), entries...)
		i--
	}
	switch {
	case len(words) == 0:
		return Text{}, errors.New("the condition is empty")
	case len(words) > maxWords:
		return Text{}, fmt.Errorf("the condition has %d words, including those of its lists; at most %d are allowed",
			len(words), maxWords)
	}
	for i, w := range words {
		if w == "{" || w == "}" || w == "!" {
			return Text{}, fmt.Errorf("%s: a condition is a sample, flags and values, without braces and \"!\"",
				shown(text))
		}
		if words[i], err = quote(w); err != nil {
			return Text{}, err
		}
	}
	return Text{routeSection, "{ " + strings.Join(words, " ") + " }"}, nil
}

// listArgument matches "-f" and the list after it, but not at the beginning of a line,
// where the keyword stands.
var listArgument = regexp.MustCompile(`(\s)-f\s+patterns/(\S+)`)

// FillIn replaces each "-f patterns/NAME" in lines of HAProxy's configuration by the
// entries of that list.
func FillIn(lines string, list func(name string) ([]string, error)) (string, error) {
	var out strings.Builder
	var errs []error
	n := 0
	for line := range strings.Lines(lines) {
		n++
		if strings.HasPrefix(strings.TrimSpace(line), "#") {
			out.WriteString(line)
			continue
		}
		out.WriteString(listArgument.ReplaceAllStringFunc(line, func(found string) string {
			m := listArgument.FindStringSubmatch(found)
			entries, err := list(m[2])
			for i := range entries {
				if err == nil {
					entries[i], err = quote(entries[i])
				}
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("line %d: %w", n, err))
			}
			return m[1] + strings.Join(entries, " ")
		}))
	}
	return out.String(), errors.Join(errs...)
}

// splitWords splits a line into words as HAProxy does (HAProxy Configuration Manual,
// 2.2). It rejects environment variables, which HAProxy would fill in.
func splitWords(line string) (words []string, err error) {
	var word strings.Builder
	within, begun := byte(0), false
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case c < ' ' && c != '\t' || c == 0x7f:
			return nil, fmt.Errorf("the control character %q is not allowed", c)
		case within == '\'' && c != '\'':
			word.WriteByte(c)
		case c == '\\':
			if i++; i == len(line) {
				return nil, errors.New(`the "\" at the end escapes nothing`)
			}
			word.WriteByte(line[i])
			begun = true
		case c == within:
			within = 0
		case within == 0 && (c == '"' || c == '\''):
			within, begun = c, true
		case within == '"' && c == '$':
			return nil, errors.New(`write a "$" between single quotes`)
		case within == 0 && c == '#':
			return nil, errors.New(`write a "#" between quotes`)
		case within == 0 && (c == ' ' || c == '\t'):
			if begun {
				words = append(words, word.String())
			}
			word.Reset()
			begun = false
		default:
			word.WriteByte(c)
			begun = true
		}
	}
	if within != 0 {
		return nil, fmt.Errorf("the quote %c is not closed", within)
	}
	if begun {
		words = append(words, word.String())
	}
	return words, nil
}
