package appliance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"sallyport/appliance/config"
	"sallyport/appliance/status"
	"sallyport/haproxy"
	"sallyport/ingress/input"
)

const gatewayAt = "203.0.113.5"

// read reads an object in YAML.
func read[T any](t testing.TB, text string) *T {
	t.Helper()
	object := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), object); err != nil {
		t.Fatal(err)
	}
	return object
}

// gated returns a scene with a Gateway and two routes. One of its two listeners lacks the certificate.
// The Gateway does not allow one of the routes. worker2 announces nothing.
func gated(t *testing.T) *scene {
	t.Helper()
	s := newScene(t)
	s.speaker.state = established
	s.speaker.announce(block1, node1)
	s.cfg.HAProxy.Addresses = []config.Pool{{First: netip.MustParseAddr(gatewayAt), Last: netip.MustParseAddr(gatewayAt)}}
	s.kernel.held = addrs(gatewayAt)
	snapshot := &s.watcher.snapshot
	snapshot.Options.Gateway = input.GatewayOptions{Enabled: true, Controller: "sallyport.dev/gateway"}
	snapshot.Options.Pools = PoolsOf(s.cfg)
	snapshot.API.Classes = []*gatewayv1.GatewayClass{read[gatewayv1.GatewayClass](t, `
metadata: {name: sallyport, uid: class}
spec: {controllerName: sallyport.dev/gateway}`)}
	snapshot.API.Gateways = []*gatewayv1.Gateway{read[gatewayv1.Gateway](t, `
metadata: {name: web, namespace: default, uid: gateway}
spec:
  gatewayClassName: sallyport
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: https, port: 443, protocol: HTTPS, hostname: "*.shop.example", tls: {certificateRefs: [{name: none}]}}
status: {addresses: [{type: IPAddress, value: 203.0.113.5}]}`)}
	snapshot.API.HTTPRoutes = []*gatewayv1.HTTPRoute{
		read[gatewayv1.HTTPRoute](t, `
metadata: {name: app, namespace: default, uid: app}
spec:
  parentRefs: [{name: web, sectionName: http}]
  hostnames: [www.shop.example]
  rules:
  - matches: [{headers: [{name: x-canary, value: "yes"}]}]
    filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x-from, value: canary}]}}]
    backendRefs: [{name: web, port: 80, weight: 3}, {name: gone, port: 80, weight: 1}]
  - backendRefs: [{name: web, port: 80}]`),
		read[gatewayv1.HTTPRoute](t, `
metadata: {name: stranger, namespace: other, uid: stranger}
spec: {parentRefs: [{name: web, namespace: default}], rules: [{backendRefs: [{name: web, port: 80}]}]}`),
	}
	for s.settle(t); !s.view.Load().Gateways()[0].Listeners[0].Programmed; s.settle(t) {
		select {
		case <-s.vetter.changed: // HAProxy says whether the port is free
		case <-time.After(time.Minute):
			t.Fatal("the listener is never programmed")
		}
	}
	s.settle(t)
	return s
}

var tags = regexp.MustCompile(`<[^>]*>`)

// words returns a page as a person reads it.
func words(page string) string {
	return strings.Join(strings.Fields(html.UnescapeString(tags.ReplaceAllString(page, " "))), " ")
}

