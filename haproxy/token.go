package haproxy

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Tokens admit only requests with a signed token (RFC 7519), which the client sends as "Authorization:
// Bearer TOKEN". One of the Keys has to verify the signature, and the token has to have an expiry (exp)
// that is not over.
//
// The kind of a key alone decides about the algorithm of its signatures. What a token says about its
// algorithm has no effect. HAProxy verifies the signature of a token before it parses the token. Parsing
// the numbers of a hostile token could take long (CVE-2025-11230).
type Tokens struct {
	Keys      []*TokenKey // from 1 to MaxTokenKeys
	Realm     string      // for WWW-Authenticate
	Issuer    string      // the claim iss, or empty for any issuer
	Audiences []string    // one of them is in the claim aud; empty for any audience
	Require   []Claim
	Headers   []ClaimHeader
}

// A Claim is a demand on a token. The claim is a text that is one of the Values, or a list of texts with
// one of them. The words of the claim "scope" are a list, too (RFC 8693, 4.2). Without Values the claim
// only has to be there.
type Claim struct {
	Name   string // as "role", or "realm_access.roles" for a claim within another one
	Values []string
}

// A ClaimHeader sets a header of the request to the value of a claim. The client's own header of that
// name is always deleted.
type ClaimHeader struct{ Header, Claim string }

// Bounds of Tokens. Each key of a backend may verify the signature of each request.
const (
	MaxTokenKeys = 4
	MaxClaims    = 8 // of Require, of its Values, of Audiences and of Headers
	maxClaim     = 128
	maxToken     = 8 << 10
	slowClock    = 60 // seconds that the clock of an issuer may be ahead (claim nbf)
)

// A TokenKey is a key that verifies tokens. File holds it: a public key, or a secret.
type TokenKey struct {
	File      *Extra
	algorithm string
}

// The names of the files with keys end so.
const (
	publicKeyFile = ".jwt.pem"
	sharedKeyFile = ".jwt.map" // a secret is the one row of a map, so that haproxy.cfg does not hold it
)

// PublicKey makes a TokenKey of a public key or a certificate in PEM: RSA for RS256, or P-256 for ES256.
func PublicKey(name string, text []byte) (*TokenKey, error) {
	block, rest := pem.Decode(text)
	if block == nil {
		return nil, errors.New("it is not PEM: want a block PUBLIC KEY or CERTIFICATE, or a JSON Web Key Set")
	}
	if more, _ := pem.Decode(rest); more != nil {
		return nil, errors.New("it has several PEM blocks: want one PUBLIC KEY or CERTIFICATE")
	}
	var key any
	var err error
	switch block.Type {
	case "PUBLIC KEY":
		key, err = x509.ParsePKIXPublicKey(block.Bytes)
	case "RSA PUBLIC KEY":
		key, err = x509.ParsePKCS1PublicKey(block.Bytes)
	case "CERTIFICATE":
		var cert *x509.Certificate
		if cert, err = x509.ParseCertificate(block.Bytes); err == nil {
			key = cert.PublicKey
		}
	default:
		return nil, fmt.Errorf("it is a PEM block %s: want PUBLIC KEY or CERTIFICATE", shown(block.Type))
	}
	if err != nil {
		return nil, fmt.Errorf("it cannot be read: %w", err)
	}
	return tokenKey(name, key)
}

// tokenKey makes a TokenKey of a public key.
func tokenKey(name string, key any) (*TokenKey, error) {
	var algorithm string
	switch k := key.(type) {
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits < 2048 || bits > 4096 {
			return nil, fmt.Errorf("it is an RSA key of %d bits: allowed are 2048 to 4096", bits)
		}
		algorithm = "RS256"
	case *ecdsa.PublicKey:
		if k.Curve != elliptic.P256() {
			return nil, errors.New("it is an elliptic key of another curve than P-256")
		}
		algorithm = "ES256"
	default:
		return nil, errors.New("it is neither an RSA key nor an elliptic key of the curve P-256")
	}
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, fmt.Errorf("it cannot be written: %w", err)
	}
	content := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	return &TokenKey{&Extra{name + publicKeyFile, content}, algorithm}, nil
}

