package annotations

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"sallyport/haproxy"
)

func boolean(s string) (bool, error) {
	switch strings.ToLower(s) {
	case "true", "enabled", "on", "yes", "1":
		return true, nil
	case "false", "disabled", "off", "no", "0":
		return false, nil
	}
	return false, fmt.Errorf(`%s is neither "true" nor "false"`, Quote(s))
}

// Quote returns an unchecked value that is short and safe to print.
func Quote(s string) string {
	const longest = 80
	if len(s) > longest {
		s = s[:longest] + "..."
	}
	return strconv.QuoteToASCII(s)
}

// number reads a whole number within bounds.
func number(least, most int) func(string) (int, error) {
	return func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err != nil || n < least || n > most {
			return 0, fmt.Errorf("%s is not a number from %d to %d", Quote(s), least, most)
		}
		return n, nil
	}
}

// units are those of HAProxy's times (Configuration Manual, 2.5).
var units = []struct {
	suffix string
	unit   time.Duration
}{
	{"us", time.Microsecond},
	{"ms", time.Millisecond},
	{"s", time.Second},
	{"m", time.Minute},
	{"h", time.Hour},
	{"d", 24 * time.Hour},
	{"", time.Millisecond},
}

// duration reads a time as HAProxy does: a whole number and a unit. The unit is milliseconds if it
// is missing.
func duration(s string) (time.Duration, error) {
	for _, u := range units {
		digits, has := strings.CutSuffix(s, u.suffix)
		if !has {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 32)
		if err != nil {
			continue
		}
		if d := float64(n) * float64(u.unit); d > float64(math.MaxInt32)*float64(time.Millisecond) {
			return 0, fmt.Errorf("%s is longer than HAProxy's timers go, 24 days", Quote(s))
		}
		return time.Duration(n) * u.unit, nil
	}
	return 0, fmt.Errorf("%s is not a time: a whole number and one of us, ms, s, m, h, d, as 50s", Quote(s))
}

// period reads a duration of at least one millisecond.
func period(s string) (time.Duration, error) {
	d, err := duration(s)
	if err == nil && d < time.Millisecond {
		err = fmt.Errorf("%s is shorter than 1ms", Quote(s))
	}
	return d, err
}

// A reduced error comes with a value that replaces the value of the user.
type reduced struct{ error }

// atLeast reads a duration. It replaces one of an Ingress or a Service that is shorter than
// least.
func atLeast(least time.Duration) func(Env, Scope, string) (time.Duration, error) {
	return func(_ Env, scope Scope, s string) (time.Duration, error) {
		d, err := duration(s)
		if err == nil && scope != ConfigMap && d < least {
			d, err = least, reduced{fmt.Errorf("%s is shorter than %s, which is used instead; "+
				"only the ConfigMap may set less", Quote(s), least)}
		}
		return d, err
	}
}

// atMost reads a duration. It replaces one of an Ingress or a Service that is longer than most.
func atMost(
	most time.Duration, read func(string) (time.Duration, error),
) func(Env, Scope, string) (time.Duration, error) {
	return func(_ Env, scope Scope, s string) (time.Duration, error) {
		d, err := read(s)
		if err == nil && scope != ConfigMap && d > most {
			d, err = most, reduced{fmt.Errorf("%s is longer than %s, which is used instead; "+
				"only the ConfigMap may set more", Quote(s), most)}
		}
		return d, err
	}
}

// size reads the number of entries of a table.
func size(s string) (int, error) {
	n, err := volume(s)
	if err == nil && n > 1<<30 {
		err = fmt.Errorf("%s is more than 1g", Quote(s))
	}
	return n, err
}

