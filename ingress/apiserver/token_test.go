package apiserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// bound returns a token as an API server makes it, without a valid signature.
func bound(uid string, from time.Time, life time.Duration) string {
	claims, _ := json.Marshal(map[string]any{
		"aud": []string{"https://kubernetes.default.svc"}, "iat": from.Unix(), "exp": from.Add(life).Unix(),
		"sub": "system:serviceaccount:kube-system:sallyport",
		"kubernetes.io": map[string]any{
			"namespace":      "kube-system",
			"serviceaccount": map[string]any{"name": "sallyport", "uid": uid},
		},
	})
	return "e30." + base64.RawURLEncoding.EncodeToString(claims) + ".c2ln"
}

func mustRead(t *testing.T, text string) token {
	t.Helper()
	read, ok := readToken(text)
	if !ok {
		t.Fatalf("%q is no token", text)
	}
	return read
}

// An issuer is an API server that issues tokens.
type issuer struct {
	life time.Duration

	mu    sync.Mutex
	fails error
	given []string
}

// tokens returns the tokens that were issued so far.
func (i *issuer) tokens() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.given)
}

// mend lets the next request succeed.
func (i *issuer) mend() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.fails = nil
}

func (i *issuer) CreateToken(_ context.Context, namespace, account string,
	request *authenticationv1.TokenRequest,
) (*authenticationv1.TokenRequest, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.fails != nil {
		return nil, i.fails
	}
	if namespace != "kube-system" || account != "sallyport" ||
		time.Duration(*request.Spec.ExpirationSeconds)*time.Second != i.life {
		return nil, fmt.Errorf("it asks for a token of %s/%s, %d seconds", namespace, account,
			*request.Spec.ExpirationSeconds)
	}
	answer := request.DeepCopy()
	answer.Status.Token = bound("u1", time.Now(), i.life)
	i.given = append(i.given, answer.Status.Token)
	return answer, nil
}

const month = 30 * 24 * time.Hour

func TestATokenIsRenewedAtAThirdOfItsLifeAndKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "token-c")
		given := mustRead(t, bound("u1", time.Now(), month))
		api := &issuer{life: month}
		r := newRenewer(given, file, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(t.Context())
		go r.run(ctx, api)

		<-time.After(month/3 - time.Hour)
		synctest.Wait()
		if len(api.tokens()) > 0 || r.current().text != given.text {
			t.Error("it is renewed before a third of its life")
		}
		<-time.After(2 * time.Hour)
		synctest.Wait()
		if len(api.tokens()) != 1 || r.current().text != api.tokens()[0] {
			t.Fatalf("%d tokens were given, and the first is not in use", len(api.tokens()))
		}
		info, err := os.Stat(file)
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("the file: %v, %v; want mode 0600", info.Mode(), err)
		}
		<-time.After(3 * month)
		synctest.Wait()
		if n := len(api.tokens()); n < 9 || n > 11 || r.current().text != api.tokens()[n-1] {
			t.Errorf("%d tokens were given in 100 days, want one every ten days", n)
		}
		if all := r.sentences(time.Now()); len(all) > 0 {
			t.Errorf("it complains: %q", all)
		}
		stop()
		synctest.Wait()

		// A restart uses the kept token, long after that of the kubeconfig expired.
		again := newRenewer(given, file, slog.New(slog.DiscardHandler))
		if again.current().text != api.tokens()[len(api.tokens())-1] {
			t.Error("a restart does not take the kept token")
		}
		// The kept token is not used for another account, nor instead of a newer one.
		for what, other := range map[string]string{
			"another account":    bound("u2", time.Now(), time.Hour),
			"a newer kubeconfig": bound("u1", time.Now(), month),
		} {
			if other := mustRead(t, other); newRenewer(other, file,
				slog.New(slog.DiscardHandler)).current().text != other.text {
				t.Errorf("%s: the kept token is taken", what)
			}
		}
	})
}

