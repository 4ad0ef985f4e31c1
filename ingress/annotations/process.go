package annotations

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"sallyport/haproxy"
)

// What is said of the whole process can be said in a ConfigMap alone.
var (
	maxConn = define(number(1, 1<<30), Doc{
		Name: "maxconn", Scopes: ConfigMap, Format: "number from 1",
		Effect: "Connections of the process, at most. `haproxy.maxConnections` of the configuration file goes before it. If nothing is said: as many as half of the memory holds, 100 kB each, and as there are file descriptors for.",
	})
	nbthread = define(number(1, 64), Doc{
		Name: "nbthread", Scopes: ConfigMap, Format: "1 to 64",
		Effect: "Threads of the process. `haproxy.threads` of the configuration file goes before it.",
	})
	hardStop = define(period, Doc{
		Name: "hard-stop-after", Scopes: ConfigMap, Format: "time, from 1ms", Default: "30m",
		Effect: "How long connections may last after a reload.",
	})
	connectionMode = define(oneOf(keepAlive, "http-server-close", "httpclose"), Doc{
		Name: "http-connection-mode", Scopes: ConfigMap, Format: "http-keep-alive, http-server-close or httpclose", Default: keepAlive,
		Aliases: []Alias{{Name: "http-server-close", translate: mode("http-server-close")}, {Name: keepAlive, translate: mode(keepAlive)}},
		Effect:  "Whether connections are kept after a request: on both sides, to clients only, or not at all. The older keys http-server-close and http-keep-alive take true or false.",
	})
	dontLogNull = define(boolean, Doc{
		Name: "dontlognull", Scopes: ConfigMap, Format: "true or false", Default: "true",
		Effect: "Connections on which nothing was asked are not logged. Where they are, a client that connects long before it asks is answered 408, too.",
	})
	logASAP = define(boolean, Doc{
		Name: "logasap", Scopes: ConfigMap, Format: "true or false", Default: "false",
		Effect: "A request is logged when its answer begins, not when it ends.",
	})
	syslogServer = define(syslogs, Doc{
		Name: "syslog-server", Scopes: ConfigMap, Format: "`address:IP, port:514, facility:local0, format:rfc5424, length:1024, level:info, minlevel:notice`, one a line; the address may be stdout or stderr",
		Default: "address:127.0.0.1, facility:local0, level:notice",
		Effect:  "Where HAProxy logs to, and that it logs each request.",
	})
	_ = define(reference, Doc{
		Name: "prometheus-endpoint-auth-secret", Scopes: ConfigMap, Format: "Secret, or namespace/Secret",
		Effect: "None: metrics are on the status endpoint, which is for the machine itself or a network of the operators (status.listen).",
	})
	tlsALPN = define(alpn, Doc{
		Name: "tls-alpn", Scopes: ConfigMap, Format: "of h2, http/1.1 and http/1.0, with commas", Default: "h2,http/1.1",
		Effect: "Protocols that clients are offered over TLS.",
	})
	strictSNI = define(boolean, Doc{
		Name: "client-strict-sni", Scopes: ConfigMap, Format: "true or false", Default: "false",
		Effect: "TLS is refused for names without a certificate, instead of answered with the default one.",
	})
	proxyProtocol = define(networks, Doc{
		Name: "proxy-protocol", Scopes: ConfigMap, Format: "addresses and networks, with commas",
		Effect: "Clients from there begin their connections with the PROXY protocol, and speak for others.",
	})
	quicPort = define(number(1, 65535), Doc{
		Name: "quic-bind-port", Scopes: ConfigMap, Format: "number",
		Effect: "HTTP/3 is offered at this port of UDP, at the addresses for HTTPS. HAProxy has to be built with QUIC, as that of Debian 13 is and that of Debian 12 is not.",
	})
	quicAnnounce = define(number(1, 65535), Doc{
		Name: "quic-announce-port", Scopes: ConfigMap, Format: "number",
		Effect: "The port for HTTP/3 that browsers are told, in Alt-Svc. If nothing is said: quic-bind-port.",
	})
	quicAge = define(number(0, 1<<31-1), Doc{
		Name: "quic-alt-svc-max-age", Scopes: ConfigMap, Format: "seconds", Default: "60",
		Effect: "For how long browsers may rely on what they were told of quic-bind-port.",
	})
	timeouts = map[string]key[time.Duration]{
		"client":          define(duration, Doc{Name: "timeout-client", Scopes: ConfigMap, Format: "time", Default: "50s", Effect: "How long a client may be silent, or take nothing of what it is sent. With HAProxy 2.6 a TLS handshake may take as long; later versions end one that takes 5 s."}),
		"client-fin":      define(duration, Doc{Name: "timeout-client-fin", Scopes: ConfigMap, Format: "time", Effect: "The same, once one side has closed."}),
		"http-request":    define(duration, Doc{Name: "timeout-http-request", Scopes: ConfigMap, Format: "time", Default: "5s", Effect: "How long a request's header may take to arrive."}),
		"http-keep-alive": define(duration, Doc{Name: "timeout-http-keep-alive", Scopes: ConfigMap, Format: "time", Default: "1m", Effect: "How long a connection is kept for the next request."}),
		"server-fin":      define(duration, Doc{Name: "timeout-server-fin", Scopes: ConfigMap, Format: "time", Effect: "timeout-server, once one side has closed."}),
	}
)

