package haproxy

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// HAProxy before 3.4 has no command that adds a backend. So haproxy.cfg has some empty
// ones for it, the spare backends, with the settings that most backends have. A new backend
// of the same settings takes one by commands: a row of the map of routes leads to it,
// and servers are added to it. It has its own name after the next reload, which comes
// by itself after idleReload.
//
// Only this package knows of it. The worker itself holds which spare backend stands
// for which, in namesMap, so a fresh process reads it there.

// spareName begins the name of a spare backend. No namespace begins with "_", so no
// backend of a Config has such a name.
const spareName = "_spare-"

// namesMap holds the name of each backend of a Config that a spare one stands for, by
// the name of the spare one; and if requests are logged, those of all others, too.
const namesMap = "maps/names.map"

const (
	spareClasses = 8 // how many classes of HTTP backends have spare backends, at most: those of most backends
	// How many spare backends there are of the same settings: one for each two backends
	// that have the settings, within these bounds. Each takes HAProxy about 10 kB. A burst
	// of new backends takes a reload each time that there are half as many again.
	minSpares, maxSpares = 32, 512
)

// A slot is a spare backend that stands for another one. Afterwards it is used up, until
// a reload brings new ones: a request may still wait in it, or be sent again, and must
// not reach the servers of somebody else.
type slot struct {
	name string   // of the spare backend
	as   *Backend // with the settings that the spare one has; nil: a process before this one chose it
}

// slots holds the slots by the name of the backend for which each stands. One that is
// used up stands for itself.
type slots map[string]slot

// active reports whether a slot stands for another backend.
func (s slots) active() bool {
	for name, slot := range s {
		if name != slot.name {
			return true
		}
	}
	return false
}

// of returns the name that a backend has in the worker.
func (s slots) of(backend string) string {
	if slot, is := s[backend]; is {
		return slot.name
	}
	return backend
}

func (s slots) has(backend string) bool {
	_, is := s[backend]
	return is
}

func (s slots) equal(o slots) bool {
	return maps.EqualFunc(s, o, func(a, b slot) bool { return a.name == b.name })
}

// sparesText returns the sections of the spare backends of a class.
func (c *class) sparesText(dir string) (text []byte) {
	for n := range min(max(c.members/2, minSpares), maxSpares) {
		text = append(text, "\nbackend "+spareName+c.name+"-"+strconv.Itoa(n+1)+"\n"...)
		// The rule makes HAProxy load the map.
		text = append(text, "  http-request set-var(txn.backend) be_name,map_str("+dir+"/"+namesMap+")\n"...)
		text = append(text, c.of.body...)
	}
	return text
}

// spare gives spare backends to the backends of want that the worker does not have, as
// far as there are any, and notes which are used up. have is what the worker has loaded.
// A backend without servers takes another one when its settings change: an Ingress may
// be heard of before its Service, whose annotations are settings, too.
func (r *running) spare(want *outline, have *Config) {
	next, moved := maps.Clone(r.slots), map[string]*LiveBackend{}
	if next == nil {
		next = slots{}
	}
	get := func(name string) *LiveBackend {
		if b, is := moved[name]; is {
			return b
		}
		return r.backends.Get(name)
	}
	for name, s := range r.vacant(want.cfg) {
		delete(next, name)
		next[s.name] = slot{name: s.name}
		moved[name], moved[s.name] = nil, get(name)
	}
	var homeless []*fragment
	j := 0
	for _, f := range want.backends { // sorted by name, as those of have
		name := f.of.Name
		for j < len(have.Backends) && have.Backends[j].Name < name {
			j++
		}
		if j < len(have.Backends) && have.Backends[j].Name == name {
			continue
		}
		if _, placed := next[name]; !placed {
			homeless = append(homeless, f)
		}
	}
	if len(homeless) > 0 {
		free := r.backends.With(moved).spares(next)
		for _, f := range homeless {
			class := f.class()
			if len(free[class]) == 0 {
				continue
			}
			name := free[class][0]
			free[class] = free[class][1:]
			next[f.of.Name] = slot{name, f.of}
			moved[f.of.Name], moved[name] = get(name), nil
		}
	}
	r.slots, r.backends = next, r.backends.With(moved)
}

