package nginx

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"sallyport/ingress/annotations"
)

// boolean reads a truth value as ingress-nginx does.
func boolean(s string) (bool, error) {
	yes, err := strconv.ParseBool(s)
	if err != nil {
		return false, fmt.Errorf(`%s is neither "true" nor "false"`, annotations.Quote(s))
	}
	return yes, nil
}

// number reads a whole number within bounds.
func number(s string, least, most int) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%s is not a number from %d to %d", annotations.Quote(s), least, most)
	}
	return n, nil
}

// seconds reads a time without a unit.
func seconds(s string) (int, error) { return number(s, 1, 1<<20) }

// text translates a text with variables of nginx. HAProxy fills in nothing but these.
func text(s string) (string, error) {
	if strings.ContainsAny(s, "\"'\\` ") {
		return "", fmt.Errorf("%s has a quote, a backslash or a space", annotations.Quote(s))
	}
	return annotations.Variables(s, nil)
}

// plain returns an error if a text has a variable of nginx.
func plain(s string) error {
	if strings.Contains(s, "$") {
		return errors.New("variables of nginx are not allowed")
	}
	return nil
}

var group = regexp.MustCompile(`\$[1-9]`)

// target translates the path of a rewrite. groups is the number of groups of the expression.
func target(s string, groups int) (string, error) {
	if strings.ContainsAny(s, "\"'\\` ?#") {
		return "", fmt.Errorf("%s has a quote, a backslash, a space, a ? or a #", annotations.Quote(s))
	}
	if strings.Contains(group.ReplaceAllString(s, ""), "$") {
		return "", fmt.Errorf("%s has a $ that no number of a group follows", annotations.Quote(s))
	}
	if !strings.HasPrefix(s, "/") && !strings.HasPrefix(s, "$") {
		return "", fmt.Errorf(`%s begins neither with "/" nor with a group`, annotations.Quote(s))
	}
	return group.ReplaceAllStringFunc(strings.ReplaceAll(s, "%", "%%"), func(of string) string {
		if n := int(of[1] - '0'); n > groups {
			return "" // as nginx has it
		}
		return `\` + of[1:]
	}), nil
}
