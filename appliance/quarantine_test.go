package appliance

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/appliance/picture"
	"sallyport/ingress/input"
	"sallyport/ingress/watch"
)

// A crashing is a sequence of processes of one state directory, that some versions of
// Services end.
type crashing struct {
	*quarantine
	t       *testing.T
	dir     string
	boot    string // of the machine
	clock   time.Time
	picture input.Objects
	live    input.Objects
	fatal   map[string]bool // versions of Services, by the text of version
	after   time.Duration   // that a process lives with a fatal version
	crashes int
	used    input.Objects
}

func service(name string, version int) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "of-" + name[:1], Name: name, UID: "1",
			ResourceVersion: strconv.Itoa(1000 + version),
		},
		Spec: corev1.ServiceSpec{ExternalName: strconv.Itoa(version)},
	}
}

func versionOf(s *corev1.Service) string { return s.Name + s.Spec.ExternalName }

func newCrashing(t *testing.T) *crashing {
	return &crashing{
		t: t, dir: t.TempDir(), clock: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		fatal: map[string]bool{},
	}
}

// begin starts the next process.
func (c *crashing) begin() {
	c.quarantine = openQuarantine(c.dir, "1.0", c.boot, c.clock, slog.New(slog.DiscardHandler))
	c.quarantine.begin("demo", c.picture)
}

// put replaces Services of the cluster, in the way of a new version each.
func (c *crashing) put(all ...*corev1.Service) {
	for _, s := range all {
		c.live.Services = slices.DeleteFunc(slices.Clone(c.live.Services), func(o *corev1.Service) bool {
			return o.Name == s.Name
		})
		c.live.Services = append(c.live.Services, s)
	}
	slices.SortFunc(c.live.Services, func(a, b *corev1.Service) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
}

// round is one second of a process. It reports false if the process crashed.
func (c *crashing) round() bool {
	c.clock = c.clock.Add(time.Second)
	c.used, _ = c.use("demo", c.live)
	for _, s := range c.used.Services {
		if c.fatal[versionOf(s)] {
			c.clock = c.clock.Add(c.after)
			c.crashes++
			return false
		}
	}
	if !c.trying() {
		c.picture = c.used
	}
	c.advance(c.clock, true)
	return true
}

// settle lets processes crash and start until one has lived for two minutes.
func (c *crashing) settle() {
	c.t.Helper()
	for range 2000 {
		lived := 0
		for lived < 120 && c.round() {
			lived++
		}
		if lived == 120 {
			return
		}
		c.begin()
	}
	c.t.Fatal("the crashes do not end")
}

func (c *crashing) uses() (all []string) {
	for _, s := range c.used.Services {
		all = append(all, versionOf(s))
	}
	slices.Sort(all)
	return all
}

func (c *crashing) want(what string, all ...string) {
	c.t.Helper()
	if slices.Sort(all); !slices.Equal(all, c.uses()) {
		c.t.Errorf("%s: in use are %v, want %v", what, c.uses(), all)
	}
}

func TestAnObjectThatEndsTheProcessIsHeldAndNothingElse(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // reproducible
			c := newCrashing(t)
			c.after = time.Duration(rnd.IntN(3)) * time.Second
			c.begin()
			n := 1 + rnd.IntN(100)
			good := map[string]bool{}
			for i := range n {
				if name := fmt.Sprintf("%c%d", 'a'+rune(i%5), i); rnd.IntN(3) > 0 {
					c.put(service(name, 1))
					good[name+"1"] = true
				}
			}
			c.settle()
			if c.crashes > 0 {
				t.Fatal("it crashed without a reason")
			}
			bad := 0
			for i := range n {
				name := fmt.Sprintf("%c%d", 'a'+rune(i%5), i)
				switch rnd.IntN(4) {
				case 0: // stays
				case 1, 2:
					c.put(service(name, 2))
					delete(good, name+"1")
					good[name+"2"] = true
				case 3:
					if bad < 3 {
						bad++
						c.put(service(name, 3))
						c.fatal[name+"3"] = true
					}
				}
			}
			c.settle()
			c.want("after the crashes", slices.Collect(maps.Keys(good))...)
			// Each group that ends a process is halved until one version is left.
			if most := crashesAtOnce + bad*(2+2*len(strconv.FormatInt(int64(n), 2))); c.crashes > most {
				t.Errorf("%d crashes for %d fatal versions of %d, want %d at most", c.crashes, bad, n, most)
			}
			if _, held := c.use("demo", c.live); len(held) != bad || len(c.warnings()) != bad {
				t.Errorf("%d objects are reported, and %d warnings, want %d", len(held), len(c.warnings()), bad)
			}
			// The next processes know it.
			before := c.crashes
			c.end()
			c.begin()
			c.settle()
			c.want("after a restart", slices.Collect(maps.Keys(good))...)
			if c.crashes != before {
				t.Error("a restart tries again what is held")
			}
		})
	}
}

