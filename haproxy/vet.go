package haproxy

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Question asks about a condition of a Config: does HAProxy accept a Text or a certificate, is
// HAProxy built with a feature, or is a port free? Vet answers it. Questions are compared with ==.
type Question struct {
	text Text           // the answer is yes if HAProxy accepts this text
	at   netip.AddrPort // address of TCP where HAProxy is to listen, if it is valid
	pair string         // a Pair's PEM, which is a secret, if it is not empty
}

// Question asks whether HAProxy accepts the Text.
func (t Text) Question() Question { return Question{text: t} }

// Question asks whether HAProxy accepts the certificate and its key.
func (c *Cert) Question() Question { return Question{pair: string(c.PEM)} }

// QUICSupport asks whether HAProxy is built with QUIC.
func QUICSupport() Question {
	return Question{text: Text{quicSection, "bind quic4@127.0.0.1:1 ssl crt " + defaultCert + " alpn h3"}}
}

// FreePort asks whether a TCP port is free or already in use by HAProxy. If another program uses
// the port, every reload would fail.
func FreePort(port uint16) Question {
	return FreeListener(netip.AddrPortFrom(netip.IPv4Unspecified(), port))
}

// FreeListener asks the same as FreePort, about a TCP port at one address.
func FreeListener(at netip.AddrPort) Question { return Question{at: at} }

// AboutPort reports whether the Question asks about a port. The answer is another one once a program
// opens or closes the port.
func (q Question) AboutPort() bool { return q.at.IsValid() }

// Part returns the Part that the Question asks about. The Verdict on it is the answer.
func (q Question) Part() Part {
	switch {
	case q.at.IsValid() && q.at.Addr().IsUnspecified():
		return Part{kind: "TCP port", name: strconv.Itoa(int(q.at.Port()))}
	case q.at.IsValid():
		return Part{kind: "TCP listener", name: q.at.String()}
	case q.pair != "":
		return Pair{PEM: []byte(q.pair)}.Part()
	}
	return q.text.Part()
}

// String returns the Question in words, without the key of a certificate.
func (q Question) String() string {
	if q.at.IsValid() || q.pair != "" {
		return q.Part().String()
	}
	return q.text.String()
}

// A Verdict says whether HAProxy accepts a Part. The zero Verdict means that HAProxy was not asked
// about it.
type Verdict struct {
	Known bool
	Why   string // why HAProxy rejects the Part; empty if HAProxy accepts it
	Aside bool   // HAProxy was not asked about the Part, but rejects many others of its owner
}

// Good is the Verdict that HAProxy accepts a Part.
var Good = Verdict{Known: true}

// Refused returns the Verdict that HAProxy rejects a Part.
func Refused(why string) Verdict { return Verdict{Known: true, Why: why} }

// Verdicts holds the Verdict on each Part. A Part without an entry has the zero Verdict.
type Verdicts map[Part]Verdict

// vetDir begins the names of the directories that hold texts for HAProxy to check.
const vetDir = "vet-"

// vetTimeout bounds one run of HAProxy over texts.
const vetTimeout = 10 * time.Second

// Vet answers questions. HAProxy reads the texts for frontends and backends together, each in a
// section of its own, and the certificates together, each on a line of its own. If it rejects some
// of them, it reads the rest again. It reads each text for another section in a run of its own. An
// error means that HAProxy could not be asked.
func (p *Proxy) Vet(ctx context.Context, questions []Question) (Verdicts, error) {
	verdicts := make(Verdicts, len(questions))
	var ports, pairs []Question
	var texts []Text
	for _, q := range questions {
		switch {
		case q.at.IsValid():
			ports = append(ports, q)
		case q.pair != "":
			pairs = append(pairs, q)
		default:
			texts = append(texts, q.text)
		}
	}
	if err := p.judgePorts(ports, verdicts); err != nil {
		return nil, err
	}
	if p.opt.Binary == "" {
		for _, t := range texts {
			verdicts[t.Part()] = Refused("HAProxy's program is missing, and cannot check it: set haproxy.binary")
		}
		for _, q := range pairs {
			verdicts[q.Part()] = Good // without the program nobody can check them
		}
		return verdicts, nil
	}
	dir, err := os.MkdirTemp(p.opt.RunDir, vetDir)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	var apart []Text
	for _, t := range texts {
		if slices.Contains(own, t.section) {
			apart = append(apart, t)
			// a text for another section affects the whole configuration, so it is read on its own
		} else if err := p.judge(ctx, dir, []Text{t}, verdicts); err != nil {
			return nil, err
		}
	}
	return verdicts, errors.Join(p.judge(ctx, dir, apart, verdicts),
		p.judgePairs(ctx, dir, p.unread(pairs, verdicts), verdicts))
}

