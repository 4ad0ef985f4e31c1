package config_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/labels"

	"sallyport/appliance/config"
)

// minimal is the shortest valid configuration.
const minimal = "clusters:\n- kubeconfig: /etc/sallyport/kubeconfig\n"

func addrs(all ...string) []netip.Addr {
	var list []netip.Addr
	for _, s := range all {
		list = append(list, netip.MustParseAddr(s))
	}
	return list
}

func ports(all ...string) []netip.AddrPort {
	var list []netip.AddrPort
	for _, s := range all {
		list = append(list, netip.MustParseAddrPort(s))
	}
	return list
}

func defaults() *config.Config {
	return &config.Config{
		Clusters: []config.Cluster{{
			Name:       "default",
			Kubeconfig: config.Kubeconfig{Path: "/etc/sallyport/kubeconfig"},
			Share:      config.ShareExported, State: config.Serving,
			BGP: config.Peering{ASN: 65000, Mode: config.Active, PrefixLimit: 1000, Port: 179},
			Ingress: config.Ingress{
				Class: "haproxy", Controller: "haproxy.org/ingress-controller", Nginx: config.Nginx{Controllers: []string{"k8s.io/ingress-nginx"}},
				Trust:   config.TrustNamespace,
				Process: true, ReleaseAfter: time.Hour,
				Limits: config.Limits{
					Hosts: 5000, Paths: 20000, RegularExpressions: 200, Conditions: 200, Backends: 5000, Servers: 10000,
					Certificates: 2000, Secrets: 3000, Reloads: 5, Routing: 10, Ports: 256,
					Clients: 1 << 20, Checks: 2500, WrongPasswords: 10, ConfigBytes: 4 << 20, Lines: 100,
					ListEntries: 2000, CaptureBytes: 4096, SecretBytes: 256 << 10, ObjectBytes: 64 << 20,
					SliceBytes: 16 << 20, PictureBytes: 64 << 20,
				},
			},
			Gateway: config.Gateway{Controller: "sallyport.dev/gateway"},
			Calico:  config.Calico{APIGroup: config.AutoGroup},
		}},
		BGP: config.BGP{
			ASN: 65000, Listen: addrs("0.0.0.0", "::"), Port: 179,
			HoldTime: 9 * time.Second, Retain: 2 * time.Minute, FailStatic: 10 * time.Minute,
		},
		Routes: config.Routes{Protocol: 78, Table: 254, Metric: 50},
		HAProxy: config.HAProxy{
			Mode: config.Managed, Binary: "/usr/sbin/haproxy", HTTP: ports("0.0.0.0:80", "[::]:80"),
			HTTPS: ports("0.0.0.0:443", "[::]:443"),
			Dir:   "/var/lib/sallyport/haproxy", RunDir: "/run/sallyport", MinReloadInterval: time.Second,
			ReservedPorts: []uint16{22, 53, 68, 546},
		},
		Status:   config.Status{Listen: netip.MustParseAddrPort("127.0.0.1:9090")},
		StateDir: "/var/lib/sallyport",
		Log:      config.Log{Level: slog.LevelInfo, Format: config.Text},
		Group: config.Group{
			Port: 7477, Share: true, SecondChance: true, SecondChanceLimit: 20000,
			Drain: config.Drain{Timeout: time.Minute},
			Upstream: config.Upstream{
				BFD:        config.BFD{Interval: 250 * time.Millisecond, Multiplier: 3},
				AfterCrash: time.Minute,
			},
			VRRP: config.VRRP{ID: 50, Interval: 300 * time.Millisecond},
		},
		System: config.System{
			Console: true, Volumes: "any", DHCP: config.DHCP{UseDNS: true, UseNTP: true, UseRA: true},
			Update: config.Update{Schedule: "04:00", Stagger: 12 * time.Hour, Kexec: true},
		},
	}
}

var secrets = cmp.Comparer(func(a, b config.Secret) bool { return a.Reveal() == b.Reveal() })

var values = cmp.Options{
	secrets,
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	cmp.Comparer(func(a, b config.Address) bool { return a == b }),
	cmpopts.IgnoreUnexported(config.Config{}),
}

func TestEverythingHasADefaultButTheCredentials(t *testing.T) {
	got, err := config.Parse("sallyport.yaml", []byte(minimal))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(defaults(), got, values); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
}

func TestKeysSetTheirFields(t *testing.T) {
	for name, row := range map[string]struct {
		yaml string
		want func(*config.Config)
	}{
		"numbers, times and words": {
			"bgp: {asn: 64999, holdTime: 30s, retain: 0s, failStatic: 1h}\n" +
				"routes: {protocol: 79, table: 100, metric: 7}\nlog: {level: debug, format: json}\n",
			func(c *config.Config) {
				c.BGP.ASN, c.Clusters[0].BGP.ASN = 64999, 64999
				c.BGP.HoldTime, c.BGP.Retain, c.BGP.FailStatic = 30*time.Second, 0, time.Hour
				c.Routes = config.Routes{Protocol: 79, Table: 100, Metric: 7}
				c.Log = config.Log{Level: slog.LevelDebug, Format: config.JSON}
			},
		},
		"a list replaces its default": {
			"bgp: {listen: [192.168.50.21], routerID: 10.0.0.1}\nhaproxy:\n" +
				"  http: [127.0.0.1:8080, \"[fd00::1]:8080\"]\n  https: []\n",
			func(c *config.Config) {
				c.BGP.Listen, c.BGP.RouterID = addrs("192.168.50.21"), netip.MustParseAddr("10.0.0.1")
				c.HAProxy.HTTP, c.HAProxy.HTTPS = ports("127.0.0.1:8080", "[fd00::1]:8080"), nil
			},
		},
		"a group with nothing in it keeps its defaults": {
			"bgp:\nroutes: {}\nhaproxy: null\nlog: {level: }\n", func(*config.Config) {},
		},
		"an external HAProxy": {
			"haproxy: {mode: external, masterSocket: /run/haproxy/master.sock, user: haproxy, group: \"99\"}",
			func(c *config.Config) {
				c.HAProxy.Mode, c.HAProxy.MasterSocket = config.External, "/run/haproxy/master.sock"
				c.HAProxy.User, c.HAProxy.Group = "haproxy", "99"
			},
		},
		"an anchor names a value": {
			"bgp: {asn: &as 64999}", func(c *config.Config) { c.BGP.ASN, c.Clusters[0].BGP.ASN = 64999, 64999 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := config.Parse("sallyport.yaml", []byte(minimal+row.yaml))
			if err != nil {
				t.Fatal(err)
			}
			want := defaults()
			row.want(want)
			if diff := cmp.Diff(want, got, values, cmp.Transformer("empty", func(l []netip.AddrPort) []netip.AddrPort {
				return append([]netip.AddrPort{}, l...)
			})); diff != "" {
				t.Errorf("want -, got +:\n%s", diff)
			}
		})
	}
}

