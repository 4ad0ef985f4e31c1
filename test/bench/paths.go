package main

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"text/template"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

var pathRows = []row{
	{
		5, "a request through the appliance, beside load balancer → NodePort → ingress controller in the cluster", small,
		paths,
	},
}

// The layout without the appliance: a load balancer on a host of its own, the rules of
// kube-proxy on each worker, and on each worker a pod with the HAProxy of an ingress
// controller. There are two kinds of load balancers.
const (
	proxyBalancer  = "balancer" // HAProxy in TCP mode
	kernelBalancer = "nftables" // rules of the kernel
)

var (
	//go:embed balancer.cfg
	balancerText string
	//go:embed balancer.nft
	balancerRules string
	//go:embed kubeproxy.nft
	kubeProxyRules string
	//go:embed incluster.cfg
	inClusterText string
)

// A layout is such a lab. Its configuration files are templates with these fields.
type layout struct {
	*testbed
	Addr    netip.Addr   // of the load balancer
	Workers []netip.Addr // of the cluster
	Proxies []string     // addresses of the pods with HAProxy
	Pods    []string     // addresses of the application's pods
	Host    string       // that the application is served for
	Socket  string       // of the HAProxy that the file is for
	stops   []func()
}

// A way is a way of requests from the client to the pods, with its figures.
type way struct {
	name, addr   string
	proxies      []int              // processes of its HAProxies
	all, proxied []time.Duration    // processor time of a request: of all processes, of the proxies alone
	took         [2][]time.Duration // by slice: p50 and p99 of the answers
}

var quantiles = [2]float64{0.5, 0.99}

