package input

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Owners hold which namespace of one cluster has or had each host, and each address of a
// Service. They are never changed.
type Owners struct {
	// Namespaces are the owners of hosts. The host "" is any host that no claim names, the
	// namespace "*" is all namespaces of a cluster that trusts them.
	Namespaces map[string]string `json:"namespaces"`
	// Left holds since when nothing in its namespace names a host any more.
	Left map[string]time.Time `json:"left,omitempty"`
	// Addresses hold who has or had each address.
	Addresses map[netip.Addr]AddressOwner `json:"addresses,omitempty"`
}

// Everyone stands for all namespaces of a cluster that lets them share hosts (Options.OneTenant).
// No namespace has this name.
const Everyone = "*"

// Owner returns how Owners name the owner of a thing of a namespace.
func (o *Options) Owner(namespace string) string {
	if o.OneTenant {
		return Everyone
	}
	return namespace
}

// Leaving returns since when something is left: as remembered, or since now. A time in the
// future is the mistake of a clock.
func Leaving(remembered, now time.Time) time.Time {
	if remembered.IsZero() || remembered.After(now) {
		return now.Truncate(time.Second).UTC()
	}
	return remembered
}

// An AddressOwner is the Service or Gateway that has or had an address.
type AddressOwner struct {
	Namespace string    `json:"namespace"`      // "*" is all namespaces of a cluster that trusts them
	Kind      string    `json:"kind,omitempty"` // Gateway, or empty for a Service
	Service   string    `json:"service"`        // its namespace and name: of the first of those that shared it
	Left      time.Time `json:"left,omitzero"`  // since when nothing of the namespace has it; zero while it is in use
}

// String returns the kind and name of the owner.
func (a AddressOwner) String() string { return cmp.Or(a.Kind, "Service") + " " + a.Service }

// Equal reports whether both hold the same owners, left at the same times.
func (o *Owners) Equal(p *Owners) bool {
	return o == p || o != nil && p != nil && maps.Equal(o.Namespaces, p.Namespaces) &&
		maps.EqualFunc(o.Left, p.Left, time.Time.Equal) && maps.EqualFunc(o.Addresses, p.Addresses, AddressOwner.equal)
}

func (a AddressOwner) equal(b AddressOwner) bool {
	return a.Namespace == b.Namespace && a.Kind == b.Kind && a.Service == b.Service && a.Left.Equal(b.Left)
}

// Replace returns the Owners o, but with the entries of others for the given hosts. It returns o itself if
// these are the same.
func (o *Owners) Replace(hosts map[string]bool, others *Owners) *Owners {
	differs := func(host string) bool {
		was, had := o.Namespaces[host]
		is, has := others.Namespaces[host]
		return was != is || had != has || !o.Left[host].Equal(others.Left[host])
	}
	if !slices.ContainsFunc(slices.Collect(maps.Keys(hosts)), differs) {
		return o
	}
	next := *o
	next.Namespaces, next.Left = maps.Clone(o.Namespaces), maps.Clone(o.Left)
	for host := range hosts {
		delete(next.Namespaces, host)
		delete(next.Left, host)
		if _, has := others.Namespaces[host]; has {
			others.copyTo(&next, entry{host: host})
		}
	}
	return &next
}

// copyTo sets the entry of one host or address in the Owners to. It makes the maps that to lacks.
func (o *Owners) copyTo(to *Owners, e entry) {
	if e.addr.IsValid() {
		if to.Addresses == nil {
			to.Addresses = make(map[netip.Addr]AddressOwner)
		}
		to.Addresses[e.addr] = o.Addresses[e.addr]
		return
	}
	to.Namespaces[e.host] = o.Namespaces[e.host]
	delete(to.Left, e.host)
	if left, has := o.Left[e.host]; has {
		if to.Left == nil {
			to.Left = make(map[string]time.Time)
		}
		to.Left[e.host] = left
	}
}

// left returns since when nothing names a host or an address, or the zero time if something does.
func (o *Owners) left(e entry) time.Time {
	if e.addr.IsValid() {
		return o.Addresses[e.addr].Left
	}
	return o.Left[e.host]
}
