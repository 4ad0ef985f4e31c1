package kic

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
)

// A sectionKind is a kind of resources about one section of HAProxy's configuration.
type sectionKind struct {
	key    string // of the ConfigMap, which names the resource
	into   haproxy.Section
	fields map[string]*Field // by their names; a part of a group has the name of the group before it
	groups map[string]bool   // the names of groups: each part of a group is a field
	guards bool              // an unknown field may keep clients out
	older  []prefix          // of names of ingress.v1.haproxy.org
}

// Defaults reads the spec of a Defaults. older says that the resource is of ingress.v1.haproxy.org. An error
// means that nothing of it may be used. A field that is wrong has an error of its own, and leaves the others as
// they are: none keeps clients out.
func Defaults(spec []byte, older bool) (*annotations.Section, error) {
	return ofDefaults.read(spec, older)
}

// Global reads the spec of a Global as Defaults reads that of a Defaults.
func Global(spec []byte, older bool) (*annotations.Section, error) { return ofGlobal.read(spec, older) }

// Frontend reads the spec of a Frontend as Defaults reads that of a Defaults. Its lines are for HTTPSection or
// HTTPSSection. Its rules may keep clients out, and so may a field that is not known.
func Frontend(spec []byte, into haproxy.Section) (*annotations.Section, error) {
	return ofFrontends[into].read(spec, false)
}

func (k *sectionKind) read(spec []byte, older bool) (*annotations.Section, error) {
	if err := checkSize(spec); err != nil {
		return nil, err
	}
	fields, err := k.flat(spec, older)
	if err != nil {
		return nil, err
	}
	r := &reading{as: k.key, fields: fields, lines: make(map[string]json.RawMessage)}
	s := new(annotations.Section)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if r.at = name; empty(fields[name]) {
			continue
		}
		text, err := k.take(r, fields[name], older)
		if err != nil || text != (haproxy.Text{}) {
			f := k.fields[name]
			s.Fields = append(s.Fields, annotations.FieldText{
				Name: name, Text: text, Err: err, Guard: k.guards && (f == nil || f.Rules),
			})
		}
	}
	if len(r.lines) > 0 && k.guards {
		s.Fields = append(s.Fields, k.ofRules(r))
	}
	s.Said, s.Left = r.Said, r.Left
	return s, nil
}

// take reads the field that r is at. It returns the lines of a field that becomes lines.
func (k *sectionKind) take(r *reading, value json.RawMessage, older bool) (t haproxy.Text, err error) {
	f := k.fields[r.at]
	switch {
	case f == nil && k.guards:
		return t, errors.New("the field is not known here, and may keep clients out: remove it")
	case f == nil:
		if !isOff(value) { // manifests of older versions write every field
			r.leave(r.at, "it is not known here")
		}
		return t, nil
	case f.Left != "":
		if !f.Plain && !isOff(value) {
			r.leave(r.at, f.Left)
		}
		return t, nil
	}
	if err := r.tellUnknown(k.into, f, value, older); err != nil && k.guards {
		return t, err
	}
	if f.read != nil {
		err = f.read(r, value)
	} else {
		r.lines[r.at] = value
	}
	line, is := r.lines[r.at]
	if err != nil || !is || f.Rules { // rules are written together
		return t, err
	}
	delete(r.lines, r.at)
	t, err = haproxy.ModelText(k.into, modelOf(r.at, line))
	if errors.Is(err, haproxy.ErrNoLine) && isOff(value) {
		err = nil
	}
	return t, err
}

// ofRules returns the lines of all fields that may keep clients out. They need each other: a rule has conditions.
func (k *sectionKind) ofRules(r *reading) annotations.FieldText {
	f := annotations.FieldText{Name: strings.Join(slices.Sorted(maps.Keys(r.lines)), ", "), Guard: true}
	var model []byte
	if model, f.Err = json.Marshal(r.lines); f.Err == nil {
		f.Text, f.Err = haproxy.ModelText(k.into, model)
	}
	return f
}

// isOff reports whether a value says the same as its absence, or switches something off.
func isOff(value json.RawMessage) bool {
	return empty(value) || slices.Contains([]string{"false", "0", `"disabled"`}, string(value))
}

