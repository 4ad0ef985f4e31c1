package haproxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func TestAServerWithAConnectionIsRemovedWhenItEnds(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		finish := make(chan struct{})
		slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "close") // an idle connection would keep the server some seconds more
			w.(http.Flusher).Flush()
			<-finish
			_, _ = io.WriteString(w, "done")
		}))
		t.Cleanup(slow.Close)
		s := serverAt(slow.Listener.Addr())
		cfg := r.config(backend("app", s))
		r.settle(cfg, states(cfg, Open))

		conn, err := net.Dial("tcp", r.http.String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: app.test\r\nConnection: close\r\n\r\n")
		answer := bufio.NewReader(conn)
		if line, err := answer.ReadString('\n'); err != nil || !strings.Contains(line, "200") {
			t.Fatalf("got %q, %v", line, err)
		}

		id := ServerID{"app", s.Name}
		res := r.apply(cfg, nil)
		if res.RetryAt.IsZero() {
			t.Error("a server with a connection: got no RetryAt")
		}
		servers, err := byID(r.p.Servers())
		if live, ok := servers[id]; err != nil || !ok || live.State != Closed {
			t.Errorf("a server with a connection: got %+v, %v, want it closed", live, err)
		}
		select {
		case <-r.p.Changed():
		case <-time.After(patience):
			t.Error("nobody knocked when the removal was due again")
		}

		close(finish)
		if rest, err := io.ReadAll(answer); err != nil || !strings.Contains(string(rest), "done") {
			t.Errorf("the request under way: got %q, %v", rest, err)
		}
		r.settle(cfg, nil)
		servers, err = byID(r.p.Servers())
		if _, ok := servers[id]; ok || err != nil {
			t.Errorf("the server is still there, %v", err)
		}
	})
}

func TestARequestWhoseConnectionEndsUnansweredGoesToAnother(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		// It takes a request, and then its node is gone: the connection ends
		// without a byte.
		var seen sync.Map
		dying := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
			seen.Store(req.Method, true)
			panic(http.ErrAbortHandler)
		}))
		t.Cleanup(dying.Close)
		cfg := r.config(backend("app", serverAt(dying.Listener.Addr()), origin(t, "alive")))
		r.settle(cfg, states(cfg, Open))
		for method, want := range map[string]int{http.MethodGet: 200, http.MethodHead: 200, http.MethodPost: 502} {
			r.eventually("a request reached the server that dies", func() bool {
				req, err := http.NewRequestWithContext(t.Context(), method, "http://"+r.http.String()+"/", nil)
				if err != nil {
					t.Fatal(err)
				}
				req.Host, req.Close = "app.test", true
				answer, err := http.DefaultTransport.RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				_ = answer.Body.Close()
				_, reached := seen.Load(method)
				if reached && answer.StatusCode != want || !reached && answer.StatusCode != 200 {
					t.Fatalf("%s: got %d, want %d", method, answer.StatusCode, want)
				}
				return reached
			})
		}
	})
}

// TestTheWorkerSeesNoFiles holds that too after a reload, and that files and
// settings reach it all the same.
func TestTheWorkerSeesNoFiles(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		r.opt.User, r.opt.Group = "nobody", "nogroup"
		r.p = r.fresh()
		cfg := r.config(backend("app", origin(t, "alive")))
		r.apply(cfg, states(cfg, Open))
		cfg = r.config(backend("app", origin(t, "alive")), distinct(backend("other", origin(t, "new"))))
		if res := r.apply(cfg, states(cfg, Open)); !res.Reloaded {
			t.Error("there was no reload")
		}
		worker := r.p.Info().Worker
		root, err := os.Readlink(fmt.Sprintf("/proc/%d/root", worker))
		if err != nil {
			t.Fatal(err)
		}
		if want := r.opt.RunDir + "/jail"; root != want {
			t.Errorf("the worker's root directory is %s, want %s", root, want)
		}
		if master, err := os.Readlink(fmt.Sprintf("/proc/%d/root", r.p.Info().Pid)); err != nil || master != "/" {
			t.Errorf("the master's root directory is %s (%v), and it reads files at a reload", master, err)
		}
		for host, want := range map[string]string{"app.test": "alive", "other.test": "new"} {
			if got := r.get(host, "/"); got != want {
				t.Errorf("%s: got %q, want %q", host, got, want)
			}
		}
	})
}

func TestAMasterWithoutTheCapabilityIsNotLocked(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		r.opt.User, r.opt.Group = "nobody", "nogroup"
		r.opt.Binary = filepath.Join(filepath.Dir(r.opt.RunDir), "haproxy")
		wrapper := "#!/bin/sh\nexec setpriv --bounding-set=-sys_chroot " + binary + " \"$@\"\n"
		writeProgram(t, r.opt.Binary, wrapper)
		r.p = r.fresh()
		r.p.files.Jail = "" // this master could not start with it
		r.p.text.opt = r.p.files
		r.apply(r.config(), nil)

		next := r.fresh()
		if err := next.mayLock(r.opt.RunDir + "/jail"); err == nil ||
			!strings.Contains(err.Error(), "without CAP_SYS_CHROOT") {
			t.Errorf("mayLock: got %v, want it to name CAP_SYS_CHROOT", err)
		}
		if next.files.Jail != "" {
			t.Errorf("the next process wants the worker in %s, and the master cannot take it there", next.files.Jail)
		}
	})
}

