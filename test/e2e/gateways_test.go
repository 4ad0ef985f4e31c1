package e2e

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"sallyport/appliance/status"
	"sallyport/test/lab/world"
)

// TestGatewaysAreServedOnceTheClusterHasTheCRDs has a configuration file that does not name Gateways, and the
// rights of manifests from before. The appliance runs through all of it.
func TestGatewaysAreServedOnceTheClusterHasTheCRDs(t *testing.T) {
	beside(t, long)
	r := newTestbed(t, world.Options{Name: "gateways", Workers: 1}, settings{})
	file, hint := r.file("sallyport.yaml"), "lacks the rights to read the objects"
	r.must(r.AddGatewayAddresses(t.Context()))
	manifests, err := r.Manifests(t.Context())
	r.must(err)
	r.apply(strings.ReplaceAll(manifests, `"gateway.networking.k8s.io"`, `"nothing.example.com"`))
	r.apply(application("app", 1) + ingress("app", "", "test.local / Prefix app"))
	r.start()
	r.ready()
	ingressIsServed := func() {
		t.Helper()
		r.eventually("the Ingress answers", func() error {
			got, err := r.get("http://test.local/")
			if err == nil && got.Code != 200 {
				err = fmt.Errorf("got %d", got.Code)
			}
			return err
		})
	}
	// troubles returns the findings that are more than a hint, and the lines of the log about Gateway API.
	troubles := func() (all, lines []string) {
		for _, f := range r.mustStatus().Findings {
			if f.Level.Fault() {
				all = append(all, f.Saw)
			}
		}
		for line := range strings.SplitSeq(r.log(), "\n") {
			if strings.Contains(line, "Gateway API") || strings.Contains(line, "gateway.networking") {
				lines = append(lines, line)
			}
		}
		return all, lines
	}
	ingressIsServed()
	if all, lines := troubles(); len(all) > 0 || len(lines) != 1 || !strings.Contains(lines[0], "level=INFO") {
		t.Errorf("without CRDs: %q, and the log has %q", all, lines)
	}
	if err := r.found(file, status.Info, "rights and objects", hint); err == nil {
		t.Error("the doctor has a hint without CRDs")
	}

	r.must(r.DefineGatewayAPI(t.Context(), world.Standard))
	r.finds(file, status.Info, "rights and objects", hint, "sallyport manifests --config "+file+" | kubectl apply -f -")
	r.eventually("the hint is a finding", func() error {
		for _, f := range r.mustStatus().Findings {
			if f.Level == status.Info && strings.Contains(f.Saw, hint) {
				return nil
			}
		}
		return errors.New("there is none")
	})
	ingressIsServed()
	if all, lines := troubles(); len(all) > 0 || len(lines) != 2 || !strings.Contains(lines[1], "level=INFO") {
		t.Errorf("without rights: %q, and the log has %q", all, lines)
	}

	text, _ := r.look()
	r.must(r.tryApply(text))
	r.apply(gateway("web", "{name: http, port: 80, protocol: HTTP}") +
		"---\napiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: other}\n" +
		"spec: {controllerName: example.com/other}\n" +
		strings.Replace(gateway("others", "{name: http, port: 80, protocol: HTTP}"), "gatewayClassName: sallyport",
			"gatewayClassName: other", 1) +
		"---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: web}\nspec:\n" +
		"  parentRefs: [{name: web}]\n  rules: [{backendRefs: [{name: app, port: 80}]}]\n")
	r.eventually("the Gateway says which key is missing", func() error {
		got, err := r.Kubectl(t.Context(), "get", "gateway", "web", "-o", "jsonpath={.status.conditions}")
		if err == nil && !strings.Contains(got, "haproxy.addresses") {
			err = errors.New(got)
		}
		return err
	})
	r.givePool()
	r.must(syscall.Kill(r.Pid(), syscall.SIGHUP))
	r.eventually("the Gateway answers", func() error {
		at, err := r.Kubectl(t.Context(), "get", "gateway", "web", "-o", "jsonpath={.status.addresses[0].value}")
		if err == nil && at == "" {
			err = errors.New("it has no address")
		}
		if err != nil {
			return err
		}
		return r.asks(at + ":80")
	})
	for _, kind := range []string{"gateway/others", "gatewayclass/other"} {
		if got := r.kubectl("get", kind, "-o", "jsonpath={.status.conditions[*].message} {.status.addresses}"); strings.Contains(
			strings.ToLower(got), "sallyport") || strings.Contains(got, "192.168") {
			t.Errorf("%s of another controller has the status %s", kind, got)
		}
	}
	if err := r.found(file, status.Info, "rights and objects", hint); err == nil {
		t.Error("the hint is still there")
	}
	ingressIsServed()
	if all, lines := troubles(); len(all) > 0 || len(lines) != 4 { // the file was read again
		t.Errorf("in the end: %q, and the log has %q", all, lines)
	}
	aTakenPortOpensOnceItIsFree(r)
	gatewaysAreNamed(r)
}

