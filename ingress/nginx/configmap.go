package nginx

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sallyport/ingress/annotations"
)

// A Setting describes a key of the ConfigMap of ingress-nginx.
type Setting struct {
	Name string // in the table, several names of one meaning have commas between them
	Verdict
	Keys  string // keys of our ConfigMap that do the same, with commas
	Note  string // the difference, or what to use instead
	Guard bool   // it may keep clients out

	as    string                      // the annotation that means the same; empty if there is none
	form  form                        // of the values that ingress-nginx accepts
	usual string                      // the value for which nothing has to be done
	read  func(c *conf, value string) // writes keys of ours; nil writes none
}

// A form says which values of a key ingress-nginx accepts. It uses its default in place of others.
type form int

const (
	words form = iota // any text
	truth             // true or false
	count             // a whole number
)

// fault returns why ingress-nginx does not accept a value, or the value in its usual spelling.
func (f form) fault(value string) (string, error) {
	switch f {
	case truth:
		yes, err := boolean(value)
		return strconv.FormatBool(yes), err
	case count:
		n, err := strconv.ParseInt(value, 0, 32)
		if err != nil {
			err = fmt.Errorf("%s is not a whole number", annotations.Quote(value))
		}
		return strconv.FormatInt(n, 10), err
	}
	return value, nil
}

// Settings returns the keys of the ConfigMap, by name.
func Settings() (all []Setting) {
	for _, s := range settings {
		for name := range strings.SplitSeq(s.Name, ", ") {
			one := s
			one.Name, one.Note = name, sentence(s.Note)
			if row := known[s.as]; row != nil {
				one.Verdict, one.Guard, one.Keys = row.Verdict, row.Guard, bare(row.Keys)
				one.Note = cmp.Or(one.Note, global(name, row.Remark()))
				if aliases[s.as] != "" {
					one.Note = ""
				}
			}
			all = append(all, one)
		}
	}
	slices.SortFunc(all, func(a, b Setting) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// bare returns keys as our ConfigMap has them.
func bare(keys string) string { return strings.ReplaceAll(keys, "sallyport.dev/", "") }

// global returns a sentence about annotations as one about the keys of the ConfigMap with the same meaning.
func global(name, sentence string) string {
	if strings.HasPrefix(name, "global-") {
		return strings.ReplaceAll(sentence, "`auth-", "`global-auth-")
	}
	return sentence
}

// joint are the keys of ours that take the lines of several keys together, with what is between them.
var joint = map[string]string{
	"frontend-config-snippet": "\n", "global-config-snippet": "\n", "backend-config-snippet": "\n",
	"request-set-header": "\n", "response-del-headers": "\n", "deny-list": ", ",
}

// Together returns our ConfigMap with all values that ReadConfigMap returned.
func Together(said []annotations.Said) map[string]string {
	data := make(map[string]string)
	for _, s := range said {
		between, many := joint[s.Key]
		switch written, has := data[s.Key]; {
		case !has:
			data[s.Key] = s.Text
		case many && written != s.Text:
			data[s.Key] = written + between + s.Text
		}
	}
	return data
}

// A conf is the ConfigMap while it is read.
type conf struct {
	values map[string]string // of keys whose values can be read, in their usual spelling
	at     *Setting
	note   *Note // on the value that is read now
	said   []annotations.Said
}

// say adds a value of a key of ours. Several values of a key are lines of one.
func (c *conf) say(key, text string) {
	c.said = append(c.said, annotations.Said{Key: key, As: c.at.Name, Text: text})
}

// mark makes the verdict on the value another one than that of its row.
func (c *conf) mark(v Verdict, format string, args ...any) {
	c.note.Verdict, c.note.Why = v, fmt.Sprintf(format, args...)
}

// ReadConfigMap says for each key of the ConfigMap of ingress-nginx what it is here, by name. The Key of a Said
// is one of our ConfigMap, without a prefix, and its As is the key that it comes from.
func ReadConfigMap(data map[string]string) (notes []Note, said []annotations.Said) {
	rows, c := make(map[string]*Setting), &conf{values: make(map[string]string)}
	all := Settings()
	for i := range all {
		rows[all[i].Name] = &all[i]
	}
	names := slices.Sorted(maps.Keys(data))
	for _, name := range names {
		note := Note{Name: name}
		if s := rows[name]; s != nil {
			note = c.take(s, strings.TrimSpace(data[name]))
		} else {
			note.unknown()
		}
		notes = append(notes, note)
	}
	alike := c.alike(rows)
	for i := range notes {
		name := notes[i].Name
		value, readable := c.values[name]
		if !readable {
			continue
		}
		c.at, c.note = rows[name], &notes[i]
		if c.at.as != "" {
			c.follow(alike)
		}
		if c.at.read != nil {
			c.at.read(c, value)
		}
	}
	return notes, c.said
}

// oneLine makes a line of a value, which YAML may have on several.
var oneLine = strings.NewReplacer("\n", " ", "\r", " ", "\t", " ")

// take returns the Note on a value by its row, and keeps the value if it has to be read.
func (c *conf) take(s *Setting, value string) Note {
	note := Note{Name: s.Name, Value: value, Verdict: s.Verdict, Guard: s.Guard, Why: s.Note}
	if strings.HasSuffix(s.Name, "-snippet") || s.Name == "ssl-session-ticket-key" {
		note.Value = "" // never shown
	}
	if s.Verdict == Same {
		note.Why = ""
	}
	read := s.as != "" || s.read != nil
	value = oneLine.Replace(value)
	spelled, err := s.form.fault(value)
	switch {
	case value == "":
		note.Verdict, note.Why = Nothing, "It is empty."
	case err != nil:
		note.Verdict, note.Why = Refused, err.Error()
	case s.usual != "" && s.usual == spelled:
		note.Verdict, note.Why = Nothing, ""
	case read && len(value) > longest:
		note.Verdict, note.Why = Lost, fmt.Sprintf("it has %d bytes; at most %d are read", len(value), longest)
		note.Value = ""
	case read && strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c > '~' }):
		note.Verdict = Lost
		note.Why = annotations.Quote(value) + " has a character that is not printable ASCII"
	default:
		c.values[s.Name] = spelled
	}
	return note
}

