package haproxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/go-openapi/strfmt"
	parser "github.com/haproxytech/client-native/v6/config-parser"
	"github.com/haproxytech/client-native/v6/config-parser/types"
	"github.com/haproxytech/client-native/v6/configuration"
	"github.com/haproxytech/client-native/v6/configuration/options"
	"github.com/haproxytech/client-native/v6/models"
)

// ModelText returns the lines of a section as a Text. The section is BackendSection, DefaultsSection,
// GlobalSection, HTTPSection or HTTPSSection. model is the JSON of client-native's model of the section,
// without a name. ModelText ignores the lists of rules of defaults: HAProxy rejects rules in a section defaults
// without a name. ModelText returns an error if a value is not allowed, or if ParseText rejects a line. It
// returns ErrNoLine for a model that says nothing.
func ModelText(section Section, model []byte) (t Text, err error) {
	defer func() { // some models have pointers that client-native does not check
		if r := recover(); r != nil {
			t, err = Text{}, errors.New("a list has an entry without a value that it needs")
		}
	}()
	m := newModel(section)
	if err := json.Unmarshal(model, m); err != nil {
		return Text{}, fmt.Errorf("it is no %s: %w", section, err)
	}
	switch m := m.(type) {
	case *models.Defaults:
		m.Name = modelName
	case *models.Backend:
		m.Name = modelName
	case *models.Frontend:
		m.Name = modelName
	}
	if err := m.Validate(strfmt.Default); err != nil {
		return Text{}, invalid(err)
	}
	lines, err := writeModel(m)
	if err != nil {
		return Text{}, err
	}
	return ParseText(section, lines)
}

// A model is client-native's model of a section.
type model interface {
	Validate(formats strfmt.Registry) error
}

// newModel returns an empty model of a section.
func newModel(section Section) model {
	switch section {
	case GlobalSection:
		return new(models.Global)
	case DefaultsSection:
		return new(models.Defaults)
	case HTTPSection, HTTPSSection:
		return new(models.Frontend)
	default:
		return new(models.Backend)
	}
}

// UnknownParts returns the parts of a model that client-native does not know, and that ModelText therefore
// leaves out. The names of a part and of all around it have dots between them. The entries of a list have no
// names.
func UnknownParts(section Section, model []byte) []string {
	var value any
	if json.Unmarshal(model, &value) != nil {
		return nil
	}
	found := make(map[string]bool)
	findUnknown(reflect.TypeOf(newModel(section)), value, "", found)
	return slices.Sorted(maps.Keys(found))
}

// findUnknown adds the parts of a value that its type does not have.
func findUnknown(of reflect.Type, value any, at string, found map[string]bool) {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		of = of.Elem()
	}
	switch value := value.(type) {
	case []any:
		for _, one := range value {
			findUnknown(of, one, at, found)
		}
	case map[string]any:
		if of.Kind() != reflect.Struct {
			return
		}
		parts := partsOf(of)
		for name, one := range value {
			if part := parts[strings.ToLower(name)]; part == nil {
				found[at+name] = true
			} else {
				findUnknown(part, one, at+name+".", found)
			}
		}
	}
}

// partsOf returns the types of the parts of a struct by their names in JSON, in lower case: their case does
// not count.
func partsOf(of reflect.Type) map[string]reflect.Type {
	if known, has := knownParts.Load(of); has {
		return known.(map[string]reflect.Type)
	}
	parts := make(map[string]reflect.Type)
	for f := range of.Fields() {
		switch name, _, _ := strings.Cut(f.Tag.Get("json"), ","); {
		case name != "":
			parts[strings.ToLower(name)] = f.Type
		case f.Anonymous:
			maps.Copy(parts, partsOf(f.Type))
		}
	}
	knownParts.Store(of, parts)
	return parts
}

// knownParts has the parts of each struct that partsOf has seen.
var knownParts sync.Map

// modelName is the name of a section while its lines are written.
const modelName = "model"

// invalid returns the causes of client-native's error on one line.
func invalid(err error) error {
	var causes []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); line != "" && line != "validation failure list:" {
			causes = append(causes, strings.Replace(line, " in body ", " ", 1))
		}
	}
	return errors.New(strings.Join(causes, "; "))
}

// writeModel returns the lines of a section without the line that begins it.
func writeModel(m model) (string, error) {
	p, err := parser.New()
	if err != nil {
		return "", err
	}
	o := &options.ConfigurationOptions{}
	parsing.Lock()
	defer parsing.Unlock()
	switch m := m.(type) {
	case *models.Global:
		err = configuration.SerializeGlobalSection(p, m, o)
	case *models.Defaults:
		err = createSection(p, parser.Defaults, &m.DefaultsBase, o)
	case *models.Frontend:
		err = writeFrontend(m, p, o)
	case *models.Backend:
		err = writeBackend(m, p, o)
	}
	_, lines, _ := strings.Cut(strings.TrimLeft(p.String(), "\n"), "\n")
	return lines, err
}

