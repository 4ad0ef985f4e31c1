package haproxy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// arguments are texts that a user may write between the parentheses of a sample.
var arguments = []string{
	"", "a", "X-Id", "A.B:c", "a/b", "-", "0", "1", "4", "7", "10", "15", "16", "224", "256", "384", "512", "999", "-1",
	"-9", "-10", "-11", "999999999", "9999999999", "99999999999",
	"a,1", "a,0", "a,-1", "a,-10", "a,-11", "a,999", "a,b", "a,-", "a,bc", "1,2", "1,.", "-1,./", "1,.,2", "1,.,-2",
	"0,.", "9999,a,9999", "a,,b", ",,b", "a,,", "a,txn.x,b", ",proc.asksecret",
	"1,s", "-1,ms", "0,us", "1,x", "s", "query", "ascii", "utf8", "utf8s", "utf8p", "utf8ps", "CN,1,rfc2253",
	"CN,-1,rfc2253", "CN,,rfc2253", ",0,rfc2253", "txn.x", "proc.gen", "Y-m,1", "Y-m,-1", ",", ",,", "2",
}

// samples returns the expressions that a value in a direction may have: each fetch with
// its arguments, alone and with a converter.
func samples(in direction) (all []string) {
	var begun []string
	for _, name := range slices.Sorted(maps.Keys(fetches)) {
		had := ""
		for _, args := range arguments {
			if s := name + "(" + args + ")"; checkSample(in, s) == nil {
				all, had = append(all, s), s
			}
		}
		if had != "" {
			begun = append(begun, had)
		}
		if checkSample(in, name) == nil {
			all = append(all, name)
		}
	}
	follow := func(expression string, with []string) {
		for _, name := range slices.Sorted(maps.Keys(converters)) {
			for _, args := range with {
				if s := expression + "," + name + args; checkSample(in, s) == nil {
					all = append(all, s)
				}
			}
		}
	}
	with := []string{""}
	for _, args := range arguments {
		with = append(with, "("+args+")")
	}
	follow("str(a)", with)
	few := []string{"", "(1)", "(1,.)"}
	for _, expression := range begun {
		follow(expression, few)
	}
	for _, name := range slices.Sorted(maps.Keys(converters)) {
		for _, args := range few {
			if s := "str(a)," + name + args; checkSample(in, s) == nil {
				follow(s, few)
			}
		}
	}
	return all
}

func TestHAProxyTakesEverySampleThatIsTaken(t *testing.T) {
	b := &Backend{Name: "b"}
	add := func(d Directive, err error) {
		if err != nil {
			t.Fatal(err)
		}
		b.Directives = append(b.Directives, d)
	}
	for _, s := range samples(inRequest) {
		add(Capture(s, 0))
		add(SetRequestHeader("X", "%["+s+"]"))
	}
	add(SetHost("%[req.hdr(a)]"))
	add(ReplacePath("/", "/%[req.hdr(a)]"))
	for _, s := range samples(inResponse) {
		add(SetResponseHeader("X", "%["+s+"]"))
	}
	for _, a := range aliases {
		add(SetRequestHeader("X", "%"+a))
		add(SetResponseHeader("X", "%"+a))
	}
	if want := 4000; len(b.Directives) < want {
		t.Fatalf("%d samples, want %d and more", len(b.Directives), want)
	}
	withEach(t, func(t *testing.T, binary string) {
		if err := accepted(t, binary, &Config{Shape: Shape{Captures: []int{8}}, Backends: []*Backend{b}}); err != nil {
			text := err.Error()
			t.Error(text[:min(len(text), 4000)])
		}
	})
}

func TestEverySampleCanBeUsed(t *testing.T) {
	got := strings.Join(append(samples(inRequest), samples(inResponse)...), "\n") + "\n"
	for name := range fetches {
		if !strings.Contains("\n"+got, "\n"+name+"(") {
			t.Errorf("no arguments are right for %s", name)
		}
	}
	for name := range converters {
		if !strings.Contains(got, ","+name+"\n") && !strings.Contains(got, ","+name+"(") {
			t.Errorf("no arguments are right for %s", name)
		}
	}
}

func TestASampleThatHAProxyWouldRefuseIsRefusedInASentence(t *testing.T) {
	for expression, want := range map[string]string{
		"status":                        "is a sample of the response",
		"res.hdr(X)":                    "is a sample of the response",
		"host_only":                     "is not an allowed sample",
		"http_date":                     "is not an allowed sample",
		"uuid(7)":                       "uuid takes 4",
		"src(a)":                        "src takes no arguments",
		"url_param(a,b,i)":              "url_param takes",
		"req.hdr(a,-11)":                "req.hdr takes",
		"capture.req.hdr":               "capture.req.hdr takes",
		"capture.req.hdr(4294967295)":   "capture.req.hdr takes",
		"req.hdr(a),substr(1,2)":        "is not an allowed converter",
		"req.hdr(a),field":              "field takes",
		"req.hdr(a),sha2(1)":            "sha2 takes",
		"req.hdr(a),json(latin1)":       "json takes",
		"req.hdr(a),mod(proc.x)":        "mod takes",
		"str(a),concat(,proc.x)":        "concat takes",
		"method,mod(2)":                 "takes a number",
		"src,http_date":                 "takes a number",
		"ssl_c_der,utime(Y)":            "takes a number",
		"str(a),sha1,mod(2)":            "takes a number",
		"path,concat(,txn.route,x)":     "concat takes",
		"req.hdr(a),lower(b)":           "lower takes",
		"rand(99999999999)":             "rand takes",
		"date(0,h)":                     "date takes",
		"req.hdr(a),bytes(99999999999)": "bytes takes",
	} {
		if err := checkSample(inRequest, expression); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: want a word of %q, got %v", expression, want, err)
		}
	}
	for _, expression := range []string{
		"path", "url", "base", "query", "pathq", "req.hdr(X)", "req.cook(a)",
		"url_param(a)", "req.ver",
	} {
		if _, err := SetResponseHeader("X", "%["+expression+"]"); err == nil ||
			!strings.Contains(err.Error(), "is a sample of the request") {
			t.Errorf("%s in a response: got %v", expression, err)
		}
		if _, err := SetRequestHeader("X", fmt.Sprintf("%%[%s]", expression)); err != nil {
			t.Errorf("%s in a request: %v", expression, err)
		}
	}
}
