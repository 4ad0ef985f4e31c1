package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
)

// The beginnings of the PROXY protocol, versions 1 and 2
// (https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt).
const (
	proxyText   = "PROXY "
	proxyBinary = "\r\n\r\n\x00\r\nQUIT\n"
)

// A spokenFor is a listener whose connections may begin with the PROXY protocol, version 1 or 2.
// Their remote address is then the client's address in the PROXY protocol.
type spokenFor struct{ net.Listener }

func (l spokenFor) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &spokenForConn{Conn: conn, in: bufio.NewReader(conn)}, nil
}

// A spokenForConn reads the PROXY protocol at its first use, so that a silent client does not keep
// others waiting.
type spokenForConn struct {
	net.Conn
	in   *bufio.Reader
	once sync.Once
	from net.Addr // nil if the connection has no PROXY protocol, or if its header has no address
	err  error
}

func (c *spokenForConn) begin() {
	c.once.Do(func() {
		from, err := readProxy(c.in)
		if c.err = err; from.IsValid() {
			c.from = net.TCPAddrFromAddrPort(from)
		}
	})
}

func (c *spokenForConn) Read(b []byte) (int, error) {
	if c.begin(); c.err != nil {
		return 0, c.err
	}
	return c.in.Read(b)
}

func (c *spokenForConn) RemoteAddr() net.Addr {
	if c.begin(); c.from != nil {
		return c.from
	}
	return c.Conn.RemoteAddr()
}

// readProxy consumes the PROXY protocol at the beginning of a connection, if it is there. The
// address is invalid for LOCAL connections, such as health checks.
func readProxy(in *bufio.Reader) (from netip.AddrPort, err error) {
	// No HTTP request is shorter than these bytes or begins like them.
	switch first, _ := in.Peek(len(proxyText)); string(first) {
	case proxyText:
		line, err := in.ReadString('\n')
		if err != nil {
			return from, err
		}
		words := strings.Fields(line)
		if len(words) != 6 {
			if len(words) > 1 && words[1] == "UNKNOWN" {
				return from, nil
			}
			return from, fmt.Errorf("PROXY: %q has not six words", line)
		}
		return netip.ParseAddrPort(net.JoinHostPort(words[2], words[4]))
	case proxyBinary[:len(proxyText)]:
		var head [16]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return from, err
		}
		if string(head[:12]) != proxyBinary || head[12]>>4 != 2 {
			return from, errors.New("PROXY: not version 2")
		}
		body := make([]byte, binary.BigEndian.Uint16(head[14:]))
		if _, err := io.ReadFull(in, body); err != nil {
			return from, err
		}
		size := map[byte]int{1: 4, 2: 16}[head[13]>>4] // of an address: IPv4, IPv6
		if local := head[12]&0xf == 0; local || size == 0 || len(body) < 2*size+4 {
			return from, nil
		}
		addr, _ := netip.AddrFromSlice(body[:size])
		return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(body[2*size:])), nil
	}
	return from, nil
}
