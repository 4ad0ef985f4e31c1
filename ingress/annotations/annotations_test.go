package annotations

import (
	"bytes"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/haproxy"
	"sallyport/test/manual"
)

var update = flag.Bool("update", false, "write the table in ../README.md anew")

// on makes layers: "ingress KEY: VALUE", "service KEY: VALUE" or "configmap KEY: VALUE", the most special first.
// With "~" before it a key is written without a prefix.
func on(said ...string) []Layer {
	scopes := map[string]Scope{"service": Service, "ingress": Ingress, "configmap": ConfigMap}
	written := map[Scope]map[string]string{}
	for _, s := range said {
		scope, rest, _ := strings.Cut(s, " ")
		name, value, _ := strings.Cut(rest, ": ")
		if written[scopes[scope]] == nil {
			written[scopes[scope]] = map[string]string{}
		}
		if scopes[scope] == ConfigMap {
			name = strings.TrimPrefix(name, own)
		} else if bare, is := strings.CutPrefix(name, "~"); is {
			name = bare
		} else if !strings.Contains(name, "/") {
			name = "haproxy.org/" + name
		}
		written[scopes[scope]][name] = value
	}
	var layers []Layer
	for _, scope := range []Scope{Service, Ingress, ConfigMap} {
		layers = append(layers, Read(scope, written[scope]))
		if scope == ConfigMap {
			layers[len(layers)-1] = layers[len(layers)-1].WithSections(env)
		}
	}
	return layers
}

// fields lists the fields of a struct that are not zero.
func fields(of any) string {
	var out strings.Builder
	v := reflect.ValueOf(of)
	for i := range v.NumField() {
		if f := v.Field(i); !f.IsZero() {
			fmt.Fprintf(&out, " %s=%v", v.Type().Field(i).Name, f)
		}
	}
	return out.String()
}

// secrets returns the Secret of a name that rows use.
func secrets(_ Scope, ref Ref) (Object, error) {
	text, err := os.ReadFile("../../haproxy/testdata/pair.pem")
	if err != nil {
		return Object{}, err
	}
	hash := "$5$salt$" + strings.Repeat("a", 43)
	s := Object{Name: strings.ReplaceAll(ref.String(), "/", "_"), Of: "Secret " + ref.String()}
	switch ref.Name {
	case "tls":
		s.Data = map[string][]byte{"tls.crt": text, "tls.key": text}
	case "ca":
		s.Data = map[string][]byte{"ca.crt": text}
	case "others":
		s.Data = map[string][]byte{"ca.crt": slices.Concat(text, text)}
	case "empty":
	case "users":
		s.Data = map[string][]byte{"bob": []byte(hash + "\n"), "ann": []byte(hash)}
	case "htpasswd":
		s.Data = map[string][]byte{"auth": []byte("# ours\nann:" + hash + "\n")}
	case "some":
		s.Data = map[string][]byte{
			"ann":  []byte("rl.3StKT.4T8M"),
			"auth": []byte("bob:" + hash + "\neve:clear\nx y:" + hash),
		}
	case "tokens": // a certificate, and a secret
		block, _ := pem.Decode(text)
		s.Data = map[string][]byte{
			"login": pem.EncodeToMemory(block), "old.hs256": []byte(strings.Repeat("secret", 10)),
		}
	case "key-set": // a certificate, and a set with a key for encryption
		block, _ := pem.Decode(text)
		s.Data = map[string][]byte{"jwks.json": []byte(keySet), "login": pem.EncodeToMemory(block)}
	case "secret-set":
		s.Data = map[string][]byte{"hs256": []byte(keySet)}
	case "one-token":
		s.Data = map[string][]byte{"hs256": []byte(strings.Repeat("secret", 10))}
	case "wrong-token":
		s.Data = map[string][]byte{"login": []byte(strings.Repeat("secret", 10))}
	case "clear":
		s.Data = map[string][]byte{"ann": []byte("secret")}
	default:
		return s, fmt.Errorf("there is no Secret %s", ref)
	}
	return s, nil
}

// configMaps returns the ConfigMap of a name that rows use.
func configMaps(_ Scope, ref Ref) (Object, error) {
	o := Object{Name: "map_" + ref.Name, Of: "ConfigMap " + ref.String(), Data: map[string][]byte{}}
	switch ref.Name {
	case "headers":
		o.Data["X-A"], o.Data["Cache-Control"] = []byte("50% of %[src]\n"), []byte(`"no-store"`)
	case "team":
		o.Data["X-Team"], o.Data["X-Empty"], o.Data["A_b"] = []byte("100% #a b"), nil, []byte("c")
	case "variable":
		o.Data["X-Host"] = []byte("$host")
	case "params":
		o.Data["SCRIPT_FILENAME"] = []byte("$document_root$fastcgi_script_name\n")
		o.Data["APP"] = []byte("50% 'of' /x$fastcgi_script_name?$args ${http_x_mode}")
		o.Data["HTTP_PROXY"] = nil
	case "odd-params":
		o.Data["A"], o.Data["B C"], o.Data["D"] = []byte("$pid"), []byte("x"), []byte("x\nhttp-request allow")
	case "odder-params":
		o.Data["REMOTE_ADDR"], o.Data["E"], o.Data["REQUEST_URI"] = nil, []byte("5$"), []byte("/fixed")
	case "host":
		o.Data["Host"] = []byte("other.test")
	case "bad-header":
		o.Data["X A"] = []byte("x")
	case "line":
		o.Data["X-A"] = []byte("x\nhttp-request allow")
	case "many":
		for i := range 65 {
			o.Data[fmt.Sprintf("X-%d", i)] = []byte("x")
		}
	case "public":
		o.Data["jwks.json"] = []byte(keySet)
	case "shared":
		o.Data["old.hs256"] = []byte(strings.Repeat("secret", 10))
	default:
		return o, fmt.Errorf("there is no ConfigMap %s, or it cannot be read", ref)
	}
	return o, nil
}

// keySet is the JSON Web Key Set of RFC 7517, A.1.
const keySet = `{"keys": [
	{"kty":"EC", "crv":"P-256", "x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
		"y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM", "use":"enc", "kid":"1"},
	{"kty":"RSA", "n": "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWK` +
	`RXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0` +
	`zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU` +
	`8awapJzKnqDKgw", "e":"AQAB", "alg":"RS256", "kid":"2011-04-29"}]}`

// resources returns the Backend of a name that rows use.
func resources(_ Scope, ref Ref) (*Resource, error) {
	text := func(lines string) func() (haproxy.Text, error) {
		return func() (haproxy.Text, error) { return haproxy.ParseText(haproxy.BackendSection, lines) }
	}
	slow := []Said{{"timeout-server", "haproxy.org/cr-backend", "9s", "server_timeout"}}
	switch ref.Name {
	case "slow":
		return &Resource{Said: slow, Left: []string{"source has no effect: it is ours"}}, nil
	case "wrong":
		return &Resource{Said: []Said{{"timeout-server", "haproxy.org/cr-backend", "never", "server_timeout"}}}, nil
	case "lines":
		return &Resource{Said: slow, Lines: []string{"fullconn", "retries"}, Text: text("fullconn 9\nretries 2")}, nil
	case "bad", "new":
		return &Resource{Lines: []string{"retries"}, Text: text("retries " + ref.Name)}, nil
	case "closed", "bad-rules", "new-rules":
		line, _, _ := strings.Cut(ref.Name, "-")
		return &Resource{
			Lines: []string{"http_request_rule_list"}, Rules: true, Text: text("http-request deny # " + line),
		}, nil
	}
	return nil, fmt.Errorf("there is no Backend %s", ref)
}

// sections returns the Global or the Defaults of a name that rows use.
func sections(kind Kind, into haproxy.Section, ref Ref) (*Section, error) {
	if ref.Name == "unread" {
		return nil, nil //nolint:nilnil // as Env wants it
	}
	line := func(name, text string) FieldText {
		t, err := haproxy.ParseText(haproxy.GlobalSection, text)
		return FieldText{Name: name, Text: t, Err: err}
	}
	front := func(field FieldText, text string) (*Section, error) {
		field.Text, field.Err = haproxy.ParseText(into, text)
		return &Section{Fields: []FieldText{field, {Name: "maxconn", Err: errors.New("no number")}}}, nil
	}
	rules := FieldText{Name: "http_request_rule_list", Guard: true}
	switch kind.in() + ref.Name {
	case "cr-frontend rules":
		return front(rules, "http-request deny")
	case "cr-frontend new":
		return front(rules, "http-request new")
	case "cr-frontend bad":
		return front(rules, "http-request bad")
	case "cr-frontend line":
		return front(FieldText{Name: "log_tag"}, "log-tag new")
	case "cr-global tuned":
		return &Section{
			Said:   []Said{{"maxconn", "cr-global", "9", "performance_options.maxconn"}},
			Fields: []FieldText{line("tune_options.maxaccept", "tune.maxaccept 3"), line("new", "new")},
			Left:   []string{"user has no effect: it is ours"},
		}, nil
	case "cr-global wrong":
		return &Section{
			Said:   []Said{{"nbthread", "cr-global", "99", "nbthread"}},
			Fields: []FieldText{line("set_var", "set-var a int(1)"), line("speed", "bad 1"), line("node", "node a")},
		}, nil
	case "cr-defaults slow":
		return &Section{Said: []Said{
			{"timeout-client", "cr-defaults", "7ms", "client_timeout"},
			{"timeout-server", "cr-defaults", "9ms", "server_timeout"},
		}}, nil
	}
	return nil, fmt.Errorf("there is no %s %s", kind, ref)
}

// in returns the beginning of the name of a row's Global or Defaults.
func (k Kind) in() string { return "cr-" + strings.ToLower(string(k)) + " " }

// env has the Secrets that rows name, takes no snippets of Services, and knows
// what HAProxy says of a text by a word in it.
var env = Env{
	Secrets: secrets, ConfigMaps: configMaps,
	Allowed: func(s Scope, section haproxy.Section) error {
		if s == Service && section == haproxy.BackendSection {
			return errors.New("no snippets of Services")
		}
		return nil
	},
	Service: func(_ Scope, to ServicePort, _ Purpose) (string, error) {
		if to.Service.Namespace == "theirs" {
			return "", errors.New("not yours")
		}
		return to.Service.Name + "_" + to.Port, nil
	},
	Backend:  resources,
	Section:  sections,
	Pattern:  func(name string) (string, bool) { return "10.0.0.0/8 # ours\n\n192.0.2.1\n", name == "ours" },
	Cluster:  "c",
	TakenUDP: map[uint16]string{546: "another program"},
	Tenant:   "c_team", Namespace: "team",
	Bounds:  Bounds{Lines: 3, Entries: 4, CaptureBytes: 1000, WrongPasswords: 7},
	Refusal: func(haproxy.Part) string { return "" },
	Verdict: func(q haproxy.Question) haproxy.Verdict {
		if strings.Contains(q.String(), "bad") {
			return haproxy.Refused("HAProxy: unknown keyword 'bad'")
		}
		return haproxy.Verdict{Known: !strings.Contains(q.String(), "new")}
	},
}

// The directives that reject requests without TLS of that name, and requests without a
// certificate.
const (
	ownTLS = `http-request return status 403 content-type text/plain string "only over TLS\n" if !{ ssl_fc }
http-request set-var(txn.host) req.hdr(host),host_only,lower
http-request return status 421 content-type text/plain string "not on this connection\n" if !{ ssl_fc_sni,lower,strcmp(txn.host) eq 0 }
`
	copies = "filter lua.sallyport_mirror\nhttp-request set-var(txn.copy_path) pathq\n" +
		"http-request set-var(txn.copy_from) src\nhttp-request set-var(txn.copy0) str(c/team:app_80)\n"
	cookies = "http-response lua.sallyport_cookies if { var(txn.sallyport_cookies) -m found }\n"

	shown = `http-request return status 403 content-type text/plain string "only with a certificate\n" if !{ ssl_c_used }
`
)

// tell lists the results of layers, one a line. It leaves out the results that empty
// layers have, too.
func tell(layers []Layer) string {
	global, _, odd := Process(env, layers[2])
	env := env
	env.Demanded = global.Clients
	s, _, problems := Compile("o", env, layers...)
	passed, more := Passthrough(layers...)
	problems = append(problems, more...)
	if passed {
		s, _, problems = CompileTCP(env, Passed, layers...)
	}
	redirect, more := SSLRedirect(layers...)
	problems = append(problems, more...)
	problems = append(problems, odd...)
	process := global.Process
	to, ofAll, more := DefaultBackend(layers[2])
	problems = append(problems, more...)
	takes, canary, more := Canary(layers[1])
	problems = append(problems, more...)
	paths, more := PathType(layers[1])
	problems = append(problems, more...)
	var out strings.Builder
	for _, l := range process.Lines {
		fmt.Fprintln(&out, l)
	}
	process.Lines = nil
	if text := fields(process); text != "" {
		fmt.Fprintln(&out, "process:"+text)
	}
	if ofAll {
		fmt.Fprintln(&out, "default", to.Service, to.Port)
	}
	var when Condition
	if Conditional(layers[0]) {
		var more []Problem
		when, more = RouteACL(env, layers[0])
		problems = append(problems, more...)
		fmt.Fprintf(&out, "only %v %s\n", when.Usable, when.Text)
	}
	if paths != haproxy.Prefix {
		fmt.Fprintln(&out, "paths", paths)
	}
	if canary {
		fmt.Fprintln(&out, "canary", takes.Weight)
		if takes.Stays {
			fmt.Fprintln(&out, "stays")
		}
		for _, rule := range takes.Rules {
			fmt.Fprintln(&out, rule.Take, rule.If)
		}
	}
	if redirect.Wanted != nil {
		fmt.Fprintln(&out, "to HTTPS", *redirect.Wanted, redirect.Code, redirect.Port)
	}
	usual := haproxy.Option("forwardfor", true)
	if passed {
		fmt.Fprintln(&out, "passed through")
	} else if !slices.Contains(s.Directives, usual) {
		fmt.Fprintln(&out, "without", usual)
	}
	for _, d := range s.Directives {
		if d != usual {
			fmt.Fprintln(&out, d)
		}
	}
	s.Options.Check = !s.Options.Check // it is the default
	if text := fields(s.Options); text != "" {
		fmt.Fprintln(&out, "servers:"+text)
	}
	for _, u := range s.Userlists {
		fmt.Fprint(&out, "users ", u.Name)
		for _, user := range u.Users {
			fmt.Fprint(&out, " ", user.Name)
		}
		fmt.Fprintln(&out)
	}
	for _, e := range slices.Concat(s.Extras, global.Extras) {
		fmt.Fprintln(&out, "file", e.Name)
	}
	for _, x := range slices.Concat(when.Asked, s.Questions, global.Questions) {
		fmt.Fprintf(&out, "asks about %q\n", x)
	}
	if len(global.DefaultCert) > 0 {
		fmt.Fprintln(&out, "a default certificate")
	}
	for _, t := range s.Tables {
		fmt.Fprintf(&out, "table %s, %d clients, %s\n", t.Name, t.Size, t.Period)
	}
	if len(s.Captures) > 0 {
		fmt.Fprintln(&out, "captures", s.Captures)
	}
	for _, l := range layers {
		problems = append(problems, l.Odd...)
	}
	for _, p := range problems {
		fmt.Fprintf(&out, "! %s %s: %s\n", p.Scope, p.Reason, p.Why)
	}
	return strings.TrimSpace(out.String())
}

