package haproxy

import (
	"bytes"
	"crypto/dsa" //nolint:staticcheck // to reject its short keys
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// A Pair is a chain of certificates with the key of the first.
type Pair struct {
	Chain []*x509.Certificate
	PEM   []byte // the chain, then the key: a secret
}

// ReadPair parses a chain of certificates and its key, which may be in one text. It writes both
// anew: each certificate as CERTIFICATE, and the key in PKCS #8 as PRIVATE KEY. It drops all other
// text. Go accepts a key in a block of any name. HAProxy's OpenSSL does not, and HAProxy then
// rejects the whole configuration. An error says why HAProxy would reject the pair, and contains
// nothing of the key.
func ReadPair(chain, key []byte) (Pair, error) {
	parsed, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return Pair{}, errors.New(strings.TrimPrefix(err.Error(), "tls: "))
	}
	var p Pair
	for i, der := range parsed.Certificate {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return Pair{}, fmt.Errorf("certificate %d cannot be read: %w", i+1, err)
		}
		if why := Weak(c); why != "" {
			return Pair{}, fmt.Errorf("OpenSSL rejects certificate %d at its default security level: %s", i+1, why)
		}
		p.Chain = append(p.Chain, c)
		p.PEM = append(p.PEM, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	if own, is := parsed.PrivateKey.(*rsa.PrivateKey); is {
		switch bits := own.N.BitLen(); {
		case bits > maxRSA:
			return Pair{}, fmt.Errorf(
				"its RSA key has %d bits; at most %d are allowed, because each handshake delays every client", bits,
				maxRSA)
		case len(own.Primes) != 2:
			return Pair{}, fmt.Errorf("its RSA key is made of %d primes; 2 are allowed", len(own.Primes))
		}
	}
	der, err := x509.MarshalPKCS8PrivateKey(parsed.PrivateKey)
	if err != nil {
		return Pair{}, errors.New("its key has a type that cannot be used: allowed are RSA, ECDSA and Ed25519")
	}
	p.PEM = append(p.PEM, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})...)
	return p, nil
}

// maxRSA bounds the bits of an RSA key. A handshake with 8,192 bits takes HAProxy seven
// times as long as with 4,096.
const maxRSA = 4096

// sound lists the signature algorithms with at least 112 bits of security by the count
// of OpenSSL 3.
var sound = []x509.SignatureAlgorithm{
	x509.SHA256WithRSA, x509.SHA384WithRSA, x509.SHA512WithRSA, x509.SHA256WithRSAPSS, x509.SHA384WithRSAPSS,
	x509.SHA512WithRSAPSS,
	x509.ECDSAWithSHA256, x509.ECDSAWithSHA384, x509.ECDSAWithSHA512, x509.PureEd25519, x509.DSAWithSHA256,
}

// Weak returns why OpenSSL 3 rejects a certificate at security level 2, the default of Debian
// (SSL_CTX_set_security_level(3)). It returns "" if OpenSSL accepts the certificate. That level
// requires 112 bits of security of the key. It requires the same of the signature, unless the
// certificate is self-signed. An algorithm that Go does not know counts as weak, such as RSA-PSS
// over SHA-1.
func Weak(c *x509.Certificate) string {
	switch key := c.PublicKey.(type) {
	case *rsa.PublicKey:
		if key.N.BitLen() < 2048 {
			return fmt.Sprintf("its RSA key has %d bits; at least 2048 are required", key.N.BitLen())
		}
	case *dsa.PublicKey:
		if key.P.BitLen() < 2048 {
			return fmt.Sprintf("its DSA key has %d bits; at least 2048 are required", key.P.BitLen())
		}
	case *ecdsa.PublicKey:
		if key.Curve.Params().BitSize < elliptic.P224().Params().BitSize {
			return "its curve is smaller than P-224"
		}
	case ed25519.PublicKey:
	default:
		return "its key has an unknown type: allowed are RSA, ECDSA and Ed25519"
	}
	if slices.Contains(sound, c.SignatureAlgorithm) || selfIssued(c) {
		return ""
	}
	if c.SignatureAlgorithm == x509.UnknownSignatureAlgorithm {
		return "its signature has an unknown algorithm: allowed are RSA, RSA-PSS and ECDSA with SHA-256, SHA-384 or " +
			"SHA-512, and Ed25519"
	}
	return fmt.Sprintf("its signature has the algorithm %s: want SHA-256 or stronger", c.SignatureAlgorithm)
}

// selfIssued reports whether OpenSSL treats a certificate as self-signed (EXFLAG_SS). It does so
// under three conditions: its issuer is its subject, its authority key identifier names the
// certificate itself, and its key is of the kind that signed it. OpenSSL does not verify the
// signature. A certificate that selfIssued cannot read does not count as self-signed.
func selfIssued(c *x509.Certificate) bool {
	if !bytes.Equal(c.RawIssuer, c.RawSubject) ||
		!slices.Contains(signing[c.SignatureAlgorithm], c.PublicKeyAlgorithm) {
		return false
	}
	for _, e := range c.Extensions {
		if e.Id.Equal(authorityKey) && !ofItself(c, e.Value) {
			return false
		}
	}
	return true
}

// authorityKey is the extension authorityKeyIdentifier (RFC 5280, 4.2.1.1).
var authorityKey = asn1.ObjectIdentifier{2, 5, 29, 35}

// signing lists the weak signature algorithms that Go knows, each with the kind of its
// key.
var signing = map[x509.SignatureAlgorithm][]x509.PublicKeyAlgorithm{
	x509.MD5WithRSA: {x509.RSA}, x509.SHA1WithRSA: {x509.RSA}, x509.ECDSAWithSHA1: {x509.ECDSA},
	x509.DSAWithSHA1: {x509.DSA},
}

// ofItself reports whether an authority key identifier names the certificate that has
// it. As X509_check_akid does, it compares the key identifier if the certificate has one,
// the issuer, and the serial number.
func ofItself(c *x509.Certificate, value []byte) bool {
	var fields []asn1.RawValue
	if rest, err := asn1.Unmarshal(value, &fields); err != nil || len(rest) > 0 {
		return false
	}
	var serial asn1.RawValue
	if der, err := asn1.Marshal(c.SerialNumber); err != nil {
		return false
	} else if _, err := asn1.Unmarshal(der, &serial); err != nil {
		return false
	}
	for _, f := range fields {
		same := false
		switch f.Tag {
		case 0: // keyIdentifier
			same = len(c.SubjectKeyId) == 0 || bytes.Equal(f.Bytes, c.SubjectKeyId)
		case 1: // authorityCertIssuer; its first directoryName counts
			same = true
			for rest := f.Bytes; len(rest) > 0; {
				var name asn1.RawValue
				var err error
				if rest, err = asn1.Unmarshal(rest, &name); err != nil {
					return false
				}
				if name.Tag == 4 {
					same = bytes.Equal(name.Bytes, c.RawIssuer)
					break
				}
			}
		case 2: // authorityCertSerialNumber, an INTEGER with another tag
			same = bytes.Equal(f.Bytes, serial.Bytes)
		}
		if f.Class != asn1.ClassContextSpecific || !same {
			return false
		}
	}
	return true
}
