package pages

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sallyport/appliance/page"
	"sallyport/appliance/status"
)

// marks has the mark of each level.
var marks = map[status.Level]page.Mark{
	status.Unused: page.Idle, status.Healthy: page.Good, status.Doubt: page.Warn, status.Failed: page.Bad,
}

// listOf returns a section with a page of a table, and how many rows it has in all. The query selects
// rows by their texts and their levels. On the first page of the appliance, rows with a fault come
// first, and wide columns are left out. The columns that the last argument names are always left out.
func listOf[T any](
	q *request, size int, of *status.Table[T], rows []T, hint string, without ...string,
) (page.Section, int) {
	if size == rowsShown {
		rows = firstOf(rows, size, func(row T) bool { return faultyRow(of.Row(&q.status, row)) })
	}
	return listBy(q, size, of, rows, func(row T, text string) bool {
		if text == "" && q.state == "" {
			return true
		}
		cells := of.Row(&q.status, row)
		return q.inState(broken(faultyRow(cells))) &&
			slices.ContainsFunc(cells, func(c status.Cell) bool { return has(text, c.Text) })
	}, func(row T) T { return row }, q.shown(&of.Head, size > rowsShown, without...), q.filter(hint, "broken", "good"))
}

// listBy returns a section with a page of a table of the items that keep accepts for the text that is
// searched, and how many these are. Only the items that are shown become rows.
func listBy[I, T any](q *request, size int, of *status.Table[T], items []I, keep func(item I, text string) bool,
	row func(I) T, shown []bool, filter *page.Filter,
) (page.Section, int) {
	t, n := paged(q, size, items, keep, func(item I) []page.Cell {
		return cellsOf(&of.Head, shown, of.Row(&q.status, row(item)))
	}, columnsOf(&of.Head, shown)...)
	t.Empty = cmp.Or(t.Empty, of.Empty)
	return page.Section{ID: of.Name, Title: of.Title, Table: t, Filter: filter}, n
}

// tableOf returns a table with all of some rows, without the columns that the page shows elsewhere.
func tableOf[T any](q *request, of *status.Table[T], rows []T, without ...string) *page.Table {
	shown := q.shown(&of.Head, true, without...)
	t := &page.Table{Columns: columnsOf(&of.Head, shown), Empty: of.Empty}
	for _, row := range rows {
		t.Rows = append(t.Rows, cellsOf(&of.Head, shown, of.Row(&q.status, row)))
	}
	return t
}

// factsOf returns a row of a table as facts, without those that are empty and the columns that the page shows
// elsewhere.
func factsOf[T any](q *request, of *status.Table[T], row T, without ...string) (facts []page.Fact) {
	t := tableOf(q, of, []T{row}, without...)
	for i, c := range t.Rows[0] {
		if c.Text != "" {
			facts = append(facts, page.Fact{Name: t.Columns[i].Name, Cell: c})
		}
	}
	return facts
}

// broken returns the state that a filter has for rows with or without a fault.
func broken(fault bool) string { return status.Either(fault, "broken", "good") }

func faultyRow(cells []status.Cell) bool { return slices.ContainsFunc(cells, status.Cell.Fault) }

// shown reports for each column of a table whether the page shows it. It leaves out the columns
// that the last argument names.
func (q *request) shown(of *status.Head, wide bool, without ...string) (all []bool) {
	for _, c := range of.Columns {
		is := wide || !c.Wide
		if c.Kind == status.KindCluster {
			is = len(q.index.View.Clusters) > 1
		}
		all = append(all, is && !slices.Contains(without, c.Name))
	}
	return all
}

func columnsOf(of *status.Head, shown []bool) (all []page.Column) {
	for i, c := range of.Columns {
		if shown[i] {
			all = append(all, page.Column{
				Name: c.Name, Right: c.Kind == status.KindNumber, Wide: c.Kind == status.KindProse,
			})
		}
	}
	return all
}

// cellsOf returns the cells of a row as a page shows them. A time is as coarse as a page needs it: it
// does not change each second.
func cellsOf(of *status.Head, shown []bool, cells []status.Cell) (all []page.Cell) {
	for i, column := range of.Columns {
		var c status.Cell
		if i < len(cells) {
			c = cells[i]
		}
		if !shown[i] {
			continue
		}
		out := page.Cell{Text: c.Text, Mark: marks[c.Level], Mono: column.Kind == status.KindCode}
		switch {
		case !c.At.IsZero():
			out.Text = c.At.UTC().Format("2006-01-02 15:04:05 MST")
		case c.For > 0:
			out.Text = status.Lasting(c.For)
		case c.Age > 0 && c.Text == "":
			out.Text = status.Lasting(c.Age) + " ago"
		case c.Age > 0:
			out.Note = status.Lasting(c.Age) + " ago"
		}
		if len(c.Link) > 0 && !slices.Contains(c.Link, "") {
			out.Href = pathOf(c.Link[0], c.Link[1:]...)
		}
		if column.Kind == status.KindCluster && c.Text != "" {
			out.Href = pathOf("cluster", c.Text)
		}
		switch column.Kind {
		case status.KindProse:
		case status.KindNumber:
			out.Text = thousands(out.Text)
		default: // a browser breaks lines at blanks
			out.Text = strings.ReplaceAll(strings.ReplaceAll(out.Text, ", ", ","), ",", ", ")
		}
		all = append(all, out)
	}
	return all
}

// thousands returns a text with a separator after each three digits of its whole numbers.
func thousands(text string) string {
	return wholeNumber.ReplaceAllStringFunc(text, func(digits string) string {
		n, err := strconv.Atoi(digits)
		if err != nil { // too large for a number
			return digits
		}
		return page.Comma(n)
	})
}

var wholeNumber = regexp.MustCompile(`\b[0-9]{4,}\b`)

// doorOf returns the door with the state and the words of a cell.
func doorOf(c status.Cell) page.Door {
	return page.Door{Mark: marks[c.Level], Label: thousands(c.Text)}
}