func TestEveryKeyComesToItsDirective(t *testing.T) {
	rows := []struct {
		said []string
		want string
	}{
		{nil, ""},
		{
			on4("allow-list: 10.0.0.0/8, 192.0.2.1"),
			"acl sp_allowed src 10.0.0.0/8 192.0.2.1/32\nhttp-request deny deny_status 403 if !sp_allowed",
		},
		{
			on4("allow-list: patterns/ours"),
			"acl sp_allowed src,map_ip(DIR/lists/c_ours) -m found\nhttp-request deny deny_status 403 if !sp_allowed",
		},
		{
			on4("deny-list: pattern/theirs"),
			`CLOSED! Ingress InvalidAnnotation: annotation haproxy.org/deny-list: there is no list "theirs" (clusters[].ingress.patternFiles); all clients are rejected until it is corrected`,
		},
		{
			on4("whitelist: fd00::1"),
			"acl sp_allowed src fd00::1/128\nhttp-request deny deny_status 403 if !sp_allowed\n" +
				"! Ingress OlderAnnotation: annotation haproxy.org/whitelist is deprecated and still used; write " +
				"allow-list instead",
		},
		{on4("deny-list: 10.0.0.0/8"), "acl sp_denied src 10.0.0.0/8\nhttp-request deny deny_status 403 if sp_denied"},
		{
			on4("blacklist: 10.0.0.0/8"),
			"acl sp_denied src 10.0.0.0/8\nhttp-request deny deny_status 403 if sp_denied\n" +
				"! Ingress OlderAnnotation: annotation haproxy.org/blacklist is deprecated and still used; write " +
				"deny-list instead",
		},
		{
			on4("rate-limit-requests: 10"),
			"http-request track-sc0 src table o_rate\n" +
				"http-request deny deny_status 403 if { sc_http_req_rate(0,o_rate) gt 10 } or !{ sc_tracked(0) }\n" +
				"table o_rate, 102400 clients, 1s",
		},
		{
			on4("rate-limit-requests: 10", "rate-limit-period: 1m", "rate-limit-status-code: 429", "rate-limit-size: 5",
				"rate-limit-whitelist: 10.0.0.0/8"),
			"acl sp_unlimited src 10.0.0.0/8\nhttp-request track-sc0 src table o_rate if !sp_unlimited\n" +
				"http-request deny deny_status 429 if { sc_http_req_rate(0,o_rate) gt 10 } !sp_unlimited or !{ " +
				"sc_tracked(0) } !sp_unlimited\ntable o_rate, 5 clients, 1m0s",
		},
		{on4("src-ip-header: X-Real-IP"), "http-request set-src hdr(X-Real-IP)"},
		{on4("check: false"), "servers: Check=true"},
		{on4("check-interval: 5s"), "servers: CheckInterval=5s"},
		{
			on4("check-interval: 1ms"),
			`servers: CheckInterval=500ms
! Ingress LimitReached: annotation haproxy.org/check-interval: "1ms" is shorter than 500ms, which is used instead; only the ConfigMap may set less`,
		},
		{onAll("check-interval: 1ms"), "servers: CheckInterval=1ms"},
		{on4("check-http: /health"), "option httpchk OPTIONS '/health'"},
		{on4("check-http: GET /health HTTP/1.1"), "option httpchk GET '/health' HTTP/1.1"},
		{on4("pod-maxconn: 30"), "servers: MaxConn=30"},
		{on4("server-ssl: true"), "servers: TLS=true"},
		{on4("server-proto: h2"), "servers: Proto=h2"},
		{on4("send-proxy-protocol: proxy-v2"), "servers: SendProxy=proxy-v2"},
		{on4("forwarded-for: false"), "without option forwardfor"},
		{on4("sallyport.dev/forwarded-headers: true"), haproxy.ForwardedHeaders().String()},
		{on4("abortonclose: true"), "option abortonclose"},
		{onAll("abortonclose: true"), "option abortonclose\noption abortonclose"}, // of the backend, and of all
		{
			on4("load-balance: hdr(X-User)"),
			"balance hdr(X-User)\nhash-type consistent\n.if version_atleast(3.0)\ndefault-server hash-key addr-port\n" +
				".endif",
		},
		{on4("timeout-server: 5m"), "timeout server 300000ms"},
		{on4("timeout-check: 300"), "timeout check 300ms"},
		{
			on4("timeout-connect: 1s", "timeout-queue: 2s", "timeout-tunnel: 1d"),
			"timeout connect 1000ms\ntimeout queue 2000ms\ntimeout tunnel 86400000ms",
		},
		{
			on4("sallyport.dev/hsts: true"),
			"http-after-response set-header Strict-Transport-Security 'max-age=15768000' if { ssl_fc }",
		},
		{
			on4("sallyport.dev/hsts: true", "sallyport.dev/hsts-max-age: 60",
				"sallyport.dev/hsts-include-subdomains: true", "sallyport.dev/hsts-preload: true"),
			"http-after-response set-header Strict-Transport-Security 'max-age=60; includeSubDomains; preload' " +
				"if { ssl_fc }",
		},
		{
			on4("sallyport.dev/proxy-body-size: 8m"),
			"http-request deny deny_status 413 if { req.hdr_val(content-length) gt 8388608 }",
		},
		{
			on4("sallyport.dev/response-headers-from: headers"),
			"http-response set-header Cache-Control '\"no-store\"'\nhttp-response set-header X-A '50%% of %%[src]'",
		},
		{on4("server-proto: fcgi"), strings.TrimSpace(fastCGIOf("path,url_dec", ""))},
		{
			on4("server-proto: fcgi", "sallyport.dev/fcgi-docroot: /srv", "sallyport.dev/fcgi-index: index.php",
				"sallyport.dev/fcgi-params-from: params"),
			strings.Replace(strings.TrimSpace(fastCGIOf("path,url_dec,regsub(/$,/index.php)",
				"http-request set-var-fmt(txn.fcgi_param_APP) '50%% '\\''of'\\'' /x%[var(txn.fcgi_script)]?%[query] "+
					"%[req.hdr(x-mode)]'\n")), "http-request set-var-fmt(txn.fcgi_param_REDIRECT",
				"http-request del-header '(?i)^PROXY$' -m reg\nhttp-request set-var-fmt(txn.fcgi_param_REDIRECT", 1),
		},
		{
			on4("server-proto: fcgi", "sallyport.dev/fcgi-params-from: odd-params"), fastCGIOf("path,url_dec", "") +
				"! Ingress ParameterLeftOut: annotation sallyport.dev/fcgi-params-from: parameter \"A\": the variable $pid " +
				"of nginx has no equal here; it is left out\n" +
				"! Ingress ParameterLeftOut: annotation sallyport.dev/fcgi-params-from: parameter \"B C\": \"B C\" is not " +
				"the name of a parameter: allowed are up to 64 letters, digits and _; it is left out\n" +
				"! Ingress ParameterLeftOut: annotation sallyport.dev/fcgi-params-from: parameter \"D\": " +
				"\"x\\nhttp-request allow\" has the control character '\\n', which is not allowed; it is left out",
		},
		{
			on4("server-proto: fcgi", "sallyport.dev/fcgi-params-from: odder-params"),
			strings.Replace(fastCGIOf("path,url_dec", ""), "'%[var(txn.fcgi_uri)]'", "'/fixed'", 1) +
				"! Ingress ParameterLeftOut: annotation sallyport.dev/fcgi-params-from: parameter \"E\": \"5$\" has a $ " +
				"that no variable follows; it is left out\n" +
				"! Ingress ParameterLeftOut: annotation sallyport.dev/fcgi-params-from: parameter \"REMOTE_ADDR\": " +
				"HAProxy sends its own value instead of an empty one; it is left out",
		},
		{
			on4("server-proto: fcgi", "sallyport.dev/fcgi-params-from: gone"), fastCGIOf("path,url_dec", "") +
				"! Ingress InvalidAnnotation: annotation sallyport.dev/fcgi-params-from: there is no ConfigMap gone, or it " +
				"cannot be read; it is ignored",
		},
		{
			on4("server-proto: fcgi", "sallyport.dev/fcgi-params-from: many"), fastCGIOf("path,url_dec", "") +
				"! Ingress InvalidAnnotation: annotation sallyport.dev/fcgi-params-from: ConfigMap many has 65 entries; " +
				"allowed are 3 (clusters[].ingress.limits.lines); it is ignored",
		},
		{
			on4("server-proto: fcgi", "server-ssl: true"), "servers: TLS=true\n! Ingress InvalidAnnotation: annotation " +
				"haproxy.org/server-proto: servers of FastCGI have no TLS: remove server-ssl, server-ca and server-crt; it " +
				"is ignored",
		},
		{
			on4("server-proto: fcgi", "sallyport.dev/mirror-to: svc://team/app:80", "sallyport.dev/limit-rate: 1k"),
			fastCGIOf("path,url_dec", "") + "! Ingress InvalidAnnotation: annotation sallyport.dev/limit-rate: HAProxy has " +
				"it for HTTP to servers, and not for FastCGI (server-proto); it is ignored\n! Ingress InvalidAnnotation: " +
				"annotation sallyport.dev/mirror-to: HAProxy has it for HTTP to servers, and not for FastCGI " +
				"(server-proto); it is ignored",
		},
		{
			on4("server-proto: fcgi", "sallyport.dev/fcgi-docroot: srv", "sallyport.dev/fcgi-index: a/b"),
			fastCGIOf("path,url_dec", "") + "! Ingress InvalidAnnotation: annotation sallyport.dev/fcgi-docroot: \"srv\" " +
				"is not a directory: allowed are a / and up to 250 letters, digits and / . _ ~ + @ : -; it is ignored\n" +
				"! Ingress InvalidAnnotation: annotation sallyport.dev/fcgi-index: \"a/b\" is not the name of a file: " +
				"allowed are letters, digits and - _ .; it is ignored",
		},
		{
			on4("sallyport.dev/response-headers-from: gone"),
			"! Ingress InvalidAnnotation: annotation sallyport.dev/response-headers-from: there is no ConfigMap gone, or it " +
				"cannot be read; it is ignored",
		},
		{
			on4("sallyport.dev/response-headers-from: bad-header"),
			"! Ingress InvalidAnnotation: annotation sallyport.dev/response-headers-from: ConfigMap bad-header, entry \"X A\": " +
				`"X A" is not the name of a header: allowed are letters, digits, "-", "_" and "."; it is ignored`,
		},
		{
			on4("sallyport.dev/response-headers-from: line"),
			"! Ingress InvalidAnnotation: annotation sallyport.dev/response-headers-from: ConfigMap line, entry \"X-A\": " +
				"\"x\\nhttp-request allow\" has the control character '\\n', which is not allowed; it is ignored",
		},
		{
			on4("sallyport.dev/response-headers-from: many"),
			"! Ingress InvalidAnnotation: annotation sallyport.dev/response-headers-from: ConfigMap many has 65 entries; " +
				"allowed are 3 (clusters[].ingress.limits.lines); it is ignored",
		},
		{
			on4("sallyport.dev/request-add-headers: X-A b", "sallyport.dev/request-del-headers: X-C\nX-D"),
			"http-request del-header '(?i)^(?!x-c$)x[-_.]c$' -m reg\nhttp-request del-header X-C\n" +
				"http-request del-header '(?i)^(?!x-d$)x[-_.]d$' -m reg\nhttp-request del-header X-D\n" +
				"http-request add-header X-A 'b'",
		},
		{
			on4("sallyport.dev/response-add-headers: X-A b", "sallyport.dev/response-del-headers: Server"),
			"http-response del-header Server\nhttp-response add-header X-A 'b'",
		},
		{on4("sallyport.dev/app-root: /start"), "http-request redirect location '/start' code 302 if { path / }"},
		{on4("path-rewrite: /"), "http-request replace-path '(*LIMIT_MATCH=10000)(.*)' '/'"},
		{
			on4("path-rewrite: ^/a/(.*) /\\1\n^/b /c\n"),
			"http-request replace-path '(*LIMIT_MATCH=10000)^/a/(.*)' '/\\1'\n" +
				"http-request replace-path '(*LIMIT_MATCH=10000)^/b' '/c'",
		},
		{
			on4("request-set-header: X-A \"b c\"\nX-B %[src]"),
			"http-request del-header '(?i)^(?!x-a$)x[-_.]a$' -m reg\nhttp-request set-header X-A 'b c'\n" +
				"http-request del-header '(?i)^(?!x-b$)x[-_.]b$' -m reg\nhttp-request set-header X-B '%[src]'",
		},
		{
			on4("response-set-header: Cache-Control \"no-store,no-cache\""),
			"http-response set-header Cache-Control 'no-store,no-cache'",
		},
		{
			on4("request-redirect: other.test"),
			"http-request redirect location https://other.test%[pathq] code 302 if { ssl_fc }\n" +
				"http-request redirect location http://other.test%[pathq] code 302",
		},
		{
			on4("request-redirect: https://other.test:8443", "request-redirect-code: 301"),
			"http-request redirect location https://other.test:8443%[pathq] code 301",
		},
		{
			on4("request-capture: req.hdr(X-A)\ncookie(id)"),
			"http-request capture req.hdr(X-A) id 0\nhttp-request capture cookie(id) id 1\ncaptures [128 128]",
		},
		{
			on4("request-capture: src\ndst\nmethod", "request-capture-len: 65535"),
			"http-request capture src id 0\nhttp-request capture dst id 1\nhttp-request capture method id 2\n" +
				"captures [333 333 333]\n" +
				"! Ingress LimitReached: annotation haproxy.org/request-capture-len: 3 samples of 65535 bytes are " +
				"more than 1000 bytes together (clusters[].ingress.limits.captureBytes); each has 333 bytes",
		},
		{
			append(on4("request-capture: src\ndst"), onAll("request-capture-len: 65535")...),
			"http-request capture src id 0\nhttp-request capture dst id 1\ncaptures [500 500]\n" +
				"! Ingress LimitReached: annotation request-capture-len: 2 samples of 65535 bytes are more than 1000 " +
				"bytes together (clusters[].ingress.limits.captureBytes); each has 500 bytes",
		},
		{
			onAll("request-capture: src", "request-capture-len: 65535"),
			"http-request capture src id 0\ncaptures [65535]",
		},
		{on4("request-capture: src", "request-capture-len: 40"), "http-request capture src id 0\ncaptures [40]"},
		{on4("set-host: other.test"), "http-request set-header Host 'other.test'"},
		{on4("standalone-backend: true", "scale-server-slots: 4"), ""},
		{on4("ssl-redirect: false"), "to HTTPS false 302 0"},
		{on4("ssl-redirect: true", "ssl-redirect-code: 301", "ssl-redirect-port: 8443"), "to HTTPS true 301 8443"},
		{on4("cors-enable: false", "cors-allow-origin: *"), ""},
		{
			on4("cors-enable: true", "cors-allow-origin: https://a\\.test", "cors-allow-methods: get,POST",
				"cors-allow-headers: X-A, X-B", "cors-allow-credentials: true", "cors-max-age: 1h",
				"cors-respond-to-options: true"),
			`http-request set-var(txn.cors_origin) req.fhdr(origin)
http-request return status 204 if METH_OPTIONS
http-after-response add-header Vary Origin
http-after-response set-header Access-Control-Allow-Origin %[var(txn.cors_origin)] if { var(txn.cors_origin) -m reg '(*LIMIT_MATCH=10000)^(?:https://a\.test)$' }
http-after-response set-header Access-Control-Allow-Methods 'GET, POST' if { var(txn.cors_origin) -m reg '(*LIMIT_MATCH=10000)^(?:https://a\.test)$' }
http-after-response set-header Access-Control-Allow-Headers 'X-A, X-B' if { var(txn.cors_origin) -m reg '(*LIMIT_MATCH=10000)^(?:https://a\.test)$' }
http-after-response set-header Access-Control-Allow-Credentials true if { var(txn.cors_origin) -m reg '(*LIMIT_MATCH=10000)^(?:https://a\.test)$' }
http-after-response set-header Access-Control-Max-Age 3600 if { var(txn.cors_origin) -m reg '(*LIMIT_MATCH=10000)^(?:https://a\.test)$' }`,
		},

		{
			onAll("maxconn: 1000", "nbthread: 4", "tls-alpn: http/1.1", "client-strict-sni: true"),
			"process: MaxConn=1000 Threads=4 ALPN=http/1.1 StrictSNI=true",
		},
		{
			onAll("hard-stop-after: 1h", "http-connection-mode: httpclose", "http-keep-alive: true"),
			"hard-stop-after 3600000ms\noption httpclose\n" +
				"! ConfigMap OlderAnnotation: key http-keep-alive is deprecated and ignored, since " +
				"http-connection-mode is set, too",
		},
		{
			onAll("http-server-close: false", "http-keep-alive: true"),
			"option http-keep-alive\n" +
				"! ConfigMap OlderAnnotation: key http-keep-alive is deprecated and ignored, since " +
				"http-connection-mode is set, too\n" +
				"! ConfigMap OlderAnnotation: key http-server-close is deprecated and still used; write " +
				"http-connection-mode instead",
		},
		{
			onAll("http-server-close: maybe"),
			"! ConfigMap InvalidAnnotation: key http-server-close: \"maybe\" is neither \"true\" nor \"false\"; it " +
				"is ignored\n" +
				"! ConfigMap OlderAnnotation: key http-server-close is deprecated and still used; write " +
				"http-connection-mode instead",
		},
		{onAll("clean-certs: true", "prometheus-endpoint-auth-secret: ops/metrics"), ""},
		{
			on4("ingress.class: haproxy"),
			"! Ingress OlderAnnotation: annotation haproxy.org/ingress.class is deprecated and still used; write " +
				"spec.ingressClassName instead",
		},
		{
			[]string{"service server-increment: 4", "configmap servers-increment: 4"},
			"! Service OlderAnnotation: annotation haproxy.org/server-increment is deprecated and still used; write " +
				"scale-server-slots instead\n" +
				"! ConfigMap OlderAnnotation: key servers-increment is deprecated and still used; write " +
				"scale-server-slots instead",
		},
		{
			onAll("http-server-close: true", "dontlognull: false", "logasap: true"),
			"option http-server-close\nno option dontlognull\nno option http-ignore-probes\noption logasap\n" +
				"! ConfigMap OlderAnnotation: key http-server-close is deprecated and still used; write " +
				"http-connection-mode instead",
		},
		{
			onAll("timeout-client: 1s", "timeout-client-fin: 2s", "timeout-http-request: 3s",
				"timeout-http-keep-alive: 4s", "timeout-server-fin: 5s"),
			"timeout client 1000ms\ntimeout client-fin 2000ms\ntimeout http-request 3000ms\n" +
				"timeout http-keep-alive 4000ms\ntimeout server-fin 5000ms",
		},
		{
			onAll("syslog-server: address:192.0.2.1, port:1514, format:rfc5424, level:info\n" +
				"address:stdout, format:raw, facility:daemon"),
			"log 192.0.2.1:1514 format rfc5424 local0 info\nlog stdout format raw daemon\nlog global\noption httplog",
		},
		{
			onAll("syslog-server: address:log.test"),
			`! ConfigMap InvalidAnnotation: key syslog-server: "log.test" is not a log target: allowed are an IP address, stdout and stderr; it is ignored`,
		},

		{on4("cookie-persistence: SRV"), "cookie SRV insert indirect nocache dynamic\ndynamic-cookie-key \x03"},
		{
			on4("cookie-persistence-no-dynamic: SRV"),
			"cookie SRV insert indirect nocache dynamic\ndynamic-cookie-key \x03",
		},
		{
			on4("sallyport.dev/session-cookie-name: A", "sallyport.dev/session-cookie-domain: a.test",
				"sallyport.dev/session-cookie-preserve: true", "sallyport.dev/session-cookie-path: /in",
				"sallyport.dev/session-cookie-max-age: 600",
				"sallyport.dev/session-cookie-same-site: true",
				"sallyport.dev/session-cookie-keywords: httponly indirect maxidle 30m maxlife 8h"),
			"cookie A insert indirect nocache dynamic domain a.test attr SameSite=None attr 'Path=/in' attr Max-Age=600 " +
				"httponly secure preserve maxidle 1800s maxlife 28800s\ndynamic-cookie-key \x03",
		},
		{
			on4("sallyport.dev/session-cookie-name: A", "sallyport.dev/session-cookie-path: /a;Secure"),
			"cookie A insert indirect nocache dynamic\ndynamic-cookie-key \x03\n! Ingress InvalidAnnotation: annotation " +
				`sallyport.dev/session-cookie-path: "/a;Secure" is not the path of a cookie: allowed are a / and up to ` +
				"250 letters, digits and / . _ ~ % + @ : -; it is ignored",
		},
		{
			on4("sallyport.dev/session-cookie-name: A", "sallyport.dev/session-cookie-keywords: rewrite"),
			"cookie A insert indirect nocache dynamic\ndynamic-cookie-key \x03\n" +
				`! Ingress InvalidAnnotation: annotation sallyport.dev/session-cookie-keywords: "rewrite" is not one of httponly, secure, maxidle TIME, maxlife TIME; it is ignored`,
		},
		{
			on4("auth-type: basic-auth", "auth-secret: users", "auth-realm: Members only"),
			login("users_users", "Members only") + "\nusers users_users ann bob",
		},
		{on4("auth-secret: other/htpasswd"), login("users_other_htpasswd", "Protected Content") +
			"\nusers users_other_htpasswd ann"},
		{
			on4("client-ca: ca", "client-crt-optional: true"),
			`http-request return status 403 content-type text/plain string "only over TLS\n" if !{ ssl_fc }
http-request set-var(txn.host) req.hdr(host),host_only,lower
http-request return status 421 content-type text/plain string "not on this connection\n" if !{ ssl_fc_sni,lower,strcmp(txn.host) eq 0 }
file ca.ca.pem`,
		},
		{
			on4("client-ca: ca", "sallyport.dev/client-crt-error-page: https://page.test/"),
			`http-request return status 403 content-type text/plain string "only over TLS\n" if !{ ssl_fc }
http-request set-var(txn.host) req.hdr(host),host_only,lower
http-request return status 421 content-type text/plain string "not on this connection\n" if !{ ssl_fc_sni,lower,strcmp(txn.host) eq 0 }
http-request redirect location 'https://page.test/' code 302 if !{ ssl_c_used }
file ca.ca.pem`,
		},
		{on4("sallyport.dev/client-crt-error-page: https://page.test/"), "! Ingress InvalidAnnotation: annotation " +
			"sallyport.dev/client-crt-error-page: it needs a client-ca on the same Ingress; it is ignored"},
		{on4("server-ca: ca"), "servers: TLS=true CA=ca.ca.pem\nfile ca.ca.pem"},
		{
			on4("server-ca: tls", "server-crt: tls"),
			"servers: TLS=true CA=tls.ca.pem Crt=tls.crt.pem\nfile tls.ca.pem\nfile tls.crt.pem",
		},
		{
			on4("server-ca: ca", "sallyport.dev/secure-sni: host"),
			"servers: TLS=true CA=ca.ca.pem SNI=host\nfile ca.ca.pem",
		},
		{
			on4("server-ca: ca", "sallyport.dev/secure-verify-hostname: a.test"),
			"servers: TLS=true CA=ca.ca.pem VerifyHost=a.test\nfile ca.ca.pem",
		},
		{
			on4("server-ca: ca", "sallyport.dev/secure-sni: host", "sallyport.dev/secure-verify-hostname: a.test"),
			"CLOSEDservers: TLS=true CA=ca.ca.pem SNI=host\nfile ca.ca.pem\n" +
				"! Ingress InvalidAnnotation: annotation sallyport.dev/secure-verify-hostname: HAProxy verifies the " +
				"name in secure-sni, which is another one: set the same name in both; all clients are rejected until " +
				"it is corrected",
		},
		{on4("server-ssl: true", "sallyport.dev/secure-sni: a.test"), "servers: TLS=true SNI=a.test"},
		{on4("sallyport.dev/secure-sni: a.test"), ""},
		{on4("server-ssl: true", "sallyport.dev/secure-verify-hostname: a.test"), "CLOSEDservers: TLS=true\n" +
			"! Ingress InvalidAnnotation: annotation sallyport.dev/secure-verify-hostname: certificates are verified " +
			"only with a server-ca: set it, too; all clients are rejected until it is corrected"},
		{
			on4("sallyport.dev/auth-url: svc://ops/door:http/check?a=b",
				"sallyport.dev/auth-signin: https://login.test/?rd=%[url]", "sallyport.dev/auth-method: *",
				"sallyport.dev/auth-headers-request: Cookie,X-A", "sallyport.dev/auth-headers-succeed: X-User",
				"sallyport.dev/auth-headers-fail: X-Why", "sallyport.dev/auth-set-headers: X-Auth-Request-Redirect %[url]\nX-B 'c d'"),
			"http-request set-var-fmt(txn.sallyport_ask0) '%[url]'\n" +
				"http-request set-var-fmt(txn.sallyport_ask1) 'c d'\n" +
				"http-request lua.sallyport_ask door_http door.ops * '/check?a=b' cookie,x-a x-user x-why signin " +
				"x-auth-request-redirect,x-b\n" +
				"http-request redirect location 'https://login.test/?rd=%[url]' code 302 if { " +
				"var(txn.sallyport_auth) -m str signin }\n" + cookies +
				`http-request return status 503 content-type text/plain string "the authentication service gives no answer\n" if !{ var(txn.sallyport_auth) -m str yes }` + "\nfile auth.lua\nasks about \"tune.lua.maxmem 0\"",
		},
		{
			on4("sallyport.dev/auth-url: service://door:4180"),
			"http-request lua.sallyport_ask door_4180 door GET '/' * - * - -\n" + cookies +
				`http-request return status 503 content-type text/plain string "the authentication service gives no answer\n" if !{ var(txn.sallyport_auth) -m str yes }` + "\nfile auth.lua\nasks about \"tune.lua.maxmem 0\"",
		},
		{
			on4("sallyport.dev/auth-url: svc://door:80", "sallyport.dev/auth-set-headers: X-A %[path]",
				"sallyport.dev/auth-set-headers-from: team"),
			"http-request set-var-fmt(txn.sallyport_ask0) '%[path]'\n" +
				"http-request set-var-fmt(txn.sallyport_ask1) 'c'\n" +
				"http-request set-var-fmt(txn.sallyport_ask2) '100%% #a b'\n" +
				"http-request lua.sallyport_ask door_80 door GET '/' * - * - x-a,a_b,x-team\n" +
				cookies + `http-request return status 503 content-type text/plain string "the authentication service gives no answer\n" if !{ var(txn.sallyport_auth) -m str yes }` + "\nfile auth.lua\nasks about \"tune.lua.maxmem 0\"",
		},
		{
			on4("sallyport.dev/auth-url: svc://door:80", "sallyport.dev/auth-set-headers-from: gone"),
			`CLOSED! Ingress InvalidAnnotation: annotation sallyport.dev/auth-set-headers-from: there is no ConfigMap gone, or it cannot be read; all clients are rejected until it is corrected`,
		},
		{
			on4("sallyport.dev/auth-url: svc://door:80", "sallyport.dev/auth-set-headers-from: variable"),
			`CLOSED! Ingress InvalidAnnotation: annotation sallyport.dev/auth-set-headers-from: ConfigMap variable, entry "X-Host": it has a $, and variables are not served; all clients are rejected until it is corrected`,
		},
		{
			on4("sallyport.dev/auth-url: svc://door:80", "sallyport.dev/auth-set-headers-from: host"),
			`CLOSED! Ingress InvalidAnnotation: annotation sallyport.dev/auth-set-headers-from: ConfigMap host, entry "Host": the header "Host" is set by HAProxy; all clients are rejected until it is corrected`,
		},
		{
			on4("sallyport.dev/auth-url: svc://door:80", "sallyport.dev/auth-set-headers-from: line"),
			`CLOSED! Ingress InvalidAnnotation: annotation sallyport.dev/auth-set-headers-from: ConfigMap line, entry "X-A": "x\nhttp-request allow" has the control character '\n', which is not allowed; all clients are rejected until it is corrected`,
		},
		{
			on4("sallyport.dev/auth-url: svc://door:80", "sallyport.dev/auth-set-headers: Host other.test"),
			"CLOSEDasks about \"tune.lua.maxmem 0\"\n" +
				`! Ingress InvalidAnnotation: annotation sallyport.dev/auth-set-headers: the header "Host" is set by HAProxy; all clients are rejected until it is corrected`,
		},
		{
			on4("sallyport.dev/auth-url: svc://door:80", "sallyport.dev/auth-set-headers: X_Sallyport.Backend other"),
			"CLOSEDasks about \"tune.lua.maxmem 0\"\n" +
				`! Ingress InvalidAnnotation: annotation sallyport.dev/auth-set-headers: the header "X_Sallyport.Backend" is set by HAProxy; all clients are rejected until it is corrected`,
		},
		{
			on4("sallyport.dev/auth-url: ftp://door.test/"),
			`CLOSED! Ingress InvalidAnnotation: annotation sallyport.dev/auth-url: "ftp://door.test/": want svc://namespace/Service:port/path: only Services of the cluster are allowed, since only their pods have verified routes; all clients are rejected until it is corrected`,
		},
		{
			on4("sallyport.dev/auth-url: https://door.test/"),
			`CLOSED! Ingress InvalidAnnotation: annotation sallyport.dev/auth-url: no Ingress here serves it; all clients are rejected until it is corrected`,
		},
		{
			[]string{"configmap auth-url: /oauth2/auth"},
			`CLOSED! ConfigMap InvalidAnnotation: key auth-url: "/oauth2/auth": want svc://namespace/Service:port/path: only Services of the cluster are allowed, since only their pods have verified routes; all clients are rejected until it is corrected`,
		},
		{
			on4("sallyport.dev/auth-url: svc://theirs/door:80"),
			`CLOSED! Ingress InvalidAnnotation: annotation sallyport.dev/auth-url: not yours; all clients are rejected until it is corrected`,
		},
		{
			on4("sallyport.dev/auth-url: svc://door:80", "sallyport.dev/auth-headers-succeed: *"),
			`CLOSED! Ingress InvalidAnnotation: annotation sallyport.dev/auth-headers-succeed: * is not allowed: list the headers, so that HAProxy can delete the client's own; all clients are rejected until it is corrected`,
		},
		{
			on4("sallyport.dev/auth-url: svc://door:80", "sallyport.dev/auth-signin: login.test"),
			"CLOSEDasks about \"tune.lua.maxmem 0\"\n" +
				`! Ingress InvalidAnnotation: annotation sallyport.dev/auth-signin: "login.test" begins with none of https://, http:// and one "/"; all clients are rejected until it is corrected`,
		},
		{onAll("client-ca: ns/ca"), "process: ClientCA=ns_ca.ca.pem\nfile ns_ca.ca.pem"},
		{
			[]string{"configmap client-ca: ns/ca", "ingress client-ca: ca", "ingress client-crt-optional: true"},
			"process: ClientCA=ns_ca.ca.pem\n" + ownTLS + shown + "file ca.ca.pem\nfile ns_ca.ca.pem\n" +
				"! Ingress InvalidAnnotation: annotation haproxy.org/client-crt-optional: the ConfigMap requires a " +
				"certificate from all clients; it is ignored",
		},
		{
			[]string{"configmap client-ca: ns/ca", "ingress client-ca: others"},
			"process: ClientCA=ns_ca.ca.pem\nCLOSEDfile ns_ca.ca.pem\n" +
				"! Ingress InvalidAnnotation: annotation haproxy.org/client-ca: the ConfigMap requires certificates " +
				"of another authority from all clients, and a client shows one certificate: set client-ca in one of " +
				"the two places, or name the same authority in both; all clients are rejected until it is corrected",
		},
		{
			[]string{"configmap client-ca: gone", "ingress client-ca: ca"},
			"process: ClientCA=nobody\nCLOSED" +
				"! Ingress InvalidAnnotation: annotation haproxy.org/client-ca: the ConfigMap requires certificates " +
				"of another authority from all clients, and a client shows one certificate: set client-ca in one of " +
				"the two places, or name the same authority in both; all clients are rejected until it is corrected\n" +
				"! ConfigMap InvalidAnnotation: key client-ca: there is no Secret gone; all clients are rejected " +
				"until it is corrected",
		},
		{
			[]string{"configmap client-ca: ns/ca", "configmap client-crt-optional: true", "ingress client-ca: others"},
			"process: ClientCA=ns_ca.ca.pem ClientOptional=true\n" + ownTLS + shown +
				"file others.ca.pem\nfile ns_ca.ca.pem",
		},
		{
			[]string{"ingress path-rewrite: " + strings.Repeat("/a\n", 65)},
			"! Ingress InvalidAnnotation: annotation haproxy.org/path-rewrite: it has more than 64 lines; " +
				"it is ignored",
		},
		{onAll("generate-certificates-signer: tls"), "process: Signer=tls.sign.pem\nfile tls.sign.pem"},
		{
			onAll("generate-certificates-signer: users"),
			"! ConfigMap InvalidAnnotation: key generate-certificates-signer: Secret users: failed to find any PEM " +
				"data in certificate input; it is ignored",
		},
		{onAll("ssl-certificate: tls"), "a default certificate"},

		{
			on4("backend-config-snippet: # ours\n  http-request deny if { path /x }\n\n  option httpclose"),
			"http-request deny if { path /x }\noption httpclose\n" +
				"asks about \"http-request deny if { path /x }\\noption httpclose\"",
		},
		{
			on4("backend-config-snippet: # src -f patterns/gone\nacl us src -f patterns/ours -f patterns/ours\n" +
				"http-request deny if !us"),
			"acl us src '10.0.0.0/8' '192.0.2.1' '10.0.0.0/8' '192.0.2.1'\nhttp-request deny if !us\n" +
				"asks about \"acl us src '10.0.0.0/8' '192.0.2.1' '10.0.0.0/8' '192.0.2.1'\\nhttp-request " +
				"deny if !us\"",
		},
		{
			on4("backend-config-snippet: http-request deny\nhttp-request deny if { src -f patterns/gone }"),
			`! Ingress InvalidAnnotation: annotation haproxy.org/backend-config-snippet: line 2: there is no list "gone" (clusters[].ingress.patternFiles); it is ignored`,
		},
		{on4("backend-config-snippet: new"), "asks about \"new\""},
		{
			on4("backend-config-snippet: bad"),
			"asks about \"bad\"\n" +
				"! Ingress InvalidAnnotation: annotation haproxy.org/backend-config-snippet: HAProxy: unknown " +
				"keyword 'bad'; it is ignored",
		},
		{
			[]string{"service backend-config-snippet: a"},
			"! Service InvalidAnnotation: annotation haproxy.org/backend-config-snippet: no snippets of Services; " +
				"it is ignored",
		},
		{
			on4("backend-config-snippet: server a 192.0.2.1:80"),
			`! Ingress InvalidAnnotation: annotation haproxy.org/backend-config-snippet: line 1, "server a 192.0.2.1:80": the keyword "server" is reserved in the section backend: ingress/README.md lists the keys to use instead; it is ignored`,
		},
		{
			onAll("global-config-snippet: a", "frontend-config-snippet: b", "stats-config-snippet: c",
				"log-format: %ci it's", "syslog-server: address:stdout"),
			"log stdout local0\nlog global\nprocess: Texts=[a log-format '%ci it'\\''s' b]\nasks about \"a\"\n" +
				"asks about \"log-format '%ci it'\\\\''s'\"\nasks about \"b\"",
		},
		{onAll("log-format-tcp: %ci %b"), "process: Texts=[log-format '%ci %b']\nasks about \"log-format '%ci %b'\""},
		{
			onAll("quic-bind-port: 8443", "quic-announce-port: 443", "quic-alt-svc-max-age: 3600"),
			"process: QUIC={8443 443 3600}\nasks about \"" + haproxy.QUICSupport().String() + "\"",
		},
		{onAll("quic-bind-port: 443"), "process: QUIC={443 0 60}\nasks about \"" + haproxy.QUICSupport().String() +
			"\""},
		{
			onAll("quic-bind-port: 546"),
			"! ConfigMap InvalidAnnotation: key quic-bind-port: port 546 is in use by another program; HTTP/3 is not " +
				"offered; it is ignored",
		},
		{
			onAll("quic-bind-port: 0"),
			`! ConfigMap InvalidAnnotation: key quic-bind-port: "0" is not a number from 1 to 65535; it is ignored`,
		},

		// TLS that is passed through: lists and limits of connections hold, what is for requests is
		// told, and a guard of those closes.
		{on4("ssl-passthrough: true"), "passed through"},
		{
			on4("ssl-passthrough: maybe"),
			`! Ingress InvalidAnnotation: annotation haproxy.org/ssl-passthrough: "maybe" is neither "true" nor "false"; it is ignored`,
		},
		{[]string{"service ssl-passthrough: true", "ingress ssl-passthrough: false"}, "passed through"},
		{
			on4("ssl-passthrough: true", "allow-list: patterns/ours", "deny-list: 10.1.0.0/16", "pod-maxconn: 5",
				"send-proxy-protocol: proxy-v2", "check: false", "load-balance: source", "timeout-tunnel: 1m",
				"ssl-redirect: false"),
			`to HTTPS false 302 0
passed through
balance source
hash-type consistent
.if version_atleast(3.0)
default-server hash-key addr-port
.endif
timeout tunnel 60000ms
acl sp_allowed src,map_ip(DIR/lists/c_ours) -m found
tcp-request content reject if !sp_allowed
acl sp_denied src 10.1.0.0/16
tcp-request content reject if sp_denied
servers: Check=true MaxConn=5 SendProxy=proxy-v2`,
		},
		{
			on4("ssl-passthrough: true", "load-balance: hdr(x)", "set-host: a.test", "server-ssl: true",
				"backend-config-snippet: http-request deny"),
			`passed through
! Ingress NotForTCP: annotation haproxy.org/backend-config-snippet applies to HTTP requests, and this backend takes TCP connections; it is ignored
! Ingress NotForTCP: annotation haproxy.org/server-ssl applies to HTTP requests, and this backend takes TCP connections; it is ignored
! Ingress NotForTCP: annotation haproxy.org/set-host applies to HTTP requests, and this backend takes TCP connections; it is ignored
! Ingress InvalidAnnotation: annotation haproxy.org/load-balance: this algorithm needs HTTP requests, and this backend takes TCP connections; it is ignored`,
		},
		{
			on4("ssl-passthrough: true", "auth-secret: users"),
			"passed through\ntcp-request content reject\n" +
				"! Ingress GuardNotApplicable: annotation haproxy.org/auth-secret applies to HTTP requests, and this " +
				"backend takes TCP connections; all clients are rejected until it is removed",
		},
		{
			on4("ssl-passthrough: true", "allow-list: nobody"),
			`passed through
tcp-request content reject
! Ingress InvalidAnnotation: annotation haproxy.org/allow-list: "nobody" is neither an address nor a network; all clients are rejected until it is corrected`,
		},
		{
			[]string{"ingress ssl-passthrough: true", "configmap client-ca: ns/ca", "configmap set-host: a.test"},
			"process: ClientCA=ns_ca.ca.pem\npassed through\ntcp-request content reject\nfile ns_ca.ca.pem\n" +
				"! Ingress GuardNotApplicable: key client-ca of the ConfigMap applies to HTTP requests, and this " +
				"backend takes TCP connections; all clients are rejected until it is removed",
		},

		{onAll("proxy-protocol: 10.0.0.0/8"), "process: ProxyFrom=[10.0.0.0/8]"},

		{
			[]string{"service route-acl: cookie(beta) -m found"},
			"only true { 'cookie(beta)' '-m' 'found' }\nasks about \"{ 'cookie(beta)' '-m' 'found' }\"",
		},
		{
			[]string{"service route-acl: src -f patterns/ours"},
			"only true { 'src' '10.0.0.0/8' '192.0.2.1' }\nasks about \"{ 'src' '10.0.0.0/8' '192.0.2.1' }\"",
		},
		{[]string{"service route-acl: new"}, "only false { 'new' }\nasks about \"{ 'new' }\""},
		{[]string{"service route-acl: bad"}, "only false { 'bad' }\nasks about \"{ 'bad' }\"\n" +
			"! Service InvalidAnnotation: annotation haproxy.org/route-acl: HAProxy: unknown keyword 'bad'; all " +
			"clients are rejected until it is corrected"},
		{
			[]string{"service route-acl: a } b"},
			"only false \n" +
				"! Service InvalidAnnotation: annotation haproxy.org/route-acl: \"a } b\": a condition is a sample, " +
				"flags and values, without braces and \"!\"; all clients are rejected until it is corrected",
		},
		{
			[]string{"service route-acl: src -f patterns/theirs"},
			"only false \n" +
				"! Service InvalidAnnotation: annotation haproxy.org/route-acl: there is no list \"theirs\" " +
				"(clusters[].ingress.patternFiles); all clients are rejected until it is corrected",
		},
		{on4("route-acl: a"), "! Ingress UnknownAnnotation: annotation haproxy.org/route-acl is allowed on Service, " +
			"not on Ingress; it is ignored"},

		{on4("sallyport.dev/path-type: regex"), "paths regex"},
		{
			on4("sallyport.dev/path-type: glob"),
			`! Ingress InvalidAnnotation: annotation sallyport.dev/path-type: "glob": allowed are prefix, exact, begin, regex; it is ignored`,
		},

		{on4("sallyport.dev/canary-weight: 25"), "canary 25"},
		{on4("sallyport.dev/canary-weight: 25", "sallyport.dev/canary-affinity: true"), "canary 25\nstays"},
		{on4("sallyport.dev/canary-weight: 0", "sallyport.dev/canary-affinity: true"), "canary 0"},
		{on4("sallyport.dev/canary-weight: 25", "sallyport.dev/canary-affinity: false"), "canary 25"},
		{
			on4("sallyport.dev/canary-by-header: X-New", "sallyport.dev/canary-by-cookie: new"),
			"canary 0\ntrue { req.fhdr(X-New) -m str -- 'always' }\nfalse { req.fhdr(X-New) -m str -- 'never' }\n" +
				"true { req.cook(new) -m str -- 'always' }\nfalse { req.cook(new) -m str -- 'never' }",
		},
		{
			on4("sallyport.dev/canary-by-header: X-New", "sallyport.dev/canary-by-header-value: v2",
				"sallyport.dev/canary-by-header-pattern: ^v"),
			"canary 0\ntrue { req.fhdr(X-New) -m str -- 'v2' }",
		},
		{
			on4("sallyport.dev/canary-by-header: X-New", "sallyport.dev/canary-by-header-pattern: ^v"),
			"canary 0\ntrue { req.fhdr(X-New) -m reg -- '(*LIMIT_MATCH=10000)^v' }",
		},
		{on4("sallyport.dev/canary-weight: 101"), `canary 0
! Ingress InvalidAnnotation: annotation sallyport.dev/canary-weight: "101" is not a number from 0 to 100; it is ignored`},

		{
			on4("sallyport.dev/limit-connections: 5"),
			"http-request track-sc1 src table o_conns\n" +
				"http-request deny deny_status 429 if { sc_conn_cur(1,o_conns) gt 5 } or !{ sc_tracked(1) }\n" +
				"table o_conns, 102400 clients, 0s",
		},

		{onAll("default-backend-service: ops/errors"), "default ops/errors"},
		{onAll("default-backend-service: ops/errors:http"), "default ops/errors http"},
		{
			onAll("default-backend-service: errors"),
			`! ConfigMap InvalidAnnotation: key default-backend-service: "errors": want namespace/Service, or namespace/Service:port; it is ignored`,
		},

		// Several expressions for a path, of which one applies; and a redirect to one URL.
		{
			on4("path-rewrite: ^/a/(.*) /\\1\n^/b /c", "sallyport.dev/path-rewrite-first: true"),
			"http-request set-var(txn.rewrite) int(1) if { path -m reg '(*LIMIT_MATCH=10000)^/a/(.*)' } " +
				"!{ var(txn.rewrite) -m found }\n" +
				"http-request set-var(txn.rewrite) int(2) if { path -m reg '(*LIMIT_MATCH=10000)^/b' } " +
				"!{ var(txn.rewrite) -m found }\n" +
				"http-request replace-path '(*LIMIT_MATCH=10000)^/a/(.*)' '/\\1' if { var(txn.rewrite) -m int 1 }\n" +
				"http-request replace-path '(*LIMIT_MATCH=10000)^/b' '/c' if { var(txn.rewrite) -m int 2 }",
		},
		{
			on4("sallyport.dev/redirect-to: https://new.test/a%20b?c=d", "request-redirect: other.test",
				"request-redirect-code: 301"),
			"http-request redirect location 'https://new.test/a%%20b?c=d' code 301",
		},
		{
			on4("sallyport.dev/redirect-to: https://new.test/%[src] x"),
			`! Ingress InvalidAnnotation: annotation sallyport.dev/redirect-to: "https://new.test/%[src] x" has a space, ` +
				"or a character that is not printable ASCII; it is ignored",
		},
		{
			on4("sallyport.dev/response-cookie-path: /in /out", "sallyport.dev/response-cookie-domain: .in.test out.test",
				"response-set-header: X-A b"),
			`http-response replace-header Set-Cookie '^((?i:[^;]*(?:;(?! *path=)[^;]*)*+; *path=))/in(.*)$' '\1/out\2'` +
				"\n" + `http-response replace-header Set-Cookie '^((?i:[^;]*(?:;(?! *domain=\.?)[^;]*)*+; *domain=\.?))` +
				`(?i:in\.test)(;.*)?$' '\1out.test\2'` + "\nhttp-response set-header X-A 'b'",
		},
		{
			[]string{"ingress sallyport.dev/response-cookie-path: off", "configmap sallyport.dev/response-cookie-path: /a /b"},
			"",
		},
		{
			on4("sallyport.dev/response-cookie-path: /a"),
			`! Ingress InvalidAnnotation: annotation sallyport.dev/response-cookie-path: "/a": want two words, or off; ` +
				"it is ignored",
		},
		{
			on4("sallyport.dev/response-cookie-path: / /;Secure"),
			`! Ingress InvalidAnnotation: annotation sallyport.dev/response-cookie-path: "/;Secure" is not the path of a ` +
				"cookie: allowed are a / and up to 250 letters, digits and / . _ ~ % + @ : -; it is ignored",
		},
		{
			on4("sallyport.dev/response-location: http://in.test/ /50%"),
			`http-response replace-header Location '^()http://in\.test/(.*)$' '\1/50%%\2'` + "\n" +
				`http-response replace-header Refresh '^((?i:(?:(?!url=).)*+url=))http://in\.test/(.*)$' '\1/50%%\2'`,
		},
		{
			on4("sallyport.dev/response-location: http://in.test/ 'x"),
			`! Ingress InvalidAnnotation: annotation sallyport.dev/response-location: "'x" is not the beginning of a URL: ` +
				"allowed are up to 1000 letters, digits and / . _ ~ % + @ : ? & = , -; it is ignored",
		},
		{
			on4("sallyport.dev/access-log: false", "src-ip-header: X-Client"),
			"http-request set-log-level silent\nhttp-request set-src hdr(X-Client)",
		},
		{[]string{"ingress sallyport.dev/access-log: true", "configmap sallyport.dev/access-log: false"}, ""},
		{on4("sallyport.dev/retries: 0"), "retries 0\nretry-on conn-failure empty-response"},
		{
			[]string{"service sallyport.dev/retries: 2", "ingress sallyport.dev/retry-on: conn-failure,junk-response, 503"},
			"retries 2\nretry-on conn-failure junk-response 503",
		},
		{on4("sallyport.dev/retry-on: 404"), "retries 3\nretry-on 404"},
		{
			on4("sallyport.dev/retries: 11", "sallyport.dev/retry-on: 500 all-retryable-errors"),
			"! Ingress InvalidAnnotation: annotation sallyport.dev/retry-on: HAProxy cannot retry after " +
				`"500 all-retryable-errors": allowed are conn-failure, empty-response, junk-response, response-timeout, ` +
				"401, 403, 404, 408, 425, 500, 501, 502, 503, 504; it is ignored\n" +
				`! Ingress InvalidAnnotation: annotation sallyport.dev/retries: "11" is not a number from 0 to 10; it is ignored`,
		},
		{
			on4("server-ssl: true", "sallyport.dev/server-ssl-ciphers: HIGH:!aNULL", "sallyport.dev/server-ssl-min-ver: TLSv1.2",
				"sallyport.dev/server-ssl-max-ver: TLSv1.3"),
			"servers: TLS=true Ciphers=HIGH:!aNULL MinTLS=TLSv1.2 MaxTLS=TLSv1.3",
		},
		{
			on4("sallyport.dev/server-ssl-min-ver: TLSv1.3", "sallyport.dev/server-ssl-max-ver: TLSv1.2"),
			"servers: MinTLS=TLSv1.3\n! Ingress InvalidAnnotation: annotation sallyport.dev/server-ssl-max-ver: TLSv1.2 is " +
				"older than server-ssl-min-ver, TLSv1.3; it is ignored",
		},
		{
			on4("sallyport.dev/server-ssl-ciphers: !aNULL", "sallyport.dev/server-ssl-min-ver: SSLv3"),
			`! Ingress InvalidAnnotation: annotation sallyport.dev/server-ssl-ciphers: "!aNULL" has no cipher; it is ignored` +
				"\n" + `! Ingress InvalidAnnotation: annotation sallyport.dev/server-ssl-min-ver: "SSLv3": allowed are ` +
				"TLSv1.0, TLSv1.1, TLSv1.2, TLSv1.3; it is ignored",
		},
		{
			on4("client-ca: ca", "sallyport.dev/client-crt-match: CN=a.b$", "sallyport.dev/client-crt-header: X-Crt"),
			ownTLS + shown + "http-request deny deny_status 403 if !{ ssl_c_s_dn(,0,rfc2253) -m reg '(*LIMIT_MATCH=10000)CN=a.b$' }\n" +
				"http-request del-header '(?i)^(?!x-crt$)x[-_.]crt$' -m reg\nhttp-request del-header X-Crt\n" +
				"http-request set-header X-Crt '-----BEGIN%%20CERTIFICATE-----%%0A%[ssl_c_der,base64,url_enc]%%0A-----END" +
				"%%20CERTIFICATE-----%%0A' if { ssl_c_used }\nfile ca.ca.pem",
		},
		{
			on4("sallyport.dev/client-crt-match: CN=ann"),
			"CLOSED! Ingress InvalidAnnotation: annotation sallyport.dev/client-crt-match: it needs a client-ca on the " +
				"same Ingress; all clients are rejected until it is corrected",
		},
		{
			on4("client-ca: ca", "sallyport.dev/client-crt-match: (?=CN)"),
			"CLOSEDfile ca.ca.pem\n! Ingress InvalidAnnotation: annotation sallyport.dev/client-crt-match: \"(?=CN)\" is not a usable " +
				"regular expression: invalid or unsupported Perl syntax; all clients are rejected until it is corrected",
		},
		{
			on4("sallyport.dev/mirror-to: svc://ops/app:80", "sallyport.dev/mirror-host: a.test",
				"sallyport.dev/mirror-path: %[pathq]", "sallyport.dev/mirror-body: false"),
			"http-request set-var(txn.copy_host) str(a.test)\nhttp-request set-var-fmt(txn.copy_to) '%[pathq]'\n" +
				"http-request set-var(txn.copy_bare) bool(true)\n" + copies +
				"file mirror.lua\nasks about \"tune.lua.maxmem 0\"",
		},
		{
			on4("sallyport.dev/limit-rate: 100k"), "filter bwlim-out sallyport_rate default-limit 102400 default-period 1s\n" +
				"http-response set-bandwidth-limit sallyport_rate if !{ status 101 }\n" +
				"asks about \"filter bwlim-out sallyport_rate default-limit 1 default-period 1s\"",
		},
		{
			on4("sallyport.dev/limit-rate: 2g"),
			`! Ingress InvalidAnnotation: annotation sallyport.dev/limit-rate: "2g" is more than 1g; it is ignored`,
		},
		{on4("sallyport.dev/default-backend: errors"), "option allbackups"},
		{
			on4("sallyport.dev/default-backend: theirs/errors"),
			`! Ingress InvalidAnnotation: annotation sallyport.dev/default-backend: "theirs/errors" is not the name of a ` +
				"Service of the namespace; it is ignored",
		},
		{
			on4("sallyport.dev/default-backend: errors", "sallyport.dev/error-pages: 503, 404, 500-501"),
			"option allbackups\nhttp-request set-var(txn.page_uri) pathq\n" +
				"http-request set-var(txn.page_host) req.fhdr(host)\n" +
				"http-request set-var(txn.page_format) req.fhdr(accept)\n" +
				"http-request set-var(txn.page_id) req.fhdr(x-request-id)\n" +
				"http-request set-var(txn.page_head) bool(true) if METH_HEAD\n" +
				"http-response lua.sallyport_page errors_ team if { status 404 500:501 503 }\n" +
				"file auth.lua\nasks about \"tune.lua.maxmem 0\"",
		},
		{on4("sallyport.dev/default-backend: errors", "sallyport.dev/error-pages: off"), "option allbackups"},
		{
			on4("sallyport.dev/error-pages: 404"),
			"! Ingress InvalidAnnotation: annotation sallyport.dev/error-pages: no Service answers: set default-backend " +
				"on the Ingress, or default-backend-service in the ConfigMap; it is ignored",
		},
		{
			on4("sallyport.dev/error-pages: 404,200-204"),
			`! Ingress InvalidAnnotation: annotation sallyport.dev/error-pages: "200-204" is neither a status from 300 ` +
				"to 599 nor a range of them, as 500-504; it is ignored",
		},
		{on4("sallyport.dev/mirror-to: svc://app:80"), copies + "file mirror.lua\nasks about \"tune.lua.maxmem 0\""},
		{
			on4("sallyport.dev/mirror-to: svc://app:80/x"),
			"! Ingress InvalidAnnotation: annotation sallyport.dev/mirror-to: it has a path: write the path as " +
				"mirror-path; it is ignored",
		},
		{
			on4("sallyport.dev/mirror-to: svc://theirs/app:80", "sallyport.dev/mirror-host: a b"),
			"asks about \"tune.lua.maxmem 0\"\n" +
				"! Ingress InvalidAnnotation: annotation sallyport.dev/mirror-to: not yours; it is ignored",
		},
		{on4("sallyport.dev/cors-expose-headers: X-A, X-B"), ""},

		// An Ingress without the guards of the ConfigMap.
		{on4("allow-list: 0.0.0.0/0, ::/0"), ""},
		{onAll("acme: true"), ""},
		{onAll("cluster-weight: 25"), ""},
		{[]string{"configmap auth-secret: users", "configmap auth-opt-out: true", "ingress auth-type: none"}, ""},
		{
			[]string{"configmap auth-url: svc://ops/door:80", "configmap auth-opt-out: true", "ingress auth-type: none"},
			"",
		},
		{
			[]string{"configmap auth-secret: users", "ingress auth-type: none"},
			"CLOSED! Ingress InvalidAnnotation: annotation haproxy.org/auth-type: none is not allowed, since the " +
				"ConfigMap sets auth-secret: the operator can allow it there (auth-opt-out: true); all clients are " +
				"rejected until it is corrected",
		},
		{
			[]string{"configmap auth-opt-out: true", "ingress auth-secret: users", "ingress auth-type: none"},
			"CLOSED! Ingress InvalidAnnotation: annotation haproxy.org/auth-type: none, and haproxy.org/auth-secret is " +
				"set, too: remove one of the two; all clients are rejected until it is corrected",
		},
		{
			onAll("auth-type: none"),
			`CLOSED! ConfigMap InvalidAnnotation: key auth-type: "none": allowed are basic-auth; all clients are ` +
				"rejected until it is corrected",
		},

		// Tokens.
		{
			on4("sallyport.dev/jwt-keys: tokens", "sallyport.dev/jwt-issuer: https://login.test/",
				"sallyport.dev/jwt-audience: web, https://web.test", "sallyport.dev/jwt-claims: role admin root\nsub",
				"sallyport.dev/jwt-headers: X-User sub\nX-Roles realm.roles", "auth-realm: Members only"),
			tokens("tokens", "Members only", haproxy.Tokens{
				Issuer: "https://login.test/", Audiences: []string{"web", "https://web.test"},
				Require: []haproxy.Claim{{Name: "role", Values: []string{"admin", "root"}}, {Name: "sub"}},
				Headers: []haproxy.ClaimHeader{{Header: "X-User", Claim: "sub"}, {Header: "X-Roles", Claim: "realm.roles"}},
			}) + "\nfile tokens_0.jwt.pem\nfile tokens_1.jwt.map",
		},
		{
			on4("sallyport.dev/jwt-keys: key-set"),
			tokens("key-set", "Protected Content", haproxy.Tokens{}) +
				"\nfile key-set_0_0.jwt.pem\nfile key-set_1.jwt.pem",
		},

		{
			on4("sallyport.dev/jwt-public-keys: public"),
			tokens("public", "Protected Content", haproxy.Tokens{}) +
				"\nfile map_public_0_0.jwt.pem",
		},

		// What should guard and cannot lets nobody in.
		{
			on4("sallyport.dev/jwt-public-keys: shared"),
			"CLOSED! Ingress InvalidAnnotation: annotation sallyport.dev/jwt-public-keys: ConfigMap shared, entry " +
				"old.hs256: a secret belongs into a Secret, and jwt-keys names that; all clients are rejected until it " +
				"is corrected",
		},
		{
			on4("sallyport.dev/jwt-public-keys: public", "sallyport.dev/jwt-keys: one-token"),
			"CLOSED! Ingress InvalidAnnotation: annotation sallyport.dev/jwt-public-keys: there are jwt-keys, too: remove " +
				"one of the two keys; all clients are rejected until it is corrected",
		},
		{
			on4("sallyport.dev/jwt-public-keys: gone"),
			"CLOSED! Ingress InvalidAnnotation: annotation sallyport.dev/jwt-public-keys: there is no ConfigMap gone, or " +
				"it cannot be read; all clients are rejected until it is corrected",
		},
		{
			on4("sallyport.dev/jwt-issuer: a"),
			"CLOSED! Ingress InvalidAnnotation: annotation sallyport.dev/jwt-issuer: there are no jwt-keys that verify " +
				"tokens; all clients are rejected until it is corrected",
		},
		{
			on4("sallyport.dev/jwt-keys: one-token", "auth-secret: users"),
			"CLOSED! Ingress InvalidAnnotation: annotation sallyport.dev/jwt-keys: clients also need a password, and a " +
				"request has one Authorization header: remove the auth-secret or the jwt-keys; all clients are " +
				"rejected until it is corrected",
		},
		{
			on4("sallyport.dev/jwt-keys: wrong-token"),
			"CLOSED! Ingress InvalidAnnotation: annotation sallyport.dev/jwt-keys: Secret wrong-token, entry login: it is " +
				"not PEM: want a block PUBLIC KEY or CERTIFICATE, or a JSON Web Key Set; all clients are rejected until " +
				"it is corrected",
		},
		{
			on4("sallyport.dev/jwt-keys: secret-set"),
			"CLOSED! Ingress InvalidAnnotation: annotation sallyport.dev/jwt-keys: Secret secret-set, entry hs256: it is a " +
				"JSON Web Key Set, and no secret for HS256; all clients are rejected until it is corrected",
		},
		{
			on4("sallyport.dev/jwt-keys: tls"),
			"CLOSED! Ingress InvalidAnnotation: annotation sallyport.dev/jwt-keys: Secret tls, entry tls.crt: it has " +
				"several PEM blocks: want one PUBLIC KEY or CERTIFICATE; all clients are rejected until it is corrected",
		},
		{
			on4("sallyport.dev/jwt-keys: empty"),
			"CLOSED! Ingress InvalidAnnotation: annotation sallyport.dev/jwt-keys: Secret empty has 0 entries: allowed " +
				"are 1 to 4 keys; all clients are rejected until it is corrected",
		},
		{
			on4("sallyport.dev/jwt-keys: one-token", "sallyport.dev/jwt-claims: a'b"),
			`CLOSED! Ingress InvalidAnnotation: annotation sallyport.dev/jwt-claims: "a'b" is not the name of a claim: ` +
				"allowed are letters, digits, _ and -, and up to 4 dots between names; all clients are rejected until " +
				"it is corrected",
		},
		{
			on4("sallyport.dev/jwt-keys: one-token", "sallyport.dev/jwt-headers: X-User"),
			`CLOSED! Ingress InvalidAnnotation: annotation sallyport.dev/jwt-headers: "X-User": want the name of a ` +
				"header, a space and the name of a claim; all clients are rejected until it is corrected",
		},
		{
			on4("auth-type: basic-auth"),
			"CLOSED! Ingress InvalidAnnotation: annotation haproxy.org/auth-type: there is no auth-secret with the " +
				"users; all clients are rejected until it is corrected",
		},
		{
			on4("auth-type: digest", "auth-secret: users"),
			`CLOSED! Ingress InvalidAnnotation: annotation haproxy.org/auth-type: "digest": allowed are basic-auth, none; all clients are rejected until it is corrected`,
		},
		{
			on4("auth-secret: gone"),
			"CLOSED! Ingress InvalidAnnotation: annotation haproxy.org/auth-secret: there is no Secret gone; all " +
				"clients are rejected until it is corrected",
		},
		{
			on4("auth-secret: empty"),
			"CLOSED! Ingress InvalidAnnotation: annotation haproxy.org/auth-secret: Secret empty has no user; all " +
				"clients are rejected until it is corrected",
		},
		{
			on4("auth-secret: clear"),
			"CLOSED! Ingress InvalidAnnotation: annotation haproxy.org/auth-secret: Secret clear: the password of " +
				"user ann is not a usable hash: allowed are those of `openssl passwd -1`, `-5` and `-6`, and of " +
				"`htpasswd -B` with a cost of 4 to 8; all clients are rejected until it is corrected",
		},
		{
			on4("auth-secret: some"),
			login("users_some", "Protected Content") + "\nusers users_some bob\n" +
				"! Ingress UserLeftOut: annotation haproxy.org/auth-secret: Secret some: the password of user ann is " +
				"not a usable hash: allowed are those of `openssl passwd -1`, `-5` and `-6`, and of `htpasswd -B` " +
				"with a cost of 4 to 8; 3 of the 4 users of the Secret are left out",
		},
		{
			on4("auth-secret: a b"),
			`CLOSED! Ingress InvalidAnnotation: annotation haproxy.org/auth-secret: "a b": want a name, or namespace/name; all clients are rejected until it is corrected`,
		},
		{
			on4("client-ca: users"),
			"CLOSED! Ingress InvalidAnnotation: annotation haproxy.org/client-ca: Secret users, ca.crt or else " +
				"tls.crt: there is no certificate: want PEM blocks of type CERTIFICATE; all clients are rejected " +
				"until it is corrected",
		},
		{
			[]string{"ingress allow-list: 10.0.0.0/33", "configmap allow-list: 0.0.0.0/0"},
			`CLOSED! Ingress InvalidAnnotation: annotation haproxy.org/allow-list: "10.0.0.0/33" is neither an address nor a network; all clients are rejected until it is corrected`,
		},
		{
			onAll("client-ca: gone"),
			"process: ClientCA=nobody\n" +
				"! ConfigMap InvalidAnnotation: key client-ca: there is no Secret gone; all clients are rejected " +
				"until it is corrected",
		},
		{
			on4("server-crt: users"),
			"! Ingress InvalidAnnotation: annotation haproxy.org/server-crt: Secret users: failed to find any PEM " +
				"data in certificate input; it is ignored",
		},

		// Whose word counts.
		{
			[]string{"service timeout-server: 1s", "ingress timeout-server: 2s", "configmap timeout-server: 3s"},
			"timeout server 1000ms",
		},
		{[]string{"ingress timeout-server: 2s", "configmap timeout-server: 3s"}, "timeout server 2000ms"},
		{onAll("timeout-server: 3s"), "timeout server 3000ms"},
		{
			[]string{"ingress haproxy.com/timeout-server: 1s", "ingress ingress.kubernetes.io/timeout-server: 2s"},
			"timeout server 1000ms\n" +
				"! Ingress UnusedAnnotation: annotation ingress.kubernetes.io/timeout-server is ignored, since " +
				"haproxy.com/timeout-server is set, too, and overrides it",
		},
		{
			[]string{"ingress ingress.kubernetes.io/timeout-server: 1s", "ingress haproxy.org/timeout-server: 2s"},
			"timeout server 2000ms\n" +
				"! Ingress UnusedAnnotation: annotation ingress.kubernetes.io/timeout-server is ignored, since " +
				"haproxy.org/timeout-server is set, too, and overrides it",
		},
		{
			[]string{"ingress ingress.kubernetes.io/timeout-server: 2s", "ingress haproxy.org/timeout-server: 2s"},
			"timeout server 2000ms",
		},
		{
			[]string{"service ingress.kubernetes.io/timeout-server: 1s", "ingress haproxy.org/timeout-server: 2s"},
			"timeout server 1000ms",
		},
		{
			[]string{"ingress allow-list: 10.0.0.0/8", "ingress whitelist: 192.0.2.0/24"},
			"acl sp_allowed src 10.0.0.0/8\nhttp-request deny deny_status 403 if !sp_allowed\n" +
				"! Ingress OlderAnnotation: annotation haproxy.org/whitelist is deprecated and ignored, since " +
				"allow-list is set, too",
		},
		{
			[]string{"configmap sallyport.dev/proxy-body-size: 1k"},
			"http-request deny deny_status 413 if { req.hdr_val(content-length) gt 1024 }",
		},
		{
			[]string{"ingress haproxy.org/hsts: true"},
			`! Ingress UnknownAnnotation: annotation "haproxy.org/hsts" is unknown and ignored; the nearest known one is sallyport.dev/hsts`,
		},
		{[]string{"ingress nginx.ingress.kubernetes.io/whatever: x"}, ""},

		// A name without a prefix is read if it is a key, and gives way to every other.
		{
			[]string{"ingress ~deny-list: 10.0.0.0/8"},
			"acl sp_denied src 10.0.0.0/8\nhttp-request deny deny_status 403 if sp_denied",
		},
		{[]string{"service ~timeout-server: 1s"}, "timeout server 1000ms"},
		{
			[]string{"ingress ~deny-list: nobody"},
			"CLOSED! Ingress InvalidAnnotation: annotation deny-list: \"nobody\" is neither an address nor a " +
				"network; all clients are rejected until it is corrected",
		},
		{
			[]string{"ingress ~blacklist: 10.0.0.0/8"},
			"acl sp_denied src 10.0.0.0/8\nhttp-request deny deny_status 403 if sp_denied\n" +
				"! Ingress OlderAnnotation: annotation blacklist is deprecated and still used; write deny-list instead",
		},
		{
			[]string{"ingress ~deny-list: 10.0.0.0/8", "ingress ingress.kubernetes.io/blacklist: 192.0.2.0/24"},
			"acl sp_denied src 192.0.2.0/24\nhttp-request deny deny_status 403 if sp_denied\n" +
				"! Ingress UnusedAnnotation: annotation deny-list is ignored, since ingress.kubernetes.io/blacklist " +
				"is set, too, and overrides it\n" +
				"! Ingress OlderAnnotation: annotation ingress.kubernetes.io/blacklist is deprecated and still used; " +
				"write deny-list instead",
		},
		{
			[]string{"ingress ~timeout-server: 1s", "ingress ingress.kubernetes.io/timeout-server: 2s"},
			"timeout server 2000ms\n" +
				"! Ingress UnusedAnnotation: annotation timeout-server is ignored, since " +
				"ingress.kubernetes.io/timeout-server is set, too, and overrides it",
		},
		{
			[]string{"service ~deny-list: 10.0.0.0/8"},
			"! Service UnknownAnnotation: annotation deny-list is allowed on ConfigMap, Ingress, not on Service; " +
				"it is ignored",
		},
		{
			[]string{"ingress ~maxconn: 5"},
			"! Ingress UnknownAnnotation: annotation maxconn is allowed on ConfigMap, not on Ingress; it is ignored",
		},
		{
			[]string{"ingress ~hsts: true", "ingress ~timeot-server: 2s", "ingress ~owner: web", "ingress ~client: x"},
			"",
		},
		{
			[]string{"ingress ~deny-lists: 10.0.0.0/8"},
			`! Ingress UnknownAnnotation: annotation "deny-lists" is unknown and ignored; the nearest known one is deny-list (a name without a prefix may belong to another program)`,
		},
		{
			[]string{"ingress ~auth-url: x"},
			`! Ingress UnknownAnnotation: annotation "auth-url" is unknown and ignored; the nearest known one is sallyport.dev/auth-url (a name without a prefix may belong to another program)`,
		},

		// A misspelt guard under one of our prefixes closes the backend.
		{
			[]string{"ingress deny-lists: 10.0.0.0/8"},
			`CLOSED! Ingress UnknownAnnotation: annotation "haproxy.org/deny-lists" is unknown; the nearest known one, deny-list, restricts access: all clients are rejected until the name is corrected`,
		},
		{
			[]string{"service haproxy.com/server-cx: a"},
			`CLOSED! Service UnknownAnnotation: annotation "haproxy.com/server-cx" is unknown; the nearest known one, server-ca, restricts access: all clients are rejected until the name is corrected`,
		},
		{
			[]string{"ingress ingress.kubernetes.io/auth-url: https://sso.test"},
			`CLOSED! Ingress UnknownAnnotation: annotation "ingress.kubernetes.io/auth-url" is unknown; the nearest known one, sallyport.dev/auth-url, restricts access: all clients are rejected until the name is corrected`,
		},
		{
			[]string{"ingress sallyport.dev/auth-uri: svc://a:80"},
			`CLOSED! Ingress UnknownAnnotation: annotation "sallyport.dev/auth-uri" is unknown; the nearest known one, sallyport.dev/auth-url, restricts access: all clients are rejected until the name is corrected`,
		},
		{
			onAll("alow-list: 10.0.0.0/8"),
			`CLOSED! ConfigMap UnknownAnnotation: key "alow-list" is unknown; the nearest known one, allow-list, restricts access: all clients are rejected until the name is corrected`,
		},
		{on4("ssl-passthrough: true", "deny-lists: 10.0.0.0/8"), "passed through\ntcp-request content reject\n" +
			`! Ingress UnknownAnnotation: annotation "haproxy.org/deny-lists" is unknown; the nearest known one, deny-list, restricts access: all clients are rejected until the name is corrected`},

		// What is empty, which HAProxy takes for the end of its line.
		{
			on4("set-host: ''"),
			"! Ingress InvalidAnnotation: annotation haproxy.org/set-host: it is empty; it is ignored",
		},
		{on4("auth-secret: users", "auth-realm: "), login("users_users", "Protected Content") +
			"\nusers users_users ann bob\n" +
			"! Ingress InvalidAnnotation: annotation haproxy.org/auth-realm: it is empty; it is ignored"},
		{
			on4("path-rewrite: /a ''"),
			`! Ingress InvalidAnnotation: annotation haproxy.org/path-rewrite: "/a ''" has an empty word; it is ignored`,
		},

		// What is longer than it may be, as what is not good. A ConfigMap's and a list may be.
		{
			on4("path-rewrite: /a /b\n/c /d\n/e /f\n/g /h"),
			"! Ingress InvalidAnnotation: annotation haproxy.org/path-rewrite: it has 4 lines; allowed are 3 " +
				"(clusters[].ingress.limits.lines); it is ignored",
		},
		{
			onAll("sallyport.dev/request-del-headers: A\nB\nC\nD"),
			"http-request del-header A\nhttp-request del-header B\nhttp-request del-header C\n" +
				"http-request del-header D",
		},
		{
			on4("allow-list: 10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.4, 10.0.0.5"),
			"CLOSED! Ingress InvalidAnnotation: annotation haproxy.org/allow-list: it has 5 addresses and networks; " +
				"allowed are 4 (clusters[].ingress.limits.listEntries), or a list of the operator, as patterns/NAME; " +
				"all clients are rejected until it is corrected",
		},

		// The address of a Service concerns no request.
		{[]string{"service sallyport.dev/address: 203.0.113.5", "service sallyport.dev/share-address: db"}, ""},

		// Further names of a host concern no backend.
		{[]string{"ingress sallyport.dev/server-alias: b.test"}, ""},
		{
			on4("sallyport.dev/satisfy: any", "allow-list: 10.0.0.0/8", "deny-list: 10.1.0.0/16",
				"sallyport.dev/auth-url: svc://door:80"),
			"acl sp_admitted src 10.0.0.0/8\nhttp-request set-var(txn.sallyport_satisfied) bool(true) if sp_admitted\n" +
				"acl sp_denied src 10.1.0.0/16\nhttp-request deny deny_status 403 if sp_denied\n" +
				"http-request lua.sallyport_ask door_80 door GET '/' * - * - - if !{ var(txn.sallyport_satisfied) -m found }\n" +
				cookies + `http-request return status 503 content-type text/plain string "the authentication service gives no answer\n" if !{ var(txn.sallyport_auth) -m str yes } !{ var(txn.sallyport_satisfied) -m found }` + "\nfile auth.lua\nasks about \"tune.lua.maxmem 0\"",
		},
		{ // the list of the operator is needed in any case
			[]string{
				"ingress sallyport.dev/satisfy: any", "ingress allow-list: 10.0.0.0/8",
				"ingress sallyport.dev/auth-url: svc://door:80", "configmap allow-list: 11.0.0.0/8",
			},
			"acl sp_allowed src 10.0.0.0/8\nhttp-request deny deny_status 403 if !sp_allowed\n" +
				"http-request lua.sallyport_ask door_80 door GET '/' * - * - -\n" +
				cookies + `http-request return status 503 content-type text/plain string "the authentication service gives no answer\n" if !{ var(txn.sallyport_auth) -m str yes }` + "\nfile auth.lua\nasks about \"tune.lua.maxmem 0\"",
		},
		{on4("sallyport.dev/satisfy: any", "allow-list: 0.0.0.0/0,::/0"), ""},
		{[]string{"ingress sallyport.dev/ssl-ciphers: HIGH:!aNULL"}, ""},
		{[]string{"ingress sallyport.dev/from-to-www-redirect: true"}, ""},

		// What is not good is told, and the next word counts.
		{
			[]string{"service timeout-server: soon", "ingress timeout-server: 2s"},
			"timeout server 2000ms\n" +
				"! Service InvalidAnnotation: annotation haproxy.org/timeout-server: \"soon\" is not a time: a whole " +
				"number and one of us, ms, s, m, h, d, as 50s; it is ignored",
		},
		{
			[]string{"ingress timeot-server: 2s"},
			`! Ingress UnknownAnnotation: annotation "haproxy.org/timeot-server" is unknown and ignored; the nearest known one is timeout-server`,
		},
		{
			[]string{"service allow-list: 10.0.0.0/8"},
			"! Service UnknownAnnotation: annotation haproxy.org/allow-list is allowed on ConfigMap, Ingress, not on " +
				"Service; it is ignored",
		},
		// A Global and a Defaults override the ConfigMap that names them, and no other object.
		{
			onAll("cr-global: ops/tuned", "maxconn: 5"),
			"process: MaxConn=9 Texts=[tune.maxaccept 3]\nasks about \"tune.maxaccept 3\"\nasks about \"new\"\n" +
				"! ConfigMap FieldLeftOut: key cr-global: user has no effect: it is ours\n" +
				"! ConfigMap UnusedAnnotation: key maxconn is ignored, since cr-global (performance_options.maxconn) is set, " +
				"too, and overrides it",
		},
		{
			onAll("cr-global: wrong", "global-config-snippet: tune.maxaccept 3"),
			"process: Texts=[node a tune.maxaccept 3]\nasks about \"bad 1\"\nasks about \"node a\"\n" +
				"asks about \"tune.maxaccept 3\"\n" +
				`! ConfigMap InvalidAnnotation: key cr-global (nbthread): "99" is not a number from 1 to 64; it is ignored` +
				"\n! ConfigMap InvalidAnnotation: key cr-global (set_var): line 1, \"set-var a int(1)\": the keyword " +
				`"set-var" is reserved in the section global: ingress/README.md lists the keys to use instead; it is ignored` +
				"\n! ConfigMap InvalidAnnotation: key cr-global (speed): HAProxy: unknown keyword 'bad'; it is ignored",
		},
		{
			[]string{"configmap cr-defaults: slow", "configmap timeout-server: 1s", "ingress timeout-client: 2s"},
			"timeout client 7ms\ntimeout server 9ms\n" +
				"! Ingress UnknownAnnotation: annotation haproxy.org/timeout-client is allowed on ConfigMap, not on Ingress; " +
				"it is ignored\n! ConfigMap UnusedAnnotation: key timeout-server is ignored, since cr-defaults " +
				"(server_timeout) is set, too, and overrides it",
		},
		{[]string{"configmap cr-defaults: slow", "service timeout-server: 1s"}, "timeout client 7ms\ntimeout server 1000ms"},
		{
			onAll("cr-global: none", "cr-defaults: unread", "maxconn: 5"),
			"process: MaxConn=5\n! ConfigMap InvalidAnnotation: key cr-global: there is no Global none; it is ignored\n" +
				"! ConfigMap NotServed: key cr-defaults: custom resources are not read (clusters[].ingress.customResources)",
		},
		{
			onAll("cr-frontend-http: rules"),
			"process: Texts=[http-request deny]\nasks about \"http-request deny\"\n" +
				"! ConfigMap InvalidAnnotation: key cr-frontend-http (maxconn): no number; it is ignored",
		},
		{
			onAll("cr-frontend-https: ops/line"),
			"asks about \"log-tag new\"\n! ConfigMap InvalidAnnotation: key cr-frontend-https (maxconn): no number; it is ignored",
		},
		{
			onAll("cr-frontend-https: new"),
			"process: Texts=[" + haproxy.Shut(haproxy.HTTPSSection).String() + "]\nasks about \"http-request new\"\n" +
				"! ConfigMap InvalidAnnotation: key cr-frontend-https (maxconn): no number; it is ignored",
		},
		{
			onAll("cr-frontend-http: bad"),
			"process: Texts=[" + haproxy.Shut(haproxy.HTTPSection).String() + "]\nasks about \"http-request bad\"\n" +
				"! ConfigMap InvalidAnnotation: key cr-frontend-http (http_request_rule_list): HAProxy: unknown keyword 'bad'; " +
				"all clients are rejected until it is corrected\n" +
				"! ConfigMap InvalidAnnotation: key cr-frontend-http (maxconn): no number; it is ignored",
		},
		{
			onAll("cr-frontend-http: none", "cr-frontend-https: unread"),
			"process: Texts=[" + haproxy.Shut(haproxy.HTTPSection).String() + "]\n" +
				"! ConfigMap InvalidAnnotation: key cr-frontend-http: there is no Frontend none; all clients are rejected until " +
				"it is corrected\n! ConfigMap NotServed: key cr-frontend-https: custom resources are not read " +
				"(clusters[].ingress.customResources)",
		},
		{
			onAll("cr-frontend-stats: a"),
			"! ConfigMap NotServed: key cr-frontend-stats: there is no frontend for statistics: the status endpoint has them",
		},
		{
			onAll("cr-frontend-ssl: ops/edge:prepend"),
			"CLOSED! ConfigMap NotServed: key cr-frontend-ssl: no Frontend has an effect on TLS connections that HAProxy " +
				"passes on: write its rules as keys of Ingresses; all clients are rejected until the key is removed",
		},
		{
			[]string{"service cr-global: tuned"},
			"! Service UnknownAnnotation: annotation haproxy.org/cr-global is allowed on ConfigMap, not on Service; it is " +
				"ignored",
		},
		{[]string{"ingress cr-backend: slow"}, "timeout server 9000ms\n! Ingress FieldLeftOut: annotation haproxy.org/cr-backend: " +
			"source has no effect: it is ours"},
		{
			[]string{"service cr-backend: slow", "service timeout-server: 1s", "ingress timeout-server: 2s"},
			"timeout server 9000ms\n! Service FieldLeftOut: annotation haproxy.org/cr-backend: source has no effect: it is ours",
		},
		{
			[]string{"ingress cr-backend: lines", "service timeout-server: 1s"},
			"timeout server 9000ms\nfullconn 9\nretries 2\nasks about \"fullconn 9\\nretries 2\"",
		},
		{
			[]string{"ingress cr-backend: wrong"},
			`! Ingress InvalidAnnotation: annotation haproxy.org/cr-backend (server_timeout): "never" is not a time: a whole number and one of us, ms, s, m, h, d, as 50s; it is ignored`,
		},
		{
			[]string{"ingress cr-backend: other/none"},
			"CLOSED! Ingress InvalidAnnotation: annotation haproxy.org/cr-backend: there is no Backend other/none; " +
				"all clients are rejected until it is corrected",
		},
		{
			[]string{"ingress cr-backend: bad"},
			"asks about \"retries bad\"\n" +
				"! Ingress InvalidAnnotation: annotation haproxy.org/cr-backend: retries cannot be used: " +
				"HAProxy: unknown keyword 'bad'; it is ignored",
		},
		{[]string{"ingress cr-backend: new"}, `asks about "retries new"`},
		{[]string{"ingress cr-backend: new-rules"}, `CLOSEDasks about "http-request deny # new"`},
		{[]string{"ingress cr-backend: closed"}, "http-request deny # closed\nasks about \"http-request deny # closed\""},
		{
			[]string{"ingress cr-backend: bad-rules"},
			"CLOSEDasks about \"http-request deny # bad\"\n" +
				"! Ingress InvalidAnnotation: annotation haproxy.org/cr-backend: http_request_rule_list cannot be used: " +
				"HAProxy: unknown keyword 'bad'; all clients are rejected until it is corrected",
		},
		{
			[]string{"service cr-backend: closed"},
			"CLOSED! Service InvalidAnnotation: annotation haproxy.org/cr-backend: http_request_rule_list cannot be used: " +
				"no snippets of Services; all clients are rejected until it is corrected",
		},
		{
			[]string{"service cr-backend: lines", "ingress ssl-passthrough: true"},
			"passed through\ntimeout server 9000ms\n! Service InvalidAnnotation: annotation haproxy.org/cr-backend: " +
				"fullconn, retries cannot be used: the lines are for HTTP requests, and this backend takes TCP " +
				"connections; it is ignored",
		},
		{
			[]string{"ingress request-set-header: X-A b\nX-B"},
			`! Ingress InvalidAnnotation: annotation haproxy.org/request-set-header: "X-B" has no value; it is ignored`,
		},
	}
	seen := map[string]bool{}
	for _, row := range rows {
		layers := on(row.said...)
		row.want = strings.Replace(row.want, "CLOSED", "without option forwardfor\n"+haproxy.Close().String()+"\n", 1)
		if diff := cmp.Diff(row.want, strings.ReplaceAll(tell(layers), "\x02", "DIR/")); diff != "" {
			t.Errorf("%q: -want +got\n%s", row.said, diff)
		}
		for _, l := range layers {
			for name := range l.Values {
				seen[name] = true
			}
		}
	}
	for _, d := range Docs() {
		if !seen[d.Name] {
			t.Errorf("no row has %s", d.Name)
		}
	}
}

