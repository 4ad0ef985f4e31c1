package status

import (
	"cmp"
	"math"
	"strconv"
	"strings"
	"time"

	"sallyport/haproxy"
)

// A NodeRow is a node in the table of nodes.
type NodeRow struct {
	*Node
	Why []string // the faults of the path over it, a sentence each
}

// NodeTable lists nodes.
var NodeTable = &Table[NodeRow]{
	Head: Head{
		Name: "nodes", Title: "Nodes", Empty: "none: no cluster has a node",
		Columns: []Column{
			{Name: "node"},
			{Name: "address", Kind: KindCode},
			{Name: "cluster", Kind: KindCluster},
			{Name: "routes"},
			{Name: "open servers"},
			{Name: "why", Kind: KindProse},
		},
	},
	Row: func(_ *Status, n NodeRow) []Cell {
		return []Cell{
			{Text: cmp.Or(n.Name, "no node"), Link: []string{"node", n.Cluster, n.Name}},
			text(n.Where(false)), text(n.Cluster), n.Routes(), n.Counts.Servers(), text(strings.Join(n.Why, "; ")),
		}
	},
}

// An IngressRow is an Ingress in the table of Ingresses.
type IngressRow struct {
	*Ingress
	Cert *haproxy.Cert // of its hosts, the one that expires first; nil without one
}

// IngressTable lists Ingresses.
var IngressTable = &Table[IngressRow]{
	Head: Head{
		Name: "ingresses", Title: "Ingresses", Empty: "none: no Ingress is served",
		Columns: []Column{
			{Name: "Ingress"},
			{Name: "cluster", Kind: KindCluster},
			{Name: "hosts", Kind: KindProse},
			{Name: "paths", Kind: KindNumber},
			{Name: "open servers"},
			{Name: "certificate expires"},
			{Name: "problems"},
		},
	},
	Row: func(s *Status, in IngressRow) []Cell {
		servers, expires, problems := in.Counts.Servers(), Cell{}, Cell{}
		servers.Level = in.Level()
		if in.Cert != nil {
			expires = expiry(s.Now, in.Cert)
		}
		if in.Problems > 0 {
			problems = Cell{Text: Counted(in.Problems, "problem"), Level: Doubt}
		}
		return []Cell{
			{
				Text: in.Ref.Namespace + "/" + in.Ref.Name,
				Link: []string{"ingress", in.Ref.Cluster, in.Ref.Namespace, in.Ref.Name},
			},
			text(in.Ref.Cluster), firstFew(in.Hosts), count(len(in.Routes)), servers, expires, problems,
		}
	},
}

// A BackendRow is a backend in the table of backends.
type BackendRow struct {
	Backend
	Rate *BackendRate // its load; nil without a sample
	Why  string       // why a server of it does not serve
}

// BackendTable lists backends.
var BackendTable = &Table[BackendRow]{
	Head: Head{
		Name: "backends", Title: "Backends", Empty: "none",
		Columns: []Column{
			{Name: "backend"},
			{Name: "of"},
			{Name: "open servers"},
			{Name: "failing", Kind: KindNumber},
			{Name: "draining", Kind: KindNumber},
			{Name: "requests/s", Kind: KindNumber},
			{Name: "errors/s", Kind: KindNumber},
			{Name: "connections", Kind: KindNumber},
			{Name: "why", Kind: KindProse},
		},
	},
	Row: func(_ *Status, b BackendRow) []Cell {
		servers := b.Counts.Servers()
		servers.Level = b.Level()
		var requests, errors, connections Cell
		if r := b.Rate; r != nil {
			requests, errors, connections = text(PerSecond(r.Requests)), text(PerSecond(r.Errors)), count(r.Connections)
			if r.Errors > 0 {
				errors.Level = Doubt
			}
		}
		return []Cell{
			{Text: b.Name, Link: []string{"backend", b.Name}},
			text(b.Origin()), servers,
			some(b.Counts.Failing), some(b.Counts.Draining), requests, errors, connections, text(b.Why),
		}
	},
}

// CertificateTable lists certificates.
var CertificateTable = &Table[*haproxy.Cert]{
	Head: Head{
		Name: "certificates", Title: "Certificates", Empty: "none",
		Columns: []Column{{Name: "certificate"}, {Name: "names", Kind: KindProse}, {Name: "expires"}},
	},
	Row: func(s *Status, c *haproxy.Cert) []Cell {
		return []Cell{text(strings.TrimSuffix(c.Name, ".pem")), firstFew(c.Hosts), expiry(s.Now, c)}
	},
}

// ChangeTable lists what changed.
var ChangeTable = &Table[Change]{
	Head: Head{
		Name: "changes", Title: "Recent changes", Empty: "none since the start of the process",
		Columns: []Column{
			{Name: "at", Kind: KindCode},
			{Name: "kind"},
			{Name: "what", Kind: KindProse},
			{Name: "took", Kind: KindNumber},
			{Name: "why", Kind: KindProse},
		},
	},
	Row: func(_ *Status, c Change) []Cell {
		what, took := text(c.What), Cell{}
		if c.Bad {
			what.Level = Doubt
		}
		if c.Took > 0 {
			took = text(c.Took.Round(100 * time.Microsecond).String())
		}
		return []Cell{{At: c.At}, text(c.Kind), what, took, text(c.Why)}
	},
}

// expiry returns a cell that says when a certificate expires.
func expiry(now time.Time, c *haproxy.Cert) Cell {
	day := " (" + c.Expires.UTC().Format(time.DateOnly) + ")"
	switch {
	case c.Expires.IsZero():
		return Cell{Text: "not known", Level: Doubt}
	case c.Expires.Before(now):
		return Cell{Text: "expired " + Lasting(now.Sub(c.Expires)) + " ago" + day, Level: Failed}
	case EndsSoon(now, c):
		return Cell{Text: "in " + Lasting(c.Expires.Sub(now)) + day, Level: Doubt}
	}
	return Cell{Text: "in " + Lasting(c.Expires.Sub(now)) + day, Level: Healthy}
}

// EndsSoon reports whether a certificate expires soon, has expired, or has no known end.
func EndsSoon(now time.Time, c *haproxy.Cert) bool { return c.Expires.Before(now.Add(ExpiresSoon)) }

// PerSecond returns a rate in words, with as many digits as matter.
func PerSecond(rate float64) string {
	if rate == 0 || rate >= 10 {
		return strconv.Itoa(int(math.Round(rate)))
	}
	return strconv.FormatFloat(rate, 'f', 1, 64)
}

// firstFew returns a cell that names the first few hosts, and says how many more there are.
func firstFew(hosts []string) Cell { return text(Few(hosts, 3)) }

// some returns a cell with a number unless it is zero, so that a column of zeros is left out.
func some(n int) Cell {
	if n == 0 {
		return Cell{}
	}
	return count(n)
}
