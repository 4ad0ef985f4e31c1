package haproxy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// A jwk is a key of a JSON Web Key Set (RFC 7517 and RFC 7518, 6).
type jwk struct {
	Kty, Use, Alg, Crv string
	N, E, X, Y         string // of a public key, in base64url
	D                  string // of a private key
}

// IsKeySet reports whether a text is a JSON object, as a JSON Web Key Set is.
func IsKeySet(text []byte) bool { return strings.HasPrefix(strings.TrimSpace(string(text)), "{") }

// KeySet makes TokenKeys of a JSON Web Key Set. It leaves out keys that are not for RS256 or ES256 (RFC 7517, 5),
// so that no token signed by them is valid. Each other key verifies each token. Its kid has no effect: the kid of a
// token is known only once the token is parsed, and HAProxy verifies a token before that.
func KeySet(name string, text []byte) (all []*TokenKey, err error) {
	var set struct{ Keys []jwk }
	if json.Unmarshal(text, &set) != nil {
		return nil, errors.New("it is no JSON Web Key Set: want an object with a list of keys, each an object")
	}
	set.Keys = slices.DeleteFunc(set.Keys, func(k jwk) bool { return !k.verifies() })
	if n := len(set.Keys); n == 0 || n > MaxTokenKeys {
		return nil, fmt.Errorf("it is a JSON Web Key Set with %d keys for RS256 or ES256: allowed are 1 to %d", n,
			MaxTokenKeys)
	}
	for i, k := range set.Keys {
		one, err := k.read(name + "_" + strconv.Itoa(i))
		if err != nil {
			return nil, fmt.Errorf("key %d for RS256 or ES256 of it: %w", i+1, err)
		}
		all = append(all, one)
	}
	return all, nil
}

// verifies reports whether the key is for signatures by RS256 or ES256.
func (k *jwk) verifies() bool {
	algorithm := map[string]string{"RSA": "RS256", "EC P-256": "ES256"}[strings.TrimSpace(k.Kty+" "+k.Crv)]
	return algorithm != "" && (k.Use == "" || k.Use == "sig") && (k.Alg == "" || k.Alg == algorithm)
}

// read makes a TokenKey of the key.
func (k *jwk) read(name string) (*TokenKey, error) {
	if k.D != "" {
		return nil, errors.New("it is a private key: keep it where tokens are signed, and write its public part alone")
	}
	decode := func(text string) []byte {
		b, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(text, "="))
		if err != nil {
			return nil // and not its beginning: a part of n would be easy to factor
		}
		return b
	}
	if k.Kty == "EC" {
		x, y := decode(k.X), decode(k.Y)
		if len(x) != 32 || len(y) != 32 {
			return nil, errors.New("its x and y are not 32 bytes each, in base64url")
		}
		public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), slices.Concat([]byte{4}, x, y))
		if err != nil {
			return nil, errors.New("its x and y are no point of the curve P-256")
		}
		return tokenKey(name, public)
	}
	n, e := new(big.Int).SetBytes(decode(k.N)), new(big.Int).SetBytes(decode(k.E))
	if e.BitLen() > 31 || e.Int64() < 3 || e.Bit(0) == 0 {
		return nil, errors.New("its e is no odd number from 3 to 2147483647, in base64url")
	}
	return tokenKey(name, &rsa.PublicKey{N: n, E: int(e.Int64())})
}
