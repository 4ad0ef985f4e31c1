package ingress

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"sallyport/ingress/input"
)

// exportsOf returns the Exports of a Result, one a line.
func exportsOf(r Result) string {
	var b strings.Builder
	for _, cluster := range sortedKeys(r.Exports) {
		for _, x := range r.Exports[cluster] {
			fmt.Fprintf(&b, "%s %s: %t %s: %s\n", x.Cluster, x.Name, x.Shared, x.Reason, x.Why)
		}
	}
	return b.String()
}

func TestAnExportSaysWhetherItsPodsAreShared(t *testing.T) {
	site := ingress("a", 2022, "rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]")
	web, grpc := pods("web", "172.16.1.1"), service("web", "grpc", 81)+slice("web", "a", "grpc", 8080, "172.17.1.1")
	unknown := func(set string) func([]Snapshot, *Compiler) {
		return func(_ []Snapshot, c *Compiler) {
			c.Unknown = []Snapshot{{Cluster: "late", Options: Options{InSet: input.SetOptions{Name: set}}}}
		}
	}
	external := func(all []Snapshot, _ *Compiler) { all[1].Services[0].Spec.Type = corev1.ServiceTypeExternalName }
	const shared = "blue web: true Shared: its pods serve together with those of cluster green\n" +
		"green web: true Shared: its pods serve together with those of cluster blue\n"
	const alone = " web: false Alone: no other cluster of the set exports this Service: create a ServiceExport of the " +
		"same name and namespace there\n"
	const none = "green web: false NoService: there is no Service default/web in this cluster: create it, or delete " +
		"this ServiceExport\n"
	const lacks = "blue web: false Alone: cluster green exports this Service, too, but its pods do not serve: "
	const port = "Service default/web has no TCP port http, it has grpc 81\n"
	const untyped = "Service default/web is of type ExternalName: a server is an address with a verified route, not a name\n"
	const conflict = "green web: false ExportConflict: its pods do not serve default/web of cluster blue, which exports " +
		"the same Service: " + port
	for name, tt := range map[string]struct {
		blue, green string
		change      func([]Snapshot, *Compiler)
		want        string
	}{
		"both export it":                       {web + export("web") + site, web + export("web"), nil, shared},
		"both export it, and nothing leads to": {web + export("web"), web + export("web"), nil, shared},
		"one exports it":                       {web + export("web") + site, web, nil, "blue" + alone},
		"the other one exports another Service": {
			web + export("web") + site, pods("api", "172.17.1.3") + export("api"), nil, "blue" + alone + "green" +
				strings.Replace(alone, "web", "api", 1),
		},
		"the other one has no such Service": {
			web + export("web") + site, export("web"), nil, lacks + "there is no Service default/web\n" + none,
		},
		"nobody has such a Service": {export("web"), export("web"), nil, strings.Replace(none, "green", "blue", 1) + none},
		"the other one lacks the port": {
			web + export("web") + site, grpc + export("web"), nil, lacks + port + conflict,
		},
		"each lacks the port of the other one": {
			web + export("web") + site,
			grpc + export("web") + ingress("b", 2022, "rules: ["+
				rule("b.test", strings.Replace(path("/", "Prefix", "web"), "80", "81", 1))+"]"), nil, "blue web: false ExportConflict: its pods do not serve default/web of cluster green, which exports the same " +
				"Service: Service default/web has no TCP port grpc, it has http 80\n" + conflict,
		},
		"the ports differ, and nothing leads to them": {web + export("web"), grpc + export("web"), nil, shared},
		"the other one's is of type ExternalName": {
			web + export("web") + site, web + export("web"), external, lacks + untyped + strings.Replace(conflict, port, untyped, 1),
		},
		"the other one's is of type ExternalName, and nothing leads to it": {
			web + export("web"), web + export("web"), external, lacks + untyped + "green web: false ExternalName: " + untyped,
		},
		"the other one shares all of its Services": {
			web + export("web") + site, web, func(all []Snapshot, _ *Compiler) { all[1].Options.InSet.ExportsAll = true },
			strings.SplitAfter(shared, "\n")[0],
		},
		"the other one shares all, and has no such Service": {
			web + export("web") + site, "", func(all []Snapshot, _ *Compiler) { all[1].Options.InSet.ExportsAll = true },
			"blue" + alone,
		},
		"both share all of their Services": {
			web + export("web") + site, web + export("web"),
			func(all []Snapshot, _ *Compiler) {
				all[0].Options.InSet.ExportsAll, all[1].Options.InSet.ExportsAll = true, true
			}, "",
		},
		"the other one stands by": {
			web + export("web") + site, web + export("web"),
			func(all []Snapshot, _ *Compiler) { all[1].Options.InSet.Standby = true }, shared,
		},
		"they are in two sets": {
			web + export("web") + site, web + export("web"),
			func(all []Snapshot, _ *Compiler) { all[1].Options.InSet.Name = "other" }, "blue" + alone + "green" + alone,
		},
		"they are in no set": {
			web + export("web") + site, web + export("web"),
			func(all []Snapshot, _ *Compiler) { all[0].Options.InSet.Name, all[1].Options.InSet.Name = "", "" }, "",
		},
		"nothing is taken from the namespace of the other one": {
			web + export("web") + site, web + export("web"),
			func(all []Snapshot, _ *Compiler) { all[1].Options.Namespaces = []string{"shop"} },
			strings.SplitAfter(shared, "\n")[0],
		},
		"a cluster of the set is not known yet": {web + export("web") + site, export("web"), unknown("both"), none},
		"a cluster of another set is not known": {web + export("web") + site, web + export("web"), unknown("x"), shared},
	} {
		t.Run(name, func(t *testing.T) {
			all, c := inSet(t, tt.blue, tt.green), new(Compiler)
			if tt.change != nil {
				tt.change(all, c)
			}
			r := c.Compile(all)
			if diff := cmp.Diff(tt.want, exportsOf(r)); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
			for _, p := range r.Problems {
				if p.Reason == "ExportConflict" && !strings.Contains(exportsOf(r), "ExportConflict: "+p.Why+"\n") {
					t.Errorf("no ServiceExport says %q", p.Why)
				}
			}
		})
	}
}

