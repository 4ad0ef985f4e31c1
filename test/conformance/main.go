// Command conformance holds what is said of an Ingress to what a client and a
// pod see of it: objects in, HTTP behaviour out. Each case has a host of its own
// in a lab with an appliance; one line tells how it went. Facts of ingress-nginx share
// a host, and name their sources (see fact).
//
//	go run ./test/conformance             all cases
//	go run ./test/conformance -only cors  those with the word in their name
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"sallyport/ingress/input"
	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// A conformity is a case: what the objects say, and what requests must show.
type conformity struct {
	name    string
	config  []string // "key: value" that the ConfigMap says meanwhile; without a value: does not say
	live    bool     // config may need no reload
	ingress []string // annotations "key: value"; with "bare" in front the key has no prefix
	service []string
	canary  []string // annotations of a second Ingress for the same host
	backend string   // the spec of a Backend of HAProxy's own controller that the Service names; none, if it is empty
	older   bool     // the Backend is of ingress.v1.haproxy.org
	// routes are rules of HTTPRoutes for the host, by the listener that takes them: at a Gateway with the
	// addresses of Ingresses, and before the Ingress
	routes map[string][]string
	beside string // the path of one more Ingress of the class for the same host; none, if it is empty
	secure bool   // the Ingress has a certificate
	secret string // of the certificate; certificate, if it is empty
	to     string // the Deployment that answers; app, if it is empty
	path   string // ImplementationSpecific; each path, if it is empty
	exact  bool   // the path is Exact
	asks   []ask
	check  check  // runs once the asks hold
	facts  []fact // in place of asks: each is a case, and they share the Ingress
}

// A check looks at more than answers.
type check func(context.Context, *testbed) error

// A testbed is a rig while a case runs.
type testbed struct {
	*rig.Rig
	host string // of the case
	name string // of its Service and Ingress
	hold func(ask) error
}

// An ask is a request, and what must be true of the answer (see hold).
type ask struct {
	request string   // "GET /path?query", with "https" in front for TLS
	headers []string // "Name: value"
	curl    []string // more arguments; DIR is a directory with a client's certificate
	sni     string   // name of the TLS connection, if it is not the host
	want    []string
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == clientArg {
		client()
		return
	}
	rig.Main("conformance", run)
}

func run(ctx context.Context) error {
	only := flag.String("only", "", "run the cases that have this `word` in their name")
	asJSON := flag.Bool("json", false, "write a line of JSON for each case")
	flag.Parse()
	list := slices.DeleteFunc(cases(), func(c conformity) bool {
		return !slices.ContainsFunc(c.parts(), func(p conformity) bool { return strings.Contains(p.name, *only) })
	})
	if len(list) == 0 {
		return fmt.Errorf("no case has %q in its name", *only)
	}
	options := world.Options{Name: "conformance", Workers: 1, Progress: io.Discard, GatewayAPI: world.Standard}
	ingress := []string{
		"configMap: default/defaults", "tcpServices: default/tcp", "patternFiles: default/lists",
		"trust: cluster", "customResources: true", "nginx: {classes: [nginx], without: [server-snippet]}",
	}
	return rig.In(ctx, options, "", rig.Cluster{
		Ingress: ingress, Gateway: []string{"shared: true"},
	}, func(r *rig.Rig) error {
		var manifest strings.Builder
		manifest.WriteString(objects(r.Dir) + tcps + sections + kicObjects)
		if err := certificate(&manifest, r.Dir); err != nil {
			return err
		}
		var lines []rig.Case
		for i, c := range list {
			c.write(&manifest, i)
			for _, p := range c.parts() {
				if strings.Contains(p.name, *only) {
					lines = append(lines, rig.Case{Name: p.name, Run: func(ctx context.Context) error {
						return p.run(ctx, r, r.Dir, i)
					}})
				}
			}
		}
		if err := r.AddCustomResources(ctx); err != nil {
			return err
		}
		if err := errors.Join(r.Apply(ctx, manifest.String()), r.Start(ctx), r.Ready(ctx)); err != nil {
			return err
		}
		if _, err := r.Exec(ctx, world.Client, "ip", "addr", "add", speaker+"/32", "dev", "lo"); err != nil {
			return err
		}
		return rig.Report(ctx, os.Stdout, *asJSON, lines)
	})
}

