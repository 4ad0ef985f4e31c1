package listen

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/gateway"
)

// Effects are all that a rule changes in the backend of its requests.
type Effects struct {
	Directives []haproxy.Directive
	Extras     []*haproxy.Extra // files that the directives need
	Proto      string           // to the servers
	Open       bool             // no guard of the ConfigMap keeps clients out
	TLS        ServerTLS
	redirects  bool // the directives answer each request
}

// A ServerTLS says how HAProxy connects to servers over TLS. The zero value changes nothing.
type ServerTLS struct {
	CA   *haproxy.Extra // has to have signed the certificate of the server
	Name string         // SNI, and the name in the certificate of the server
	Crt  *haproxy.Extra // HAProxy shows this certificate; nil if it shows none
}

// None reports whether requests need no backend of their own.
func (e Effects) None() bool { return len(e.Directives) == 0 && e.Proto == "" && e.TLS.CA == nil }

func (e *Effects) add(d haproxy.Directive, err error) error {
	if err == nil {
		e.Directives = append(e.Directives, d)
	}
	return err
}

// ReplacesPrefix reports whether some filter replaces the part of the path that a match has.
func ReplacesPrefix(filters []gatewayv1.HTTPRouteFilter) bool {
	return slices.ContainsFunc(filters, func(f gatewayv1.HTTPRouteFilter) bool {
		return f.URLRewrite != nil && f.URLRewrite.Path != nil && f.URLRewrite.Path.ReplacePrefixMatch != nil ||
			f.RequestRedirect != nil && f.RequestRedirect.Path != nil &&
				f.RequestRedirect.Path.ReplacePrefixMatch != nil
	})
}

// effectsOf returns the Effects of the filters and timeouts of a rule. path is that of the match. An
// error says what cannot be served: then nothing of the rule is.
func effectsOf(rule *gateway.Rule, path string) (own Effects, err error) {
	if rule.Session != nil {
		return own, fmt.Errorf("sessionPersistence is not supported")
	}
	if err := own.filter(rule.Filters, path); err != nil {
		return own, err
	}
	request, attempt, err := timeoutsOf(rule)
	if err != nil {
		return own, err
	}
	if attempt > 0 {
		own.Directives = append(own.Directives, haproxy.Timeout("server", attempt))
	}
	if rule.Retry != nil {
		err = own.retry(rule, request, attempt)
	}
	return own, err
}

// refEffects returns the Effects of a rule and of one of its backendRefs.
func refEffects(own Effects, ref gateway.Ref) (Effects, error) {
	own.Directives = slices.Clone(own.Directives)
	err := own.filter(ref.Filters, "")
	if err == nil && own.redirects {
		err = fmt.Errorf("a backendRef cannot have a redirect")
	}
	return own, err
}

// timeoutsOf returns the timeouts of a rule: of a request, and of each attempt to serve it. HAProxy
// waits so long for the servers, and not for the whole response. 0 stands for no timeout.
func timeoutsOf(rule *gateway.Rule) (request, attempt time.Duration, err error) {
	t := rule.Timeouts
	if t == nil {
		return 0, 0, nil
	}
	read := func(text *gatewayv1.Duration) (d time.Duration) {
		if text == nil {
			return 0
		}
		d, wrong := time.ParseDuration(string(*text))
		if wrong != nil || d < 0 {
			err = cmp.Or(err, fmt.Errorf("timeout %s is not a duration", annotations.Quote(string(*text))))
		}
		if d > 0 {
			d = max(d, time.Millisecond)
		}
		return d
	}
	request, attempt = read(t.Request), read(t.BackendRequest)
	if attempt == 0 || request > 0 && request < attempt {
		attempt = request
	}
	return request, attempt, err
}

// usualRetries is how often a request is repeated if the rule has no number. mostRetries bounds the
// number of every rule, because all tenants share the threads of HAProxy.
const usualRetries, mostRetries = 3, 10