func TestWhatChecksFindIsHeardAtOnce(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		for name, interval := range map[string]time.Duration{
			"by a check":  100 * time.Millisecond,
			"by requests": time.Hour,
		} {
			t.Run(name, func(t *testing.T) {
				r := newRig(t, binary)
				if err := os.Chmod(filepath.Dir(r.opt.RunDir), 0o711); err != nil { //nolint:gosec // the worker is somebody else
					t.Fatal(err)
				}
				r.opt.User, r.opt.Group = "nobody", "nogroup"
				r.p = r.fresh()
				gone := httptest.NewServer(http.NotFoundHandler())
				b := backend("app", serverAt(gone.Listener.Addr()), origin(t, "alive"))
				b.Options = ServerOptions{Check: true, CheckInterval: interval}
				cfg := r.config(b)
				r.settle(cfg, states(cfg, Open))
				id := ServerID{"app", serverAt(gone.Listener.Addr()).Name}
				check := func() string {
					servers, err := byID(r.p.Servers())
					if err != nil {
						t.Fatal(err)
					}
					return strings.TrimSpace(servers[id].Check + " " + servers[id].Failure)
				}
				if got := check(); got != Up {
					t.Fatalf("at first: got %s, want %s", got, Up)
				}
				conn, err := r.p.listen()
				if err != nil {
					t.Fatal(err)
				}
				heard := make(chan struct{}, 1)
				go r.p.hear(t.Context(), conn, heard)
				// Failed requests cause a check at once, which fails, too. Where only a check may find it,
				// there are none.
				failures := map[string][]string{
					"by a check":  {"DOWN L4CON"},
					"by requests": {"DOWN HANA", "DOWN L4CON"},
				}[name]
				gone.Close()
				r.eventually("HAProxy tells that a check failed", func() bool {
					select {
					case <-heard:
						return true
					default:
						if name == "by requests" {
							r.get("app.test", "/")
						}
						return false
					}
				})
				r.p.lookAgain()
				if got := check(); !slices.Contains(failures, got) {
					t.Errorf("after the notice: got %s, want one of %q", got, failures)
				}
			})
		}
	})
}

// Browsers open connections ahead of need, and take what they hear on one for
// the answer to the request they send on it later.
func TestAConnectionThatAskedNothingIsToldNothing(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg := r.config(backend("app", origin(t, "a")))
		cfg.Tune.Base = "defaults\n  timeout http-request 200ms\n"
		r.settle(cfg, states(cfg, Open))
		conn, err := net.Dial("tcp", r.http.String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if text, err := io.ReadAll(conn); err != nil || len(text) > 0 {
			t.Errorf("got %q, %v, want it closed without a word", text, err)
		}
	})
}

func TestAReloadHasItsReasonInWords(t *testing.T) {
	r := newRig(t, binaries(t)[0])
	a, b, c := backend("a", origin(t, "a")), distinct(backend("b", origin(t, "b"))),
		distinct(backend("c", origin(t, "c")))
	checked := *a
	checked.Options.Check = true
	first := r.config(a)
	r.settle(first, states(first, Open))
	port := freePort(t)
	for _, step := range []struct {
		cfg  *Config
		want string
	}{
		{r.config(a, b), "backend b added"},
		{r.config(a), ""}, // nobody waits for a removal
		{r.config(a, c), "backend c added, backend b removed"},
		{r.config(&checked, c), "backend a changed"},
		{
			func() *Config { c := r.config(&checked, c); c.Bind.HTTP = append(c.Bind.HTTP, port); return c }(),
			"listen addresses changed",
		},
		{
			func() *Config { c := r.config(&checked, c); c.Tune.MaxConn = 500; return c }(),
			"listen addresses changed, settings of the process changed",
		},
		{r.config(a, b, c), "settings of the process changed, backend b added, backend a changed"},
	} {
		// The least time between reloads may not have passed.
		var res Result
		r.eventually("the reload is done", func() bool {
			res = r.apply(step.cfg, states(step.cfg, Open))
			return res.Reloaded || step.want == ""
		})
		if step.want == "" {
			if res.Reloaded || res.Reason != "backend b removed" || res.RetryAt.IsZero() {
				t.Errorf("a removal: got %+v, want it to wait", res)
			}
			if got := r.get("b.test", "/"); got != "404" {
				t.Errorf("the removed backend: got %q, want 404", got)
			}
			// HAProxy 3.4 removes it by command
		} else if want := step.want; res.Reason != want && (len(r.p.belief.run.classes) == 0 ||
			res.Reason+", backend b removed" != want) {
			t.Errorf("got reason %q, want %q", res.Reason, want)
		}
		for _, be := range step.cfg.Backends {
			if got := r.get(be.Name+".test", "/"); got != be.Name {
				t.Errorf("%s: got %q, want %q", step.want, got, be.Name)
			}
		}
	}
	if got, want := r.p.Info().LastReason,
		"settings of the process changed, backend b added, backend a changed"; got != want {
		t.Errorf("LastReason: got %q, want %q", got, want)
	}
}

