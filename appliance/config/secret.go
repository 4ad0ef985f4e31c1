package config

import "log/slog"

// A Secret is text that no log, error or JSON document shows: every way of
// printing it yields only that it is there. The zero Secret is empty.
type Secret struct {
	text string
}

// NewSecret wraps text.
func NewSecret(text string) Secret { return Secret{text} }

// Reveal returns the text itself.
func (s Secret) Reveal() string { return s.text }

// IsZero reports whether the Secret is empty.
func (s Secret) IsZero() bool { return s.text == "" }

// String returns a place-holder, or nothing if the Secret is empty.
func (s Secret) String() string {
	if s.text == "" {
		return ""
	}
	return "(secret)"
}

// GoString returns what String does.
func (s Secret) GoString() string { return s.String() }

// LogValue returns what String does, for slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText returns what String does, for JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText takes text as the secret.
func (s *Secret) UnmarshalText(text []byte) error {
	s.text = string(text)
	return nil
}
