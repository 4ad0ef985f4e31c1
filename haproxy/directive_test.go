package haproxy

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// written returns directives of every kind, with values that a careless writer would
// let out of their words.
func written(t testing.TB) []Directive {
	t.Helper()
	must := func(d Directive, err error) Directive {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	list := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	var many []netip.Prefix
	for i := range 70 {
		many = append(many, netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 32))
	}
	all := []Directive{
		Timeout("server", time.Hour), Timeout("check", 1500*time.Microsecond), Timeout("tunnel", 1<<60),
		Option("forwardfor", true), Option("abortonclose", false),
		must(Balance("static-rr")),
		must(HTTPCheck("HEAD", "/health?a='b' #c", "HTTP/1.1")),
		must(Source("X-Real-IP")),
		must(Capture("req.hdr(X-A)", 0)), must(Capture("cookie(id),lower", 1)),
		Deny(Networks{Of: list}, true), Deny(Networks{Of: many}, false),
		Limit(Table{"a_rate", 100000, time.Second}, 10, 429, Networks{}),
		LimitConcurrent(Table{Name: "a_conns", Size: 10}, 5),
		must(SetRequestHeader("X-A", `it's "quoted" # \ $HOME 100%% %[src] %ci`)),
		must(SetResponseHeader("Cache-Control", "no-store, no-cache")),
		must(AddRequestHeader("X-B", "c")), must(AddResponseHeader("X-B", "c")), must(DeleteRequestHeader("X-C")),
		must(DeleteResponseHeader("Server")),
		must(BasicAuth{Userlist: "a", Realm: `it's 100% ours`}.Directive()), OnlyOwnTLS(false), OnlyOwnTLS(true),
		Admit(Networks{Of: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}),
		must(BasicAuth{Userlist: "a", Realm: "b", Guesses: 10, Any: true}.Directive()),
		must(Cookie{Name: "SRV"}.Directive()),
		HSTS(15768000, true, true), HSTS(0, false, false), LimitBody(1 << 40), Silent(),
		must(MatchSubject(`^CN=(a|b)'#,O=x y$`)), must(PassCertificate("ssl-client-cert")),
		ForwardedHeaders(),
		must(RedirectUnshown("https://page.test/a%b?c='d'#e")),
		must(RetryOn(0, slices.Concat(failures, retried))), must(Root("/a%b'c?d#e")),
		must(SetHost("%[req.hdr(host),lower]")),
		must(ReplacePath(`^/a/(.*)'x # y$`, `/\1`)),
		must(ReplaceCookiePath("/a.b%", "/1")), must(ReplaceCookieDomain(".a.test", "1.test")),
		must(ReplaceLocation("http://a.test/?b=%", "/1")), must(CopyAs("a.test:80", "/it's 1%%%[pathq] #", true)),
	}
	for _, c := range []CORS{
		{Origin: "*", Methods: "*", Headers: "*", MaxAge: 5 * time.Second},
		{Origin: `https://(a|b)\.test'`, Methods: "GET, POST", Headers: "X-100%", Credentials: true, Respond: true},
	} {
		d, err := c.Directives()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, d...)
	}
	for _, code := range DenyCodes {
		all = append(all, Limit(Table{"b_rate", 1, longest}, 1<<31-1, code, Networks{Of: list}))
	}
	SortDirectives(all)
	return all
}

// lines returns the lines that a cluster may bring for the process.
func lines(t testing.TB) []Line {
	t.Helper()
	all := []Line{
		HardStop(time.Minute), DefaultOption("dontlognull", false), DefaultOption("logasap", true),
		DefaultOption("http-server-close", true),
	}
	for _, name := range []string{"client", "client-fin", "http-request", "http-keep-alive", "server-fin"} {
		all = append(all, DefaultTimeout(name, time.Second))
	}
	for _, s := range []Syslog{
		{
			Address: "fd00::1", Port: 514, Length: 2048, Format: "rfc5424", Facility: "local3", Level: "info",
			MinLevel: "notice",
		},
		{Address: "stdout", Format: "raw", Facility: "daemon"},
	} {
		l, err := s.Line()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	return all
}

// redirected returns backends that redirect every request. HAProxy warns of rules after
// such a redirect, because they have no effect.
func redirected(t testing.TB) (all []*Backend) {
	t.Helper()
	for name, to := range map[string][2]string{
		"f": {"", "other.test:8443"}, "g": {"https", "[fd00::1]:443"},
		"h": {"http", "other.test"},
	} {
		d, err := Redirect(to[0], to[1], 307)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, &Backend{Name: name, Directives: []Directive{d}})
	}
	slices.SortFunc(all, func(a, b *Backend) int { return strings.Compare(a.Name, b.Name) })
	return all
}

