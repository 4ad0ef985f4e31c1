package routes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// KernelConfig sets which routes of the kernel are ours, and their table and metric.
type KernelConfig struct {
	Protocol int          // our mark, 5 to 255, used by nothing else on the machine; 0 means 78
	Table    int          // routing table; 0 means main (254)
	Metric   int          // of every route of ours; 0 means 50
	Log      *slog.Logger // nil if nothing is logged
}

// Kernel is the routing table of the machine. A route is ours if it has our protocol number: so a
// new process finds the routes of an earlier process without a file. A crash never leaves a route
// without this mark, since the kernel gets route and mark in one message.
//
// Its methods are safe for concurrent use, except with Close. Only one caller may use Add and Drop,
// and nothing else may change routes with this mark.
type Kernel struct {
	cfg     KernelConfig
	netlink *netlink.Handle
	changed chan struct{}
	cancel  context.CancelFunc
	done    chan struct{} // closed when listen has returned

	mu        sync.Mutex    // holds for everything below
	events    *subscription // nil if there is no subscription, so nothing is remembered
	changedAt time.Time     // when the last message came
	listed    reading[listing]
	local     reading[Local]
}

// A listing is what List found in the kernel: our routes that it uses, and those that it does not.
type listing struct {
	table     Table
	conflicts []Conflict
}

// A Conflict is a route of ours that the kernel has but does not use, or not for all its
// addresses.
type Conflict struct {
	Prefix netip.Prefix
	Via    netip.Addr
	Why    string // one sentence for people
}

// OpenKernel opens the routing table of the process's network namespace, and listens to
// its changes until ctx ends or Close is called. It keeps routes of ours. Those with
// another metric, from an earlier configuration, get the present metric.
func OpenKernel(ctx context.Context, cfg KernelConfig) (*Kernel, error) {
	cfg.Protocol = cmp.Or(cfg.Protocol, 78)
	cfg.Table = cmp.Or(cfg.Table, unix.RT_TABLE_MAIN)
	cfg.Metric = cmp.Or(cfg.Metric, 50)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	switch {
	case cfg.Protocol <= unix.RTPROT_STATIC || cfg.Protocol > math.MaxUint8:
		return nil,
			fmt.Errorf("route protocol %d: it must be 5 to 255, since 1 to 4 are the kernel's and the "+
				"administrator's own", cfg.Protocol)
	case cfg.Table < 0 || cfg.Table > math.MaxInt32:
		return nil, fmt.Errorf("routing table %d: it must be 1 to %d", cfg.Table, math.MaxInt32)
	case cfg.Metric < 0 || cfg.Metric > math.MaxInt32:
		return nil, fmt.Errorf("route metric %d: it must be 1 to %d", cfg.Metric, math.MaxInt32)
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening the kernel's routing table: %w", err)
	}
	k := &Kernel{
		cfg:     cfg,
		netlink: handle,
		changed: make(chan struct{}, 1),
		done:    make(chan struct{}),
	}
	events, err := k.prepare()
	if err != nil {
		handle.Close()
		return nil, err
	}
	ctx, k.cancel = context.WithCancel(ctx)
	go k.listen(ctx, events)
	return k, nil
}

func (k *Kernel) prepare() (*subscription, error) {
	if err := k.netlink.SetSocketTimeout(30 * time.Second); err != nil {
		return nil, fmt.Errorf("opening the kernel's routing table: %w", err)
	}
	// Deleting a route that cannot exist tests the permission. In a user namespace the
	// capability bits are no proof.
	probe := k.route(netip.MustParsePrefix("0.0.0.0/32"))
	if err := k.netlink.RouteDel(probe); errors.Is(err, unix.EPERM) {
		return nil,
			fmt.Errorf("changing the kernel's routes needs the capability CAP_NET_ADMIN: run as root, or give the "+
				"service AmbientCapabilities=CAP_NET_ADMIN: %w", err)
	}
	events, err := subscribe()
	if err != nil {
		return nil, fmt.Errorf("subscribing to route changes of the kernel: %w", err)
	}
	if err := k.adopt(); err != nil {
		events.close()
		return nil, err
	}
	return events, nil
}

