package ingress

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
)

// claims are what one Ingress asks for, checked in itself: nothing here
// depends on another object.
type claims struct {
	rules    []claim
	hosts    []string   // every valid host of its rules, once; "" is any host
	names    []string   // those, the hosts of its TLS entries, and "" for the default of all; once
	fallback *reference // spec.defaultBackend
	ruleless bool       // it has no rules: its fallback is everybody's
	tls      []tlsClaim
	layer    annotations.Layer
	problems []Problem
}

// A claim is one path of one rule.
type claim struct {
	host, path string
	match      haproxy.PathMatch
	to         reference
}

func (c claim) String() string { return spell(c.host, c.path, c.match) }

func spell(host, path string, match haproxy.PathMatch) string {
	if host == "" {
		host = "any host"
	}
	return fmt.Sprintf("%s, %s path %s", host, match, path)
}

// A reference names one port of a Service in the Ingress's own namespace, by
// name or by number.
type reference struct {
	service string
	port    string
	number  int32
	kind    kind
}

// A kind is what of its clients a backend sees.
type kind uint8

const (
	requests  kind = iota
	passed         // TLS connections, as they are
	streams        // connections to a port of their own
	questions      // whether a request may go on
)

func (r reference) portText() string {
	if r.port != "" {
		return r.port
	}
	return strconv.Itoa(int(r.number))
}

// A tlsClaim is one entry of spec.tls. Without hosts it is for the names the
// certificate itself carries.
type tlsClaim struct {
	secret string
	hosts  []string
}

// maxPath bounds a path, in bytes. The API sets no bound, a request line
// longer than HAProxy's buffer (16 kB) can match nothing.
const maxPath = 2048