func TestATokenThatCannotBeRenewedIsTold(t *testing.T) {
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "serviceaccounts/token"}, "sallyport",
		errors.New("no"))
	for name, row := range map[string]struct {
		fails error
		told  []string // part of the sentence after 11, 19, 21, 29 and 31 days
	}{
		"refused": {
			refused,
			[]string{
				"cannot be renewed", "cannot be renewed", "cannot be renewed", "cannot be renewed",
				"expired on 2000-01-31",
			},
		},
		"an API that is away": {
			errors.New("connection refused"),
			[]string{
				"", "", "and expires on 2000-01-31T00:00:00Z (connection refused)", "cannot be renewed",
				"expired on 2000-01-31T00:00:00Z, before",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				api := &issuer{life: month, fails: row.fails}
				r := newRenewer(mustRead(t, bound("u1", begun, month)), filepath.Join(t.TempDir(), "token-c"),
					slog.New(slog.DiscardHandler))
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				go r.run(ctx, api)
				for i, day := range []int{11, 19, 21, 29, 31} {
					<-time.After(time.Until(begun.Add(time.Duration(day) * 24 * time.Hour)))
					synctest.Wait()
					if got := strings.Join(r.sentences(time.Now()), "; "); !strings.Contains(got, row.told[i]) ||
						(row.told[i] == "") != (got == "") {
						t.Errorf("after %d days: got %q, want %q", day, got, row.told[i])
					}
				}
				// The renewal is repeated for ever: once it is allowed no restart is needed,
				// unless the token has expired.
				api.mend()
				<-time.After(time.Hour)
				synctest.Wait()
				if all := r.sentences(time.Now()); len(all) > 0 || len(api.tokens()) != 1 {
					t.Errorf("mended, it says %q", all)
				}
			})
		})
	}
}

