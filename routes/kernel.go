package routes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	listed    reading[Listing]
	local     reading[Local]
}

// A Listing holds the routes and rules of ours in the kernel.
type Listing struct {
	Routes    Table // our routes that the kernel uses
	Conflicts []Conflict
	Rules     map[Selector]Rule // those of ours, each of which leads its packets into the table of a source
}

// A Conflict is a route of ours that the kernel has but does not use, or not for all its
// addresses.
type Conflict struct {
	Selector
	Via netip.Addr
	Why string // one sentence for people
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
	probe := k.route(To(netip.MustParsePrefix("0.0.0.0/32")))
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
		switch {
		case r.plain():
			if err := k.Add(r.Selector, r.via); err != nil {
				k.cfg.Log.Warn("old route not taken over", "route", r.Selector, "via", r.via, "metric", r.metric,
					"error", err)
			}
		case r.refuses(k.cfg.Protocol):
			if err := k.netlink.RouteAdd(k.refusal(r.From)); err != nil && !errors.Is(err, unix.EEXIST) {
				return fmt.Errorf("taking over the default route of the table of %s: %w", r.From, err)
			}
		}
		old := k.route(r.Selector)
		old.Priority = r.metric
		if err := k.netlink.RouteDel(old); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("dropping our old route %s with metric %d: %w", r.Selector, r.metric, err)
		}
	}
	return k.adoptRules(all)
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

// List reads our routes and rules back from the kernel. Its Routes are those in use. A conflict is a
// route that the kernel has but does not use: another route overrides it, or takes part of its
// addresses, or its link is down, or no rule of the kernel leads to it. Another route to the same next
// hop is no conflict. List reads only if the kernel has announced a change since the last reading, or
// that is old. Callers share the result, and do not change it.
func (k *Kernel) List() (Listing, error) { return recall(k, &k.listed, k.list) }

func (k *Kernel) list() (Listing, error) {
	all, err := k.read()
	if err != nil {
		return Listing{}, err
	}
	rules, err := k.readRules()
	if err != nil {
		return Listing{}, err
	}
	l := Listing{Rules: judgeRules(rules, all)}
	l.Routes, l.Conflicts = assess(all, k.cfg.Protocol, k.cfg.Metric)
	l.follow()
	return l, nil
}

// Add adds a route for the packets of a selector by the next hop via. It replaces a route of ours to
// another next hop in one step. A foreign route with this prefix and metric is an error, and so is
// a route of ours that exists but is not in use. Then Add changes nothing.
func (k *Kernel) Add(to Selector, via netip.Addr) error {
	if !to.routable() || to.To.Addr().BitLen() != via.BitLen() {
		return fmt.Errorf("adding route %s via %s: not a prefix and a next hop of one family", to, via)
	}
	r := k.route(to)
	r.Gw = via.AsSlice()
	r.Type = unix.RTN_UNICAST
	r.Scope = netlink.SCOPE_UNIVERSE
	// With NLM_F_EXCL the kernel refuses if any program has made a route with this prefix and
	// metric. Only then the existing route has to be read.
	err := k.netlink.RouteAdd(r)
	if errors.Is(err, unix.EEXIST) {
		return k.replace(r, to, via)
	}
	if err != nil {
		return fmt.Errorf("adding route %s via %s: %w", to, via, err)
	}
	return nil
}

// replace does Add's work if a route with the selector and our metric exists. Between reading and
// writing, another program could put another route there: the kernel has no replacement that
// compares the protocol.
func (k *Kernel) replace(r *netlink.Route, to Selector, via netip.Addr) error {
	all, err := k.read()
	if err != nil {
		return fmt.Errorf("replacing route %s via %s: %w", to, via, err)
	}
	same := func(e entry) bool { return e.Selector == to && e.metric == k.cfg.Metric }
	for _, e := range all {
		if same(e) && e.protocol != k.cfg.Protocol {
			return fmt.Errorf("adding route %s via %s: there is one already with metric %d, %s: remove it, or "+
				"configure another metric", to, via, k.cfg.Metric, e)
		}
	}
	if i := slices.IndexFunc(all, same); i < 0 || all[i].via != via || !all[i].plain() {
		if err := k.netlink.RouteReplace(r); err != nil {
			return fmt.Errorf("replacing route %s via %s: %w", to, via, err)
		}
		return nil
	}
	_, conflicts := assess(all, k.cfg.Protocol, k.cfg.Metric)
	for _, c := range conflicts {
		if c.Selector == to {
			return fmt.Errorf("route %s via %s is there but not used: %s", to, via, c.Why)
		}
	}
	return nil
}

