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

var variable = regexp.MustCompile(`^(?:\{([a-z0-9_]+)\}|([a-z0-9_]+))`)

// samples are the samples of HAProxy with the value of a variable of nginx. The frontends set
// X-Forwarded-Proto to the scheme of the request.
var samples = map[string]string{ //nolint:gosec // no credentials
	"host":                "req.hdr(host),host_only,lower",
	"best_http_host":      "req.hdr(host)",
	"http_host":           "req.hdr(host)",
	"request_uri":         "pathq",
	"escaped_request_uri": "pathq,url_enc",
	"uri":                 "path",
	"document_uri":        "path",
	"scheme":              "req.hdr(x-forwarded-proto)",
	"pass_access_scheme":  "req.hdr(x-forwarded-proto)",
	"remote_addr":         "src",
	"binary_remote_addr":  "src",
	"args":                "query",
	"query_string":        "query",
	"request_method":      "method",
	"server_port":         "dst_port",
	"request_id":          "uuid",
	"req_id":              "uuid",
}

// sample returns the sample with the value of a variable.
func sample(name string) (string, error) {
	if s, has := samples[name]; has {
		return s, nil
	}
	for prefix, form := range map[string]string{
		"http_": "req.hdr(%s)", "cookie_": "req.cook(%s)", "arg_": "url_param(%s)",
	} {
		if rest, is := strings.CutPrefix(name, prefix); is && rest != "" {
			if prefix == "http_" {
				rest = strings.ReplaceAll(rest, "_", "-")
			}
			return fmt.Sprintf(form, rest), nil
		}
	}
	return "", fmt.Errorf("the variable $%s of nginx has no equal here", name)
}

// text translates a text with variables of nginx. HAProxy fills in nothing but these.
func text(s string) (string, error) {
	if strings.ContainsAny(s, "\"'\\` ") {
		return "", fmt.Errorf("%s has a quote, a backslash or a space", annotations.Quote(s))
	}
	var b strings.Builder
	for rest := s; rest != ""; {
		plain, after, found := strings.Cut(rest, "$")
		b.WriteString(strings.ReplaceAll(plain, "%", "%%"))
		if !found {
			break
		}
		m := variable.FindStringSubmatch(after)
		if m == nil {
			return "", fmt.Errorf("%s has a $ that no variable follows", annotations.Quote(s))
		}
		of, err := sample(m[1] + m[2])
		if err != nil {
			return "", err
		}
		b.WriteString("%[" + of + "]")
		rest = after[len(m[0]):]
	}
	return b.String(), nil
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
