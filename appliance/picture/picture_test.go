package picture

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sallyport/ingress"
	"sallyport/ingress/input"
	"sallyport/routes"
)

func TestAPictureComesBackAsItWas(t *testing.T) {
	p := New(t.TempDir(), slog.New(slog.DiscardHandler))
	want := demoSnapshot("demo")
	want.Namespaces = []*corev1.Namespace{
		{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"team": "web"}}},
	}
	want.Secrets = []*corev1.Secret{{Data: map[string][]byte{"tls.key": []byte("secret")}}}
	p.Keep(want, ingress.Result{})
	p.Save()
	got, err := p.Load("demo")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.Snapshot, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}),
		cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if got.Taken.IsZero() || time.Since(got.Taken) > time.Hour {
		t.Errorf("taken %s", got.Taken)
	}
	info, err := os.Stat(p.path("demo"))
	if err != nil {
		t.Fatal(err)
	}
	if mode := info.Mode().Perm(); mode != 0o600 {
		t.Errorf("mode %o, want 600: it holds keys", mode)
	}
}

// snapshotOfEveryKind returns a snapshot with at least one object of each kind.
func snapshotOfEveryKind() input.Snapshot {
	s := demoSnapshot("demo")
	named := metav1.ObjectMeta{Namespace: "default", Name: "web"}
	s.Secrets = []*corev1.Secret{{
		ObjectMeta: named, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{"tls.key": []byte("secret")},
	}}
	s.ConfigMaps = []*corev1.ConfigMap{{ObjectMeta: named, Data: map[string]string{"timeout-client": "30s"}}}
	s.Namespaces = []*corev1.Namespace{
		{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"team": "web"}}},
	}
	s.Options = input.Options{
		ConfigMap: "default/web", NamespaceSelector: "team=web",
		Hosts: []input.HostRule{{Host: "*", Namespaces: []string{"default"}}},
	}
	s.Owners = &input.Owners{Namespaces: map[string]string{"test.local": "default"}}
	return s
}

// TestAPictureThatAnOlderProgramKeptIsRead reads a file from a program that did not
// have input.Objects yet. After an update the appliance starts with such a file. Only
// a new version may change the format.
func TestAPictureThatAnOlderProgramKeptIsRead(t *testing.T) {
	text, err := os.ReadFile("testdata/picture-demo.json")
	if err != nil {
		t.Fatal(err)
	}
	pic, err := decode(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(snapshotOfEveryKind(), pic.Snapshot, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}),
		cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	// An older program reads the pictures of this one after a downgrade.
	var again bytes.Buffer
	if _, err := New("", nil).encode(&again, pic.Snapshot); err != nil {
		t.Fatal(err)
	}
	_, want, _ := bytes.Cut(text, []byte("\n"))
	if _, got, _ := bytes.Cut(again.Bytes(), []byte("\n")); !bytes.Equal(want, got) {
		t.Errorf("the objects are written as\n%s\nnot as\n%s", got, want)
	}
}

func TestAPictureThatCannotBeUsedIsSetAside(t *testing.T) {
	for name, c := range map[string]struct{ text, why string }{
		"empty":         {``, "EOF"},
		"torn":          {`{"version": 5, "snap`, "unexpected EOF"},
		"older":         {`{"version": 4, "snapshot": {"Cluster": "demo"}}`, "version 4"},
		"of the future": {`{"version": 99}`, "version 99"},
		"of another one": {
			`{"version": 5, "snapshot": {"Cluster": "other"}, "counts": [0, 0, 0, 0, 0, 0, 0]}`,
			`"other"`,
		},
		"too short": {
			`{"version": 5, "snapshot": {"Cluster": "demo"}, "counts": [1, 0, 0, 0, 0, 0, 0]}`,
			"the end of the picture is missing",
		},
		"too long": {
			`{"version": 5, "snapshot": {"Cluster": "demo"}, "counts": [0, 0, 0, 0, 0, 0, 0]} {}`,
			"more objects than it counts",
		},
		"other lists": {`{"version": 5, "snapshot": {"Cluster": "demo"}, "counts": [0]}`, "1 lists"},
	} {
		t.Run(name, func(t *testing.T) {
			p := New(t.TempDir(), slog.New(slog.DiscardHandler))
			if err := os.WriteFile(p.path("demo"), []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := p.Load("demo"); err == nil || !strings.Contains(err.Error(), c.why) {
				t.Errorf("got %v, want a word of %q", err, c.why)
			}
			if _, err := os.Stat(p.path("demo") + ".bad"); err != nil {
				t.Errorf("not set aside: %v", err)
			}
			if _, err := p.Load("demo"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the second time: %v, want that there is none", err)
			}
		})
	}
}

func TestAPictureThatIsNoFileIsSetAside(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"a named pipe":    func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a symbolic link": func(path string) error { return os.Symlink("/dev/zero", path) },
		"a directory":     func(path string) error { return os.MkdirAll(filepath.Join(path, "more"), 0o700) },
		"are allowed": func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<40))
		},
		// zero(4)
		"a device or a so": func(path string) error { return syscall.Mknod(path, syscall.S_IFCHR|0o600, 1<<8|5) },
	} {
		t.Run(name, func(t *testing.T) {
			p := New(t.TempDir(), slog.New(slog.DiscardHandler))
			for _, path := range []string{p.path("demo"), p.path("demo") + ".bad"} {
				if err := put(path); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := p.Load("demo"); err == nil || !strings.Contains(err.Error(), name) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want one sentence with %q", err, name)
			}
			p.Keep(demoSnapshot("demo"), ingress.Result{})
			p.Save()
			if _, err := p.Load("demo"); err != nil {
				t.Errorf("once one is saved: %v", err)
			}
		})
	}
}

