package page

import (
	"fmt"
	"html/template"
	"strings"
)

// A Diagram shows the paths from the clients through the appliance to the pods, one row
// for each node. A path has two doors: the server in HAProxy and the route in the kernel.
type Diagram struct {
	Summary   string // the diagram in a sentence, for those who do not see it
	Clients   Box
	Entrance  Door // between the clients and the appliance; without a label only its line is drawn
	Appliance Box
	Rows      []Row
}

// A Row is the path over one node, or over several nodes that are alike.
type Row struct {
	Server Door
	Route  Door
	Node   Box
	Pods   Box
	Why    []string // why a door is shut, or why pods do not answer, a sentence each
}

// A Box is a place that packets pass.
type Box struct {
	Title string
	Lines []string
	Notes []Line // below the lines
	Href  string
	Mark  Mark
}

// height returns the height that a box needs, in pixels.
func (b *Box) height() int { return 30 + 16*(len(b.Lines)+len(b.Notes)) }

// A Door lets packets through while it is open: Good is open, Warn partly, Bad shut. An Idle door
// has no packets to let through.
type Door struct {
	Mark  Mark
	Label string
}

// text returns the symbol of a door, its name and the word for its state. The name may be empty.
func (d Door) text(name string) string {
	word := map[Mark]string{Good: "open", Warn: "partly open", Bad: "shut", Idle: "unused"}[d.Mark]
	return strings.Join(strings.Fields(d.Mark.Symbol()+" "+name+" "+word), " ")
}

// Mark returns the mark of the whole path.
func (r *Row) Mark() Mark { return r.Server.Mark.Worse(r.Route.Mark).Worse(r.Pods.Mark) }

// whyMark returns the mark for the sentences of Why. A node may need attention while its path is
// open.
func (r *Row) whyMark() Mark { return r.Mark().Worse(r.Node.Mark) }

// draw returns the diagram twice, for wide and for narrow screens; the style sheet shows
// one of them.
func (d *Diagram) draw() template.HTML {
	return template.HTML(d.wide() + d.narrow()) //nolint:gosec // svg escapes every text
}

// svg writes elements of SVG. It escapes every text.
type svg struct{ strings.Builder }

func (s *svg) open(class, id string, w, h int, summary string) {
	fmt.Fprintf(s,
		`<svg class="diagram %s" role="group" viewBox="0 0 %d %d" aria-labelledby="%s-title %[4]s-desc"><title id="%[4]s-title">Paths from clients to pods</title><desc id="%[4]s-desc">%[5]s</desc>`,
		class, w, h, id, template.HTMLEscapeString(summary))
}

func (s *svg) text(x, y int, class, text string) {
	fmt.Fprintf(s, `<text x="%d" y="%d" class="%s">%s</text>`, x, y, class, template.HTMLEscapeString(text))
}

func (s *svg) line(class string, x1, y1, x2, y2 int) {
	fmt.Fprintf(s, `<path class="%s" d="M%d %dL%d %d"/>`, class, x1, y1, x2, y2)
}

// box draws a box with its title and lines, as a link if it has an address. Letters that
// do not fit are left out; the page behind the link has them.
func (s *svg) box(b Box, x, y, w, h int) {
	if b.Href != "" {
		parts := append([]string{b.Title}, b.Lines...)
		for _, n := range b.Notes {
			parts = append(parts, n.Text)
		}
		name := strings.Join(parts, ", ")
		if b.Mark != Plain {
			name += ": " + b.Mark.Word()
		}
		fmt.Fprintf(s, `<a href="%s" aria-label="%s">`, template.HTMLEscapeString(b.Href),
			template.HTMLEscapeString(name))
		defer s.WriteString("</a>")
	}
	fmt.Fprintf(s, `<rect class="%s" x="%d" y="%d" width="%d" height="%d" rx="7"/>`, b.Mark.Class(), x, y, w, h)
	letters := (w - 20) * 10 / 72
	title := b.Title
	if b.Mark == Warn || b.Mark == Bad {
		title = b.Mark.Symbol() + " " + title
	}
	s.text(x+12, y+21, "t "+b.Mark.Class(), cut(title, letters))
	for i, line := range b.Lines {
		s.text(x+12, y+38+16*i, "s", cut(line, letters+2))
	}
	for i, n := range b.Notes {
		s.text(x+12, y+38+16*(len(b.Lines)+i), "s "+n.Mark.Class(),
			cut(strings.TrimSpace(n.Mark.Symbol()+" "+n.Text), letters+2))
	}
}

// door draws a door in a path at height y, and its label below.
func (s *svg) door(d Door, x, y int) {
	class := d.Mark.Class()
	switch d.Mark {
	case Bad:
		s.line("bar "+class, x, y-19, x, y+19)
	case Warn: // one wing is open
		s.line("post "+class, x, y-19, x, y-2)
		s.line("post "+class, x, y+9, x, y+19)
	default:
		s.line("post "+class, x, y-19, x, y-8)
		s.line("post "+class, x, y+8, x, y+19)
	}
}

const why = 15 // pixels between two lines of an explanation

