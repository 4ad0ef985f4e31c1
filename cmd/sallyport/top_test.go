package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"sallyport/appliance/status"
)

// busy serves /top as an appliance with three backends does, and notes what it was asked.
func busy(t *testing.T) (address string, asked func() string) {
	t.Helper()
	var mu sync.Mutex
	var last string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		last = r.URL.String()
		mu.Unlock()
		now, ms := time.Date(2026, 7, 1, 12, 0, 4, 0, time.UTC), 12.4
		_ = json.NewEncoder(w).Encode(status.TopStatus{
			Identity: "gate-1", Now: now, At: now.Add(-4 * time.Second), Total: 3,
			Whole: status.BackendRate{Requests: 107.5, Errors: 0.5, Connections: 9, Open: 5},
			Backends: []status.BackendRate{
				{Name: "shop_svc_web_80", Requests: 99, Connections: 7, Open: 3, Response: &ms},
				{Name: "shop_svc_api_80", Requests: 8.5, Errors: 0.5, Connections: 2, Open: 2, Response: &ms},
				{Name: "shop_svc_gone_" + r.URL.Query().Get("sort"), Open: 0},
			},
			Clusters: []status.BackendRate{
				{Name: "blue", Requests: 107.5, Errors: 0.5, Connections: 9, Open: 5, Response: &ms}, {Name: "green"},
			},
		})
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://"), func() string {
		mu.Lock()
		defer mu.Unlock()
		return last
	}
}

func TestTopWritesOneSampleWhereNobodyLooks(t *testing.T) {
	address, asked := busy(t)
	code, got, stderr := sallyport("top", "--address", address)
	want := `gate-1, 4s ago: 107.5 requests/s, 0.5 errors/s, 9 connections, 5 open servers, 3 backends
BACKEND                 REQUESTS/S  ERRORS/S  CONNECTIONS  RESPONSE-MS  OPEN-SERVERS
shop_svc_web_80               99.0       0.0            7           12             3
shop_svc_api_80                8.5       0.5            2           12             2
shop_svc_gone_requests         0.0       0.0            0            -             0
`
	if code != 0 || got != want || asked() != "/top?sort=requests" {
		t.Errorf("%d, %s, asked for %s; got\n%s\nwant\n%s", code, stderr, asked(), got, want)
	}
	want = `gate-1, 4s ago: 107.5 requests/s, 0.5 errors/s, 9 connections, 5 open servers, 3 backends
CLUSTER  REQUESTS/S  ERRORS/S  CONNECTIONS  RESPONSE-MS  OPEN-SERVERS
blue          107.5       0.5            9           12             5
green           0.0       0.0            0            -             0
`
	if _, got, _ := sallyport("top", "--address", address, "--by", "cluster"); got != want {
		t.Errorf("by cluster: got\n%s\nwant\n%s", got, want)
	}
	if _, got, _ := sallyport("top", "--address", address, "--once", "--sort", "errors", "-n",
		"5"); asked() != "/top?n=5&sort=errors" || strings.Contains(got, "\x1b") {
		t.Errorf("asked for %s, got %q", asked(), got)
	}
	for form, decode := range map[string]func([]byte, any) error{
		"json": json.Unmarshal,
		"yaml": func(text []byte, to any) error { return yaml.Unmarshal(text, to) },
	} {
		var s status.TopStatus
		if _, got, _ := sallyport("top", "--address", address, "-o", form); decode([]byte(got), &s) != nil ||
			len(s.Backends) != 3 || *s.Backends[0].Response != 12.4 {
			t.Errorf("%s: got %s", form, got)
		}
	}
	for _, args := range [][]string{{"--sort", "colour"}, {"--lines", "-1"}, {"--by", "node"}} {
		if code, _, stderr := sallyport(append([]string{"top", "--address", address}, args...)...); code != exitUsage {
			t.Errorf("%v: got exit code %d, %s", args, code, stderr)
		}
	}
}

func TestTopWithoutASampleSaysWhenThereIsOne(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(status.TopStatus{Identity: "gate-1"})
	}))
	defer server.Close()
	if _, got, _ := sallyport("top", "--address", strings.TrimPrefix(server.URL, "http://")); !strings.HasPrefix(got,
		"gate-1: no sample: ") {
		t.Errorf("got %q", got)
	}
}

// terminal opens a pseudoterminal, and returns the end of a person and that of a program.
func terminal(t *testing.T, columns, lines uint16) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { person.Close() })
	fd := int(person.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: lines}); err != nil {
		t.Fatal(err)
	}
	return person, program
}

func TestTopFollowsTheSamplesAndTheKeys(t *testing.T) {
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	address, asked := busy(t)
	person, program := terminal(t, 60, 9)
	before, err := unix.IoctlGetTermios(int(program.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	root := command()
	root.SetArgs([]string{"top", "--address", address})
	root.SetIn(program)
	root.SetOut(program)
	done := make(chan error, 1)
	go func() { done <- root.ExecuteContext(t.Context()) }()

	var mu sync.Mutex
	var seen strings.Builder
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := person.Read(buf)
			mu.Lock()
			seen.Write(buf[:n])
			mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	shows := func(text string) {
		t.Helper()
		eventually(t, "the terminal shows "+text, func() error {
			mu.Lock()
			defer mu.Unlock()
			if !strings.Contains(seen.String(), text) {
				return fmt.Errorf("it shows %q", seen.String())
			}
			return nil
		})
	}
	shows("order: requests;")
	if asked() != "/top?n=5&sort=requests" {
		t.Errorf("asked for %s, want as many backends as there is room for", asked())
	}
	shows("\x1b[31mshop_svc_api_80")
	for key, order := range map[string]string{"e": "errors", "o": "open"} {
		if _, err := io.WriteString(person, key); err != nil {
			t.Fatal(err)
		}
		shows("order: " + order + ";")
		shows("shop_svc_gone_" + order)
	}
	if err := unix.IoctlSetWinsize(int(person.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: 30, Row: 12}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the view has the new size", func() error {
		if !strings.Contains(asked(), "n=8&") {
			return fmt.Errorf("asked for %s", asked())
		}
		return nil
	})
	if _, err := io.WriteString(person, "q"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	shows("\x1b[?25h\x1b[?1049l")
	after, err := unix.IoctlGetTermios(int(program.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the terminal has other settings than before: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	for line := range strings.SplitSeq(strings.ReplaceAll(seen.String(), "\x1b[H", "\r\n"), "\r\n") {
		if text := regexp.MustCompile(`\x1b\[[?0-9;]*[A-Za-z]`).ReplaceAllString(line, ""); len([]rune(text)) > 60 {
			t.Errorf("a line is wider than the terminal: %q", text)
		}
	}
}

func TestTopGoesOnWhileTheApplianceIsAway(t *testing.T) {
	v := topView{order: "requests"}
	v.ask = func(string) ([]byte, error) {
		return []byte(`{"identity":"gate-1","at":"2026-07-01T12:00:00Z","now":"2026-07-01T12:00:01Z"}`), nil
	}
	_, v.out = terminal(t, 80, 24)
	if err := v.look(); err != nil {
		t.Fatal(err)
	}
	if got := v.screen(fmt.Errorf("no appliance answers\x1b[2J")); !strings.Contains(got, "gate-1, 1s ago") ||
		!strings.Contains(got, "no appliance answers?[2J") {
		t.Errorf("got %q", got)
	}
}
