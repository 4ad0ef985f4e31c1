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
// second, and whenever a route goes, it reads the routes, the servers, and the routes again. It
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
		if !covers(before, addr) && !covers(after, addr) {
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

func (o *observer) routes() (prefixes []netip.Prefix, err error) {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := o.kernel.RouteListFiltered(family, &netlink.Route{Protocol: protocol}, netlink.RT_FILTER_PROTOCOL)
		if err != nil {
			return nil, err
		}
		for _, r := range list {
			if p, err := netip.ParsePrefix(r.Dst.String()); err == nil {
				prefixes = append(prefixes, p)
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
