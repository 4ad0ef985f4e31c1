package ingress

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// crowd returns Services with an Ingress each, by their names. A Service is as old as
// its Ingress.
func crowd(t *testing.T, servers map[string]int, years map[string]int) Snapshot {
	t.Helper()
	objects, net := "", 0
	for _, name := range sortedKeys(servers) {
		var addrs []string
		for i := range servers[name] {
			addrs = append(addrs, fmt.Sprintf("172.16.%d.%d", net, i+1))
		}
		net++
		objects += service(name, "http", 80) + slice(name, "a", "http", 8080, addrs...) +
			ingress("to-"+name, years[name], "rules: ["+rule(name+".test", path("/", "Prefix", name))+"]")
	}
	s := snapshot(t, Unnamed, objects)
	for _, svc := range s.Services {
		svc.CreationTimestamp = metav1.Date(years[svc.Name], 1, 1, 0, 0, 0, 0, metav1.Now().Location())
	}
	return s
}

func TestTheOldestServersHaveARoomThatIsTooSmall(t *testing.T) {
	for name, row := range map[string]struct {
		room    int
		servers map[string]int // the names are in the order of their age, if older is empty
		years   map[string]int
		want    string
		waits   string // Ingresses with a problem
	}{
		"no bound": {
			0,
			map[string]int{"a": 3, "b": 2},
			map[string]int{"a": 2001, "b": 2002},
			"a 3, b 2", "",
		},
		"room for all": {
			5,
			map[string]int{"a": 3, "b": 2},
			map[string]int{"a": 2001, "b": 2002},
			"a 3, b 2", "",
		},
		"room for one less": {
			4,
			map[string]int{"a": 3, "b": 2},
			map[string]int{"a": 2001, "b": 2002},
			"a 3, b 1", "to-b",
		},
		"the name does not decide": {
			4,
			map[string]int{"a": 3, "b": 2},
			map[string]int{"a": 2002, "b": 2001},
			"a 2, b 2", "to-a",
		},
		"of the same age the name decides": {
			4,
			map[string]int{"a": 3, "b": 2},
			map[string]int{"a": 2001, "b": 2001},
			"a 3, b 1", "to-b",
		},
		"what came last waits": {
			5,
			map[string]int{"a": 3, "b": 2, "c": 9, "d": 1},
			map[string]int{"a": 2001, "b": 2002, "c": 2003, "d": 2004},
			"a 3, b 2, c 0, d 0", "to-c to-d",
		},
		"a Service of many pods": {
			40,
			map[string]int{"a": 200, "b": 10, "c": 12},
			map[string]int{"a": 2001, "b": 2002, "c": 2003},
			"a 18, b 10, c 12", "to-a",
		},
		"a Service of many pods and others": {
			30,
			map[string]int{"a": 200, "b": 10, "c": 12},
			map[string]int{"a": 2001, "b": 2002, "c": 2003},
			"a 16, b 10, c 4", "to-a to-c",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := crowd(t, row.servers, row.years)
			c := Compiler{Room: row.room}
			r := c.Compile([]Snapshot{s})
			var got, waits []string
			wanted := 0
			for _, b := range r.Config.Backends {
				short := strings.TrimSuffix(strings.TrimPrefix(b.Name, "default_svc_"), "_http")
				got, wanted = append(got, fmt.Sprint(short, " ", len(b.Servers))), wanted+row.servers[short]
			}
			if diff := cmp.Diff(row.want, strings.Join(got, ", ")); diff != "" {
				t.Errorf("servers: -want +got\n%s", diff)
			}
			if r.Servers != wanted {
				t.Errorf("the clusters have %d servers, want %d", r.Servers, wanted)
			}
			for _, p := range r.Problems {
				if p.Reason != "NoRoom" || p.Kind != "Ingress" || p.UID == "" && p.Name == "" {
					t.Errorf("got the problem %+v", p)
				}
				waits = append(waits, p.Name)
			}
			if diff := cmp.Diff(row.waits, strings.Join(waits, " ")); diff != "" {
				t.Errorf("waiting: -want +got\n%s", diff)
			}
			other := s
			other.Slices = append(slices.Clone(s.Slices), s.Slices[0].DeepCopy())
			other.Slices[len(s.Slices)].Namespace = "elsewhere"
			if next := c.Compile([]Snapshot{other}); !slices.Equal(next.Config.Backends, r.Config.Backends) {
				t.Error("backends were made anew")
			}
			c.Room = 0
			if free := c.Compile([]Snapshot{s}); len(free.Problems) > 0 ||
				!slices.Equal(free.Config.Backends, Compile([]Snapshot{s}).Config.Backends) &&
					len(free.Config.Backends[0].Servers) != row.servers["a"] {
				t.Errorf("with more room, problems %v", free.Problems)
			}
		})
	}
}

// TestAnOldIngressGivesAYoungServiceNoPlace is about a tenant that adds Services to an
// Ingress that it has had for long.
func TestAnOldIngressGivesAYoungServiceNoPlace(t *testing.T) {
	s := crowd(t, map[string]int{"a": 2, "b": 2}, map[string]int{"a": 2003, "b": 2002})
	for _, in := range s.Ingresses {
		if in.Name == "to-a" {
			in.CreationTimestamp = metav1.Date(2001, 1, 1, 0, 0, 0, 0, metav1.Now().Location())
		}
	}
	r := (&Compiler{Room: 2}).Compile([]Snapshot{s})
	if len(r.Config.Backends[0].Servers) != 0 || len(r.Config.Backends[1].Servers) != 2 {
		t.Errorf("a has %d servers and b %d, want 0 and 2", len(r.Config.Backends[0].Servers),
			len(r.Config.Backends[1].Servers))
	}
}
