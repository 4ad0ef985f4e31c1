package e2e

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"sallyport/appliance/status"
	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// TestGatewaysAreServedOnceTheClusterHasTheCRDs has a configuration file that does not name Gateways, and the
// rights of manifests from before. The appliance runs through all of it.
func TestGatewaysAreServedOnceTheClusterHasTheCRDs(t *testing.T) {
	t.Parallel()
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
	r.write("sallyport.yaml", r.swapped(r.read("sallyport.yaml"), "haproxy: {", "haproxy: {addresses: ["+rig.GatewayPool+"], "))
	r.must(syscall.Kill(r.Pid(), syscall.SIGHUP))
	r.eventually("the Gateway answers", func() error {
		at, err := r.Kubectl(t.Context(), "get", "gateway", "web", "-o", "jsonpath={.status.addresses[0].value}")
		if err == nil && at == "" {
			err = errors.New("it has no address")
		}
		if err != nil {
			return err
		}
		return r.asks(at)
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
}