func TestEveryKindOfHashIsOneThatHAProxyCanCheck(t *testing.T) {
	var users []User
	for i, hash := range []string{ // hashes of "secret"
		"$1$salt$ZZ8ZZZwZZZZwZZZwZZZZZ/", "$5$salt$" + strings.Repeat("a", 43),
		"$5$rounds=5000$salt$" + strings.Repeat("a", 43), "$6$salt$" + strings.Repeat("a", 86),
		"$2y$05$" + strings.Repeat("a", 53), "$2b$08$" + strings.Repeat("a", 53),
	} {
		u, err := NewUser("u"+strconv.Itoa(i), hash)
		if err != nil {
			t.Errorf("%s: %v", hash, err)
		}
		users = append(users, u)
	}
	d, err := BasicAuth{Userlist: "list", Realm: "a realm"}.Directive()
	if err != nil {
		t.Fatal(err)
	}
	withEach(t, func(t *testing.T, binary string) {
		cfg := &Config{
			Shape:    Shape{Userlists: []*Userlist{{"list", users}}},
			Backends: []*Backend{{Name: "b", Directives: []Directive{d}}},
		}
		if err := accepted(t, binary, cfg); err != nil {
			t.Error(err)
		}
	})
}

func TestEveryWayOfBalancingTakesServersByCommand(t *testing.T) {
	for _, algorithm := range []string{
		"roundrobin", "leastconn", "first", "random", "random(3)", "source", "uri", "uri path-only",
		"uri whole len 12 depth 3",
		"url_param id", "url_param id check_post 64", "hdr(X-User)", "hdr(Host) use_domain_only",
	} {
		d, err := Balance("  " + algorithm)
		if err != nil {
			t.Errorf("%s: %v", algorithm, err)
			continue
		}
		withEach(t, func(t *testing.T, binary string) {
			b := &Backend{Name: "b", Directives: []Directive{d}}
			if err := accepted(t, binary, &Config{Backends: []*Backend{b}}); err != nil {
				t.Errorf("%s: %v", algorithm, err)
			}
		})
	}
}

