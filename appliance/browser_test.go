package appliance

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sallyport/appliance/config"
	"sallyport/appliance/group"
	"sallyport/appliance/page"
	"sallyport/haproxy"
	"sallyport/routes"

	"sallyport/appliance/status"

	"sallyport/appliance/pages"
)

// A browser is a headless Chromium, driven by the DevTools protocol over a pipe.
type browser struct {
	t       *testing.T
	to      *os.File
	session string
	ended   chan struct{} // closed once the process has ended
	said    string        // the file with its standard error

	mu      sync.Mutex
	next    int
	answers map[int]chan json.RawMessage
	errors  []string // of the pages' consoles
}

// newBrowser starts a browser that ends with the test. Once in thousands of starts, Chromium ends before its first
// answer: then newBrowser logs what it wrote, and starts another one, at most three in all.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	for try := 1; ; try++ {
		b := launch(t)
		created, err := b.ask("Target.createTarget", map[string]any{"url": "about:blank"})
		if err != nil {
			if try == 3 {
				t.Fatal(err)
			}
			t.Log(err)
			continue
		}
		b.session = field[string](t, b.call("Target.attachToTarget",
			map[string]any{"targetId": field[string](t, created, "targetId"), "flatten": true}), "sessionId")
		for _, domain := range []string{"Page", "Runtime", "Log", "Accessibility"} {
			b.call(domain+".enable", nil)
		}
		return b
	}
}

// launch starts the process of a browser, which ends with the test.
func launch(t *testing.T) *browser {
	t.Helper()
	in, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	said, err := os.Create(filepath.Join(dir, "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", //nolint:noctx // t.Context ends before the cleanup, which ends it
		"--hide-scrollbars", "--no-first-run", "--disable-background-networking", "--disable-extensions",
		"--user-data-dir="+filepath.Join(dir, "user"), "--remote-debugging-pipe")
	cmd.Stderr, cmd.ExtraFiles = said, []*os.File{in, out} // descriptors 3 and 4
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: make setup installs Chromium", err)
	}
	for _, theirs := range []*os.File{in, out, said} {
		theirs.Close()
	}
	b := &browser{
		t: t, to: to, ended: make(chan struct{}), said: said.Name(), answers: map[int]chan json.RawMessage{},
	}
	go b.read(from)
	go func() {
		_ = cmd.Wait()
		close(b.ended)
	}()
	t.Cleanup(func() {
		b.session = ""
		_, _ = b.ask("Browser.close", nil)
		<-b.ended
	})
	return b
}

// read hands each answer to the call that waits for it, and notes what the pages' consoles
// report.
func (b *browser) read(from *os.File) {
	for r := bufio.NewReaderSize(from, 1<<20); ; {
		text, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var m struct {
			ID     int
			Method string
			Result json.RawMessage
			Error  *struct{ Message string }
			Params struct {
				Entry            struct{ Level, Text, URL string }
				ExceptionDetails json.RawMessage
			}
		}
		if err := json.Unmarshal(text[:len(text)-1], &m); err != nil {
			continue
		}
		b.mu.Lock()
		switch {
		case m.ID != 0:
			if m.Error != nil {
				m.Result, _ = json.Marshal(map[string]string{"failed": m.Error.Message})
			}
			b.answers[m.ID] <- m.Result
			delete(b.answers, m.ID)
		case m.Method == "Log.entryAdded" && m.Params.Entry.Level == "error":
			b.errors = append(b.errors, m.Params.Entry.Text+" "+m.Params.Entry.URL)
		case m.Method == "Runtime.exceptionThrown":
			b.errors = append(b.errors, string(m.Params.ExceptionDetails))
		}
		b.mu.Unlock()
	}
}

// call gives the browser a command, and returns its answer.
func (b *browser) call(method string, params any) json.RawMessage {
	b.t.Helper()
	result, err := b.ask(method, params)
	if err != nil {
		b.t.Fatal(err)
	}
	return result
}