func TestClusterKeysSetTheirFields(t *testing.T) {
	got, err := config.Parse("sallyport.yaml", []byte(`
clusters:
- name: demo
  kubeconfig: /a
  pools: [172.16.0.0/16, "fd00:10::/48"]
  bgp: {asn: 64512, mode: passive, password: 007, ttlSecurity: true, prefixLimit: 10, routeReflectors: [192.168.50.9], port: 1790}
  ingress: {class: own, controller: example.org/own, watchWithoutClass: true, publish: [192.168.50.21, "fd00::21"],
    configMap: ops/keys, errorFiles: ops/errors, patternFiles: ops/lists, tcpServices: ops/tcp, crossNamespaceSecrets: true, trust: cluster, noSnippets: [global], hosts: [{host: "*.a.test", namespaces: [shop, "*"]}, {host: "*"}], namespaces: [a, b], notNamespaces: [kube-system],
    namespaceSelector: "team=web,!old", authServices: [ops/door], hostNetwork: true, process: true, snippets: true, releaseAfter: 30m,
    nginx: {classes: [web, inner], controllers: [example.org/nginx], without: [auth-snippet]},
    limits: {hosts: 1, paths: 2, regularExpressions: 3, conditions: 4, backends: 5, servers: 10, certificates: 6, secrets: 13, reloads: 13, routing: 16, addresses: 11, ports: 12, clients: 1013, checks: 14, wrongPasswords: 15, configBytes: 65537, lines: 7, listEntries: 8, captureBytes: 1016, secretBytes: 9000, objectBytes: 75000, sliceBytes: 70000, pictureBytes: 80000}}
  gateway: {enabled: true, controller: example.org/own}
  calico: {apiGroup: projectcalico.org/v3}
- name: two
  kubeconfig: /b
  pools: [172.17.0.0/16]
`))
	if err != nil {
		t.Fatal(err)
	}
	want := config.Cluster{
		Name: "demo", Kubeconfig: config.Kubeconfig{Path: "/a"},
		Pools: []netip.Prefix{netip.MustParsePrefix("172.16.0.0/16"), netip.MustParsePrefix("fd00:10::/48")},
		Share: config.ShareExported,
		State: config.Serving,
		BGP: config.Peering{
			ASN: 64512, Mode: config.Passive, Password: config.NewSecret("007"), TTLSecurity: true, PrefixLimit: 10,
			RouteReflectors: addrs("192.168.50.9"), Port: 1790,
		},
		Ingress: config.Ingress{
			Class: "own", Controller: "example.org/own", WatchWithoutClass: true,
			Publish:   addrs("192.168.50.21", "fd00::21"),
			ConfigMap: "ops/keys", ErrorFiles: "ops/errors", PatternFiles: "ops/lists", TCPServices: "ops/tcp",
			CrossNamespaceSecrets: true, Trust: config.TrustCluster, NoSnippets: []string{"global"},
			Hosts:      []config.Host{{Host: "*.a.test", Namespaces: []string{"shop", "*"}}, {Host: "*"}},
			Namespaces: []string{"a", "b"}, NotNamespaces: []string{"kube-system"}, NamespaceSelector: "team=web,!old",
			AuthServices: []string{"ops/door"}, HostNetwork: true, Process: true, Snippets: true,
			ReleaseAfter: 30 * time.Minute,
			Nginx: config.Nginx{
				Classes: []string{"web", "inner"}, Controllers: []string{"example.org/nginx"},
				Without: []string{"auth-snippet"},
			},
			Limits: config.Limits{
				Hosts: 1, Paths: 2, RegularExpressions: 3, Conditions: 4, Backends: 5,
				Servers: 10, Certificates: 6, Secrets: 13, Reloads: 13, Routing: 16, Addresses: 11, Ports: 12, Clients: 1013,
				Checks: 14, WrongPasswords: 15, ConfigBytes: 65537, Lines: 7, ListEntries: 8, CaptureBytes: 1016,
				SecretBytes: 9000, ObjectBytes: 75000, SliceBytes: 70000, PictureBytes: 80000,
			},
		},
		Gateway: config.Gateway{Enabled: new(true), Controller: "example.org/own"},
		Calico:  config.Calico{APIGroup: config.APIv3},
	}
	if diff := cmp.Diff(want, got.Clusters[0], values); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
	if got, want := got.Clusters[1].Name, "two"; got != want {
		t.Errorf("second cluster: got %q, want %q", got, want)
	}
}

func TestGatewaysAreServedUnlessTheFileForbidsIt(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "sallyport.yaml")
	if err := os.WriteFile(filepath.Join(dir, "kubeconfig"), []byte("apiVersion: v1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	load := func(value string) (*config.Config, error) {
		text := "clusters:\n- kubeconfig: kubeconfig\n  gateway: {enabled: " + value + "}\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return config.Load(path)
	}
	for value, want := range map[string]struct{ looks, asked bool }{
		"": {looks: true}, "null": {looks: true}, "true": {looks: true, asked: true}, "false": {},
	} {
		c, err := load(value)
		if err != nil {
			t.Fatal(err)
		}
		if g := c.Clusters[0].Gateway; g.Looks() != want.looks || g.Asked() != want.asked {
			t.Errorf("%q: looks %t, asked %t, want %+v", value, g.Looks(), g.Asked(), want)
		}
		if warned := strings.Contains(strings.Join(c.Warnings, "\n"),
			"no Gateway gets an address"); warned != want.asked {
			t.Errorf("%q: warnings %q", value, c.Warnings)
		}
	}
	for _, value := range []string{`"true"`, "auto", "[true]", "{a: true}"} {
		if _, err := load(value); err == nil || !strings.Contains(err.Error(), "allowed: true, false") {
			t.Errorf("%s: got %v, want an error with what is allowed", value, err)
		}
	}
}

func TestOneClusterSetsTheProcess(t *testing.T) {
	for second, want := range map[string][]bool{
		"": {true, false}, ", ingress: {process: true}": {false, true},
		", ingress: {process: false}": {true, false},
	} {
		c, err := config.Parse("f.yaml",
			[]byte("clusters:\n- {name: a, kubeconfig: /a}\n- {name: b, kubeconfig: /b"+second+"}\n"))
		if err != nil {
			t.Fatal(err)
		}
		if got := []bool{c.Clusters[0].Ingress.Process, c.Clusters[1].Ingress.Process}; !slices.Equal(got, want) {
			t.Errorf("with %q for the second: got %v, want %v", second, got, want)
		}
	}
}