func (d *Diagram) wide() string {
	const (
		width                     = 1140
		clients, clientsW         = 1, 142
		appliance, applianceW     = 186, 172
		server, route             = 412, 560
		node, nodeW, pods, podsW  = 672, 206, 930, 209
		top, box, gap, lineLength = 26, 56, 16, 112
	)
	var s svg
	height := top
	ys := make([]int, len(d.Rows))
	whys := make([][]string, len(d.Rows))
	for i, r := range d.Rows {
		ys[i] = height
		for _, sentence := range r.Why {
			whys[i] = append(whys[i], wrap(sentence, lineLength)...)
		}
		height += box + gap
		if n := len(whys[i]); n > 0 {
			height += why*n + 9
		}
	}
	clientsH := max(56, d.Clients.height())
	height = max(height, top+96, top+d.Appliance.height()+gap)
	if d.Entrance.Label != "" {
		height = max(height, top+clientsH+40)
	}
	s.open("wide", "wide", width, height, d.Summary)
	for _, h := range []struct {
		x    int
		text string
	}{
		{clients, "clients"},
		{appliance, "this appliance"},
		{server - 22, "door 1: server"},
		{route - 22, "door 2: route"},
		{node, "node"},
		{pods, "pods"},
	} {
		s.text(h.x, 14, "h", h.text)
	}
	s.line(d.Entrance.Mark.Class(), clients+clientsW, top+28, appliance, top+28)
	s.box(d.Clients, clients, top, clientsW, clientsH)
	if d.Entrance.Label != "" {
		s.door(d.Entrance, (clients+clientsW+appliance)/2, top+28)
		s.text(clients, top+clientsH+20, d.Entrance.Mark.Class(), d.Entrance.text("entrance"))
		s.text(clients, top+clientsH+36, "s", cut(d.Entrance.Label, 29))
	}
	s.box(d.Appliance, appliance, top, applianceW, height-top-gap+1)
	for i, r := range d.Rows {
		y := ys[i] + box/2
		mark := r.Mark()
		after := func(d ...Door) string {
			for _, d := range d {
				if d.Mark == Bad {
					return "off"
				}
			}
			return mark.Class()
		}
		s.line(mark.Class(), appliance+applianceW, y, server, y)
		s.line(after(r.Server), server, y, route, y)
		s.line(after(r.Server, r.Route), route, y, node, y)
		s.line(after(r.Server, r.Route), node+nodeW, y, pods, y)
		s.door(r.Server, server, y)
		s.door(r.Route, route, y)
		s.label(r.Server, server+10, y)
		s.label(r.Route, route+10, y)
		s.box(r.Node, node, ys[i], nodeW, box)
		s.box(r.Pods, pods, ys[i], podsW, box)
		for j, line := range whys[i] {
			s.text(server-32, ys[i]+box+3+why*(j+1), r.whyMark().Class(), line)
		}
	}
	return s.String() + "</svg>"
}

// label writes the state of a door at its right: the symbol and a word above the path, and the
// label below.
func (s *svg) label(d Door, x, y int) {
	s.text(x, y-8, d.Mark.Class(), d.text(""))
	s.text(x, y+19, "s", cut(d.Label, 19))
}

func (d *Diagram) narrow() string {
	const (
		width, spine, left, letters = 340, 14, 34, 42
		step                        = 18
	)
	var s, body svg
	y := 0
	head := func(b Box) {
		h := b.height()
		body.box(b, 1, y, width-2, h)
		y += h
	}
	doors := func(name string, door Door, x int) {
		body.text(x, y, door.Mark.Class(), door.text(name))
		body.text(x+138, y, "s", cut(door.Label, 26))
		y += step
	}
	head(d.Clients)
	from := y
	y += step
	if d.Entrance.Label != "" {
		doors("entrance", d.Entrance, left+12)
	}
	body.line(d.Entrance.Mark.Class(), spine, from, spine, y-4)
	y -= 4
	head(d.Appliance)
	begin := y
	y += 14
	last := y
	for _, r := range d.Rows {
		mark := r.Mark()
		last = y + 25
		body.line(mark.Class(), spine, last, left, last)
		body.box(r.Node, left, y, width-left-1, 50)
		y += 50 + step
		doors("server", r.Server, left+12)
		doors("route", r.Route, left+12)
		y -= 6
		body.box(r.Pods, left+10, y, width-left-11, 50)
		y += 50 + 4
		for _, sentence := range r.Why {
			for _, line := range wrap(sentence, letters) {
				y += why
				body.text(left+10, y, r.whyMark().Class(), line)
			}
		}
		y += 18
	}
	body.line("", spine, begin, spine, last)
	s.open("narrow", "narrow", width, y, d.Summary)
	return s.String() + body.String() + "</svg>"
}

// cut shortens a text to a number of letters.
func cut(text string, letters int) string {
	r := []rune(text)
	if len(r) <= letters {
		return text
	}
	return string(r[:max(letters-1, 0)]) + "…"
}

// wrap breaks a sentence into lines of at most so many letters. It also breaks longer words.
func wrap(text string, letters int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		for {
			switch n := len([]rune(line)) + 1 + len([]rune(word)); {
			case line == "" && n-1 <= letters:
				line = word
			case line != "" && n <= letters:
				line += " " + word
			case line != "":
				lines, line = append(lines, line), ""
				continue
			default:
				r := []rune(word)
				lines, word = append(lines, string(r[:letters])), string(r[letters:])
				continue
			}
			break
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
