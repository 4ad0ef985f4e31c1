// Package balance decides which Gateways and Services of type LoadBalancer have which addresses and ports.
//
// It owns the demands of these objects, and the memory of their addresses. Package allot answers the demands.
// [Give] makes an [Outcome] of a [Round]. An Outcome has the [Balancer] of each object, the Services with ports
// that may be opened, and the owners of addresses for the next round.
//
// It alone knows how a Service or a Gateway asks for addresses, and why each has those that it has. Services
// that the clusters of a set export are one Balancer in all of these clusters, with the same addresses.
//
// It promises that no port is opened at an address that the status of its Service does not have yet. No two
// members of a group then serve different Services at one address.
//
// Its limit: it opens no port. Package ingress makes the streams and backends of the Services that may be
// served, and package listen the listeners of Gateways.
package balance