func TestAMistakeNamesLineKeyAndWhatIsAllowed(t *testing.T) {
	for name, row := range map[string]struct{ yaml, want string }{
		"empty file":    {"", `f.yaml: is empty; give at least clusters, with a kubeconfig`},
		"comments only": {"# nothing\n", `f.yaml: is empty; give at least clusters, with a kubeconfig`},
		"not YAML":      {"clusters: [", `f.yaml:1: not valid YAML: did not find expected node content`},
		"key given twice": {
			minimal + "bgp: {}\nbgp: {}\n",
			`f.yaml:4: key "bgp" is given twice, first in line 3; keep one of the two`,
		},
		"two documents": {
			minimal + "---\nbgp: {}\n",
			`f.yaml:4: a second document begins; only one is allowed`,
		},
		"a controller that is no path of a domain": {
			"clusters:\n- {kubeconfig: /a, gateway: {controller: sallyport}}\n",
			`f.yaml:2: clusters[0].gateway.controller: "sallyport" is not the name of a controller; allowed: DOMAIN/PATH, such as sallyport.dev/gateway`,
		},
		"shared addresses that nobody knows": {
			"clusters:\n- {kubeconfig: /a, gateway: {shared: true}}\n",
			`f.yaml:2: clusters[0].gateway.shared: is true, and no address is known that Gateways could share; list the addresses of Ingresses in clusters[0].ingress.publish`,
		},
		"an address that HTTP listens at": {
			minimal + "haproxy: {http: [\"192.168.50.30:80\"], addresses: [192.168.50.30-192.168.50.33]}\n",
			`f.yaml:3: haproxy.addresses[0]: 192.168.50.30-192.168.50.33 contains 192.168.50.30, which is in haproxy.http; these addresses are for Services and Gateways alone`,
		},
		"an address of BGP": {
			minimal + "bgp: {listen: [192.168.50.21]}\nhaproxy: {addresses: [192.168.50.21]}\n",
			`f.yaml:4: haproxy.addresses[0]: 192.168.50.21-192.168.50.21 contains 192.168.50.21, which is in bgp.listen; these addresses are for Services and Gateways alone`,
		},
		"an address of the status page": {
			minimal + "status: {listen: \"192.168.50.21:9090\", password: a-long-password, tls: {certificate: /a, key: /b}}\n" +
				"haproxy: {addresses: [192.168.50.0/24]}\n",
			`f.yaml:4: haproxy.addresses[0]: 192.168.50.0-192.168.50.255 contains 192.168.50.21, which is in status.listen; these addresses are for Services and Gateways alone`,
		},
		"addresses of loopback": {
			minimal + "haproxy: {addresses: [127.0.0.2]}\n",
			`f.yaml:3: haproxy.addresses[0]: 127.0.0.2-127.0.0.2 overlaps 127.0.0.0/8, whose addresses clients cannot connect to`,
		},
		"addresses that overlap": {
			minimal + "haproxy: {addresses: [192.168.50.0/28, 192.168.50.9]}\n",
			`f.yaml:3: haproxy.addresses[1]: 192.168.50.9-192.168.50.9 overlaps 192.168.50.0-192.168.50.15 (haproxy.addresses[0])`,
		},
		"a list as a whole": {
			"- a\n",
			`f.yaml:1: a list is given where keys are expected; allowed: identity, clusters, bgp, routes, haproxy, status, stateDir, log, group, system`,
		},
		"no cluster": {
			"bgp: {asn: 1}\n",
			`f.yaml: clusters: is missing; give at least one cluster with its kubeconfig`,
		},
		"no kubeconfig": {
			"clusters:\n- name: demo\n",
			`f.yaml:2: clusters[0]: kubeconfig is missing; give the path of a kubeconfig file, or the kubeconfig itself`,
		},
		"unknown key": {
			minimal + "bgp:\n  asm: 1\n",
			`f.yaml:4: unknown key "asm" in bgp; did you mean "asn"? allowed: asn, routerID, listen, port, holdTime, retain, failStatic`,
		},
		"letters swapped": {
			minimal + "stauts: {}\n",
			`f.yaml:3: unknown key "stauts"; did you mean "status"? allowed: identity, clusters, bgp, routes, haproxy, status, stateDir, log, group, system`,
		},
		"capitals wrong": {
			minimal + "statedir: /x\n",
			`f.yaml:3: unknown key "statedir"; did you mean "stateDir"? allowed: identity, clusters, bgp, routes, haproxy, status, stateDir, log, group, system`,
		},
		"unknown, nothing near": {
			minimal + "log: {colour: red}\n",
			`f.yaml:3: unknown key "colour" in log; allowed: level, format`,
		},
		"unknown key in a list": {
			"clusters:\n- kubeconfig: /a\n  pool: []\n",
			`f.yaml:3: unknown key "pool" in clusters[0]; did you mean "pools"? allowed: name, kubeconfig, pools, source, set, share, state, weight, minReady, bgp, ingress, gateway, calico`,
		},
		"a word instead of keys": {
			minimal + "bgp: 65000\n",
			`f.yaml:3: bgp: a single value is given where keys are expected; allowed: asn, routerID, listen, port, holdTime, retain, failStatic`,
		},
		"a word instead of a list": {
			"clusters:\n- kubeconfig: /a\n  pools: 172.16.0.0/16\n",
			`f.yaml:3: clusters[0].pools: a single value is given where a list is expected, such as [172.16.0.0/16]`,
		},
		"keys instead of a word": {
			minimal + "bgp:\n  asn: {a: 1}\n",
			`f.yaml:4: bgp.asn: a group of keys is given where one value is expected; allowed: a whole number from 1 to 4294967295`,
		},
		"empty list entry": {
			minimal + "bgp:\n  listen:\n  -\n",
			`f.yaml:5: bgp.listen[0]: an entry of the list is empty`,
		},
		"alias": {
			minimal + "bgp: {asn: &a 1}\nroutes: {metric: *a}\n",
			`f.yaml:4: YAML aliases are not supported here; write the value itself`,
		},
		"alias in a kubeconfig": {
			"clusters:\n- kubeconfig:\n    a: &a [x, x]\n    b: [*a, *a]\n",
			`f.yaml:4: YAML aliases are not supported here; write the value itself`,
		},
		"alias in its text": {
			"clusters:\n- kubeconfig: |\n    a: &a [x, x]\n    b: [*a, *a]\n",
			`f.yaml:2: clusters[0].kubeconfig: line 2 of the kubeconfig given here: YAML aliases are not supported here; write the value itself`,
		},
		"alias of nothing": {
			minimal + "  bgp: {password: *tops3cret}\n",
			`f.yaml: YAML aliases are not supported here; write the value itself`,
		},
		"tag": {
			minimal + "routes: {metric: !!str 5}\n",
			`f.yaml:3: routes.metric: a YAML tag (!!str) is not supported here; write the value itself`,
		},
		"nested too deep": {
			minimal + "bgp:\n  " + strings.Repeat("[", 40) + strings.Repeat("]", 40),
			`f.yaml:4: groups and lists are nested deeper than 32 levels, the limit of a configuration file`,
		},
		"number too large": {
			minimal + "routes: {protocol: 256}\n",
			`f.yaml:3: routes.protocol: "256" is not allowed; allowed: a whole number from 20 to 185`,
		},
		"number negative": {
			minimal + "haproxy: {threads: -1}\n",
			`f.yaml:3: haproxy.threads: "-1" is not allowed; allowed: a whole number from 0 to 64`,
		},
		"no number": {
			minimal + "bgp: {asn: many}\n",
			`f.yaml:3: bgp.asn: "many" is not allowed; allowed: a whole number from 1 to 4294967295`,
		},
		"no bool": {
			"clusters:\n- kubeconfig: /a\n  bgp:\n    ttlSecurity: yes\n",
			`f.yaml:4: clusters[0].bgp.ttlSecurity: "yes" is not allowed; allowed: true, false`,
		},
		"word not in the list": {
			minimal + "log: {level: warning}\n",
			`f.yaml:3: log.level: "warning" is not allowed; allowed: debug, info, warn, error`,
		},
		"word nearly in the list": {
			"clusters:\n- kubeconfig: /a\n  bgp: {mode: pasive}\n",
			`f.yaml:3: clusters[0].bgp.mode: "pasive" is not allowed; did you mean "passive"? allowed: active, passive`,
		},
		"time without a unit": {
			minimal + "bgp: {holdTime: 9}\n",
			`f.yaml:3: bgp.holdTime: "9" is not allowed; allowed: a time with its unit, such as 9s, 500ms or 2m`,
		},
		"hold time too short": {
			minimal + "bgp: {holdTime: 2s}\n",
			`f.yaml:3: bgp.holdTime: 2s is not allowed; allowed: whole seconds from 3s to 65535s`,
		},
		"router id of six": {
			minimal + "bgp: {routerID: \"::1\"}\n",
			`f.yaml:3: bgp.routerID: ::1 is not allowed; allowed: the form of an IPv4 address that is not 0.0.0.0`,
		},
		"address unparsable": {
			minimal + "bgp: {listen: [host]}\n",
			`f.yaml:3: bgp.listen[0]: "host" is not allowed; allowed: an IP address, such as 192.168.50.21`,
		},
		"address with a zone": {
			minimal + "bgp: {listen: [\"fe80::1%eth0\"]}\n",
			`f.yaml:3: bgp.listen[0]: "fe80::1%eth0" has a zone, or is an IPv4 address in the form of IPv6; allowed: the address alone`,
		},
		"address twice": {
			minimal + "bgp: {listen: [10.0.0.1, 10.0.0.1]}\n",
			`f.yaml:3: bgp.listen[1]: 10.0.0.1 is listed twice`,
		},
		"no listen address": {
			minimal + "bgp: {listen: []}\n",
			`f.yaml:3: bgp.listen: is an empty list; nodes could not connect`,
		},
		"pool with host bits": {
			"clusters:\n- kubeconfig: /a\n  pools:\n  - 172.16.1.1/16\n",
			`f.yaml:4: clusters[0].pools[0]: "172.16.1.1/16" has bits set after its length; did you mean "172.16.0.0/16"?`,
		},
		"pool of everything": {
			"clusters:\n- kubeconfig: /a\n  pools: [0.0.0.0/0]\n",
			`f.yaml:3: clusters[0].pools[0]: 0.0.0.0/0 contains every address; give the networks of the pods, or leave pools out`,
		},
		"pool of loopback": {
			"clusters:\n- kubeconfig: /a\n  pools: [127.1.0.0/16]\n",
			`f.yaml:3: clusters[0].pools[0]: 127.1.0.0/16 overlaps 127.0.0.0/8, which pods cannot have`,
		},
		"pools of two clusters": {
			"clusters:\n- {name: a, kubeconfig: /a, pools: [172.16.0.0/16]}\n" +
				"- {name: b, kubeconfig: /b, pools: [172.16.9.0/24]}\n",
			`f.yaml:3: clusters[1].pools[0]: 172.16.9.0/24 overlaps 172.16.0.0/16 of cluster "a"; one table of routes cannot lead to both: give each of the two a source of its own`,
		},
		"pools of two clusters with one source": {
			"clusters:\n- {name: a, kubeconfig: /a, pools: [172.16.0.0/16], source: 192.168.51.0/24}\n" +
				"- {name: b, kubeconfig: /b, pools: [172.16.9.0/24], source: 192.168.51.21}\n",
			`f.yaml:3: clusters[1].pools[0]: 172.16.9.0/24 overlaps 172.16.0.0/16 of cluster "a"; one table of routes cannot lead to both: give each of the two a source of its own`,
		},
		"pools of two clusters, one of which has a source": {
			"clusters:\n- {name: a, kubeconfig: /a, pools: [172.16.0.0/16]}\n" +
				"- {name: b, kubeconfig: /b, pools: [172.16.9.0/24], source: 192.168.51.21}\n",
			`f.yaml:3: clusters[1].pools[0]: 172.16.9.0/24 overlaps 172.16.0.0/16 of cluster "a"; one table of routes cannot lead to both: give each of the two a source of its own`,
		},
		"a source without pools": {
			"clusters:\n- {name: a, kubeconfig: /a, source: 192.168.51.21}\n",
			`f.yaml:2: clusters[0].source: is 192.168.51.21, and clusters[0].pools is missing; give the networks of the pods, so that nothing else leaves from this address by their routes`,
		},
		"a source among the pods": {
			"clusters:\n- name: a\n  kubeconfig: /a\n  pools: [172.16.0.0/16]\n  source: 172.16.9.0/24\n",
			`f.yaml:5: clusters[0].source: 172.16.9.0/24 overlaps 172.16.0.0/16, a network of pods (clusters[0].pools[0])`,
		},
		"a source beside pools of IPv6": {
			"clusters:\n- name: a\n  kubeconfig: /a\n  pools: [\"fd00::/48\"]\n  source: 192.168.51.21\n",
			`f.yaml:4: clusters[0].pools[0]: fd00::/48 is not IPv4, and source is an address of IPv4; leave one of them out`,
		},
		"a source of IPv6": {
			"clusters:\n- name: a\n  kubeconfig: /a\n  pools: [172.16.0.0/16]\n  source: fd00::21\n",
			`f.yaml:5: clusters[0].source: "fd00::21" is not allowed; allowed: a network of IPv4, or an address in it, such as 192.168.51.0/24`,
		},
		"a source with bits after its length": {
			"clusters:\n- name: a\n  kubeconfig: /a\n  pools: [172.16.0.0/16]\n  source: 192.168.51.21/24\n",
			`f.yaml:5: clusters[0].source: "192.168.51.21/24" is not allowed; allowed: a network of IPv4, or an address in it, such as 192.168.51.0/24`,
		},
		"a set that is no name": {
			"clusters:\n- name: a\n  kubeconfig: /a\n  set: a_b\n",
			`f.yaml:4: clusters[0].set: "a_b" is not allowed; allowed: up to 63 lower-case letters, digits and dashes`,
		},
		"a state without a set": {
			"clusters:\n- name: a\n  kubeconfig: /a\n  state: drained\n",
			`f.yaml:4: clusters[0].state: is drained, and the cluster is in no set that could serve in its place; give clusters[].set`,
		},
		"shared Services without a set": {
			"clusters:\n- name: a\n  kubeconfig: /a\n  share: all\n",
			`f.yaml:4: clusters[0].share: is all, and the cluster is in no set that it could share its Services with; give clusters[].set`,
		},
		"a weight without a set": {
			"clusters:\n- name: a\n  kubeconfig: /a\n  weight: 5\n",
			`f.yaml:4: clusters[0].weight: is 5, and the cluster is in no set beside whose clusters it could count; give clusters[].set`,
		},
		"ready servers without a set": {
			"clusters:\n- name: a\n  kubeconfig: /a\n  minReady: 2\n",
			`f.yaml:4: clusters[0].minReady: is 2, and the cluster is in no set that could serve in its place; give clusters[].set`,
		},
		"a share of ready servers without a set": {
			"clusters:\n- name: a\n  kubeconfig: /a\n  minReady: 50%\n",
			`f.yaml:4: clusters[0].minReady: is 50%, and the cluster is in no set that could serve in its place; give clusters[].set`,
		},
		"more ready servers than there are": {
			"clusters:\n- name: a\n  kubeconfig: /a\n  set: s\n  minReady: 101%\n",
			`f.yaml:5: clusters[0].minReady: "101%" is not allowed; allowed: a whole number from 1 to 1000, or a share from 1% to 100%, such as 50%`,
		},
		"no ready server": {
			"clusters:\n- name: a\n  kubeconfig: /a\n  set: s\n  minReady: 0\n",
			`f.yaml:5: clusters[0].minReady: "0" is not allowed; allowed: a whole number from 1 to 1000, or a share from 1% to 100%, such as 50%`,
		},
		"a weight of nothing": {
			"clusters:\n- name: a\n  kubeconfig: /a\n  set: s\n  weight: 0\n",
			`f.yaml:5: clusters[0].weight: "0" is not allowed; allowed: a whole number from 1 to 1000`,
		},
		"a weight beside none": {
			"clusters:\n- {name: a, kubeconfig: /a, set: s}\n- name: b\n  kubeconfig: /b\n  set: s\n  weight: 5\n" +
				"- {name: c, kubeconfig: /c, set: t}\n",
			`f.yaml:2: clusters[0].weight: is missing, and clusters[1] of the same set has one; give all clusters of set s a weight, or none`,
		},
		"an unknown state": {
			"clusters:\n- name: a\n  kubeconfig: /a\n  state: asleep\n",
			`f.yaml:4: clusters[0].state: "asleep" is not allowed; allowed: active, standby, drained`,
		},
		"one name for two": {
			"clusters:\n- {name: a, kubeconfig: /a}\n- {name: a, kubeconfig: /b}\n",
			`f.yaml:3: clusters[1].name: "a" is already the name of clusters[0]`,
		},
		"two set the process": {
			"clusters:\n- {name: a, kubeconfig: /a, ingress: {process: true}}\n- name: b\n  kubeconfig: /b\n" +
				"  ingress: {process: true}\n",
			`f.yaml:5: clusters[1].ingress.process: is set for clusters[0] already; one cluster sets what concerns the whole HAProxy process`,
		},
		"hosts kept for a year": {
			"clusters:\n- kubeconfig: /a\n  ingress:\n    releaseAfter: 8760h\n",
			`f.yaml:4: clusters[0].ingress.releaseAfter: 8760h0m0s is not allowed; allowed: 0s to 720h`,
		},
		"two without a name": {
			"clusters:\n- {name: a, kubeconfig: /a}\n- {kubeconfig: /b}\n",
			`f.yaml:3: clusters[1]: name is missing; with more than one cluster each needs its own`,
		},
		"a name with capitals": {
			"clusters:\n- {name: Demo, kubeconfig: /a}\n",
			`f.yaml:2: clusters[0].name: "Demo" is not allowed; allowed: up to 63 lower-case letters, digits and dashes`,
		},
		"password and file": {
			"clusters:\n- kubeconfig: /a\n  bgp:\n    password: tops3cret\n    passwordFile: /b\n",
			`f.yaml:5: clusters[0].bgp.passwordFile: password is given too; keep one of the two`,
		},
		"password too long": {
			"clusters:\n- kubeconfig: /a\n  bgp:\n    password: " +
				strings.Repeat("tops3cret", 9) + "\n",
			`f.yaml:4: clusters[0].bgp.password: the key has 81 bytes; allowed: 1 to 80`,
		},
		"password as keys": {
			"clusters:\n- kubeconfig: /a\n  bgp:\n    password: {tops3cret: 1}\n",
			`f.yaml:4: clusters[0].bgp.password: a group of keys is given where one value is expected; allowed: text`,
		},
		"kubeconfig as a list": {
			"clusters:\n- kubeconfig: [tops3cret]\n",
			`f.yaml:2: clusters[0].kubeconfig: a list is given; allowed: the path of a kubeconfig file, or the kubeconfig itself`,
		},
		"publish a multicast": {
			"clusters:\n- kubeconfig: /a\n  ingress: {publish: [224.0.0.1]}\n",
			`f.yaml:3: clusters[0].ingress.publish[0]: 224.0.0.1 is not the address of a machine`,
		},
		"class with a blank": {
			"clusters:\n- kubeconfig: /a\n  ingress: {class: a b}\n",
			`f.yaml:3: clusters[0].ingress.class: "a b" is not allowed; allowed: the name of an IngressClass`,
		},
		"somebody's protocol": {
			minimal + "routes: {protocol: 42}\n",
			`f.yaml:3: routes.protocol: 42 is the number of babel; choose another, so that the two kinds of routes differ`,
		},
		"the local table": {
			minimal + "routes: {table: 255}\n",
			`f.yaml:3: routes.table: 255 is the kernel's table of its own addresses; choose another`,
		},
		"external, no socket": {
			minimal + "haproxy:\n  mode: external\n",
			`f.yaml:3: haproxy: masterSocket is missing; mode external needs the socket of HAProxy's master process (haproxy -S)`,
		},
		"managed with a socket": {
			minimal + "haproxy:\n  masterSocket: /a\n",
			`f.yaml:4: haproxy.masterSocket: is for mode external only; in mode managed its place is runDir`,
		},
		"a user with a blank": {
			minimal + "haproxy: {user: a b}\n",
			`f.yaml:3: haproxy.user: "a b" is not allowed; allowed: a name or number of this machine`,
		},
		"a line in a path": {
			minimal + "haproxy: {binary: \"/a\\nb\"}\n",
			`f.yaml:3: haproxy.binary: control characters are not allowed`,
		},
		"a blank in HAProxy's path": {
			minimal + "haproxy: {dir: /a b}\n",
			`f.yaml:3: haproxy.dir: "/a b" is not allowed; allowed: letters, digits and . _ - / (HAProxy's configuration names files in it)`,
		},
		"a socket's path too long": {
			minimal + "haproxy: {runDir: /" + strings.Repeat("a", 80) + "}\n",
			`f.yaml:3: haproxy.runDir: has 81 bytes; allowed: 80, because the path of a socket is short`,
		},
		"no time between reloads": {
			minimal + "haproxy: {minReloadInterval: 0s}\n",
			`f.yaml:3: haproxy.minReloadInterval: 0s is not allowed; allowed: 1ms to 1h`,
		},
		"no selector": {
			minimal + "  ingress: {namespaceSelector: team in}\n",
			`f.yaml:3: clusters[0].ingress.namespaceSelector: "team in" is not a label selector; allowed: KEY=VALUE, KEY!=VALUE, KEY in (A, B), KEY notin (A, B), KEY and !KEY, with commas`,
		},
		"port missing": {
			minimal + "haproxy: {http: [10.0.0.1]}\n",
			`f.yaml:3: haproxy.http[0]: "10.0.0.1" is not allowed; allowed: an address with its port, [fd00::21]:80 for IPv6, :80 for every address, such as 192.168.50.21:80`,
		},
		"no port to reserve": {
			minimal + "haproxy: {reservedPorts: [0]}\n",
			`f.yaml:3: haproxy.reservedPorts[0]: "0" is not allowed; allowed: a whole number from 1 to 65535`,
		},
		"port taken": {
			minimal + "haproxy: {http: [\":80\"], https: [\"10.0.0.1:80\"]}\n",
			`f.yaml:3: haproxy.https: 10.0.0.1:80 is in use by haproxy.http`,
		},
		"port of BGP taken": {
			minimal + "bgp: {listen: [10.0.0.1], port: 9090}\n" +
				"status: {listen: \":9090\", tls: {certificate: /c, key: /k}, passwordFile: /p}\n",
			`f.yaml:4: status.listen: 0.0.0.0:9090 is in use by bgp.listen`,
		},
		"address covered": {
			minimal + "bgp: {listen: [0.0.0.0, 10.0.0.1]}\n",
			`f.yaml:3: bgp.listen: 10.0.0.1:179 is in use by bgp.listen`,
		},
		"nothing to listen on": {
			minimal + "haproxy: {http: [], https: []}\n",
			`f.yaml:3: haproxy: http and https are both empty; there is nothing to listen on`,
		},
		"a status name with a port": {
			minimal + "status: {names: [\"gate:80\"]}\n",
			`f.yaml:3: status.names[0]: "gate:80" is not a host name`,
		},
		"status off loopback": {
			minimal + "status: {listen: \"10.0.0.21:9090\"}\n",
			`f.yaml:3: status.listen: other machines reach 10.0.0.21:9090, so it needs status.tls, and status.password or status.passwordFile; or listen on loopback: 127.0.0.1:9090`,
		},
		"status without a password": {
			minimal + "status: {listen: \":9090\", tls: {certificate: /c, key: /k}}\n",
			`f.yaml:3: status.listen: other machines reach [::]:9090, so it needs status.password or status.passwordFile; or listen on loopback: 127.0.0.1:9090`,
		},
		"status without TLS": {
			minimal + "status: {listen: \"10.0.0.21:9090\", password: a-long-tops3cret}\n",
			`f.yaml:3: status.listen: other machines reach 10.0.0.21:9090, so it needs status.tls; or listen on loopback: 127.0.0.1:9090`,
		},
		"a short status password": {
			minimal + "status: {password: tops3cret}\n",
			`f.yaml:3: status.password: the password has 9 characters; allowed: 12 and more; openssl rand -hex 16 makes one`,
		},
		"a blank in the password": {
			minimal + "status: {password: a long tops3cret}\n",
			`f.yaml:3: status.password: the password has a character other than the visible ones of ASCII; openssl rand -hex 16 makes one`,
		},
		"status password twice": {
			minimal + "status: {password: a-long-tops3cret, passwordFile: /p}\n",
			`f.yaml:3: status.passwordFile: password is given too; keep one of the two`,
		},
		"certificate without key": {
			minimal + "status: {tls: {certificate: /c}}\n",
			`f.yaml:3: status.tls: key is missing; give the private key of the certificate`,
		},
		"key without certificate": {
			minimal + "status: {tls: {key: /c}}\n",
			`f.yaml:3: status.tls: certificate is missing; give the certificate of the key`,
		},
		"a key in two lines": {
			minimal + "status: {tls: {certificate: /c, key: \"tops3cret\\ntops3cret\"}}\n",
			`f.yaml:3: status.tls.key: the value is not allowed; allowed: the path of a PEM file, or the PEM itself`,
		},
		"PEM that is none": {
			minimal + "status: {tls: {certificate: \"-----BEGIN tops3cret\", key: \"-----BEGIN tops3cret\"}}\n",
			`f.yaml:3: status.tls: tls: failed to find any PEM data in certificate input`,
		},
		"one directory for both": {
			minimal + "haproxy: {dir: /var/lib/sallyport/}\n",
			`f.yaml:3: haproxy.dir: is also stateDir; give each a directory of its own`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Parse("f.yaml", []byte(row.yaml))
			if err == nil {
				t.Fatalf("no error; want %s", row.want)
			}
			if got := err.Error(); got != row.want {
				t.Errorf("\ngot  %s\nwant %s", got, row.want)
			}
			if strings.Contains(err.Error(), "tops3cret") {
				t.Errorf("the error shows a secret: %v", err)
			}
		})
	}
}

