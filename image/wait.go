package image

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// HowTo explains how to give a machine its file.
const HowTo = `This machine needs one file, sallyport.yaml, and has none that it can use.
Write one after the example that "sallyport config example" prints, with the
kubeconfig itself in it, and give it in one of these ways:

 - put it on the partition labelled CONFIG of this machine's disk, or of a
   stick (FAT; any laptop can write it)
 - as the systemd credential sallyport.yaml, by SMBIOS type 11 or QEMU's fw_cfg
 - as guestinfo.sallyport.yaml, on VMware (plain, base64, or base64 of gzip)
 - as user-data or sallyport.yaml of a NoCloud seed, labelled CIDATA

The machine looks for it at each start, and every 30 seconds.
`

// Wait serves HowTo on the status port of a machine without a file, and the problems of a file that
// was found but is not used. It returns when ctx ends.
func (m Machine) Wait(ctx context.Context, listener net.Listener) error {
	mux := http.NewServeMux()
	answer := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			h.Set("Content-Type", "text/plain; charset=utf-8")
			h.Set("X-Content-Type-Options", "nosniff")
			h.Set("Cache-Control", "no-store")
			w.WriteHeader(code)
			_, _ = io.WriteString(w, HowTo)
			s, err := m.State()
			if err != nil {
				_, _ = fmt.Fprintln(w, err)
			}
			for _, line := range s.Lines() {
				_, _ = fmt.Fprintln(w, printable(line))
			}
		}
	}
	mux.HandleFunc("GET /{$}", answer(http.StatusOK))
	// A probe of /readyz or a reader of /status must not take this page for an answer.
	mux.HandleFunc("/", answer(http.StatusServiceUnavailable))
	server := &http.Server{
		Handler: mux, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second,
		MaxHeaderBytes: 16 << 10,
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// readyEvery is how often Ready asks the process.
const readyEvery = time.Second

// Ready waits until the process is ready, or until a machine without a file serves
// HowTo. If ctx ends before, it returns an error with the reason. It calls say with
// each new reason to wait.
func (m Machine) Ready(ctx context.Context, say func(string)) error {
	tick := time.NewTicker(readyEvery)
	defer tick.Stop()
	said := ""
	for {
		err := m.isReady(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			say("not ready yet: " + said)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not ready in time: %s", said)
		case <-tick.C:
		}
	}
}

// errNotTaken says that this version rejects a file that another version accepted.
var errNotTaken = errors.New("this version rejects the file that another version accepted and saved")

func (m Machine) isReady(ctx context.Context) error {
	s, err := m.State()
	switch {
	case err != nil:
		return err
	case s.Source != "":
		_, err = ask(ctx, s.Status, "/readyz")
	case s.Refused != nil && strings.HasPrefix(s.Refused.Source, lastGood):
		return errNotTaken
	default:
		_, err = ask(ctx, s.Status, "/")
	}
	return err
}

// ask requests a page of the process, at its address or the path of its control socket. An
// answer other than 200 is an error with the answer's text.
func ask(ctx context.Context, at, page string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true}
	url := at
	if strings.HasPrefix(at, "/") {
		url = "http://localhost"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", at)
		}
	} else {
		// An address of this machine: nobody else answers there, and nothing secret is sent.
		transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // see above
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+page, nil)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, fmt.Errorf("the process does not answer: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return nil, fmt.Errorf("the process does not answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(strings.Join(strings.Fields(printable(string(body[:min(len(body), 500)]))), " "))
	}
	return body, nil
}

// printable replaces control characters, which a terminal would act on, and characters
// that an old terminal cannot show.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if (r < ' ' && r != '\n') || r > '~' {
			return '?'
		}
		return r
	}, s)
}
