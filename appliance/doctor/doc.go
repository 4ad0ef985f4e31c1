// Package doctor examines everything that an appliance with a configuration file needs: this
// machine, the clusters, the way to each node and its BGP speaker, and the appliance that runs here.
//
// It owns the checks. Each check reports what it saw, how bad that is, and what to do. What a running
// appliance has found by itself comes from its status, in the words of package status.
//
// It changes nothing, neither here nor in a cluster. It also works before the first start.
//
// Its limit: it looks from this machine, once. It sees packets of BGP only if it runs as root.
package doctor
