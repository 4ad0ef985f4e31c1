package ingress

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/haproxy"
	"sallyport/ingress/balance"
	"sallyport/ingress/input"
)

// balancerOf returns a Service of type LoadBalancer with the port 5432 and one pod.
func balancerOf(name string, change func(*corev1.Service)) *corev1.Service {
	class := input.LoadBalancerClass
	namespace, short, _ := strings.Cut(name, "/")
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: short, CreationTimestamp: metav1.Unix(1, 0)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: &class,
			Ports: []corev1.ServicePort{{Name: "db", Port: 5432, Protocol: corev1.ProtocolTCP}},
		},
	}
	if change != nil {
		change(s)
	}
	return s
}

func recordOf(s *corev1.Service, addrs ...string) *corev1.Service {
	for _, a := range addrs {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a})
	}
	return s
}

// tellBalancers returns the part of a Result that is about Services of type LoadBalancer.
func tellBalancers(r Result) string {
	var b strings.Builder
	for _, one := range r.Balancers {
		fmt.Fprintf(&b, "%s/%s %v recorded %v\n", one.Namespace, one.Name, one.Addresses, one.Recorded)
	}
	for _, s := range r.Config.Streams {
		fmt.Fprintf(&b, "%s -> %s\n", netip.AddrPortFrom(s.Addr, s.Port), s.Backend)
	}
	for _, be := range r.Config.Backends {
		for _, d := range be.Directives {
			fmt.Fprintf(&b, "%s: %s\n", be.Name, strings.ReplaceAll(d.String(), "\n", "; "))
		}
	}
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "%s %s/%s %s: %s\n", p.Kind, p.Namespace, p.Name, p.Reason, p.Why)
	}
	return b.String()
}

