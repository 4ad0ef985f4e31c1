package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"sallyport/appliance"
	"sallyport/appliance/config"
	"sallyport/appliance/status"
	"sallyport/bgp"
	"sallyport/haproxy"
	"sallyport/ingress/input"
	"sallyport/ingress/watch"
	"sallyport/routes"
)

// A doctor examines a configuration, the machine, the clusters, and an appliance that runs here. It
// changes nothing.
type doctor struct {
	reporter

	path   string
	cfg    *config.Config
	status *status.Status // of the running appliance; nil if no appliance runs
	odd    []string       // faults of Calico's objects; a running appliance has the same warnings

	program        haproxy.Program  // the zero Program if there is no usable HAProxy here
	known, unknown []input.Snapshot // of the clusters; the unknown ones could not be read
	wire           *bgp.Capture     // nil if the doctor may not see packets
}

// Examine checks everything that an appliance with this configuration file needs, and reports each
// finding at once. It takes half a minute at most for each cluster that does not answer, and ten
// seconds for its nodes that do not answer.
func Examine(ctx context.Context, path string, report func(status.Finding)) {
	d := &doctor{path: path, reporter: reporter{report: report}}
	cfg, err := config.Load(path)
	if err != nil {
		for mistake := range strings.SplitSeq(err.Error(), "\n") {
			d.failed("config", mistake, "correct the file; nothing else was checked", "sallyport config check "+path)
		}
		return
	}
	d.cfg = cfg
	d.ok("config", "%s is valid", path)
	for _, warning := range cfg.Warnings {
		d.doubt("config", warning, "", "sallyport config check "+path)
	}
	d.askAppliance(ctx)
	ports := []uint16{cfg.BGP.Port}
	for _, c := range cfg.Clusters {
		ports = append(ports, c.BGP.Port)
	}
	slices.Sort(ports)
	if d.wire, err = bgp.NewCapture(slices.Compact(ports)...); err == nil { // else silent tells
		defer d.wire.Close()
	}
	d.machine(ctx)
	for _, c := range cfg.Clusters {
		if s, ok := d.cluster(ctx, c); ok {
			d.known = append(d.known, s)
		} else {
			d.unknown = append(d.unknown,
				input.Snapshot{Cluster: c.Name, Options: appliance.OptionsOf(&c, appliance.PoolsOf(d.cfg))})
		}
	}
	d.overlaps()
	d.certificates()
	d.objects()
	d.running()
}

// askAppliance reads the status of the appliance that runs with this configuration.
func (d *doctor) askAppliance(ctx context.Context) {
	at := d.cfg.Endpoint()
	body, err := status.Endpoint{At: at}.Ask(ctx, "/status")
	if err == nil {
		var s status.Status
		if err = json.Unmarshal(body, &s); err == nil && s.Identity == "" {
			err = errors.New("its answer names no identity")
		}
		if err == nil {
			d.status = &s
		}
	}
	switch {
	case d.status == nil && (errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist)):
		d.doubt("appliance", fmt.Sprintf("no appliance runs here (nothing listens at %s): what only a running one "+
			"can tell is not checked", at), "start it when all else is ok", "systemctl start sallyport")
	case d.status == nil:
		d.failed("appliance", fmt.Sprintf("%s does not answer as an appliance: %v", at, err),
			"find out who listens there, or change status.listen",
			fmt.Sprintf("ss -tlnp 'sport = :%d'", d.cfg.Status.Listen.Port()))
	case !d.status.Ready:
		d.failed("appliance", "it runs and is not ready: "+strings.Join(d.status.NotReady, "; "),
			"wait for a minute after a start; then do what each sentence says", "sallyport status")
	default:
		d.ok("appliance", "it runs, version %s, and is ready", d.status.Version)
	}
}

