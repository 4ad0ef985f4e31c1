// Package owners decides to which party each host belongs, and what is remembered of that.
//
// A host belongs to one party. By default this is the namespace of the oldest claim that names it,
// in a rule or in spec.tls. An owner keeps the host while any of its claims names it, even if by then
// another namespace has an older claim, and for Options.ReleaseAfter after that.
//
// A decision depends on the claims, on the Options of all clusters, and on the Owners in their
// Snapshots. The Owners decide on two things about hosts, and on nothing else:
//
//   - of two namespaces that name a host, the one that had it keeps it;
//   - a host is kept for its namespace for a time after the namespace stops naming it: otherwise
//     another namespace could take the host while its owner replaces an object.
//
// A memory never overrides a cluster that is configured earlier, so it does not matter when a
// cluster became known. An entry of Options.Hosts overrides every memory.
package owners

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"sallyport/ingress/claims"
	"sallyport/ingress/input"
)

// A Party is the owner of a host: one namespace of a cluster, or of a set of clusters; all namespaces
// of these; or all namespaces that the operator lets share the host.
type Party struct{ Cluster, Set, Namespace string }

// listed is the party of the namespaces that a HostRule lets share a host, in any cluster.
var listed = Party{Namespace: input.Everyone}

// A Hold says which party has a host.
type Hold struct {
	Party
	Since int       // index of the owner's oldest claim that names it, or the number of claims
	Left  time.Time // since when no claim of the owner names it; zero while a claim does
	Until time.Time // until when it is kept then

	world int
}

// IsKept reports whether the host is kept for an owner that does not name it.
func (h Hold) IsKept() bool { return !h.Left.IsZero() }

// A Kept is a host that its last owner names no more.
type Kept struct {
	Host string
	Hold
}

// A Notice is a problem of a claim that waits, or of the owner for whom a host is kept.
type Notice struct {
	On          *claims.Claim
	Reason, Why string
}

// A Round is all that decides about hosts.
type Round struct {
	Worlds  []*input.Snapshot // one for each world of the claims
	Unknown []input.Snapshot  // configured clusters without objects: names and Options
	Claims  []*claims.Claim   // the older first
	Only    map[string]bool   // the hosts that are decided on; nil means all
	Now     time.Time         // the zero time keeps no host

	// Spell returns the name of an object for people.
	Spell func(input.ObjectRef) string
}

// Hosts are the decisions of a Round. Nothing in them may be changed.
type Hosts struct {
	// Kept are the hosts that their owners do not name, by name.
	Kept []Kept
	// Notices are about kept hosts that another party waits for.
	Notices []Notice
	// Limited has each party with kept hosts that another party waits for, or that are beyond its limit. A
	// change of any host of such a party could change the decisions about these.
	Limited map[Party]bool

	round Round
	holds map[string]Hold
}

// Assign finds the owner of each host that a claim names or that is kept.
func Assign(round Round) *Hosts {
	h := &Hosts{round: round, holds: make(map[string]Hold, len(round.Claims)), Limited: make(map[Party]bool)}
	for i, c := range round.Claims {
		for _, host := range c.Names {
			who, err := h.party(c, host)
			if err != nil {
				continue
			}
			held, taken := h.holds[host]
			// The operator orders the clusters: a remembered owner never overrides an earlier
			// cluster.
			if !taken || held.Party != who && held.world == c.World && had(round.Worlds[c.World], host, who) {
				h.holds[host] = Hold{Party: who, world: c.World, Since: i}
			}
		}
	}
	h.keep()
	h.noticeKept()
	return h
}

// Of returns who has a host. The zero Hold is that of a host that nobody has.
func (h *Hosts) Of(host string) (Hold, bool) {
	hold, taken := h.holds[host]
	return hold, taken
}

// All yields each host that somebody has, in no order.
func (h *Hosts) All() iter.Seq[string] { return maps.Keys(h.holds) }

// May returns nil if a claim to a host counts. Otherwise the error says to whom the host belongs.
func (h *Hosts) May(c *claims.Claim, host string) error {
	who, err := h.party(c, host)
	if err != nil {
		return err
	}
	held, taken := h.holds[host]
	if !taken || held.Party == who {
		return nil
	}
	switch {
	case held.IsKept():
		return fmt.Errorf("it belonged to %s until %s, and is kept for it until %s (clusters[].ingress.releaseAfter)",
			h.spell(held.Party), held.Left.Format(time.RFC3339), held.Until.Format(time.RFC3339))
	case held.Party == listed:
		return errors.New("it belongs to the namespaces that the configuration file names")
	}
	return fmt.Errorf("it belongs to %s, for %s", h.spell(held.Party),
		h.round.Spell(h.round.Claims[held.Since].Ref))
}

// Refused returns the hosts of a claim that belong to others, each with an error that says to whom.
func (h *Hosts) Refused(c *claims.Claim) map[string]error {
	refused := make(map[string]error)
	for _, host := range c.Names {
		if err := h.May(c, host); err != nil {
			refused[host] = err
		}
	}
	return refused
}

