package ingress

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/claims"
	"sallyport/ingress/input"
	"sallyport/ingress/linked"
)

// settings hold the result of all keys for one backend: those of an Ingress, a Service
// and a ConfigMap. Settings are never changed: a need holds the pointer.
type settings struct {
	annotations.Settings
	used     []annotations.Effective
	problems []annotations.Problem
	secrets  []foundSecret  // all that were looked up
	backends []foundBackend // of HAProxy's own controller, all that were looked up
	sections []foundSection // all that were looked up
	asks     []askedOne     // Services that check its requests, get copies, or answer for its servers

	by      *claimant      // its keys change the backend, which it alone uses; nil if the backend is shared
	refused []haproxy.Part // left out because HAProxy refuses them
	hash    string         // of what a rule of a route adds; part of the backend's name
}

// An askedOne is a Service that a key names for a purpose.
type askedOne struct {
	key     serviceKey
	port    string
	backend string // its name
	annotations.Purpose
}

// A foundSecret is the outcome of a look-up. secret is nil if none was found.
type foundSecret struct {
	key    serviceKey
	secret *corev1.Secret
}

// A foundBackend is the outcome of a look-up. backend is nil if none was found.
type foundBackend struct {
	key     serviceKey
	backend *input.Backend
}

// A foundSection is the outcome of a look-up of a ConfigMap, or of a resource about a section. object is nil if none
// was found.
type foundSection struct {
	kind   annotations.Kind
	key    serviceKey
	object metav1.Object
}

// env returns the annotations.Env for keys on objects of a namespace. It notes the
// Secrets and Services that are looked up, and the parts that HAProxy refuses, in into.
func (c *Compiler) env(w *world, home string, into *settings) annotations.Env {
	return annotations.Env{
		Secrets: w.finder(home, &into.secrets), ConfigMaps: w.configMapFinder(home, &into.sections),
		Demanded: c.demanded,
		Service:  w.asker(home, &into.asks),
		Backend:  w.backendFinder(home, &into.backends),
		Section:  w.sectionFinder(&into.sections),
		Allowed:  w.allows,
		Verdict:  func(q haproxy.Question) haproxy.Verdict { return c.verdicts[q.Part()] },
		Refusal: func(p haproxy.Part) string {
			why := c.verdicts[p].Why
			if why != "" {
				into.refused = append(into.refused, p)
			}
			return why
		},
		Pattern: func(name string) (string, bool) {
			text, has := w.ConfigMap(w.Options.PatternFiles).Data[name]
			return text, has
		},
		TakenUDP: c.TakenUDP,
		Cluster:  w.Cluster,
		Tenant:   w.prefix + home, Namespace: home,
		Bounds: annotations.Bounds{
			Lines: w.Options.Limits.Lines, Entries: w.Options.Limits.ListEntries,
			CaptureBytes: w.Options.Limits.CaptureBytes, WrongPasswords: w.Options.Limits.WrongPasswords,
		},
	}
}

// allows returns nil if objects of a scope may bring text for a section, or why they may not. Text
// in any section can read files of HAProxy and change its maps. Through such text, a cluster
// reaches the traffic of every other cluster.
func (w *world) allows(scope annotations.Scope, section haproxy.Section) error {
	o := &w.Options
	switch {
	case !w.leads() && !o.Snippets:
		return fmt.Errorf("the configuration file allows no snippets of cluster %s, because a snippet can read and "+
			"change the traffic of every cluster (clusters[].ingress.snippets)", w.Cluster)
	case slices.Contains(o.NoSnippets, string(section)):
		return fmt.Errorf("the configuration file allows no snippets for section %s (clusters[].ingress.noSnippets)",
			section)
	case scope != annotations.ConfigMap && !o.OneTenant:
		return errors.New("the configuration file allows no snippets of Ingresses and Services, which can read every " +
			"tenant's traffic (clusters[].ingress.trust)")
	}
	return nil
}

