package kic

import "testing"

func TestRulesDefineTheAnnotationsOfTheirPrefix(t *testing.T) {
	r := make(Rules)
	for _, spec := range []string{
		`{"prefix": "team.test", "validation_rules": {"retries": {"type": "int"}, "cut.short": {}}}`,
		`{"prefix": "other.test/", "validation_rules": {"wait": {}}}`,
		`{"validation_rules": {"none": {}}}`, `[]`, `{"prefix": 5}`, `null`,
	} {
		r.Add([]byte(spec))
	}
	for annotation, want := range map[string]bool{
		"backend.team.test/retries": true, "backend.team.test/cut.short": true, "backend.other.test/wait": true,
		"frontend.http.team.test/retries": true, "frontend.stats.other.test/wait": true,
		"backend.team.test/wait": false, "team.test/retries": false, "frontend.team.test/retries": false,
		"backend./none": false, "backend": false, "frontend.http": false, "": false, "haproxy.org/retries": false,
	} {
		if got := r.Define(annotation); got != want {
			t.Errorf("%s: got %t, want %t", annotation, got, want)
		}
	}
	if Rules(nil).Define("backend.team.test/retries") {
		t.Error("no rules define an annotation")
	}
}
