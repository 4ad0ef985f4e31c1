package apiserver

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Config reads a kubeconfig. An error names the mistake and the remedy, and never quotes
// credentials.
func Config(kubeconfig []byte) (*rest.Config, error) {
	const remedy = "use one with a server, its CA and the token of a ServiceAccount or a client certificate"
	if len(kubeconfig) == 0 {
		return nil, errors.New("the kubeconfig is empty: " + remedy)
	}
	file, err := clientcmd.Load(kubeconfig)
	if err != nil {
		// A message about YAML quotes the text that it could not read.
		where, _, _ := strings.Cut(err.Error(), "`")
		return nil, fmt.Errorf("the kubeconfig cannot be parsed (%s): %s", strings.TrimSpace(where), remedy)
	}
	current, ok := file.Contexts[file.CurrentContext]
	if !ok {
		return nil, fmt.Errorf("the kubeconfig has no context %q, which its current-context names: "+
			"set current-context to one it has", file.CurrentContext)
	}
	cluster, user := file.Clusters[current.Cluster], file.AuthInfos[current.AuthInfo]
	switch {
	case cluster == nil:
		return nil, fmt.Errorf("the kubeconfig has no cluster %q, which its context %q names",
			current.Cluster, file.CurrentContext)
	case user == nil:
		return nil, fmt.Errorf("the kubeconfig has no user %q, which its context %q names",
			current.AuthInfo, file.CurrentContext)
	case cluster.Server == "":
		return nil, fmt.Errorf("the kubeconfig names no server for its cluster %q", current.Cluster)
	case user.Exec != nil:
		return nil, fmt.Errorf("user %q of the kubeconfig gets its credentials from the program %q: the appliance "+
			"runs no programs out of a kubeconfig, %s", current.AuthInfo, user.Exec.Command, remedy)
	case user.AuthProvider != nil:
		return nil, fmt.Errorf("user %q of the kubeconfig gets its credentials from an auth-provider, which "+
			"Kubernetes no longer supports: %s", current.AuthInfo, remedy)
	}
	paths := map[string]string{
		"certificate-authority": cluster.CertificateAuthority, "client-certificate": user.ClientCertificate,
		"client-key": user.ClientKey, "tokenFile": user.TokenFile,
	}
	for _, what := range slices.Sorted(maps.Keys(paths)) {
		path := paths[what]
		if path == "" {
			continue
		}
		if !filepath.IsAbs(path) {
			return nil, fmt.Errorf("the kubeconfig names the file %q for %s, which is not an absolute path: write "+
				"one, or the content itself (%s-data, or token)", path, what, what)
		}
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("the kubeconfig names a file for %s that cannot be read: %w", what, err)
		}
	}
	loaded := clientcmd.NewNonInteractiveClientConfig(*file, file.CurrentContext, &clientcmd.ConfigOverrides{}, nil)
	config, err := loaded.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("the kubeconfig cannot be used: %w", err)
	}
	config.UserAgent = "sallyport"
	// With one rate for all requests, requests of one kind would wait for those of another kind.
	// Each kind has a bound of its own: a resource takes one list and one watch, a namedReader has
	// a budget, and so have the writes of status and of Events (publish.go). Above that, API
	// Priority and Fairness protects the server.
	config.QPS = -1
	config.WarningHandler = rest.NoWarnings{}
	return config, nil
}

// Credentials are a token or a client certificate of a kubeconfig that expires.
type Credentials struct {
	what        string // in words
	from, until time.Time
	token       *renewer // nil if they cannot be renewed
}

// CredentialsOf returns the credentials of a kubeconfig that expire; nil if none do. It
// looks only at a token or certificate within the kubeconfig: one in a file of its own
// may be renewed there. It removes a token that can be renewed from the config; the
// renewer adds it to each request, and keeps it in file.
func CredentialsOf(config *rest.Config, file string, now time.Time, log *slog.Logger) (*Credentials, error) {
	var c Credentials
	if leaf, ok := certificateOf(config.CertData); ok {
		c = Credentials{what: "client certificate", from: leaf.NotBefore, until: leaf.NotAfter}
	}
	if given, ok := readToken(config.BearerToken); ok && config.BearerTokenFile == "" {
		r := newRenewer(given, file, log)
		c = Credentials{what: "token", from: r.held.issued, until: r.held.expires, token: r}
		config.BearerToken = ""
		config.Wrap(r.wrap)
	}
	if c.until.IsZero() {
		return nil, nil
	}
	if now.After(c.until) {
		return nil, fmt.Errorf("the %s in the kubeconfig expired on %s: make a new kubeconfig, with the token of "+
			"a ServiceAccount", c.what, c.until.UTC().Format(time.RFC3339))
	}
	return &c, nil
}

// Renew renews the token until ctx ends, and returns at once if the credentials cannot be renewed. It calls changed
// when Sentences may return others.
func (c *Credentials) Renew(ctx context.Context, from Issuer, changed func()) {
	if c != nil && c.token != nil {
		c.token.knock = changed
		c.token.run(ctx, from)
	}
}

// Sentences returns the problems of the credentials, also those that they will have soon.
func (c *Credentials) Sentences(now time.Time) []string {
	switch {
	case c == nil:
		return nil
	case c.token != nil:
		return c.token.sentences(now)
	case soon(c.from, c.until, now):
		return []string{fmt.Sprintf("the %s in the kubeconfig expires on %s: make a new kubeconfig, with the token "+
			"of a ServiceAccount, which the appliance renews itself", c.what, c.until.UTC().Format(time.RFC3339))}
	}
	return nil
}

// Expire returns when the credentials expire, or zero if no expiry is known.
func (c *Credentials) Expire() time.Time {
	switch {
	case c == nil:
		return time.Time{}
	case c.token != nil:
		return c.token.current().expires
	}
	return c.until
}

// certificateOf returns the first certificate of a PEM text.
func certificateOf(text []byte) (*x509.Certificate, bool) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, false
	}
	c, err := x509.ParseCertificate(block.Bytes)
	return c, err == nil
}
