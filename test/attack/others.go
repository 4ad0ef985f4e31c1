package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"sallyport/test/faults"
	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// others returns the attacks of nodes, pods, neighbours and volumes, and those for which all of the
// appliance is needed.
func others() []attack {
	return []attack{
		{
			by: "tenant", tries: "has keys that HAProxy refuses in place while HAProxy and the appliance restart",
			promise: "a fault of one object stops no start", objects: badKeys, lab: restarts,
		},
		{
			by: "tenant", tries: "brings 60 certificates that Go accepts and OpenSSL rejects",
			promise: "a change of victim, and a start, cost as many runs of HAProxy as without them",
			lab:     blocks,
		},
		{
			by: "tenant", tries: "has 60 Secrets of 1 MB that nobody names",
			promise: "the appliance keeps only Secrets that something names", lab: hoards,
		},
		{
			by: "tenant", tries: "changes a setting of an Ingress without end, then a guard",
			promise: "a namespace causes a few reloads at once and then one in 30 s; connections and changes of " +
				"others stay; a guard closes its path at once", lab: reloads,
		},
		{
			by: "tenant", tries: "changes 100 wildcard hosts without end, which makes all routes anew",
			promise: "such changes of a namespace wait once it has used up its share of the time, and changes of " +
				"others do not", lab: remakes,
		},
		{
			by: "tenant", tries: "has 60 EndpointSlices of 1 MB that no Service has",
			promise: "a namespace has its share of the memory, and the last good picture has only what is served",
			lab:     hoardsSlices,
		},
		{
			by: "client", tries: "leaves 400 TLS handshakes half done",
			promise: "an unfinished handshake is closed soon, and other clients are served meanwhile", lab: halfDone,
		},
		{
			by: "client", tries: "tries every other port of the appliance",
			promise: "clients reach no ports but HTTP and HTTPS", lab: ports,
		},
		{
			by: "neighbour", tries: "asks the status endpoint by a name of its own (DNS rebinding)",
			promise: "the status endpoint answers to its own names",
			lab: func(ctx context.Context, _ *testbed, r *rig.Rig) error {
				out, err := r.Exec(ctx, world.Appliance, "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-H",
					"Host: status.evil.example", "http://127.0.0.1:9090/status")
				if err == nil && !strings.HasPrefix(out, "4") {
					err = fmt.Errorf("it answers %s", out)
				}
				return err
			},
		},
		{
			by: "neighbour", tries: "reads status, metrics, logs and arguments of processes for secrets",
			promise: "keys, passwords and tokens are in none of them", lab: secrets,
		},
		{
			by: "pod", tries: "takes its node's BGP session while calico-node restarts",
			promise: "the appliance dials the nodes and accepts no session", lab: takesSession,
		},
		{
			by: "node", tries: "offers others' blocks, more specifics, defaults, networks of the LAN, foreign next hops",
			promise: "a route is what Calico's records say of the node that offers it", lab: lies,
		},
		{
			by: "node", tries: "sends malformed messages",
			promise: "a malformed message ends its own session and no other", lab: garbage,
		},
		{
			by: "node", tries: "opens 800 connections to the BGP port, and a client as many",
			promise: "the appliance keeps serving", lab: manyConnections,
		},
		{
			by: "node", tries: "claims another node's address",
			promise: "the node whose records agree keeps its address, and /status reports the claim", lab: claims,
		},
		{
			by: "volume", tries: "brings a configuration file nested 100,000 deep",
			promise: "a file is refused by its size and depth, in one sentence", lab: deep,
		},
	}
}

// badKeys returns the objects of the case "brings keys ...".
func badKeys(s *testbed) string {
	all := tenants()
	return all[slices.IndexFunc(all, func(a attack) bool { return strings.HasPrefix(a.tries, "brings keys") })].objects(
		s)
}

// restarts ends the appliance and HAProxy, and waits until victim is served again.
func restarts(ctx context.Context, s *testbed, r *rig.Rig) error {
	for _, alone := range []bool{true, false} {
		status, err := r.Status(ctx)
		if err != nil {
			return err
		}
		if !alone {
			if err := r.Stop(syscall.SIGKILL); err != nil {
				return err
			}
		}
		if err := faults.Kill(status.HAProxy.Worker, status.HAProxy.Pid); err != nil {
			return err
		}
		if !alone {
			if err := errors.Join(r.Start(ctx), r.Ready(ctx)); err != nil {
				return err
			}
		}
		if err := s.eventually(ctx, func() error { return s.unharmed(ctx) }); err != nil {
			return fmt.Errorf("after HAProxy alone: %v: %w", alone, err)
		}
	}
	return nil
}

