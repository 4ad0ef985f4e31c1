package appliance

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"sallyport/appliance/config"
	"sallyport/appliance/page"
	"sallyport/appliance/status"
)

// handler serves the pages of the status endpoint. Its callers check access: the guard for requests
// from the network, and the mode of the control socket, which lets only root in.
//
//	/         the state for people, and below it a page for each thing: see pages.page
//	/live     the sections of one of these pages, as they change (server-sent events)
//	/status   the same for programs: Status as JSON
//	/explain  what became of one Ingress, request or address, as JSON: see explain
//	/events   the last changes, the newest first, as JSON: Change; ?since=1h bounds their age
//	/top      the load of each backend as JSON: TopStatus; ?sort= is one of SortKeys, ?n= bounds
//	          how many there are
//	/metrics  Prometheus
//	/metrics/haproxy
//	          HAProxy's own exporter, with the names of Services; ?scope= and the other
//	          parameters are HAProxy's
//	/healthz  200 while the process answers
//	/readyz   200 when what should be served is served, else 503 and why
func handler(
	site *page.Site, whole, head func() status.Status, explain func(url.Values) (any, error),
	changes *status.Timeline, taken *status.Samples, registry *prometheus.Registry,
	exporter func(ctx context.Context, query string, w io.Writer) error,
) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /", site)
	mux.HandleFunc("GET /live", site.Live)
	mux.HandleFunc("GET /assets/{file}", page.Asset)
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, whole())
	})
	mux.HandleFunc("GET /explain", func(w http.ResponseWriter, r *http.Request) {
		answer, err := explain(r.URL.Query())
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		writeJSON(w, answer)
	})
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
		ago := r.URL.Query().Get("since")
		since, err := time.ParseDuration(ago)
		switch {
		case ago == "":
			writeJSON(w, changes.Since(time.Time{}))
		case err != nil || since < 0:
			http.Error(w, "since has to be a duration, such as 90s, 15m or 1h", http.StatusBadRequest)
		default:
			writeJSON(w, changes.Since(time.Now().Add(-since)))
		}
	})
	mux.HandleFunc("GET /top", func(w http.ResponseWriter, r *http.Request) {
		key, limit := cmp.Or(r.URL.Query().Get("sort"), status.SortKeys[0]), -1
		var err error
		if n := r.URL.Query().Get("n"); n != "" {
			limit, err = strconv.Atoi(n)
		}
		switch {
		case !slices.Contains(status.SortKeys[:], key):
			http.Error(w, "sort has to be one of "+strings.Join(status.SortKeys[:], ", "), http.StatusBadRequest)
		case err != nil || limit < 0 && r.URL.Query().Has("n"):
			http.Error(w, "n has to be the number of backends to show", http.StatusBadRequest)
		default:
			s := head()
			t := taken.Rates.Top(key, limit)
			t.Identity, t.Now = s.Identity, s.Now
			writeJSON(w, t)
		}
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /metrics/haproxy", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		out := &begun{Writer: w}
		switch err := exporter(r.Context(), r.URL.RawQuery, out); {
		case err != nil && out.is:
			panic(http.ErrAbortHandler) // a scrape that ends early has to fail
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		s := head()
		if !s.Ready {
			w.WriteHeader(http.StatusServiceUnavailable)
			for _, why := range s.NotReady {
				_, _ = fmt.Fprintln(w, why)
			}
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	return mux
}

// begun notes whether anything was written.
type begun struct {
	io.Writer
	is bool
}

func (b *begun) Write(text []byte) (int, error) {
	b.is = true
	return b.Writer.Write(text)
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v)
}

// answering passes a request on only if its Host is an address or one of the names. This stops DNS
// rebinding: a foreign web page can make its own name point here, and a browser inside then reads
// the answers for that page. The browser sends the name of the page as Host.
func answering(names func() []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
		_, err := netip.ParseAddr(host)
		// HTTP/1.0 needs no Host, and no browser sends it.
		if host != "" && err != nil && !slices.Contains(names(), host) {
			http.Error(w, "the Host of the request is not allowed; allowed are addresses, the name of this machine, "+
				"and the names in status.names of the configuration file", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// ownNames returns the names that the status endpoint answers to.
func ownNames(cfg *config.Config) []string {
	names := append([]string{"localhost", cfg.Identity}, cfg.Status.Names...)
	if name, err := os.Hostname(); err == nil {
		names = append(names, name)
	}
	for i := range names {
		names[i] = strings.ToLower(names[i])
	}
	return names
}

// serveStatus listens until ctx ends, with TLS if there is a certificate, which is asked for
// at each handshake. If the address is in use, it logs that and retries: traffic does not
// wait for the status page.
func serveStatus(ctx context.Context, addr netip.AddrPort, certificate func() *tls.Certificate, h http.Handler,
	log *slog.Logger,
) {
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10,
		// Many handshakes fail: those of scanners, and of browsers that do not trust the
		// certificate.
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	if certificate != nil {
		server.TLSConfig = &tls.Config{
			MinVersion: tls.VersionTLS12,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
				return certificate(), nil
			},
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	for ctx.Err() == nil {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr.String())
		if err == nil {
			log.Info("status endpoint listens", "address", addr.String(), "tls", certificate != nil)
			if certificate != nil {
				err = server.ServeTLS(listener, "", "")
			} else {
				err = server.Serve(listener)
			}
		}
		if errors.Is(err, http.ErrServerClosed) {
			return
		}
		log.Error("the status endpoint cannot listen; trying again", "address", addr.String(), "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Second):
		}
	}
}