// volume reads a number with k, m or g, which are 1024 and its powers
// (Configuration Manual, 2.5).
func volume(s string) (int, error) {
	digits, factor := s, 1
	for suffix, f := range map[string]int{"k": 1 << 10, "m": 1 << 20, "g": 1 << 30} {
		if d, has := strings.CutSuffix(strings.ToLower(s), suffix); has {
			digits, factor = d, f
		}
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n < 1 || n > 1<<40/factor {
		return 0, fmt.Errorf("%s is not a number from 1 to 1024g, with k, m or g at its end", Quote(s))
	}
	return n * factor, nil
}

// rate reads bytes a second, at most 1g.
func rate(s string) (int, error) {
	n, err := volume(s)
	if err == nil && n > 1<<30 {
		err = fmt.Errorf("%s is more than 1g", Quote(s))
	}
	return n, err
}

// defineClients makes a key for networks of clients, or for the name of a list of networks. A list
// belongs to the operator, and may have any length.
func defineClients(d Doc) key[haproxy.Networks] {
	d.Refers, d.Format = ListKind, "addresses and networks, with commas; or `patterns/NAME`"
	return defineIn(func(e Env, scope Scope, text string) (n haproxy.Networks, err error) {
		name, is := listed(text)
		if is {
			entries, err := e.entries(name)
			if err != nil {
				return n, err
			}
			n.List, text = e.Cluster+"_"+name, strings.Join(entries, ",")
		}
		n.Of, err = Networks(text)
		if err == nil && !is && scope != ConfigMap && e.Entries > 0 && len(n.Of) > e.Entries {
			err = fmt.Errorf("it has %d addresses and networks; allowed are %d "+
				"(clusters[].ingress.limits.listEntries), or a list of the operator, as patterns/NAME", len(n.Of),
				e.Entries)
		}
		return n, err
	}, d)
}

// everyone reports whether networks are all that there are, so that a list of them allows every client.
// A list of the operator may change without the backend, and therefore counts as a list of some.
func everyone(n haproxy.Networks) bool {
	all := func(a netip.Addr) bool { return slices.Contains(n.Of, netip.PrefixFrom(a, 0)) }
	return n.List == "" && all(netip.IPv4Unspecified()) && all(netip.IPv6Unspecified())
}

// Networks reads addresses and networks with commas or spaces between. A list of a pattern file is an error.
func Networks(s string) ([]netip.Prefix, error) {
	if _, is := listed(s); is {
		return nil, errors.New("pattern files are not supported: write the addresses themselves")
	}
	var all []netip.Prefix
	for _, word := range strings.FieldsFunc(s, func(c rune) bool {
		return c == ',' || c == ' ' || c == '\t' || c == '\n' || c == '\r'
	}) {
		p, err := netip.ParsePrefix(word)
		if a, aerr := netip.ParseAddr(word); err != nil && aerr == nil && a.Zone() == "" {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s is neither an address nor a network", Quote(word))
		}
		all = append(all, p.Masked())
	}
	if len(all) == 0 {
		return nil, errors.New("it names no address")
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all), nil
}

// headers reads one header from each line: its name, then its value, which may be
// quoted.
func headers(set func(name, value string) (haproxy.Directive, error)) func(string) ([]haproxy.Directive, error) {
	return lines(func(line string) (haproxy.Directive, error) {
		name, value, err := header(line)
		if err != nil {
			return haproxy.Directive{}, err
		}
		return set(name, value)
	})
}

// header reads the name and the value of a header.
func header(line string) (name, value string, err error) {
	name, rest, _ := strings.Cut(line, " ")
	if value = unquote(strings.TrimSpace(rest)); value == "" {
		err = fmt.Errorf("%s has no value", Quote(line))
	}
	return name, value, err
}

// retryWords reads the failures and statuses after which a request is sent again.
func retryWords(s string) (on []string, err error) {
	for word := range strings.SplitSeq(s, ",") {
		on = append(on, strings.TrimSpace(word))
	}
	_, err = haproxy.RetryOn(0, on)
	return on, err
}

// replaces reads the text that is replaced, and the one that replaces it. It returns no directive for off.
func replaces(with func(from, to string) (haproxy.Directive, error)) func(string) ([]haproxy.Directive, error) {
	return func(s string) ([]haproxy.Directive, error) {
		words := strings.Fields(s)
		if s == "off" {
			return nil, nil
		} else if len(words) != 2 {
			return nil, fmt.Errorf("%s: want two words, or off", Quote(s))
		}
		d, err := with(words[0], words[1])
		return []haproxy.Directive{d}, err
	}
}

// captureList reads one sample from each line. The first sample has slot 0, the second has slot 1.
func captureList(s string) ([]haproxy.Directive, error) {
	const most = 16
	slot := 0
	return lines(func(line string) (haproxy.Directive, error) {
		if slot++; slot > most {
			return haproxy.Directive{}, fmt.Errorf("more than %d samples", most)
		}
		return haproxy.Capture(line, slot-1)
	})(s)
}

// filled rejects an empty value, with or without quotes, before read sees it: HAProxy
// ends its line at an empty word.
func filled[T any](read func(string) (T, error)) func(string) (T, error) {
	return func(s string) (value T, err error) {
		if unquote(s) == "" {
			return value, errors.New("it is empty")
		}
		return read(s)
	}
}

// rewrite reads a regular expression and the path that replaces its match. If there is only a path,
// it replaces every path.
func rewrite(line string) (change haproxy.PathRewrite, err error) {
	words := strings.Fields(line)
	if slices.ContainsFunc(words, func(word string) bool { return unquote(word) == "" }) {
		return change, fmt.Errorf("%s has an empty word", Quote(line))
	}
	switch len(words) {
	case 1:
		words = []string{"(.*)", words[0]}
	case 2:
	default:
		return change, fmt.Errorf("%s: want a path, or a regular expression and a path", Quote(line))
	}
	change = haproxy.PathRewrite{Match: unquote(words[0]), Value: unquote(words[1])}
	_, err = haproxy.ReplacePath(change.Match, change.Value)
	return change, err
}

// maxLines bounds the lines of one value. Each request runs through all lines, in a thread that
// also serves the requests of other hosts.
const maxLines = 64

// lines returns a function that reads one value from each line.
func lines[T any](read func(string) (T, error)) func(string) ([]T, error) {
	return func(s string) ([]T, error) {
		var all []T
		for line := range strings.Lines(s) {
			if line = strings.TrimSpace(line); line == "" {
				continue
			}
			if len(all) == maxLines {
				return nil, fmt.Errorf("it has more than %d lines", maxLines)
			}
			one, err := read(line)
			if err != nil {
				return nil, err
			}
			all = append(all, one)
		}
		if len(all) == 0 {
			return nil, errors.New("it is empty")
		}
		return all, nil
	}
}

// defineLines makes a key that has one directive on each line of its value.
func defineLines[T any](read func(string) ([]T, error), d Doc) key[[]T] {
	return defineIn(func(e Env, scope Scope, s string) ([]T, error) {
		all, err := read(s)
		if most := e.most(scope); err == nil && len(all) > most {
			err = fmt.Errorf("it has %d lines; allowed are %d (clusters[].ingress.limits.lines)", len(all), most)
		}
		return all, err
	}, d)
}

// most returns how many lines a value may have in a scope.
func (e *Env) most(scope Scope) int {
	if scope == ConfigMap || e.Lines <= 0 {
		return maxLines
	}
	return min(e.Lines, maxLines)
}

// httpCheck reads "URI", "METHOD URI" or "METHOD URI VERSION".
func httpCheck(s string) (haproxy.Directive, error) {
	switch words := strings.Fields(s); len(words) {
	case 1:
		return haproxy.HTTPCheck("", words[0], "")
	case 2:
		return haproxy.HTTPCheck(words[0], words[1], "")
	case 3:
		return haproxy.HTTPCheck(words[0], words[1], words[2])
	}
	return haproxy.Directive{},
		fmt.Errorf("%s: want a URI, a method and a URI, or a method, a URI and a version", Quote(s))
}

// origin checks a regular expression for origins, or "*".
func origin(s string) (string, error) {
	_, err := haproxy.CORS{Origin: s}.Directives()
	return s, err
}

// A target is the scheme and the host of a redirect. An empty scheme keeps that of the
// request.
type target struct{ scheme, authority string }

func location(s string) (target, error) {
	scheme, authority, has := strings.Cut(s, "://")
	if !has {
		scheme, authority = "", s
	}
	_, err := haproxy.Redirect(scheme, authority, 302)
	return target{scheme, authority}, err
}

// url reads the target of a redirect.
func url(s string) (string, error) {
	_, err := haproxy.RedirectTo(s, 302)
	return s, err
}

// cookie reads the name of a cookie.
func cookie(s string) (string, error) {
	_, err := haproxy.Cookie{Name: s}.Directive()
	return s, err
}

func cookieDomainName(s string) (string, error) {
	_, err := haproxy.Cookie{Name: "any", Domain: s}.Directive()
	return s, err
}

func cookiePath(s string) (string, error) {
	_, err := haproxy.Cookie{Name: "any", Path: s}.Directive()
	if s == "" {
		err = errors.New("the path is empty")
	}
	return s, err
}

func sameSite(s string) (string, error) {
	switch s {
	case "true":
		return "None", nil
	case "false":
		return "", nil
	}
	_, err := haproxy.Cookie{Name: "any", SameSite: s}.Directive()
	return s, err
}

// cookieWords reads the keywords of HAProxy's cookie statement that a user may choose.
func cookieWords(s string) (c haproxy.Cookie, err error) {
	words := strings.Fields(s)
	for i := 0; i < len(words) && err == nil; i++ {
		switch words[i] {
		case "httponly":
			c.HTTPOnly = true
		case "secure":
			c.Secure = true
		case "indirect", "nocache", "insert", "dynamic": // always set
		case "maxidle", "maxlife":
			if i+1 == len(words) {
				return c, fmt.Errorf("%s: no time follows %s", Quote(s), words[i])
			}
			d := &c.MaxIdle
			if words[i] == "maxlife" {
				d = &c.MaxLife
			}
			i++
			*d, err = duration(words[i])
		default:
			return c, fmt.Errorf("%s is not one of httponly, secure, maxidle TIME, maxlife TIME", Quote(words[i]))
		}
	}
	return c, err
}

// status returns a function that reads one of the allowed status codes.
func status(allowed []int) func(string) (int, error) {
	return func(s string) (int, error) {
		code, err := strconv.Atoi(s)
		if err != nil || !slices.Contains(allowed, code) {
			return 0, fmt.Errorf("%s is not one of %s", Quote(s), strings.Trim(fmt.Sprint(allowed), "[]"))
		}
		return code, nil
	}
}

// unquote removes quotes around a whole value. In HAProxy's own configuration they
// make one word of the value.
func unquote(s string) string {
	if len(s) >= 2 && (s[0] == '"' || s[0] == '\'') && s[len(s)-1] == s[0] && strings.Count(s, s[:1]) == 2 {
		return s[1 : len(s)-1]
	}
	return s
}

func oneOf(words ...string) func(string) (string, error) {
	return func(s string) (string, error) {
		if !slices.Contains(words, s) {
			return "", fmt.Errorf("%s: allowed are %s", Quote(s), strings.Join(words, ", "))
		}
		return s, nil
	}
}

// words returns a function that reads words with commas between them, and joins them with between.
func words(read func(string) (string, error), between string) func(string) (string, error) {
	return func(s string) (string, error) {
		var all []string
		for word := range strings.SplitSeq(s, ",") {
			word, err := read(strings.TrimSpace(word))
			if err != nil {
				return "", err
			}
			all = append(all, word)
		}
		return strings.Join(all, between), nil
	}
}

func methods(s string) (string, error) {
	if s == "*" {
		return s, nil
	}
	known := oneOf(http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodHead,
		http.MethodConnect, http.MethodOptions, http.MethodTrace, http.MethodPatch)
	return words(known, ", ")(strings.ToUpper(s))
}

func headerNames(s string) (string, error) {
	if s == "*" {
		return s, nil
	}
	return words(func(name string) (string, error) {
		_, err := haproxy.SetRequestHeader(name, "")
		return name, err
	}, ", ")(s)
}

func hostFormat(s string) (haproxy.Directive, error) { return haproxy.SetHost(unquote(s)) }
