package annotations

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sallyport/haproxy"
)

var (
	authURL = defineIn(askURL, Doc{
		Name: own + "auth-url", Scopes: notOnTheService, Refers: ServiceKind,
		Format: "`svc://namespace/Service:port/path`, or `svc://Service:port/path`; on an Ingress also " +
			"`https://host/path`, or a path", Guard: true,
		Effect: "This Service is asked whether a request is allowed; see Authentication by a Service. A URL or a " +
			"path stands for the Service that it leads to here.",
	})
	satisfy = define(oneOf("all", "any"), Doc{
		Name: own + "satisfy", Scopes: Ingress, Format: "all or any", Default: "all",
		Effect: "With `any`, one of the allow-list, the auth-secret and the auth-url of this Ingress is enough. Its " +
			"other guards, and those that the ConfigMap sets, are needed in any case.",
	})
	authMethod = define(oneOf("GET", "HEAD", "POST", "*"), Doc{
		Name: own + "auth-method", Scopes: notOnTheService, Format: "GET, HEAD, POST, or `*` for that of the request",
		Default: "GET",
		Effect:  "Method of the request to the Service of auth-url.",
	})
	authPass = define(headerList, Doc{
		Name: own + "auth-headers-request", Scopes: notOnTheService, Format: "`*` or names of headers, with commas",
		Default: "*", Guard: true,
		Effect: "Request headers that the Service of auth-url sees.",
	})
	authSet = defineLines(lines(askHeader), Doc{
		Name: own + "auth-set-headers", Scopes: notOnTheService,
		Format: "`Name value`, one a line; a value may hold `%[...]`, see below", Guard: true,
		Effect: "Headers that the Service of auth-url sees, in place of those of the request.",
	})
	authSetFrom = defineConfigMap(Doc{
		Name: own + "auth-set-headers-from", Scopes: Ingress, Guard: true,
		Effect: "Each entry of the ConfigMap is a header that the Service of auth-url sees, as with " +
			"auth-set-headers. Its value is sent as it is.",
	})
	authSucceed = define(headerList, Doc{
		Name: own + "auth-headers-succeed", Scopes: notOnTheService, Format: "names of headers, with commas",
		Guard: true,
		Effect: "Headers from the answer of the Service of auth-url that the servers see. The client's own headers " +
			"of these names are deleted.",
	})
	authFail = define(headerList, Doc{
		Name: own + "auth-headers-fail", Scopes: notOnTheService, Format: "`*` or names of headers, with commas",
		Default: "*", Guard: true,
		Effect: "Headers from the answer of the Service of auth-url that a rejected client sees.",
	})
	authSignIn = define(signIn, Doc{
		Name: own + "auth-signin", Scopes: notOnTheService, Format: "URL or path; it may hold `%[...]`, see below",
		Guard: true,
		Effect: "Rejected clients are redirected to this URL with 302, instead of getting the answer of the Service " +
			"of auth-url. Example: `https://login.test/?rd=https://%[req.hdr(host)]%[pathq,url_enc]`.",
	})
)

// An asked names the Service to ask, and the path of the request to it. The Service may be named by a
// host and a path that lead to it.
type asked struct {
	to   ServicePort // zero if a path names the Service
	host string      // of a path that names the Service; "" for the hosts of the Ingress itself
	path string
}

// led reports whether a path names the Service.
func (a asked) led() bool { return a.to.Service.Name == "" }

// A Lead is the Service that a path of a host leads to, for auth-url. The zero Lead leads nowhere.
type Lead struct {
	To  ServicePort
	Why string // there is no Lead; it continues a sentence that begins with "auth-url: "
}

// LeadOf returns the host and the path, without its query, if auth-url of a Layer names a Service by them.
// It returns "" as the host for the hosts of the Ingress itself.
func LeadOf(l Layer) (host, path string, is bool) {
	said, has := l.Values[authURL.Name]
	if !has || said.fault != nil {
		return "", "", false
	}
	a, err := authURL.read(Env{}, l.Scope, said.Text)
	if err != nil || !a.led() {
		return "", "", false
	}
	path, _, _ = strings.Cut(a.path, "?")
	return a.host, path, true
}

// Alters returns an annotation that makes a request for the Service of an Ingress differ from one that asks
// the Service itself, or that keeps clients out. It returns "" if there is no such annotation.
func Alters(l Layer) string {
	for _, name := range slices.Sorted(maps.Keys(l.Values)) {
		switch name {
		case pathRewrite.Name, setHost.Name, redirect.Name, redirectTo.Name, sslPassthrough.Name, serverSSL.Name,
			serverCrt.Name, serverProto.Name, sendProxy.Name, backendText.Name:
		default:
			if !known.docs[name].Guard {
				continue
			}
		}
		return l.Values[name].As
	}
	return ""
}

