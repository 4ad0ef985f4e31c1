package nginx

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/ingress/annotations"
	"sallyport/test/manual"
)

// told returns what ReadConfigMap says, as lines.
func told(data map[string]string) string {
	var b strings.Builder
	notes, said := ReadConfigMap(data)
	for _, n := range notes {
		guard := ""
		if n.Guard {
			guard = ", guard"
		}
		fmt.Fprintf(&b, "%s (%s): %s%s\n", n.Name, n.Value, n.Verdict, guard)
	}
	for _, s := range said {
		fmt.Fprintf(&b, "%s: %s = %s\n", s.As, s.Key, strings.ReplaceAll(s.Text, "\n", " | "))
	}
	return b.String()
}

// TestEveryKeyOfTheConfigMapHasAVerdict compares the table with the keys that ingress-nginx 1.15 reads.
func TestEveryKeyOfTheConfigMapHasAVerdict(t *testing.T) {
	text, err := os.ReadFile("testdata/configmap.txt")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	docs := map[string]bool{}
	for _, d := range annotations.Docs() {
		docs[bare(d.Name)] = d.Scopes&annotations.ConfigMap != 0
	}
	for _, s := range Settings() {
		names = append(names, s.Name)
		switch s.Verdict {
		case Same, Differs, Nothing, Lost:
		default:
			t.Errorf("%s: verdict %q", s.Name, s.Verdict)
		}
		if s.Verdict == Same && s.Keys == "" || s.Verdict != Same && s.Note == "" {
			t.Errorf("%s: verdict %q, keys %q, note %q", s.Name, s.Verdict, s.Keys, s.Note)
		}
		for key := range strings.SplitSeq(s.Keys, ", ") {
			if key != "" && !docs[key] {
				t.Errorf("%s: the ConfigMap has no key %s", s.Name, key)
			}
		}
	}
	if diff := cmp.Diff(strings.Fields(string(text)), names); diff != "" {
		t.Errorf("keys of ingress-nginx (-), and those with a verdict (+):\n%s", diff)
	}
}