func TestWhatIsNoValueIsRefusedInASentence(t *testing.T) {
	err := func(_ any, err error) error { return err }
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"a header with a line break": {err(SetRequestHeader("X\nY", "")), "is not the name of a header"},
		"a header with a space":      {err(SetResponseHeader("X Y", "")), "is not the name of a header"},
		"a source of no name":        {err(Source("")), "is not the name of a header"},
		"a value with a line break":  {err(format(inRequest, "a\nuse_backend other")), "control character"},
		"the process's environment": {
			err(format(inRequest, "%[env(SECRET)]")),
			`"env(SECRET)" is not an allowed sample`,
		},
		"a variable of the process": {err(format(inRequest, "%[var(proc.gen)]")), "is not an allowed sample"},
		"a file as a converter": {
			err(format(inRequest, "%[src,map(/etc/shadow)]")),
			"is not an allowed converter",
		},
		"an open bracket":            {err(format(inRequest, "%[src")), "no \"]\" follows"},
		"a lone percent sign":        {err(format(inRequest, "50%")), "without a meaning"},
		"an alias that is longer":    {err(format(inRequest, "%cix")), "without a meaning"},
		"a regular expression":       {err(ReplacePath("(", "")), "is not a usable regular expression"},
		"one that looks ahead":       {err(ReplacePath("(?=a)", "")), "is not a usable regular expression"},
		"an origin":                  {err(CORS{Origin: "("}.Directives()), "is not a usable regular expression"},
		"a way of balancing":         {err(Balance("fastest")), "is not a balancing algorithm"},
		"very many draws":            {err(Balance("random(100)")), "random[(draws, up to 99)]"},
		"a URI of no elements":       {err(Balance("uri depth 0")), "is not a balancing algorithm"},
		"a URI of no bytes":          {err(Balance("uri len 0")), "is not a balancing algorithm"},
		"two in one":                 {err(Balance("roundrobin\nserver x 1.2.3.4")), "is not a balancing algorithm"},
		"a check of no path":         {err(HTTPCheck("", "health", "")), `does not begin with "/"`},
		"a check of no method":       {err(HTTPCheck("GET /", "/", "")), "is not an HTTP method"},
		"a check of another version": {err(HTTPCheck("GET", "/", "HTTP/2")), "is not a version"},
		"a capture of nothing":       {err(Capture("env(HOME)", 0)), "is not an allowed sample"},
		"a capture of two words":     {err(Capture("src len 10", 0)), "is not an allowed sample"},
		"a root elsewhere":           {err(Root("//evil.test")), "must begin with exactly one"},
		"a header to delete":         {err(DeleteRequestHeader("a b")), "is not the name of a header"},
		"a page of no status": {
			err(ErrorFile(418, "HTTP/1.1 418 I\n\n")),
			"418 is not the status of an error file",
		},
		"a page without a head": {err(ErrorFile(503, "<p>sorry</p>")), "not a whole response"},
		"a page of another length": {
			err(ErrorFile(503, "HTTP/1.1 503 S\nContent-Length: 3\n\nsorry")),
			"do not match the body",
		},
		"a page that is too long": {
			err(ErrorFile(503, "HTTP/1.1 503 S\n\n"+strings.Repeat("a", 16<<10))),
			"at most 15360",
		},
		"a page with a header in two": {err(ErrorFile(503, "HTTP/1.1 503 S\nA B\n\n")), "not a valid response"},
		"a text of a new section": {
			err(ParseText(BackendSection, "\nbackend x")),
			`line 2, "backend x": "backend" begins a section`,
		},
		"one that hides it":        {err(ParseText(BackendSection, `"backend" x`)), "must not have quotes"},
		"one that hides it better": {err(ParseText(BackendSection, `no back\end x`)), "must not have quotes"},
		"a text of a server": {
			err(ParseText(BackendSection, "no server x")),
			"is reserved in the section backend",
		},
		"a text of a variable of the process": {
			err(ParseText(GlobalSection, `set-var-fmt proc.gen "1"`)),
			`the keyword "set-var-fmt" is reserved in the section global`,
		},
		"a text of a rule that sets our variable": {
			err(ParseText(BackendSection, "http-request set-var(proc.gen) int(1)")), "choose another name",
		},
		"a text of a rule that formats our variable": {
			err(ParseText(FrontendSection, `http-request set-var-fmt("proc".sh\ape) 1`)), "choose another name",
		},
		"a text of a converter that sets our variable": {
			err(ParseText(BackendSection, "acl a str(x),set-var(proc.asksecret) x")), "choose another name",
		},
		"a text with a condition":    {err(ParseText(GlobalSection, ".if 1")), "begin with a dot"},
		"a text of a return":         {err(ParseText(GlobalSection, "a\rglobal")), "control character"},
		"a text of nothing":          {err(ParseText(GlobalSection, "# a")), "no line"},
		"a text without end":         {err(ParseText(GlobalSection, strings.Repeat("a\n", 40000))), "at most 65536"},
		"a format with a line break": {err(LogFormat("a\nb")), "control character"},
		"a realm with a quote":       {err(BasicAuth{Userlist: "a", Realm: `a"b`}.Directive()), "has a quote"},
		"a realm with a line break":  {err(BasicAuth{Userlist: "a", Realm: "a\nb"}.Directive()), "control character"},
		"a cookie with a space":      {err(Cookie{Name: "a b"}.Directive()), "is not the name of a cookie"},
		"a cookie of a wildcard":     {err(Cookie{Name: "a", Domain: "*.a.test"}.Directive()), "is not a domain"},
		"a cookie of no domain":      {err(Cookie{Name: "a", Domain: "b c"}.Directive()), "is not a domain"},
		"a cookie of no site": {
			err(Cookie{Name: "a", SameSite: "some"}.Directive()),
			"is not a value of SameSite",
		},
		"a user of two words":     {err(NewUser("a b", "")), "is not the name of a user"},
		"a password in the clear": {err(NewUser("a", "secret")), "the password of user a is not a usable hash"},
		"a hash for ever": {
			err(NewUser("a", "$6$rounds=999999999$salt$"+strings.Repeat("x", 86))),
			"is not a usable hash",
		},
		"a hash of Apache's": {
			err(NewUser("a", "$apr1$salt$"+strings.Repeat("x", 22))),
			"is not a usable hash",
		},
		"authorities without any": {err(Authorities("a", []byte("nothing"))), "there is no certificate"},
		"a redirect with a path":  {err(Redirect("", "a.test/x", 302)), "is not HOST"},
		"a redirect to many":      {err(Redirect("", "*.a.test", 302)), "is not HOST"},
		"a redirect to no port":   {err(Redirect("", "a.test:0", 302)), "is not HOST"},
		"a redirect of no status": {err(Redirect("", "a.test", 304)), "is not the status of a redirect"},
		"a log to a name": {
			err(Syslog{Address: "log.test", Facility: "local0"}.Line()),
			"is not a log target",
		},
		"a log of no facility":        {err(Syslog{Address: "stdout", Facility: "here"}.Line()), "is not a facility"},
		"a redirect to another world": {err(Redirect("ftp", "a.test", 302)), "is not a scheme"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: want a word of %q, got %v", name, c.want, c.err)
		}
	}
}

