package listen

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"sallyport/haproxy"
	"sallyport/ingress/claims"
	"sallyport/ingress/gateway"
	"sallyport/ingress/input"
)

// Certificates of authorities for Gateways
//
// ConfigMaps hold them. Each ConfigMap is read once for each of its versions. An Extra holds those of
// one ConfigMap, or of several that one object names together.

// A bundle has the certificates of the authorities in a ConfigMap.
type bundle struct {
	content  []byte
	unusable string // why they cannot be used
}

// A Memory holds what one round made of ConfigMaps and Secrets, and the next round may need.
type Memory struct {
	bundles, bundlesBefore map[*corev1.ConfigMap]*bundle
	extras, extrasBefore   map[string]*haproxy.Extra // by name
}

// Next returns the memory of the next round. m may be nil.
func (m *Memory) Next() *Memory {
	next := &Memory{bundles: make(map[*corev1.ConfigMap]*bundle), extras: make(map[string]*haproxy.Extra)}
	if m != nil {
		next.bundlesBefore, next.extrasBefore = m.bundles, m.extras
	}
	return next
}

// Authorities returns why the authorities in a ConfigMap cannot be used, or "".
func (o *Opener) Authorities(world int, key types.NamespacedName) (why string) {
	w := &o.worlds[world]
	m, ok := input.Find(w.ConfigMaps, key)
	switch {
	case !w.Options.ReadsSecretsOf(key.Namespace):
		return fmt.Sprintf("ConfigMap %s is in a namespace whose ConfigMaps are not read; allowed are those of "+
			"clusters[].ingress.namespaces", key)
	case !ok:
		return fmt.Sprintf("there is no ConfigMap %s, or it cannot be read", key)
	}
	read := cmp.Or(o.memory.bundles[m], o.memory.bundlesBefore[m])
	if read == nil {
		read = readBundle(m)
	}
	o.memory.bundles[m] = read
	if read.unusable != "" {
		return fmt.Sprintf("ConfigMap %s %s", key, read.unusable)
	}
	if why := o.Refusal(o.authorities(w, key).Part()); why != "" {
		return fmt.Sprintf("ConfigMap %s has authorities that cannot be used: %s", key, why)
	}
	return ""
}

func readBundle(m *corev1.ConfigMap) *bundle {
	if why := input.TooLarge(m); why != "" {
		return &bundle{unusable: why}
	}
	read, err := haproxy.Authorities("any", []byte(m.Data[input.AuthoritiesKey]))
	if err != nil {
		return &bundle{
			unusable: fmt.Sprintf("has no authorities that can be used in %s: %v", input.AuthoritiesKey, err),
		}
	}
	return &bundle{content: read.Content}
}

// authorities returns the Extra with the authorities in ConfigMaps, which were read. No name of a
// namespace or a ConfigMap has a "_", so no two lists of ConfigMaps share a name.
func (o *Opener) authorities(w *World, keys ...types.NamespacedName) *haproxy.Extra {
	var names []string
	var content []byte
	for _, key := range keys {
		m, _ := input.Find(w.ConfigMaps, key)
		names = append(names, key.Namespace+"_cm_"+key.Name)
		content = slices.Concat(content, o.memory.bundles[m].content)
	}
	name := claims.Shorten(w.Prefix+strings.Join(names, "_"), "_") + ".ca.pem"
	return o.extra(&haproxy.Extra{Name: name, Content: content})
}

// shown returns the Extra with the certificate that a Gateway shows to servers. It returns nil if
// servers see no certificate.
func (o *Opener) shown(world int, g *gateway.Gateway) *haproxy.Extra {
	if g.Certificate == nil {
		return nil
	}
	read, why := o.Certificate(world, *g.Certificate)
	if why != "" {
		return nil // as the status of the Gateway says
	}
	key, w := *g.Certificate, &o.worlds[world]
	e, err := haproxy.ClientCertificate(claims.Shorten(w.Prefix+key.Namespace+"_"+key.Name, "_"), read.PEM)
	if err != nil || o.Refusal(e.Part()) != "" {
		return nil
	}
	return o.extra(e)
}

// extra returns the Extra of the round before if it has the same content, so that the settings with the
// Extra stay the same, too.
func (o *Opener) extra(e *haproxy.Extra) *haproxy.Extra {
	if old := cmp.Or(o.memory.extras[e.Name], o.memory.extrasBefore[e.Name]); old != nil &&
		bytes.Equal(old.Content, e.Content) {
		e = old
	}
	o.memory.extras[e.Name] = e
	return e
}
