package haproxy

import (
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