func TestServicesOfTypeLoadBalancerAreServed(t *testing.T) {
	const at = "203.0.113.5"
	recorded := func(change func(*corev1.Service)) *corev1.Service {
		return recordOf(balancerOf("shop/db", change), at)
	}
	const served = "shop/db [203.0.113.5] recorded [203.0.113.5]\n203.0.113.5:5432 -> shop_svc_db_db.lb\n"
	for name, row := range map[string]struct {
		service *corev1.Service
		options func(*Options)
		want    string
	}{
		"without a record nothing is open": {balancerOf("shop/db", nil), nil, "shop/db [203.0.113.5] recorded []\n"},
		"with its record it is":            {recorded(nil), nil, served},
		"an address of the machine": {
			recorded(nil), func(o *Options) { o.Pools.Local = true }, served,
		},
		"an address that the machine lacks": {
			recordOf(balancerOf("shop/db", nil), "203.0.113.6"), func(o *Options) {
				o.Pools = Pools{Ranges: []AddressRange{poolOf("203.0.113.5-203.0.113.6")}, Local: true}
			},
			"shop/db [203.0.113.6] recorded [203.0.113.6]\nService shop/db AddressNotUsable: 203.0.113.6 is not served: " +
				"the appliance does not have it any more; add it to an interface of that machine\n",
		},
		"a Service of another class": {
			recorded(func(s *corev1.Service) { *s.Spec.LoadBalancerClass = "other" }),
			nil, "",
		},
		"a Service without a class": {recorded(func(s *corev1.Service) { s.Spec.LoadBalancerClass = nil }), nil, ""},
		"a Service without a class, if that is configured": {
			recorded(func(s *corev1.Service) { s.Spec.LoadBalancerClass = nil }), func(o *Options) {
				o.Pools.Unclassed = true
			}, served,
		},
		"a Service of another type": {recorded(func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeNodePort
		}), nil, ""},
		"a namespace that is not served": {recorded(nil), func(o *Options) { o.NotNamespaces = []string{"shop"} }, ""},
		"a UDP port": {
			recorded(func(s *corev1.Service) {
				s.Spec.Ports = append(s.Spec.Ports,
					corev1.ServicePort{Name: "dns", Port: 5353, Protocol: corev1.ProtocolUDP})
			}), nil,
			served + `Service shop/db UnsupportedProtocol: port 5353 is not served: it is "UDP", and the appliance passes TCP connections on` + "\n",
		},
		"UDP alone": {
			recorded(func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolUDP }), nil,
			"shop/db [] recorded []\n" +
				"Service shop/db NoPort: the Service gets no address: it has no TCP port that can be served\n" +
				`Service shop/db UnsupportedProtocol: port 5432 is not served: it is "UDP", and the appliance passes TCP connections on` + "\n",
		},
		"ports of HTTP": {
			recorded(func(s *corev1.Service) {
				s.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "https", Port: 443}}
			}), nil,
			"shop/db [203.0.113.5] recorded [203.0.113.5]\n203.0.113.5:80 -> shop_svc_db_http.lb\n" +
				"203.0.113.5:443 -> shop_svc_db_https.lb\n",
		},
		"a port of the machine": {
			recorded(func(s *corev1.Service) { s.Spec.Ports[0].Port = 22 }), nil,
			"shop/db [] recorded []\n" +
				"Service shop/db NoPort: the Service gets no address: it has no TCP port that can be served\n" +
				"Service shop/db PortConflict: port 22 is not served: on the appliance it is in use by sshd\n",
		},
		"a port of another program": {
			recorded(func(s *corev1.Service) { s.Spec.Ports[0].Port = 9100 }), nil,
			"shop/db [203.0.113.5] recorded [203.0.113.5]\n" +
				"Service shop/db PortConflict: port 9100 is not served: on the appliance it is in use by " +
				"exporter (pid 1)\n",
		},
		"more ports than the limit": {
			recorded(func(s *corev1.Service) {
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "x", Port: 81})
			}),
			func(o *Options) { o.Limits.Ports = 1 },
			served + "Service shop/db LimitReached: port 81 is not served: the Services of namespace shop have 1 " +
				"ports, as many as they may have (clusters[].ingress.limits.ports)\n",
		},
		"some clients": {
			recorded(func(s *corev1.Service) {
				s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24", " 198.51.100.9/24"}
			}), nil,
			served + "shop_svc_db_db.lb: acl sp_source src 192.0.2.0/24 198.51.100.0/24; tcp-request content reject " +
				"if !sp_source\n",
		},
		"some clients, by the annotation": {
			recorded(func(s *corev1.Service) { s.Annotations = map[string]string{balance.SourceRanges: "192.0.2.0/24"} }), nil,
			served + "shop_svc_db_db.lb: acl sp_source src 192.0.2.0/24; tcp-request content reject if !sp_source\n",
		},
		"clients that cannot be read": {
			recorded(func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24", "office"} }),
			nil,
			served + "shop_svc_db_db.lb: tcp-request content reject\n" +
				`Service shop/db InvalidSourceRanges: spec.loadBalancerSourceRanges: "office" is neither an address nor a network; all clients are rejected until it is corrected` + "\n",
		},
		"an address outside the pools": {
			recorded(func(s *corev1.Service) { s.Spec.LoadBalancerIP = "192.0.2.1" }), nil,
			"shop/db [] recorded []\n" +
				"Service shop/db AddressOutsidePools: 192.0.2.1 is in none of the pools of the appliance " +
				"(group.pools)\n",
		},
		"a name that is none": {
			recorded(func(s *corev1.Service) { s.Name = "db\nuse_backend x" }), nil,
			"shop/db\nuse_backend x [] recorded []\nService shop/db\n" +
				"use_backend x InvalidName: the namespace or the name is none that Kubernetes allows; the Service " +
				"gets no address\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := Snapshot{Cluster: Unnamed, Objects: Objects{Services: []*corev1.Service{row.service}}}
			s.Options.Pools.Ranges = []AddressRange{poolOf(at + "-" + at)}
			if row.options != nil {
				row.options(&s.Options)
			}
			c := Compiler{
				Taken:    map[uint16]string{22: "sshd", 80: "HTTP", 443: "HTTPS"},
				Reserved: map[uint16]string{22: "sshd"}, Local: []netip.Addr{netip.MustParseAddr(at)},
			}
			verdicts := haproxy.Verdicts{}
			for _, port := range []uint16{80, 81, 443, 5432} {
				verdicts[haproxy.FreeListener(netip.AddrPortFrom(netip.MustParseAddr(at), port)).Part()] = haproxy.Good
			}
			verdicts[haproxy.FreeListener(netip.MustParseAddrPort(at+":9100")).Part()] = haproxy.Refused(
				"in use by exporter (pid 1)")
			c.Judge(verdicts)
			r := c.Compile([]Snapshot{s})
			if diff := cmp.Diff(row.want, tellBalancers(r)); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
			if err := r.Config.Validate(); err != nil {
				t.Errorf("haproxy refuses it: %v", err)
			}
		})
	}
}

