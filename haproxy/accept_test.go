package haproxy

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1" //nolint:gosec // what is to be refused
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// rsaKey returns one for all tests: to make one takes long.
func rsaKey(t *testing.T) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func crtText(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func keyText(t *testing.T, key any) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// overSHA1 signs a certificate anew with RSA-PSS over SHA-1, which Go does not.
func overSHA1(t *testing.T, der []byte, key *rsa.PrivateKey) []byte {
	t.Helper()
	// Without parameters it is over SHA-1 (RFC 4055, 3.1).
	how := pkix.AlgorithmIdentifier{
		Algorithm:  asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 10},
		Parameters: asn1.RawValue{Tag: asn1.TagSequence, IsCompound: true},
	}
	return resigned(t, der, how, func(text asn1.RawContent) []byte {
		sum := sha1.Sum(text) //nolint:gosec // what is to be refused
		return must[[]byte](t)(rsa.SignPSS(rand.Reader, key, crypto.SHA1, sum[:], &rsa.PSSOptions{SaltLength: 20}))
	})
}

// resigned gives a certificate another signature, and the name of its algorithm.
func resigned(t *testing.T, der []byte, how pkix.AlgorithmIdentifier, sign func(asn1.RawContent) []byte) []byte {
	t.Helper()
	type toBeSigned struct {
		Version                        int `asn1:"optional,explicit,default:0,tag:0"`
		Serial                         *big.Int
		Algorithm                      pkix.AlgorithmIdentifier
		Issuer, Validity, Subject, Key asn1.RawValue
		Extensions                     asn1.RawValue `asn1:"optional,explicit,tag:3"`
	}
	var crt struct {
		TBS       asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}
	var tbs toBeSigned
	if _, err := asn1.Unmarshal(der, &crt); err != nil {
		t.Fatal(err)
	}
	if _, err := asn1.Unmarshal(crt.TBS.FullBytes, &tbs); err != nil {
		t.Fatal(err)
	}
	crt.Algorithm, tbs.Algorithm = how, how
	text := must[[]byte](t)(asn1.Marshal(tbs))
	signature := sign(text)
	crt.TBS, crt.Signature = asn1.RawValue{FullBytes: text},
		asn1.BitString{Bytes: signature, BitLength: 8 * len(signature)}
	return must[[]byte](t)(asn1.Marshal(crt))
}

// certificate makes one for a key, signed by another.
func certificate(t *testing.T, subject, issuer string, key crypto.PublicKey, by crypto.Signer,
	change func(*x509.Certificate),
) []byte {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: subject}, DNSNames: []string{subject},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true,
		IsCA: true,
	}
	if change != nil {
		change(template)
	}
	parent := *template
	parent.Subject = pkix.Name{CommonName: issuer}
	der, err := x509.CreateCertificate(rand.Reader, template, &parent, key, by)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// cunning returns a pair that OpenSSL refuses: it is signed with
// SHA-1 and looks self-signed, but for the serial number that it says its issuer's
// certificate has.
func cunning(t *testing.T, host string) []byte {
	t.Helper()
	key := rsaKey(t)
	of, err := asn1.Marshal(struct {
		KeyID  []byte        `asn1:"tag:0"`
		Issuer asn1.RawValue `asn1:"tag:1"`
		Serial *big.Int      `asn1:"tag:2"`
	}{[]byte{1, 2, 3}, asn1.RawValue{
		Class: asn1.ClassContextSpecific, Tag: 1, IsCompound: true,
		Bytes: generalName(t, host),
	}, big.NewInt(8)})
	if err != nil {
		t.Fatal(err)
	}
	der := certificate(t, host, host, key.Public(), key, func(c *x509.Certificate) {
		c.SignatureAlgorithm, c.SubjectKeyId = x509.SHA1WithRSA, []byte{1, 2, 3}
		c.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 35}, Value: of}}
	})
	return append(crtText(der), keyText(t, key)...)
}

