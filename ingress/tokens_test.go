package ingress

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// tokenSecret returns a Secret with a shared key.
func tokenSecret(namespace, name, secret string) *corev1.Secret {
	s := &corev1.Secret{Data: map[string][]byte{"hs256": []byte(strings.Repeat(secret, 10))}}
	s.Namespace, s.Name = namespace, name
	return s
}

// TestTokensAreVerifiedByTheKeysOfTheirNamespace compiles two namespaces with a Secret of the same name, and a
// third one that names the Secret of another.
func TestTokensAreVerifiedByTheKeysOfTheirNamespace(t *testing.T) {
	in := func(namespace, manifest string) string {
		return strings.ReplaceAll(manifest, "namespace: default", "namespace: "+namespace)
	}
	var all string
	for i, namespace := range []string{"blue", "green", "thief", "late"} {
		all += in(namespace, app("web")+ingress("i", 2020+i, "rules: ["+rule(namespace+".test", path("/", "Prefix", "web"))+"]"))
	}
	s := snapshot(t, Unnamed, all)
	s.Secrets = []*corev1.Secret{tokenSecret("blue", "tokens", "blue-key"), tokenSecret("green", "tokens", "green-key")}
	for _, ing := range s.Ingresses {
		ing.Annotations = map[string]string{
			"sallyport.dev/jwt-keys": "tokens", "sallyport.dev/jwt-audience": "web, app",
			"sallyport.dev/jwt-claims": "role admin", "sallyport.dev/jwt-headers": "X-User sub",
		}
		if ing.Namespace == "thief" {
			ing.Annotations["sallyport.dev/jwt-keys"] = "blue/tokens"
		}
	}
	var c Compiler
	r := c.Compile([]Snapshot{s})
	if err := r.Config.Validate(); err != nil {
		t.Error(err)
	}
	var files []string
	for _, e := range r.Config.Extras {
		files = append(files, e.Name)
	}
	if got := fmt.Sprint(files); got != "[blue_tokens_0.jwt.map green_tokens_0.jwt.map]" {
		t.Errorf("the files are %s", got)
	}
	w := write(&r.Config)
	for namespace, others := range map[string][]string{
		"blue": {"green"}, "green": {"blue"}, "thief": {"blue", "green", "jwt_verify"}, "late": {"blue", "green", "jwt_verify"},
	} {
		backend := w.sections["backend "+namespace+"_ing_i_svc_web_http"]
		if len(others) == 1 && !strings.Contains(backend, "extra/"+namespace+"_tokens_0.jwt.map") {
			t.Errorf("the keys of %s are not those of its own Secret: %s", namespace, backend)
		}
		for _, other := range others {
			if strings.Contains(backend, other) {
				t.Errorf("the backend of %s has %s: %s", namespace, other, backend)
			}
		}
		if len(others) > 1 && !strings.Contains(backend, "return status 503") {
			t.Errorf("the backend of %s is open: %s", namespace, backend)
		}
	}
	told := map[string]bool{}
	for _, p := range r.Problems {
		told[p.Namespace+" "+p.Reason] = true
		if strings.Contains(p.Why, "key-") {
			t.Errorf("a problem tells a secret: %s", p.Why)
		}
	}
	if !told["thief InvalidAnnotation"] || !told["late InvalidAnnotation"] || len(told) != 2 {
		t.Errorf("told was %v, want the two Ingresses whose keys cannot be used", told)
	}
}
