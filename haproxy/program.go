package haproxy

import (
	"cmp"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

// A Program is an executable of HAProxy that can be used.
type Program struct {
	Path, Version string

	features string // features that it was built with, as `haproxy -vv` lists them
}

var (
	versionWords = regexp.MustCompile(`(?i)HA-?Proxy version ((\d+)\.(\d+)[^ ]*)`)
	featureList  = regexp.MustCompile(`(?m)^Feature list : (.*)$`)
)

// required lists the features that HAProxy must have been built with, each with its reason.
var required = []struct{ feature, why string }{
	{"PCRE2", "which bounds the time that regular expressions take"},
	{"OPENSSL", "which HTTPS needs"},
}

// useful lists the features that HAProxy should have been built with, each with the loss without
// it.
var useful = []struct{ feature, without string }{
	{"PROMEX", "/metrics/haproxy of the status endpoint has no metrics"},
	{"LIBCRYPT", "no password of an auth-secret is accepted"},
}

// FindProgram finds HAProxy's program, and asks for its version and features. An empty binary
// stands for "haproxy" in PATH. An error says why the program cannot be used.
func FindProgram(binary string) (p Program, err error) {
	p.Path, err = exec.LookPath(cmp.Or(binary, "haproxy"))
	if err != nil {
		return p,
			fmt.Errorf("HAProxy is not installed (%w): install the package haproxy, version 2.6 or newer, or set "+
				"haproxy.binary", err)
	}
	out, err := exec.Command(p.Path, "-vv").CombinedOutput() //nolint:gosec // the operator's own program
	m := versionWords.FindStringSubmatch(string(out))
	switch {
	case err != nil:
		return p, fmt.Errorf("%s -vv does not report a version: %w: %q", p.Path, err, firstLine(out))
	case m == nil:
		return p, fmt.Errorf("%s is not HAProxy: its answer to -vv is %q", p.Path, firstLine(out))
	}
	major, _ := strconv.Atoi(m[2])
	minor, _ := strconv.Atoi(m[3])
	if major < 2 || major == 2 && minor < 6 {
		return p, fmt.Errorf("%s is HAProxy %s, which is too old: want 2.6 or newer", p.Path, m[1])
	}
	p.Version = m[1]
	if list := featureList.FindSubmatch(out); list != nil {
		p.features = string(list[1])
	}
	for _, r := range required {
		if !p.has(r.feature) {
			return p,
				fmt.Errorf("%s was built without %s, %s: use the package haproxy of Debian, or build it "+
					"with USE_%[2]s=1", p.Path, r.feature, r.why)
		}
	}
	return p, nil
}

// has reports whether HAProxy was built with a feature.
func (p Program) has(feature string) bool { return strings.Contains(p.features+" ", "+"+feature+" ") }

// Lacks returns a sentence about each useful feature that the program was built without.
func (p Program) Lacks() (all []string) {
	for _, u := range useful {
		if !p.has(u.feature) {
			all = append(all, fmt.Sprintf("%s was built without %s, so %s", p.Path, u.feature, u.without))
		}
	}
	return all
}

// Vet answers the questions about features of HAProxy, as the Vet of a Proxy does.
func (p Program) Vet(questions []Question) Verdicts {
	verdicts := Verdicts{}
	for _, q := range questions {
		for feature, support := range map[string]Question{"LUA": LuaSupport(), "QUIC": QUICSupport()} {
			switch {
			case q != support:
			case p.has(feature):
				verdicts[q.Part()] = Good
			default:
				verdicts[q.Part()] = Refused(p.Path + " was built without USE_" + feature + "=1")
			}
		}
	}
	return verdicts
}
