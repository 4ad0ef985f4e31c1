package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// Ingresses of ingress-nginx as clusters have them, ten in a cycle: annotations, and the path. One has a snippet, so
// all its clients are rejected.
var brought = []struct {
	annotations string
	path        string // "" is /
	asks        string // what a client asks for
	status      int
}{
	{asks: "/", status: 200},
	{annotations: "ssl-redirect: 'false'|proxy-body-size: 50m", asks: "/a", status: 200},
	{annotations: "proxy-read-timeout: '600'|proxy-send-timeout: '600'", asks: "/", status: 200},
	{annotations: "use-regex: 'true'|rewrite-target: /$2", path: "/app(/|$)(.*)", asks: "/app/x", status: 200},
	{annotations: "whitelist-source-range: 192.168.0.0/16", asks: "/", status: 200},
	{annotations: "enable-cors: 'true'|cors-allow-origin: 'https://*.example.org'", asks: "/", status: 200},
	{annotations: "affinity: cookie|session-cookie-name: route|session-cookie-max-age: '3600'", asks: "/", status: 200},
	{annotations: "proxy-buffering: 'off'|proxy-buffer-size: 8k|service-upstream: 'true'", asks: "/", status: 200},
	{annotations: "upstream-vhost: web.internal|proxy-next-upstream: error timeout", asks: "/", status: 200},
	{annotations: "configuration-snippet: 'deny all;'", asks: "/", status: 503},
}

// broughtIngress returns the Ingress of a number in a class, or with the status of the controller before if there is no
// class.
func broughtIngress(i int, class, status string) string {
	kind := brought[i%len(brought)]
	var b strings.Builder
	fmt.Fprintf(&b, "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  name: site-%03d\n"+
		"  namespace: default\n", i)
	if class == "" {
		fmt.Fprintf(&b, "status: {loadBalancer: {ingress: [{ip: %s}]}}\n", status)
		return b.String()
	}
	if kind.annotations != "" {
		b.WriteString("  annotations:\n")
		for line := range strings.SplitSeq(kind.annotations, "|") {
			b.WriteString("    nginx.ingress.kubernetes.io/" + line + "\n")
		}
	}
	path, match := "/", "Prefix"
	if kind.path != "" {
		path, match = kind.path, "ImplementationSpecific"
	}
	fmt.Fprintf(&b, "spec: {ingressClassName: %s, rules: [{host: site-%03d.test, http: {paths: [{path: '%s', "+
		"pathType: %s, backend: {service: {name: web, port: {name: web}}}}]}}]}\n", class, i, path, match)
	return b.String()
}

// TestIngressesOfAnotherControllerMoveUnderLoad moves 400 Ingresses of ingress-nginx to a class that is served here, a
// quarter at a time, under load. Their statuses are those of the controller before until all have moved.
func TestIngressesOfAnotherControllerMoveUnderLoad(t *testing.T) {
	beside(t, short)
	const ingresses, parts, before, here = 400, 4, "203.0.113.9", "192.168.50.21"
	configured := func(r *testbed, publish string) {
		r.t.Helper()
		r.must(rig.Configure(r.Dir, "", rig.Cluster{
			Pools: "172.16.0.0/16", Ingress: []string{"nginx: {classes: [moved], controllers: [example.com/moved]}"},
		}))
		r.write("sallyport.yaml", r.swapped(r.read("sallyport.yaml"), "publish: ["+here+"]", "publish: ["+publish+"]"))
	}
	r := newTestbed(t, world.Options{Name: "move", Workers: 1}, settings{})
	configured(r, "")
	of := func(part int, class string) string {
		var b strings.Builder
		for i := part; i < ingresses; i += parts {
			b.WriteString(broughtIngress(i, class, before))
		}
		return b.String()
	}
	objects, statuses := "", ""
	for part := range parts {
		objects += of(part, "nginx")
		statuses += of(part, "")
	}
	r.apply(nginxClass + "---\n" + strings.NewReplacer("name: nginx", "name: moved", "k8s.io/ingress-nginx",
		"example.com/moved").Replace(nginxClass) + application("web", 2) + objects)
	cmd := r.Lab.Kubectl(t.Context(), "apply", "--server-side", "--subresource=status", "--field-manager=before",
		"-f", "-")
	cmd.Stdin = strings.NewReader(statuses)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %.500s", err, out)
	}
	r.start()

	client := &http.Client{Timeout: rig.Limit, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return r.Dial(ctx, world.Client, here+":80")
		},
	}}
	serves := func(moved int) {
		r.t.Helper()
		r.eventually(fmt.Sprintf("%d of %d parts are served", moved, parts), func() (err error) {
			for i := range ingresses {
				kind := brought[i%len(brought)]
				status := kind.status
				if i%parts >= moved {
					status = http.StatusNotFound
				}
				answer, failed := client.Get(fmt.Sprintf("http://site-%03d.test%s", i, kind.asks))
				if failed != nil {
					return failed
				}
				if failed := answer.Body.Close(); failed != nil || answer.StatusCode != status {
					err = errors.Join(err, failed, fmt.Errorf("site-%03d: %s, want %d", i, answer.Status, status))
				}
			}
			return err
		})
	}
	addresses := func() map[string]int {
		out, err := r.Kubectl(t.Context(), "get", "ingresses", "-o", "json")
		r.must(err)
		var list struct {
			Items []struct {
				Status struct {
					LoadBalancer struct{ Ingress []struct{ IP string } }
				}
			}
		}
		r.must(json.Unmarshal([]byte(out), &list))
		all := map[string]int{}
		for _, ing := range list.Items {
			for _, at := range ing.Status.LoadBalancer.Ingress {
				all[at.IP]++
			}
		}
		return all
	}
	r.apply(of(0, "moved"))
	serves(1)
	stop := r.asking("http://site-000.test/", "web")
	for part := 1; part < parts; part++ {
		r.apply(of(part, "moved"))
		serves(part + 1)
	}
	if got := addresses(); len(got) != 1 || got[before] != ingresses {
		t.Errorf("without publish the statuses have %v, want %s in all", got, before)
	}
	configured(r, here)
	r.must(syscall.Kill(r.Pid(), syscall.SIGHUP))
	r.eventually("the statuses have the address of the appliance", func() error {
		if got := addresses(); len(got) != 1 || got[here] != ingresses {
			return fmt.Errorf("they have %v", got)
		}
		return nil
	})
	serves(parts)
	stop()
}
