package kubelet

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestLinesAreStampedAsTheyAreReadAndFoundByTheirTimes(t *testing.T) {
	var log strings.Builder
	long := strings.Repeat("x", 70_000)
	stamp(&log, strings.NewReader("one\n\n"+long+"\nthe last without an end"))
	if got := strings.Count(log.String(), "\n"); got != 5 {
		t.Errorf("got %d lines, want 5: the long one is split", got)
	}
	for line := range strings.SplitSeq(strings.TrimSpace(log.String()), "\n") {
		when, _, _ := strings.Cut(line, " ")
		if _, err := time.Parse(time.RFC3339Nano, when); err != nil {
			t.Error(err)
		}
	}
	const kept = "2026-11-25T10:00:00.5Z before\n2026-11-25T10:00:01Z at  the time\nno time\n2026-11-25T10:00:02Z after\n"
	var got strings.Builder
	begin := time.Date(2026, 11, 25, 10, 0, 1, 0, time.UTC)
	if err := since(&got, strings.NewReader(kept), begin); err != nil || got.String() != "at  the time\nafter\n" {
		t.Errorf("got %q, %v", got.String(), err)
	}
}

func TestALogIsReadByNameAndNoOtherFileIs(t *testing.T) {
	a := &agent{Config: Config{Dir: t.TempDir()}}
	if err := os.MkdirAll(filepath.Join(a.Dir, logsDir), 0o700); err != nil {
		t.Fatal(err)
	}
	text := []byte("2026-11-25T10:00:00Z hello\n")
	for _, name := range []string{logsDir + "/shop_web_c.log", "_x_c.log"} {
		if err := os.WriteFile(filepath.Join(a.Dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", a.logs)
	for path, want := range map[string]struct {
		status int
		body   string
	}{
		"/containerLogs/shop/web/c":                                {http.StatusOK, "hello\n"},
		"/containerLogs/shop/web/c?sinceTime=2026-11-25T09:00:00Z": {http.StatusOK, "hello\n"},
		"/containerLogs/shop/web/c?sinceTime=2026-11-25T11:00:00Z": {http.StatusOK, ""},
		"/containerLogs/shop/web/c?sinceTime=now":                  {http.StatusBadRequest, "sinceTime alone"},
		"/containerLogs/shop/web/c?follow=true":                    {http.StatusBadRequest, "sinceTime alone"},
		"/containerLogs/shop/web/d":                                {http.StatusNotFound, "no such container"},
		"/containerLogs/..%2F/x/c":                                 {http.StatusInternalServerError, "escapes"},
	} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if got := w.Body.String(); w.Code != want.status || !strings.Contains(got, want.body) || want.body == "" && got != "" {
			t.Errorf("%s: got %d %q, want %d %q", path, w.Code, got, want.status, want.body)
		}
	}
}
