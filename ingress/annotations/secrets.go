package annotations

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"sallyport/haproxy"
)

// An Object is a Secret or a ConfigMap that a key names.
type Object struct {
	Name string // unique, and fit for the name of a file
	Of   string // for people: Secret NAMESPACE/NAME
	Data map[string][]byte
}

// A Finder finds the Secret, or the ConfigMap, that an object refers to. Its error continues a sentence
// that begins with the key, as "auth-secret: ".
type Finder func(Scope, Ref) (Object, error)

// A Ref names an object. An empty Namespace means the namespace of the object that has the
// reference.
type Ref struct{ Namespace, Name string }

func (r Ref) String() string { return strings.TrimPrefix(r.Namespace+"/"+r.Name, "/") }

// dnsLabel matches names of namespaces and Services, dnsSubdomain names of Secrets
// (RFC 1123).
var (
	dnsLabel     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	dnsSubdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
)

// reference reads the name of an object, NAME or NAMESPACE/NAME.
func reference(s string) (Ref, error) {
	r := Ref{Name: s}
	if namespace, name, has := strings.Cut(s, "/"); has {
		r = Ref{namespace, name}
		if !dnsLabel.MatchString(namespace) {
			return Ref{}, fmt.Errorf("%s: want a name, or namespace/name", Quote(s))
		}
	}
	if !dnsSubdomain.MatchString(r.Name) || len(r.Name) > 253 {
		return Ref{}, fmt.Errorf("%s: want a name, or namespace/name", Quote(s))
	}
	return r, nil
}

