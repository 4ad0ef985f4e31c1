package migrate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"sallyport/appliance/status"
	"sallyport/ingress/nginx"
	"sallyport/ingress/survey"
)

// A Block is a part of a Report for people: a table, or sentences if it has no Columns.
type Block struct {
	Title   string
	Alarm   bool // it is about a loss
	Columns []string
	Rows    [][]string // cells have no line breaks
}

// controllers are the names of the controllers for people.
var controllers = map[survey.Foreign]string{
	survey.FromNginx: "ingress-nginx", survey.FromHAProxy: "HAProxy's ingress controller",
}

// order has the verdicts, the worst first.
var order = []survey.Verdict{nginx.Lost, nginx.Refused, nginx.Differs, nginx.Void, nginx.Nothing, nginx.Same}

// Blocks returns the Report for people, with losses first. If it is wide, it also has each annotation of
// each Ingress.
func (r *Report) Blocks(wide bool) []Block {
	all := []Block{
		r.totals(), r.guards(), r.openings(), r.unserved(), r.unread(), r.objects(), r.settings(wide),
		r.hosts(), r.annotations(wide), r.problems(),
	}
	if wide {
		all = append(all, r.each())
	}
	all = append(all, r.everywhere(), r.besides())
	return slices.DeleteFunc(all, func(b Block) bool { return len(b.Rows) == 0 })
}

func (r *Report) totals() Block {
	title := fmt.Sprintf("Cluster %s: %s of %s", r.Cluster, status.Counted(r.Totals.Ingresses, "Ingress"),
		controllers[r.From])
	if r.Files > 0 {
		title = fmt.Sprintf("%s of %s, in %s", status.Counted(r.Totals.Ingresses, "Ingress"),
			controllers[r.From], status.Counted(r.Files, "file"))
	}
	b := Block{Title: title, Columns: []string{"here", "ingresses", "remark"}}
	for _, v := range slices.Backward(order) {
		if n := r.Totals.Verdicts[v]; n > 0 {
			b.Rows = append(b.Rows, []string{string(v), strconv.Itoa(n), r.remark(v)})
		}
	}
	if len(b.Rows) == 0 {
		b.Rows = [][]string{{"-", "0", "no Ingress has its class"}}
	}
	return b
}

// remark returns the meaning of a verdict on an Ingress.
func (r *Report) remark(v survey.Verdict) string {
	switch v {
	case nginx.Same:
		if r.Totals.Bare > 0 {
			return fmt.Sprintf("all annotations have the same effect; %d of all Ingresses have none", r.Totals.Bare)
		}
		return "all annotations have the same effect"
	case nginx.Differs:
		return "all paths are served, and something works in another way, or not at all"
	case nginx.Refused:
		return controllers[r.From] + " does not accept a value either"
	case nginx.Lost:
		return "a path is not served, or all its clients are rejected"
	}
	return ""
}

// guards lists the guards that are lost.
func (r *Report) guards() Block {
	b := Block{
		Title: "Guards that are lost: clients that they keep out are rejected with all others, or come in where the " +
			"configuration file gives the guard up",
		Alarm: true, Columns: []string{"ingress", "annotation", "value", "why"},
	}
	for i := range r.Ingresses {
		s := &r.Ingresses[i]
		for j := range s.Annotations {
			if a := &s.Annotations[j]; a.Lost() {
				b.Rows = append(b.Rows, []string{nameOf(s), a.Name, cmp.Or(a.Value, "-"), a.Why})
			}
		}
	}
	return b
}

// openings lists the guards of the ConfigMap that are lost.
func (r *Report) openings() Block {
	b := Block{
		Title: "Guards of the ConfigMap that are lost: clients that they keep out come in", Alarm: true,
		Columns: []string{"key", "value", "why"},
	}
	for _, k := range r.keys() {
		if k.Lost() {
			b.Rows = append(b.Rows, []string{k.Name, cmp.Or(k.Value, "-"), k.Why})
		}
	}
	return b
}