// generalName returns a directoryName (RFC 5280, 4.2.1.6).
func generalName(t *testing.T, name string) []byte {
	t.Helper()
	der, err := asn1.Marshal(pkix.Name{CommonName: name}.ToRDNSequence())
	if err != nil {
		t.Fatal(err)
	}
	out, err := asn1.Marshal(asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 4, IsCompound: true, Bytes: der})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAKeyIsTakenWhateverItsBlockIsCalled(t *testing.T) {
	own, curve := rsaKey(t), must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	sec1, err := x509.MarshalECPrivateKey(curve)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(curve)
	if err != nil {
		t.Fatal(err)
	}
	var certs []*Cert
	for name, c := range map[string]struct {
		key   crypto.Signer
		block pem.Block
	}{
		"a.test": {curve, pem.Block{Type: "FOO PRIVATE KEY", Bytes: pkcs8}},
		"b.test": {curve, pem.Block{Type: "EC PRIVATE KEY", Bytes: sec1}},
		"c.test": {own, pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(own)}},
		"d.test": {own, pem.Block{Type: "EC PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(own)}},
	} {
		text := append(crtText(certificate(t, name, name, c.key.Public(), c.key, nil)), pem.EncodeToMemory(&c.block)...)
		certs = append(certs, &Cert{Name: name + ".pem", Hosts: []string{name}, PEM: text})
		pair, err := ReadPair(text, text)
		if err != nil || bytes.Count(pair.PEM, []byte("-----BEGIN PRIVATE KEY-----")) != 1 ||
			bytes.Count(pair.PEM, []byte("-----BEGIN")) != 2 {
			t.Errorf("%s: got %d bytes, %v", name, len(pair.PEM), err)
		}
	}
	slices.SortFunc(certs, func(a, b *Cert) int { return strings.Compare(a.Name, b.Name) })
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg := r.config()
		r.settle(cfg, nil)
		next := *cfg
		next.Certs = certs
		for _, how := range []string{"by command", "from the files"} {
			r.settle(&next, nil)
			for _, c := range certs {
				if got := r.served(c.Hosts[0]); got != c.Hosts[0] {
					t.Errorf("%s, %s: got %q", how, c.Hosts[0], got)
				}
			}
			r.end()
			r.p = r.fresh()
		}
		r.settle(cfg, nil)
	})
}