var (
	authType = defineIn(authKind, Doc{
		Name: "auth-type", Scopes: notOnTheService, Format: "basic-auth; on an Ingress also none", Guard: true,
		Effect: "Clients need a name and a password. With an auth-secret the key can be left out. With `none` an " +
			"Ingress is served without the password and the auth-url of the ConfigMap, if the ConfigMap has " +
			"auth-opt-out.",
	})
	authOptOut = define(boolean, Doc{
		Name: own + "auth-opt-out", Scopes: ConfigMap, Format: "true or false", Default: "false",
		Effect: "Ingresses may set `auth-type: none`. They are then served without the password and the auth-url of " +
			"the ConfigMap.",
	})
	authSecret = defineSecret(Doc{
		Name: "auth-secret", Scopes: notOnTheService, Guard: true,
		Effect: "The users: each key of the Secret is a name, its value the hash of the password (`openssl passwd " +
			"-5`); or one key holds the lines of an htpasswd file. A user with an invalid hash, or a bcrypt cost " +
			"above 8, is left out and reported by an Event; the other users are accepted. A right password is " +
			"remembered for five minutes after its last request.",
	})
	authRealm = define(filled(realm), Doc{
		Name: "auth-realm", Scopes: notOnTheService, Format: "text", Default: "Protected Content",
		Effect: "Realm that browsers show when they ask for the password.",
	})
	clientCA = defineSecret(Doc{
		Name: "client-ca", Scopes: notOnTheService, Traffic: notPassed, Guard: true,
		Effect: "Clients need a certificate from this authority (`ca.crt` of the Secret, or `tls.crt`). On an " +
			"Ingress: for the hosts that it has certificates for. In the ConfigMap: for all hosts, and no host is " +
			"served by plain HTTP.",
	})
	clientOptional = define(boolean, Doc{
		Name: "client-crt-optional", Scopes: notOnTheService, Format: "true or false", Default: "false",
		Effect: "Clients may also connect without the certificate of client-ca; `%[ssl_c_s_dn]` is the subject of " +
			"the certificate of a client that has one. On an Ingress it is ignored if the ConfigMap demands a " +
			"certificate.",
	})
	clientMatch = define(filled(haproxy.MatchSubject), Doc{
		Name: own + "client-crt-match", Scopes: Ingress, Format: "regular expression", Guard: true,
		Effect: "Clients are answered 403 unless the expression matches the subject of their certificate, as " +
			"`CN=ann,O=Shop` (RFC 2253). It needs a client-ca on the same Ingress. It holds for every path of the hosts " +
			"that the Ingress has certificates for, also for those of other Ingresses.",
	})
	clientPage = define(haproxy.RedirectUnshown, Doc{
		Name: own + "client-crt-error-page", Scopes: Ingress, Format: "URL, with http:// or https://",
		Effect: "Clients without a certificate are redirected to this URL with 302. The handshake still fails for " +
			"clients with a certificate of another authority. The key needs a client-ca on the same Ingress. This " +
			"Ingress must have `/` of each host that it has a certificate for, and no other Ingress may have the host.",
	})
	clientHeader = define(haproxy.PassCertificate, Doc{
		Name: own + "client-crt-header", Scopes: notOnTheService, Format: "name of a header",
		Effect: "Servers see the certificate of the client in this header: PEM with escapes as in a URL, and without " +
			"line breaks in the base64. What the client itself sends in it is removed.",
	})
	serverCA = defineSecret(Doc{
		Name: "server-ca", Scopes: everywhere, Traffic: notPassed, Guard: true,
		Effect: "Connections to servers use TLS, and their certificates must be from this authority (`ca.crt` of the " +
			"Secret, or `tls.crt`).",
	})
	serverCrt = defineSecret(Doc{
		Name: "server-crt", Scopes: everywhere, Traffic: notPassed,
		Effect: "Connections to servers use TLS, with this client certificate (`tls.crt` and `tls.key` of the Secret).",
	})
	secureSNI = define(serverName, Doc{
		Name: own + "secure-sni", Scopes: everywhere, Traffic: notPassed, Format: "a host's name, host or sni",
		Effect: "Server name in TLS to the servers: this one, the Host of the request (host), or the name in the " +
			"client's handshake (sni). With server-ca the servers' certificates must be for it.",
	})
	secureVerifyHost = define(serverName, Doc{
		Name: own + "secure-verify-hostname", Scopes: everywhere, Traffic: notPassed, Format: "a host's name",
		Guard: true,
		Effect: "The certificates of the servers must be for this name. It needs a server-ca, and no other name " +
			"in secure-sni.",
	})
	serverCiphers = define(cipherList, Doc{
		Name: own + "server-ssl-ciphers", Scopes: everywhere, Traffic: notPassed,
		Format: "names of ciphers of OpenSSL, HIGH or DEFAULT, with colons; a `!` excludes",
		Effect: "Ciphers of TLS up to 1.2 to the servers. Only common names are known.",
	})
	serverMinTLS = define(oneOf(haproxy.TLSVersions...), Doc{
		Name: own + "server-ssl-min-ver", Scopes: everywhere, Traffic: notPassed,
		Format: strings.Join(haproxy.TLSVersions, ", "),
		Effect: "Oldest version of TLS to the servers. OpenSSL may have a newer one as its oldest.",
	})
	serverMaxTLS = define(oneOf(haproxy.TLSVersions...), Doc{
		Name: own + "server-ssl-max-ver", Scopes: everywhere, Traffic: notPassed,
		Format: strings.Join(haproxy.TLSVersions, ", "),
		Effect: "Newest version of TLS to the servers.",
	})
	clientCiphers = define(cipherList, Doc{
		Name: own + "ssl-ciphers", Scopes: Ingress,
		Format: "names of ciphers of OpenSSL, HIGH or DEFAULT, with colons; a `!` excludes",
		Effect: "Ciphers of TLS up to 1.2 that clients can use for the hosts that the Ingress has certificates for. " +
			"TLS 1.3 has other ciphers, which stay as they are. Only common names are known. The oldest Ingress with " +
			"a certificate for a host decides.",
	})
	sslCertificate = defineSecret(Doc{
		Name: "ssl-certificate", Scopes: ConfigMap,
		Effect: "Certificate for names that have none. Without it: a self-signed one.",
	})
)

var signer = defineSecret(Doc{
	Name: "generate-certificates-signer", Scopes: ConfigMap,
	Effect: "Names without a certificate get one at the first handshake, signed by this authority (`tls.crt` and " +
		"`tls.key` of the Secret).",
})

// defineSecret makes a key that names a Secret.
func defineSecret(d Doc) key[Ref] {
	d.Refers, d.Format = SecretKind, "Secret, or namespace/Secret"
	return define(reference, d)
}

// Refers lists the objects of a kind that an object names in its annotations, or a ConfigMap in its data, in no
// order.
func Refers(kind Kind, scope Scope, written map[string]string) (refs []Ref) {
	if !Mentions(scope, written, kind) { // as nearly always
		return nil
	}
	return Layer{Values: known.values(scope, written)}.Refers(kind)
}

// Mentions reports whether an object has an annotation, or a ConfigMap a key, that can name objects of some kinds. It
// reads no value.
func Mentions(scope Scope, written map[string]string, kinds ...Kind) bool {
	spellings := known.spellings(scope)
	for full := range written {
		if s, is := spellings[full]; is && slices.Contains(kinds, known.docs[s.Name].Refers) {
			return true
		}
	}
	return false
}

