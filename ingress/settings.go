package ingress

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
)

// settings are what an Ingress and a Service say of the backend between them.
// They are never changed: a need holds the pointer.
type settings struct {
	annotations.Settings
	own      bool // the Ingress makes them other than they are for the Service alone
	used     []annotations.Effective
	problems []annotations.Problem
	secrets  []foundSecret // that were looked for
	asks     []askedOne    // whom to ask first

	by      *networkingv1.Ingress // who makes it own
	refused []haproxy.Part        // left out because HAProxy refuses it
}

// An askedOne is a Service that says who may come in, as it was named.
type askedOne struct {
	key     serviceKey
	port    string
	backend string // its name
}

// foundSecret is a Secret as it was when somebody looked; nil if there was none.
type foundSecret struct {
	key    serviceKey
	secret *corev1.Secret
}

// env is what the keys of objects of a namespace depend on. The Secrets that are
// looked for, and the Services, are noted in into, if it is not nil.
func (k *Compiler) env(w *world, home string, into *settings) annotations.Env {
	if into == nil {
		into = new(settings)
	}
	return annotations.Env{
		Secrets: w.finder(home, &into.secrets),

		Demanded: k.demanded,

		Service: w.asker(home, &into.asks),
		Allowed: w.options.allows,
		Verdict: func(q haproxy.Question) haproxy.Verdict { return k.verdicts[q.Part()] },
		Refusal: func(p haproxy.Part) string {
			why := k.verdicts[p].Why
			if why != "" {
				into.refused = append(into.refused, p)
			}
			return why
		},
		Pattern: func(name string) (string, bool) {
			text, has := w.configMap(w.options.PatternFiles).Data[name]
			return text, has
		},
		TakenUDP: k.TakenUDP,
		Cluster:  w.cluster,
		Lines:    w.options.Limits.Lines, Entries: w.options.Limits.ListEntries,
	}
}

// allows says why a text for a section may not come from objects of a scope.
func (o Options) allows(scope annotations.Scope, section haproxy.Section) error {
	switch {
	case slices.Contains(o.NoSnippets, string(section)):
		return fmt.Errorf("the configuration file allows no snippets for section %s (clusters[].ingress.noSnippets)", section)
	case scope != annotations.ConfigMap && !o.OneTenant:
		return errors.New("the configuration file allows no snippets of Ingresses and Services, which can read every tenant's traffic (clusters[].ingress.trust)")
	}
	return nil
}

// finder looks Secrets up for objects of a namespace, and notes them in found.
func (w *world) finder(home string, found *[]foundSecret) annotations.Secrets {
	return func(scope annotations.Scope, ref annotations.Ref) (annotations.Secret, error) {
		from := home
		if scope == annotations.ConfigMap {
			from, _, _ = strings.Cut(w.options.ConfigMap, "/")
		}
		key := serviceKey{cmp.Or(ref.Namespace, from), ref.Name}
		if key.namespace != from && scope != annotations.ConfigMap && !w.options.CrossNamespaceSecrets {
			return annotations.Secret{}, fmt.Errorf("Secret %s is of another namespace, which the configuration file does not allow (clusters[].ingress.crossNamespaceSecrets)", key)
		}
		if !w.options.readsSecretsOf(key.namespace) {
			return annotations.Secret{}, fmt.Errorf("Secret %s is of a namespace whose Secrets are not read: only those of clusters[].ingress.namespaces, and of the ConfigMap's own, are", key)
		}
		secret, ok := find(w.Secrets, key)
		*found = append(*found, foundSecret{key, secret})
		if !ok {
			return annotations.Secret{}, fmt.Errorf("there is no Secret %s, or it cannot be read", key)
		}
		if why := tooLarge(secret); why != "" {
			return annotations.Secret{}, fmt.Errorf("Secret %s %s", key, why)
		}
		return annotations.Secret{Name: shorten(w.prefix+key.namespace+"_"+key.name, "_"), Of: key.String(), Data: secret.Data}, nil
	}
}