// A Global is what is said of the whole process.
type Global struct {
	Process     haproxy.Process
	DefaultCert []byte // as haproxy.Config has it
	Clients     Clients
	Extras      []*haproxy.Extra
	Questions   []haproxy.Question // that HAProxy has to answer
}

// Process reads what ConfigMaps set for the whole process, the most special first.
func Process(env Env, layers ...Layer) (Global, []Effective, []Problem) {
	v := &values{layers: layers, env: env}
	g := Global{}
	g.Process = process(v, &g.Questions)
	if read, ok := use(v, sslCertificate, pair(func(_ string, chain []byte) (haproxy.Pair, error) { return haproxy.ReadPair(chain, chain) })); ok {
		g.DefaultCert = read.PEM
	}
	if e, ok := use(v, signer, pair(haproxy.Signer)); ok {
		g.Process.Signer, g.Extras = e.Name, append(g.Extras, e)
	}
	g.Clients = clients(v)
	switch c := g.Clients; {
	case c.Closed:
		g.Process.ClientCA = haproxy.Nobody
	case c.CA != nil:
		g.Process.ClientCA, g.Process.ClientOptional = c.CA.Name, c.Optional
		g.Extras = append(g.Extras, c.CA)
	}
	return g, v.used, v.problems
}

// AddErrorFiles adds the answers of a ConfigMap: a status to a whole response.
func (g *Global) AddErrorFiles(env Env, files map[string]string) (odd []Problem) {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		status, err := strconv.Atoi(name)
		var e *haproxy.Extra
		if err == nil {
			e, err = haproxy.ErrorFile(status, files[name])
		}
		if err == nil {
			err = env.refusal(e.Part())
		}
		if err != nil {
			odd = append(odd, Problem{ConfigMap, "InvalidErrorFile", fmt.Sprintf("key %s: %v; it is ignored", quote(name), err)})
			continue
		}
		g.Extras = append(g.Extras, e)
		g.Process.ErrorFiles = append(g.Process.ErrorFiles, status)
	}
	slices.Sort(g.Process.ErrorFiles)
	return odd
}

