package world

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
)

// Traffic is the kind of packets that a partition drops.
type Traffic string

// The kinds of Traffic. BGP is TCP with port 179 at either end, VRRP is IP protocol 112, and the
// heartbeat of a group is UDP at its default port.
const (
	AllTraffic    Traffic = "all"
	OnlyBGP       Traffic = "bgp"
	OnlyVRRP      Traffic = "vrrp"
	OnlyHeartbeat Traffic = "heartbeat"
)

// matches maps each kind to what its packets match in nft, one of these.
var matches = map[Traffic][]string{
	AllTraffic:    {""},
	OnlyBGP:       {"tcp sport 179 ", "tcp dport 179 "},
	OnlyVRRP:      {"ip protocol 112 ", "ip6 nexthdr 112 "},
	OnlyHeartbeat: {"udp dport 7477 "},
}

// partition is a pair of hosts whose packets to each other are dropped.
type partition struct {
	a, b string
	what Traffic
}

func (p partition) of(a, b string) bool { return p.a == a && p.b == b || p.a == b && p.b == a }

// Partition drops the packets between two hosts, and between the pods on them. Their links stay
// up. A second partition of the same hosts replaces the first.
func (l *Lab) Partition(ctx context.Context, a, b string, what Traffic) error {
	if matches[what] == nil {
		return fmt.Errorf("traffic %q: want one of %s", what,
			strings.Trim(fmt.Sprint(slices.Sorted(maps.Keys(matches))), "[]"))
	}
	if err := l.twoHosts(a, b); err != nil {
		return err
	}
	return l.repartition(ctx, func(all []partition) []partition {
		return append(slices.DeleteFunc(all, func(p partition) bool { return p.of(a, b) }), partition{a, b, what})
	})
}

// Heal ends the partition of two hosts, if there is one.
func (l *Lab) Heal(ctx context.Context, a, b string) error {
	if err := l.twoHosts(a, b); err != nil {
		return err
	}
	return l.repartition(ctx, func(all []partition) []partition {
		return slices.DeleteFunc(all, func(p partition) bool { return p.of(a, b) })
	})
}

func (l *Lab) twoHosts(a, b string) error {
	for _, name := range []string{a, b} {
		if _, ok := l.Host(name); !ok {
			return fmt.Errorf("no host is called %q", name)
		}
		if name == Client && l.opts.Router != "" {
			return fmt.Errorf("the client is behind the router: partition %s", Router)
		}
	}
	if a == b {
		return errors.New("a partition is between two hosts")
	}
	return nil
}

// repartition changes the list of partitions and replaces the bridge's rules in one transaction.
// The rules are in the lan's namespace, and end with it.
func (l *Lab) repartition(ctx context.Context, change func([]partition) []partition) error {
	l.parting.Lock()
	defer l.parting.Unlock()
	now := change(slices.Clone(l.partitions))
	if slices.Equal(now, l.partitions) {
		return nil
	}
	cmd := exec.CommandContext(ctx, "ip", "netns", "exec", netnsName(l.opts.Name, lanHost), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules(now))
	if _, err := output(cmd); err != nil {
		return fmt.Errorf("the bridge takes no rules (is nftables installed?): %w", err)
	}
	l.partitions = now
	return nil
}

// rules returns all partitions as rules of nft. A port of the bridge has the name of its host.
func rules(all []partition) string {
	var b strings.Builder
	b.WriteString("add table bridge partition\nflush table bridge partition\n")
	b.WriteString("add chain bridge partition forward { type filter hook forward priority 0; }\n")
	for _, p := range all {
		for _, way := range [][2]string{{p.a, p.b}, {p.b, p.a}} {
			for _, match := range matches[p.what] {
				fmt.Fprintf(&b, "add rule bridge partition forward iifname %q oifname %q %sdrop\n", way[0], way[1],
					match)
			}
		}
	}
	return b.String()
}
