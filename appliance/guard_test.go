package appliance

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"sallyport/appliance/config"
	"sallyport/appliance/page"
	"sallyport/appliance/status"
)

// selfSigned returns a certificate for loopback and its key, in PEM.
func selfSigned(t *testing.T) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "gate-1"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, of, of, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	text := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return text("CERTIFICATE", der), text("PRIVATE KEY", secret)
}

const statusPassword = "correct-horse-battery"

// newGuard returns a guard with a password, before a handler that answers "inside".
func newGuard(password string, clock *time.Time) (g *guard, log *strings.Builder) {
	log = &strings.Builder{}
	return &guard{
		next: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("inside")) }),
		log:  slog.New(slog.NewTextHandler(log, nil)), wrong: map[netip.Prefix]*guesses{},
		password: func() config.Secret { return config.NewSecret(password) }, ready: func() bool { return false },
		now: func() time.Time { return *clock },
	}, log
}

func TestTheEndpointTakesItsPassword(t *testing.T) {
	basic := func(r *http.Request) { r.SetBasicAuth("anybody", statusPassword) }
	for name, row := range map[string]struct {
		password string
		method   string
		path     string
		with     func(*http.Request)
		code     int
		want     string // in the answer
	}{
		"no password is set": {"", "GET", "/", nil, 200, "inside"},
		"no password is set, and a drain": {
			"", "POST", "/drain", nil, 403,
			"has no status.password; use sallyport drain",
		},
		"none is given":                  {statusPassword, "GET", "/", nil, 401, "the password is missing"},
		"none is given, for the metrics": {statusPassword, "GET", "/metrics", nil, 401, "the password is missing"},
		"by HTTP Basic, with any user":   {statusPassword, "GET", "/", basic, 200, "inside"},
		"as a bearer token": {statusPassword, "GET", "/metrics", func(r *http.Request) {
			r.Header.Set("Authorization", "bearer "+statusPassword)
		}, 200, "inside"},
		"another one": {statusPassword, "GET", "/", func(r *http.Request) {
			r.SetBasicAuth("anybody", statusPassword+"x")
		}, 401, "the password is wrong"},
		"an empty one": {statusPassword, "GET", "/", func(r *http.Request) {
			r.SetBasicAuth("anybody", "")
		}, 401, "the password is wrong"},
		"a scheme that is not known": {statusPassword, "GET", "/", func(r *http.Request) {
			r.Header.Set("Authorization", "Digest x")
		}, 401, "the password is missing"},
		"liveness needs none": {statusPassword, "GET", "/healthz", nil, 200, "inside"},
		"readiness needs none, in short": {
			statusPassword, "GET", "/readyz", nil, 503,
			"the reasons need the password",
		},
		"readiness with it": {statusPassword, "GET", "/readyz", basic, 200, "inside"},
		"a drain with it":   {statusPassword, "POST", "/drain", basic, 200, "inside"},
		"a drain by our own page": {statusPassword, "POST", "/drain", func(r *http.Request) {
			basic(r)
			r.Header.Set("Sec-Fetch-Site", "same-origin")
		}, 200, "inside"},
		"a drain by another site": {statusPassword, "POST", "/drain", func(r *http.Request) {
			basic(r)
			r.Header.Set("Sec-Fetch-Site", "cross-site")
		}, 403, "another site"},
		"a drain by a neighbour site": {statusPassword, "POST", "/drain", func(r *http.Request) {
			basic(r)
			r.Header.Set("Sec-Fetch-Site", "same-site")
		}, 403, "another site"},
		"a drain by an old browser's site": {statusPassword, "POST", "/drain", func(r *http.Request) {
			basic(r)
			r.Header.Set("Origin", "https://evil.example")
		}, 403, "another site"},
	} {
		t.Run(name, func(t *testing.T) {
			clock := time.Now()
			g, log := newGuard(row.password, &clock)
			r := httptest.NewRequestWithContext(t.Context(), row.method, row.path, http.NoBody)
			if row.with != nil {
				row.with(r)
			}
			w := httptest.NewRecorder()
			g.ServeHTTP(w, r)
			if w.Code != row.code || !strings.Contains(w.Body.String(), row.want) {
				t.Errorf("got %d %q, want %d %q", w.Code, w.Body, row.code, row.want)
			}
			if asks := w.Header().Get("WWW-Authenticate") != ""; asks != (row.code == 401) {
				t.Errorf("asks for a password: %v", asks)
			}
			if strings.Contains(w.Body.String()+log.String(), statusPassword) {
				t.Error("the password is shown")
			}
		})
	}
}

