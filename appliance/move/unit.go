package move

import (
	"errors"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A directive is a line of a systemd unit: KEY=VALUE in a section.
type directive struct {
	section, key, value string
	at                  Place
}

// directives returns the lines of a unit. A line that ends in a backslash goes on in the next one that is
// no comment (systemd.syntax(7)).
func directives(f File) (all []directive) {
	section, open := "", false
	for i, line := range strings.Split(string(f.Text), "\n") {
		line = strings.TrimRight(line, "\r")
		text := strings.TrimSpace(line)
		if strings.HasPrefix(text, "#") || strings.HasPrefix(text, ";") {
			continue
		}
		more, goes := strings.CutSuffix(line, `\`)
		if open {
			last := &all[len(all)-1]
			last.value += " " + strings.TrimSpace(more)
			open = goes
			continue
		}
		if strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]") {
			section = text[1 : len(text)-1]
			continue
		}
		key, value, is := strings.Cut(more, "=")
		if !is {
			continue
		}
		all = append(all, directive{
			section: section, key: strings.TrimSpace(key), value: strings.TrimSpace(value), at: Place{f.Name, i + 1},
		})
		open = goes
	}
	return all
}

var errQuote = errors.New("a quote is not closed")

// escapes are the characters for a backslash and a letter or sign (systemd.syntax(7)).
var escapes = map[byte]string{
	'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v", 's': " ",
	'\\': `\`, '"': `"`, '\'': "'",
}

// fields splits a command line at spaces, as systemd and shells do: quotes keep spaces, and a backslash
// escapes.
func fields(text string) (all []string, err error) {
	var word strings.Builder
	inside, quote := false, byte(0)
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '\\' && i+1 < len(text):
			inside = true
			n := escape(&word, text[i+1:])
			i += n
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteByte(c)
		case c == '"' || c == '\'':
			quote, inside = c, true
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			if inside {
				all = append(all, word.String())
			}
			inside = false
			word.Reset()
		default:
			inside = true
			word.WriteByte(c)
		}
	}
	if quote != 0 {
		return nil, errQuote
	}
	if inside {
		all = append(all, word.String())
	}
	return all, nil
}

// escape writes the character of an escape, and returns how many bytes it has after the backslash.
func escape(word *strings.Builder, text string) int {
	if one, is := escapes[text[0]]; is {
		word.WriteString(one)
		return 1
	}
	if text[0] == 'x' && len(text) > 2 {
		if n, err := strconv.ParseUint(text[1:3], 16, 8); err == nil {
			word.WriteByte(byte(n))
			return 3
		}
	}
	word.WriteByte(text[0]) // of a shell
	return 1
}

// variable matches ${NAME} and $NAME.
var variable = regexp.MustCompile(`\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))`)

// readUnit reads a unit, or a part of one that systemd merges with it.
func (k *kic) readUnit(f File) error {
	all := directives(f)
	if !slices.ContainsFunc(all, func(d directive) bool { return d.section == "Service" }) {
		return errorAt(Place{File: f.Name}, "the unit has no section [Service]")
	}
	k.unit = append(k.unit, all...)
	return nil
}

// command finds the command line in the units.
func (k *kic) command(d *draft, read Reader) error {
	var starts []directive
	variables := map[string]string{}
	for _, one := range k.unit {
		switch {
		case one.section != "Service":
			d.none(one.at)
		case one.key == "ExecStart" && one.value == "":
			starts = nil
		case one.key == "ExecStart":
			starts = append(starts, one)
		case one.key == "Environment":
			words, err := fields(one.value)
			if err != nil {
				return errorAt(one.at, "%v", err)
			}
			assign(variables, words)
		case one.key == "EnvironmentFile":
			k.environment(d, one, variables, read)
		case one.key == "LimitNOFILE":
			d.note("", Remark{
				Kind: Changed, At: one.at, What: one.key, Why: "the unit of the appliance has a limit of its own",
				Do: "haproxy.maxConnections bounds the connections",
			})
		default:
			d.none(one.at)
		}
	}
	for i, one := range starts {
		value := strings.TrimLeft(one.value, "@-:+!|")
		words, err := fields(value)
		if err != nil {
			return errorAt(one.at, "%v", err)
		}
		words = expanded(words, variables)
		if args, is := argumentsOf(words, 0); is {
			k.arguments(one.at, args)
			return nil
		}
		if i == len(starts)-1 {
			return errorAt(one.at, "ExecStart is no command of HAProxy's ingress controller")
		}
	}
	if len(k.unit) > 0 {
		return errorAt(Place{File: k.unit[0].at.File}, "the unit has no ExecStart")
	}
	return nil
}

// environment reads the file of an EnvironmentFile.
func (k *kic) environment(d *draft, one directive, variables map[string]string, read Reader) {
	name := strings.TrimPrefix(one.value, "-")
	var files []File
	var err error
	if read != nil {
		files, err = read(name)
	}
	if err != nil || len(files) == 0 {
		d.note("", Remark{
			Kind: Left, At: one.at, What: "EnvironmentFile", Why: "the file cannot be read",
			Do: "If the command line takes its arguments from there, write them into the unit, and import it again",
		})
		return
	}
	for _, f := range files {
		for _, line := range directives(f) {
			words, err := fields(line.value)
			if err == nil {
				variables[line.key] = strings.Join(words, " ")
			}
		}
	}
}

func assign(variables map[string]string, words []string) {
	for _, w := range words {
		if name, value, is := strings.Cut(w, "="); is {
			variables[name] = value
		}
	}
}

// expanded returns words with the values of variables. A word that is a $NAME alone becomes several.
func expanded(words []string, variables map[string]string) (all []string) {
	for _, w := range words {
		if m := variable.FindStringSubmatch(w); m != nil && m[0] == w && m[2] != "" {
			all = append(all, strings.Fields(variables[m[2]])...)
			continue
		}
		all = append(all, variable.ReplaceAllStringFunc(strings.ReplaceAll(w, "%%", "%"), func(name string) string {
			return variables[strings.Trim(name, "${}")]
		}))
	}
	return all
}

// program matches the program, or the image, of the controller.
var program = regexp.MustCompile(
	`^(haproxy-ingress-controller|kubernetes-ingress|haproxy-ingress|ingress-controller)([:@].*)?$`)

// argumentsOf returns the words after the name of the controller. A command of a shell is split again.
func argumentsOf(words []string, depth int) ([]string, bool) {
	for i, w := range words {
		if program.MatchString(path.Base(w)) && !strings.HasPrefix(w, "-") {
			return words[i+1:], true
		}
		if strings.ContainsAny(w, " \t") && depth < 2 && i > 0 {
			if inner, err := fields(w); err == nil {
				if args, is := argumentsOf(inner, depth+1); is {
					return args, true
				}
			}
		}
	}
	if len(words) > 0 && strings.HasPrefix(words[0], "--") {
		return words, true
	}
	return nil, false
}

// readArguments reads a command line: separated by NUL as in /proc/PID/cmdline, or by spaces.
func (k *kic) readArguments(f File) error {
	at := Place{f.Name, 1}
	var words []string
	if strings.Contains(string(f.Text), "\x00") {
		words = strings.Split(strings.TrimRight(string(f.Text), "\x00\n"), "\x00")
	} else {
		var err error
		if words, err = fields(strings.ReplaceAll(string(f.Text), "\\\n", " ")); err != nil {
			return errorAt(at, "%v", err)
		}
	}
	args, is := argumentsOf(words, 0)
	if !is {
		return errorAt(at, "is no command line of HAProxy's ingress controller")
	}
	k.arguments(at, args)
	return nil
}