// finder returns a function that looks up Secrets for objects of a namespace, and
// notes them in found.
func (w *world) finder(home string, found *[]foundSecret) annotations.Finder {
	return func(scope annotations.Scope, ref annotations.Ref) (annotations.Object, error) {
		key, err := w.SecretNamedBy(scope, home, ref)
		if err != nil {
			return annotations.Object{}, err
		}
		secret, ok := input.Find(w.Secrets, key)
		*found = append(*found, foundSecret{key, secret})
		if !ok {
			return annotations.Object{}, fmt.Errorf("there is no Secret %s, or it cannot be read", key)
		}
		if why := input.TooLarge(secret); why != "" {
			return annotations.Object{}, fmt.Errorf("Secret %s %s", key, why)
		}
		name := claims.Shorten(w.prefix+key.Namespace+"_"+key.Name, "_")
		return annotations.Object{Name: name, Of: "Secret " + key.String(), Data: secret.Data}, nil
	}
}

// configMapFinder returns a function that looks up ConfigMaps for objects of a namespace, and notes them in found.
func (w *world) configMapFinder(home string, found *[]foundSection) annotations.Finder {
	return func(scope annotations.Scope, ref annotations.Ref) (from annotations.Object, err error) {
		key, err := w.ConfigMapNamedBy(scope, home, ref)
		if err != nil {
			return from, err
		}
		m, ok := input.Find(w.ConfigMaps, key)
		if !ok {
			*found = append(*found, foundSection{kind: annotations.ConfigMapKind, key: key})
			return from, fmt.Errorf("there is no ConfigMap %s, or it cannot be read", key)
		}
		*found = append(*found, foundSection{annotations.ConfigMapKind, key, m})
		if why := input.TooLarge(m); why != "" {
			return from, fmt.Errorf("ConfigMap %s %s", key, why)
		}
		from.Name = claims.Shorten(w.prefix+key.Namespace+"_configmap_"+key.Name, "_")
		from.Of, from.Data = "ConfigMap "+key.String(), make(map[string][]byte, len(m.Data))
		for name, text := range m.Data {
			from.Data[name] = []byte(text)
		}
		return from, nil
	}
}

// asker returns a function that names the backend of a Service that objects of a namespace name for a
// purpose, and notes it in found.
func (w *world) asker(
	home string, found *[]askedOne,
) func(annotations.Scope, annotations.ServicePort, annotations.Purpose) (string, error) {
	return func(scope annotations.Scope, to annotations.ServicePort, purpose annotations.Purpose) (string, error) {
		key, own := w.Named(scope, home, to.Service)
		if !own && !slices.Contains(w.Options.AuthServices, key.String()) {
			return "", fmt.Errorf("Service %s is in another namespace, and not in the list of the configuration file "+
				"(clusters[].ingress.authServices)", key)
		}
		name := claims.Shorten(w.prefix+key.Namespace+purposes[purpose].kind+key.Name+"_"+to.Port, ".")
		*found = append(*found, askedOne{key: key, port: to.Port, backend: name, Purpose: purpose})
		return name, nil
	}
}

// settledFor is the key under which settings are remembered. Pointers are enough, since the objects
// never change. claimant is nil if it sets no key.
type settledFor struct {
	claimant *claimant
	service  *corev1.Service // nil if there is none
	world    int
	traffic  annotations.Traffic
	closed   bool // for a claim that is closed: its keys are not read
	open     bool // without the guards of the ConfigMap that keep clients out
	lead     annotations.Lead
}

// forget drops everything that is remembered about objects that are gone.
func (c *Compiler) forget(gone func(object any) bool) {
	maps.DeleteFunc(c.layers, func(s *corev1.Service, _ annotations.Layer) bool { return gone(s) })
	maps.DeleteFunc(c.settled, func(f settledFor, _ *settings) bool {
		return f.claimant != nil && gone(f.claimant) || f.service != nil && gone(f.service)
	})
}

// forgetDerived drops derived settings that no backend has, if they are many.
func (c *Compiler) forgetDerived(r *routing) {
	if len(c.derived) <= 2*len(r.needs)+linked.Most {
		return
	}
	here := make(map[*settings]bool, len(r.needs))
	for i := range r.needs {
		here[r.needs[i].settings] = true
	}
	maps.DeleteFunc(c.derived, func(_ derivedFor, s *settings) bool { return !here[s] })
}

