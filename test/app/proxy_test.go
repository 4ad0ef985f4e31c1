package main

import (
	"bufio"
	"io"
	"net"
	"strings"
	"testing"
)

func TestTheBeginningSaysForWhomItSpeaks(t *testing.T) {
	const v2 = "\r\n\r\n\x00\r\nQUIT\n"
	for _, c := range []struct{ in, from, rest string }{
		{"GET / HTTP/1.1\r\n", "invalid AddrPort", "GET / HTTP/1.1\r\n"},
		{"PRI * HTTP/2.0\r\n", "invalid AddrPort", "PRI * HTTP/2.0\r\n"},
		{"PROXY TCP4 10.1.2.3 10.0.0.1 7 80\r\nGET", "10.1.2.3:7", "GET"},
		{"PROXY TCP6 fd00::1 fd00::2 7 80\r\nGET", "[fd00::1]:7", "GET"},
		{"PROXY UNKNOWN\r\nGET", "invalid AddrPort", "GET"},
		{v2 + "\x21\x11\x00\x0e\x0a\x01\x02\x03\x0a\x00\x00\x01\x00\x07\x00\x50TLGET", "10.1.2.3:7", "GET"},
		{v2 + "\x21\x21\x00\x24\xfd" + strings.Repeat("\x00", 14) + "\x01" + strings.Repeat("\x00", 16) +
			"\x00\x07\x00\x50GET", "[fd00::1]:7", "GET"},
		{v2 + "\x20\x00\x00\x00GET", "invalid AddrPort", "GET"},
	} {
		in := bufio.NewReader(strings.NewReader(c.in))
		from, err := readProxy(in)
		rest, _ := io.ReadAll(in)
		if err != nil || from.String() != c.from || string(rest) != c.rest {
			t.Errorf("%q: got %s, %q, %v; want %s, %q", c.in, from, rest, err, c.from, c.rest)
		}
	}
	for _, bad := range []string{
		"PROXY TCP4 10.1.2.3\r\n", "PROXY TCP4 ten 10.0.0.1 7 80\r\n", "PROXY TCP4 10",
		v2 + "\x31\x11\x00\x00", v2 + "\x21\x11\x00\x0c\x0a",
	} {
		if from, err := readProxy(bufio.NewReader(strings.NewReader(bad))); err == nil {
			t.Errorf("%q: got %s, want an error", bad, from)
		}
	}
}

func TestASilentClientKeepsNobodyWaiting(t *testing.T) {
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := spokenFor{plain}
	defer l.Close()
	for _, says := range []string{"", "PROXY TCP4 10.1.2.3 10.0.0.1 7 80\r\n"} {
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if says == "" {
			continue
		}
		if _, err := io.WriteString(client, says); err != nil {
			t.Fatal(err)
		}
		if got := conn.RemoteAddr().String(); got != "10.1.2.3:7" {
			t.Errorf("got %s", got)
		}
	}
}
