package haproxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/go-openapi/strfmt"
	parser "github.com/haproxytech/client-native/v6/config-parser"
	"github.com/haproxytech/client-native/v6/config-parser/types"
	"github.com/haproxytech/client-native/v6/configuration"
	"github.com/haproxytech/client-native/v6/configuration/options"
	"github.com/haproxytech/client-native/v6/models"
)

// ModelText returns the lines of a backend as a Text. model is the JSON of a Backend of client-native's
// models, without its name. ModelText returns an error if a value is not allowed, or if ParseText rejects
// a line. It rejects a model that says nothing.
func ModelText(model []byte) (t Text, err error) {
	defer func() { // some models have pointers that client-native does not check
		if r := recover(); r != nil {
			t, err = Text{}, errors.New("a list has an entry without a value that it needs")
		}
	}()
	var m models.Backend
	if err := json.Unmarshal(model, &m); err != nil {
		return Text{}, fmt.Errorf("it is no backend: %w", err)
	}
	m.Name = modelName
	if err := m.Validate(strfmt.Default); err != nil {
		return Text{}, invalid(err)
	}
	lines, err := writeModel(&m)
	if err != nil {
		return Text{}, err
	}
	return ParseText(BackendSection, lines)
}

// modelName is the name of a backend while its lines are written.
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

// writeModel returns the lines of a backend without the line with its name.
func writeModel(m *models.Backend) (string, error) {
	p, err := parser.New()
	if err != nil {
		return "", err
	}
	o := &options.ConfigurationOptions{}
	parsing.Lock()
	defer parsing.Unlock()
	if err := p.SectionsCreate(parser.Backends, modelName); err != nil {
		return "", err
	}
	if err := configuration.CreateEditSection(&m.BackendBase, parser.Backends, modelName, p, o); err != nil {
		return "", err
	}
	insert := func(attribute string, i int, line any, err error) error {
		if err != nil {
			return fmt.Errorf("entry %d of %s: %w", i+1, attribute, err)
		}
		return p.Insert(parser.Backends, modelName, attribute, line, i)
	}
	err = errors.Join(
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
	_, lines, _ := strings.Cut(strings.TrimLeft(p.String(), "\n"), "\n")
	return lines, err
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
