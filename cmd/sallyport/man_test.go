package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"sallyport/test/manual"
)

// The build of the Debian package sets it.
var manDir = flag.String("manual", "", "write the manual pages into this folder (absolute)")

// writeManual writes sallyport(1), a page for each command, and sallyport.yaml(5), whose keys
// are those of appliance/README.md.
func writeManual(root *cobra.Command, dir string) error {
	one, five := filepath.Join(dir, "man1"), filepath.Join(dir, "man5")
	if err := errors.Join(os.MkdirAll(one, 0o755), os.MkdirAll(five, 0o755)); err != nil {
		return err
	}
	root.DisableAutoGenTag = true
	if err := doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "Sallyport", Manual: "Sallyport"},
		one); err != nil {
		return err
	}
	page, err := os.ReadFile("../../appliance/README.md")
	if err != nil {
		return err
	}
	_, table, _, ok := manual.Part(string(page), "keys")
	if !ok {
		return errors.New("appliance/README.md has no table of keys")
	}
	roff := strings.NewReplacer(`\|`, "|", `\`, `\e`, "-", `\-`, "`", "")
	var b strings.Builder
	b.WriteString(".TH SALLYPORT.YAML 5 \"\" Sallyport Sallyport\n.SH NAME\n" +
		"sallyport.yaml \\- configuration of sallyport(1)\n" +
		".SH DESCRIPTION\n" +
		"The file is /etc/sallyport/sallyport.yaml. \\fBsallyport config example\\fR prints one, \\fBsallyport " +
		"config check\\fR checks one.\n" +
		"A key within another is written here with a dot between them, and one of each item of a list with [].\n" +
		".SH KEYS\n")
	for line := range strings.Lines(table) {
		cells := strings.SplitN(strings.Trim(strings.TrimSpace(line), "|"), " | ", 3)
		if len(cells) != 3 || !strings.Contains(cells[0], "`") {
			continue
		}
		key, standard, meaning := strings.TrimSpace(cells[0]), strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2])
		fmt.Fprintf(&b, ".TP\n\\fB%s\\fR\n\\&%s", roff.Replace(key), roff.Replace(meaning))
		if standard != "" {
			fmt.Fprintf(&b, " Default: %s.", roff.Replace(standard))
		}
		b.WriteString("\n")
	}
	b.WriteString(".SH SEE ALSO\nsallyport(1), sallyport\\-config(1)\n")
	return os.WriteFile(filepath.Join(five, "sallyport.yaml.5"), []byte(b.String()), 0o644)
}

func TestTheManualHasAPageForEachCommand(t *testing.T) {
	dir := *manDir
	if dir == "" {
		dir = t.TempDir()
	}
	root := command()
	if err := writeManual(root, dir); err != nil {
		t.Fatal(err)
	}
	has := func(page string, words ...string) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(dir, page))
		if err != nil {
			t.Error(err)
		}
		for _, w := range words {
			if !strings.Contains(string(text), w) {
				t.Errorf("%s does not have %q", page, w)
			}
		}
	}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		has("man1/"+strings.ReplaceAll(c.CommandPath(), " ", "-")+".1", ".SH NAME", c.Short)
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				walk(sub)
			}
		}
	}
	walk(root)
	has("man5/sallyport.yaml.5", "clusters[].bgp.ttlSecurity", "haproxy.accessLog", "Default: 78.")
}
