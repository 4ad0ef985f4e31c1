package config

import "log/slog"

// A Secret is text that no log, error or JSON document shows: every way to print it
// yields a placeholder. The zero Secret is empty.
type Secret struct {
	text string
}

// NewSecret wraps text.
func NewSecret(text string) Secret { return Secret{text} }

// Reveal returns the text itself.
func (s Secret) Reveal() string { return s.text }

// IsZero reports whether the Secret is empty.
func (s Secret) IsZero() bool { return s.text == "" }

// String returns a placeholder, or nothing if the Secret is empty.
func (s Secret) String() string {
	if s.text == "" {
		return ""
	}
	return "(secret)"
}

// GoString returns the same placeholder as String.
func (s Secret) GoString() string { return s.String() }

// LogValue returns the same placeholder as String, for slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText returns the same placeholder as String, for JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText sets the Secret to text.
func (s *Secret) UnmarshalText(text []byte) error {
	s.text = string(text)
	return nil
}