// forgetOthers drops everything that is remembered about objects that are not in the worlds now.
func (c *Compiler) forgetOthers() {
	here := make(map[any]bool, len(c.routing.claims))
	for _, w := range c.worlds {
		for _, s := range w.Services {
			here[s] = true
		}
	}
	for _, claim := range c.routing.claims {
		here[claim.Claimant] = true
	}
	c.forget(func(object any) bool { return !here[object] })
}

// settle returns the settings of a backend of a claim. service is nil if it does not
// exist.
func (b *builder) settle(c petitioner, service *corev1.Service, to reference) *settings {
	if c.Closed {
		return b.shut(c, to.Traffic)
	}
	defaults := b.worlds[c.World].defaults
	if to.Open {
		defaults = defaults.Open()
	}
	// An Ingress without keys of its own counts in a table of the cluster's ConfigMap.
	of := settledFor{service: service, world: c.World, traffic: to.Traffic, open: to.Open}
	shared := b.compile(b.worlds[c.World].prefix, of, b.layer(service), defaults)
	both := shared
	if !c.Layer.Empty() || !c.Usual.Empty() {
		owner := claims.Shorten(b.worlds[c.World].prefix+c.Ref.Namespace+"_ing_"+c.Ref.Name, ".")
		of.claimant, of.lead = c.Claimant, c.Lead
		both = b.compile(owner, of, b.layer(service), c.Layer, defaults, c.Usual)
	}
	b.reportKeys(c, service, both.problems)
	if both.Options == shared.Options && slices.Equal(both.Directives, shared.Directives) &&
		slices.Equal(both.Questions, shared.Questions) {
		return shared
	}
	return both
}

// shut returns the settings of a backend of a claim that is closed. No other claim shares the
// backend.
func (b *builder) shut(c petitioner, traffic annotations.Traffic) *settings {
	of := settledFor{claimant: c.Claimant, world: c.World, traffic: traffic, closed: true}
	if b.settled[of] == nil {
		end := haproxy.Close()
		if traffic != annotations.Requests {
			end = haproxy.CloseTCP()
		}
		b.settled[of] = &settings{by: c.Claimant, Settings: annotations.Settings{Directives: []haproxy.Directive{end}}}
	}
	return b.settled[of]
}

// reportKeys reports each problem of a key on the object that sets the key.
func (b *builder) reportKeys(c petitioner, service *corev1.Service, problems []annotations.Problem) {
	w := b.worlds[c.World]
	for _, problem := range problems {
		on := c.Ref
		switch problem.Scope {
		case annotations.Service:
			on = w.serviceRef(service)
		case annotations.ConfigMap:
			on = w.refer(w.Options.ConfigMap)
		}
		b.Problems = append(b.Problems, Problem{
			ObjectRef: on, Reason: problem.Reason, Why: problem.Why, As: problem.As,
		})
	}
}

// ownConfigMaps returns the ConfigMaps that Options name; nil for each that does not exist. The content
// of other ConfigMaps concerns no settings.
func (w *world) ownConfigMaps() (all []*corev1.ConfigMap) {
	for _, full := range w.Options.ConfigMaps() {
		namespace, name, _ := strings.Cut(full, "/")
		m, _ := input.Find(w.ConfigMaps, serviceKey{Namespace: namespace, Name: name})
		all = append(all, m)
	}
	return all
}

// refer returns a reference to a ConfigMap, which may not exist.
func (w *world) refer(configMap string) ObjectRef {
	namespace, name, _ := strings.Cut(configMap, "/")
	uid := string(w.ConfigMap(configMap).UID)
	return ObjectRef{Cluster: w.Cluster, Kind: "ConfigMap", Namespace: namespace, Name: name, UID: uid}
}

// serviceRef returns a reference to a Service.
func (w *world) serviceRef(s *corev1.Service) ObjectRef {
	return ObjectRef{Cluster: w.Cluster, Kind: "Service", Namespace: s.Namespace, Name: s.Name, UID: string(s.UID)}
}

