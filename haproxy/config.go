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

// Config is everything HAProxy is to do, as a value: compare it, print it,
// render it, throw it away. Nothing that a Config points to changes after it was
// handed over, and whoever makes the next one reuses the pointers to Backends,
// Certs and Lists that stay the same: that lets a Proxy remember their text.
// Render takes what Validate accepts.
//
// Shape is what only a reload changes. Commands change the rest, with two
// exceptions: a backend that is new and finds no place (class.go), or changes in
// more than its servers, and a certificate that no command takes (see fixed and
// maxPayload).
type Config struct {
	Shape
	Routes         []Route
	DefaultBackend string     // takes the requests that no route takes; empty answers 404
	Backends       []*Backend // sorted by Name
	Certs          []*Cert    // sorted by Name
	Lists          []*List    // sorted by Name; all that directives name
	Period         int        // whose keys encrypt the TLS tickets of a Group: PeriodOf now

	// Reloads hold how many reloads each namespace of a cluster may cause at once, by the
	// name of the cluster; a cluster without an entry has no bound.
	Reloads map[string]int

	// Former are backends of the configuration before, none of them in Backends, sorted by
	// Name (see Proxy.Former). While a reload has to wait, routes still lead to them.
	Former []*Backend
}

// Same reports whether o is the same configuration: its backends and
// certificates are the same pointers, and all else is equal.
func (c *Config) Same(o *Config) bool {
	return c.Shape.equal(&o.Shape) && same(c.Routes, o.Routes) && c.DefaultBackend == o.DefaultBackend &&
		same(c.Backends, o.Backends) && same(c.Former, o.Former) && same(c.Certs, o.Certs) && c.Period == o.Period &&
		maps.Equal(c.Reloads, o.Reloads) && slices.EqualFunc(c.Lists, o.Lists, (*List).same)
}

// Shape is the part of a Config that only a reload changes.
type Shape struct {
	Bind        Bind
	Tune        Tune
	Process     Process
	Streams     []Stream    // sorted by Addr and Port
	Tables      []Table     // sorted by Name
	Captures    []int       // slots for what Capture notes: bytes of each, from 1 to 65535
	Choices     []*Choice   // sorted by Name
	Extras      []*Extra    // sorted by Name
	Userlists   []*Userlist // sorted by Name
	DefaultCert []byte      // as Cert.PEM, for names without one; empty: a self-signed one
	Group       *Group      // nil: this HAProxy is alone

	// Inspect looks at the name in a TLS handshake before HAProxy answers it, which
	// Routes of Passthrough need. It costs every TLS connection a second hop
	// inside HAProxy.
	Inspect bool

	// Leaving closes each client's connection after its next response. A worker from
	// before the reload does the same, and so the connections that other appliances of a
	// group do not know end well. Nobody is told of HTTP/3 any more.
	Leaving bool
}

