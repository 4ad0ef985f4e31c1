package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/test/lab/world"
	"sallyport/test/manual"
	"sallyport/test/rig"
)

// nginxClass is the IngressClass of ingress-nginx.
const nginxClass = `apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: nginx}
spec: {controller: k8s.io/ingress-nginx}
`

// oidcPage is the page with sign-in by oauth2-proxy.
const oidcPage = "ingress/OIDC.md"

// A browser is a client on the client's host that keeps cookies. Each host of example.com is the
// appliance.
type browser struct {
	http.Client

	t    *testing.T
	seen []string // the URLs, without queries, to which the last request led
}

// newBrowser returns a browser without cookies, which speaks HTTP/2.
func newBrowser(t *testing.T, r *testbed) *browser {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{t: t}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			if host, port, _ := net.SplitHostPort(address); strings.HasSuffix(host, ".example.com") {
				address = "192.168.50.21:" + port
			}
			return r.Dial(ctx, world.Client, address)
		},
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // certificates of the test
		ForceAttemptHTTP2: true,
	}
	t.Cleanup(transport.CloseIdleConnections)
	b.Client = http.Client{Transport: transport, Jar: jar, Timeout: 30 * time.Second}
	b.CheckRedirect = func(request *http.Request, _ []*http.Request) error {
		b.seen = append(b.seen, request.URL.Scheme+"://"+request.URL.Host+request.URL.Path)
		return nil
	}
	return b
}

// ask sends a request, and follows redirects if it may. Headers are "name: value". It also returns the
// cookies that the answer sets.
func (b *browser) ask(follow bool, method, address string, headers ...string) ([]*http.Cookie, reply, error) {
	b.t.Helper()
	b.seen = nil
	request, err := http.NewRequestWithContext(b.t.Context(), method, address, http.NoBody)
	if err != nil {
		return nil, reply{}, err
	}
	request.Header.Set("Accept", "application/json")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		request.Header[name] = append(request.Header[name], value)
	}
	client := b.Client
	if !follow {
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, reply{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	answer := reply{Code: response.StatusCode, Location: response.Header.Get("Location")}
	if json.Unmarshal(body, &answer) != nil {
		answer.Pod = ""
	}
	return response.Cookies(), answer, err
}

// expect waits until a request, whose redirects are not followed, has a status. It returns the answer.
func (b *browser) expect(r *testbed, code int, method, address string, headers ...string) (answer reply) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("%s %s is answered %d", method, address, code), func() (err error) {
		_, answer, err = b.ask(false, method, address, headers...)
		if err == nil && answer.Code != code {
			err = fmt.Errorf("it is answered %d", answer.Code)
		}
		return err
	})
	return answer
}

// session returns the names of the cookies that a host gets.
func (b *browser) session(host string) (names []string) {
	for _, c := range b.Jar.Cookies(&url.URL{Scheme: "https", Host: host, Path: "/"}) {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	return names
}

// signIn opens a page of a host without a session, and holds the way of the browser to that of a sign-in.
func (b *browser) signIn(r *testbed, host, login, issuer string) {
	r.t.Helper()
	page := "https://" + host + "/a?b=c&d=e%26f"
	first := b.expect(r, 302, "GET", page, "X-Auth-Request-Email: eve@example.com")
	if want := "/oauth2/start?rd="; !strings.Contains(first.Location, want) {
		r.t.Errorf("without a session the browser is led to %s, want %s", first.Location, want)
	}
	_, answer, err := b.ask(true, "GET", page)
	r.must(err)
	want := []string{
		"https://" + login + "/oauth2/start", issuer + "/authorize", "https://" + login + "/oauth2/callback",
		"https://" + host + "/a",
	}
	if !slices.Equal(b.seen, want) || answer.Code != 200 || answer.URL != "/a?b=c&d=e%26f" {
		r.t.Fatalf("a sign-in leads over %q to %d %s, want %q and the page itself", b.seen, answer.Code, answer.URL, want)
	}
	if got := answer.Headers["X-Auth-Request-Email"]; !slices.Equal(got, []string{"ann@example.com"}) {
		r.t.Errorf("the application gets the user %q", got)
	}
	if got := b.session(host); !slices.Contains(got, "_oauth2_proxy_0") || !slices.Contains(got, "_oauth2_proxy_1") {
		r.t.Errorf("the session has the cookies %q, want it split in several", got)
	}
}

// fences returns the YAML on a page, in its order.
func fences(t *testing.T, page string) (all []string) {
	t.Helper()
	text, err := os.ReadFile("../../" + page)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		all = append(all, m[1])
	}
	return all
}

