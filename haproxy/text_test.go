package haproxy

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func parsed(t testing.TB, section Section, lines string) Text {
	t.Helper()
	text, err := ParseText(section, lines)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func questions(texts ...Text) (all []Question) {
	for _, t := range texts {
		all = append(all, t.Question())
	}
	return all
}

func TestHAProxySaysWhichTextsAreGood(t *testing.T) {
	format, err := LogFormat(`%ci:%cp "%r" it's %ST`)
	if err != nil {
		t.Fatal(err)
	}
	badFormat, err := LogFormat("%[no_such_fetch]")
	if err != nil {
		t.Fatal(err)
	}
	badLine, err := StreamLogFormat("%[no_such_fetch]")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[Text]string{ // a word of the complaint; empty: HAProxy takes the text
		parsed(t, BackendSection,
			"http-request set-header X-A b\n# a comment\noption httpclose"): "",
		parsed(t, BackendSection,
			"acl private path -i -m beg /private\nhttp-request deny if private"): "",
		parsed(t, BackendSection,
			"stick-table type ip size 1k store http_req_rate(1s)\nhttp-request track-sc0 src"): "",
		parsed(t, BackendSection, "http-request set-headr X-A b"):        "set-headr",
		parsed(t, BackendSection, "option httpclose\nno-such-word"):      "no-such-word",
		parsed(t, BackendSection, "http-request deny if undefined_acl"):  "undefined_acl",
		parsed(t, BackendSection, "http-request set-header X-A 'open"):   "quote",
		parsed(t, BackendSection, "stick on src table no_such_table"):    "no_such_table",
		parsed(t, FrontendSection, "http-request set-header X-F %[src]"): "",
		parsed(t, FrontendSection, "http-request redirect scheme"):       "redirect",
		parsed(t, GlobalSection, "tune.bufsize 32768"):                   "",
		parsed(t, GlobalSection, "tune.bufsise 32768"):                   "tune.bufsise",
		format:    "",
		badFormat: "no_such_fetch",
		badLine:   "no_such_fetch",
	}
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		verdicts, err := r.p.Vet(t.Context(), questions(slices.Collect(maps.Keys(rows))...))
		if err != nil {
			t.Fatal(err)
		}
		for text, want := range rows {
			verdict := verdicts[text.Part()]
			got := verdict.Why
			if !verdict.Known || (want == "") != (got == "") || !strings.Contains(got, want) {
				t.Errorf("%q: got %+v, want a word of %q", text, verdict, want)
			}
			if strings.Contains(got, "sp_vet") || strings.Contains(got, "/vet-") {
				t.Errorf("%q: the frame shows: %q", text, got)
			}
		}

		if left, _ := filepath.Glob(filepath.Join(r.opt.RunDir, vetDir+"*")); len(left) > 0 {
			t.Errorf("it left %q", left)
		}

		// The accepted texts make a configuration that runs.
		b := backend("app", origin(t, "app"))
		cfg := r.config(b)
		for text, want := range rows {
			switch {
			case want != "":
			case text.section == BackendSection:
				b.Directives = append(b.Directives, text.Directive())
			default:
				cfg.Process.Texts = append(cfg.Process.Texts, text)
			}
		}
		slices.SortFunc(cfg.Process.Texts, func(a, b Text) int { return strings.Compare(a.lines, b.lines) })
		r.apply(cfg, states(cfg, Open))
		if got := r.get("app.test", "/"); got != "app" {
			t.Errorf("got %q", got)
		}
		if got := r.get("app.test", "/private"); got != "403" {
			t.Errorf("the text for the backend has no effect: got %q", got)
		}
	})
}

func TestManyTextsAreReadAtOnce(t *testing.T) {
	var texts []Text
	for i := range 1000 {
		word := "set-header"
		if i%100 == 7 {
			word = "set-headr"
		}
		texts = append(texts, parsed(t, BackendSection, fmt.Sprintf("http-request %s X-A %d", word, i)))
	}
	r := newRig(t, binaries(t)[0])
	verdicts, err := r.p.Vet(t.Context(), questions(texts...))
	if err != nil {
		t.Fatal(err)
	}
	for i, text := range texts {
		if bad := verdicts[text.Part()] != Good; bad != (i%100 == 7) {
			t.Errorf("text %d: %q", i, verdicts[text.Part()].Why)
		}
	}
}

