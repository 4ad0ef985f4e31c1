package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"sallyport/test/lab/world"
)

// A kept lab takes orders over a Unix socket, as HTTP. The answer is the output of the suite. Its
// trailer failure has the error, quoted, if the run failed.
const failure = "Failure"

func socket() string { return filepath.Join(world.Root, "gateway-orders.sock") }

// kept reports whether a lab is kept.
func kept() bool {
	conn, err := net.Dial("unix", socket())
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}

// wait takes orders until ctx ends, one at a time.
func (s *session) wait(ctx context.Context) error {
	if kept() {
		return errors.New("another lab is kept already")
	}
	_ = os.Remove(socket())
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", socket())
	if err != nil {
		return err
	}
	var one sync.Mutex
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			one.Lock()
			defer one.Unlock()
			w.Header().Set("Trailer", failure)
			if err := s.obey(r.Context(), w, r.Body); err != nil {
				w.Header().Set(failure, strconv.Quote(err.Error()))
			}
		}),
	}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	_, _ = fmt.Fprintf(os.Stderr, "the lab is up; the appliance's files are in %s\n", s.Dir)
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// obey reads an order, and writes the output of the suite.
func (s *session) obey(ctx context.Context, to http.ResponseWriter, from io.Reader) error {
	var o order
	if err := json.NewDecoder(from).Decode(&o); err != nil {
		return err
	}
	if err := errors.Join(s.clear(ctx), s.restart(ctx, o.Program)); err != nil {
		return err
	}
	return s.play(ctx, o, func(events io.Reader) error {
		_, err := io.Copy(flusher{to, http.NewResponseController(to)}, events)
		return err
	})
}

// A flusher sends each write at once.
type flusher struct {
	io.Writer
	control *http.ResponseController
}

func (f flusher) Write(text []byte) (int, error) {
	n, err := f.Writer.Write(text)
	return n, errors.Join(err, f.control.Flush())
}

// ask builds the appliance, and lets the kept lab run the suite against it.
func ask(ctx context.Context, o order, to sink) error {
	dir, err := os.MkdirTemp("", "sallyport-gateway-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	o.Program = filepath.Join(dir, "sallyport")
	build := exec.CommandContext(ctx, "go", "build", "-o", o.Program, "sallyport/cmd/sallyport")
	if said, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the appliance: %w\n%s", err, said)
	}
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://lab/", strings.NewReader(string(text)))
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket())
		},
	}}
	response, err := client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // only read from
	if err := to(response.Body); err != nil {
		return err
	}
	why, err := strconv.Unquote(response.Trailer.Get(failure))
	if err != nil {
		return nil
	}
	return errors.New(why)
}
