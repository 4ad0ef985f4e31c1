package ingress

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"sallyport/haproxy"
	"sallyport/ingress/input"
)

func export(service string) string {
	return fmt.Sprintf(`
apiVersion: multicluster.x-k8s.io/v1beta1
kind: ServiceExport
metadata: {name: %s, namespace: default}
---
`, service)
}

// pods returns manifests of a Service with a ready pod at each address.
func pods(service string, addrs ...string) string {
	return strings.Replace(app(service), slice(service, "a", "http", 8080, "172.16.1.1"),
		slice(service, "a", "http", 8080, addrs...), 1)
}

// inSet returns snapshots of clusters blue and green of one set.
func inSet(t testing.TB, blue, green string) []Snapshot {
	t.Helper()
	all := []Snapshot{snapshot(t, "blue", blue), snapshot(t, "green", green)}
	all[0].Options.InSet.Name, all[1].Options.InSet.Name = "both", "both"
	return all
}

func TestAServiceThatTwoClustersExportHasThePodsOfBoth(t *testing.T) {
	site := func(year int, paths ...string) string {
		return ingress("a", year, "rules: ["+rule("a.test", paths...)+"]")
	}
	root := path("/", "Prefix", "web")
	blue, green := pods("web", "172.16.1.1"), pods("web", "172.17.1.1", "172.17.1.2")
	const alone = "prefix a.test/ -> blue__default_svc_web_http\n" +
		"backend blue__default_svc_web_http: s_172-16-1-1_8080\n"
	const both = "prefix a.test/ -> blue__default_svc_web_http\n" +
		"backend blue__default_svc_web_http: s_172-16-1-1_8080 s_172-17-1-1_8080_green s_172-17-1-2_8080_green\n"
	for name, tt := range map[string]struct {
		blue, green string
		change      func(all []Snapshot)
		want        string
	}{
		"both export":                           {blue + export("web") + site(2022, root), green + export("web"), nil, both},
		"nobody exports":                        {blue + site(2022, root), green, nil, alone},
		"only the other one exports":            {blue + site(2022, root), green + export("web"), nil, alone},
		"only the one with the Ingress exports": {blue + export("web") + site(2022, root), green, nil, alone},
		"another Service is exported": {
			blue + export("web") + site(2022, root), green + pods("api", "172.17.1.3") + export("api"), nil, alone,
		},
		"one exports all of its Services, the other one this one": {
			blue + export("web") + site(2022, root), green,
			func(all []Snapshot) { all[1].Options.InSet.ExportsAll = true }, both,
		},
		"both export all of their Services": {
			blue + site(2022, root), green + site(2020, path("/b", "Prefix", "web")),
			func(all []Snapshot) { all[0].Options.InSet.ExportsAll, all[1].Options.InSet.ExportsAll = true, true },
			"prefix a.test/ -> blue__default_svc_web_http\nprefix a.test/b -> green__default_svc_web_http\n" +
				"backend blue__default_svc_web_http: s_172-16-1-1_8080 s_172-17-1-1_8080_green s_172-17-1-2_8080_green\n" +
				"backend green__default_svc_web_http: s_172-16-1-1_8080_blue s_172-17-1-1_8080 s_172-17-1-2_8080\n",
		},
		"the other one exports all of its Services, and this one is not exported here": {
			blue + site(2022, root), green + export("web") + site(2020, path("/b", "Prefix", "web")),
			func(all []Snapshot) { all[1].Options.InSet.ExportsAll = true },
			alone + "problem Ingress default/a HostOwned\n",
		},
		"all are exported, in no set": {
			blue + site(2022, root), green,
			func(all []Snapshot) {
				all[0].Options.InSet.ExportsAll, all[1].Options.InSet.ExportsAll = true, true
				all[0].Options.InSet.Name, all[1].Options.InSet.Name = "", ""
			}, alone,
		},
		"they are in no set": {
			blue + export("web") + site(2022, root), green + export("web"),
			func(all []Snapshot) { all[0].Options.InSet.Name, all[1].Options.InSet.Name = "", "" }, alone,
		},
		"they are in two sets": {
			blue + export("web") + site(2022, root), green + export("web"),
			func(all []Snapshot) { all[1].Options.InSet.Name = "other" }, alone,
		},
		"the other one stands by": {
			blue + export("web") + site(2022, root), green + export("web"),
			func(all []Snapshot) { all[1].Options.InSet.Standby = true },
			strings.ReplaceAll(both, "_green", "_green.backup"),
		},
		"the same Ingress in both is no conflict": {
			blue + export("web") + site(2022, root), green + export("web") + site(2020, root), nil, both,
		},
		"a path of the other one leads to both, too": {
			blue + export("web") + site(2022, root), green + export("web") + site(2020, path("/b", "Prefix", "web")), nil,
			"prefix a.test/ -> blue__default_svc_web_http\nprefix a.test/b -> green__default_svc_web_http\n" +
				"backend blue__default_svc_web_http: s_172-16-1-1_8080 s_172-17-1-1_8080_green s_172-17-1-2_8080_green\n" +
				"backend green__default_svc_web_http: s_172-16-1-1_8080_blue s_172-17-1-1_8080 s_172-17-1-2_8080\n",
		},
		"without an export a path of the other one is a stranger's": {
			blue + site(2022, root), green + export("web") + site(2020, path("/b", "Prefix", "web")), nil,
			alone + "problem Ingress default/a HostOwned\n",
		},
		"the other one lacks the port": {
			blue + export("web") + site(2022, root),
			service("web", "grpc", 81) + slice("web", "a", "grpc", 8080, "172.17.1.1") + export("web"), nil,
			alone + "problem Service default/web ExportConflict\n",
		},
		"the other one has no Service yet": {
			blue + export("web") + site(2022, root), export("web"), nil, alone,
		},
		"the other one writes an address of the first": {
			blue + export("web") + site(2022, root), pods("web", "172.16.1.1") + export("web"), nil,
			"prefix a.test/ -> blue__default_svc_web_http\n" + // records refuse the second one
				"backend blue__default_svc_web_http: s_172-16-1-1_8080 s_172-16-1-1_8080_green\n",
		},
		"each namespace has a limit of its own": {
			blue + export("web") + site(2022, root), green + export("web"),
			func(all []Snapshot) { all[1].Options.Limits.Servers = 1 },
			strings.Replace(both, " s_172-17-1-2_8080_green", "", 1) + "problem Service default/web LimitReached\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			all := inSet(t, tt.blue, tt.green)
			if tt.change != nil {
				tt.change(all)
			}
			r := Compile(all)
			if diff := cmp.Diff(tt.want, read(r)); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
			if err := r.Config.Validate(); err != nil {
				t.Error(err)
			}
			for _, b := range r.Config.Backends {
				for i := range b.Servers {
					of := map[bool]string{true: "blue", false: "green"}[strings.HasSuffix(b.ClusterOf(&b.Servers[i]), "blue")]
					if got := b.ClusterOf(&b.Servers[i]); got != of {
						t.Errorf("server %s is of cluster %q", b.Servers[i].Name, got)
					}
				}
			}
		})
	}
}

