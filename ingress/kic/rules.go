package kic

import (
	"encoding/json"
	"strings"
)

// Rules are the annotations that ValidationRules define, as PREFIX/NAME.
type Rules map[string]bool

// Add adds the annotations that the spec of a ValidationRules defines. A spec that cannot be read defines none.
func (r Rules) Add(spec []byte) {
	var of struct {
		Prefix string                     `json:"prefix"`
		Rules  map[string]json.RawMessage `json:"validation_rules"`
	}
	if checkSize(spec) != nil || json.Unmarshal(spec, &of) != nil || of.Prefix == "" {
		return
	}
	for name := range of.Rules {
		r[strings.TrimSuffix(of.Prefix, "/")+"/"+name] = true
	}
}

// Define reports whether the rules define an annotation: backend.PREFIX/NAME, or frontend.http.PREFIX/NAME with http,
// https or stats.
func (r Rules) Define(annotation string) bool {
	of, rest, _ := strings.Cut(annotation, ".")
	switch of {
	case "backend":
		return r[rest]
	case "frontend":
		_, rest, _ = strings.Cut(rest, ".")
		return r[rest]
	default:
		return false
	}
}
