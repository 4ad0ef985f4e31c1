package appliance

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"sallyport/appliance/status"
	"sallyport/haproxy"
	"sallyport/ingress"
)

// A vetter asks HAProxy about the parts of the configuration that come from a cluster's objects. It
// asks about a text before the text is used, and about every part once HAProxy rejects the whole
// configuration. The loop does not wait for the answers. A verdict is kept as long as an object
// brings its part. The vetter asks again about ports, because other programs open and close them.
type vetter struct {
	proxy   proxy
	log     *slog.Logger
	changed chan struct{}

	mu       sync.Mutex
	verdicts haproxy.Verdicts
	late     haproxy.Verdicts // verdicts on certificates that a later call of known adds to verdicts
	heard    time.Time        // when known last added late
	fresh    bool             // verdicts arrived after the last call of known
	busy     bool
	blamed   time.Time // when blame last began a search; zero if it may search at once
	aside    time.Time // since when verdicts are Aside; zero without such verdicts
	ported   time.Time // when askPorts last asked; zero before
	unbound  bool      // HAProxy may lack a port that was free, see doubtPorts

	// The goroutine of the loop owns these.
	vouched *ingress.Result // the last Result with a verdict on every text; nil before the first
	unsure  time.Time       // since when a newer Result waits for verdicts; zero if none waits
}

// vetting bounds how long a text without a verdict delays every other change, including changes of
// pods. A verdict takes tens of milliseconds.
const vetting = 2 * time.Second

func newVetter(p proxy, log *slog.Logger) *vetter {
	return &vetter{proxy: p, log: log, changed: make(chan struct{}, 1), verdicts: haproxy.Verdicts{}}
}

// judging is the least time between two additions of refused certificates to the verdicts. Each
// addition makes the compiler start from nothing. It is not urgent, because usable has left the
// certificates out already.
const judging = 5 * time.Second

// known returns the verdicts so far. The map is never changed.
func (v *vetter) known(now time.Time) haproxy.Verdicts {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.late) > 0 && now.Sub(v.heard) >= judging {
		v.verdicts = maps.Clone(v.verdicts)
		maps.Copy(v.verdicts, v.late)
		v.late, v.heard = nil, now
	}
	if !v.aside.IsZero() && now.Sub(v.aside) >= setAside {
		v.verdicts, v.aside = maps.Clone(v.verdicts), time.Time{}
		maps.DeleteFunc(v.verdicts, func(_ haproxy.Part, verdict haproxy.Verdict) bool { return verdict.Aside })
	}
	v.fresh = false
	return v.verdicts
}

// setAside is how long a part is left out because HAProxy rejects many others of its owner. The
// owner may have corrected the other parts by then. If not, another search delays reloads once
// more.
const setAside = 5 * time.Minute

// refuse adds verdicts on certificates. The compiler reports them to the owners of the
// certificates.
func (v *vetter) refuse(found haproxy.Verdicts) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.late == nil {
		v.late = haproxy.Verdicts{}
	}
	maps.Copy(v.late, found)
}

// vetted returns the Result to use now, and whether every text of r has a verdict. While a text of
// r has no verdict, vetted returns the last Result with a verdict on every text, for at most the
// time vetting. This way a changed snippet takes effect only after HAProxy has judged it, and a
// rejected snippet costs no reload.
func (v *vetter) vetted(ctx context.Context, r ingress.Result, now time.Time) (_ ingress.Result, sure bool) {
	switch {
	case v.look(ctx, r.Questions, r.Refused, now):
		v.vouched, v.unsure = &r, time.Time{}
		return r, true
	case v.vouched == nil:
		return r, false
	case v.unsure.IsZero():
		v.unsure = now
	}
	if now.Sub(v.unsure) < vetting {
		return *v.vouched, false
	}
	return r, false
}

