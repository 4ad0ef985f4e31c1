package claims

import "time"

// A Period lasts from Since (included) until Until (excluded). A zero time is open.
type Period struct{ Since, Until time.Time }

// Has reports whether a time is in the period.
func (p Period) Has(at time.Time) bool {
	return !at.Before(p.Since) && (p.Until.IsZero() || at.Before(p.Until))
}

// Both returns the time that is in two periods.
func (p Period) Both(q Period) Period {
	if q.Since.After(p.Since) {
		p.Since = q.Since
	}
	if p.Until.IsZero() || !q.Until.IsZero() && q.Until.Before(p.Until) {
		p.Until = q.Until
	}
	return p
}

// Narrow shortens a period around a time, so that it ends or begins where something changes.
func (p Period) Narrow(around, change time.Time) Period {
	if change.After(around) {
		return p.Both(Period{Until: change})
	}
	return p.Both(Period{Since: change})
}