func cipherList(s string) (string, error) { return s, haproxy.CheckCiphers(s) }

func serverName(s string) (string, error) { return s, haproxy.CheckServerName(s) }

func realm(s string) (string, error) {
	_, err := haproxy.BasicAuth{Userlist: "any", Realm: s}.Directive()
	return s, err
}

// use reads the Secret that a key names. It reports a Secret that cannot be found or
// used; then ok is false, as if the key were not set.
func use[T interface{ Part() haproxy.Part }](v *values, k key[Ref], read func(Object) (T, error)) (made T, ok bool) {
	ref, said := get(v, k)
	if !said {
		return made, false
	}
	from, err := v.env.Secrets(v.scopeOf(k.Name), ref)
	if err == nil {
		made, err = read(from)
	}
	if err == nil {
		if err = v.env.refusal(made.Part()); err != nil {
			err = fmt.Errorf("%s: %w", from.Of, err)
		}
	}
	if err != nil {
		v.wrong(k.Doc, err)
		return made, false
	}
	return made, true
}

// pair returns a function that reads the certificate and the key of a Secret.
func pair[T any](read func(name string, chain []byte) (T, error)) func(Object) (T, error) {
	return func(from Object) (T, error) {
		made, err := read(from.Name, slices.Concat(from.Data["tls.crt"], []byte("\n"), from.Data["tls.key"]))
		if err != nil {
			err = fmt.Errorf("%s: %w", from.Of, err)
		}
		return made, err
	}
}

// authenticate adds the directives that ask clients for a password. It leaves out each user with a
// name or hash that cannot be used. If no user is left, the guard cannot be used.
func authenticate(v *values, s *Settings) {
	if v.optsOut {
		return
	}
	_, asked := get(v, authType)
	name, _ := get(v, authRealm)
	var left []error
	list, ok := use(v, authSecret, func(from Object) (list *haproxy.Userlist, err error) {
		list, left = users(from)
		switch {
		case len(list.Users) > 0:
		case len(left) > 0:
			err = left[0]
		default:
			err = fmt.Errorf("%s has no user", from.Of)
		}
		return list, err
	})
	if !ok {
		if asked && !v.closed {
			v.wrong(authType.Doc, errors.New("there is no auth-secret with the users"))
		}
		return
	}
	if len(left) > 0 {
		v.report(authSecret.Doc, v.scopeOf(authSecret.Name), "UserLeftOut",
			fmt.Errorf("%w; %d of the %d users of the Secret are left out", left[0], len(left),
				len(left)+len(list.Users)))
	}
	d, err := haproxy.BasicAuth{
		Userlist: list.Name, Realm: name, Tenant: v.env.Tenant,
		Guesses: v.env.WrongPasswords, Any: v.either[authSecret.Name], Last: !v.either[authURL.Name],
	}.Directive()
	if err != nil {
		v.wrong(authSecret.Doc, err)
		return
	}
	s.Userlists = append(s.Userlists, list)
	s.add(d)
}

// none is the auth-type of an Ingress without the password and the auth-url of the ConfigMap.
const none = "none"

func authKind(_ Env, scope Scope, s string) (string, error) {
	if scope == ConfigMap {
		return oneOf("basic-auth")(s)
	}
	return oneOf("basic-auth", none)(s)
}

// optOut reports whether requests need no password and no auth-url, since the Ingress opts out of
// those of the ConfigMap. An Ingress that sets both none and a password or an auth-url is closed.
func optOut(v *values) bool {
	said := slices.ContainsFunc(v.layers, func(l Layer) bool {
		return l.Scope != ConfigMap && l.Values[authType.Name].Text == none
	})
	if !said {
		return false
	}
	if kind, ok := get(v, authType); !ok || kind != none {
		return false
	}
	for _, l := range v.layers {
		for _, d := range []Doc{authSecret.Doc, authURL.Doc} {
			used, has := l.Values[d.Name]
			if !has {
				continue
			}
			allowed, _ := get(v, authOptOut)
			switch {
			case l.Scope != ConfigMap:
				v.wrong(authType.Doc, fmt.Errorf("none, and %s is set, too: remove one of the two", used.As))
				return false
			case !allowed:
				v.wrong(authType.Doc, fmt.Errorf("none is not allowed, since the ConfigMap sets %s: the operator can "+
					"allow it there (auth-opt-out: true)", used.As))
				return false
			}
		}
	}
	return true
}