// fastCGIOf returns the text of the directives of a backend of FastCGI. first has the lines of parameters before
// those that each such backend has.
func fastCGIOf(script, first string) string {
	const deny = "http-request deny deny_status 400 if { path -m sub %00 } or { path,url_dec -m reg " +
		`'(^|/)\.\.?(/|$)|[[:cntrl:]]' }` + "\n"
	app := "fcgi-170e2c177000bf78"
	if first != "" {
		app = "fcgi-29eb3a96e4fe64ca"
	}
	return "use-fcgi-app " + app + "\nserver _fcgi 127.0.0.1:1 proto fcgi disabled\n" +
		"http-request set-var(txn.fcgi_uri) pathq\n" + deny +
		"http-request set-var(txn.fcgi_script) '" + script + "'\n" + first +
		"http-request set-var-fmt(txn.fcgi_param_DOCUMENT_URI) '%[path]'\n" +
		"http-request set-var-fmt(txn.fcgi_param_REDIRECT_STATUS) '200'\n" +
		"http-request set-var-fmt(txn.fcgi_param_REQUEST_SCHEME) '%[req.hdr(x-forwarded-proto)]'\n" +
		"http-request set-var-fmt(txn.fcgi_param_REQUEST_URI) '%[var(txn.fcgi_uri)]'\n" +
		"http-request set-var-fmt(txn.fcgi_param_SERVER_ADDR) '%[dst]'\n" +
		"http-request set-var-fmt(txn.fcgi_param_SERVER_NAME) '%[req.hdr(host),host_only,lower]'\n" +
		"servers: Proto=h1\nasks about \".if !version_atleast(3.0)\\n.alert 'it is before 3.0'\\n.endif\"\n"
}

