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

// Facts holds what one round knows of this appliance as a place for traffic.
type Facts struct {
	Starting bool   // it still waits for BGP peers that have not sent all their routes
	HAProxy  string // why HAProxy does not answer; empty: it does
	Settled  bool   // the first rounds have ended
	Failing  string // the error of the round; empty: none
	Missing  int    // wanted routes that the kernel does not hold

	Clusters []ClusterFacts
	Isolated bool // no router has a session with it, and no other member is heard
	Down     bool // servers are open and checked, and none passes its check

	Draining bool // asked to leave
	Forced   bool // and to do so even if no other member is full
	Others   bool // another member is full and does not drain
}

// ClusterFacts holds what one round knows of one cluster.
type ClusterFacts struct {
	Name         string
	Live         bool // its API has answered since the start; losing the API later changes nothing
	Lost         bool // every BGP session with its nodes was lost at once
	Peers, Heard int  // its BGP peers, and those that have sent all their routes since the start
}

// Fitness is the class of an appliance, and how long it has been in doubt or steady.
type Fitness struct {
	Class Class
	Why   string // why it is not full, in one sentence; empty: it is

	doubt  time.Time     // full: since when there is a reason not to be; zero: there is none
	steady time.Time     // not full: since when there is no reason; zero: there is one
	lost   time.Time     // when it was last full until something failed
	wait   time.Duration // how long it has to be steady before it is full
}

const (
	// doubtful is how long an appliance stays full although a route is missing or rounds
	// fail. Most of such failures end sooner, and a move breaks connections.
	doubtful = 10 * time.Second
	// restarting is how long an appliance stays full without a HAProxy. One that was
	// killed is back within this time, and refuses fewer connections than a move breaks.
	restarting = time.Second
	// firstWait and longestWait bound how long an appliance is steady before it is full.
	// A return moves more connections than a loss, so that an appliance that flaps is
	// worse than a dead one.
	firstWait   = 3 * time.Second
	longestWait = time.Minute
	// flapping is the time after a loss in which another loss doubles the wait.
	flapping = 10 * time.Minute
)

// Doubted reports whether an appliance that is full will be so no longer unless its facts
// improve soon.
func (f Fitness) Doubted() bool { return !f.doubt.IsZero() }

// Fit decides the class of an appliance. before is its last decision; the zero Fitness
// begins.
//
// An appliance whose HAProxy answers is at least spare, unless it drains and another
// member is full, or the operator forces it. So no group is without an announcement
// while one of its HAProxies answers. Full takes steady facts: firstWait, doubled by each
// loss within flapping, up to longestWait. Other classes take effect at once, but for
// failures that often pass by themselves.
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

// class returns the class that the facts alone allow, and why it is not full. grace is how
// long an appliance that is full stays so.
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

// weak returns why others would serve better; empty: nobody would. grace is that of class.
func (f Facts) weak() (why string, grace time.Duration) {
	if f.Isolated {
		// It was cut off. Once it is back, it takes a moment until it knows which member
		// has which connection.
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