// What is wrong with Gateways and routes is in the status, on the pages and in the metrics, in the
// same words.
func TestEveryVoiceSpeaksOfGateways(t *testing.T) {
	h, _ := endpoint(gated(t))
	for path, want := range map[string][]string{
		"/": {
			"Gateways", "default/web", "203.0.113.5", "*.shop.example", "there is no Secret default/none",
			"Routes of Gateways", "httproute/other/stranger", "NotAllowedByListeners",
			"allowedRoutes of the listener takes no HTTPRoute of namespace other",
		},
		"/gateways?state=broken":            {"https", "no", "InvalidCertificateRef"},
		"/gateways?q=nowhere":               {"none that matches"},
		"/gateway-routes?q=www.shop":        {"httproute/default/app", "default/web"},
		"/gateway/demo/default/web":         {"Gateway default/web", "Listeners", "Conditions", "listener https", "ResolvedRefs"},
		"/search?q=stranger":                {"httproute/other/stranger"},
		"/problems":                         {"Gateway default/web", "listener https: there is no Secret default/none"},
		"/backend/demo__default_svc_web_80": {"Gateway at 203.0.113.5:80"},
		"/route/demo/httproute/default/app": {
			"HTTPRoute default/app", "attached to listener http of Gateway default/web", `header x-canary = "yes"`,
			"RequestHeaderModifier: set x-from", "% to invalid", "no route to 172.16.189.66", "BackendNotFound",
		},
		"/metrics": {
			`sallyport_gateways{cluster="demo",programmed="false"} 1`,
			`sallyport_gateway_listeners{cluster="demo",programmed="false"} 1`,
			`sallyport_gateway_listeners{cluster="demo",programmed="true"} 1`,
			`sallyport_gateway_routes{cluster="demo",reason="Accepted"} 1`,
			`sallyport_gateway_routes{cluster="demo",reason="NotAllowedByListeners"} 1`,
			`sallyport_problems{cluster="demo",reason="NotAllowedByListeners"} 1`,
		},
	} {
		code, text := ask(t, h, path)
		if code != http.StatusOK {
			t.Errorf("%s answers %d", path, code)
		}
		for _, w := range want {
			if got := words(text); !strings.Contains(got, w) {
				t.Errorf("%s does not say %q: %s", path, w, got[:min(len(got), 3000)])
			}
		}
	}
	for _, path := range []string{"/gateway/demo/default/none", "/route/demo/gateway/default/web", "/route/demo/httproute/default/x"} {
		if code, _ := ask(t, h, path); code != http.StatusNotFound {
			t.Errorf("%s answers %d, want 404", path, code)
		}
	}
	var got status.Status
	_, text := ask(t, h, "/status")
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Gateways) != 1 || len(got.Gateways[0].Listeners) != 2 || !got.Gateways[0].Listeners[0].Programmed ||
		got.Gateways[0].Listeners[0].Routes != 1 || len(got.GatewayRoutes) != 2 {
		t.Errorf("got %+v and %+v", got.Gateways, got.GatewayRoutes)
	}
}

// A listener that stays closed is a finding of its cluster, and not before it had time to open.
func TestAListenerThatStaysClosedIsAFinding(t *testing.T) {
	s := gated(t)
	warned := func() bool {
		return s.warns("1 listener of Gateways is not served, default/web https: there is no Secret")
	}
	if warned() {
		t.Error("it warns at once")
	}
	s.clock = s.clock.Add(status.Patience)
	if s.settle(t); !warned() {
		t.Errorf("no warning in %q", s.view.Load().Warnings)
	}
	s.watcher.snapshot.API.Gateways = nil
	if s.settle(t); warned() {
		t.Error("it warns of a Gateway that is gone")
	}
}

// A listener is not programmed while HAProxy lacks it.
func TestAListenerThatWaitsForAReloadIsNotProgrammed(t *testing.T) {
	s := gated(t)
	v := *s.view.Load()
	v.Have.Listeners = nil
	if l := v.Gateways()[0].Listeners[0]; l.Programmed || l.Reason != "Pending" {
		t.Errorf("got %+v", l)
	}
}

// A squatted HAProxy cannot have port 80 of the Gateway while another program has it.
type squatted struct {
	proxy
	taken *atomic.Bool
}

func (s squatted) Vet(ctx context.Context, questions []haproxy.Question) (haproxy.Verdicts, error) {
	verdicts, err := s.proxy.Vet(ctx, questions)
	for part := range verdicts {
		if s.taken.Load() && part == haproxy.FreeListener(netip.MustParseAddrPort(gatewayAt+":80")).Part() {
			verdicts[part] = haproxy.Refused("in use by nginx (pid 714)")
		}
	}
	return verdicts, err
}

func (s squatted) Apply(ctx context.Context, c *haproxy.Config, states haproxy.States) (haproxy.Result, error) {
	if s.taken.Load() && len(c.Listeners) > 0 {
		return haproxy.Result{}, errors.New("cannot bind")
	}
	return s.proxy.Apply(ctx, c, states)
}

