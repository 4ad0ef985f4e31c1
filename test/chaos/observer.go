package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// protocol marks the appliance's routes in the kernel.
const protocol = 78

// An observer checks the promise from outside, in the kernel and in HAProxy. A hundred times a
// second, and whenever a route goes, it reads the routes and
// rules, the servers, and the routes again. It
// counts the time in which a server is open while no route of the appliance leads to it.
type observer struct {
	socket string
	kernel *netlink.Handle
	gone   chan netlink.RouteUpdate

	mu      sync.Mutex
	exposed time.Duration
	first   string // what was seen first
}

func observe(ctx context.Context, ns, socket string) (*observer, error) {
	handle, err := netns.GetFromName(ns)
	if err != nil {
		return nil, err
	}
	o := &observer{socket: socket, gone: make(chan netlink.RouteUpdate, 1024)}
	if o.kernel, err = netlink.NewHandleAt(handle); err != nil {
		return nil, err
	}
	if err := netlink.RouteSubscribeAt(handle, o.gone, ctx.Done()); err != nil {
		return nil, err
	}
	go o.run(ctx)
	return o, nil
}

// take returns the time counted since the last call, and the first finding.
func (o *observer) take() (time.Duration, string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	exposed, first := o.exposed, o.first
	o.exposed, o.first = 0, ""
	return exposed, first
}

func (o *observer) run(ctx context.Context) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	last, was := time.Now(), false
	for {
		why := "as it stands"
		select {
		case <-ctx.Done():
			return
		case u := <-o.gone:
			if u.Type != unix.RTM_DELROUTE || u.Protocol != protocol {
				continue
			}
			why = fmt.Sprintf("when %s went", u.Dst)
		case <-tick.C:
		}
		stray, err := o.look()
		now := time.Now()
		if err == nil && stray != "" {
			o.mu.Lock()
			if was {
				o.exposed += now.Sub(last)
			} else {
				o.exposed += time.Millisecond // it was seen, however short
			}
			if o.first == "" {
				o.first = stray + ", " + why
			}
			o.mu.Unlock()
		}
		last, was = now, err == nil && stray != ""
	}
}

// look returns a server that is open and had no route before and after it was read.
func (o *observer) look() (stray string, err error) {
	before, err := o.routes()
	if err != nil {
		return "", err
	}
	open, err := o.open()
	if err != nil {
		return "", err
	}
	after, err := o.routes()
	if err != nil {
		return "", err
	}
	for name, addr := range open {
		source := sourceOf(name)
		if !covers(before[source], addr) && !covers(after[source], addr) {
			return name, nil
		}
	}
	return "", nil
}

func covers(routes []netip.Prefix, a netip.Addr) bool {
	for _, p := range routes {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// sourceOf returns the address from which HAProxy connects to a server, by its name. It is the zero Addr if the
// server has no address.
func sourceOf(server string) netip.Addr {
	_, from, _ := strings.Cut(server, "_from_")
	from, _, _ = strings.Cut(from, "_")
	source, _ := netip.ParseAddr(from)
	return source
}

// routes returns the prefixes that packets from each source have routes of the appliance to. Those of the main table
// are at the zero Addr. Another table is read by the rules that lead into it, and its number is the source.
func (o *observer) routes() (map[netip.Addr][]netip.Prefix, error) {
	prefixes := map[netip.Addr][]netip.Prefix{}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		rules, err := o.kernel.RuleList(family)
		if err != nil {
			return nil, err
		}
		tables := map[int]netip.Addr{unix.RT_TABLE_MAIN: {}}
		for _, r := range rules {
			if r.Protocol == protocol && r.Src != nil {
				if source, ok := netip.AddrFromSlice(r.Src.IP); ok {
					tables[r.Table] = source.Unmap()
				}
			}
		}
		list, err := o.kernel.RouteListFiltered(family, &netlink.Route{Protocol: protocol, Table: unix.RT_TABLE_UNSPEC},
			netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
		if err != nil {
			return nil, err
		}
		for _, r := range list {
			source, leads := tables[r.Table]
			if !leads || r.Type != unix.RTN_UNICAST {
				continue
			}
			if p, err := netip.ParsePrefix(r.Dst.String()); err == nil {
				prefixes[source] = append(prefixes[source], p)
			}
		}
	}
	return prefixes, nil
}

// closedBits are those of srv_admin_state that take a server out of traffic:
// maintenance and drain (HAProxy's management guide, "show servers state").
const closedBits = 0x01 | 0x02 | 0x08 | 0x10 | 0x20 | 0x40

// open returns the servers that HAProxy sends new requests to.
func (o *observer) open() (map[string]netip.Addr, error) {
	answer, err := o.ask("show servers state")
	if err != nil {
		return nil, err
	}
	servers := map[string]netip.Addr{}
	for line := range strings.Lines(answer) {
		f := strings.Fields(line)
		if len(f) < 19 || f[0][0] == '#' {
			continue
		}
		admin, err := strconv.Atoi(f[6])
		if err != nil || admin&closedBits != 0 {
			continue
		}
		if a, err := netip.ParseAddr(f[4]); err == nil {
			servers[f[1]+"/"+f[3]] = a
		}
	}
	return servers, nil
}

func (o *observer) ask(command string) (string, error) {
	c, err := net.DialTimeout("unix", o.socket, time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close() //nolint:errcheck // only an exchange
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintln(c, command); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(c)
	return string(answer), err
}