func TestAReloadThatMustWaitHoldsNothingElseUp(t *testing.T) {
	r := newRig(t, binaries(t)[0])
	a, b, c := origin(t, "a"), origin(t, "b"), origin(t, "c")
	r.settle(r.config(), nil)
	cfg := r.config(backend("one", a))
	if res := r.apply(cfg, states(cfg, Open)); !res.Reloaded {
		t.Fatalf("it did not reload: %+v", res)
	}
	r.p.schedule.least = time.Hour

	cfg = r.config(backend("one", b), distinct(backend("two", c)))
	res := r.apply(cfg, states(cfg, Open))
	if res.Reloaded || res.Reason != "backend two added" || time.Until(res.RetryAt) < time.Minute {
		t.Errorf("got %+v, want a reload in an hour", res)
	}
	if got := r.get("one.test", "/"); got != "b" {
		t.Errorf("the server of a backend that was there: got %q, want b", got)
	}
	if got := r.get("two.test", "/"); got != "404" {
		t.Errorf("the backend that is not there yet: got %q, want 404", got)
	}
	if err := check(r.opt.Binary, r.opt.Dir); err != nil {
		t.Error(err)
	}
	r.later()
	r.settle(cfg, states(cfg, Open))
	if got := r.get("two.test", "/"); got != "c" {
		t.Errorf("got %q, want c", got)
	}
}

func TestCertificatesChangeWithoutAReload(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg := r.config(backend("app"))
		one := testCert(t, "one.pem", "first", "one.test")
		cfg.Certs = []*Cert{one}
		r.settle(cfg, nil)
		reloads := r.p.Info().Reloads
		expect := func(moment string, want map[string]string) {
			t.Helper()
			for name, subject := range want {
				if got := r.served(name); got != subject {
					t.Errorf("%s: %s: got %q, want %q", moment, name, got, subject)
				}
			}
			if err := check(binary, r.opt.Dir); err != nil {
				t.Errorf("%s: %v", moment, err)
			}
		}
		const self = "default certificate of sallyport"
		wild := testCert(t, "two.pem", "wild", "*.two.test")
		expect("from the file", map[string]string{"one.test": "first", "two.test": self})

		steps := []struct {
			name  string
			certs []*Cert
			want  map[string]string
		}{
			{
				"another one",
				[]*Cert{one, testCert(t, "two.pem", "second", "two.test", "*.two.test")},
				map[string]string{"one.test": "first", "two.test": "second", "x.two.test": "second"},
			},
			{
				"new content",
				[]*Cert{
					testCert(t, "one.pem", "first again", "one.test"),
					testCert(t, "two.pem", "second again", "two.test"),
				},
				map[string]string{"one.test": "first again", "two.test": "second again", "x.two.test": self},
			},
			{
				"other names",
				[]*Cert{testCert(t, "one.pem", "third", "three.test", "one.test")},
				map[string]string{"one.test": "third", "three.test": "third", "two.test": self},
			},
			{
				"a wildcard but for a name",
				[]*Cert{{
					Name: "two.pem", Hosts: []string{"*.two.test"}, Except: []string{"y.two.test"},
					PEM: wild.PEM,
				}},
				map[string]string{"x.two.test": "wild", "y.two.test": self},
			},
			{
				"and another name has one",
				[]*Cert{one, {
					Name: "two.pem", Hosts: []string{"*.two.test"}, Except: []string{"x.two.test"},
					PEM: wild.PEM,
				}},
				map[string]string{"one.test": "first", "x.two.test": self, "y.two.test": "wild"},
			},
			{
				"names from the certificate",
				[]*Cert{{Name: "one.pem", PEM: testCert(t, "x.pem", "fourth", "four.test").PEM}},
				map[string]string{"one.test": self},
			},
			{"none", nil, map[string]string{"one.test": self}},
			{"the first again", []*Cert{one}, map[string]string{"one.test": "first"}},
		}
		for _, s := range steps {
			next := *cfg
			next.Certs = s.certs
			r.settle(&next, nil)
			expect(s.name, s.want)
		}
		if got := r.p.Info().Reloads; got != reloads {
			t.Errorf("got %d reloads, want none", got-reloads)
		}
		info, err := os.Stat(filepath.Join(r.opt.Dir, certDir, "one.pem"))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("a private key's file: got %v, %v, want mode 0600", info.Mode(), err)
		}
	})
}

func TestADeadHAProxyIsBack(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		for _, victim := range []string{"worker", "master"} {
			t.Run(victim, func(t *testing.T) {
				r := newRig(t, binary)
				r.run()
				cfg := r.config(backend("app", origin(t, "a"), nowhereServer(1)))
				cfg.Tables = []Table{{Name: "rate", Size: 10, Period: time.Hour}} // the old worker passes it on
				wish := states(cfg, Open)
				r.settle(cfg, wish)
				wish[ServerID{"app", nowhereServer(1).Name}] = Closed // the files do not know yet
				r.settle(cfg, wish)
				select {
				case <-r.p.Changed():
				default:
				}
				info := r.p.Info()
				pid := map[string]int{"worker": info.Worker, "master": info.Pid}[victim]
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				r.eventually("another HAProxy serves", func() bool {
					got, err := r.try("app.test", "/")
					return err == nil && got == "a" && r.p.Info().Running && r.p.Info().Pid != info.Pid
				})
				select {
				case <-r.p.Changed():
				case <-time.After(patience):
					t.Error("nobody knocked")
				}
				servers, err := byID(r.p.Servers())
				if err != nil {
					t.Fatal(err)
				}
				for id, want := range wish {
					if got := servers[id].State; got != want {
						t.Errorf("%s: got %s, want %s", id, got, want)
					}
				}
				if res := r.apply(cfg, wish); res.Reloaded || res.Commands > 0 {
					t.Errorf("after the return: got %+v, want nothing to do", res)
				}
				r.eventually("the old worker is gone", func() bool { return !alive(info.Worker) })
			})
		}
	})
}

