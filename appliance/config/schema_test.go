package config_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"log/slog"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/invopop/jsonschema"

	"sallyport/appliance/config"
)

var update = flag.Bool("update", false, "write the golden files anew")

// schemaNow returns the schema of the types, as schema.json is to have it.
func schemaNow(t *testing.T) []byte {
	t.Helper()
	r := jsonschema.Reflector{
		BaseSchemaID: "https://sallyport.invalid", Anonymous: true, ExpandedStruct: true,
		RequiredFromJSONSchemaTags: true, Mapper: leaves,
	}
	if err := r.AddGoComments("sallyport/appliance/config", ".", jsonschema.WithFullComment()); err != nil {
		t.Fatal(err)
	}
	for key, comment := range r.CommentMap { // an editor wraps it, and not where the comment in the code does
		r.CommentMap[key] = strings.ReplaceAll(comment, "\n", " ")
	}
	s := r.Reflect(config.Config{})
	s.Title = "Sallyport configuration"
	// BFD is its keys, or false.
	s.Definitions["BFD"] = &jsonschema.Schema{AnyOf: []*jsonschema.Schema{
		s.Definitions["BFD"],
		{Type: "boolean", Enum: []any{false}},
	}}
	want, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(want, '\n')
}

func TestTheSchemaIsThatOfTheTypes(t *testing.T) {
	want := schemaNow(t)
	if *update {
		if err := os.WriteFile("schema.json", want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(want, config.Schema()) {
		t.Errorf("schema.json is old; run make golden. want -, got +:\n%s",
			cmp.Diff(string(want), string(config.Schema())))
	}
}

// leaves returns the JSON Schema of a type that is written as one value.
func leaves(t reflect.Type) *jsonschema.Schema {
	text := func(pattern string) *jsonschema.Schema { return &jsonschema.Schema{Type: "string", Pattern: pattern} }
	switch t {
	case reflect.TypeFor[time.Duration]():
		return text(`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`)
	case reflect.TypeFor[netip.Addr]():
		return text(`^[0-9a-fA-F.:]+$`)
	case reflect.TypeFor[netip.Prefix](), reflect.TypeFor[config.Address]():
		return text(`^[0-9a-fA-F.:]+/[0-9]{1,3}$`)
	case reflect.TypeFor[config.Pool]():
		return text(`^[0-9a-fA-F.:]+(/[0-9]{1,3}|-[0-9a-fA-F.:]+)?$`)
	case reflect.TypeFor[netip.AddrPort]():
		return text(`^(\[[0-9a-fA-F:]+\]|[0-9.]*):[0-9]{1,5}$`)
	case reflect.TypeFor[config.AccessLog]():
		return text(`^(off|stdout|(\[[0-9a-fA-F:]+\]|[0-9.]+):[0-9]{1,5})$`)
	case reflect.TypeFor[config.Secret](), reflect.TypeFor[config.PEM](), reflect.TypeFor[slog.Level]():
		return text("")
	case reflect.TypeFor[config.Source]():
		return text(`^[0-9.]+(/[0-9]{1,2})?$`)
	case reflect.TypeFor[config.MinReady]():
		return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{
			{Type: "integer", Minimum: "1", Maximum: "1000"}, text(`^([1-9][0-9]?|100)%$`),
		}}
	case reflect.TypeFor[config.Kubeconfig]():
		return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Type: "string"}, {Type: "object"}}}
	}
	return nil
}

func TestEveryKeyIsDescribed(t *testing.T) {
	var schema map[string]any
	if err := json.Unmarshal(config.Schema(), &schema); err != nil {
		t.Fatal(err)
	}
	count := 0
	var walk func(path string, node any)
	walk = func(path string, node any) {
		m, ok := node.(map[string]any)
		if !ok {
			return
		}
		for key, child := range m {
			if properties, ok := child.(map[string]any); ok && key == "properties" {
				for name, property := range properties {
					count++
					at := strings.TrimPrefix(path+"."+name, ".")
					if description, _ := property.(map[string]any)["description"].(string); description == "" {
						t.Errorf("%s has no description", at)
					}
				}
			}
			walk(path+"/"+key, child)
		}
	}
	walk("", schema)
	if count < 40 {
		t.Errorf("only %d keys found in the schema", count)
	}
}
