package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/appliance/config"
)

// TestAnImportLoadsAndItsExitCodeSaysWhetherAllWasCarried imports files of which the second has lines that
// are not carried.
func TestAnImportLoadsAndItsExitCodeSaysWhetherAllWasCarried(t *testing.T) {
	const dir = "../../appliance/move/testdata/"
	for _, row := range []struct {
		args []string
		code int
		says string // on standard error
	}{
		{[]string{dir + "published/bird.conf", dir + "published/haproxy-ingress.service"}, exitOK, ""},
		{[]string{dir + "functions/bird.conf"}, exitFailure, "not all was carried"},
		{[]string{dir + "nothing.conf"}, exitFailure, "no such file"},
		{[]string{"import_test.go"}, exitFailure, "is no bird.conf"},
		{nil, exitUsage, "requires at least 1 arg"},
	} {
		var out, err strings.Builder
		code := execute(append([]string{"config", "import"}, row.args...), &out, &err)
		if code != row.code || !strings.Contains(err.String(), row.says) {
			t.Errorf("%v: exit code %d, want %d: %s", row.args, code, row.code, err.String())
		}
		if strings.Contains(row.says, "carried") || row.says == "" {
			if _, err := config.Parse("it", []byte(out.String())); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestTheExitCodeOfParitySaysWhetherAnswersDiffer replays logs of one line.
func TestTheExitCodeOfParitySaysWhetherAnswersDiffer(t *testing.T) {
	dir := t.TempDir()
	objects, log := filepath.Join(dir, "objects.yaml"), filepath.Join(dir, "access.log")
	ingress := "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: web, namespace: shop}, spec: " +
		"{ingressClassName: nginx, rules: [{host: shop.example, http: {paths: [{path: /, pathType: Prefix, backend: " +
		"{service: {name: web, port: {number: 80}}}}]}}]}}\n"
	if err := os.WriteFile(objects, []byte(ingress), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		line string
		code int
		says string // on standard output
	}{
		{`{"host":"shop.example","uri":"/","status":200}`, exitOK, `"same": 1`},
		{`{"host":"gone.example","uri":"/","status":200}`, exitFailure, `"code": "not-found"`},
		{"\x00 binary", exitFailure, `"unreadable": 1`},
	} {
		if err := os.WriteFile(log, []byte(row.line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		var out, err strings.Builder
		code := execute([]string{"parity", log, "--from", "nginx", "-f", objects, "-o", "json"}, &out, &err)
		if code != row.code || !strings.Contains(out.String(), row.says) {
			t.Errorf("%q: exit code %d, want %d: %s%s", row.line, code, row.code, out.String(), err.String())
		}
	}
}

// TestTheExitCodeOfMigrateSaysWhetherAllIsServed judges an Ingress in each form of output.
func TestTheExitCodeOfMigrateSaysWhetherAllIsServed(t *testing.T) {
	const ingress = "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: web, annotations: {%s}}, spec: " +
		"{ingressClassName: nginx, rules: [{host: shop.example, http: {paths: [{path: /, pathType: Prefix, backend: " +
		"{service: {name: web, port: {number: 80}}}}]}}]}}\n"
	for _, row := range []struct {
		annotation string
		code       int
	}{
		{"nginx.ingress.kubernetes.io/ssl-redirect: 'false'", exitOK},
		{"nginx.ingress.kubernetes.io/enable-modsecurity: 'true'", exitFailure},
	} {
		file := write(t, "objects.yaml", fmt.Sprintf(ingress, row.annotation))
		for form, says := range map[string]string{
			"text": "1 Ingress of", "wide": "default/web", "html": "<h1>", "json": `"name": "web"`,
		} {
			code, out, err := sallyport("migrate", "--from", "nginx", "-f", file, "-o", form)
			if code != row.code || !strings.Contains(out, says) {
				t.Errorf("%s as %s: exit code %d, want %d: %s%s", row.annotation, form, code, row.code, out, err)
			}
		}
	}
}

// TestTheExitCodeOfSentRequestsSaysWhetherAnswersDiffer sends logs of one line to two servers.
func TestTheExitCodeOfSentRequestsSaysWhetherAnswersDiffer(t *testing.T) {
	log := filepath.Join(t.TempDir(), "access.log")
	old := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(old.Close)
	same := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(same.Close)
	other := httptest.NewServer(http.RedirectHandler("https://shop.example/", http.StatusFound))
	t.Cleanup(other.Close)
	const get = `{"host":"shop.example","uri":"/?token=secret","status":200,"method":"GET"}`
	for _, row := range []struct {
		line string
		args []string
		code int
		says string // on one of the outputs
	}{
		{get, []string{"--send", old.URL, "--to", same.URL}, exitOK, "1 request had the same answer"},
		{get, []string{"--send", old.URL, "--to", same.URL, "-o", "json"}, exitOK, `"same": 1`},
		{get, []string{"--send", old.URL, "--to", other.URL}, exitFailure, "shop.example  status    404"},
		{
			strings.Replace(get, "GET", "POST", 1),
			[]string{"--send", old.URL, "--to", same.URL},
			exitFailure,
			"no request was compared",
		},
		{get, []string{"--send", old.URL, "--to", "https://127.0.0.1"}, exitUsage, "need the same scheme"},
		{get, []string{"--send", old.URL, "--to", same.URL, "--rate", "0"}, exitUsage, "--rate: allowed are 1 to 1000"},
		{get, []string{"--send", old.URL, "--to", same.URL, "--most", "-1"}, exitUsage, "--most: allowed are"},
		{get, []string{"--send", "127.0.0.1", "--to", same.URL}, exitUsage, "--send: want http://ADDRESS"},
		{get, []string{"--send", old.URL}, exitUsage, "[send to]"},
		{get, []string{"--send", old.URL, "--to", same.URL, "-f", log}, exitUsage, "[filename send]"},
	} {
		if err := os.WriteFile(log, []byte(row.line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		var out, err strings.Builder
		code := execute(append([]string{"parity", log, "--rate", "1000"}, row.args...), &out, &err)
		both := out.String() + err.String()
		if code != row.code || !strings.Contains(both, row.says) || strings.Contains(both, "secret") {
			t.Errorf("%v: exit code %d, want %d: %s", row.args, code, row.code, both)
		}
	}
}
