package haproxy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// ErrUnfit says that HAProxy rejects a configuration as a whole.
var ErrUnfit = errors.New("HAProxy rejects the configuration")

// maxGuilty bounds the number of parts that one Blame finds.
const maxGuilty = 64

// Blame finds the parts that make HAProxy reject a configuration, and the complaint
// about each. Without these parts HAProxy takes the configuration. If HAProxy rejects
// two parts only together, Blame finds the one that does not run yet. It finds nothing
// if no part is to blame. For each part that it finds, it halves the list of parts
// until one is left, and runs HAProxy at each halving.
func (p *Proxy) Blame(ctx context.Context, cfg *Config) (Verdicts, error) {
	guilty := make(Verdicts)
	parts := p.runningFirst(cfg)
	if len(parts) == 0 || p.opt.Binary == "" {
		return guilty, nil
	}
	dir, err := os.MkdirTemp(p.opt.RunDir, vetDir)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	d, _, err := openDisk(dir)
	if err != nil {
		return nil, err
	}
	text := renderer{opt: p.files}
	text.opt.Dir = dir
	against := func(taken []Part) (string, error) { // returns why HAProxy rejects the configuration with only these parts
		files := text.outline(cfg.with(taken), nil, nil).files(dir).Content
		for path, f := range files {
			if have, known := d.have[path]; known && path != configFile && string(have.Content) == string(f.Content) {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, path), f.Content, f.Mode); err != nil {
				return "", err
			}
			d.have[path] = f
		}
		why, err := p.refusal(ctx, filepath.Join(dir, configFile))
		return strings.ReplaceAll(where.ReplaceAllString(why, ""), dir+"/", ""), err
	}
	if why, err := against(nil); why != "" || err != nil {
		return guilty, err
	}
	for first := 0; len(guilty) < maxGuilty; {
		why, err := against(parts)
		if why == "" || err != nil {
			return guilty, err
		}
		good, bad := first, len(parts) // HAProxy takes parts[:good] and rejects parts[:bad]
		for bad-good > 1 {
			middle := (good + bad) / 2
			said, err := against(parts[:middle])
			if err != nil {
				return guilty, err
			}
			if said == "" {
				good = middle
			} else {
				bad, why = middle, said
			}
		}
		guilty[parts[good]] = Refused(parts[good].complaint(why))
		parts = slices.Delete(parts, good, bad)
		first = good
	}
	return guilty, nil
}

// complaint returns HAProxy's complaint about a part, for the author of the part. It
// leaves out HAProxy's words about a userlist, because they may quote the userlist.
func (p Part) complaint(why string) string {
	switch p.kind {
	case extraPart, pairPart, backendPart:
		return "HAProxy rejects it: " + why
	case userlistPart:
		return "HAProxy rejects its users or their passwords"
	}
	return "HAProxy accepts it alone, and rejects the whole configuration with it: " + why
}

var where = regexp.MustCompile(` ?(?:at )?\[[^ \]]*` + regexp.QuoteMeta(configFile) + `:\d+\] ?:? ?`)

// runningFirst returns the parts of a configuration. Parts that HAProxy runs already
// come first.
func (p *Proxy) runningFirst(cfg *Config) []Part {
	p.mu.Lock()
	defer p.mu.Unlock()
	running := make(map[Part]bool)
	if p.told != nil {
		for _, one := range p.told.cfg.brought() {
			running[one] = true
		}
	}
	var first, rest []Part
	for _, one := range cfg.brought() {
		if running[one] {
			first = append(first, one)
		} else {
			rest = append(rest, one)
		}
	}
	return append(first, rest...)
}
