package picture

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/ingress"
	"sallyport/ingress/input"
)

// large returns a Secret of a size.
func large(namespace, name string, size int) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "u"},
		Data:       map[string][]byte{"x": bytes.Repeat([]byte{1}, size)},
	}
}

func TestANamespaceBeyondItsShareIsLeftOutOfThePicture(t *testing.T) {
	p := New(t.TempDir(), slog.New(slog.DiscardHandler))
	s := demoSnapshot("demo")
	s.Options.Limits.PictureBytes = 1 << 20
	s.Secrets = []*corev1.Secret{
		large("evil", "small", 10), large("evil", "hoard", 1<<20),
		large("other", "fine", 1<<19),
	}
	p.Keep(s, ingress.Result{})
	p.Save()
	got, err := p.Load("demo")
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Snapshot.Secrets) != 1 || got.Snapshot.Secrets[0].Namespace != "other" ||
		len(got.Snapshot.Ingresses) != len(s.Ingresses) {
		t.Errorf("the picture has %d Secrets and %d Ingresses", len(got.Snapshot.Secrets), len(got.Snapshot.Ingresses))
	}
	left := p.LeftOut("demo")
	if len(left) != 1 || left[0].Namespace != "evil" || left[0].Name != "hoard" || left[0].Kind != "Secret" ||
		left[0].UID != "u" || !strings.Contains(left[0].Why, "limits.pictureBytes") {
		t.Errorf("told: %+v", left)
	}
	s.Secrets = s.Secrets[:1]
	p.Keep(s, ingress.Result{})
	p.Save()
	if got, err = p.Load("demo"); err != nil || len(got.Snapshot.Secrets) != 1 ||
		got.Snapshot.Secrets[0].Namespace != "evil" {
		t.Errorf("once it is small again: %v, %v", got.Snapshot.Secrets, err)
	}
	if left := p.LeftOut("demo"); len(left) > 0 {
		t.Errorf("still told: %+v", left)
	}
}

// TestThePictureIsWithoutTheLargestNamespacesIfAllAreTooMuch has more namespaces, each
// within its share, than a picture holds.
func TestThePictureIsWithoutTheLargestNamespacesIfAllAreTooMuch(t *testing.T) {
	s := demoSnapshot("demo")
	s.Options.Limits.PictureBytes = largest / 4
	sizes := map[any]int{}
	for i := range 8 {
		one := large(fmt.Sprintf("evil%d", i), "hoard", 0)
		s.Secrets, sizes[one] = append(s.Secrets, one), largest/8+i
	}
	part, left, err := bound(s, largest, sizes)
	if err != nil {
		t.Fatal(err)
	}
	if len(part.Secrets) != 6 || len(left) != 2 || left[0].Namespace != "evil6" || left[1].Namespace != "evil7" ||
		len(part.Ingresses) != len(s.Ingresses) {
		t.Errorf("%d namespaces are left, and %+v", len(part.Secrets), left)
	}
}

// TestAPictureThatCouldNotBeLoadedReplacesNone saves more than a picture may have, none of
// which belongs to a namespace.
func TestAPictureThatCouldNotBeLoadedReplacesNone(t *testing.T) {
	p := New(t.TempDir(), slog.New(slog.DiscardHandler))
	p.most = 1 << 20
	s := demoSnapshot("demo")
	p.Keep(s, ingress.Result{})
	p.Save()
	for i := range 9 { // one after another, by updates and as a whole
		s.Classes = append(s.Classes, demoSnapshot("demo").Classes...)
		one := *s.Classes[len(s.Classes)-1]
		one.Name, one.Annotations = fmt.Sprintf("hoard%d", i), map[string]string{"x": strings.Repeat("x", p.most/4)}
		s.Classes[len(s.Classes)-1] = &one // belongs to no namespace
		p.Keep(s, ingress.Result{})
		p.Save()
	}
	if p.Fault("demo") == nil || !strings.Contains(p.Fault("demo").Error(), "could not be loaded") {
		t.Errorf("the fault is %v", p.Fault("demo"))
	}
	got, err := p.Load("demo")
	if err != nil || len(got.Snapshot.Ingresses) != len(s.Ingresses) {
		t.Errorf("the old picture: %d Ingresses, %v", len(got.Snapshot.Ingresses), err)
	}
}

func TestThePictureHasOnlyEndpointsThatSomethingServedRefersTo(t *testing.T) {
	p := New(t.TempDir(), slog.New(slog.DiscardHandler))
	s := demoSnapshot("demo")
	want := len(s.Slices)
	s.Slices = append(s.Slices,
		&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
			Namespace: "evil", Name: "hoard",
			Labels: map[string]string{discoveryv1.LabelServiceName: "none"},
		}})
	p.Keep(s, ingress.Compile([]input.Snapshot{s}))
	p.Save()
	got, err := p.Load("demo")
	if err != nil || len(got.Snapshot.Slices) != want || want == 0 {
		t.Errorf("it has %d slices, want %d; %v", len(got.Snapshot.Slices), want, err)
	}
}
