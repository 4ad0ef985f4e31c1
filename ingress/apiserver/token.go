package apiserver

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"

	"sallyport/haproxy"
)

// A token is a token of a ServiceAccount that expires, with its claims. Its signature
// was not checked: the API server does that.
type token struct {
	text            string
	namespace, name string // of the ServiceAccount
	uid             string // of the ServiceAccount; unique over all clusters
	issued, expires time.Time
}

// readToken reads the claims of a token (RFC 7519), and reports whether it is a
// bound token of a ServiceAccount.
func readToken(text string) (token, bool) {
	var claims struct {
		Expires    float64 `json:"exp"`
		Issued     float64 `json:"iat"`
		Kubernetes struct {
			Namespace      string                     `json:"namespace"`
			ServiceAccount struct{ Name, UID string } `json:"serviceaccount"`
		} `json:"kubernetes.io"`
	}
	parts := strings.Split(strings.TrimSpace(text), ".")
	if len(parts) != 3 {
		return token{}, false
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(payload, &claims) != nil {
		return token{}, false
	}
	t := token{
		text: strings.TrimSpace(text), namespace: claims.Kubernetes.Namespace,
		name: claims.Kubernetes.ServiceAccount.Name, uid: claims.Kubernetes.ServiceAccount.UID,
		issued: time.Unix(int64(claims.Issued), 0), expires: time.Unix(int64(claims.Expires), 0),
	}
	return t, t.namespace != "" && t.name != "" && t.uid != "" && t.issued.Before(t.expires)
}

// life returns the whole time for which the token is valid.
func (t token) life() time.Duration { return t.expires.Sub(t.issued) }

// A renewer holds the token for one API server, and replaces it long before it
// expires. It begins with the token of the kubeconfig, and requests tokens with the
// same lifetime.
//
// It keeps the newest token in a file: after a restart the token of the kubeconfig may
// have expired.
type renewer struct {
	given token  // of the kubeconfig
	file  string // path of the newest token; "" if it is not kept in a file
	knock func() // called when sentences may have changed
	log   *slog.Logger

	mu      sync.Mutex
	held    token
	failed  error // error of the last renewal; nil if it succeeded, or before the first
	unsaved error // why the newest token could not be saved
}

// newRenewer returns a renewer that holds the kept token if that is of the same account
// as the given one and expires later.
func newRenewer(given token, file string, log *slog.Logger) *renewer {
	r := &renewer{given: given, held: given, file: file, log: log, knock: func() {}}
	if file == "" {
		return r
	}
	kept, err := readKept(file)
	switch {
	case err == nil && kept.uid == given.uid && kept.expires.After(given.expires):
		r.held = kept
		log.Info("using the saved token, which expires later than the kubeconfig's", "expires", kept.expires.UTC())
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		log.Warn("the saved token cannot be read; using the kubeconfig's", "err", err)
	}
	return r
}

// maxToken bounds the file of a token, in bytes.
const maxToken = 64 << 10

// readKept reads the file of a token. Its content may be hostile.
func readKept(path string) (token, error) {
	f, err := haproxy.OpenRegular(path, maxToken)
	if err != nil {
		return token{}, err
	}
	defer f.Close() //nolint:errcheck // only read
	text, err := io.ReadAll(io.LimitReader(f, maxToken))
	if err != nil {
		return token{}, err
	}
	t, ok := readToken(string(text))
	if !ok {
		return token{}, fmt.Errorf("%s holds no token of a ServiceAccount", path)
	}
	return t, nil
}

// save writes the token to its file in one step: a crash leaves either the old token or the new
// token.
func (r *renewer) save(t token) error {
	if r.file == "" {
		return nil
	}
	return haproxy.Replace(r.file, 0o600, func(to io.Writer) error {
		_, err := io.WriteString(to, t.text)
		return err
	})
}

// wrap returns a RoundTripper that adds the current token to each request.
func (r *renewer) wrap(next http.RoundTripper) http.RoundTripper { return bearer{r, next} }

type bearer struct {
	*renewer
	next http.RoundTripper
}

// RoundTrip sends a request with the current token.
func (b bearer) RoundTrip(request *http.Request) (*http.Response, error) {
	used := b.current()
	request = request.Clone(request.Context())
	request.Header.Set("Authorization", "Bearer "+used.text)
	response, err := b.next.RoundTrip(request)
	if err == nil && response.StatusCode == http.StatusUnauthorized {
		b.refused(used)
	}
	return response, err
}

func (r *renewer) current() token {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held
}

// refused returns to the token of the kubeconfig if the API server rejects a renewed or kept token.
func (r *renewer) refused(used token) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held.text == used.text && used.text != r.given.text && time.Now().Before(r.given.expires) {
		r.held = r.given
		r.log.Warn("the API server rejects the renewed token; using the kubeconfig's")
	}
}

