package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// clients returns the attacks by a client, who may send any bytes to the appliance.
func clients() []attack {
	all := []attack{
		{
			tries:   "spells a guarded path in another way",
			promise: "a path that a server may read as another one does not pass a guard", holds: spellings,
		},
		{
			tries:   "names a guarded path in X-Original-URL and X-Rewrite-URL",
			promise: "a pod of a guarded host sees no header that replaces the path", holds: otherHeaders,
		},
		{
			tries:   "spells a path in another way where nothing is guarded",
			promise: "other hosts get every path as it was sent", holds: unchanged,
		},
		{
			tries:   "asks in absolute form, with a port, a dot, capitals, a user",
			promise: "one host, however it is written",
			holds: barred(
				"GET http://guarded.test/admin HTTP/1.1\r\nHost: guarded.test\r\n\r\n",
				"GET http://guarded.test/admin HTTP/1.1\r\nHost: plain.test\r\n\r\n",
				"GET https://guarded.test/admin HTTP/1.1\r\nHost: guarded.test\r\n\r\n",
				"GET http://guarded.test:80/admin HTTP/1.1\r\nHost: guarded.test:80\r\n\r\n",
				"GET http://GUARDED.test/admin HTTP/1.1\r\nHost: GUARDED.test\r\n\r\n",
				"GET http://a@guarded.test/admin HTTP/1.1\r\nHost: guarded.test\r\n\r\n",
				"GET /admin HTTP/1.1\r\nHost: guarded.test:80\r\n\r\n",
				"GET /admin HTTP/1.1\r\nHost: guarded.test:443\r\n\r\n",
				"GET /admin HTTP/1.1\r\nHost: guarded.test:99999\r\n\r\n",
				"GET /admin HTTP/1.1\r\nHost: guarded.test:\r\n\r\n",
				"GET /admin HTTP/1.1\r\nHost: guarded.test.\r\n\r\n",
				"GET /admin HTTP/1.1\r\nHost: guarded.test.:80\r\n\r\n",
				"GET /admin HTTP/1.1\r\nHost: GuArDeD.TeSt\r\n\r\n",
				"GET /admin HTTP/1.1\r\nHost: a@guarded.test\r\n\r\n",
				"GET /admin HTTP/1.1\r\nHost:guarded.test\r\n\r\n",
				"GET /admin HTTP/1.1\r\nHost: \tguarded.test \r\n\r\n",
				"GET /admin HTTP/1.0\r\nHost: guarded.test\r\n\r\n",
				"GET /admin?/ HTTP/1.1\r\nHost: guarded.test\r\n\r\n",
				"GET /admin#/ HTTP/1.1\r\nHost: guarded.test\r\n\r\n",
			),
		},
		{
			tries: "names two hosts, or a list", promise: "one host has one meaning everywhere",
			holds: both(barred(
				"GET /admin HTTP/1.1\r\nHost: plain.test\r\nHost: guarded.test\r\n\r\n",
				"GET /admin HTTP/1.1\r\nHost: guarded.test\r\nHost: plain.test\r\n\r\n",
				"GET /admin HTTP/1.1\r\nHost: plain.test,guarded.test\r\n\r\n",
				"GET /admin HTTP/1.1\r\nHost: guarded.test, plain.test\r\n\r\n",
				"GET /admin HTTP/1.1\r\nHost: plain.test guarded.test\r\n\r\n",
				"GET /admin HTTP/1.1\r\nHost: guarded.test/plain.test\r\n\r\n",
				"GET /admin HTTP/1.1\r\nHost: plain.test\r\n Host: guarded.test\r\n\r\n",
				"GET http://plain.test/admin HTTP/1.1\r\nHost: guarded.test\r\n\r\n",
				"GET /admin HTTP/1.1\r\nX-Forwarded-Host: plain.test\r\nHost: guarded.test\r\n\r\n",
			), rejected("400",
				"GET / HTTP/1.1\r\nHost: plain.test,asked.test\r\n\r\n",
				"GET / HTTP/1.1\r\nHost: asked.test,plain.test\r\n\r\n",
				"GET / HTTP/1.1\r\nHost: plain.test, members.test\r\n\r\n",
			)),
		},
		{
			tries: "names no host", promise: "nothing of a host is served without its name",
			holds: barred(
				"GET /admin HTTP/1.1\r\n\r\n",
				"GET /admin HTTP/1.0\r\n\r\n",
				"GET /admin HTTP/1.1\r\nHost:\r\n\r\n",
				"GET /admin HTTP/1.1\r\nHost: 192.168.50.21\r\n\r\n",
				"GET /admin\r\n",
			),
		},
		{
			tries:   "sends no name, or another host's, in the TLS handshake",
			promise: "a host that demands certificates answers only on connections opened under its own name",
			holds:   otherNames,
		},
		{
			tries:   "asks for a guarded host by another one's HTTP/2 connection",
			promise: "a host that demands certificates answers only on connections opened under its own name",
			holds:   coalesced,
		},
		{
			tries: "ends lines where none ends", promise: "what a client sends becomes no line of a request or an answer",
			holds: lineEnds,
		},
		{
			tries: "hides a request in another one", promise: "HAProxy and pods see the same requests",
			holds: barred(smuggled()...),
		},
		{
			tries: "sends in HTTP/2 what HTTP/1 cannot express", promise: "HAProxy and pods see the same requests",
			holds: says,
		},
		{
			tries: "asks for HTTP/2 in the clear by an upgrade", promise: "an upgrade to h2c is never passed on",
			holds: upgrades,
		},
		{
			tries: "claims another client's address",
			promise: "the PROXY protocol counts from addresses that the operator names; headers about the client are " +
				"the appliance's own", holds: speaksFor,
		},
		{
			tries:   "sends headers that a pod may take for ours",
			promise: "a client cannot set the headers that the appliance sets",
			holds: both(
				sees(request{https: true, host: "bank.test", header: "X-Client: root\r\nX_Client: root\r\n"}, true,
					"X-Client", "victim"),
				both(sees(request{host: "plain.test", header: "X-Forwarded-Proto: https\r\n"}, false,
					"X-Forwarded-Proto", "http"),
					sees(request{host: "plain.test", header: "Connection: X-Forwarded-For, " +
						"X-Forwarded-Proto, close\r\n"}, false, "X-Forwarded-Proto", "http"))),
		},
		{
			tries:   "reads from one page the answer that another page's credentials got",
			promise: "an answer that depends on the origin has Vary: Origin", holds: origins,
		},
		{
			tries: "sends long passwords against slow hashes", promise: "the cost of a wrong password is bounded",
			holds: longPasswords,
		},
	}
	for i := range all {
		all[i].by = "client"
	}
	return all
}