// tokens returns the text of the directive of Tokens with the keys of a Secret that rows use.
func tokens(secret, realm string, t haproxy.Tokens) string {
	from, err := secrets(Ingress, Ref{Name: secret})
	if err != nil {
		from, _ = configMaps(Ingress, Ref{Name: secret})
	}
	t.Realm = realm
	if t.Keys, err = tokenKeys(from); err != nil {
		panic(err)
	}
	d, err := t.Directive()
	if err != nil {
		panic(err)
	}
	return strings.ReplaceAll(d.String(), "\x02", "DIR/")
}

// login returns the rules that ask clients of the tenant of env for a password.
func login(list, realm string) string {
	d, err := haproxy.BasicAuth{Userlist: list, Realm: realm, Tenant: "c_team", Guesses: 7}.Directive()
	if err != nil {
		panic(err)
	}
	return d.String()
}

// on4 sets all keys on an Ingress.
func on4(said ...string) []string {
	for i, s := range said {
		said[i] = "ingress " + s
	}
	return said
}

// onAll sets all keys in the ConfigMap.
func onAll(said ...string) []string {
	for i, s := range said {
		said[i] = "configmap " + s
	}
	return said
}

func TestTheConfigMapHasNoAnnotations(t *testing.T) {
	for key, want := range map[string]string{
		"sallyport.dev/path-type": "key sallyport.dev/path-type has no effect in the ConfigMap: write " +
			"sallyport.dev/path-type as an annotation of Ingress; it is ignored",
		"path-type": "key path-type has no effect in the ConfigMap: write sallyport.dev/path-type as an annotation of " +
			"Ingress; it is ignored",
		"haproxy.com/standalone-backend": "key haproxy.com/standalone-backend has no effect in the ConfigMap: write " +
			"haproxy.org/standalone-backend as an annotation of Ingress or Service; it is ignored",
		"route-acl": "key route-acl has no effect in the ConfigMap: write haproxy.org/route-acl as an annotation of " +
			"Service; it is ignored",
		"haproxy.org/route-acl": "CLOSED key haproxy.org/route-acl has no effect in the ConfigMap: write " +
			"haproxy.org/route-acl as an annotation of Service; all clients are rejected until it is removed",
		"haproxy.org/timeout-server": `key "haproxy.org/timeout-server" is unknown and ignored; the nearest known one ` +
			"is timeout-server",
		"sallyport.dev/hsts": `key "sallyport.dev/hsts" is unknown and ignored; the nearest known one is hsts`,
		"sallyport.dev/auth-url": `CLOSED key "sallyport.dev/auth-url" is unknown; the nearest known one, auth-url, ` +
			"restricts access: all clients are rejected until the name is corrected",
		"path-tipe": `key "path-tipe" is unknown and ignored; the nearest known one is sallyport.dev/path-type`,
	} {
		l := Read(ConfigMap, map[string]string{key: "x"})
		var got string
		for _, p := range l.Odd {
			got += p.Why
		}
		if l.closed {
			got = "CLOSED " + got
		}
		if got != want || len(l.Values) > 0 {
			t.Errorf("%s: got %q, want %q", key, got, want)
		}
	}
}

