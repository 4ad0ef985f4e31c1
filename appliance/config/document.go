package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// MaxSize bounds the bytes of the configuration file, and of each file named in it.
// Several kubeconfigs fit into it. It also bounds the memory of the parser, which takes
// up to 250 bytes for each byte of the file.
const MaxSize = 1 << 18

// maxDepth bounds the nesting of groups and lists. The deepest key of the configuration
// file is at level 7, that of a kubeconfig with extensions at level 12.
const maxDepth = 32

// document parses data as a single YAML document. body is nil if the document is empty.
// The error is a sentence about a line, 0 if none is known, and quotes nothing of data.
//
// The parser bounds itself: its time and memory grow only with the size, and it stops
// at a depth of 10,000. The returned document has at most maxDepth levels. It has no
// aliases, with which a short text could grow without end.
func document(data []byte) (body *yaml.Node, line int, err error) {
	if len(data) > MaxSize {
		return nil, 0, errTooLarge
	}
	for decoder := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var next yaml.Node
		switch err := decoder.Decode(&next); {
		case errors.Is(err, io.EOF):
			return body, 0, nil
		case err != nil:
			line, err := syntax(err)
			return nil, line, err
		}
		root := next.Content[0]
		if isNull(root) {
			continue
		}
		if body != nil {
			return nil, root.Line, errors.New("a second document begins; only one is allowed")
		}
		if line, err := tame(root, 1); err != nil {
			return nil, line, err
		}
		body = root
	}
}

var errTooLarge = fmt.Errorf("is larger than %d bytes, the limit of a configuration file", MaxSize)

// tame rejects aliases, and groups and lists that are nested too deep.
func tame(node *yaml.Node, depth int) (line int, err error) {
	switch {
	case node.Kind == yaml.AliasNode:
		return node.Line, errAlias
	case depth > maxDepth && node.Kind != yaml.ScalarNode:
		return node.Line, errTooDeep
	}
	for _, child := range node.Content {
		if line, err := tame(child, depth+1); err != nil {
			return line, err
		}
	}
	return 0, nil
}

var (
	errAlias   = errors.New("YAML aliases are not supported here; write the value itself")
	errTooDeep = fmt.Errorf("groups and lists are nested deeper than %d levels, the limit of a configuration file",
		maxDepth)
)

// complaint matches an error of the parser. The parser names no line for a mistake in
// the first one.
var complaint = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)`)

// syntax turns an error of the parser into a sentence and its line.
func syntax(err error) (line int, _ error) {
	found := complaint.FindStringSubmatch(err.Error())
	if found == nil {
		return 0, errors.New("not valid YAML")
	}
	line, _ = strconv.Atoi(found[1])
	switch what := found[2]; {
	case strings.HasPrefix(what, "unknown anchor "): // the parser's error quotes the name
		return line, errAlias
	case strings.HasPrefix(what, "exceeded max depth "):
		return max(line, 1), errTooDeep
	default:
		return max(line, 1), fmt.Errorf("not valid YAML: %s", what)
	}
}

// readBounded reads a file of at most MaxSize bytes.
func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err == nil && len(data) > MaxSize {
		err = errTooLarge
	}
	return data, err
}
