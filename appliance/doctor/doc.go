// Package doctor examines everything that an appliance with a configuration file needs. It looks at
// this machine, the clusters, the way to each node and its BGP speaker, and at the appliance that
// runs here.
//
// It owns the checks. Each check reports an observation, its level and a remedy. The faults that a
// running appliance has found itself come from its status, with the code that they have there.
//
// It changes nothing, neither here nor in a cluster. It also works before the first start.
//
// Its limit: it looks from this machine, once. It sees packets of BGP only if it runs as root.
package doctor