func TestAllMistakesAreReportedTogether(t *testing.T) {
	_, err := config.Parse("f.yaml", []byte("log: {level: loud}\nclusters:\n- name: A\nbgp: {asn: 0, prot: 1}\n"))
	want := `f.yaml:1: log.level: "loud" is not allowed; allowed: debug, info, warn, error
f.yaml:3: clusters[0]: kubeconfig is missing; give the path of a kubeconfig file, or the kubeconfig itself
f.yaml:3: clusters[0].name: "A" is not allowed; allowed: up to 63 lower-case letters, digits and dashes
f.yaml:4: bgp.asn: "0" is not allowed; allowed: a whole number from 1 to 4294967295
f.yaml:4: unknown key "prot" in bgp; did you mean "port"? allowed: asn, routerID, listen, port, holdTime, retain, failStatic`
	lines := func(s string) map[string]bool {
		set := map[string]bool{}
		for line := range strings.SplitSeq(s, "\n") {
			set[line] = true
		}
		return set
	}
	if diff := cmp.Diff(lines(want), lines(fmt.Sprint(err))); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
}

func TestAKubeconfigIsAPathOrTheDocumentItself(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte("from: file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct{ yaml, want string }{
		"a path": {"  kubeconfig: " + file + "\n", "from: file\n"},
		"a block of text": {
			"  kubeconfig: |\n    apiVersion: v1\n    kind: Config\n",
			"apiVersion: v1\nkind: Config\n",
		},
		"keys": {
			"  kubeconfig:\n    apiVersion: v1\n    users: [{name: a, user: {token: t}}]\n",
			`{"apiVersion":"v1","users":[{"name":"a","user":{"token":"t"}}]}`,
		},
		"a JSON document":  {"  kubeconfig: {\"apiVersion\": \"v1\"}\n", `{"apiVersion":"v1"}`},
		"a path, as block": {"  kubeconfig: >\n    " + file + "\n", "from: file\n"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := config.Parse("f.yaml", []byte("clusters:\n- name: a\n"+row.yaml))
			if err != nil {
				t.Fatal(err)
			}
			got, err := c.Clusters[0].Kubeconfig.Read()
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}

func TestAKubeconfigFileIsBoundedAsWell(t *testing.T) {
	for name, row := range map[string]struct{ text, want string }{
		"deep": {
			"a:\n  " + strings.Repeat("[", 40) + strings.Repeat("]", 40) + "\n",
			":2: groups and lists are nested deeper than 32 levels",
		},
		"aliases": {"a: &a [x, x]\nb: [*a, *a]\n", ":2: YAML aliases are not supported here"},
		"large":   {strings.Repeat("#", config.MaxSize+1), ": is larger than 262144 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "kubeconfig")
			if err := os.WriteFile(path, []byte(row.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := (config.Kubeconfig{Path: path}).Read(); err == nil ||
				!strings.Contains(err.Error(), path+row.want) {
				t.Errorf("got %v, want %q", err, row.want)
			}
		})
	}
}

func TestSecretsAreNeverPrinted(t *testing.T) {
	c, err := config.Parse("f.yaml",
		[]byte("clusters:\n- kubeconfig: |\n    token:\n      tops3cret\n  bgp: {password: tops3cret}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Clusters[0].BGP.Password.Reveal(); got != "tops3cret" {
		t.Fatalf("Reveal: got %q", got)
	}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		fmt.Fprintf(&out, verb+verb, *c, c.Clusters[0].BGP.Password)
	}
	if err := json.NewEncoder(&out).Encode(c); err != nil {
		t.Fatal(err)
	}
	for _, logger := range []*slog.Logger{
		slog.New(slog.NewTextHandler(&out, nil)),
		slog.New(slog.NewJSONHandler(&out, nil)),
	} {
		logger.Info("configuration", "config", c, "password", c.Clusters[0].BGP.Password, "kubeconfig",
			c.Clusters[0].Kubeconfig)
	}
	if strings.Contains(out.String(), "tops3cret") {
		t.Errorf("a secret shows in:\n%s", out.String())
	}
}

func TestLoadReadsTheFilesItNames(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("kubeconfig", "apiVersion: v1\n", 0o644)
	write("key", "tops3cret\n", 0o600)
	path := write("sallyport.yaml",
		"clusters:\n- kubeconfig: kubeconfig\n  bgp: {passwordFile: key}\nhaproxy: {base: base.cfg}\n", 0o600)

	_, err := config.Load(path)
	if want := path + ":4: haproxy.base: " + dir + "/base.cfg: no such file or directory"; err == nil ||
		err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}

	write("base.cfg", "global\n", 0o644)
	c, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.Clusters[0].Kubeconfig.Path, filepath.Join(dir, "kubeconfig"); got != want {
		t.Errorf("kubeconfig: got %s, want %s", got, want)
	}
	if got, want := c.Clusters[0].BGP.Password.Reveal(), "tops3cret"; got != want {
		t.Errorf("password: got %q, want %q", got, want)
	}
	if c.Identity == "" || !c.BGP.RouterID.Is4() {
		t.Errorf("identity %q and router id %s: want both filled in", c.Identity, c.BGP.RouterID)
	}
	want := []string{path + ":2: clusters[0].kubeconfig: every user of this machine can read " + dir +
		"/kubeconfig, which holds credentials; chmod 600 it"}
	if diff := cmp.Diff(want, c.Warnings); diff != "" {
		t.Errorf("warnings: want -, got +:\n%s", diff)
	}
}

func TestAFileThatCannotBeReadIsOneSentence(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	empty := write("empty", "")
	for name, row := range map[string]struct{ path, want string }{
		"no file":     {dir + "/none.yaml", "no such file"},
		"a directory": {dir, ": is a directory"},
		"empty":       {empty, "is empty"},
		"too large": {
			write("large.yaml", strings.Repeat("#", config.MaxSize+1)),
			"large.yaml: is larger than 262144 bytes",
		},
		"password file gone": {
			write("a.yaml", "clusters:\n- kubeconfig: a.yaml\n  bgp: {passwordFile: none}\n"),
			":3: clusters[0].bgp.passwordFile: " + dir + "/none: no such file or directory",
		},
		"password file empty": {
			write("b.yaml", "clusters:\n- kubeconfig: a.yaml\n  bgp: {passwordFile: empty}\n"),
			":3: clusters[0].bgp.passwordFile: " + dir + "/empty: is empty",
		},
		"base a directory": {
			write("c.yaml", "clusters:\n- kubeconfig: a.yaml\nhaproxy: {base: .}\n"),
			":3: haproxy.base: " + dir + ": is a directory",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Load(row.path)
			if err == nil {
				t.Fatalf("no error; want %q in it", row.want)
			}
			if got := err.Error(); !strings.Contains(got, row.want) || strings.Contains(got, "\n") {
				t.Errorf("got %q, want one line with %q", got, row.want)
			}
			if got, want := errors.Is(err, fs.ErrNotExist), name == "no file"; got != want {
				t.Errorf("%q is fs.ErrNotExist: got %v, want %v", err, got, want)
			}
		})
	}
}

func TestAKubeconfigThatIsNotThereIsADoubtOnly(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"sallyport.yaml": "clusters:\n- {name: a, kubeconfig: none}\n- {name: b, kubeconfig: empty}\n", "empty": "",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "sallyport.yaml")
	c, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		path + ":2: clusters[0].kubeconfig: " + dir + "/none: no such file or directory",
		path + ":3: clusters[1].kubeconfig: " + dir + "/empty: is empty",
	}
	if diff := cmp.Diff(want, c.Warnings); diff != "" {
		t.Errorf("warnings: want -, got +:\n%s", diff)
	}
	if _, err := c.Clusters[0].Kubeconfig.Read(); err == nil ||
		err.Error() != "kubeconfig "+dir+"/none: no such file or directory" {
		t.Errorf("Read: got %v, want that there is no such file", err)
	}
}

