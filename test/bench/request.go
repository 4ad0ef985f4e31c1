package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/ingress/input"
	"sallyport/test/lab/debian"
	"sallyport/test/load"
)

var requestRows = []row{
	{1, "processor time of a request, beside a hand-written haproxy.cfg", alone, plainRequests},
	{2, "processor time of a request, in a crowd of others", alone, crowdedRequests},
	{3, "connections to pods that are reused while pods are replaced", alone, reusedConnections},
	{4, "processor time over TLS, beside a hand-written haproxy.cfg", alone, secureRequests},
}

const (
	// requestsPerSecond is well below the capacity of two processors with the pods and
	// the load on them.
	requestsPerSecond = 3000
	keptConnections   = 16
	replicas          = 5
	// slice is the time until the next side gets requests. Short slices let all sides
	// meet the same machine.
	slice = 100 * time.Millisecond
	// rounds is the number of slices of each side in row 1. Rows with several figures
	// take half as many.
	rounds = 40
)

// A crowd has the objects of the cluster beside the Ingress of host app.test. The requests for app.test are
// measured.
type crowd struct {
	name      string
	ingresses int
	paths     []string                               // of each; none: "/"
	each      func(i int, ing *networkingv1.Ingress) // changes the Ingress of that number
	service   map[string]string                      // annotations of its Service
	calls     bool                                   // gRPC at app.test, see callPath
}

// crowds are those of row 2.
var crowds = []crowd{
	{name: "10,000 hosts × 3 paths", ingresses: 10_000, paths: []string{"/", "/api", "/static/assets"}},
	{name: "1,000 Ingresses with a rewrite and headers", ingresses: 1000, each: func(i int, ing *networkingv1.Ingress) {
		ing.Annotations = map[string]string{
			"haproxy.org/path-rewrite":       fmt.Sprintf("/v%d", i),
			"haproxy.org/request-set-header": fmt.Sprintf("X-Tenant t%d", i),
		}
	}},
	{
		name: "paths by regex, conditions, canaries", ingresses: 30,
		service: map[string]string{"haproxy.org/route-acl": "cookie(beta) -m found"},
		each: func(i int, ing *networkingv1.Ingress) {
			switch i % 3 {
			case 0:
				kind := networkingv1.PathTypeImplementationSpecific
				path := &ing.Spec.Rules[0].HTTP.Paths[0]
				path.Path, path.PathType = `/v[0-9]+/.*`, &kind
				ing.Annotations = map[string]string{"sallyport.dev/path-type": "regex"}
			case 1:
				ing.Spec.Rules[0].HTTP.Paths[0].Backend.Service.Name = "conditional"
			case 2: // one, and its canary
				ing.Spec.Rules[0].Host = "app2.test"
				ing.Spec.Rules[0].HTTP.Paths[0].Path = fmt.Sprintf("/%d", i/6)
				if i%6 == 5 {
					ing.Annotations = map[string]string{"sallyport.dev/canary-weight": "10"}
				}
			}
		},
	},
}

// compiled returns the Config that the appliance has in a crowd.
func compiled(c crowd) (*haproxy.Config, error) { return compile(new(ingress.Compiler), c.snapshot()) }

// snapshot returns the objects of a crowd.
func (c crowd) snapshot() input.Snapshot {
	s := input.Snapshot{Cluster: ingress.Unnamed, NoClasses: true}
	s.Options.OneTenant = true
	for name, annotations := range map[string]map[string]string{"app": nil, "conditional": c.service} {
		s.Services = append(s.Services, newService(name, annotations))
	}
	s.Ingresses = append(s.Ingresses, newIngress("app", "app.test", "app", "/"))
	if c.calls {
		s.Services = append(s.Services, newService("grpc", map[string]string{"haproxy.org/server-proto": "h2"}))
		s.Ingresses = append(s.Ingresses, newIngress("grpc", "app.test", "grpc", callPath))
	}
	for i := range c.ingresses {
		paths := c.paths
		if len(paths) == 0 {
			paths = []string{"/"}
		}
		ing := newIngress(fmt.Sprintf("other-%05d", i), crowdHost(i), "app", paths...)
		if c.each != nil {
			c.each(i, ing)
		}
		s.Ingresses = append(s.Ingresses, ing)
	}
	return s
}

