package appliance

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sallyport/appliance/status"
	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/ingress/input"
)

// A quarantine ends a loop of crashes. An object that crashes the process would also crash the next
// process, and the processes of all members of a group.
//
// Each start finds out whether the process before ended in order. After crashesAtOnce crashes
// within crashWindow the process is careful. It begins with the objects of the last good pictures,
// and tries the versions that differ from them. If a group of versions crashes the process, the
// next process tries each half of it, until one version is left. That version is held: the
// appliance uses the version in the picture until the object changes. The changed object is tried
// alone before it counts as any other object.
//
// The versions on trial are written to a file before they are used, so that the next process knows
// them. Nodes and blocks are never held: routes and servers depend on their present state.
//
// The goroutine of the loop owns a quarantine.
type quarantine struct {
	crashes
	path string
	log  *slog.Logger

	older  map[string]input.Objects // of the last good pictures, by cluster
	sums   input.Sums
	seen   map[string]inspection // by cluster
	since  time.Time             // when the use of Trial began
	failed string                // the last error of save
}

// crashes is the content of the file.
type crashes struct {
	Program string        `json:"program"` // the version of the program; another version may not have the fault
	Boot    string        `json:"boot"`    // of the machine, by bootID; the end of a boot is no crash
	Begun   time.Time     `json:"begun"`
	Running bool          `json:"running"`           // the process did not end in order
	At      []time.Time   `json:"at,omitempty"`      // crashes within crashWindow, by the starts after them
	Proof   time.Duration `json:"proof,omitempty"`   // how long a version has to be in use without a crash
	Careful bool          `json:"careful,omitempty"` // each version that differs from the pictures is tried first
	Trial   []suspect     `json:"trial,omitempty"`   // in use, for less than Proof
	Next    [][]suspect   `json:"next,omitempty"`    // the halves of groups that ended a process
	Passed  []suspect     `json:"passed,omitempty"`  // in use while Careful
	Held    []suspect     `json:"held,omitempty"`    // each ended a process, alone
}

// A suspect is a version of an object of a cluster.
type suspect struct {
	Cluster string `json:"cluster"`
	input.Version
}

func (s suspect) named() suspect { return suspect{s.Cluster, s.Named()} }

func compareSuspects(a, b suspect) int {
	return cmp.Or(strings.Compare(a.Cluster, b.Cluster), strings.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.List, b.List), strings.Compare(a.Name, b.Name))
}

// An inspection is the decision of a quarantine about the objects of a cluster.
type inspection struct {
	live, used input.Objects
	waiting    []suspect // versions that were not tried yet
	problems   []ingress.Problem
}

const (
	crashesAtOnce = 3
	crashWindow   = time.Minute
	// leastProof and mostProof bound how long a version has to be in use without a crash. In
	// between it is as long as the last process lived that crashed.
	leastProof, mostProof = 3 * time.Second, 20 * time.Second
	// quarantineSize bounds the bytes of the file.
	quarantineSize = 64 << 20
)

// openQuarantine reads what earlier processes left, and notes that this one runs.
func openQuarantine(stateDir, program, boot string, now time.Time, log *slog.Logger) *quarantine {
	q := &quarantine{path: filepath.Join(stateDir, "crashes.json"), log: log}
	q.forget()
	if err := q.read(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("crashes of earlier processes are not known", "err", err)
		q.crashes = crashes{}
	}
	crashed := q.Running && q.Boot == boot
	if q.Program != program {
		q.crashes = crashes{}
	}
	q.Program, q.Boot, q.Running = program, boot, true
	if crashed {
		q.crash(now)
	}
	q.Begun, q.Trial = now, nil
	q.save()
	return q
}

func (q *quarantine) read() error {
	f, err := haproxy.OpenRegular(q.path, quarantineSize)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read
	return json.NewDecoder(bufio.NewReader(f)).Decode(&q.crashes)
}

