package world

import (
	"context"
	"io"
	"path/filepath"
)

// These are programs that people run beside an appliance. Each function returns the path of a program,
// in the version that the module below test/lab requires, and compiles the program if the cache does
// not have it.

// OAuth2Proxy returns the program oauth2-proxy.
func OAuth2Proxy(ctx context.Context, progress io.Writer) (string, error) {
	m := module{
		folder: "lab/oauth2proxy", title: "oauth2-proxy", takes: "about 2 minutes on 2 cores",
		program: "github.com/oauth2-proxy/oauth2-proxy/v7",
	}
	return m.fetch(ctx, progress)
}

// ExternalDNS returns a program that is made of external-dns' parts, see test/lab/externaldns.
func ExternalDNS(ctx context.Context, progress io.Writer) (string, error) {
	m := module{folder: "lab/externaldns", title: "external-dns", takes: "about 4 minutes on 2 cores"}
	return m.fetch(ctx, progress)
}

// Pebble returns the program pebble, the ACME server that Let's Encrypt has for tests.
func Pebble(ctx context.Context, progress io.Writer) (string, error) {
	m := module{
		folder: "lab/pebble", title: "Pebble", takes: "less than a minute on 2 cores",
		program: "github.com/letsencrypt/pebble/v2/cmd/pebble",
	}
	return m.fetch(ctx, progress)
}

// CertManager returns a program that is made of cert-manager's controllers, see test/lab/certmanager,
// and the folder with the definitions of its kinds.
func CertManager(ctx context.Context, progress io.Writer) (program, kinds string, err error) {
	m := module{
		folder: "lab/certmanager", title: "cert-manager", takes: "about 4 minutes on 2 cores",
		source: "github.com/cert-manager/cert-manager", copies: [][2]string{{"deploy/crds", "kinds"}},
	}
	dir, err := m.fetch(ctx, progress)
	return filepath.Join(dir, m.name()), filepath.Join(dir, "kinds"), err
}

// KubeProxy returns the program kube-proxy. The nodes of a lab do without it.
func KubeProxy(ctx context.Context, progress io.Writer) (string, error) {
	m := module{
		folder: "lab/kubeproxy", title: "kube-proxy", takes: "about 4 minutes on 2 cores",
		program: "k8s.io/kubernetes/cmd/kube-proxy",
		ldflags: []string{"-X", "k8s.io/component-base/version.gitVersion=" + kubernetesVersion},
	}
	return m.fetch(ctx, progress)
}
