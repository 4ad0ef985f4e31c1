package haproxy

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
	"sync"
)

// Bounds of a regular expression. PCRE2 compiles an expression into at most 64 kB, and
// nests groups at most 250 deep (pcre2limits). An expression within these bounds cannot
// reach those limits, because it repeats no group by a number.
const (
	maxRegexp = 2000 // bytes
	maxGroups = 200
)

// matchLimit precedes every regular expression that a user wrote. PCRE2 can take exponential time
// for an expression that Go matches in linear time. The thread also serves other clients. After
// this many steps PCRE2 gives up, and the expression does not match. PCRE2 takes 40 ms to reach its
// default limit.
const matchLimit = "(*LIMIT_MATCH=10000)"

// CheckPath returns why s cannot be the path of a Regexp Route.
func CheckPath(s string) error {
	if !strings.HasPrefix(s, "/") {
		return fmt.Errorf(`%s does not begin with "/"`, shown(s))
	}
	if strings.Contains(s, " ") {
		return fmt.Errorf(`%s has a space, which a path cannot have`, shown(s))
	}
	return checkRegexp(s)
}

// checkRegexp returns why s is not a regular expression that Go and HAProxy's PCRE2
// both accept with the same meaning. If PCRE2 rejects an expression, HAProxy rejects
// its whole configuration.
func checkRegexp(s string) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%s is not a usable regular expression: %s", shown(s), fmt.Sprintf(format, args...))
	}
	if len(s) > maxRegexp {
		return refuse("it has %d bytes; at most %d are allowed", len(s), maxRegexp)
	}
	if i := strings.IndexFunc(s, func(c rune) bool { return c < ' ' || c > '~' }); i >= 0 {
		return refuse("only printable ASCII characters are allowed")
	}
	_, err := syntax.Parse(s, syntax.Perl)
	if wrong := (*syntax.Error)(nil); errors.As(err, &wrong) {
		return refuse("%s", wrong.Code)
	} else if err != nil {
		return refuse("%v", err)
	}
	if n := strings.Count(s, "("); n > maxGroups {
		return refuse("it has %d groups; at most %d are allowed", n, maxGroups)
	}
	if strings.Contains(s, "){") {
		return refuse("a group cannot be repeated by a number")
	}
	for rest, last := s, ""; rest != ""; {
		part := element.FindString(rest)
		switch {
		case strings.ContainsAny(rest[:1], "*+?{") && place.MatchString(last):
			return refuse("%s matches a position, which cannot be repeated", last)
		case part == "(" && strings.HasPrefix(rest, "(?"):
			return refuse(`after "(?" only the flags i, m and s are allowed`)
		case len(part) > 3 && part[0] == '[' && strings.IndexByte(":.=", part[1]) >= 0 && part[len(part)-2] == part[1]:
			return refuse("%s is a class only within another [...]", part)
		case part != "":
		case rest[0] == '\\':
			return refuse(`after "\" only d D w W s S b B A z t n r f v, xHH and punctuation are allowed`)
		case rest[0] == '{':
			return refuse(`write a "{" that does not begin {2}, {2,} or {2,3} as "\{"`)
		default:
			return refuse(`in "[...]" write a "[" as "\[", and a "-" beside a class like \d or [:alpha:] as "\-"`)
		}
		rest, last = rest[len(part):], part
	}
	return nil
}

// place matches an element that matches a position between characters.
var place = regexp.MustCompile(`^(?:[$^]|\\[bBAzZ]|\(\?.*\))$`)

// element matches one element of a regular expression that means the same to Go and PCRE2. An
// element is an escape, a set of characters, the beginning of a group, a repetition, or any other
// single character.
var element = func() *regexp.Regexp {
	const (
		class  = `(?:\\[dDwWsS]|\[:\^?[a-z]+:\])`
		escape = `\\(?:[tnrfv]|x[0-9A-Fa-f]{2}|[!-/:-@\[-` + "`" + `{-~])`
		single = `(?:` + escape + `|[^\\\[\]-])`
		member = `(?:` + class + `|` + single + `(?:-` + single + `)?)`
		set    = `\[\^?[\]-]?` + member + `*-?\]`
	)
	return regexp.MustCompile(`^(?:\\[dDwWsSbBAz]|` + escape + `|` + set +
		`|\((?:\?[ims]*(?:-[ims]+)?[:)])?|\{[0-9]+(?:,[0-9]*)?\}|[^\\\[({])`)
}()

// matcher returns a function that reports whether a text has this form. It compiles the
// expression at the first text: compiling a counted repetition takes long, and would
// delay the start of every command of the program.
func matcher(form string) func(string) bool {
	compiled := sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(form) })
	return func(text string) bool { return compiled().MatchString(text) }
}
