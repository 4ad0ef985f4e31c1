package main

import (
	"bytes"
	"context"
	"crypto/tls"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/template"

	"sallyport/test/lab/debian"
	"sallyport/test/load"
	"sallyport/test/rig"
)

var proxyRows = []row{
	{16, "processor time of a request, beside nginx, Caddy and Traefik", alone, otherProxies},
}

// The configurations of other proxies.
var (
	//go:embed nginx.conf
	nginxText string
	//go:embed Caddyfile
	caddyText string
	//go:embed traefik.yaml
	traefikText string
)

// Another is a proxy that people use in the place of HAProxy.
type another struct {
	name, text, file string
	args             func(w written, file string) []string
	asks             string // for the version
	built            bool   // its program lies where test/rivals has it; else it is that of Debian 13
}

// others returns the proxies whose programs can be had, and tells which one is left out.
func others() ([]another, error) {
	all := []another{
		{name: "nginx", text: nginxText, file: "nginx.conf", asks: "-v", args: func(_ written, file string) []string {
			return []string{"-e", "stderr", "-c", file}
		}},
		{name: "caddy", text: caddyText, file: "Caddyfile", asks: "version", args: func(_ written, file string) []string {
			return []string{"run", "--adapter", "caddyfile", "--config", file}
		}},
		{
			name: "traefik", text: traefikText, file: "hosts.yaml", asks: "version", built: true,
			args: func(w written, file string) []string {
				return []string{
					"--entryPoints.web.address=" + w.HTTP.String(), "--entryPoints.websecure.address=" + w.HTTPS.String(),
					"--providers.file.filename=" + file, "--global.checkNewVersion=false", "--global.sendAnonymousUsage=false",
				}
			},
		},
	}
	folder, err := builtFolder()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(o another) bool {
		_, err := os.Stat(filepath.Join(folder, o.name))
		if o.built && err != nil {
			progress("%s is left out: its program is not in %s", o.name, folder)
		}
		return o.built && err != nil
	}), nil
}

// builtFolder returns the folder of the programs that test/rivals compares.
func builtFolder() (string, error) {
	cache, err := debian.Cache()
	return filepath.Join(cache, "rivals"), err
}

// program returns the program of a proxy.
func (o another) program(ctx context.Context) (string, error) {
	folder, err := builtFolder()
	if !o.built {
		folder, err = debian.Package{Suite: "trixie", Name: o.name}.Fetch(ctx, os.Stderr)
	}
	return filepath.Join(folder, o.name), err
}

// write writes the configuration of a proxy for some hosts, and returns its text. A proxy that watches the file sees
// all of it at once.
func (o another) write(w written, hosts []string) ([]byte, error) {
	var text bytes.Buffer
	err := template.Must(template.New(o.name).Parse(o.text)).Execute(&text, struct {
		written
		Hosts []string
	}{w, hosts})
	if err == nil {
		file := filepath.Join(w.Dir, o.file)
		err = errors.Join(os.WriteFile(file+".new", text.Bytes(), 0o600), os.Rename(file+".new", file))
	}
	return text.Bytes(), err
}