func TestWhatOpenSSLRefusesIsRefused(t *testing.T) {
	key, other := rsaKey(t), rsaKey(t)
	good := certificate(t, "leaf.test", "ca", key.Public(), other, nil)
	root := certificate(t, "ca", "ca", other.Public(), other, func(c *x509.Certificate) {
		c.SignatureAlgorithm = x509.SHA1WithRSA
	})
	for name, c := range map[string]struct {
		chain [][]byte
		want  string
	}{
		"nothing":                       {[][]byte{good}, ""},
		"a self-signed root over SHA-1": {[][]byte{good, root}, ""},
		"RSA-PSS over SHA-1": {
			[][]byte{overSHA1(t, good, other)},
			"certificate 1 at its default security level: its signature has an unknown algorithm",
		},
		"RSA-PSS over SHA-1, later in the chain": {[][]byte{
			good,
			overSHA1(t, certificate(t, "ca", "root", other.Public(), key, nil), key),
		}, "certificate 2"},
		"SHA-1, where another key signs the same name": {
			[][]byte{certificate(t, "a", "a", key.Public(), other, func(c *x509.Certificate) {
				c.SignatureAlgorithm, c.SubjectKeyId, c.AuthorityKeyId = x509.SHA1WithRSA, []byte{1}, []byte{2}
				c.ExtraExtensions = []pkix.Extension{{
					Id:    asn1.ObjectIdentifier{2, 5, 29, 35},
					Value: []byte{0x30, 3, 0x80, 1, 2},
				}}
			})}, "SHA1-RSA",
		},
		"SHA-1, where the issuer has another serial number": {
			[][]byte{certificate(t, "a", "a", key.Public(), key, func(c *x509.Certificate) {
				c.SignatureAlgorithm = x509.SHA1WithRSA
				c.ExtraExtensions = []pkix.Extension{{Id: authorityKey, Value: []byte{0x30, 3, 0x82, 1, 8}}}
			})}, "SHA1-RSA",
		},
		"SHA-1, where the issuer has this serial number": {
			[][]byte{certificate(t, "a", "a", key.Public(), key, func(c *x509.Certificate) {
				c.SignatureAlgorithm = x509.SHA1WithRSA
				c.ExtraExtensions = []pkix.Extension{{Id: authorityKey, Value: []byte{0x30, 3, 0x82, 1, 7}}}
			})}, "",
		},
	} {
		text := bytes.Join([][]byte{pemOf(c.chain), keyText(t, key)}, nil)
		_, err := ReadPair(text, text)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
		var refused atomic.Int32
		withEach(t, func(t *testing.T, binary string) {
			if err := takes(t, binary, text); err != nil {
				refused.Add(1)
			}
		})
		// The OpenSSL of Debian's sid takes SHA-1.
		if (refused.Load() == 0) != (c.want == "") && os.Getenv("SALLYPORT_TEST_HAPROXY") == "" {
			t.Errorf("%s: %d versions of HAProxy refuse it", name, refused.Load())
		}
	}
	long, err := rsa.GenerateKey(rand.Reader, maxRSA+8)
	if err != nil {
		t.Fatal(err)
	}
	text := append(crtText(certificate(t, "a", "a", long.Public(), long, nil)), keyText(t, long)...)
	if _, err := ReadPair(text, text); err == nil || !strings.Contains(err.Error(), "4104 bits") {
		t.Errorf("a long key: got %v", err)
	}
}

// takes returns what HAProxy has against a certificate that we do not look at.
func takes(t *testing.T, binary string, text []byte) error {
	t.Helper()
	r := newRig(t, binary)
	files := Render(r.config(), nil, r.p.files).Content
	path := certDir + "it.pem"
	files[path] = File{text, 0o600}
	files[crtList] = File{append(files[crtList].Content, r.p.path(path)+"\n"...), 0o600}
	if err := r.p.disk.sync(files, nil); err != nil {
		t.Fatal(err)
	}
	return check(binary, r.opt.Dir)
}

func pemOf(chain [][]byte) (text []byte) {
	for _, der := range chain {
		text = append(text, crtText(der)...)
	}
	return text
}

// nonsense holds texts that no function of ours makes.
var nonsense = Directive{phase: phaseHeader, text: "http-request nonsense"}