// TestARouteNamesAServiceOfSeveralClusters has routes to a ServiceImport, to the Service, and to a
// ServiceImport of a Service that nobody exports.
func TestARouteNamesAServiceOfSeveralClusters(t *testing.T) {
	imported := "backendRefs: [{group: multicluster.x-k8s.io, kind: ServiceImport, name: %s, port: 80}]"
	manifests := gateOf("{name: http, port: 80, protocol: HTTP}") + pods("web", "172.16.1.1") + pods("api", "172.16.1.2") +
		export("web") +
		httpRoute("a", "hostnames: [a.test], rules: [{"+fmt.Sprintf(imported, "web")+"}]") +
		httpRoute("b", "hostnames: [b.test], rules: [{backendRefs: [{name: web, port: 80}]}]") +
		httpRoute("c", "hostnames: [c.test], rules: [{"+fmt.Sprintf(imported, "api")+"}]")
	for set, want := range map[string][]string{
		"both": {"a.test True", "b.test True", "c.test False BackendNotFound"},
		"":     {"a.test False BackendNotFound", "b.test True", "c.test False BackendNotFound"},
	} {
		var c Compiler
		compileGates(t, &c, manifests, func(s *Snapshot) { s.Options.InSet.Name = set })
		all := []Snapshot{c.worlds[0].Snapshot, snapshot(t, "green", pods("web", "172.17.1.1")+export("web"))}
		all[1].Options.InSet.Name = set
		r := c.Compile(all)
		var got []string
		for _, s := range r.Statuses[Unnamed] {
			for _, p := range s.Parents {
				if refs := p.Conditions[1]; refs.Status == "True" {
					got = append(got, s.Name+".test True")
				} else {
					got = append(got, s.Name+".test False "+refs.Reason)
				}
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("in set %q: got %q, want %q", set, got, want)
		}
		for _, b := range r.Config.Backends {
			if servers := len(b.Servers); (servers == 2) != (set != "") {
				t.Errorf("in set %q: backend %s has %d servers", set, b.Name, servers)
			}
		}
	}
}

func TestATwinIsServedToo(t *testing.T) {
	text := pods("web", "172.16.1.1") + export("web") +
		secretText(t, "tls", certificate{names: []string{"a.test"}}) +
		ingress("a", 2022, "tls: [{hosts: [a.test], secretName: tls}], rules: ["+
			rule("a.test", path("/", "Prefix", "web"))+"]")
	r := Compile(inSet(t, text, text+secretText(t, "tls", certificate{names: []string{"a.test"}})))
	if len(r.Problems) > 0 || len(r.Served) != 2 {
		t.Errorf("%d are served, with problems %+v; want both, without problems", len(r.Served), r.Problems)
	}
	blue, _ := r.Explain("blue", "default", "a")
	green, is := r.Explain("green", "default", "a")
	if !is || len(green.Rules) != 1 || !reflect.DeepEqual(green.Rules, blue.Rules) {
		t.Errorf("the rules of green are explained as %+v, want those of blue: %+v", green.Rules, blue.Rules)
	}
	if twins := r.Twins(); len(twins) != 1 || len(twins[0]) != 1 || twins[0][0].Cluster != "green" {
		t.Errorf("the twins are %v, want the Ingress of green at the only route", twins)
	}
	if len(r.Config.Certs) != 1 || !strings.HasPrefix(r.Config.Certs[0].Name, "blue__") {
		t.Errorf("the certificates are %v, want that of blue alone", r.Config.Certs)
	}
}

// TestATwinWithOtherKeysIsTold has the same Ingress in both clusters, but for its keys and those of the
// Service. The keys of blue count.
func TestATwinWithOtherKeysIsTold(t *testing.T) {
	site := func(keys string) string {
		return strings.Replace(ingress("a", 2022, "rules: ["+rule("a.test", path("/", "Prefix", "web"),
			path("/more", "Prefix", "web"))+"]"), "{name: a,", "{name: a, annotations: {"+keys+"},", 1)
	}
	for name, tt := range map[string]struct{ blue, green, want string }{
		"the same keys": {`haproxy.org/timeout-server: 9s`, `haproxy.org/timeout-server: 9s`, ""},
		"others": {
			`haproxy.org/timeout-server: 9s, haproxy.org/check: "false"`,
			`haproxy.org/timeout-server: 8s, haproxy.org/allow-list: 10.0.0.0/8`,
			" allow-list, check, timeout-server",
		},
	} {
		t.Run(name, func(t *testing.T) {
			text := pods("web", "172.16.1.1") + export("web")
			r := Compile(inSet(t, text+site(tt.blue), text+site(tt.green)))
			told := 0
			for _, p := range r.Problems {
				if _, keys, is := strings.Cut(p.Why, "differ here:"); p.Reason != "TwinDiffers" || p.Cluster != "green" ||
					!is || keys != tt.want || !strings.Contains(p.Why, "keys of cluster blue") {
					t.Errorf("got %+v", p)
				}
				told++
			}
			if want := 2 * min(len(tt.want), 1); told != want || len(r.Served) != 2 {
				t.Errorf("%d paths are told of, want %d; served are %v", told, want, r.Served)
			}
		})
	}
}

// TestAHostGoesOnInItsSet walks the end of a cluster: its Ingress goes, or the whole cluster leaves the
// configuration file. An older claim of another namespace does not get the host.
func TestAHostGoesOnInItsSet(t *testing.T) {
	text := pods("web", "172.16.1.1") + export("web")
	site := ingress("a", 2022, "rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]")
	evil := of("evil", pods("web", "172.17.9.9")+
		ingress("older", 2019, "rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]"))
	at := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	for name, last := range map[string]func(all []Snapshot) []Snapshot{
		"the first one deletes its Ingress": func(all []Snapshot) []Snapshot {
			all[0].Ingresses = nil
			return all
		},
		"the first one leaves the file": func(all []Snapshot) []Snapshot { return all[1:] },
	} {
		t.Run(name, func(t *testing.T) {
			all := inSet(t, text+site, text+site+evil)
			for i := range all {
				all[i].At, all[i].Options.ReleaseAfter = at, time.Hour
			}
			r := Compile(all)
			for i := range all {
				all[i].Owners = r.Owners[all[i].Cluster]
			}
			if got := r.Config.Routes[0].Backend; got != "blue__default_svc_web_http" {
				t.Fatalf("a.test leads to %s at first", got)
			}
			if got := Compile(last(all)).Config.Routes[0].Backend; got != "green__default_svc_web_http" {
				t.Errorf("a.test leads to %s, want its twin", got)
			}
		})
	}
}

// Each cluster has limits of its own: hosts that a namespace names in blue leave room in green for a host that
// is kept there.
func TestAHostIsKeptWhateverItsNamespaceHasInAnotherCluster(t *testing.T) {
	blue := pods("web", "172.16.1.1") + export("web")
	for i, host := range []string{"a.test", "b.test", "c.test"} {
		blue += ingress(string(rune('a'+i)), 2022, "rules: ["+rule(host, path("/", "Prefix", "web"))+"]")
	}
	all := inSet(t, blue, pods("web", "172.17.1.1")+export("web"))
	for i := range all {
		all[i].At, all[i].Options.ReleaseAfter = time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC), time.Hour
	}
	for most, want := range map[int]int{1: 1, 2: 2} {
		all[1].Options.Limits.Hosts = most
		all[1].Owners = &input.Owners{
			Namespaces: map[string]string{"x.test": "default", "y.test": "default"},
			Left:       map[string]time.Time{"x.test": all[1].At.Add(-time.Minute), "y.test": all[1].At},
		}
		if left := Compile(all).Owners["green"].Left; len(left) != want || left["y.test"].IsZero() {
			t.Errorf("with a limit of %d: kept are %v, want y.test, and %d hosts", most, left, want)
		}
	}
}