// machine checks this machine.
func (d *doctor) machine(ctx context.Context) {
	if program, err := haproxy.FindProgram(d.cfg.HAProxy.Binary); err == nil {
		d.program = program
		d.ok("haproxy", "%s is version %s", program.Path, program.Version)
		for _, sentence := range program.Lacks() {
			d.doubt("haproxy", sentence,
				"install the package haproxy of Debian, or name a HAProxy that has it in haproxy.binary",
				"apt install haproxy")
		}
	} else if d.cfg.HAProxy.Mode == config.Managed {
		d.failed("haproxy", err.Error(), "install a HAProxy that can be used, or name one in haproxy.binary",
			"apt install haproxy")
	}
	if end, has := d.statusCertificate(); has {
		d.expiry("certificate", "the certificate of the status endpoint (status.tls)", end,
			status.NewCertificate, status.Reload)
	}
	for _, way := range status.Ways(&d.cfg.Group) {
		program := way.Program()
		if program == "" {
			continue
		}
		if path, err := exec.LookPath(program); err != nil {
			d.failed(program, fmt.Sprintf("%s needs the program %s, which is not in PATH: no address moves by it",
				way.Name(), program), "install it; its own service stays off", "apt install "+program)
		} else {
			d.ok(program, "%s moves the service addresses by %s", path, way.Name())
		}
	}
	if d.cfg.HAProxy.Mode == config.Managed {
		if want := d.cfg.HAProxy.MaxConnections; want > 0 && haproxy.Machine().Connections(0, want) < want {
			d.doubt("files",
				fmt.Sprintf("haproxy.maxConnections is %d, and HAProxy holds %s", want, appliance.Holds(d.cfg)),
				"raise the limit of open files of the unit", "systemctl edit sallyport    # [Service] LimitNOFILE=")
		} else {
			d.ok("files", "HAProxy holds %s", appliance.Holds(d.cfg))
		}
	}
	d.ports(ctx)
	d.kernel()
}

// ports checks that the addresses and ports of the appliance are free. It checks nothing while an
// appliance runs, because that uses them.
func (d *doctor) ports(ctx context.Context) {
	if d.status != nil || d.cfg.HAProxy.Mode != config.Managed {
		return
	}
	wanted := map[string]string{}
	passive := slices.ContainsFunc(d.cfg.Clusters, func(c config.Cluster) bool { return c.BGP.Mode == config.Passive })
	for _, p := range d.cfg.Ports() {
		switch {
		case p.HAProxy:
			wanted[p.At.String()] = "haproxy.http and haproxy.https"
		case p.Key == "bgp.listen" && passive && p.At.Addr().IsValid():
			wanted[p.At.String()] = p.Key
		}
	}
	for _, at := range slices.Sorted(maps.Keys(wanted)) {
		key := wanted[at]
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at)
		if err == nil {
			_ = l.Close()
			d.ok("port", "%s (%s) is free", at, key)
			continue
		}
		_, port, _ := net.SplitHostPort(at)
		switch {
		case errors.Is(err, syscall.EADDRINUSE) && key != "bgp.listen" &&
			haproxy.Left(d.cfg.HAProxy.Dir, d.cfg.HAProxy.RunDir) != 0:
			d.ok("port", "%s (%s) is in use by the HAProxy of an appliance that was stopped, and the next "+
				"one adopts it", at, key)
		case errors.Is(err, syscall.EADDRINUSE):
			d.failed("port", fmt.Sprintf("%s (%s) is in use by another program", at, key),
				"stop that program, or change "+key, "ss -tlnp 'sport = :"+port+"'")
		case errors.Is(err, syscall.EADDRNOTAVAIL):
			d.failed("port", fmt.Sprintf("%s (%s) is no address of this machine", at, key),
				"give the machine the address, or change "+key, "ip address")
		default:
			d.failed("port", fmt.Sprintf("%s (%s): %v", at, key, err), "run it as root, or with CAP_NET_BIND_SERVICE",
				"systemctl cat sallyport")
		}
	}
}

