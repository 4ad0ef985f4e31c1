package group

import (
	"fmt"
	"time"
)

// Class says how an appliance offers itself for the service addresses of its group.
type Class string

// The three classes. The routers in front use the best class that they are offered.
const (
	Full  Class = "full"  // announced plainly
	Spare Class = "spare" // announced as the last resort
	None  Class = "none"  // not announced
)

// Facts holds the facts of one round that decide the class of this appliance.
type Facts struct {
	Starting bool   // it still waits for BGP peers that have not sent all their routes
	HAProxy  string // why HAProxy does not answer; empty if it answers
	Settled  bool   // the first rounds have ended
	Failing  string // the error of the round; empty if the round succeeds
	Missing  int    // wanted routes that the kernel does not hold

	Clusters []ClusterFacts
	Isolated bool // no router has a session with it, and no other member is heard
	Down     bool // servers are open and checked, and none passes its check

	Draining bool // the operator has asked it to leave
	Forced   bool // it has to leave even if no other member is full
	Others   bool // another member is full and does not drain
}

// ClusterFacts holds the facts of one round about one cluster.
type ClusterFacts struct {
	Name         string
	Live         bool // its API has answered since the start; losing the API later changes nothing
	Lost         bool // every BGP session with its nodes was lost at once, and no other cluster serves instead
	Peers, Heard int  // its BGP peers, and those that have sent all their routes since the start
}

// Fitness is the class of an appliance, and since when its facts speak for another class.
type Fitness struct {
	Class Class
	Why   string // why it is not full, in one sentence; empty if it is full

	doubt  time.Time     // while it is full: since when there is a reason to give up that class; zero without a reason
	steady time.Time     // while it is not full: since when nothing speaks against that class; else zero
	lost   time.Time     // when it last gave up the class full because of a failure
	wait   time.Duration // how long its facts have to be steady before it is full
}

const (
	// doubtful is how long an appliance stays full although a route is missing or rounds fail. Most
	// of these failures end sooner, and moving the addresses breaks connections.
	doubtful = 10 * time.Second
	// restarting is how long an appliance stays full without a HAProxy. A HAProxy that was killed
	// is back within this time, and refuses fewer connections than moving the addresses breaks.
	restarting = time.Second
	// firstWait and longestWait bound how long an appliance has to have steady facts before it is
	// full. The return of an appliance moves more connections than its loss, so an appliance that
	// flaps is worse than a dead appliance.
	firstWait   = 3 * time.Second
	longestWait = time.Minute
	// A loss sooner than flapping after the previous loss doubles the wait.
	flapping = 10 * time.Minute
)

// Doubted reports whether a full appliance loses that class unless its facts improve soon.
func (f Fitness) Doubted() bool { return !f.doubt.IsZero() }

// Fit decides the class of an appliance. before is the last decision, and the zero Fitness at the
// start.
//
// An appliance with a HAProxy that answers is at least spare, so a group announces its addresses
// while any of its HAProxies answers. There are two exceptions: a drain while another member is
// full, and a drain that the operator forces. To become full, an appliance needs steady facts for
// firstWait. Each loss within flapping doubles this time, up to longestWait. The classes spare and
// none take effect at once, except after failures that often pass by themselves.
func Fit(now time.Time, facts Facts, before Fitness) Fitness {
	next := before
	next.Why = ""
	if now.Sub(before.lost) >= flapping {
		next.wait = firstWait
	}
	class, why, grace := facts.class()
	if grace > 0 && before.Class == Full {
		if next.doubt.IsZero() {
			next.doubt = now
		}
		if now.Sub(next.doubt) < grace {
			return next
		}
	}
	next.doubt = time.Time{}
	switch {
	case class != Full:
		next.Class, next.Why, next.steady = class, why, time.Time{}
		if before.Class == Full && !facts.Draining {
			if !before.lost.IsZero() && now.Sub(before.lost) < flapping {
				next.wait = min(2*next.wait, longestWait)
			}
			next.lost = now
		}
	case before.Class != Full:
		if next.steady.IsZero() {
			next.steady = now
		}
		if now.Sub(next.steady) < next.wait {
			next.Class, next.Why = Spare, fmt.Sprintf("it has to serve well for %s before it is full", next.wait)
			return next
		}
		next.Class, next.steady = Full, time.Time{}
	}
	return next
}

// class returns the class that the facts allow without regard to time, and why it is not full. A
// full appliance stays full for grace all the same.
func (f Facts) class() (class Class, why string, grace time.Duration) {
	switch {
	case f.Draining && f.Forced:
		return None, "it drains, by force", 0
	case f.Draining && f.Others:
		return None, "it drains", 0
	case f.HAProxy != "":
		return None, "HAProxy does not answer: " + f.HAProxy, restarting
	case f.Draining:
		return Spare, "it drains, and stays the last resort because no other member is full", 0
	}
	if why, grace := f.weak(); why != "" {
		return Spare, why, grace
	}
	return Full, "", 0
}

// weak returns why another member would serve better, or "" if this appliance may be full. grace is
// that of class.
func (f Facts) weak() (why string, grace time.Duration) {
	if f.Isolated {
		// The network was gone. Once it is back, this appliance needs a moment to learn which
		// member has which connection.
		return "neither a router nor another member hears it", 0
	}
	for _, c := range f.Clusters {
		if c.Lost {
			return fmt.Sprintf("every BGP session with cluster %s was lost at once", c.Name), 0
		}
	}
	if f.Down {
		return "every open server fails its health check", 0
	}
	for _, c := range f.Clusters {
		switch {
		case !c.Live:
			return fmt.Sprintf("the API of cluster %s has not answered since the start", c.Name), doubtful
		case f.Starting && c.Heard < c.Peers:
			return fmt.Sprintf("%d of %d BGP peers of cluster %s have not sent all their routes since the start",
				c.Peers-c.Heard, c.Peers, c.Name), doubtful
		case c.Peers > 0 && c.Heard == 0:
			return fmt.Sprintf("no BGP peer of cluster %s has sent all its routes since the start", c.Name), doubtful
		}
	}
	switch {
	case !f.Settled:
		return "the first rounds have not ended yet", doubtful
	case f.Failing != "":
		return "rounds fail: " + f.Failing, doubtful
	case f.Missing == 1:
		return "1 wanted route not in the kernel", doubtful
	case f.Missing > 1:
		return fmt.Sprintf("%d wanted routes not in the kernel", f.Missing), doubtful
	}
	return "", 0
}