// spelling lists other ways to write /admin that some servers take for it.
var spelling = []string{
	"/%61dmin", "/%61%64%6d%69%6e", "/%2561dmin", "/a/..%2fadmin", "/a%2f../admin", "/a/../admin", "/a/%2e%2e/admin",
	"/%2e/admin", "/.%2e/admin", "//admin", "///admin", "/./admin",
	"/admin;x", "/admin;/../", "/;/admin", "/;x=1/admin", "/a/..;/admin", "/a/..;x/admin", "/%2fadmin", "/\\admin",
	"/%5cadmin", "/a\\..\\admin", "/a/..%5cadmin", "/admin%00", "/admin%2f", "/admin%3b",
	"/%c0%afadmin", "/a/%c0%ae%c0%ae/admin", "/admin%0a", "/admin%09", "/%u0061dmin", "/admi%6e/", "/admin/..%2fadmin",
}

// spellings checks that no pod of a guarded host sees any spelling of the guarded path.
func spellings(ctx context.Context, s *testbed) error {
	var texts []string
	for _, p := range spelling {
		texts = append(texts, "GET "+p+" HTTP/1.1\r\nHost: guarded.test\r\nConnection: close\r\n\r\n")
	}
	return s.hears(ctx, texts, "guarded.test", func(heard string) string {
		if strings.Contains(strings.ToLower(heard), "x-pod: victim") {
			return "it came to the pod"
		}
		return ""
	})
}

// unchanged checks that a host without a guard gets each path as the client wrote it, unless it is
// malformed.
func unchanged(ctx context.Context, s *testbed) error {
	var errs []error
	for _, p := range spelling {
		got, err := s.ask(ctx, request{host: "plain.test", target: p})
		if err != nil {
			return err
		}
		if got.status == http.StatusOK && got.saw.URL != p {
			errs = append(errs, fmt.Errorf("%s came as %s", p, got.saw.URL))
		}
		refused := got.status == http.StatusBadRequest && got.pod == "" && malformed.MatchString(p)
		if got.status != http.StatusOK && !refused && got.header.Get("X-Pod") == "" {
			errs = append(errs, fmt.Errorf("%s: %.100s", p, got))
		}
	}
	return errors.Join(errs...)
}

