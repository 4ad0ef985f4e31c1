package annotations

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"sallyport/haproxy"
)

// Settings hold the result of all keys for one backend.
type Settings struct {
	Directives []haproxy.Directive
	Options    haproxy.ServerOptions
	Tables     []haproxy.Table // tables that the directives count in
	Captures   []int           // length of each slot that the directives write to
	Userlists  []*haproxy.Userlist
	Extras     []*haproxy.Extra
	Lists      []*haproxy.List
	Questions  []haproxy.Question // that HAProxy has to answer
	Spare      string             // a Service of the namespace, see default-backend; may be empty
}

// Compile reads the layers of one backend, the most special first. It returns the
// values that were used, in a fixed order of keys, and a problem for each value that
// was not. Names of tables begin with the owner: its backends share them.
//
// If a guard cannot be used, the backend is closed.
func Compile(owner string, env Env, layers ...Layer) (Settings, []Effective, []Problem) {
	v := heed(env, layers)
	v.owner, v.optsOut = owner, optOut(v)
	s := Settings{}
	for _, group := range []func(*values, *Settings){
		servers, serverCerts, fastCGI, access, clientCerts, authenticate, verifyTokens, ask, cors,
		rewriting, mirror, spare, pages, resource, snippet,
	} {
		group(v, &s)
	}
	if v.closed {
		return Settings{
			Questions: s.Questions, Directives: []haproxy.Directive{haproxy.Close()}, Options: s.Options,
			Extras: s.Extras,
		}, v.used, v.problems
	}
	haproxy.SortDirectives(s.Directives)
	return s, v.used, v.problems
}

// CompileTCP compiles the layers of a backend that takes connections, not requests.
// It leaves out keys that are for requests only, and reports those that an Ingress or
// a Service sets. A guard that cannot be used closes the backend, whichever object
// sets it. Connections that are passed through keep the client's TLS.
func CompileTCP(env Env, traffic Traffic, layers ...Layer) (Settings, []Effective, []Problem) {
	v := heed(env, layers)
	s := Settings{}
	v.unfit(traffic)
	v.unfitResource()
	if traffic == Passed {
		_, _ = get(v, sslPassthrough)
	}
	if d, said := get(v, loadBalance); said {
		if d.ForTCP() {
			s.add(d)
		} else {
			v.wrong(loadBalance.Doc,
				errors.New("this algorithm needs HTTP requests, and this backend takes TCP connections"))
		}
	}
	timing(v, &s)
	if traffic != Passed {
		s.Options.TLS, _ = get(v, serverSSL)
		serverCerts(v, &s)
		if s.Options.TLS {
			s.Options.Proto = "h1" // no ALPN: the client chooses the protocol
			if s.Options.SNI == haproxy.SNIOfHost {
				v.wrong(secureSNI.Doc, errors.New("a TCP connection has no Host header: name a host, or use sni"))
				s.Options.SNI = ""
			}
		}
	}
	for _, list := range []struct {
		key    key[haproxy.Networks]
		others bool
	}{{allowList, true}, {denyList, false}} {
		if networks, said := get(v, list.key); said && (!list.others || !everyone(networks)) {
			s.add(haproxy.Reject(s.from(networks), list.others))
		}
	}
	if v.closed {
		s.Directives = []haproxy.Directive{haproxy.CloseTCP()}
	}
	haproxy.SortDirectives(s.Directives)
	return s, v.used, v.problems
}

const unread = "applies to HTTP requests, and this backend takes TCP connections"

