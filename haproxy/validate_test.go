package haproxy

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestWhatCannotBeWrittenIsRefused(t *testing.T) {
	addr := netip.MustParseAddrPort("10.0.0.1:80")
	server := Server{Name: ServerName(addr), Addr: addr}
	good := testCert(t, "a.pem", "a")
	other := testCert(t, "b.pem", "b")
	certPart, _, _ := strings.Cut(string(good.PEM), "-----BEGIN PRIVATE")
	_, keyPart, _ := strings.Cut(string(other.PEM), "-----BEGIN PRIVATE")
	for name, c := range map[string]struct {
		cfg  Config
		want string
	}{
		"nothing": {Config{}, ""},
		"a good one": {
			Config{
				Routes:   []*Route{{Host: "*.a_b.test", Path: "/x;y?{}", Match: Prefix, Backend: "b"}},
				Backends: []*Backend{{Name: "b", Servers: []Server{server}}}, Certs: []*Cert{good},
			}, "",
		},
		"a path with a space": {Config{Routes: []*Route{{Path: "/a b", Match: Prefix}}}, "control character"},
		"a path with the mark": {
			Config{Routes: []*Route{{Path: "/a/\x01", Match: Prefix}}},
			"control character",
		},
		"a path with a line end": {
			Config{Routes: []*Route{{Path: "/a\nb", Match: Prefix}}},
			"control character",
		},
		"a path without slash": {Config{Routes: []*Route{{Path: "a", Match: Prefix}}}, "must begin"},
		"a path without end": {
			Config{Routes: []*Route{{Path: "/" + strings.Repeat("a", 3000), Match: Prefix}}}, "2048",
		},
		"an unknown match": {Config{Routes: []*Route{{Path: "/", Match: "glob"}}}, "kind of match"},
		"a host in upper case": {
			Config{Routes: []*Route{{Host: "A.test", Path: "/", Match: Prefix}}},
			"lower-case",
		},
		"a host with a port": {
			Config{Routes: []*Route{{Host: "a.test:80", Path: "/", Match: Prefix}}},
			"lower-case",
		},
		"a wildcard in the middle": {
			Config{Routes: []*Route{{Host: "a.*.test", Path: "/", Match: Prefix}}},
			"lower-case",
		},
		"a bare wildcard": {
			Config{Routes: []*Route{{Host: "*", Path: "/", Match: Prefix}}},
			"lower-case",
		},
		"a route to two words": {
			Config{Routes: []*Route{{Path: "/", Match: Prefix, Backend: "a b"}}},
			"not a name",
		},
		"a route with a flag": {
			Config{Routes: []*Route{{Path: "/", Match: Prefix, Backend: "a/tls"}}},
			"not a name",
		},
		"a backend with a line end": {Config{Backends: []*Backend{{Name: "a\nglobal"}}}, "not a name"},
		"a backend that is ours":    {Config{Backends: []*Backend{{Name: nowhere}}}, "reserved"},
		"a backend twice": {
			Config{Backends: []*Backend{{Name: "a"}, {Name: "a"}}},
			"with each name once",
		},
		"a default of two words": {Config{DefaultBackend: "a b"}, "default backend"},
		"a server without address": {
			Config{Backends: []*Backend{{Name: "a", Servers: []Server{{Name: "s"}}}}},
			"no address",
		},
		"a server with a wrong name": {
			Config{Backends: []*Backend{{Name: "a", Servers: []Server{{Name: "s", Addr: addr}}}}},
			"should be named s_10-0-0-1_80",
		},
		"a server twice": {
			Config{Backends: []*Backend{{Name: "a", Servers: []Server{server, server}}}},
			"with each name once",
		},
		"servers out of order": {
			Config{Backends: []*Backend{
				{Name: "a", Servers: []Server{server, serverAt(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 0), Port: 80})}},
			}},
			"must be sorted by name",
		},
		"an address twice": {
			Config{Shape: Shape{Bind: Bind{HTTP: []netip.AddrPort{addr}, HTTPS: []netip.AddrPort{addr}}}},
			"listed twice",
		},
		"an address without port": {
			Config{Shape: Shape{Bind: Bind{HTTP: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:0")}}}},
			"needs an address",
		},
		"threads without end": {Config{Shape: Shape{Tune: Tune{Threads: 1000}}}, "threads 1000"},
		"a certificate in a directory": {
			Config{Certs: []*Cert{{Name: "../a.pem", PEM: good.PEM}}},
			"must end in .pem",
		},
		"a certificate that is ours": {
			Config{Certs: []*Cert{{Name: defaultCert, PEM: good.PEM}}},
			"must end in .pem",
		},
		"a certificate without key": {
			Config{Certs: []*Cert{{Name: "a.pem", PEM: []byte(certPart)}}},
			"certificate a.pem",
		},
		"a certificate with another key": {
			Config{Certs: []*Cert{{Name: "a.pem", PEM: []byte(certPart + "-----BEGIN PRIVATE" + keyPart)}}},
			"certificate a.pem",
		},
		"a certificate of noise": {
			Config{Certs: []*Cert{{Name: "a.pem", PEM: []byte("noise")}}},
			"certificate a.pem",
		},
		"a weak certificate": {
			Config{Certs: []*Cert{{Name: "a.pem", PEM: weakCert(t)}}},
			"RSA key has 1024 bits",
		},
		"a certificate for two words": {
			Config{Certs: []*Cert{{Name: "a.pem", Hosts: []string{"a b"}, PEM: good.PEM}}},
			"DNS name",
		},
	} {
		err := c.cfg.Validate()
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: got %v, want nothing", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func weakCert(t *testing.T) []byte {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 1024) //nolint:gosec // weak on purpose
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "weak"},
		NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})...)
}