// adopt moves our routes with another metric to the present metric. It adds the new route before it
// deletes the old route. After a crash between these steps, both routes lead to the same next hop,
// and the next start deletes the old route.
func (k *Kernel) adopt() error {
	all, err := k.read()
	if err != nil {
		return err
	}
	for _, r := range all {
		if r.protocol != k.cfg.Protocol || r.metric == k.cfg.Metric {
			continue
		}
		if r.plain() {
			if err := k.Add(r.prefix, r.via); err != nil {
				k.cfg.Log.Warn("old route not taken over", "prefix", r.prefix, "via", r.via, "metric", r.metric,
					"error", err)
			}
		}
		old := k.route(r.prefix)
		old.Priority = r.metric
		if err := k.netlink.RouteDel(old); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("dropping our old route %s with metric %d: %w", r.prefix, r.metric, err)
		}
	}
	return nil
}

// Close ends the listening. The routes stay, so that traffic goes on without a process.
func (k *Kernel) Close() {
	k.cancel()
	<-k.done
	k.netlink.Close()
}

// Changed returns a channel that receives after a route, a link or an address in the
// kernel has changed, by us or by others, or when messages about that may be lost.
func (k *Kernel) Changed() <-chan struct{} { return k.changed }

func (k *Kernel) knock() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// List reads our routes back from the kernel. It returns those in use, and those that the
// kernel has but does not use: another route overrides one, or takes part of its
// addresses, or its link is down. Another route to the same next hop is no conflict. It
// reads only if the kernel has announced a change since the last reading, or that is old.
// Callers share the result: do not change it.
func (k *Kernel) List() (Table, []Conflict, error) {
	l, err := recall(k, &k.listed, func() (listing, error) {
		all, err := k.read()
		if err != nil {
			return listing{}, err
		}
		table, conflicts := assess(all, k.cfg.Protocol, k.cfg.Metric)
		return listing{table, conflicts}, nil
	})
	return l.table, l.conflicts, err
}

// Add adds a route to prefix by the next hop via. It replaces a route of ours to another
// next hop in one step. A foreign route with this prefix and metric is an error, and so is
// a route of ours that exists but is not in use. Then Add changes nothing.
func (k *Kernel) Add(prefix netip.Prefix, via netip.Addr) error {
	if !canonical(prefix) || prefix.Addr().BitLen() != via.BitLen() {
		return fmt.Errorf("adding route %s via %s: not a prefix and a next hop of one family", prefix, via)
	}
	r := k.route(prefix)
	r.Gw = via.AsSlice()
	r.Type = unix.RTN_UNICAST
	r.Scope = netlink.SCOPE_UNIVERSE
	// With NLM_F_EXCL the kernel refuses if any program has made a route with this prefix and
	// metric. Only then the existing route has to be read.
	err := k.netlink.RouteAdd(r)
	if errors.Is(err, unix.EEXIST) {
		return k.replace(r, prefix, via)
	}
	if err != nil {
		return fmt.Errorf("adding route %s via %s: %w", prefix, via, err)
	}
	return nil
}

