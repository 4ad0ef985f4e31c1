package migrate

import (
	_ "embed"
	"html/template"
	"io"
)

//go:embed report.html
var reportHTML string

var reportPage = template.Must(template.New("report").Parse(reportHTML))

// WriteHTML writes Reports of one controller as an HTML page that needs no other file and no script. It
// has all Blocks, those of each Ingress among them.
func WriteHTML(out io.Writer, all []Report) error {
	page := struct {
		Title  string
		Blocks []Block
	}{Title: "What becomes of Ingresses here"}
	for i := range all {
		page.Title = "What becomes of Ingresses of " + controllers[all[i].From] + " here"
		page.Blocks = append(page.Blocks, all[i].Blocks(true)...)
	}
	return reportPage.Execute(out, page)
}
