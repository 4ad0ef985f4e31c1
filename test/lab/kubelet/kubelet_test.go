package kubelet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
)

// TestMain makes the test's own program the container as well: a web server that
// SIGTERM does not end.
func TestMain(m *testing.M) {
	if os.Getenv("LAB_CONTAINER") == "" {
		os.Exit(m.Run())
	}
	signal.Ignore(syscall.SIGTERM)
	fmt.Println("serving", os.Args[1:])
	err := http.ListenAndServe(os.Args[1], http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/quit" {
			os.Exit(3)
		}
		fmt.Fprintf(w, "%s %s", os.Getenv("HOSTNAME"), os.Getenv("IP"))
	}))
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// until waits until a condition holds, and fails the test after a minute.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(60 * time.Second)
	for !is() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain for: %s", what)
		}
	}
}

// testNode makes a node's namespace, and a prefix for those of its pods.
func testNode(t *testing.T) (node, prefix string) {
	t.Helper()
	prefix = fmt.Sprintf("sp%dk%d", os.Getpid(), time.Now().UnixNano()%1e6)
	node = prefix + "n"
	// The lab uses ip, too. The first "ip netns add" on a machine makes netnsDir a
	// mount of its own. Anything that was mounted there before cannot be removed
	// any more.
	if out, err := exec.Command("ip", "netns", "add", node).CombinedOutput(); err != nil {
		t.Fatalf("ip netns add: %v: %s", err, out)
	}
	host, err := openLinks(node)
	if err != nil {
		t.Fatal(err)
	}
	defer host.close()
	lo, err := host.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	self := netip.MustParseAddr("192.168.50.23")
	if err := errors.Join(
		host.AddrAdd(lo, &netlink.Addr{IPNet: single(self)}), host.LinkSetUp(lo),
		host.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: everywhere(self)}), // as every node has one
	); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := deleteNetns(node); err != nil {
			t.Error(err)
		}
	})
	return node, prefix
}

func leftovers(t *testing.T, prefix string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(netnsDir, prefix+"-*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// routesTo lists the routes of a node to an address.
func routesTo(t *testing.T, node string, addr netip.Addr) []netlink.Route {
	t.Helper()
	host, err := openLinks(node)
	if err != nil {
		t.Fatal(err)
	}
	defer host.close()
	routes, err := host.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: single(addr)}, netlink.RT_FILTER_DST)
	if err != nil {
		t.Fatal(err)
	}
	return routes
}