// TestAnotherClusterOfASetChangesNothingWithoutConsent checks the promise of sets.go: whatever cluster
// green of a set adds, changes or removes, a namespace of blue that exports nothing is served as before,
// byte for byte. So are all namespaces that green does not have.
func TestAnotherClusterOfASetChangesNothingWithoutConsent(t *testing.T) {
	crt, key := certificate{names: []string{"a.test"}}.make(t)
	secrets := []map[string][]byte{
		{corev1.TLSCertKey: crt, corev1.TLSPrivateKeyKey: key, "ca.crt": crt},
		{"ann": []byte("$5$salt$" + strings.Repeat("a", 43))},
	}
	owned, merged, outer := 0, 0, t
	rapid.Check(t, func(t *rapid.T) {
		all := []Snapshot{{Cluster: Unnamed}, {Cluster: "green"}}
		for i := range all {
			all[i].NoClasses, all[i].At = true, time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
			all[i].Options.InSet.Name = "both"
			share(&all[i])
		}
		all[1].Options.InSet.ExportsAll = rapid.Bool().Draw(t, "green exports all")
		for range 4 {
			drawTenant(t, &all[0], "shop", victimHosts, 1, secrets)
		}
		if rapid.Bool().Draw(t, "another namespace exports") {
			for i := range all {
				mall := snapshot(outer, all[i].Cluster, of("mall", app("web")+export("web")+
					ingress("i", 2022, "rules: ["+rule("mall.test", path("/", "Prefix", "web"))+"]")))
				all[i].Services, all[i].Slices = append(all[i].Services, mall.Services...), append(all[i].Slices, mall.Slices...)
				all[i].Ingresses, all[i].Exports = append(all[i].Ingresses, mall.Ingresses...), mall.Exports
			}
		}
		r := (&Compiler{Shared: sharedPorts}).Compile(all)
		all[0].Owners = r.Owners[Unnamed]
		var hosts []string
		for host, namespace := range r.Owners[Unnamed].Namespaces {
			if namespace == "shop" && host != "" && !strings.HasPrefix(host, "*.") {
				hosts = append(hosts, host)
			}
		}
		slices.Sort(hosts)
		owned += len(hosts)
		want := answers(r, "shop", hosts)
		c := Compiler{Shared: sharedPorts}
		for range rapid.IntRange(1, 4).Draw(t, "steps") {
			for _, namespace := range []string{"shop", "evil", "mall"} {
				drawTenant(t, &all[1], namespace, evilHosts, 0, secrets)
				all[1].Exports = change(t, all[1].Exports, &input.ServiceExport{ObjectMeta: metav1.ObjectMeta{
					Namespace: namespace, Name: rapid.SampledFrom([]string{"web", "api"}).Draw(t, "export"),
				}}, rapid.IntRange(0, 3).Draw(t, "gone") == 0)
			}
			r = c.Compile(all)
			all[0].Owners, all[1].Owners = r.Owners[Unnamed], r.Owners["green"]
			for _, b := range r.Config.Backends {
				if slices.ContainsFunc(b.Servers, func(s haproxy.Server) bool { return s.Cluster != "" }) {
					merged++
				}
			}
			got := answers(r, "shop", hosts)
			for _, what := range slices.Sorted(maps.Keys(want)) {
				if got[what] != want[what] {
					t.Fatalf("%s was\n%s\nand is\n%s", what, want[what], got[what])
				}
			}
		}
	})
	if owned == 0 || merged == 0 {
		t.Errorf("%d hosts of the victim and %d merged backends: the test hardly tests it", owned, merged)
	}
}

