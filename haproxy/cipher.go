package haproxy

import (
	"fmt"
	"slices"
	"strings"
)

// TLSVersions are the versions of TLS that a ServerOptions can have, the oldest first.
var TLSVersions = []string{"TLSv1.0", "TLSv1.1", "TLSv1.2", "TLSv1.3"}

// ciphers are words of OpenSSL that always stand for at least one cipher, and without are words that never exclude all
// of these. HAProxy rejects a configuration with a list that has no cipher.
var (
	ciphers = strings.Fields(`HIGH DEFAULT
		ECDHE-ECDSA-AES256-GCM-SHA384 ECDHE-RSA-AES256-GCM-SHA384 DHE-RSA-AES256-GCM-SHA384
		ECDHE-ECDSA-CHACHA20-POLY1305 ECDHE-RSA-CHACHA20-POLY1305 DHE-RSA-CHACHA20-POLY1305
		ECDHE-ECDSA-AES128-GCM-SHA256 ECDHE-RSA-AES128-GCM-SHA256 DHE-RSA-AES128-GCM-SHA256
		ECDHE-ECDSA-AES256-SHA384 ECDHE-RSA-AES256-SHA384 DHE-RSA-AES256-SHA256
		ECDHE-ECDSA-AES128-SHA256 ECDHE-RSA-AES128-SHA256 DHE-RSA-AES128-SHA256
		ECDHE-ECDSA-AES256-SHA ECDHE-RSA-AES256-SHA DHE-RSA-AES256-SHA
		ECDHE-ECDSA-AES128-SHA ECDHE-RSA-AES128-SHA DHE-RSA-AES128-SHA
		AES256-GCM-SHA384 AES128-GCM-SHA256 AES256-SHA256 AES128-SHA256 AES256-SHA AES128-SHA`)
	without = strings.Fields(`aNULL eNULL NULL EXPORT EXP LOW MEDIUM DES 3DES RC4 MD5 PSK SRP DSS aDSS CAMELLIA ARIA SEED
		IDEA ADH AECDH`)
)

// CheckCiphers returns why HAProxy cannot have a list of ciphers. A list has words of OpenSSL with colons between.
// A word that begins with "!" excludes ciphers.
func CheckCiphers(list string) error {
	const most = 1024
	if len(list) > most {
		return fmt.Errorf("%s has %d bytes; allowed are %d", shown(list), len(list), most)
	}
	some := false
	for word := range strings.SplitSeq(list, ":") {
		excluded, not := strings.CutPrefix(word, "!")
		if not && !slices.Contains(without, excluded) || !not && !slices.Contains(ciphers, word) {
			return fmt.Errorf("%s is not a cipher: allowed are %s; and with a ! before it %s", shown(word),
				strings.Join(ciphers, ", "), strings.Join(without, ", "))
		}
		some = some || !not
	}
	if !some {
		return fmt.Errorf("%s has no cipher", shown(list))
	}
	return nil
}
