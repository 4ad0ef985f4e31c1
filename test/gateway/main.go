// Command gateway runs the official conformance suite of Gateway API against the appliance, in a lab.
// It writes a line on each test, and compares the results with the file expected.txt.
//
//	go run ./test/gateway                            the whole suite
//	go run ./test/gateway -run HTTPRouteWeight       one test, whether its features are claimed or not
//	go run ./test/gateway -run 'Gateway.*|HTTP.*'    the claimed tests whose names match
//	go run ./test/gateway -group                     the whole suite, against a group of two
//	go run ./test/gateway -all                       the whole suite, with every HAProxy there is
//	go run ./test/gateway -ends                      the whole suite, with the first and the last of these
//	go run ./test/gateway -experimental              the whole suite, with the CRDs of the experimental channel
//	go run ./test/gateway -keep                      a lab that stays up, for further runs
//	go run ./test/gateway -version v1.2.3            the whole suite, and a report of it
//
// While a lab is kept, a run builds the appliance anew, starts it in the kept lab, and leaves the lab
// as it is.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"

	"sallyport/test/lab/debian"
	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// out is the folder for what a run leaves: the output of each test, and the report.
const out = ".build/gateway"

// allProfiles are the profiles that the appliance is held to, separated by commas.
const allProfiles = "GATEWAY-HTTP,GATEWAY-GRPC,GATEWAY-TLS,GATEWAY-TCP"

func main() { rig.Main("gateway", run) }

func run(ctx context.Context) error {
	var o order
	flag.StringVar(&o.Run, "run", "", "run the test of this `name`, or the tests that match this regular expression")
	flag.StringVar(&o.Profiles, "profiles", allProfiles, "hold the appliance to these `profiles`")
	flag.StringVar(&o.Version, "version", "", "write a report in which the appliance has this `version`, as v1.2.3")
	flag.StringVar(&o.Report, "report", out, "write the report into this `folder`")
	flag.StringVar(&o.URL, "url", unpublished, "name this `page` of the project in the report")
	flag.StringVar(&o.Contact, "contact", unpublished, "name this `address` of the maintainers in the report")
	group := flag.Bool("group", false, "hold a group of two appliances behind a router to it, instead of one appliance")
	all := flag.Bool("all", false, "with every HAProxy there is, one after another")
	ends := flag.Bool("ends", false, "with the HAProxy in PATH, and the one of the newest Debian there is")
	experimental := flag.Bool("experimental", false, "with the CRDs of the experimental channel")
	keep := flag.Bool("keep", false, "leave the lab up for further runs, until this program is interrupted")
	flag.Parse()
	if _, err := regexp.Compile(o.Run); err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	where := alone
	if *group {
		where = grouped
	}
	where.options.GatewayAPI = world.Standard
	if *experimental {
		where.options.GatewayAPI = world.Experimental
	}
	var err error
	if o.Out, err = filepath.Abs(out); err != nil {
		return err
	}
	if o.Report, err = filepath.Abs(o.Report); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(o.Out), os.MkdirAll(o.Report, 0o755)); err != nil {
		return err
	}
	switch {
	case *keep:
		return in(ctx, where, func(s *session) error { return s.wait(ctx) })
	case *all, *ends:
		return o.withEach(ctx, where, !*all)
	}
	return o.hold(ctx, where)
}

// withEach holds the appliance to the suite with every HAProxy there is, or with the first and the last.
func (o order) withEach(ctx context.Context, where place, ends bool) error {
	binaries, err := debian.HAProxies()
	if err != nil {
		return err
	}
	if ends {
		binaries = debian.Ends(binaries)
	}
	dir, errs := o.Out, []error(nil)
	for _, binary := range binaries {
		o.Out = filepath.Join(dir, filepath.Base(filepath.Dir(filepath.Dir(binary)))) // as usr, or a suite of Debian
		fmt.Println("with", binary)
		errs = append(errs, os.Setenv("SALLYPORT_TEST_HAPROXY", binary), o.hold(ctx, where))
	}
	return errors.Join(errs...)
}

// hold runs the suite, in the lab that is kept or in one of its own, and compares the results with the
// expectations.
func (o order) hold(ctx context.Context, where place) error {
	if err := os.MkdirAll(o.Out, 0o755); err != nil { //nolint:gosec // for people
		return err
	}
	tests := &judge{
		to: os.Stdout, dir: o.Out,
		whole: o.Run == "" && o.Profiles == allProfiles, single: name.MatchString(o.Run),
	}
	var err error
	if tests.expected, err = readExpected(where.options.GatewayAPI); err != nil {
		return err
	}
	if kept() {
		err = ask(ctx, o, tests.write)
	} else {
		err = in(ctx, where, func(s *session) error { return s.play(ctx, o, tests.write) })
	}
	if len(tests.order) == 0 && err != nil {
		return err
	}
	return errors.Join(err, tests.verdict())
}

// An order says which tests to run, and how.
type order struct {
	Program  string `json:"program,omitempty"` // the appliance to start in a kept lab
	Run      string `json:"run,omitempty"`
	Profiles string `json:"profiles"`
	Version  string `json:"version,omitempty"`
	URL      string `json:"url"`
	Contact  string `json:"contact"`
	Report   string `json:"report"` // folder
	Out      string `json:"out"`
}

// name matches the name of one test.
var name = regexp.MustCompile(`^[A-Za-z0-9]+$`)

// flags returns the flags of the suite. It is not told which features to test: the GatewayClass
// tells it, so that a claim is a promise.
func (s *session) flags(o order) []string {
	flags := []string{
		"-test.v=test2json", "-test.timeout=0", "-test.parallel=8",
		"-gateway-class=" + class, "-conformance-profiles=" + o.Profiles, "-cleanup-base-resources=false",
		"-usable-address=" + s.place.usable, "-unusable-address=" + unusable,
	}
	switch {
	case name.MatchString(o.Run):
		return append(flags, "-run-test="+o.Run)
	case o.Run != "":
		return append(flags, "-test.run=^TestConformance$/^("+o.Run+")$")
	case o.Version != "":
		return append(flags, "-organization=Sallyport", "-project=sallyport", "-url="+o.URL, "-contact="+o.Contact,
			"-version="+o.Version,
			"-report-output="+filepath.Join(o.Report, fmt.Sprintf("%s-%s-default-report.yaml",
				s.place.options.GatewayAPI, o.Version)))
	}
	return flags
}

// unpublished stands in a report for an address of the project that whoever publishes it sets.
const unpublished = "set by the publisher"

// A sink takes the output of the suite, line by line, as test2json writes it.
type sink func(io.Reader) error
