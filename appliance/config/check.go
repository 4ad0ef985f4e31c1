package config

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// check finds the mistakes that the tags of a key do not rule out.
func (c *Config) check(p *problems) {
	c.checkClusters(p)
	c.checkPools(p)
	c.checkSpeaker(p)
	c.checkRoutes(p)
	c.checkHAProxy(p)
	c.checkGroup(p)
	c.checkOwnAddresses(p)
	c.checkPorts(p)
	c.checkStatus(p)
	c.checkSystem(p)
}

// each adds a mistake for each item of a list that is not valid. The mistake is made of
// wrong, with the item filled in.
func each[T any](p *problems, key string, list []T, valid func(T) bool, wrong string) {
	for i, item := range list {
		if !valid(item) {
			p.add(fmt.Sprintf("%s[%d]", key, i), wrong, item)
		}
	}
}

// notAMachine is the mistake of an address that no machine can have.
const notAMachine = "%s is not the address of a machine"

// name matches the name of a cluster, which becomes part of backend and file names. It
// is a DNS label (RFC 1123 section 2.1).
var name = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// class matches the name of an IngressClass (a DNS subdomain).
var class = regexp.MustCompile(`^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$`)

// account matches a user or group name as useradd(8) recommends it, or a number.
var account = regexp.MustCompile(`^([a-z_][-a-z0-9_]{0,31}\$?|[0-9]{1,10})$`)

// plainPath matches a path that needs no quotes anywhere in HAProxy's configuration.
var plainPath = regexp.MustCompile(`^[A-Za-z0-9_./-]+$`)

// maxRunDir leaves room for a socket's name in the 108 bytes of sun_path (unix(7)).
const maxRunDir = 80

func (c *Config) checkClusters(p *problems) {
	if len(c.Clusters) == 0 && len(p.list) == 0 {
		p.add("clusters", "is missing; give at least one cluster with its kubeconfig")
	}
	names, process := map[string]int{}, -1
	for i, cluster := range c.Clusters {
		at := fmt.Sprintf("clusters[%d]", i)
		first, twice := names[cluster.Name]
		switch {
		case cluster.Name == "":
			p.add(at, "name is missing; with more than one cluster each needs its own")
		case !name.MatchString(cluster.Name):
			p.add(at+".name", "%q is not allowed; allowed: up to 63 lower-case letters, digits and dashes",
				cluster.Name)
		case twice:
			p.add(at+".name", "%q is already the name of clusters[%d]", cluster.Name, first)
		default:
			names[cluster.Name] = i
		}
		checkSet(p, at, cluster)
		checkSource(p, at, cluster)
		switch {
		case !cluster.Ingress.Process:
		case process >= 0:
			p.add(at+".ingress.process",
				"is set for clusters[%d] already; one cluster sets what concerns the whole HAProxy process", process)
		default:
			process = i
		}
		if k := cluster.Kubeconfig; k.Path == "" && k.Inline.IsZero() {
			p.add(at, "kubeconfig is missing; give the path of a kubeconfig file, or the kubeconfig itself")
		}
		if !cluster.BGP.Password.IsZero() && cluster.BGP.PasswordFile != "" {
			p.add(at+".bgp.passwordFile", "password is given too; keep one of the two")
		}
		if p.given(at + ".bgp.password") {
			checkPassword(p, at+".bgp.password", cluster.BGP.Password)
		}
		each(p, at+".bgp.routeReflectors", cluster.BGP.RouteReflectors, netip.Addr.IsGlobalUnicast, notAMachine)
		checkIngress(p, at+".ingress", cluster.Ingress)
		if cluster.Gateway.Shared && len(cluster.Ingress.Publish) == 0 {
			p.add(at+".gateway.shared", "is true, and no address is known that Gateways could share; list the "+
				"addresses of Ingresses in %s.ingress.publish", at)
		}
		if name := cluster.Gateway.Controller; len(name) > 253 || !controllerName.MatchString(name) {
			p.add(at+".gateway.controller", "%q is not the name of a controller; allowed: DOMAIN/PATH, such as "+
				"sallyport.dev/gateway", name)
		}
	}
	c.checkWeights(p)
}

