package manifest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sallyport/ingress/annotations"
	"sallyport/ingress/input"
	"sallyport/ingress/kic"
)

// Assumed are the objects that were not read, and that are taken to exist and to be good.
type Assumed struct {
	Secrets    []string `json:"secrets,omitempty"`    // NAMESPACE/NAME
	ConfigMaps []string `json:"configMaps,omitempty"` // NAMESPACE/NAME
	Services   []string `json:"services,omitempty"`   // NAMESPACE/NAME
	// Classless is the number of Ingresses without a class. The first of the Classes takes them, as a
	// default class would.
	Classless int `json:"classless,omitempty"`
}

// Classes are the IngressClasses of a controller, by name. The first one takes Ingresses without a class.
type Classes struct {
	Names      []string
	Controller string // spec.controller of those that were not read
}

// Snapshot returns the objects as a cluster would have them at a moment. Classes, Services and Secrets
// that the objects name, and that were not read, are assumed. An assumed certificate is valid for the
// hosts of each Ingress that names it.
func (c *Contents) Snapshot(
	cluster string, at time.Time, o input.Options, classes Classes,
) (s input.Snapshot, a Assumed, err error) {
	s = input.Snapshot{Cluster: cluster, At: at, Options: o.WithDefaults(), Objects: c.objects}
	s.Ingresses, s.Services, s.Secrets = sorted(s.Ingresses), sorted(s.Services), sorted(s.Secrets)
	s.ConfigMaps, s.Namespaces = sorted(s.ConfigMaps), sorted(s.Namespaces)
	s.Backends, s.TCPs, s.Frontends = newerFirst(s.Backends), newerFirst(s.TCPs), newerFirst(s.Frontends)
	s.Globals, s.Defaults = newerFirst(s.Globals), newerFirst(s.Defaults)
	s.Rules = newerFirst(s.Rules)
	if s.Options.CustomResources {
		s.DropOlder()
	}
	s.Classes = classes.Among(s.Classes)
	if len(s.Classes) > 0 && !slices.ContainsFunc(s.Classes, isDefault) {
		i := slices.IndexFunc(s.Classes, func(c *networkingv1.IngressClass) bool { return c.Name == classes.Names[0] })
		s.Classes[i] = s.Classes[i].DeepCopy()
		s.Classes[i].Annotations = map[string]string{networkingv1.AnnotationIsDefaultIngressClass: "true"}
	}
	n := names{
		Snapshot: &s, services: make(map[types.NamespacedName]*corev1.Service),
		hosts: make(map[types.NamespacedName][]string), guards: make(map[types.NamespacedName]string),
	}
	ours := input.ClassesOf(&s)
	for _, ing := range s.Ingresses {
		kind := ours.Kind(ing)
		if kind == input.Strange {
			continue
		}
		if classless(ing) {
			a.Classless++
		}
		n.ingress(ing, kind)
	}
	if s.Options.CustomResources {
		n.tcps()
	}
	var services []*corev1.Service
	for key, service := range n.services {
		if _, has := input.Find(s.Services, key); !has {
			a.Services = append(a.Services, key.String())
			services = append(services, service)
		}
	}
	slices.Sort(a.Services)
	s.Services = sorted(slices.Concat(s.Services, services))
	err = n.rest(&a)
	return s, a, err
}

// rest adds the Secrets and ConfigMaps that objects name, and that were not read.
func (n *names) rest(a *Assumed) error {
	s := n.Snapshot
	secrets, configMaps, beyond := s.AllNamed()
	s.Beyond = slices.Concat(s.Beyond, beyond)
	signer := sync.OnceValues(func() (*ecdsa.PrivateKey, error) {
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	})
	assume := func(key types.NamespacedName) (*corev1.Secret, error) {
		private, err := signer()
		if err != nil {
			return nil, err
		}
		return n.secret(key, private)
	}
	var assumed []*corev1.Secret
	for _, key := range secrets {
		if _, has := input.Find(s.Secrets, key); has {
			continue
		}
		made, err := assume(key)
		if err != nil {
			return err
		}
		a.Secrets = append(a.Secrets, key.String())
		assumed = append(assumed, made)
	}
	var maps []*corev1.ConfigMap
	for _, key := range configMaps {
		if _, has := input.Find(s.ConfigMaps, key); has {
			continue
		}
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		if n.guards[key] == annotations.JWTPublicKeys {
			made, err := assume(key)
			if err != nil {
				return err
			}
			m.Data = map[string]string{"key": string(made.Data["key"])}
		}
		a.ConfigMaps = append(a.ConfigMaps, key.String())
		maps = append(maps, m)
	}
	s.Secrets, s.ConfigMaps = sorted(slices.Concat(s.Secrets, assumed)), sorted(slices.Concat(s.ConfigMaps, maps))
	return nil
}

// sorted returns a list in the order of a Snapshot.
func sorted[T metav1.Object](list []T) []T {
	return slices.SortedFunc(slices.Values(list), input.ByName[T])
}

// newerFirst returns a list of custom resources in the order of a Snapshot.
func newerFirst[Of any](list []*input.Custom[Of]) []*input.Custom[Of] {
	return slices.SortedFunc(slices.Values(list), input.NewerFirst[Of])
}

// classless reports whether an Ingress names no class.
func classless(ing *networkingv1.Ingress) bool {
	name, noted := input.ClassOf(ing)
	return !noted && name == ""
}

// isDefault reports whether a class is that of Ingresses without a class.
func isDefault(c *networkingv1.IngressClass) bool {
	return c.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true"
}