// crash notes a crash, and decides which version is held and which versions are tried next.
func (q *quarantine) crash(now time.Time) {
	q.At = append(slices.DeleteFunc(q.At, func(t time.Time) bool { return now.Sub(t) >= crashWindow || t.After(now) }),
		now)
	if !q.Begun.IsZero() {
		q.Proof = min(max(now.Sub(q.Begun), leastProof), mostProof)
	}
	q.log.Error("the process before crashed; its log says why", "crashes", len(q.At), "within", crashWindow)
	tried := q.Trial
	q.Trial = nil
	switch half := len(tried) / 2; {
	case len(tried) == 1:
		q.Held = append(q.Held, tried[0])
		q.log.Error("an object ends the process: it is held until it changes", "cluster", tried[0].Cluster, "namespace",
			tried[0].Namespace, "name", tried[0].Name)
	case half > 0:
		q.Next = slices.Insert(q.Next, 0, tried[:half:half], tried[half:])
	case q.Careful:
		q.Passed = nil // one of them needs longer than the proof took
		q.log.Error("the process crashed while nothing new was on trial: it may be the last good picture, or no " +
			"object at all")
	case len(q.At) >= crashesAtOnce:
		q.Careful = true
		q.log.Error("the process crashed again and again: it uses the last good picture, and tries what is new " +
			"part by part")
	}
}

// end notes that the process ends in order.
func (q *quarantine) end() {
	q.crashes = crashes{Program: q.Program, Boot: q.Boot, Held: q.Held}
	q.save()
}

// on reports whether anything may be held.
func (q *quarantine) on() bool {
	return q.Careful || len(q.Held)+len(q.Trial)+len(q.Next) > 0
}

// trying reports whether versions on trial are in use. They may still crash the process, so they do
// not belong into a picture.
func (q *quarantine) trying() bool { return len(q.Trial) > 0 }

// begin gives a cluster its last good picture.
func (q *quarantine) begin(cluster string, o input.Objects) {
	if q.on() {
		q.older[cluster] = o
	}
}

// forget drops all inspections and sums, so that they are made again from the state.
func (q *quarantine) forget() {
	if q.older == nil {
		q.older = map[string]input.Objects{}
	}
	q.sums, q.seen = input.Sums{}, map[string]inspection{}
}

// use returns the objects of a cluster that the appliance may use, and a problem for each object
// that is held.
func (q *quarantine) use(cluster string, live input.Objects) (input.Objects, []ingress.Problem) {
	if !q.on() {
		return live, nil
	}
	older, pictured := q.older[cluster]
	if !pictured && len(q.Held) == 0 {
		return live, nil // without a picture nothing is known to be good
	}
	if last, known := q.seen[cluster]; known && last.live.Same(live) {
		return last.used, last.problems
	}
	l := inspection{live: live}
	may, bad := setOfSuspects(q.Trial, q.Passed), setOfSuspects(q.Held)
	names := map[suspect]bool{}
	for _, group := range append([][]suspect{q.Trial, q.Held}, q.Next...) {
		for _, s := range group {
			names[s.named()] = true
		}
	}
	concerned := func(named input.Version) bool { return q.Careful && pictured || names[suspect{cluster, named}] }
	l.used = live.Holding(older, q.sums, concerned, func(v input.Version, of ingress.ObjectRef) bool {
		s := suspect{cluster, v}
		switch {
		case may[s]:
			return false
		case bad[s]:
			of.Cluster = cluster
			l.problems = append(l.problems, heldProblem(of))
		default:
			l.waiting = append(l.waiting, s)
		}
		return true
	})
	q.seen[cluster] = l
	return l.used, l.problems
}

func heldProblem(of ingress.ObjectRef) ingress.Problem {
	return ingress.Problem{
		ObjectRef: of, Reason: "Quarantined",
		Why: "this version of the object ended sallyport: what the object said before is in use, or nothing if it is " +
			"new, until it changes; " +
			"this is a bug of Sallyport: please report it with the end of its log",
	}
}

func setOfSuspects(groups ...[]suspect) map[suspect]bool {
	set := map[suspect]bool{}
	for _, s := range slices.Concat(groups...) {
		set[s] = true
	}
	return set
}

