package appliance

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"sallyport/appliance/group"
)

// Orders about clusters are for the whole group: an operator gives one to a member, and the others hear of it
// in a packet (group.Pulse.Order). For each cluster the last order counts. A member that was away follows once
// it hears another member. The command asks whether other clusters can take over, and the members that follow
// do not: a drained cluster goes on serving what no other cluster serves.

// An order is the last one about a cluster.
type order struct {
	cluster string
	drained bool
	at      time.Time // in whole milliseconds
}

// String returns an order as members pass it on: the name of the cluster, a sign, and the time in milliseconds
// since 1970. Plus is for a drain, and minus for its end.
func (o order) String() string {
	sign := "-"
	if o.drained {
		sign = "+"
	}
	return o.cluster + sign + strconv.FormatInt(o.at.UnixMilli(), 10)
}

// parseOrder reads an order. It returns false for one that a later version may have.
func parseOrder(text string) (o order, ok bool) {
	i := strings.LastIndexAny(text, "+-") // a name may have dashes
	if i < 1 {
		return o, false
	}
	at, err := strconv.ParseInt(text[i+1:], 10, 64)
	if err != nil || at <= 0 || at > 1<<48 {
		return o, false
	}
	return order{text[:i], text[i] == '+', time.UnixMilli(at)}, true
}

// orders returns the last order about each cluster in the text for the other members, the newest first. The
// oldest orders are left out if the text would be longer than group.MostOrders.
func (r *retired) orders() string {
	if r == nil {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.SortedFunc(maps.Values(r.last), func(a, b order) int {
		return cmp.Or(b.at.Compare(a.at), strings.Compare(a.cluster, b.cluster))
	})
	var text strings.Builder
	for _, o := range all {
		if next := o.String(); text.Len()+1+len(next) <= group.MostOrders {
			if text.Len() > 0 {
				text.WriteByte(' ')
			}
			text.WriteString(next)
		}
	}
	return text.String()
}

// merge takes over each order of another member that is newer than ours, about clusters to keep. The end of a
// drain counts if two orders are of the same millisecond. It returns those taken over. They are in force even if
// merge returns an error.
func (r *retired) merge(text string, keep func(cluster string) bool) (taken []order, err error) {
	if r == nil || text == "" {
		return nil, nil
	}
	err = r.change(func() bool {
		for word := range strings.FieldsSeq(text) {
			o, ok := parseOrder(word)
			if !ok || !keep(o.cluster) {
				continue
			}
			last := r.last[o.cluster]
			ends := last.drained && !o.drained
			if newer := cmp.Compare(o.at.UnixMilli(), last.at.UnixMilli()); newer > 0 || newer == 0 && ends {
				r.last[o.cluster] = o
				taken = append(taken, o)
			}
		}
		return len(taken) > 0
	})
	return taken, err
}

// obey takes over the orders of the other members, and tells them ours.
func (l *loop) obey() {
	if l.member == nil {
		return
	}
	shared := func(cluster string) bool { _, why := inSet(l.cfg, cluster); return why == "" }
	for _, h := range l.member.pulse.Heard() {
		if !h.Alive {
			continue // its orders may be of an earlier process, or it is not in the list
		}
		taken, err := l.retired.merge(h.Orders, shared)
		for _, o := range taken {
			l.log.Info("a member passes on an order about a cluster", "member", h.Member.Name, "cluster", o.cluster,
				"drained", o.drained, "given", o.at.UTC())
		}
		if err != nil {
			l.log.Error("an order about a cluster cannot be saved", "err", err)
		}
	}
	l.member.pulse.Order(l.retired.orders())
}
