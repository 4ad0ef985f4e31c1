package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// frames are requests that HTTP/2 can express and HTTP/1 cannot: names, then values.
var frames = [][]string{
	{":path", "/admin", "host", "plain.test"},
	{":path", "/admin", ":authority", "plain.test", "host", "guarded.test"},
	{":path", "/admin", ":authority", "plain.test,guarded.test"},
	{":path", "/admin", ":authority", "guarded.test", ":authority", "plain.test"},
	{":path", "/", ":path", "/admin"},
	{":path", "/ HTTP/1.1\r\nHost: guarded.test\r\n\r\nGET /admin"},
	{":path", "/ HTTP/1.1\r\nX-Broken: yes\r\nX:"},
	{":path", "/admin /"},
	{":path", "admin"},
	{":path", "*"},
	{":path", ""},
	{":path", "/\x00admin"},
	{":path", "/./admin"},
	{":path", "//admin"},
	{":path", "http://guarded.test/admin"},
	{":method", "GET /admin HTTP/1.1\r\nHost: guarded.test\r\n\r\nGET"},
	{":method", "GET /admin"},
	{":method", ""},
	{":method", "CONNECT"},
	{":method", "CONNECT", ":protocol", "websocket"},
	{":scheme", "http://guarded.test/admin?"},
	{":scheme", "https /admin"},
	{":scheme", "file"},
	{":authority", "guarded.test\r\nX-Broken: yes"},
	{":authority", "a@guarded.test", ":path", "/admin"},
	{":authority", "guarded.test:80\r\n", ":path", "/admin"},
	{":authority", "guarded.test/admin?"},
	{"x-a", "b\r\nX-Broken: yes"},
	{"x-a", "b\nX-Broken: yes"},
	{"x-a", "b\r\n\r\nGET /admin HTTP/1.1\r\nHost: guarded.test\r\n\r\n"},
	{"x-a\r\nx-broken", "yes"},
	{"x-a: b\r\nx-broken", "yes"},
	{"x-a ", "b"},
	{"X-Broken", "yes"},
	{"", "b"},
	{"transfer-encoding", "chunked"},
	{"transfer-encoding", "identity"},
	{"content-length", "50"},
	{"content-length", "0", "content-length", "50"},
	{"content-length", "+5"},
	{"connection", "x-forwarded-for"},
	{"upgrade", "h2c"},
	{"te", "chunked"},
	{"x-a", "b", ":path", "/admin"},
	{":x-broken", "yes"},
}

// says sends each of frames on a connection of its own, with a body that is a request for the
// guarded page, and checks that no pod sees that request.
func says(ctx context.Context, s *testbed) error {
	const inner = "GET /admin HTTP/1.1\r\nHost: guarded.test\r\nX-Broken: yes\r\n\r\n"
	var errs []error
	for _, fields := range frames {
		for _, body := range []string{"", inner, "0\r\n\r\n" + inner} {
			heard, err := s.frame(ctx, fields, body)
			if err != nil {
				return err
			}
			if shown := guardedPage.FindString(heard); shown != "" && strings.Contains(heard, "namespace: victim") {
				errs = append(errs, fmt.Errorf("%q: %q", fields, shown))
			}
			if lineOfOurs.MatchString(heard) {
				errs = append(errs, fmt.Errorf("%q: a line has come out of it: %q", fields, heard))
			}
		}
	}
	return errors.Join(errs...)
}

// lineOfOurs matches a header, in the answer of a pod, that no client may set.
var lineOfOurs = regexp.MustCompile(`\n(X-Broken: |Transfer-Encoding: |Upgrade: h)`)

// frame sends a request over HTTP/2 and returns the body of the answer, on any stream.
func (s *testbed) frame(ctx context.Context, fields []string, body string) (string, error) {
	conn, err := s.connect(ctx, request{https: true, host: "guarded.test"}, func(c *tls.Config) {
		c.NextProtos = []string{"h2"}
	})
	if err != nil {
		return "", err
	}
	defer conn.Close() //nolint:errcheck // nothing is lost with it
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	said := map[string]bool{}
	for i := 0; i < len(fields); i += 2 {
		said[fields[i]] = true
	}
	field := func(name, value string) { _ = encoder.WriteField(hpack.HeaderField{Name: name, Value: value}) }
	for _, usual := range [][2]string{
		{":method", "POST"},
		{":scheme", "https"},
		{":authority", "guarded.test"},
		{":path", "/"},
	} {
		if !said[usual[0]] {
			field(usual[0], usual[1])
		}
	}
	for i := 0; i < len(fields); i += 2 {
		field(fields[i], fields[i+1])
	}
	framer := http2.NewFramer(conn, conn)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return "", err
	}
	// A closed connection counts as an answer.
	_ = framer.WriteSettings()
	_ = framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true,
		EndStream: body == "",
	})
	if body != "" {
		_ = framer.WriteData(1, true, []byte(body))
	}
	var heard strings.Builder
	for {
		f, err := framer.ReadFrame()
		if err != nil {
			return heard.String(), nil //nolint:nilerr // it was closed: that was all
		}
		if data, is := f.(*http2.DataFrame); is {
			heard.Write(data.Data())
		}
		_, reset := f.(*http2.RSTStreamFrame)
		_, away := f.(*http2.GoAwayFrame)
		if reset || away || f.Header().StreamID == 1 && f.Header().Flags.Has(http2.FlagDataEndStream) &&
			f.Header().Type != http2.FrameSettings {
			return heard.String(), nil
		}
	}
}
