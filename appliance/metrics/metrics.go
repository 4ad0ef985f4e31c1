package metrics

import (
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"sallyport/appliance/group"
	"sallyport/appliance/plan"
	"sallyport/appliance/status"
	"sallyport/haproxy"
)

// A Loop counts the rounds and steps of the loop, and measures how long they take. The zero value counts and does
// not measure; it must not be copied after its first use. Only Rounds and a scrape may run beside the other methods.
type Loop struct {
	rounds atomic.Uint64
	failed atomic.Uint64
	steps  [len(stepNames)]atomic.Uint64
	lags   lags

	duration, opened, routed, reloaded prometheus.Histogram
}

// Measure lets the Loop measure times from now on. It is called once, before the first round.
func (l *Loop) Measure() {
	l.duration, l.opened = newHistogram(roundDoc), newHistogram(openDoc)
	l.routed, l.reloaded = newHistogram(routeDoc), newHistogram(reloadDoc)
}

func newHistogram(m Metric) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: m.Name, Help: m.Help,
		Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
	})
}

func observe(h prometheus.Histogram, took time.Duration) {
	if h != nil {
		h.Observe(took.Seconds())
	}
}

// The places of the kinds of steps in counts.steps.
const (
	setServer = iota
	addRoute
	dropRoute
	addRule
	dropRule
)

// stepNames holds the values of the label step.
var stepNames = [...]string{
	setServer: "set_server", addRoute: "add_route", dropRoute: "drop_route", addRule: "add_rule", dropRule: "drop_rule",
}

// Step counts a step that was taken.
func (l *Loop) Step(s plan.Step) {
	switch s.(type) {
	case plan.SetServer:
		l.steps[setServer].Add(1)
	case plan.AddRoute:
		l.steps[addRoute].Add(1)
	case plan.DropRoute:
		l.steps[dropRoute].Add(1)
	case plan.AddRule:
		l.steps[addRule].Add(1)
	case plan.DropRule:
		l.steps[dropRule].Add(1)
	}
}

// Round counts a round that ended with this view.
func (l *Loop) Round(v *status.View) {
	l.rounds.Add(1)
	if v.Err != nil {
		l.failed.Add(1)
	}
	observe(l.duration, v.Took)
}

// Rounds returns how many rounds there were.
func (l *Loop) Rounds() uint64 { return l.rounds.Load() }

// Reloaded observes an order to HAProxy that took a reload.
func (l *Loop) Reloaded(took time.Duration) { observe(l.reloaded, took) }

// A Source is read at each scrape. It is a prometheus.Collector.
type Source struct {
	Head    func() status.Status
	Tally   func() status.Tally
	Parts   func() map[string]status.Part // of each cluster of a set, by its name
	Loop    *Loop
	Samples *status.Samples
}

// A Metric is one of ours as METRICS.md describes it.
type Metric struct {
	Name, Kind, Help string // Kind is counter, gauge or histogram
	Labels           []string
}

var documented []Metric // in the order of this file

// Documented returns the metrics in the order of METRICS.md.
func Documented() []Metric { return slices.Clone(documented) }

func document(kind, name, help string, labels ...string) Metric {
	m := Metric{Name: "sallyport_" + name, Kind: kind, Help: help, Labels: labels}
	documented = append(documented, m)
	return m
}

// desc describes a gauge, or a counter if the name ends in _total.
func desc(name, help string, labels ...string) *prometheus.Desc {
	kind := "gauge"
	if strings.HasSuffix(name, "_total") {
		kind = "counter"
	}
	m := document(kind, name, help, labels...)
	return prometheus.NewDesc(m.Name, help, labels, nil)
}

var (
	roundDoc = document("histogram", "round_duration_seconds",
		"Time of one round of the loop: reading, planning, acting.")
	openDoc = document("histogram", "server_open_duration_seconds",
		"Time from the round in which a server may be opened first, to HAProxy's confirmation that it is open.")
	routeDoc = document("histogram", "route_add_duration_seconds",
		"Time from the BGP announcement of a prefix to its route in the kernel.")
	reloadDoc = document("histogram", "haproxy_reload_duration_seconds",
		"Time of an order to HAProxy that took a reload.")
)

