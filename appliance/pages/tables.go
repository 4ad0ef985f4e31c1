package pages

import (
	"cmp"
	"slices"
	"strings"

	"sallyport/appliance/page"
	"sallyport/appliance/status"
)

// marks has the mark of each level.
var marks = map[status.Level]page.Mark{
	status.Healthy: page.Good, status.Doubt: page.Warn, status.Failed: page.Bad,
}

// listOf returns a section with a page of a table, and how many rows it has in all. The query selects
// rows by their texts and their levels. On the first page of the appliance, rows with a fault come
// first, and wide columns are left out.
func listOf[T any](q *request, size int, of *status.Table[T], rows []T, hint string) (page.Section, int) {
	if size == rowsShown {
		rows = firstOf(rows, size, func(row T) bool { return faultyRow(of.Row(&q.status, row)) })
	}
	shown := q.shown(&of.Head, size > rowsShown)
	t, n := paged(q, size, rows, func(row T, text string) bool {
		if text == "" && q.state == "" {
			return true
		}
		cells := of.Row(&q.status, row)
		state := "good"
		if faultyRow(cells) {
			state = "broken"
		}
		return q.inState(state) && slices.ContainsFunc(cells, func(c status.Cell) bool { return has(text, c.Text) })
	}, func(row T) []page.Cell { return cellsOf(&of.Head, shown, of.Row(&q.status, row)) },
		columnsOf(&of.Head, shown)...)
	t.Empty = cmp.Or(t.Empty, of.Empty)
	return page.Section{ID: of.Name, Title: of.Title, Table: t, Filter: q.filter(hint, "broken", "good")}, n
}

// tableOf returns a table with all of some rows, without the columns that the page shows elsewhere.
func tableOf[T any](q *request, of *status.Table[T], rows []T, without ...string) *page.Table {
	shown := q.shown(&of.Head, true)
	for i, c := range of.Columns {
		shown[i] = shown[i] && !slices.Contains(without, c.Name)
	}
	t := &page.Table{Columns: columnsOf(&of.Head, shown), Empty: of.Empty}
	for _, row := range rows {
		t.Rows = append(t.Rows, cellsOf(&of.Head, shown, of.Row(&q.status, row)))
	}
	return t
}

func faultyRow(cells []status.Cell) bool { return slices.ContainsFunc(cells, status.Cell.Fault) }

// shown reports for each column of a table whether a page shows it.
func (q *request) shown(of *status.Head, wide bool) (all []bool) {
	for _, c := range of.Columns {
		if c.Kind == status.KindCluster {
			all = append(all, len(q.index.View.Clusters) > 1)
		} else {
			all = append(all, wide || !c.Wide)
		}
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
		// a browser breaks lines at blanks
		if column.Kind != status.KindProse {
			out.Text = strings.ReplaceAll(out.Text, ",", ", ")
		}
		all = append(all, out)
	}
	return all
}
