// Command chaos breaks things in a lab while requests come in at a steady rate,
// and counts what the clients notice. Each scenario has bounds; the exit status
// says whether all of them held.
//
//	go run ./test/chaos                   all scenarios
//	go run ./test/chaos -only 7,9         some of them
//	go run ./test/chaos -lab vrrp2,vrrp3  those of some labs
//	go run ./test/chaos -count 3          all scenarios, three times
//	go run ./test/chaos -o chaos.json     the figures in a file, too
//	go run ./test/chaos -soak 1h          how long scenario 20 lasts
//	go run ./test/chaos -night 1h         with scenario 39: a production day, again and again
//	go run ./test/chaos -calico real      on nodes that run Calico itself
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// A result is the outcome of one scenario, held to its bounds.
type result struct {
	Number   int     `json:"number"`
	Name     string  `json:"name"`
	Requests int     `json:"requests"` // GET and POST
	Failed   int     `json:"failed"`   // GETs
	Posts    int     `json:"posts"`    // POSTs that failed
	Cut      int     `json:"cut"`      // lasting connections that ended early
	Slow     int     `json:"slow"`     // requests of more than 1 s
	Max      float64 `json:"max"`      // ms, the slowest GET
	Gap      float64 `json:"gap"`      // ms, the longest time without a good answer to a GET
	Settled  float64 `json:"settled"`  // ms, from the end of the fault until all was as it should be
	Exposed  float64 `json:"exposed"`  // ms, in which a server was open and had no route
	Load     float64 `json:"load"`     // of the machine in the last minute, by /proc/loadavg

	Notes  []string `json:"notes,omitempty"`  // what else was measured
	Broken []string `json:"broken,omitempty"` // bounds that did not hold
	Report report   `json:"report"`
}

func main() {
	for arg, part := range map[string]func([]string) error{loadArg: loaded, neighbourArg: neighbour} {
		if len(os.Args) > 1 && os.Args[1] == arg {
			if err := part(os.Args[2:]); err != nil {
				fmt.Fprintln(os.Stderr, arg+":", err)
				os.Exit(1)
			}
			return
		}
	}
	rig.Main("chaos", run)
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format(time.TimeOnly)+" "+format+"\n", args...)
}

func run(ctx context.Context) (err error) {
	only := flag.String("only", "", "numbers of the scenarios to run, as 7,9; empty: all")
	labs := flag.String("lab", "",
		"labs to play in, as bgp2,vrrp3; empty: all of one, ipv6, as, gateway, set, minready, standby, set3, setbgp2, same, "+
			"bgp2, bgp3, vrrp2 and vrrp3")
	file := flag.String("o", "", "`file` for the figures, as JSON")
	soak := flag.Duration("soak", 5*time.Minute, "how long scenario 20 lasts")
	night := flag.Duration("night", 0,
		"how long scenario 39 repeats the events of a production day on two members by BGP; without it there is no such scenario")
	count := flag.Int("count", 1, "how many times each scenario is played; each time it begins at another moment")
	keep := flag.String("log", "", "`file` for the appliance's log")
	calico := flag.String("calico", string(world.StandIn), "stand-in or real: the Calico of the lab")
	flag.Parse()
	var chosen []int
	for _, word := range strings.FieldsFunc(*only, func(r rune) bool { return r == ',' || r == ' ' }) {
		n, err := strconv.Atoi(word)
		if err != nil {
			return fmt.Errorf("-only %q: numbers with commas between, as 7,9", *only)
		}
		chosen = append(chosen, n)
	}

	if err := os.MkdirAll(filepath.Dir(*keep), 0o750); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "sallyport-chaos-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // HAProxy's worker, another user, passes through
		return err
	}
	progress("building")
	if err := rig.Build(ctx, dir); err != nil {
		return err
	}
	var results []result
	for _, suite := range suites(*soak, *night) {
		list := slices.DeleteFunc(suite.scenarios, func(s scenario) bool {
			return len(chosen) > 0 && !slices.Contains(chosen, s.number)
		})
		if len(list) == 0 || *labs != "" && !slices.Contains(strings.Split(*labs, ","), suite.name) {
			continue
		}
		suite.options.Calico = world.Calico(*calico)
		more, err := suite.run(ctx, dir, slices.Repeat(list, max(*count, 1)), *keep)
		results = append(results, more...)
		if err != nil {
			return errors.Join(err, write(results, *file))
		}
	}
	if err := write(results, *file); err != nil {
		return err
	}
	if n := countBroken(results); n > 0 {
		return fmt.Errorf("the bounds of %d of %d scenarios did not hold", n, len(results))
	}
	return nil
}

func countBroken(results []result) (n int) {
	for _, r := range results {
		if len(r.Broken) > 0 {
			n++
		}
	}
	return n
}

// write prints the table, and writes the file if one is named.
func write(results []result, file string) error {
	table(os.Stdout, results)
	return rig.WriteFigures(file, results)
}

func table(out io.Writer, results []result) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "#\tFAULT\tREQUESTS\tFAILED\tPOSTS\tCUT\tSLOW\tSLOWEST\tGAP\tSETTLED\tEXPOSED\t")
	for _, r := range results {
		verdict := "held"
		if len(r.Broken) > 0 {
			verdict = "BROKEN: " + strings.Join(r.Broken, "; ")
		}
		fmt.Fprintf(w, "%d\t%s\t%d\t%d\t%d\t%d\t%d\t%.0f ms\t%.0f ms\t%.0f ms\t%.0f ms\t%s\n",
			r.Number, r.Name, r.Requests, r.Failed, r.Posts, r.Cut, r.Slow, r.Max, r.Gap, r.Settled, r.Exposed, verdict)
	}
	_ = w.Flush()
	for _, r := range results {
		for _, note := range r.Notes {
			fmt.Fprintf(out, "%d: %s\n", r.Number, note)
		}
	}
}
