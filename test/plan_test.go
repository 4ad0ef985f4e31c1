// Package test holds the house rules that are tests.
package test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// plan maps each package to those of ours that it may import. A package that is missing here has
// no place in the plan yet.
var plan = map[string][]string{
	"cmd/sallyport": {
		"appliance", "appliance/config", "appliance/doctor", "appliance/group", "appliance/migrate", "appliance/move",
		"appliance/parity", "appliance/status", "image", "image/update", "ingress/watch",
	},
	"appliance": {
		"appliance/config", "appliance/group", "appliance/metrics", "appliance/page", "appliance/pages", "appliance/picture",
		"appliance/plan", "appliance/status",
		"bgp", "bgp/upstream", "routes", "routes/address", "haproxy", "ingress", "ingress/budget", "ingress/input",
		"ingress/watch",
	},
	"appliance/accesslog": {},
	"appliance/config":    {},
	"appliance/doctor": {
		"appliance", "appliance/config", "appliance/status", "bgp", "haproxy", "ingress/input", "ingress/watch", "routes",
	},
	"appliance/group":   {},
	"appliance/metrics": {"appliance/group", "appliance/plan", "appliance/status", "haproxy", "routes"},
	"appliance/migrate": {
		"appliance", "appliance/config", "appliance/status", "haproxy", "ingress", "ingress/input", "ingress/manifest",
		"ingress/nginx", "ingress/survey", "ingress/watch",
	},
	"appliance/move":    {"appliance/config"},
	"appliance/page":    {},
	"appliance/pages":   {"appliance/group", "appliance/page", "appliance/status", "bgp", "haproxy", "ingress", "routes"},
	"appliance/parity":  {"appliance/accesslog", "appliance/migrate", "haproxy", "ingress", "ingress/annotations"},
	"appliance/picture": {"haproxy", "ingress", "ingress/input", "routes"},
	"appliance/plan":    {"haproxy", "routes"},
	"appliance/status": {
		"appliance/config", "appliance/group", "appliance/plan", "bgp", "haproxy", "ingress", "ingress/watch", "routes",
	},
	"bgp":          {"routes"},
	"bgp/upstream": {"bgp"},
	"image":        {"appliance/config", "image/update"},
	"ingress": {
		"ingress/annotations", "ingress/balance", "ingress/cert", "ingress/claims", "ingress/endpoint",
		"ingress/gateway", "ingress/input", "ingress/keys", "ingress/kic", "ingress/linked", "ingress/listen",
		"ingress/nginx", "ingress/owners", "haproxy",
	},
	"ingress/allot":       {"ingress/input"},
	"ingress/annotations": {"haproxy"},
	"ingress/apiserver":   {"haproxy"},
	"ingress/balance":     {"ingress/allot", "ingress/annotations", "ingress/claims", "ingress/gateway", "ingress/input", "haproxy"},
	"ingress/budget":      {"ingress", "ingress/input"},
	"ingress/calico":      {"routes"},
	"ingress/cert":        {"ingress/annotations", "ingress/claims", "ingress/input", "ingress/owners", "haproxy"},
	"ingress/claims":      {"ingress/annotations", "ingress/gateway", "ingress/input", "ingress/nginx", "haproxy"},
	"ingress/endpoint":    {"ingress/annotations", "haproxy"},
	"ingress/gateway":     {},
	"ingress/input":       {"ingress/annotations", "ingress/gateway", "ingress/nginx", "routes"},
	"ingress/keys":        {"ingress/annotations", "ingress/claims", "ingress/input", "ingress/kic", "ingress/listen", "haproxy"},
	"ingress/kic":         {"ingress/annotations", "haproxy"},
	"ingress/linked":      {"ingress/annotations", "ingress/claims", "ingress/gateway"},
	"ingress/listen":      {"ingress/annotations", "ingress/claims", "ingress/gateway", "ingress/input", "haproxy"},
	"ingress/manifest":    {"ingress/annotations", "ingress/input", "ingress/kic"},
	"ingress/nginx":       {"ingress/annotations"},
	"ingress/owners":      {"ingress/claims", "ingress/input"},
	"ingress/survey":      {"ingress", "ingress/annotations", "ingress/claims", "ingress/input", "ingress/nginx", "haproxy"},
	"ingress/watch":       {"ingress", "ingress/apiserver", "ingress/calico", "ingress/gateway", "ingress/input", "routes"},
	"image/boot":          {},
	"image/update":        {},
	"routes":              {},
	"routes/address":      {},
	"haproxy":             {},
}

// doors maps each big dependency to the packages that may import it. Code under test may import
// any.
var doors = map[string][]string{
	"github.com/osrg/gobgp/":                {"bgp"},
	"github.com/vishvananda/":               {"routes", "routes/address"},
	"k8s.io/":                               {"ingress", "ingress/apiserver", "ingress/balance", "ingress/calico", "ingress/cert", "ingress/claims", "ingress/endpoint", "ingress/gateway", "ingress/input", "ingress/keys", "ingress/linked", "ingress/listen", "ingress/manifest", "ingress/survey", "ingress/watch"},
	"k8s.io/client-go/":                     {"ingress/apiserver", "ingress/watch"},
	"sigs.k8s.io/gateway-api/":              {"ingress", "ingress/balance", "ingress/gateway", "ingress/input", "ingress/listen", "ingress/watch"},
	"github.com/haproxytech/client-native/": {"haproxy"},
	"github.com/prometheus/":                {"appliance", "appliance/metrics"},
	"github.com/spf13/":                     {"cmd/sallyport"},
}

type pkg struct {
	ImportPath string
	Imports    []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-json=ImportPath,Imports", "./...")
	cmd.Dir = ".."
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var all []pkg
	for decoder := json.NewDecoder(out); ; {
		var p pkg
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestImportsFollowThePlan(t *testing.T) {
	seen := 0
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, "sallyport/")
		if name == "test" || strings.HasPrefix(name, "test/") {
			continue
		}
		seen++
		for _, why := range strays(name, p.Imports) {
			t.Error(why)
		}
	}
	if seen == 0 {
		t.Error("no packages found")
	}
}

// TestThePlanRefusesAStray shows that the check above can fail.
func TestThePlanRefusesAStray(t *testing.T) {
	for name, imports := range map[string][]string{
		"routes":           {"sallyport/bgp"},
		"haproxy":          {"sallyport/routes"},
		"bgp":              {"sallyport/appliance"},
		"appliance":        {"github.com/osrg/gobgp/v4/pkg/server"},
		"appliance/config": {"k8s.io/api/core/v1"},
		"ingress":          {"k8s.io/client-go/kubernetes"},
		"cmd/sallyport":    {"sallyport/routes"},
		"image":            {"sallyport/appliance"},
		"image/update":     {"sallyport/image"},
		"helper":           nil,
	} {
		if got := strays(name, imports); len(got) != 1 {
			t.Errorf("%s importing %s: got %d complaints, want 1", name, imports, len(got))
		}
	}
}

// strays returns the imports that the plan does not allow.
func strays(name string, imports []string) (all []string) {
	allowed, ok := plan[name]
	if !ok {
		return []string{name + " is not in the plan"}
	}
	for _, path := range imports {
		if ours, ok := strings.CutPrefix(path, "sallyport/"); ok && !slices.Contains(allowed, ours) {
			all = append(all, name+" imports "+ours+", which the plan does not have")
		}
		for door, rooms := range doors {
			if strings.HasPrefix(path, door) && !slices.Contains(rooms, name) {
				all = append(all, name+" imports "+path+", which comes in by "+strings.Join(rooms, " and ")+" alone")
			}
		}
	}
	return all
}