// users reads the names and hashes of a Secret. left has an error for each user that
// cannot be used.
func users(from Object) (list *haproxy.Userlist, left []error) {
	list = &haproxy.Userlist{Name: "users_" + from.Name}
	add := func(name, hash string) {
		u, err := haproxy.NewUser(name, strings.TrimSpace(hash))
		if err != nil {
			left = append(left, fmt.Errorf("%s: %w", from.Of, err))
			return
		}
		list.Users = append(list.Users, u)
	}
	for _, name := range slices.Sorted(maps.Keys(from.Data)) {
		value := from.Data[name]
		if !bytes.Contains(value, []byte(":")) {
			add(name, string(value))
			continue
		}
		for line := range strings.Lines(string(value)) {
			if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
				name, hash, _ := strings.Cut(line, ":")
				add(name, hash)
			}
		}
	}
	slices.SortFunc(list.Users, func(a, b haproxy.User) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Hash, b.Hash))
	})
	return list, left
}

// authorities reads the CA certificates of a Secret.
func authorities(from Object) (*haproxy.Extra, error) {
	text := from.Data["ca.crt"]
	if len(text) == 0 {
		text = from.Data["tls.crt"]
	}
	e, err := haproxy.Authorities(from.Name, text)
	if err != nil {
		return nil, fmt.Errorf("%s, ca.crt or else tls.crt: %w", from.Of, err)
	}
	return e, nil
}

// defineConfigMap makes a key that names a ConfigMap.
func defineConfigMap(d Doc) key[Ref] {
	d.Refers, d.Format = ConfigMapKind, "ConfigMap"
	return define(reference, d)
}

// headersFrom reads the entries of the ConfigMap that a key names as headers, in the order of their names. Values are
// literal. An entry without a value sets no header.
func headersFrom[T any](v *values, k key[Ref], read func(name, value string) (T, error)) (all []T, err error) {
	of, entries, err := entriesOf(v, k)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		value := entries[name]
		if value == "" {
			continue
		}
		one, err := read(name, haproxy.Literal(value))
		if strings.Contains(value, "$") {
			err = errors.New("it has a $, and variables are not served")
		}
		if err != nil {
			return nil, fmt.Errorf("%s, entry %s: %w", of, Quote(name), err)
		}
		all = append(all, one)
	}
	return all, nil
}

// entriesOf returns the entries of the ConfigMap that a key names, without space around the values, and the words for
// the ConfigMap in a sentence. Without the key there are no entries.
func entriesOf(v *values, k key[Ref]) (of string, all map[string]string, err error) {
	ref, said := get(v, k)
	if !said {
		return "", nil, nil
	}
	scope := v.scopeOf(k.Name)
	from, err := v.env.ConfigMaps(scope, ref)
	if err != nil {
		return "", nil, err
	}
	if n, most := len(from.Data), v.env.most(scope); n > most {
		return "", nil, fmt.Errorf("%s has %d entries; allowed are %d (clusters[].ingress.limits.lines)", from.Of, n,
			most)
	}
	all = make(map[string]string, len(from.Data))
	for name, value := range from.Data {
		all[name] = strings.TrimSpace(string(value))
	}
	return from.Of, all, nil
}

// serverCerts sets the certificates of both sides of TLS connections to servers, and
// the server names to send and to verify.
func serverCerts(v *values, s *Settings) {
	if e, ok := use(v, serverCA, authorities); ok {
		s.Extras = append(s.Extras, e)
		s.Options.TLS, s.Options.CA = true, e.Name
	}
	if e, ok := use(v, serverCrt, pair(haproxy.ClientCertificate)); ok {
		s.Extras = append(s.Extras, e)
		s.Options.TLS, s.Options.Crt = true, e.Name
	}
	s.Options.Ciphers, _ = get(v, serverCiphers)
	s.Options.MinTLS, _ = get(v, serverMinTLS)
	newest, said := get(v, serverMaxTLS)
	if said && newest < s.Options.MinTLS {
		v.wrong(serverMaxTLS.Doc, fmt.Errorf("%s is older than server-ssl-min-ver, %s", newest, s.Options.MinTLS))
	} else {
		s.Options.MaxTLS = newest
	}
	if name, said := get(v, secureSNI); said && s.Options.TLS {
		s.Options.SNI = name
	}
	if name, said := get(v, secureVerifyHost); said {
		switch {
		case s.Options.CA == "":
			v.wrong(secureVerifyHost.Doc, errors.New("certificates are verified only with a server-ca: set it, too"))
		case s.Options.SNI != "" && s.Options.SNI != name:
			v.wrong(secureVerifyHost.Doc,
				errors.New("HAProxy verifies the name in secure-sni, which is another one: set the same name in both"))
		default:
			s.Options.VerifyHost = name
		}
	}
}