// A large configuration takes HAProxy seconds to load. The appliance can leave its group meanwhile.
func TestNobodyWaitsForAHAProxyThatStartsAgain(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		dir := filepath.Dir(r.opt.RunDir)
		r.opt.Binary = filepath.Join(dir, "haproxy")
		gate := filepath.Join(dir, "gate")
		wrapper := "#!/bin/sh\n[ \"$1\" != -W ] || [ ! -p " + gate + " ] || read -r _ <" + gate + "\nexec " + binary +
			" \"$@\"\n"
		writeProgram(t, r.opt.Binary, wrapper)
		r.p = r.fresh()
		r.run()
		cfg := r.config(backend("app", origin(t, "a")))
		r.settle(cfg, states(cfg, Open))
		if err := syscall.Mkfifo(gate, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(r.p.Info().Pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		r.eventually("HAProxy is missed", func() bool { return !r.p.Info().Running })
		answer := make(chan error, 1)
		go func() {
			_, err := r.p.Servers()
			answer <- err
		}()
		select {
		case err := <-answer:
			if !errors.Is(err, errRevives) {
				t.Errorf("Servers while HAProxy starts: got %v, want %v", err, errRevives)
			}
		case <-time.After(patience):
			t.Error("Servers waits for HAProxy")
		}
		if err := os.WriteFile(gate, []byte("open\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		r.eventually("HAProxy serves again", func() bool {
			got, err := r.try("app.test", "/")
			return err == nil && got == "a" && r.p.Info().Running
		})
		r.eventually("the servers are known again", func() bool {
			servers, err := r.p.Servers()
			return err == nil && servers.Len() > 0
		})
	})
}

func TestARestartedSallyportAttachesWithoutAReload(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		r.run()
		a, b := origin(t, "a"), origin(t, "b")
		cfg := r.config(backend("app", a), backend("other", b))
		cfg.Certs = []*Cert{testCert(t, "one.pem", "first", "one.test")}
		r.settle(cfg, states(cfg, Open))
		pid := r.p.Info().Pid
		r.cancel()

		again := func(cfg *Config, wantCommands bool) {
			t.Helper()
			r.p = r.fresh()
			servers, err := byID(r.p.Servers())
			if err != nil || len(servers) == 0 {
				t.Errorf("before any Apply: got %v, %v, want the servers", servers, err)
			}
			res := r.apply(cfg, states(cfg, Open))
			if res.Reloaded || (res.Commands > 0) != wantCommands {
				t.Errorf("got %+v, want no reload and commands: %v", res, wantCommands)
			}
			if got := r.p.Info().Pid; got != pid {
				t.Errorf("got master %d, want %d", got, pid)
			}
		}
		again(cfg, false)

		// What a crash between writing and telling leaves: files ahead.
		next := *cfg
		next.Backends = []*Backend{backend("app", a, b), backend("other")}
		next.Routes = append(slices.Clone(cfg.Routes),
			&Route{Host: "new.test", Path: "/x;y", Match: Exact, Backend: "app"})
		next.Certs = []*Cert{
			testCert(t, "one.pem", "renewed", "one.test"),
			testCert(t, "two.pem", "second", "two.test"),
		}
		if err := r.p.disk.sync(Render(&next, inOrder(&next, states(&next, Open)), r.p.files).Content,
			nil); err != nil {
			t.Fatal(err)
		}
		again(&next, true)
		if got := r.get("new.test", "/x;y"); got != "a" && got != "b" {
			t.Errorf("the new route: got %q", got)
		}
		if got := r.served("one.test") + ", " + r.served("two.test"); got != "renewed, second" {
			t.Errorf("the certificates: got %s", got)
		}
		// What a clean end leaves: files and worker agree.
		if err := r.p.settle(); err != nil {
			t.Fatal(err)
		}
		again(&next, false)
	})
}