// replace does Add's work if a route with the prefix and our metric exists. Between reading and
// writing, another program could put another route there: the kernel has no replacement that
// compares the protocol.
func (k *Kernel) replace(r *netlink.Route, prefix netip.Prefix, via netip.Addr) error {
	all, err := k.read()
	if err != nil {
		return fmt.Errorf("replacing route %s via %s: %w", prefix, via, err)
	}
	same := func(e entry) bool { return e.prefix == prefix && e.metric == k.cfg.Metric }
	for _, e := range all {
		if same(e) && e.protocol != k.cfg.Protocol {
			return fmt.Errorf("adding route %s via %s: there is one already with metric %d, %s: remove it, or "+
				"configure another metric", prefix, via, k.cfg.Metric, e)
		}
	}
	if i := slices.IndexFunc(all, same); i < 0 || all[i].via != via || !all[i].plain() {
		if err := k.netlink.RouteReplace(r); err != nil {
			return fmt.Errorf("replacing route %s via %s: %w", prefix, via, err)
		}
		return nil
	}
	_, conflicts := assess(all, k.cfg.Protocol, k.cfg.Metric)
	for _, c := range conflicts {
		if c.Prefix == prefix {
			return fmt.Errorf("route %s via %s is there but not used: %s", prefix, via, c.Why)
		}
	}
	return nil
}

// Drop deletes the routes to prefix that have our mark, of any metric. It deletes no other route.
// If there is no such route, Drop succeeds.
func (k *Kernel) Drop(prefix netip.Prefix) error {
	if !canonical(prefix) {
		return fmt.Errorf("dropping route %s: not a prefix", prefix)
	}
	r := k.route(prefix)
	r.Priority = 0 // any
	// The kernel compares the protocol when it deletes, and deletes one at a
	// time.
	for range 16 {
		err := k.netlink.RouteDel(r)
		if errors.Is(err, unix.ESRCH) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("dropping route %s: %w", prefix, err)
		}
	}
	return fmt.Errorf("dropping route %s: someone keeps adding it with our protocol number %d", prefix, k.cfg.Protocol)
}

// Local returns the addresses of the machine, and the networks that are directly connected by
// interfaces that are up. It leaves out loopback and link-local addresses, which no route of a
// cluster can have. Both lists are sorted. Like List, it reads only after a change, and callers
// share the result.
func (k *Kernel) Local() (Local, error) { return recall(k, &k.local, k.readLocal) }

func (k *Kernel) readLocal() (Local, error) {
	var links []netlink.Link
	var addrs []netlink.Addr
	err := whole(func() (err error) {
		if links, err = k.netlink.LinkList(); err == nil {
			addrs, err = k.netlink.AddrList(nil, netlink.FAMILY_ALL)
		}
		return err
	})
	if err != nil {
		return Local{}, fmt.Errorf("reading the machine's addresses: %w", err)
	}
	flags := map[int]net.Flags{}
	for _, l := range links {
		flags[l.Attrs().Index] = l.Attrs().Flags
	}
	var local Local
	for _, a := range addrs {
		p := prefixOf(a.IPNet)
		up := flags[a.LinkIndex]&net.FlagUp != 0
		if !up || !p.IsValid() || p.Addr().IsLoopback() || p.Addr().IsLinkLocalUnicast() {
			continue
		}
		local.Addrs = append(local.Addrs, p.Addr())
		if a.Peer != nil {
			p = prefixOf(a.Peer) // on a point-to-point link the peer's network is connected
		} else if p.IsSingleIP() {
			continue
		}
		if p.IsValid() && flags[a.LinkIndex]&net.FlagLoopback == 0 {
			local.Networks = append(local.Networks, p.Masked())
		}
	}
	slices.SortFunc(local.Addrs, netip.Addr.Compare)
	slices.SortFunc(local.Networks, netip.Prefix.Compare)
	local.Addrs, local.Networks = slices.Compact(local.Addrs), slices.Compact(local.Networks)
	return local, nil
}

// route returns a route with our mark. The scope "nowhere" matches any.
func (k *Kernel) route(p netip.Prefix) *netlink.Route {
	return &netlink.Route{
		Dst:      &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
		Protocol: netlink.RouteProtocol(k.cfg.Protocol),
		Table:    k.cfg.Table,
		Priority: k.cfg.Metric,
		Scope:    netlink.SCOPE_NOWHERE,
	}
}

// An entry is a route of the table, ours or not.
type entry struct {
	prefix   netip.Prefix
	via      netip.Addr // zero if there is no single gateway
	protocol int
	metric   int
	kind     int // RTN_UNICAST, RTN_BLACKHOLE, …
	flags    int // of the next hop
}