func TestWhoeverGuessesPasswordsWaits(t *testing.T) {
	clock := time.Now()
	g, log := newGuard(statusPassword, &clock)
	try := func(from, password string) int {
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/", http.NoBody)
		r.RemoteAddr = from
		if password != "" {
			r.SetBasicAuth("", password)
		}
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		return w.Code
	}
	for range 2 * tries {
		try("192.0.2.2:4", "") // a browser that has not asked its user yet
	}
	for range tries {
		if got := try("[2001:db8::1]:4", "wrong"); got != 401 {
			t.Fatalf("a wrong password: got %d", got)
		}
	}
	for what, row := range map[string]struct {
		from string
		want int // with another wrong password
	}{
		"the guesser":                          {"[2001:db8::1]:4", 429},
		"another address of the same host":     {"[2001:db8::9:9]:4", 429},
		"another host":                         {"[2001:db8:0:1::1]:4", 401},
		"who gave none, however often":         {"192.0.2.2:4", 401},
		"the same by an IPv4-mapped address":   {"[::ffff:192.0.2.2]:4", 401},
		"an address that net/http cannot name": {"", 401},
	} {
		if got := try(row.from, "wrong"); got != row.want {
			t.Errorf("%s: got %d, want %d", what, got, row.want)
		}
		if got := try(row.from, statusPassword); got != 200 {
			t.Errorf("%s, with the password: got %d", what, got)
		}
	}
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "address=2001:db8::/64") {
		t.Errorf("logged %q, want one line", log)
	}
	clock = clock.Add(tryPeriod)
	if one, more := try("[2001:db8::1]:4", "wrong"), try("[2001:db8::1]:4", "wrong"); one != 401 || more != 429 {
		t.Errorf("after the time for one try: got %d and %d", one, more)
	}
	for i := range 3 * guessers {
		try(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 4).String(), "wrong")
	}
	if n := len(g.wrong); n > guessers+1 {
		t.Errorf("%d addresses are remembered, want %d at most", n, guessers)
	}
	if got := try("198.51.100.1:4", "wrong"); got != 429 {
		t.Errorf("an address for which there is no room: got %d, want 429", got)
	}
	if got := try("198.51.100.1:4", statusPassword); got != 200 {
		t.Errorf("an address for which there is no room, with the password: got %d", got)
	}
}

// A request goes through TLS, the guard and the pages, as in Run; and by the control socket.
func TestTheCommandsReachAGuardedEndpoint(t *testing.T) {
	certificate, key := selfSigned(t)
	pair, err := tls.X509KeyPair([]byte(certificate), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	pages, _ := endpoint(half(t))
	clock := time.Now()
	g, _ := newGuard(statusPassword, &clock)
	g.next = pages
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan struct{}, 2)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(free.Addr().String())
	_ = free.Close()
	socket := filepath.Join(t.TempDir(), "s")
	go func() {
		serveStatus(ctx, at, func() *tls.Certificate { return &pair }, page.Secured(g), slog.New(slog.DiscardHandler))
		ended <- struct{}{}
	}()
	go func() {
		serveControl(ctx, socket, pages, slog.New(slog.DiscardHandler))
		ended <- struct{}{}
	}()
	defer func() { end(); <-ended; <-ended }()
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM([]byte(certificate))
	const right = `"identity": "gate-1"`
	for name, row := range map[string]struct {
		e    status.Endpoint
		want string // in the answer or the error
	}{
		"by the socket": {status.Endpoint{At: socket}, right},
		"with password and authority": {
			status.Endpoint{At: "https://" + at.String(), Password: config.NewSecret(statusPassword), Trusted: trusted},
			right,
		},
		"without a password": {
			status.Endpoint{At: "https://" + at.String(), Password: config.Secret{}, Trusted: trusted},
			"answers 401 Unauthorized: the password is missing",
		},
		"with a wrong password": {
			status.Endpoint{At: "https://" + at.String(), Password: config.NewSecret("wrong"), Trusted: trusted},
			"answers 401 Unauthorized: the password is wrong",
		},
		"without its authority": {
			status.Endpoint{At: "https://" + at.String(), Password: config.NewSecret(statusPassword)},
			"certificate signed by unknown authority",
		},
		"in the clear": {
			status.Endpoint{At: at.String(), Password: config.NewSecret(statusPassword)},
			"HTTP request to an HTTPS server",
		},
	} {
		t.Run(name, func(t *testing.T) {
			for {
				body, err := row.e.Ask(t.Context(), "/status")
				got := string(body)
				if err != nil {
					got = err.Error()
				}
				if strings.Contains(got, row.want) {
					return
				}
				// it does not listen yet
				if !strings.Contains(got, "connection refused") && !strings.Contains(got, "no such file") ||
					t.Context().Err() != nil {
					t.Fatalf("got %.300q, want %q", got, row.want)
				}
			}
		})
	}
}

// The control socket is there in no group, too, where the commands of a group have nothing to do.
func TestInNoGroupThereIsNothingToDrain(t *testing.T) {
	s := half(t)
	h := control(s.view.Load, s.drains, nil, func() {}, time.Now)
	for request, want := range map[string]string{
		"POST /drain":               "404 this appliance is in no group",
		"POST /drain?force=true":    "404 this appliance is in no group",
		"POST /drain?stopping=true": `200 {` + "\n" + `  "group": ""`,
		"POST /undrain":             "404 this appliance is in no group",
		"GET /group":                `200 {` + "\n" + `  "name": ""`,
	} {
		method, path, _ := strings.Cut(request, " ")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, http.NoBody))
		if got := strconv.Itoa(w.Code) + " " + w.Body.String(); !strings.HasPrefix(got, want) {
			t.Errorf("%s: got %q, want %q", request, got, want)
		}
	}
}
