package status

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"time"
	"unicode"

	"sallyport/appliance/config"
)

// statusTimeout bounds the request of Ask, statusSize its answer.
const (
	statusTimeout = 10 * time.Second
	statusSize    = 256 << 20
)

// An Endpoint is where a command reaches the status endpoint of a running appliance.
type Endpoint struct {
	At       string         // HOST:PORT for plain HTTP, https://HOST:PORT, or the path of the control socket
	Password config.Secret  // empty if the endpoint needs no password
	Trusted  *x509.CertPool // the accepted certificate authorities; nil for those of this machine
}

// Client returns a client for the endpoint, and the URL of its pages.
func (e Endpoint) Client() (client *http.Client, url string) {
	// The transport ignores HTTP_PROXY: an appliance is reached directly.
	transport := &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{RootCAs: e.Trusted, MinVersion: tls.VersionTLS12},
	}
	url = e.At
	switch {
	case strings.HasPrefix(url, "/"):
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", e.At)
		}
		url = "http://localhost"
	case !strings.HasPrefix(url, "https://"):
		url = "http://" + url
	}
	return &http.Client{Transport: transport}, url
}

// Ask requests a JSON page, and returns the answer. It takes 10 s at most.
func (e Endpoint) Ask(ctx context.Context, page string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	client, url := e.Client()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+page, nil)
	if err != nil {
		return nil, fmt.Errorf("--address %q: %w", e.At, err)
	}
	if !e.Password.IsZero() {
		req.SetBasicAuth("sallyport", e.Password.Reveal())
	}
	resp, err := client.Do(req)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("only root may ask the appliance by %s: use sudo, or --address and --password-file: %w",
			e.At, err)
	case err != nil:
		return nil, fmt.Errorf("no appliance answers at %s (is it running, and is that its status.listen?): %w", e.At,
			err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, statusSize))
	if err != nil {
		return nil, fmt.Errorf("read the answer of %s: %w", e.At, err)
	}
	if resp.StatusCode != http.StatusOK {
		said, _, _ := strings.Cut(string(body), "\n")
		return nil, fmt.Errorf("%s answers %s: %s", e.At, resp.Status, strings.Map(Printable, said))
	}
	return body, nil
}

// Printable replaces a character that a terminal would act on.
func Printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return '?'
}
