package haproxy

import (
	"errors"
	"testing"
	"time"
)

// A clockwork is a schedule and the time that passes for it.
type clockwork struct {
	schedule
	now time.Time
}

func newClockwork() *clockwork {
	return &clockwork{schedule: schedule{least: time.Second}, now: time.Unix(1_000_000, 0)}
}

// wait returns how long a reload has to wait.
func (c *clockwork) wait(d demand) time.Duration { return max(c.due(c.now, d).Sub(c.now), 0) }

// reload lets the time pass until a reload is due, makes it, and returns how long that took.
func (c *clockwork) reload(d demand) time.Duration {
	wait := c.wait(d)
	c.now = c.now.Add(wait)
	c.spend(c.now, d)
	c.ended(c.now)
	c.accepted()
	return wait
}

var evil = Tenant{Cluster: "c", Namespace: "evil"}

// asks returns the demand of a tenant, which may cause so many reloads at once.
func asks(t Tenant, most int, c cause) demand {
	return demand{by: causes{t: &c}, cfg: &Config{Reloads: map[string]int{"c": most}}, files: func() string {
		return "files"
	}}
}

func TestATenantWaitsForItsBudgetAlone(t *testing.T) {
	c, d := newClockwork(), asks(evil, 3, cause{urgent: true})
	for i, want := range []time.Duration{0, time.Second, time.Second, refillEvery - 2*time.Second, refillEvery} {
		if got := c.reload(d); got != want {
			t.Errorf("reload %d of the tenant: got a wait of %s, want %s", i, got, want)
		}
	}
	waits := c.waits(c.now, d)
	if len(waits) != 1 || waits[0].Most != 3 || waits[0].Until.Sub(c.now) != refillEvery {
		t.Errorf("got %+v, want the tenant to wait for its budget", waits)
	}
	for _, other := range []Tenant{{Cluster: "c", Namespace: "victim"}, {}} {
		if got := c.wait(asks(other, 3, cause{urgent: true})); got != time.Second {
			t.Errorf("another tenant, %v: got a wait of %s, want %s", other, got, time.Second)
		}
	}
	both := asks(evil, 3, cause{urgent: true})
	both.by[Tenant{}] = &cause{urgent: true}
	if got := c.wait(both); got != time.Second {
		t.Errorf("with the operator: got a wait of %s, want %s", got, time.Second)
	}
	if d.old = crowd; c.wait(d) != 2*refillEvery {
		t.Errorf("with %d old workers: got a wait of %s, want %s", crowd, c.wait(d), 2*refillEvery)
	}
}

func TestALowerBudgetMakesATenantWaitForOneReloadAtMost(t *testing.T) {
	c := newClockwork()
	for range 100 {
		c.reload(asks(evil, 100, cause{urgent: true}))
	}
	for i, want := range []time.Duration{refillEvery, refillEvery} {
		if got := c.reload(asks(evil, 5, cause{urgent: true})); got > want {
			t.Errorf("reload %d within the lower budget: got a wait of %s, want %s at most", i, got, want)
		}
	}
	if got := c.wait(asks(evil, 10, cause{urgent: true})); got > time.Second {
		t.Errorf("within a higher budget again: got a wait of %s, want none", got)
	}
}

func TestAReloadForNobodyWaits(t *testing.T) {
	c, d := newClockwork(), asks(evil, 5, cause{})
	if got := c.wait(d); got != idleReload {
		t.Errorf("got a wait of %s, want %s", got, idleReload)
	}
	c.now = c.now.Add(idleReload / 2)
	if got := c.wait(d); got != idleReload/2 {
		t.Errorf("half of it later: got a wait of %s, want %s", got, idleReload/2)
	}
	if got := c.wait(asks(evil, 5, cause{urgent: true})); got != 0 {
		t.Errorf("somebody waits for it: got a wait of %s, want none", got)
	}
	for what, note := range map[string]func(){
		"something else waits": c.waitAnew,
		"nothing waited":       c.nothing,
		"another reload ended": func() { c.ended(c.now) },
	} {
		c.now = c.now.Add(time.Second)
		if note(); c.wait(d) != idleReload {
			t.Errorf("after that %s: got a wait of %s, want %s", what, c.wait(d), idleReload)
		}
	}
	if got := c.waits(c.now, d); len(got) > 0 {
		t.Errorf("got %+v, want nobody to be told", got)
	}
}

func TestManyOldWorkersDelayAllButGuards(t *testing.T) {
	c := newClockwork()
	operator := asks(Tenant{}, 0, cause{urgent: true})
	c.reload(operator)
	if operator.old = freeWorkers; c.wait(operator) != pace(freeWorkers) {
		t.Errorf("got a wait of %s, want %s", c.wait(operator), pace(freeWorkers))
	}
	waits := c.waits(c.now, operator)
	if len(waits) != 1 || waits[0].Most != 0 || !c.eased {
		t.Errorf("got %+v, %t; want the operator to wait for old workers, and perhaps shorter than said", waits,
			c.eased)
	}
	guard := asks(evil, 5, cause{urgent: true, guard: true})
	if guard.old = freeWorkers; c.wait(guard) != c.least {
		t.Errorf("a guard: got a wait of %s, want %s", c.wait(guard), c.least)
	}
}

func TestRejectedFilesAreTriedAgainEverLater(t *testing.T) {
	c, d := newClockwork(), asks(Tenant{}, 0, cause{urgent: true})
	bad := errors.New("no")
	for _, want := range []time.Duration{minBackoff, 2 * minBackoff, 4 * minBackoff} {
		c.ended(c.now)
		if got := c.failed(c.now, "files", bad); got != want || c.wait(d) != want ||
			!c.retryAt(c.now).Equal(c.now.Add(want)) {
			t.Errorf("got a wait of %s and of %s, want %s", got, c.wait(d), want)
		}
	}
	for range 10 {
		c.failed(c.now, "files", bad)
	}
	if got := c.wait(d); got != maxBackoff {
		t.Errorf("after many failures: got a wait of %s, want %s", got, maxBackoff)
	}
	other := asks(Tenant{}, 0, cause{urgent: true})
	other.files = func() string { return "others" }
	if got := c.wait(other); got != c.least || c.failure(other.files) != nil || !errors.Is(c.failure(d.files), bad) {
		t.Errorf("other files: got a wait of %s and %v, want %s", got, c.failure(other.files), c.least)
	}
	if c.accepted(); c.failure(d.files) != nil || c.wait(d) != c.least {
		t.Errorf("HAProxy took files: got %v and a wait of %s, want none", c.failure(d.files), c.wait(d))
	}
}