// Among returns classes with those of the controller that are not among them.
func (of Classes) Among(have []*networkingv1.IngressClass) []*networkingv1.IngressClass {
	all := slices.Clone(have)
	for _, name := range of.Names {
		if !slices.ContainsFunc(all, func(c *networkingv1.IngressClass) bool { return c.Name == name }) {
			all = append(all, &networkingv1.IngressClass{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec:       networkingv1.IngressClassSpec{Controller: of.Controller},
			})
		}
	}
	return sorted(all)
}

// names collects the Services and Secrets that the Ingresses of a Snapshot name.
type names struct {
	*input.Snapshot
	services map[types.NamespacedName]*corev1.Service // with the ports that are named
	hosts    map[types.NamespacedName][]string        // by the Secret of their certificate
	guards   map[types.NamespacedName]string          // the key that names an object with passwords or keys of tokens
}

// ingress adds what an Ingress names.
func (n *names) ingress(ing *networkingv1.Ingress, kind input.Kind) {
	var hosts []string
	backends := []*networkingv1.IngressBackend{ing.Spec.DefaultBackend}
	for i := range ing.Spec.Rules {
		rule := &ing.Spec.Rules[i]
		if rule.Host != "" {
			hosts = append(hosts, rule.Host)
		}
		if rule.HTTP == nil {
			continue
		}
		for j := range rule.HTTP.Paths {
			backends = append(backends, &rule.HTTP.Paths[j].Backend)
		}
	}
	for _, b := range backends {
		if b != nil && b.Service != nil {
			n.service(ing.Namespace, b.Service.Name, b.Service.Port)
		}
	}
	for _, t := range ing.Spec.TLS {
		key := types.NamespacedName{Namespace: ing.Namespace, Name: t.SecretName}
		if n.hosts[key] = append(n.hosts[key], t.Hosts...); len(t.Hosts) == 0 {
			n.hosts[key] = append(n.hosts[key], hosts...)
		}
	}
	read := annotations.Read(annotations.Ingress, ing.Annotations)
	if kind == input.OfNginx {
		read = read.With(n.ReadNginx(ing).Said...)
	}
	for _, guard := range []string{"auth-secret", annotations.JWTKeys, annotations.JWTPublicKeys} {
		secret, has := read.Values[guard]
		if !has {
			continue
		}
		namespace, name, other := strings.Cut(secret.Text, "/")
		if !other {
			namespace, name = ing.Namespace, secret.Text
		}
		n.guards[types.NamespacedName{Namespace: namespace, Name: name}] = guard
	}
	if m := asked.FindStringSubmatch(read.Values["sallyport.dev/auth-url"].Text); m != nil {
		namespace := m[1]
		if namespace == "" {
			namespace = ing.Namespace
		}
		var port networkingv1.ServiceBackendPort
		if number, err := strconv.ParseInt(m[3], 10, 32); err == nil {
			port.Number = int32(number)
		} else {
			port.Name = m[3]
		}
		n.service(namespace, m[2], port)
	}
}

// tcps adds the Services that TCPs name.
func (n *names) tcps() {
	for _, c := range n.TCPs {
		ports, _ := kic.TCP(c.Spec) // Compile tells what cannot be read
		for _, p := range ports {
			if number, err := strconv.ParseInt(p.To.Port, 10, 32); err == nil && p.Err == nil {
				n.service(c.Namespace, p.To.Service.Name, networkingv1.ServiceBackendPort{Number: int32(number)})
			}
		}
	}
}

// asked matches the Service of an auth-url.
var asked = regexp.MustCompile(`^svc://(?:([a-z0-9-]+)/)?([a-z0-9-]+):([a-z0-9-]+)`)

// service adds a port of a Service.
func (n *names) service(namespace, name string, port networkingv1.ServiceBackendPort) {
	key := types.NamespacedName{Namespace: namespace, Name: name}
	s := n.services[key]
	if s == nil {
		s = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		n.services[key] = s
	}
	one := corev1.ServicePort{Name: port.Name, Port: port.Number}
	for number := int32(1); one.Port == 0; number++ { // a port with a name has the first free number
		if !slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == number }) {
			one.Port = number
		}
	}
	if one.Name == "" {
		one.Name = "port-" + strconv.Itoa(int(one.Port))
	}
	if !slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == one.Name }) {
		s.Spec.Ports = append(s.Spec.Ports, one)
	}
}

// secret returns a Secret that can be used for what names it: as passwords, as the key of tokens, or as a
// certificate that is its own authority.
func (n *names) secret(key types.NamespacedName, signer *ecdsa.PrivateKey) (*corev1.Secret, error) {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	if n.guards[key] == "auth-secret" {
		hash := "$5$assumed$" + strings.Repeat("a", 43) // of no password
		s.Data = map[string][]byte{"auth": []byte("assumed:" + hash + "\n")}
		return s, nil
	}
	hosts := slices.Compact(slices.Sorted(slices.Values(n.hosts[key])))
	hosts = slices.DeleteFunc(hosts, func(h string) bool { return !host.MatchString(h) })
	if len(hosts) == 0 {
		hosts = []string{"assumed.invalid"}
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "assumed"}, DNSNames: hosts,
		NotBefore: n.At.Add(-time.Hour), NotAfter: n.At.AddDate(10, 0, 0),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, signer.Public(), signer)
	if err != nil {
		return nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(signer)
	if err != nil {
		return nil, err
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if n.guards[key] == annotations.JWTKeys || n.guards[key] == annotations.JWTPublicKeys {
		s.Data = map[string][]byte{"key": certificate}
		return s, nil
	}
	s.Data = map[string][]byte{
		corev1.TLSCertKey: certificate, "ca.crt": certificate,
		corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
	}
	return s, nil
}

// host matches the names that a certificate can have.
var host = regexp.MustCompile(`^(\*\.)?[A-Za-z0-9.-]{1,250}$`)
