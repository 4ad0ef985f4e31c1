package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/appliance/status"
	"sallyport/test/faults"
	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// programs is the directory of the programs under test, built once by TestMain.
var programs string

// version is that of the programs under test, and otherVersion one of the same length.
const version, otherVersion = "v0.0.1-of-e2e-tests", "v0.0.2-of-e2e-tests"

func TestMain(m *testing.M) {
	code, err := func() (code int, err error) {
		if programs, err = os.MkdirTemp("", "sallyport-e2e-"); err != nil {
			return 1, err
		}
		defer os.RemoveAll(programs) //nolint:errcheck // scratch
		if err := rig.Build(context.Background(), programs, "-ldflags", "-X main.version="+version); err != nil {
			return 1, err
		}
		// A lab mostly waits, for hold times and checks: two fit on a processor. With three, and other programs beside
		// them, members of a group are late with their heartbeats, and count as silent.
		flag.Parse()
		labs.free = 2 * runtime.GOMAXPROCS(0)
		at := flag.Lookup("test.parallel")
		if given := at.Value.String(); given != at.DefValue {
			if labs.free, err = strconv.Atoi(given); err != nil {
				return 1, err
			}
		}
		if err := at.Value.Set("1000"); err != nil { // the places are what bounds them
			return 1, err
		}
		return m.Run(), nil
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// A testbed is a rig whose methods fail a test.
type testbed struct {
	*rig.Rig
	t      *testing.T
	before string // words of a shell before the doctor's command
}

// sub runs a subtest, whose testbed fails the subtest and no other.
func (r *testbed) sub(name string, f func(t *testing.T, r *testbed)) {
	r.t.Helper()
	r.t.Run(name, func(t *testing.T) { f(t, &testbed{Rig: r.Rig, t: t}) })
}

// settings are what a testbed has beside what every rig has.
type settings struct {
	lines     string        // of the appliance's config file
	clusters  []rig.Cluster // in that file; without any, it has the lab's cluster
	manifests []string      // flags of `sallyport manifests`
}

// newTestbed brings up a lab with an appliance that is configured, and does not run yet.
func newTestbed(t *testing.T, opts world.Options, s settings) *testbed {
	t.Helper()
	if s.clusters == nil {
		s.clusters = []rig.Cluster{{Pools: `172.16.0.0/16, "fd00:172:16::/48"`}}
	}
	dir := t.TempDir()
	for _, program := range []string{"/sallyport", "/app"} {
		if err := os.Symlink(programs+program, dir+program); err != nil {
			t.Fatal(err)
		}
	}
	if err := rig.Configure(dir, "identity: e2e\nlog: {level: debug}\n"+s.lines, s.clusters...); err != nil {
		t.Fatal(err)
	}
	opts.Progress = testWriter{t}
	lab, err := rig.New(t.Context(), dir, opts, s.manifests...)
	if err != nil {
		t.Fatal(err)
	}
	r := &testbed{Rig: lab, t: t}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the appliance:\n%s", tail(r.log(), 150))
		}
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// without makes a fault, and returns what mends it.
func (r *testbed) without(f faults.Fault) (mend func()) {
	r.t.Helper()
	r.must(f.Make(r.t.Context()))
	return func() { r.t.Helper(); r.must(f.Mend(r.t.Context())) }
}

// api is the API server that the appliance cannot reach.
func (r *testbed) api() faults.Fault { return faults.API(r.Rig, r.Machine()) }

// must fails the test on an error.
func (r *testbed) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *testbed) start()                  { r.t.Helper(); r.must(r.Start(r.t.Context())) }
func (r *testbed) end(s syscall.Signal)    { r.t.Helper(); r.must(r.Stop(s)) }
func (r *testbed) ready()                  { r.t.Helper(); r.must(r.Ready(r.t.Context())) }
func (r *testbed) apply(manifest string)   { r.t.Helper(); r.must(r.Apply(r.t.Context(), manifest)) }
func (r *testbed) file(name string) string { return filepath.Join(r.Dir, name) }

func (r *testbed) eventually(what string, ask func() error) {
	r.t.Helper()
	r.must(rig.Eventually(r.t.Context(), what, ask))
}

func (r *testbed) kubectl(args ...string) string {
	r.t.Helper()
	out, err := r.Kubectl(r.t.Context(), args...)
	r.must(err)
	return out
}

func (r *testbed) status() (status.Status, error) { return r.Status(r.t.Context()) }

func (r *testbed) mustStatus() status.Status {
	r.t.Helper()
	s, err := r.status()
	r.must(err)
	return s
}

// exec runs a command on the appliance's host and returns what it printed.
func (r *testbed) exec(args ...string) string {
	r.t.Helper()
	out, err := r.Exec(r.t.Context(), world.Appliance, args...)
	r.must(err)
	return out
}

func (r *testbed) host(name string) world.Host {
	r.t.Helper()
	host, there := r.Host(name)
	if !there {
		r.t.Fatalf("the lab has no host %s", name)
	}
	return host
}

func (r *testbed) write(name, text string) {
	r.t.Helper()
	r.must(os.WriteFile(r.file(name), []byte(text), 0o600))
}

// givePool writes rig.GatewayPool into the configuration file, as the addresses for Gateways and for Services of type
// LoadBalancer.
func (r *testbed) givePool() {
	r.t.Helper()
	const key = "haproxy: {"
	r.write("sallyport.yaml", r.swapped(r.read("sallyport.yaml"), key, key+"addresses: ["+rig.GatewayPool+"], "))
}

func (r *testbed) read(name string) string {
	r.t.Helper()
	text, err := os.ReadFile(r.file(name))
	r.must(err)
	return string(text)
}

// log returns what the appliance has logged so far.
func (r *testbed) log() string {
	text, err := os.ReadFile(r.LogFile())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.t.Error(err)
	}
	return string(text)
}