// unfit reports keys that cannot be used for a kind of traffic.
func (v *values) unfit(traffic Traffic) {
	for _, l := range v.layers {
		for _, name := range slices.Sorted(maps.Keys(l.Values)) {
			as := l.Values[name].As
			where := as
			switch d := known.docs[name]; {
			case d.Traffic&traffic != 0:
			case d.Guard:
				if l.Scope == ConfigMap {
					where += " of the ConfigMap" // the problem is reported on the Ingress
				}
				v.closed = true
				v.problems = append(v.problems, Problem{
					Scope: max(l.Scope, Ingress), Reason: "GuardNotApplicable", As: as, Why: fmt.Sprintf(
						"%s %s %s; all clients are rejected until it is removed", l.Scope.noun(), where, unread),
				})
			case l.Scope == Ingress || l.Scope == Service: // no object has the usual values of a dialect
				v.problems = append(v.problems, Problem{
					Scope: l.Scope, Reason: "NotForTCP", As: as,
					Why: fmt.Sprintf("%s %s %s; it is ignored", l.Scope.noun(), as, unread),
				})
			}
		}
	}
}

// Servers compiles only the keys about the servers of a backend.
func Servers(env Env, layers ...Layer) (Settings, []Problem) {
	v := heed(env, layers)
	s := Settings{}
	servers(v, &s)
	serverCerts(v, &s)
	fastCGI(v, &s)
	if v.closed {
		s.Directives = []haproxy.Directive{haproxy.Close()}
	}
	haproxy.SortDirectives(s.Directives)
	return s, v.problems
}

func (s *Settings) add(d ...haproxy.Directive) { s.Directives = append(s.Directives, d...) }

// say adds the values of keys that stand for one directive each.
func say(v *values, s *Settings, keys ...key[haproxy.Directive]) {
	for _, k := range keys {
		if d, said := get(v, k); said {
			s.add(d)
		}
	}
}

// servers sets how HAProxy chooses, checks and connects to servers.
func servers(v *values, s *Settings) {
	say(v, s, loadBalance, checkHTTP)
	sticky(v, s)
	retry(v, s)
	if yes, _ := get(v, forwardedFor); yes {
		s.add(haproxy.Option("forwardfor", true))
	}
	timing(v, s)
	s.Options.TLS, _ = get(v, serverSSL)
	s.Options.Proto, _ = get(v, serverProto)
}

// timing sets timeouts, health checks, the most connections of a server, and the PROXY
// protocol to it.
func timing(v *values, s *Settings) {
	if yes, said := get(v, abortOnClose); said {
		s.add(haproxy.Option("abortonclose", yes))
	}
	for _, t := range []struct {
		name string
		key  key[time.Duration]
	}{
		{"connect", timeoutConnect},
		{"queue", timeoutQueue},
		{"server", timeoutServer},
		{"tunnel", timeoutTunnel},
		{"check", timeoutCheck},
	} {
		if d, said := get(v, t.key); said {
			s.add(haproxy.Timeout(t.name, d))
		}
	}
	o := &s.Options
	o.Check, _ = get(v, check)
	if d, said := get(v, checkInterval); said && o.Check {
		o.CheckInterval = d
	}
	o.MaxConn, _ = get(v, podMaxconn)
	o.SendProxy, _ = get(v, sendProxy)
}

// retry sets when a request is sent again, and how often.
func retry(v *values, s *Settings) {
	const usual = 3
	on, chosen := get(v, retryOn)
	times, counted := get(v, retries)
	if !counted {
		times = usual
	}
	if d, err := haproxy.RetryOn(times, on); err == nil && (chosen || counted) { // found good when it was read
		s.add(d)
	}
}

// sticky adds the cookie that leads a client back to its first server.
func sticky(v *values, s *Settings) {
	var c haproxy.Cookie
	for _, k := range []key[string]{cookieName, cookiePersistence, cookieNoDynamic} {
		if name, said := get(v, k); said && c.Name == "" {
			c.Name = name
		}
	}
	if c.Name == "" {
		return
	}
	c.Domain, _ = get(v, cookieDomain)
	c.Preserve, _ = get(v, cookiePreserve)
	c.Path, _ = get(v, cookiePathKey)
	c.MaxAge, _ = get(v, cookieMaxAge)
	words, _ := get(v, cookieKeywords)
	c.HTTPOnly, c.Secure, c.MaxIdle, c.MaxLife = words.HTTPOnly, words.Secure, words.MaxIdle, words.MaxLife
	if site, said := get(v, cookieSameSite); said {
		c.SameSite = site
		c.Secure = c.Secure || site == "None" // browsers reject None without Secure
	}
	if d, err := c.Directive(); err == nil { // each value was checked when it was read
		s.add(d)
	}
}