func TestHAProxyOutlivesUs(t *testing.T) {
	const role = "SALLYPORT_TEST_STARTER"
	if dir := os.Getenv(role); dir != "" {
		p, err := New(Options{Binary: binaries(t)[0], Dir: dir + "/etc", RunDir: dir + "/run"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Apply(t.Context(), &Config{}, nil); err != nil {
			t.Fatal(err)
		}
		if err := p.Run(t.Context()); err != nil { // until it is killed
			t.Fatal(err)
		}
		return
	}
	r := newRig(t, binaries(t)[0])
	us := exec.Command(os.Args[0], "-test.run=^TestHAProxyOutlivesUs$") //nolint:gosec // ourselves
	us.Env = append(os.Environ(), role+"="+filepath.Dir(r.opt.Dir))
	us.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := us.Start(); err != nil {
		t.Fatal(err)
	}
	var found procs
	r.eventually("HAProxy runs", func() bool {
		var err error
		found, err = r.p.master.show()
		return err == nil && len(found.workers) > 0
	})
	if err := syscall.Kill(-us.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = us.Wait()
	cfg := r.config(backend("app", origin(t, "a")))
	r.settle(cfg, states(cfg, Open))
	if got := r.get("app.test", "/"); got != "a" || r.p.Info().Pid != found.master {
		t.Errorf("got %q from %d, want a from %d", got, r.p.Info().Pid, found.master)
	}
}

func TestAHAProxyThatDoesNotAnswerIsNotDoubled(t *testing.T) {
	r := newRig(t, binaries(t)[0])
	cfg := r.config(backend("app", origin(t, "a")))
	r.settle(cfg, states(cfg, Open))
	pid := r.p.Info().Pid
	socket := filepath.Join(r.opt.RunDir, "master.sock")
	if err := os.Rename(socket, socket+".away"); err != nil {
		t.Fatal(err)
	}
	r.p = r.fresh()
	if _, err := r.p.Apply(t.Context(), cfg, inOrder(cfg, states(cfg, Open))); err == nil ||
		!strings.Contains(err.Error(), fmt.Sprintf("pid %d", pid)) {
		t.Errorf("got %v, want it to name process %d", err, pid)
	}
	if got := r.get("app.test", "/"); got != "a" {
		t.Errorf("got %q, want a", got)
	}
	if err := os.Rename(socket+".away", socket); err != nil {
		t.Fatal(err)
	}
	if res := r.apply(cfg, states(cfg, Open)); res.Reloaded || r.p.Info().Pid != pid {
		t.Errorf("got %+v from %d, want nothing to do for %d", res, r.p.Info().Pid, pid)
	}
}

func TestAChangeBySomeoneElseIsFound(t *testing.T) {
	r := newRig(t, binaries(t)[0])
	cfg := r.config(backend("app", nowhereServer(1)))
	wish := states(cfg, Closed)
	r.settle(cfg, wish)
	for {
		select {
		case <-r.p.Changed():
			continue
		default:
		}
		break
	}
	r.p.lookAgain()
	select {
	case <-r.p.Changed():
		t.Error("nothing changed, and somebody knocked")
	default:
	}
	id := ServerID{"app", nowhereServer(1).Name}
	if err := r.p.worker.tell([]string{"set server " + id.String() + " state ready"}); err != nil {
		t.Fatal(err)
	}
	r.p.lookAgain()
	select {
	case <-r.p.Changed():
	default:
		t.Error("a server was opened behind our back, and nobody knocked")
	}
	servers, err := byID(r.p.Servers())
	if err != nil || servers[id].State != Open {
		t.Errorf("got %v, %v, want it open", servers[id], err)
	}
	if res := r.apply(cfg, wish); res.Commands != 1 {
		t.Errorf("got %+v, want one command", res)
	}
}

func TestAReloadBySomeoneElseIsCorrected(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		r.run()
		cfg := r.config(backend("app", origin(t, "a")))
		r.settle(cfg, states(cfg, Open))
		wish := states(cfg, Closed)
		r.settle(cfg, wish) // the files have it open
		info := r.p.Info()
		r.eventually("Run knows the worker", func() bool { return r.p.Info().Worker == info.Worker })
		if err := syscall.Kill(info.Pid, syscall.SIGUSR2); err != nil {
			t.Fatal(err)
		}
		r.eventually("the new worker is noticed", func() bool {
			<-r.p.Changed()
			_, err := r.p.Apply(t.Context(), cfg, inOrder(cfg, wish))
			return err == nil && r.p.Info().Worker != info.Worker
		})
		pic, err := r.p.worker.look()
		if err != nil || pic.backends.Get("app").Servers[0].State != Closed {
			t.Errorf("the server is %v, %v, want it closed", pic.backends.Get("app").Servers, err)
		}
	})
}

func TestAnEndpointWritesNoFile(t *testing.T) {
	r := newRig(t, binaries(t)[0])
	cfg := r.config(backend("app", nowhereServer(1)))
	r.settle(cfg, states(cfg, Open))
	r.p.disk.dir = filepath.Join(t.TempDir(), "gone")
	next := *cfg
	next.Backends = []*Backend{backend("app", nowhereServer(1), nowhereServer(2))}
	next.Routes = append(slices.Clone(cfg.Routes), &Route{Host: "new.test", Path: "/", Match: Prefix, Backend: "app"})
	r.settle(&next, states(&next, Open))
	if r.p.belief.filed == r.p.belief.told {
		t.Error("the files are those of the new configuration")
	}
	r.p.disk.dir = r.opt.Dir
	if err := r.p.settle(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(r.opt.Dir, configFile))
	if err != nil || !strings.Contains(string(text), nowhereServer(2).Name) || r.p.belief.run.gen != r.p.disk.gen() {
		t.Errorf("the files did not follow: %v", err)
	}
}

func TestACertificateTooLongForACommandIsReloaded(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg := r.config(backend("app"))
		r.settle(cfg, nil)
		long := testCert(t, "long.pem", "long", "long.test")
		for len(long.PEM) <= maxPayload {
			link, _, _ := strings.Cut(string(testCert(t, "x.pem", "link").PEM), "-----BEGIN PRIVATE")
			long.PEM = append(long.PEM, link...)
		}
		next := *cfg
		next.Certs = []*Cert{long, testCert(t, "short.pem", "short", "short.test")}
		var res Result
		r.eventually("the reload is done", func() bool { res = r.apply(&next, nil); return res.Reloaded })
		if want := "a certificate changed that needs a reload"; res.Reason != want {
			t.Errorf("got reason %q, want %q", res.Reason, want)
		}
		r.settle(&next, nil)
		for _, name := range []string{"long", "short"} {
			if got := r.served(name + ".test"); got != name {
				t.Errorf("got %q, want %q", got, name)
			}
		}
		r.settle(cfg, nil)
		if got, want := r.served("long.test"), "default certificate of sallyport"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestAColdStartOpensNothing(t *testing.T) {
	r := newRig(t, binaries(t)[0])
	cfg := r.config(backend("app", origin(t, "a")))
	r.settle(cfg, states(cfg, Open))
	r.end()
	r.p = r.fresh()
	r.run()
	if servers, err := byID(r.p.Servers()); err != nil || len(servers) != 0 {
		t.Errorf("before the first Apply: got %v, %v, want none", servers, err)
	}
	if _, err := r.try("app.test", "/"); err == nil {
		t.Error("HAProxy was started from what was found on the disk")
	}
	text := func() string {
		text, err := os.ReadFile(r.p.path(configFile))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	// What a crash leaves that comes between the start and the first command.
	r.p.mu.Lock()
	err := r.p.prepare(t.Context(), cfg, inOrder(cfg, states(cfg, Open)))
	r.p.mu.Unlock()
	if err != nil || !strings.Contains(text(), " disabled\n") {
		t.Errorf("got %v, want every server disabled:\n%s", err, text())
	}
	if res := r.apply(cfg, states(cfg, Open)); res.Reloaded || res.Commands != 1 {
		t.Errorf("got %+v, want one command and no reload", res)
	}
	if got := r.get("app.test", "/"); got != "a" {
		t.Errorf("got %q, want a", got)
	}
}

func TestAnAddressThatIsTakenIsNotTheEnd(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg := r.config(backend("app", origin(t, "a")))
		r.settle(cfg, states(cfg, Open))
		r.end()
		taken, err := net.Listen("tcp", r.http.String())
		if err != nil {
			t.Fatal(err)
		}
		r.p = r.fresh()
		r.run()
		r.eventually("everything is as wished", func() bool {
			if _, err := r.p.Apply(t.Context(), cfg, inOrder(cfg, states(cfg, Open))); err != nil {
				if !strings.Contains(err.Error(), r.http.String()+" is in use by haproxy.test") {
					t.Fatal(err)
				}
				if got := r.p.Info(); !got.Running || got.Starts != 1 || got.LastError == "" {
					t.Errorf("got %+v, want an empty HAProxy that takes orders, and an error", got)
				}
				_ = taken.Close()
				r.p.mu.Lock()
				r.p.schedule.rejected.until = time.Time{}
				r.p.mu.Unlock()
				return false
			}
			got, err := r.try("app.test", "/")
			return err == nil && got == "a"
		})
	})
}

func TestAFailedReloadKeepsServing(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		a, b := origin(t, "a"), origin(t, "b")
		cfg := r.config(backend("app", a))
		r.settle(cfg, states(cfg, Open))
		good, err := os.ReadFile(filepath.Join(r.opt.Dir, configFile))
		if err != nil {
			t.Fatal(err)
		}
		taken, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer taken.Close()
		for _, c := range []struct {
			name string
			bad  func(*Config)
			want []string
		}{
			{"what HAProxy does not know", func(c *Config) {
				c.Tune.Base = "global\n  no-such-keyword 1\n"
			}, []string{"no-such-keyword", failedFile}},
			{
				"an address that is taken", func(c *Config) { c.Bind.HTTP = append(c.Bind.HTTP, addrPort(taken)) },
				[]string{addrPort(taken).String(), fmt.Sprintf("is in use by haproxy.test (pid %d)", os.Getpid())},
			},
		} {
			bad := r.config(backend("app", a), backend("other", b))
			c.bad(bad)
			_, err := r.p.Apply(t.Context(), bad, inOrder(bad, states(bad, Open)))
			if err == nil {
				t.Fatalf("%s: Apply succeeded", c.name)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%s: got %v, want %q in it", c.name, err, want)
				}
			}
			text, err := os.ReadFile(filepath.Join(r.opt.Dir, configFile))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(text), "backend app\n") || strings.Contains(string(text), "backend other\n") {
				t.Errorf("%s: haproxy.cfg is not one that works:\n%s", c.name, text)
			}
			if err := check(binary, r.opt.Dir); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			failed, err := os.ReadFile(filepath.Join(r.opt.Dir, failedFile))
			if err != nil || !strings.Contains(string(failed), "backend other\n") {
				t.Errorf("%s: the failed file was not kept: %v", c.name, err)
			}
			if got := r.get("app.test", "/"); got != "a" {
				t.Errorf("%s: got %q, want a", c.name, got)
			}

			// The endpoints go on changing, and the same reload is not
			// tried again at once.
			bad.Backends[0] = backend("app", b)
			res, err := r.p.Apply(t.Context(), bad, inOrder(bad, states(bad, Open)))
			if err == nil || res.Reloaded || res.RetryAt.Before(time.Now()) {
				t.Errorf("%s, again: got %+v, %v, want the same error and a time", c.name, res, err)
			}
			if got := r.get("app.test", "/"); got != "b" {
				t.Errorf("%s, again: got %q, want b", c.name, got)
			}
			r.settle(cfg, states(cfg, Open))
			text, err = os.ReadFile(filepath.Join(r.opt.Dir, configFile))
			if err != nil || string(text) != string(good) {
				t.Errorf("%s: afterwards haproxy.cfg is not what it was: %v", c.name, err)
			}
		}
	})
}

