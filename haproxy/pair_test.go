package haproxy

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"maps"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// An odd is a generator of certificates that are unusual, each in several ways.
type odd struct {
	t    *testing.T
	rand *mathrand.Rand
	keys []crypto.Signer
	said []string // what is unusual about the one at hand
}

func pick[T any](o *odd, name string, from ...T) T {
	i := o.rand.IntN(len(from))
	o.said = append(o.said, fmt.Sprintf("%s %d", name, i))
	return from[i]
}

// oids returns algorithm identifiers of signatures, with the parameters NULL where they
// have some.
func oids() (all []pkix.AlgorithmIdentifier) {
	null := asn1.RawValue{Tag: asn1.TagNull}
	for _, last := range []int{4, 5, 11, 12, 13, 14} { // RSA with MD5, SHA-1, SHA-256, SHA-384, SHA-512, SHA-224
		all = append(all, pkix.AlgorithmIdentifier{
			Algorithm:  asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, last},
			Parameters: null,
		})
	}
	for _, id := range []asn1.ObjectIdentifier{
		// ECDSA with SHA-1, SHA-224, SHA-256, SHA-512
		{1, 2, 840, 10045, 4, 1},
		{1, 2, 840, 10045, 4, 3, 1},
		{1, 2, 840, 10045, 4, 3, 2},
		{1, 2, 840, 10045, 4, 3, 4},
		// Ed25519, DSA with SHA-1, DSA with SHA-256
		{1, 3, 101, 112},
		{1, 2, 840, 10040, 4, 3},
		{2, 16, 840, 1, 101, 3, 4, 3, 2},
		{1, 3, 14, 3, 2, 29},
		{1, 2, 3, 4}, // RSA with SHA-1 by its other name, nothing
	} {
		all = append(all, pkix.AlgorithmIdentifier{Algorithm: id})
	}
	// RSA-PSS over SHA-1
	return append(all, pkix.AlgorithmIdentifier{
		Algorithm:  asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 10},
		Parameters: asn1.RawValue{Tag: asn1.TagSequence, IsCompound: true},
	})
}

// authority returns an authorityKeyIdentifier, or nothing.
func (o *odd) authority(template *x509.Certificate, issuer string) []pkix.Extension {
	field := func(tag int, compound bool, content []byte) asn1.RawValue {
		return asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: tag, IsCompound: compound, Bytes: content}
	}
	name := func(cn string) []byte { return generalName(o.t, cn) }
	number := func(n *big.Int) []byte {
		var raw asn1.RawValue
		der := must[[]byte](o.t)(asn1.Marshal(n))
		if _, err := asn1.Unmarshal(der, &raw); err != nil {
			o.t.Fatal(err)
		}
		return raw.Bytes
	}
	var fields []asn1.RawValue
	if id := pick(o, "authority's key", nil, template.SubjectKeyId, []byte{9}); id != nil {
		fields = append(fields, field(0, false, id))
	}
	dns := must[[]byte](o.t)(asn1.Marshal(field(2, false, []byte("a.test"))))
	if names := pick(o, "authority's issuer", nil, nil, nil, name(issuer), name("other"), dns,
		slices.Concat(dns, name(issuer)), slices.Concat(name("other"), name(issuer)), []byte{}); names != nil {
		fields = append(fields, field(1, true, names))
	}
	if serial := pick(o, "authority's serial", nil, nil, nil, number(template.SerialNumber), number(big.NewInt(8)),
		append([]byte{0}, number(template.SerialNumber)...), []byte{}); serial != nil {
		fields = append(fields, field(2, false, serial))
	}
	if len(fields) == 0 && pick(o, "no authority", true, true, false) {
		return nil
	}
	value := must[[]byte](o.t)(asn1.Marshal(fields))
	return []pkix.Extension{{Id: authorityKey, Value: value}}
}