// from returns the networks. If they come from a list, it adds the list.
func (s *Settings) from(n haproxy.Networks) haproxy.Networks {
	if n.List != "" {
		s.Lists = append(s.Lists, &haproxy.List{Name: n.List, Of: n.Of})
	}
	return n
}

// spare names the Service of default-backend. Its servers take requests while no other server can.
func spare(v *values, s *Settings) {
	if s.Spare, _ = get(v, spareService); s.Spare != "" {
		s.add(haproxy.Option("allbackups", true))
	}
}

// SpareOf returns the Service that default-backend of a Layer names, or "".
func SpareOf(l Layer) string { return l.Values[spareService.Name].Text }

// access adds the directives that allow, reject and limit requests.
func access(v *values, s *Settings) {
	if yes, _ := get(v, accessLog); !yes {
		s.add(haproxy.Silent())
	}
	say(v, s, sourceHeader)
	v.either = alternatives(v)
	if list, said := get(v, allowList); said && v.either[allowList.Name] {
		s.add(haproxy.Admit(s.from(list)))
	} else if said && !everyone(list) {
		s.add(haproxy.Deny(s.from(list), true))
	}
	if list, said := get(v, denyList); said {
		s.add(haproxy.Deny(s.from(list), false))
	}
	if most, said := get(v, bodySize); said {
		s.add(haproxy.LimitBody(most))
	}
	if most, said := get(v, connections); said {
		t := haproxy.Table{Name: v.owner + "_conns", Size: 100 << 10}
		s.Tables = append(s.Tables, t)
		s.add(haproxy.LimitConcurrent(t, most))
	}
	slowDown(v, s)
	if requests, said := get(v, rateRequests); said {
		t := haproxy.Table{Name: v.owner + "_rate"}
		t.Period, _ = get(v, ratePeriod)
		t.Size, _ = get(v, rateSize)
		status, _ := get(v, rateStatus)
		except, _ := get(v, rateExcept)
		s.Tables = append(s.Tables, t)
		s.add(haproxy.Limit(t, requests, status, s.from(except)))
	}
}

// alternatives returns the guards of an Ingress if one of them is enough (satisfy), or nil if all are needed. A guard
// that the ConfigMap sets is always needed, even where the Ingress has another value: an Ingress cannot give up what
// the operator demands.
func alternatives(v *values) map[string]bool {
	if which, _ := get(v, satisfy); which != "any" {
		return nil
	}
	own := make(map[string]bool)
	for _, name := range []string{allowList.Name, authSecret.Name, authURL.Name} {
		sets := func(scope Scope) bool {
			return slices.ContainsFunc(v.layers, func(l Layer) bool {
				_, has := l.Values[name]
				return has && l.Scope == scope
			})
		}
		if sets(Ingress) && !sets(ConfigMap) {
			own[name] = true
		}
	}
	if len(own) < 2 {
		return nil
	}
	return own
}

// slowDown adds the directive that bounds the rate of answers (limit-rate), if HAProxy has it.
func slowDown(v *values, s *Settings) {
	rate, said := get(v, limitRate)
	if !said {
		return
	}
	if haproxy.HasFCGI(s.Directives) {
		v.wrong(limitRate.Doc, errBesideFCGI)
		return
	}
	if v.granted(limitRate.Doc, haproxy.RateSupport(), &s.Questions, "it needs HAProxy 2.7: ") {
		s.add(haproxy.LimitRate(rate))
	}
}