// keys returns the keys of the ConfigMap: the worst verdict first, and guards before other keys.
func (r *Report) keys() []survey.SurveyedAnnotation {
	if r.ConfigMap == nil {
		return nil
	}
	rank := func(k survey.SurveyedAnnotation) int {
		n := 2 * slices.Index(order, k.Verdict)
		if k.Guard {
			n--
		}
		return n
	}
	return slices.SortedStableFunc(slices.Values(r.ConfigMap.Keys), func(a, b survey.SurveyedAnnotation) int {
		return rank(a) - rank(b)
	})
}

// settings lists the keys of the ConfigMap, with what to write. A wide list also has the keys that need
// nothing.
func (r *Report) settings(wide bool) Block {
	b := Block{
		Title:   "Keys of the ConfigMap, and what to write for them in that of clusters[].ingress.configMap",
		Columns: []string{"key", "here", "write", "why"},
	}
	for _, k := range r.keys() {
		if k.Lost() || !wide && (k.Verdict == nginx.Nothing || k.Verdict == nginx.Void) {
			continue
		}
		text := k.Name
		if k.Value != "" {
			text += ": " + k.Value
		}
		write := strings.ReplaceAll(strings.Join(k.Here, "; "), "\n", " | ")
		b.Rows = append(b.Rows, []string{text, string(k.Verdict), cmp.Or(write, "-"), cmp.Or(k.Why, "-")})
	}
	return b
}

// unserved lists the Ingresses that are not served, at least in part.
func (r *Report) unserved() Block {
	b := Block{
		Title: "Ingresses that are not served, or not wholly", Alarm: true,
		Columns: []string{"ingress", "paths served", "why"},
	}
	for i := range r.Ingresses {
		s := &r.Ingresses[i]
		if s.Verdict != nginx.Lost {
			continue
		}
		paths := fmt.Sprintf("%d of %d", s.Served, s.Paths)
		if s.Closed {
			b.Rows = append(b.Rows, []string{nameOf(s), paths, "all clients get 503, because a guard cannot be kept"})
		}
		for _, p := range s.Problems {
			b.Rows = append(b.Rows, []string{nameOf(s), paths, p.Why})
		}
		if !s.Closed && len(s.Problems) == 0 {
			b.Rows = append(b.Rows, []string{nameOf(s), paths, "see its annotations"})
		}
	}
	return b
}

// objects lists the problems of objects that are no Ingresses.
func (r *Report) objects() Block {
	b := Block{
		Title: "Other objects that are not served as they ask", Alarm: r.LosesObject(),
		Columns: []string{"object", "why"},
	}
	for _, p := range r.Objects {
		b.Rows = append(b.Rows, []string{p.Kind + " " + p.Namespace + "/" + p.Name, p.Why})
	}
	return b
}

func (r *Report) hosts() Block {
	b := Block{Title: "Hosts", Columns: []string{"host", "why"}}
	for _, h := range r.Hosts {
		for _, why := range h.Why {
			b.Rows = append(b.Rows, []string{h.Host, why})
		}
	}
	return b
}

// annotations lists the annotations that work in another way here, each with its number of Ingresses.
func (r *Report) annotations(wide bool) Block {
	b := Block{
		Title:   "Annotations that work in another way, or not at all",
		Columns: []string{"annotation", "here", "ingresses", "for example", "why"},
	}
	if wide {
		b.Title = "Annotations"
	}
	type group struct {
		name    string
		verdict survey.Verdict
	}
	count, first, why := make(map[group]int), make(map[group]string), make(map[group]string)
	for i := range r.Ingresses {
		for _, a := range r.Ingresses[i].Annotations {
			of := group{a.Name, a.Verdict}
			if !wide && (a.Verdict == nginx.Same || a.Verdict == nginx.Nothing) {
				continue
			}
			if count[of]++; count[of] == 1 {
				first[of], why[of] = nameOf(&r.Ingresses[i]), a.Why
			}
		}
	}
	groups := slices.SortedFunc(maps.Keys(count), func(a, b group) int {
		return cmp.Or(slices.Index(order, a.verdict)-slices.Index(order, b.verdict), count[b]-count[a],
			cmp.Compare(a.name, b.name))
	})
	for _, g := range groups {
		b.Rows = append(b.Rows, []string{g.name, string(g.verdict), strconv.Itoa(count[g]), first[g], why[g]})
	}
	return b
}

