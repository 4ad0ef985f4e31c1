package haproxy

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A Format is a value in which HAProxy fills in parts when a request is there: a
// log-format string (HAProxy Configuration Manual, 8.2.6). ParseFormat makes
// one.
type Format struct{ word string }

// Fetches are the samples that a Format may have in "%[...]". The list holds
// what a request itself tells, and nothing of the process, of its environment,
// or of other backends.
var Fetches = []string{
	"base", "capture.req.hdr", "capture.req.uri", "cookie", "date", "dst", "dst_port", "fc_http_major", "hdr", "host_only", "http_date", "method", "path", "pathq", "query",
	"rand", "req.cook", "req.fhdr", "req.hdr", "req.hdr_ip", "req.ver", "res.cook", "res.fhdr", "res.hdr", "src", "src_port", "ssl_c_s_dn", "ssl_c_i_dn",
	"ssl_c_sha1", "ssl_c_serial", "ssl_c_used", "ssl_c_verify", "ssl_c_der", "ssl_fc", "ssl_fc_alpn", "ssl_fc_cipher", "ssl_fc_has_crt", "ssl_fc_protocol", "ssl_fc_sni",
	"status", "str", "unique-id", "url", "url_param", "uuid",
}

// converters are those that may follow a fetch.
var converters = []string{
	"base64", "concat", "field", "hex", "host_only", "http_date", "json", "length", "lower", "ltrim", "mod", "rtrim", "sha1", "sha2", "substr", "upper", "url_dec", "url_enc", "utime", "word", "xxh32",
}

// aliases are the log-format variables that may be used, after the "%".
var aliases = []string{"ci", "cp", "fi", "fp", "ID", "T", "t", "sslv", "sslc", "HM", "HP", "HU", "HV", "HQ"}

var sample = regexp.MustCompile(`^([a-z][a-z0-9_.-]*)(\([A-Za-z0-9_.,:/-]*\))?$`)

// ParseFormat checks text for use as a Format: letters, "%%" for a percent sign,
// "%[...]" with the samples of Fetches, and aliases such as %ci.
func ParseFormat(text string) (Format, error) {
	rest := text
	for {
		_, after, found := strings.Cut(rest, "%")
		if !found {
			break
		}
		switch {
		case strings.HasPrefix(after, "%"):
			rest = after[1:]
		case strings.HasPrefix(after, "["):
			inside, behind, closed := strings.Cut(after[1:], "]")
			if !closed {
				return Format{}, fmt.Errorf(`%s has a "%%[" that no "]" follows`, strconv.QuoteToASCII(clip(text)))
			}
			if err := checkSample(inside); err != nil {
				return Format{}, err
			}
			rest = behind
		default:
			i := slices.IndexFunc(aliases, func(a string) bool {
				next := strings.TrimPrefix(after, a)
				return next != after && (next == "" || !isAlnum(next[0]))
			})
			if i < 0 {
				return Format{}, fmt.Errorf(`%s has a "%%" that is not understood: a percent sign is written "%%%%", a value of the request "%%[...]"`, strconv.QuoteToASCII(clip(text)))
			}
			rest = after[len(aliases[i]):]
		}
	}
	word, err := quote(text)
	return Format{word}, err
}

// checkSample checks what stands between "%[" and "]": a fetch, then converters.
func checkSample(expression string) error {
	depth, part := 0, 0
	parts := []string{}
	for i, c := range expression {
		switch c {
		case '(':
			depth++
		case ')':
			depth--
		case ',':
			if depth == 0 {
				parts = append(parts, expression[part:i])
				part = i + 1
			}
		}
	}
	for i, p := range append(parts, expression[part:]) {
		known, kind := Fetches, "a sample that may be used here: allowed are "+strings.Join(Fetches, ", ")
		if i > 0 {
			known, kind = converters, "a converter that may be used here: allowed are "+strings.Join(converters, ", ")
		}
		m := sample.FindStringSubmatch(p)
		if m == nil || !slices.Contains(known, m[1]) {
			return fmt.Errorf("%s is not %s", strconv.QuoteToASCII(clip(p)), kind)
		}
	}
	return nil
}