// asker names the backends of Services that objects of a namespace want to be
// asked first, and notes them in found.
func (w *world) asker(home string, found *[]askedOne) func(annotations.Scope, annotations.ServicePort) (string, error) {
	return func(scope annotations.Scope, to annotations.ServicePort) (string, error) {
		if scope == annotations.ConfigMap {
			home, _, _ = strings.Cut(w.options.ConfigMap, "/")
		}
		key := serviceKey{cmp.Or(to.Service.Namespace, home), to.Service.Name}
		if key.namespace != home && scope != annotations.ConfigMap && !slices.Contains(w.options.AuthServices, key.String()) {
			return "", fmt.Errorf("Service %s is of another namespace, and not among those that the configuration file lets all ask (clusters[].ingress.authServices)", key)
		}
		one := askedOne{key, to.Port, shorten(w.prefix+key.namespace+"_auth_svc_"+key.name+"_"+to.Port, ".")}
		*found = append(*found, one)
		return one.backend, nil
	}
}

// references are the Secrets that objects of a cluster name, in order.
type references struct {
	keys []serviceKey // in annotations and ConfigMaps; of any type
	tls  []serviceKey // in spec.tls; of type kubernetes.io/tls
}

// references finds the Secrets that objects of a cluster name.
func (w *world) references() references {
	var keys, tls []serviceKey
	add := func(scope annotations.Scope, home string, values map[string]string) {
		for _, ref := range annotations.Refers(scope, values) {
			key := serviceKey{cmp.Or(ref.Namespace, home), ref.Name}
			allowed := key.namespace == home || scope == annotations.ConfigMap || w.options.CrossNamespaceSecrets
			if allowed && w.options.readsSecretsOf(key.namespace) {
				keys = append(keys, key)
			}
		}
	}
	ours := classesOf(w)
	for _, ing := range w.Ingresses {
		if ours.has(ing) {
			add(annotations.Ingress, ing.Namespace, ing.Annotations)
			for _, t := range ing.Spec.TLS {
				if t.SecretName != "" {
					tls = append(tls, serviceKey{ing.Namespace, t.SecretName})
				}
			}
		}
	}
	for _, s := range w.Services {
		add(annotations.Service, s.Namespace, s.Annotations)
	}
	if m := w.configMap(w.options.ConfigMap); m.Name != "" {
		add(annotations.ConfigMap, m.Namespace, m.Data)
	}
	slices.SortFunc(keys, compareKeys)
	slices.SortFunc(tls, compareKeys)
	return references{slices.Compact(keys), slices.Compact(tls)}
}

// settledFor is whose settings are remembered. Objects are never changed, so
// their pointers tell. An Ingress that says nothing is nil.
type settledFor struct {
	ingress *networkingv1.Ingress
	service *corev1.Service // nil if there is none
	world   int
	kind    kind
}

// remember forgets what is of objects that are gone.
func (k *clerk) remember() {
	if k.layers == nil {
		k.layers = make(map[*corev1.Service]annotations.Layer)
	}
	if k.settled == nil {
		k.settled = make(map[settledFor]*settings)
	}
	here := make(map[any]bool, len(k.petitions))
	for _, w := range k.worlds {
		for _, s := range w.Services {
			here[s] = true
		}
	}
	for _, p := range k.petitions {
		here[p.object] = true
	}
	maps.DeleteFunc(k.layers, func(s *corev1.Service, _ annotations.Layer) bool { return !here[s] })
	maps.DeleteFunc(k.settled, func(f settledFor, _ *settings) bool {
		return f.ingress != nil && !here[f.ingress] || f.service != nil && !here[f.service]
	})
}

// settle reads what an Ingress and a Service, nil if there is none, say.
func (k *clerk) settle(p *petition, service *corev1.Service, kind kind) *settings {
	defaults := k.worlds[p.world].defaults
	shared := k.compile("", settledFor{service: service, world: p.world, kind: kind}, k.layer(service), defaults)
	both := shared
	if !p.layer.Empty() {
		owner := shorten(k.worlds[p.world].prefix+p.object.Namespace+"_ing_"+p.object.Name, ".")
		both = k.compile(owner, settledFor{p.object, service, p.world, kind}, k.layer(service), p.layer, defaults)
	}
	k.tell(p, service, both.problems)
	if both.Options == shared.Options && slices.Equal(both.Directives, shared.Directives) && slices.Equal(both.Questions, shared.Questions) {
		return shared
	}
	return both
}