// FuzzText checks that texts of any lines stay in their section.
func FuzzText(f *testing.F) {
	for _, s := range []string{
		"backend x", "\"backend\" x", "a\nb", "no server x", "a # b", "\\\nbackend x",
		"\tbackend\tx", "a \\\nbackend x",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, lines string) {
		text, err := ParseText(BackendSection, lines)
		if err != nil {
			return
		}
		for line := range strings.SplitSeq(text.lines, "\n") {
			first := strings.Fields(line)[0]
			if slices.Contains(sections, first) || strings.ContainsAny(first, `"'\$`) {
				t.Errorf("%q: a line begins with %q", lines, first)
			}
			if strings.ContainsAny(line, "\r\x00\x0b\x0c") {
				t.Errorf("%q: a control character is left in %q", lines, line)
			}
		}
	})
}

// The appliance knows its worker by variables of the process, and its scripts read other variables. No rule of
// a text sets such a variable.
func TestNoTextSetsAVariableThatTheAppliancesFilesHave(t *testing.T) {
	files, err := filepath.Glob("testdata/*.golden")
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]bool)
	for _, file := range files {
		golden, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^ *set-var (proc\.\w+) `).FindAllStringSubmatch(string(golden), -1) {
			found[m[1]] = true
		}
	}
	if len(found) < 4 {
		t.Fatalf("the files have the variables %v", found)
	}
	for name := range found {
		if text, err := ParseText(FrontendSection, "http-request set-var("+name+") int(1)"); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
	if _, err := ParseText(FrontendSection, "http-request set-var(proc.general) int(1)"); err != nil {
		t.Error(err)
	}
}

func TestTextsReadTheVariablesOfARequest(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		variables := func(section Section, names ...string) Text {
			line := "http-request return status 200 content-type text/plain lf-string "
			for i, name := range names {
				names[i] = "%[var(txn." + name + ")]"
			}
			return parsed(t, section, line+`"`+strings.Join(names, " ")+`"`)
		}
		app, wild := backend("app", origin(t, "app")), backend("wild", origin(t, "wild"))
		rest := backend("rest", origin(t, "rest"))
		cfg := r.config(app, wild, rest)
		cfg.Routes = []*Route{
			{Path: "/", Match: Prefix, Backend: "rest"},
			{Host: "*.wild.test", Path: "/", Match: Prefix, Backend: "wild"},
			{Host: "app.test", Path: "/[a-z]+$", Match: Regexp, Backend: "wild"},
			{Host: "app.test", Path: "/a", Match: Prefix, Backend: "app"},
		}
		cfg.Process.Texts = []Text{variables(FrontendSection, "base", "host", "host_match", "path_match", "path")}
		r.settle(cfg, states(cfg, Open))
		port := fmt.Sprint(r.http.Port())
		for _, row := range []struct{ host, path, want string }{
			{"App.test:" + port, "/a/b1?c", "App.test:" + port + "/a/b1 app.test app.test app /a/b1"},
			{"app.test", "/abc", "app.test/abc app.test app.test wild /abc"},
			{"x.Wild.test", "/", "x.Wild.test/ x.wild.test .wild.test wild /"},
			{"another.test", "/b", "another.test/b another.test  rest /b"},
		} {
			if got := r.get(row.host, row.path); got != row.want {
				t.Errorf("%s%s: the variables are %q, want %q", row.host, row.path, got, row.want)
			}
		}

		text := variables(BackendSection, "path_match", "host").Directive()
		app = backend("app", app.Servers...)
		app.Directives = []Directive{text}
		next := r.config(app, wild, rest)
		next.Reads = text.Reads()
		r.settle(next, states(next, Open))
		if got, want := r.get("app.test", "/a/"), "app app.test"; got != want {
			t.Errorf("the variables in a backend are %q, want %q", got, want)
		}
		if got := r.get("wild.test", "/"); got != "wild" {
			t.Errorf("another backend answers %q, want wild", got)
		}
	})
}

func TestAVariableIsReadByItsWholeName(t *testing.T) {
	for text, want := range map[string]Variables{
		"http-request set-header a %[var(txn.path)]":           0,
		"http-request deny if { var(txn.hosts) -m found }":     0,
		"http-request deny if { var(mytxn.base) -m found }":    0,
		"log-format %[var(txn.base)]":                          readsBase,
		"http-request deny if { var(txn.host) -m str a.test }": readsHost,
		"use-server a if { var(txn.host_match) -m found } { var(txn.path_match) -m beg a_ }": readsHost | readsHostMatch |
			readsPathMatch,
	} {
		if got := parsed(t, FrontendSection, text).Directive().Reads(); got != want {
			t.Errorf("%s: read are %b, want %b", text, got, want)
		}
	}
}