// flat returns the fields of a resource by their names in ingress.v3.haproxy.org. The parts of a group are
// fields.
func (k *sectionKind) flat(spec []byte, older bool) (map[string]json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(spec, &fields); err != nil {
		return nil, fmt.Errorf("its spec cannot be read: %w", err)
	}
	if older {
		logs := fields["log_targets"]
		config := fields["config"]
		fields = make(map[string]json.RawMessage)
		if !empty(config) {
			if err := json.Unmarshal(config, &fields); err != nil {
				return nil, fmt.Errorf("spec.config cannot be read: %w", err)
			}
		}
		if fields == nil {
			fields = make(map[string]json.RawMessage)
		}
		if !empty(logs) {
			fields["log_target_list"] = logs
		}
	}
	all := make(map[string]json.RawMessage, len(fields))
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !k.groups[name] || empty(fields[name]) {
			all[k.named(name, older)] = fields[name]
			continue
		}
		var parts map[string]json.RawMessage
		if err := json.Unmarshal(fields[name], &parts); err != nil {
			return nil, fmt.Errorf("%s cannot be read: %w", name, err)
		}
		for _, part := range slices.Sorted(maps.Keys(parts)) {
			all[k.named(name+"."+part, older)] = parts[part]
		}
	}
	return all, nil
}

// A prefix begins names of ingress.v1.haproxy.org, and is another one in ingress.v3.haproxy.org.
type prefix struct{ older, newer string }

// named returns the name of a field in ingress.v3.haproxy.org.
func (k *sectionKind) named(name string, older bool) string {
	if !older || k.fields[name] != nil {
		return name
	}
	for _, p := range k.older {
		if rest, is := strings.CutPrefix(name, p.older); is && k.fields[p.newer+rest] != nil {
			return p.newer + rest
		}
	}
	return name
}

// noQUICRules rejects rules for connections of QUIC.
func noQUICRules(*reading, json.RawMessage) error {
	return errors.New("no frontend has rules for connections of QUIC, which may keep clients out: remove them")
}

// checkKind reads the kind of the health checks. Only those over HTTP are a value of a key.
func checkKind(r *reading, text json.RawMessage) error {
	var kind string
	if err := json.Unmarshal(text, &kind); err != nil {
		return err
	}
	if kind != "httpchk" && kind != "disabled" {
		r.leave(r.at, "a Backend says how servers are checked (cr-backend)")
	}
	return nil
}

// checkRequest reads the request of the health checks over HTTP.
func checkRequest(r *reading, text json.RawMessage) error {
	if string(r.fields["adv_check"]) != `"httpchk"` {
		r.leave(r.at, "adv_check is not httpchk")
		return nil
	}
	p, err := parts(text)
	if err != nil {
		return err
	}
	if uri := word(p, "uri"); uri != "" {
		r.say("check-http", "", strings.TrimSpace(word(p, "method")+" "+uri+" "+word(p, "version")))
	}
	if word(p, "host") != "" {
		r.leave(r.at+".host", "a Backend says which host is checked (cr-backend)")
	}
	return nil
}

// text returns a reader of a field that is the value of a key.
func text(key string) func(*reading, json.RawMessage) error {
	return func(r *reading, value json.RawMessage) error {
		var s string
		if err := json.Unmarshal(value, &s); err != nil {
			return fmt.Errorf("%s is no text", annotations.Quote(string(value)))
		}
		r.say(key, "", s)
		return nil
	}
}

// onOff returns a reader of a field for a key. The field is enabled or disabled, and the key is true or false.
func onOff(key string) func(*reading, json.RawMessage) error {
	return func(r *reading, value json.RawMessage) error {
		var s string
		if err := json.Unmarshal(value, &s); err != nil || s != "enabled" && s != "disabled" {
			return fmt.Errorf("%s is not enabled or disabled", annotations.Quote(string(value)))
		}
		r.say(key, "", fmt.Sprint(s == "enabled"))
		return nil
	}
}

// number returns a reader of a field that is a number, and the value of a key.
func number(key string) func(*reading, json.RawMessage) error {
	return func(r *reading, value json.RawMessage) error {
		var n json.Number
		if err := decode(value, &n); err != nil || strings.HasPrefix(string(value), `"`) {
			return fmt.Errorf("%s is no number", annotations.Quote(string(value)))
		}
		r.say(key, "", n.String())
		return nil
	}
}