// malformed matches paths that Go's server or HAProxy rejects for every host.
var malformed = regexp.MustCompile(`%u|\\`)

// barred checks that none of the texts, alone or all on one connection, gets the guarded page or
// anything else of guarded.test.
func barred(texts ...string) func(context.Context, *testbed) error {
	return func(ctx context.Context, s *testbed) error {
		return s.hears(ctx, texts, "guarded.test", func(heard string) string {
			for told := range strings.SplitSeq(heard, "pod: ") {
				if strings.HasPrefix(told, "victim") {
					if shown := guardedPage.FindString(told); shown != "" {
						return strconv.Quote(shown)
					}
				}
			}
			return ""
		})
	}
}

// guardedPage matches the answer of victim's pod to a request for the guarded page, as text or as
// JSON.
var guardedPage = regexp.MustCompile(
	`(?i)(GET|POST|HEAD) (http://[^/]*)?/admin[^\n]*\nHost: ([^\n]*guarded|plain\.test[, ]|a@)[^\n]*`)

// rejected checks that each text gets this status.
func rejected(status string, texts ...string) func(context.Context, *testbed) error {
	return func(ctx context.Context, s *testbed) error {
		var errs []error
		for _, text := range texts {
			heard, err := s.hear(ctx, request{raw: text})
			if err == nil && !strings.HasPrefix(heard, "HTTP/1.1 "+status) {
				err = fmt.Errorf("%q: want %s, got %.60q", text, status, heard)
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
}

func otherNames(ctx context.Context, s *testbed) error {
	var errs []error
	for _, name := range []string{noSNI, "shop.test", "nobody.example", evilHost, "plain.test", "BANK.test.evil.test"} {
		for _, cert := range []*tls.Certificate{nil, &s.victim.client, &s.evil.client} {
			for _, host := range []string{"bank.test", "BANK.TEST", "bank.test:443", "bank.test."} {
				got, err := s.ask(ctx, request{https: true, sni: name, host: host, cert: cert})
				if err != nil {
					return err
				}
				if got.pod == "victim" {
					errs = append(errs, fmt.Errorf("by the name %s to %s: %.40s", name, host, got))
				}
			}
		}
	}
	for _, host := range []string{"bank.test", "bank.test:80", "bank.test:443"} {
		got, err := s.ask(ctx, request{host: host, header: "X-Forwarded-Proto: https\r\n"})
		if err != nil {
			return err
		}
		if got.pod == "victim" {
			errs = append(errs, fmt.Errorf("plain HTTP to %s: %.40s", host, got))
		}
	}
	return errors.Join(errs...)
}

// coalesced sends requests for several hosts over one HTTP/2 connection, as browsers do.
func coalesced(ctx context.Context, s *testbed) error {
	transport := &http.Transport{
		Protocols: new(http.Protocols),
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return s.connect(ctx, request{https: true, host: "shop.test", cert: &s.evil.client}, func(c *tls.Config) {
				c.NextProtos = []string{"h2"}
			})
		},
	}
	transport.Protocols.SetHTTP2(true)
	conn, err := transport.NewClientConn(ctx, "https", "shop.test:443")
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // nothing is lost with it
	var errs []error
	for _, one := range []struct{ host, target, want string }{
		{"shop.test", "/cart", "200 victim-app"},
		{"bank.test", "/", ""},
		{"BANK.test", "/", ""},
		{"bank.test:443", "/", ""},
		{"guarded.test", "/admin", ""},
		{"guarded.test", "/%61dmin", ""},
		{"guarded.test", "/./admin", ""},
		{"bank.test:80", "/", ""},
		{"shop.test", "/api", "200 victim-app"},
		{"plain.test,asked.test", "/", ""},
	} {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://shop.test", http.NoBody)
		if err != nil {
			return err
		}
		r.Host, r.URL.Opaque = one.host, one.target
		response, err := conn.RoundTrip(r)
		if err != nil && one.want == "" {
			continue // the stream was reset
		}
		if err != nil {
			return fmt.Errorf("%s%s: %w", one.host, one.target, err)
		}
		_ = response.Body.Close()
		got := fmt.Sprint(response.StatusCode, " ", response.Header.Get("X-Pod"))
		if want := one.want; want != "" && got != want || want == "" && strings.Contains(got, "victim") {
			errs = append(errs, fmt.Errorf("%s%s: want %q, got %q", one.host, one.target, want, got))
		}
	}
	return errors.Join(errs...)
}

// lineEnds checks that line ends in paths and headers start no new line.
func lineEnds(ctx context.Context, s *testbed) error {
	var errs []error
	for _, r := range []request{
		{host: "shop.test", target: "/cart/%0d%0aX-Broken:%20yes"},
		{host: "shop.test", target: "/cart?%0d%0aX-Broken:%20yes"},
		{host: "shop.test", target: "/cart/%E5%98%8D%E5%98%8AX-Broken:%20yes"},
		{host: "plain.test", target: "/%0d%0aX-Broken:%20yes"},
		{host: "cors.test", header: "Origin: https://a%0d%0aX-Broken: yes\r\n"},
		{host: "plain.test", header: "X-A: b\rX-Broken: yes\r\n"},
		{host: "plain.test", header: "X-A: b\nX-Broken-Not: yes\r\n"},
		{host: "plain.test", header: "X-A\x00: b\r\n"},
		{host: "plain.test", header: "X-A : b\r\n"},
		{host: "plain.test", header: "X-A: b\x00c\r\n"},
		{host: "plain.test", header: ": b\r\n"},
		{host: "plain.test", header: " X-Broken: yes\r\n"},
	} {
		got, err := s.ask(ctx, r)
		if err != nil {
			return err
		}
		if got.header.Get("X-Broken") != "" || got.saw.Headers.Get("X-Broken") != "" {
			errs = append(errs, fmt.Errorf("%s: a line has come out of it", r))
		}
	}
	return errors.Join(errs...)
}

// smuggled returns requests that two parsers may split in two ways. The parser that sees a second
// request sees one for the guarded page.
func smuggled() []string {
	const inner = "GET /admin HTTP/1.1\r\nHost: guarded.test\r\nX-A: b\r\n\r\n"
	head := "POST / HTTP/1.1\r\nHost: guarded.test\r\n"
	chunked := func(text string) string { return fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(text), text) }
	length := func(n int) string { return fmt.Sprintf("Content-Length: %d\r\n", n) }
	var all []string
	// Both Content-Length and chunks: one parser reads the one body, one the other.
	for _, te := range []string{
		"Transfer-Encoding: chunked", "transfer-encoding:chunked", "Transfer-Encoding : chunked",
		"Transfer-Encoding: xchunked", "Transfer-Encoding: chunked, identity", "Transfer-Encoding: identity, chunked",
		"Transfer-Encoding: chunked\r\nTransfer-Encoding: x", "Transfer-Encoding: x\r\nTransfer-Encoding: chunked",
		"Transfer-Encoding:\tchunked", "Transfer-Encoding: \x0bchunked", "Transfer-Encoding: \"chunked\"",
		"Transfer-Encoding\r\n : chunked", "Transfer-Encoding:\r\n chunked", "X: y\nTransfer-Encoding: chunked",
		"X: y\rTransfer-Encoding: chunked", "Transfer-Encoding: chunked\x00", "Transfer_Encoding: chunked",
		"Transfer-Encoding: CHUNKED",
		"Transfer-Encoding: chunked;a=b", "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: chunked, chunked",
		"\x20Transfer-Encoding: chunked", "Transfer-Encoding:", "Transfer-Encoding: ,chunked",
	} {
		all = append(all,
			head+length(len("0\r\n\r\n"+inner))+te+"\r\n\r\n0\r\n\r\n"+inner,
			head+te+"\r\n"+length(4)+"\r\n"+chunked(inner)[:0]+fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(inner), inner),
		)
	}
	// Two lengths, and lengths that are no numbers.
	for _, l := range []string{
		"Content-Length: 0\r\nContent-Length: %d", "Content-Length: %d\r\nContent-Length: 0", "Content-Length: 0, %d",
		"Content-Length: +%d", "Content-Length: 0%d", "Content-Length: 0x%x", "Content-Length: %d ",
		"Content-Length: -%d", "Content-Length : %d",
		"Content-Length:\x0b%d", "Content-Length: %d\x00", "Content_Length: %d",
		"Content-Length: 0\r\nContent_Length: %d", "Content-Length: %d;x", "Content-Length:\r\n %d",
		"X: y\nContent-Length: %d", "Content-Length: 99999999999999999999%d",
		"Connection: Content-Length\r\nContent-Length: %d",
		"Connection: close, Content-Length, Host\r\nContent-Length: %d",
	} {
		all = append(all, head+fmt.Sprintf(l, len(inner))+"\r\n\r\n"+inner)
	}
	// Chunks that two parsers read in two ways.
	for _, c := range []string{
		"0;\n\r\n\r\n", "0\n\n", "0\r\r\n\r\n", "0 \r\n\r\n", "0x0\r\n\r\n", "00000000000000000000\r\n\r\n",
		"1;a=\"\r\n\"\r\nx\r\n0\r\n\r\n", "2;\rxx\r\nab\r\n0\r\n\r\n", "1\r\nxx0\r\n\r\n",
		"10000000000000001\r\nx\r\n0\r\n\r\n", "-1\r\n\r\n", "0\r\nContent-Length: 50\r\n\r\n", "0\r\nX: y\n\r\n",
	} {
		all = append(all, head+"Transfer-Encoding: chunked\r\n\r\n"+c+inner)
	}
	// A request without a body, and one with Expect.
	return append(all,
		"GET / HTTP/1.1\r\nHost: guarded.test\r\n"+length(len(inner))+"\r\n"+inner,
		"HEAD / HTTP/1.1\r\nHost: guarded.test\r\n"+length(len(inner))+"\r\n"+inner,
		"POST / HTTP/1.0\r\nHost: guarded.test\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n0\r\n"+
			"\r\n"+inner,
		head+"Expect: 100-continue\r\n"+length(len(inner))+"\r\n"+inner,
		head+"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"+inner,
		"GET / HTTP/1.1\r\nHost: guarded.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
			"Sec-WebSocket-Version: 99\r\n\r\n"+inner,
		"GET /ws HTTP/1.1\r\nHost: guarded.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"+inner,
		"CONNECT guarded.test:80 HTTP/1.1\r\nHost: guarded.test\r\n\r\n"+inner,
		"GET / HTTP/1.1\nHost: guarded.test\n\n"+inner,
		"GET / HTTP/1.1\r\nHost: guarded.test\r\nX: y\r\n GET /admin HTTP/1.1\r\n\r\n",
		"GET / HTTP/2.0\r\nHost: guarded.test\r\n\r\n"+inner,
		"GET / HTTP/1.1 HTTP/1.1\r\nHost: guarded.test\r\n\r\n"+inner,
		"GET / HTTP/1.1\r\nHost: guarded.test\r\n\r\n\r\n\r\n"+inner,
	)
}

