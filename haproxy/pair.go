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

// ReadPair parses a chain of certificates and its key, which may be in one text. It
// writes both anew: each certificate as CERTIFICATE, the key in PKCS #8 as PRIVATE KEY,
// and nothing else. Go takes a key from a block of any name; HAProxy's OpenSSL does
// not, and then rejects the whole configuration. An error says why HAProxy would reject
// the pair, and contains nothing of the key.
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
			return Pair{}, fmt.Errorf("its RSA key has %d bits; at most %d are allowed, because each handshake delays every client", bits, maxRSA)
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
	x509.SHA256WithRSA, x509.SHA384WithRSA, x509.SHA512WithRSA, x509.SHA256WithRSAPSS, x509.SHA384WithRSAPSS, x509.SHA512WithRSAPSS,
	x509.ECDSAWithSHA256, x509.ECDSAWithSHA384, x509.ECDSAWithSHA512, x509.PureEd25519, x509.DSAWithSHA256,
}

// Weak returns why OpenSSL 3 rejects a certificate at security level 2, the default of
// Debian (SSL_CTX_set_security_level(3)); empty if it does not. That level requires 112
// bits of security of the key. It requires the same of the signature, unless the
// certificate is self-signed. A kind that Go does not know counts as weak, such as
// RSA-PSS over SHA-1.
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
		return "its signature has an unknown algorithm: allowed are RSA, RSA-PSS and ECDSA with SHA-256, SHA-384 or SHA-512, and Ed25519"
	}
	return fmt.Sprintf("its signature has the algorithm %s: want SHA-256 or stronger", c.SignatureAlgorithm)
}

// selfIssued reports whether OpenSSL takes a certificate for self-signed (EXFLAG_SS).
// It compares the names, and the key identifiers if the certificate has both.
func selfIssued(c *x509.Certificate) bool {
	return bytes.Equal(c.RawIssuer, c.RawSubject) && (len(c.AuthorityKeyId) == 0 || len(c.SubjectKeyId) == 0 || bytes.Equal(c.AuthorityKeyId, c.SubjectKeyId))
}
