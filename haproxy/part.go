package haproxy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// A Part is something that an object brings to a Config, and that HAProxy may reject: a
// Text, a certificate with its key, an Extra, a Userlist, a Backend without its
// servers. Its content identifies it, so an object that changes brings another Part.
// Parts are compared with ==.
type Part struct {
	kind    string
	name    string // for people
	content string // lines of a Text, or a hash
}

// String returns the kind and the name of a Part, without its content.
func (p Part) String() string { return strings.TrimSpace(p.kind + " " + p.name) }

// The kinds of Parts that are no Texts.
const (
	extraPart    = "file"
	userlistPart = "userlist"
	pairPart     = "certificate"
	backendPart  = "backend"
)

func hashOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// Part returns the Text as a Part.
func (t Text) Part() Part {
	return Part{kind: "text for section " + string(t.section), content: t.lines}
}

// Part returns the Pair as a Part.
func (p Pair) Part() Part { return Part{kind: pairPart, content: hashOf(p.PEM)} }

// Part returns the Extra as a Part.
func (e *Extra) Part() Part { return Part{extraPart, e.Name, hashOf(e.Content)} }

// Part returns the Userlist as a Part.
func (u *Userlist) Part() Part { return Part{userlistPart, u.Name, hashOf([]byte(u.text()))} }

// Part returns the Backend as a Part, without its servers and the Texts among its
// directives.
func (b *Backend) Part() Part {
	own := slices.DeleteFunc(slices.Clone(b.Directives), func(d Directive) bool { return d.phase == phaseText })
	return Part{backendPart, b.Name, hashOf(fmt.Appendf(nil, "%v %q %+v", b.TCP, own, b.Options))}
}

// plain reports whether a backend has nothing that HAProxy might reject, besides its
// Texts.
func (b *Backend) plain() bool {
	return b.Options == ServerOptions{} && !slices.ContainsFunc(b.Directives, func(d Directive) bool {
		return d.phase != phaseText
	})
}

// needs returns the names of the files, userlists and tables that a backend refers to.
func (b *Backend) needs() []string {
	names := []string{b.Options.CA, b.Options.Crt}
	for _, d := range b.Directives {
		names = append(names, strings.Fields(d.names)...)
		switch d.phase {
		case phaseAsk, phasePage:
			names = append(names, authScript)
		case phaseMirror:
			names = append(names, mirrorScript)
		}
	}
	return names
}

// brought returns all parts that objects brought, once each. Files and userlists come
// before the parts that name them.
func (c *Config) brought() (all []Part) {
	for _, e := range c.Extras {
		if !e.ours() {
			all = append(all, e.Part())
		}
	}
	for _, u := range c.Userlists {
		all = append(all, u.Part())
	}
	if len(c.DefaultCert) > 0 {
		all = append(all, Pair{PEM: c.DefaultCert}.Part())
	}
	for _, cert := range c.Certs {
		all = append(all, Pair{PEM: cert.PEM}.Part())
	}
	for _, t := range c.Process.Texts {
		all = append(all, t.Part())
	}
	for _, choice := range c.Choices {
		for _, one := range choice.Cases {
			all = append(all, one.If.Part())
		}
	}
	for _, b := range c.Backends {
		for _, d := range b.Directives {
			if d.phase == phaseText {
				all = append(all, Text{BackendSection, d.text}.Part())
			}
		}
	}
	for _, b := range c.Backends {
		if !b.plain() {
			all = append(all, b.Part())
		}
	}
	seen := make(map[Part]bool, len(all))
	return slices.DeleteFunc(all, func(p Part) bool {
		again := seen[p]
		seen[p] = true
		return again
	})
}