// checkWeights checks that all clusters of a set have a weight, or none: no default could be meant for the others.
func (c *Config) checkWeights(p *problems) {
	for i, cluster := range c.Clusters {
		other := slices.IndexFunc(c.Clusters, func(o Cluster) bool { return o.Set == cluster.Set && o.Weight > 0 })
		at := fmt.Sprintf("clusters[%d].weight", i)
		if cluster.Set != "" && cluster.Weight == 0 && other >= 0 && !p.given(at) {
			p.add(at, "is missing, and clusters[%d] of the same set has one; give all clusters of set %s a weight, "+
				"or none", other, cluster.Set)
		}
	}
}

// checkSet checks what a cluster does in its set.
func checkSet(p *problems, at string, cluster Cluster) {
	switch {
	case cluster.Set != "" && !name.MatchString(cluster.Set):
		p.add(at+".set", "%q is not allowed; allowed: up to 63 lower-case letters, digits and dashes", cluster.Set)
	case cluster.Set == "" && cluster.State != Serving && cluster.State != "":
		p.add(at+".state", "is %s, and the cluster is in no set that could serve in its place; give clusters[].set",
			cluster.State)
	case cluster.Set == "" && cluster.Share == ShareAll:
		p.add(at+".share", "is %s, and the cluster is in no set that it could share its Services with; give "+
			"clusters[].set", cluster.Share)
	case cluster.Set == "" && cluster.Weight > 0:
		p.add(at+".weight", "is %d, and the cluster is in no set beside whose clusters it could count; give "+
			"clusters[].set", cluster.Weight)
	case cluster.Set == "" && cluster.MinReady.More():
		p.add(at+".minReady", "is %s, and the cluster is in no set that could serve in its place; give clusters[].set",
			cluster.MinReady)
	}
}

func checkIngress(p *problems, at string, in Ingress) {
	if !class.MatchString(in.Class) {
		p.add(at+".class", "%q is not allowed; allowed: the name of an IngressClass", in.Class)
	}
	if in.Controller == "" {
		p.add(at+".controller", "is empty; the default is haproxy.org/ingress-controller")
	}
	checkNginx(p, at+".nginx", in)
	for key, name := range map[string]string{
		"configMap": in.ConfigMap, "errorFiles": in.ErrorFiles,
		"patternFiles": in.PatternFiles, "tcpServices": in.TCPServices,
	} {
		if name != "" && !objectName.MatchString(name) {
			p.add(at+"."+key, "%q is not the name of a ConfigMap; allowed: NAMESPACE/NAME", name)
		}
	}
	if in.ReleaseAfter < 0 || in.ReleaseAfter > 30*24*time.Hour {
		p.add(at+".releaseAfter", "%s is not allowed; allowed: 0s to 720h", in.ReleaseAfter)
	}
	each(p, at+".namespaces", in.Namespaces, isNamespace, notANamespace)
	each(p, at+".notNamespaces", in.NotNamespaces, isNamespace, notANamespace)
	if in.NamespaceSelector != "" && !selector().MatchString(in.NamespaceSelector) {
		p.add(at+".namespaceSelector",
			"%q is not a label selector; allowed: KEY=VALUE, KEY!=VALUE, KEY in (A, B), KEY notin (A, B), KEY and "+
				"!KEY, with commas", in.NamespaceSelector)
	}
	each(p, at+".authServices", in.AuthServices, objectName.MatchString,
		"%q is not the name of a Service; allowed: NAMESPACE/NAME")
	each(p, at+".noSnippets", in.NoSnippets, func(section string) bool {
		return slices.Contains([]string{"global", "defaults", "frontend", "backend"}, section)
	}, "%q is not a section for snippets; allowed: global, defaults, frontend, backend")
	if p.given(at + ".publish") { // otherwise it is the group's
		each(p, at+".publish", in.Publish, netip.Addr.IsGlobalUnicast, notAMachine)
	}
	for i, h := range in.Hosts {
		at := fmt.Sprintf("%s.hosts[%d]", at, i)
		if name := strings.TrimPrefix(h.Host, "*."); h.Host != "*" && (len(name) > 253 || !dnsName.MatchString(name)) {
			p.add(at+".host", "%q is not a host; allowed: a DNS name in lower case, *.NAME for every name below one, "+
				"and * for every host", h.Host)
		}
		each(p, at+".namespaces", h.Namespaces, func(name string) bool {
			return name == "*" || isNamespace(name)
		}, notANamespace+", or * for every namespace")
	}
}

