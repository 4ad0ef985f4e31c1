package haproxy

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"
	"sync"
)

// Bounds of a regular expression. PCRE2 compiles one into at most 64 kB, and
// nests groups at most 250 deep (pcre2limits): this many bytes and groups
// cannot come near, since no group is repeated by a number.
const (
	maxRegexp = 2000 // bytes
	maxGroups = 200
)

// matchLimit stands in front of every regular expression that is not ours. What
// Go matches in linear time PCRE2 may try in more ways than there is time for,
// in the thread that serves everybody: after that many steps it gives up, which
// counts as no match. It takes 40 ms to reach the limit that is there without.
const matchLimit = "(*LIMIT_MATCH=10000)"

// CheckPath returns why the path of a Route cannot be the regular expression s.
func CheckPath(s string) error {
	if !strings.HasPrefix(s, "/") {
		return fmt.Errorf(`%s does not begin with "/"`, strconv.QuoteToASCII(clip(s)))
	}
	if strings.Contains(s, " ") {
		return fmt.Errorf(`%s has a space, which no path has`, strconv.QuoteToASCII(clip(s)))
	}
	return checkRegexp(s)
}

// checkRegexp returns why s is not a regular expression that both Go and HAProxy's
// PCRE2 take, and take for the same. One that HAProxy does not take would keep
// it from reading its whole configuration.
func checkRegexp(s string) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%s is not a regular expression that can be used: %s", strconv.QuoteToASCII(clip(s)), fmt.Sprintf(format, args...))
	}
	if len(s) > maxRegexp {
		return refuse("it has %d bytes, allowed are %d", len(s), maxRegexp)
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
		return refuse("it has %d groups, allowed are %d", n, maxGroups)
	}
	if strings.Contains(s, "){") {
		return refuse("a group cannot be repeated by a number")
	}
	for rest, last := s, ""; rest != ""; {
		part := element.FindString(rest)
		switch {
		case strings.ContainsAny(rest[:1], "*+?{") && place.MatchString(last):
			return refuse("%s is a place, which cannot be repeated", last)
		case part == "(" && strings.HasPrefix(rest, "(?"):
			return refuse(`after "(?" only the flags i, m and s are allowed`)
		case len(part) > 3 && part[0] == '[' && strings.IndexByte(":.=", part[1]) >= 0 && part[len(part)-2] == part[1]:
			return refuse("%s stands for a class only within another [...]", part)
		case part != "":
		case rest[0] == '\\':
			return refuse(`after "\" only d D w W s S b B A z t n r f v, xHH and punctuation are allowed`)
		case rest[0] == '{':
			return refuse(`a "{" that is none of {2}, {2,} and {2,3} is written "\{"`)
		default:
			return refuse(`in "[...]" write a "[" as "\[", and a "-" beside a class like \d or [:alpha:] as "\-"`)
		}
		rest, last = rest[len(part):], part
	}
	return nil
}

// place is a part that matches no character.
var place = regexp.MustCompile(`^(?:[$^]|\\[bBAzZ]|\(\?.*\))$`)

// element is a part of a regular expression of which Go and PCRE2 think the
// same: an escape, a set of characters, the beginning of a group, or anything
// else that is no more than it seems to be.
var element = func() *regexp.Regexp {
	const (
		class  = `(?:\\[dDwWsS]|\[:\^?[a-z]+:\])`
		escape = `\\(?:[tnrfv]|x[0-9A-Fa-f]{2}|[!-/:-@\[-` + "`" + `{-~])`
		single = `(?:` + escape + `|[^\\\[\]-])`
		member = `(?:` + class + `|` + single + `(?:-` + single + `)?)`
		set    = `\[\^?[\]-]?` + member + `*-?\]`
	)
	return regexp.MustCompile(`^(?:\\[dDwWsSbBAz]|` + escape + `|` + set + `|\((?:\?[ims]*(?:-[ims]+)?[:)])?|\{[0-9]+(?:,[0-9]*)?\}|[^\\\[({])`)
}()

// matcher returns a function that reports whether a text has this form. It compiles
// the expression when the first text comes: a counted repetition takes long, and
// every command of the program would wait for it as it starts.
func matcher(form string) func(string) bool {
	compiled := sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(form) })
	return func(text string) bool { return compiled().MatchString(text) }
}
