package e2e

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// squat listens at an address of the appliance's host until leave is called.
func (r *testbed) squat(address string) (leave func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	cmd := r.Command(ctx, world.Appliance, r.file("app"), "-listen", address)
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.eventually(address+" is taken", func() error {
		out, err := r.Exec(ctx, world.Appliance, "ss", "-Hltn", "src", address)
		if err == nil && out == "" {
			err = errors.New("nobody listens")
		}
		return err
	})
	return func() {
		cancel()
		if err := cmd.Wait(); err == nil {
			r.t.Error("the squatter left by itself")
		}
	}
}

// says waits until one warning, or one reason for not being ready, contains all words.
func (r *testbed) says(words ...string) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("the status says %q", words), func() error {
		s, err := r.status()
		if err != nil {
			return err
		}
		said := slices.Concat(s.Warnings, s.NotReady)
		for _, sentence := range said {
			missing := false
			for _, w := range words {
				missing = missing || !strings.Contains(sentence, w)
			}
			if !missing {
				return nil
			}
		}
		return fmt.Errorf("it says %q", said)
	})
}

func TestEachTroubleIsSaidInASentenceAndMendsByItself(t *testing.T) {
	beside(t, short)
	r := newTestbed(t, world.Options{Name: "trouble", Workers: 1},
		settings{clusters: []rig.Cluster{{BGP: []string{"mode: passive"}}}})
	r.apply(application("app", 1) + ingress("app", "", "test.local / Prefix app"))

	r.sub("what no waiting mends ends the program with a sentence", func(t *testing.T, r *testbed) {
		for name, c := range map[string]struct {
			before []string
			change [2]string
			words  string
		}{
			"no right to change routes": {
				before: []string{"setpriv", "--bounding-set=-net_admin"},
				words:  "CAP_NET_ADMIN",
			},
			"no HAProxy":     {change: [2]string{"binary: /", "binary: /nonexistent/"}, words: "/nonexistent/"},
			"an unknown key": {change: [2]string{"identity:", "identiti:"}, words: "identity"},
		} {
			r.sub(name, func(t *testing.T, r *testbed) {
				r.write("other.yaml", strings.Replace(r.read("sallyport.yaml"), c.change[0], c.change[1], 1))
				args := slices.Concat(c.before, []string{r.file("sallyport"), "run", "--config", r.file("other.yaml")})
				out, err := r.Command(t.Context(), world.Appliance, args...).CombinedOutput()
				if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || !strings.Contains(string(out), c.words) {
					t.Errorf("ended with %v, saying %s; want a failure and a word of %q", err, out, c.words)
				}
			})
		}
	})

	good := r.read("kubeconfig")
	r.write("kubeconfig", "nonsense")
	leaveBGP, leaveHTTP := r.squat("192.168.50.21:179"), r.squat("192.168.50.21:80")
	r.start()
	r.sub("bad credentials, a taken BGP port", func(_ *testing.T, r *testbed) {
		r.says("kubeconfig")
		r.says("bgp: cannot listen", "179")
		r.write("kubeconfig", good)
		leaveBGP()
	})
	r.sub("a taken HTTP port", func(_ *testing.T, r *testbed) {
		r.says(":80 is in use by app")
		leaveHTTP()
		r.ready()
		r.answeredBy("http://test.local/", 1)
	})
	r.sub("nodes that connect, and nothing shows that it is they", func(_ *testing.T, r *testbed) {
		r.says("any pod can do so in the place of its node", "bgp.mode: passive")
	})
	r.sub("a node without a BGP address", func(_ *testing.T, r *testbed) {
		r.kubectl("annotate", "node", "worker1", "projectcalico.org/IPv4Address-")
		r.says("worker1", "projectcalico.org/IPv4Address")
		r.kubectl("annotate", "node", "worker1", "projectcalico.org/IPv4Address=192.168.50.23/24")
		r.answeredBy("http://test.local/", 1)
	})
}
