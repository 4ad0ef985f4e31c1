package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestVariablesExpandAsKubernetesExpandsThem(t *testing.T) {
	vars := map[string]string{"A": "1", "B": "$(A)"}
	for in, want := range map[string]string{
		"":              "",
		"x$(A)y":        "x1y",
		"$(B)":          "$(A)",
		"$$(A)":         "$(A)",
		"$$$(A)":        "$1",
		"$(NONE)":       "$(NONE)",
		"$(A":           "$(A",
		"$A $":          "$A $",
		"--x=$(A)$(A)!": "--x=11!",
	} {
		if got := expand(in, vars); got != want {
			t.Errorf("%q: want %q, got %q", in, want, got)
		}
	}
}

func TestTheEnvironmentIsBuiltInOrder(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "web-1", Namespace: "shop",
		Labels: map[string]string{"app": "web"},
	}}
	pod.Spec.NodeName, pod.Status.PodIP = "worker1", "172.16.171.65"
	ref := func(path string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
	}
	yes := true
	c := &corev1.Container{
		EnvFrom: []corev1.EnvFromSource{
			{Prefix: "C_", ConfigMapRef: &corev1.ConfigMapEnvSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "conf"},
			}},
		},
		Env: []corev1.EnvVar{
			{Name: "POD", ValueFrom: ref("metadata.name")},
			{Name: "NS", ValueFrom: ref("metadata.namespace")},
			{Name: "IP", ValueFrom: ref("status.podIP")},
			{Name: "NODE", ValueFrom: ref("spec.nodeName")},
			{Name: "APP", ValueFrom: ref("metadata.labels['app']")},
			{Name: "URL", Value: "http://$(IP):$(C_port)/$(LATER)"},
			{Name: "LATER", Value: "x"},
			{Name: "OPT", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
				Key:      "k",
				Optional: &yes,
			}}},
		},
	}
	objects := func(kind, _ string) (map[string]string, bool, error) {
		if kind == "ConfigMap" {
			return map[string]string{"port": "8080"}, true, nil
		}
		return nil, false, nil
	}
	got, err := environ(pod, c, objects)
	if err != nil {
		t.Fatal(err)
	}
	delete(got, "PATH")
	want := []string{
		"APP=web", "C_port=8080", "HOSTNAME=web-1", "IP=172.16.171.65", "LATER=x",
		"NODE=worker1", "NS=shop", "POD=web-1", "URL=http://172.16.171.65:8080/$(LATER)",
	}
	if got := pairs(got); !slices.Equal(got, want) {
		t.Errorf("want %q\n got %q", want, got)
	}
	c.Env = []corev1.EnvVar{
		{Name: "X", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{Key: "k"}}},
	}
	if _, err := environ(pod, c, objects); err == nil {
		t.Error("a secret that is not there must be an error")
	}
}

func TestACommandReplacesTheProgramOnlyIfItIsOne(t *testing.T) {
	exists := func(path string) bool { return path == "/bin/sh" }
	vars := map[string]string{"P": "80"}
	for _, row := range []struct{ command, args, want []string }{
		{nil, nil, []string{"/app"}},
		{nil, []string{"-p", "$(P)"}, []string{"/app", "-p", "80"}},
		{[]string{"/bin/sh", "-c"}, []string{"true"}, []string{"/bin/sh", "-c", "true"}},
		{[]string{"/http-echo", "-p=$(P)"}, nil, []string{"/app", "-p=80"}},
		{[]string{"serve"}, []string{"x"}, []string{"/app", "x"}},
	} {
		got := command("/app", &corev1.Container{Command: row.command, Args: row.args}, vars, exists)
		if !slices.Equal(got, row.want) {
			t.Errorf("%q %q: want %q, got %q", row.command, row.args, row.want, got)
		}
	}
}

func TestAnImageIsFoundByItsMostExactName(t *testing.T) {
	file := filepath.Join(t.TempDir(), "images.json")
	a := &agent{Config: Config{ImagesFile: file, Images: map[string]string{
		"echo": "/any", "echo:2": "/two", "reg:5000/x:latest": "/x", "web": "/old",
	}}}
	check := func(image, want string) {
		t.Helper()
		if got, err := a.program(image); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: want %q, got %q, %v", image, want, got, err)
		}
	}
	check("echo", "/any")
	check("echo:1", "/any")
	check("echo:2", "/two")
	check("echo:2@sha256:00", "/two")
	check("reg:5000/x", "/x")
	check("reg:5000/y", "")
	check("web", "/old")
	text, _ := json.Marshal(map[string]string{"web": "/new"})
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	check("web", "/new")
	check("echo:2", "/two")
}