// Another program takes the port before HAProxy does, and leaves it later.
func TestAListenerOpensOnceItsPortIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, taken := gated(t), new(atomic.Bool)
		s.loop.proxy = squatted{s.proxy, taken}
		s.vetter.proxy = s.loop.proxy
		listener := func() string {
			for range 3 { // it fails, asks, and uses the answer
				s.clock = s.clock.Add(portsEvery)
				s.settle(t)
				synctest.Wait()
			}
			v := s.view.Load()
			l := v.Gateways()[0].Listeners[0]
			return fmt.Sprint(l.Programmed, l.Reason, v.Err)
		}
		taken.Store(true)
		s.applied = applied{}
		if got, want := listener(), fmt.Sprint(false, "PortUnavailable", error(nil)); got != want {
			t.Errorf("while another program has it: got %s, want %s", got, want)
		}
		taken.Store(false)
		if got, want := listener(), fmt.Sprint(true, "", error(nil)); got != want {
			t.Errorf("once it is free: got %s, want %s", got, want)
		}
	})
}

// The explanation of a request names the rule and the match that decide.
func TestARequestToAGatewayIsExplained(t *testing.T) {
	h, _ := endpoint(gated(t))
	explain := func(query url.Values) (status.ExplainStatus, string) {
		_, text := ask(t, h, "/explain?"+query.Encode())
		var e status.ExplainStatus
		_ = json.Unmarshal([]byte(text), &e) // else it is an error in words
		return e, text
	}
	at := func(headers ...string) url.Values {
		return url.Values{"request": {"www.shop.example/x?y"}, "to": {gatewayAt + ":80"}, "header": headers}
	}
	canary, _ := explain(at("X-Canary: yes"))
	if len(canary.Rules) != 1 || canary.Rules[0].Rule != 1 || canary.Rules[0].When != `header x-canary = "yes"` ||
		canary.Rules[0].Backend != "75 % to demo__default_svc_web_80.r-"+hashIn(canary.Rules[0].Backend)+", 25 % to invalid" ||
		canary.Ingress.Name != "app" || len(canary.Servers) != 1 || canary.Servers[0].Open != 1 ||
		!strings.HasPrefix(canary.Servers[0].Servers[1].Why, "no route to 172.16.189.66") {
		t.Errorf("the canary: got %+v", canary)
	}
	plain, _ := explain(at("X-Canary: no"))
	if len(plain.Rules) != 1 || plain.Rules[0].Rule != 2 || plain.Rules[0].When != "" ||
		plain.Rules[0].Backend != "demo__default_svc_web_80" || plain.Request != "GET www.shop.example/x?y at 203.0.113.5:80" {
		t.Errorf("without the header: got %+v", plain)
	}
	for name, row := range map[string]struct {
		query url.Values
		want  string
	}{
		"another host": {
			url.Values{"request": {"else.example/"}, "to": {gatewayAt + ":80"}}, "no match of a route takes the request",
		},
		"a port without a listener": {
			url.Values{"request": {"www.shop.example/"}, "to": {gatewayAt + ":81"}}, "no Gateway has a listener",
		},
		"an Ingress' address": {url.Values{"request": {"www.shop.example/"}}, "add --to ADDRESS"},
		"an unknown route":    {url.Values{"object": {"httproute/default/none"}}, "no httproute default/none is served here"},
		"a Gateway": {
			url.Values{"object": {"gateway/default/web"}}, "haproxy.addresses[0]",
		},
		"names":       {url.Values{"complete": {""}}, "httproute/"},
		"longer ones": {url.Values{"complete": {"httproute/default/"}}, "httproute/default/app"},
	} {
		if _, text := explain(row.query); !strings.Contains(text, row.want) {
			t.Errorf("%s: got %s, want %q", name, text, row.want)
		}
	}
}

// hashIn returns the hash in the name of a backend with effects of a rule.
func hashIn(text string) string {
	_, rest, _ := strings.Cut(text, ".r-")
	hash, _, _ := strings.Cut(rest, ",")
	return hash
}