// judgePairs adds the verdicts on certificates. HAProxy also reads our default certificate with
// them. If it rejects this certificate, too, the others are not at fault, and judgePairs returns an
// error.
func (p *Proxy) judgePairs(ctx context.Context, dir string, questions []Question, verdicts Verdicts) error {
	if len(questions) == 0 {
		return nil
	}
	ask := func(file string) Text { return Text{pairSection, "bind 127.0.0.1:1 ssl crt " + file} }
	ours := ask(p.path(certDir + defaultCert))
	texts := []Text{ours}
	for i, q := range questions {
		file := filepath.Join(dir, strconv.Itoa(i)+".pem")
		if err := os.WriteFile(file, []byte(q.pair), 0o600); err != nil {
			return err
		}
		texts = append(texts, ask(file))
	}
	said := make(Verdicts, len(texts))
	if err := p.judge(ctx, dir, texts, said); err != nil {
		return err
	}
	if why := said[ours.Part()].Why; why != "" {
		return fmt.Errorf("HAProxy rejects the certificate of sallyport itself: %s", why)
	}
	for i, q := range questions {
		verdict := said[texts[i+1].Part()]
		if verdict.Why != "" {
			verdict.Why = "HAProxy rejects it: " + strings.ReplaceAll(inBind.ReplaceAllString(verdict.Why, ""), dir+"/",
				"")
		}
		verdicts[q.Part()] = verdict
	}
	return nil
}

// unread returns the questions about certificates that are not among the files on disk. It adds a
// good verdict on every other certificate. The files are those that HAProxy last accepted, so a
// fresh process knows its good certificates by them. If a crash has left other files there, or
// HAProxy has another version now, Blame finds the certificates that HAProxy rejects.
func (p *Proxy) unread(questions []Question, verdicts Verdicts) (rest []Question) {
	p.mu.Lock()
	defer p.mu.Unlock()
	filed := make(map[Part]bool)
	for path, sum := range p.disk.sums {
		if strings.HasPrefix(path, certDir) {
			filed[Part{kind: pairPart, content: hex.EncodeToString(sum[:])}] = true
		}
	}
	for _, q := range questions {
		if part := q.Part(); filed[part] {
			verdicts[part] = Good
		} else {
			rest = append(rest, q)
		}
	}
	return rest
}

// inBind matches the words of a complaint that the author of a certificate does not know.
var inBind = regexp.MustCompile(`^HAProxy: '[^']*' in section '[^']*' : |(?: into SSL Context| from file) '[^']*'`)

// judgePorts adds the verdicts on ports. In mode external every port is good, because its owner may
// be unknown here.
func (p *Proxy) judgePorts(ports []Question, verdicts Verdicts) error {
	for _, q := range ports {
		verdicts[q.Part()] = Good
	}
	if len(ports) == 0 || p.opt.Mode == External {
		return nil
	}
	open := listening() // before changes have to wait
	p.mu.Lock()
	defer p.mu.Unlock()
	var own procs
	switch err := p.ensure(); { // until HAProxy is found, its own ports look like another program's
	case err == nil:
		if own, err = p.master.show(); err != nil {
			return err
		}
	case !errors.Is(err, errUnready): // a HAProxy that does not run has no ports
		return err
	}
	for _, q := range ports {
		if who := open.holder(q.at, own); who != "" {
			verdicts[q.Part()] = Refused("in use by " + who)
		}
	}
	return nil
}

// judge adds the verdicts on texts.
func (p *Proxy) judge(ctx context.Context, dir string, texts []Text, verdicts Verdicts) error {
	left := slices.Clone(texts)
	for len(left) > 0 {
		complaints, err := p.vet(ctx, dir, left)
		if err != nil {
			return err
		}
		if len(complaints) == 0 {
			break
		}
		if complaints[-1] != "" && len(left) > 1 { // HAProxy does not say which text is at fault
			half := len(left) / 2
			return errors.Join(p.judge(ctx, dir, left[:half], verdicts), p.judge(ctx, dir, left[half:], verdicts))
		}
		for i, why := range complaints {
			verdicts[left[max(i, 0)].Part()] = Refused(why)
		}
		left = slices.DeleteFunc(left, func(t Text) bool { return verdicts[t.Part()].Why != "" })
	}
	for _, t := range left {
		verdicts[t.Part()] = Good
	}
	return nil
}

var (
	atLine  = regexp.MustCompile(`\[[^ \]]*vet\.cfg:(\d+)\] ?:? ?(.*)`)
	inFrame = regexp.MustCompile(`\bsp_vet_(\d+)\b`)
)

// own lists the sections that exist once for each text. HAProxy can check several such texts in one
// run.
var own = []Section{
	FrontendSection, HTTPSection, HTTPSSection, BackendSection, streamSection, routeSection, pairSection,
}

