// Package survey owns the verdicts on Ingresses that were written for another controller. [Of] makes a
// [Survey] of a Result of package ingress, so a verdict can only be true of the compiler.
//
// It alone knows which verdict a Problem with an annotation is, and which hosts differ as a whole from
// those of the other controller. It promises that an Ingress is Safe only if each of its paths is served
// and none of its guards is lost.
//
// Its limit: it reads no annotation itself. Packages nginx and annotations do.
package survey

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/ingress/annotations"
	"sallyport/ingress/claims"
	"sallyport/ingress/input"
	"sallyport/ingress/nginx"
)

// A Survey says how Ingresses that were written for another controller are served here. It is made
// from a Result, so that it can only say what the compiler does.
type Survey struct {
	From      Foreign        `json:"from"`
	Ingresses []Surveyed     `json:"ingresses"`
	Hosts     []SurveyedHost `json:"hosts"`            // those that differ as a whole
	Others    map[string]int `json:"others,omitempty"` // Ingresses of other classes, by class; "" has none
	// Objects are the problems of other objects that HAProxy's controller reads: Services, ConfigMaps, and its custom
	// resources.
	Objects []input.Problem `json:"objects,omitempty"`
	// Everywhere lists in sentences the differences that each Ingress has, with or without annotations.
	Everywhere []string `json:"everywhere,omitempty"`
}

// Foreign is a controller that Ingresses were written for.
type Foreign string

// The foreign controllers.
const (
	FromNginx   Foreign = "nginx"   // ingress-nginx
	FromHAProxy Foreign = "haproxy" // HAProxy's own ingress controller
)

// kind returns the kind of the Ingresses of the controller.
func (f Foreign) kind() input.Kind {
	if f == FromNginx {
		return input.OfNginx
	}
	return input.OfHAProxy
}

// A Surveyed is an Ingress of a Survey.
type Surveyed struct {
	input.ObjectRef
	Verdict     Verdict              `json:"verdict"`
	Closed      bool                 `json:"closed,omitempty"` // all clients of a path are rejected
	Paths       int                  `json:"paths"`            // that its rules have
	Served      int                  `json:"served"`           // of its paths, without those whose clients are rejected
	Annotations []SurveyedAnnotation `json:"annotations"`
	Problems    []SurveyedProblem    `json:"problems,omitempty"` // of what is no annotation
}

// Verdict says how an Ingress or an annotation is served here.
type Verdict = nginx.Verdict

// A SurveyedAnnotation is an annotation of another controller.
type SurveyedAnnotation struct {
	Name    string   `json:"name"` // without the prefix of the controller
	Value   string   `json:"value,omitempty"`
	Verdict Verdict  `json:"verdict"`
	Guard   bool     `json:"guard,omitempty"` // it may keep clients out
	Here    []string `json:"here,omitempty"`  // the keys that it stands for, as KEY: VALUE
	Why     string   `json:"why,omitempty"`
}

// Lost reports whether the annotation is a guard that is not kept.
func (a *SurveyedAnnotation) Lost() bool { return a.Guard && a.Verdict == nginx.Lost }

// Safe reports whether each path is served, and no guard is lost.
func (s *Surveyed) Safe() bool {
	return s.Verdict != nginx.Lost &&
		!slices.ContainsFunc(s.Annotations, func(a SurveyedAnnotation) bool { return a.Lost() })
}

// A SurveyedProblem is a Problem of an Ingress.
type SurveyedProblem struct {
	Reason string `json:"reason"`
	Why    string `json:"why"`
}

// A SurveyedHost is a host that differs as a whole.
type SurveyedHost struct {
	Host string   `json:"host"`
	Why  []string `json:"why"`
}

// LostGuards returns how many guards are not kept.
func (s *Survey) LostGuards() (n int) {
	for i := range s.Ingresses {
		for j := range s.Ingresses[i].Annotations {
			if s.Ingresses[i].Annotations[j].Lost() {
				n++
			}
		}
	}
	return n
}