// TestOnlyGuardsMistypedClose goes through the keys of other controllers under
// the prefixes that are read, and what cloud providers write there.
func TestOnlyGuardsMistypedClose(t *testing.T) {
	for _, name := range []string{
		"affinity", "auth-log-format", "auth-method", "auth-realms", "auth-tls-error-page", "auth-tls-secret",
		"auth-tls-verify-client", "backend-protocol", "backends", "balance-algorithm",
		"config-backend", "cr-global", "forwarding-rule", "health-check-uri", "https-forwarding-rule",
		"limit-rps", "limit-whitelist", "maxconn-server",
		"oauth", "rewrite-target", "secure-backends", "secure-crt-secret", "secure-verify-ca-secret", "server-alias",
		"server-crts", "server-proto-v", "session-cookie-strategy", "slots-min-free",
		"ssl-cert", "static-ip", "target-proxy", "url-map", "waf", "whitelist-source-range",
	} {
		if l := Read(Ingress, map[string]string{"ingress.kubernetes.io/" + name: "x"}); l.closed || len(l.Odd) != 1 {
			t.Errorf("%s: closed %v, told %v", name, l.closed, l.Odd)
		}
	}
}

// TestAKeyRefersToWhatItsDocSays gives each key, by each spelling, values that name
// a Secret, a Service and a list, and watches what is looked up. A Secret that is
// looked up is one that is followed.
func TestAKeyRefersToWhatItsDocSays(t *testing.T) {
	for _, scope := range []Scope{Service, Ingress, ConfigMap} {
		for written, s := range known.spellings(scope) {
			got, followed := map[Kind]bool{}, map[Kind]bool{}
			for _, value := range []string{
				"there/it", "svc://there/it:80", "patterns/it", "src -f patterns/it",
				"http-request deny if { src -f patterns/it }",
			} {
				said := map[string]string{written: " " + value + " "}
				beside := map[string]string{"rate-limit-requests": "1"}
				if s.Name == fcgiParams.Name {
					beside["server-proto"] = "fcgi"
				}
				env := env
				env.Secrets = func(Scope, Ref) (Object, error) {
					got[SecretKind] = true
					return Object{}, errors.New("none")
				}
				env.ConfigMaps = func(Scope, Ref) (Object, error) {
					got[ConfigMapKind] = true
					return Object{}, errors.New("none")
				}
				env.Service = func(Scope, ServicePort, Purpose) (string, error) {
					got[ServiceKind] = true
					return "", errors.New("none")
				}
				env.Backend = func(Scope, Ref) (*Resource, error) {
					got[BackendKind] = true
					return nil, errors.New("none")
				}
				env.Section = func(kind Kind, _ haproxy.Section, _ Ref) (*Section, error) {
					got[kind] = true
					return nil, errors.New("none")
				}
				env.Pattern = func(string) (string, bool) { got[ListKind] = true; return "", false }
				l := Read(scope, said)
				_, _, _ = Compile("o", env, l, Read(Ingress, beside))
				_, _, _ = Process(env, l)
				_ = l.WithSections(env)
				_, _ = RouteACL(env, l)
				if _, said, _ := DefaultBackend(l); said {
					got[ServiceKind] = true
				}
				for _, kind := range []Kind{SecretKind, ConfigMapKind} {
					followed[kind] = followed[kind] || slices.Equal(Refers(kind, scope, said), []Ref{{"there", "it"}})
				}
			}
			want := map[Kind]bool{}
			if s.Refers != "" && s.Scopes&scope != 0 {
				want[s.Refers] = true
			}
			if diff := cmp.Diff(want, got); diff != "" || followed[SecretKind] != want[SecretKind] ||
				followed[ConfigMapKind] != want[ConfigMapKind] {
				t.Errorf("%s of %s: followed %v, looked up -want +got\n%s", written, scope, followed, diff)
			}
		}
	}
}

