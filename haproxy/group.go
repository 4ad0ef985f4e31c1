package haproxy

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/netip"
	"path"
	"slices"
	"time"
)

// A Group describes several HAProxys that serve the same clients. They exchange how many requests
// of each client they have counted (HAProxy Configuration Manual, "peers"). They also accept each
// other's cookies.
//
// A count from another member overrides the own count: the counts are not added. A limit is
// therefore exact for a client that meets only one member at a time. Any other client can get
// through with up to N times the limit, where N is the number of members.
type Group struct {
	Self string // name of this member
	// At is the address of this machine where this member accepts connections from other members.
	// If it is not valid, this member only connects to them.
	At     netip.AddrPort
	Others []Peer // sorted by Name
	Secret Secret // the same for all members
}

// A Peer is another HAProxy of a Group.
type Peer struct {
	Name string
	At   netip.AddrPort
}

// A Secret holds bytes that must not appear in logs.
type Secret []byte

// String returns a word that contains nothing of the Secret.
func (s Secret) String() string { return "secret" }

// GoString returns the same as String.
func (s Secret) GoString() string { return "secret" }

// LogValue returns the same as String, for slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue("secret") }

func (g *Group) validate() error {
	if g == nil {
		return nil
	}
	errs := []error{named("member", g.Others, func(p Peer) string { return p.Name })}
	if !isName(g.Self) {
		errs = append(errs, notAName("member", g.Self))
	}
	if len(g.Secret) < sha256.Size {
		errs = append(errs, fmt.Errorf("the secret of the group has %d bytes; at least %d are needed", len(g.Secret),
			sha256.Size))
	}
	for _, p := range g.Others {
		if p.Name == g.Self {
			errs = append(errs, fmt.Errorf("member %q is this one; allowed are the names of the others", p.Name))
		}
		if !p.At.IsValid() || p.At.Port() == 0 || p.At.Addr().Zone() != "" {
			errs = append(errs, fmt.Errorf("member %q has the address %s: needs an address without a zone, and a port",
				p.Name, p.At))
		}
	}
	return errors.Join(errs...)
}

// group returns the Group of a Shape. If the Shape has no Group, HAProxy is the only member of a
// Group of its own. In both cases the old worker sends its counts to the new worker after a reload.
//
// HAProxy 2.6 sends no counts before it has received those of another member, or has waited 5 s for
// them. A reload within 5 s of its start therefore loses the counts of these seconds.
func (o RenderOptions) group(s *Shape) Group {
	if s.Group == nil {
		return Group{Self: "local", Secret: Secret(o.Secret)}
	}
	return *s.Group
}

// cookieKey returns the key of the hash in the value of a cookie.
func (o RenderOptions) cookieKey(s *Shape) string {
	if s.Group == nil {
		return keyOfCookies(o.Secret)
	}
	return hex.EncodeToString(derive(s.Group.Secret, "cookies", 16))
}

// peersSection is the name of the section that lists the peers.
const peersSection = "sallyport"

// Names of the files of a peer, in extraDir. No Extra has such a name, since no namespace begins
// with "_".
const (
	peerCert  = "_peers.pem"    // its certificate, then the key, which is a secret
	peerTrust = "_peers.ca.pem" // the authority that has signed the certificates of all members
)

// sharesTables reports whether this worker sends any table to another worker. A worker does not
// send its counts of concurrent requests, because a request ends in the worker where it began.
func (s *Shape) sharesTables() bool {
	return slices.ContainsFunc(s.Tables, func(t Table) bool { return t.Period != 0 })
}

// writePeers writes the section that lists the peers. It writes nothing if no table is shared.
func (h *head) writePeers() {
	if !h.sharesTables() {
		return
	}
	g := h.opt.group(h.Shape)
	h.section("global") // after the operator's own lines, because the last name counts
	h.line("localpeer", g.Self)
	h.section("peers", peersSection)
	// A process that connects here can report requests that nobody has sent. Every user of this
	// machine can connect.
	tls := "ssl verify required crt " + peerCert + " ca-file " + peerTrust
	// The old worker connects to the new worker at the address for the other members. If there is
	// no such address, it connects at an abstract address, for the reason in passage.
	bind := "bind abns@" + path.Dir(h.opt.StatsSocket) + "/peers"
	if g.At.IsValid() {
		bind = bindText(g.At)
	}
	h.line(bind, tls)
	h.line("server", g.Self, tls)
	for _, p := range g.Others {
		h.line("server", p.Name, p.At.String(), tls)
	}
}

// peerFiles returns the files of this peer. All peers derive the same authority from the secret, so
// each peer accepts the certificates of its peers only.
func (g Group) peerFiles() []*Extra {
	authority, key := peerKey(g.Secret, "authority of peers"), peerKey(g.Secret, "peer "+g.Self)
	issuer := issue("authority of peers", authority, nil, authority)
	own := issue("peer "+g.Self, key, issuer, authority)
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

// derive returns size bytes for a purpose (RFC 5869). They reveal neither the secret nor the bytes
// for another purpose.
func derive(secret []byte, purpose string, size int) []byte {
	out, _ := hkdf.Key(sha256.New, secret, nil, "sallyport haproxy: "+purpose, size) // it fails with more than 8 kB
	return out
}

// issue makes a certificate that never expires. issuer is nil for the certificate of an authority.
func issue(name string, key ed25519.PrivateKey, issuer *x509.Certificate, signer ed25519.PrivateKey) *x509.Certificate {
	public := key.Public()
	sum := sha256.Sum256(public.(ed25519.PublicKey)) //nolint:errcheck // it is one
	c := &x509.Certificate{
		SerialNumber:          new(big.Int).SetBytes(sum[:16]),
		Subject:               pkix.Name{CommonName: name},
		SubjectKeyId:          sum[:20], // as in RFC 7093; the choice of crypto/x509 differs with its version
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
	// it fails with none of these templates and keys
	c.Raw, _ = x509.CreateCertificate(rand.Reader, c, issuer, public, signer)
	return c
}