func checkNginx(p *problems, at string, in Ingress) {
	n := in.Nginx
	each(p, at+".classes", n.Classes, func(name string) bool { return class.MatchString(name) && name != in.Class },
		"%q is not allowed; allowed: the name of an IngressClass, but not the class of the other Ingresses")
	if len(n.Controllers) == 0 {
		p.add(at+".controllers", "lists no controller; the default is k8s.io/ingress-nginx")
	}
	each(p, at+".controllers", n.Controllers, func(name string) bool { return name != "" && name != in.Controller },
		"%q is empty, or the controller of the other Ingresses; the default is k8s.io/ingress-nginx")
	each(p, at+".without", n.Without, func(name string) bool { return slices.Contains(NginxGuards, name) },
		"%q is not a guard that can be given up; allowed: "+strings.Join(NginxGuards, ", "))
}

// NginxGuards are the annotations of ingress-nginx that may keep clients out.
var NginxGuards = []string{
	"allowlist-source-range", "auth-method", "auth-proxy-set-headers", "auth-response-headers", "auth-secret",
	"auth-signin",
	"auth-signin-redirect-param", "auth-snippet", "auth-tls-match-cn", "auth-tls-secret",
	"auth-tls-verify-client", "auth-type", "auth-url", "configuration-snippet", "denylist-source-range",
	"enable-modsecurity", "enable-owasp-core-rules", "modsecurity-snippet", "proxy-ssl-name",
	"proxy-ssl-secret", "proxy-ssl-server-name", "proxy-ssl-verify", "server-snippet", "stream-snippet",
	"whitelist-source-range",
}

// selector returns an expression that matches a label selector as kubectl takes it.
//
// It is compiled at its first use: compiling its repetitions took a quarter of the time
// in which the program starts.
var selector = sync.OnceValue(func() *regexp.Regexp {
	const (
		name  = `[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?`
		key   = `(?:[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?/)?` + name
		value = `(?:` + name + `)?`
		one   = `\s*(?:!?\s*` + key + `|` + key + `\s*(?:=|==|!=)\s*` + value + `|` + key + `\s+(?:in|notin)\s*\(\s*` +
			value + `(?:\s*,\s*` + value + `)*\s*\))\s*`
	)
	return regexp.MustCompile(`^` + one + `(?:,` + one + `)*$`)
})

// objectName matches a namespace (RFC 1123 label) and a name (RFC 1123 subdomain).
var objectName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$`)

func isNamespace(name string) bool { return objectName.MatchString(name + "/x") }

const notANamespace = "%q is not the name of a namespace; allowed: up to 63 lower-case letters, digits and dashes"

// controllerName matches the spec.controllerName of a GatewayClass (Gateway API, type
// GatewayController).
var controllerName = regexp.MustCompile(
	`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9/\-._~%!$&'()*+,;=:]+$`,
)

// dnsName matches a DNS name of at least one label, in lower case (RFC 1123).
var dnsName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// maxKey is TCP_MD5SIG_MAXKEYLEN of linux/tcp.h.
const maxKey = 80

func checkPassword(p *problems, at string, key Secret) {
	if n := len(key.Reveal()); n == 0 || n > maxKey {
		p.add(at, "the key has %d bytes; allowed: 1 to %d", n, maxKey)
	}
}

// minStatusPassword is the least length of the status endpoint's password. It makes
// guessing useless at the rate that the endpoint allows.
const minStatusPassword = 12

func checkStatusPassword(p *problems, at string, password Secret) {
	text := password.Reveal()
	if len(text) < minStatusPassword {
		p.add(at, "the password has %d characters; allowed: %d and more; openssl rand -hex 16 makes one", len(text),
			minStatusPassword)
	}
	if strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		p.add(at, "the password has a character other than the visible ones of ASCII; openssl rand -hex 16 makes one")
	}
}

