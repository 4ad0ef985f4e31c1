package haproxy

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// A direction says whether HAProxy fills in a value at the request or at the response.
type direction uint8

const (
	inRequest direction = 1 << iota
	inResponse
	inBoth = inRequest | inResponse
)

// A kind is the type of a sample, as far as it decides which converters may follow
// (HAProxy Configuration Manual, 7.1).
type kind uint8

const (
	aText kind = iota
	aNumber
	someBytes
	anAddress
	aMethod
)

// A form describes the arguments that a sample or converter may have between its parentheses.
type form struct {
	has func(string) bool
	say string // the arguments in words
}

// The forms allow only arguments that all versions of HAProxy accept with the same
// meaning. They bound the length of words and the size of numbers. No form names a
// variable, because variables of the process hold values that nobody may see.
var (
	noArgs     = form{matcher(`^$`), "no arguments"}
	nameArg    = form{matcher(`^` + argument + `?$`), "a name"}
	headerArgs = form{
		matcher(`^(` + argument + `(,(-10|-?[1-9]|[1-9][0-9]{1,2}))?)?$`),
		"a name and a position, from -10",
	}
	dnArgs = form{
		matcher(`^(` + argument + `(,-?[1-9][0-9]?(,rfc2253)?)?|,0,rfc2253)?$`),
		"an entry, a position and rfc2253; or ,0,rfc2253",
	}
	paramArgs  = form{matcher(`^(` + argument + `(,[A-Za-z0-9_.:/-])?)?$`), "a name and one character"}
	timeArgs   = form{matcher(`^(-?` + figures + `(,(s|ms|us))?)?$`), "a number, and s, ms or us"}
	limitArg   = form{matcher(`^([1-9][0-9]{0,8})?$`), "a number from 1"}
	slotArg    = form{matcher(`^([0-9]|1[0-5])$`), "a number from 0 to 15"}
	versionArg = form{matcher(`^4?$`), "4"}
	concatArgs = form{
		matcher(`^` + argument + `?(,,` + argument + `)?$`),
		"a text to append, and after two commas another one",
	}
	fieldArgs  = form{matcher(`^-?[1-9][0-9]{0,3},` + argument + `(,[0-9]{1,4})?$`), "a number, delimiters and a count"}
	bytesArgs  = form{matcher(`^` + figures + `(,` + figures + `)?$`), "an offset and a length"}
	charsArg   = form{matcher(`^` + argument + `$`), "characters"}
	divisorArg = form{matcher(`^[1-9][0-9]{0,8}$`), "a number from 1"}
	choiceArgs = form{matcher(`^` + argument + `,` + argument + `$`), "a text for true and one for false"}
	jsonArg    = form{matcher(`^(ascii|utf8|utf8s|utf8p|utf8ps)?$`), "ascii, utf8, utf8s, utf8p or utf8ps"}
	sha2Arg    = form{matcher(`^(224|256|384|512)?$`), "224, 256, 384 or 512"}
	flagArg    = form{matcher(`^[01]?$`), "0 or 1"}
	queryArg   = form{matcher(`^(query)?$`), "query"}
	utimeArgs  = form{matcher(`^` + argument + `(,-?` + figures + `)?$`), "a format and an offset"}
	seedArg    = form{matcher(`^(` + figures + `)?$`), "a number"}
)

const (
	argument = `[A-Za-z0-9_.:/-]{1,128}`
	figures  = `[0-9]{1,9}`
)

// A fetch is a sample that begins an expression.
type fetch struct {
	in    direction // when HAProxy has the sample
	args  form
	gives kind
}

// fetches are the samples that a value may have in "%[...]". They show data of the
// request, and nothing of the process, its environment or other backends.
var fetches = map[string]fetch{
	"base":            {inRequest, noArgs, aText},
	"capture.req.hdr": {inBoth, slotArg, aText},
	"capture.req.uri": {inBoth, noArgs, aText},
	"cookie":          {inBoth, nameArg, aText},
	"date":            {inBoth, timeArgs, aNumber},
	"dst":             {inBoth, noArgs, anAddress},
	"dst_port":        {inBoth, noArgs, aNumber},
	"fc_http_major":   {inBoth, noArgs, aNumber},
	"hdr":             {inBoth, headerArgs, aText},
	"method":          {inBoth, noArgs, aMethod},
	"path":            {inRequest, noArgs, aText},
	"pathq":           {inRequest, noArgs, aText},
	"query":           {inRequest, noArgs, aText},
	"rand":            {inBoth, limitArg, aNumber},
	"req.cook":        {inRequest, nameArg, aText},
	"req.fhdr":        {inRequest, headerArgs, aText},
	"req.hdr":         {inRequest, headerArgs, aText},
	"req.hdr_ip":      {inRequest, headerArgs, anAddress},
	"req.ver":         {inRequest, noArgs, aText},
	"res.cook":        {inResponse, nameArg, aText},
	"res.fhdr":        {inResponse, headerArgs, aText},
	"res.hdr":         {inResponse, headerArgs, aText},
	"src":             {inBoth, noArgs, anAddress},
	"src_port":        {inBoth, noArgs, aNumber},
	"ssl_c_der":       {inBoth, noArgs, someBytes},
	"ssl_c_i_dn":      {inBoth, dnArgs, aText},
	"ssl_c_s_dn":      {inBoth, dnArgs, aText},
	"ssl_c_serial":    {inBoth, noArgs, someBytes},
	"ssl_c_sha1":      {inBoth, noArgs, someBytes},
	"ssl_c_used":      {inBoth, noArgs, aNumber},
	"ssl_c_verify":    {inBoth, noArgs, aNumber},
	"ssl_fc":          {inBoth, noArgs, aNumber},
	"ssl_fc_alpn":     {inBoth, noArgs, aText},
	"ssl_fc_cipher":   {inBoth, noArgs, aText},
	"ssl_fc_has_crt":  {inBoth, noArgs, aNumber},
	"ssl_fc_protocol": {inBoth, noArgs, aText},
	"ssl_fc_sni":      {inBoth, noArgs, aText},
	"status":          {inResponse, noArgs, aNumber},
	"str":             {inBoth, nameArg, aText},
	"unique-id":       {inBoth, noArgs, aText},
	"url":             {inRequest, noArgs, aText},
	"url_param":       {inRequest, paramArgs, aText},
	"uuid":            {inBoth, versionArg, aText},
}