// upgrades checks that no pod is asked for HTTP/2 in the clear, and that WebSockets still work.
func upgrades(ctx context.Context, s *testbed) error {
	var texts []string
	for _, how := range []string{
		"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n",
		"Upgrade: H2C\r\nConnection: Upgrade\r\n", "Upgrade: websocket, h2c\r\nConnection: Upgrade\r\n",
		"Upgrade: h2c\r\nUpgrade: websocket\r\nConnection: upgrade\r\n", "Upgrade: h2c/1\r\nConnection: Upgrade\r\n",
		"Upgrade:\th2c\r\nConnection: keep-alive, Upgrade\r\n", "Upgrade: HTTP/2.0\r\nConnection: Upgrade\r\n",
		"Upgrade: h2\r\nConnection: Upgrade\r\n",
	} {
		texts = append(texts, "GET / HTTP/1.1\r\nHost: guarded.test\r\n"+how+"\r\n")
	}
	passed := s.hears(ctx, texts, "guarded.test", func(heard string) string {
		_, upgrade, is := strings.Cut(heard, "\nUpgrade: ")
		if strings.HasPrefix(heard, "HTTP/1.1 101") || is &&
			strings.Contains(strings.ToLower(strings.SplitN(upgrade, "\n", 2)[0]), "h") {
			return "it came to the pod"
		}
		return ""
	})
	heard, err := s.hear(ctx,
		request{
			host: "guarded.test",
			raw: "GET /ws HTTP/1.1\r\nHost: guarded.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
				"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
		})
	if err == nil && !strings.HasPrefix(heard, "HTTP/1.1 101") {
		err = fmt.Errorf("a WebSocket is not opened: %.60q", heard)
	}
	return errors.Join(passed, err)
}

