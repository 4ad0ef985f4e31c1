package input

import (
	"crypto/x509"
	"encoding/pem"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A Certificate is a certificate in a Secret that Ingresses, Services or ConfigMaps name.
type Certificate struct {
	Namespace, Secret string
	Names             []string  // host names that it is for
	Expires           time.Time // the first of its chain to do so
}

// Certificates returns the certificates of the Secrets, those first that expire first. It leaves
// out certificates that cannot be read: Compile reports them as Problems.
func (s Snapshot) Certificates() (all []Certificate) {
	for _, secret := range s.Secrets {
		text := secret.Data[corev1.TLSCertKey]
		if len(text) == 0 {
			text = secret.Data["ca.crt"]
		}
		var chain []*x509.Certificate
		for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
			if c, err := x509.ParseCertificate(block.Bytes); err == nil {
				chain = append(chain, c)
			}
		}
		if len(chain) > 0 {
			all = append(all, Certificate{
				Namespace: secret.Namespace, Secret: secret.Name, Names: chain[0].DNSNames, Expires: firstEnd(chain),
			})
		}
	}
	slices.SortStableFunc(all, func(a, b Certificate) int { return a.Expires.Compare(b.Expires) })
	return all
}

// firstEnd returns when the first of some certificates expires.
func firstEnd(all []*x509.Certificate) time.Time {
	return slices.MinFunc(all, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) }).NotAfter
}