func TestTheExamplesAreAccepted(t *testing.T) {
	for _, text := range []string{config.Example, config.GroupExample} {
		c, err := config.Parse("example.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := c.Clusters[0].Name, "demo"; got != want {
			t.Errorf("name of the cluster: got %q, want %q", got, want)
		}
	}
}

// FuzzParse checks that the parser returns a complete Config, or an error that names
// the file, for any bytes.
func FuzzParse(f *testing.F) {
	f.Add([]byte(config.Example))
	f.Add([]byte(config.GroupExample))
	f.Add([]byte(minimal + "bgp: {listen: [10.0.0.1, ::]}\nhaproxy: {https: [], http: [':8080']}\n"))
	f.Add([]byte("clusters:\n- kubeconfig: {a: [b, {c: 1}]}\n  bgp: {password: &x |\n   a\n }\n- *x\n"))
	f.Add([]byte("? [a]\n: !!map {<<: *a}\n---\n...\n"))
	for _, text := range bombs(40) {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := config.Parse("f.yaml", data)
		switch {
		case err != nil:
			if c != nil || !strings.HasPrefix(err.Error(), "f.yaml:") {
				t.Errorf("config %v with error %q", c, err)
			}
		case len(c.Clusters) == 0 || c.BGP.ASN == 0 || c.BGP.HoldTime < 3*time.Second || !c.Status.Listen.IsValid():
			t.Errorf("incomplete: %+v", c)
		}
	})
}

