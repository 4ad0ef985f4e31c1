package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/appliance"
	"sallyport/test/lab/world"
)

// patience bounds every wait. It is no measure of speed: what is waited for
// usually takes a fraction of a second.
const patience = 90 * time.Second

// programs are the binaries under test, built once by TestMain.
var programs struct{ sallyport, app string }

func TestMain(m *testing.M) {
	code, err := func() (int, error) {
		dir, err := os.MkdirTemp("", "sallyport-e2e-")
		if err != nil {
			return 1, err
		}
		defer os.RemoveAll(dir) //nolint:errcheck // scratch
		programs.sallyport, programs.app = filepath.Join(dir, "sallyport"), filepath.Join(dir, "app")
		for program, source := range map[string]string{programs.sallyport: "sallyport/cmd/sallyport", programs.app: "sallyport/test/app"} {
			if out, err := exec.Command("go", "build", "-o", program, source).CombinedOutput(); err != nil {
				return 1, fmt.Errorf("build %s: %w\n%s", source, err, out)
			}
		}
		return m.Run(), nil
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// rig is a lab with an appliance in it, as the README sets one up.
type rig struct {
	*world.Lab
	t   *testing.T // that fails when something does
	dir string     // of the appliance: config, state, log
	run *run

	ingress string // a further line of the cluster's ingress in the config file
	peering string // further keys of its bgp, each with a comma
}

// A run is the appliance's process, the same one for all subtests.
type run struct {
	process *exec.Cmd // nil while there is none
	ended   chan error
}

// sub runs a subtest, with the rig that fails it and no other test.
func (r *rig) sub(name string, f func(t *testing.T, r *rig)) {
	r.t.Helper()
	r.t.Run(name, func(t *testing.T) {
		own := *r
		own.t = t
		f(t, &own)
	})
}

// newRig brings up a lab and gives the cluster what `sallyport manifests`
// prints, and the appliance the credentials that these manifests define.
func newRig(t *testing.T, opts world.Options) *rig {
	t.Helper()
	opts.Images = map[string]string{"sample-app": programs.app}
	opts.Progress = testWriter{t}
	lab, err := world.Up(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{Lab: lab, t: t, dir: t.TempDir(), run: &run{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the appliance:\n%s", tail(r.log(), 150))
		}
		r.end(syscall.SIGTERM)
		if err := lab.Down(); err != nil {
			t.Errorf("lab down: %v", err)
		}
	})
	return r
}

// install applies the manifests and writes what the appliance is given. more is
// added to the end of its config file; the manifests get further flags.
func (r *rig) install(more string, flags ...string) {
	r.t.Helper()
	r.configure(more)
	r.apply(r.manifests(flags...))
	r.authorize()
}

// configure writes the config file.
func (r *rig) configure(more string) {
	r.t.Helper()
	r.write("sallyport.yaml", fmt.Sprintf(`
identity: e2e
clusters:
- name: lab
  kubeconfig: kubeconfig
  pools: [172.16.0.0/16, "fd00:172:16::/48"]
  bgp: {%[4]sasn: 65000}
  ingress:
    publish: [192.168.50.21]
    %[3]s
haproxy:
  dir: %[1]s/haproxy
  runDir: %[1]s/run
stateDir: %[1]s/state
log: {level: debug}
%[2]s`, r.dir, more, r.ingress, r.peering))
}

// manifests are what the cluster is given.
func (r *rig) manifests(flags ...string) string {
	r.t.Helper()
	text, err := exec.Command(programs.sallyport, append([]string{"manifests", "--address", "192.168.50.21"}, flags...)...).Output()
	if err != nil {
		r.t.Fatalf("sallyport manifests: %v", failure(err))
	}
	return string(text)
}

// authorize writes the kubeconfig, of the account that the manifests define.
func (r *rig) authorize() {
	r.t.Helper()
	credentials, err := r.ServiceAccountKubeconfig(r.t.Context(), "kube-system", "sallyport", 24*time.Hour)
	if err != nil {
		r.t.Fatal(err)
	}
	r.write("kubeconfig", string(credentials))
}

// host is one of the lab's.
func (r *rig) host(name string) world.Host {
	r.t.Helper()
	hosts := r.Hosts()
	i := slices.IndexFunc(hosts, func(h world.Host) bool { return h.Name == name })
	if i < 0 {
		r.t.Fatalf("the lab has no host %s", name)
	}
	return hosts[i]
}

func (r *rig) file(name string) string { return filepath.Join(r.dir, name) }

func (r *rig) write(name, text string) {
	r.t.Helper()
	if err := os.WriteFile(r.file(name), []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// start runs the appliance on its host.
func (r *rig) start() {
	r.t.Helper()
	log, err := os.OpenFile(r.file("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		r.t.Fatal(err)
	}
	defer log.Close() //nolint:errcheck // the process has its own
	cmd := r.Command(context.Background(), world.Appliance, programs.sallyport, "run", "--config", r.file("sallyport.yaml"))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	ended := make(chan error, 1)
	r.run.process, r.run.ended = cmd, ended
	go func() { ended <- cmd.Wait() }()
}

// end ends the appliance with a signal. HAProxy stays.
func (r *rig) end(signal syscall.Signal) {
	if r.run.process == nil {
		return
	}
	_ = r.run.process.Process.Signal(signal) // ip netns exec has become the program: same process
	select {
	case err := <-r.run.ended:
		r.t.Logf("the appliance ended: %v", err)
	case <-time.After(patience):
		r.t.Errorf("the appliance does not end on %s", signal)
		_ = r.run.process.Process.Kill()
		err := <-r.run.ended
		r.t.Logf("the appliance ended: %v", err)
	}
	r.run.process = nil
}

// log is what the appliance has said so far.
func (r *rig) log() string {
	text, err := os.ReadFile(r.file("log"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.t.Error(err)
	}
	return string(text)
}

// status asks the status endpoint.
func (r *rig) status() (s appliance.Status, err error) {
	out, err := r.Exec(r.t.Context(), world.Appliance, "curl", "-sf", "--max-time", "5", "http://127.0.0.1:9090/status")
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal([]byte(out), &s)
}

func (r *rig) mustStatus() appliance.Status {
	r.t.Helper()
	s, err := r.status()
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// ready waits until the appliance says that it is.
func (r *rig) ready() {
	r.t.Helper()
	r.eventually("the appliance is ready", func() error {
		s, err := r.status()
		if err == nil && !s.Ready {
			err = errors.New(strings.Join(s.NotReady, "; "))
		}
		return err
	})
}

// eventually asks until the answer is no error.
func (r *rig) eventually(what string, ask func() error) {
	r.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ask()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			r.t.Fatalf("not within %s: %s: %v", patience, what, err)
		case <-tick.C:
		}
	}
}

func (r *rig) apply(manifest string) {
	r.t.Helper()
	cmd := r.Kubectl(r.t.Context(), "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(manifest)
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("kubectl apply: %v\n%s", err, out)
	}
}

func (r *rig) kubectl(args ...string) string {
	r.t.Helper()
	out, err := r.Kubectl(r.t.Context(), args...).Output()
	if err != nil {
		r.t.Fatalf("kubectl %v: %v", args, failure(err))
	}
	return strings.TrimSpace(string(out))
}

// A reply is what the sample application says of a request, or what HAProxy
// answers in its place.
type reply struct {
	Code     int
	Location string
	Pod      string              `json:"pod"`
	Node     string              `json:"node"`
	URL      string              `json:"url"`
	Host     string              `json:"host"`
	Headers  map[string][]string `json:"headers"`
}

// get asks from the client's host: for a URL whose name is that of the
// appliance. More curl arguments may follow.
func (r *rig) get(url string, more ...string) (answer reply, err error) {
	name, port, _ := strings.Cut(strings.SplitN(url, "/", 4)[2], ":")
	if port == "" {
		port = map[bool]string{true: "443", false: "80"}[strings.HasPrefix(url, "https:")]
	}
	args := append([]string{
		"curl", "-sk", "--max-time", "10", "--resolve", name + ":" + port + ":192.168.50.21",
		"-H", "Accept: application/json", "-w", "\n%{http_code} %{redirect_url}", url,
	}, more...)
	out, err := r.Exec(r.t.Context(), world.Client, args...)
	if err != nil {
		return answer, err
	}
	body, last := out[:strings.LastIndexByte(out, '\n')], out[strings.LastIndexByte(out, '\n')+1:]
	code, location, _ := strings.Cut(last, " ")
	if answer.Code, err = strconv.Atoi(code); err != nil {
		return answer, err
	}
	answer.Location = strings.TrimSpace(location)
	if answer.Code == 200 {
		err = json.Unmarshal([]byte(body), &answer)
	}
	return answer, err
}

// pods asks n times and counts who answered. Any answer but 200 is an error.
func (r *rig) pods(url string, n int) (map[string]int, error) {
	seen := map[string]int{}
	for range n {
		answer, err := r.get(url)
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

// answeredBy waits until all of n pods answer, and nobody else.
func (r *rig) answeredBy(url string, n int) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("%s is answered by %d pods", url, n), func() error {
		seen, err := r.pods(url, 2*n)
		if err == nil && len(seen) != n {
			err = fmt.Errorf("answered by %v", seen)
		}
		return err
	})
}

// routes lists the appliance's own routes as "PREFIX via HOP".
func (r *rig) routes(family string) []string {
	r.t.Helper()
	out, err := r.Exec(r.t.Context(), world.Appliance, "ip", family, "-o", "route", "show", "proto", "78")
	if err != nil {
		r.t.Fatal(err)
	}
	var routes []string
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) >= 3 {
			routes = append(routes, strings.Join(f[:3], " "))
		}
	}
	return routes
}

// routed waits until the appliance has exactly these routes.
func (r *rig) routed(want []string) {
	r.t.Helper()
	r.eventually("the routes are right", func() error {
		if got := r.routes("-4"); !slices.Equal(got, want) {
			return fmt.Errorf("routes %q, want %q", got, want)
		}
		return nil
	})
}

// sessions lists the nodes with an established session, sorted.
func (r *rig) sessions() (nodes []string) {
	r.t.Helper()
	for _, p := range r.mustStatus().Peers {
		if p.State == "Established" {
			nodes = append(nodes, p.Node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// open counts the open servers of a backend.
func open(s appliance.Status, backend string) int {
	for _, b := range s.Backends {
		if b.Name == backend {
			return b.Open
		}
	}
	return 0
}

func failure(err error) error {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	return err
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