// FuzzDirectives checks that every value stays within its word, whatever it contains:
// the lines of a directive begin as they should, and close the quotes that they open.
func FuzzDirectives(f *testing.F) {
	for _, s := range []string{"a", "it's", `\'"#$`, "%[src]", "x\ny", "é\x00", "' if TRUE"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, name, value string) {
		var all []Directive
		add := func(d Directive, err error) {
			if err == nil {
				all = append(all, d)
			}
		}
		add(SetRequestHeader(name, value))
		add(SetResponseHeader(name, value))
		add(ReplacePath(name, value))
		add(MatchSubject(value))
		add(PassCertificate(name))
		add(RedirectUnshown(value))
		add(ReplaceCookiePath(name, value))
		add(ReplaceCookieDomain(name, value))
		add(ReplaceLocation(name, value))
		add(CopyAs(name, value, true))
		add(CopyAs(value, name, true))
		add(AddRequestHeader(name, value))
		add(AddResponseHeader(name, value))
		add(SetHost(value))
		add(Source(name))
		add(Capture(value, 0))
		add(DeleteRequestHeader(name))
		add(DeleteResponseHeader(name))
		add(Root(value))
		add(Balance(value))
		add(HTTPCheck(name, value, ""))
		add(Redirect(name, value, 302))
		add(BasicAuth{Userlist: "a", Realm: value}.Directive())
		add(Cookie{Name: name, Domain: value}.Directive())
		d, err := CORS{Origin: name, Methods: value, Headers: value}.Directives()
		if err == nil {
			all = append(all, d...)
		}
		for _, d := range all {
			for line := range strings.SplitSeq(strings.TrimSuffix(d.text,
				"\n.if version_atleast(3.0)\ndefault-server hash-key addr-port\n.endif"), "\n") {
				first, _, _ := strings.Cut(line, " ")
				if !slices.Contains([]string{
					"http-request", "http-response", "http-after-response", "cookie",
					"dynamic-cookie-key", "balance", "hash-type", "option", "acl",
				}, first) {
					t.Errorf("%q %q: a line begins with %q", name, value, first)
				}
				if rest := unquoted(line); strings.ContainsAny(rest, "'\"\\#$\t\r\x00") {
					t.Errorf("%q %q: outside of quotes there is %q", name, value, rest)
				}
			}
		}
	})
}

// unquoted returns the parts of a line that HAProxy would not take literally. A single
// quote within a value closes the word, stands escaped outside of it, and opens the
// word again.
func unquoted(line string) string {
	var out strings.Builder
	for i, part := range strings.Split(strings.ReplaceAll(line, `'\''`, "_"), "'") {
		if i%2 == 0 {
			out.WriteString(part)
		}
	}
	return out.String()
}