// A surveyor makes the Survey of a cluster.
type surveyor struct {
	ingress.Outcomes
	from    Foreign
	objects map[types.NamespacedName]*networkingv1.Ingress // of the controller
	claimed map[types.NamespacedName]*ingress.Outcome
	found   map[types.NamespacedName][]input.Problem
	told    map[types.NamespacedName][]SurveyedProblem // because of other Ingresses of its hosts
}

// Of returns the Survey of the Ingresses in a cluster that were written for another controller.
func Of(r ingress.Result, cluster string, from Foreign) Survey {
	out := Survey{From: from, Ingresses: []Surveyed{}, Hosts: []SurveyedHost{}, Others: make(map[string]int)}
	outcomes, known := r.Outcomes(cluster)
	if !known {
		return out
	}
	v := &surveyor{
		Outcomes: outcomes, from: from,
		objects: make(map[types.NamespacedName]*networkingv1.Ingress),
		claimed: make(map[types.NamespacedName]*ingress.Outcome),
		found:   make(map[types.NamespacedName][]input.Problem),
		told:    make(map[types.NamespacedName][]SurveyedProblem),
	}
	for i := range v.Claims {
		v.claimed[keyOf(v.Claims[i].Ref)] = &v.Claims[i]
	}
	for _, p := range v.Problems {
		v.found[keyOf(p.ObjectRef)] = append(v.found[keyOf(p.ObjectRef)], p)
	}
	classes := input.ClassesOf(v.Snapshot)
	for _, ing := range v.Ingresses {
		if classes.Kind(ing) != from.kind() {
			class, _ := input.ClassOf(ing)
			out.Others[class]++
			continue
		}
		v.objects[input.KeyOf(ing)] = ing
		out.Ingresses = append(out.Ingresses, v.ingress(ing))
	}
	slices.SortStableFunc(out.Ingresses, func(a, b Surveyed) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	out.Hosts = append(out.Hosts, v.hosts()...)
	for i := range out.Ingresses {
		s := &out.Ingresses[i]
		told := v.told[keyOf(s.ObjectRef)]
		slices.SortFunc(told, func(a, b SurveyedProblem) int { return cmp.Compare(a.Why, b.Why) })
		s.Problems = append(s.Problems, told...)
		s.Verdict = s.sum()
	}
	if from == FromNginx {
		out.Everywhere = nginx.Everywhere
		return out
	}
	for _, p := range v.Others {
		if slices.Contains(objectKinds, p.Kind) {
			out.Objects = append(out.Objects, p)
		}
	}
	return out
}

// objectKinds are the kinds of Objects.
var objectKinds = []string{"Service", "ConfigMap", "TCP", "Backend", "Global", "Defaults", "Frontend", input.RulesKind}

// LosesObject reports whether a port of a TCP is closed, or whether there are ValidationRules. Their annotations may
// keep clients out.
func (s *Survey) LosesObject() bool {
	return slices.ContainsFunc(s.Objects, func(p input.Problem) bool {
		return p.Kind == input.RulesKind ||
			p.Kind == "TCP" && p.Reason != "FieldLeftOut" && p.Reason != "UnusedResource"
	})
}

func keyOf(o input.ObjectRef) types.NamespacedName {
	return types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
}

// ingress returns how one Ingress is served.
func (v *surveyor) ingress(ing *networkingv1.Ingress) Surveyed {
	s := Surveyed{Annotations: []SurveyedAnnotation{}}
	key := input.KeyOf(ing)
	s.ObjectRef = input.ObjectRef{
		Cluster: v.Cluster, Kind: "Ingress", Namespace: ing.Namespace, Name: ing.Name, UID: string(ing.UID),
	}
	unlike := map[string]bool{} // paths that no request has which ingress-nginx sends there
	for _, rule := range ing.Spec.Rules {
		if rule.HTTP == nil {
			continue
		}
		s.Paths += len(rule.HTTP.Paths)
		for _, p := range rule.HTTP.Paths {
			if v.from == FromNginx && p.PathType != nil && !nginx.Allows(string(*p.PathType), p.Path) {
				unlike[p.Path] = true
				s.Problems = append(s.Problems, SurveyedProblem{
					"PathRefused", fmt.Sprintf("ingress-nginx refuses path %s of type %s (strict-validate-path-type), "+
						"or reads it as a regular expression; here it is compared as it stands: for an expression, "+
						"pathType has to be ImplementationSpecific", annotations.Quote(p.Path), *p.PathType),
				})
			}
		}
	}
	if c := v.claimed[key]; c != nil {
		if c.Ruleless && c.Fallback != nil {
			s.Paths, s.Served, s.Closed = 1, 0, c.Closed
			if c.Effective && !c.Closed {
				s.Served = 1
			}
		}
		for i, p := range c.Paths {
			at := c.Places[i]
			if at.Granted && !at.Closed && !p.Alias && !unlike[p.Path] {
				s.Served++
			}
			s.Closed = s.Closed || at.Closed
		}
	}
	prefix := nginx.Prefix
	if v.from == FromNginx {
		s.Annotations = v.ofNginx(ing)
	} else {
		prefix = ""
		s.Annotations = v.ofHAProxy(ing)
	}
	for _, p := range v.found[key] {
		i := slices.IndexFunc(s.Annotations, func(a SurveyedAnnotation) bool { return prefix+a.Name == p.As })
		if p.As == "" || i < 0 {
			if one := (SurveyedProblem{p.Reason, p.Why}); !slices.Contains(s.Problems, one) {
				s.Problems = append(s.Problems, one)
			}
			continue
		}
		s.Annotations[i].heed(p)
	}
	if v.from == FromNginx {
		s.follow()
	}
	s.Verdict = s.sum()
	return s
}

// ofNginx returns the annotations of ingress-nginx on an Ingress.
func (v *surveyor) ofNginx(ing *networkingv1.Ingress) []SurveyedAnnotation {
	read := v.ReadNginx(ing)
	all := make([]SurveyedAnnotation, 0, len(read.Notes))
	for _, n := range read.Notes {
		one := SurveyedAnnotation{
			Name: n.Name, Value: shown(n.Value), Verdict: n.Verdict, Guard: n.Guard, Why: n.Why,
		}
		for _, s := range read.Said {
			if s.As == nginx.Prefix+n.Name {
				one.Here = append(one.Here, s.Key+": "+shown(s.Text))
			}
		}
		all = append(all, one)
	}
	return all
}

// SettingsOf returns the keys of the ConfigMap of ingress-nginx, each with what to write in ours. The readers
// of our keys judge these values.
func SettingsOf(data map[string]string) []SurveyedAnnotation {
	notes, said := nginx.ReadConfigMap(data)
	problems := odd(said)
	all := make([]SurveyedAnnotation, 0, len(notes))
	for _, n := range notes {
		one := SurveyedAnnotation{
			Name: n.Name, Value: shown(n.Value), Verdict: n.Verdict, Guard: n.Guard, Why: n.Why,
		}
		for _, s := range said {
			if s.As == n.Name {
				one.Here = append(one.Here, s.Key+": "+s.Text)
			}
		}
		for _, p := range problems {
			if slices.ContainsFunc(said, func(s annotations.Said) bool { return s.As == n.Name && s.Key == p.As }) {
				one.heed(input.Problem{Reason: p.Reason, Why: p.Why})
			}
		}
		all = append(all, one)
	}
	return all
}

// odd returns the problems of values in our ConfigMap. Services and Secrets are taken to exist.
func odd(said []annotations.Said) []annotations.Problem {
	l := annotations.Read(annotations.ConfigMap, nginx.Together(said))
	env := annotations.Env{
		Allowed: func(annotations.Scope, haproxy.Section) error { return nil },
		Backend: func(annotations.Scope, annotations.Ref) (*annotations.Resource, error) {
			return nil, nil //nolint:nilnil // ingress-nginx has none
		},
		Section: func(annotations.Kind, haproxy.Section, annotations.Ref) (*annotations.Section, error) {
			return nil, nil //nolint:nilnil // ingress-nginx has none
		},
		Pattern: func(string) (string, bool) { return "", false },
		Refusal: func(haproxy.Part) string { return "" },
		Service: func(annotations.Scope, annotations.ServicePort, annotations.Purpose) (string, error) {
			return "asked", nil
		},
		Secrets: func(annotations.Scope, annotations.Ref) (annotations.Object, error) {
			return annotations.Object{}, nil
		},
		ConfigMaps: func(annotations.Scope, annotations.Ref) (annotations.Object, error) {
			return annotations.Object{}, nil
		},
		Verdict: func(haproxy.Question) haproxy.Verdict { return haproxy.Good },
	}
	_, _, ofBackends := annotations.Compile("", env, l)
	_, _, ofProcess := annotations.Process(env, l)
	_, ofRedirects := annotations.SSLRedirect(l)
	return slices.Concat(l.Odd, ofBackends, ofProcess, ofRedirects)
}

// ofHAProxy returns the annotations of HAProxy's own controller on an Ingress. Each is a key of ours,
// unless a Problem says otherwise.
func (v *surveyor) ofHAProxy(ing *networkingv1.Ingress) []SurveyedAnnotation {
	all := make([]SurveyedAnnotation, 0, len(ing.Annotations))
	for _, name := range slices.Sorted(maps.Keys(ing.Annotations)) {
		is, guard := annotations.OfController(name)
		if custom := v.Defines(name); is || custom {
			all = append(all, SurveyedAnnotation{
				Name: name, Value: shown(ing.Annotations[name]), Verdict: nginx.Same, Guard: guard || custom,
			})
		}
	}
	return all
}

// longestShown is the number of bytes of a value that a Survey shows.
const longestShown = 200

// shown returns a value for people.
func shown(value string) string {
	value = strings.ReplaceAll(value, "\n", " | ")
	if len(value) > longestShown {
		value = strings.ToValidUTF8(value[:longestShown], "") + "..."
	}
	return value
}

// heed changes the verdict on an annotation by a Problem that the compiler has found with it.
func (a *SurveyedAnnotation) heed(p input.Problem) {
	switch p.Reason {
	case "OlderAnnotation":
	case "UnusedAnnotation":
		if a.Verdict != nginx.Differs {
			a.Verdict, a.Why = nginx.Void, p.Why
		}
	case "NotForTCP":
		a.Verdict, a.Why, a.Here = nginx.Differs, p.Why, nil
	case "LimitReached", "UserLeftOut", "FieldLeftOut":
		a.Verdict, a.Why = nginx.Differs, p.Why
	default:
		if a.Verdict == nginx.Same || a.Verdict == nginx.Differs {
			a.Verdict, a.Why = nginx.Lost, p.Why
		}
	}
}

// follow marks annotations as lost that have no effect without another one that is lost. They are no
// guards of their own.
func (s *Surveyed) follow() {
	lost := func(name string) bool {
		i := slices.IndexFunc(s.Annotations, func(a SurveyedAnnotation) bool { return a.Name == name })
		return i < 0 || s.Annotations[i].Verdict == nginx.Lost
	}
	for again := true; again; {
		again = false
		for i := range s.Annotations {
			a := &s.Annotations[i]
			needed := nginx.Needed(a.Name)
			served := a.Verdict == nginx.Same || a.Verdict == nginx.Differs
			found := slices.ContainsFunc(needed, func(name string) bool { return !lost(name) })
			if served && len(needed) > 0 && !found {
				a.Verdict, a.Guard, a.Here, again = nginx.Lost, false, nil, true
				a.Why = "it has no effect without `" + strings.Join(needed, "` or `") + "`, which is not served"
			}
		}
	}
}

// sum returns the verdict on an Ingress, out of those on its parts.
func (s *Surveyed) sum() Verdict {
	has := func(v Verdict) bool {
		return slices.ContainsFunc(s.Annotations, func(a SurveyedAnnotation) bool { return a.Verdict == v })
	}
	switch {
	case s.Closed || s.Served < s.Paths:
		return nginx.Lost
	case has(nginx.Lost) || has(nginx.Differs) || len(s.Problems) > 0:
		return nginx.Differs
	case has(nginx.Refused):
		return nginx.Refused
	}
	return nginx.Same
}

// hosts returns the hosts that differ as a whole from those of ingress-nginx.
func (v *surveyor) hosts() (all []SurveyedHost) {
	if v.from != FromNginx {
		return nil
	}
	why := make(map[string][]string)
	v.expressions(why)
	v.redirects(why)
	for _, host := range slices.Sorted(maps.Keys(why)) {
		all = append(all, SurveyedHost{Host: cmp.Or(host, "*"), Why: why[host]})
	}
	return all
}

// mine yields the claims of the controller's Ingresses, the older first.
func (v *surveyor) mine() iter.Seq2[types.NamespacedName, *ingress.Outcome] {
	return func(yield func(types.NamespacedName, *ingress.Outcome) bool) {
		for i := range v.Claims {
			c := &v.Claims[i]
			if key := keyOf(c.Ref); v.objects[key] != nil && !yield(key, c) {
				return
			}
		}
	}
}

// expressions adds the hosts on which ingress-nginx makes expressions of paths that are none here. One
// Ingress with an expression makes expressions of all paths of its hosts there. Each Ingress with such
// paths gets a problem.
func (v *surveyor) expressions(why map[string][]string) {
	causes, plain := make(map[string][]string), make(map[string][]string)
	of := make(map[string]map[types.NamespacedName][]string) // the plain paths of a host, by their Ingress
	for key, c := range v.mine() {
		read := v.ReadNginx(v.objects[key])
		for _, host := range c.Hosts {
			if read.Expressions() {
				causes[host] = append(causes[host], key.String())
			}
		}
		for _, p := range c.Paths {
			if p.Match == haproxy.Regexp || p.Path == "/" {
				continue
			}
			if of[p.Host] == nil {
				of[p.Host] = make(map[types.NamespacedName][]string)
			}
			plain[p.Host] = append(plain[p.Host], fmt.Sprintf("%s (%s)", p.Path, key))
			of[p.Host][key] = append(of[p.Host][key], fmt.Sprintf("%s (%s)", p.Path, p.Match))
		}
	}
	for host, by := range causes {
		if len(plain[host]) > 0 {
			why[host] = append(why[host], fmt.Sprintf("ingress-nginx reads all paths of the host as regular "+
				"expressions, because of %s; here these paths stay as they are: %s",
				claims.List(by), claims.List(plain[host])))
		}
		for key, paths := range of[host] {
			v.told[key] = append(v.told[key], SurveyedProblem{"ExpressionsOfHost", fmt.Sprintf(
				"ingress-nginx reads all paths of %s as the beginnings of regular expressions, in any case of "+
					"their letters, because of %s: path /a there also takes /abc and /A; here these paths stay as "+
					"they are: %s",
				cmp.Or(host, "every host"), claims.List(by), claims.List(paths))})
		}
	}
}

// redirects adds the hosts on which ingress-nginx redirects paths to HTTPS that are served by plain HTTP
// here. There a certificate of any Ingress of the host is enough.
func (v *surveyor) redirects(why map[string][]string) {
	certain, open := make(map[string]string), make(map[string][]string)
	for key, c := range v.mine() {
		for _, host := range c.Hosts {
			if claims.Covers(c.Covered, host) {
				certain[host] = cmp.Or(certain[host], key.String())
			}
		}
		for i, p := range c.Paths {
			if c.Places[i].Plain && c.Redirect.Wanted == nil && !p.IsChallenge() {
				open[p.Host] = append(open[p.Host], fmt.Sprintf("%s (%s)", nginx.Written(p.Path), key))
			}
		}
	}
	for host, by := range certain {
		if len(open[host]) > 0 {
			why[host] = append(why[host], fmt.Sprintf("ingress-nginx redirects these paths to HTTPS because of the "+
				"certificate of %s; here they are served by plain HTTP, too, unless their Ingress has the certificate "+
				"or ssl-redirect: %s", by, claims.List(open[host])))
		}
	}
}