// A converter turns a sample into another sample.
type converter struct {
	args   form
	counts bool // it takes only a number, or a text that may be one
	gives  kind
}

// converters are the converters that may follow a fetch.
var converters = map[string]converter{
	"base64":    {noArgs, false, aText},
	"bytes":     {bytesArgs, false, someBytes},
	"concat":    {concatArgs, false, aText},
	"field":     {fieldArgs, false, aText},
	"hex":       {noArgs, false, aText},
	"host_only": {noArgs, false, aText},
	"http_date": {timeArgs, true, aText},
	"iif":       {choiceArgs, true, aText},
	"json":      {jsonArg, false, aText},
	"length":    {noArgs, false, aNumber},
	"lower":     {noArgs, false, aText},
	"ltrim":     {charsArg, false, aText},
	"mod":       {divisorArg, true, aNumber},
	"rtrim":     {charsArg, false, aText},
	"sha1":      {noArgs, false, someBytes},
	"sha2":      {sha2Arg, false, someBytes},
	"upper":     {noArgs, false, aText},
	"url_dec":   {flagArg, false, aText},
	"url_enc":   {queryArg, false, aText},
	"utime":     {utimeArgs, true, aText},
	"word":      {fieldArgs, false, aText},
	"xxh32":     {seedArg, false, aNumber},
}

// aliases are the log-format variables that may be used, after the "%". HAProxy
// has all of them in both directions.
var aliases = []string{"ci", "cp", "fi", "fp", "ID", "T", "t", "sslv", "sslc", "HM", "HP", "HU", "HV", "HQ"}

var call = regexp.MustCompile(`^([a-z][a-z0-9_.-]*)(?:\(([A-Za-z0-9_.,:/-]*)\))?$`)

// format writes a value as one word. HAProxy fills in its parts for each request or
// response: it is a log-format string (HAProxy Configuration Manual, 8.2.6). It may
// have text, "%%" for a percent sign, "%[...]" with samples, and aliases such as %ci.
func format(in direction, value string) (string, error) {
	rest := value
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
				return "", fmt.Errorf(`%s has a "%%[" that no "]" follows`, shown(value))
			}
			if err := checkSample(in, inside); err != nil {
				return "", err
			}
			rest = behind
		default:
			i := slices.IndexFunc(aliases, func(a string) bool {
				next := strings.TrimPrefix(after, a)
				return next != after && (next == "" || !isAlnum(next[0]))
			})
			if i < 0 {
				return "",
					fmt.Errorf(`%s has a "%%" without a meaning: write a percent sign as "%%%%", a sample as "%%[...]"`,
						shown(value))
			}
			rest = after[len(aliases[i]):]
		}
	}
	return quote(value)
}

// checkSample returns why HAProxy would reject the expression between "%[" and "]": a
// fetch, then converters.
func checkSample(in direction, expression string) error {
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
	var is kind
	for i, p := range append(parts, expression[part:]) {
		refuse := func(format string, args ...any) error {
			return fmt.Errorf("%s %s", shown(p), fmt.Sprintf(format, args...))
		}
		name, args := "", ""
		if m := call.FindStringSubmatch(p); m != nil {
			name, args = m[1], m[2]
		}
		var form form
		if i == 0 {
			f, known := fetches[name]
			switch {
			case !known:
				return refuse("is not an allowed sample: allowed are %s",
					names(fetches, func(f fetch) bool { return f.in&in != 0 }))
			case f.in&in == 0 && in == inRequest:
				return refuse("is a sample of the response, and the value is for the request: allowed are %s",
					names(fetches, func(f fetch) bool { return f.in&in != 0 }))
			case f.in&in == 0:
				return refuse("is a sample of the request, and the value is for the response: allowed are %s",
					names(fetches, func(f fetch) bool { return f.in&in != 0 }))
			}
			form, is = f.args, f.gives
		} else {
			c, known := converters[name]
			switch {
			case !known:
				return refuse("is not an allowed converter: allowed are %s",
					names(converters, func(converter) bool { return true }))
			case c.counts && is != aNumber && is != aText:
				return refuse("takes a number, and gets none in %s", shown(expression))
			}
			form, is = c.args, c.gives
		}
		if !form.has(args) {
			return refuse("has invalid arguments: %s takes %s", name, form.say)
		}
	}
	return nil
}

// names lists the keys of a table for which meant returns true.
func names[T any](table map[string]T, meant func(T) bool) string {
	list := slices.Sorted(maps.Keys(table))
	return strings.Join(slices.DeleteFunc(list, func(name string) bool { return !meant(table[name]) }), ", ")
}
