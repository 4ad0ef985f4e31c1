package haproxy

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"path"
	"slices"
	"time"
)

// What one HAProxy has counted of its clients, another one can take over: by HAProxy's
// peers (HAProxy Configuration Manual, "peers"). After a reload the old worker passes its
// tables on to the new one, at an address where the new one listens.
//
// HAProxy 2.6 passes on nothing before it has learned from another, or has waited 5 s for
// that. So a reload within 5 s of its start forgets what it has counted in them.

// peersSection is the name of the section that lists the peers.
const peersSection = "sallyport"

// The files of a peer, in extraDir. No Extra has such a name, since no namespace begins
// with "_".
const (
	peerCert  = "_peers.pem"    // its certificate, and the key: a secret
	peerTrust = "_peers.ca.pem" // the authority that has signed the certificates of all
)

// alone is the name of the only peer.
const alone = "local"

// sharesTables reports whether a worker passes on any table. What it counts of concurrent
// requests is its own: they end in the worker in which they began.
func (s *Shape) sharesTables() bool {
	return slices.ContainsFunc(s.Tables, func(t Table) bool { return t.Period != 0 })
}

// writePeers writes the section that lists the peers. Without a table there is none.
func (h *head) writePeers() {
	if !h.sharesTables() {
		return
	}
	h.section("global") // after the operator's own lines: the last name counts
	h.line("localpeer", alone)
	h.section("peers", peersSection)
	// Anybody else on this machine could connect, and tell what was never counted.
	tls := "ssl verify required crt " + peerCert + " ca-file " + peerTrust
	h.line("bind", h.peering(), tls)
	h.line("server", alone, tls)
}

// peering returns the address at which the new worker hears what the old one has counted.
// It is no path, for the same reason as in passage.
func (h *head) peering() string { return "abns@" + path.Dir(h.opt.StatsSocket) + "/peers" }

// peerExtras returns the files of a peer. They depend on the secret and its name alone.
func peerExtras(secret []byte, name string) []*Extra {
	authority, key := peerKey(secret, "authority of peers"), peerKey(secret, "peer "+name)
	issuer := issue("authority of peers", authority, nil, authority)
	own := issue("peer "+name, key, issuer, authority)
	pkcs8, _ := x509.MarshalPKCS8PrivateKey(key) // it knows Ed25519
	block := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	return []*Extra{
		{peerTrust, block("CERTIFICATE", issuer.Raw)},
		{peerCert, slices.Concat(block("CERTIFICATE", own.Raw), block("PRIVATE KEY", pkcs8))},
	}
}

// peerKey derives a key from the secret.
func peerKey(secret []byte, purpose string) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(derive(secret, purpose, ed25519.SeedSize))
}

// derive returns that many bytes for a purpose (RFC 5869). They do not reveal the secret,
// nor the bytes for another purpose.
func derive(secret []byte, purpose string, size int) []byte {
	out, _ := hkdf.Key(sha256.New, secret, nil, "sallyport haproxy: "+purpose, size) // it fails with more than 8 kB
	return out
}

// issue makes a certificate that never expires. Who is an authority has no issuer.
func issue(name string, key ed25519.PrivateKey, issuer *x509.Certificate, signer ed25519.PrivateKey) *x509.Certificate {
	public := key.Public()
	sum := sha256.Sum256(public.(ed25519.PublicKey)) //nolint:errcheck // it is one
	c := &x509.Certificate{
		SerialNumber:          new(big.Int).SetBytes(sum[:16]),
		Subject:               pkix.Name{CommonName: name},
		SubjectKeyId:          sum[:20], // in RFC 7093's way; what crypto/x509 chooses differs with its version
		NotBefore:             time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:              time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), // RFC 5280, 4.1.2.5: no end
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if issuer == nil {
		c.IsCA, c.KeyUsage, c.ExtKeyUsage = true, x509.KeyUsageCertSign, nil
		issuer = c
	}
	c.Raw, _ = x509.CreateCertificate(rand.Reader, c, issuer, public, signer) // it takes the template, whatever the key is
	return c
}
