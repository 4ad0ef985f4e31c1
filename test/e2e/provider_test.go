package e2e

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"
	"time"
)

// A provider is a small provider of OpenID Connect: discovery, authorization, tokens and keys. Every
// browser that it sees is signed in as the same user.
type provider struct {
	issuer, secret string
	key            *rsa.PrivateKey
	code           string         // of the sign-in
	padding        string         // in each token: a session of real size
	renewed        atomic.Int32   // how many times a refresh token was redeemed
	claims         map[string]any // of the user
	t              *testing.T
}

// serveProvider serves a provider at a listener until the test ends.
func serveProvider(t *testing.T, l net.Listener, secret string, claims map[string]any) *provider {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	noise := make([]byte, 3000) // no compression shortens it
	_, _ = rand.Read(noise)
	p := &provider{
		issuer: "http://" + l.Addr().String(), secret: secret, key: key, code: rand.Text(),
		padding: base64.RawURLEncoding.EncodeToString(noise), claims: claims, t: t,
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", p.discovery)
	mux.HandleFunc("GET /keys", p.keys)
	mux.HandleFunc("GET /authorize", p.authorize)
	mux.HandleFunc("POST /token", p.token)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return p
}

func (p *provider) answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		p.t.Log("the provider answers: ", err)
	}
}

func (p *provider) discovery(w http.ResponseWriter, _ *http.Request) {
	p.answer(w, map[string]any{
		"issuer": p.issuer, "authorization_endpoint": p.issuer + "/authorize", "token_endpoint": p.issuer + "/token",
		"jwks_uri": p.issuer + "/keys", "response_types_supported": []string{"code"},
		"subject_types_supported":               []string{"public"},
		"id_token_signing_alg_values_supported": []string{"RS256"},
	})
}

func (p *provider) keys(w http.ResponseWriter, _ *http.Request) {
	encode := base64.RawURLEncoding.EncodeToString
	p.answer(w, map[string]any{"keys": []any{map[string]string{
		"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "one", "n": encode(p.key.N.Bytes()),
		"e": encode(big.NewInt(int64(p.key.E)).Bytes()),
	}}})
}

// authorize signs the user in, and sends the browser back.
func (p *provider) authorize(w http.ResponseWriter, r *http.Request) {
	asked := r.URL.Query()
	if asked.Get("client_id") != "web" || asked.Get("response_type") != "code" {
		http.Error(w, "unknown client", http.StatusBadRequest)
		return
	}
	back := url.Values{"code": {p.code}, "state": {asked.Get("state")}}
	http.Redirect(w, r, asked.Get("redirect_uri")+"?"+back.Encode(), http.StatusFound)
}

// token gives tokens for the code, or for a refresh token.
func (p *provider) token(w http.ResponseWriter, r *http.Request) {
	id, secret, ok := r.BasicAuth()
	if !ok {
		id, secret = r.FormValue("client_id"), r.FormValue("client_secret")
	}
	renews := r.FormValue("grant_type") == "refresh_token" && r.FormValue("refresh_token") == "refresh"
	if id != "web" || secret != p.secret || !renews && r.FormValue("code") != p.code {
		http.Error(w, `{"error":"invalid_grant"}`, http.StatusUnauthorized)
		return
	}
	if renews {
		p.renewed.Add(1)
	}
	claims := map[string]any{
		"iss": p.issuer, "aud": "web", "iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
		"padding": p.padding,
	}
	maps.Copy(claims, p.claims)
	p.answer(w, map[string]any{
		"access_token": "access-" + p.padding[:1000], "token_type": "Bearer", "expires_in": 3600,
		"refresh_token": "refresh", "id_token": p.sign(claims),
	})
}

// sign returns a token with claims (RFC 7515, RS256).
func (p *provider) sign(claims map[string]any) string {
	part := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			p.t.Error(err)
		}
		return base64.RawURLEncoding.EncodeToString(text)
	}
	text := part(map[string]string{"alg": "RS256", "kid": "one"}) + "." + part(claims)
	sum := sha256.Sum256([]byte(text))
	signature, err := rsa.SignPKCS1v15(nil, p.key, crypto.SHA256, sum[:])
	if err != nil {
		p.t.Error(err)
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(signature)
}
