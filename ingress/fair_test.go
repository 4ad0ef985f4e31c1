package ingress

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/haproxy"
)

func TestTheLargestGiveWayFirst(t *testing.T) {
	for name, row := range map[string]struct {
		sizes []int
		most  int
		want  []int
	}{
		"no bound":            {[]int{5, 1 << 30}, 0, []int{5, 1 << 30}},
		"within":              {[]int{5, 10}, 15, []int{5, 10}},
		"one too large":       {[]int{5, 1 << 30}, 15, []int{5, 10}},
		"all too large":       {[]int{100, 200, 300}, 90, []int{30, 30, 30}},
		"two of three":        {[]int{300, 10, 200}, 90, []int{40, 10, 40}},
		"more than there are": {[]int{7, 7, 7}, 2, []int{1, 1, 1}},
	} {
		var got []int
		for _, size := range row.sizes {
			got = append(got, min(size, level(row.sizes, row.most)))
		}
		if diff := cmp.Diff(row.want, got); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
}

// limitedIngresses returns Ingresses of a namespace, each with a rate limit for so many clients.
func limitedIngresses(namespace string, sizes ...int) (objects string) {
	for i, size := range sizes {
		host := fmt.Sprintf("%s%d.test", namespace, i)
		objects += strings.ReplaceAll(
			strings.Replace(ingress(fmt.Sprintf("it%d", i), 2020,
				"rules: ["+rule(host, path("/", "Prefix", "web"))+"]"),
				"namespace: default,", fmt.Sprintf(
					`namespace: default, annotations: {rate-limit-requests: "10", rate-limit-size: "%d"},`, size), 1),
			"namespace: default", "namespace: "+namespace)
	}
	return objects + strings.ReplaceAll(app("web"), "namespace: default", "namespace: "+namespace)
}

func TestTheTablesOfANamespaceCountNoMoreClientsThanItsLimit(t *testing.T) {
	s := snapshot(t, Unnamed, limitedIngresses("evil", 1<<30, 100, 1<<20)+limitedIngresses("victim", 600))
	s.Options.Limits.Clients = 1000
	r := Compile([]Snapshot{s})
	got := map[string]int{}
	for _, table := range r.Config.Tables {
		got[table.Name] = table.Size
	}
	want := map[string]int{
		"evil_ing_it0_rate": 450, "evil_ing_it1_rate": 100, "evil_ing_it2_rate": 450,
		"victim_ing_it0_rate": 600,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	for _, b := range r.Config.Backends {
		if !slices.ContainsFunc(b.Directives, func(d haproxy.Directive) bool {
			return strings.Contains(d.String(), "sc_http_req_rate")
		}) {
			t.Errorf("backend %s limits nobody: %v", b.Name, b.Directives)
		}
	}
	var told []string
	for _, p := range r.Problems {
		if strings.Contains(p.Why, "clusters[].ingress.limits.clients") {
			told = append(told, p.Namespace+"/"+p.Name+" "+p.Reason)
		}
	}
	if diff := cmp.Diff([]string{"evil/it0 LimitReached", "evil/it2 LimitReached"}, told); diff != "" {
		t.Errorf("told: -want +got\n%s", diff)
	}
}

// withDefaults gives the operator's ConfigMap a rate limit, and another key.
func withDefaults(s Snapshot, key, value string) Snapshot {
	s.Options.ConfigMap, s.Options.Limits.Clients = "ops/defaults", 1000
	s.ConfigMaps = []*corev1.ConfigMap{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "defaults"},
		Data:       map[string]string{"rate-limit-requests": "10", key: value},
	}}
	return s
}

// TestATableOfTheConfigMapIsTheOperators also checks that two clusters may set it differently.
func TestATableOfTheConfigMapIsTheOperators(t *testing.T) {
	one := withDefaults(snapshot(t, "one",
		app("web")+ingress("it", 2020, "rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]")), "rate-limit-size",
		"5000")
	two := withDefaults(snapshot(t, "two",
		app("web")+ingress("it", 2020, "rules: ["+rule("b.test", path("/", "Prefix", "web"))+"]")), "rate-limit-period",
		"1h")
	r := Compile([]Snapshot{one, two})
	if err := r.Config.Validate(); err != nil {
		t.Error(err)
	}
	if got := fmt.Sprint(r.Config.Tables); got != "[{one___rate 5000 1s} {two___rate 102400 1h0m0s}]" {
		t.Errorf("tables %s", got)
	}
}

// TestTheChecksOfANamespaceAreNoMoreThanItsLimit also checks that a round without a change returns
// the same pointers.
func TestTheChecksOfANamespaceAreNoMoreThanItsLimit(t *testing.T) {
	objects := ""
	for _, namespace := range []string{"evil", "victim"} {
		here := service("a", "http", 80) + slice("a", "a", "http", 8080, "172.16.1.1", "172.16.1.2") +
			service("b", "http", 80) + slice("b", "a", "http", 8080, "172.16.2.1", "172.16.2.2")
		it := ingress("it", 2020,
			"rules: ["+rule(namespace+".test", path("/a", "Prefix", "a"), path("/b", "Prefix", "b"))+"]")
		if namespace == "evil" {
			it = strings.Replace(it, "namespace: default,", "namespace: default, annotations: {check-interval: 500ms},",
				1)
		}
		objects += strings.ReplaceAll(here+it, "namespace: default", "namespace: "+namespace)
	}
	s := snapshot(t, Unnamed, objects)
	for most, want := range map[int]map[string]int{
		0: {"evil": 0, "victim": 0}, 8: {"evil": 0, "victim": 0}, 7: {"evil": 2, "victim": 0},
		4: {"evil": 2, "victim": 0}, 3: {"evil": 4, "victim": 0}, 1: {"evil": 8, "victim": 2},
	} {
		s.Options.Limits.Checks = most
		var c Compiler
		r := c.Compile([]Snapshot{s})
		for _, b := range r.Config.Backends {
			if b.Options.Slower != want[b.Namespace] {
				t.Errorf("at most %d: %s is checked %d times as seldom, want %d", most, b.Name, b.Options.Slower,
					want[b.Namespace])
			}
		}
		told := map[string]int{}
		for _, p := range r.Problems {
			if p.Reason == "LimitReached" && p.Kind == "Service" {
				told[p.Namespace]++
			}
		}
		if told["evil"] > 1 || (told["evil"] > 0) != (want["evil"] > 0) ||
			(told["victim"] > 0) != (want["victim"] > 0) {
			t.Errorf("at most %d: problems %v", most, r.Problems)
		}
		other := s
		other.Slices = append(slices.Clone(s.Slices), s.Slices[0].DeepCopy())
		other.Slices[len(s.Slices)].Namespace = "elsewhere"
		if next := c.Compile([]Snapshot{other}); !slices.Equal(next.Config.Backends, r.Config.Backends) {
			t.Errorf("at most %d: backends were made anew", most)
		}
	}
}