// annotated returns an Ingress with other annotations, which a page shows, and at another host.
func annotated(ingress, name, host, annotations string) string {
	before, rest, _ := strings.Cut(ingress, "  annotations:\n")
	_, spec, _ := strings.Cut(rest, "spec:\n")
	text := before + "  annotations:\n    " + strings.ReplaceAll(strings.TrimSpace(annotations), "\n", "\n    ") +
		"\nspec:\n" + spec
	text = strings.ReplaceAll(text, "web.example.com", host)
	return strings.NewReplacer("  name: web\n", "  name: "+name+"\n", "secretName: web-tls", "secretName: "+name+
		"-tls").Replace(text)
}

// Types the page with oauth2-proxy: the objects there are applied as they stand, but for the provider.
func TestABrowserSignsInThroughOAuth2Proxy(t *testing.T) {
	beside(t, short)
	program, err := world.OAuth2Proxy(t.Context(), testWriter{t})
	if err != nil {
		t.Fatal(err)
	}
	r := newTestbed(t, world.Options{
		Name: "oidc", Workers: 1,
		Images: map[string]string{"quay.io/oauth2-proxy/oauth2-proxy:v7.8.1": program},
	}, settings{clusters: []rig.Cluster{{Ingress: []string{
		"authServices: [login/oauth2-proxy]", "nginx: {classes: [nginx]}",
	}}}})
	socket, err := r.Listen(t.Context(), "worker1", "192.168.50.23:0")
	r.must(err)
	p := serveProvider(t, socket, "SECRET", map[string]any{
		"sub": "1234", "email": "ann@example.com", "email_verified": true, "groups": []string{"staff", "shop"},
	})
	page := fences(t, oidcPage)
	if len(page) != 5 {
		t.Fatalf("the page has %d parts in YAML, want 5", len(page))
	}
	for i := range page {
		page[i] = strings.NewReplacer("https://provider.example.com", p.issuer, "--cookie-refresh=5m",
			"--cookie-refresh=1s").Replace(page[i])
	}
	proxy, web, arguments, shared, nginx := page[0], page[1], page[2], page[3], page[4]
	r.secretOfTheClient("default")
	r.apply(application("web", 1) + secret(t, "web-tls", "web.example.com") + "---\n" + proxy + "---\n" + web)
	r.start()
	r.ready()

	b := newBrowser(t, r)
	r.sub("a browser signs in", func(_ *testing.T, r *testbed) {
		b.signIn(r, "web.example.com", "web.example.com", p.issuer)
	})
	r.sub("a session admits, and the client's own words about the user do not count", func(_ *testing.T, r *testbed) {
		answer := b.expect(r, 200, "GET", "https://web.example.com/", "X-Auth-Request-User: root",
			"X_Auth_Request_User: root", "X-Auth-Request-Groups: wheel", "X-Auth-Request-Email: root@example.com")
		for name, want := range map[string]string{
			"X-Auth-Request-User": "1234", "X-Auth-Request-Email": "ann@example.com",
			"X-Auth-Request-Groups": "staff,shop", "X_auth_request_user": "",
		} {
			if got := strings.Join(answer.Headers[name], ","); got != want {
				r.t.Errorf("the application gets %s: %q, want %q", name, got, want)
			}
		}
	})
	r.sub("a session is renewed with a large answer, in all its cookies", func(t *testing.T, r *testbed) {
		r.eventually("the browser gets the cookies of a renewed session", func() error {
			before := p.renewed.Load()
			cookies, answer, err := b.ask(false, "GET", "https://web.example.com/bytes?n=300000")
			if err != nil || p.renewed.Load() == before {
				return errors.Join(err, errors.New("it is not renewed yet"))
			}
			if want := len(b.session("web.example.com")); answer.Code != 200 || len(cookies) < want {
				t.Errorf("the session is renewed, and the answer %d has %d of its %d cookies", answer.Code, len(cookies), want)
			}
			return nil
		})
		b.expect(r, 200, "GET", "https://web.example.com/")
	})
	r.sub("no request without a session reaches the application", func(_ *testing.T, r *testbed) {
		stranger := newBrowser(t, r)
		stranger.expect(r, 302, "POST", "https://web.example.com/fail", "X-Auth-Request-User: 1234",
			"X-Auth-Request-Email: ann@example.com", "Cookie: _oauth2_proxy_0=forged; _oauth2_proxy_1=forged")
		b.expect(r, 200, "GET", "https://web.example.com/healthz")
	})
	r.sub("without oauth2-proxy the application is closed", func(_ *testing.T, r *testbed) {
		r.kubectl("scale", "deployment", "oauth2-proxy", "--replicas", "0")
		b.expect(r, 503, "GET", "https://web.example.com/healthz") // until then the session admits
		b.expect(r, 503, "POST", "https://web.example.com/fail")
		r.kubectl("scale", "deployment", "oauth2-proxy", "--replicas", "1")
		b.expect(r, 200, "GET", "https://web.example.com/healthz")
	})
	r.sub("a sign-out ends the session", func(_ *testing.T, r *testbed) {
		answer := b.expect(r, 302, "GET", "https://web.example.com/oauth2/sign_out?rd=/")
		if got := b.session("web.example.com"); answer.Location != "/" || len(got) > 0 {
			r.t.Errorf("a sign-out leads to %q and leaves the cookies %q", answer.Location, got)
		}
		b.expect(r, 302, "GET", "https://web.example.com/")
	})
	r.sub("with the annotations of ingress-nginx", func(t *testing.T, r *testbed) {
		old := annotated(web, "old", "old.example.com", nginx)
		path := regexp.MustCompile(`(?s).*\n---\n`).ReplaceAllString(proxy, "")
		path = strings.NewReplacer("web.example.com", "old.example.com", "web-tls", "old-tls", "name: oauth2-proxy}\nspec",
			"name: oauth2-proxy-old}\nspec").Replace(path)
		r.apply(nginxClass + secret(t, "old-tls", "old.example.com") + "\n---\n" +
			strings.Replace(old, "ingressClassName: haproxy", "ingressClassName: nginx", 1) + "\n---\n" + path)
		newBrowser(t, r).signIn(r, "old.example.com", "old.example.com", p.issuer)
	})
	r.sub("at a host of its own", func(t *testing.T, r *testbed) {
		r.kubectl("create", "namespace", "login")
		r.secretOfTheClient("login")
		own := strings.NewReplacer("web.example.com", "login.example.com", "web-tls", "login-tls",
			"        env:\n", "        "+strings.ReplaceAll(strings.TrimSpace(arguments), "\n", "\n        ")+"\n        env:\n",
		).Replace(proxy)
		r.apply(annotated(web, "shop", "shop.example.com", shared) + "\n---\n" + secret(t, "shop-tls", "shop.example.com"))
		r.must(r.tryApply(own+"\n"+secret(t, "login-tls", "login.example.com"), "--namespace", "login"))
		newBrowser(t, r).signIn(r, "shop.example.com", "login.example.com", p.issuer)
	})
}

// secretOfTheClient types the command of the page that makes the Secret of oauth2-proxy, in a namespace.
func (r *testbed) secretOfTheClient(namespace string) {
	r.t.Helper()
	all, err := manual.All("../..")
	r.must(err)
	i := slices.IndexFunc(all, func(c manual.Command) bool { return c.Page == oidcPage })
	if i < 0 {
		r.t.Fatalf("%s has no command", oidcPage)
	}
	kubectl := strings.Join(r.Lab.Kubectl(r.t.Context(), "--namespace", namespace).Args, "' '")
	script := "kubectl() { '" + kubectl + "' \"$@\"; }\n" + all[i].Text
	if out, err := exec.CommandContext(r.t.Context(), "sh", "-ec", script).CombinedOutput(); err != nil {
		r.t.Fatalf("%s: %v\n%s", all[i], err, out)
	}
}
