package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// clientArg runs this program as a client: it does what lines tell it, and
// answers each with a line.
const clientArg = "client"

// speaker is the address whose connections begin with the PROXY protocol.
const speaker = "192.168.50.99"

// An order is a line for the client. Without Send it asks for "/" on a new
// connection; else it sends that on the WebSocket, which it opens before.
type order struct {
	Address   string // where to
	Host      string
	TLS       bool
	SpeaksFor string // by PROXY, from the address of the speaker
	Send      string
}

// An outcome is what came of it.
type outcome struct {
	Status int
	Seen   seen
	Pod    string
	Heard  string
	Err    string
}

const timeout = 10 * time.Second

func client() {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	var socket net.Conn
	for {
		var o order
		if in.Decode(&o) != nil {
			return
		}
		var result outcome
		var err error
		if o.Send == "" {
			result, err = o.ask()
		} else {
			if socket == nil {
				socket, err = o.open()
			}
			if err == nil {
				result.Heard, err = echo(socket, o.Send)
			}
		}
		if err != nil {
			result.Err = err.Error()
		}
		if out.Encode(result) != nil {
			return
		}
	}
}

func (o order) dial() (net.Conn, error) {
	d := net.Dialer{Timeout: timeout}
	if o.SpeaksFor != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(speaker)}
	}
	conn, err := d.Dial("tcp", o.Address)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(timeout))
	if o.SpeaksFor != "" {
		if _, err := fmt.Fprintf(conn, "PROXY TCP4 %s 192.168.50.21 1 443\r\n", o.SpeaksFor); err != nil {
			return nil, err
		}
	}
	if o.TLS {
		return tls.Client(conn, &tls.Config{ServerName: o.Host, InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}), nil
	}
	return conn, nil
}

func (o order) ask() (result outcome, err error) {
	conn, err := o.dial()
	if err != nil {
		return result, err
	}
	defer conn.Close() //nolint:errcheck // nothing is lost with it
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nAccept: application/json\r\nConnection: close\r\n\r\n", o.Host); err != nil {
		return result, err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return result, err
	}
	defer response.Body.Close() //nolint:errcheck // only read from
	result.Status, result.Pod = response.StatusCode, response.Header.Get("X-Pod")
	if response.StatusCode == http.StatusOK {
		err = json.NewDecoder(response.Body).Decode(&result.Seen)
	}
	return result, err
}

// open begins a WebSocket (RFC 6455).
func (o order) open() (net.Conn, error) {
	conn, err := o.dial()
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(conn, "GET /ws HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n", o.Host); err != nil {
		return nil, err
	}
	// The server says no more until it is asked, so nothing is read too much.
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return nil, err
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusSwitchingProtocols {
		return nil, fmt.Errorf("status %d", response.StatusCode)
	}
	return conn, nil
}

// echo sends a text of less than 126 bytes and hears it back.
func echo(conn net.Conn, text string) (string, error) {
	_ = conn.SetDeadline(time.Now().Add(timeout))
	// FIN and text; masked, with a mask that changes nothing.
	if _, err := conn.Write(append([]byte{0x81, 0x80 | byte(len(text)), 0, 0, 0, 0}, text...)); err != nil {
		return "", err
	}
	back := make([]byte, 2+len(text))
	_, err := io.ReadFull(conn, back)
	return string(back[2:]), err
}

// begin starts a client; tell gives it an order.
func (s *stage) begin(ctx context.Context) (tell func(order) (outcome, error), end func() error, err error) {
	child, err := s.Child(ctx, world.Client, clientArg)
	if err != nil {
		return nil, nil, err
	}
	return func(o order) (result outcome, err error) {
		line, err := json.Marshal(o)
		if err != nil {
			return result, err
		}
		if err := child.Say(string(line)); err != nil {
			return result, err
		}
		err = child.Hear(&result)
		return result, err
	}, child.Close, nil
}

const (
	httpAddress  = "192.168.50.21:80"
	httpsAddress = "192.168.50.21:443"
)

// speakFor holds that a client for whom PROXY speaks is let in, over TLS and, if
// that is not passed through, in the clear, and another is not.
func speakFor(allowed, other string, passed bool) func(context.Context, *stage) error {
	return func(ctx context.Context, s *stage) error {
		tell, end, err := s.begin(ctx)
		if err != nil {
			return err
		}
		defer end() //nolint:errcheck // it has been heard
		return rig.Eventually(ctx, "PROXY is spoken", func() error {
			in, err := tell(order{Address: httpsAddress, Host: s.host, TLS: true, SpeaksFor: allowed})
			if err != nil {
				return err
			}
			if in.Status != http.StatusOK || in.Seen.TLS != passed {
				return fmt.Errorf("for %s: %+v", allowed, in)
			}
			if from := in.Seen.Headers.Get("X-Forwarded-For"); !passed && from != allowed {
				return fmt.Errorf("for %s: X-Forwarded-For is %q", allowed, from)
			}
			out, err := tell(order{Address: httpsAddress, Host: s.host, TLS: true, SpeaksFor: other})
			if err != nil {
				return err
			}
			if passed && out.Err == "" || !passed && out.Status != http.StatusForbidden {
				return fmt.Errorf("for %s: %+v", other, out)
			}
			return nil
		})
	}
}