// checkConfigMaps reports problems in the ConfigMaps of a world, and each ConfigMap
// that does not exist.
func (b *builder) checkConfigMaps(w *world) {
	add := func(name string, problems []annotations.Problem) {
		for _, p := range problems {
			b.reportOn(w.refer(name), p.Reason, "%s", p.Why)
		}
	}
	add(w.Options.ConfigMap, w.defaults.Odd)
	add(w.Options.ConfigMap, w.oddKeys)
	if w.leads() {
		add(w.Options.ConfigMap, w.odd)
		add(w.Options.ErrorFiles, w.badFiles)
	}
	add(w.Options.TCPServices, w.badStreams)
	b.overruled(w)
	for _, name := range w.Options.ConfigMaps() {
		if w.ConfigMap(name).Name == "" {
			b.reportOn(w.refer(name), "ConfigMapNotFound", "the ConfigMap does not exist, or the appliance may not "+
				"read it: Ingresses are served without its content")
		}
	}
}

// overruled reports settings of the whole process that have no effect in a cluster's
// ConfigMaps, because another cluster sets the process.
func (b *builder) overruled(w *world) {
	if w.leads() {
		return
	}
	heard, leader := b.speaker, "another cluster"
	if w.leader != "" {
		leader = "cluster " + w.leader
	}
	report := func(configMap string, names []string) {
		if len(names) > 0 {
			b.reportOn(w.refer(configMap), "SetByAnotherCluster",
				"the ConfigMaps of %s set what concerns the whole HAProxy process, for all clusters (the "+
					"configuration file can name another cluster: clusters[].ingress.process); these keys have no "+
					"effect on the process: %s",
				leader, strings.Join(names, ", "))
		}
	}
	var names []string
	for _, e := range w.set {
		same := func(o annotations.Effective) bool { return o.Key == e.Key && o.Value == e.Value }
		if !slices.ContainsFunc(heard.set, same) {
			names = append(names, e.As)
		}
	}
	if _, said, _ := annotations.DefaultBackend(w.defaults); said {
		names = append(names, "default-backend-service")
	}
	slices.Sort(names)
	report(w.Options.ConfigMap, names)
	var files []string
	ours, theirs := w.ConfigMap(w.Options.ErrorFiles).Data, heard.ConfigMap(heard.Options.ErrorFiles).Data
	for _, status := range slices.Sorted(maps.Keys(ours)) {
		if ours[status] != theirs[status] {
			files = append(files, status)
		}
	}
	report(w.Options.ErrorFiles, files)
}

func (b *builder) layer(service *corev1.Service) annotations.Layer {
	if service == nil {
		return annotations.Layer{}
	}
	l, known := b.layers[service]
	if !known {
		l = annotations.Read(annotations.Service, service.Annotations)
		b.layers[service] = l
	}
	return l
}

func (b *builder) compile(owner string, of settledFor, layers ...annotations.Layer) *settings {
	s, known := b.settled[of]
	w := b.worlds[of.world]
	changed := func(f foundSecret) bool { now, _ := input.Find(w.Secrets, f.key); return now != f.secret }
	other := func(f foundBackend) bool { now, _ := input.Find(w.Backends, f.key); return now != f.backend }
	if !known || slices.ContainsFunc(s.secrets, changed) || slices.ContainsFunc(s.backends, other) ||
		slices.ContainsFunc(s.sections, w.changed) {
		s = &settings{by: of.claimant}
		home := ""
		if of.service != nil {
			home = of.service.Namespace
		}
		if of.claimant != nil {
			home = of.claimant.Ref.Namespace
		}
		env := b.env(w, home, s)
		env.Lead = of.lead
		switch of.traffic {
		case annotations.Requests:
			s.Settings, s.used, s.problems = annotations.Compile(owner, env, layers...)
		case claims.Checks:
			s.Settings, s.problems = annotations.Servers(env, layers...)
		default:
			s.Settings, s.used, s.problems = annotations.CompileTCP(env, of.traffic, layers...)
		}
		for _, l := range layers {
			if l.Scope == annotations.Service {
				s.problems = append(s.problems, l.Odd...)
			}
		}
		b.settled[of] = s
	}
	b.Refused = append(b.Refused, s.refused...)
	return s
}
