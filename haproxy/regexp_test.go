package haproxy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestARegularExpressionIsWhatBothTake(t *testing.T) {
	for s, want := range map[string]string{
		`^/(.*)`: "", `/api/v[0-9]+/(a|b)?$`: "", `/a\.b[.]c\x2fd`: "", `(?i)/x`: "", `/(?:a|b)*`: "", `[]a]`: "",
		`[^]a-]`: "", `[\d\-x]`: "", `[[:alpha:]_]`: "", `a{2,3}`: "", `\[[^\]]`: "",
		`https://([a-z0-9-]+\.)?a\.test`: "",
		`(`:                              "missing closing )",
		`(?=a)`:                          "invalid or unsupported Perl syntax",
		`(a)\1`:                          "invalid escape sequence",
		`\Qa`:                            "after",
		`\x{10FFFF}`:                     "after",
		`\pL`:                            "after",
		`[[=a=]]`:                        "in \"[...]\"",
		`[\w-z]`:                         "in \"[...]\"",
		`(?P<1a>x)`:                      "after \"(?\"",
		`(a[^b]){1000}`:                  "repeated by a number",
		`é`:                              "printable",
		strings.Repeat("(a)", 201):       "groups",
		strings.Repeat("a", 2001):        "bytes",
	} {
		err := checkRegexp(s)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", s, err, want)
		}
	}
}

// TestHAProxyTakesWhatIsTaken combines parts that Go and PCRE2 might read differently
// into regular expressions. HAProxy has to take each one that we take.
func TestHAProxyTakesWhatIsTaken(t *testing.T) {
	parts := []string{
		"a", "/", ".", "*", "+", "?", "{2}", "{2,}", "{,2}", "{1,3}", "|", "^", "$", "(", "(?:", "(?i)", "(?s-i:",
		"(?-m)", "(?U)", "(?)", ")", "[", "[^", "[]", "]", "-", "a-z", "z-a",
		"[:alpha:]", "[:^word:]", "[:none:]", "[[:digit:]]", "[.", ".]", "[=", "=]", `\d`, `\W`, `\s`, `\b`, `\A`, `\z`,
		`\Z`, `\G`, `\K`, `\R`, `\N`, `\n`, `\x2f`, `\x`, `\0`, `\1`, `\8`, `\-`, `\]`, `\[`, `\\`, `\.`, `\/`, `\E`,
		`\Q`,
		"<", ">", "=", "!", ":", "#", " ", "'", `"`, "%", "&", "~", "`", "{", "}", "{a}", ",",
	}
	rnd := rand.New(rand.NewPCG(1, 6))
	var text strings.Builder
	text.WriteString("global\ndefaults\n  mode http\n  timeout client 1s\n  timeout connect 1s\n  timeout server 1s\n" +
		"frontend f\n  bind 127.0.0.1:1\n")
	taken := 0
	parts = append(parts, strings.Repeat("([^a]b[[:alpha:]])", maxRegexp/18),
		strings.Repeat("(", maxGroups)+strings.Repeat(")", maxGroups), strings.Repeat("[a]{1000}", maxRegexp/9),
		strings.Repeat("(?:[a]|)", maxGroups))
	for n := 0; taken < 4000 && n < 4_000_000; n++ {
		s := ""
		for range 1 + rnd.IntN(6) {
			s += parts[rnd.IntN(len(parts))]
		}
		if checkRegexp(s) != nil {
			continue
		}
		taken++
		word, err := quote(matchLimit + "^a\\.test(?:" + s + ")")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, "  http-request deny if { path -m reg %s }\n", word)
	}
	if taken < 4000 {
		t.Fatalf("only %d were taken", taken)
	}
	file := filepath.Join(t.TempDir(), "haproxy.cfg")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	withEach(t, func(t *testing.T, binary string) {
		if out, err := exec.Command(binary, "-c", "-f", file).CombinedOutput(); err != nil {
			t.Errorf("HAProxy refuses:\n%.3000s", out)
		}
	})
}

func TestAHostTriesThePatternsOfFewOthers(t *testing.T) {
	const hosts = 3200
	cfg := &Config{}
	for i := range hosts {
		cfg.Routes = append(cfg.Routes, &Route{Host: fmt.Sprintf("h%d.test", i), Path: "/[a-z]", Match: Regexp},
			&Route{Host: fmt.Sprintf("h%d.test", i), Path: "/[0-9]", Match: Regexp})
	}
	of := func(secret string) map[string]int {
		number, tables := make(map[string]int), rows(cfg, secret, nil)
		for i, table := range tables[regexpTable:] {
			if most := 2 * 2 * hosts / patternMaps; len(table) > most {
				t.Errorf("map %d has %d rows, want at most %d", i, len(table), most)
			}
			for _, r := range table {
				host, _, _ := strings.Cut(strings.TrimPrefix(r.key, matchLimit+"^"), "(")
				if other, known := number[host]; known && other != i {
					t.Errorf("%s is in the maps %d and %d", host, i, other)
				}
				number[host] = i
			}
		}
		return number
	}
	first, again, other := of("a"), of("a"), of("b")
	if len(first) != hosts || !maps.Equal(first, again) {
		t.Errorf("%d hosts have a map, want %d, and the same ones again", len(first), hosts)
	}
	same := 0
	for host, i := range first {
		if other[host] == i {
			same++
		}
	}
	if same > hosts/4 {
		t.Errorf("with another secret %d of %d hosts are in the same map", same, hosts)
	}
}

func TestAMatchThatTakesTooManyStepsIsNone(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		b := backend("app", echo(t))
		// Two more letters at least double the number of ways in which the first alternative
		// fails.
		b.Directives = []Directive{must[Directive](t)(ReplacePath("^/(?:(?:a|aa)+x|a+b)$", "/hit"))}
		cfg := r.config(b)
		r.apply(cfg, states(cfg, Open))
		for path, want := range map[string]string{
			"/aab":                              "/hit",
			"/" + strings.Repeat("a", 25) + "b": "/" + strings.Repeat("a", 25) + "b",
		} {
			if got := r.get("app.test", path); got != want {
				t.Errorf("%s became %s, want %s", path, got, want)
			}
		}
	})
}

// FuzzRegexp checks that each accepted regular expression is one word.
func FuzzRegexp(f *testing.F) {
	for _, s := range []string{"a", "'", `\'`, "[']", "(?i)a", "\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if checkRegexp(s) != nil {
			return
		}
		if word, err := quote(s); err != nil || strings.Count(word, "'")-2 != 3*strings.Count(s, "'") {
			t.Errorf("%q is written as %q, %v", s, word, err)
		}
	})
}