// snippet adds the lines of backend-config-snippet, if they may be used.
func snippet(v *values, s *Settings) {
	if t, ok := vetted(v, backendText, haproxy.BackendSection, &s.Questions); ok {
		s.add(t.Directive())
	}
}

func cors(v *values, s *Settings) {
	if yes, _ := get(v, corsEnable); !yes {
		return
	}
	var c haproxy.CORS
	c.Origin, _ = get(v, corsOrigin)
	c.Methods, _ = get(v, corsMethods)
	c.Headers, _ = get(v, corsHeaders)
	c.Credentials, _ = get(v, corsCredentials)
	c.MaxAge, _ = get(v, corsMaxAge)
	c.Expose, _ = get(v, corsExpose)
	c.Respond, _ = get(v, corsRespond)
	d, err := c.Directives()
	if err != nil {
		return // each value was checked when it was read
	}
	s.add(d...)
}

// rewriting adds the directives that change, capture or redirect requests, and those
// that change answers.
func rewriting(v *values, s *Settings) {
	if yes, _ := get(v, forwardedHeaders); yes {
		s.add(haproxy.ForwardedHeaders())
	}
	for _, k := range []key[[]haproxy.Directive]{
		requestDelete, requestHeaders, requestAdd, responseDelete, responseHeaders, responseAdd, cookiePaths,
		cookieDomains, locations,
	} {
		d, _ := get(v, k)
		s.add(d...)
	}
	named, err := headersFrom(v, responseFrom, haproxy.SetResponseHeader)
	if err != nil {
		v.wrong(responseFrom.Doc, err)
	}
	s.add(named...)
	rewritePath(v, s)
	if list, said := get(v, captures); said {
		length := captureLength(v, len(list))
		for _, d := range list {
			s.add(d.Sized(length))
		}
		s.Captures = slices.Repeat([]int{length}, len(list))
	}
	say(v, s, setHost, appRoot, clientHeader)
	if yes, _ := get(v, hsts); yes {
		age, _ := get(v, hstsMaxAge)
		subdomains, _ := get(v, hstsSubdomains)
		preload, _ := get(v, hstsPreload)
		s.add(haproxy.HSTS(age, subdomains, preload))
	}
	code, _ := get(v, redirectCode)
	if to, said := get(v, redirectTo); said {
		if d, err := haproxy.RedirectTo(to, code); err == nil { // found good when it was read
			s.add(d)
		}
	} else if to, said := get(v, redirect); said {
		if d, err := haproxy.Redirect(to.scheme, to.authority, code); err == nil { // found good when it was read
			s.add(d)
		}
	}
}

// rewritePath adds the directives that change the path of requests. Each was checked when it was read.
func rewritePath(v *values, s *Settings) {
	changes, _ := get(v, pathRewrite)
	if first, _ := get(v, rewriteFirst); first && len(changes) > 1 {
		if d, err := haproxy.ReplaceFirst(changes); err == nil {
			s.add(d)
		}
		return
	}
	for _, c := range changes {
		if d, err := haproxy.ReplacePath(c.Match, c.Value); err == nil {
			s.add(d)
		}
	}
}

// captureLength returns the bytes of each of so many samples of a request. HAProxy keeps all of
// them for each request under way.
func captureLength(v *values, samples int) int {
	length, said := get(v, captureLen)
	scope := v.scopeOf(captures.Name)
	if said {
		scope = max(scope, v.scopeOf(captureLen.Name))
	}
	most := v.env.CaptureBytes
	if most == 0 || scope == ConfigMap || length*samples <= most {
		return length
	}
	each := max(most/samples, 1)
	v.report(captureLen.Doc, scope, "LimitReached",
		fmt.Errorf("%d samples of %d bytes are more than %d bytes together (clusters[].ingress.limits.captureBytes); "+
			"each has %d bytes",
			samples, length, most, each))
	return each
}
