package move

import (
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// A token is a word, a string, or a sign of BIRD's language.
type token struct {
	text  string
	quote bool // a string
	at    Place
}

func (t token) is(text string) bool { return !t.quote && t.text == text }

// A stmt is a statement: words up to a semicolon or a block.
type stmt struct {
	words  []token
	block  []*stmt
	braced bool
	at     Place
}

// word returns a word of the statement, or nothing.
func (s *stmt) word(i int) string {
	if i < len(s.words) && !s.words[i].quote {
		return s.words[i].text
	}
	return ""
}

// head returns the first words for people, without strings, which may be secrets.
func (s *stmt) head() string {
	var words []string
	for _, t := range s.words[:min(len(s.words), 6)] {
		if t.quote {
			break
		}
		words = append(words, t.text)
	}
	return strings.Join(words, " ")
}

const (
	maxIncludes = 8  // BIRD's own bound, too
	maxNested   = 64 // blocks within blocks
)

func isWord(c byte) bool {
	return c == '_' || c == '.' || c == ':' || c == '/' || c == '%' || c == '-' || c >= 0x80 ||
		'0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// lex returns the tokens of a file of BIRD.
func lex(f File) (all []token, err error) {
	text, line := string(f.Text), 1
	for i := 0; i < len(text); {
		at := Place{f.Name, line}
		switch c := text[i]; {
		case c == '\n':
			line++
			i++
		case c == ' ' || c == '\t' || c == '\r' || c == '\f':
			i++
		case c == '#':
			i += lengthOf(text[i:], "\n")
		case strings.HasPrefix(text[i:], "/*"):
			end := strings.Index(text[i+2:], "*/")
			if end < 0 {
				return nil, errorAt(at, "a comment is not closed")
			}
			line += strings.Count(text[i:i+2+end], "\n")
			i += end + 4
		case c == '"' || c == '\'':
			end := strings.IndexByte(text[i+1:], c)
			if end < 0 || strings.IndexByte(text[i+1:i+1+end], '\n') >= 0 {
				return nil, errorAt(at, "a string is not closed")
			}
			all = append(all, token{text: text[i+1 : i+1+end], quote: c == '"', at: at})
			i += end + 2
		case isWord(c):
			end := i + 1
			for end < len(text) && isWord(text[end]) && !strings.HasPrefix(text[end:], "/*") {
				end++
			}
			all = append(all, token{text: text[i:end], at: at})
			i = end
		default:
			all = append(all, token{text: string(c), at: at})
			i++
		}
	}
	return all, nil
}

// lengthOf returns the length of text before an end, or all of it.
func lengthOf(text, end string) int {
	if i := strings.Index(text, end); i >= 0 {
		return i
	}
	return len(text)
}

// An inclusion reads files that name further files.
type inclusion struct {
	read Reader
	size int      // bytes of all files
	lost []Remark // about files that could not be read
}

// all returns the tokens of a file and of the files that it includes.
func (in *inclusion) all(f File, depth int) (all []token, err error) {
	if in.size += len(f.Text); in.size > MaxSize {
		return nil, errorAt(Place{File: f.Name}, "it has more than %d bytes with the files that it includes", MaxSize)
	}
	own, err := lex(f)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(own); i++ {
		first := i == 0 || slices.ContainsFunc([]string{";", "{", "}"}, own[i-1].is)
		if !first || !own[i].is("include") || i+1 >= len(own) || !own[i+1].quote {
			all = append(all, own[i])
			continue
		}
		name, at := own[i+1].text, own[i].at
		if i++; i+1 < len(own) && own[i+1].is(";") {
			i++
		}
		if !path.IsAbs(name) {
			name = filepath.Join(filepath.Dir(f.Name), name)
		}
		more, err := in.included(name, at, depth)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	return all, nil
}

func (in *inclusion) included(name string, at Place, depth int) (all []token, err error) {
	why := "includes are nested too deep"
	var files []File
	if depth < maxIncludes {
		why = "the file cannot be read"
		if in.read != nil {
			files, err = in.read(name)
		}
	}
	if err != nil || len(files) == 0 && !strings.ContainsAny(name, "*?[") {
		in.lost = append(in.lost, Remark{
			Kind: Left, At: at, What: "include " + name, Why: why, Do: "Import it together with this file",
		})
		return nil, nil
	}
	for _, f := range files {
		more, err := in.all(f, depth+1)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	return all, nil
}

// parse returns the statements of tokens.
func parse(tokens []token) ([]*stmt, error) {
	all, rest, err := block(tokens, 0)
	if err == nil && len(rest) > 0 {
		err = errorAt(rest[0].at, "} closes nothing")
	}
	return all, err
}

// block returns the statements up to a closing brace, and the tokens from there on.
func block(tokens []token, depth int) (all []*stmt, rest []token, err error) {
	var s stmt
	inside := 0 // brackets and parentheses that are open: a brace in them is part of a set
	end := func() {
		if len(s.words) > 0 || s.braced {
			one := s
			all = append(all, &one)
		}
		s = stmt{}
	}
	for len(tokens) > 0 {
		t := tokens[0]
		if len(s.words) == 0 {
			s.at = t.at
		}
		switch {
		case t.is("[") || t.is("("):
			inside++
			s.words = append(s.words, t)
		case (t.is("]") || t.is(")")) && inside > 0:
			inside--
			s.words = append(s.words, t)
		case inside > 0:
			s.words = append(s.words, t)
		case t.is(";"):
			end()
		case t.is("}"):
			end()
			return all, tokens, nil
		case t.is("{"):
			if depth == maxNested {
				return nil, nil, errorAt(t.at, "blocks are nested deeper than %d", maxNested)
			}
			inner, after, err := block(tokens[1:], depth+1)
			if err != nil {
				return nil, nil, err
			}
			if len(after) == 0 {
				return nil, nil, errorAt(t.at, "{ is not closed")
			}
			s.block, s.braced = inner, true
			if last := len(all) - 1; len(s.words) == 0 && last >= 0 && all[last].word(0) == "function" {
				all[last].block, all[last].braced, s = inner, true, stmt{} // its variables came first
			}
			end()
			tokens = after
		default:
			s.words = append(s.words, t)
		}
		tokens = tokens[1:]
	}
	if inside > 0 {
		return nil, nil, errorAt(s.at, "a bracket is not closed")
	}
	end()
	return all, nil, nil
}