// likely matches names that a guard may have.
var likely = regexp.MustCompile(`access|allow|auth|black|block|cert|deny|geo|guard|hsts|jwt|limit|modsec|oidc|owasp|` +
	`plugin|protect|range|referer|secur|snippet|ssl|throttle|tls|token|user-agent|verify|waf|white`)

// unknown makes the Note one on a key that ingress-nginx 1.15 does not have. Its value is not shown.
func (n *Note) unknown() {
	n.Verdict, n.Why = Void, "ingress-nginx 1.15 does not read it"
	if likely.MatchString(strings.ToLower(n.Name)) {
		n.Verdict, n.Guard = Lost, true
		n.Why = "the key is unknown, and may be a guard of another version of ingress-nginx"
	}
}

// alike reads the keys that mean the same as an annotation.
func (c *conf) alike(rows map[string]*Setting) Reading {
	written := make(map[string]string)
	for name, value := range c.values {
		if as := rows[name].as; as != "" {
			written[Prefix+as] = value
		}
	}
	return new(Options).Read(Ingress{Annotations: written})
}

// follow notes and says for a key the same as for the annotation with its meaning.
func (c *conf) follow(alike Reading) {
	i := slices.IndexFunc(alike.Notes, func(n Note) bool { return n.Name == c.at.as })
	n := alike.Notes[i] // there is one for each
	c.note.Verdict, c.note.Why = n.Verdict, global(c.at.Name, n.Why)
	if n.Verdict == c.at.Verdict && n.Verdict != Same {
		c.note.Why = cmp.Or(c.at.Note, c.note.Why)
	}
	for _, s := range alike.Said {
		if s.As == Prefix+c.at.as {
			c.say(bare(s.Key), s.Text)
		}
	}
}

// plainly returns a reader for a key with the values of its key of ours, which has a unit after the number.
func plainly(unit string) func(*conf, string) {
	return func(c *conf, value string) { c.say(c.at.Keys, value+unit) }
}

