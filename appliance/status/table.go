package status

import (
	"fmt"
	"strings"
	"time"
)

// A Listing is a Table of some kind of rows.
type Listing interface {
	About() *Head
	// Cells returns the cells of all rows.
	Cells(*Status) [][]Cell
	// Rest returns how many rows the status leaves out.
	Rest(*Status) int
	// Value returns the part of the status that the table shows, for programs.
	Value(*Status) any
}

// A Table describes how things of one kind are shown. The terminal and the pages draw the same
// columns, words and levels.
type Table[T any] struct {
	Head
	Rows func(*Status) []T       // all rows; nil if the status does not have them
	Row  func(*Status, T) []Cell // a cell for each column; cells may be missing at the end
	More func(*Status) int       // how many rows the status leaves out; nil if it has all
	JSON func(*Status) any       // the part of the status that the table shows
}

// A Head is a table without its rows.
type Head struct {
	Name    string // of the table in commands and addresses of pages; stable
	Title   string
	Columns []Column
	Empty   string // shown instead of rows
	Brief   bool   // the whole status leaves the table out while it has no row
}

// A Column is a column of a table.
type Column struct {
	Name string // in lower case, with blanks; stable, since programs may read it
	Kind Kind
	Wide bool // shown with -o wide, and on the page of the table
}

// Kind is the kind of the cells of a column.
type Kind int

// The kinds of columns.
const (
	KindWords   Kind = iota
	KindNumber       // aligned at the right
	KindCode         // addresses and paths
	KindProse        // sentences
	KindCluster      // names of clusters: left out of a page if there is one cluster
)

// A Cell is a value of a row.
type Cell struct {
	Text  string
	Level Level         // of the state that it shows; "" if it shows none
	For   time.Duration // how long the state has lasted; instead of Text
	Age   time.Duration // how long ago it was; before Text
	At    time.Time     // when it was; instead of Text
	Link  []string      // kind and names of the page about it; nil without a page
}

// Fault reports whether the cell shows something that needs attention.
func (c Cell) Fault() bool { return c.Level.Fault() }

// About returns the head of the table.
func (t *Table[T]) About() *Head { return &t.Head }

// Cells returns the cells of all rows.
func (t *Table[T]) Cells(s *Status) (all [][]Cell) {
	for _, row := range t.Rows(s) {
		all = append(all, t.Row(s, row))
	}
	return all
}

// Rest returns how many rows the status leaves out.
func (t *Table[T]) Rest(s *Status) int {
	if t.More == nil {
		return 0
	}
	return t.More(s)
}

// Value returns the part of the status that the table shows, for programs.
func (t *Table[T]) Value(s *Status) any { return t.JSON(s) }

// Label returns the name of a column as the terminal shows it: "LAST-LOSS".
func (c Column) Label() string { return strings.ToUpper(strings.ReplaceAll(c.Name, " ", "-")) }

// text returns a cell with words.
func text(words string) Cell { return Cell{Text: words} }

// count returns a cell with a number.
func count(n int) Cell { return Cell{Text: fmt.Sprint(n)} }

// outOf returns a cell with two numbers: how many of all meet a condition.
func outOf(n, all int) Cell {
	cell := Cell{Text: fmt.Sprintf("%d/%d", n, all), Level: Healthy}
	switch {
	case all > 0 && n == 0:
		cell.Level = Failed
	case n < all:
		cell.Level = Doubt
	}
	return cell
}
