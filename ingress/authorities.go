package ingress

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"sallyport/haproxy"
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

// bundleIn returns the authorities in a ConfigMap, or why they cannot be used.
func (b *builder) bundleIn(w *world, key serviceKey) (read *bundle, why string) {
	m, ok := input.Find(w.ConfigMaps, key)
	switch {
	case !w.Options.ReadsSecretsOf(key.Namespace):
		return nil, fmt.Sprintf("ConfigMap %s is in a namespace whose ConfigMaps are not read; allowed are those of "+
			"clusters[].ingress.namespaces", key)
	case !ok:
		return nil, fmt.Sprintf("there is no ConfigMap %s, or it cannot be read", key)
	}
	if read = cmp.Or(b.api.bundles[m], b.apiBefore.bundles[m]); read == nil {
		read = readBundle(m)
	}
	b.api.bundles[m] = read
	if read.unusable != "" {
		return nil, fmt.Sprintf("ConfigMap %s %s", key, read.unusable)
	}
	if why := b.refusal(b.authorities(w, key)); why != "" {
		return nil, fmt.Sprintf("ConfigMap %s has authorities that cannot be used: %s", key, why)
	}
	return read, ""
}

// refusal returns why HAProxy refuses an Extra, or "".
func (b *builder) refusal(e *haproxy.Extra) string {
	why := b.verdicts[e.Part()].Why
	if why != "" {
		b.Refused = append(b.Refused, e.Part())
	}
	return why
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
func (b *builder) authorities(w *world, keys ...serviceKey) *haproxy.Extra {
	var names []string
	var content []byte
	for _, key := range keys {
		m, _ := input.Find(w.ConfigMaps, key)
		names, content = append(names, key.Namespace+"_cm_"+key.Name), slices.Concat(content, b.api.bundles[m].content)
	}
	return b.extra(&haproxy.Extra{Name: shorten(w.prefix+strings.Join(names, "_"), "_") + ".ca.pem", Content: content})
}

// shown returns the Extra with the certificate that a Gateway shows to servers. It returns nil if
// servers see no certificate.
func (b *builder) shown(w *world, g *gateway.Gateway) *haproxy.Extra {
	if g.Certificate == nil {
		return nil
	}
	read, why := b.pairIn(w, *g.Certificate)
	if why != "" {
		return nil // as the status of the Gateway says
	}
	key := *g.Certificate
	e, err := haproxy.ClientCertificate(shorten(w.prefix+key.Namespace+"_"+key.Name, "_"), read.pem)
	if err != nil || b.refusal(e) != "" {
		return nil
	}
	return b.extra(e)
}

// extra returns the Extra of the round before if it has the same content, so that the settings with the
// Extra stay the same, too.
func (b *builder) extra(e *haproxy.Extra) *haproxy.Extra {
	if old := cmp.Or(b.api.extras[e.Name], b.apiBefore.extras[e.Name]); old != nil &&
		bytes.Equal(old.Content, e.Content) {
		e = old
	}
	b.api.extras[e.Name] = e
	return e
}
