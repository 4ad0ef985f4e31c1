package haproxy

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// A Listener is an address and port with Routes of its own: those with its Scope. HAProxy answers
// 404 to a request that none of them matches. No Route of another Scope matches there.
//
// A Listener may have the port of a Bind that is at a wildcard address. The kernel prefers the
// listener at the exact address. The machine has to have the address before HAProxy can listen
// there. HAProxy rejects its whole configuration if the address is missing, and Validate cannot
// know that. The caller therefore leaves out such a Listener.
type Listener struct {
	At    netip.AddrPort
	Kind  ListenerKind
	Owner Tenant // the namespace that brings it; its reloads count as those of the namespace
	// ClientCA names an Extra of Authorities. Clients have to show a certificate that one of these
	// authorities has signed. If it is Nobody, HAProxy accepts no client.
	ClientCA string
	// Insecure also accepts clients without a certificate, or with one that no authority of the
	// ClientCA has signed.
	Insecure bool
}

// ListenerKind is the protocol of a Listener.
type ListenerKind string

// The kinds of Listeners.
const (
	ListenHTTP  ListenerKind = "http"
	ListenHTTPS ListenerKind = "https"
	// ListenTLS reads the name in a TLS handshake. Its Routes are of Passthrough or Terminate.
	ListenTLS ListenerKind = "tls"
	// ListenTCP passes on connections. It has one Route, of Passthrough and without a host.
	ListenTCP ListenerKind = "tcp"
	// ListenMixed is ListenTLS and ListenHTTPS together. The Hostname of a name in a TLS handshake says
	// which of them takes the connection.
	ListenMixed ListenerKind = "mixed"
)

var listenerKinds = []ListenerKind{ListenHTTP, ListenHTTPS, ListenTLS, ListenTCP, ListenMixed}

// Requests reports whether a Listener has Routes for requests.
func (k ListenerKind) Requests() bool { return k != ListenTLS && k != ListenTCP }

// Connections reports whether a Listener has Routes for connections.
func (k ListenerKind) Connections() bool { return k == ListenTLS || k == ListenTCP || k == ListenMixed }

// is reports whether two kinds are equal.
func (k ListenerKind) is(o ListenerKind) bool { return k == o }

// inspects reports whether the name in a TLS handshake leads a connection to its Route.
func (k ListenerKind) inspects() bool { return k == ListenTLS || k == ListenMixed }

// secure reports whether TLS can end at a Listener.
func (k ListenerKind) secure() bool { return k == ListenHTTPS || k.inspects() }

// frontend returns the name of the frontend with the Listeners of a kind.
func (k ListenerKind) frontend() string { return "gateway-" + string(k) }

// ScopeOf returns the Scope of the Listener at an address: the Scope of its Routes, Certs and
// Hostnames.
func ScopeOf(at netip.AddrPort) string { return at.String() }

// scope returns the Scope of a Listener.
func (l Listener) scope() string { return ScopeOf(l.At) }

// file returns the Scope as a part of a file's name.
func (l Listener) file() string {
	return strings.NewReplacer("[", "", "]", "", ":", "-").Replace(l.scope())
}

// certLists returns the paths of the crt-lists that HAProxy loads.
func (s *Shape) certLists() (paths []string) {
	if len(s.Bind.HTTPS) > 0 || slices.ContainsFunc(s.Streams, func(o Stream) bool { return o.TLS }) {
		paths = append(paths, crtList)
	}
	for _, l := range s.scopesWithTLS() {
		paths = append(paths, l.crtList())
	}
	return paths
}

// listens reports whether there is a Listener of one of some kinds.
func (s *Shape) listens(kinds func(ListenerKind) bool) bool {
	return slices.ContainsFunc(s.Listeners, func(l Listener) bool { return kinds(l.Kind) })
}

// A Hostname says that a Listener serves a host, on behalf of a part of the Listener with settings of
// TLS of its own. HAProxy answers 421 to a request over TLS for a Hostname of another part than the
// name in the handshake.
type Hostname struct {
	Scope string
	Host  string // a name, "*.name" for any number of labels in front, or empty for all others
	Part  string
	// Streams says that only Routes of Passthrough and Terminate for the Host take its connections. With
	// ListenMixed, HAProxy ends the TLS of all other Hostnames, and takes requests.
	Streams bool
}

// compareListeners compares Listeners by where they listen.
func compareListeners(a, b Listener) int { return a.At.Compare(b.At) }

func compareHostnames(a, b Hostname) int {
	return cmp.Or(strings.Compare(a.Scope, b.Scope), strings.Compare(a.Host, b.Host))
}

func (l Listener) validate() error {
	switch ip := l.At.Addr(); {
	case !l.At.IsValid() || ip.IsUnspecified() || ip.Is4In6() || ip.Zone() != "" || l.At.Port() == 0:
		return fmt.Errorf("listener at %s: it needs the address of one interface, and a port from 1 to 65535", l.At)
	case !slices.Contains(listenerKinds, l.Kind):
		return fmt.Errorf("listener at %s: %q is not a kind; allowed are %q", l.At, l.Kind, listenerKinds)
	case l.ClientCA != "" && (!l.Kind.secure() || l.ClientCA != Nobody && !isName(l.ClientCA)):
		return fmt.Errorf("listener at %s: it is without TLS, or %q is not the name of a file", l.At, l.ClientCA)
	case l.Insecure && l.ClientCA == "":
		return fmt.Errorf("listener at %s: insecure needs authorities of clients", l.At)
	}
	return nil
}

// listen validates the Listeners, which are sorted by address and port.
func (s *Shape) listen() error {
	var errs []error
	for i, l := range s.Listeners {
		errs = append(errs, l.validate())
		if i > 0 && compareListeners(s.Listeners[i-1], l) >= 0 {
			errs = append(errs, fmt.Errorf("listener at %s comes after %s: the list must be sorted by address and "+
				"port, with each once", l.At, s.Listeners[i-1].At))
		}
		if slices.Contains(s.Bind.HTTP, l.At) || slices.Contains(s.Bind.HTTPS, l.At) ||
			slices.ContainsFunc(s.Streams, func(o Stream) bool {
				return o.Addr.IsValid() && netip.AddrPortFrom(o.Addr, o.Port) == l.At
			}) {
			errs = append(errs, fmt.Errorf("listener at %s: HTTP, HTTPS or a TCP port listens there, too", l.At))
		}
	}
	return errors.Join(errs...)
}

func (h Hostname) validate() error {
	if !isScope(h.Scope) || h.Host != "" && !isHost(h.Host) || !isName(h.Part) {
		return fmt.Errorf("host %q of part %q at %q: allowed are a lower-case DNS name, with or without a leading "+
			"\"*.\", a name, and an address with a port", h.Host, h.Part, h.Scope)
	}
	return nil
}

// isScope reports whether s is the Scope of a Listener.
func isScope(s string) bool {
	at, err := netip.ParseAddrPort(s)
	return err == nil && at.String() == s && at.Addr().Zone() == ""
}
