package gateway

import (
	"cmp"
	"iter"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// A hostname is a name in lower case, "*.name" for any number of labels in front of the name, or ""
// for every name.

// cleanHostname checks a hostname as the API server does, and returns it in lower case. It does not
// rely on the API server, which may be an impostor.
func cleanHostname(host string) (string, bool) {
	host = strings.ToLower(host)
	switch name, wild := strings.CutPrefix(host, "*."); {
	case host == "":
		return "", true
	case len(host) > 253:
		return "", false
	case wild:
		return host, len(validation.IsDNS1123Subdomain(name)) == 0
	default:
		return host, len(validation.IsDNS1123Subdomain(host)) == 0 && len(validation.IsValidIP(nil, host)) > 0
	}
}

// Contains reports whether every name that narrow stands for is one of those that wide stands for.
func Contains(wide, narrow string) bool {
	if wide == "" || wide == narrow {
		return true
	}
	suffix, wild := strings.CutPrefix(wide, "*")
	if !wild || narrow == "" {
		return false
	}
	// "*.example.com" stands for a.example.com and for *.a.example.com, and not for example.com.
	return strings.HasSuffix(narrow, suffix) && len(narrow) > len(suffix)
}

// WiderThan yields the hostnames that contain a host, except for the host itself. The longest comes
// first.
func WiderThan(host string) iter.Seq[string] {
	return func(yield func(string) bool) {
		if host == "" {
			return
		}
		rest := strings.TrimPrefix(host, "*.")
		for {
			_, parent, more := strings.Cut(rest, ".")
			if !more {
				break
			}
			rest = parent
			if !yield("*." + rest) {
				return
			}
		}
		yield("")
	}
}

// intersect returns the hostname of the names that two hostnames have in common. meet is false if there
// are no such names.
func intersect(a, b string) (both string, meet bool) {
	switch {
	case Contains(a, b):
		return b, true
	case Contains(b, a):
		return a, true
	}
	return "", false
}

// compareHostnames orders hostnames: the one that a request matches first comes first.
func compareHostnames(a, b string) int {
	return cmp.Or(wildness(a)-wildness(b), len(b)-len(a), cmp.Compare(a, b))
}

// wildness returns 0 for a name, 1 for "*.name" and 2 for "".
func wildness(host string) int {
	switch {
	case host == "":
		return 2
	case strings.HasPrefix(host, "*"):
		return 1
	}
	return 0
}
