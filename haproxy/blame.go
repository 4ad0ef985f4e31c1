package haproxy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
)

// ErrUnfit is that HAProxy refuses a configuration as a whole.
var ErrUnfit = errors.New("HAProxy refuses the configuration")

// maxGuilty bounds how many texts one Blame finds.
const maxGuilty = 8

// Blame finds the texts for which HAProxy refuses a configuration that it would
// take without them, though it takes each alone, and what it says. Of two that
// only together are too much it is the one that HAProxy does not run yet.
// Nothing is found if no text is to blame.
func (p *Proxy) Blame(ctx context.Context, cfg *Config) (map[Text]string, error) {
	guilty := make(map[Text]string)
	texts := p.runningFirst(cfg)
	if len(texts) == 0 || p.opt.Binary == "" {
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
	opt := p.files
	opt.Dir = dir
	against := func(taken []Text) (string, error) { // what HAProxy has against the configuration with those texts
		files := Render(cfg.with(taken), nil, opt).Content
		for path, f := range files {
			if have, known := d.have[path]; known && path != configFile && string(have.Content) == string(f.Content) {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, path), f.Content, f.Mode); err != nil {
				return "", err
			}
			d.have[path] = f
		}
		return p.refusal(ctx, filepath.Join(dir, configFile))
	}
	if why, err := against(nil); why != "" || err != nil {
		return guilty, err
	}
	for len(guilty) < maxGuilty {
		why, err := against(texts)
		if why == "" || err != nil {
			return guilty, err
		}
		good, bad := 0, len(texts) // it takes the first good of them, and not the first bad
		for bad-good > 1 {
			middle := (good + bad) / 2
			said, err := against(texts[:middle])
			if err != nil {
				return guilty, err
			}
			if said == "" {
				good = middle
			} else {
				bad, why = middle, said
			}
		}
		guilty[texts[good]] = "HAProxy takes it alone, and refuses the whole configuration with it: " + where.ReplaceAllString(why, "")
		texts = slices.Delete(texts, good, bad)
	}
	return guilty, nil
}

var where = regexp.MustCompile(` ?(?:at )?\[[^ \]]*` + regexp.QuoteMeta(configFile) + `:\d+\] ?:? ?`)

// runningFirst are the texts of a configuration, those before the others that
// HAProxy runs already.
func (p *Proxy) runningFirst(cfg *Config) []Text {
	p.mu.Lock()
	defer p.mu.Unlock()
	var running []Text
	if p.shaped != nil {
		running = p.shaped.texts()
	}
	texts := cfg.texts()
	slices.SortStableFunc(texts, func(a, b Text) int {
		x, y := slices.Contains(running, a), slices.Contains(running, b)
		switch {
		case x == y:
			return 0
		case x:
			return -1
		}
		return 1
	})
	return texts
}

// texts are all that a configuration has, once each.
func (c *Config) texts() []Text {
	all := slices.Clone(c.Process.Texts)
	for _, choice := range c.Choices {
		for _, one := range choice.Cases {
			all = append(all, one.If)
		}
	}
	for _, b := range c.Backends {
		for _, d := range b.Directives {
			if d.phase == phaseText {
				all = append(all, Text{BackendSection, d.text})
			}
		}
	}
	seen := make(map[Text]bool, len(all))
	return slices.DeleteFunc(all, func(t Text) bool {
		again := seen[t]
		seen[t] = true
		return again
	})
}

// with is a configuration with no other texts than those.
func (c *Config) with(texts []Text) *Config {
	taken := make(map[Text]bool, len(texts))
	for _, t := range texts {
		taken[t] = true
	}
	out := *c
	out.Process.Texts = slices.DeleteFunc(slices.Clone(c.Process.Texts), func(t Text) bool { return !taken[t] })
	out.Choices, out.Backends = nil, nil
	for _, choice := range c.Choices {
		out.Choices = append(out.Choices, &Choice{choice.Name, slices.DeleteFunc(slices.Clone(choice.Cases), func(one Case) bool { return !taken[one.If] })})
	}
	for _, b := range c.Backends {
		other := *b
		other.Directives = slices.DeleteFunc(slices.Clone(b.Directives), func(d Directive) bool {
			return d.phase == phaseText && !taken[Text{BackendSection, d.text}]
		})
		out.Backends = append(out.Backends, &other)
	}
	return &out
}