// TestTheConfigMapIsReadKeyByKey checks the verdict on values, and what they are here.
func TestTheConfigMapIsReadKeyByKey(t *testing.T) {
	for name, tt := range map[string]struct {
		data map[string]string
		want string
	}{
		"what annotations mean, too": {
			data: map[string]string{
				"proxy-body-size": "8m", "proxy-read-timeout": "120", "ssl-redirect": "false",
				"whitelist-source-range": "10.0.0.0/8,\n192.0.2.0/24", "enable-modsecurity": "true",
				"proxy-buffering": "on", "load-balance": "ewma", "limit-rate": "0",
			},
			want: `enable-modsecurity (true): not served, guard
limit-rate (0): needs nothing
load-balance (ewma): a difference
proxy-body-size (8m): a difference
proxy-buffering (on): needs nothing
proxy-read-timeout (120): a difference
ssl-redirect (false): the same
whitelist-source-range (10.0.0.0/8,
192.0.2.0/24): the same, guard
load-balance: load-balance = leastconn
proxy-body-size: proxy-body-size = 8m
proxy-read-timeout: timeout-server = 120s
ssl-redirect: ssl-redirect = false
whitelist-source-range: allow-list = 10.0.0.0/8, 192.0.2.0/24
`,
		},
		"guards by a header": {
			data: map[string]string{"block-user-agents": `~*bot, "curl/8 (x)", ~^Wget`, "block-referers": "~*(?=x)"},
			want: `block-referers (~*(?=x)): not served, guard
block-user-agents (~*bot, "curl/8 (x)", ~^Wget): a difference, guard
block-user-agents: frontend-config-snippet = ` +
				`http-request deny deny_status 403 if { req.fhdr(User-Agent) -m reg -i 'bot' } | ` +
				`http-request deny deny_status 403 if { req.fhdr(User-Agent) -m str -i 'curl/8 (x)' } | ` +
				`http-request deny deny_status 403 if { req.fhdr(User-Agent) -m reg '^Wget' }
`,
		},
		"addresses": {
			data: map[string]string{"block-cidrs": "10.1.0.0/16,192.0.2.1"},
			want: `block-cidrs (10.1.0.0/16,192.0.2.1): a difference, guard
block-cidrs: frontend-config-snippet = http-request deny deny_status 403 if { src 10.1.0.0/16 192.0.2.1 }
`,
		},
		"addresses that a header has": {
			data: map[string]string{
				"block-cidrs": "10.1.0.0/16", "use-forwarded-headers": "true", "proxy-real-ip-cidr": "10.0.0.0/8",
				"forwarded-for-header": "X-Real-IP",
			},
			want: `block-cidrs (10.1.0.0/16): a difference, guard
forwarded-for-header (X-Real-IP): a difference
proxy-real-ip-cidr (10.0.0.0/8): not served, guard
use-forwarded-headers (true): a difference
block-cidrs: deny-list = 10.1.0.0/16
use-forwarded-headers: src-ip-header = X-Real-IP
use-forwarded-headers: forwarded-headers = false
`,
		},
		"addresses that the PROXY protocol has": {
			data: map[string]string{"use-proxy-protocol": "true", "proxy-real-ip-cidr": "10.0.0.0/8"},
			want: `proxy-real-ip-cidr (10.0.0.0/8): a difference, guard
use-proxy-protocol (true): a difference
use-proxy-protocol: proxy-protocol = 10.0.0.0/8
`,
		},
		"a Service that is asked": {
			data: map[string]string{
				"global-auth-url": "http://auth.sso.svc.cluster.local:4180/verify", "global-auth-method": "HEAD",
				"global-auth-response-headers": "X-User", "global-auth-snippet": "deny all;",
			},
			want: `global-auth-method (HEAD): the same, guard
global-auth-response-headers (X-User): the same, guard
global-auth-snippet (): not served, guard
global-auth-url (http://auth.sso.svc.cluster.local:4180/verify): a difference, guard
global-auth-method: auth-method = HEAD
global-auth-response-headers: auth-headers-succeed = X-User
global-auth-url: auth-url = svc://sso/auth:4180/verify
`,
		},
		"a host that is asked": {
			data: map[string]string{"global-auth-url": "https://auth.shop.test/verify", "global-auth-method": "HEAD"},
			want: `global-auth-method (HEAD): the same, guard
global-auth-url (https://auth.shop.test/verify): not served, guard
`,
		},
		"TLS": {
			data: map[string]string{
				"ssl-protocols": "TLSv1.3", "ssl-ciphers": "ECDHE+AESGCM:!MD5", "ssl-ecdh-curve": "auto",
				"ssl-session-ticket-key": "c2VjcmV0", "use-http2": "false", "hsts-max-age": "600",
			},
			want: `hsts-max-age (600): the same
ssl-ciphers (ECDHE+AESGCM:!MD5): a difference, guard
ssl-ecdh-curve (auto): needs nothing
ssl-protocols (TLSv1.3): a difference, guard
ssl-session-ticket-key (): needs nothing
use-http2 (false): the same
hsts-max-age: hsts = true
hsts-max-age: hsts-max-age = 600
ssl-ciphers: global-config-snippet = ssl-default-bind-ciphers ECDHE+AESGCM:!MD5
ssl-protocols: global-config-snippet = ssl-default-bind-options ssl-min-ver TLSv1.3 ssl-max-ver TLSv1.3
use-http2: tls-alpn = http/1.1
`,
		},
		"HSTS that is off": {
			data: map[string]string{"hsts": "false", "hsts-preload": "true"},
			want: "hsts (false): the same\nhsts-preload (true): had no effect\nhsts: hsts = false\n",
		},
		"versions of TLS": {
			data: map[string]string{"ssl-protocols": "TLSv1.3 TLSv1.2"},
			want: "ssl-protocols (TLSv1.3 TLSv1.2): needs nothing, guard\n",
		},
		"old versions of TLS": {
			data: map[string]string{"ssl-protocols": "TLSv1 TLSv1.1 TLSv1.2 TLSv1.3"},
			want: `ssl-protocols (TLSv1 TLSv1.1 TLSv1.2 TLSv1.3): a difference, guard
ssl-protocols: global-config-snippet = ssl-default-bind-options ssl-min-ver TLSv1.0 ssl-max-ver TLSv1.3
`,
		},
		"headers, logs and compression": {
			data: map[string]string{
				"hide-headers": "X-A,X-B", "server-tokens": "false", "use-gzip": "true", "gzip-types": "text/css text/plain",
				"enable-syslog": "true", "syslog-host": "192.0.2.9", "keep-alive": "75",
				"proxy-add-original-uri-header": "true", "no-auth-locations": "/.well-known/acme-challenge",
			},
			want: `enable-syslog (true): a difference
gzip-types (text/css text/plain): a difference
hide-headers (X-A,X-B): a difference
keep-alive (75): the same
no-auth-locations (/.well-known/acme-challenge): a difference
proxy-add-original-uri-header (true): the same
server-tokens (false): a difference
syslog-host (192.0.2.9): a difference
use-gzip (true): a difference
enable-syslog: syslog-server = address:192.0.2.9, port:514
hide-headers: response-del-headers = X-A | X-B
keep-alive: timeout-http-keep-alive = 75s
no-auth-locations: acme = true
proxy-add-original-uri-header: request-set-header = X-Original-Uri %[pathq]
server-tokens: response-del-headers = Server
use-gzip: backend-config-snippet = compression algo gzip | compression type text/html text/css text/plain
`,
		},
		"odd values": {
			data: map[string]string{
				"hsts": "maybe", "keep-alive": "75s", "use-gzip": "", "block-cidrs": "10.0.0.0/8,here",
				"block-user-agents": "it's", "ssl-protocols": "TLSv9", "ssl-ciphers": "A B\nC", "http-redirect-code": "303",
				"denylist-source-range": "10.0.0.0/8\x00", "block-referers": strings.Repeat("x", 5000),
				"http-snippet": "deny all;\n", "hide-headers": "X-A\u00e9",
			},
			want: `block-cidrs (10.0.0.0/8,here): not served, guard
block-referers (): not served, guard
block-user-agents (it's): not served, guard
denylist-source-range (10.0.0.0/8` + "\x00" + `): not served, guard
hide-headers (X-Aé): not served
hsts (maybe): refused there too
http-redirect-code (303): refused there too
http-snippet (): not served, guard
keep-alive (75s): refused there too
ssl-ciphers (A B
C): not served, guard
ssl-protocols (TLSv9): not served, guard
use-gzip (): needs nothing
`,
		},
		"unknown keys": {
			data: map[string]string{
				"auth-snippet": "deny all;", "Global-Auth-URL": "http://a.b/", "zipkin-collector-host": "zipkin",
				"whitelist-source-ranges": "10.0.0.0/8", "global-rate-limit-memcached-host": "cache",
				"configuration-snippet": "deny all;",
			},
			want: `Global-Auth-URL (): not served, guard
auth-snippet (): not served, guard
configuration-snippet (): not served, guard
global-rate-limit-memcached-host (): not served, guard
whitelist-source-ranges (): not served, guard
zipkin-collector-host (): had no effect
`,
		},
		"nothing": {},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, told(tt.data)); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
		})
	}
}