// A reply is the answer of the sample application, or of HAProxy in its place.
type reply struct {
	Code     int
	Location string
	Pod      string              `json:"pod"`
	Node     string              `json:"node"`
	URL      string              `json:"url"`
	Host     string              `json:"host"`
	Headers  map[string][]string `json:"headers"`
}

// plain is where the appliance serves HTTP.
const plain = "192.168.50.21:80"

// client returns an HTTP client on the client's host. All its requests go to one address.
func (r *testbed) client(address string) *http.Client {
	client := r.HTTP(world.Client, address)
	client.Timeout = rig.Limit
	return client
}

// get sends a request from the client's host to the appliance, or to another address.
func (r *testbed) get(url string, at ...string) (answer reply, err error) {
	request, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, url, nil)
	if err != nil {
		return answer, err
	}
	request.Header.Set("Accept", "application/json")
	address := plain
	if len(at) > 0 {
		address = at[0]
	} else if request.URL.Scheme == "https" {
		address = "192.168.50.21:443"
	}
	client := r.client(address)
	client.Timeout = 10 * time.Second
	got, err := client.Do(request)
	if err != nil {
		return answer, err
	}
	defer got.Body.Close() //nolint:errcheck // only read
	if got.StatusCode == http.StatusOK {
		err = json.NewDecoder(got.Body).Decode(&answer)
	}
	answer.Code, answer.Location = got.StatusCode, got.Header.Get("Location")
	return answer, err
}

// pods sends n requests and counts the pods that answer. A status other than 200 is an error.
func (r *testbed) pods(url string, n int, at ...string) (map[string]int, error) {
	seen := map[string]int{}
	for range n {
		answer, err := r.get(url, at...)
		if err != nil {
			return nil, err
		}
		if answer.Code != 200 {
			return nil, fmt.Errorf("%s answers %d", url, answer.Code)
		}
		seen[answer.Pod]++
	}
	return seen, nil
}

// answeredBy waits until exactly n pods answer. If 2n requests meet too few of them, it sends 10n. The
// requests of a load beside them move on HAProxy's rotation, too, and then 2n rarely meet all of many pods.
func (r *testbed) answeredBy(url string, n int, at ...string) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("%s is answered by %d pods", url, n), func() error {
		seen, err := r.pods(url, 2*n, at...)
		if err == nil && len(seen) < n {
			seen, err = r.pods(url, 10*n, at...)
		}
		if err == nil && len(seen) != n {
			err = fmt.Errorf("answered by %v", seen)
		}
		return err
	})
}

// routes lists the appliance's own routes as "PREFIX via HOP".
func (r *testbed) routes(family string) []string {
	r.t.Helper()
	var routes []string
	for line := range strings.Lines(r.exec("ip", family, "-o", "route", "show", "proto", "78")) {
		if f := strings.Fields(line); len(f) >= 3 {
			routes = append(routes, strings.Join(f[:3], " "))
		}
	}
	return routes
}

// routed waits until the appliance has exactly these routes.
func (r *testbed) routed(want []string) {
	r.t.Helper()
	r.eventually("the routes are right", func() error {
		if got := r.routes("-4"); !slices.Equal(got, want) {
			return fmt.Errorf("routes %q, want %q", got, want)
		}
		return nil
	})
}

// sessions lists the nodes with an established session, sorted.
func (r *testbed) sessions() (nodes []string, err error) {
	s, err := r.status()
	for _, p := range s.Peers {
		if p.State == "Established" {
			nodes = append(nodes, p.Node)
		}
	}
	slices.Sort(nodes)
	return nodes, err
}

// peered waits until exactly these nodes, which are sorted, have an established session.
func (r *testbed) peered(want ...string) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("sessions with %q", want), func() error {
		got, err := r.sessions()
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("sessions with %q", got)
		}
		return err
	})
}

// peeredWith waits until a node has an established session.
func (r *testbed) peeredWith(node string) {
	r.t.Helper()
	r.eventually("a session with "+node, func() error {
		got, err := r.sessions()
		if err == nil {
			err = contains(got, node)
		}
		return err
	})
}

// opened waits until a backend has this many open servers, by the appliance's word. A server answers
// before the status shows it open.
func (r *testbed) opened(backend string, want int) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("%d servers of %s are open", want, backend), func() error {
		s, err := r.status()
		if n := open(s, backend); err == nil && n != want {
			err = fmt.Errorf("%d are open", n)
		}
		return err
	})
}

// open counts the open servers of a backend.
func open(s status.Status, backend string) int {
	for _, b := range s.Backends {
		if b.Name == backend {
			return b.Open
		}
	}
	return 0
}

func tail(text string, lines int) string {
	all := strings.Split(text, "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}