func TestAPictureCutAnywhereIsNotTaken(t *testing.T) {
	p := New(t.TempDir(), slog.New(slog.DiscardHandler))
	var whole bytes.Buffer
	if _, err := p.encode(&whole, demoSnapshot("demo")); err != nil {
		t.Fatal(err)
	}
	text := bytes.TrimSuffix(whole.Bytes(), []byte("\n"))
	if _, err := decode(bytes.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	for n := range text {
		if _, err := decode(bytes.NewReader(text[:n])); err == nil {
			t.Fatalf("the first %d of %d bytes were taken for a picture", n, len(text))
		}
	}
}

func TestAnUnchangedSnapshotIsNotWrittenAgain(t *testing.T) {
	p := New(t.TempDir(), slog.New(slog.DiscardHandler))
	s := demoSnapshot("demo")
	p.Keep(s, ingress.Result{})
	p.Save()
	if err := os.Remove(p.path("demo")); err != nil {
		t.Fatal(err)
	}
	s.At = time.Now()
	p.Keep(s, ingress.Result{})
	p.Save()
	if _, err := os.Stat(p.path("demo")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("written again although only the time differs (%v)", err)
	}
	s.Slices = nil
	p.Keep(s, ingress.Result{})
	p.Save()
	if _, err := os.Stat(p.path("demo")); err != nil {
		t.Errorf("a changed one is not written: %v", err)
	}
}

// FuzzPicture checks that decode returns an error for a file that is not a picture, and
// that a picture is written again as it was read.
func FuzzPicture(f *testing.F) {
	p := New(f.TempDir(), slog.New(slog.DiscardHandler))
	var text bytes.Buffer
	if _, err := p.encode(&text, demoSnapshot("demo")); err != nil {
		f.Fatal(err)
	}
	f.Add(text.Bytes())
	f.Add([]byte(`{"version": 5, "snapshot": {"Cluster": "demo"}, "counts": [-1, 0, 0, 0, 0, 1e9]} {}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		pic, err := decode(bytes.NewReader(data))
		if err != nil {
			return
		}
		p := New("", nil)
		var text bytes.Buffer
		if _, err := p.encode(&text, pic.Snapshot); err != nil {
			t.Fatal(err)
		}
		again, err := decode(&text)
		if err != nil {
			t.Fatal(err)
		}
		if !cmp.Equal(pic.Snapshot, again.Snapshot, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}),
			cmpopts.EquateEmpty()) {
			t.Error("it came back as another one")
		}
	})
}

func TestAPictureThatCannotBeSavedIsToldOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	var log bytes.Buffer
	p := New(dir, slog.New(slog.NewTextHandler(&log, nil)))
	for range 3 {
		p.Keep(demoSnapshot("demo"), ingress.Result{})
		p.Save()
	}
	if err := p.Fault("demo"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the fault is %v", err)
	}
	if told := strings.Count(log.String(), "level=ERROR"); told != 1 {
		t.Errorf("told %d times:\n%s", told, &log)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	p.Keep(demoSnapshot("demo"), ingress.Result{})
	p.Save()
	if err := p.Fault("demo"); err != nil {
		t.Errorf("once saved it is still %v", err)
	}
	if _, err := p.Load("demo"); err != nil {
		t.Error(err)
	}
}

// demoSnapshot returns a cluster with one Ingress, whose Service has two endpoints.
func demoSnapshot(name string) input.Snapshot {
	const (
		block1, node1, pod1 = "172.16.171.64/26", "192.168.50.23", "172.16.171.66"
		block2, node2, pod2 = "172.16.189.64/26", "192.168.50.24", "172.16.189.66"
	)
	meta := metav1.ObjectMeta{Namespace: "default", Name: "web"}
	class, path, ready, port, portName := "haproxy", networkingv1.PathTypePrefix, true, int32(80), ""
	tcp := corev1.ProtocolTCP
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port, Protocol: &tcp}},
	}
	for _, pod := range []string{pod1, pod2} {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{pod}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	return input.Snapshot{
		Cluster: name,
		Objects: input.Objects{
			Classes: []*networkingv1.IngressClass{{
				ObjectMeta: metav1.ObjectMeta{Name: "haproxy"},
				Spec:       networkingv1.IngressClassSpec{Controller: "haproxy.org/ingress-controller"},
			}},
			Ingresses: []*networkingv1.Ingress{{ObjectMeta: meta, Spec: networkingv1.IngressSpec{
				IngressClassName: &class,
				Rules: []networkingv1.IngressRule{{Host: "test.local", IngressRuleValue: networkingv1.IngressRuleValue{
					HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{
						Path: "/", PathType: &path,
						Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
							Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80},
						}},
					}}},
				}}},
			}}},
			Services: []*corev1.Service{{ObjectMeta: meta, Spec: corev1.ServiceSpec{
				Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(80), Protocol: tcp}},
			}}},
			Slices: []*discoveryv1.EndpointSlice{slice},
		},
		Topology: routes.Topology{
			Cluster: name, ASN: 65000,
			Nodes: []routes.Node{
				{
					Name: "worker1", ASN: 65000, BGP: []netip.Prefix{netip.MustParsePrefix(node1 + "/24")},
					Addresses: []netip.Addr{netip.MustParseAddr(node1)},
				},
				{
					Name: "worker2", ASN: 65000, BGP: []netip.Prefix{netip.MustParsePrefix(node2 + "/24")},
					Addresses: []netip.Addr{netip.MustParseAddr(node2)},
				},
			},
			Affinities: []routes.Affinity{
				{
					Name: "worker1-172-16-171-64-26", Node: "worker1", Prefix: netip.MustParsePrefix(block1),
					State: "confirmed",
				},
				{
					Name: "worker2-172-16-189-64-26", Node: "worker2", Prefix: netip.MustParsePrefix(block2),
					State: "confirmed",
				},
			},
			Blocks: []*routes.IPAMBlock{
				{Prefix: netip.MustParsePrefix(block1), Affinity: "host:worker1", Pods: podsOf(block1)},
				{Prefix: netip.MustParsePrefix(block2), Affinity: "host:worker2", Pods: podsOf(block2)},
			},
			Pools: []routes.Pool{{Name: "default", CIDR: netip.MustParsePrefix("172.16.0.0/16"), BlockSize: 26}},
		},
	}
}

// podsOf returns the pods of a block whose addresses are all in use.
func podsOf(block string) map[netip.Addr]string {
	pods, p := map[netip.Addr]string{}, netip.MustParsePrefix(block)
	for a := p.Addr(); p.Contains(a); a = a.Next() {
		pods[a] = "default"
	}
	return pods
}

// crowd returns a cluster with n Services, and a function that replaces one of its
// EndpointSlices and one of its blocks by the other of two versions.
func crowd(n int) (all *input.Snapshot, toggle func()) {
	one := demoSnapshot("demo")
	crowd := one
	crowd.Ingresses, crowd.Services, crowd.Slices = nil, nil, nil
	for i := range n {
		ing, svc, slice := one.Ingresses[0].DeepCopy(), one.Services[0].DeepCopy(), one.Slices[0].DeepCopy()
		name := fmt.Sprintf("svc-%05d", i)
		ing.Name, svc.Name, slice.Name = name, name, name
		slice.Labels[discoveryv1.LabelServiceName] = name
		ing.Spec.Rules[0].Host = name + ".local"
		ing.Spec.Rules[0].HTTP.Paths[0].Backend.Service.Name = name
		crowd.Ingresses, crowd.Services = append(crowd.Ingresses, ing), append(crowd.Services, svc)
		crowd.Slices = append(crowd.Slices, slice)
	}
	changed, without := crowd.Slices[0].DeepCopy(), *crowd.Topology.Blocks[0]
	changed.Endpoints, without.Pods = changed.Endpoints[:1], nil
	slices := [][]*discoveryv1.EndpointSlice{
		crowd.Slices,
		append([]*discoveryv1.EndpointSlice{changed}, crowd.Slices[1:]...),
	}
	blocks := [][]*routes.IPAMBlock{crowd.Topology.Blocks, {&without, crowd.Topology.Blocks[1]}}
	turn := 0
	return &crowd, func() {
		turn = 1 - turn
		crowd.Slices, crowd.Topology.Blocks = slices[turn], blocks[turn]
	}
}

func TestWhatIsServedLaterIsInThePictureToo(t *testing.T) {
	p := New(t.TempDir(), slog.New(slog.DiscardHandler))
	s := demoSnapshot("demo")
	unserved := s
	unserved.Ingresses = nil
	var compiler ingress.Compiler
	slicesWith := func(by ingress.Result) int {
		p.Keep(s, by)
		p.Save()
		pic, err := p.Load("demo")
		if err != nil {
			t.Fatal(err)
		}
		return len(pic.Snapshot.Slices)
	}
	if got := slicesWith(compiler.Compile([]input.Snapshot{unserved})); got != 0 {
		t.Errorf("the picture has %d EndpointSlices, and no Service is served", got)
	}
	if got := slicesWith(compiler.Compile([]input.Snapshot{s})); got != len(s.Slices) || got == 0 {
		t.Errorf("the picture has %d EndpointSlices of %d, and their Service is served", got, len(s.Slices))
	}
}
