package ingress

import (
	"slices"
	"strconv"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// TestAShelfHoldsWhatItWasTold walks random histories and holds a shelf to a
// map, and what it lent to what it was.
func TestAShelfHoldsWhatItWasTold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		knocks := 0
		s := &shelf[*discoveryv1.EndpointSlice]{order: byService, knock: func() { knocks++ }}
		want := map[string]*discoveryv1.EndpointSlice{}
		version := 0
		draw := func() *discoveryv1.EndpointSlice {
			version++
			return &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{
					Name: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name"), ResourceVersion: strconv.Itoa(version),
					// A slice can move to another Service, and so to another place.
					Labels: map[string]string{discoveryv1.LabelServiceName: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "service")},
				},
				AddressType: discoveryv1.AddressType(rapid.SampledFrom([]string{"IPv4", "IPv6"}).Draw(t, "family")),
			}
		}
		type loan struct{ given, copied []*discoveryv1.EndpointSlice }
		var lent []loan
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			before, knocked := slices.Clone(s.items), knocks
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0, 1:
				o := draw()
				want[o.Name] = o
				if err := s.Update(o); err != nil {
					t.Fatal(err)
				}
			case 2:
				o := draw()
				delete(want, o.Name)
				if err := s.Delete(o); err != nil {
					t.Fatal(err)
				}
			case 3:
				clear(want)
				var all []any
				for range rapid.IntRange(0, 3).Draw(t, "listed") {
					if o := draw(); want[o.Name] == nil {
						want[o.Name] = o
						all = append(all, o)
					}
				}
				if err := s.Replace(all, ""); err != nil {
					t.Fatal(err)
				}
			}
			if len(lent) > 0 && knocks == knocked && !slices.Equal(before, s.items) {
				t.Fatal("it changed and did not knock")
			}
			got := s.list()
			lent = append(lent, loan{got, slices.Clone(got)})
			if len(got) != len(want) || !slices.IsSortedFunc(got, byService) {
				t.Fatalf("want %d in order, got %v", len(want), got)
			}
			for _, o := range got {
				if !sameButVersion(o, want[o.Name].DeepCopy()) {
					t.Fatalf("want %v, got %v", want[o.Name], o)
				}
			}
			for _, o := range s.newest() {
				if o != want[o.Name] {
					t.Fatalf("want the newest %v, got %v", want[o.Name], o)
				}
			}
		}
		for _, l := range lent {
			if !slices.Equal(l.given, l.copied) {
				t.Fatal("what was handed out changed")
			}
		}
	})
}

func TestWhatIsTheSameKeepsItsPointer(t *testing.T) {
	s := &shelf[*discoveryv1.EndpointSlice]{order: byService, knock: func() {}}
	o := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "1"}}
	if err := s.Replace([]any{o}, ""); err != nil {
		t.Fatal(err)
	}
	again, newer := o.DeepCopy(), o.DeepCopy()
	newer.ResourceVersion = "2"
	if err := s.Replace([]any{again}, ""); err != nil {
		t.Fatal(err)
	}
	if err := s.Update(newer); err != nil {
		t.Fatal(err)
	}
	if s.list()[0] != o {
		t.Error("an equal object took its place")
	}
}