func crowdHost(i int) string { return fmt.Sprintf("h%d.bench.test", i) }

func newService(name string, annotations map[string]string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: annotations},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}
}

func newIngress(name, host, service string, paths ...string) *networkingv1.Ingress {
	class, kind := "haproxy", networkingv1.PathTypePrefix
	rule := &networkingv1.HTTPIngressRuleValue{}
	for _, p := range paths {
		rule.Paths = append(rule.Paths,
			networkingv1.HTTPIngressPath{Path: p, PathType: &kind, Backend: networkingv1.IngressBackend{
				Service: &networkingv1.IngressServiceBackend{
					Name: service,
					Port: networkingv1.ServiceBackendPort{Number: 80},
				},
			}})
	}
	return &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: networkingv1.IngressSpec{IngressClassName: &class, Rules: []networkingv1.IngressRule{{
			Host: host, IngressRuleValue: networkingv1.IngressRuleValue{HTTP: rule},
		}}},
	}
}

// freeAddresses returns addresses of loopback where nobody listens.
func freeAddresses(n int) ([]netip.AddrPort, error) {
	var all []netip.AddrPort
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() //nolint:errcheck // all are open until the last is found, so that none comes twice
		all = append(all, netip.MustParseAddrPort(l.Addr().String()))
	}
	return all, nil
}

// browser returns a request as a browser sends it.
func browser(host, path string) []byte {
	return []byte("GET " + path + " HTTP/1.1\r\nHost: " + host +
		"\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n" +
		"Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n" +
		"Accept-Language: en-US,en;q=0.5\r\nAccept-Encoding: gzip, deflate\r\n" +
		"Cookie: session=0123456789abcdef0123456789abcdef\r\n\r\n")
}

// A stage is pods and the sides before them, all with the same program of HAProxy.
type stage struct {
	binary, version, dir string
	pods                 []netip.AddrPort
	large                netip.AddrPort // see serveLarge
	cert                 []byte         // of app.test, with its key
	stops                []func() error
}

func (s *stage) close() (err error) {
	for _, stop := range s.stops {
		err = errors.Join(err, stop())
	}
	return err
}

// drive adds a side that the appliance's packages drive.
func (s *stage) drive(ctx context.Context, name string, cfg *haproxy.Config) (
	*side, *haproxy.Proxy, *haproxy.Config, error,
) {
	free, err := freeAddresses(2)
	if err != nil {
		return nil, nil, nil, err
	}
	own := *cfg
	own.Bind = haproxy.Bind{HTTP: free[:1], HTTPS: free[1:]}
	own.Certs = []*haproxy.Cert{{Name: "app.pem", Hosts: []string{"app.test"}, PEM: s.cert}}
	own.Backends = s.withServers(cfg.Backends, s.pods[:replicas])
	p, driver, err := startDriven(ctx, s.binary, s.dir, name, &own)
	if err == nil {
		s.stops, s.version = append(s.stops, p.stop), driver.Info().Version
	}
	return p, driver, &own, err
}

// withServers returns backends of which the one that is measured has these pods, and the one of gRPC its server. Checks
// of the others would count as processor time of requests.
func (s *stage) withServers(backends []*haproxy.Backend, pods []netip.AddrPort) (out []*haproxy.Backend) {
	var servers []haproxy.Server
	for _, a := range pods {
		servers = append(servers, haproxy.Server{Name: haproxy.ServerName(a), Addr: a})
	}
	slices.SortFunc(servers, func(a, b haproxy.Server) int { return strings.Compare(a.Name, b.Name) })
	for _, b := range backends {
		filled := *b
		if b.Name == "default_svc_app_80" {
			filled.Servers = servers
		}
		if b.Name == callBackend {
			filled.Servers = []haproxy.Server{{Name: haproxy.ServerName(s.large), Addr: s.large}}
		}
		out = append(out, &filled)
	}
	return out
}