// plain reports whether a route has the form of those that we add.
func (e entry) plain() bool { return e.kind == unix.RTN_UNICAST && e.via.IsValid() }

func (e entry) String() string {
	to := "to no single next hop"
	if e.plain() {
		to = "via " + e.via.String()
	}
	return fmt.Sprintf("%s %s of protocol %s", e.prefix, to, netlink.RouteProtocol(e.protocol))
}

// read returns the whole table, both families.
func (k *Kernel) read() ([]entry, error) {
	var all []entry
	err := whole(func() error {
		all = all[:0]
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			err := k.netlink.RouteListFilteredIter(family, &netlink.Route{Table: k.cfg.Table}, netlink.RT_FILTER_TABLE,
				func(r netlink.Route) bool {
					e := entry{
						prefix: prefixOf(r.Dst), protocol: int(r.Protocol), metric: r.Priority, kind: r.Type,
						flags: r.Flags,
					}
					if len(r.MultiPath) == 0 {
						e.via, _ = netip.AddrFromSlice(r.Gw)
					}
					all = append(all, e)
					return true
				})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the kernel's routes: %w", err)
	}
	return all, nil
}

// whole repeats a dump that a change interrupted, for such a dump may lack entries.
func whole(dump func() error) error {
	var err error
	for range 20 {
		if err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return err
		}
	}
	return err
}

// prefixOf converts a network, and keeps the bits after the prefix length. For nil the
// result is invalid.
func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	a, _ := netip.AddrFromSlice(n.IP)
	bits, size := n.Mask.Size()
	if size == 32 {
		a = a.Unmap()
	}
	return netip.PrefixFrom(a, bits)
}

// assess returns which of our routes packets really take. Another route does no harm if it
// has the same next hop, or if it is dead.
func assess(all []entry, protocol, metric int) (Table, []Conflict) {
	ours := make(map[netip.Prefix]entry, len(all))
	for _, e := range all {
		if e.protocol == protocol && e.metric == metric {
			ours[e.prefix] = e
		}
	}
	why := map[netip.Prefix]string{}
	table := make(Table, len(ours))
	for p, e := range ours {
		switch {
		case !e.plain():
			why[p] = "it has not one next hop: it was changed by someone else"
		case e.flags&unix.RTNH_F_DEAD != 0, e.flags&unix.RTNH_F_LINKDOWN != 0:
			why[p] = "its link is down"
		default:
			table[p] = e.via
		}
	}
	lengths := lengthsOf(maps.Keys(ours))
	for _, rival := range all {
		if !rival.prefix.IsValid() || rival.protocol == protocol && rival.metric == metric ||
			rival.flags&unix.RTNH_F_DEAD != 0 {
			continue
		}
		// The rival overrides each route of ours that covers it. It overrides one of the
		// same prefix only if its metric is not worse.
		for _, bits := range lengths.of(rival.prefix.Addr()) {
			p, err := rival.prefix.Addr().Prefix(bits)
			e, mine := ours[p]
			if err != nil || !mine || bits > rival.prefix.Bits() || rival.plain() && rival.via == e.via {
				continue
			}
			switch {
			case bits < rival.prefix.Bits():
				why[p] = fmt.Sprintf("a part of it goes elsewhere: %s; remove that route", rival)
			case rival.metric <= metric:
				why[p] = fmt.Sprintf("another route goes before it: %s, metric %d; remove that route", rival,
					rival.metric)
			}
		}
	}
	var conflicts []Conflict
	for p, w := range why {
		delete(table, p)
		conflicts = append(conflicts, Conflict{Prefix: p, Via: ours[p].via, Why: w})
	}
	slices.SortFunc(conflicts, func(a, b Conflict) int { return a.Prefix.Compare(b.Prefix) })
	return table, conflicts
}
