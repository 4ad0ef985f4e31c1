package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"syscall"
	"time"

	"sallyport/test/faults"
	"sallyport/test/rig"
)

// cheats returns the objects of hosts of evil whose certificates look self-signed, and are not. They
// are signed with SHA-1, and the serial number of their issuer is not their own.
func cheats(n int) (string, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return "", err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", err
	}
	issuer, err := asn1.Marshal([]asn1.RawValue{
		{Class: asn1.ClassContextSpecific, Tag: 0, Bytes: []byte{1, 2, 3}},
		{Class: asn1.ClassContextSpecific, Tag: 2, Bytes: []byte{8}},
	})
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for i := range n {
		name := fmt.Sprintf("cheat%d", i)
		host := name + "." + evilHost
		template := &x509.Certificate{
			SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
			SubjectKeyId: []byte{1, 2, 3},
			NotBefore:    time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
			SignatureAlgorithm: x509.SHA1WithRSA,
			ExtraExtensions:    []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 35}, Value: issuer}},
		}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			return "", err
		}
		b.WriteString(secret("evil", name, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
			pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
		b.WriteString(ingressOf("evil", name, nil, withTLS(name, host), rule(host, path("/", "app"))))
	}
	return b.String(), nil
}

// blocks checks that many certificates that Go accepts and OpenSSL rejects cost victim's change,
// and a start of the appliance and HAProxy, no more runs of HAProxy than without them.
func blocks(ctx context.Context, s *testbed, r *rig.Rig) error {
	const many, slack = 60, 20
	objects, err := cheats(many)
	if err != nil {
		return err
	}
	checks := func(do func() error) (int, error) {
		before, err := r.Status(ctx)
		if err != nil {
			return 0, err
		}
		if err := do(); err != nil {
			return 0, err
		}
		after, err := r.Status(ctx)
		return after.HAProxy.Checks - before.HAProxy.Checks, err
	}
	control, err := checks(func() error { return s.seen(ctx) })
	if err != nil {
		return err
	}
	defer func() { _ = s.Delete(ctx, objects) }()
	with, err := checks(func() error { return errors.Join(s.Apply(ctx, objects), s.seen(ctx)) })
	if err == nil && with > control+slack {
		err = fmt.Errorf("with %d certificates of evil, HAProxy checked %d times until a change of victim was "+
			"served, and %d times without them", many, with, control)
	}
	if err != nil {
		return err
	}
	status, err := r.Status(ctx)
	if err != nil {
		return err
	}
	if err := r.Stop(syscall.SIGKILL); err != nil {
		return err
	}
	if err := errors.Join(faults.Kill(status.HAProxy.Worker, status.HAProxy.Pid), r.Start(ctx), r.Ready(ctx)); err != nil {
		return err
	}
	if err := s.eventually(ctx, func() error { return s.unharmed(ctx) }); err != nil {
		return fmt.Errorf("after a start: %w", err)
	}
	if status, err = r.Status(ctx); err == nil && status.HAProxy.Checks > slack {
		err = fmt.Errorf("with %d certificates of evil, HAProxy checked %d times at a start", many,
			status.HAProxy.Checks)
	}
	return err
}