// hoards checks that the appliance's resident memory does not grow by Secrets that nobody names.
func hoards(ctx context.Context, s *testbed, r *rig.Rig) error {
	before, err := rig.Resident(r.Pid())
	if err != nil {
		return err
	}
	filler := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", 700<<10)))
	defer func() {
		_, _ = r.Kubectl(ctx, "delete", "secrets", "-n", "evil", "-l", "hoard=yes")
	}()
	for i := range 60 {
		manifest := fmt.Sprintf("apiVersion: v1\nkind: Secret\ntype: kubernetes.io/tls\n"+
			"metadata: {namespace: evil, name: hoard%d, labels: {hoard: \"yes\"}}\n"+
			"data: {tls.crt: %s, tls.key: \"\"}\n", i, filler)
		if err := create(ctx, r, manifest); err != nil {
			return err
		}
	}
	return settled(ctx, s, r, before, 30<<20)
}

// settled waits until the appliance has seen all objects, and checks how much its resident
// memory has grown.
func settled(ctx context.Context, s *testbed, r *rig.Rig, before, most int) error {
	if err := s.seen(ctx); err != nil {
		return err
	}
	after, err := rig.Resident(r.Pid())
	if err == nil && after > before+most {
		err = fmt.Errorf("resident memory was %d MB, and is %d", before>>20, after>>20)
	}
	return err
}

// hoardsSlices checks that neither the appliance's resident memory nor its picture grows by
// EndpointSlices that no Service has, beyond the share of a namespace.
func hoardsSlices(ctx context.Context, s *testbed, r *rig.Rig) error {
	before, err := rig.Resident(r.Pid())
	if err != nil {
		return err
	}
	endpoint := `{"addresses": ["172.16.0.1"], "targetRef": {"kind": "Pod", "namespace": "evil", "name": "` +
		strings.Repeat("x", 900) + `"}}`
	endpoints := strings.Join(slices.Repeat([]string{endpoint}, 1000), ",")
	defer func() {
		_, _ = r.Kubectl(ctx, "delete", "endpointslices", "-n", "evil", "-l", "hoard=yes")
	}()
	for i := range 60 {
		manifest := fmt.Sprintf(
			`{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "metadata": {"namespace": "evil", "name": "hoard%d", "labels": {"hoard": "yes", "kubernetes.io/service-name": "none"}}, "endpoints": [%s]}`, i, endpoints)
		if err := create(ctx, r, manifest); err != nil {
			return err
		}
	}
	// 16 MB of them are kept, and a collector of garbage needs as much again, or twice.
	if err := settled(ctx, s, r, before, 90<<20); err != nil {
		return err
	}
	pictures, _ := filepath.Glob(filepath.Join(r.Dir, "state", "picture-*"))
	if len(pictures) == 0 {
		return fmt.Errorf("there is no picture in %s", r.Dir)
	}
	for _, one := range pictures {
		if info, err := os.Stat(one); err == nil && info.Size() > 10<<20 {
			return fmt.Errorf("%s has %d MB", filepath.Base(one), info.Size()>>20)
		}
	}
	return nil
}

// hello is the beginning of a TLS handshake; its length field announces more bytes.
const hello = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"

func halfDone(ctx context.Context, s *testbed, r *rig.Rig) error {
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	began := time.Now()
	for range 400 {
		c, err := s.Dial(ctx, applianceAddr+":443")
		if err != nil {
			return err
		}
		conns = append(conns, c)
		if _, err := io.WriteString(c, hello); err != nil {
			return err
		}
	}
	if err := s.unharmed(ctx); err != nil {
		return err
	}
	status, err := r.Status(ctx)
	if err != nil {
		return err
	}
	most := 20 * time.Second
	// it has no time for handshakes alone: timeout-client, and a look at the name before
	if strings.HasPrefix(status.HAProxy.Version, "2.") {
		most = 70 * time.Second
	}
	for _, c := range conns {
		_ = c.SetReadDeadline(began.Add(most))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("one is open after %s", most)
		}
	}
	return nil
}

