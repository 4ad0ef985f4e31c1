package appliance

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
	"unicode"
)

// statusTimeout bounds the request of Ask, statusSize its answer.
const (
	statusTimeout = 10 * time.Second
	statusSize    = 256 << 20
)

// Ask requests a JSON page of the status endpoint of a running appliance, and returns the
// answer. It takes 10 s at most.
func Ask(ctx context.Context, address, page string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+page, nil)
	if err != nil {
		return nil, fmt.Errorf("--address %q: %w", address, err)
	}
	// The transport ignores HTTP_PROXY: an appliance is reached directly.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("no appliance answers at %s (is it running, and is that its status.listen?): %w", address, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, statusSize))
	if err != nil {
		return nil, fmt.Errorf("read the answer of %s: %w", address, err)
	}
	if resp.StatusCode != http.StatusOK {
		said, _, _ := strings.Cut(string(body), "\n")
		return nil, fmt.Errorf("%s answers %s: %s", address, resp.Status, strings.Map(Printable, said))
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