// askURL reads svc://[NAMESPACE/]SERVICE:PORT[/PATH]. On an Ingress it also reads a path, and
// http[s]://HOST/PATH.
func askURL(_ Env, scope Scope, s string) (asked, error) {
	fault := fmt.Errorf("%s: want svc://namespace/Service:port/path: only Services of the cluster are allowed, since "+
		"only their pods have verified routes", Quote(s))
	rest, is := strings.CutPrefix(s, "svc://")
	if !is {
		if rest, is = strings.CutPrefix(s, "service://"); !is && scope != ConfigMap {
			return askPath(s, fault)
		} else if !is {
			return asked{}, fault
		}
	}
	var a asked
	first, behind, more := strings.Cut(rest, "/")
	if !strings.Contains(first, ":") {
		a.to.Service.Namespace = first
		if !more || !dnsLabel.MatchString(first) {
			return asked{}, fault
		}
		first, behind, _ = strings.Cut(behind, "/")
	}
	name, port, _ := strings.Cut(first, ":")
	a.to.Service.Name, a.to.Port, a.path = name, port, "/"+behind
	if !dnsLabel.MatchString(name) || !dnsLabel.MatchString(port) {
		return asked{}, fault
	}
	_, err := haproxy.Ask{Backend: name, Host: name, Path: a.path}.Directive()
	return a, err
}

// askPath reads a path, and http[s]://HOST/PATH.
func askPath(s string, fault error) (asked, error) {
	a := asked{path: s}
	if _, rest, found := strings.Cut(s, "://"); found {
		var path string
		a.host, path, _ = strings.Cut(rest, "/")
		a.path = "/" + path
		if !strings.HasPrefix(s, "https://") && !strings.HasPrefix(s, "http://") ||
			!dnsSubdomain.MatchString(a.host) || len(a.host) > 253 {
			return asked{}, fault
		}
	}
	if !strings.HasPrefix(a.path, "/") || strings.HasPrefix(a.path, "//") {
		return asked{}, fault
	}
	_, err := haproxy.Ask{Backend: "any", Host: haproxy.HostOfRequest, Path: a.path}.Directive()
	return a, err
}

// headerList reads names of headers with commas between. It returns nil for "*".
func headerList(s string) ([]string, error) {
	names, err := headerNames(s)
	if err != nil || names == "*" {
		return nil, err
	}
	return strings.Split(names, ", "), nil
}

// askHeader reads a header of the request to the Service of auth-url.
func askHeader(line string) (haproxy.AskHeader, error) {
	name, value, err := header(line)
	h := haproxy.AskHeader{Name: name, Value: value}
	if err == nil {
		_, err = haproxy.Ask{Backend: "any", Host: "any", Path: "/", Set: []haproxy.AskHeader{h}}.Directive()
	}
	return h, err
}

func signIn(s string) (string, error) {
	s = unquote(s)
	if !strings.HasPrefix(s, "https://") && !strings.HasPrefix(s, "http://") &&
		(!strings.HasPrefix(s, "/") || strings.HasPrefix(s, "//")) {
		return "", fmt.Errorf(`%s begins with none of https://, http:// and one "/"`, Quote(s))
	}
	_, err := haproxy.Ask{Backend: "any", Host: "any", Path: "/", SignIn: s}.Directive()
	return s, err
}

// hasLua reports whether HAProxy has answered that it has Lua, which a key needs. It reports a HAProxy without Lua.
func hasLua(v *values, s *Settings, needs Doc) bool {
	return v.granted(needs, haproxy.LuaSupport(), &s.Questions, "this HAProxy was built without Lua: ")
}

// ask adds the directive that asks a Service whether a request is allowed (auth-url).
func ask(v *values, s *Settings) {
	more, err := headersFrom(v, authSetFrom, func(name, value string) (haproxy.AskHeader, error) {
		return askHeader(name + " " + value)
	})
	if err != nil {
		v.wrong(authSetFrom.Doc, err)
		return
	}
	url, said := get(v, authURL)
	if !said || v.optsOut {
		return
	}
	a := haproxy.Ask{Host: url.to.Service.Name, Path: url.path}
	if url.led() {
		a.Host, url.to = cmp.Or(url.host, haproxy.HostOfRequest), v.env.Lead.To
		if url.led() {
			v.wrong(authURL.Doc, errors.New(cmp.Or(v.env.Lead.Why, "no Ingress here serves it")))
			return
		}
	} else if url.to.Service.Namespace != "" {
		a.Host += "." + url.to.Service.Namespace
	}
	if a.Backend, err = v.env.Service(v.scopeOf(authURL.Name), url.to, Checks); err != nil {
		v.wrong(authURL.Doc, err)
		return
	}
	if a.Method, _ = get(v, authMethod); a.Method == "*" {
		a.Method = ""
	}
	a.Pass, _ = get(v, authPass)
	a.Fail, _ = get(v, authFail)
	a.Set, _ = get(v, authSet)
	if a.Succeed, said = get(v, authSucceed); said && a.Succeed == nil {
		v.wrong(authSucceed.Doc,
			errors.New("* is not allowed: list the headers, so that HAProxy can delete the client's own"))
		return
	}
	a.SignIn, _ = get(v, authSignIn)
	a.Any = v.either[authURL.Name]
	a.Set = slices.Concat(a.Set, more)
	// The backend is closed until HAProxy has answered that it has Lua.
	if !hasLua(v, s, authURL.Doc) {
		v.closed = true
		return
	}
	if v.closed {
		return
	}
	d, err := a.Directive()
	if err != nil {
		v.wrong(authURL.Doc, err)
		return
	}
	s.Extras = append(s.Extras, haproxy.AskScript())
	s.add(d)
}
