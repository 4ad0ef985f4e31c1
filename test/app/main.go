// Command app is the sample application of the lab: an HTTP server that answers
// with the request as it arrived, and with its pod and node. A person or a test can
// see which pod answered, and from which address the request came.
//
// It promises a graceful end. After SIGTERM it goes on serving for the time of
// -drain, while its readiness probe fails. Then it closes, once the requests in
// flight are answered. It speaks HTTP/2 without TLS, too, and FastCGI, where the
// header X-Script shows the script. Over TLS it reports the certificate of a
// client without verifying it.
//
//	/              the request, as text, or as JSON for Accept: application/json or ?format=json
//	/healthz       200, or 503 after POST /fail until POST /heal, and while draining
//	/slow?d=5s     one line each 100 ms for that long; every=1m: one a minute; deaf: also after the client has closed its side
//	/status/401    that status; header Saw-Method, and Saw-X-Y: z for each header X-Y: z of the request;
//	               ?cookie=, location= and refresh= are its headers Set-Cookie, Location and Refresh
//	/noted/x       200; /noted then has a line with the method, the URL, the host and the bytes of the body
//	/bytes?n=1000  that many bytes
//	/upgrade, /ws  a WebSocket (RFC 6455) that echoes every message
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/fcgi"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// addrs is a flag that may be repeated.
type addrs []string

func (a *addrs) String() string { return fmt.Sprint(*a) }

func (a *addrs) Set(s string) error {
	*a = append(*a, s)
	return nil
}

func main() {
	var listen addrs
	flag.Var(&listen, "listen", "`address` to listen on, like :8080; may be repeated (default :8080)")
	cert := flag.String("tls-cert", "", "certificate `file`; all listeners speak TLS then")
	key := flag.String("tls-key", "", "key `file`")
	proxied := flag.Bool("proxy", false, "let connections begin with the PROXY protocol")
	drain := flag.Duration("drain", 0, "after SIGTERM, how long to answer 503 to the readiness probe before closing")
	linger := flag.Duration("linger", 30*time.Second, "how long requests in flight may take after that")
	flag.Parse()
	if len(listen) == 0 {
		listen = addrs{":8080"}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := serve(ctx, listen, *cert, *key, *proxied, *drain, *linger); err != nil {
		slog.Error("cannot serve", "error", err)
		os.Exit(1)
	}
}

// serve answers on every address until ctx ends and the requests in flight are
// done.
func serve(ctx context.Context, listen []string, cert, key string, proxied bool, drain, linger time.Duration) error {
	var listeners []net.Listener
	for _, addr := range listen {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return errors.Join(err, closeAll(listeners))
		}
		slog.Info("listening", "address", l.Addr().String())
		if proxied {
			l = spokenFor{l}
		}
		listeners = append(listeners, l)
	}
	app := newApp(os.Getenv)
	server := &http.Server{
		Handler: app.handler(), ReadHeaderTimeout: time.Minute, Protocols: new(http.Protocols),
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, ClientAuth: tls.RequestClientCert},
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	failed := make(chan error, len(listeners))
	var serving sync.WaitGroup
	for _, l := range listeners {
		serving.Go(func() {
			var err error
			if cert != "" {
				err = server.ServeTLS(l, cert, key)
			} else {
				s := sorted(l)
				go func() { _ = fcgi.Serve(s.scripts, scripted(server.Handler)) }() // until l closes
				err = server.Serve(s)
			}
			if !errors.Is(err, http.ErrServerClosed) {
				failed <- err
			}
		})
	}
	select {
	case err := <-failed:
		return errors.Join(err, server.Close())
	case <-ctx.Done():
	}
	if drain > 0 {
		slog.Info("draining", "time", drain.String())
		app.draining.Store(true)
		t := time.NewTimer(drain)
		defer t.Stop()
		select {
		case err := <-failed:
			return errors.Join(err, server.Close())
		case <-t.C:
		}
	}
	finish, cancel := context.WithTimeout(context.Background(), linger)
	defer cancel()
	if err := server.Shutdown(finish); err != nil {
		_ = server.Close()
		slog.Warn("requests were cut off", "error", err)
	}
	serving.Wait()
	return nil
}

func closeAll(listeners []net.Listener) error {
	var errs []error
	for _, l := range listeners {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}
