package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"sallyport/ingress/nginx"
)

// withoutFact names the annotations of ingress-nginx that no fact can show, and why.
var withoutFact = map[string]string{}

// alike names the annotations whose difference no single request shows, and why.
var alike = map[string]string{
	"canary-weight-total":    "the rounding of a share shows in thousands of requests",
	"limit-burst-multiplier": "a window and a bucket differ in the times at which requests are allowed again",
	"limit-rpm":              "a window and a bucket differ in the times at which requests are allowed again",
	"load-balance":           "the choice of a server by its load shows under load",
}

// TestEachAnnotationOfNginxHasAFact holds the table of the dialect to the facts. An annotation with a
// difference needs a fact that states one.
func TestEachAnnotationOfNginxHasAFact(t *testing.T) {
	for _, row := range nginx.Rows() {
		has, differs := false, false
		for _, c := range nginxCases() {
			if slices.ContainsFunc(slices.Concat(c.ingress, c.canary), func(s string) bool {
				return strings.HasPrefix(s, nginx.Prefix+row.Name+": ")
			}) {
				has = has || len(c.facts) > 0
				differs = differs || slices.ContainsFunc(c.facts, func(f fact) bool { return f.there != "" })
			}
		}
		if why := withoutFact[row.Name]; has == (why != "") {
			t.Errorf("%s: a fact: %t; why there is none: %q", row.Name, has, why)
		}
		lost := row.Verdict == nginx.Differs || row.Verdict == nginx.Lost
		if why := alike[row.Name]; has && lost && differs == (why != "") {
			t.Errorf("%s is %q; a fact states a difference: %t; why none does: %q", row.Name, row.Verdict, differs, why)
		}
	}
}

// TestEachFactOfNginxIsFounded holds each fact to its source, and each difference to the page.
func TestEachFactOfNginxIsFounded(t *testing.T) {
	text, err := os.ReadFile("../../ingress/NGINX.md")
	if err != nil {
		t.Fatal(err)
	}
	page := strings.Join(strings.Fields(string(text)), " ")
	seen, n := map[string]bool{}, 0
	for _, c := range nginxCases() {
		for i, p := range c.parts() {
			if seen[p.name] || len(c.facts) == 0 {
				t.Errorf("%s: a second case of this name, or one without facts", p.name)
				continue
			}
			f := c.facts[i]
			n, seen[p.name] = n+1, true
			folder, file, _ := strings.Cut(f.from, "/")
			if sources[folder+"/"] == "" || file == "" {
				t.Errorf("%s: %q is no source", p.name, f.from)
			}
			if (f.there == "") != (f.page == "") || !strings.Contains(page, f.page) {
				t.Errorf("%s: ingress-nginx differs: %q; ingress/NGINX.md has to say %q", p.name, f.there, f.page)
			}
			if len(f.want) == 0 {
				t.Errorf("%s: nothing is wanted", p.name)
			}
		}
	}
	t.Logf("%d facts of %d Ingresses", n, len(nginxCases()))
}
