package haproxy

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// A signer signs tokens as an issuer does.
type signer struct {
	algorithm string
	key       any // *rsa.PrivateKey, *ecdsa.PrivateKey, []byte, or nil for no signature
}

// sign returns a token with this header and these claims.
func (s signer) sign(t *testing.T, header, claims map[string]any) string {
	t.Helper()
	h := map[string]any{"typ": "JWT", "alg": s.algorithm}
	maps.Copy(h, header)
	part := func(v any) string {
		text := must[[]byte](t)(json.Marshal(v))
		return base64.RawURLEncoding.EncodeToString(text)
	}
	return s.signText(t, part(h)+"."+part(claims))
}

func (s signer) signText(t *testing.T, text string) string {
	t.Helper()
	sum := sha256.Sum256([]byte(text))
	var signature []byte
	switch key := s.key.(type) {
	case *rsa.PrivateKey:
		signature = must[[]byte](t)(rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:]))
	case *ecdsa.PrivateKey:
		r, v, err := ecdsa.Sign(rand.Reader, key, sum[:])
		if err != nil {
			t.Fatal(err)
		}
		signature = make([]byte, 64)
		r.FillBytes(signature[:32])
		v.FillBytes(signature[32:])
	case []byte:
		m := hmac.New(sha256.New, key)
		m.Write([]byte(text))
		signature = m.Sum(nil)
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// public returns the public key of a signer in PEM.
func (s signer) public(t *testing.T) []byte {
	t.Helper()
	der := must[[]byte](t)(x509.MarshalPKIXPublicKey(s.key.(crypto.Signer).Public()))
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

// issuers returns a signer of each kind.
func issuers(t *testing.T) (rs, es, hs signer) {
	t.Helper()
	rs = signer{"RS256", must[*rsa.PrivateKey](t)(rsa.GenerateKey(rand.Reader, 2048))}
	es = signer{"ES256", must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))}
	return rs, es, signer{"HS256", []byte("a secret \xff of more than 32 bytes\nin any form")}
}

// with returns claims that a token with the audience "here" and the issuer of these tests has, changed as
// the pairs say. The value nil removes a claim.
func with(pairs ...any) map[string]any {
	claims := map[string]any{
		"iss": "https://login.test/", "aud": "here", "exp": time.Now().Add(time.Hour).Unix(), "sub": "ann",
		"role": "admin", "scope": "read write",
	}
	for i := 0; i < len(pairs); i += 2 {
		if name := pairs[i].(string); pairs[i+1] == nil {
			delete(claims, name)
		} else {
			claims[name] = pairs[i+1]
		}
	}
	return claims
}

// tokens returns the directive of Tokens.
func tokens(t testing.TB, of Tokens) Directive {
	t.Helper()
	return must[Directive](t)(of.Directive())
}

// bearing sends a request with these lines of headers, and returns the status and what the server saw.
func (r *rig) bearing(host string, lines ...string) (status, answer string) {
	r.t.Helper()
	answer = r.send("GET / HTTP/1.1\r\nHost: " + host + "\r\n" + strings.Join(append(lines, ""), "\r\n") +
		"Connection: close\r\n\r\n")
	_, status, _ = strings.Cut(answer, " ")
	status, _, _ = strings.Cut(status, " ")
	return status, answer
}

