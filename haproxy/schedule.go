package haproxy

import (
	"slices"
	"time"
)

const (
	// idleReload is how long a reload waits if nobody waits for it. Such a reload only removes
	// backends to which no route leads any more, or gives backends their own names.
	idleReload = 30 * time.Second
	// First and longest wait between a failed reload and the next one to the same files.
	minBackoff, maxBackoff = 5 * time.Second, 5 * time.Minute
)

// A schedule decides when the next reload may come. Its methods get the present time as an
// argument, and change only the schedule.
type schedule struct {
	least     time.Duration // least time between two reloads
	last      time.Time     // when the last reload ended, even one that failed
	idleSince time.Time     // when a reload that nobody waits for became necessary; zero if there is no such reload
	budgets   budgets
	// late holds the tenants that have waited for their budget since the last reload, each with its
	// cause as of now.
	late     map[Tenant]*cause
	eased    bool // old workers end, so the reload that waits may come sooner than Apply has reported
	rejected rejection
}

// A rejection is the last failure to start or reload HAProxy with some files. It is zero if nothing
// has failed.
type rejection struct {
	files   string // their outline.refusable
	err     error
	until   time.Time // the files are not tried again before this time
	backoff time.Duration
}

// A demand holds the facts that decide about the time of a reload.
type demand struct {
	by    causes        // the tenants that need the reload; empty if no tenant's changes need it
	cfg   *Config       // has the budgets of all tenants
	files func() string // outline.refusable of the wanted files
	old   int           // number of old workers
}

// due returns the earliest time for a reload. If nobody waits for the reload, its wait (idleReload)
// begins now, unless it has already begun.
func (s *schedule) due(now time.Time, d demand) time.Time {
	due := s.last.Add(s.least)
	if len(d.by) > 0 {
		if s.idleSince.IsZero() {
			s.idleSince = now
		}
		first := time.Time{}
		for t, c := range d.by {
			_, at := s.allow(now, d, t, c)
			first = earlier(first, at)
		}
		due = later(due, first)
	}
	if s.failure(d.files) != nil {
		due = later(due, s.rejected.until)
	}
	return due
}

// allow returns when the changes of a tenant may cause a reload. The time budget depends only on
// the budget of the tenant. The time all also depends on the old workers, and on idleReload. A
// guard within the budget does not wait for old workers.
func (s *schedule) allow(now time.Time, d demand, t Tenant, c *cause) (budget, all time.Time) {
	budget = s.budgets.due(t, d.cfg.budgetOf(t), now, refill(d.old))
	all = budget
	if !c.guard {
		all = later(all, s.last.Add(pace(d.old)))
	}
	if !c.urgent {
		all = later(all, s.idleSince.Add(idleReload))
	}
	return budget, all
}

// spend charges a reload to the budget of each tenant that asks for it.
func (s *schedule) spend(now time.Time, d demand) {
	every := refill(d.old)
	s.budgets.forget(now, every)
	for t := range d.by {
		if most := d.cfg.budgetOf(t); most > 0 {
			s.budgets.spend(t, most, now, every)
		}
	}
}

// waits returns the tenants that wait for a reload because of a budget or of old workers. It notes
// the tenants that have waited for a budget.
func (s *schedule) waits(now time.Time, d demand) (all []Wait) {
	was, soon := s.late, later(now, s.last.Add(s.least))
	s.late, s.eased = make(map[Tenant]*cause), false
	for t, c := range d.by {
		budget, due := s.allow(now, d, t, c)
		over := budget.After(now)
		s.eased = s.eased || over || due.After(soon) && pace(d.old) > 0
		if over || was[t] != nil {
			s.late[t] = c
		}
		if !c.urgent || !due.After(soon) {
			continue
		}
		w := Wait{Tenant: t, Until: due, Backends: c.backends()}
		if over {
			w.Most = d.cfg.budgetOf(t)
			w.Closed = slices.DeleteFunc(slices.Clone(w.Backends), func(name string) bool { return !c.of[name] })
		}
		all = append(all, w)
	}
	slices.SortFunc(all, func(a, b Wait) int { return compareTenants(a.Tenant, b.Tenant) })
	return all
}

// nothing notes that no reload is needed.
func (s *schedule) nothing() { s.idleSince, s.late, s.eased = time.Time{}, nil, false }

// waitAnew begins a new wait (idleReload) for a reload that nobody waits for, because its task has
// changed.
func (s *schedule) waitAnew() { s.idleSince = time.Time{} }

// ended notes that a reload has ended, with or without an error.
func (s *schedule) ended(now time.Time) { s.last, s.idleSince = now, time.Time{} }

// accepted notes that HAProxy has taken the files of the reload.
func (s *schedule) accepted() { s.rejected.files, s.rejected.err, s.late = "", nil, nil }

// failed notes that HAProxy rejected these files. It returns how long they are not tried again.
func (s *schedule) failed(now time.Time, files string, err error) time.Duration {
	r := &s.rejected
	if files == r.files {
		r.backoff = min(2*r.backoff, maxBackoff)
	} else {
		r.backoff = minBackoff
	}
	r.files, r.err, r.until = files, err, now.Add(r.backoff)
	return r.backoff
}

// failure returns the error of the last reload if it failed with these files. The servers in them
// may have changed since.
func (s *schedule) failure(files func() string) error {
	if s.rejected.files != "" && files() == s.rejected.files {
		return s.rejected.err
	}
	return nil
}

// retryAt returns when the rejected files may be tried again. The zero time stands for now.
func (s *schedule) retryAt(now time.Time) time.Time {
	if s.rejected.until.After(now) {
		return s.rejected.until
	}
	return time.Time{}
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
