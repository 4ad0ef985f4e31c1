package haproxy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"reflect"
	"slices"
)

// served returns a Shape without the settings that differ among the machines of a group.
func (s *Shape) served() Shape {
	all := *s
	all.Bind, all.Tune, all.Group, all.Leaving = Bind{}, Tune{}, nil, false
	return all
}

// Serves reports whether c and o have the same Sum. It is quick where most backends are the
// same pointers.
func (c *Config) Serves(o *Config) bool {
	return sameRoutes(c.Routes, o.Routes) && c.sameRows(o) && c.DefaultBackend == o.DefaultBackend &&
		reflect.DeepEqual(c.served(), o.served()) &&
		(SameList(c.Backends, o.Backends) || slices.EqualFunc(c.Backends, o.Backends, func(a, b *Backend) bool {
			return a == b || a.Name == b.Name && a.sameShape(b)
		}))
}

// Sum returns a hash of the routes of a Config, and of the settings of its backends. It does not
// depend on the machine, on pods or on certificates. Members of a Group that know the same
// Ingresses have the same Sum.
func (c *Config) Sum() string {
	h := sha256.New()
	s := c.served()
	fmt.Fprintln(h, s.Process, s.Streams, s.Tables, s.Captures, s.Reads, s.Inspect)
	fmt.Fprintln(h, len(s.DefaultCert), c.DefaultBackend)
	if s.Standby {
		_, _ = io.WriteString(h, "standby\n")
	}
	for _, choice := range s.Choices {
		fmt.Fprintln(h, choice.Name) // derived from the cases
	}
	for _, l := range s.Listeners {
		fmt.Fprintln(h, l.At, l.Kind, l.ClientCA, l.Insecure)
	}
	for _, f := range s.Forms {
		fmt.Fprintln(h, f.Name) // derived from the rest
	}
	for _, name := range c.Hostnames {
		fmt.Fprintln(h, name.Scope, name.Host, name.Part, name.Streams)
	}
	for _, e := range s.Extras {
		fmt.Fprintf(h, "%s %d %s\n", e.Name, len(e.Content), e.Content)
	}
	for _, u := range s.Userlists {
		fmt.Fprintf(h, "%s %d\n", u.Name, len(u.Users))
		for _, user := range u.Users {
			fmt.Fprintln(h, user.Name, user.Hash)
		}
	}
	_, _ = h.Write(s.DefaultCert)
	for _, r := range c.Routes {
		_, _ = io.WriteString(h, r.Host+" "+r.Path+" "+string(r.Match)+" "+r.Backend+" "+r.Canary+" "+r.Choice+"\n")
		if r.TLSOnly || r.Canary != "" {
			fmt.Fprintln(h, r.TLSOnly, r.TLSCode, r.TLSPort, r.CanaryWeight)
		}
		if r.Plain {
			_, _ = io.WriteString(h, plainHTTP+"\n")
		}
		if r.Scope != "" {
			fmt.Fprintln(h, r.Scope, r.To, r.Pick) // a Pick's name is derived from its content
		}
	}
	for _, b := range c.Backends {
		_, _ = io.WriteString(h, b.Name+"\n")
		if b.TCP || b.Options != (ServerOptions{}) {
			fmt.Fprintln(h, b.TCP, b.Options)
		}
		for _, d := range b.Directives {
			_, _ = io.WriteString(h, d.text+"\n")
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}
