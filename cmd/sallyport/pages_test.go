package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"sallyport/appliance/config"
	commands "sallyport/test/manual"
)

// pages returns the text of each page of the manual, by its path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all, err := commands.Pages("../..")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var (
	ofBlock = regexp.MustCompile("(?ms)^ *```[a-z]*\n(.*?)^ *```")
	ofSpan  = regexp.MustCompile("`([^`\n]+)`")
)

// code returns the lines of a page that are code, in blocks and within sentences.
func code(page string) (lines []string) {
	for _, m := range ofBlock.FindAllStringSubmatch(page, -1) {
		lines = append(lines, strings.Split(strings.ReplaceAll(m[1], "\\\n", " "), "\n")...)
	}
	for _, m := range ofSpan.FindAllStringSubmatch(ofBlock.ReplaceAllString(page, ""), -1) {
		lines = append(lines, m[1])
	}
	return lines
}

func TestEveryCommandOfThePagesExists(t *testing.T) {
	typed := regexp.MustCompile(`(?:^|[\s/|'"(])sallyport((?: +[^\s|>&;'")]+)+)`)
	count := 0
	for path, text := range pages(t) {
		for _, line := range code(text) {
			for _, m := range typed.FindAllStringSubmatch(line, -1) {
				words := strings.Fields(m[1])
				cmd := command()
				for len(words) > 0 && !strings.HasPrefix(words[0], "-") {
					i := slices.IndexFunc(cmd.Commands(), func(c *cobra.Command) bool { return c.Name() == words[0] })
					if i < 0 {
						break
					}
					cmd, words = cmd.Commands()[i], words[1:]
				}
				if !cmd.HasParent() {
					if regexp.MustCompile(`^[a-z]+$`).MatchString(words[0]) && strings.HasPrefix(line, "sallyport ") {
						t.Errorf("%s: %q: there is no such command", path, line)
					}
					continue
				}
				count++
				for _, w := range words {
					name, _, _ := strings.Cut(strings.TrimRight(w, ".,:`]"), "=")
					long, isLong := strings.CutPrefix(name, "--")
					short, isShort := strings.CutPrefix(name, "-")
					switch {
					case isLong && long != "" && long != "help" && cmd.Flags().Lookup(long) == nil &&
						cmd.InheritedFlags().Lookup(long) == nil:
						t.Errorf("%s: %q: %s has no flag --%s", path, line, cmd.CommandPath(), long)
					case !isLong && isShort && len(short) == 1 && cmd.Flags().ShorthandLookup(short) == nil:
						t.Errorf("%s: %q: %s has no flag -%s", path, line, cmd.CommandPath(), short)
					}
				}
			}
		}
	}
	if count < 60 {
		t.Errorf("the pages have %d commands; are they read?", count)
	}
}

func TestEveryMakeTargetOfThePagesExists(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	target := regexp.MustCompile(`(?:^|[\s|&;(])make ([a-z][a-z-]*)`)
	count := 0
	for path, text := range pages(t) {
		for _, line := range code(text) {
			for _, m := range target.FindAllStringSubmatch(line, -1) {
				if count++; !strings.Contains(string(makefile), "\n"+m[1]+":") {
					t.Errorf("%s: %q: the Makefile has no target %s", path, line, m[1])
				}
			}
		}
	}
	if count < 20 {
		t.Errorf("the pages have %d targets; are they read?", count)
	}
}

// keys returns the names of all keys of the configuration file.
func keys(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	var walk func(root map[string]any, at string, node any)
	walk = func(root map[string]any, at string, node any) {
		m, _ := node.(map[string]any)
		if ref, ok := m["$ref"].(string); ok {
			definitions, _ := root["$defs"].(map[string]any)
			walk(root, at, definitions[filepath.Base(ref)])
		}
		either, _ := m["anyOf"].([]any)
		for _, one := range either {
			walk(root, at, one)
		}
		walkList := m["items"]
		if walkList != nil {
			walk(root, at+"[]", walkList)
		}
		properties, _ := m["properties"].(map[string]any)
		for name, value := range properties {
			key := strings.TrimPrefix(at+"."+name, ".")
			all[key] = true
			walk(root, key, value)
		}
	}
	var root map[string]any
	if err := json.Unmarshal(config.Schema(), &root); err != nil {
		t.Fatal(err)
	}
	walk(root, "", root)
	return all
}

func TestEveryConfigurationKeyOfThePagesExists(t *testing.T) {
	known := keys(t)
	key := regexp.MustCompile(
		`^((?:clusters\[\]|bgp|haproxy|status|log|group|routes|system)(?:\.[a-zA-Z]+(?:\[\])?)+)(?:: .*)?$`)
	count := 0
	for path, text := range pages(t) {
		for _, m := range ofSpan.FindAllStringSubmatch(ofBlock.ReplaceAllString(text, ""), -1) {
			name := key.FindStringSubmatch(m[1])
			if name == nil || strings.HasPrefix(name[1], "status.loadBalancer") || // of Kubernetes
				regexp.MustCompile(`\.(go|md|cfg|yaml|service|map|sock|pid|log|lua|test)$`).MatchString(name[1]) {
				continue
			}
			if count++; !known[strings.TrimSuffix(name[1], "[]")] {
				t.Errorf("%s: %q: the configuration has no key %s", path, m[1], name[1])
			}
		}
	}
	if count < 100 {
		t.Errorf("the pages have %d keys; are they read?", count)
	}
}

func TestEveryLinkOfThePagesLeadsSomewhere(t *testing.T) {
	all := pages(t)
	link := regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]*))?\)`)
	heading := regexp.MustCompile(`(?m)^#+ (.*)$`)
	for path, text := range all {
		for _, m := range link.FindAllStringSubmatch(ofBlock.ReplaceAllString(text, ""), -1) {
			to := path
			if m[1] != "" {
				to = filepath.Join(filepath.Dir(path), m[1])
			}
			if _, err := os.Stat(filepath.Join("../..", to)); err != nil {
				t.Errorf("%s: %s: %v", path, m[0], err)
				continue
			}
			if m[2] == "" {
				continue
			}
			if !slices.ContainsFunc(heading.FindAllStringSubmatch(all[to], -1), func(h []string) bool {
				anchor := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(h[1]), "")
				return strings.ReplaceAll(anchor, " ", "-") == m[2]
			}) {
				t.Errorf("%s: %s has no heading for #%s", path, to, m[2])
			}
		}
	}
}