func TestWhatHAProxyRefusesCostsNobodyElse(t *testing.T) {
	weak := cunning(t, "evil.test")
	nothing := []byte("it was found good, and there is nothing in it")
	withEach(t, func(t *testing.T, binary string) {
		cunning := weak
		if takes(t, binary, weak) == nil {
			cunning = nothing // 3.2 of Debian's sid takes SHA-1
		}
		for name, spoil := range map[string]func(cfg *Config) []Part{
			"a certificate": func(cfg *Config) []Part {
				cfg.Certs = append(cfg.Certs, &Cert{Name: "zevil.pem", Hosts: []string{"evil.test"}, PEM: cunning})
				return []Part{Pair{PEM: cunning}.Part()}
			},
			"a certificate without anything": func(cfg *Config) []Part {
				cfg.Certs = append(cfg.Certs, &Cert{Name: "zevil.pem", Hosts: []string{"evil.test"}, PEM: nothing})
				return []Part{Pair{PEM: nothing}.Part()}
			},
			"a certificate that only a reload brings": func(cfg *Config) []Part {
				cfg.Certs = append([]*Cert{{Name: "_evil.pem", Hosts: []string{"evil.test"}, PEM: cunning}},
					cfg.Certs...)
				return []Part{Pair{PEM: cunning}.Part()}
			},
			"an authority": func(cfg *Config) []Part {
				e := &Extra{
					"evil.ca.pem",
					[]byte("-----BEGIN CERTIFICATE-----\nbm9uc2Vuc2U=\n-----END CERTIFICATE-----\n"),
				}
				cfg.Extras = []*Extra{e}
				evil := *cfg.Backends[1]
				evil.Options = ServerOptions{TLS: true, CA: e.Name}
				cfg.Backends[1] = &evil
				return []Part{e.Part()}
			},
			"a directive": func(cfg *Config) []Part {
				evil := *cfg.Backends[1]
				evil.Directives = []Directive{nonsense}
				cfg.Backends[1] = &evil
				return []Part{evil.Part()}
			},
			"a directive and a certificate": func(cfg *Config) []Part {
				evil := *cfg.Backends[1]
				evil.Directives = []Directive{nonsense}
				cfg.Backends[1] = &evil
				cfg.Certs = append(cfg.Certs, &Cert{Name: "zevil.pem", Hosts: []string{"evil.test"}, PEM: cunning})
				return []Part{evil.Part(), Pair{PEM: cunning}.Part()}
			},
		} {
			t.Run(name, func(t *testing.T) {
				r := newRig(t, binary)
				a, b := origin(t, "a"), origin(t, "b")
				before := r.config(backend("app", a), backend("evil", a))
				before.Certs = []*Cert{testCert(t, "app.pem", "app", "app.test")}
				r.settle(before, states(before, Open))
				r.run()

				// The same change brings what is refused, and what others wait for.
				spoilt := r.config(backend("app", b), backend("evil", a), backend("more", a))
				spoilt.Certs = []*Cert{before.Certs[0], testCert(t, "more.pem", "more", "more.test")}
				mended := *spoilt
				mended.Backends = slices.Clone(spoilt.Backends)
				want := spoil(spoilt)

				// refused is what a culprit may cost: nothing that was there.
				apply := func() error {
					r.p.mu.Lock()
					r.p.last.cfg = *spoilt // our own checks have a hole
					r.p.mu.Unlock()
					_, err := r.p.Apply(t.Context(), spoilt, inOrder(spoilt, states(spoilt, Open)))
					return err
				}
				refused := func(when string) {
					t.Helper()
					r.eventually(when+": HAProxy refuses it", func() bool {
						err := apply()
						if err != nil && strings.Contains(err.Error(), "HAProxy's configuration:") {
							t.Fatal(err)
						}
						return errors.Is(err, ErrUnfit)
					})
					if err := check(binary, r.opt.Dir); err != nil {
						t.Errorf("%s: what HAProxy refused is on the disk: %v", when, err)
					}
					guilty, err := r.p.Blame(t.Context(), spoilt)
					if err != nil || len(guilty) != len(want) {
						t.Fatalf("%s: guilty are %v, %v", when, guilty, err)
					}
					for _, part := range want {
						if why := guilty[part].Why; !strings.HasPrefix(why, "HAProxy rejects it: ") ||
							strings.Contains(why, r.opt.RunDir) {
							t.Errorf("%s: %s: %q", when, part, why)
						}
					}
				}
				refused("while HAProxy runs")
				if got := r.get("app.test", "/"); got != "b" {
					t.Errorf("an endpoint that changed: got %q, want b", got)
				}

				pid := r.p.Info().Pid
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				r.eventually("HAProxy is there again, from what it accepted", func() bool {
					_ = apply()
					got, err := r.try("app.test", "/")
					now := r.p.Info().Pid
					return err == nil && got == "b" && now != 0 && now != pid
				})

				r.cancel()
				r.p = r.fresh()
				r.run()
				refused("after a restart of the appliance")
				if got := r.get("app.test", "/"); got != "b" {
					t.Errorf("after a restart of the appliance: got %q, want b", got)
				}

				r.cancel()
				r.end()
				r.p = r.fresh()
				r.run()
				refused("after a restart of the machine")

				r.settle(&mended, states(&mended, Open))
				if got := r.get("app.test", "/") + r.get("more.test", "/") + r.served("more.test"); got != "bamore" {
					t.Errorf("without it: got %q", got)
				}
			})
		}
	})
}