// paths measures requests from the client's host to the pods of one Service: through the
// appliance, and through the layout without it. All processes on the way are the client, the
// proxies and the pods. Work of the kernel for a packet counts for the process that sent it.
func paths(ctx context.Context, b *bench) (err error) {
	if _, err := b.served(host(0)); err != nil {
		return err
	}
	ours, err := b.worker()
	if err != nil {
		return err
	}
	pods, err := processesOf(filepath.Join(b.Dir, "app"))
	if err != nil {
		return err
	}
	rivals := &layout{testbed: b.testbed, Pods: b.pods, Host: host(0)}
	defer func() { err = errors.Join(err, rivals.close(ctx)) }()
	ways, err := rivals.build(ctx)
	if err != nil {
		return err
	}
	client, err := b.Child(ctx, world.Client, travelArg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	for _, kind := range []struct {
		what string
		rate int
		keep bool
	}{{"kept connections", 1000, true}, {"a connection for each request", 500, false}} {
		all := []*way{{name: "appliance", addr: "192.168.50.21:80", proxies: []int{ours}}}
		for _, w := range ways {
			all = append(all, &w)
		}
		measure := func(i int) error {
			return all[i].measure(client, trip{Addr: all[i].addr, Rate: kind.rate, Keep: kind.keep}, pods)
		}
		if err := alternate(2, len(all), measure); err != nil { // warms up
			return err
		}
		for _, w := range all {
			*w = way{name: w.name, addr: w.addr, proxies: w.proxies}
		}
		if err := alternate(rounds, len(all), measure); err != nil {
			return err
		}
		for _, rival := range all[1:] {
			b.besideWay(kind.what, all[0], rival)
		}
	}
	return nil
}

// besideWay adds the figures of one way beside those of another.
func (b *bench) besideWay(what string, ours, rival *way) {
	for i, p := range quantiles {
		// The middle of all slices passes over those in which the machine was busy with something else.
		b.add(value(fmt.Sprintf("request, %s, p%g", what, 100*p), percentile(ours.took[i], 0.5),
			"ms").beside(rival.name, percentile(rival.took[i], 0.5)).timesAtMost(1))
	}
	cost := func(of []time.Duration) float64 { return 1000 * percentile(of, 0.25) } // see contender.cost
	b.add(value("processor time of all on the way, "+what, cost(ours.all), "µs").beside(rival.name,
		cost(rival.all)).timesAtMost(1))
	b.add(value("processor time of its proxies alone, "+what, cost(ours.proxied), "µs").beside(rival.name,
		cost(rival.proxied)))
}

// measure sends requests for one slice.
func (w *way) measure(client *rig.Child, t trip, pods []int) error {
	proxies, err1 := scheduled(w.proxies...)
	rest, err2 := scheduled(pods...)
	order, err3 := json.Marshal(t)
	if err := errors.Join(err1, err2, err3, client.Say(string(order))); err != nil {
		return err
	}
	var back travelled
	if err := client.Hear(&back); err != nil {
		return err
	}
	if back.Fault != "" {
		return fmt.Errorf("%s: %s", w.name, back.Fault)
	}
	proxiesAfter, err1 := scheduled(w.proxies...)
	restAfter, err2 := scheduled(pods...)
	n := time.Duration(len(back.Took))
	for i, p := range quantiles {
		w.took[i] = append(w.took[i], time.Duration(percentile(back.Took, p)*float64(time.Millisecond)))
	}
	w.proxied = append(w.proxied, (proxiesAfter-proxies)/n)
	w.all = append(w.all, (proxiesAfter-proxies+restAfter-rest+back.Used)/n)
	return errors.Join(err1, err2)
}

// build makes the layout, and returns the way through each load balancer.
func (l *layout) build(ctx context.Context) ([]way, error) {
	var inside []int
	for _, name := range []string{"worker1", "worker2"} {
		worker, _ := l.Lab.Host(name)
		l.Workers = append(l.Workers, worker.Addr.Addr())
		address, pid, err := l.ingressPod(ctx, name)
		if err != nil {
			return nil, err
		}
		l.Proxies, inside = append(l.Proxies, address), append(inside, pid)
	}
	for _, name := range []string{"worker1", "worker2"} {
		if err := l.load(ctx, name, kubeProxyRules); err != nil {
			return nil, err
		}
	}
	addrs := map[string]netip.Addr{
		proxyBalancer:  netip.MustParseAddr("192.168.50.11"),
		kernelBalancer: netip.MustParseAddr("192.168.50.12"),
	}
	for name, addr := range addrs {
		if err := addHost(ctx, l.Lab, name, addr); err != nil {
			return nil, err
		}
		l.stops = append(l.stops, func() { _ = l.run(ctx, "", "ip", "netns", "delete", l.Netns(name)) })
	}
	l.Addr, l.Socket = addrs[proxyBalancer], filepath.Join(l.Dir, "balancer.sock")
	file, err := l.write("balancer.cfg", balancerText)
	if err != nil {
		return nil, err
	}
	// A session of its own, as the other HAProxies have (sched(7), autogroup).
	_, stop, err := l.Beside(ctx, proxyBalancer, "setsid", haproxyProgram(), "-db", "-f", file)
	if err != nil {
		return nil, err
	}
	l.stops = append(l.stops, stop)
	outside, err := awaitWorker(ctx, l.Socket)
	if err != nil {
		return nil, err
	}
	l.Addr = addrs[kernelBalancer]
	if err := errors.Join(
		l.run(ctx, "", "ip", "netns", "exec", l.Netns(kernelBalancer), "sysctl", "-qw", "net.ipv4.ip_forward=1",
			"net.ipv4.conf.all.send_redirects=0", "net.ipv4.conf.eth0.send_redirects=0"),
		l.load(ctx, kernelBalancer, balancerRules),
	); err != nil {
		return nil, err
	}
	return []way{
		{name: "balancer by HAProxy", addr: addrs[proxyBalancer].String() + ":80", proxies: append(inside, outside)},
		{name: "balancer by nftables", addr: addrs[kernelBalancer].String() + ":80", proxies: inside},
	}, nil
}

// ingressPod starts HAProxy in a pod of a worker, and returns the pod's address and HAProxy's
// process.
func (l *layout) ingressPod(ctx context.Context, worker string) (address string, pid int, err error) {
	if err := l.SetImages(map[string]string{"sample-app": l.Dir + "/app", "haproxy": haproxyProgram()}); err != nil {
		return "", 0, err
	}
	name := "ingress-" + worker
	l.Socket = filepath.Join(l.Dir, name+".sock")
	file, err := l.write(name+".cfg", inClusterText)
	if err != nil {
		return "", 0, err
	}
	if err := errors.Join(
		os.WriteFile(filepath.Join(l.Dir, "incluster-host.map"), []byte(l.Host+" "+l.Host+"\n"), 0o600),
		os.WriteFile(filepath.Join(l.Dir, "incluster-path.map"), []byte(l.Host+"/ app\n"), 0o600),
	); err != nil {
		return "", 0, err
	}
	if err := l.Apply(ctx, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: ingress}}
spec:
  nodeName: %s
  containers:
  - {name: haproxy, image: haproxy, args: [-db, -f, %s], readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}}