// vacant returns the slots that stand for a backend without servers, which want lacks or has
// with other settings.
func (r *running) vacant(want *Config) slots {
	all := slots{}
	for name, s := range r.slots {
		b := find(want.Backends, name)
		leaves, live := b == nil || s.as != nil && !s.as.sameShape(b), r.backends.Get(name)
		if name != s.name && leaves && (live == nil || len(live.Servers) == 0) {
			all[name] = s
		}
	}
	return all
}

// spares returns the names of the spare backends that have no servers and no slot, sorted, by
// class.
func (l LiveBackends) spares(in slots) map[string][]string {
	free := make(map[string][]string)
	for name, b := range l.All() {
		if rest, is := strings.CutPrefix(name, spareName); is && len(b.Servers) == 0 && !in.has(name) {
			class, _, _ := strings.Cut(rest, "-")
			free[class] = append(free[class], name)
		}
	}
	for _, names := range free {
		slices.Sort(names)
	}
	return free
}

// recognise finds out what a worker has loaded that a process before this one told of
// backends with slots: want without them, or else something that is not known.
func (p *Proxy) recognise(want *outline) {
	loaded := *want.cfg
	loaded.Backends = slices.DeleteFunc(slices.Clone(loaded.Backends), func(b *Backend) bool { return p.belief.run.slots.has(b.Name) })
	if p.text.outline(&loaded, nil, nil).shape != p.belief.run.shape {
		return
	}
	p.belief.recognised(&loaded)
	for _, f := range want.backends {
		if s, is := p.belief.run.slots[f.of.Name]; is && strings.HasPrefix(s.name, spareName+f.class()+"-") {
			p.belief.run.slots[f.of.Name] = slot{s.name, f.of}
		}
	}
}

// placed gives each backend of the worker its name in the Config.
func (s slots) placed(backends LiveBackends) LiveBackends {
	moved := map[string]*LiveBackend{}
	for name, slot := range s {
		if b := backends.Get(slot.name); b != nil && name != slot.name {
			moved[name], moved[slot.name] = b, nil
		}
	}
	return backends.With(moved)
}

// slotsOf returns the slots that the rows of namesMap tell of.
func slotsOf(rows []row) slots {
	all := slots{}
	for _, r := range rows {
		if strings.HasPrefix(r.key, spareName) {
			all[r.value] = slot{name: r.key}
		}
	}
	return all
}

// names returns the rows of namesMap.
func (s slots) names(cfg *Config) (all []row) {
	for name, slot := range s {
		all = append(all, row{slot.name, name})
	}
	if cfg.Process.logsNames() {
		for _, name := range append([]string{"http", "https", "tls"}, reserved...) {
			all = append(all, row{name, name})
		}
		for _, b := range cfg.Backends {
			if _, placed := s[b.Name]; !placed {
				all = append(all, row{b.Name, b.Name})
			}
		}
	}
	slices.SortFunc(all, func(a, b row) int { return strings.Compare(a.key, b.key) })
	return all
}

// usualLog is the format of "option httplog" (HAProxy Configuration Manual, 8.2.3).
const usualLog = `log-format '%ci:%cp [%tr] %ft %b/%s %TR/%Tw/%Tc/%Tr/%Ta %ST %B %CC %CS %tsc %ac/%fc/%bc/%sc/%rc %sq/%bq %hr %hs %{+Q}r'`

// logsNames reports whether requests are logged in a format of ours or of a cluster.
func (p Process) logsNames() bool {
	return slices.ContainsFunc(slices.Concat(p.instead(false, nil), p.text(DefaultsSection)), func(line string) bool {
		return line == "option httplog" || strings.HasPrefix(line, "log-format ")
	})
}

// aliasInFormat matches an alias of a log-format string, and "%%".
var aliasInFormat = regexp.MustCompile(`%(?:%|(?:\{[^}]*\})?[A-Za-z]+)`)

// withNames makes log formats write a backend's own name where they say %b, also while
// a spare backend stands for it.
func withNames(lines []string, dir string) []string {
	out := slices.Clone(lines)
	for i, line := range out {
		if line == "option httplog" {
			line = usualLog
		}
		if strings.HasPrefix(line, "log-format ") {
			out[i] = aliasInFormat.ReplaceAllStringFunc(line, func(alias string) string {
				flags, is := strings.CutSuffix(alias, "b")
				if is && (flags == "%" || strings.HasSuffix(flags, "}")) {
					return flags + "[be_name,map_str(" + dir + "/" + namesMap + ")]"
				}
				return alias
			})
		}
	}
	return out
}