func TestACertificateThatTheWorkerRefusesCostsNoOther(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg := r.config(backend("app", origin(t, "a")), backend("other", origin(t, "b")))
		old := testCert(t, "app.pem", "app", "app.test")
		cfg.Certs = []*Cert{old}
		r.settle(cfg, states(cfg, Open))

		next := *cfg
		nothing := []byte("it was found good, and there is nothing in it")
		next.Certs = []*Cert{
			{Name: "app.pem", Hosts: old.Hosts, PEM: nothing},
			{Name: "evil.pem", Hosts: []string{"evil.test"}, PEM: nothing},
			testCert(t, "more.pem", "more", "more.test"),
		}
		next.Routes = append(slices.Clone(cfg.Routes),
			&Route{Host: "more.test", Path: "/", Match: Prefix, Backend: "other"})
		wish := states(cfg, Open)
		wish[ServerID{"app", cfg.Backends[0].Servers[0].Name}] = Closed
		r.p.last.cfg = next // our own checks have a hole
		if res, err := r.p.Apply(t.Context(), &next, inOrder(&next, wish)); !errors.Is(err, ErrUnfit) || res.Reloaded {
			t.Fatalf("got %+v, %v", res, err)
		}
		if got := r.served("app.test") + r.served("evil.test") + r.served("more.test") + r.get("more.test", "/") +
			r.get("app.test", "/"); got != "appdefault certificate of sallyportmoreb503" {
			t.Errorf("got %q", got)
		}
		if err := check(binary, r.opt.Dir); err != nil {
			t.Errorf("what the worker refused is on the disk: %v", err)
		}

		// Files and worker differ now, which the next life must see.
		r.p = r.fresh()
		r.settle(cfg, wish)
		if got := r.served("more.test") + r.get("more.test", "/"); got != "default certificate of sallyport404" {
			t.Errorf("without it, in another life: got %q", got)
		}
		if res := r.apply(cfg, wish); res.Commands > 0 {
			t.Errorf("got %+v, want nothing to do", res)
		}
	})
}

func TestTheFirstStartEverFindsWhatIsToBlame(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		r.run()
		evil, worse := backend("evil"), backend("worse")
		evil.Directives, worse.Directives = []Directive{nonsense},
			[]Directive{{phase: phaseHeader, text: "http-request also-nonsense"}}
		users := &Userlist{"users", []User{{"a b", "'secret'"}}}
		guarded := backend("guarded")
		guarded.Directives = []Directive{must[Directive](t)(BasicAuth{Userlist: "users", Realm: "x"}.Directive())}
		cfg := r.config(backend("app", origin(t, "a")), evil, guarded, worse)
		if _, err := r.p.Apply(t.Context(), cfg, inOrder(cfg, states(cfg, Open))); !errors.Is(err, ErrUnfit) {
			t.Fatalf("got %v", err)
		}
		cfg.Userlists = []*Userlist{users}
		guilty, err := r.p.Blame(t.Context(), cfg)
		if err != nil || len(guilty) != 3 || guilty[evil.Part()].Why == "" || guilty[worse.Part()].Why == "" ||
			strings.Contains(guilty[users.Part()].Why, "secret") || guilty[users.Part()].Why == "" {
			t.Errorf("guilty are %v, %v", guilty, err)
		}
		good := r.config(cfg.Backends[0])
		r.settle(good, states(good, Open))
		if got := r.get("app.test", "/"); got != "a" {
			t.Errorf("got %q, want a", got)
		}
	})
}