func TestOnlyATokenOfItsOwnKeysIsAdmitted(t *testing.T) {
	rs, es, hs := issuers(t)
	stranger := signer{"RS256", must[*rsa.PrivateKey](t)(rsa.GenerateKey(rand.Reader, 2048))}
	other := signer{"HS256", []byte("another secret of more than 32 bytes, of a neighbour")}
	now := time.Now().Unix()
	hour := int64(3600)
	text := func(header, claims string) string {
		return base64.RawURLEncoding.EncodeToString([]byte(header)) + "." +
			base64.RawURLEncoding.EncodeToString([]byte(claims))
	}
	good := rs.sign(t, nil, with())
	head, claims, _ := strings.Cut(good, ".")
	claims, signature, _ := strings.Cut(claims, ".")
	rows := map[string]struct{ token, want string }{
		"RS256":                                {good, "200"},
		"ES256":                                {es.sign(t, nil, with()), "200"},
		"HS256":                                {hs.sign(t, nil, with()), "200"},
		"its audience among several":           {rs.sign(t, nil, with("aud", []any{"a", "here", "b"})), "200"},
		"another of the two audiences":         {rs.sign(t, nil, with("aud", "https://there/x")), "200"},
		"an expiry with a fraction":            {rs.sign(t, nil, with("exp", float64(now+hour)+0.5)), "200"},
		"valid from now on":                    {rs.sign(t, nil, with("nbf", now)), "200"},
		"an issuer whose clock is ahead":       {rs.sign(t, nil, with("nbf", now+30)), "200"},
		"no signature":                         {head + "." + claims + ".", "401"},
		"alg none":                             {signer{"none", nil}.sign(t, nil, with()), "401"},
		"alg None, with a signature":           {signer{"None", stranger.key}.sign(t, nil, with()), "401"},
		"alg none, signed with the right key":  {signer{"none", hs.key}.sign(t, nil, with()), "200"},
		"no alg":                               {rs.sign(t, map[string]any{"alg": nil}, with()), "200"},
		"HS256 with the public key in PEM":     {signer{"HS256", rs.public(t)}.sign(t, nil, with()), "401"},
		"RS256 in words, by the public key":    {signer{"RS256", rs.public(t)}.sign(t, nil, with()), "401"},
		"HS256 with the path of the key":       {signer{"HS256", []byte("extra/a_0.jwt.pem")}.sign(t, nil, with()), "401"},
		"HS256 with an empty secret":           {signer{"HS256", []byte{}}.sign(t, nil, with()), "401"},
		"HS256 with the row of the map":        {signer{"HS256", []byte(base64.StdEncoding.EncodeToString(hs.key.([]byte)))}.sign(t, nil, with()), "401"},
		"the key of a neighbour":               {other.sign(t, nil, with()), "401"},
		"a key of nobody":                      {stranger.sign(t, nil, with()), "401"},
		"an expired one":                       {rs.sign(t, nil, with("exp", now-1)), "401"},
		"no expiry":                            {rs.sign(t, nil, with("exp", nil)), "401"},
		"an expiry in words":                   {rs.sign(t, nil, with("exp", "tomorrow")), "401"},
		"a list as expiry":                     {rs.sign(t, nil, with("exp", []any{now + hour})), "401"},
		"an expiry beyond every number":        {rs.signText(t, text(`{"alg":"RS256"}`, `{"iss":"https://login.test/","aud":"here","role":"admin","scope":"read","exp":1e300}`)), "401"},
		"valid in an hour":                     {rs.sign(t, nil, with("nbf", now+hour)), "401"},
		"another issuer":                       {rs.sign(t, nil, with("iss", "https://login.test.evil/")), "401"},
		"no issuer":                            {rs.sign(t, nil, with("iss", nil)), "401"},
		"another audience":                     {rs.sign(t, nil, with("aud", "nowhere")), "401"},
		"an audience with more text":           {rs.sign(t, nil, with("aud", "here.evil")), "401"},
		"other audiences":                      {rs.sign(t, nil, with("aud", []any{"a", "her", "here2"})), "401"},
		"an audience that quotes the right":    {rs.sign(t, nil, with("aud", []any{`x","here","`})), "401"},
		"an audience that quotes with space":   {rs.sign(t, nil, with("aud", []any{`a", "here`, `" ,"`})), "401"},
		"an audience within a list of lists":   {rs.sign(t, nil, with("aud", []any{[]any{"here"}})), "401"},
		"an audience as the name of something": {rs.sign(t, nil, with("aud", map[string]any{"here": "here"})), "401"},
		"no audience":                          {rs.sign(t, nil, with("aud", nil)), "401"},
		"an extension that is critical":        {rs.sign(t, map[string]any{"crit": []any{"b64"}, "b64": false}, with()), "401"},
		"a number that takes long to read":     {text(`{"alg":1e1000000000}`, `{"exp":1e1000000000}`) + "." + signature, "401"},
		"the claims of another":                {head + "." + strings.Split(rs.sign(t, nil, with("sub", "eve")), ".")[1] + "." + signature, "401"},
		"a fourth part":                        {good + "." + signature, "401"},
		"one part":                             {head, "401"},
		"dots alone":                           {"..", "401"},
		"no base64":                            {head + ".%%%." + signature, "401"},
		"a huge one":                           {rs.sign(t, nil, with("more", strings.Repeat("x", 9000))), "400"},
		"a large one":                          {rs.sign(t, nil, with("more", strings.Repeat("x", 5000))), "200"},
		"one that is no JSON":                  {rs.signText(t, text(`{"alg":"RS256"}`, `hello`)), "401"},
		"a missing claim":                      {rs.sign(t, nil, with("role", nil)), "403"},
		"another role":                         {rs.sign(t, nil, with("role", "administrator")), "403"},
		"its role among several":               {rs.sign(t, nil, with("role", []any{"user", "admin"})), "200"},
		"its role in another text":             {rs.sign(t, nil, with("role", "user admin")), "403"},
		"another scope":                        {rs.sign(t, nil, with("scope", "reads write")), "403"},
		"a line break in a claim":              {rs.sign(t, nil, with("sub", "ann\r\nX-Admin: 1")), "401"},
	}
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		app, neighbour, wide := backend("app", heads(t)), backend("neighbour", heads(t)), backend("wide", heads(t))
		keys := []*TokenKey{
			must[*TokenKey](t)(PublicKey("a_0", rs.public(t))), must[*TokenKey](t)(PublicKey("a_1", es.public(t))),
			must[*TokenKey](t)(SharedKey("a_2", hs.key.([]byte))),
		}
		theirs := must[*TokenKey](t)(SharedKey("b_0", other.key.([]byte)))
		app.Directives = []Directive{tokens(t, Tokens{
			Keys: keys, Realm: "100% ours", Issuer: "https://login.test/", Audiences: []string{"here", "https://there/x"},
			Require: []Claim{{"role", []string{"admin", "root"}}, {"scope", []string{"read"}}, {"sub", nil}},
			Headers: []ClaimHeader{{"X-Forwarded-User", "sub"}, {"X-Team", "team.name"}, {"X-Roles", "role"}},
		})}
		neighbour.Directives = []Directive{tokens(t, Tokens{Keys: []*TokenKey{theirs}})}
		set := must[[]*TokenKey](t)(KeySet("w", keySet(t, es.member(t), rs.member(t))))
		wide.Directives = []Directive{tokens(t, Tokens{Keys: set})}
		cfg := r.config(app, neighbour, wide)
		for _, k := range slices.Concat(keys, []*TokenKey{theirs}, set) {
			cfg.Extras = append(cfg.Extras, k.File)
		}
		r.apply(cfg, states(cfg, Open))

		for name, row := range rows {
			if got, answer := r.bearing("app.test", "Authorization: Bearer "+row.token); got != row.want {
				t.Errorf("%s: got %s, want %s: %s", name, got, row.want, answer)
			}
		}
		for name, row := range map[string]struct {
			lines []string
			want  string
		}{
			"no token":               {nil, "401"},
			"a password":             {[]string{"Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("a:b"))}, "401"},
			"the token of something": {[]string{"Authorization: Token " + good}, "401"},
			"small letters":          {[]string{"authorization: bearer " + good}, "200"},
			"a good one first":       {[]string{"Authorization: Bearer " + good, "Authorization: Bearer x"}, "400"},
			"a good one last":        {[]string{"Authorization: Basic YTpi", "Authorization: Bearer " + good}, "400"},
			"two in one":             {[]string{"Authorization: Bearer x, Bearer " + good}, "401"},
		} {
			if got, answer := r.bearing("app.test", row.lines...); got != row.want {
				t.Errorf("%s: got %s, want %s: %s", name, got, row.want, answer)
			}
		}

		// Each backend has its own keys, and no claims of the others.
		for _, row := range []struct {
			host, token, want string
		}{
			{"neighbour.test", other.sign(t, nil, with("iss", nil, "aud", nil)), "200"},
			{"neighbour.test", good, "401"},
			{"neighbour.test", hs.sign(t, nil, with()), "401"},
			{"wide.test", rs.sign(t, nil, map[string]any{"exp": now + hour}), "200"},
			{"wide.test", es.sign(t, map[string]any{"kid": "of nobody"}, with()), "200"},
			{"wide.test", other.sign(t, nil, with()), "401"},
			{"wide.test", hs.sign(t, nil, with()), "401"},
		} {
			if got, _ := r.bearing(row.host, "Authorization: Bearer "+row.token); got != row.want {
				t.Errorf("%s: got %s, want %s", row.host, got, row.want)
			}
		}

		// The servers see claims, and nothing that the client says about itself.
		_, seen := r.bearing("app.test", "Authorization: Bearer "+rs.sign(t, nil,
			with("team", map[string]any{"name": 7}, "role", []any{"admin", "b"})),
			"X-Forwarded-User: eve", "X_Forwarded_User: eve", "x-forwarded.user: eve", "X-Team: 1", "X-Roles: root")
		wanted := []string{"\nx-forwarded-user: ann\r", "\nx-team: 7\r"}
		if (picture{version: r.p.version}).atLeast3(0) { // HAProxy 2.6 has no sample of a list
			wanted = append(wanted, "\nx-roles: [\"admin\",\"b\"]\r")
		}
		for _, want := range wanted {
			if !strings.Contains(seen, want) {
				t.Errorf("the server sees no %q in %q", want, seen)
			}
		}
		if strings.Contains(seen, "eve") || strings.Contains(seen, "root") {
			t.Errorf("the server sees what the client says: %q", seen)
		}
		if _, seen = r.bearing("app.test", "Authorization: Bearer "+good, "X-Team: 1"); strings.Contains(seen, "x-team") {
			t.Errorf("the server sees what the client says, without a claim: %q", seen)
		}
		if _, answer := r.bearing("app.test"); !strings.Contains(answer, `www-authenticate: Bearer realm="100% ours"`) {
			t.Errorf("without a token: %q", answer)
		}

		// A key that is gone admits nobody.
		next := *cfg
		next.Extras = cfg.Extras[:0:0]
		less := *app
		less.Directives = []Directive{tokens(t, Tokens{Keys: keys[1:2]})}
		for _, k := range append(keys[1:], theirs) {
			next.Extras = append(next.Extras, k.File)
		}
		next.Backends = []*Backend{&less, neighbour, cfg.Backends[2]}
		next.Backends[2] = &Backend{Name: "wide", Directives: less.Directives, Servers: wide.Servers}
		r.apply(&next, states(&next, Open))
		r.eventually("a key that is gone is not used", func() bool {
			got, _ := r.bearing("wide.test", "Authorization: Bearer "+good)
			return got == "401"
		})
	})
}