// aTakenPortOpensOnceItIsFree gives Gateway web a second listener, on a port that another program has.
func aTakenPortOpensOnceItIsFree(r *testbed) {
	t := r.t
	t.Helper()
	at := r.kubectl("get", "gateway", "web", "-o", "jsonpath={.status.addresses[0].value}")
	leave := r.squat(at + ":8088")
	says := func(want string) {
		t.Helper()
		r.eventually("the second listener says "+want, func() error {
			got, err := r.Kubectl(t.Context(), "get", "gateway", "web", "-o",
				`jsonpath={range .status.listeners[1].conditions[*]}{.type}={.status} {.reason} {.message}{"\n"}{end}`)
			if err == nil {
				err = missing("its status", got, want)
			}
			return err
		})
	}
	r.apply(gateway("web", "{name: http, port: 80, protocol: HTTP}, {name: taken, port: 8088, protocol: HTTP}"))
	says("Accepted=False PortUnavailable port 8088 of " + at + " is in use by app")
	r.must(r.asks(at + ":80"))
	leave()
	says("Programmed=True")
	r.eventually("the second listener answers", func() error { return r.asks(at + ":8088") })
}

// gatewaysAreNamed asks for names of Gateways in the cluster, and gives the rights and the policy for them.
func gatewaysAreNamed(r *testbed) {
	t := r.t
	t.Helper()
	r.write("sallyport.yaml", r.swapped(r.read("sallyport.yaml"), "kubeconfig: kubeconfig,",
		"kubeconfig: kubeconfig, gateway: {named: true},"))
	r.must(syscall.Kill(r.Pid(), syscall.SIGHUP))
	r.eventually("the status says which right is missing", func() error {
		s, err := r.status()
		if err == nil {
			err = missing("its status", strings.Join(s.Warnings, "\n"), "may not create the Service of a Gateway")
		}
		return err
	})
	text, _ := r.look()
	r.must(r.tryApply(text))
	at := r.kubectl("get", "gateway", "web", "-o", "jsonpath={.status.addresses[0].value}")
	r.eventually("the Gateway has a name", func() error {
		got, err := r.Kubectl(t.Context(), "get", "endpointslices", "-l", "kubernetes.io/service-name=web-sallyport", "-o",
			"jsonpath={.items[*].endpoints[*].addresses[*]}")
		if err == nil && got != at {
			err = fmt.Errorf("the EndpointSlices have %q, want %q", got, at)
		}
		return err
	})
	// The policy holds for the account of the appliance only.
	account := "--as=system:serviceaccount:kube-system:sallyport"
	r.write("stolen.yaml", "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n"+
		"metadata: {name: a-sallyport-ipv4, labels: {kubernetes.io/service-name: app}}\n"+
		"endpoints: [{addresses: [192.0.2.1]}]\n")
	for _, write := range [][]string{
		{"create", "service", "clusterip", "stolen", "--tcp=80"},
		{"delete", "service", "app"},
		{"create", "-f", r.file("stolen.yaml")},
	} {
		_, err := r.Kubectl(t.Context(), append(write, account)...)
		if err == nil || !strings.Contains(err.Error(), "may write only Services and EndpointSlices of Gateways") {
			t.Errorf("kubectl %s by the appliance's account: %v", strings.Join(write, " "), err)
		}
	}
	r.kubectl("create", "service", "clusterip", "mine", "--tcp=80")
	r.kubectl("delete", "service", "web-sallyport", account)
	r.eventually("a name that was deleted comes back", func() error {
		_, err := r.Kubectl(t.Context(), "get", "service", "web-sallyport")
		return err
	})
	r.kubectl("delete", "gateway", "web")
	r.eventually("the name goes with the Gateway", func() error {
		got, err := r.Kubectl(t.Context(), "get", "services,endpointslices", "-l", "app.kubernetes.io/managed-by=sallyport",
			"-o", "name")
		if err == nil && got != "" {
			err = errors.New(got)
		}
		return err
	})
}
