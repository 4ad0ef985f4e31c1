package ingress

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/ingress/input"
)

func TestCertificatesComeInTheOrderInWhichTheyExpire(t *testing.T) {
	end := func(day int) time.Time { return time.Date(2031, 5, day, 0, 0, 0, 0, time.UTC) }
	crt := func(day int) []byte {
		text, _ := certificate{names: []string{"a.test"}, until: end(day)}.make(t)
		return text
	}
	secret := func(name, key string, value []byte) *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name},
			Data:       map[string][]byte{key: value},
		}
	}
	got := Snapshot{Objects: Objects{Secrets: []*corev1.Secret{
		secret("late", "tls.crt", crt(9)),
		secret("users", "ann", []byte("$5$")),
		secret("garbage", "tls.crt", []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")),
		secret("authority", "ca.crt", crt(5)),
		secret("chain", "tls.crt", append(crt(8), crt(3)...)),
	}}}.Certificates()
	want := []input.Certificate{
		{Namespace: "n", Secret: "chain", Expires: end(3)},
		{Namespace: "n", Secret: "authority", Expires: end(5)},
		{Namespace: "n", Secret: "late", Expires: end(9)},
	}
	if len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for i, w := range want {
		if g := got[i]; g.Namespace != w.Namespace || g.Secret != w.Secret || !g.Expires.Equal(w.Expires) ||
			len(g.Names) != 1 || g.Names[0] != "a.test" {
			t.Errorf("got %v, want %s until %s", g, w.Secret, w.Expires)
		}
	}
}
