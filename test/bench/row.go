package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"sallyport/test/rig"
)

// A row is a subject of the table. Its function measures one figure or several, and adds
// each to the table.
type row struct {
	number  int // for -only
	what    string
	where   place
	measure func(context.Context, *bench) error
}

// place says where a row is measured. Rows that are alone come first, then those of the
// common lab while it is small, then those of the common lab once it is large.
type place int

const (
	alone place = 0 // without the common lab
	small place = 1 // in the common lab with one Service
	large place = 2 // in the common lab with as many Services as -services says
)

// rows returns all rows, in the order of their measurement.
func rows() []row {
	return slices.Concat(requestRows, proxyRows, reloadRows, wallRows, peerRows, memoryRows, pathRows, routeRows, gateRows,
		changeRows, lifeRows, ingressRows)
}

// children are the programs that this program becomes, most of them on a host of a lab, by the first
// argument (see rig.Child).
var children = map[string]func(){pollArg: poll, travelArg: travel, speakArg: speakBGP}

// A bench has everything with which a row measures.
type bench struct {
	options
	*testbed        // the common lab; nil for a row that is alone
	dir      string // programs (see rig.Build); files of a row may go here
	row      row    // the one that is measured
	table    *[]figure
	p99      float64      // of row 6 with one Service
	profiled func() error // ends the profiles that profile began
}

// options are the flags that rows read.
type options struct {
	services, endpoints, samples, starts int
	churn                                time.Duration
	profiles                             string
}

// A figure is a measured value. The value beside it, if any, is a floor or a rival that was
// measured in the same run.
type figure struct {
	Row      int     `json:"row"`
	What     string  `json:"what"`
	Services int     `json:"services,omitempty"` // in the lab
	Value    float64 `json:"value"`
	Unit     string  `json:"unit"`
	Beside   float64 `json:"beside,omitempty"`
	Name     string  `json:"besideName,omitempty"` // of Beside
	Ratio    float64 `json:"ratio,omitempty"`      // Value to Beside
	Target   string  `json:"target,omitempty"`
	Met      *bool   `json:"met,omitempty"`
}

// value returns a figure with nothing beside it.
func value(what string, v float64, unit string) figure {
	return figure{What: what, Value: v, Unit: unit}
}

// beside adds a floor or a rival to a figure.
func (f figure) beside(name string, v float64) figure {
	f.Name, f.Beside = name, v
	if v != 0 {
		f.Ratio = f.Value / v
	}
	return f
}

// atMost adds a target for the value.
func (f figure) atMost(bound float64) figure {
	return f.aim(fmt.Sprintf("≤ %g %s", bound, f.Unit), f.Value <= bound)
}

// atLeast adds a target for the value.
func (f figure) atLeast(bound float64) figure {
	return f.aim(fmt.Sprintf("≥ %g %s", bound, f.Unit), f.Value >= bound)
}

// timesAtMost adds a target for the ratio.
func (f figure) timesAtMost(bound float64) figure {
	return f.aim(fmt.Sprintf("≤ %g ×", bound), f.Ratio <= bound)
}

func (f figure) aim(target string, met bool) figure {
	if f.Target != "" {
		target, met = f.Target+", "+target, *f.Met && met
	}
	f.Target, f.Met = target, &met
	return f
}

// add puts a figure into the table.
func (b *bench) add(f figure) {
	f.Row = b.row.number
	if b.testbed != nil {
		f.Services = b.size
	}
	*b.table = append(*b.table, f)
	progress("%s", strings.Join(f.cells(), "  "))
}

// cells returns the columns of a line of the table.
func (f figure) cells() []string {
	cells := make([]string, 7)
	cells[0], cells[1], cells[2] = strconv.Itoa(f.Row), f.What, rounded(f.Value, f.Unit)
	if f.Services > 0 {
		cells[1] += fmt.Sprintf(" (%d)", f.Services)
	}
	if f.Name != "" {
		cells[3] = f.Name + " " + rounded(f.Beside, f.Unit)
	}
	if f.Ratio > 0 {
		cells[4] = fmt.Sprintf("%.2f", f.Ratio)
	}
	cells[5] = f.Target
	if f.Met != nil {
		cells[6] = map[bool]string{true: "met", false: "MISSED"}[*f.Met]
	}
	return cells
}

// rounded returns a number with three digits, never with an exponent, and its unit.
func rounded(v float64, unit string) string {
	digits := 0
	for limit := 100.0; digits < 4 && v < limit; limit /= 10 {
		digits++
	}
	text := strconv.FormatFloat(v, 'f', digits, 64)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text + " " + unit
}

// report prints the table, and writes it to a file as JSON.
func report(table []figure, file string) error {
	slices.SortStableFunc(table, func(a, b figure) int { return a.Row - b.Row })
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ROW\tWHAT (SERVICES)\tFIGURE\tBESIDE\tRATIO\tTARGET\t")
	for _, f := range table {
		fmt.Fprintln(w, strings.Join(f.cells(), "\t"))
	}
	return errors.Join(w.Flush(), rig.WriteFigures(file, table))
}

// chosen returns the rows with the numbers of a list, or all rows if the list is empty.
func chosen(all []row, only string) ([]row, error) {
	if only == "" {
		return all, nil
	}
	var numbers []int
	for text := range strings.SplitSeq(only, ",") {
		n, _ := strconv.Atoi(text)
		if !slices.ContainsFunc(all, func(r row) bool { return r.number == n }) {
			return nil, fmt.Errorf("-only: there is no row %q: allowed are the numbers that -list prints", text)
		}
		numbers = append(numbers, n)
	}
	return slices.DeleteFunc(all, func(r row) bool { return !slices.Contains(numbers, r.number) }), nil
}