// retry adds the retries of a rule. HAProxy repeats at once, without a backoff. It repeats an
// attempt that timed out only if the timeout of the request leaves time for another attempt.
func (e *Effects) retry(rule *gateway.Rule, request, attempt time.Duration) error {
	r, attempts := rule.Retry, usualRetries
	if r.Attempts != nil {
		attempts = *r.Attempts
	}
	if attempts > mostRetries {
		rule.Note(fmt.Sprintf("retry.attempts is %d; a request is repeated %d times at most", attempts, mostRetries))
		attempts = mostRetries
	}
	if r.Backoff != nil {
		rule.Note("HAProxy repeats a request at once; retry.backoff has no effect")
	}
	var codes []int
	for _, code := range r.Codes {
		codes = append(codes, int(code))
	}
	late := request == 0 || request >= 2*attempt
	if request > 0 && late {
		attempts = min(attempts, int(request/attempt)-1)
	}
	return e.add(haproxy.Retry(attempts, late, codes))
}

// filter adds the Effects of filters.
func (e *Effects) filter(filters []gatewayv1.HTTPRouteFilter, path string) error {
	for _, f := range filters {
		var err error
		switch {
		case f.Type == gatewayv1.HTTPRouteFilterRequestHeaderModifier && f.RequestHeaderModifier != nil:
			err = e.headers(f.RequestHeaderModifier, haproxy.SetRequestHeader, haproxy.AddRequestHeader,
				haproxy.DeleteRequestHeader)
		case f.Type == gatewayv1.HTTPRouteFilterResponseHeaderModifier && f.ResponseHeaderModifier != nil:
			err = e.headers(f.ResponseHeaderModifier, haproxy.SetResponseHeader, haproxy.AddResponseHeader,
				haproxy.DeleteResponseHeader)
		case f.Type == gatewayv1.HTTPRouteFilterRequestRedirect && f.RequestRedirect != nil:
			err = e.redirect(f.RequestRedirect, path)
		case f.Type == gatewayv1.HTTPRouteFilterURLRewrite && f.URLRewrite != nil:
			err = e.rewrite(f.URLRewrite, path)
		case f.Type == gatewayv1.HTTPRouteFilterCORS && f.CORS != nil:
			err = e.cors(f.CORS)
		default:
			err = fmt.Errorf("filter %s is not supported", annotations.Quote(string(f.Type)))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// headers adds the Effects of a filter for headers.
func (e *Effects) headers(
	f *gatewayv1.HTTPHeaderFilter, set, add func(name, value string) (haproxy.Directive, error),
	remove func(name string) (haproxy.Directive, error),
) error {
	var first error
	for _, h := range f.Set {
		first = cmp.Or(first, e.add(set(string(h.Name), haproxy.Literal(h.Value))))
	}
	for _, h := range f.Add {
		first = cmp.Or(first, e.add(add(string(h.Name), haproxy.Literal(h.Value))))
	}
	for _, name := range f.Remove {
		first = cmp.Or(first, e.add(remove(name)))
	}
	return first
}

// rewrite adds the Effects of a filter for the host and the path.
func (e *Effects) rewrite(f *gatewayv1.HTTPURLRewriteFilter, path string) error {
	if f.Hostname != nil {
		if err := haproxy.CheckServerName(string(*f.Hostname)); err != nil {
			return err
		}
		if err := e.add(haproxy.SetHost(string(*f.Hostname))); err != nil {
			return err
		}
	}
	if f.Path == nil {
		return nil
	}
	to, err := pathOf(f.Path, path)
	if err != nil {
		return err
	}
	return e.add(to.Directive())
}

// pathOf returns the change that a filter asks for. path is that of the match.
func pathOf(p *gatewayv1.HTTPPathModifier, path string) (haproxy.PathChange, error) {
	switch {
	case p.Type == gatewayv1.FullPathHTTPPathModifier && p.ReplaceFullPath != nil:
		return haproxy.PathChange{To: cmp.Or(*p.ReplaceFullPath, "/")}, nil
	case p.Type == gatewayv1.PrefixMatchHTTPPathModifier && p.ReplacePrefixMatch != nil:
		return haproxy.PathChange{Prefix: cmp.Or(path, "/"), To: cmp.Or(*p.ReplacePrefixMatch, "/")}, nil
	}
	return haproxy.PathChange{}, fmt.Errorf("path type %s is not supported", annotations.Quote(string(p.Type)))
}

// redirect adds the Effects of a filter that answers with a redirect.
func (e *Effects) redirect(f *gatewayv1.HTTPRequestRedirectFilter, path string) error {
	to := haproxy.Redirection{Code: 302}
	if f.Scheme != nil {
		to.Scheme = *f.Scheme
	}
	if f.Hostname != nil {
		to.Host = string(*f.Hostname)
	}
	if f.StatusCode != nil {
		to.Code = *f.StatusCode
	}
	if f.Port != nil {
		if *f.Port < 1 || *f.Port > 65535 {
			return fmt.Errorf("port %d of the redirect is not from 1 to 65535", *f.Port)
		}
		to.Port = uint16(*f.Port) //nolint:gosec // checked
	}
	if f.Path != nil {
		change, err := pathOf(f.Path, path)
		if err != nil {
			return err
		}
		to.Path = change
	}
	e.redirects = true
	return e.add(to.Directive())
}

// cors adds the Effects of a filter for requests from pages of other origins.
func (e *Effects) cors(f *gatewayv1.HTTPCORSFilter) error {
	to := haproxy.CORS{
		Origin: originsOf(f.AllowOrigins), Methods: joined(f.AllowMethods), Headers: joined(f.AllowHeaders),
		Expose: joined(f.ExposeHeaders), Credentials: f.AllowCredentials != nil && *f.AllowCredentials,
		MaxAge: time.Duration(max(f.MaxAge, 0)) * time.Second, Respond: true, Strict: true,
	}
	directives, err := to.Directives()
	e.Directives = append(e.Directives, directives...)
	return err
}

// originsOf returns origins as a regular expression, or "*" for every origin. A "*" in an origin
// stands for any labels of a name.
func originsOf(origins []gatewayv1.CORSOrigin) string {
	var all []string
	for _, o := range origins {
		if o == "*" {
			return "*"
		}
		all = append(all, strings.ReplaceAll(regexp.QuoteMeta(string(o)), `\*`, `[A-Za-z0-9.-]+`))
	}
	return strings.Join(all, "|")
}

// joined returns values in one header. A "*" among them stands for all.
func joined[T ~string](values []T) string {
	var all []string
	for _, v := range values {
		if v == "*" {
			return "*"
		}
		all = append(all, string(v))
	}
	return strings.Join(all, ", ")
}

// OnlyToTLS returns the redirect of a rule that does nothing but redirect to https, and nil for other
// rules.
func OnlyToTLS(rule *gateway.Rule) *haproxy.Redirection {
	if len(rule.Filters) != 1 || rule.Filters[0].RequestRedirect == nil || len(rule.Mirrors) > 0 {
		return nil
	}
	f := rule.Filters[0].RequestRedirect
	if f.Scheme == nil || *f.Scheme != "https" || f.Hostname != nil || f.Path != nil {
		return nil
	}
	to := &haproxy.Redirection{Scheme: "https", Code: 302}
	if f.StatusCode != nil {
		to.Code = *f.StatusCode
	}
	if f.Port != nil {
		if *f.Port < 1 || *f.Port > 65535 {
			return nil
		}
		to.Port = uint16(*f.Port) //nolint:gosec // checked
	}
	if _, err := to.Directive(); err != nil {
		return nil
	}
	return to
}

// Key returns a text that is the same for the same Effects.
func (e Effects) Key() string {
	var all []string
	for _, d := range e.Directives {
		all = append(all, strconv.Quote(d.String()))
	}
	if e.TLS.CA != nil {
		all = append(all, "tls "+e.TLS.Name+" "+e.TLS.CA.Name)
	}
	if e.TLS.Crt != nil {
		all = append(all, "as "+e.TLS.Crt.Name)
	}
	return strings.Join(append(all, e.Proto), "\n")
}