// advance ends the trial of versions that were in use long enough, and begins the trial of the next
// group. The next call of use returns that group. all says that no cluster is waited for any more.
func (q *quarantine) advance(now time.Time, all bool) {
	proved := len(q.Trial) > 0 && now.Sub(q.since) >= q.Proof
	if !q.on() || !proved && !all {
		return
	}
	waiting := map[suspect]bool{}
	var fresh []suspect
	queued := setOfSuspects(q.Next...)
	for _, l := range q.seen {
		for _, s := range l.waiting {
			waiting[s] = true
			if !queued[s] {
				fresh = append(fresh, s)
			}
		}
	}
	slices.SortFunc(fresh, compareSuspects)
	switch {
	case len(q.Trial) > 0 && !proved:
		if len(q.Next) > 0 || len(fresh) == 0 {
			return
		}
		q.Trial = append(q.Trial, fresh...) // no version is known to crash the process, so no change has to wait
	default:
		was := q.trying()
		q.pass()
		q.choose(fresh, waiting)
		switch {
		case q.trying():
			q.since = now
			q.log.Warn("changes are tried after crashes", "tried", len(q.Trial), "waiting", len(waiting)-len(q.Trial),
				"held", len(q.Held))
		case q.Careful && all:
			q.Careful, q.Passed, q.At = false, nil, nil
			q.log.Info("everything new was tried after the crashes", "held", len(q.Held))
		case !was:
			return
		}
	}
	q.forget()
	q.save()
}

// choose puts on trial the versions of the next group that still wait. If no group has any, it puts
// the fresh versions on trial.
func (q *quarantine) choose(fresh []suspect, waiting map[suspect]bool) {
	for len(q.Next) > 0 && !q.trying() {
		q.Trial = slices.DeleteFunc(slices.Clone(q.Next[0]), func(s suspect) bool { return !waiting[s] })
		q.Next = q.Next[1:]
	}
	if !q.trying() {
		q.Trial = fresh
	}
}

// pass ends the trial with success: its versions count as any other version from now on.
func (q *quarantine) pass() {
	for _, s := range q.Trial {
		q.Held = slices.DeleteFunc(q.Held, func(h suspect) bool { return h.named() == s.named() })
	}
	if q.Careful {
		q.Passed = append(q.Passed, q.Trial...)
	}
	q.Trial = nil
}

// warnings returns a sentence for each thing that an operator should know.
func (q *quarantine) warnings() (all []string) {
	if q.Careful {
		waiting := 0
		for _, l := range q.seen {
			waiting += len(l.waiting)
		}
		all = append(all, fmt.Sprintf("sallyport crashed %d times within a minute: it uses the last good picture, "+
			"and tries what is new part by part: %s on trial, %d waiting; the log has the reason of each crash",
			crashesAtOnce, status.Counted(len(q.Trial), "change"), waiting))
	}
	for _, l := range q.seen {
		for _, p := range l.problems {
			all = append(all, fmt.Sprintf("cluster %s: %s %s: %s", p.Cluster, p.Kind,
				strings.TrimPrefix(p.Namespace+"/"+p.Name, "/"), p.Why))
		}
	}
	slices.Sort(all)
	return all
}

// save replaces the file in one step. It logs an error once: the process goes on, but the
// next one would not know what was tried.
func (q *quarantine) save() {
	err := q.write()
	text := ""
	if err != nil {
		text = err.Error()
		if at, ok := errors.AsType[*fs.PathError](err); ok {
			text = at.Err.Error() // without the file's name, which differs each time
		}
	}
	if text != "" && text != q.failed {
		q.log.Error("crashes cannot be noted: the end of a loop of crashes depends on it", "err", err)
	}
	q.failed = text
}

func (q *quarantine) write() error {
	return haproxy.Replace(q.path, 0o600, func(to io.Writer) error { return json.NewEncoder(to).Encode(q.crashes) })
}