// kernel checks settings of the kernel.
func (d *doctor) kernel() {
	if used, most := haproxy.Conntrack(); most > 0 {
		text := fmt.Sprintf("%d of %d entries of the connection table are in use", used, most)
		if used*5 >= most*4 {
			d.doubt("conntrack", text, "raise the limit, or let the firewall not track the appliance's traffic",
				fmt.Sprintf("sysctl -w net.netfilter.nf_conntrack_max=%d", 4*most))
		} else {
			d.ok("conntrack", "%s", text)
		}
	}
	if ports := haproxy.LocalPorts(); ports > 0 {
		text := fmt.Sprintf("%d ports are there for connections to one pod", ports)
		if ports < 10000 {
			d.doubt("ports-to-pods", text, "widen the range", "sysctl -w net.ipv4.ip_local_port_range='10240 65535'")
		} else {
			d.ok("ports-to-pods", "%s", text)
		}
	}
}

// clockSkew is how far the clocks of this machine and of an API server may be apart. The validity
// of tokens and certificates is exact to the second.
const clockSkew = 5 * time.Second

// looksAt returns how the doctor watches a cluster: with the token that an appliance has renewed,
// if this user may read it. The token in the kubeconfig may have expired long ago.
func (d *doctor) looksAt(c config.Cluster, kubeconfig []byte) watch.Config {
	pools, silent := appliance.PoolsOf(d.cfg), slog.New(slog.DiscardHandler)
	of := appliance.WatcherConfig(d.cfg, &c, pools, kubeconfig, ownAddresses(), silent)
	of.OnlyLook = true
	return of
}