// tooMany matches the complaint after which HAProxy stops reading. The line in it is not at fault.
var tooMany = regexp.MustCompile(`\]: too many fatal errors \(\d+\), stopping now`)

// vet runs HAProxy once. It returns the complaints by the index of the text, or by -1
// if they name no text.
func (p *Proxy) vet(ctx context.Context, dir string, texts []Text) (map[int]string, error) {
	trial := p.trialOf(texts)
	file := filepath.Join(dir, "vet.cfg")
	if err := os.WriteFile(file, []byte(trial.text.String()), 0o600); err != nil {
		return nil, err
	}
	report, err := p.report(ctx, file, vetTimeout)
	if report == "" || err != nil {
		return nil, err
	}
	return trial.complaints(report), nil
}

// A trial is a configuration with texts for HAProxy to check.
type trial struct {
	of    []Text
	text  strings.Builder
	owner []int // the index of the text that each line belongs to, or -1
}

// line adds a line of the text with the index of.
func (t *trial) line(of int, line string) {
	t.text.WriteString(line + "\n")
	t.owner = append(t.owner, of)
}

// lines adds lines that belong to no text.
func (t *trial) lines(all ...string) {
	for _, line := range all {
		t.line(-1, line)
	}
}

// body adds all lines of a text.
func (t *trial) body(i int) {
	for l := range strings.SplitSeq(t.of[i].lines, "\n") {
		t.line(i, "  "+l)
	}
}

// inside adds all texts for a section that exists only once.
func (t *trial) inside(section Section) {
	for i, text := range t.of {
		if text.section == section {
			t.body(i)
		}
	}
}

// trialOf returns the trial of texts.
func (p *Proxy) trialOf(texts []Text) *trial {
	t := &trial{of: texts}
	t.lines("global", "  ca-base "+strings.TrimSuffix(p.path(extraDir), "/"))
	t.inside(GlobalSection)
	if slices.ContainsFunc(texts, func(t Text) bool { return t.section == quicSection }) {
		t.lines("  crt-base "+strings.TrimSuffix(p.path(certDir), "/"), "  "+limitedQUIC)
	}
	t.lines("defaults", "  mode http",
		"  log 127.0.0.1:514 local0", // without a log target HAProxy does not parse log formats
		"  timeout connect 1s", "  timeout client 1s", "  timeout server 1s")
	t.inside(DefaultsSection)
	t.lines("frontend sp_vet",
		"  bind 127.0.0.1:1") // the check does not bind it, but HAProxy rejects a configuration without listeners
	t.inside(quicSection)
	t.inside(pairSection)
	t.lines("backend sp_vet_none")
	for i, text := range texts {
		switch text.section {
		case FrontendSection, HTTPSection, HTTPSSection:
			t.line(i, fmt.Sprintf("frontend sp_vet_%d", i))
			t.line(i, "  bind 127.0.0.1:1")
			t.line(i, "  default_backend sp_vet_none")
		case streamSection:
			t.line(i, fmt.Sprintf("frontend sp_vet_%d", i))
			t.line(i, "  mode tcp")
			t.line(i, "  bind 127.0.0.1:1")
		case routeSection:
			t.line(i, fmt.Sprintf("frontend sp_vet_%d", i))
			t.line(i, "  bind 127.0.0.1:1")
			t.line(i, "  use_backend sp_vet_none if "+text.lines)
			continue
		case BackendSection:
			t.line(i, fmt.Sprintf("backend sp_vet_%d", i))
		default:
			continue
		}
		t.body(i)
	}
	return t
}

// complaints returns the complaints of a report by the index of the text, or by -1 if they name no
// text.
func (t *trial) complaints(report string) map[int]string {
	found := map[int]string{}
	add := func(i int, why string) {
		if found[i] == "" {
			// the author does not know the name of the section
			found[i] = "HAProxy: " + inFrame.ReplaceAllString(why, "of this")
		}
	}
	var rest []string // complaints that name neither a line nor a section
	for _, said := range alerts(report) {
		if tooMany.MatchString(said) {
			continue
		}
		if m := atLine.FindStringSubmatch(said); m != nil {
			number, _ := strconv.Atoi(m[1])
			if number >= 1 && number <= len(t.owner) && t.owner[number-1] >= 0 {
				add(t.owner[number-1], m[2])
				continue
			}
			said = m[2]
		}
		if m := inFrame.FindStringSubmatch(said); m != nil {
			if i, _ := strconv.Atoi(m[1]); i < len(t.of) {
				add(i, said)
				continue
			}
		}
		rest = append(rest, said)
	}
	if len(found) == 0 {
		add(-1, strings.Join(rest[:min(len(rest), 1)], ""))
	}
	return found
}
