package e2e

import (
	"cmp"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sallyport/test/lab/world"
	"sallyport/test/manual"
)

// filled replaces what a page leaves to its reader.
var filled = strings.NewReplacer(
	"NAMESPACE/INGRESS", "default/web", "http://HOST/PATH", "http://test.local/", "--password-file FILE",
	"--password-file /etc/sallyport/status.password",
	"-inkey KEY -in FILE.manifest -out FILE.manifest.sig", "-inkey /tmp/key -in /tmp/manifest -out /tmp/manifest.sig",
	" FILE", " /etc/sallyport/sallyport.yaml",
)

// Steps that pages tell in words, or show as YAML: shell functions for presumed.
const steps = `
	demo() { # the appliance is alone, and has the Ingress of make demo
		kubectl delete ingress web
		sallyport config example > /etc/sallyport/sallyport.yaml
		systemctl restart sallyport
		waits asked
	}
	grouped() { # it is one of two, and the addresses are those of the lab
		openssl rand -base64 32 > /etc/sallyport/group.key
		sallyport config example --group | sed 's/192.168.50.22/192.168.50.12/; s/192.168.50.1}/192.168.50.2}/' > /etc/sallyport/sallyport.yaml
		sed 's/^identity: gate-1/identity: gate-2/; s/listen: .*/listen: [192.168.50.12]/' /etc/sallyport/sallyport.yaml > /etc/sallyport/two.yaml
		printf 'haproxy: {dir: /var/lib/two/haproxy, runDir: /run/two}\nstateDir: /var/lib/two\n' >> /etc/sallyport/two.yaml
		mkdir -p /var/lib/two /run/two
		sallyport manifests --config /etc/sallyport/sallyport.yaml | kubectl apply -f -
		systemctl restart sallyport
		systemctl stop gate-2 2>/dev/null || true
		systemd-run --quiet --unit gate-2 lab exec appliance2 -- /usr/bin/sallyport run --config /etc/sallyport/two.yaml
		waits '[ "$(sallyport status members | awk "\$3 == \"full\"" | wc -l)" = 2 ]'
	}
	waits() { # until a command succeeds
		for i in $(seq 300); do eval "$1" >/dev/null 2>&1 && return; sleep 0.2; done
		eval "$1" || sallyport status
		return 1
	}
	fence() { sed -n "/^$1:/,/^\x60/{/^\x60/!p}" "$2"; } # the YAML on a page that begins with a key
	ended() { # appliance and HAProxy
		systemctl stop sallyport
		kill "$(cat /run/sallyport/haproxy.pid)"
	}
	asked() { # it answers clients with IPv4 and IPv6 addresses
		for i in $(seq 10); do lab exec client -- curl -sf -o /dev/null -H 'Host: test.local' http://192.168.50.21/ && curl -sf -o /dev/null -H 'Host: test.local' 'http://[::1]/' || return; done
	}
`

// presumed maps the beginning of a command to what its page tells the reader to do before it.
var presumed = map[string]string{
	`echo '{"apiVersion":"crd.projectcalico.org/v1"`: "kubectl delete bgpconfigurations.crd.projectcalico.org default",
	"sallyport config check /etc":                    "cp kubeconfig /etc/sallyport/kubeconfig",
	"sallyport config import": `
		mkdir -p /etc/bird
		cp appliance/move/testdata/published/bird.conf /etc/bird/
		cp appliance/move/testdata/published/haproxy-ingress.service /etc/systemd/system/`,
	"sallyport parity": `echo '{"host":"nobody.example","uri":"/","status":404}' > access.log`,
	"kill $(cat":       "systemctl stop sallyport",
	"sallyport drain":  "grouped",
	"sallyport status --address": `
		ip address add 10.0.0.21/32 dev lo
		openssl rand -hex 16 > /etc/sallyport/status.password
		openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=lab -addext subjectAltName=IP:10.0.0.21 -keyout /etc/sallyport/status.key -out ca.pem
		cp ca.pem /etc/sallyport/status.crt
		sallyport config example | sed '/^status:/,$d' > /etc/sallyport/sallyport.yaml
		fence status appliance/README.md >> /etc/sallyport/sallyport.yaml
		systemctl restart sallyport`,
	"mkdir -p /etc/systemd/system/haproxy.service.d": `
		ended
		fence haproxy haproxy/README.md | sed 1d > /tmp/lines
		sallyport config example | sed '/^haproxy:/r /tmp/lines' > /etc/sallyport/sallyport.yaml
		! sallyport run
		echo CONFIG=/var/lib/sallyport/haproxy/haproxy.cfg > /etc/default/haproxy`,
	"journalctl -u sallyport -o short": `
		systemctl disable --now haproxy
		sallyport config example | sed '/^haproxy:/a\  accessLog: stdout' > /etc/sallyport/sallyport.yaml
		systemctl restart sallyport
		waits asked`,
	"journalctl -u sallyport -o cat": "waits asked",
	"$ sallyport status":             "demo",
	"openssl pkeyutl":                "openssl genpkey -algorithm ed25519 -out /tmp/key; echo '{}' > /tmp/manifest",
}

