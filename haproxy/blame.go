package haproxy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ErrUnfit says that HAProxy rejects a configuration as a whole.
var ErrUnfit = errors.New("HAProxy rejects the configuration")

// Blame finds the parts that make HAProxy reject a configuration, and the complaint
// about each. Without these parts HAProxy takes the configuration. If HAProxy rejects
// two parts only together, Blame finds the one that does not run yet. It finds nothing
// if no part is to blame.
//
// HAProxy reads each new certificate on a line of its own, and its complaints name the
// lines at fault. They also name some of the files, userlists and backends. If they name
// none, Blame halves the list of parts until one is left, and runs HAProxy at each halving.
// After maxSearches for one owner, Blame finds all new parts of this owner guilty: the
// other owners wait for a bounded number of runs.
func (p *Proxy) Blame(ctx context.Context, cfg *Config) (Verdicts, error) {
	s := &search{p: p, cfg: cfg, guilty: make(Verdicts), searches: make(map[string]int)}
	s.parts, s.running = p.runningFirst(cfg)
	if len(s.parts) == 0 || p.opt.Binary == "" {
		return s.guilty, nil
	}
	dir, err := os.MkdirTemp(p.opt.RunDir, vetDir)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if s.disk, _, err = openDisk(dir); err != nil {
		return nil, err
	}
	s.text = renderer{opt: p.files}
	s.text.opt.Dir = dir
	if report, err := s.against(ctx, nil); report != "" || err != nil {
		return s.guilty, err
	}
	if err := s.certificates(ctx); err != nil {
		return s.guilty, err
	}
	for range maxRounds {
		report, err := s.against(ctx, s.parts)
		if report == "" || err != nil {
			return s.guilty, err
		}
		found := s.named(report)
		if len(found) == 0 {
			if found, err = s.halve(ctx, report); err != nil {
				return s.guilty, err
			}
		}
		s.convict(found)
	}
	return s.guilty, nil
}

const (
	// maxSearches bounds the searches for guilty parts of one owner in one Blame. One search
	// finds up to 50 parts, since HAProxy stops reading after as many errors.
	maxSearches = 3
	// maxRounds bounds the searches of one Blame. The vetter calls it again.
	maxRounds = 256
)

// A search is the state of one Blame.
type search struct {
	p        *Proxy
	cfg      *Config
	parts    []Part // that are not found guilty, those that run first
	running  int    // how many of parts run
	guilty   Verdicts
	searches map[string]int // by owner

	disk   *disk
	text   renderer
	config []byte // what HAProxy read last
}

// against has HAProxy read the configuration with only these parts. It returns HAProxy's
// report if HAProxy rejects it.
func (s *search) against(ctx context.Context, taken []Part) (string, error) {
	files := s.text.outline(s.cfg.with(taken), nil).files(s.text.opt.Dir).Content
	for path, f := range files {
		if have, known := s.disk.have[path]; known && path != configFile && string(have.Content) == string(f.Content) {
			continue
		}
		if err := os.WriteFile(filepath.Join(s.disk.dir, path), f.Content, f.Mode); err != nil {
			return "", err
		}
		s.disk.have[path] = f
	}
	s.config = files[configFile].Content
	return s.p.report(ctx, filepath.Join(s.disk.dir, configFile), checking)
}

// said returns the complaints of a report without the places in our files.
func (s *search) said(report string) string {
	return strings.ReplaceAll(where.ReplaceAllString(complaints(report), ""), s.disk.dir+"/", "")
}

// certificates finds the new certificates that HAProxy rejects.
func (s *search) certificates(ctx context.Context) error {
	added := make(map[Part]bool)
	for _, part := range s.parts[s.running:] {
		added[part] = true
	}
	var questions []Question
	for _, c := range s.cfg.Certs {
		if q := c.Question(); added[q.Part()] {
			questions = append(questions, q)
		}
	}
	said := make(Verdicts)
	for some := range slices.Chunk(questions, 500) {
		if err := s.p.judgePairs(ctx, s.disk.dir, some, said); err != nil {
			return err
		}
	}
	for part, verdict := range said {
		if verdict.Why != "" {
			s.guilty[part] = verdict
		}
	}
	s.parts = slices.DeleteFunc(s.parts, func(part Part) bool { return said[part].Why != "" })
	return nil
}

var (
	atConfig = regexp.MustCompile(`^(?:config : )?(?:parsing )?\[[^ \]]*` + regexp.QuoteMeta(configFile) +
		`:(\d+)\] ?:? ?(.*)`)
	anySection = regexp.MustCompile(`^([a-z]+|\.if|\.else|\.endif)\b ?(\S*)`)
)

