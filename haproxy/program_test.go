package haproxy

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestAProgramKnowsItsFeatures(t *testing.T) {
	questions := []Question{LuaSupport(), QUICSupport(), Text{GlobalSection, "nosplice"}.Question(), FreePort(80)}
	for _, binary := range binaries(t) {
		p, err := FindProgram(binary)
		if err != nil {
			t.Fatal(err)
		}
		if lacks := p.Lacks(); len(lacks) > 0 {
			t.Errorf("%s lacks %q", binary, lacks)
		}
		got := p.Vet(questions)
		if len(got) != 2 || got[LuaSupport().Part()] != Good || !got[QUICSupport().Part()].Known {
			t.Errorf("%s: verdicts %v", binary, got)
		}
	}
	bare := filepath.Join(t.TempDir(), "haproxy")
	writeProgram(t, bare, "#!/bin/sh\necho HAProxy version 3.0.1\necho Feature list : -LIBCRYPT -LUA "+
		"+OPENSSL +PCRE2 +PCRE2_JIT +PROMEX_OF_OTHERS +QUIC\n")
	p, err := FindProgram(bare)
	if err != nil {
		t.Fatal(err)
	}
	if lacks := strings.Join(p.Lacks(), "\n"); !strings.Contains(lacks, "without PROMEX") ||
		!strings.Contains(lacks, "without LIBCRYPT") {
		t.Errorf("it lacks %q", lacks)
	}
	got := p.Vet(questions)
	if why := got[LuaSupport().Part()].Why; !strings.Contains(why, "USE_LUA=1") || got[QUICSupport().Part()] != Good {
		t.Errorf("verdicts %v", got)
	}
}