// bombs returns texts that cost a parser without bounds far more than their size:
// deeply nested ones, ones that grow when they are read, and long runs.
func bombs(n int) map[string]string {
	laughs := "a0: &a0 [x, x]\n"
	for i := range 30 {
		laughs += fmt.Sprintf("a%d: &a%d [*a%d, *a%d]\n", i+1, i+1, i, i)
	}
	flow := strings.Repeat("[", n/2) + strings.Repeat("]", n/2)
	texts := map[string]string{
		"lists":             strings.Repeat("[", n),
		"closed lists":      flow,
		"groups":            strings.Repeat("{a: ", n/4) + "b" + strings.Repeat("}", n/4),
		"block lists":       strings.Repeat("- ", n/2) + "a",
		"block keys":        strings.Repeat("? ", n/2) + "a",
		"anchors":           strings.Repeat("&a ", n/3) + "a",
		"tags":              strings.Repeat("!!map ", n/6) + "a",
		"colons":            strings.Repeat("a: ", n/3),
		"documents":         strings.Repeat("---\na\n", n/6),
		"empty documents":   strings.Repeat("---\n", n/4),
		"behind quotes":     "a: \"]]]]\"\nb: ']]]]'\nc: " + flow,
		"in a second":       "---\n---\n" + flow,
		"blank lines":       "a: |\n" + strings.Repeat("\n", n),
		"merge keys":        strings.Repeat("<", n),
		"one long key":      "? " + strings.Repeat("k", n/4) + "\n: [" + strings.Repeat("a,", n/4) + "]",
		"many keys":         "{" + strings.Repeat("a,", n/2) + "}",
		"billion laughs":    laughs,
		"in the kubeconfig": "clusters:\n- kubeconfig:\n    a: " + flow,
	}
	var steps strings.Builder
	for i := 0; steps.Len() < n; i++ {
		fmt.Fprintf(&steps, "%*sa:\n", i, "")
	}
	texts["indentation"] = steps.String()
	texts["in its text"] = "clusters:\n- kubeconfig: |\n    b: " + flow + "\n    c: d\n"
	return texts
}