// Clients say which certificates clients have to show.
type Clients struct {
	CA       *haproxy.Extra // nil if clients are not asked for a certificate
	Optional bool
	Closed   bool // they have to show a certificate, but the authority cannot be used
	// Match is a regular expression for the subjects of their certificates, or "". Requests of other clients for
	// any path of the hosts are answered 403.
	Match string
}

// Required reports whether no client is served without a certificate.
func (c Clients) Required() bool { return c.Closed || c.CA != nil && !c.Optional }

// ClientCA reads the keys of an Ingress about client certificates.
func ClientCA(env Env, l Layer) (Clients, []Problem) {
	v := &values{layers: []Layer{l}, env: env}
	c := ofHost(v)
	return c, v.problems
}

// ClientCAOf returns the Secret that an object names as its client-ca, as it is written, or "".
func ClientCAOf(l Layer) string { return l.Values[clientCA.Name].Text }

// HasClientPage reports whether clients without a certificate are redirected, if they can connect.
func HasClientPage(l Layer) bool {
	_, said, _ := getFrom(l, clientPage)
	return said
}

// ClientMatch returns the expression for the subjects of the certificates of clients, or "" if an Ingress sets none. An
// invalid one becomes haproxy.NoSubject.
func ClientMatch(l Layer) string {
	_, said, problems := getFrom(l, clientMatch)
	switch {
	case len(problems) > 0:
		return haproxy.NoSubject
	case !said:
		return ""
	}
	return l.Values[clientMatch.Name].Text
}

// ClientCiphers returns the ciphers that clients can use for the hosts that an Ingress has certificates for, or "".
func ClientCiphers(l Layer) (string, []Problem) {
	list, _, problems := getFrom(l, clientCiphers)
	return list, problems
}

// ofHost reads the keys of an Ingress about client certificates for its hosts. They
// cannot weaken the demand of the ConfigMap on all clients. A handshake asks for
// certificates of one authority only: the host's authority replaces the ConfigMap's.
func ofHost(v *values) Clients {
	c, all := clients(v), v.env.Demanded
	if c.CA == nil || all.Optional && !all.Closed || all.CA == nil && !all.Closed {
		return c
	}
	switch {
	case all.CA == nil || !bytes.Equal(all.CA.Content, c.CA.Content):
		v.fault(clientCA.Doc, Ingress,
			errors.New("the ConfigMap requires certificates of another authority from all clients, and a client "+
				"shows one certificate: set client-ca in one of the two places, or name the same authority in both"))
		return Clients{Closed: true}
	case c.Optional:
		v.fault(clientOptional.Doc, Ingress, errors.New("the ConfigMap requires a certificate from all clients"))
		c.Optional = false
	}
	return c
}

func clients(v *values) (c Clients) {
	c.Optional, _ = get(v, clientOptional)
	c.CA, _ = use(v, clientCA, authorities)
	c.Closed = v.closed
	return c
}

// clientCerts rejects requests without TLS, and requests over a TLS handshake for another host. It
// also rejects requests without a certificate, unless the certificate is optional. It reads only
// the keys of the Ingress: those of the ConfigMap apply to every handshake.
func clientCerts(v *values, s *Settings) {
	own := &values{layers: v.layers, env: v.env, only: Ingress}
	c := ofHost(own)
	page, leads := get(own, clientPage)
	switch {
	case !leads || c.Closed:
	case c.CA == nil:
		own.wrong(clientPage.Doc, errors.New("it needs a client-ca on the same Ingress"))
	case c.Optional:
		own.wrong(clientPage.Doc, errors.New("clients need no certificate, since client-crt-optional is set"))
	}
	if c.CA != nil {
		leads = leads && !c.Optional
		s.add(haproxy.OnlyOwnTLS(c.Optional || leads))
		s.Extras = append(s.Extras, c.CA)
		if leads {
			s.add(page)
		}
	}
	if match, said := get(own, clientMatch); said && c.CA == nil && !c.Closed {
		own.wrong(clientMatch.Doc, errors.New("it needs a client-ca on the same Ingress"))
	} else if said {
		s.add(match)
	}
	v.closed = v.closed || own.closed
	v.problems, v.used = append(v.problems, own.problems...), append(v.used, own.used...)
}