// ask does as call, and returns an error if the browser has ended or does not answer.
func (b *browser) ask(method string, params any) (json.RawMessage, error) {
	b.mu.Lock()
	b.next++
	answer := make(chan json.RawMessage, 1)
	b.answers[b.next] = answer
	command := map[string]any{"id": b.next, "method": method, "params": params}
	if b.session != "" {
		command["sessionId"] = b.session
	}
	text, err := json.Marshal(command)
	if err == nil {
		_, err = b.to.Write(append(text, 0))
	}
	b.mu.Unlock()
	if err != nil && !errors.Is(err, syscall.EPIPE) {
		return nil, err
	}
	select {
	case result := <-answer:
		return result, nil
	case <-b.ended:
		said, _ := os.ReadFile(b.said)
		return nil, fmt.Errorf("%s: the browser has ended, and wrote: %s", method, said)
	case <-time.After(10 * time.Minute): // beside end-to-end tests it gets little of the processor
		return nil, fmt.Errorf("%s: the browser does not answer", method)
	}
}

func field[T any](t *testing.T, text json.RawMessage, name string) (value T) {
	t.Helper()
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil || fields[name] == nil {
		t.Fatalf("no %s in %s", name, text)
	}
	if err := json.Unmarshal(fields[name], &value); err != nil {
		t.Fatal(err)
	}
	return value
}

// eval returns the value of a JavaScript expression, awaited if it is a promise. It evaluates the
// expression again if the page loads itself again meanwhile.
func (b *browser) eval(expression string) json.RawMessage {
	b.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		answer := b.call("Runtime.evaluate",
			map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true})
		var r struct {
			Result           struct{ Value json.RawMessage }
			ExceptionDetails json.RawMessage
			Failed           string
		}
		err := json.Unmarshal(answer, &r)
		if err == nil && r.ExceptionDetails == nil && r.Failed == "" {
			return r.Result.Value
		}
		if r.Failed == "" || time.Now().After(deadline) {
			b.t.Fatalf("%.80s: %s", expression, answer)
		}
	}
}

// until waits until a JavaScript expression is true.
func (b *browser) until(expression string) {
	b.t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); string(b.eval("!!("+expression+")")) != "true"; {
		if time.Now().After(deadline) {
			b.t.Fatalf("never: %s\n%s", expression, b.eval("document.body.innerText"))
		}
	}
}

// A look is how somebody sees a page.
type look struct {
	name          string
	width, height int
	scheme        string
	script        bool
}

var looks = []look{
	{"light", 1280, 800, "light", true},
	{"dark", 1280, 800, "dark", true},
	{"telephone", 360, 740, "light", true},
	{"telephone-dark", 360, 740, "dark", true},
	{"no-script", 1280, 800, "light", false},
}

// open opens a page with a look, and waits until it is drawn.
func (b *browser) open(l look, url string) {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride",
		map[string]any{"width": l.width, "height": l.height, "deviceScaleFactor": 1, "mobile": l.width < 500})
	b.call("Emulation.setEmulatedMedia",
		map[string]any{"features": []map[string]string{
			{"name": "prefers-color-scheme", "value": l.scheme},
			{"name": "prefers-reduced-motion", "value": "reduce"},
		}})
	b.call("Emulation.setScriptExecutionDisabled", map[string]any{"value": !l.script})
	b.call("Page.navigate", map[string]any{"url": url})
	b.until(fmt.Sprintf("location.href === %q && document.readyState === 'complete'", url))
}

// shoot keeps a picture of the whole page as an artefact.
func (b *browser) shoot(name string) {
	b.t.Helper()
	data := field[string](b.t, b.call("Page.captureScreenshot", map[string]any{"captureBeyondViewport": true}), "data")
	png, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		b.t.Fatal(err)
	}
	dir := filepath.Join("..", ".build", "screenshots")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// site serves the pages of a scene. Each request has an address of its own: on a busy machine, the streams
// of pages that the browser has left would fill the room of one address.
func site(t *testing.T, s *scene) (url string) {
	t.Helper()
	h, _ := endpoint(s)
	var requests atomic.Uint32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := requests.Add(1)
		r.RemoteAddr = fmt.Sprintf("10.%d.%d.%d:1", byte(n>>16), byte(n>>8), byte(n))
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		server.CloseClientConnections() // streams end only then
		server.Close()
	})
	return server.URL
}