// TestAKeyIsForTheTrafficItsDocSays gives each key a value that none can use, so that
// whoever reads it reports it.
func TestAKeyIsForTheTrafficItsDocSays(t *testing.T) {
	readElsewhere := []string{
		"ssl-passthrough", "ssl-redirect", "ssl-redirect-code", "ssl-redirect-port",
		"standalone-backend", "scale-server-slots", "client-ca", "sallyport.dev/address", "sallyport.dev/share-address",
	}
	for _, d := range Docs() {
		for _, traffic := range []Traffic{Ended, Passed} {
			if d.Scopes == ConfigMap || slices.Contains(readElsewhere, d.Name) {
				continue
			}
			_, _, problems := CompileTCP(env, traffic,
				Layer{Scope: Ingress, Values: map[string]Value{d.Name: {As: d.Name, Text: "?"}}})
			want := "NotForTCP"
			switch {
			case d.Traffic&traffic != 0:
				want = "InvalidAnnotation"
			case d.Guard:
				want = "GuardNotApplicable"
			}
			if len(problems) != 1 || problems[0].Reason != want {
				t.Errorf("%s for %s: want %s, got %v", d.Name, traffic, want, problems)
			}
		}
	}
}

// TestAnotherControllersKeyIsData reads a key that has an alias under another
// prefix, whose values are written otherwise.
func TestAnotherControllersKeyIsData(t *testing.T) {
	in := newDictionary()
	seconds := func(s string) (string, error) {
		if _, err := number(0, 1000)(s); err != nil {
			return "", err
		}
		return s + "s", nil
	}
	in.add(&Doc{
		Name: "timeout-server", Scopes: everywhere, Guard: true,
		Aliases: []Alias{{Name: "timeout"}, {Prefix: "other.test/", Name: "server-timeout", translate: seconds}},
	})
	for _, row := range []struct {
		written map[string]string
		want    Value
		odd     []string
	}{
		{map[string]string{"other.test/server-timeout": "5 "}, Value{As: "other.test/server-timeout", Text: "5s"}, nil},
		{
			map[string]string{"other.test/server-timeout": "5", "timeout": "5s"},
			Value{As: "other.test/server-timeout", Text: "5s"},
			[]string{"annotation timeout is deprecated and ignored, since timeout-server is set, too"},
		},
		{
			map[string]string{"other.test/server-timeout": "5", "haproxy.com/timeout": "6s"},
			Value{As: "haproxy.com/timeout", Text: "6s"},
			[]string{
				"annotation haproxy.com/timeout is deprecated and still used; write timeout-server instead",
				"annotation other.test/server-timeout is ignored, since haproxy.com/timeout is set, too, and " +
					"overrides it",
			},
		},
		// others' names
		{
			map[string]string{
				"server-timeout": "5", "other.test/timeout-server": "5",
				"other.test/server-timeouts": "5",
			},
			Value{},
			nil,
		},
	} {
		l := in.read(Ingress, row.written)
		var odd []string
		for _, p := range l.Odd {
			odd = append(odd, p.Why)
		}
		if got := l.Values["timeout-server"]; got != row.want || !slices.Equal(odd, row.odd) || l.closed {
			t.Errorf("%v: got %+v, %q, closed %v; want %+v, %q", row.written, got, odd, l.closed, row.want, row.odd)
		}
	}
	if l := in.read(ConfigMap, map[string]string{"server-timeout": "5"}); len(l.Values) != 0 {
		t.Errorf("the ConfigMap holds keys by our names, got %v", l.Values)
	}
	if v := in.read(Ingress,
		map[string]string{"other.test/server-timeout": "soon"}).Values["timeout-server"]; v.fault == nil {
		t.Errorf("want a fault that the key reports, got %+v", v)
	}
}