func TestAKeptTokenThatIsRefusedIsLeftForThatOfTheKubeconfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token-c")
	given, planted := mustRead(t, bound("u1", time.Now(), time.Hour)), bound("u1", time.Now(), 1000*time.Hour)
	if err := os.WriteFile(file, []byte(planted), 0o600); err != nil {
		t.Fatal(err)
	}
	var shown []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown = append(shown, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		if shown[len(shown)-1] != given.text {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer server.Close()
	r := newRenewer(given, file, slog.New(slog.DiscardHandler))
	client := &http.Client{Transport: r.wrap(http.DefaultTransport)}
	for range 3 {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
	}
	if want := []string{planted, given.text, given.text}; !slices.Equal(shown, want) {
		t.Errorf("the tokens %q were shown, want %q", shown, want)
	}
}

func TestAKeptFileThatIsNoneIsLeftAlone(t *testing.T) {
	given := mustRead(t, bound("u1", time.Now(), time.Hour))
	for name, plant := range map[string]func(path string) error{
		"text":     func(path string) error { return os.WriteFile(path, []byte("a.b.c"), 0o600) },
		"large":    func(path string) error { return os.WriteFile(path, make([]byte, 1<<20), 0o600) },
		"a FIFO":   func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a folder": func(path string) error { return os.Mkdir(path, 0o700) },
		"a link":   func(path string) error { return os.Symlink("/dev/zero", path) },
		"an old one": func(path string) error {
			return os.WriteFile(path, []byte(bound("u1", time.Now().Add(-month), time.Hour)), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "token-c")
			if err := plant(file); err != nil {
				t.Fatal(err)
			}
			if got := newRenewer(given, file, slog.New(slog.DiscardHandler)).current(); got.text != given.text {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestOnlyBoundTokensOfServiceAccountsAreRenewed(t *testing.T) {
	encode := func(claims string) string {
		return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
	}
	for name, row := range map[string]struct {
		text string
		want bool
	}{
		"bound":             {bound("u1", time.Unix(1000, 0), time.Hour), true},
		"with a line's end": {bound("u1", time.Unix(1000, 0), time.Hour) + "\n", true},
		"of a Secret": {
			encode(`{"iss":"kubernetes/serviceaccount","kubernetes.io/serviceaccount/namespace":"n","sub":"system:serviceaccount:n:a"}`), false,
		},
		"of a person": {encode(`{"exp":2000,"iat":1000,"sub":"somebody"}`), false},
		"without an end": {
			encode(`{"iat":1000,"kubernetes.io":{"namespace":"n","serviceaccount":{"name":"a","uid":"u"}}}`), false,
		},
		"that ends before it is": {bound("u1", time.Unix(1000, 0), -time.Hour), false},
		"no JSON":                {"e30.e30x.c2ln", false},
		"no token":               {"hunter2", false},
		"nothing":                {"", false},
	} {
		if _, got := readToken(row.text); got != row.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

func FuzzToken(f *testing.F) {
	f.Add(bound("u1", time.Unix(1000, 0), time.Hour))
	f.Add("e30.e30.e30")
	f.Fuzz(func(t *testing.T, text string) {
		if read, ok := readToken(text); ok && (read.life() <= 0 || read.name == "" || read.namespace == "" ||
			read.uid == "") {
			t.Errorf("got %+v", read)
		}
	})
}

func TestCredentialsThatExpireAreSeenInTheKubeconfig(t *testing.T) {
	const form = "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: https://h}}]\n" +
		"users: [{name: u, user: {%s}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n"
	now := time.Now()
	nearly, nearlyKey := certificate(t, now.Add(time.Hour))
	encode := base64.StdEncoding.EncodeToString
	for name, row := range map[string]struct{ user, want, fails string }{
		"a token for ever": {"token: t", "", ""},
		"a token":          {"token: " + bound("u1", now, month), "", ""},
		"a token that expired": {
			"token: " + bound("u1", now.Add(-2*month), month), "",
			"the token in the kubeconfig expired on ",
		},
		"a certificate that does soon": {"client-certificate-data: " + encode(nearly) + ", client-key-data: " +
			encode(nearlyKey), "the client certificate in the kubeconfig expires on ", ""},
	} {
		t.Run(name, func(t *testing.T) {
			config, err := Config(fmt.Appendf(nil, form, row.user))
			if err != nil {
				t.Fatal(err)
			}
			c, err := CredentialsOf(config, filepath.Join(t.TempDir(), "token-c"), now, slog.New(slog.DiscardHandler))
			if err != nil {
				if row.fails == "" || !strings.Contains(err.Error(), row.fails) {
					t.Errorf("got %v, want %q", err, row.fails)
				}
				return
			}
			if got := strings.Join(c.Sentences(now), "; "); row.fails != "" || !strings.Contains(got, row.want) ||
				(row.want == "") != (got == "") {
				t.Errorf("it says %q, want %q", got, row.want)
			}
			if c.Expire().IsZero() != (name == "a token for ever") {
				t.Errorf("they expire %s", c.Expire())
			}
		})
	}
}

func TestKubeconfigsThatCannotWorkAreRefused(t *testing.T) {
	expired, key := certificate(t, time.Date(2021, 1, 1, 0, 0, 0, 0, time.UTC))
	good, goodKey := certificate(t, time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC))
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	encode := base64.StdEncoding.EncodeToString
	const form = "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q}}]\n" +
		"users: [{name: u, user: {%s}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: %s\n"
	for name, tt := range map[string]struct{ text, want string }{
		"nothing":              {"", "is empty"},
		"not YAML":             {"{token: hunter2", "cannot be parsed"},
		"another kind of YAML": {"clusters: hunter2", "cannot be parsed"},
		"no such context":      {fmt.Sprintf(form, "https://h", "token: t", "z"), `no context "z"`},
		"no server":            {fmt.Sprintf(form, "", "token: t", "x"), "names no server"},
		"a program": {
			fmt.Sprintf(form, "https://h",
				"exec: {command: aws, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never}", "x"),
			"runs no programs",
		},
		"a relative path": {
			fmt.Sprintf(form, "https://h", "client-certificate: a.crt, client-key: /a", "x"),
			"not an absolute path",
		},
		"a file that is missing": {fmt.Sprintf(form, "https://h", "tokenFile: /nowhere/token", "x"), "cannot be read"},
		"an expired certificate": {
			fmt.Sprintf(form, "https://h",
				"client-certificate-data: "+encode(expired)+", client-key-data: "+encode(key), "x"),
			"expired on 2021-01-01T00:00:00Z",
		},
		"a good certificate": {fmt.Sprintf(form, "https://h",
			"client-certificate-data: "+encode(good)+", client-key-data: "+encode(goodKey), "x"), ""},
		"a token":           {fmt.Sprintf(form, "https://h", "token: t", "x"), ""},
		"a token in a file": {fmt.Sprintf(form, "https://h", "tokenFile: "+file, "x"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			config, err := Config([]byte(tt.text))
			if err == nil {
				_, err = CredentialsOf(config, "", time.Now(), slog.New(slog.DiscardHandler))
			}
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) ||
				strings.Contains(err.Error(), "hunter2")):
				t.Errorf("want %q, got %v", tt.want, err)
			}
		})
	}
}

// certificate makes a certificate that is valid since 2020 until some time.
func certificate(t testing.TB, until time.Time) (crt, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: until,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}
