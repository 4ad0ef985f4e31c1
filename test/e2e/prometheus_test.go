package e2e

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/test/lab/debian"
	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// A prometheus is a Prometheus on the client's host of a lab.
type prometheus struct {
	*testbed
	client  http.Client
	started time.Time
}

// firing is an alert that fires.
type firing struct {
	State               string
	Labels, Annotations map[string]string
}

// manualConfig returns the configuration of Prometheus that the manual shows.
func manualConfig(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../appliance/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Prometheus and Grafana\n")
	_, block, _ := strings.Cut(section, "```yaml\n")
	block, _, found := strings.Cut(block, "```\n")
	if !found {
		t.Fatal("the manual shows no configuration of Prometheus")
	}
	return block
}

// swapped returns a text with another part in the place of one that it has.
func (r *testbed) swapped(text, old, instead string) string {
	r.t.Helper()
	if !strings.Contains(text, old) {
		r.t.Fatalf("there is no %q in\n%s", old, text)
	}
	return strings.ReplaceAll(text, old, instead)
}

// observed gives appliances a status endpoint with TLS and a password, and starts a Prometheus with
// our alerts, as the manual describes both. The alerts wait for a second instead of minutes.
func observed(appliances ...*testbed) *prometheus {
	r := appliances[0]
	r.t.Helper()
	p := &prometheus{testbed: r, started: time.Now()}
	dir := r.t.TempDir()
	write := func(name, text string) {
		r.t.Helper()
		r.must(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	text := manualConfig(r.t)
	var addresses []net.IP
	for n, a := range appliances {
		address := r.host(a.Machine()).Addr.Addr().String()
		addresses = append(addresses, net.ParseIP(address))
		text = r.swapped(text, fmt.Sprintf("10.0.0.%d:", 21+n), address+":")
	}
	certificate, key := selfSigned(r.t, addresses)
	write("status.crt", certificate)
	write("status.key", key)
	write("status.password", "correct-horse-battery-staple\n")
	for n, a := range appliances {
		a.write("sallyport.yaml",
			a.read("sallyport.yaml")+
				fmt.Sprintf("status: {listen: \"%s:9090\", passwordFile: %[2]s/status.password, tls: {certificate: "+
					"%[2]s/status.crt, key: %[2]s/status.key}}\n", addresses[n], dir))
	}
	rules, err := os.ReadFile("../../appliance/alerts.yaml")
	r.must(err)
	// A busy machine takes seconds for a reload.
	fewer := r.swapped(string(rules), "reloads_total[10m]) > 60", "reloads_total[10m]) > 15")
	write("alerts.yaml", regexp.MustCompile(`for: \d+m\n`).ReplaceAllString(fewer, "for: 1s\n"))
	write("prometheus.yml", "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"+text)

	programs, err := debian.Prometheus().Fetch(r.t.Context(), os.Stderr)
	r.must(err)
	running, stop, err := r.Beside(r.t.Context(), world.Client, filepath.Join(programs, "prometheus"),
		"--config.file="+dir+"/prometheus.yml",
		"--storage.tsdb.path="+dir+"/data", "--web.listen-address=127.0.0.1:9090", "--log.level=warn")
	r.must(err)
	r.t.Cleanup(stop)
	p.client.Transport = &http.Transport{DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		if running.Err() != nil {
			return nil, context.Cause(running)
		}
		return r.Dial(ctx, world.Client, address)
	}}
	return p
}

// selfSigned returns a new certificate for addresses, and its key, both as PEM.
func selfSigned(t *testing.T, addresses []net.IP) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: addresses,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
}