func TestAKeyOfTokensIsOfTheKindThatItsTextHas(t *testing.T) {
	rs, es, _ := issuers(t)
	der := func(key any) []byte {
		out, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: out})
	}
	short := signer{key: must[*rsa.PrivateKey](t)(rsa.GenerateKey(rand.Reader, 1024))}
	curve := signer{key: must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))}
	pkcs1 := pem.EncodeToMemory(&pem.Block{
		Type: "RSA PUBLIC KEY", Bytes: x509.MarshalPKCS1PublicKey(&rs.key.(*rsa.PrivateKey).PublicKey),
	})
	ec := es.key.(*ecdsa.PrivateKey)
	issued := pem.EncodeToMemory(&pem.Block{
		Type: "CERTIFICATE", Bytes: certificate(t, "a.test", "a.test", ec.Public(), ec, nil),
	})
	for name, row := range map[string]struct {
		text []byte
		want string // the algorithm, or a part of the error
	}{
		"RSA":                       {rs.public(t), "RS256"},
		"RSA as PKCS 1":             {pkcs1, "RS256"},
		"P-256":                     {es.public(t), "ES256"},
		"a certificate":             {issued, "ES256"},
		"a private key":             {der(rs.key), "PRIVATE KEY"},
		"a short key":               {short.public(t), "1024 bits"},
		"another curve":             {curve.public(t), "P-256"},
		"two keys":                  {append(rs.public(t), es.public(t)...), "several"},
		"no PEM":                    {[]byte(`{"kty":"RSA"}`), "not PEM"},
		"nothing":                   {nil, "not PEM"},
		"a key that cannot be read": {[]byte("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"), "cannot be read"},
	} {
		k, err := PublicKey("a", row.text)
		if got := fmt.Sprint(err); err != nil && !strings.Contains(got, row.want) || err == nil && k.Algorithm() != row.want {
			t.Errorf("%s: got %v, %v; want %s", name, k, err, row.want)
		}
	}
	for name, secret := range map[string][]byte{
		"a zero byte": append(make([]byte, 1), strings.Repeat("a", 40)...), "a short secret": []byte("short"), "a long secret": make([]byte, 1025), "a public key": es.public(t),
		"a public key after a comment": append([]byte("# ours\n"), es.public(t)...),
	} {
		if k, err := SharedKey("a", secret); err == nil {
			t.Errorf("%s: got %v, want an error", name, k)
		} else if strings.Contains(err.Error(), string(secret)) {
			t.Errorf("%s: the error holds the secret: %v", name, err)
		}
	}
}

