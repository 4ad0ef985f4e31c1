// Command attack tries to break in: as a tenant who may write objects in one
// namespace, as the operator of another cluster, as a client, a node, a BGP peer,
// a neighbour on the network, and as someone who brings a volume. Each case says
// who tries what, and holds that another tenant has its requests, its answers and
// its secrets to itself.
//
//	go run ./test/attack                all cases, in a lab (as root)
//	go run ./test/attack -all           so with every HAProxy there is, one after another
//	go run ./test/attack -only client   those whose name matches the expression
//	go run ./test/attack -list          the table of the cases
//
// What HAProxy and the compiler of objects are enough for is shown without a lab,
// too, on every HAProxy: go test ./test/attack.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"sallyport/test/lab/debian"
	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

func main() {
	rig.Main("attack", run)
}

// attacks returns all there are.
func attacks() []attack {
	return slices.Concat(tenants(), costs(), memories(), naming(), changing(), clients(), others(), addresses(),
		gateways(), groups(), rings(), watchers(), operators(), sets())
}

func run(ctx context.Context) error {
	only := flag.String("only", "", "run the cases whose name matches this `expression`")
	all := flag.Bool("all", false, "with every HAProxy there is, one after another")
	asJSON := flag.Bool("json", false, "write a line of JSON for each case")
	list := flag.Bool("list", false, "write the table of the cases, and try nothing")
	flag.Parse()
	if *list {
		fmt.Print(table())
		return nil
	}
	name, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	chosen := slices.DeleteFunc(attacks(), func(a attack) bool { return !name.MatchString(a.name()) })
	if len(chosen) == 0 {
		return fmt.Errorf("no case's name matches %q", *only)
	}
	if !*all {
		return inLab(ctx, chosen, *asJSON)
	}
	binaries, err := debian.HAProxies()
	if err != nil {
		return err
	}
	var errs []error
	for _, b := range binaries {
		errs = append(errs, os.Setenv("SALLYPORT_TEST_HAPROXY", b), inLab(ctx, chosen, *asJSON))
	}
	return errors.Join(errs...)
}

// inLab runs the cases in a lab of their own.
func inLab(ctx context.Context, list []attack, asJSON bool) error {
	options := world.Options{Name: "attack", Workers: 2, GatewayAPI: world.Standard, Progress: io.Discard}
	cluster := rig.Cluster{
		Ingress: []string{configMapOfOne, `hosts: [{host: "` + reserved + `", namespaces: [victim]}]`, "customResources: true"},
		Gateway: []string{"shared: true"},
	}
	return rig.In(ctx, options, "", cluster, func(r *rig.Rig) (err error) {
		k, err := newKeys(r.Dir)
		if err != nil {
			return err
		}
		if err := errors.Join(r.AddCustomResources(ctx), r.Start(ctx), r.Ready(ctx)); err != nil {
			return err
		}
		status, err := r.Status(ctx)
		if err != nil {
			return err
		}
		fmt.Fprintln(os.Stderr, time.Now().Format(time.TimeOnly), "HAProxy", status.HAProxy.Version)
		s, err := enter(ctx, &lab{r}, k, 30*time.Second)
		if err != nil {
			return err
		}
		s.rig = r
		defer func() { err = errors.Join(err, s.leave()) }()
		lines := make([]rig.Case, len(list))
		for i, a := range list {
			lines[i] = rig.Case{Name: a.name(), Run: func(ctx context.Context) error { return s.run(ctx, a) }}
		}
		return rig.Report(ctx, os.Stdout, asJSON, lines)
	})
}

// table formats the cases as a Markdown table.
func table() string {
	var b strings.Builder
	b.WriteString("| who | tries what | what holds | without a lab |\n|---|---|---|---|\n")
	for _, a := range attacks() {
		alone := "yes"
		if a.lab != nil {
			alone = ""
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", a.by, a.tries, a.promise, alone)
	}
	return b.String()
}