// write adds a side that a hand-written file configures, with the routes of cfg.
func (s *stage) write(ctx context.Context, name, text string, cfg *haproxy.Config) (*side, error) {
	free, err := freeAddresses(2)
	if err != nil {
		return nil, err
	}
	var rows strings.Builder
	for _, r := range cfg.Routes {
		fmt.Fprintf(&rows, "%s%s %s\n", r.Host, r.Path, r.Backend)
	}
	p, err := startWritten(ctx, s.binary, s.dir, name, text,
		written{
			HTTP: free[0], HTTPS: free[1], Pods: s.pods[:replicas],
			Backends: s.withServers(cfg.Backends, s.pods[:replicas]),
		},
		files{"route.map": []byte(rows.String()), "app.pem": s.cert})
	if err == nil {
		s.stops = append(s.stops, p.stop)
	}
	return p, err
}

// onStages calls measure with each program of HAProxy that the tests know. The pods are a
// HAProxy of their own, always the one in PATH.
func (b *bench) onStages(ctx context.Context, measure func(*stage) error) error {
	programs, err := debian.HAProxies()
	if err != nil {
		return err
	}
	cert, err := newCert("app.test")
	if err != nil {
		return err
	}
	for _, binary := range programs {
		if err := b.onStage(ctx, &stage{binary: binary, cert: cert}, measure); err != nil {
			return fmt.Errorf("%s: %w", binary, err)
		}
	}
	return nil
}

func (b *bench) onStage(ctx context.Context, s *stage, measure func(*stage) error) (err error) {
	defer func() { err = errors.Join(err, s.close()) }()
	if s.dir, err = os.MkdirTemp(b.dir, "requests-"); err != nil {
		return err
	}
	if s.pods, err = freeAddresses(2 * replicas); err != nil {
		return err
	}
	var stop func() error
	if s.large, stop, err = serveLarge(); err != nil {
		return err
	}
	s.stops = append(s.stops, stop)
	p, err := startWritten(ctx, "haproxy", s.dir, "pods", podsText, written{Pods: s.pods, Large: s.large}, nil)
	if err != nil {
		return err
	}
	s.stops = append(s.stops, p.stop)
	return measure(s)
}

// newCert returns a certificate and its key, of the kind that most certificates are.
func newCert(host string) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{host},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return slices.Concat(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})), nil
}

// A contender is a side with its load, and with the figures of it.
type contender struct {
	*side
	load drive
	cpu  []time.Duration // of a request, by slice
	took []time.Duration
}

// cost returns the processor time of a request in microseconds. The lower quartile passes
// over the slices in which the machine did something else, too.
func (c *contender) cost() float64 { return 1000 * percentile(c.cpu, 0.25) }

// perCore returns how many requests a second take the processor time of one core. It is
// derived from cost: clients that saturate HAProxy would take the cores from it.
func (c *contender) perCore() float64 { return 1e6 / c.cost() }