func TestAServiceIsExplained(t *testing.T) {
	asks := func(s *corev1.Service) { s.Annotations = map[string]string{"sallyport.dev/address": "203.0.113.5"} }
	shares := func(s *corev1.Service) {
		s.Annotations = map[string]string{"sallyport.dev/share-address": "databases"}
	}
	for name, row := range map[string]struct {
		service *corev1.Service
		want    string
	}{
		"by its name": {
			balancerOf("shop/db", nil),
			"derived from the names of cluster, namespace and Service, and not in status.loadBalancer yet: its ports " +
				"are closed until then; []",
		},
		"recorded": {
			recordOf(balancerOf("shop/db", nil), "203.0.113.5"),
			"derived from the names of cluster, namespace and Service, and recorded in status.loadBalancer, which it " +
				"keeps; [shop_svc_db_db.lb]",
		},
		"asked for": {
			balancerOf("shop/db", asks),
			"the Service asks for it (sallyport.dev/address or spec.loadBalancerIP), and not in status.loadBalancer " +
				"yet: its ports are closed until then; []",
		},
		"shared": {
			recordOf(balancerOf("shop/db", shares), "203.0.113.5"),
			"derived from the value of sallyport.dev/share-address, which each of its Services has, and recorded in " +
				"status.loadBalancer, which it keeps; [shop_svc_db_db.lb]",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := Snapshot{Cluster: Unnamed, Objects: Objects{Services: []*corev1.Service{row.service}}}
			s.Options.Pools.Ranges = []AddressRange{poolOf("203.0.113.5-203.0.113.5")}
			c := Compiler{}
			c.Judge(haproxy.Verdicts{
				haproxy.FreeListener(netip.MustParseAddrPort("203.0.113.5:5432")).Part(): haproxy.Good,
			})
			r := c.Compile([]Snapshot{s})
			b, e, ok := r.ExplainBalancer(Unnamed, "shop", "db")
			if !ok || e.Ingress.Kind != "Service" {
				t.Fatalf("got %+v, %t", e, ok)
			}
			var backends []string
			for _, x := range e.Backends {
				backends = append(backends, x.Name)
			}
			if got := fmt.Sprintf("%s; %v", strings.Join(b.Reasons, ", "), backends); got != row.want {
				t.Errorf("\ngot  %s\nwant %s", got, row.want)
			}
			if _, _, ok := r.ExplainBalancer(Unnamed, "shop", "other"); ok {
				t.Error("a Service that does not exist is explained")
			}
		})
	}
}

// TestAnUnknownClusterKeepsItsAddresses has one of two clusters come later: until then only
// records count.
func TestAnUnknownClusterKeepsItsAddresses(t *testing.T) {
	pools := Pools{Ranges: []AddressRange{poolOf("203.0.113.5-203.0.113.6")}}
	east := Snapshot{Cluster: "east", Options: Options{Pools: pools}, Objects: Objects{Services: []*corev1.Service{
		balancerOf("shop/new", nil), recordOf(balancerOf("shop/old", nil), "203.0.113.5"),
	}}}
	west := Snapshot{
		Cluster: "west", Options: Options{Pools: pools},
		Objects: Objects{Services: []*corev1.Service{recordOf(balancerOf("shop/db", nil), "203.0.113.6")}},
	}
	c := Compiler{Unknown: []Snapshot{{Cluster: "west", Options: west.Options}}}
	if got, want := tellBalancers(c.Compile([]Snapshot{east})),
		"shop/new [] recorded []\nshop/old [203.0.113.5] recorded [203.0.113.5]\n"; got != want {
		t.Errorf("west is unknown: got %q, want %q", got, want)
	}
	c.Unknown = nil
	want := "shop/new [] recorded []\nshop/old [203.0.113.5] recorded [203.0.113.5]\n" +
		"shop/db [203.0.113.6] recorded [203.0.113.6]\n" +
		"Service shop/new NoAddressLeft: all 2 IPv4 addresses of the pools are in use (group.pools)\n"
	if got := tellBalancers(c.Compile([]Snapshot{east, west})); got != want {
		t.Errorf("west is known: got %q, want %q", got, want)
	}
}

