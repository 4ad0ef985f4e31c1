package page

import (
	"fmt"
	"html/template"
	"math"
	"strings"
)

// A Plot is a curve over the time until now.
type Plot struct {
	Title  string
	Unit   string    // "requests/s"
	Points []float64 // the oldest first; NaN where the value is not known
	Span   string    // the time from the first point to the last, in words
}

// draw returns the plot as a figure with the last value in words.
func (p Plot) draw() template.HTML {
	const width, height = 240.0, 60.0
	top, last, known := 0.0, math.NaN(), 0
	for _, v := range p.Points {
		if !math.IsNaN(v) {
			top, last = max(top, v), v
			known++
		}
	}
	scale := top
	if scale == 0 {
		scale = 1
	}
	now := "not known yet"
	if known > 0 {
		now = number(last) + " " + p.Unit
	}
	var s strings.Builder
	title := template.HTMLEscapeString(p.Title)
	fmt.Fprintf(&s, `<figure class="plot"><figcaption><span>%s</span><b>%s</b></figcaption>`, title,
		template.HTMLEscapeString(now))
	fmt.Fprintf(&s,
		`<svg role="img" viewBox="0 0 %g %g" preserveAspectRatio="none" aria-label="%s: %s now, at most %s in the last %s">`,
		width, height, title, template.HTMLEscapeString(now), number(top), template.HTMLEscapeString(p.Span))
	fmt.Fprintf(&s, `<path class="axis" d="M0 %g H%g"/>`, height-1, width)
	step := width / float64(max(len(p.Points)-1, 1))
	for from := 0; from < len(p.Points); {
		if math.IsNaN(p.Points[from]) {
			from++
			continue
		}
		to := from
		var line strings.Builder
		for ; to < len(p.Points) && !math.IsNaN(p.Points[to]); to++ {
			fmt.Fprintf(&line, "L%.1f %.1f", float64(to)*step, height-2-(height-6)*p.Points[to]/scale)
		}
		curve := "M" + line.String()[1:]
		fmt.Fprintf(&s, `<path class="area" d="%s L%.1f %g L%.1f %g Z"/><path d="%[1]s"/>`, curve, float64(to-1)*step,
			height-1, float64(from)*step, height-1)
		from = to
	}
	fmt.Fprintf(&s, `</svg><figcaption><span>last %s</span><span>at most %s</span></figcaption></figure>`,
		template.HTMLEscapeString(p.Span), number(top))
	return template.HTML(s.String()) //nolint:gosec // every text in it is escaped
}

// number returns a value with as many digits as a reader can use.
func number(v float64) string {
	switch {
	case math.IsNaN(v):
		return "–"
	case v >= 100:
		return Comma(int(math.Round(v)))
	case v >= 10:
		return fmt.Sprintf("%.0f", v)
	case v == math.Trunc(v):
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.1f", v)
}