func TestAnExportNamesTheOtherClusters(t *testing.T) {
	var all []Snapshot
	for _, name := range []string{"red", "green", "blue", "grey"} {
		s := snapshot(t, name, pods("web", "172.16.1.1")+export("web"))
		s.Options.InSet.Name, s.Exports[0].UID = "all", "of-"+s.Exports[0].UID
		all = append(all, s)
	}
	all[3].Exports = nil
	x := Compile(all).Exports["green"][0]
	if want := "its pods serve together with those of clusters red, blue"; x.Why != want || x.UID != "of-" {
		t.Errorf("got %+v, want %q", x, want)
	}
}

// TestExportsAreRemembered walks random histories of three clusters, and compares a Compiler with Compile at every
// step. The conflicts come and go with the Ingresses, too.
func TestExportsAreRemembered(t *testing.T) {
	site := func(cluster string, port int) string {
		to := strings.Replace(path("/", "Prefix", "web"), "80", fmt.Sprint(port), 1)
		return ingress("a", 2022, "rules: ["+rule(cluster+".test", to)+"]")
	}
	outer, seen := t, make(map[string]int)
	rapid.Check(t, func(t *rapid.T) {
		pick := func(label string, from ...string) string { return rapid.SampledFrom(from).Draw(t, label) }
		c, all := new(Compiler), make([]Snapshot, 3)
		draw := func(s *Snapshot) {
			name, port := pick("name", "web", "web", "api"), rapid.SampledFrom([]int{80, 80, 81}).Draw(t, "port")
			text := map[string]string{
				"service": service(name, fmt.Sprint("p", port), port), "export": export(name), "ingress": site(s.Cluster, port),
			}
			gone := rapid.IntRange(0, 3).Draw(t, "gone") == 0
			switch kind := pick("kind", "service", "service", "export", "export", "ingress", "ingress", "set", "all"); kind {
			case "set":
				s.Options.InSet.Name = pick("set", "both", "both", "other", "")
			case "all":
				s.Options.InSet.ExportsAll = !s.Options.InSet.ExportsAll
			default:
				one := snapshot(outer, s.Cluster, text[kind])
				for _, o := range one.Services {
					s.Services = change(t, s.Services, o, gone)
				}
				for _, o := range one.Exports {
					s.Exports = change(t, s.Exports, o, gone)
				}
				for _, o := range one.Ingresses {
					s.Ingresses = change(t, s.Ingresses, o, gone)
				}
			}
		}
		for i, cluster := range []string{"red", "green", "blue"} {
			all[i] = snapshot(outer, cluster, service("web", "p80", 80)+export("web")+site(cluster, 80))
			all[i].Options.InSet.Name = "both"
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			draw(&all[rapid.IntRange(0, 2).Draw(t, "cluster")])
			given := all[:rapid.SampledFrom([]int{3, 3, 3, 3, 2}).Draw(t, "clusters")]
			if c.Unknown = nil; rapid.IntRange(0, 4).Draw(t, "unknown") == 0 {
				c.Unknown = []Snapshot{{Cluster: "late", Options: Options{InSet: input.SetOptions{Name: "both"}}}}
			}
			if rapid.IntRange(0, 9).Draw(t, "swap") == 0 {
				all[0], all[1] = all[1], all[0]
			}
			fresh := Compiler{Unknown: c.Unknown}
			got, want := c.Compile(given), fresh.Compile(given)
			if diff := cmp.Diff(exportsOf(want), exportsOf(got)); diff != "" {
				t.Fatalf("from nothing (-), remembered (+):\n%s", diff)
			}
			for _, list := range got.Exports {
				for _, x := range list {
					seen[x.Reason]++
				}
			}
		}
	})
	for _, reason := range []string{"Shared", "Alone", "NoService", "ExportConflict"} {
		if seen[reason] == 0 {
			t.Errorf("no Export is %s: %v", reason, seen)
		}
	}
	t.Log(seen)
}