// Drop deletes the routes for the packets of a selector that have our mark, of any metric. It deletes no
// other route. If there is no such route, Drop succeeds.
func (k *Kernel) Drop(to Selector) error {
	if !to.routable() {
		return fmt.Errorf("dropping route %s: not a prefix", to)
	}
	r := k.route(to)
	r.Priority = 0 // any
	// The kernel compares the protocol when it deletes, and deletes one at a
	// time.
	for range 16 {
		err := k.netlink.RouteDel(r)
		if errors.Is(err, unix.ESRCH) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("dropping route %s: %w", to, err)
		}
	}
	return fmt.Errorf("dropping route %s: someone keeps adding it with our protocol number %d", to, k.cfg.Protocol)
}

// Local returns the addresses of the machine, and the networks that are directly connected by
// interfaces that are up. It leaves out loopback and link-local addresses, which no route of a
// cluster can have. All lists are sorted. Like List, it reads only after a change, and callers
// share the result.
func (k *Kernel) Local() (Local, error) { return recall(k, &k.local, k.readLocal) }

// ReadLocal returns what Local returns, and needs no right to change routes.
func ReadLocal() (Local, error) { return (&Kernel{netlink: &netlink.Handle{}}).readLocal() }

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
		if !p.IsSingleIP() && a.Flags&unix.IFA_F_SECONDARY == 0 {
			local.Primary = append(local.Primary, p.Addr())
		}
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
	slices.SortFunc(local.Primary, netip.Addr.Compare)
	local.Addrs, local.Networks = slices.Compact(local.Addrs), slices.Compact(local.Networks)
	return local, nil
}

// route returns a route with our mark. The scope "nowhere" matches any.
func (k *Kernel) route(s Selector) *netlink.Route {
	return &netlink.Route{
		Dst:      ipNet(s.To),
		Protocol: netlink.RouteProtocol(k.cfg.Protocol),
		Table:    k.tableOf(s.From),
		Priority: k.cfg.Metric,
		Scope:    netlink.SCOPE_NOWHERE,
	}
}

// An entry is a route of one of our tables, ours or not.
type entry struct {
	Selector
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
	return fmt.Sprintf("%s %s of protocol %s", e.Selector, to, netlink.RouteProtocol(e.protocol))
}

// refuses reports whether an entry is the default route of the table of a source, with our mark.
func (e entry) refuses(protocol int) bool {
	return e.From.IsValid() && e.To.Bits() == 0 && e.kind == unix.RTN_UNREACHABLE && e.protocol == protocol
}

// read returns the main table and those of sources, both families.
func (k *Kernel) read() ([]entry, error) {
	var all []entry
	err := whole(func() error {
		all = all[:0]
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			every := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
			err := k.netlink.RouteListFilteredIter(family, every, netlink.RT_FILTER_TABLE,
				func(r netlink.Route) bool {
					source, ours := k.sourceOf(r.Table)
					if !ours || source.IsValid() && family != netlink.FAMILY_V4 {
						return true
					}
					e := entry{
						Selector: Selector{From: source, To: prefixOf(r.Dst)}, protocol: int(r.Protocol),
						metric: r.Priority, kind: r.Type, flags: r.Flags,
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
	ours := make(map[Selector]entry, len(all))
	for _, e := range all {
		if e.protocol == protocol && e.metric == metric && !e.refuses(protocol) {
			ours[e.Selector] = e
		}
	}
	why := map[Selector]string{}
	table := make(Table, len(ours))
	for s, e := range ours {
		switch {
		case !e.plain():
			why[s] = "it has not one next hop: it was changed by someone else"
		case e.flags&unix.RTNH_F_DEAD != 0, e.flags&unix.RTNH_F_LINKDOWN != 0:
			why[s] = "its link is down"
		default:
			table[s] = e.via
		}
	}
	lengths := lengthsOf(prefixes(ours))
	for _, rival := range all {
		if !rival.To.IsValid() || rival.protocol == protocol && rival.metric == metric ||
			rival.flags&unix.RTNH_F_DEAD != 0 {
			continue
		}
		// The rival overrides each route of ours that covers it. It overrides one of the
		// same prefix only if its metric is not worse.
		for _, bits := range lengths.of(rival.To.Addr()) {
			p, err := rival.To.Addr().Prefix(bits)
			s := Selector{From: rival.From, To: p}
			e, mine := ours[s]
			if err != nil || !mine || bits > rival.To.Bits() || rival.plain() && rival.via == e.via {
				continue
			}
			switch {
			case bits < rival.To.Bits():
				why[s] = fmt.Sprintf("a part of it goes elsewhere: %s; remove that route", rival)
			case rival.metric <= metric:
				why[s] = fmt.Sprintf("another route goes before it: %s, metric %d; remove that route", rival,
					rival.metric)
			}
		}
	}
	var conflicts []Conflict
	for s, w := range why {
		delete(table, s)
		conflicts = append(conflicts, Conflict{Selector: s, Via: ours[s].via, Why: w})
	}
	return table, conflicts
}