func TestAHeldObjectIsUsedOnceItChanges(t *testing.T) {
	c := newCrashing(t)
	c.put(service("a", 1), service("b", 1))
	c.begin()
	c.settle()
	c.put(service("a", 2))
	c.fatal["a2"], c.fatal["a3"] = true, true
	c.settle()
	c.want("held", "a1", "b1")

	// Another version that ends the process does so once.
	before := c.crashes
	c.put(service("a", 3), service("b", 2))
	c.settle()
	c.want("held again", "a1", "b2")
	if c.crashes != before+1 {
		t.Errorf("%d crashes for a change of an object that is held, want 1", c.crashes-before)
	}
	c.put(service("a", 4))
	c.settle()
	c.want("mended", "a4", "b2")
	if c.on() {
		t.Error("something is held still")
	}
	c.put(service("a", 5))
	c.round()
	c.want("at once", "a5", "b2")
}

// A deletion is a change like any other.
func TestADeletionThatEndsTheProcessIsHeld(t *testing.T) {
	c := newCrashing(t)
	c.put(service("a", 1), service("b", 1))
	c.begin()
	c.settle()
	ends := func(o input.Objects) bool { return len(o.Services) == 1 }
	c.live.Services = c.live.Services[1:]
	for range 20 {
		c.clock = c.clock.Add(2 * time.Second)
		if c.used, _ = c.use("demo", c.live); ends(c.used) {
			c.begin()
			continue
		}
		c.advance(c.clock, true)
	}
	c.want("held", "a1", "b1")
	if len(c.Held) != 1 || c.Held[0].Sum != "" {
		t.Errorf("held is %v, want the deletion", c.Held)
	}
}

func TestOnlyCrashesOneSoonAfterTheOtherCount(t *testing.T) {
	c := newCrashing(t)
	c.put(service("a", 1))
	c.begin()
	c.settle()
	for range 5 {
		c.clock = c.clock.Add(crashWindow / 2)
		c.begin()
		if c.Careful {
			t.Fatal("it is careful after a crash each half a minute")
		}
	}
	for range crashesAtOnce {
		c.end()
		c.begin()
	}
	if c.Careful {
		t.Fatal("it is careful after three stops in order")
	}
	for i := range crashesAtOnce {
		c.boot = strconv.Itoa(i)
		c.begin()
	}
	if c.Careful {
		t.Fatal("it is careful after the power was cut three times")
	}
	for range crashesAtOnce {
		c.begin()
	}
	if !c.Careful {
		t.Fatal("it is not careful after three crashes at once")
	}
	c.quarantine = openQuarantine(c.dir, "1.1", c.boot, c.clock, slog.New(slog.DiscardHandler))
	if c.on() {
		t.Error("another version of the program begins with the crashes of the one before")
	}
}

// Three crashes for other reasons, such as a kill by the kernel, hold nothing for long.
func TestCrashesWithoutAFatalObjectHoldNothing(t *testing.T) {
	c := newCrashing(t)
	c.put(service("a", 1), service("b", 1))
	c.begin()
	c.settle()
	c.put(service("a", 2), service("c", 1))
	for range crashesAtOnce {
		c.begin()
	}
	c.round()
	if c.want("as in the picture", "a1", "b1"); !c.Careful {
		t.Error("it is not careful")
	}
	c.round()
	c.want("on trial", "a2", "b1", "c1")
	c.put(service("b", 2))
	c.round()
	c.round()
	c.want("what changes meanwhile does not wait", "a2", "b2", "c1")
	c.settle()
	c.want("at the end", "a2", "b2", "c1")
	if c.on() {
		t.Error("something is held still")
	}
}

