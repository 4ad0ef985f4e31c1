package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// keys are the certificates of victim and of evil.
type keys struct {
	dir          string // where the pods find theirs
	victim, evil *authority

	gate, front string // Secrets of the Gateways of victim, the same each time they are applied
}

// An authority is a tenant's certificate authority, with a client certificate that it issued.
type authority struct {
	name   string
	der    []byte
	crt    *x509.Certificate
	key    *ecdsa.PrivateKey
	client tls.Certificate
}

func newKeys(dir string) (*keys, error) {
	victim, err := newAuthority("victim")
	if err != nil {
		return nil, err
	}
	evil, err := newAuthority("evil")
	if err != nil {
		return nil, err
	}
	crt, key, err := victim.pair("through.test")
	if err != nil {
		return nil, err
	}
	k := &keys{
		dir: dir, victim: victim, evil: evil,
		gate: victim.certificate("gate", "gate.test"), front: victim.certificate("front", "front.test"),
	}
	return k, os.WriteFile(filepath.Join(dir, "through.pem"), slices.Concat(crt, key), 0o600)
}

func newAuthority(name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name + "'s authority"}, IsCA: true,
		BasicConstraintsValid: true,
		NotBefore:             time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign,
	}
	a := &authority{name: name, key: key}
	if a.der, err = x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key); err != nil {
		return nil, err
	}
	if a.crt, err = x509.ParseCertificate(a.der); err != nil {
		return nil, err
	}
	crt, private, err := a.pair(name)
	if err != nil {
		return nil, err
	}
	a.client, err = tls.X509KeyPair(crt, private)
	return a, err
}

// pem returns the certificate that verifies clients.
func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.der})
}

// pair returns a certificate and its key for names. The first name is also the subject.
func (a *authority) pair(names ...string) (crt, key []byte, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	return a.sign(k, names...)
}

func (a *authority) sign(k crypto.Signer, names ...string) (crt, key []byte, err error) {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.crt, k.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(k)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), err
}

// secret returns the manifest of a Secret of type kubernetes.io/tls.
func secret(namespace, name string, crt, key []byte) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Secret\ntype: kubernetes.io/tls\n"+
		"metadata: {namespace: %s, name: %s}\ndata: {tls.crt: %s, tls.key: %s}\n", namespace, name, encode(string(crt)),
		encode(string(key)))
}

// certificate returns the manifest of a Secret with a certificate of the tenant.
func (a *authority) certificate(name string, hosts ...string) string {
	crt, key, err := a.pair(hosts...)
	if err != nil {
		panic(err) // no randomness is left
	}
	return secret(a.name, name, crt, key)
}

// trusted returns the manifest of a Secret for client-ca.
func (a *authority) trusted(name string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Secret\nmetadata: {namespace: %s, name: %s}\ndata: {ca.crt: %s}\n",
		a.name, name, encode(string(a.pem())))
}

func encode(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