func TestNoTextOfTokensReachesAnotherRule(t *testing.T) {
	_, es, _ := issuers(t)
	key := must[*TokenKey](t)(PublicKey("a", es.public(t)))
	keys := []*TokenKey{key}
	for name, tokens := range map[string]Tokens{
		"no key":                       {},
		"many keys":                    {Keys: []*TokenKey{key, key, key, key, key}},
		"a quote in the realm":         {Keys: keys, Realm: `a" x="`},
		"a line break in the realm":    {Keys: keys, Realm: "a\nb"},
		"a space in the issuer":        {Keys: keys, Issuer: "a } { always_true"},
		"a quote in an audience":       {Keys: keys, Audiences: []string{`a'`}},
		"an empty audience":            {Keys: keys, Audiences: []string{""}},
		"an expression as a claim":     {Keys: keys, Require: []Claim{{"a') -m found } or { always_true", nil}}},
		"an index in a claim":          {Keys: keys, Require: []Claim{{"a[0]", nil}}},
		"many claims":                  {Keys: keys, Require: make([]Claim, 9)},
		"many audiences":               {Keys: keys, Audiences: strings.Fields(strings.Repeat("a ", 9))},
		"a header with a space":        {Keys: keys, Headers: []ClaimHeader{{"A b", "sub"}}},
		"an expression for a header":   {Keys: keys, Headers: []ClaimHeader{{"A", "sub')]"}}},
		"a line break within a header": {Keys: keys, Headers: []ClaimHeader{{"A\nb", "sub"}}},
	} {
		if d, err := tokens.Directive(); err == nil {
			t.Errorf("%s: got %s, want an error", name, d)
		}
	}
}

