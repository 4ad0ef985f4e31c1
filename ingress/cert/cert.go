// Package cert reads the certificates and keys of Secrets, names the files that HAProxy reads them from,
// and decides which host has which certificate ([Hosts]). It alone knows when a [Pair] can be used, and when
// clients will reject it.
package cert

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/claims"
	"sallyport/ingress/input"
)

// A Pair is the certificate and key of a TLS Secret, parsed and checked.
type Pair struct {
	PEM      []byte // certificates, then the key, without anything else
	Part     haproxy.Part
	Leaf     *x509.Certificate
	Names    []string // host names the certificate is for
	Unusable string   // why it cannot be used: then all other fields are empty
}

// Read parses the certificate and the key of a Secret of any type.
func Read(s *corev1.Secret) *Pair {
	refuse := func(format string, args ...any) *Pair { return &Pair{Unusable: fmt.Sprintf(format, args...)} }
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
	p := &Pair{PEM: read.PEM, Part: read.Part(), Leaf: read.Chain[0]}
	names := p.Leaf.DNSNames
	if len(names) == 0 && p.Leaf.Subject.CommonName != "" {
		names = []string{p.Leaf.Subject.CommonName}
	}
	for _, n := range names {
		if host, why := claims.CleanHost(n); why == "" && host != "" && !slices.Contains(p.Names, host) {
			p.Names = append(p.Names, host)
		}
	}
	return p
}

// Doubts returns why clients will reject a certificate. The certificate is served nevertheless.
func (p *Pair) Doubts(at time.Time, hosts []string) (reason, why string) {
	if !at.IsZero() {
		if at.After(p.Leaf.NotAfter) {
			return "CertificateExpired", fmt.Sprintf("expired on %s; it is served, but clients will reject it: "+
				"renew it", p.Leaf.NotAfter.UTC().Format(time.RFC3339))
		}
		if at.Before(p.Leaf.NotBefore) {
			return "CertificateNotYetValid", fmt.Sprintf("is not valid before %s; it is served, but clients will "+
				"reject it", p.Leaf.NotBefore.UTC().Format(time.RFC3339))
		}
	}
	for _, h := range hosts {
		if !claims.Covers(p.Names, h) {
			return "CertificateHostMismatch", fmt.Sprintf("is valid for %s and not for %s; it is served, but clients "+
				"will reject it", claims.List(p.Names), h)
		}
	}
	return "", ""
}

// Name returns the file name of the certificate of a Secret. No name of a
// namespace or a Secret has a "_": two Secrets never share a file.
func Name(prefix string, secret types.NamespacedName) string {
	return claims.Shorten(prefix+secret.Namespace+"_"+secret.Name, "_") + ".pem"
}

// CipherName returns the file name of a certificate for hosts that have ciphers of their own.
func CipherName(name, ciphers string) string {
	sum := sha256.Sum256([]byte(ciphers))
	both := "_" + strings.TrimLeft(strings.TrimSuffix(name, ".pem"), "_")
	return claims.Shorten(both+"_c"+hex.EncodeToString(sum[:8]), "_") + ".pem"
}

// ClientName returns the file name of a certificate for hosts that also ask clients for a
// certificate.
func ClientName(name string, c annotations.Clients) string {
	how := "required"
	if c.Optional {
		how = "optional"
	}
	both := strings.TrimSuffix(name, ".pem") + "." + strings.TrimSuffix(c.CA.Name, ".ca.pem")
	if c.Match != "" {
		sum := sha256.Sum256([]byte(c.Match))
		how += "." + hex.EncodeToString(sum[:8])
	}
	return claims.Shorten("_"+both+"."+how, "_") + ".pem"
}
