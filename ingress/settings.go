package ingress

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"sallyport/ingress/annotations"
	"sallyport/ingress/claims"
	"sallyport/ingress/input"
	"sallyport/ingress/keys"
)

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
	c.memory.Forget(func(object any) bool { return !here[object] })
}

// settle returns the settings of a backend of a claim. service is nil if it does not
// exist.
func (b *builder) settle(c petitioner, service *corev1.Service, to reference) *settings {
	if c.Closed {
		return b.memory.Closed(c, to.Traffic)
	}
	defaults := b.worlds[c.World].defaults
	if to.Open {
		defaults = defaults.Open()
	}
	// An Ingress without keys of its own counts in a table of the cluster's ConfigMap.
	of := keys.For{Service: service, World: c.World, Traffic: to.Traffic, Open: to.Open}
	shared := b.compile(b.worlds[c.World].keys.Prefix, of, b.memory.Layer(service), defaults)
	both := shared
	if !c.Layer.Empty() || !c.Usual.Empty() {
		owner := claims.Shorten(b.worlds[c.World].keys.Prefix+c.Ref.Namespace+"_ing_"+c.Ref.Name, ".")
		of.Claimant, of.Lead = c.Claimant, c.Lead
		both = b.compile(owner, of, b.memory.Layer(service), c.Layer, defaults, c.Usual)
	}
	b.reportKeys(c, service, both.Problems)
	if both.Options == shared.Options && slices.Equal(both.Directives, shared.Directives) &&
		slices.Equal(both.Questions, shared.Questions) {
		return shared
	}
	return both
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

// env returns the annotations.Env for keys on objects of a namespace of a world. It notes the look-ups in found.
func (c *Compiler) env(w *world, home string, found *keys.Found) annotations.Env {
	return w.keys.Env(c.process(), home, found)
}

// process returns all that keys depend on beside their clusters.
func (c *Compiler) process() keys.Process {
	return keys.Process{Clients: c.demanded, Verdicts: c.verdicts, TakenUDP: c.TakenUDP}
}

// compile returns the settings that layers of keys make. It notes the parts that HAProxy refuses.
func (b *builder) compile(owner string, of keys.For, layers ...annotations.Layer) *settings {
	s := b.memory.Compile(b.worlds[of.World].keys, b.process(), owner, of, layers...)
	b.Refused = append(b.Refused, s.Refused...)
	return s
}

// settings yields the settings of all needs.
func (r *routing) settings(yield func(*settings) bool) {
	for i := range r.needs {
		if !yield(r.needs[i].settings) {
			return
		}
	}
}
