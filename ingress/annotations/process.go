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

// The keys about the whole process. Only a ConfigMap can set them.
var (
	maxConn = define(number(1, 1<<30), Doc{
		Name: "maxconn", Scopes: ConfigMap, Format: "number from 1",
		Effect: "Most connections of the HAProxy process. `haproxy.maxConnections` of the configuration file " +
			"overrides it. Without both: as many as fit into half of the memory, at 100 kB each, and as there are " +
			"file descriptors for.",
	})
	nbthread = define(number(1, 64), Doc{
		Name: "nbthread", Scopes: ConfigMap, Format: "1 to 64",
		Effect: "Threads of the HAProxy process. `haproxy.threads` of the configuration file overrides it.",
	})
	hardStop = define(period, Doc{
		Name: "hard-stop-after", Scopes: ConfigMap, Format: "time, from 1ms", Default: "30m",
		Effect: "How long connections may stay open after a reload.",
	})
	connectionMode = define(oneOf(keepAlive, "http-server-close", "httpclose"), Doc{
		Name: "http-connection-mode", Scopes: ConfigMap, Format: "http-keep-alive, http-server-close or httpclose",
		Default: keepAlive,
		Aliases: []Alias{
			{Name: "http-server-close", translate: mode("http-server-close")},
			{Name: keepAlive, translate: mode(keepAlive)},
		},
		Effect: "Which connections are kept open after a request: both sides, the client's only, or none. The older " +
			"keys http-server-close and http-keep-alive take true or false.",
	})
	dontLogNull = define(boolean, Doc{
		Name: "dontlognull", Scopes: ConfigMap, Format: "true or false", Default: "true",
		Effect: "Connections without a request are not logged. With false, a client that sends no request in time is " +
			"also answered 408.",
	})
	logASAP = define(boolean, Doc{
		Name: "logasap", Scopes: ConfigMap, Format: "true or false", Default: "false",
		Effect: "A request is logged when its answer begins, instead of when it ends.",
	})
	syslogServer = define(lines(syslog), Doc{
		Name: "syslog-server", Scopes: ConfigMap,
		Format: "`address:IP, port:514, facility:local0, format:rfc5424, length:1024, level:info, minlevel:notice`, " +
			"one a line; the address may be stdout or stderr",
		Default: "address:127.0.0.1, facility:local0, level:notice",
		Effect:  "Where HAProxy logs to. With it, each request is logged.",
	})
	_ = define(reference, Doc{
		Name: "prometheus-endpoint-auth-secret", Scopes: ConfigMap, Format: "Secret, or namespace/Secret",
		Effect: "No effect: metrics are on the status endpoint, which has a password of its own (`status.password` " +
			"of the configuration file).",
	})
	tlsALPN = define(words(oneOf("h2", "http/1.1", "http/1.0"), ","), Doc{
		Name: "tls-alpn", Scopes: ConfigMap, Format: "of h2, http/1.1 and http/1.0, with commas",
		Default: "h2,http/1.1",
		Effect:  "Protocols offered to clients over TLS.",
	})
	strictSNI = define(boolean, Doc{
		Name: "client-strict-sni", Scopes: ConfigMap, Format: "true or false", Default: "false",
		Effect: "TLS handshakes for names without a certificate are rejected, instead of answered with the default " +
			"certificate.",
	})
	proxyProtocol = define(Networks, Doc{
		Name: "proxy-protocol", Scopes: ConfigMap, Format: "addresses and networks, with commas",
		Effect: "Connections from these addresses begin with a PROXY protocol header, from which HAProxy takes the " +
			"client's address.",
	})
	quicPort = define(number(1, 65535), Doc{
		Name: "quic-bind-port", Scopes: ConfigMap, Format: "number",
		Effect: "HTTP/3 is offered on this UDP port, at the addresses of HTTPS. It needs an HAProxy that is built " +
			"with QUIC: Debian 13's is, Debian 12's is not.",
	})
	quicAnnounce = define(number(1, 65535), Doc{
		Name: "quic-announce-port", Scopes: ConfigMap, Format: "number",
		Effect: "Port for HTTP/3 in the Alt-Svc header. Without it: quic-bind-port.",
	})
	quicAge = define(number(0, 1<<31-1), Doc{
		Name: "quic-alt-svc-max-age", Scopes: ConfigMap, Format: "seconds", Default: "60",
		Effect: "How long browsers may remember the Alt-Svc header of quic-bind-port.",
	})
	timeouts = map[string]key[time.Duration]{
		"client": define(duration,
			Doc{
				Name: "timeout-client", Scopes: ConfigMap, Format: "time", Default: "50s",
				Effect: "How long a client may be silent, or accept no data. With HAProxy 2.6 a TLS handshake may " +
					"take as long; later versions allow 5 s.",
			}),
		"client-fin": define(duration,
			Doc{
				Name: "timeout-client-fin", Scopes: ConfigMap, Format: "time",
				Effect: "How long a client may be silent after one side has closed the connection.",
			}),
		"http-request": define(duration,
			Doc{
				Name: "timeout-http-request", Scopes: ConfigMap, Format: "time", Default: "5s",
				Effect: "How long the header of a request may take to arrive.",
			}),
		"http-keep-alive": define(duration,
			Doc{
				Name: "timeout-http-keep-alive", Scopes: ConfigMap, Format: "time", Default: "1m",
				Effect: "How long a connection stays open for the next request.",
			}),
		"server-fin": define(duration,
			Doc{
				Name: "timeout-server-fin", Scopes: ConfigMap, Format: "time",
				Effect: "How long a server may be silent after one side has closed the connection.",
			}),
	}
)

