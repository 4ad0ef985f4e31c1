package claims

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// CleanHost checks a host as the API server does (Ingress v1, IngressRule.Host): a
// DNS name, or "*." and a DNS name, without a port, and no address. It does not rely
// on the API server, which may be an impostor.
func CleanHost(host string) (clean, why string) {
	if host == "" {
		return "", ""
	}
	host = strings.ToLower(host)
	name, wild := strings.CutPrefix(host, "*.")
	switch {
	case wild && len(validation.IsWildcardDNS1123Subdomain(host)) == 0:
		return host, ""
	case !wild && len(validation.IsDNS1123Subdomain(host)) == 0 && len(validation.IsValidIP(nil, name)) > 0:
		return host, ""
	case len(validation.IsValidIP(nil, name)) == 0:
		return "", `is an address; allowed is a DNS name, or no host at all`
	}
	return "", `is not a DNS name; allowed are letters, digits, "-" and ".", with "*." in front for one more label`
}

// Covers reports whether names have the host or the wildcard of its parent.
func Covers(names []string, host string) bool {
	if slices.Contains(names, host) {
		return true
	}
	first, parent, found := strings.Cut(host, ".")
	return found && first != "*" && slices.Contains(names, "*."+parent)
}

// List returns names for a sentence, at most five of them.
func List(names []string) string {
	const most = 5
	switch {
	case len(names) == 0:
		return "nothing"
	case len(names) > most:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// Shorten cuts a name that is too long for package haproxy, and appends its hash.
// No name that was not cut has the mark at that place.
func Shorten(name, mark string) string {
	const longest = 170
	if len(name) <= longest {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return name[:longest] + mark + hex.EncodeToString(sum[:8])
}
