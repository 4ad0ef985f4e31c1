// Command ring plays groups of appliances behind routers, and prints the share of
// established connections that breaks when appliances and routers come and go. It shows
// groups that are larger than a lab: a model stands for routers, appliances and second
// chance. A test holds the model to what real ones did at three appliances.
//
//	go run ./test/ring                                 the table
//	go run ./test/ring -appliances 3,8 -routers 1      some of it
//	go run ./test/ring -largest 64                     as if second chance had no limit of members
//	go run ./test/ring -o json                         every figure
//
// The same seed prints the same figures.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Bounds of what can be played.
const (
	mostAppliances  = 64
	mostRouters     = 8
	mostConnections = 1_000_000
)

// A result is what one event does to the connections of one group.
type result struct {
	Event      string  `json:"event"`
	Hashing    string  `json:"hashing"`
	Routers    int     `json:"routers"`
	Appliances int     `json:"appliances"`
	Broken     float64 `json:"broken"`           // share of the connections, without second chance
	Saved      float64 `json:"withSecondChance"` // share that breaks all the same
	Hops       float64 `json:"hops"`             // mean, of the packets that second chance passes on
	Longest    int     `json:"longest"`          // hops of one of them
}

type options struct {
	appliances, routers  []int
	connections, largest int
	seed                 uint64
}

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "ring:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("ring", flag.ExitOnError)
	appliances := flags.String("appliances", "2,3,4,8,16,32,64",
		"sizes of the group, with commas between, from 2 to 64")
	routers := flags.String("routers", "1,8", "numbers of routers, with commas between, from 1 to 8")
	var o options
	flags.IntVar(&o.connections, "connections", 20_000, "established connections, up to a million")
	flags.IntVar(&o.largest, "largest", largest, "the greatest group that second chance works in, up to 64")
	flags.Uint64Var(&o.seed, "seed", 1, "begins all that is random")
	format := flags.String("o", "table", "table or json")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var err error
	if o.appliances, err = numbers("appliances", *appliances, 2, mostAppliances); err != nil {
		return err
	}
	if o.routers, err = numbers("routers", *routers, 1, mostRouters); err != nil {
		return err
	}
	switch {
	case o.connections < 1 || o.connections > mostConnections:
		return fmt.Errorf("-connections %d: allowed are 1 to %d", o.connections, mostConnections)
	case o.largest < 2 || o.largest > mostAppliances:
		return fmt.Errorf("-largest %d: allowed are 2 to %d, since the hops are counted in the six bits of the DSCP",
			o.largest, mostAppliances)
	case *format != "table" && *format != "json":
		return fmt.Errorf("-o %q: allowed are table and json", *format)
	}
	results := o.play()
	if *format == "json" {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(results)
	}
	return table(out, o, results)
}

// numbers reads a list of numbers with commas between.
func numbers(name, text string, least, most int) (all []int, err error) {
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil || n < least || n > most {
			return nil, fmt.Errorf("-%s %q: allowed are numbers from %d to %d, with commas between", name, text, least,
				most)
		}
		all = append(all, n)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// play plays every event in every group.
func (o options) play() (all []result) {
	for _, e := range events {
		for _, h := range hashings {
			for _, r := range o.routers {
				for _, n := range o.appliances {
					without, with := newWorld(o.seed, n, r, h, 1), newWorld(o.seed, n, r, h, o.largest)
					all = append(all, result{
						Event: e.name, Hashing: h.name, Routers: r, Appliances: n,
						Broken: e.play(without, o.connections), Saved: e.play(with, o.connections),
						Hops: float64(with.hops) / float64(max(with.passed, 1)), Longest: with.longest,
					})
				}
			}
		}
	}
	return all
}

// table prints a line for each event, hashing and number of routers, with a column for
// each size of the group.
func table(out io.Writer, o options, results []result) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(out, "%% of %d established connections that break: without / with second chance\n\n", o.connections)
	fmt.Fprint(w, "what happens\thashing\trouters")
	for _, n := range o.appliances {
		fmt.Fprintf(w, "\t%d appliances", n)
	}
	for line := range slices.Chunk(results, len(o.appliances)) {
		fmt.Fprintf(w, "\n%s\t%s\t%d", line[0].Event, line[0].Hashing, line[0].Routers)
		for _, r := range line {
			fmt.Fprintf(w, "\t%.0f / %.0f", 100*r.Broken, 100*r.Saved)
		}
	}
	fmt.Fprintln(w)
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprint(w, "\nhops of packets that second chance passes on\tmean of the lines\tlongest")
	for _, n := range o.appliances {
		lines, sum, longest := 0, 0.0, 0
		for _, r := range results {
			if r.Appliances == n && r.Longest > 0 {
				lines, sum, longest = lines+1, sum+r.Hops, max(longest, r.Longest)
			}
		}
		fmt.Fprintf(w, "\n%d appliances\t%.1f\t%d", n, sum/float64(max(lines, 1)), longest)
	}
	fmt.Fprintln(w)
	return w.Flush()
}
