package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func testServer(t *testing.T) (*app, *httptest.Server) {
	t.Helper()
	a := newApp(func(name string) string {
		return map[string]string{"HOSTNAME": "web-1", "NODE_NAME": "worker1", "POD_NAMESPACE": "default"}[name]
	})
	s := httptest.NewServer(a.handler())
	t.Cleanup(s.Close)
	return a, s
}

func get(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func TestTheEchoSaysWhoAnsweredAndWhatWasAsked(t *testing.T) {
	_, s := testServer(t)
	_, text := get(t, http.MethodGet, s.URL+"/a?b=c", "")
	for _, want := range []string{
		"pod: web-1\n", "node: worker1\n", "GET /a?b=c HTTP/1.1\n", "client: 127.0.0.1:",
		"address: " + s.Listener.Addr().String(),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in:\n%s", want, text)
		}
	}
	_, text = get(t, http.MethodPost, s.URL+"/x?format=json", "12345")
	var got echo
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	if got.Pod != "web-1" || got.Method != http.MethodPost || got.BodyBytes != 5 || got.URL != "/x?format=json" {
		t.Errorf("got %+v", got)
	}
}

func TestHealthCanBeTurnedOffAndOn(t *testing.T) {
	a, s := testServer(t)
	want := func(want int) {
		t.Helper()
		if got, _ := get(t, http.MethodGet, s.URL+"/healthz", ""); got != want {
			t.Errorf("want %d, got %d", want, got)
		}
	}
	want(200)
	get(t, http.MethodPost, s.URL+"/fail", "")
	want(503)
	get(t, http.MethodPost, s.URL+"/heal", "")
	want(200)
	a.draining.Store(true)
	want(503)
	if got, _ := get(t, http.MethodGet, s.URL+"/", ""); got != 200 {
		t.Errorf("a draining app must go on serving, got %d", got)
	}
}

func TestBytesAndSlowGiveWhatWasAsked(t *testing.T) {
	_, s := testServer(t)
	if _, text := get(t, http.MethodGet, s.URL+"/bytes?n=100000", ""); len(text) != 100000 {
		t.Errorf("got %d bytes", len(text))
	}
	if code, _ := get(t, http.MethodGet, s.URL+"/bytes?n=-1", ""); code != 400 {
		t.Errorf("got %d", code)
	}
	if code, _ := get(t, http.MethodPost, s.URL+"/status/418", ""); code != 418 {
		t.Errorf("got %d", code)
	}
	if _, text := get(t, http.MethodGet, s.URL+"/slow?d=1ms&every=1h&deaf", ""); !strings.HasSuffix(text, "done\n") {
		t.Errorf("got %q", text)
	}
}

func TestAWebSocketSaysBackWhatItHears(t *testing.T) {
	_, s := testServer(t)
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	// The key and its answer are the example of RFC 6455, section 1.3.
	fmt.Fprint(conn, "GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n")
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if want, got := "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", resp.Header.Get("Sec-WebSocket-Accept"); resp.StatusCode != 101 ||
		got != want {
		t.Fatalf("want 101 and %s, got %d and %s", want, resp.StatusCode, got)
	}
	// A masked "Hello" and the plain one: section 5.7.
	frames := []struct{ send, want string }{
		{"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58", "\x81\x05Hello"},
		{"\x89\x80\x00\x00\x00\x00", "\x8a\x00"},
		{"\x88\x80\x00\x00\x00\x00", "\x88\x00"},
	}
	for _, f := range frames {
		fmt.Fprint(conn, f.send)
		got := make([]byte, len(f.want))
		if _, err := io.ReadFull(r, got); err != nil || string(got) != f.want {
			t.Fatalf("want %q, got %q, %v", f.want, got, err)
		}
	}
}

func TestARequestInFlightIsAnsweredAfterTheEndBegan(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serve(ctx, []string{addr}, "", "", true, time.Millisecond, 30*time.Second) }()

	var resp *http.Response
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 3000 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/slow?d=300ms", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if resp, err = http.DefaultClient.Do(req); err == nil {
			break
		}
		<-tick.C
	}
	if resp == nil {
		t.Fatal("the app does not answer")
	}
	defer resp.Body.Close()
	cancel()
	text, err := io.ReadAll(resp.Body)
	if err != nil || !strings.HasSuffix(string(text), "done\n") {
		t.Errorf("got %q, %v", text, err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
