package plan

import "sallyport/haproxy"

// A turn is the state that one server of a backend should have after this round.
type turn struct {
	at   int          // the index of the server in the backend, or -1 if its endpoint is gone
	live haproxy.Live // Absent if HAProxy does not have the server
	to   haproxy.State
	why  string
}

// turns are those of all servers that a backend has or wants.
type turns struct {
	of  *haproxy.Backend
	all []turn // by the name of the server
}

// turnsOf returns the turns of each server by itself. why returns why packets must not go to a server
// now, or "".
func turnsOf(b *haproxy.Backend, there *haproxy.LiveBackend, why func(*haproxy.Server) string) turns {
	t := turns{of: b, all: make([]turn, 0, len(b.Servers))}
	for i, live := range there.Match(b.Servers) {
		if i < 0 {
			t.all = append(t.all, turn{at: i, live: *live, to: haproxy.Absent, why: Gone})
			continue
		}
		w := &b.Servers[i]
		one := turn{at: i, live: haproxy.Live{Name: w.Name, Addr: w.Addr}, to: haproxy.Open, why: why(w)}
		if live != nil {
			one.live = *live
		}
		switch {
		case one.live.Addr != w.Addr:
			// Somebody gave the server of our name another address. The next round adds it anew.
			one.to, one.why = haproxy.Absent, Readdressed
		case one.why != "":
			one.to = haproxy.Closed
		case w.Drain && one.live.State == haproxy.Absent:
			// The endpoint is terminating already: adding its server gains nothing.
			one.to = haproxy.Absent
		case w.Drain:
			one.to, one.why = haproxy.Drain, Terminating
		default:
			one.why = "routed"
		}
		t.all = append(t.all, one)
	}
	return t
}

// serves reports whether HAProxy may send new requests to a server now, and still after the turn.
func (o *turn) serves() bool {
	return o.at >= 0 && o.to == haproxy.Open && o.live.State == haproxy.Open && o.live.Check != haproxy.Down
}

// drain drains the servers of these clusters if another cluster serves. It looks only at servers that
// HAProxy has already, so that in any order of the steps, and with any of them left out, some server
// takes new requests.
func (t turns) drain(clusters map[string]bool, why string) {
	if len(clusters) == 0 || t.of.Set == "" {
		return
	}
	drained := func(o *turn) bool { return o.at >= 0 && clusters[t.of.ClusterOf(&t.of.Servers[o.at])] }
	serving := false
	for i := range t.all {
		serving = serving || t.all[i].serves() && !drained(&t.all[i])
	}
	for i := range t.all {
		if one := &t.all[i]; serving && one.to == haproxy.Open && drained(one) {
			one.to, one.why = haproxy.Drain, why
		}
	}
}
