package ingress

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/claims"
	"sallyport/ingress/input"
)

// A pair is the certificate and key of a TLS Secret, parsed and checked.
type pair struct {
	pem      []byte // certificates, then the key, without anything else
	part     haproxy.Part
	leaf     *x509.Certificate
	names    []string // host names the certificate is for
	unusable string   // why it cannot be used: then all other fields are empty
}

// readPair parses the certificate and the key of a Secret of any type.
func readPair(s *corev1.Secret) *pair {
	refuse := func(format string, args ...any) *pair { return &pair{unusable: fmt.Sprintf(format, args...)} }
	crt, key := s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey]
	switch {
	case input.TooLarge(s) != "":
		return refuse("%s", input.TooLarge(s))
	case len(crt) == 0:
		return refuse("has no %s", corev1.TLSCertKey)
	case len(key) == 0:
		return refuse("has no %s", corev1.TLSPrivateKeyKey)
	}
	read, err := haproxy.ReadPair(crt, key)
	if err != nil {
		return refuse("has no certificate and key that can be used in %s and %s: %v",
			corev1.TLSCertKey, corev1.TLSPrivateKeyKey, err)
	}
	p := &pair{pem: read.PEM, part: read.Part(), leaf: read.Chain[0]}
	names := p.leaf.DNSNames
	if len(names) == 0 && p.leaf.Subject.CommonName != "" {
		names = []string{p.leaf.Subject.CommonName}
	}
	for _, n := range names {
		if host, why := claims.CleanHost(n); why == "" && host != "" && !slices.Contains(p.names, host) {
			p.names = append(p.names, host)
		}
	}
	return p
}

// accepted returns a pair that is unusable if HAProxy has refused it.
func (b *builder) accepted(p *pair) *pair {
	why := b.verdicts[p.part].Why
	if why == "" {
		return p
	}
	b.Refused = append(b.Refused, p.part)
	return &pair{unusable: "has a certificate that cannot be used: " + why}
}

// doubts returns why clients will reject a certificate. The certificate is served nevertheless.
func (p *pair) doubts(at time.Time, hosts []string) (reason, why string) {
	if !at.IsZero() {
		if at.After(p.leaf.NotAfter) {
			return "CertificateExpired", fmt.Sprintf("expired on %s; it is served, but clients will reject it: "+
				"renew it", p.leaf.NotAfter.UTC().Format(time.RFC3339))
		}
		if at.Before(p.leaf.NotBefore) {
			return "CertificateNotYetValid", fmt.Sprintf("is not valid before %s; it is served, but clients will "+
				"reject it", p.leaf.NotBefore.UTC().Format(time.RFC3339))
		}
	}
	for _, h := range hosts {
		if !claims.Covers(p.names, h) {
			return "CertificateHostMismatch", fmt.Sprintf("is valid for %s and not for %s; it is served, but clients "+
				"will reject it", claims.List(p.names), h)
		}
	}
	return "", ""
}

// certName returns the file name of the certificate of a Secret. No name of a
// namespace or a Secret has a "_": two Secrets never share a file.
func certName(prefix string, secret serviceKey) string {
	return claims.Shorten(prefix+secret.Namespace+"_"+secret.Name, "_") + ".pem"
}

// clientCertName returns the file name of a certificate for hosts that also ask clients for a
// certificate.
func clientCertName(name string, c annotations.Clients) string {
	how := "required"
	if c.Optional {
		how = "optional"
	}
	both := strings.TrimSuffix(name, ".pem") + "." + strings.TrimSuffix(c.CA.Name, ".ca.pem")
	return claims.Shorten("_"+both+"."+how, "_") + ".pem"
}
