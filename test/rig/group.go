package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sallyport/test/lab/world"
)

// Another returns a rig for the nth appliance of the lab, which has several hosts for them. Its Dir
// is in that of r, and needs to be configured. The lab goes down with r.
func (r *Rig) Another(n int) (*Rig, error) {
	other := &Rig{Lab: r.Lab, Dir: filepath.Join(r.Dir, world.ApplianceHost(n)), machine: world.ApplianceHost(n)}
	err := os.Mkdir(other.Dir, 0o711) // HAProxy's worker, another user, passes through
	for _, file := range []string{"sallyport", "app", "kubeconfig"} {
		err = errors.Join(err, os.Symlink(filepath.Join("..", file), filepath.Join(other.Dir, file)))
	}
	r.others = append(r.others, other)
	return other, err
}

// Machine returns the name of the appliance's host.
func (r *Rig) Machine() string { return r.machine }

// ServiceAddresses returns addresses for a group of the lab's appliances. A router with BGP spreads
// one address over all members. By VRRP each member has an address, in the lan.
func ServiceAddresses(lab world.Options) (all []string) {
	if lab.Router == world.RouterBIRD {
		return []string{"203.0.113.10"}
	}
	for n := range lab.Appliances {
		all = append(all, fmt.Sprintf("192.168.50.%d", 200+n))
	}
	return all
}

// ServicePool returns a network for Services of type LoadBalancer (group.pools). Without BGP it is in
// the lan.
func ServicePool(lab world.Options) string {
	if lab.Router == world.RouterBIRD {
		return "203.0.113.64/28"
	}
	return "192.168.50.208/28"
}

// Group returns lines for the config files of the lab's appliances, which make the nth a member of
// a group with the lab's ServiceAddresses. The members have the names of their hosts.
func (r *Rig) Group(n int) string {
	var members []string
	for i := range r.Options().Appliances {
		host, _ := r.Host(world.ApplianceHost(i + 1))
		members = append(members, fmt.Sprintf("{name: %s, address: %s}", host.Name, host.Addr.Addr()))
	}
	way := "vrrp: {interface: eth0}"
	if r.Options().Router == world.RouterBIRD {
		router, _ := r.Host(world.Router)
		way = fmt.Sprintf("upstream: {asn: %d, peers: [{address: %s}]}", world.RouterAS, router.Addr.Addr())
	}
	return fmt.Sprintf(`identity: %s
group:
  name: lab
  secret: %s
  addresses: [%s]
  members: [%s]
  %s
`, world.ApplianceHost(n), strings.Repeat("c2FsbHlwb3J0", 4), strings.Join(ServiceAddresses(r.Options()), ", "), strings.Join(members, ", "), way)
}

// Serving returns the hosts of the appliances that the lab's router sends clients of the group to,
// sorted.
func (r *Rig) Serving(ctx context.Context) (hosts []string, err error) {
	return r.Holders(ctx, ServiceAddresses(r.Options()), r.Options().Router == world.RouterBIRD)
}

// SendsTo returns an error unless the lab's router sends clients of the group to exactly these hosts.
func (r *Rig) SendsTo(ctx context.Context, hosts ...string) error {
	got, err := r.Serving(ctx)
	if want := slices.Sorted(slices.Values(hosts)); err == nil && !slices.Equal(got, want) {
		err = fmt.Errorf("the router sends clients to %q, want %q", got, want)
	}
	return err
}

// Holders returns the hosts of the appliances that the lab's router sends clients of addresses to,
// sorted: by its routes, or by its neighbours in the lan.
func (r *Rig) Holders(ctx context.Context, addresses []string, routed bool) (hosts []string, err error) {
	at := map[string]string{} // next hops, or MAC addresses
	for n := range r.Options().Appliances {
		host, _ := r.Host(world.ApplianceHost(n + 1))
		at[host.Addr.Addr().String()] = host.Name
		mac, err := r.Exec(ctx, host.Name, "cat", "/sys/class/net/eth0/address")
		if err != nil {
			return nil, err
		}
		at[strings.TrimSpace(mac)] = host.Name
	}
	for _, address := range addresses {
		command, before := []string{"ip", "route", "show", address}, "via"
		if !routed {
			// Where no client has asked, the router has not either.
			command, before = []string{
				"sh", "-c",
				fmt.Sprintf("ip neigh show %[1]s | grep lladdr || { ping -c1 -W1 %[1]s >/dev/null; ip neigh "+
					"show %[1]s; }", address),
			}, "lladdr"
		}
		out, err := r.Exec(ctx, world.Router, command...)
		if err != nil {
			return nil, err
		}
		words := strings.Fields(out)
		for i, word := range words[:max(0, len(words)-1)] {
			if host := at[words[i+1]]; word == before && host != "" {
				hosts = append(hosts, host)
			}
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts), nil
}
