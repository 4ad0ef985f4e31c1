package haproxy

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/haproxytech/client-native/v6/config-parser/params"
	"github.com/haproxytech/client-native/v6/configuration"
	"github.com/haproxytech/client-native/v6/configuration/options"
	"github.com/haproxytech/client-native/v6/models"
)

// fragment holds the text of a backend with its servers in these states.
type fragment struct {
	of      *Backend
	states  []State
	present int               // how many servers are not Absent
	shape   []byte            // the section without its servers, and their options
	sum     [sha256.Size]byte // of shape
	body    []byte            // the lines of the section but for the first one and the servers
	text    []byte
}

// fragment returns the fragment of a backend. If neither the backend nor a state has changed, it
// returns the previous fragment.
func (r *renderer) fragment(b *Backend, states []State) *fragment {
	if old := r.fragments[b]; old != nil && slices.Equal(old.states, states) {
		return old
	}
	f := &fragment{of: b, states: states}
	var text strings.Builder
	text.WriteByte('\n')
	if b.Origin != "" {
		text.WriteString("# " + strings.Map(printable, b.Origin) + "\n")
	}
	begin := text.Len()
	text.WriteString("backend " + b.Name + "\n")
	body := text.Len()
	if r.opt.NoticeSocket != "" {
		text.WriteString("  log " + strings.TrimPrefix(r.opt.NoticeSocket, r.opt.Jail) + " format raw local0 notice\n")
	}
	if b.TCP {
		text.WriteString("  mode tcp\n")
	}
	if !b.Options.Check {
		text.WriteString("  retries " + strconv.Itoa(uncheckedRetries) + "\n")
	}
	told := strings.NewReplacer(here, r.opt.Dir+"/", cookieKey, r.cookies)
	if b.declaresCompression() {
		text.WriteString("  filter compression\n")
	}
	for _, d := range b.Directives {
		for line := range strings.SplitSeq(d.text, "\n") {
			text.WriteString("  " + told.Replace(line) + "\n")
		}
	}
	f.shape, f.body = []byte(text.String()[begin:]+b.serverOptions(true)+"\n"), []byte(text.String()[body:])
	f.sum = sha256.Sum256(f.shape)
	for i := range b.Servers {
		if i >= len(states) || states[i] <= Absent {
			continue
		}
		s := &b.Servers[i]
		f.present++
		line, end := "  server "+s.Name+" "+serverText(b, s), "\n"
		if states[i] != Open {
			end = " disabled\n"
		}
		if cookie := ownCookie(b, s, r.cookies); cookie != "" {
			text.WriteString("  .if version_atleast(3.0)\n" + line + cookie + end)
			text.WriteString("  .else\n" + line + end + "  .endif\n")
		} else {
			text.WriteString(line + end)
		}
	}
	f.text = []byte(text.String())
	r.fragments[b] = f
	return f
}

// declaresCompression reports whether the section needs a line for the filter of compression. HAProxy adds the filter
// itself where compression is set, in the section or in defaults, but not beside another filter: then it rejects the
// section without the line. The line alone compresses nothing. HAProxy accepts it once.
func (b *Backend) declaresCompression() bool {
	filters := false
	for _, d := range b.Directives {
		if !strings.Contains(d.text, "filter") { // as nearly always
			continue
		}
		for line := range strings.SplitSeq(d.text, "\n") {
			words := strings.Fields(line)
			if len(words) < 2 || words[0] != "filter" {
				continue
			}
			if words[1] == "compression" {
				return false
			}
			filters = true
		}
	}
	return filters
}

// uncheckedRetries is how often a request is tried again where no check finds the servers that are
// down. HAProxy waits half a second before it tries the same server again. A request that crashes
// its server would crash one more server at each retry.
const uncheckedRetries = 3

// keysText returns the section of keysBackend, or "" if no backend needs it.
func keysText(backends []*Backend) string {
	options := make(map[string]string)
	for _, b := range backends {
		if !b.Options.TLS {
			continue
		}
		if crt := b.Options.Crt; crt != "" {
			options[crt] = "verify none crt " + crt
		}
		if ca := b.Options.CA; ca != "" {
			options[ca] = "verify required ca-file " + ca
		}
	}
	if len(options) == 0 {
		return ""
	}
	var text strings.Builder
	text.WriteString("\nbackend " + keysBackend + "\n")
	for _, name := range slices.Sorted(maps.Keys(options)) {
		text.WriteString("  server " + name + " 0.0.0.0:0 disabled ssl " + options[name] + "\n")
	}
	return text.String()
}

// printable replaces a control character by a space.
func printable(c rune) rune {
	if c < ' ' || c == 0x7f {
		return ' '
	}
	return c
}

// serverText returns the address and options of a server, for haproxy.cfg and for
// the command "add server" alike. It writes every option, since a server that a
// command adds inherits nothing from default-server.
func serverText(b *Backend, s *Server) string {
	address := netip.AddrPortFrom(s.Addr.Addr().Unmap(), s.Addr.Port()).String()
	options := b.serverOptions(s.patient(len(b.Servers)))
	if s.Source.IsValid() {
		options += " source " + s.Source.String()
	}
	if s.Backup {
		options += " backup"
	}
	if s.Weight > 0 {
		options += " weight " + strconv.Itoa(s.Weight)
	}
	return address + " " + options
}

