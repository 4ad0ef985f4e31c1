package e2e

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"sallyport/test/lab/world"
)

// Follows haproxy/README.md: the appliance writes the first configuration and names the command, which
// starts HAProxy; then the appliance drives it.
func TestAnExternalHAProxyServesAtTheFirstTry(t *testing.T) {
	beside(t, short)
	r := newTestbed(t, world.Options{Name: "external", Workers: 1}, settings{})
	r.apply(application("app", 2) + ingress("app", "", "test.local / Prefix app"))
	r.write("sallyport.yaml",
		strings.Replace(r.read("sallyport.yaml"), "haproxy: {",
			"haproxy: {mode: external, masterSocket: "+r.file("master.sock")+", ", 1))

	out, err := r.Command(t.Context(), world.Appliance, r.file("sallyport"), "run", "--config",
		r.file("sallyport.yaml")).CombinedOutput()
	said := regexp.MustCompile(`start HAProxy with "haproxy (-W -S \S+ -f \S+)"`).FindStringSubmatch(string(out))
	if err == nil || said == nil {
		t.Fatalf("without HAProxy: %v, %s; want a failure and the command", err, out)
	}
	_, stop, err := r.Beside(t.Context(), world.Appliance, append([]string{"haproxy"}, strings.Fields(said[1])...)...)
	r.must(err)
	defer stop()
	r.eventually("HAProxy has its master socket", func() error {
		_, err := os.Stat(r.file("master.sock"))
		return err
	})
	r.start()
	r.ready()
	r.answeredBy("http://test.local/", 2)
	if s := r.mustStatus(); s.HAProxy.Mode != "external" || s.HAProxy.Starts != 0 {
		t.Errorf("HAProxy %+v, want one that somebody else started", s.HAProxy)
	}
	r.kubectl("scale", "deployment", "app", "--replicas", "4")
	r.answeredBy("http://test.local/", 4)
}