// look reports whether every question has a verdict. If a question has no verdict, look asks
// HAProxy, in one run at a time, and knocks when the verdicts arrive. If every question has a
// verdict, look forgets the verdicts on all other parts that are not in refused.
func (v *vetter) look(
	ctx context.Context, questions []haproxy.Question, refused []haproxy.Part, now time.Time,
) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	wanted := make(haproxy.Verdicts, len(questions)+len(refused))
	for _, p := range refused {
		if verdict := v.verdicts[p]; verdict.Known {
			wanted[p] = verdict
		}
	}
	var open []haproxy.Question
	for _, q := range questions {
		if verdict := v.verdicts[q.Part()]; verdict.Known {
			wanted[q.Part()] = verdict
		} else {
			open = append(open, q)
		}
	}
	if len(open) == 0 {
		if len(wanted) < len(v.verdicts) && !v.fresh {
			v.verdicts = wanted
		}
		v.askPorts(ctx, questions, now)
		return true
	}
	if !v.busy {
		v.learn(ctx, func() (haproxy.Verdicts, error) { return v.proxy.Vet(ctx, open) })
	}
	return false
}

// portsEvery is the least time between two questions about the same ports.
const portsEvery = 10 * time.Second

// askPorts asks again about the ports that other programs have. It asks about all ports after
// doubtPorts. The caller holds mu.
func (v *vetter) askPorts(ctx context.Context, questions []haproxy.Question, now time.Time) {
	if v.busy || now.Sub(v.ported) < portsEvery {
		return
	}
	var ports []haproxy.Question
	for _, q := range questions {
		if q.AboutPort() && (v.unbound || v.verdicts[q.Part()].Why != "") {
			ports = append(ports, q)
		}
	}
	v.unbound = false
	if len(ports) > 0 {
		v.ported = now
		v.learn(ctx, func() (haproxy.Verdicts, error) { return v.proxy.Vet(ctx, ports) })
	}
}

// doubtPorts notes that HAProxy does not run a configuration, perhaps because another program has
// taken a port that was free.
func (v *vetter) doubtPorts() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.unbound = true
}

// blameEvery is the least time between two searches of blame.
const blameEvery = 30 * time.Second

// blame searches for the parts that make HAProxy reject a whole configuration, and
// knocks when it has found some.
func (v *vetter) blame(ctx context.Context, cfg *haproxy.Config, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.busy || now.Sub(v.blamed) < blameEvery {
		return
	}
	v.blamed = now
	v.learn(ctx, func() (haproxy.Verdicts, error) {
		found, err := v.proxy.Blame(ctx, cfg)
		told := 0
		for part, verdict := range found {
			if told++; told > status.Screenful {
				break
			}
			v.log.Warn("HAProxy rejects a part of the configuration; sallyport leaves it out", "part", part.String(),
				"why", verdict.Why)
		}
		if more := len(found) - status.Screenful; more > 0 {
			v.log.Warn("HAProxy rejects more parts: see the status page", "count", more)
		}
		return found, err
	})
}

// learn calls verdicts in a goroutine, and adds the answers that are new. The caller holds mu.
func (v *vetter) learn(ctx context.Context, verdicts func() (haproxy.Verdicts, error)) {
	v.busy = true
	asked := v.blamed
	go func() {
		answers, err := verdicts()
		v.mu.Lock()
		defer v.mu.Unlock()
		v.busy = false
		maps.DeleteFunc(answers, func(p haproxy.Part, verdict haproxy.Verdict) bool { return verdict == v.verdicts[p] })
		if len(answers) > 0 {
			v.blamed = time.Time{} // there may be more to find
		}
		for _, verdict := range answers {
			if verdict.Aside {
				v.aside = asked
			}
		}
		if err != nil {
			if ctx.Err() == nil {
				v.log.Error("HAProxy cannot check parts of the configuration", "err", err)
			}
			return // the next look asks again
		}
		if len(answers) == 0 {
			return
		}
		v.verdicts, v.fresh = maps.Clone(v.verdicts), true
		maps.Copy(v.verdicts, answers)
		knock(v.changed)
	}()
}