func TestAFileOfCrashesThatCannotBeReadHoldsNothing(t *testing.T) {
	for name, text := range map[string]string{"empty": "", "torn": `{"program": "1.0", "held": [{"clu`, "other": `[]`} {
		t.Run(name, func(t *testing.T) {
			c := newCrashing(t)
			if err := os.WriteFile(filepath.Join(c.dir, "crashes.json"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			c.begin()
			if c.on() {
				t.Error("something is held")
			}
			c.begin()
			if !c.Running || len(c.At) != 1 {
				t.Errorf("got %+v, want one crash", c.quarantine.crashes)
			}
		})
	}
}

// The loop as a process of its own, that a Service ends: by what is published of it, long
// after the loop has read it.
const loopDir = "SALLYPORT_TEST_LOOP"

// endingWatcher ends the process when a Service with a certain name is in use.
type endingWatcher struct {
	fakeWatcher
	*scene
}

func (w *endingWatcher) Publish(p watch.Publication) {
	for _, s := range w.clusters[0].snapshot.Services {
		if s.Name == "fatal" {
			panic("the test ends the process")
		}
	}
}

func TestLoopOfItsOwn(t *testing.T) {
	dir := os.Getenv(loopDir)
	if dir == "" {
		t.Skip("runs as a process of TestAProcessThatCrashesAgainAndAgainServesOn")
	}
	s := newScene(t)
	s.loop.now = time.Now
	s.speaker.announce(block1, node1)
	s.speaker.announce(block2, node2)
	s.pictures = picture.New(dir, s.log)
	s.crashed = openQuarantine(dir, "1.0", "one", time.Now(), slog.New(slog.NewTextHandler(os.Stderr, nil)))
	w := &endingWatcher{fakeWatcher: *s.watcher, scene: s}
	pic, err := s.pictures.Load("demo")
	if err == nil {
		s.crashed.begin("demo", pic.Snapshot.Objects)
	}
	if err == nil { // the objects come after the first picture
		meta := metav1.ObjectMeta{Namespace: "evil", Name: "fatal"}
		w.snapshot.Services = append(w.snapshot.Services, &corev1.Service{ObjectMeta: meta})
		web := w.snapshot.Ingresses[0].DeepCopy()
		web.Spec.Rules[0].Host = "changed.local"
		w.snapshot.Ingresses = append(w.snapshot.Ingresses[:0:0], web)
	}
	s.clusters[0].watcher = w
	s.begin()
	// The first process knows all it needs. The others go on until the fatal object is held.
	first, tick := err != nil, time.NewTicker(10*time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		s.round(t.Context())
		if first && s.settled || !s.crashed.Careful && len(s.crashed.Held) == 1 {
			break
		}
	}
	s.pictures.Save()
	s.crashed.end()
	if _, why := s.view.Load().Config.Find("changed.local", "/"); why == "" {
		fmt.Println("serves changed.local")
	}
}

func TestAProcessThatCrashesAgainAndAgainServesOn(t *testing.T) {
	dir := t.TempDir()
	crashes := 0
	run := func() (text string, ok bool) {
		cmd := exec.Command(os.Args[0], "-test.run=^TestLoopOfItsOwn$", "-test.v") //nolint:gosec // this very program
		cmd.Env = append(os.Environ(), loopDir+"="+dir)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Run()
		return out.String(), err == nil
	}
	if text, ok := run(); !ok {
		t.Fatalf("without the fatal object it fails:\n%s", text)
	}
	for range 20 {
		text, ok := run()
		if ok {
			if !strings.Contains(text, "serves changed.local") {
				t.Errorf("what changed beside the fatal object is not served:\n%s", text)
			}
			if crashes < crashesAtOnce {
				t.Errorf("%d crashes, want %d at least", crashes, crashesAtOnce)
			}
			return
		}
		if !strings.Contains(text, "the test ends the process") {
			t.Fatalf("it failed for another reason:\n%s", text)
		}
		crashes++
	}
	t.Error("the crashes do not end")
}