// compete sends requests through the contenders in turn, and closes their loads.
func compete(ctx context.Context, rate, rounds int, all ...*contender) error {
	for _, c := range all {
		defer c.load.close()
		if _, err := c.load.send(ctx, rate, 2*slice); err != nil { // warms up
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return alternate(rounds, len(all), func(i int) error {
		if err := all[i].measure(ctx, rate); err != nil {
			return fmt.Errorf("%s: %w", all[i].name, err)
		}
		return nil
	})
}

// alternate calls measure with each number below n, in each round. No number always comes
// after the same neighbour.
func alternate(rounds, n int, measure func(i int) error) error {
	for k := range rounds {
		for i := range n {
			if err := measure((i + k) % n); err != nil {
				return err
			}
		}
	}
	return nil
}

// measure sends requests for one slice.
func (c *contender) measure(ctx context.Context, rate int) error {
	before, err := c.side.cpu()
	if err != nil {
		return err
	}
	took, err := c.load.send(ctx, rate, slice)
	if err != nil {
		return err
	}
	after, err := c.side.cpu()
	c.cpu, c.took = append(c.cpu, (after-before)/time.Duration(len(took))), append(c.took, took...)
	return err
}

func plainRequests(ctx context.Context, b *bench) error {
	cfg, err := compiled(crowd{})
	if err != nil {
		return err
	}
	return b.onStages(ctx, func(s *stage) error {
		ours, _, _, err := s.drive(ctx, "sallyport", cfg)
		if err != nil {
			return err
		}
		rival, err := s.write(ctx, "hand-written", rivalText, cfg)
		if err != nil {
			return err
		}
		plain, err := s.write(ctx, "least", plainText, cfg)
		if err != nil {
			return err
		}
		var all []*contender
		for _, side := range []*side{ours, rival, plain} {
			c := &contender{side: side}
			all = append(all, c)
			if err := c.load.keep(ctx, keptConnections, side.http.String(), nil,
				[][]byte{browser("app.test", "/")}); err != nil {
				return err
			}
		}
		if err := compete(ctx, requestsPerSecond, rounds, all...); err != nil {
			return err
		}
		b.add(value("processor time of a request, HAProxy "+s.version, all[0].cost(), "µs").beside(rival.name,
			all[1].cost()).timesAtMost(1.05))
		b.add(value("the same, beside a file without any rule", all[0].cost(), "µs").beside(plain.name, all[2].cost()))
		for _, p := range []float64{0.5, 0.99} {
			b.add(value(fmt.Sprintf("answer to a request, p%g, HAProxy %s", p*100, s.version),
				percentile(all[0].took, p), "ms").beside(rival.name, percentile(all[1].took, p)))
		}
		return nil
	})
}

// crowdedRequests measures requests for one host among others, then requests for all
// hosts of the largest crowd.
func crowdedRequests(ctx context.Context, b *bench) error {
	one := [][]byte{browser("app.test", "/")}
	return b.onStages(ctx, func(s *stage) error {
		var all []*contender
		for _, crowd := range append([]crowd{{name: "alone"}}, crowds...) {
			cfg, err := compiled(crowd)
			if err != nil {
				return err
			}
			side, _, _, err := s.drive(ctx, fmt.Sprintf("crowd-%d", len(all)), cfg)
			if err != nil {
				return err
			}
			c := &contender{side: side}
			all = append(all, c)
			if err := c.load.keep(ctx, keptConnections, side.http.String(), nil, one); err != nil {
				return err
			}
		}
		if err := compete(ctx, requestsPerSecond, rounds/2, all...); err != nil {
			return err
		}
		for i, crowd := range crowds {
			b.add(value("processor time of a request, beside "+crowd.name+", HAProxy "+s.version, all[i+1].cost(),
				"µs").beside("alone", all[0].cost()).timesAtMost(1.05))
		}

		large := crowds[0]
		cfg, err := compiled(large)
		if err != nil {
			return err
		}
		rival, err := s.write(ctx, "hand-written", rivalText, cfg)
		if err != nil {
			return err
		}
		var requests [][]byte
		for k := range 997 { // hosts all over the map
			requests = append(requests, browser(crowdHost(k*7919%large.ingresses), large.paths[k%len(large.paths)]))
		}
		us, them := &contender{side: all[1].side}, &contender{side: rival}
		for _, c := range []*contender{us, them} {
			if err := c.load.keep(ctx, keptConnections, c.http.String(), nil, requests); err != nil {
				return err
			}
		}
		if err := compete(ctx, requestsPerSecond, rounds/2, us, them); err != nil {
			return err
		}
		b.add(value("processor time of a request to any of "+large.name+", HAProxy "+s.version, us.cost(),
			"µs").beside(rival.name, them.cost()).timesAtMost(1.05))
		return nil
	})
}

// reusedConnections replaces all pods by others, one after the other, then scales, under
// load.
func reusedConnections(ctx context.Context, b *bench) error {
	cfg, err := compiled(crowd{})
	if err != nil {
		return err
	}
	return b.onStages(ctx, func(s *stage) error {
		ours, driver, was, err := s.drive(ctx, "sallyport", cfg)
		if err != nil {
			return err
		}
		var l drive
		defer l.close()
		if err := l.keep(ctx, keptConnections, ours.http.String(), nil,
			[][]byte{browser("app.test", "/")}); err != nil {
			return err
		}
		opened, reused, err := ours.connections()
		if err != nil {
			return err
		}
		reloads := driver.Info().Reloads
		var sets [][]netip.AddrPort
		for i := range replicas { // one more, then one less
			sets = append(sets, s.pods[i:replicas+i+1], s.pods[i+1:replicas+i+1])
		}
		sets = append(sets, s.pods, s.pods[:2], s.pods[:replicas])
		for _, set := range sets {
			next := *was
			next.Backends = s.withServers(was.Backends, set)
			if err := settle(ctx, driver, &next); err != nil {
				return err
			}
			if _, err := l.send(ctx, requestsPerSecond/2, 5*slice); err != nil {
				return err
			}
		}
		opened2, reused2, err := ours.connections()
		if err != nil {
			return err
		}
		if n := driver.Info().Reloads - reloads; n > 0 {
			return fmt.Errorf("the servers changed with %d reloads", n)
		}
		opened, reused = opened2-opened, reused2-reused
		b.add(value("requests on a reused connection to a pod, HAProxy "+s.version,
			100*float64(reused)/float64(opened+reused), "%").atLeast(99))
		return nil
	})
}

func secureRequests(ctx context.Context, b *bench) error {
	cfg, err := compiled(crowd{})
	if err != nil {
		return err
	}
	request := browser("app.test", "/")
	kinds := []struct {
		what string
		unit string // in the plural, for the rate
		rate int
		add  func(l *drive, addr string, secure *tls.Config) error
	}{
		{
			"full handshake and a request", "full handshakes with a request", 300,
			func(l *drive, addr string, secure *tls.Config) error {
				l.renew(ctx, keptConnections, addr, secure, request)
				return nil
			},
		},
		{
			"resumed handshake and a request", "resumed handshakes with a request", 300,
			func(l *drive, addr string, secure *tls.Config) error {
				secure.ClientSessionCache = &remembering{}
				c, err := load.Open(ctx, load.From, addr, secure, load.Patience)
				if err != nil {
					return err
				}
				// the ticket comes before the answer
				if err := errors.Join(c.Exchange(request), c.Close()); err != nil {
					return err
				}
				c, err = load.Open(ctx, load.From, addr, secure, load.Patience)
				if err != nil {
					return err
				}
				if state := c.Conn.(*tls.Conn).ConnectionState(); !state.DidResume {
					err = errors.New("the session is not resumed")
				}
				l.renew(ctx, keptConnections, addr, secure, request)
				return errors.Join(err, c.Close())
			},
		},
		{
			"request on a kept connection", "requests on kept TLS connections", requestsPerSecond,
			func(l *drive, addr string, secure *tls.Config) error {
				return l.keep(ctx, keptConnections, addr, secure, [][]byte{request})
			},
		},
		{
			"request on one of 100 streams of h2", "requests on 100 streams of h2", 1000,
			func(l *drive, addr string, secure *tls.Config) error {
				secure.NextProtos = []string{"h2"}
				l.streams(ctx, 100, addr, secure, "https://app.test/")
				return nil
			},
		},
	}
	return b.onStages(ctx, func(s *stage) error {
		ours, _, _, err := s.drive(ctx, "sallyport", cfg)
		if err != nil {
			return err
		}
		rival, err := s.write(ctx, "hand-written", rivalText, cfg)
		if err != nil {
			return err
		}
		for _, kind := range kinds {
			us, them := &contender{side: ours}, &contender{side: rival}
			for _, c := range []*contender{us, them} {
				if err := kind.add(&c.load, c.https.String(), secure()); err != nil {
					return fmt.Errorf("%s: %s: %w", c.name, kind.what, err)
				}
			}
			if err := compete(ctx, kind.rate, rounds/2, us, them); err != nil {
				return fmt.Errorf("%s: %w", kind.what, err)
			}
			b.add(value("processor time, "+kind.what+", HAProxy "+s.version, us.cost(), "µs").beside(rival.name,
				them.cost()).timesAtMost(1.05))
			b.add(value(kind.unit+" that one core serves, HAProxy "+s.version, us.perCore(), "/s").beside(rival.name,
				them.perCore()))
		}
		return nil
	})
}
