package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sallyport/appliance/status"
	"sallyport/test/faults"
	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// A prepared fault is a fault that somebody who sees the project for the first time understands. The
// page alone shows its cause and remedy, and so does the terminal alone.
type prepared struct {
	name  string // of its files below .build/faults
	fault faults.Fault
	cause []string // words that both show
	todo  []string // words of what to type or to look at, that both show
	// doctor waits until the doctor finds it; nil if the terminal's words are enough
	doctor func(r *testbed)
}

// tags matches the tags of a page, and what no reader sees.
var tags = regexp.MustCompile(`(?s)<(script|style|title|desc)[ >].*?</(script|style|title|desc)>|<[^>]*>`)

// page returns the text of the first page, as a reader sees it.
func (r *testbed) page() (string, error) {
	out, err := r.Exec(r.t.Context(), world.Appliance, "curl", "-sS", "http://127.0.0.1:9090/")
	return strings.Join(strings.Fields(html.UnescapeString(tags.ReplaceAllString(out, " "))), " "), err
}

// terminal returns what the commands show that somebody types first. A failed check ends the doctor
// with an error.
func (r *testbed) terminal() string {
	var all strings.Builder
	for _, command := range []string{"doctor", "status"} {
		out, _ := r.Command(r.t.Context(), world.Appliance, r.file("sallyport"), command, "--config",
			r.file("sallyport.yaml")).CombinedOutput()
		fmt.Fprintf(&all, "$ sallyport %s\n%s\n", command, out)
	}
	return all.String()
}

// missing returns an error unless a text has all words.
func missing(where, text string, words ...string) error {
	plain := strings.Join(strings.Fields(text), " ")
	for _, w := range words {
		if !strings.Contains(plain, w) {
			return fmt.Errorf("%s does not show %q:\n%s", where, w, text)
		}
	}
	return nil
}

// screens is whether tests keep what people see.
var screens = flag.Bool("screens", false, "keep the page and the terminal of each fault in .build/faults")

// keep keeps the first screen of the page, and what the terminal shows, as artefacts.
func (r *testbed) keep(name, terminal string) {
	r.t.Helper()
	if !*screens {
		return
	}
	dir, err := filepath.Abs("../../.build/faults")
	r.must(err)
	r.must(os.MkdirAll(dir, 0o755))
	r.must(os.WriteFile(filepath.Join(dir, name+".txt"), []byte(terminal), 0o644))
	r.exec("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
		"--user-data-dir="+r.t.TempDir(),
		"--window-size=1280,800", "--screenshot="+filepath.Join(dir, name+".png"), "http://127.0.0.1:9090/")
}