// SharedKey makes a TokenKey of a secret for HS256, which is as long as its hash at least (RFC 7518, 3.2).
// It rejects PEM and JSON Web Key Sets, because everybody who knows a public key could otherwise sign with it. Its
// errors do not contain the secret.
func SharedKey(name string, secret []byte) (*TokenKey, error) {
	switch {
	case len(secret) < 32 || len(secret) > 1024:
		return nil, fmt.Errorf("it is a secret of %d bytes: allowed are 32 to 1024", len(secret))
	case slices.Contains(secret, 0):
		// HAProxy would cut the secret there, and everybody can sign with an empty secret.
		return nil, errors.New("it is a secret with a zero byte, which HAProxy cannot use: " +
			"`openssl rand -base64 48` makes one of text")
	case strings.Contains(string(secret), "-----BEGIN"):
		return nil, errors.New("it is PEM, and no secret for HS256")
	case IsKeySet(secret) && strings.Contains(string(secret), `"kty"`):
		return nil, errors.New("it is a JSON Web Key Set, and no secret for HS256")
	}
	row := "key " + base64.StdEncoding.EncodeToString(secret) + "\n"
	return &TokenKey{&Extra{name + sharedKeyFile, []byte(row)}, "HS256"}, nil
}

// Algorithm returns the algorithm of the signatures that the key verifies.
func (k *TokenKey) Algorithm() string { return k.algorithm }

// verify returns the rules that set the variable txn.jwt_good if the key has signed the token.
func (k *TokenKey) verify() []string {
	path := here + extraDir + k.File.Name
	var rules []string
	if strings.HasSuffix(k.File.Name, sharedKeyFile) {
		rules, path = []string{"http-request set-var(txn.jwt_key) str(key),map_str(" + path + "),b64dec"}, "txn.jwt_key"
	}
	return append(rules, "http-request set-var(txn.jwt_good) bool(true) if !{ var(txn.jwt_good) -m found }"+
		" { var(txn.jwt),jwt_verify("+k.algorithm+","+path+") -m int 1 }")
}

// Directive returns the rules of Tokens. A request without a valid token gets 401. A request without a
// claim of Require gets 403.
func (t Tokens) Directive() (Directive, error) {
	if err := t.validate(); err != nil {
		return Directive{}, err
	}
	realm, err := quote(`Bearer realm="` + strings.ReplaceAll(cmp.Or(t.Realm, "tokens"), "%", "%%") + `"`)
	if err != nil {
		return Directive{}, err
	}
	refuse := func(status int, text, challenge, condition string) string {
		return answer(status, text, " hdr WWW-Authenticate "+challenge+" if "+condition)
	}
	invalid := func(condition string) string {
		return refuse(401, "the token is not valid", `'Bearer error="invalid_token"'`, condition)
	}
	var lines, files []string
	for _, h := range t.Headers {
		lines = append(lines, otherSpellings(h.Header)+"http-request del-header "+h.Header)
	}
	lines = append(
		lines,
		// A server might read another header than HAProxy has.
		answer(400, "there are several Authorization headers", " if { req.fhdr_cnt(authorization) gt 1 }"),
		"http-request deny deny_status 400 if { req.fhdr(authorization) -m len gt "+strconv.Itoa(maxToken)+" }",
		"http-request set-var(txn.jwt) http_auth_bearer",
		refuse(401, "a token is needed", realm, "!{ var(txn.jwt) -m found }"))
	for _, k := range t.Keys {
		lines, files = append(lines, k.verify()...), append(files, k.File.Name)
	}
	lines = append(
		lines,
		invalid("!{ var(txn.jwt_good) -m found }"),
		// Nothing here understands an extension that is critical (RFC 7515, 4.1.11).
		invalid("{ var(txn.jwt),jwt_header_query('$.crit') -m found } or "+
			"{ var(txn.jwt),jwt_header_query('$.crit[0]') -m found }"),
		"http-request set-var(txn.jwt_now) date",
		invalid("!{ "+claim("exp")+",sub(txn.jwt_now) gt 0 }"),
		invalid("{ "+claim("nbf")+" -m found } !{ "+claim("nbf")+",sub(txn.jwt_now) le "+
			strconv.Itoa(slowClock)+" }"))
	if t.Issuer != "" {
		lines = append(lines, invalid("!{ "+claim("iss")+" -m str -- "+t.Issuer+" }"))
	}
	if len(t.Audiences) > 0 {
		lines = append(lines, Claim{"aud", t.Audiences}.acl("sp_aud"), invalid("!sp_aud"))
	}
	for i, c := range t.Require {
		name := "sp_claim" + strconv.Itoa(i)
		lines = append(lines, c.acl(name),
			refuse(403, "a claim of the token is missing", `'Bearer error="insufficient_scope"'`, "!"+name))
	}
	for _, h := range t.Headers {
		const value = "var(txn.jwt_claim)"
		lines = append(lines, "http-request set-var(txn.jwt_claim) "+claim(h.Claim),
			// A line break in a claim would begin another header.
			invalid("{ "+value+" -m reg [[:cntrl:]] }"),
			"http-request set-header "+h.Header+" %["+value+"] if { "+value+" -m found }",
			"http-request unset-var(txn.jwt_claim)")
	}
	return Directive{phase: phaseToken, names: strings.Join(files, " "), text: strings.Join(lines, "\n")}, nil
}

