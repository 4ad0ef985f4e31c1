package haproxy

import (
	"crypto/ecdsa"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"strings"
	"testing"
)

// member returns the key of a signer as a member of a key set, changed as the pairs say.
func (s signer) member(t *testing.T, pairs ...string) map[string]string {
	t.Helper()
	text := base64.RawURLEncoding.EncodeToString
	k := map[string]string{"kty": "oct", "k": "c2VjcmV0"}
	switch key := s.key.(type) {
	case *rsa.PrivateKey:
		k = map[string]string{"kty": "RSA", "n": text(key.N.Bytes()), "e": text(big.NewInt(int64(key.E)).Bytes())}
	case *ecdsa.PrivateKey:
		point := must[[]byte](t)(key.PublicKey.Bytes())
		k = map[string]string{"kty": "EC", "crv": "P-256", "x": text(point[1:33]), "y": text(point[33:])}
	}
	for i := 0; i < len(pairs); i += 2 {
		k[pairs[i]] = pairs[i+1]
	}
	return k
}

// keySet returns a JSON Web Key Set.
func keySet(t *testing.T, members ...map[string]string) []byte {
	t.Helper()
	return must[[]byte](t)(json.Marshal(map[string]any{"keys": members}))
}

// TestAKeySetHasTheKeysThatItsTextHas compares the files of a key set with those of the same keys in PEM.
func TestAKeySetHasTheKeysThatItsTextHas(t *testing.T) {
	rs, es, hs := issuers(t)
	r, e := rs.member(t), es.member(t)
	padded := maps.Clone(e)
	padded["x"] += "="
	for name, row := range map[string]struct {
		text []byte
		want string // the algorithms, or a part of the error
	}{
		"RSA":                      {keySet(t, r), "[RS256]"},
		"P-256":                    {keySet(t, e), "[ES256]"},
		"both, for signatures":     {keySet(t, rs.member(t, "use", "sig", "alg", "RS256"), es.member(t, "alg", "ES256")), "[RS256 ES256]"},
		"with space before":        {append([]byte(" \n"), keySet(t, r)...), "[RS256]"},
		"with padding":             {keySet(t, padded), "[ES256]"},
		"with kid and x5c":         {[]byte(strings.Replace(string(keySet(t, e)), `"kty"`, `"kid":"a","x5c":["b"],"key_ops":["verify"],"kty"`, 1)), "[ES256]"},
		"beside keys of no use":    {keySet(t, hs.member(t), rs.member(t, "use", "enc"), rs.member(t, "alg", "PS256"), es.member(t, "alg", "RS256"), es.member(t, "crv", "P-384"), es.member(t, "kty", "OKP"), r), "[RS256]"},
		"keys of no use alone":     {keySet(t, hs.member(t), rs.member(t, "use", "enc")), "with 0 keys"},
		"no keys":                  {[]byte(`{}`), "with 0 keys"},
		"four keys":                {keySet(t, r, r, e, e), "[RS256 RS256 ES256 ES256]"},
		"five keys":                {keySet(t, r, r, r, r, r), "with 5 keys"},
		"a key alone":              {must[[]byte](t)(json.Marshal(r)), "with 0 keys"},
		"a private key":            {keySet(t, rs.member(t, "d", "AQAB")), "a private key"},
		"another type":             {[]byte(`{"keys": "a"}`), "no JSON Web Key Set"},
		"no JSON":                  {[]byte(`{"keys": [`), "no JSON Web Key Set"},
		"a short key":              {keySet(t, rs.member(t, "n", "AQAB")), "RSA key of 17 bits"},
		"a modulus in base64":      {keySet(t, rs.member(t, "n", r["n"]+r["n"]+"+/")), "RSA key of 0 bits"},
		"an exponent of 1":         {keySet(t, rs.member(t, "e", "AQ")), "its e is"},
		"an even exponent":         {keySet(t, rs.member(t, "e", "BA")), "its e is"},
		"no exponent":              {keySet(t, rs.member(t, "e", "")), "its e is"},
		"a large exponent":         {keySet(t, rs.member(t, "e", "AQAAAAAAAAAB")), "its e is"},
		"a point beside the curve": {keySet(t, es.member(t, "y", e["x"])), "no point of the curve"},
		"half a point":             {keySet(t, es.member(t, "y", "AQAB")), "32 bytes"},
	} {
		keys, err := KeySet("a", row.text)
		var algorithms []string
		for i, k := range keys {
			algorithms = append(algorithms, k.Algorithm())
			pem := map[string][]byte{"RS256": rs.public(t), "ES256": es.public(t)}[k.Algorithm()]
			if got := string(k.File.Content); got != string(pem) || k.File.Name != fmt.Sprintf("a_%d.jwt.pem", i) {
				t.Errorf("%s: %s is %s, want %s", name, k.File.Name, got, pem)
			}
		}
		if got := fmt.Sprint(algorithms); err == nil && got != row.want || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: got %s, %v; want %s", name, got, err, row.want)
		}
	}
	if k, err := SharedKey("a", keySet(t, r)); err == nil {
		t.Errorf("a key set is the secret %v", k)
	}
}

// FuzzKeySet checks that each key of a set can be read in PEM.
func FuzzKeySet(f *testing.F) {
	f.Add([]byte(`{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}, {"kty": "EC", "crv": "P-256", "x": "a", "y": "b"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		keys, err := KeySet("a", text)
		if err == nil && len(keys) == 0 {
			t.Error("neither a key nor an error")
		}
		for _, k := range keys {
			if same, err := PublicKey("a", k.File.Content); err != nil || same.Algorithm() != k.Algorithm() {
				t.Errorf("%s: %v, %v", k.File.Content, same, err)
			}
		}
	})
}
