package keys

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/claims"
	"sallyport/ingress/listen"
)

// A Memory holds the keys of Services and the Settings that were made before. A copy of a Memory shares what
// both hold, and each forgets alone by Begin and Unsettle.
type Memory struct {
	layers          map[*corev1.Service]annotations.Layer
	settled         map[For]*Settings
	derived, before map[derivedFor]*Settings // of the rules of routes, in this round and in the one before
}

// A For is all that Settings are remembered by. Pointers are enough, since the objects
// never change. Claimant is nil if it sets no key.
type For struct {
	Claimant *claims.Claimant
	Service  *corev1.Service // nil if there is none
	World    int
	Traffic  annotations.Traffic
	Open     bool // without the guards of the ConfigMap that keep clients out
	Lead     annotations.Lead

	closed bool // for a claim that is closed: its keys are not read
}

// A derivedFor says from what settings are derived.
type derivedFor struct {
	base *Settings
	own  string // the key of the effects
	tls  listen.ServerTLS
}

// Begin begins a round. Settings of rules that this round does not derive are forgotten by the round after it.
func (m *Memory) Begin() {
	if m.layers == nil {
		m.layers = make(map[*corev1.Service]annotations.Layer)
	}
	if m.settled == nil {
		m.settled = make(map[For]*Settings)
	}
	m.before, m.derived = m.derived, make(map[derivedFor]*Settings)
}

// Unsettle forgets all Settings, except for those that were derived for rules.
func (m *Memory) Unsettle() { m.settled = nil }

// Forget drops everything that is remembered about objects that are gone.
func (m *Memory) Forget(gone func(object any) bool) {
	maps.DeleteFunc(m.layers, func(s *corev1.Service, _ annotations.Layer) bool { return gone(s) })
	maps.DeleteFunc(m.settled, func(f For, _ *Settings) bool {
		return f.Claimant != nil && gone(f.Claimant) || f.Service != nil && gone(f.Service)
	})
}

// ForgetDerived drops derived Settings that are not needed, if they are more than most.
func (m *Memory) ForgetDerived(most int, needed iter.Seq[*Settings]) {
	if len(m.derived) <= most {
		return
	}
	here := make(map[*Settings]bool)
	for s := range needed {
		here[s] = true
	}
	maps.DeleteFunc(m.derived, func(_ derivedFor, s *Settings) bool { return !here[s] })
}

// AddDerived adds the derived Settings of another Memory.
func (m *Memory) AddDerived(other *Memory) { maps.Copy(m.derived, other.derived) }

// Layer returns the keys of a Service, which may be nil.
func (m *Memory) Layer(service *corev1.Service) annotations.Layer {
	if service == nil {
		return annotations.Layer{}
	}
	l, known := m.layers[service]
	if !known {
		l = annotations.Read(annotations.Service, service.Annotations)
		m.layers[service] = l
	}
	return l
}

// Compile returns the Settings that layers of keys make. owner names them in HAProxy's configuration.
func (m *Memory) Compile(w *World, p Process, owner string, of For, layers ...annotations.Layer) *Settings {
	s, known := m.settled[of]
	if known && !s.Changed(w) {
		return s
	}
	s = &Settings{By: of.Claimant}
	home := ""
	if of.Service != nil {
		home = of.Service.Namespace
	}
	if of.Claimant != nil {
		home = of.Claimant.Ref.Namespace
	}
	env := w.Env(p, home, &s.Found)
	env.Lead = of.Lead
	switch of.Traffic {
	case annotations.Requests:
		s.Settings, s.Used, s.Problems = annotations.Compile(owner, env, layers...)
	case claims.Checks:
		s.Settings, s.Problems = annotations.Servers(env, layers...)
	default:
		s.Settings, s.Used, s.Problems = annotations.CompileTCP(env, of.Traffic, layers...)
	}
	for _, l := range layers {
		if l.Scope == annotations.Service {
			s.Problems = append(s.Problems, l.Odd...)
		}
	}
	m.settled[of] = s
	return s
}

// Closed returns the Settings of a backend of a claim that is closed. No other claim shares the
// backend.
func (m *Memory) Closed(c claims.Petitioner, traffic annotations.Traffic) *Settings {
	of := For{Claimant: c.Claimant, World: c.World, Traffic: traffic, closed: true}
	if m.settled[of] == nil {
		end := haproxy.Close()
		if traffic != annotations.Requests {
			end = haproxy.CloseTCP()
		}
		m.settled[of] = &Settings{By: c.Claimant, Settings: annotations.Settings{Directives: []haproxy.Directive{end}}}
	}
	return m.settled[of]
}

// Derive returns Settings with the effects of a rule. It returns the same pointer for the same
// Settings and effects, as long as some rule needs them.
func (m *Memory) Derive(base *Settings, own listen.Effects) *Settings {
	key := derivedFor{base, own.Key(), own.TLS}
	if known := m.derived[key]; known != nil {
		return known
	}
	s := m.before[key]
	if s == nil {
		s = new(Settings)
		*s = *base
		s.Directives = append(slices.Clone(base.Directives), own.Directives...)
		if haproxy.HasFCGI(base.Directives) { // its requests are not copied
			s.Directives = slices.DeleteFunc(s.Directives, haproxy.Directive.Filters)
		}
		haproxy.SortDirectives(s.Directives)
		s.Extras = slices.Concat(base.Extras, own.Extras)
		s.Options.Proto = cmp.Or(own.Proto, s.Options.Proto)
		if own.TLS.CA != nil {
			s.encrypt(own.TLS)
		}
		sum := sha256.Sum256([]byte(key.own))
		s.Hash = hex.EncodeToString(sum[:8])
	}
	m.derived[key] = s
	return s
}