func TestNothingIsStartedThatWasFound(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		ran := filepath.Join(t.TempDir(), "ran")
		for name, poison := range map[string]map[string]string{
			"a program": {configFile: "\nprogram evil\n  command /bin/touch " + ran + "\n  option start-on-reload\n"},
			"all else": {
				routeMap: "app.test/ evil\n", certDir + "app.pem": "nonsense\n", certDir + defaultCert: "nonsense\n",
				extraDir + authScript: "os.execute('touch " + ran + "')\n", mapDir + ".new-leftover": "half a file",
			},
		} {
			t.Run(name, func(t *testing.T) {
				r := newRig(t, binary)
				cfg := r.config(backend("app", origin(t, "a")))
				cfg.Certs = []*Cert{testCert(t, "app.pem", "app", "app.test")}
				r.settle(cfg, states(cfg, Open))
				r.end()
				for path, content := range poison {
					if path == configFile {
						content = string(r.p.disk.have[configFile].Content) + content
					}
					if err := os.WriteFile(r.p.path(path), []byte(content), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				r.p = r.fresh()
				r.p.mu.Lock()
				if err := r.p.ensure(); !errors.Is(err, errUnready) {
					t.Errorf("before the first Apply: got %v, want %v", err, errUnready)
				}
				r.p.mu.Unlock()
				r.settle(cfg, states(cfg, Open))
				if got := r.get("app.test", "/") + r.served("app.test") +
					r.served("x.test"); got != "aappdefault certificate of sallyport" {
					t.Errorf("got %q", got)
				}
				if _, err := os.Stat(ran); err == nil {
					t.Error("what somebody else wrote was run")
				}
				if text, err := os.ReadFile(r.p.path(configFile)); err != nil ||
					strings.Contains(string(text), "program") {
					t.Errorf("it is still in the file, %v", err)
				}
				left, err := filepath.Glob(r.p.path(mapDir + ".new-*"))
				if err != nil || len(left) > 0 {
					t.Errorf("left are %q, %v", left, err)
				}
			})
		}
	})
}

func TestWhatIsNoRegularFileIsReplaced(t *testing.T) {
	pipe := func(t *testing.T, path string) {
		if err := syscall.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(t *testing.T, path string) {
		if err := os.Symlink("/etc/passwd", path); err != nil {
			t.Fatal(err)
		}
	}
	folder := func(t *testing.T, path string) {
		if err := os.MkdirAll(filepath.Join(path, "more"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	device := func(t *testing.T, path string) {
		if err := syscall.Mknod(path, syscall.S_IFCHR|0o600, 1<<8|5); err != nil { // zero(4)
			t.Fatal(err)
		}
	}
	huge := func(t *testing.T, path string) {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, 1<<40); err != nil {
			t.Fatal(err)
		}
	}
	r := newRig(t, binaries(t)[0])
	cfg := r.config(backend("app", origin(t, "a")))
	r.settle(cfg, states(cfg, Open))
	before, err := os.ReadFile("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		configFile, routeMap, crtList, certDir + defaultCert, certDir + "x.pem",
		extraDir + "x", listDir + "x", strings.TrimSuffix(listDir, "/"), failedFile,
	} {
		for name, put := range map[string]func(*testing.T, string){
			"a pipe": pipe, "a link": link, "a folder": folder,
			"a device": device, "huge": huge,
		} {
			t.Run(path+" is "+name, func(t *testing.T) {
				if err := os.RemoveAll(r.p.path(path)); err != nil {
					t.Fatal(err)
				}
				put(t, r.p.path(path))
				r.p = r.fresh()
				r.settle(cfg, states(cfg, Open))
				if err := writeFile(r.p.path(failedFile), File{nil, 0o600}); err != nil {
					t.Error(err)
				}
				if got := r.get("app.test", "/"); got != "a" {
					t.Errorf("got %q, want a", got)
				}
				if err := check(r.opt.Binary, r.opt.Dir); err != nil {
					t.Error(err)
				}
			})
		}
	}
	if after, err := os.ReadFile("/etc/passwd"); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the file that a link led to was changed, %v", err)
	}
}