func (c *Config) checkStatus(p *problems) {
	s := c.Status
	each(p, "status.names", s.Names, hostname.MatchString, "%q is not a host name")
	if !s.Password.IsZero() && s.PasswordFile != "" {
		p.add("status.passwordFile", "password is given too; keep one of the two")
	}
	if p.given("status.password") {
		checkStatusPassword(p, "status.password", s.Password)
	}
	none := PEM{}
	switch {
	case s.TLS.Certificate != none && s.TLS.Key == none && !p.given("status.tls.key"):
		p.add("status.tls", "key is missing; give the private key of the certificate")
	case s.TLS.Key != none && s.TLS.Certificate == none && !p.given("status.tls.certificate"):
		p.add("status.tls", "certificate is missing; give the certificate of the key")
	case s.TLS.Exists() && s.TLS.Certificate.Path == "" && s.TLS.Key.Path == "":
		if _, err := s.TLS.Pair(); err != nil {
			p.add("status.tls", "%v", err)
		}
	}
	var missing []string
	if !s.TLS.Exists() {
		missing = append(missing, "status.tls")
	}
	if s.Password.IsZero() && s.PasswordFile == "" {
		missing = append(missing, "status.password or status.passwordFile")
	}
	if at := s.Listen; len(missing) > 0 && at.IsValid() && !at.Addr().IsLoopback() {
		p.add("status.listen", "other machines reach %s, so it needs %s; or listen on loopback: 127.0.0.1:%d", at,
			strings.Join(missing, ", and "), at.Port())
	}
}

func (c *Config) checkPools(p *problems) {
	type owned struct {
		cluster int
		pool    netip.Prefix
	}
	var all []owned
	for i, cluster := range c.Clusters {
		for j, pool := range cluster.Pools {
			at := fmt.Sprintf("clusters[%d].pools[%d]", i, j)
			// Pods never have these addresses, and a pool that contains one of these
			// networks bounds little.
			for _, bad := range []string{
				"127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "::1/128", "fe80::/10",
				"ff00::/8",
			} {
				if never := netip.MustParsePrefix(bad); never.Overlaps(pool) && pool.Bits() > 0 {
					p.add(at, "%s overlaps %s, which pods cannot have", pool, never)
				}
			}
			if pool.Bits() == 0 {
				p.add(at, "%s contains every address; give the networks of the pods, or leave pools out", pool)
			}
			for _, other := range all {
				first := c.Clusters[other.cluster]
				if other.cluster != i && other.pool.Overlaps(pool) && !apart(cluster.Source, first.Source) {
					p.add(at, "%s overlaps %s of cluster %q; one table of routes cannot lead to both: give each of "+
						"the two a source of its own", pool, other.pool, first.Name)
				}
			}
			all = append(all, owned{i, pool})
		}
	}
}

// apart reports whether two sources are two addresses for certain.
func apart(a, b Source) bool { return a.IsValid() && b.IsValid() && !a.Overlaps(b.Prefix) }

// checkSource checks that it is known which packets take the table of a source.
func checkSource(p *problems, at string, cluster Cluster) {
	if !cluster.Source.IsValid() {
		return
	}
	if len(cluster.Pools) == 0 {
		p.add(at+".source", "is %s, and %s.pools is missing; give the networks of the pods, so that nothing else "+
			"leaves from this address by their routes", cluster.Source, at)
	}
	for i, pool := range cluster.Pools {
		if !pool.Addr().Is4() {
			p.add(fmt.Sprintf("%s.pools[%d]", at, i), "%s is not IPv4, and source is an address of IPv4; leave one of "+
				"them out", pool)
		}
		if pool.Overlaps(cluster.Source.Prefix) {
			p.add(at+".source", "%s overlaps %s, a network of pods (%s.pools[%d])", cluster.Source, pool, at, i)
		}
	}
}

func (c *Config) checkSpeaker(p *problems) {
	b := c.BGP
	// RFC 4271 section 4.2 allows zero or at least three seconds, in two bytes. With
	// zero there are no keepalives, and so no loss is noticed.
	if b.HoldTime < 3*time.Second || b.HoldTime > 65535*time.Second || b.HoldTime%time.Second != 0 {
		p.add("bgp.holdTime", "%s is not allowed; allowed: whole seconds from 3s to 65535s", b.HoldTime)
	}
	if b.RouterID.IsValid() && (!b.RouterID.Is4() || b.RouterID.IsUnspecified() || b.RouterID.IsMulticast()) {
		p.add("bgp.routerID", "%s is not allowed; allowed: the form of an IPv4 address that is not 0.0.0.0", b.RouterID)
	}
	if len(b.Listen) == 0 && len(p.list) == 0 {
		p.add("bgp.listen", "is an empty list; nodes could not connect")
	}
	each(p, "bgp.listen", b.Listen, func(a netip.Addr) bool { return !a.IsMulticast() }, notAMachine)
}