var (
	readyDesc    = desc("ready", "1 while the appliance is ready (see /readyz).")
	warningsDesc = desc("warnings", "Warnings that the status shows, a sentence each.")
	configDesc   = desc("config_last_reload_successful",
		"1 if the last reading of the configuration file succeeded, 0 if the file has a mistake.")
	configReadDesc = desc("config_last_reload_success_timestamp_seconds", "When the configuration in use was read.")
	configWaitDesc = desc("config_keys_waiting_for_restart",
		"Keys of the configuration file whose change needs a restart.")
	buildDesc   = desc("build_info", "Always 1; the version is the label.", "version")
	clusterDesc = desc("cluster_live", "1 when the cluster's API has answered since the start.", "cluster")
	shareDesc   = desc("cluster_share_ratio",
		"Part of the requests for exported Services that HAProxy sends to a cluster in a set, by the weights of its "+
			"servers, on average over the Services.", "cluster")
	askedDesc = desc("cluster_asked_share_ratio",
		"Part of the requests for exported Services that a cluster with a weight should have: 0 if it is drained, "+
			"stands by or has lost every BGP session.", "cluster")
	scarceDesc = desc("cluster_scarce_services",
		"Exported Services for which a cluster in a set has too few ready servers (clusters[].minReady).", "cluster")
	credentialsDesc = desc("cluster_credentials_expire_timestamp_seconds",
		"When the token or client certificate for the cluster's API expires. A token is renewed long before.",
		"cluster")
	peerDesc = desc("bgp_session_established", "1 while the BGP session is Established.", "cluster", "node",
		"peer")
	prefixesDesc = desc("bgp_prefixes_received", "Prefixes held from the peer.", "cluster", "node", "peer")
	flapsDesc    = desc("bgp_session_losses_total", "How often the session left Established.", "cluster", "node",
		"peer")
	routesDesc  = desc("routes", "Wanted routes, by whether the kernel holds them.", "installed")
	refusedDesc = desc("offers_refused", "Offers that are not routes at present, by reason.", "reason")
	serversDesc = desc("servers",
		"Servers by cluster and state. The cluster is empty for servers that no cluster has any more.", "cluster",
		"state")
	backendsDesc  = desc("backends", "Backends by cluster.", "cluster")
	noServersDesc = desc("backends_without_open_server", "Backends that have servers, none of them open.",
		"cluster")
	problemsDesc = desc("problems", "Objects of a cluster, or parts of them, that are not served, by reason.",
		"cluster", "reason")
	gatewaysDesc = desc("gateways", "Gateways, by whether all their listeners are programmed.", "cluster",
		"programmed")
	listenersDesc = desc("gateway_listeners", "Listeners of Gateways, by whether HAProxy has them.", "cluster",
		"programmed")
	gatewayRoutesDesc = desc("gateway_routes",
		"Routes of Gateway API. Reason Accepted: a listener takes the route; otherwise why none takes it.",
		"cluster", "reason")
	classDesc = desc("group_class", "1 for the class of this appliance in its group: full, spare or none.",
		"group", "class")
	drainingDesc = desc("group_draining", "1 while the appliance drains.", "group")
	memberDesc   = desc("group_member_up", "1 while the other member's heartbeat is heard.", "group", "member")
	addressDesc  = desc("group_address_held", "1 while this machine has the service address on lo.", "group",
		"address")
	announcedDesc = desc("group_address_announced",
		"1 for each router that has the service address from this appliance.", "group", "address", "peer")
	ringDesc = desc("group_second_chance_members",
		"Members that packets of unknown connections go around, with this one; 0: there is no ring.", "group")
	passedDesc = desc("group_second_chance_packets_total",
		"Packets of unknown connections that went on to the next member.", "group")
	bfdDesc      = desc("bfd_up", "1 while BFD with the router is up.", "peer")
	requestsDesc = desc("requests_total", "HTTP requests of clients, read from HAProxy every 10 s.")
	failedDesc   = desc("requests_failed_total",
		"HTTP requests of clients that were answered with a status from 500 to 599.")
	reloadsDesc  = desc("haproxy_reloads_total", "Reloads of HAProxy.")
	repeatedDesc = desc("haproxy_repeated_changes_total",
		"Orders to HAProxy that changed something although the same order had succeeded before. Cause missed: that "+
			"one had left it out, which is an error of the appliance, and worth a report. Cause outside: something "+
			"else had changed HAProxy.", "cause")
	checksDesc = desc("haproxy_checks_total",
		"Runs of HAProxy that only read a configuration: before a reload, and to check certificates and texts.")
	capacityDesc     = desc("capacity_used", "How much of a limited resource is in use; memory in bytes.", "resource")
	capacityMaxDesc  = desc("capacity_limit", "How much of a limited resource there is; memory in bytes.", "resource")
	roundsDesc       = desc("rounds_total", "Rounds of the loop.")
	failedRoundsDesc = desc("rounds_failed_total", "Rounds with an error.")
	stepsDesc        = desc("steps_total", "Steps taken.", "step")
)

// Registry returns a registry of our metrics and of those of the Go runtime and the process. The Loop of
// the Source measures.
func Registry(s Source) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(s.Loop.duration, s.Loop.opened, s.Loop.routed, s.Loop.reloaded, s)
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Describe sends nothing: the label values are known only at a scrape.
func (s Source) Describe(chan<- *prometheus.Desc) {}

