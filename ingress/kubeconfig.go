package ingress

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// restConfig reads a kubeconfig. What cannot work is refused with a sentence
// that says what to do; nothing of the content goes into it.
func restConfig(kubeconfig []byte, now time.Time) (*rest.Config, error) {
	const remedy = "use one with a server, its CA and the token of a ServiceAccount or a client certificate"
	if len(kubeconfig) == 0 {
		return nil, errors.New("the kubeconfig is empty: " + remedy)
	}
	file, err := clientcmd.Load(kubeconfig)
	if err != nil {
		// Messages about YAML quote what they stumble over.
		where, _, _ := strings.Cut(err.Error(), "`")
		return nil, fmt.Errorf("the kubeconfig is not one (%s): %s", strings.TrimSpace(where), remedy)
	}
	current, ok := file.Contexts[file.CurrentContext]
	if !ok {
		return nil, fmt.Errorf("the kubeconfig has no context %q, which its current-context names: set current-context to one it has", file.CurrentContext)
	}
	cluster, user := file.Clusters[current.Cluster], file.AuthInfos[current.AuthInfo]
	switch {
	case cluster == nil:
		return nil, fmt.Errorf("the kubeconfig has no cluster %q, which its context %q names", current.Cluster, file.CurrentContext)
	case user == nil:
		return nil, fmt.Errorf("the kubeconfig has no user %q, which its context %q names", current.AuthInfo, file.CurrentContext)
	case cluster.Server == "":
		return nil, fmt.Errorf("the kubeconfig names no server for its cluster %q", current.Cluster)
	case user.Exec != nil:
		return nil, fmt.Errorf("user %q of the kubeconfig gets its credentials from the program %q: the appliance runs no programs out of a kubeconfig, %s", current.AuthInfo, user.Exec.Command, remedy)
	case user.AuthProvider != nil:
		return nil, fmt.Errorf("user %q of the kubeconfig gets its credentials from an auth-provider, which Kubernetes no longer supports: %s", current.AuthInfo, remedy)
	}
	paths := map[string]string{
		"certificate-authority": cluster.CertificateAuthority, "client-certificate": user.ClientCertificate,
		"client-key": user.ClientKey, "tokenFile": user.TokenFile,
	}
	for _, what := range sortedKeys(paths) {
		path := paths[what]
		if path == "" {
			continue
		}
		if !filepath.IsAbs(path) {
			return nil, fmt.Errorf("the kubeconfig names the file %q for %s, which is not an absolute path: write one, or the content itself (%s-data, or token)", path, what, what)
		}
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("the kubeconfig names a file for %s that cannot be read: %w", what, err)
		}
	}
	config, err := clientcmd.NewNonInteractiveClientConfig(*file, file.CurrentContext, &clientcmd.ConfigOverrides{}, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("the kubeconfig cannot be used: %w", err)
	}
	// A certificate in a file may be renewed there; one written in place cannot.
	if end, ok := expiry(user.ClientCertificateData); ok && now.After(end) {
		return nil, fmt.Errorf("the client certificate in the kubeconfig (user %q) expired on %s: renew it, or use the token of a ServiceAccount", current.AuthInfo, end.UTC().Format(time.RFC3339))
	}
	config.UserAgent = "sallyport"
	// Reads are one list and one watch for each resource; the rest are writes
	// of status and Events, which these keep from being a burden.
	config.QPS, config.Burst = 50, 100
	config.WarningHandler = rest.NoWarnings{}
	return config, nil
}

// expiry is when the first certificate of a PEM text expires.
func expiry(text []byte) (time.Time, bool) {
	block, _ := pem.Decode(text)
	if block == nil {
		return time.Time{}, false
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}, false
	}
	return c.NotAfter, true
}
