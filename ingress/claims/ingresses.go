package claims

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/input"
	"sallyport/ingress/nginx"
)

// Ingresses yields the Ingresses of a cluster that are ours, each with a function that reads its claim.
func Ingresses(s *input.Snapshot) iter.Seq2[metav1.Object, func() *Claim] {
	return func(yield func(metav1.Object, func() *Claim) bool) {
		ours := input.ClassesOf(s)
		for _, ing := range s.Ingresses {
			as := ours.Kind(ing)
			if as != input.Strange && !yield(ing, func() *Claim { return Read(s, ing, as) }) {
				return
			}
		}
	}
}

// Read reads the claim of one Ingress. An error costs only the rule it is in.
func Read(s *input.Snapshot, ing *networkingv1.Ingress, as input.Kind) *Claim {
	ref := input.ObjectRef{
		Cluster: s.Cluster, Kind: "Ingress", Namespace: ing.Namespace, Name: ing.Name, UID: string(ing.UID),
	}
	of := &Claimant{Ref: ref, Created: ing.CreationTimestamp.Time}
	c := &Claim{Petitioner: Petitioner{Claimant: of}, Ruleless: len(ing.Spec.Rules) == 0}
	report := func(reason, format string, args ...any) {
		why := fmt.Sprintf(format, args...)
		c.Problems = append(c.Problems, input.Problem{ObjectRef: ref, Reason: reason, Why: why})
	}
	if len(validation.IsDNS1123Label(ing.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(ing.Name)) > 0 {
		report("InvalidName", "the namespace or the name is none that Kubernetes allows; "+
			"nothing of the Ingress is served")
		return c
	}
	of.Layer = annotations.Read(annotations.Ingress, ing.Annotations)
	if as == input.OfNginx {
		read := s.ReadNginx(ing)
		_, own := of.Layer.Values["sallyport.dev/path-type"]
		c.OfNginx, c.Expressions = !own, !own && read.Expressions()
		readNginx(of, read)
	}
	usual, odd := annotations.PathType(c.Layer)
	aliases, badAliases := annotations.ServerAlias(c.Layer)
	_, badCiphers := annotations.ClientCiphers(c.Layer)
	www, badWWW := annotations.WWWRedirect(c.Layer)
	for _, p := range slices.Concat(c.Layer.Odd, odd, badAliases, badCiphers, badWWW) {
		c.Problems = append(c.Problems, input.Problem{ObjectRef: ref, Reason: p.Reason, Why: p.Why, As: p.As})
	}
	if b := ing.Spec.DefaultBackend; b != nil {
		to, why := refer(ing.Namespace, *b)
		if why != "" {
			report("InvalidBackend", "spec.defaultBackend %s; it is not served", why)
		} else {
			c.Fallback = &to
		}
	}
	for i, rule := range ing.Spec.Rules {
		host, why := CleanHost(rule.Host)
		if why != "" {
			report("InvalidHost", "rule %d: host %s %s; the rule is not served", i+1, annotations.Quote(rule.Host), why)
			continue
		}
		if !slices.Contains(c.Hosts, host) {
			c.Hosts = append(c.Hosts, host)
		}
		if rule.HTTP == nil {
			continue
		}
		for _, p := range rule.HTTP.Paths {
			path, match, why := cleanPath(p, usual)
			if why != "" {
				report("InvalidPath", "rule %d: path %s %s; the path is not served",
					i+1, annotations.Quote(p.Path), why)
				continue
			}
			if as == input.OfNginx && match == haproxy.Regexp {
				path = nginx.AnyCase(path)
			}
			to, why := refer(ing.Namespace, p.Backend)
			if why != "" {
				report("InvalidBackend", "rule %d: the backend of path %s %s; the path is not served", i+1, path, why)
				continue
			}
			c.Paths = append(c.Paths, Path{Host: host, Path: path, Match: match, To: to})
		}
	}
	c.TLS = readTLS(ing.Spec.TLS, report)
	if len(c.Hosts) > 0 {
		c.Aliases = aliases
	}
	if www {
		c.WWW = otherNames(c.Hosts)
	}
	c.Names = slices.Concat(c.Hosts, c.Aliases, c.WWW)
	for _, t := range c.TLS {
		c.Names = append(c.Names, t.Hosts...)
	}
	if c.Ruleless && c.Fallback != nil {
		c.Names = append(c.Names, "")
	}
	slices.Sort(c.Names)
	c.Names = slices.Compact(c.Names)
	return c
}

// otherNames returns the other names of hosts that are names themselves.
func otherNames(hosts []string) (all []string) {
	for _, host := range hosts {
		name, why := CleanHost(haproxy.OtherName(host))
		if why == "" && host != "" && !strings.HasPrefix(host, "*") {
			all = append(all, name)
		}
	}
	return all
}

// readTLS returns the valid TLS entries of an Ingress, and reports the invalid ones as problems.
func readTLS(entries []networkingv1.IngressTLS, report func(reason, format string, args ...any)) (all []TLS) {
	for i, t := range entries {
		tls := TLS{Secret: t.SecretName}
		if t.SecretName != "" && len(validation.IsDNS1123Subdomain(t.SecretName)) > 0 {
			report("InvalidTLS", "tls entry %d: %s cannot be the name of a Secret; the entry is not used",
				i+1, annotations.Quote(t.SecretName))
			continue
		}
		for _, h := range t.Hosts {
			host, why := CleanHost(h)
			if why == "" && host == "" {
				why = "is empty"
			}
			if why != "" {
				report("InvalidTLS", "tls entry %d: host %s %s; the host is left out", i+1, annotations.Quote(h), why)
				continue
			}
			tls.Hosts = append(tls.Hosts, host)
		}
		if len(t.Hosts) > 0 && len(tls.Hosts) == 0 {
			continue // an entry without hosts means the names of its certificate
		}
		all = append(all, tls)
	}
	return all
}

// cleanPath checks a path and returns it in the form of a routeKey.
//
// usual is the match of ImplementationSpecific. By default that is Prefix, which
// compares path elements: a plain string prefix, which other controllers use, lets
// /admin match /administrators, and few authors mean that.
//
// Only characters that the path of a request can have (RFC 3986, 3.3) are allowed.
// Any other path could never match, and could be read as syntax in HAProxy's map.
func cleanPath(
	p networkingv1.HTTPIngressPath, usual haproxy.PathMatch,
) (path string, match haproxy.PathMatch, why string) {
	match = usual
	if p.PathType != nil {
		switch *p.PathType {
		case networkingv1.PathTypeImplementationSpecific:
		case networkingv1.PathTypePrefix:
			match = haproxy.Prefix
		case networkingv1.PathTypeExact:
			match = haproxy.Exact
		default:
			return "", "", "has pathType " + annotations.Quote(string(*p.PathType)) +
				"; allowed are Exact, Prefix and ImplementationSpecific"
		}
	}
	path = p.Path
	if path == "" {
		path = "/"
	}
	if path[0] != '/' {
		return "", "", `does not begin with "/"`
	}
	if len(path) > haproxy.MaxPath { // the API has no bound
		return "", "", fmt.Sprintf("is %d bytes long; allowed are %d", len(path), haproxy.MaxPath)
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
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9',
			strings.IndexByte("/-._~!$&'()*+,;=:@", c) >= 0:
		case c == '%' && i+2 < len(path) && hexDigit(path[i+1]) && hexDigit(path[i+2]):
		case c == '%':
			return "", "", `has a "%" that no two hexadecimal digits follow`
		default:
			return "", "", fmt.Sprintf("has the character %q, which the path of a request cannot hold "+
				"(RFC 3986, 3.3): write it percent-encoded; for a regular expression "+
				"see annotation sallyport.dev/path-type", c)
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
		// By elements, /api/ and /api match the same requests (Ingress v1, pathType Prefix).
		path = strings.TrimSuffix(path, "/")
	}
	return path, match, ""
}

func hexDigit(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// refer checks the backend of a path or of an Ingress, and returns a reference to it.
func refer(namespace string, b networkingv1.IngressBackend) (to Reference, why string) {
	switch {
	case b.Resource != nil:
		return to, fmt.Sprintf("names a resource (%s); only Services are supported", annotations.Quote(b.Resource.Kind))
	case b.Service == nil:
		return to, "names no Service"
	case len(validation.IsDNS1123Label(b.Service.Name)) > 0:
		return to, fmt.Sprintf("names a Service %s, which is not a possible name of one",
			annotations.Quote(b.Service.Name))
	}
	port := b.Service.Port
	switch {
	case port.Name != "" && port.Number != 0:
		return to, "names a port both by name and by number"
	case port.Name != "" && len(validation.IsDNS1123Label(port.Name)) > 0:
		return to, fmt.Sprintf("names a port %s, which is not a possible name of one", annotations.Quote(port.Name))
	case port.Name == "" && (port.Number < 1 || port.Number > 65535):
		return to, fmt.Sprintf("names port %d; allowed are 1 to 65535", port.Number)
	}
	return Reference{
		Service: ServiceKey{Namespace: namespace, Name: b.Service.Name},
		Port:    port.Name, Number: port.Number, Traffic: annotations.Requests,
	}, ""
}

// readNginx adds the values to a claimant that the annotations of ingress-nginx stand for. Keys with
// our own prefixes override them.
func readNginx(of *Claimant, read nginx.Reading) {
	of.Layer = of.Layer.With(read.Said...)
	of.Layer.Odd = slices.Concat(of.Layer.Odd, read.Problems)
	of.Usual = annotations.Layer{}.With(read.Usual...)
	if read.Closed {
		of.Layer = of.Layer.Close()
	}
}
