// Command rivals makes the same faults in the same lab for sallyport and for other programs in its
// place, and counts the requests that clients lose.
//
//	go run ./test/rivals                       all contenders
//	go run ./test/rivals -of sallyport,kic     some of them
//	go run ./test/rivals -only 1,4             some of the events
//	go run ./test/rivals -only sizes           what a request costs beside 1, 1,000 and 10,000 Ingresses
//	go run ./test/rivals -o rivals.json        the figures in a file, too
//	go run ./test/rivals -calico real          on nodes that run Calico itself
//
// Read the README beside it for how each contender is set up, and why.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// sizesWord is the word in -only for what a request takes beside 1, 1,000 and 10,000 Ingresses.
const sizesWord = "sizes"

// A figure counts the requests of one contender's clients during one event.
type figure struct {
	Contender string  `json:"contender"`
	Event     string  `json:"event"`
	Sent      int     `json:"sent"`            // requests on connections of their own
	Failed    int     `json:"failed"`          // of these
	Wrong     int     `json:"wrong,omitempty"` // requests that another tenant's pod answered; each counts as failed, too
	Broken    int     `json:"broken"`          // kept connections that ended before an answer
	Slowest   float64 `json:"slowest"`         // ms, of an answer
	First     string  `json:"first,omitempty"` // the first failure
	P50       float64 `json:"p50,omitempty"`   // ms, of times that were measured; zero means that requests were counted
	P99       float64 `json:"p99,omitempty"`
	Value     float64 `json:"value,omitempty"` // of something else, in the unit; zero means that a wait had no end
	Unit      string  `json:"unit,omitempty"`
}

func main() {
	for arg, part := range map[string]func(context.Context, []string) error{modelArg: follow, balanceArg: balance} {
		if len(os.Args) > 1 && os.Args[1] == arg {
			rig.Main(arg, func(ctx context.Context) error { return part(ctx, os.Args[2:]) })
			return
		}
	}
	rig.Main("rivals", run)
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format(time.TimeOnly)+" "+format+"\n", args...)
}

// chosen returns the words of a list with commas, or nil.
func chosen(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

func run(ctx context.Context) (err error) {
	of := flag.String("of", "", "contenders, as sallyport,kic; empty: all")
	only := flag.String("only", "", "numbers of events, as 1,4, or sizes; empty: all events, and one Ingress")
	file := flag.String("o", "", "`file` for the figures, as JSON")
	calico := flag.String("calico", string(world.StandIn), "stand-in or real: the Calico of the lab")
	keep := flag.String("keep", "", "`folder` in which the programs of the rivals lie or are built; empty: the cache")
	flag.Parse()

	field, err := contenders(ctx, *keep)
	if err != nil {
		return err
	}
	names := chosen(*of)
	for _, name := range names {
		if !slices.ContainsFunc(field, func(c contender) bool { return c.name == name }) {
			return fmt.Errorf("-of %s: the contenders are %s", name, strings.Join(namesOf(field), ", "))
		}
	}
	for _, number := range chosen(*only) {
		if n, err := strconv.Atoi(number); number != sizesWord && (err != nil || n < 1 || n > len(events)) {
			return fmt.Errorf("-only %s: the events have the numbers 1 to %d; what a request takes is %s", number,
				len(events), sizesWord)
		}
	}
	programs, err := os.MkdirTemp("", "sallyport-rivals-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(programs)) }()
	progress("building")
	if err := errors.Join(os.Chmod(programs, 0o711), rig.Build(ctx, programs)); err != nil { //nolint:gosec // as its labs
		return err
	}
	var figures []figure
	for _, c := range field {
		if len(names) > 0 && !slices.Contains(names, c.name) {
			continue
		}
		more, version, failed := play(ctx, c, programs, world.Calico(*calico), chosen(*only))
		progress("%s: %s", c.name, version)
		figures = append(figures, more...)
		if err = errors.Join(err, failed); ctx.Err() != nil {
			break
		}
	}
	table(os.Stdout, figures)
	return errors.Join(err, rig.WriteFigures(*file, figures))
}

func namesOf(field []contender) (names []string) {
	for _, c := range field {
		names = append(names, c.name)
	}
	return names
}

// endless returns the figure of a wait that had no end within its bound. The other figures go on.
func (f figure) endless(ctx context.Context, err error) (figure, error) {
	f.Value, f.Unit, f.First = 0, "ms", err.Error()
	progress("%s: %s: %s; %s", f.Contender, f.Event, f, f.First)
	return f, ctx.Err()
}

func (f figure) String() string {
	if f.Unit != "" && f.Value == 0 {
		return "not in time"
	}
	if f.Unit != "" {
		return fmt.Sprintf("%.0f %s", f.Value, f.Unit)
	}
	if f.P50 > 0 {
		text := fmt.Sprintf("%.1f ms, %.1f ms", f.P50, f.P99)
		if f.Failed > 0 {
			text += fmt.Sprintf(", %d failed", f.Failed)
		}
		return text
	}
	text := fmt.Sprintf("%d of %d, %d cut", f.Failed, f.Sent, f.Broken)
	if f.Wrong > 0 {
		text += fmt.Sprintf(", %d WRONG", f.Wrong)
	}
	return text
}

// table prints a row for each event, and a column for each contender: how many requests of how many
// failed, and how many kept connections broke.
func table(out io.Writer, figures []figure) {
	var rows, columns []string
	cells := map[[2]string]string{}
	for _, f := range figures {
		if !slices.Contains(rows, f.Event) {
			rows = append(rows, f.Event)
		}
		if !slices.Contains(columns, f.Contender) {
			columns = append(columns, f.Contender)
		}
		cells[[2]string{f.Event, f.Contender}] = f.String()
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "EVENT\t%s\n", strings.ToUpper(strings.Join(columns, "\t")))
	for _, row := range rows {
		fmt.Fprint(w, row)
		for _, column := range columns {
			fmt.Fprint(w, "\t", cells[[2]string{row, column}])
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush()
}
