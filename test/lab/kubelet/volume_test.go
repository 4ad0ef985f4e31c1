package kubelet

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// volumeOf returns a volume with the items of a Secret.
func volumeOf(secret string, items ...corev1.KeyToPath) corev1.Volume {
	return corev1.Volume{Name: "files", VolumeSource: corev1.VolumeSource{
		Secret: &corev1.SecretVolumeSource{SecretName: secret, Items: items},
	}}
}

func TestAContainerFindsItsVolumesAndLosesThemWithThePod(t *testing.T) {
	l := startLab(t)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "pair", Namespace: "default"},
		Data:       map[string][]byte{"tls.crt": []byte("a certificate"), "tls.key": []byte("a key")},
	}
	if _, err := l.client.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	l.create(t, "web", "web", func(spec *corev1.PodSpec) {
		spec.Volumes = []corev1.Volume{volumeOf("pair", corev1.KeyToPath{Key: "tls.crt", Path: "below/crt"})}
		c := &spec.Containers[0]
		c.VolumeMounts = []corev1.VolumeMount{{Name: "files", MountPath: "/etc/pair/"}}
		c.Args = append(c.Args, "/etc/pair/below/crt")
	})
	until(t, "the pod is ready", func() bool { return ready(l.read(t, "web")) })
	var file string
	until(t, "the program prints where its file is", func() bool {
		said, err := fetch(t, l.node, "https://192.168.50.23:10250/containerLogs/default/web/c")
		_, file, _ = strings.Cut(strings.TrimSuffix(strings.TrimSpace(said), "]"), "serving [:8080 ")
		return err == nil && file != ""
	})
	text, err := os.ReadFile(file)
	if err != nil || string(text) != "a certificate" {
		t.Errorf("%s: got %q, %v", file, text, err)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(file), "tls.key")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a key that is no item: got %v, want no file", err)
	}
	l.remove(t, "web")
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the pod's end: got %v, want no file", err)
	}
}

func TestAWordThatBeginsWithAMountIsMoved(t *testing.T) {
	all := []mount{{"/etc/pair/below", "/v/below"}, {"/etc/pair", "/v/pair"}}
	for word, want := range map[string]string{
		"/etc/pair/crt":     "/v/pair/crt",
		"/etc/pair":         "/v/pair",
		"/etc/pair/below/x": "/v/below/x",
		"/etc/pairs":        "/etc/pairs",
		"-f=/etc/pair/crt":  "-f=/etc/pair/crt",
	} {
		if got := moved(word, all); got != want {
			t.Errorf("%s: want %s, got %s", word, want, got)
		}
	}
}

func TestAVolumeNeedsItsObjectUnlessItIsOptional(t *testing.T) {
	yes := true
	objects := func(_, name string) (map[string]string, bool, error) {
		return map[string]string{"a": "1"}, name == "there", nil
	}
	for name, row := range map[string]struct {
		volume corev1.Volume
		want   string // part of the error; empty if there must be no error
	}{
		"a Secret":              {volumeOf("there"), ""},
		"no Secret":             {volumeOf("missing"), `Secret "missing" not found`},
		"a key that is missing": {volumeOf("there", corev1.KeyToPath{Key: "b", Path: "b"}), `key "b" not found`},
		"a path that leaves the volume": {
			volumeOf("there", corev1.KeyToPath{Key: "a", Path: "../../b"}), "escapes",
		},
		"optional": {corev1.Volume{Name: "files", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "missing"}, Optional: &yes,
			},
		}}, ""},
		"of another kind": {corev1.Volume{Name: "files"}, ""},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{row.volume}}}
		c := &corev1.Container{VolumeMounts: []corev1.VolumeMount{{Name: "files", MountPath: "/x"}}}
		_, err := mounts(pod, c, t.TempDir(), objects)
		if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: want %q, got %v", name, row.want, err)
		}
	}
}
