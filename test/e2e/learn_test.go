package e2e

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// refusals returns what the member reports about the objects of a namespace, sorted.
func (m member) refusals(namespace string) (all []string, err error) {
	s, err := m.status()
	for _, p := range s.Problems {
		if strings.Contains(p.Object, " "+namespace+"/") {
			all = append(all, fmt.Sprintf("%s: %s: %s", p.Object, p.Reason, p.Why))
		}
	}
	slices.Sort(all)
	return all, err
}

// TestAStartingMemberLearnsWhatIsKeptForWhom lets a namespace ask for a host and for
// an address that the first member keeps for another namespace. The second member has never run.
func TestAStartingMemberLearnsWhatIsKeptForWhom(t *testing.T) {
	beside(t, short)
	a, b := newMembers(t, world.Options{Name: "learn", Workers: 1, Router: world.RouterBIRD},
		"  pools: [203.0.113.64/28]\n")
	r := a.testbed
	r.permitGroup()
	host := ingress("shop", "", "kept.test / Prefix app")
	r.apply(application("app", 1) + host + "---" + balancer + "---\napiVersion: v1\nkind: Namespace\n" +
		"metadata: {name: evil}\n")
	a.start()
	a.ready()
	r.spread(a)
	r.answeredBy("http://kept.test/", 1)
	address := r.recordedAt("web", "")

	// What asks first waits, so that the first member alone knows who had both.
	r.apply(rig.Service("evil", "app", "app") +
		strings.Replace(ingress("thief", "", "kept.test / Prefix app"), "{name: thief}", "{namespace: evil, name: thief}", 1) +
		"---" + strings.Replace(balancer, "name: web\n", "name: thief\n  namespace: evil\n  annotations: "+
		"{sallyport.dev/address: \""+address+"\"}\n", 1))
	r.kubectl("delete", "ingress", "shop")
	r.kubectl("delete", "service", "web")
	refused := func(m member) (both []string) {
		r.eventually(m.Machine()+" refuses both", func() error {
			var err error
			both, err = m.refusals("evil")
			text := strings.Join(both, "\n")
			return cmp.Or(err, missing("the status", text, "until", "is kept for it until",
				address+" was an address of Service default/web"))
		})
		return both
	}
	want := refused(a)

	b.start()
	b.ready()
	got := refused(b)
	if !slices.Equal(got, want) {
		t.Errorf("the first member says\n%s\nthe second one says\n%s", strings.Join(want, "\n"), strings.Join(got, "\n"))
	}
	if still, err := a.refusals("evil"); err != nil || !slices.Equal(still, want) {
		t.Errorf("since the second one runs the first one says %q (%v), want %q", still, err, want)
	}
	serves := func(m member) {
		t.Helper()
		answer, err := r.get("http://kept.test/", r.host(m.Machine()).Addr.Addr().String()+":80")
		if err != nil || answer.Code != http.StatusNotFound {
			t.Errorf("%s answers %d (%v), want 404", m.Machine(), answer.Code, err)
		}
	}
	serves(a)
	serves(b)

	// The second member keeps its memory when the first one is gone.
	a.end(syscall.SIGTERM)
	r.spread(b)
	if got := refused(b); !slices.Equal(got, want) {
		t.Errorf("alone the second one says\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	serves(b)
	if got := r.recordOf("evil", "thief"); got != "" {
		t.Errorf("evil has the address %s, which is kept for another namespace", got)
	}
	r.kubectl("delete", "ingress", "thief", "-n", "evil")
}