`, name, worker, file)); err != nil {
		return "", 0, err
	}
	if _, err := l.Kubectl(ctx, "wait", "--for=condition=Ready", "pod/"+name, "--timeout", limit.String()); err != nil {
		return "", 0, err
	}
	pod, err := l.kube.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", 0, err
	}
	pid, err = awaitWorker(ctx, l.Socket)
	return pod.Status.PodIP, pid, err
}

// close removes the layout.
func (l *layout) close(ctx context.Context) error {
	for _, stop := range l.stops {
		stop()
	}
	var errs []error
	for _, name := range []string{"worker1", "worker2"} {
		errs = append(errs, l.run(ctx, "", "ip", "netns", "exec", l.Netns(name), "nft", "flush", "ruleset"))
	}
	_, err := l.Kubectl(ctx, "delete", "pod", "--selector", "app=ingress", "--ignore-not-found", "--timeout",
		limit.String())
	return errors.Join(append(errs, err)...)
}

// load gives a host a set of rules of nftables.
func (l *layout) load(ctx context.Context, host, text string) error {
	rules, err := l.fill(text)
	if err != nil {
		return err
	}
	return l.run(ctx, rules, "ip", "netns", "exec", l.Netns(host), "nft", "-f", "-")
}

// run runs a command with an input.
func (l *layout) run(ctx context.Context, input string, args ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// write fills in a file, and returns its path.
func (l *layout) write(name, text string) (string, error) {
	full, err := l.fill(text)
	if err != nil {
		return "", err
	}
	file := filepath.Join(l.Dir, name)
	return file, os.WriteFile(file, []byte(full), 0o600)
}

func (l *layout) fill(text string) (string, error) {
	var out strings.Builder
	err := template.Must(template.New("").Parse(text)).Execute(&out, l)
	return out.String(), err
}

// travelArg makes this program the client of row 5, a process on the client's host. It reads
// trips, makes them, and prints the outcome of each.
const travelArg = "travel"

// A trip is an order to send requests for host(0) for one slice of time.
type trip struct {
	Addr string
	Rate int
	Keep bool // connections
}

// A travelled is the answer to a trip.
type travelled struct {
	Took  []time.Duration
	Used  time.Duration // processor time of the client
	Fault string
}

func travel() {
	loads := make(map[trip]*drive)
	in := bufio.NewScanner(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	for in.Scan() {
		var t trip
		var back travelled
		err := json.Unmarshal(in.Bytes(), &t)
		if err == nil {
			back, err = t.make(context.Background(), loads)
		}
		if err != nil {
			back.Fault = err.Error()
		}
		_ = out.Encode(back) // the bench has ended
	}
}

// make sends the requests of a trip. The connections of the same trip before are kept in
// loads.
func (t trip) make(ctx context.Context, loads map[trip]*drive) (back travelled, err error) {
	l := loads[t]
	if l == nil {
		l = new(drive)
		request := browser(host(0), "/bytes?n=100")
		if !t.Keep {
			l.renew(ctx, keptConnections, t.Addr, nil, request)
		} else if err := l.keep(ctx, keptConnections, t.Addr, nil, [][]byte{request}); err != nil {
			return back, err
		}
		loads[t] = l
	}
	before, err1 := used()
	back.Took, err = l.send(ctx, t.Rate, slice)
	after, err2 := used()
	back.Used = after - before
	return back, errors.Join(err, err1, err2)
}

// used returns the processor time that this process has used.
func used() (time.Duration, error) {
	var u syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), err
}

// processesOf returns the processes that run a program.
func processesOf(program string) (pids []int, err error) {
	files, err := filepath.Glob("/proc/[0-9]*/exe")
	for _, file := range files {
		if target, err := os.Readlink(file); err == nil && target == program {
			pid, _ := strconv.Atoi(strings.Split(file, "/")[2])
			pids = append(pids, pid)
		}
	}
	if err == nil && len(pids) == 0 {
		err = fmt.Errorf("no process runs %s", program)
	}
	return pids, err
}