func speaksFor(ctx context.Context, s *testbed) error {
	return errors.Join(
		barred(
			"PROXY TCP4 10.99.0.1 192.168.50.21 1 80\r\nGET /admin HTTP/1.1\r\nHost: guarded.test\r\n\r\n",
			"\r\n\r\n\x00\r\nQUIT\n"+
				"\x21\x11\x00\x0c\x0a\x63\x00\x01\xc0\xa8\x32\x15\x00\x01\x00\x50GET /admin HTTP/1.1\r\n"+
				"Host: guarded.test\r\n\r\n",
			"GET /admin HTTP/1.1\r\nHost: guarded.test\r\nX-Forwarded-For: 10.99.0.1\r\n\r\n",
			"GET /admin HTTP/1.1\r\nHost: guarded.test\r\nX-Real-IP: 10.99.0.1\r\nForwarded: for=10.99.0.1\r\n"+
				"True-Client-IP: 10.99.0.1\r\nX-Client-IP: 10.99.0.1\r\nClient-IP: 10.99.0.1\r\n\r\n",
		)(ctx, s),
		func() error {
			got, err := s.ask(ctx, request{host: "plain.test", header: "X-Forwarded-For: 10.99.0.1\r\n"})
			if all := got.saw.Headers.Values("X-Forwarded-For"); err == nil &&
				(len(all) == 0 || !strings.HasSuffix(all[len(all)-1], clientAddr)) {
				err = fmt.Errorf("the last X-Forwarded-For is not the client's: %q", all)
			}
			return err
		}(),
	)
}

