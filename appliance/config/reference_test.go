package config_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/invopop/jsonschema"

	"sallyport/test/manual"
)

// reference returns a row of a table for each key below a schema.
func reference(root, of *jsonschema.Schema, at string) (rows []string) {
	for _, s := range append([]*jsonschema.Schema{of}, of.AnyOf...) {
		if s.Ref != "" {
			s = root.Definitions[s.Ref[strings.LastIndexByte(s.Ref, '/')+1:]]
			rows = append(rows, reference(root, s, at)...)
			continue
		}
		for pair := s.Properties.Oldest(); pair != nil; pair = pair.Next() {
			key, value := strings.TrimPrefix(at+"."+pair.Key, "."), pair.Value
			below := reference(root, value, key)
			if value.Items != nil {
				below = reference(root, value.Items, key+"[]")
			}
			if value.Default == nil && len(below) > 0 {
				rows = append(rows, below...)
				continue
			}
			standard := ""
			if value.Default != nil {
				text, _ := json.Marshal(value.Default)
				standard = "`" + strings.Trim(string(text), `"`) + "`"
			}
			meaning := strings.NewReplacer("|", `\|`, "\n", " ").Replace(value.Description)
			if len(value.Enum) > 0 {
				meaning += " One of " + strings.ReplaceAll(strings.Trim(fmt.Sprint(value.Enum), "[]"), " ", ", ") + "."
			}
			rows = append(append(rows, fmt.Sprintf("| `%s` | %s | %s |\n", key, standard, meaning)), below...)
		}
	}
	return rows
}

func TestTheReferenceIsThatOfTheSchema(t *testing.T) {
	root := new(jsonschema.Schema)
	if err := json.Unmarshal(schemaNow(t), root); err != nil {
		t.Fatal(err)
	}
	rows := reference(root, root, "")
	if len(rows) < 60 {
		t.Fatalf("only %d keys: %q", len(rows), rows)
	}
	table := "| key | default | meaning |\n|---|---|---|\n" + strings.Join(rows, "")
	manual.Hold(t, "../README.md", "keys", table, *update)
}
