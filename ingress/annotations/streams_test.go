package annotations

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/haproxy"
)

func TestALineIsATCPService(t *testing.T) {
	all, odd := Streams(map[string]string{
		"5432": "db/postgres:5432", "8883": "iot/broker:mqtt:ssl", "9000": " db/a:b:ssl:PROXY:PROXY-V2\n",
		"9001": "db/a:1::PROXY-V1", "log-format-tcp": "%ci",
		"0": "a/b:1", "01024": "a/b:1", "70000": "a/b:1", "http": "a/b:1", "9002": "b:1", "9003": "a/b", "9004": "a/b:",
		"9005": "a/b:1:tls", "9006": "a/b:1:ssl:ssl",
		"9007": "a/b:1:PROXY-V1:PROXY-V2", "9008": "a/b:x_y", "9009": "a/b\n:1", "9010": "",
	})
	var got strings.Builder
	for _, s := range all {
		fmt.Fprintf(&got, "%+v\n", s)
	}
	for _, p := range odd {
		fmt.Fprintln(&got, p.Why)
	}
	want := `{Port:5432 To:{Service:db/postgres Port:5432} TLS:false Proxy:false SendProxy:}
{Port:8883 To:{Service:iot/broker Port:mqtt} TLS:true Proxy:false SendProxy:}
{Port:9000 To:{Service:db/a Port:b} TLS:true Proxy:true SendProxy:proxy-v2}
{Port:9001 To:{Service:db/a Port:1} TLS:false Proxy:false SendProxy:proxy-v1}
key "0": "0" is not a number from 1 to 65535; it is ignored
key "01024": "01024" is not a number from 1 to 65535; it is ignored
key "70000": "70000" is not a number from 1 to 65535; it is ignored
key "9002": "b:1": want namespace/Service, or namespace/Service:port; it is ignored
key "9003": "a/b": want namespace/Service:port, and after it :ssl, :PROXY, :PROXY-V1 or :PROXY-V2; it is ignored
key "9004": "a/b:": want namespace/Service, or namespace/Service:port; it is ignored
key "9005": "tls" is not one of ssl, PROXY, PROXY-V1 and PROXY-V2; it is ignored
key "9006": a word is repeated; allowed are ssl, PROXY, and one of PROXY-V1 and PROXY-V2, each once; it is ignored
key "9007": a word is repeated; allowed are ssl, PROXY, and one of PROXY-V1 and PROXY-V2, each once; it is ignored
key "9008": "x_y" is not the name or the number of a port; it is ignored
key "9009": "a/b\n:1": want namespace/Service, or namespace/Service:port; it is ignored
key "9010": "": want namespace/Service:port, and after it :ssl, :PROXY, :PROXY-V1 or :PROXY-V2; it is ignored
key "http": "http" is not a number from 1 to 65535; it is ignored
`
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestATCPServiceMayHaveTLSToItsServers(t *testing.T) {
	s, _, problems := CompileTCP(env, Ended,
		on("service server-ca: ca", "service check-http: /", "configmap client-ca: ns/ca",
			"configmap load-balance: leastconn")...)
	if want := (haproxy.ServerOptions{Check: true, TLS: true, CA: "ca.ca.pem", Proto: "h1"}); s.Options != want {
		t.Errorf("servers: want %+v, got %+v", want, s.Options)
	}
	if len(s.Directives) != 1 || s.Directives[0].String() != "balance leastconn" {
		t.Errorf("directives: got %v", s.Directives)
	}
	if len(problems) != 1 || problems[0].Reason != "NotForTCP" || problems[0].Scope != Service {
		t.Errorf("problems: got %v", problems)
	}
}

// FuzzStreams holds any line to be used or told, and what is used to be fit for
// names.
func FuzzStreams(f *testing.F) {
	f.Add("5432", "db/postgres:5432:ssl:PROXY:PROXY-V2")
	f.Add("99999", "a/b")
	f.Add("1024", "a/b:c:::\n")
	f.Fuzz(func(t *testing.T, port, line string) {
		all, odd := Streams(map[string]string{port: line})
		if port != "log-format-tcp" && len(all)+len(odd) != 1 {
			t.Errorf("%q: %q comes to %v and %v", port, line, all, odd)
		}
		for _, s := range all {
			if s.Port < 1 || !dnsLabel.MatchString(s.To.Service.Namespace) ||
				!dnsLabel.MatchString(s.To.Service.Name) || !dnsLabel.MatchString(s.To.Port) {
				t.Errorf("%q: %q is taken as %+v", port, line, s)
			}
		}
		for _, p := range odd {
			if strings.ContainsAny(p.Why, "\n\x1b") {
				t.Errorf("%q: %q is told as %q", port, line, p.Why)
			}
		}
	})
}
