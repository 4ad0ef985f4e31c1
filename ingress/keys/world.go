package keys

import (
	"errors"
	"fmt"
	"slices"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/claims"
	"sallyport/ingress/input"
)

// A World is a cluster, with the objects that keys name.
type World struct {
	*input.Snapshot
	Prefix string // of every name made for this cluster
	Leads  bool   // its ConfigMaps set the keys of the whole process

	resources map[*input.Backend]resource // that something has named
}

// NewWorld returns the world of a Snapshot. The Backends of HAProxy's own controller that are still there are not
// read again. The argument before is the world of the round before, or nil.
func NewWorld(s *input.Snapshot, prefix string, leads bool, before *World) *World {
	w := &World{Snapshot: s, Prefix: prefix, Leads: leads}
	if before != nil && slices.Equal(s.Backends, before.Backends) {
		w.resources = before.resources
		return w
	}
	w.resources = make(map[*input.Backend]resource)
	if before != nil {
		for _, b := range s.Backends {
			if r, known := before.resources[b]; known {
				w.resources[b] = r
			}
		}
	}
	return w
}

// A Process is all that keys depend on beside their clusters.
type Process struct {
	Clients  annotations.Clients // the certificates that ConfigMaps demand from the clients of all hosts
	Verdicts haproxy.Verdicts
	TakenUDP map[uint16]string // ports that QUIC cannot have, each with its owner
}

// Env returns the annotations.Env for keys on objects of a namespace. It notes the
// Secrets and Services that are looked up, and the parts that HAProxy refuses, in into.
func (w *World) Env(p Process, home string, into *Found) annotations.Env {
	return annotations.Env{
		Secrets: w.finder(home, &into.secrets), ConfigMaps: w.configMapFinder(home, &into.sections),
		Demanded: p.Clients,
		Service:  w.asker(home, &into.Asks),
		Backend:  w.backendFinder(home, &into.backends),
		Section:  w.sectionFinder(&into.sections),
		Allowed:  w.allows,
		Verdict:  func(q haproxy.Question) haproxy.Verdict { return p.Verdicts[q.Part()] },
		Refusal: func(part haproxy.Part) string {
			why := p.Verdicts[part].Why
			if why != "" {
				into.Refused = append(into.Refused, part)
			}
			return why
		},
		Pattern: func(name string) (string, bool) {
			text, has := w.ConfigMap(w.Options.PatternFiles).Data[name]
			return text, has
		},
		TakenUDP: p.TakenUDP,
		Cluster:  w.Cluster,
		Tenant:   w.Prefix + home, Namespace: home,
		Bounds: annotations.Bounds{
			Lines: w.Options.Limits.Lines, Entries: w.Options.Limits.ListEntries,
			CaptureBytes: w.Options.Limits.CaptureBytes, WrongPasswords: w.Options.Limits.WrongPasswords,
		},
	}
}

// allows returns nil if objects of a scope may bring text for a section, or why they may not. Text
// in any section can read files of HAProxy and change its maps. Through such text, a cluster
// reaches the traffic of every other cluster.
func (w *World) allows(scope annotations.Scope, section haproxy.Section) error {
	o := &w.Options
	switch {
	case !w.Leads && !o.Snippets:
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
func (w *World) finder(home string, found *[]foundSecret) annotations.Finder {
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
		name := claims.Shorten(w.Prefix+key.Namespace+"_"+key.Name, "_")
		return annotations.Object{Name: name, Of: "Secret " + key.String(), Data: secret.Data}, nil
	}
}

// configMapFinder returns a function that looks up ConfigMaps for objects of a namespace, and notes them in found.
func (w *World) configMapFinder(home string, found *[]foundSection) annotations.Finder {
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
		from.Name = claims.Shorten(w.Prefix+key.Namespace+"_configmap_"+key.Name, "_")
		from.Of, from.Data = "ConfigMap "+key.String(), make(map[string][]byte, len(m.Data))
		for name, text := range m.Data {
			from.Data[name] = []byte(text)
		}
		return from, nil
	}
}

// asker returns a function that names the backend of a Service that objects of a namespace name for a
// purpose, and notes it in found.
func (w *World) asker(
	home string, found *[]Asked,
) func(annotations.Scope, annotations.ServicePort, annotations.Purpose) (string, error) {
	return func(scope annotations.Scope, to annotations.ServicePort, purpose annotations.Purpose) (string, error) {
		key, own := w.Named(scope, home, to.Service)
		if !own && !slices.Contains(w.Options.AuthServices, key.String()) {
			return "", fmt.Errorf("Service %s is in another namespace, and not in the list of the configuration file "+
				"(clusters[].ingress.authServices)", key)
		}
		name := claims.Shorten(w.Prefix+key.Namespace+marks[purpose]+key.Name+"_"+to.Port, ".")
		*found = append(*found, Asked{Key: key, Port: to.Port, Backend: name, Purpose: purpose})
		return name, nil
	}
}

// marks hold for each Purpose a part of the name of the backend.
var marks = map[annotations.Purpose]string{
	annotations.Checks: "_auth_svc_", annotations.Copies: "_copy_svc_", annotations.Pages: "_page_svc_",
}
