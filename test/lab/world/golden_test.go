package world

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// unlike names the cases of Calico that the stand-in does not follow, and why.
var unlike = map[string]string{
	"mesh/static-routes":                 "a route for a single Service",
	"mesh/static-routes-no-ipv4-address": "a route for a single Service",
	"mesh/hash":                          "a router id by an environment variable of calico-node",
}

// golden is one case of confd's own tests: objects, and the configuration that confd makes of them.
type golden struct {
	name    string
	objects []*unstructured.Unstructured
}

// TestTheStandInAnnouncesWhatCalicosGoldenFilesAnnounce takes Calico's own test cases.
func TestTheStandInAnnouncesWhatCalicosGoldenFilesAnnounce(t *testing.T) {
	tests := filepath.Join(calicoModule(t), "confd", "tests")
	blocks := decode(t, read(t, filepath.Join(tests, "mock_data", "kdd", "ipam.yaml")))
	cases := append(fileCases(t, tests), scriptCases(t, tests)...)
	if len(cases) < 50 {
		t.Fatalf("found %d cases, want at least 50", len(cases))
	}
	for name, why := range unlike {
		if !slices.ContainsFunc(cases, func(g golden) bool { return g.name == name }) {
			t.Errorf("no case is called %s, which is left out because it has %s", name, why)
		}
	}
	var all []likeness
	for _, g := range cases {
		if unlike[g.name] != "" {
			continue
		}
		objects, err := stored(slices.Concat(blocks, g.objects))
		if err != nil {
			t.Fatalf("%s: %v", g.name, err)
		}
		v, err := readView(objects)
		if err != nil {
			t.Fatalf("%s: %v", g.name, err)
		}
		i := slices.IndexFunc(v.nodes, func(n nodeView) bool { return n.name == "kube-master" || n.name == "node1" })
		if i < 0 {
			t.Fatalf("%s: no node is called kube-master or node1", g.name)
		}
		all = append(all, v.likenesses(t, g.name, v.nodes[i], netip.MustParseAddr("10.192.0.2"),
			goldenDir(t, filepath.Join(tests, "compiled_templates", g.name)))...)
	}
	compare(t, all)
}

// calicoModule returns the folder of Calico's module.
func calicoModule(t *testing.T) string {
	t.Helper()
	dir, err := moduleFolder(t.Context(), filepath.Join("..", "calico"), "github.com/projectcalico/calico")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func decode(t *testing.T, text []byte) (objects []*unstructured.Unstructured) {
	t.Helper()
	d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		o := &unstructured.Unstructured{}
		err := d.Decode(&o.Object)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if o.Object != nil {
			objects = append(objects, o)
		}
	}
}

// fileCases reads the cases whose objects are files.
func fileCases(t *testing.T, tests string) (cases []golden) {
	t.Helper()
	root := filepath.Join(tests, "mock_data", "calicoctl")
	files, err := filepath.Glob(filepath.Join(root, "*", "*", "input.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name, _ := filepath.Rel(root, filepath.Dir(file))
		cases = append(cases, golden{name, decode(t, read(t, file))})
	}
	return cases
}

var (
	begins  = regexp.MustCompile(`^(test_\w+)\(\)`)
	applies = regexp.MustCompile(`(apply|create|replace) -f - <<EOF`)
	deletes = regexp.MustCompile(`(?:CALICOCTL|kubectl) delete (\S+) (\S+)`)
	asserts = regexp.MustCompile(`^\s*test_confd_templates (\S+)`)
	loop    = regexp.MustCompile(`^\s*for |\$ii`)
)

// scriptCases reads the cases whose objects are in the script of confd's tests: what a function
// has applied so far, at each comparison with golden files. It leaves out functions that make
// objects in a loop.
func scriptCases(t *testing.T, tests string) (cases []golden) {
	t.Helper()
	var objects []*unstructured.Unstructured
	var applied strings.Builder
	within, loops := false, false
	for line := range strings.Lines(string(read(t, filepath.Join(tests, "test_suite_common.sh")))) {
		switch bare := strings.TrimSpace(line); {
		case within && bare == "EOF":
			within = false
			if !strings.Contains(applied.String(), "$") {
				for _, o := range decode(t, []byte(applied.String())) {
					objects = append(without(objects, o.GetKind(), o.GetName()), o)
				}
			}
		case within:
			applied.WriteString(line)
		case begins.MatchString(line):
			objects, loops = nil, false
		case applies.MatchString(line):
			within = true
			applied.Reset()
		case strings.Contains(line, "turn_mesh_off"):
			off := &unstructured.Unstructured{Object: map[string]any{
				"kind": "BGPConfiguration",
				"spec": map[string]any{"nodeToNodeMeshEnabled": false},
			}}
			off.SetName("default")
			objects = append(without(objects, "BGPConfiguration", "default"), off)
		case loop.MatchString(line):
			loops = true
		case asserts.MatchString(line):
			name := strings.TrimSuffix(asserts.FindStringSubmatch(line)[1], "/")
			if !loops && !strings.HasPrefix(name, "$") {
				cases = append(cases, golden{name, slices.Clone(objects)})
			}
		case deletes.MatchString(line):
			m := deletes.FindStringSubmatch(line)
			objects = without(objects, m[1], m[2])
		}
	}
	return cases
}

func without(objects []*unstructured.Unstructured, kind, name string) []*unstructured.Unstructured {
	return slices.DeleteFunc(slices.Clone(objects), func(o *unstructured.Unstructured) bool {
		return strings.EqualFold(o.GetKind(), kind) && o.GetName() == name
	})
}

// goldenDir copies golden files, with the one change that a BIRD without Calico's patches needs.
func goldenDir(t *testing.T, from string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(from, "*.cfg"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files in %s: %v", from, err)
	}
	to := t.TempDir()
	for _, file := range files {
		text := bytes.Replace(read(t, file), []byte("filter calico_kernel_programming {"),
			[]byte("filter calico_kernel_programming string krt_tunnel; {"), 1)
		if err := os.WriteFile(filepath.Join(to, filepath.Base(file)), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// stored returns objects as the API server would store what calicoctl, or kubectl, writes: a Node of
// Calico's becomes annotations of Kubernetes' Node.
func stored(objects []*unstructured.Unstructured) (all []*unstructured.Unstructured, err error) {
	for _, o := range objects {
		o = o.DeepCopy()
		switch o.GetKind() {
		case "Node":
			// Labels are not always strings there.
			labels, _, _ := unstructured.NestedMap(o.Object, "metadata", "labels")
			text := map[string]string{}
			for key, value := range labels {
				text[key] = fmt.Sprint(value)
			}
			o.SetLabels(text)
			notes := map[string]string{}
			for field, note := range map[string]string{
				"asNumber": "ASNumber", "ipv4Address": "IPv4Address", "ipv6Address": "IPv6Address",
				"routeReflectorClusterID": "RouteReflectorClusterID",
			} {
				if value, there, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", "bgp", field); there {
					notes["projectcalico.org/"+note] = fmt.Sprint(value)
				}
			}
			o.SetAnnotations(notes)
		case "Secret":
			data := map[string]any{}
			plain, _, _ := unstructured.NestedStringMap(o.Object, "stringData")
			for key, value := range plain {
				data[key] = base64.StdEncoding.EncodeToString([]byte(value))
			}
			o.Object["data"] = data
		case "BlockAffinity", "IPPool", "BGPPeer", "BGPFilter", "BGPConfiguration":
		default:
			return nil, fmt.Errorf("a case with a %s", o.GetKind())
		}
		all = append(all, o)
	}
	return all, nil
}