func fetch(t *testing.T, node, url string) (string, error) {
	t.Helper()
	client := http.Client{
		Transport: &http.Transport{
			DialContext: prober{node: node}.dial, DisableKeepAlives: true,
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		},
		Timeout: 10 * time.Second,
	}
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

// A lab is one kubelet with a fake API and a real kernel.
type lab struct {
	node, prefix, dir string
	client            *fake.Clientset
	calico            *dynamicfake.FakeDynamicClient
}

// startLab runs a kubelet until the test ends. Then it checks that nothing is left.
func startLab(t *testing.T) lab {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l := lab{
		dir: t.TempDir(), client: fake.NewClientset(),
		calico: calico(testPool("172.16.0.0/24", 28), testPool("fd00:172::/64", 122)),
	}
	l.node, l.prefix = testNode(t)
	serving := httptest.NewTLSServer(nil) // for its certificate
	serving.Close()
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() {
		ran <- Run(ctx, Config{
			Node: "worker1", Netns: l.node, NetnsPrefix: l.prefix, Client: l.client, Dynamic: l.calico, IPv6: true,
			Images: map[string]string{"web": self}, Dir: l.dir, NodeAddr: netip.MustParseAddr("192.168.50.23"),
			TLS: serving.TLS, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
		if got := leftovers(t, l.prefix); len(got) > 0 {
			t.Errorf("left behind: %v", got)
		}
	})
	return l
}

func (l lab) create(t *testing.T, name, image string, edits ...func(*corev1.PodSpec)) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{
			NodeName: "worker1", RestartPolicy: corev1.RestartPolicyAlways,
			Containers: []corev1.Container{{
				Name: "c", Image: image, Args: []string{":$(PORT)"},
				Env: []corev1.EnvVar{
					{Name: "LAB_CONTAINER", Value: "yes"},
					{Name: "PORT", Value: "8080"},
					{Name: "IP", ValueFrom: &corev1.EnvVarSource{
						FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"},
					}},
				},
				Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
				ReadinessProbe: &corev1.Probe{
					PeriodSeconds: 1,
					ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
						Path: "/",
						Port: intstr.FromString("http"),
					}},
				},
				Lifecycle: &corev1.Lifecycle{
					PreStop: &corev1.LifecycleHandler{
						Exec: &corev1.ExecAction{Command: []string{
							"/bin/sh", "-c",
							"echo $IP > " + l.dir + "/stopped",
						}},
					},
				},
			}},
		},
	}
	for _, edit := range edits {
		edit(&pod.Spec)
	}
	if _, err := l.client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (l lab) read(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	got, err := l.client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// remove deletes pods as the API server does: it sets deletionTimestamp, and waits
// until the kubelet has deleted the objects.
func (l lab) remove(t *testing.T, names ...string) {
	t.Helper()
	pods, grace, now := l.client.CoreV1().Pods("default"), int64(1), metav1.Now()
	for _, name := range names {
		leaving := l.read(t, name)
		leaving.DeletionTimestamp, leaving.DeletionGracePeriodSeconds = &now, &grace
		if _, err := pods.Update(t.Context(), leaving, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names {
		until(t, name+" is gone", func() bool {
			_, err := pods.Get(t.Context(), name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
	}
	if got := leftovers(t, l.prefix); len(got) > 0 {
		t.Errorf("pods left behind: %v", got)
	}
	blocks, err := (&ipam{node: "worker1", dynamic: l.calico}).blocks(t.Context())
	if err != nil || len(blocks) < 2 {
		t.Fatalf("got %d blocks, %v", len(blocks), err)
	}
	for _, b := range blocks {
		if len(b.spec.Attributes) > 0 {
			t.Errorf("block %s still has %+v", b.spec.CIDR, b.spec.Attributes)
		}
	}
	if got := l.handles(t); len(got) > 0 {
		t.Errorf("handles left behind: %v", got)
	}
}

// handles maps each IPAMHandle to the number of blocks in it.
func (l lab) handles(t *testing.T) map[string]int {
	t.Helper()
	list, err := l.calico.Resource(ipamHandles).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	blocks := map[string]int{}
	for _, h := range list.Items {
		of, _, _ := unstructured.NestedMap(h.Object, "spec", "block")
		blocks[h.GetName()] = len(of)
	}
	return blocks
}

func ready(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func TestManyPodsAtOnceAllServeWithAddressesOfTheirOwn(t *testing.T) {
	l := startLab(t)
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprintf("web-%d", i))
		l.create(t, names[i], "web")
	}
	seen := map[string]string{}
	for _, name := range names {
		until(t, name+" is ready", func() bool { return ready(l.read(t, name)) })
		ip := l.read(t, name).Status.PodIP
		if other := seen[ip]; other != "" {
			t.Errorf("%s and %s both have %s", name, other, ip)
		}
		seen[ip] = name
	}
	l.remove(t, names...)
}

func TestAPodServesFromItsBlockIsRestartedAndLeavesNothing(t *testing.T) {
	l := startLab(t)
	l.create(t, "lost", "nowhere/none:1")
	l.create(t, "web", "web:1")
	until(t, "pod web is ready", func() bool { return ready(l.read(t, "web")) })
	status := l.read(t, "web").Status
	if status.Phase != corev1.PodRunning || len(status.PodIPs) != 2 || status.PodIPs[0].IP != status.PodIP ||
		status.HostIP != "192.168.50.23" || status.StartTime == nil {
		t.Errorf("got status %+v", status)
	}
	for _, ip := range status.PodIPs {
		got, err := fetch(t, l.node, "http://"+netip.AddrPortFrom(netip.MustParseAddr(ip.IP), 8080).String()+"/")
		if want := "web " + status.PodIP; err != nil || got != want {
			t.Errorf("%s: want %q, got %q, %v", ip.IP, want, got, err)
		}
	}
	if want, got := map[string]int{handleOf("uid-web"): 2, handleOf("uid-lost"): 2},
		l.handles(t); !maps.Equal(want, got) {
		t.Errorf("want handles with blocks of both families %v, got %v", want, got)
	}
	if got := routesTo(t, l.node, netip.MustParseAddr(status.PodIP)); len(got) != 1 ||
		got[0].Protocol != unix.RTPROT_BOOT || got[0].Priority != 0 {
		t.Errorf("routes to the pod %v, want one of protocol boot without a metric, as Calico 3.28 makes it", got)
	}
	until(t, "the unknown image is told", func() bool {
		s := l.read(t, "lost").Status.ContainerStatuses
		return len(s) == 1 && s[0].State.Waiting != nil && s[0].State.Waiting.Reason == "ErrImagePull" &&
			strings.Contains(s[0].State.Waiting.Message, "nowhere/none:1")
	})

	_, _ = fetch(t, l.node, "http://"+status.PodIP+":8080/quit")
	until(t, "pod web is ready again", func() bool {
		got := l.read(t, "web")
		return ready(got) && got.Status.ContainerStatuses[0].RestartCount == 1
	})
	if last := l.read(t, "web").Status.ContainerStatuses[0].LastTerminationState.Terminated; last == nil ||
		last.ExitCode != 3 {
		t.Errorf("got %+v as the last run", last)
	}
	if got := l.read(t, "web").Status.PodIP; got != status.PodIP {
		t.Errorf("a restart moved the pod from %s to %s", status.PodIP, got)
	}

	l.remove(t, "web", "lost")
	if text, err := os.ReadFile(filepath.Join(l.dir, "stopped")); err != nil ||
		strings.TrimSpace(string(text)) != status.PodIP {
		t.Errorf("the preStop hook wrote %q, %v", text, err)
	}
	lease, err := l.client.CoordinationV1().Leases(leaseSpace).Get(t.Context(), "worker1", metav1.GetOptions{})
	if err != nil || lease.Spec.RenewTime == nil {
		t.Errorf("got lease %+v, %v", lease, err)
	}
}

func TestWhatACrashLeavesIsTakenAwayAndNothingElse(t *testing.T) {
	node, prefix := testNode(t)
	dir := t.TempDir()
	notes := ledger(filepath.Join(dir, "leftovers"))
	if err := os.MkdirAll(string(notes), 0o755); err != nil {
		t.Fatal(err)
	}
	w := wireOf(prefix, "a pod")
	if err := notes.noteWire(w); err != nil {
		t.Fatal(err)
	}
	if err := w.lay(node, []netip.Addr{netip.MustParseAddr("172.16.0.1")}); err != nil {
		t.Fatal(err)
	}
	remember := func(pid int) (func(), error) { // as if we had died before forgetting
		_, err := notes.noteProcess(pid)
		return nil, err
	}
	start := func(in string) *process {
		p, err := launch(in, []string{"/bin/sleep", "300"}, nil, "/", filepath.Join(dir, "log"), remember)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	inPod, onNode := start(w.Netns), start(node)
	bystander := exec.Command("/bin/sleep", "300")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := bystander.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("a process that only has the number of an old one was ended: %v", err)
		}
		_ = bystander.Process.Kill()
		_ = bystander.Wait()
	}()
	if err := os.WriteFile(filepath.Join(string(notes), fmt.Sprintf("pid-%d", bystander.Process.Pid)), []byte("1"),
		0o600); err != nil {
		t.Fatal(err)
	}
	if err := Clean(prefix, dir); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*process{inPod, onNode} {
		until(t, "a noted process has ended", func() bool { return isClosed(p.done) })
	}
	if got := leftovers(t, prefix); len(got) > 0 {
		t.Errorf("left behind: %v", got)
	}
	if err := Clean(prefix, dir); err != nil {
		t.Errorf("cleaning what is clean: %v", err)
	}
}
