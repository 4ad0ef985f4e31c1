// Package page draws the pages of the status endpoint from plain values: sentences,
// facts, tables, the diagram of the paths from clients to pods, and plots.
//
// It alone knows HTML, CSS and SVG. It imports nothing of ours, so it cannot ask for
// more than it is given. A page is complete without JavaScript. With JavaScript, Live
// sends the sections that changed, drawn by the same templates.
//
// Every text is escaped. No mark depends on its colour: each has a symbol and a word.
//
// Its limit: it knows no state between two requests. The caller decides on the content of a page,
// and on the number of rows of a table.
package page

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
)

// A Mark is the state of a thing. Each has a colour, and a symbol for people who do not see
// colours.
type Mark int

// The marks. Plain has neither colour nor symbol.
const (
	Plain Mark = iota
	Good
	Warn
	Bad
	Idle // there is nothing to judge
)

var marks = [...]struct{ class, symbol, word string }{
	Plain: {"", "", ""},
	Good:  {"good", "✓", "good"},
	Warn:  {"warn", "▲", "warning"},
	Bad:   {"bad", "✕", "bad"},
	Idle:  {"idle", "○", "idle"},
}

// Class returns the CSS class of the mark.
func (m Mark) Class() string { return marks[m].class }

// Symbol returns the symbol of the mark.
func (m Mark) Symbol() string { return marks[m].symbol }

// Word returns the mark in a word, for screen readers.
func (m Mark) Word() string { return marks[m].word }

// Worse returns the mark that needs more attention.
func (m Mark) Worse(o Mark) Mark {
	rank := [...]int{Plain: 0, Idle: 1, Good: 2, Warn: 3, Bad: 4}
	if rank[o] > rank[m] {
		return o
	}
	return m
}

// A Page is one page. Its sections are sent again by themselves when they change.
type Page struct {
	Title    string // of the browser's tab, after the mark
	Mark     Mark
	Identity string
	Crumbs   []Link // where the page stands, from the first page on; the last is the page itself
	Query    string // the search that the page answers
	Sections []Section
	Version  string // of the program
	AsOf     string // the time of the state that the page shows
}

// A Link leads to another page of ours.
type Link struct{ Text, Href string }

// A Section is a part of a page. The page leaves out its empty fields.
type Section struct {
	ID      string // unique in the page
	Title   string
	Note    string // beside the title
	More    *Link  // beside the title: the page that shows all
	Lines   []Line
	Facts   []Fact
	Diagram *Diagram
	Plots   []Plot
	Table   *Table
	Filter  *Filter
	Button  *Button
}

// A Button sends a POST without content.
type Button struct{ Text, Action string }

// A Line is a sentence with a mark.
type Line struct {
	Mark Mark
	Text string
}

// A Fact is a value with its name.
type Fact struct {
	Name string
	Cell
}

// A Cell is a value in a table.
type Cell struct {
	Text string
	Href string
	Mark Mark
	Mono bool   // in a monospaced font
	Note string // after Text, less prominent
}

// A Column is a column of a table.
type Column struct {
	Name  string
	Right bool // numbers
	Wide  bool // sentences
}

// A Table is a whole table, or one page of a long table.
type Table struct {
	Columns []Column
	Rows    [][]Cell
	Empty   string // shown instead of rows
	From    int    // number of the first row, from 1; with Total
	Total   int    // rows of all pages; 0 if Rows holds all rows
	Prev    string // address of the previous page; empty on the first page
	Next    string // address of the next page; empty on the last page
}

// dense returns the table without the columns that are empty in every row.
func (t *Table) dense() *Table {
	used := make([]bool, len(t.Columns))
	for _, row := range t.Rows {
		for i, c := range row {
			used[i] = used[i] || c.Text != "" || c.Note != ""
		}
	}
	d := *t
	d.Columns, d.Rows = nil, nil
	for i, c := range t.Columns {
		if used[i] {
			d.Columns = append(d.Columns, c)
		}
	}
	for _, row := range t.Rows {
		var kept []Cell
		for i, c := range row {
			if used[i] {
				kept = append(kept, c)
			}
		}
		d.Rows = append(d.Rows, kept)
	}
	return &d
}

// Last returns the number of the last row.
func (t *Table) Last() int { return t.From + len(t.Rows) - 1 }

// A Filter is a form that asks for a part of a table.
type Filter struct {
	Action string
	Query  string
	Hint   string
	States []Choice // if empty, the form has no choice of states
	Orders []Choice // if empty, the form has no choice of orders
}

// A Choice is an option of a Filter.
type Choice struct {
	Value, Text string
	Chosen      bool
}

//go:embed page.html page.css page.js icon.svg
var files embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"diagram": func(d *Diagram) template.HTML { return d.draw() },
	"plot":    func(p Plot) template.HTML { return p.draw() },
	"dense":   (*Table).dense,
	"column":  func(t *Table, i int) Column { return t.Columns[i] },
	"comma":   Comma,
}).ParseFS(files, "page.html"))

// fragments returns each section of a page in HTML, the header first, by ID and in order.
func (p *Page) fragments() (ids []string, html map[string]string, err error) {
	html = map[string]string{}
	draw := func(id, name string, data any) {
		var b bytes.Buffer
		if err == nil {
			err = templates.ExecuteTemplate(&b, name, data)
		}
		ids = append(ids, id)
		html[id] = b.String()
	}
	draw("head", "head", p)
	for i := range p.Sections {
		draw(p.Sections[i].ID, "section", &p.Sections[i])
	}
	return ids, html, err
}

// render returns a whole page in HTML.
func (p *Page) render(live string) ([]byte, error) {
	ids, fragments, err := p.fragments()
	if err != nil {
		return nil, err
	}
	var body []template.HTML
	for _, id := range ids[1:] {
		body = append(body, template.HTML(fragments[id])) //nolint:gosec // from our own template
	}
	var b bytes.Buffer
	err = templates.ExecuteTemplate(&b, "page", struct {
		*Page
		Head template.HTML
		Body []template.HTML
		Live string
	}{p, template.HTML(fragments["head"]), body, live}) //nolint:gosec // from our own template
	return b.Bytes(), err
}

// Comma returns a number with a separator after each three digits.
func Comma(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Count returns a number with its noun: "1 node", "2,000 nodes".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return Comma(n) + " " + noun + "s"
}