// certificate returns one, and the key for it.
func (o *odd) certificate() ([]byte, crypto.Signer) {
	key, by := pick(o, "key", o.keys...), pick(o, "signed by", o.keys...)
	subject := pick(o, "subject", "a.test", "a.test", "ca", "")
	issuer := pick(o, "issuer", subject, subject, subject, "ca", strings.ToUpper(subject))
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: pick(o, "serial", big.NewInt(7), big.NewInt(7), big.NewInt(1<<40),
			new(big.Int).Lsh(big.NewInt(1), 150), big.NewInt(128)),
		Subject: pkix.Name{CommonName: subject}, SubjectKeyId: pick(o, "subject's key", nil, []byte{1, 2, 3}),
		NotBefore: pick(o, "from", now.Add(-time.Hour), now.Add(time.Hour),
			time.Date(1951, 1, 1, 0, 0, 0, 0, time.UTC)),
		NotAfter: pick(o, "to", now.Add(2*time.Hour), now.Add(-time.Minute),
			time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)),
		IsCA: pick(o, "authority", false, true), BasicConstraintsValid: pick(o, "constraints", true, true, false),
		KeyUsage: pick(o, "usage", 0, x509.KeyUsageDigitalSignature, x509.KeyUsageCertSign,
			x509.KeyUsageEncipherOnly),
		ExtKeyUsage: pick(o, "extended usage", nil, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
			[]x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning}, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}),
		DNSNames: pick(o, "names", nil, []string{"a.test"}, []string{"*.a.test", "b.test", "*"},
			[]string{"a..b", " ", "x\x00y"}),
		IPAddresses: pick(o, "addresses", nil, []net.IP{{10, 0, 0, 1}}),
		OCSPServer:  pick(o, "ocsp", nil, nil, []string{"http://ocsp.test/"}),
	}
	if !template.BasicConstraintsValid {
		template.IsCA = false
	}
	if template.IsCA && pick(o, "constrained", false, false, true) {
		template.PermittedDNSDomains, template.PermittedDNSDomainsCritical, template.MaxPathLenZero = []string{
			"other.test",
		}, true, true
	}
	template.ExtraExtensions = o.authority(template, issuer)
	template.ExtraExtensions = append(template.ExtraExtensions,
		pick(o, "extensions", nil, nil,
			[]pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3}, Critical: true, Value: []byte{5, 0}}},
			[]pkix.Extension{{
				Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 11129, 2, 4, 3}, Critical: true,
				Value: []byte{5, 0},
			}},
			[]pkix.Extension{{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 11129, 2, 4, 2}, Value: []byte{4, 1, 1}}},
			[]pkix.Extension{{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 24}, Value: []byte{0x30, 3, 2, 1, 5}}},
			[]pkix.Extension{{
				Id: asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 14}, Critical: true,
				Value: []byte{0x30, 1, 0xff},
			}},
			[]pkix.Extension{{Id: asn1.ObjectIdentifier{2, 16, 840, 1, 113730, 1, 1}, Value: []byte{1}}},
			[]pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 18}, Value: []byte{1}}},
			[]pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 31}, Value: []byte{0x30, 0}}},
			[]pkix.Extension{{
				Id: asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 7}, Critical: true,
				Value: []byte{1, 2, 3},
			}},
		)...)
	parent := *template
	parent.Subject = pkix.Name{CommonName: issuer}
	der, err := x509.CreateCertificate(rand.Reader, template, &parent, key.Public(), by)
	if err != nil {
		return nil, nil
	}
	if how := oids(); pick(o, "another algorithm", false, true) {
		// SHA-1 above all
		der = resigned(o.t, der, pick(o, "algorithm", append(how, how[1], how[1], how[6], how[6])...),
			func(asn1.RawContent) []byte { return []byte("not a signature") })
	}
	return der, key
}

