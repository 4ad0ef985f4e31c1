package status

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"sallyport/haproxy"
)

// Rates holds the last sample of each backend. A viewer copies only the backends that it shows. The
// order by each key is made once for a sample, and not for each viewer. The zero value has no
// sample.
type Rates struct {
	mu     sync.Mutex
	at     time.Time // zero without a sample
	during time.Duration
	whole  BackendRate
	all    []haproxy.BackendLoad // by name
	of     []haproxy.BackendLoad // clusters, by name
	orders [len(SortKeys)][]int32
	sorted [len(SortKeys)]bool // the order is that of this sample
}

// SortKeys are the orders of TopStatus.Backends. The largest value comes first, except that "open"
// begins with the fewest open servers, and "name" is alphabetical.
var SortKeys = [...]string{"requests", "errors", "connections", "response", "open", "name"}

// BackendRate is the load of a backend: the mean of the last sample, of ten seconds, and the
// connections and servers at its end.
type BackendRate struct {
	Name     string  `json:"name,omitempty"`
	Requests float64 `json:"requestsPerSecond"` // of a backend for TCP: connections
	// answers with a status from 500 to 599; of a backend for TCP: connections that no server took,
	// or that a server broke
	Errors float64 `json:"errorsPerSecond"`
	// from a request to the first byte of its answer, the mean of the last 1024 requests; absent
	// without requests, and for a backend for TCP
	Response    *float64 `json:"responseMilliseconds,omitempty"`
	Connections int      `json:"connections"`
	Open        int      `json:"openServers"`
}

// TopStatus is the answer of GET /top.
type TopStatus struct {
	Identity string    `json:"identity"`
	Now      time.Time `json:"now"`
	// of the sample; zero if the process has just started, or HAProxy does not answer
	At       time.Time     `json:"at,omitzero"`
	Total    int           `json:"total"`    // backends
	Whole    BackendRate   `json:"whole"`    // of all backends together
	Backends []BackendRate `json:"backends"` // in the order that was asked for; the first ones if only some were
	// of the servers of each cluster, in the same order; a cluster that has no backend is absent
	Clusters []BackendRate `json:"clusters"`
}

// Set replaces the sample with the load of the period that ended now. It reuses the memory of the
// sample before.
func (r *Rates) Set(load haproxy.Load, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at, r.during, r.sorted = now, load.During, [len(SortKeys)]bool{}
	r.all, r.of = append(r.all[:0], load.Backends...), append(r.of[:0], load.Clusters...)
	sum := haproxy.BackendLoad{Response: load.Response}
	for _, t := range r.all {
		sum.Requests += t.Requests
		sum.Failed += t.Failed
		sum.Connections += t.Connections
		sum.Open += t.Open
	}
	r.whole = r.rate(sum)
}

// Forget removes the sample. It is called when HAProxy does not answer.
func (r *Rates) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at, r.all, r.of = time.Time{}, r.all[:0], r.of[:0]
}

func (r *Rates) rate(t haproxy.BackendLoad) BackendRate {
	perSecond := func(n uint64) float64 { return float64(n) / r.during.Seconds() }
	b := BackendRate{
		Name: t.Backend, Requests: perSecond(t.Requests), Errors: perSecond(t.Failed),
		Connections: t.Connections, Open: t.Open,
	}
	if t.Response >= 0 {
		ms := milliseconds(t.Response)
		b.Response = &ms
	}
	return b
}

// Of returns the rate of a backend, or false if the sample does not have the backend.
func (r *Rates) Of(name string) (BackendRate, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at.IsZero() {
		return BackendRate{}, false
	}
	i, found := slices.BinarySearchFunc(r.all, name, func(t haproxy.BackendLoad, name string) int {
		return strings.Compare(t.Backend, name)
	})
	if !found {
		return BackendRate{}, false
	}
	return r.rate(r.all[i]), true
}

// Names returns the names of all backends by a key of SortKeys.
func (r *Rates) Names(key string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := make([]string, len(r.all))
	for i, at := range r.order(slices.Index(SortKeys[:], key)) {
		names[i] = r.all[at].Backend
	}
	return names
}

// Top returns the first backends by a key of SortKeys: as many as limit, or all if it is
// negative.
func (r *Rates) Top(key string, limit int) TopStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := TopStatus{At: r.at, Backends: []BackendRate{}, Clusters: []BackendRate{}}
	if r.at.IsZero() {
		return t
	}
	t.Total, t.Whole = len(r.all), r.whole
	if limit < 0 || limit > len(r.all) {
		limit = len(r.all)
	}
	for _, i := range r.order(slices.Index(SortKeys[:], key))[:limit] {
		t.Backends = append(t.Backends, r.rate(r.all[i]))
	}
	clusters := slices.Clone(r.of)
	slices.SortStableFunc(clusters, func(a, b haproxy.BackendLoad) int {
		return compareBy(slices.Index(SortKeys[:], key), &a, &b)
	})
	for _, c := range clusters {
		t.Clusters = append(t.Clusters, r.rate(c))
	}
	return t
}

// order returns the backends by a key. The caller holds mu.
func (r *Rates) order(key int) []int32 {
	if r.sorted[key] {
		return r.orders[key]
	}
	order := r.orders[key][:0]
	for i := range r.all {
		order = append(order, int32(i))
	}
	slices.SortStableFunc(order, func(a, b int32) int { return compareBy(key, &r.all[a], &r.all[b]) })
	r.orders[key], r.sorted[key] = order, true
	return order
}

// compareBy orders two loads by a key of SortKeys. It returns 0 for "name": a stable sort then keeps the
// order of their names.
func compareBy(key int, a, b *haproxy.BackendLoad) int {
	value := func(t *haproxy.BackendLoad) uint64 {
		switch SortKeys[key] {
		case "requests":
			return t.Requests
		case "errors":
			return t.Failed
		case "connections":
			return uint64(t.Connections)
		case "response":
			return uint64(max(t.Response, 0))
		case "open":
			return math.MaxUint32 - uint64(t.Open)
		}
		return 0 // all is by name
	}
	return cmp.Compare(value(b), value(a))
}