// sees checks that a pod gets this one value of a header, under all names that servers may treat
// as the same header.
func sees(r request, withCert bool, header, want string) func(context.Context, *testbed) error {
	return func(ctx context.Context, s *testbed) error {
		if withCert {
			r.cert = &s.victim.client
		}
		got, err := s.ask(ctx, r)
		if err != nil || got.pod != "victim" {
			return errors.Join(err, fmt.Errorf("%s: %.300s", r, got))
		}
		for name, values := range got.saw.Headers {
			same := strings.EqualFold(strings.NewReplacer("_", "-", ".", "-").Replace(name), header)
			if all := strings.Join(values, " | "); same && (all != want || !strings.EqualFold(name, header)) {
				err = errors.Join(err, fmt.Errorf("the pod saw %s: %s", name, all))
			}
		}
		if got.saw.Headers.Get(header) == "" {
			err = errors.Join(err, fmt.Errorf("the pod saw no %s", header))
		}
		return err
	}
}

// origins checks the CORS headers of answers to pages of other origins.
func origins(ctx context.Context, s *testbed) error {
	var errs []error
	const page = "Origin: https://page.test\r\n"
	for _, r := range []request{
		{host: "cors.test", header: page},
		{host: "cors.test"},
		{host: "cors.test", method: "OPTIONS", header: page +
			"Access-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: x-a, x-b\r\n"},
	} {
		got, err := s.ask(ctx, r)
		if err != nil {
			return err
		}
		if !strings.Contains(strings.Join(got.header.Values("Vary"), ","), "Origin") {
			errs = append(errs, fmt.Errorf("%s: there is no Vary: Origin", r))
		}
		for _, name := range []string{
			"Access-Control-Allow-Origin", "Access-Control-Allow-Methods",
			"Access-Control-Allow-Headers",
		} {
			if got.header.Get(name) == "*" {
				errs = append(errs, fmt.Errorf("%s: %s: *, which browsers take literally with credentials", r, name))
			}
		}
	}
	return errors.Join(errs...)
}

// longPasswords checks that a password of 510 bytes costs about as much as one of three.
func longPasswords(ctx context.Context, s *testbed) error {
	cost := func(password string) (time.Duration, error) {
		return s.cost(ctx, func() error {
			for range 50 {
				got, err := s.ask(ctx, request{
					host:   "members.test",
					header: "Authorization: Basic " + encode("ann:"+password) + "\r\n",
				})
				if err != nil || got.pod != "" {
					return errors.Join(err, fmt.Errorf("%.100s", got))
				}
			}
			return nil
		})
	}
	short, err := cost("abc")
	if err != nil {
		return err
	}
	long, err := cost(strings.Repeat("abc", 170))
	if err == nil && long > 2*short+100*time.Millisecond {
		err = fmt.Errorf("50 passwords of 3 bytes cost %s of a processor, as many of 510 cost %s", short, long)
	}
	// While so many are wrong, only a password that is remembered passes.
	return errors.Join(err, s.eventually(ctx, func() error {
		return s.gets(ctx, "200 victim", request{host: "members.test", header: basicAuth})
	}))
}
