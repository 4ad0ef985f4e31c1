package annotations

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"sallyport/haproxy"
)

var (
	jwtKeys = defineSecret(Doc{
		Name: JWTKeys, Scopes: Ingress, Guard: true,
		Effect: "Clients need a signed token (`Authorization: Bearer`) with an expiry; see Tokens. The Secret has " +
			"up to 4 keys. An entry is a public key or a certificate in PEM, RSA for RS256 or P-256 for ES256, or a " +
			"JSON Web Key Set. An entry named `hs256` or `NAME.hs256` is a secret for HS256.",
	})
	jwtPublicKeys = defineConfigMap(Doc{
		Name: JWTPublicKeys, Scopes: Ingress, Guard: true,
		Effect: "As jwt-keys, with public keys, certificates and JSON Web Key Sets in this ConfigMap of the " +
			"namespace. A secret for HS256 is not allowed there.",
	})
	jwtIssuer = define(claimText, Doc{
		Name: own + "jwt-issuer", Scopes: Ingress, Format: "text, as `https://login.test/`", Guard: true,
		Effect: "The claim `iss` that a token needs, see jwt-keys.",
	})
	jwtAudience = define(words(claimText, ", "), Doc{
		Name: own + "jwt-audience", Scopes: Ingress, Format: "up to 8 texts, with commas between them", Guard: true,
		Effect: "The claim `aud` of a token must be, or contain, one of these texts, see jwt-keys.",
	})
	jwtClaims = defineLines(lines(demand), Doc{
		Name: own + "jwt-claims", Scopes: Ingress, Guard: true,
		Format: "up to 8 lines of `claim`, or `claim value value`",
		Effect: "Claims that a token needs in addition, see jwt-keys: each must be, or contain, one of its values. A " +
			"request without them is answered 403. `a.b` is claim b within claim a.",
	})
	jwtHeaders = defineLines(lines(claimHeader), Doc{
		Name: own + "jwt-headers", Scopes: Ingress, Format: "up to 8 lines of `Header claim`", Guard: true,
		Effect: "Headers of the request that servers see, with the values of claims of the token, see jwt-keys. The " +
			"client's own headers of these names are deleted.",
	})
)

// JWTKeys is the key that names the Secret with the keys of tokens, and JWTPublicKeys the one that names a ConfigMap
// with them.
const (
	JWTKeys       = own + "jwt-keys"
	JWTPublicKeys = own + "jwt-public-keys"
)

// claimText reads the value of a claim.
func claimText(s string) (string, error) {
	return s, haproxy.Claim{Name: "any", Values: []string{s}}.Check()
}

// demand reads a claim and its values.
func demand(line string) (haproxy.Claim, error) {
	fields := strings.Fields(line)
	c := haproxy.Claim{Name: fields[0], Values: fields[1:]}
	return c, c.Check()
}

// claimHeader reads a header and the claim that it gets.
func claimHeader(line string) (haproxy.ClaimHeader, error) {
	fields := strings.Fields(line)
	if len(fields) != 2 {
		return haproxy.ClaimHeader{}, fmt.Errorf("%s: want the name of a header, a space and the name of a claim",
			Quote(line))
	}
	h := haproxy.ClaimHeader{Header: fields[0], Claim: fields[1]}
	return h, h.Check()
}