// differences returns what differs between two shapes, in the words in which a
// reload gives its reason. It is the one list of a Shape's fields.
func (s *Shape) differences(o *Shape) (all []string) {
	for _, part := range [...]struct {
		was, is any
		what    string
	}{
		{s.Bind, o.Bind, "listen addresses changed"},
		{s.Inspect, o.Inspect, "TLS passthrough begins or ends"},
		{s.Leaving, o.Leaving, "the appliance leaves its group, or returns"},
		{s.Streams, o.Streams, "TCP ports changed"},
		{s.Group, o.Group, "the group of appliances changed"},
		{[]any{s.Tune, s.Process}, []any{o.Tune, o.Process}, "settings of the process changed"},
		{s.Tables, o.Tables, "limits changed"},
		{s.Userlists, o.Userlists, "users changed"},
		{s.Extras, o.Extras, "authorities or certificates for servers changed"},
		{s.DefaultCert, o.DefaultCert, "the default certificate changed"},
		{s.Choices, o.Choices, "choices between backends changed"},
		{s.Captures, o.Captures, "captures changed"},
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
	if s.sharesTables() && s.Group != nil && s.Group.At.IsValid() {
		all = append(all, s.Group.At)
	}
	return all
}

// Bind says where HAProxy listens. An IPv6 address, [::] too, takes IPv6 only.
type Bind struct {
	HTTP  []netip.AddrPort
	HTTPS []netip.AddrPort
}

// addresses returns the addresses of lists, without ports, once each.
func addresses(of ...[]netip.AddrPort) (all []netip.Addr) {
	for _, a := range slices.Concat(of...) {
		if !slices.Contains(all, a.Addr()) {
			all = append(all, a.Addr())
		}
	}
	return all
}

// Tune holds what an operator sets once for the whole process. Zero values
// stand for HAProxy's or our own default.
type Tune struct {
	Threads int    // nbthread; 0 lets HAProxy choose
	MaxConn int    // maxconn of the process; 0: as RenderOptions say
	Base    string // text of the operator's own global and defaults sections; its lines follow ours, so they win
}

// PathMatch says how HAProxy compares the path of a Route (Ingress pathType).
type PathMatch string

// The kinds of path match.
const (
	Prefix PathMatch = "prefix" // by path element: /api takes /api and /api/x, not /apix
	Exact  PathMatch = "exact"
	Begin  PathMatch = "begin" // as a string: /api takes /apix, too
	Regexp PathMatch = "regex" // as a regular expression, from the beginning of the path

	// Passthrough compares no path: TLS connections for the host go to the
	// backend, a TCP one, as they are. Without Config.Inspect none do.
	Passthrough PathMatch = "passthrough"
)

// A Route sends the requests for one host and path to a backend. Host is
// lower-case: a name, "*.name" for exactly one more label in front, or empty
// for every host no other Route names. Path begins with "/" and is compared
// byte for byte, as the client sent it. Of two Routes for the same requests
// the first one counts.
//
// Within a host an Exact Route goes first, then those by Regexp, the one with the
// longest text first, then the longest path. A request for a
// host that is known, with a path that is not, goes to the DefaultBackend: not to
// a wildcard that covers the host, not to a Route without a host.
//
// A Route of Passthrough has a host, and the path "/". Plain HTTP for it is
// redirected if it is TLSOnly, or answered with 404; a request that comes by the
// TLS connection of another host is answered with 421, on which a client opens
// one for this host (RFC 9110, 15.5.20).
type Route struct {
	Host    string
	Path    string
	Match   PathMatch
	Backend string // empty: known, and answered with 404
	TLSOnly bool   // plain HTTP is redirected to HTTPS
	TLSCode int    // with this status, one of RedirectCodes; 0 is 302
	TLSPort uint16 // at this port; 0 is the first HAProxy listens on

	Canary       string // backend that some of the requests go to instead
	CanaryWeight int    // how many of 100, by chance; 0 to 100

	Choice string // a Choice that goes before Backend and Canary; not with Regexp
}

// A Backend is one port of one Service, and how HAProxy speaks to it.
type Backend struct {
	Name       string
	Origin     string        // what it stands for, for people: "Service default/app port 80"
	Cluster    string        // of its Service
	Namespace  string        // of its Service; no pod of another namespace may be a server
	By         string        // namespace of the objects that bring it; empty: Namespace
	Service    string        // the port of the Service whose endpoints the servers are, as "default/app:80"
	TCP        bool          // it takes connections, not requests
	Directives []Directive   // in the order in which they are written
	Options    ServerOptions // of every server
	Servers    []Server      // sorted by Name
}

// sticky reports whether clients get a cookie that leads them back to their
// server.
func (b *Backend) sticky() bool {
	return slices.ContainsFunc(b.Directives, func(d Directive) bool { return d.sticky })
}

// hashes reports whether a hash of the request chooses the server.
func (b *Backend) hashes() bool {
	return slices.ContainsFunc(b.Directives, func(d Directive) bool { return d.hashes })
}

// sameShape reports whether two backends differ in their servers at most: what
// else there is, only a reload changes.
func (b *Backend) sameShape(o *Backend) bool {
	return b == o || b.TCP == o.TCP && b.Options == o.Options && slices.Equal(b.Directives, o.Directives)
}

// serving returns a copy of a backend with other servers.
func (b *Backend) serving(servers []Server) *Backend {
	out := *b
	out.Servers = servers
	return &out
}

// A Stream is a TCP port, at one address or at every address of Bind. All its connections
// go to one backend, a TCP one.
//
// At an address of its own a Stream may have a port that HTTP, HTTPS or another Stream have
// at a wildcard: the kernel prefers the listener of the address itself. The machine has to
// have the address before HAProxy can listen there.
type Stream struct {
	Addr    netip.Addr // zero: every address of Bind
	Port    uint16
	Backend string
	TLS     bool // it ends here, with the certificates of the Config
	Proxy   bool // clients begin with the PROXY protocol: those of Process.ProxyFrom, all if there are none
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

// ServerOptions say how HAProxy connects to servers and checks them. The zero value
// is HTTP in the clear, without checks.
type ServerOptions struct {
	Check         bool
	CheckInterval time.Duration // 0: HAProxy's 2 s
	Slower        int           // how many times as long all times between checks are; 0: as they are
	MaxConn       int           // connections to one server; 0: no limit
	TLS           bool          // its certificate is not verified, unless there is a CA
	CA            string        // an Extra of Authorities, one of which has to have signed the server's certificate
	Crt           string        // an Extra of ClientCertificate, which is shown to the server
	// name that TLS asks for: a host's, or what SNIOfClient and SNIOfHost stand for; empty: none
	SNI        string
	VerifyHost string // name that its certificate has to have, with a CA; not with another SNI, which counts for that
	Proto      string // h1, h2; empty: HTTP/1.1, or with TLS what the server prefers
	SendProxy  string // proxy, proxy-v1, proxy-v2, proxy-v2-ssl, proxy-v2-ssl-cn; empty: none
}

// Interval returns the time between two checks of a server that is up, before Slower.
func (o ServerOptions) Interval() time.Duration {
	return max(cmp.Or(o.CheckInterval, 2*time.Second), time.Millisecond)
}

// These stand in ServerOptions.SNI for a name that differs by request.
const (
	SNIOfClient = "sni"  // what the client's TLS asked for
	SNIOfHost   = "host" // the Host header of the request
)

// CheckServerName returns why a server's certificate cannot be for this name.
func CheckServerName(name string) error {
	if strings.HasPrefix(name, "*") || !isHost(name) {
		return fmt.Errorf("%s is not a lower-case DNS name", shown(name))
	}
	return nil
}

// A Server is one endpoint. Its name is made from its address (ServerName), so
// a server never changes its address: another address is another server.
type Server struct {
	Name  string
	Addr  netip.AddrPort
	Drain bool   // terminating but serving: finish what runs, take nothing new
	Pod   string // namespace/name, for people
	Node  string
}

// A Cert is a certificate chain with its key, and the names that HAProxy serves it
// for.
type Cert struct {
	Name  string   // file name without directory, unique: "default_web-tls.pem"
	Hosts []string // SNI names; "*.name" is allowed; none means the names in the certificate
	PEM   []byte   // certificate chain, then key: a secret

	Expires time.Time // for people; zero: not known
	Owner   string    // who brings it: the namespace, with its cluster; HAProxy does not see it

	// Except lists names that "*.name" in Hosts does not cover. HAProxy serves them as
	// if the certificate were not there.
	Except []string

	// ClientCA names an Extra of Authorities. Clients have to show a certificate that
	// one of them has signed, or may, with ClientOptional. The name of such a Cert
	// begins with "_", because only a reload changes its authorities.
	ClientCA       string
	ClientOptional bool
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

func (c *Cert) same(o *Cert) bool {
	return c == o || c.Name == o.Name && bytes.Equal(c.PEM, o.PEM) && slices.Equal(c.filters(), o.filters()) &&
		c.ClientCA == o.ClientCA && c.ClientOptional == o.ClientOptional
}

// asksAs reports whether clients need the same certificates under the same names.
func (c *Cert) asksAs(o *Cert) bool {
	return c.ClientCA == o.ClientCA && c.ClientOptional == o.ClientOptional && slices.Equal(c.filters(), o.filters())
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

// String returns the name alone: the key stays out of logs.
func (c Cert) String() string { return c.Name }

// LogValue returns the name alone, for slog.
func (c Cert) LogValue() slog.Value { return slog.StringValue(c.Name) }

// ServerID names a server of the running HAProxy.
type ServerID struct {
	Backend, Server string
}

// BackendAt returns the place of a backend among some that are sorted by name.
func BackendAt(sorted []*Backend, name string) (at int, found bool) {
	return slices.BinarySearchFunc(sorted, name, func(b *Backend, name string) int {
		return strings.Compare(b.Name, name)
	})
}

// States holds the state that each server should have: those of each backend in the
// order of Config.Backends, then of Config.Former, and within it in the order of
// Backend.Servers. A server without an entry should be Absent. Neither States nor what
// it points to changes after it was handed over.
type States [][]State

// of returns the states of the servers of the backend at an index.
func (s States) of(i int) []State {
	if i < len(s) {
		return s[i]
	}
	return nil
}

// State says which traffic a server takes. A greater State takes more.
type State int

// The states of a server.
const (
	Absent State = iota // HAProxy does not know it
	Closed              // in maintenance: nothing new reaches it
	Drain               // finishes what runs, takes nothing new
	Open                // takes traffic
)
