package haproxy

import (
	"hash/maphash"
	"iter"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// Live is a server in the worker.
type Live struct {
	Name   string
	Addr   netip.AddrPort
	Source netip.Addr // as Server.Source, by the name
	State  State
	Check  string // Up, Down or Unchecked; a Closed server is Unchecked
	// Failure is the result of the last check of a server that is Down: L4TOUT, L4CON and so on
	// (HAProxy's manual, management, 9.1, check_status).
	Failure  string
	Sessions int // connections in use, as of the last look
	Weight   int // as Server.Weight, and never 0
}

// The results of HAProxy's checks of a server.
const (
	Up        = "UP"
	Down      = "DOWN"
	Unchecked = "no check"
)

// A LiveBackend is a backend in the worker. It never changes, so equal pointers mean an equal
// content. A nil LiveBackend has no servers.
type LiveBackend struct {
	Servers []Live // sorted by Name
}

// Find returns the server of that name.
func (b *LiveBackend) Find(name string) (Live, bool) {
	if b == nil {
		return Live{}, false
	}
	i, ok := slices.BinarySearchFunc(b.Servers, name, func(l Live, name string) int {
		return strings.Compare(l.Name, name)
	})
	if !ok {
		return Live{}, false
	}
	return b.Servers[i], true
}

// Match yields every server of want and of the backend once, by name. It yields the index in want,
// or -1, and the server in the worker, or nil. want is sorted by Name.
func (b *LiveBackend) Match(want []Server) iter.Seq2[int, *Live] {
	var have []Live
	if b != nil {
		have = b.Servers
	}
	return func(yield func(int, *Live) bool) {
		for i, j := 0, 0; i < len(want) || j < len(have); {
			var more bool
			switch {
			case j == len(have) || i < len(want) && want[i].Name < have[j].Name:
				more = yield(i, nil)
				i++
			case i == len(want) || have[j].Name < want[i].Name:
				more = yield(-1, &have[j])
				j++
			default:
				more = yield(i, &have[j])
				i++
				j++
			}
			if !more {
				return
			}
		}
	}
}

// checked returns the backend, but takes each server from read that has the same State and Weight there.
func (b *LiveBackend) checked(read *LiveBackend) *LiveBackend {
	if b == nil {
		return nil
	}
	next := &LiveBackend{slices.Clone(b.Servers)}
	for i, s := range next.Servers {
		if now, there := read.Find(s.Name); there && now.State == s.State && now.Weight == s.Weight {
			next.Servers[i] = now
		}
	}
	return next
}

// LiveBackends holds the backends of the worker, by name. It never changes. With returns a changed
// copy that shares all unchanged parts. A change of one backend therefore takes only the time and
// memory of one part. Differ also skips unchanged parts. The zero LiveBackends is empty.
type LiveBackends struct {
	parts *[liveParts]map[string]*LiveBackend // nil if it is empty
}

// liveParts is the number of parts: about the root of the 10,000 backends of a large cluster.
const liveParts = 128

var liveSeed = maphash.MakeSeed()

func livePart(name string) int { return int(maphash.String(liveSeed, name) % liveParts) }

// NewLiveBackends returns these backends.
func NewLiveBackends(all map[string]*LiveBackend) LiveBackends { return LiveBackends{}.With(all) }

// Get returns the backend of that name, or nil if it does not exist.
func (l LiveBackends) Get(name string) *LiveBackend {
	if l.parts == nil {
		return nil
	}
	return l.parts[livePart(name)][name]
}

// All yields each backend once, in no order.
func (l LiveBackends) All() iter.Seq2[string, *LiveBackend] {
	return func(yield func(string, *LiveBackend) bool) {
		if l.parts == nil {
			return
		}
		for _, part := range l.parts {
			for name, b := range part {
				if !yield(name, b) {
					return
				}
			}
		}
	}
}

// Len returns how many backends there are.
func (l LiveBackends) Len() (n int) {
	if l.parts == nil {
		return 0
	}
	for _, part := range l.parts {
		n += len(part)
	}
	return n
}

// With returns the backends after it has replaced or added those in by. It removes a backend that
// is nil in by.
func (l LiveBackends) With(by map[string]*LiveBackend) LiveBackends {
	if len(by) == 0 {
		return l
	}
	next := new([liveParts]map[string]*LiveBackend)
	if l.parts != nil {
		*next = *l.parts
	}
	var own [liveParts]bool
	for name, b := range by {
		at := livePart(name)
		if !own[at] {
			own[at] = true
			if next[at] = maps.Clone(next[at]); next[at] == nil {
				next[at] = map[string]*LiveBackend{}
			}
		}
		if b == nil {
			delete(next[at], name)
		} else {
			next[at][name] = b
		}
	}
	return LiveBackends{next}
}

// Differ returns the names of the backends that are not the same in before, in no order.
func (l LiveBackends) Differ(before LiveBackends) (names []string) {
	if l.parts == before.parts {
		return nil
	}
	var none [liveParts]map[string]*LiveBackend
	was, is := before.parts, l.parts
	if was == nil {
		was = &none
	}
	if is == nil {
		is = &none
	}
	for at := range is {
		if reflect.ValueOf(was[at]).UnsafePointer() == reflect.ValueOf(is[at]).UnsafePointer() {
			continue
		}
		for name, b := range is[at] {
			if was[at][name] != b {
				names = append(names, name)
			}
		}
		for name := range was[at] {
			if _, known := is[at][name]; !known {
				names = append(names, name)
			}
		}
	}
	return names
}

// sharing returns the backends, and takes the pointers of equal backends and equal parts from
// before. It may change l, which nothing else may use.
func (l LiveBackends) sharing(before LiveBackends) LiveBackends {
	if l.parts == nil || before.parts == nil {
		return l
	}
	next := *l.parts
	for at, was := range before.parts {
		same := len(was) == len(next[at])
		for name, b := range next[at] {
			if old := was[name]; old != nil && slices.Equal(old.Servers, b.Servers) {
				next[at][name] = old
			} else {
				same = false
			}
		}
		if same {
			next[at] = was
		}
	}
	return LiveBackends{&next}
}

// Unwanted returns the names of the backends that have servers in the worker and are
// not in want, sorted. want has each name once.
func Unwanted(want []*Backend, have LiveBackends) (names []string) {
	left := 0
	for _, b := range have.All() {
		if len(b.Servers) > 0 {
			left++
		}
	}
	for _, b := range want {
		if live := have.Get(b.Name); live != nil && len(live.Servers) > 0 {
			left--
		}
	}
	if left == 0 { // as nearly always; the set below takes longer
		return nil
	}
	wanted := make(map[string]bool, len(want))
	for _, b := range want {
		wanted[b.Name] = true
	}
	for name, b := range have.All() {
		if len(b.Servers) > 0 && !wanted[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
