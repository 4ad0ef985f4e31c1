package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"

	"sallyport/test/load"
)

// callPath is the path of the method that answerCall serves, and callBackend the backend of its Service.
const (
	callPath    = "/bench.Echo/Say"
	callBackend = "default_svc_grpc_80"
)

// called is a message of gRPC with 32 bytes, not compressed (gRPC over HTTP2, Length-Prefixed-Message).
var called = append(binary.BigEndian.AppendUint32([]byte{0}, 32), bytes.Repeat([]byte("x"), 32)...)

// answerCall answers a unary call of gRPC with the message of the request.
func answerCall(w http.ResponseWriter, r *http.Request) {
	said, err := io.ReadAll(r.Body)
	if err != nil || r.ProtoMajor != 2 {
		http.Error(w, fmt.Sprintf("%s: %v", r.Proto, err), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status")
	_, _ = w.Write(said)
	w.Header().Set("Grpc-Status", "0")
}

// calls adds clients that share one connection by HTTP/2, and send unary calls of gRPC.
func (l *drive) calls(ctx context.Context, n int, addr string, secure *tls.Config) {
	transport := &http.Transport{
		TLSClientConfig: secure, ForceAttemptHTTP2: true, MaxConnsPerHost: 1,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return load.From(ctx, addr) },
	}
	l.stops = append(l.stops, transport.CloseIdleConnections)
	for range n {
		l.clients = append(l.clients, func(int) error {
			ctx, cancel := context.WithTimeout(ctx, load.Patience)
			defer cancel()
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://app.test"+callPath,
				bytes.NewReader(called))
			if err != nil {
				return err
			}
			request.Header.Set("Content-Type", "application/grpc")
			request.Header.Set("Te", "trailers")
			answer, err := transport.RoundTrip(request)
			if err != nil {
				return err
			}
			defer answer.Body.Close() //nolint:errcheck // only read from
			back, err := io.ReadAll(answer.Body)
			if status := answer.Trailer.Get("Grpc-Status"); err == nil && (!bytes.Equal(back, called) || status != "0") {
				err = fmt.Errorf("a call is answered with %s, %d bytes and the status %q of gRPC", answer.Status, len(back),
					status)
			}
			return err
		})
	}
}