// due reports whether the token has lived a third of its life.
func (t token) due(now time.Time) bool { return !now.Before(t.issued.Add(t.life() / 3)) }

// An Issuer is the part of an API server that issues tokens.
type Issuer interface {
	CreateToken(
		ctx context.Context, namespace, account string, request *authenticationv1.TokenRequest,
	) (*authenticationv1.TokenRequest, error)
}

// run renews the token until ctx ends. It repeats an attempt that fails, for ever.
func (r *renewer) run(ctx context.Context, from Issuer) {
	// A clock may jump, as when it is set after the start: one timer for the whole time
	// would come too late.
	look := time.NewTicker(max(time.Second, min(time.Minute, r.given.life()/100)))
	defer look.Stop()
	for {
		if r.current().due(time.Now()) {
			r.outcome(r.renew(ctx, from))
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

// renew requests a new token for the ServiceAccount of the given token.
func (r *renewer) renew(ctx context.Context, from Issuer) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	seconds := int64(r.given.life() / time.Second)
	answer, err := from.CreateToken(ctx, r.given.namespace, r.given.name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}})
	if err != nil {
		return err
	}
	fresh, ok := readToken(answer.Status.Token)
	if !ok || fresh.uid != r.given.uid {
		return fmt.Errorf("the API server returned no token of ServiceAccount %s/%s that expires",
			r.given.namespace, r.given.name)
	}
	unsaved := r.save(fresh)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held, r.unsaved = fresh, unsaved
	r.log.Info("token renewed", "expires", fresh.expires.UTC())
	return nil
}

// outcome notes the error of an attempt, nil if it succeeded.
func (r *renewer) outcome(err error) {
	r.mu.Lock()
	if err != nil && (r.failed == nil || r.failed.Error() != err.Error()) {
		r.log.Warn("the token cannot be renewed; trying again", "expires", r.held.expires.UTC(), "err", err)
	}
	r.failed = err
	r.mu.Unlock()
	r.knock()
}

// sentences returns a sentence for each problem with the token, and about the end of its validity.
func (r *renewer) sentences(now time.Time) (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	const renew = "apply what `sallyport manifests` prints, which lets the appliance renew it, or make a new kubeconfig"
	whose := fmt.Sprintf("the token of ServiceAccount %s/%s", r.held.namespace, r.held.name)
	expires := r.held.expires.UTC().Format(time.RFC3339)
	switch {
	case !now.Before(r.held.expires):
		all = append(all, fmt.Sprintf("%s expired on %s, before it could be renewed: make a new kubeconfig "+
			"and restart the appliance", whose, expires))
	case r.failed != nil && (IsAnswer(r.failed) || soon(r.held.issued, r.held.expires, now)):
		all = append(all, fmt.Sprintf("%s cannot be renewed, and expires on %s (%v): %s",
			whose, expires, Root(r.failed), renew))
	}
	if r.unsaved != nil {
		all = append(all, fmt.Sprintf("the renewed token cannot be saved (%v): the next start uses the kubeconfig's "+
			"token, which expires on %s", r.unsaved, r.given.expires.UTC().Format(time.RFC3339)))
	}
	return all
}

// soon reports whether credentials expire soon: within the last third of their life,
// which counts as one day at least and 30 days at most.
func soon(from, until, now time.Time) bool {
	const day = 24 * time.Hour
	return until.Sub(now) < max(day, min(until.Sub(from)/3, 30*day))
}