func TestThePageHasTheSettings(t *testing.T) {
	var table bytes.Buffer
	fmt.Fprintln(&table, "| key | here | keys | remarks |\n|---|---|---|---|")
	for _, s := range Settings() {
		name, keys := "`"+s.Name+"`", s.Keys
		if s.Guard {
			name += " (guard)"
		}
		if keys != "" {
			keys = "`" + strings.ReplaceAll(keys, ", ", "`, `") + "`"
		}
		fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", name, s.Verdict, keys, s.Note)
	}
	manual.Hold(t, "../NGINX.md", "settings", table.String(), *update)
}

// FuzzReadConfigMap checks that no value of a guard, and no unknown key with the name of one, is lost without
// a word.
func FuzzReadConfigMap(f *testing.F) {
	for _, s := range Settings() {
		f.Add(s.Name, "true", "10.0.0.0/8")
		f.Add(s.Name, "~*a'b", "%[src]\n$1")
	}
	f.Fuzz(func(t *testing.T, name, value, other string) {
		notes, said := ReadConfigMap(map[string]string{
			name: value, "block-user-agents": other, "proxy-real-ip-cidr": value, "use-forwarded-headers": "true",
		})
		for _, n := range notes {
			kept := false
			for _, s := range said {
				kept = kept || s.As == n.Name
				if strings.ContainsAny(s.Text, "\r\x00") {
					t.Errorf("%s: %q", s.As, s.Text)
				}
			}
			if n.Verdict == "" || n.Verdict != Same && n.Verdict != Nothing && n.Why == "" {
				t.Errorf("%s: %q without a reason", n.Name, n.Verdict)
			}
			if n.Name == "block-user-agents" && n.Verdict == Differs && !kept {
				t.Errorf("%q is kept by nothing", other)
			}
		}
	})
}