// tokensOf returns a configuration with tokens of every kind, up to the largest.
func tokensOf(t testing.TB, certificate []byte) *Config {
	keys := []*TokenKey{
		must[*TokenKey](t)(PublicKey("a_0", certificate)),
		must[*TokenKey](t)(SharedKey("a_1", []byte(strings.Repeat("secret", 10)))),
	}
	values := slices.Repeat([]string{strings.Repeat("/", maxClaim)}, MaxClaims)
	return &Config{
		Shape: Shape{
			Bind:   Bind{HTTP: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:80")}},
			Extras: []*Extra{keys[0].File, keys[1].File},
		},
		Backends: []*Backend{
			{Name: "a", Directives: []Directive{tokens(t, Tokens{Keys: keys[:1]})}},
			{Name: "b", Directives: []Directive{tokens(t, Tokens{
				Keys: keys, Issuer: "-f", Audiences: []string{"--", "https://b.test/?a=b&c"}, Realm: `it's 100% ours`,
				Require: []Claim{{"realm.roles", []string{"admin"}}, {"scope", []string{"a:b"}}, {"sub", nil}},
				Headers: []ClaimHeader{{"X-User", "sub"}},
			})}},
			{Name: "c", Directives: []Directive{tokens(t, Tokens{
				Keys: keys[:1], Audiences: values, Require: []Claim{{strings.Repeat("a", 64), values}},
			})}},
		},
	}
}