// readClaims reads one Ingress. Whatever is odd costs its own rule only.
func readClaims(ing *networkingv1.Ingress) *claims {
	c := &claims{ruleless: len(ing.Spec.Rules) == 0}
	complain := func(reason, format string, args ...any) {
		c.problems = append(c.problems, Problem{
			ObjectRef: ObjectRef{Kind: "Ingress", Namespace: ing.Namespace, Name: ing.Name, UID: string(ing.UID)},
			Reason:    reason, Why: fmt.Sprintf(format, args...),
		})
	}
	if len(validation.IsDNS1123Label(ing.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(ing.Name)) > 0 {
		complain("InvalidName", "the namespace or the name is none that Kubernetes allows; nothing of the Ingress is served")
		return c
	}
	c.layer = annotations.Read(annotations.Ingress, ing.Annotations)
	usual, odd := annotations.PathType(c.layer)
	for _, p := range slices.Concat(c.layer.Odd, odd) {
		complain(p.Reason, "%s", p.Why)
	}
	if b := ing.Spec.DefaultBackend; b != nil {
		to, why := refer(*b)
		if why != "" {
			complain("InvalidBackend", "spec.defaultBackend %s; it is not served", why)
		} else {
			c.fallback = &to
		}
	}
	for i, rule := range ing.Spec.Rules {
		host, why := cleanHost(rule.Host)
		if why != "" {
			complain("InvalidHost", "rule %d: host %s %s; the rule is not served", i+1, quote(rule.Host), why)
			continue
		}
		if !slices.Contains(c.hosts, host) {
			c.hosts = append(c.hosts, host)
		}
		if rule.HTTP == nil {
			continue
		}
		for _, p := range rule.HTTP.Paths {
			path, match, why := cleanPath(p, usual)
			if why != "" {
				complain("InvalidPath", "rule %d: path %s %s; the path is not served", i+1, quote(p.Path), why)
				continue
			}
			to, why := refer(p.Backend)
			if why != "" {
				complain("InvalidBackend", "rule %d: the backend of path %s %s; the path is not served", i+1, path, why)
				continue
			}
			c.rules = append(c.rules, claim{host: host, path: path, match: match, to: to})
		}
	}
	for i, t := range ing.Spec.TLS {
		tls := tlsClaim{secret: t.SecretName}
		if t.SecretName != "" && len(validation.IsDNS1123Subdomain(t.SecretName)) > 0 {
			complain("InvalidTLS", "tls entry %d: %s cannot be the name of a Secret; the entry is not used", i+1, quote(t.SecretName))
			continue
		}
		for _, h := range t.Hosts {
			host, why := cleanHost(h)
			if why == "" && host == "" {
				why = "is empty"
			}
			if why != "" {
				complain("InvalidTLS", "tls entry %d: host %s %s; the host is left out", i+1, quote(h), why)
				continue
			}
			tls.hosts = append(tls.hosts, host)
		}
		if len(t.Hosts) > 0 && len(tls.hosts) == 0 {
			continue // not one good host is not the same as no hosts, which means the certificate's own names
		}
		c.tls = append(c.tls, tls)
	}
	c.names = slices.Clone(c.hosts)
	for _, t := range c.tls {
		c.names = append(c.names, t.hosts...)
	}
	if c.ruleless && c.fallback != nil {
		c.names = append(c.names, "")
	}
	slices.Sort(c.names)
	c.names = slices.Compact(c.names)
	return c
}

// cleanHost checks a host as the API does (Ingress v1, IngressRule.Host): a
// DNS name or "*." and a DNS name, no port, no address. The API server has
// done so too, unless it is not the one we think it is.
func cleanHost(host string) (clean, why string) {
	if host == "" {
		return "", ""
	}
	host = strings.ToLower(host)
	name, wild := strings.CutPrefix(host, "*.")
	switch {
	case wild && len(validation.IsWildcardDNS1123Subdomain(host)) == 0:
		return host, ""
	case !wild && len(validation.IsDNS1123Subdomain(host)) == 0 && len(validation.IsValidIP(nil, name)) > 0:
		return host, ""
	case len(validation.IsValidIP(nil, name)) == 0:
		return "", `is an address; allowed is a DNS name, or no host at all`
	}
	return "", `is not a DNS name; allowed are letters, digits, "-" and ".", with "*." in front for one more label`
}

// cleanPath checks a path and gives it in the form routes are keyed by.
//
// ImplementationSpecific is what the Ingress says is usual: Prefix, by path
// element, if it says nothing. A plain string prefix, which others make of it,
// also lets /admin take /administrators: whoever writes a path means the element.
//
// Only characters that a request's path can hold (RFC 3986, 3.3) are let
// through: any other path could never match, and would be text of its own in
// the map it ends up in.
func cleanPath(p networkingv1.HTTPIngressPath, usual haproxy.PathMatch) (path string, match haproxy.PathMatch, why string) {
	match = usual
	if p.PathType != nil {
		switch *p.PathType {
		case networkingv1.PathTypeImplementationSpecific:
		case networkingv1.PathTypePrefix:
			match = haproxy.Prefix
		case networkingv1.PathTypeExact:
			match = haproxy.Exact
		default:
			return "", "", "has pathType " + quote(string(*p.PathType)) + "; allowed are Exact, Prefix and ImplementationSpecific"
		}
	}
	path = p.Path
	if path == "" {
		path = "/"
	}
	if path[0] != '/' {
		return "", "", `does not begin with "/"`
	}
	if len(path) > maxPath {
		return "", "", fmt.Sprintf("is %d bytes long; allowed are %d", len(path), maxPath)
	}
	if match == haproxy.Regexp {
		if err := haproxy.CheckPath(path); err != nil {
			return "", "", "cannot be used: " + err.Error()
		}
		return path, match, ""
	}
	for i := 0; i < len(path); i++ {
		c := path[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("/-._~!$&'()*+,;=:@", c) >= 0:
		case c == '%' && i+2 < len(path) && hexDigit(path[i+1]) && hexDigit(path[i+2]):
		case c == '%':
			return "", "", `has a "%" that no two hexadecimal digits follow`
		default:
			return "", "", fmt.Sprintf("has the character %q, which the path of a request cannot hold (RFC 3986, 3.3): write it percent-encoded; for a regular expression see annotation sallyport.dev/path-type", c)
		}
	}
	for element := range strings.SplitSeq(path[1:], "/") {
		if element == "." || element == ".." {
			return "", "", `has an element "." or "..", which clients resolve before they ask`
		}
	}
	if strings.Contains(path, "//") {
		return "", "", `has an empty element ("//")`
	}
	if match == haproxy.Begin && path == "/" {
		match = haproxy.Prefix
	}
	if match == haproxy.Prefix && path != "/" {
		// By element, /api/ and /api take the same requests (Ingress v1, pathType Prefix).
		path = strings.TrimSuffix(path, "/")
	}
	return path, match, ""
}

func hexDigit(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// refer checks the backend of a path or of an Ingress.
func refer(b networkingv1.IngressBackend) (to reference, why string) {
	switch {
	case b.Resource != nil:
		return to, fmt.Sprintf("names a resource (%s); only Services are supported", quote(b.Resource.Kind))
	case b.Service == nil:
		return to, "names no Service"
	case len(validation.IsDNS1123Label(b.Service.Name)) > 0:
		return to, fmt.Sprintf("names a Service %s, which is not a possible name of one", quote(b.Service.Name))
	}
	port := b.Service.Port
	switch {
	case port.Name != "" && port.Number != 0:
		return to, "names a port both by name and by number"
	case port.Name != "" && len(validation.IsDNS1123Label(port.Name)) > 0:
		return to, fmt.Sprintf("names a port %s, which is not a possible name of one", quote(port.Name))
	case port.Name == "" && (port.Number < 1 || port.Number > 65535):
		return to, fmt.Sprintf("names port %d; allowed are 1 to 65535", port.Number)
	}
	return reference{service: b.Service.Name, port: port.Name, number: port.Number}, ""
}

// quote makes a value that was not checked fit to be read, and short.
func quote(s string) string {
	const longest = 80
	if len(s) > longest {
		s = s[:longest] + "..."
	}
	return strconv.QuoteToASCII(s)
}