// A Global holds the settings of the whole process.
type Global struct {
	Process     haproxy.Process
	DefaultCert []byte // as haproxy.Cert.PEM
	Clients     Clients
	Extras      []*haproxy.Extra
	Questions   []haproxy.Question // that HAProxy has to answer
}

// Process reads the keys of ConfigMaps for the whole process, the most special layer
// first.
func Process(env Env, layers ...Layer) (Global, []Effective, []Problem) {
	v := &values{layers: layers, env: env}
	g := Global{}
	g.Process = process(v, &g.Questions)
	if read, ok := use(v, sslCertificate,
		pair(func(_ string, chain []byte) (haproxy.Pair, error) { return haproxy.ReadPair(chain, chain) })); ok {
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

// AddErrorFiles adds the answers of a ConfigMap. Each key is a status, each value a
// whole response.
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
			odd = append(odd, Problem{
				Scope: ConfigMap, Reason: "InvalidErrorFile", As: name,
				Why: fmt.Sprintf("key %s: %v; it is ignored", Quote(name), err),
			})
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
			option("http-ignore-probes", false) // else it would still suppress the log line and the 408
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
	p.Texts = v.sectionTexts(asked)
	for _, k := range []struct {
		key     key[haproxy.Text]
		section haproxy.Section
	}{
		{globalText, haproxy.GlobalSection},
		{logFormat, haproxy.DefaultsSection},
		{logFormatTCP, haproxy.DefaultsSection},
		{frontendText, haproxy.FrontendSection},
	} {
		if t, ok := vetted(v, k.key, k.section, asked); ok {
			p.Texts = append(p.Texts, t)
		}
	}
	if targets, said := get(v, syslogServer); said {
		p.Lines = append(append(p.Lines, targets...),
			haproxy.Traffic(!slices.ContainsFunc(p.Texts, haproxy.Text.IsLogFormat))...)
	}
	p.ProxyFrom, _ = get(v, proxyProtocol)
	if list, said := get(v, tlsALPN); said {
		p.ALPN = list
	}
	p.StrictSNI, _ = get(v, strictSNI)
	p.QUIC = quic(v, asked)
	return p
}

// mode returns a function that translates true to a mode, and false to the default.
func mode(name string) func(string) (string, error) {
	return func(s string) (string, error) {
		if on, err := boolean(s); on || err != nil {
			return name, err
		}
		return keepAlive, nil
	}
}

const keepAlive = "http-keep-alive"

// quic returns the settings of HTTP/3. They are empty until HAProxy has answered that
// it supports QUIC.
func quic(v *values, asked *[]haproxy.Question) (q haproxy.QUIC) {
	port, said := get(v, quicPort)
	announce, _ := get(v, quicAnnounce)
	age, _ := get(v, quicAge)
	if !said {
		return q
	}
	if whose := v.env.TakenUDP[uint16(port)]; whose != "" { //nolint:gosec // read as a port
		v.wrong(quicPort.Doc, fmt.Errorf("port %d is in use by %s; HTTP/3 is not offered", port, whose))
		return q
	}
	switch support := v.ask(haproxy.QUICSupport(), asked); {
	case support.Why != "":
		v.wrong(quicPort.Doc, fmt.Errorf("this HAProxy is not built with QUIC, HTTP/3 is not offered (%s)",
			support.Why))
	case support.Known:
		q = haproxy.QUIC{Port: uint16(port), Announce: uint16(announce), MaxAge: age} //nolint:gosec // read as ports
	}
	return q
}

// syslog reads one log target.
func syslog(line string) (haproxy.Line, error) {
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
			target.Port = uint16(port) //nolint:gosec // read as a port
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
			err = fmt.Errorf("%s is not one of address, port, length, format, facility, level, minlevel", Quote(name))
		}
		if err != nil {
			return haproxy.Line{}, err
		}
	}
	return target.Line()
}