// run runs the asks of a case, then its check.
func (c conformity) run(ctx context.Context, r *rig.Rig, dir string, i int) (err error) {
	s := &testbed{r, host(i), fmt.Sprintf("case%d", i), func(a ask) error { return a.hold(ctx, r, dir, i) }}
	if len(c.config) > 0 {
		restore, err := s.configure(ctx, c.config, c.live)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, restore()) }()
	}
	if err := c.holds(ctx, r, dir, i); err != nil || c.check == nil {
		return err
	}
	return c.check(ctx, s)
}

func host(i int) string { return fmt.Sprintf("case%d.test", i) }

// write adds a Service and an Ingress for the case. The other Ingresses of its host come after it, because of
// two that claim the same the older one has it. Ages have whole seconds, and kubectl may take longer.
func (c conformity) write(to io.Writer, i int) {
	said := func(list []string) string {
		if len(list) == 0 {
			return ""
		}
		b := strings.Builder{}
		b.WriteString("\n  annotations:")
		for _, s := range list {
			key, value, _ := strings.Cut(s, ": ")
			if bare, is := strings.CutPrefix(key, "bare "); is {
				key = bare
			} else if !strings.Contains(key, "/") {
				key = "haproxy.org/" + key
			}
			fmt.Fprintf(&b, "\n    %s: %q", key, value)
		}
		return b.String()
	}
	tls, kind := "", "ImplementationSpecific"
	classOf := func(annotations []string) string {
		if slices.ContainsFunc(annotations, func(s string) bool { return strings.Contains(s, "ingress.class: ") }) {
			return ""
		}
		return "  ingressClassName: haproxy\n"
	}
	if c.exact {
		kind = "Exact"
	}
	if c.secure {
		tls = "  tls: [{hosts: [" + host(i) + "], secretName: " + cmp.Or(c.secret, "certificate") + "}]\n"
	}
	// ingress adds an Ingress for a path of the case's host.
	ingress := func(suffix string, annotations []string, tls, path, kind, service string) {
		fmt.Fprintf(to, `
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: case%d%s%s
spec:
%s%s  rules:
  - host: %s
    http: {paths: [{path: %q, pathType: %s, backend: {service: {name: %s, port: {name: web}}}}]}
`, i, suffix, said(annotations), classOf(annotations), tls, host(i), path, kind, service)
	}
	for listener, rules := range c.routes {
		fmt.Fprintf(to, `
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: case%[1]d-%[2]s}
spec:
  parentRefs: [{name: front, sectionName: %[2]s}]
  hostnames: [%[3]s]
  rules:
  - %[4]s
`, i, listener, host(i), strings.Join(rules, "\n  - "))
	}
	if c.backend != "" {
		group := input.CustomV3
		if c.older {
			group = input.CustomV1
		}
		fmt.Fprintf(to, "\n---\napiVersion: %s\nkind: Backend\nmetadata: {name: case%d}\nspec: %s\n", group, i, c.backend)
		c.service = append(c.service, fmt.Sprintf("cr-backend: case%d", i))
	}
	fmt.Fprintf(to, `
---
apiVersion: v1
kind: Service
metadata:
  name: case%d%s
spec:
  selector: {app: %s}
  ports: [{name: web, port: 80, targetPort: http}]
`, i, said(c.service), cmp.Or(c.to, "app"))
	path, service := cmp.Or(c.path, "/"), fmt.Sprintf("case%d", i)
	ingress("", c.ingress, tls, path, kind, service)
	if len(c.canary) > 0 {
		ingress("-canary", c.canary, "", path, kind, service)
	}
	if c.beside != "" {
		class := slices.DeleteFunc(slices.Clone(c.ingress), func(s string) bool {
			return !strings.HasPrefix(s, "kubernetes.io/ingress.class: ")
		})
		ingress("-beside", class, "", c.beside, "Prefix", "app")
	}
}

// holds repeats the asks until all hold, for a while: HAProxy may not know the case yet.
func (c conformity) holds(ctx context.Context, r *rig.Rig, dir string, i int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 15*time.Second, errors.New("not within 15 s"))
	defer cancel()
	var last error
	err := rig.Eventually(ctx, c.name, func() error {
		for _, a := range c.asks {
			if err := a.hold(ctx, r, dir, i); err != nil {
				if ctx.Err() == nil || last == nil {
					last = fmt.Errorf("%s: %w", a.request, err)
				}
				return last
			}
		}
		return nil
	})
	if err != nil && last != nil {
		return last
	}
	return err
}