func addrPort(l net.Listener) netip.AddrPort { return netip.MustParseAddrPort(l.Addr().String()) }

func TestAReloadUnderLoadDropsNothing(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		a := origin(t, "a")
		cfg := r.config(backend("app", a))
		r.settle(cfg, states(cfg, Open))
		var sent, failed atomic.Int64
		var clients sync.WaitGroup
		stop := make(chan struct{})
		for i := range 4 {
			clients.Go(func() {
				client := &http.Client{Transport: &http.Transport{DisableKeepAlives: i%2 == 0}}
				defer client.CloseIdleConnections()
				for range 20000 {
					select {
					case <-stop:
						return
					default:
					}
					req, _ := http.NewRequest(http.MethodGet, "http://"+r.http.String()+"/", http.NoBody)
					req.Host = "app.test"
					res, err := client.Do(req)
					sent.Add(1)
					if err != nil {
						failed.Add(1)
						t.Log(err)
						continue
					}
					body, err := io.ReadAll(res.Body)
					_ = res.Body.Close()
					if err != nil || string(body) != "a" {
						failed.Add(1)
						t.Log(res.Status, string(body), err)
					}
				}
			})
		}
		for i := range 5 {
			before := sent.Load()
			r.eventually("requests flow", func() bool { return sent.Load() > before+50 })
			next := r.config(backend("app", a), distinct(backend(fmt.Sprintf("more%d", i))))
			r.eventually("the reload is done", func() bool { return r.apply(next, states(next, Open)).Reloaded })
		}
		before := sent.Load()
		r.eventually("requests flow", func() bool { return sent.Load() > before+50 })
		close(stop)
		clients.Wait()
		if got := failed.Load(); got != 0 {
			t.Errorf("%d of %d requests failed", got, sent.Load())
		}
	})
}

