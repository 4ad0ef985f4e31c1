package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/test/lab/world"
)

const events = `{"Action":"run","Test":"TestConformance"}
{"Action":"output","Test":"TestConformance","Output":"applying\n"}
{"Action":"output","Test":"TestConformance/Good/part","Output":"asked\n"}
{"Action":"pass","Test":"TestConformance/Good/part","Elapsed":0.1}
{"Action":"pass","Test":"TestConformance/Good","Elapsed":0.2}
{"Action":"output","Test":"TestConformance/Bad","Output":"    http.go:325: 2026-11-25T17:42:12.68Z: Response expectation failed for request: {URL: {Scheme:http Path:/v2 Fragment: }, Host: a.test, Protocol: HTTP}  not ready yet: got 404 (after 1µs)\n"}
{"Action":"output","Test":"TestConformance/Bad","Output":"        \tError Trace:\thttp.go:2\n"}
{"Action":"output","Test":"TestConformance/Bad","Output":"            \tError:      \tnot 200\n"}
{"Action":"fail","Test":"TestConformance/Bad","Elapsed":3}
{"Action":"fail","Test":"TestConformance/Known","Elapsed":3}
{"Action":"skip","Test":"TestConformance/Unclaimed"}
{"Action":"skip","Test":"TestConformance/Core"}
{"Action":"pass","Test":"TestConformance/Better"}
{"Action":"fail","Test":"TestConformance"}
`

func TestTheVerdictNamesEachSurprise(t *testing.T) {
	var said strings.Builder
	j := &judge{to: &said, dir: t.TempDir(), whole: true, expected: map[string]string{
		"Good": pass, "Bad": pass, "Known": "HAProxy cannot", "Unclaimed": "later", "Core": pass, "Better": "later",
		"Gone": pass,
	}}
	if err := j.write(strings.NewReader(events)); err != nil {
		t.Fatal(err)
	}
	err := j.verdict()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"Bad: want pass, got fail", "Core: want pass, got skip", "Better passes: write so",
		"Gone is in expected.txt, and did not run",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in %v", want, err)
		}
	}
	if got := strings.Count(err.Error(), "\n"); got != 5 {
		t.Errorf("got %d lines, want 5: %v", got, err)
	}
	for _, want := range []string{
		"ok    Good", "FAIL  Bad", "http.go:325: a.test/v2: got 404\n", "not 200", "known Known", "HAProxy cannot", "FAIL  Core was skipped",
		"2 passed, 2 failed, 2 skipped",
	} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("want %q in:\n%s", want, said.String())
		}
	}
	if text, err := os.ReadFile(filepath.Join(j.dir, "Good.log")); err != nil || string(text) != "asked\n" {
		t.Errorf("the output of a test: got %q, %v", text, err)
	}
}

func TestARunAsExpectedIsNoError(t *testing.T) {
	j := &judge{to: t.Output(), dir: t.TempDir(), single: true, expected: map[string]string{"Core": pass}}
	err := j.write(strings.NewReader(`{"Action":"pass","Test":"TestConformance/Good"}
{"Action":"skip","Test":"TestConformance/Core"}
`))
	if err != nil {
		t.Fatal(err)
	}
	if err := j.verdict(); err != nil {
		t.Error(err)
	}
}

func TestExpectationsCanBeRead(t *testing.T) {
	all, err := readExpected(world.Standard)
	if err != nil {
		t.Fatal(err)
	}
	for test := range all {
		if !name.MatchString(test) {
			t.Errorf("%q is no name of a test", test)
		}
	}
	const retry = "HTTPRouteRetry"
	more, err := readExpected(world.Experimental)
	if err != nil || all[retry] != elsewhere || more[retry] != pass {
		t.Errorf("%s: got %q in channel standard, and %q in experimental, %v", retry, all[retry], more[retry], err)
	}
}