// ofHSTS reads a key beside hsts, which is on there unless the ConfigMap says otherwise.
func ofHSTS(c *conf, value string) {
	if c.values["hsts"] == "false" {
		c.mark(Void, "`hsts` is off.")
		return
	}
	c.say("hsts", "true")
	c.say(c.at.Keys, value)
}

// setHeader returns a reader for a truth value that sets a header of the request.
func setHeader(line string) func(*conf, string) {
	return func(c *conf, _ string) { c.say("request-set-header", line) }
}

// globalAuthURL marks a URL as lost that is no Service of the cluster: the ConfigMap has no other form.
func globalAuthURL(c *conf, value string) {
	for _, s := range c.said {
		if s.As == c.at.Name && !strings.HasPrefix(s.Text, "svc://") {
			c.mark(Lost, "%s names no Service of the cluster: set auth-url: svc://NAMESPACE/NAME:PORT/PATH",
				annotations.Quote(value))
		}
	}
	if c.note.Verdict == Lost {
		c.said = slices.DeleteFunc(c.said, func(s annotations.Said) bool {
			return s.As == c.at.Name || strings.HasPrefix(s.As, "global-auth-")
		})
	}
}

// challenges are the paths of ACME.
const challenges = "/.well-known/acme-challenge"

func acmeAlone(c *conf, value string) {
	for path := range strings.SplitSeq(value, ",") {
		if strings.TrimRight(strings.TrimSpace(path), "/") == challenges {
			c.say("acme", "true")
			return
		}
	}
	c.mark(Lost, "requests for these paths meet the guards and redirects of all others")
}

// list returns the entries of a value, as ingress-nginx reads them.
func list(value string) (all []string) {
	for one := range strings.SplitSeq(value, ",") {
		if one = strings.TrimSpace(one); one != "" {
			all = append(all, one)
		}
	}
	return all
}

// realIP reports whether the address of a client is read from a header.
func (c *conf) realIP() bool {
	return c.values["use-forwarded-headers"] == "true" || c.values["enable-real-ip"] == "true"
}

const deny = "http-request deny deny_status 403 if "

func blockNetworks(c *conf, value string) {
	if _, err := annotations.Networks(value); err != nil {
		c.mark(Lost, "%v", err)
		return
	}
	if c.realIP() { // a frontend sees the address of the connection
		c.say("deny-list", strings.Join(list(value), ", "))
		c.note.Why = "deny-list compares the address that src-ip-header reads. An Ingress with a deny-list of " +
			"its own " +
			"overrides it."
		return
	}
	c.say(c.at.Keys, deny+"{ src "+strings.Join(list(value), " ")+" }")
}

// block returns a reader for the values of a header whose requests are rejected. A value is a text in any case, an
// expression after ~, or one in any case after ~*.
func block(header string) func(*conf, string) {
	return func(c *conf, value string) {
		var lines []string
		for _, one := range list(value) {
			how, text := "str -i", strings.Trim(one, `"'`)
			if rest, is := strings.CutPrefix(text, "~*"); is {
				how, text = "reg -i", rest
			} else if rest, is := strings.CutPrefix(text, "~"); is {
				how, text = "reg", rest
			}
			if _, err := regexp.Compile(text); strings.HasPrefix(how, "reg") && err != nil ||
				text == "" || strings.ContainsAny(text, `'"`) {
				c.mark(Lost, "%s is no text or expression that HAProxy can have in a line", annotations.Quote(one))
				return
			}
			lines = append(lines, fmt.Sprintf("%s{ req.fhdr(%s) -m %s '%s' }", deny, header, how, text))
		}
		c.say(c.at.Keys, strings.Join(lines, "\n"))
	}
}

// versions are the versions of TLS as HAProxy spells them, the oldest first.
var versions = []string{"SSLv3", "TLSv1.0", "TLSv1.1", "TLSv1.2", "TLSv1.3"}

