package appliance

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"sallyport/appliance/config"
)

const (
	// After tries wrong passwords at once, an address has to wait. It gets one more try in each
	// tryPeriod.
	tries     = 10
	tryPeriod = 6 * time.Second
	// guessers bounds the addresses that are remembered for a wrong password.
	guessers = 1024
)

// guard passes on requests from the network to the status endpoint: all of them if there is no
// password, which config allows only on loopback, and else those with the password. Two pages need
// no password, because the probes of load balancers have none: /healthz, and /readyz without its
// reasons. If there is no password, nothing can be changed.
//
// The right password always passes, even while many addresses guess passwords. Guesses are
// therefore as quick as answers. The length of the password protects it: config demands 12
// characters. The wait is for a program that tries an old password again and again, and shows in
// the log.
type guard struct {
	next     http.Handler
	password func() config.Secret
	ready    func() bool
	now      func() time.Time
	log      *slog.Logger

	mu     sync.Mutex
	wrong  map[netip.Prefix]*guesses
	origin http.CrossOriginProtection
}

// guesses count the wrong passwords from one address. The count falls by one in each tryPeriod.
type guesses struct {
	at    time.Time
	count int
	told  bool // the log has them
}

func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch err := g.origin.Check(r); {
	case err != nil:
		http.Error(w, "a page of another site cannot change anything here: "+err.Error(), http.StatusForbidden)
		return
	case g.password().IsZero() && !reads:
		http.Error(w, "nothing can be changed here, because the configuration file has no status.password; use "+
			"sallyport drain and sallyport undrain", http.StatusForbidden)
		return
	case g.password().IsZero(), r.URL.Path == "/healthz":
		g.next.ServeHTTP(w, r)
		return
	}
	given, is := credential(r)
	if !is {
		if reads && r.URL.Path == "/readyz" {
			g.terse(w)
			return
		}
		demand(w, "the password is missing: status.password of the configuration file, with any user name")
		return
	}
	if !equal(given, g.password().Reveal()) {
		if wait := g.note(clientOf(r)); wait > 0 {
			w.Header().Set("Retry-After", fmt.Sprint(int(wait.Seconds())+1))
			http.Error(w, "the password is wrong, and too many wrong ones came from this address; try "+
				"again in a minute", http.StatusTooManyRequests)
			return
		}
		demand(w, "the password is wrong; it is status.password of the configuration file, with any user name")
		return
	}
	g.next.ServeHTTP(w, r)
}

// terse answers /readyz without reasons, which name clusters and addresses.
func (g *guard) terse(w http.ResponseWriter) {
	if g.ready() {
		_, _ = fmt.Fprintln(w, "ok")
		return
	}
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = fmt.Fprintln(w, "not ready; the reasons need the password")
}

func demand(w http.ResponseWriter, why string) {
	w.Header().Set("WWW-Authenticate", `Basic realm="sallyport", charset="UTF-8"`)
	http.Error(w, why, http.StatusUnauthorized)
}

// credential returns the password of a request, by HTTP Basic or as a bearer token.
func credential(r *http.Request) (password string, is bool) {
	if _, password, is = r.BasicAuth(); is {
		return password, true
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.TrimSpace(token), strings.EqualFold(scheme, "Bearer")
}

// equal compares in a time that depends on neither text.
func equal(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// clientOf returns the network of a client: its IPv4 address, or the /64 of its IPv6 address,
// because one host can use any address of a /64. All requests from that network count together.
func clientOf(r *http.Request) netip.Prefix {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	addr, _ := netip.ParseAddr(host)
	addr = addr.Unmap().WithZone("")
	p, _ := addr.Prefix(min(addr.BitLen(), 64))
	return p
}

// counted returns the network to which a wrong password counts. Networks that come when there is no
// room left all count as one network. The caller holds mu.
func (g *guard) counted(from netip.Prefix) netip.Prefix {
	if g.wrong[from] == nil && len(g.wrong) >= guessers {
		return netip.Prefix{}
	}
	return from
}

// note counts a wrong password, and returns for how long its address has to wait.
func (g *guard) note(from netip.Prefix) (wait time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	for p, x := range g.wrong {
		past := int(now.Sub(x.at) / tryPeriod)
		if x.count -= past; x.count <= 0 {
			delete(g.wrong, p)
			continue
		}
		x.at = x.at.Add(time.Duration(past) * tryPeriod)
	}
	from = g.counted(from)
	x := g.wrong[from]
	if x == nil {
		x = &guesses{at: now}
		g.wrong[from] = x
	}
	if x.count >= tries {
		return x.at.Add(tryPeriod).Sub(now)
	}
	if x.count++; x.count == tries && !x.told {
		x.told = true
		g.log.Warn("wrong passwords at the status endpoint; the address has to wait before it may try another",
			"address", from, "count", tries)
	}
	return 0
}