// tenClusters returns the clusters of one set, which export the same n Services. The first one has the Ingresses.
func tenClusters(n int) (all []Snapshot) {
	for i := range 10 {
		s := manyServices(n)
		if s.Cluster = fmt.Sprint("c", i); i > 0 {
			s.Ingresses = nil
		}
		s.Options.InSet.Name = "all"
		for _, svc := range s.Services {
			svc.UID = "1"
			s.Exports = append(s.Exports, exportOf(svc))
		}
		all = append(all, s)
	}
	return all
}

// TestAnEndpointChangesNoExport also has another version of a Service, which touches its Exports alone.
func TestAnEndpointChangesNoExport(t *testing.T) {
	all, c := tenClusters(20), new(Compiler)
	before := c.Compile(all).Exports
	all[3] = withSlice(all[3], 10, false)
	if after := c.Compile(all).Exports; !sameMap(before, after) {
		t.Error("an endpoint has made the Exports anew")
	}
	other := withService(all[3], 10)
	other.Services[10].Spec.Ports[0].Port = 81
	all[3] = other
	for cluster, list := range c.Compile(all).Exports {
		for i, x := range list {
			differs := i == 10 && (cluster == "c3" || cluster == "c0")
			if same := x == before[cluster][i]; i != 10 && !same || differs && same {
				t.Errorf("%s %s: the same pointer: %t", cluster, x.Name, same)
			}
		}
	}
}

// sameMap reports whether two maps are one.
func sameMap(a, b map[string][]*Export) bool {
	a["only"] = nil
	defer delete(a, "only")
	_, is := b["only"]
	return is
}

// withService returns the snapshot with another version of one Service.
func withService(s Snapshot, at int) Snapshot {
	s.Services = slices.Clone(s.Services)
	s.Services[at] = s.Services[at].DeepCopy()
	return s
}

// BenchmarkOneChangeInASet measures one changed object among ten clusters that export the same n Services.
func BenchmarkOneChangeInASet(b *testing.B) {
	const n = 1000
	all := tenClusters(n)
	versions := map[string][]Snapshot{
		"EndpointSlice": {withSlice(all[3], n/2, false), all[3]},
		"Service":       {withService(all[3], n/2), all[3]},
		"ServiceExport": {withoutExport(all[3], n/2), all[3]},
	}
	for _, kind := range sortedKeys(versions) {
		b.Run(kind, func(b *testing.B) {
			c, now := new(Compiler), slices.Clone(all)
			c.Compile(now)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				now[3] = versions[kind][i%2]
				c.Compile(now)
			}
		})
	}
}

// withoutExport returns the snapshot without one ServiceExport.
func withoutExport(s Snapshot, at int) Snapshot {
	s.Exports = slices.Delete(slices.Clone(s.Exports), at, at+1)
	return s
}

func exportOf(svc *corev1.Service) *input.ServiceExport {
	return &input.ServiceExport{ObjectMeta: svc.ObjectMeta}
}
