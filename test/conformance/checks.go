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
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// clientArg makes this program a client: it executes an order from each line of its input and
// answers with an outcome.
const clientArg = "client"

// speaker is a source address. Connections from it begin with the PROXY protocol.
const speaker = "192.168.50.99"

// An order is one of these, in this order of precedence. Listen: receive HAProxy's log from now
// on. Log: wait for a log line with this text. Raw: send this text on a new connection and read
// until the other side closes it; or until Until, and keep the connection open. Send: send this
// text on the WebSocket, which the first such order opens. None of them: send "GET /" on a new
// connection.
type order struct {
	Address   string // where to
	Host      string
	TLS       bool
	SpeaksFor string // by PROXY, from the address of the speaker
	Send      string
	Raw       string
	Half      bool // closes our side after Raw
	Leave     bool // closes both, and hears nothing
	Until     string
	Listen    bool
	Log       string
}

// An outcome is the result of an order.
type outcome struct {
	Status int
	Seen   seen
	Pod    string
	Heard  string
	Err    string
}

const timeout = 10 * time.Second

// logAddress is the client's address that the ConfigMap names as syslog server.
const logAddress = "192.168.50.10:5514"

func client() {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	var log net.PacketConn
	var socket net.Conn
	for {
		var o order
		if in.Decode(&o) != nil {
			return
		}
		var result outcome
		var err error
		switch {
		case o.Listen:
			log, err = net.ListenPacket("udp", logAddress)
		case o.Log != "":
			result.Heard, err = read(log, o.Log)
		case o.Raw != "" || o.Leave:
			result.Heard, err = o.raw()
		case o.Send == "":
			result, err = o.ask()
		default:
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
		return tls.Client(conn, &tls.Config{
			ServerName: o.Host, InsecureSkipVerify: true,
			NextProtos: []string{"http/1.1"},
		}), nil
	}
	return conn, nil
}

// read waits for a datagram that contains a word.
func read(log net.PacketConn, word string) (string, error) {
	_ = log.SetReadDeadline(time.Now().Add(timeout))
	buffer := make([]byte, 64<<10)
	for {
		n, _, err := log.ReadFrom(buffer)
		if text := string(buffer[:n]); err != nil || strings.Contains(text, word) {
			return text, err
		}
	}
}

func (o order) raw() (heard string, err error) {
	conn, err := o.dial()
	if err != nil {
		return "", err
	}
	if o.Until == "" {
		defer conn.Close() //nolint:errcheck // nothing is lost with it
	} else {
		kept = append(kept, conn)
	}
	if _, err := io.WriteString(conn, o.Raw); err != nil || o.Leave {
		return "", err
	}
	if half, is := conn.(interface{ CloseWrite() error }); is && o.Half {
		if err := half.CloseWrite(); err != nil {
			return "", err
		}
	}
	buffer := make([]byte, 4096)
	for o.Until == "" || !strings.Contains(heard, o.Until) {
		n, err := conn.Read(buffer)
		heard += string(buffer[:n])
		if err != nil {
			if errors.Is(err, io.EOF) && o.Until == "" {
				err = nil
			}
			return heard, err
		}
	}
	return heard, nil
}

// kept holds connections open until the client ends.
var kept []net.Conn

func (o order) ask() (result outcome, err error) {
	conn, err := o.dial()
	if err != nil {
		return result, err
	}
	defer conn.Close() //nolint:errcheck // nothing is lost with it
	if _, err := fmt.Fprintf(conn,
		"GET / HTTP/1.1\r\nHost: %s\r\nAccept: application/json\r\nConnection: close\r\n\r\n", o.Host); err != nil {
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

const upgrade = "GET /ws HTTP/1.1\r\nHost: HOST\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
	"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"

// open opens a WebSocket (RFC 6455).
func (o order) open() (net.Conn, error) {
	conn, err := o.dial()
	if err != nil {
		return nil, err
	}
	if _, err := io.WriteString(conn, strings.ReplaceAll(upgrade, "HOST", o.Host)); err != nil {
		return nil, err
	}
	// The server sends nothing more before a request, so the reader buffers no byte of a frame.
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

// echo sends a text of less than 126 bytes and reads its echo.
func echo(conn net.Conn, text string) (string, error) {
	_ = conn.SetDeadline(time.Now().Add(timeout))
	// FIN and text, masked with zeros.
	if _, err := conn.Write(append([]byte{0x81, 0x80 | byte(len(text)), 0, 0, 0, 0}, text...)); err != nil {
		return "", err
	}
	back := make([]byte, 2+len(text))
	_, err := io.ReadFull(conn, back)
	return string(back[2:]), err
}

// begin starts a client. tell sends it an order and returns the outcome.
func (s *testbed) begin(ctx context.Context) (tell func(order) (outcome, error), end func() error, err error) {
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

// named replaces HOST by the host of the case.
func (s *testbed) named(text string) string { return strings.ReplaceAll(text, "HOST", s.host) }

// of returns the order with HOST replaced by the host of the case.
func (o order) of(s *testbed) order {
	o.Raw = s.named(o.Raw)
	return o
}

// asking runs a check with a client of its own.
func asking(check func(ctx context.Context, s *testbed, tell func(order) (outcome, error)) error) func(
	context.Context, *testbed) error {
	return func(ctx context.Context, s *testbed) error {
		tell, end, err := s.begin(ctx)
		if err != nil {
			return err
		}
		defer end() //nolint:errcheck // it has been heard
		return check(ctx, s, tell)
	}
}

const (
	httpAddress  = "192.168.50.21:80"
	httpsAddress = "192.168.50.21:443"
)

// speakFor checks that a client whom the PROXY protocol names as allowed is admitted, and another
// is not: over TLS and, unless TLS is passed through, in the clear.
func speakFor(allowed, other string, passed bool) func(context.Context, *testbed) error {
	return asking(func(ctx context.Context, s *testbed, tell func(order) (outcome, error)) error {
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
	})
}

// scale sends requests to a TCP service without a pause while its pods become three and one again.
// Every request must be answered, without a reload.
func scale(ctx context.Context, s *testbed, tell func(order) (outcome, error)) error {
	for _, o := range []order{
		{Address: "192.168.50.21:15432", Host: "x"},
		{Address: "192.168.50.21:15433", Host: "x", TLS: true},
	} {
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

// quic checks that answers announce HTTP/3; or, where HAProxy is built without it, that an Event
// on the ConfigMap says so.
func quic(ctx context.Context, s *testbed) error {
	status, err := s.Status(ctx)
	if err != nil {
		return err
	}
	header := `h3=":8443"; ma=99`
	for _, p := range status.Problems {
		if p.Object == "ConfigMap default/defaults" && strings.Contains(p.Why, "not built with QUIC") {
			header = "(none)"
		}
	}
	return s.hold(ask{request: "https GET /", want: []string{"200", "response Alt-Svc: " + header}})
}

// script checks which script a request over FastCGI names, or that HAProxy cannot speak it.
func script(request, file string) check {
	return func(ctx context.Context, s *testbed) error {
		status, err := s.Status(ctx)
		if err != nil {
			return err
		}
		for _, p := range status.Problems {
			if p.Object == "Ingress default/"+s.name && strings.Contains(p.Why, "FastCGI needs HAProxy 3.0") {
				file = "(none)"
			}
		}
		return s.hold(ask{request: request, want: []string{"200", "request X-Script: " + file}})
	}
}

// reload checks that a WebSocket outlives a reload.
func reload(secure bool) func(context.Context, *testbed) error {
	return asking(func(ctx context.Context, s *testbed, tell func(order) (outcome, error)) error {
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
		for _, time := range []string{"1s", "2s"} {
			err := s.reloaded(ctx, func() error { return send("while it is under way") },
				"annotate", "--overwrite", "service", s.name, "haproxy.org/timeout-check="+time)
			if err := errors.Join(err, send("after it")); err != nil {
				return err
			}
		}
		return nil
	})
}

// reloaded runs kubectl with arguments that cause a reload, and waits for it.
func (s *testbed) reloaded(ctx context.Context, meanwhile func() error, kubectl ...string) error {
	before, err := s.Status(ctx)
	if err != nil {
		return err
	}
	if _, err := s.Kubectl(ctx, kubectl...); err != nil {
		return err
	}
	return rig.Eventually(ctx, "a reload", func() error {
		after, err := s.Status(ctx)
		if err == nil && after.HAProxy.Reloads == before.HAProxy.Reloads {
			err = errors.New("there was none")
		}
		return errors.Join(err, meanwhile())
	})
}

func nothing() error { return nil }

// configure changes keys of the ConfigMap, and waits for the reload that follows, unless the
// change may need none. restore brings the old ones back.
func (s *testbed) configure(ctx context.Context, keys []string, live bool) (restore func() error, err error) {
	text, err := s.Kubectl(ctx, "get", "configmap", "defaults", "-o", "json")
	if err != nil {
		return nil, err
	}
	var is struct{ Data map[string]string }
	if err := json.Unmarshal([]byte(text), &is); err != nil {
		return nil, err
	}
	now, then := map[string]*string{}, map[string]*string{} // nil takes a key away
	for _, k := range keys {
		key, value, said := strings.Cut(k, ": ")
		if now[key] = nil; said {
			now[key] = &value
		}
		if then[key] = nil; is.Data[key] != "" {
			then[key] = new(is.Data[key])
		}
	}
	patch := func(data map[string]*string) error {
		text, err := json.Marshal(map[string]any{"data": data})
		if err != nil {
			return err
		}
		args := []string{"patch", "configmap", "defaults", "--type", "merge", "-p", string(text)}
		if live {
			_, err := s.Kubectl(ctx, args...)
			return err
		}
		return s.reloaded(ctx, nothing, args...)
	}
	return func() error { return patch(then) }, patch(now)
}

// hears checks that the answer to raw begins with want, and that HAProxy then closes the
// connection.
func hears(address, raw, want string) func(context.Context, *testbed) error {
	return order{Address: address, Raw: raw}.hears(want)
}

func (o order) hears(want string) func(context.Context, *testbed) error {
	return asking(func(ctx context.Context, s *testbed, tell func(order) (outcome, error)) error {
		return rig.Eventually(ctx, "the answer and the end", func() error {
			got, err := tell(o.of(s))
			if err == nil && (got.Err != "" || !strings.Contains(got.Heard, want)) {
				err = fmt.Errorf("want %q and the end, got %+v", want, got)
			}
			return err
		})
	})
}

// refused checks that nobody listens at the address.
func (o order) refused() func(context.Context, *testbed) error {
	return asking(func(_ context.Context, s *testbed, tell func(order) (outcome, error)) error {
		got, err := tell(o.of(s))
		if err == nil && !strings.Contains(got.Err, "connection refused") {
			err = fmt.Errorf("want no connection, got %+v", got)
		}
		return err
	})
}

// logs checks that the log line with the mark has all of wants, once raw is sent to a port.
func logs(address, raw, mark string, wants ...string) func(context.Context, *testbed) error {
	return order{Address: address, Raw: raw}.logs(mark, wants...)
}

func (o order) logs(mark string, wants ...string) func(context.Context, *testbed) error {
	return asking(func(ctx context.Context, s *testbed, tell func(order) (outcome, error)) error {
		var got outcome
		var err error
		for _, o := range []order{{Listen: true}, o.of(s), {Log: s.named(mark)}} {
			if got, err = tell(o); err != nil || got.Err != "" {
				return fmt.Errorf("%+v: %+v, %w", o, got, err)
			}
		}
		for _, want := range wants {
			if !strings.Contains(got.Heard, s.named(want)) {
				err = errors.Join(err, fmt.Errorf("want %q in %q", s.named(want), got.Heard))
			}
		}
		return err
	})
}

// silent checks that a request has no log line, while a later request to nowhere is in the log.
func silent(raw string) check {
	return asking(func(_ context.Context, s *testbed, tell func(order) (outcome, error)) error {
		var got outcome
		for _, o := range []order{
			{Listen: true},
			{Address: httpAddress, Raw: raw},
			{Address: httpAddress, Raw: "GET /loud-HOST HTTP/1.1\r\nHost: nowhere.HOST\r\nConnection: close\r\n\r\n"},
			{Log: "-HOST"},
		} {
			o.Log = s.named(o.Log)
			var err error
			if got, err = tell(o.of(s)); err != nil || got.Err != "" {
				return fmt.Errorf("%+v: %+v, %w", o, got, err)
			}
		}
		if !strings.Contains(got.Heard, s.named("/loud-HOST")) {
			return fmt.Errorf("the request has a log line: %q", got.Heard)
		}
		return nil
	})
}

// again checks whether four requests on one connection share a connection to the pod. Which one
// they share is HAProxy's choice.
func again(same bool) func(context.Context, *testbed) error {
	from := regexp.MustCompile(`"client":"([^"]*)"`)
	return asking(func(ctx context.Context, s *testbed, tell func(order) (outcome, error)) error {
		request := "GET /?format=json HTTP/1.1\r\nHost: " + s.host + "\r\n"
		got, err := tell(order{Address: httpAddress, Raw: strings.Repeat(request+"\r\n", 3) + request +
			"Connection: close\r\n\r\n"})
		if err != nil {
			return err
		}
		clients := from.FindAllString(got.Heard, -1)
		n := len(clients)
		slices.Sort(clients)
		if n != 4 || len(slices.Compact(clients)) < n != same {
			return fmt.Errorf("the pod saw %q: %+v", clients, got)
		}
		return nil
	})
}

// numbered checks that two requests have identifiers of their own.
func numbered(ctx context.Context, s *testbed) error {
	return asking(func(ctx context.Context, s *testbed, tell func(order) (outcome, error)) error {
		var ids [2]string
		for i := range ids {
			got, err := tell(order{Address: httpAddress, Host: s.host})
			if err != nil {
				return err
			}
			ids[i] = got.Seen.Headers.Get("X-Request-Id")
			if !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(ids[i]) {
				return fmt.Errorf("X-Request-ID is %q", ids[i])
			}
		}
		if ids[0] == ids[1] {
			return fmt.Errorf("two requests are %s", ids[0])
		}
		return nil
	})(ctx, s)
}

// slow is a request whose answer has begun, and does not end.
var slow = order{Address: httpAddress, Raw: "GET /slow?d=1m&by=HOST HTTP/1.1\r\nHost: HOST\r\n\r\n", Until: "200 OK"}

// beside runs a check while the answer to a slow request goes on.
func beside(others func(context.Context, *testbed) error) func(context.Context, *testbed) error {
	return asking(func(ctx context.Context, s *testbed, tell func(order) (outcome, error)) error {
		if got, err := tell(slow.of(s)); err != nil || got.Err != "" {
			return fmt.Errorf("%+v, %w", got, err)
		}
		return others(ctx, s)
	})
}

// attempts repeats a check until it succeeds: HAProxy 2.6 misses some clients that leave right
// after their request.
func attempts(check func(context.Context, *testbed) error) func(context.Context, *testbed) error {
	return func(ctx context.Context, s *testbed) error {
		return rig.Eventually(ctx, "it holds", func() error { return check(ctx, s) })
	}
}

// answered checks the status of a request.
func answered(status string) func(context.Context, *testbed) error {
	return func(_ context.Context, s *testbed) error {
		return s.hold(ask{request: "GET /", want: []string{status}})
	}
}

// listed checks that a client who is added to the list is admitted, without a reload.
func listed(ctx context.Context, s *testbed) error {
	before, err := s.Status(ctx)
	if err != nil {
		return err
	}
	if _, err := s.Kubectl(ctx, "patch", "configmap", "lists", "-p",
		`{"data": {"clients": "10.0.0.0/8\n192.168.50.10\n"}}`); err != nil {
		return err
	}
	if err := rig.Eventually(ctx, "the client is let in", func() error {
		return s.hold(ask{request: "GET /", want: []string{"200"}})
	}); err != nil {
		return err
	}
	after, err := s.Status(ctx)
	if err == nil && after.HAProxy.Reloads != before.HAProxy.Reloads {
		err = fmt.Errorf("HAProxy was reloaded: %s", after.HAProxy.LastReason)
	}
	return err
}

// forgotten checks that a counter with room for one client forgets the first when a second comes.
func forgotten(ctx context.Context, s *testbed, tell func(order) (outcome, error)) error {
	return rig.Eventually(ctx, "the other one has been forgotten", func() error {
		var got []int
		for _, client := range []string{"10.0.0.2", "10.0.0.1", "10.0.0.1"} {
			answer, err := tell(order{Address: httpAddress, Host: s.host, SpeaksFor: client})
			if err != nil {
				return err
			}
			got = append(got, answer.Status)
		}
		if want := []int{http.StatusOK, http.StatusTooManyRequests}; !slices.Equal(got[1:], want) {
			return fmt.Errorf("want %d after another, got %d", want, got)
		}
		return nil
	})
}

// unanswered checks the status of a request to a pod that is gone, whose address the node's routes
// drop.
func unanswered(status string) func(context.Context, *testbed) error {
	return func(ctx context.Context, s *testbed) error {
		blocks, err := s.Kubectl(ctx, "get", "blockaffinities.crd.projectcalico.org", "-o",
			"jsonpath={.items[?(@.spec.node==\"worker1\")].spec.cidr}")
		if err != nil {
			return err
		}
		block, err := netip.ParsePrefix(strings.Fields(blocks + " none")[0])
		if err != nil {
			return err
		}
		last := block.Addr().As4()
		last[3] |= 63
		if err := s.Allocate(ctx, "default", netip.AddrFrom4(last)); err != nil {
			return err
		}
		err = s.Apply(ctx, fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-by-hand, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
endpoints: [{addresses: [%[2]s], conditions: {ready: true}}]
ports: [{name: web, port: 8080}]
`, s.name, netip.AddrFrom4(last)))
		if err != nil {
			return err
		}
		if err := rig.Eventually(ctx, "its server is open", func() error {
			status, err := s.Status(ctx)
			if err != nil {
				return err
			}
			for _, b := range status.Backends {
				if strings.Contains(b.Name, s.name+"_") && b.Open > 0 {
					return nil
				}
			}
			return fmt.Errorf("%+v", status.Backends)
		}); err != nil {
			return err
		}
		return s.hold(ask{request: "GET /", want: []string{status}})
	}
}

// hardStop checks that a reload ends a WebSocket after hard-stop-after.
func hardStop(ctx context.Context, s *testbed, tell func(order) (outcome, error)) error {
	hello := order{Address: httpAddress, Host: s.host, Send: "hello"}
	if got, err := tell(hello); err != nil || got.Heard != "hello" {
		return fmt.Errorf("%+v, %w", got, err)
	}
	if err := s.reloaded(ctx, nothing, "annotate", "--overwrite", "service", s.name,
		"haproxy.org/timeout-check=1s"); err != nil {
		return err
	}
	return rig.Eventually(ctx, "the WebSocket ends", func() error {
		if got, err := tell(hello); err != nil || got.Err == "" {
			return fmt.Errorf("it goes on: %+v, %w", got, err)
		}
		return nil
	})
}