func TestADefaultCanBeRead(t *testing.T) {
	if s, used, problems := Compile("o", env); len(problems) > 0 || len(used) > 0 || !s.Options.Check ||
		!slices.Contains(s.Directives, haproxy.Option("forwardfor", true)) {
		t.Errorf("nothing said comes to %v, %v, %v", s, used, problems)
	}
}

// elsewhere are keys that no backend has, or that the fuzzing gives itself.
var elsewhere = []string{
	"cors-enable", "ssl-redirect", "ssl-redirect-code", "ssl-redirect-port", "standalone-backend", "scale-server-slots",
	"check-interval", "request-redirect-code",
	own + "hsts-max-age", own + "hsts-include-subdomains", own + "hsts-preload", "request-capture-len",
	"rate-limit-period", "rate-limit-status-code", "rate-limit-size", "rate-limit-whitelist",
	"ssl-passthrough", own + "session-cookie-domain", own + "session-cookie-preserve", own + "session-cookie-same-site",
	own + "session-cookie-path", own + "session-cookie-max-age",
	own + "session-cookie-keywords", "auth-realm", "client-crt-optional", own + "canary-weight", own + "canary-by-header",
	own + "canary-affinity", own + "canary-by-header-value", own + "canary-by-header-pattern", own + "canary-by-cookie", own + "path-type",
	"ingress.class",
	own + "auth-method", own + "auth-headers-request", own + "auth-headers-succeed", own + "auth-headers-fail",
	own + "auth-signin", own + "auth-set-headers",
}

