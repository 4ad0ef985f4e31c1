package status

import (
	"fmt"
	"slices"

	"sallyport/bgp"
	"sallyport/haproxy"
)

// A Level says how bad a Finding is, or the state that a cell shows.
type Level string

// The levels.
const (
	Unused  Level = "unused" // there is nothing to judge
	Healthy Level = "ok"
	Info    Level = "info"    // nothing is wrong, and more is possible
	Doubt   Level = "warning" // traffic may pass, and something needs attention
	Failed  Level = "failed"  // some traffic cannot pass
)

// Fault reports whether something needs attention.
func (l Level) Fault() bool { return l == Doubt || l == Failed }

// Worse returns the level that needs more attention.
func (l Level) Worse(o Level) Level {
	ranks := []Level{"", Unused, Healthy, Info, Doubt, Failed}
	if slices.Index(ranks, o) > slices.Index(ranks, l) {
		return o
	}
	return l
}

// Passing returns the level of the servers as HAProxy uses them: whether it sends them requests.
func (c Counts) Passing() Level {
	switch closed := c.Closed() > 0; {
	case c.Open+c.Failing == 0 && !closed:
		return Unused
	case c.Open+c.Failing == 0:
		return Failed
	case closed:
		return Doubt
	}
	return Healthy
}

// Answering returns the level of the health checks of the servers.
func (c Counts) Answering() Level {
	switch {
	case c.Failing > 0 && c.Open == 0:
		return Failed
	case c.Failing > 0:
		return Doubt
	case c.All == 0, c.Open == 0 && c.Draining > 0:
		return Unused
	}
	return Healthy
}

// Level returns the level of the servers.
func (c Counts) Level() Level { return c.Passing().Worse(c.Answering()) }

// Servers returns a cell that says to how many of the servers HAProxy sends requests.
func (c Counts) Servers() Cell {
	cell := Cell{Text: fmt.Sprintf("%d of %d", c.Open+c.Failing, c.All), Level: c.Passing()}
	switch {
	case c.All == 0:
		cell.Text = "no servers"
	case cell.Level == Unused:
		cell.Text = Counted(c.Draining, "server") + " draining"
	}
	return cell
}

// Routes returns a cell that says how many blocks of the node have a route in the kernel.
func (n *Node) Routes() Cell {
	installed := CountFunc(n.Blocks, func(b *Block) bool { return b.Installed })
	cell := Cell{Text: fmt.Sprintf("%d of %d", installed, len(n.Blocks)), Level: Healthy}
	switch {
	case n.Name == "":
		return Cell{Text: "no block", Level: Failed}
	case len(n.Blocks) == 0 && n.Counts.All > 0:
		return Cell{Text: "not needed", Level: Unused}
	case len(n.Blocks) == 0:
		return Cell{Text: "no block yet", Level: Unused}
	case installed == 0:
		cell.Level = Failed
	case installed < len(n.Blocks):
		cell.Level = Doubt
	}
	return cell
}

// Sessions returns the level of the BGP sessions with the node. It is never worse than Doubt, because
// a path stays open for a while without a session.
func (n *Node) Sessions() Level {
	if slices.ContainsFunc(n.Peers, func(p bgp.PeerState) bool { return !p.Up() }) {
		return Doubt
	}
	return ""
}

// Level returns the level of the node and of the path over it.
func (n *Node) Level() Level { return n.Routes().Level.Worse(n.Counts.Level()).Worse(n.Sessions()) }

// Level returns the level of the server.
func (s Server) Level() Level {
	return levelOf(s.State == haproxy.Open, s.Check == haproxy.Down,
		s.State == haproxy.Drain || s.Want == nil || s.Want.Drain)
}

// Level returns the level of the server.
func (s ServerStatus) Level() Level {
	return levelOf(s.State == haproxy.Open.String(), s.Check == haproxy.Down,
		s.State == haproxy.Drain.String() || s.Reason == EndpointGone || s.Reason == Terminating)
}

// levelOf returns the level of a server. Nothing is wrong with a closed server that is to go.
func levelOf(open, failing, leaving bool) Level {
	switch {
	case open && !failing:
		return Healthy
	case !open && leaving:
		return Unused
	}
	return Failed
}

// Level returns the level of the backend.
func (b Backend) Level() Level {
	if b.Counts.All == 0 {
		return Doubt
	}
	return b.Counts.Level()
}

// Level returns the level of the Ingress.
func (in *Ingress) Level() Level {
	level := in.Counts.Level()
	if in.Counts.All == 0 {
		level = Failed
	}
	if in.Problems > 0 {
		level = level.Worse(Doubt)
	}
	return level
}
