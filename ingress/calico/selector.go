package calico

import (
	"errors"
	"fmt"
	"strings"
)

// A selector is an expression of Calico's selector language
// (libcalico-go/lib/selector) that selects nodes.
type selector struct {
	all  bool // it selects every node
	node matcher
}

type matcher func(labels map[string]string) bool

func (s selector) match(labels map[string]string) bool {
	return s.all || s.node != nil && s.node(labels)
}

// maxDepth bounds the nesting of an expression.
const maxDepth = 50

// parseSelector reads an expression. The empty expression selects every node.
//
//	or      = and { "||" and }
//	and     = term { "&&" term }
//	term    = "!" term | "(" or ")" | "all()" | "global()" | "has(" key ")" | key test
//	test    = ("==" | "!=" | "contains" | "starts with" | "ends with") string
//	        | ["not"] "in" "{" [ string { "," string } ] "}"
func parseSelector(s string) (selector, error) {
	trimmed := strings.TrimSpace(s)
	if trimmed == "" || trimmed == "all()" {
		return selector{all: true}, nil
	}
	words, err := lex(s)
	if err != nil {
		return selector{}, err
	}
	p := &parser{words: words}
	m, err := p.or(0)
	if err == nil && len(p.words) > 0 {
		err = fmt.Errorf("%s is not expected", quote(p.words[0].text))
	}
	if err != nil {
		return selector{}, err
	}
	return selector{node: m}, nil
}

// word is a token; a literal is a quoted string.
type word struct {
	text    string
	literal bool
}

func lex(s string) (words []word, err error) {
	for {
		s = strings.TrimLeft(s, " \t\r\n")
		if s == "" {
			return words, nil
		}
		if s[0] == '"' || s[0] == '\'' {
			end := strings.IndexByte(s[1:], s[0])
			if end < 0 {
				return nil, errors.New("a string does not end")
			}
			words = append(words, word{s[1 : 1+end], true})
			s = s[end+2:]
			continue
		}
		n := 0
		for n < len(s) && (s[n] >= 'a' && s[n] <= 'z' || s[n] >= 'A' && s[n] <= 'Z' || s[n] >= '0' && s[n] <= '9' ||
			strings.IndexByte("-_./", s[n]) >= 0) {
			n++
		}
		if n == 0 {
			n = 1
			for _, two := range []string{"==", "!=", "&&", "||"} {
				if strings.HasPrefix(s, two) {
					n = 2
				}
			}
			if n == 1 && strings.IndexByte("!(){},", s[0]) < 0 {
				return nil, fmt.Errorf("%q is not expected", s[0])
			}
		}
		words = append(words, word{text: s[:n]})
		s = s[n:]
	}
}

type parser struct{ words []word }

// take consumes the next word if it is text.
func (p *parser) take(text string) bool {
	if len(p.words) == 0 || p.words[0].literal || p.words[0].text != text {
		return false
	}
	p.words = p.words[1:]
	return true
}

func (p *parser) next() (word, error) {
	if len(p.words) == 0 {
		return word{}, errors.New("it ends too early")
	}
	w := p.words[0]
	p.words = p.words[1:]
	return w, nil
}

func (p *parser) or(depth int) (matcher, error) {
	return p.chain("||", depth, p.and, func(a, b bool) bool { return a || b })
}

func (p *parser) and(depth int) (matcher, error) {
	return p.chain("&&", depth, p.term, func(a, b bool) bool { return a && b })
}

// chain reads operands with an operator between them.
func (p *parser) chain(operator string, depth int, operand func(depth int) (matcher, error),
	join func(a, b bool) bool,
) (matcher, error) {
	left, err := operand(depth)
	for err == nil && p.take(operator) {
		a := left
		var b matcher
		if b, err = operand(depth); err == nil {
			left = func(l map[string]string) bool { return join(a(l), b(l)) }
		}
	}
	return left, err
}

func (p *parser) term(depth int) (matcher, error) {
	if depth > maxDepth {
		return nil, errors.New("it is nested too deeply")
	}
	if p.take("!") {
		m, err := p.term(depth + 1)
		return func(l map[string]string) bool { return !m(l) }, err
	}
	if p.take("(") {
		m, err := p.or(depth + 1)
		if err == nil && !p.take(")") {
			err = errors.New(`a ")" is missing`)
		}
		return m, err
	}
	key, err := p.next()
	if err != nil {
		return nil, err
	}
	if key.literal || strings.ContainsAny(key.text, "!(){},=&|") {
		return nil, fmt.Errorf("want a label instead of %s", quote(key.text))
	}
	if (key.text == "all" || key.text == "global") && p.take("(") {
		if !p.take(")") {
			return nil, errors.New(`a ")" is missing`)
		}
		return func(map[string]string) bool { return true }, nil
	}
	if key.text == "has" && p.take("(") {
		label, err := p.next()
		if err == nil && (label.literal || !p.take(")")) {
			err = errors.New("has() takes one label")
		}
		return func(l map[string]string) bool { _, ok := l[label.text]; return ok }, err
	}
	return p.test(key.text)
}

// test reads a comparison for the label key. For a node without the label only "!="
// and "not in" are true.
func (p *parser) test(key string) (matcher, error) {
	op, err := p.next()
	if err != nil {
		return nil, err
	}
	if op.literal {
		return nil, fmt.Errorf("want a comparison instead of %s", quote(op.text))
	}
	switch op.text {
	case "==", "!=":
		w, err := p.string()
		return func(l map[string]string) bool {
			v, ok := l[key]
			return (ok && v == w) == (op.text == "==")
		}, err
	case "contains", "starts", "ends":
		if op.text != "contains" && !p.take("with") {
			return nil, fmt.Errorf("no \"with\" follows %q", op.text)
		}
		holds := map[string]func(s, part string) bool{
			"contains": strings.Contains, "starts": strings.HasPrefix,
			"ends": strings.HasSuffix,
		}[op.text]
		w, err := p.string()
		return func(l map[string]string) bool { v, ok := l[key]; return ok && holds(v, w) }, err
	case "in", "not":
		if op.text == "not" && !p.take("in") {
			return nil, errors.New(`no "in" follows "not"`)
		}
		set, err := p.set()
		return func(l map[string]string) bool {
			v, ok := l[key]
			return (ok && set[v]) == (op.text == "in")
		}, err
	}
	return nil, fmt.Errorf("%s is not a comparison", quote(op.text))
}

func (p *parser) string() (string, error) {
	w, err := p.next()
	if err == nil && !w.literal {
		err = fmt.Errorf("want a string in quotes instead of %s", quote(w.text))
	}
	return w.text, err
}

func (p *parser) set() (map[string]bool, error) {
	if !p.take("{") {
		return nil, errors.New(`a "{" is missing`)
	}
	set := make(map[string]bool)
	if p.take("}") {
		return set, nil
	}
	for {
		w, err := p.string()
		if err != nil {
			return nil, err
		}
		set[w] = true
		if p.take("}") {
			return set, nil
		}
		if !p.take(",") {
			return nil, errors.New(`a "," or "}" is missing`)
		}
	}
}
