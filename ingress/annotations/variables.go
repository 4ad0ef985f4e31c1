package annotations

import (
	"fmt"
	"regexp"
	"strings"

	"sallyport/haproxy"
)

var variable = regexp.MustCompile(`^(?:\{([a-z0-9_]+)\}|([a-z0-9_]+))`)

// CutVariable cuts the name of a variable of nginx from the text that follows its $.
func CutVariable(text string) (name, rest string, is bool) {
	m := variable.FindStringSubmatch(text)
	if m == nil {
		return "", text, false
	}
	return m[1] + m[2], text[len(m[0]):], true
}

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

// Variables translates a text with variables of nginx. HAProxy fills in nothing but these. own has the values of more
// variables, as HAProxy writes them.
func Variables(s string, own map[string]string) (string, error) {
	var b strings.Builder
	for rest := s; rest != ""; {
		plain, after, found := strings.Cut(rest, "$")
		b.WriteString(haproxy.Literal(plain))
		if !found {
			break
		}
		name, behind, is := CutVariable(after)
		if !is {
			return "", fmt.Errorf("%s has a $ that no variable follows", Quote(s))
		}
		value, has := own[name]
		if !has {
			of, err := sample(name)
			if err != nil {
				return "", err
			}
			value = "%[" + of + "]"
		}
		b.WriteString(value)
		rest = behind
	}
	return b.String(), nil
}
