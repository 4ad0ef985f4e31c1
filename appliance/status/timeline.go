package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"sallyport/appliance/plan"
	"sallyport/bgp"
	"sallyport/haproxy"
)

// A Change is something that the appliance changed, or that changed around it.
type Change struct {
	At   time.Time `json:"at"`
	Kind string    `json:"kind"` // one of the change kinds
	What string    `json:"what"`
	Why  string    `json:"why,omitempty"`
	// from the beginning of the round that saw the reason; zero if the appliance only observed it
	Took time.Duration `json:"tookNanoseconds,omitzero"`
	Bad  bool          `json:"bad,omitempty"` // it needs attention
}

// The kinds of changes.
const (
	ServerChange  = "server"
	RouteChange   = "route"
	SessionChange = "session"
	ReloadChange  = "reload"
	OfferChange   = "offer"
	LimitChange   = "limit"
	StateChange   = "state"
	ConfigChange  = "configuration"
)

// Kinds lists the kinds of changes.
var Kinds = []string{
	ServerChange, RouteChange, SessionChange, ReloadChange, OfferChange, LimitChange, StateChange, ConfigChange,
}

// ChangesKept bounds the memory of a timeline: some 300 bytes a change.
const ChangesKept = 2000

// A Timeline holds the last changes in memory. The loop adds to it where it logs. Its methods are
// safe for concurrent use. The zero value is ready to use.
type Timeline struct {
	mu    sync.Mutex
	all   []entry        // the oldest first
	Count map[string]int // of each group
}

// An entry is a change and its group. The group is the namespace of a server, or the kind of any
// other change.
type entry struct {
	Change
	group string
}

func (t *Timeline) Add(c Change) { t.AddTo(c.Kind, c) }

// AddTo adds a change of a group. A full timeline forgets the oldest change of the largest group. A
// namespace with servers that change all the time thus displaces only its own changes.
func (t *Timeline) AddTo(group string, c Change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.Count == nil {
		t.Count = make(map[string]int)
	}
	t.all = append(t.all, entry{c, group})
	t.Count[group]++
	if len(t.all) <= ChangesKept {
		return
	}
	largest := group
	for other, count := range t.Count {
		if n := t.Count[largest]; count > n || count == n && other < largest {
			largest = other
		}
	}
	oldest := slices.IndexFunc(t.all, func(e entry) bool { return e.group == largest })
	t.all = slices.Delete(t.all, oldest, oldest+1)
	if t.Count[largest]--; t.Count[largest] == 0 {
		delete(t.Count, largest)
	}
}

// Since returns the changes from a time on, the newest first.
func (t *Timeline) Since(at time.Time) []Change {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := []Change{}
	for _, e := range slices.Backward(t.all) {
		if e.At.Before(at) {
			break
		}
		all = append(all, e.Change)
	}
	return all
}

// TenantOf returns the part of a backend's name that has its namespace, and its cluster if the name
// has that. Package ingress writes it at the beginning of the name (see routing.go there).
func TenantOf(backend string) string {
	end := len(backend)
	for _, mark := range []string{"_svc_", "_ing_", "_auth_svc_"} {
		if i := strings.Index(backend, mark); i >= 0 {
			end = min(end, i)
		}
	}
	return backend[:end]
}

// InTurns sorts a list in turns: the first entry of each owner, then the second entry of each
// owner, and so on. So every owner keeps a share of a list that is cut short.
func InTurns[T any](all []T, owner func(T) string) []T {
	turn, had := make([]int, len(all)), make(map[string]int)
	order := make([]int, len(all))
	for i, one := range all {
		of := owner(one)
		turn[i], order[i] = had[of], i
		had[of]++
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(turn[a], turn[b]) })
	sorted := make([]T, len(all))
	for i, at := range order {
		sorted[i] = all[at]
	}
	return sorted
}

// NoteSteps adds the steps that a round took: a screenful of routes or servers, and then how many
// more.
func NoteSteps[S plan.Step](t *Timeline, now time.Time, v *View, steps []S) {
	for i, step := range steps {
		c, group := Change{At: now, Took: now.Sub(v.At)}, RouteChange
		switch s := any(step).(type) {
		case plan.SetServer:
			group = TenantOf(s.ID.Backend)
			became := s.State.String()
			switch s.State {
			case haproxy.Absent:
				became = "deleted"
			case haproxy.Drain:
				became = "drained"
			}
			c.Kind, c.Why = ServerChange, s.Why
			c.What = fmt.Sprintf("%s of %s is %s", v.server(s.ID), s.ID.Backend, became)
		case plan.AddRoute:
			c.Kind, c.What, c.Why = RouteChange, fmt.Sprintf("%s via %s added", s.Selector, s.Via), "a verified offer"
		case plan.DropRoute:
			c.Kind, c.What, c.Why = RouteChange, fmt.Sprintf("%s removed", s.Selector), "no verified offer is left"
		case plan.AddRule:
			c.Kind, c.What, c.Why = RouteChange, fmt.Sprintf("rule for %s added", s.Selector), "the source of a cluster"
		case plan.DropRule:
			c.Kind, c.What, c.Why = RouteChange, fmt.Sprintf("rule for %s removed", s.Selector), "no cluster needs it"
		}
		if i == Screenful {
			c.What, c.Why = fmt.Sprintf("%d more changed in the same round", len(steps)-Screenful), ""
			t.Add(c)
			return
		}
		t.AddTo(group, c)
	}
}

// server names a server by its address, and its pod if that is known.
func (v *View) server(id haproxy.ServerID) string {
	at, ok := haproxy.BackendAt(v.Want.Backends, id.Backend)
	if ok {
		for _, s := range v.Want.Backends[at].Servers {
			if s.Name == id.Server {
				return strings.TrimSpace(s.Addr.String() + " " + s.Pod)
			}
		}
	}
	if live, ok := v.Have.Backends.Get(id.Backend).Find(id.Server); ok {
		return live.Addr.String()
	}
	return id.Server
}

// NoteView adds the changes around the appliance between two rounds: those of BGP sessions, and of
// its readiness.
func (t *Timeline) NoteView(last, v *View) {
	if last == nil {
		return
	}
	was := make(map[string]bgp.PeerState, len(last.BGP.Peers))
	for _, p := range last.BGP.Peers {
		was[p.Addr.String()] = p
	}
	for _, p := range v.BGP.Peers {
		before := was[p.Addr.String()]
		switch up, wasUp := p.Up(), before.Up(); {
		case up && !wasUp:
			t.Add(Change{
				At: v.At, Kind: SessionChange,
				What: fmt.Sprintf("BGP session with %s (%s) is established", Whose(p.Peer), p.Addr),
			})
		case !up && wasUp:
			why := p.LossReason
			if why == "" {
				why = string(p.LastLoss.Cause)
			}
			t.Add(Change{
				At: v.At, Kind: SessionChange,
				What: fmt.Sprintf("BGP session with %s (%s) is lost", Whose(p.Peer), p.Addr), Why: why, Bad: true,
			})
		}
	}
	switch ready, wasReady := len(v.NotReady) == 0, len(last.NotReady) == 0; {
	case ready && !wasReady:
		t.Add(Change{At: v.At, Kind: StateChange, What: "the appliance is ready"})
	case !ready && wasReady:
		t.Add(Change{
			At: v.At, Kind: StateChange, What: "the appliance is not ready", Why: v.NotReady[0],
			Bad: true,
		})
	}
}