// verifyTokens adds the directive that asks clients for a token. A Secret is used as a whole: one entry that
// is no key makes the guard invalid.
func verifyTokens(v *values, s *Settings) {
	var t haproxy.Tokens
	var audiences string
	t.Issuer, _ = get(v, jwtIssuer)
	audiences, _ = get(v, jwtAudience)
	t.Require, _ = get(v, jwtClaims)
	t.Headers, _ = get(v, jwtHeaders)
	named, read, said := keySource(v)
	if !said {
		for _, d := range []Doc{jwtIssuer.Doc, jwtAudience.Doc, jwtClaims.Doc, jwtHeaders.Doc} {
			if slices.ContainsFunc(v.used, func(u Effective) bool { return u.Key == d.Name }) {
				v.wrong(d, errors.New("there are no jwt-keys that verify tokens"))
			}
		}
		return
	}
	if len(s.Userlists) > 0 {
		v.wrong(named, errors.New("clients also need a password, and a request has one Authorization header: "+
			"remove the auth-secret or the jwt-keys"))
		return
	}
	if audiences != "" {
		t.Audiences = strings.Split(audiences, ", ")
	}
	t.Realm, _ = get(v, authRealm)
	var err error
	t.Keys, err = read()
	for _, k := range t.Keys {
		if err == nil {
			err = v.env.refusal(k.File.Part())
		}
	}
	var d haproxy.Directive
	if err == nil {
		d, err = t.Directive()
	}
	if err != nil {
		v.wrong(named, err)
		return
	}
	if v.closed {
		return
	}
	for _, k := range t.Keys {
		s.Extras = append(s.Extras, k.File)
	}
	s.add(d)
}

// keySource returns the key that names the keys of tokens, and a function that reads these.
func keySource(v *values) (named Doc, read func() ([]*haproxy.TokenKey, error), said bool) {
	secret, inSecret := get(v, jwtKeys)
	public, inMap := get(v, jwtPublicKeys)
	switch {
	case inSecret && inMap:
		return jwtPublicKeys.Doc, func() ([]*haproxy.TokenKey, error) {
			return nil, errors.New("there are jwt-keys, too: remove one of the two keys")
		}, true
	case inMap:
		return jwtPublicKeys.Doc, func() ([]*haproxy.TokenKey, error) { return publicKeys(v, public) }, true
	}
	return jwtKeys.Doc, func() ([]*haproxy.TokenKey, error) {
		from, err := v.env.Secrets(v.scopeOf(jwtKeys.Name), secret)
		if err != nil {
			return nil, err
		}
		return tokenKeys(from)
	}, inSecret
}

// publicKeys reads the keys of a ConfigMap, which cannot keep a secret.
func publicKeys(v *values, ref Ref) ([]*haproxy.TokenKey, error) {
	from, err := v.env.ConfigMaps(v.scopeOf(jwtPublicKeys.Name), ref)
	if err != nil {
		return nil, err
	}
	for entry := range from.Data {
		if isShared(entry) {
			return nil, fmt.Errorf("%s, entry %s: a secret belongs into a Secret, and jwt-keys names that",
				from.Of, entry)
		}
	}
	return tokenKeys(from)
}

// tokenKeys reads the keys of a Secret or a ConfigMap. The name of an entry, and never its text, makes it a secret: a
// public key must not become a secret because it cannot be read.
func tokenKeys(from Object) (keys []*haproxy.TokenKey, err error) {
	if n := len(from.Data); n == 0 || n > haproxy.MaxTokenKeys {
		return nil, fmt.Errorf("%s has %d entries: allowed are 1 to %d keys", from.Of, n, haproxy.MaxTokenKeys)
	}
	for i, entry := range slices.Sorted(maps.Keys(from.Data)) {
		more, err := keysOf(entry, from.Name+"_"+strconv.Itoa(i), from.Data[entry]) // no name of a Secret has a "_"
		if err != nil {
			return nil, fmt.Errorf("%s, entry %s: %w", from.Of, entry, err)
		}
		keys = append(keys, more...)
	}
	return keys, nil
}

// isShared reports whether an entry of that name is a secret for HS256.
func isShared(entry string) bool { return entry == "hs256" || strings.HasSuffix(entry, ".hs256") }

// keysOf reads the keys of an entry. file begins the names of their files.
func keysOf(entry, file string, text []byte) ([]*haproxy.TokenKey, error) {
	read := haproxy.PublicKey
	switch {
	case isShared(entry):
		read = haproxy.SharedKey
	case haproxy.IsKeySet(text):
		return haproxy.KeySet(file, text)
	}
	k, err := read(file, text)
	return []*haproxy.TokenKey{k}, err
}