func TestAnOperatorsBaseTextIsGlobalAndDefaultsOnly(t *testing.T) {
	for text, want := range map[string]string{
		"":                               "",
		"# nothing\n":                    "",
		"global\n  maxconn 10\n":         "",
		"defaults\n  timeout client 1m":  "",
		"maxconn 10\n":                   "must begin with",
		"frontend x\n":                   "must begin with",
		"global\nfrontend x\n  bind :80": "frontend x\" is not in a section",
		"global\nbackend x\n":            "backend x\" is not in a section",
		"global\nlisten x\n":             "listen x\" is not in a section",
		"global\nuserlist x\n":           "userlist x\" is not in a section",
		"global\nresolvers x\n":          "resolvers x\" is not in a section",
		"global\n  daemon\n":             "daemon",
		"global\n  master-worker\n":      "master-worker",
		"defaults mine\n":                "has a name",
	} {
		got, err := parseBase(text)
		switch {
		case want == "" && err != nil:
			t.Errorf("%q: got %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: got %v, %v, want %q", text, got, err, want)
		}
	}
}

func TestAnOperatorsBaseTextHasNoSectionOfTheCluster(t *testing.T) {
	for _, section := range sections[2:] {
		if got, err := parseBase("global\n" + section + " x\n  bind :80\n"); err == nil {
			t.Errorf("%s: got %q, want an error", section, got)
		}
	}
}

func FuzzBaseText(f *testing.F) {
	f.Add("global\n  maxconn 10\ndefaults\n  timeout client 1m\n")
	f.Add("global\n frontend x\n")
	f.Fuzz(func(t *testing.T, text string) {
		b, err := parseBase(text)
		if err != nil {
			return
		}
		for _, line := range append(b.global, b.defaults...) {
			if strings.ContainsAny(line, "\n") || line != strings.TrimSpace(line) {
				t.Errorf("%q: line %q", text, line)
			}
			if words := strings.Fields(line); len(words) > 0 && slices.Contains(sections, words[0]) {
				t.Errorf("%q: a section %s came through", text, words[0])
			}
		}
	})
}

func TestAnAnswerOfTheWorkerIsReadWhole(t *testing.T) {
	for answer, want := range map[string]string{
		"":                                       "",
		"\n[6]: New server registered.\n":        "",
		"\n\n[3]: No such server.\n":             "No such server.",
		"[6]: fine\n\n[6]: Unknown command: 'x'": "Unknown command",
		"[5]: Transaction created\n[0]: gone":    "gone",
		"0x55 key [3]: value":                    "",
	} {
		got := fault(answer)
		if want == "" && got != nil || want != "" && (got == nil || !strings.Contains(got.Error(), want)) {
			t.Errorf("%q: got %v, want %q", answer, got, want)
		}
	}
}