// FuzzCompile holds a value of any key to be used or told, and never to panic.
func FuzzCompile(f *testing.F) {
	for _, v := range []string{
		"true", "5s", "10.0.0.0/8", "X-A 'b'\nX-B \"c\"", "^/(.*) /\\1", "hdr(x)",
		"https://a.test:1", "%[src]", "999999999999999999d", "1.2.3.4/99,::/0",
	} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, value string) {
		for name, d := range known.docs {
			layer := Layer{
				Scope: Ingress,
				Values: map[string]Value{
					name:          {As: "haproxy.org/" + name, Text: value},
					"cors-enable": {As: "haproxy.org/cors-enable", Text: "true"},
				},
			}
			s, used, problems := Compile("o", env, layer)
			_, more := SSLRedirect(layer)
			problems = append(problems, more...)
			_, _, more = Canary(layer)
			problems = append(problems, more...)
			_, more = PathType(layer)
			problems = append(problems, more...)
			if d.Scopes&Ingress != 0 && !slices.Contains(elsewhere, d.Name) && len(used)+len(problems) == 0 {
				t.Errorf("%s: %q is neither used nor told", name, value)
			}
			b := haproxy.Backend{Name: "b", Directives: s.Directives, Options: s.Options}
			if err := b.Validate(); err != nil {
				t.Error(err)
			}
			for _, traffic := range []Traffic{Ended, Passed} {
				s, _, more := CompileTCP(env, traffic, layer)
				problems = append(problems, more...)
				b := haproxy.Backend{Name: "b", TCP: true, Directives: s.Directives, Options: s.Options}
				if err := b.Validate(); err != nil {
					t.Error(err)
				}
			}
			for _, p := range problems {
				if strings.ContainsAny(p.Why, "\n\x1b") {
					t.Errorf("%s: %q is told as %q", name, value, p.Why)
				}
			}
		}
	})
}

func TestTheTableIsWhatTheKeysSay(t *testing.T) {
	var table bytes.Buffer
	fmt.Fprintln(&table, "| key | where | value | default | what it does | since |\n|---|---|---|---|---|---|")
	for _, d := range Docs() {
		name := "`" + d.Name + "`"
		for _, a := range d.Aliases {
			name += ", once `" + a.Prefix + a.Name + "`"
		}
		fmt.Fprintf(&table, "| %s | %s | %s | %s | %s | %s |\n", name, d.Scopes, d.Format, d.Default, d.Effect, d.Since)
	}
	manual.Hold(t, "../README.md", "keys", table.String(), *update)
}