// TestAChangeInAnotherClusterOfASetIsSeenAtOnce makes changes in cluster green, one after another, of which
// the Ingress in blue knows nothing.
func TestAChangeInAnotherClusterOfASetIsSeenAtOnce(t *testing.T) {
	site := ingress("a", 2022, "rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]")
	all := inSet(t, pods("web", "172.16.1.1")+export("web")+site, pods("web", "172.17.1.1"))
	full := snapshot(t, "green", pods("web", "172.17.1.1")+export("web"))
	other := snapshot(t, "green", service("web", "http", 81)+slice("web", "b", "http", 8080, "172.17.1.2"))
	var c Compiler
	for _, step := range []struct {
		what    string
		change  func()
		servers int
	}{
		{"at first", func() {}, 1},
		{"it exports the Service", func() { all[1].Exports = full.Exports }, 2},
		{"a pod comes", func() { all[1].Slices = slices.Concat(full.Slices, other.Slices) }, 3},
		{"a port is renumbered, and named alike", func() { all[1].Services = other.Services }, 3},
		{"the Service goes", func() { all[1].Services = nil }, 1},
		{"the Service comes", func() { all[1].Services = full.Services }, 3},
		{"it exports nothing", func() { all[1].Exports = nil }, 1},
		{"it exports all of its Services", func() { all[1].Options.InSet.ExportsAll = true }, 3},
		{"the Service goes, and was exported", func() { all[1].Services = nil }, 1},
		{"it is there, and is exported", func() { all[1].Services = full.Services }, 3},
		{"it exports only what is exported", func() { all[1].Options.InSet.ExportsAll = false }, 1},
		{"it exports it again", func() { all[1].Exports = full.Exports }, 3},
		{"it leaves the set", func() { all[1].Options.InSet.Name = "" }, 1},
	} {
		step.change()
		got, want := c.Compile(all), Compile(all)
		if n := len(got.Config.Backends[0].Servers); n != step.servers {
			t.Errorf("%s: %d servers, want %d", step.what, n, step.servers)
		}
		if diff := cmp.Diff(read(want), read(got)); diff != "" {
			t.Errorf("%s: from nothing (-), remembered (+):\n%s", step.what, diff)
		}
	}
}

