package appliance

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestEachAlertAsksForMetricsThatExist reads the names of the metrics where they are made.
func TestEachAlertAsksForMetricsThatExist(t *testing.T) {
	text, err := os.ReadFile("alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.UnmarshalStrict(text, &file); err != nil || len(file.Groups) != 1 {
		t.Fatalf("%v: %+v", err, file)
	}
	source, err := os.ReadFile("metrics.go")
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string][]string{} // by metric
	for _, m := range regexp.MustCompile(`= desc\("([a-z_]+)", "[^"]*"([^)]*)\)`).FindAllStringSubmatch(string(source), -1) {
		labels["sallyport_"+m[1]] = regexp.MustCompile(`[a-z]+`).FindAllString(m[2], -1)
	}
	if len(labels) < 20 {
		t.Fatalf("only %d metrics are known", len(labels))
	}
	for _, r := range file.Groups[0].Rules {
		names := regexp.MustCompile(`sallyport_[a-z_]+`).FindAllString(r.Expr, -1)
		if len(names) == 0 || r.Labels["severity"] == "" || r.Annotations["summary"] == "" || !strings.Contains(r.Annotations["description"], "sallyport ") {
			t.Errorf("%s is not complete: %+v", r.Alert, r)
		}
		for _, name := range names {
			known, is := labels[name]
			if !is {
				t.Errorf("%s asks for %s, which does not exist", r.Alert, name)
			}
			for _, l := range regexp.MustCompile(`\$labels\.([a-z]+)`).FindAllStringSubmatch(r.Annotations["summary"], -1) {
				if l[1] != "instance" && !slices.Contains(known, l[1]) {
					t.Errorf("%s names the label %s, which %s does not have", r.Alert, l[1], name)
				}
			}
		}
	}
}