// ports checks that only 80 and 443 listen at addresses that others can reach.
func ports(ctx context.Context, _ *testbed, r *rig.Rig) error {
	out, err := r.Exec(ctx, world.Appliance, "cat", "/proc/net/tcp", "/proc/net/tcp6")
	if err != nil {
		return err
	}
	var errs []error
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < 4 || f[3] != "0A" { // TCP_LISTEN
			continue
		}
		address, hex, _ := strings.Cut(f[1], ":")
		port, err := strconv.ParseUint(hex, 16, 16)
		local := strings.HasSuffix(address, "7F") || address == "00000000000000000000000001000000"
		if err == nil && !local && port != 80 && port != 443 {
			err = fmt.Errorf("port %d listens at %s", port, address)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// secrets searches status, metrics, logs and arguments of processes for secrets.
func secrets(ctx context.Context, _ *testbed, r *rig.Rig) error {
	hidden := map[string]string{
		"a hash of a password": "kpa26zwgX83BPSR8d7w93OIXbFt",
		"a password":           encode("ann:secret"),
	}
	for _, name := range []string{"shop", "bank"} {
		key, err := r.Kubectl(ctx, "get", "secret", "-n", "victim", name, "-o", `jsonpath={.data.tls\.key}`)
		if err != nil {
			return err
		}
		text, err := base64.StdEncoding.DecodeString(key)
		if err != nil {
			return err
		}
		hidden["the key of "+name] = strings.Split(string(text), "\n")[1]
	}
	kubeconfig, err := os.ReadFile(r.Dir + "/kubeconfig")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(kubeconfig)) {
		if _, token, is := strings.Cut(line, "token:"); is {
			hidden["the token"] = strings.Trim(strings.TrimSpace(token), `"`)
		}
	}
	if hidden["the token"] == "" {
		return errors.New("the kubeconfig has no token: there is nothing to look for")
	}
	shown := map[string]string{}
	for _, page := range []string{"/status", "/metrics", "/explain/victim/shop", "/explain/victim/members"} {
		shown[page], _ = r.Exec(ctx, world.Appliance, "curl", "-s", "http://127.0.0.1:9090"+page)
	}
	if shown["/status"] == "" || shown["/metrics"] == "" {
		return errors.New("the status endpoint says nothing")
	}
	log, err := os.ReadFile(r.LogFile())
	if err != nil {
		return err
	}
	shown["the log"] = string(log)
	files, err := filepath.Glob(r.Dir + "/run/*.log")
	if err != nil {
		return err
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		shown[f] = string(text)
	}
	status, err := r.Status(ctx)
	if err != nil {
		return err
	}
	for _, pid := range []int{r.Pid(), status.HAProxy.Pid, status.HAProxy.Worker} {
		for _, file := range []string{"cmdline", "environ"} {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
			if err != nil {
				return err
			}
			shown[fmt.Sprintf("%s of process %d", file, pid)] = string(text)
		}
	}
	var errs []error
	for where, text := range shown {
		for what, word := range hidden {
			if strings.Contains(text, word) {
				errs = append(errs, fmt.Errorf("%s is in %s", what, where))
			}
		}
	}
	return errors.Join(errs...)
}

// takesSession opens connections to the appliance's BGP port from a node whose BIRD is dead, as a
// pod can: its traffic leaves under its node's address.
func takesSession(ctx context.Context, s *testbed, r *rig.Rig) error {
	before, err := kernelRoutes(ctx, r)
	if err != nil {
		return err
	}
	const down = 8 * time.Second
	restarted := make(chan error, 1)
	go func() { restarted <- r.RestartCalico(ctx, "worker1", down) }()
	var held []net.Conn
	defer func() {
		for _, c := range held {
			_ = c.Close()
		}
	}()
	for done := false; !done; {
		dial, cancel := context.WithTimeout(ctx, time.Second)
		if c, err := r.Dial(dial, "worker1", applianceAddr+":179"); err == nil {
			held = append(held, c)
			l := liar{c}
			_ = c.SetDeadline(time.Now().Add(time.Second))
			if l.establish(65000, node(r, "worker1").Addr.Addr()) == nil {
				err = errors.New("a session was made by whoever called")
				cancel()
				return errors.Join(err, <-restarted)
			}
		}
		cancel()
		select {
		case err := <-restarted:
			if err != nil {
				return err
			}
			done = true
		case <-time.After(100 * time.Millisecond):
		}
	}
	// The node's own session returns although the connections stay open.
	return s.eventually(ctx, func() error {
		status, err := r.Status(ctx)
		if err != nil {
			return err
		}
		for _, p := range status.Peers {
			if p.Node == "worker1" && !strings.EqualFold(p.State, "established") {
				return fmt.Errorf("the session with the node is %s", p.State)
			}
		}
		now, err := kernelRoutes(ctx, r)
		if err == nil && !slices.Equal(now, before) {
			err = fmt.Errorf("routes were %q and are %q", before, now)
		}
		return errors.Join(err, s.unharmed(ctx))
	})
}

func manyConnections(ctx context.Context, s *testbed, r *rig.Rig) error {
	var mu sync.Mutex
	var conns []net.Conn
	var all sync.WaitGroup
	for _, from := range []string{world.Client, "worker2"} {
		all.Go(func() {
			for range 800 {
				dial, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
				c, err := r.Dial(dial, from, applianceAddr+":179")
				cancel()
				if err == nil {
					mu.Lock()
					conns = append(conns, c)
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	return errors.Join(s.seen(ctx), s.unharmed(ctx), r.Ready(ctx))
}

// claims gives a node the address of another one, in its Node object and in Calico's annotation.
func claims(ctx context.Context, s *testbed, r *rig.Rig) error {
	const key = "projectcalico.org/IPv4Address"
	honest, err := r.Kubectl(ctx, "get", "pods", "-n", "victim", "-l", "app=app", "-o",
		"jsonpath={.items[0].spec.nodeName}")
	if err != nil {
		return err
	}
	liar := "worker2"
	if honest == liar { // the pods of a node that claims so are no longer served
		liar = "worker1"
	}
	mine, theirs := node(r, liar).Addr.String(), node(r, honest).Addr
	patch := fmt.Sprintf(
		`{"status":{"addresses":[{"type":"InternalIP","address":"%s"},{"type":"ExternalIP","address":"%s"},{"type":"Hostname","address":"%s"}]}}`,
		theirs.Addr(), clientAddr, liar)
	before, err := r.Kubectl(ctx, "get", "node", liar, "-o", "jsonpath={.status.addresses}")
	if err != nil {
		return err
	}
	_, err1 := r.Kubectl(ctx, "patch", "node", liar, "--subresource=status", "--type=merge", "-p", patch)
	_, err2 := r.Kubectl(ctx, "annotate", "--overwrite", "node", liar, key+"="+theirs.String())
	err = errors.Join(err1, err2)
	for range 3 {
		err = errors.Join(err, s.seen(ctx), s.harmlessTo(ctx, honest))
	}
	_, err1 = r.Kubectl(ctx, "annotate", "--overwrite", "node", liar, key+"="+mine)
	_, err2 = r.Kubectl(ctx, "patch", "node", liar, "--subresource=status", "--type=merge", "-p",
		`{"status":{"addresses":`+before+`}}`)
	return errors.Join(err, err1, err2, s.eventually(ctx, func() error { return s.unharmed(ctx) }))
}

// harmlessTo checks that the session with a node is established.
func (s *testbed) harmlessTo(ctx context.Context, name string) error {
	status, err := s.rig.Status(ctx)
	if err != nil {
		return err
	}
	for _, p := range status.Peers {
		if p.Node == name && strings.EqualFold(p.State, "established") {
			return nil
		}
	}
	return fmt.Errorf("there is no session with %s", name)
}

// deep runs the program on such files, in 3 GB of address space, most of which Go's runtime
// reserves.
func deep(ctx context.Context, _ *testbed, r *rig.Rig) error {
	for name, text := range map[string]string{
		"lists": strings.Repeat("[", 100_000), "maps": strings.Repeat("{a: ", 100_000),
		"dashes": strings.Repeat("- ", 100_000), "closed": "clusters: " + strings.Repeat("[", 100_000) +
			strings.Repeat("]", 100_000),
		"large": "# " + strings.Repeat("x", 64<<20) + "\n", "aliases": aliases(),
	} {
		file := filepath.Join(r.Dir, "deep.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
		bounded, cancel := context.WithTimeout(ctx, 30*time.Second)
		cmd := exec.CommandContext(bounded, "prlimit", "--as="+strconv.Itoa(3<<30), r.Dir+"/sallyport", "config",
			"check", file)
		out, err := cmd.CombinedOutput()
		late := bounded.Err()
		cancel()
		if err == nil || late != nil {
			return fmt.Errorf("%s: it is not refused: %.300s", name, out)
		}
		if lines := strings.Count(strings.TrimSpace(string(out)), "\n") + 1; lines > 3 || len(out) > 2000 {
			return fmt.Errorf("%s: %d lines: %.300s", name, lines, out)
		}
	}
	return nil
}

// aliases returns a short document whose YAML aliases expand to 10 billion values.
func aliases() string {
	var b strings.Builder
	b.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := range 9 {
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i+1, i+1,
			strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i), 10), ", "))
	}
	return b.String()
}