func protocols(c *conf, value string) {
	least, most, n := len(versions), -1, 0
	for _, name := range slices.Compact(slices.Sorted(strings.FieldsSeq(value))) {
		if name == "TLSv1" {
			name = "TLSv1.0"
		}
		at := slices.Index(versions, name)
		if at < 0 {
			c.mark(Lost, "%s is no version of TLS that HAProxy knows", annotations.Quote(name))
			return
		}
		least, most, n = min(least, at), max(most, at), n+1
	}
	switch first, last := slices.Index(versions, "TLSv1.2"), len(versions)-1; {
	case n != most-least+1:
		c.mark(Lost, "a version between two others cannot be left out")
	case least == first && most == last:
		c.mark(Nothing, "")
	default:
		c.say(c.at.Keys, "ssl-default-bind-options ssl-min-ver "+versions[least]+" ssl-max-ver "+versions[most])
	}
}

// oneWord matches an argument of a line of HAProxy.
var oneWord = regexp.MustCompile(`^[A-Za-z0-9:+!@=_.\-]+$`)

// bind returns a reader for the argument of a line of section global.
func bind(line string) func(*conf, string) {
	return func(c *conf, value string) {
		if !oneWord.MatchString(value) {
			c.mark(Lost, "%s has a character that is in no such value", annotations.Quote(value))
			return
		}
		c.say(c.at.Keys, line+" "+value)
	}
}

// everyone are the networks of all addresses.
const everyone = "0.0.0.0/0, ::/0"

// unbounded reports whether networks have every address of IPv4.
func unbounded(networks string) bool {
	return slices.ContainsFunc(list(networks), func(one string) bool {
		p, err := netip.ParsePrefix(one)
		return err == nil && p.Bits() == 0 && p.Addr().Is4()
	})
}

func proxyProtocol(c *conf, _ string) {
	networks, has := c.values["proxy-real-ip-cidr"]
	if !has || unbounded(networks) {
		networks = everyone
	}
	c.say(c.at.Keys, networks)
}

func realNetworks(c *conf, value string) {
	proxy := c.values["use-proxy-protocol"] == "true"
	switch {
	case unbounded(value):
		c.mark(Nothing, "")
	case c.realIP() && !proxy:
		c.mark(Lost, "src-ip-header reads the header of every client: let only these networks reach the appliance")
	case !proxy:
		c.mark(Void, "It has no effect without `use-proxy-protocol` or `use-forwarded-headers`.")
	}
}

// forwarded believes the headers of another proxy, and passes them to servers.
func forwarded(c *conf, value string) {
	realIP(c, value)
	c.say("forwarded-headers", "false")
}

func realIP(c *conf, _ string) {
	c.say("src-ip-header", cmp.Or(c.values["forwarded-for-header"], "X-Forwarded-For"))
}

func hide(c *conf, value string) { c.say(c.at.Keys, strings.Join(list(value), "\n")) }

// hideServer removes the header Server, unless ingress-nginx shows its own.
func hideServer(c *conf, value string) {
	switch {
	case value == "false":
		c.say(c.at.Keys, "Server")
	case c.at.Name == "server-tokens":
		c.mark(Differs, "HAProxy sends no header Server of its own.")
	}
}

// redirectCode reads the status of redirects. ingress-nginx uses its default in place of others.
func redirectCode(c *conf, value string) {
	if !slices.Contains([]string{"301", "302", "307"}, value) {
		c.mark(Refused, "allowed are 301, 302, 307 and 308")
		return
	}
	c.say(c.at.Keys, value)
}

func withoutHTTP2(c *conf, _ string) { c.say(c.at.Keys, "http/1.1") }

// compressed are the default of gzip-types, in short.
const compressed = "text/css text/javascript text/plain text/xml application/javascript application/json " +
	"application/xml image/svg+xml"

var mediaTypes = regexp.MustCompile(`^[A-Za-z0-9.+/_ \-]+$`)

func gzip(c *conf, _ string) {
	types := cmp.Or(c.values["gzip-types"], compressed)
	text := "compression algo gzip"
	switch {
	case types == "*":
	case !mediaTypes.MatchString(types):
		c.mark(Lost, "gzip-types has a character that is in no type")
		return
	default:
		text += "\ncompression type text/html " + strings.Join(strings.Fields(types), " ")
	}
	c.say(c.at.Keys, text)
}

func syslog(c *conf, _ string) {
	if host := c.values["syslog-host"]; host != "" {
		c.say(c.at.Keys, "address:"+host+", port:"+cmp.Or(c.values["syslog-port"], "514"))
	}
}