// claim returns the sample of a claim of a verified token. It cuts a number to a whole number.
func claim(name string) string { return "var(txn.jwt),jwt_payload_query('$." + name + "','int')" }

// acl returns the lines of an ACL that matches tokens with the claim.
func (c Claim) acl(name string) string {
	begin := c.begin(name)
	if len(c.Values) == 0 {
		return begin + "found"
	}
	var patterns []string
	for _, v := range c.Values {
		// Some issuers write a slash in a list with a backslash.
		patterns = append(patterns, strings.ReplaceAll(regexp.QuoteMeta(v), "/", `\\?/`))
	}
	one := "(?:" + strings.Join(patterns, "|") + ")"
	values := strings.Join(c.Values, " ")
	// HAProxy returns a list as it stands in the token. The expression reads its texts from the first on.
	lines := []string{
		begin + "str -- " + values, ".if version_atleast(3.0)",
		begin + `reg -- '^\[\s*+(?:"(?:[^"\\]++|\\.)*+"\s*+,\s*+)*?"` + one + `"\s*+[,\]]'`, ".else",
	}
	for i := range listed {
		lines = append(lines, Claim{Name: c.Name + "[" + strconv.Itoa(i) + "]"}.begin(name)+"str -- "+values)
	}
	lines = append(lines, ".endif")
	if c.Name == "scope" {
		lines = append(lines, begin+"reg -- '(?:^| )"+one+"(?: |$)'")
	}
	return strings.Join(lines, "\n")
}

// begin returns the beginning of a line of an ACL that looks at the claim.
func (c Claim) begin(name string) string { return "acl " + name + " " + claim(c.Name) + " -m " }

// listed is how many texts of a list HAProxy 2.6 reads. It has no sample of a whole list.
const listed = 8

// claimName matches the names of claims that HAProxy can look up. claimValue matches the values to compare
// claims with. Quotes, backslashes, spaces and brackets have a meaning in a list or in haproxy.cfg.
var (
	claimName  = matcher(`^[A-Za-z0-9_-]{1,64}(\.[A-Za-z0-9_-]{1,64}){0,4}$`)
	claimValue = matcher(`^[A-Za-z0-9_.:/@+=~?&-]{1,` + strconv.Itoa(maxClaim) + `}$`)
)

// Check returns why no token can have the claim.
func (c Claim) Check() error {
	if !claimName(c.Name) {
		return fmt.Errorf("%s is not the name of a claim: allowed are letters, digits, _ and -, and up to 4 dots "+
			"between names", shown(c.Name))
	}
	for _, v := range c.Values {
		if !claimValue(v) {
			return fmt.Errorf("%s is not the value of a claim: allowed are up to 128 letters, digits and "+
				"_ . : / @ + = ~ ? & -", shown(v))
		}
	}
	return nil
}

// Check returns why HAProxy cannot set the header.
func (h ClaimHeader) Check() error {
	if !token(h.Header) {
		return notAHeader(h.Header)
	}
	return Claim{Name: h.Claim}.Check()
}

func (t Tokens) validate() error {
	if n := len(t.Keys); n == 0 || n > MaxTokenKeys {
		return fmt.Errorf("there are %d keys for tokens: allowed are 1 to %d", n, MaxTokenKeys)
	}
	claims := slices.Concat(t.Require, []Claim{{"aud", t.Audiences}})
	if t.Issuer != "" {
		claims = append(claims, Claim{"iss", []string{t.Issuer}})
	}
	for _, c := range claims {
		if len(c.Values) > MaxClaims {
			return fmt.Errorf("claim %s has %d values: allowed are up to %d", c.Name, len(c.Values), MaxClaims)
		}
		if err := c.Check(); err != nil {
			return err
		}
	}
	if most := max(len(t.Require), len(t.Headers)); most > MaxClaims {
		return fmt.Errorf("there are %d claims: allowed are up to %d", most, MaxClaims)
	}
	for _, h := range t.Headers {
		if err := h.Check(); err != nil {
			return err
		}
	}
	if strings.ContainsAny(t.Realm, `"\`) {
		return fmt.Errorf(`%s has a quote or a backslash, which a realm cannot have`, shown(t.Realm))
	}
	return nil
}
