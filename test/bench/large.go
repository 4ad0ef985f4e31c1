package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1" //nolint:gosec // RFC 6455 wants it
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"sallyport/test/load"
)

// megabyte is the size of the bodies that serveLarge sends and takes.
const megabyte = 1 << 20

// The paths of serveLarge.
const (
	largePath  = "/large"
	socketPath = "/large/socket"
)

// serveLarge serves what pods.cfg cannot: answers and bodies of a megabyte, calls of gRPC, and WebSockets that send
// back each byte. Its own processor time counts for no side.
func serveLarge() (at netip.AddrPort, stop func() error, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return at, nil, err
	}
	body := bytes.Repeat([]byte("0123456789abcdef"), megabyte/16)
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+largePath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body)
	})
	mux.HandleFunc("POST "+largePath, func(w http.ResponseWriter, r *http.Request) {
		if n, err := io.Copy(io.Discard, r.Body); err != nil || n != megabyte {
			http.Error(w, fmt.Sprintf("%d bytes: %v", n, err), http.StatusBadRequest)
			return
		}
		_, _ = io.WriteString(w, "taken\n")
	})
	mux.HandleFunc("GET "+socketPath, sendBack)
	mux.HandleFunc("POST "+callPath, answerCall)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	go func() { _ = server.Serve(l) }()
	return netip.MustParseAddrPort(l.Addr().String()), server.Close, nil
}

// accept returns the field that accepts the handshake of a WebSocket (RFC 6455, 4.2.2).
func accept(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // RFC 6455 wants it
	return base64.StdEncoding.EncodeToString(sum[:])
}

// sendBack accepts a WebSocket, and sends each byte back as it came.
func sendBack(w http.ResponseWriter, r *http.Request) {
	conn, in, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer conn.Close() //nolint:errcheck // the client sees it
	_, err = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Accept: %s\r\n\r\n", accept(r.Header.Get("Sec-WebSocket-Key")))
	if err == nil {
		_, _ = io.Copy(conn, in)
	}
}

// message is a frame of a WebSocket with 32 bytes of text, whose mask is 0 (RFC 6455, 5.2).
var message = append([]byte{0x81, 0x80 | 32, 0, 0, 0, 0}, bytes.Repeat([]byte("x"), 32)...)

// talk adds clients that each keep a WebSocket. A request is a message that comes back.
func (l *drive) talk(ctx context.Context, n int, addr, host string) error {
	const key = "dGhlIHNhbXBsZSBub25jZQ=="
	for range n {
		c, err := load.From(ctx, addr)
		if err != nil {
			return err
		}
		l.stops = append(l.stops, func() { _ = c.Close() })
		in := bufio.NewReader(c)
		_, err = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
			"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\n\r\n", socketPath, host, key)
		if err != nil {
			return err
		}
		answer, err := http.ReadResponse(in, nil) //nolint:bodyclose // the connection goes on, and the answer has no body
		if err != nil {
			return err
		}
		if answer.StatusCode != http.StatusSwitchingProtocols {
			return fmt.Errorf("a WebSocket is answered with %s", answer.Status)
		}
		back := make([]byte, len(message))
		l.clients = append(l.clients, func(int) error {
			err := c.SetDeadline(time.Now().Add(load.Patience))
			if err == nil {
				_, err = c.Write(message)
			}
			if err == nil {
				_, err = io.ReadFull(in, back)
			}
			if err == nil && !bytes.Equal(back, message) {
				err = errors.New("a message came back as another one")
			}
			return err
		})
	}
	return nil
}