func TestAProbeTurnsAfterItsThresholdsAndNotBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type turn struct {
			good bool
			at   time.Duration
		}
		results := []bool{false, true, true, false, true, false, false, false, true, true} // one every 3 s from 5 s on
		ctx, cancel := context.WithCancel(t.Context())
		begun, n := time.Now(), 0
		var got []turn
		watch(ctx, &corev1.Probe{InitialDelaySeconds: 5, PeriodSeconds: 3, SuccessThreshold: 2, FailureThreshold: 3},
			false, func(context.Context) error {
				if n == len(results) {
					cancel()
					return nil
				}
				n++
				if !results[n-1] {
					return errors.New("no")
				}
				return nil
			}, func(good bool, _ error) { got = append(got, turn{good, time.Since(begun)}) })
		want := []turn{{true, 11 * time.Second}, {false, 26 * time.Second}, {true, 32 * time.Second}}
		if !slices.Equal(got, want) {
			t.Errorf("want %v, got %v", want, got)
		}
	})
}

func TestAProbeThatHangsHasFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		begun := time.Now()
		watch(ctx, &corev1.Probe{PeriodSeconds: 10, TimeoutSeconds: 4, FailureThreshold: 1}, true,
			func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			}, func(good bool, why error) {
				if good || !errors.Is(why, context.DeadlineExceeded) || time.Since(begun) != 4*time.Second {
					t.Errorf("got %v, %v after %v", good, why, time.Since(begun))
				}
				cancel()
			})
	})
}

func TestThePhaseOfAPod(t *testing.T) {
	running := corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	waiting := corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}}
	ended := func(code int32) corev1.ContainerStatus {
		return corev1.ContainerStatus{
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}},
		}
	}
	backOff := waiting
	backOff.LastTerminationState = ended(1).State
	for name, row := range map[string]struct {
		policy  corev1.RestartPolicy
		leaving bool
		mains   []corev1.ContainerStatus
		want    corev1.PodPhase
	}{
		"one not begun": {
			corev1.RestartPolicyAlways, false,
			[]corev1.ContainerStatus{running, waiting},
			corev1.PodPending,
		},
		"running": {
			corev1.RestartPolicyAlways, false,
			[]corev1.ContainerStatus{running, ended(1)},
			corev1.PodRunning,
		},
		"between two runs": {
			corev1.RestartPolicyAlways, false,
			[]corev1.ContainerStatus{backOff},
			corev1.PodRunning,
		},
		"ended, to be restarted": {
			corev1.RestartPolicyAlways, false,
			[]corev1.ContainerStatus{ended(0)},
			corev1.PodRunning,
		},
		"job done": {
			corev1.RestartPolicyNever, false,
			[]corev1.ContainerStatus{ended(0)},
			corev1.PodSucceeded,
		},
		"job failed": {
			corev1.RestartPolicyNever, false,
			[]corev1.ContainerStatus{ended(1)},
			corev1.PodFailed,
		},
		"job to be tried again": {
			corev1.RestartPolicyOnFailure, false,
			[]corev1.ContainerStatus{ended(1)},
			corev1.PodRunning,
		},
		"leaving": {
			corev1.RestartPolicyAlways, true,
			[]corev1.ContainerStatus{running, ended(0)},
			corev1.PodRunning,
		},
		"left": {
			corev1.RestartPolicyAlways, true,
			[]corev1.ContainerStatus{ended(0)},
			corev1.PodSucceeded,
		},
		"left by SIGKILL": {
			corev1.RestartPolicyAlways, true,
			[]corev1.ContainerStatus{ended(137)},
			corev1.PodFailed,
		},
		"left between two runs": {
			corev1.RestartPolicyAlways, true,
			[]corev1.ContainerStatus{backOff},
			corev1.PodFailed,
		},
		"left before it could run": {
			corev1.RestartPolicyAlways, true,
			[]corev1.ContainerStatus{waiting},
			corev1.PodFailed,
		},
	} {
		if got := phase(row.policy, row.leaving, nil, row.mains); got != row.want {
			t.Errorf("%s: want %s, got %s", name, row.want, got)
		}
	}
}
