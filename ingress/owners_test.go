package ingress

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// claiming returns the Ingress NAMESPACE/NAME for a host, created in a year.
func claiming(name string, year int, host string) string {
	namespace, short, _ := strings.Cut(name, "/")
	return of(namespace, ingress(short, year, "rules: ["+rule(host, path("/", "Prefix", "web"))+"]"))
}

// A history compiles one round after another. Owners go through JSON, as over a restart.
type history struct {
	t      *testing.T
	at     time.Time
	owners map[string]*Owners
	rules  []HostRule
	limits Limits
	after  time.Duration
	Result
}

func begin(t *testing.T) *history {
	return &history{
		t: t, at: time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC), owners: map[string]*Owners{},
		after: time.Hour,
	}
}

// round compiles the manifests of some clusters, a time after the round before.
func (h *history) round(later time.Duration, clusters ...string) {
	h.t.Helper()
	h.at = h.at.Add(later)
	var snaps []Snapshot
	for i, text := range clusters {
		s := snapshot(h.t, []string{"one", "two"}[i], of("shop", app("web"))+of("evil", app("web"))+text)
		s.At, s.Owners, s.Options.ReleaseAfter, s.Options.Hosts, s.Options.Limits = h.at, h.owners[s.Cluster], h.after,
			h.rules, h.limits
		snaps = append(snaps, s)
	}
	h.Result = Compile(snaps)
	if err := h.Config.Validate(); err != nil {
		h.t.Error(err)
	}
	for cluster, o := range h.Owners {
		text, err := json.Marshal(o)
		again := new(Owners)
		if err == nil {
			err = json.Unmarshal(text, again)
		}
		if err != nil || !again.Equal(o) {
			h.t.Fatalf("over a restart %+v becomes %+v: %v", o, again, err)
		}
		h.owners[cluster] = again
	}
}

// serves checks the routes of a host, as "BACKEND" or "404", with commas. With an empty text, it
// checks that the host has no route.
func (h *history) serves(host, want string) {
	h.t.Helper()
	var got []string
	for _, r := range h.Config.Routes {
		if r.Host == host {
			got = append(got, strings.TrimSuffix(strings.TrimPrefix(cmp.Or(r.Backend, "404"), "one__"), "_svc_web_http"))
		}
	}
	if strings.Join(got, ",") != want {
		h.t.Errorf("at %s %s is served by %q, want %q", h.at.Format(time.TimeOnly), host, got, want)
	}
}

// told checks the problem of an Ingress with a reason.
func (h *history) told(name, reason, want string) {
	h.t.Helper()
	for _, p := range h.Problems {
		if p.Namespace+"/"+p.Name == name && p.Reason == reason {
			if !strings.Contains(p.Why, want) {
				h.t.Errorf("%s is told %q, want %q", name, p.Why, want)
			}
			return
		}
	}
	h.t.Errorf("%s is not told %s: %+v", name, reason, h.Problems)
}

