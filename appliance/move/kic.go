package move

import (
	"slices"
	"strings"
)

// kic is the command line of HAProxy's ingress controller, with what is around it.
type kic struct {
	seen  bool
	unit  []directive
	flags []argument
	helm  bool
}

// An argument is an argument of the controller.
type argument struct {
	name, value string
	at          Place
}

// A use is the effect of a flag here.
type use struct {
	key    string // it sets this key
	list   bool
	data   string // it belongs in the ConfigMap, as this key
	toggle bool   // it has no value
	why    string // it is not carried
	do     string
}

// uses has each flag that needs no code of its own. An empty use needs nothing here.
var uses = map[string]use{
	"kubeconfig":                     {key: "clusters.kubeconfig"},
	"configmap":                      {key: "clusters.ingress.configMap"},
	"configmap-errorfiles":           {key: "clusters.ingress.errorFiles"},
	"configmap-errorfile":            {key: "clusters.ingress.errorFiles"},
	"configmap-patternfiles":         {key: "clusters.ingress.patternFiles"},
	"configmap-tcp-services":         {key: "clusters.ingress.tcpServices"},
	"namespace-whitelist":            {key: "clusters.ingress.namespaces", list: true},
	"namespace-blacklist":            {key: "clusters.ingress.notNamespaces", list: true},
	"program":                        {key: "haproxy.binary"},
	"default-backend-service":        {data: "default-backend-service"},
	"default-ssl-certificate":        {data: "ssl-certificate"},
	"quic-bind-port":                 {data: "quic-bind-port"},
	"quic-announce-port":             {data: "quic-announce-port"},
	"external":                       {toggle: true},
	"e":                              {toggle: true},
	"config-dir":                     {},
	"runtime-dir":                    {},
	"default-backend-port":           {},
	"sync-period":                    {},
	"initial-sync-period":            {},
	"cache-resync-period":            {},
	"channel-size":                   {},
	"http-bind-thread":               {},
	"https-bind-thread":              {},
	"healthz-bind-thread":            {},
	"stats-bind-thread":              {},
	"localpeer-port":                 {},
	"experimental":                   {},
	"input-file":                     {},
	"output-file":                    {},
	"with-s6-overlay":                {toggle: true},
	"with-pebble":                    {toggle: true},
	"job-check-crd":                  {toggle: true},
	"disable-writing-only-if-reload": {toggle: true},
	"version":                        {toggle: true},
	"v":                              {toggle: true},
	"help":                           {toggle: true},
	"h":                              {toggle: true},
	"test":                           {toggle: true},
	"t":                              {toggle: true},
	"gateway-controller-name": {
		why: "only Gateways are served whose GatewayClass names clusters[].gateway.controller",
		do:  "Read ingress/GATEWAY.md, and name the class sallyport in the Gateways",
	},
	"custom-validation-rules": {why: "custom annotations are not read", do: "Write the keys of ingress/README.md"},
	"enable-custom-annotations-on-ingress": {
		toggle: true, why: "custom annotations are not read", do: "Write the keys of ingress/README.md",
	},
}

// toggles have code of their own, and no value.
var toggles = []string{
	"disable-ipv4", "disable-ipv6", "disable-http", "disable-https", "disable-quic", "empty-ingress-class",
	"disable-ingress-status-update", "disable-service-external-name", "prometheus", "pprof", "p",
}

// arguments reads arguments as the controller does: --NAME VALUE, --NAME=VALUE, and -X.
func (k *kic) arguments(at Place, words []string) {
	k.seen = true
	for i := 0; i < len(words); i++ {
		name, value, has := strings.Cut(strings.TrimLeft(words[i], "-"), "=")
		if !strings.HasPrefix(words[i], "-") || name == "" {
			if words[i] != "&" && words[i] != "" {
				k.flags = append(k.flags, argument{value: words[i], at: at})
			}
			continue
		}
		if !has && !uses[name].toggle && !slices.Contains(toggles, name) && i+1 < len(words) &&
			!strings.HasPrefix(words[i+1], "-") && words[i+1] != "&" {
			i++
			value = words[i]
		}
		k.flags = append(k.flags, argument{name: name, value: value, at: at})
	}
}

// apply writes the keys of the flags.
func (k *kic) apply(d *draft, read Reader) error {
	if err := k.command(d, read); err != nil || !k.seen {
		return err
	}
	ports := listeners{http: "8080", https: "8443", four: "", six: ""}
	for _, f := range k.flags {
		if ports.flag(f) {
			continue
		}
		u, known := uses[f.name]
		switch {
		case !known:
			k.special(d, f)
		case u.why != "":
			d.note("", Remark{Kind: Left, At: f.at, What: "--" + f.name, Why: u.why, Do: u.do})
		case u.data != "":
			d.data = append(d.data, u.data+": "+quoted(f.value))
		case u.key == "":
			d.none(f.at)
		case u.list:
			for one := range strings.SplitSeq(f.value, ",") {
				d.add(u.key, quoted(strings.TrimSpace(one)))
			}
		case f.value == "":
			d.note("", Remark{Kind: Left, At: f.at, What: "--" + f.name, Why: "it has no value"})
		default:
			d.set(u.key, quoted(f.value), f.at, "--"+f.name)
		}
	}
	ports.write(d, k)
	if !d.has("clusters.kubeconfig") && slices.ContainsFunc(k.flags, func(f argument) bool {
		return f.name == "external" || f.name == "e"
	}) {
		d.replace("clusters.kubeconfig", "/root/.kube/config")
		d.note("clusters.kubeconfig", Remark{
			Kind: ToDo, Why: "the controller read ~/.kube/config, as no flag names a file",
			Do: "An account with fewer rights is printed by sallyport manifests",
		})
	}
	d.replace("clusters.ingress.customResources", "true") // the controller always reads them
	d.note("clusters.ingress.trust", Remark{
		Kind: Changed, Why: "a host belongs to the namespace that named it first, and only the ConfigMap may bring " +
			"snippets; the controller let all namespaces share each host, and read snippets of all",
		Do: "If one team owns the cluster, trust: cluster is as before",
	})
	return nil
}