// ask asks the API of Prometheus.
func (p *prometheus) ask(path string, query url.Values, answer any) error {
	request, err := http.NewRequestWithContext(p.t.Context(), "GET",
		"http://127.0.0.1:9090/api/v1/"+path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	response, err := p.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // only read
	all := struct {
		Error string
		Data  any
	}{Data: answer}
	if err := json.NewDecoder(response.Body).Decode(&all); err != nil {
		return err
	}
	if all.Error != "" {
		return fmt.Errorf("%s: %s", query.Get("query"), all.Error)
	}
	return nil
}

// fires returns the alerts that fire, by name and then by instance. It leaves out the machine's
// memory, which other programs use, too.
func (p *prometheus) fires() (map[string]map[string]firing, error) {
	var answer struct{ Alerts []firing }
	all := map[string]map[string]firing{}
	err := p.ask("alerts", nil, &answer)
	for _, a := range answer.Alerts {
		if name := a.Labels["alertname"]; a.State == "firing" && a.Labels["resource"] != "memory" {
			if all[name] == nil {
				all[name] = map[string]firing{}
			}
			all[name][a.Labels["instance"]] = a
		}
	}
	return all, err
}

// rest waits until none of some alerts fires.
func (p *prometheus) rest(alerts map[string]string) {
	p.t.Helper()
	p.eventually("its alerts rest", func() error {
		fire, err := p.fires()
		for name := range alerts {
			if len(fire[name]) > 0 {
				return fmt.Errorf("%s fires: %v", name, fire[name])
			}
		}
		return err
	})
}

// typed runs the command that an alert tells to type, on the host that it tells of, and returns the
// output.
func (p *prometheus) typed(a firing, on map[string]member) (string, error) {
	description := a.Annotations["description"]
	command := description[strings.LastIndex(description, ": ")+2:]
	m, known := on[a.Labels["instance"]]
	if !known {
		m = on[""]
	}
	args := strings.Fields(strings.ReplaceAll(command, "/etc/sallyport/sallyport.yaml", m.file("sallyport.yaml")))
	if len(args) < 2 || args[0] != "sallyport" {
		return "", fmt.Errorf("%q names no command", description)
	}
	if args[1] != "config" {
		args = append(args, "--config", m.file("sallyport.yaml"))
	}
	out, err := m.Command(p.t.Context(), m.Machine(),
		append([]string{m.file("sallyport")}, args[1:]...)...).CombinedOutput()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) { // as a doctor does that finds something
		err = nil
	}
	return "$ " + command + "\n" + string(out), err
}

// gateway returns a Gateway of our class with listeners.
func gateway(name, listeners string) string {
	return "---\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: " + name + "}\nspec:\n" +
		"  gatewayClassName: sallyport\n  listeners: [" + listeners + "]\n"
}

// An outage is a fault that makes alerts fire.
type outage struct {
	name       string
	make, mend func()
	again      func()            // a part of the fault that has to go on; nil: none
	alerts     map[string]string // the alerts that fire, each with words that its command shows
	lingers    bool              // the alerts rest only minutes later
}