func TestAFailureInTheMiddleOfABatchIsSeen(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg := r.config(backend("app", nowhereServer(1), nowhereServer(2), nowhereServer(3)))
		wish := states(cfg, Open)
		r.settle(cfg, wish)
		// Somebody else takes the middle one away.
		middle := ServerID{"app", nowhereServer(2).Name}
		if err := r.p.worker.tell([]string{
			"set server " + middle.String() + " state maint",
			"del server " + middle.String(),
		}); err != nil {
			t.Fatal(err)
		}
		wish = states(cfg, Closed)
		if _, err := r.p.Apply(t.Context(), cfg, inOrder(cfg, wish)); err == nil {
			t.Error("a command for a server that is not there: got no error")
		}
		r.settle(cfg, wish)
		servers, err := byID(r.p.Servers())
		if err != nil || servers[middle].State != Closed || len(servers) != 3 {
			t.Errorf("got %v, %v", servers, err)
		}
		for line, want := range map[string]bool{
			"show version;nonsense;show version":                     true,
			"show version;set server app/x state ready;show version": true,
			"show version;show version":                              false,
		} {
			answer, err := r.p.worker.ask(line)
			if err != nil || (fault(answer) != nil) != want {
				t.Errorf("%s: got %v, %v, want a fault: %v", line, fault(answer), err, want)
			}
		}
	})
}

func TestServersChangeAlthoughTheFilesCannotBeWritten(t *testing.T) {
	r := newRig(t, binaries(t)[0])
	one, two := nowhereServer(1), nowhereServer(2)
	first, second := ServerID{"app", one.Name}, ServerID{"app", two.Name}
	cfg := r.config(backend("app", one, two))
	r.settle(cfg, map[ServerID]State{first: Open, second: Closed})
	dir := r.p.disk.dir
	for _, tt := range []struct {
		mode          Mode
		wish, reached map[ServerID]State
	}{
		{Managed, map[ServerID]State{first: Closed, second: Open}, map[ServerID]State{first: Closed, second: Open}},
		// Who runs HAProxy may start it from the files at any time: they may not have open what is closed.
		{External, map[ServerID]State{first: Open, second: Closed}, map[ServerID]State{first: Closed, second: Closed}},
	} {
		r.p.opt.Mode, r.p.disk.dir = tt.mode, filepath.Join(t.TempDir(), "gone")
		_, err := r.p.Apply(t.Context(), cfg, inOrder(cfg, tt.wish))
		if tt.mode == External && (err == nil || !strings.Contains(err.Error(), "writing HAProxy's files")) {
			t.Errorf("%s: got %v, want a word of the files", tt.mode, err)
		}
		got, err := byID(r.p.Servers())
		for id, want := range tt.reached {
			if err != nil || got[id].State != want {
				t.Errorf("%s: %s is %s, %v, want %s", tt.mode, id, got[id].State, err, want)
			}
		}
	}
	r.p.opt.Mode, r.p.disk.dir = Managed, dir
	r.settle(cfg, map[ServerID]State{first: Closed, second: Open})
	if got, err := byID(r.p.Servers()); err != nil || got[second].State != Open {
		t.Errorf("once they can be written: %v, %v, want the second open", got, err)
	}
}