// wide returns a scene with n nodes, each with a block and a pod of each of ten Services.
// The session with every fortieth node from the seventh on is down.
func wide(t testing.TB, n int) *scene {
	t.Helper()
	s := newScene(t)
	one := s.watcher.snapshot
	all := one
	all.Ingresses, all.Services, all.Slices = nil, nil, nil
	all.Topology.Nodes, all.Topology.Affinities, all.Topology.Blocks = nil, nil, nil
	slice := one.Slices[0].DeepCopy()
	slice.Endpoints = nil
	for i := range n {
		name := fmt.Sprintf("worker%d", i+1)
		node := netip.AddrFrom4([4]byte{192, 168, byte(50 + i/200), byte(23 + i%200)})
		block := netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(i / 4), byte(i % 4 * 64)}), 26)
		all.Topology.Nodes = append(all.Topology.Nodes,
			routes.Node{
				Name: name, ASN: 65000, BGP: []netip.Prefix{netip.PrefixFrom(node, 16)},
				Addresses: []netip.Addr{node},
			})
		all.Topology.Affinities = append(all.Topology.Affinities,
			routes.Affinity{Name: block.String(), Node: name, Prefix: block, State: "confirmed"})
		all.Topology.Blocks = append(all.Topology.Blocks,
			&routes.IPAMBlock{Prefix: block, Affinity: "host:" + name, Pods: podsOf(block.String())})
		endpoint := *one.Slices[0].Endpoints[0].DeepCopy()
		endpoint.Addresses, endpoint.NodeName = []string{block.Addr().Next().String()}, &name
		endpoint.TargetRef = &corev1.ObjectReference{
			Kind: "Pod", Namespace: "default",
			Name: fmt.Sprintf("web-7f9c6d-%05d", i),
		}
		slice.Endpoints = append(slice.Endpoints, endpoint)
		if i%40 != 6 {
			s.speaker.announce(block.String(), node.String())
		} else {
			s.speaker.down[node] = true
		}
	}
	for i := range 10 {
		ing, svc, of := one.Ingresses[0].DeepCopy(), one.Services[0].DeepCopy(), slice.DeepCopy()
		name := []string{"web", "shop", "api", "login", "search", "images", "mail", "docs", "metrics", "chat"}[i]
		ing.Name, svc.Name, of.Name, of.Labels[discoveryv1.LabelServiceName] = name, name, name, name
		ing.Spec.Rules[0].Host = name + ".example.com"
		ing.Spec.Rules[0].HTTP.Paths[0].Backend.Service.Name = name
		all.Ingresses, all.Services, all.Slices = append(all.Ingresses, ing), append(all.Services, svc),
			append(all.Slices, of)
	}
	s.speaker.state = established
	s.cfg.Identity = "gate-1"
	s.cfg.HAProxy.HTTP, s.cfg.HAProxy.HTTPS = []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:80")},
		[]netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:443")}
	s.kernel.networks = prefixes("192.168.0.0/16")
	s.watcher.snapshot = all
	s.settle(t)
	s.clock = s.clock.Add(time.Hour)
	s.round(t.Context())
	for i := range status.SamplesKept {
		x := float64(i)
		s.samples.Add(status.Sample{
			Requests: 420 + 120*math.Sin(x/57) + 30*math.Sin(x/3.1),
			Failed:   math.Max(0, 3*math.Sin(x/40)-2.4), Response: 14 + 4*math.Sin(x/23), Open: float64(10 * n),
		})
	}
	load := haproxy.Load{During: status.SampleEvery}
	for i, b := range s.view.Load().Config.Backends {
		one := haproxy.BackendLoad{
			Backend: b.Name, Requests: uint64(4200 / (i*i + 1)), Connections: 90 / (i + 1),
			Open: n, Response: 14 * time.Millisecond,
		}
		if i == 3 {
			one.Failed = 17
		}
		load.Backends = append(load.Backends, one)
	}
	s.samples.Rates.Set(load, s.clock)
	return s
}

// axe returns the accessibility checker, which make setup fetches.
func axe(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(cache, "sallyport", "axe-core-4.10.3", "axe.min.js"))
	if err != nil {
		t.Fatalf("%v: make setup fetches it", err)
	}
	return string(text)
}

// violations returns the rules of WCAG 2.2 AA, and of good practice, that the open page
// breaks.
func (b *browser) violations(axe string) (all []string) {
	b.t.Helper()
	b.eval(axe + "; true")
	found := b.eval(
		`axe.run(document, {resultTypes: ["violations"]}).then(r => r.violations.map(v => v.id + ": " + v.help + ": " + v.nodes.slice(0, 3).map(n => n.html + " " + n.failureSummary).join(" | ")))`)
	if err := json.Unmarshal(found, &all); err != nil {
		b.t.Fatalf("%v: %s", err, found)
	}
	return all
}