// Collect sends the current values.
func (s Source) Collect(ch chan<- prometheus.Metric) {
	p := points(ch)
	head, t := s.Head(), s.Tally()
	p.gauge(readyDesc, oneIf(head.Ready))
	p.gauge(warningsDesc, float64(len(head.Warnings)))
	p.gauge(buildDesc, 1, head.Version)
	p.gauge(configDesc, oneIf(len(head.Config.Errors) == 0))
	p.gauge(configReadDesc, float64(head.Config.Read.Unix()))
	p.gauge(configWaitDesc, float64(len(head.Config.Waiting)))
	for _, c := range head.Clusters {
		p.gauge(clusterDesc, oneIf(c.Live), c.Name)
		if !c.CredentialsExpire.IsZero() {
			p.gauge(credentialsDesc, float64(c.CredentialsExpire.Unix()), c.Name)
		}
	}
	for cluster, part := range s.Parts() {
		p.gauge(shareDesc, part.Share, cluster)
		p.gauge(scarceDesc, float64(part.Scarce), cluster)
		if part.Asked >= 0 {
			p.gauge(askedDesc, part.Asked, cluster)
		}
	}
	if head.Group != nil {
		p.group(head.Group)
	}
	for _, peer := range head.Peers {
		if peer.BFD != "" {
			p.gauge(bfdDesc, oneIf(peer.BFD == "up"), peer.Addr.String())
		}
		p.gauge(peerDesc, oneIf(peer.Up()), peer.Cluster, peer.Node, peer.Addr.String())
		p.gauge(prefixesDesc, float64(peer.Received), peer.Cluster, peer.Node, peer.Addr.String())
		p.counter(flapsDesc, uint64(peer.Flaps), peer.Cluster, peer.Node, peer.Addr.String())
	}
	p.gauge(routesDesc, float64(t.Installed), "true")
	p.gauge(routesDesc, float64(t.Routes-t.Installed), "false")
	for reason, n := range head.Refused.Counts {
		p.gauge(refusedDesc, float64(n), string(reason))
	}
	for cluster, c := range t.Clusters {
		for state, n := range c.Servers {
			p.gauge(serversDesc, float64(n), cluster, haproxy.State(state).String())
		}
		p.gauge(backendsDesc, float64(c.Backends), cluster)
		p.gauge(noServersDesc, float64(c.Unserved), cluster)
	}
	for k, n := range t.Problems {
		p.gauge(problemsDesc, float64(n), k.Cluster, k.Reason)
	}
	for k, n := range t.Gateways {
		p.gauge(gatewaysDesc, float64(n), k.Cluster, strconv.FormatBool(k.Is))
	}
	for k, n := range t.Listeners {
		p.gauge(listenersDesc, float64(n), k.Cluster, strconv.FormatBool(k.Is))
	}
	for k, n := range t.GatewayRoutes {
		p.gauge(gatewayRoutesDesc, float64(n), k.Cluster, k.Reason)
	}
	for _, c := range head.Capacity {
		p.gauge(capacityDesc, float64(c.Used), c.Resource)
		p.gauge(capacityMaxDesc, float64(c.Limit), c.Resource)
	}
	p.counter(requestsDesc, s.Samples.Requests.Load())
	p.counter(failedDesc, s.Samples.Failed.Load())
	p.counter(reloadsDesc, uint64(head.HAProxy.Reloads))
	p.counter(repeatedDesc, uint64(head.HAProxy.Missed), "missed")
	p.counter(repeatedDesc, uint64(head.HAProxy.Restored), "outside")
	p.counter(checksDesc, uint64(head.HAProxy.Checks))
	p.counter(roundsDesc, s.Loop.rounds.Load())
	p.counter(failedRoundsDesc, s.Loop.failed.Load())
	for kind, name := range stepNames {
		p.counter(stepsDesc, s.Loop.steps[kind].Load(), name)
	}
}

// points is where the values of a reading go.
type points chan<- prometheus.Metric

func (p points) gauge(d *prometheus.Desc, v float64, labels ...string) {
	for i := range labels {
		labels[i] = strings.ToValidUTF8(labels[i], "?")
	}
	p <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (p points) counter(d *prometheus.Desc, v uint64, labels ...string) {
	p <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

// group adds the values of the group.
func (p points) group(g *status.GroupStatus) {
	for _, class := range []group.Class{group.Full, group.Spare, group.None} {
		p.gauge(classDesc, oneIf(g.Class == class), g.Name, string(class))
	}
	p.gauge(drainingDesc, oneIf(g.Draining), g.Name)
	p.gauge(ringDesc, float64(g.Ring.Members), g.Name)
	p.counter(passedDesc, g.Ring.Passed, g.Name)
	for _, m := range g.Members {
		if !m.Self {
			p.gauge(memberDesc, oneIf(m.Alive), g.Name, m.Name)
		}
	}
	for _, a := range g.Addresses {
		p.gauge(addressDesc, oneIf(a.Held), g.Name, a.Address.String())
		for _, router := range a.Announced {
			p.gauge(announcedDesc, 1, g.Name, a.Address.String(), router.String())
		}
	}
}

// oneIf returns 1 for true and 0 for false.
func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