func TestARealPrometheusAlertsOfEachFault(t *testing.T) {
	beside(t, long)
	opts := world.Options{Name: "prom", Workers: 2, Router: world.RouterBIRD, GatewayAPI: world.Standard}
	a, b := newMembers(t, opts, "  pools: ["+rig.ServicePool(opts)+"]\n")
	r := a.testbed
	p := observed(a.testbed, b.testbed)
	good := r.swapped(r.read("sallyport.yaml"), "haproxy: {",
		"haproxy: {maxConnections: 100, minReloadInterval: 100ms, ")
	r.write("sallyport.yaml", good)
	configured := func(text string) {
		r.t.Helper()
		r.write("sallyport.yaml", text)
		r.must(syscall.Kill(r.Pid(), syscall.SIGHUP))
	}
	kubeconfig := r.read("kubeconfig")
	served := ingress("app", "", "test.local / Prefix app")
	r.apply(application("app", 4) + served + gateway("web", "{name: http, port: 80, protocol: HTTP}") +
		"---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: web}\nspec:\n" +
		"  parentRefs: [{name: web}]\n  rules: [{backendRefs: [{name: app, port: 80}]}]\n")
	a.start()
	b.start()
	on := map[string]member{"192.168.50.21:9090": a, secondPeering + ":9090": b, "": a}
	r.eventually("both are scraped, full, and nothing is wrong", func() error {
		if err := errors.Join(a.Alive(), b.Alive()); err != nil {
			return err
		}
		var full struct{ Result []struct{ Value [2]any } }
		err := p.ask("query", url.Values{
			"query": {`sum(sallyport_group_class{class="full"}) + sum(sallyport_servers{state="open"})`},
		}, &full)
		if err == nil && (len(full.Result) != 1 || full.Result[0].Value[1] != "10") {
			err = fmt.Errorf("members that are full, and servers that are open: %v, want 2 and 8", full.Result)
		}
		if err == nil {
			var fire map[string]map[string]firing
			if fire, err = p.fires(); len(fire) > 0 {
				err = fmt.Errorf("these fire: %v", fire)
			}
		}
		return err
	})
	_, err := r.pods("http://test.local/", 20)
	r.must(err)
	r.eventually("HAProxy's own metrics have the name of the Service", func() error {
		var found struct{ Result []any }
		err := p.ask("query", url.Values{
			"query": {`haproxy_backend_http_requests_total{job="haproxy",proxy="default_svc_app_web"}`},
		}, &found)
		if err == nil && len(found.Result) != 2 {
			err = fmt.Errorf("%d appliances have them, want 2", len(found.Result))
		}
		return err
	})

	var held []net.Conn
	var since time.Time
	release := func() {
		for _, c := range held {
			_ = c.Close()
		}
		held = nil
	}
	hold := func() {
		if time.Since(since) < 3*time.Second {
			return
		}
		release() // HAProxy ends a connection without a request after 5 s
		for range 90 {
			c, err := r.Dial(t.Context(), world.Client, "192.168.50.21:80")
			r.must(err)
			held = append(held, c)
		}
		since = time.Now()
	}
	churned, noAPI := 0, func() {}
	foreign := []string{
		"route", "replace", "172.16.189.64/26", "via", "192.168.50.23", "metric", "50", "proto",
		"static",
	}
	// The words are the day on which the token ends: it may be tomorrow.
	expires := map[string]string{"SallyportCredentialsExpire": ""}
	outages := []outage{
		{
			name:   "an Ingress names a Service that does not exist",
			make:   func() { r.apply(ingress("lost", "", "lost.local / Prefix nowhere")) },
			mend:   func() { r.kubectl("delete", "ingress", "lost") },
			alerts: map[string]string{"SallyportProblems": "nowhere"},
		},
		{
			name: "a Gateway names a Secret that does not exist",
			make: func() {
				r.apply(gateway("edge", "{name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: "+
					"[{name: nowhere}]}}"))
			},
			mend:   func() { r.kubectl("delete", "gateway", "edge") },
			alerts: map[string]string{"SallyportListenersClosed": "nowhere"},
		},
		{
			name:   "the configuration file has a mistake",
			make:   func() { configured(r.swapped(good, "stateDir:", "statedir:")) },
			mend:   func() { configured(good) },
			alerts: map[string]string{"SallyportConfigurationRejected": `did you mean "stateDir"`},
		},
		{
			name: "the pools of the configuration leave out the block of a backend",
			make: func() { configured(r.swapped(good, "pools: [172.16.0.0/16]", "pools: [172.17.0.0/16]")) },
			mend: func() { configured(good) },
			alerts: map[string]string{
				"SallyportOffersRefused":    "172.16.189.64/26",
				"SallyportBackendsUnserved": "the offer of 172.16.",
				"SallyportClusterUnserved":  "the offer of 172.16.",
			},
		},
		{
			name: "a cluster of a set has too few ready servers",
			make: func() {
				configured(r.swapped(good, "pools: [172.16.0.0/16]",
					"pools: [172.16.0.0/16], set: alone, share: all, weight: 1, minReady: 100"))
			},
			mend:   func() { configured(good) },
			alerts: map[string]string{"SallyportClusterGivesWay": "too few ready servers"},
		},
		{
			name: "the token lives for 20 minutes more",
			make: func() {
				short, err := r.ServiceAccountKubeconfig(t.Context(), "kube-system", "sallyport", 20*time.Minute)
				r.must(err)
				expires["SallyportCredentialsExpire"] = time.Now().UTC().Add(20 * time.Minute).Format(time.DateOnly)
				r.write("kubeconfig", string(short))
				configured(good)
			},
			mend: func() {
				r.write("kubeconfig", kubeconfig)
				configured(good)
			},
			alerts: expires,
		},
		{
			name:   "clients hold most of the connections",
			make:   hold,
			again:  hold,
			mend:   release,
			alerts: map[string]string{"SallyportLimitNear": "haproxy.maxConnections"},
		},
		{
			name:   "somebody's route takes the packets for some of a node's pods",
			make:   func() { r.exec("ip", "route", "add", "blackhole", "172.16.189.64/28") },
			mend:   func() { r.exec("ip", "route", "del", "blackhole", "172.16.189.64/28") },
			alerts: map[string]string{"SallyportRouteMissing": "172.16.189.64/28"},
		},
		{
			name:   "a node dies",
			make:   func() { r.must(r.KillNode(t.Context(), "worker2")) },
			mend:   func() { r.must(r.ReviveNode(t.Context(), "worker2")) },
			alerts: map[string]string{"SallyportSessionDown": "worker2"},
		},
		{
			name:   "a change of the configuration file needs a restart",
			make:   func() { configured(good + "bgp: {holdTime: 12s}\n") },
			mend:   func() { configured(good) },
			alerts: map[string]string{"SallyportWarnings": "bgp.holdTime"},
		},
		{
			name:   "a member dies",
			make:   func() { b.end(syscall.SIGKILL) },
			mend:   func() { b.start() },
			alerts: map[string]string{"SallyportMemberSilent": "silent", "SallyportDown": "no appliance runs here"},
		},
		{
			name: "a member dies, and the other one starts without the API server",
			make: func() {
				b.end(syscall.SIGKILL)
				r.pictured(r.file("state/picture-default.json"))
				a.end(syscall.SIGKILL)
				noAPI = r.without(r.api())
				a.start()
			},
			mend: func() {
				noAPI()
				b.start()
			},
			alerts: map[string]string{
				"SallyportNotReady":       "has not answered since the start",
				"SallyportClusterUnknown": "picture of", "SallyportNoFullMember": "has not answered since the start",
			},
		},
		{
			name:    "somebody's route is in the place of a node's",
			make:    func() { r.exec(append([]string{"ip"}, foreign...)...) },
			mend:    func() { r.exec(append([]string{"ip", "route", "del"}, foreign[2:]...)...) },
			alerts:  map[string]string{"SallyportRoundsFail": "172.16.189.64/26"},
			lingers: true,
		},
		{
			name: "an annotation changes all the time",
			make: func() {},
			mend: func() {},
			again: func() {
				var all strings.Builder
				for range 30 {
					churned++
					all.WriteString(r.swapped(served, "{name: app}",
						fmt.Sprintf("{name: app, annotations: {haproxy.org/timeout-server: %ds}}", 60+churned)))
				}
				r.apply(all.String())
			},
			alerts:  map[string]string{"SallyportReloadsOften": "backend default_ing_app_svc_app_web changed"},
			lingers: true,
		},
	}
	fired := map[string]bool{}
	for _, o := range outages {
		r.sub(o.name, func(t *testing.T, r *testbed) {
			p := &prometheus{r, p.client, p.started}
			p.rest(o.alerts)
			o.make()
			defer func() {
				o.mend()
				if !o.lingers {
					p.rest(o.alerts)
				}
			}()
			for name, words := range o.alerts {
				var alert firing
				r.eventually(name+" fires", func() error {
					if o.again != nil {
						o.again()
					}
					fire, err := p.fires()
					for _, alert = range fire[name] {
						fired[name] = true
						return err
					}
					return fmt.Errorf("%w; these fire: %v", err, fire)
				})
				// Another appliance may have raised it for a moment, while the fault was made.
				r.eventually("its command shows why", func() error {
					if o.again != nil {
						o.again()
					}
					fire, err := p.fires()
					for _, alert = range fire[name] {
						out, failed := p.typed(alert, on)
						if failed == nil {
							failed = missing(name, out, words)
						}
						if failed == nil {
							return nil
						}
						err = errors.Join(err, failed)
					}
					return cmp.Or(err, fmt.Errorf("%s does not fire any more", name))
				})
				t.Logf("%s (%s)\n%s\n%s", name, alert.Labels["severity"], alert.Annotations["summary"],
					alert.Annotations["description"])
			}
		})
	}
	rules, err := os.ReadFile("../../appliance/alerts.yaml")
	r.must(err)
	// Only an error of Sallyport raises it. The tests of the rules show that it fires.
	fired["SallyportChangesMissed"] = true
	for _, name := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(string(rules), -1) {
		if !fired[name[1]] {
			t.Errorf("%s has not fired", name[1])
		}
	}
	r.sub("each query of the dashboard returns data", func(_ *testing.T, r *testbed) {
		(&prometheus{r, p.client, p.started}).draws("../../appliance/dashboard.json")
	})
}

// draws checks that each query of a dashboard returns numbers for the time since the start.
func (p *prometheus) draws(dashboard string) {
	p.t.Helper()
	text, err := os.ReadFile(dashboard)
	p.must(err)
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	p.must(json.Unmarshal(text, &board))
	asked := 0
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			asked++
			expr := strings.NewReplacer("$__rate_interval", "1m", "$instance", ".+", "$job",
				"sallyport").Replace(target.Expr)
			var answer struct {
				Result []struct{ Values [][2]any }
			}
			p.must(p.ask("query_range",
				url.Values{
					"query": {expr}, "step": {"1"}, "start": {strconv.FormatInt(p.started.Unix(), 10)},
					"end": {strconv.FormatInt(time.Now().Unix(), 10)},
				}, &answer))
			numbers := 0
			for _, series := range answer.Result {
				for _, v := range series.Values {
					text, _ := v[1].(string)
					if n, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(n) && !math.IsInf(n, 0) {
						numbers++
					}
				}
			}
			if numbers == 0 {
				p.t.Errorf("%s: %s returns no number", panel.Title, expr)
			}
		}
	}
	if asked < 30 {
		p.t.Errorf("%d queries, want at least 30", asked)
	}
}