func TestPagesAreGoodToLookAt(t *testing.T) {
	b, axe := newBrowser(t), axe(t)
	pair, pulse := newPair(t)
	pair.speaker.state = established
	pair.pass(t, 4*time.Second)
	pulse.hear("", false)
	pair.settle(t)
	for name, s := range map[string]*scene{
		"three-nodes": wide(t, 3), "seven-nodes": wide(t, 7),
		"300-nodes": wide(t, 300), "pair": pair, "gateway": gated(t),
		"set": drainedTown(t),
	} {
		url := site(t, s)
		pages := map[string]string{"": "/"}
		if name == "seven-nodes" {
			maps.Copy(pages, map[string]string{
				"-node": "/node/demo/worker7", "-block": "/block/demo/172.16.1.128/26",
				"-backend": "/backend/demo__default_svc_web_80", "-pod": "/pod/demo/default/web-7f9c6d-00006",
				"-ingress": "/ingress/demo/default/web", "-cluster": "/cluster/demo",
				"-servers": "/servers?state=closed", "-backends": "/backends?sort=requests",
				"-search": "/search?q=worker7", "-none": "/pod/demo/default/gone",
			})
		}
		if name == "gateway" {
			maps.Copy(pages, map[string]string{
				"-all": "/gateways", "-routes": "/gateway-routes", "-one": "/gateway/demo/default/web",
				"-route": "/route/demo/httproute/default/app", "-refused": "/route/demo/httproute/other/stranger",
			})
		}
		if name == "set" {
			maps.Copy(pages, map[string]string{"-clusters": "/clusters", "-one": "/cluster/town1"})
		}
		for kind, path := range pages {
			for _, l := range looks {
				if kind != "" && l.name != "light" && l.name != "telephone" {
					continue
				}
				b.open(l, url+path)
				b.shoot(name + kind + "-" + l.name)
				if wide := b.eval(
					"document.documentElement.scrollWidth - document.documentElement.clientWidth"); string(
					wide) != "0" {
					t.Errorf("%s, %s: %s pixels do not fit", path, l.name, wide)
				}
				if l.script {
					for _, v := range b.violations(axe) {
						t.Errorf("%s, %s: %s", path, l.name, v)
					}
				}
			}
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, text := range b.errors {
		if !strings.Contains(text, "404 (Not Found)") { // the page that says so
			t.Errorf("a page's console: %s", text)
		}
	}
}

func TestAPageFollowsTheLoopWithoutAReload(t *testing.T) {
	s := wide(t, 7)
	b, url := newBrowser(t), site(t, s)
	b.open(looks[0], url+"/")
	b.until(`document.getElementById("connection")?.textContent === "live"`)
	b.until(`document.body?.innerText.includes("60 of 70 servers open")`)
	b.eval(`window.same = true; document.querySelector("#peers a").focus(); true`)
	lost := netip.MustParseAddr("192.168.50.29")
	delete(s.speaker.down, lost)
	s.speaker.announce("172.16.1.128/26", lost.String())
	s.settle(t)
	b.until(`document.body?.innerText.includes("70 of 70 servers open")`)
	if got := string(b.eval("window.same")); got != "true" {
		t.Error("the page was loaded again")
	}
	if got := string(b.eval(`document.activeElement.closest("section").id`)); got != `"peers"` {
		t.Errorf("the focus is in %s, want peers", got)
	}
}

// Whoever looks at the first screen sees that a page has stopped.
func TestALostConnectionIsOnTheFirstScreen(t *testing.T) {
	h, _ := endpoint(wide(t, 7))
	server := httptest.NewServer(h)
	defer server.Close()
	b := newBrowser(t)
	b.open(looks[2], server.URL+"/")
	const shown = `document.getElementById("connection")`
	b.until(shown + `.textContent === "live" && getComputedStyle(` + shown + `).position === "static"`)
	server.Listener.Close()
	server.CloseClientConnections()
	b.until(shown + `.textContent.includes("connection lost")`)
	b.until(shown + `.getBoundingClientRect().bottom <= innerHeight`)
	b.shoot("lost-telephone")
}

func TestRatesFollowWithoutAReload(t *testing.T) {
	s := wide(t, 3)
	b, url := newBrowser(t), site(t, s)
	b.open(looks[0], url+"/backends?sort=requests")
	b.until(`document.getElementById("connection")?.textContent === "live"`)
	first := `document.querySelector("tbody tr").innerText`
	b.until(first + `.includes("420")`)
	b.eval(`window.same = true`)
	s.samples.Rates.Set(haproxy.Load{
		During:   status.SampleEvery,
		Backends: []haproxy.BackendLoad{{Backend: "demo__default_svc_web_80", Requests: 77_770, Open: 3}},
	}, s.clock)
	b.until(first + `.includes("7,777") && ` + first + `.includes("demo__default_svc_web_80")`)
	if got := string(b.eval("window.same")); got != "true" {
		t.Error("the page was loaded again")
	}
}

func TestAPageWithoutScriptsLoadsItselfAgain(t *testing.T) {
	s := wide(t, 7)
	b, url := newBrowser(t), site(t, s)
	b.open(look{"no-script", 1280, 800, "light", false}, url+"/")
	lost := netip.MustParseAddr("192.168.50.29")
	delete(s.speaker.down, lost)
	s.speaker.announce("172.16.1.128/26", lost.String())
	s.settle(t)
	b.until(`document.body?.innerText.includes("70 of 70 servers open")`)
}

// The keyboard alone reaches every node of the drawing.
func TestTheKeyboardReachesTheDrawing(t *testing.T) {
	b, url := newBrowser(t), site(t, wide(t, 3))
	b.open(looks[0], url+"/")
	for range 40 {
		for _, kind := range []string{"rawKeyDown", "keyUp"} {
			b.call("Input.dispatchKeyEvent",
				map[string]any{"type": kind, "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9})
		}
		if string(b.eval(`document.activeElement.getAttribute("href")`)) == `"/node/demo/worker2"` {
			return
		}
	}
	t.Errorf("40 times Tab end at %s", b.eval("document.activeElement.outerHTML"))
}

func TestAButtonDrainsWithThePassword(t *testing.T) {
	s, p := newPair(t)
	s.speaker.state = established
	s.pass(t, firstSteps)
	p.hear(group.Full, false)
	s.settle(t)
	s.cfg.Status.Password = config.NewSecret(statusPassword)
	s.settle(t)
	now := s.clock
	g, _ := newGuard(statusPassword, &now)
	h, _ := endpoint(s)
	orders := http.NewServeMux()
	orders.Handle("/", h)
	orders.Handle("POST /group/", buttons(s.view.Load, s.drains, func() {}, func() time.Time { return now }))
	g.next = orders
	server := httptest.NewServer(page.Secured(g))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	b, axe := newBrowser(t), axe(t)
	b.call("Emulation.setDeviceMetricsOverride",
		map[string]any{"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": true})
	b.call("Page.navigate", map[string]any{"url": strings.Replace(server.URL, "http://",
		"http://operator:"+statusPassword+"@", 1) + "/"})
	b.until(`document.querySelector("#group .title a")?.textContent === "drain…"`)
	b.until(`document.getElementById("connection")?.textContent === "live"`)
	b.eval(`document.querySelector("#group .title a").click()`)
	b.until(`document.querySelector("form.order button")?.textContent === "Drain gate-1"`)
	for _, v := range b.violations(axe) {
		t.Errorf("the page of the button: %s", v)
	}
	b.shoot("drain-telephone")
	b.eval(`document.querySelector("form.order button").click()`)
	b.until(`location.pathname === "/" && document.readyState === "complete"`)
	if s.drains.get() == nil || s.drains.get().Forced {
		t.Fatalf("got %+v, want a drain that is not forced", s.drains.get())
	}
	s.settle(t)
	b.until(`document.querySelector("#group .title a")?.textContent === "end the drain…"`)
	b.eval(`document.querySelector("#group .title a").click()`)
	b.until(`document.querySelector("form.order button")?.textContent === "End the drain of gate-1"`)
	b.eval(`document.querySelector("form.order button").click()`)
	b.until(`location.pathname === "/" && document.readyState === "complete"`)
	if s.drains.get() != nil {
		t.Error("it drains still")
	}
	p.hear(group.Spare, false)
	s.settle(t)
	b.call("Page.navigate", map[string]any{"url": server.URL + pages.DrainPath})
	b.until(`document.body?.innerText.includes("Not now: no other member of the group is full: gate-2 is spare")`)
	if got := string(b.eval(`document.querySelector("form.order") === null`)); got != "true" {
		t.Error("there is a button all the same")
	}
}
