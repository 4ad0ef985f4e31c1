package kic

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tellPorts returns a line for each port, and for each thing that is said of it.
func tellPorts(ports []Port, err error) string {
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	var b strings.Builder
	for _, p := range ports {
		fmt.Fprintf(&b, "%s: %d to %s:%s", p.Entry, p.Port, p.To.Service.Name, p.To.Port)
		if p.TLS {
			b.WriteString(", TLS")
		}
		if p.Proxy {
			b.WriteString(", PROXY")
		}
		b.WriteByte('\n')
		for _, why := range p.Left {
			b.WriteString("! " + why + "\n")
		}
		if p.Err != nil {
			b.WriteString("closed: " + p.Err.Error() + "\n")
		}
	}
	return b.String()
}

func TestEachEntryOfATCPIsAPortOrIsTold(t *testing.T) {
	entry := func(frontend, more string) string {
		return `[{"name": "db", "frontend": {` + frontend + `}, "service": {"name": "db", "port": 5432}` + more + `}]`
	}
	for _, row := range []struct{ spec, want string }{
		{`[]`, ""},
		{entry(`"name": "fe", "binds": {"v4": {"port": 5432}}`, ""), "db: 5432 to db:5432\n"},
		{entry(`"name": "fe", "binds": [{"name": "v4", "port": 5432}]`, ""), "db: 5432 to db:5432\n"},
		{
			entry(`"mode": "tcp", "tcplog": true, "binds": {"v4": {"address": "0.0.0.0", "port": 1, "ssl": true},
				"v6": {"address": "::", "port": 2, "v4v6": true, "accept_proxy": true}}`, ""),
			"db: 1 to db:5432, TLS\ndb: 2 to db:5432, PROXY\n",
		},
		{
			entry(`"log_format": "%ci", "client_timeout": 5000, "maxconn": 0,
				"binds": {"v4": {"port": 5432, "ssl": true, "ssl_certificate": "mine", "alpn": "x"}}`, ""),
			"db: 5432 to db:5432, TLS\n! frontend.client_timeout has no effect: no key says it\n" +
				"! frontend.log_format has no effect: log-format-tcp in the ConfigMap sets the format\n" +
				"! frontend.maxconn has no effect: no key says it\n" +
				"! frontend.binds.ssl_certificate has no effect: the port has the certificates of the Ingresses, by the " +
				"name that a client asks for\n! frontend.binds.alpn has no effect: no key says it\n",
		},
		{
			entry(`"binds": {"v4": {"port": 5432, "address": "10.0.0.1"}}`, ""), "db: 5432 to db:5432\nclosed: " +
				`frontend.binds: a port is open at every address of the appliance, not at "10.0.0.1" alone: remove the ` +
				"address\n",
		},
		{
			entry(`"binds": {"v4": {"port": 5432, "ssl": true, "verify": "required"}}`, ""), "db: 5432 to db:5432, TLS\n" +
				"closed: frontend.binds: no port asks clients for certificates: remove verify and ssl_cafile\n",
		},
		{
			entry(`"binds": {"v4": {"port": 5000, "port-range-end": 5009}}`, ""),
			"db: 5000 to db:5432\nclosed: frontend.binds: port-range-end: write a bind for each port\n",
		},
		{
			entry(`"binds": {"v4": {"port": 65536}}`, ""),
			"db: 0 to db:5432\n" + `closed: frontend.binds: "65536" is not a port from 1 to 65535` + "\n",
		},
		{entry(`"name": "fe"`, ""), "db: 0 to :\nclosed: frontend.binds: it has no port\n"},
		{
			entry(`"binds": 7`, ""), "db: 0 to :\nclosed: frontend.binds cannot be read: json: cannot unmarshal number " +
				"into Go value of type map[string]map[string]interface {}\n",
		},
		{
			entry(`"binds": {"v4": {"port": 5432}}, "tcp_request_rule_list": [{"type": "connection", "action": "reject"}]`, ""),
			"db: 5432 to db:5432\nclosed: frontend.tcp_request_rule_list: it may keep clients out or lead them elsewhere, " +
				"and nothing here does that for a port: remove it; a Service of type LoadBalancer can restrict its clients " +
				"(spec.loadBalancerSourceRanges)\n",
		},
		{
			entry(`"binds": {"v4": {"port": 5432}}`, `, "services": [{"name": "other", "port": 1}]`),
			"db: 5432 to db:5432\n! services has no effect: only frontend.backend_switching_rule_list leads there\n",
		},
		{
			entry(`"binds": {"v4": {"port": 5432}}, "acl_list": [{}], "backend_switching_rule_list": [{"name": "x"}]`,
				`, "services": [{"name": "other", "port": 1}]`),
			"db: 5432 to db:5432\nclosed: frontend.acl_list: it may keep clients out or lead them elsewhere, and nothing " +
				"here does that for a port: remove it; an Ingress with ssl-passthrough, or a TLSRoute, leads connections to " +
				"Services by the name that clients ask for\n",
		},
		{
			entry(`"binds": {"v4": {"port": 1}, "v6": {"port": 1, "address": "::", "v4v6": true}, "z": {"port": 2}}`, ""),
			"db: 1 to db:5432\ndb: 2 to db:5432\n",
		},
		{
			entry(`"binds": [{"port": 1, "alpn": "x"}, {"port": 1, "alpn": "x", "ssl": true}]`, ""),
			"db: 1 to db:5432, TLS\n! frontend.binds.alpn has no effect: no key says it\n! frontend.binds: a bind without " +
				"ssl has no effect, since another bind of port 1 has it: a port is the same at every address\n",
		},
		{
			entry(`"binds": [{"port": 1}, {"port": 1, "accept_proxy": true}]`, ""), "db: 1 to db:5432\nclosed: " +
				"frontend.binds: accept_proxy differs in the binds of port 1: a port is the same at every address\n",
		},
		{
			entry(`"binds": [{"port": 1}, {"port": 1, "address": "10.0.0.1"}]`, ""), "db: 1 to db:5432\nclosed: " +
				`frontend.binds: a port is open at every address of the appliance, not at "10.0.0.1" alone: remove the ` +
				"address\n",
		},
		{`{}`, "error: its spec is no list of entries, each with name, frontend and service\n"},
	} {
		if diff := cmp.Diff(row.want, tellPorts(TCP([]byte(row.spec)))); diff != "" {
			t.Errorf("%s: want -, got +\n%s", row.spec, diff)
		}
	}
}

func FuzzTCP(f *testing.F) {
	f.Add([]byte(`[{"name": "db", "frontend": {"binds": {"v4": {"port": 5432, "ssl": true}}}, "service": {"name": "db", "port": 1}}]`))
	f.Add([]byte(`[{"frontend": {"binds": [{"port": 1, "address": "*"}], "acl_list": [{}]}, "services": [null]}]`))
	f.Fuzz(func(t *testing.T, spec []byte) {
		ports, err := TCP(spec)
		for _, p := range ports {
			if err != nil || p.Err == nil && p.Port == 0 {
				t.Errorf("%s: %+v, %v", spec, p, err)
			}
		}
	})
}
