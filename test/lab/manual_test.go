package main

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"sallyport/test/manual"
)

// TestEveryCommandOfTheLabRuns types what the pages let a reader type into the lab's program, in their
// order. Before a command that needs a lab and does not bring it up, there is one with two appliances.
func TestEveryCommandOfTheLabRuns(t *testing.T) {
	l, dir := build(t), t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", dir,
		"sallyport/test/app").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	all, err := manual.All("../..")
	if err != nil {
		t.Fatal(err)
	}
	program := regexp.MustCompile(`^(lab|\.build/lab|go run \./test/lab) `)
	filled := strings.NewReplacer(" --name mine", "", "/path/to/program", dir+"/app", " DIR", " "+dir+"/backup",
		"/tmp/kubeconfig", dir+"/kubeconfig")
	lab := l.program + " --name " + l.name + " "
	// presumed maps the beginning of what is typed to what the page tells the reader to do before it.
	presumed := map[string]string{
		"exec client -- curl": lab + "exec appliance -- " + dir + "/app -listen 192.168.50.21:80 >" + dir +
			"/log 2>&1 &\n" + lab + "exec client -- curl -s -o /dev/null --retry 60 --retry-delay 1 " +
			"--retry-connrefused http://192.168.50.21/",
		"kubeconfig --serviceaccount": lab + "kubectl -- -n kube-system create serviceaccount sallyport",
	}
	for _, c := range all {
		if o, _ := manual.Elsewhere(c); o.By != manual.Lab {
			continue
		}
		t.Run(c.String(), func(t *testing.T) {
			typed := filled.Replace(program.ReplaceAllString(c.Text, ""))
			script := lab + "status >/dev/null 2>&1 || " + lab + "up --appliances 2\n"
			if strings.HasPrefix(typed, "up ") {
				script = lab + "down\n"
			}
			for beginning, before := range presumed {
				if strings.HasPrefix(typed, beginning) {
					script += before + "\n"
				}
			}
			cmd := exec.CommandContext(t.Context(), "sh", "-ec", script+lab+typed)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
