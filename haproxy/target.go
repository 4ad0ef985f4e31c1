package haproxy

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
)

// A Target says where requests go: to one backend, or by chance to one of several. Only To and
// Split make a Target. Targets are compared with ==. HAProxy answers 404 to requests for the zero
// Target.
type Target struct {
	// text is the name of a backend, or THRESHOLD@BACKEND for each Share, joined by "+". A request
	// draws a number below chances, and goes to the first backend with a greater threshold.
	text string
}

// A Share is a backend, and its part of the requests for a Target.
type Share struct {
	Backend string
	Weight  int // in comparison with the other Shares; from Target.Shares of chances together
}

// Invalid takes the place of a backend that cannot be served. HAProxy answers 500 to its requests.
const Invalid = "invalid"

// chances is the sum of the weights of all Shares of a Target.
const chances = 1 << 16

// MaxShares is the largest number of backends of a Target.
const MaxShares = 16

// To returns the Target of one backend.
func To(backend string) Target { return Target{backend} }

// Split returns the Target of several backends. Each gets its part of the weights together. A
// weight of 0 gets no requests. If no weight is above 0, the Target is Invalid.
func Split(shares []Share) (Target, error) {
	weights := make(map[string]int)
	total := 0
	for _, s := range shares {
		switch {
		case s.Backend != Invalid && !isName(s.Backend):
			return Target{}, notAName("backend of a share", s.Backend)
		case s.Weight < 0 || s.Weight > 1e6:
			return Target{}, fmt.Errorf("backend %s: a weight of %d; allowed are 0 to 1000000", s.Backend, s.Weight)
		}
		if s.Weight > 0 {
			weights[s.Backend] += s.Weight
			total += s.Weight
		}
	}
	if len(weights) > MaxShares {
		return Target{}, fmt.Errorf("requests are shared by %d backends; at most %d are allowed",
			len(weights), MaxShares)
	}
	if total == 0 {
		return To(Invalid), nil
	}
	all := make([]Share, 0, len(weights))
	for backend, weight := range weights {
		all = append(all, Share{backend, weight})
	}
	slices.SortFunc(all, func(a, b Share) int {
		return cmp.Or(cmp.Compare(b.Weight, a.Weight), strings.Compare(a.Backend, b.Backend))
	})
	if len(all) == 1 {
		return To(all[0].Backend), nil
	}
	var places []string
	sum := 0
	for _, s := range all {
		sum += s.Weight
		places = append(places, strconv.Itoa(sum*chances/total)+"@"+s.Backend)
	}
	return Target{strings.Join(places, "+")}, nil
}

// Shares returns the backends of a Target, the one with most requests first. It returns none for
// the zero Target.
func (t Target) Shares() (all []Share) {
	if t.text == "" {
		return nil
	}
	last := 0
	for place := range strings.SplitSeq(t.text, "+") {
		threshold, backend, several := strings.Cut(place, "@")
		if !several {
			return []Share{{t.text, chances}}
		}
		next, _ := strconv.Atoi(threshold)
		all = append(all, Share{backend, next - last})
		last = next
	}
	return all
}

// backends yields the backends of a Target that a Config has. Invalid is none of them.
func (t Target) backends() iter.Seq[string] {
	return func(yield func(string) bool) {
		if t.text != "" && !strings.Contains(t.text, "@") {
			_ = t.text != Invalid && yield(t.text) // as nearly always
			return
		}
		for _, s := range t.Shares() {
			if s.Backend != Invalid && !yield(s.Backend) {
				return
			}
		}
	}
}

// validate returns why Render cannot write the Target into a map.
func (t Target) validate() error {
	sum := 0
	for _, s := range t.Shares() {
		if !isName(s.Backend) {
			return notAName("backend", s.Backend)
		}
		sum += s.Weight
	}
	if t.text != "" && sum != chances {
		return fmt.Errorf("the target %s is not from To or Split", shown(t.text))
	}
	return nil
}

// String returns the Target in one word.
func (t Target) String() string { return t.text }

// Words returns the Target for people: "a", or "95 % to a, 5 % to b". It returns "" for the zero
// Target.
func (t Target) Words() string {
	shares := t.Shares()
	if len(shares) < 2 {
		return t.text
	}
	var all []string
	for _, s := range shares {
		percent := math.Round(1000*float64(s.Weight)/chances) / 10
		all = append(all, strconv.FormatFloat(percent, 'f', -1, 64)+" % to "+s.Backend)
	}
	return strings.Join(all, ", ")
}

// in returns the text of a Target for a worker with these names.
func (t Target) in(names workerNames) string {
	if len(names) == 0 || !strings.Contains(t.text, "@") {
		return cmp.Or(names.of(t.text), nowhere)
	}
	places := strings.Split(t.text, "+")
	for i, place := range places {
		threshold, backend, _ := strings.Cut(place, "@")
		places[i] = threshold + "@" + names.of(backend)
	}
	return strings.Join(places, "+")
}

// Targets yields each backend that a request for a route may reach. It may yield one twice.
func (c *Config) Targets(r *Route) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, name := range [...]string{r.Backend, r.Canary} {
			if name != "" && !yield(name) {
				return
			}
		}
		if choice := c.choice(r.Choice); choice != nil {
			for _, one := range choice.Cases {
				if !yield(one.Backend) {
					return
				}
			}
		}
		for name := range r.To.backends() {
			if !yield(name) {
				return
			}
		}
		if pick := c.pick(r.Pick); pick != nil {
			for _, one := range pick.Cases {
				for name := range one.To.backends() {
					if !yield(name) {
						return
					}
				}
			}
		}
	}
}

// choice returns the Choice of a name, or nil.
func (c *Config) choice(name string) *Choice {
	return byName(c.Choices, name, func(c *Choice) string { return c.Name })
}

// pick returns the Pick of a name, or nil.
func (c *Config) pick(name string) *Pick {
	return byName(c.Picks, name, pickName)
}

// byName returns the element of a name, or nil. The list is sorted by name.
func byName[T any](sorted []*T, name string, nameOf func(*T) string) *T {
	if name == "" {
		return nil
	}
	at, found := slices.BinarySearchFunc(sorted, name, func(e *T, name string) int {
		return strings.Compare(nameOf(e), name)
	})
	if !found {
		return nil
	}
	return sorted[at]
}
