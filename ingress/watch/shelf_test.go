package watch

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"sallyport/ingress/input"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"pgregory.net/rapid"
)

// TestAShelfHoldsWhatItWasTold walks random histories. It compares the shelf with a map,
// and each list that the shelf returned with a copy made at that time.
func TestAShelfHoldsWhatItWasTold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		knocks := 0
		s := &shelf[*discoveryv1.EndpointSlice]{order: input.ByService, knock: func() { knocks++ }}
		want := map[string]*discoveryv1.EndpointSlice{}
		version := 0
		draw := func() *discoveryv1.EndpointSlice {
			version++
			return &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{
					Name:            rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name"),
					ResourceVersion: strconv.Itoa(version),
					// A slice can move to another Service, and so to another place in the order.
					Labels: map[string]string{
						discoveryv1.LabelServiceName: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "service"),
					},
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
			if len(got) != len(want) || !slices.IsSortedFunc(got, input.ByService) {
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
	s := &shelf[*discoveryv1.EndpointSlice]{order: input.ByService, knock: func() {}}
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

// A server is an API server with one resource at a revision of etcd. It answers a list
// and a watch.
type server struct {
	mu       sync.Mutex
	revision int
	names    []string
	lists    int
	watches  []*watch.FakeWatcher
	away     bool
}

func (v *server) list(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lists++
	if from, _ := strconv.Atoi(o.ResourceVersion); from > v.revision {
		err := apierrors.NewTimeoutError("Too large resource version", 1)
		err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
		return nil, err
	}
	l := &discoveryv1.EndpointSliceList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(v.revision)}}
	for _, name := range v.names {
		l.Items = append(l.Items,
			discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "7"}})
	}
	return l, nil
}

// watch returns a watch without events, like one from a future revision.
func (v *server) watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.away {
		return nil, syscall.ECONNREFUSED
	}
	w := watch.NewFake()
	time.AfterFunc(time.Duration(*o.TimeoutSeconds)*time.Second, w.Stop)
	v.watches = append(v.watches, w)
	return w, nil
}

func (v *server) fill(t *testing.T) *shelf[*discoveryv1.EndpointSlice] {
	s := &shelf[*discoveryv1.EndpointSlice]{order: input.ByService, knock: func() {}, told: func(error, bool) {}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		s.run(ctx, v.list, v.watch)
		close(ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return s
}

// pass lets time go by within a synctest bubble.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // the bubble's time: nothing waits
	synctest.Wait()
}

func TestAServerThatWentBackInTimeIsReadAnew(t *testing.T) {
	for name, away := range map[string]time.Duration{
		"its watch is cut":              0,
		"it is away for a few attempts": time.Minute,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := &server{revision: 100, names: []string{"a", "later"}}
				s := v.fill(t)
				synctest.Wait()
				if got := len(s.list()); got != 2 {
					t.Fatalf("want 2 objects, got %d", got)
				}
				pass(time.Minute)
				v.mu.Lock()
				v.revision, v.names, v.away = 50, []string{"a"}, away > 0
				v.watches[0].Stop()
				v.mu.Unlock()
				pass(away)
				v.mu.Lock()
				v.away = false
				v.mu.Unlock()
				pass(longestPause + time.Second)
				if got := s.list(); len(got) != 1 {
					t.Errorf("want what the backup has, got %d objects", len(got))
				}
			})
		})
	}
}

func TestAWatchThatEndsInTimeGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &server{revision: 100, names: []string{"a"}}
		v.fill(t)
		pass(time.Hour)
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.lists != 1 || len(v.watches) < 6 {
			t.Errorf("want one list and a watch every 5 to 10 minutes, got %d and %d", v.lists, len(v.watches))
		}
	})
}