func (c *Config) checkRoutes(p *problems) {
	// Numbers between 20 and 185 that /etc/iproute2/rt_protos assigns to other
	// programs.
	if owner, taken := map[uint8]string{42: "babel", 84: "ovn", 99: "openr"}[c.Routes.Protocol]; taken {
		p.add("routes.protocol", "%d is the number of %s; choose another, so that the two kinds of routes differ",
			c.Routes.Protocol, owner)
	}
	if c.Routes.Table == 255 {
		p.add("routes.table", "255 is the kernel's table of its own addresses; choose another")
	}
}

func (c *Config) checkHAProxy(p *problems) {
	h := c.HAProxy
	switch {
	case h.Mode == External && h.MasterSocket == "":
		p.add("haproxy", "masterSocket is missing; mode external needs the socket of HAProxy's master process "+
			"(haproxy -S)")
	case h.Mode == Managed && h.MasterSocket != "":
		p.add("haproxy.masterSocket", "is for mode external only; in mode managed its place is runDir")
	}
	if len(h.HTTP) == 0 && len(h.HTTPS) == 0 && len(p.list) == 0 {
		p.add("haproxy", "http and https are both empty; there is nothing to listen on")
	}
	for key, value := range map[string]string{"user": h.User, "group": h.Group} {
		if value != "" && !account.MatchString(value) {
			p.add("haproxy."+key, "%q is not allowed; allowed: a name or number of this machine", value)
		}
	}
	if h.MinReloadInterval < time.Millisecond || h.MinReloadInterval > time.Hour {
		p.add("haproxy.minReloadInterval", "%s is not allowed; allowed: 1ms to 1h", h.MinReloadInterval)
	}
	for key, value := range map[string]string{"haproxy.dir": h.Dir, "haproxy.runDir": h.RunDir} {
		if value != "" && !plainPath.MatchString(value) {
			p.add(key,
				"%q is not allowed; allowed: letters, digits and . _ - / (HAProxy's configuration names files in it)",
				value)
		}
	}
	if len(h.RunDir) > maxRunDir {
		p.add("haproxy.runDir", "has %d bytes; allowed: %d, because the path of a socket is short", len(h.RunDir),
			maxRunDir)
	}
	for key, value := range map[string]string{
		"haproxy.binary": h.Binary, "haproxy.dir": h.Dir,
		"haproxy.runDir": h.RunDir, "stateDir": c.StateDir,
	} {
		if value == "" {
			p.add(key, "is empty; leave the key out for the default")
		}
	}
	if h.Dir != "" && filepath.Clean(h.Dir) == filepath.Clean(c.StateDir) {
		p.add("haproxy.dir", "is also stateDir; give each a directory of its own")
	}
}

// checkPorts rejects two listeners on one port. A listener on the IPv6 wildcard leaves
// IPv4 to others, except that of the status endpoint, which has a single address.
func (c *Config) checkPorts(p *problems) {
	var all []Port
	for _, port := range c.Ports() {
		if port.Protocol == TCP && port.At.Addr().IsValid() {
			all = append(all, port)
		}
		if at := port.At; port.Key == "status.listen" && at.Addr() == netip.IPv6Unspecified() {
			port.At = netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port())
			all = append(all, port)
		}
	}
	told := map[[2]string]bool{}
	for i, a := range all {
		for _, b := range all[:i] {
			if pair := [2]string{a.Key, b.Key}; clash(a.At, b.At) && !told[pair] {
				told[pair] = true
				p.add(a.Key, "%s is in use by %s", a.At, b.Key)
			}
		}
	}
}

// clash reports whether two sockets of one address family cannot both be bound.
func clash(a, b netip.AddrPort) bool {
	return a.Port() == b.Port() && a.Addr().Is4() == b.Addr().Is4() &&
		(a.Addr() == b.Addr() || a.Addr().IsUnspecified() || b.Addr().IsUnspecified())
}