// special writes the keys of flags that need more than a key.
func (k *kic) special(d *draft, f argument) {
	changed := func(key, why, do string) {
		d.note(key, Remark{Kind: Changed, At: f.at, What: "--" + f.name, Why: why, Do: do})
	}
	switch f.name {
	case "ingress.class":
		d.set("clusters.ingress.class", quoted(f.value), f.at, "--ingress.class")
		d.set("clusters.ingress.controller", quoted("haproxy.org/ingress-controller/"+f.value), f.at, "--ingress.class")
	case "empty-ingress-class":
		d.replace("clusters.ingress.watchWithoutClass", "true")
	case "disable-ingress-status-update":
		d.at("clusters.ingress.publish").list = true
		changed("clusters.ingress.publish", "without publish no status is written, as asked", "")
	case "publish-service":
		d.note("clusters.ingress.publish", Remark{
			Kind: Left, At: f.at, What: "--publish-service",
			Why: "the status of Ingresses has the addresses of this file, " +
				"and not those of a Service", Do: "Once this machine serves, write its address in publish",
		})
	case "disable-config-snippets":
		for one := range strings.SplitSeq(f.value, ",") {
			if one = strings.TrimSpace(one); one == "all" || one == "" {
				d.add("clusters.ingress.noSnippets", "global", "frontend", "backend")
			} else {
				d.add("clusters.ingress.noSnippets", quoted(one))
			}
		}
	case "log":
		level := map[string]string{"trace": "debug", "warning": "warn", "panic": "error", "fatal": "error"}[f.value]
		if level == "" {
			level = f.value
		}
		d.replace("log.level", quoted(level))
	case "disable-quic":
		changed("", "HTTP/3 is served only where the ConfigMap asks for it", "")
	case "prometheus", "pprof", "p", "controller-port", "stats-bind-port", "healthz-bind-port":
		changed("status.listen", "status, metrics and health have one address, 127.0.0.1:9090, with other names "+
			"of metrics",
			"Other machines need status.tls and status.passwordFile: appliance/METRICS.md")
	case "disable-service-external-name":
		changed("", "a Service of type ExternalName is never served: only pods with a verified route are", "")
	default:
		what := "--" + f.name
		if f.name == "" {
			what = "an argument"
		}
		d.note("", Remark{
			Kind: Left, At: f.at, What: what, Why: "it is no flag of the controller that this command knows",
			Do: "Look it up in the manual of the controller",
		})
	}
}

// listeners are the addresses of HTTP and HTTPS.
type listeners struct {
	http, https, four, six         string
	noHTTP, noHTTPS, noFour, noSix bool
	httpAt, httpsAt                Place // if it is zero, no flag names the port
}

// flag reads a flag about addresses. It reports whether the flag is about addresses.
func (l *listeners) flag(f argument) bool {
	on := f.value != "false"
	switch f.name {
	case "http-bind-port":
		l.http, l.httpAt = f.value, f.at
	case "https-bind-port":
		l.https, l.httpsAt = f.value, f.at
	case "ipv4-bind-address":
		l.four = f.value
	case "ipv6-bind-address":
		l.six = f.value
	case "disable-http":
		l.noHTTP = on
	case "disable-https":
		l.noHTTPS = on
	case "disable-ipv4":
		l.noFour = on
	case "disable-ipv6":
		l.noSix = on
	default:
		return false
	}
	return true
}

// write writes the addresses.
func (l *listeners) write(d *draft, k *kic) {
	if k.helm {
		return // ports of a container are not those of a machine
	}
	for _, one := range []struct {
		key, port string
		off       bool
		at        Place
	}{{"haproxy.http", l.http, l.noHTTP, l.httpAt}, {"haproxy.https", l.https, l.noHTTPS, l.httpsAt}} {
		s := d.at(one.key)
		s.list = true
		if one.off {
			s.values = []string{""} // an empty list
			continue
		}
		if one.at == (Place{}) {
			s.remarks = append(s.remarks, Remark{
				Kind: ToDo, What: one.key,
				Why: "the controller listened on " + one.port + " because no flag names a port",
				Do:  "If clients come to another port, such as 80 or 443, correct it",
			})
		}
		d.add(one.key, l.at(one.port)...)
	}
}

// at returns the addresses with a port, as scalars of YAML.
func (l *listeners) at(port string) (all []string) {
	everywhere := func(text, any string) bool { return text == "" || text == any }
	if !l.noFour && !l.noSix && everywhere(l.four, "0.0.0.0") && everywhere(l.six, "::") {
		return []string{quoted(":" + port)}
	}
	add := func(off bool, text, any string) {
		if text == "" {
			text = any
		}
		if strings.Contains(text, ":") {
			text = "[" + text + "]"
		}
		if !off {
			all = append(all, quoted(text+":"+port))
		}
	}
	add(l.noFour, l.four, "0.0.0.0")
	add(l.noSix, l.six, "::")
	return all
}
