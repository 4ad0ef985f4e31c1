package haproxy

import (
	"bytes"
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Config describes everything that HAProxy is to do. It is a value that callers compare, print and
// render. The caller does not change anything that a Config points to after it has handed the
// Config over. The next Config has the same pointers to the Backends, Certs and Lists that have not
// changed, so that a Proxy can reuse their text. Render takes a Config that Validate accepts.
//
// Only a reload changes the Shape. Commands change the rest, with a few exceptions. A reload is
// also needed for a new backend without a place (class.go), and for a backend that changes in more
// than its servers. Commands cannot change a certificate that is fixed or larger than maxPayload.
type Config struct {
	Shape
	Routes         []*Route   // none changes once a Config has it
	DefaultBackend string     // takes the requests that no route matches; if it is empty, HAProxy answers them with 404
	Backends       []*Backend // sorted by Name
	Certs          []*Cert    // sorted by Name
	Lists          []*List    // sorted by Name; every List that a directive names
	Picks          []*Pick    // sorted by Name; every Pick that a Route names
	Hostnames      []Hostname // sorted by Scope and Host
	// Period is the number of a ticketPeriod, as PeriodOf returns it. It decides about the keys of
	// the TLS tickets of a Group.
	Period int

	// Reloads holds, by the name of a cluster, how many reloads each of its namespaces may cause at
	// once. The namespaces of a cluster without an entry have no bound.
	Reloads map[string]int

	// Former holds backends of the previous configuration that Backends lacks, sorted by Name (see
	// Proxy.Former). While a reload has to wait, routes still lead to them.
	Former []*Backend

	// Unused has the names of Backends to which no route leads, and which only wait for a reload that
	// removes them. Callers of Apply leave it empty: only Apply knows what waits.
	Unused map[string]bool
}

// Same reports whether o is the same configuration: its backends and
// certificates are the same pointers, and all else is equal.
func (c *Config) Same(o *Config) bool {
	return c.Shape.equal(&o.Shape) && sameRoutes(c.Routes, o.Routes) && c.DefaultBackend == o.DefaultBackend &&
		SameList(c.Backends, o.Backends) && SameList(c.Former, o.Former) && SameList(c.Certs, o.Certs) &&
		c.Period == o.Period && maps.Equal(c.Reloads, o.Reloads) && maps.Equal(c.Unused, o.Unused) &&
		slices.EqualFunc(c.Lists, o.Lists, (*List).same) && c.sameRows(o)
}

// sameRows reports whether o has the same Picks and Hostnames.
func (c *Config) sameRows(o *Config) bool {
	return slices.EqualFunc(c.Picks, o.Picks, func(a, b *Pick) bool { return a == b || a.Name == b.Name }) &&
		SameList(c.Hostnames, o.Hostnames)
}

// Shape is the part of a Config that only a reload changes.
type Shape struct {
	Bind      Bind
	Tune      Tune
	Process   Process
	Streams   []Stream    // sorted by Addr and Port
	Tables    []Table     // sorted by Name
	Captures  []int       // lengths in bytes, from 1 to 65535, of the slots into which Capture writes
	Reads     Variables   // that Texts of backends read, see Directive.Reads
	Choices   []*Choice   // sorted by Name
	Extras    []*Extra    // sorted by Name
	Userlists []*Userlist // sorted by Name
	Listeners []Listener  // sorted by At
	Forms     []*Form     // sorted by Name, at most MaxForms; those of the Picks
	// DefaultCert is a certificate with its key, as in Cert.PEM. HAProxy serves it for names that
	// have no certificate. If it is empty, HAProxy serves a self-signed certificate.
	DefaultCert []byte
	Group       *Group // nil if this HAProxy is alone

	// Inspect looks at the name in a TLS handshake before HAProxy answers it, which
	// Routes of Passthrough need. It costs every TLS connection a second hop
	// inside HAProxy.
	Inspect bool

	// Standby lets all servers that are a Backup take traffic together, once no other server of
	// their backend can. Without it HAProxy uses the first of them alone.
	Standby bool

	// Leaving closes each client's connection after its next response. An old worker does the same
	// after the reload. This ends a connection without an error before its packets go to other
	// appliances of the group, which do not know it. Responses no longer announce HTTP/3.
	Leaving bool
}

// differences returns a phrase for each difference between two shapes. The reason for a reload
// consists of these phrases. No other function lists the fields of a Shape.
func (s *Shape) differences(o *Shape) (all []string) {
	for _, part := range [...]struct {
		was, is any
		what    string
	}{
		{s.Bind, o.Bind, "listen addresses changed"},
		{s.Inspect, o.Inspect, "TLS passthrough begins or ends"},
		{s.Standby, o.Standby, "a set of clusters begins or ends"},
		{s.Leaving, o.Leaving, "the appliance leaves its group, or returns"},
		{s.Streams, o.Streams, "TCP ports changed"},
		{s.Group, o.Group, "the group of appliances changed"},
		{[]any{s.Tune, s.Process}, []any{o.Tune, o.Process}, "settings of the process changed"},
		{s.Tables, o.Tables, "limits changed"},
		{s.Userlists, o.Userlists, "users changed"},
		{s.Extras, o.Extras, "authorities, certificates for servers or keys of tokens changed"},
		{s.DefaultCert, o.DefaultCert, "the default certificate changed"},
		{s.Choices, o.Choices, "choices between backends changed"},
		{s.Captures, o.Captures, "captures changed"},
		{s.Reads, o.Reads, "variables for texts changed"},
		{s.Listeners, o.Listeners, "listeners of gateways changed"},
		{s.Forms, o.Forms, "conditions look at other parts of requests"},
	} {
		if !reflect.DeepEqual(part.was, part.is) {
			all = append(all, part.what)
		}
	}
	return all
}

func (s *Shape) equal(o *Shape) bool { return len(s.differences(o)) == 0 }

// listeners returns all addresses of TCP where HAProxy listens.
func (s *Shape) listeners() []netip.AddrPort {
	all := slices.Concat(s.Bind.HTTP, s.Bind.HTTPS)
	for _, stream := range s.Streams {
		all = append(all, stream.listeners(s.Bind)...)
	}
	for _, l := range s.Listeners {
		all = append(all, l.At)
	}
	if s.sharesTables() && s.Group != nil && s.Group.At.IsValid() {
		all = append(all, s.Group.At)
	}
	return all
}

// Bind holds the addresses where HAProxy listens. At an IPv6 address, including [::], HAProxy
// accepts only IPv6.
type Bind struct {
	HTTP  []netip.AddrPort
	HTTPS []netip.AddrPort
}

// addresses returns each address in the lists once, without its ports.
func addresses(of ...[]netip.AddrPort) (all []netip.Addr) {
	for _, a := range slices.Concat(of...) {
		if !slices.Contains(all, a.Addr()) {
			all = append(all, a.Addr())
		}
	}
	return all
}

// Tune holds the settings of an operator for the whole process. A zero value stands for HAProxy's
// default, or for ours.
type Tune struct {
	Threads int // nbthread; 0 lets HAProxy choose
	MaxConn int // maxconn of the process; if it is 0, RenderOptions.MaxConn applies
	// Base is the text of the sections global and defaults of the operator. Its lines come after
	// ours, so they override ours.
	Base string
}

// PathMatch says how HAProxy compares the path of a Route (Ingress pathType).
type PathMatch string

// The kinds of path match.
const (
	Prefix PathMatch = "prefix" // by path element: /api matches /api and /api/x, and not /apix
	Exact  PathMatch = "exact"
	Begin  PathMatch = "begin" // as a string: /api also matches /apix
	Regexp PathMatch = "regex" // as a regular expression, from the beginning of the path

	// Passthrough compares no path: TLS connections for the host go to a TCP backend as they are.
	// This needs Config.Inspect.
	Passthrough PathMatch = "passthrough"

	// Terminate compares no path: the TLS of connections for the host ends in HAProxy, and their
	// content goes to a TCP backend. This needs a Listener of ListenTLS.
	Terminate PathMatch = "terminate"
)

// A Route sends the requests for one host and path to a backend. Host is in lower case. It is a
// name, or "*.name" for exactly one more label in front, or empty for every host that no other
// Route names. Path begins with "/". HAProxy compares it byte for byte with the path that the
// client sent. If two Routes stand for exactly the same requests, the first one applies.
//
// Within a host an Exact Route comes first, then the Regexp Routes from the longest text to the
// shortest, then the other Routes from the longest path to the shortest. A request goes to the
// DefaultBackend if a Route names its host, and no Route of this host matches its path. It does not
// go to a Route for a wildcard that covers the host, or to a Route without a host.
//
// A Route of Passthrough has a host, and the path "/". If it is TLSOnly, HAProxy redirects plain
// HTTP for its host; otherwise it answers with 404. HAProxy answers 421 to a request for its host
// over the TLS connection of another host. A client then opens a connection for this host (RFC
// 9110, 15.5.20).
//
// A Route with a Scope is for the requests at that Listener alone. There "*.name" stands for any
// number of labels in front, and the longest name applies. Such a Route has To and Pick in place of
// Backend, Canary and Choice, and the DefaultBackend takes none of its requests. A Route of
// Passthrough or Terminate may have no host there.
type Route struct {
	Scope   string // ScopeOf a Listener; empty stands for Bind
	Host    string
	Path    string
	Match   PathMatch
	Backend string // or WWW; if it is empty, HAProxy answers with 404
	TLSOnly bool   // plain HTTP is redirected to HTTPS
	TLSCode int    // the status of the redirect, one of RedirectCodes; 0 stands for 302
	TLSPort uint16 // the port of the redirect; 0 stands for the first port of Bind.HTTPS
	Plain   bool   // plain HTTP is served even if all clients need a certificate (Process.ClientCA)

	Canary       string // the backend for a part of the requests
	CanaryWeight int    // how many of 100 requests go to Canary, by chance, from 0 to 100

	Choice string // the name of a Choice that overrides Backend and Canary

	To   Target // with a Scope
	Pick string // the name of a Pick that overrides To; with a Scope
}

// A Backend describes one port of a Service, and how HAProxy connects to it.
type Backend struct {
	Name       string
	Origin     string        // name of its object in messages, as "Service default/app port 80"
	Cluster    string        // cluster of its Service
	Set        string        // set of clusters that may add servers, if the Service is exported
	Namespace  string        // namespace of its Service; no pod of another namespace may be a server
	By         string        // namespace of the objects that bring it, if that is not Namespace
	Service    string        // a port of a Service, as "default/app:80"; the servers are its endpoints
	TCP        bool          // it takes TCP connections, not requests
	Directives []Directive   // in the order of the lines in haproxy.cfg
	Options    ServerOptions // options of every server
	Servers    []Server      // sorted by Name
	// Unready has how many endpoints of each cluster are no server, since they are not ready. It has only the
	// clusters that count them. HAProxy does not see it.
	Unready map[string]int
}

// ClusterOf returns the cluster of a server's pod.
func (b *Backend) ClusterOf(s *Server) string { return cmp.Or(s.Cluster, b.Cluster) }

// sticky reports whether clients get a cookie that leads them back to their
// server.
func (b *Backend) sticky() bool {
	return slices.ContainsFunc(b.Directives, func(d Directive) bool { return d.sticky })
}

// hashes reports whether a hash of the request chooses the server.
func (b *Backend) hashes() bool {
	return slices.ContainsFunc(b.Directives, func(d Directive) bool { return d.hashes })
}

// sameShape reports whether two backends are equal except for their servers. Only a reload changes
// the other parts.
func (b *Backend) sameShape(o *Backend) bool {
	return b == o || b.TCP == o.TCP && b.Options == o.Options && slices.Equal(b.Directives, o.Directives)
}

// serving returns a copy of a backend with other servers.
func (b *Backend) serving(servers []Server) *Backend {
	out := *b
	out.Servers = servers
	return &out
}

// A Stream is a TCP port, at one address or at every address of Bind. All its connections go to one
// TCP backend.
//
// At an address of its own a Stream may have a port that HTTP, HTTPS or another Stream has at a
// wildcard address. The kernel prefers the listener at the exact address. The machine has to have
// the address before HAProxy can listen there.
type Stream struct {
	Addr    netip.Addr // if it is not valid, the Stream is at every address of Bind
	Port    uint16
	Backend string
	TLS     bool // TLS ends here, with the certificates of the Config
	// Proxy demands the PROXY protocol from the clients in Process.ProxyFrom. If that is empty, it
	// demands the protocol from all clients.
	Proxy bool
}

// listeners returns the addresses where HAProxy listens for the Stream.
func (s Stream) listeners(b Bind) (all []netip.AddrPort) {
	if s.Addr.IsValid() {
		return []netip.AddrPort{netip.AddrPortFrom(s.Addr, s.Port)}
	}
	for _, a := range addresses(b.HTTP, b.HTTPS) {
		all = append(all, netip.AddrPortFrom(a, s.Port))
	}
	return all
}

// name returns the name of the frontend of the Stream.
func (s Stream) name() string {
	if s.Addr.IsValid() {
		return "tcp-" + s.Addr.String() + "-" + strconv.Itoa(int(s.Port))
	}
	return "tcp-" + strconv.Itoa(int(s.Port))
}

// compareStreams compares Streams by where they listen.
func compareStreams(a, b Stream) int {
	return netip.AddrPortFrom(a.Addr, a.Port).Compare(netip.AddrPortFrom(b.Addr, b.Port))
}

// ServerOptions describe how HAProxy connects to servers and checks them. The zero value stands for
// HTTP without TLS, and without checks.
type ServerOptions struct {
	Check         bool
	CheckInterval time.Duration // 0 stands for HAProxy's default of 2 s
	Slower        int           // factor for all times between checks; 0 stands for 1
	MaxConn       int           // most connections to one server; 0 if there is no limit
	TLS           bool          // without a CA, the server's certificate is not verified
	// CA is the name of an Extra of Authorities. One of these authorities has to have signed the
	// certificate of the server.
	CA  string
	Crt string // name of an Extra of ClientCertificate, which HAProxy shows to the server
	// Ciphers are those of TLS up to 1.2 (see CheckCiphers), and MinTLS and MaxTLS are of TLSVersions. Empty fields
	// stand for the defaults of OpenSSL.
	Ciphers, MinTLS, MaxTLS string
	// SNI is the name that TLS asks the server for: the name of a host, SNIOfClient or SNIOfHost.
	// If it is empty, TLS asks for no name.
	SNI string
	// VerifyHost is the name that the server's certificate must have. It needs a CA. HAProxy
	// verifies SNI instead if SNI is set, so VerifyHost must not be another name.
	VerifyHost string
	Proto      string // h1 or h2; empty stands for HTTP/1.1, or with TLS for the server's preference
	SendProxy  string // proxy, proxy-v1, proxy-v2, proxy-v2-ssl or proxy-v2-ssl-cn; empty turns it off
}

// Interval returns the time between two checks of a server that is up, before Slower.
func (o ServerOptions) Interval() time.Duration {
	return max(cmp.Or(o.CheckInterval, 2*time.Second), time.Millisecond)
}

// Values of ServerOptions.SNI for a name that depends on the request.
const (
	SNIOfClient = "sni"  // the name that the client's TLS asked for
	SNIOfHost   = "host" // the Host header of the request
)

// CheckServerName returns an error if no certificate of a server can have this name.
func CheckServerName(name string) error {
	if strings.HasPrefix(name, "*") || !isHost(name) {
		return fmt.Errorf("%s is not a lower-case DNS name", shown(name))
	}
	return nil
}

// A Server is one endpoint. Its name is made from its address (NameOf), so a server never changes its
// address.
type Server struct {
	Name    string
	Addr    netip.AddrPort
	Drain   bool   // terminating, but serving: it finishes its connections and gets no new ones
	Backup  bool   // it takes traffic only while no other server of the backend can
	Weight  int    // its part of the traffic beside that of the other servers, from 1 to MaxWeight; 0 stands for 1
	Cluster string // of its pod, if that is not the Backend's
	// Source is the address of the machine from which HAProxy connects to it. If it is zero, the kernel chooses.
	Source netip.Addr
	Pod    string // namespace/name, for people
	Node   string
}

// weight returns the weight that HAProxy gives the server.
func (s *Server) weight() int { return max(s.Weight, 1) }

// MaxWeight is the greatest weight of a server in HAProxy.
const MaxWeight = 256

// A Cert is a certificate chain with its key, and the server names for which HAProxy serves it.
type Cert struct {
	Name  string   // file name without directory, unique: "default_web-tls.pem"
	Hosts []string // SNI names, also as "*.name"; if it is empty, HAProxy takes the names in the certificate
	PEM   []byte   // certificate chain, then the key, which is a secret

	Expires time.Time // for people; zero if it is not known
	Owner   string    // the namespace that brings it, with its cluster; HAProxy does not see it

	// Except lists names that "*.name" in Hosts does not cover. HAProxy does not serve the
	// certificate for them.
	Except []string

	Scope string // ScopeOf the Listener that serves it; empty stands for Bind and the Streams

	// ClientCA names an Extra of Authorities. Clients have to show a certificate that one of these
	// authorities has signed. With ClientOptional, clients may also show no certificate. The name
	// of such a Cert begins with "_", because only a reload changes its authorities.
	ClientCA       string
	ClientOptional bool
	// ClientMatch is a regular expression for the subject of the certificate of a client, in the form of RFC 2253.
	// Requests of other clients for Hosts are answered 403. If it is empty, every subject is admitted.
	ClientMatch string
	// Ciphers are those of TLS up to 1.2 that clients may use (see CheckCiphers). If it is empty, the ciphers of Bind
	// apply. Only a reload changes them, so the name of a Cert with Ciphers begins with "_".
	Ciphers string
}

// filters returns the names in the form of a crt-list (HAProxy Configuration Manual,
// 5.1, crt-list).
func (c *Cert) filters() []string {
	all := slices.Clone(c.Hosts)
	for _, h := range c.Except {
		all = append(all, "!"+h)
	}
	return all
}

// An asking is a filter of a certificate that asks clients for certificates, with its ClientMatch.
type asking struct{ filter, match string }

// namesThatAsk returns the filters of the certificates that ask clients for certificates, in order. A ClientMatch of
// "*.name" does not concern hosts with a certificate of their own, so these are among its filters, with "!".
func (c *Config) namesThatAsk() (all []asking) {
	below := make(map[string][]string) // the ClientMatches of "*.name", by name
	for _, cert := range c.Certs {
		if cert.ClientCA == "" {
			continue
		}
		for _, filter := range cert.filters() {
			all = append(all, asking{filter, cert.ClientMatch})
		}
		for _, host := range cert.Hosts {
			if name, wild := strings.CutPrefix(host, "*."); wild && cert.ClientMatch != "" &&
				!slices.Contains(below[name], cert.ClientMatch) {
				below[name] = append(below[name], cert.ClientMatch)
			}
		}
	}
	if len(below) > 0 {
		all = append(all, c.sparedFrom(below)...)
	}
	slices.SortFunc(all, func(a, b asking) int {
		return cmp.Or(cmp.Compare(a.filter, b.filter), cmp.Compare(a.match, b.match))
	})
	return slices.Compact(all)
}

// sparedFrom returns a filter for each host with a certificate of its own, for each ClientMatch of the hosts one label
// below its domain.
func (c *Config) sparedFrom(below map[string][]string) (all []asking) {
	for _, cert := range c.Certs {
		if cert.Scope != "" {
			continue
		}
		for _, host := range cert.Hosts {
			first, domain, _ := strings.Cut(host, ".")
			if first == "*" {
				continue
			}
			for _, match := range below[domain] {
				all = append(all, asking{"!" + host, match})
			}
		}
	}
	return all
}

func (c *Cert) same(o *Cert) bool {
	return c == o || c.Name == o.Name && c.Scope == o.Scope && bytes.Equal(c.PEM, o.PEM) &&
		slices.Equal(c.filters(), o.filters()) && c.ClientCA == o.ClientCA && c.ClientOptional == o.ClientOptional &&
		c.ClientMatch == o.ClientMatch && c.Ciphers == o.Ciphers
}

// asksAs reports whether both certificates ask clients for certificates of the same authority,
// with the same subjects, under the same server names.
func (c *Cert) asksAs(o *Cert) bool {
	return c.ClientCA == o.ClientCA && c.ClientOptional == o.ClientOptional && c.ClientMatch == o.ClientMatch &&
		slices.Equal(c.filters(), o.filters())
}

// reloadedCerts returns the certificates that only a reload changes.
func (c *Config) reloadedCerts() (all []*Cert) {
	for _, cert := range c.Certs {
		if len(cert.PEM) > maxPayload || fixed(cert.Name) {
			all = append(all, cert)
		}
	}
	return all
}

// fixed reports whether only a reload changes a certificate of that name.
func fixed(name string) bool { return name[0] == '_' }

// String returns only the name, so that the key stays out of logs.
func (c Cert) String() string { return c.Name }

// LogValue returns only the name, for slog.
func (c Cert) LogValue() slog.Value { return slog.StringValue(c.Name) }

// ServerID names a server of the running HAProxy.
type ServerID struct {
	Backend, Server string
}

// BackendAt returns the index of a backend in a list that is sorted by name.
func BackendAt(sorted []*Backend, name string) (at int, found bool) {
	return slices.BinarySearchFunc(sorted, name, func(b *Backend, name string) int {
		return strings.Compare(b.Name, name)
	})
}

// States holds the state that each server should have: first for the backends of Config.Backends,
// then for those of Config.Former, in their order. The states of a backend are in the order of
// Backend.Servers. A server without an entry should be Absent. The caller does not change States,
// or the slices in it, after it has handed them over.
type States [][]State

// of returns the states of the servers of the backend at an index.
func (s States) of(i int) []State {
	if i < len(s) {
		return s[i]
	}
	return nil
}

// State is the kind of traffic that a server takes. A server in a greater State takes more traffic.
type State int

// The states of a server.
const (
	Absent State = iota // HAProxy does not know the server
	Closed              // in maintenance: it gets no new traffic
	Drain               // it finishes its connections, and gets no new ones
	Open                // it takes traffic
)