// Owners returns what the next round has to remember, by cluster.
func (h *Hosts) Owners() map[string]*input.Owners {
	all := make(map[string]*input.Owners, len(h.round.Worlds))
	for _, w := range h.round.Worlds {
		all[w.Cluster] = &input.Owners{Namespaces: make(map[string]string)}
	}
	for host, hold := range h.holds {
		if hold.Party == listed {
			continue
		}
		o := all[h.round.Worlds[hold.world].Cluster]
		o.Namespaces[host] = hold.Namespace
		if hold.IsKept() {
			if o.Left == nil {
				o.Left = make(map[string]time.Time)
			}
			o.Left[host] = hold.Left
		}
	}
	// Each cluster of a set remembers the hosts that it names, so that it goes on with them when the
	// first cluster leaves the configuration file.
	for _, c := range h.round.Claims {
		w := h.round.Worlds[c.World]
		if w.Options.InSet.Name == "" {
			continue
		}
		for _, host := range c.Names {
			if hold := h.holds[host]; hold.Set != "" && !hold.IsKept() && hold.Party == PartyIn(w, c.Ref.Namespace) {
				all[w.Cluster].Namespaces[host] = hold.Namespace
			}
		}
	}
	return all
}

// party returns the party that a claim belongs to for a host. An error says why the operator does not
// admit it.
func (h *Hosts) party(c *claims.Claim, host string) (Party, error) {
	return PartyOf(h.round.Worlds, h.round.Unknown, c.World, c.Ref.Namespace, host)
}

// PartyOf returns the party that a namespace of a world belongs to for a host. An error says why the
// operator does not admit it. The namespace input.Everyone is admitted only where all are.
func PartyOf(worlds []*input.Snapshot, unknown []input.Snapshot, world int, namespace, host string) (Party, error) {
	w := worlds[world]
	if rule := w.Options.HostRule(host); rule != nil {
		if rule.Admits(namespace) {
			return listed, nil
		}
		return Party{}, fmt.Errorf("the configuration file reserves it for %s", keptFor(rule))
	}
	reserved := func(s *input.Snapshot) error {
		// A last rule for "*" concerns only its own cluster.
		if rule := s.Options.HostRule(host); rule != nil && rule.Host != "*" && len(rule.Namespaces) > 0 {
			return fmt.Errorf("the configuration file reserves it for cluster %s, %s", s.Cluster, keptFor(rule))
		}
		return nil
	}
	for i, other := range worlds {
		if err := reserved(other); i != world && err != nil {
			return Party{}, err
		}
	}
	for i := range unknown {
		if err := reserved(&unknown[i]); err != nil {
			return Party{}, err
		}
	}
	return PartyIn(w, namespace), nil
}

func keptFor(rule *input.HostRule) string {
	if len(rule.Namespaces) == 0 {
		return "nobody"
	}
	return "namespace " + claims.List(rule.Namespaces)
}

// PartyIn returns the party of a namespace of a world for hosts that no rule of the operator names.
func PartyIn(w *input.Snapshot, namespace string) Party {
	who := Party{Cluster: w.Cluster, Namespace: w.Options.Owner(namespace)}
	if joins(w, namespace) {
		who.Cluster, who.Set = "", w.Options.InSet.Name
	}
	return who
}

// joins reports whether a namespace exports any Service to the set of its cluster. All namespaces of a
// cluster that trusts them join together. Where all Services are exported, each namespace joins, and one
// without a Service does, too: it keeps its hosts when its last Service goes.
func joins(w *input.Snapshot, namespace string) bool {
	if w.Options.InSet.Name == "" || len(w.Exports) == 0 && !w.Options.InSet.ExportsAll {
		return false
	}
	if w.Options.OneTenant || w.Options.InSet.ExportsAll {
		return true
	}
	_, exports := slices.BinarySearchFunc(w.Exports, namespace, func(e *input.ServiceExport, namespace string) int {
		return cmp.Compare(e.Namespace, namespace)
	})
	return exports
}

// had reports whether a party had a host.
func had(w *input.Snapshot, host string, who Party) bool {
	if w.Owners == nil || who == listed {
		return false
	}
	namespace, known := w.Owners.Namespaces[host]
	return known && namespace == who.Namespace
}

// spell returns the name of a party that is not listed.
func (h *Hosts) spell(p Party) string {
	switch {
	case p.Namespace == input.Everyone && p.Set != "":
		return "the clusters of set " + p.Set
	case p.Set != "":
		return "namespace " + p.Namespace + " of set " + p.Set
	case p.Namespace == input.Everyone:
		return "cluster " + p.Cluster
	case len(h.round.Worlds) > 1:
		return "namespace " + p.Namespace + " of cluster " + p.Cluster
	}
	return "namespace " + p.Namespace
}