// cluster checks one cluster, and returns its objects.
func (d *doctor) cluster(ctx context.Context, c config.Cluster) (none input.Snapshot, ok bool) {
	r := d.about(c.Name)
	text, err := c.Kubeconfig.Read()
	if err != nil {
		r.failed("cluster", fmt.Sprintf("its kubeconfig cannot be read: %v", err), "name one that this user may read",
			"sallyport config check "+d.path)
		return none, false
	}
	if server, err := watch.Greet(ctx, text); err == nil {
		if skew := time.Since(server.Time); skew.Abs() > clockSkew {
			d.doubt("clock", fmt.Sprintf("the clock of this machine and that of the API server of cluster %s "+
				"are %s apart", c.Name, skew.Abs().Round(time.Second)),
				"synchronise both by NTP: tokens and certificates are valid by the clock", "timedatectl")
		} else {
			d.ok("clock", "it agrees with the API server of cluster %s", c.Name)
		}
		if !server.Expires.IsZero() {
			d.expiry("certificate", "a certificate of the API server of cluster "+c.Name, server.Expires,
				"renew it on each machine of the control plane, then restart its kube-apiserver",
				"kubeadm certs renew apiserver")
		}
	} else if _, is := errors.AsType[syscall.Errno](err); is || errors.Is(err, context.DeadlineExceeded) ||
		os.IsTimeout(err) {
		r.failed("cluster", fmt.Sprintf("its API server cannot be reached: %v", err),
			"look whether it runs, and whether a firewall drops packets from here; the address is in the kubeconfig",
			"kubectl --kubeconfig "+cmp.Or(c.Kubeconfig.Path, "FILE")+" get --raw /readyz")
		return none, false
	}
	w, err := watch.New(d.looksAt(c, text))
	if err != nil {
		r.failed("cluster", err.Error(), "correct the kubeconfig: its address, CA and credentials",
			"kubectl --kubeconfig "+cmp.Or(c.Kubeconfig.Path, "FILE")+" config view")
		return none, false
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	defer func() { cancel(); <-done }()
	snapshot, err := w.Await(ctx)
	health := w.Health()
	if err != nil {
		r.failed("cluster", err.Error(),
			"check the address, the CA and the credentials of the kubeconfig, and apply the manifests",
			fmt.Sprintf("kubectl --kubeconfig %s auth can-i --list", cmp.Or(c.Kubeconfig.Path, "FILE")))
		return none, false
	}
	r.ok("cluster", "%s of %s, %s, Calico's objects in %s", status.Counted(len(snapshot.Ingresses), "Ingress object"),
		status.Counted(len(snapshot.Services), "Service"), status.Counted(len(snapshot.Topology.Nodes), "node"),
		cmp.Or(health.APIGroup, "no API group"))
	for _, sentence := range slices.Concat(health.Missing, gatewayFaults(ctx, c, w, snapshot)) {
		d.doubt("rights and objects", "cluster "+c.Name+": "+sentence, "apply the manifests", d.manifests())
	}
	for _, sentence := range health.Hints {
		d.finds(status.Info, "rights and objects", "cluster "+c.Name+": "+sentence, status.MoreRights, d.manifests())
	}
	d.customResources(ctx, c, w)
	for _, sentence := range health.Odd {
		d.odd = append(d.odd, "cluster "+c.Name+": "+sentence)
		d.doubt("Calico's objects", "cluster "+c.Name+": "+sentence, "correct the object, or what it is compared with",
			calicoObjects(health.APIGroup))
	}
	for _, pool := range snapshot.Topology.Pools {
		if pool.NoExport {
			d.doubt("pool", fmt.Sprintf("cluster %s: IP pool %s (%s) has disableBGPExport, so no node announces its "+
				"blocks, and its pods cannot be servers", c.Name, pool.Name, pool.CIDR),
				"allow the export, if Ingresses lead to pods of the pool",
				status.ExportPool(health.APIGroup, pool.Name))
		}
	}
	if apart := w.Apart(); len(apart) > 0 {
		d.doubt("mesh", fmt.Sprintf("cluster %s: the node-to-node mesh is off (nodeToNodeMeshEnabled of "+
			"BGPConfiguration default), and no BGPPeer connects %s (%s) with other nodes, a route reflector or a "+
			"router: their pods do not reach those of other nodes",
			c.Name, status.Counted(len(apart), "node"), few(apart)),
			"turn the mesh on, or make BGPPeers between the nodes and route reflectors, unless other routes "+
				"connect the nodes",
			fmt.Sprintf("kubectl patch bgpconfigurations.%s default --type merge -p "+
				"'{\"spec\":{\"nodeToNodeMeshEnabled\":true}}'", status.GroupName(health.APIGroup)))
	} else {
		d.ok("mesh", "BGP or tunnels connect the nodes of cluster %s", c.Name)
	}
	// A running appliance renews its token, and warns if it cannot.
	if t := health.CredentialsExpire; d.status == nil && !t.IsZero() && c.Kubeconfig.Path != "" {
		d.expiry("credentials", "the token or certificate in the kubeconfig of cluster "+c.Name, t,
			"a running appliance renews the token of its ServiceAccount, if the manifests allow that; replace "+
				"other credentials", d.manifests())
	}
	d.nodes(ctx, c, snapshot.Topology)
	d.leftBehind(ctx, c, w.Appliances(), status.GroupName(health.APIGroup))
	return snapshot, true
}

// members reports the faults that the status has about the group and its members.
func (d *doctor) members(g *status.GroupStatus, version string) {
	for _, f := range g.Own() {
		d.doubt("group", f.Saw, f.Remedy, f.Command)
	}
	for _, m := range g.Members {
		r := d.about(m.Name)
		troubles := slices.DeleteFunc(m.Troubles("it", d.cfg.Group.Port), func(f status.Finding) bool {
			return !slices.Contains(examined, f.Code) // running reports it
		})
		switch {
		case m.Self:
		case len(troubles) > 0:
			for _, f := range troubles {
				r.doubt("member", f.Saw, f.Remedy, f.Command)
			}
		case m.Version != version:
			r.doubt("member", fmt.Sprintf("it runs version %s, and this one %s", m.Version, version),
				"update one after the other, until all run the same", "sallyport version")
		default:
			r.ok("member", "%s %s", m.Address, m.State())
		}
	}
}

// overlaps checks that the machine has the source of each cluster, and that no two clusters without sources of
// their own have addresses in common.
func (d *doctor) overlaps() {
	local, err := routes.ReadLocal()
	if err != nil {
		return // as unlikely as a machine without interfaces
	}
	topologies := make([]routes.Topology, len(d.known))
	for i := range d.known {
		topologies[i] = d.known[i].Topology
		if _, ok := local.SourceOf(topologies[i].Source); !ok {
			d.failed("source", fmt.Sprintf("this machine has no address of its own in %s, the source of cluster %s: "+
				"its pods get no traffic", topologies[i].Source, topologies[i].Cluster),
				status.GiveSource, "ip address")
		}
	}
	for _, o := range routes.Overlaps(topologies, local) {
		d.failed("pools", fmt.Sprintf("%s of cluster %s and %s of cluster %s have addresses in common: routes to "+
			"these addresses are taken from cluster %s alone", o.Of, o.First, o.Network, o.Second, o.First),
			"give one of them other IP pools, give both clusters[].pools without common addresses, or give each of "+
				"them a clusters[].source of its own",
			"kubectl get ippools -o yaml    # in each of the two")
	}
}

// pending is the reason of conditions of Gateway API that only a running appliance makes true.
const pending = "Pending"

// objects reports the problems of the clusters' objects: those in the status of a running
// appliance, or those that an appliance would find.
func (d *doctor) objects() {
	if d.status != nil {
		for _, p := range d.status.Problems {
			d.doubt("objects", p.Object+" of cluster "+p.Cluster+": "+p.Why,
				"correct the object; its Events or conditions say the same", "sallyport status problems")
		}
		return
	}
	c := appliance.CompilerOf(d.cfg.Ports())
	c.Unknown = d.unknown
	c.Local = ownAddresses()
	if d.program.Path != "" {
		c.Judge(d.program.Vet(c.Compile(d.known).Questions))
	}
	for _, p := range status.ProblemStatuses(c.Compile(d.known).AllProblems()) {
		if p.Reason == pending {
			continue // a running appliance ends it
		}
		d.doubt("objects", p.Object+" of cluster "+p.Cluster+": "+p.Why, "correct the object",
			"kubectl get ingresses,services,configmaps -A")
	}
}

// certificates checks the certificates that the clusters' objects name. They are in the order of
// their expiry, so the check of a cluster stops at the first certificate that is valid for long.
func (d *doctor) certificates() {
	for _, s := range d.known {
		for _, c := range s.Certificates() {
			if well := d.expiry("certificate",
				fmt.Sprintf("the one in Secret %s/%s of cluster %s (%s)", c.Namespace, c.Secret, s.Cluster,
					few(c.Names)), c.Expires,
				"renew it, or look at what renews it, such as cert-manager",
				fmt.Sprintf("kubectl -n %s create secret tls %s --cert FILE --key FILE --dry-run=client -o yaml | "+
					"kubectl apply -f -", c.Namespace, c.Secret)); well {
				break
			}
		}
	}
}

// expiry checks when something expires, and reports whether that is not soon.
func (r reporter) expiry(kind, what string, end time.Time, remedy, command string) (well bool) {
	until := end.UTC().Format(time.DateTime)
	switch left := time.Until(end); {
	case left < 0:
		r.failed(kind, what+" expired at "+until+" (UTC)", remedy, command)
	case left < status.ExpiresSoon:
		r.doubt(kind, what+" expires at "+until+" (UTC)", remedy, command)
	default:
		r.ok(kind, "%s is valid until %s (UTC)", what, until)
		return true
	}
	return false
}

// statusCertificate returns when the certificate of the status endpoint expires. A running
// appliance warns of it itself.
func (d *doctor) statusCertificate() (end time.Time, has bool) {
	if d.status != nil || !d.cfg.Status.TLS.Exists() {
		return end, false
	}
	pair, err := d.cfg.Status.TLS.Pair()
	if err != nil {
		return end, false // config.Load has checked it
	}
	return pair.Leaf.NotAfter, true
}

// examined holds the codes of the findings of a running appliance for which the doctor has checks.
var examined = []status.Code{
	status.NoSession, status.GroupClass, status.AddressNotHeld, status.SecondChance,
	status.MemberSilent, status.MemberUnheard, status.MemberDiffers,
}

// running reports the faults that the status of the running appliance has.
func (d *doctor) running() {
	s := d.status
	if s == nil {
		return
	}
	if s.Group != nil {
		d.members(s.Group, s.Version)
	}
	findings := s.Findings
	if findings == nil { // an appliance of an earlier version has only sentences
		findings = status.Status{}.Noticed(s.Warnings).Findings
	}
	for _, f := range findings {
		switch {
		case f.Level == status.Failed, f.Level == status.Info, slices.Contains(examined, f.Code):
			// The doctor reports them itself.
		case f.Code == status.OddObjects && slices.Contains(d.odd, f.Saw):
		case f.Code == status.ClosedListeners && objectsTell(s, f.Subject):
		default:
			f.Check, f.Command = "appliance", cmp.Or(f.Command, "sallyport status")
			if f.Code == status.Capacity {
				f.Check = "capacity"
			}
			d.report(f)
		}
	}
	missing := 0
	for _, r := range s.Routes {
		if !r.Installed {
			missing++
			d.failed("route", fmt.Sprintf("%s via %s is not in the kernel: %s", r.Prefix, r.Via,
				cmp.Or(r.Why, "it is being added")),
				"look for another route to these addresses, and for the program that made it",
				"ip route show "+r.Prefix.String())
		}
	}
	if missing == 0 {
		d.ok("routes", "%s in the kernel", status.Counted(len(s.Routes), "route"))
	}
	for _, reason := range slices.Sorted(maps.Keys(s.Refused.Counts)) {
		example := ""
		for _, r := range s.Refused.Shown {
			if r.Reason == reason {
				example = r.Why
			}
		}
		d.doubt("offers", fmt.Sprintf("%d refused as %s: %s", s.Refused.Counts[reason], reason, example),
			"a stale one comes back with its session; compare any other with clusters[].pools and with the cluster's "+
				"BlockAffinities: one of what no pod has needs nothing", "sallyport status refusals")
	}
	open := 0
	for _, b := range s.Backends {
		serving := status.CountFunc(b.Servers, status.ServerStatus.Serves)
		open += serving
		if serving == 0 && len(b.Servers) > 0 {
			d.about(b.Name).failed("backend",
				fmt.Sprintf("none of %s takes traffic", status.Counted(len(b.Servers), "server")),
				"look why each of its servers is closed or down", "sallyport status servers")
		}
	}
	d.ok("servers", "%d open", open)
	for _, idle := range s.Idle() {
		saw, remedy, command := fmt.Sprintf("%s without traffic, %s the first: %s",
			status.Counted(len(idle.Servers), "server"), idle.Servers[0], idle.Why),
			"look at the first part on the way to it that is not well",
			"sallyport explain "+idle.Servers[0].Addr().String()
		if from := sourceFor(idle.Servers[0]); idle.Reason == status.CheckTimeout && from.IsValid() {
			saw += fmt.Sprintf("; pods see %s as the source", from)
			remedy = fmt.Sprintf("admit %s in their NetworkPolicies (an ipBlock of %[1]s/%d); without a policy, look "+
				"on their nodes for a firewall, for rp_filter, and for the way back to %[1]s", from, from.BitLen())
			command = "kubectl get networkpolicies -A"
		}
		d.doubt("servers", saw, remedy, command)
	}
}

// sourceFor returns the address from which this machine connects to a server.
func sourceFor(to netip.AddrPort) netip.Addr {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)) // sends nothing
	if err != nil {
		return netip.Addr{}
	}
	defer func() { _ = conn.Close() }()
	from, is := conn.LocalAddr().(*net.UDPAddr)
	if !is {
		return netip.Addr{}
	}
	return from.AddrPort().Addr().Unmap()
}

// ownAddresses returns the addresses of this machine.
func ownAddresses() (all []netip.Addr) {
	found, _ := net.InterfaceAddrs()
	for _, p := range networksOf(found) {
		all = append(all, p.Addr())
	}
	return all
}

// localNetworks returns the networks that this machine is connected to.
func localNetworks() (all []netip.Prefix) {
	found, _ := net.InterfaceAddrs()
	for _, p := range networksOf(found) {
		if !p.Addr().IsLoopback() && !p.Addr().IsLinkLocalUnicast() {
			all = append(all, p.Masked())
		}
	}
	return all
}

// networksOf returns addresses of interfaces with the lengths of their networks.
func networksOf(found []net.Addr) (all []netip.Prefix) {
	for _, a := range found {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			all = append(all, p)
		}
	}
	return all
}

// few returns the first few names, and how many more follow.
func few(names []string) string { return cmp.Or(status.Few(names, 5), "no name") }