// TestAClusterLowersItsOwnShareAlone gives green a ConfigMap with a weight.
func TestAClusterThatLeavesTakesItsPodsWithIt(t *testing.T) {
	root := ingress("a", 2022, "rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]")
	all := inSet(t, pods("web", "172.16.1.1")+export("web")+root, pods("web", "172.17.1.1")+export("web"))
	var c Compiler
	if got := read(c.Compile(all)); !strings.Contains(got, "s_172-17-1-1_8080_green") {
		t.Errorf("with both: got\n%s", got)
	}
	if got := read(c.Compile(all[:1])); strings.Contains(got, "green") {
		t.Errorf("cluster green has left: got\n%s", got)
	}
}

func TestAClusterLowersItsOwnShareAlone(t *testing.T) {
	text := pods("web", "172.17.1.1") + export("web")
	var c Compiler
	for _, tt := range []struct {
		weight  string
		set     string
		percent int // of green; 100 if it is not lowered
		problem string
	}{
		{"25", "both", 25, ""},
		{"0", "both", 0, ""},
		{"100", "both", 100, ""},
		{"101", "both", 100, "InvalidAnnotation"},
		{"-1", "both", 100, "InvalidAnnotation"},
		{"1000000000", "both", 100, "InvalidAnnotation"},
		{"25", "", 100, ""},
		{"25", "both", 25, ""},
	} {
		all := inSet(t, pods("web", "172.16.1.1")+export("web"), text)
		all[1].ConfigMaps = []*corev1.ConfigMap{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "own"}, Data: map[string]string{"cluster-weight": tt.weight},
		}}
		all[1].Options.ConfigMap, all[1].Options.InSet.Name = "ops/own", tt.set
		r := c.Compile(all)
		want := map[string]int{"green": tt.percent}
		if tt.percent == 100 {
			want = map[string]int{}
		}
		if !maps.Equal(r.Percent, want) {
			t.Errorf("cluster-weight %s in set %q: got %v, want %v", tt.weight, tt.set, r.Percent, want)
		}
		reason := ""
		for _, p := range r.Problems {
			if p.Kind == "ConfigMap" {
				reason = p.Reason
			}
		}
		if reason != tt.problem {
			t.Errorf("cluster-weight %s in set %q: got the problem %q, want %q", tt.weight, tt.set, reason, tt.problem)
		}
	}
}