// tell complains of problems to the object that each is of.
func (k *clerk) tell(p *petition, service *corev1.Service, problems []annotations.Problem) {
	w := k.worlds[p.world]
	for _, problem := range problems {
		switch problem.Scope {
		case annotations.Service:
			k.problems = append(k.problems, Problem{
				ObjectRef: ObjectRef{Cluster: w.cluster, Kind: "Service", Namespace: service.Namespace, Name: service.Name, UID: string(service.UID)},
				Reason:    problem.Reason, Why: problem.Why,
			})
		case annotations.ConfigMap:
			k.problems = append(k.problems, Problem{ObjectRef: w.refer(w.options.ConfigMap), Reason: problem.Reason, Why: problem.Why})
		default:
			k.complain(p, problem.Reason, "%s", problem.Why)
		}
	}
}

// configMap is the one of that name, NAMESPACE/NAME; an empty one if it is not
// there.
func (w *world) configMap(name string) *corev1.ConfigMap {
	namespace, name, _ := strings.Cut(name, "/")
	if m, ok := find(w.ConfigMaps, serviceKey{namespace, name}); ok {
		return m
	}
	return &corev1.ConfigMap{}
}

// refer names a ConfigMap, whether it is there or not.
func (w *world) refer(configMap string) ObjectRef {
	namespace, name, _ := strings.Cut(configMap, "/")
	return ObjectRef{Cluster: w.cluster, Kind: "ConfigMap", Namespace: namespace, Name: name, UID: string(w.configMap(configMap).UID)}
}

// hearDefaults complains of what ConfigMaps say that is no key or no file, and of
// those that are not there.
func (k *clerk) hearDefaults(w *world) {
	add := func(name string, problems []annotations.Problem) {
		for _, o := range problems {
			k.problems = append(k.problems, Problem{ObjectRef: w.refer(name), Reason: o.Reason, Why: o.Why})
		}
	}
	add(w.options.ConfigMap, append(slices.Clone(w.defaults.Odd), w.odd...))
	add(w.options.ErrorFiles, w.badFiles)
	add(w.options.TCPServices, w.badStreams)
	for _, name := range w.options.configMaps() {
		if w.configMap(name).Name == "" {
			add(name, []annotations.Problem{{Reason: "ConfigMapNotFound", Why: "there is no such ConfigMap, or it may not be read: Ingresses are served without what it says"}})
		}
	}
}

func (k *clerk) layer(service *corev1.Service) annotations.Layer {
	if service == nil {
		return annotations.Layer{}
	}
	l, known := k.layers[service]
	if !known {
		l = annotations.Read(annotations.Service, service.Annotations)
		k.layers[service] = l
	}
	return l
}

func (k *clerk) compile(owner string, of settledFor, layers ...annotations.Layer) *settings {
	s, known := k.settled[of]
	w := k.worlds[of.world]
	if !known || slices.ContainsFunc(s.secrets, func(f foundSecret) bool { now, _ := find(w.Secrets, f.key); return now != f.secret }) {
		s = &settings{own: of.ingress != nil, by: of.ingress}
		home := ""
		if of.service != nil {
			home = of.service.Namespace
		}
		if of.ingress != nil {
			home = of.ingress.Namespace
		}
		env := k.env(w, home, s)
		switch of.kind {
		case requests:
			s.Settings, s.used, s.problems = annotations.Compile(owner, env, layers...)
		case questions:
			s.Settings, s.problems = annotations.Servers(env, layers...)
		case passed:
			s.Settings, s.used, s.problems = annotations.CompileTCP(env, annotations.Passed, layers...)
		default:
			s.Settings, s.used, s.problems = annotations.CompileTCP(env, annotations.Ended, layers...)
		}
		for _, l := range layers {
			if l.Scope == annotations.Service {
				s.problems = append(s.problems, l.Odd...)
			}
		}
		k.settled[of] = s
	}
	k.refused = append(k.refused, s.refused...)
	return s
}