// seen is a request as the pod saw it.
type seen struct {
	URL     string      `json:"url"`
	Host    string      `json:"host"`
	Client  string      `json:"client"`
	Proto   string      `json:"proto"`
	TLS     bool        `json:"tls"`
	SNI     string      `json:"sni"`
	Shown   string      `json:"shown"`
	Version string      `json:"version"`
	Cipher  string      `json:"cipher"`
	Headers http.Header `json:"headers"`
}

// hold asks once. What may be wanted:
//
//	200                    the status, 000 if there is no answer
//	location URL           where the answer leads to
//	response Name: value   a header of the answer; "~" stands for any text
//	request Name: value    a header that the pod saw; "(none)" for none
//	url /path              what the pod saw
//	host name              what the pod saw
//	client 192.0.2.1       who the pod saw, but for the port
//	proto HTTP/2.0         what the pod was spoken to in
//	spoken HTTP/2.0        what the client was
//	tls true               whether TLS came to the pod
//	sni name               what it asked for
//	shown name             whose certificate it brought
//	version TLS 1.2        of TLS to the pod
//	cipher TLS_...         of TLS to the pod
func (a ask) hold(ctx context.Context, r *rig.Rig, dir string, i int) error {
	words := strings.Fields(a.request)
	scheme := "http"
	if words[0] == "https" {
		scheme, words = "https", words[1:]
	}
	args := []string{
		"curl", "-s", "-i", "-k", "--http1.1", "--max-time", "5", "-X", words[0], "-H", "Accept: application/json",
		"--connect-to", "::192.168.50.21:",
	}
	for _, h := range a.headers {
		args = append(args, "-H", strings.ReplaceAll(h, "HOST", host(i)))
	}
	for _, c := range a.curl {
		args = append(args, strings.ReplaceAll(c, "DIR", dir))
	}
	name := host(i)
	if a.sni != "" {
		args, name = append(args, "-H", "Host: "+name), a.sni
	}
	out, err := r.Exec(ctx, world.Client, append(args, scheme+"://"+name+words[1])...)
	if err != nil && slices.Equal(a.want, []string{"000"}) {
		return nil
	}
	if err != nil {
		return err
	}
	if rest, ok := strings.CutPrefix(out, "HTTP/2 "); ok { // curl's way to say it
		out = "HTTP/2.0 " + rest
	}
	response, err := http.ReadResponse(bufio.NewReader(strings.NewReader(out)), &http.Request{Method: words[0]}) //nolint:bodyclose // a string
	if err != nil {
		return err
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	var s seen
	if bytes.HasPrefix(body, []byte("{")) {
		if err := json.Unmarshal(body, &s); err != nil {
			return err
		}
	}
	for _, want := range a.want {
		kind, value, _ := strings.Cut(want, " ")
		value = strings.ReplaceAll(value, "HOST", host(i))
		name, _, _ := strings.Cut(value, ": ")
		got := map[string]func() string{
			"location": func() string { return response.Header.Get("Location") },
			"response": func() string { return name + ": " + orNone(response.Header.Values(name)) },
			"request":  func() string { return name + ": " + orNone(s.Headers.Values(name)) },
			"url":      func() string { return s.URL },
			"host":     func() string { return s.Host },
			"client":   func() string { return s.Client[:max(0, strings.LastIndexByte(s.Client, ':'))] },
			"proto":    func() string { return s.Proto },
			"spoken":   func() string { return response.Proto },
			"tls":      func() string { return fmt.Sprint(s.TLS) },
			"sni":      func() string { return s.SNI },
			"shown":    func() string { return s.Shown },
			"version":  func() string { return s.Version },
			"cipher":   func() string { return s.Cipher },
		}[kind]
		if got == nil {
			value, got = kind, func() string { return fmt.Sprint(response.StatusCode) }
		}
		begin, end, open := strings.Cut(value, "~")
		if g := got(); g != value && (!open || !strings.HasPrefix(g, begin) || !strings.HasSuffix(g, end)) {
			return fmt.Errorf("want %s %q, got %q with status %d and %.200q", kind, value, g, response.StatusCode, body)
		}
	}
	return nil
}

func orNone(values []string) string {
	if len(values) == 0 {
		return "(none)"
	}
	return strings.Join(values, " | ")
}