// owners returns the owner of each part that one owner alone brings: the namespace, with its
// cluster. A file or a userlist belongs to the owners of the backends and certificates that name
// it.
func (c *Config) owners() map[Part]string {
	owners := make(map[Part]string)
	shared := make(map[Part]bool)
	add := func(part Part, owner string) {
		if was, known := owners[part]; known && was != owner {
			shared[part] = true
		}
		owners[part] = owner
	}
	files := make(map[string]Part)
	for _, e := range c.Extras {
		files[e.Name] = e.Part()
	}
	for _, u := range c.Userlists {
		files[u.Name] = u.Part()
	}
	for _, b := range c.Backends {
		owner := b.Cluster + "/" + b.Namespace
		if b.Namespace == "" {
			owner = ""
		}
		add(b.Part(), owner)
		for _, name := range b.needs() {
			if part, is := files[name]; is {
				add(part, owner)
			}
		}
	}
	for _, cert := range c.Certs {
		add(Pair{PEM: cert.PEM}.Part(), cert.Owner)
		if part, is := files[cert.ClientCA]; is {
			add(part, cert.Owner)
		}
	}
	for _, l := range c.Listeners {
		if part, is := files[l.ClientCA]; is {
			add(part, l.Owner.Cluster+"/"+l.Owner.Namespace)
		}
	}
	for part := range shared {
		delete(owners, part)
	}
	return owners
}

// with returns the configuration with only these parts of those that objects brought.
// It also leaves out each reference to a file or a userlist that is left out. It adds
// backends that use the certificate files, so that HAProxy reads each of them.
func (c *Config) with(parts []Part) *Config {
	taken := make(map[Part]bool, len(parts))
	for _, p := range parts {
		taken[p] = true
	}
	out := *c
	missing := make(map[string]bool)
	out.Extras, out.Userlists, out.Certs, out.Choices, out.Backends = nil, nil, nil, nil, nil
	out.Process.Texts = slices.DeleteFunc(slices.Clone(c.Process.Texts), func(t Text) bool { return !taken[t.Part()] })
	for _, e := range c.Extras {
		if !e.ours() && !taken[e.Part()] {
			missing[e.Name] = true
			continue
		}
		out.Extras = append(out.Extras, e)
		probe := &Backend{Name: "sp_probe_" + e.Name}
		switch {
		case strings.HasSuffix(e.Name, ".ca.pem"):
			probe.Options = ServerOptions{TLS: true, CA: e.Name}
		case strings.HasSuffix(e.Name, ".crt.pem"):
			probe.Options = ServerOptions{TLS: true, Crt: e.Name}
		default:
			continue
		}
		out.Backends = append(out.Backends, probe)
	}
	for _, u := range c.Userlists {
		if taken[u.Part()] {
			out.Userlists = append(out.Userlists, u)
		} else {
			missing[u.Name] = true
		}
	}
	if missing[c.Process.Signer] {
		out.Process.Signer = ""
	}
	if missing[c.Process.ClientCA] {
		out.Process.ClientCA = Nobody
	}
	out.Listeners = slices.Clone(c.Listeners)
	for i, l := range out.Listeners {
		if missing[l.ClientCA] {
			out.Listeners[i].ClientCA, out.Listeners[i].Insecure = Nobody, false
		}
	}
	out.Process.ErrorFiles = slices.DeleteFunc(slices.Clone(c.Process.ErrorFiles), func(status int) bool {
		return missing[errorFile(status)]
	})
	if len(c.DefaultCert) > 0 && !taken[Pair{PEM: c.DefaultCert}.Part()] {
		out.DefaultCert = nil
	}
	for _, cert := range c.Certs {
		if taken[Pair{PEM: cert.PEM}.Part()] && !missing[cert.ClientCA] {
			out.Certs = append(out.Certs, cert)
		}
	}
	for _, choice := range c.Choices {
		out.Choices = append(out.Choices,
			&Choice{choice.Name, slices.DeleteFunc(slices.Clone(choice.Cases), func(one Case) bool {
				return !taken[one.If.Part()]
			})})
	}
	for _, b := range c.Backends {
		whole := b.plain() || taken[b.Part()] && !slices.ContainsFunc(b.needs(), func(name string) bool {
			return missing[name]
		})
		left := *b
		left.Directives = slices.DeleteFunc(slices.Clone(b.Directives), func(d Directive) bool {
			if d.phase == phaseText {
				return !taken[Text{BackendSection, d.text}.Part()]
			}
			return !whole
		})
		if !whole {
			left.Options = ServerOptions{}
		}
		if left.Options == b.Options && slices.Equal(left.Directives, b.Directives) {
			out.Backends = append(out.Backends, b)
		} else {
			out.Backends = append(out.Backends, &left)
		}
	}
	return &out
}