// createSection adds a section to a configuration, with the lines of a model that are not in lists.
func createSection(p parser.Parser, section parser.Section, base any, o *options.ConfigurationOptions) error {
	if err := p.SectionsCreate(section, modelName); err != nil {
		return err
	}
	return configuration.CreateEditSection(base, section, modelName, p, o)
}

// writeBackend adds a backend to a configuration.
func writeBackend(m *models.Backend, p parser.Parser, o *options.ConfigurationOptions) error {
	if err := createSection(p, parser.Backends, &m.BackendBase, o); err != nil {
		return err
	}
	insert := inserter(p, parser.Backends)
	return errors.Join(
		insertAll(insert, "acl", m.ACLList, sure(configuration.SerializeACL)),
		insertAll(insert, "filter", m.FilterList, sure(func(f models.Filter) types.Filter {
			return configuration.SerializeFilter(f, o)
		})),
		insertAll(insert, "stick", m.StickRuleList, sure(configuration.SerializeStickRule)),
		insertAll(insert, "http-after-response", m.HTTPAfterResponseRuleList, configuration.SerializeHTTPAfterRule),
		insertAll(insert, "http-check", m.HTTPCheckList, configuration.SerializeHTTPCheck),
		insertAll(insert, "http-error", m.HTTPErrorRuleList, configuration.SerializeHTTPErrorRule),
		insertAll(insert, "http-request", m.HTTPRequestRuleList, given(o, configuration.SerializeHTTPRequestRule)),
		insertAll(insert, "http-response", m.HTTPResponseRuleList, given(o, configuration.SerializeHTTPResponseRule)),
		insertAll(insert, "tcp-check", m.TCPCheckRuleList, configuration.SerializeTCPCheck),
		insertAll(insert, "tcp-request", m.TCPRequestRuleList, given(o, configuration.SerializeTCPRequestRule)),
		insertAll(insert, "tcp-response", m.TCPResponseRuleList, given(o, configuration.SerializeTCPResponseRule)),
	)
}

// writeFrontend adds a frontend to a configuration.
func writeFrontend(m *models.Frontend, p parser.Parser, o *options.ConfigurationOptions) error {
	if err := createSection(p, parser.Frontends, &m.FrontendBase, o); err != nil {
		return err
	}
	insert := inserter(p, parser.Frontends)
	return errors.Join(
		insertAll(insert, "acl", m.ACLList, sure(configuration.SerializeACL)),
		insertAll(insert, "declare capture", m.CaptureList, sure(configuration.SerializeDeclareCapture)),
		insertAll(insert, "filter", m.FilterList, sure(func(f models.Filter) types.Filter {
			return configuration.SerializeFilter(f, o)
		})),
		insertAll(insert, "http-after-response", m.HTTPAfterResponseRuleList, configuration.SerializeHTTPAfterRule),
		insertAll(insert, "http-error", m.HTTPErrorRuleList, configuration.SerializeHTTPErrorRule),
		insertAll(insert, "http-request", m.HTTPRequestRuleList, given(o, configuration.SerializeHTTPRequestRule)),
		insertAll(insert, "http-response", m.HTTPResponseRuleList, given(o, configuration.SerializeHTTPResponseRule)),
		insertAll(insert, "tcp-request", m.TCPRequestRuleList, given(o, configuration.SerializeTCPRequestRule)),
	)
}

// inserter returns a function that inserts a line into the section with the model, unless it has an error.
func inserter(p parser.Parser, section parser.Section) func(attribute string, i int, line any, err error) error {
	return func(attribute string, i int, line any, err error) error {
		if err != nil {
			return fmt.Errorf("entry %d of %s: %w", i+1, attribute, err)
		}
		return p.Insert(section, modelName, attribute, line, i)
	}
}

// insertAll inserts a line for each entry of a list.
func insertAll[M, L any](
	insert func(attribute string, i int, line any, err error) error,
	attribute string, list []*M, write func(M) (L, error),
) error {
	var all []error
	for i, one := range list {
		line, err := write(*one)
		all = append(all, insert(attribute, i, line, err))
	}
	return errors.Join(all...)
}

// sure returns a function of client-native that cannot fail as one that returns an error.
func sure[M, L any](write func(M) L) func(M) (L, error) {
	return func(m M) (L, error) { return write(m), nil }
}

// given returns a function of client-native with its options.
func given[M, L any](
	o *options.ConfigurationOptions, write func(M, *options.ConfigurationOptions) (L, error),
) func(M) (L, error) {
	return func(m M) (L, error) { return write(m, o) }
}