func TestAHostIsKeptForItsLastNamespace(t *testing.T) {
	victim, evil, other := claiming("shop/a", 2022, "a.test"), claiming("evil/b", 2020, "a.test"),
		claiming("shop/other", 2021, "other.test")
	t.Run("who waits does not get it when its owner replaces an object", func(t *testing.T) {
		h := begin(t)
		h.round(0, victim)
		h.round(time.Second, victim+evil)
		h.serves("a.test", "shop")
		h.round(time.Second, evil+other)
		h.serves("a.test", "")
		h.told("evil/b", "HostOwned",
			"it belonged to namespace shop until 2026-06-01T12:00:02Z, and is kept for it until 2026-06-01T13:01:00Z "+
				"(clusters[].ingress.releaseAfter)")
		h.told("shop/other", "HostKept",
			"a.test, which nothing of namespace shop names any more, is kept for it until 2026-06-01T13:01:00Z")
		want := []Kept{{
			Cluster: "one", Namespace: "shop", Host: "a.test",
			Until: time.Date(2026, 6, 1, 13, 1, 0, 0, time.UTC),
		}}
		if diff := gocmp.Diff(want, h.Kept(), gocmp.Comparer(func(a, b Kept) bool { return a == b })); diff != "" {
			t.Errorf("kept: want (-), got (+):\n%s", diff)
		}
		if _, why := h.ExplainRequest("A.test:80", "/"); !strings.Contains(why,
			"the host is kept for namespace shop of cluster one") {
			t.Errorf("a request for it is explained by %q", why)
		}
		h.round(time.Hour-time.Minute, evil+victim+other)
		h.serves("a.test", "shop")
		if len(h.Kept()) > 0 {
			t.Errorf("it is named, and kept: %v", h.Kept())
		}
	})
	t.Run("after an hour it is free", func(t *testing.T) {
		h := begin(t)
		h.round(0, victim)
		h.round(time.Second, evil)
		h.round(time.Hour, evil)
		h.serves("a.test", "")
		h.round(time.Minute, evil)
		h.serves("a.test", "evil")
		h.round(time.Second, evil+victim)
		h.serves("a.test", "evil")
	})
	t.Run("the hour begins again when it was named meanwhile", func(t *testing.T) {
		h := begin(t)
		h.round(0, victim)
		h.round(time.Second, evil)
		h.round(50*time.Minute, evil+victim)
		h.round(time.Second, evil)
		h.round(50*time.Minute, evil)
		h.serves("a.test", "")
	})
	t.Run("the operator frees it by a rule", func(t *testing.T) {
		h := begin(t)
		h.round(0, victim)
		h.rules = []HostRule{{Host: "a.test", Namespaces: []string{"evil"}}}
		h.round(time.Second, evil)
		h.serves("a.test", "evil")
	})
	t.Run("the operator wants nothing to be kept", func(t *testing.T) {
		h := begin(t)
		h.after = 0
		h.round(0, victim)
		h.round(time.Second, evil)
		h.serves("a.test", "evil")
	})
	t.Run("an earlier cluster overrides it, a later one does not", func(t *testing.T) {
		h := begin(t)
		h.round(0, victim, "")
		h.round(time.Second, "", evil)
		h.serves("a.test", "")
		h = begin(t)
		h.round(0, "", victim)
		h.round(time.Second, evil, "")
		h.serves("a.test", "evil")
		h.round(time.Second, "", victim)
		h.serves("a.test", "") // it was cluster one's last
	})
	t.Run("a wildcard and a default of others do not answer for it", func(t *testing.T) {
		for name, wide := range map[string]string{
			"wildcard": claiming("evil/w", 2020, "*.test"), "any host": claiming("evil/w", 2020, ""),
			"default": of("evil", ingress("w", 2020, fallback("web"))),
		} {
			h := begin(t)
			h.round(0, wide+victim)
			h.serves("a.test", "shop")
			h.round(time.Second, wide)
			t.Log(name)
			h.serves("a.test", "404")
		}
	})
	t.Run("its own wildcard does", func(t *testing.T) {
		h := begin(t)
		h.round(0, claiming("shop/w", 2020, "*.test")+victim)
		h.round(time.Second, claiming("shop/w", 2020, "*.test"))
		h.serves("a.test", "")
	})
}

func TestANamespaceKeepsNoMoreHostsThanItsLimit(t *testing.T) {
	h := begin(t)
	h.limits.Hosts = 5
	h.round(0, claiming("shop/a", 2020, "a.test"))
	for i := range 40 {
		h.round(time.Second, claiming("shop/a", 2020, "a.test")+claiming("evil/x", 2021, fmt.Sprintf("x%d.test", i))+
			claiming("evil/y", 2021, fmt.Sprintf("y%d.test", i)))
	}
	if got := len(h.Owners["one"].Namespaces); got != 6 {
		t.Errorf("%d hosts have an owner, want 6, of which 5 are evil's: %+v", got, h.Owners["one"])
	}
	if got := h.Kept(); len(got) != 3 || got[0].Host != "x37.test" {
		t.Errorf("kept are %v, want the last three", got)
	}
	h.round(time.Second, claiming("shop/b", 2022, "x5.test")+claiming("shop/c", 2022, "x39.test"))
	h.serves("x5.test", "shop")
	h.serves("x39.test", "")
}

// balanced compiles Services of type LoadBalancer, a time after the round before.
func (h *history) balanced(later time.Duration, services ...*corev1.Service) {
	h.t.Helper()
	h.at = h.at.Add(later)
	s := Snapshot{Cluster: "one", NoClasses: true, At: h.at, Owners: h.owners["one"]}
	s.Options.ReleaseAfter, s.Options.Limits = h.after, h.limits
	s.Options.Pools.Ranges = []AddressRange{poolOf("203.0.113.1-203.0.113.8")}
	s.Services = services
	h.Result = Compile([]Snapshot{s})
	text, err := json.Marshal(h.Owners["one"])
	again := new(Owners)
	if err == nil {
		err = json.Unmarshal(text, again)
	}
	if err != nil || !again.Equal(h.Owners["one"]) {
		h.t.Fatalf("over a restart %+v becomes %+v: %v", h.Owners["one"], again, err)
	}
	h.owners["one"] = again
}

// addresses returns the addresses of a Service.
func (h *history) addresses(name string) []netip.Addr {
	i := slices.IndexFunc(h.Balancers, func(b Balancer) bool { return b.Namespace+"/"+b.Name == name })
	return h.Balancers[i].Addresses
}

