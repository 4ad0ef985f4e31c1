package haproxy

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// HAProxy before 3.4 has no command that adds a backend. For these versions haproxy.cfg has spare
// backends: empty backends with the settings that most backends have. A new backend of the same
// settings takes a spare backend by commands. A row of the map of routes leads to the spare
// backend, and servers are added to it. The new backend has its own name after the next reload,
// which comes by itself after idleReload.
//
// Other packages do not see this. The worker itself holds, in namesMap, which backend each spare
// backend stands for, so a fresh process reads it there.

// spareName begins the name of a spare backend. No namespace begins with "_", so no
// backend of a Config has such a name.
const spareName = "_spare-"

// namesMap holds the names of backends in the Config by their names in the worker. It has a row for
// each spare backend in use. If requests are logged, it has a row for every backend.
const namesMap = "maps/names.map"

const (
	spareClasses = 8 // number of classes of HTTP backends with spare backends, at most: the classes of most backends
	// These bound the number of spare backends of a class, which is half of the number of its
	// backends. Each spare backend takes HAProxy about 10 kB of memory. In a burst of new backends
	// a reload is needed each time their number has grown by half.
	minSpares, maxSpares = 32, 512
)

// spares holds the spare backends in use, and those that are used up. A spare backend is used up
// once its backend has left it, until a reload brings new spare backends. A request may still wait
// there, or be sent again, and must not reach the servers of another backend.
type spares struct {
	in workerNames // a spare backend that is used up has itself as its name
	// as holds backends by name, with the settings of their spare backend. A backend is missing if
	// an earlier process chose its spare backend.
	as map[string]*Backend
}

func (s spares) names() workerNames { return s.in }
func (s spares) commands() []string { return nil }

// leaving returns no backends, because place frees the places that nobody needs.
func (s spares) leaving(_, _ *outline, _ *Config, _ picture) []*Backend { return nil }

func (s spares) loaded(have *Config) *Config {
	return have.withBackends(slices.Collect(maps.Values(s.as)))
}

// sparesText returns the sections of the spare backends for a class.
func (c *class) sparesText(dir string) (text []byte) {
	for n := range min(max(c.members/2, minSpares), maxSpares) {
		text = append(text, "\nbackend "+spareName+c.name+"-"+strconv.Itoa(n+1)+"\n"...)
		// The rule makes HAProxy load the map.
		text = append(text, "  http-request set-var(txn.backend) be_name,map_str("+dir+"/"+namesMap+")\n"...)
		text = append(text, c.of.body...)
	}
	return text
}

// place gives spare backends to the backends of want that the worker lacks, as long as there are
// any, and notes the used up spare backends. If the settings of a backend without servers change,
// it takes another spare backend. This happens if an Ingress is known before its Service, because
// annotations of the Service are also settings.
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

// unneeded returns the backends in spare backends that no longer need them: they have no servers,
// and want lacks them or has them with other settings.
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

// spares returns the names of the free spare backends by class, sorted. They have no servers, and
// are neither in use nor used up.
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

// namesIn returns the names of backends in spare backends, as the rows of namesMap have them.
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
			if name != Invalid && name != refused || len(cfg.Listeners) > 0 {
				all = append(all, row{name, name})
			}
		}
		for _, kind := range listenerKinds {
			if cfg.listens(kind.is) || kind == ListenTLS && cfg.listens(ListenMixed.is) {
				all = append(all, row{kind.frontend(), kind.frontend()})
			}
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
