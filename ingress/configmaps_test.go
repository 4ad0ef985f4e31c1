package ingress

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/ingress/input"
)

// headersMap returns a ConfigMap with a header.
func headersMap(namespace, name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string]string{"X-From": value},
	}
}

// TestAConfigMapThatAnIngressNamesIsFollowed changes the ConfigMap while the Ingress stays the same object.
func TestAConfigMapThatAnIngressNamesIsFollowed(t *testing.T) {
	s := ofNginx(t, map[string]string{"custom-headers": "default/headers"}, path("/", "Prefix", "web"))
	_, keys, beyond := s.AllNamed()
	if fmt.Sprint(keys) != "[default/headers]" || len(beyond) > 0 {
		t.Errorf("named %v, beyond %v", keys, beyond)
	}
	large := headersMap("default", "headers", strings.Repeat("x", 300<<10))
	s.Options.Strip(large)
	var c Compiler
	for i, step := range []struct {
		maps []*corev1.ConfigMap
		want string // a line; without one, a Problem
	}{
		{maps: []*corev1.ConfigMap{headersMap("default", "headers", "one")}, want: "http-response set-header X-From 'one'"},
		{maps: []*corev1.ConfigMap{headersMap("default", "headers", "two")}, want: "http-response set-header X-From 'two'"},
		{maps: []*corev1.ConfigMap{headersMap("other", "headers", "two")}},
		{maps: []*corev1.ConfigMap{large}},
		{maps: []*corev1.ConfigMap{headersMap("default", "headers", "one")}, want: "http-response set-header X-From 'one'"},
	} {
		s.ConfigMaps = step.maps
		r := c.Compile([]Snapshot{s})
		told := slices.ContainsFunc(r.Problems, func(p input.Problem) bool {
			return p.Reason == "InvalidAnnotation" && strings.Contains(p.Why, "ConfigMap default/headers")
		})
		lines := linesOf(t, r)
		if !strings.Contains(lines, step.want) || strings.Contains(lines, "X-From") != (step.want != "") ||
			told != (step.want == "") {
			t.Errorf("step %d, want %q:\n%s\n%v", i, step.want, lines, r.Problems)
		}
	}
}

// TestAConfigMapOfAnotherNamespaceIsNotRead names it by each key. A guard then closes the Ingress.
func TestAConfigMapOfAnotherNamespaceIsNotRead(t *testing.T) {
	for _, set := range []map[string]string{
		{"sallyport.dev/response-headers-from": "far/headers"},
		{"sallyport.dev/jwt-public-keys": "far/headers"},
		{"custom-headers": "far/headers"},
	} {
		s := ofNginx(t, set, path("/", "Prefix", "web"))
		s.Options.CrossNamespaceSecrets = true
		s.ConfigMaps = []*corev1.ConfigMap{headersMap("far", "headers", "stolen")}
		if _, keys, _ := s.AllNamed(); len(keys) > 0 {
			t.Errorf("%v names %v", set, keys)
		}
		r := Compile([]Snapshot{s})
		lines := linesOf(t, r)
		_, guard := set["sallyport.dev/jwt-public-keys"]
		if strings.Contains(lines, "stolen") || strings.Contains(lines, "return status 503") != guard {
			t.Errorf("%v:\n%s", set, lines)
		}
		if !strings.Contains(fmt.Sprint(r.Problems), "ConfigMap far/headers is in another namespace") {
			t.Errorf("%v: %v", set, r.Problems)
		}
	}
}