// has checks the addresses of a Service.
func (h *history) has(name, want string) {
	h.t.Helper()
	for _, b := range h.Balancers {
		if b.Namespace+"/"+b.Name == name {
			if got := fmt.Sprint(b.Addresses); got != want {
				h.t.Errorf("at %s %s has %s, want %s: %s", h.at.Format(time.TimeOnly), name, got, want, b.Why)
			}
		}
	}
}

func TestAnAddressIsKeptForItsLastNamespace(t *testing.T) {
	const at = "203.0.113.5"
	service := func(name, asks string, records ...string) *corev1.Service {
		return recordOf(balancerOf(name, func(s *corev1.Service) {
			s.Annotations = map[string]string{}
			if asks != "" {
				s.Annotations["sallyport.dev/address"] = asks
			}
		}), records...)
	}
	victim, evil, other := service("shop/db", "", at), service("evil/theirs", at),
		service("shop/other", "", "203.0.113.7")
	t.Run("who asks for it does not get it when its owner replaces the Service", func(t *testing.T) {
		h := begin(t)
		h.balanced(0, victim, other)
		h.has("shop/db", "[203.0.113.5]")
		h.balanced(time.Second, evil, victim, other)
		h.told("evil/theirs", "AddressInUse", "203.0.113.5 is in use by Service shop/db")
		h.balanced(time.Second, evil, other)
		h.has("evil/theirs", "[]")
		h.told("evil/theirs", "AddressInUse",
			"203.0.113.5 was an address of Service shop/db until 2026-06-01T12:00:02Z, and is kept for its namespace "+
				"until 2026-06-01T13:01:00Z (clusters[].ingress.releaseAfter)")
		h.told("shop/other", "AddressKept", "then it goes to Service evil/theirs, which asks for it")
		h.balanced(time.Minute, evil, service("shop/db", ""), other) // a new Service has no record
		h.has("shop/db", "[203.0.113.5]")
		h.has("evil/theirs", "[]")
	})
	for _, after := range []time.Duration{time.Hour, 0} {
		t.Run("a Service keeps what it was given, before its record is there, with releaseAfter "+after.String(),
			func(t *testing.T) {
				h := begin(t) // a quarter of eight are two
				h.after = after
				h.balanced(0, service("evil/c", ""), service("evil/d", ""))
				first := []string{fmt.Sprint(h.addresses("evil/c")), fmt.Sprint(h.addresses("evil/d"))}
				for range 2 { // the record may take longer than a round
					h.balanced(time.Second, service("evil/a", ""), service("evil/b", ""), service("evil/c", ""),
						service("evil/d", ""))
					h.has("evil/a", "[]")
					h.has("evil/b", "[]")
					h.has("evil/c", first[0])
					h.has("evil/d", first[1])
				}
			})
	}
	t.Run("with releaseAfter 0s it is free at once", func(t *testing.T) {
		h := begin(t)
		h.after = 0
		h.balanced(0, service("shop/db", at))
		h.balanced(time.Second, evil)
		h.has("evil/theirs", "[203.0.113.5]")
		if kept := h.Kept(); len(kept) > 0 {
			t.Errorf("kept are %v", kept)
		}
	})
	t.Run("after an hour it is free", func(t *testing.T) {
		h := begin(t)
		h.balanced(0, victim)
		h.balanced(time.Second, evil)
		h.balanced(time.Hour, evil)
		h.has("evil/theirs", "[]")
		h.balanced(time.Minute, evil)
		h.has("evil/theirs", "[203.0.113.5]")
	})
	t.Run("nobody gets it without asking for it", func(t *testing.T) {
		h := begin(t)
		h.limits.Addresses = 100
		h.balanced(0, victim)
		var many []*corev1.Service
		for i := range 8 {
			many = append(many, service(fmt.Sprintf("evil/many%d", i), ""))
		}
		h.balanced(time.Second, many...)
		for _, b := range h.Balancers {
			if slices.Contains(b.Addresses, netip.MustParseAddr(at)) {
				t.Errorf("%s has it", b.Name)
			}
		}
	})
	t.Run("the operator gives it away by a record", func(t *testing.T) {
		h := begin(t)
		h.balanced(0, victim)
		h.balanced(time.Second, service("evil/theirs", at, at))
		h.has("evil/theirs", "[203.0.113.5]")
	})
	t.Run("a namespace keeps no more addresses than it may have", func(t *testing.T) {
		h := begin(t)
		h.balanced(0, service("evil/x", ""))
		for i := range 8 {
			addr := fmt.Sprintf("203.0.113.%d", i+1)
			h.balanced(time.Second, service("evil/x", addr, addr))
			h.has("evil/x", "["+addr+"]")
		}
		if got := h.Kept(); len(got) != 1 || got[0].Address.String() != "203.0.113.7" {
			t.Errorf("kept are %v, want the last of them: a quarter of eight are two", got)
		}
	})
}