// TestOnlyAClusterThatIsToCountHasUnreadyEndpoints gives green pods that are not ready, one after another.
func TestOnlyAClusterThatIsToCountHasUnreadyEndpoints(t *testing.T) {
	site := ingress("a", 2022, "rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]")
	unready := func(addrs ...string) string {
		return strings.ReplaceAll(slice("web", "b", "http", 8080, addrs...), "ready: true", "ready: false")
	}
	green := pods("web", "172.17.1.1") + export("web")
	var c Compiler
	var before *haproxy.Backend
	for _, step := range []struct {
		what    string
		text    string
		count   bool
		want    map[string]int
		another bool // the backend is another one than before
	}{
		{"nobody counts", green, false, nil, true},
		{"nobody counts one", green + unready("172.17.1.2"), false, nil, false},
		{"green counts one", green + unready("172.17.1.2"), true, map[string]int{"green": 1}, true},
		{"two", green + unready("172.17.1.2", "172.17.1.3"), true, map[string]int{"green": 2}, true},
		{"another one", green + unready("172.17.1.2", "172.17.1.4"), true, map[string]int{"green": 2}, false},
		{"none", green, true, map[string]int{"green": 0}, true},
		{"it exports nothing", pods("web", "172.17.1.1") + unready("172.17.1.2"), true, nil, true},
	} {
		all := inSet(t, pods("web", "172.16.1.1")+unready("172.16.1.2")+export("web")+site, step.text)
		all[1].Options.InSet.CountUnready = step.count
		got := c.Compile(all).Config.Backends[0]
		if !maps.Equal(got.Unready, step.want) {
			t.Errorf("%s: got %v, want %v", step.what, got.Unready, step.want)
		}
		if got != before != step.another {
			t.Errorf("%s: the backend is another one: %t, want %t", step.what, got != before, step.another)
		}
		before = got
	}
}
