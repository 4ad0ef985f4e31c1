package haproxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
)

// exporter is the frontend of HAProxy's own exporter for Prometheus. The file has it under a
// condition, because HAProxy may have been built without it.
const exporter = "sallyport-metrics"

// exporterSocket returns the address of the exporter, in the directory of the socket for
// commands: only the user of this process may connect.
func (o *RenderOptions) exporterSocket() string {
	return filepath.Join(filepath.Dir(o.StatsSocket), "metrics.sock")
}

// writeExporter writes the frontend of HAProxy's exporter. It logs no request: an access log
// is about clients.
func (h *head) writeExporter() {
	h.text.WriteString("\n.if feature(\"PROMEX\")\nfrontend " + exporter + "\n")
	h.line("bind", "unix@"+h.opt.exporterSocket(), "mode 600")
	h.line("http-request set-log-level silent") // "no log" would be a warning where a log-format is set
	h.line("http-request use-service prometheus-exporter")
	h.text.WriteString(".endif\n")
}

// Metrics writes the answer of HAProxy's exporter for Prometheus to w, line by line. query has
// the parameters of the exporter (scope, no-maint and so on). A backend has the name that it
// has in the Config, even while it has another one in the worker. The spare backends, and the
// frontend of the exporter itself, are left out.
//
// An error after the first byte leaves the text incomplete.
func (p *Proxy) Metrics(ctx context.Context, query string, w io.Writer) error {
	transport := &http.Transport{
		DisableKeepAlives: true, DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, "unix", p.files.exporterSocket())
			if err != nil {
				return nil, err
			}
			return &gentle{Conn: conn}, nil
		},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/metrics?"+query, nil)
	if err != nil {
		return err
	}
	resp, err := transport.RoundTrip(req)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("HAProxy has no exporter for Prometheus: it has not started yet, or was built without " +
			"USE_PROMEX=1; the packages of Debian have it")
	case err != nil:
		return fmt.Errorf("HAProxy's exporter: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("HAProxy's exporter answers %s", resp.Status)
	}
	return rename(w, resp.Body, p.reading().own)
}

// proxyLabel begins the label that names a frontend or backend.
var proxyLabel = []byte(`proxy="`)

// rename copies metrics, and gives each backend its own name.
func rename(w io.Writer, metrics io.Reader, own map[string]string) error {
	out := bufio.NewWriterSize(w, 32<<10)
	in := bufio.NewReaderSize(metrics, 32<<10)
	for {
		line, err := in.ReadSlice('\n')
		if err != nil && (!errors.Is(err, io.EOF) || len(line) > 0) {
			return fmt.Errorf("HAProxy's exporter: the answer is incomplete: %w", err)
		}
		if err != nil {
			return out.Flush()
		}
		if at := bytes.Index(line, proxyLabel); at > 0 && line[0] != '#' {
			at += len(proxyLabel)
			end := at + max(bytes.IndexByte(line[at:], '"'), 0)
			if name := line[at:end]; string(name) == exporter {
				continue
			} else if of, other := ownName(own, name); other {
				if of == "" {
					continue
				}
				_, _ = out.Write(line[:at])
				_, _ = out.WriteString(of)
				line = line[end:]
			}
		}
		if _, err := out.Write(line); err != nil {
			return err
		}
	}
}