// problems lists the Problems of Ingresses that are served.
func (r *Report) problems() Block {
	b := Block{Title: "Other differences", Columns: []string{"ingress", "why"}}
	for i := range r.Ingresses {
		s := &r.Ingresses[i]
		for _, p := range s.Problems {
			if s.Verdict != nginx.Lost {
				b.Rows = append(b.Rows, []string{nameOf(s), p.Why})
			}
		}
	}
	return b
}

// each lists each annotation of each Ingress.
func (r *Report) each() Block {
	b := Block{Title: "Each Ingress", Columns: []string{"ingress", "annotation", "here", "keys", "why"}}
	for i := range r.Ingresses {
		s := &r.Ingresses[i]
		b.Rows = append(b.Rows, []string{
			nameOf(s), "-", string(s.Verdict), "-", fmt.Sprintf("%d of %d paths are served", s.Served, s.Paths),
		})
		for _, a := range s.Annotations {
			text := a.Name
			if a.Value != "" {
				text += ": " + a.Value
			}
			keys := cmp.Or(strings.Join(a.Here, "; "), "-")
			b.Rows = append(b.Rows, []string{nameOf(s), text, string(a.Verdict), keys, cmp.Or(a.Why, "-")})
		}
	}
	return b
}

func (r *Report) everywhere() Block {
	b := Block{Title: "Every Ingress"}
	for _, why := range r.Everywhere {
		b.Rows = append(b.Rows, []string{why})
	}
	return b
}

// unread lists the documents that were not read.
func (r *Report) unread() Block {
	b := Block{Title: "Not read, so nothing is known of it", Alarm: true, Columns: []string{"where", "why"}}
	for _, u := range r.Unread {
		b.Rows = append(b.Rows, []string{u.Where, u.Why})
	}
	return b
}

// besides says in sentences what the Report is not about, and what it assumes.
func (r *Report) besides() Block {
	b := Block{Title: "Not looked at"}
	add := func(format string, args ...any) { b.Rows = append(b.Rows, []string{fmt.Sprintf(format, args...)}) }
	if m := r.ConfigMap; m != nil && m.Unread != "" {
		add("The ConfigMap %s of ingress-nginx, which may have guards: %s; --nginx-config-map names another one.",
			m.Name, m.Unread)
	}
	for _, class := range slices.Sorted(maps.Keys(r.Others)) {
		n := status.Counted(r.Others[class], "Ingress")
		switch class {
		case "":
			add("%s without a class.", n)
		default:
			add("%s of class %s: --class %[2]s takes them for those of %s.", n, class, controllers[r.From])
		}
	}
	if n := r.Assumed.Classless; n > 0 {
		add("Without a class: %s. A default class is taken to exist, and to take them.",
			status.Counted(n, "Ingress"))
	}
	if n := len(r.Assumed.Secrets); n > 0 {
		add("Certificates and passwords of %s that the files do not have; they are taken to be good: %s.",
			status.Counted(n, "Secret"), few(r.Assumed.Secrets))
	}
	if n := len(r.Assumed.ConfigMaps); n > 0 {
		add("The contents of %s that the files do not have; they are taken to be good: %s.",
			status.Counted(n, "ConfigMap"), few(r.Assumed.ConfigMaps))
	}
	if n := len(r.Assumed.Services); n > 0 {
		add("%s that the files do not have; they are taken to exist: %s.", status.Counted(n, "Service"),
			few(r.Assumed.Services))
	}
	if n := len(r.Twice); n > 0 {
		add("All documents but the last of %s: %s.", status.Counted(n, "object"),
			few(r.Twice))
	}
	var kinds []string
	total := 0
	for _, kind := range slices.Sorted(maps.Keys(r.Ignored)) {
		kinds = append(kinds, fmt.Sprintf("%d %s", r.Ignored[kind], cmp.Or(kind, "without a kind")))
		total += r.Ignored[kind]
	}
	if total > 0 {
		add("%s of other kinds: %s.", status.Counted(total, "object"), few(kinds))
	}
	return b
}

func nameOf(s *survey.Surveyed) string { return s.Namespace + "/" + s.Name }

// few returns the first names of a list.
func few(names []string) string { return status.Few(names, 8) }