// TestWhatWeTakeHAProxyTakes draws odd pairs until we take some hundreds, and asks HAProxy
// about each of these.
func TestWhatWeTakeHAProxyTakes(t *testing.T) {
	o := &odd{t: t, rand: mathrand.New(mathrand.NewPCG(27, 5))} //nolint:gosec // the same in each run
	for _, bits := range []int{2048, 2048, 2047, 1024} {
		o.keys = append(o.keys, must[*rsa.PrivateKey](t)(rsa.GenerateKey(rand.Reader, bits)))
	}
	for _, curve := range []elliptic.Curve{elliptic.P224(), elliptic.P256(), elliptic.P384(), elliptic.P521()} {
		o.keys = append(o.keys, must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(curve, rand.Reader)))
	}
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	o.keys = append(o.keys, edwards)
	taken := map[Question]string{}
	refused, weak := 0, 0
	for len(taken) < 400 || weak < 30 {
		o.said = nil
		leaf, key := o.certificate()
		chain := [][]byte{leaf}
		for range pick(o, "chain", 0, 0, 0, 1) {
			next, _ := o.certificate()
			chain = append(chain, next)
		}
		if slices.ContainsFunc(chain, func(der []byte) bool { return der == nil }) {
			continue // Go does not make it
		}
		text := bytes.Join([][]byte{pemOf(chain), keyText(t, key)}, nil)
		pair, err := ReadPair(text, text)
		if err != nil {
			refused++
			continue
		}
		if slices.ContainsFunc(pair.Chain, func(c *x509.Certificate) bool {
			return !slices.Contains(sound, c.SignatureAlgorithm)
		}) {
			weak++
		}
		taken[(&Cert{PEM: pair.PEM}).Question()] = strings.Join(o.said, ", ")
	}
	if refused < 200 {
		t.Fatalf("only %d pairs are refused: that shows nothing", refused)
	}
	withEach(t, func(t *testing.T, binary string) {
		said, err := newRig(t, binary).p.Vet(t.Context(), slices.Collect(maps.Keys(taken)))
		if err != nil {
			t.Fatal(err)
		}
		for q, what := range taken {
			if verdict := said[q.Part()]; verdict != Good {
				t.Errorf("we take, and HAProxy says %q: %s", verdict.Why, what)
			}
		}
	})
}

// TestManyBadCertificatesTakeFewRuns checks the verdicts on many certificates, of which HAProxy
// rejects more than it names in one run.
func TestManyBadCertificatesTakeFewRuns(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		good := testCert(t, "good.pem", "good", "good.test")
		var questions []Question
		for i := range 199 {
			questions = append(questions, (&Cert{PEM: fmt.Appendf(nil, "nothing %d", i)}).Question())
		}
		questions = slices.Insert(questions, 120, good.Question())
		said, err := r.p.Vet(t.Context(), questions)
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range questions {
			if verdict := said[q.Part()]; (verdict == Good) != (q == good.Question()) ||
				strings.Contains(verdict.Why, r.opt.RunDir) || strings.Contains(q.String(), "nothing") {
				t.Errorf("%s: got %v", q, verdict)
			}
		}
		if runs := r.p.Info().Checks; runs > 6 {
			t.Errorf("HAProxy ran %d times", runs)
		}
	})
}

func TestAFreshProcessKnowsItsCertificatesByTheFiles(t *testing.T) {
	r := newRig(t, binaries(t)[0])
	cfg := r.config()
	cfg.Certs = []*Cert{testCert(t, "app.pem", "app", "app.test")}
	r.settle(cfg, nil)
	r.p = r.fresh()
	other := testCert(t, "other.pem", "other", "other.test")
	said, err := r.p.Vet(t.Context(), []Question{cfg.Certs[0].Question()})
	if err != nil || said[cfg.Certs[0].Question().Part()] != Good || r.p.Info().Checks != 0 {
		t.Errorf("got %v, %v after %d runs", said, err, r.p.Info().Checks)
	}
	if said, err = r.p.Vet(t.Context(), []Question{other.Question()}); err != nil ||
		said[other.Question().Part()] != Good || r.p.Info().Checks != 1 {
		t.Errorf("another one: got %v, %v after %d runs", said, err, r.p.Info().Checks)
	}
}