// named returns the parts that a report names by a line of their own, with the complaint
// about each. It leaves out parts that run, and backends with Texts, since the line may be
// that of a Text. It returns files alone if the report names any, and else userlists alone:
// a backend may only follow from them.
func (s *search) named(report string) Verdicts {
	lines := strings.Split(string(s.config), "\n")
	found := map[string]map[string]string{} // by kind of part, by name
	for _, said := range alerts(report) {
		m := atConfig.FindStringSubmatch(said)
		if m == nil || tooMany.MatchString(said) {
			continue
		}
		n, err := strconv.Atoi(m[1])
		if err != nil || n < 1 || n > len(lines) {
			continue
		}
		kind, name := partAt(lines[:n])
		if found[kind] == nil {
			found[kind] = map[string]string{}
		}
		if found[kind][name] == "" {
			found[kind][name] = m[2]
		}
	}
	for _, b := range s.cfg.Backends {
		if slices.ContainsFunc(b.Directives, func(d Directive) bool { return d.phase == phaseText }) {
			delete(found[backendPart], b.Name)
		}
	}
	for _, kind := range []string{extraPart, userlistPart, backendPart} {
		guilty := Verdicts{}
		for _, part := range s.parts[s.running:] {
			if why := found[kind][part.name]; why != "" && part.kind == kind {
				guilty[part] = Refused(part.complaint(strings.ReplaceAll(why, s.disk.dir+"/", "")))
			}
		}
		if len(guilty) > 0 {
			return guilty
		}
	}
	return nil
}

// partAt returns the kind and the name of the part to which the last of some lines of a
// configuration belongs.
func partAt(lines []string) (kind, name string) {
	for _, line := range slices.Backward(lines) {
		of := anySection.FindStringSubmatch(line)
		switch {
		case of == nil:
		case of[2] == keysBackend:
			if words := strings.Fields(lines[len(lines)-1]); len(words) > 1 { // "server FILE ..."
				return extraPart, words[1]
			}
			return "", ""
		default:
			return of[1], of[2]
		}
	}
	return "", ""
}

// halve finds one part such that HAProxy takes the parts before it, and not those up to it.
func (s *search) halve(ctx context.Context, report string) (Verdicts, error) {
	good, bad := 0, len(s.parts) // HAProxy takes parts[:good] and rejects parts[:bad]
	for bad-good > 1 {
		middle := (good + bad) / 2
		said, err := s.against(ctx, s.parts[:middle])
		if err != nil {
			return nil, err
		}
		if said == "" {
			good = middle
		} else {
			bad, report = middle, said
		}
	}
	return Verdicts{s.parts[good]: Refused(s.parts[good].complaint(s.said(report)))}, nil
}

// convict takes out the parts that a search has found. If it has found many guilty parts of one
// owner, it also takes out the other new parts of that owner.
func (s *search) convict(found Verdicts) {
	owners := s.cfg.owners()
	ended := make(map[string]bool)
	counted := make(map[string]bool)
	for part, verdict := range found {
		s.guilty[part] = verdict
		if owner := owners[part]; owner != "" && !counted[owner] {
			counted[owner] = true
			s.searches[owner]++
			ended[owner] = s.searches[owner] >= maxSearches
		}
	}
	var left []Part
	running := 0
	for i, part := range s.parts {
		_, is := found[part]
		if !is && i >= s.running && ended[owners[part]] {
			s.guilty[part] = Verdict{
				Known: true, Aside: true,
				Why: fmt.Sprintf("HAProxy rejects other parts of the configuration "+
					"that come from %s, and was not asked about this one: mend the others", owners[part]),
			}
			is = true
		}
		if is {
			continue
		}
		if left = append(left, part); i < s.running {
			running++
		}
	}
	s.parts, s.running = left, running
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

// runningFirst returns the parts of a configuration, and how many of them HAProxy runs
// already: those come first.
func (p *Proxy) runningFirst(cfg *Config) (parts []Part, running int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	runs := make(map[Part]bool)
	if p.belief.told != nil {
		for _, one := range p.belief.told.cfg.brought() {
			runs[one] = true
		}
	}
	var first, rest []Part
	for _, one := range cfg.brought() {
		if runs[one] {
			first = append(first, one)
		} else {
			rest = append(rest, one)
		}
	}
	return append(first, rest...), len(first)
}
