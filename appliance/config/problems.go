package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// problems collects the mistakes in one file. Keys are paths such as
// clusters[0].bgp.asn.
type problems struct {
	file  string
	lines map[string]int // line of each key and list item that is given
	list  []problem
}

type problem struct {
	line int // 0: the file as a whole
	text string
}

// add adds a mistake in a key, at the line of the key or of the nearest key around it.
func (p *problems) add(key, format string, args ...any) {
	p.addAt(p.line(key), key, format, args...)
}

// addAt adds a mistake in a key, or in the whole file if key is empty, at a line.
func (p *problems) addAt(line int, key, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if key != "" {
		text = key + ": " + text
	}
	p.list = append(p.list, problem{line, text})
}

// given reports whether the file itself sets the key.
func (p *problems) given(key string) bool {
	if p == nil {
		return false
	}
	_, ok := p.lines[key]
	return ok
}

// where returns the place of a key, as file:line.
func (p *problems) where(key string) string {
	if line := p.line(key); line > 0 {
		return fmt.Sprintf("%s:%d", p.file, line)
	}
	return p.file
}

func (p *problems) line(key string) int {
	for key != "" {
		if line, ok := p.lines[key]; ok {
			return line
		}
		key = key[:max(strings.LastIndexAny(key, ".["), 0)]
	}
	return 0
}

// most bounds the reported mistakes of one file.
const most = 100

// err joins the problems, one on each line, in the order of the file.
func (p *problems) err() error {
	slices.SortStableFunc(p.list, func(a, b problem) int { return cmp.Compare(a.line, b.line) })
	var errs []error
	for _, x := range p.list[:min(len(p.list), most)] {
		if x.line > 0 {
			errs = append(errs, fmt.Errorf("%s:%d: %s", p.file, x.line, x.text))
		} else {
			errs = append(errs, fmt.Errorf("%s: %s", p.file, x.text))
		}
	}
	if more := len(p.list) - most; more > 0 {
		errs = append(errs, fmt.Errorf("%s: and %d more mistakes", p.file, more))
	}
	return errors.Join(errs...)
}