func process(v *values, asked *[]haproxy.Question) haproxy.Process {
	p := haproxy.Process{}
	p.MaxConn, _ = get(v, maxConn)
	p.Threads, _ = get(v, nbthread)
	if d, said := get(v, hardStop); said {
		p.Lines = append(p.Lines, haproxy.HardStop(d))
	}
	option := func(name string, on bool) { p.Lines = append(p.Lines, haproxy.DefaultOption(name, on)) }
	if mode, said := get(v, connectionMode); said {
		option(mode, true)
	}
	if yes, _ := get(v, abortOnClose); yes {
		option("abortonclose", true) // of the frontends too, for HAProxy 2.6
	}
	if yes, said := get(v, dontLogNull); said {
		option("dontlognull", yes)
		if !yes {
			option("http-ignore-probes", false) // else the other would say nothing either
		}
	}
	if yes, said := get(v, logASAP); said {
		option("logasap", yes)
	}
	for _, name := range []string{"client", "client-fin", "http-request", "http-keep-alive", "server-fin"} {
		if d, said := get(v, timeouts[name]); said {
			p.Lines = append(p.Lines, haproxy.DefaultTimeout(name, d))
		}
	}
	for _, k := range []struct {
		key     key[haproxy.Text]
		section haproxy.Section
	}{{globalText, haproxy.GlobalSection}, {logFormat, haproxy.DefaultsSection}, {logFormatTCP, haproxy.DefaultsSection}, {frontendText, haproxy.FrontendSection}} {
		if t, ok := vetted(v, k.key, k.section, asked); ok {
			p.Texts = append(p.Texts, t)
		}
	}
	if targets, said := get(v, syslogServer); said {
		p.Lines = append(append(p.Lines, targets...), haproxy.Traffic(!slices.ContainsFunc(p.Texts, haproxy.Text.IsLogFormat))...)
	}
	p.ProxyFrom, _ = get(v, proxyProtocol)
	if list, said := get(v, tlsALPN); said {
		p.ALPN = list
	}
	p.StrictSNI, _ = get(v, strictSNI)
	p.QUIC = quic(v, asked)
	return p
}

// mode translates the switch for one mode; off leaves the default.
func mode(name string) func(string) (string, error) {
	return func(s string) (string, error) {
		if on, err := boolean(s); on || err != nil {
			return name, err
		}
		return keepAlive, nil
	}
}

const keepAlive = "http-keep-alive"

// quic is HTTP/3, where HAProxy says that it can.
func quic(v *values, asked *[]haproxy.Question) (q haproxy.QUIC) {
	port, said := get(v, quicPort)
	announce, _ := get(v, quicAnnounce)
	age, _ := get(v, quicAge)
	if !said {
		return q
	}
	if whose := v.env.TakenUDP[uint16(port)]; whose != "" { //nolint:gosec // read as a port
		v.fault(quicPort.Doc, ConfigMap, fmt.Errorf("port %d is that of %s, HTTP/3 is not offered", port, whose))
		return q
	}
	switch support := v.ask(haproxy.QUICSupport(), asked); {
	case support.Why != "":
		v.fault(quicPort.Doc, ConfigMap, fmt.Errorf("this HAProxy is not built with QUIC, HTTP/3 is not offered (%s)", support.Why))
	case support.Known:
		q = haproxy.QUIC{Port: uint16(port), Announce: uint16(announce), MaxAge: age} //nolint:gosec // read as ports
	}
	return q
}

// syslogs reads one target a line.
func syslogs(s string) ([]haproxy.Line, error) {
	var all []haproxy.Line
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		target := haproxy.Syslog{Port: 514, Facility: "local0"}
		for pair := range strings.SplitSeq(line, ",") {
			name, value, _ := strings.Cut(strings.TrimSpace(pair), ":")
			value = strings.TrimSpace(value)
			var err error
			switch name {
			case "address":
				target.Address = value
			case "port":
				var port int
				port, err = number(1, 65535)(value)
				target.Port = uint16(port) //nolint:gosec // read as one
			case "length":
				target.Length, err = strconv.Atoi(value)
			case "format":
				target.Format = value
			case "facility":
				target.Facility = value
			case "level":
				target.Level = value
			case "minlevel":
				target.MinLevel = value
			default:
				err = fmt.Errorf("%s is not one of address, port, length, format, facility, level, minlevel", quote(name))
			}
			if err != nil {
				return nil, err
			}
		}
		l, err := target.Line()
		if err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s names no target", quote(s))
	}
	return all, nil
}

func alpn(s string) (string, error) {
	var all []string
	for word := range strings.SplitSeq(s, ",") {
		word, err := oneOf("h2", "http/1.1", "http/1.0")(strings.TrimSpace(word))
		if err != nil {
			return "", err
		}
		all = append(all, word)
	}
	return strings.Join(all, ","), nil
}
