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

// spares are the spare backends that stand for others. Afterwards each is used up, until a reload
// brings new ones: a request may still wait in it, or be sent again, and must not reach the servers
// of somebody else.
type spares struct {
	in workerNames // a spare backend that is used up has its own name
	// with the settings that the spare one has, by name; a process before this one chose those missing
	as map[string]*Backend
}

func (s spares) names() workerNames { return s.in }
func (s spares) commands() []string { return nil }

// leaving returns no backends: place frees the places of those that nobody needs.
func (s spares) leaving(_, _ *outline, _ *Config, _ picture) []*Backend { return nil }

func (s spares) loaded(have *Config) *Config {
	return have.withBackends(slices.Collect(maps.Values(s.as)))
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

// place gives spare backends to the backends of want that the worker does not have, as far as
// there are any, and notes which are used up. A backend without servers takes another one when its
// settings change: an Ingress may be heard of before its Service, whose annotations are settings,
// too.
func (s spares) place(want *outline, have *Config, worker picture) (placing, LiveBackends) {
	next, moved := spares{in: workerNames{}, as: map[string]*Backend{}}, map[string]*LiveBackend{}
	maps.Copy(next.in, s.in)
	maps.Copy(next.as, s.as)
	get := func(name string) *LiveBackend {
		if b, is := moved[name]; is {
			return b
		}
		return worker.backends.Get(name)
	}
	for _, name := range s.unneeded(want.cfg, worker.backends) {
		there := s.in[name]
		delete(next.in, name)
		delete(next.as, name)
		next.in[there] = there
		moved[name], moved[there] = nil, get(name)
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
		if !next.in.has(name) {
			homeless = append(homeless, f)
		}
	}
	if len(homeless) > 0 {
		free := worker.backends.With(moved).spares(next.in)
		for _, f := range homeless {
			class, name := f.class(), f.of.Name
			if len(free[class]) == 0 {
				continue
			}
			there := free[class][0]
			free[class] = free[class][1:]
			next.in[name], next.as[name] = there, f.of
			moved[name], moved[there] = get(there), nil
		}
	}
	return next, worker.backends.With(moved)
}

func (s spares) vacant(want *Config, backends LiveBackends) bool {
	return len(s.unneeded(want, backends)) > 0
}

// unneeded returns the backends in spare ones that have no servers, and that want lacks or has
// with other settings.
func (s spares) unneeded(want *Config, backends LiveBackends) (all []string) {
	for name, there := range s.in {
		b, as := find(want.Backends, name), s.as[name]
		leaves, live := b == nil || as != nil && !as.sameShape(b), backends.Get(name)
		if name != there && leaves && (live == nil || len(live.Servers) == 0) {
			all = append(all, name)
		}
	}
	return all
}

// spares returns the names of the spare backends that have no servers and stand for nothing,
// sorted, by class.
func (l LiveBackends) spares(in workerNames) map[string][]string {
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

func (s spares) recognise(want *outline, shape string, shapeOf func(*Config) string) (*Config, placing) {
	if !s.in.active() {
		return nil, nil
	}
	have := *want.cfg
	have.Backends = slices.DeleteFunc(slices.Clone(have.Backends), func(b *Backend) bool { return s.in.has(b.Name) })
	if shapeOf(&have) != shape {
		return nil, nil
	}
	known := spares{in: s.in, as: map[string]*Backend{}}
	for _, f := range want.backends {
		if strings.HasPrefix(s.in[f.of.Name], spareName+f.class()+"-") {
			known.as[f.of.Name] = f.of
		}
	}
	return &have, known
}

// namesIn returns the names of which the rows of namesMap tell.
func namesIn(rows []row) workerNames {
	all := workerNames{}
	for _, r := range rows {
		if strings.HasPrefix(r.key, spareName) {
			all[r.value] = r.key
		}
	}
	return all
}

// rows returns the rows of namesMap.
func (n workerNames) rows(cfg *Config) (all []row) {
	for name, there := range n {
		all = append(all, row{there, name})
	}
	if cfg.Process.logsNames() {
		for _, name := range append([]string{"http", "https", "tls"}, reserved...) {
			all = append(all, row{name, name})
		}
		for _, b := range cfg.Backends {
			if !n.has(b.Name) {
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
