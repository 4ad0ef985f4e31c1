package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"path/filepath"
	"syscall"
	"time"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// gateways returns the suite with a Gateway as the target. An HTTPRoute splits the load between two
// Services.
func gateways() suite {
	return suite{
		name: "gateway", suffix: ", HTTPRoutes",
		options: world.Options{Name: "chaos", Workers: 2, GatewayAPI: world.Standard},
		asn:     65000,
		target:  rig.GatewayAddress(2),
		scenarios: []scenario{
			{1, "rolling restart of a Deployment", bounds{gets: true, posts: true}, rollingRestart},
			{6, "upgrade of the appliance", bounds{gets: true, posts: true, lasting: true}, upgrade},
			{9, "a node loses power", bounds{gets: true, slowest: 3 * time.Second}, powerLoss},
			{12, "the API server is gone for 60 s, restart meanwhile", bounds{gets: true, posts: true}, apiAway},
			{38, "routes, weights and Gateways change, and a reload fails", bounds{gets: true, posts: true, lasting: true}, failedReload},
		},
	}
}

// gatewayOf returns a Gateway at an address, with a listener for HTTP and one for HTTPS.
func gatewayOf(name, address string) string {
	return fmt.Sprintf(`
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: %s}
spec:
  gatewayClassName: sallyport
  addresses: [{value: %s}]
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: test}]}}
`, name, address)
}

// routeOf returns an HTTPRoute that splits a host's requests between app and other by their weights.
func routeOf(name, gateway, host string, app, other int) string {
	return fmt.Sprintf(`
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: %s}
spec:
  parentRefs: [{name: %s}]
  hostnames: [%s]
  rules:
  - backendRefs: [{name: app, port: 80, weight: %d}, {name: other, port: 80, weight: %d}]
`, name, gateway, host, app, other)
}

// attach lets the load go to a Gateway.
func (s *testbed) attach(ctx context.Context, h suite) error {
	secret, err := certificate("test.local")
	if err != nil {
		return err
	}
	s.backends = 2
	return errors.Join(s.AddGatewayAddresses(ctx), s.Apply(ctx, secret+rig.Service("default", "other", "app")+
		gatewayOf("web", h.target)+routeOf("app", "web", "test.local", 1, 1)))
}

// certificate returns a Secret with a certificate that signs itself.
func certificate(host string) (string, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	crt, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return "", err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	text := func(kind string, der []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return fmt.Sprintf("\n---\napiVersion: v1\nkind: Secret\ntype: kubernetes.io/tls\nmetadata: {name: test}\n"+
		"data: {tls.crt: %s, tls.key: %s}\n", text("CERTIFICATE", crt), text("PRIVATE KEY", private)), err
}

// programmed waits until a Gateway is Programmed, or is not.
func (s *testbed) programmed(ctx context.Context, gateway string, want string) error {
	return rig.Eventually(ctx, fmt.Sprintf("Programmed of Gateway %s is %s", gateway, want), func() error {
		got, err := s.Kubectl(ctx, "get", "gateway", gateway, "-o",
			`jsonpath={.status.conditions[?(@.type=="Programmed")].status}`)
		if err == nil && got != want {
			err = fmt.Errorf("it is %q", got)
		}
		return err
	})
}

// failedReload adds a Gateway, which takes a reload, while the configuration directory is read-only.
// Meanwhile weights change. Then the reload comes, and the Gateway goes.
func failedReload(ctx context.Context, s *testbed) error {
	files, second := filepath.Join(s.Dir, "haproxy"), gatewayOf("second", rig.GatewayAddress(3))
	if err := syscall.Mount("tmpfs", files, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, "size=4m"); err != nil {
		return err
	}
	before, err := s.reloads(ctx)
	err = errors.Join(err, s.Apply(ctx, second), s.programmed(ctx, "second", "False"))
	for weight := range 5 {
		err = errors.Join(err, s.Apply(ctx, routeOf("app", "web", "test.local", weight, 5)))
	}
	err = errors.Join(err, rig.Pause(ctx, 2*time.Second))
	after, failed := s.reloads(ctx)
	if after != before {
		s.fail("%d reloads while the configuration directory was read-only", after-before)
	}
	if err := errors.Join(err, failed,
		syscall.Mount("tmpfs", files, "tmpfs", syscall.MS_REMOUNT, "size=4m")); err != nil {
		return err
	}
	if err := errors.Join(s.programmed(ctx, "second", "True"),
		s.Apply(ctx, routeOf("more", "web", "more.local", 1, 0)+routeOf("app", "web", "test.local", 1, 1))); err != nil {
		return err
	}
	_, err = s.Kubectl(ctx, "delete", "gateway/second", "httproute/more")
	return err
}
