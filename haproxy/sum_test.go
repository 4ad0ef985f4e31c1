package haproxy

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"
)

// Each row changes a Config of its own.
func TestASumIsOfWhatAllMembersServe(t *testing.T) {
	config := func() *Config {
		return &Config{
			Shape: Shape{
				Choices: []*Choice{NewChoice([]Case{{If: Text{"", "{ path /a }"}, Backend: "a"}})},
				Extras:  []*Extra{{"ca", []byte("one")}},
			},
			Routes: []*Route{{Host: "a.test", Path: "/", Match: Prefix, Backend: "a"}},
			Backends: []*Backend{{
				Name:    "a",
				Servers: []Server{{Name: "s", Addr: netip.MustParseAddrPort("172.16.1.1:80")}},
			}},
			Certs: []*Cert{{Name: "a.pem", PEM: []byte("one")}},
		}
	}
	for what, row := range map[string]struct {
		change func(*Config)
		same   bool
	}{
		"nothing":            {func(*Config) {}, true},
		"a server":           {func(c *Config) { c.Backends[0].Servers[0].Drain = true }, true},
		"no server":          {func(c *Config) { c.Backends[0].Servers = nil }, true},
		"where it came from": {func(c *Config) { c.Backends[0].Origin = "x" }, true},
		"a certificate":      {func(c *Config) { c.Certs[0].PEM = []byte("two") }, true},
		"addresses": {func(c *Config) {
			c.Bind.HTTP = []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:80")}
		}, true},
		"room":           {func(c *Config) { c.Tune.MaxConn = 7 }, true},
		"the member":     {func(c *Config) { c.Group = &Group{Self: "gate-2"} }, true},
		"a drain":        {func(c *Config) { c.Leaving = true }, true},
		"a set":          {func(c *Config) { c.Standby = true }, false},
		"the period":     {func(c *Config) { c.Period = 7 }, true},
		"another path":   {func(c *Config) { c.Routes[0].Path = "/b" }, false},
		"another target": {func(c *Config) { c.Routes[0].Backend = "b" }, false},
		"a redirect":     {func(c *Config) { c.Routes[0].TLSOnly = true }, false},
		"a canary":       {func(c *Config) { c.Routes[0].Canary, c.Routes[0].CanaryWeight = "b", 5 }, false},
		"a route more": {
			func(c *Config) { c.Routes = append(c.Routes, &Route{Host: "b.test", Path: "/"}) },
			false,
		},
		"a backend more": {func(c *Config) { c.Backends = append(c.Backends, &Backend{Name: "b"}) }, false},
		"a directive": {func(c *Config) {
			c.Backends[0].Directives = []Directive{{text: "timeout server 1s"}}
		}, false},
		"a way to the servers":    {func(c *Config) { c.Backends[0].Options.TLS = true }, false},
		"a default backend":       {func(c *Config) { c.DefaultBackend = "a" }, false},
		"a stream":                {func(c *Config) { c.Streams = []Stream{{Port: 5432, Backend: "a"}} }, false},
		"a table":                 {func(c *Config) { c.Tables = []Table{{Name: "t"}} }, false},
		"a capture":               {func(c *Config) { c.Captures = []int{7} }, false},
		"a setting of a cluster":  {func(c *Config) { c.Process.StrictSNI = true }, false},
		"text of a cluster":       {func(c *Config) { c.Process.Texts = []Text{{"global", "x"}} }, false},
		"a choice":                {func(c *Config) { c.Choices = nil }, false},
		"an authority":            {func(c *Config) { c.Extras[0] = &Extra{"ca", []byte("two")} }, false},
		"a password":              {func(c *Config) { c.Userlists = []*Userlist{{"u", []User{{"a", "hash"}}}} }, false},
		"the default certificate": {func(c *Config) { c.DefaultCert = []byte("one") }, false},
		"passthrough":             {func(c *Config) { c.Inspect = true }, false},
		"variables":               {func(c *Config) { c.Reads = readsBase }, false},
		"a listener": {func(c *Config) {
			c.Listeners = []Listener{{At: netip.MustParseAddrPort("192.0.2.1:80"), Kind: ListenHTTP}}
		}, false},
		"a form":     {func(c *Config) { c.Forms = FormsOf([]*Pick{methodPick("GET")}) }, false},
		"a hostname": {func(c *Config) { c.Hostnames = []Hostname{{"192.0.2.1:443", "a.test", "a", false}} }, false},
		"a scope":    {func(c *Config) { c.Routes[0].Scope = "192.0.2.1:80" }, false},
		"shares":     {func(c *Config) { c.Routes[0].Scope, c.Routes[0].To = "192.0.2.1:80", To("b") }, false},
		"another pick": {func(c *Config) {
			c.Routes[0].Scope, c.Picks = "192.0.2.1:80", []*Pick{methodPick("GET")}
			c.Routes[0].Pick = c.Picks[0].Name
		}, false},
	} {
		was, is := config(), config()
		row.change(is)
		if got := was.Sum() == is.Sum(); got != row.same {
			t.Errorf("%s: the same sum is %t, want %t", what, got, row.same)
		}
		if got := is.Serves(was); got != row.same {
			t.Errorf("%s: Serves is %t, want %t", what, got, row.same)
		}
	}
	// A field that is new belongs into a row above.
	known := []string{
		"Bind", "Tune", "Process", "Streams", "Tables", "Captures", "Reads", "Choices", "Extras", "Userlists",
		"Listeners", "Forms", "DefaultCert", "Group", "Inspect", "Standby", "Leaving",
	}
	var fields []string
	for f := range reflect.TypeFor[Shape]().Fields() {
		fields = append(fields, f.Name)
	}
	if !slices.Equal(fields, known) {
		t.Errorf("Shape has the fields %q, and %q are tried", fields, known)
	}
}

// methodPick returns a Pick with one condition.
func methodPick(method string) *Pick {
	return NewPick([]PickCase{{When{Method: method}, To("a")}})
}