// ownCookie returns the option with the value of the cookie of a server with a source. Two clusters may have pods
// with the same address, and a cookie that HAProxy derives from the address would lead to either of them. Members
// of a group have different sources and the same cookies. HAProxy before 3.0 takes no such option with "add
// server".
func ownCookie(b *Backend, s *Server, key string) string {
	if !s.Source.IsValid() || !b.sticky() {
		return ""
	}
	sum := sha256.Sum256([]byte("server\n" + key + "\n" + b.ClusterOf(s) + "\n" + s.Addr.String()))
	return " cookie " + hex.EncodeToString(sum[:8])
}

// manyServers is the least number of servers with which a backend takes a server that refuses
// connections out of service. In a smaller backend, requests wait for such a server, which may be
// back in a moment.
const manyServers = 4

// patientServers is how many servers of a larger backend stay in service, on average, until a check fails.
const patientServers = 3

// patient reports whether a server of a backend with so many servers stays in service until a check fails.
// These are all servers of a small backend, and about three of a larger one, by the hash of their names.
// With them a virtual machine may stand still for more than half a second, as for a snapshot: the
// connections that were being opened then fail at all servers in the same instant, though all of them live.
func (s *Server) patient(among int) bool {
	if among < manyServers {
		return true
	}
	sum := sha256.Sum256([]byte(s.Name))
	return uint64(binary.BigEndian.Uint32(sum[:]))*uint64(among) < patientServers<<32
}

// onlyGivenNames makes HAProxy ask a server with TLS only for the name in the server's options.
// Without it, HAProxy since 3.3 asks for the Host of the request if the options have no name, and
// requires that name in a certificate that it verifies. Earlier versions do not have these options.
const onlyGivenNames = "no-sni-auto no-check-sni-auto"

// http11 is the name of HTTP/1.1 in ALPN.
const http11 = "http/1.1"

// serverOptions returns the options of a server of the backend. FastCGI overrides the version of HTTP.
func (b *Backend) serverOptions(patient bool) string {
	if !b.fastCGI() {
		return serverOptions(b.Options, patient)
	}
	o := b.Options
	o.Proto = "h1" // no ALPN
	return serverOptions(o, patient) + " proto fcgi"
}

// serverOptions returns the options of a server. Whether the server is patient is decided when it is added,
// by the number of servers then, because HAProxy has no command that changes the options.
func serverOptions(o ServerOptions, patient bool) string {
	// These are HAProxy's defaults. HAProxy 2.6.12 does not give them to a server that
	// "add server" brings, and then opens a connection for each request. It also accepts no max-reuse there, and so
	// goes on to do that for a server of HTTP/2, until a reload brings the server in the file. So "add server" offers
	// HTTP/1.1 alone to a server that may choose.
	p := models.ServerParams{PoolPurgeDelay: new(int64(5000)), PoolMaxConn: new(int64(-1))}
	if o.Check {
		p.Check = models.ServerParamsCheckEnabled
		// When a node dies, BGP sees it only after its hold time. Three failed connections in a row
		// therefore bring the server to the brink of failure. The next check, within half a second,
		// decides. A server that is down is checked twice as often as one that is up, at most.
		slower := int64(max(o.Slower, 1))
		p.Fastinter, p.Downinter = new(500*slower), new(max(1000, o.Interval().Milliseconds()/2)*slower)
		p.Observe, p.ErrorLimit, p.OnError = models.ServerParamsObserveLayer4, 3,
			models.ServerParamsOnErrorSuddenDashDeath
		if !patient {
			// Most pods of a Service may end in the same instant. Requests that are retried at the
			// same time take turns in the order of the servers, so each of them may meet only dead
			// servers. After two failures in a row no request meets the server again. Two checks
			// that succeed, half a second apart, bring it back. The patient servers remain if all
			// connections fail at once, as after a pause of this machine.
			p.ErrorLimit, p.OnError = 2, models.ServerParamsOnErrorMarkDashDown
		}
		if o.CheckInterval > 0 || slower > 1 {
			p.Inter = new(o.Interval().Milliseconds() * slower)
		}
	}
	if o.MaxConn > 0 {
		p.Maxconn = new(int64(o.MaxConn))
	}
	if o.TLS {
		p.Ssl, p.Verify = models.ServerParamsSslEnabled, models.ServerParamsVerifyNone
		if o.CA != "" {
			p.Verify, p.SslCafile = models.ServerParamsVerifyRequired, o.CA
		}
		p.SslCertificate, p.Verifyhost = o.Crt, o.VerifyHost
		p.Ciphers, p.SslMinVer, p.SslMaxVer = o.Ciphers, o.MinTLS, o.MaxTLS
		switch o.SNI {
		case "":
		case SNIOfClient:
			p.Sni = "ssl_fc_sni"
		case SNIOfHost:
			p.Sni = "req.hdr(host),host_only,lower"
		default:
			p.Sni, p.CheckSni = "str("+o.SNI+")", o.SNI
		}
		if o.Proto == "" {
			p.Alpn = "h2," + http11
		}
	}
	if o.Proto == "h2" {
		p.Proto = "h2"
		if o.TLS {
			p.Alpn = "h2"
		}
	}
	switch o.SendProxy {
	case "proxy", "proxy-v1":
		p.SendProxy = models.ServerParamsSendProxyEnabled
	case "proxy-v2":
		p.SendProxyV2 = models.ServerParamsSendProxyV2Enabled
	case "proxy-v2-ssl":
		p.SendProxyV2Ssl = models.ServerParamsSendProxyV2SslEnabled
	case "proxy-v2-ssl-cn":
		p.SendProxyV2SslCn = models.ServerParamsSendProxyV2SslCnEnabled
	}
	t := configuration.SerializeServer(models.Server{ServerParams: p}, &options.ConfigurationOptions{})
	return params.ServerOptionsString(t.Params)
}