func TestANewcomerFindsEachCause(t *testing.T) {
	beside(t, long)
	a, b := newMembers(t, world.Options{Name: "newcomer", Workers: 2, Router: world.RouterBIRD}, "")
	r, other := a.testbed, b.testbed
	r.apply(application("app", 4) + ingress("app", "", "test.local / Prefix app"))
	r.start()
	other.start()
	manifests, err := r.Manifests(t.Context(), "--address", secondPeering)
	r.must(err)
	// well waits until nothing is wrong any more.
	well := func(r *testbed) {
		r.t.Helper()
		r.ready()
		r.eventually("nothing is wrong", func() error {
			s, err := r.status()
			switch {
			case err != nil:
				return err
			case len(s.Warnings) > 0:
				return errors.New(strings.Join(s.Warnings, "; "))
			case open(s, "default_svc_app_web") != 4:
				return fmt.Errorf("%d servers are open", open(s, "default_svc_app_web"))
			case s.Refused.Total > 0:
				return fmt.Errorf("%d offers are refused", s.Refused.Total)
			}
			text, err := r.page()
			if err == nil {
				err = missing("the page", text, "is ready", "4 of 4 servers open")
			}
			return err
		})
		r.healthy(r.file("sallyport.yaml"))
	}
	well(r)
	r.keep("none", r.terminal())

	file, second := r.file("sallyport.yaml"), "member "+world.ApplianceHost(2)
	const peer, filter = "bgppeer/sallyport-192-168-50-21", "bgpfilters.crd.projectcalico.org/sallyport"
	// kubectl returns a step of a fault.
	kubectl := func(args ...string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := r.Kubectl(ctx, args...)
			return err
		}
	}
	applied := func(ctx context.Context) error { return r.Apply(ctx, manifests) }
	exported := func(is bool) func(context.Context) error {
		pool := strings.Fields(r.kubectl("get", "ippools.crd.projectcalico.org", "-o", "name"))[0]
		return kubectl("patch", pool, "--type=merge", "-p", fmt.Sprintf(`{"spec":{"disableBGPExport":%t}}`, !is))
	}
	for _, f := range []prepared{
		{
			name:  "no-bgppeer",
			fault: faults.Fault{Make: kubectl("delete", peer), Mend: applied},
			cause: []string{"worker1", "192.168.50.23", "peer deconfigured"},
			todo:  []string{"sallyport manifests"},
		},
		{
			name: "bgp-filtered",
			fault: faults.Filter(r.Rig, "worker1", "input ip saddr 192.168.50.21 tcp dport 179 drop",
				"input ip saddr 192.168.50.21 tcp sport 179 drop"),
			cause: []string{"worker1", "192.168.50.23", "nothing was heard for the hold time"},
			todo:  []string{"firewall"},
		},
		{
			name:  "network-policy",
			fault: faults.Filter(r.Rig, "worker1", "forward ip saddr 192.168.50.21 tcp dport 8080 drop"),
			cause: []string{"L4TOUT"},
			todo:  []string{"NetworkPolicy", "kubectl get networkpolicies"},
		},
		{
			name:  "pool-not-exported",
			fault: faults.Fault{Make: exported(false), Mend: exported(true)},
			cause: []string{"disableBGPExport"},
			todo:  []string{"kubectl patch ippools"},
		},
		{
			name: "bgpfilter-rejects",
			fault: faults.Fault{
				Make: kubectl("patch", filter, "--type=merge", "-p", `{"spec":{"exportV4":[{"action":"Reject"}]}}`),
				Mend: func(ctx context.Context) error {
					return errors.Join(kubectl("delete", filter)(ctx), applied(ctx))
				},
			},
			cause: []string{"announce", "none of its", "BGPFilter"},
			todo:  []string{"bgpfilters.crd.projectcalico.org"},
		},
		{
			name:  "node-dead",
			fault: faults.Power(r.Rig, "worker2"),
			cause: []string{"worker2", "192.168.50.24", "nothing was heard for the hold time"},
			todo:  []string{"look whether the node is up"},
		},
		{
			name:  "api-server-lost",
			fault: r.api(),
			cause: []string{"API server", "192.168.50.22", "cannot be reached"},
			todo:  []string{"a firewall drops port 6443"},
		},
		{
			name:  "nodes-unreachable",
			fault: faults.Cut(r.Rig, world.Appliance, world.OnlyBGP, world.Master, "worker1", "worker2"),
			cause: []string{"every BGP session was lost at once"},
			todo:  []string{"firewall"},
			doctor: func(r *testbed) {
				r.finds(file, status.Doubt, "group", "this appliance is spare", "sallyport status addresses")
			},
		},
		{
			name:  "router-lost",
			fault: faults.Cut(r.Rig, world.Appliance, world.AllTraffic, world.Router),
			cause: []string{rig.ServiceAddresses(r.Options())[0], "the router 192.168.50.2"},
			todo:  []string{"BFD"},
			doctor: func(r *testbed) {
				r.finds(file, status.Doubt, "appliance", "there has been no BGP session with the router 192.168.50.2",
					"sallyport status")
			},
		},
		{
			name: "member-silent",
			fault: faults.Fault{
				Make: func(context.Context) error { return other.Stop(syscall.SIGKILL) }, Mend: other.Start,
			},
			cause: []string{world.ApplianceHost(2), "silent"},
			todo:  []string{"7477"},
			doctor: func(r *testbed) {
				r.finds(file, status.Doubt, second, "silent", "look whether it runs, and whether UDP port", "7477")
			},
		},
	} {
		r.sub(f.name, func(_ *testing.T, r *testbed) {
			mend := r.without(f.fault)
			terminal := ""
			defer func() {
				r.keep(f.name, terminal)
				mend()
				well(r)
			}()
			words := slices.Concat(f.cause, f.todo)
			r.eventually("the page shows cause and remedy", func() error {
				text, err := r.page()
				if err == nil {
					err = missing("the page", text, words...)
				}
				return err
			})
			r.eventually("the terminal shows cause and remedy", func() error {
				terminal = r.terminal()
				return missing("the terminal", terminal, words...)
			})
			if f.doctor != nil {
				f.doctor(r)
			}
		})
	}
}
