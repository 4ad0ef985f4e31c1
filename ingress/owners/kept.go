package owners

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"sallyport/ingress/claims"
	"sallyport/ingress/input"
)

// keep holds each host that nothing of its last owner names any more, until it is released. A claim
// of an earlier cluster overrides that. The hosts that a namespace names and those kept for it count
// together for its limit of hosts. Of the kept ones, those that were left first go first.
func (h *Hosts) keep() {
	for i, w := range h.round.Worlds {
		if w.Owners == nil || w.Options.ReleaseAfter <= 0 || h.round.Now.IsZero() {
			continue
		}
		all := h.left(i)
		// A round about a part of the hosts has no such limit: its hosts were within it before.
		if most := w.Options.Limits.Hosts; most > 0 && len(all) > 0 && h.round.Only == nil {
			all = h.within(i, all, most)
		}
		for _, k := range all {
			h.holds[k.Host] = k.Hold
		}
		h.Kept = append(h.Kept, all...)
	}
	slices.SortFunc(h.Kept, func(x, y Kept) int { return cmp.Compare(x.Host, y.Host) })
}

// left returns the hosts that a world remembers, and that nothing of their owners names any more.
func (h *Hosts) left(world int) (all []Kept) {
	w := h.round.Worlds[world]
	for host, namespace := range h.remembered(w.Owners) {
		who, err := PartyOf(h.round.Worlds, h.round.Unknown, world, namespace, host)
		if err != nil || who == listed || who.Namespace != namespace ||
			namespace == input.Everyone && !w.Options.OneTenant {
			continue // the configuration file has changed
		}
		held, taken := h.holds[host]
		if taken && (held.Party == who || held.Party == listed || held.world < world) {
			continue
		}
		left := input.Leaving(w.Owners.Left[host], h.round.Now)
		if until := w.Options.Release(left); h.round.Now.Before(until) {
			hold := Hold{Party: who, world: world, Since: len(h.round.Claims), Left: left, Until: until}
			all = append(all, Kept{Host: host, Hold: hold})
		}
	}
	return all
}

// remembered yields the hosts of Owners that this round is about, with their namespaces.
func (h *Hosts) remembered(o *input.Owners) iter.Seq2[string, string] {
	if h.round.Only == nil {
		return maps.All(o.Namespaces)
	}
	return func(yield func(string, string) bool) {
		for host := range h.round.Only {
			if namespace, known := o.Namespaces[host]; known && !yield(host, namespace) {
				return
			}
		}
	}
}

// within drops the hosts of a world that are beyond the limit of each namespace, and notes that it is Limited.
// Those that were left first go first. Hosts that the namespace has by another cluster of its set do not count:
// each cluster has limits of its own.
func (h *Hosts) within(world int, all []Kept, most int) []Kept {
	has := make(map[Party]int)
	for _, hold := range h.holds {
		if hold.world == world {
			has[hold.Party]++
		}
	}
	slices.SortFunc(all, func(x, y Kept) int { return cmp.Or(y.Left.Compare(x.Left), cmp.Compare(x.Host, y.Host)) })
	return slices.DeleteFunc(slices.Clone(all), func(k Kept) bool {
		has[k.Party]++
		beyond := has[k.Party] > most
		if beyond {
			h.Limited[k.Party] = true
		}
		return beyond
	})
}

// noticeKept notices each kept host that another party waits for, on the oldest claim of its owner.
// The claims that wait are told by Refused.
func (h *Hosts) noticeKept() {
	if len(h.Kept) == 0 {
		return
	}
	first := make(map[Party]*claims.Claim)    // of each namespace
	waiting := make(map[string]*claims.Claim) // by host
	for _, c := range h.round.Claims {
		who := PartyIn(h.round.Worlds[c.World], c.Ref.Namespace)
		if first[who] == nil {
			first[who] = c
		}
		for _, host := range c.Names {
			if hold, held := h.holds[host]; held && hold.IsKept() && waiting[host] == nil {
				waiting[host] = c
			}
		}
	}
	for _, k := range h.Kept {
		c := waiting[k.Host]
		if c == nil {
			continue
		}
		h.Limited[k.Party] = true // its oldest claim has the notice
		if owner := first[k.Party]; owner != nil {
			why := fmt.Sprintf("%s, which nothing of %s names any more, is kept for it until %s "+
				"(clusters[].ingress.releaseAfter); then it goes to %s, which waits for it",
				cmp.Or(k.Host, "any host"), h.spell(k.Party), k.Until.Format(time.RFC3339), h.round.Spell(c.Ref))
			h.Notices = append(h.Notices, Notice{On: owner, Reason: "HostKept", Why: why})
		}
	}
}