// fulfilled maps the beginning of a command to what its page promises of it.
var fulfilled = map[string]string{
	"systemctl enable --now sallyport": "waits 'curl -sf http://127.0.0.1:9090/readyz'; waits asked",
	"systemctl restart haproxy":        "haproxy=$(systemctl show -P MainPID haproxy); [ $haproxy != 0 ]",
	"systemctl restart sallyport":      "waits asked",
	"journalctl -u sallyport -o cat":   `grep -q '"data": "::1"' report.html && grep -q '"data": "198.51.100.10"' report.html`,
}

// of returns the shell's lines for a command, after the steps that they may call. One whose output the
// page shows begins with a dollar.
func of(lines map[string]string, c manual.Command) string {
	script := steps
	text := c.Text
	if c.Output != "" {
		text = "$ " + text
	}
	for beginning, more := range lines {
		if strings.HasPrefix(text, beginning) {
			script += more + "\n"
		}
	}
	return script
}

// typed returns a command with all that its reader types.
func typed(command string) string {
	if strings.HasPrefix(command, "openssl passwd") {
		return command + " secret"
	}
	return filled.Replace(command)
}

// shape returns the lines of an output without what differs from run to run: words with digits, and
// sentences, which have a colon.
func shape(text string) (lines []string) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, ": ") {
			continue
		}
		words := strings.Fields(line)
		for i, w := range words {
			if regexp.MustCompile(`\d`).MatchString(w) {
				words[i] = "#"
			}
		}
		lines = append(lines, strings.Join(words, " "))
	}
	return lines
}

// turnOf returns the turn of a page. A reader installs the program, reads on in the README, and
// changes the program last of all.
func turnOf(page string) int {
	turns := map[string]int{"appliance/INSTALL.md": 0, "README.md": 1, "CONTRIBUTING.md": 3}
	if turn, special := turns[page]; special {
		return turn
	}
	return 2
}

// TestEveryCommandOfTheManualRuns types what the pages let a reader type, on a machine beside a cluster
// with Calico. It begins with the page that installs the program.
func TestEveryCommandOfTheManualRuns(t *testing.T) {
	beside(t, short)
	r := newTestbed(t, world.Options{
		Name: "manual", Workers: 2, Calico: world.Real, Appliances: 2,
		Router: world.RouterBIRD,
	}, settings{})
	manifests, err := r.Manifests(t.Context())
	r.must(err)
	r.write("manifests.yaml", manifests)
	r.kubectl("delete", "-f", r.file("manifests.yaml")) // the pages give the cluster what it needs
	sample, err := os.ReadFile("../demo/app.yaml")
	r.must(err)
	r.apply(string(sample) + strings.Replace(ingress("web", "", "web.local / Prefix app"), "port: {name: web}",
		"port: {number: 80}", 1))
	m := r.machine(t)

	all, err := manual.All("../..")
	r.must(err)
	slices.SortStableFunc(all, func(a, b manual.Command) int { return cmp.Compare(turnOf(a.Page), turnOf(b.Page)) })
	for _, c := range all {
		if _, elsewhere := manual.Elsewhere(c); elsewhere {
			continue
		}
		r.sub(c.String(), func(t *testing.T, r *testbed) {
			if out, err := m.run(t.Context(), of(presumed, c)); err != nil {
				t.Fatalf("what the page presumes: %v\n%s", err, out)
			}
			out, err := m.run(t.Context(), typed(c.Text))
			if err != nil {
				log, _ := m.run(t.Context(), "journalctl -u sallyport -n 30 -o cat")
				t.Fatalf("%v\n%s\n%s", err, out, log)
			}
			if out, err := m.run(t.Context(), of(fulfilled, c)); err != nil {
				t.Errorf("what the page promises: %v\n%s", err, out)
			}
			got := shape(out)
			for _, want := range shape(c.Output) {
				if !slices.Contains(got, want) {
					t.Errorf("the page shows a line %q, which the command does not print:\n%s", want, out)
				}
			}
		})
	}
}
