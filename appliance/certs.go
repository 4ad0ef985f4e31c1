package appliance

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"sallyport/appliance/status"
	"sallyport/haproxy"
)

// certs asks HAProxy about each certificate before the certificate is used. A certificate
// that HAProxy rejects makes a whole reload fail, so one namespace would delay the changes
// of all. The loop does not wait for the answers.
//
// An answer is kept in memory as long as the configuration has the certificate. It is not
// saved: in a fresh process Vet knows the good certificates by HAProxy's files, and a
// certificate without an answer delays nobody.
type certs struct {
	proxy   proxy
	log     *slog.Logger
	refuse  func(haproxy.Verdicts) // takes the verdicts on certificates that HAProxy rejects
	changed chan struct{}

	mu      sync.Mutex
	answers haproxy.Verdicts
	fresh   bool // answers have come, so usable has to look again even if want is the same
	busy    bool // a call of ask runs, or rests after its run
	// owners of certificates that HAProxy rejects; a start does not wait for their other
	// certificates
	suspect map[string]bool

	// The goroutine of the loop owns these arguments and results of the last call of usable.
	want, use []*haproxy.Cert
	waits     bool
	closed    []string // Scopes of the Listeners with a new certificate, which HAProxy has not read yet
	parts     map[*haproxy.Cert]haproxy.Part
}

// certsAtOnce bounds the certificates that HAProxy reads in one run. The next certificate
// waits for the end of the run. HAProxy reads 1,000 a second or more.
const certsAtOnce = 200

// usable returns the certificates to use now: those that HAProxy accepts. If HAProxy rejects a
// certificate, or has not read it yet, usable returns the last certificate in use under the same
// name. waits reports whether a certificate has not been read yet; it leaves out owners with
// rejected certificates.
func (c *certs) usable(ctx context.Context, want []*haproxy.Cert) (use []*haproxy.Cert, waits bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.fresh && slices.Equal(want, c.want) {
		return c.use, c.waits
	}
	former := make(map[string]*haproxy.Cert, len(c.use))
	for _, cert := range c.use {
		former[cert.Name] = cert
	}
	parts, answers := make(map[*haproxy.Cert]haproxy.Part, len(want)), make(haproxy.Verdicts, len(want))
	var open []*haproxy.Cert
	c.closed = nil
	for _, cert := range want {
		part, known := c.parts[cert]
		if !known {
			part = cert.Question().Part()
		}
		parts[cert] = part
		answer := c.answers[part]
		if answer.Known {
			answers[part] = answer
		} else {
			open = append(open, cert)
			waits = waits || !c.suspect[cert.Owner]
		}
		if was := former[cert.Name]; answer == haproxy.Good {
			use = append(use, cert)
		} else if was != nil {
			kept := *cert
			kept.PEM, kept.Expires = was.PEM, was.Expires
			use = append(use, &kept)
		} else if cert.Scope != "" {
			c.closed = append(c.closed, cert.Scope)
		}
	}
	c.want, c.use, c.waits, c.parts, c.answers, c.fresh = want, use, waits, parts, answers, false
	if len(open) > 0 && !c.busy {
		c.busy = true
		next := status.InTurns(open, func(cert *haproxy.Cert) string { return cert.Owner })
		go c.ask(ctx, next[:min(len(next), certsAtOnce)])
	}
	return use, waits
}

// ask asks HAProxy about some certificates, and knocks when it has the answers. Then it rests as
// long as the run took, and knocks again. An owner that changes certificates all the time therefore
// costs at most half a processor. It does not rest between the runs of a start with many good
// certificates.
func (c *certs) ask(ctx context.Context, some []*haproxy.Cert) {
	questions := make([]haproxy.Question, len(some))
	for i, cert := range some {
		questions[i] = cert.Question()
	}
	begin := time.Now()
	answers, err := c.proxy.Vet(ctx, questions)
	took := time.Since(begin)
	if err != nil && ctx.Err() == nil {
		c.log.Error("HAProxy cannot check certificates; new ones are not used yet", "err", err)
		took = max(took, time.Second)
	}
	bad := make(haproxy.Verdicts)
	var first *haproxy.Cert
	c.mu.Lock()
	for i, cert := range some {
		part := questions[i].Part()
		if answer := answers[part]; answer.Why != "" {
			bad[part] = answer
			c.suspect[cert.Owner] = true
			if len(bad) == 1 {
				first = cert
			}
		}
	}
	c.answers, c.fresh = maps.Clone(c.answers), true
	maps.Copy(c.answers, answers)
	c.mu.Unlock()
	if err == nil && len(bad) == 0 && len(some) == certsAtOnce {
		took = 0
	}
	if first != nil {
		c.log.Warn("HAProxy rejects certificates; sallyport leaves them out", "count", len(bad), "first", first, "why",
			bad[first.Question().Part()].Why)
		c.refuse(bad)
	}
	knock(c.changed)
	select {
	case <-ctx.Done():
	case <-time.After(took):
	}
	c.mu.Lock()
	c.busy, c.fresh = false, true
	c.mu.Unlock()
	knock(c.changed)
}