// start starts the proxy of a stage for some hosts.
func (o another) start(ctx context.Context, s *stage, name string, hosts []string) (*side, error) {
	program, err := o.program(ctx)
	if err != nil {
		return nil, err
	}
	version, err := exec.CommandContext(ctx, program, o.asks).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", program, err, version)
	}
	free, err := freeAddresses(2)
	if err != nil {
		return nil, err
	}
	w := written{
		Dir: filepath.Join(s.dir, name), HTTP: free[0], HTTPS: free[1], Pods: s.pods[:replicas], Large: s.large,
	}
	err = errors.Join(os.MkdirAll(w.Dir, 0o700), os.WriteFile(filepath.Join(w.Dir, "app.pem"), s.cert, 0o600))
	if err == nil {
		_, err = o.write(w, hosts)
	}
	if err != nil {
		return nil, err
	}
	var log bytes.Buffer
	cmd := exec.CommandContext(context.WithoutCancel(ctx), program, o.args(w, filepath.Join(w.Dir, o.file))...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // see startWritten
	cmd.Env = append(os.Environ(), "HOME="+w.Dir, "XDG_DATA_HOME="+w.Dir, "XDG_CONFIG_HOME="+w.Dir)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	line, _, _ := strings.Cut(string(version), "\n") // a program that was built by hand may have no version in it
	name = strings.TrimSpace(o.name + " " + regexp.MustCompile(`\d+\.\d+\.\d+`).FindString(line))
	p := &side{name: name, http: w.HTTP, https: w.HTTPS, worker: cmd.Process.Pid, family: true}
	s.stops = append(s.stops, func() error {
		err := cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		return err
	})
	err = rig.Eventually(ctx, o.name+" answers", func() error {
		c, err := load.Open(ctx, load.From, p.http.String(), nil, load.Patience)
		if err == nil {
			err = errors.Join(c.Exchange(browser(hosts[0], "/")), c.Close())
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, log.String())
	}
	return p, nil
}

// childrenOf returns the processes that a process has started (proc_pid_task(5)).
func childrenOf(pid int) (all []int, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range files {
		text, failed := os.ReadFile(file)
		err = errors.Join(err, failed)
		for word := range strings.FieldsSeq(string(text)) {
			child, failed := strconv.Atoi(word)
			all, err = append(all, child), errors.Join(err, failed)
		}
	}
	return all, err
}

// hostsOf returns so many hosts of a crowd, and app.test before them.
func hostsOf(n int) []string {
	hosts := []string{"app.test"}
	for i := range n {
		hosts = append(hosts, crowdHost(i))
	}
	return hosts
}

// otherProxies measures the same requests through HAProxy as the appliance drives it, through a HAProxy with a
// hand-written file, and through other proxies. All have the same pods.
func otherProxies(ctx context.Context, b *bench) error {
	return b.onStages(ctx, func(s *stage) error {
		for _, n := range []int{0, 1000, 10_000} {
			if err := b.besideProxies(ctx, s, n); err != nil {
				return fmt.Errorf("with %d hosts: %w", n, err)
			}
		}
		return nil
	})
}

// besideProxies measures the requests to n hosts beside app.test, or to app.test alone, which is asked over TLS, too.
func (b *bench) besideProxies(ctx context.Context, s *stage, n int) error {
	cfg, err := compiled(crowd{ingresses: n, calls: true})
	if err != nil {
		return err
	}
	ours, _, _, err := s.drive(ctx, fmt.Sprintf("sallyport-%d", n), cfg)
	if err != nil {
		return err
	}
	rival, err := s.write(ctx, fmt.Sprintf("hand-written-%d", n), rivalText, cfg)
	if err != nil {
		return err
	}
	rival.name = "hand-written"
	rest, err := others()
	if err != nil {
		return err
	}
	sides, hosts := []*side{ours, rival}, hostsOf(n)
	for _, o := range rest {
		p, err := o.start(ctx, s, fmt.Sprintf("%s-%d", o.name, n), hosts)
		if err != nil {
			return err
		}
		sides = append(sides, p)
	}
	requests := [][]byte{browser("app.test", "/")}
	if n > 0 {
		requests = requests[:0]
		for k := range 997 { // hosts all over the map
			requests = append(requests, browser(hosts[k*7919%len(hosts)], "/"))
		}
	}
	kinds := []struct {
		what string
		rate int
		add  func(c *contender) error
	}{
		{"HTTP/1.1", requestsPerSecond, func(c *contender) error {
			return c.load.keep(ctx, keptConnections, c.http.String(), nil, requests)
		}},
		{"HTTP/1.1 over TLS", requestsPerSecond, func(c *contender) error {
			return c.load.keep(ctx, keptConnections, c.https.String(), secure(), requests)
		}},
		{"h2, 100 streams", 1000, func(c *contender) error {
			over := secure()
			over.NextProtos = []string{"h2"}
			c.load.streams(ctx, 100, c.https.String(), over, "https://app.test/")
			return nil
		}},
		{"a call of gRPC, 1,000 a second on 100 streams", 1000, func(c *contender) error {
			over := secure()
			over.NextProtos = []string{"h2"}
			c.load.calls(ctx, 100, c.https.String(), over)
			return nil
		}},
		{"an answer of 1 MB", 100, func(c *contender) error {
			return c.load.keep(ctx, keptConnections, c.http.String(), nil, [][]byte{browser("app.test", largePath)})
		}},
		{"a body of 1 MB", 100, func(c *contender) error {
			body := append([]byte("POST "+largePath+" HTTP/1.1\r\nHost: app.test\r\nContent-Length: "+
				strconv.Itoa(megabyte)+"\r\n\r\n"), make([]byte, megabyte)...)
			return c.load.keep(ctx, keptConnections, c.http.String(), nil, [][]byte{body})
		}},
		{"a message of a WebSocket, there and back", requestsPerSecond, func(c *contender) error {
			return c.load.talk(ctx, keptConnections, c.http.String(), "app.test")
		}},
		{"a full handshake and a request", 300, func(c *contender) error {
			c.load.renew(ctx, keptConnections, c.https.String(), secure(), requests[0])
			return nil
		}},
	}
	if n > 0 {
		kinds = kinds[:1]
	}
	for _, kind := range kinds {
		var all []*contender
		for _, side := range sides {
			c := &contender{side: side}
			all = append(all, c)
			if err := kind.add(c); err != nil {
				return fmt.Errorf("%s: %s: %w", side.name, kind.what, err)
			}
		}
		if err := compete(ctx, kind.rate, rounds/2, all...); err != nil {
			return fmt.Errorf("%s: %w", kind.what, err)
		}
		what := kind.what
		if n > 0 {
			what += fmt.Sprintf(" to any of %d hosts", len(hosts))
		}
		for i, c := range all[1:] {
			f := value("processor time, "+what+", HAProxy "+s.version, all[0].cost(), "µs").beside(c.name, c.cost())
			if i > 0 {
				f = f.timesAtMost(1)
			}
			b.add(f)
		}
	}
	return nil
}

// secure returns the configuration with which a client speaks TLS with a side.
func secure() *tls.Config {
	return &tls.Config{ServerName: "app.test", InsecureSkipVerify: true} //nolint:gosec // our own certificate, on loopback
}
