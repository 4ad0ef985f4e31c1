package haproxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/go-openapi/strfmt"
	parser "github.com/haproxytech/client-native/v6/config-parser"
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
	var all []error
	for i, one := range m.ACLList {
		all = append(all, insert("acl", i, configuration.SerializeACL(*one), nil))
	}
	for i, one := range m.FilterList {
		all = append(all, insert("filter", i, configuration.SerializeFilter(*one, o), nil))
	}
	for i, one := range m.StickRuleList {
		all = append(all, insert("stick", i, configuration.SerializeStickRule(*one), nil))
	}
	for i, one := range m.HTTPAfterResponseRuleList {
		line, err := configuration.SerializeHTTPAfterRule(*one)
		all = append(all, insert("http-after-response", i, line, err))
	}
	for i, one := range m.HTTPCheckList {
		line, err := configuration.SerializeHTTPCheck(*one)
		all = append(all, insert("http-check", i, line, err))
	}
	for i, one := range m.HTTPErrorRuleList {
		line, err := configuration.SerializeHTTPErrorRule(*one)
		all = append(all, insert("http-error", i, line, err))
	}
	for i, one := range m.HTTPRequestRuleList {
		line, err := configuration.SerializeHTTPRequestRule(*one, o)
		all = append(all, insert("http-request", i, line, err))
	}
	for i, one := range m.HTTPResponseRuleList {
		line, err := configuration.SerializeHTTPResponseRule(*one, o)
		all = append(all, insert("http-response", i, line, err))
	}
	for i, one := range m.TCPCheckRuleList {
		line, err := configuration.SerializeTCPCheck(*one)
		all = append(all, insert("tcp-check", i, line, err))
	}
	for i, one := range m.TCPRequestRuleList {
		line, err := configuration.SerializeTCPRequestRule(*one, o)
		all = append(all, insert("tcp-request", i, line, err))
	}
	for i, one := range m.TCPResponseRuleList {
		line, err := configuration.SerializeTCPResponseRule(*one, o)
		all = append(all, insert("tcp-response", i, line, err))
	}
	text := bytes.TrimLeft([]byte(p.String()), "\n")
	_, lines, _ := strings.Cut(string(text), "\n")
	return lines, errors.Join(all...)
}
