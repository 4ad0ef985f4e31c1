package doctor

import (
	"fmt"
	"strings"

	"sallyport/appliance/status"
)

// Checks says what each check of the doctor looks at. Its Name begins the line of a finding, and its
// Code is stable. TROUBLESHOOTING.md has the same table.
var Checks = []struct {
	Name  string
	Code  status.Code
	Means string
}{
	{"config", "config", "the configuration file"},
	{"appliance", "appliance", "whether an appliance runs here and is ready; findings of its status have codes there"},
	{"haproxy", "haproxy", "the program HAProxy"},
	{"keepalived", "keepalived", "the program keepalived, for VRRP"},
	{"files", "files", "open files for `haproxy.maxConnections`"},
	{"capacity", "capacity", "limits that are near"},
	{"port", "port", "whether the addresses and ports of the appliance are free"},
	{"conntrack", "conntrack", "the kernel's table of connections"},
	{"ports-to-pods", "ports-to-pods", "the kernel's ports for connections to pods"},
	{"cluster", "cluster", "the kubeconfig and the API server of a cluster"},
	{"clock", "clock", "whether the clocks of this machine and of the API server agree"},
	{"credentials", "credentials", "the end of the token or certificate in a kubeconfig"},
	{"certificate", "certificate", "the end of certificates: of the API server, of the status endpoint, of Ingresses"},
	{"rights and objects", status.MissingRights, "the rights of the appliance, and the kinds of objects"},
	{"Calico's objects", status.OddObjects, "whether Calico's objects agree with each other and the configuration"},
	{"pool", "pool-not-exported", "whether nodes announce each IP pool"},
	{"pools", "pools", "whether two clusters have addresses in common: `clusters[].pools`, or else their IP pools"},
	{"source", status.SourceMissing, "the address for connections to the pods of a cluster: `clusters[].source`"},
	{"mesh", "mesh", "what connects the nodes of a cluster to one another"},
	{"BGPPeer", "bgppeer", "whether each BGPPeer leads to an appliance"},
	{"node", "node", "the way to a node, and its BGP speaker"},
	{"return path", "return-path", "whether the kernel accepts packets of nodes on each interface"},
	{"objects", "objects", "the objects in the clusters that are served"},
	{"group", "group", "this appliance as a member of its group"},
	{"member", "member", "another member of the group"},
	{"route", "route-missing", "a wanted route that is not in the kernel"},
	{"routes", "routes", "the wanted routes"},
	{"offers", "offer-refused", "offers of nodes that were refused"},
	{"backend", "backend", "a backend without a server that takes traffic"},
	{"servers", "servers", "servers that take no traffic"},
}

// codes holds the codes of Checks by name.
var codes = func() map[string]status.Code {
	of := make(map[string]status.Code, len(Checks))
	for _, c := range Checks {
		of[c.Name] = c.Code
	}
	return of
}()

// A reporter reports findings about one subject: a cluster, a node, a member, or a backend. The
// subject "" is the machine and the appliance.
type reporter struct {
	report  func(status.Finding)
	subject string
}

// about returns a reporter for another subject.
func (r reporter) about(subject string) reporter { return reporter{r.report, subject} }

func (r reporter) ok(check, format string, args ...any) {
	r.finds(status.Healthy, check, fmt.Sprintf(format, args...), "", "")
}

func (r reporter) doubt(check, saw, remedy, command string) {
	r.finds(status.Doubt, check, saw, remedy, command)
}

func (r reporter) failed(check, saw, remedy, command string) {
	r.finds(status.Failed, check, saw, remedy, command)
}

// finds reports a finding of a check, which is one of Checks.
func (r reporter) finds(level status.Level, check, saw, remedy, command string) {
	r.report(status.Finding{
		Code: codes[check], Subject: r.subject, Check: strings.TrimSpace(check + " " + r.subject),
		Level: level, Saw: saw, Remedy: remedy, Command: command,
	})
}
