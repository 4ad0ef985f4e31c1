package rig

import (
	"context"
	"fmt"
	"strings"
)

// GatewayPool are addresses for the Gateways of an appliance that is in no group (haproxy.addresses).
// AddGatewayAddresses gives its host all of them but the last.
var GatewayPool = GatewayAddress(0) + "-" + GatewayAddress(gatewayAddresses)

// gatewayAddresses is the number of addresses that a host has for Gateways.
const gatewayAddresses = 32

// GatewayAddress returns an address of GatewayPool by its number.
func GatewayAddress(n int) string { return fmt.Sprintf("192.168.50.%d", 128+n) }

// AddGatewayAddresses gives the host of the appliance addresses for Gateways, in the lan.
func (r *Rig) AddGatewayAddresses(ctx context.Context) error {
	var batch strings.Builder
	for n := range gatewayAddresses {
		fmt.Fprintf(&batch, "address add %s/32 dev eth0\n", GatewayAddress(n))
	}
	add := r.Command(ctx, r.machine, "ip", "-batch", "-")
	add.Stdin = strings.NewReader(batch.String())
	if said, err := add.CombinedOutput(); err != nil {
		return fmt.Errorf("add addresses to %s: %w: %s", r.machine, err, said)
	}
	return nil
}