func TestNoTextOfTheSizeThatIsAllowedCostsMoreThanItsSize(t *testing.T) {
	for name, text := range bombs(config.MaxSize - 64) {
		t.Run(name, func(t *testing.T) {
			text := text[:min(len(text), config.MaxSize)]
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := config.Parse("f.yaml", []byte(text))
			runtime.ReadMemStats(&after)
			if err == nil {
				t.Error("it is accepted")
			} else if len(err.Error()) > 1<<20 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
			// TotalAlloc counts everything that was allocated, not only the memory in
			// use. So it bounds the work as well.
			if got, most := after.TotalAlloc-before.TotalAlloc, uint64(128<<20); got > most {
				t.Errorf("%d MB were allocated for %d bytes, want no more than %d", got>>20, len(text), most>>20)
			}
		})
	}
}

// FuzzSelector checks that Kubernetes accepts each label selector that config accepts.
func FuzzSelector(f *testing.F) {
	for _, s := range []string{
		"team=web", "a in (b, c),!d", "x.test/a notin (,b),e!=f,g==", "! a", "a=-", "in in (in)",
		"a,,b", "a>1",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		text, err := json.Marshal(
			map[string]any{"clusters": []any{map[string]any{
				"kubeconfig": "k",
				"ingress":    map[string]any{"namespaceSelector": s},
			}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := config.Parse("f.yaml", text); err != nil {
			return
		}
		if _, err := labels.Parse(s); err != nil {
			t.Errorf("%q: %v", s, err)
		}
	})
}

func TestTheAccessLogIsOffOrSomewhere(t *testing.T) {
	for text, want := range map[string]config.AccessLog{
		"off":              {},
		"stdout":           {Stdout: true},
		"192.168.50.4:514": {Syslog: netip.MustParseAddrPort("192.168.50.4:514")},
		"[fd00::4]:1514":   {Syslog: netip.MustParseAddrPort("[fd00::4]:1514")},
	} {
		var got config.AccessLog
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want || got.On() != (text != "off") {
			t.Errorf("%s: %+v (%v), want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "on", "192.168.50.4", "192.168.50.4:0", ":514", "log.example.org:514",
		"[::ffff:192.168.50.4]:514", "[fe80::1%eth0]:514",
	} {
		if got := new(config.AccessLog); got.UnmarshalText([]byte(text)) == nil {
			t.Errorf("%q is taken for %+v, want an error", text, *got)
		}
	}
}

func TestReadyServersAreANumberOrAShare(t *testing.T) {
	for text, want := range map[string]config.MinReady{
		"1": {Servers: 1}, "1000": {Servers: 1000}, "1%": {Percent: 1}, "50%": {Percent: 50}, "100%": {Percent: 100},
	} {
		var got config.MinReady
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want || got.String() != text {
			t.Errorf("%q: got %+v, which is written %q, and %v; want %+v", text, got, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "+1", "1001", "0%", "101%", "%", "1 %", "1.5%", "50%%", "half", "1e2"} {
		if got := new(config.MinReady); got.UnmarshalText([]byte(text)) == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
	if (config.MinReady{}).More() || (config.MinReady{Servers: 1}).More() || !(config.MinReady{Percent: 1}).More() {
		t.Error("only one ready server of many may be too few")
	}
}

func TestAClusterIsInTheASOfTheApplianceTowardsIt(t *testing.T) {
	c, err := config.Parse("f.yaml", []byte("bgp: {asn: 64999}\nclusters:\n- {name: a, kubeconfig: /a}\n"+
		"- {name: b, kubeconfig: /b, bgp: {localASN: 65010}}\n- {name: c, kubeconfig: /c, bgp: {asn: 7, localASN: 8}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][2]uint32{{64999, 64999}, {65010, 65010}, {7, 8}} {
		of := &c.Clusters[i]
		if got := [2]uint32{of.BGP.ASN, c.ASNTowards(of.Name)}; got != want {
			t.Errorf("cluster %s: got its AS and ours towards it %v, want %v", of.Name, got, want)
		}
	}
}
