package haproxy

import (
	"crypto/tls"
	"net"
	"slices"
	"strings"
	"testing"
)

// TestEachListOfCiphersIsOneThatHAProxyTakes takes each cipher, and excludes as much as a
// list can.
func TestEachListOfCiphersIsOneThatHAProxyTakes(t *testing.T) {
	cfg := &Config{}
	for i, word := range append(slices.Clone(ciphers), strings.Join(ciphers, ":")) {
		list := word + ":!" + strings.Join(without, ":!")
		if err := CheckCiphers(list); err != nil {
			t.Error(err)
		}
		b := &Backend{
			Name: "b" + strings.Repeat("x", i), Servers: []Server{serverAt(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1000 + i})},
			Options: ServerOptions{
				TLS: true, Ciphers: list, MinTLS: TLSVersions[i%2], MaxTLS: TLSVersions[2+i%2],
			},
		}
		cfg.Backends = append(cfg.Backends, b)
	}
	withEach(t, func(t *testing.T, binary string) {
		if err := accepted(t, binary, cfg); err != nil {
			t.Error(err)
		}
	})
	for _, list := range []string{
		"", "FOO", "!aNULL", "HIGH:!HIGH", "HIGH:!AES", "HIGH:-aNULL", "HIGH:@SECLEVEL=0", "HIGH:", "HIGH ssl-min-ver SSLv3",
		"HIGH\n", "ALL", strings.Repeat("HIGH:", 300) + "HIGH",
	} {
		if err := CheckCiphers(list); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.40q: %v", list, err)
		}
	}
}

// TestAHostHasCiphersOfItsOwn has one certificate under two names, one of them with a cipher.
func TestAHostHasCiphersOfItsOwn(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg := r.config(backend("own", origin(t, "own")), backend("usual", origin(t, "usual")))
		pair := newAuthority(t, "ours").issue(t, "own.test")
		cfg.Certs = []*Cert{
			{Name: "_own.pem", Hosts: []string{"own.test"}, PEM: pair, Ciphers: "ECDHE-ECDSA-AES256-GCM-SHA384"},
			{Name: "usual.pem", Hosts: []string{"usual.test"}, PEM: pair},
		}
		r.apply(cfg, states(cfg, Open))
		for _, c := range []struct {
			host    string
			cipher  uint16
			version uint16
			want    bool
		}{
			{"own.test", tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.VersionTLS12, true},
			{"own.test", tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.VersionTLS12, false},
			{"own.test", tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.VersionTLS13, true},
			{"usual.test", tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.VersionTLS12, true},
			{"other.test", tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.VersionTLS12, true},
		} {
			conn, err := tls.Dial("tcp", r.https.String(), &tls.Config{
				ServerName: c.host, CipherSuites: []uint16{c.cipher}, MaxVersion: c.version,
				InsecureSkipVerify: true, //nolint:gosec // the test is about ciphers
			})
			if err == nil {
				_ = conn.Close()
			}
			if got := err == nil; got != c.want {
				t.Errorf("%s with %s of %s: %v", c.host, tls.CipherSuiteName(c.cipher), tls.VersionName(c.version), err)
			}
		}
	})
}