// TestAGatewayWithoutPoolsSaysWhichKeyIsMissing has a single appliance, and a member of a group.
func TestAGatewayWithoutPoolsSaysWhichKeyIsMissing(t *testing.T) {
	for key, local := range map[string]bool{"haproxy.addresses": true, "group.pools": false} {
		r := compileGates(t, new(Compiler), gateOf("{name: http, port: 80, protocol: HTTP}"), func(s *Snapshot) {
			s.Options.Pools = Pools{Local: local}
		})
		if got := tellGates(r); !strings.Contains(got, "AddressNotAssigned") || !strings.Contains(got, key) {
			t.Errorf("want %s in\n%s", key, got)
		}
	}
}

func TestTheBalancersThatASetExportsShareTheirAddress(t *testing.T) {
	const at, other = "203.0.113.5", "203.0.113.6"
	export := &input.ServiceExport{}
	export.Namespace, export.Name = "shop", "db"
	site := func(name, set string, exports bool, services ...*corev1.Service) Snapshot {
		s := Snapshot{Cluster: name, Objects: Objects{Services: services}}
		s.Options.InSet.Name, s.Options.Pools.Ranges = set, []AddressRange{poolOf("203.0.113.5-203.0.113.6")}
		s.Options.Limits.Addresses = 2
		if exports {
			s.Exports = []*input.ServiceExport{export}
		}
		return s
	}
	db := func(records ...string) *corev1.Service { return recordOf(balancerOf("shop/db", nil), records...) }
	strict := recordOf(balancerOf("shop/db", func(s *corev1.Service) {
		s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"}
	}), at)
	const open = "203.0.113.5:5432 -> blue__shop_svc_db_db.lb\n"
	for name, tt := range map[string]struct {
		sites []Snapshot
		want  string
	}{
		"both have it in their status": {
			[]Snapshot{site("blue", "both", true, db(at)), site("green", "both", true, db(at))},
			"shop/db [203.0.113.5] recorded [203.0.113.5]\nshop/db [203.0.113.5] recorded [203.0.113.5]\n" + open,
		},
		"the first one has it": {
			[]Snapshot{site("blue", "both", true, db(at)), site("green", "both", true, db())},
			"shop/db [203.0.113.5] recorded [203.0.113.5]\nshop/db [203.0.113.5] recorded []\n" + open,
		},
		"a cluster comes first that has none": {
			[]Snapshot{site("blue", "both", true, db()), site("green", "both", true, db(at))},
			"shop/db [203.0.113.5] recorded [203.0.113.5]\nshop/db [203.0.113.5] recorded [203.0.113.5]\n" + open,
		},
		"the second one had another": {
			[]Snapshot{site("blue", "both", true, db(at)), site("green", "both", true, db(other))},
			"shop/db [203.0.113.5] recorded [203.0.113.5]\nshop/db [203.0.113.5] recorded []\n" + open,
		},
		"the first one is gone": {
			[]Snapshot{site("green", "both", true, db(at))},
			"shop/db [203.0.113.5] recorded [203.0.113.5]\n203.0.113.5:5432 -> green__shop_svc_db_db.lb\n",
		},
		"one does not export it": {
			[]Snapshot{site("blue", "both", true, db(at)), site("green", "both", false, db(other))},
			"shop/db [203.0.113.5] recorded [203.0.113.5]\nshop/db [203.0.113.6] recorded [203.0.113.6]\n" + open +
				"203.0.113.6:5432 -> green__shop_svc_db_db.lb\n",
		},
		"they are in two sets": {
			[]Snapshot{site("blue", "one", true, db(at)), site("green", "two", true, db(other))},
			"shop/db [203.0.113.5] recorded [203.0.113.5]\nshop/db [203.0.113.6] recorded [203.0.113.6]\n" + open +
				"203.0.113.6:5432 -> green__shop_svc_db_db.lb\n",
		},
		"they differ": {
			[]Snapshot{site("blue", "both", true, db(at)), site("green", "both", true, strict)},
			"shop/db [203.0.113.5] recorded [203.0.113.5]\nshop/db [203.0.113.5] recorded [203.0.113.5]\n" + open +
				"Service shop/db TwinDiffers: its address is served as the Service of cluster blue says, which comes first " +
				"in the configuration file and is exported, too; these differ here: spec.loadBalancerSourceRanges\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, verdicts := Compiler{}, haproxy.Verdicts{}
			for _, a := range []string{at, other} {
				verdicts[haproxy.FreeListener(netip.MustParseAddrPort(a+":5432")).Part()] = haproxy.Good
			}
			c.Judge(verdicts)
			if diff := cmp.Diff(tt.want, tellBalancers(c.Compile(tt.sites))); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}