// scale asks a TCP service without a pause while its pods become three and one
// again: every request has an answer, and HAProxy is not reloaded.
func scale(ctx context.Context, s *stage) error {
	tell, end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end() //nolint:errcheck // it has been heard
	for _, o := range []order{{Address: "192.168.50.21:15432", Host: "x"}, {Address: "192.168.50.21:15433", Host: "x", TLS: true}} {
		if err := rig.Eventually(ctx, "the port answers", func() error {
			if got, err := tell(o); err != nil || got.Status != http.StatusOK {
				return fmt.Errorf("%s: %+v, %w", o.Address, got, err)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	before, err := s.Status(ctx)
	if err != nil {
		return err
	}
	asked := 0
	for _, pods := range []int{3, 1} {
		if _, err := s.Kubectl(ctx, "scale", "deployment", "scaled", fmt.Sprintf("--replicas=%d", pods)); err != nil {
			return err
		}
		failed := error(nil)
		err := rig.Eventually(ctx, "as many pods answer", func() error {
			seen := map[string]bool{}
			for range 12 {
				got, err := tell(order{Address: "192.168.50.21:15432", Host: "x"})
				if err != nil {
					return err
				}
				asked++
				if got.Status != http.StatusOK && failed == nil {
					failed = fmt.Errorf("request %d, on the way to %d pods: %+v", asked, pods, got)
				}
				seen[got.Pod] = true
			}
			if len(seen) != pods {
				return fmt.Errorf("%d pods answer, not %d", len(seen), pods)
			}
			return nil
		})
		if err := errors.Join(err, failed); err != nil {
			return err
		}
	}
	after, err := s.Status(ctx)
	if err != nil {
		return err
	}
	if after.HAProxy.Reloads != before.HAProxy.Reloads {
		return fmt.Errorf("HAProxy was reloaded %d times", after.HAProxy.Reloads-before.HAProxy.Reloads)
	}
	for _, p := range after.Problems {
		if p.Object == "ConfigMap default/tcp" && strings.HasPrefix(p.Why, "key 443:") {
			return nil
		}
	}
	return fmt.Errorf("nobody is told that port 443 cannot be had: %+v", after.Problems)
}

// quic holds that browsers are told of HTTP/3, or else the ConfigMap's author that
// HAProxy is not built with it.
func quic(ctx context.Context, s *stage) error {
	status, err := s.Status(ctx)
	if err != nil {
		return err
	}
	header := `h3=":443"; ma=60`
	for _, p := range status.Problems {
		if p.Object == "ConfigMap default/defaults" && strings.Contains(p.Why, "not built with QUIC") {
			header = "(none)"
		}
	}
	return s.hold(ask{request: "https GET /", want: []string{"200", "response Alt-Svc: " + header}})
}

// reload keeps a WebSocket over reloads that another backend brings about.
func reload(secure bool) func(context.Context, *stage) error {
	return func(ctx context.Context, s *stage) error {
		tell, end, err := s.begin(ctx)
		if err != nil {
			return err
		}
		defer end() //nolint:errcheck // it has been heard
		o := order{Address: httpAddress, Host: s.host}
		if secure {
			o.Address, o.TLS = httpsAddress, true
		}
		send := func(text string) error {
			o.Send = text
			got, err := tell(o)
			if err == nil && got.Heard != text {
				err = fmt.Errorf("sent %q, heard %+v", text, got)
			}
			return err
		}
		if err := rig.Eventually(ctx, "the WebSocket is open", func() error { return send("hello") }); err != nil {
			return err
		}
		for _, weight := range []string{"1s", "2s"} {
			before, err := s.Status(ctx)
			if err != nil {
				return err
			}
			if _, err := s.Kubectl(ctx, "annotate", "--overwrite", "service", s.name, "haproxy.org/timeout-check="+weight); err != nil {
				return err
			}
			err = rig.Eventually(ctx, "a reload", func() error {
				after, err := s.Status(ctx)
				if err == nil && after.HAProxy.Reloads == before.HAProxy.Reloads {
					err = errors.New("there was none")
				}
				return errors.Join(err, send("while it is under way"))
			})
			if err := errors.Join(err, send("after it")); err != nil {
				return err
			}
		}
		return nil
	}
}