func TestCommandsThatGoOnFailingEndInAReload(t *testing.T) {
	r := newRig(t, binaries(t)[0])
	cfg := r.config(backend("app", nowhereServer(1)))
	r.settle(cfg, states(cfg, Open))
	for range 2 {
		r.p.belief.run.backends = r.p.belief.run.backends.With(
			map[string]*LiveBackend{"ghost": {[]Live{{Name: "s", State: Open}}}})
		r.p.belief.run.told = nil
		if _, err := r.p.Apply(t.Context(), cfg, inOrder(cfg, states(cfg, Closed))); err == nil {
			t.Error("commands for a backend that is not there: got no error")
		}
		if err := r.p.know(); err != nil {
			t.Fatal(err)
		}
	}
	res := r.apply(cfg, states(cfg, Closed))
	if !res.Reloaded || res.Reason != "commands to the worker failed" {
		t.Errorf("got %+v, want a reload", res)
	}
}

func TestAnExternalHAProxyIsDriven(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		someone := newRig(t, binary) // who runs it
		r := &rig{t: t, opt: someone.opt, http: someone.http, https: someone.https}
		r.opt.Mode = External
		r.opt.MasterSocket = filepath.Join(r.opt.RunDir, "master.sock")
		if _, err := New(r.opt); err == nil || !strings.Contains(err.Error(), "start HAProxy with") {
			t.Errorf("no master socket: got %v", err)
		}
		// A file that knows nothing of our sockets.
		foreign := "global\n  maxconn 100\ndefaults\n  mode http\n  timeout client 1s\n  timeout connect 1s\n" +
			"  timeout server 1s\nlisten x\n  bind " + freePort(t).String() + "\n"
		if err := os.WriteFile(filepath.Join(r.opt.Dir, configFile), []byte(foreign), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := New(someone.opt); err == nil || !strings.Contains(err.Error(), "was not written by sallyport") {
			t.Errorf("a foreign haproxy.cfg: got %v", err)
		}
		cmd := exec.Command(binary, "-W", "-S", r.opt.MasterSocket, "-f", filepath.Join(r.opt.Dir, configFile)) //nolint:gosec // in a test
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		pid := cmd.Process.Pid
		t.Cleanup(func() {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			_ = cmd.Wait()
		})
		r.eventually("HAProxy's master answers", func() bool {
			found, err := someone.p.master.show()
			return err == nil && len(found.workers) == 1
		})
		r.p = r.fresh()
		if servers, err := byID(r.p.Servers()); err != nil || len(servers) != 0 {
			t.Errorf("before any Apply: got %v, %v, want none", servers, err)
		}
		cfg := r.config(backend("app", origin(t, "a")))
		r.settle(cfg, states(cfg, Open))
		if got := r.get("app.test", "/"); got != "a" {
			t.Errorf("got %q, want a", got)
		}
		if got := r.p.Info(); got.Pid != pid || got.Starts != 0 || got.Reloads != 1 {
			t.Errorf("got %+v, want one reload of process %d", got, pid)
		}
		former, err := os.ReadFile(filepath.Join(r.opt.Dir, formerFile))
		if err != nil || string(former) != foreign {
			t.Errorf("the former file was not kept: %v", err)
		}
	})
}

func TestNewSaysWhatToDo(t *testing.T) {
	dir := t.TempDir()
	old := filepath.Join(dir, "old")
	other, posix, plain := filepath.Join(dir, "other"), filepath.Join(dir, "posix"), filepath.Join(dir, "plain")
	for path, text := range map[string]string{
		old: "HA-Proxy version 2.2.9-2 2021/03/18", other: "nginx version 1",
		posix: "HAProxy version 3.0.1\nFeature list : -PCRE -PCRE2 +LUA",
		plain: "HAProxy version 3.0.1\nFeature list : -OPENSSL +PCRE2",
	} {
		writeProgram(t, path, "#!/bin/sh\necho '"+text+"'\n")
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	good := Options{Binary: binaries(t)[0], Dir: dir + "/etc", RunDir: dir + "/run"}
	for want, change := range map[string]func(*Options){
		"install the package haproxy":   func(o *Options) { o.Binary = "/no/such/haproxy" },
		"too old: want 2.6 or newer":    func(o *Options) { o.Binary = old },
		"was built without PCRE2":       func(o *Options) { o.Binary = posix },
		"was built without OPENSSL":     func(o *Options) { o.Binary = plain },
		"is not HAProxy":                func(o *Options) { o.Binary = other },
		"configuration directory":       func(o *Options) { o.Dir = file + "/x" },
		"must be an absolute path":      func(o *Options) { o.Dir = "etc" },
		"path of letters":               func(o *Options) { o.Dir = "/tmp/with space" },
		"allows for 80":                 func(o *Options) { o.RunDir = "/" + strings.Repeat("x", 81) },
		"start HAProxy with \"haproxy ": func(o *Options) { o.Mode, o.MasterSocket = External, dir+"/none.sock" },
	} {
		opt := good
		change(&opt)
		if _, err := New(opt); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	p, err := New(good)
	if err != nil {
		t.Fatal(err)
	}
	p.belief.ready = true // as after an Apply
	if _, err := p.Servers(); err == nil {
		t.Error("no HAProxy runs: Servers says there are none, want an error")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Apply(ctx, &Config{}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	if pid := p.recordedMaster(); pid != 0 {
		t.Errorf("a cancelled Apply started HAProxy, process %d", pid)
	}
}
